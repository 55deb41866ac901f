//! Reference page of all keys, generated from the shapes that read them.

use super::agent::{AgentKeys, KEYS_WITHOUT_DEFAULT};
use super::docker::FLEET_ONLY_KEYS;
use super::fleet::FleetKeys;
use super::schema::join_doc_lines;
use super::shape::{ConfigSection, KeyInfo, ValueShape};
use super::unused_keys;
use crate::workflow::inputs::INPUT_BYTES_MAX;
use crate::workflow::keys::{CronKeys, WorkflowKeys};
use crate::workflow::{
    ITEMS_MAX, ITERATIONS_MAX, PHASES_MAX, RENDERED_BYTES_MAX, WORKFLOW_FILES_MAX,
};

const INTRO: &str = include_str!("reference_intro.md");
const WORKFLOW_INTRO: &str = include_str!("workflow_intro.md");

pub fn reference_markdown() -> String {
    let list = |keys: &[&str]| {
        keys.iter().map(|key| format!("`{}`", key.replace("*.", ""))).collect::<Vec<_>>().join(", ")
    };
    let mut page = INTRO
        .replace("{no_default}", &list(KEYS_WITHOUT_DEFAULT))
        .replace("{fleet_only}", &list(FLEET_ONLY_KEYS))
        .replace("{inert_fleet}", &list(unused_keys::UNUSED_FLEET_KEYS))
        .replace("{inert_agent}", &list(unused_keys::UNUSED_AGENT_KEYS));
    page.push_str(&render_tables(vec![FleetKeys::section(), AgentKeys::file_section()]));
    page
}

pub fn workflow_reference_markdown() -> String {
    let limits = WORKFLOW_INTRO
        .replace("{phases}", &PHASES_MAX.to_string())
        .replace("{iterations}", &ITERATIONS_MAX.to_string())
        .replace("{items}", &ITEMS_MAX.to_string())
        .replace("{files}", &WORKFLOW_FILES_MAX.to_string())
        .replace("{rendered}", &(RENDERED_BYTES_MAX >> 20).to_string())
        .replace("{inputs}", &(INPUT_BYTES_MAX >> 10).to_string());
    limits + &render_tables(vec![WorkflowKeys::section(), CronKeys::section()])
}

/// Renders a table for each section and for each section they reference.
fn render_tables(mut sections: Vec<ConfigSection>) -> String {
    let mut next = 0;
    while let Some(section) = sections.get(next).cloned() {
        section.keys.iter().for_each(|key| collect_sections(&key.shape, &mut sections));
        next += 1;
    }
    sections.iter().map(render_table).collect()
}

fn collect_sections(shape: &ValueShape, sections: &mut Vec<ConfigSection>) {
    match shape {
        // Defaults, overrides and list items repeat the keys of an agent or a schedule.
        ValueShape::Section(section) if canonical_section(section.name).is_some() => {}
        ValueShape::Section(section) if sections.iter().any(|known| known.name == section.name) => {
        }
        ValueShape::Section(section) => sections.push(section.clone()),
        ValueShape::List(shape) | ValueShape::Map(shape) => collect_sections(shape, sections),
        ValueShape::OneOf(shapes) => {
            shapes.iter().for_each(|shape| collect_sections(shape, sections));
        }
        _ => {}
    }
}

fn canonical_section(section: &str) -> Option<&'static str> {
    match section {
        "defaults" | "agent overrides" => Some("agent"),
        "schedule_item" => Some("schedule"),
        _ => None,
    }
}

fn render_table(section: &ConfigSection) -> String {
    let mut text = format!("\n## {}\n\n{}\n\n", section.name, join_doc_lines(section.about));
    text.push_str("| key | value | default | |\n| --- | --- | --- | --- |\n");
    for key in &section.keys {
        text.push_str(&render_row(section, key));
    }
    text
}

fn render_row(section: &ConfigSection, key: &KeyInfo) -> String {
    let default = match (key.required, key.default) {
        (true, _) => "required".to_owned(),
        (false, Some("{}") | None) => String::new(),
        (false, Some(default)) => format!("`{default}`"),
    };
    let mut about = join_doc_lines(key.about).replace('|', "\\|");
    for alias in key.aliases {
        about.push_str(&format!(" Also written `{alias}`."));
    }
    if let Some(remark) = unused_keys::unused_key_note(section.name, key.name) {
        about.push_str(&format!(" *{remark}*"));
    }
    format!("| `{}` | {} | {default} | {about} |\n", key.name, describe_shape(&key.shape))
}

fn describe_shape(shape: &ValueShape) -> String {
    match shape {
        ValueShape::Any => "anything".to_owned(),
        ValueShape::Text => "text".to_owned(),
        ValueShape::Bool => "`true` or `false`".to_owned(),
        ValueShape::Int { min, max } if *max >= i64::from(u32::MAX) => {
            format!("whole number, at least {min}")
        }
        ValueShape::Int { min, max } => format!("whole number, {min} to {max}"),
        ValueShape::Words(words) => {
            words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
        }
        ValueShape::Format { what, example, .. } => format!("{what} ({example})"),
        ValueShape::List(item) => format!("list: {}", describe_shape(item)),
        ValueShape::Map(value) => format!("map of names: {}", describe_shape(value)),
        ValueShape::OneOf(shapes) => {
            shapes.iter().map(describe_shape).collect::<Vec<_>>().join("; or ")
        }
        ValueShape::Section(section) => {
            let name = canonical_section(section.name).unwrap_or(section.name);
            let anchor = name.replace(' ', "-").replace('.', "");
            format!("[{name}](#{anchor})")
        }
    }
}
