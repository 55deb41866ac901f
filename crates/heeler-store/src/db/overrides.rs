//! Settings by which people override the files: `workflow_overrides`, and those
//! `cron_overrides` that do not belong to an agent.

use heeler_model::{iso_millis, parse_iso};
use jiff::Timestamp;
use rusqlite::params;

use super::connection::{DatabaseConnection, SqlRow};
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

sql! {
    WORKFLOWS = "SELECT name, enabled, updated_at, updated_by FROM workflow_overrides ORDER BY name";
    WORKFLOW = "SELECT name, enabled, updated_at, updated_by FROM workflow_overrides \
        WHERE name = ?1";
    // Schedules of agents share the table and have a slash in their name.
    CRONS = "SELECT name, enabled, schedule, updated_at, updated_by FROM cron_overrides \
        WHERE name NOT LIKE '%/%' ORDER BY name";
    PUT_CRON = "INSERT INTO cron_overrides (name, enabled, schedule, updated_at, updated_by) \
        VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT(name) DO UPDATE SET enabled = excluded.enabled, \
        schedule = excluded.schedule, updated_at = excluded.updated_at, \
        updated_by = excluded.updated_by";
    REMOVE_CRON = "DELETE FROM cron_overrides WHERE name = ?1 AND name NOT LIKE '%/%'";
    PUT_WORKFLOW = "INSERT INTO workflow_overrides (name, enabled, updated_at, updated_by) \
        VALUES (?1, ?2, ?3, ?4) ON CONFLICT(name) DO UPDATE SET enabled = excluded.enabled, \
        updated_at = excluded.updated_at, updated_by = excluded.updated_by";
    REMOVE_WORKFLOW = "DELETE FROM workflow_overrides WHERE name = ?1";
}

/// A person's setting that enables or disables a workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowOverride {
    pub name: String,
    pub enabled: bool,
    pub at: Timestamp,
    pub by: String,
}

/// A person's setting that enables or disables a workflow's cron, or changes its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronOverride {
    /// Name of the cron. It has no `/`, which distinguishes it from the schedules of agents.
    pub name: String,
    /// True if the cron starts runs.
    pub enabled: bool,
    /// Times that replace those of the file.
    pub schedule: Option<String>,
    pub at: Timestamp,
    pub by: String,
}

impl StateDatabase {
    /// Lists the overrides of workflow crons by name.
    pub fn cron_overrides(&self) -> Result<Vec<CronOverride>, DatabaseError> {
        query_all(&self.conn, CRONS, [], "list the settings of crons", |row| {
            let mut columns = ColumnReader::new("cron_overrides", row);
            Ok(CronOverride {
                name: columns.get()?,
                enabled: columns.flag()?,
                schedule: columns.get()?,
                // An imported row may lack the time and the person.
                at: parse_iso(&columns.get::<String>()?).unwrap_or(Timestamp::UNIX_EPOCH),
                by: columns.get::<Option<String>>()?.unwrap_or_default(),
            })
        })
    }

    /// Lists the overrides of workflows by name.
    pub fn workflow_overrides(&self) -> Result<Vec<WorkflowOverride>, DatabaseError> {
        query_all(&self.conn, WORKFLOWS, [], "list the settings of workflows", read_workflow)
    }

    pub fn workflow_override(&self, name: &str) -> Result<Option<WorkflowOverride>, DatabaseError> {
        query_first(&self.conn, WORKFLOW, [name], "read a workflow's setting", read_workflow)
    }
}

fn read_workflow(row: &SqlRow<'_>) -> Result<WorkflowOverride, DatabaseError> {
    let mut columns = ColumnReader::new("workflow_overrides", row);
    Ok(WorkflowOverride {
        name: columns.get()?,
        enabled: columns.flag()?,
        // An imported row may lack the time and the person.
        at: parse_iso(&columns.get::<String>()?).unwrap_or(Timestamp::UNIX_EPOCH),
        by: columns.get::<Option<String>>()?.unwrap_or_default(),
    })
}

pub(crate) fn put_cron(
    conn: &DatabaseConnection,
    change: &CronOverride,
) -> Result<(), DatabaseError> {
    let CronOverride { name, enabled, schedule, at, by } = change;
    let params = params![name, i64::from(*enabled), schedule, iso_millis(*at), by];
    execute(conn, PUT_CRON, params, "change a cron").map(|_| ())
}

/// Returns true if the override existed.
pub(crate) fn remove_cron(conn: &DatabaseConnection, name: &str) -> Result<bool, DatabaseError> {
    Ok(execute(conn, REMOVE_CRON, [name], "remove a cron's override")? == 1)
}

pub(crate) fn put_workflow(
    conn: &DatabaseConnection,
    change: &WorkflowOverride,
) -> Result<(), DatabaseError> {
    let params = params![change.name, i64::from(change.enabled), iso_millis(change.at), change.by];
    execute(conn, PUT_WORKFLOW, params, "switch a workflow").map(|_| ())
}

pub(crate) fn remove_workflow(
    conn: &DatabaseConnection,
    name: &str,
) -> Result<bool, DatabaseError> {
    Ok(execute(conn, REMOVE_WORKFLOW, [name], "reset a workflow")? > 0)
}
