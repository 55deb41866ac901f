//! Insertion of imported records: jobs, sessions and rows of other systems, and the files that
//! came with them.
//!
//! The files must be durable before: see [`crate::staging::RecordTarget`].

use heeler_model::{AgentName, ApprovalId, Job, JobId, Session, SessionId, WorkflowRunId};
use jiff::Timestamp;
use rusqlite::types::Value;

use super::StoreTransaction;
use crate::db::counters::CounterKind;
use crate::db::imported_journal::{self, JournalPlace};
use crate::db::jobs::{self, LastLightExecution};
use crate::db::lastlight_tables::{self, LastLightTable};
use crate::db::{DatabaseError, job_marks, views};
use crate::idle_session::derived_id;
use crate::views::PublishedView;

impl StoreTransaction<'_> {
    /// Inserts a job with the fields that only Last Light records; returns true if its id was new.
    pub fn import_job(
        &mut self,
        job: &Job,
        extra: &LastLightExecution,
    ) -> Result<bool, DatabaseError> {
        if !jobs::insert(&self.conn, job)? {
            return Ok(false);
        }
        job_marks::insert(&self.conn, job)?;
        // Jobs of Heeler have none of these fields, so the second statement is saved.
        if *extra != LastLightExecution::default() {
            jobs::set_lastlight_fields(&self.conn, &job.head.id, extra)?;
        }
        self.count(CounterKind::Job, &job.head.agent, job.head.status.as_str(), 1)?;
        self.mark_view_due(&PublishedView::Job(job.head.id.clone()))?;
        self.mark_session_of(job.head.session_id.as_ref())?;
        Ok(true)
    }

    /// Inserts a session under the first unused id, and returns it as inserted.
    pub fn import_session(&mut self, mut session: Session) -> Result<Session, DatabaseError> {
        let native_id = session.agent_session_id.as_ref().map(|id| id.as_str().to_owned());
        let mut attempt = 0;
        // A short id may be taken by another session. The next one is derived in the same way
        // again.
        while self.session(&session.id)?.is_some() {
            attempt += 1;
            session.id = derived_id(native_id.as_deref().unwrap_or(&session.agent), attempt);
        }
        self.put_session(&session)?;
        Ok(session)
    }

    /// Inserts a session unless its native id exists: an agent may have kept one session in two
    /// projects. Returns true if it was inserted.
    pub fn import_new_session(&mut self, session: Session) -> Result<bool, DatabaseError> {
        if let Some(native_id) = &session.agent_session_id
            && self.session_by_agent_id(native_id)?.is_some()
        {
            return Ok(false);
        }
        self.import_session(session).map(|_| true)
    }

    /// Inserts a row of Last Light unchanged, with values in the order of
    /// [`LastLightTable::columns`]; returns true if its key was new.
    pub fn import_row(
        &mut self,
        table: LastLightTable,
        values: &[Value],
    ) -> Result<bool, DatabaseError> {
        let fresh = lastlight_tables::insert(&self.conn, table, values)?;
        // The counters are keyed by columns of the row, which are known only by position here.
        if let (true, Some((kind, name))) = (fresh, table.counted()) {
            let text = |column: &str| {
                let at = table.columns().position(|name| name == column);
                match at.and_then(|at| values.get(at)) {
                    Some(Value::Text(text)) => text.as_str(),
                    // A missing or non-text value counts under the empty name, as SQL groups it.
                    _ => "",
                }
            };
            self.count(kind, text(name), text("status"), 1)?;
        }
        Ok(fresh)
    }

    /// Gives an imported execution its place in the journal of its run.
    pub fn place_execution(
        &mut self,
        id: &JobId,
        place: &JournalPlace,
    ) -> Result<(), DatabaseError> {
        imported_journal::place_execution(&self.conn, id, place)
    }

    /// Gives an imported approval its place in the journal of its run.
    pub fn place_approval(
        &mut self,
        id: &ApprovalId,
        place: &JournalPlace,
    ) -> Result<(), DatabaseError> {
        imported_journal::place_approval(&self.conn, id, place)
    }

    /// Sets the length of an imported run's journal, and its cost in millionths of a dollar.
    pub fn set_imported_totals(
        &mut self,
        run: &WorkflowRunId,
        seq: u64,
        micros: i64,
    ) -> Result<(), DatabaseError> {
        imported_journal::set_totals(&self.conn, run, seq, micros)
    }

    /// Makes an imported run one of this fleet, with a definition. Returns false if it was not
    /// imported.
    pub fn adopt_imported_run(
        &mut self,
        run: &WorkflowRunId,
        definition: &str,
    ) -> Result<bool, DatabaseError> {
        imported_journal::adopt(&self.conn, run, definition)
    }

    /// Records an existing file as the published view, so that it is not written again.
    pub fn adopt_view(
        &mut self,
        view: &PublishedView,
        sha256: &str,
        now: Timestamp,
    ) -> Result<(), DatabaseError> {
        views::record_existing(&self.conn, &view.path(), sha256, now)
    }

    /// Records an agent's existing session file as published, and as the file of `session`, so
    /// that deleting it later detaches the session. The view must be due or published.
    pub fn adopt_agent_session_view(
        &mut self,
        agent: &AgentName,
        session: &SessionId,
        sha256: &str,
        now: Timestamp,
    ) -> Result<(), DatabaseError> {
        match self.view(&PublishedView::AgentSession(agent.clone()).path())? {
            Some(row) => {
                views::record_published(&self.conn, &row, Some(sha256), Some(session.as_str()), now)
            }
            None => Ok(()),
        }
    }
}
