//! Keeping secrets out of what we write (promise P9).
//!
//! A [`SecretRedactor`] knows some secrets in every common encoding and puts a marker where one of them
//! stands. Whoever writes rows, logs, errors or replies sends them through it, at the one place that
//! writes. It never says what the secrets are. Encodings are listed in `forms`; `matcher` finds them.

mod encodings;
mod matcher;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value as Json};
use thiserror::Error;

use self::matcher::PatternMatcher;

/// Shorter values are not kept secret: they cannot be told from ordinary text.
pub const SECRET_BYTES_MIN: usize = 8;

/// What stands in place of a secret. It needs no escape in JSON.
pub const REDACTION_MARKER: &str = "[secret]";

/// A value that was named as a secret and is too short to be one.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "the value of secret `{name}` is shorter than {SECRET_BYTES_MIN} bytes and cannot be told from \
     ordinary text; use a longer one, or list `{name}` under `env` if it is no secret"
)]
pub struct ShortSecretError {
    /// The variable.
    pub name: String,
}

/// Checks that the value of the secret `name` is long enough to be kept secret.
pub fn check_secret(name: &str, value: &str) -> Result<(), ShortSecretError> {
    if value.trim().len() < SECRET_BYTES_MIN {
        return Err(ShortSecretError { name: name.to_owned() });
    }
    Ok(())
}

/// Says whether a variable of this name holds a secret by convention.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["KEY", "TOKEN", "SECRET", "PASSWORD"].iter().any(|word| name.contains(word))
}

/// Replaces secrets by [`REDACTION_MARKER`]. Copies are cheap and share what they know.
#[derive(Clone)]
pub struct SecretRedactor {
    matchers: Option<Arc<SecretMatchers>>,
}

struct SecretMatchers {
    /// Raw, JSON and percent forms.
    exact: PatternMatcher,
    /// Base64 and hex forms, which programs break into lines.
    folded: PatternMatcher,
    /// Whether a JSON number can hold a secret.
    numeric: bool,
}

impl std::fmt::Debug for SecretRedactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.matchers.is_some() { "Redactor(…)" } else { "Redactor(nothing)" })
    }
}

impl SecretRedactor {
    /// Knows these secrets; those that are too short are left out.
    ///
    /// White space around a secret does not count. The lines of a secret of several lines are
    /// secrets too where they are long enough, since keys are seldom shown in one piece.
    pub fn new(secrets: &[String]) -> Self {
        let secrets: Vec<&str> = secrets
            .iter()
            .map(|secret| secret.trim())
            .filter(|secret| secret.len() >= SECRET_BYTES_MIN)
            .collect();
        if secrets.is_empty() {
            return Self { matchers: None };
        }
        let known = SecretMatchers {
            exact: PatternMatcher::exact(
                secrets.iter().flat_map(|secret| encodings::exact_encodings(secret)),
            ),
            folded: PatternMatcher::folded(
                secrets.iter().flat_map(|secret| encodings::foldable_encodings(secret)),
            ),
            numeric: secrets.iter().any(|secret| secret.bytes().all(is_number_byte)),
        };
        Self { matchers: Some(Arc::new(known)) }
    }

