//! Differences between two loaded configs, as text for people.
//!
//! Values are shown only if they cannot be secret: numbers, words of a closed set, durations and
//! similar. For texts, lists and maps only the fact that they changed is reported. Start at
//! [`diff_configs`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::LazyLock;

use serde_json::{Map, Value as Json};

use crate::AgentName;
use crate::LoadedConfig;
use crate::agent::{AgentConfig, AgentKeys};
use crate::fleet::{FleetConfig, FleetKeys};
use crate::repo;
use crate::runtime::RuntimeConfig;
use crate::schedule::ScheduleKeys;
use crate::shape::{ConfigSection, ValueShape};
use crate::workflow::{FaultyWorkflowFile, freeze_workflow};

/// Plain-text keys with values that are safe to show.
const SHOWN_TEXT_KEYS: [&str; 1] = ["model"];
/// Longest value that is shown, in characters.
const SHOWN_CHARS_MAX: usize = 60;
/// Sections nested deeper than this are compared as a whole.
const SECTION_DEPTH_MAX: usize = 3;

/// One difference between two configs. Its `Display` form is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigChange {
    /// Path of an added fleet.
    FleetAdded(String),
    /// Path of a removed fleet.
    FleetRemoved(String),
    /// A changed setting of a fleet.
    Fleet {
        /// Path of the fleet; empty for the root.
        path: String,
        difference: String,
    },
    AgentAdded(AgentName),
    AgentRemoved(AgentName),
    /// A changed setting of an agent.
    Agent {
        name: AgentName,
        difference: String,
    },
    /// An added, changed or removed workflow or cron file.
    Workflow {
        /// Kind and name: `workflow build`, `cron nightly`.
        name: String,
        /// One of `added`, `changed`, `removed`.
        change: &'static str,
    },
}

impl fmt::Display for ConfigChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigChange::FleetAdded(path) => write!(f, "fleet {path} added"),
            ConfigChange::FleetRemoved(path) => write!(f, "fleet {path} removed"),
            ConfigChange::Fleet { path, difference: what } if path.is_empty() => {
                write!(f, "fleet: {what}")
            }
            ConfigChange::Fleet { path, difference: what } => write!(f, "fleet {path}: {what}"),
            ConfigChange::AgentAdded(name) => write!(f, "agent {name} added"),
            ConfigChange::AgentRemoved(name) => write!(f, "agent {name} removed"),
            ConfigChange::Agent { name, difference: what } => write!(f, "agent {name}: {what}"),
            ConfigChange::Workflow { name, change: what } => write!(f, "{name} {what}"),
        }
    }
}

/// Returns the differences of a new config: fleets, then agents, each in the order of the new
/// config followed by removed ones; then workflows.
pub fn diff_configs(old: &LoadedConfig, new: &LoadedConfig) -> Vec<ConfigChange> {
    let mut found = fleet_changes(&old.fleets, &new.fleets);
    let mut before: HashMap<&AgentName, &AgentConfig> =
        old.agents.iter().map(|agent| (&agent.name, agent)).collect();
    for agent in &new.agents {
        match before.remove(&agent.name) {
            None => found.push(ConfigChange::AgentAdded(agent.name.clone())),
            // The equality of the checked form includes values of variables, which are not shown.
            Some(known) if known == agent => {}
            Some(known) => {
                let of = |what| ConfigChange::Agent { name: agent.name.clone(), difference: what };
                found.extend(agent_changes(known, agent).into_iter().map(of));
            }
        }
    }
    // Whatever was not taken out of the map is gone.
    let gone = old.agents.iter().filter(|agent| before.contains_key(&agent.name));
    found.extend(gone.map(|agent| ConfigChange::AgentRemoved(agent.name.clone())));
    found.extend(workflow_changes(old, new));
    found
}

fn workflow_changes(old: &LoadedConfig, new: &LoadedConfig) -> Vec<ConfigChange> {
    let names = |loaded: &LoadedConfig| -> BTreeMap<String, String> {
        let workflows = loaded.workflows.iter();
        let workflows =
            // The frozen form includes the prompts, whose changes count as well.
            workflows.map(|it| (format!("workflow {}", it.workflow.name), freeze_workflow(it).0));
        let crons = loaded.crons.iter();
        let crons = crons.map(|it| (format!("cron {}", it.name), format!("{it:?}")));
        workflows.chain(crons).collect()
    };
    // A workflow that became faulty is not reported as removed: its faults are reported instead.
    let faulty: Vec<String> = new.faulty_files.iter().map(FaultyWorkflowFile::title).collect();
    let (old, new) = (names(old), names(new));
    let came = new.iter().filter_map(|(name, is)| match old.get(name) {
        None => Some((name, "added")),
        Some(was) => (was != is).then_some((name, "changed")),
    });
    let is_gone = |name: &&String| !new.contains_key(*name) && !faulty.contains(*name);
    let gone = old.keys().filter(is_gone).map(|name| (name, "removed"));
    came.chain(gone)
        .map(|(name, what)| ConfigChange::Workflow { name: name.clone(), change: what })
        .collect()
}

