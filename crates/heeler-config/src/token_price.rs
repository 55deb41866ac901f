//! Prices of models, for agents that report tokens and no cost.
//!
//! The key `prices` of an agent comes first, then [`ESTIMATED_PRICES`]. A price is of the model that the
//! config names; without a name, the model is the agent's own choice, and no price is known. Start at
//! [`find_token_price`].

use indexmap::IndexMap;

use crate::amount::UsdAmount;
use crate::shape::section;

section! {
    /// Price of a model, in US dollars for a million tokens.
    pub struct TokenPrice ("price of a model") {
        /// Input that is not cached.
        input: UsdAmount,
        /// Output, with the tokens of thoughts.
        output: UsdAmount,
        /// Input from the cache. Defaults to `input`.
        cache_read: Option<UsdAmount>,
        /// Input that is written into the cache. Defaults to `input`.
        cache_write: Option<UsdAmount>,
    }
}

/// Estimated prices of models: input, output and cached input, in millionths of a dollar for a million
/// tokens. They are list prices at the time of this release, without discounts and subscriptions.
pub const ESTIMATED_PRICES: [(&str, u64, u64, u64); 10] = [
    ("gpt-5", 1_250_000, 10_000_000, 125_000),
    ("gpt-5-codex", 1_250_000, 10_000_000, 125_000),
    ("gpt-5-mini", 250_000, 2_000_000, 25_000),
    ("gpt-5-nano", 50_000, 400_000, 5_000),
    ("gpt-5.1", 1_250_000, 10_000_000, 125_000),
    ("gpt-5.1-codex", 1_250_000, 10_000_000, 125_000),
    ("gemini-2.5-pro", 1_250_000, 10_000_000, 125_000),
    ("gemini-2.5-flash", 300_000, 2_500_000, 30_000),
    ("gemini-2.5-flash-lite", 100_000, 400_000, 10_000),
    ("gemini-3-pro-preview", 2_000_000, 12_000_000, 200_000),
];

/// Returns the price of a model: of the config, or the estimated one.
pub(crate) fn find_token_price(
    prices: &IndexMap<String, TokenPrice>,
    model: &str,
) -> Option<TokenPrice> {
    let estimated = || {
        let (_, input, output, cached) =
            ESTIMATED_PRICES.iter().find(|(name, ..)| *name == model)?;
        Some(TokenPrice {
            input: UsdAmount::from_micros(*input)?,
            output: UsdAmount::from_micros(*output)?,
            cache_read: UsdAmount::from_micros(*cached),
            cache_write: None,
        })
    };
    prices.get(model).cloned().or_else(estimated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_estimated_price_is_found_by_its_own_name() {
        for (model, input, output, cached) in ESTIMATED_PRICES {
            let price = find_token_price(&IndexMap::new(), model).unwrap();
            assert_eq!((price.input.micros(), price.output.micros()), (input, output), "{model}");
            assert_eq!(price.cache_read.map(|it| it.micros()), Some(cached), "{model}");
        }
        assert_eq!(find_token_price(&IndexMap::new(), "gpt-5-codex-2"), None);
    }
}
