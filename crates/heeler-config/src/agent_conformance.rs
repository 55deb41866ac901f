//! The conformance table: what each certified agent does in each scenario, and the version of which
//! that is known.
//!
//! The tests run every scenario that works with the real programs against fake APIs, and read the
//! agents of each scenario from this table. So a cell that says `works` is a test that passed. Start
//! at [`CertifiedAgent::outcome`].

use crate::agent_detection::CLAUDE_TESTED_VERSION;
use crate::agent_program::CODEX_TESTED_VERSION;
use crate::known_agents::find_known_agent;
use crate::words::words;

words! {
    /// Agent whose real program takes part in the conformance suite.
    pub enum CertifiedAgent ("certified agent") {
        Claude = "claude",
        Codex = "codex",
        Gemini = "gemini",
        Goose = "goose",
        /// Qwen Code by ACP.
        Qwen = "qwen",
        /// Qwen Code by its dialect of Claude's protocol.
        QwenSdk = "qwen-sdk",
        Opencode = "opencode",
        Copilot = "copilot",
        Grok = "grok",
        Kimi = "kimi",
        Vibe = "vibe",
        ClaudeAcp = "claude-acp",
        CodexAcp = "codex-acp",
    }
}

words! {
    /// Scenario of the conformance suite.
    pub enum AgentScenario ("scenario") {
        /// The agent answers, and its tokens are counted.
        Text = "text and tokens",
        /// A later job continues the session.
        Resume = "resume",
        /// A session that the agent has lost begins anew.
        LostSession = "lost session",
        /// A new session begins with the conversation of another agent.
        Fork = "fork",
        /// The agent forks a session of its own, and remembers it without the text of the conversation.
        OwnFork = "fork of its own session",
        /// A person allows one command and denies another.
        Permission = "permission allowed and denied",
        /// No person attends, so a command is denied.
        Unattended = "permission without a person",
        /// A person does not answer in time, so a command is denied.
        PermissionTimeout = "permission timeout",
        /// The agent asks a person by Heeler's tool, and gets the answer.
        Question = "question",
        /// Edits are accepted, except of protected files.
        AcceptEdits = "accepted edits",
        /// Nothing is asked.
        Bypass = "bypassed permissions",
        /// A person changes the input of an action.
        ChangedInput = "changed input",
        /// A running text is cancelled.
        CancelText = "cancel in a text",
        /// A running tool is cancelled, and no process is left.
        CancelTool = "cancel in a tool",
        /// The runner gets SIGTERM, and no process is left.
        Terminated = "SIGTERM",
        /// The agent is killed, and no process is left.
        Killed = "agent killed",
        /// A command leaves a process behind, which ends with the run.
        Orphan = "process left behind",
        /// The API refuses the key.
        Status401 = "API error 401",
        /// The API is at its limit.
        Status429 = "API error 429",
        /// The API fails.
        Status500 = "API error 500",
        /// The API is overloaded.
        Status529 = "API error 529",
        /// The API closes the connection in the middle of a reply.
        DroppedStream = "dropped stream",
        /// A message reaches the running turn, or gets the next one.
        Message = "message in a turn",
        /// A system prompt reaches the model.
        SystemPrompt = "system prompt",
        /// A tool of a configured MCP server is called.
        McpServer = "MCP server",
        /// A sub-agent works, and its words are not those of the agent.
        SubAgent = "sub-agent",
        /// The output of a command has megabytes, or is no UTF-8.
        HugeOutput = "huge and binary output",
        /// The number of turns is limited.
        MaxTurns = "max turns",
        /// The cost is limited.
        Budget = "budget",
        /// The tools are limited.
        ToolList = "tool list",
    }
}

/// Result of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScenarioOutcome {
    Works,
    /// The agent does not offer it, for this reason.
    NotOffered(&'static str),
    /// A config that asks for it is refused.
    Refused,
}

