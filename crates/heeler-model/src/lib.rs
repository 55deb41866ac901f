//! Domain model of Heeler: ids, records, checked config and pure decisions.
//!
//! This crate does no I/O, reads no clock and no environment, and is not async: callers pass in
//! everything it needs. Start at [`Job`] for records and at [`config`] for configuration.

mod access;
mod agent;
pub mod agent_environment;
mod approval;
pub mod budget_ledger;
pub mod calendar;
mod channel;
pub mod config;
pub mod daemon_status;
pub mod fleet;
pub mod hook;
mod ids;
mod job;
mod job_request;
pub mod job_row;
pub mod message;
pub mod native_chain;
mod native_sessions;
pub mod outcome;
mod project_slug;
pub mod question;
pub mod recorder;
pub mod redact;
pub mod rerun;
pub mod run;
pub mod schedule_rule;
pub mod script;
mod session;
pub mod session_choice;
pub mod session_expiry;
mod text;
mod time;
pub mod timetable;
pub mod webhook;
mod words;
pub mod workflow;

pub use access::{API_TOKEN, AccessScope, AccessToken, BrowserLogin, UserAccount, secret_hash};
pub use agent::{AgentState, AgentStatus, ScheduleState, ScheduleStatus};
pub use approval::{
    APPROVAL_SUMMARY_BYTES_MAX, APPROVAL_TEXT_BYTES_MAX, Approval, ApprovalAnswer, ApprovalKind,
    ApprovalStatus,
};
pub use channel::{CHANNEL_BYTES_MAX, ChannelKey, ChannelParseError};
pub use ids::{
    AccessName, AgentName, AgentSessionId, ApprovalId, IdParseError, JobId, LocalName, RunId,
    SessionId, TokenId, WorkflowRunId,
};
pub use job::{
    ExitReason, Job, JobHead, JobStatus, JobTransition, SUMMARY_BYTES_MAX, TriggerType, UsageTotals,
};
pub use job_request::{JobRequest, PROMPT_BYTES_MAX, PhaseJobKind, PhaseJobRequest};
pub use native_sessions::NativeSessionLocation;
pub use project_slug::{SLUG_LEN_MAX, project_slug};
pub use session::{
    ApprovalMode, NativeSessionPosition, PendingFork, Session, SessionEvent, SessionMode,
    SessionStatus,
};
pub use text::{error_chain, is_terminal_control, one_line, sanitize};
pub use time::{iso_millis, parse_foreign_time, parse_iso};
pub use words::UnknownWordError;
