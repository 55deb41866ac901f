//! What a daemon works by: the checked config, and what is around it.
//!
//! It is replaced as a whole when the config is read again. Start at [`Setup::prepare`].

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::Wanted;
use heeler_model::config::{Agent, AgentLookup, Durability, Fleet, Loaded, Runtime};
use heeler_model::ledger::is_within;
use heeler_model::redact::Redactor;
use jiff::tz::TimeZone;
use sha2::{Digest as _, Sha256};

use crate::command::{Refused, RefusedKind};
use crate::hooks::{HookConfig, Services};
use crate::prepare::{self, PrepareError, Surroundings, environment};
use crate::reading::Around;
use crate::request::JobRequest;

/// What a daemon works by.
#[derive(Debug)]
pub struct Setup {
    /// The config file.
    pub config: Utf8PathBuf,
    /// What it says.
    pub loaded: Arc<Loaded>,
    /// The environment, with what `.env` adds.
    pub env: BTreeMap<String, String>,
    /// The user's folder.
    pub home: Utf8PathBuf,
    /// The folder of control sockets.
    pub sockets: Utf8PathBuf,
    /// What decides what agents may do, or holds what they did.
    pub protected: Vec<Utf8PathBuf>,
    /// The time zone of days, and of cron expressions that name none.
    pub zone: TimeZone,
    /// Where chats are.
    pub services: Services,
}

impl Setup {
    /// Returns what those who only read need.
    pub(crate) fn around(&self) -> Around<'_> {
        Around { loaded: Some(&self.loaded), env: &self.env, home: &self.home }
    }

    /// Returns an agent by its qualified name.
    pub fn agent(&self, name: &str) -> Option<&Agent> {
        self.loaded.agent(name)
    }

    /// Finds an agent by its qualified name, or by its own name while that is unique.
    pub fn find_agent(&self, name: &str) -> Result<&Agent, Refused> {
        self.loaded.find_agent(name).map_err(|error| match &error {
            AgentLookup::Unknown { nearest, .. } => {
                let refused = Refused::new(RefusedKind::NotFound, error.to_string());
                match nearest {
                    Some(near) => refused.hint(format!("did you mean `{near}`?")),
                    None => refused.hint("heeler reload, if it was just added to the config"),
                }
            }
            AgentLookup::Ambiguous { .. } => Refused::new(RefusedKind::Usage, error.to_string()),
        })
    }

    /// Makes a request of what is wanted, in a directory of the session's own if it has one.
    pub(crate) fn prepare(
        &self,
        agent: &Agent,
        wanted: &Wanted,
        directory: Option<&Utf8Path>,
    ) -> Result<JobRequest, PrepareError> {
        let root = self.root();
        let around = Surroundings {
            env: &self.env,
            home: &self.home,
            sockets: &self.sockets,
            durability: root.map_or(Durability::Interval, |fleet| fleet.durability),
            max_concurrent: root.and_then(|fleet| fleet.max_concurrent),
            agents: &self.loaded.agents,
            protected: &self.protected,
            directory,
        };
        prepare::prepare(agent, wanted, &around)
    }

    /// Returns what is wanted of an agent as it may be written down.
    pub(crate) fn redacted(&self, agent: &Agent, wanted: &Wanted) -> Wanted {
        let Some(prompt) = &wanted.prompt else { return wanted.clone() };
        // Without its secrets it cannot run either; what it shares with us is known all the same.
        let secrets = match environment::give(agent, &self.env) {
            Ok(given) => given.secrets,
            Err(_) => environment::named_secrets(self.env.iter()),
        };
        let prompt = Redactor::new(&secrets).text(prompt).into_owned();
        Wanted { prompt: Some(prompt), ..wanted.clone() }
    }

    /// Returns what hooks are done with.
    pub(crate) fn hooks(&self) -> HookConfig {
        HookConfig {
            loaded: Arc::clone(&self.loaded),
            env: self.env.clone(),
            sockets: self.sockets.clone(),
            services: self.services.clone(),
        }
    }

    /// Returns the root fleet's settings.
    pub(crate) fn root(&self) -> Option<&Fleet> {
        self.loaded.fleets.first()
    }

    /// Returns the fleets that an agent is in, the root first.
    pub(crate) fn fleets_of<'s>(&'s self, agent: &'s str) -> impl Iterator<Item = &'s Fleet> {
        self.loaded.fleets.iter().filter(move |fleet| is_within(agent, &fleet.path))
    }

    /// Names the account that an agent's model is paid by, so that those who share one share its
    /// limits. It holds no secret. `None` where no model is asked.
    pub(crate) fn credential(&self, agent: &Agent) -> Option<String> {
        if matches!(agent.runtime, Runtime::Command(_)) {
            return None;
        }
        let given = environment::give(agent, &self.env).ok()?;
        let value = |name: &str| given.env.get(name).filter(|value| !value.is_empty());
        let named = ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"];
        if let Some((name, key)) = named.into_iter().find_map(|name| Some((name, value(name)?))) {
            let digest = Sha256::digest(key.as_bytes());
            let digest: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            return Some(format!("{name}:{digest}"));
        }
        // A script asks no model; with a key it plays one that does.
        if matches!(agent.runtime, Runtime::Scripted(_)) {
            return None;
        }
        let login = value("CLAUDE_CONFIG_DIR").or_else(|| value("HOME"));
        Some(format!("login:{}", login.map_or("", String::as_str)))
    }
}
