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
            state_folders: known.state_folders,
        }
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
    let mut versions = words.map(|word| word.trim_start_matches('v'));
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
