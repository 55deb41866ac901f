//! Removes people's secrets from the displayed text of their sessions.
//!
//! In addition to the secrets that the fleet knows, it removes text that looks like a key,
//! recognized by the prefix of its kind. Start at [`DisplayRedactor`].

use std::borrow::Cow;
use std::ops::Range;

use heeler_model::redact::{REDACTION_MARKER, SecretRedactor};
use memchr::memmem;
use serde_json::{Map, Value as Json};

use super::NativeSession;
use crate::history::HistoryPage;

/// Prefix of each kind of key, and the minimum number of characters after it.
// A minimum length keeps ordinary words that begin in the same way.
const KEYS: [(&str, usize); 24] = [
    ("sk-ant-", 16),
    ("sk-proj-", 16),
    ("sk-or-", 16),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("rk_live_", 16),
    // The shortest prefix of its kind, so more characters must follow.
    ("sk-", 32),
    ("ghp_", 30),
    ("gho_", 30),
    ("ghu_", 30),
    ("ghs_", 30),
    ("ghr_", 30),
    ("github_pat_", 20),
    ("glpat-", 16),
    ("npm_", 30),
    ("pypi-", 32),
    ("xoxb-", 16),
    ("xoxp-", 16),
    ("xapp-", 16),
    ("AKIA", 16),
    ("ASIA", 16),
    ("AIza", 30),
    ("hf_", 30),
    ("eyJ", 40),
];

/// Case-insensitive text before a secret of any kind, and the minimum length of the secret.
const SECRET_PREFIXES: [(&str, usize); 2] = [("bearer ", 16), ("authorization: basic ", 12)];

const KEY_BEGINS: &str = "-----BEGIN ";
const PRIVATE: &str = "PRIVATE KEY-----";
const KEY_ENDS: &str = "-----END ";

/// Removes secrets from displayed text.
#[derive(Debug, Clone)]
pub struct DisplayRedactor {
    known: SecretRedactor,
}

impl DisplayRedactor {
    /// Creates a redactor for these secrets and for all known kinds of keys.
    pub fn new(secrets: &[String]) -> DisplayRedactor {
        DisplayRedactor { known: SecretRedactor::new(secrets) }
    }

    /// Returns the text without secrets.
    pub fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        // Known secrets first, because they need no prefix.
        let known = self.known.redact_text(text);
        match without_keys(&known) {
            Some(clean) => Cow::Owned(clean),
            None => known,
        }
    }

    /// Removes secrets from every string and key.
    pub fn json(&self, json: &mut Json) {
        self.known.redact_json(json);
        each_text(json, &mut |text| {
            if let Some(clean) = without_keys(text) {
                *text = clean;
            }
        });
    }

    /// Removes secrets from a page of messages.
    pub fn history(&self, history: &mut HistoryPage) {
        for message in &mut history.messages {
            message.rows.iter_mut().for_each(|row| self.json(row));
            for error in &mut message.errors {
                *error = self.text(error).into_owned();
            }
            for tool in &mut message.tools {
                self.json(&mut tool.input);
                if let Some(result) = &mut tool.result {
                    self.json(&mut result.content);
                }
            }
        }
    }

    /// Removes secrets from the listed fields of a session.
    pub fn session(&self, session: &mut NativeSession) {
        for text in [&mut session.title, &mut session.git_branch].into_iter().flatten() {
            *text = self.text(text).into_owned();
        }
    }
}

