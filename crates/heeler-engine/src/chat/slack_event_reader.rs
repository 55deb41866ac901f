//! Events of Slack, with what is read for them: files, names of speakers, and earlier messages.
//!
//! Start at [`SlackEventReader::complete`].

use std::io;
use std::sync::mpsc::SyncSender;

use heeler_connect::{
    ChatEvent, ChatPlatform, ChatPolicy, MessageList, SlackBot, SlackFrame, SlackUser,
    message_event, payload_event,
};
use serde_json::{Value as Json, json};

use super::credential::account_policies;
use super::link_worker::LinkWorker;
use super::slack_catch_up::{EarlierSlackMessages, SlackCatchUp, SlackGap};
use super::speaker_names::SpeakerNames;

/// Most gaps that wait to be read. A further one is read after the next change of sockets.
const GAPS_MAX: usize = 4;

/// Reads events as one app.
pub(super) struct SlackEventReader {
    bot: SlackBot,
    own: SlackUser,
    account: String,
    names: SpeakerNames,
}

impl SlackEventReader {
    pub(super) fn new(bot: &SlackBot, own: SlackUser, account: &str) -> SlackEventReader {
        let names = SpeakerNames::new(bot.clone());
        SlackEventReader { bot: bot.clone(), own, account: account.to_owned(), names }
    }

    pub(super) fn account(&self) -> &str {
        &self.account
    }

    /// Starts the thread that reads the messages of gaps.
    pub(super) fn start_catch_up(&self, worker: &LinkWorker) -> io::Result<SyncSender<SlackGap>> {
        let catch_up = SlackCatchUp {
            worker: worker.clone(),
            bot: self.bot.clone(),
            own: self.own.clone(),
            account: self.account.clone(),
            names: SpeakerNames::new(self.bot.clone()),
        };
        catch_up.start(GAPS_MAX)
    }

    pub(super) fn parse_frame(&self, text: &str) -> SlackFrame {
        SlackFrame::parse(text, &self.own, &self.account)
    }

    /// Returns the event in the payload of a call, complete.
    pub(super) fn read_call(
        &mut self,
        worker: &LinkWorker,
        kind: &str,
        payload: &Json,
    ) -> Option<ChatEvent> {
        let (event, may_lack_files) = payload_event(kind, payload, &self.own, &self.account);
        let mut event = event?;
        self.complete(worker, &mut event, may_lack_files);
        Some(event)
    }

    /// Adds what an event lacks.
    pub(super) fn complete(
        &mut self,
        worker: &LinkWorker,
        event: &mut ChatEvent,
        may_lack_files: bool,
    ) {
        if may_lack_files {
            self.add_files(worker, event);
        }
        self.names.name_sender(event);
        let reader =
            EarlierSlackMessages { bot: &self.bot, own: &self.own, account: &self.account };
        reader.add_to(worker, &mut self.names, event);
    }

    /// Adds the files of the message to a mention that comes without them. The two events of a message come in
    /// any order, and only the first counts.
    fn add_files(&self, worker: &LinkWorker, event: &mut ChatEvent) {
        let Some(id) = event.event_id.rsplit(':').next().map(str::to_owned) else { return };
        let setup = worker.setup();
        let policies =
            account_policies(&setup.loaded, &setup.env, ChatPlatform::Slack, &self.account);
        let takes_files =
            |policy: &ChatPolicy<'_>| policy.answers_in(&event.place) && policy.takes_files();
        if !policies.iter().any(takes_files) {
            return;
        }
        let thread = event.place.thread.as_deref().filter(|thread| *thread != id);
        let found = self.bot.message(MessageList { chat: &event.place.chat, thread }, &id);
        let message = found.unwrap_or_else(|error| {
            tracing::info!(%error, "a mention is taken without its files");
            None
        });
        let Some(mut message) = message else { return };
        message["channel"] = json!(event.place.chat);
        let whole = message_event(&message, &self.own, &self.account);
        if let Some(whole) = whole.filter(|whole| whole.event_id == event.event_id) {
            event.content = whole.content;
        }
    }
}
