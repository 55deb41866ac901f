//! Captured talks with claude, held again, and the cases that they lack.

use heeler_model::run::ClaudeLaunchSpec;

use super::*;

const PROMPT: Uuid = Uuid::from_u128(1);

fn setup(allowed: Option<&[&str]>) -> ClaudeLaunchOptions {
    let listed = allowed.map(|list| list.iter().map(|entry| (*entry).to_owned()).collect());
    let brief = ClaudeLaunchSpec { allowed_tools: listed, ..ClaudeLaunchSpec::default() };
    let (limits, mcp) = (Default::default(), json!({}));
    ClaudeLaunchOptions { brief, limits, mcp, injected: Vec::new(), long_running: false }
}

fn open() -> SdkRuntime {
    let mut sdk = SdkRuntime::claude("hello".to_owned(), setup(None)).unwrap();
    sdk.begin(PROMPT);
    sdk
}

fn listed(allowed: &[&str]) -> SdkRuntime {
    let mut sdk = SdkRuntime::claude("hello".to_owned(), setup(Some(allowed))).unwrap();
    sdk.begin(PROMPT);
    sdk.handle_line(INITIALIZED.as_bytes());
    sdk
}

const INITIALIZED: &str = r#"{"type":"control_response","response":{"subtype":"success","request_id":"heeler-initialize","response":{}}}"#;

fn take(sdk: &mut SdkRuntime, line: Json) -> Vec<RuntimeEffect> {
    sdk.handle_line(line.to_string().as_bytes())
}

/// Returns the one line that is written, and nothing else is done.
#[track_caller]
fn written(steps: &[RuntimeEffect]) -> Json {
    let [RuntimeEffect::Write(line)] = steps else { panic!("{steps:?}") };
    assert_eq!(line.last(), Some(&b'\n'));
    serde_json::from_slice(line).unwrap()
}

#[track_caller]
fn replied(steps: &[RuntimeEffect], id: &str) -> Json {
    let line = written(steps);
    assert_eq!(line["type"], "control_response", "{line}");
    assert_eq!(line["response"]["request_id"], id, "{line}");
    line["response"].clone()
}

fn request(id: &str, request: Json) -> Json {
    json!({ "type": "control_request", "request_id": id, "request": request })
}

fn may(id: &str, tool: &str) -> Json {
    let input = json!({ "command": "ls" });
    request(id, json!({ "subtype": "can_use_tool", "tool_name": tool, "input": input }))
}

fn pre_tool_use(id: &str, tool: &str, input: Json) -> Json {
    let called = json!({ "hook_event_name": "PreToolUse", "tool_name": tool, "tool_input": input });
    let callback = json!({ "subtype": "hook_callback", "callback_id": CALL_HOOK });
    let mut hook = request(id, callback);
    hook["request"]["input"] = called;
    hook
}

fn result() -> Json {
    json!({ "type": "result", "subtype": "success", "is_error": false, "result": "fin" })
}

fn lifecycle(uuid: Uuid, state: &str) -> Json {
    json!({ "type": "command_lifecycle", "command_uuid": uuid, "state": state })
}

fn state(state: &str) -> Json {
    json!({ "type": "system", "subtype": "session_state_changed", "state": state })
}

fn background(tasks: &[&str]) -> Json {
    let tasks: Vec<Json> = tasks.iter().map(|id| json!({ "task_id": id })).collect();
    json!({ "type": "system", "subtype": "background_tasks_changed", "tasks": tasks })
}

fn init() -> Json {
    json!({ "type": "system", "subtype": "init" })
}

fn is_done(steps: &[RuntimeEffect]) -> bool {
    steps.contains(&RuntimeEffect::Done)
}

#[test]
fn the_prompt_follows_the_greeting_with_the_uuid_of_its_row() {
    let mut sdk = SdkRuntime::claude("hello".to_owned(), setup(None)).unwrap();
    let steps = sdk.begin(PROMPT);
    let [greeting, prompt] = &steps[..] else { panic!("{steps:?}") };
    let greeting = written(std::slice::from_ref(greeting));
    assert_eq!(greeting["request"], json!({ "subtype": "initialize", "hooks": null }));
    let prompt = written(std::slice::from_ref(prompt));
    assert_eq!(prompt["message"], json!({ "role": "user", "content": "hello" }));
    assert_eq!(prompt["uuid"], PROMPT.to_string());
}

