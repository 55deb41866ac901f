//! The tables that Last Light has too. Its rows are inserted unchanged.

use rusqlite::ToSql;
use rusqlite::types::Value;

use super::connection::DatabaseConnection;
use super::counters::CounterKind;
use super::{DatabaseError, StateDatabase, execute, query_all, sql};

sql! {
    // Imported twice, a row must not overwrite changes that were made since.
    WORKFLOW_RUN = "INSERT INTO workflow_runs (id, workflow_name, trigger_id, repo, issue_number, \
        current_phase, phase_history, status, context, scratch, node_statuses, restart_count, \
        started_at, updated_at, finished_at, owner, triggered_by, trigger_actor_type, trace_id, \
        span_id, origin) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, \
        ?15, ?16, ?17, ?18, ?19, ?20, ?21) ON CONFLICT(id) DO NOTHING";
    WORKFLOW_APPROVAL = "INSERT INTO workflow_approvals (id, workflow_run_id, gate, summary, \
        status, kind, requested_by, responded_by, response, responded_at, created_at, artifact) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT(id) DO NOTHING";
    CRON_OVERRIDE = "INSERT INTO cron_overrides (name, enabled, schedule, updated_at, updated_by) \
        VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT(name) DO NOTHING";
    WORKFLOW_OVERRIDE = "INSERT INTO workflow_overrides (name, enabled, updated_at, updated_by) \
        VALUES (?1, ?2, ?3, ?4) ON CONFLICT(name) DO NOTHING";
    MESSAGING_SESSION = "INSERT INTO messaging_sessions (id, platform, channel_id, thread_id, \
        user_id, agent_session_id, created_at, last_activity_at, message_count, active) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT(id) DO NOTHING";
    // Messages of Last Light have no stable key, so the import derives one.
    MESSAGING_MESSAGE = "INSERT INTO messaging_messages (session_id, role, content, timestamp, \
        platform_message_id, origin_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
        ON CONFLICT(origin_id) DO NOTHING";
    MESSAGES_OF_SESSION = "SELECT role, content FROM messaging_messages WHERE session_id = ?1 \
        ORDER BY timestamp, id";
}

/// A table that Last Light has too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLightTable {
    /// `workflow_runs`
    WorkflowRuns,
    /// `workflow_approvals`
    WorkflowApprovals,
    /// `cron_overrides`
    CronOverrides,
    /// `workflow_overrides`
    WorkflowOverrides,
    /// `messaging_sessions`
    MessagingSessions,
    /// `messaging_messages`
    MessagingMessages,
}

impl LastLightTable {
    pub fn name(self) -> &'static str {
        match self {
            LastLightTable::WorkflowRuns => "workflow_runs",
            LastLightTable::WorkflowApprovals => "workflow_approvals",
            LastLightTable::CronOverrides => "cron_overrides",
            LastLightTable::WorkflowOverrides => "workflow_overrides",
            LastLightTable::MessagingSessions => "messaging_sessions",
            LastLightTable::MessagingMessages => "messaging_messages",
        }
    }

    /// Returns the counter that counts the table's rows, and the column by which they are grouped.
    pub(crate) fn counted(self) -> Option<(CounterKind, &'static str)> {
        match self {
            LastLightTable::WorkflowRuns => Some((CounterKind::WorkflowRun, "workflow_name")),
            LastLightTable::WorkflowApprovals => Some((CounterKind::Approval, "kind")),
            _ => None,
        }
    }

    /// Returns the column names in the order in which an insert takes their values.
    ///
    /// `origin_id` of a message is Heeler's: a name that stays the same if the import is repeated.
    pub fn columns(self) -> impl Iterator<Item = &'static str> {
        // The statement is the only list of columns, so the two cannot differ.
        let (_, rest) = self.insert().split_once('(').expect("an insert lists its columns");
        let (columns, _) = rest.split_once(')').expect("an insert lists its columns");
        columns.split(',').map(str::trim)
    }

    fn insert(self) -> &'static str {
        match self {
            LastLightTable::WorkflowRuns => WORKFLOW_RUN,
            LastLightTable::WorkflowApprovals => WORKFLOW_APPROVAL,
            LastLightTable::CronOverrides => CRON_OVERRIDE,
            LastLightTable::WorkflowOverrides => WORKFLOW_OVERRIDE,
            LastLightTable::MessagingSessions => MESSAGING_SESSION,
            LastLightTable::MessagingMessages => MESSAGING_MESSAGE,
        }
    }
}

impl StateDatabase {
    /// Returns role and content of a chat's messages in order.
    pub fn chat_messages(&self, session: &str) -> Result<Vec<(String, String)>, DatabaseError> {
        query_all(&self.conn, MESSAGES_OF_SESSION, [session], "list messages", |row| {
            let mut columns = super::ColumnReader::new("messaging_messages", row);
            Ok((columns.get()?, columns.get()?))
        })
    }
}

/// Inserts a row unchanged; returns true if it was new.
pub(crate) fn insert(
    conn: &DatabaseConnection,
    table: LastLightTable,
    values: &[Value],
) -> Result<bool, DatabaseError> {
    let params: Vec<&dyn ToSql> = values.iter().map(|value| value as &dyn ToSql).collect();
    Ok(execute(conn, table.insert(), params.as_slice(), "import a row")? == 1)
}
