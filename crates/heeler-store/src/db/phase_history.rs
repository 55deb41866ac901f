//! The column `phase_history` of a run that has ended, for scripts that were written for Last Light.
//!
//! Heeler itself does not read it: the journal owns these facts.

use heeler_model::WorkflowRunId;
use rusqlite::Connection;

use super::{DatabaseError, execute, sql};

sql! {
    // Limited, because a script reads the column of many runs at once.
    SET_HISTORY = "UPDATE workflow_runs SET phase_history = (SELECT json_group_array(json_object( \
        'phase', substr(skill, instr(skill, ':') + 1), 'timestamp', finished_at, \
        'success', json(iif(success = 1, 'true', 'false')))) FROM (SELECT skill, finished_at, \
        success FROM executions WHERE workflow_run_id = ?1 AND seq IS NOT NULL ORDER BY seq \
        LIMIT 1000)) WHERE id = ?1 AND origin IS NULL";
}

/// Writes the phases of a run in the form of Last Light.
pub(crate) fn write(conn: &Connection, run: &WorkflowRunId) -> Result<(), DatabaseError> {
    execute(conn, SET_HISTORY, [run.as_str()], "write the phases of a workflow run").map(|_| ())
}
