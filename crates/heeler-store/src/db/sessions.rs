//! Sessions: the table `sessions`.

use heeler_model::{
    AgentSessionId, NativeSessionPosition, PendingFork, Session, SessionId, SessionStatus,
    iso_millis,
};
use jiff::Timestamp;
use rusqlite::{named_params, params};

use super::connection::{DatabaseConnection, SqlRow};
use super::{
    CANDIDATES_MAX, ColumnReader, DatabaseError, IdLookupError, SqliteResultExt as _,
    StateDatabase, counters, execute, query_all, query_first, sql,
};

/// Sorts after every time and every id; the start of a list that is ordered newest first.
const SORTS_LAST: &str = "~";

macro_rules! columns {
    () => {
        "id, agent_session_id, agent, mode, approvals, status, channel_id, created_at, \
         last_active_at, message_count, token_estimate, job_count, working_directory, runtime, \
         docker_enabled, parent, forked_at_message, fork_source, fork_at, continues, workspace, \
         own_bytes, own_last, own_hash, log_path, origin, version"
    };
}

macro_rules! page_of {
    ($filter:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            " FROM sessions WHERE ",
            $filter,
            // The id breaks ties between equal times. Without it a page could skip or repeat rows.
            "(last_active_at, id) < (?3, ?4) ORDER BY last_active_at DESC, id DESC LIMIT ?5"
        )
    };
}

