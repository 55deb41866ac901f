//! The real claude in a sandbox and in a container: what people answer, sub-agents, background tasks,
//! and MCP servers outside (`host: true`) and inside.

use std::process::Stdio;

use camino::Utf8PathBuf;
use heeler_model::run::{CAPABILITY_VARIABLE, McpServerSpec, QuestionAnswer, RunEnd, SessionStart};
use heeler_testkit::{ModelScript, ModelScriptStep, TestEngine};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};

use super::contained::{contained, sandboxed};
use super::{BOTH, Cli, Rig, RuntimeType, Sdk, gone, succeeded, told, tool_results, wait};
use crate::rig::Plan;

/// A server on standard input. It records its calls, and tells what it sees.
const SERVER: &str = r#"
echo $$ > "$RECORDS.pid" 2>/dev/null
while IFS= read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"method":"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"teller","version":"1"}}' ;;
    *'"method":"tools/list"'*) result='{"tools":[{"name":"tell","description":"Tells.","inputSchema":{"type":"object"}},{"name":"look","description":"Looks.","inputSchema":{"type":"object"}}]}' ;;
    *'"method":"tools/call"'*)
      printf '%s\n' "$line" >> "$RECORDS" 2>/dev/null
      seen="$(cat "$OUTSIDE" 2>/dev/null || echo nothing) in $PWD, key ${ANTHROPIC_API_KEY-none}, run ${HEELER_RUN_TOKEN-none}, $TOKEN"
      result="{\"content\":[{\"type\":\"text\",\"text\":\"$seen\"}]}" ;;
    *'"id"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}\n' "$id"; continue ;;
    *) continue ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

/// Secret of the server's environment.
const TOKEN: &str = "token-of-the-server-3316";

/// Isolation of a run.
enum Isolation {
    Sandbox,
    Container(TestEngine),
}

impl Isolation {
    fn both() -> [Isolation; 2] {
        [Isolation::Sandbox, Isolation::Container(TestEngine::start())]
    }

    fn isolate(&self, plan: Plan) -> Plan {
        match self {
            Isolation::Sandbox => sandboxed(plan),
            Isolation::Container(engine) => contained(plan, engine),
        }
    }
}

impl Rig {
    /// The server, with what it does after its input has ended.
    fn server(&self, is_on_host: bool, end: &str) -> McpServerSpec {
        std::fs::write(self.path("outside"), "the outside").unwrap();
        let env = [
            ("OUTSIDE", self.path("outside").into_string()),
            ("RECORDS", self.records().into_string()),
            ("TOKEN", TOKEN.to_owned()),
        ];
        McpServerSpec::Stdio {
            command: "sh".to_owned(),
            args: vec!["-c".to_owned(), format!("{SERVER}{end}")],
            env: env.map(|(name, value)| (name.to_owned(), value)).into(),
            timeout_ms: None,
            always_load: None,
            is_on_host,
        }
    }

    /// The calls that the server got.
    fn records(&self) -> Utf8PathBuf {
        self.work("records")
    }

    fn server_pid(&self) -> Pid {
        let file = format!("{}.pid", self.records());
        let pid = wait("the server", || std::fs::read_to_string(&file).ok()?.trim().parse().ok());
        Pid::from_raw(pid).unwrap()
    }
}

/// Adds servers, and lets everything run.
fn with_servers<const N: usize>(mut plan: Plan, servers: [(&str, McpServerSpec); N]) -> Plan {
    plan.claude().permission_mode = "bypassPermissions".to_owned();
    plan.claude().mcp_servers = servers.map(|(name, it)| (name.to_owned(), it)).into();
    plan.brief.secrets.push(TOKEN.to_owned());
    plan.brief.env.insert(CAPABILITY_VARIABLE.to_owned(), "capability-of-the-run".to_owned());
    plan
}

