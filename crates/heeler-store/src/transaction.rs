//! Changes of the state: the operations available inside the writer's transaction.
//!
//! Every change marks the affected views as due and updates the affected counters, in the same
//! transaction. Nothing here touches a file. Start at [`StoreTransaction`].

mod access;
mod chat;
mod daemon;
mod imports;
mod notices;
mod workflows;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Deref;

use heeler_model::run::RunResult;
use heeler_model::{
    AgentSessionId, AgentState, Job, JobId, JobStatus, RunId, ScheduleState, Session, SessionId,
};
use jiff::Timestamp;
use jiff::civil::Date;
use uuid::Uuid;

use crate::db::counters::CounterKind;
use crate::db::database_error::failed;
use crate::db::effects::EffectRecord;
use crate::db::jobs::LastLightExecution;
use crate::db::postgres_error::PostgresError;
use crate::db::runs::RunRecord;
use crate::db::{
    DatabaseError, SqliteResultExt as _, StateDatabase, agents, approvals, counters,
    deleted_sessions, effects, job_marks, jobs, meta, runs, sessions, views,
    workflows as workflow_runs,
};
use crate::host_files::add_unshipped_run;
use crate::layout::StateDir;
use crate::session_moves::{NewSessionMove, SessionMoveRow};
use crate::views::PublishedView;

/// The writer's transaction, as seen by one command. It dereferences to [`StateDatabase`];
/// queries see its own changes.
#[derive(Debug)]
pub struct StoreTransaction<'c> {
    db: &'c StateDatabase,
    dir: &'c StateDir,
    marked: RefCell<MarkedViews>,
}

/// Views that a command has marked as due.
#[derive(Debug, Default)]
struct MarkedViews {
    paths: BTreeSet<String>,
    /// The same paths in the order in which they were marked, so that the last ones can be unmarked.
    /// A copy of the set for each savepoint would take quadratic time in a large transaction.
    order: Vec<String>,
    all: bool,
}

/// State of [`MarkedViews`] to return to.
struct MarkedViewsState {
    count: usize,
    all: bool,
}

impl MarkedViews {
    fn add(&mut self, path: String) {
        if self.paths.insert(path.clone()) {
            self.order.push(path);
        }
    }

    fn state(&self) -> MarkedViewsState {
        MarkedViewsState { count: self.order.len(), all: self.all }
    }

    fn return_to(&mut self, state: &MarkedViewsState) {
        for path in self.order.drain(state.count..) {
            self.paths.remove(&path);
        }
        self.all = state.all;
    }
}

impl Deref for StoreTransaction<'_> {
    type Target = StateDatabase;
    fn deref(&self) -> &StateDatabase {
        self.db
    }
}

