//! Signature of a run's result: proof that the runner wrote `result.json`, and not its agent.
//!
//! The daemon makes a key for each start of a runner. The runner gets the private key through its
//! standard input; the database has only the public key, which agents may read. The signature is
//! the last field of the file and covers every byte before it, so nothing has to be put into a
//! canonical form. With the same key the daemon signs `spec.json`, so that the next daemon can rely
//! on it. Start at [`ResultSigningKey`].

mod question_proof;

use std::fmt;
use std::str::FromStr;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use question_proof::{QuestionFileKind, QuestionProof};

const SEED_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = 64;

/// Precedes the signed bytes, so that a signature of something else is never one of a result.
const PURPOSE: &[u8] = b"heeler run result 1\0";

/// Precedes the signed bytes of a spec.
const SPEC_PURPOSE: &[u8] = b"heeler run spec 1\0";

/// Precedes the signed bytes of a hook's result, before the ID of the hook's event.
const HOOK_PURPOSE: &[u8] = b"heeler hook result 1\0";

/// Precedes the signed bytes of a host's contact with the database.
const CONTACT_PURPOSE: &[u8] = b"heeler host contact 1\0";

/// Separates a key and the event of a hook in the text of a key.
const EVENT_SEPARATOR: char = ' ';

/// Follows the text of a public key that also signed the spec of its run.
const SPEC_SUFFIX: &str = "+spec";

/// End of a result before the signature is added.
const DOCUMENT_END: &[u8] = b"\n}\n";
const FIELD_START: &[u8] = b",\n  \"signature\": \"";
const FIELD_END: &[u8] = b"\"\n}\n";

/// Text that is not a key.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[error("it is not a key of 64 hexadecimal digits")]
pub struct ResultKeyParseError;

/// Private key of one runner. It is in memory and in pipes, never in a file or an argument.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResultSigningKey {
    seed: [u8; SEED_BYTES],
    /// Event of the hook whose results the key signs. `None` for the key of a run.
    event: Option<String>,
}

impl ResultSigningKey {
    /// Creates the key from random bytes.
    pub fn from_seed(seed: [u8; SEED_BYTES]) -> ResultSigningKey {
        ResultSigningKey { seed, event: None }
    }

    /// Returns the same key for the results of one event of a hook. They count for no other event.
    pub fn for_event(&self, event: &str) -> ResultSigningKey {
        ResultSigningKey { event: Some(event.to_owned()), ..self.clone() }
    }

    pub fn public_key(&self) -> ResultPublicKey {
        let mut key = [0; SEED_BYTES];
        key.copy_from_slice(self.pair().public_key().as_ref());
        ResultPublicKey { key, signs_spec: self.event.is_none() }
    }

    /// Adds the signature to a result in pretty JSON.
    pub fn sign_document(&self, document: &[u8]) -> Vec<u8> {
        self.sign_with(document, |body| signed_bytes(self.event.as_deref(), body))
    }

    /// Adds the signature to the spec of a run in pretty JSON.
    pub fn sign_spec(&self, document: &[u8]) -> Vec<u8> {
        self.sign_with(document, |body| [SPEC_PURPOSE, body].concat())
    }

    /// Adds the signature to a host's contact in pretty JSON.
    pub(super) fn sign_contact(&self, document: &[u8]) -> Vec<u8> {
        self.sign_with(document, |body| [CONTACT_PURPOSE, body].concat())
    }

    /// Adds the signature of the bytes that `signed` makes of the document's content.
    fn sign_with(&self, document: &[u8], signed: impl FnOnce(&[u8]) -> Vec<u8>) -> Vec<u8> {
        // Every struct that serde writes in this form ends so.
        let body = document.strip_suffix(DOCUMENT_END).unwrap_or(document);
        let signature = self.pair().sign(&signed(body));
        [body, FIELD_START, encode_hex(signature.as_ref()).as_bytes(), FIELD_END].concat()
    }

    fn pair(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&self.seed).expect("a seed has 32 bytes")
    }
}

/// Number of bytes that a signature adds to a result.
pub const SIGNATURE_FIELD_BYTES: usize =
    FIELD_START.len() + 2 * SIGNATURE_BYTES + FIELD_END.len() - DOCUMENT_END.len();

impl fmt::Debug for ResultSigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResultSigningKey(…)")
    }
}