#[test]
fn a_server_on_the_host_runs_outside_and_others_inside() {
    for isolation in Isolation::both() {
        for runtime in BOTH {
            let rig = Rig::new();
            let calls = [("mcp__teller__tell", json!({})), ("mcp__inner__tell", json!({}))];
            let look = (
                "Bash",
                json!({"command": "cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n' > seen 2>/dev/null; true"}),
            );
            let script = ModelScript::new()
                .step(ModelScriptStep::tools(calls))
                .step(ModelScriptStep::tools([look]))
                .text("Done.");
            let mut inner = rig.server(false, "");
            if let McpServerSpec::Stdio { env, .. } = &mut inner {
                env.shift_remove("TOKEN");
                env.insert("RECORDS".to_owned(), "/dev/null".to_owned());
            }
            let plan = isolation.isolate(rig.script(runtime, &script));
            let servers = [("teller", rig.server(true, "")), ("inner", inner)];
            let end = rig.run(with_servers(plan, servers));
            succeeded(&end);
            let [(outer, true), (inner, true), _] = &tool_results(&end)[..] else {
                panic!("{runtime}: {:#?}", end.rows)
            };
            // The token is redacted in records, and the model is told what the server says.
            assert!(outer.starts_with("the outside in /, key none, run none, "), "{outer}");
            assert!(!outer.contains(TOKEN), "{outer}");
            assert!(inner.starts_with(&format!("nothing in {}, ", rig.path("work"))), "{inner}");
            assert!(told(&end).contains("the outside in /"), "{}", told(&end));
            let seen = std::fs::read_to_string(rig.work("seen")).unwrap();
            assert!(seen.contains("HEELER_SANDBOX=1"), "{seen}");
            assert!(!seen.contains(TOKEN), "the server's secret is inside: {seen}");
            gone(rig.server_pid());
        }
    }
}

/// Sends requests to the server past Claude: over its standard output (`sdk`), and with the token of
/// its settings (`cli`). Waits until the last one was executed.
const BYPASS: &str = r#"
import glob, json, os, time, urllib.request
claude = os.environ['CLAUDE_PID']
def message(name): return {'jsonrpc': '2.0', 'id': 1, 'method': 'tools/call',
                           'params': {'name': name, 'arguments': {}}}
def by_output(name):
    request = {'subtype': 'mcp_message', 'server_name': 'teller', 'message': message(name)}
    line = json.dumps({'type': 'control_request', 'request_id': 'x-' + name, 'request': request})
    with open('/proc/' + claude + '/fd/1', 'w') as output: output.write(line + '\n')
def by_token(name):
    for path in glob.glob('/proc/' + claude + '/fd/*'):
        if 'memfd' not in os.readlink(path): continue
        try: server = json.load(open(path))['mcpServers']['teller']
        except (ValueError, KeyError, TypeError): continue
        headers = {**server['headers'], 'content-type': 'application/json'}
        body = json.dumps(message(name)).encode()
        return print(urllib.request.urlopen(urllib.request.Request(server['url'], body, headers)).read())
    raise SystemExit('no settings were found')
for name in ('tell', 'look'): (by_output if RUNTIME == 'sdk' else by_token)(name)
until = time.monotonic() + 60
while time.monotonic() < until:
    try:
        if '"look"' in open('records').read(): break
    except OSError: pass
    time.sleep(0.02)
"#;

/// Any process in a sandbox can send what Claude sends, so the lists hold outside of it.
fn a_tool_that_is_denied_cannot_be_called_past_claude(runtime: RuntimeType) {
    for (denied, expected) in [(None, true), (Some("mcp__teller__tell"), false)] {
        let rig = Rig::new();
        let attack = BYPASS.replace("RUNTIME", &format!("'{runtime}'"));
        std::fs::write(rig.work("attack.py"), attack).unwrap();
        let script = ModelScript::new()
            .tool("Bash", json!({"command": "python3 attack.py > said 2>&1"}))
            .text("Done.");
        let plan = sandboxed(rig.script(runtime, &script));
        let mut plan = with_servers(plan, [("teller", rig.server(true, ""))]);
        plan.claude().denied_tools = denied.into_iter().map(str::to_owned).collect();
        let end = rig.run(plan);
        succeeded(&end);
        let said = std::fs::read_to_string(rig.work("said")).unwrap();
        let calls = std::fs::read_to_string(rig.records()).unwrap_or_default();
        assert!(calls.contains("\"look\""), "the attack does not work: {said} {:#?}", end.rows);
        assert_eq!(calls.contains("\"tell\""), expected, "{runtime} {denied:?}: {calls} {said}");
    }
}

#[test]
fn a_tool_that_is_denied_cannot_be_called_past_claude_by_its_output() {
    a_tool_that_is_denied_cannot_be_called_past_claude(Sdk);
}

#[test]
fn a_tool_that_is_denied_cannot_be_called_past_claude_by_its_token() {
    a_tool_that_is_denied_cannot_be_called_past_claude(Cli);
}

