//! Approvals: what people are asked, by gates of workflows and by agents at work, and their answers.
//!
//! An approval is answered once. What asks it waits for the answer, or goes on without one when it
//! expires or is withdrawn. Start at [`Approval`].

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::words::words;
use crate::workflow::PhasePart;
use crate::{ApprovalId, JobId, RunId};

/// The longest `summary` of an approval, in bytes; `detail` has what is asked whole.
pub const APPROVAL_SUMMARY_BYTES_MAX: usize = 2048;

/// The most of an answer, and of what is asked in detail, that is kept, in bytes.
pub const APPROVAL_TEXT_BYTES_MAX: usize = 64 << 10;

words! {
    /// What a person is asked for.
    pub enum ApprovalKind ("kind of approval") {
        /// Consent to go on: a gate of a workflow.
        Approve = "approve",
        /// Words: a gate of a workflow.
        Reply = "reply",
        /// Consent to the use of a tool: a running agent.
        Permission = "permission",
        /// Words: a running agent.
        Question = "question",
    }
}

impl ApprovalKind {
    /// Says whether the answer is words, not yes or no.
    pub fn expects_text(self) -> bool {
        matches!(self, ApprovalKind::Reply | ApprovalKind::Question)
    }
}

words! {
    /// What became of an approval.
    pub enum ApprovalStatus ("status of an approval") {
        /// Nobody has answered yet.
        Pending = "pending",
        /// Consent, or an answer in words.
        Approved = "approved",
        /// No consent.
        Rejected = "rejected",
        /// Nobody answered in time.
        Expired = "expired",
        /// What asked no longer waits.
        Withdrawn = "withdrawn",
    }
}

impl ApprovalStatus {
    /// Says whether somebody answered.
    pub fn is_answered(self) -> bool {
        matches!(self, ApprovalStatus::Approved | ApprovalStatus::Rejected)
    }
}

/// Something that a person is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Approval {
    /// Its id.
    pub id: ApprovalId,
    /// The run of a workflow that it belongs to; for a plain job the job's id.
    pub workflow_run_id: String,
    /// The gate's name; for a running agent the tool's.
    pub gate: String,
    /// What is asked for.
    pub kind: ApprovalKind,
    /// What became of it.
    pub status: ApprovalStatus,
    /// Who asks.
    pub requested_by: Option<String>,
    /// Who answered.
    pub responded_by: Option<String>,
    /// When.
    pub responded_at: Option<Timestamp>,
    /// When it was asked; never changes, so lists can page by it.
    pub created_at: Timestamp,
    /// Until when an answer is waited for.
    pub expires_at: Option<Timestamp>,
    /// What counts as the answer then.
    pub default_answer: Option<String>,
    /// The job whose agent asks.
    pub job_id: Option<JobId>,
    /// The run of it that asks.
    pub run_id: Option<RunId>,
    /// What the run calls it.
    pub ask_id: Option<String>,
    /// When the run had the answer, or needed none any more.
    pub delivered_at: Option<Timestamp>,
    /// The phase of a gate.
    pub phase: Option<String>,
    /// The part of that phase.
    pub part: Option<PhasePart>,
    /// The gate's place in the journal of its run.
    pub seq: Option<u64>,
    /// Grows by one with each change.
    pub version: i64,
    /// What is asked, in short: at most [`APPROVAL_SUMMARY_BYTES_MAX`] bytes.
    pub summary: String,
    /// The answer in words, or the reason. Lists leave it out.
    pub response: Option<String>,
    /// What is asked, whole: the question, or the tool's input. Lists leave it out.
    pub detail: Option<Json>,
    /// The file that consent is asked for.
    pub artifact: Option<String>,
}

impl Approval {
    /// Asks something, for a gate or a job; nothing else is known yet.
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

/// What a person answers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ApprovalAnswer {
    /// Yes, or words; no otherwise.
    pub approve: bool,
    /// The words, or the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// What the tool is to be given instead of what the agent asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_input: Option<Json>,
}
