//! Agents that `heeler init` adds to a new fleet: one for each installed program with a login. Start
//! at [`InstalledAgentFiles::find`].

use std::os::unix::fs::DirBuilderExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::templates::{self, AgentTemplateOptions, AgentTemplateSandbox, TemplateSandbox};
use heeler_config::{DetectableAgent, LoginState, PermissionMode, RuntimeType};

use super::write_new;
use crate::failure::CommandResult;
use crate::installed_agents::{
    InstalledAgent, VersionedAgent, ask_versions, find_installed_agents,
};
use crate::output;
use crate::process_env;

/// Agents of a new fleet for the programs of this machine.
pub(super) struct InstalledAgentFiles {
    added: Vec<AddedAgentFile>,
    /// Programs for which no agent is added.
    others: Vec<InstalledAgent>,
    home: Option<Utf8PathBuf>,
}

/// File of an added agent.
struct AddedAgentFile {
    agent: VersionedAgent,
    /// Path relative to the fleet file.
    path: String,
    text: String,
    /// The agent has a sandbox, so the directories of its program must exist.
    is_sandboxed: bool,
}

impl InstalledAgentFiles {
    /// Finds the programs and makes the files of their agents. `schema` is the location of the JSON
    /// Schema of agent files.
    pub(super) fn find(sandbox: TemplateSandbox<'_>, schema: &str) -> InstalledAgentFiles {
        let env = process_env::environment();
        let is_sandboxed = sandbox == TemplateSandbox::On;
        // Only the programs that are added are executed: some take seconds to start.
        let (with_login, others): (Vec<_>, Vec<_>) =
            find_installed_agents(&env).into_iter().partition(|installed| {
                let has_login =
                    matches!(installed.login, LoginState::File(_) | LoginState::Variable(_));
                has_login && installed.agent.can_be_added(is_sandboxed)
            });
        let make = |agent: VersionedAgent| {
            let path = format!("agents/{}.yaml", agent.installed.agent.name);
            let text = agent_text(&agent.installed, is_sandboxed, schema);
            AddedAgentFile { agent, path, text, is_sandboxed }
        };
        InstalledAgentFiles {
            added: ask_versions(with_login, &env).into_iter().map(make).collect(),
            others,
            home: env.get("HOME").map(Utf8PathBuf::from),
        }
    }

    /// Returns the paths and texts of the files.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.added.iter().map(|added| (added.path.as_str(), added.text.as_str()))
    }

    /// Writes the files that do not exist yet.
    pub(super) fn write(&self, folder: &Utf8Path) -> CommandResult {
        for added in &self.added {
            let path = folder.join(&added.path);
            // An interrupted `init` may have written it already.
            if !path.exists() {
                write_new(&path, &added.text)?;
            }
            if added.is_sandboxed && added.agent.installed.agent.runtime != RuntimeType::Sdk {
                self.create_state_folders(&added.agent.installed.agent)?;
            }
        }
        Ok(())
    }

    /// Creates the directories that the program would create at its first start. The sandbox shows
    /// only those that exist.
    fn create_state_folders(&self, agent: &DetectableAgent) -> CommandResult {
        let Some(home) = &self.home else { return Ok(()) };
        for folder in agent.state_folders.iter().map(|folder| home.join(folder)) {
            if !folder.exists() {
                std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&folder)?;
                output::print_line(format!(
                    "created {folder}, where {} keeps its sessions",
                    agent.title
                ))?;
            }
        }
        Ok(())
    }

    /// Prints the programs that were found.
    pub(super) fn print(&self) -> CommandResult {
        if !self.added.is_empty() || !self.others.is_empty() {
            output::print_line("")?;
        }
        for AddedAgentFile { agent, .. } in &self.added {
            let sign = match agent.installed.login {
                LoginState::File(file) => format!(" (login: ~/{file})"),
                LoginState::Variable(name) => format!(" (login: {name})"),
                LoginState::Absent | LoginState::Unknown => String::new(),
            };
            let (title, name) = (agent.title(), agent.installed.agent.name);
            output::print_line(format!("found {title}{sign}: heeler trigger {name}"))?;
            if let Some(warning) = agent.range_warning() {
                output::print_line(warning)?;
            }
        }
        for installed in &self.others {
            output::print_line(describe_other(installed))?;
        }
        Ok(())
    }
}

/// Returns how to add an agent for a program.
fn describe_other(InstalledAgent { agent, login, .. }: &InstalledAgent) -> String {
    let runtime = match agent.runtime {
        RuntimeType::Acp => format!("--runtime acp --program {}", agent.name),
        runtime => format!("--runtime {runtime}"),
    };
    let add = format!("heeler init agent {} {runtime}", agent.name);
    match login {
        LoginState::Absent => {
            format!("found {} without a login: {}; then `{add}`", agent.name, agent.login.cure)
        }
        _ => format!("found {}: `{add}` adds it", agent.name),
    }
}

fn agent_text(installed: &InstalledAgent, is_sandboxed: bool, schema: &str) -> String {
    let agent = &installed.agent;
    let name = agent.name.parse().expect("the names of known agents are names of agents");
    let runtime = agent.runtime.to_string();
    let is_claude = agent.runtime == RuntimeType::Sdk;
    let sandbox = AgentTemplateSandbox {
        title: agent.title,
        state_folders: agent.state_folders,
        preset: agent.preset,
    };
    let description = format!("Works with {}.", agent.title);
    // Without a question, only the sandbox limits it.
    let is_unasked = is_sandboxed && !agent.asks_before_commands;
    let options = AgentTemplateOptions {
        description: Some(&description),
        permission_mode: is_unasked.then_some(PermissionMode::BypassPermissions.as_str()),
        // Claude is the default, and receives its own variables.
        runtime: (!is_claude).then_some(&runtime),
        program: (agent.runtime == RuntimeType::Acp).then_some(agent.name),
        secret: match installed.login {
            LoginState::Variable(name) if !is_claude => Some(name),
            _ => None,
        },
        sandbox: (is_sandboxed && !is_claude).then_some(sandbox),
    };
    templates::agent_file_with(&name, schema, &options)
}

#[cfg(test)]
mod tests {
    use heeler_config::detectable_agents;
    use heeler_model::LocalName;

    #[test]
    fn the_names_of_known_agents_are_names_of_agents() {
        for agent in detectable_agents() {
            agent.name.parse::<LocalName>().unwrap();
        }
    }
}