sql! {
    PAGE = page_of!("");
    PAGE_OF_AGENT = page_of!("agent = ?1 AND ");
    PAGE_OF_STATUS = page_of!("status = ?2 AND ");
    PAGE_OF_AGENT_STATUS = page_of!("agent = ?1 AND status = ?2 AND ");
    PAGE_OF_CHANNEL = page_of!("agent = ?1 AND channel_id = ?6 AND ");
    PAGE_OF_CHANNEL_STATUS = page_of!("agent = ?1 AND channel_id = ?6 AND status = ?2 AND ");
    COUNT_SINCE = "SELECT COUNT(*) FROM sessions WHERE last_active_at >= ?3";
    COUNT_SINCE_OF_AGENT =
        "SELECT COUNT(*) FROM sessions WHERE agent = ?1 AND last_active_at >= ?3";
    COUNT_SINCE_OF_STATUS =
        "SELECT COUNT(*) FROM sessions WHERE status = ?2 AND last_active_at >= ?3";
    COUNT_SINCE_OF_AGENT_STATUS =
        "SELECT COUNT(*) FROM sessions WHERE agent = ?1 AND status = ?2 AND last_active_at >= ?3";
    COUNT_SINCE_OF_CHANNEL = "SELECT COUNT(*) FROM sessions \
        WHERE agent = ?1 AND channel_id = ?4 AND last_active_at >= ?3 \
        AND (CAST(?2 AS TEXT) IS NULL OR status = ?2)";
    // `/` (0x2F) is followed by `0` (0x30), so this range holds all ids that start with the channel
    // and a slash.
    IDS_OF_THREADS = "SELECT DISTINCT channel_id FROM sessions \
        WHERE agent = ?1 AND channel_id >= ?2 || '/' AND channel_id < ?2 || '0'";
    IDS_OF_CONTINUATIONS = "SELECT id FROM sessions WHERE continues = ?1 LIMIT ?2";
    SESSION = concat!("SELECT ", columns!(), " FROM sessions WHERE id = ?1");
    BY_AGENT_SESSION = concat!("SELECT ", columns!(), " FROM sessions WHERE agent_session_id = ?1");
    OF_CHANNEL = concat!("SELECT ", columns!(), " FROM sessions \
        WHERE agent = ?1 AND channel_id = ?2 ORDER BY last_active_at DESC, id DESC LIMIT 1");
    IDS_FROM = "SELECT id FROM sessions WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT ?3";
    IDS_FROM_AGENT_SESSION = "SELECT id FROM sessions \
        WHERE agent_session_id >= ?1 AND agent_session_id < ?2 ORDER BY agent_session_id LIMIT ?3";
    FORKS_OF = concat!("SELECT ", columns!(), " FROM sessions WHERE parent = ?1 ORDER BY id");
    UNSTARTED_FORKS_OF =
        "SELECT id FROM sessions WHERE fork_source = ?1 ORDER BY id";
    // Sessions of single jobs are excluded: no later job continues them, so they expire by
    // status.
    UNUSED_REUSABLE = concat!("SELECT ", columns!(), " FROM sessions WHERE agent = ?1 \
        AND status = ?2 AND last_active_at < ?3 AND mode <> 'fresh_per_job' ORDER BY last_active_at, id LIMIT ?4");
    UNUSED = concat!("SELECT ", columns!(), " FROM sessions WHERE status = ?1 \
        AND last_active_at < ?2 ORDER BY last_active_at, id LIMIT ?3");
    KEY = "SELECT agent, status, version FROM sessions WHERE id = ?1";
    INSERT = "INSERT INTO sessions (id, agent_session_id, agent, mode, approvals, status, \
        channel_id, created_at, last_active_at, message_count, token_estimate, job_count, \
        working_directory, runtime, docker_enabled, parent, forked_at_message, fork_source, \
        fork_at, continues, workspace, own_bytes, own_last, own_hash, log_path, origin, version) VALUES \
        (:id, :agent_session_id, :agent, :mode, :approvals, :status, :channel_id, :created_at, \
        :last_active_at, :message_count, :token_estimate, :job_count, :working_directory, \
        :runtime, :docker_enabled, :parent, :forked_at_message, :fork_source, :fork_at, \
        :continues, :workspace, :own_bytes, :own_last, :own_hash, :log_path, :origin, :version)";
    UPDATE = "UPDATE sessions SET agent_session_id = :agent_session_id, agent = :agent, \
        mode = :mode, approvals = :approvals, status = :status, channel_id = :channel_id, \
        created_at = :created_at, last_active_at = :last_active_at, \
        message_count = :message_count, token_estimate = :token_estimate, job_count = :job_count, \
        working_directory = :working_directory, runtime = :runtime, \
        docker_enabled = :docker_enabled, parent = :parent, \
        forked_at_message = :forked_at_message, fork_source = :fork_source, fork_at = :fork_at, \
        continues = :continues, workspace = :workspace, own_bytes = :own_bytes, \
        own_last = :own_last, own_hash = :own_hash, log_path = :log_path, origin = :origin, \
        version = :version + 1 WHERE id = :id AND version = :version";
    REMOVE = "DELETE FROM sessions WHERE id = ?1 AND version = ?2";
    COUNTS = "SELECT agent, status, COUNT(*) FROM sessions GROUP BY agent, status ORDER BY agent, status";
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionFilter {
    pub agent: Option<String>,
    pub status: Option<SessionStatus>,
    /// Only sessions of this chat channel and its threads.
    pub channel: Option<String>,
    /// Only sessions used at or after this time.
    pub since: Option<Timestamp>,
}

/// End of a page of sessions; the next page begins after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCursor {
    pub last_active_at: Timestamp,
    pub id: SessionId,
}

impl SessionCursor {
    pub fn after(session: &Session) -> SessionCursor {
        SessionCursor { last_active_at: session.last_active_at, id: session.id.clone() }
    }
}

