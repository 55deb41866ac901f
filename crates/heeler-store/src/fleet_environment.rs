//! The environment of agents for readers: locations of native sessions, and secrets that must not
//! be displayed.
//!
//! Start at [`FleetEnvironment`].

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{HookAction, LoadedConfig, RuntimeType};
use heeler_model::{
    AgentSessionId, NativeSessionLocation, Session, agent_environment as environment, project_slug,
};
use indexmap::IndexMap;

use crate::native::{NativeFolder, NativeProgram};

/// A fleet's config and environment.
#[derive(Debug, Clone, Copy)]
pub struct FleetEnvironment<'a> {
    /// The config; `None` if it is missing or has faults.
    pub loaded: Option<&'a LoadedConfig>,
    /// Environment variables, including those of `.env`.
    pub env: &'a BTreeMap<String, String>,
    /// The user's home directory.
    pub home: &'a Utf8Path,
}

impl FleetEnvironment<'_> {
    /// Returns the native session file of a session: its path or, if it does not exist, its
    /// expected path. `None` if the agent keeps no native sessions or their location is unknown.
    pub fn native_session_file(
        &self,
        session: &Session,
        id: &AgentSessionId,
    ) -> Option<Utf8PathBuf> {
        let runtime: RuntimeType = session.runtime.parse().ok()?;
        let (env, directory) = self.session_environment(session)?;
        self.find_native_file(runtime, &env, &directory, id)
    }

    /// Returns the folder in which a session's agent keeps the sessions of its program.
    pub fn native_folder(&self, session: &Session, program: NativeProgram) -> Option<NativeFolder> {
        let (env, directory) = self.session_environment(session)?;
        program.folder(|name| env.get(name).map(String::as_str), &directory)
    }

    /// Returns the environment and the working directory of a session's agent.
    fn session_environment(
        &self,
        session: &Session,
    ) -> Option<(IndexMap<String, String>, Utf8PathBuf)> {
        // The config may lack the agent: it was removed, or the config has faults.
        let agent = self.loaded.and_then(|loaded| loaded.agent(&session.agent));
        let directory = session.working_directory.as_deref();
        let directory = directory.or(agent.map(|agent| agent.working_directory.as_path()))?;
        // Secrets of the environment are not needed here, so a missing one is no error.
        let given = agent.and_then(|agent| environment::select_environment(agent, self.env).ok());
        let env = given.map_or_else(
            || self.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            |given| given.env,
        );
        Some((env, directory.to_owned()))
    }

    /// Returns the directory in which an agent with this environment keeps its native sessions.
    /// `None` if it keeps none or the location is unknown.
    pub fn projects_folder(
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
        // The usual place is tried first, because there may be thousands of project folders.
        let here = projects.join(project_slug(directory)).join(&name);
        if here.is_file() {
            return Some(here);
        }
        // An agent also resumes sessions of other projects.
        let folders = projects.read_dir_utf8().into_iter().flatten().filter_map(Result::ok);
        let elsewhere = folders.map(|folder| folder.path().join(&name)).find(|file| file.is_file());
        elsewhere.or(Some(here))
    }

    /// Lists the secrets that must not be displayed: those of all agents, their hooks and the
    /// fleet.
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
        for notify in fleets.clone().filter_map(|fleet| fleet.notify.as_ref()) {
            let no_headers = IndexMap::new();
            let of_address = |url| environment::call_secrets(url, &no_headers).collect::<Vec<_>>();
            secrets.extend(notify.addresses().flat_map(of_address));
        }
        for telemetry in fleets.filter_map(|fleet| fleet.telemetry.as_ref()) {
            secrets.extend(environment::call_secrets(&telemetry.endpoint, &telemetry.headers));
        }
        secrets.sort();
        secrets.dedup();
        secrets
    }
}
