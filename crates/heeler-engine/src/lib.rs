//! The fleet: starts runs and commits what they did.
//!
//! It decides through the model, writes through the store, and talks to runners only through their
//! folders and sockets. It never parses what an agent says. A [`Daemon`] is the one process that
//! changes a fleet's state, whoever asks it through its [`Handle`]; whoever watches a run uses
//! [`Control`].

mod access;
mod approvals;
mod asks;
mod cancel;
mod checkout;
mod command;
mod commit;
mod control;
mod conversation;
mod crew;
mod daemon;
mod daemon_file;
mod dispatch;
pub mod fault;
mod file;
mod fleet;
mod hands;
pub mod hooks;
mod launch;
pub mod logs;
mod named;
mod origin;
mod outlook;
mod prepare;
mod pulse;
mod reading;
mod recover;
mod request;
pub mod retention;
mod sessions;
mod setup;
mod sockets;
mod start;
mod watcher;
mod watching;
mod workflows;

pub use access::{
    AccessOrder, ApiTokenError, LOGIN_LASTS, LOGINS_MAX, LoginBy, Secret, SecretError, TOKENS_MAX,
    is_anybody_let_in,
};
pub use checkout::{CheckoutError, make_ready};
pub use command::{
    AgentChange, Answer, BudgetStatus, Call, Command, DaemonMode, DaemonStatus, Handle,
    ParkedCredential, Refused, RefusedKind, Reply, RequestKey, RunningJob, ScheduleChange,
    ScheduleOverride, ScheduleStatus, Stopped, Stopping, WEBHOOK_BYTES_MAX, WaitingJob,
};
pub use commit::{CommitError, Committed};
pub use control::{Control, ControlError, HangUp, Happenings, started};
pub use conversation::{conversation, sessions_of};
pub use daemon::{Daemon, DaemonError, Settings};
pub use daemon_file::{DaemonFile, DaemonFileError};
pub use dispatch::{
    CallSecret, Ended, GO_ON, Loader, REQUESTS_KEPT, Webhook, answered, read_rule, rule_text,
};
pub use file::FileError;
pub use fleet::{Fleet, OpenError};
pub use launch::{DaemonStart, LaunchError, launch_daemon};
pub use origin::Origin;
pub use outlook::{Change, Outlook};
pub use prepare::{PrepareError, Surroundings, prepare};
pub use pulse::UNHEARD_MAX;
pub use reading::Around;
pub use recover::{Compare, RecoverError, Recovered, recover};
pub use request::JobRequest;
pub use sessions::{
    CLEANUP_MAX, Cleanup, KeptSession, MadeSession, NATIVE, SessionOrder, TakenSession, expired,
    has_expired, plan_cleanup,
};
pub use setup::{Setup, cron_override};
pub use sockets::{SocketsError, sockets};
pub use start::{AtWork, StartError, at_work};
pub use watching::{CHANGES_TOLD_MAX, WATCHED_FOLDERS_MAX, WatchSpec, Watched, Watching};
pub use workflows::{WorkflowMode, WorkflowOrder, WorkflowWanted};

#[cfg(test)]
mod tests;
