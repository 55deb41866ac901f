//! Variables in values: `${NAME}`, `${NAME:-default}`, and `$${` for a literal `${`.
//!
//! Variables are substituted before anything is checked, so they work for numbers, booleans, words
//! and URLs. A value that consists only of variables is typed as if it had been written without
//! quotes. Keys take no variables, and the value of a variable is never parsed as YAML. Start at
//! [`interpolate`].

use std::collections::BTreeMap;

use crate::reader::{ConfigReader, SourceSpan};
use crate::text::did_you_mean;
use crate::yaml::{TEXT_BYTES_MAX, YamlKind, YamlNode, YamlScalar};

/// Substitutes the variables in every scalar of the tree and reports those that are not set.
pub(crate) fn interpolate(
    node: &mut YamlNode,
    env: &BTreeMap<String, String>,
    reader: &mut ConfigReader,
) {
    // The limit is per file, since each file is kept in memory.
    VariableInterpolator { env, reader, text_left: TEXT_BYTES_MAX }.interpolate_node(node);
}

struct VariableInterpolator<'a> {
    env: &'a BTreeMap<String, String>,
    reader: &'a mut ConfigReader,
    /// Number of bytes that variables may still add.
    text_left: usize,
}

/// Segment of a value.
#[derive(Debug, PartialEq)]
enum InterpolationSegment<'a> {
    Text(&'a str),
    Variable {
        name: &'a str,
        default: Option<&'a str>,
    },
    /// Begins with `${` but is not a valid variable.
    Malformed(&'a str),
}

impl VariableInterpolator<'_> {
    fn interpolate_node(&mut self, node: &mut YamlNode) {
        let at = node.at;
        match &mut node.kind {
            YamlKind::Null => {}
            YamlKind::Scalar(scalar) => self.interpolate_scalar(scalar, at),
            YamlKind::List(items) => items.iter_mut().for_each(|item| self.interpolate_node(item)),
            YamlKind::Map(entries) => {
                entries.iter_mut().for_each(|(_, value)| self.interpolate_node(value));
            }
        }
    }

    fn interpolate_scalar(&mut self, scalar: &mut YamlScalar, at: SourceSpan) {
        // Most values have no variable.
        if !scalar.text.contains("${") {
            return;
        }
        let mut text = String::new();
        let mut only_variables = true;
        let mut search_from = at.start;
        for piece in parse_segments(&scalar.text) {
            match piece {
                InterpolationSegment::Text(literal) => {
                    text.push_str(literal);
                    only_variables = false;
                }
                InterpolationSegment::Variable { name, default } => {
                    // An empty variable is set, so its default does not apply.
                    match self.env.get(name).map(String::as_str).or(default) {
                        Some(value) if self.count_bytes(at, value.len()).is_some() => {
                            text.push_str(value);
                        }
                        // The config is refused already; the rest would only take more memory.
                        Some(_) => break,
                        None => {
                            let piece = format!("${{{name}");
                            let place = locate(self.reader, at, &piece, &mut search_from);
                            report_undefined(self.reader, place, name, self.env);
                        }
                    }
                }
                InterpolationSegment::Malformed(piece) => {
                    let place = locate(self.reader, at, piece, &mut search_from);
                    self.reader
                        .error(place, format!("`{piece}` is not a variable"))
                        .expected("expected `${NAME}` or `${NAME:-default}`")
                        .help("write `$${` for a literal `${`");
                }
            }
        }
        // `port: "${PORT}"` is meant as a number, as quotes are needed around braces.
        scalar.plain |= only_variables;
        // The text as written is shown in messages, as the value may be secret.
        let template = std::mem::replace(&mut scalar.text, text);
        scalar.template = Some(template);
    }

    fn count_bytes(&mut self, at: SourceSpan, bytes: usize) -> Option<()> {
        if let Some(left) = self.text_left.checked_sub(bytes) {
            self.text_left = left;
            return Some(());
        }
        let message =
            format!("with its variables the file has more than {TEXT_BYTES_MAX} bytes of text");
        self.reader.error(at, message).expected("needs shorter values");
        None
    }
}

fn report_undefined(
    reader: &mut ConfigReader,
    at: SourceSpan,
    name: &str,
    env: &BTreeMap<String, String>,
) {
    let near = did_you_mean(name, env.keys().map(String::as_str));
    let help = match near {
        Some(near) => format!("did you mean `{near}`? or give a default: `${{{name}:-…}}`"),
        None => format!("set it in the environment or in .env, or write `${{{name}:-default}}`"),
    };
    let message = format!("the variable `{name}` is not set");
    reader.error(at, message).expected("needs a value").help(help);
}

/// Finds the position of a segment in the source. Each search starts after the previous match.
fn locate(
    reader: &ConfigReader,
    at: SourceSpan,
    piece: &str,
    search_from: &mut usize,
) -> SourceSpan {
    let source = reader.source(at.file);
    // The value may be written with escapes, so the segment may not be found.
    let found = source.text.get(*search_from..at.end).and_then(|text| text.find(piece));
    let Some(offset) = found else { return at };
    let start = *search_from + offset;
    let rest = &source.text[start..at.end];
    let end = start + rest.find('}').map_or(piece.len(), |close| close + 1);
    *search_from = end;
    SourceSpan { file: at.file, start, end }
}

fn parse_segments(text: &str) -> Vec<InterpolationSegment<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        // An escape: the second `$` belongs to the text.
        if rest[..at].ends_with('$') {
            pieces.push(InterpolationSegment::Text(&rest[..at - 1]));
            pieces.push(InterpolationSegment::Text("${"));
            rest = &rest[at + 2..];
            continue;
        }
        if at > 0 {
            pieces.push(InterpolationSegment::Text(&rest[..at]));
        }
        // A variable without an end takes the rest, so that the message shows where it began.
        let end = rest[at..].find('}').map_or(rest.len(), |close| at + close + 1);
        pieces.push(parse_variable(&rest[at..end]));
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        pieces.push(InterpolationSegment::Text(rest));
    }
    pieces
}

fn parse_variable(piece: &str) -> InterpolationSegment<'_> {
    let Some(inner) = piece.strip_prefix("${").and_then(|piece| piece.strip_suffix('}')) else {
        return InterpolationSegment::Malformed(piece);
    };
    // The first separator counts: a default may contain another one.
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    match is_variable_name(name) {
        true => InterpolationSegment::Variable { name, default },
        false => InterpolationSegment::Malformed(piece),
    }
}

/// Returns true if the text is a valid name of an environment variable.
pub(crate) fn is_variable_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
