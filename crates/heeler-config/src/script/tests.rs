//! Every step and option, every fault, and the page that describes them.

use std::time::Duration;

use expect_test::{Expect, expect};
use serde_json::{Value as Json, json};

use super::check::STEP_OPTIONS;
use super::{
    AgentScript, GarbageKind, ScriptApiError, ScriptExit, ScriptSessionKind, ScriptStep,
    ToolResultSource,
};
use crate::parse_script_file;

#[track_caller]
fn read(yaml: &str) -> Vec<ScriptStep> {
    let steps = parse_script_file("script.yaml".into(), yaml).unwrap();
    AgentScript::check(&steps).unwrap().steps
}

#[track_caller]
fn check(yaml: &str, expect: Expect) {
    let faults = parse_script_file("script.yaml".into(), yaml).unwrap_err();
    let messages: Vec<_> = faults.list.iter().map(|fault| fault.message.as_str()).collect();
    expect.assert_eq(&messages.join("\n"));
}

const EVERYTHING: &str = r#"
- say: Hello {prompt}
  chunks: 4
  delay: 20ms
- think: Well
  chunks: 2
  delay: 1ms
- run: echo hi
  description: says hi
  ask_permission: true
- read: a.txt
  ask_permission: false
- write: a.txt
  text: 42
  ask_permission: true
- edit: a.txt
  old: a
  new: b
  ask_permission: true
- tool: WebSearch
  input: {query: rust}
  result: [1, 2]
  fails: true
  ask_permission: true
- call: mcp__fleet__ask_human
  input: {text: hi}
  ask_permission: true
- question: Which?
  options: [red, 2]
  header: Pick
  multi: true
- sub_agent: look around
  prompt: Look!
  do: [{say: nothing}]
- background: sleep 1
  then: [{say: done}]
- retry: 2
  because: rate_limit
  delay: 1s
- error: 529
  message: no
- hang: true
  ignore_interrupt: true
  ignore_term: true
- hang
- sleep: 1s
- flood: 100
  size: 1k
- garbage: huge_line
  size: 1m
- raw: '{"type":"x"}'
- stderr: oops
- exit: 3
- exit: SIGKILL
- spawn: sleep 100
  setsid: true
  ignore_term: true
  clear_env: true
  hold_output: true
- cost: 0.5
- usage: {input: 100, output: 2}
- when: {prompt: a, answer: b, turn: 2, session: forked}
  do: [{say: yes}]
  else: [{say: "no"}]
- repeat: 3
  do: [{say: "{n}"}]
"#;

#[test]
fn every_step_and_option_is_read() {
    let steps = read(EVERYTHING);
    for (step, options) in STEP_OPTIONS {
        for word in std::iter::once(step).chain(*options) {
            assert!(EVERYTHING.contains(&format!("{word}:")), "{word} is not tried");
        }
    }
    assert_eq!(steps.len(), 27);
    assert!(matches!(&steps[0], ScriptStep::Say(speech)
        if speech.text == "Hello {prompt}" && speech.chunks == 4
            && speech.delay == Duration::from_millis(20)));
    let ScriptStep::Tool(write) = &steps[4] else { panic!("{:?}", steps[4]) };
    assert_eq!(write.input, json!({"file_path": "a.txt", "content": "42"}));
    assert!(write.ask_permission && write.result_source == ToolResultSource::Execution);
    let ScriptStep::Tool(search) = &steps[6] else { panic!("{:?}", steps[6]) };
    assert_eq!(
        search.result_source,
        ToolResultSource::Canned { result: "[1,2]".to_owned(), fails: true }
    );
    let ScriptStep::Tool(call) = &steps[7] else { panic!("{:?}", steps[7]) };
    let (server, tool) = ("fleet".to_owned(), "ask_human".to_owned());
    assert_eq!(call.result_source, ToolResultSource::Mcp { server, tool });
    assert!(
        matches!(&steps[8], ScriptStep::Question(question) if question.options == ["red", "2"])
    );
    assert!(matches!(steps[20], ScriptStep::Exit(ScriptExit::Code(3))));
    assert!(matches!(steps[21], ScriptStep::Exit(ScriptExit::Signal(9))));
    assert!(matches!(&steps[25], ScriptStep::When { condition, .. }
        if condition.turn == Some(2) && condition.session == Some(ScriptSessionKind::Forked)));
}

