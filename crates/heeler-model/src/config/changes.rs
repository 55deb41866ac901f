//! What a newly loaded config changes, in words for people.
//!
//! Values are told only where they cannot be a secret: numbers, words of a closed set, durations and
//! the like. Of texts, lists and maps it is told that they changed. Start at [`changes`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::LazyLock;

use serde_json::{Map, Value as Json};

use super::Loaded;
use super::agent::{Agent, AgentKeys, Runtime};
use super::fleet::{Fleet, FleetKeys};
use super::repo;
use super::schedule::ScheduleKeys;
use super::shape::{Section, Shape};
use crate::AgentName;
use crate::workflow::{FaultyFile, freeze};

/// Keys of plain text whose values are told all the same.
const TOLD_TEXTS: [&str; 1] = ["model"];
/// The longest value that is told, in characters.
const TOLD_CHARS_MAX: usize = 60;
/// Sections deeper than this are told as a whole.
const DEPTH_MAX: usize = 3;

/// One difference between two configs. As text it is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A fleet is new; its path.
    FleetAdded(String),
    /// A fleet is gone; its path.
    FleetRemoved(String),
    /// Something of a fleet is different.
    Fleet {
        /// The fleet's path, empty for the root.
        path: String,
        /// What is different.
        what: String,
    },
    /// An agent is new.
    AgentAdded(AgentName),
    /// An agent is gone.
    AgentRemoved(AgentName),
    /// Something of an agent is different.
    Agent {
        /// The agent.
        name: AgentName,
        /// What is different.
        what: String,
    },
    /// A workflow, or what starts one by the clock, has come, gone or changed.
    Workflow {
        /// Its kind and name: `workflow build`, `cron nightly`.
        name: String,
        /// What became of it: `added`, `changed` or `removed`.
        what: &'static str,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::FleetAdded(path) => write!(f, "fleet {path} added"),
            Change::FleetRemoved(path) => write!(f, "fleet {path} removed"),
            Change::Fleet { path, what } if path.is_empty() => write!(f, "fleet: {what}"),
            Change::Fleet { path, what } => write!(f, "fleet {path}: {what}"),
            Change::AgentAdded(name) => write!(f, "agent {name} added"),
            Change::AgentRemoved(name) => write!(f, "agent {name} removed"),
            Change::Agent { name, what } => write!(f, "agent {name}: {what}"),
            Change::Workflow { name, what } => write!(f, "{name} {what}"),
        }
    }
}

/// Returns what is different in a new config: fleets first, then agents, each in the order of the new
/// config, then what is gone; then workflows.
pub fn changes(old: &Loaded, new: &Loaded) -> Vec<Change> {
    let mut found = fleet_changes(&old.fleets, &new.fleets);
    let mut before: HashMap<&AgentName, &Agent> =
        old.agents.iter().map(|agent| (&agent.name, agent)).collect();
    for agent in &new.agents {
        match before.remove(&agent.name) {
            None => found.push(Change::AgentAdded(agent.name.clone())),
            Some(known) if known == agent => {}
            Some(known) => {
                let of = |what| Change::Agent { name: agent.name.clone(), what };
                found.extend(agent_changes(known, agent).into_iter().map(of));
            }
        }
    }
    let gone = old.agents.iter().filter(|agent| before.contains_key(&agent.name));
    found.extend(gone.map(|agent| Change::AgentRemoved(agent.name.clone())));
    found.extend(workflow_changes(old, new));
    found
}

fn workflow_changes(old: &Loaded, new: &Loaded) -> Vec<Change> {
    let names = |loaded: &Loaded| -> BTreeMap<String, String> {
        let workflows = loaded.workflows.iter();
        let workflows =
            workflows.map(|it| (format!("workflow {}", it.workflow.name), freeze(it).0));
        let crons = loaded.crons.iter();
        let crons = crons.map(|it| (format!("cron {}", it.name), format!("{it:?}")));
        workflows.chain(crons).collect()
    };
    // What became faulty is not gone; who reads the config tells what is wrong with it.
    let faulty: Vec<String> = new.faulty.iter().map(FaultyFile::title).collect();
    let (old, new) = (names(old), names(new));
    let came = new.iter().filter_map(|(name, is)| match old.get(name) {
        None => Some((name, "added")),
        Some(was) => (was != is).then_some((name, "changed")),
    });
    let is_gone = |name: &&String| !new.contains_key(*name) && !faulty.contains(*name);
    let gone = old.keys().filter(is_gone).map(|name| (name, "removed"));
    came.chain(gone).map(|(name, what)| Change::Workflow { name: name.clone(), what }).collect()
}

