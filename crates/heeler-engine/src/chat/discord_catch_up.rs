//! Messages on Discord that were written while there was no session.
//!
//! Start at [`DiscordCatchUp::run`].

use std::collections::{BTreeMap, BTreeSet};

use heeler_connect::{
    ChatApiError, ChatContent, ChatEvent, ChatPlatform, DiscordBot, DiscordDirectory,
};
use heeler_model::error_chain;
use heeler_store::{ChatGapKey, ChatGapMark, StoreReader};
use serde_json::{Value as Json, json};

use super::channel_gap::recorded_marks;
use super::credential::account_policies;
use super::earlier_messages::add_earlier_messages;
use super::link_worker::{LinkWorker, wait_for_record};

/// Most recorded events that are looked at.
const EVENTS_MAX: usize = 5_000;

/// Most open questions with channels that are read.
const QUESTIONS_MAX: usize = 100;

/// Age of the oldest message that is read, in milliseconds.
const AGE_MAX: i64 = 24 * 3_600_000;

/// Time before the newest known message in which others may be missing, in milliseconds.
const OVERLAP: i64 = 5 * 60_000;

/// Most channels and threads that are read.
const CHANNELS_MAX: usize = 500;

/// Beginning of Discord's time, in milliseconds since 1970.
const EPOCH: i64 = 1_420_070_400_000;

/// The newest recorded message of each channel, before a gap.
#[derive(Debug)]
struct DiscordMarks {
    /// Channels and threads, with the time of the newest known message.
    newest: BTreeMap<String, ChannelMark>,
    /// Channels with an open question, to which the answer may have been written.
    asked_in: BTreeSet<String>,
    /// Time at which the newest event was received, in milliseconds since 1970; `None` if there was
    /// none yet.
    last_event: Option<i64>,
}

/// A gap on record, with the times from which it is read.
#[derive(Debug)]
pub(super) struct DiscordGap {
    key: ChatGapKey,
    marks: DiscordMarks,
}

impl DiscordGap {
    /// Records a gap, before a session exists.
    pub(super) fn begin(worker: &LinkWorker, account: &str) -> Result<DiscordGap, String> {
        let marks = DiscordMarks::read(worker, account)?;
        let key = worker.begin_gap(ChatPlatform::Discord, account, marks.to_record())?;
        Ok(DiscordGap { key, marks })
    }
}

#[derive(Debug, Clone)]
struct ChannelMark {
    /// Channel that the config may list; for a thread, the one that it belongs to.
    chat: String,
    is_direct: bool,
    /// Milliseconds since 1970.
    at: i64,
}

impl DiscordMarks {
    fn read(worker: &LinkWorker, account: &str) -> Result<DiscordMarks, String> {
        let reader = StoreReader::open(worker.dir()).map_err(|error| error_chain(&error))?;
        let platform = ChatPlatform::Discord.as_str();
        let events = reader.recent_inbox_events(platform, account, EVENTS_MAX);
        let events = events.map_err(|error| error_chain(&error))?;
        let mut last_event = events.first().map(|event| event.received_at.as_millisecond());
        let mut newest: BTreeMap<String, ChannelMark> = BTreeMap::new();
        for event in events {
            let Some((channel, id)) = event.event_id.split_once(':') else { continue };
            let Some(at) = id
                .parse::<i64>()
                .ok()
                .map(time_of)
                .filter(|_| !["click", "command"].contains(&channel))
            else {
                continue;
            };
            let chat = event.channel.split('/').nth(1).unwrap_or(channel).to_owned();
            let mark = ChannelMark { chat, is_direct: event.is_direct, at };
            let known = newest.entry(channel.to_owned()).or_insert(mark);
            known.at = known.at.max(at);
        }
        let mut asked_in = BTreeSet::new();
        let questions = reader.open_chat_questions(QUESTIONS_MAX);
        for question in questions.map_err(|error| error_chain(&error))? {
            let chat = question.channel.split('/').nth(1);
            let (Some(chat), true) = (chat, question.platform == platform) else { continue };
            if question.account == account && !question.is_direct {
                asked_in.insert(chat.to_owned());
                last_event.get_or_insert(question.asked_at.as_millisecond());
            }
        }
        let mut marks = DiscordMarks { newest, asked_in, last_event };
        marks.add_record(recorded_marks(&reader, ChatPlatform::Discord, account)?);
        Ok(marks)
    }

