//! Tokens of the API's replies, counted as they pass.
//!
//! A [`ReplyCounter`] reads one reply and adds its use to the [`UsageLedger`] of the run, also if the
//! agent stops reading early. The agent cannot change these figures.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value as Json;

use crate::price::price_usd;

/// Longest line of an event stream that is read, in bytes. Lines with use are short.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Largest reply in one piece that is read, in bytes.
const REPLY_BYTES_MAX: usize = 16 << 20;

/// Models that are counted separately; further ones are counted together.
const MODELS_MAX: usize = 32;

/// Bytes of an event around the text that it carries.
const DELTA_FRAME_BYTES: usize = 90;

/// Fewest bytes of text in one output token, for a reply whose end the agent did not wait for.
const TOKEN_BYTES_MIN: usize = 3;

/// Use of one reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplyUsage {
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

    /// Takes over the figures of a `usage` object. Those of a stream are totals that only grow.
    fn merge(&mut self, usage: &Json) {
        let number = |value: &Json| value.as_u64().unwrap_or(0);
        let written = number(&usage["cache_creation_input_tokens"]);
        let hour = number(&usage["cache_creation"]["ephemeral_1h_input_tokens"]).min(written);
        let raise = |field: &mut u64, value: u64| *field = (*field).max(value);
        raise(&mut self.input_tokens, number(&usage["input_tokens"]));
        raise(&mut self.output_tokens, number(&usage["output_tokens"]));
        raise(&mut self.cache_read_tokens, number(&usage["cache_read_input_tokens"]));
        raise(&mut self.cache_write_hour_tokens, hour);
        raise(&mut self.cache_write_short_tokens, written - hour);
        raise(&mut self.web_searches, number(&usage["server_tool_use"]["web_search_requests"]));
    }
}

/// Use of one model by a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ApiUsage {
    pub replies: u64,
    pub tokens: ReplyUsage,
    /// Cost of the replies by list prices.
    pub cost_usd: f64,
    /// Replies of a model without a list price; `cost_usd` lacks them.
    pub unpriced_replies: u64,
}

/// Use of the API by a run. Clones share the figures.
#[derive(Debug, Clone, Default)]
pub struct UsageLedger(Arc<Mutex<LedgerState>>);

#[derive(Debug, Default)]
struct LedgerState {
    models: BTreeMap<String, ApiUsage>,
    limit_usd: Option<f64>,
}

impl UsageLedger {
    /// Returns a ledger for a run that may spend this much.
    pub fn with_limit(limit_usd: Option<f64>) -> UsageLedger {
        UsageLedger(Arc::new(Mutex::new(LedgerState { models: BTreeMap::new(), limit_usd })))
    }

    /// Returns the use by model.
    pub fn by_model(&self) -> BTreeMap<String, ApiUsage> {
        self.state().models.clone()
    }

    /// Returns the cost of all replies by list prices.
    pub fn cost_usd(&self) -> f64 {
        self.state().models.values().map(|usage| usage.cost_usd).sum()
    }

    /// Returns true if the run has spent all that it may spend.
    pub(crate) fn is_spent(&self) -> bool {
        let limit = self.state().limit_usd;
        limit.is_some_and(|limit| self.cost_usd() >= limit)
    }

    fn record(&self, model: &str, reply: &ReplyUsage) {
        let mut state = self.state();
        let is_new = !state.models.contains_key(model);
        let name = if is_new && state.models.len() >= MODELS_MAX { "(others)" } else { model };
        let usage = state.models.entry(name.to_owned()).or_default();
        usage.replies += 1;
        let total = &mut usage.tokens;
        total.input_tokens += reply.input_tokens;
        total.output_tokens += reply.output_tokens;
        total.cache_read_tokens += reply.cache_read_tokens;
        total.cache_write_short_tokens += reply.cache_write_short_tokens;
        total.cache_write_hour_tokens += reply.cache_write_hour_tokens;
        total.web_searches += reply.web_searches;
        match price_usd(model, reply) {
            Some(cost) => usage.cost_usd += cost,
            None => usage.unpriced_replies += 1,
        }
    }

    fn state(&self) -> MutexGuard<'_, LedgerState> {
        // No code that holds the lock panics halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Form of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountedFormat {
    Json,
    EventStream,
}

/// Counts one reply. What it has seen is recorded when it is dropped.
pub(crate) struct ReplyCounter {
    format: CountedFormat,
    ledger: UsageLedger,
    /// The whole reply, or the last unfinished line.
    buffer: Vec<u8>,
    /// The rest of a line that is too long is ignored.
    skips_line: bool,
    model: String,
    usage: ReplyUsage,
    is_begun: bool,
    /// The final figures have arrived.
    is_final: bool,
    text_bytes: usize,
}

impl ReplyCounter {
    pub(crate) fn new(format: CountedFormat, ledger: UsageLedger) -> ReplyCounter {
        ReplyCounter {
            format,
            ledger,
            buffer: Vec::new(),
            skips_line: false,
            model: String::new(),
            usage: ReplyUsage::default(),
            is_begun: false,
            is_final: false,
            text_bytes: 0,
        }
    }

    /// Reads the next bytes of the reply.
    pub(crate) fn read(&mut self, bytes: &[u8]) {
        match self.format {
            CountedFormat::Json if self.buffer.len() + bytes.len() <= REPLY_BYTES_MAX => {
                self.buffer.extend_from_slice(bytes);
            }
            CountedFormat::Json => {}
            CountedFormat::EventStream => {
                for part in bytes.split_inclusive(|byte| *byte == b'\n') {
                    self.read_part(part);
                }
            }
        }
    }

    fn read_part(&mut self, part: &[u8]) {
        if self.buffer.len() + part.len() > LINE_BYTES_MAX {
            self.skips_line = true;
            self.buffer.clear();
        }
        if !self.skips_line {
            self.buffer.extend_from_slice(part);
        }
        if part.ends_with(b"\n") {
            let line = std::mem::take(&mut self.buffer);
            if !std::mem::take(&mut self.skips_line) {
                self.read_line(&line);
            }
        }
    }

    fn read_line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:") else { return };
        let Ok(event) = serde_json::from_slice::<Json>(data) else { return };
        match event["type"].as_str() {
            Some("message_start") => {
                self.is_begun = true;
                self.model = event["message"]["model"].as_str().unwrap_or_default().to_owned();
                self.usage.merge(&event["message"]["usage"]);
            }
            Some("content_block_delta") => {
                self.text_bytes += data.len().saturating_sub(DELTA_FRAME_BYTES);
            }
            Some("message_delta") => {
                self.is_final = true;
                self.usage.merge(&event["usage"]);
            }
            _ => {}
        }
    }
}

impl Drop for ReplyCounter {
    fn drop(&mut self) {
        match self.format {
            CountedFormat::Json => {
                let Ok(reply) = serde_json::from_slice::<Json>(&self.buffer) else {
                    tracing::warn!("a reply of the API could not be counted");
                    return;
                };
                self.usage.merge(&reply["usage"]);
                self.model = reply["model"].as_str().unwrap_or_default().to_owned();
            }
            CountedFormat::EventStream if !self.is_begun => return,
            CountedFormat::EventStream => {
                // An agent that stops reading before the end must not get its output for free.
                if !self.is_final {
                    let estimate =
                        u64::try_from(self.text_bytes / TOKEN_BYTES_MIN).unwrap_or(u64::MAX);
                    self.usage.output_tokens = self.usage.output_tokens.max(estimate);
                }
            }
        }
        self.ledger.record(&self.model, &self.usage);
    }
}

#[cfg(test)]
mod tests;
