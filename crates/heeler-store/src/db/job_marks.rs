//! Facts that lists show beside the head of a job: its title, the tools that its agent was denied, and its
//! host. The table `job_marks`.

use heeler_model::{Job, JobId, job_title};
use rusqlite::params;

use super::connection::DatabaseConnection;
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_first, sql};

sql! {
    TITLE_OF_SESSION = "SELECT title FROM executions JOIN job_marks ON job = executions.id \
        WHERE session_id = ?1 ORDER BY started_at, executions.id LIMIT 1";
    INSERT = "INSERT INTO job_marks (job, title) VALUES (?1, ?2) ON CONFLICT(job) DO NOTHING";
    SET_DENIED = "INSERT INTO job_marks (job, denied) VALUES (?1, ?2) \
        ON CONFLICT(job) DO UPDATE SET denied = excluded.denied";
    SET_TITLE = "INSERT INTO job_marks (job, title) VALUES (?1, ?2) \
        ON CONFLICT(job) DO UPDATE SET title = excluded.title";
    SET_HOST = "INSERT INTO job_marks (job, host) VALUES (?1, ?2) \
        ON CONFLICT(job) DO UPDATE SET host = excluded.host";
}

impl StateDatabase {
    /// Returns the title of the first job that ran in a session.
    pub fn session_title(
        &self,
        session: &heeler_model::AgentSessionId,
    ) -> Result<Option<String>, DatabaseError> {
        let attempt = "read the title of a session";
        let title =
            query_first(&self.conn, TITLE_OF_SESSION, [session.as_str()], attempt, |row| {
                ColumnReader::new("job_marks", row).get::<Option<String>>()
            })?;
        Ok(title.flatten())
    }
}

/// Stores the title of a new job.
pub(crate) fn insert(conn: &DatabaseConnection, job: &Job) -> Result<(), DatabaseError> {
    let Some(title) = job.prompt.as_deref().and_then(job_title) else { return Ok(()) };
    execute(conn, INSERT, params![job.head.id.as_str(), title], "title a job").map(|_| ())
}

/// Replaces the title of a job.
pub(crate) fn set_title(
    conn: &DatabaseConnection,
    job: &JobId,
    title: &str,
) -> Result<(), DatabaseError> {
    execute(conn, SET_TITLE, params![job.as_str(), title], "title a job").map(|_| ())
}

/// Stores the host of a job's last run, as lists show it.
pub(crate) fn set_host(
    conn: &DatabaseConnection,
    job: &JobId,
    host: &str,
) -> Result<(), DatabaseError> {
    execute(conn, SET_HOST, params![job.as_str(), host], "mark a job").map(|_| ())
}

/// Stores the tools that a job's agent was denied.
pub(crate) fn set_denied(
    conn: &DatabaseConnection,
    job: &JobId,
    denied: &str,
) -> Result<(), DatabaseError> {
    execute(conn, SET_DENIED, params![job.as_str(), denied], "mark a job").map(|_| ())
}
