//! Changes of workflow runs, their journals and approvals.

use heeler_model::{Approval, ApprovalId, ApprovalStatus, WorkflowRunId};
use jiff::Timestamp;
use serde_json::Value as Json;

use super::StoreTransaction;
use crate::db::counters::CounterKind;
use crate::db::network_grants::{self, NetworkGrant};
use crate::db::open_steps::{self, StepEnd};
use crate::db::overrides::{CronOverride, WorkflowOverride};
use crate::db::permission_rules::{self, KeptPermissionRule};
use crate::db::workflows::{InstantPart, WorkflowRunRow};
use crate::db::{DatabaseError, approvals, overrides, workflows};

impl StoreTransaction<'_> {
    /// Generates an unused id of a workflow run.
    pub fn new_workflow_run_id(&mut self, now: Timestamp) -> Result<WorkflowRunId, DatabaseError> {
        loop {
            let id = WorkflowRunId::mint(now, fastrand::u64(..));
            if workflows::load_row_state(&self.conn, id.as_str())?.is_none() {
                return Ok(id);
            }
        }
    }

    /// Inserts a run, or returns the active one with the same workflow and trigger.
    pub fn insert_workflow_run(
        &mut self,
        run: &WorkflowRunRow,
    ) -> Result<Result<(), WorkflowRunId>, DatabaseError> {
        let head = &run.head;
        if workflows::insert(&self.conn, run)? {
            self.count(CounterKind::WorkflowRun, &head.workflow, head.status.as_str(), 1)?;
            return Ok(Ok(()));
        }
        match self.active_workflow_run(&head.workflow, &head.trigger_id)? {
            // The trigger is taken: the caller is told which run has it.
            Some(active) if active != head.id => Ok(Err(active)),
            _ => Err(DatabaseError::Exists { what: "workflow run", id: head.id.to_string() }),
        }
    }

    /// Replaces a run that is still at `run.version`; returns the new version. Its name, trigger,
    /// context and start time stay unchanged.
    pub fn update_workflow_run(&mut self, run: &WorkflowRunRow) -> Result<i64, DatabaseError> {
        let (what, id) = ("workflow run", run.head.id.to_string());
        let Some(old) = workflows::load_row_state(&self.conn, &id)? else {
            return Err(DatabaseError::Missing { what, id });
        };
        if old.version != run.version || !workflows::update(&self.conn, run)? {
            return Err(DatabaseError::Stale { what, id, version: run.version });
        }
        let status = run.head.status.as_str();
        if old.status != status {
            self.count(CounterKind::WorkflowRun, &old.workflow, &old.status, -1)?;
            // The name of a workflow run never changes, so only the status moves.
            self.count(CounterKind::WorkflowRun, &old.workflow, status, 1)?;
        }
        Ok(run.version + 1)
    }

    /// Inserts a journal entry that no process executes.
    pub fn insert_instant_part(
        &mut self,
        step: &InstantPart<'_>,
        now: Timestamp,
    ) -> Result<(), DatabaseError> {
        workflows::insert_instant_part(&self.conn, step, now)
    }

    /// Inserts a journal entry that is in progress without a process. Its outcome does not matter.
    pub fn insert_open_step(
        &mut self,
        step: &InstantPart<'_>,
        now: Timestamp,
    ) -> Result<(), DatabaseError> {
        open_steps::insert_open_step(&self.conn, step, now)
    }

    /// Ends such an entry; returns true if it was in progress.
    pub fn end_step(
        &mut self,
        run: &WorkflowRunId,
        seq: u64,
        end: &StepEnd<'_>,
        now: Timestamp,
    ) -> Result<bool, DatabaseError> {
        open_steps::end_step(&self.conn, (run, seq), end, now)
    }

    /// Stores the frozen form of a definition, once.
    pub fn put_definition(
        &mut self,
        hash: &str,
        name: &str,
        files: &str,
        now: Timestamp,
    ) -> Result<(), DatabaseError> {
        workflows::put_definition(&self.conn, hash, name, files, now)
    }

    /// Records an event of a run.
    pub fn add_workflow_event(
        &mut self,
        run: &WorkflowRunId,
        kind: &str,
        phase: Option<&str>,
        text: &str,
        now: Timestamp,
    ) -> Result<(), DatabaseError> {
        workflows::add_event(&self.conn, run, (kind, phase, text), now)
    }

    /// Generates an unused approval id.
    pub fn new_approval_id(&mut self) -> Result<ApprovalId, DatabaseError> {
        loop {
            let id = ApprovalId::mint(fastrand::u32(..));
            if approvals::kind_and_status(&self.conn, &id)?.is_none() {
                return Ok(id);
            }
        }
    }

    /// Inserts an approval; returns false if it exists: its id, its journal position or the run's
    /// question is taken.
    pub fn insert_approval(&mut self, approval: &Approval) -> Result<bool, DatabaseError> {
        let fresh = approvals::insert(&self.conn, approval)?;
        if fresh {
            // Counted only if it is new, because the same question may be reported twice.
            self.count(CounterKind::Approval, approval.kind.as_str(), approval.status.as_str(), 1)?;
        }
        Ok(fresh)
    }

    /// Answers an approval, or ends it otherwise; returns false if it is no longer pending.
    pub fn answer_approval(
        &mut self,
        id: &ApprovalId,
        status: ApprovalStatus,
        response: Option<&str>,
        by: &str,
        now: Timestamp,
    ) -> Result<bool, DatabaseError> {
        let Some((kind, old)) = approvals::kind_and_status(&self.conn, id)? else {
            return Err(DatabaseError::Missing { what: "approval", id: id.to_string() });
        };
        // Of several answers the first one counts (P7).
        if !approvals::answer(&self.conn, id, status, response, (by, now))? {
            return Ok(false);
        }
        self.count(CounterKind::Approval, kind.as_str(), old.as_str(), -1)?;
        self.count(CounterKind::Approval, kind.as_str(), status.as_str(), 1)?;
        Ok(true)
    }

    /// Records the answer that a run used, in place of one that came too late.
    pub fn overrule_approval(
        &mut self,
        id: &ApprovalId,
        status: ApprovalStatus,
        response: Option<&str>,
        by: &str,
        at: Timestamp,
    ) -> Result<(), DatabaseError> {
        let Some((kind, old)) = approvals::kind_and_status(&self.conn, id)? else {
            return Err(DatabaseError::Missing { what: "approval", id: id.to_string() });
        };
        // The agent has acted on this answer, so it replaces the recorded one.
        approvals::overrule(&self.conn, id, status, response, (by, at))?;
        self.count(CounterKind::Approval, kind.as_str(), old.as_str(), -1)?;
        self.count(CounterKind::Approval, kind.as_str(), status.as_str(), 1)
    }

    /// Replaces the full question, which is passed on with the answer.
    pub fn set_approval_detail(
        &mut self,
        id: &ApprovalId,
        detail: &Json,
    ) -> Result<(), DatabaseError> {
        approvals::set_detail(&self.conn, id, &detail.to_string())
    }

    /// Records that a run has the answer to its question, or needs none; returns true if that is
    /// new.
    pub fn set_approval_delivered(
        &mut self,
        id: &ApprovalId,
        now: Timestamp,
    ) -> Result<bool, DatabaseError> {
        approvals::set_delivered(&self.conn, id, now)
    }

    pub fn put_cron_override(&mut self, change: &CronOverride) -> Result<(), DatabaseError> {
        overrides::put_cron(&self.conn, change)
    }

    /// Removes the override of a workflow's cron; returns true if there was one.
    pub fn remove_cron_override(&mut self, name: &str) -> Result<bool, DatabaseError> {
        overrides::remove_cron(&self.conn, name)
    }

    /// Enables or disables a workflow.
    pub fn put_workflow_override(
        &mut self,
        change: &WorkflowOverride,
    ) -> Result<(), DatabaseError> {
        overrides::put_workflow(&self.conn, change)
    }

    /// Removes the override of a workflow; returns true if there was one.
    pub fn remove_workflow_override(&mut self, name: &str) -> Result<bool, DatabaseError> {
        overrides::remove_workflow(&self.conn, name)
    }

    /// Records a host that a person allowed an agent to reach.
    pub fn put_network_grant(&mut self, grant: &NetworkGrant) -> Result<(), DatabaseError> {
        network_grants::put(&self.conn, grant)
    }

    /// Removes all hosts that people allowed an agent to reach, and returns their number.
    pub fn remove_network_grants(&mut self, agent: &str) -> Result<usize, DatabaseError> {
        network_grants::remove(&self.conn, agent)
    }

    /// Records a rule that a person gave an agent for all later runs.
    pub fn put_permission_rule(&mut self, rule: &KeptPermissionRule) -> Result<(), DatabaseError> {
        permission_rules::put(&self.conn, rule)
    }

    /// Removes all rules that people gave an agent for later runs, and returns their number.
    pub fn remove_permission_rules(&mut self, agent: &str) -> Result<usize, DatabaseError> {
        permission_rules::remove(&self.conn, agent)
    }
}
