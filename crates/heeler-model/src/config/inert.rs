//! Keys that are accepted and checked but have no effect yet: the one list of them.
//!
//! It shrinks as the parts that read them arrive. Keys that only wait for schedules are not on it.

use std::sync::LazyLock;

use super::agent::{AgentKeys, RuntimeType};
use super::fleet::FleetKeys;
use super::reader::{Pos, Reader};
use super::shape::Shape;
use super::value::Value as _;
use super::yaml::{Kind, Node};
use crate::workflow::keys::{self as workflow_keys, CronKeys, WorkflowKeys};

/// Keys of a fleet file without effect, as paths.
pub(crate) const FLEET: &[&str] = &[
    "webhooks.port",
    "web.session_expiry_hours",
    "web.open_browser",
    "web.tool_results",
    "web.message_grouping",
    "docker",
    "working_directory",
    "chat",
];

/// Keys of an agent without effect, as paths; `*` stands for any name.
pub(crate) const AGENT: &[&str] = &[
    "docker",
    "sandbox",
    "chat",
    "work_source",
    "approvals",
    "plugins.*.skipMcpDiscovery",
    "identity.role",
    "identity.personality",
    "schedules.*.work_source",
];

/// Keys that tell Claude what it may do. A script and a shell command do what is written in them.
const FOR_CLAUDE: [&str; 4] = ["permission_mode", "tools", "allowed_tools", "denied_tools"];

/// Keys that are no use yet either, and whose wish is not passed over: an agent that is to be isolated
/// never runs without it.
const ISOLATION: [&str; 2] = ["docker", "sandbox"];

/// Returns what the schema and the reference page say of a key that is on the list.
pub(crate) fn remark(section: &str, key: &str) -> Option<&'static str> {
    static PLACES: LazyLock<Vec<(&'static str, &'static str)>> = LazyLock::new(|| {
        let (fleet, agent) = (FleetKeys::shape(), AgentKeys::shape());
        let fleet = FLEET.iter().flat_map(|path| places(&fleet, path));
        fleet.chain(AGENT.iter().flat_map(|path| places(&agent, path))).collect()
    });
    static OTHERS: LazyLock<Vec<(&'static str, &'static str)>> = LazyLock::new(|| {
        let (workflow, cron) = (WorkflowKeys::shape(), CronKeys::shape());
        let workflow = workflow_keys::INERT.iter().flat_map(|path| places(&workflow, path));
        let cron = workflow_keys::INERT_CRON.iter().flat_map(|path| places(&cron, path));
        workflow.chain(cron).collect()
    });
    if OTHERS.contains(&(section, key)) {
        return Some("No effect.");
    }
    // Defaults and overrides repeat the keys of an agent.
    let section = match section {
        "defaults" | "agent overrides" => "agent",
        section => section,
    };
    PLACES.contains(&(section, key)).then(|| match key {
        "approvals" => "`review` has no effect yet.",
        _ if ISOLATION.contains(&key) => "Not there yet: an agent that asks for it is refused.",
        _ => "No effect yet.",
    })
}

