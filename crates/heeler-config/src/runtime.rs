//! Runtimes: the program that executes an agent, and the settings that only Claude has.

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value as Json;

use crate::agent_program::AgentProgram;
use crate::reader::ConfigReader;
use crate::shape::ValueShape;
use crate::value::{ConfigValue, word_value};
use crate::words::words;
use crate::yaml::{YamlKind, YamlNode};

words! {
    /// How Heeler talks to the program that executes an agent.
    pub enum RuntimeType ("runtime") {
        /// Claude Code through the Agent SDK protocol.
        Sdk = "sdk",
        /// Claude Code through `claude -p`.
        Cli = "cli",
        /// Built-in agent that follows a script; it needs no model.
        Scripted = "scripted",
        /// Shell command.
        Command = "command",
        /// Agent program that speaks ACP, the Agent Client Protocol.
        Acp = "acp",
        /// Codex through `codex app-server`.
        Codex = "codex",
        /// Qwen Code through its dialect of the Agent SDK protocol: `runtime: sdk` with
        /// `program: qwen`.
        Qwen = "qwen",
    }
}

words! {
    /// Actions that Claude may take without asking.
    pub enum PermissionMode ("permission mode") {
        /// The actions that Claude's own settings allow.
        Default = "default",
        /// Edit files.
        AcceptEdits = "acceptEdits",
        /// All actions.
        BypassPermissions = "bypassPermissions",
        /// Planning only.
        Plan = "plan",
        /// Allowed tools only; everything else is denied without asking.
        DontAsk = "dontAsk",
        /// Actions that Claude itself considers harmless.
        Auto = "auto",
        /// A mode of earlier versions of Claude; an agent that requests it is refused.
        Delegate = "delegate",
    }
}

words! {
    /// Places from which Claude loads settings.
    pub enum SettingSource ("setting source") {
        /// User settings, in the home directory.
        User = "user",
        /// Project settings, in the working directory.
        Project = "project",
        /// Local settings of the working directory.
        Local = "local",
    }
}

word_value!(RuntimeType, PermissionMode, SettingSource);

/// Runtime of an agent with its runtime-specific settings.
#[derive(Debug, Clone, PartialEq)]
pub enum RuntimeConfig {
    /// Claude Code through the Agent SDK protocol.
    Sdk,
    /// Claude Code through `claude -p`.
    Cli,
    /// Checked steps of a scripted agent.
    Scripted(Vec<Json>),
    Command(String),
    /// Agent program that speaks ACP.
    Acp(AgentProgram),
    /// Codex through its app server.
    Codex(AgentProgram),
    /// Qwen Code through its dialect of the Agent SDK protocol.
    Qwen(AgentProgram),
}

impl RuntimeType {
    /// Returns true if an agent with this runtime has a program of its own, besides Claude Code.
    pub fn has_program(self) -> bool {
        matches!(self, RuntimeType::Acp | RuntimeType::Codex | RuntimeType::Qwen)
    }
}

impl RuntimeConfig {
    /// Returns the program of an agent that is not Claude.
    pub fn program(&self) -> Option<&AgentProgram> {
        match self {
            RuntimeConfig::Acp(program)
            | RuntimeConfig::Codex(program)
            | RuntimeConfig::Qwen(program) => Some(program),
            RuntimeConfig::Sdk
            | RuntimeConfig::Cli
            | RuntimeConfig::Scripted(_)
            | RuntimeConfig::Command(_) => None,
        }
    }

    /// Returns the type of the runtime.
    pub fn kind(&self) -> RuntimeType {
        match self {
            RuntimeConfig::Sdk => RuntimeType::Sdk,
            RuntimeConfig::Cli => RuntimeType::Cli,
            RuntimeConfig::Scripted(_) => RuntimeType::Scripted,
            RuntimeConfig::Command(_) => RuntimeType::Command,
            RuntimeConfig::Acp(_) => RuntimeType::Acp,
            RuntimeConfig::Codex(_) => RuntimeType::Codex,
            RuntimeConfig::Qwen(_) => RuntimeType::Qwen,
        }
    }
}

/// Program to execute: a path, or a name to look up on `PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramPath(Utf8PathBuf);

impl ProgramPath {
    /// Returns a program that is looked up on `PATH`.
    pub(crate) fn named(name: &str) -> ProgramPath {
        ProgramPath(Utf8PathBuf::from(name))
    }

    pub fn as_path(&self) -> &Utf8Path {
        &self.0
    }
}

impl ConfigValue for ProgramPath {
    fn shape() -> ValueShape {
        ValueShape::Text
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<ProgramPath> {
        match &node.kind {
            YamlKind::Scalar(scalar) if !scalar.text.is_empty() && !scalar.text.contains('/') => {
                Some(ProgramPath(Utf8PathBuf::from(&scalar.text)))
            }
            _ => Utf8PathBuf::read(node, reader).map(ProgramPath),
        }
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}
