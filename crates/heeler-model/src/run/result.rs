//! What a run did: that it started, what it asks, how it ended.

use camino::Utf8PathBuf;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::redact::SecretRedactor;
use crate::words::words;
use crate::{AgentSessionId, ExitReason, JobId, NativeSessionPosition, RunId, UsageTotals};

/// `started.json`: the runner is at work. Written and synced before the agent is started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStartRecord {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// The run.
    pub run: RunId,
    /// The runner.
    pub pid: u32,
    /// When.
    pub at: Timestamp,
    /// The session that it holds.
    pub session: AgentSessionId,
    /// Its log.
    pub session_log: Utf8PathBuf,
    /// The control socket.
    pub socket: Utf8PathBuf,
    /// The control group of the agent, where there is one.
    pub cgroup: Option<Utf8PathBuf>,
    /// How many lines the job log had before this run.
    pub job_rows_before: u64,
    /// How many lines the session log had before this run.
    pub session_rows_before: u64,
    /// The folder in which the agent keeps its own record of sessions, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_sessions: Option<Utf8PathBuf>,
}

/// `asks/<id>.json`: what a person is asked. Written before it counts as asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentQuestion {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// Names it, in its file name and in the answer.
    pub id: String,
    /// When.
    pub at: Timestamp,
    /// `permission` or `question`.
    pub kind: String,
    /// The tool that asks.
    pub tool: String,
    /// What it wants to do, or asks: redacted.
    pub input: Json,
    /// Until when an answer is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

words! {
    /// How a question ended.
    pub enum QuestionOutcome ("end of a question") {
        /// A person said yes, or answered.
        Allowed = "allowed",
        /// A person said no.
        Denied = "denied",
        /// Nobody answered in time.
        Expired = "expired",
        /// The agent does not want to know any more.
        Withdrawn = "withdrawn",
    }
}

/// `asks/<id>.closed`: how a question ended. Written before the agent hears of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClosedQuestion {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// What was asked.
    pub ask: AgentQuestion,
    /// When it ended.
    pub at: Timestamp,
    /// How.
    pub how: QuestionOutcome,
    /// Who answered, where somebody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The answer in words, or the reason: redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

words! {
    /// How far a run came.
    pub enum RunEnd ("run end") {
        /// To its end, good or bad.
        Finished = "finished",
        /// Not even to its start: it may run again as if it had never been.
        NeverStarted = "never_started",
        /// It was cut off: its runner died.
        Interrupted = "interrupted",
        /// Another run holds the session.
        SessionBusy = "session_busy",
    }
}

words! {
    /// What went wrong, as far as it can be told.
    pub enum ErrorClass ("error class") {
        /// No API key, or a wrong one.
        Authentication = "authentication",
        /// The login has expired.
        TokenExpired = "token_expired",
        /// The API cannot be reached.
        Network = "network",
        /// Too many requests.
        RateLimited = "rate_limited",
        /// The API has too much to do.
        Overloaded = "overloaded",
        /// The API failed.
        ServerError = "server_error",
        /// The API refused the request.
        InvalidRequest = "invalid_request",
        /// There is no such model.
        ModelNotFound = "model_not_found",
        /// The conversation is unknown to the agent.
        SessionExpired = "session_expired",
        /// Another run holds the conversation.
        SessionBusy = "session_busy",
        /// Somebody else has gone on with the conversation.
        SessionMovedOn = "session_moved_on",
        /// The agent spoke what cannot be understood.
        Malformed = "malformed",
        /// The agent cannot be started.
        NotStarted = "not_started",
        /// The agent ended without a result.
        AgentDied = "agent_died",
        /// The agent said that it failed.
        AgentFailed = "agent_failed",
        /// It took too long.
        Timeout = "timeout",
        /// It said nothing for too long.
        Stalled = "stalled",
        /// It ran out of turns.
        MaxTurns = "max_turns",
        /// It ran out of money.
        Budget = "budget",
        /// A person ended it.
        Cancelled = "cancelled",
        /// Its runner died.
        Interrupted = "interrupted",
        /// The disk does not take what the agent says.
        Disk = "disk",
        /// A fault of ours.
        Internal = "internal",
    }
}

