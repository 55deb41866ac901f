//! Link to Telegram: long polling.
//!
//! Updates are confirmed by the next request for updates. Start at [`run_telegram`].

use std::time::Duration;

use heeler_connect::{TelegramBot, TelegramUser, parse_update};
use serde_json::Value as Json;

use super::credential::ChatCredential;
use super::link_worker::{EventReply, LinkWorker, wait_for_record};
use crate::fault::{self, FaultPoint};

/// Time for which a platform may hold a request for events.
const POLL_WAIT: Duration = Duration::from_secs(25);

/// Receives updates until the link is stopped.
pub(super) fn run_telegram(worker: LinkWorker, credential: &ChatCredential) {
    let ChatCredential { api_url, token, variable, .. } = credential;
    // The form of the token was checked with the credential.
    let Ok(bot) = TelegramBot::new(api_url, token, variable) else { return };
    TelegramLink { worker, bot, offset: 0 }.run();
}

struct TelegramLink {
    worker: LinkWorker,
    bot: TelegramBot,
    /// First update that is not confirmed.
    offset: i64,
}

/// An event that was passed to the dispatcher.
struct PassedUpdate {
    id: i64,
    /// Receives the reply; `None` for an update that is no event.
    reply: Option<EventReply>,
    /// ID by which a click is answered.
    callback: Option<String>,
}

impl TelegramLink {
    fn run(mut self) {
        let mut user: Option<TelegramUser> = None;
        while !self.worker.is_stopped() {
            let received = match &user {
                None => self.bot.own_user().map(|own| {
                    user = Some(own);
                    if let Err(error) = self.bot.offer_commands() {
                        // They work without the menu too.
                        tracing::debug!(%error, "the commands are not in the menu of the bot");
                    }
                    Vec::new()
                }),
                Some(_) => self.bot.updates(self.offset, POLL_WAIT),
            };
            match (received, &user) {
                (Ok(updates), Some(user)) => {
                    self.worker.note_contact();
                    self.pass_updates(user, &updates);
                }
                (Ok(_), None) => {}
                (Err(error), _) => self.worker.pause_after(&error),
            }
        }
    }

    /// Passes updates to the dispatcher, and raises the offset beyond the recorded ones.
    fn pass_updates(&mut self, user: &TelegramUser, updates: &[Json]) {
        let passed: Vec<PassedUpdate> =
            updates.iter().filter_map(|update| self.pass_update(update, user)).collect();
        let mut clicks = Vec::new();
        for PassedUpdate { id, reply, callback } in passed {
            match reply.as_ref().map_or(Ok(String::new()), wait_for_record) {
                Ok(answer) => {
                    self.offset = id + 1;
                    clicks.extend(callback.map(|callback| (callback, answer)));
                }
                // Later updates of the answer may be recorded; they are recognized when they come
                // again.
                Err(refused) => {
                    let problem = format!("a message is not recorded yet: {}", refused.message);
                    self.worker.note_problem(problem);
                    self.worker.rest();
                    break;
                }
            }
        }
        fault::reach(FaultPoint::ChatRecorded);
        for (callback, answer) in clicks {
            // Only the person's screen waits for it.
            if let Err(error) = self.bot.answer_click(&callback, &answer) {
                tracing::debug!(%error, "a click was not answered");
            }
        }
    }

    fn pass_update(&self, update: &Json, user: &TelegramUser) -> Option<PassedUpdate> {
        let id = update["update_id"].as_i64()?;
        let Some(event) = parse_update(update, user) else {
            return Some(PassedUpdate { id, reply: None, callback: None });
        };
        let callback = event.content.callback().map(str::to_owned);
        Some(PassedUpdate { id, reply: Some(self.worker.pass_event(event)), callback })
    }
}