    /// Adds the marks of gaps that were not read completely. The earlier time counts.
    fn add_record(&mut self, recorded: Vec<ChatGapMark>) {
        let all = recorded.iter().find(|mark| mark.chat.is_empty()).map(|mark| mark.since_ms);
        let mut marked = BTreeMap::new();
        for ChatGapMark { chat, thread, since_ms: at, is_unlisted } in recorded {
            if !chat.is_empty() {
                let channel = thread.unwrap_or_else(|| chat.clone());
                marked.insert(channel, ChannelMark { chat, is_direct: is_unlisted, at });
            }
        }
        if let Some(all) = all {
            self.last_event = Some(self.last_event.map_or(all, |known| known.min(all)));
            // Channels that had no event before the gap may have one since.
            let unmarked = self.newest.iter_mut().filter(|(name, _)| !marked.contains_key(*name));
            unmarked.for_each(|(_, mark)| mark.at = mark.at.min(all));
        }
        for (channel, mark) in marked {
            // A channel of which Discord refused to show the messages has a mark and no event.
            self.last_event.get_or_insert(mark.at);
            let known = self.newest.entry(channel).or_insert_with(|| mark.clone());
            known.at = known.at.min(mark.at);
        }
    }

    fn to_record(&self) -> Vec<ChatGapMark> {
        let all = self.last_event.map(|since_ms| ChatGapMark {
            chat: String::new(),
            thread: None,
            since_ms,
            is_unlisted: false,
        });
        let channels = self.newest.iter().map(|(channel, mark)| mark.to_record(channel));
        all.into_iter().chain(channels).collect()
    }
}

impl ChannelMark {
    fn to_record(&self, channel: &str) -> ChatGapMark {
        ChatGapMark {
            chat: self.chat.clone(),
            thread: (channel != self.chat).then(|| channel.to_owned()),
            since_ms: self.at,
            is_unlisted: self.is_direct,
        }
    }
}

/// Reads the messages of a gap.
pub(super) struct DiscordCatchUp {
    pub(super) worker: LinkWorker,
    pub(super) bot: DiscordBot,
    pub(super) account: String,
    pub(super) directory: DiscordDirectory,
}

impl DiscordCatchUp {
    /// Reads the messages of a gap, and records that they were read.
    pub(super) fn run(mut self, gap: &DiscordGap) {
        let kept = self.catch_up(&gap.marks);
        self.worker.end_gap(&gap.key, &kept);
    }

    /// Reads the messages of a gap. Returns the marks of channels that Discord refused to show; they
    /// are read again after the next gap.
    fn catch_up(&mut self, marks: &DiscordMarks) -> Vec<ChatGapMark> {
        // Without any event there was no conversation that could have a gap.
        let Some(last_event) = marks.last_event else { return Vec::new() };
        let earliest = self.worker.now().as_millisecond() - AGE_MAX;
        let mut listed = self.listed_chats();
        listed.extend(marks.asked_in.iter().cloned());
        let known = marks.newest.iter();
        let known = known.filter(|(_, mark)| mark.is_direct || listed.contains(&mark.chat));
        let mut channels: BTreeMap<String, ChannelMark> =
            known.map(|(channel, mark)| (channel.clone(), mark.clone())).collect();
        for chat in listed {
            let mark = ChannelMark { chat: chat.clone(), is_direct: false, at: last_event };
            channels.entry(chat).or_insert(mark);
        }
        let mut kept = Vec::new();
        for (channel, mark) in channels.into_iter().take(CHANNELS_MAX) {
            let mark = ChannelMark { at: mark.at.max(earliest), ..mark };
            if let Err(unread) = self.read_channel(&channel, &mark) {
                kept.push(unread.to_record(&channel));
            }
        }
        kept
    }