impl TryFrom<String> for ResultSigningKey {
    type Error = ResultKeyParseError;

    fn try_from(text: String) -> Result<ResultSigningKey, ResultKeyParseError> {
        let (seed, event) = match text.split_once(EVENT_SEPARATOR) {
            Some((seed, event)) => (seed, Some(event.to_owned())),
            None => (text.as_str(), None),
        };
        let seed = decode_hex(seed.as_bytes()).ok_or(ResultKeyParseError)?;
        Ok(ResultSigningKey { seed, event })
    }
}

impl From<ResultSigningKey> for String {
    fn from(key: ResultSigningKey) -> String {
        let seed = encode_hex(&key.seed);
        match key.event {
            Some(event) => format!("{seed}{EVENT_SEPARATOR}{event}"),
            None => seed,
        }
    }
}

/// Public key that belongs to a [`ResultSigningKey`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResultPublicKey {
    key: [u8; SEED_BYTES],
    /// True if the spec of the run is signed too. Earlier releases did not sign it.
    signs_spec: bool,
}

impl ResultPublicKey {
    /// Returns the key of a run whose spec is not signed.
    pub fn without_spec(self) -> ResultPublicKey {
        ResultPublicKey { signs_spec: false, ..self }
    }

    /// Returns true if the holder of the private key wrote this result.
    pub fn has_signed(&self, file: &[u8]) -> bool {
        self.has_signed_as(file, |body| signed_bytes(None, body))
    }

    /// Returns true if the holder of the private key wrote this result for this event of a hook.
    pub fn has_signed_for(&self, event: &str, file: &[u8]) -> bool {
        self.has_signed_as(file, |body| signed_bytes(Some(event), body))
    }

    /// Returns true if this spec may be used: its run has a signed spec, and this is it, or the run
    /// is of an earlier release, which did not sign specs.
    pub fn accepts_spec(&self, file: &[u8]) -> bool {
        !self.signs_spec || self.has_signed_as(file, |body| [SPEC_PURPOSE, body].concat())
    }

    /// Returns true if the holder of the private key wrote this file of a host's contact.
    pub(super) fn has_signed_contact(&self, file: &[u8]) -> bool {
        self.has_signed_as(file, |body| [CONTACT_PURPOSE, body].concat())
    }

    fn has_signed_as(&self, file: &[u8], signed: impl FnOnce(&[u8]) -> Vec<u8>) -> bool {
        let Some((body, signature)) = split_signature(file) else { return false };
        self.verifies(&signed(body), &signature)
    }

    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.key).verify(message, signature).is_ok()
    }
}

/// Splits a file into its content and its signature; `None` if it has no signature.
fn split_signature(file: &[u8]) -> Option<(&[u8], [u8; SIGNATURE_BYTES])> {
    let rest = file.strip_suffix(FIELD_END)?;
    let (rest, signature) = rest.split_at_checked(rest.len().checked_sub(2 * SIGNATURE_BYTES)?)?;
    Some((rest.strip_suffix(FIELD_START)?, decode_hex(signature)?))
}

impl fmt::Display for ResultPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode_hex(&self.key))?;
        f.write_str(if self.signs_spec { SPEC_SUFFIX } else { "" })
    }
}

impl FromStr for ResultPublicKey {
    type Err = ResultKeyParseError;

    fn from_str(text: &str) -> Result<ResultPublicKey, ResultKeyParseError> {
        let (digits, signs_spec) = match text.strip_suffix(SPEC_SUFFIX) {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        let key = decode_hex(digits.as_bytes()).ok_or(ResultKeyParseError)?;
        Ok(ResultPublicKey { key, signs_spec })
    }
}

impl TryFrom<String> for ResultPublicKey {
    type Error = ResultKeyParseError;

    fn try_from(text: String) -> Result<ResultPublicKey, ResultKeyParseError> {
        text.parse()
    }
}

impl From<ResultPublicKey> for String {
    fn from(key: ResultPublicKey) -> String {
        key.to_string()
    }
}

/// Returns the bytes of a result that are signed: of a run, or of the hook of an event.
fn signed_bytes(event: Option<&str>, body: &[u8]) -> Vec<u8> {
    match event {
        None => [PURPOSE, body].concat(),
        // The length ends the event, whatever bytes it has.
        Some(event) => {
            let length = (event.len() as u64).to_be_bytes();
            [HOOK_PURPOSE, &length, event.as_bytes(), body].concat()
        }
    }
}

fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &[u8] = b"{\n  \"protocol\": 1,\n  \"end\": \"finished\"\n}\n";

