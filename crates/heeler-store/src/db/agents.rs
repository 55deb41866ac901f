//! Agents and their schedules, as shown in `state.yaml`.

use heeler_model::{AgentState, AgentStatus, JobId, ScheduleState, Session, SessionId, iso_millis};
use indexmap::IndexMap;
use jiff::Timestamp;
use rusqlite::params;

use super::connection::DatabaseConnection;
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

macro_rules! agent_columns {
    () => {
        "name, status, current_job, last_job, next_schedule, next_trigger_at, container_id, \
         error_message"
    };
}

sql! {
    AGENTS = concat!("SELECT ", agent_columns!(), " FROM agents WHERE removed = 0 ORDER BY name");
    AGENT = concat!("SELECT ", agent_columns!(), " FROM agents WHERE name = ?1 AND removed = 0");
    SCHEDULES = "SELECT agent, name, status, last_run_at, next_run_at, last_error \
        FROM schedules WHERE removed = 0 ORDER BY agent, name";
    SCHEDULES_OF = "SELECT agent, name, status, last_run_at, next_run_at, last_error \
        FROM schedules WHERE agent = ?1 AND removed = 0 ORDER BY name";
    SCHEDULE = "SELECT agent, name, status, last_run_at, next_run_at, last_error \
        FROM schedules WHERE agent = ?1 AND name = ?2 AND removed = 0";
    // `IS NOT` also compares NULL, and no row changes if the values are the same.
    SET_NEXT = "UPDATE agents SET next_schedule = ?2, next_trigger_at = ?3 WHERE name = ?1 \
        AND (next_schedule IS DISTINCT FROM ?2 OR next_trigger_at IS DISTINCT FROM ?3)";
    // Removed agents and schedules keep a row. Their keys in `state.yaml` would otherwise look like
    // unknown keys and stay forever.
    REMOVED_AGENTS = "SELECT name FROM agents WHERE removed = 1";
    REMOVED_SCHEDULES = "SELECT agent, name FROM schedules WHERE removed = 1";
    PUT_AGENT = "INSERT INTO agents (name, status, current_job, last_job, next_schedule, \
        next_trigger_at, container_id, error_message, removed) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0) \
        ON CONFLICT(name) DO UPDATE SET status = excluded.status, \
        current_job = excluded.current_job, last_job = excluded.last_job, \
        next_schedule = excluded.next_schedule, next_trigger_at = excluded.next_trigger_at, \
        container_id = excluded.container_id, error_message = excluded.error_message, removed = 0";
    TOUCH_AGENT = "INSERT INTO agents (name) VALUES (?1) ON CONFLICT(name) DO NOTHING";
    PUT_SCHEDULE = "INSERT INTO schedules (agent, name, status, last_run_at, next_run_at, \
        last_error, removed) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0) \
        ON CONFLICT(agent, name) DO UPDATE SET status = excluded.status, \
        last_run_at = excluded.last_run_at, next_run_at = excluded.next_run_at, \
        last_error = excluded.last_error, removed = 0";
    // Jobs and sessions refer to the agent by name, so its row stays.
    REMOVE_AGENT = "UPDATE agents SET removed = 1 WHERE name = ?1";
    // A schedule that is added again starts afresh, so its progress is dropped (P3).
    REMOVE_SCHEDULE = "UPDATE schedules SET removed = 1, anchor = NULL, through = NULL, \
        rule = NULL WHERE agent = ?1 AND name = ?2";
    REMOVE_SCHEDULES = "UPDATE schedules SET removed = 1 WHERE agent = ?1";
    CLEAR_PROGRESS = "UPDATE schedules SET anchor = NULL, through = NULL, rule = NULL \
        WHERE agent = ?1";
    DISABLED = "SELECT name FROM agents WHERE enabled = 0 ORDER BY name";
    SET_ENABLED = "UPDATE agents SET enabled = ?2 WHERE name = ?1";
    AGENT_SESSION = "SELECT session_id FROM agents WHERE name = ?1 AND session_id IS NOT NULL";
    AGENT_SESSIONS = "SELECT name, session_id FROM agents WHERE session_id IS NOT NULL ORDER BY name";
    SET_AGENT_SESSION = "UPDATE agents SET session_id = ?2 WHERE name = ?1";
    // Names without a config are known only from the counters of their jobs and sessions.
    NAMES = "SELECT name FROM agents WHERE removed = 0 \
        UNION SELECT agent FROM counters WHERE kind IN ('job', 'session') AND total > 0 ORDER BY 1";
}