fn fleet_changes(old: &[Fleet], new: &[Fleet]) -> Vec<Change> {
    let mut found = Vec::new();
    for fleet in new {
        let Some(known) = old.iter().find(|known| known.path == fleet.path) else {
            found.push(Change::FleetAdded(fleet.path.clone()));
            continue;
        };
        let mut told = Told::default();
        told.section(&known.shown, &fleet.shown, &FleetKeys::section(), "");
        if told.lines.is_empty() && known != fleet {
            told.lines.push("values of variables changed".to_owned());
        }
        let of = |what| Change::Fleet { path: fleet.path.clone(), what };
        found.extend(told.lines.into_iter().map(of));
    }
    let gone = |known: &&Fleet| new.iter().all(|fleet| fleet.path != known.path);
    found.extend(old.iter().filter(gone).map(|fleet| Change::FleetRemoved(fleet.path.clone())));
    found
}

fn agent_changes(old: &Agent, new: &Agent) -> Vec<String> {
    let mut told = Told::default();
    if old == new {
        return Vec::new();
    }
    let (was, is) = (old.shown.json(), new.shown.json());
    told.section(&was, &is, &AgentKeys::section(), "");
    told.schedules(map(&was["schedules"]), map(&is["schedules"]));
    // What is shown names variables and files, so their content may differ behind it.
    let scripts = matches!((&old.runtime, &new.runtime), (Runtime::Scripted(old), Runtime::Scripted(new)) if old != new);
    if scripts && was["script"] == is["script"] {
        told.lines.push("what is in its script changed".to_owned());
    } else if told.lines.is_empty() {
        told.lines.push("values of variables changed".to_owned());
    }
    told.lines
}

fn map(shown: &Json) -> &Map<String, Json> {
    static NONE: LazyLock<Map<String, Json>> = LazyLock::new(Map::new);
    shown.as_object().unwrap_or(&NONE)
}

/// The differences found so far, as text.
#[derive(Default)]
struct Told {
    lines: Vec<String>,
    depth: usize,
}

impl Told {
    /// Compares two maps key by key. `of` names the schedule they are from.
    fn section(&mut self, old: &Json, new: &Json, section: &Section, of: &str) {
        let (old, new) = (map(old), map(new));
        let gone = old.keys().filter(|key| !new.contains_key(*key));
        for key in new.keys().chain(gone).filter(|key| *key != "schedules") {
            let (before, after) = (old.get(key), new.get(key));
            if before != after {
                let shape = section.key(key).map_or(&Shape::Any, |info| &info.shape);
                self.value(key, before, after, shape, of);
            }
        }
    }

    fn value(
        &mut self,
        key: &str,
        old: Option<&Json>,
        new: Option<&Json>,
        shape: &Shape,
        of: &str,
    ) {
        if let (Shape::Section(section), Some(old @ Json::Object(_)), Some(new @ Json::Object(_))) =
            (shape, old, new)
            && self.depth < DEPTH_MAX
        {
            let mut within = Told { depth: self.depth + 1, ..Told::default() };
            within.section(old, new, section, of);
            self.lines.extend(within.lines.into_iter().map(|line| format!("{key}.{line}")));
            return;
        }
        let told = is_told(key, shape).then(|| Some((tell(old)?, tell(new)?))).flatten();
        self.lines.push(match told {
            Some((old, new)) => format!("{key}{of} {old} -> {new}"),
            None => format!("{key}{of} changed"),
        });
    }

    fn schedules(&mut self, old: &Map<String, Json>, new: &Map<String, Json>) {
        for (name, schedule) in new {
            match old.get(name) {
                None => self.lines.push(format!("schedule {name} added")),
                Some(known) => {
                    let section = ScheduleKeys::section();
                    self.section(known, schedule, &section, &format!(" of {name}"));
                }
            }
        }
        for name in old.keys().filter(|name| !new.contains_key(*name)) {
            self.lines.push(format!("schedule {name} removed"));
        }
    }
}

/// Says whether values of a key may be told. An address may hold a token.
fn is_told(key: &str, shape: &Shape) -> bool {
    match shape {
        Shape::Bool | Shape::Int { .. } | Shape::Words(_) => true,
        Shape::Format { what, .. } => *what != "a URL" && *what != repo::WHAT,
        Shape::Text => TOLD_TEXTS.contains(&key),
        Shape::List(_) | Shape::Map(_) | Shape::Section(_) | Shape::OneOf(_) | Shape::Any => false,
    }
}

fn tell(value: Option<&Json>) -> Option<String> {
    let told = match value {
        None => "not set".to_owned(),
        Some(Json::String(text)) => text.clone(),
        Some(value @ (Json::Bool(_) | Json::Number(_))) => value.to_string(),
        Some(_) => return None,
    };
    let plain = told.chars().count() <= TOLD_CHARS_MAX && !told.chars().any(char::is_control);
    plain.then_some(told)
}
