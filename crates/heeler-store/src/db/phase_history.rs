//! The column `phase_history` of a run that has ended, for scripts that were written for Last Light.
//!
//! Heeler itself does not read it: the journal owns these facts.

use heeler_model::WorkflowRunId;
use rusqlite::params;
use serde::Serialize;

use super::connection::DatabaseConnection;
use super::{ColumnReader, DatabaseError, execute, query_all, sql};

sql! {
    // Limited, because a script reads the column of many runs at once.
    PHASES = "SELECT skill, finished_at, success FROM executions \
        WHERE workflow_run_id = ?1 AND seq IS NOT NULL ORDER BY seq LIMIT 1000";
    SET_HISTORY = "UPDATE workflow_runs SET phase_history = ?2 WHERE id = ?1 AND origin IS NULL";
}

/// A phase in the form of Last Light.
#[derive(Serialize)]
struct PhaseHistoryEntry {
    phase: Option<String>,
    timestamp: Option<String>,
    success: bool,
}

/// Writes the phases of a run in the form of Last Light.
pub(crate) fn write(conn: &DatabaseConnection, run: &WorkflowRunId) -> Result<(), DatabaseError> {
    let attempt = "write the phases of a workflow run";
    let phases = query_all(conn, PHASES, [run.as_str()], attempt, |row| {
        let mut columns = ColumnReader::new("executions", row);
        let skill: Option<String> = columns.get()?;
        // The name of the workflow comes first.
        let phase = skill.map(|skill| match skill.split_once(':') {
            Some((_, phase)) => phase.to_owned(),
            None => skill,
        });
        let (timestamp, success) = (columns.get()?, columns.get::<Option<i64>>()? == Some(1));
        Ok(PhaseHistoryEntry { phase, timestamp, success })
    })?;
    let history = serde_json::to_string(&phases).expect("text and flags are JSON");
    execute(conn, SET_HISTORY, params![run.as_str(), history], attempt).map(|_| ())
}
