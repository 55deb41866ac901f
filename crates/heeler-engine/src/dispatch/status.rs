//! Assembles the daemon's status report.

use heeler_model::budget_ledger::{BudgetAccount, SpendingLimits};
use heeler_model::calendar::ScheduleKey;
use heeler_model::fleet::{ParkedCredentialRecord, UnfinishedJob};

use super::dispatcher::Dispatcher;
use super::dispatcher_state::DispatcherState;
use crate::command::{
    BudgetStatus, DaemonScheduleStatus, DaemonStatus, ParkedCredential, RunningJob,
    ScheduleOverride, WaitingJob,
};

/// Fault of a daemon that carries the mark of agents itself.
const UNMARKED_AGENTS: &str = "this daemon can gain no privileges (no_new_privs), so the mark of agents \
    tells it nothing: an agent that outlives its runner can pass for a person; run it in a container \
    without no-new-privileges";

impl Dispatcher {
    pub(super) fn status(&mut self) -> DaemonStatus {
        let held_change = self.held_config_change();
        let notice_faults = self.notice_faults();
        let board = self.state();
        let mut running: Vec<RunningJob> = board
            .fleet
            .runs()
            .iter()
            .map(|(run, live)| RunningJob {
                job: live.job.clone(),
                run: *run,
                agent: live.agent.clone(),
                schedule: live.schedule.clone(),
                since: live.since,
            })
            .collect();
        running.sort_by_key(|job| (job.since, job.run));
        let failed = self.deferred.failed_commit.as_ref().and_then(|failed| failed.why.clone());
        // A failed commit tells the same reason.
        let lost = self.store.database_fault().filter(|_| failed.is_none());
        let full = self.deferred.full_disk.as_ref().map(|full| full.why.clone());
        let of_state = failed.into_iter().chain(lost).chain(full);
        let mut faults: Vec<String> =
            self.deferred.faults.values().cloned().chain(of_state).collect();
        faults.extend(board.spending_faults.iter().cloned());
        faults.extend(self.deferred.chat_links.problems().iter().cloned());
        faults.extend(notice_faults);
        if heeler_process::is_own_process_marked() {
            faults.push(UNMARKED_AGENTS.to_owned());
        }
        faults.sort();
        DaemonStatus {
            pid: std::process::id(),
            version: self.version.clone(),
            since: self.since,
            mode: self.mode,
            stopping: self.deferred.stop.is_some(),
            config: board.setup.config.clone(),
            schedules: schedule_statuses(&board),
            queue: self.waiting_jobs(&board),
            running,
            parked: parked_credentials(&board),
            budgets: budget_statuses(&board),
            faults,
            held_change,
            chats: self.deferred.chat_links.statuses(),
        }
    }

    fn waiting_jobs(&self, board: &DispatcherState) -> Vec<WaitingJob> {
        let now = (self.fleet.now)();
        let one = |asked: &UnfinishedJob| {
            let blocked = board.fleet.blocking_reason(&asked.request, now);
            WaitingJob {
                job: asked.entry.job.clone(),
                agent: asked.request.agent.to_string(),
                priority: asked.entry.priority,
                since: asked.entry.requested_at,
                not_before: asked.entry.not_before,
                reason: match asked.entry.not_before.is_some_and(|at| at > now)
                    || board.fleet.is_job_held(&asked.entry.job)
                {
                    true => asked.entry.reason.clone(),
                    false => blocked
                        .map_or("it is about to start".to_owned(), |reason| reason.to_string()),
                },
            }
        };
        board.fleet.queue().map(one).collect()
    }
}

fn schedule_statuses(board: &DispatcherState) -> Vec<DaemonScheduleStatus> {
    let mut found = Vec::new();
    for agent in &board.setup.loaded.agents {
        for schedule in &agent.schedules {
            let (agent, name) = (agent.name.to_string(), schedule.name.clone());
            let key = ScheduleKey { agent: agent.clone(), schedule: name.clone() };
            let by_hand = board.overrides.get(&key);
            found.push(DaemonScheduleStatus {
                enabled: board.fleet.is_schedule_enabled(&key),
                next: board.fleet.calendar().next_due(&key).map(|(due, _)| due),
                changed: by_hand.map(|row| ScheduleOverride { by: row.by.clone(), at: row.at }),
                agent,
                schedule: name,
            });
        }
    }
    found
}

fn parked_credentials(board: &DispatcherState) -> Vec<ParkedCredential> {
    let one = |row: &ParkedCredentialRecord| ParkedCredential {
        agents: board
            .agents_with_credential(&row.credential)
            .map(|agent| agent.name.clone())
            .collect(),
        until: row.until,
        since: row.since,
        reason: row.reason.clone(),
    };
    board.fleet.parked().map(one).collect()
}

fn budget_statuses(board: &DispatcherState) -> Vec<BudgetStatus> {
    let one = |whose: &str, account: &BudgetAccount| BudgetStatus {
        whose: whose.to_owned(),
        day_limit: account.limits.day,
        day_spent: account.today,
        total_limit: account.limits.total,
        total_spent: account.total,
        reserved: account.reserved,
    };
    let fleet = board.fleet.ledger().fleet();
    let mut found = vec![one("fleet", fleet)];
    for fleet in board.setup.loaded.fleets.iter().skip(1) {
        let account = board.fleet.ledger().subfleet(&fleet.path);
        if account.limits != SpendingLimits::default() {
            found.push(one(&fleet.path, &account));
        }
    }
    for agent in &board.setup.loaded.agents {
        let account = board.fleet.ledger().agent(agent.name.as_str());
        if account.limits != SpendingLimits::default() {
            found.push(one(agent.name.as_str(), &account));
        }
    }
    found
}
