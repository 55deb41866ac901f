//! The environment of an agent, and the secrets in it.
//!
//! Start at [`select_environment`].

use std::collections::BTreeMap;

use heeler_config::{AgentConfig, McpServer, McpTransport, SecretText, WebUrl};
use indexmap::IndexMap;
use thiserror::Error;
use url::Url;

use crate::redact::{ShortSecretError, check_secret, is_secret_name};

/// Variables that every agent gets; others must be listed in the config.
const PASSED_VARIABLES: [&str; 7] = ["PATH", "HOME", "USER", "LANG", "TERM", "TZ", "TMPDIR"];

/// Prefixes of further variables that every agent gets.
const PASSED_PREFIXES: [&str; 3] = ["LC_", "CLAUDE_", "ANTHROPIC_"];

/// Marker variable by which a run's processes are found; the runner sets it.
const MARKER: &str = "HEELER_RUN";

/// PATH if the environment has none, as under cron.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// Headers that carry a secret in every case.
const SECRET_HEADERS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-auth"];

/// Failure to make an agent's environment.
#[derive(Debug, Error)]
pub enum AgentEnvironmentError {
    #[error(
        "{agent} needs the secret {name}, and it is set neither in the environment nor in the \
         `.env` beside the config"
    )]
    Missing {
        agent: String,
        /// The variable.
        name: String,
    },
    #[error(transparent)]
    Short(#[from] ShortSecretError),
}

/// Environment and secrets of an agent.
pub struct AgentEnvironment {
    pub env: IndexMap<String, String>,
    /// Values that Heeler must never write.
    pub secrets: Vec<String>,
    /// Those of the secrets that are not the agent's own: settings of `.env`, secrets of other
    /// agents. They may be process arguments, because they may be settings of the agent.
    pub shared_secrets: Vec<String>,
}

/// Selects the variables that the agent gets.
pub fn select_environment(
    agent: &AgentConfig,
    around: &BTreeMap<String, String>,
) -> Result<AgentEnvironment, AgentEnvironmentError> {
    let passed = |name: &str| {
        PASSED_VARIABLES.contains(&name)
            || PASSED_PREFIXES.iter().any(|start| name.starts_with(start))
    };
    let own = around.iter().filter(|(name, _)| passed(name));
    let mut env: IndexMap<String, String> =
        own.map(|(name, value)| (name.clone(), value.clone())).collect();
    // Without a path no agent program would be found.
    env.entry("PATH".to_owned()).or_insert_with(|| PATH_DEFAULT.to_owned());

    let configured = agent.env.get();
    for name in &agent.secrets {
        let name = name.as_str();
        // The config has precedence, as for every other variable.
        let value = configured.get(name).map(|value| value.expose());
        let value = value.or_else(|| around.get(name).map(String::as_str));
        // An empty secret is a mistake, and an agent would only fail later and less clearly.
        let value = value.filter(|value| !value.is_empty()).ok_or_else(|| {
            AgentEnvironmentError::Missing { agent: agent.name.to_string(), name: name.to_owned() }
        })?;
        check_secret(name, value)?;
        env.insert(name.to_owned(), value.to_owned());
    }
    for (name, value) in configured {
        env.insert(name.clone(), value.expose().to_owned());
    }
    // The marker identifies processes of a run; an agent must not inherit that of another.
    env.shift_remove(MARKER);

    let own = own_secrets(agent, around);
    let shared = agent.fleet_secrets.values().iter().filter(|value| !own.contains(value));
    let shared_secrets = shared.cloned().collect();
    Ok(AgentEnvironment { env, secrets: secrets(agent, around), shared_secrets })
}

/// Lists the values that Heeler must never write: the secrets of the agent itself and those of the
/// whole fleet, which it may find in files.
pub fn secrets(agent: &AgentConfig, around: &BTreeMap<String, String>) -> Vec<String> {
    let mut secrets = own_secrets(agent, around);
    secrets.extend(agent.fleet_secrets.values().iter().cloned());
    // Sorted, so that the list and everything derived from it is the same each time.
    secrets.sort();
    secrets.dedup();
    secrets
}

