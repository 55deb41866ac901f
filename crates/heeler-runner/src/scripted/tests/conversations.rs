//! Conversations: prompts, permission, questions, interrupts, what is not the protocol.

use expect_test::expect;
use heeler_config::script::ScriptExit;
use serde_json::json;

use super::{ScriptedFixture, fresh, start};

const FIRST: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const SECOND: &str = "aaaaaaaa-0000-4000-8000-000000000002";

#[test]
fn requests_of_the_host_are_answered() {
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- say: hi\n", fresh()));
    talk.request("1", json!({"subtype": "initialize", "hooks": null}));
    let reply = talk.until("control_response");
    assert_eq!(reply["response"]["request_id"], "1");
    assert_eq!(reply["response"]["response"]["current_permission_mode"], "bypassPermissions");
    talk.request("2", json!({"subtype": "set_model", "model": "x"}));
    assert_eq!(talk.until("control_response")["response"]["response"], json!({"model": "x"}));
    talk.request("3", json!({"subtype": "no_such_thing"}));
    let reply = talk.until("control_response");
    assert_eq!(reply["response"]["error_code"], "unsupported_request");
    talk.request("4", json!({"subtype": "interrupt"}));
    let reply = talk.until("control_response");
    assert_eq!(reply["response"]["response"], json!({"still_queued": []}));
    talk.prompt("go");
    talk.until("result success");
    assert_eq!(talk.end(), ScriptExit::Code(0));
}

