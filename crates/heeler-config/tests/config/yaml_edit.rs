//! Changes of single values in a text with comments.

use expect_test::{Expect, expect};
use heeler_config::{
    EDITED_BYTES_MAX, YamlEditError, YamlPathStep, read_yaml_values, set_yaml_value,
};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

const AGENT: &str = "# The coder.
name: coder # short
description: old text
# Money.
budget:
  job: 0.5 # dollars
schedules:
  # Every night.
  nightly:
    cron: '0 3 * * *'
    prompt: |
      Update the dependencies.
      Open a pull request.

tools: [Read, Write] # two
mcp: {a: {command: x}}
";

fn path(steps: &Json) -> Vec<YamlPathStep> {
    let step = |step: &Json| match step {
        Json::String(key) => YamlPathStep::Key(key.clone()),
        index => YamlPathStep::Index(index.as_u64().unwrap() as usize),
    };
    steps.as_array().unwrap().iter().map(step).collect()
}

/// Shows the lines that an edit removes and adds.
#[track_caller]
fn check_text(text: &str, steps: &Json, value: &Json, expect: &Expect) {
    let changed = match set_yaml_value(text, &path(steps), value) {
        Ok(changed) => changed,
        Err(error) => return expect.assert_eq(&error.to_string()),
    };
    let (before, after): (Vec<&str>, Vec<&str>) =
        (text.lines().collect(), changed.lines().collect());
    let same = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
    let (before, after) = (&before[same..], &after[same..]);
    let tail = before.iter().rev().zip(after.iter().rev()).take_while(|(a, b)| a == b).count();
    let lines = |mark: &'static str, lines: &[&str]| -> Vec<String> {
        lines[..lines.len() - tail].iter().map(|line| format!("{mark}{line}")).collect()
    };
    expect.assert_eq(&[lines("-", before), lines("+", after)].concat().join("\n"));
}

#[track_caller]
fn check(steps: Json, value: Json, expect: Expect) {
    check_text(AGENT, &steps, &value, &expect);
}

