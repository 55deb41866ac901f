//! What people are shown of a run's journal: its parts with their times, and none of their outputs.
//!
//! A run may have thousands of parts with long outputs, and is looked at many times a second.

use heeler_model::workflow::{JournalEntry, PartDecision, PartOutcome, PhasePart};
use heeler_model::{AgentSessionId, JobId, JobStatus, WorkflowRunId};
use jiff::Timestamp;
use rusqlite::{Row, params};

use super::{ColumnReader, DatabaseError, StateDatabase, integer, query_all, sql};

sql! {
    // The items of a list are needed to know whether all are done.
    JOURNAL_OF_PARTS = "SELECT id, phase, part, seq, step, agent, status, exit_reason, \
        interrupted, decision, started_at, run_started_at, finished_at, duration_ms, session_id, \
        error, CASE WHEN part = 'items' THEN output_text END, \
        (SELECT SUM(spent) FROM runs WHERE runs.job_id = executions.id) FROM executions \
        WHERE workflow_run_id = ?1 AND seq >= ?2 ORDER BY seq";
}

/// A part of a phase, as people are shown it.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowPartRow {
    /// The phase's name.
    pub phase: String,
    /// Which part of it.
    pub part: PhasePart,
    /// Its place in the journal.
    pub seq: u64,
    /// The job that does it, where one does.
    pub job: Option<JobId>,
    /// The agent that does it; empty where none does.
    pub agent: String,
    /// Where its job is.
    pub status: JobStatus,
    /// How it ended; none while it goes on.
    pub outcome: Option<PartOutcome>,
    /// What was decided about it.
    pub decision: Option<PartDecision>,
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// When its process began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// How long it took, in milliseconds.
    pub duration_ms: Option<i64>,
    /// The session that its agent was in.
    pub session: Option<AgentSessionId>,
    /// What went wrong.
    pub error: Option<String>,
    /// The items, where it is the list of them.
    pub items: Option<String>,
    /// What counts as spent by it, in millionths of a dollar.
    pub micros: i64,
}

impl WorkflowPartRow {
    /// Returns it as an entry of the journal, without what it said.
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
    /// Returns the parts of a run from a place of its journal on, in order. Gates are no parts of
    /// these: they are approvals.
    pub fn workflow_parts(
        &self,
        run: &WorkflowRunId,
        from: u64,
    ) -> Result<Vec<WorkflowPartRow>, DatabaseError> {
        let params = params![run.as_str(), integer(from)];
        query_all(&self.conn, JOURNAL_OF_PARTS, params, "read the parts of a workflow run", read)
    }
}

fn read(row: &Row<'_>) -> Result<WorkflowPartRow, DatabaseError> {
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
        micros: columns.get::<Option<i64>>()?.unwrap_or(0),
    })
}
