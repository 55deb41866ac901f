//! Pages of jobs in the text of their rows, for replies that copy it at once. Start at
//! [`StateDatabase::visit_job_list`].

use std::ops::ControlFlow;

use heeler_model::{AgentSessionId, ExitReason, JobId, JobStatus};

use super::connection::SqlRow;
use super::jobs::{JobCursor, JobFilter, JobPageKeys, page_statement};
use super::{ColumnReader, DatabaseError, StateDatabase};

/// The fields of a job that a list shows, in the text of its row. Times are not parsed.
#[derive(Debug, Clone, PartialEq)]
pub struct JobListText<'r> {
    pub id: JobId,
    pub agent: &'r str,
    pub schedule: Option<&'r str>,
    pub trigger_type: &'r str,
    pub status: JobStatus,
    pub exit_reason: Option<ExitReason>,
    pub asked_at: &'r str,
    pub began_at: Option<&'r str>,
    pub finished_at: Option<&'r str>,
    pub duration_ms: Option<i64>,
    pub cost_usd: Option<f64>,
    pub session_id: Option<AgentSessionId>,
    pub summary: Option<&'r str>,
    pub title: Option<&'r str>,
    pub denied: Option<&'r str>,
    pub host: Option<&'r str>,
}

impl StateDatabase {
    /// Calls `visit` with each job of a page, without copies of its text. `since` must be absent.
    pub fn visit_job_list<E: From<DatabaseError>>(
        &self,
        filter: &JobFilter,
        before: Option<&JobCursor>,
        limit: usize,
        mut visit: impl FnMut(JobListText<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let keys = JobPageKeys::of(filter);
        self.visit_rows(page_statement(filter), keys, before, limit, |row| {
            visit(read_line_text(row)?)?;
            Ok(ControlFlow::Continue(()))
        })
    }
}

/// Reads the columns of a page.
fn read_line_text<'r>(row: &'r SqlRow<'_>) -> Result<JobListText<'r>, DatabaseError> {
    let mut columns = ColumnReader::new("executions", row);
    let (id, agent, schedule) = (columns.parsed()?, columns.required_text()?, columns.text()?);
    let trigger_type = columns.required_text()?;
    let (status, exit_reason) = (columns.parsed()?, columns.optional_parsed()?);
    let (asked_at, finished_at) = (columns.required_text()?, columns.text()?);
    let (duration_ms, cost_usd) = (columns.get()?, columns.get()?);
    let (session_id, summary) = (columns.optional_parsed()?, columns.text()?);
    let (run, is_foreign) = (columns.text()?, columns.flag()?);
    let (_error, title, denied) = (columns.text()?, columns.text()?, columns.text()?);
    Ok(JobListText {
        id,
        agent,
        schedule,
        trigger_type,
        status,
        exit_reason,
        asked_at,
        began_at: run.or_else(|| is_foreign.then_some(asked_at)),
        finished_at,
        duration_ms,
        cost_usd,
        session_id,
        summary,
        title,
        denied,
        host: columns.text()?,
    })
}
