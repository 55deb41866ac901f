//! Schemas and reference page of workflows: files in git, made from the code that reads them.
//!
//! After a change of the keys: `cargo xtask docs`.

use expect_test::expect_file;
use heeler_config::workflow::WorkflowTemplate;
use heeler_config::{cron_schema, workflow_reference_markdown, workflow_schema};
use serde_json::Value as Json;

use crate::load_folder;

fn pretty(schema: &Json) -> String {
    format!("{}\n", serde_json::to_string_pretty(schema).unwrap())
}

#[test]
fn the_schema_of_a_workflow_file_is_in_git() {
    let schema = workflow_schema();
    expect_file!["../../../../docs/schema/workflow.schema.json"].assert_eq(&pretty(&schema));
}

#[test]
fn the_schema_of_a_cron_file_is_in_git() {
    expect_file!["../../../../docs/schema/cron.schema.json"].assert_eq(&pretty(&cron_schema()));
}

#[test]
fn the_reference_page_of_workflows_is_in_git() {
    let page = workflow_reference_markdown();
    assert!(!page.contains('{') || !page.contains("{phases}"), "a limit was left out");
    expect_file!["../../../../docs/workflow-reference.md"].assert_eq(&page);
}

#[test]
fn every_filter_that_the_page_names_is_there() {
    let page = workflow_reference_markdown();
    let (_, list) = page.split_once("a filter: ").unwrap();
    let (list, _) = list.split_once(" and others").unwrap();
    for name in list.split(", ").map(|name| name.trim_matches('`')) {
        let template = format!("{{{{ a | {name} }}}}");
        assert!(WorkflowTemplate::parse(&template).is_ok(), "there is no filter {name}");
    }
}

/// Makes a file with every key of a schema, each with nothing behind it.
fn every_key(schema: &Json, definitions: &Json) -> Json {
    let follow = |schema: &Json| match schema["$ref"].as_str() {
        Some(name) => definitions[name.rsplit('/').next().unwrap()].clone(),
        None => schema.clone(),
    };
    let schema = follow(schema);
    let options = ["anyOf", "allOf"].into_iter().find_map(|key| schema[key].as_array());
    if let Some(options) = options {
        let made = options.iter().map(|option| every_key(option, definitions));
        return made.into_iter().rfind(|made| !made.is_null()).unwrap_or_default();
    }
    match (schema["type"].as_str(), schema["properties"].as_object()) {
        (Some("object"), Some(properties)) => {
            let made =
                properties.iter().map(|(key, value)| (key.clone(), every_key(value, definitions)));
            Json::Object(made.collect())
        }
        (Some("array"), _) => Json::Array(vec![every_key(&schema["items"], definitions)]),
        _ => Json::Null,
    }
}

#[test]
fn the_reader_knows_every_key_of_the_schemas() {
    for (schema, kind) in [(workflow_schema(), "agent"), (cron_schema(), "cron")] {
        let mut file = every_key(&schema, &schema["definitions"]);
        file["kind"] = kind.into();
        let text = file.to_string();
        let faults = load_folder(&[("w.yaml", &text)]).unwrap_err();
        let unknown: Vec<_> =
            faults.list.iter().filter(|fault| fault.message.starts_with("unknown key")).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert!(text.contains("until_bash") || kind == "cron", "the schema was followed: {text}");
    }
}

#[test]
fn every_key_of_the_schemas_is_described() {
    for schema in [workflow_schema(), cron_schema()] {
        let definitions = schema["definitions"].as_object().unwrap().values();
        for object in definitions.chain([&schema]) {
            for (key, value) in object["properties"].as_object().into_iter().flatten() {
                let about = value["description"].as_str().unwrap_or_default();
                assert!(about.len() > 3 && about.ends_with(['.', ')']), "{key}: {about:?}");
            }
        }
    }
}
