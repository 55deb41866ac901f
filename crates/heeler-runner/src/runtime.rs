//! One way of running an agent, without IO.
//!
//! A [`Runtime`] is a protocol state machine: lines of the agent and wishes of people go in,
//! [`Step`]s come out, and the one loop of this crate does what they say. A runtime must not read,
//! write, wait or look at a clock. Start at [`Runtime`].

use heeler_model::config::RuntimeType;
use heeler_model::message::Message;
use heeler_model::run::{Answer, ClaudeBrief, RunSpec, SessionStart, Work};
use rustix::process::Signal;
use serde_json::Value as Json;
use uuid::Uuid;

use crate::claude::{Cli, Sdk, Setup};
use crate::command::CommandRuntime;
use crate::mcp::{self, Endpoint, Injected, Transport};
use crate::process::Launch;
use crate::run::Host;
use crate::scripted;

/// One way of running an agent.
pub(crate) trait Runtime {
    /// Says what to start. Asked once for each attempt, before [`Runtime::begin`].
    fn launch(&self, session: &SessionStart) -> Launch;
    /// Says what to send first: the prompt, whose row has this `uuid`. Asked once for each attempt;
    /// everything known of an earlier attempt is forgotten.
    fn begin(&mut self, uuid: Uuid) -> Vec<Step>;
    /// Takes one line of the agent's standard output, without its newline.
    fn line(&mut self, line: &[u8]) -> Vec<Step>;
    /// Says what is to be done with lines that it held back: no further one is there at present.
    fn no_line(&mut self) -> Vec<Step> {
        Vec::new()
    }
    /// Says whether what the agent writes to standard error is worth a row, to people who read what
    /// it did.
    fn records_complaints(&self) -> bool {
        false
    }
    /// Says something more to the agent; `uuid` is the one of its row. `None`: it takes no more.
    fn say(&mut self, _uuid: Uuid, _text: &str) -> Option<Vec<Step>> {
        None
    }
    /// Hands over what was decided about [`Step::Ask`].
    fn answer(&mut self, _ask: &str, _answer: &Answer) -> Vec<Step> {
        Vec::new()
    }
    /// Asks the agent to stop what it does and to end.
    fn interrupt(&mut self) -> Vec<Step>;
    /// Hands over the reply to [`Step::Mcp`].
    fn mcp_reply(&mut self, _call: &str, _reply: Json) -> Vec<Step> {
        Vec::new()
    }
    /// Says whether the agent waits for what a tool does: its silence is no stall.
    fn waits_for_tool(&self) -> bool {
        false
    }
    /// Says what is still to be recorded of an agent that exited and whose output was read to its
    /// end. `code` is none when a signal ended it.
    fn exited(&mut self, _code: Option<i32>) -> Vec<Step> {
        Vec::new()
    }
}

/// What the loop does for a runtime.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// One whole line for the agent's standard input, with its newline.
    Write(Vec<u8>),
    /// Nothing more will be said: the agent's standard input is closed once all is written.
    CloseInput,
    /// A signal to the agent's process.
    Signal(Signal),
    /// Recorded, tallied, told to subscribers.
    Message(Message),
    /// A person is asked; denied at once when nobody attends.
    Ask {
        /// Names it, in its file and in the answer. Free text of the agent: the loop checks it.
        id: String,
        /// What kind of answer it wants.
        kind: AskKind,
        /// The tool that asks.
        tool: String,
        /// What it wants to do, or asks.
        input: Json,
    },
    /// The agent does not want to know any more.
    Withdraw {
        /// The id given with [`Step::Ask`].
        ask: String,
    },
    /// A JSON-RPC message for an injected MCP server.
    Mcp {
        /// Names the call in [`Runtime::mcp_reply`].
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
pub(crate) enum AskKind {
    /// May it?
    Permission,
    /// Which?
    Question,
}

impl AskKind {
    /// Returns the word for it in `asks/<id>.json`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            AskKind::Permission => "permission",
            AskKind::Question => "question",
        }
    }
}

/// What a runtime is made from.
pub(crate) struct Surroundings<'s> {
    /// What the run is to do.
    pub(crate) spec: &'s RunSpec,
    /// What the program gives it.
    pub(crate) host: &'s Host,
    /// The MCP servers of ours.
    pub(crate) injected: &'s Injected,
    /// Where they can be reached over HTTP, for the runtime that needs it.
    pub(crate) endpoint: Option<&'s Endpoint>,
}

/// Makes the runtime of a run, or says why it must not run.
pub(crate) fn of(surroundings: &Surroundings<'_>) -> Result<Box<dyn Runtime>, String> {
    let Surroundings { spec, host, injected, endpoint } = surroundings;
    let brief = &host.brief;
    let prompt = brief.prompt.clone();
    match (spec.runtime, &brief.work) {
        (RuntimeType::Sdk, Work::Claude(claude)) => {
            let setup = setup(spec, claude, injected, &Transport::InProcess);
            let sdk = Sdk::claude(prompt, setup).map_err(|refusal| refusal.to_string())?;
            Ok(Box::new(sdk))
        }
        (RuntimeType::Cli, Work::Claude(claude)) => {
            let endpoint = endpoint.ok_or("the agent's tools have no address")?.clone();
            let setup = setup(spec, claude, injected, &Transport::Http(endpoint));
            let cli = Cli::new(prompt, setup).map_err(|refusal| refusal.to_string())?;
            Ok(Box::new(cli))
        }
        (RuntimeType::Scripted, Work::Script { steps }) => {
            let (program, spec) = (host.program.clone(), (*spec).clone());
            let (steps, secrets) = (steps.clone(), brief.secrets.clone());
            let launch = move |start: &SessionStart| {
                scripted::launch(&program, &spec, &steps, &secrets, start)
            };
            Ok(Box::new(Sdk::new(prompt, Box::new(launch))))
        }
        (RuntimeType::Command, Work::Command { command }) => {
            let runtime = CommandRuntime::new(prompt, command.clone());
            // Of a part of a workflow the command is made when it begins, so nobody else knows it.
            Ok(Box::new(if spec.keep_output { runtime.told() } else { runtime }))
        }
        (runtime, _) => Err(format!("the brief is not one of runtime `{runtime}`")),
    }
}

fn setup(
    spec: &RunSpec,
    claude: &ClaudeBrief,
    injected: &Injected,
    transport: &Transport,
) -> Setup {
    Setup {
        brief: claude.clone(),
        limits: spec.limits.clone(),
        mcp: mcp::config(&claude.mcp_servers, injected, transport),
        injected: injected.names().map(str::to_owned).collect(),
        long_running: mcp::has_long_running(injected),
        root: rustix::process::geteuid().is_root(),
    }
}
