//! Budget arithmetic: money spent, reserved and left (promise P8).
//!
//! A run reserves money before it starts and may spend no more than that. Its actual cost replaces
//! the reservation when it ends. Amounts are millionths of a US dollar. This module only computes:
//! the caller commits the same figures to the database. Start at [`BudgetLedger::check_budget`].

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use heeler_config::Budget;
use jiff::civil::Date;

/// Reservation of a run that has no limit of its own, when its agent or fleet has one.
pub const RESERVATION_DEFAULT: i64 = 10_000_000;

/// Smallest reservation with which a run is started: every reply costs something.
pub const RESERVATION_MIN: i64 = 10_000;

/// Most that may be spent per day and in total. `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpendingLimits {
    pub day: Option<i64>,
    pub total: Option<i64>,
}

impl SpendingLimits {
    /// Converts the `budget` section of a config.
    pub fn from_budget(budget: Option<&Budget>) -> SpendingLimits {
        let micros =
            // More money than fits is as good as no limit.
            |usd: heeler_config::UsdAmount| i64::try_from(usd.micros()).unwrap_or(i64::MAX);
        SpendingLimits {
            day: budget.and_then(|budget| budget.day).map(micros),
            total: budget.and_then(|budget| budget.total).map(micros),
        }
    }

    fn is_unlimited(self) -> bool {
        self.day.is_none() && self.total.is_none()
    }
}

/// Money that one agent, or the whole fleet, has spent and reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BudgetAccount {
    pub limits: SpendingLimits,
    /// Spent on [`BudgetLedger::day()`].
    pub today: i64,
    /// Spent since the beginning.
    pub total: i64,
    /// Reserved by runs in progress.
    pub reserved: i64,
}

/// Amount that a run may spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetDecision {
    /// No agent or fleet limit applies; only the job's own budget does.
    Unlimited,
    /// This amount, which must be reserved.
    Reserve(i64),
    /// Nothing now: runs in progress have reserved the rest.
    AllReserved,
    DayLimitReached {
        /// True if the limit is the fleet's.
        is_fleet_limit: bool,
        limit: i64,
    },
    TotalLimitReached {
        /// True if the limit is the fleet's.
        is_fleet_limit: bool,
        limit: i64,
    },
}

impl BudgetDecision {
    /// Returns true if a limit is reached, which only another day or config changes.
    pub fn is_spent(self) -> bool {
        matches!(
            self,
            BudgetDecision::DayLimitReached { .. } | BudgetDecision::TotalLimitReached { .. }
        )
    }
}

/// Returns true if an agent belongs to the fleet at a path. The empty path is the root fleet.
pub fn is_in_fleet(agent: &str, fleet: &str) -> bool {
    let rest = agent.strip_prefix(fleet);
    // The dot keeps `team` apart from `teamwork`.
    fleet.is_empty() || rest.is_some_and(|rest| rest.starts_with('.'))
}

/// Budget accounts of a fleet, its subfleets and its agents.
#[derive(Debug, Clone)]
pub struct BudgetLedger {
    day: Date,
    fleet: BudgetAccount,
    /// Limits of subfleets, by path.
    subfleet_limits: Vec<(String, SpendingLimits)>,
    agents: HashMap<String, BudgetAccount>,
}

impl BudgetLedger {
    /// Creates a ledger for one day, without agent accounts.
    pub fn new(day: Date, fleet: SpendingLimits) -> BudgetLedger {
        BudgetLedger {
            day,
            fleet: BudgetAccount { limits: fleet, ..BudgetAccount::default() },
            subfleet_limits: Vec::new(),
            agents: HashMap::new(),
        }
    }

    /// Returns the day that daily limits apply to.
    pub fn day(&self) -> Date {
        self.day
    }

    /// Replaces the limits of the fleet and its agents. Recorded spending is kept.
    pub fn set_limits(
        &mut self,
        fleet: SpendingLimits,
        agents: impl Iterator<Item = (String, SpendingLimits)>,
    ) {
        self.fleet.limits = fleet;
        // An agent that left the config keeps its spending, but has no limits of its own.
        self.agents.values_mut().for_each(|account| account.limits = SpendingLimits::default());
        agents.for_each(|(agent, limits)| self.account_mut(&agent).limits = limits);
    }

    /// Replaces the limits of subfleets, given by path.
    pub fn set_subfleet_limits(&mut self, inner: impl Iterator<Item = (String, SpendingLimits)>) {
        // Subfleets without limits would only cost time in each decision.
        self.subfleet_limits = inner.filter(|(_, limits)| !limits.is_unlimited()).collect();
    }

