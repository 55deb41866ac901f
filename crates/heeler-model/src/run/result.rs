//! Records of a run: its start, its questions and its result.
//!
//! Start at [`RunStartRecord`] and [`RunResult`].

use camino::Utf8PathBuf;
use heeler_config::words;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::DeniedTools;
use crate::permission_grant::PermissionGrant;
use crate::redact::SecretRedactor;
use crate::{
    AgentSessionId, ExitReason, JobId, JobStatus, NativeSessionPosition, RunId, UsageTotals,
};

/// Content of `container.json`. Written and synced before the container is created, so that a
/// container of a dead run is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// Socket of the engine.
    pub engine: Utf8PathBuf,
}

/// Content of `started.json`. Written and synced before the agent starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStartRecord {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    pub run: RunId,
    /// Process ID of the runner.
    pub pid: u32,
    pub at: Timestamp,
    /// Session that the run holds.
    pub session: AgentSessionId,
    pub session_log: Utf8PathBuf,
    /// Control socket of the runner.
    pub socket: Utf8PathBuf,
    /// Control group of the agent, if there is one.
    pub cgroup: Option<Utf8PathBuf>,
    /// Number of rows in the job transcript before this run.
    pub job_rows_before: u64,
    /// Number of rows in the session transcript before this run.
    pub session_rows_before: u64,
    /// Directory of native sessions, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_sessions: Option<Utf8PathBuf>,
    /// Run that started the agent, if that was an earlier one of the same conversation. The agent's
    /// processes have its mark and its control group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_run: Option<RunId>,
}

/// Content of `asks/<id>.json`: a question to a person. Written before the question counts as
/// asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentQuestion {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// Identifies the question in its file name and in the answer.
    pub id: String,
    pub at: Timestamp,
    /// `permission` or `question`.
    pub kind: String,
    /// Tool that asks.
    pub tool: String,
    /// Input of the tool, redacted.
    pub input: Json,
    /// Expiry time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Host and port that the agent wants to reach. Only the runner sets it, so no agent can pass a
    /// question of its own for one about the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_host: Option<Box<str>>,
    /// Permission that a person may give for the rest of the conversation, instead of for this
    /// request only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<PermissionGrant>,
}

impl AgentQuestion {
    /// Returns the hash of the tool and input that people are shown.
    pub fn shown_hash(&self) -> String {
        crate::question_hash(&self.tool, &self.input)
    }
}

words! {
    /// Outcome of a question.
    pub enum QuestionOutcome ("end of a question") {
        /// A person consented or answered.
        Allowed = "allowed",
        /// A person refused the request.
        Denied = "denied",
        /// Not answered in time.
        Expired = "expired",
        /// The agent no longer needs an answer.
        Withdrawn = "withdrawn",
    }
}

/// Content of `asks/<id>.closed`: a closed question. Written before the agent receives the outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClosedQuestion {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    pub ask: AgentQuestion,
    /// Time of closing.
    pub at: Timestamp,
    pub how: QuestionOutcome,
    /// Caller that answered, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Text of the answer, or the reason; redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Input with which the person replaced the agent's; redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_input: Option<Json>,
    /// Rules that the person gave for all later runs of the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept_rules: Vec<String>,
}

words! {
    /// Progress that a run made.
    pub enum RunEnd ("run end") {
        /// Ran to its end, with or without success.
        Finished = "finished",
        /// Failed to start, and may start again as if it had never existed.
        NeverStarted = "never_started",
        /// Interrupted because its runner died.
        Interrupted = "interrupted",
        /// Another run holds the session.
        SessionBusy = "session_busy",
    }
}

words! {
    /// Class of a run's error.
    pub enum ErrorClass ("error class") {
        /// The API key is missing or invalid.
        Authentication = "authentication",
        /// The login has expired.
        TokenExpired = "token_expired",
        /// The API is unreachable.
        Network = "network",
        /// Too many requests, or a usage limit.
        RateLimited = "rate_limited",
        /// The API is overloaded.
        Overloaded = "overloaded",
        /// The API failed internally.
        ServerError = "server_error",
        /// The API rejected the request.
        InvalidRequest = "invalid_request",
        /// The model does not exist.
        ModelNotFound = "model_not_found",
        /// The agent does not know the session.
        SessionExpired = "session_expired",
        /// Another run holds the session.
        SessionBusy = "session_busy",
        /// The session has external messages.
        SessionMovedOn = "session_moved_on",
        /// The agent's output cannot be parsed.
        Malformed = "malformed",
        /// The agent cannot be started.
        NotStarted = "not_started",
        /// The agent ended without a result.
        AgentDied = "agent_died",
        /// The agent reported a failure.
        AgentFailed = "agent_failed",
        /// The time limit was reached.
        Timeout = "timeout",
        /// The agent was silent for too long.
        Stalled = "stalled",
        /// The turn limit was reached.
        MaxTurns = "max_turns",
        /// The budget or credit is used up.
        Budget = "budget",
        /// A person cancelled the run.
        Cancelled = "cancelled",
        /// The runner died during the run.
        Interrupted = "interrupted",
        /// The agent's output cannot be written to disk.
        Disk = "disk",
        /// Bug in Heeler itself.
        Internal = "internal",
    }
}

