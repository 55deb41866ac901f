//! Slack app of an agent.
//!
//! [`SlackConfig`] declares the accepted keys: those of herdctl, and those that decide who may talk
//! and who may answer.

use std::num::NonZeroU32;

use crate::chat::{
    AttachmentConfig, ChannelConfig, ChatLogLevel, DirectMessages, ResultLength, VoiceConfig,
    WhileBusy,
};
use crate::chat_token::{ChatApiUrl, TokenVariable};
use crate::shape::section;
use crate::value::word_value;
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
        /// Let the run card grow in threads, where Slack offers that. Otherwise its text is replaced.
        streaming: bool = "true",
    }
}
