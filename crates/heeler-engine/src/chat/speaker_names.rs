//! Names of the people who speak in channels of Slack.
//!
//! Start at [`SpeakerNames`].

use std::collections::HashMap;

use heeler_connect::{ChatApiError, ChatContent, ChatEvent, SlackBot};

/// Most names that are remembered.
const NAMES_MAX: usize = 1_000;

/// Names of the people who speak in channels. Slack's events have only their IDs.
pub(super) struct SpeakerNames {
    bot: SlackBot,
    names: HashMap<String, String>,
    /// False if the app may not ask.
    may_ask: bool,
}

impl SpeakerNames {
    pub(super) fn new(bot: SlackBot) -> SpeakerNames {
        SpeakerNames { bot, names: HashMap::new(), may_ask: true }
    }

    /// Sets the name of the sender of a message in a channel.
    pub(super) fn name_sender(&mut self, event: &mut ChatEvent) {
        let is_message = matches!(event.content, ChatContent::Message { .. });
        // In a direct conversation, no name is needed.
        if !is_message || event.place.is_direct || event.sender.is_bot {
            return;
        }
        let id = &event.sender.id;
        if !self.names.contains_key(id) && self.may_ask {
            if self.names.len() >= NAMES_MAX {
                self.names.clear();
            }
            match self.bot.user_name(id) {
                Ok(name) => drop(self.names.insert(id.clone(), name)),
                Err(ChatApiError::Refused { said, .. }) => {
                    tracing::info!(said, "people on Slack are named by their IDs");
                    self.may_ask = false;
                }
                // The next message asks again.
                Err(_) => {}
            }
        }
        if let Some(name) = self.names.get(id) {
            event.sender.name.clone_from(name);
        }
    }
}