/// The page that describes the format.
const PAGE: &str = include_str!("../../../../docs/scripted.md");

#[test]
fn every_example_of_the_page_is_legal() {
    let blocks = PAGE.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut count = 0;
    for block in blocks {
        count += 1;
        // One shows a whole agent file.
        let script = match block.split_once("script:\n") {
            Some((_, script)) => script,
            None => block,
        };
        read(script);
    }
    assert_eq!(count, 13);
}

#[test]
fn the_page_names_every_step_option_and_word() {
    let named =
        |word: &str| PAGE.contains(&format!("`{word}`")) || PAGE.contains(&format!("`{word}:"));
    for (step, options) in STEP_OPTIONS {
        for word in std::iter::once(step).chain(*options) {
            assert!(named(word), "{word}");
        }
    }
    for status in ScriptApiError::ALL.iter().filter_map(|failure| failure.status()) {
        assert!(PAGE.contains(&format!(" {status}")), "{status}");
    }
    let words = ScriptApiError::ALL.iter().map(|word| word.as_str());
    let words = words.chain(GarbageKind::ALL.iter().map(|word| word.as_str()));
    for word in words.chain(ScriptSessionKind::ALL.iter().map(|word| word.as_str())) {
        assert!(named(word), "{word}");
    }
}

#[test]
fn an_option_is_never_the_name_of_a_step() {
    for (_, options) in STEP_OPTIONS {
        for option in *options {
            assert!(STEP_OPTIONS.iter().all(|(step, _)| step != option), "{option}");
        }
    }
}

