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

    /// Returns all tokens.
    pub(crate) fn tokens(&self) -> u64 {
        let inputs = self.input_tokens.saturating_add(self.cache_read_tokens);
        inputs.saturating_add(self.cache_write_tokens()).saturating_add(self.output_tokens)
    }
}
