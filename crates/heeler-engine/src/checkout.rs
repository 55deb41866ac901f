//! Makes the working directory of an agent that names a repository: a clone of it.
//!
//! The clone grows in a folder beside the place it is for and is renamed when it is whole, so nobody
//! ever finds half of one. One process clones at a time, by a lock beside the place that git itself
//! holds too: what a killed daemon left cloning is waited for, and what it left lying is swept.
//! Start at [`ensure_checkout`].

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::config::{AgentConfig, CheckoutConfig, RepoConfig};
use heeler_model::redact::SecretRedactor;
use heeler_transcript::{LockError, LockFile, LockHolder, sync_file_system};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process_group};
use thiserror::Error;

/// The longest that a clone may take.
const CLONE_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// How long another process's clone is waited for.
const OTHER_TIME_MAX: Duration = Duration::from_secs(11 * 60);

/// How often an ended git is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The most of git's words that an error repeats: the end of them.
const GIT_OUTPUT_BYTES_MAX: usize = 4096;

/// Where git is looked for when the environment does not say.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// Variables that git gets: what it needs to find its settings, keys and proxies.
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

/// Hands git the name and token that its environment holds. It is run by a shell, which reads them
/// there, so that they are in no argument.
const CREDENTIAL_HELPER: &str = "!f() { test \"$1\" = get && printf 'username=%s\\npassword=%s\\n' \
                      \"$HEELER_GIT_USER\" \"$HEELER_GIT_PASSWORD\"; }; f";

