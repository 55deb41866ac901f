//! What whoever asked the daemon for something is told: its answers as data.

use heeler_engine::{AdoptedSession, CommandReply, ForkedSession, RetainedSession};
use heeler_model::JobStatus;
use heeler_model::workflow::WorkflowRunStatus;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::enum_schemas;

/// An answer of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum DaemonReply {
    /// About a job.
    Job(JobReply),
    /// About a job that was asked for before.
    Known(ExistingJobReply),
    /// It is done.
    Done(MessageReply),
    /// A session was made.
    Session(CreatedSessionReply),
    /// A session was taken over.
    Taken(AdoptedSessionReply),
    /// These sessions were changed as asked.
    Sessions(ChangedSessionsReply),
    /// About a run of a workflow.
    Run(WorkflowRunReply),
    /// The config was read again.
    Reloaded(ConfigReloadReply),
    /// What goes on.
    Status(Value),
}

impl From<CommandReply> for DaemonReply {
    fn from(answer: CommandReply) -> DaemonReply {
        match answer {
            CommandReply::Job { job, status, waits } => {
                DaemonReply::Job(JobReply { id: job.to_string(), status, waits })
            }
            CommandReply::Known { job, status } => {
                DaemonReply::Known(ExistingJobReply { id: job.to_string(), status })
            }
            CommandReply::Done { message } => DaemonReply::Done(MessageReply { message }),
            CommandReply::Session(made) => DaemonReply::Session((*made).into()),
            CommandReply::Taken(taken) => DaemonReply::Taken((*taken).into()),
            CommandReply::Sessions { sessions, kept } => {
                DaemonReply::Sessions(ChangedSessionsReply {
                    total: sessions.len(),
                    sessions: sessions.iter().map(ToString::to_string).collect(),
                    kept: kept.into_iter().map(SkippedSession::from).collect(),
                })
            }
            CommandReply::WorkflowRun { run, status, is_new } => {
                DaemonReply::Run(WorkflowRunReply { id: run.to_string(), status, is_new })
            }
            CommandReply::Reloaded { changes } => {
                DaemonReply::Reloaded(ConfigReloadReply { changes })
            }
            CommandReply::Status(status) => {
                DaemonReply::Status(serde_json::to_value(status).expect("a status is JSON"))
            }
        }
    }
}

/// A job that was asked for or changed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobReply {
    /// Its id.
    pub id: String,
    /// Where it is.
    #[schema(value_type = enum_schemas::JobStatus)]
    pub status: JobStatus,
    /// Why it waits, if it does.
    pub waits: Option<String>,
}

/// A job that was asked for before.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExistingJobReply {
    /// Its id.
    pub id: String,
    /// Where it is.
    #[schema(value_type = enum_schemas::JobStatus)]
    pub status: JobStatus,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct MessageReply {
    /// In words.
    pub message: String,
}

/// A session that was made.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedSessionReply {
    /// Its id.
    pub id: String,
    /// The agent's own id of it.
    pub agent_session_id: String,
    /// Whose it is.
    pub agent_id: String,
    /// The session that it has its history from.
    pub parent: String,
    /// The last message that it knows.
    pub at_message: u64,
    /// The message that was asked for, if it could not be cut there.
    pub asked_for: Option<u64>,
    /// Its own worktree.
    pub workspace: Option<String>,
    /// How many messages of the source, behind the cut, it could not take over.
    pub left_behind: u64,
    /// What that worktree lacks, as the snapshot has it.
    pub left_out: Vec<Value>,
    /// The jobs that were at work in the same folder when the snapshot was taken.
    pub others: Vec<String>,
}

impl From<ForkedSession> for CreatedSessionReply {
    fn from(made: ForkedSession) -> CreatedSessionReply {
        CreatedSessionReply {
            id: made.id.to_string(),
            agent_session_id: made.agent_session_id.to_string(),
            agent_id: made.agent,
            parent: made.parent.to_string(),
            at_message: made.at_message,
            asked_for: made.asked_for,
            workspace: made.workspace.map(Into::into),
            left_behind: made.left_behind,
            left_out: made.left_out,
            others: made.others,
        }
    }
}

/// A session that was taken over.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdoptedSessionReply {
    /// Its id.
    pub id: String,
    /// The agent's own id of it.
    pub agent_session_id: Option<String>,
    /// Whose it is.
    pub agent_id: String,
    /// How many messages it has.
    pub message_count: u64,
    /// Where it goes on.
    pub working_directory: Option<String>,
    /// How many snapshots of its files came along.
    pub snapshots: u64,
}

impl From<AdoptedSession> for AdoptedSessionReply {
    fn from(taken: AdoptedSession) -> AdoptedSessionReply {
        AdoptedSessionReply {
            id: taken.id.to_string(),
            agent_session_id: taken.agent_session_id.map(|id| id.to_string()),
            agent_id: taken.agent,
            message_count: taken.messages,
            working_directory: taken.working_directory.map(Into::into),
            snapshots: taken.snapshots,
        }
    }
}

/// Sessions that were changed as asked.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangedSessionsReply {
    /// Their ids.
    pub sessions: Vec<String>,
    /// How many.
    pub total: usize,
    /// Those that were to be changed as well and were not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<SkippedSession>,
}

/// A session that stays although it was to go.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkippedSession {
    /// Its id.
    pub id: String,
    /// Why.
    pub reason: String,
}

impl From<RetainedSession> for SkippedSession {
    fn from(kept: RetainedSession) -> SkippedSession {
        SkippedSession { id: kept.id.to_string(), reason: kept.reason }
    }
}

/// A run of a workflow that was asked for or changed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRunReply {
    /// Its id.
    pub id: String,
    /// Where it is.
    #[schema(value_type = enum_schemas::RunStatus)]
    pub status: WorkflowRunStatus,
    /// Whether it was begun by this.
    pub is_new: bool,
}

/// What reading the config again changed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ConfigReloadReply {
    /// One line for each change.
    pub changes: Vec<String>,
}
