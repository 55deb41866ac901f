//! Capabilities of the runtimes: what a config may ask of them.
//!
//! One table answers the check of a config, `heeler agent capabilities` and the page
//! `docs/agents.md`. Keys that a runtime cannot honour are refused with the reason, never ignored.
//! Start at [`RuntimeCapability::offer`].

use crate::agent_program::{AgentProgram, ProgramSetting};
use crate::known_agents::UsageScope;
use crate::names::ApprovalMode;
use crate::reader::{ConfigReader, SourceSpan};
use crate::runtime::{PermissionMode, RuntimeConfig, RuntimeType};
use crate::value::SpannedValue;
use crate::words::words;
use crate::yaml::{YamlKind, YamlNode};

words! {
    /// Feature that some runtimes do not have.
    pub enum RuntimeCapability ("runtime capability") {
        /// A person is asked before an action.
        Questions = "questions",
        /// A person who allows an action may change its input.
        ChangedInput = "changed input",
        /// Each action that is not read-only is asked about (`approvals: review`).
        Review = "review",
        /// Lists of tools are enforced.
        ToolLists = "tool lists",
        /// The number of turns is limited.
        MaxTurns = "max turns",
        /// The cost is known, so budgets hold.
        Cost = "cost",
        /// A message is accepted while the agent works.
        Messages = "messages",
        /// A message reaches the turn that is running.
        Steering = "steering",
        /// A later job continues the session.
        Resume = "resume",
        /// A session is forked at a message.
        Fork = "fork",
        /// A full session continues with a summary.
        Summary = "summary",
        /// A system prompt reaches the model as such.
        SystemPrompt = "system prompt",
        /// MCP servers are passed on.
        McpServers = "mcp servers",
        /// Settings, instructions and plugins of Claude Code.
        ClaudeSettings = "claude settings",
        /// Limits of the API are known before they are reached.
        RateLimits = "rate limits",
        /// The reasoning effort of the model can be chosen.
        Effort = "effort",
    }
}

/// How Qwen Code forks sessions.
const FORK_AS_TEXT: &str = "the first prompt of the fork contains the conversation as text";

/// How Codex forks sessions.
const FORK_OF_CODEX: &str = "its own sessions at the end of a turn; of others, the first prompt \
                             contains the conversation as text";

/// How ACP agents fork sessions.
const FORK_OF_ACP: &str = "its own session at the end, if the agent offers it; otherwise the first \
                           prompt contains the conversation as text";

