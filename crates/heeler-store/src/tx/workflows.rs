//! Changes of workflow runs, their journals, and what people are asked.

use heeler_model::{Approval, ApprovalId, ApprovalStatus, WorkflowRunId};
use jiff::Timestamp;
use serde_json::Value as Json;

use super::Tx;
use crate::db::counters::Kind;
use crate::db::overrides::{CronOverride, WorkflowOverride};
use crate::db::workflows::{Step, WorkflowRunRow};
use crate::db::{DbError, approvals, overrides, workflows};

impl Tx<'_> {
    /// Mints an id that no workflow run has.
    pub fn new_workflow_run_id(&mut self, now: Timestamp) -> Result<WorkflowRunId, DbError> {
        loop {
            let id = WorkflowRunId::mint(now, fastrand::u64(..));
            if workflows::key(&self.conn, id.as_str())?.is_none() {
                return Ok(id);
            }
        }
    }

    /// Inserts a run, or returns the active one that its workflow and trigger already have.
    pub fn insert_workflow_run(
        &mut self,
        run: &WorkflowRunRow,
    ) -> Result<Result<(), WorkflowRunId>, DbError> {
        let head = &run.head;
        if workflows::insert(&self.conn, run)? {
            self.count(Kind::WorkflowRun, &head.workflow, head.status.as_str(), 1)?;
            return Ok(Ok(()));
        }
        match self.active_workflow_run(&head.workflow, &head.trigger_id)? {
            Some(active) if active != head.id => Ok(Err(active)),
            _ => Err(DbError::Exists { what: "workflow run", id: head.id.to_string() }),
        }
    }

    /// Replaces a run that is still at `run.version`; returns the new version. Its name, trigger,
    /// context and beginning stay as they are.
    pub fn update_workflow_run(&mut self, run: &WorkflowRunRow) -> Result<i64, DbError> {
        let (what, id) = ("workflow run", run.head.id.to_string());
        let Some(old) = workflows::key(&self.conn, &id)? else {
            return Err(DbError::Missing { what, id });
        };
        if old.version != run.version || !workflows::update(&self.conn, run)? {
            return Err(DbError::Stale { what, id, version: run.version });
        }
        let status = run.head.status.as_str();
        if old.status != status {
            self.count(Kind::WorkflowRun, &old.workflow, &old.status, -1)?;
            self.count(Kind::WorkflowRun, &old.workflow, status, 1)?;
        }
        Ok(run.version + 1)
    }

    /// Writes an entry of a journal that no process does.
    pub fn insert_step(&mut self, step: &Step<'_>, now: Timestamp) -> Result<(), DbError> {
        workflows::insert_step(&self.conn, step, now)
    }

    /// Keeps the frozen form of a definition, once.
    pub fn put_definition(
        &mut self,
        hash: &str,
        name: &str,
        files: &str,
        now: Timestamp,
    ) -> Result<(), DbError> {
        workflows::put_definition(&self.conn, hash, name, files, now)
    }

    /// Writes down something that was said or happened in a run.
    pub fn add_workflow_event(
        &mut self,
        run: &WorkflowRunId,
        kind: &str,
        phase: Option<&str>,
        text: &str,
        now: Timestamp,
    ) -> Result<(), DbError> {
        workflows::add_event(&self.conn, run, (kind, phase, text), now)
    }

    /// Mints an id that no approval has.
    pub fn new_approval_id(&mut self) -> Result<ApprovalId, DbError> {
        loop {
            let id = ApprovalId::mint(fastrand::u32(..));
            if approvals::key(&self.conn, &id)?.is_none() {
                return Ok(id);
            }
        }
    }

    /// Asks something; returns false if the same was asked already: the id, the place in a journal
    /// or the run's question is taken.
    pub fn insert_approval(&mut self, approval: &Approval) -> Result<bool, DbError> {
        let fresh = approvals::insert(&self.conn, approval)?;
        if fresh {
            self.count(Kind::Approval, approval.kind.as_str(), approval.status.as_str(), 1)?;
        }
        Ok(fresh)
    }

    /// Answers an approval, or ends it otherwise; returns false if it no longer waits.
    pub fn answer_approval(
        &mut self,
        id: &ApprovalId,
        status: ApprovalStatus,
        response: Option<&str>,
        by: &str,
        now: Timestamp,
    ) -> Result<bool, DbError> {
        let Some((kind, old)) = approvals::key(&self.conn, id)? else {
            return Err(DbError::Missing { what: "approval", id: id.to_string() });
        };
        if !approvals::answer(&self.conn, id, status, response, (by, now))? {
            return Ok(false);
        }
        self.count(Kind::Approval, kind.as_str(), old.as_str(), -1)?;
        self.count(Kind::Approval, kind.as_str(), status.as_str(), 1)?;
        Ok(true)
    }

    /// Writes what a run went by in place of an answer that came too late for it.
    pub fn overrule_approval(
        &mut self,
        id: &ApprovalId,
        status: ApprovalStatus,
        response: Option<&str>,
        by: &str,
        at: Timestamp,
    ) -> Result<(), DbError> {
        let Some((kind, old)) = approvals::key(&self.conn, id)? else {
            return Err(DbError::Missing { what: "approval", id: id.to_string() });
        };
        approvals::overrule(&self.conn, id, status, response, (by, at))?;
        self.count(Kind::Approval, kind.as_str(), old.as_str(), -1)?;
        self.count(Kind::Approval, kind.as_str(), status.as_str(), 1)
    }

    /// Replaces what is asked in full, with which the answer goes.
    pub fn set_approval_detail(&mut self, id: &ApprovalId, detail: &Json) -> Result<(), DbError> {
        approvals::set_detail(&self.conn, id, &detail.to_string())
    }

    /// Notes that a run has the answer to what it asked, or needs none; returns whether that is new.
    pub fn set_approval_delivered(
        &mut self,
        id: &ApprovalId,
        now: Timestamp,
    ) -> Result<bool, DbError> {
        approvals::set_delivered(&self.conn, id, now)
    }

    /// Writes what a person set a workflow's cron to.
    pub fn put_cron_override(&mut self, change: &CronOverride) -> Result<(), DbError> {
        overrides::put_cron(&self.conn, change)
    }

    /// Lets a workflow's cron follow its file again; returns whether it did not.
    pub fn remove_cron_override(&mut self, name: &str) -> Result<bool, DbError> {
        overrides::remove_cron(&self.conn, name)
    }

    /// Switches a workflow on or off.
    pub fn put_workflow_override(&mut self, change: &WorkflowOverride) -> Result<(), DbError> {
        overrides::put_workflow(&self.conn, change)
    }
}
