//! Size limits of job rows. Session rows hold the full content.

use std::borrow::Cow;

use serde_json::Value as Json;

use crate::is_terminal_control;

/// Most characters kept of a line that cannot be parsed.
pub const MALFORMED_CHARS_MAX: usize = 1024;

/// Longest text of a tool, model or person in a job row, and largest tool input as JSON, in bytes.
pub const JOB_TEXT_BYTES_MAX: usize = 64 * 1024;

/// Longest name, ID or word in a job row, in bytes.
pub const JOB_SHORT_BYTES_MAX: usize = 1024;

/// Truncates a text at a character boundary and appends the number of missing characters.
pub(super) fn truncate_text(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    let (kept, rest) = text.split_at(text.floor_char_boundary(bytes_max));
    Cow::Owned(format!("{kept}…[truncated {} chars]", rest.chars().count()))
}

/// Returns the beginning of an unparsable line, with terminal control characters replaced.
pub(super) fn truncate_malformed(line: &str) -> String {
    let mut chars = line.chars();
    let mut kept: String = chars
        .by_ref()
        .take(MALFORMED_CHARS_MAX)
        // The line may come from any program, and people read it on a terminal.
        .map(|c| if is_terminal_control(c) { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if chars.next().is_some() {
        kept.push('…');
    }
    kept
}

/// Returns a tool's input. If it is too large, its long strings are truncated; if that is not
/// enough, it becomes truncated JSON text.
pub(super) fn truncate_input(input: &Json) -> Json {
    if json_size(input) <= JOB_TEXT_BYTES_MAX {
        return input.clone();
    }
    // An eighth, so that several long strings of one input can be kept in part.
    let shortened = truncate_strings(input, JOB_TEXT_BYTES_MAX / 8);
    match json_size(&shortened) {
        ..=JOB_TEXT_BYTES_MAX => shortened,
        // Many small values can be too large together; only a prefix of the text is kept then.
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

/// Returns the approximate size of a value as JSON, ignoring escapes.
pub(super) fn json_size(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len() + 2,
        Json::Array(items) => 2 + items.iter().map(|item| json_size(item) + 1).sum::<usize>(),
        Json::Object(fields) => {
            2 + fields.iter().map(|(key, item)| key.len() + json_size(item) + 4).sum::<usize>()
        }
        // An approximation suffices: the limit is about orders of magnitude.
        Json::Number(_) => 8,
        Json::Null | Json::Bool(_) => 4,
    }
}
