//! Changes of single values in a YAML text. Comments and everything else stay as they are.
//!
//! A change is made in the text, because a parsed tree has no comments. Text edits of YAML are easy
//! to get wrong, so the result is parsed again and compared with the wanted content; otherwise the
//! edit is refused. Start at [`set_yaml_value`].

use serde_json::{Map, Value as Json};
use thiserror::Error;

use crate::reader::{ConfigDialect, ConfigReader};
use crate::yaml::{self, YamlKind, YamlNode};
use crate::yaml_emit::{block_entry, block_item, flow_entry, flow_value, plain_or_quoted};

/// Largest text that is edited. The search for brackets takes quadratic time in the worst case.
pub const EDITED_BYTES_MAX: usize = 128 << 10;

/// Step from a value to a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum YamlPathStep {
    Key(String),
    /// Item of a list. The number of items stands for a new one.
    Index(usize),
}

/// Reason for which a text cannot be changed automatically.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum YamlEditError {
    #[error("the text is not valid YAML")]
    Faulty,
    #[error("the text is larger than {EDITED_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the parent of the value is neither a map nor a list")]
    NoContainer,
    #[error("there is no such value")]
    NotFound,
    #[error("this layout of YAML cannot be edited automatically")]
    Layout,
}

/// Returns the values of a YAML text as JSON, without substituting variables; `None` if it has
/// faults.
pub fn read_yaml_values(text: &str) -> Option<Json> {
    parse(text).map(|tree| to_json(&tree))
}

/// Sets a value in a YAML text, or removes it if `value` is null. Missing maps on the way are
/// created. A map or list that loses its last value is removed too.
pub fn set_yaml_value(
    text: &str,
    path: &[YamlPathStep],
    value: &Json,
) -> Result<String, YamlEditError> {
    if text.len() > EDITED_BYTES_MAX {
        return Err(YamlEditError::TooLarge);
    }
    let tree = parse(text).ok_or(YamlEditError::Faulty)?;
    let before = to_json(&tree);
    // A file keeps its line ends; a mixed file would be shown as changed everywhere.
    let line_end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let editor = YamlEditor { text, tree: &tree, line_end };
    let (changed, expected) = if value.is_null() {
        let path = editor.removable_path(path)?;
        let changed = editor.remove(path).ok_or(YamlEditError::Layout)?;
        (changed, without(before, path))
    } else {
        (editor.set(path, value)?, with(before, path, value))
    };
    let after = read_yaml_values(&changed).ok_or(YamlEditError::Layout)?;
    if after == expected { Ok(changed) } else { Err(YamlEditError::Layout) }
}

fn parse(text: &str) -> Option<YamlNode> {
    let mut reader = ConfigReader::new(ConfigDialect::Heeler, None);
    let file = reader.add_source("".into(), text.to_owned());
    yaml::parse(file, &mut reader).filter(|_| reader.error_count() == 0)
}

fn to_json(node: &YamlNode) -> Json {
    match &node.kind {
        YamlKind::Null => Json::Null,
        YamlKind::Scalar(scalar) => match scalar.text.as_str() {
            "true" if scalar.plain => Json::Bool(true),
            "false" if scalar.plain => Json::Bool(false),
            text if scalar.plain => serde_json::from_str(text)
                .ok()
                .filter(Json::is_number)
                .unwrap_or_else(|| Json::String(text.to_owned())),
            text => Json::String(text.to_owned()),
        },
        YamlKind::List(items) => items.iter().map(to_json).collect(),
        YamlKind::Map(entries) => {
            let entries = entries.iter().map(|(key, value)| (key.text.clone(), to_json(value)));
            Json::Object(entries.collect())
        }
    }
}