    fn listed_chats(&self) -> BTreeSet<String> {
        let setup = self.worker.setup();
        let policies =
            account_policies(&setup.loaded, &setup.env, ChatPlatform::Discord, &self.account);
        policies.iter().flat_map(|policy| &policy.chats).map(|chat| chat.id.to_owned()).collect()
    }

    /// Reads a channel, and passes its messages to the dispatcher. If Discord refuses to show them, the
    /// mark of those that were not read is the error.
    fn read_channel(&mut self, channel: &str, mark: &ChannelMark) -> Result<(), ChannelMark> {
        let mut unread = mark.clone();
        let mut after = id_at(mark.at - OVERLAP).to_string();
        while !self.worker.is_stopped() {
            match self.bot.messages_after(channel, &after) {
                Ok(page) => {
                    let is_direct = mark.is_direct;
                    page.messages.into_iter().for_each(|it| self.pass_message(it, is_direct));
                    let Some(next) = page.next else { return Ok(()) };
                    // A stopped link does not record that the messages were passed.
                    unread.at = next.parse().map_or(unread.at, time_of).max(unread.at);
                    after = next;
                }
                Err(error @ ChatApiError::Refused { .. }) => {
                    let problem = format!("messages of {channel} may be missing: {error}");
                    self.worker.note_limitation(problem);
                    return Err(unread);
                }
                Err(error) => {
                    tracing::warn!(%error, "reading the messages of a channel again");
                    let pause = self.worker.next_pause(&error);
                    self.worker.rest_for(pause);
                }
            }
        }
        Err(unread)
    }

    /// Passes a message until it is recorded.
    fn pass_message(&mut self, mut message: Json, is_direct: bool) {
        // A list of messages does not name the server, and any value tells that there is one.
        message["guild_id"] = if is_direct { Json::Null } else { json!("listed") };
        find_channel(&self.bot, &mut self.directory, &message);
        let Some(mut event) = self.directory.message_event(&message) else { return };
        add_earlier(&self.worker, &self.bot, &self.directory, &mut event);
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

/// Looks up the channel of a message, which may be a thread that the gateway has not told about.
pub(super) fn find_channel(bot: &DiscordBot, directory: &mut DiscordDirectory, message: &Json) {
    let Some(channel) = message["channel_id"].as_str() else { return };
    if message["guild_id"].is_null() || directory.knows_channel(channel) {
        return;
    }
    match bot.channel(channel) {
        Ok(found) => directory.set_channel(channel, found.thread_of),
        Err(ChatApiError::Refused { .. }) => directory.set_channel(channel, None),
        // The next message asks again.
        Err(error) => tracing::debug!(%error, "a channel is not known"),
    }
}

/// Adds the messages before one that begins a conversation.
pub(super) fn add_earlier(
    worker: &LinkWorker,
    bot: &DiscordBot,
    directory: &DiscordDirectory,
    event: &mut ChatEvent,
) {
    let ChatContent::Message { id, .. } = &event.content else { return };
    let (id, place) = (id.clone(), event.place.clone());
    add_earlier_messages(worker, event, |count| {
        // A thread is a channel of its own.
        let channel = place.thread.as_deref().unwrap_or(&place.chat);
        let messages = bot.messages_before(channel, &id, count)?;
        let events = messages.into_iter().filter_map(|mut message| {
            // A list of messages does not name the server, and any value tells that there is one.
            message["guild_id"] = json!("listed");
            directory.message_event(&message)
        });
        Ok(events.collect())
    });
}

/// Returns the time of an ID, in milliseconds since 1970.
fn time_of(id: i64) -> i64 {
    (id >> 22) + EPOCH
}

/// Returns the lowest ID of a time.
fn id_at(at: i64) -> i64 {
    (at - EPOCH).max(0) << 22
}
