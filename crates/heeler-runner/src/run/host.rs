//! Services and secrets that the host program provides to a run. Start at [`RunnerHost`].

use std::sync::Arc;

use camino::Utf8PathBuf;
use heeler_model::redact::{SecretRedactor, is_secret_name};
use heeler_model::run::{AgentLaunchSpec, McpServerSpec, ResultSigningKey, RuntimeLaunchSpec};
use jiff::Timestamp;

use crate::mcp::{FleetClient, McpBridgeToken};

/// Services that the host program provides to a run.
pub struct RunnerHost {
    /// Path of the Heeler binary, which also runs scripted agents.
    pub(crate) program: Utf8PathBuf,
    pub(crate) now: fn() -> Timestamp,
    pub(crate) brief: AgentLaunchSpec,
    /// Token for the injected tools where the agent reaches them over HTTP.
    pub(crate) token: McpBridgeToken,
    /// Connection to the fleet, if any.
    pub(crate) fleet_client: Option<Arc<dyn FleetClient>>,
    /// Signs the result.
    pub(crate) result_key: Option<ResultSigningKey>,
    redactor: SecretRedactor,
    argument_redactor: SecretRedactor,
}

impl std::fmt::Debug for RunnerHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The brief and the token hold secrets, which must not reach a log.
        f.debug_struct("Host").field("program", &self.program).finish_non_exhaustive()
    }
}

impl RunnerHost {
    /// Builds the host from the brief. All secrets must be known here; none may be added later.
    pub fn new(program: Utf8PathBuf, now: fn() -> Timestamp, brief: AgentLaunchSpec) -> RunnerHost {
        let token = McpBridgeToken::mint();
        let mut secrets = collect_secrets(&brief);
        // The agent knows the token and may repeat it in its output.
        secrets.push(token.secret().to_owned());
        let redactor = SecretRedactor::new(&secrets);
        let argument_redactor = match brief.shared_secrets.is_empty() {
            true => redactor.clone(),
            false => {
                secrets.retain(|secret| !brief.shared_secrets.contains(secret));
                SecretRedactor::new(&secrets)
            }
        };
        RunnerHost {
            program,
            now,
            brief,
            token,
            fleet_client: None,
            result_key: None,
            redactor,
            argument_redactor,
        }
    }

    /// Adds a connection to the fleet.
    pub fn with_fleet_client(self, client: Arc<dyn FleetClient>) -> RunnerHost {
        RunnerHost { fleet_client: Some(client), ..self }
    }

    /// Sets the key that signs the result.
    pub fn with_result_key(self, key: Option<ResultSigningKey>) -> RunnerHost {
        RunnerHost { result_key: key, ..self }
    }

    /// Returns a copy with another brief. Its secrets must be known already.
    pub(crate) fn with_brief(&self, brief: AgentLaunchSpec) -> RunnerHost {
        // The redactor is kept, because it knows every secret of the run.
        let (program, token) = (self.program.clone(), self.token.clone());
        RunnerHost {
            program,
            now: self.now,
            brief,
            token,
            fleet_client: self.fleet_client.clone(),
            result_key: self.result_key.clone(),
            redactor: self.redactor.clone(),
            argument_redactor: self.argument_redactor.clone(),
        }
    }

    /// Returns the redactor with every secret of the run. All output of this process passes through
    /// it.
    pub fn redactor(&self) -> &SecretRedactor {
        &self.redactor
    }

    /// Returns the redactor with the secrets that must not be process arguments.
    pub(crate) fn argument_redactor(&self) -> &SecretRedactor {
        &self.argument_redactor
    }
}

/// Returns every value that must not be written: those declared as secrets, and those with a name
/// that suggests a secret.
fn collect_secrets(brief: &AgentLaunchSpec) -> Vec<String> {
    let mut secrets = brief.secrets.clone();
    let mut add = |name: &str, value: &String| {
        // This header holds a credential, although its name does not look like it.
        if is_secret_name(name) || name.eq_ignore_ascii_case("authorization") {
            secrets.push(value.clone());
        }
    };
    brief.env.iter().for_each(|(name, value)| add(name, value));
    let servers = match &brief.work {
        RuntimeLaunchSpec::Claude(claude) => Some(&claude.mcp_servers),
        RuntimeLaunchSpec::Acp(program)
        | RuntimeLaunchSpec::Codex(program)
        | RuntimeLaunchSpec::Qwen(program) => Some(&program.mcp_servers),
        RuntimeLaunchSpec::Script { .. } | RuntimeLaunchSpec::Command { .. } => None,
    };
    if let Some(servers) = servers {
        for server in servers.values() {
            let named = match server {
                McpServerSpec::Stdio { env, .. } => env,
                McpServerSpec::Http { headers, .. } | McpServerSpec::Sse { headers, .. } => headers,
            };
            named.iter().for_each(|(name, value)| add(name, value));
        }
    }
    secrets
}
