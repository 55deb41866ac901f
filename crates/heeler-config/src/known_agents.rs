//! The table of known agents that speak ACP: their command lines, their modes and their deviations
//! from the protocol.
//!
//! The table is the file `known_agents.yaml`. A new agent is a new entry, without code. Start at
//! [`find_known_agent`].

use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

use crate::egress::EgressPreset;
use crate::login::LoginSigns;
use crate::shape::read_default;
use crate::static_data::{
    StaticText, optional_static_text, static_numbers, static_pairs, static_text, static_texts,
};

/// Text of the table.
const TABLE: &str = include_str!("known_agents.yaml");

/// Known agent that speaks ACP. The flags describe the tested version.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownAgent {
    /// Value of the key `program`.
    #[serde(deserialize_with = "static_text")]
    pub name: StaticText,
    /// Name for people.
    #[serde(deserialize_with = "static_text")]
    pub title: StaticText,
    /// Package that contains the program, for people who install it.
    #[serde(deserialize_with = "static_text")]
    pub package: StaticText,
    /// Version with which the entry was checked.
    #[serde(deserialize_with = "static_text")]
    pub tested_version: StaticText,
    /// Program name, looked up on `PATH`.
    #[serde(deserialize_with = "static_text")]
    pub program: StaticText,
    #[serde(default, deserialize_with = "static_texts")]
    pub args: &'static [&'static str],
    /// Variables of the agent. The agent's own `env` takes precedence.
    #[serde(default, deserialize_with = "static_pairs")]
    pub env: &'static [(&'static str, &'static str)],
    /// Hosts that the agent needs in a sandbox, if they have a preset.
    #[serde(default)]
    pub preset: Option<EgressPreset>,
    /// Other hosts of the agent's default API and login.
    #[serde(default, deserialize_with = "static_texts")]
    pub hosts: &'static [&'static str],
    /// Choice of the API, for an agent without a default one.
    #[serde(default)]
    pub provider: Option<ProviderChoice>,
    /// Variables that name the URL of the agent's API. A URL of another host replaces `preset` and
    /// `hosts`.
    #[serde(default, deserialize_with = "static_texts")]
    pub base_url_variables: &'static [&'static str],
    /// Modes of the agent, by their meaning.
    #[serde(default)]
    pub modes: KnownModes,
    /// Beginning of a text by which the agent tells the ID of its mode, as if it were the model's.
    #[serde(default, deserialize_with = "optional_static_text")]
    pub mode_notice: Option<StaticText>,
    /// True if the agent asks before it runs a command. The runner asks about the commands that an agent
    /// leaves to it.
    #[serde(default = "yes")]
    pub asks_before_commands: bool,
    /// True if the agent asks about a tool before it reports the input as such. Until then, the input
    /// is the text of the call's content.
    #[serde(default)]
    pub streams_input: bool,
    /// Services of the client that the agent uses. Only these are offered to it, and only to an agent
    /// without a sandbox.
    #[serde(default)]
    pub client_tools: ClientTools,
    #[serde(default)]
    pub usage: UsageScope,
    /// Beginnings of a reply that is an API error, although the turn ends normally.
    #[serde(default, deserialize_with = "static_texts")]
    pub error_prefixes: &'static [&'static str],
    /// Like `error_prefixes`, if the reply also contains an HTTP status.
    #[serde(default, deserialize_with = "static_texts")]
    pub status_error_prefixes: &'static [&'static str],
    /// True if a turn that ends normally without usage failed: its reply is the error.
    #[serde(default)]
    pub error_without_usage: bool,
    /// True if a turn that ends normally without a text or a tool call failed.
    #[serde(default)]
    pub error_without_reply: bool,
    /// Error codes of the agent that mean a wrong or missing login, besides the standard one.
    #[serde(default, deserialize_with = "static_numbers")]
    pub login_error_codes: &'static [i64],
    /// True if the agent exits when its input ends.
    #[serde(default = "yes")]
    pub exits_at_end_of_input: bool,
    /// Signs of a login, or the name of the program that has the same: `claude`, `codex`.
    #[serde(default = "no_signs", deserialize_with = "login_signs")]
    pub login: LoginSigns,
    /// Directories below the home directory that the agent writes. `heeler init` adds no agent for a
    /// program without them.
    #[serde(default, deserialize_with = "static_texts")]
    pub state_folders: &'static [&'static str],
}

fn yes() -> bool {
    true
}

fn no_signs() -> LoginSigns {
    LoginSigns::NONE
}

fn login_signs<'de, D: Deserializer<'de>>(from: D) -> Result<LoginSigns, D::Error> {
    let signs = Json::deserialize(from)?;
    match signs.as_str() {
        Some("claude") => Ok(LoginSigns::CLAUDE),
        Some("codex") => Ok(LoginSigns::CODEX),
        _ => LoginSigns::deserialize(signs).map_err(serde::de::Error::custom),
    }
}

/// Variable by which an agent chooses its API.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderChoice {
    #[serde(deserialize_with = "static_text")]
    pub variable: StaticText,
    /// Values of the variable that have a preset: the value, and the name of the preset.
    #[serde(deserialize_with = "static_pairs")]
    pub presets: &'static [(&'static str, &'static str)],
}

