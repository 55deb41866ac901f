//! What people switched off or changed, whatever the files say: `workflow_overrides`, and those
//! `cron_overrides` that are no agent's.

use heeler_model::{from_iso, iso_millis};
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::{Columns, Db, DbError, collect, execute, first, sql};

sql! {
    WORKFLOWS = "SELECT name, enabled, updated_at, updated_by FROM workflow_overrides ORDER BY name";
    WORKFLOW = "SELECT name, enabled, updated_at, updated_by FROM workflow_overrides \
        WHERE name = ?1";
    PUT_WORKFLOW = "INSERT INTO workflow_overrides (name, enabled, updated_at, updated_by) \
        VALUES (?1, ?2, ?3, ?4) ON CONFLICT(name) DO UPDATE SET enabled = excluded.enabled, \
        updated_at = excluded.updated_at, updated_by = excluded.updated_by";
}

/// A workflow that a person switched on or off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowOverride {
    /// The workflow's name.
    pub name: String,
    /// Whether it may run.
    pub enabled: bool,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub by: String,
}

impl Db {
    /// Lists the workflows that a person switched on or off, by name.
    pub fn workflow_overrides(&self) -> Result<Vec<WorkflowOverride>, DbError> {
        collect(&self.conn, WORKFLOWS, [], "list the settings of workflows", read_workflow)
    }

    /// Returns what a person set a workflow to.
    pub fn workflow_override(&self, name: &str) -> Result<Option<WorkflowOverride>, DbError> {
        first(&self.conn, WORKFLOW, [name], "read a workflow's setting", read_workflow)
    }
}

fn read_workflow(row: &Row<'_>) -> Result<WorkflowOverride, DbError> {
    let mut columns = Columns::new("workflow_overrides", row);
    Ok(WorkflowOverride {
        name: columns.get()?,
        enabled: columns.flag()?,
        // An imported row may say neither when nor who.
        at: from_iso(&columns.get::<String>()?).unwrap_or(Timestamp::UNIX_EPOCH),
        by: columns.get::<Option<String>>()?.unwrap_or_default(),
    })
}

pub(crate) fn put_workflow(conn: &Connection, change: &WorkflowOverride) -> Result<(), DbError> {
    let params = params![change.name, i64::from(change.enabled), iso_millis(change.at), change.by];
    execute(conn, PUT_WORKFLOW, params, "switch a workflow").map(|_| ())
}
