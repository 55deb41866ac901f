//! Entry point of the fuzz target `webhook_calls`: signatures and bodies of calls from outside, with any
//! text.
//!
//! Start at [`drive_call`].

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heeler_config::webhook::{FIELD_BYTES_MAX, WebhookRules};
use heeler_engine::SlackCallKind;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use serde_json::Value;
use sha2::Sha256;

use super::signature::{SlackSignature, is_well_formed, verify};
use super::slack::{SlackBody, parse_body};
use super::{DELIVERY_BYTES_MAX, EVENT_HEADER, ParsedWebhookPayload, delivery_id};

/// Secret of the calls. No text that lacks it is signed with it.
const SECRET: &str = "the-secret-of-the-fuzz-target";

/// Most headers of a call. Servers take no more.
const HEADERS_MAX: usize = 100;

/// Time of the calls, in seconds since 1970.
const NOW: i64 = 1_700_000_000;

/// Passes a call to every check and parser. Its headers are the lines before the first blank one. Panics if one
/// breaks a promise.
pub fn drive_call(text: &str) {
    let (head, body) = text.split_once("\n\n").unwrap_or(("", text));
    let headers: HeaderMap = head.lines().take(HEADERS_MAX).filter_map(header).collect();
    let now = Timestamp::from_second(NOW).expect("a time of this century");
    check_refusal(&headers, body.as_bytes(), now);
    check_own_signatures(body.as_bytes(), now);
    drive_slack(&headers, body);
    drive_github(&headers, body.as_bytes());
}

fn header(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    Some((name.trim().parse().ok()?, HeaderValue::from_str(value.trim()).ok()?))
}

/// Checks that a call without a signature by the secret is refused.
fn check_refusal(headers: &HeaderMap, body: &[u8], now: Timestamp) {
    let _early = is_well_formed(headers, now);
    assert!(verify(SECRET, headers, body, now).is_none(), "a forged signature is accepted");
    if let Some(signature) = SlackSignature::read(headers, now) {
        assert!(!signature.is_made_with(SECRET, body), "a forged signature is accepted");
    }
}

/// Checks that a body is accepted with its signature, and no other body is.
fn check_own_signatures(body: &[u8], now: Timestamp) {
    let time = NOW.to_string();
    let other = [body, b"x"].concat();
    let hub = headers_of(&[("x-hub-signature-256", format!("sha256={}", hex(&mac(&[body]))))]);
    let signed = mac(&[b"id.", time.as_bytes(), b".", body]);
    let standard = headers_of(&[
        ("webhook-id", "id".to_owned()),
        ("webhook-timestamp", time.clone()),
        ("webhook-signature", format!("v1,{}", STANDARD.encode(signed))),
    ]);
    for headers in [&hub, &standard] {
        assert!(is_well_formed(headers, now), "a signed call is refused before its body is read");
        assert!(verify(SECRET, headers, body, now).is_some(), "a signed call is refused");
        assert!(verify(SECRET, headers, &other, now).is_none(), "a changed call is accepted");
    }
    let slack = headers_of(&[
        ("x-slack-request-timestamp", time.clone()),
        ("x-slack-signature", format!("v0={}", hex(&mac(&[b"v0:", time.as_bytes(), b":", body])))),
    ]);
    let signature = SlackSignature::read(&slack, now).expect("the headers have the right form");
    assert!(signature.is_made_with(SECRET, body) && !signature.is_made_with(SECRET, &other));
}

fn drive_slack(headers: &HeaderMap, body: &str) {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    for kind in [kind, "application/json", "application/x-www-form-urlencoded"] {
        match parse_body(kind, body.as_bytes()) {
            Ok(SlackBody::Call(SlackCallKind::Event, payload)) => {
                assert!(payload["type"].is_string(), "{payload}");
            }
            Ok(SlackBody::Call(SlackCallKind::Command, payload)) => {
                let fields = payload.as_object().expect("a form has fields");
                assert!(fields.values().all(Value::is_string), "{payload}");
            }
            Ok(SlackBody::Call(SlackCallKind::Interaction, _) | SlackBody::Challenge(_))
            | Err(_) => {}
        }
    }
}

fn drive_github(headers: &HeaderMap, body: &[u8]) {
    if let Ok(Some(delivery)) = delivery_id(headers) {
        assert!((1..=DELIVERY_BYTES_MAX).contains(&delivery.len()), "{delivery}");
    }
    let mut of_github = headers.clone();
    of_github.entry(EVENT_HEADER).or_insert(HeaderValue::from_static("issue_comment"));
    let open = WebhookRules::default();
    let strict = WebhookRules {
        mention: Some("heeler-bot".to_owned()),
        own_login: Some("heeler-bot".to_owned()),
        intents: true,
        ..WebhookRules::default()
    };
    for headers in [headers, &of_github] {
        let Ok(payload) = ParsedWebhookPayload::parse(headers, body) else { continue };
        let sent = payload.as_sent();
        for rules in [&open, &strict] {
            let _verdict = rules.check_payload(&sent);
            let _text = rules.render_payload(&sent);
            for (name, value) in rules.workflow_inputs(&sent) {
                // A note tells what was cut.
                let length = value.as_str().map_or(0, str::len);
                assert!(length <= 2 * FIELD_BYTES_MAX, "{name} has {length} bytes");
            }
        }
    }
}

