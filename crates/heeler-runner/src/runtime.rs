//! One way of running an agent, without IO.
//!
//! A [`AgentRuntime`] is a protocol state machine: lines of the agent and wishes of people go in,
//! [`RuntimeEffect`]s come out, and the one loop of this crate does what they say. A runtime must not read,
//! write, wait or look at a clock. Start at [`AgentRuntime`].

use heeler_model::config::RuntimeType;
use heeler_model::message::AgentMessage;
use heeler_model::run::{
    ClaudeLaunchSpec, QuestionAnswer, RunSpec, RuntimeLaunchSpec, SessionStart,
};
use rustix::process::Signal;
use serde_json::Value as Json;
use uuid::Uuid;

use crate::claude::{ClaudeCliRuntime, ClaudeLaunchOptions, SdkRuntime};
use crate::command::CommandRuntime;
use crate::mcp::{self, InjectedMcpServers, InjectedMcpTransport, McpBridgeEndpoint};
use crate::process::LaunchSpec;
use crate::run::RunnerHost;
use crate::scripted;

/// One way of running an agent.
pub(crate) trait AgentRuntime {
    /// Says what to start. Asked once for each attempt, before [`AgentRuntime::begin`].
    fn launch_spec(&self, session: &SessionStart) -> LaunchSpec;
    /// Says what to send first: the prompt, whose row has this `uuid`. Asked once for each attempt;
    /// everything known of an earlier attempt is forgotten.
    fn begin(&mut self, uuid: Uuid) -> Vec<RuntimeEffect>;
    /// Takes one line of the agent's standard output, without its newline.
    fn handle_line(&mut self, line: &[u8]) -> Vec<RuntimeEffect>;
    /// Says what is to be done with lines that it held back: no further one is there at present.
    fn flush_lines(&mut self) -> Vec<RuntimeEffect> {
        Vec::new()
    }
    /// Says whether what the agent writes to standard error is worth a row, to people who read what
    /// it did.
    fn records_stderr(&self) -> bool {
        false
    }
    /// Says something more to the agent; `uuid` is the one of its row. `None`: it takes no more.
    fn send_message(&mut self, _uuid: Uuid, _text: &str) -> Option<Vec<RuntimeEffect>> {
        None
    }
    /// Hands over what was decided about [`RuntimeEffect::Ask`].
    fn deliver_answer(&mut self, _ask: &str, _answer: &QuestionAnswer) -> Vec<RuntimeEffect> {
        Vec::new()
    }
    /// Asks the agent to stop what it does and to end.
    fn interrupt(&mut self) -> Vec<RuntimeEffect>;
    /// Hands over the reply to [`RuntimeEffect::Mcp`].
    fn deliver_mcp_reply(&mut self, _call: &str, _reply: Json) -> Vec<RuntimeEffect> {
        Vec::new()
    }
    /// Says whether the agent waits for what a tool does: its silence is no stall.
    fn waits_for_tool(&self) -> bool {
        false
    }
    /// Says what is still to be recorded of an agent that exited and whose output was read to its
    /// end. `code` is none when a signal ended it.
    fn handle_exit(&mut self, _code: Option<i32>) -> Vec<RuntimeEffect> {
        Vec::new()
    }
}

/// What the loop does for a runtime.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RuntimeEffect {
    /// One whole line for the agent's standard input, with its newline.
    Write(Vec<u8>),
    /// Nothing more will be said: the agent's standard input is closed once all is written.
    CloseInput,
    /// A signal to the agent's process.
    Signal(Signal),
    /// Recorded, tallied, told to subscribers.
    Message(AgentMessage),
    /// A person is asked; denied at once when nobody attends.
    Ask {
        /// Names it, in its file and in the answer. Free text of the agent: the loop checks it.
        id: String,
        /// What kind of answer it wants.
        kind: AgentQuestionKind,
        /// The tool that asks.
        tool: String,
        /// What it wants to do, or asks.
        input: Json,
    },
    /// The agent does not want to know any more.
    Withdraw {
        /// The id given with [`RuntimeEffect::Ask`].
        ask: String,
    },
    /// A JSON-RPC message for an injected MCP server.
    Mcp {
        /// Names the call in [`AgentRuntime::deliver_mcp_reply`].
        call: String,
        /// The server.
        server: String,
        /// The message.
        message: Json,
    },
    /// The turn ended and nothing is queued or runs in the background: the run may end.
    Done,
}

