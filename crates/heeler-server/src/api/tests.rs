//! Tests of the OpenAPI description: it equals the documented one, and covers every route.

use std::collections::HashSet;

use expect_test::expect_file;
use serde_json::Value;

use super::openapi_json;

/// Lists every operation: method with path, and its description.
fn operations(description: &Value) -> Vec<(String, Value)> {
    let paths = description["paths"].as_object().unwrap();
    let each = |(path, item): (&String, &Value)| {
        let methods = item.as_object().unwrap().iter();
        let methods = methods.map(|(method, said)| (format!("{method} {path}"), said.clone()));
        methods.collect::<Vec<_>>()
    };
    paths.iter().flat_map(each).collect()
}

#[test]
fn golden_openapi_document_is_up_to_date() {
    let text = serde_json::to_string_pretty(openapi_json()).unwrap() + "\n";
    expect_file!["../../../../docs/openapi.json"].assert_eq(&text);
}

#[test]
fn every_route_says_its_scope_how_to_log_in_and_what_a_problem_is() {
    let description = openapi_json();
    assert!(description["openapi"].as_str().unwrap().starts_with("3.1"));
    let all = operations(description);
    assert!(all.len() > 40, "{}", all.len());
    for (name, said) in &all {
        let scope = said["x-heeler-scope"].as_str().unwrap_or_default();
        let is_read = name.starts_with("get ");
        assert!(is_read || scope != "read", "{name}: {scope}");
        assert!(["read", "operate", "admin"].contains(&scope), "{name}: {scope}");
        assert_eq!(said["security"].as_array().map(Vec::len), Some(2), "{name}");
        let problem = &said["responses"]["default"]["content"]["application/problem+json"];
        assert_eq!(problem["schema"]["$ref"], "#/components/schemas/ProblemDetails", "{name}");
        let headers: Vec<&str> = said["parameters"]
            .as_array()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .filter(|parameter| parameter["in"] == "header")
            .filter_map(|parameter| parameter["name"].as_str())
            .collect();
        let is_keyed = !is_read && said["tags"][0] != "access";
        assert_eq!(headers.contains(&"Idempotency-Key"), is_keyed, "{name}");
    }
}

/// Lists the components that the description refers to.
fn references(of: &Value) -> Vec<&str> {
    match of {
        Value::Object(map) => {
            let own = map.get("$ref").and_then(Value::as_str);
            own.into_iter().chain(map.values().flat_map(references)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_name_in_the_description_leads_somewhere_and_every_operation_has_its_own() {
    let description = openapi_json();
    for reference in references(description) {
        let pointer = reference.trim_start_matches('#');
        assert!(description.pointer(pointer).is_some(), "{reference}");
    }
    let all = operations(description);
    let names: HashSet<&str> =
        all.iter().map(|(_, said)| said["operationId"].as_str().unwrap()).collect();
    assert_eq!(names.len(), all.len());
    for (name, said) in &all {
        for (code, reply) in said["responses"].as_object().unwrap() {
            assert!(reply["description"].is_string(), "{name} {code}");
        }
    }
}