fn headers_of(pairs: &[(&'static str, String)]) -> HeaderMap {
    let pair = |(name, value): &(&'static str, String)| {
        let value = HeaderValue::from_str(value).expect("a value of visible characters");
        (HeaderName::from_static(name), value)
    };
    pairs.iter().map(pair).collect()
}

fn mac(parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("any length is allowed");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Calls of Slack and GitHub, and calls that once were or could be difficult.
    const CORPUS: &[&str] = &[
        "",
        "\n\n",
        "{",
        "content-type: application/json\n\n{\"type\":\"url_verification\",\"challenge\":\"abc\"}",
        "content-type: application/json\nx-slack-request-timestamp: 1700000000\nx-slack-signature: v0=00\n\n{\"type\":\"event_callback\",\"api_app_id\":\"A1\",\"event\":{\"type\":\"message\",\"channel\":\"C1\",\"user\":\"U1\",\"ts\":\"1.1\",\"text\":\"hi\"}}",
        "content-type: application/x-www-form-urlencoded\nx-slack-request-timestamp: 99999999999999999999\n\npayload=%7B%22type%22%3A%22block_actions%22%2C%22actions%22%3A%5B%7B%22value%22%3A%22a%22%7D%5D%7D",
        "content-type: application/x-www-form-urlencoded\n\ncommand=%2Fheeler&text=status&command=%2Fother",
        "content-type: application/x-www-form-urlencoded\n\ncommand=%2Fheeler&text=%FF%00&trigger_id=t",
        "x-github-event: issue_comment\nx-github-delivery: 1\nx-hub-signature-256: sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17\n\n{\"action\":\"created\",\"comment\":{\"body\":\"@heeler-bot fix\",\"user\":{\"login\":\"ann\"},\"author_association\":\"OWNER\"},\"issue\":{\"number\":7,\"labels\":[{\"name\":\"x\"}]},\"repository\":{\"name\":\"app\",\"owner\":{\"login\":\"acme\"}},\"sender\":{\"login\":\"ann\"}}",
        "x-github-event: push\n\n{\"ref\":\"refs/heads/main\",\"commits\":[{\"added\":[\"a\"],\"removed\":null}],\"repository\":{\"full_name\":\"a/b/c\"}}",
        "x-github-event: ping\ncontent-type: application/x-www-form-urlencoded\n\npayload={}&payload=[]",
        "x-github-event: issues\nx-github-delivery: \n\n{\"action\":5,\"issue\":{\"number\":-1,\"title\":\"\u{202e}\"},\"sender\":null}",
        "webhook-id: id\nwebhook-timestamp: 1700000000\nwebhook-signature: v1,AAAA v1a,x v1,\n\n[]",
        "webhook-id: id\nwebhook-timestamp: -9223372036854775808\nwebhook-signature: v1,\n\nnull",
    ];

    #[test]
    fn every_call_of_the_corpus_is_handled() {
        CORPUS.iter().for_each(|call| drive_call(call));
    }

    #[test]
    fn the_corpus_has_calls_that_are_parsed() {
        // Without them, the target would test refusals only.
        let parsed = CORPUS.iter().filter(|call| {
            let body = call.split_once("\n\n").map_or("", |(_, body)| body);
            parse_body("application/json", body.as_bytes()).is_ok()
        });
        assert!(parsed.count() >= 2);
    }

    proptest! {
        #[test]
        fn every_prefix_and_mix_of_calls_is_handled(
            one in 0..CORPUS.len(),
            other in 0..CORPUS.len(),
            at in 0.0..1.0_f64,
        ) {
            let (one, other) = (CORPUS[one], CORPUS[other]);
            let wanted = (one.len() as f64 * at) as usize;
            let cut = (0..=wanted).rev().find(|at| one.is_char_boundary(*at)).unwrap_or(0);
            drive_call(&one[..cut]);
            drive_call(&format!("{}{other}", &one[..cut]));
            drive_call(&format!("{}\n{other}", &one[..cut]));
        }

        #[test]
        fn any_call_is_handled(head in "\\PC*", body in "\\PC*") {
            drive_call(&format!("{head}\n\n{body}"));
        }
    }
}
