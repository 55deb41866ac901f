//! Resolution of `spawn`: the agents that an agent may start, and warnings about their rights.
//!
//! Start at [`resolve_spawns`].

use std::collections::{HashMap, HashSet};

use crate::agent::AgentConfig;
use crate::policy::{self, AgentRef};
use crate::reader::ConfigReader;
use crate::rights::{compare_rights, describe_differences};
use crate::value::SpannedValue;

/// The names in `spawn` of one agent, as written.
pub(crate) struct WrittenSpawn {
    /// Index of the agent.
    pub(crate) agent: usize,
    /// Path of its fleet.
    pub(crate) fleet: String,
    pub(crate) agents: Vec<SpannedValue<AgentRef>>,
    pub(crate) elevate: Vec<SpannedValue<AgentRef>>,
}

/// Resolves the names in `spawn`, once all agents are known, and warns about targets that have more
/// rights than the agent that may start them.
pub(crate) fn resolve_spawns(
    written: &[WrittenSpawn],
    agents: &mut [AgentConfig],
    known: &HashSet<String>,
    reader: &mut ConfigReader,
) {
    for WrittenSpawn { agent, fleet, agents: listed, elevate } in written {
        let spawn = &mut agents[*agent].spawn;
        spawn.agents = policy::resolve_agents(listed, fleet, known, reader);
        for name in elevate {
            let found = policy::resolve_agents(std::slice::from_ref(name), fleet, known, reader);
            // An agent that cannot be started at all gains nothing, so the entry is a mistake.
            if let Some(unlisted) = found.iter().find(|name| !spawn.agents.contains(name)) {
                reader
                    .error(name.at, format!("`spawn.agents` does not name `{unlisted}`"))
                    .expected("expected one of `spawn.agents`")
                    .help("add it to `spawn.agents`");
            }
            spawn.elevate.extend(found);
        }
    }
    if reader.error_count() > 0 {
        return;
    }
    let by_name: HashMap<&str, &AgentConfig> =
        agents.iter().map(|agent| (agent.name.as_str(), agent)).collect();
    for written in written {
        warn_rights(&agents[written.agent], &written.agents, &by_name, reader);
    }
}

fn warn_rights(
    caller: &AgentConfig,
    listed: &[SpannedValue<AgentRef>],
    agents: &HashMap<&str, &AgentConfig>,
    reader: &mut ConfigReader,
) {
    for (name, written) in caller.spawn.agents.iter().zip(listed) {
        let Some(target) = agents.get(name.as_str()) else { continue };
        let more = compare_rights(caller, target);
        if more.is_empty() {
            continue;
        }
        let what = describe_differences(&more);
        if caller.spawn.elevate.contains(name) {
            let message = format!("`{}` gains rights by starting `{name}`: {what}", caller.name);
            reader.warn(written.at, message).expected("allowed by `spawn.elevate`");
        } else {
            let message =
                format!("`{}` cannot start `{name}`, which has more rights: {what}", caller.name);
            let help = format!("give `{name}` no more rights, or add it to `spawn.elevate`");
            reader.warn(written.at, message).expected("refused when it is started").help(help);
        }
    }
}
