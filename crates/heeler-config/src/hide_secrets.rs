//! Removal of secrets from the config as JSON, so that they appear by name only.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::agent::AgentConfig;
use crate::chat_config::ChatConfig;
use crate::fleet::FleetConfig;
use crate::fleet_secrets::FleetSecrets;
use crate::render_json::AgentConfigJson;
use crate::schedule::ScheduleTrigger;
use crate::value::{VarName, escape_variables};

/// Minimum length of a secret to search for: shorter ones would match ordinary words.
const SECRET_LEN_MIN: usize = 4;

/// Replaces the value of each variable that an agent lists as a secret by `${NAME}`, wherever it
/// occurs.
pub(crate) fn hide_secrets(
    fleets: &mut [FleetConfig],
    agents: &mut [AgentConfig],
    env: &BTreeMap<String, String>,
) {
    let names: Vec<String> = agents
        .iter()
        .flat_map(|agent| agent.secrets.iter().map(|name| name.as_str().to_owned()))
        .collect();
    // Rendered text has `${` escaped, so a secret that contains it is searched in both forms. Long
    // secrets come first, because a secret may be part of another.
    let mut secrets: Vec<(&String, String)> = names
        .iter()
        .filter_map(|name| Some((name, env.get(name)?)))
        // Hiding the value of a very short secret would garble ordinary words.
        .filter(|(_, value)| value.len() >= SECRET_LEN_MIN)
        .flat_map(|(name, value)| [(name, value.clone()), (name, escape_variables(value))])
        .collect();
    secrets.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
    if secrets.is_empty() {
        return;
    }
    for agent in agents {
        // The form is stored as text, so it is parsed once for all secrets.
        let mut shown = agent.config_json.json();
        hide_in_value(&mut shown, &secrets);
        agent.config_json = AgentConfigJson::new(&shown);
    }
    fleets.iter_mut().for_each(|fleet| hide_in_value(&mut fleet.config_json, &secrets));
}

/// Returns the values of all variables that the config declares to be secrets: those of every
/// agent, those that sign webhooks and those that give access to GitHub, to a chat platform, to a
/// channel of `notify` or to the archive of files.
pub(crate) fn declared_secrets(
    fleets: &[FleetConfig],
    agents: &[AgentConfig],
    env: &BTreeMap<String, String>,
) -> FleetSecrets {
    let of_fleets = fleets.iter().filter_map(|fleet| fleet.webhooks.as_ref()?.secret_env.as_ref());
    let schedules = agents.iter().flat_map(|agent| &agent.schedules);
    let of_schedules = schedules.filter_map(|schedule| match &schedule.trigger {
        ScheduleTrigger::Webhook(rules) => rules.secret_env.as_ref(),
        _ => None,
    });
    let of_agents = agents.iter().flat_map(|agent| &agent.secrets);
    let of_github = fleets.iter().filter_map(|fleet| fleet.github.as_ref()?.secret_variable());
    let of_chats = agents.iter().filter_map(|agent| agent.chat.as_ref());
    let of_chats = of_chats.flat_map(ChatConfig::token_variables);
    let of_notify = fleets.iter().filter_map(|fleet| fleet.notify.as_ref());
    let of_notify: Vec<VarName> =
        of_notify.flat_map(crate::notify::NotifyConfig::secret_variables).collect();
    let of_archives = fleets.iter().flat_map(|fleet| fleet.archive.secret_variables());
    let names = of_fleets
        .chain(of_archives)
        .chain(of_github)
        .chain(&of_notify)
        .chain(of_chats)
        .chain(of_schedules)
        .chain(of_agents);
    let mut found: Vec<String> = names.filter_map(|name| env.get(name.as_str()).cloned()).collect();
    // An agent's own value takes precedence over the environment, but both exist.
    for agent in agents {
        let own = |name: &VarName| Some(agent.env.get().get(name.as_str())?.expose().to_owned());
        found.extend(agent.secrets.iter().filter_map(own));
    }
    FleetSecrets::new(found)
}

fn hide_in_value(value: &mut Json, secrets: &[(&String, String)]) {
    match value {
        Json::String(text) => {
            for (name, secret) in secrets {
                if text.contains(secret.as_str()) {
                    *text = text.replace(secret.as_str(), &format!("${{{name}}}"));
                }
            }
        }
        Json::Array(items) => items.iter_mut().for_each(|item| hide_in_value(item, secrets)),
        Json::Object(map) => map.values_mut().for_each(|item| hide_in_value(item, secrets)),
        // Numbers and booleans are values of the config's own types.
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}
