//! Jobs: requests for an agent to do something, with status and result.
//!
//! The database row, the `jobs/<id>.yaml` view and the command line all use these types. Start at
//! [`Job`]. Lists use its [`JobHead`], which holds nothing of unbounded size.

use camino::Utf8PathBuf;
use heeler_config::words;
use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::workflow::{PartDecision, PhasePart};
use crate::{AgentSessionId, JobId};

/// Longest `summary` of a job, in bytes. The full text is in its transcript.
pub const SUMMARY_BYTES_MAX: usize = 2048;

/// Longest title of a job, in characters.
const TITLE_CHARS_MAX: usize = 120;

/// Returns the title of a job: the first line of its prompt that has text.
pub fn job_title(prompt: &str) -> Option<String> {
    let line = prompt.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(crate::one_line(line).chars().take(TITLE_CHARS_MAX).collect())
}

words! {
    /// Position of a job in its life cycle.
    pub enum JobStatus ("job status") {
        /// Requested but not started.
        Pending = "pending",
        /// An agent is working on it.
        Running = "running",
        /// Ended with success.
        Completed = "completed",
        /// Ended with an error.
        Failed = "failed",
        /// Ended by a person.
        Cancelled = "cancelled",
    }
}

impl JobStatus {
    /// Returns true if the job has ended.
    pub fn is_final(self) -> bool {
        matches!(self, JobStatus::Completed | JobStatus::Failed | JobStatus::Cancelled)
    }
}

words! {
    /// Reason why a job ended. The model's own reason is stored separately, as `stop_reason`.
    pub enum ExitReason ("exit reason") {
        /// The job achieved its purpose.
        Success = "success",
        /// The job failed.
        Error = "error",
        /// The time limit was reached.
        Timeout = "timeout",
        /// A person cancelled it.
        Cancelled = "cancelled",
        /// The turn limit was reached.
        MaxTurns = "max_turns",
    }
}

impl ExitReason {
    /// Parses Heeler's words and the model's stop reasons that herdctl documents.
    pub fn parse_any(word: &str) -> Option<ExitReason> {
        match word {
            // herdctl documents the model's stop reasons as exit reasons.
            "end_turn" | "stop_sequence" => Some(ExitReason::Success),
            "interrupt" => Some(ExitReason::Cancelled),
            _ => word.parse().ok(),
        }
    }
}

/// Cause of a job.
///
/// The union of the words of herdctl and Last Light. Any other word is preserved.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TriggerType {
    /// A person, from the command line.
    Manual,
    Schedule,
    Webhook,
    Chat,
    Discord,
    Slack,
    Web,
    Fork,
    Spawned,
    /// Last Light's word for a schedule.
    Cron,
    Api,
    /// Word of another system.
    Other(Box<str>),
}

