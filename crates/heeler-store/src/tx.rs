//! One change of the state: what a command may do inside the writer's transaction.
//!
//! Every change marks the views that show it and moves the counters that count it, in the same
//! transaction. Nothing here touches a file. Start at [`Tx`].

mod access;
mod daemon;
mod workflows;

use std::cell::Cell;
use std::ops::Deref;

use heeler_model::run::RunResult;
use heeler_model::{
    AgentSessionId, AgentState, Job, JobId, JobStatus, RunId, ScheduleState, Session, SessionId,
};
use jiff::Timestamp;
use rusqlite::types::Value;

use crate::db::counters::Kind;
use crate::db::effects::Effect;
use crate::db::foreign::ForeignTable;
use crate::db::jobs::ForeignExecution;
use crate::db::runs::Run;
use crate::db::{
    Attempt as _, Db, DbError, agents, approvals, counters, deleted, effects, foreign, jobs, meta,
    runs, sessions, views, workflows as workflow_runs,
};
use crate::layout::StateDir;
use crate::views::View;

/// The writer's transaction, as one command sees it. Reads (it is a [`Db`]) see its own changes.
#[derive(Debug)]
pub struct Tx<'c> {
    db: &'c Db,
    dir: &'c StateDir,
    marked: Cell<bool>,
}

impl Deref for Tx<'_> {
    type Target = Db;
    fn deref(&self) -> &Db {
        self.db
    }
}

