//! Lists of workflow runs, by workflow, status, repository and trigger.
//!
//! Start at [`WorkflowRunFilter`].

use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{WorkflowRunId, iso_millis};
use jiff::Timestamp;
use rusqlite::params;

use super::connection::SqlRow;
use super::workflows::{WorkflowRunHead, head_columns, read_head};
use super::{
    ColumnReader, DatabaseError, SORTS_LAST, SqliteResultExt as _, StateDatabase, counters,
    query_all, query_first, sql,
};

macro_rules! page_of {
    ($filter:literal) => {
        concat!(
            "SELECT ",
            head_columns!(),
            " FROM workflow_runs WHERE ",
            $filter,
            "(started_at, id) < (?3, ?4) ORDER BY started_at DESC, id DESC LIMIT ?5"
        )
    };
}

sql! {
    PAGE = page_of!("");
    PAGE_OF_NAME = page_of!("workflow_name = ?1 AND ");
    PAGE_OF_STATUS = page_of!("status = ?2 AND ");
    PAGE_OF_NAME_STATUS = page_of!("workflow_name = ?1 AND status = ?2 AND ");
    // The other filters of these two are checked row by row: few runs are about one subject.
    PAGE_OF_REPO = page_of!("owner = ?6 AND repo = ?7 AND (CAST(?1 AS TEXT) IS NULL OR workflow_name = ?1) \
        AND (CAST(?2 AS TEXT) IS NULL OR status = ?2) AND ");
    PAGE_OF_TRIGGER = page_of!("trigger_id = ?8 AND (CAST(?6 AS TEXT) IS NULL OR (owner = ?6 AND repo = ?7)) \
        AND (CAST(?1 AS TEXT) IS NULL OR workflow_name = ?1) AND (CAST(?2 AS TEXT) IS NULL OR status = ?2) AND ");
    COUNT_SINCE_OF_REPO = "SELECT COUNT(*) FROM workflow_runs WHERE owner = ?4 AND repo = ?5 \
        AND (CAST(?1 AS TEXT) IS NULL OR workflow_name = ?1) AND (CAST(?2 AS TEXT) IS NULL OR status = ?2) \
        AND started_at >= ?3";
    COUNT_SINCE_OF_TRIGGER = "SELECT COUNT(*) FROM workflow_runs WHERE trigger_id = ?6 \
        AND (CAST(?4 AS TEXT) IS NULL OR (owner = ?4 AND repo = ?5)) \
        AND (CAST(?1 AS TEXT) IS NULL OR workflow_name = ?1) AND (CAST(?2 AS TEXT) IS NULL OR status = ?2) \
        AND started_at >= ?3";
    COUNT_SINCE = "SELECT COUNT(*) FROM workflow_runs WHERE started_at >= ?3";
    COUNT_SINCE_OF_NAME =
        "SELECT COUNT(*) FROM workflow_runs WHERE workflow_name = ?1 AND started_at >= ?3";
    COUNT_SINCE_OF_STATUS =
        "SELECT COUNT(*) FROM workflow_runs WHERE status = ?2 AND started_at >= ?3";
    COUNT_SINCE_OF_NAME_STATUS = "SELECT COUNT(*) FROM workflow_runs \
        WHERE workflow_name = ?1 AND status = ?2 AND started_at >= ?3";
}

/// Selection of workflow runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkflowRunFilter {
    pub workflow: Option<String>,
    pub status: Option<WorkflowRunStatus>,
    /// Only runs requested at or after this time.
    pub since: Option<Timestamp>,
    /// Only runs about this repository: its owner and its name.
    pub repo: Option<(String, String)>,
    /// Only runs with this trigger ID.
    pub trigger_id: Option<String>,
}

/// End of a page of runs; the next page begins after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowRunCursor {
    pub started_at: Timestamp,
    pub id: WorkflowRunId,
}

impl WorkflowRunCursor {
    pub fn after(head: &WorkflowRunHead) -> WorkflowRunCursor {
        WorkflowRunCursor { started_at: head.started_at, id: head.id.clone() }
    }
}

