//! MCP: our own servers, in process and over HTTP, and configured ones.

use expect_test::expect;
use heeler_model::run::McpServerSpec;
use heeler_testkit::{ModelScript, ModelScriptStep};
use serde_json::json;

use super::{BOTH, Cli, Rig, RuntimeType, Sdk, alike, succeeded, told, tool_results};
use heeler_config::PermissionMode;

/// A server on standard input that tells what is in its environment.
const TELLER: &str = r#"
while IFS= read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"method":"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"teller","version":"1"}}' ;;
    *'"method":"tools/list"'*) result='{"tools":[{"name":"tell","description":"Tells.","inputSchema":{"type":"object"}}]}' ;;
    *'"method":"tools/call"'*) result="{\"content\":[{\"type\":\"text\",\"text\":\"told $TOLD\"}]}" ;;
    *'"id"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}\n' "$id"; continue ;;
    *) continue ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

#[test]
fn our_own_tools_work_in_process_and_over_http() {
    let shown = BOTH.map(|runtime| {
        let rig = Rig::new();
        std::fs::write(rig.work("report.txt"), "all is well").unwrap();
        let script = ModelScript::new()
            .tool("mcp__heeler__report_progress", json!({"message": "half way", "percent": 50}))
            .tool("mcp__heeler-files__send_file", json!({"file_path": "report.txt"}))
            .tool("mcp__heeler__ask_human", json!({"question": "Shall I?"}))
            .text("Sent.");
        let mut plan = rig.script(runtime, &script);
        plan.brief.send_files_to = Some(rig.path("sent"));
        // A list of allowed tools does not have to name them.
        plan.claude().allowed_tools = Some(vec!["Read".to_owned()]);
        let end = rig.run(plan);
        succeeded(&end);
        let worked: Vec<bool> =
            tool_results(&end).into_iter().map(|(_, success)| success).collect();
        assert_eq!(worked, [true, true, false], "{:#?}", end.rows);
        let sent: Vec<_> =
            std::fs::read_dir(rig.path("sent")).unwrap().map(Result::unwrap).collect();
        let [sent] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(std::fs::read_to_string(sent.path()).unwrap(), "all is well");
        let said = ["recorded", "bytes) was sent", "this run is unattended"];
        assert!(said.iter().all(|it| told(&end).contains(it)), "{}", told(&end));
        rig.show(&end.rows)
    });
    alike(
        &shown,
        &expect![[r#"
            {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
            {"type":"system","subtype":"user_input","content":"Please. <script>"}
            {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode acceptEdits, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"acceptEdits"}
            {"type":"tool_use","tool_name":"mcp__heeler__report_progress","tool_use_id":"<tool0>","input":{"message":"half way","percent":50}}
            {"type":"system","subtype":"progress","content":"50 %: half way"}
            {"type":"tool_result","tool_use_id":"<tool0>","result":"recorded","success":true,"tool_name":"mcp__heeler__report_progress"}
            {"type":"tool_use","tool_name":"mcp__heeler-files__send_file","tool_use_id":"<tool1>","input":{"file_path":"report.txt"}}
            {"type":"system","subtype":"file_sent","content":"report.txt (11 bytes) is in <rig>/sent/<id2>-report.txt","bytes":11,"name":"report.txt","path":"<rig>/sent/<id2>-report.txt"}
            {"type":"tool_result","tool_use_id":"<tool1>","result":"report.txt (11 bytes) was sent","success":true,"tool_name":"mcp__heeler-files__send_file"}
            {"type":"tool_use","tool_name":"mcp__heeler__ask_human","tool_use_id":"<tool3>","input":{"question":"Shall I?"}}
            {"type":"system","subtype":"denied","content":"ask_human was denied: this run is unattended, so the request cannot be allowed or answered"}
            {"type":"tool_result","tool_use_id":"<tool3>","error":"there is no answer: this run is unattended, so the request cannot be allowed or answered; go on without it if you can, a…","success":false,"tool_name":"mcp__heeler__ask_human"}
            {"type":"assistant","content":"Sent."}
            {"type":"tool_result","subtype":"success","result":"Sent.","success":true,"is_error":false,"num_turns":4,"stop_reason":"end_turn","terminal_reason":"completed","total_cost_usd":0.00056}
        "#]],
    );
}

/// Nobody has to allow them, and no list has to name them.
fn our_own_tools_run_in_every_mode(runtime: RuntimeType) {
    let rig = Rig::new();
    std::fs::write(rig.work("report.txt"), "all is well").unwrap();
    // Claude no longer has `delegate`, and no run starts with it.
    for mode in PermissionMode::ALL.iter().filter(|mode| **mode != PermissionMode::Delegate) {
        let mode = mode.as_str();
        let script = ModelScript::new()
            .tool("mcp__heeler__report_progress", json!({"message": "half way"}))
            .tool("mcp__heeler-files__send_file", json!({"file_path": "report.txt"}))
            .text("Sent.");
        let mut plan = rig.script(runtime, &script);
        plan.brief.send_files_to = Some(rig.path("sent"));
        plan.claude().permission_mode = mode.to_owned();
        let end = rig.run(plan);
        succeeded(&end);
        let expected =
            [("recorded".to_owned(), true), ("report.txt (11 bytes) was sent".to_owned(), true)];
        assert_eq!(tool_results(&end), expected, "{runtime} {mode}: {:#?}", end.rows);
        assert!(told(&end).contains(r#""text":"recorded""#), "{}", told(&end));
    }
}

#[test]
fn our_own_tools_run_in_every_mode_of_the_sdk_runtime() {
    our_own_tools_run_in_every_mode(Sdk);
}

#[test]
fn our_own_tools_run_in_every_mode_of_the_cli_runtime() {
    our_own_tools_run_in_every_mode(Cli);
}

#[test]
fn configured_servers_get_their_headers_and_variables() {
    for runtime in BOTH {
        let rig = Rig::new();
        let variables = [("TOLD".to_owned(), "by-variable".to_owned())];
        let teller = McpServerSpec::Stdio {
            command: "sh".to_owned(),
            args: vec!["-c".to_owned(), TELLER.to_owned()],
            env: variables.into(),
            timeout_ms: None,
            always_load: None,
            is_on_host: false,
        };
        let headers = [("x-told".to_owned(), "by-header".to_owned())];
        let adder = McpServerSpec::Http {
            url: rig.api.mcp_url(),
            headers: headers.into(),
            timeout_ms: None,
            always_load: Some(true),
        };
        let calls =
            [("mcp__teller__tell", json!({})), ("mcp__adder__add", json!({"a": 2, "b": 3}))];
        let script = ModelScript::new().step(ModelScriptStep::tools(calls)).text("Done.");
        let mut plan = rig.script(runtime, &script);
        plan.claude().permission_mode = "bypassPermissions".to_owned();
        plan.claude().mcp_servers =
            [("teller".to_owned(), teller), ("adder".to_owned(), adder)].into();
        let end = rig.run(plan);
        succeeded(&end);
        let expected = [("told by-variable".to_owned(), true), ("the sum is 5".to_owned(), true)];
        assert_eq!(tool_results(&end), expected, "{:#?}", end.rows);
        assert!(told(&end).contains("told by-variable"), "{}", told(&end));
        let asked = rig.api.requests();
        let mut calls = asked.iter().filter(|request| request.path == "/mcp");
        assert!(calls.all(|request| request.header("x-told") == Some("by-header")));
    }
}
