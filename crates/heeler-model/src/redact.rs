//! Keeping secrets out of what we write (promise P9).
//!
//! A [`Redactor`] knows some secrets in every common encoding and puts a marker where one of them
//! stands. Whoever writes rows, logs, errors or replies sends them through it, at the one place that
//! writes. It never says what the secrets are. Encodings are listed in `forms`; `matcher` finds them.

mod forms;
mod matcher;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value as Json};
use thiserror::Error;

use self::matcher::Matcher;

/// Shorter values are not kept secret: they cannot be told from ordinary text.
pub const SECRET_BYTES_MIN: usize = 8;

/// What stands in place of a secret. It needs no escape in JSON.
pub const MARKER: &str = "[secret]";

/// A value that was named as a secret and is too short to be one.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "the value of secret `{name}` is shorter than {SECRET_BYTES_MIN} bytes and cannot be told from \
     ordinary text; use a longer one, or list `{name}` under `env` if it is no secret"
)]
pub struct ShortSecret {
    /// The variable.
    pub name: String,
}

/// Checks that the value of the secret `name` is long enough to be kept secret.
pub fn check_secret(name: &str, value: &str) -> Result<(), ShortSecret> {
    if value.trim().len() < SECRET_BYTES_MIN {
        return Err(ShortSecret { name: name.to_owned() });
    }
    Ok(())
}

/// Says whether a variable of this name holds a secret by convention.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["KEY", "TOKEN", "SECRET", "PASSWORD"].iter().any(|word| name.contains(word))
}

/// Replaces secrets by [`MARKER`]. Copies are cheap and share what they know.
#[derive(Clone)]
pub struct Redactor {
    known: Option<Arc<Known>>,
}

struct Known {
    /// Raw, JSON and percent forms.
    exact: Matcher,
    /// Base64 and hex forms, which programs break into lines.
    folded: Matcher,
    /// Whether a JSON number can hold a secret.
    numeric: bool,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.known.is_some() { "Redactor(…)" } else { "Redactor(nothing)" })
    }
}

impl Redactor {
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
            return Self { known: None };
        }
        let known = Known {
            exact: Matcher::exact(secrets.iter().flat_map(|secret| forms::exact(secret))),
            folded: Matcher::folded(secrets.iter().flat_map(|secret| forms::folded(secret))),
            numeric: secrets.iter().any(|secret| secret.bytes().all(is_of_number)),
        };
        Self { known: Some(Arc::new(known)) }
    }

    /// Returns the text without secrets. JSON is redacted before it is text, by [`Redactor::json`]:
    /// a secret may take half of an escape, or a quote, with it.
    pub fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.bytes(text.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(bytes) => Cow::Owned(utf8(bytes)),
        }
    }

    /// Returns the bytes without secrets.
    pub fn bytes<'t>(&self, bytes: &'t [u8]) -> Cow<'t, [u8]> {
        let Some(known) = &self.known else { return Cow::Borrowed(bytes) };
        let spans = known.spans(bytes);
        if spans.is_empty() {
            return Cow::Borrowed(bytes);
        }
        let mut clean = Vec::with_capacity(bytes.len());
        let mut from = 0;
        for span in spans {
            clean.extend_from_slice(&bytes[from..span.start]);
            clean.extend_from_slice(MARKER.as_bytes());
            from = span.end;
        }
        clean.extend_from_slice(&bytes[from..]);
        Cow::Owned(clean)
    }

    /// Takes the secrets out of every string and key, and out of numbers that hold one.
    pub fn json(&self, json: &mut Json) {
        let Some(known) = &self.known else { return };
        match json {
            Json::String(text) => self.clean(text),
            Json::Array(items) => items.iter_mut().for_each(|item| self.json(item)),
            Json::Object(map) => self.object(map),
            Json::Number(number) if known.numeric => {
                let mut text = number.to_string();
                self.clean(&mut text);
                if text.contains(MARKER) {
                    *json = Json::String(text);
                }
            }
            Json::Number(_) | Json::Bool(_) | Json::Null => {}
        }
    }

    /// Redacts a text that comes in pieces.
    pub fn stream(&self) -> Stream {
        Stream { redactor: self.clone(), held: String::new(), covered: 0 }
    }

    /// Says whether nothing is ever redacted.
    pub fn knows_nothing(&self) -> bool {
        self.known.is_none()
    }

    /// Says whether a text holds a secret.
    pub fn finds_in(&self, text: &str) -> bool {
        matches!(self.text(text), Cow::Owned(_))
    }

    /// Takes the secrets out of everything in an object.
    pub(crate) fn object(&self, map: &mut Map<String, Json>) {
        map.values_mut().for_each(|value| self.json(value));
        self.keys(map);
    }

    /// Takes the secrets out of a text.
    pub(crate) fn clean(&self, text: &mut String) {
        if let Cow::Owned(redacted) = self.text(text) {
            *text = redacted;
        }
    }

    fn keys(&self, map: &mut Map<String, Json>) {
        if !map.keys().any(|key| self.finds_in(key)) {
            return;
        }
        for (key, value) in std::mem::take(map) {
            let clean = self.text(&key);
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

impl Known {
    /// Where secrets stand, in order and apart. Secrets that overlap are one.
    fn spans(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let mut spans = self.exact.find(bytes);
        spans.append(&mut self.folded.find(bytes));
        join(spans)
    }
}

fn join(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
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

/// A text that comes in pieces: see [`Redactor::stream`].
///
/// What it returns, put together, is what [`Redactor::text`] returns for the whole.
pub struct Stream {
    redactor: Redactor,
    /// What may begin a secret.
    held: String,
    /// How much of what is held belongs to a secret whose marker was returned already.
    covered: usize,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream(…)")
    }
}

impl Stream {
    /// Takes a piece and returns what can be shown by now.
    pub fn push(&mut self, text: &str) -> String {
        let Some(known) = self.redactor.known.clone() else { return text.to_owned() };
        self.held.push_str(text);
        let bytes = self.held.as_bytes();
        let open = known.exact.open_from(bytes).min(known.folded.open_from(bytes));
        self.release(&known, open)
    }

    /// Returns the rest.
    pub fn finish(mut self) -> String {
        let Some(known) = self.redactor.known.clone() else { return String::new() };
        self.release(&known, self.held.len())
    }

    /// Lets go of everything before `open`. A secret that stands there may go on, but is told.
    fn release(&mut self, known: &Known, open: usize) -> String {
        let mut spans = known.spans(self.held.as_bytes());
        if self.covered > 0 {
            spans.push(0..self.covered);
            spans = join(spans);
        }
        let mut shown = String::new();
        let (mut from, mut covered) = (0, 0);
        for span in spans.into_iter().take_while(|span| span.start <= open) {
            if span.start > 0 || self.covered == 0 {
                shown.push_str(&self.held[from..span.start]);
                shown.push_str(MARKER);
            }
            from = span.end.min(open);
            covered = span.end - from;
        }
        shown.push_str(&self.held[from..open]);
        self.held.drain(..open);
        self.covered = covered;
        shown
    }
}

fn is_of_number(byte: u8) -> bool {
    byte.is_ascii_digit() || b"+-.eE".contains(&byte)
}

fn utf8(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("a form of a secret is text, so cuts are between characters")
}

#[cfg(test)]
mod tests;