/// What kind of answer an agent wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentQuestionKind {
    /// May it?
    Permission,
    /// Which?
    Question,
}

impl AgentQuestionKind {
    /// Returns the word for it in `asks/<id>.json`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            AgentQuestionKind::Permission => "permission",
            AgentQuestionKind::Question => "question",
        }
    }
}

/// What a runtime is made from.
pub(crate) struct RuntimeContext<'s> {
    /// What the run is to do.
    pub(crate) spec: &'s RunSpec,
    /// What the program gives it.
    pub(crate) host: &'s RunnerHost,
    /// The MCP servers of ours.
    pub(crate) injected: &'s InjectedMcpServers,
    /// Where they can be reached over HTTP, for the runtime that needs it.
    pub(crate) endpoint: Option<&'s McpBridgeEndpoint>,
}

/// Makes the runtime of a run, or says why it must not run.
pub(crate) fn build_runtime(
    surroundings: &RuntimeContext<'_>,
) -> Result<Box<dyn AgentRuntime>, String> {
    let RuntimeContext { spec, host, injected, endpoint } = surroundings;
    let brief = &host.brief;
    let prompt = brief.prompt.clone();
    match (spec.runtime, &brief.work) {
        (RuntimeType::Sdk, RuntimeLaunchSpec::Claude(claude)) => {
            let setup = claude_options(spec, claude, injected, &InjectedMcpTransport::InProcess);
            let sdk = SdkRuntime::claude(prompt, setup).map_err(|refusal| refusal.to_string())?;
            Ok(Box::new(sdk))
        }
        (RuntimeType::Cli, RuntimeLaunchSpec::Claude(claude)) => {
            let endpoint = endpoint.ok_or("the agent's tools have no address")?.clone();
            let setup =
                claude_options(spec, claude, injected, &InjectedMcpTransport::Http(endpoint));
            let cli =
                ClaudeCliRuntime::new(prompt, setup).map_err(|refusal| refusal.to_string())?;
            Ok(Box::new(cli))
        }
        (RuntimeType::Scripted, RuntimeLaunchSpec::Script { steps }) => {
            let (program, spec) = (host.program.clone(), (*spec).clone());
            let (steps, secrets) = (steps.clone(), brief.secrets.clone());
            let launch = move |start: &SessionStart| {
                scripted::launch(&program, &spec, &steps, &secrets, start)
            };
            Ok(Box::new(SdkRuntime::new(prompt, Box::new(launch))))
        }
        (RuntimeType::Command, RuntimeLaunchSpec::Command { command }) => {
            let runtime = CommandRuntime::new(prompt, command.clone());
            // Of a part of a workflow the command is made when it begins, so nobody else knows it.
            Ok(Box::new(if spec.keep_output { runtime.with_command_recorded() } else { runtime }))
        }
        (runtime, _) => Err(format!("the brief is not one of runtime `{runtime}`")),
    }
}

fn claude_options(
    spec: &RunSpec,
    claude: &ClaudeLaunchSpec,
    injected: &InjectedMcpServers,
    transport: &InjectedMcpTransport,
) -> ClaudeLaunchOptions {
    ClaudeLaunchOptions {
        brief: claude.clone(),
        limits: spec.limits.clone(),
        mcp: mcp::build_mcp_config(&claude.mcp_servers, injected, transport),
        injected: injected.names().map(str::to_owned).collect(),
        long_running: mcp::has_long_running(injected),
        is_root: rustix::process::geteuid().is_root(),
    }
}
