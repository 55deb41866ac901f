//! What a daemon answers, and why it does not do what it was asked.

use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{JobId, JobStatus, SessionId, WorkflowRunId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{DaemonStatus, IdempotencyKey};
use crate::sessions::{AdoptedSession, ForkedSession, RetainedSession};

/// What a daemon answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum CommandReply {
    /// About a job.
    Job {
        /// The job.
        job: JobId,
        /// Where it is.
        status: JobStatus,
        /// Why it waits, if it does.
        waits: Option<String>,
    },
    /// About a job that was asked for before, by the same delivery.
    Known {
        /// The job.
        job: JobId,
        /// Where it is.
        status: JobStatus,
    },
    /// It is done.
    Done {
        /// What was done.
        message: String,
    },
    /// A session was made.
    Session(Box<ForkedSession>),
    /// A session was taken over.
    Taken(Box<AdoptedSession>),
    /// These sessions were changed as asked.
    Sessions {
        /// Which.
        sessions: Vec<SessionId>,
        /// Those that were to be changed as well and were not.
        #[serde(default)]
        kept: Vec<RetainedSession>,
    },
    /// About a run of a workflow.
    WorkflowRun {
        /// The run.
        run: WorkflowRunId,
        /// Where it is.
        status: WorkflowRunStatus,
        /// Whether it was begun by this.
        is_new: bool,
    },
    /// The config was read again.
    Reloaded {
        /// What is different, one line each.
        changes: Vec<String>,
    },
    /// What goes on.
    Status(Box<DaemonStatus>),
}

/// Why a daemon did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct DaemonCommandError {
    /// What kind of refusal it is.
    pub kind: DaemonCommandErrorKind,
    /// Why.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl DaemonCommandError {
    /// Makes a refusal without a hint.
    pub fn new(kind: DaemonCommandErrorKind, message: impl Into<String>) -> DaemonCommandError {
        DaemonCommandError { kind, message: message.into(), hint: None }
    }

    /// Adds what to do about it.
    pub fn with_hint(self, hint: impl Into<String>) -> DaemonCommandError {
        DaemonCommandError { hint: Some(hint.into()), ..self }
    }
}

/// What kind of refusal it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DaemonCommandErrorKind {
    /// There is no such agent, schedule, job or session.
    NotFound,
    /// Not now.
    Busy,
    /// Its name is that of another request.
    Conflict,
    /// Never, by a rule of the fleet.
    NotAllowed,
    /// What was asked makes no sense.
    Usage,
    /// Something is wrong with the state, the disk or the daemon.
    Trouble,
}

/// Takes the answer to a command. It is called once, on the dispatcher's thread, and may not block.
pub type ReplyCallback = Box<dyn FnOnce(Result<CommandReply, DaemonCommandError>) + Send>;

/// The dispatcher has ended.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("the daemon is ending")]
pub struct DispatcherStoppedError;

impl From<DispatcherStoppedError> for DaemonCommandError {
    fn from(stopped: DispatcherStoppedError) -> DaemonCommandError {
        DaemonCommandError::new(DaemonCommandErrorKind::Trouble, stopped.to_string())
            .with_hint("try again")
    }
}

/// An answer that is owed.
pub(crate) struct PendingReply {
    pub(crate) reply: ReplyCallback,
    /// The name of the request, under which the answer is put on record.
    pub(crate) key: Option<IdempotencyKey>,
}

impl PendingReply {
    /// Answers.
    pub(crate) fn send(self, answer: Result<CommandReply, DaemonCommandError>) {
        (self.reply)(answer);
    }

    /// Has the answer pass through something first.
    pub(crate) fn map_callback(
        self,
        wrap: impl FnOnce(ReplyCallback) -> ReplyCallback,
    ) -> PendingReply {
        PendingReply { reply: wrap(self.reply), key: self.key }
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
