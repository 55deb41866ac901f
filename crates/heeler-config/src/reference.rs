//! Reference page of all keys, generated from the shapes that read them.

use crate::agent::{AgentKeys, KEYS_WITHOUT_DEFAULT};
use crate::docker::FLEET_ONLY_KEYS;
use crate::fleet::FleetKeys;
use crate::schema::join_doc_lines;
use crate::shape::{ConfigSection, KeyInfo, ValueShape};
use crate::unused_key_notes;
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
        .replace("{fleet_only}", &list(FLEET_ONLY_KEYS));
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

/// Renders a table for each section and for each section they reference, and one table of all keys
/// that have no effect.
fn render_tables(mut sections: Vec<ConfigSection>) -> String {
    let mut unused = Vec::new();
    let mut next = 0;
    // The list grows while it is walked, so that nested sections follow those that name them.
    while let Some(section) = sections.get(next).cloned() {
        for key in &section.keys {
            if unused_key_notes::has_no_effect(section.name, key.name) {
                collect_unused(section.name, key.name, key, &mut unused);
            } else {
                collect_sections(&key.shape, &mut sections);
            }
        }
        next += 1;
    }
    let tables: String = sections.iter().map(render_table).collect();
    tables + &render_unused(&unused)
}

/// A key without effect, with the sections that accept it.
struct UnusedKey {
    sections: Vec<&'static str>,
    /// Dotted path below the section, such as `docker.image`.
    path: String,
    value: String,
    about: String,
}

/// Adds a key and the keys below it. The fleet and its agents accept many of them alike; these
/// become one row.
fn collect_unused(section: &'static str, path: &str, key: &KeyInfo, unused: &mut Vec<UnusedKey>) {
    // A bar would end the cell of the table.
    let about = join_doc_lines(key.about).replace('|', "\\|");
    let value = describe_unlinked(&key.shape);
    match unused.iter_mut().find(|known| known.path == path && known.about == about) {
        Some(known) if known.sections.contains(&section) => {}
        Some(known) => known.sections.push(section),
        None => {
            let (sections, path) = (vec![section], path.to_owned());
            unused.push(UnusedKey { sections, path, value, about });
        }
    }
    let mut below = Vec::new();
    collect_sections(&key.shape, &mut below);
    for nested in below.iter().flat_map(|section| &section.keys) {
        collect_unused(section, &format!("{path}.{}", nested.name), nested, unused);
    }
}

fn render_unused(unused: &[UnusedKey]) -> String {
    if unused.is_empty() {
        return String::new();
    }
    let mut text = "\n## Accepted, not used\n\nThese keys are checked, and a warning names those that \
                    a file sets. They have no effect unless the description says otherwise.\n\n| key | in | value | |\n| --- | --- | --- | --- |\n"
        .to_owned();
    for key in unused {
        let UnusedKey { sections, path, value, about } = key;
        text.push_str(&format!("| `{path}` | {} | {value} | {about} |\n", sections.join(", ")));
    }
    text
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
    let used = section.keys.iter();
    for key in used.filter(|key| !unused_key_notes::has_no_effect(section.name, key.name)) {
        text.push_str(&render_row(section, key));
    }
    text
}

fn render_row(section: &ConfigSection, key: &KeyInfo) -> String {
    let default = match (key.required, key.default) {
        (true, _) => "required".to_owned(),
        // An empty section as default says nothing about its keys.
        (false, Some("{}") | None) => String::new(),
        (false, Some(default)) => format!("`{default}`"),
    };
    let mut about = join_doc_lines(key.about).replace('|', "\\|");
    for alias in key.aliases {
        about.push_str(&format!(" Also written `{alias}`."));
    }
    if let Some(remark) = unused_key_notes::unused_key_note(section.name, key.name) {
        about.push_str(&format!(" *{remark}*"));
    }
    format!("| `{}` | {} | {default} | {about} |\n", key.name, describe_shape(&key.shape))
}

/// Describes a value whose section has no table of its own.
fn describe_unlinked(shape: &ValueShape) -> String {
    match shape {
        ValueShape::Section(_) => "map".to_owned(),
        ValueShape::List(item) => format!("list: {}", describe_unlinked(item)),
        ValueShape::Map(value) => format!("map of names: {}", describe_unlinked(value)),
        ValueShape::OneOf(shapes) => {
            shapes.iter().map(describe_unlinked).collect::<Vec<_>>().join("; or ")
        }
        other => describe_shape(other),
    }
}

fn describe_shape(shape: &ValueShape) -> String {
    match shape {
        ValueShape::Any => "anything".to_owned(),
        ValueShape::Text => "text".to_owned(),
        ValueShape::Bool => "`true` or `false`".to_owned(),
        // The limit of the type itself means nothing to people.
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
