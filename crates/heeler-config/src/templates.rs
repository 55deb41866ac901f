//! Files that `heeler init` writes, and insertion of an agent into an existing fleet file with
//! comments.
//!
//! Pure text transformations. A test loads every template and requires that it has no fault or
//! warning.

use thiserror::Error;

use crate::LocalName;
use crate::egress::EgressPreset;
use crate::reader::{ConfigDialect, ConfigReader};
use crate::yaml::{self, YamlKind, YamlNode};

/// Path of the first agent's file, relative to the fleet file.
pub const FIRST_AGENT_PATH: &str = "agents/greeter.yaml";

/// Sandbox of the agents of a new fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateSandbox<'t> {
    On,
    /// The person wants none.
    Off,
    /// This machine cannot make one, for this reason.
    Unavailable(&'t str),
}

impl TemplateSandbox<'_> {
    /// Returns the lines of `defaults` with the key `sandbox` and a comment that explains it.
    fn lines(self) -> String {
        let comment = |text: &str| -> String {
            let lines = text.lines().map(|line| line.replace(char::is_control, " "));
            lines.map(|line| format!("  # {line}\n")).collect()
        };
        match self {
            TemplateSandbox::On => {
                comment("Agents write only their working directory and reach only listed hosts.")
                    + "  sandbox: true\n"
            }
            TemplateSandbox::Off => {
                comment("Agents may do what you may do. `true` confines them to a sandbox.")
                    + "  sandbox: off\n"
            }
            TemplateSandbox::Unavailable(reason) => {
                comment("Agents may do what you may do, because there can be no sandbox here yet:")
                    + &comment(reason)
                    + &comment("Write `true` as soon as `heeler doctor sandbox` succeeds.")
                    + "  sandbox: off\n"
            }
        }
    }
}

/// Returns a new fleet file that references the first agent. `schema` is the location of the JSON
/// Schema for editors: a URL, or a path relative to the file.
pub fn fleet_file(name: &LocalName, schema: &str, sandbox: TemplateSandbox<'_>) -> String {
    let sandbox = sandbox.lines();
    format!(
        r#"# yaml-language-server: $schema={schema}

fleet:
  name: {name}

# Settings of every agent that does not set them itself.
defaults:
  timeout: 30m
{sandbox}
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
    agent_file_with(name, schema, &AgentTemplateOptions::default())
}

/// Values of a new agent's file that differ from the template.
#[derive(Debug, Clone, Copy, Default)]
pub struct AgentTemplateOptions<'t> {
    pub description: Option<&'t str>,
    pub permission_mode: Option<&'t str>,
    pub runtime: Option<&'t str>,
    /// Name of a known agent, or a path.
    pub program: Option<&'t str>,
    /// Name of an environment variable that the agent receives.
    pub secret: Option<&'t str>,
    pub sandbox: Option<AgentTemplateSandbox<'t>>,
}

/// Sandbox of an agent whose program writes directories of the home directory.
#[derive(Debug, Clone, Copy)]
pub struct AgentTemplateSandbox<'t> {
    /// Name of the program, for people.
    pub title: &'t str,
    /// Directories below the home directory that the program writes.
    pub state_folders: &'t [&'t str],
    /// Hosts that the program needs.
    pub preset: Option<EgressPreset>,
}

impl AgentTemplateSandbox<'_> {
    fn lines(self) -> String {
        let AgentTemplateSandbox { title, state_folders, preset } = self;
        let folders: Vec<String> = state_folders.iter().map(|it| format!("~/{it}")).collect();
        let presets = preset.map(|preset| preset.to_string()).unwrap_or_default();
        format!(
            "\n# {title} has its login, settings and sessions in the directory below, and can change them.\n\
             sandbox:\n  write: [{}]\n  network: {{presets: [{presets}]}}\n",
            folders.join(", ")
        )
    }
}

