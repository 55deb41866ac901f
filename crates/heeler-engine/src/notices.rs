//! Notices to people: when they are due, the channels of the config, and the attempts to send.
//!
//! The dispatcher records a notice with the change that causes it; see `dispatch/notifications.rs`.
//! Only the daemon has the secrets of channels. Start at [`NoticePlan`] and [`attempt_notice`].

mod browser_client;
mod channel_check;
mod channel_client;
mod desktop;
mod link_notice;
mod notice_attempt;
mod notice_plan;
mod page_link;

pub use channel_check::{ChannelReport, check_channels, send_test_notice};
pub(crate) use channel_client::channel_problems;
pub(crate) use link_notice::LinkNotice;
pub(crate) use notice_attempt::{NoticeAttempt, NoticeOutcome, NoticeResult, attempt_notice};
pub(crate) use notice_plan::{NoticePlan, plan_notices};
pub(crate) use page_link::page_link;
