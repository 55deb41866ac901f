//! Contact with a run from outside: the files of its directory, and its control socket.
//!
//! A run is reached only through these two. Nothing here starts a process, changes the directory or
//! opens the database. Start at [`ControlClient`].

mod control_client;
mod run_file;

pub use control_client::{
    ControlClient, ControlError, EventStreamCloser, LINE_BYTES_MAX, REPLY_WAIT, RunEventStream,
    connect_to_socket, parse_reply, read_started_file, request_line,
};
pub use run_file::{RunFileReadError, read_run_file, read_run_spec};
