//! Files and commands that an ACP agent leaves to the runner. The agents are shell scripts, and they try
//! what a hostile one would.

use heeler_config::{ClientTools, PermissionMode};
use heeler_model::run::{QuestionAnswer, RunEnd};

use super::*;
use crate::acp::{AcpLaunchOptions, AcpRuntime};
use crate::process::AgentFileLimits;
use crate::program_policy::ProgramPolicy;
use crate::settle_run;
use crate::token_budget::TokenBudget;

/// Words for scripts: each reply to the agent is a line of the file `replies`.
const WORDS: &str = r#"
tell() { printf '%s\n' "$1"; }
reply() { read -r line || exit 0; printf '%s\n' "$line" >> replies; }
ask() { tell "{\"jsonrpc\":\"2.0\",\"id\":\"$1\",\"method\":\"$2\",\"params\":{\"sessionId\":\"s\",$3}}"; reply; }
run() { ask "$1" terminal/create "\"command\":\"$2\""; }
of() { ask "$1" "terminal/$2" "\"terminalId\":\"$3\""; }
update() { tell "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"s\",\"update\":{\"sessionUpdate\":\"$1\",$2}}}"; }
end() { tell '{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}'; cat > /dev/null; }
read -r line; tell '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}'
read -r line; tell '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}'
read -r line
"#;

const ALL_TOOLS: ClientTools = ClientTools { terminals: true, reads: true, writes: true };

fn script_runtime(
    context: &RuntimeContext<'_>,
    mode: PermissionMode,
    client_tools: ClientTools,
) -> Result<Box<dyn AgentRuntime>, String> {
    let RuntimeLaunchSpec::Command { command } = &context.host.brief.work else {
        return Err("no script".to_owned());
    };
    let script = LaunchArg::File(format!("{WORDS}{command}").into_bytes());
    let directory = context.spec.working_directory.canonicalize_utf8().unwrap();
    let protected = vec![directory.join("heeler.yaml"), context.spec.home.clone()];
    let unreadable = vec![context.spec.home.clone()];
    let options = AcpLaunchOptions {
        launch: LaunchSpec { program: "/bin/sh".into(), args: vec![script], env: Vec::new() },
        agent: "a script".to_owned(),
        known: None,
        mode,
        policy: ProgramPolicy::new(mode, protected, unreadable, directory.clone()),
        client_tools,
        system_prompt: None,
        model: None,
        mcp_servers: IndexMap::new(),
        injected: Vec::new(),
        working_directory: directory,
        native_session: None,
        fork: None,
        budget: TokenBudget::default(),
    };
    Ok(Box::new(AcpRuntime::new(context.host.brief.prompt.clone(), options)))
}

