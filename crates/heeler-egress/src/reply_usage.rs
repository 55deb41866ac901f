//! Tokens of one reply of a model API.

/// Use of one reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplyUsage {
    /// Input that is not cached.
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    /// Tokens written to the cache for five minutes.
    pub cache_write_short_tokens: u64,
    /// Tokens written to the cache for an hour.
    pub cache_write_hour_tokens: u64,
    pub web_searches: u64,
}

impl ReplyUsage {
    pub fn cache_write_tokens(&self) -> u64 {
        self.cache_write_short_tokens + self.cache_write_hour_tokens
    }

    /// Replaces a part of a total by another one.
    pub(crate) fn replace(&mut self, before: &ReplyUsage, after: &ReplyUsage) {
        let replace = |total: &mut u64, before: u64, after: u64| {
            *total = total.saturating_sub(before).saturating_add(after);
        };
        replace(&mut self.input_tokens, before.input_tokens, after.input_tokens);
        replace(&mut self.output_tokens, before.output_tokens, after.output_tokens);
        replace(&mut self.cache_read_tokens, before.cache_read_tokens, after.cache_read_tokens);
        let (short, hour) = (before.cache_write_short_tokens, before.cache_write_hour_tokens);
        replace(&mut self.cache_write_short_tokens, short, after.cache_write_short_tokens);
        replace(&mut self.cache_write_hour_tokens, hour, after.cache_write_hour_tokens);
        replace(&mut self.web_searches, before.web_searches, after.web_searches);
    }

    /// Returns all tokens.
    pub(crate) fn tokens(&self) -> u64 {
        let inputs = self.input_tokens.saturating_add(self.cache_read_tokens);
        inputs.saturating_add(self.cache_write_tokens()).saturating_add(self.output_tokens)
    }
}
