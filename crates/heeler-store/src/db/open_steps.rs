//! Journal entries that are in progress without a process: the daemon itself does their work.

use heeler_model::workflow::{PartOutcome, truncate_output};
use heeler_model::{JobStatus, WorkflowRunId, iso_millis};
use jiff::Timestamp;
use rusqlite::named_params;

use super::connection::DatabaseConnection;
use super::workflows::{InstantPart, bounded_error, status_and_exit_reason, step_id};
use super::{ColumnReader, DatabaseError, StateDatabase, execute, integer, query_all, sql};

sql! {
    INSERT_OPEN_STEP = "INSERT INTO executions (id, agent, trigger_type, status, started_at, \
        workflow_run_id, skill, phase, part, seq, step) VALUES (:id, '', :trigger_type, 'running', \
        :at, :run, :skill, :phase, :part, :seq, 1)";
    END_STEP = "UPDATE executions SET status = :status, exit_reason = :exit_reason, \
        finished_at = :at, success = :success, output_text = :output, error = :error \
        WHERE id = :id AND step = 1 AND status = 'running'";
    OPEN_STEPS = "SELECT seq FROM executions \
        WHERE workflow_run_id = ?1 AND step = 1 AND status = 'running' ORDER BY seq";
}

/// End of a journal entry without a process.
#[derive(Debug, Clone, Copy)]
pub struct StepEnd<'a> {
    pub outcome: PartOutcome,
    pub output: Option<&'a str>,
    pub error: Option<&'a str>,
}

impl StateDatabase {
    /// Lists the journal entries of a run that are in progress without a process.
    pub fn open_steps(&self, run: &WorkflowRunId) -> Result<Vec<u64>, DatabaseError> {
        let attempt = "list the open steps of a workflow run";
        query_all(&self.conn, OPEN_STEPS, [run.as_str()], attempt, |row| {
            ColumnReader::new("executions", row).count()
        })
    }
}

/// Inserts a journal entry that is in progress without a process. Its outcome does not matter.
pub(crate) fn insert_open_step(
    conn: &DatabaseConnection,
    step: &InstantPart<'_>,
    at: Timestamp,
) -> Result<(), DatabaseError> {
    let params = named_params! {
        ":id": step_id(step.run, step.seq),
        ":trigger_type": step.trigger_type,
        ":at": iso_millis(at),
        ":run": step.run.as_str(),
        ":skill": step.skill,
        ":phase": step.phase,
        ":part": step.part.to_string(),
        ":seq": integer(step.seq),
    };
    execute(conn, INSERT_OPEN_STEP, params, "write an entry of a journal").map(|_| ())
}

/// Ends such an entry; returns true if it was in progress.
pub(crate) fn end_step(
    conn: &DatabaseConnection,
    (run, seq): (&WorkflowRunId, u64),
    end: &StepEnd<'_>,
    at: Timestamp,
) -> Result<bool, DatabaseError> {
    let (status, reason) = status_and_exit_reason(end.outcome);
    let params = named_params! {
        ":id": step_id(run, seq),
        ":status": status.as_str(),
        ":exit_reason": reason.as_str(),
        ":at": iso_millis(at),
        ":success": i64::from(status == JobStatus::Completed),
        ":output": end.output.map(truncate_output),
        ":error": end.error.map(bounded_error),
    };
    Ok(execute(conn, END_STEP, params, "end an entry of a journal")? == 1)
}