    /// Returns the account of a subfleet: the sum of its agents' accounts.
    pub fn subfleet(&self, path: &str) -> BudgetAccount {
        let limits =
            // A subfleet has no account of its own, so its sum cannot differ from those of its
            // agents.
            self.subfleet_limits.iter().find(|(known, _)| known == path).map(|(_, limits)| *limits);
        let mut sum =
            BudgetAccount { limits: limits.unwrap_or_default(), ..BudgetAccount::default() };
        for (_, own) in self.agents.iter().filter(|(agent, _)| is_in_fleet(agent, path)) {
            sum.today = sum.today.saturating_add(own.today);
            sum.total = sum.total.saturating_add(own.total);
            sum.reserved = sum.reserved.saturating_add(own.reserved);
        }
        sum
    }

    pub fn fleet(&self) -> &BudgetAccount {
        &self.fleet
    }

    pub fn agent(&self, agent: &str) -> BudgetAccount {
        self.agents.get(agent).copied().unwrap_or_default()
    }

    /// Switches to another day. `spent` is the amount each agent has already spent on it, which is
    /// not zero if the clock was set back.
    pub fn set_day(&mut self, day: Date, spent: Vec<(String, i64)>) {
        self.day = day;
        self.fleet.today = 0;
        // Agents without spending on that day are not in the list.
        self.agents.values_mut().for_each(|account| account.today = 0);
        for (agent, micros) in spent {
            self.fleet.today = self.fleet.today.saturating_add(micros);
            self.account_mut(&agent).today = micros;
        }
    }

    /// Decides the amount that a run of an agent may spend. `own` is the budget of its job.
    pub fn check_budget(&self, agent: &str, own: Option<i64>) -> BudgetDecision {
        let inner = self.subfleet_limits.iter().filter(|(path, _)| is_in_fleet(agent, path));
        let inner = inner.map(|(path, _)| (self.subfleet(path), true));
        let mut accounts = vec![(self.agent(agent), false), (self.fleet, true)];
        accounts.extend(inner);
        // Without limits nothing is reserved, so that no run waits for the end of another.
        if accounts.iter().all(|(account, _)| account.limits.is_unlimited()) {
            return BudgetDecision::Unlimited;
        }
        let mut left = i64::MAX;
        for (account, of_fleet) in accounts {
            let BudgetAccount { limits, today, total: in_all, reserved } = account;
            if let Some(limit) = limits.total {
                // Spent money alone decides this: reservations come back, so they only make a job
                // wait.
                if limit.saturating_sub(in_all) < RESERVATION_MIN {
                    return BudgetDecision::TotalLimitReached { is_fleet_limit: of_fleet, limit };
                }
                left = left.min(limit.saturating_sub(in_all).saturating_sub(reserved));
            }
            if let Some(limit) = limits.day {
                if limit.saturating_sub(today) < RESERVATION_MIN {
                    return BudgetDecision::DayLimitReached { is_fleet_limit: of_fleet, limit };
                }
                left = left.min(limit.saturating_sub(today).saturating_sub(reserved));
            }
        }
        // A run without a budget of its own must not reserve the whole rest of the day.
        match left.min(own.unwrap_or(RESERVATION_DEFAULT)) {
            // A job with a tiny budget may start with less than the smallest reservation.
            amount if amount >= RESERVATION_MIN.min(own.unwrap_or(i64::MAX)) => {
                BudgetDecision::Reserve(amount)
            }
            _ => BudgetDecision::AllReserved,
        }
    }

    /// Adds a reservation.
    pub fn reserve(&mut self, agent: &str, micros: i64) {
        self.fleet.reserved = self.fleet.reserved.saturating_add(micros);
        let account = self.account_mut(agent);
        account.reserved = account.reserved.saturating_add(micros);
    }

    /// Removes a reservation.
    pub fn release(&mut self, agent: &str, micros: i64) {
        // Never below zero: a negative reservation would be money that nobody has.
        self.fleet.reserved = (self.fleet.reserved - micros).max(0);
        let account = self.account_mut(agent);
        account.reserved = (account.reserved - micros).max(0);
    }

    /// Records a cost. `day` is the day of the reservation, so that no day pays for money that
    /// another day granted.
    pub fn spend(&mut self, agent: &str, day: Date, micros: i64) {
        // The cost of an earlier day counts for the total only.
        let is_today = day == self.day;
        let note = |account: &mut BudgetAccount| {
            account.total = account.total.saturating_add(micros);
            if is_today {
                account.today = account.today.saturating_add(micros);
            }
        };
        note(&mut self.fleet);
        note(self.account_mut(agent));
    }

    fn account_mut(&mut self, agent: &str) -> &mut BudgetAccount {
        self.agents.entry(agent.to_owned()).or_default()
    }
}
