//! Chat platforms: links that receive events, and posts that are made.
//!
//! A link passes each event to the dispatcher and acknowledges it after the commit. Posts are effects
//! of the database, which are executed in order. Only the daemon has the tokens. Start at
//! [`ChatLinks`] and [`ChatPost`].

mod access_check;
mod channel_gap;
mod credential;
mod discord_catch_up;
mod discord_link;
mod earlier_messages;
mod gap_change;
mod github_event;
mod github_link;
mod github_post;
mod link;
mod link_worker;
mod post;
mod rate_limits;
mod received_files;
mod run_card;
mod said_message;
mod slack_call;
mod slack_calls;
mod slack_catch_up;
mod slack_event_reader;
mod slack_link;
mod speaker_names;
mod telegram_link;

pub use access_check::{ChatAccessReport, check_chat_access};
pub(crate) use credential::{
    ChatCredential, account_policies, find_bot_of_variable, find_credential,
};
pub(crate) use gap_change::ChatGapChange;
pub(crate) use github_post::issue_of_place;
pub(crate) use link::ChatLinks;
pub(crate) use post::{
    ChatPost, ChatPostAction, ChatPostOutcome, ChatPostResult, PostContext, channel_place,
    event_place, execute_post, post_effect_kind, question_options,
};
pub(crate) use rate_limits::note_rate_limit;
pub(crate) use received_files::receive_files;
pub(crate) use run_card::{RunCard, RunCardChange};
pub(crate) use said_message::SaidMessageResult;
pub(crate) use slack_call::WaitingSlackCall;
pub use slack_call::{SlackCall, SlackCallKind};
