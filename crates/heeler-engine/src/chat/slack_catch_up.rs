//! Messages on Slack that were written while there was no socket.
//!
//! The record of received events says which messages are known. Those after them are read from the
//! channels and threads, and passed to the dispatcher, which recognizes the ones it has. Start at
//! [`SlackCatchUp::start`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use heeler_connect::{
    ChatApiError, ChatContent, ChatEvent, ChatPlatform, MessageList, SlackBot, SlackUser,
    message_event, sort_messages,
};
use heeler_model::error_chain;
use heeler_store::{ChatGapKey, ChatGapMark, ChatQuestionRecord, StoreReader};
use serde_json::{Value as Json, json};

use super::channel_gap::recorded_marks;
use super::credential::account_policies;
use super::earlier_messages::add_earlier_messages;
use super::link_worker::{LinkWorker, wait_for_record};
use super::speaker_names::SpeakerNames;

/// Most recorded events that are looked at.
const EVENTS_MAX: usize = 5_000;

/// Most open questions with threads that are read.
const QUESTIONS_MAX: usize = 100;

/// Age of the oldest message that is read, in seconds.
const AGE_MAX: i64 = 24 * 3600;

/// Most messages of a gap that are read of one channel or thread. Slack lists the newest first, so all
/// are in memory at once.
const GAP_MESSAGES_MAX: usize = 10_000;

/// Time before the newest known message in which others may be missing, in seconds. Slack delivers
/// messages again for about six minutes, so they arrive in any order.
const OVERLAP: i64 = 15 * 60;

/// Most threads that are read.
const THREADS_MAX: usize = 200;

/// Time for which the names of earlier speakers are asked for. The message waits for them.
const NAMES_TIME: Duration = Duration::from_millis(500);

/// A channel, or a thread of it.
type ListKey = (String, Option<String>);

/// The newest recorded message of each place, before a gap.
#[derive(Debug)]
pub(super) struct CatchUpMarks {
    /// Time of the newest known message, in seconds since 1970.
    newest: BTreeMap<ListKey, i64>,
    /// Direct conversations, and channels with an open question.
    unlisted: BTreeSet<String>,
    /// Time at which the newest event was received; `None` if there was none yet.
    last_event: Option<i64>,
}

/// A gap on record, with the times from which it is read.
#[derive(Debug)]
pub(super) struct SlackGap {
    key: ChatGapKey,
    marks: CatchUpMarks,
}

impl SlackGap {
    /// Records a gap, before a socket exists.
    pub(super) fn begin(worker: &LinkWorker, account: &str) -> Result<SlackGap, String> {
        let marks = CatchUpMarks::read(worker, account)?;
        let key = worker.begin_gap(ChatPlatform::Slack, account, marks.to_record())?;
        Ok(SlackGap { key, marks })
    }
}

impl CatchUpMarks {
    fn read(worker: &LinkWorker, account: &str) -> Result<CatchUpMarks, String> {
        let reader = StoreReader::open(worker.dir()).map_err(|error| error_chain(&error))?;
        let events = reader.recent_inbox_events(ChatPlatform::Slack.as_str(), account, EVENTS_MAX);
        let events = events.map_err(|error| error_chain(&error))?;
        let last_event = events.first().map(|event| event.received_at.as_second());
        let mut marks =
            CatchUpMarks { newest: BTreeMap::new(), unlisted: BTreeSet::new(), last_event };
        for event in events {
            // Clicks and commands are no messages.
            let of_message = |(chat, _): &(&str, &str)| !["click", "command"].contains(chat);
            let Some((chat, ts)) = event.event_id.split_once(':').filter(of_message) else {
                continue;
            };
            let Some(at) = seconds(ts) else { continue };
            if event.is_direct {
                marks.unlisted.insert(chat.to_owned());
            }
            let thread = event.channel.split('/').nth(2);
            let is_root = thread.is_none_or(|thread| thread == ts);
            let places = [
                is_root.then(|| (chat.to_owned(), None)),
                thread.map(|thread| (chat.to_owned(), Some(thread.to_owned()))),
            ];
            for place in places.into_iter().flatten() {
                let newest = marks.newest.entry(place).or_insert(at);
                *newest = at.max(*newest);
            }
        }
        let questions = reader.open_chat_questions(QUESTIONS_MAX);
        for question in questions.map_err(|error| error_chain(&error))? {
            if question.platform == ChatPlatform::Slack.as_str() && question.account == account {
                marks.add_question(&question, worker.now().as_second());
            }
        }
        marks.add_record(recorded_marks(&reader, ChatPlatform::Slack, account)?);
        Ok(marks)
    }

