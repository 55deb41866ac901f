//! Slack app of an agent.
//!
//! [`SlackConfig`] declares the accepted keys: those of herdctl, and those that decide who may talk
//! and who may answer.

use std::num::NonZeroU32;
use std::str::FromStr;

use serde_json::json;

use crate::chat::{
    AttachmentConfig, ChannelConfig, ChatLogLevel, DirectMessages, ResultLength, VoiceConfig,
    WhileBusy,
};
use crate::chat_token::{ChatApiUrl, TokenVariable};
use crate::shape::section;
use crate::value::{text_value, word_value};
use crate::words::words;

words! {
    /// Way in which Slack delivers events.
    pub enum SlackTransport ("way") {
        /// Over a socket that the daemon opens.
        Socket = "socket",
        /// By HTTP calls to the daemon.
        Http = "http",
    }
}

word_value!(SlackTransport,);

/// Longest name of an emoji on Slack.
const EMOJI_CHARS_MAX: usize = 100;

/// Emoji of a reaction, by its name on Slack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlackReaction(Option<String>);

impl SlackReaction {
    /// Returns the name; `None` if there is no reaction.
    pub fn get(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl FromStr for SlackReaction {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<SlackReaction, &'static str> {
        let name = text.trim().trim_matches(':');
        if name.is_empty() {
            return Ok(SlackReaction(None));
        }
        // A skin tone follows after two colons.
        let is_plain = |c: char| c.is_alphanumeric() || "_-+':".contains(c);
        match name.chars().count() <= EMOJI_CHARS_MAX && name.chars().all(is_plain) {
            true => Ok(SlackReaction(Some(name.to_owned()))),
            false => Err("it is not the name of an emoji"),
        }
    }
}

text_value! {
    SlackReaction: "the name of an emoji", "`eyes`", None, |name| json!(name.get().unwrap_or_default());
}

section! {
    /// A Slack app.
    pub struct SlackConfig ("chat.slack") {
        /// Environment variable that holds the bot token, which begins with `xoxb-`.
        bot_token_env: TokenVariable = "SLACK_BOT_TOKEN",
        /// Environment variable that holds the app token, which begins with `xapp-`.
        app_token_env: TokenVariable = "SLACK_APP_TOKEN",
        /// Way in which Slack delivers events: over a socket that the daemon opens (`socket`), or by calls of `/hooks/slack` (`http`).
        events: SlackTransport = "socket",
        /// ID of the app, which begins with `A`. Needed for `events: http`.
        app_id: Option<String>,
        /// Environment variable that holds the signing secret of the app, for `events: http`.
        signing_secret_env: TokenVariable = "SLACK_SIGNING_SECRET",
        /// Address of the Web API.
        api_url: ChatApiUrl = "https://slack.com/api",
        /// Hours after which a conversation starts a new session.
        session_expiry_hours: NonZeroU32 = "24",
        /// Messages in the daemon's log: `minimal` logs problems only, `standard` also each message that an agent gets or refuses, `verbose` also those that are ignored.
        log_level: ChatLogLevel = "standard",
        /// Channels in which the agent answers. Other channels are ignored.
        channels: Vec<ChannelConfig>,
        /// Direct messages. Without this key they are refused.
        dm: Option<DirectMessages>,
        /// IDs of the users who may talk to the agent in `channels`. Defaults to all members.
        allow: Option<Vec<String>>,
        /// IDs of the users who may answer the agent's questions. With none, the agent's questions are denied.
        approvers: Vec<String>,
        /// IDs of the users who may stop jobs, begin sessions and retry (`/stop`, `/new`, `/retry`). Defaults to all who may talk to the agent.
        operators: Option<Vec<String>>,
        /// Effect of a message while the agent is working in the conversation: it waits (`queue`), it cancels the work (`interrupt`), or the running job receives it (`say`).
        while_busy: WhileBusy = "queue",
        /// Most messages that the agent takes from one person within a minute. Further ones are refused.
        messages_per_minute: NonZeroU32 = "60",
        /// Files sent to the bot. Without this key they are refused.
        attachments: Option<AttachmentConfig>,
        /// Voice messages. Without this key they are files.
        voice: Option<VoiceConfig>,
        /// Output shown in a conversation.
        output: SlackOutput = "{}",
    }
}

section! {
    /// Output shown in a Slack conversation.
    pub struct SlackOutput ("slack.output") {
        /// Show the last tool result in the run card.
        tool_results: bool = "true",
        /// Maximum number of characters of a tool result, at most 1000.
        tool_result_max_length: ResultLength = "900",
        /// Show the last system event, such as compaction, in the run card.
        system_status: bool = "true",
        /// Show errors.
        errors: bool = "true",
        /// Show cost and duration below each answer.
        result_summary: bool = "false",
        /// Most posts of one answer. Of a longer answer, the beginning is posted, and the whole as a file.
        max_posts: NonZeroU32 = "5",
        /// Show below the thread that the agent works. Needs the scope `assistant:write`.
        typing_indicator: bool = "false",
        /// Show a run card while the agent works.
        progress_indicator: bool = "true",
        /// Reaction added to a message when it is accepted: the name of an emoji, without colons. Needs the scope `reactions:write`. Empty for none.
        acknowledge_emoji: SlackReaction = "''",
        /// Let the run card grow in threads, where Slack offers that. Otherwise its text is replaced.
        streaming: bool = "true",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reaction_is_the_name_of_an_emoji_or_nothing() {
        let name = |text: &str| text.parse::<SlackReaction>().map(|it| it.0);
        for (text, expected) in
            [("", None), ("eyes", Some("eyes")), (":+1::skin-tone-2:", Some("+1::skin-tone-2"))]
        {
            assert_eq!(name(text), Ok(expected.map(str::to_owned)), "{text}");
        }
        for wrong in ["👀", "two words", "<!channel>", &"x".repeat(EMOJI_CHARS_MAX + 1)] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}
