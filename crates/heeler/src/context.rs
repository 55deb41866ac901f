//! Environment of a command: config file, state directory, Heeler's home folder. Start at
//! [`CommandContext`].
//!
//! No other module reads environment variables or the clock.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::LoadedConfig;
use heeler_engine::DaemonMode;
use heeler_model::JobHead;
use heeler_query::FleetReader;
use heeler_store::DaemonFile;
use heeler_store::{DatabaseOpenError, OpenedStore, StateDir, Store, StoreOpenError, StoreReader};
use heeler_transcript::LockFile;
use jiff::Timestamp;

use crate::adopt;
use crate::cli::GlobalArgs;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::output;

/// Time to wait for a database that another process upgrades.
const UPGRADE_WAIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Time to wait for a temporary daemon that has nothing left to do.
const IDLE_DAEMON_WAIT: Duration = Duration::from_secs(2);

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
    is_state_dir_named: bool,
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
        let mut passed_over = None;
        let config = match &global.config {
            Some(given) => named_config(&here.join(given))?,
            None => candidates(&here).find(|(file, _)| trust.is_trusted(file, &mut passed_over)),
        };
        let state_dir = match (&global.state_dir, &config) {
            (Some(given), _) => Some(here.join(given)),
            (None, Some((file, state_name))) => Some(parent_dir(file).join(state_name)),
            (None, None) => find_state_dir(&here, &trust, &mut passed_over),
        };
        if let Some(path) = passed_over.filter(|_| !global.quiet) {
            output::print_note(&format!(
                "ignored {path}: it belongs to another user (name it to use it)"
            ))?;
        }
        let state_dir = state_dir.ok_or_else(|| no_fleet(&here))?;
        if global.config.is_none() && global.state_dir.is_none() {
            trust.require(&state_dir)?;
        }
        let home = home(&env, &here);
        let config = config.map(|(file, _)| file);
        let is_named = global.state_dir.is_some();
        let shown = config.as_deref().map_or("none", Utf8Path::as_str);
        tracing::info!("config file: {shown}; state directory: {state_dir}");
        Ok(CommandContext {
            config,
            state_dir,
            is_state_dir_named: is_named,
            home,
            env,
            working_dir: here,
            quiet: global.quiet,
        })
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
        let named = ["USER", "LOGNAME"].into_iter().filter_map(|name| self.env.get(name));
        match named.map(|name| output::one_line(name)).find(|name| !name.is_empty()) {
            Some(name) => name,
            None => {
                let user = rustix::process::geteuid().as_raw();
                output::one_line(&heeler_server::login_name(user))
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

/// Access to the state.
impl CommandContext {
    /// Opens the state for reading; returns `None` if there is none yet. Adopts a herdctl
    /// directory.
    pub(crate) fn open_reader(&self) -> CommandResult<Option<StoreReader>> {
        match std::fs::metadata(&self.state_dir) {
            Ok(found) if found.is_dir() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.is_state_dir_named => {
                return Ok(None);
            }
            Ok(_) => return Err(self.unusable("it is not a folder".to_owned())),
            Err(error) => return Err(self.unusable(error.to_string())),
        }
        adopt::adopt_if_foreign(self)?;
        let dir = self.dir()?;
        let deadline = Instant::now() + UPGRADE_WAIT;
        loop {
            match StoreReader::open(&dir) {
                Ok(reader) => return Ok(Some(reader)),
                Err(DatabaseOpenError::Missing { .. }) => {
                    return self.refuse_lost_database(&dir).map(|()| None);
                }
                // A daemon that has just started may be upgrading the database.
                Err(DatabaseOpenError::Older { .. })
                    if is_state_locked(&dir) && Instant::now() < deadline =>
                {
                    std::thread::sleep(POLL_INTERVAL);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn unusable(&self, reason: String) -> CommandFailure {
        let message = format!("cannot use the state directory {}: {reason}", self.state_dir);
        CommandFailure::message(FailureCode::Refused, message)
    }

    /// Refuses a directory that lost its database: one with jobs or backups. A new one needs none.
    fn refuse_lost_database(&self, dir: &StateDir) -> CommandResult {
        let entries = |folder: Utf8PathBuf| folder.read_dir_utf8().map(Iterator::count);
        let jobs = entries(dir.jobs());
        if let Err(error) = &jobs
            && error.kind() == io::ErrorKind::PermissionDenied
        {
            return Err(self.unusable(error.to_string()));
        }
        if jobs.unwrap_or(0) + entries(dir.backups()).unwrap_or(0) > 0 {
            let message = format!("{} has lost its database", self.state_dir);
            return Err(CommandFailure::message(FailureCode::Failed, message)
                .hint("heeler doctor --rebuild"));
        }
        match self.is_state_dir_named
            && !dir.database().exists()
            && !dir.root().join("schema").exists()
        {
            true => Err(self.unusable("it holds no Heeler state".to_owned())),
            false => Ok(()),
        }
    }

    /// Opens the state to look up one item; fails if there is no state.
    pub(crate) fn reader_for(&self, what: &str, id: &str) -> CommandResult<StoreReader> {
        self.open_reader()?.ok_or_else(|| {
            let message = format!("there is no {what} `{id}`: {} is empty", self.state_dir);
            CommandFailure::message(FailureCode::NotFound, message)
        })
    }

    /// Returns a reader of the fleet. Without state, the reader is empty.
    pub(crate) fn open_records(&self) -> CommandResult<FleetReader> {
        self.open_records_with(None)
    }

    /// Returns a reader of the fleet that uses a config that is already loaded.
    pub(crate) fn open_records_with(
        &self,
        loaded: Option<LoadedConfig>,
    ) -> CommandResult<FleetReader> {
        let (reader, dir) = match self.open_reader()? {
            Some(reader) => (reader, self.dir()?),
            None => (StoreReader::empty(now())?, StateDir::absent(&self.state_dir)),
        };
        let (place, loaded, known) = (self.clone(), loaded.map(Arc::new), OnceLock::new());
        let source = move || {
            known.get_or_init(|| fleet_config::query_context(&place, loaded.clone())).clone()
        };
        Ok(FleetReader::new(dir, source).with_reader(reader))
    }

    /// Returns the paths of the state directory, which must exist.
    pub(crate) fn dir(&self) -> CommandResult<StateDir> {
        Ok(StateDir::open(&self.state_dir)?)
    }

    /// Becomes the writer of the state directory, and reports manual edits of its files.
    pub(crate) fn store(&self, command: &str, now: Timestamp) -> CommandResult<Store> {
        let dir = StateDir::create(&self.state_dir)?;
        let opened = self.open_store(&dir, command, now)?;
        if self.quiet {
            return Ok(opened.store);
        }
        for edit in &opened.hand_edits.statuses {
            let schedule =
                edit.schedule.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
            let (agent, was, is) = (&edit.agent, &edit.old_status, &edit.new_status);
            output::print_note(&format!(
                "state.yaml was edited: {agent}{schedule} is now {is}, it was {was}"
            ))?;
        }
        for agent in &opened.hand_edits.detached {
            output::print_note(&format!(
                "sessions/{agent}.json was deleted: {agent} starts a new session"
            ))?;
        }
        for path in &opened.hand_edits.moved_aside {
            output::print_note(&format!("an unreadable file was moved to {path}"))?;
        }
        Ok(opened.store)
    }

    /// Becomes the writer. Waits for a temporary daemon that has nothing left to do.
    fn open_store(
        &self,
        dir: &StateDir,
        command: &str,
        now: Timestamp,
    ) -> CommandResult<OpenedStore> {
        let deadline = Instant::now() + IDLE_DAEMON_WAIT;
        loop {
            let error = match Store::open(dir, command, now) {
                Ok(opened) => return Ok(opened),
                Err(error) => error,
            };
            let is_passing = || {
                let file = DaemonFile::read(dir).ok().flatten();
                file.is_some_and(|file| file.mode == DaemonMode::UntilIdle)
            };
            let is_held = matches!(&error, StoreOpenError::Lock { .. });
            if !is_held || Instant::now() >= deadline || !is_passing() {
                return Err(error.into());
            }
        }
    }

    /// Upgrades a database of an older Heeler, for commands that write anyway.
    pub(crate) fn migrate_database(&self) -> CommandResult {
        let is_older = self.state_dir.is_dir()
            && matches!(StoreReader::open(&self.dir()?), Err(DatabaseOpenError::Older { .. }));
        if is_older {
            drop(self.store("upgrade", now())?);
        }
        Ok(())
    }

    /// Finds an agent by its qualified name, or by its own name if that is unique.
    pub(crate) fn find_agent(&self, reader: &StoreReader, name: &str) -> CommandResult<String> {
        let mut names = reader.agent_names()?;
        if let Some(file) = &self.config
            && let Ok(loaded) = fleet_config::try_load(self, file, &fleet_config::read_text)?
        {
            names.extend(loaded.agents.iter().map(|agent| agent.name.to_string()));
        }
        if names.iter().any(|known| known == name) {
            return Ok(name.to_owned());
        }
        names.retain(|known| known.rsplit('.').next() == Some(name));
        names.sort();
        names.dedup();
        match names.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(CommandFailure::message(
                FailureCode::NotFound,
                format!("there is no agent `{name}`"),
            )
            .hint("heeler status lists all agents")),
            several => {
                let message = format!("`{name}` is ambiguous: {}", several.join(", "));
                Err(CommandFailure::message(FailureCode::Usage, message))
            }
        }
    }

    /// Returns a job's transcript; for an imported Last Light job, its session's.
    pub(crate) fn log_path(
        &self,
        reader: &StoreReader,
        head: &JobHead,
    ) -> CommandResult<Option<Utf8PathBuf>> {
        let dir = self.dir()?;
        let own = dir.job_transcript(&head.id);
        if is_file(&own) {
            return Ok(Some(own));
        }
        let session = match &head.session_id {
            Some(id) => reader.session_by_agent_id(id)?,
            None => None,
        };
        let log = session.and_then(|session| dir.session_log_path(self.home.as_deref(), &session));
        Ok(log.filter(|log| is_file(log)).or_else(|| (!head.status.is_final()).then_some(own)))
    }
}

/// Returns Heeler's home folder: `HEELER_HOME`, or `.heeler` in `HOME`.
pub(crate) fn home(env: &BTreeMap<String, String>, here: &Utf8Path) -> Option<Utf8PathBuf> {
    match (env.get("HEELER_HOME"), env.get("HOME")) {
        (Some(path), _) => Some(here.join(path)),
        (None, Some(home)) => Some(Utf8Path::new(home).join(".heeler")),
        (None, None) => None,
    }
}

/// Returns the failure for an unknown home folder.
pub(crate) fn no_home() -> CommandFailure {
    CommandFailure::message(
        FailureCode::Usage,
        "HOME is not set, so there is no folder for session locks",
    )
    .hint("HEELER_HOME=/some/folder heeler …")
}

/// Variables of Heeler's own that a job's processes keep. None is passed to an agent.
const KEPT_VARIABLES: [&str; 3] = ["PATH", "HEELER_LOG", "RUST_BACKTRACE"];

/// Returns the engine's context for a state directory, which is created if needed.
pub(crate) fn engine_fleet(
    state_dir: &Utf8Path,
    env: &BTreeMap<String, String>,
) -> CommandResult<heeler_engine::EngineContext> {
    let kept = env.iter().filter(|(name, _)| KEPT_VARIABLES.contains(&name.as_str()));
    let kept = kept.map(|(name, value)| (name.clone(), value.clone()));
    // The path must be absolute: those processes have another working directory.
    let home = home(env, &working_directory()?).map(|home| ("HEELER_HOME".to_owned(), home.into()));
    Ok(heeler_engine::EngineContext {
        dir: StateDir::create(state_dir)?,
        program: program()?,
        env: kept.chain(home).collect(),
        now,
    })
}

/// Returns the current time. Every command calls this once, so that one output has one `now`.
#[expect(clippy::disallowed_methods, reason = "the program's one look at the clock")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// Returns the path of this program.
pub(crate) fn program() -> CommandResult<Utf8PathBuf> {
    Utf8PathBuf::from_path_buf(std::env::current_exe()?).map_err(|path| {
        let message = format!("the path of this program, {}, is not valid UTF-8", path.display());
        CommandFailure::message(FailureCode::Failed, message)
    })
}

pub(crate) fn working_directory() -> CommandResult<Utf8PathBuf> {
    let here = std::env::current_dir().map_err(|error| {
        CommandFailure::new(FailureCode::Failed, error).hint("change to a folder that exists")
    })?;
    Utf8PathBuf::from_path_buf(here).map_err(|path| {
        CommandFailure::message(
            FailureCode::Usage,
            format!("the working directory {} is not valid UTF-8", path.display()),
        )
    })
}

/// Returns the environment without non-UTF-8 variables, which a config file cannot name.
pub(crate) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Returns true if a process writes the state.
fn is_state_locked(dir: &StateDir) -> bool {
    LockFile::probe(&dir.lock()).is_ok_and(|held| held.is_some())
}

/// Returns true if a path is a regular file and no link: a planted link may lead anywhere.
fn is_file(path: &Utf8Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file())
}

/// Returns the folder of a file.
pub(crate) fn parent_dir(file: &Utf8Path) -> &Utf8Path {
    file.parent().unwrap_or(Utf8Path::new(""))
}

/// Users that may own config files that are found rather than named: the user and root, as in git.
/// Anyone can put a `heeler.yaml` into a folder that is writable by all.
struct TrustedOwners(Vec<u32>);

impl TrustedOwners {
    fn from_env(env: &BTreeMap<String, String>) -> TrustedOwners {
        let own = rustix::process::geteuid();
        let behind_sudo = env.get("SUDO_UID").filter(|_| own.is_root());
        let mut users = vec![own.as_raw(), 0];
        users.extend(behind_sudo.and_then(|uid| uid.parse::<u32>().ok()));
        TrustedOwners(users)
    }

    /// Returns true if the path, its link target and its folder belong to these users; otherwise
    /// records the first such path in `passed_over`.
    fn is_trusted(&self, path: &Utf8Path, passed_over: &mut Option<Utf8PathBuf>) -> bool {
        let ours = |found: io::Result<std::fs::Metadata>| {
            found.is_ok_and(|found| self.0.contains(&found.uid()))
        };
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
    if given.is_dir() {
        return Ok(candidates(given).next());
    }
    if !given.is_file() {
        return Err(CommandFailure::message(
            FailureCode::Usage,
            format!("there is no config file {given}"),
        ));
    }
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
        .filter(|folder| folder.join("heeler.db").is_file() || folder.join("jobs").is_dir())
        .find(|folder| trust.is_trusted(folder, passed_over))
}

fn no_fleet(here: &Utf8Path) -> CommandFailure {
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
        let own = rustix::process::geteuid().as_raw();
        let mut passed_over = None;
        assert!(TrustedOwners(vec![own]).is_trusted(&path, &mut passed_over));
        assert_eq!(passed_over, None);
        assert!(!TrustedOwners(vec![own + 1]).is_trusted(&path, &mut passed_over));
        assert_eq!(passed_over, Some(path));
    }
}
