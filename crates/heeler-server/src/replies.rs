//! Replies of the daemon, as serializable data.

use heeler_engine::{AdoptedSession, CommandReply, ForkedSession, RetainedSession};
use heeler_model::JobStatus;
use heeler_model::workflow::WorkflowRunStatus;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use heeler_query::enum_schemas;

/// Reply of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum DaemonReply {
    /// A job was created or changed.
    Job(JobReply),
    /// The job was already created by an earlier request.
    Known(ExistingJobReply),
    /// The request was executed.
    Done(MessageReply),
    /// A session was created.
    Session(CreatedSessionReply),
    /// A session was adopted.
    Taken(AdoptedSessionReply),
    /// Sessions were changed.
    Sessions(ChangedSessionsReply),
    /// A workflow run was created or changed.
    Run(WorkflowRunReply),
    /// The config was reloaded.
    Reloaded(ConfigReloadReply),
    /// Status of the daemon.
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

/// A job that was created or changed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobReply {
    /// Job ID.
    pub id: String,
    /// Status.
    #[schema(value_type = enum_schemas::JobStatus)]
    pub status: JobStatus,
    /// Reason for waiting, if the job is queued.
    pub waits: Option<String>,
}

/// A job that was created by an earlier request.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExistingJobReply {
    /// Job ID.
    pub id: String,
    /// Status.
    #[schema(value_type = enum_schemas::JobStatus)]
    pub status: JobStatus,
}

/// Result of a request, as text.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct MessageReply {
    /// Description of the result.
    pub message: String,
}

/// A session that was created.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedSessionReply {
    /// Session ID.
    pub id: String,
    /// ID of the native session.
    pub agent_session_id: String,
    /// Name of the agent.
    pub agent_id: String,
    /// ID of the session from which it was forked.
    pub parent: String,
    /// Number of the last message it contains.
    pub at_message: u64,
    /// Requested message, if a fork could not start there.
    pub asked_for: Option<u64>,
    /// Path of its own worktree.
    pub workspace: Option<String>,
    /// Number of messages of the source after the fork point that were not copied.
    pub left_behind: u64,
    /// Files missing in the worktree, as recorded in the snapshot.
    pub left_out: Vec<Value>,
    /// IDs of the jobs that were active in the same directory when the snapshot was taken.
    pub others: Vec<String>,
    /// The agent cannot fork the session itself, so its first prompt contains the conversation as text.
    pub as_text: bool,
}

impl From<ForkedSession> for CreatedSessionReply {
    fn from(session: ForkedSession) -> CreatedSessionReply {
        CreatedSessionReply {
            id: session.id.to_string(),
            agent_session_id: session.agent_session_id.to_string(),
            agent_id: session.agent,
            parent: session.parent.to_string(),
            at_message: session.at_message,
            asked_for: session.asked_for,
            workspace: session.workspace.map(Into::into),
            left_behind: session.left_behind,
            left_out: session.left_out,
            others: session.others,
            as_text: session.as_text,
        }
    }
}

/// A session that was adopted.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdoptedSessionReply {
    /// Session ID.
    pub id: String,
    /// ID of the native session.
    pub agent_session_id: Option<String>,
    /// Name of the agent.
    pub agent_id: String,
    /// Number of messages.
    pub message_count: u64,
    /// Working directory in which it continues.
    pub working_directory: Option<String>,
    /// Number of imported snapshots of its files.
    pub snapshots: u64,
}

impl From<AdoptedSession> for AdoptedSessionReply {
    fn from(session: AdoptedSession) -> AdoptedSessionReply {
        AdoptedSessionReply {
            id: session.id.to_string(),
            agent_session_id: session.agent_session_id.map(|id| id.to_string()),
            agent_id: session.agent,
            message_count: session.messages,
            working_directory: session.working_directory.map(Into::into),
            snapshots: session.snapshots,
        }
    }
}

/// Sessions that were changed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangedSessionsReply {
    /// Session IDs.
    pub sessions: Vec<String>,
    /// Number of changed sessions.
    pub total: usize,
    /// Sessions that were requested but not changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<SkippedSession>,
}

/// A session that was not changed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkippedSession {
    /// Session ID.
    pub id: String,
    /// Reason.
    pub reason: String,
}

impl From<RetainedSession> for SkippedSession {
    fn from(session: RetainedSession) -> SkippedSession {
        SkippedSession { id: session.id.to_string(), reason: session.reason }
    }
}

/// A workflow run that was created or changed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRunReply {
    /// Workflow run ID.
    pub id: String,
    /// Status.
    #[schema(value_type = enum_schemas::RunStatus)]
    pub status: WorkflowRunStatus,
    /// True if this request created the workflow run.
    pub is_new: bool,
}

/// Changes after the config was reloaded.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ConfigReloadReply {
    /// One line per change.
    pub changes: Vec<String>,
}
