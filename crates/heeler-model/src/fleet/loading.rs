//! Reading a fleet's state, and loading it from stored records.

use std::collections::HashMap;

use jiff::civil::Date;

use super::queue::UnfinishedJob;
use super::records::ParkedCredentialRecord;
use super::rules::FleetRules;
use super::state::{FleetState, UnfinishedRun};
use crate::budget_ledger::BudgetLedger;
use crate::calendar::{ScheduleCalendar, ScheduleKey};
use crate::{JobId, RunId};

impl FleetState {
    pub fn rules(&self) -> &FleetRules {
        &self.rules
    }

    pub fn ledger(&self) -> &BudgetLedger {
        &self.ledger
    }

    pub fn calendar(&self) -> &ScheduleCalendar {
        &self.calendar
    }

    pub fn calendar_mut(&mut self) -> &mut ScheduleCalendar {
        &mut self.calendar
    }

    /// Returns a job that has not ended.
    pub fn job(&self, job: &JobId) -> Option<&UnfinishedJob> {
        self.jobs.get(job)
    }

    /// Lists the jobs that have not ended, in no order.
    pub fn jobs(&self) -> impl Iterator<Item = &UnfinishedJob> {
        self.jobs.all()
    }

    /// Lists the queued jobs, next one first.
    pub fn queue(&self) -> impl Iterator<Item = &UnfinishedJob> {
        self.jobs.waiting()
    }

    pub fn queue_len(&self) -> usize {
        self.jobs.waiting_len()
    }

    pub fn runs(&self) -> &HashMap<RunId, UnfinishedRun> {
        &self.runs
    }

    /// Returns the unfinished run of a job.
    pub fn run_of_job(&self, job: &JobId) -> Option<RunId> {
        self.runs.iter().find(|(_, live)| live.job == *job).map(|(run, _)| *run)
    }

    pub fn parked(&self) -> impl Iterator<Item = &ParkedCredentialRecord> {
        self.parked.values()
    }

    pub fn is_agent_disabled(&self, agent: &str) -> bool {
        self.disabled_agents.contains(agent)
    }

    pub fn is_job_held(&self, job: &JobId) -> bool {
        self.held_jobs.contains(job)
    }

    pub fn is_queue_held(&self) -> bool {
        self.is_queue_held
    }

    /// Restores the facts that only an earlier state has: held jobs, and requests and inputs
    /// with their secrets.
    pub fn restore_unredacted(&mut self, before: &FleetState) {
        self.held_jobs.clone_from(&before.held_jobs);
        self.is_queue_held = before.is_queue_held;
        // Rows hold redacted requests; a job that continues in this process needs the real ones.
        self.jobs.restore_requests(&before.jobs);
        self.is_stopping = before.is_stopping;
        for (id, active) in &mut self.workflow_runs {
            if let Some(known) = before.workflow_runs.get(id) {
                // Inputs are stored redacted too.
                active.state.context.clone_from(&known.state.context);
            }
        }
    }

    /// Adds past spending of an agent.
    pub fn load_spending(&mut self, agent: &str, today: i64, total: i64) {
        // The ledger adds the amount to the total as well, so only the rest is added below.
        self.ledger.spend(agent, self.ledger.day(), today);
        // The exact day does not matter for the total.
        self.ledger.spend(agent, Date::MIN, total - today);
    }

    /// Adds a job that has not ended.
    pub fn load_job(&mut self, job: UnfinishedJob) {
        self.jobs.insert(job);
    }

    /// Adds a run that has no committed result.
    pub fn load_run(&mut self, run: RunId, live: UnfinishedRun) {
        // The reservation is on record with the run, and counts until the run has ended.
        if let Some((_, micros)) = live.reservation {
            self.ledger.reserve(&live.agent, micros);
        }
        self.add_run(run, live);
    }

    pub fn load_parked(&mut self, parked: ParkedCredentialRecord) {
        self.parked.insert(parked.credential.clone(), parked);
    }

    pub fn load_disabled_agent(&mut self, agent: String) {
        self.disabled_agents.insert(agent);
    }

    pub fn load_switched_schedule(&mut self, key: ScheduleKey, is_enabled: bool) {
        self.switched_schedules.insert(key, is_enabled);
    }
}