fn fleet_changes(old: &[FleetConfig], new: &[FleetConfig]) -> Vec<ConfigChange> {
    let mut found = Vec::new();
    for fleet in new {
        let Some(known) = old.iter().find(|known| known.path == fleet.path) else {
            found.push(ConfigChange::FleetAdded(fleet.path.clone()));
            continue;
        };
        let mut told = ConfigDiff::default();
        told.compare_section(&known.config_json, &fleet.config_json, &FleetKeys::section(), "");
        // Only a value that is shown by its variable's name can differ without a line.
        if told.lines.is_empty() && known != fleet {
            told.lines.push("values of variables changed".to_owned());
        }
        let of = |what| ConfigChange::Fleet { path: fleet.path.clone(), difference: what };
        found.extend(told.lines.into_iter().map(of));
    }
    let gone = |known: &&FleetConfig| new.iter().all(|fleet| fleet.path != known.path);
    found.extend(
        old.iter().filter(gone).map(|fleet| ConfigChange::FleetRemoved(fleet.path.clone())),
    );
    found
}

fn agent_changes(old: &AgentConfig, new: &AgentConfig) -> Vec<String> {
    let mut told = ConfigDiff::default();
    // Rendering is costly, and most agents are equal.
    if old == new {
        return Vec::new();
    }
    let (was, is) = (old.config_json.json(), new.config_json.json());
    told.compare_section(&was, &is, &AgentKeys::section(), "");
    told.compare_schedules(as_map(&was["schedules"]), as_map(&is["schedules"]));
    // The rendered config contains names of variables and files, so it can be equal although their
    // content differs.
    let scripts = matches!((&old.runtime, &new.runtime), (RuntimeConfig::Scripted(old), RuntimeConfig::Scripted(new)) if old != new);
    if scripts && was["script"] == is["script"] {
        told.lines.push("content of its script changed".to_owned());
    } else if told.lines.is_empty() {
        told.lines.push("values of variables changed".to_owned());
    }
    told.lines
}

fn as_map(shown: &Json) -> &Map<String, Json> {
    static NONE: LazyLock<Map<String, Json>> = LazyLock::new(Map::new);
    shown.as_object().unwrap_or(&NONE)
}

/// Differences collected during a comparison, as text.
#[derive(Default)]
struct ConfigDiff {
    lines: Vec<String>,
    depth: usize,
}

impl ConfigDiff {
    /// Compares two maps key by key. `of` names the schedule they belong to.
    fn compare_section(&mut self, old: &Json, new: &Json, section: &ConfigSection, of: &str) {
        let (old, new) = (as_map(old), as_map(new));
        let gone = old.keys().filter(|key| !new.contains_key(*key));
        // Schedules have names, so they are compared one by one.
        for key in new.keys().chain(gone).filter(|key| *key != "schedules") {
            let (before, after) = (old.get(key), new.get(key));
            if before != after {
                let shape = section.key(key).map_or(&ValueShape::Any, |info| &info.shape);
                self.compare_value(key, before, after, shape, of);
            }
        }
    }

    fn compare_value(
        &mut self,
        key: &str,
        old: Option<&Json>,
        new: Option<&Json>,
        shape: &ValueShape,
        of: &str,
    ) {
        if let (
            ValueShape::Section(section),
            Some(old @ Json::Object(_)),
            Some(new @ Json::Object(_)),
        ) = (shape, old, new)
            // Deeper sections are reported as a whole, which keeps lines readable.
            && self.depth < SECTION_DEPTH_MAX
        {
            let mut within = ConfigDiff { depth: self.depth + 1, ..ConfigDiff::default() };
            within.compare_section(old, new, section, of);
            self.lines.extend(within.lines.into_iter().map(|line| format!("{key}.{line}")));
            return;
        }
        let told = is_value_shown(key, shape)
            .then(|| Some((format_value(old)?, format_value(new)?)))
            .flatten();
        self.lines.push(match told {
            Some((old, new)) => format!("{key}{of} {old} -> {new}"),
            None => format!("{key}{of} changed"),
        });
    }

    fn compare_schedules(&mut self, old: &Map<String, Json>, new: &Map<String, Json>) {
        for (name, schedule) in new {
            match old.get(name) {
                None => self.lines.push(format!("schedule {name} added")),
                Some(known) => {
                    let section = ScheduleKeys::section();
                    self.compare_section(known, schedule, &section, &format!(" of {name}"));
                }
            }
        }
        for name in old.keys().filter(|name| !new.contains_key(*name)) {
            self.lines.push(format!("schedule {name} removed"));
        }
    }
}

/// Returns true if values of the key may be shown. URLs are excluded because they may contain a
/// token.
fn is_value_shown(key: &str, shape: &ValueShape) -> bool {
    match shape {
        ValueShape::Bool | ValueShape::Int { .. } | ValueShape::Words(_) => true,
        // These may contain a token.
        ValueShape::Format { what, .. } => *what != "a URL" && *what != repo::REPO_DESCRIPTION,
        // Texts may be prompts or contain secrets, so only known ones are shown.
        ValueShape::Text => SHOWN_TEXT_KEYS.contains(&key),
        ValueShape::List(_)
        | ValueShape::Map(_)
        | ValueShape::Section(_)
        | ValueShape::OneOf(_)
        | ValueShape::Any => false,
    }
}

fn format_value(value: Option<&Json>) -> Option<String> {
    let told = match value {
        None => "not set".to_owned(),
        Some(Json::String(text)) => text.clone(),
        Some(value @ (Json::Bool(_) | Json::Number(_))) => value.to_string(),
        Some(_) => return None,
    };
    // A control character in a log could hide the rest of the line.
    let plain = told.chars().count() <= SHOWN_CHARS_MAX && !told.chars().any(char::is_control);
    plain.then_some(told)
}
