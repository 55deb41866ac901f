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

    /// Records a reply, or later figures of one in place of those that were recorded.
    fn record(&self, model: &str, reply: &RecordedReply, before: Option<&ReplyUsage>) {
        let mut state = self.state();
        state.has_detached_reply |= reply.is_detached;
        let price = |usage: &ReplyUsage| match &state.rates {
            Some(rates) if rates.is_for(model) => Some(rates.price_usd(usage)),
            Some(rates) => price_usd(model, usage).or_else(|| Some(rates.price_usd(usage))),
            None => price_usd(model, usage),
        };
        let (cost, cost_before) = (price(&reply.usage), before.and_then(price));
        let is_new = !state.models.contains_key(model);
        let name = if is_new && state.models.len() >= MODELS_MAX { "(others)" } else { model };
        let usage = state.models.entry(name.to_owned()).or_default();
        if before.is_none() {
            usage.replies += 1;
            usage.unpriced_replies += u64::from(cost.is_none() || reply.is_detached);
        }
        usage.tokens.replace(before.unwrap_or(&ReplyUsage::default()), &reply.usage);
        usage.cost_usd += cost.unwrap_or(0.0) - cost_before.unwrap_or(0.0);
    }

    fn state(&self) -> MutexGuard<'_, LedgerState> {
        // No code that holds the lock panics halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Figures of a reply for the record.
#[derive(Debug, Clone, Copy, Default)]
struct RecordedReply {
    usage: ReplyUsage,
    /// The API works on without telling its use.
    is_detached: bool,
}

/// Form of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountedFormat {
    Json,
    EventStream,
}

/// Counts one reply. Its final figures are recorded before the agent sees them, so that no further call
/// begins with a spent budget; what it has seen otherwise is recorded when it is dropped.
pub(crate) struct ReplyCounter {
    format: CountedFormat,
    ledger: UsageLedger,
    /// The whole reply, or the last unfinished line.
    buffer: Vec<u8>,
    /// The rest of a line that is too long is ignored.
    skips_line: bool,
    figures: ReplyFigures,
    /// Figures and model that are on record.
    recorded: Option<(String, ReplyUsage)>,
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
            recorded: None,
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
        if self.figures.is_final {
            self.record();
        }
    }

    /// Records the figures, unless they are on record.
    fn record(&mut self) {
        let ReplyFigures { model, usage, is_detached, .. } = &self.figures;
        let reply = RecordedReply { usage: *usage, is_detached: *is_detached };
        match &mut self.recorded {
            // A reply has one model.
            Some((model, before)) => {
                self.ledger.record(model, &reply, Some(before));
                *before = *usage;
            }
            None => {
                self.ledger.record(model, &reply, None);
                self.recorded = Some((model.clone(), *usage));
            }
        }
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
        if self.figures.is_begun {
            self.figures.estimate_rest(self.request_bytes.load(Ordering::Relaxed));
            self.record();
        }
    }
}

#[cfg(test)]
mod tests;
