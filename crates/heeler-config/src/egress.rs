//! Network access of a sandboxed agent: the hosts, ports and local addresses that its egress proxy
//! allows.
//!
//! Matching is pure and works on names: the proxy resolves them and asks [`classify_address`] about
//! the result. A name is compared after normalization, so that case, a trailing dot and Unicode do not
//! matter. Start at [`EgressConfig`] and [`EgressRules::judge`].

mod address;
mod host;
mod preset;

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::reader::ConfigReader;
use crate::shape::{ValueShape, section};
use crate::value::{ConfigValue, text_value, word_value};
use crate::words::words;
use crate::yaml::{YamlKind, YamlNode};

pub use address::{AddressClass, classify_address};
pub use host::{HostName, HostNameError, HostPattern, LocalAddress, RequestHost};
pub use preset::EgressPreset;

words! {
    /// Handling of the API credentials of a sandboxed agent.
    pub enum CredentialMode ("credential mode") {
        /// The egress proxy adds the credentials. The agent has only a placeholder.
        Proxied = "proxied",
        /// The agent receives the credentials in its environment.
        Agent = "agent",
    }
}

word_value!(CredentialMode, EgressPreset);

text_value! {
    HostPattern: "a host", "`*.example.com`", None, |host| json!(host.to_string());
    LocalAddress: "a local address", "`127.0.0.1:5432`", None, |local| json!(local.to_string());
}

section! {
    /// Network access of a sandboxed agent. Everything else is refused.
    pub(crate) struct EgressKeys ("network") {
        /// Hosts that the agent may reach: `example.com`, `*.example.com` (the names below it), or
        /// either with a port (`example.com:8443`).
        allow: Vec<HostPattern>,
        /// Named groups of hosts: `anthropic`, `openai`, `google`, `github`, `npm`, `pypi`, `crates`,
        /// `debian`. Defaults to the hosts of the agent's API: `anthropic` for Claude, `openai` for Codex,
        /// `google` for Gemini CLI.
        presets: Vec<EgressPreset> = "[anthropic]",
        /// Ports of hosts that are listed without one.
        ports: Vec<NonZeroU16> = "[80, 443]",
        /// Addresses of this machine or of a private network that the agent may reach, as `host:port`.
        /// Link-local addresses, such as those of cloud metadata services, are never allowed.
        allow_local: Vec<LocalAddress>,
    }
}

/// Network access of a sandboxed agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressConfig {
    /// No network. An API with proxied credentials is still reachable.
    None,
    /// The listed hosts only.
    Allow(EgressRules),
}

/// Config word for [`EgressConfig::None`].
const NONE: &str = "none";

impl Default for EgressConfig {
    /// Returns the access of an agent without the key `network`.
    fn default() -> EgressConfig {
        let keys = crate::shape::read_default::<EgressKeys>("{}");
        EgressConfig::Allow(EgressRules::new(&keys.expect("all keys have defaults")))
    }
}

impl EgressConfig {
    /// Returns the rules; without a network they allow nothing.
    pub fn rules(&self) -> EgressRules {
        match self {
            EgressConfig::None => EgressRules::default(),
            EgressConfig::Allow(rules) => rules.clone(),
        }
    }
}

impl ConfigValue for EgressConfig {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![ValueShape::Words(vec![NONE]), EgressKeys::shape()])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<EgressConfig> {
        match &node.kind {
            YamlKind::Scalar(scalar) if scalar.text == NONE => Some(EgressConfig::None),
            YamlKind::Scalar(_) => {
                let message = format!("expected `none` or a map, found {}", node.describe());
                let fault = reader.error(node.at, message).expected("expected `none` or a map");
                // There is no unlimited access: a word for it would be copied everywhere.
                fault.help("list the hosts: `network: {allow: [example.com], presets: [github]}`");
                None
            }
            _ => EgressKeys::read(node, reader)
                .map(|keys| EgressConfig::Allow(EgressRules::new(&keys))),
        }
    }
    fn show(&self) -> Json {
        match self {
            EgressConfig::None => json!(NONE),
            EgressConfig::Allow(rules) => rules.keys().show(),
        }
    }
}

/// Rules of the egress proxy of one run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EgressRules {
    pub allow: Vec<HostPattern>,
    pub presets: Vec<EgressPreset>,
    /// Ports of hosts that are listed without one.
    pub ports: Vec<NonZeroU16>,
    pub allow_local: Vec<LocalAddress>,
}

/// Judgement of the egress rules about a host and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostVerdict {
    /// Allowed at a public address.
    Public,
    /// Allowed, also at an address of this machine or of a private network.
    Local,
    /// The host is not listed.
    UnlistedHost,
    /// The host is listed, but not with this port.
    UnlistedPort,
    /// An IP address that `allow_local` does not list.
    IpLiteral,
}

impl EgressRules {
    fn new(keys: &EgressKeys) -> EgressRules {
        let EgressKeys { allow, presets, ports, allow_local } = keys.clone();
        EgressRules { allow, presets, ports, allow_local }
    }

    fn keys(&self) -> EgressKeys {
        let EgressRules { allow, presets, ports, allow_local } = self.clone();
        EgressKeys { allow, presets, ports, allow_local }
    }

    /// Judges a request for a host and port.
    pub fn judge(&self, host: &RequestHost, port: u16) -> HostVerdict {
        if self.allow_local.iter().any(|local| local.host == *host && local.port.get() == port) {
            return HostVerdict::Local;
        }
        let name = match host {
            RequestHost::Name(name) => name,
            // An address would bypass the list of names.
            RequestHost::Ip(_) => return HostVerdict::IpLiteral,
        };
        let has_port = |pattern: &HostPattern| match pattern.port() {
            Some(listed) => listed.get() == port,
            None => self.ports.iter().any(|listed| listed.get() == port),
        };
        let mut verdict = HostVerdict::UnlistedHost;
        for pattern in self.patterns().filter(|pattern| pattern.matches(name)) {
            if has_port(&pattern) {
                return HostVerdict::Public;
            }
            verdict = HostVerdict::UnlistedPort;
        }
        verdict
    }

    /// Returns the listed hosts and those of the presets.
    fn patterns(&self) -> impl Iterator<Item = HostPattern> {
        let presets = self.presets.iter().flat_map(|preset| preset.patterns());
        self.allow.iter().cloned().chain(presets)
    }

    /// Returns true if these rules allow nothing that the other rules do not allow.
    pub fn is_within(&self, other: &EgressRules) -> bool {
        let has_ports = |pattern: &HostPattern| {
            pattern.port().is_some() || self.ports.iter().all(|port| other.ports.contains(port))
        };
        let wider: Vec<HostPattern> = other.patterns().collect();
        let is_covered =
            |pattern: &HostPattern| wider.iter().any(|wide| wide.covers(pattern, &other.ports));
        self.patterns().all(|pattern| has_ports(&pattern) && is_covered(&pattern))
            && self.allow_local.iter().all(|local| other.allow_local.contains(local))
    }
}

#[cfg(test)]
mod tests;