    /// Returns the text without secrets. JSON is redacted before it is text, by [`SecretRedactor::redact_json`]:
    /// a secret may take half of an escape, or a quote, with it.
    pub fn redact_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.redact_bytes(text.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(bytes) => Cow::Owned(utf8(bytes)),
        }
    }

    /// Returns the bytes without secrets.
    pub fn redact_bytes<'t>(&self, bytes: &'t [u8]) -> Cow<'t, [u8]> {
        let Some(known) = &self.matchers else { return Cow::Borrowed(bytes) };
        let spans = known.spans(bytes);
        if spans.is_empty() {
            return Cow::Borrowed(bytes);
        }
        let mut clean = Vec::with_capacity(bytes.len());
        let mut from = 0;
        for span in spans {
            clean.extend_from_slice(&bytes[from..span.start]);
            clean.extend_from_slice(REDACTION_MARKER.as_bytes());
            from = span.end;
        }
        clean.extend_from_slice(&bytes[from..]);
        Cow::Owned(clean)
    }

    /// Takes the secrets out of every string and key, and out of numbers that hold one.
    pub fn redact_json(&self, json: &mut Json) {
        let Some(known) = &self.matchers else { return };
        match json {
            Json::String(text) => self.redact_string(text),
            Json::Array(items) => items.iter_mut().for_each(|item| self.redact_json(item)),
            Json::Object(map) => self.redact_object(map),
            Json::Number(number) if known.numeric => {
                let mut text = number.to_string();
                self.redact_string(&mut text);
                if text.contains(REDACTION_MARKER) {
                    *json = Json::String(text);
                }
            }
            Json::Number(_) | Json::Bool(_) | Json::Null => {}
        }
    }

    /// Redacts a text that comes in pieces.
    pub fn stream(&self) -> StreamRedactor {
        StreamRedactor { redactor: self.clone(), pending: String::new(), redacted_len: 0 }
    }

    /// Says whether nothing is ever redacted.
    pub fn is_empty(&self) -> bool {
        self.matchers.is_none()
    }

    /// Says whether a text holds a secret.
    pub fn contains_secret(&self, text: &str) -> bool {
        matches!(self.redact_text(text), Cow::Owned(_))
    }

    /// Takes the secrets out of everything in an object.
    pub(crate) fn redact_object(&self, map: &mut Map<String, Json>) {
        map.values_mut().for_each(|value| self.redact_json(value));
        self.redact_keys(map);
    }

    /// Takes the secrets out of a text.
    pub(crate) fn redact_string(&self, text: &mut String) {
        if let Cow::Owned(redacted) = self.redact_text(text) {
            *text = redacted;
        }
    }

    fn redact_keys(&self, map: &mut Map<String, Json>) {
        if !map.keys().any(|key| self.contains_secret(key)) {
            return;
        }
        for (key, value) in std::mem::take(map) {
            let clean = self.redact_text(&key);
            let mut name = clean.clone().into_owned();
            // Two keys may differ in their secrets alone; neither value may be lost.
            let mut count = 1;
            while map.contains_key(&name) {
                count += 1;
                name = format!("{clean} {count}");
            }
            map.insert(name, value);
        }
    }
}

impl SecretMatchers {
    /// Where secrets stand, in order and apart. Secrets that overlap are one.
    fn spans(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let mut spans = self.exact.find(bytes);
        spans.append(&mut self.folded.find(bytes));
        merge_spans(spans)
    }
}

fn merge_spans(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.sort_unstable_by_key(|span| span.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.start < last.end => last.end = last.end.max(span.end),
            _ => joined.push(span),
        }
    }
    joined
}

/// A text that comes in pieces: see [`SecretRedactor::parse_stream`].
///
/// What it returns, put together, is what [`SecretRedactor::redact_text`] returns for the whole.
pub struct StreamRedactor {
    redactor: SecretRedactor,
    /// What may begin a secret.
    pending: String,
    /// How much of what is held belongs to a secret whose marker was returned already.
    redacted_len: usize,
}

impl std::fmt::Debug for StreamRedactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream(…)")
    }
}

impl StreamRedactor {
    /// Takes a piece and returns what can be shown by now.
    pub fn push(&mut self, text: &str) -> String {
        let Some(known) = self.redactor.matchers.clone() else { return text.to_owned() };
        self.pending.push_str(text);
        let bytes = self.pending.as_bytes();
        let open =
            known.exact.partial_match_start(bytes).min(known.folded.partial_match_start(bytes));
        self.release(&known, open)
    }

    /// Returns the rest.
    pub fn finish(mut self) -> String {
        let Some(known) = self.redactor.matchers.clone() else { return String::new() };
        self.release(&known, self.pending.len())
    }

    /// Lets go of everything before `open`. A secret that stands there may go on, but is told.
    fn release(&mut self, known: &SecretMatchers, open: usize) -> String {
        let mut spans = known.spans(self.pending.as_bytes());
        if self.redacted_len > 0 {
            spans.push(0..self.redacted_len);
            spans = merge_spans(spans);
        }
        let mut shown = String::new();
        let (mut from, mut covered) = (0, 0);
        for span in spans.into_iter().take_while(|span| span.start <= open) {
            if span.start > 0 || self.redacted_len == 0 {
                shown.push_str(&self.pending[from..span.start]);
                shown.push_str(REDACTION_MARKER);
            }
            from = span.end.min(open);
            covered = span.end - from;
        }
        shown.push_str(&self.pending[from..open]);
        self.pending.drain(..open);
        self.redacted_len = covered;
        shown
    }
}

fn is_number_byte(byte: u8) -> bool {
    byte.is_ascii_digit() || b"+-.eE".contains(&byte)
}

fn utf8(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("a form of a secret is text, so cuts are between characters")
}

#[cfg(test)]
mod tests;
