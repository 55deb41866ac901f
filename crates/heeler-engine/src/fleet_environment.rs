//! What those who only read need to know of an agent's surroundings: where it keeps its own record of
//! a session, and what nobody may be shown.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::config::{HookAction, LoadedConfig, RuntimeType};
use heeler_model::{AgentSessionId, NativeSessionLocation, Session, project_slug};
use indexmap::IndexMap;

use crate::prepare::environment;

/// The fleet's config, and what is around it.
#[derive(Debug, Clone, Copy)]
pub struct FleetEnvironment<'a> {
    /// The config; `None` where there is none, or a faulty one.
    pub loaded: Option<&'a LoadedConfig>,
    /// The environment, with what `.env` adds.
    pub env: &'a BTreeMap<String, String>,
    /// The user's folder.
    pub home: &'a Utf8Path,
}

impl FleetEnvironment<'_> {
    /// Returns the agent's own file of a session: where it is or, if it is nowhere, where it would be.
    /// `None` if the agent keeps none, or nobody knows where.
    pub fn native_session_file(
        &self,
        session: &Session,
        id: &AgentSessionId,
    ) -> Option<Utf8PathBuf> {
        let runtime: RuntimeType = session.runtime.parse().ok()?;
        let agent = self.loaded.and_then(|loaded| loaded.agent(&session.agent));
        let directory = session.working_directory.as_deref();
        let directory = directory.or(agent.map(|agent| agent.working_directory.as_path()))?;
        let given = agent.and_then(|agent| environment::select_environment(agent, self.env).ok());
        let env = given.map_or_else(
            || self.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            |given| given.env,
        );
        self.find_native_file(runtime, &env, directory, id)
    }

    /// Returns the folder in which an agent with this environment keeps its own sessions; `None` if it
    /// keeps none, or nobody knows where.
    pub(crate) fn projects_folder(
        &self,
        runtime: RuntimeType,
        env: &IndexMap<String, String>,
        directory: &Utf8Path,
    ) -> Option<Utf8PathBuf> {
        match NativeSessionLocation::for_agent(runtime, env, self.home, directory) {
            NativeSessionLocation::Directory(projects) => Some(projects),
            NativeSessionLocation::None | NativeSessionLocation::Unknown => None,
        }
    }

    fn find_native_file(
        &self,
        runtime: RuntimeType,
        env: &IndexMap<String, String>,
        directory: &Utf8Path,
        id: &AgentSessionId,
    ) -> Option<Utf8PathBuf> {
        let projects = self.projects_folder(runtime, env, directory)?;
        let name = format!("{id}.jsonl");
        let here = projects.join(project_slug(directory)).join(&name);
        if here.is_file() {
            return Some(here);
        }
        // An agent resumes a session from elsewhere too.
        let folders = projects.read_dir_utf8().into_iter().flatten().filter_map(Result::ok);
        let elsewhere = folders.map(|folder| folder.path().join(&name)).find(|file| file.is_file());
        elsewhere.or(Some(here))
    }

    /// Lists what nothing of ours may show: the secrets of all agents, of their hooks and of the fleet.
    pub fn secrets(&self) -> Vec<String> {
        let mut secrets = environment::named_secrets(self.env.iter());
        for agent in self.loaded.iter().flat_map(|loaded| &loaded.agents) {
            secrets.extend(environment::secrets(agent, self.env));
            let hooks = agent.hooks.after_run.iter().chain(&agent.hooks.on_error);
            secrets.extend(hooks.flat_map(|hook| match &hook.action {
                HookAction::Webhook { url, headers, .. } => {
                    environment::call_secrets(url, headers).collect()
                }
                _ => Vec::new(),
            }));
        }
        let fleets = self.loaded.iter().flat_map(|loaded| &loaded.fleets);
        for told in fleets.filter_map(|fleet| fleet.telemetry.as_ref()) {
            secrets.extend(environment::call_secrets(&told.endpoint, &told.headers));
        }
        secrets.sort();
        secrets.dedup();
        secrets
    }
}
