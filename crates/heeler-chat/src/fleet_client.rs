//! Interface of a conversation to a fleet: commands and events.
//!
//! The program implements it over the sockets of the daemon and the runs; tests use a fake.

use heeler_model::job_row::JobRow;
use heeler_model::permission_grant::PermissionGrant;
use heeler_model::run::{AgentQuestion, QuestionAnswer};
use heeler_model::{AgentSessionId, JobId};
use uuid::Uuid;

/// Agent that can be talked to.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatAgentInfo {
    pub name: String,
    pub description: Option<String>,
    /// Runtime that executes it.
    pub runtime: String,
    /// Model from the config, if any.
    pub model: Option<String>,
}

/// Native session in which a turn takes place.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnSessionChoice {
    New,
    /// Continue this session.
    Existing(AgentSessionId),
    /// Fork of this session, up to an entry if one is given (rows of jobs have the same `uuid`).
    Fork(AgentSessionId, Option<Uuid>),
}

/// Turn to start.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnRequest {
    /// Idempotency key: the same ID starts nothing twice.
    pub id: Uuid,
    pub agent: String,
    pub prompt: String,
    /// Native session of the turn.
    pub session: TurnSessionChoice,
    /// Model, if it is not the agent's own.
    pub model: Option<String>,
    /// A person can answer questions.
    pub attended: bool,
    /// Permissions that the person has given in this conversation.
    pub permissions: PermissionGrant,
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatJobState {
    Waiting,
    Running,
    Done,
    /// Failed, was cancelled or interrupted.
    Failed,
}

/// Status of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatJobInfo {
    pub job: JobId,
    pub agent: String,
    pub state: ChatJobState,
    /// Reason for which it waits or failed.
    pub reason: Option<String>,
    /// Native session ID.
    pub session: Option<AgentSessionId>,
    pub cost_usd: Option<f64>,
    /// Tokens of the model's context in use.
    pub context_tokens: Option<u64>,
    /// Tokens that the model's context can hold, if its agent reports that.
    pub context_window: Option<u64>,
    /// Model that answered.
    pub model: Option<String>,
}

/// Worker: an agent that another agent started.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatWorkerInfo {
    /// Name among the workers of the conversation: `coder-1`.
    pub name: String,
    /// First task.
    pub task: String,
    /// Jobs, oldest first: each message to an idle worker creates another.
    pub jobs: Vec<ChatJobInfo>,
}

/// Output of a command that the person ran on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellCommandOutput {
    pub command: String,
    /// Standard output and standard error, shortened if they are long.
    pub output: String,
    /// `exit status 0`, or how else it ended.
    pub outcome: String,
}

/// Failure to deliver a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageDeliveryError {
    /// The agent did not receive it.
    Refused(String),
    /// The agent may have received it; then a row will contain it.
    Unconfirmed(String),
}

/// Event of the fleet.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatFleetEvent {
    /// A job has another row, which is on disk.
    Row {
        job: JobId,
        /// Number of the row, from zero.
        at: u64,
        row: JobRow,
    },
    /// Part of an unfinished message of the agent; its row follows.
    Delta {
        job: JobId,
        /// Next part of the text.
        text: String,
    },
    /// The agent asks a question.
    QuestionAsked { job: JobId, ask: AgentQuestion },
    /// A question was answered or withdrawn.
    QuestionClosed {
        job: JobId,
        /// [`AgentQuestion::id`].
        ask: String,
    },
    /// The state of a job changed. At its end, all rows have been reported before.
    Job(ChatJobInfo),
    /// Workers were started or changed.
    Workers(Vec<ChatWorkerInfo>),
    /// A command of the person ended.
    ShellEnded(ShellCommandOutput),
    /// Changes to the files of a session: a unified diff, or the reason that there is none.
    DiffLoaded(Result<String, String>),
    /// The files of a session were restored: a description, or the reason that they were not.
    FilesRestored(Result<String, String>),
    /// The fleet became unreachable, with the reason, or reachable again.
    ConnectionChanged(Option<String>),
}

/// Connection to a fleet. Commands succeed or fail at once; their effects arrive as
/// [`ChatFleetEvent`].
pub trait ChatFleetClient: Send {
    fn agents(&self) -> Vec<ChatAgentInfo>;
    /// Returns lines that describe an agent's permissions, the treatment of other requests, and the
    /// place of the settings.
    fn describe_permissions(&self, agent: &str, attended: bool) -> Vec<String>;
    fn start_turn(&mut self, turn: &TurnRequest) -> Result<JobId, String>;
    /// Returns the job of a turn, if it was started.
    fn find_turn_job(&mut self, turn: Uuid) -> Result<Option<JobId>, String>;
    /// Sends a message to a running agent.
    fn send_message(&mut self, job: &JobId, text: &str) -> Result<(), MessageDeliveryError>;
    /// Answers a question of an agent. `shown` is the hash of the question as it was shown.
    fn answer_question(
        &mut self,
        job: &JobId,
        ask: &str,
        answer: &QuestionAnswer,
        shown: Option<String>,
    ) -> Result<(), String>;
    /// Cancels a job; `now` stops it immediately.
    fn cancel_job(&mut self, job: &JobId, now: bool) -> Result<(), String>;
    /// Reports rows and states of a job from a row on, until it ends.
    fn follow_job(&mut self, job: &JobId, from: u64);
    /// Reports the workers of these jobs, now and when one changes.
    fn watch_workers(&mut self, jobs: &[JobId]);
    /// Runs a command of the person in the agent's directory; its end is an event. At most one runs
    /// at a time.
    fn run_shell(&mut self, command: &str) -> Result<(), String>;
    /// Stops the command of the person, if one runs. Its end is an event, too.
    fn stop_shell(&mut self);
    /// Loads the changes to the files of a session since its start; they are an event.
    fn load_diff(&mut self, session: &AgentSessionId);
    /// Restores the files of a session: as they were after an entry, or without one before its first
    /// turn. The result is an event.
    fn restore_files(&mut self, session: &AgentSessionId, after: Option<Uuid>);
    /// Returns the status of a job; `None` if it is unknown.
    fn job_info(&mut self, job: &JobId) -> Result<Option<ChatJobInfo>, String>;
}