    /// Adds the marks of gaps that were not read completely. The earlier time counts.
    fn add_record(&mut self, recorded: Vec<ChatGapMark>) {
        if let Some(all) = recorded.iter().find(|mark| mark.chat.is_empty()) {
            // Places that had no event before the gap may have one since.
            let all = all.since_ms.div_euclid(1_000);
            let marked: BTreeSet<ListKey> =
                recorded.iter().map(|mark| (mark.chat.clone(), mark.thread.clone())).collect();
            let unmarked = self.newest.iter_mut().filter(|(place, _)| !marked.contains(*place));
            unmarked.for_each(|(_, at)| *at = all.min(*at));
        }
        for ChatGapMark { chat, thread, since_ms, is_unlisted } in recorded {
            let at = since_ms.div_euclid(1_000);
            if chat.is_empty() {
                self.last_event = Some(self.last_event.map_or(at, |known| known.min(at)));
                continue;
            }
            if is_unlisted {
                self.unlisted.insert(chat.clone());
            }
            // A channel of which Slack refused to show the messages has a mark and no event.
            self.last_event.get_or_insert(at);
            let since = self.newest.entry((chat, thread)).or_insert(at);
            *since = at.min(*since);
        }
    }

    fn to_record(&self) -> Vec<ChatGapMark> {
        let all = self.last_event.map(|at| ChatGapMark {
            chat: String::new(),
            thread: None,
            since_ms: at.saturating_mul(1_000),
            is_unlisted: false,
        });
        let places = self.newest.iter().map(|(place, at)| self.mark(place, *at));
        all.into_iter().chain(places).collect()
    }

    fn mark(&self, (chat, thread): &ListKey, at: i64) -> ChatGapMark {
        ChatGapMark {
            chat: chat.clone(),
            thread: thread.clone(),
            since_ms: at.saturating_mul(1_000),
            is_unlisted: self.unlisted.contains(chat),
        }
    }

    /// Notes the thread of an open question, in which its answer may have been written.
    fn add_question(&mut self, question: &ChatQuestionRecord, now: i64) {
        let chat = question.channel.split('/').nth(1);
        let (Some(chat), Some(post)) = (chat, &question.message_id) else { return };
        let Some(at) = seconds(post) else { return };
        self.unlisted.insert(chat.to_owned());
        self.last_event.get_or_insert(at);
        // The question may be older than the messages that are read.
        let at = at.max(now - AGE_MAX + OVERLAP);
        let thread = (chat.to_owned(), Some(post.clone()));
        self.newest.entry(thread).or_insert(at);
    }
}

/// Reads the messages of gaps.
pub(super) struct SlackCatchUp {
    pub(super) worker: LinkWorker,
    pub(super) bot: SlackBot,
    pub(super) own: SlackUser,
    pub(super) account: String,
    pub(super) names: SpeakerNames,
}

/// Messages of a channel or thread.
struct FoundMessages {
    messages: Vec<Json>,
    /// False if Slack refused to show further ones.
    is_complete: bool,
}

impl SlackCatchUp {
    /// Starts a thread that reads the messages of each gap. It ends with the sender.
    pub(super) fn start(mut self, queue: usize) -> std::io::Result<SyncSender<SlackGap>> {
        let (sender, gaps) = sync_channel::<SlackGap>(queue);
        std::thread::Builder::new().name("heeler-catch-up".to_owned()).spawn(move || {
            for gap in gaps {
                let kept = self.catch_up(&gap.marks);
                self.worker.end_gap(&gap.key, &kept);
            }
        })?;
        Ok(sender)
    }

    /// Reads the messages of a gap. Returns the marks of channels and threads that Slack refused to
    /// show; they are read again after the next gap.
    fn catch_up(&mut self, marks: &CatchUpMarks) -> Vec<ChatGapMark> {
        let mut kept = Vec::new();
        // Without any event there was no conversation that could have a gap.
        let Some(last_event) = marks.last_event else { return kept };
        let earliest = self.worker.now().as_second() - AGE_MAX;
        let mut threads: BTreeMap<ListKey, i64> = BTreeMap::new();
        for (place, at) in marks.newest.iter().filter(|((_, thread), _)| thread.is_some()) {
            if *at >= earliest {
                threads.insert(place.clone(), at - OVERLAP);
            }
        }
        for chat in self.chats(marks) {
            let known = marks.newest.get(&(chat.clone(), None)).copied();
            let since = known.unwrap_or(last_event).max(earliest);
            let (place, oldest) = ((chat.clone(), None), since - OVERLAP);
            let found = self.read_list(&place, oldest);
            if !found.is_complete {
                kept.push(marks.mark(&place, since));
            }
            for message in found.messages {
                // A thread may have begun in the gap.
                if let Some(thread) = message["thread_ts"].as_str() {
                    threads.entry((chat.clone(), Some(thread.to_owned()))).or_insert(oldest);
                }
            }
        }
        let newest_first = {
            let mut all: Vec<(ListKey, i64)> = threads.into_iter().collect();
            all.sort_by_key(|(_, oldest)| std::cmp::Reverse(*oldest));
            all
        };
        let chats = self.chats(marks);
        for (place, oldest) in newest_first.into_iter().take(THREADS_MAX) {
            if chats.contains(&place.0) && !self.read_list(&place, oldest).is_complete {
                kept.push(marks.mark(&place, oldest + OVERLAP));
            }
        }
        kept
    }

