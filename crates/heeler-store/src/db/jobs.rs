//! Jobs: the table `executions`.

use std::ops::ControlFlow;

use heeler_model::workflow::{PartDecision, truncate_output};
use heeler_model::{
    AgentSessionId, ExitReason, Job, JobHead, JobId, JobStatus, SUMMARY_BYTES_MAX, TriggerType,
    UsageTotals, iso_millis,
};
use jiff::Timestamp;
use rusqlite::{named_params, params};

use super::connection::{DatabaseConnection, SqlRow};
use super::{
    CANDIDATES_MAX, ColumnReader, DatabaseError, IdLookupError, SORTS_LAST, SqliteResultExt as _,
    StateDatabase, counters, execute, integer, query_all, query_first, sql,
};

/// Initial capacity of a page.
const PAGE_CAPACITY: usize = 128;

macro_rules! head_columns {
    () => {
        "id, agent, schedule, trigger_type, status, exit_reason, started_at, finished_at, \
         duration_ms, cost_usd, session_id, summary"
    };
}

// The columns that a list shows of a job. Only failed jobs show their error, so SQLite does not
// read the other rows that far.
macro_rules! line_columns {
    () => {
        concat!(
            head_columns!(),
            ", run_started_at, origin IS NOT NULL AS origin, \
             CASE status WHEN 'failed' THEN error END AS error, title, denied, job_marks.host AS host"
        )
    };
}

macro_rules! page_of {
    ($filter:literal) => {
        concat!(
            "SELECT ",
            line_columns!(),
            " FROM executions LEFT JOIN job_marks ON job = executions.id WHERE step IS NULL AND ",
            $filter,
            "(started_at, id) < (?3, ?4) ORDER BY started_at DESC, id DESC LIMIT ?6"
        )
    };
}

macro_rules! count_of_host {
    ($filter:literal) => {
        concat!(
            "SELECT COUNT(*) FROM executions WHERE step IS NULL AND host = ?4 AND ",
            $filter,
            "started_at >= ?3"
        )
    };
}

