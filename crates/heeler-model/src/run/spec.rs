//! Specification of a run, as far as a file may hold it: names and paths, no secrets, no prompt.
//!
//! Start at [`RunSpec`].

use camino::Utf8PathBuf;
use heeler_config::RuntimeType;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{AgentName, AgentSessionId, JobId, NativeSessionPosition, RunId, TriggerType};

/// Content of `spec.json`. The engine writes it once, before the runner starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// Also the name of the run's directory.
    pub run: RunId,
    pub job: JobId,
    /// Number of the attempt, from one.
    pub attempt: u32,
    pub agent: AgentName,
    pub trigger: TriggerType,
    pub runtime: RuntimeType,
    /// Canonical path of the working directory.
    pub working_directory: Utf8PathBuf,
    /// Transcript of the job.
    pub job_log: Utf8PathBuf,
    /// Directory of session transcripts (`agent-sessions/projects`).
    pub projects: Utf8PathBuf,
    /// Destination of the rows as readable text, if requested.
    pub output_file: Option<Utf8PathBuf>,
    /// Heeler's directory for this user, shared by all fleets. Session locks are in its `locks/`.
    pub home: Utf8PathBuf,
    /// Directory of the control socket. Short enough for a socket address.
    pub sockets: Utf8PathBuf,
    pub session: SessionPlan,
    pub limits: RunLimits,
    pub attendance: QuestionPolicy,
    /// Syncs each row before it counts (`durability: event`).
    pub sync_each_row: bool,
    /// Directory of snapshots. A snapshot is taken after each turn. `None` disables snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspaces: Option<Utf8PathBuf>,
    /// Stores the agent's final text, or a command's whole output, in the result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_output: bool,
    /// Condition under which the agent's process stays after the run, for the next turn of its
    /// conversation. `None` ends it with the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_agent: Option<KeptAgentLimits>,
}

/// Limits of an agent's process that stays between two turns of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAgentLimits {
    /// Longest time without a turn.
    pub idle_ms: u64,
    /// PID of the conversation's process. The agent ends with it.
    pub conversation_pid: u32,
}

/// Session of a run, and the reason for that choice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionPlan {
    pub start: SessionStart,
    /// Reason, as a sentence for people. It becomes the first row of the job.
    pub reason: String,
    /// End of the native session when Heeler last used it. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<NativeSessionPosition>,
    /// Resumes the session even if it has external messages, and imports them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub take_in: bool,
    /// Path of the transcript, if it differs from the working directory's: a transcript never
    /// moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Utf8PathBuf>,
    /// True for a command of a workflow, which no job continues: there is no record of the session,
    /// and its transcript is a file of the run ([`super::file::SESSION_LOG`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unrecorded: bool,
}

impl SessionPlan {
    /// Creates a plan without prior knowledge of the session.
    pub fn new(start: SessionStart, reason: impl Into<String>) -> SessionPlan {
        SessionPlan {
            start,
            reason: reason.into(),
            own: None,
            take_in: false,
            log: None,
            is_unrecorded: false,
        }
    }
}

/// Start of a run's session. IDs are chosen in advance, so that the lock can be taken in advance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum SessionStart {
    /// New session without history.
    Fresh { id: AgentSessionId },
    /// Next turn of an existing session.
    Resume { id: AgentSessionId },
    /// New session with the history of another.
    Fork {
        /// Source session, which stays unchanged.
        source: AgentSessionId,
        /// New session.
        id: AgentSessionId,
        /// Last message of the source to copy. `None` copies all.
        at: Option<Uuid>,
    },
    /// New session that continues one with too large a context: it begins with a summary, which the
    /// agent is asked for, and the last messages.
    Continue {
        /// Source session, which stays unchanged.
        source: AgentSessionId,
        /// New session.
        id: AgentSessionId,
        /// Number of last messages that are copied in full.
        keep: u32,
    },
}

impl SessionStart {
    /// Returns the session that the run writes to.
    pub fn id(&self) -> &AgentSessionId {
        match self {
            SessionStart::Fresh { id }
            | SessionStart::Resume { id }
            | SessionStart::Fork { id, .. }
            | SessionStart::Continue { id, .. } => id,
        }
    }
}

/// Limits of a run. Durations are in milliseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunLimits {
    /// Longest duration of the run.
    pub timeout_ms: Option<u64>,
    /// Longest time without a line from the agent.
    pub stall_timeout_ms: Option<u64>,
    pub max_turns: Option<u32>,
    /// Budget in US dollars.
    pub budget_usd: Option<f64>,
    /// Limit that the budget comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_source: Option<BudgetSource>,
    /// Delay between the steps of a cancel, each harsher than the last.
    pub grace_ms: Option<u64>,
    /// Time after the last contact of the host with the fleet's database at which the agent has ended. `None` lets
    /// it work on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

/// Limit that decides the budget of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetSource {
    /// `budget.job` of the agent.
    Job,
    /// The rest of it after earlier runs of the job.
    JobRest,
    /// The rest of the workflow's budget.
    Workflow,
    /// The rest of the budget of the job that started this one.
    Parent,
    /// Reservation of money that a day or all days together may cost.
    Reservation,
}

impl BudgetSource {
    fn describe(self) -> &'static str {
        match self {
            BudgetSource::Job => "`budget.job` of the agent",
            BudgetSource::JobRest => "what earlier runs of the job left of `budget.job`",
            BudgetSource::Workflow => "what was left of the workflow's `budget`",
            BudgetSource::Parent => "what was left of `budget.job` of the job that started it",
            BudgetSource::Reservation => {
                "what was free of `budget.day` or `budget.total` of the agent or the fleet"
            }
        }
    }
}

/// Beginning of Claude's report that it has used its budget.
const CLAUDE_BUDGET_REPORT: &str = "Reached maximum budget (";

impl RunLimits {
    /// Returns Heeler's words for an agent's report that it has used the budget of its run; `None`
    /// for any other text. The agent knows the amount, but not where it comes from.
    pub fn explain_budget_report(&self, report: &str) -> Option<String> {
        let budget = self.budget_usd.filter(|_| report.starts_with(CLAUDE_BUDGET_REPORT))?;
        let source = self.budget_source.map(|source| format!(": {}", source.describe()));
        let budget = crate::format_usd(budget);
        Some(format!("the run has used its budget of {budget}{}", source.unwrap_or_default()))
    }
}

/// Handling of an agent's questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum QuestionPolicy {
    /// No person is available: requests are denied immediately and recorded.
    Nobody,
    /// A person can answer within a time limit.
    Person { timeout_ms: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_budget_is_named_by_its_limit() {
        let mut limits = RunLimits { budget_usd: Some(0.02), ..RunLimits::default() };
        let explain = |limits: &RunLimits, text: &str| limits.explain_budget_report(text);
        let report = "Reached maximum budget ($0.02)";
        assert_eq!(explain(&limits, report).unwrap(), "the run has used its budget of $0.02");
        limits.budget_source = Some(BudgetSource::Reservation);
        assert_eq!(
            explain(&limits, report).unwrap(),
            "the run has used its budget of $0.02: what was free of `budget.day` or `budget.total` of the \
             agent or the fleet"
        );
        assert_eq!(explain(&limits, "Credit balance is too low"), None);
        assert_eq!(explain(&RunLimits::default(), report), None);
    }
}
