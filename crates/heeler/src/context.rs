//! Environment of a command: config file, state directory, Heeler's home folder. Start at
//! [`CommandContext`].
//!
//! `state_store` and `state_reader` open the state of a context for writing and reading.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use camino::{Utf8Path, Utf8PathBuf};

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output;
use crate::process_env::{environment, home, working_directory};
use crate::store_setting;
use crate::text_file::parent_dir;

/// Variable that processes in a sandbox have.
const SANDBOX_VARIABLE: &str = "HEELER_SANDBOX";

/// Config file names in the order of the search, with the state directory of each.
pub(crate) const CONFIG_NAMES: [(&str, &str); 4] = [
    ("heeler.yaml", ".heeler"),
    ("heeler.yml", ".heeler"),
    ("herdctl.yaml", ".herdctl"),
    ("herdctl.yml", ".herdctl"),
];

/// Config, state directory and environment of a command.
#[derive(Clone)]
pub(crate) struct CommandContext {
    /// The fleet's config file, if there is one.
    pub(crate) config: Option<Utf8PathBuf>,
    /// The fleet's state directory; it need not exist yet.
    pub(crate) state_dir: Utf8PathBuf,
    /// Heeler's home folder, with session locks and conversations. Unknown if HOME is not set, as
    /// under cron; few commands need it.
    pub(crate) home: Option<Utf8PathBuf>,
    /// True if the user named the state directory.
    pub(crate) is_state_dir_named: bool,
    /// The environment, read once.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) working_dir: Utf8PathBuf,
    /// True if only results and errors are printed.
    pub(crate) quiet: bool,
}

impl CommandContext {
    /// Finds the fleet by the options and the working directory.
    pub(crate) fn find(global: &GlobalArgs) -> CommandResult<CommandContext> {
        let env = environment();
        let here = working_directory()?;
        let trust = TrustedOwners::from_env(&env);
        // A file that the user names is trusted; only files that are found are checked.
        let mut passed_over = None;
        let config = match &global.config {
            Some(given) => named_config(&here.join(given))?,
            None => candidates(&here).find(|(file, _)| trust.is_trusted(file, &mut passed_over)),
        };
        let state_dir = match (&global.state_dir, &config) {
            (Some(given), _) => Some(here.join(given)),
            (None, Some((file, state_name))) => Some(parent_dir(file).join(state_name)),
            // Without a config, jobs and transcripts can still be listed.
            (None, None) => find_state_dir(&here, &trust, &mut passed_over),
        };
        if let Some(path) = passed_over.filter(|_| !global.quiet) {
            output::print_note(&format!(
                "ignored {path}: it belongs to another user (name it to use it)"
            ))?;
        }
        let state_dir = state_dir.ok_or_else(|| no_fleet(&here, &env))?;
        require_visible(&state_dir, &env)?;
        // A trusted config may lie next to a state directory that another user has put there.
        if global.config.is_none() && global.state_dir.is_none() {
            trust.require(&state_dir)?;
        }
        let home = home(&env, &here);
        let config = config.map(|(file, _)| file);
        let is_named = global.state_dir.is_some();
        let shown = config.as_deref().map_or("none", Utf8Path::as_str);
        tracing::info!("config file: {shown}; state directory: {state_dir}");
        let context = CommandContext {
            config,
            state_dir,
            is_state_dir_named: is_named,
            home,
            env,
            working_dir: here,
            quiet: global.quiet,
        };
        // Every command opens the store, many of them in several places.
        heeler_store::set_store_credentials(store_setting::credentials(&context));
        Ok(context)
    }

    /// Creates a context from a config file and an environment.
    #[cfg(feature = "fault-points")]
    pub(crate) fn from_parts(config: Utf8PathBuf, env: BTreeMap<String, String>) -> CommandContext {
        let here = parent_dir(&config).to_owned();
        let state_dir = here.join(CONFIG_NAMES[0].1);
        let home = home(&env, &here);
        CommandContext {
            config: Some(config),
            state_dir,
            home,
            is_state_dir_named: false,
            env,
            working_dir: here,
            quiet: true,
        }
    }

    /// Accepts a new state directory even if the user named it.
    pub(crate) fn allow_new_state(mut self) -> CommandContext {
        self.is_state_dir_named = false;
        self
    }

    /// Returns the user's name, for the record.
    pub(crate) fn caller_name(&self) -> String {
        // The name is only for the record. cron may set neither variable.
        let named = ["USER", "LOGNAME"].into_iter().filter_map(|name| self.env.get(name));
        match named.map(|name| output::one_line(name)).find(|name| !name.is_empty()) {
            Some(name) => name,
            None => {
                let user = rustix::process::geteuid().as_raw();
                output::one_line(&heeler_process::login_name(user))
            }
        }
    }

    /// Returns the folder of sockets, and creates it if needed.
    pub(crate) fn socket_dir(&self) -> CommandResult<Utf8PathBuf> {
        let folder = |name: &str| self.env.get(name).map(|path| Utf8Path::new(path.as_str()));
        let temp: Vec<&Utf8Path> = folder("TMPDIR").into_iter().collect();
        let found = heeler_engine::ensure_socket_folder(folder("XDG_RUNTIME_DIR"), &temp);
        found.map_err(|error| CommandFailure::new(FailureCode::Refused, error))
    }

    /// Returns the config file, or fails if there is none.
    pub(crate) fn config_file(&self) -> CommandResult<&Utf8Path> {
        self.config.as_deref().ok_or_else(|| {
            CommandFailure::message(
                FailureCode::Usage,
                "no heeler.yaml here or in any folder above",
            )
            .hint("heeler init")
        })
    }
}