#[test]
fn with_a_list_the_prompt_waits_until_its_hook_stands() {
    let mut sdk = SdkRuntime::claude("hello".to_owned(), setup(Some(&["Read"]))).unwrap();
    let greeting = written(&sdk.begin(PROMPT));
    let hook = &greeting["request"]["hooks"]["PreToolUse"][0];
    assert_eq!((&hook["matcher"], &hook["hookCallbackIds"]), (&json!(""), &json!([CALL_HOOK])));
    assert_eq!(written(&sdk.handle_line(INITIALIZED.as_bytes()))["uuid"], PROMPT.to_string());
    assert_eq!(sdk.handle_line(INITIALIZED.as_bytes()), [], "once is enough");
}

#[test]
fn what_is_said_before_the_hook_stands_follows_the_prompt() {
    let mut sdk = SdkRuntime::claude("hello".to_owned(), setup(Some(&["Read"]))).unwrap();
    sdk.begin(PROMPT);
    assert_eq!(sdk.send_message(Uuid::from_u128(2), "more"), Some(Vec::new()));
    let steps = sdk.handle_line(INITIALIZED.as_bytes());
    let said = steps.iter().map(|step| written(std::slice::from_ref(step))["uuid"].clone());
    let both = [PROMPT.to_string(), Uuid::from_u128(2).to_string()];
    assert_eq!(said.collect::<Vec<_>>(), both);
}

#[test]
fn without_its_hook_a_list_cannot_be_held_and_nothing_is_asked() {
    let mut sdk = SdkRuntime::claude("hello".to_owned(), setup(Some(&["Read"]))).unwrap();
    sdk.begin(PROMPT);
    let refused = json!({ "subtype": "error", "request_id": INITIALIZE, "error": "no hooks here" });
    let steps = take(&mut sdk, json!({ "type": "control_response", "response": refused }));
    let [RuntimeEffect::Message(said), RuntimeEffect::CloseInput, RuntimeEffect::Done] = &steps[..]
    else {
        panic!("{steps:?}")
    };
    let MessageBody::Error { message, .. } = &said.body else { panic!("{said:?}") };
    assert!(message.contains("no hooks here"), "{message}");
}

#[test]
fn a_server_is_served_while_the_greeting_is_unanswered() {
    let mut sdk = SdkRuntime::claude("hello".to_owned(), setup(Some(&["Read"]))).unwrap();
    sdk.begin(PROMPT);
    let message = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize" });
    let hello = json!({ "subtype": "mcp_message", "server_name": "fleet", "message": message });
    let steps = take(&mut sdk, request("m1", hello));
    let call = RuntimeEffect::Mcp { call: "m1".to_owned(), server: "fleet".to_owned(), message };
    assert_eq!(steps, [call]);
    let reply = json!({ "jsonrpc": "2.0", "id": 0, "result": {} });
    let response = replied(&sdk.deliver_mcp_reply("m1", reply.clone()), "m1");
    assert_eq!(response["response"], json!({ "mcp_response": reply }));
    assert_eq!(sdk.deliver_mcp_reply("m1", json!({})), [], "answered once");
}

#[test]
fn a_notification_to_a_server_is_acknowledged_at_once() {
    let mut sdk = open();
    let message = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let note = json!({ "subtype": "mcp_message", "server_name": "fleet", "message": message });
    let response = replied(&take(&mut sdk, request("n", note)), "n");
    assert_eq!(response["response"]["mcp_response"], json!({ "jsonrpc": "2.0", "result": {} }));
}

#[test]
fn each_answer_of_a_person_has_its_form() {
    let table = [
        (
            QuestionAnswer::Allow { input: None },
            json!({ "behavior": "allow", "updatedInput": { "command": "ls" } }),
        ),
        (
            QuestionAnswer::Allow { input: Some(json!({ "command": "pwd" })) },
            json!({ "behavior": "allow", "updatedInput": { "command": "pwd" } }),
        ),
        (
            QuestionAnswer::Deny { message: "no".to_owned(), interrupt: false },
            json!({ "behavior": "deny", "message": "no", "interrupt": false }),
        ),
        (
            QuestionAnswer::Deny { message: "stop".to_owned(), interrupt: true },
            json!({ "behavior": "deny", "message": "stop", "interrupt": true }),
        ),
    ];
    for (answer, form) in table {
        let mut sdk = open();
        let steps = take(&mut sdk, may("p", "Bash"));
        let [RuntimeEffect::Ask { id, kind: AgentQuestionKind::Permission, tool, .. }] = &steps[..]
        else {
            panic!("{steps:?}")
        };
        assert_eq!((id.as_str(), tool.as_str()), ("p", "Bash"));
        assert_eq!(replied(&sdk.deliver_answer("p", &answer), "p")["response"], form);
        assert_eq!(sdk.deliver_answer("p", &answer), [], "answered once");
    }
}

