//! What the program gives a run, and the secrets in it.

use std::sync::Arc;

use camino::Utf8PathBuf;
use heeler_model::redact::{SecretRedactor, is_secret_name};
use heeler_model::run::{AgentLaunchSpec, McpServerSpec, RuntimeLaunchSpec};
use jiff::Timestamp;

use crate::mcp::{FleetClient, McpBridgeToken};

/// What the program gives a run.
pub struct RunnerHost {
    /// The program itself, which also plays scripted agents.
    pub(crate) program: Utf8PathBuf,
    /// The clock.
    pub(crate) now: fn() -> Timestamp,
    /// What the agent is told and given.
    pub(crate) brief: AgentLaunchSpec,
    /// Opens our tools to the agent, where it reaches them over HTTP.
    pub(crate) token: McpBridgeToken,
    /// The way to the fleet, where there is one.
    pub(crate) fleet_client: Option<Arc<dyn FleetClient>>,
    redactor: SecretRedactor,
}

impl std::fmt::Debug for RunnerHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("program", &self.program).finish_non_exhaustive()
    }
}

impl RunnerHost {
    /// Puts together what a run is given; nothing secret comes later.
    pub fn new(program: Utf8PathBuf, now: fn() -> Timestamp, brief: AgentLaunchSpec) -> RunnerHost {
        let token = McpBridgeToken::mint();
        let mut secrets = collect_secrets(&brief);
        secrets.push(token.secret().to_owned());
        RunnerHost {
            program,
            now,
            brief,
            token,
            fleet_client: None,
            redactor: SecretRedactor::new(&secrets),
        }
    }

    /// Gives the run a way to its fleet.
    pub fn with_fleet_client(self, door: Arc<dyn FleetClient>) -> RunnerHost {
        RunnerHost { fleet_client: Some(door), ..self }
    }

    /// The same with something else to do. Its secrets are known already.
    pub(crate) fn with_brief(&self, brief: AgentLaunchSpec) -> RunnerHost {
        let (program, token) = (self.program.clone(), self.token.clone());
        let (door, redactor) = (self.fleet_client.clone(), self.redactor.clone());
        RunnerHost { program, now: self.now, brief, token, fleet_client: door, redactor }
    }

    /// Returns what knows every secret of the run. Whatever this process writes goes through it.
    pub fn redactor(&self) -> &SecretRedactor {
        &self.redactor
    }
}

/// Returns every value that may not be written: those that are named as secrets, and those whose
/// names say so.
fn collect_secrets(brief: &AgentLaunchSpec) -> Vec<String> {
    let mut secrets = brief.secrets.clone();
    let mut add = |name: &str, value: &String| {
        if is_secret_name(name) || name.eq_ignore_ascii_case("authorization") {
            secrets.push(value.clone());
        }
    };
    brief.env.iter().for_each(|(name, value)| add(name, value));
    if let RuntimeLaunchSpec::Claude(claude) = &brief.work {
        for server in claude.mcp_servers.values() {
            let named = match server {
                McpServerSpec::Stdio { env, .. } => env,
                McpServerSpec::Http { headers, .. } | McpServerSpec::Sse { headers, .. } => headers,
            };
            named.iter().for_each(|(name, value)| add(name, value));
        }
    }
    secrets
}