impl StateDatabase {
    /// Returns a page of sessions, most recently used first, continuing after `before`.
    pub fn sessions(
        &self,
        filter: &SessionFilter,
        before: Option<&SessionCursor>,
        limit: usize,
    ) -> Result<Vec<Session>, DatabaseError> {
        if let Some(channel) = &filter.channel {
            return self.sessions_of_channel(filter, channel, before, limit);
        }
        let sql = match (&filter.agent, filter.status) {
            (None, None) => PAGE,
            (Some(_), None) => PAGE_OF_AGENT,
            (None, Some(_)) => PAGE_OF_STATUS,
            (Some(_), Some(_)) => PAGE_OF_AGENT_STATUS,
        };
        let status = filter.status.map(SessionStatus::as_str);
        let (at, id) = page_start(before);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = params![filter.agent, status, at, id, limit];
        let mut page = query_all(&self.conn, sql, params, "list sessions", read)?;
        if let Some(since) = filter.since {
            // The most recently used come first, so all rows after the first older one are older
            // too.
            let end = page.partition_point(|session| session.last_active_at >= since);
            page.truncate(end);
        }
        Ok(page)
    }

    /// Lists the sessions of a channel and its threads, of all agents. The index is by agent and
    /// channel, so a page is read for each pair and the newest entries of all pages are taken.
    fn sessions_of_channel(
        &self,
        filter: &SessionFilter,
        channel: &str,
        before: Option<&SessionCursor>,
        limit: usize,
    ) -> Result<Vec<Session>, DatabaseError> {
        let sql = match filter.status {
            Some(_) => PAGE_OF_CHANNEL_STATUS,
            None => PAGE_OF_CHANNEL,
        };
        let status = filter.status.map(SessionStatus::as_str);
        let (at, id) = page_start(before);
        // Every pair may hold the whole page, so each is read with the full limit.
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut found: Vec<Session> = Vec::new();
        for (agent, channel) in self.channels(filter.agent.as_deref(), channel)? {
            let params = params![agent, status, at, id, most, channel];
            found.extend(query_all(&self.conn, sql, params, "list sessions", read)?);
        }
        // The pages are merged first, so `since` cannot end one query early.
        found.retain(|session| filter.since.is_none_or(|since| session.last_active_at >= since));
        found.sort_by(|a, b| (b.last_active_at, &b.id).cmp(&(a.last_active_at, &a.id)));
        found.truncate(limit);
        Ok(found)
    }

    /// Lists a channel and its threads, by agent; `None` means any agent.
    fn channels(
        &self,
        agent: Option<&str>,
        channel: &str,
    ) -> Result<Vec<(String, String)>, DatabaseError> {
        let agents = match agent {
            Some(agent) => vec![agent.to_owned()],
            // Agents that are no longer in the config keep their rows, so their channels are found
            // too.
            None => self.agent_names()?,
        };
        let attempt = "list threads";
        let mut found = Vec::new();
        for agent in agents {
            let params = params![agent, channel];
            let threads = query_all(&self.conn, IDS_OF_THREADS, params, attempt, |row| {
                row.get::<String>(0).attempt(attempt)
            })?;
            let all = std::iter::once(channel.to_owned()).chain(threads);
            found.extend(all.map(|channel| (agent.clone(), channel)));
        }
        Ok(found)
    }

    /// Returns the sessions that continue one with a full context, at most `limit`, by id.
    pub fn continuations_of(
        &self,
        id: &SessionId,
        limit: usize,
    ) -> Result<Vec<SessionId>, DatabaseError> {
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = params![id.as_str(), most];
        let attempt = "list a session's continuations";
        let mut found: Vec<SessionId> =
            query_all(&self.conn, IDS_OF_CONTINUATIONS, params, attempt, |row| {
                ColumnReader::new("sessions", row).parsed()
            })?;
        // Sorted here, because the index on `continues` has no order by id.
        found.sort();
        Ok(found)
    }

