//! Merged, checked config as JSON, with keys as in the YAML.

use serde_json::Value as Json;

use crate::yaml::{YamlKind, YamlNode, YamlScalar};

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

/// Replaces values made from variables by the text as written. Numbers, booleans and nulls keep
/// their values.
pub(crate) fn restore_templates(shown: &mut Json, tree: &YamlNode) {
    match (shown, &tree.kind) {
        // A type that is neither text nor a list cannot hold a secret.
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
        // A list whose items were dropped or added cannot be matched by position.
        (Json::Array(shown), YamlKind::List(items)) if shown.len() == items.len() => {
            shown.iter_mut().zip(items).for_each(|(shown, item)| restore_templates(shown, item));
        }
        _ => {}
    }
}
