//! Runs: attempts to execute a job.

use camino::Utf8Path;
use heeler_model::run::{ResultPublicKey, RunResult, TranscriptHashRecord, file};
use heeler_model::{AgentSessionId, JobId, JobStatus, RunId, iso_millis};
use jiff::Timestamp;
use jiff::civil::Date;
use rusqlite::{named_params, params};

use crate::layout::StateDir;
use heeler_transcript::LockFile;

use super::connection::{DatabaseConnection, SqlRow};
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

macro_rules! columns {
    () => {
        "id, job_id, attempt, host, epoch, status, created_at, started_at, finished_at, committed, \
         version, result_key"
    };
}

sql! {
    RUN = concat!("SELECT ", columns!(), " FROM runs WHERE id = ?1");
    RUNS_OF_JOB = concat!("SELECT ", columns!(), " FROM runs WHERE job_id = ?1 ORDER BY attempt");
    // Uncommitted runs are few, and a partial index holds only them.
    UNCOMMITTED = concat!("SELECT ", columns!(), " FROM runs WHERE committed = 0 ORDER BY id");
    IDS = "SELECT id FROM runs";
    RESULT = "SELECT id, result FROM runs WHERE id = ?1 AND result IS NOT NULL";
    // The secret of a run that has ended identifies nobody.
    CAPABILITY = "SELECT capability FROM runs WHERE id = ?1 AND committed = 0 \
        AND capability IS NOT NULL";
    ASSIGNMENT = "SELECT term, assignment FROM runs WHERE id = ?1 AND assignment IS NOT NULL";
    SET_ASSIGNMENT = "UPDATE runs SET assignment = ?2 WHERE id = ?1";
    TERM = "SELECT term FROM runs WHERE id = ?1";
    RAISE_TERM = "UPDATE runs SET term = term + 1 WHERE id = ?1";
    // The newest job of a session has its files; `started_at` and `id` are the order of the index.
    SESSION_JOB = "SELECT id FROM executions WHERE session_id = ?1 ORDER BY started_at DESC, id DESC \
        LIMIT 1";
    SET_CAPABILITY = "UPDATE runs SET capability = ?2 WHERE id = ?1";
    SET_SPENT = "UPDATE runs SET spent = ?2, spent_by = ?3, spent_day = ?4 WHERE id = ?1";
    SPENT = "SELECT spent_by, spent_day, spent FROM runs WHERE id = ?1 AND spent_day IS NOT NULL";
    SPENT_BY_DAY = "SELECT spent_by, spent_day, CAST(SUM(spent) AS BIGINT) FROM runs WHERE spent > 0 \
        GROUP BY spent_day, spent_by";
    SPENT_BY_JOB = "SELECT CAST(COALESCE(SUM(spent), 0) AS BIGINT) FROM runs WHERE job_id = ?1";
    // For `heeler doctor`.
    TRANSCRIPT_PARTS = "SELECT job_id, json_extract(result, '$.transcript') FROM runs \
        WHERE committed = 1 AND status IN ('finished', 'interrupted') ORDER BY job_id, attempt";
    TRANSCRIPT_PARTS_OF_JOB = "SELECT job_id, json_extract(result, '$.transcript') FROM runs \
        WHERE job_id = ?1 AND committed = 1 AND status IN ('finished', 'interrupted') \
        ORDER BY attempt";
    SESSION_PARTS = "SELECT sessions.log_path, json_extract(runs.result, '$.session_transcript') \
        FROM runs JOIN sessions \
        ON sessions.agent_session_id = json_extract(runs.result, '$.session.id') \
        WHERE runs.committed = 1 AND runs.status = 'finished' AND sessions.log_path IS NOT NULL \
        ORDER BY sessions.log_path, runs.created_at";
    IMPOSSIBLE_RUNS = "SELECT id FROM runs WHERE finished_at < started_at OR spent < 0 ORDER BY id";
    IMPOSSIBLE_JOBS = "SELECT id FROM executions WHERE finished_at < started_at \
        OR cost_usd < 0 OR duration_ms < 0 OR input_tokens < 0 OR output_tokens < 0 ORDER BY id";
    UNEARNED_SUCCESS = "SELECT executions.id FROM executions JOIN runs ON runs.job_id = executions.id \
        WHERE executions.status = 'completed' AND runs.committed = 1 \
        AND runs.attempt = (SELECT MAX(attempt) FROM runs WHERE job_id = executions.id) \
        AND json_extract(runs.result, '$.exit_reason') <> 'success' ORDER BY executions.id";
    SET_RESULT = "UPDATE runs SET result = ?2 WHERE id = ?1";
    INSERT = "INSERT INTO runs (id, job_id, attempt, host, epoch, status, created_at, started_at, \
        finished_at, committed, version, result_key) VALUES (:id, :job_id, :attempt, :host, :epoch, \
        :status, :created_at, :started_at, :finished_at, :committed, :version, :result_key) \
        ON CONFLICT(id) DO NOTHING";
    UPDATE = "UPDATE runs SET job_id = :job_id, attempt = :attempt, host = :host, epoch = :epoch, \
        status = :status, created_at = :created_at, started_at = :started_at, \
        finished_at = :finished_at, committed = :committed, version = :version + 1 \
        WHERE id = :id AND version = :version";
}

