//! Keys that are accepted and checked but have no effect yet: the one list of them.
//!
//! It shrinks as the parts that read them arrive. Keys that only wait for jobs to run (prompts,
//! models, schedules, hooks, …) are not on it.

use super::reader::{Pos, Reader};
use super::yaml::{Kind, Node};

/// Keys of a fleet file without effect, as paths.
pub(crate) const FLEET: &[&str] = &["webhooks", "web", "docker", "working_directory", "chat"];

/// Keys of an agent without effect, as paths; `*` stands for any name.
pub(crate) const AGENT: &[&str] = &[
    "docker",
    "sandbox",
    "chat",
    "work_source",
    "plugins",
    "repo",
    "working_directory.auto_clone",
    "working_directory.clone_depth",
    "working_directory.default_branch",
    "identity.role",
    "identity.personality",
    "session.max_context_tokens",
    "session.context_window",
    "schedules.*.work_source",
    "schedules.*.session.max_context_tokens",
    "schedules.*.session.context_window",
];

/// Warns once about a fleet file, with its defaults, overrides and inline agents.
pub(crate) fn warn_fleet(tree: &Node, reader: &mut Reader) {
    let mut found = Vec::new();
    FLEET.iter().for_each(|path| find(tree, path, path, &mut found));
    let mut members: Vec<&Node> = tree.get("defaults").into_iter().collect();
    if let Some(Kind::List(agents)) = tree.get("agents").map(|agents| &agents.kind) {
        members.extend(agents.iter().map(|agent| agent.get("overrides").unwrap_or(agent)));
    }
    for agent in members {
        AGENT.iter().for_each(|path| find(agent, path, path, &mut found));
    }
    warn(found, reader);
}

/// Warns once about an agent file.
pub(crate) fn warn_agent(tree: &Node, reader: &mut Reader) {
    let mut found = Vec::new();
    AGENT.iter().for_each(|path| find(tree, path, path, &mut found));
    warn(found, reader);
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
            None => found.push((path, key.at)),
        }
    }
}

fn is_off(block: &Node) -> bool {
    let off = |node: &Node| matches!(&node.kind, Kind::Scalar(word) if word.text == "false");
    block.get("enabled").is_some_and(off)
}

fn warn(mut found: Vec<(&str, Pos)>, reader: &mut Reader) {
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
        1 => format!("{} has no effect yet", names[0]),
        _ => format!("these keys have no effect yet: {}", names.join(", ")),
    };
    reader.warn(first, message).expected("accepted, not used");
}
