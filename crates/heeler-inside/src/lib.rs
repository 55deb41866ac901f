//! The first process of a sandbox (`heeler inside`).
//!
//! The runner stays outside. It is connected to the standard input of this process, or listens on a
//! socket whose path is the only argument, and sends one [`InsideRequest`] with the agent's pipes.
//! This process starts the agent, reaps every process of the sandbox, forwards loopback ports to
//! sockets of the runner, and reports how the agent ended. When the connection closes, it exits, and
//! the kernel kills every other process of the sandbox's PID namespace. It uses no async runtime.
//! Start at [`run_first_process`].

mod protocol;
mod sources_hash;

#[cfg(target_os = "linux")]
mod first_process;
#[cfg(target_os = "linux")]
mod memory_events;
#[cfg(target_os = "linux")]
mod port_forwarder;
#[cfg(target_os = "linux")]
mod syscall_filter;

#[cfg(target_os = "linux")]
pub use first_process::run_first_process;
pub use protocol::{
    DESCRIPTORS_MAX, InsideArgument, InsideCommand, InsideFile, InsideReport, InsideRequest,
    LoopbackForward, MountCheck, read_frame, receive_request, send_request, write_frame,
};
pub use sources_hash::SOURCES_HASH;