/// One attempt to execute a job, on one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRecord {
    /// Id of the run, and name of its directory.
    pub id: RunId,
    pub job_id: JobId,
    /// Number of the attempt, from 1.
    pub attempt: i64,
    pub host: String,
    /// Epoch of the state when the run was created.
    pub epoch: i64,
    /// A status of the runner protocol: `created`, `running`, `finished`, …
    pub status: String,
    pub created_at: Timestamp,
    /// Time at which the runner started.
    pub started_at: Option<Timestamp>,
    /// Time at which the runner ended.
    pub finished_at: Option<Timestamp>,
    /// True if the result is in the database; until then the run's directory is authoritative.
    pub committed: bool,
    /// Incremented by each change.
    pub version: i64,
    /// Public key of the runner: a result counts only with its signature. `None` for runs of
    /// earlier releases and for adopted runs. It never changes.
    pub result_key: Option<ResultPublicKey>,
}

impl RunRecord {
    /// Returns true if another host of the fleet executes the run. A run from before the fleet had
    /// several hosts is recognized by its folder.
    pub fn is_elsewhere(&self, dir: &StateDir) -> bool {
        dir.host().is_some_and(|host| self.host != host.name.as_str() && !dir.run(self.id).exists())
    }
}

/// Spending of an agent's runs on a day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunSpendRecord {
    pub(crate) agent: String,
    /// `None` for runs of earlier releases.
    pub(crate) day: Option<Date>,
    pub(crate) micros: i64,
}

/// Amount that counts for a run, by the day of its reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedRunCost {
    pub agent: String,
    pub day: Date,
    pub micros: i64,
}

impl StateDatabase {
    pub fn run(&self, id: RunId) -> Result<Option<RunRecord>, DatabaseError> {
        query_first(&self.conn, RUN, [id.to_string()], "read a run", read)
    }

    pub fn runs_of_job(&self, job: &JobId) -> Result<Vec<RunRecord>, DatabaseError> {
        query_all(&self.conn, RUNS_OF_JOB, [job.as_str()], "list a job's runs", read)
    }

    /// Returns true if a process is working on a job: only then is the lock of one of its runs
    /// held.
    pub fn is_job_alive(&self, dir: &StateDir, job: &JobId) -> Result<bool, DatabaseError> {
        // The runner holds the lock of its run, and the agent inherits it.
        let is_alive = |run: &RunRecord| match run.is_elsewhere(dir) {
            // Only its own host can see its processes.
            true => !run.committed,
            false => is_run_alive(&dir.run(run.id)),
        };
        Ok(self.runs_of_job(job)?.iter().any(is_alive))
    }