    fn key(byte: u8) -> ResultSigningKey {
        ResultSigningKey::from_seed([byte; SEED_BYTES])
    }

    #[test]
    fn a_signed_result_is_json_and_only_its_own_key_accepts_it() {
        let signed = key(1).sign_document(DOCUMENT);
        let json: serde_json::Value = serde_json::from_slice(&signed).unwrap();
        assert_eq!((&json["protocol"], &json["end"]), (&1.into(), &"finished".into()));
        assert_eq!(signed.len(), DOCUMENT.len() + SIGNATURE_FIELD_BYTES);
        assert!(key(1).public_key().has_signed(&signed));
        assert!(!key(2).public_key().has_signed(&signed));
    }

    #[test]
    fn no_byte_of_a_signed_result_can_be_changed_added_or_removed() {
        let (signed, public) = (key(1).sign_document(DOCUMENT), key(1).public_key());
        for at in 0..signed.len() {
            let mut other = signed.clone();
            other[at] ^= 1;
            assert!(!public.has_signed(&other), "byte {at} changed");
            let mut other = signed.clone();
            other.remove(at);
            assert!(!public.has_signed(&other), "byte {at} removed");
        }
        for end in 0..signed.len() {
            assert!(!public.has_signed(&signed[..end]), "cut at {end}");
        }
        assert!(!public.has_signed(DOCUMENT));
        assert!(!public.has_signed(&[&signed[..], b" "].concat()));
    }

    #[test]
    fn a_spec_counts_only_with_the_signature_of_its_run_and_as_a_spec() {
        let signed = key(1).sign_spec(DOCUMENT);
        let public = key(1).public_key();
        assert!(public.accepts_spec(&signed));
        assert!(!key(2).public_key().accepts_spec(&signed));
        assert!(!public.accepts_spec(DOCUMENT), "the signature was removed");
        assert!(!public.accepts_spec(&key(1).sign_document(DOCUMENT)), "it is a result");
        assert!(!public.has_signed(&signed), "it is a spec");
        for at in 0..signed.len() {
            let mut other = signed.clone();
            other[at] ^= 1;
            assert!(!public.accepts_spec(&other), "byte {at} changed");
        }
        // A run of an earlier release has a key, but no signed spec.
        assert!(public.clone().without_spec().accepts_spec(DOCUMENT));
        let text = public.to_string();
        assert_eq!(text.parse(), Ok(public.clone()));
        assert_eq!(text.strip_suffix("+spec").unwrap().parse(), Ok(public.without_spec()));
    }

    #[test]
    fn the_result_of_a_hook_counts_for_its_event_only() {
        let (own, public) = (key(1).for_event("job-1.5.0"), key(1).public_key());
        let signed = own.sign_document(DOCUMENT);
        assert!(public.has_signed_for("job-1.5.0", &signed));
        assert!(!public.has_signed_for("job-1.5.1", &signed));
        assert!(
            !public.has_signed_for(
                "job-1.5.0",
                &key(2).for_event("job-1.5.0").sign_document(DOCUMENT)
            )
        );
        assert!(!public.has_signed(&signed), "it is no result of a run");
        assert!(!public.has_signed_for("job-1.5.0", &key(1).sign_document(DOCUMENT)));
        let text = serde_json::to_string(&own).unwrap();
        assert_eq!(serde_json::from_str::<ResultSigningKey>(&text).unwrap(), own);
    }

    #[test]
    fn keys_survive_their_text_and_the_private_one_is_not_shown() {
        let key = key(0xa7);
        let text = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<ResultSigningKey>(&text).unwrap(), key);
        assert_eq!(key.public_key().to_string().parse(), Ok(key.public_key()));
        assert_eq!(format!("{key:?}"), "ResultSigningKey(…)");
        for bad in ["", "a7", &"g7".repeat(32), &"A7".repeat(32), &"a7".repeat(33)] {
            assert!(bad.parse::<ResultPublicKey>().is_err(), "{bad}");
        }
    }
}
