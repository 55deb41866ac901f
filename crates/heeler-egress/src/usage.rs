//! Tokens of the API's replies, counted as they pass.
//!
//! A [`ReplyCounter`] reads one reply and adds its use to the [`UsageLedger`] of the run, also if the
//! agent stops reading early. The agent cannot change these figures.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heeler_config::ModelApiProtocol;
use serde_json::Value as Json;

use crate::price::{ModelRates, price_usd};
use crate::reply_figures::ReplyFigures;
use crate::reply_usage::ReplyUsage;

/// Longest line of an event stream that is read, in bytes. The use of a reply whose last event is longer
/// is estimated.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Largest reply in one piece that is read, in bytes.
const REPLY_BYTES_MAX: usize = 16 << 20;

/// Models that are counted separately; further ones are counted together.
const MODELS_MAX: usize = 32;

/// Use of one model by a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ApiUsage {
    pub replies: u64,
    pub tokens: ReplyUsage,
    /// Cost of the replies by the known prices.
    pub cost_usd: f64,
    /// Replies without a known price or use; `cost_usd` lacks them.
    pub unpriced_replies: u64,
}

/// Use of the API by a run. Clones share the figures.
#[derive(Debug, Clone, Default)]
pub struct UsageLedger(Arc<Mutex<LedgerState>>);

#[derive(Debug, Default)]
struct LedgerState {
    models: BTreeMap<String, ApiUsage>,
    limit_usd: Option<f64>,
    /// Prices of the agent's model, which precede the known ones. Models without a price have them, too.
    rates: Option<ModelRates>,
    /// The API works for the run without telling what it costs.
    has_detached_reply: bool,
}

impl UsageLedger {
    /// Returns a ledger for a run that may spend this much.
    pub fn with_limit(limit_usd: Option<f64>) -> UsageLedger {
        UsageLedger(Arc::new(Mutex::new(LedgerState { limit_usd, ..LedgerState::default() })))
    }

    /// Sets the prices of the agent's model, which precede the known ones. A model without a price costs as
    /// much, so that an agent cannot leave its budget by another model.
    pub fn set_rates(&self, rates: ModelRates) {
        self.state().rates = Some(rates);
    }

    /// Returns the use by model.
    pub fn by_model(&self) -> BTreeMap<String, ApiUsage> {
        self.state().models.clone()
    }

    /// Returns the cost of all replies by the known prices.
    pub fn cost_usd(&self) -> f64 {
        self.state().models.values().map(|usage| usage.cost_usd).sum()
    }

    /// Returns true if the run has spent all that it may spend.
    pub(crate) fn is_spent(&self) -> bool {
        let (limit, has_detached_reply) = {
            let state = self.state();
            (state.limit_usd, state.has_detached_reply)
        };
        limit.is_some_and(|limit| has_detached_reply || self.cost_usd() >= limit)
    }

    fn record(&self, model: &str, reply: &ReplyUsage, is_detached: bool) {
        let mut state = self.state();
        state.has_detached_reply |= is_detached;
        let price = match &state.rates {
            Some(rates) if rates.is_for(model) => Some(rates.price_usd(reply)),
            Some(rates) => price_usd(model, reply).or_else(|| Some(rates.price_usd(reply))),
            None => price_usd(model, reply),
        };
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
        usage.cost_usd += price.unwrap_or(0.0);
        usage.unpriced_replies += u64::from(price.is_none() || is_detached);
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
    figures: ReplyFigures,
    /// Bytes of the request that were sent.
    request_bytes: Arc<AtomicU64>,
}

impl ReplyCounter {
    pub(crate) fn new(
        protocol: ModelApiProtocol,
        format: CountedFormat,
        request_bytes: Arc<AtomicU64>,
        ledger: UsageLedger,
    ) -> ReplyCounter {
        ReplyCounter {
            format,
            ledger,
            buffer: Vec::new(),
            skips_line: false,
            figures: ReplyFigures::new(protocol),
            request_bytes,
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
        self.figures.read_event(&event, data.len());
    }
}

impl Drop for ReplyCounter {
    fn drop(&mut self) {
        if self.format == CountedFormat::Json {
            let Ok(reply) = serde_json::from_slice::<Json>(&self.buffer) else {
                tracing::warn!("a reply of the API could not be counted");
                return;
            };
            self.figures.read_whole(&reply);
        }
        let figures = &mut self.figures;
        if figures.is_begun {
            figures.estimate_rest(self.request_bytes.load(Ordering::Relaxed));
            self.ledger.record(&figures.model, &figures.usage, figures.is_detached);
        }
    }
}

#[cfg(test)]
mod tests;
