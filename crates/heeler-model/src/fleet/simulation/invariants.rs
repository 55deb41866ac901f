//! Checks of a simulated fleet: the state in memory equals the rows, and the rows keep the promises.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::journal::check_same_run;
use super::*;
use crate::budget_ledger::BudgetAccount;
use jiff::civil::Date;

/// Compares the state with one that is loaded from the database, and checks the rows.
pub(super) fn check_invariants(
    state: &FleetState,
    database: &SimulatedDatabase,
    rules: &Arc<FleetRules>,
    now: Timestamp,
) {
    check_rows(database);
    let day = state.ledger().day();
    let loaded = database.load(Arc::clone(rules), now);
    assert_eq!(summary(state, day), summary(&loaded, day), "memory and database differ");
    assert_eq!(state.workflow_runs().count(), loaded.workflow_runs().count());
    for (id, active) in state.workflow_runs() {
        let read = loaded.workflow_run(id).expect("an active run is stored");
        check_same_run(id, active, read);
    }
}

/// A job that runs has exactly one run, a job that waits has none, and both have a stored request
/// (P2, P6).
pub(super) fn check_rows(database: &SimulatedDatabase) {
    let mut active: BTreeMap<&JobId, u32> = BTreeMap::new();
    for run in database.runs.values() {
        *active.entry(&run.job).or_default() += 1;
    }
    for (id, job) in &database.jobs {
        let runs = active.get(id).copied().unwrap_or(0);
        assert_eq!(runs, u32::from(job.status == JobStatus::Running), "{id} is {}", job.status);
        assert!(database.queue.contains_key(id), "the request of {id} is not stored");
    }
    assert_eq!(database.queue.len(), database.jobs.len(), "an ended job is in the queue");
}

/// Everything that decisions depend on, in a form that can be compared. A job in preparation counts
/// as waiting: preparation is not stored.
fn summary(state: &FleetState, day: Date) -> impl PartialEq + std::fmt::Debug + use<> {
    let jobs: BTreeMap<String, (QueuedJobRecord, bool)> = state
        .jobs()
        .map(|job| {
            let is_running = job.stage == JobStage::Running;
            (job.entry.job.to_string(), (job.entry.clone(), is_running))
        })
        .collect();
    let runs: BTreeMap<RunId, UnfinishedRun> =
        state.runs().iter().map(|(run, live)| (*run, live.clone())).collect();
    let parked: BTreeMap<String, ParkedCredentialRecord> =
        state.parked().map(|parked| (parked.credential.clone(), parked.clone())).collect();
    let accounts = AGENTS.iter().map(|agent| state.ledger().agent(agent));
    // A state that was not told of a new day yet still counts for the last one.
    let is_today = state.ledger().day() == day;
    let accounts: Vec<BudgetAccount> = accounts
        .map(|account| BudgetAccount { today: if is_today { account.today } else { 0 }, ..account })
        .collect();
    let disabled: Vec<bool> = AGENTS.iter().map(|agent| state.is_agent_disabled(agent)).collect();
    (jobs, runs, parked, accounts, disabled)
}

/// Checks that a reservation fits into every limit, by the rows alone (P8).
pub(super) fn check_reservation(
    database: &SimulatedDatabase,
    rules: &FleetRules,
    reservation: &ReservationRecord,
) {
    let agent = &reservation.agent;
    let own = rules.agents.get(agent).map(|rules| rules.limits).unwrap_or_default();
    let fleets = rules.fleets_of(agent).map(|fleet| (fleet.path.as_str(), fleet.limits));
    let mut accounts: Vec<(Option<&str>, SpendingLimits)> = vec![(None, own)];
    accounts.extend(fleets.map(|(path, limits)| (Some(path), limits)));
    for (fleet, limits) in accounts {
        let is_counted = |other: &str| match fleet {
            None => other == agent,
            Some(path) => is_in_fleet(other, path),
        };
        let spent = |day: Option<Date>| -> i64 {
            let rows = database.spending.iter();
            let rows = rows
                .filter(|((other, on), _)| is_counted(other) && day.is_none_or(|day| day == *on));
            rows.map(|(_, micros)| micros).sum()
        };
        let reserved = database.runs.values().filter_map(|run| run.reservation.as_ref());
        let reserved: i64 = reserved.filter(|it| is_counted(&it.agent)).map(|it| it.micros).sum();
        let after = reserved + reservation.micros;
        if let Some(limit) = limits.day {
            assert!(spent(Some(reservation.day)) + after <= limit, "more than a day's budget");
        }
        if let Some(limit) = limits.total {
            assert!(spent(None) + after <= limit, "more than the whole budget");
        }
    }
}

/// Checks that a run without a reservation has no limit (P8).
pub(super) fn check_unlimited(rules: &FleetRules, agent: &str) {
    let own = &rules.agents[agent];
    let fleets = rules.fleets_of(agent).map(|fleet| fleet.limits);
    let is_limited =
        std::iter::once(own.limits).chain(fleets).any(|it| it != SpendingLimits::default());
    assert!(!own.uses_model || !is_limited, "a run of {agent} has no reservation");
}