#[test]
fn a_server_on_the_host_that_the_agent_can_change_is_not_started() {
    let rig = Rig::new();
    std::fs::write(rig.work("server.sh"), SERVER).unwrap();
    let mut server = rig.server(true, "");
    if let McpServerSpec::Stdio { args, .. } = &mut server {
        *args = vec![rig.work("server.sh").into_string()];
    }
    let script = ModelScript::new().tool("mcp__teller__tell", json!({})).text("Done.");
    let plan = with_servers(sandboxed(rig.script(Sdk, &script)), [("teller", server)]);
    let end = rig.run(plan);
    let warned = end.row("system", "warning")["content"].as_str().unwrap().to_owned();
    assert!(warned.contains("the MCP server teller was not started: "), "{warned}");
    assert!(warned.contains("which the agent can write"), "{warned}");
    assert!(!rig.records().exists(), "it ran");
}

#[test]
fn a_server_on_the_host_ends_with_its_run_however_the_run_ends() {
    // It ignores the end of its input and SIGTERM, and so does a process that it has detached.
    let stubborn = "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ > \"$RECORDS.child\"; \
                    while :; do sleep 1; done' & while :; do sleep 1; done";
    for kills_runner in [false, true] {
        for runtime in BOTH {
            let rig = Rig::new();
            let mut server = rig.server(true, "");
            if let McpServerSpec::Stdio { args, .. } = &mut server {
                // The child reads nothing, so it is there from the start.
                *args = vec![
                    "-c".to_owned(),
                    format!("({stubborn}) & trap '' TERM; {SERVER} {stubborn}"),
                ];
            }
            let script = ModelScript::new()
                .step(ModelScriptStep::tools([("mcp__teller__tell", json!({}))]))
                .step(ModelScriptStep::tools([rig.endless()]))
                .text("Never.");
            let plan = with_servers(sandboxed(rig.script(runtime, &script)), [("teller", server)]);
            let spec = plan.spec.clone();
            let mut live = rig.start(plan);
            live.until_row("tool_use");
            wait("the tool", || rig.work("pids").exists().then_some(()));
            let child = wait("the server's child", || {
                let text = std::fs::read_to_string(format!("{}.child", rig.records())).ok()?;
                Pid::from_raw(text.trim().parse().ok()?)
            });
            let server = rig.server_pid();
            if kills_runner {
                let runner = Pid::from_child(&live.child);
                kill_process(runner, Signal::KILL).unwrap();
                live.child.wait().unwrap();
                rig.settle(&spec);
            } else {
                live.cancel();
                live.finish();
            }
            gone(server);
            gone(child);
        }
    }
}

#[test]
fn a_person_decides_what_an_isolated_agent_may_do() {
    for isolation in Isolation::both() {
        let rig = Rig::new();
        let script = ModelScript::new()
            .step(ModelScriptStep::tools([rig.write("allowed.txt", "as it was")]))
            .step(ModelScriptStep::tools([rig.write("denied.txt", "as it was")]))
            .text("Done.");
        let mut plan = isolation.isolate(rig.script(Sdk, &script).attended());
        plan.claude().permission_mode = "default".to_owned();
        let mut live = rig.start(plan);
        let ask = live.until_asked();
        assert_eq!((ask.kind.as_str(), ask.tool.as_str()), ("permission", "Write"));
        live.answer(&ask, QuestionAnswer::Allow { input: None });
        let ask = live.until_asked();
        let message = "not this one".to_owned();
        live.answer(&ask, QuestionAnswer::Deny { message, interrupt: false });
        let end = live.finish();
        succeeded(&end);
        assert_eq!(std::fs::read_to_string(rig.work("allowed.txt")).unwrap(), "as it was");
        assert!(!rig.work("denied.txt").exists());
        assert!(told(&end).contains("failed result \"not this one\""), "{}", told(&end));
    }
}

