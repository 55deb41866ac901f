//! Files that `heeler init` writes, and insertion of an agent into an existing fleet file with
//! comments.
//!
//! Pure text transformations. A test loads every template and requires that it has no fault or
//! warning.

use thiserror::Error;

use crate::LocalName;
use crate::reader::{ConfigDialect, ConfigReader};
use crate::yaml::{self, YamlKind, YamlNode};

/// Path of the first agent's file, relative to the fleet file.
pub const FIRST_AGENT_PATH: &str = "agents/greeter.yaml";

/// Returns a new fleet file that references the first agent. `schema` is the location of the JSON
/// Schema for editors: a URL, or a path relative to the file.
pub fn fleet_file(name: &LocalName, schema: &str) -> String {
    format!(
        r#"# yaml-language-server: $schema={schema}

fleet:
  name: {name}

# Settings of every agent that does not set them itself.
defaults:
  timeout: 30m

agents:
  - path: {FIRST_AGENT_PATH}
"#
    )
}

/// Returns the first agent's file. The agent is scripted, so that it works without a model, key or
/// network.
pub fn first_agent_file(schema: &str) -> String {
    format!(
        r#"# yaml-language-server: $schema={schema}

name: greeter
description: Shows that the fleet works. It follows a script and needs no model.
runtime: scripted
script:
  - say: Hello! I am a scripted agent of this fleet.
  - say: Change my script in {FIRST_AGENT_PATH}, or add an agent with `heeler init agent NAME`.

schedules:
  hello:
    interval: 10m
    prompt: Say hello.
"#
    )
}

/// Returns a template of an additional agent for Claude Code. The file belongs in a directory
/// beside the fleet file, and the agent runs in the fleet file's directory.
pub fn agent_file(name: &LocalName, schema: &str) -> String {
    format!(
        r#"# yaml-language-server: $schema={schema}

name: {name}
description: The purpose of this agent.

# Directory in which the agent runs, relative to this file.
working_directory: ..

system_prompt: |
  You are a careful engineer. Say what you did and what is left.

default_prompt: Look around and say what should be done next.

# Schedules that start the agent.
# schedules:
#   nightly:
#     cron: "0 3 * * *"
#     prompt: Check the code and fix one thing.

# budget:
#   job: 2.00
"#
    )
}

/// The form of the fleet file does not allow a safe change.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot add the agent automatically: {reason}; add `- path: {path}` to `agents` by hand")]
pub struct AddAgentError {
    /// Path of the agent file.
    pub path: String,
    pub reason: &'static str,
}

/// Adds the path of an agent file to the text of a fleet file and keeps everything else unchanged,
/// including comments. The result is parsed again and compared before it is returned.
pub fn add_agent(text: &str, path: &str) -> Result<String, AddAgentError> {
    let refuse = |reason| AddAgentError { path: path.to_owned(), reason };
    let before = parse_fleet_file(text).ok_or_else(|| refuse("the file has faults"))?;
    // The file keeps its line ends; a mixed file would be shown as changed everywhere.
    let line_end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let changed = insert_agent(text, &before, &format!("path: {}", quote_path(path)), line_end)
        .ok_or_else(|| refuse("its `agents` are not a list of this form"))?;
    // Text edits of YAML are easy to get wrong, so the result is parsed and compared.
    let after = parse_fleet_file(&changed).ok_or_else(|| refuse("its layout is not supported"))?;
    match adds_only_agent(&before, &after, path) {
        true => Ok(changed),
        false => Err(refuse("its layout is not supported")),
    }
}

fn parse_fleet_file(text: &str) -> Option<YamlNode> {
    let mut reader = ConfigReader::new(ConfigDialect::Heeler, None);
    let file = reader.add_source("".into(), text.to_owned());
    yaml::parse(file, &mut reader).filter(|_| reader.error_count() == 0)
}

/// Quotes a path that YAML could misinterpret.
fn quote_path(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let starts_plain = path.starts_with(|c: char| c.is_ascii_alphanumeric() || "./".contains(c));
    // Debug form escapes quotes and backslashes as YAML's double quotes do.
    match starts_plain && path.bytes().all(plain) {
        true => path.to_owned(),
        false => format!("{path:?}"),
    }
}

