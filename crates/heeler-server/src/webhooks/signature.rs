//! Signatures of webhook calls: HMAC-SHA256 over the raw body, compared in constant time.
//!
//! Two schemes are supported: `X-Hub-Signature-256`, as GitHub and many others send it, and
//! Standard Webhooks (`webhook-id`, `webhook-timestamp`, `webhook-signature`), which also signs a
//! time.

use std::time::Duration;

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

/// Largest difference between the signed time and now; it prevents the replay of old calls.
pub(crate) const TIME_TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// Most signatures checked per call; senders include more than one while a secret is rotated.
const SIGNATURES_MAX: usize = 10;

const STANDARD_SIGNATURE: &str = "webhook-signature";

const HUB_SIGNATURE: &str = "x-hub-signature-256";

/// Prefix of Standard Webhooks secrets; base64 follows.
const STANDARD_PREFIX: &str = "whsec_";

/// Bytes of an HMAC-SHA256.
const MAC_BYTES: usize = 32;

/// Returns true if a call has the headers of a signature that may be right. It is checked before
/// the body is read.
pub(super) fn is_well_formed(headers: &HeaderMap, now: Timestamp) -> bool {
    if headers.contains_key(HUB_SIGNATURE) {
        return hub_signature(headers).is_some();
    }
    let parts = StandardSignature::read(headers, now);
    parts.is_some_and(|parts| parts.signatures().next().is_some())
}

