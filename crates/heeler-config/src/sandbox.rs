//! Sandbox of an agent.

use camino::Utf8PathBuf;
use serde_json::{Value as Json, json};

use crate::egress::{CredentialMode, EgressConfig};
use crate::git_access::GitAccessConfig;
use crate::loopback_forwards::LoopbackForwards;
use crate::reader::ConfigReader;
use crate::shape::{ValueShape, section};
use crate::value::{ConfigValue, word_value};
use crate::words::words;
use crate::yaml::{YamlKind, YamlNode};

/// Config word for no sandbox.
const OFF: &str = "off";

words! {
    /// Use of unix sockets in a sandbox.
    pub enum UnixSocketAccess ("use of unix sockets") {
        /// The agent may create unix sockets.
        Allow = "allow",
        /// The agent may not create unix sockets.
        Deny = "deny",
    }
}

word_value!(UnixSocketAccess);

words! {
    /// Strength of a sandbox.
    pub enum SandboxLevel ("level of a sandbox") {
        /// Namespaces, mounts, a filter of system calls and a proxy.
        Bubblewrap = "bubblewrap",
        /// Limits of files and signals only. In all other respects, the agent has no sandbox.
        Landlock = "landlock",
    }
}

word_value!(SandboxLevel);

section! {
    /// Sandbox in which the agent runs; described in `docs/isolation.md`.
    pub struct SandboxSettings ("sandbox") {
        /// Run the agent in the sandbox.
        enabled: bool = "true",
        /// Strength of the sandbox: `bubblewrap`, or `landlock`, which limits the files and signals of
        /// the agent but not its network, and needs no namespaces.
        level: SandboxLevel = "bubblewrap",
        /// Further files and directories that the agent may write, relative to this file. They must
        /// exist.
        write: Vec<Utf8PathBuf>,
        /// Further files and directories that the agent may read but not write: those that the
        /// sandbox would hide, or that are in the working directory. They must exist.
        read_only: Vec<Utf8PathBuf>,
        /// Further files and directories that the agent must not see.
        deny_read: Vec<Utf8PathBuf>,
        /// Unix sockets that the agent creates itself. `deny` breaks programs that talk to their own
        /// processes by such sockets, among them browsers and Claude's own tools.
        unix_sockets: UnixSocketAccess = "allow",
        /// Hosts that the agent may reach, through a proxy of the run: `none`, or a list. Its API is
        /// reached even with `none` if the credentials are proxied.
        network: EgressConfig = "{}",
        /// Handling of the API credentials: `proxied` (the proxy adds them; the agent has a
        /// placeholder) or `agent` (the agent has them). Defaults to `proxied` if they are in the
        /// environment, and to `agent` for a login, because only the agent's program can renew it.
        credentials: Option<CredentialMode>,
        /// Git repositories that the agent reaches over https with a token that only the proxy has. Fetch
        /// and push work without a login in the sandbox; other repositories do not get the token.
        git: Vec<GitAccessConfig>,
        /// Addresses of this machine or of a private network, as `host:port`, that the agent reaches at the
        /// same port of its own `127.0.0.1`, without the proxy. At most eight.
        forward: LoopbackForwards,
    }
}

/// Sandbox of an agent: `true`, `false`, `off`, or settings.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxConfig(SandboxSettings);

impl SandboxConfig {
    /// Returns the settings, unless the sandbox is off, or only Landlock limits the agent.
    pub fn settings(&self) -> Option<&SandboxSettings> {
        Some(&self.0).filter(|it| it.enabled && it.level == SandboxLevel::Bubblewrap)
    }

    pub(crate) fn settings_mut(&mut self) -> &mut SandboxSettings {
        &mut self.0
    }

    /// Returns the settings if Landlock limits the files of the agent, which has no sandbox then.
    pub fn file_limits(&self) -> Option<&SandboxSettings> {
        Some(&self.0).filter(|it| it.enabled && it.level == SandboxLevel::Landlock)
    }

    /// Returns the settings of a sandbox for which the config has none.
    pub(crate) fn default_settings() -> SandboxSettings {
        SandboxConfig::switched(true).0
    }

    fn switched(enabled: bool) -> SandboxConfig {
        SandboxConfig(SandboxSettings {
            enabled,
            level: SandboxLevel::Bubblewrap,
            write: Vec::new(),
            read_only: Vec::new(),
            deny_read: Vec::new(),
            unix_sockets: UnixSocketAccess::Allow,
            network: EgressConfig::default(),
            credentials: None,
            git: Vec::new(),
            forward: LoopbackForwards::default(),
        })
    }
}

impl SandboxSettings {
    /// Returns the keys that are set and that Landlock cannot honour.
    pub(crate) fn keys_beyond_landlock(&self) -> Vec<&'static str> {
        let usual = SandboxConfig::default_settings();
        let keys = [
            ("read_only", self.read_only != usual.read_only),
            ("unix_sockets", self.unix_sockets != usual.unix_sockets),
            ("network", self.network != usual.network),
            ("credentials", self.credentials != usual.credentials),
            ("git", self.git != usual.git),
            ("forward", self.forward != usual.forward),
        ];
        keys.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key).collect()
    }
}

impl ConfigValue for SandboxConfig {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![
            ValueShape::Bool,
            ValueShape::Words(vec![OFF]),
            SandboxSettings::shape(),
        ])
    }

    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<SandboxConfig> {
        match &node.kind {
            YamlKind::Map(_) => SandboxSettings::read(node, reader).map(SandboxConfig),
            YamlKind::Scalar(scalar) if scalar.text == OFF => Some(SandboxConfig::switched(false)),
            _ => bool::read(node, reader).map(SandboxConfig::switched),
        }
    }

    fn show(&self) -> Json {
        match self.0 == SandboxConfig::switched(self.0.enabled).0 {
            true => json!(self.0.enabled),
            false => self.0.show(),
        }
    }
}
