//! Agent programs: the key `program`.
//!
//! `runtime` names how to talk to an agent, `program` names the program. A known agent is one entry
//! of [`KNOWN_AGENTS`]: its command line, its modes and its deviations from the protocol, as data.
//! Another agent that speaks ACP needs its path and arguments only. One of the agents also speaks a
//! dialect of Claude's protocol ([`resolve_runtime`]). Start at [`AgentProgram`].

use serde_json::Value as Json;

use crate::known_agents::{KNOWN_AGENTS, KnownAgent, find_known_agent};
use crate::reader::ConfigReader;
use crate::runtime::{PermissionMode, ProgramPath, RuntimeType};
use crate::shape::{ValueShape, section};
use crate::value::ConfigValue;
use crate::yaml::{YamlKind, YamlNode};

/// Version of Codex with which `runtime: codex` was checked.
pub const CODEX_TESTED_VERSION: &str = "0.166.0";

/// Program that an agent with `runtime: codex` starts unless its config names another.
pub const CODEX_PROGRAM: &str = "codex";

/// Variable that names the URL of Codex's API.
pub(crate) const CODEX_BASE_URL_VARIABLE: &str = "OPENAI_BASE_URL";

section! {
    /// Program of an agent with `runtime: acp`, `codex` or `qwen`.
    pub(crate) struct AgentProgramKeys ("program") {
        /// Name of a known agent, as `heeler agent capabilities` lists them. It sets the command
        /// line and the deviations from the protocol.
        agent: Option<String>,
        /// The program: a path, or a name to look up on `PATH`. Defaults to the program of the
        /// known agent.
        path: Option<ProgramPath>,
        /// Arguments of the program. Defaults to those of the known agent.
        args: Option<Vec<String>>,
        /// True if the agent asks before it runs a command. Known agents have their own value;
        /// for others the default is false, and then only `permission_mode: bypassPermissions`
        /// can be honoured.
        asks: Option<bool>,
    }
}

/// Key `program` as written: the name of a known agent, a path, or a block of settings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ProgramSetting {
    Name(String),
    Path(ProgramPath),
    Settings(AgentProgramKeys),
}

impl ConfigValue for ProgramSetting {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![ValueShape::Text, AgentProgramKeys::shape()])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<ProgramSetting> {
        match &node.kind {
            YamlKind::Map(_) => AgentProgramKeys::read(node, reader).map(ProgramSetting::Settings),
            YamlKind::Scalar(scalar) if !scalar.text.contains('/') => {
                String::read(node, reader).map(ProgramSetting::Name)
            }
            _ => ProgramPath::read(node, reader).map(ProgramSetting::Path),
        }
    }
    fn show(&self) -> Json {
        match self {
            ProgramSetting::Name(name) => name.show(),
            ProgramSetting::Path(path) => path.show(),
            ProgramSetting::Settings(keys) => keys.show(),
        }
    }
}

/// Known agent that speaks a dialect of Claude's protocol, besides ACP.
const DIALECT_AGENT: &str = "qwen";

/// Returns the runtime of an agent: `runtime: sdk` with `program: qwen` is `runtime: qwen`.
pub(crate) fn resolve_runtime(
    runtime: RuntimeType,
    setting: Option<&ProgramSetting>,
) -> RuntimeType {
    let agent = match setting {
        Some(ProgramSetting::Name(name)) => Some(name.as_str()),
        Some(ProgramSetting::Settings(keys)) => keys.agent.as_deref(),
        Some(ProgramSetting::Path(_)) | None => None,
    };
    match (runtime, agent) {
        (RuntimeType::Sdk, Some(DIALECT_AGENT)) => RuntimeType::Qwen,
        (runtime, _) => runtime,
    }
}

/// Checked program of an agent with `runtime: acp`, `codex` or `qwen`.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentProgram {
    /// Entry of the table, unless the agent is not in it.
    pub known: Option<&'static KnownAgent>,
    pub path: ProgramPath,
    pub args: Vec<String>,
    /// True if the agent asks before it runs a command.
    pub asks_before_commands: bool,
}

impl AgentProgram {
    /// Returns the name of the agent in messages and in the record of a session: the name of a
    /// known agent, or the program.
    pub fn name(&self) -> &str {
        self.known.map_or(self.path.as_path().as_str(), |known| known.name)
    }

    /// Builds the program from the written key. The error says what is wrong and what to write.
    pub(crate) fn check(
        runtime: RuntimeType,
        setting: Option<&ProgramSetting>,
    ) -> Result<AgentProgram, (String, String)> {
        match runtime {
            RuntimeType::Codex => AgentProgram::codex(setting),
            RuntimeType::Qwen => AgentProgram::qwen(setting),
            _ => AgentProgram::acp(setting),
        }
    }

    fn codex(setting: Option<&ProgramSetting>) -> Result<AgentProgram, (String, String)> {
        let path = match setting {
            None => ProgramPath::named(CODEX_PROGRAM),
            Some(ProgramSetting::Name(name)) => ProgramPath::named(name),
            Some(ProgramSetting::Path(path)) => path.clone(),
            Some(ProgramSetting::Settings(AgentProgramKeys {
                agent: None,
                path,
                args: None,
                asks: None,
            })) => path.clone().unwrap_or_else(|| ProgramPath::named(CODEX_PROGRAM)),
            Some(ProgramSetting::Settings(_)) => {
                let message = "with `runtime: codex` the key `program` has a path only".to_owned();
                return Err((message, "remove the other keys".to_owned()));
            }
        };
        Ok(AgentProgram { known: None, path, args: Vec::new(), asks_before_commands: true })
    }

