//! Creates the working directory of an agent that has a repository, by cloning it.
//!
//! The clone is made in a temporary directory next to the target and renamed when it is complete,
//! so the target never holds a partial clone. A lock file next to the target allows one clone at a
//! time. Git inherits the lock: a clone left running by a killed daemon is waited for, and its
//! leftovers are removed. Start at [`ensure_checkout`].

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{AgentConfig, CheckoutConfig, RepoConfig};
use heeler_model::redact::SecretRedactor;
use heeler_transcript::{LockError, LockFile, LockHolder, sync_file_system};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process_group};
use thiserror::Error;

/// Time limit of a clone.
const CLONE_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// Time to wait for another process's clone.
const OTHER_TIME_MAX: Duration = Duration::from_secs(11 * 60);

/// Poll interval while waiting for git to exit.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Maximum number of bytes of git's output in an error message; the end is kept.
const GIT_OUTPUT_BYTES_MAX: usize = 4096;

/// `PATH` for git when the environment has none.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// Environment variables passed to git: those it needs to find its settings, keys and proxies.
const PASSED_VARIABLES: [&str; 23] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "SSH_AUTH_SOCK",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "no_proxy",
    "NO_PROXY",
    "all_proxy",
    "ALL_PROXY",
];

/// Part of the names of temporary directories of clones.
pub(crate) const CLONE_MARK: &str = ".heeler-clone.";

/// Git credential helper that passes the user name and token from the environment. A shell runs it
/// and expands them, so they appear in no process argument.
const CREDENTIAL_HELPER: &str = "!f() { test \"$1\" = get && printf 'username=%s\\npassword=%s\\n' \
                      \"$HEELER_GIT_USER\" \"$HEELER_GIT_PASSWORD\"; }; f";

/// Failure to create a working directory.
#[derive(Debug, Error)]
pub enum CheckoutError {
    /// Another process has been cloning for too long.
    #[error("another process has been cloning {path} for {} minutes", OTHER_TIME_MAX.as_secs() / 60)]
    Busy {
        path: Utf8PathBuf,
        /// The last lock error; it names the holder.
        #[source]
        source: LockError,
    },
    /// The directory for the clone cannot be created.
    #[error("cannot make {path} for a clone of {repo}")]
    Folder {
        path: Utf8PathBuf,
        repo: String,
        #[source]
        source: io::Error,
    },
    /// The lock file next to the working directory cannot be used.
    #[error("cannot clone {repo} to {path}")]
    Lock {
        path: Utf8PathBuf,
        repo: String,
        #[source]
        source: LockError,
    },
    /// Git cannot be started.
    #[error("cannot start git to clone {repo}: install git, or make {path} yourself")]
    Start {
        path: Utf8PathBuf,
        repo: String,
        #[source]
        source: io::Error,
    },
    /// Git exceeded the time limit.
    #[error("git did not clone {repo} within {} minutes; clone it to {path} yourself", CLONE_TIME_MAX.as_secs() / 60)]
    Slow { path: Utf8PathBuf, repo: String },
    /// Git failed.
    #[error("git cannot clone {repo} to {path}: {said}")]
    Git {
        path: Utf8PathBuf,
        repo: String,
        /// End of git's output, without secrets.
        said: String,
    },
}

/// Clones the agent's repository to its working directory if that is missing and the config asks
/// for it. Waits while another process makes the same clone. `now` is written to the lock.
pub fn ensure_checkout(
    agent: &AgentConfig,
    env: &BTreeMap<String, String>,
    now: Timestamp,
) -> Result<(), CheckoutError> {
    let (path, how) = (&agent.working_directory, agent.checkout.as_ref());
    match &agent.repo {
        Some(repo) if needs_clone(agent) => {
            let lock = clone_lock_name(path);
            RepositoryClone { path, repo, options: how, env, time: CLONE_TIME_MAX, lock }
                .run_clone(now)
        }
        _ => Ok(()),
    }
}

/// Clones a repository of an agent to another path, if that is missing. Clones with the same lock
/// wait for each other. The lock file is beside the clone.
pub(crate) fn clone_to(
    path: &Utf8Path,
    (agent, repo): (&AgentConfig, &RepoConfig),
    env: &BTreeMap<String, String>,
    lock: String,
    now: Timestamp,
) -> Result<(), CheckoutError> {
    let options = agent.checkout.as_ref();
    RepositoryClone { path, repo, options, env, time: CLONE_TIME_MAX, lock }.run_clone(now)
}