// All filters use the same parameter numbers, even if some are unused, so that one call can bind
// them.
sql! {
    PAGE = page_of!("");
    PAGE_OF_AGENT = page_of!("agent = ?1 AND ");
    PAGE_OF_STATUS = page_of!("status = ?2 AND ");
    PAGE_OF_AGENT_STATUS = page_of!("agent = ?1 AND status = ?2 AND ");
    PAGE_OF_HOST = page_of!("executions.host = ?5 AND ");
    PAGE_OF_HOST_STATUS = page_of!("executions.host = ?5 AND status = ?2 AND ");
    // The jobs of an agent are mostly on the same hosts, so these have no index of their own.
    PAGE_OF_HOST_AGENT = page_of!("executions.host = ?5 AND agent = ?1 AND ");
    PAGE_OF_HOST_AGENT_STATUS =
        page_of!("executions.host = ?5 AND agent = ?1 AND status = ?2 AND ");
    PAGE_OF_SESSION = concat!("SELECT ", line_columns!(), " FROM executions \
        LEFT JOIN job_marks ON job = executions.id WHERE session_id = ?1 \
        AND (started_at, id) < (?3, ?4) ORDER BY started_at DESC, id DESC LIMIT ?6");
    COUNT_SINCE = "SELECT COUNT(*) FROM executions WHERE step IS NULL AND started_at >= ?3";
    COUNT_SINCE_OF_AGENT = "SELECT COUNT(*) FROM executions \
        WHERE step IS NULL AND agent = ?1 AND started_at >= ?3";
    COUNT_SINCE_OF_STATUS = "SELECT COUNT(*) FROM executions \
        WHERE step IS NULL AND status = ?2 AND started_at >= ?3";
    COUNT_SINCE_OF_AGENT_STATUS = "SELECT COUNT(*) FROM executions \
        WHERE step IS NULL AND agent = ?1 AND status = ?2 AND started_at >= ?3";
    COUNT_SINCE_OF_HOST = count_of_host!("");
    COUNT_SINCE_OF_HOST_AGENT = count_of_host!("agent = ?1 AND ");
    COUNT_SINCE_OF_HOST_STATUS = count_of_host!("status = ?2 AND ");
    COUNT_SINCE_OF_HOST_AGENT_STATUS = count_of_host!("agent = ?1 AND status = ?2 AND ");
    COUNT_SINCE_UNTIL_OF_STATUS = "SELECT COUNT(*) FROM executions \
        WHERE step IS NULL AND status = ?1 AND started_at >= ?2 AND started_at < ?3";
    JOB = concat!("SELECT ", head_columns!(), ", version, run_started_at, trigger_id, skill, repo, \
        issue_number, workflow_run_id, forked_from, stop_reason, interrupted, restart_count, turns, \
        api_duration_ms, input_tokens, cache_creation_input_tokens, cache_read_input_tokens, \
        output_tokens, working_directory, origin, error, usage_json, prompt, output_text, \
        phase, part, seq, decision FROM executions WHERE id = ?1 AND step IS NULL");
    LINE = concat!("SELECT ", line_columns!(), " FROM executions \
        LEFT JOIN job_marks ON job = executions.id WHERE id = ?1 AND step IS NULL");
    CURSOR = "SELECT started_at FROM executions WHERE id = ?1 AND step IS NULL";
    IDS_FROM = "SELECT id FROM executions \
        WHERE id >= ?1 AND id < ?2 AND step IS NULL ORDER BY id LIMIT ?3";
    // The random end of an id, by which people name a job.
    IDS_FROM_END = "SELECT id FROM executions WHERE substr(id, -6) >= ?1 AND substr(id, -6) < ?2 \
        AND step IS NULL ORDER BY substr(id, -6) LIMIT ?3";
    SPAWNED_BY = "SELECT id FROM executions WHERE trigger_type = 'spawned' AND trigger_id = ?1";
    // Steps have no session, so `step` need not be tested here.
    IDS_OF_SESSION = "SELECT id FROM executions WHERE session_id = ?1 ORDER BY started_at, id";
    KEY = "SELECT agent, status, version, session_id FROM executions WHERE id = ?1";
    EXISTS = "SELECT 1 FROM executions WHERE id = ?1";
    INSERT = "INSERT INTO executions (id, agent, schedule, trigger_type, status, exit_reason, \
        started_at, finished_at, duration_ms, cost_usd, session_id, version, run_started_at, \
        success, interrupted, restart_count, forked_from, stop_reason, turns, input_tokens, \
        cache_creation_input_tokens, cache_read_input_tokens, output_tokens, api_duration_ms, \
        issue_number, workflow_run_id, skill, repo, origin, working_directory, trigger_id, \
        summary, error, usage_json, prompt, output_text, phase, part, seq, decision) \
        VALUES (:id, :agent, :schedule, :trigger_type, :status, :exit_reason, \
        :started_at, :finished_at, :duration_ms, :cost_usd, :session_id, :version, :run_started_at, \
        :success, :interrupted, :restart_count, :forked_from, :stop_reason, :turns, :input_tokens, \
        :cache_creation_input_tokens, :cache_read_input_tokens, :output_tokens, :api_duration_ms, \
        :issue_number, :workflow_run_id, :skill, :repo, :origin, :working_directory, :trigger_id, \
        :summary, :error, :usage_json, :prompt, :output_text, :phase, :part, :seq, :decision) ON CONFLICT(id) DO NOTHING";
    // `started_at` never changes: lists page by it. It is compared with '' (which it never is) only
    // because both statements get the same parameters, and SQLite must know each of them.
    UPDATE = "UPDATE executions SET agent = :agent, schedule = :schedule, \
        trigger_type = :trigger_type, status = :status, exit_reason = :exit_reason, \
        finished_at = :finished_at, duration_ms = :duration_ms, cost_usd = :cost_usd, \
        session_id = :session_id, version = :version + 1, run_started_at = :run_started_at, \
        success = :success, interrupted = :interrupted, restart_count = :restart_count, \
        forked_from = :forked_from, stop_reason = :stop_reason, turns = :turns, \
        input_tokens = :input_tokens, cache_creation_input_tokens = :cache_creation_input_tokens, \
        cache_read_input_tokens = :cache_read_input_tokens, output_tokens = :output_tokens, \
        api_duration_ms = :api_duration_ms, issue_number = :issue_number, \
        workflow_run_id = :workflow_run_id, skill = :skill, repo = :repo, origin = :origin, \
        working_directory = :working_directory, trigger_id = :trigger_id, summary = :summary, \
        error = :error, usage_json = :usage_json, prompt = :prompt, output_text = :output_text, \
        phase = :phase, part = :part, seq = :seq, decision = :decision \
        WHERE id = :id AND version = :version AND :started_at <> ''";
    SET_HOST = "UPDATE executions SET host = ?2 WHERE id = ?1";
    SET_FOREIGN = "UPDATE executions SET owner = ?2, triggered_by = ?3, trigger_actor_type = ?4, \
        extension_status = ?5, skills_status = ?6 WHERE id = ?1";
    COUNTS = "SELECT agent, status, COUNT(*) FROM executions \
        WHERE step IS NULL GROUP BY agent, status ORDER BY agent, status";
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    pub agent: Option<String>,
    pub status: Option<JobStatus>,
    /// Only jobs requested at or after this time.
    pub since: Option<Timestamp>,
    /// Only jobs with their last run on this host.
    pub host: Option<String>,
}

