//! Replies of the daemon, and the errors of refused commands.
//!
//! Start at [`CommandReply`] and [`DaemonCommandError`].

use camino::Utf8PathBuf;
use heeler_model::daemon_status::DaemonStatus;
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{JobId, JobStatus, SessionId, WorkflowRunId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::session_operation::{AdoptedSession, ForkedSession, RetainedSession};

/// Reply to a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum CommandReply {
    /// A job was created or changed.
    Job {
        job: JobId,
        /// Status after the command.
        status: JobStatus,
        /// Reason for which the job waits, if it does.
        waits: Option<String>,
    },
    /// The delivery was received before and already has this job.
    Known { job: JobId, status: JobStatus },
    /// The command was executed.
    Done {
        /// Description of the change.
        message: String,
    },
    /// A session was forked.
    Session(Box<ForkedSession>),
    /// A session was adopted or imported.
    Taken(Box<AdoptedSession>),
    /// Sessions were changed.
    Sessions {
        sessions: Vec<SessionId>,
        /// Sessions that should have been changed too, but were not.
        #[serde(default)]
        kept: Vec<RetainedSession>,
    },
    /// A workflow run was started or changed.
    WorkflowRun {
        run: WorkflowRunId,
        status: WorkflowRunStatus,
        /// True if the command created the run.
        is_new: bool,
    },
    /// The config was reloaded.
    Reloaded {
        /// The changes, one line each.
        changes: Vec<String>,
    },
    /// Status of the fleet.
    Status(Box<DaemonStatus>),
}

/// Reason for which the daemon did not execute a command.
#[derive(Debug, Clone, PartialEq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct DaemonCommandError {
    pub kind: DaemonCommandErrorKind,
    pub message: String,
    /// Advice on how to proceed.
    pub hint: Option<String>,
    /// Directory that the repeated command must name, because a person has to agree to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<Utf8PathBuf>,
}

impl DaemonCommandError {
    /// Creates an error without a hint.
    pub fn new(kind: DaemonCommandErrorKind, message: impl Into<String>) -> DaemonCommandError {
        DaemonCommandError { kind, message: message.into(), hint: None, directory: None }
    }

    pub fn with_hint(self, hint: impl Into<String>) -> DaemonCommandError {
        DaemonCommandError { hint: Some(hint.into()), ..self }
    }
}

/// Category of a [`DaemonCommandError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DaemonCommandErrorKind {
    /// The agent, schedule, job or session does not exist.
    NotFound,
    /// The command cannot be executed now, but may succeed later.
    Busy,
    /// The idempotency key was already used for a different request.
    Conflict,
    /// A rule of the fleet forbids it.
    NotAllowed,
    /// A person must confirm it first.
    Unconfirmed,
    /// The arguments are invalid.
    Usage,
    /// The state, the disk or the daemon has a problem.
    Trouble,
}

/// Receives the reply to a command. It is called once, on the thread of the dispatcher or of the
/// publisher of views, and must not block.
pub type ReplyCallback = Box<dyn FnOnce(Result<CommandReply, DaemonCommandError>) + Send>;

/// The dispatcher has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("the daemon is ending")]
pub struct DispatcherStoppedError;

impl From<DispatcherStoppedError> for DaemonCommandError {
    fn from(stopped: DispatcherStoppedError) -> DaemonCommandError {
        DaemonCommandError::new(DaemonCommandErrorKind::Trouble, stopped.to_string())
            .with_hint("try again")
    }
}

/// Idempotency key of a request. A repeated request has no effect and gets the first reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyKey {
    /// Owner of the key; callers do not share keys.
    pub caller: String,
    pub key: String,
    /// Distinguishes this request from a different one with the same key.
    pub fingerprint: String,
}

/// Refuses a message to a job that is not running.
pub(crate) fn job_not_running(job: &JobId) -> DaemonCommandError {
    let refused =
        DaemonCommandError::new(DaemonCommandErrorKind::Busy, format!("job {job} is not running"));
    refused.with_hint("start a new job in its session")
}

/// A reply that the dispatcher still has to send.
pub(crate) struct PendingReply {
    pub(crate) reply: ReplyCallback,
    /// Idempotency key under which the reply is stored.
    pub(crate) key: Option<IdempotencyKey>,
    /// True if the receiver may read the views that follow from its command.
    pub(crate) waits_for_views: bool,
}

impl PendingReply {
    /// Returns a reply that is sent as soon as its event is committed.
    pub(crate) fn after_commit(reply: ReplyCallback) -> PendingReply {
        PendingReply { reply, key: None, waits_for_views: false }
    }

    pub(crate) fn send(self, answer: Result<CommandReply, DaemonCommandError>) {
        (self.reply)(answer);
    }

    /// Wraps the callback.
    pub(crate) fn map_callback(
        self,
        wrap: impl FnOnce(ReplyCallback) -> ReplyCallback,
    ) -> PendingReply {
        PendingReply { reply: wrap(self.reply), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_it_is() {
        let answer = CommandReply::Done { message: "done".to_owned() };
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(text, r#"{"answer":"done","message":"done"}"#);
        assert_eq!(serde_json::from_str::<CommandReply>(&text).unwrap(), answer);
    }
}
