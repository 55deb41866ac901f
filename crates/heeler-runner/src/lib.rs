//! One run of one agent as a process of its own.
//!
//! It reads its spec from the run's folder and its brief from standard input, holds the run's and
//! the session's lock, starts the agent, writes every row, ends the whole process tree and leaves
//! one result. It never opens the database. Start at [`run()`].

mod asks;
mod claude;
mod command;
mod complaints;
mod control;
mod fault;
mod files;
mod journal;
mod limits;
mod lines;
mod mcp;
mod memory;
mod output;
mod own;
mod process;
mod pump;
mod run;
mod runtime;
pub mod scripted;
mod session;
mod settle;
mod signals;
mod text;
mod writer;

pub use files::FileError;
pub use mcp::{FleetDoor, Heard, StartedJob, TaskNow, WorkerNow, WorkerState};
pub use memory::give_back_memory;
pub use own::said_outside;
pub use process::{shed_marker, why_no_control_group};
pub use run::{Host, RunnerError, run};
pub use settle::{SettleError, end_left, settle, settle_all};