impl CertifiedAgent {
    /// Returns the version with which the scenarios were run.
    pub fn version(self) -> &'static str {
        let known = |name| find_known_agent(name).map_or("", |known| known.tested_version);
        match self {
            CertifiedAgent::Claude => CLAUDE_TESTED_VERSION,
            CertifiedAgent::Codex => CODEX_TESTED_VERSION,
            CertifiedAgent::QwenSdk => known("qwen"),
            _ => known(self.as_str()),
        }
    }

    /// Returns true if CI runs the scenarios with this agent. `cargo xtask prove agents` runs all.
    pub fn runs_in_ci(self) -> bool {
        match self {
            CertifiedAgent::Claude
            | CertifiedAgent::Codex
            | CertifiedAgent::Gemini
            | CertifiedAgent::Goose
            | CertifiedAgent::Qwen
            | CertifiedAgent::QwenSdk => true,
            CertifiedAgent::Opencode
            | CertifiedAgent::Copilot
            | CertifiedAgent::Grok
            | CertifiedAgent::Kimi
            | CertifiedAgent::Vibe
            | CertifiedAgent::ClaudeAcp
            | CertifiedAgent::CodexAcp => false,
        }
    }

    /// Returns the result of a scenario with this agent.
    pub fn outcome(self, scenario: AgentScenario) -> ScenarioOutcome {
        use ScenarioOutcome::{NotOffered, Refused, Works};
        match (self, scenario) {
            (CertifiedAgent::Claude, _) => Works,
            (
                CertifiedAgent::Opencode,
                AgentScenario::Permission
                | AgentScenario::Unattended
                | AgentScenario::PermissionTimeout
                | AgentScenario::AcceptEdits
                | AgentScenario::ChangedInput,
            ) => NotOffered("it runs commands without asking"),
            (CertifiedAgent::QwenSdk, AgentScenario::MaxTurns) => Works,
            (
                _,
                AgentScenario::MaxTurns | AgentScenario::ToolList | AgentScenario::ChangedInput,
            ) => Refused,
            (
                CertifiedAgent::Gemini
                | CertifiedAgent::Goose
                | CertifiedAgent::Qwen
                | CertifiedAgent::QwenSdk
                | CertifiedAgent::Copilot
                | CertifiedAgent::Grok
                | CertifiedAgent::Vibe,
                AgentScenario::OwnFork,
            ) => NotOffered("its fork gets the conversation as text"),
            // They report no tokens, or those of the last request of a turn only.
            (
                CertifiedAgent::Goose | CertifiedAgent::Opencode | CertifiedAgent::Kimi,
                AgentScenario::Budget,
            ) => Refused,
            (CertifiedAgent::Vibe, AgentScenario::McpServer | AgentScenario::Question) => {
                NotOffered("it accepts no servers by HTTP")
            }
            (
                CertifiedAgent::Codex | CertifiedAgent::CodexAcp | CertifiedAgent::Vibe,
                AgentScenario::SubAgent,
            ) => NotOffered("its own default settings have no sub-agents"),
            (CertifiedAgent::Kimi, AgentScenario::Text) => NotOffered("it reports no tokens"),
            (CertifiedAgent::Kimi, AgentScenario::Status429) => {
                NotOffered("it says nothing, which counts as a failure of the API")
            }
            (CertifiedAgent::Kimi, AgentScenario::DroppedStream) => {
                NotOffered("it reports the parts as a success")
            }
            (CertifiedAgent::Copilot, AgentScenario::DroppedStream) => {
                NotOffered("it tries again, and then reports the parts as a success")
            }
            (CertifiedAgent::Goose, AgentScenario::AcceptEdits) => {
                NotOffered("its questions do not say that they are about files")
            }
            _ => Works,
        }
    }

    /// Returns the agents with which a scenario works.
    pub fn all_with(scenario: AgentScenario) -> impl Iterator<Item = CertifiedAgent> {
        let agents = CertifiedAgent::ALL.iter().copied();
        agents.filter(move |agent| agent.outcome(scenario) == ScenarioOutcome::Works)
    }
}

/// Renders the table for `docs/agents.md`.
pub(crate) fn conformance_markdown() -> String {
    let mut table = "| scenario |".to_owned();
    for agent in CertifiedAgent::ALL {
        table.push_str(&format!(" {agent} {} |", agent.version()));
    }
    table.push_str("\n|---|");
    CertifiedAgent::ALL.iter().for_each(|_| table.push_str("---|"));
    table.push('\n');
    for scenario in AgentScenario::ALL {
        table.push_str(&format!("| {scenario} |"));
        for agent in CertifiedAgent::ALL {
            let cell = match agent.outcome(*scenario) {
                ScenarioOutcome::Works => "works".to_owned(),
                ScenarioOutcome::NotOffered(why) => format!("not offered: {why}"),
                ScenarioOutcome::Refused => "refused".to_owned(),
            };
            table.push_str(&format!(" {cell} |"));
        }
        table.push('\n');
    }
    table
}