    /// Counts the sessions of a channel and its threads.
    fn count_channel(&self, filter: &SessionFilter, channel: &str) -> Result<i64, DatabaseError> {
        let status = filter.status.map(SessionStatus::as_str);
        // Without a limit every time is later than the empty text, so one statement serves both.
        let since = filter.since.map(iso_millis).unwrap_or_default();
        let attempt = "count sessions";
        let mut total = 0;
        for (agent, channel) in self.channels(filter.agent.as_deref(), channel)? {
            let params = params![agent, status, since, channel];
            let read = |row: &SqlRow<'_>| row.get::<i64>(0).attempt(attempt);
            let count = query_first(&self.conn, COUNT_SINCE_OF_CHANNEL, params, attempt, read)?;
            total += count.unwrap_or(0);
        }
        Ok(total)
    }

    /// Counts the sessions that match a filter: from counters, or over an index with `since` or a
    /// channel.
    pub fn count_sessions(&self, filter: &SessionFilter) -> Result<i64, DatabaseError> {
        if let Some(channel) = &filter.channel {
            return self.count_channel(filter, channel);
        }
        let agent = filter.agent.as_deref();
        let status = filter.status.map(SessionStatus::as_str);
        let Some(since) = filter.since else {
            return counters::total(&self.conn, counters::CounterKind::Session, agent, status);
        };
        let sql = match (agent, status) {
            (None, None) => COUNT_SINCE,
            (Some(_), None) => COUNT_SINCE_OF_AGENT,
            (None, Some(_)) => COUNT_SINCE_OF_STATUS,
            (Some(_), Some(_)) => COUNT_SINCE_OF_AGENT_STATUS,
        };
        let attempt = "count sessions";
        let params = params![agent, status, iso_millis(since)];
        let count =
            query_first(&self.conn, sql, params, attempt, |row| row.get(0).attempt(attempt))?;
        Ok(count.unwrap_or(0))
    }

    /// Returns a session by Heeler's id.
    pub fn session(&self, id: &SessionId) -> Result<Option<Session>, DatabaseError> {
        query_first(&self.conn, SESSION, [id.as_str()], "read a session", read)
    }

    /// Returns a session by its native id.
    pub fn session_by_agent_id(
        &self,
        id: &AgentSessionId,
    ) -> Result<Option<Session>, DatabaseError> {
        query_first(&self.conn, BY_AGENT_SESSION, [id.as_str()], "read a session", read)
    }

    /// Returns the most recently used session of an agent's chat channel.
    pub fn session_of_channel(
        &self,
        agent: &str,
        channel: &str,
    ) -> Result<Option<Session>, DatabaseError> {
        query_first(&self.conn, OF_CHANNEL, [agent, channel], "read a channel's session", read)
    }

    pub fn forks_of(&self, session: &SessionId) -> Result<Vec<Session>, DatabaseError> {
        query_all(&self.conn, FORKS_OF, [session.as_str()], "list forks", read)
    }

    /// Lists the forks of a session that have not started, and still need it.
    pub fn unstarted_forks_of(&self, id: &AgentSessionId) -> Result<Vec<SessionId>, DatabaseError> {
        query_all(&self.conn, UNSTARTED_FORKS_OF, [id.as_str()], "list forks", |row| {
            ColumnReader::new("sessions", row).parsed()
        })
    }