#[test]
fn each_prompt_is_a_turn_and_its_uuid_is_told() {
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- say: '{prompt}'\n", fresh()));
    talk.prompt_as(FIRST, "one");
    talk.prompt_as(SECOND, "two");
    talk.end();
    let mut shown = talk.seen.clone();
    // The second may arrive at any point of the first turn.
    shown.retain(|line| !(line["command_uuid"] == SECOND && line["state"] == "queued"));
    let shown: Vec<_> = shown.iter().map(super::show).collect();
    expect![[r#"
        command_lifecycle queued
        command_lifecycle started
        system init model="scripted"
        assistant "one"
        result success completed, 1 turns: "one"
        command_lifecycle completed
        command_lifecycle started
        system init model="scripted"
        assistant "two"
        result success completed, 1 turns: "two"
        command_lifecycle completed"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn a_message_during_a_tool_joins_the_turn() {
    let stage = ScriptedFixture::new();
    let script =
        "- run: while [ ! -e go ]; do sleep 0.01; done\n- say: now {prompt}, turn {turn}\n";
    let mut talk = start(stage.play(script, fresh()));
    talk.prompt_as(FIRST, "one");
    talk.until("assistant tool_use");
    talk.prompt_as(SECOND, "two");
    talk.until("command_lifecycle queued");
    std::fs::write(stage.work().join("go"), "").unwrap();
    talk.until("result");
    talk.prompt("three");
    talk.end();
    expect![[r#"
        command_lifecycle queued
        command_lifecycle started
        system init model="scripted"
        assistant tool_use "Bash" {"command":"while [ ! -e go ]; do sleep 0.01; done"}
        command_lifecycle queued
        user result "(Bash completed with no output)"
        command_lifecycle started
        assistant "now two, turn 1"
        command_lifecycle completed
        result success completed, 2 turns: "now two, turn 1"
        command_lifecycle completed
        system init model="scripted"
        assistant tool_use "Bash" {"command":"while [ ! -e go ]; do sleep 0.01; done"}
        user result "(Bash completed with no output)"
        assistant "now three, turn 2"
        result success completed, 2 turns: "now three, turn 2""#]]
    .assert_eq(&talk.shown());
    let completed: Vec<_> = talk.seen.iter().filter(|line| line["state"] == "completed").collect();
    assert_eq!(completed[0]["command_uuid"], SECOND);
}

#[test]
fn permission_is_asked_and_the_answer_is_obeyed() {
    let stage = ScriptedFixture::new();
    let script = "
- write: a.txt
  text: original
  ask_permission: true
- write: b.txt
  text: original
  ask_permission: true
- run: touch c.txt
  ask_permission: true
- run: touch d.txt
  ask_permission: true
";
    let mut talk = start(stage.play(script, fresh()));
    talk.prompt("go");
    let ask = talk.until("control_request can_use_tool");
    assert!(ask["request"]["tool_use_id"].as_str().unwrap().starts_with("toolu_"));
    talk.reply(&ask, json!({"behavior": "allow"}));
    let ask = talk.until("control_request can_use_tool");
    let changed = json!({"file_path": "b.txt", "content": "changed"});
    talk.reply(&ask, json!({"behavior": "allow", "updatedInput": changed}));
    let ask = talk.until("control_request can_use_tool");
    talk.reply(&ask, json!({"behavior": "deny", "message": "not today"}));
    let ask = talk.until("control_request can_use_tool");
    let failed = json!({"subtype": "error", "request_id": ask["request_id"], "error": "no idea"});
    talk.send(json!({"type": "control_response", "response": failed}));
    assert_eq!(talk.end(), ScriptExit::Code(0));
    expect![[r#"
        system init model="scripted"
        assistant tool_use "Write" {"file_path":"a.txt","content":"original"}
        control_request can_use_tool "Write" {"file_path":"a.txt","content":"original"}
        user result "File created successfully at: WORK/a.txt"
        assistant tool_use "Write" {"file_path":"b.txt","content":"original"}
        control_request can_use_tool "Write" {"file_path":"b.txt","content":"original"}
        user result "File created successfully at: WORK/b.txt"
        assistant tool_use "Bash" {"command":"touch c.txt"}
        control_request can_use_tool "Bash" {"command":"touch c.txt"}
        user error "not today"
        assistant tool_use "Bash" {"command":"touch d.txt"}
        control_request can_use_tool "Bash" {"command":"touch d.txt"}
        user error "Tool permission request failed: Error: no idea"
        result success completed, 5 turns: """#]]
    .assert_eq(&talk.shown().replace(stage.work().as_str(), "WORK"));
    let read = |name: &str| std::fs::read_to_string(stage.work().join(name)).ok();
    assert_eq!(read("a.txt").as_deref(), Some("original"));
    assert_eq!(read("b.txt").as_deref(), Some("changed"));
    assert_eq!((read("c.txt"), read("d.txt")), (None, None));
    assert_eq!(talk.result()["permission_denials"].as_array().unwrap().len(), 2);
}

#[test]
fn a_denial_can_end_the_turn() {
    let stage = ScriptedFixture::new();
    let mut talk =
        start(stage.play("- run: touch a\n  ask_permission: true\n- say: never\n", fresh()));
    talk.prompt("go");
    let ask = talk.until("control_request");
    talk.reply(&ask, json!({"behavior": "deny", "message": "stop", "interrupt": true}));
    assert_eq!(talk.end(), ScriptExit::Code(1));
    expect![[r#"
        system init model="scripted"
        assistant tool_use "Bash" {"command":"touch a"}
        control_request can_use_tool "Bash" {"command":"touch a"}
        user error "The user doesn't want to proceed with this tool use. It was not done, or not to its end."
        user "[Request interrupted by user for tool use]"
        result error_during_execution aborted_tools, 1 turns: ["the turn was interrupted"]"#]].assert_eq(&talk.shown());
}

#[test]
fn where_nobody_answers_permission_is_denied_at_once() {
    let stage = ScriptedFixture::new();
    let mut play = stage.play("- run: touch a\n  ask_permission: true\n- say: went on\n", fresh());
    play.can_ask = false;
    let mut talk = start(play);
    talk.prompt("go");
    assert_eq!(talk.end(), ScriptExit::Code(0));
    expect![[r#"
        system init model="scripted"
        assistant tool_use "Bash" {"command":"touch a"}
        system permission_denied message="No one can be asked for permission to use Bash."
        user error "No one can be asked for permission to use Bash."
        assistant "went on"
        result success completed, 2 turns: "went on""#]]
    .assert_eq(&talk.shown());
}

#[test]
fn the_end_of_input_denies_what_is_asked_and_ends_the_turn() {
    let stage = ScriptedFixture::new();
    let mut talk =
        start(stage.play("- run: touch a\n  ask_permission: true\n- say: went on\n", fresh()));
    talk.prompt("go");
    talk.until("control_request");
    assert_eq!(talk.end(), ScriptExit::Code(0));
    expect![[r#"
        system init model="scripted"
        assistant tool_use "Bash" {"command":"touch a"}
        control_request can_use_tool "Bash" {"command":"touch a"}
        user error "Tool permission request failed: AbortError: Tool permission stream closed before response received"
        assistant "went on"
        result success completed, 2 turns: "went on""#]].assert_eq(&talk.shown());
}

#[test]
fn a_question_is_answered() {
    let stage = ScriptedFixture::new();
    let script = "
- question: Which colour?
  options: [red, blue]
- when: {answer: blue}
  do: [{say: 'You like {answer}.'}]
  else: [{say: 'No answer: {answer}'}]
";
    let mut talk = start(stage.play(script, fresh()));
    talk.prompt("go");
    let ask = talk.until("control_request");
    assert_eq!(ask["request"]["requires_user_interaction"], true);
    let mut input = ask["request"]["input"].clone();
    input["answers"] = json!({"Which colour?": "blue"});
    talk.reply(&ask, json!({"behavior": "allow", "updatedInput": input}));
    talk.until("result");
    talk.prompt("again");
    let ask = talk.until("control_request");
    talk.reply(&ask, json!({"behavior": "deny", "message": "nobody is here"}));
    talk.end();
    expect![[r#"
        system init model="scripted"
        assistant tool_use "AskUserQuestion" {"questions":[{"question":"Which colour?","header":"Question","multiSelect":false,"options":[{"label":"red","description":""},{"label":"blue","description":""}]}]}
        control_request can_use_tool "AskUserQuestion" {"questions":[{"question":"Which colour?","header":"Question","multiSelect":false,"options":[{"label":"red","description":""},{"label":"blue","description":""}]}]}
        user result "Your questions have been answered: \"Which colour?\"=\"blue\"."
        assistant "You like blue."
        result success completed, 2 turns: "You like blue."
        system init model="scripted"
        assistant tool_use "AskUserQuestion" {"questions":[{"question":"Which colour?","header":"Question","multiSelect":false,"options":[{"label":"red","description":""},{"label":"blue","description":""}]}]}
        control_request can_use_tool "AskUserQuestion" {"questions":[{"question":"Which colour?","header":"Question","multiSelect":false,"options":[{"label":"red","description":""},{"label":"blue","description":""}]}]}
        user error "nobody is here"
        assistant "No answer: "
        result success completed, 2 turns: "No answer: ""#]].assert_eq(&talk.shown());
}

#[test]
fn an_interrupt_in_a_text_keeps_what_was_said() {
    let stage = ScriptedFixture::new();
    let script = "- say: aaaaabbbbb\n  chunks: 2\n  delay: 300s\n";
    let mut play = stage.play(script, fresh());
    play.partial = true;
    let mut talk = start(play);
    talk.prompt("go");
    talk.until("stream_event content_block_delta");
    talk.request("i", json!({"subtype": "interrupt"}));
    talk.until("result error_during_execution");
    talk.request("j", json!({"subtype": "interrupt"}));
    talk.until("control_response");
    assert_eq!(talk.end(), ScriptExit::Code(1));
    expect![[r#"
        system init model="scripted"
        stream_event message_start
        stream_event content_block_start
        stream_event content_block_delta {"type":"text_delta","text":"aaaaa"}
        control_response "success"
        assistant "aaaaa" (aborted)
        user "[Request interrupted by user]"
        stream_event content_block_stop
        stream_event message_delta {"stop_reason":"end_turn","stop_sequence":null}
        stream_event message_stop
        result error_during_execution aborted_streaming, 1 turns: ["the turn was interrupted"]
        control_response "success""#]]
    .assert_eq(&talk.shown());
}

#[test]
fn an_interrupt_kills_the_command_and_ends_the_turn() {
    let stage = ScriptedFixture::new();
    let script =
        "- when: {turn: 1}\n  do: [{run: 'touch started; sleep 600; touch done'}]\n- say: next\n";
    let mut talk = start(stage.play(script, fresh()));
    talk.prompt("go");
    talk.until("assistant tool_use");
    while !stage.work().join("started").exists() {
        std::thread::yield_now();
    }
    talk.request("i", json!({"subtype": "interrupt"}));
    talk.until("result error_during_execution aborted_tools");
    talk.prompt("go on");
    assert_eq!(talk.end(), ScriptExit::Code(0));
    expect![[r#"
        system init model="scripted"
        assistant tool_use "Bash" {"command":"touch started; sleep 600; touch done"}
        control_response "success"
        user error "The user doesn't want to proceed with this tool use. It was not done, or not to its end."
        user "[Request interrupted by user for tool use]"
        result error_during_execution aborted_tools, 1 turns: ["the turn was interrupted"]
        system init model="scripted"
        assistant "next"
        result success completed, 1 turns: "next""#]].assert_eq(&talk.shown());
    assert!(!stage.work().join("done").exists());
}

#[test]
fn an_interrupt_withdraws_what_is_asked_and_leaves_the_queue() {
    let stage = ScriptedFixture::new();
    let script =
        "- when: {turn: 1}\n  do: [{run: 'true', ask_permission: true}]\n- say: '{prompt}'\n";
    let mut talk = start(stage.play(script, fresh()));
    talk.prompt("go");
    let ask = talk.until("control_request");
    talk.prompt_as(SECOND, "later");
    talk.until("command_lifecycle queued");
    talk.request("i", json!({"subtype": "interrupt"}));
    let withdrawn = talk.until("control_cancel_request");
    assert_eq!(withdrawn["request_id"], ask["request_id"]);
    let reply = talk.until("control_response");
    assert_eq!(reply["response"]["response"], json!({"still_queued": [SECOND]}));
    talk.until("result error_during_execution");
    talk.until("result success");
    assert_eq!(talk.result()["result"], "later");
    talk.end();
}

#[test]
fn a_queued_message_can_be_taken_back() {
    let stage = ScriptedFixture::new();
    let script = "- when: {turn: 1}\n  do: [hang]\n- say: '{prompt}'\n";
    let mut talk = start(stage.play(script, fresh()));
    talk.prompt_as(FIRST, "go");
    talk.until("system init");
    talk.prompt_as(SECOND, "later");
    talk.until("command_lifecycle queued");
    let cancel = json!({"subtype": "cancel_async_message", "message_uuid": SECOND});
    talk.request("c", cancel.clone());
    talk.until("command_lifecycle cancelled");
    let reply = talk.until("control_response");
    assert_eq!(reply["response"]["response"], json!({"cancelled": true}));
    talk.request("d", cancel);
    let reply = talk.until("control_response");
    assert_eq!(reply["response"]["response"], json!({"cancelled": false}));
    talk.request("i", json!({"subtype": "interrupt"}));
    talk.until("result error_during_execution");
    assert_eq!(talk.end(), ScriptExit::Code(1));
}

#[test]
fn a_hang_ends_with_an_interrupt() {
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- say: here\n- hang\n", fresh()));
    talk.prompt("go");
    talk.until("assistant");
    talk.request("i", json!({"subtype": "interrupt"}));
    talk.until("result error_during_execution aborted_streaming");
    talk.end();
}

#[test]
fn a_tool_of_the_host_is_called() {
    let stage = ScriptedFixture::new();
    let script = "- call: mcp__files__send\n  input: {path: '{prompt}'}\n- say: 'sent: {output}'\n- call: mcp__files__send\n";
    let mut talk = start(stage.play(script, fresh()));
    talk.prompt("a.txt");
    let mut methods = Vec::new();
    for _ in 0..4 {
        let request = talk.until("control_request mcp_message");
        assert_eq!(request["request"]["server_name"], "files");
        let message = &request["request"]["message"];
        methods.push(message["method"].as_str().unwrap().to_owned());
        let result = match message["params"]["arguments"]["path"].as_str() {
            Some(path) => json!({"content": [{"type": "text", "text": format!("{path} it is")}]}),
            None => json!({"content": [{"type": "text", "text": "no path"}], "isError": true}),
        };
        let reply = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        talk.reply(&request, json!({"mcp_response": reply}));
    }
    talk.end();
    assert_eq!(methods, ["initialize", "notifications/initialized", "tools/call", "tools/call"]);
    let shown: Vec<_> = talk
        .seen
        .iter()
        .filter(|line| line["type"] != "control_request")
        .map(super::show)
        .collect();
    expect![[r#"
        system init model="scripted"
        assistant tool_use "mcp__files__send" {"path":"a.txt"}
        user result "a.txt it is"
        assistant "sent: a.txt it is"
        assistant tool_use "mcp__files__send" {}
        user error "no path"
        result success completed, 3 turns: "sent: a.txt it is""#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn what_is_not_the_protocol_ends_the_process() {
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- say: hi\n", fresh()));
    talk.raw("\n[1,2]\n{\"type\":\"from_the_future\"}\n");
    talk.prompt("go");
    talk.until("result success");
    talk.raw("this is not JSON\n");
    assert_eq!(talk.end(), ScriptExit::Code(1));
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- say: hi\n", fresh()));
    talk.send(json!({"type": "user", "message": {"role": "assistant", "content": "x"}}));
    assert_eq!(talk.end(), ScriptExit::Code(1));
}

#[test]
fn a_prompt_may_come_in_blocks() {
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- say: '{prompt}'\n", fresh()));
    let content =
        json!([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]);
    talk.send(json!({"type": "user", "message": {"role": "user", "content": content}}));
    talk.end();
    assert_eq!(talk.result()["result"], "a\nb");
}

#[test]
fn a_player_whose_output_is_closed_ends() {
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- flood: 100000000\n", fresh()));
    talk.prompt("go");
    talk.until("assistant");
    let (nowhere, _) = std::io::pipe().unwrap();
    drop(std::mem::replace(&mut talk.lines, std::io::BufReader::new(nowhere)));
    assert_eq!(talk.end(), ScriptExit::Code(1));
}