impl StateDatabase {
    /// Returns every agent's state by name, with its schedules.
    pub fn agents(&self) -> Result<IndexMap<String, AgentState>, DatabaseError> {
        let mut agents: IndexMap<String, AgentState> =
            query_all(&self.conn, AGENTS, [], "list agents", |row| {
                read_agent(&mut ColumnReader::new("agents", row))
            })?
            .into_iter()
            .collect();
        let schedules = query_all(&self.conn, SCHEDULES, [], "list schedules", |row| {
            read_schedule(&mut ColumnReader::new("schedules", row))
        })?;
        for (agent, name, schedule) in schedules {
            // Schedules of removed agents are left out.
            if let Some(agent) = agents.get_mut(&agent) {
                agent.schedules.insert(name, schedule);
            }
        }
        Ok(agents)
    }

    /// Returns one agent's state, with its schedules.
    pub fn agent(&self, name: &str) -> Result<Option<AgentState>, DatabaseError> {
        let found = query_first(&self.conn, AGENT, [name], "read an agent", |row| {
            read_agent(&mut ColumnReader::new("agents", row))
        })?;
        let Some((_, mut agent)) = found else { return Ok(None) };
        let schedules = query_all(&self.conn, SCHEDULES_OF, [name], "read schedules", |row| {
            read_schedule(&mut ColumnReader::new("schedules", row))
        })?;
        agent.schedules = schedules.into_iter().map(|(_, name, state)| (name, state)).collect();
        Ok(Some(agent))
    }

    pub fn schedule(
        &self,
        agent: &str,
        name: &str,
    ) -> Result<Option<ScheduleState>, DatabaseError> {
        query_first(&self.conn, SCHEDULE, [agent, name], "read a schedule", |row| {
            read_schedule(&mut ColumnReader::new("schedules", row)).map(|(_, _, state)| state)
        })
    }

    /// Returns the session that an agent's next job continues, unless its config says otherwise.
    pub fn agent_session(&self, agent: &str) -> Result<Option<Session>, DatabaseError> {
        let id: Option<SessionId> =
            query_first(&self.conn, AGENT_SESSION, [agent], "read an agent's session", |row| {
                ColumnReader::new("agents", row).parsed()
            })?;
        id.map_or(Ok(None), |id| self.session(&id))
    }

    /// Lists the agents that a person disabled, including those without a config.
    pub fn disabled_agents(&self) -> Result<Vec<String>, DatabaseError> {
        query_all(&self.conn, DISABLED, [], "list disabled agents", |row| {
            ColumnReader::new("agents", row).get()
        })
    }

    /// Lists every name that an agent, job or session has.
    pub fn agent_names(&self) -> Result<Vec<String>, DatabaseError> {
        query_all(&self.conn, NAMES, [], "list agent names", |row| {
            ColumnReader::new("agents", row).get()
        })
    }
}

fn read_agent(columns: &mut ColumnReader<'_, '_>) -> Result<(String, AgentState), DatabaseError> {
    let name = columns.get()?;
    let agent = AgentState {
        status: columns.parsed::<AgentStatus>()?,
        current_job: columns.optional_parsed()?,
        last_job: columns.optional_parsed()?,
        next_schedule: columns.get()?,
        next_trigger_at: columns.optional_time()?,
        container_id: columns.get()?,
        error_message: columns.get()?,
        schedules: IndexMap::new(),
    };
    Ok((name, agent))
}

fn read_schedule(
    columns: &mut ColumnReader<'_, '_>,
) -> Result<(String, String, ScheduleState), DatabaseError> {
    let (agent, name) = (columns.get()?, columns.get()?);
    let schedule = ScheduleState {
        status: columns.parsed()?,
        last_run_at: columns.optional_time()?,
        next_run_at: columns.optional_time()?,
        last_error: columns.get()?,
    };
    Ok((agent, name, schedule))
}

