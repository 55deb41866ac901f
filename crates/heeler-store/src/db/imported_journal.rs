//! Places of imported executions and approvals in the journal of their workflow run.
//!
//! Last Light keeps no journal: the import derives it from the names and times of its rows.

use heeler_model::workflow::{PartDecision, PhasePart};
use heeler_model::{ApprovalId, JobId, JobStatus, WorkflowRunId};
use jiff::Timestamp;
use rusqlite::params;

use super::connection::DatabaseConnection;
use super::{ColumnReader, DatabaseError, StateDatabase, execute, integer, query_all, sql};

sql! {
    // Sorted by the caller: no index has this order, and a run has few rows.
    UNPLACED_PARTS = "SELECT id, skill, status, stop_reason, started_at, output_text, cost_usd \
        FROM executions WHERE workflow_run_id = ?1 AND seq IS NULL AND origin IS NOT NULL";
    UNPLACED_GATES = "SELECT id, gate, created_at FROM workflow_approvals \
        WHERE workflow_run_id = ?1 AND seq IS NULL AND ask_id IS NULL";
    PLACE_PART = "UPDATE executions SET phase = ?2, part = ?3, seq = ?4, decision = ?5 \
        WHERE id = ?1 AND seq IS NULL";
    PLACE_GATE = "UPDATE workflow_approvals SET phase = ?2, part = ?3, seq = ?4 \
        WHERE id = ?1 AND seq IS NULL";
    SET_TOTALS = "UPDATE workflow_runs SET seq = ?2, spent = ?3, version = version + 1 \
        WHERE id = ?1 AND origin IS NOT NULL";
    ADOPT = "UPDATE workflow_runs SET origin = NULL, definition = ?2, version = version + 1 \
        WHERE id = ?1 AND origin IS NOT NULL";
}

/// An imported execution without a place in the journal of its run.
#[derive(Debug, Clone, PartialEq)]
pub struct UnplacedExecution {
    pub id: JobId,
    /// Name of the workflow, and label of the part.
    pub skill: String,
    pub status: JobStatus,
    pub stop_reason: Option<String>,
    pub started_at: Timestamp,
    pub output: Option<String>,
    pub cost_usd: Option<f64>,
}

/// An imported approval without a place in the journal of its run.
#[derive(Debug, Clone, PartialEq)]
pub struct UnplacedApproval {
    pub id: ApprovalId,
    pub gate: String,
    pub created_at: Timestamp,
}

/// Place in the journal of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalPlace {
    pub phase: String,
    pub part: PhasePart,
    pub seq: u64,
    pub decision: Option<PartDecision>,
}

impl StateDatabase {
    /// Returns the imported executions of a run that are in no journal, in any order.
    pub fn unplaced_executions(
        &self,
        run: &WorkflowRunId,
    ) -> Result<Vec<UnplacedExecution>, DatabaseError> {
        let attempt = "read the executions of an imported run";
        query_all(&self.conn, UNPLACED_PARTS, [run.as_str()], attempt, |row| {
            let mut columns = ColumnReader::new("executions", row);
            Ok(UnplacedExecution {
                id: columns.parsed()?,
                skill: columns.get::<Option<String>>()?.unwrap_or_default(),
                status: columns.parsed()?,
                stop_reason: columns.get()?,
                started_at: columns.time()?,
                output: columns.get()?,
                cost_usd: columns.get()?,
            })
        })
    }

    /// Returns the imported approvals of a run that are in no journal, in any order.
    pub fn unplaced_approvals(
        &self,
        run: &WorkflowRunId,
    ) -> Result<Vec<UnplacedApproval>, DatabaseError> {
        let attempt = "read the approvals of an imported run";
        query_all(&self.conn, UNPLACED_GATES, [run.as_str()], attempt, |row| {
            let mut columns = ColumnReader::new("workflow_approvals", row);
            Ok(UnplacedApproval {
                id: columns.parsed()?,
                gate: columns.get()?,
                created_at: columns.time()?,
            })
        })
    }
}

pub(crate) fn place_execution(
    conn: &DatabaseConnection,
    id: &JobId,
    place: &JournalPlace,
) -> Result<(), DatabaseError> {
    let JournalPlace { phase, part, seq, decision } = place;
    let decision = decision.map(PartDecision::as_str);
    let params = params![id.as_str(), phase, part.to_string(), integer(*seq), decision];
    execute(conn, PLACE_PART, params, "place an execution in its journal").map(|_| ())
}

pub(crate) fn place_approval(
    conn: &DatabaseConnection,
    id: &ApprovalId,
    place: &JournalPlace,
) -> Result<(), DatabaseError> {
    let JournalPlace { phase, part, seq, .. } = place;
    let params = params![id.as_str(), phase, part.to_string(), integer(*seq)];
    execute(conn, PLACE_GATE, params, "place an approval in its journal").map(|_| ())
}

pub(crate) fn set_totals(
    conn: &DatabaseConnection,
    run: &WorkflowRunId,
    seq: u64,
    micros: i64,
) -> Result<(), DatabaseError> {
    let params = params![run.as_str(), integer(seq), micros];
    execute(conn, SET_TOTALS, params, "set the totals of an imported run").map(|_| ())
}

/// Makes an imported run one of this fleet, with a definition. Returns false if it was not imported.
pub(crate) fn adopt(
    conn: &DatabaseConnection,
    run: &WorkflowRunId,
    definition: &str,
) -> Result<bool, DatabaseError> {
    let params = params![run.as_str(), definition];
    Ok(execute(conn, ADOPT, params, "adopt an imported run")? == 1)
}
