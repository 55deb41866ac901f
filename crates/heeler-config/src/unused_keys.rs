//! The list of keys that are accepted and checked but have no effect yet.
//!
//! A key is removed from the list when the feature that reads it is implemented. Keys that depend
//! only on schedules are not listed. `unused_key_notes` adds the list to the schema and the
//! reference.

use crate::reader::{ConfigReader, SourceSpan};
use crate::runtime::RuntimeType;
use crate::yaml::{YamlKind, YamlNode};

/// Keys of a fleet file without effect, as paths.
pub(crate) const UNUSED_FLEET_KEYS: &[&str] = &[
    "webhooks.port",
    "web.session_expiry_hours",
    "web.open_browser",
    "web.tool_results",
    "web.message_grouping",
    "working_directory",
    "chat",
];

/// Keys of an agent without effect, as paths; `*` matches any name.
pub(crate) const UNUSED_AGENT_KEYS: &[&str] = &[
    "chat.discord.attachments.cleanup_after_processing",
    "chat.slack.attachments.cleanup_after_processing",
    "chat.telegram.attachments.cleanup_after_processing",
    "plugins.*.skipMcpDiscovery",
    "identity.role",
    "identity.personality",
];

/// Keys that restrict Claude only. A script or a shell command does everything that is written in
/// it.
const CLAUDE_ONLY_KEYS: [&str; 4] = ["permission_mode", "tools", "allowed_tools", "denied_tools"];

/// Warns once about a fleet file, including its defaults, overrides and inline agents.
pub(crate) fn warn_fleet(tree: &YamlNode, reader: &mut ConfigReader) {
    let mut found = Vec::new();
    UNUSED_FLEET_KEYS.iter().for_each(|path| find_unused(tree, path, path, &mut found));
    // Warned about here, where they are written, and not again for each agent.
    let mut members: Vec<&YamlNode> = tree.get("defaults").into_iter().collect();
    if let Some(YamlKind::List(agents)) = tree.get("agents").map(|agents| &agents.kind) {
        // An entry with a path has only its overrides in this file.
        members.extend(agents.iter().map(|agent| agent.get("overrides").unwrap_or(agent)));
    }
    for agent in &members {
        UNUSED_AGENT_KEYS.iter().for_each(|path| find_unused(agent, path, path, &mut found));
    }
    warn_unused(found, reader);
}

pub(crate) fn warn_agent(tree: &YamlNode, reader: &mut ConfigReader) {
    let mut found = Vec::new();
    UNUSED_AGENT_KEYS.iter().for_each(|path| find_unused(tree, path, path, &mut found));
    warn_unused(found, reader);
}

/// Warns about Claude's permission keys in an agent, including its defaults, that does not run
/// Claude.
pub(crate) fn warn_claude_only_keys(
    tree: &YamlNode,
    runtime: RuntimeType,
    reader: &mut ConfigReader,
) {
    let does = match runtime {
        // Claude has rules for its tools. For other agents such keys are refused or translated.
        RuntimeType::Sdk
        | RuntimeType::Cli
        | RuntimeType::Acp
        | RuntimeType::Codex
        | RuntimeType::Qwen => return,
        RuntimeType::Scripted => "a script executes all of its steps",
        RuntimeType::Command => "a command may do everything that its user may do",
    };
    let is_rule = |key: &str| CLAUDE_ONLY_KEYS.contains(&key);
    let rules = tree.entries().iter().filter(|(key, rule)| is_rule(&key.text) && !rule.is_null());
    for (key, _) in rules {
        let message = format!("`{}` has no effect with `runtime: {runtime}`", key.text);
        reader.warn(key.at, message).expected(does);
    }
}

/// Finds a path in a tree. A block with `enabled: false` is ignored.
fn find_unused<'p>(
    tree: &YamlNode,
    rest: &str,
    path: &'p str,
    found: &mut Vec<(&'p str, SourceSpan)>,
) {
    let (head, tail) = rest.split_once('.').map_or((rest, None), |(head, tail)| (head, Some(tail)));
    // A list of schedules or plugins is searched item by item.
    if let (YamlKind::List(items), "*") = (&tree.kind, head) {
        let Some(tail) = tail else { return };
        items.iter().for_each(|item| find_unused(item, tail, path, found));
    }
    for (key, value) in tree.entries().iter().filter(|(key, _)| head == "*" || key.text == head) {
        match tail {
            Some(tail) => find_unused(value, tail, path, found),
            // A block that is switched off is without effect on purpose.
            None if value.is_null() || is_disabled(value) => {}
            None => found.push((path, key.at)),
        }
    }
}

fn is_disabled(block: &YamlNode) -> bool {
    block.get("enabled").is_some_and(|enabled| is_scalar(enabled, "false"))
}

fn is_scalar(node: &YamlNode, text: &str) -> bool {
    matches!(&node.kind, YamlKind::Scalar(word) if word.text == text)
}

fn warn_unused(mut found: Vec<(&str, SourceSpan)>, reader: &mut ConfigReader) {
    // In the order of the file, so that the first one is where a reader begins.
    found.sort_by_key(|(_, at)| at.start);
    let Some((_, first)) = found.first().copied() else { return };
    let mut names: Vec<String> = Vec::new();
    for (path, _) in found {
        let name = format!("`{}`", path.replace("*.", ""));
        // A key of several agents is named once.
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let message = match names.len() {
        1 => format!("{} has no effect yet", names[0]),
        _ => format!("these keys have no effect yet: {}", names.join(", ")),
    };
    reader.warn(first, message).expected("accepted, not used");
}