#[test]
fn a_sub_agent_and_a_background_task_work_in_isolation() {
    for isolation in Isolation::both() {
        for runtime in BOTH {
            let rig = Rig::new();
            let inner = ModelScript::new()
                .tool("Bash", json!({"command": "echo $HEELER_SANDBOX > inner"}))
                .text("Inner done.");
            let task = json!({
                "description": "inner", "prompt": format!("inner {inner}"),
                "subagent_type": "general-purpose", "run_in_background": false,
            });
            let go = rig.work("go");
            let command = format!("until [ -e {go} ]; do sleep 0.02; done; echo finished");
            let script = ModelScript::new()
                .tool("Agent", task)
                .tool("Bash", json!({"command": command, "run_in_background": true}))
                .text("Started.")
                .text("It has finished.");
            let mut plan = isolation.isolate(rig.script(runtime, &script));
            plan.claude().permission_mode = "bypassPermissions".to_owned();
            let mut live = rig.start(plan);
            // The first one may be that of the sub-agent.
            while live.until_row("assistant")["content"] != "Started." {}
            std::fs::write(&go, "").unwrap();
            let end = live.finish();
            succeeded(&end);
            assert_eq!(std::fs::read_to_string(rig.work("inner")).unwrap(), "1\n");
            assert_eq!(end.result.summary.as_deref(), Some("It has finished."));
            let call = end.row("tool_use", "Agent")["tool_use_id"].clone();
            let of_inner = |row: &&Json| row["parent_tool_use_id"] == call;
            assert!(end.rows.iter().any(|row| of_inner(&row)), "{:#?}", end.rows);
        }
    }
}

#[test]
fn background_tasks_of_an_isolated_agent_end_with_the_run() {
    for isolation in Isolation::both() {
        let rig = Rig::new();
        // Known outside by its name only: PIDs inside are others.
        let mark = format!("600.{}", fastrand::u32(1_000_000_000..));
        let command = format!("setsid sleep {mark}");
        let script = ModelScript::new()
            .tool("Bash", json!({"command": command, "run_in_background": true}))
            .step(ModelScriptStep::tools([rig.endless()]))
            .text("Never.");
        let mut plan = isolation.isolate(rig.script(Sdk, &script));
        plan.claude().permission_mode = "bypassPermissions".to_owned();
        let mut live = rig.start(plan);
        wait("the tool", || rig.work("pids").exists().then_some(()));
        let is_running = || {
            let mut find = std::process::Command::new("pgrep");
            let found = find.args(["-f", &format!("sleep {mark}")]).stdout(Stdio::null()).status();
            found.unwrap().success()
        };
        wait("the background task", || is_running().then_some(()));
        live.cancel();
        live.finish();
        assert!(!is_running(), "it outlives the run");
    }
}

#[test]
fn a_session_is_locked_as_long_as_an_isolated_agent_has_it() {
    for isolation in Isolation::both() {
        let rig = Rig::new();
        let script = ModelScript::new().step(ModelScriptStep::tools([rig.endless()]));
        let mut plan = isolation.isolate(rig.script(Sdk, &script));
        plan.claude().permission_mode = "bypassPermissions".to_owned();
        let id = plan.spec.session.start.id().clone();
        let mut live = rig.start(plan);
        wait("the tool", || rig.work("pids").exists().then_some(()));
        let resume = || {
            let mut plan = rig.script(Sdk, &ModelScript::new().text("Mine."));
            plan.spec.session.start = SessionStart::Resume { id: id.clone() };
            rig.run(plan).result
        };
        assert_eq!(resume().end, RunEnd::SessionBusy);
        // The end of the runner ends the agent, and nobody has to settle the run for that.
        kill_process(Pid::from_child(&live.child), Signal::KILL).unwrap();
        live.child.wait().unwrap();
        let next = || Some(resume()).filter(|result| result.end != RunEnd::SessionBusy);
        let next = wait("the session", next);
        assert_eq!((next.end, next.error), (RunEnd::Finished, None));
    }
}

#[test]
fn a_session_of_the_cli_goes_through_a_sandbox_and_a_container_and_out_again() {
    let (rig, engine) = (Rig::new(), TestEngine::start());
    let say = |prompt: &str, text: &str| {
        rig.plan(Cli, &format!("{prompt} {}", ModelScript::new().text(text)))
    };
    let first = rig.run(say("one", "Outside."));
    succeeded(&first);
    let second = rig.run(sandboxed(say("two", "Sandboxed.").resume(&first)));
    succeeded(&second);
    let third = rig.run(contained(say("three", "Contained.").resume(&second), &engine));
    succeeded(&third);
    let fourth = rig.run(say("four", "Out.").resume(&third));
    succeeded(&fourth);
    assert_eq!(fourth.session_id(), first.session_id());
    let told = told(&fourth);
    for part in
        ["user: one", "Outside.\nuser: two", "Sandboxed.\nuser: three", "Contained.\nuser: four"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
}
