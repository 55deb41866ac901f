//! Agent programs: the table of known agents, and the key `program`.
//!
//! `runtime` names how to talk to an agent, `program` names the program. A known agent is one entry
//! of [`KNOWN_AGENTS`]: its command line, its modes and its deviations from the protocol, as data.
//! Another agent that speaks ACP needs its path and arguments only. One of the agents also speaks a
//! dialect of Claude's protocol ([`resolve_runtime`]). Start at [`AgentProgram`].

use serde_json::Value as Json;

use crate::agent_detection::LoginSigns;
use crate::egress::EgressPreset;
use crate::reader::ConfigReader;
use crate::runtime::{PermissionMode, ProgramPath, RuntimeType};
use crate::shape::{ValueShape, section};
use crate::value::ConfigValue;
use crate::yaml::{YamlKind, YamlNode};

/// Known agent that speaks ACP. The flags describe the tested version.
#[derive(Debug, PartialEq)]
pub struct KnownAgent {
    /// Value of the key `program`.
    pub name: &'static str,
    /// Name for people.
    pub title: &'static str,
    /// Package that contains the program, for people who install it.
    pub package: &'static str,
    /// Version with which the entry was checked.
    pub tested_version: &'static str,
    /// Program name, looked up on `PATH`.
    pub program: &'static str,
    pub args: &'static [&'static str],
    /// Variables of the agent. The agent's own `env` takes precedence.
    pub env: &'static [(&'static str, &'static str)],
    /// Hosts that the agent needs in a sandbox, if they have a preset.
    pub preset: Option<EgressPreset>,
    /// Variables that name the URL of the agent's API.
    pub base_url_variables: &'static [&'static str],
    /// Modes of the agent, by their meaning.
    pub modes: KnownModes,
    /// Beginning of a text by which the agent tells the ID of its mode, as if it were the model's.
    pub mode_notice: Option<&'static str>,
    /// True if the agent asks before it runs a command. The runner asks about the commands that an agent
    /// leaves to it.
    pub asks_before_commands: bool,
    /// True if the agent asks about a tool before it reports the input as such. Until then, the input
    /// is the text of the call's content.
    pub streams_input: bool,
    /// Services of the client that the agent uses. Only these are offered to it, and only to an agent
    /// without a sandbox.
    pub client_tools: ClientTools,
    pub usage: UsageScope,
    /// Beginnings of a reply that is an API error, although the turn ends normally.
    pub error_prefixes: &'static [&'static str],
    /// Like `error_prefixes`, if the reply also contains an HTTP status.
    pub status_error_prefixes: &'static [&'static str],
    /// True if a turn that ends normally without usage failed: its reply is the error.
    pub error_without_usage: bool,
    /// True if a turn that ends normally without a text or a tool call failed.
    pub error_without_reply: bool,
    /// Error codes of the agent that mean a wrong or missing login, besides the standard one.
    pub login_error_codes: &'static [i64],
    /// True if the agent exits when its input ends.
    pub exits_at_end_of_input: bool,
    pub login: LoginSigns,
    /// Directories below the home directory that the agent writes. `heeler init` adds no agent for a
    /// program without them.
    pub state_folders: &'static [&'static str],
}

/// Services that an ACP client can offer to its agent, and that an agent then uses instead of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientTools {
    /// The client runs the commands of the agent.
    pub terminals: bool,
    /// The client reads text files.
    pub reads: bool,
    /// The client writes text files.
    pub writes: bool,
}

impl ClientTools {
    /// The agent uses none, or none is offered.
    pub const NONE: ClientTools = ClientTools { terminals: false, reads: false, writes: false };
}

/// IDs of an agent's modes.
#[derive(Debug, PartialEq)]
pub struct KnownModes {
    /// The agent asks before each action. It is set for every permission mode for which Heeler
    /// answers or forwards the questions.
    pub ask: Option<&'static str>,
    /// The agent asks nothing.
    pub bypass: Option<&'static str>,
    /// The agent changes nothing.
    pub plan: Option<&'static str>,
    /// The agent decides what to ask.
    pub auto: Option<&'static str>,
}

impl KnownAgent {
    /// Returns true if a text only tells the agent's mode. Any other text is the model's.
    pub fn is_mode_notice(&self, text: &str) -> bool {
        let KnownModes { ask, bypass, plan, auto } = &self.modes;
        let Some(mode) = self.mode_notice.and_then(|start| text.strip_prefix(start)) else {
            return false;
        };
        [ask, bypass, plan, auto].into_iter().flatten().any(|known| *known == mode)
    }
}

/// Requests that the token counts of a turn cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageScope {
    /// All requests of the turn.
    Turn,
    /// Only the last request of the turn: the counts are a lower bound.
    LastRequest,
    /// All requests of the session.
    Session,
    /// Nothing is reported.
    None,
}