/// Users that may own config files that are found rather than named: the user and root, as in git.
/// Anyone can put a `heeler.yaml` into a folder that is writable by all.
struct TrustedOwners(Vec<u32>);

impl TrustedOwners {
    fn from_env(env: &BTreeMap<String, String>) -> TrustedOwners {
        let user = rustix::process::geteuid();
        // Only root may name another user: anyone can set the variable.
        let behind_sudo = env.get("SUDO_UID").filter(|_| user.is_root());
        let mut users = vec![user.as_raw(), 0];
        users.extend(behind_sudo.and_then(|uid| uid.parse::<u32>().ok()));
        TrustedOwners(users)
    }

    /// Returns true if the path, its link target and its folder belong to these users; otherwise
    /// records the first such path in `passed_over`.
    fn is_trusted(&self, path: &Utf8Path, passed_over: &mut Option<Utf8PathBuf>) -> bool {
        let ours = |found: io::Result<std::fs::Metadata>| {
            found.is_ok_and(|found| self.0.contains(&found.uid()))
        };
        // The owner of the folder could replace the file at any time.
        let folder = parent_dir(path).metadata();
        let covered = ours(path.symlink_metadata()) && ours(path.metadata()) && ours(folder);
        if !covered {
            passed_over.get_or_insert_with(|| path.to_owned());
        }
        covered
    }

    fn require(&self, state_dir: &Utf8Path) -> CommandResult {
        if !state_dir.exists() || self.is_trusted(state_dir, &mut None) {
            return Ok(());
        }
        let message = format!("{state_dir} belongs to another user");
        Err(CommandFailure::message(FailureCode::Refused, message)
            .hint(format!("--state-dir {state_dir} if you trust its content")))
    }
}

/// A config file, with the name of its state directory.
type ConfigCandidate = (Utf8PathBuf, &'static str);

fn named_config(given: &Utf8Path) -> CommandResult<Option<ConfigCandidate>> {
    // `./heeler.yaml` is the same file as the one that is found, and its content must be the same.
    let given: &Utf8Path = &given.components().collect::<Utf8PathBuf>();
    if given.is_dir() {
        return Ok(candidates(given).next());
    }
    if !given.is_file() {
        return Err(CommandFailure::message(
            FailureCode::Usage,
            format!("there is no config file {given}"),
        ));
    }
    // herdctl's state lies in `.herdctl`, and its scripts look for it there.
    let name = given.file_name().unwrap_or_default();
    let state_name = if name.starts_with("herdctl.") { ".herdctl" } else { ".heeler" };
    Ok(Some((given.to_owned(), state_name)))
}

/// Lists the config files in a folder and the folders above it, nearest first.
fn candidates(from: &Utf8Path) -> impl Iterator<Item = ConfigCandidate> {
    from.ancestors()
        .flat_map(|folder| CONFIG_NAMES.map(|(name, state)| (folder.join(name), state)))
        .filter(|(file, _)| file.is_file())
}

/// Finds a state directory without a config file, which can still be read.
fn find_state_dir(
    here: &Utf8Path,
    trust: &TrustedOwners,
    passed_over: &mut Option<Utf8PathBuf>,
) -> Option<Utf8PathBuf> {
    [".heeler", ".herdctl"]
        .map(|name| here.join(name))
        .into_iter()
        // An empty folder of this name is no state; one with jobs may be herdctl's.
        .filter(|folder| folder.join("heeler.db").is_file() || folder.join("jobs").is_dir())
        .find(|folder| trust.is_trusted(folder, passed_over))
}

/// Refuses a state directory that the sandbox of this run hides: it would look like an empty one.
fn require_visible(state_dir: &Utf8Path, env: &BTreeMap<String, String>) -> CommandResult {
    // Without the variable, this is no process of a sandbox.
    match env.contains_key(SANDBOX_VARIABLE) && is_hidden(state_dir) {
        true => Err(sandbox_failure(format!("the state directory {state_dir} is hidden"))),
        false => Ok(()),
    }
}

/// Returns true for a directory of another file system than its parent. In a sandbox, that is the
/// directory in memory that hides the real one.
fn is_hidden(folder: &Utf8Path) -> bool {
    let device = |path: &Utf8Path| path.symlink_metadata().map(|found| found.dev()).ok();
    device(folder).is_some_and(|own| device(parent_dir(folder)).is_some_and(|above| above != own))
}

fn sandbox_failure(what: String) -> CommandFailure {
    let message =
        format!("{what} in the sandbox of this run, so no command can use the fleet here");
    CommandFailure::message(FailureCode::Refused, message).hint(
        "the tools that Heeler gives to agents (docs/mcp.md), a hook, or `sandbox: off` for the agent",
    )
}

fn no_fleet(here: &Utf8Path, env: &BTreeMap<String, String>) -> CommandFailure {
    if env.contains_key(SANDBOX_VARIABLE) {
        return sandbox_failure(format!("no heeler.yaml is visible in {here} or above it"));
    }
    CommandFailure::message(
        FailureCode::Usage,
        format!(
            "no fleet here: {here} and the folders above it have no heeler.yaml or herdctl.yaml"
        ),
    )
    .hint("heeler init, or name one with --config PATH")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_trusted_users_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap().join("heeler.yaml");
        std::fs::write(&path, "").unwrap();
        let user = rustix::process::geteuid().as_raw();
        let mut passed_over = None;
        assert!(TrustedOwners(vec![user]).is_trusted(&path, &mut passed_over));
        assert_eq!(passed_over, None);
        assert!(!TrustedOwners(vec![user + 1]).is_trusted(&path, &mut passed_over));
        assert_eq!(passed_over, Some(path));
    }
}