impl ProviderChoice {
    /// Returns the preset of a value of the variable.
    pub fn preset(&self, value: &str) -> Option<EgressPreset> {
        let (_, preset) = self.presets.iter().find(|(known, _)| *known == value)?;
        preset.parse().ok()
    }
}

/// Services that an ACP client can offer to its agent, and that an agent then uses instead of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
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
#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KnownModes {
    /// The agent asks before each action. It is set for every permission mode for which Heeler
    /// answers or forwards the questions.
    #[serde(deserialize_with = "optional_static_text")]
    pub ask: Option<StaticText>,
    /// The agent asks nothing.
    #[serde(deserialize_with = "optional_static_text")]
    pub bypass: Option<StaticText>,
    /// The agent changes nothing.
    #[serde(deserialize_with = "optional_static_text")]
    pub plan: Option<StaticText>,
    /// The agent decides what to ask.
    #[serde(deserialize_with = "optional_static_text")]
    pub auto: Option<StaticText>,
}

/// Requests that the token counts of a turn cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageScope {
    /// All requests of the turn.
    #[default]
    Turn,
    /// Only the last request of the turn: the counts are a lower bound.
    LastRequest,
    /// All requests of the session.
    Session,
    /// Nothing is reported.
    None,
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

/// Known agents, in the order of the table.
pub static KNOWN_AGENTS: LazyLock<Vec<KnownAgent>> =
    LazyLock::new(|| read_table(TABLE).expect("a test reads the table that is compiled in"));

fn read_table(text: &str) -> Result<Vec<KnownAgent>, serde_json::Error> {
    // A text that is no YAML has no entries, which is an error too.
    serde_json::from_value(read_default::<Json>(text).unwrap_or_default())
}

/// Returns the known agent with this name.
pub fn find_known_agent(name: &str) -> Option<&'static KnownAgent> {
    KNOWN_AGENTS.iter().find(|agent| agent.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::HostPattern;

    #[test]
    fn every_known_agent_is_found_by_its_own_name_only() {
        assert!(!KNOWN_AGENTS.is_empty());
        for agent in KNOWN_AGENTS.iter() {
            assert_eq!(find_known_agent(agent.name), Some(agent));
            let same = KNOWN_AGENTS.iter().filter(|other| other.name == agent.name);
            assert_eq!(same.count(), 1, "{}", agent.name);
        }
        assert_eq!(find_known_agent(""), None);
    }

    #[test]
    fn every_known_agent_can_be_started_and_described() {
        for agent in KNOWN_AGENTS.iter() {
            let texts =
                [agent.name, agent.title, agent.package, agent.program, agent.tested_version];
            assert!(texts.iter().all(|text| !text.trim().is_empty()), "{agent:?}");
            assert!(agent.package.starts_with("npm ") || agent.package.starts_with("PyPI "));
            assert!(!agent.program.contains('/'), "it is looked up on PATH: {}", agent.program);
            assert!(!agent.login.cure.is_empty(), "{}", agent.name);
            let variables = agent.env.iter().map(|(name, _)| name);
            let variables = variables.chain(agent.base_url_variables).chain(agent.login.variables);
            for name in variables {
                let is_plain =
                    |byte: u8| byte.is_ascii_uppercase() || b"_0123456789".contains(&byte);
                assert!(name.bytes().all(is_plain), "{}: {name}", agent.name);
            }
            for path in agent.login.files.iter().chain(agent.state_folders) {
                let is_below_home = path.starts_with('.') && !path.contains("..");
                assert!(is_below_home, "{}: {path}", agent.name);
            }
            for host in agent.hosts {
                assert!(host.parse::<HostPattern>().is_ok(), "{}: {host}", agent.name);
            }
            for (value, preset) in agent.provider.iter().flat_map(|it| it.presets) {
                assert!(preset.parse::<EgressPreset>().is_ok(), "{value}: {preset}");
            }
            // An agent that asks is put into its mode that asks, if it has modes.
            let KnownModes { ask, bypass, plan, auto } = &agent.modes;
            let has_modes = bypass.is_some() || plan.is_some() || auto.is_some();
            assert_eq!(ask.is_some(), has_modes, "{}", agent.name);
            assert!(agent.mode_notice.is_none_or(|text| !text.is_empty()), "{}", agent.name);
        }
    }

    #[test]
    fn an_entry_has_only_keys_that_mean_something_and_needs_its_texts() {
        let entry = "- {name: a, title: A, package: npm a, tested_version: 1.0.0, program: a}";
        let read = read_table(entry).unwrap();
        assert!(read[0].asks_before_commands && read[0].exits_at_end_of_input);
        assert_eq!((read[0].usage, read[0].login), (UsageScope::Turn, LoginSigns::NONE));
        for damaged in [
            entry.replace("name: a, ", ""),
            entry.replace("program: a", "program: a, promts: []"),
            entry.replace("program: a", "program: a, usage: week"),
            entry.replace("program: a", "program: a, preset: nowhere"),
            entry.replace("program: a", "program: a, login: {cure: b, file: c}"),
            entry.replace("program: a", "program: a, modes: {asks: b}"),
            entry.replace("program: a", "program: a, provider: {variable: B}"),
            "{".to_owned(),
            String::new(),
        ] {
            assert!(read_table(&damaged).is_err(), "{damaged}");
        }
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
