//! The API of an agent: its hosts in a sandbox, and what people can do about its login.
//!
//! The hosts follow from the runtime, the program and the variables that name the API's URL. Start at
//! [`AgentApiHosts::find`] and [`ApiCureWords::new`].

use std::net::IpAddr;
use std::num::NonZeroU16;

use url::{Host, Url};

use crate::agent::{AgentKeys, AgentSource};
use crate::agent_credentials::{find_proxied_api, is_in_table, proxied_agent_name};
use crate::agent_program::{AgentProgram, CODEX_BASE_URL_VARIABLE};
use crate::capabilities::find_value;
use crate::docker::NetworkMode;
use crate::egress::{
    CredentialMode, EgressConfig, EgressPreset, HostPattern, LocalAddress, RequestHost,
};
use crate::known_agents::{KnownAgent, find_known_agent};
use crate::login::LoginSigns;
use crate::reader::ConfigReader;
use crate::runtime::{RuntimeConfig, RuntimeType};
use crate::sandbox::{SandboxConfig, SandboxSettings};
use crate::value::EnvVars;

/// Port of the usual hosts.
const HTTPS_PORT: NonZeroU16 = NonZeroU16::new(443).expect("it is not zero");

/// Hosts of the API of an agent that is not Claude.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct AgentApiHosts {
    presets: Vec<EgressPreset>,
    allow: Vec<HostPattern>,
    allow_local: Vec<LocalAddress>,
    /// Addresses of this machine's own loopback interface, each with the variable that names it. A
    /// sandbox has its own interface, so they have to be forwarded.
    loopback: Vec<(&'static str, LocalAddress)>,
}

/// Reason that a sandboxed agent could not reach its API.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct UnreachableApi {
    pub(crate) message: String,
    pub(crate) cure: String,
}

impl AgentApiHosts {
    /// Finds the hosts. `None` for an agent of which the default is right: Claude, scripts, commands.
    pub(crate) fn find(runtime: &RuntimeConfig, env: &EnvVars) -> Option<AgentApiHosts> {
        let program = runtime.program()?;
        let usual = match (runtime, program.known) {
            (RuntimeConfig::Codex(_), _) => {
                AgentApiHosts { presets: vec![EgressPreset::Openai], ..AgentApiHosts::default() }
            }
            (_, Some(known)) => AgentApiHosts::of_known(known, env),
            (_, None) => AgentApiHosts::default(),
        };
        let mut own = AgentApiHosts::default();
        for &variable in base_url_variables(runtime.kind(), program) {
            if let Some(url) = env.get().get(variable) {
                own.add_url(variable, url.expose());
            }
        }
        // An agent that uses an API of its own needs no access to the usual one.
        Some(if own.is_beyond(&usual) { own } else { usual })
    }

    /// Returns the hosts of a known agent's default API, or of the API that its variable chooses.
    fn of_known(known: &KnownAgent, env: &EnvVars) -> AgentApiHosts {
        let chosen = known.provider.and_then(|provider| {
            let value = env.get().get(provider.variable)?;
            provider.preset(value.expose())
        });
        AgentApiHosts {
            presets: known.preset.into_iter().chain(chosen).collect(),
            // A test parses every host.
            allow: known.hosts.iter().filter_map(|host| host.parse().ok()).collect(),
            ..AgentApiHosts::default()
        }
    }

    /// Returns true if some of these hosts are not among the usual ones.
    fn is_beyond(&self, usual: &AgentApiHosts) -> bool {
        let preset_hosts = usual.presets.iter().flat_map(|preset| preset.hosts());
        let known: Vec<HostPattern> =
            preset_hosts.filter_map(|host| host.parse().ok()).chain(usual.allow.clone()).collect();
        let is_new =
            |host: &HostPattern| !known.iter().any(|usual| usual.covers(host, &[HTTPS_PORT]));
        !self.loopback.is_empty() || !self.allow_local.is_empty() || self.allow.iter().any(is_new)
    }

