//! The sandbox of a run: what its agent may see and change besides its working directory.
//!
//! The runner makes mounts of it. Start at [`run_sandbox`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{AgentConfig, GitAccessConfig, UnixSocketAccess, detectable_agents};
use heeler_model::run::{ContainerSpec, FileLimitSpec, GitAccessSpec, SandboxSpec};
use indexmap::IndexMap;

use super::protection::{RunProtection, protect_run};
use super::{PrepareContext, PrepareError};

/// Files and directories of a home directory that hold credentials, keys, or records of what a
/// person did.
const HOME_SECRETS: [&str; 53] = [
    ".age",
    ".aws",
    ".azure",
    ".bash_history",
    ".boto",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".claude/.credentials.json",
    ".composer/auth.json",
    ".config/chromium",
    ".config/composer/auth.json",
    ".config/doctl",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/glab-cli",
    ".config/google-chrome",
    ".config/hub",
    ".config/op",
    ".config/rclone",
    ".config/sops",
    ".databrickscfg",
    ".docker",
    ".fly",
    ".gem/credentials",
    ".git-credentials",
    ".gnupg",
    ".gradle/gradle.properties",
    ".heroku",
    ".kube",
    ".local/share/fish/fish_history",
    ".local/share/keyrings",
    ".m2/settings.xml",
    ".mozilla",
    ".my.cnf",
    ".mysql_history",
    ".netrc",
    ".node_repl_history",
    ".npmrc",
    ".oci",
    ".password-store",
    ".pgpass",
    ".psql_history",
    ".pypirc",
    ".python_history",
    ".s3cfg",
    ".ssh",
    ".terraform.d",
    ".thunderbird",
    ".vault-token",
    ".yarnrc",
    ".yarnrc.yml",
    ".zsh_history",
];

/// Files and directories of the system that only root can read. An agent of root could.
const ROOT_SECRETS: [&str; 9] = [
    "/etc/NetworkManager/system-connections",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/ssh",
    "/etc/ssl/private",
    "/var/lib/containerd",
    "/var/lib/docker",
];

/// Returns the isolation of a run, unless its agent has none.
pub(super) fn run_sandbox(
    agent: &AgentConfig,
    around: &PrepareContext<'_>,
    env: &IndexMap<String, String>,
    working_directory: &Utf8Path,
    container: Option<ContainerSpec>,
) -> Option<SandboxSpec> {
    let settings = agent.isolation_settings()?;
    let granted = [settings.write.as_slice(), &settings.read_only].concat();
    let (protected, hidden) =
        limited_paths(agent, around, env, working_directory, (&settings.deny_read, &granted));
    let mut readable = settings.read_only.clone();
    if container.is_some() {
        // A container shows nothing by itself.
        readable.extend(agent.plugins.iter().map(|plugin| plugin.path.clone()));
    }
    Some(SandboxSpec {
        writable: settings.write.clone(),
        readable,
        protected,
        hidden,
        denies_unix_sockets: settings.unix_sockets == UnixSocketAccess::Deny,
        network: settings.network.clone(),
        credentials: settings.credentials,
        git: settings.git.iter().map(git_access).collect(),
        forward: settings.forward.addresses().to_vec(),
        container,
    })
}

/// Returns the login files of agent programs, except those in directories that the config grants: the
/// agent has its own login there.
fn hidden_logins(home: &Utf8Path, granted: &[Utf8PathBuf]) -> Vec<Utf8PathBuf> {
    let agents = detectable_agents();
    let files = agents.iter().flat_map(|agent| agent.login.files).map(|file| home.join(file));
    files.filter(|file| !granted.iter().any(|folder| file.starts_with(folder))).collect()
}

/// Returns the files that a run's agent may use, if Landlock limits them.
pub(super) fn run_file_limits(
    agent: &AgentConfig,
    around: &PrepareContext<'_>,
    env: &IndexMap<String, String>,
    working_directory: &Utf8Path,
) -> Option<FileLimitSpec> {
    let settings = agent.file_limits()?;
    let paths = (settings.deny_read.as_slice(), settings.write.as_slice());
    let (_, hidden) = limited_paths(agent, around, env, working_directory, paths);
    Some(FileLimitSpec { writable: settings.write.clone(), hidden })
}

