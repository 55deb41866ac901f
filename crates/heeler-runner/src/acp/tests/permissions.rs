//! What an allowed question of an agent permits.

use super::*;
use crate::acp::client_requests::describe_action;
use crate::client_tools::{ClientToolRequest, TerminalCommand, TerminalOperation};

/// Starts a session of an agent that is offered every service, and answers a question with `allow`.
fn allow_first<'r>(runtime: &'r mut AcpRuntime, lines: &[Json]) -> RuntimeTrace<'r> {
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(runtime);
    open(&mut trace, &json!({ "sessionId": "s" }));
    lines.iter().for_each(|line| trace.feed(line));
    let ask = trace.questions[0].clone();
    trace.answer(&ask, &QuestionAnswer::Allow { input: None });
    trace.trace.clear();
    trace
}

fn served_options() -> AcpLaunchOptions {
    let client_tools = ClientTools { terminals: true, reads: true, writes: true };
    AcpLaunchOptions { client_tools, ..options(None) }
}

#[test]
fn a_permission_covers_what_was_asked_and_no_later_change_of_the_call() {
    let mut runtime = AcpRuntime::new("hello".to_owned(), served_options());
    let change = update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c",
        "rawInput": { "command": "rm -rf x" } }));
    let mut trace = allow_first(&mut runtime, &[shell_question(7, "ls"), change]);
    trace.feed(&terminal(8, json!({ "command": "rm -rf x" })));
    assert!(trace.trace.contains("ask permission terminal"), "{}", trace.trace);
    trace.trace.clear();
    trace.feed(&terminal(9, json!({ "command": "ls" })));
    assert!(trace.trace.contains("ClientTool"), "{}", trace.trace);
    trace.interrupt();
}

#[test]
fn the_kind_of_an_allowed_action_decides_what_it_permits() {
    let path = "/elsewhere/a";
    let content = json!({ "path": path, "content": "new" });
    for (kind, input, is_permitted) in [
        ("read", json!({ "path": path }), false),
        ("read", content.clone(), false),
        ("other", json!({ "path": path }), false),
        // One agent asks about edits in this way.
        ("other", content, true),
        ("edit", json!({ "path": path }), true),
    ] {
        let mut asked = question(7, path);
        asked["params"]["toolCall"]["kind"] = kind.into();
        asked["params"]["toolCall"]["rawInput"] = input;
        let mut runtime = AcpRuntime::new("hello".to_owned(), served_options());
        let mut trace = allow_first(&mut runtime, &[asked]);
        let params = json!({ "sessionId": "s", "path": path, "content": "new" });
        let request = |method: &str, id: u64| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        trace.feed(&request("fs/write_text_file", 8));
        assert_eq!(trace.trace.contains("ClientTool"), is_permitted, "{kind} {}", trace.trace);
        trace.trace.clear();
        trace.feed(&request("fs/read_text_file", 9));
        assert!(trace.trace.contains("ClientTool"), "{kind} {}", trace.trace);
        trace.interrupt();
    }
    for kind in ["read", "edit"] {
        let mut asked = shell_question(7, "ls");
        asked["params"]["toolCall"]["kind"] = kind.into();
        let mut runtime = AcpRuntime::new("hello".to_owned(), served_options());
        let mut trace = allow_first(&mut runtime, &[asked]);
        trace.feed(&terminal(8, json!({ "command": "ls" })));
        assert!(trace.trace.contains("ask permission terminal"), "{kind} {}", trace.trace);
        trace.interrupt();
    }
}

#[test]
fn a_question_about_a_command_shows_its_variables() {
    let env = [("TERM", "dumb"), ("NODE_OPTIONS", "--require=/tmp/x")];
    let command = TerminalCommand {
        program: "ls".to_owned(),
        args: Vec::new(),
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        directory: "/project".into(),
        output_bytes_max: 1,
    };
    let operation = TerminalOperation::Create(command);
    let request = ClientToolRequest::Terminal { terminal: "t".to_owned(), operation };
    let shown = describe_action(&request).unwrap().input;
    assert_eq!(shown["env"], json!({ "NODE_OPTIONS": "--require=/tmp/x" }));
}