    /// Adds the host of a URL. A text without a scheme is a host, as goose accepts it.
    fn add_url(&mut self, variable: &'static str, text: &str) {
        let url = Url::parse(text).ok().filter(Url::has_host);
        let Some(url) = url.or_else(|| Url::parse(&format!("https://{text}")).ok()) else { return };
        let port = url.port_or_known_default().and_then(NonZeroU16::new);
        let (Some(host), Some(port)) = (url.host(), port) else { return };
        let address = |host| LocalAddress { host, port };
        match host {
            Host::Domain("localhost") => {
                if let Ok(host) = "localhost".parse() {
                    self.loopback.push((variable, address(host)));
                }
            }
            Host::Domain(name) => {
                if let Ok(name) = name.parse() {
                    self.allow.push(HostPattern::exact(name, port));
                }
            }
            Host::Ipv4(ip) => self.add_address(variable, ip.into(), port),
            Host::Ipv6(ip) => self.add_address(variable, ip.into(), port),
        }
    }

    fn add_address(&mut self, variable: &'static str, ip: IpAddr, port: NonZeroU16) {
        let address = LocalAddress { host: RequestHost::Ip(ip), port };
        if ip.is_loopback() {
            self.loopback.push((variable, address));
        } else if let Ok(local) = address.to_string().parse() {
            // Only addresses of a private network are accepted here.
            self.allow_local.push(local);
        }
    }

    /// Adds the hosts to those of a sandbox. `has_presets` is true if the config lists presets.
    pub(crate) fn add_to(&self, settings: &mut SandboxSettings, has_presets: bool) {
        let EgressConfig::Allow(rules) = &mut settings.network else { return };
        if !has_presets {
            rules.presets.clone_from(&self.presets);
        }
        rules.allow.extend(
            self.allow.iter().filter(|it| !rules.allow.contains(it)).cloned().collect::<Vec<_>>(),
        );
        let local = self.allow_local.iter().filter(|it| !rules.allow_local.contains(it));
        rules.allow_local.extend(local.cloned().collect::<Vec<_>>());
    }

    /// Returns the settings of a container for which the config has no sandbox.
    pub(crate) fn container_settings(&self) -> SandboxSettings {
        let mut settings = SandboxConfig::default_settings();
        self.add_to(&mut settings, false);
        settings
    }

    /// Checks that an agent in this sandbox can reach its API.
    pub(crate) fn check(
        &self,
        runtime: RuntimeType,
        program: &AgentProgram,
        settings: &SandboxSettings,
    ) -> Result<(), UnreachableApi> {
        let forwarded = settings.forward.addresses();
        let ports = |port: NonZeroU16| forwarded.iter().any(|it| it.port == port);
        if let Some((variable, address)) = self.loopback.iter().find(|(_, it)| !ports(it.port)) {
            return Err(UnreachableApi {
                message: format!(
                    "the sandbox has its own loopback interface, so `{variable}` does not reach {address}"
                ),
                cure: format!("add `forward: [{address}]` to `sandbox`"),
            });
        }
        // A config without a network is meant so.
        let EgressConfig::Allow(rules) = &settings.network else { return Ok(()) };
        let has_hosts = !rules.allow.is_empty()
            || !rules.presets.is_empty()
            || !rules.allow_local.is_empty()
            || !forwarded.is_empty();
        if has_hosts {
            return Ok(());
        }
        let name = program.name();
        let provider = program.known.and_then(|known| known.provider);
        let provider = provider.iter().map(|provider| provider.variable);
        let urls = base_url_variables(runtime, program).iter().copied();
        let variables = provider.chain(urls).collect::<Vec<_>>().join(" or ");
        let variables = match variables.as_str() {
            "" => String::new(),
            names => format!(", or set {names} in `env`"),
        };
        Err(UnreachableApi {
            message: format!(
                "Heeler does not know the API host of `{name}`, and a sandbox allows listed hosts only"
            ),
            cure: format!(
                "list it: `sandbox: {{network: {{allow: [api.example.com]}}}}`, or a group of hosts with \
                 `presets: [openai]`{variables}"
            ),
        })
    }
}

