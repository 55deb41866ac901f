//! Agent programs that Heeler looks for on a machine: how a config uses them, and the tested
//! versions. Start at [`detectable_agents`].

use crate::agent_program::{CODEX_PROGRAM, CODEX_TESTED_VERSION};
use crate::egress::EgressPreset;
use crate::known_agents::{KNOWN_AGENTS, KnownAgent};
use crate::login::LoginSigns;
use crate::runtime::RuntimeType;

/// Program of Claude Code.
pub const CLAUDE_PROGRAM: &str = "claude";

/// Version of Claude Code with which the runtimes `sdk` and `cli` were checked.
pub const CLAUDE_TESTED_VERSION: &str = "2.1.325";

/// Maximum length of a version, in characters.
const VERSION_CHARS_MAX: usize = 40;

/// Maximum number of digits in a number of a version.
const VERSION_DIGITS_MAX: usize = 9;

/// Agent program that Heeler looks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DetectableAgent {
    /// Name in messages, and of the agent that `heeler init` adds.
    pub name: &'static str,
    pub title: &'static str,
    /// Package that contains the program.
    pub package: &'static str,
    /// Program name, looked up on `PATH`.
    pub program: &'static str,
    pub runtime: RuntimeType,
    pub tested_version: &'static str,
    pub login: LoginSigns,
    /// Hosts that the agent needs in a sandbox.
    pub preset: Option<EgressPreset>,
    /// True if the hosts of the agent's API are known, so that it works in a sandbox.
    pub has_known_hosts: bool,
    /// True if the agent asks before it runs a command.
    pub asks_before_commands: bool,
    /// True if an agent without a sandbox leaves its commands to Heeler, which then asks.
    pub leaves_commands: bool,
    /// Directories below the home directory that the program writes, with its login and sessions.
    /// `heeler init` adds no agent for a program without them: it could not run in a sandbox.
    pub state_folders: &'static [&'static str],
}

/// Returns the agents that Heeler looks for: Claude Code, Codex and the known agents.
pub fn detectable_agents() -> Vec<DetectableAgent> {
    let claude = DetectableAgent {
        name: CLAUDE_PROGRAM,
        title: "Claude Code",
        package: "npm @anthropic-ai/claude-code",
        program: CLAUDE_PROGRAM,
        runtime: RuntimeType::Sdk,
        tested_version: CLAUDE_TESTED_VERSION,
        login: LoginSigns::CLAUDE,
        preset: Some(EgressPreset::Anthropic),
        has_known_hosts: true,
        asks_before_commands: true,
        leaves_commands: false,
        state_folders: &[".claude"],
    };
    let codex = DetectableAgent {
        name: CODEX_PROGRAM,
        title: "Codex",
        package: "npm @openai/codex",
        program: CODEX_PROGRAM,
        runtime: RuntimeType::Codex,
        tested_version: CODEX_TESTED_VERSION,
        login: LoginSigns::CODEX,
        preset: Some(EgressPreset::Openai),
        has_known_hosts: true,
        asks_before_commands: true,
        leaves_commands: false,
        state_folders: &[".codex"],
    };
    [claude, codex].into_iter().chain(KNOWN_AGENTS.iter().map(DetectableAgent::known)).collect()
}

impl DetectableAgent {
    fn known(known: &KnownAgent) -> DetectableAgent {
        DetectableAgent {
            name: known.name,
            title: known.title,
            package: known.package,
            program: known.program,
            runtime: RuntimeType::Acp,
            tested_version: known.tested_version,
            login: known.login,
            preset: known.preset,
            has_known_hosts: known.preset.is_some() || !known.hosts.is_empty(),
            asks_before_commands: known.asks_before_commands,
            leaves_commands: known.client_tools.terminals,
            state_folders: known.state_folders,
        }
    }

    /// Returns true if an agent with its default permissions can be written for the program: it asks, or
    /// a sandbox that lets it reach its API limits it.
    pub fn can_be_added(&self, is_sandboxed: bool) -> bool {
        let is_limited = match is_sandboxed {
            true => self.has_known_hosts,
            false => self.asks_before_commands || self.leaves_commands,
        };
        is_limited && !self.state_folders.is_empty()
    }

    /// Returns the keys of an agent that uses the program, for people.
    pub fn config_keys(&self) -> String {
        match self.runtime {
            RuntimeType::Acp => format!("runtime: acp, program: {}", self.name),
            runtime => format!("runtime: {runtime}"),
        }
    }
}

/// Relation of a version to the tested one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionRange {
    Tested,
    Older,
    Newer,
    /// The program reported no version that can be compared.
    Unknown,
}

