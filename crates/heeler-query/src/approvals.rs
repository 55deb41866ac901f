//! Approvals: questions to people and their answers.

use heeler_model::{Approval, ApprovalKind, ApprovalStatus};
use heeler_store::{ApprovalCursor, ApprovalFilter, IdLookupError, StoreReader};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError, enum_schemas};

/// Filter and page of an approval list.
#[derive(Debug, Clone, Default)]
pub struct ApprovalListQuery {
    /// Only approvals with this status.
    pub status: Option<ApprovalStatus>,
    /// Only approvals of this workflow run or job (unique ID prefix).
    pub run: Option<String>,
    /// Only approvals older than this ID.
    pub before: Option<String>,
    /// Maximum number of entries.
    pub limit: usize,
}

/// A page of approvals, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalPage {
    /// Approvals.
    pub approvals: Vec<ApprovalSummary>,
    /// Number of approvals on all pages.
    pub total: i64,
    /// Maximum number of entries per page.
    pub limit: usize,
    /// Value of `before` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A question to a person.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalSummary {
    /// Approval ID.
    pub id: String,
    /// ID of the workflow run or job that asks.
    pub workflow_run_id: String,
    /// Name of the gate or tool.
    pub gate: String,
    /// Kind of question.
    #[schema(value_type = enum_schemas::ApprovalKind)]
    pub kind: ApprovalKind,
    /// Status of the question.
    #[schema(value_type = enum_schemas::ApprovalStatus)]
    pub status: ApprovalStatus,
    /// Short text of the question.
    pub summary: String,
    /// Agent or person that asks.
    pub requested_by: Option<String>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Expiry time.
    pub expires_at: Option<Timestamp>,
    /// Person who answered.
    pub responded_by: Option<String>,
    /// Time of the answer.
    pub responded_at: Option<Timestamp>,
    /// ID of the job that asks.
    pub job_id: Option<String>,
    /// Phase that asks.
    pub phase: Option<String>,
}

impl ApprovalSummary {
    /// Creates the list entry of an approval.
    pub fn of(approval: &Approval) -> ApprovalSummary {
        ApprovalSummary {
            id: approval.id.to_string(),
            workflow_run_id: approval.workflow_run_id.clone(),
            gate: approval.gate.clone(),
            kind: approval.kind,
            status: approval.status,
            summary: approval.summary.clone(),
            requested_by: approval.requested_by.clone(),
            created_at: approval.created_at,
            expires_at: approval.expires_at,
            responded_by: approval.responded_by.clone(),
            responded_at: approval.responded_at,
            job_id: approval.job_id.as_ref().map(ToString::to_string),
            phase: approval.phase.clone(),
        }
    }
}

/// All details of a question to a person.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalDetails {
    /// Fields of the list entry.
    #[serde(flatten)]
    pub item: ApprovalSummary,
    /// Answer.
    pub response: Option<String>,
    /// Full content of the question.
    pub detail: Option<Value>,
    /// Hash of the shown tool and input, for `inputHash` of an answer.
    pub input_hash: Option<String>,
    /// Length of the tool's input as JSON, in bytes.
    pub input_bytes: Option<usize>,
    /// File that the question concerns.
    pub artifact: Option<String>,
    /// Answer that applies on expiry.
    pub default_answer: Option<String>,
    /// Time at which the answer was delivered to the job or workflow run that asked.
    pub delivered_at: Option<Timestamp>,
}

impl ApprovalDetails {
    /// Creates the details of an approval.
    pub fn of(approval: &Approval) -> ApprovalDetails {
        ApprovalDetails {
            item: ApprovalSummary::of(approval),
            response: approval.response.clone(),
            detail: approval.detail.clone(),
            input_hash: approval.shown_hash(),
            input_bytes: input_bytes(approval),
            artifact: approval.artifact.clone(),
            default_answer: approval.default_answer.clone(),
            delivered_at: approval.delivered_at,
        }
    }
}

/// Returns the length of a tool's input as JSON.
pub fn input_bytes(approval: &Approval) -> Option<usize> {
    approval.ask_id.as_ref()?;
    Some(approval.detail.as_ref()?["input"].to_string().len())
}

impl FleetReader {
    /// Lists approvals, newest first.
    pub fn approvals(&self, wanted: &ApprovalListQuery) -> Result<ApprovalPage, QueryError> {
        let reader = self.reader()?;
        let run = wanted.run.as_deref().map(|text| resolve_requester(&reader, text)).transpose()?;
        let filter = ApprovalFilter { run, status: wanted.status };
        let before = match &wanted.before {
            None => None,
            Some(id) => Some(ApprovalCursor::after(&reader.find_approval(id)?)),
        };
        let limit = wanted.limit;
        // One extra entry shows if there is a next page.
        let mut found = reader.approvals(&filter, before.as_ref(), limit.saturating_add(1))?;
        let total = reader.count_approvals(&filter)?;
        let has_more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| has_more).map(|last| last.id.to_string());
        let approvals = found.iter().map(ApprovalSummary::of).collect();
        Ok(ApprovalPage { approvals, total, limit, next })
    }

    /// Returns an approval by a unique ID prefix.
    pub fn approval(&self, id: &str) -> Result<ApprovalDetails, QueryError> {
        Ok(ApprovalDetails::of(&self.reader()?.find_approval(id)?))
    }
}

/// Returns the ID of the workflow run or job that a text refers to.
fn resolve_requester(reader: &StoreReader, text: &str) -> Result<String, QueryError> {
    // A workflow run is tried first: approvals of its jobs belong to the run.
    match reader.find_workflow_run(text) {
        Ok(row) => return Ok(row.head.id.to_string()),
        Err(IdLookupError::Unknown { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    match reader.find_job(text) {
        Ok(job) => return Ok(job.head.id.to_string()),
        Err(IdLookupError::Unknown { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    // Approvals are kept longer than their job.
    let of_gone = ApprovalFilter { run: Some(text.to_owned()), status: None };
    if reader.count_approvals(&of_gone)? > 0 {
        return Ok(text.to_owned());
    }
    let message = format!("there is no workflow run and no job `{text}`");
    Err(QueryError::not_found(message, "heeler workflow runs, or heeler jobs list"))
}
