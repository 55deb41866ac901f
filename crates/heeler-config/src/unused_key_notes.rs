//! Notes of the schema and the reference about keys that have no effect yet.

use std::sync::LazyLock;

use crate::agent::AgentKeys;
use crate::fleet::FleetKeys;
use crate::shape::ValueShape;
use crate::unused_keys::{UNUSED_AGENT_KEYS, UNUSED_FLEET_KEYS};
use crate::value::ConfigValue as _;

/// Returns the remark of the schema and the reference page about a listed key.
pub(crate) fn unused_key_note(section: &str, key: &str) -> Option<&'static str> {
    // Computed once, because the schema asks for each key.
    static UNUSED_KEYS: LazyLock<Vec<(&'static str, &'static str)>> = LazyLock::new(|| {
        let (fleet, agent) = (FleetKeys::shape(), AgentKeys::shape());
        let fleet = UNUSED_FLEET_KEYS.iter().flat_map(|path| resolve_key_path(&fleet, path));
        fleet
            .chain(UNUSED_AGENT_KEYS.iter().flat_map(|path| resolve_key_path(&agent, path)))
            .collect()
    });
    // Defaults and overrides repeat the keys of an agent.
    let section = match section {
        "defaults" | "agent overrides" => "agent",
        section => section,
    };
    UNUSED_KEYS.contains(&(section, key)).then_some("No effect yet.")
}

/// Says whether all of a key is without effect, so that the reference lists it apart.
pub(crate) fn has_no_effect(section: &str, key: &str) -> bool {
    unused_key_note(section, key).is_some()
}

/// Returns the section and key that a path refers to; several if a value has several forms.
fn resolve_key_path(shape: &ValueShape, path: &str) -> Vec<(&'static str, &'static str)> {
    let (head, tail) = path.split_once('.').map_or((path, None), |(head, tail)| (head, Some(tail)));
    match shape {
        // A key may exist in one of the forms only.
        ValueShape::OneOf(shapes) => {
            shapes.iter().flat_map(|shape| resolve_key_path(shape, path)).collect()
        }
        ValueShape::Map(shape) | ValueShape::List(shape) if head == "*" => {
            tail.map(|tail| resolve_key_path(shape, tail)).unwrap_or_default()
        }
        ValueShape::Section(section) => match (section.key(head), tail) {
            (Some(key), None) => vec![(section.name, key.name)],
            (Some(key), Some(tail)) => resolve_key_path(&key.shape, tail),
            (None, _) => Vec::new(),
        },
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_of_the_list_leads_to_a_key() {
        let lists =
            [(FleetKeys::shape(), UNUSED_FLEET_KEYS), (AgentKeys::shape(), UNUSED_AGENT_KEYS)];
        for (shape, paths) in lists {
            for path in paths {
                assert!(!resolve_key_path(&shape, path).is_empty(), "{path} leads nowhere");
            }
        }
    }
}
