//! Sending of notices to places.
//!
//! Start at [`NoticeClient::send`].

use std::fmt;

use heeler_config::NotifyEvent;
use heeler_connect::{ChatBot, ChatPlace, OutgoingPost, PostMark, post_parts};
use ring::hmac;
use serde_json::{Value as Json, json};
use url::Url;

use crate::email::{SmtpServer, send_mail};
use crate::notice::PersonNotice;
use crate::notice_error::NoticeSendError;
use crate::web_post::{JSON_TYPE, WebPost};
use crate::web_push::PushReceiver;

/// Header with the signature of a webhook's body.
pub const SIGNATURE_HEADER: &str = "x-heeler-signature-256";

/// Header with the ID of a notice, by which a repeated one is recognized.
const NOTICE_HEADER: &str = "x-heeler-notice";

/// Longest text of a message to ntfy, in bytes. It makes a file of a longer one.
const NTFY_BYTES_MAX: usize = 4000;

/// A place that notices are sent to, with its secrets.
pub enum NoticeClient {
    Webhook { url: Url, secret: Option<String> },
    Ntfy { url: Url, token: Option<String> },
    Chat { bot: ChatBot, place: ChatPlace },
    Slack { url: Url },
    Email { server: SmtpServer, to: Vec<String> },
    WebPush(Box<PushReceiver>),
}

impl fmt::Debug for NoticeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoticeClient::Webhook { .. } => "NoticeClient::Webhook",
            NoticeClient::Ntfy { .. } => "NoticeClient::Ntfy",
            NoticeClient::Chat { .. } => "NoticeClient::Chat",
            NoticeClient::Slack { .. } => "NoticeClient::Slack",
            NoticeClient::Email { .. } => "NoticeClient::Email",
            NoticeClient::WebPush(_) => "NoticeClient::WebPush",
        })
    }
}

impl NoticeClient {
    /// Sends a notice, and returns the ID of the message if the place gives one. `earlier` is the
    /// message that a closing notice ends, if it is known.
    pub fn send(
        &self,
        id: &str,
        notice: &PersonNotice,
        earlier: Option<&str>,
    ) -> Result<Option<String>, NoticeSendError> {
        match self {
            NoticeClient::Webhook { url, secret } => {
                let body = webhook_body(id, notice).to_string().into_bytes();
                let mut headers = vec![(NOTICE_HEADER, header_text(id))];
                if let Some(secret) = secret {
                    headers.push((SIGNATURE_HEADER, sign(secret, &body)));
                }
                WebPost { url, headers, content_type: JSON_TYPE, body }.send().map(|()| None)
            }
            NoticeClient::Ntfy { url, token } => send_ntfy(url, token.as_deref(), notice),
            NoticeClient::Slack { url } => {
                let body = slack_body(notice).to_string().into_bytes();
                WebPost { url, headers: Vec::new(), content_type: JSON_TYPE, body }
                    .send()
                    .map(|()| None)
            }
            NoticeClient::Chat { bot, place } => post_notice((bot, place), id, notice, earlier),
            NoticeClient::Email { server, to } => send_mail(server, to, id, notice).map(|()| None),
            NoticeClient::WebPush(receiver) => receiver.send(notice).map(|()| None),
        }
    }
}

/// Returns the body of a webhook. The words of the agent have a field of their own.
fn webhook_body(id: &str, notice: &PersonNotice) -> Json {
    let PersonNotice { event, agent, title, text, quote, link, is_closing, subject, at, .. } =
        notice;
    json!({
        "id": id,
        "event": event,
        "subject": subject,
        "closed": is_closing,
        "agent": agent,
        "title": title,
        "text": text,
        "agent_text": quote,
        "link": link,
        "at": at.to_string(),
    })
}

/// Returns the signature of a body, in the form that GitHub uses.
fn sign(secret: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, body);
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={hex}")
}

