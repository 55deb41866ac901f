//! Entry points of the fuzz targets: a runtime is driven with any output of an agent.
//!
//! There is one entry point, and one fuzz target, for each protocol. The first lines open a session,
//! so that the input reaches the states of a turn. Nothing may panic, and each written line must be
//! JSON. Start at [`drive_acp`].

use camino::Utf8PathBuf;
use heeler_config::{ClientTools, KNOWN_AGENTS, PermissionMode};
use heeler_model::run::{ClaudeLaunchSpec, QuestionAnswer, RunLimits, SessionStart};
use indexmap::IndexMap;
use uuid::Uuid;

use crate::acp::{AcpLaunchOptions, AcpRuntime};
use crate::claude::{ClaudeCliRuntime, ClaudeLaunchOptions, SdkRuntime};
use crate::client_tools::{ClientToolReply, ClientToolRequest};
use crate::codex::{CodexLaunchOptions, CodexRuntime};
use crate::json_rpc::RpcId;
use crate::process::LaunchSpec;
use crate::program_policy::ProgramPolicy;
use crate::qwen::{QwenLaunchOptions, QwenRuntime};
use crate::runtime::{AgentRuntime, RuntimeEffect};
use crate::token_budget::TokenBudget;

/// Lines that open a session of an ACP agent.
const ACP_OPENING: [&str; 2] = [
    r#"{"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}"#,
    r#"{"id":2,"result":{"sessionId":"s"}}"#,
];

/// Lines that open a thread of Codex and start a turn.
const CODEX_OPENING: [&str; 3] = [
    r#"{"id":1,"result":{}}"#,
    r#"{"id":2,"result":{"thread":{"id":"t"},"model":"m"}}"#,
    r#"{"id":3,"result":{"turn":{"id":"u"}}}"#,
];

/// Lines that open a session of Qwen Code and start a turn.
const QWEN_OPENING: [&str; 2] = [
    r#"{"type":"control_response","response":{"subtype":"success","request_id":"heeler-initialize","response":{"session_id":"s","capabilities":{"can_handle_can_use_tool":true}}}}"#,
    r#"{"type":"system","subtype":"init","session_id":"s","model":"m"}"#,
];

/// Lines that accept the policy and begin a turn of Claude Code.
const CLAUDE_OPENING: [&str; 2] = [
    r#"{"type":"control_response","response":{"subtype":"success","request_id":"heeler-initialize","response":{}}}"#,
    r#"{"type":"system","subtype":"init","session_id":"s","model":"m"}"#,
];

/// Drives the ACP runtime. The first byte selects the known agent.
pub fn drive_acp(output: &[u8]) {
    let (selector, lines) =
        output.split_first().map_or((0, output), |(first, rest)| (*first, rest));
    let known = KNOWN_AGENTS.get(usize::from(selector) % (KNOWN_AGENTS.len() + 1));
    let options = AcpLaunchOptions {
        launch: launch(),
        agent: "fuzzed".to_owned(),
        known,
        mode: PermissionMode::BypassPermissions,
        policy: policy(),
        client_tools: ClientTools { terminals: true, reads: true, writes: true },
        system_prompt: None,
        model: None,
        mcp_servers: IndexMap::new(),
        injected: Vec::new(),
        working_directory: Utf8PathBuf::from("/project"),
        native_session: None,
        fork: None,
        budget: TokenBudget::default(),
    };
    drive(&mut AcpRuntime::new("hello".to_owned(), options), &ACP_OPENING, lines);
}

/// Drives the runtime of Codex.
pub fn drive_codex(output: &[u8]) {
    let options = CodexLaunchOptions {
        launch: launch(),
        mode: PermissionMode::Default,
        policy: policy(),
        system_prompt: None,
        model: None,
        effort: None,
        servers: serde_json::Map::new(),
        working_directory: Utf8PathBuf::from("/project"),
        is_isolated: false,
        native_session: None,
        fork: None,
        budget: TokenBudget::default(),
    };
    drive(&mut CodexRuntime::new("hello".to_owned(), options), &CODEX_OPENING, output);
}

/// Drives the runtime of Qwen Code.
pub fn drive_qwen(output: &[u8]) {
    let options = QwenLaunchOptions {
        launch: launch(),
        mode: PermissionMode::Default,
        policy: policy(),
        system_prompt: None,
        model: None,
        effort: None,
        max_turns: None,
        servers: serde_json::Map::new(),
        native_session: None,
        session_usage: None,
        budget: TokenBudget::default(),
    };
    drive(&mut QwenRuntime::new("hello".to_owned(), options), &QWEN_OPENING, output);
}

/// Drives the runtimes of Claude Code: with the control protocol, with and without a list of tools,
/// and for one prompt.
pub fn drive_claude(output: &[u8]) {
    let listed = Some(vec!["Read".to_owned()]);
    for allowed_tools in [None, listed] {
        let options = claude_options(allowed_tools);
        let mut sdk = SdkRuntime::claude("hello".to_owned(), options)
            .expect("the list has no rule that cannot be enforced");
        drive(&mut sdk, &CLAUDE_OPENING, output);
    }
    // The prompt is written as it is, so this one is a line of JSON too.
    let mut cli = ClaudeCliRuntime::new("\"hello\"\n".to_owned(), claude_options(None))
        .expect("there is no list of tools");
    drive(&mut cli, &CLAUDE_OPENING, output);
}

fn claude_options(allowed_tools: Option<Vec<String>>) -> ClaudeLaunchOptions {
    ClaudeLaunchOptions {
        brief: ClaudeLaunchSpec { allowed_tools, ..ClaudeLaunchSpec::default() },
        limits: RunLimits::default(),
        mcp: serde_json::json!({}),
        injected: Vec::new(),
        long_running: false,
    }
}

