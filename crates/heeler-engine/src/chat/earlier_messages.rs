//! Earlier messages of a channel, read when a conversation begins.
//!
//! Only messages of people who may talk to the agent are read. A conversation begins without them if the
//! platform does not answer soon. Start at [`add_earlier_messages`].

use heeler_connect::{
    BotCommand, ChatApiError, ChatContent, ChatEvent, ChatPlatform, ChatPolicy, ChatRoute,
    EarlierMessage, route_message,
};
use heeler_store::{ConversationPlace, StoreReader};

use super::credential::account_policies;
use super::link_worker::LinkWorker;

/// Messages that are read for each one that is wanted, because those of bots are left out.
const READ_FACTOR: usize = 2;

/// Adds the earlier messages to a message that begins a conversation. `read` returns so many messages
/// before it, oldest first.
pub(super) fn add_earlier_messages(
    worker: &LinkWorker,
    event: &mut ChatEvent,
    read: impl FnOnce(usize) -> Result<Vec<ChatEvent>, ChatApiError>,
) {
    event.earlier = new_conversation(worker, event, |policy, count| {
        match read(count.saturating_mul(READ_FACTOR)) {
            Ok(earlier) => last_messages(policy, count, earlier),
            Err(error) => {
                tracing::info!(%error, "a conversation begins without earlier messages");
                Vec::new()
            }
        }
    });
}

/// Returns the last messages of people who may talk to an agent, of those that were read.
pub(super) fn last_messages(
    policy: &ChatPolicy<'_>,
    count: usize,
    earlier: Vec<ChatEvent>,
) -> Vec<EarlierMessage> {
    let may_talk = earlier.into_iter().filter(|it| policy.allows_talking(&it.sender));
    let mut earlier: Vec<EarlierMessage> = may_talk.filter_map(EarlierMessage::of_event).collect();
    earlier.split_off(earlier.len().saturating_sub(count))
}

/// Returns the earlier messages that `read` returns for a message that begins a conversation of an agent.
/// `read` is given the number that the config of the agent names.
pub(super) fn new_conversation(
    worker: &LinkWorker,
    event: &ChatEvent,
    read: impl FnOnce(&ChatPolicy<'_>, usize) -> Vec<EarlierMessage>,
) -> Vec<EarlierMessage> {
    // The text of a message without words, a click or a direct message needs none.
    let ChatContent::Message { text, addresses_bot, .. } = &event.content else {
        return Vec::new();
    };
    if event.place.is_direct {
        return Vec::new();
    }
    let setup = worker.setup();
    let policies = account_policies(&setup.loaded, &setup.env, event.platform, &event.account);
    // An agent that takes part in the thread has a conversation already.
    let route = route_message(&policies, event, text, *addresses_bot, None);
    let ChatRoute::Agent { policy, text } = route else { return Vec::new() };
    let count = policy.context_messages(&event.place);
    // A conversation on an issue begins with its description.
    let is_wanted = count > 0 || event.platform == ChatPlatform::Github;
    let is_command = BotCommand::parse(&text).is_some();
    if !is_wanted || is_command || !begins_conversation(worker, event, policy.agent.name.as_str()) {
        return Vec::new();
    }
    read(policy, count)
}

/// Returns true if a message is new and its place has no conversation.
fn begins_conversation(worker: &LinkWorker, event: &ChatEvent, agent: &str) -> bool {
    let Ok(reader) = StoreReader::open(worker.dir()) else { return false };
    let ChatEvent { platform, account, event_id, place, .. } = event;
    let place = ConversationPlace {
        agent,
        platform: platform.as_str(),
        chat: &place.chat,
        thread: place.thread.as_deref(),
    };
    let is_known = reader.inbox_event(platform.as_str(), account, event_id);
    let conversation = reader.chat_conversation(place);
    matches!((is_known, conversation), (Ok(None), Ok(known)) if known.as_ref().is_none_or(|it| !it.is_active))
}
