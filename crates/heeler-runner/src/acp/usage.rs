//! Token counts of ACP agents.

use serde_json::Value as Json;

use crate::program_rows::TurnUsage;

/// Reads token counts in any of the forms that agents use.
pub(super) fn parse_usage(usage: &Json) -> Option<TurnUsage> {
    let count = |keys: &[&str]| keys.iter().find_map(|key| usage[*key].as_u64());
    let input = count(&["inputTokens", "input_tokens", "promptTokens", "prompt_tokens"])?;
    let output =
        count(&["outputTokens", "output_tokens", "completionTokens", "completion_tokens"])?;
    let cache_read =
        count(&["cachedReadTokens", "cachedInputTokens", "cachedTokens", "cached_tokens"]);
    let cache_read = cache_read.unwrap_or(0);
    let cache_write = count(&["cachedWriteTokens", "cacheWriteInputTokens"]).unwrap_or(0);
    let total = count(&["totalTokens", "total_tokens"]);
    // Some agents count cached tokens as input, others do not; the total tells them apart.
    let is_inclusive = total == Some(input.saturating_add(output));
    let input = if is_inclusive { input.saturating_sub(cache_read) } else { input };
    Some(TurnUsage { input, cache_read, cache_write, output })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cached_tokens_are_not_counted_twice() {
        let usage = |input, cache_read, output| {
            Some(TurnUsage { input, cache_read, cache_write: 0, output })
        };
        let inclusive = json!({"totalTokens": 1050, "inputTokens": 1000, "outputTokens": 50,
            "cachedReadTokens": 400});
        assert_eq!(parse_usage(&inclusive), usage(600, 400, 50));
        let exclusive = json!({"totalTokens": 1450, "inputTokens": 1000, "outputTokens": 50,
            "cachedReadTokens": 400});
        assert_eq!(parse_usage(&exclusive), usage(1000, 400, 50));
        let gemini = json!({"input_tokens": 1000, "output_tokens": 50});
        assert_eq!(parse_usage(&gemini), usage(1000, 0, 50));
        assert_eq!(parse_usage(&json!({"inputTokens": -1, "outputTokens": "x"})), None);
        assert_eq!(parse_usage(&Json::Null), None);
    }
}
