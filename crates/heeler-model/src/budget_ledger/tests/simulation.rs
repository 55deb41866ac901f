//! Simulation of fleets that spend, crash and retry under erratic clocks, checked against their
//! budgets (promise P8).

use std::collections::BTreeMap;
use std::panic::catch_unwind;

use heeler_testkit::ProofSettings;

use super::*;

const AGENTS: [&str; 3] = ["a", "b", "c"];
/// Highest cost of one reply.
const REPLY: i64 = 50_000;

/// Run in progress.
struct ReservedRun {
    agent: &'static str,
    day: Date,
    reserved: i64,
    /// By the agent's own figures.
    spent: i64,
}

/// Owner of a limit; `None` is the fleet.
type AccountOwner = Option<&'static str>;

/// Content of the database, ledger of the daemon, and actual events.
struct LedgerSimulation {
    random: fastrand::Rng,
    limits: BTreeMap<AccountOwner, SpendingLimits>,
    day: Date,
    ledger: BudgetLedger,
    runs: Vec<ReservedRun>,
    spending: BTreeMap<(Date, &'static str), i64>,
    /// Number of runs when each limit was last reserved from; of a day, or in total.
    runs_then: BTreeMap<(AccountOwner, Option<Date>), i64>,
}

fn is_of(owner: AccountOwner, agent: &str) -> bool {
    owner.is_none_or(|owner| owner == agent)
}

impl LedgerSimulation {
    fn new(mut random: fastrand::Rng) -> LedgerSimulation {
        let owners = AGENTS.map(Some).into_iter().chain([None]);
        let some = |random: &mut fastrand::Rng| random.bool().then(|| random.i64(1..4_000_000));
        let limits = owners
            .map(|owner| {
                let day = some(&mut random);
                (owner, SpendingLimits { day, total: some(&mut random).map(|total| total * 3) })
            })
            .collect();
        let day = date(2026, 1, 1);
        let (ledger, runs) = (BudgetLedger::new(day, SpendingLimits::default()), Vec::new());
        let (spending, runs_then) = (BTreeMap::new(), BTreeMap::new());
        let mut world = LedgerSimulation { random, limits, day, ledger, runs, spending, runs_then };
        world.start_daemon();
        world
    }

    /// Restores a daemon from the database.
    fn start_daemon(&mut self) {
        self.ledger = BudgetLedger::new(self.day, SpendingLimits::default());
        let limits = self.limits.iter();
        let agents = limits.filter_map(|(owner, limits)| Some(((*owner)?.to_owned(), *limits)));
        self.ledger.set_limits(self.limits[&None], agents);
        for ((day, agent), micros) in &self.spending {
            self.ledger.spend(agent, *day, *micros);
        }
        self.runs.iter().for_each(|run| self.ledger.reserve(run.agent, run.reserved));
    }

    fn spent(&self, owner: AccountOwner, day: Option<Date>) -> i64 {
        let own =
            |(on, agent): &(Date, &str)| is_of(owner, agent) && day.is_none_or(|it| it == *on);
        self.spending.iter().filter(|(key, _)| own(key)).map(|(_, micros)| micros).sum()
    }

    fn runs_of(&self, owner: AccountOwner) -> impl Iterator<Item = &ReservedRun> {
        self.runs.iter().filter(move |run| is_of(owner, run.agent))
    }

    /// Lists every limit with its owner and day.
    fn all_limits(&self) -> Vec<(AccountOwner, Option<Date>, i64)> {
        let both = |(owner, limits): (&AccountOwner, &SpendingLimits)| {
            let day = limits.day.map(|limit| (*owner, Some(self.day), limit));
            [day, limits.total.map(|limit| (*owner, None, limit))]
        };
        self.limits.iter().flat_map(both).flatten().collect()
    }

