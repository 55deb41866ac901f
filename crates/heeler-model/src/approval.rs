//! Approvals: questions that workflow gates and running agents ask people, with their answers.
//!
//! An approval is answered once. The asker waits until it is answered, expires or is withdrawn.
//! Start at [`Approval`].

use heeler_config::words;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::workflow::PhasePart;
use crate::{ApprovalId, JobId, RunId, question_hash};

/// Longest `summary` of an approval, in bytes. `detail` holds the full question.
pub const APPROVAL_SUMMARY_BYTES_MAX: usize = 2048;

/// Longest stored answer, and longest stored `detail`, in bytes.
pub const APPROVAL_TEXT_BYTES_MAX: usize = 64 << 10;

words! {
    /// Kind of question.
    pub enum ApprovalKind ("kind of approval") {
        /// Consent to continue, asked by a workflow gate.
        Approve = "approve",
        /// Text answer, asked by a workflow gate.
        Reply = "reply",
        /// Consent to a tool call, asked by a running agent.
        Permission = "permission",
        /// Text answer, asked by a running agent.
        Question = "question",
    }
}

impl ApprovalKind {
    /// Returns true if the answer is text rather than yes or no.
    pub fn expects_text(self) -> bool {
        matches!(self, ApprovalKind::Reply | ApprovalKind::Question)
    }
}

words! {
    /// State of an approval.
    pub enum ApprovalStatus ("status of an approval") {
        /// Not answered yet.
        Pending = "pending",
        /// Consent given, or answered with text.
        Approved = "approved",
        /// Consent refused by a person.
        Rejected = "rejected",
        /// Not answered in time.
        Expired = "expired",
        /// The asker no longer waits for an answer.
        Withdrawn = "withdrawn",
    }
}

impl ApprovalStatus {
    /// Returns true if a person answered.
    pub fn is_answered(self) -> bool {
        matches!(self, ApprovalStatus::Approved | ApprovalStatus::Rejected)
    }
}

/// Question to a person, with its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Approval {
    pub id: ApprovalId,
    /// Workflow run that asks. For a plain job, the job's ID.
    pub workflow_run_id: String,
    /// Name of the gate. For a running agent, name of the tool.
    pub gate: String,
    pub kind: ApprovalKind,
    pub status: ApprovalStatus,
    /// Asker, as shown to people.
    pub requested_by: Option<String>,
    /// Caller that answered.
    pub responded_by: Option<String>,
    pub responded_at: Option<Timestamp>,
    /// Time of the question. Never changes, so lists can page by it.
    pub created_at: Timestamp,
    /// Time at which the question expires.
    pub expires_at: Option<Timestamp>,
    /// Answer that applies on expiry.
    pub default_answer: Option<String>,
    /// Job of the agent that asks.
    pub job_id: Option<JobId>,
    /// Run of that job.
    pub run_id: Option<RunId>,
    /// ID of the question within the run.
    pub ask_id: Option<String>,
    /// Time at which the run received the answer, or no longer needed one.
    pub delivered_at: Option<Timestamp>,
    /// Phase of the gate.
    pub phase: Option<String>,
    /// Part of that phase.
    pub part: Option<PhasePart>,
    /// Position of the gate in the run's journal.
    pub seq: Option<u64>,
    /// Increases by one with each change.
    pub version: i64,
    /// Short form of the question, at most [`APPROVAL_SUMMARY_BYTES_MAX`] bytes.
    pub summary: String,
    /// Text of the answer, or the reason for it. Omitted from lists.
    pub response: Option<String>,
    /// Full question, or the tool's input. Omitted from lists.
    pub detail: Option<Json>,
    /// File for which consent is requested.
    pub artifact: Option<String>,
}

impl Approval {
    /// Creates a pending approval for a gate or a job. All optional fields are empty.
    pub fn new_pending(
        id: ApprovalId,
        workflow_run_id: &str,
        gate: &str,
        kind: ApprovalKind,
        at: Timestamp,
    ) -> Approval {
        Approval {
            id,
            workflow_run_id: workflow_run_id.to_owned(),
            gate: gate.to_owned(),
            kind,
            status: ApprovalStatus::Pending,
            requested_by: None,
            responded_by: None,
            responded_at: None,
            created_at: at,
            expires_at: None,
            default_answer: None,
            job_id: None,
            run_id: None,
            ask_id: None,
            delivered_at: None,
            phase: None,
            part: None,
            seq: None,
            version: 1,
            summary: String::new(),
            response: None,
            detail: None,
            artifact: None,
        }
    }
}

impl Approval {
    /// Returns the hash of the tool and input that people are shown; `None` for a gate.
    pub fn shown_hash(&self) -> Option<String> {
        self.ask_id.as_ref()?;
        let input = self.detail.as_ref().map_or(&Json::Null, |detail| &detail["input"]);
        Some(question_hash(&self.gate, input))
    }

    /// Returns the rules that a person may allow for all later runs of the agent.
    pub fn offered_rules(&self) -> Vec<String> {
        self.detail.as_ref().map(offered_rules).unwrap_or_default()
    }
}

/// Key in the detail of an approval: rules that a person may allow for all later runs of the agent.
pub const OFFERED_RULES: &str = "offeredRules";

/// Key in the detail of an approval: the person allowed the offered rules for all later runs.
pub const ALLOWED_ALWAYS: &str = "allowedAlways";

/// Returns the rules in the detail of an approval that a person may allow for all later runs.
pub fn offered_rules(detail: &Json) -> Vec<String> {
    let rules = detail[OFFERED_RULES].as_array();
    rules.into_iter().flatten().filter_map(|rule| Some(rule.as_str()?.to_owned())).collect()
}

/// Answer that a person gives.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ApprovalAnswer {
    /// True for consent or a text answer.
    pub approve: bool,
    /// Text of the answer, or the reason for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Replacement for the tool input that the agent requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_input: Option<Json>,
    /// Hash of what the person was shown; see [`Approval::shown_hash`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_hash: Option<String>,
    /// Also allows the rules that the question offers, in all later runs of the agent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub always: bool,
}
