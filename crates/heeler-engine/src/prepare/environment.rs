//! The environment that an agent gets, and the secrets in it.

use std::collections::BTreeMap;

use heeler_model::config::{AgentConfig, McpServer, McpTransport, SecretText, WebUrl};
use heeler_model::redact::{check_secret, is_secret_name};
use indexmap::IndexMap;
use url::Url;

use super::PrepareError;

/// What every program needs; everything else must be named.
const PASSED_VARIABLES: [&str; 7] = ["PATH", "HOME", "USER", "LANG", "TERM", "TZ", "TMPDIR"];

/// Beginnings of names that are passed too.
const PASSED_PREFIXES: [&str; 3] = ["LC_", "CLAUDE_", "ANTHROPIC_"];

/// The marker by which a run's processes are found; the runner sets it.
const MARKER: &str = "HEELER_RUN";

/// PATH where there is none, as under cron.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// Headers that carry a secret whatever they are called.
const SECRET_HEADERS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-auth"];

/// What an agent is given.
pub(crate) struct AgentEnvironment {
    pub(crate) env: IndexMap<String, String>,
    /// What nothing of ours may write.
    pub(crate) secrets: Vec<String>,
}

/// Chooses from the environment what the agent gets.
pub(crate) fn select_environment(
    agent: &AgentConfig,
    around: &BTreeMap<String, String>,
) -> Result<AgentEnvironment, PrepareError> {
    let passed = |name: &str| {
        PASSED_VARIABLES.contains(&name)
            || PASSED_PREFIXES.iter().any(|start| name.starts_with(start))
    };
    let own = around.iter().filter(|(name, _)| passed(name));
    let mut env: IndexMap<String, String> =
        own.map(|(name, value)| (name.clone(), value.clone())).collect();
    env.entry("PATH".to_owned()).or_insert_with(|| PATH_DEFAULT.to_owned());

    let configured = agent.env.get();
    for name in &agent.secrets {
        let name = name.as_str();
        let value = configured.get(name).map(|value| value.expose());
        let value = value.or_else(|| around.get(name).map(String::as_str));
        let value = value.filter(|value| !value.is_empty()).ok_or_else(|| {
            PrepareError::Secret { agent: agent.name.to_string(), name: name.to_owned() }
        })?;
        check_secret(name, value)?;
        env.insert(name.to_owned(), value.to_owned());
    }
    for (name, value) in configured {
        env.insert(name.clone(), value.expose().to_owned());
    }
    env.shift_remove(MARKER);

    let secrets = secrets(agent, around);
    Ok(AgentEnvironment { env, secrets })
}

/// Lists what nothing of ours may write, also where the agent could not be given all that it needs:
/// what the environment and the agent's own variables hold by convention, what it is to be kept by
/// name, and what its MCP servers are given.
pub(crate) fn secrets(agent: &AgentConfig, around: &BTreeMap<String, String>) -> Vec<String> {
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
        secrets.extend(value.filter(|value| check_secret(name, value).is_ok()).cloned());
    }
    agent.mcp_servers.values().for_each(|server| add_secrets_of(server, &mut secrets));
    secrets.sort();
    secrets.dedup();
    secrets
}

/// Lists the values of variables that hold secrets by convention, where they are long enough.
pub(crate) fn named_secrets<'e>(
    env: impl Iterator<Item = (&'e String, &'e String)>,
) -> Vec<String> {
    env.filter(|(name, value)| is_secret(name, value)).map(|(_, value)| value.clone()).collect()
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

/// Lists the secrets in how somebody is called: in headers, and in the address.
pub(crate) fn call_secrets(
    url: &WebUrl,
    headers: &IndexMap<String, SecretText>,
) -> impl Iterator<Item = String> {
    let named = headers.iter().filter(|(name, _)| is_secret_header(name));
    let parts = named.flat_map(|(name, value)| {
        parts_of_header(value.expose()).filter(|part| check_secret(name, part).is_ok())
    });
    parts.chain(url_secrets(url.expose()))
}

/// Returns the value of a header and its parts: programs show the secret in `Bearer s3cret` and in
/// `id=7; session="s3cret"` by itself.
fn parts_of_header(value: &str) -> impl Iterator<Item = String> {
    let parts = value.split(|c: char| c.is_whitespace() || ";=,\"'".contains(c));
    std::iter::once(value).chain(parts).map(str::to_owned)
}

fn is_secret_header(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    is_secret_name(name) || SECRET_HEADERS.iter().any(|start| lower.starts_with(start))
}

/// An address may hold a password or a token.
fn url_secrets(address: &str) -> Vec<String> {
    let Ok(url) = address.parse::<Url>() else { return Vec::new() };
    let queried = url.query_pairs().filter(|(name, _)| is_secret_name(name));
    let mut found: Vec<String> = queried.map(|(_, value)| value.into_owned()).collect();
    found.extend(url.password().map(str::to_owned));
    found.retain(|value| check_secret("url", value).is_ok());
    found
}