#[test]
fn a_scalar_is_replaced_and_its_comment_stays() {
    check(
        json!(["name"]),
        json!("fixer"),
        expect![[r#"
        -name: coder # short
        +name: fixer # short"#]],
    );
    check(
        json!(["budget", "job"]),
        json!(2),
        expect![[r#"
        -  job: 0.5 # dollars
        +  job: 2 # dollars"#]],
    );
    check(
        json!(["schedules", "nightly", "cron"]),
        json!("5 4 * * *"),
        expect![[r#"
        -    cron: '0 3 * * *'
        +    cron: "5 4 * * *""#]],
    );
    check(
        json!(["tools", 1]),
        json!("Bash(git: *)"),
        expect![[r#"
        -tools: [Read, Write] # two
        +tools: [Read, "Bash(git: *)"] # two"#]],
    );
    check(
        json!(["description"]),
        json!("on"),
        expect![[r#"
        -description: old text
        +description: "on""#]],
    );
}

#[test]
fn texts_of_several_lines_are_blocks() {
    check(
        json!(["description"]),
        json!("One.\nTwo: 2\n"),
        expect![[r#"
        -description: old text
        +description: |
        +  One.
        +  Two: 2"#]],
    );
    check(
        json!(["schedules", "nightly", "prompt"]),
        json!("Be\nquick."),
        expect![[r#"
        -    prompt: |
        -      Update the dependencies.
        -      Open a pull request.
        +    prompt: |-
        +      Be
        +      quick."#]],
    );
    check(
        json!(["schedules", "nightly", "prompt"]),
        json!("Short."),
        expect![[r#"
        -    prompt: |
        -      Update the dependencies.
        -      Open a pull request.
        +    prompt: Short."#]],
    );
    check(
        json!(["description"]),
        json!(" leading\nspace"),
        expect![[r#"
        -description: old text
        +description: " leading\nspace""#]],
    );
}

#[test]
fn missing_values_are_added_behind_the_last_one() {
    check(json!(["model"]), json!("opus"), expect!["+model: opus"]);
    check(json!(["budget", "day"]), json!(5), expect!["+  day: 5"]);
    check(
        json!(["schedules", "hourly"]),
        json!({"interval": "1h", "enabled": false}),
        expect![[r#"
        +  hourly:
        +    interval: "1h"
        +    enabled: false"#]],
    );
    check(
        json!(["hooks", "after_run", 0]),
        json!({"type": "shell", "command": "true"}),
        expect![[r#"
        +hooks:
        +  after_run:
        +    - type: shell
        +      command: "true""#]],
    );
    check(
        json!(["tools", 2]),
        json!("Bash"),
        expect![[r#"
        -tools: [Read, Write] # two
        +tools: [Read, Write, Bash] # two"#]],
    );
    check(
        json!(["mcp", "a", "env", "K"]),
        json!("v"),
        expect![[r#"
        -mcp: {a: {command: x}}
        +mcp: {a: {command: x, env: {K: v}}}"#]],
    );
}

#[test]
fn values_are_removed_with_what_they_leave_empty() {
    check(
        json!(["budget", "job"]),
        Json::Null,
        expect![[r#"
        -budget:
        -  job: 0.5 # dollars"#]],
    );
    check(
        json!(["schedules", "nightly", "prompt"]),
        Json::Null,
        expect![[r#"
        -    prompt: |
        -      Update the dependencies.
        -      Open a pull request."#]],
    );
    check(
        json!(["tools", 0]),
        Json::Null,
        expect![[r#"
        -tools: [Read, Write] # two
        +tools: [Write] # two"#]],
    );
    check(json!(["mcp", "a", "command"]), Json::Null, expect!["-mcp: {a: {command: x}}"]);
    check(json!(["model"]), Json::Null, expect!["there is no such value"]);
}

#[test]
fn lists_of_maps_are_edited_by_their_items() {
    let text = "phases:\n- name: build # first\n  prompt: Build.\n\n- name: test\n  depends_on: [build]\n# end\n";
    let check =
        |steps: Json, value: Json, expect: Expect| check_text(text, &steps, &value, &expect);
    check(
        json!(["phases", 0, "name"]),
        json!("make"),
        expect![[r#"
        -- name: build # first
        +- name: make # first"#]],
    );
    check(
        json!(["phases", 0, "name"]),
        Json::Null,
        expect![[r#"
        -- name: build # first
        -  prompt: Build.
        +- prompt: Build."#]],
    );
    check(
        json!(["phases", 1]),
        Json::Null,
        expect![[r#"
        -- name: test
        -  depends_on: [build]"#]],
    );
    check(
        json!(["phases", 0]),
        Json::Null,
        expect![[r#"
        -- name: build # first
        -  prompt: Build."#]],
    );
    check(
        json!(["phases", 2]),
        json!({"name": "ship", "prompt": "Ship\nit.", "depends_on": ["test"]}),
        expect![[r#"
        +- name: ship
        +  prompt: |-
        +    Ship
        +    it.
        +  depends_on:
        +    - test"#]],
    );
    check(
        json!(["phases", 1, "gate"]),
        json!({"name": "ok"}),
        expect![[r#"
        +  gate:
        +    name: ok"#]],
    );
}

#[test]
fn empty_values_and_files_are_filled() {
    let check =
        |text: &str, steps: Json, expect: Expect| check_text(text, &steps, &json!("x"), &expect);
    check("", json!(["name"]), expect!["+name: x"]);
    check(
        "# only a comment",
        json!(["a", "b"]),
        expect![[r#"
        +a:
        +  b: x"#]],
    );
    check(
        "name: # none\nb: 1\n",
        json!(["name"]),
        expect![[r#"
        -name: # none
        +name: x # none"#]],
    );
    check(
        "name: ~\n",
        json!(["name"]),
        expect![[r#"
        -name: ~
        +name: x"#]],
    );
    check(
        "a: {}\n",
        json!(["a", "b"]),
        expect![[r#"
        -a: {}
        +a:
        +  b: x"#]],
    );
    check(
        "a: [1, {b: {}}]\n",
        json!(["a", 1, "b", "c"]),
        expect![[r#"
        -a: [1, {b: {}}]
        +a: [1, {b: {c: x}}]"#]],
    );
    check(
        "{a: 1}\n",
        json!(["b"]),
        expect![[r#"
        -{a: 1}
        +{a: 1, b: x}"#]],
    );
}

#[test]
fn an_edit_that_would_change_something_else_is_refused() {
    let check =
        |text: &str, steps: Json, expect: Expect| check_text(text, &steps, &json!("x"), &expect);
    check(
        "a: &it {b: 1}\nc: *it\n",
        json!(["c", "b"]),
        expect!["this layout of YAML cannot be edited automatically"],
    );
    check(
        "base: &it\n  b: 1\nc:\n  <<: *it\n",
        json!(["c", "b"]),
        expect!["this layout of YAML cannot be edited automatically"],
    );
    check(
        "a: text\n",
        json!(["a", "b"]),
        expect!["the parent of the value is neither a map nor a list"],
    );
    check(
        "a: [1]\n",
        json!(["a", "b"]),
        expect!["the parent of the value is neither a map nor a list"],
    );
    check("a: [\n", json!(["a"]), expect!["the text is not valid YAML"]);
    check("a: [1]\n", json!(["a", 4]), expect!["there is no such value"]);
    check("", json!(["a", 1]), expect!["there is no such value"]);
    check("a: [1]\n", json!(["a", 1, "b", 7]), expect!["there is no such value"]);
}

#[test]
fn no_text_or_path_takes_the_editor_long() {
    let set = |text: &str, steps: Json| set_yaml_value(text, &path(&steps), &json!(1));
    for index in [1_u64 << 40, u64::MAX] {
        assert_eq!(set("a: [1]", json!(["a", index])), Err(YamlEditError::NotFound));
        assert_eq!(set("", json!(["a", index])), Err(YamlEditError::NotFound));
    }
    // Each further level must not double the time.
    let deep = format!("a: {}1{}\n", "[".repeat(60), "]".repeat(60));
    assert_eq!(set(&deep, json!(["b"])).unwrap(), format!("{deep}b: 1\n"));
    let deep = format!("a:\n  {}1\n", "- ".repeat(60));
    assert_eq!(set(&deep, json!(["b"])).unwrap(), format!("{deep}b: 1\n"));
    let large = "a: 1 # x\n#".to_owned() + &"x".repeat(EDITED_BYTES_MAX);
    assert_eq!(set(&large, json!(["a"])), Err(YamlEditError::TooLarge));
    // Comments that look like brackets.
    let odd: String = (0..500).map(|number| format!("k{number}:\n  # {{\n  b: 1\n")).collect();
    let _refused = set(&odd, json!(["new"]));
}

#[test]
fn line_ends_of_windows_stay() {
    let set =
        |steps, value| set_yaml_value("a: 1\r\nb:\r\n  c: 2\r\n", &path(&steps), &value).unwrap();
    assert_eq!(set(json!(["a"]), json!(3)), "a: 3\r\nb:\r\n  c: 2\r\n");
    assert_eq!(
        set(json!(["b", "d"]), json!({"e": 1})),
        "a: 1\r\nb:\r\n  c: 2\r\n  d:\r\n    e: 1\r\n"
    );
    assert_eq!(set(json!(["b", "c"]), Json::Null), "a: 1\r\n");
}

#[test]
fn values_are_read_as_they_are_written() {
    let values = read_yaml_values("a: ${HOME}\nb: '1'\nc: 1\nd: [true, ~]\n").unwrap();
    assert_eq!(values, json!({"a": "${HOME}", "b": "1", "c": 1, "d": [true, null]}));
    assert_eq!(read_yaml_values("a: ["), None);
}

fn any_scalar() -> impl Strategy<Value = Json> {
    prop_oneof![
        any::<String>().prop_map(Json::String),
        "[ -~\n]{0,40}".prop_map(Json::String),
        any::<bool>().prop_map(Json::Bool),
        any::<i32>().prop_map(Json::from),
    ]
}

proptest! {
    /// Whatever a person types into a form becomes exactly that value, and the file stays valid.
    #[test]
    fn any_text_can_be_a_value(value in any_scalar()) {
        let text = value.as_str().unwrap_or_default();
        // YAML cannot hold these characters in any form that its parser keeps.
        prop_assume!(!text.contains('\u{0}'));
        for steps in [json!(["description"]), json!(["new"]), json!(["schedules", "nightly", "prompt"]), json!(["mcp", "a", "command"])] {
            let changed = set_yaml_value(AGENT, &path(&steps), &value);
            prop_assert!(changed.is_ok(), "{value} at {steps}: {changed:?}");
            let comments = |text: &str| ["# The coder.", "# short", "# Money.", "# dollars", "# Every night.", "# two"].iter().all(|it| text.contains(it));
            prop_assert!(comments(&changed.unwrap()));
        }
    }
}