#[test]
fn a_permission_for_the_conversation_is_what_was_offered() {
    let mut sdk = open();
    let mut asked = may("p", "Bash");
    let rule = json!({ "toolName": "Bash", "ruleContent": "npm test:*" });
    asked["request"]["permission_suggestions"] = json!([{
        "type": "addRules", "rules": [rule], "behavior": "allow", "destination": "localSettings",
    }]);
    let steps = take(&mut sdk, asked);
    let [RuntimeEffect::Ask { grant: Some(grant), .. }] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!(grant.describe(), "Bash(npm test:*)");
    let response = replied(&sdk.deliver_answer("p", &QuestionAnswer::AllowSession), "p");
    let response = &response["response"];
    assert_eq!(response["behavior"], "allow");
    // Claude would write the settings of the project otherwise, which decide what agents may do.
    assert_eq!(response["updatedPermissions"][0]["destination"], "session");
    assert_eq!(response["updatedPermissions"][0]["rules"][0]["ruleContent"], "npm test:*");
    // Without an offer there is nothing to give.
    let steps = take(&mut sdk, may("q", "Bash"));
    assert!(matches!(&steps[..], [RuntimeEffect::Ask { grant: None, .. }]), "{steps:?}");
}

#[test]
fn what_only_a_person_can_answer_is_a_question() {
    let mut sdk = open();
    let kind = |steps: &[RuntimeEffect]| match steps {
        [RuntimeEffect::Ask { kind, .. }] => *kind,
        other => panic!("{other:?}"),
    };
    assert_eq!(kind(&take(&mut sdk, may("a", "AskUserQuestion"))), AgentQuestionKind::Question);
    let mut plan = may("b", "ExitPlanMode");
    plan["request"]["requires_user_interaction"] = true.into();
    assert_eq!(kind(&take(&mut sdk, plan)), AgentQuestionKind::Question);
    assert_eq!(kind(&take(&mut sdk, may("c", "Write"))), AgentQuestionKind::Permission);
}

#[test]
fn what_was_withdrawn_is_never_answered() {
    let mut sdk = open();
    take(&mut sdk, may("p", "Bash"));
    let cancel = json!({ "type": "control_cancel_request", "request_id": "p" });
    assert_eq!(take(&mut sdk, cancel.clone()), [RuntimeEffect::Withdraw { ask: "p".to_owned() }]);
    assert_eq!(take(&mut sdk, cancel), []);
    assert_eq!(sdk.deliver_answer("p", &QuestionAnswer::Allow { input: None }), []);
    let message = json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/call" });
    let call = json!({ "subtype": "mcp_message", "server_name": "fleet", "message": message });
    take(&mut sdk, request("m", call));
    take(&mut sdk, json!({ "type": "control_cancel_request", "request_id": "m" }));
    assert_eq!(sdk.deliver_mcp_reply("m", json!({})), []);
}

#[test]
fn the_hook_lets_run_what_is_listed_and_nothing_else() {
    let mut sdk = listed(&["Read", "Bash(git *)"]);
    let mut hook = |tool: &str, input: Json| {
        let steps = take(&mut sdk, pre_tool_use("h", tool, input));
        let response = replied(&steps, "h");
        assert_eq!(response["subtype"], "success", "an error would let it run");
        response["response"]["hookSpecificOutput"]["permissionDecision"].clone()
    };
    assert_eq!(hook("Read", json!({ "file_path": "/x" })), json!(null));
    assert_eq!(hook("Bash", json!({ "command": "git log" })), json!(null));
    assert_eq!(hook("Bash", json!({ "command": "echo hi" })), "deny");
    assert_eq!(hook("Agent", json!({})), "deny");
    assert_eq!(hook("mcp__github__x", json!({})), "deny");
    let steps = take(&mut sdk, request("odd", json!({ "subtype": "hook_callback" })));
    let response = replied(&steps, "odd");
    assert_eq!(response["response"]["hookSpecificOutput"]["permissionDecision"], "deny");
}

