//! The words and the decisions of Heeler: ids, records, checked config.
//!
//! This crate does no IO, reads no clock and no environment, and is not async: everything it needs
//! is handed in. Start at [`Job`] for records and at [`config::load`] for config.

mod access;
mod agent;
mod approval;
pub mod calendar;
mod channel;
pub mod config;
pub mod fate;
pub mod hook;
mod ids;
mod job;
pub mod ledger;
pub mod message;
pub mod outcome;
mod own_sessions;
pub mod question;
pub mod record;
pub mod redact;
pub mod run;
pub mod script;
mod session;
pub mod session_choice;
mod slug;
mod text;
mod time;
pub mod timetable;
mod wanted;
pub mod webhook;
mod words;
pub mod workflow;

pub use access::{API_TOKEN, Login, Person, Scope, Token, secret_hash};
pub use agent::{AgentState, AgentStatus, ScheduleState, ScheduleStatus};
pub use approval::{
    APPROVAL_SUMMARY_BYTES_MAX, APPROVAL_TEXT_BYTES_MAX, Approval, ApprovalAnswer, ApprovalKind,
    ApprovalStatus,
};
pub use channel::{CHANNEL_BYTES_MAX, ChannelError, ChannelKey};
pub use ids::{
    AccessName, AgentName, AgentSessionId, ApprovalId, IdError, JobId, Name, RunId, SessionId,
    TokenId, WorkflowRunId,
};
pub use job::{ExitReason, Job, JobHead, JobStatus, SUMMARY_BYTES_MAX, TriggerType, Usage};
pub use own_sessions::OwnSessions;
pub use session::{Approvals, ForkCut, OwnMark, Session, SessionEvent, SessionMode, SessionStatus};
pub use slug::{SLUG_LEN_MAX, slug};
pub use text::{chain, steers_terminal};
pub use time::{from_foreign, from_iso, iso_millis};
pub use wanted::{PROMPT_BYTES_MAX, PhaseJob, PhaseOrder, Wanted};
pub use words::UnknownWord;
