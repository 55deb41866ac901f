//! What waits: jobs for their turn, credentials for their quota.

use heeler_model::{JobId, iso_millis};
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::{Columns, Db, DbError, collect, execute, first, sql};

sql! {
    QUEUE = "SELECT job_id, priority, asked_at, not_before, expires_at, reason, wanted FROM queue \
        ORDER BY priority DESC, asked_at, job_id";
    QUEUED = "SELECT job_id, priority, asked_at, not_before, expires_at, reason, wanted FROM queue \
        WHERE job_id = ?1";
    ENQUEUE = "INSERT INTO queue (job_id, priority, asked_at, not_before, expires_at, reason, \
        wanted) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT(job_id) DO UPDATE SET \
        priority = excluded.priority, asked_at = excluded.asked_at, \
        not_before = excluded.not_before, expires_at = excluded.expires_at, \
        reason = excluded.reason, wanted = excluded.wanted";
    DEQUEUE = "DELETE FROM queue WHERE job_id = ?1";
    // These two are for a check-up.
    NOT_PENDING = "SELECT queue.job_id FROM queue JOIN executions ON executions.id = queue.job_id \
        WHERE executions.status NOT IN ('pending', 'running') ORDER BY queue.job_id";
    NOT_QUEUED = "SELECT id FROM executions WHERE status = 'pending' AND step IS NULL \
        AND NOT EXISTS (SELECT 1 FROM queue WHERE queue.job_id = executions.id) \
        AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.job_id = executions.id AND committed = 0) \
        ORDER BY started_at, id";
    PARKED = "SELECT credential, until_at, since_at, reason, job_id FROM parked \
        ORDER BY credential";
    PARK = "INSERT INTO parked (credential, until_at, since_at, reason, job_id) \
        VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT(credential) DO UPDATE SET \
        until_at = excluded.until_at, since_at = excluded.since_at, reason = excluded.reason, \
        job_id = excluded.job_id";
    UNPARK = "DELETE FROM parked WHERE credential = ?1";
}

/// A job that waits for its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queued {
    /// The job.
    pub job: JobId,
    /// The highest goes first.
    pub priority: i64,
    /// Among equals the oldest goes first.
    pub asked_at: Timestamp,
    /// Not before this moment.
    pub not_before: Option<Timestamp>,
    /// Given up at this moment.
    pub expires_at: Option<Timestamp>,
    /// What is wanted, JSON.
    pub wanted: String,
    /// Why it waits.
    pub reason: String,
}

/// A credential whose quota is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// Its name.
    pub credential: String,
    /// When there is quota again.
    pub until: Timestamp,
    /// Since when.
    pub since: Timestamp,
    /// What the service said.
    pub reason: String,
    /// The job that was told so.
    pub job: JobId,
}

impl Db {
    /// Lists the jobs that wait, in the order in which their turn comes.
    pub fn queue(&self) -> Result<Vec<Queued>, DbError> {
        collect(&self.conn, QUEUE, [], "list the queue", read_queued)
    }

    /// Returns a job's place in the queue.
    pub fn queued(&self, job: &JobId) -> Result<Option<Queued>, DbError> {
        first(&self.conn, QUEUED, [job.as_str()], "read the queue", read_queued)
    }

    /// Lists the credentials whose quota is used up.
    pub fn parked(&self) -> Result<Vec<Parked>, DbError> {
        collect(&self.conn, PARKED, [], "list parked credentials", |row| {
            let mut columns = Columns::new("parked", row);
            Ok(Parked {
                credential: columns.get()?,
                until: columns.time()?,
                since: columns.time()?,
                reason: columns.get()?,
                job: columns.word()?,
            })
        })
    }
}

fn read_queued(row: &Row<'_>) -> Result<Queued, DbError> {
    let mut columns = Columns::new("queue", row);
    Ok(Queued {
        job: columns.word()?,
        priority: columns.get()?,
        asked_at: columns.time()?,
        not_before: columns.maybe_time()?,
        expires_at: columns.maybe_time()?,
        reason: columns.get()?,
        wanted: columns.get()?,
    })
}

pub(crate) fn enqueue(conn: &Connection, queued: &Queued) -> Result<(), DbError> {
    let params = params![
        queued.job.as_str(),
        queued.priority,
        iso_millis(queued.asked_at),
        queued.not_before.map(iso_millis),
        queued.expires_at.map(iso_millis),
        queued.reason,
        queued.wanted,
    ];
    execute(conn, ENQUEUE, params, "put a job into the queue").map(|_| ())
}

/// Removes and says whether it was there.
pub(crate) fn dequeue(conn: &Connection, job: &JobId) -> Result<bool, DbError> {
    Ok(execute(conn, DEQUEUE, [job.as_str()], "take a job out of the queue")? == 1)
}

/// Lists jobs in the queue that no longer wait.
pub(crate) fn not_pending(conn: &Connection) -> Result<Vec<JobId>, DbError> {
    collect(conn, NOT_PENDING, [], "compare the queue with the jobs", |row| {
        Columns::new("queue", row).word()
    })
}

/// Lists jobs that wait and that nobody would start: not in the queue, and no run is under way.
pub(crate) fn not_queued(conn: &Connection) -> Result<Vec<JobId>, DbError> {
    collect(conn, NOT_QUEUED, [], "compare the jobs with the queue", |row| {
        Columns::new("executions", row).word()
    })
}

pub(crate) fn park(conn: &Connection, parked: &Parked) -> Result<(), DbError> {
    let params = params![
        parked.credential,
        iso_millis(parked.until),
        iso_millis(parked.since),
        parked.reason,
        parked.job.as_str(),
    ];
    execute(conn, PARK, params, "park a credential").map(|_| ())
}

pub(crate) fn unpark(conn: &Connection, credential: &str) -> Result<(), DbError> {
    execute(conn, UNPARK, [credential], "unpark a credential").map(|_| ())
}