/// Returns the paths that an agent must not write, and those that it must not see.
fn limited_paths(
    agent: &AgentConfig,
    around: &PrepareContext<'_>,
    env: &IndexMap<String, String>,
    working_directory: &Utf8Path,
    (deny_read, granted): (&[Utf8PathBuf], &[Utf8PathBuf]),
) -> (Vec<Utf8PathBuf>, Vec<Utf8PathBuf>) {
    let RunProtection { protected, unreadable, .. } =
        protect_run(around.protected, agent, around.agents, working_directory);
    let mut hidden = unreadable;
    hidden.extend(around.protected.state_dirs.iter().cloned());
    hidden.extend(around.protected.other_states.into_iter().flat_map(|find| find(around.env)));
    // Locks and sessions of all fleets of this user, and sockets of all their runs.
    hidden.extend([around.home.to_owned(), around.sockets.to_owned()]);
    hidden.extend(other_folders(agent, around.agents, working_directory));
    hidden.extend(homes(env, around.env).flat_map(|home| HOME_SECRETS.map(|it| home.join(it))));
    hidden.extend(homes(env, around.env).flat_map(|home| hidden_logins(home, granted)));
    hidden.extend(ROOT_SECRETS.map(Utf8PathBuf::from));
    hidden.extend(deny_read.iter().cloned());
    hidden.sort();
    hidden.dedup();
    (protected, hidden)
}

fn git_access(access: &GitAccessConfig) -> GitAccessSpec {
    GitAccessSpec {
        url: access.remote.url().to_string(),
        username: access.username.as_str().to_owned(),
        token_env: access.token_env.as_str().to_owned(),
    }
}

/// Refuses a sandbox whose working directory is behind a link in the directory of another agent: that
/// agent could choose what this one may write.
pub(super) fn refuse_foreign_link(
    agent: &AgentConfig,
    agents: &[AgentConfig],
    directory: &Utf8Path,
    real: &Utf8Path,
) -> Result<(), PrepareError> {
    if agent.isolation_settings().is_none() && agent.file_limits().is_none() {
        return Ok(());
    }
    let passed: Vec<Utf8PathBuf> =
        directory.ancestors().filter_map(|it| it.canonicalize_utf8().ok()).collect();
    let leads_out = |other: &&AgentConfig| {
        let folder = other.working_directory.canonicalize_utf8();
        folder.is_ok_and(|folder| passed.contains(&folder) && !real.starts_with(&folder))
    };
    match agents.iter().filter(|other| other.name != agent.name).find(leads_out) {
        None => Ok(()),
        Some(other) => Err(PrepareError::ForeignLink {
            agent: agent.name.to_string(),
            other: other.name.to_string(),
            path: directory.to_owned(),
            real: real.to_owned(),
        }),
    }
}

/// Returns the working directories of other agents. One inside of this agent's own stays visible:
/// the config gave it to both.
fn other_folders(
    agent: &AgentConfig,
    agents: &[AgentConfig],
    working_directory: &Utf8Path,
) -> Vec<Utf8PathBuf> {
    let others = agents.iter().filter(|other| other.name != agent.name);
    let folders = others.filter_map(|other| other.working_directory.canonicalize_utf8().ok());
    // The root directory would hide the system.
    let is_separate = |folder: &Utf8PathBuf| {
        !folder.starts_with(working_directory) && !working_directory.starts_with(folder)
    };
    folders.filter(is_separate).collect()
}

/// Returns the home directories of the agent and of the daemon.
fn homes<'e>(
    agent: &'e IndexMap<String, String>,
    daemon: &'e std::collections::BTreeMap<String, String>,
) -> impl Iterator<Item = &'e Utf8Path> {
    let homes = [agent.get("HOME"), daemon.get("HOME")];
    homes
        .into_iter()
        .flatten()
        .map(|home| Utf8Path::new(home.as_str()))
        .filter(|it| it.is_absolute())
}