/// Answer of a runtime to a capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapabilityOffer {
    Offered,
    /// Offered with a restriction that people should know.
    Limited(&'static str),
    /// Not offered. A config that needs it is refused with this reason.
    Missing(&'static str),
}

impl RuntimeCapability {
    /// Returns what a runtime offers.
    pub fn offer(self, runtime: RuntimeType) -> CapabilityOffer {
        use CapabilityOffer::{Missing, Offered};
        match runtime {
            RuntimeType::Sdk => match self {
                RuntimeCapability::Steering => {
                    CapabilityOffer::Limited("a message waits for the next step of the turn")
                }
                _ => Offered,
            },
            RuntimeType::Cli => match self {
                RuntimeCapability::Questions
                | RuntimeCapability::ChangedInput
                | RuntimeCapability::Review => {
                    Missing("the runtime `cli` cannot ask a person: use `runtime: sdk`")
                }
                RuntimeCapability::Messages | RuntimeCapability::Steering => {
                    Missing("the runtime `cli` takes one prompt: use `runtime: sdk`")
                }
                _ => Offered,
            },
            RuntimeType::Acp => self.acp_offer(),
            RuntimeType::Codex => self.codex_offer(),
            RuntimeType::Qwen => self.qwen_offer(),
            RuntimeType::Scripted => match self {
                RuntimeCapability::ToolLists
                | RuntimeCapability::MaxTurns
                | RuntimeCapability::Review
                | RuntimeCapability::ClaudeSettings
                | RuntimeCapability::RateLimits
                | RuntimeCapability::Effort => Missing("a script executes all of its steps"),
                _ => Offered,
            },
            RuntimeType::Command => Missing("a command is a program, not a conversation"),
        }
    }

    fn acp_offer(self) -> CapabilityOffer {
        use CapabilityOffer::{Limited, Missing, Offered};
        match self {
            RuntimeCapability::Questions => Limited("the agent decides what it asks about"),
            RuntimeCapability::ChangedInput => {
                Missing("ACP cannot change the input of an action: allow or deny it")
            }
            RuntimeCapability::Review => {
                Missing("an ACP agent asks only about what it considers worth asking")
            }
            RuntimeCapability::ToolLists => Missing(
                "ACP has no list of tools, and an agent need not ask before it uses one: \
                 restrict the agent by `sandbox`",
            ),
            RuntimeCapability::MaxTurns => Missing("ACP has no limit of turns: use `timeout`"),
            RuntimeCapability::Cost => {
                Limited("by the price of `model`, if the agent reports the tokens of each turn")
            }
            RuntimeCapability::Messages => Offered,
            RuntimeCapability::Steering => Limited("a message waits for the end of the turn"),
            RuntimeCapability::Resume => Limited("if the agent can load a session"),
            RuntimeCapability::Fork => Limited(FORK_OF_ACP),
            RuntimeCapability::Summary => {
                Missing("Heeler does not summarize sessions of ACP agents yet")
            }
            RuntimeCapability::SystemPrompt => {
                Limited("ACP has no system prompt: the text precedes the prompt of each job")
            }
            RuntimeCapability::McpServers => Limited("servers by HTTP if the agent accepts them"),
            RuntimeCapability::ClaudeSettings => Missing("this key is about Claude Code"),
            RuntimeCapability::RateLimits => Missing("ACP reports no limits of the API"),
            RuntimeCapability::Effort => {
                Missing("ACP has no reasoning effort: use the settings of the agent")
            }
        }
    }

    fn codex_offer(self) -> CapabilityOffer {
        use CapabilityOffer::{Limited, Missing, Offered};
        match self {
            RuntimeCapability::Questions => {
                Limited("commands that Codex knows to be read-only run unasked")
            }
            RuntimeCapability::Messages
            | RuntimeCapability::Steering
            | RuntimeCapability::Resume
            | RuntimeCapability::SystemPrompt
            | RuntimeCapability::RateLimits
            | RuntimeCapability::Effort => Offered,
            RuntimeCapability::ChangedInput => {
                Missing("Codex cannot change the input of an action: allow or deny it")
            }
            RuntimeCapability::Review => Missing(
                "Heeler is asked about commands and changed files only, not about MCP tools",
            ),
            RuntimeCapability::ToolLists => {
                Missing("Codex has no list of tools: restrict the agent by `sandbox`")
            }
            RuntimeCapability::MaxTurns => Missing("Codex has no limit of turns: use `timeout`"),
            RuntimeCapability::Cost => Limited("by its tokens and the price of `model`"),
            RuntimeCapability::Fork => Limited(FORK_OF_CODEX),
            RuntimeCapability::Summary => {
                Missing("Heeler does not summarize sessions of Codex yet; Codex compacts them")
            }
            RuntimeCapability::McpServers => Limited("no servers by SSE"),
            RuntimeCapability::ClaudeSettings => Missing("this key is about Claude Code"),
        }
    }

    fn qwen_offer(self) -> CapabilityOffer {
        use CapabilityOffer::{Limited, Missing, Offered};
        match self {
            RuntimeCapability::Questions => Limited(
                "Qwen Code decides what it asks about, and denies a question after 10 minutes",
            ),
            RuntimeCapability::Messages
            | RuntimeCapability::Resume
            | RuntimeCapability::McpServers => Offered,
            RuntimeCapability::ChangedInput => {
                Missing("Qwen Code runs an action with its original input: allow or deny it")
            }
            RuntimeCapability::Review => {
                Missing("Qwen Code asks only about what it considers worth asking")
            }
            RuntimeCapability::ToolLists => Missing(
                "Qwen Code has no hook that enforces a list of tools: restrict the agent by \
                 `sandbox`",
            ),
            RuntimeCapability::MaxTurns => Limited("the limit applies to each message"),
            RuntimeCapability::Cost => Limited("by its tokens and the price of `model`"),
            RuntimeCapability::Steering => Limited("a message waits for the end of the turn"),
            RuntimeCapability::Fork => Limited(FORK_AS_TEXT),
            RuntimeCapability::Summary => Missing(
                "Heeler does not summarize sessions of Qwen Code yet; Qwen Code compresses them",
            ),
            RuntimeCapability::SystemPrompt => {
                Limited("other users of the machine can read it, because it is a process argument")
            }
            RuntimeCapability::ClaudeSettings => Missing("this key is about Claude Code"),
            RuntimeCapability::RateLimits => Missing("Qwen Code reports no limits of the API"),
            RuntimeCapability::Effort => Limited("if the model supports it"),
        }
    }
}

/// Keys of an agent that need a capability, as paths.
const NEEDED_CAPABILITIES: [(&str, RuntimeCapability); 11] = [
    ("tools", RuntimeCapability::ToolLists),
    ("allowed_tools", RuntimeCapability::ToolLists),
    ("denied_tools", RuntimeCapability::ToolLists),
    ("max_turns", RuntimeCapability::MaxTurns),
    ("session.max_turns", RuntimeCapability::MaxTurns),
    ("session.max_context_tokens", RuntimeCapability::Summary),
    ("session.context_window", RuntimeCapability::Summary),
    ("setting_sources", RuntimeCapability::ClaudeSettings),
    ("plugins", RuntimeCapability::ClaudeSettings),
    ("claude_path", RuntimeCapability::ClaudeSettings),
    ("effort", RuntimeCapability::Effort),
];

/// Settings of an agent that depend on the capabilities of its runtime.
pub(crate) struct RuntimeSettings<'a> {
    pub(crate) runtime: RuntimeType,
    /// Merged YAML tree of the agent.
    pub(crate) tree: &'a YamlNode,
    pub(crate) program: Option<&'a SpannedValue<ProgramSetting>>,
    pub(crate) permission_mode: PermissionMode,
    pub(crate) approvals: ApprovalMode,
    /// The config names the model, and its price is known.
    pub(crate) is_priced: bool,
    /// The agent has a sandbox or container of Heeler.
    pub(crate) is_isolated: bool,
    /// The agent runs only if the proxy adds its credentials, and so counts its tokens.
    pub(crate) is_counted: bool,
}

