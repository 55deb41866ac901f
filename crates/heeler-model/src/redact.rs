//! Redaction of secrets in everything that Heeler writes (promise P9).
//!
//! A [`SecretRedactor`] knows some secrets in every common encoding and replaces them with a
//! marker. Rows, logs, errors and replies pass through it at the single place that writes them. It
//! never reveals the secrets. `encodings` lists the encodings; `matcher` finds them. Every redactor
//! also finds the secrets of `secret_shapes`, of which no value needs to be known.

mod encodings;
mod matcher;
mod secret_shapes;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

pub use heeler_config::is_secret_name;
use serde_json::{Map, Value as Json};
use thiserror::Error;

use self::matcher::PatternMatcher;
use self::secret_shapes::{ShapeMatch, find_shapes, partial_shape_start};

/// Shorter values are not redacted: they cannot be distinguished from ordinary text.
pub const SECRET_BYTES_MIN: usize = 8;

/// Replacement for a secret. It needs no escape in JSON.
pub const REDACTION_MARKER: &str = "[secret]";

/// Error for a value that was declared a secret and is too short.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "the value of secret `{name}` is shorter than {SECRET_BYTES_MIN} bytes and cannot be told from \
     ordinary text; use a longer one, or list `{name}` under `env` if it is no secret"
)]
pub struct ShortSecretError {
    /// Name of the variable.
    pub name: String,
}

/// Checks that the value of the secret `name` is long enough to be redacted.
pub fn check_secret(name: &str, value: &str) -> Result<(), ShortSecretError> {
    // Trimmed, because the redactor ignores white space around a secret as well.
    if value.trim().len() < SECRET_BYTES_MIN {
        return Err(ShortSecretError { name: name.to_owned() });
    }
    Ok(())
}

/// Replaces secrets with [`REDACTION_MARKER`]. Clones are cheap and share their data.
#[derive(Clone)]
pub struct SecretRedactor {
    /// Matchers of the known secrets, if there are any.
    matchers: Option<Arc<SecretMatchers>>,
}

struct SecretMatchers {
    /// Raw, JSON and percent encodings.
    exact: PatternMatcher,
    /// Base64 and hex encodings, which programs break into lines.
    folded: PatternMatcher,
    /// True if a JSON number can contain a secret.
    numeric: bool,
}

impl std::fmt::Debug for SecretRedactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The secrets must not appear in debug output, not even their number.
        f.write_str(if self.matchers.is_some() {
            "SecretRedactor(…)"
        } else {
            "SecretRedactor(empty)"
        })
    }
}

