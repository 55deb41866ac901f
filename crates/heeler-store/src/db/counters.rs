//! Totals by agent and status, updated in the transaction that changes the counted rows.
//!
//! They are updated in code, not by triggers, because PostgreSQL's trigger syntax differs.

use rusqlite::params;

use super::connection::DatabaseConnection;
use super::{ColumnReader, DatabaseError, execute, query_all, query_first, sql};

sql! {
    ADD = "INSERT INTO counters (kind, agent, status, total) VALUES (?1, ?2, ?3, ?4) \
        ON CONFLICT(kind, agent, status) DO UPDATE SET total = counters.total + excluded.total";
    // The casts give the parameters a type, which PostgreSQL needs to compare them with NULL.
    TOTAL = "SELECT CAST(COALESCE(SUM(total), 0) AS BIGINT) FROM counters WHERE kind = ?1 \
        AND (CAST(?2 AS TEXT) IS NULL OR agent = ?2) AND (CAST(?3 AS TEXT) IS NULL OR status = ?3)";
    // A counter that fell to zero equals a missing row.
    BY_KIND = "SELECT agent, status, total FROM counters WHERE kind = ?1 AND total <> 0 \
        ORDER BY agent, status";
    CLEAR = "DELETE FROM counters WHERE kind = ?1";
}

/// Kind of row that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CounterKind {
    Job,
    Session,
    /// Counted by the workflow's name instead of an agent's.
    WorkflowRun,
    /// Counted by its kind instead of an agent's name.
    Approval,
}

impl CounterKind {
    fn as_str(self) -> &'static str {
        match self {
            CounterKind::Job => "job",
            CounterKind::Session => "session",
            CounterKind::WorkflowRun => "workflow_run",
            CounterKind::Approval => "approval",
        }
    }
}

pub(crate) fn add(
    conn: &DatabaseConnection,
    kind: CounterKind,
    agent: &str,
    status: &str,
    change: i64,
) -> Result<(), DatabaseError> {
    execute(conn, ADD, params![kind.as_str(), agent, status, change], "count").map(|_| ())
}

pub(crate) fn total(
    conn: &DatabaseConnection,
    kind: CounterKind,
    agent: Option<&str>,
    status: Option<&str>,
) -> Result<i64, DatabaseError> {
    let total =
        query_first(conn, TOTAL, params![kind.as_str(), agent, status], "read a total", |row| {
            ColumnReader::new("counters", row).get()
        })?;
    Ok(total.unwrap_or(0))
}

pub(crate) fn by_kind(
    conn: &DatabaseConnection,
    kind: CounterKind,
) -> Result<Vec<(String, String, i64)>, DatabaseError> {
    query_all(conn, BY_KIND, [kind.as_str()], "read the totals", |row| {
        let mut columns = ColumnReader::new("counters", row);
        Ok((columns.get()?, columns.get()?, columns.get()?))
    })
}

/// Replaces the totals of a kind with recounted ones.
pub(crate) fn replace(
    conn: &DatabaseConnection,
    kind: CounterKind,
    counts: &[(String, String, i64)],
) -> Result<(), DatabaseError> {
    execute(conn, CLEAR, [kind.as_str()], "clear the totals")?;
    counts.iter().try_for_each(|(agent, status, total)| add(conn, kind, agent, status, *total))
}
