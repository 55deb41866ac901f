//! What the program gives a run, and the secrets in it.

use std::sync::Arc;

use camino::Utf8PathBuf;
use heeler_model::redact::{Redactor, is_secret_name};
use heeler_model::run::{Brief, McpBrief, Work};
use jiff::Timestamp;

use crate::mcp::{FleetDoor, Token};

/// What the program gives a run.
pub struct Host {
    /// The program itself, which also plays scripted agents.
    pub(crate) program: Utf8PathBuf,
    /// The clock.
    pub(crate) now: fn() -> Timestamp,
    /// What the agent is told and given.
    pub(crate) brief: Brief,
    /// Opens our tools to the agent, where it reaches them over HTTP.
    pub(crate) token: Token,
    /// The way to the fleet, where there is one.
    pub(crate) door: Option<Arc<dyn FleetDoor>>,
    redactor: Redactor,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("program", &self.program).finish_non_exhaustive()
    }
}

impl Host {
    /// Puts together what a run is given; nothing secret comes later.
    pub fn new(program: Utf8PathBuf, now: fn() -> Timestamp, brief: Brief) -> Host {
        let token = Token::mint();
        let mut secrets = secrets(&brief);
        secrets.push(token.secret().to_owned());
        Host { program, now, brief, token, door: None, redactor: Redactor::new(&secrets) }
    }

    /// Gives the run a way to its fleet.
    pub fn with_door(self, door: Arc<dyn FleetDoor>) -> Host {
        Host { door: Some(door), ..self }
    }

    /// The same with something else to do. Its secrets are known already.
    pub(crate) fn with_brief(&self, brief: Brief) -> Host {
        let (program, token) = (self.program.clone(), self.token.clone());
        let (door, redactor) = (self.door.clone(), self.redactor.clone());
        Host { program, now: self.now, brief, token, door, redactor }
    }

    /// Returns what knows every secret of the run. Whatever this process writes goes through it.
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }
}

/// Returns every value that may not be written: those that are named as secrets, and those whose
/// names say so.
fn secrets(brief: &Brief) -> Vec<String> {
    let mut secrets = brief.secrets.clone();
    let mut add = |name: &str, value: &String| {
        if is_secret_name(name) || name.eq_ignore_ascii_case("authorization") {
            secrets.push(value.clone());
        }
    };
    brief.env.iter().for_each(|(name, value)| add(name, value));
    if let Work::Claude(claude) = &brief.work {
        for server in claude.mcp_servers.values() {
            let named = match server {
                McpBrief::Stdio { env, .. } => env,
                McpBrief::Http { headers, .. } | McpBrief::Sse { headers, .. } => headers,
            };
            named.iter().for_each(|(name, value)| add(name, value));
        }
    }
    secrets
}
