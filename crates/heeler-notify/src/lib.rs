//! Notices to people: their form for each kind of channel, and the clients that send them.
//!
//! A notice may quote an agent, which may be hostile. The quoted text is marked, short, without hidden
//! characters and without links; see [`AgentQuote`]. Addresses come from the config only, or belong to a
//! push service that the config or Heeler knows. Redirects are not followed, and errors name only the
//! host. Start at [`PersonNotice`] and [`NoticeClient`].

mod agent_quote;
mod email;
mod notice;
mod notice_client;
mod notice_error;
mod push_encryption;
mod push_endpoint;
mod push_key;
mod web_post;
mod web_push;

pub use agent_quote::{AgentQuote, QUOTE_CHARS_MAX};
pub use email::{MailAuthorities, SmtpServer};
pub use notice::{PersonNotice, combine_notices};
pub use notice_client::{NoticeClient, SIGNATURE_HEADER};
pub use notice_error::NoticeSendError;
pub use push_endpoint::PushEndpoint;
pub use push_key::PushKey;
pub use web_push::{BrowserKeysText, PushReceiver};