/// Why a working directory was not made.
#[derive(Debug, Error)]
pub enum CheckoutError {
    /// Another process clones and does not come to an end.
    #[error("another process has been cloning {path} for {} minutes", OTHER_TIME_MAX.as_secs() / 60)]
    Busy {
        /// The working directory.
        path: Utf8PathBuf,
        /// The last refusal; it names the holder.
        #[source]
        source: LockError,
    },
    /// Nothing can be written beside the working directory.
    #[error("cannot make {path} for a clone of {repo}")]
    Folder {
        /// What could not be made.
        path: Utf8PathBuf,
        /// The repository.
        repo: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The lock beside the working directory cannot be used.
    #[error("cannot clone {repo} to {path}")]
    Lock {
        /// The working directory.
        path: Utf8PathBuf,
        /// The repository.
        repo: String,
        /// The cause.
        #[source]
        source: LockError,
    },
    /// There is no git.
    #[error("cannot start git to clone {repo}: install git, or make {path} yourself")]
    Start {
        /// The working directory.
        path: Utf8PathBuf,
        /// The repository.
        repo: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Git took too long.
    #[error("git did not clone {repo} within {} minutes; clone it to {path} yourself", CLONE_TIME_MAX.as_secs() / 60)]
    Slow {
        /// The working directory.
        path: Utf8PathBuf,
        /// The repository.
        repo: String,
    },
    /// Git failed.
    #[error("git cannot clone {repo} to {path}: {said}")]
    Git {
        /// The working directory.
        path: Utf8PathBuf,
        /// The repository.
        repo: String,
        /// What it said.
        said: String,
    },
}

/// Clones the agent's repository to its working directory, where that is missing and the config wants
/// it. Waits while another process does the same. `now` signs the lock.
pub fn ensure_checkout(
    agent: &AgentConfig,
    env: &BTreeMap<String, String>,
    now: Timestamp,
) -> Result<(), CheckoutError> {
    let (path, how) = (&agent.working_directory, agent.checkout.as_ref());
    match &agent.repo {
        Some(repo) if needs_clone(agent) => {
            RepositoryClone { path, repo, options: how, env, time: CLONE_TIME_MAX }.run_clone(now)
        }
        _ => Ok(()),
    }
}

/// Says whether [`ensure_checkout`] would clone.
pub(crate) fn needs_clone(agent: &AgentConfig) -> bool {
    let wanted = agent.checkout.as_ref().is_none_or(|checkout| checkout.auto_clone);
    agent.repo.is_some() && wanted && is_missing(&agent.working_directory)
}

/// Says whether there is nothing, not even a link that leads nowhere.
fn is_missing(path: &Utf8Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// One clone to be made.
struct RepositoryClone<'c> {
    path: &'c Utf8Path,
    repo: &'c RepoConfig,
    options: Option<&'c CheckoutConfig>,
    env: &'c BTreeMap<String, String>,
    time: Duration,
}

impl RepositoryClone<'_> {
    fn run_clone(&self, now: Timestamp) -> Result<(), CheckoutError> {
        let parent = self.path.parent().unwrap_or(Utf8Path::new("/"));
        fs::create_dir_all(parent).map_err(|source| self.folder_error(parent, source))?;
        let ours = format!(".{}.heeler-clone.", self.path.file_name().unwrap_or_default());
        let lock = self.lock(&parent.join(format!("{ours}lock")), now)?;
        if !is_missing(self.path) {
            return Ok(());
        }
        remove_leftovers(parent, &ours);
        let temp = parent.join(format!("{ours}{:016x}", fastrand::u64(..)));
        let made = fs::DirBuilder::new().mode(0o700).create(&temp);
        made.map_err(|source| self.folder_error(&temp, source))?;
        let outcome = self.clone_into(&temp, &lock);
        // What is left of it is swept by the next clone, if not here.
        let _removed = fs::remove_dir_all(&temp);
        outcome
    }

    fn lock(&self, path: &Utf8Path, now: Timestamp) -> Result<LockFile, CheckoutError> {
        let holder = LockHolder::this_process("clone", now);
        LockFile::acquire(path, &holder, OTHER_TIME_MAX).map_err(|source| match source {
            LockError::Held { .. } => CheckoutError::Busy { path: self.path.to_owned(), source },
            LockError::Io { .. } => {
                let (path, repo) = (self.path.to_owned(), self.repo.address().to_owned());
                CheckoutError::Lock { path, repo, source }
            }
        })
    }

    /// Clones into the temporary folder, and moves the clone to its place when it is on disk whole.
    fn clone_into(&self, temp: &Utf8Path, lock: &LockFile) -> Result<(), CheckoutError> {
        let (work, log) = (temp.join("work"), temp.join("git.log"));
        let mut options = OpenOptions::new();
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
        sync_file_system(&work).map_err(|error| place(io::Error::other(error)))?;
        fs::rename(&work, self.path).map_err(place)?;
        let parent = File::open(temp.parent().unwrap_or(temp)).and_then(|it| it.sync_all());
        parent.map_err(place)
    }

    /// Starts git in a group of its own, so that all of it can be ended. Its standard input is the
    /// lock, which so is free only when git has ended, even if we are killed.
    #[expect(clippy::disallowed_methods, reason = "the engine's one function that starts git")]
    fn start(&self, work: &Utf8Path, said: File, lock: &LockFile) -> io::Result<Child> {
        let mut git = Command::new("git");
        git.args(["clone", "--quiet"]);
        let depth = self.options.map_or(1, |how| how.clone_depth.get());
        git.arg(format!("--depth={depth}"));
        if let Some(branch) = self.options.and_then(|how| how.default_branch.as_ref()) {
            git.arg(format!("--branch={branch}"));
        }
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
        // Nobody is there to be asked, and what it says is read by us.
        set("GIT_TERMINAL_PROMPT", "0");
        set("LC_ALL", "C");
        if let Some(credentials) = self.repo.credentials() {
            set("HEELER_GIT_USER", &credentials.user);
            set("HEELER_GIT_PASSWORD", &credentials.password);
            set("GIT_CONFIG_COUNT", "2");
            // The empty one takes back the helpers of the user's settings: ours is asked alone.
            set("GIT_CONFIG_KEY_0", "credential.helper");
            set("GIT_CONFIG_VALUE_0", "");
            set("GIT_CONFIG_KEY_1", "credential.helper");
            set("GIT_CONFIG_VALUE_1", CREDENTIAL_HELPER);
        }
        if !env.contains_key("GIT_SSH") {
            let batch = || "ssh -o BatchMode=yes".to_owned();
            env.entry("GIT_SSH_COMMAND".to_owned()).or_insert_with(batch);
        }
        env
    }

    /// Returns the end of what git said, without any secret.
    fn read_git_output(&self, log: &Utf8Path, status: ExitStatus) -> String {
        let said = fs::read(log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let secrets: Vec<String> = self
            .repo
            .credentials()
            .map(|it| vec![it.user.clone(), it.password.clone()])
            .unwrap_or_default();
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

/// Waits for git to end; `None` if it took too long and was killed, with all that it started.
fn wait_for_git(mut git: Child, time: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + time;
    loop {
        match git.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            _ => {
                if let Some(group) = i32::try_from(git.id()).ok().and_then(Pid::from_raw) {
                    let _gone = kill_process_group(group, Signal::KILL);
                }
                let _status = git.wait();
                return None;
            }
        }
    }
}

/// Removes what clones that were cut off have left. Called while the lock is held.
fn remove_leftovers(parent: &Utf8Path, ours: &str) {
    let Ok(entries) = parent.read_dir_utf8() else { return };
    let left = entries.flatten().filter(|entry| {
        let name = entry.file_name().strip_prefix(ours);
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