impl<'c> Tx<'c> {
    pub(crate) fn new(db: &'c Db, dir: &'c StateDir) -> Tx<'c> {
        Tx { db, dir, marked: Cell::new(false) }
    }

    /// Says whether a view is due because of this command.
    pub(crate) fn has_marked(&self) -> bool {
        self.marked.get()
    }

    /// Does a part of the change that may fail by itself: what fails leaves nothing, and the change
    /// goes on.
    pub fn attempt<T, E: From<DbError>>(
        &mut self,
        work: impl FnOnce(&mut Tx<'c>) -> Result<T, E>,
    ) -> Result<T, E> {
        // Savepoints of one name nest: each end means the innermost.
        self.conn.execute_batch("SAVEPOINT attempt").attempt("begin a part of a change")?;
        let marked = self.marked.get();
        let done = work(self);
        if self.conn.is_autocommit() {
            // A full disk took the whole transaction away. Whatever the caller goes on to write
            // would be committed by itself: the connection refuses until it is opened anew.
            self.conn.pragma_update(None, "query_only", true).attempt("stop a change")?;
            let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
            let source = rusqlite::Error::SqliteFailure(full, None);
            done?;
            return Err(DbError::Sqlite { attempt: "change the database", source }.into());
        }
        let end = match &done {
            Ok(_) => "RELEASE attempt",
            Err(_) => "ROLLBACK TO attempt; RELEASE attempt",
        };
        self.conn.execute_batch(end).attempt("end a part of a change")?;
        if done.is_err() {
            self.marked.set(marked);
        }
        done
    }

    /// Mints a job id that no job has, nor a transcript that outlived a restored database.
    pub fn new_job_id(&mut self, now: Timestamp) -> Result<JobId, DbError> {
        loop {
            let id = JobId::mint(now, fastrand::u64(..));
            if !jobs::exists(&self.conn, &id)? && !self.dir.log_of(&id).exists() {
                return Ok(id);
            }
        }
    }

    /// Inserts a job; an id that is taken is an error.
    pub fn insert_job(&mut self, job: &Job) -> Result<(), DbError> {
        if self.import_job(job, &ForeignExecution::default())? {
            return Ok(());
        }
        Err(DbError::Exists { what: "job", id: job.head.id.to_string() })
    }

    /// Inserts a job with what only Last Light knows of it; returns whether its id was new.
    pub fn import_job(&mut self, job: &Job, extra: &ForeignExecution) -> Result<bool, DbError> {
        if !jobs::insert(&self.conn, job)? {
            return Ok(false);
        }
        if *extra != ForeignExecution::default() {
            jobs::set_foreign(&self.conn, &job.head.id, extra)?;
        }
        self.count(Kind::Job, &job.head.agent, job.head.status.as_str(), 1)?;
        self.mark(&View::Job(job.head.id.clone()))?;
        self.mark_session_of(job.head.session_id.as_ref())?;
        Ok(true)
    }

    /// Replaces a job that is still at `job.version`; returns the new version.
    ///
    /// `started_at` stays as it is: lists page by it.
    pub fn update_job(&mut self, job: &Job) -> Result<i64, DbError> {
        let id = &job.head.id;
        let missing = || DbError::Missing { what: "job", id: id.to_string() };
        let stale = || DbError::Stale { what: "job", id: id.to_string(), version: job.version };
        let old = jobs::key(&self.conn, id)?.ok_or_else(missing)?;
        if old.version != job.version || !jobs::update(&self.conn, job)? {
            return Err(stale());
        }
        let status: JobStatus = job.head.status;
        if old.agent != job.head.agent || old.status != status.as_str() {
            self.count(Kind::Job, &old.agent, &old.status, -1)?;
            self.count(Kind::Job, &job.head.agent, status.as_str(), 1)?;
        }
        self.mark(&View::Job(id.clone()))?;
        if old.session_id != job.head.session_id {
            self.mark_session_of(old.session_id.as_ref())?;
            self.mark_session_of(job.head.session_id.as_ref())?;
        }
        Ok(job.version + 1)
    }

    /// Inserts a session, or replaces one that is still at `session.version`; returns its version.
    pub fn put_session(&mut self, session: &Session) -> Result<i64, DbError> {
        let id = &session.id;
        let stale =
            || DbError::Stale { what: "session", id: id.to_string(), version: session.version };
        let version = match sessions::key(&self.conn, id)? {
            None => {
                sessions::insert(&self.conn, session)?;
                session.version
            }
            Some(old) => {
                if old.version != session.version || !sessions::update(&self.conn, session)? {
                    return Err(stale());
                }
                self.count(Kind::Session, &old.agent, &old.status, -1)?;
                if old.agent != session.agent {
                    self.detach(id)?;
                }
                session.version + 1
            }
        };
        self.count(Kind::Session, &session.agent, session.status.as_str(), 1)?;
        self.mark(&View::Session(id.clone()))?;
        let own = self.agent_session(&session.agent)?;
        if own.is_some_and(|own| own.id == *id) {
            self.mark_agent_session(&session.agent)?;
        }
        Ok(version)
    }

    /// Takes away a session that nothing was said in; its files go with the next publication.
    pub fn remove_session(&mut self, session: &Session) -> Result<(), DbError> {
        let id = &session.id;
        if !sessions::remove(&self.conn, id, session.version)? {
            let id = id.to_string();
            return Err(DbError::Stale { what: "session", id, version: session.version });
        }
        self.count(Kind::Session, &session.agent, session.status.as_str(), -1)?;
        self.detach(id)?;
        self.mark(&View::Session(id.clone()))
    }

    /// Deletes a session: its row becomes a tombstone, from which [`Tx::raise_session`] brings it
    /// back.
    pub fn bury_session(
        &mut self,
        session: &Session,
        by: &str,
        now: Timestamp,
    ) -> Result<(), DbError> {
        deleted::bury(&self.conn, session, by, now)?;
        self.remove_session(session)
    }

    /// Brings a deleted session back as it was; `None` if it was not deleted, or is purged.
    pub fn raise_session(&mut self, id: &SessionId) -> Result<Option<Session>, DbError> {
        let Some(buried) = self.deleted_session(id)? else { return Ok(None) };
        if !deleted::raise(&self.conn, id)? {
            return Ok(None);
        }
        self.put_session(&buried.session)?;
        Ok(Some(buried.session))
    }

    /// Notes that the files of a deleted session are gone for good; says whether they were not yet.
    pub fn purge_session(&mut self, id: &SessionId, now: Timestamp) -> Result<bool, DbError> {
        deleted::purge(&self.conn, id, now)
    }

    /// Lets no agent's next job continue a session.
    fn detach(&mut self, session: &SessionId) -> Result<(), DbError> {
        for (agent, own) in agents::with_session(&self.conn)? {
            if own == *session {
                self.set_agent_session(&agent, None)?;
            }
        }
        Ok(())
    }

    /// Makes a session the one that the agent's next job continues; `None` starts afresh.
    pub fn set_agent_session(
        &mut self,
        agent: &str,
        session: Option<&SessionId>,
    ) -> Result<(), DbError> {
        agents::set_session(&self.conn, agent, session)?;
        self.mark_agent_session(agent)
    }

    /// Writes an agent's state; schedules that it no longer has are removed.
    pub fn put_agent(&mut self, name: &str, agent: &AgentState) -> Result<(), DbError> {
        agents::put_agent(&self.conn, name, agent)?;
        self.mark(&View::State)
    }

    /// Writes which schedule starts an agent next, and when.
    pub fn set_agent_next(
        &mut self,
        name: &str,
        schedule: Option<&str>,
        at: Option<Timestamp>,
    ) -> Result<(), DbError> {
        match agents::set_next(&self.conn, name, schedule, at)? {
            true => self.mark(&View::State),
            false => Ok(()),
        }
    }

    /// Writes a schedule's state; the agent comes into being with it.
    pub fn put_schedule(
        &mut self,
        agent: &str,
        name: &str,
        schedule: &ScheduleState,
    ) -> Result<(), DbError> {
        agents::put_schedule(&self.conn, agent, name, schedule)?;
        self.mark(&View::State)
    }

    /// Takes an agent and its schedules out of `state.yaml`; jobs and sessions stay.
    pub fn remove_agent(&mut self, name: &str) -> Result<(), DbError> {
        agents::remove_agent(&self.conn, name)?;
        self.mark(&View::State)
    }

    /// Takes a schedule out of `state.yaml`.
    pub fn remove_schedule(&mut self, agent: &str, name: &str) -> Result<(), DbError> {
        agents::remove_schedule(&self.conn, agent, name)?;
        self.mark(&View::State)
    }

    /// Inserts a run; an id that is taken is an error.
    pub fn insert_run(&mut self, run: &Run) -> Result<(), DbError> {
        if runs::insert(&self.conn, run)? {
            return Ok(());
        }
        Err(DbError::Exists { what: "run", id: run.id.to_string() })
    }

    /// Replaces a run that is still at `run.version`; returns the new version.
    pub fn update_run(&mut self, run: &Run) -> Result<i64, DbError> {
        if runs::update(&self.conn, run)? {
            return Ok(run.version + 1);
        }
        let id = run.id.to_string();
        match self.run(run.id)? {
            None => Err(DbError::Missing { what: "run", id }),
            Some(_) => Err(DbError::Stale { what: "run", id, version: run.version }),
        }
    }

    /// Writes how a run ended.
    pub fn set_run_result(&mut self, id: RunId, result: &RunResult) -> Result<(), DbError> {
        runs::set_result(&self.conn, id, result)
    }

    /// Writes what counts as spent by a run, in millionths of a dollar.
    pub fn set_run_spent(&mut self, id: RunId, micros: i64) -> Result<(), DbError> {
        runs::set_spent(&self.conn, id, micros)
    }

    /// Mints a session id that no session has.
    pub fn new_session_id(&mut self) -> Result<SessionId, DbError> {
        loop {
            let id = SessionId::mint(fastrand::u32(..));
            if sessions::key(&self.conn, &id)?.is_none() && self.deleted_session(&id)?.is_none() {
                return Ok(id);
            }
        }
    }

    /// Records something to be done; returns whether its id was new.
    pub fn add_effect(&mut self, effect: &Effect) -> Result<bool, DbError> {
        effects::insert(&self.conn, effect)
    }

    /// Records something to be done, or how it is to be done if it is on record already.
    pub fn put_effect(&mut self, effect: &Effect) -> Result<(), DbError> {
        effects::put(&self.conn, effect)
    }

    /// Records that an effect happened; returns whether it was still undone.
    pub fn finish_effect(&mut self, id: &str, now: Timestamp) -> Result<bool, DbError> {
        effects::finish(&self.conn, id, now)
    }

    /// Records that an effect will not happen any more, and why; returns whether it was still undone.
    pub fn give_up_effect(
        &mut self,
        id: &str,
        error: &str,
        now: Timestamp,
    ) -> Result<bool, DbError> {
        effects::give_up(&self.conn, id, error, now)
    }

    /// Records that an attempt at an effect failed; it stays undone.
    pub fn fail_effect(&mut self, id: &str, error: &str) -> Result<(), DbError> {
        effects::fail(&self.conn, id, error)
    }

    /// Writes a fact by name.
    pub fn set_meta(&mut self, key: &str, value: &str) -> Result<(), DbError> {
        meta::set(&self.conn, key, value)?;
        if key == meta::STARTED_AT { self.mark(&View::State) } else { Ok(()) }
    }

    /// Inserts a row of Last Light's as it comes, values in the order of
    /// [`ForeignTable::columns`]; returns whether its key was new.
    pub fn import_row(&mut self, table: ForeignTable, values: &[Value]) -> Result<bool, DbError> {
        let fresh = foreign::insert(&self.conn, table, values)?;
        if let (true, Some((kind, name))) = (fresh, table.counted()) {
            let text = |column: &str| {
                let at = table.columns().position(|name| name == column);
                match at.and_then(|at| values.get(at)) {
                    Some(Value::Text(text)) => text.as_str(),
                    _ => "",
                }
            };
            self.count(kind, text(name), text("status"), 1)?;
        }
        Ok(fresh)
    }

    /// Marks a view as due: its file is written again by the next publication.
    pub fn mark(&mut self, view: &View) -> Result<(), DbError> {
        self.marked.set(true);
        views::mark(&self.conn, &view.path())
    }

    /// Marks every view that was ever published.
    pub fn mark_all_views(&mut self) -> Result<(), DbError> {
        self.marked.set(true);
        views::mark_all(&self.conn)
    }

    /// Takes a file that is already there as the published view, so that it is not written anew.
    pub fn adopt_view(&mut self, view: &View, sha256: &str, now: Timestamp) -> Result<(), DbError> {
        views::adopt(&self.conn, &view.path(), sha256, now)
    }

    /// Counts jobs, sessions, workflow runs and approvals anew and returns whether a counter was wrong.
    pub fn recount(&mut self) -> Result<bool, DbError> {
        let mut was_wrong = false;
        for (kind, real) in [
            (Kind::Job, jobs::real_counts(&self.conn)?),
            (Kind::Session, sessions::real_counts(&self.conn)?),
            (Kind::WorkflowRun, workflow_runs::real_counts(&self.conn)?),
            (Kind::Approval, approvals::real_counts(&self.conn)?),
        ] {
            if counters::by_kind(&self.conn, kind)? != real {
                was_wrong = true;
                counters::replace(&self.conn, kind, &real)?;
            }
        }
        Ok(was_wrong)
    }

    fn count(&self, kind: Kind, agent: &str, status: &str, change: i64) -> Result<(), DbError> {
        counters::add(&self.conn, kind, agent, status, change)
    }

    fn mark_session_of(&mut self, id: Option<&AgentSessionId>) -> Result<(), DbError> {
        let Some(id) = id else { return Ok(()) };
        match self.session_by_agent_id(id)? {
            Some(session) => self.mark(&View::Session(session.id)),
            None => Ok(()),
        }
    }

    fn mark_agent_session(&mut self, agent: &str) -> Result<(), DbError> {
        // A name of another system may not be a file name; its session then has no such view.
        match agent.parse() {
            Ok(name) => self.mark(&View::AgentSession(name)),
            Err(_) => Ok(()),
        }
    }
}