    /// Lists the channels in which an agent answers, by the config of now.
    fn chats(&self, marks: &CatchUpMarks) -> BTreeSet<String> {
        let setup = self.worker.setup();
        let policies =
            account_policies(&setup.loaded, &setup.env, ChatPlatform::Slack, &self.account);
        let listed = policies.iter().flat_map(|policy| &policy.chats);
        let listed = listed.map(|chat| chat.id.to_owned());
        listed.chain(marks.unlisted.iter().cloned()).collect()
    }

    /// Reads a channel or thread, and passes its messages to the dispatcher. Returns them.
    fn read_list(&mut self, place: &ListKey, oldest: i64) -> FoundMessages {
        let mut found = self.list_messages(place, oldest);
        sort_messages(&mut found.messages);
        for message in &mut found.messages {
            // A list of messages does not repeat its channel.
            message["channel"] = json!(place.0);
            self.pass_message(message);
        }
        found
    }

    /// Lists the messages of a channel or thread. Those before a refusal are kept.
    fn list_messages(&mut self, place: &ListKey, oldest: i64) -> FoundMessages {
        let list = MessageList { chat: &place.0, thread: place.1.as_deref() };
        let oldest = format!("{}.000000", oldest.max(0));
        let (mut messages, mut cursor) = (Vec::new(), None);
        while !self.worker.is_stopped() {
            match self.bot.message_page(list, &oldest, cursor.as_deref()) {
                Ok(page) => {
                    messages.extend(page.messages);
                    cursor = page.next;
                    if cursor.is_some() && messages.len() < GAP_MESSAGES_MAX {
                        continue;
                    }
                    if cursor.is_some() {
                        let problem = format!(
                            "messages of {} may be missing: more than {GAP_MESSAGES_MAX} were written",
                            place.0
                        );
                        self.worker.note_limitation(problem);
                    }
                    return FoundMessages { messages, is_complete: true };
                }
                Err(error @ ChatApiError::Refused { .. }) => {
                    let problem = format!("messages of {} may be missing: {error}", place.0);
                    self.worker.note_limitation(problem);
                    return FoundMessages { messages, is_complete: false };
                }
                Err(error) => {
                    tracing::warn!(%error, "reading the messages of a channel again");
                    let pause = self.worker.next_pause(&error);
                    self.worker.rest_for(pause);
                }
            }
        }
        FoundMessages { messages, is_complete: false }
    }

    /// Passes a message until it is recorded.
    fn pass_message(&mut self, message: &Json) {
        let Some(mut event) = message_event(message, &self.own, &self.account) else { return };
        self.names.name_sender(&mut event);
        let reader =
            EarlierSlackMessages { bot: &self.bot, own: &self.own, account: &self.account };
        reader.add_to(&self.worker, &mut self.names, &mut event);
        while !self.worker.is_stopped() {
            match wait_for_record(&self.worker.pass_event(event.clone())) {
                Ok(_) => return,
                Err(refused) => {
                    let problem = format!("a message is not recorded yet: {}", refused.message);
                    self.worker.note_limitation(problem);
                    self.worker.rest();
                }
            }
        }
    }
}

/// Reads the messages before one that begins a conversation.
pub(super) struct EarlierSlackMessages<'a> {
    pub(super) bot: &'a SlackBot,
    pub(super) own: &'a SlackUser,
    pub(super) account: &'a str,
}

impl EarlierSlackMessages<'_> {
    pub(super) fn add_to(
        &self,
        worker: &LinkWorker,
        names: &mut SpeakerNames,
        event: &mut ChatEvent,
    ) {
        let ChatContent::Message { id, .. } = &event.content else { return };
        let (id, place) = (id.clone(), event.place.clone());
        add_earlier_messages(worker, event, |count| {
            // A message in a channel is the root of its thread.
            let thread = place.thread.as_deref().filter(|thread| *thread != id);
            let list = MessageList { chat: &place.chat, thread };
            let messages = self.bot.messages_before(list, &id, count)?;
            let skipped = messages.len().saturating_sub(count);
            let until = Instant::now() + NAMES_TIME;
            let events = messages.into_iter().skip(skipped).filter_map(|mut message| {
                message["channel"] = json!(place.chat);
                let mut event = message_event(&message, self.own, self.account)?;
                // Those who are not named in time are named by their IDs.
                if Instant::now() < until {
                    names.name_sender(&mut event);
                }
                Some(event)
            });
            Ok(events.collect())
        });
    }
}

fn seconds(ts: &str) -> Option<i64> {
    ts.split('.').next()?.parse().ok()
}