fn free_agent(context: &RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String> {
    script_runtime(context, PermissionMode::BypassPermissions, ALL_TOOLS)
}

fn asking_agent(context: &RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String> {
    script_runtime(context, PermissionMode::Default, ALL_TOOLS)
}

fn confined_agent(context: &RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String> {
    script_runtime(context, PermissionMode::BypassPermissions, ClientTools::NONE)
}

type BuildRuntime = fn(&RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String>;

fn fixture(runtime: BuildRuntime, script: &str) -> RunFixture {
    let mut trial = command_fixture(script);
    trial.spec.runtime = RuntimeType::Scripted;
    trial.means.runtime = runtime;
    trial
}

/// The run of an agent that is free to do everything, for the test that kills its runner.
pub(super) fn free_fixture(script: &str) -> RunFixture {
    let mut trial = fixture(free_agent, script);
    trial.spec.runtime = RuntimeType::Acp;
    trial
}

impl RunFixture {
    /// Returns the replies that the agent got.
    fn replies(&self) -> Vec<Json> {
        RunFixture::rows(&self.spec.working_directory.join("replies"))
    }

    fn work(&self, name: &str) -> Utf8PathBuf {
        self.spec.working_directory.join(name)
    }
}

#[test]
fn a_command_runs_as_a_process_of_the_run_and_its_output_is_recorded() {
    let script = r#"
        update tool_call '"toolCallId":"c","kind":"execute","rawInput":{"command":"x"}'
        run a 'echo made; echo $HEELER_RUN > marker; exit 3'
        of b wait_for_exit terminal-1
        of c output terminal-1
        of d release terminal-1
        update tool_call_update '"toolCallId":"c","status":"completed","content":[{"type":"terminal","terminalId":"terminal-1"}]'
        of e output terminal-1
        end"#;
    let trial = fixture(free_agent, script);
    let result = trial.run();
    assert_eq!(class(&result), None, "{:?}", result.error);
    let replies = trial.replies();
    let results: Vec<&Json> = replies.iter().map(|reply| &reply["result"]).collect();
    assert_eq!(results[0], &json!({ "terminalId": "terminal-1" }));
    assert_eq!(results[1], &json!({ "exitCode": 3, "signal": null }));
    assert_eq!(
        (&results[2]["output"], &results[2]["truncated"]),
        (&json!("made\n"), &json!(false))
    );
    assert_eq!(results[3], &json!({}));
    assert_eq!(replies[4]["error"]["message"], "there is no terminal with this ID");
    // It has the mark by which the processes of a dead runner are found.
    let marker = std::fs::read_to_string(trial.work("marker")).unwrap();
    assert_eq!(marker.trim(), trial.spec.run.to_string());
    let rows = trial.job_rows();
    let row = rows.iter().find(|row| row["type"] == "tool_result").unwrap();
    assert_eq!(row["result"], "made\n");
}

#[test]
fn nothing_is_offered_to_an_agent_in_a_sandbox() {
    let script = r#"
        ask a terminal/create '"command":"touch made"'
        ask b terminal/output '"terminalId":"terminal-1"'
        ask c fs/write_text_file "\"path\":\"$PWD/made\",\"content\":\"x\""
        ask d fs/read_text_file "\"path\":\"$PWD/replies\""
        end"#;
    let trial = fixture(confined_agent, script);
    assert_eq!(class(&trial.run()), None);
    let replies = trial.replies();
    assert!(replies.iter().all(|it| it["error"]["code"] == -32601), "{replies:?}");
    assert_eq!(replies.len(), 4);
    assert!(!trial.work("made").exists());
}

/// The runner would start the command outside of the sandbox.
#[test]
fn a_tree_with_a_sandbox_starts_no_command_of_a_terminal() {
    let trial = command_fixture("true");
    let mut tree = crate::process::ProcessTree::claim(trial.spec.run);
    tree.set_file_limits(Some(AgentFileLimits {
        spec: Default::default(),
        working_directory: trial.spec.working_directory.clone(),
        temporary: trial.spec.working_directory.join("tmp"),
        claude_config: None,
        readable: Vec::new(),
    }));
    let context = crate::process::SpawnContext {
        cwd: &trial.spec.working_directory,
        env: &IndexMap::new(),
        inherit: &[],
        secrets: &heeler_model::redact::SecretRedactor::new(&[]),
    };
    let launch = LaunchSpec { program: "/bin/true".into(), args: Vec::new(), env: Vec::new() };
    let refusal = tree.spawn_terminal(&launch, &context).unwrap_err();
    assert!(refusal.to_string().contains("sandbox"), "{refusal}");
}

#[test]
fn an_action_that_no_one_attends_is_denied() {
    let script = r#"
        run a 'touch made'
        ask b fs/write_text_file "\"path\":\"$PWD/made\",\"content\":\"x\""
        ask c fs/read_text_file '"path":"/etc/hostname"'
        ask d fs/read_text_file "\"path\":\"$PWD/replies\",\"line\":2,\"limit\":1"
        end"#;
    let trial = fixture(asking_agent, script);
    assert_eq!(class(&trial.run()), None);
    let replies = trial.replies();
    for reply in &replies[..3] {
        assert_eq!(reply["error"]["code"], -32000, "{reply}");
    }
    // Agents read files of the project without a question.
    let content = replies[3]["result"]["content"].as_str().unwrap();
    assert!(content.contains(r#""id":"b""#), "{content}");
    assert!(!trial.work("made").exists());
    assert_eq!(trial.notes("denied").len(), 3, "{:?}", trial.notes("denied"));
}

#[test]
fn a_person_decides_about_a_command_that_the_agent_did_not_ask_about() {
    let script = r#"
        run a 'touch first'; of b wait_for_exit terminal-1
        run c 'touch second'; of d wait_for_exit terminal-2
        end"#;
    let trial = fixture(asking_agent, script).attended(60_000);
    let running = trial.start();
    let mut person = running.client();
    for (command, answer) in [
        ("touch first", QuestionAnswer::Allow { input: None }),
        ("touch second", QuestionAnswer::Deny { message: "not now".to_owned(), interrupt: false }),
    ] {
        let asked = std::cell::RefCell::new(None);
        wait_for(command, || {
            let asks = status(&mut running.client()).asks;
            let found = asks.into_iter().find(|ask| ask.input["command"] == command);
            asked.replace(found).is_some() || asked.borrow().is_some()
        });
        let ask = asked.into_inner().unwrap();
        assert_eq!((ask.kind.as_str(), ask.tool.as_str()), ("permission", "terminal"));
        let (ask, by, shown) = (ask.id, "ann".to_owned(), None);
        person.ask(ControlOperation::Answer { ask, answer, by, shown });
    }
    assert_eq!(class(&running.finish()), None);
    assert!(trial.work("first").exists() && !trial.work("second").exists());
    let replies = trial.replies();
    assert_eq!(replies[1]["result"]["exitCode"], 0);
    assert_eq!(replies[2]["error"]["message"], "the user did not permit this action");
    // The denied one has no terminal.
    assert_eq!(replies[3]["error"]["message"], "there is no terminal with this ID");
}

#[test]
fn a_hostile_agent_gets_no_file_of_the_fleet() {
    let script = r#"
        ln -s heeler.yaml config; ln -s "$STATE" records
        write() { ask "w$1" fs/write_text_file "\"path\":\"$1\",\"content\":\"bad\""; }
        look() { ask "r$1" fs/read_text_file "\"path\":\"$1\""; }
        write heeler.yaml; write "$PWD/x/../heeler.yaml"; write config; write "$STATE/x"; write records/y
        look "$STATE/secret"; look records/secret; look "$PWD/../$(basename "$STATE")/secret"
        end"#;
    let mut trial = fixture(free_agent, script);
    std::fs::write(trial.work("heeler.yaml"), "good").unwrap();
    std::fs::create_dir_all(&trial.spec.home).unwrap();
    std::fs::write(trial.spec.home.join("secret"), "key").unwrap();
    trial.brief.env.insert("STATE".to_owned(), trial.spec.home.to_string());
    assert_eq!(class(&trial.run()), None);
    let replies = trial.replies();
    assert_eq!(replies.len(), 8);
    for reply in &replies {
        assert_eq!(reply["error"]["code"], -32000, "{reply}");
    }
    assert_eq!(std::fs::read_to_string(trial.work("heeler.yaml")).unwrap(), "good");
    assert!(!trial.spec.home.join("x").exists() && !trial.spec.home.join("y").exists());
}

#[test]
fn requests_that_make_no_sense_get_an_error_each() {
    let script = r#"
        run a ''
        ask b terminal/create '"args":["x"]'
        ask c terminal/create '"command":"true","args":[1]'
        ask d terminal/create '"command":"true","args":["x\u0000y"]'
        ask e terminal/create '"command":"true","cwd":"/no/such/folder"'
        ask f terminal/create '"command":"true","env":[{"name":"A=B","value":"x"},7],"outputByteLimit":-1'
        of g output terminal-99
        of h kill ../terminal-1
        ask i terminal/release '"terminalId":7'
        ask j fs/read_text_file '"path":""'
        ask k fs/write_text_file '"path":"a"'
        ask l fs/read_text_file '"path":"a\u0000b"'
        tell '{"jsonrpc":"2.0","id":"m","method":"terminal/create","params":{"sessionId":"other","command":"true"}}'; reply
        tell '{"jsonrpc":"2.0","id":"n","method":"terminal/create"}'; reply
        ask o terminal/unheard_of '"x":1'
        end"#;
    let trial = fixture(free_agent, script);
    assert_eq!(class(&trial.run()), None);
    let replies = trial.replies();
    let ids: String = replies.iter().filter_map(|reply| reply["id"].as_str()).collect();
    assert_eq!(ids, "abcdefghijklmno");
    for reply in &replies {
        // A wrong variable is left out.
        assert_eq!(reply["error"].is_object(), reply["id"] != "f", "{reply}");
    }
}

#[test]
fn the_number_of_commands_is_limited() {
    let script = r#"
        count=0
        while [ $count -lt 70 ]; do run "$count" 'exec tail -f /dev/null'; count=$((count + 1)); done
        end"#;
    let trial = fixture(free_agent, script);
    assert_eq!(class(&trial.run()), None);
    let replies = trial.replies();
    let started = replies.iter().filter(|reply| reply["result"].is_object()).count();
    assert_eq!((started, replies.len()), (crate::client_tools::OPEN_TERMINALS_MAX, 70));
    let reason = replies[69]["error"]["message"].as_str().unwrap();
    assert!(reason.contains("commands are running"), "{reason}");
}

#[test]
fn a_command_that_never_ends_ends_with_the_run_and_with_a_cancel() {
    for ends_itself in [true, false] {
        // The agent is told of the cancel, too.
        let rest = if ends_itself { "end" } else { "of b wait_for_exit terminal-1; reply; end" };
        let script = format!(
            "run a 'echo $$ > pid.tmp; mv pid.tmp pid; exec tail -f /dev/null'\n\
             until [ -e pid ]; do sleep 0.01; done; {rest}"
        );
        let mut trial = fixture(free_agent, &script);
        // Only the end of the command ends the agent.
        trial.spec.limits.grace_ms = Some(60_000);
        let running = trial.start();
        trial.wait_file("pid");
        if !ends_itself {
            running.client().ask(cancel(false));
        }
        running.finish();
        let pid = std::fs::read_to_string(trial.work("pid")).unwrap();
        assert!(is_gone(&pid), "{pid}");
        if !ends_itself {
            let replies = trial.replies();
            let end = replies.iter().find(|reply| reply["id"] == "b").unwrap();
            assert_eq!(end["result"]["signal"], "SIGKILL");
        }
    }
}

/// The request may be read after the processes of the run were ended.
#[test]
fn a_command_that_an_agent_asks_for_as_it_exits_does_not_outlive_the_run() {
    let script = r#"
        tell '{"jsonrpc":"2.0","id":"a","method":"terminal/create","params":{"sessionId":"s","command":"exec tail -f /dev/null"}}'
        exit 1"#;
    for _ in 0..5 {
        let trial = fixture(free_agent, script);
        trial.run();
        let mark = format!("HEELER_RUN={}", trial.spec.run);
        let has_mark = |environ: Vec<u8>| {
            environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let left = processes
            .filter(|process| std::fs::read(process.path().join("environ")).is_ok_and(has_mark));
        assert_eq!(left.count(), 0);
    }
}

#[test]
fn a_killed_runner_leaves_no_command() {
    let script = "run a 'echo $$ > pid.tmp; mv pid.tmp pid; exec tail -f /dev/null'; of b wait_for_exit terminal-1";
    let trial = free_fixture(script);
    // The run never reaches this point.
    let mut runner = crashes::runner(&trial, script, crate::fault::RunnerFaultPoint::ResultWritten);
    trial.wait_file("pid");
    runner.kill().unwrap();
    runner.wait().unwrap();
    let result = settle_run(&trial.dir(), &trial.spec.home, now).unwrap();
    assert_eq!(result.end, RunEnd::Interrupted);
    let pid = std::fs::read_to_string(trial.work("pid")).unwrap();
    assert!(is_gone(&pid), "{pid}");
}