impl TriggerType {
    const KNOWN: [(&'static str, TriggerType); 11] = [
        ("manual", TriggerType::Manual),
        ("schedule", TriggerType::Schedule),
        ("webhook", TriggerType::Webhook),
        ("chat", TriggerType::Chat),
        ("discord", TriggerType::Discord),
        ("slack", TriggerType::Slack),
        ("web", TriggerType::Web),
        ("fork", TriggerType::Fork),
        ("spawned", TriggerType::Spawned),
        ("cron", TriggerType::Cron),
        ("api", TriggerType::Api),
    ];

    /// Parses a word. Every word is legal.
    pub fn from_word(word: &str) -> TriggerType {
        let known = TriggerType::KNOWN.into_iter().find(|(text, _)| *text == word);
        // An unknown word is preserved, so that exporting a record gives back what was imported.
        known.map_or_else(|| TriggerType::Other(word.into()), |(_, trigger)| trigger)
    }

    pub fn as_str(&self) -> &str {
        if let TriggerType::Other(word) = self {
            return word;
        }
        TriggerType::KNOWN
            .iter()
            .find(|(_, trigger)| trigger == self)
            .map(|(text, _)| *text)
            .expect("every variant but Other is in KNOWN")
    }
}

impl Serialize for TriggerType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for TriggerType {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<TriggerType, D::Error> {
        Ok(TriggerType::from_word(&String::deserialize(from)?))
    }
}

/// List entry for a job. Every field has a bounded size.
#[derive(Debug, Clone, PartialEq)]
pub struct JobHead {
    pub id: JobId,
    /// Qualified agent name. For an imported Last Light execution, its skill.
    pub agent: String,
    /// Schedule that created the job.
    pub schedule: Option<String>,
    pub trigger_type: TriggerType,
    pub status: JobStatus,
    pub exit_reason: Option<ExitReason>,
    /// Time of the request. Never changes, so lists can page by it.
    pub started_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    /// Total duration of its runs.
    pub duration_ms: Option<i64>,
    /// Cost by the agent's own price figures.
    pub cost_usd: Option<f64>,
    /// Native session in which the job ran.
    pub session_id: Option<AgentSessionId>,
    /// Short summary of the result, at most [`SUMMARY_BYTES_MAX`] bytes.
    pub summary: Option<String>,
}

/// Complete record of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub head: JobHead,
    /// Increases by one with each change. An update names the version it is based on.
    pub version: i64,
    /// Start of the first run.
    pub run_started_at: Option<Timestamp>,
    /// Subject of the trigger: a schedule, an issue, a thread. Empty if there is none.
    pub trigger_id: String,
    /// `workflow:phase`, `chat`, `worker:name`, or the agent name for a plain job.
    pub skill: String,
    /// Repository that the job concerns.
    pub repo: Option<String>,
    /// Issue that the job concerns.
    pub issue_number: Option<i64>,
    pub workflow_run_id: Option<String>,
    /// Phase of that workflow run.
    pub phase: Option<String>,
    /// Part of that phase.
    pub part: Option<PhasePart>,
    /// Position in the journal of that workflow run.
    pub seq: Option<u64>,
    /// Decision of the workflow run when the job ended.
    pub decision: Option<PartDecision>,
    /// Job that supplied the forked session.
    pub forked_from: Option<JobId>,
    pub stop_reason: Option<String>,
    /// True if a crash interrupted the job.
    pub interrupted: bool,
    /// Number of restarts after a crash.
    pub restart_count: i64,
    pub usage: UsageTotals,
    pub working_directory: Option<Utf8PathBuf>,
    /// Source system of an imported record.
    pub origin: Option<String>,
    pub error: Option<String>,
    pub prompt: Option<String>,
    /// Final text, if a workflow needs it; truncated.
    pub output_text: Option<String>,
}

/// Change of a job's status. [`Job::apply`] is the only place that assigns a status.
#[derive(Debug, Clone, PartialEq)]
pub enum JobTransition {
    /// A run starts in a session. The session may differ from that of the last run. A command of a
    /// workflow has none.
    Start { session: Option<AgentSessionId>, at: Timestamp },
    /// A run that was found without a record continues.
    Adopt,
    /// The job returns to the queue after a run. Its last error stays readable.
    Requeue {
        /// True if the run was interrupted and its session is resumed.
        is_restart: bool,
    },
    /// A person returns an ended job to the queue.
    Resume,
    /// The job ends with the result of its last run.
    End { status: JobStatus, reason: ExitReason, at: Timestamp, error: Option<String> },
    /// The job ends without a run.
    Fail { why: String, at: Timestamp },
    /// A person ends a queued job.
    Cancel { at: Timestamp },
    /// The record comes from another system.
    Import { status: JobStatus },
}

/// Usage of a job, in total and by model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageTotals {
    pub num_turns: Option<i64>,
    /// Time spent waiting for the API.
    pub api_duration_ms: Option<i64>,
    /// Input tokens, excluding cached ones.
    pub input_tokens: Option<i64>,
    pub cache_creation_input_tokens: Option<i64>,
    pub cache_read_input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    /// Usage by model, as the agent reported it.
    pub per_model: IndexMap<String, serde_json::Value>,
}

/// Prefix of a worker's name in [`Job::skill`].
const WORKER: &str = "worker:";

