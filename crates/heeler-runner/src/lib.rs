//! One run of one agent, as a process of its own.
//!
//! The runner reads its spec from the run directory and its brief from standard input, holds the
//! run's and the session's lock, starts the agent, writes every row, ends the whole process tree
//! and leaves one result. It never opens the database. Start at [`run()`].

mod acp;
#[cfg(test)]
mod captured_output;
mod claude;
mod client_tools;
mod codex;
mod command;
mod control;
mod conversation_text;
mod deadlines;
mod egress;
mod event_loop;
mod fault;
mod files;
mod host_contact;
mod input_writer;
mod json_rpc;
mod line_reader;
mod mcp;
mod memory;
mod native_fork;
mod native_session;
mod output_log;
mod process;
mod program_policy;
mod program_questions;
mod program_rows;
#[cfg(any(test, feature = "fuzz-entry"))]
pub mod protocol_fuzz;
#[cfg(test)]
mod protocol_replay;
mod questions;
mod qwen;
mod run;
mod runtime;
mod runtime_context;
pub mod scripted;
mod session;
mod settle;
mod signals;
mod stderr_log;
mod text_decoder;
mod token_budget;
mod transcript_segment;
mod transcript_writer;

pub use claude::check_allowed_tools;
pub use files::RunFileError;
pub use mcp::{
    FleetClient, StartedJob, TaskSnapshot, WorkerMessageDelivery, WorkerSnapshot, WorkerState,
};
pub use memory::release_free_memory;
pub use process::{control_group_unavailable_reason, restart_process, restart_without_marker};
#[cfg(target_os = "linux")]
pub use process::{find_first_process, landlock_unavailable_reason, probe_sandbox};
pub use run::{RunnerError, RunnerHost, RunnerTask, read_spec, run, run_conversation};
pub use settle::{
    RunSettleError, end_leftover_processes, settle_run, settle_run_signed, settle_runs,
};