/// Returns the section and key that a path leads to; several where a value may have several forms.
fn places(shape: &Shape, path: &str) -> Vec<(&'static str, &'static str)> {
    let (head, tail) = path.split_once('.').map_or((path, None), |(head, tail)| (head, Some(tail)));
    match shape {
        Shape::OneOf(shapes) => shapes.iter().flat_map(|shape| places(shape, path)).collect(),
        Shape::Map(shape) | Shape::List(shape) if head == "*" => {
            tail.map(|tail| places(shape, tail)).unwrap_or_default()
        }
        Shape::Section(section) => match (section.key(head), tail) {
            (Some(key), None) => vec![(section.name, key.name)],
            (Some(key), Some(tail)) => places(&key.shape, tail),
            (None, _) => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Warns once about a fleet file, with its defaults, overrides and inline agents.
pub(crate) fn warn_fleet(tree: &Node, reader: &mut Reader) {
    let mut found = Vec::new();
    FLEET.iter().for_each(|path| find(tree, path, path, &mut found));
    let mut members: Vec<&Node> = tree.get("defaults").into_iter().collect();
    if let Some(Kind::List(agents)) = tree.get("agents").map(|agents| &agents.kind) {
        members.extend(agents.iter().map(|agent| agent.get("overrides").unwrap_or(agent)));
    }
    for agent in &members {
        AGENT.iter().for_each(|path| find(agent, path, path, &mut found));
    }
    warn(found, " yet", reader);
    members.push(tree);
    members.into_iter().for_each(|agent| warn_isolation(agent, reader));
}

/// Warns once about an agent file.
pub(crate) fn warn_agent(tree: &Node, reader: &mut Reader) {
    let mut found = Vec::new();
    AGENT.iter().for_each(|path| find(tree, path, path, &mut found));
    warn(found, " yet", reader);
    warn_isolation(tree, reader);
}

/// Warns once about a workflow file or a cron file.
pub(crate) fn warn_workflow(tree: &Node, paths: &[&str], reader: &mut Reader) {
    let mut found = Vec::new();
    paths.iter().for_each(|path| find(tree, path, path, &mut found));
    // It is what a workflow is by default.
    found.retain(|(path, _)| {
        *path != "kind" || !tree.get("kind").is_some_and(|it| says(it, "agent"))
    });
    warn(found, "", reader);
}

/// Warns of rules for Claude in an agent, with its defaults, that is not Claude.
pub(crate) fn warn_not_claude(tree: &Node, runtime: RuntimeType, reader: &mut Reader) {
    let does = match runtime {
        RuntimeType::Sdk | RuntimeType::Cli => return,
        RuntimeType::Scripted => "a script does every step that is in it",
        RuntimeType::Command => "a command does all that its user may do",
    };
    let is_rule = |key: &str| FOR_CLAUDE.contains(&key);
    let rules = tree.entries().iter().filter(|(key, rule)| is_rule(&key.text) && !rule.is_null());
    for (key, _) in rules {
        let message = format!("`{}` has no effect with `runtime: {runtime}`", key.text);
        reader.warn(key.at, message).expected(does);
    }
}

/// Warns of what has agents refused.
fn warn_isolation(tree: &Node, reader: &mut Reader) {
    let wishes = tree.entries().iter().filter(|(key, value)| isolates(&key.text, value));
    for (key, _) in wishes {
        let message = format!(
            "`{}` is not there yet: an agent that asks for it is refused, and never runs without it",
            key.text
        );
        reader.warn(key.at, message).expected("refused by `heeler trigger`");
    }
}

/// Says whether a block asks for isolation.
fn isolates(key: &str, block: &Node) -> bool {
    match key {
        "docker" => block.get("enabled").is_some_and(|enabled| says(enabled, "true")),
        "sandbox" => !block.is_null() && !is_off(block) && !says(block, "false"),
        _ => false,
    }
}

/// Looks a path up in a tree. A block that says `enabled: false` asks for nothing.
fn find<'p>(tree: &Node, rest: &str, path: &'p str, found: &mut Vec<(&'p str, Pos)>) {
    let (head, tail) = rest.split_once('.').map_or((rest, None), |(head, tail)| (head, Some(tail)));
    if let (Kind::List(items), "*") = (&tree.kind, head) {
        let Some(tail) = tail else { return };
        items.iter().for_each(|item| find(item, tail, path, found));
    }
    for (key, value) in tree.entries().iter().filter(|(key, _)| head == "*" || key.text == head) {
        match tail {
            Some(tail) => find(value, tail, path, found),
            None if value.is_null() || is_off(value) => {}
            // Told as what it does, or asks for nothing.
            None if path == "sandbox" || path == "docker" && isolates(path, value) => {}
            None if path == "approvals" && !says(value, "review") => {}
            None => found.push((path, key.at)),
        }
    }
}

fn is_off(block: &Node) -> bool {
    block.get("enabled").is_some_and(|enabled| says(enabled, "false"))
}

fn says(node: &Node, text: &str) -> bool {
    matches!(&node.kind, Kind::Scalar(word) if word.text == text)
}

fn warn(mut found: Vec<(&str, Pos)>, yet: &str, reader: &mut Reader) {
    found.sort_by_key(|(_, at)| at.start);
    let Some((_, first)) = found.first().copied() else { return };
    let mut names: Vec<String> = Vec::new();
    for (path, _) in found {
        let name = format!("`{}`", path.replace("*.", ""));
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let message = match names.len() {
        1 => format!("{} has no effect{yet}", names[0]),
        _ => format!("these keys have no effect{yet}: {}", names.join(", ")),
    };
    reader.warn(first, message).expected("accepted, not used");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_of_the_list_leads_to_a_key() {
        let lists = [
            (FleetKeys::shape(), FLEET),
            (AgentKeys::shape(), AGENT),
            (WorkflowKeys::shape(), workflow_keys::INERT),
            (CronKeys::shape(), workflow_keys::INERT_CRON),
        ];
        for (shape, paths) in lists {
            for path in paths {
                assert!(!places(&shape, path).is_empty(), "{path} leads nowhere");
            }
        }
    }
}