impl<'c> StoreTransaction<'c> {
    pub(crate) fn new(db: &'c StateDatabase, dir: &'c StateDir) -> StoreTransaction<'c> {
        StoreTransaction { db, dir, marked: RefCell::default() }
    }

    /// Returns true if this command marked a view as due.
    pub(crate) fn has_marked(&self) -> bool {
        let marked = self.marked.borrow();
        marked.all || !marked.paths.is_empty()
    }

    /// Returns the paths of the views that this command has marked one by one.
    pub fn marked_views(&self) -> Vec<String> {
        self.marked.borrow().paths.iter().cloned().collect()
    }

    /// Runs a part of the change that may fail on its own. A failed part leaves no changes, and the
    /// command continues.
    pub fn with_savepoint<T, E: From<DatabaseError>>(
        &mut self,
        work: impl FnOnce(&mut StoreTransaction<'c>) -> Result<T, E>,
    ) -> Result<T, E> {
        // Savepoints with the same name nest: each RELEASE or ROLLBACK applies to the innermost
        // one.
        self.conn.run_batch("SAVEPOINT attempt", "begin a part of a change")?;
        // Read before the work, to restore it if the work is undone.
        let marked = self.marked.borrow().state();
        let done = work(self);
        if self.conn.is_transaction_lost() {
            let Some(conn) = self.conn.as_sqlite() else {
                done?;
                let lost = PostgresError::Unusable("the connection was lost".to_owned());
                return Err(failed("change the database", lost).into());
            };
            // A full disk makes SQLite roll back the whole transaction. Later writes of the caller
            // would then be committed one by one, so the connection refuses them until it is
            // reopened.
            conn.pragma_update(None, "query_only", true).attempt("stop a change")?;
            let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
            let source = rusqlite::Error::SqliteFailure(full, None);
            done?;
            return Err(DatabaseError::Sqlite { attempt: "change the database", source }.into());
        }
        let end = match &done {
            Ok(_) => "RELEASE attempt",
            Err(_) => "ROLLBACK TO attempt; RELEASE attempt",
        };
        self.conn.run_batch(end, "end a part of a change")?;
        if done.is_err() {
            self.marked.borrow_mut().return_to(&marked);
        }
        done
    }

    /// Generates a job id that is used neither by a job nor by a transcript that outlived a
    /// restore.
    pub fn new_job_id(&mut self, now: Timestamp) -> Result<JobId, DatabaseError> {
        loop {
            let id = JobId::mint(now, fastrand::u64(..));
            // A restored database forgets newer jobs, but their transcripts stay, and must not be
            // appended to.
            if !self.is_job_id_used(&id)? && !self.dir.job_transcript(&id).exists() {
                return Ok(id);
            }
        }
    }

    /// Inserts a job; an existing id is an error.
    pub fn insert_job(&mut self, job: &Job) -> Result<(), DatabaseError> {
        // An empty record of Last Light leaves these columns NULL, as for any job of Heeler.
        if self.import_job(job, &LastLightExecution::default())? {
            return Ok(());
        }
        Err(DatabaseError::Exists { what: "job", id: job.head.id.to_string() })
    }

    /// Replaces a job that is still at `job.version`; returns the new version.
    ///
    /// `started_at` stays unchanged, because lists page by it.
    pub fn update_job(&mut self, job: &Job) -> Result<i64, DatabaseError> {
        let id = &job.head.id;
        let missing = || DatabaseError::Missing { what: "job", id: id.to_string() };
        let stale =
            || DatabaseError::Stale { what: "job", id: id.to_string(), version: job.version };
        let old = jobs::load_row_state(&self.conn, id)?.ok_or_else(missing)?;
        // The version is compared twice: here for the message, in the statement against other
        // changes.
        if old.version != job.version || !jobs::update(&self.conn, job)? {
            return Err(stale());
        }
        let status: JobStatus = job.head.status;
        if old.agent != job.head.agent || old.status != status.as_str() {
            self.count(CounterKind::Job, &old.agent, &old.status, -1)?;
            self.count(CounterKind::Job, &job.head.agent, status.as_str(), 1)?;
        }
        self.mark_view_due(&PublishedView::Job(id.clone()))?;
        // The view of a session lists its jobs, so both sessions change.
        if old.session_id != job.head.session_id {
            self.mark_session_of(old.session_id.as_ref())?;
            self.mark_session_of(job.head.session_id.as_ref())?;
        }
        Ok(job.version + 1)
    }

    /// Replaces the title of a job.
    pub fn set_job_title(&mut self, job: &JobId, title: &str) -> Result<(), DatabaseError> {
        job_marks::set_title(&self.conn, job, title)?;
        self.mark_view_due(&PublishedView::Job(job.clone()))
    }

    /// Marks a job as one whose agent was denied tools.
    pub fn mark_job_denied(&mut self, job: &JobId, denied: &str) -> Result<(), DatabaseError> {
        job_marks::set_denied(&self.conn, job, denied)?;
        self.mark_view_due(&PublishedView::Job(job.clone()))
    }

    /// Inserts a session, or replaces one that is still at `session.version`; returns its version.
    pub fn put_session(&mut self, session: &Session) -> Result<i64, DatabaseError> {
        let id = &session.id;
        let stale = || DatabaseError::Stale {
            what: "session",
            id: id.to_string(),
            version: session.version,
        };
        let version = match sessions::load_row_state(&self.conn, id)? {
            None => {
                sessions::insert(&self.conn, session)?;
                session.version
            }
            Some(old) => {
                if old.version != session.version || !sessions::update(&self.conn, session)? {
                    return Err(stale());
                }
                self.count(CounterKind::Session, &old.agent, &old.status, -1)?;
                if old.agent != session.agent {
                    // An agent must not continue a session that now belongs to another agent.
                    self.detach(id)?;
                }
                session.version + 1
            }
        };
        self.count(CounterKind::Session, &session.agent, session.status.as_str(), 1)?;
        self.mark_view_due(&PublishedView::Session(id.clone()))?;
        let current = self.agent_session(&session.agent)?;
        // The view of the agent's session shows fields of the session itself.
        if current.is_some_and(|current| current.id == *id) {
            self.mark_agent_session(&session.agent)?;
        }
        Ok(version)
    }

    /// Removes a session without messages; its files are removed by the next publication.
    pub fn discard_unused_session(&mut self, session: &Session) -> Result<(), DatabaseError> {
        let id = &session.id;
        if !sessions::remove(&self.conn, id, session.version)? {
            let id = id.to_string();
            return Err(DatabaseError::Stale { what: "session", id, version: session.version });
        }
        self.count(CounterKind::Session, &session.agent, session.status.as_str(), -1)?;
        // The next job must not resume a session that has no row any more.
        self.detach(id)?;
        // The view of a missing session is due too: its publication removes the file.
        self.mark_view_due(&PublishedView::Session(id.clone()))
    }

    /// Deletes a session. Its row becomes a tombstone, from which
    /// [`StoreTransaction::restore_session`] restores it.
    pub fn delete_session(
        &mut self,
        session: &Session,
        by: &str,
        now: Timestamp,
    ) -> Result<(), DatabaseError> {
        deleted_sessions::insert_deleted(&self.conn, session, by, now)?;
        self.discard_unused_session(session)
    }

    /// Restores a deleted session; `None` if it was not deleted, or is purged.
    pub fn restore_session(&mut self, id: &SessionId) -> Result<Option<Session>, DatabaseError> {
        let Some(deleted) = self.deleted_session(id)? else { return Ok(None) };
        if !deleted_sessions::remove_deleted(&self.conn, id)? {
            return Ok(None);
        }
        self.put_session(&deleted.session)?;
        Ok(Some(deleted.session))
    }

    /// Records that the files of a deleted session are permanently removed; returns true if that is
    /// new.
    pub fn purge_session(&mut self, id: &SessionId, now: Timestamp) -> Result<bool, DatabaseError> {
        deleted_sessions::purge(&self.conn, id, now)
    }

    /// Detaches a session from every agent that would continue it with its next job.
    fn detach(&mut self, session: &SessionId) -> Result<(), DatabaseError> {
        for (agent, current) in agents::with_session(&self.conn)? {
            if current == *session {
                self.set_agent_session(&agent, None)?;
            }
        }
        Ok(())
    }

    /// Sets the session that the agent's next job continues; `None` starts a new one.
    pub fn set_agent_session(
        &mut self,
        agent: &str,
        session: Option<&SessionId>,
    ) -> Result<(), DatabaseError> {
        agents::set_session(&self.conn, agent, session)?;
        self.mark_agent_session(agent)
    }

    /// Writes an agent's state; schedules that it no longer has are removed.
    pub fn put_agent(&mut self, name: &str, agent: &AgentState) -> Result<(), DatabaseError> {
        agents::put_agent(&self.conn, name, agent)?;
        self.mark_view_due(&PublishedView::State)
    }

    /// Sets the schedule that starts an agent next, and its time.
    pub fn set_agent_next_schedule(
        &mut self,
        name: &str,
        schedule: Option<&str>,
        at: Option<Timestamp>,
    ) -> Result<(), DatabaseError> {
        match agents::set_next_schedule(&self.conn, name, schedule, at)? {
            // Computed after each decision, but usually unchanged, so the view is not written each
            // time.
            true => self.mark_view_due(&PublishedView::State),
            false => Ok(()),
        }
    }

    /// Writes a schedule's state; creates the agent if it does not exist.
    pub fn put_schedule(
        &mut self,
        agent: &str,
        name: &str,
        schedule: &ScheduleState,
    ) -> Result<(), DatabaseError> {
        agents::put_schedule(&self.conn, agent, name, schedule)?;
        self.mark_view_due(&PublishedView::State)
    }

    /// Removes an agent and its schedules from `state.yaml`; jobs and sessions stay.
    pub fn remove_agent(&mut self, name: &str) -> Result<(), DatabaseError> {
        agents::remove_agent(&self.conn, name)?;
        self.mark_view_due(&PublishedView::State)
    }

    /// Removes a schedule from `state.yaml`.
    pub fn remove_schedule(&mut self, agent: &str, name: &str) -> Result<(), DatabaseError> {
        agents::remove_schedule(&self.conn, agent, name)?;
        self.mark_view_due(&PublishedView::State)
    }

    /// Inserts a run; an existing id is an error.
    pub fn insert_run(&mut self, run: &RunRecord) -> Result<(), DatabaseError> {
        if runs::insert(&self.conn, run)? {
            let conn = self.conn.as_postgres().filter(|conn| conn.host.is_some());
            let Some(conn) = conn else { return Ok(()) };
            jobs::set_host(&self.conn, &run.job_id, &run.host)?;
            job_marks::set_host(&self.conn, &run.job_id, &run.host)?;
            // The next daemon of the host ships what this one does not.
            return add_unshipped_run(conn, run.id, &run.host);
        }
        Err(DatabaseError::Exists { what: "run", id: run.id.to_string() })
    }

    /// Replaces a run that is still at `run.version`; returns the new version.
    pub fn update_run(&mut self, run: &RunRecord) -> Result<i64, DatabaseError> {
        if runs::update(&self.conn, run)? {
            return Ok(run.version + 1);
        }
        let id = run.id.to_string();
        match self.run(run.id)? {
            None => Err(DatabaseError::Missing { what: "run", id }),
            Some(_) => Err(DatabaseError::Stale { what: "run", id, version: run.version }),
        }
    }

    pub fn set_run_result(&mut self, id: RunId, result: &RunResult) -> Result<(), DatabaseError> {
        runs::set_result(&self.conn, id, result)
    }

    /// Sets the hash of the secret with which processes of a run identify themselves.
    pub fn set_run_capability(&mut self, id: RunId, hash: &str) -> Result<(), DatabaseError> {
        runs::set_capability(&self.conn, id, hash)
    }

    /// Stores what another host needs to start a run.
    pub fn set_run_assignment(&mut self, id: RunId, body: &str) -> Result<(), DatabaseError> {
        runs::set_assignment(&self.conn, id, body)?;
        match self.conn.as_postgres() {
            Some(conn) => conn.notify_hosts(),
            None => Ok(()),
        }
    }

    /// Records that a host gets no new runs, or, without a person, that it gets them again. Returns
    /// false if there is no such host.
    pub fn set_host_drained(
        &mut self,
        host: &str,
        by: Option<&str>,
    ) -> Result<bool, DatabaseError> {
        // Named by its type: this method has the same name.
        StateDatabase::set_host_drained(self, host, by)
    }

    /// Records the move of a session, unless it has an open one.
    pub fn begin_session_move(&mut self, new: &NewSessionMove<'_>) -> Result<(), DatabaseError> {
        StateDatabase::begin_session_move(self, new)
    }

    /// Ends an open move: the session stays on its source.
    pub fn end_session_move(&mut self, id: Uuid, reason: &str) -> Result<(), DatabaseError> {
        StateDatabase::end_session_move(self, id, reason)
    }

    /// Records that a session is on the target of its move. Returns false if the target has not placed
    /// it.
    pub fn finish_session_move(
        &mut self,
        moved: &SessionMoveRow,
        log: &str,
    ) -> Result<bool, DatabaseError> {
        StateDatabase::finish_session_move(self, moved, log)
    }

    /// Raises the term of a run: what its host sends from now on is refused.
    pub fn raise_run_term(&mut self, id: RunId) -> Result<(), DatabaseError> {
        runs::raise_term(&self.conn, id)
    }

    /// Sets the amount that a run spent for its agent, in millionths of a dollar.
    pub fn set_run_spent(
        &mut self,
        id: RunId,
        micros: i64,
        agent: &str,
        day: Date,
    ) -> Result<(), DatabaseError> {
        runs::set_spent(&self.conn, id, micros, agent, day)
    }

    /// Generates an unused session id.
    pub fn new_session_id(&mut self) -> Result<SessionId, DatabaseError> {
        loop {
            let id = SessionId::mint(fastrand::u32(..));
            if sessions::load_row_state(&self.conn, &id)?.is_none()
                // A deleted session can be restored, so its id stays reserved.
                && self.deleted_session(&id)?.is_none()
            {
                return Ok(id);
            }
        }
    }

    /// Records an effect to perform; returns true if its id was new.
    pub fn add_effect(&mut self, effect: &EffectRecord) -> Result<bool, DatabaseError> {
        effects::insert(&self.conn, effect)
    }

    /// Records an effect to perform, or replaces the payload of an existing one.
    pub fn put_effect(&mut self, effect: &EffectRecord) -> Result<(), DatabaseError> {
        effects::put(&self.conn, effect)
    }

    /// Records that an effect was performed; returns true if it was pending.
    pub fn finish_effect(&mut self, id: &str, now: Timestamp) -> Result<bool, DatabaseError> {
        effects::finish(&self.conn, id, now)
    }

    /// Records that an effect is given up, with the reason; returns true if it was pending.
    pub fn give_up_effect(
        &mut self,
        id: &str,
        error: &str,
        now: Timestamp,
    ) -> Result<bool, DatabaseError> {
        effects::give_up(&self.conn, id, error, now)
    }

    /// Records a failed attempt at an effect, which stays pending.
    pub fn fail_effect(&mut self, id: &str, error: &str) -> Result<(), DatabaseError> {
        effects::fail(&self.conn, id, error)
    }

    /// Writes a value of the table `meta`.
    pub fn set_meta(&mut self, key: &str, value: &str) -> Result<(), DatabaseError> {
        meta::set(&self.conn, key, value)?;
        // Only this value is shown in `state.yaml`.
        if key == meta::STARTED_AT { self.mark_view_due(&PublishedView::State) } else { Ok(()) }
    }

    /// Marks a view as due: the next publication writes its file again.
    pub fn mark_view_due(&mut self, view: &PublishedView) -> Result<(), DatabaseError> {
        // The publisher is woken after the commit, never before: it reads through another
        // connection.
        let path = view.path();
        views::mark_due(&self.conn, &path)?;
        self.marked.borrow_mut().add(path);
        Ok(())
    }

    /// Marks every view that was ever published as due.
    pub fn mark_all_views_due(&mut self) -> Result<(), DatabaseError> {
        self.marked.borrow_mut().all = true;
        views::mark_all_due(&self.conn)
    }

    /// Recounts jobs, sessions, workflow runs and approvals; returns true if a counter was wrong.
    pub fn recount(&mut self) -> Result<bool, DatabaseError> {
        let mut was_wrong = false;
        for (kind, real) in [
            (CounterKind::Job, jobs::real_counts(&self.conn)?),
            (CounterKind::Session, sessions::real_counts(&self.conn)?),
            (CounterKind::WorkflowRun, workflow_runs::real_counts(&self.conn)?),
            (CounterKind::Approval, approvals::real_counts(&self.conn)?),
        ] {
            // Counters are written by code and not by triggers, so `doctor` compares them with the
            // rows.
            if counters::by_kind(&self.conn, kind)? != real {
                was_wrong = true;
                counters::replace(&self.conn, kind, &real)?;
            }
        }
        Ok(was_wrong)
    }

    fn count(
        &self,
        kind: CounterKind,
        agent: &str,
        status: &str,
        change: i64,
    ) -> Result<(), DatabaseError> {
        counters::add(&self.conn, kind, agent, status, change)
    }

    fn mark_session_of(&mut self, id: Option<&AgentSessionId>) -> Result<(), DatabaseError> {
        let Some(id) = id else { return Ok(()) };
        match self.session_by_agent_id(id)? {
            Some(session) => self.mark_view_due(&PublishedView::Session(session.id)),
            None => Ok(()),
        }
    }

    fn mark_agent_session(&mut self, agent: &str) -> Result<(), DatabaseError> {
        // An agent name from another system may not be a valid file name; its session then has no
        // such view.
        match agent.parse() {
            Ok(name) => self.mark_view_due(&PublishedView::AgentSession(name)),
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_that_were_marked_after_a_state_are_unmarked_and_no_others() {
        let mut marked = MarkedViews::default();
        marked.add("a".to_owned());
        let state = marked.state();
        marked.add("b".to_owned());
        marked.add("a".to_owned());
        marked.all = true;
        marked.return_to(&state);
        assert_eq!(marked.paths, BTreeSet::from(["a".to_owned()]));
        assert!(!marked.all);
        marked.add("b".to_owned());
        assert_eq!(marked.order, ["a", "b"]);
    }
}
