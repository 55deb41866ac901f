//! What a conversation asks of a fleet, and what it hears of it.
//!
//! The program does this over the daemon's socket and the runs' own; tests play it.

use heeler_model::run::{AgentQuestion, QuestionAnswer};
use heeler_model::{AgentSessionId, JobId};
use serde_json::Value as Json;
use uuid::Uuid;

/// An agent that can be talked to.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatAgentInfo {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// What runs it.
    pub runtime: String,
    /// The model, if the config names one.
    pub model: Option<String>,
}

/// Which of the agent's conversations a turn goes on in.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnSessionChoice {
    /// A new one.
    New,
    /// This one.
    Existing(AgentSessionId),
    /// A new one with the history of this one, up to an entry of its log if one is named (rows of jobs
    /// have the same `uuid`).
    Fork(AgentSessionId, Option<Uuid>),
}

/// Something that an agent is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnRequest {
    /// Names it: the same again starts nothing.
    pub id: Uuid,
    /// Who is asked.
    pub agent: String,
    /// What.
    pub prompt: String,
    /// Where.
    pub session: TurnSessionChoice,
    /// The model, if not the agent's own.
    pub model: Option<String>,
    /// Whether somebody can answer questions.
    pub attended: bool,
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatJobState {
    /// It waits.
    Waiting,
    /// It runs.
    Running,
    /// It is done.
    Done,
    /// It failed, was cancelled or cut off.
    Failed,
}

/// What is known of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatJobInfo {
    /// The job.
    pub job: JobId,
    /// Who does it.
    pub agent: String,
    /// Where it is.
    pub state: ChatJobState,
    /// Why it waits or failed.
    pub reason: Option<String>,
    /// The agent's own id of its conversation.
    pub session: Option<AgentSessionId>,
    /// What it has cost.
    pub cost_usd: Option<f64>,
    /// How much of the model's context is in use, in tokens.
    pub context_tokens: Option<u64>,
    /// The model that answered.
    pub model: Option<String>,
}

/// A worker: an agent that another agent has set to work.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatWorkerInfo {
    /// Its name among the workers of the conversation: `coder-1`.
    pub name: String,
    /// What it was asked first.
    pub task: String,
    /// Its jobs, oldest first: each message that finds it idle makes another.
    pub jobs: Vec<ChatJobInfo>,
}

/// Why it is not certain that an agent heard something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageDeliveryError {
    /// It has not, and will not.
    Refused(String),
    /// It may have: if so, a row tells it.
    Unconfirmed(String),
}

/// What a conversation hears.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatFleetEvent {
    /// A job has another row, which is on disk.
    Row {
        /// The job.
        job: JobId,
        /// The row's number, from zero.
        at: u64,
        /// The row.
        row: Json,
    },
    /// The agent says something; its row follows.
    Delta {
        /// The job.
        job: JobId,
        /// The next piece.
        text: String,
    },
    /// A person is asked.
    QuestionAsked {
        /// The job.
        job: JobId,
        /// What.
        ask: AgentQuestion,
    },
    /// What was asked is settled.
    QuestionClosed {
        /// The job.
        job: JobId,
        /// [`Ask::id`].
        ask: String,
    },
    /// A job is where it was not before: it waits, runs, or is over. When it is over all rows were told.
    Job(ChatJobInfo),
    /// A job has started another as a worker, or one of them is where it was not before.
    Workers(Vec<ChatWorkerInfo>),
    /// The fleet cannot be reached, or can again.
    ConnectionChanged(Option<String>),
}

/// A fleet. What it is told is done or refused at once; what happens then is [`ChatFleetEvent`].
pub trait ChatFleetClient: Send {
    /// Lists the agents.
    fn agents(&self) -> Vec<ChatAgentInfo>;
    /// Says in lines what an agent may do, who is asked about the rest, and where that is written.
    fn describe_permissions(&self, agent: &str, attended: bool) -> Vec<String>;
    /// Asks an agent.
    fn start_turn(&mut self, turn: &TurnRequest) -> Result<JobId, String>;
    /// Returns the job of a turn, if it was asked.
    fn find_turn_job(&mut self, turn: Uuid) -> Result<Option<JobId>, String>;
    /// Says something more to an agent that is at work.
    fn send_message(&mut self, job: &JobId, text: &str) -> Result<(), MessageDeliveryError>;
    /// Answers what an agent asks.
    fn answer_question(
        &mut self,
        job: &JobId,
        ask: &str,
        answer: &QuestionAnswer,
    ) -> Result<(), String>;
    /// Ends a job.
    fn cancel_job(&mut self, job: &JobId, now: bool) -> Result<(), String>;
    /// Tells what happens to a job from a row on, until it is over.
    fn follow_job(&mut self, job: &JobId, from: u64);
    /// Tells of the workers of these jobs, now and whenever one of them changes.
    fn watch_workers(&mut self, jobs: &[JobId]);
    /// Returns what is known of a job.
    fn job_info(&mut self, job: &JobId) -> Result<Option<ChatJobInfo>, String>;
}
