//! Cost of an agent program by its tokens, and the budget of its run.
//!
//! Agents besides Claude report tokens and no cost. With the prices of the model, Heeler estimates the
//! cost of each turn, and ends the run that reaches its budget. Start at [`TokenBudget`].

use heeler_model::format_usd;
use heeler_model::run::TokenRates;

use crate::program_rows::TurnUsage;

/// Spending of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TokenBudget {
    rates: Option<TokenRates>,
    budget_usd: Option<f64>,
    /// Cost of the turns that have ended.
    spent_usd: f64,
}

impl TokenBudget {
    pub(crate) fn new(rates: Option<TokenRates>, budget_usd: Option<f64>) -> TokenBudget {
        TokenBudget { rates, budget_usd, spent_usd: 0.0 }
    }

    /// Returns the cost of some requests, if the prices are known.
    fn price(&self, usage: &TurnUsage) -> Option<f64> {
        let rates = self.rates.as_ref()?;
        let tokens = |count: u64, rate: f64| count as f64 * rate / 1e6;
        Some(
            tokens(usage.input, rates.input)
                + tokens(usage.output, rates.output)
                + tokens(usage.cache_read, rates.cache_read)
                + tokens(usage.cache_write, rates.cache_write),
        )
    }

    /// Adds a turn that has ended, and returns its cost.
    pub(crate) fn add_turn(&mut self, usage: Option<&TurnUsage>) -> Option<f64> {
        let cost = self.price(usage?)?;
        self.spent_usd += cost;
        Some(cost)
    }

    /// Returns the failure of a run that has reached its budget, with the requests of the running turn
    /// included.
    pub(crate) fn exhaustion(&self, running: Option<&TurnUsage>) -> Option<String> {
        let budget = self.budget_usd?;
        let spent = self.spent_usd + running.and_then(|usage| self.price(usage)).unwrap_or(0.0);
        (spent >= budget).then(|| {
            let (budget, spent) = (format_usd(budget), format_usd(spent));
            format!("the run reached its budget of {budget}: its tokens cost about {spent}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_cost_money_until_the_budget_is_reached() {
        let rates = TokenRates { input: 2.0, output: 10.0, cache_read: 0.2, cache_write: 2.5 };
        let mut budget = TokenBudget::new(Some(rates), Some(1.0));
        let turn =
            TurnUsage { input: 100_000, cache_read: 100_000, cache_write: 40_000, output: 8_000 };
        let cost = budget.add_turn(Some(&turn)).unwrap();
        assert!((cost - 0.4).abs() < 1e-9, "{cost}");
        assert_eq!(budget.exhaustion(None), None);
        assert_eq!(budget.exhaustion(Some(&turn)), None);
        let more = TurnUsage { output: 60_000, ..TurnUsage::default() };
        let reason = budget.exhaustion(Some(&more)).unwrap();
        assert!(reason.contains("budget of $1.00:") && reason.contains("about $1.00"), "{reason}");
        budget.add_turn(Some(&more));
        assert!(budget.exhaustion(None).is_some());
    }

    #[test]
    fn without_prices_or_tokens_nothing_is_claimed() {
        let turn = TurnUsage { input: 1, ..TurnUsage::default() };
        let mut unpriced = TokenBudget::new(None, Some(0.5));
        assert_eq!((unpriced.add_turn(Some(&turn)), unpriced.exhaustion(None)), (None, None));
        let rates = TokenRates { input: 2.0, output: 10.0, cache_read: 0.2, cache_write: 2.5 };
        assert_eq!(TokenBudget::new(Some(rates), None).add_turn(None), None);
    }
}