impl SecretRedactor {
    /// Creates a redactor for these secrets. Secrets that are too short are ignored.
    ///
    /// White space around a secret is ignored. Each line of a multi-line secret is a secret too if
    /// it is long enough, because keys are often printed line by line.
    pub fn new(secrets: &[String]) -> Self {
        let secrets: Vec<&str> = secrets
            .iter()
            // A newline at the end of a file is not part of the secret.
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
            // Only then numbers need to be rendered, which costs time for each row.
            numeric: secrets.iter().any(|secret| secret.bytes().all(is_number_byte)),
        };
        Self { matchers: Some(Arc::new(known)) }
    }

    /// Returns the text without secrets.
    ///
    /// JSON must be redacted before serialization, with [`SecretRedactor::redact_json`]: a match in
    /// serialized text may include half an escape sequence, or a quote.
    pub fn redact_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.redact_bytes(text.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(bytes) => Cow::Owned(utf8(bytes)),
        }
    }

    /// Returns the bytes without secrets.
    pub fn redact_bytes<'t>(&self, bytes: &'t [u8]) -> Cow<'t, [u8]> {
        let spans = merge_spans(self.spans(bytes, &find_shapes(bytes)));
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

    /// Returns the beginning of a longer text without secrets. The beginning of a secret at its end
    /// would not be recognized, so it is removed.
    pub fn redact_beginning<'t>(&self, bytes: &'t [u8]) -> Cow<'t, [u8]> {
        let open = self.partial_match_start(bytes);
        // A complete secret may reach beyond the point at which another one seems to begin.
        let complete = self.spans(bytes, &find_shapes(bytes));
        let reaches = complete.iter().filter(|span| span.contains(&open)).map(|span| span.end);
        self.redact_bytes(&bytes[..reaches.max().unwrap_or(open)])
    }

    /// Redacts every string and key, and numbers that contain a secret.
    pub fn redact_json(&self, json: &mut Json) {
        let numeric = self.matchers.as_ref().is_some_and(|known| known.numeric);
        match json {
            Json::String(text) => self.redact_string(text),
            Json::Array(items) => items.iter_mut().for_each(|item| self.redact_json(item)),
            Json::Object(map) => self.redact_object(map),
            Json::Number(number) if numeric => {
                let mut text = number.to_string();
                self.redact_string(&mut text);
                // A marker is not a number, so the value becomes a text.
                if text.contains(REDACTION_MARKER) {
                    *json = Json::String(text);
                }
            }
            Json::Number(_) | Json::Bool(_) | Json::Null => {}
        }
    }

    /// Returns a redactor for a text that arrives in fragments.
    pub fn stream(&self) -> StreamRedactor {
        StreamRedactor { redactor: self.clone(), pending: String::new(), redacted_len: 0 }
    }

    /// Returns true if no secret is known by its value.
    pub(crate) fn knows_nothing(&self) -> bool {
        self.matchers.is_none()
    }

    /// Returns true if the text has a secret that is known by its value.
    pub fn contains_known_secret(&self, text: &str) -> bool {
        self.matchers.as_ref().is_some_and(|known| !known.spans(text.as_bytes()).is_empty())
    }

    fn contains_secret(&self, text: &str) -> bool {
        matches!(self.redact_text(text), Cow::Owned(_))
    }

    /// Returns the start of an incomplete secret at the end of the bytes, or their length if none.
    fn partial_match_start(&self, bytes: &[u8]) -> usize {
        let known = self.matchers.as_ref().map(|known| known.partial_match_start(bytes));
        partial_shape_start(bytes).min(known.unwrap_or(bytes.len()))
    }

    /// Returns the positions of secrets, in any order.
    fn spans(&self, bytes: &[u8], shapes: &[ShapeMatch]) -> Vec<Range<usize>> {
        let mut spans = self.matchers.as_ref().map_or_else(Vec::new, |known| known.spans(bytes));
        spans.extend(shapes.iter().map(|shape| shape.secret.clone()));
        spans
    }

    pub(crate) fn redact_object(&self, map: &mut Map<String, Json>) {
        map.values_mut().for_each(|value| self.redact_json(value));
        // Keys last: a map with a renamed key has moved its values.
        self.redact_keys(map);
    }

    pub(crate) fn redact_string(&self, text: &mut String) {
        if let Cow::Owned(redacted) = self.redact_text(text) {
            *text = redacted;
        }
    }

    fn redact_keys(&self, map: &mut Map<String, Json>) {
        // Nearly no key has a secret, and rebuilding the map would cost an allocation each.
        if !map.keys().any(|key| self.contains_secret(key)) {
            return;
        }
        for (key, value) in std::mem::take(map) {
            let clean = self.redact_text(&key);
            let mut name = clean.clone().into_owned();
            // Two keys may differ only in their secrets. Neither value may be lost.
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
    /// Returns the positions of secrets, in any order.
    fn spans(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let mut spans = self.exact.find(bytes);
        spans.append(&mut self.folded.find(bytes));
        spans
    }

    /// Returns the start of an incomplete secret at the end of the bytes, or their length if none.
    fn partial_match_start(&self, bytes: &[u8]) -> usize {
        // Both kinds must be complete: a text may be the beginning of either.
        self.exact.partial_match_start(bytes).min(self.folded.partial_match_start(bytes))
    }
}

/// Returns the spans sorted and disjoint.
fn merge_spans(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.sort_unstable_by_key(|span| span.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            // Overlapping secrets become one marker, as no byte can be replaced twice.
            Some(last) if span.start < last.end => last.end = last.end.max(span.end),
            _ => joined.push(span),
        }
    }
    joined
}

/// Redactor for a text that arrives in fragments. Created by [`SecretRedactor::stream`].
///
/// The concatenated output equals [`SecretRedactor::redact_text`] of the whole text.
pub struct StreamRedactor {
    redactor: SecretRedactor,
    /// Text that may be the beginning of a secret.
    pending: String,
    /// Length of the prefix of `pending` that belongs to a secret whose marker was already
    /// returned.
    redacted_len: usize,
}

impl std::fmt::Debug for StreamRedactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamRedactor(…)")
    }
}

impl StreamRedactor {
    /// Adds a fragment and returns the text that is safe to show.
    pub fn push(&mut self, text: &str) -> String {
        self.pending.push_str(text);
        let bytes = self.pending.as_bytes();
        self.release(self.redactor.partial_match_start(bytes))
    }

    /// Returns the remaining text.
    pub fn finish(mut self) -> String {
        self.release(self.pending.len())
    }

    /// Releases everything before `open`. A secret there may continue after `open`; its marker is
    /// returned now and the rest is suppressed later.
    fn release(&mut self, mut open: usize) -> String {
        let shapes = find_shapes(self.pending.as_bytes());
        // A shape is found again only as long as its anchor is pending.
        for shape in shapes.iter().rev() {
            if (shape.anchor..shape.secret.start).contains(&open) {
                open = shape.anchor;
            }
        }
        let mut spans = self.redactor.spans(self.pending.as_bytes(), &shapes);
        // The rest of a secret that was announced in an earlier fragment may extend into this one.
        if self.redacted_len > 0 {
            spans.push(0..self.redacted_len);
        }
        let spans = merge_spans(spans);
        let mut shown = String::new();
        let (mut from, mut covered) = (0, 0);
        for span in spans.into_iter().take_while(|span| span.start <= open) {
            // The marker of a continued secret was already shown.
            if span.start > 0 || self.redacted_len == 0 {
                shown.push_str(&self.pending[from..span.start]);
                shown.push_str(REDACTION_MARKER);
            }
            // A secret may reach beyond `open`; what follows there is suppressed by the next call.
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