impl RuntimeSettings<'_> {
    /// Checks the program of an agent, and refuses keys that its runtime cannot honour.
    pub(crate) fn check_program(&self, reader: &mut ConfigReader) -> Option<RuntimeConfig> {
        let runtime = self.runtime;
        for (path, capability) in NEEDED_CAPABILITIES {
            if let (Some(at), CapabilityOffer::Missing(reason)) =
                (find_value(self.tree, path), capability.offer(runtime))
            {
                let message = format!("`{path}` cannot be honoured with `runtime: {runtime}`");
                let fault = reader.error(at, message).expected(reason);
                fault.help(format!(
                    "remove the key; if `defaults` sets it, write `{path}: null` for this agent"
                ));
            }
        }
        self.refuse_servers(reader);
        let at = self.program.map_or(self.tree.at, |program| program.at);
        let program = match AgentProgram::check(runtime, self.program.map(|it| &it.value)) {
            Ok(program) => program,
            Err((message, cure)) => {
                reader.error(at, message).expected(cure);
                return None;
            }
        };
        self.refuse_budget(&program, reader);
        if program.known.is_some_and(|known| known.usage == UsageScope::None) {
            self.refuse_prices("the agent reports no tokens", reader);
        }
        if let Some(reason) = program.mode_refusal(runtime, self.permission_mode, self.is_isolated)
        {
            let at = find_value(self.tree, "permission_mode").unwrap_or(self.tree.at);
            let mode = self.permission_mode;
            let message =
                format!("`permission_mode: {mode}` cannot be honoured with `runtime: {runtime}`");
            reader.error(at, message).expected(reason);
        }
        Some(match runtime {
            RuntimeType::Codex => RuntimeConfig::Codex(program),
            RuntimeType::Qwen => RuntimeConfig::Qwen(program),
            _ => RuntimeConfig::Acp(program),
        })
    }

    /// Refuses a budget that does not hold, because the cost of the agent is unknown.
    fn refuse_budget(&self, program: &AgentProgram, reader: &mut ConfigReader) {
        let reports_tokens = program.known.map_or(self.runtime == RuntimeType::Codex, |known| {
            matches!(known.usage, UsageScope::Turn | UsageScope::Session)
        });
        let reason = match (reports_tokens || self.is_counted, self.is_priced) {
            (true, true) => return,
            (true, false) => {
                "the agent reports tokens and no cost: name its `model`, and the price in `prices`"
            }
            (false, _) => {
                "the agent does not report all of its tokens, so no budget holds: use `timeout`"
            }
        };
        for path in ["budget.job", "budget.day", "budget.total"] {
            let Some(at) = find_value(self.tree, path) else { continue };
            let message = format!("`{path}` cannot be honoured with `runtime: {}`", self.runtime);
            let fault = reader.error(at, message).expected(reason);
            fault.help(format!(
                "or remove the key; if `defaults` sets it, write `{path}: null` for this agent"
            ));
        }
    }

    /// Refuses MCP servers that the runtime cannot pass on.
    fn refuse_servers(&self, reader: &mut ConfigReader) {
        if self.runtime != RuntimeType::Codex {
            return;
        }
        let servers = self.tree.get("mcp_servers").map_or(&[][..], YamlNode::entries);
        for (name, server) in servers {
            let Some(transport) = server.get("type") else { continue };
            let is_sse =
                matches!(&transport.kind, YamlKind::Scalar(scalar) if scalar.text == "sse");
            if is_sse {
                let message =
                    format!("the MCP server `{}` cannot be used with `runtime: codex`", name.text);
                let fault = reader.error(transport.at, message);
                fault.expected("Codex has no MCP servers by SSE: use `type: http`");
            }
        }
    }

    /// Refuses prices with a runtime whose cost does not come from tokens.
    pub(crate) fn check_prices(&self, reader: &mut ConfigReader) {
        let reason = match self.runtime {
            // Each program is checked on its own.
            RuntimeType::Acp | RuntimeType::Codex | RuntimeType::Qwen => return,
            RuntimeType::Sdk | RuntimeType::Cli => "Claude Code reports its cost itself",
            RuntimeType::Scripted => "a script reports the cost of its steps itself",
            RuntimeType::Command => "a command uses no model",
        };
        self.refuse_prices(reason, reader);
    }

    fn refuse_prices(&self, reason: &str, reader: &mut ConfigReader) {
        let prices = self.tree.get("prices").filter(|prices| !prices.entries().is_empty());
        let Some(prices) = prices else { return };
        let message = format!("`prices` has no effect with `runtime: {}`", self.runtime);
        let fault = reader.error(prices.at, message).expected(reason);
        fault.help("remove the key; if `defaults` sets it, write `prices: null` for this agent");
    }

    /// Refuses `program` with a runtime that has none.
    pub(crate) fn refuse_program(&self, reader: &mut ConfigReader) {
        let cure = match self.runtime {
            RuntimeType::Acp | RuntimeType::Codex | RuntimeType::Qwen => return,
            RuntimeType::Sdk => {
                "`claude_path` names the `claude` program; other programs need `runtime: acp`"
            }
            RuntimeType::Cli => "`claude_path` names the `claude` program",
            RuntimeType::Scripted | RuntimeType::Command => "this runtime starts no agent program",
        };
        let Some(program) = self.program else { return };
        let message = match self.runtime {
            RuntimeType::Sdk => "with `runtime: sdk`, `program` may only be `qwen`".to_owned(),
            runtime => format!(
                "`program` needs `runtime: acp`, `codex` or `qwen`; the runtime is `{runtime}`"
            ),
        };
        reader.error(program.at, message).expected(cure);
    }

    /// Refuses messages to a running job that the runtime does not take.
    pub(crate) fn check_messages(&self, reader: &mut ConfigReader) {
        let CapabilityOffer::Missing(why) = RuntimeCapability::Messages.offer(self.runtime) else {
            return;
        };
        for platform in ["telegram", "slack", "discord"] {
            let key = format!("chat.{platform}.while_busy");
            let value = key.split('.').try_fold(self.tree, |node, key| node.get(key));
            let is_say = |node: &YamlNode| matches!(&node.kind, YamlKind::Scalar(word) if word.text == "say");
            let Some(value) = value.filter(|node| is_say(node)) else { continue };
            let message =
                format!("`{key}: say` cannot be honoured with `runtime: {}`", self.runtime);
            reader.error(value.at, message).expected(why);
        }
    }

    /// Refuses a review that the runtime cannot ask for: an agent never runs with fewer questions
    /// than its config asks for.
    pub(crate) fn check_review(&self, reader: &mut ConfigReader) {
        let CapabilityOffer::Missing(mut why) = RuntimeCapability::Review.offer(self.runtime)
        else {
            return;
        };
        if matches!(self.runtime, RuntimeType::Scripted | RuntimeType::Command) {
            why = "only Claude with `runtime: sdk` asks before each action";
        }
        if self.approvals == ApprovalMode::Review {
            let at = find_value(self.tree, "approvals").unwrap_or(self.tree.at);
            let message =
                format!("`approvals: review` cannot be honoured with `runtime: {}`", self.runtime);
            reader.error(at, message).expected(why);
        }
    }
}

/// Returns the position of a value that is set. Null hides an inherited value.
pub(crate) fn find_value(tree: &YamlNode, path: &str) -> Option<SourceSpan> {
    let value = path.split('.').try_fold(tree, |node, key| node.get(key))?;
    (!value.is_null()).then_some(value.at)
}