/// Entry with default values, for the fields in which agents rarely differ.
const PLAIN: KnownAgent = KnownAgent {
    name: "",
    title: "",
    package: "",
    tested_version: "",
    program: "",
    args: &[],
    env: &[],
    preset: None,
    base_url_variables: &[],
    modes: KnownModes { ask: None, bypass: None, plan: None, auto: None },
    mode_notice: None,
    asks_before_commands: true,
    streams_input: false,
    client_tools: ClientTools::NONE,
    usage: UsageScope::Turn,
    error_prefixes: &[],
    status_error_prefixes: &[],
    error_without_usage: false,
    error_without_reply: false,
    login_error_codes: &[],
    exits_at_end_of_input: true,
    login: LoginSigns::NONE,
    state_folders: &[],
};

/// Known agents. A new agent is a new entry.
pub const KNOWN_AGENTS: &[KnownAgent] = &[
    KnownAgent {
        name: "gemini",
        title: "Gemini CLI",
        package: "npm @google/gemini-cli",
        tested_version: "0.61.0",
        program: "gemini",
        args: &["--acp"],
        // Otherwise it executes itself again as a child that ignores signals.
        env: &[("GEMINI_CLI_NO_RELAUNCH", "true"), ("GEMINI_CLI_TRUST_WORKSPACE", "true")],
        preset: Some(EgressPreset::Google),
        base_url_variables: &["GOOGLE_GEMINI_BASE_URL"],
        modes: KnownModes {
            ask: Some("default"),
            bypass: Some("yolo"),
            plan: Some("plan"),
            auto: None,
        },
        mode_notice: Some("[MODE_UPDATE] "),
        login: LoginSigns {
            files: &[".gemini/oauth_creds.json", ".gemini/gemini-credentials.json"],
            variables: &["GEMINI_API_KEY"],
            has_others: true,
            cure: "run `gemini` and choose a login, or set GEMINI_API_KEY",
        },
        state_folders: &[".gemini"],
        ..PLAIN
    },
    KnownAgent {
        name: "opencode",
        title: "OpenCode",
        package: "npm opencode-ai",
        tested_version: "1.18.33",
        program: "opencode",
        args: &["acp"],
        env: &[("OPENCODE_DISABLE_AUTOUPDATE", "1")],
        // Its default config allows every command, and the protocol cannot change that.
        asks_before_commands: false,
        usage: UsageScope::LastRequest,
        login: LoginSigns {
            files: &[".local/share/opencode/auth.json"],
            cure: "run `opencode auth login`",
            ..LoginSigns::NONE
        },
        ..PLAIN
    },
    KnownAgent {
        name: "qwen",
        title: "Qwen Code",
        package: "npm @qwen-code/qwen-code",
        tested_version: "0.24.4",
        program: "qwen",
        args: &["--acp"],
        // Otherwise it executes itself again as a child, and sends its first request before it knows
        // the tools of its MCP servers.
        env: &[("QWEN_CODE_NO_RELAUNCH", "true"), ("QWEN_CODE_LEGACY_MCP_BLOCKING", "1")],
        base_url_variables: &["OPENAI_BASE_URL"],
        modes: KnownModes {
            ask: Some("default"),
            bypass: Some("yolo"),
            plan: Some("plan"),
            auto: Some("auto"),
        },
        client_tools: ClientTools { terminals: false, reads: false, writes: true },
        login: LoginSigns {
            files: &[".qwen/oauth_creds.json"],
            cure: "run `qwen` and choose a login",
            ..LoginSigns::NONE
        },
        ..PLAIN
    },
    KnownAgent {
        name: "copilot",
        title: "GitHub Copilot CLI",
        package: "npm @github/copilot",
        tested_version: "1.0.102",
        program: "copilot",
        args: &["--acp"],
        env: &[("COPILOT_AUTO_UPDATE", "false")],
        preset: Some(EgressPreset::Github),
        base_url_variables: &["COPILOT_PROVIDER_BASE_URL"],
        usage: UsageScope::Session,
        status_error_prefixes: &["Error: "],
        login: LoginSigns {
            variables: &["COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"],
            cure: "run `copilot` and `/login`, or set COPILOT_GITHUB_TOKEN",
            ..LoginSigns::NONE
        },
        ..PLAIN
    },
    KnownAgent {
        name: "goose",
        title: "goose",
        package: "npm @aaif/goose",
        tested_version: "1.34.0",
        program: "goose",
        args: &["acp"],
        env: &[("GOOSE_MODE", "approve")],
        base_url_variables: &["OPENAI_HOST", "ANTHROPIC_HOST"],
        modes: KnownModes {
            ask: Some("approve"),
            bypass: Some("auto"),
            plan: Some("chat"),
            auto: Some("smart_approve"),
        },
        client_tools: ClientTools { terminals: true, reads: false, writes: true },
        usage: UsageScope::LastRequest,
        error_prefixes: &["Ran into this error: "],
        exits_at_end_of_input: false,
        login: LoginSigns {
            files: &[".config/goose/config.yaml"],
            variables: &["GOOSE_PROVIDER"],
            cure: "run `goose configure`",
            ..LoginSigns::NONE
        },
        ..PLAIN
    },
    KnownAgent {
        name: "kimi",
        title: "Kimi Code",
        package: "npm @moonshot-ai/kimi-code",
        tested_version: "2.1.0",
        program: "kimi",
        args: &["acp"],
        env: &[("KIMI_CODE_NO_AUTO_UPDATE", "1")],
        modes: KnownModes {
            ask: Some("default"),
            bypass: Some("yolo"),
            plan: Some("plan"),
            auto: Some("auto"),
        },
        streams_input: true,
        client_tools: ClientTools { terminals: true, reads: false, writes: false },
        usage: UsageScope::None,
        // It says nothing if the API is at its limit or fails.
        error_without_reply: true,
        ..PLAIN
    },
    KnownAgent {
        name: "grok",
        title: "Grok Build",
        package: "npm @xai-official/grok",
        tested_version: "1.0.41",
        program: "grok",
        args: &["agent", "stdio"],
        env: &[("GROK_DISABLE_AUTOUPDATER", "1")],
        asks_before_commands: false,
        client_tools: ClientTools { terminals: true, reads: true, writes: true },
        login: LoginSigns {
            variables: &["XAI_API_KEY"],
            cure: "run `grok` and log in, or set XAI_API_KEY",
            ..LoginSigns::NONE
        },
        ..PLAIN
    },
    KnownAgent {
        name: "vibe",
        title: "Mistral Vibe",
        package: "PyPI mistral-vibe",
        tested_version: "3.0.2",
        program: "vibe-acp",
        modes: KnownModes {
            ask: Some("ask"),
            bypass: Some("auto-approve"),
            plan: None,
            auto: None,
        },
        usage: UsageScope::Session,
        login_error_codes: &[-31002],
        login: LoginSigns {
            files: &[".vibe/.env"],
            variables: &["MISTRAL_API_KEY"],
            cure: "run `vibe --setup`, or set MISTRAL_API_KEY",
            ..LoginSigns::NONE
        },
        ..PLAIN
    },
    KnownAgent {
        name: "claude-acp",
        title: "Claude Code by its ACP adapter",
        package: "npm @agentclientprotocol/claude-agent-acp",
        tested_version: "0.99.1",
        program: "claude-agent-acp",
        preset: Some(EgressPreset::Anthropic),
        base_url_variables: &["ANTHROPIC_BASE_URL"],
        modes: KnownModes {
            ask: Some("default"),
            bypass: Some("bypassPermissions"),
            plan: Some("plan"),
            auto: Some("auto"),
        },
        login: LoginSigns::CLAUDE,
        ..PLAIN
    },
    KnownAgent {
        name: "codex-acp",
        title: "Codex by its ACP adapter",
        package: "npm @agentclientprotocol/codex-acp",
        tested_version: "2.6.0",
        program: "codex-acp",
        preset: Some(EgressPreset::Openai),
        modes: KnownModes {
            ask: Some("read-only"),
            bypass: Some("agent-full-access"),
            plan: None,
            auto: None,
        },
        error_without_usage: true,
        login: LoginSigns::CODEX,
        ..PLAIN
    },
];