/// Returns text that is valid in a header.
fn header_text(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

fn send_ntfy(
    url: &Url,
    token: Option<&str>,
    notice: &PersonNotice,
) -> Result<Option<String>, NoticeSendError> {
    let (server, topic) = split_topic(url)
        .ok_or_else(|| NoticeSendError::permanent("the address of ntfy has no topic"))?;
    let priority = match (notice.is_closing, notice.event) {
        (true, _) => 2,
        (false, NotifyEvent::Question) => 4,
        (false, _) => 3,
    };
    // The link is the target of a tap, so it is not repeated in the text.
    let text = PersonNotice { link: None, ..notice.clone() }.body();
    let mut message = cut_bytes(&text, NTFY_BYTES_MAX).to_owned();
    if message.is_empty() {
        message.clone_from(&notice.title);
    }
    let mut body =
        json!({"topic": topic, "title": notice.title, "message": message, "priority": priority});
    if let Some(link) = &notice.link {
        body["click"] = json!(link);
    }
    let headers = token.map(|token| ("authorization", format!("Bearer {token}")));
    let post = WebPost {
        url: &server,
        headers: headers.into_iter().collect(),
        content_type: JSON_TYPE,
        body: body.to_string().into_bytes(),
    };
    post.send().map(|()| None)
}

/// Returns the address of the server and the topic.
fn split_topic(url: &Url) -> Option<(Url, String)> {
    let topic = url.path_segments()?.rfind(|part| !part.is_empty())?.to_owned();
    let mut server = url.clone();
    server.path_segments_mut().ok()?.pop_if_empty().pop();
    server.set_query(None);
    Some((server, topic))
}

fn cut_bytes(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Returns the body for an incoming webhook of Slack.
fn slack_body(notice: &PersonNotice) -> Json {
    // These three characters begin mentions, links and entities.
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut parts = vec![format!("*{}*", escape(&notice.title))];
    if !notice.text.is_empty() {
        parts.push(escape(&notice.text));
    }
    if let Some(quote) = &notice.quote {
        let heading = escape(&notice.quote_heading());
        // In a block of code nothing is formatted or linked.
        parts.push(format!("{heading}\n```\n{}\n```", escape(quote.as_str())));
    }
    parts.extend(notice.link.as_ref().map(|link| format!("<{}|Open in Heeler>", escape(link))));
    json!({"text": parts.join("\n"), "unfurl_links": false, "unfurl_media": false})
}

/// Posts a notice to a chat, or replaces the message that it closes.
fn post_notice(
    (bot, place): (&ChatBot, &ChatPlace),
    id: &str,
    notice: &PersonNotice,
    earlier: Option<&str>,
) -> Result<Option<String>, NoticeSendError> {
    let mut parts = vec![format!("**{}**", notice.title)];
    if !notice.text.is_empty() {
        parts.push(notice.text.clone());
    }
    if let Some(quote) = &notice.quote {
        parts.push(format!("{}\n```\n{}\n```", notice.quote_heading(), quote.as_str()));
    }
    parts.extend(notice.link.clone());
    let text = parts.join("\n\n");
    if let (true, Some(message)) = (notice.is_closing, earlier) {
        bot.edit(place, message, &text)?;
        return Ok(Some(message.to_owned()));
    }
    let mut first = None;
    // A digest may be longer than one message.
    for (number, text) in post_parts(bot.platform(), &text).into_iter().enumerate() {
        let post = OutgoingPost { text, buttons: Vec::new(), reply_to: None };
        let id = format!("{id} {number}");
        // An earlier daemon may have posted it and died before it recorded that.
        let mark = PostMark { id: &id, maybe_made_since: Some(notice.at.as_second()) };
        let message = bot.send(place, &post, mark)?;
        first.get_or_insert(message);
    }
    Ok(first)
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
            text: "heeler approvals show ask-1".to_owned(),
            quote: AgentQuote::new("<!channel> <https://evil.example|Heeler> & *now*"),
            link: Some("https://fleet.example/approvals/ask-1".to_owned()),
            page: Some("/approvals/ask-1".to_owned()),
            is_closing: false,
            subject: "ask-1".to_owned(),
            at: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn the_topic_of_ntfy_is_the_last_part_of_its_address() {
        let split = |text: &str| split_topic(&text.parse().unwrap()).unwrap();
        let (server, topic) = split("https://ntfy.sh/my-topic");
        assert_eq!((server.as_str(), topic.as_str()), ("https://ntfy.sh/", "my-topic"));
        let (server, topic) = split("http://127.0.0.1:1/push/my-topic/?auth=x");
        assert_eq!((server.as_str(), topic.as_str()), ("http://127.0.0.1:1/push", "my-topic"));
    }

    #[test]
    fn an_agent_cannot_mention_or_link_in_slack() {
        let text = slack_body(&notice())["text"].as_str().unwrap().to_owned();
        assert!(text.contains("&lt;!channel&gt; &lt;https[:]//evil.example|Heeler&gt;"), "{text}");
        assert!(text.ends_with("<https://fleet.example/approvals/ask-1|Open in Heeler>"), "{text}");
    }

    #[test]
    fn a_body_is_signed() {
        // The example of the HMAC test vectors (RFC 4231, case 2).
        assert_eq!(
            sign("Jefe", b"what do ya want for nothing?"),
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn a_cut_keeps_whole_characters() {
        assert_eq!(cut_bytes("aé", 2), "a");
        assert_eq!(cut_bytes("aé", 3), "aé");
        assert_eq!(cut_bytes("", 3), "");
    }
}
