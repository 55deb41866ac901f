//! Merged, checked config as JSON, with keys as in the YAML. Secrets appear by name only.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use crate::LoadedConfig;
use crate::agent::AgentConfig;
use crate::fleet::FleetConfig;
use crate::value::escape_variables;
use crate::yaml::{YamlKind, YamlNode, YamlScalar};

/// Minimum length of a secret to search for: shorter ones would match ordinary words.
const SECRET_LEN_MIN: usize = 4;

/// Rendered config of an agent. It is stored as text because it is rarely needed; as JSON values it
/// would take ten times as much memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AgentConfigJson(Box<str>);

impl AgentConfigJson {
    pub(crate) fn new(shown: &Json) -> AgentConfigJson {
        AgentConfigJson(shown.to_string().into())
    }

    pub(crate) fn json(&self) -> Json {
        serde_json::from_str(&self.0).expect("it was made from JSON")
    }
}

impl LoadedConfig {
    /// Returns `{fleet, agents: […]}`. `fleet` holds the keys of the fleet file; each agent holds
    /// its merged keys, its `qualified_name` and the `file` that defines it.
    pub fn show(&self) -> Json {
        let fleet = self.fleets.first().map_or(Json::Null, |fleet| fleet.config_json.clone());
        let agents: Json = self.agents.iter().map(|agent| agent.config_json.json()).collect();
        json!({ "fleet": fleet, "agents": agents })
    }
}

/// Replaces values made from variables by the text as written. Numbers, booleans and nulls keep
/// their values.
pub(crate) fn restore_templates(shown: &mut Json, tree: &YamlNode) {
    match (shown, &tree.kind) {
        (Json::Null | Json::Bool(_) | Json::Number(_), _) => {}
        (shown, YamlKind::Scalar(YamlScalar { template: Some(template), .. })) => {
            *shown = Json::String(template.clone());
        }
        (Json::Object(map), YamlKind::Map(entries)) => {
            for (key, value) in entries {
                if let Some(shown) = map.get_mut(&key.text) {
                    restore_templates(shown, value);
                }
            }
        }
        (Json::Array(shown), YamlKind::List(items)) if shown.len() == items.len() => {
            shown.iter_mut().zip(items).for_each(|(shown, item)| restore_templates(shown, item));
        }
        _ => {}
    }
}

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
        .filter(|(_, value)| value.len() >= SECRET_LEN_MIN)
        .flat_map(|(name, value)| [(name, value.clone()), (name, escape_variables(value))])
        .collect();
    secrets.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
    if secrets.is_empty() {
        return;
    }
    for agent in agents {
        let mut shown = agent.config_json.json();
        hide_in_value(&mut shown, &secrets);
        agent.config_json = AgentConfigJson::new(&shown);
    }
    fleets.iter_mut().for_each(|fleet| hide_in_value(&mut fleet.config_json, &secrets));
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
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}
