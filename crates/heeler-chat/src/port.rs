//! What a conversation asks of a fleet, and what it hears of it.
//!
//! The program does this over the daemon's socket and the runs' own; tests play it.

use heeler_model::run::{Answer, Ask};
use heeler_model::{AgentSessionId, JobId};
use serde_json::Value as Json;
use uuid::Uuid;

/// An agent that can be talked to.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentCard {
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
pub enum SessionChoice {
    /// A new one.
    New,
    /// This one.
    Given(AgentSessionId),
    /// A new one with the history of this one, up to an entry of its log if one is named (rows of jobs
    /// have the same `uuid`).
    ForkOf(AgentSessionId, Option<Uuid>),
}

/// Something that an agent is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Names it: the same again starts nothing.
    pub id: Uuid,
    /// Who is asked.
    pub agent: String,
    /// What.
    pub prompt: String,
    /// Where.
    pub session: SessionChoice,
    /// The model, if not the agent's own.
    pub model: Option<String>,
    /// Whether somebody can answer questions.
    pub attended: bool,
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
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
pub struct JobFacts {
    /// The job.
    pub job: JobId,
    /// Who does it.
    pub agent: String,
    /// Where it is.
    pub state: JobState,
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
pub struct WorkerFacts {
    /// Its name among the workers of the conversation: `coder-1`.
    pub name: String,
    /// What it was asked first.
    pub task: String,
    /// Its jobs, oldest first: each message that finds it idle makes another.
    pub jobs: Vec<JobFacts>,
}

/// Why it is not certain that an agent heard something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unheard {
    /// It has not, and will not.
    Refused(String),
    /// It may have: if so, a row tells it.
    Unsure(String),
}

/// What a conversation hears.
#[derive(Debug, Clone, PartialEq)]
pub enum Happened {
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
    Asked {
        /// The job.
        job: JobId,
        /// What.
        ask: Ask,
    },
    /// What was asked is settled.
    Settled {
        /// The job.
        job: JobId,
        /// [`Ask::id`].
        ask: String,
    },
    /// A job is where it was not before: it waits, runs, or is over. When it is over all rows were told.
    Job(JobFacts),
    /// A job has started another as a worker, or one of them is where it was not before.
    Workers(Vec<WorkerFacts>),
    /// The fleet cannot be reached, or can again.
    Trouble(Option<String>),
}

/// A fleet. What it is told is done or refused at once; what happens then is [`Happened`].
pub trait Fleet: Send {
    /// Lists the agents.
    fn agents(&self) -> Vec<AgentCard>;
    /// Says in lines what an agent may do, who is asked about the rest, and where that is written.
    fn rules(&self, agent: &str, attended: bool) -> Vec<String>;
    /// Asks an agent.
    fn ask(&mut self, turn: &Turn) -> Result<JobId, String>;
    /// Returns the job of a turn, if it was asked.
    fn asked(&mut self, turn: Uuid) -> Result<Option<JobId>, String>;
    /// Says something more to an agent that is at work.
    fn say(&mut self, job: &JobId, text: &str) -> Result<(), Unheard>;
    /// Answers what an agent asks.
    fn answer(&mut self, job: &JobId, ask: &str, answer: &Answer) -> Result<(), String>;
    /// Ends a job.
    fn cancel(&mut self, job: &JobId, now: bool) -> Result<(), String>;
    /// Tells what happens to a job from a row on, until it is over.
    fn follow(&mut self, job: &JobId, from: u64);
    /// Tells of the workers of these jobs, now and whenever one of them changes.
    fn watch_workers(&mut self, jobs: &[JobId]);
    /// Returns what is known of a job.
    fn facts(&mut self, job: &JobId) -> Result<Option<JobFacts>, String>;
}