    /// Returns true if a job is recorded as running, but no process works on it and none is about
    /// to. Must not be called by the writer itself, because it probes the writer's lock.
    pub fn is_job_orphaned(&self, dir: &StateDir, job: &JobId) -> Result<bool, DatabaseError> {
        // A process that starts or commits a run is the writer until the run's lock is held or its
        // result is recorded. So the writer's lock must be probed before the locks of the runs.
        let is_written = !matches!(LockFile::probe(&dir.lock()), Ok(None));
        let has = |folder: &Utf8Path, name: &str| folder.join(name).exists();
        let may_change = |folder: &Utf8Path| {
            // A run that has not started, or that has a result, is about to be changed by the
            // writer.
            is_written && (!has(folder, file::STARTED) || has(folder, file::RESULT))
        };
        let is_cared_for = |run: &RunRecord| {
            let folder = dir.run(run.id);
            run.is_elsewhere(dir) || is_run_alive(&folder) || may_change(&folder)
        };
        let runs = self.runs_of_job(job)?;
        if runs.iter().any(|run| !run.committed && is_cared_for(run)) {
            return Ok(false);
        }
        // The job may have ended since the caller read its record.
        Ok(self.job(job)?.is_some_and(|job| job.head.status == JobStatus::Running))
    }

    pub fn run_ids(&self) -> Result<Vec<RunId>, DatabaseError> {
        query_all(&self.conn, IDS, [], "list runs", |row| ColumnReader::new("runs", row).parsed())
    }

    /// Returns the result of a run, once it is committed.
    pub fn run_result(&self, id: RunId) -> Result<Option<RunResult>, DatabaseError> {
        query_first(&self.conn, RESULT, [id.to_string()], "read a run's result", |row| {
            let mut columns = ColumnReader::new("runs", row);
            // The id is read only for the message about a damaged row.
            let (_id, text): (String, String) = (columns.get()?, columns.get()?);
            serde_json::from_str(&text).map_err(|error| columns.bad(format!("result: {error}")))
        })
    }

    /// Returns the hash of the secret with which processes of an uncommitted run identify
    /// themselves.
    pub fn run_capability(&self, id: RunId) -> Result<Option<String>, DatabaseError> {
        query_first(&self.conn, CAPABILITY, [id.to_string()], "read a run's capability", |row| {
            ColumnReader::new("runs", row).get()
        })
    }

    /// Returns the amount that counts for a run; `None` before its end.
    pub fn run_spend(&self, id: RunId) -> Result<Option<CountedRunCost>, DatabaseError> {
        query_first(&self.conn, SPENT, [id.to_string()], "read the cost of a run", |row| {
            let mut columns = ColumnReader::new("runs", row);
            let agent = columns.get::<Option<String>>()?.unwrap_or_default();
            Ok(CountedRunCost { agent, day: columns.parsed()?, micros: columns.get()? })
        })
    }

    /// Returns the term of a run, and what another host needs to start it.
    pub fn run_assignment(&self, id: RunId) -> Result<Option<(i64, String)>, DatabaseError> {
        query_first(&self.conn, ASSIGNMENT, [id.to_string()], "read an assignment", |row| {
            let mut columns = ColumnReader::new("runs", row);
            Ok((columns.get()?, columns.get()?))
        })
    }

    /// Returns the term of a run; 0 for one that is not on record.
    pub fn run_term(&self, id: RunId) -> Result<i64, DatabaseError> {
        let term = query_first(&self.conn, TERM, [id.to_string()], "read a run's term", |row| {
            ColumnReader::new("runs", row).get()
        })?;
        Ok(term.unwrap_or(0))
    }

    /// Returns the host that has the files of a session: the one of its last run, unless it was moved
    /// since.
    pub fn session_host(&self, session: &AgentSessionId) -> Result<Option<String>, DatabaseError> {
        let Some(run) = self.last_session_run(session)? else { return Ok(None) };
        let moved = self.native_session_move(session)?;
        let moved = moved.filter(|moved| moved.after_run == run.id.to_string());
        Ok(Some(moved.map_or(run.host, |moved| moved.host().to_owned())))
    }

    /// Returns the last run of the newest job of a session.
    pub fn last_session_run(
        &self,
        session: &AgentSessionId,
    ) -> Result<Option<RunRecord>, DatabaseError> {
        let attempt = "find the host of a session";
        let job = query_first(&self.conn, SESSION_JOB, [session.as_str()], attempt, |row| {
            ColumnReader::new("executions", row).parsed::<JobId>()
        })?;
        let Some(job) = job else { return Ok(None) };
        Ok(self.runs_of_job(&job)?.pop())
    }