/// Version of Codex with which `runtime: codex` was checked.
pub const CODEX_TESTED_VERSION: &str = "0.166.0";

/// Program that an agent with `runtime: codex` starts unless its config names another.
pub const CODEX_PROGRAM: &str = "codex";

/// Variable that names the URL of Codex's API.
pub(crate) const CODEX_BASE_URL_VARIABLE: &str = "OPENAI_BASE_URL";

/// Returns the known agent with this name.
pub fn find_known_agent(name: &str) -> Option<&'static KnownAgent> {
    KNOWN_AGENTS.iter().find(|agent| agent.name == name)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_agent_is_found_by_its_own_name_only() {
        for agent in KNOWN_AGENTS {
            assert_eq!(find_known_agent(agent.name), Some(agent));
            assert!(!agent.program.is_empty() && !agent.tested_version.is_empty());
        }
        assert_eq!(find_known_agent(""), None);
    }

    #[test]
    fn only_the_mode_itself_is_a_mode_notice() {
        let gemini = find_known_agent("gemini").unwrap();
        assert!(gemini.is_mode_notice("[MODE_UPDATE] yolo"));
        for text in ["[MODE_UPDATE] yolo and more", "[MODE_UPDATE] other", "yolo", ""] {
            assert!(!gemini.is_mode_notice(text), "{text}");
        }
        assert!(!find_known_agent("goose").unwrap().is_mode_notice("[MODE_UPDATE] auto"));
    }
}
