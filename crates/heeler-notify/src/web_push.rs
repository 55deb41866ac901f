//! Notices to browsers by Web Push: RFC 8030.
//!
//! A notice and the one that closes it have the same tag, so the second replaces the first on the
//! screen, and at the push service if the browser is not reachable. Start at [`PushReceiver::send`].

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use heeler_config::NotifyEvent;
use jiff::Timestamp;
use ring::digest::{SHA256, digest};
use serde_json::{Value as Json, json};

use crate::notice::PersonNotice;
use crate::notice_error::NoticeSendError;
use crate::push_encryption::{BrowserKeys, PUSH_TEXT_BYTES_MAX, encrypt};
use crate::push_endpoint::PushEndpoint;
use crate::push_key::PushKey;
use crate::web_post::WebPost;

/// Time for which a push service keeps a message for a browser that is not reachable, in seconds. A
/// notice of an earlier day is not worth the disturbance; the dashboard shows it anyway.
const TTL_SECONDS: u32 = 24 * 60 * 60;

/// Length of the title, in characters.
const TITLE_CHARS_MAX: usize = 200;

/// Bytes of the hash that is the tag. As base64 they have the 32 characters that a topic may have.
const TAG_BYTES: usize = 24;

/// A browser, and what is needed to send to it.
pub struct PushReceiver {
    /// Key of the fleet.
    pub key: PushKey,
    /// Address of the sender, for the push service: `mailto:…` or `https://…`.
    pub contact: Option<String>,
    pub endpoint: PushEndpoint,
    keys: BrowserKeys,
    /// Time of the attempt.
    pub now: Timestamp,
}

/// Keys of a browser as it gives them, in base64.
#[derive(Clone, Copy)]
pub struct BrowserKeysText<'a> {
    pub public_key: &'a str,
    pub auth_secret: &'a str,
}

impl BrowserKeysText<'_> {
    /// Checks that messages can be encrypted with the keys.
    pub fn check(self) -> Result<(), String> {
        self.parse().map(drop)
    }

    fn parse(self) -> Result<BrowserKeys, String> {
        let wrong = "the keys of the browser are not valid";
        let keys = BrowserKeys {
            public_key: decode(self.public_key).ok_or(wrong)?,
            auth_secret: decode(self.auth_secret).ok_or(wrong)?,
        };
        // Fails if the key is not a point of the curve.
        encrypt(b"", &keys).map_err(|_| wrong)?;
        Ok(keys)
    }
}

/// Decodes base64 of a known length. Some browsers add padding.
fn decode<const LENGTH: usize>(text: &str) -> Option<[u8; LENGTH]> {
    let decoded = URL_SAFE_NO_PAD.decode(text).or_else(|_| URL_SAFE.decode(text));
    decoded.ok()?.try_into().ok()
}

impl PushReceiver {
    pub fn new(
        key: PushKey,
        contact: Option<String>,
        endpoint: PushEndpoint,
        keys: BrowserKeysText<'_>,
        now: Timestamp,
    ) -> Result<PushReceiver, String> {
        Ok(PushReceiver { key, contact, endpoint, keys: keys.parse()?, now })
    }

    /// Sends a notice.
    pub(crate) fn send(&self, notice: &PersonNotice) -> Result<(), NoticeSendError> {
        let permanent = |message: String| NoticeSendError::permanent(message);
        let service = self.endpoint.service();
        let body = encrypt(push_text(notice).as_bytes(), &self.keys)
            .map_err(|_| permanent("the message cannot be encrypted".to_owned()))?;
        let authorization = self
            .key
            .authorization(&self.endpoint.origin(), self.contact.as_deref(), self.now)
            .map_err(permanent)?;
        let headers = vec![
            ("authorization", authorization),
            ("content-encoding", "aes128gcm".to_owned()),
            ("ttl", TTL_SECONDS.to_string()),
            ("urgency", urgency(notice).to_owned()),
            ("topic", tag(notice)),
        ];
        let content_type = "application/octet-stream";
        let post = WebPost { url: self.endpoint.url(), headers, content_type, body };
        post.send().map_err(|mut error| {
            if matches!(error.status, Some(401 | 403)) {
                error.message = format!(
                    "{service} refused the key of the fleet: remove the browser and add it again, \
                     and set `notify.web_push.contact`"
                );
            }
            error
        })
    }
}

/// Shows neither address nor keys.
impl fmt::Debug for PushReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PushReceiver({:?})", self.endpoint)
    }
}

