//! Decides which agent a message is for.
//!
//! Start at [`route_message`].

use heeler_config::ChatMode;

use crate::chat_event::{ChatEvent, ChatPlace, ChatPlatform};
use crate::chat_policy::ChatPolicy;

/// Result of routing a message.
#[derive(Debug)]
pub enum ChatRoute<'p, 'c> {
    /// The message is for an agent.
    Agent { policy: &'p ChatPolicy<'c>, text: String },
    /// The message is for no agent, and gets no answer.
    Ignored(String),
    /// The message was meant for an agent and is refused.
    Refused {
        reason: String,
        /// Answer to the sender.
        answer: String,
    },
}

/// Returns the agent that a message is for. `policies` are those of all agents that use the bot;
/// `engaged` is the agent that takes part in the thread of the message.
pub fn route_message<'p, 'c>(
    policies: &'p [ChatPolicy<'c>],
    event: &ChatEvent,
    text: &str,
    addresses_bot: bool,
    engaged: Option<&str>,
) -> ChatRoute<'p, 'c> {
    // Bots that answer each other never stop.
    if event.sender.is_bot {
        return ChatRoute::Ignored("its sender is a bot".to_owned());
    }
    let place = &event.place;
    let candidates: Vec<&ChatPolicy<'c>> = match place.is_direct {
        true => policies.iter().filter(|policy| policy.direct.is_some()).collect(),
        false => policies.iter().filter(|it| it.chat_mode(place).is_some()).collect(),
    };
    if candidates.is_empty() {
        return unlisted_place(event, place);
    }
    let (named, text) = named_agent(&candidates, text);
    let answers = |policy: &&&ChatPolicy<'_>| match place.is_direct {
        true => policy.direct.is_some_and(|dm| dm.mode == ChatMode::Auto) || addresses_bot,
        false => policy.chat_mode(place) == Some(ChatMode::Auto) || addresses_bot,
    };
    let engaged = candidates.iter().find(|it| Some(it.agent.name.as_str()) == engaged);
    let mut answering = candidates.iter().filter(answers);
    // A name addresses its agent as a mention does, and so does a reply in a thread with the agent.
    let policy = match (named.or(engaged.copied()), answering.next(), answering.next()) {
        (Some(named), ..) => named,
        (None, Some(only), None) => only,
        (None, None, _) => {
            return ChatRoute::Ignored("it does not mention the bot".to_owned());
        }
        (None, Some(_), Some(_)) => {
            let names: Vec<&str> = candidates.iter().map(|it| it.agent.name.as_str()).collect();
            let names = names.join(", ");
            return ChatRoute::Refused {
                reason: "it names none of several agents".to_owned(),
                answer: format!("Begin your message with the name of an agent: {names}"),
            };
        }
    };
    let is_allowed = match place.is_direct {
        true => policy.allows_direct(&event.sender),
        false => policy.allows_talking(&event.sender),
    };
    match is_allowed {
        true => ChatRoute::Agent { policy, text },
        false => refuse_stranger(event.platform, place, &event.sender.id),
    }
}

fn unlisted_place<'p, 'c>(event: &ChatEvent, place: &ChatPlace) -> ChatRoute<'p, 'c> {
    match place.is_direct {
        true => refuse_stranger(event.platform, place, &event.sender.id),
        false => ChatRoute::Ignored(format!("no agent has the chat {} in its config", place.chat)),
    }
}

/// Refuses a person, with the ID that the owner of the fleet needs to let the person in.
fn refuse_stranger<'p, 'c>(
    platform: ChatPlatform,
    place: &ChatPlace,
    id: &str,
) -> ChatRoute<'p, 'c> {
    let key = match place.is_direct {
        true => format!("chat.{platform}.dm.allowlist"),
        false => format!("chat.{platform}.allow"),
    };
    ChatRoute::Refused {
        reason: format!("{id} is not in `{key}`"),
        answer: format!(
            "You may not talk to this agent. Its owner can add your ID to `{key}`: {id}"
        ),
    }
}

/// Returns the agent whose name begins the text, and the text after it: `coder: go on`.
fn named_agent<'p, 'c>(
    candidates: &[&'p ChatPolicy<'c>],
    text: &str,
) -> (Option<&'p ChatPolicy<'c>>, String) {
    let (first, rest) = text.trim().split_once([':', ',']).unwrap_or((text, ""));
    let first = first.trim().trim_start_matches('@');
    let is_named = |policy: &&&ChatPolicy<'_>| {
        let name = policy.agent.name.as_str();
        let short = name.rsplit('.').next().unwrap_or(name);
        first.eq_ignore_ascii_case(name) || first.eq_ignore_ascii_case(short)
    };
    match candidates.iter().find(is_named) {
        Some(policy) if !rest.trim().is_empty() => (Some(policy), rest.trim().to_owned()),
        _ => (None, text.trim().to_owned()),
    }
}