impl Job {
    /// Returns the name of the worker that executes this job.
    pub fn worker(&self) -> Option<&str> {
        let is_spawned = self.head.trigger_type == TriggerType::Spawned;
        // A phase of a workflow named `worker` has the same prefix.
        self.skill.strip_prefix(WORKER).filter(|_| is_spawned)
    }

    /// Changes the status, and every field that depends on it.
    pub fn apply(&mut self, transition: JobTransition) {
        let head = &mut self.head;
        match transition {
            JobTransition::Start { session, at } => {
                self.reopen(JobStatus::Running);
                // The error of the last run would look like that of the new one.
                self.error = None;
                self.head.session_id = session;
                self.run_started_at.get_or_insert(at);
            }
            JobTransition::Adopt => head.status = JobStatus::Running,
            JobTransition::Requeue { is_restart } => {
                self.reopen(JobStatus::Pending);
                // Only interruptions count: other reruns have limits of their own.
                self.restart_count += i64::from(is_restart);
            }
            JobTransition::Resume => {
                self.reopen(JobStatus::Pending);
                self.error = None;
            }
            JobTransition::End { status, reason, at, error } => {
                head.status = status;
                head.exit_reason = Some(reason);
                head.finished_at = Some(at);
                self.error = error;
            }
            JobTransition::Fail { why, at } => {
                head.status = JobStatus::Failed;
                head.exit_reason = Some(ExitReason::Error);
                head.finished_at = Some(at);
                self.error = Some(why);
            }
            JobTransition::Cancel { at } => {
                head.status = JobStatus::Cancelled;
                head.exit_reason = Some(ExitReason::Cancelled);
                head.finished_at.get_or_insert(at);
            }
            JobTransition::Import { status } => head.status = status,
        }
    }

    fn reopen(&mut self, status: JobStatus) {
        self.head.status = status;
        self.head.exit_reason = None;
        self.head.finished_at = None;
        // A job that runs again is not interrupted any more.
        self.interrupted = false;
    }

    /// Sets the worker that executes this job.
    pub fn set_worker(&mut self, name: &str) {
        self.skill = format!("{WORKER}{name}");
    }

    /// Creates the record of a plain pending job.
    pub fn new_pending(id: JobId, agent: &str, trigger: TriggerType, at: Timestamp) -> Job {
        Job {
            head: JobHead {
                id,
                agent: agent.to_owned(),
                schedule: None,
                trigger_type: trigger,
                status: JobStatus::Pending,
                exit_reason: None,
                started_at: at,
                finished_at: None,
                duration_ms: None,
                cost_usd: None,
                session_id: None,
                summary: None,
            },
            version: 1,
            run_started_at: None,
            trigger_id: String::new(),
            skill: agent.to_owned(),
            repo: None,
            issue_number: None,
            workflow_run_id: None,
            phase: None,
            part: None,
            seq: None,
            decision: None,
            forked_from: None,
            stop_reason: None,
            interrupted: false,
            restart_count: 0,
            usage: UsageTotals::default(),
            working_directory: None,
            origin: None,
            error: None,
            prompt: None,
            output_text: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sets_of_exit_reasons_are_read() {
        assert_eq!(ExitReason::parse_any("end_turn"), Some(ExitReason::Success));
        assert_eq!(ExitReason::parse_any("interrupt"), Some(ExitReason::Cancelled));
        assert_eq!(ExitReason::parse_any("max_turns"), Some(ExitReason::MaxTurns));
        assert_eq!(ExitReason::parse_any("whatever"), None);
    }

    #[test]
    fn trigger_words_survive_whoever_wrote_them() {
        for word in ["manual", "cron", "api", "spawned", "carrier-pigeon"] {
            assert_eq!(TriggerType::from_word(word).as_str(), word);
        }
    }

    #[test]
    fn an_unknown_status_says_which_there_are() {
        let error = "runing".parse::<JobStatus>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown job status `runing`, expected one of: pending, running, completed, failed, cancelled"
        );
    }
}
