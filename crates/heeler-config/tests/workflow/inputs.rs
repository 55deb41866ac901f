//! What a run of a workflow is given.

use expect_test::expect;
use heeler_config::workflow::inputs::resolve_inputs;
use serde_json::{Value as Json, json};

use crate::{load_with, settings};

const INPUTS: &str = "{title: {}, n: {type: number, default: 1, options: [1, 2]}, \
    yes: {type: boolean, default: false}, list: {type: list, default: []}}";

fn given(inputs: &str, given: Json) -> String {
    let text = format!("name: w\nagent: coder\ninputs: {inputs}\nphases: [{{name: a, prompt: x}}]");
    let workflow = load_with(&[("w.yaml", &text)], &settings()).unwrap().workflow;
    let Json::Object(given) = given else { unreachable!("inputs are a map") };
    match resolve_inputs(&workflow, given) {
        Ok(all) => Json::Object(all).to_string(),
        Err(faults) => faults.to_string(),
    }
}

#[test]
fn text_is_read_as_what_the_input_is() {
    let said = given(INPUTS, json!({"title": 7, "n": "2", "yes": "yes", "list": "a, b,"}));
    assert_eq!(said, r#"{"title":"7","n":2,"yes":true,"list":["a","b"]}"#);
    let said = given(INPUTS, json!({"title": "", "list": "[1, \"x\"]", "yes": null}));
    assert_eq!(said, r#"{"title":"","n":1,"yes":false,"list":[1,"x"]}"#);
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let said =
        given(INPUTS, json!({"titel": "x", "zz": 1, "n": "3", "yes": "maybe", "list": {"a": 1}}));
    expect![[r#"
        there is no input `titel`
        did you mean `title`?
        there is no input `zz`
        there are: title, n, yes, list
        `title` must be given
        `n` is one of 1, 2
        "3" is not
        `yes` must be a boolean, but "maybe" is not
        `list` must be a list, but {"a":1} is not"#]]
    .assert_eq(&said.replace("; ", "\n"));
    assert_eq!(
        given(INPUTS, json!({"title": [], "n": "two"})),
        "`title` must be a string, but [] is not; `n` must be a number, but \"two\" is not"
    );
}

#[test]
fn a_workflow_that_asks_for_nothing_may_be_given_anything() {
    assert_eq!(given("{}", json!({"a": {"b": 1}, "c": "x"})), r#"{"a":{"b":1},"c":"x"}"#);
}

#[test]
fn inputs_have_a_size() {
    let fits = "x".repeat(heeler_config::workflow::inputs::INPUT_BYTES_MAX - 8);
    assert!(given("{}", json!({"a": fits})).starts_with("{\"a\""));
    let said = given("{}", json!({"a": format!("{fits}x")}));
    assert_eq!(
        said,
        "the inputs have 262145 bytes; the limit is 262144: pass the path of a file instead"
    );
}