#[test]
fn nobody_is_asked_about_what_is_not_listed() {
    let mut sdk = listed(&["Read"]);
    let response = replied(&take(&mut sdk, may("p", "Bash")), "p");
    assert_eq!(response["response"]["behavior"], "deny");
    assert!(matches!(&take(&mut sdk, may("q", "Read"))[..], [RuntimeEffect::Ask { .. }]));
}

#[test]
fn a_tool_that_ran_although_it_is_not_listed_stops_the_run() {
    let mut sdk = listed(&["Read"]);
    let call = json!([{ "type": "tool_use", "id": "t1", "name": "Bash", "input": {} }]);
    take(&mut sdk, json!({ "type": "assistant", "message": { "content": call } }));
    let told = |failed: bool, id: &str| {
        let block = json!({ "type": "tool_result", "tool_use_id": id, "is_error": failed });
        json!({ "type": "user", "message": { "content": [block] } })
    };
    assert_eq!(take(&mut sdk, told(false, "t0")).len(), 1);
    let steps = take(&mut sdk, told(false, "t1"));
    assert!(steps.contains(&RuntimeEffect::Signal(Signal::KILL)), "{steps:?}");
    let call = json!([{ "type": "tool_use", "id": "t2", "name": "Bash", "input": {} }]);
    take(&mut sdk, json!({ "type": "assistant", "message": { "content": call } }));
    assert_eq!(take(&mut sdk, told(true, "t2")).len(), 1, "the hook did its work");
}

#[test]
fn more_calls_of_tools_that_may_not_run_than_can_be_watched_stop_the_run() {
    let mut sdk = listed(&["Read"]);
    let mut call = |from: usize, count: usize| {
        let calls = (from..from + count).map(
            |id| json!({ "type": "tool_use", "id": id.to_string(), "name": "Bash", "input": {} }),
        );
        let content: Vec<Json> = calls.collect();
        take(&mut sdk, json!({ "type": "assistant", "message": { "content": content } }))
    };
    assert_eq!(call(0, FORBIDDEN_CALLS_MAX).len(), 1);
    let steps = call(FORBIDDEN_CALLS_MAX, 1);
    assert!(steps.contains(&RuntimeEffect::Signal(Signal::KILL)), "{steps:?}");
}

#[test]
fn a_call_that_claude_completed_is_judged_by_what_the_hook_was_shown() {
    let mut sdk = listed(&["Agent(general-purpose)"]);
    let call = json!([{ "type": "tool_use", "id": "t1", "name": "Agent", "input": {} }]);
    take(&mut sdk, json!({ "type": "assistant", "message": { "content": call } }));
    let mut hook = pre_tool_use("h", "Agent", json!({ "subagent_type": "general-purpose" }));
    hook["request"]["input"]["tool_use_id"] = "t1".into();
    assert_eq!(replied(&take(&mut sdk, hook), "h")["response"], json!({}));
    let told = json!([{ "type": "tool_result", "tool_use_id": "t1" }]);
    let steps = take(&mut sdk, json!({ "type": "user", "message": { "content": told } }));
    assert_eq!(steps.len(), 1, "{steps:?}");
}

#[test]
fn an_unknown_request_is_refused_not_ignored() {
    let mut sdk = open();
    for body in [json!({ "subtype": "dance" }), json!({}), json!(null), json!("x")] {
        let response = replied(&take(&mut sdk, request("u", body)), "u");
        assert_eq!(response["subtype"], "error");
    }
    let steps = take(&mut sdk, json!({ "type": "control_request" }));
    assert!(matches!(&steps[..], [RuntimeEffect::Message(_)]), "{steps:?}");
}

#[test]
fn a_request_that_cannot_be_read_is_refused_by_its_id() {
    let mut sdk = open();
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let line = format!(
        r#"{{"type":"control_request","request_id":"d","request":{{"subtype":"can_use_tool","input":{deep}}}}}"#
    );
    let steps = sdk.handle_line(line.as_bytes());
    assert_eq!(replied(&steps[..1], "d")["subtype"], "error");
    assert!(matches!(&steps[1..], [RuntimeEffect::Message(_)]), "{steps:?}");
    let steps = sdk.handle_line(line.replace("can_use_tool", "hook_callback").as_bytes());
    let response = replied(&steps[..1], "d");
    assert_eq!(response["response"]["hookSpecificOutput"]["permissionDecision"], "deny");
    for line in [&b"\xff\x00{"[..], b"", b"{\"control_request\"", b"[1]"] {
        assert!(matches!(&sdk.handle_line(line)[..], [RuntimeEffect::Message(_)]));
    }
}