impl VersionRange {
    /// Compares versions by their first two numbers. Programs rarely change their protocol within
    /// those.
    pub fn of(version: Option<&str>, tested: &str) -> VersionRange {
        let numbers = |text: &str| -> Option<(u64, u64)> {
            let mut parts = text.split('.').map(|part| part.parse().ok());
            Some((parts.next()??, parts.next()??))
        };
        match (version.and_then(numbers), numbers(tested)) {
            (Some(own), Some(tested)) => match own.cmp(&tested) {
                std::cmp::Ordering::Less => VersionRange::Older,
                std::cmp::Ordering::Equal => VersionRange::Tested,
                std::cmp::Ordering::Greater => VersionRange::Newer,
            },
            _ => VersionRange::Unknown,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            VersionRange::Tested => "tested",
            VersionRange::Older => "older",
            VersionRange::Newer => "newer",
            VersionRange::Unknown => "unknown",
        }
    }
}

/// Returns the first word of a program's output that is a version: numbers with dots.
pub fn find_version(output: &str) -> Option<String> {
    let words = output.split(|c: char| c.is_whitespace() || "()/@,".contains(c));
    let is_number = |part: &str| {
        let is_short = (1..=VERSION_DIGITS_MAX).contains(&part.len());
        is_short && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_version = |word: &&str| {
        let mut parts = word.split('.');
        let first_two = [parts.next(), parts.next()];
        let is_plain = word.bytes().all(|byte| byte.is_ascii_graphic());
        is_plain && first_two.into_iter().all(|part| part.is_some_and(is_number))
    };
    // A version may end a sentence.
    let mut versions = words.map(|word| word.trim_start_matches('v').trim_end_matches('.'));
    Some(versions.find(is_version)?.chars().take(VERSION_CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_the_output_of_programs() {
        for (output, version) in [
            ("2.1.325 (Claude Code)", Some("2.1.325")),
            ("codex-cli 0.166.0\n", Some("0.166.0")),
            (" 1.34.0", Some("1.34.0")),
            ("goose v1.0.2-beta", Some("1.0.2-beta")),
            ("qwen/0.24.4 linux", Some("0.24.4")),
            ("GitHub Copilot CLI 1.0.102.\nRun 'copilot update' to update.", Some("1.0.102")),
            ("@agentclientprotocol/codex-acp 2.6.0", Some("2.6.0")),
            ("grok 1.0.41 (4220f3b224a6)", Some("1.0.41")),
            ("the end...", None),
            ("a warning\n0.61.0\n", Some("0.61.0")),
            ("command not found", None),
            ("1\u{1b}[2J.2", None),
            ("99999999999.1", None),
            ("", None),
        ] {
            assert_eq!(find_version(output).as_deref(), version, "{output}");
        }
        let long = find_version(&format!("1.2.{}", "3".repeat(100))).unwrap();
        assert_eq!(long.len(), VERSION_CHARS_MAX);
    }

    #[test]
    fn versions_are_compared_by_two_numbers() {
        for (version, range) in [
            (Some("0.61.7"), VersionRange::Tested),
            (Some("0.60.9"), VersionRange::Older),
            (Some("1.0.0"), VersionRange::Newer),
            (Some("0.100.0"), VersionRange::Newer),
            (Some("new"), VersionRange::Unknown),
            (None, VersionRange::Unknown),
        ] {
            assert_eq!(VersionRange::of(version, "0.61.0"), range, "{version:?}");
        }
    }

    #[test]
    fn agents_are_added_only_with_a_limit_that_holds() {
        let agents = detectable_agents();
        let of = |name: &str| *agents.iter().find(|agent| agent.name == name).unwrap();
        for (name, in_sandbox, without) in [
            ("claude", true, true),
            ("codex", true, true),
            ("gemini", true, true),
            ("copilot", true, true),
            ("kimi", true, true),
            ("vibe", true, true),
            // It leaves its commands to Heeler only without a sandbox.
            ("grok", true, true),
            // It never asks.
            ("opencode", true, false),
            // Its provider is in a file of its own.
            ("goose", false, false),
            // The program that they adapt is added.
            ("claude-acp", false, false),
            ("codex-acp", false, false),
        ] {
            assert_eq!(of(name).can_be_added(true), in_sandbox, "{name}");
            assert_eq!(of(name).can_be_added(false), without, "{name}");
        }
    }

    #[test]
    fn every_agent_is_looked_for_once_and_has_a_version_that_can_be_compared() {
        let agents = detectable_agents();
        for agent in &agents {
            let own = VersionRange::of(Some(agent.tested_version), agent.tested_version);
            assert_eq!(own, VersionRange::Tested, "{}", agent.name);
            let same = agents.iter().filter(|other| other.program == agent.program);
            assert_eq!(same.count(), 1, "{}", agent.program);
        }
    }
}