    fn start(&mut self) {
        let agent = *self.random.choice(&AGENTS).unwrap();
        let own = self.random.bool().then(|| self.random.i64(1..3_000_000));
        let quote = self.ledger.check_budget(agent, own);
        let applies = |owner: AccountOwner| is_of(owner, agent);
        let is_limited = self.all_limits().iter().any(|(owner, ..)| applies(*owner));
        assert_eq!(quote == BudgetDecision::Unlimited, !is_limited, "{quote:?}");
        let reserved = match quote {
            BudgetDecision::Reserve(reserved) => reserved,
            BudgetDecision::AllReserved => {
                return assert!(!self.runs.is_empty(), "nobody holds anything");
            }
            _ => return,
        };
        assert!(reserved > 0 && reserved <= own.unwrap_or(RESERVATION_DEFAULT));
        // A crash before the commit.
        if self.random.u8(..20) == 0 {
            return self.start_daemon();
        }
        self.runs.push(ReservedRun { agent, day: self.day, reserved, spent: 0 });
        self.ledger.reserve(agent, reserved);
        for (owner, day, limit) in self.all_limits().into_iter().filter(|it| applies(it.0)) {
            let held: i64 = self.runs_of(owner).map(|run| run.reserved).sum();
            let taken = self.spent(owner, day) + held;
            assert!(taken <= limit, "{owner:?} {day:?}: {taken} of {limit}");
            self.runs_then.insert((owner, day), self.runs_of(owner).count() as i64);
        }
    }

    /// Adds a reply to a run, unless its reservation is used up.
    fn reply(&mut self, at: usize) {
        let cost = self.random.i64(1..=REPLY);
        let run = &mut self.runs[at];
        if run.spent < run.reserved {
            run.spent += cost;
        }
    }

    /// Ends a run. The cost of a killed run is unknown.
    fn end(&mut self, at: usize) {
        // A crash before the commit: it ends later.
        if self.random.u8(..20) == 0 {
            return self.start_daemon();
        }
        let ReservedRun { agent, day, reserved, spent } = self.runs.swap_remove(at);
        let cost = if self.random.u8(..4) == 0 { reserved } else { spent };
        assert!(spent < cost + REPLY, "at most one reply is not on record");
        self.ledger.release(agent, reserved);
        *self.spending.entry((day, agent)).or_default() += cost;
        self.ledger.spend(agent, day, cost);
    }

    fn turn_day(&mut self) {
        let day = if self.random.u8(..4) == 0 { self.day.yesterday() } else { self.day.tomorrow() };
        self.day = day.unwrap();
        let of_day = self.spending.iter().filter(|((day, _), _)| *day == self.day);
        let spent = of_day.map(|((_, agent), micros)| ((*agent).to_owned(), *micros)).collect();
        self.ledger.set_day(self.day, spent);
    }

    fn step(&mut self) {
        let at = (!self.runs.is_empty()).then(|| self.random.usize(..self.runs.len()));
        match (self.random.u8(..20), at) {
            (0, _) => self.start_daemon(),
            (1, _) => self.turn_day(),
            (2..=5, _) => self.start(),
            (6..=8, Some(at)) => self.end(at),
            (_, Some(at)) => self.reply(at),
            (_, None) => {}
        }
    }

    /// Checks that no limit is exceeded by more than one reply per run, including the spending of
    /// runs in progress, and that the ledger equals the database.
    fn check(&self) {
        for ((owner, day), runs) in &self.runs_then {
            let limits = self.limits[owner];
            let limit = if day.is_some() { limits.day } else { limits.total }.unwrap();
            let on_day = |run: &&ReservedRun| day.is_none_or(|day| day == run.day);
            let live: i64 = self.runs_of(*owner).filter(on_day).map(|run| run.spent).sum();
            let spent = self.spent(*owner, *day) + live;
            assert!(spent < limit + REPLY * runs, "{owner:?} {day:?}: {spent} of {limit}");
        }
        for owner in self.limits.keys() {
            let account = owner.map_or(*self.ledger.fleet(), |agent| self.ledger.agent(agent));
            let reserved = self.runs_of(*owner).map(|run| run.reserved).sum();
            let in_all = self.spent(*owner, None);
            let today = self.spent(*owner, Some(self.day));
            assert_eq!(
                account,
                BudgetAccount { limits: self.limits[owner], today, total: in_all, reserved }
            );
        }
    }
}

/// Returns the number of limits that were used.
fn live(random: fastrand::Rng) -> u64 {
    let mut world = LedgerSimulation::new(random);
    for _ in 0..300 {
        world.step();
        world.check();
    }
    world.runs_then.len() as u64
}

#[test]
fn proof_no_budget_is_passed_by_more_than_one_reply_per_live_run() {
    let proof = ProofSettings::new(300);
    let mut used = 0;
    for round in 0..proof.rounds {
        let lived = catch_unwind(|| live(proof.random(round)));
        used += lived.unwrap_or_else(|_| panic!("seed {} round {round}", proof.seed));
    }
    assert!(used > proof.rounds, "seed {}: {used} limits were used", proof.seed);
}