impl StateDatabase {
    /// Returns a page of workflow runs, newest first, continuing after `before`.
    pub fn workflow_runs(
        &self,
        filter: &WorkflowRunFilter,
        before: Option<&WorkflowRunCursor>,
        limit: usize,
    ) -> Result<Vec<WorkflowRunHead>, DatabaseError> {
        let sql = match (&filter.workflow, filter.status) {
            _ if filter.trigger_id.is_some() => PAGE_OF_TRIGGER,
            _ if filter.repo.is_some() => PAGE_OF_REPO,
            (None, None) => PAGE,
            (Some(_), None) => PAGE_OF_NAME,
            (None, Some(_)) => PAGE_OF_STATUS,
            (Some(_), Some(_)) => PAGE_OF_NAME_STATUS,
        };
        let status = filter.status.map(WorkflowRunStatus::as_str);
        let at = before.map_or(SORTS_LAST.to_owned(), |cursor| iso_millis(cursor.started_at));
        let id = before.map_or(SORTS_LAST, |cursor| cursor.id.as_str());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let (owner, repo) = filter.repo.as_ref().map(|(owner, repo)| (owner, repo)).unzip();
        let read = |row: &SqlRow<'_>| read_head(&mut ColumnReader::new("workflow_runs", row));
        let what = "list workflow runs";
        let (name, trigger) = (&filter.workflow, &filter.trigger_id);
        // Each statement takes exactly the parameters that it names.
        let mut page = if sql == PAGE_OF_TRIGGER {
            let params = params![name, status, at, id, limit, owner, repo, trigger];
            query_all(&self.conn, sql, params, what, read)?
        } else if sql == PAGE_OF_REPO {
            let params = params![name, status, at, id, limit, owner, repo];
            query_all(&self.conn, sql, params, what, read)?
        } else {
            query_all(&self.conn, sql, params![name, status, at, id, limit], what, read)?
        };
        if let Some(since) = filter.since {
            // Newest first, so all rows after the first older one are older too.
            page.truncate(page.partition_point(|head| head.started_at >= since));
        }
        Ok(page)
    }

    /// Counts the runs that match a filter: from counters, or over an index if `since` is set.
    pub fn count_workflow_runs(&self, filter: &WorkflowRunFilter) -> Result<i64, DatabaseError> {
        let name = filter.workflow.as_deref();
        let status = filter.status.map(WorkflowRunStatus::as_str);
        if filter.repo.is_some() || filter.trigger_id.is_some() {
            return self.count_runs_of_subject(filter);
        }
        let Some(since) = filter.since else {
            return counters::total(&self.conn, counters::CounterKind::WorkflowRun, name, status);
        };
        let sql = match (name, status) {
            (None, None) => COUNT_SINCE,
            (Some(_), None) => COUNT_SINCE_OF_NAME,
            (None, Some(_)) => COUNT_SINCE_OF_STATUS,
            (Some(_), Some(_)) => COUNT_SINCE_OF_NAME_STATUS,
        };
        let attempt = "count workflow runs";
        let params = params![name, status, iso_millis(since)];
        let count =
            query_first(&self.conn, sql, params, attempt, |row| row.get(0).attempt(attempt))?;
        Ok(count.unwrap_or(0))
    }

    /// Counts the runs about a repository or trigger, over an index.
    fn count_runs_of_subject(&self, filter: &WorkflowRunFilter) -> Result<i64, DatabaseError> {
        let status = filter.status.map(WorkflowRunStatus::as_str);
        // Every time is later than the empty text.
        let since = filter.since.map(iso_millis).unwrap_or_default();
        let (owner, repo) = filter.repo.as_ref().map(|(owner, repo)| (owner, repo)).unzip();
        let (name, attempt) = (&filter.workflow, "count workflow runs");
        let read = |row: &SqlRow<'_>| row.get(0).attempt(attempt);
        let count = match &filter.trigger_id {
            Some(trigger) => {
                let params = params![name, status, since, owner, repo, trigger];
                query_first(&self.conn, COUNT_SINCE_OF_TRIGGER, params, attempt, read)?
            }
            None => {
                let params = params![name, status, since, owner, repo];
                query_first(&self.conn, COUNT_SINCE_OF_REPO, params, attempt, read)?
            }
        };
        Ok(count.unwrap_or(0))
    }
}
