//! Domain model of Heeler: IDs, records and pure decisions.
//!
//! Records of jobs, runs, sessions and workflow runs are here, with their rows and state machines:
//! the scheduler ([`fleet`]), schedules ([`timetable`]), budgets ([`budget_ledger`]), workflow runs
//! ([`workflow`]) and the outcome of a run ([`outcome`]). This crate does no I/O, reads no clock and
//! no environment, and is not async: callers pass in everything it needs. Config files are parsed in
//! `heeler-config`. Start at [`Job`] for records and at [`fleet::FleetState`] for decisions.

mod access;
mod agent;
pub mod agent_environment;
mod approval;
pub mod budget_ledger;
pub mod calendar;
mod channel;
pub mod config_change;
pub mod daemon_status;
mod denied_tools;
pub mod file_edit;
pub mod fleet;
pub mod hook;
pub mod host_watch;
mod ids;
mod job;
mod job_request;
pub mod job_row;
pub mod message;
mod money;
pub mod native_chain;
mod native_prefix_hash;
mod native_sessions;
mod network_grant;
pub mod outcome;
pub mod permission_grant;
pub mod placement;
mod project_slug;
mod prompt_author;
pub mod question;
mod question_hash;
pub mod recorder;
pub mod redact;
pub mod rerun;
pub mod run;
pub mod schedule_rule;
mod session;
pub mod session_choice;
pub mod session_expiry;
pub mod session_move;
mod text;
mod time;
pub mod timetable;
pub mod workflow;

pub use access::{API_TOKEN, AccessScope, AccessToken, BrowserLogin, UserAccount, secret_hash};
pub use agent::{AgentState, AgentStatus, ScheduleState, ScheduleStatus};
pub use approval::{
    ALLOWED_ALWAYS, APPROVAL_SUMMARY_BYTES_MAX, APPROVAL_TEXT_BYTES_MAX, Approval, ApprovalAnswer,
    ApprovalKind, ApprovalStatus, OFFERED_RULES, offered_rules,
};
pub use channel::{CHANNEL_BYTES_MAX, ChannelKey, ChannelParseError};
pub use denied_tools::DeniedTools;
pub use ids::{
    AccessName, AgentSessionId, ApprovalId, JobId, RunId, SessionId, TokenId, WorkflowRunId,
};
pub use job::{
    ExitReason, Job, JobHead, JobStatus, JobTransition, SUMMARY_BYTES_MAX, TriggerType,
    UsageTotals, job_title,
};
pub use job_request::{
    JobRequest, MessageFile, MessageFiles, PROMPT_BYTES_MAX, PhaseJobKind, PhaseJobRequest,
    SkillSource,
};
pub use money::{format_micros, format_usd};
pub use native_prefix_hash::NativePrefixHash;
pub use native_sessions::{
    NATIVE_AGENT_KEY, NATIVE_SESSION_KEY, NATIVE_SESSION_SUBTYPE, NativeSessionLocation,
    native_session_row,
};
pub use network_grant::NetworkGrantChoice;
pub use project_slug::{SLUG_LEN_MAX, project_slug};
pub use prompt_author::PromptAuthor;
pub use question_hash::question_hash;
pub use session::{NativeSessionPosition, PendingFork, Session, SessionEvent, SessionStatus};
pub use text::{error_chain, one_line, sanitize};
pub use time::{iso_millis, parse_foreign_time, parse_iso};

// Records contain these names too. The crates above take them from here, so a crate that handles
// records but no config needs no dependency on heeler-config.
pub use heeler_config::{
    AgentName, ApprovalMode, IdParseError, LocalName, SessionMode, UnknownWordError, did_you_mean,
    is_hidden_char, is_terminal_control, reveal_hidden, reveal_line,
};