#[test]
fn an_unknown_step_is_told_with_the_nearest_one() {
    check("- say: hi\n- sya: ho\n", expect!["step 2: unknown step `sya`; did you mean `say`?"]);
    check(
        "- dance: tango\n",
        expect![
            "step 1: unknown step `dance`; expected one of: say, think, run, read, write, edit, tool, call, question, sub_agent, background, retry, error, hang, sleep, flood, garbage, raw, stderr, exit, spawn, cost, usage, when, repeat"
        ],
    );
    check(
        "- say\n- 7\n- []\n- {}\n",
        expect![[r#"
        step 1: `say` needs a value: `say: …`
        step 2: a step looks like `say: Hello`
        step 3: a step looks like `say: Hello`
        step 4: a step looks like `say: Hello`"#]],
    );
}

#[test]
fn an_unknown_option_is_told_with_the_nearest_one() {
    check(
        "- say: hi\n  delya: 2s\n",
        expect!["step 1: `say` has no option `delya`; did you mean `delay`?"],
    );
    check(
        "- sleep: 2s\n  quietly: true\n",
        expect!["step 1: `sleep` has no option `quietly`; it has none"],
    );
    check(
        "- usage: {inptu: 2}\n- when: {promt: x}\n  do: [hang]\n",
        expect![[r#"
            step 1: `usage` has no key `inptu`; did you mean `input`?
            step 2: `when` has no key `promt`; did you mean `prompt`?"#]],
    );
}

#[test]
fn two_steps_in_one_are_told_apart() {
    check(
        "- say: hi\n  run: ls\n",
        expect!["step 1: `say` and `run` are two steps; each needs its own `-`"],
    );
}

#[test]
fn every_fault_of_every_step_is_found_at_once() {
    check(
        r#"
- say: {prompt}
- say:
- write: a.txt
- edit: {a: 1}
  old: x
- tool: X
  input: 7
- call: send_file
- question: Which?
  options: [one]
- sub_agent: x
- background: x
  then: y
- retry: 0
  because: gravity
- error: 418
- hang: 5s
- sleep: 5
- flood: many
  size: 2m
- garbage: confetti
- exit: 300
- spawn: x
  setsid: please
- cost: free
- usage: 7
- when: soon
  do: []
- repeat: 2
  do:
    - repeat: 2000000
      do: [{say: hi, chunks: 0}]
"#,
        expect![[r#"
            step 1: put text that starts with a brace in quotes: `say: "{prompt} …"`
            step 2: expected text behind `say`
            step 3: `text` is missing
            step 4: expected text behind `edit`
            step 4: `new` is missing
            step 5: `result` is missing
            step 5: expected a map
            step 6: expected a tool such as `mcp__server__tool`
            step 7: `question` needs `options`: a list of two or more texts
            step 8: `do` is missing: a list of steps
            step 9: `then` is a list of steps
            step 10: `retry` is a whole number from 1 to 1000
            step 10: `because` is one of: authentication, token_expired, rate_limit, overloaded, server_error, invalid_request, model_not_found, network; or an HTTP status: 400, 401, 404, 429, 500, 529
            step 11: `error` is one of: authentication, token_expired, rate_limit, overloaded, server_error, invalid_request, model_not_found, network; or an HTTP status: 400, 401, 404, 429, 500, 529
            step 12: `hang` is for ever: write `hang: true`, or use `sleep`
            step 13: `sleep` is a length such as `200ms`: the unit is missing: s, m, h, d or w
            step 14: `flood` is a whole number from 1 to 100000000
            step 14: `size` is a length such as `200` or `4k`, at most `1m`
            step 15: `garbage` is one of: nul, invalid_utf8, not_json, half_json, not_an_object, unknown_type, wrong_shape, blank_line, no_newline, huge_line
            step 16: expected a code from 0 to 255 or one of: SIGHUP, SIGINT, SIGQUIT, SIGABRT, SIGKILL, SIGSEGV, SIGTERM
            step 17: `setsid` is true or false
            step 18: expected US dollars such as 0.05
            step 19: expected tokens: `usage: {input: 100, output: 20}`
            step 20: expected a condition: `when: {prompt: deploy}`
            step 20: there is no step
            step 21, do: step 1: `repeat` is a whole number from 1 to 1000000
            step 21, do: step 1, do: step 1: `chunks` is a whole number from 1 to 10000"#]],
    );
}

#[test]
fn options_of_hang_within_it_are_told_where_they_go() {
    check(
        "- hang: {ignore_interrupt: true}\n",
        expect!["step 1: options stand beside `hang`: `- {hang: true, ignore_interrupt: true}`"],
    );
    assert!(
        parse_script_file("script.yaml".into(), "- {hang: true, ignore_interrupt: true}\n").is_ok()
    );
}

#[test]
fn a_script_has_a_most_number_of_steps() {
    let steps = vec![json!({"say": "hi"}); super::STEPS_MAX + 1];
    let faults = AgentScript::check(&steps).unwrap_err();
    assert_eq!(faults[0].to_string(), "script: a script has at most 10000 steps");
    assert!(AgentScript::check(&steps[1..]).is_ok());
    let nested = vec![json!({"repeat": 1, "do": vec![json!({"say": "hi"}); 200]}); 60];
    assert!(AgentScript::check(&nested).unwrap_err()[0].message.contains("at most"));
}

proptest::proptest! {
    #[test]
    fn no_json_panics(text in "[a-z:{}\\[\\]0-9\", ]{0,60}") {
        let step: Json = serde_json::from_str(&text).unwrap_or(Json::String(text));
        let _outcome = AgentScript::check(&[step]);
    }

    #[test]
    fn no_yaml_panics(text in "(- )?[a-z:{}\\[\\]0-9\", \n-]{0,80}") {
        let _outcome = parse_script_file("script.yaml".into(), &text);
    }
}