    /// Lists sessions with a status that were last used before a time, longest unused first.
    pub fn unused_sessions(
        &self,
        status: SessionStatus,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<Session>, DatabaseError> {
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = params![status.as_str(), iso_millis(before), most];
        query_all(&self.conn, UNUSED, params, "list unused sessions", read)
    }

    /// Lists the same sessions of one agent, without those made for a single job.
    pub fn unused_reusable_sessions(
        &self,
        agent: &str,
        status: SessionStatus,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<Session>, DatabaseError> {
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = params![agent, status.as_str(), iso_millis(before), most];
        query_all(&self.conn, UNUSED_REUSABLE, params, "list unused sessions", read)
    }

    /// Finds a session by Heeler's id, its native id, or a unique prefix of either, also without
    /// `sess-`.
    pub fn find_session(&self, text: &str) -> Result<Session, IdLookupError> {
        if let Ok(id) = text.parse()
            && let Some(session) = self.session(&id)?
        {
            return Ok(session);
        }
        if let Ok(id) = text.parse()
            && let Some(session) = self.session_by_agent_id(&id)?
        {
            return Ok(session);
        }
        let unknown = || IdLookupError::Unknown { what: "session", text: text.to_owned() };
        // One candidate more than is shown, so that the message can say that there are more.
        let mut ids = self.session_ids_with_prefix(text, CANDIDATES_MAX + 1)?;
        if ids.is_empty() && !text.is_empty() {
            ids = self.session_ids_with_prefix(&format!("sess-{text}"), CANDIDATES_MAX + 1)?;
        }
        match ids.len() {
            0 => Err(unknown()),
            1 => self.session(&ids.remove(0))?.ok_or_else(unknown),
            _ => Err(IdLookupError::Ambiguous {
                text: text.to_owned(),
                candidates: ids.iter().map(ToString::to_string).collect(),
            }),
        }
    }

    /// Lists sessions with a Heeler id or native id that starts with `prefix`.
    pub fn session_ids_with_prefix(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<SessionId>, DatabaseError> {
        // An empty prefix matches every session, which is never meant.
        if prefix.is_empty() {
            return Ok(Vec::new());
        }
        let end = format!("{prefix}{SORTS_LAST}");
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut found: Vec<SessionId> = Vec::new();
        for sql in [IDS_FROM, IDS_FROM_AGENT_SESSION] {
            let params = params![prefix, end, most];
            found.extend(query_all(&self.conn, sql, params, "look up a session", |row| {
                ColumnReader::new("sessions", row).parsed()
            })?);
        }
        // A session may match by both of its ids.
        found.sort();
        found.dedup();
        found.truncate(limit);
        Ok(found)
    }
}

/// Returns the time and the id after which a page begins.
fn page_start(before: Option<&SessionCursor>) -> (String, &str) {
    match before {
        Some(cursor) => (iso_millis(cursor.last_active_at), cursor.id.as_str()),
        None => (SORTS_LAST.to_owned(), SORTS_LAST),
    }
}

fn read(row: &SqlRow<'_>) -> Result<Session, DatabaseError> {
    let mut columns = ColumnReader::new("sessions", row);
    Ok(Session {
        id: columns.parsed()?,
        agent_session_id: columns.optional_parsed()?,
        agent: columns.get()?,
        mode: columns.parsed()?,
        approvals: columns.parsed()?,
        status: columns.parsed()?,
        channel_id: columns.get()?,
        created_at: columns.time()?,
        last_active_at: columns.time()?,
        message_count: columns.get()?,
        token_estimate: columns.get()?,
        job_count: columns.get()?,
        working_directory: columns.get::<Option<String>>()?.map(Into::into),
        runtime: columns.get()?,
        docker_enabled: columns.flag()?,
        parent: columns.optional_parsed()?,
        forked_at_message: columns.get()?,
        fork: read_fork(&mut columns)?,
        continues: columns.optional_parsed()?,
        workspace: columns.get::<Option<String>>()?.map(Into::into),
        own: read_native_position(&mut columns)?,
        log_path: columns.get::<Option<String>>()?.map(Into::into),
        origin: columns.get()?,
        version: columns.get()?,
    })
}

fn read_fork(columns: &mut ColumnReader<'_, '_>) -> Result<Option<PendingFork>, DatabaseError> {
    let source = columns.optional_parsed()?;
    let at = columns.optional_parsed()?;
    Ok(source.map(|source| PendingFork { source, at }))
}

fn read_native_position(
    columns: &mut ColumnReader<'_, '_>,
) -> Result<Option<NativeSessionPosition>, DatabaseError> {
    let bytes: Option<i64> = columns.get()?;
    let last = columns.optional_parsed()?;
    let hash = columns.optional_parsed()?;
    // Both values describe one position, so a row with only one of them has none.
    let position = bytes.zip(last);
    let position = position.map(|(bytes, last)| NativeSessionPosition {
        bytes: bytes.unsigned_abs(),
        last,
        hash,
    });
    Ok(position)
}

/// The fields that a change needs of the row it changes.
pub(crate) struct SessionRowState {
    pub(crate) agent: String,
    pub(crate) status: String,
    pub(crate) version: i64,
}

pub(crate) fn load_row_state(
    conn: &DatabaseConnection,
    id: &SessionId,
) -> Result<Option<SessionRowState>, DatabaseError> {
    query_first(conn, KEY, [id.as_str()], "read a session", |row| {
        let mut columns = ColumnReader::new("sessions", row);
        Ok(SessionRowState {
            agent: columns.get()?,
            status: columns.get()?,
            version: columns.get()?,
        })
    })
}

pub(crate) fn insert(conn: &DatabaseConnection, session: &Session) -> Result<(), DatabaseError> {
    bind(conn, INSERT, session, "insert a session").map(|_| ())
}

/// Updates; returns true if the version was current.
pub(crate) fn update(conn: &DatabaseConnection, session: &Session) -> Result<bool, DatabaseError> {
    Ok(bind(conn, UPDATE, session, "update a session")? == 1)
}

/// Removes; returns true if the version was current.
pub(crate) fn remove(
    conn: &DatabaseConnection,
    id: &SessionId,
    version: i64,
) -> Result<bool, DatabaseError> {
    Ok(execute(conn, REMOVE, params![id.as_str(), version], "remove a session")? == 1)
}

/// Counts sessions by agent and status from the rows, to check the counters.
pub(crate) fn real_counts(
    conn: &DatabaseConnection,
) -> Result<Vec<(String, String, i64)>, DatabaseError> {
    query_all(conn, COUNTS, [], "count sessions", |row| {
        let mut columns = ColumnReader::new("sessions", row);
        Ok((columns.get()?, columns.get()?, columns.get()?))
    })
}

fn bind(
    conn: &DatabaseConnection,
    sql: &'static str,
    session: &Session,
    attempt: &'static str,
) -> Result<usize, DatabaseError> {
    let params = named_params! {
        ":id": session.id.as_str(),
        ":agent_session_id": session.agent_session_id.as_ref().map(AgentSessionId::as_str),
        ":agent": session.agent,
        ":mode": session.mode.as_str(),
        ":approvals": session.approvals.as_str(),
        ":status": session.status.as_str(),
        ":channel_id": session.channel_id,
        ":created_at": iso_millis(session.created_at),
        ":last_active_at": iso_millis(session.last_active_at),
        ":message_count": session.message_count,
        ":token_estimate": session.token_estimate,
        ":job_count": session.job_count,
        ":working_directory": session.working_directory.as_ref().map(|path| path.as_str()),
        ":runtime": session.runtime,
        ":docker_enabled": i64::from(session.docker_enabled),
        ":parent": session.parent.as_ref().map(SessionId::as_str),
        ":forked_at_message": session.forked_at_message,
        ":fork_source": session.fork.as_ref().map(|fork| fork.source.as_str()),
        ":fork_at": session.fork.as_ref().and_then(|fork| fork.at).map(|at| at.to_string()),
        ":continues": session.continues.as_ref().map(SessionId::as_str),
        ":workspace": session.workspace.as_ref().map(|path| path.as_str()),
        ":own_bytes": session.own.map(|own| i64::try_from(own.bytes).unwrap_or(i64::MAX)),
        ":own_last": session.own.map(|own| own.last.to_string()),
        ":own_hash": session.own.and_then(|own| own.hash).map(|hash| hash.to_string()),
        ":log_path": session.log_path.as_ref().map(|path| path.as_str()),
        ":origin": session.origin,
        ":version": session.version,
    };
    execute(conn, sql, params, attempt)
}