fn each_text(json: &mut Json, change: &mut dyn FnMut(&mut String)) {
    match json {
        Json::String(text) => change(text),
        Json::Array(items) => items.iter_mut().for_each(|item| each_text(item, change)),
        Json::Object(fields) => {
            fields.values_mut().for_each(|value| each_text(value, change));
            // Maps keep their order, so an object is rebuilt only if one of its keys changes.
            if fields.keys().any(|key| !keys(key).is_empty()) {
                let changed = std::mem::take(fields).into_iter().map(|(mut key, value)| {
                    change(&mut key);
                    (key, value)
                });
                *fields = changed.collect::<Map<_, _>>();
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Returns the text without anything that looks like a key; `None` if there is nothing to
/// remove.
fn without_keys(text: &str) -> Option<String> {
    let spans = keys(text);
    if spans.is_empty() {
        return None;
    }
    let mut clean = String::with_capacity(text.len());
    let mut from = 0;
    for span in spans {
        // Spans may overlap: a key may be found by two prefixes.
        if span.start >= from {
            clean.push_str(&text[from..span.start]);
            clean.push_str(REDACTION_MARKER);
        }
        from = from.max(span.end);
    }
    clean.push_str(&text[from..]);
    Some(clean)
}

/// Returns the positions of keys, found by their prefixes.
fn keys(text: &str) -> Vec<Range<usize>> {
    let mut spans = private_keys(text);
    for (begins, more) in KEYS {
        for start in memmem::find_iter(text.as_bytes(), begins) {
            let end = start + begins.len() + token(&text[start + begins.len()..]);
            // In the middle of a word the prefix is part of something else.
            let is_word = text[..start].chars().next_back().is_none_or(|c| !c.is_alphanumeric());
            if is_word && end - start >= begins.len() + more {
                spans.push(start..end);
            }
        }
    }
    // Only ASCII letters change, so the offsets are those of the original text.
    let lower = text.to_ascii_lowercase();
    for (before, least) in SECRET_PREFIXES {
        for at in memmem::find_iter(lower.as_bytes(), before) {
            let start = at + before.len();
            let end = start + token(&text[start..]);
            if end - start >= least {
                spans.push(start..end);
            }
        }
    }
    spans.sort_by_key(|span| (span.start, span.end));
    spans
}

/// Returns the length of the token at the start of a text.
fn token(text: &str) -> usize {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.+/=~".contains(c);
    text.find(|c: char| !is_part(c)).unwrap_or(text.len())
}

/// Returns the positions of private keys; one without an end marker extends to the end.
fn private_keys(text: &str) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let mut from = 0;
    while let Some(start) = text[from..].find(KEY_BEGINS).map(|at| from + at) {
        from = start + KEY_BEGINS.len();
        let Some(head) = text[from..].find("-----").map(|at| from + at + "-----".len()) else {
            break;
        };
        if !text[start..head].ends_with(PRIVATE) {
            continue;
        }
        let end = text[head..].find(KEY_ENDS).map(|at| head + at + KEY_ENDS.len());
        let end = end.and_then(|at| text[at..].find("-----").map(|more| at + more + "-----".len()));
        // A key that was cut off is still a key, so the rest of the text is removed.
        from = end.unwrap_or(text.len());
        spans.push(start..from);
    }
    spans
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(DisplayRedactor::new(&["hunter2hunter2".to_owned()]).text(text), expected);
    }

    #[test]
    fn what_plainly_is_a_key_is_taken_out() {
        let long = "aB3".repeat(16);
        for (begins, _) in KEYS {
            check(&format!("use {begins}{long}, please"), "use [secret], please");
            check(&format!("KEY={begins}{long}"), "KEY=[secret]");
        }
        check(&format!("Authorization: Bearer {long}\n"), "Authorization: Bearer [secret]\n");
        check("authorization: basic dXNlcjpwYXNzd29yZA==", "authorization: basic [secret]");
        check("it is hunter2hunter2!", "it is [secret]!");
    }

    #[test]
    fn private_keys_are_taken_out_whole_also_when_they_are_cut_off() {
        let key = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----";
        check(&format!("a {key} b {key} c"), "a [secret] b [secret] c");
        check("a -----BEGIN PRIVATE KEY-----\nMIIE", "a [secret]");
        let public = "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----";
        check(public, public);
    }

    #[test]
    fn what_only_looks_a_little_like_one_stays() {
        for text in [
            "sk-ant-… is how they begin",
            "risk-averse people and task-oriented ones",
            "npm_config_cache",
            "the bearer of news",
            "AKIAshort",
            "日本 sk-日本",
            "",
        ] {
            check(text, text);
        }
    }

    #[test]
    fn every_text_and_name_of_a_document_is_cleaned() {
        let key = format!("ghp_{}", "a1".repeat(18));
        let mut row = json!({"a": [{"b": key, (key.clone()): 1}], "n": 5});
        DisplayRedactor::new(&[]).json(&mut row);
        assert_eq!(row, json!({"a": [{"b": "[secret]", "[secret]": 1}], "n": 5}));
    }
}