#[test]
fn a_refused_request_of_ours_is_told() {
    let mut sdk = open();
    let refused = json!({ "subtype": "error", "request_id": "heeler-1", "error": "nope" });
    let steps = take(&mut sdk, json!({ "type": "control_response", "response": refused }));
    assert!(matches!(&steps[..], [RuntimeEffect::Message(_)]), "{steps:?}");
}

#[test]
fn a_turn_that_ends_with_nothing_queued_is_the_end() {
    let mut sdk = open();
    assert!(!is_done(&take(&mut sdk, lifecycle(PROMPT, "started"))));
    assert!(is_done(&take(&mut sdk, result())));
    assert!(!is_done(&take(&mut sdk, lifecycle(PROMPT, "completed"))), "said once");
}

#[test]
fn a_message_that_waits_for_its_turn_is_waited_for() {
    let mut sdk = open();
    let second = Uuid::from_u128(2);
    take(&mut sdk, lifecycle(PROMPT, "started"));
    assert_eq!(written(&sdk.send_message(second, "more").unwrap())["uuid"], second.to_string());
    assert!(!is_done(&take(&mut sdk, result())), "the agent has not even read it");
    take(&mut sdk, lifecycle(second, "queued"));
    take(&mut sdk, init());
    take(&mut sdk, lifecycle(second, "started"));
    assert!(is_done(&take(&mut sdk, result())));
}

#[test]
fn a_message_that_was_steered_into_the_turn_needs_no_result_of_its_own() {
    let mut sdk = open();
    let second = Uuid::from_u128(2);
    take(&mut sdk, lifecycle(PROMPT, "started"));
    sdk.send_message(second, "more");
    take(&mut sdk, lifecycle(second, "queued"));
    take(&mut sdk, lifecycle(second, "started"));
    take(&mut sdk, lifecycle(second, "completed"));
    assert!(is_done(&take(&mut sdk, result())));
}

#[test]
fn a_message_that_was_cancelled_is_not_waited_for() {
    let mut sdk = open();
    let second = Uuid::from_u128(2);
    take(&mut sdk, lifecycle(PROMPT, "started"));
    sdk.send_message(second, "more");
    assert!(!is_done(&take(&mut sdk, result())));
    assert!(is_done(&take(&mut sdk, lifecycle(second, "cancelled"))));
}

#[test]
fn after_the_end_more_can_be_said() {
    let mut sdk = open();
    take(&mut sdk, lifecycle(PROMPT, "started"));
    assert!(is_done(&take(&mut sdk, result())));
    let second = Uuid::from_u128(2);
    sdk.send_message(second, "more");
    take(&mut sdk, init());
    take(&mut sdk, lifecycle(second, "started"));
    assert!(is_done(&take(&mut sdk, result())));
}

#[test]
fn an_agent_that_does_not_tell_of_messages_answers_one_by_one() {
    let mut sdk = open();
    sdk.send_message(Uuid::from_u128(2), "more");
    assert!(!is_done(&take(&mut sdk, result())));
    assert!(is_done(&take(&mut sdk, result())));
}

#[test]
fn a_background_task_and_the_turn_after_it_are_waited_for() {
    let mut sdk = open();
    for line in [state("running"), lifecycle(PROMPT, "started"), init(), background(&["b1"])] {
        take(&mut sdk, line);
    }
    let ended = json!({ "type": "system", "subtype": "task_notification", "task_id": "b1" });
    let over = [result(), state("idle"), ended, background(&[])];
    for line in over.into_iter().chain([state("running"), init(), result()]) {
        assert!(!is_done(&take(&mut sdk, line.clone())), "{line}");
    }
    assert!(is_done(&take(&mut sdk, state("idle"))));
}

#[test]
fn a_background_task_that_begins_no_turn_is_the_end_when_the_agent_says_so() {
    let mut sdk = open();
    for line in [state("running"), lifecycle(PROMPT, "started"), background(&["b1"])] {
        take(&mut sdk, line);
    }
    for line in [result(), state("idle"), background(&[])] {
        assert!(!is_done(&take(&mut sdk, line.clone())), "{line}");
    }
    assert!(is_done(&take(&mut sdk, state("idle"))));
}