/// What went wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunError {
    /// What.
    pub class: ErrorClass,
    /// In words.
    pub message: String,
    /// Whether the same again may succeed.
    pub recoverable: bool,
    /// Not before this many milliseconds, when the API said so.
    pub retry_after_ms: Option<u64>,
    /// Not before this moment, when the API said so.
    pub resets_at: Option<Timestamp>,
    /// How many messages the agent had said.
    pub messages_received: u64,
    /// What a person can do.
    pub cure: String,
}

/// What was spent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunCost {
    /// By this run, by the agent's own price figures; unknown when it was killed.
    pub usd: Option<f64>,
    /// Tokens, turns and time.
    pub usage: UsageTotals,
}

/// The session as the run left it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionEnd {
    /// Its id: the planned one, or another when that one was gone and a fresh one began.
    pub id: AgentSessionId,
    /// Its log.
    pub log: Utf8PathBuf,
    /// User and assistant messages in it.
    pub messages: u64,
    /// A rough size of its context.
    pub tokens: u64,
    /// Whether it can be resumed: the agent has said something in it.
    pub resumable: bool,
    /// Where the agent's own record of it ends; none where it keeps none, or none was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<NativeSessionPosition>,
}

/// What settling did beyond writing a result, for the record.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRecovery {
    /// Processes of the run that were still there.
    pub processes_ended: u64,
    /// Rows of the session log that the job log lacked.
    pub rows_completed: u64,
}

/// `result.json`: how a run ended. Written once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// The run.
    pub run: RunId,
    /// The job.
    pub job: JobId,
    /// How far it came.
    pub end: RunEnd,
    /// Why it ended.
    pub exit_reason: ExitReason,
    /// The model's own reason.
    pub stop_reason: Option<String>,
    /// A short account.
    pub summary: Option<String>,
    /// What went wrong.
    pub error: Option<RunError>,
    /// What was spent.
    pub cost: RunCost,
    /// The session.
    pub session: Option<SessionEnd>,
    /// When the run began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// The agent's exit code, when it ended by itself.
    pub exit_code: Option<i32>,
    /// What settling found, when a settling wrote this.
    pub settled: Option<RunRecovery>,
    /// What the agent said at last, or all that a command printed, cut to a bound; only if it is to be
    /// kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl RunResult {
    /// Makes the result of a run that never came to its start. It cost nothing.
    pub fn never_started(run: RunId, job: JobId, why: &str, now: Timestamp) -> RunResult {
        let error = RunError {
            recoverable: true,
            cure: "nothing was done: trigger it again".to_owned(),
            ..RunError::new(ErrorClass::NotStarted, why)
        };
        RunResult {
            protocol: super::PROTOCOL,
            run,
            job,
            end: RunEnd::NeverStarted,
            exit_reason: ExitReason::Error,
            stop_reason: None,
            summary: None,
            error: Some(error),
            cost: RunCost { usd: Some(0.0), ..RunCost::default() },
            session: None,
            started_at: now,
            finished_at: now,
            exit_code: None,
            settled: None,
            output: None,
        }
    }

    /// Removes secrets from everything in it that the agent said.
    pub fn redact(&mut self, redactor: &SecretRedactor) {
        let clean = |text: &mut String| *text = redactor.redact_text(text).into_owned();
        self.stop_reason.iter_mut().for_each(clean);
        self.summary.iter_mut().for_each(clean);
        self.output.iter_mut().for_each(clean);
        if let Some(error) = &mut self.error {
            clean(&mut error.message);
            clean(&mut error.cure);
        }
        let per_model = std::mem::take(&mut self.cost.usage.per_model);
        let cleaned = per_model.into_iter().map(|(model, mut usage)| {
            redactor.redact_json(&mut usage);
            (redactor.redact_text(&model).into_owned(), usage)
        });
        self.cost.usage.per_model = cleaned.collect();
    }
}
