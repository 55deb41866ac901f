//! A job: one piece of work asked of an agent, and what became of it.
//!
//! The database row, the `jobs/<id>.yaml` view and the command line all speak of these types.
//! Start at [`Job`]; lists use its [`JobHead`], which holds nothing of unbounded size.

use camino::Utf8PathBuf;
use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::words::words;
use crate::workflow::{PartDecision, PhasePart};
use crate::{AgentSessionId, JobId};

/// The longest `summary` of a job, in bytes; the full text is in its transcript.
pub const SUMMARY_BYTES_MAX: usize = 2048;

words! {
    /// Where a job is in its life.
    pub enum JobStatus ("job status") {
        /// Asked for, not started.
        Pending = "pending",
        /// An agent is at it.
        Running = "running",
        /// Ended well.
        Completed = "completed",
        /// Ended badly.
        Failed = "failed",
        /// Ended by a person.
        Cancelled = "cancelled",
    }
}

impl JobStatus {
    /// Says whether the job has ended.
    pub fn is_final(self) -> bool {
        matches!(self, JobStatus::Completed | JobStatus::Failed | JobStatus::Cancelled)
    }
}

words! {
    /// Why a job ended. The model's own reason is beside it as `stop_reason`.
    pub enum ExitReason ("exit reason") {
        /// It did what it was asked.
        Success = "success",
        /// It failed.
        Error = "error",
        /// It ran out of time.
        Timeout = "timeout",
        /// A person ended it.
        Cancelled = "cancelled",
        /// It ran out of turns.
        MaxTurns = "max_turns",
    }
}

impl ExitReason {
    /// Reads both sets of words in use: ours, and the model's stop reasons that herdctl documents.
    pub fn parse_any(word: &str) -> Option<ExitReason> {
        match word {
            "end_turn" | "stop_sequence" => Some(ExitReason::Success),
            "interrupt" => Some(ExitReason::Cancelled),
            _ => word.parse().ok(),
        }
    }
}

/// What started a job.
///
/// The union of what herdctl and Last Light know; a word that neither knows is kept as it came.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TriggerType {
    /// A person, from the command line.
    Manual,
    /// One of the agent's schedules.
    Schedule,
    /// A webhook.
    Webhook,
    /// A chat message.
    Chat,
    /// A Discord message.
    Discord,
    /// A Slack message.
    Slack,
    /// The dashboard.
    Web,
    /// A fork of another job's session.
    Fork,
    /// Another agent.
    Spawned,
    /// Last Light's word for a schedule.
    Cron,
    /// An API call.
    Api,
    /// A word of another system.
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

    /// Reads a word; every word is legal.
    pub fn from_word(word: &str) -> TriggerType {
        let known = TriggerType::KNOWN.into_iter().find(|(text, _)| *text == word);
        known.map_or_else(|| TriggerType::Other(word.into()), |(_, trigger)| trigger)
    }

    /// Returns the word.
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

/// What a list shows of a job. Everything here has a bounded size.
#[derive(Debug, Clone, PartialEq)]
pub struct JobHead {
    /// The job's id.
    pub id: JobId,
    /// The qualified agent name; for an imported Last Light execution its skill.
    pub agent: String,
    /// The schedule that started it.
    pub schedule: Option<String>,
    /// What started it.
    pub trigger_type: TriggerType,
    /// Where it is.
    pub status: JobStatus,
    /// Why it ended.
    pub exit_reason: Option<ExitReason>,
    /// When it was asked for; never changes, so lists can page by it.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// How long its runs took.
    pub duration_ms: Option<i64>,
    /// What it cost, by the agent's own price figures.
    pub cost_usd: Option<f64>,
    /// The agent's session it ran in.
    pub session_id: Option<AgentSessionId>,
    /// A short account of what it did, at most [`SUMMARY_BYTES_MAX`] bytes.
    pub summary: Option<String>,
}

/// A job, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// What lists show.
    pub head: JobHead,
    /// Grows by one with each change; an update names the version it was decided on.
    pub version: i64,
    /// When its first run started.
    pub run_started_at: Option<Timestamp>,
    /// What the trigger concerned: a schedule, an issue, a thread. Empty for none.
    pub trigger_id: String,
    /// `workflow:phase`, `chat`, `worker:name`, or the agent of a plain job.
    pub skill: String,
    /// The repository it worked on.
    pub repo: Option<String>,
    /// The issue it worked on.
    pub issue_number: Option<i64>,
    /// The workflow run it belongs to.
    pub workflow_run_id: Option<String>,
    /// The phase of that run which it is a part of.
    pub phase: Option<String>,
    /// Which part.
    pub part: Option<PhasePart>,
    /// Its place in the journal of that run.
    pub seq: Option<u64>,
    /// What was decided about it when it ended.
    pub decision: Option<PartDecision>,
    /// The job whose session it forked.
    pub forked_from: Option<JobId>,
    /// The model's own reason for stopping.
    pub stop_reason: Option<String>,
    /// Whether a crash cut it off.
    pub interrupted: bool,
    /// How often it was started again after a crash.
    pub restart_count: i64,
    /// Turns, time and tokens.
    pub usage: UsageTotals,
    /// Where the agent worked.
    pub working_directory: Option<Utf8PathBuf>,
    /// Where the record came from, when it was imported.
    pub origin: Option<String>,
    /// The error, when there was one.
    pub error: Option<String>,
    /// What the agent was asked.
    pub prompt: Option<String>,
    /// The final text, when a workflow needs it; cut to a bound.
    pub output_text: Option<String>,
}

/// What a job used, in total and by model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageTotals {
    /// Turns taken.
    pub num_turns: Option<i64>,
    /// Time spent waiting for the model.
    pub api_duration_ms: Option<i64>,
    /// Tokens read, cache apart.
    pub input_tokens: Option<i64>,
    /// Tokens written to the cache.
    pub cache_creation_input_tokens: Option<i64>,
    /// Tokens read from the cache.
    pub cache_read_input_tokens: Option<i64>,
    /// Tokens written.
    pub output_tokens: Option<i64>,
    /// The same by model, in the form in which it came.
    pub per_model: IndexMap<String, serde_json::Value>,
}

/// Before the name of a worker, in [`Job::load_skill`].
const WORKER: &str = "worker:";

impl Job {
    /// Returns the name of the worker that it is done as.
    pub fn worker(&self) -> Option<&str> {
        let is_spawned = self.head.trigger_type == TriggerType::Spawned;
        self.skill.strip_prefix(WORKER).filter(|_| is_spawned)
    }

    /// Says as which worker it is done.
    pub fn set_worker(&mut self, name: &str) {
        self.skill = format!("{WORKER}{name}");
    }

    /// Starts the record of a plain job: asked for, nothing known yet.
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