#[test]
fn an_interrupt_takes_back_what_is_queued_and_waits_for_nothing_else() {
    let mut sdk = open();
    let second = Uuid::from_u128(2);
    for line in [state("running"), lifecycle(PROMPT, "started"), background(&["b1"])] {
        take(&mut sdk, line);
    }
    sdk.send_message(second, "more");
    let steps = sdk.interrupt();
    let [cancel, interrupt] = &steps[..] else { panic!("{steps:?}") };
    let cancel = written(std::slice::from_ref(cancel));
    let message_uuid = second.to_string();
    let request = json!({ "subtype": "cancel_async_message", "message_uuid": message_uuid });
    assert_eq!(cancel["request"], request);
    let interrupt = written(std::slice::from_ref(interrupt));
    assert_eq!(interrupt["request"], json!({ "subtype": "interrupt" }));
    assert_ne!(cancel["request_id"], interrupt["request_id"]);
    assert!(is_done(&take(&mut sdk, result())));
}

#[test]
fn an_interrupt_between_turns_is_the_end() {
    let mut sdk = open();
    for line in [lifecycle(PROMPT, "started"), background(&["b1"]), result()] {
        assert!(!is_done(&take(&mut sdk, line)));
    }
    assert!(is_done(&sdk.interrupt()));
    let mut sdk = SdkRuntime::claude("hello".to_owned(), setup(Some(&["Read"]))).unwrap();
    sdk.begin(PROMPT);
    assert_eq!(
        sdk.interrupt(),
        [RuntimeEffect::CloseInput, RuntimeEffect::Done],
        "nothing was asked yet"
    );
}

#[test]
fn a_second_attempt_knows_nothing_of_the_first() {
    let mut sdk = open();
    take(&mut sdk, may("p", "Bash"));
    take(&mut sdk, background(&["b1"]));
    sdk.begin(PROMPT);
    assert_eq!(sdk.deliver_answer("p", &QuestionAnswer::Allow { input: None }), []);
    assert!(is_done(&take(&mut sdk, result())));
}

#[test]
fn the_next_turn_of_a_process_waits_for_its_settings() {
    let mut sdk = SdkRuntime::new("one".to_owned(), Box::new(|_| unreachable!("it runs already")));
    let turn = NextTurn {
        prompt: "two".to_owned(),
        permission_mode: Some("plan".to_owned()),
        model: Some("haiku".to_owned()),
    };
    let text = |steps: &[RuntimeEffect]| {
        let texts = steps.iter().map(|step| match step {
            RuntimeEffect::Write(line) => String::from_utf8(line.clone()).unwrap(),
            step => format!("{step:?}"),
        });
        texts.collect::<Vec<_>>()
    };
    let steps = text(&sdk.begin_next_turn(Uuid::nil(), &turn));
    assert_eq!(steps.len(), 2, "{steps:?}");
    assert!(steps[0].contains("set_permission_mode") && steps[0].contains("plan"));
    assert!(steps[1].contains("set_model") && steps[1].contains("haiku"));
    let reply = |sdk: &mut SdkRuntime, number: u32| {
        let line = format!(
            r#"{{"type":"control_response","response":{{"subtype":"success","request_id":"heeler-{number}"}}}}"#
        );
        text(&sdk.handle_line(line.as_bytes()))
    };
    assert!(reply(&mut sdk, 1).is_empty());
    let sent = reply(&mut sdk, 2);
    assert!(sent.len() == 1 && sent[0].contains("\"two\""), "{sent:?}");
    let plain = NextTurn { prompt: "three".to_owned(), ..NextTurn::default() };
    let sent = text(&sdk.begin_next_turn(Uuid::nil(), &plain));
    assert!(sent.len() == 1 && sent[0].contains("three"), "{sent:?}");
    assert!(!sdk.can_stay(), "its turn has not ended");
}

#[test]
fn an_idle_process_says_nothing_but_that_it_is_idle() {
    let mut sdk = SdkRuntime::new("one".to_owned(), Box::new(|_| unreachable!("it runs already")));
    let state = |state: &str| {
        format!(r#"{{"type":"system","subtype":"session_state_changed","state":"{state}"}}"#)
    };
    assert!(sdk.handle_idle_line(state("idle").as_bytes()));
    assert!(sdk.handle_idle_line(br#"{"type":"keep_alive"}"#));
    for line in [
        state("running").as_str(),
        r#"{"type":"system","subtype":"init"}"#,
        r#"{"type":"control_request","request_id":"1","request":{"subtype":"can_use_tool"}}"#,
        r#"{"type":"assistant","message":{"content":[]}}"#,
        "no JSON",
    ] {
        assert!(!sdk.handle_idle_line(line.as_bytes()), "{line}");
    }
}
