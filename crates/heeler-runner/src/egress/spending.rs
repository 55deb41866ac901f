//! The cost of a run by the replies that its proxy has seen.

use std::collections::BTreeMap;

use heeler_egress::{ApiUsage, ReplyUsage};
use heeler_model::run::RunCost;

/// Raises the reported cost of a run to the counted one: an agent may report too little. It may also
/// report more, for calls that do not pass the proxy.
pub(crate) fn raise_cost(cost: &mut RunCost, models: &BTreeMap<String, ApiUsage>) {
    if models.is_empty() {
        return;
    }
    let counted: f64 = models.values().map(|usage| usage.cost_usd).sum();
    let is_complete = models.values().all(|usage| usage.unpriced_replies == 0);
    cost.usd = match cost.usd {
        Some(reported) => Some(reported.max(counted)),
        // The agent was ended before it reported anything.
        None => is_complete.then_some(counted),
    };
    let total = |tokens: fn(&ReplyUsage) -> u64| {
        let sum: u64 = models.values().map(|usage| tokens(&usage.tokens)).sum();
        i64::try_from(sum).unwrap_or(i64::MAX)
    };
    let raise = |field: &mut Option<i64>, counted: i64| {
        *field = Some(field.map_or(counted, |reported| reported.max(counted)));
    };
    let usage = &mut cost.usage;
    raise(&mut usage.input_tokens, total(|tokens| tokens.input_tokens));
    raise(&mut usage.output_tokens, total(|tokens| tokens.output_tokens));
    raise(&mut usage.cache_read_input_tokens, total(|tokens| tokens.cache_read_tokens));
    raise(&mut usage.cache_creation_input_tokens, total(|tokens| tokens.cache_write_tokens()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(cost_usd: f64, unpriced_replies: u64) -> BTreeMap<String, ApiUsage> {
        let tokens = ReplyUsage {
            input_tokens: 10,
            output_tokens: 20,
            cache_write_short_tokens: 3,
            cache_write_hour_tokens: 4,
            ..ReplyUsage::default()
        };
        let usage = ApiUsage { replies: 1, tokens, cost_usd, unpriced_replies };
        BTreeMap::from([("claude-sonnet-4-5".to_owned(), usage)])
    }

    #[track_caller]
    fn check(reported: Option<f64>, models: &BTreeMap<String, ApiUsage>, expected: Option<f64>) {
        let mut cost = RunCost { usd: reported, ..RunCost::default() };
        raise_cost(&mut cost, models);
        assert_eq!(cost.usd, expected);
    }

    #[test]
    fn the_larger_figure_counts() {
        check(Some(0.0), &counted(0.5, 0), Some(0.5));
        check(Some(0.7), &counted(0.5, 0), Some(0.7));
        check(None, &counted(0.5, 0), Some(0.5));
        // An unknown part makes the whole unknown, and then the whole reservation counts.
        check(None, &counted(0.5, 1), None);
        check(None, &BTreeMap::new(), None);
        check(Some(0.1), &BTreeMap::new(), Some(0.1));
    }

    #[test]
    fn tokens_are_raised_too() {
        let mut cost = RunCost::default();
        cost.usage.input_tokens = Some(12);
        cost.usage.output_tokens = Some(5);
        raise_cost(&mut cost, &counted(0.5, 0));
        let usage = cost.usage;
        assert_eq!((usage.input_tokens, usage.output_tokens), (Some(12), Some(20)));
        assert_eq!(usage.cache_creation_input_tokens, Some(7));
    }
}
