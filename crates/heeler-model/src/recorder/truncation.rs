//! Keeping job rows small: the whole of everything is in the session log.

use std::borrow::Cow;

use serde_json::Value as Json;

use crate::is_terminal_control;

/// How much of a line that cannot be understood is kept.
pub const MALFORMED_CHARS_MAX: usize = 1024;

/// The longest text of a tool, a model or a person in a job row, in bytes; and the largest input of
/// a tool, as JSON.
pub const JOB_TEXT_BYTES_MAX: usize = 64 * 1024;

/// The longest name, id or word in a job row, in bytes.
pub const JOB_SHORT_BYTES_MAX: usize = 1024;

/// Cuts a text at a character and says how much is missing.
pub(super) fn truncate_text(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    let (kept, rest) = text.split_at(text.floor_char_boundary(bytes_max));
    Cow::Owned(format!("{kept}…[truncated {} chars]", rest.chars().count()))
}

/// Returns the beginning of a line that cannot be understood, as text that harms no terminal.
pub(super) fn truncate_malformed(line: &str) -> String {
    let mut chars = line.chars();
    let mut kept: String = chars
        .by_ref()
        .take(MALFORMED_CHARS_MAX)
        .map(|c| if is_terminal_control(c) { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if chars.next().is_some() {
        kept.push('…');
    }
    kept
}

/// Returns a tool's input as it came, or, if it is too large, with its long texts cut; if it still
/// is, as JSON text that is cut.
pub(super) fn truncate_input(input: &Json) -> Json {
    if json_size(input) <= JOB_TEXT_BYTES_MAX {
        return input.clone();
    }
    let shortened = truncate_strings(input, JOB_TEXT_BYTES_MAX / 8);
    match json_size(&shortened) {
        ..=JOB_TEXT_BYTES_MAX => shortened,
        _ => truncate_text(&input.to_string(), JOB_TEXT_BYTES_MAX).into(),
    }
}

fn truncate_strings(value: &Json, bytes_max: usize) -> Json {
    match value {
        Json::String(text) => truncate_text(text, bytes_max).into(),
        Json::Array(items) => items.iter().map(|item| truncate_strings(item, bytes_max)).collect(),
        Json::Object(fields) => fields
            .iter()
            .map(|(key, item)| (key.clone(), truncate_strings(item, bytes_max)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

/// Returns about how many bytes a value has as JSON, escapes apart.
pub(super) fn json_size(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len() + 2,
        Json::Array(items) => 2 + items.iter().map(|item| json_size(item) + 1).sum::<usize>(),
        Json::Object(fields) => {
            2 + fields.iter().map(|(key, item)| key.len() + json_size(item) + 4).sum::<usize>()
        }
        Json::Number(_) => 8,
        Json::Null | Json::Bool(_) => 4,
    }
}