/// Values of a page's parameters, as far as its statement has them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct JobPageKeys<'k> {
    /// Agent or session.
    pub(super) key: Option<&'k str>,
    pub(super) status: Option<&'k str>,
    pub(super) host: Option<&'k str>,
}

impl<'k> JobPageKeys<'k> {
    pub(super) fn of(filter: &'k JobFilter) -> JobPageKeys<'k> {
        JobPageKeys {
            key: filter.agent.as_deref(),
            status: filter.status.map(JobStatus::as_str),
            host: filter.host.as_deref(),
        }
    }
}

/// The fields of a job that a list shows.
#[derive(Debug, Clone, PartialEq)]
pub struct JobListRow {
    pub head: JobHead,
    /// Time at which it started to run. Records of other programs have a single time, which is used
    /// here.
    pub began_at: Option<Timestamp>,
    pub error: Option<String>,
    /// First line of the prompt.
    pub title: Option<String>,
    /// Tools that the agent was denied.
    pub denied: Option<String>,
    /// Host of its last run, in a fleet with several hosts.
    pub host: Option<String>,
}

/// End of a page of jobs; the next page begins after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobCursor {
    pub started_at: Timestamp,
    pub id: JobId,
}

impl JobCursor {
    pub fn after(head: &JobHead) -> JobCursor {
        JobCursor { started_at: head.started_at, id: head.id.clone() }
    }
}

/// Fields of an execution that only Last Light records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastLightExecution {
    /// Owner of the repository.
    pub owner: Option<String>,
    /// Person or program that triggered it.
    pub triggered_by: Option<String>,
    /// Kind of that actor.
    pub trigger_actor_type: Option<String>,
    /// State of the extensions as JSON.
    pub extension_status: Option<String>,
    /// State of the skills as JSON.
    pub skills_status: Option<String>,
}

impl StateDatabase {
    /// Returns true if a job or another part of a workflow run has the id.
    pub fn is_job_id_used(&self, id: &JobId) -> Result<bool, DatabaseError> {
        // Includes steps, because the table has one primary key for both.
        let found = query_first(&self.conn, EXISTS, [id.as_str()], "look up a job", |_| Ok(()))?;
        Ok(found.is_some())
    }

    /// Returns a page of jobs, newest first, continuing after `before`.
    pub fn jobs(
        &self,
        filter: &JobFilter,
        before: Option<&JobCursor>,
        limit: usize,
    ) -> Result<Vec<JobHead>, DatabaseError> {
        let lines = self.job_list_rows(filter, before, limit)?;
        Ok(lines.into_iter().map(|line| line.head).collect())
    }

    /// Returns the same page with all fields that a list shows, in one statement.
    pub fn job_list_rows(
        &self,
        filter: &JobFilter,
        before: Option<&JobCursor>,
        limit: usize,
    ) -> Result<Vec<JobListRow>, DatabaseError> {
        let keys = JobPageKeys::of(filter);
        self.page(page_statement(filter), keys, before, filter.since, limit)
    }

    /// Returns a page of the jobs that ran in a session, newest first.
    pub fn jobs_of_session(
        &self,
        session: &AgentSessionId,
        before: Option<&JobCursor>,
        limit: usize,
    ) -> Result<Vec<JobHead>, DatabaseError> {
        let keys = JobPageKeys { key: Some(session.as_str()), ..JobPageKeys::default() };
        let page = self.page(PAGE_OF_SESSION, keys, before, None, limit)?;
        Ok(page.into_iter().map(|line| line.head).collect())
    }