/// Adds the hosts of the agent's API to its sandbox. Refuses a sandbox that would cut the agent off,
/// and proxied credentials that no proxy can add.
pub(crate) fn complete_network(
    keys: &mut AgentKeys,
    runtime: Option<&RuntimeConfig>,
    origin: &AgentSource<'_>,
    reader: &mut ConfigReader,
) {
    // A runtime with faults has been reported.
    let Some(runtime) = runtime else { return };
    let Some(program) = runtime.program() else { return };
    let Some(hosts) = AgentApiHosts::find(runtime, &keys.env) else { return };
    let has_presets = find_value(origin.tree, "sandbox.network.presets").is_some();
    let sandbox = keys.sandbox.as_mut().filter(|it| it.value.settings().is_some());
    let docker = keys.docker.as_ref().filter(|it| it.value.enabled);
    let (at, settings) = match (sandbox, docker) {
        (Some(sandbox), _) => {
            let settings = sandbox.value.settings_mut();
            hosts.add_to(settings, has_presets);
            (sandbox.at, settings.clone())
        }
        (None, Some(docker)) => (docker.at, hosts.container_settings()),
        (None, None) => return,
    };
    let kind = runtime.kind();
    let has_proxy = docker.is_none_or(|it| it.value.network == NetworkMode::None);
    // The proxy reaches the API by itself.
    let is_reached = has_proxy && is_proxied(keys, &settings, kind, program);
    if !is_reached && let Err(refusal) = hosts.check(kind, program, &settings) {
        reader.error(at, refusal.message).expected(refusal.cure);
    }
    if settings.credentials == Some(CredentialMode::Proxied) && !can_be_proxied(kind, program) {
        let at = find_value(origin.tree, "sandbox.credentials").unwrap_or(at);
        let message =
            format!("`credentials: proxied` cannot be honoured with `{}`", program.name());
        reader.error(at, message).expected(
            "Heeler knows the APIs of Claude, Codex, Gemini CLI, Qwen Code and goose, and that of \
             Copilot with a key of its own",
        );
    }
}

/// Returns true if the proxy can have the credentials of an agent, as far as its program tells.
fn can_be_proxied(runtime: RuntimeType, program: &AgentProgram) -> bool {
    let preset = program.known.and_then(|known| known.preset);
    preset == Some(EgressPreset::Anthropic)
        || is_in_table(proxied_agent_name(runtime, program.name()))
}

/// Returns true if the key of an agent is in its environment, and the proxy adds it.
fn is_proxied(
    keys: &AgentKeys,
    settings: &SandboxSettings,
    runtime: RuntimeType,
    program: &AgentProgram,
) -> bool {
    let name = proxied_agent_name(runtime, program.name());
    // The values of secrets are known to the run only.
    let is_secret = |name: &str| keys.secrets.iter().any(|secret| secret.as_str() == name);
    let value = |name: &str| match keys.env.get().get(name) {
        Some(value) => Some(value.expose()),
        None => is_secret(name).then_some("(secret)"),
    };
    settings.credentials != Some(CredentialMode::Agent) && find_proxied_api(name, value).is_ok()
}

fn base_url_variables(runtime: RuntimeType, program: &AgentProgram) -> &'static [&'static str] {
    match runtime {
        RuntimeType::Codex => &[CODEX_BASE_URL_VARIABLE],
        _ => program.known.map_or(&[], |known| known.base_url_variables),
    }
}

/// Words about an agent's API for the cure of a failed job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiCureWords {
    /// Name of the agent.
    pub title: String,
    /// How to log in.
    pub login: String,
    /// Variable with the URL of the API.
    pub base_url_variable: Option<&'static str>,
    /// Key of the config that names the program.
    pub program_key: &'static str,
}

impl ApiCureWords {
    /// Returns the words for an agent of a runtime, by the name that a run records for it.
    pub fn new(runtime: RuntimeType, agent: &str) -> ApiCureWords {
        match (runtime, find_known_agent(agent)) {
            (RuntimeType::Codex, _) => ApiCureWords {
                title: "Codex".to_owned(),
                login: LoginSigns::CODEX.cure.to_owned(),
                base_url_variable: Some(CODEX_BASE_URL_VARIABLE),
                program_key: "program",
            },
            (RuntimeType::Acp | RuntimeType::Qwen, Some(known)) => ApiCureWords {
                title: known.title.to_owned(),
                login: known.login.cure.to_owned(),
                base_url_variable: known.base_url_variables.first().copied(),
                program_key: "program",
            },
            (RuntimeType::Acp, None) => ApiCureWords {
                title: agent.rsplit('/').next().unwrap_or(agent).to_owned(),
                login:
                    "log in with the program, or name the variable with its API key in `secrets`"
                        .to_owned(),
                base_url_variable: None,
                program_key: "program",
            },
            _ => ApiCureWords {
                title: "Claude Code".to_owned(),
                login: LoginSigns::CLAUDE.cure.to_owned(),
                base_url_variable: Some("ANTHROPIC_BASE_URL"),
                program_key: "claude_path",
            },
        }
    }
}
