//! Values as YAML text, in lines and in brackets.

use serde_json::{Map, Value as Json};

/// Spaces of one level of indentation.
const INDENT: usize = 2;

/// Words that YAML or a person could read as something else than text.
const WORDS: [&str; 10] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan"];

/// Returns the lines of an entry of a map.
pub(crate) fn block_entry(key: &str, value: &Json, indent: usize) -> Vec<String> {
    let lead = format!("{}{}:", " ".repeat(indent), plain_or_quoted(&Json::String(key.to_owned())));
    let deeper = indent + INDENT;
    match value {
        Json::Object(map) if !map.is_empty() => prefixed(lead, block_map(map, deeper)),
        Json::Array(items) if !items.is_empty() => {
            prefixed(lead, items.iter().flat_map(|item| block_item(item, deeper)).collect())
        }
        Json::String(text) => match literal_lines(text) {
            Some((mark, lines)) => {
                let pad = |line: &str| match line {
                    "" => String::new(),
                    line => format!("{}{line}", " ".repeat(deeper)),
                };
                prefixed(format!("{lead} {mark}"), lines.into_iter().map(pad).collect())
            }
            None => vec![format!("{lead} {}", plain_or_quoted(value))],
        },
        scalar => vec![format!("{lead} {}", flow_value(scalar))],
    }
}

/// Returns the lines of an item of a list.
pub(crate) fn block_item(value: &Json, indent: usize) -> Vec<String> {
    let lead = format!("{}-", " ".repeat(indent));
    match value {
        Json::Object(map) if !map.is_empty() => {
            let mut lines = block_map(map, indent + INDENT);
            lines[0] = format!("{lead} {}", lines[0].trim_start());
            lines
        }
        other => vec![format!("{lead} {}", flow_value(other))],
    }
}

fn block_map(map: &Map<String, Json>, indent: usize) -> Vec<String> {
    map.iter().flat_map(|(key, value)| block_entry(key, value, indent)).collect()
}

fn prefixed(first: String, rest: Vec<String>) -> Vec<String> {
    std::iter::once(first).chain(rest).collect()
}

/// Returns an entry of a map in braces.
pub(crate) fn flow_entry(key: &str, value: &Json) -> String {
    format!("{}: {}", plain_or_quoted(&Json::String(key.to_owned())), flow_value(value))
}

/// Returns a value on one line.
pub(crate) fn flow_value(value: &Json) -> String {
    match value {
        Json::Object(map) => {
            let entries: Vec<String> =
                map.iter().map(|(key, value)| flow_entry(key, value)).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(flow_value).collect();
            format!("[{}]", items.join(", "))
        }
        scalar => plain_or_quoted(scalar),
    }
}

/// Returns a scalar as it is, or as a JSON string, which is also a YAML string.
pub(crate) fn plain_or_quoted(value: &Json) -> String {
    match value {
        Json::String(text) if is_plain(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns true if a text means the same without quotes.
fn is_plain(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || " ./_-".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || "./_".contains(c));
    let is_word = WORDS.iter().any(|word| text.eq_ignore_ascii_case(word));
    // A text such as `.5` is a number, and `.nan` is not.
    let is_number = text.starts_with('.') && !text.starts_with("./") && !text.starts_with("..");
    begins && !is_word && !is_number && !text.ends_with(' ') && text.chars().all(is_inner)
}

/// Returns the mark and the lines of a text as a block scalar, if it has several lines that a block
/// scalar can hold.
fn literal_lines(text: &str) -> Option<(&'static str, Vec<&str>)> {
    let (mark, body) = match text.strip_suffix('\n') {
        Some(body) => ("|", body),
        None => ("|-", text),
    };
    let is_odd = |c: char| c.is_control() && c != '\n';
    let fits = body.contains('\n')
        && !body.starts_with([' ', '\n'])
        && !body.ends_with('\n')
        && !text.contains(is_odd)
        && !body.contains(['\u{2028}', '\u{2029}', '\u{feff}', '\u{85}']);
    fits.then(|| (mark, body.split('\n').collect()))
}