    /// Returns the amount spent by the runs of a job, in millionths of a dollar.
    pub fn spent_by_job(&self, job: &JobId) -> Result<i64, DatabaseError> {
        let spent =
            query_first(&self.conn, SPENT_BY_JOB, [job.as_str()], "sum up the spending", |row| {
                ColumnReader::new("runs", row).get()
            })?;
        Ok(spent.unwrap_or(0))
    }

    /// Lists the runs without a result in the database, oldest first.
    pub fn uncommitted_runs(&self) -> Result<Vec<RunRecord>, DatabaseError> {
        query_all(&self.conn, UNCOMMITTED, [], "list uncommitted runs", read)
    }
}

/// Returns true if a process is working on the run in this directory. A lock that cannot be
/// checked counts as held: a run is never declared dead on a guess.
pub fn is_run_alive(folder: &Utf8Path) -> bool {
    !matches!(LockFile::probe(&folder.join(file::LOCK)), Ok(None))
}

fn read(row: &SqlRow<'_>) -> Result<RunRecord, DatabaseError> {
    let mut columns = ColumnReader::new("runs", row);
    Ok(RunRecord {
        id: columns.parsed()?,
        job_id: columns.parsed()?,
        attempt: columns.get()?,
        host: columns.get()?,
        epoch: columns.get()?,
        status: columns.get()?,
        created_at: columns.time()?,
        started_at: columns.optional_time()?,
        finished_at: columns.optional_time()?,
        committed: columns.flag()?,
        version: columns.get()?,
        result_key: columns.optional_parsed()?,
    })
}

/// Lists the parts of job transcripts that committed runs vouch for, those of each job by attempt.
/// `None` for a run that vouches for nothing.
pub(crate) fn transcript_parts(
    conn: &DatabaseConnection,
) -> Result<Vec<(JobId, Option<TranscriptHashRecord>)>, DatabaseError> {
    query_all(conn, TRANSCRIPT_PARTS, [], "list the transcripts of runs", read_part)
}

fn read_part(row: &SqlRow<'_>) -> Result<(JobId, Option<TranscriptHashRecord>), DatabaseError> {
    let mut columns = ColumnReader::new("runs", row);
    let (job, part) = (columns.parsed()?, columns.get::<Option<String>>()?);
    // A damaged part vouches for nothing; the result itself is checked elsewhere.
    Ok((job, part.and_then(|part| serde_json::from_str(&part).ok())))
}

/// Lists those of one job.
pub(crate) fn transcript_parts_of(
    conn: &DatabaseConnection,
    job: &JobId,
) -> Result<Vec<(JobId, Option<TranscriptHashRecord>)>, DatabaseError> {
    query_all(conn, TRANSCRIPT_PARTS_OF_JOB, [job.as_str()], "list a job's runs", read_part)
}

/// Lists the parts of session transcripts that committed runs vouch for, with the paths of the
/// transcripts.
pub(crate) fn session_parts(
    conn: &DatabaseConnection,
) -> Result<Vec<(String, TranscriptHashRecord)>, DatabaseError> {
    let read = |row: &SqlRow<'_>| {
        let mut columns = ColumnReader::new("runs", row);
        let (log, part) = (columns.get()?, columns.get::<Option<String>>()?);
        Ok(part.and_then(|part| serde_json::from_str(&part).ok()).map(|part| (log, part)))
    };
    let parts = query_all(conn, SESSION_PARTS, [], "list the sessions of runs", read)?;
    Ok(parts.into_iter().flatten().collect())
}

/// Lists runs with times or amounts that cannot be true.
pub(crate) fn impossible_runs(conn: &DatabaseConnection) -> Result<Vec<String>, DatabaseError> {
    list_ids(conn, IMPOSSIBLE_RUNS)
}

/// Lists jobs with times, amounts or counts that cannot be true.
pub(crate) fn impossible_jobs(conn: &DatabaseConnection) -> Result<Vec<String>, DatabaseError> {
    list_ids(conn, IMPOSSIBLE_JOBS)
}