fn insert_agent(text: &str, tree: &YamlNode, item: &str, line_end: &str) -> Option<String> {
    let agents = tree.entries().iter().find(|(key, _)| key.text == "agents");
    let Some((key, agents)) = agents else {
        return append_agents_key(text, tree, item, line_end);
    };
    match &agents.kind {
        YamlKind::Null => {
            let end = end_of_line(text, key.at.end);
            let item = format!("{line_end}  - {item}");
            Some(splice(text, end, end, &item))
        }
        YamlKind::List(items) => match items.last() {
            // An empty list is written as `[]`, which cannot be extended line by line.
            None => {
                let open = agents.at.start;
                let close = open + text.get(open..)?.find(']')?;
                let colon = key.at.end + text.get(key.at.end..open)?.find(':')?;
                let text = splice(text, colon + 1, close + 1, "");
                let end = end_of_line(&text, colon);
                Some(splice(&text, end, end, &format!("{line_end}  - {item}")))
            }
            Some(last) => {
                // The span of a block scalar includes the line ends after it.
                let end = text.get(..node_end(last))?.trim_end().len();
                insert_after(text, agents.at.start, end, item, line_end)
            }
        },
        _ => None,
    }
}

/// Appends an `agents` key to a file that has none.
fn append_agents_key(text: &str, tree: &YamlNode, item: &str, line_end: &str) -> Option<String> {
    // A map in braces cannot be extended by lines.
    let flow = matches!(&tree.kind, YamlKind::Map(_)) && text.trim_start().starts_with('{');
    if flow || !matches!(tree.kind, YamlKind::Map(_) | YamlKind::Null) {
        return None;
    }
    // A last line without an end would be joined with the new one.
    let gap = if text.is_empty() || text.ends_with('\n') { "" } else { line_end };
    Some(format!("{text}{gap}agents:{line_end}  - {item}{line_end}"))
}

/// Inserts an item after the last one: on its own line, or within brackets.
fn insert_after(
    text: &str,
    first: usize,
    last_end: usize,
    item: &str,
    line_end: &str,
) -> Option<String> {
    let line_start = text[..first].rfind('\n').map_or(0, |at| at + 1);
    let lead = &text[line_start..first];
    match lead.find("- ") {
        // A block list: the new item gets the same indentation.
        Some(dash) if lead[..dash].trim().is_empty() => {
            let end = end_of_line(text, last_end);
            Some(splice(text, end, end, &format!("{line_end}{}- {item}", &lead[..dash])))
        }
        // A list in brackets, which may be on one line.
        _ => {
            let close = last_end + text.get(last_end..)?.find(']')?;
            Some(splice(text, close, close, &format!(", {{{item}}}")))
        }
    }
}

fn splice(text: &str, start: usize, end: usize, middle: &str) -> String {
    format!("{}{middle}{}", &text[..start], &text[end..])
}

fn end_of_line(text: &str, at: usize) -> usize {
    let end = text[at..].find('\n').map_or(text.len(), |offset| at + offset);
    // The carriage return belongs to the line end.
    if text[..end].ends_with('\r') { end - 1 } else { end }
}

/// Returns the offset at which the text of a node ends.
fn node_end(node: &YamlNode) -> usize {
    match &node.kind {
        YamlKind::Null | YamlKind::Scalar(_) => node.at.end,
        YamlKind::List(items) => items.iter().map(node_end).max().unwrap_or(node.at.end),
        YamlKind::Map(entries) => {
            let ends = entries.iter().map(|(key, value)| node_end(value).max(key.at.end));
            ends.max().unwrap_or(node.at.end)
        }
    }
}

/// Returns true if the second tree equals the first with one more agent at the end.
fn adds_only_agent(before: &YamlNode, after: &YamlNode, path: &str) -> bool {
    let items = |tree: &YamlNode| match tree.get("agents").map(|agents| agents.kind.clone()) {
        Some(YamlKind::List(items)) => items,
        _ => Vec::new(),
    };
    let (old, new) = (items(before), items(after));
    // Without items nothing was added.
    let Some((last, kept)) = new.split_last() else { return false };
    let is_path =
        |node: &YamlNode| matches!(&node.kind, YamlKind::Scalar(text) if text.text == path);
    let same = |a: &[YamlNode], b: &[YamlNode]| {
        // Positions have moved, so only the content is compared.
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.has_same_content(b))
    };
    // An edit in the wrong place would change another key.
    let others = |tree: &YamlNode| {
        let others = tree.entries().iter().filter(|(key, _)| key.text != "agents");
        others.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    last.get("path").is_some_and(is_path)
        && same(&old, kept)
        && same(&others(before), &others(after))
}
