//! Every step, as it sounds in the stream.

use expect_test::{Expect, expect};
use heeler_config::script::ScriptExit;
use heeler_model::message::parse_line;
use heeler_model::outcome::{AgentProcessExit, RunOutcomeBuilder};
use heeler_model::run::ErrorClass;
use serde_json::json;

use super::super::commands::OUTPUT_BYTES_MAX;
use super::{ScriptedAgentHandle, ScriptedFixture, fresh, start};

#[track_caller]
fn check(yaml: &str, expect: Expect) {
    let (shown, exit) = ScriptedFixture::new().perform(yaml);
    expect.assert_eq(&format!("{shown}\n{exit:?}"));
}

#[test]
fn texts_are_said_one_line_a_block() {
    check(
        "- think: hm\n- say: Hello\n- say: You said {prompt}\n",
        expect![[r#"
        system init model="scripted"
        assistant thinks "hm"
        assistant "Hello"
        assistant "You said do it"
        result success completed, 1 turns: "You said do it"
        Code(0)"#]],
    );
}

#[test]
fn a_thought_and_what_follows_are_one_message_and_a_second_text_is_another() {
    let stage = ScriptedFixture::new();
    let mut talk =
        start(stage.play("- think: hm\n- say: a\n- run: true\n- say: b\n- say: c\n", fresh()));
    talk.prompt("go");
    talk.end();
    let said = talk.seen.iter().filter(|line| line["type"] == "assistant");
    let ids: Vec<_> = said.map(|line| line["message"]["id"].clone()).collect();
    assert_eq!(ids[0], ids[1]);
    assert_eq!(ids[1], ids[2]);
    assert_ne!(ids[2], ids[3]);
    assert_ne!(ids[3], ids[4]);
}

#[test]
fn pieces_are_told_before_the_whole_when_asked_for() {
    let stage = ScriptedFixture::new();
    let mut play = stage.play("- say: abcdef\n  chunks: 3\n  delay: 1ms\n- run: 'true'\n", fresh());
    play.partial = true;
    let mut talk = start(play);
    talk.prompt("go");
    talk.end();
    expect![[r#"
        system init model="scripted"
        stream_event message_start
        stream_event content_block_start
        stream_event content_block_delta {"type":"text_delta","text":"ab"}
        stream_event content_block_delta {"type":"text_delta","text":"cd"}
        stream_event content_block_delta {"type":"text_delta","text":"ef"}
        assistant "abcdef"
        stream_event content_block_stop
        stream_event content_block_start
        assistant tool_use "Bash" {"command":"true"}
        stream_event content_block_stop
        stream_event message_delta {"stop_reason":"tool_use","stop_sequence":null}
        stream_event message_stop
        user result "(Bash completed with no output)"
        result success completed, 2 turns: "abcdef""#]]
    .assert_eq(&talk.shown());
}

#[test]
fn commands_are_really_run_where_the_agent_works() {
    check(
        "- run: echo $SCRIPT_PROMPT, $SCRIPT_TURN > out; cat out; basename $PWD\n- say: It said {output}\n",
        expect![[r#"
            system init model="scripted"
            assistant tool_use "Bash" {"command":"echo $SCRIPT_PROMPT, $SCRIPT_TURN > out; cat out; basename $PWD"}
            user result "do it, 1\nwork"
            assistant "It said do it, 1\nwork"
            result success completed, 2 turns: "It said do it, 1\nwork"
            Code(0)"#]],
    );
    check(
        "- run: echo bad >&2; exit 3\n- run: kill -9 $$\n- run: 'true'\n",
        expect![[r#"
        system init model="scripted"
        assistant tool_use "Bash" {"command":"echo bad >&2; exit 3"}
        user error "Exit code 3\nbad"
        assistant tool_use "Bash" {"command":"kill -9 $$"}
        user error "Exit code 137"
        assistant tool_use "Bash" {"command":"true"}
        user result "(Bash completed with no output)"
        result success completed, 4 turns: ""
        Code(0)"#]],
    );
}

#[test]
fn a_prompt_is_no_part_of_a_command() {
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- run: echo {prompt}\n", fresh()));
    talk.prompt("; touch owned");
    talk.end();
    assert_eq!(talk.result()["is_error"], false);
    assert!(!stage.work().join("owned").exists());
    assert!(talk.shown().contains(r#"result "{prompt}""#), "{}", talk.shown());
}

#[test]
fn a_grandchild_that_keeps_the_output_open_holds_nobody_up() {
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- run: sleep 600 & echo $!\n- say: '{output}'\n", fresh()));
    talk.prompt("go");
    talk.end();
    let pid: i32 = talk.result()["result"].as_str().unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_command_is_no_argument_and_has_nothing_to_read() {
    let stage = ScriptedFixture::new();
    let script = "- run: |-\n    tr '\\0' ' ' < /proc/$$/cmdline # hush-hush-hush\n    cat\n";
    let mut talk = start(stage.play(script, fresh()));
    talk.prompt("go");
    talk.end();
    let result = talk.seen.iter().find(|line| line["type"] == "user").unwrap();
    let text = result["message"]["content"][0]["content"].as_str().unwrap();
    assert_eq!(text, "/bin/sh -c exec 3<&0 </dev/null; . /dev/fd/3");
}

#[test]
fn output_is_cut_at_its_limit() {
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- run: head -c 5000000 /dev/zero | tr '\\0' x\n", fresh()));
    talk.prompt("go");
    talk.end();
    let result = talk.seen.iter().find(|line| line["type"] == "user").unwrap();
    let text = result["message"]["content"][0]["content"].as_str().unwrap();
    assert!(text.ends_with("x\n[805696 more bytes]"), "{}", &text[text.len() - 40..]);
}

#[test]
fn output_that_is_cut_within_a_secret_holds_no_half_of_it() {
    let stage = ScriptedFixture::new();
    let before = OUTPUT_BYTES_MAX - 10;
    let script = format!("- run: head -c {before} /dev/zero | tr '\\0' x; echo hush-hush-hush\n");
    let mut talk = start(stage.play_with(&script, fresh(), &["hush-hush-hush"]));
    talk.prompt("go");
    talk.end();
    let result = talk.seen.iter().find(|line| line["type"] == "user").unwrap();
    let text = result["message"]["content"][0]["content"].as_str().unwrap();
    assert!(text.ends_with("x\n[5 more bytes]"), "{}", &text[text.len() - 40..]);
}

#[test]
fn files_are_really_read_written_and_changed() {
    let stage = ScriptedFixture::new();
    let script = "
- write: a.txt
  text: one two for {prompt}
- edit: a.txt
  old: two
  new: three
- read: a.txt
- say: It holds {output}
- edit: a.txt
  old: two
  new: x
- edit: a.txt
  old: o
  new: x
- read: none.txt
- write: no/such/folder
  text: x
";
    let (shown, _) = stage.perform(script);
    let text = std::fs::read_to_string(stage.work().join("a.txt")).unwrap();
    assert_eq!(text, "one three for do it");
    expect![[r#"
        system init model="scripted"
        assistant tool_use "Write" {"file_path":"a.txt","content":"one two for do it"}
        user result "File created successfully at: WORK/a.txt"
        assistant tool_use "Edit" {"file_path":"a.txt","old_string":"two","new_string":"three"}
        user result "The file WORK/a.txt has been updated."
        assistant tool_use "Read" {"file_path":"a.txt"}
        user result "one three for do it"
        assistant "It holds one three for do it"
        assistant tool_use "Edit" {"file_path":"a.txt","old_string":"two","new_string":"x"}
        user error "cannot edit WORK/a.txt: the old text is not in it"
        assistant tool_use "Edit" {"file_path":"a.txt","old_string":"o","new_string":"x"}
        user error "cannot edit WORK/a.txt: the old text is in it 3 times"
        assistant tool_use "Read" {"file_path":"none.txt"}
        user error "cannot read WORK/none.txt: No such file or directory (os error 2)"
        assistant tool_use "Write" {"file_path":"no/such/folder","content":"x"}
        user error "cannot write WORK/no/such/folder: No such file or directory (os error 2)"
        result success completed, 8 turns: "It holds one three for do it""#]]
    .assert_eq(&shown.replace(stage.work().as_str(), "WORK"));
}

#[test]
fn results_can_be_given() {
    check(
        "- tool: WebSearch\n  input: {query: 'about {prompt}'}\n  result: found {prompt}\n- tool: X\n  result: {a: [1]}\n  fails: true\n",
        expect![[r#"
            system init model="scripted"
            assistant tool_use "WebSearch" {"query":"about do it"}
            user result "found do it"
            assistant tool_use "X" {}
            user error "{\"a\":[1]}"
            result success completed, 3 turns: ""
            Code(0)"#]],
    );
}

#[test]
fn a_sub_agent_speaks_within_its_tool_use() {
    check(
        "
- say: first
- sub_agent: look at {prompt}
  prompt: Please {prompt}
  do:
    - say: looking
    - run: echo found
    - say: done
- say: it reports {output}
",
        expect![[r#"
            system init model="scripted"
            assistant "first"
            assistant tool_use "Agent" {"description":"look at do it","prompt":"Please do it","subagent_type":"general-purpose"}
            system task_started description="look at do it"
              within: user "Please do it"
              within: assistant "looking"
              within: assistant tool_use "Bash" {"command":"echo found"}
              within: user result "found"
              within: assistant "done"
            system task_updated
            system task_notification status="completed" summary="done"
            user result "done"
            assistant "it reports done"
            result success completed, 2 turns: "it reports done"
            Code(0)"#]],
    );
}

#[test]
fn a_command_in_the_background_ends_in_a_turn_of_its_own() {
    let stage = ScriptedFixture::new();
    let script = "
- background: while [ ! -e go ]; do sleep 0.01; done; echo finished; exit 4
  then:
    - say: it said {output}
- say: started
";
    let mut talk = start(stage.play(script, fresh()));
    talk.prompt("go");
    talk.until("result success");
    std::fs::write(stage.work().join("go"), "").unwrap();
    talk.until("result success");
    assert_eq!(talk.end(), ScriptExit::Code(0));
    expect![[r#"
        system init model="scripted"
        assistant tool_use "Bash" {"command":"while [ ! -e go ]; do sleep 0.01; done; echo finished; exit 4","run_in_background":true}
        system background_tasks_changed
        system task_started description="while [ ! -e go ]; do sleep 0.01; done; echo finished; exit 4"
        user result "Command running in background with ID: ID."
        assistant "started"
        result success completed, 2 turns: "started"
        system task_updated
        system task_notification status="failed" summary="Background command \"while [ ! -e go ]; do sleep 0.01; done; echo finished; exit 4\" failed (exit code 4)"
        system background_tasks_changed
        system init model="scripted"
        assistant "it said finished"
        result success completed, 1 turns: "it said finished""#]].assert_eq(&without_ids(&talk));
    let origin = &talk.result()["origin"];
    assert_eq!(*origin, json!({"kind": "task-notification"}));
}

/// Shows a talk with the one id that a text holds left out.
fn without_ids(talk: &ScriptedAgentHandle) -> String {
    let shown = talk.shown();
    let id = shown.split_once("with ID: ").map_or("", |(_, rest)| &rest[..9]);
    shown.replace(id, "ID")
}

#[test]
fn a_background_command_ends_with_the_agent() {
    let stage = ScriptedFixture::new();
    let script = "- background: echo $$ > pid; exec sleep 600\n- run: while [ ! -s pid ]; do sleep 0.01; done; cat pid\n";
    let mut talk = start(stage.play(script, fresh()));
    talk.prompt("go");
    talk.end();
    let pid = std::fs::read_to_string(stage.work().join("pid")).unwrap();
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    // It is dead or still dying: a kill was sent. It is reaped by a thread of this process.
    while rustix::process::test_kill_process(pid).is_ok() {
        std::thread::yield_now();
    }
}

#[test]
fn retries_and_errors_are_told_as_claude_does() {
    check(
        "- retry: 2\n  because: rate_limit\n  delay: 1ms\n- say: recovered\n",
        expect![[r#"
        system init model="scripted"
        system api_retry attempt=1 error="rate_limit"
        system api_retry attempt=2 error="rate_limit"
        assistant "recovered"
        result success completed, 1 turns: "recovered"
        Code(0)"#]],
    );
    check(
        "- say: before\n- error: overloaded\n- say: never\n",
        expect![[r#"
        system init model="scripted"
        assistant "before"
        assistant "API Error: Repeated 529 Overloaded errors, as the script says" (server_error)
        result success api_error, 1 turns: "API Error: Repeated 529 Overloaded errors, as the script says"
        Code(1)"#]],
    );
    check(
        "- error: network\n  message: no net for {prompt}\n",
        expect![[r#"
        system init model="scripted"
        assistant "no net for do it" (unknown)
        result success api_error, 1 turns: "no net for do it"
        Code(1)"#]],
    );
}

#[test]
fn an_error_names_its_status_and_kind() {
    for (word, status, kind) in [
        ("authentication", json!(401), "authentication_failed"),
        ("token_expired", json!(401), "authentication_failed"),
        ("rate_limit", json!(429), "rate_limit"),
        ("overloaded", json!(529), "server_error"),
        ("server_error", json!(500), "server_error"),
        ("model_not_found", json!(404), "model_not_found"),
        ("network", json!(null), "unknown"),
    ] {
        let stage = ScriptedFixture::new();
        let mut talk = start(stage.play(&format!("- error: {word}\n"), fresh()));
        talk.prompt("go");
        assert_eq!(talk.end(), ScriptExit::Code(1));
        assert_eq!(talk.result()["api_error_status"], status, "{word}");
        let said = talk.seen.iter().find(|line| line["type"] == "assistant").unwrap();
        assert_eq!(said["error"], kind, "{word}");
        assert_eq!(said["is_api_error_message"], true);
        assert_eq!(said["message"]["model"], "<synthetic>");
    }
}

#[test]
fn a_run_is_judged_as_the_script_wants() {
    for (steps, class) in [
        ("[{say: fine}]", None),
        ("[{error: authentication}]", Some(ErrorClass::Authentication)),
        ("[{error: token_expired}]", Some(ErrorClass::TokenExpired)),
        ("[{error: rate_limit}]", Some(ErrorClass::RateLimited)),
        ("[{error: overloaded}]", Some(ErrorClass::Overloaded)),
        ("[{error: server_error}]", Some(ErrorClass::ServerError)),
        ("[{error: invalid_request}]", Some(ErrorClass::InvalidRequest)),
        ("[{error: model_not_found}]", Some(ErrorClass::ModelNotFound)),
        ("[{error: network}]", Some(ErrorClass::Network)),
        ("[{say: bye}, {exit: 3}]", Some(ErrorClass::AgentDied)),
    ] {
        let stage = ScriptedFixture::new();
        let mut talk = start(stage.play(steps, fresh()));
        talk.prompt("go");
        let code = match talk.end() {
            ScriptExit::Code(code) => Some(i32::from(code)),
            ScriptExit::Signal(_) => None,
        };
        let mut tally = RunOutcomeBuilder::new();
        for line in &talk.seen {
            tally.add_message(&parse_line(line.to_string().as_bytes()));
        }
        let end =
            tally.conclude(&AgentProcessExit::Exited { code, signal: None, stderr: String::new() });
        assert_eq!(end.error.map(|error| error.class), class, "{steps}");
    }
}

#[test]
fn a_flood_says_every_message_once_and_in_order() {
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- flood: 5000\n  size: 100\n- say: dry\n", fresh()));
    talk.prompt("go");
    talk.end();
    let said = talk.seen.iter().filter(|line| line["type"] == "assistant");
    let texts: Vec<_> =
        said.map(|line| line["message"]["content"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(texts.len(), 5_001);
    for (number, text) in (1..=5_000).zip(&texts) {
        assert!(text.starts_with(&format!("message {number} ")) && text.len() == 100, "{text}");
    }
    assert_eq!(talk.result()["result"], "dry");
    let kept = std::fs::read_to_string(stage.session_file(super::ID)).unwrap();
    assert_eq!(kept.lines().count(), 1 + 5_001 + 1);
}

#[test]
fn garbage_is_as_it_was_asked_for() {
    check(
        "
- garbage: nul
- garbage: invalid_utf8
- garbage: not_json
- garbage: half_json
- garbage: not_an_object
- garbage: unknown_type
- garbage: wrong_shape
- garbage: blank_line
- garbage: huge_line
  size: 40
- raw: '{\"type\":\"raw {turn}\"}'
- garbage: no_newline
- exit: 0
",
        expect![[r#"
            system init model="scripted"
            no message 17 bytes "\u0000\u0000\u0000\u0000\u0000\u0000\u0000\u0000\u0000\u0000\u0000\u0000\u0000\u0000\u0000\u0000\n"
            no message 34 bytes "{\"type\":\"system\",\"subtype\":\"���\"}\n"
            no message 24 bytes "panic: this is not JSON\n"
            no message 47 bytes "{\"type\":\"assistant\",\"message\":{\"content\""
            ?
            from_the_future
            assistant null
            no message 1 bytes "\n"
            assistant "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
            raw 1
            no message 20 bytes "this line has no end"
            Code(0)"#]],
    );
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- garbage: huge_line\n  size: 3m\n", fresh()));
    talk.prompt("go");
    talk.end();
    let said = talk.seen.iter().find(|line| line["type"] == "assistant").unwrap();
    assert_eq!(said["message"]["content"][0]["text"].as_str().unwrap().len(), 3 << 20);
}

#[test]
fn a_process_can_end_without_a_result() {
    check(
        "- say: bye\n- exit: 7\n- say: never\n",
        expect![[r#"
        system init model="scripted"
        assistant "bye"
        Code(7)"#]],
    );
    check(
        "- exit: SIGSEGV\n",
        expect![[r#"
        system init model="scripted"
        Signal(11)"#]],
    );
}

#[test]
fn costs_and_tokens_are_those_of_the_script() {
    let stage = ScriptedFixture::new();
    let script =
        "- cost: 0.25\n- usage: {input: 100, output: 20}\n- usage: {output: 1}\n- say: hi\n";
    let mut talk = start(stage.play(script, fresh()));
    talk.prompt("one");
    talk.until("result");
    talk.prompt("two");
    talk.end();
    let result = talk.result();
    assert_eq!(result["total_cost_usd"], 0.5);
    assert_eq!(result["usage"]["input_tokens"], 100);
    assert_eq!(result["usage"]["output_tokens"], 21);
    assert_eq!(result["modelUsage"]["scripted"]["inputTokens"], 200);
    assert_eq!(result["modelUsage"]["scripted"]["costUSD"], 0.5);
    assert_eq!(result["model_usage_since_last_result"]["scripted"]["costUSD"], 0.25);
    assert_eq!(result["result_index"], 1);
}

#[test]
fn conditions_choose_what_is_done() {
    let stage = ScriptedFixture::new();
    let script = "
- when: {prompt: DEPLOY, turn: 1}
  do: [{say: deploying}]
  else:
    - when: {session: new}
      do: [{say: 'no, this is turn {turn}'}]
";
    let mut talk = start(stage.play(script, fresh()));
    talk.prompt("please Deploy it");
    talk.until("result");
    assert_eq!(talk.result()["result"], "deploying");
    talk.prompt("deploy again");
    talk.until("result");
    assert_eq!(talk.result()["result"], "no, this is turn 2");
    talk.end();
}

#[test]
fn repetitions_count() {
    check(
        "- repeat: 2\n  do:\n    - repeat: 2\n      do: [{say: 'inner {n}'}]\n    - say: outer {n}\n",
        expect![[r#"
            system init model="scripted"
            assistant "inner 1"
            assistant "inner 2"
            assistant "outer 1"
            assistant "inner 1"
            assistant "inner 2"
            assistant "outer 2"
            result success completed, 1 turns: "outer 2"
            Code(0)"#]],
    );
}

#[test]
fn turns_are_limited() {
    let stage = ScriptedFixture::new();
    let mut play = stage.play("- repeat: 5\n  do: [{run: echo hi}]\n", fresh());
    play.max_turns = Some(2);
    let mut talk = start(play);
    talk.prompt("go");
    assert_eq!(talk.end(), ScriptExit::Code(1));
    expect![[r#"
        system init model="scripted"
        assistant tool_use "Bash" {"command":"echo hi"}
        user result "hi"
        assistant tool_use "Bash" {"command":"echo hi"}
        user result "hi"
        result error_max_turns max_turns, 3 turns: ["Reached maximum number of turns (2)"]"#]]
    .assert_eq(&talk.shown());
}

#[test]
fn money_is_limited() {
    let stage = ScriptedFixture::new();
    let mut play = stage.play("- repeat: 5\n  do: [{say: hi}, {cost: 0.4}]\n", fresh());
    play.max_budget_usd = Some(1.0);
    let mut talk = start(play);
    talk.prompt("go");
    assert_eq!(talk.end(), ScriptExit::Code(1));
    expect![[r#"
        system init model="scripted"
        assistant "hi"
        assistant "hi"
        assistant "hi"
        result error_max_budget_usd budget_exhausted, 1 turns: ["Reached maximum budget ($1)"]"#]]
    .assert_eq(&talk.shown());
}
