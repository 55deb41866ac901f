//! Records of run cards in chats: which are posted and not finished.
//!
//! The record lets the next daemon finish the cards of jobs that ended meanwhile. Start at
//! [`DispatchTransaction::record_run_card`].

use heeler_model::{JobId, TriggerType, error_chain};
use heeler_store::{DatabaseError, EffectRecord, StoreReader};

use super::dispatcher::Dispatcher;
use super::transaction::DispatchTransaction;
use crate::chat::RunCardChange;

/// Kind of the effects that are unfinished cards. The payload is the ID of the post.
const CARD_KIND: &str = "run_card";

/// Most cards that a daemon takes over.
const CARDS_MAX: usize = 1_000;

impl DispatchTransaction<'_, '_> {
    /// Records that a card was posted or finished.
    pub(super) fn record_run_card(&mut self, change: &RunCardChange) -> Result<(), DatabaseError> {
        match change {
            RunCardChange::Posted { job, channel, message } => {
                let effect = EffectRecord {
                    id: card_id(job),
                    kind: CARD_KIND.to_owned(),
                    key: channel.clone(),
                    payload: message.clone(),
                    created_at: self.now,
                    attempts: 0,
                    last_error: None,
                };
                self.tx.add_effect(&effect).map(drop)
            }
            RunCardChange::Finished { job } => {
                self.tx.finish_effect(&card_id(job), self.now).map(drop)
            }
        }
    }
}

impl Dispatcher {
    /// Continues the live output of an earlier daemon.
    pub(super) fn resume_run_cards(&self) {
        if !self.runs_schedules() {
            return;
        }
        let cards = StoreReader::open(&self.fleet.dir).map_err(|error| error_chain(&error));
        let cards = cards.and_then(|reader| {
            let cards = reader.pending_effects_of_kind(CARD_KIND, CARDS_MAX);
            cards.map_err(|error| error_chain(&error))
        });
        let cards = match cards {
            Ok(cards) => cards,
            Err(reason) => return tracing::warn!(reason, "cannot read the run cards"),
        };
        let mut known: Vec<JobId> = Vec::new();
        for card in cards {
            let Some(Ok(job)) = card.id.strip_prefix("card ").map(str::parse::<JobId>) else {
                continue;
            };
            known.push(job.clone());
            self.executor.resume_chat_job(job, Some(card.payload));
        }
        let state = self.state();
        let chats = state.fleet.jobs().filter(|job| {
            job.request.trigger == TriggerType::Chat && job.request.channel.is_some()
        });
        for job in chats.filter(|job| !known.contains(&job.entry.job)) {
            self.executor.resume_chat_job(job.entry.job.clone(), None);
        }
    }
}

fn card_id(job: &JobId) -> String {
    format!("card {job}")
}