/// Lists the secrets of an agent: variables named like secrets in the environment and in the
/// agent's own variables, secrets named in the config, and the secrets of its MCP servers. This
/// also works if the agent's environment is incomplete.
fn own_secrets(agent: &AgentConfig, around: &BTreeMap<String, String>) -> Vec<String> {
    let own: IndexMap<String, String> = agent
        .env
        .get()
        .iter()
        .map(|(name, value)| (name.clone(), value.expose().to_owned()))
        .collect();
    let mut secrets = named_secrets(around.iter());
    secrets.extend(named_secrets(own.iter()));
    for name in &agent.secrets {
        let name = name.as_str();
        let value = own.get(name).or_else(|| around.get(name));
        // Short values were accepted as plain variables, and redacting them would destroy texts.
        secrets.extend(value.filter(|value| check_secret(name, value).is_ok()).cloned());
    }
    agent.mcp_servers.values().for_each(|server| add_secrets_of(server, &mut secrets));
    secrets
}

/// Lists the values of variables that are named like secrets, and the passwords of addresses in other
/// variables, if they are long enough.
pub fn named_secrets<'e>(env: impl Iterator<Item = (&'e String, &'e String)>) -> Vec<String> {
    env.flat_map(|(name, value)| match is_secret(name, value) {
        true => vec![value.clone()],
        // A program may print the password without the address, as a driver of a database does.
        false => url_secrets(value),
    })
    .collect()
}

fn is_secret(name: &str, value: &str) -> bool {
    is_secret_name(name) && check_secret(name, value).is_ok()
}

fn add_secrets_of(server: &McpServer, secrets: &mut Vec<String>) {
    match &server.transport {
        McpTransport::Stdio { env, .. } => {
            let values = env.get().iter().map(|(name, value)| (name, value.expose()));
            let found = values.filter(|(name, value)| is_secret(name, value));
            secrets.extend(found.map(|(_, value)| value.to_owned()));
        }
        McpTransport::Http { url, headers } | McpTransport::Sse { url, headers } => {
            secrets.extend(call_secrets(url, headers));
        }
    }
}

/// Lists the secrets of an HTTP request: in headers and in the address.
pub fn call_secrets(
    url: &WebUrl,
    headers: &IndexMap<String, SecretText>,
) -> impl Iterator<Item = String> {
    let named = headers.iter().filter(|(name, _)| is_secret_header(name));
    let parts = named.flat_map(|(name, value)| {
        // A token is often a part of the header's value, and appears alone in output.
        parts_of_header(value.expose()).filter(|part| check_secret(name, part).is_ok())
    });
    parts.chain(url_secrets(url.expose()))
}

/// Returns the value of a header and its parts, because programs may print the secret of `Bearer
/// s3cret` or `id=7; session="s3cret"` alone.
fn parts_of_header(value: &str) -> impl Iterator<Item = String> {
    let parts = value.split(|c: char| c.is_whitespace() || ";=,\"'".contains(c));
    // The whole value too: it may be printed unchanged.
    std::iter::once(value).chain(parts).map(str::to_owned)
}

fn is_secret_header(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    is_secret_name(name) || SECRET_HEADERS.iter().any(|start| lower.starts_with(start))
}

/// Returns the password and tokens of an address.
fn url_secrets(address: &str) -> Vec<String> {
    // An address that cannot be parsed has no parts to look at.
    let Ok(url) = address.parse::<Url>() else { return Vec::new() };
    let queried = url.query_pairs().filter(|(name, _)| is_secret_name(name));
    let mut found: Vec<String> = queried.map(|(_, value)| value.into_owned()).collect();
    // Passwords in addresses end up in logs of most programs.
    found.extend(url.password().map(str::to_owned));
    found.retain(|value| check_secret("url", value).is_ok());
    found
}