    fn page(
        &self,
        sql: &'static str,
        keys: JobPageKeys<'_>,
        before: Option<&JobCursor>,
        since: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<JobListRow>, DatabaseError> {
        // A caller may ask for everything, so the capacity is not taken from the limit alone.
        let mut page = Vec::with_capacity(limit.min(PAGE_CAPACITY));
        self.visit_rows(sql, keys, before, limit, |row| {
            let line = read_line(row)?;
            // Newest first, so all later rows are older too. A lower bound in the SQL would make
            // SQLite choose the index of one filter although there is an index of both.
            if since.is_some_and(|since| line.head.started_at < since) {
                return Ok::<_, DatabaseError>(ControlFlow::Break(()));
            }
            page.push(line);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(page)
    }

    /// Calls `visit` with each row of a page, until it breaks or fails.
    pub(super) fn visit_rows<E: From<DatabaseError>>(
        &self,
        sql: &'static str,
        JobPageKeys { key, status, host }: JobPageKeys<'_>,
        before: Option<&JobCursor>,
        limit: usize,
        mut visit: impl FnMut(&SqlRow<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let attempt = "list jobs";
        let at = before.map_or(SORTS_LAST.to_owned(), |cursor| iso_millis(cursor.started_at));
        let id = before.map_or(SORTS_LAST, |cursor| cursor.id.as_str());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.conn.visit(sql, params![key, status, at, id, host, limit], attempt, |row| {
            Ok(visit(row)?.is_continue())
        })
    }

    /// Counts the jobs that match a filter: from counters, or over an index if `since` or `host` is set.
    pub fn count_jobs(&self, filter: &JobFilter) -> Result<i64, DatabaseError> {
        let agent = filter.agent.as_deref();
        let status = filter.status.map(JobStatus::as_str);
        if let Some(host) = &filter.host {
            return self.count_jobs_of_host(filter, host);
        }
        let Some(since) = filter.since else {
            return counters::total(&self.conn, counters::CounterKind::Job, agent, status);
        };
        let sql = match (agent, status) {
            (None, None) => COUNT_SINCE,
            (Some(_), None) => COUNT_SINCE_OF_AGENT,
            (None, Some(_)) => COUNT_SINCE_OF_STATUS,
            (Some(_), Some(_)) => COUNT_SINCE_OF_AGENT_STATUS,
        };
        let attempt = "count jobs";
        let count = query_first(
            &self.conn,
            sql,
            params![agent, status, iso_millis(since)],
            attempt,
            |row| row.get(0).attempt(attempt),
        )?;
        Ok(count.unwrap_or(0))
    }

    fn count_jobs_of_host(&self, filter: &JobFilter, host: &str) -> Result<i64, DatabaseError> {
        let sql = match (&filter.agent, filter.status) {
            (None, None) => COUNT_SINCE_OF_HOST,
            (Some(_), None) => COUNT_SINCE_OF_HOST_AGENT,
            (None, Some(_)) => COUNT_SINCE_OF_HOST_STATUS,
            (Some(_), Some(_)) => COUNT_SINCE_OF_HOST_AGENT_STATUS,
        };
        // Every time is after the empty text.
        let since = filter.since.map(iso_millis).unwrap_or_default();
        let values = params![filter.agent, filter.status.map(JobStatus::as_str), since, host];
        let attempt = "count jobs";
        let count =
            query_first(&self.conn, sql, values, attempt, |row| row.get(0).attempt(attempt))?;
        Ok(count.unwrap_or(0))
    }

    /// Counts the jobs of a status that were requested within a time span.
    pub fn count_jobs_between(
        &self,
        status: JobStatus,
        from: Timestamp,
        until: Timestamp,
    ) -> Result<i64, DatabaseError> {
        let attempt = "count jobs of a span";
        let params = params![status.as_str(), iso_millis(from), iso_millis(until)];
        let count = query_first(&self.conn, COUNT_SINCE_UNTIL_OF_STATUS, params, attempt, |row| {
            row.get(0).attempt(attempt)
        })?;
        Ok(count.unwrap_or(0))
    }

    /// Returns the fields of a job that a list shows, without reading its prompt.
    pub fn job_list_row(&self, id: &JobId) -> Result<Option<JobListRow>, DatabaseError> {
        query_first(&self.conn, LINE, [id.as_str()], "read a job", read_line)
    }

    /// Returns the position of a job in lists.
    pub fn job_cursor(&self, id: &JobId) -> Result<Option<JobCursor>, DatabaseError> {
        let started_at = query_first(&self.conn, CURSOR, [id.as_str()], "find a job", |row| {
            ColumnReader::new("executions", row).time()
        })?;
        Ok(started_at.map(|started_at| JobCursor { started_at, id: id.clone() }))
    }

    pub fn job(&self, id: &JobId) -> Result<Option<Job>, DatabaseError> {
        query_first(&self.conn, JOB, [id.as_str()], "read a job", read_job)
    }

    /// Finds a job by its id, a unique prefix, or a unique beginning of its random end.
    pub fn find_job(&self, text: &str) -> Result<Job, IdLookupError> {
        if let Ok(id) = text.parse::<JobId>()
            && let Some(job) = self.job(&id)?
        {
            return Ok(job);
        }
        let unknown = || IdLookupError::Unknown { what: "job", text: text.to_owned() };
        let mut ids = self.job_ids_with_prefix(text, CANDIDATES_MAX + 1)?;
        if ids.is_empty() {
            ids = self.job_ids_by_end(text, CANDIDATES_MAX + 1)?;
        }
        // One candidate more than is shown, so that the message can say that there are more.
        match ids.len() {
            0 => Err(unknown()),
            1 => self.job(&ids.remove(0))?.ok_or_else(unknown),
            _ => Err(IdLookupError::Ambiguous {
                text: text.to_owned(),
                candidates: ids.iter().map(ToString::to_string).collect(),
            }),
        }
    }

    /// Lists the job ids that start with `prefix`, in order of the ids.
    pub fn job_ids_with_prefix(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<JobId>, DatabaseError> {
        // An empty prefix matches every job, which is never meant.
        if prefix.is_empty() {
            return Ok(Vec::new());
        }
        let end = format!("{prefix}{SORTS_LAST}");
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        query_all(&self.conn, IDS_FROM, params![prefix, end, limit], "look up a job", |row| {
            ColumnReader::new("executions", row).parsed()
        })
    }

    /// Lists the job ids with a random end that starts with `text`.
    pub fn job_ids_by_end(&self, text: &str, limit: usize) -> Result<Vec<JobId>, DatabaseError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let end = format!("{text}{SORTS_LAST}");
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        query_all(&self.conn, IDS_FROM_END, params![text, end, limit], "look up a job", |row| {
            ColumnReader::new("executions", row).parsed()
        })
    }

    /// Lists the ids of the jobs that ran in a session, oldest first.
    pub fn job_ids_of_session(
        &self,
        session: &AgentSessionId,
    ) -> Result<Vec<JobId>, DatabaseError> {
        query_all(&self.conn, IDS_OF_SESSION, [session.as_str()], "list a session's jobs", |row| {
            ColumnReader::new("executions", row).parsed()
        })
    }

    /// Lists the ids of the jobs that a job started.
    pub fn jobs_spawned_by(&self, job: &JobId) -> Result<Vec<JobId>, DatabaseError> {
        query_all(&self.conn, SPAWNED_BY, [job.as_str()], "list a job's child jobs", |row| {
            ColumnReader::new("executions", row).parsed()
        })
    }

    pub fn newest_job(&self, agent: &str) -> Result<Option<JobHead>, DatabaseError> {
        let filter = JobFilter { agent: Some(agent.to_owned()), ..JobFilter::default() };
        Ok(self.jobs(&filter, None, 1)?.pop())
    }

    pub fn running_jobs(&self) -> Result<Vec<JobHead>, DatabaseError> {
        let filter = JobFilter { status: Some(JobStatus::Running), ..JobFilter::default() };
        self.jobs(&filter, None, usize::MAX)
    }
}

/// Returns the statement for the pages of a list.
pub(super) fn page_statement(filter: &JobFilter) -> &'static str {
    match (&filter.agent, filter.status, filter.host.is_some()) {
        (None, None, false) => PAGE,
        (Some(_), None, false) => PAGE_OF_AGENT,
        (None, Some(_), false) => PAGE_OF_STATUS,
        (Some(_), Some(_), false) => PAGE_OF_AGENT_STATUS,
        (None, None, true) => PAGE_OF_HOST,
        (Some(_), None, true) => PAGE_OF_HOST_AGENT,
        (None, Some(_), true) => PAGE_OF_HOST_STATUS,
        (Some(_), Some(_), true) => PAGE_OF_HOST_AGENT_STATUS,
    }
}

fn read_head(columns: &mut ColumnReader<'_, '_>) -> Result<JobHead, DatabaseError> {
    Ok(JobHead {
        id: columns.parsed()?,
        agent: columns.get()?,
        schedule: columns.get()?,
        // Other programs have trigger types that Heeler does not know; their words are kept.
        trigger_type: TriggerType::from_word(&columns.get::<String>()?),
        status: columns.parsed()?,
        exit_reason: columns.optional_parsed::<ExitReason>()?,
        started_at: columns.time()?,
        finished_at: columns.optional_time()?,
        duration_ms: columns.get()?,
        cost_usd: columns.get()?,
        session_id: columns.optional_parsed()?,
        summary: columns.get()?,
    })
}

fn read_line(row: &SqlRow<'_>) -> Result<JobListRow, DatabaseError> {
    let mut columns = ColumnReader::new("executions", row);
    let head = read_head(&mut columns)?;
    // Imported jobs have no separate time at which their run began.
    let (run, is_foreign) = (columns.optional_time()?, columns.flag()?);
    let began_at = run.or_else(|| is_foreign.then_some(head.started_at));
    let (error, title, denied) = (columns.get()?, columns.get()?, columns.get()?);
    Ok(JobListRow { head, began_at, error, title, denied, host: columns.get()? })
}

fn read_job(row: &SqlRow<'_>) -> Result<Job, DatabaseError> {
    let mut columns = ColumnReader::new("executions", row);
    let head = read_head(&mut columns)?;
    let mut job = Job {
        head,
        version: columns.get()?,
        run_started_at: columns.optional_time()?,
        trigger_id: columns.get()?,
        skill: columns.get()?,
        repo: columns.get()?,
        issue_number: columns.get()?,
        workflow_run_id: columns.get()?,
        phase: None,
        part: None,
        seq: None,
        decision: None,
        forked_from: columns.optional_parsed()?,
        stop_reason: columns.get()?,
        interrupted: columns.flag()?,
        restart_count: columns.get()?,
        usage: UsageTotals {
            num_turns: columns.get()?,
            api_duration_ms: columns.get()?,
            input_tokens: columns.get()?,
            cache_creation_input_tokens: columns.get()?,
            cache_read_input_tokens: columns.get()?,
            output_tokens: columns.get()?,
            ..UsageTotals::default()
        },
        working_directory: columns.get::<Option<String>>()?.map(Into::into),
        origin: columns.get()?,
        error: columns.get()?,
        // Columns of unbounded size are last in the row, so they are read after all others.
        prompt: None,
        output_text: None,
    };
    if let Some(text) = columns.get::<Option<String>>()? {
        job.usage.per_model = serde_json::from_str(&text)
            .map_err(|error| columns.bad(format!("usage_json: {error}")))?;
    }
    job.prompt = columns.get()?;
    job.output_text = columns.get()?;
    job.phase = columns.get()?;
    job.part = columns.optional_parsed()?;
    job.seq = columns.optional_count()?;
    job.decision = columns.optional_parsed()?;
    Ok(job)
}

/// The fields that a change needs of the row it changes.
pub(crate) struct JobRowState {
    pub(crate) agent: String,
    pub(crate) status: String,
    pub(crate) version: i64,
    pub(crate) session_id: Option<AgentSessionId>,
}

pub(crate) fn load_row_state(
    conn: &DatabaseConnection,
    id: &JobId,
) -> Result<Option<JobRowState>, DatabaseError> {
    query_first(conn, KEY, [id.as_str()], "read a job", |row| {
        let mut columns = ColumnReader::new("executions", row);
        Ok(JobRowState {
            agent: columns.get()?,
            status: columns.get()?,
            version: columns.get()?,
            session_id: columns.optional_parsed()?,
        })
    })
}

/// Inserts; returns true if the id was new.
pub(crate) fn insert(conn: &DatabaseConnection, job: &Job) -> Result<bool, DatabaseError> {
    Ok(bind(conn, INSERT, job, "insert a job")? == 1)
}

/// Updates; returns true if the version was current.
pub(crate) fn update(conn: &DatabaseConnection, job: &Job) -> Result<bool, DatabaseError> {
    Ok(bind(conn, UPDATE, job, "update a job")? == 1)
}

/// Records the host of a job's last run, as lists search it.
pub(crate) fn set_host(
    conn: &DatabaseConnection,
    id: &JobId,
    host: &str,
) -> Result<(), DatabaseError> {
    execute(conn, SET_HOST, params![id.as_str(), host], "record the host of a job").map(|_| ())
}

pub(crate) fn set_lastlight_fields(
    conn: &DatabaseConnection,
    id: &JobId,
    extra: &LastLightExecution,
) -> Result<(), DatabaseError> {
    let LastLightExecution {
        owner,
        triggered_by,
        trigger_actor_type,
        extension_status,
        skills_status,
    } = extra;
    let params = params![
        id.as_str(),
        owner,
        triggered_by,
        trigger_actor_type,
        extension_status,
        skills_status
    ];
    execute(conn, SET_FOREIGN, params, "complete an imported execution").map(|_| ())
}

/// Counts jobs by agent and status from the rows, to check the counters.
pub(crate) fn real_counts(
    conn: &DatabaseConnection,
) -> Result<Vec<(String, String, i64)>, DatabaseError> {
    query_all(conn, COUNTS, [], "count jobs", |row| {
        let mut columns = ColumnReader::new("executions", row);
        Ok((columns.get()?, columns.get()?, columns.get()?))
    })
}

fn bind(
    conn: &DatabaseConnection,
    sql: &'static str,
    job: &Job,
    attempt: &'static str,
) -> Result<usize, DatabaseError> {
    let JobHead { id, agent, schedule, trigger_type, status, exit_reason, .. } = &job.head;
    let usage = &job.usage;
    let per_model = (!usage.per_model.is_empty())
        .then(|| serde_json::to_string(&usage.per_model).expect("a map of JSON values is JSON"));
    // `success` stays NULL until the job ends, as Last Light's schema has it.
    let success = status.is_final().then(|| i64::from(*status == JobStatus::Completed));
    let params = named_params! {
        ":id": id.as_str(),
        ":agent": agent,
        ":schedule": schedule,
        ":trigger_type": trigger_type.as_str(),
        ":status": status.as_str(),
        ":exit_reason": exit_reason.map(ExitReason::as_str),
        ":started_at": iso_millis(job.head.started_at),
        ":finished_at": job.head.finished_at.map(iso_millis),
        ":duration_ms": job.head.duration_ms,
        ":cost_usd": job.head.cost_usd,
        ":session_id": job.head.session_id.as_ref().map(AgentSessionId::as_str),
        ":version": job.version,
        ":run_started_at": job.run_started_at.map(iso_millis),
        ":success": success,
        ":interrupted": i64::from(job.interrupted),
        ":restart_count": job.restart_count,
        ":forked_from": job.forked_from.as_ref().map(JobId::as_str),
        ":stop_reason": job.stop_reason,
        ":turns": usage.num_turns,
        ":input_tokens": usage.input_tokens,
        ":cache_creation_input_tokens": usage.cache_creation_input_tokens,
        ":cache_read_input_tokens": usage.cache_read_input_tokens,
        ":output_tokens": usage.output_tokens,
        ":api_duration_ms": usage.api_duration_ms,
        ":issue_number": job.issue_number,
        ":workflow_run_id": job.workflow_run_id,
        ":skill": job.skill,
        ":repo": job.repo,
        ":origin": job.origin,
        ":working_directory": job.working_directory.as_ref().map(|path| path.as_str()),
        ":trigger_id": job.trigger_id,
        ":summary": job.head.summary.as_deref().map(bounded_summary),
        ":error": job.error,
        ":usage_json": per_model,
        ":prompt": job.prompt,
        // Later phases insert the output into prompts, so its size is limited.
        ":output_text": job.output_text.as_deref().map(truncate_output),
        ":phase": job.phase,
        ":part": job.part.map(|part| part.to_string()),
        ":seq": job.seq.map(integer),
        ":decision": job.decision.map(PartDecision::as_str),
    };
    execute(conn, sql, params, attempt)
}

/// Truncates a summary at a character boundary, so that lists stay small; the transcript has
/// the full text.
fn bounded_summary(summary: &str) -> &str {
    &summary[..summary.floor_char_boundary(SUMMARY_BYTES_MAX)]
}
