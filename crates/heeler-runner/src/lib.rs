//! One run of one agent as a process of its own.
//!
//! It reads its spec from the run's folder and its brief from standard input, holds the run's and
//! the session's lock, starts the agent, writes every row, ends the whole process tree and leaves
//! one result. It never opens the database. Start at `run`.

mod files;
mod mcp;
mod process;
mod settle;

pub use files::FileError;
pub use process::{MARKER, NoCgroup, SpawnError, shed_marker};
pub use settle::{SettleError, settle};