/// Returns the digest of the signature if a call is signed with a secret.
pub(super) fn verify(
    secret: &str,
    headers: &HeaderMap,
    body: &[u8],
    now: Timestamp,
) -> Option<String> {
    let signature = match headers.contains_key(HUB_SIGNATURE) {
        true => hub_signature(headers)
            .filter(|signature| verify_hmac(secret.as_bytes(), &[body], signature)),
        false => StandardSignature::read(headers, now)?.verify(secret, body),
    };
    // The signature is as good as a password for this body, so only its digest is kept.
    Some(Sha256::digest(signature?).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Signature of a call of Slack: `v0=` and the HMAC of `v0:TIME:BODY`, in hexadecimal.
pub(super) struct SlackSignature<'h> {
    time: &'h str,
    signature: Vec<u8>,
}

impl<'h> SlackSignature<'h> {
    /// Returns the headers if they have the right form and their time is near enough.
    pub(super) fn read(headers: &'h HeaderMap, now: Timestamp) -> Option<SlackSignature<'h>> {
        let text = |name: &str| headers.get(name)?.to_str().ok();
        let time = text("x-slack-request-timestamp")?;
        let at = Timestamp::from_second(time.parse().ok()?).ok()?;
        let is_near = now.duration_since(at).unsigned_abs() <= TIME_TOLERANCE;
        let signature = decode_hex(text("x-slack-signature")?.strip_prefix("v0=")?)?;
        let is_whole = signature.len() == MAC_BYTES;
        (is_near && is_whole).then_some(SlackSignature { time, signature })
    }

    /// Returns true if a body is signed with a secret.
    pub(super) fn is_made_with(&self, secret: &str, body: &[u8]) -> bool {
        let signed = [b"v0:", self.time.as_bytes(), b":", body];
        verify_hmac(secret.as_bytes(), &signed, &self.signature)
    }
}

fn hub_signature(headers: &HeaderMap) -> Option<Vec<u8>> {
    let text = headers.get(HUB_SIGNATURE)?.to_str().ok()?.strip_prefix("sha256=")?;
    decode_hex(text).filter(|signature| signature.len() == MAC_BYTES)
}

/// Headers of Standard Webhooks.
struct StandardSignature<'h> {
    id: &'h str,
    time: &'h str,
    signatures: &'h str,
}

impl<'h> StandardSignature<'h> {
    /// Returns the headers if their time is near enough.
    fn read(headers: &'h HeaderMap, now: Timestamp) -> Option<StandardSignature<'h>> {
        let text = |name: &str| headers.get(name)?.to_str().ok();
        let (id, time) = (text("webhook-id")?, text("webhook-timestamp")?);
        let at = Timestamp::from_second(time.parse().ok()?).ok()?;
        let is_near = now.duration_since(at).unsigned_abs() <= TIME_TOLERANCE;
        let signatures = text(STANDARD_SIGNATURE)?;
        is_near.then_some(StandardSignature { id, time, signatures })
    }

    /// Returns the signatures of the supported version.
    fn signatures(&self) -> impl Iterator<Item = Vec<u8>> + 'h {
        let given = self.signatures.split(' ').take(SIGNATURES_MAX);
        // Signatures of other versions, such as `v1a`, are asymmetric and are not supported.
        let ours = given.filter_map(|signature| signature.strip_prefix("v1,"));
        ours.filter_map(|signature| STANDARD.decode(signature).ok())
            .filter(|signature| signature.len() == MAC_BYTES)
    }

    /// Returns the signature that is made with a secret.
    fn verify(&self, secret: &str, body: &[u8]) -> Option<Vec<u8>> {
        let key = match secret.strip_prefix(STANDARD_PREFIX) {
            Some(coded) => STANDARD.decode(coded).ok()?,
            // A secret without the prefix is used as it is, like in the other scheme.
            None => secret.as_bytes().to_vec(),
        };
        let signed = [self.id.as_bytes(), b".", self.time.as_bytes(), b".", body];
        self.signatures().find(|signature| verify_hmac(&key, &signed, signature))
    }
}

/// Verifies a signature in constant time.
fn verify_hmac(key: &[u8], parts: &[&[u8]], signature: &[u8]) -> bool {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.verify_slice(signature).is_ok()
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() % 2 == 1 || !text.is_ascii() {
        return None;
    }
    let digit = |byte: u8| (byte as char).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
        of.iter()
            .map(|(name, value)| ((*name).parse().unwrap(), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    fn is_signed(secret: &str, headers: &HeaderMap, body: &[u8], now: Timestamp) -> bool {
        let is_signed = verify(secret, headers, body, now).is_some();
        // What is signed must never be refused before its body is read.
        assert!(!is_signed || is_well_formed(headers, now));
        is_signed
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_614_265_330).unwrap()
    }

    #[test]
    fn github_s_own_example_is_signed_and_nothing_else_is() {
        // From GitHub's documentation of webhooks.
        let (secret, body) = ("It's a Secret to Everybody", b"Hello, World!");
        let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let check = |secret: &str, signature: &str, body: &[u8]| {
            is_signed(secret, &headers(&[(HUB_SIGNATURE, signature)]), body, now())
        };
        assert!(check(secret, signature, body));
        assert!(check(secret, &signature.replace("757107EA", "757107ea"), body));
        assert!(!check("another", signature, body));
        assert!(!check(secret, signature, b"Hello, World?"));
        for wrong in ["", "sha256=", "sha256=7", "sha1=757107ea", &signature[..70], "sha256=ü757"]
        {
            let value = HeaderValue::from_bytes(wrong.as_bytes()).unwrap();
            let mut headers = HeaderMap::new();
            headers.insert(HUB_SIGNATURE, value);
            assert!(!is_signed(secret, &headers, body, now()), "{wrong}");
        }
        assert!(!is_signed(secret, &HeaderMap::new(), body, now()));
    }

    #[test]
    fn standard_webhooks_own_example_is_signed_while_it_is_new() {
        // From the specification's reference implementations.
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let body = b"{\"test\": 2432232314}";
        let given = |signature: &str, time: &str| {
            headers(&[
                ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
                ("webhook-timestamp", time),
                (STANDARD_SIGNATURE, signature),
            ])
        };
        let good = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        let check = |signature: &str, time: &str, now| {
            is_signed(secret, &given(signature, time), body, now)
        };
        assert!(check(good, "1614265330", now()));
        assert!(check(&format!("v1a,xx v1,AAAA {good}"), "1614265330", now()));
        assert!(!check("v1,AAAA", "1614265330", now()));
        assert!(!check(good, "1614265331", now()));
        assert!(!check(good, "x", now()));
        let second = jiff::SignedDuration::from_secs(1);
        let tolerance = jiff::SignedDuration::try_from(TIME_TOLERANCE).unwrap();
        assert!(check(good, "1614265330", now() + tolerance));
        assert!(!check(good, "1614265330", now() + tolerance + second));
        assert!(!check(good, "1614265330", now() - tolerance - second));
        let many = format!("{}{good}", "v1,AAAA ".repeat(SIGNATURES_MAX));
        assert!(!check(&many, "1614265330", now()), "no more than a few are looked at");
    }
}