/// Error of a run, with advice for the user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunError {
    pub class: ErrorClass,
    pub message: String,
    /// True if a retry may succeed.
    pub recoverable: bool,
    /// Smallest delay before a retry, if the API named one.
    pub retry_after_ms: Option<u64>,
    /// Reset time of the limit, if the API named one.
    pub resets_at: Option<Timestamp>,
    /// Number of messages received from the agent.
    pub messages_received: u64,
    /// Advice for the user.
    pub cure: String,
}

/// Cost of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunCost {
    /// Cost of this run by the agent's own price figures. Unknown if the run was killed.
    pub usd: Option<f64>,
    pub usage: UsageTotals,
}

/// Session at the end of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionEnd {
    /// Planned ID, or another one if that session no longer existed and a fresh one was started.
    pub id: AgentSessionId,
    pub log: Utf8PathBuf,
    /// Number of user and agent messages.
    pub messages: u64,
    /// Estimate of the context size.
    pub tokens: u64,
    /// True if the session can be resumed: the agent has sent a message in it.
    pub resumable: bool,
    /// End of the native session. `None` if the agent keeps none, or none was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<NativeSessionPosition>,
}

/// State of the API's usage limit, as the agent reported it last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageLimitState {
    /// The API accepts no further request of the account until the reset.
    pub is_used_up: bool,
    /// Time at which the limit resets, if the agent named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<Timestamp>,
}

/// Actions of settling besides writing the result, for the record.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRecovery {
    /// Number of leftover processes of the run that were ended.
    pub processes_ended: u64,
    /// Number of session rows that were missing from the job transcript.
    pub rows_completed: u64,
    /// Cost that the run's rows report. The real cost may be higher, and an agent may have changed
    /// the rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent_usd_min: Option<f64>,
}

/// Part of a transcript that belongs to one run, at the end of that run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TranscriptHashRecord {
    /// Offset of the first byte.
    pub from: u64,
    pub bytes: u64,
    /// SHA-256 of the bytes, in hexadecimal.
    pub sha256: String,
}

/// Content of `result.json`: the end of a run. Written once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    pub run: RunId,
    pub job: JobId,
    pub end: RunEnd,
    pub exit_reason: ExitReason,
    /// Model's own reason for stopping.
    pub stop_reason: Option<String>,
    /// Short summary of the result.
    pub summary: Option<String>,
    pub error: Option<RunError>,
    pub cost: RunCost,
    pub session: Option<SessionEnd>,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    /// Exit code of the agent, if it exited on its own.
    pub exit_code: Option<i32>,
    /// Set if the result was written by settling, after the runner died.
    pub settled: Option<RunRecovery>,
    /// Final text of the agent, or everything a command printed; truncated. Only set if
    /// [`super::RunSpec::keep_output`] is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Part of the job transcript that the run wrote. Older runners omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<TranscriptHashRecord>,
    /// Part of the session transcript that the run wrote. Older runners and settling omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_transcript: Option<TranscriptHashRecord>,
    /// Tools that the agent was denied. Older runners omit it.
    #[serde(default, skip_serializing_if = "DeniedTools::is_empty")]
    pub denied: DeniedTools,
    /// Usage limit of the API at the end of the run. Older runners and settling omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_limit: Option<UsageLimitState>,
}

impl RunResult {
    /// Creates the result of a run that failed to start. Its cost is zero.
    pub fn never_started(run: RunId, job: JobId, why: &str, now: Timestamp) -> RunResult {
        let error = RunError {
            // Nothing was done, so a retry cannot repeat any work.
            recoverable: true,
            cure: "nothing was done: trigger the job again".to_owned(),
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
            // Zero is known here; without it the whole reservation would count.
            cost: RunCost { usd: Some(0.0), ..RunCost::default() },
            session: None,
            started_at: now,
            finished_at: now,
            exit_code: None,
            settled: None,
            output: None,
            transcript: None,
            session_transcript: None,
            denied: DeniedTools::default(),
            usage_limit: None,
        }
    }

    /// Returns the status of a job that ends with this result.
    pub fn job_status(&self) -> JobStatus {
        match self.exit_reason {
            ExitReason::Success if self.end == RunEnd::Finished => JobStatus::Completed,
            ExitReason::Cancelled => JobStatus::Cancelled,
            _ => JobStatus::Failed,
        }
    }

    /// Returns true if a job that ends with this result counts as interrupted.
    pub fn is_job_interrupted(&self) -> bool {
        // A person who cancels a run that dies meanwhile gets a cancelled job.
        self.end == RunEnd::Interrupted && self.job_status() != JobStatus::Cancelled
    }

    /// Redacts all texts that come from the agent.
    pub fn redact(&mut self, redactor: &SecretRedactor) {
        let clean = |text: &mut String| *text = redactor.redact_text(text).into_owned();
        self.stop_reason.iter_mut().for_each(clean);
        self.summary.iter_mut().for_each(clean);
        self.output.iter_mut().for_each(clean);
        self.denied.map_names(|tool| redactor.redact_text(tool).into_owned());
        if let Some(error) = &mut self.error {
            clean(&mut error.message);
            clean(&mut error.cure);
        }
        // Names of models come from the agent, and are keys.
        let per_model = std::mem::take(&mut self.cost.usage.per_model);
        let cleaned = per_model.into_iter().map(|(model, mut usage)| {
            redactor.redact_json(&mut usage);
            (redactor.redact_text(&model).into_owned(), usage)
        });
        self.cost.usage.per_model = cleaned.collect();
    }
}
