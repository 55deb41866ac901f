//! Money: what was spent, what is reserved, what is left (promise P8).
//!
//! A run reserves before it starts and may spend no more than that; what it spent replaces the
//! reservation when it has ended. Amounts are millionths of a dollar. Pure arithmetic: whoever
//! commits keeps the same figures in the database. Start at [`BudgetLedger::check_budget`].

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use jiff::civil::Date;

use crate::config::Budget;

/// What a run without a limit of its own may spend, where its agent or fleet has one.
pub const RESERVATION_DEFAULT: i64 = 10_000_000;

/// The least that a run is started with: one reply costs more than nothing.
pub const RESERVATION_MIN: i64 = 10_000;

/// The most that may be spent in a day and in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpendingLimits {
    /// In a day.
    pub day: Option<i64>,
    /// In all.
    pub total: Option<i64>,
}

impl SpendingLimits {
    /// Returns the limits that a config has.
    pub fn from_budget(budget: Option<&Budget>) -> SpendingLimits {
        let micros =
            |usd: crate::config::UsdAmount| i64::try_from(usd.micros()).unwrap_or(i64::MAX);
        SpendingLimits {
            day: budget.and_then(|budget| budget.day).map(micros),
            total: budget.and_then(|budget| budget.total).map(micros),
        }
    }

    fn is_unlimited(self) -> bool {
        self.day.is_none() && self.total.is_none()
    }
}

/// What one agent, or the whole fleet, has spent and reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BudgetAccount {
    /// What may be spent.
    pub limits: SpendingLimits,
    /// Spent on the ledger's day.
    pub today: i64,
    /// Spent in all.
    pub total: i64,
    /// Reserved by runs that go on.
    pub reserved: i64,
}

/// What a run may spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetDecision {
    /// As much as its own budget allows: there is no other limit.
    Unlimited,
    /// This much, which is to be reserved.
    Reserve(i64),
    /// Nothing now; runs that go on hold what is left.
    AllReserved,
    /// Nothing today.
    DayLimitReached {
        /// Whether it is the fleet's limit.
        is_fleet_limit: bool,
        /// The limit.
        limit: i64,
    },
    /// Nothing any more.
    TotalLimitReached {
        /// Whether it is the fleet's limit.
        is_fleet_limit: bool,
        /// The limit.
        limit: i64,
    },
}

/// Says whether an agent is in the fleet of a path; all are in the root.
pub fn is_in_fleet(agent: &str, fleet: &str) -> bool {
    let rest = agent.strip_prefix(fleet);
    fleet.is_empty() || rest.is_some_and(|rest| rest.starts_with('.'))
}

/// The accounts of a fleet.
#[derive(Debug, Clone)]
pub struct BudgetLedger {
    day: Date,
    fleet: BudgetAccount,
    /// Limits of fleets within the fleet, by their paths.
    subfleet_limits: Vec<(String, SpendingLimits)>,
    agents: HashMap<String, BudgetAccount>,
}

impl BudgetLedger {
    /// Opens the ledger of a day without any account.
    pub fn new(day: Date, fleet: SpendingLimits) -> BudgetLedger {
        BudgetLedger {
            day,
            fleet: BudgetAccount { limits: fleet, ..BudgetAccount::default() },
            subfleet_limits: Vec::new(),
            agents: HashMap::new(),
        }
    }

    /// Returns the day whose spending counts.
    pub fn day(&self) -> Date {
        self.day
    }

    /// Sets what may be spent; what was spent stays.
    pub fn set_limits(
        &mut self,
        fleet: SpendingLimits,
        agents: impl Iterator<Item = (String, SpendingLimits)>,
    ) {
        self.fleet.limits = fleet;
        self.agents.values_mut().for_each(|account| account.limits = SpendingLimits::default());
        agents.for_each(|(agent, limits)| self.account_mut(&agent).limits = limits);
    }

    /// Sets what fleets within the fleet may spend, each by its path.
    pub fn set_subfleet_limits(&mut self, inner: impl Iterator<Item = (String, SpendingLimits)>) {
        self.subfleet_limits = inner.filter(|(_, limits)| !limits.is_unlimited()).collect();
    }

    /// Returns the account of a fleet within the fleet: that of its agents together.
    pub fn subfleet(&self, path: &str) -> BudgetAccount {
        let limits =
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

    /// Returns the fleet's account.
    pub fn fleet(&self) -> &BudgetAccount {
        &self.fleet
    }

    /// Returns an agent's account.
    pub fn agent(&self, agent: &str) -> BudgetAccount {
        self.agents.get(agent).copied().unwrap_or_default()
    }

    /// Turns to another day, with what each agent has spent on it so far: a clock that was set back
    /// brings a day again.
    pub fn set_day(&mut self, day: Date, spent: Vec<(String, i64)>) {
        self.day = day;
        self.fleet.today = 0;
        self.agents.values_mut().for_each(|account| account.today = 0);
        for (agent, micros) in spent {
            self.fleet.today = self.fleet.today.saturating_add(micros);
            self.account_mut(&agent).today = micros;
        }
    }

    /// Says what a run of an agent may spend. `own` is the limit of its job.
    pub fn check_budget(&self, agent: &str, own: Option<i64>) -> BudgetDecision {
        let inner = self.subfleet_limits.iter().filter(|(path, _)| is_in_fleet(agent, path));
        let inner = inner.map(|(path, _)| (self.subfleet(path), true));
        let mut accounts = vec![(self.agent(agent), false), (self.fleet, true)];
        accounts.extend(inner);
        if accounts.iter().all(|(account, _)| account.limits.is_unlimited()) {
            return BudgetDecision::Unlimited;
        }
        let mut left = i64::MAX;
        for (account, of_fleet) in accounts {
            let BudgetAccount { limits, today, total: in_all, reserved } = account;
            if let Some(limit) = limits.total {
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
        match left.min(own.unwrap_or(RESERVATION_DEFAULT)) {
            amount if amount >= RESERVATION_MIN.min(own.unwrap_or(i64::MAX)) => {
                BudgetDecision::Reserve(amount)
            }
            _ => BudgetDecision::AllReserved,
        }
    }

    /// Notes a reservation.
    pub fn reserve(&mut self, agent: &str, micros: i64) {
        self.fleet.reserved = self.fleet.reserved.saturating_add(micros);
        let account = self.account_mut(agent);
        account.reserved = account.reserved.saturating_add(micros);
    }

    /// Notes that a reservation is gone.
    pub fn release(&mut self, agent: &str, micros: i64) {
        self.fleet.reserved = (self.fleet.reserved - micros).max(0);
        let account = self.account_mut(agent);
        account.reserved = (account.reserved - micros).max(0);
    }

    /// Notes what was spent, and which day pays: the one on which it was reserved, so that no day
    /// pays for what another has granted.
    pub fn spend(&mut self, agent: &str, day: Date, micros: i64) {
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
