//! The queue of jobs, and the parked credentials.

use heeler_model::fleet::{ParkedCredentialRecord, QueuedJobRecord};
use heeler_model::{JobId, iso_millis};
use rusqlite::params;

use super::connection::{DatabaseConnection, SqlRow};
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

sql! {
    // The id breaks ties, so the order is the same after every restart.
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
    // The next two are for `heeler doctor`.
    // Running jobs keep their entry: a run that is cut off continues from it.
    NOT_PENDING = "SELECT queue.job_id FROM queue JOIN executions ON executions.id = queue.job_id \
        WHERE executions.status NOT IN ('pending', 'running') ORDER BY queue.job_id";
    // A job with an unfinished run gets its entry back when the run is settled.
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

impl StateDatabase {
    /// Lists the queue in the order in which its jobs start.
    pub fn queue(&self) -> Result<Vec<QueuedJobRecord>, DatabaseError> {
        query_all(&self.conn, QUEUE, [], "list the queue", read_queued)
    }

    /// Returns the queue entry of a job.
    pub fn queued_job(&self, job: &JobId) -> Result<Option<QueuedJobRecord>, DatabaseError> {
        query_first(&self.conn, QUEUED, [job.as_str()], "read the queue", read_queued)
    }

    /// Lists the parked credentials.
    pub fn parked_credentials(&self) -> Result<Vec<ParkedCredentialRecord>, DatabaseError> {
        query_all(&self.conn, PARKED, [], "list parked credentials", |row| {
            let mut columns = ColumnReader::new("parked", row);
            Ok(ParkedCredentialRecord {
                credential: columns.get()?,
                until: columns.time()?,
                since: columns.time()?,
                reason: columns.get()?,
                job: columns.parsed()?,
            })
        })
    }
}

fn read_queued(row: &SqlRow<'_>) -> Result<QueuedJobRecord, DatabaseError> {
    let mut columns = ColumnReader::new("queue", row);
    Ok(QueuedJobRecord {
        job: columns.parsed()?,
        priority: columns.get()?,
        requested_at: columns.time()?,
        not_before: columns.optional_time()?,
        expires_at: columns.optional_time()?,
        reason: columns.get()?,
        request_json: columns.get()?,
    })
}

pub(crate) fn enqueue(
    conn: &DatabaseConnection,
    queued: &QueuedJobRecord,
) -> Result<(), DatabaseError> {
    let params = params![
        queued.job.as_str(),
        queued.priority,
        iso_millis(queued.requested_at),
        queued.not_before.map(iso_millis),
        queued.expires_at.map(iso_millis),
        queued.reason,
        queued.request_json,
    ];
    execute(conn, ENQUEUE, params, "put a job into the queue").map(|_| ())
}

/// Returns true if the job was in the queue.
pub(crate) fn dequeue(conn: &DatabaseConnection, job: &JobId) -> Result<bool, DatabaseError> {
    Ok(execute(conn, DEQUEUE, [job.as_str()], "take a job out of the queue")? == 1)
}

/// Lists queue entries of jobs that no longer wait.
pub(crate) fn stale_queue_entries(conn: &DatabaseConnection) -> Result<Vec<JobId>, DatabaseError> {
    query_all(conn, NOT_PENDING, [], "compare the queue with the jobs", |row| {
        ColumnReader::new("queue", row).parsed()
    })
}

/// Lists pending jobs that would never start: not in the queue, and without an unfinished run.
pub(crate) fn unqueued_pending_jobs(
    conn: &DatabaseConnection,
) -> Result<Vec<JobId>, DatabaseError> {
    query_all(conn, NOT_QUEUED, [], "compare the jobs with the queue", |row| {
        ColumnReader::new("executions", row).parsed()
    })
}

pub(crate) fn park(
    conn: &DatabaseConnection,
    parked: &ParkedCredentialRecord,
) -> Result<(), DatabaseError> {
    let params = params![
        parked.credential,
        iso_millis(parked.until),
        iso_millis(parked.since),
        parked.reason,
        parked.job.as_str(),
    ];
    execute(conn, PARK, params, "park a credential").map(|_| ())
}

pub(crate) fn unpark(conn: &DatabaseConnection, credential: &str) -> Result<(), DatabaseError> {
    execute(conn, UNPARK, [credential], "unpark a credential").map(|_| ())
}
