//! What goes on, for whoever asks.

use heeler_model::calendar::ScheduleKey;
use heeler_model::ledger::{Account, Limits};

use super::{Board, Dispatcher};
use crate::command::{
    BudgetStatus, DaemonStatus, ParkedCredential, RunningJob, ScheduleOverride, ScheduleStatus,
    WaitingJob,
};

impl Dispatcher {
    pub(super) fn status(&self) -> DaemonStatus {
        let board = self.board();
        let mut running: Vec<RunningJob> = board
            .live
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
        let failed = self.pending.failed.as_ref().and_then(|failed| failed.why.clone());
        let mut faults: Vec<String> = self.pending.faults.values().cloned().chain(failed).collect();
        faults.sort();
        DaemonStatus {
            pid: std::process::id(),
            version: self.version.clone(),
            since: self.since,
            mode: self.mode,
            stopping: self.pending.stop.is_some(),
            config: board.setup.config.clone(),
            schedules: schedules(&board),
            queue: self.waiting(&board),
            running,
            parked: parked(&board),
            budgets: budgets(&board),
            faults,
        }
    }

    fn waiting(&self, board: &Board) -> Vec<WaitingJob> {
        let now = (self.fleet.now)();
        let one = |asked: &super::board::Asked| {
            let agent = board.setup.agent_for(&asked.wanted).ok();
            let hindrance = agent.and_then(|agent| board.hindrance(&agent, now));
            WaitingJob {
                job: asked.row.job.clone(),
                agent: asked.wanted.agent.to_string(),
                priority: asked.row.priority,
                since: asked.row.asked_at,
                not_before: asked.row.not_before,
                reason: match asked.row.not_before.is_some_and(|at| at > now)
                    || board.held.contains(&asked.row.job)
                {
                    true => asked.row.reason.clone(),
                    false => hindrance.unwrap_or_else(|| "it is about to start".to_owned()),
                },
            }
        };
        board.queue().map(one).collect()
    }
}

fn schedules(board: &Board) -> Vec<ScheduleStatus> {
    let mut found = Vec::new();
    for agent in &board.setup.loaded.agents {
        for schedule in &agent.schedules {
            let (agent, name) = (agent.name.to_string(), schedule.name.clone());
            let key = ScheduleKey { agent: agent.clone(), schedule: name.clone() };
            let by_hand = board.overrides.get(&key);
            found.push(ScheduleStatus {
                enabled: board.is_enabled(&key, schedule),
                next: board.calendar.next(&key).map(|(due, _)| due),
                changed: by_hand.map(|row| ScheduleOverride { by: row.by.clone(), at: row.at }),
                agent,
                schedule: name,
            });
        }
    }
    found
}

fn parked(board: &Board) -> Vec<ParkedCredential> {
    let one = |row: &heeler_store::Parked| ParkedCredential {
        agents: board.agents_on(&row.credential).map(|agent| agent.name.clone()).collect(),
        until: row.until,
        since: row.since,
        reason: row.reason.clone(),
    };
    board.parked.values().map(one).collect()
}

fn budgets(board: &Board) -> Vec<BudgetStatus> {
    let one = |whose: &str, account: &Account| BudgetStatus {
        whose: whose.to_owned(),
        day_limit: account.limits.day,
        day_spent: account.today,
        total_limit: account.limits.total,
        total_spent: account.in_all,
        reserved: account.reserved,
    };
    let fleet = board.ledger.fleet();
    let mut found = vec![one("fleet", fleet)];
    for fleet in board.setup.loaded.fleets.iter().skip(1) {
        let account = board.ledger.inner(&fleet.path);
        if account.limits != Limits::default() {
            found.push(one(&fleet.path, &account));
        }
    }
    for agent in &board.setup.loaded.agents {
        let account = board.ledger.agent(agent.name.as_str());
        if account.limits != Limits::default() {
            found.push(one(agent.name.as_str(), &account));
        }
    }
    found
}
