//! Notices to people: their form for each kind of channel, and the clients that send them.
//!
//! A notice may quote an agent, which may be hostile. The quoted text is marked, short, without hidden
//! characters and without links; see [`AgentQuote`]. Addresses come from the config only, redirects are
//! not followed, and errors name only the host. Start at [`PersonNotice`] and [`NoticeClient`].

mod agent_quote;
mod email;
mod notice;
mod notice_client;
mod notice_error;
mod web_post;

pub use agent_quote::{AgentQuote, QUOTE_CHARS_MAX};
pub use email::{MailAuthorities, SmtpServer};
pub use notice::{PersonNotice, combine_notices};
pub use notice_client::{NoticeClient, SIGNATURE_HEADER};
pub use notice_error::NoticeSendError;
