//! Schema and reference page: files in git, made from the code that reads config.
//!
//! After a change of the keys: `cargo xtask docs`.

use expect_test::expect_file;
use heeler_config::{agent_schema, agents_markdown, fleet_schema, reference_markdown};
use serde_json::{Map, Value as Json, json};

use crate::load_files;

fn pretty(schema: &Json) -> String {
    format!("{}\n", serde_json::to_string_pretty(schema).unwrap())
}

#[test]
fn the_schema_of_the_fleet_file_is_in_git() {
    expect_file!["../../../../docs/schema/heeler.schema.json"].assert_eq(&pretty(&fleet_schema()));
}

#[test]
fn the_schema_of_an_agent_file_is_in_git() {
    expect_file!["../../../../docs/schema/agent.schema.json"].assert_eq(&pretty(&agent_schema()));
}

#[test]
fn the_reference_page_is_in_git() {
    expect_file!["../../../../docs/config.md"].assert_eq(&reference_markdown());
}

#[test]
fn the_page_about_agents_is_in_git() {
    expect_file!["../../../../docs/agents.md"].assert_eq(&agents_markdown());
}

/// Makes a document with every key that the schema has. Where there is a choice of maps, `choice`
/// picks one; `extra` is put into every map that has known keys.
struct Instance<'a> {
    definitions: &'a Json,
    choice: usize,
    extra: Option<&'a str>,
    maps: usize,
    /// How many keys are null that must not be.
    missing: usize,
}

impl Instance<'_> {
    fn make(&mut self, schema: &Json) -> Json {
        if let Some(target) = schema["$ref"].as_str() {
            let name = target.trim_start_matches("#/definitions/");
            return self.make(&self.definitions[name].clone());
        }
        if let Some(parts) = schema["allOf"].as_array() {
            return self.make(&parts[0]);
        }
        if let Some(options) = schema["anyOf"].as_array() {
            return self.choose(options);
        }
        match (schema["type"].as_str(), schema["properties"].as_object()) {
            (Some("object"), Some(properties)) => {
                let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
                let left_out = |key: &&Json| *key != "path" && *key != "name";
                self.missing += required.iter().filter(left_out).count();
                self.map(properties)
            }
            (Some("object"), None) => json!({ "x": self.make(&schema["additionalProperties"]) }),
            (Some("array"), _) => json!([self.make(&schema["items"])]),
            _ => Json::Null,
        }
    }

    fn choose(&mut self, options: &[Json]) -> Json {
        let before = (self.maps, self.missing);
        let mut made: Vec<(Json, usize, usize)> = Vec::new();
        for option in options {
            (self.maps, self.missing) = (0, 0);
            let instance = self.make(option);
            if !instance.is_null() {
                made.push((instance, self.maps, self.missing));
            }
        }
        let last = made.len().saturating_sub(1);
        let chosen = made.into_iter().nth(self.choice.min(last)).unwrap_or_default();
        (self.maps, self.missing) = (before.0 + chosen.1, before.1 + chosen.2);
        chosen.0
    }

    fn map(&mut self, properties: &Map<String, Json>) -> Json {
        self.maps += 1;
        let mut map = Map::new();
        for (key, schema) in properties {
            let is_alias = schema["description"].as_str().unwrap().starts_with("Same as");
            if !is_alias {
                // Without its path a reference is not followed, without its name a schedule of a
                // list is not read.
                let value = match key.as_str() {
                    "path" => json!("x.yaml"),
                    "name" => json!("x"),
                    _ => self.make(schema),
                };
                map.insert(key.clone(), value);
            }
        }
        if let Some(extra) = self.extra {
            map.insert(extra.to_owned(), Json::Null);
        }
        Json::Object(map)
    }
}

fn faults_about_keys(document: &Json, start: &str) -> Vec<String> {
    let text = document.to_string();
    let files = [("heeler.yaml", text.as_str()), ("x.yaml", "{}")];
    match load_files(&files, &[]) {
        Ok(_) => Vec::new(),
        Err(faults) => {
            let found = faults.list.iter().filter(|fault| fault.message.starts_with(start));
            found.map(|fault| format!("{fault:?}")).collect()
        }
    }
}

#[test]
fn the_reader_knows_every_key_of_the_schema_and_no_other() {
    let schema = fleet_schema();
    for choice in 0..3 {
        let definitions = &schema["definitions"];
        let mut known = Instance { definitions, choice, extra: None, maps: 0, missing: 0 };
        let document = known.make(&schema);
        assert_eq!(faults_about_keys(&document, "unknown key"), Vec::<String>::new());
        let extra = Some("zz_unknown");
        let mut more = Instance { definitions, choice, extra, maps: 0, missing: 0 };
        let document = more.make(&schema);
        assert_eq!(faults_about_keys(&document, "unknown key").len(), more.maps, "{choice}");
    }
}

#[test]
fn only_keys_that_the_schema_requires_are_missed_so_every_default_can_be_read() {
    let schema = fleet_schema();
    for choice in 0..3 {
        let definitions = &schema["definitions"];
        let mut nulls = Instance { definitions, choice, extra: None, maps: 0, missing: 0 };
        let document = nulls.make(&schema);
        let missed = faults_about_keys(&document, "the key `");
        assert_eq!(missed.len(), nulls.missing, "{choice}: {missed:#?}");
    }
}

#[test]
fn every_key_of_the_schema_is_described() {
    fn visit(schema: &Json, path: &str) {
        for (key, value) in schema["properties"].as_object().unwrap() {
            let about = value["description"].as_str().unwrap_or_default();
            assert!(about.len() > 3 && about.ends_with(['.', ')']), "{path}.{key}: {about:?}");
        }
    }
    let schema = fleet_schema();
    visit(&schema, "fleet");
    for (name, definition) in schema["definitions"].as_object().unwrap() {
        if definition["properties"].is_object() {
            visit(definition, name);
        }
    }
}