    fn qwen(setting: Option<&ProgramSetting>) -> Result<AgentProgram, (String, String)> {
        let known = find_known_agent(DIALECT_AGENT).expect("the table has the agent");
        let (path, args) = match setting {
            None => (None, None),
            Some(ProgramSetting::Name(name)) => (Some(ProgramPath::named(name)), None),
            Some(ProgramSetting::Path(path)) => (Some(path.clone()), None),
            Some(ProgramSetting::Settings(AgentProgramKeys { agent, path, args, asks: None }))
                if agent.as_ref().is_none_or(|agent| agent == DIALECT_AGENT) =>
            {
                (path.clone(), args.clone())
            }
            Some(ProgramSetting::Settings(_)) => {
                let message =
                    "with `runtime: qwen` the key `program` has a path and arguments only";
                return Err((message.to_owned(), "remove the other keys".to_owned()));
            }
        };
        Ok(AgentProgram {
            known: Some(known),
            path: path.unwrap_or_else(|| ProgramPath::named(known.program)),
            // The options of the protocol follow them.
            args: args.unwrap_or_default(),
            asks_before_commands: known.asks_before_commands,
        })
    }

    fn acp(setting: Option<&ProgramSetting>) -> Result<AgentProgram, (String, String)> {
        let keys = match setting {
            None => {
                let message = "an agent with `runtime: acp` needs the key `program`".to_owned();
                return Err((message, format!("the name of a known agent: {}", known_names())));
            }
            Some(ProgramSetting::Name(name)) => {
                AgentProgramKeys { agent: Some(name.clone()), path: None, args: None, asks: None }
            }
            Some(ProgramSetting::Path(path)) => {
                AgentProgramKeys { agent: None, path: Some(path.clone()), args: None, asks: None }
            }
            Some(ProgramSetting::Settings(keys)) => keys.clone(),
        };
        let known = match &keys.agent {
            None => None,
            Some(name) => Some(find_known_agent(name).ok_or_else(|| {
                let message = format!("`{name}` is not a known agent");
                let cure = format!(
                    "one of {}; for another agent write `program: {{path: {name}, args: [...]}}`",
                    known_names()
                );
                (message, cure)
            })?),
        };
        let path = keys.path.or_else(|| known.map(|known| ProgramPath::named(known.program)));
        let Some(path) = path else {
            let message = "`program` names no program".to_owned();
            return Err((message, "add `path`, or `agent` with a known agent".to_owned()));
        };
        let known_args = || known.map_or(&[][..], |known| known.args);
        let own_args = || known_args().iter().map(|&arg| arg.to_owned()).collect();
        Ok(AgentProgram {
            known,
            path,
            args: keys.args.unwrap_or_else(own_args),
            asks_before_commands: keys
                .asks
                .unwrap_or_else(|| known.is_some_and(|known| known.asks_before_commands)),
        })
    }

    /// Returns true if the runner executes the commands of the agent, and so asks about them.
    fn leaves_commands(&self, is_isolated: bool) -> bool {
        !is_isolated && self.known.is_some_and(|known| known.client_tools.terminals)
    }

    /// Returns the reason that the agent cannot honour a permission mode, if so.
    pub(crate) fn mode_refusal(
        &self,
        runtime: RuntimeType,
        mode: PermissionMode,
        is_isolated: bool,
    ) -> Option<String> {
        let name = self.name();
        let modes = self.known.map(|known| &known.modes);
        match (runtime, mode) {
            (_, PermissionMode::BypassPermissions | PermissionMode::Delegate) => None,
            (RuntimeType::Codex, PermissionMode::Auto) => {
                Some("Codex has no mode in which it decides what to ask".to_owned())
            }
            // Inside of Heeler's sandbox that of Codex is off, and only it makes Codex read-only.
            (RuntimeType::Codex, PermissionMode::Plan) if is_isolated => Some(
                "Codex is read-only by its own sandbox, which does not run inside another"
                    .to_owned(),
            ),
            (RuntimeType::Codex, _) => None,
            (_, PermissionMode::Plan) => {
                let has_mode = modes.is_some_and(|modes| modes.plan.is_some());
                (!has_mode).then(|| format!("{name} has no mode for planning only"))
            }
            (_, PermissionMode::Auto) => {
                let has_mode = modes.is_some_and(|modes| modes.auto.is_some());
                (!has_mode).then(|| format!("{name} has no mode in which it decides what to ask"))
            }
            (
                _,
                PermissionMode::Default | PermissionMode::AcceptEdits | PermissionMode::DontAsk,
            ) => (!self.asks_before_commands && !self.leaves_commands(is_isolated)).then(|| {
                format!(
                    "{name} runs commands without asking: use `permission_mode: bypassPermissions`, \
                     best with `sandbox: true`"
                )
            }),
        }
    }
}

fn known_names() -> String {
    KNOWN_AGENTS.iter().map(|agent| agent.name).collect::<Vec<_>>().join(", ")
}