/// Lists completed jobs with a last run that did not succeed.
pub(crate) fn unearned_successes(conn: &DatabaseConnection) -> Result<Vec<String>, DatabaseError> {
    list_ids(conn, UNEARNED_SUCCESS)
}

fn list_ids(conn: &DatabaseConnection, sql: &'static str) -> Result<Vec<String>, DatabaseError> {
    query_all(conn, sql, [], "check the records", |row| ColumnReader::new("runs", row).get())
}

/// Sums up what the runs spent, by day and agent.
pub(crate) fn spent_by_day(
    conn: &DatabaseConnection,
) -> Result<Vec<RunSpendRecord>, DatabaseError> {
    query_all(conn, SPENT_BY_DAY, [], "sum up the spending of runs", |row| {
        let mut columns = ColumnReader::new("runs", row);
        // An agent's name is missing only if somebody removed it.
        let agent = columns.get::<Option<String>>()?.unwrap_or_default();
        Ok(RunSpendRecord { agent, day: columns.optional_parsed()?, micros: columns.get()? })
    })
}

/// Inserts; returns true if the id was new.
pub(crate) fn insert(conn: &DatabaseConnection, run: &RunRecord) -> Result<bool, DatabaseError> {
    let key = run.result_key.as_ref().map(ToString::to_string);
    let params = named_params! {
        ":id": run.id.to_string(),
        ":job_id": run.job_id.as_str(),
        ":attempt": run.attempt,
        ":host": run.host,
        ":epoch": run.epoch,
        ":status": run.status,
        ":created_at": iso_millis(run.created_at),
        ":started_at": run.started_at.map(iso_millis),
        ":finished_at": run.finished_at.map(iso_millis),
        ":committed": i64::from(run.committed),
        ":version": run.version,
        ":result_key": key,
    };
    Ok(execute(conn, INSERT, params, "insert a run")? == 1)
}

/// Updates; returns true if the version was current.
pub(crate) fn update(conn: &DatabaseConnection, run: &RunRecord) -> Result<bool, DatabaseError> {
    let params = named_params! {
        ":id": run.id.to_string(),
        ":job_id": run.job_id.as_str(),
        ":attempt": run.attempt,
        ":host": run.host,
        ":epoch": run.epoch,
        ":status": run.status,
        ":created_at": iso_millis(run.created_at),
        ":started_at": run.started_at.map(iso_millis),
        ":finished_at": run.finished_at.map(iso_millis),
        ":committed": i64::from(run.committed),
        ":version": run.version,
    };
    Ok(execute(conn, UPDATE, params, "update a run")? == 1)
}

pub(crate) fn set_spent(
    conn: &DatabaseConnection,
    id: RunId,
    micros: i64,
    agent: &str,
    day: Date,
) -> Result<(), DatabaseError> {
    let params = params![id.to_string(), micros, agent, day.to_string()];
    execute(conn, SET_SPENT, params, "write a run's spending").map(|_| ())
}

pub(crate) fn set_capability(
    conn: &DatabaseConnection,
    id: RunId,
    hash: &str,
) -> Result<(), DatabaseError> {
    let values = params![id.to_string(), hash];
    execute(conn, SET_CAPABILITY, values, "write a run's capability").map(|_| ())
}

pub(crate) fn set_assignment(
    conn: &DatabaseConnection,
    id: RunId,
    assignment: &str,
) -> Result<(), DatabaseError> {
    let values = params![id.to_string(), assignment];
    execute(conn, SET_ASSIGNMENT, values, "assign a run").map(|_| ())
}

pub(crate) fn raise_term(conn: &DatabaseConnection, id: RunId) -> Result<(), DatabaseError> {
    execute(conn, RAISE_TERM, [id.to_string()], "raise a run's term").map(|_| ())
}

pub(crate) fn set_result(
    conn: &DatabaseConnection,
    id: RunId,
    result: &RunResult,
) -> Result<(), DatabaseError> {
    let text = serde_json::to_string(result).expect("a result is JSON");
    execute(conn, SET_RESULT, params![id.to_string(), text], "write a run's result").map(|_| ())
}