/// Returns a template of an additional agent, with these values.
pub fn agent_file_with(
    name: &LocalName,
    schema: &str,
    options: &AgentTemplateOptions<'_>,
) -> String {
    // A JSON string is a YAML string too, whatever it contains.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let description =
        options.description.map_or_else(|| "The purpose of this agent.".to_owned(), quoted);
    let keys = [
        ("runtime", options.runtime),
        ("program", options.program),
        ("permission_mode", options.permission_mode),
    ];
    let given = keys.into_iter().filter_map(|(key, value)| Some(format!("{key}: {}\n", value?)));
    let mut given: String = given.collect();
    given.extend(options.secret.map(|name| format!("secrets: [{name}]\n")));
    given.extend(options.sandbox.map(AgentTemplateSandbox::lines));
    // Only Claude reports its cost.
    let budget = match options.runtime {
        None | Some("sdk" | "cli") => "\n# budget:\n#   job: 2.00\n",
        Some(_) => "",
    };
    format!(
        r#"# yaml-language-server: $schema={schema}

name: {name}
description: {description}
{given}
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
{budget}"#
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

/// The form of the fleet file does not allow a safe removal.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot remove the agent automatically: remove `- path: {path}` from `agents` by hand")]
pub struct RemoveAgentError {
    /// Path of the agent file.
    pub path: String,
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

/// Removes the path of an agent file from the text of a fleet file and keeps everything else
/// unchanged. The result is parsed again and compared before it is returned.
pub fn remove_agent(text: &str, path: &str) -> Result<String, RemoveAgentError> {
    let refuse = || RemoveAgentError { path: path.to_owned() };
    let before = parse_fleet_file(text).ok_or_else(refuse)?;
    let items = agent_items(&before);
    let is_it = |item: &YamlNode| {
        item.get("path").is_some_and(
            |node| matches!(&node.kind, YamlKind::Scalar(scalar) if scalar.text == path),
        )
    };
    let number = items.iter().position(is_it).ok_or_else(refuse)?;
    let changed = cut_agent(text, &before, &items, number).ok_or_else(refuse)?;
    let after = parse_fleet_file(&changed).ok_or_else(refuse)?;
    let mut left = items;
    left.remove(number);
    let is_same = has_same_items(&left, &agent_items(&after))
        && has_same_items(&other_keys(&before), &other_keys(&after));
    if is_same { Ok(changed) } else { Err(refuse()) }
}

/// Cuts one item of `agents` out of the text.
fn cut_agent(text: &str, tree: &YamlNode, items: &[YamlNode], number: usize) -> Option<String> {
    let item = &items[number];
    let line_start = text[..item.at.start].rfind('\n').map_or(0, |at| at + 1);
    // Only a block list has one item per line.
    if text[line_start..item.at.start].trim() != "-" {
        return cut_flow_item(text, items, number);
    }
    let end = end_of_line(text, text.get(..node_end(item))?.trim_end().len());
    let next_line = text[end..].find('\n').map_or(text.len(), |offset| end + offset + 1);
    let cut = splice(text, line_start, next_line, "");
    if items.len() > 1 {
        return Some(cut);
    }
    let (key, _) = tree.entries().iter().find(|(key, _)| key.text == "agents")?;
    let colon = key.at.end + text.get(key.at.end..)?.find(':')?;
    Some(splice(&cut, colon + 1, colon + 1, " []"))
}

/// Cuts one item out of a list in brackets, with the comma before or after it.
fn cut_flow_item(text: &str, items: &[YamlNode], number: usize) -> Option<String> {
    let begin = |item: &YamlNode| text[..=item.at.start].rfind('{');
    let end = |item: &YamlNode| {
        let end = node_end(item);
        Some(end + text.get(end..)?.find('}')? + 1)
    };
    let (from, to) = match (number, items.get(number + 1)) {
        (_, Some(next)) => (begin(&items[number])?, begin(next)?),
        (0, None) => (begin(&items[number])?, end(&items[number])?),
        (_, None) => (end(&items[number - 1])?, end(&items[number])?),
    };
    Some(splice(text, from, to, ""))
}

fn agent_items(tree: &YamlNode) -> Vec<YamlNode> {
    match tree.get("agents").map(|agents| agents.kind.clone()) {
        Some(YamlKind::List(items)) => items,
        _ => Vec::new(),
    }
}

/// Returns the values of all keys except `agents`.
fn other_keys(tree: &YamlNode) -> Vec<YamlNode> {
    let others = tree.entries().iter().filter(|(key, _)| key.text != "agents");
    others.map(|(_, value)| value.clone()).collect()
}

/// Compares contents; positions may differ.
fn has_same_items(a: &[YamlNode], b: &[YamlNode]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.has_same_content(b))
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
    let (old, new) = (agent_items(before), agent_items(after));
    // Without items nothing was added.
    let Some((last, kept)) = new.split_last() else { return false };
    let is_path =
        |node: &YamlNode| matches!(&node.kind, YamlKind::Scalar(text) if text.text == path);
    // An edit in the wrong place would change another key.
    last.get("path").is_some_and(is_path)
        && has_same_items(&old, kept)
        && has_same_items(&other_keys(before), &other_keys(after))
}