fn launch() -> LaunchSpec {
    LaunchSpec { program: "agent".into(), args: Vec::new(), env: Vec::new() }
}

fn policy() -> ProgramPolicy {
    let protected = vec!["/project/heeler.yaml".into()];
    ProgramPolicy::new(PermissionMode::Default, protected, Vec::new(), "/project".into())
}

fn drive(runtime: &mut dyn AgentRuntime, opening: &[&str], output: &[u8]) {
    let session = "fuzzed".parse().expect("the word can be a session's id");
    runtime.launch_spec(&SessionStart::Fresh { id: session });
    let OpenRequests { mut asks, mut calls, mut services } = check(runtime.begin(Uuid::nil()));
    let lines = opening.iter().map(|line| line.as_bytes());
    for line in lines.chain(output.split(|byte| *byte == b'\n')) {
        let mut effects = runtime.handle_line(line);
        // Answers come while the agent goes on.
        if let Some(ask) = asks.pop() {
            effects.extend(runtime.deliver_answer(&ask, &QuestionAnswer::Allow { input: None }));
        }
        if let Some(call) = calls.pop() {
            effects.extend(runtime.deliver_mcp_reply(&call, serde_json::json!({ "result": {} })));
        }
        if let Some((call, terminal)) = services.pop() {
            let result = Ok(serde_json::json!({ "terminalId": terminal }));
            let reply = ClientToolReply { output: terminal.clone(), terminal, result };
            effects.extend(runtime.deliver_client_reply(&call, reply));
        }
        let new = check(effects);
        asks.extend(new.asks);
        calls.extend(new.calls);
        services.extend(new.services);
    }
    check(runtime.flush_lines());
    check(runtime.interrupt());
    check(runtime.handle_exit(None));
}

/// Requests of the agent for which it waits.
#[derive(Default)]
struct OpenRequests {
    asks: Vec<String>,
    calls: Vec<String>,
    /// Services of the client, with their terminals.
    services: Vec<(RpcId, Option<String>)>,
}

/// Checks the effects, and returns the requests among them.
fn check(effects: Vec<RuntimeEffect>) -> OpenRequests {
    let mut open = OpenRequests::default();
    for effect in effects {
        match effect {
            RuntimeEffect::Write(line) => {
                let is_line = line.ends_with(b"\n") && !line[..line.len() - 1].contains(&b'\n');
                let is_json = serde_json::from_slice::<serde_json::Value>(&line).is_ok();
                assert!(is_line && is_json, "each line is one JSON value");
            }
            RuntimeEffect::Ask { id, .. } => open.asks.push(id),
            RuntimeEffect::Mcp { call, .. } => open.calls.push(call),
            RuntimeEffect::ClientTool { call, request } => {
                let terminal = match request {
                    ClientToolRequest::Terminal { terminal, .. } => Some(terminal),
                    ClientToolRequest::File(_) => None,
                };
                open.services.push((call, terminal));
            }
            _ => {}
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::captured_output::parse_capture;

    /// Number of damaged variants of each conversation.
    const VARIANTS: u64 = 3;

    /// Returns the lines that agents wrote, of every recorded conversation in a directory.
    fn recorded_outputs(folder: &str) -> Vec<Vec<u8>> {
        let folder = format!("{}/tests/captures/{folder}", env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> =
            files.filter(|file| file.extension().is_some_and(|it| it == "io")).collect();
        files.sort();
        let outputs = files.iter().map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            let lines = parse_capture(&text).lines.into_iter().filter(|line| line.is_agents);
            let lines = lines.map(|line| line.text);
            lines.collect::<Vec<_>>().join("\n").into_bytes()
        });
        outputs.collect()
    }

    /// Changes, removes, repeats and inserts bytes and lines.
    fn damage(output: &[u8], seed: u64) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut lines: Vec<Vec<u8>> = output.split(|it| *it == b'\n').map(<[u8]>::to_vec).collect();
        for _ in 0..random.usize(1..20) {
            let at = random.usize(..lines.len());
            let other = random.usize(..lines.len());
            match random.u8(..5) {
                0 => lines.swap(at, other),
                1 => lines[at] = lines[other].clone(),
                2 => {
                    let end = random.usize(..=lines[at].len());
                    lines[at].truncate(end);
                }
                3 => lines.insert(at, vec![random.u8(..); 9]),
                _ => {
                    if let Some(byte) = random.choice(lines[at].iter_mut()) {
                        *byte = random.u8(..);
                    }
                }
            }
        }
        lines.join(&b'\n')
    }

    /// Does the same as the fuzz target, with recorded and with damaged conversations.
    #[test]
    fn recorded_and_damaged_conversations_break_no_runtime() {
        // The captures of Claude Code are in the directory itself.
        let folders = ["", "acp", "codex", "qwen", "one_shot"];
        let outputs = folders.map(recorded_outputs).concat();
        assert!(outputs.len() > 120, "{}", outputs.len());
        for (number, output) in (0_u64..).zip(&outputs) {
            drive_acp(output);
            drive_codex(output);
            drive_qwen(output);
            drive_claude(output);
            for variant in 0..VARIANTS {
                let seed = number * VARIANTS + variant;
                let mut damaged = damage(output, seed);
                // The first byte selects the known agent.
                damaged.insert(0, u8::try_from(seed % 256).unwrap_or_default());
                drive_acp(&damaged);
                drive_codex(&damaged[1..]);
                drive_qwen(&damaged[1..]);
                drive_claude(&damaged[1..]);
            }
        }
    }
}