/// Returns the beginning of the names of temporary directories of a clone.
fn temporary_prefix(path: &Utf8Path) -> String {
    format!(".{}{CLONE_MARK}", path.file_name().unwrap_or_default())
}

fn clone_lock_name(path: &Utf8Path) -> String {
    format!("{}lock", temporary_prefix(path))
}

/// Returns true if [`ensure_checkout`] would clone.
pub(crate) fn needs_clone(agent: &AgentConfig) -> bool {
    // Cloning is the default if the config has no `checkout`.
    let wanted = agent.checkout.as_ref().is_none_or(|checkout| checkout.auto_clone);
    agent.repo.is_some() && wanted && is_missing(&agent.working_directory)
}

/// Returns true if nothing exists at the path, not even a broken symbolic link.
pub(crate) fn is_missing(path: &Utf8Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// One clone to be made.
struct RepositoryClone<'c> {
    path: &'c Utf8Path,
    repo: &'c RepoConfig,
    options: Option<&'c CheckoutConfig>,
    env: &'c BTreeMap<String, String>,
    time: Duration,
    /// Name of the lock file, which is beside the target.
    lock: String,
}

impl RepositoryClone<'_> {
    fn run_clone(&self, now: Timestamp) -> Result<(), CheckoutError> {
        let parent = self.path.parent().unwrap_or(Utf8Path::new("/"));
        fs::create_dir_all(parent).map_err(|source| self.folder_error(parent, source))?;
        // The name begins with a dot and is beside the target, so the rename stays on one file
        // system.
        let ours = temporary_prefix(self.path);
        let lock = self.lock(&parent.join(&self.lock), now)?;
        // Another process may have made the clone while this one waited for the lock.
        if !is_missing(self.path) {
            return Ok(());
        }
        remove_leftovers(parent, &ours);
        let temp = parent.join(format!("{ours}{:016x}", fastrand::u64(..)));
        let made = fs::DirBuilder::new().mode(0o700).create(&temp);
        made.map_err(|source| self.folder_error(&temp, source))?;
        // The lock is passed on to git, which holds it even if this process is killed.
        let outcome = self.clone_into(&temp, &lock);
        // If this fails, the next clone removes the leftovers.
        let _removed = fs::remove_dir_all(&temp);
        outcome
    }

    fn lock(&self, path: &Utf8Path, now: Timestamp) -> Result<LockFile, CheckoutError> {
        let holder = LockHolder::this_process("clone", now);
        LockFile::acquire(path, &holder, OTHER_TIME_MAX).map_err(|source| match source {
            LockError::Held { .. } => CheckoutError::Busy { path: self.path.to_owned(), source },
            LockError::Io { .. } | LockError::Forbidden { .. } => {
                let (path, repo) = (self.path.to_owned(), self.repo.address().to_owned());
                CheckoutError::Lock { path, repo, source }
            }
        })
    }

    /// Clones into the temporary directory, then moves the clone to its target once it is
    /// completely on disk.
    fn clone_into(&self, temp: &Utf8Path, lock: &LockFile) -> Result<(), CheckoutError> {
        let (work, log) = (temp.join("work"), temp.join("git.log"));
        let mut options = OpenOptions::new();
        // Git's output goes to a file, because a pipe that nobody reads would block it.
        let said = options.create_new(true).append(true).mode(0o600).open(&log);
        let said = said.map_err(|source| self.folder_error(&log, source))?;
        let started = self.start(&work, said, lock).map_err(|source| {
            let (path, repo) = (self.path.to_owned(), self.repo.address().to_owned());
            CheckoutError::Start { path, repo, source }
        })?;
        let status = wait_for_git(started, self.time);
        let (path, repo) = (self.path.to_owned(), self.repo.address().to_owned());
        match status {
            None => return Err(CheckoutError::Slow { path, repo }),
            Some(status) if status.success() => {}
            Some(status) => {
                let said = self.read_git_output(&log, status);
                return Err(CheckoutError::Git { path, repo, said });
            }
        }
        let place = |source| self.folder_error(self.path, source);
        // The content must be on disk before the rename makes it visible.
        sync_file_system(&work).map_err(|error| place(io::Error::other(error)))?;
        fs::rename(&work, self.path).map_err(place)?;
        // Without this sync a power loss could undo the rename after the job has started.
        let parent = File::open(temp.parent().unwrap_or(temp)).and_then(|it| it.sync_all());
        parent.map_err(place)
    }

    /// Starts git in its own process group, so that all its processes can be killed. Its standard
    /// input is the lock file, so the lock is released only when git has ended, even if this
    /// process is killed.
    #[expect(clippy::disallowed_methods, reason = "the engine's one function that starts git")]
    fn start(&self, work: &Utf8Path, said: File, lock: &LockFile) -> io::Result<Child> {
        let mut git = Command::new("git");
        git.args(["clone", "--quiet"]);
        let depth = self.options.map_or(1, |how| how.clone_depth.get());
        git.arg(format!("--depth={depth}"));
        if let Some(branch) = self.options.and_then(|how| how.default_branch.as_ref()) {
            git.arg(format!("--branch={branch}"));
        }
        // The dashes keep an address that begins with a dash from becoming an option.
        git.args(["--", self.repo.address(), work.as_str()]);
        git.env_clear().envs(self.environment());
        git.stdin(Stdio::from(lock.fd().try_clone_to_owned()?)).stdout(Stdio::null()).stderr(said);
        git.current_dir("/").process_group(0).spawn()
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let passed = |name: &&str| Some(((*name).to_owned(), self.env.get(*name)?.clone()));
        let mut env: BTreeMap<String, String> =
            PASSED_VARIABLES.iter().filter_map(passed).collect();
        env.entry("PATH".to_owned()).or_insert_with(|| PATH_DEFAULT.to_owned());
        let mut set = |name: &str, value: &str| env.insert(name.to_owned(), value.to_owned());
        // Git must not prompt, and its messages must not be translated.
        set("GIT_TERMINAL_PROMPT", "0");
        set("LC_ALL", "C");
        if let Some(credentials) = self.repo.credentials() {
            set("HEELER_GIT_USER", &credentials.user);
            set("HEELER_GIT_PASSWORD", &credentials.password);
            set("GIT_CONFIG_COUNT", "2");
            // The empty helper resets those of the user's settings, so that only this one is used.
            set("GIT_CONFIG_KEY_0", "credential.helper");
            set("GIT_CONFIG_VALUE_0", "");
            set("GIT_CONFIG_KEY_1", "credential.helper");
            set("GIT_CONFIG_VALUE_1", CREDENTIAL_HELPER);
        }
        // Without batch mode ssh could ask for a password.
        if !env.contains_key("GIT_SSH") {
            let batch = || "ssh -o BatchMode=yes".to_owned();
            env.entry("GIT_SSH_COMMAND".to_owned()).or_insert_with(batch);
        }
        env
    }

    /// Returns the end of git's output, without secrets.
    fn read_git_output(&self, log: &Utf8Path, status: ExitStatus) -> String {
        let said = fs::read(log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let secrets: Vec<String> = self
            // Git's messages may repeat the address with the credentials.
            .repo
            .credentials()
            .map(|it| vec![it.user.clone(), it.password.clone()])
            .unwrap_or_default();
        // The text is redacted before it is cut, or a cut secret would not be recognized.
        let said = SecretRedactor::new(&secrets).redact_text(said.trim()).into_owned();
        match said.is_empty() {
            true => format!("it ended with {status} and said nothing"),
            false => said
                [said.ceil_char_boundary(said.len().saturating_sub(GIT_OUTPUT_BYTES_MAX))..]
                .lines()
                .collect::<Vec<_>>()
                .join("; "),
        }
    }

    fn folder_error(&self, path: &Utf8Path, source: io::Error) -> CheckoutError {
        CheckoutError::Folder {
            path: path.to_owned(),
            repo: self.repo.address().to_owned(),
            source,
        }
    }
}

/// Waits for git to exit. Returns `None` if it exceeded the time limit and its process group was
/// killed.
fn wait_for_git(mut git: Child, time: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + time;
    loop {
        match git.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            _ => {
                if let Some(group) = i32::try_from(git.id()).ok().and_then(Pid::from_raw) {
                    // Helpers such as ssh belong to the group, and would otherwise keep the lock.
                    let _gone = kill_process_group(group, Signal::KILL);
                }
                let _status = git.wait();
                return None;
            }
        }
    }
}

/// Removes the leftovers of interrupted clones. Called while the lock is held.
fn remove_leftovers(parent: &Utf8Path, ours: &str) {
    let Ok(entries) = parent.read_dir_utf8() else { return };
    let left = entries.flatten().filter(|entry| {
        let name = entry.file_name().strip_prefix(ours);
        // Only names that this function could have made are removed.
        let is_random =
            |name: &str| name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit());
        name.is_some_and(is_random) && entry.file_type().is_ok_and(|kind| kind.is_dir())
    });
    for entry in left {
        if let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::warn!("cannot remove {}, left by a clone: {error}", entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
