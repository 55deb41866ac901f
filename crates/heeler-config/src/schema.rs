//! JSON Schema of config files, for editors; generated from the shapes that read them.

use serde_json::{Map, Value as Json, json};

use crate::agent::AgentKeys;
use crate::fleet::FleetKeys;
use crate::shape::{ConfigSection, KeyInfo, ValueShape, default_json};
use crate::unused_key_notes;
use crate::workflow::keys::{CronKeys, WorkflowKeys};

pub fn fleet_schema() -> Json {
    schema_document("heeler.yaml: a fleet of agents", &FleetKeys::section())
}

pub fn agent_schema() -> Json {
    schema_document("An agent of a Heeler fleet", &AgentKeys::file_section())
}

pub fn workflow_schema() -> Json {
    remove_variable_options(schema_document(
        "A workflow of a Heeler fleet",
        &WorkflowKeys::section(),
    ))
}

/// Returns the JSON Schema of a cron file, which starts a workflow at given times.
pub fn cron_schema() -> Json {
    remove_variable_options(schema_document(
        "A cron file of a Heeler fleet: starts a workflow at given times",
        &CronKeys::section(),
    ))
}

/// Removes the alternative that a value is an environment variable: in a workflow, `${…}` is a
/// template.
fn remove_variable_options(mut schema: Json) -> Json {
    fn visit(schema: &mut Json) {
        let is_variable = |option: &Json| option["$ref"] == "#/definitions/variable";
        // Workflow files have templates instead of variables.
        if let Some(options) = schema.get_mut("anyOf").and_then(Json::as_array_mut) {
            options.retain(|option| !is_variable(option));
            // A choice of one is written as the thing itself, which editors show better.
            if let [only] = &mut options[..] {
                let only = only.take();
                if let (Some(map), Json::Object(only)) = (schema.as_object_mut(), only) {
                    map.remove("anyOf");
                    map.extend(only);
                }
            }
        }
        match schema {
            Json::Array(items) => items.iter_mut().for_each(visit),
            Json::Object(map) => map.values_mut().for_each(visit),
            _ => {}
        }
    }
    visit(&mut schema);
    // Nothing refers to it any more.
    if let Some(definitions) = schema["definitions"].as_object_mut() {
        definitions.remove("variable");
    }
    schema
}

fn schema_document(title: &str, section: &ConfigSection) -> Json {
    let mut definitions = Map::new();
    let mut root = object_schema(section, &mut definitions);
    definitions.insert(
        "variable".to_owned(),
        json!({
            "type": "string",
            "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
            "description": "A value from the environment: ${NAME} or ${NAME:-default}.",
        }),
    );
    // The generated file is compared in tests, so its order must not vary.
    definitions.sort_keys();
    root["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    root["title"] = json!(title);
    root["definitions"] = Json::Object(definitions);
    root
}

fn object_schema(section: &ConfigSection, definitions: &mut Map<String, Json>) -> Json {
    let mut properties = Map::new();
    for key in &section.keys {
        let described = property_schema(section, key, definitions);
        for alias in key.aliases {
            let mut same = described.clone();
            // Editors show the description, which should lead to the main name.
            same["description"] = json!(format!("Same as `{}`.", key.name));
            properties.insert((*alias).to_owned(), same);
        }
        properties.insert(key.name.to_owned(), described);
    }
    let required: Vec<&str> =
        section.keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    let mut object = json!({
        "type": "object",
        "description": join_doc_lines(section.about),
        "additionalProperties": false,
        "properties": properties,
    });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

fn property_schema(
    section: &ConfigSection,
    key: &KeyInfo,
    definitions: &mut Map<String, Json>,
) -> Json {
    let mut described = shape_schema(&key.shape, definitions);
    if described.get("$ref").is_some() {
        // In this draft of JSON Schema, all keys beside `$ref` are ignored.
        described = json!({ "allOf": [described] });
    }
    let mut about = join_doc_lines(key.about);
    if let Some(remark) = unused_key_notes::unused_key_note(section.name, key.name) {
        about.push_str(&format!(" {remark}"));
    }
    described["description"] = json!(about);
    if let Some(default) = key.default {
        described["default"] = default_json(default);
    }
    described
}

fn shape_schema(shape: &ValueShape, definitions: &mut Map<String, Json>) -> Json {
    match shape {
        ValueShape::Any => json!({}),
        // Text may be written without quotes, and then looks like a number to the editor.
        ValueShape::Text => json!({ "type": ["string", "number", "boolean"] }),
        ValueShape::Format { pattern: None, example, .. } => {
            json!({ "type": ["string", "number"], "examples": [strip_backticks(example)] })
        }
        ValueShape::Format { pattern: Some(pattern), example, .. } => allow_variable(
            &json!({ "type": ["string", "number"], "pattern": pattern, "examples": [strip_backticks(example)] }),
        ),
        ValueShape::Bool => allow_variable(&json!({ "type": "boolean" })),
        ValueShape::Int { min, max } => {
            allow_variable(&json!({ "type": "integer", "minimum": min, "maximum": max }))
        }
        ValueShape::Words(words) => allow_variable(&json!({ "enum": words })),
        ValueShape::List(item) => {
            json!({ "type": "array", "items": shape_schema(item, definitions) })
        }
        ValueShape::Map(value) => {
            json!({ "type": "object", "additionalProperties": shape_schema(value, definitions) })
        }
        ValueShape::OneOf(shapes) => {
            let options: Vec<Json> =
                shapes.iter().map(|shape| shape_schema(shape, definitions)).collect();
            json!({ "anyOf": options })
        }
        ValueShape::Section(section) => {
            // A reference is an address, in which these characters have a meaning.
            let name = section.name.replace([' ', '.'], "_");
            if !definitions.contains_key(&name) {
                // Inserted first, because a section may contain itself.
                definitions.insert(name.clone(), Json::Null);
                let object = object_schema(section, definitions);
                definitions.insert(name.clone(), object);
            }
            json!({ "$ref": format!("#/definitions/{name}") })
        }
    }
}

fn allow_variable(schema: &Json) -> Json {
    json!({ "anyOf": [schema, { "$ref": "#/definitions/variable" }] })
}

fn strip_backticks(example: &str) -> &str {
    example.trim_matches('`')
}

/// Joins the lines of a documentation comment.
pub(crate) fn join_doc_lines(about: &str) -> String {
    about.split_whitespace().collect::<Vec<_>>().join(" ")
}
