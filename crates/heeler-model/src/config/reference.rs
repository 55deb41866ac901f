//! The reference page of all keys, made from the shapes that read them.

use super::agent::{AgentKeys, NO_DEFAULT};
use super::docker::FLEET_ONLY;
use super::fleet::FleetKeys;
use super::inert;
use super::schema::prose;
use super::shape::{KeyInfo, Section, Shape};
use crate::workflow::inputs::INPUT_BYTES_MAX;
use crate::workflow::keys::{CronKeys, WorkflowKeys};
use crate::workflow::{
    ITEMS_MAX, ITERATIONS_MAX, PHASES_MAX, RENDERED_BYTES_MAX, WORKFLOW_FILES_MAX,
};

const INTRO: &str = include_str!("reference_intro.md");
const WORKFLOW_INTRO: &str = include_str!("workflow_intro.md");

/// Returns `docs/config.md`.
pub fn reference_markdown() -> String {
    let list = |keys: &[&str]| {
        keys.iter().map(|key| format!("`{}`", key.replace("*.", ""))).collect::<Vec<_>>().join(", ")
    };
    let mut page = INTRO
        .replace("{no_default}", &list(NO_DEFAULT))
        .replace("{fleet_only}", &list(FLEET_ONLY))
        .replace("{inert_fleet}", &list(inert::FLEET))
        .replace("{inert_agent}", &list(inert::AGENT));
    page.push_str(&tables(vec![FleetKeys::section(), AgentKeys::file_section()]));
    page
}

/// Returns `docs/workflow-reference.md`.
pub fn workflow_reference_markdown() -> String {
    let limits = WORKFLOW_INTRO
        .replace("{phases}", &PHASES_MAX.to_string())
        .replace("{iterations}", &ITERATIONS_MAX.to_string())
        .replace("{items}", &ITEMS_MAX.to_string())
        .replace("{files}", &WORKFLOW_FILES_MAX.to_string())
        .replace("{rendered}", &(RENDERED_BYTES_MAX >> 20).to_string())
        .replace("{inputs}", &(INPUT_BYTES_MAX >> 10).to_string());
    limits + &tables(vec![WorkflowKeys::section(), CronKeys::section()])
}

/// Returns a table for each section, and for each that these name.
fn tables(mut sections: Vec<Section>) -> String {
    let mut next = 0;
    while let Some(section) = sections.get(next).cloned() {
        section.keys.iter().for_each(|key| collect(&key.shape, &mut sections));
        next += 1;
    }
    sections.iter().map(table).collect()
}

fn collect(shape: &Shape, sections: &mut Vec<Section>) {
    match shape {
        // Defaults, overrides and list items repeat the keys of what they stand for.
        Shape::Section(section) if stands_for(section.name).is_some() => {}
        Shape::Section(section) if sections.iter().any(|known| known.name == section.name) => {}
        Shape::Section(section) => sections.push(section.clone()),
        Shape::List(shape) | Shape::Map(shape) => collect(shape, sections),
        Shape::OneOf(shapes) => shapes.iter().for_each(|shape| collect(shape, sections)),
        _ => {}
    }
}

fn stands_for(section: &str) -> Option<&'static str> {
    match section {
        "defaults" | "agent overrides" => Some("agent"),
        "schedule_item" => Some("schedule"),
        _ => None,
    }
}

fn table(section: &Section) -> String {
    let mut text = format!("\n## {}\n\n{}\n\n", section.name, prose(section.about));
    text.push_str("| key | value | default | |\n| --- | --- | --- | --- |\n");
    for key in &section.keys {
        text.push_str(&row(section, key));
    }
    text
}

fn row(section: &Section, key: &KeyInfo) -> String {
    let default = match (key.required, key.default) {
        (true, _) => "required".to_owned(),
        (false, Some("{}") | None) => String::new(),
        (false, Some(default)) => format!("`{default}`"),
    };
    let mut about = prose(key.about).replace('|', "\\|");
    for alias in key.aliases {
        about.push_str(&format!(" Also written `{alias}`."));
    }
    if let Some(remark) = inert::remark(section.name, key.name) {
        about.push_str(&format!(" *{remark}*"));
    }
    format!("| `{}` | {} | {default} | {about} |\n", key.name, kind(&key.shape))
}

fn kind(shape: &Shape) -> String {
    match shape {
        Shape::Any => "anything".to_owned(),
        Shape::Text => "text".to_owned(),
        Shape::Bool => "`true` or `false`".to_owned(),
        Shape::Int { min, max } if *max >= i64::from(u32::MAX) => {
            format!("whole number, at least {min}")
        }
        Shape::Int { min, max } => format!("whole number, {min} to {max}"),
        Shape::Words(words) => {
            words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
        }
        Shape::Format { what, example, .. } => format!("{what} ({example})"),
        Shape::List(item) => format!("list: {}", kind(item)),
        Shape::Map(value) => format!("map of names: {}", kind(value)),
        Shape::OneOf(shapes) => shapes.iter().map(kind).collect::<Vec<_>>().join("; or "),
        Shape::Section(section) => {
            let name = stands_for(section.name).unwrap_or(section.name);
            let anchor = name.replace(' ', "-").replace('.', "");
            format!("[{name}](#{anchor})")
        }
    }
}