/// Returns the content with a value set.
fn with(content: Json, path: &[YamlPathStep], value: &Json) -> Json {
    match (path.split_first(), content) {
        (None, _) => value.clone(),
        (Some((YamlPathStep::Key(key), rest)), content) => {
            let mut map = match content {
                Json::Object(map) => map,
                _ => Map::new(),
            };
            let old = map.remove(key).unwrap_or(Json::Null);
            map.insert(key.clone(), with(old, rest, value));
            Json::Object(map)
        }
        (Some((YamlPathStep::Index(at), rest)), content) => {
            let mut items = match content {
                Json::Array(items) => items,
                _ => Vec::new(),
            };
            items.resize(items.len().max(at + 1), Json::Null);
            items[*at] = with(items[*at].take(), rest, value);
            Json::Array(items)
        }
    }
}

/// Returns the content without a value, whose container keeps other values.
fn without(mut content: Json, path: &[YamlPathStep]) -> Json {
    let Some((last, parents)) = path.split_last() else { return Json::Null };
    let mut at = &mut content;
    for step in parents {
        at = match step {
            YamlPathStep::Key(key) => &mut at[key.as_str()],
            YamlPathStep::Index(index) => &mut at[*index],
        };
    }
    match (last, at) {
        (YamlPathStep::Key(key), Json::Object(map)) => drop(map.remove(key)),
        (YamlPathStep::Index(index), Json::Array(items)) => drop(items.remove(*index)),
        _ => {}
    }
    content
}

fn child<'n>(node: &'n YamlNode, step: &YamlPathStep) -> Option<&'n YamlNode> {
    match (step, &node.kind) {
        (YamlPathStep::Key(key), _) => node.get(key),
        (YamlPathStep::Index(at), YamlKind::List(items)) => items.get(*at),
        _ => None,
    }
}

/// Range of bytes that a text replaces.
struct TextChange {
    start: usize,
    end: usize,
    text: String,
}

struct YamlEditor<'t> {
    text: &'t str,
    tree: &'t YamlNode,
    line_end: &'static str,
}

