//! The fleet: starts runs and commits what they did.
//!
//! It decides through the model, writes through the store, and talks to runners only through their
//! folders and sockets. It never parses what an agent says. A job goes through [`prepare()`] (what
//! its run is given), [`conduct()`] (one process per job: start, wait, commit) and, where a process
//! died on the way, [`recover()`]. Whoever watches a run uses [`Control`], whoever ends one
//! [`Cancelling`].

mod cancel;
mod cancelling;
mod checkout;
mod command;
mod commit;
mod conduct;
mod control;
mod crew;
mod daemon;
mod daemon_file;
mod dispatch;
mod file;
mod fleet;
mod hands;
pub mod hooks;
mod launch;
pub mod logs;
mod named;
mod prepare;
mod recover;
mod request;
mod setup;
mod sockets;
mod start;
mod watcher;
mod watching;

pub use cancel::KillError;
pub use cancelling::{CancelError, Cancelling, wait_recorded};
pub use checkout::{CheckoutError, make_ready};
pub use command::{
    AgentChange, Answer, BudgetStatus, Command, DaemonMode, DaemonStatus, Handle, ParkedCredential,
    Refused, RefusedKind, Reply, RunningJob, ScheduleChange, ScheduleOverride, ScheduleStatus,
    Stopped, Stopping, WaitingJob,
};
pub use commit::{CommitError, Committed};
pub use conduct::{ConductError, Notice, Refusal, conduct};
pub use control::{Control, ControlError, Happenings, started};
pub use daemon::{Daemon, DaemonError, Settings};
pub use daemon_file::{DaemonFile, DaemonFileError};
pub use dispatch::{Ended, Loader};
pub use file::FileError;
pub use fleet::{Fleet, OpenError};
pub use launch::{Conductor, DaemonStart, LaunchError, launch_conductor, launch_daemon};
pub use prepare::{PrepareError, Surroundings, prepare};
pub use recover::{Compare, RecoverError, Recovered, recover};
pub use request::JobRequest;
pub use setup::Setup;
pub use sockets::{SocketsError, sockets};
pub use start::StartError;
pub use watching::{CHANGES_TOLD_MAX, WATCHED_FOLDERS_MAX, WatchSpec, Watched, Watching};

#[cfg(test)]
mod tests;
