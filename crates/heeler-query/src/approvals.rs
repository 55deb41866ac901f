//! Approvals: what people are asked, and their answers.

use heeler_model::{Approval, ApprovalKind, ApprovalStatus};
use heeler_store::{ApprovalCursor, ApprovalFilter, IdLookupError, StoreReader};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError, enum_schemas};

/// Which approvals to list.
#[derive(Debug, Clone, Default)]
pub struct ApprovalListQuery {
    /// Only those in this state.
    pub status: Option<ApprovalStatus>,
    /// Only those of this run of a workflow, or of this job; a beginning of its id will do while it
    /// is unique.
    pub run: Option<String>,
    /// Those older than this one.
    pub before: Option<String>,
    /// How many.
    pub limit: usize,
}

/// A page of approvals, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalPage {
    /// The approvals.
    pub approvals: Vec<ApprovalSummary>,
    /// How many there are on all pages.
    pub total: i64,
    /// How many a page has at most.
    pub limit: usize,
    /// What `before` is for the next page; none on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Something that a person is asked.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalSummary {
    /// Its id.
    pub id: String,
    /// The run of a workflow that asks, or the job.
    pub workflow_run_id: String,
    /// The gate, or the tool.
    pub gate: String,
    /// What is asked for.
    #[schema(value_type = enum_schemas::ApprovalKind)]
    pub kind: ApprovalKind,
    /// Where it is.
    #[schema(value_type = enum_schemas::ApprovalStatus)]
    pub status: ApprovalStatus,
    /// What is asked, in short.
    pub summary: String,
    /// Who asks.
    pub requested_by: Option<String>,
    /// When.
    pub created_at: Timestamp,
    /// Until when an answer is waited for.
    pub expires_at: Option<Timestamp>,
    /// Who answered.
    pub responded_by: Option<String>,
    /// When.
    pub responded_at: Option<Timestamp>,
    /// The job that asks.
    pub job_id: Option<String>,
    /// The phase that asks.
    pub phase: Option<String>,
}

impl ApprovalSummary {
    /// Returns what a list shows of it.
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

/// All that is known of something that a person is asked.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalDetails {
    /// What a list shows of it.
    #[serde(flatten)]
    pub item: ApprovalSummary,
    /// The answer.
    pub response: Option<String>,
    /// What is asked, in full.
    pub detail: Option<Value>,
    /// The file that it is about.
    pub artifact: Option<String>,
    /// What counts as an answer if nobody gives one.
    pub default_answer: Option<String>,
    /// When whoever asked was given the answer.
    pub delivered_at: Option<Timestamp>,
}

impl ApprovalDetails {
    /// Returns all that is known of it.
    pub fn of(approval: &Approval) -> ApprovalDetails {
        ApprovalDetails {
            item: ApprovalSummary::of(approval),
            response: approval.response.clone(),
            detail: approval.detail.clone(),
            artifact: approval.artifact.clone(),
            default_answer: approval.default_answer.clone(),
            delivered_at: approval.delivered_at,
        }
    }
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
        // One more tells whether there is a next page.
        let mut found = reader.approvals(&filter, before.as_ref(), limit.saturating_add(1))?;
        let total = reader.count_approvals(&filter)?;
        let has_more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| has_more).map(|last| last.id.to_string());
        let approvals = found.iter().map(ApprovalSummary::of).collect();
        Ok(ApprovalPage { approvals, total, limit, next })
    }

    /// Returns an approval; a beginning of its id will do while it is unique.
    pub fn approval(&self, id: &str) -> Result<ApprovalDetails, QueryError> {
        Ok(ApprovalDetails::of(&self.reader()?.find_approval(id)?))
    }
}

/// Finds the workflow run or the job whose questions are meant.
fn resolve_requester(reader: &StoreReader, text: &str) -> Result<String, QueryError> {
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
    // What a job asked is kept longer than the job.
    let of_gone = ApprovalFilter { run: Some(text.to_owned()), status: None };
    if reader.count_approvals(&of_gone)? > 0 {
        return Ok(text.to_owned());
    }
    let message = format!("there is no workflow run and no job `{text}`");
    Err(QueryError::not_found(message, "heeler workflow runs, or heeler jobs list"))
}