impl<'t> YamlEditor<'t> {
    fn find(&self, path: &[YamlPathStep]) -> Option<&'t YamlNode> {
        path.iter().try_fold(self.tree, child)
    }

    fn apply(&self, change: &TextChange) -> Option<String> {
        let (before, after) = (self.text.get(..change.start)?, self.text.get(change.end..)?);
        Some(format!("{before}{}{after}", change.text))
    }

    fn set(&self, path: &[YamlPathStep], value: &Json) -> Result<String, YamlEditError> {
        let known = (0..=path.len()).rev().find(|length| self.find(&path[..*length]).is_some());
        let known = known.unwrap_or(0);
        let (found, missing) = path.split_at(known);
        let container = self.find(found).unwrap_or(self.tree);
        let Some((first, deeper)) = missing.split_first() else {
            return self.replace(found, value).ok_or(YamlEditError::Layout);
        };
        // A list has no gaps: a new item follows the last one.
        let count = match &container.kind {
            YamlKind::List(items) => items.len(),
            _ => 0,
        };
        let is_next = |step: &YamlPathStep, count: usize| match step {
            YamlPathStep::Key(_) => true,
            YamlPathStep::Index(at) => *at == count,
        };
        if !is_next(first, count) || !deeper.iter().all(|step| is_next(step, 0)) {
            return Err(YamlEditError::NotFound);
        }
        let added = deeper.iter().rev().fold(value.clone(), |inner, step| match step {
            YamlPathStep::Key(key) => Json::Object(Map::from_iter([(key.clone(), inner)])),
            YamlPathStep::Index(_) => Json::Array(vec![inner]),
        });
        let is_empty = match &container.kind {
            YamlKind::Null => true,
            YamlKind::Map(entries) => entries.is_empty(),
            YamlKind::List(items) => items.is_empty(),
            YamlKind::Scalar(_) => return Err(YamlEditError::NoContainer),
        };
        let fits = matches!(
            (&container.kind, first),
            (YamlKind::Null, _)
                | (YamlKind::Map(_), YamlPathStep::Key(_))
                | (YamlKind::List(_), YamlPathStep::Index(_))
        );
        if !fits {
            return Err(YamlEditError::NoContainer);
        }
        let changed = if is_empty && !found.is_empty() {
            let whole = match first {
                YamlPathStep::Key(key) => Json::Object(Map::from_iter([(key.clone(), added)])),
                YamlPathStep::Index(_) => Json::Array(vec![added]),
            };
            self.replace(found, &whole)
        } else {
            self.insert(container, first, &added)
        };
        changed.ok_or(YamlEditError::Layout)
    }

    /// Adds a value behind the last one of a map or list, or to the empty file.
    fn insert(&self, container: &YamlNode, step: &YamlPathStep, value: &Json) -> Option<String> {
        let (first, last_end) = match &container.kind {
            YamlKind::Map(entries) if !entries.is_empty() => {
                (entries[0].0.at.start, self.content_end(container))
            }
            YamlKind::List(items) if !items.is_empty() => {
                (self.start_of(&items[0]), self.content_end(container))
            }
            // The file has no values yet. A map in braces cannot be extended by lines.
            _ if self.text.trim_start().starts_with('{') => return None,
            _ => {
                let YamlPathStep::Key(key) = step else { return None };
                return Some(self.append_lines(&block_entry(key, value, 0)));
            }
        };
        if self.is_in_brackets(first) {
            let added = match step {
                YamlPathStep::Key(key) => flow_entry(key, value),
                YamlPathStep::Index(_) => flow_value(value),
            };
            let close = last_end + self.text.get(last_end..)?.find([']', '}'])?;
            let text = format!(", {added}");
            return self.apply(&TextChange { start: close, end: close, text });
        }
        let lines = match step {
            YamlPathStep::Key(key) => block_entry(key, value, self.column(first)),
            YamlPathStep::Index(_) => block_item(value, self.column(self.dash_before(first)?)),
        };
        let end = self.end_of_line(last_end);
        let text = format!("{}{}", self.line_end, lines.join(self.line_end));
        self.apply(&TextChange { start: end, end, text })
    }

    fn append_lines(&self, lines: &[String]) -> String {
        let text = self.text;
        // A last line without an end would be joined with the new one.
        let gap = if text.is_empty() || text.ends_with('\n') { "" } else { self.line_end };
        format!("{text}{gap}{}{}", lines.join(self.line_end), self.line_end)
    }

    /// Replaces an existing value.
    fn replace(&self, path: &[YamlPathStep], value: &Json) -> Option<String> {
        let node = self.find(path)?;
        let (last, parents) = path.split_last()?;
        let start = self.start_of(node);
        let anchor = match last {
            YamlPathStep::Key(key) => self.key_start(parents, key)?,
            YamlPathStep::Index(_) => start,
        };
        if self.is_in_brackets_somewhere(parents) {
            let end = self.text_end(node);
            return self.apply(&TextChange { start, end, text: flow_value(value) });
        }
        let is_line = |text: &str| !text.contains('\n');
        let one_line = match value {
            Json::Object(_) | Json::Array(_) => None,
            Json::String(text) if text.contains('\n') => None,
            scalar => Some(plain_or_quoted(scalar)),
        };
        let old = self.text.get(start..self.text_end(node))?;
        if let (Some(text), YamlKind::Scalar(_)) = (&one_line, &node.kind)
            && is_line(old)
            // The text of a block scalar begins on the line after its key.
            && is_line(self.text.get(anchor.min(start)..start)?)
        {
            let end = start + old.trim_end().len();
            return self.apply(&TextChange { start, end, text: text.clone() });
        }
        let (lines, from) = match last {
            YamlPathStep::Key(key) => (block_entry(key, value, self.column(anchor)), anchor),
            YamlPathStep::Index(_) => {
                let dash = self.dash_before(start)?;
                (block_item(value, self.column(dash)), dash)
            }
        };
        let written = lines.join(self.line_end);
        let text = written.trim_start().to_owned();
        let end = match &node.kind {
            YamlKind::Null => self.end_of_null(parents, last, node)?,
            _ => from + self.text.get(from..self.text_end(node))?.trim_end().len(),
        };
        self.replace_lines(from, end, &text)
    }

    /// Replaces an entry by lines. A comment at the end of its first line stays there.
    fn replace_lines(&self, from: usize, end: usize, text: &str) -> Option<String> {
        let rest = self.text.get(end..self.end_of_line(end))?;
        let mut lines = text.splitn(2, self.line_end);
        let first = lines.next()?;
        let text = match lines.next() {
            Some(more) if rest.trim_start().starts_with('#') => {
                format!("{first}{rest}{}{more}", self.line_end)
            }
            Some(more) => format!("{first}{}{more}", self.line_end),
            None => format!("{first}{rest}"),
        };
        self.apply(&TextChange { start: from, end: self.end_of_line(end), text })
    }

    /// Returns the end of an empty value, which may be written as nothing.
    fn end_of_null(
        &self,
        parents: &[YamlPathStep],
        last: &YamlPathStep,
        node: &YamlNode,
    ) -> Option<usize> {
        if self.text.get(node.at.start..node.at.end).is_some_and(|text| !text.trim().is_empty()) {
            return Some(node.at.end);
        }
        let YamlPathStep::Key(key) = last else { return None };
        let key = self.key_end(parents, key)?;
        Some(key + self.text.get(key..)?.find(':')? + 1)
    }

    /// Returns the path of the largest value that would be empty without this one.
    fn removable_path<'p>(
        &self,
        path: &'p [YamlPathStep],
    ) -> Result<&'p [YamlPathStep], YamlEditError> {
        self.find(path).ok_or(YamlEditError::NotFound)?;
        let size = |node: &YamlNode| match &node.kind {
            YamlKind::Map(entries) => entries.len(),
            YamlKind::List(items) => items.len(),
            YamlKind::Null | YamlKind::Scalar(_) => 0,
        };
        let mut path = path;
        while path.len() > 1 && self.find(&path[..path.len() - 1]).is_some_and(|it| size(it) == 1) {
            path = &path[..path.len() - 1];
        }
        if path.is_empty() { Err(YamlEditError::NotFound) } else { Ok(path) }
    }

    fn remove(&self, path: &[YamlPathStep]) -> Option<String> {
        let (last, parents) = path.split_last()?;
        let (container, node) = (self.find(parents)?, self.find(path)?);
        let (start, next, previous_end) = match (last, &container.kind) {
            (YamlPathStep::Key(key), YamlKind::Map(entries)) => {
                let at = entries.iter().position(|(name, _)| name.text == *key)?;
                let next = entries.get(at + 1).map(|(key, _)| key.at.start);
                let previous = at.checked_sub(1).map(|at| self.text_end(&entries[at].1));
                (entries[at].0.at.start, next, previous)
            }
            (YamlPathStep::Index(at), YamlKind::List(items)) => {
                let next = items.get(at + 1).map(|item| self.start_of(item));
                let previous = at.checked_sub(1).map(|at| self.text_end(&items[at]));
                (self.start_of(node), next, previous)
            }
            _ => return None,
        };
        let end = match &node.kind {
            YamlKind::Null => self.end_of_null(parents, last, node)?,
            _ => self.text_end(node),
        };
        let cut = |start, end| self.apply(&TextChange { start, end, text: String::new() });
        if self.is_in_brackets(start) || self.is_in_brackets_somewhere(parents) {
            return match (next, previous_end) {
                (Some(next), _) => cut(start, next),
                (None, Some(previous)) => cut(previous, end),
                (None, None) => cut(start, end),
            };
        }
        let line_start = self.line_start(start);
        let lead = self.text.get(line_start..start)?.trim();
        let is_own_line =
            lead.is_empty() || (lead == "-" && matches!(last, YamlPathStep::Index(_)));
        if !is_own_line {
            // The first key of an item stands behind its dash, where the next key takes its place.
            return cut(start, next?);
        }
        let end = self.end_of_line(start + self.text.get(start..end)?.trim_end().len());
        let next_line = self.text[end..].find('\n').map_or(self.text.len(), |at| end + at + 1);
        cut(line_start, next_line)
    }

    fn key_start(&self, parents: &[YamlPathStep], key: &str) -> Option<usize> {
        let entries = self.find(parents)?.entries();
        entries.iter().find(|(name, _)| name.text == key).map(|(name, _)| name.at.start)
    }

    fn key_end(&self, parents: &[YamlPathStep], key: &str) -> Option<usize> {
        let entries = self.find(parents)?.entries();
        entries.iter().find(|(name, _)| name.text == key).map(|(name, _)| name.at.end)
    }

    /// Returns true if the first value of a collection follows a bracket.
    fn is_in_brackets(&self, first: usize) -> bool {
        self.text.get(..first).is_some_and(|text| text.trim_end().ends_with(['{', '[', ',']))
    }

    /// Returns true if a value on the way is a collection in brackets.
    fn is_in_brackets_somewhere(&self, path: &[YamlPathStep]) -> bool {
        (0..=path.len()).any(|length| {
            let node = self.find(&path[..length]);
            node.is_some_and(|node| self.bracket_before(node).is_some())
        })
    }

    /// Returns the position of the bracket that opens a collection.
    fn bracket_before(&self, node: &YamlNode) -> Option<usize> {
        let (start, has_bracket) = self.opening(node);
        has_bracket.then_some(start)
    }

    /// Returns the beginning of a value, with the bracket of a collection.
    fn start_of(&self, node: &YamlNode) -> usize {
        self.opening(node).0
    }

    /// Returns the beginning of a value, and whether a bracket is there.
    fn opening(&self, node: &YamlNode) -> (usize, bool) {
        // The span of a collection is that of its first value, which may begin with a bracket itself.
        let (first, bracket) = match &node.kind {
            YamlKind::Null | YamlKind::Scalar(_) => return (node.at.start, false),
            YamlKind::Map(entries) if entries.is_empty() => return (node.at.start, true),
            YamlKind::Map(_) => (node.at.start, '{'),
            YamlKind::List(items) => match items.first() {
                None => return (node.at.start, true),
                Some(item) => (self.start_of(item), '['),
            },
        };
        let before = self.text.get(..first).unwrap_or_default().trim_end();
        match before.ends_with(bracket) {
            true => (before.len() - 1, true),
            false => (first, false),
        }
    }

    /// Returns the end of a value, with the bracket of a collection. The end of a block scalar
    /// includes the line ends after it.
    fn text_end(&self, node: &YamlNode) -> usize {
        let end = self.content_end(node);
        match self.bracket_before(node) {
            Some(_) => self.text[end..].find([']', '}']).map_or(end, |close| end + close + 1),
            None => end,
        }
    }

    /// Returns the end of the last value of a collection, or of a scalar.
    fn content_end(&self, node: &YamlNode) -> usize {
        let end = match &node.kind {
            YamlKind::Null | YamlKind::Scalar(_) => return node.at.end,
            YamlKind::List(items) => items.iter().map(|item| self.text_end(item)).max(),
            YamlKind::Map(entries) => {
                let ends = entries.iter();
                ends.map(|(key, value)| self.text_end(value).max(key.at.end)).max()
            }
        };
        let end = end.unwrap_or(node.at.start);
        self.text.get(..end).map_or(end, |text| text.trim_end().len())
    }

    /// Returns the position of the dash before an item of a list.
    fn dash_before(&self, item: usize) -> Option<usize> {
        let before = self.text.get(..item)?.trim_end();
        before.ends_with('-').then(|| before.len() - 1)
    }

    fn line_start(&self, at: usize) -> usize {
        self.text[..at].rfind('\n').map_or(0, |line| line + 1)
    }

    fn column(&self, at: usize) -> usize {
        at - self.line_start(at)
    }

    fn end_of_line(&self, at: usize) -> usize {
        let end = self.text[at..].find('\n').map_or(self.text.len(), |offset| at + offset);
        // The carriage return belongs to the line end.
        if self.text[..end].ends_with('\r') { (end - 1).max(at) } else { end }
    }
}
