//! What whoever asked the daemon for something is told: its answers as data.

use heeler_engine::{Answer, KeptSession, MadeSession, TakenSession};
use heeler_model::JobStatus;
use heeler_model::workflow::CourseStatus;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::words;

/// An answer of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Told {
    /// About a job.
    Job(JobTold),
    /// About a job that was asked for before.
    Known(JobKnown),
    /// It is done.
    Done(Done),
    /// A session was made.
    Session(SessionMade),
    /// A session was taken over.
    Taken(SessionTaken),
    /// These sessions were changed as asked.
    Sessions(SessionsChanged),
    /// About a run of a workflow.
    Run(RunTold),
    /// The config was read again.
    Reloaded(Reloaded),
    /// What goes on.
    Status(Value),
}

impl From<Answer> for Told {
    fn from(answer: Answer) -> Told {
        match answer {
            Answer::Job { job, status, waits } => {
                Told::Job(JobTold { id: job.to_string(), status, waits })
            }
            Answer::Known { job, status } => Told::Known(JobKnown { id: job.to_string(), status }),
            Answer::Done { message } => Told::Done(Done { message }),
            Answer::Session(made) => Told::Session((*made).into()),
            Answer::Taken(taken) => Told::Taken((*taken).into()),
            Answer::Sessions { sessions, kept } => Told::Sessions(SessionsChanged {
                total: sessions.len(),
                sessions: sessions.iter().map(ToString::to_string).collect(),
                kept: kept.into_iter().map(SessionKept::from).collect(),
            }),
            Answer::WorkflowRun { run, status, is_new } => {
                Told::Run(RunTold { id: run.to_string(), status, is_new })
            }
            Answer::Reloaded { changes } => Told::Reloaded(Reloaded { changes }),
            Answer::Status(status) => {
                Told::Status(serde_json::to_value(status).expect("a status is JSON"))
            }
        }
    }
}

/// A job that was asked for or changed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobTold {
    /// Its id.
    pub id: String,
    /// Where it is.
    #[schema(value_type = words::JobStatus)]
    pub status: JobStatus,
    /// Why it waits, if it does.
    pub waits: Option<String>,
}

/// A job that was asked for before.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobKnown {
    /// Its id.
    pub id: String,
    /// Where it is.
    #[schema(value_type = words::JobStatus)]
    pub status: JobStatus,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Done {
    /// In words.
    pub message: String,
}

/// A session that was made.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionMade {
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

impl From<MadeSession> for SessionMade {
    fn from(made: MadeSession) -> SessionMade {
        SessionMade {
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
pub struct SessionTaken {
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

impl From<TakenSession> for SessionTaken {
    fn from(taken: TakenSession) -> SessionTaken {
        SessionTaken {
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
pub struct SessionsChanged {
    /// Their ids.
    pub sessions: Vec<String>,
    /// How many.
    pub total: usize,
    /// Those that were to be changed as well and were not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<SessionKept>,
}

/// A session that stays although it was to go.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionKept {
    /// Its id.
    pub id: String,
    /// Why.
    pub reason: String,
}

impl From<KeptSession> for SessionKept {
    fn from(kept: KeptSession) -> SessionKept {
        SessionKept { id: kept.id.to_string(), reason: kept.reason }
    }
}

/// A run of a workflow that was asked for or changed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunTold {
    /// Its id.
    pub id: String,
    /// Where it is.
    #[schema(value_type = words::RunStatus)]
    pub status: CourseStatus,
    /// Whether it was begun by this.
    pub is_new: bool,
}

/// What reading the config again changed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Reloaded {
    /// One line for each change.
    pub changes: Vec<String>,
}