fn urgency(notice: &PersonNotice) -> &'static str {
    match (notice.is_closing, notice.event) {
        (true, _) => "low",
        (false, NotifyEvent::Question) => "high",
        (false, _) => "normal",
    }
}

/// Returns the name of the notification that a notice shows or replaces. It is the topic too, by which
/// a later message replaces one that waits at the push service.
fn tag(notice: &PersonNotice) -> String {
    let name = format!("{} {}", notice.event, notice.subject);
    URL_SAFE_NO_PAD.encode(&digest(&SHA256, name.as_bytes()).as_ref()[..TAG_BYTES])
}

/// Returns the text of a message, which is never longer than allowed.
fn push_text(notice: &PersonNotice) -> String {
    let title: String = notice.title.chars().take(TITLE_CHARS_MAX).collect();
    // The page is the target of a click, so the link is not repeated in the text.
    let body = PersonNotice { link: None, ..notice.clone() }.body();
    let compose = |body: &str| -> String {
        let message: Json = json!({
            "tag": tag(notice),
            "title": title,
            "body": body,
            "page": notice.page.as_deref().unwrap_or("/"),
            "closed": notice.is_closing,
            "at": notice.at.as_millisecond(),
        });
        message.to_string()
    };
    let mut kept = body.as_str();
    loop {
        let text = compose(kept);
        if text.len() <= PUSH_TEXT_BYTES_MAX || kept.is_empty() {
            return text;
        }
        // Characters may become several in JSON, so the half is tried and not the difference.
        let half = kept.len() / 2;
        let end = (0..=half).rev().find(|at| kept.is_char_boundary(*at)).unwrap_or(0);
        kept = &kept[..end];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_quote::AgentQuote;

    fn notice() -> PersonNotice {
        PersonNotice {
            event: NotifyEvent::Question,
            agent: Some("coder".to_owned()),
            title: "coder waits for an answer".to_owned(),
            text: "Answer on the page".to_owned(),
            quote: AgentQuote::new("May I?"),
            link: Some("https://fleet.example/approvals/ask-1".to_owned()),
            page: Some("/approvals/ask-1".to_owned()),
            is_closing: false,
            subject: "ask-1".to_owned(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_notice_and_its_outcome_have_the_same_tag() {
        let closing = PersonNotice {
            title: "coder: allowed by ann".to_owned(),
            is_closing: true,
            ..notice()
        };
        let parse = |notice| serde_json::from_str::<Json>(&push_text(notice)).unwrap();
        let (first, last) = (parse(&notice()), parse(&closing));
        assert_eq!(first["tag"], last["tag"]);
        assert_eq!((&first["closed"], &last["closed"]), (&json!(false), &json!(true)));
        assert_eq!(first["page"], "/approvals/ask-1");
        assert_eq!(
            first["body"],
            "Answer on the page\n\nText from coder (not from Heeler):\n> May I?"
        );
        assert_eq!(tag(&notice()).len(), 32);
        let other = PersonNotice { subject: "ask-2".to_owned(), ..notice() };
        assert_ne!(tag(&notice()), tag(&other));
        assert_eq!((urgency(&notice()), urgency(&closing)), ("high", "low"));
    }

    #[test]
    fn a_long_notice_is_cut_to_the_size_of_a_message() {
        let long =
            PersonNotice { title: "\u{1}".repeat(9_000), text: "ü\"\n".repeat(9_000), ..notice() };
        let text = push_text(&long);
        assert!(text.len() <= PUSH_TEXT_BYTES_MAX, "{}", text.len());
        let message: Json = serde_json::from_str(&text).unwrap();
        assert!(!message["body"].as_str().unwrap().is_empty());
    }

    #[test]
    fn keys_of_a_browser_are_checked() {
        let public_key = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
        let auth_secret = "BTBZMqHH6r4Tts7J_aSIgg";
        let check = |public_key, auth_secret| BrowserKeysText { public_key, auth_secret }.check();
        assert_eq!(check(public_key, auth_secret), Ok(()));
        assert_eq!(check(public_key, "BTBZMqHH6r4Tts7J_aSIgg=="), Ok(()));
        assert!(check(public_key, "BTBZ").is_err());
        assert!(check("BTBZ", auth_secret).is_err());
        assert!(check(&public_key.replace("BCVx", "BCVy"), auth_secret).is_err());
    }
}
