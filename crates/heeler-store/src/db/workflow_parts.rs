//! The parts of a workflow run for display: with their times, without their outputs.
//!
//! A run may have thousands of parts with long outputs, and is displayed many times a second.

use heeler_model::workflow::{JournalEntry, PartDecision, PartOutcome, PhasePart};
use heeler_model::{AgentSessionId, JobId, JobStatus, WorkflowRunId};
use jiff::Timestamp;
use rusqlite::params;

use super::connection::SqlRow;
use super::{ColumnReader, DatabaseError, StateDatabase, integer, query_all, sql};

sql! {
    // The items are needed to know if all of them are done.
    JOURNAL_OF_PARTS = "SELECT id, phase, part, seq, step, agent, status, exit_reason, \
        interrupted, decision, started_at, run_started_at, finished_at, duration_ms, session_id, \
        error, CASE WHEN part = 'items' THEN output_text END, \
        COALESCE((SELECT CAST(SUM(spent) AS BIGINT) FROM runs WHERE runs.job_id = executions.id), \
        CAST(ROUND(cost_usd * 1000000) AS BIGINT)) FROM executions \
        WHERE workflow_run_id = ?1 AND seq >= ?2 ORDER BY seq";
}

/// A part of a phase, for display.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowPartRow {
    pub phase: String,
    pub part: PhasePart,
    /// Position in the journal.
    pub seq: u64,
    /// The job that executes the part, if there is one.
    pub job: Option<JobId>,
    /// The agent that executes the part; empty if there is none.
    pub agent: String,
    /// Status of the job.
    pub status: JobStatus,
    /// Outcome; `None` while it is running.
    pub outcome: Option<PartOutcome>,
    /// Decision made about the part.
    pub decision: Option<PartDecision>,
    pub requested_at: Timestamp,
    /// Time at which its process started.
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// Duration in milliseconds.
    pub duration_ms: Option<i64>,
    /// Native session of the agent.
    pub session: Option<AgentSessionId>,
    pub error: Option<String>,
    /// The list of items, if this part produces it.
    pub items: Option<String>,
    /// Amount spent, in millionths of a dollar.
    pub micros: i64,
}

impl WorkflowPartRow {
    /// Converts to a journal entry without output.
    pub fn entry(&self, phase: usize) -> JournalEntry {
        JournalEntry {
            phase,
            part: self.part,
            seq: self.seq,
            job: self.job.clone(),
            outcome: self.outcome,
            decision: self.decision,
            output: self.items.as_deref().map(Into::into),
            error: self.error.clone(),
            micros: self.micros,
        }
    }
}

impl StateDatabase {
    /// Returns the parts of a run from a journal position on, in order. Gates are not included:
    /// they are approvals.
    pub fn workflow_parts(
        &self,
        run: &WorkflowRunId,
        from: u64,
    ) -> Result<Vec<WorkflowPartRow>, DatabaseError> {
        let params = params![run.as_str(), integer(from)];
        query_all(&self.conn, JOURNAL_OF_PARTS, params, "read the parts of a workflow run", read)
    }
}

fn read(row: &SqlRow<'_>) -> Result<WorkflowPartRow, DatabaseError> {
    let mut columns = ColumnReader::new("executions", row);
    let id: JobId = columns.parsed()?;
    let (phase, part, seq) = (columns.get()?, columns.parsed()?, columns.count()?);
    let is_step = columns.get::<Option<i64>>()?.is_some();
    let (agent, status) = (columns.get()?, columns.parsed()?);
    let (reason, interrupted) = (columns.optional_parsed()?, columns.flag()?);
    Ok(WorkflowPartRow {
        phase,
        part,
        seq,
        // A step has an id made from its run, which must not be taken for a job's id.
        job: (!is_step).then_some(id),
        agent,
        status,
        outcome: PartOutcome::from_job(status, reason, interrupted),
        decision: columns.optional_parsed()?,
        requested_at: columns.time()?,
        started_at: columns.optional_time()?,
        finished_at: columns.optional_time()?,
        duration_ms: columns.get()?,
        session: columns.optional_parsed()?,
        error: columns.get()?,
        items: columns.get()?,
        // Parts without runs have no sum.
        micros: columns.get::<Option<i64>>()?.unwrap_or(0),
    })
}