pub(crate) fn put_agent(
    conn: &DatabaseConnection,
    name: &str,
    agent: &AgentState,
) -> Result<(), DatabaseError> {
    let params = params![
        name,
        agent.status.as_str(),
        agent.current_job.as_ref().map(JobId::as_str),
        agent.last_job.as_ref().map(JobId::as_str),
        agent.next_schedule,
        agent.next_trigger_at.map(iso_millis),
        agent.container_id,
        agent.error_message,
    ];
    execute(conn, PUT_AGENT, params, "write an agent")?;
    // All schedules are marked as removed first; those that still exist are written back.
    execute(conn, REMOVE_SCHEDULES, [name], "write schedules")?;
    agent
        .schedules
        .iter()
        .try_for_each(|(schedule, state)| put_schedule(conn, name, schedule, state))
}

/// Sets the schedule that starts an agent next; returns true if it changed.
pub(crate) fn set_next_schedule(
    conn: &DatabaseConnection,
    name: &str,
    schedule: Option<&str>,
    at: Option<Timestamp>,
) -> Result<bool, DatabaseError> {
    let params = params![name, schedule, at.map(iso_millis)];
    Ok(execute(conn, SET_NEXT, params, "write an agent's next schedule")? == 1)
}

pub(crate) fn put_schedule(
    conn: &DatabaseConnection,
    agent: &str,
    name: &str,
    schedule: &ScheduleState,
) -> Result<(), DatabaseError> {
    ensure_agent(conn, agent)?;
    let params = params![
        agent,
        name,
        schedule.status.as_str(),
        schedule.last_run_at.map(iso_millis),
        schedule.next_run_at.map(iso_millis),
        schedule.last_error,
    ];
    execute(conn, PUT_SCHEDULE, params, "write a schedule").map(|_| ())
}

pub(crate) fn remove_agent(conn: &DatabaseConnection, name: &str) -> Result<(), DatabaseError> {
    execute(conn, REMOVE_SCHEDULES, [name], "remove schedules")?;
    execute(conn, CLEAR_PROGRESS, [name], "remove schedules")?;
    execute(conn, REMOVE_AGENT, [name], "remove an agent").map(|_| ())
}

pub(crate) fn remove_schedule(
    conn: &DatabaseConnection,
    agent: &str,
    name: &str,
) -> Result<(), DatabaseError> {
    execute(conn, REMOVE_SCHEDULE, [agent, name], "remove a schedule").map(|_| ())
}

pub(crate) fn removed_agents(conn: &DatabaseConnection) -> Result<Vec<String>, DatabaseError> {
    query_all(conn, REMOVED_AGENTS, [], "list removed agents", |row| {
        ColumnReader::new("agents", row).get()
    })
}

pub(crate) fn removed_schedules(
    conn: &DatabaseConnection,
) -> Result<Vec<(String, String)>, DatabaseError> {
    query_all(conn, REMOVED_SCHEDULES, [], "list removed schedules", |row| {
        let mut columns = ColumnReader::new("schedules", row);
        Ok((columns.get()?, columns.get()?))
    })
}

pub(crate) fn set_session(
    conn: &DatabaseConnection,
    agent: &str,
    session: Option<&SessionId>,
) -> Result<(), DatabaseError> {
    ensure_agent(conn, agent)?;
    let params = params![agent, session.map(SessionId::as_str)];
    execute(conn, SET_AGENT_SESSION, params, "set an agent's session").map(|_| ())
}

pub(crate) fn set_enabled(
    conn: &DatabaseConnection,
    agent: &str,
    enabled: bool,
) -> Result<(), DatabaseError> {
    ensure_agent(conn, agent)?;
    let params = params![agent, i64::from(enabled)];
    execute(conn, SET_ENABLED, params, "switch an agent on or off").map(|_| ())
}

/// Lists the agents that have a current session.
pub(crate) fn with_session(
    conn: &DatabaseConnection,
) -> Result<Vec<(String, SessionId)>, DatabaseError> {
    query_all(conn, AGENT_SESSIONS, [], "list agents' sessions", |row| {
        let mut columns = ColumnReader::new("agents", row);
        Ok((columns.get()?, columns.parsed()?))
    })
}

/// Creates an agent unless it exists.
pub(crate) fn ensure_agent(conn: &DatabaseConnection, agent: &str) -> Result<(), DatabaseError> {
    // Nothing but the name is written, so an agent's state and its removal stay as they are.
    execute(conn, TOUCH_AGENT, [agent], "write an agent").map(|_| ())
}
