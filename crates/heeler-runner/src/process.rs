//! The agent as a process, and everything that it starts.
//!
//! A [`ProcessTree`] starts the agent and ends whatever came of it, by three means at once: a control group
//! where we may make one, descent (this process adopts orphans), and the marker `HEELER_RUN=<run>`
//! in the environment. A living runner finds everything that descends from the agent. A settling does
//! not find what cleared its environment and is in no control group of the run's: because there is
//! none, or because it left it, as root and the user who owns the tree of groups can. This ends what
//! is forgotten or stubborn; it is no cage. What an agent starts ends with it, other runs of ours
//! included: what is to outlive it is started by the daemon.
//!
//! The process that claims a tree starts no other children: all of its children are the agent's.
//! Start at [`ProcessTree`].

mod agent_process;
mod cgroup;
#[cfg(target_os = "linux")]
mod linux;
mod marker;
#[cfg(not(target_os = "linux"))]
mod non_linux;
mod scanner;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::RunId;
use heeler_model::redact::SecretRedactor;
use indexmap::IndexMap;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::process::Pid;
use thiserror::Error;

#[cfg(target_os = "linux")]
use linux as os;
#[cfg(not(target_os = "linux"))]
use non_linux as os;

pub(crate) use agent_process::AgentProcess;
use agent_process::ChildExitRegistry;
pub(crate) use cgroup::RunCgroup;
pub use cgroup::control_group_unavailable_reason;
use marker::MARKER;
pub use marker::restart_without_marker;
pub(crate) use os::memory_file;
pub(crate) use scanner::{LiveRunSet, RunProcessScanner, TerminationReport, is_runner_alive};

/// How much sooner than us the agent and its children are ended when memory runs out.
const OOM_SCORE_INCREASE: i32 = 500;
/// The highest score that there is.
const OOM_SCORE_MAX: i32 = 1000;

/// What to start.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LaunchSpec {
    /// The program.
    pub program: Utf8PathBuf,
    /// Its arguments.
    pub args: Vec<LaunchArg>,
    /// Variables beside those of the brief; these win.
    pub env: Vec<(String, String)>,
}

/// One argument.
#[derive(Clone, PartialEq)]
pub(crate) enum LaunchArg {
    /// As it stands. Everybody on the machine can read it.
    Text(String),
    /// The same, from this key of the agent's config.
    ConfigText(&'static str, String),
    /// Bytes that are read from the path that the argument is (`/dev/fd/N`): in memory only.
    File(Vec<u8>),
}

impl std::fmt::Debug for LaunchArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LaunchArg::Text(text) | LaunchArg::ConfigText(_, text) => write!(f, "{text:?}"),
            LaunchArg::File(bytes) => write!(f, "File({} bytes)", bytes.len()),
        }
    }
}

/// Where and with what an agent is started.
pub(crate) struct SpawnContext<'p> {
    /// Its working directory.
    pub cwd: &'p Utf8Path,
    /// Its whole environment, but for the marker and what the launch adds.
    pub env: &'p IndexMap<String, String>,
    /// What it inherits under the same numbers: the session's lock.
    pub inherit: &'p [BorrowedFd<'p>],
    /// What its arguments may not hold.
    pub secrets: &'p SecretRedactor,
}

/// Why an agent was not started.
#[derive(Debug, Error)]
pub(crate) enum AgentSpawnError {
    /// Its working directory cannot be entered.
    #[error(
        "cannot start {program}: its working directory {path} cannot be entered; create it, or set `working_directory`"
    )]
    Folder {
        /// The program.
        program: Utf8PathBuf,
        /// The folder.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is no such program.
    #[error("cannot start {program}: there is no such program; install it, or set its path")]
    NotFound {
        /// The program.
        program: Utf8PathBuf,
    },
    /// The program is there, but what should interpret it is not.
    #[error(
        "cannot start {program}: the interpreter that its first line names is missing; install it"
    )]
    NoInterpreter {
        /// The program.
        program: Utf8PathBuf,
    },
    /// It may not be executed, or is no program.
    #[error(
        "cannot start {program}: it is not an executable program; check its mode and where its path leads"
    )]
    NotExecutable {
        /// The program.
        program: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Arguments and environment are larger than the system takes.
    #[error("cannot start {program}: its arguments and environment are too large; shorten them")]
    TooLarge {
        /// The program.
        program: Utf8PathBuf,
    },
    /// An argument would hold a secret.
    #[error(
        "cannot start {program}: everybody on this machine could read the secret in {place}; take it out of there"
    )]
    Secret {
        /// The program.
        program: Utf8PathBuf,
        /// Which argument, or the key of the config that it comes from.
        place: String,
    },
    /// Anything else.
    #[error("cannot {attempt} {program}")]
    Failed {
        /// What was tried.
        attempt: &'static str,
        /// The program.
        program: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The processes of one run: the agent and whatever it starts.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    run: RunId,
    /// None where we may not make one.
    cgroup: Option<RunCgroup>,
    children: Arc<ChildExitRegistry>,
}

impl ProcessTree {
    /// Makes this process the one that adopts orphans, and a control group where we may.
    pub(crate) fn claim(run: RunId) -> ProcessTree {
        let cgroup = RunCgroup::create(run)
            .inspect_err(|reason| tracing::debug!(%reason, "the agent has no control group"));
        ProcessTree::claim_with(run, cgroup.ok())
    }

    fn claim_with(run: RunId, cgroup: Option<RunCgroup>) -> ProcessTree {
        if let Err(error) = os::adopt_orphans() {
            // Any kernel since 3.4 can; the marker and the control group remain.
            tracing::warn!(%error, "orphans of the agent cannot be adopted");
        }
        ProcessTree { run, cgroup, children: Arc::default() }
    }

    /// Returns the agent's control group, where there is one.
    pub(crate) fn cgroup(&self) -> Option<&Utf8Path> {
        self.cgroup.as_ref().map(RunCgroup::path)
    }

    /// Starts an agent. To be called from a thread that lives as long as the runner: when it ends,
    /// the agent gets SIGTERM.
    pub(crate) fn spawn(
        &self,
        launch: &LaunchSpec,
        place: &SpawnContext<'_>,
    ) -> Result<AgentProcess, AgentSpawnError> {
        let failed = |attempt| {
            let program = launch.program.clone();
            move |source| AgentSpawnError::Failed { attempt, program, source }
        };
        if let Some(at) = find_secret_argument(launch, place.secrets) {
            return Err(AgentSpawnError::Secret { program: launch.program.clone(), place: at });
        }
        let (args, mut inherited) =
            build_arguments(&launch.args).map_err(failed("hand arguments to"))?;
        for fd in place.inherit {
            inherited.push(fd.try_clone_to_owned().map_err(failed("hand the lock to"))?);
        }
        let group = self.cgroup.as_ref().map(RunCgroup::open_procs_file).transpose();
        let prepared = PreExecSetup {
            parent: rustix::process::getpid(),
            group: group.map_err(failed("open the control group of"))?,
            oom_score: oom_score(),
            inherited,
        };
        let mut command = build_command(launch, place, self.run, args);
        prepared.attach(&mut command);
        let started = AgentProcess::start(&mut command, &self.children);
        started.map_err(|source| classify_spawn_error(source, launch, place))
    }

    /// Says whether a process is one of the tree, or may be. Where that cannot be found out, none is.
    pub(crate) fn contains(&self, pid: Pid) -> bool {
        cfg!(target_os = "linux") && self.scanner().contains(pid)
    }

    /// Ends every process of the tree: returns when two looks in a row find none, or when time is up.
    pub(crate) async fn terminate(&self) -> TerminationReport {
        let hunt = self.scanner();
        let task = tokio::task::spawn_blocking(move || hunt.kill_all());
        task.await.unwrap_or_else(|error| {
            debug_assert!(false, "the hunt panicked: {error}");
            tracing::error!(%error, "the processes of the run could not be ended");
            TerminationReport::default()
        })
    }

    fn scanner(&self) -> RunProcessScanner {
        RunProcessScanner::for_own_run(self.run, self.cgroup.clone(), &self.children)
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        // A group whose agent was never started, or whose end nobody asked for; one in use stays.
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
    }
}

/// Returns where a secret stands that would be an argument.
fn find_secret_argument(launch: &LaunchSpec, secrets: &SecretRedactor) -> Option<String> {
    if secrets.contains_secret(launch.program.as_str()) {
        return Some("its path".to_owned());
    }
    launch.args.iter().find_map(|arg| match arg {
        LaunchArg::Text(text) if secrets.contains_secret(text) => {
            Some("one of its arguments".to_owned())
        }
        LaunchArg::ConfigText(key, text) if secrets.contains_secret(text) => {
            Some(format!("`{key}`"))
        }
        LaunchArg::Text(_) | LaunchArg::ConfigText(..) | LaunchArg::File(_) => None,
    })
}

/// Returns the arguments, and the files in memory that some of them are.
fn build_arguments(args: &[LaunchArg]) -> io::Result<(Vec<OsString>, Vec<OwnedFd>)> {
    let mut texts = Vec::new();
    let mut files = Vec::new();
    for arg in args {
        match arg {
            LaunchArg::Text(text) | LaunchArg::ConfigText(_, text) => texts.push(text.into()),
            LaunchArg::File(bytes) => {
                let file = memory_file(bytes)?;
                texts.push(format!("/dev/fd/{}", file.as_raw_fd()).into());
                files.push(file);
            }
        }
    }
    Ok((texts, files))
}

fn oom_score() -> String {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    let own: i32 = own.trim().parse().unwrap_or(0);
    (own + OOM_SCORE_INCREASE).min(OOM_SCORE_MAX).to_string()
}

#[expect(clippy::disallowed_methods, reason = "this is where the runner starts the agent")]
fn build_command(
    launch: &LaunchSpec,
    place: &SpawnContext<'_>,
    run: RunId,
    args: Vec<OsString>,
) -> Command {
    let mut command = Command::new(&launch.program);
    command.args(args).current_dir(place.cwd).env_clear();
    command.envs(place.env.iter()).envs(launch.env.iter().map(|(name, value)| (name, value)));
    command.env(MARKER, run.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What the child needs between fork and exec, made before the fork: nothing may be allocated there.
struct PreExecSetup {
    parent: Pid,
    group: Option<OwnedFd>,
    oom_score: String,
    inherited: Vec<OwnedFd>,
}

impl PreExecSetup {
    #[expect(unsafe_code, reason = "only the child itself can do this, between fork and exec")]
    fn attach(self, command: &mut Command) {
        // SAFETY: the closure makes system calls on what was prepared before the fork. It takes no
        // lock, allocates nothing and frees nothing, as a child of a process with threads must.
        unsafe { command.pre_exec(move || self.apply()) };
    }

    /// Runs in the child.
    fn apply(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        os::end_with_parent()?;
        // A parent that died before the line above sends no signal any more.
        if rustix::process::getppid() != Some(self.parent) {
            return Err(Errno::SRCH.into());
        }
        if let Some(group) = &self.group {
            // Without it the marker and descent remain; an agent is not refused for that.
            let _joined = rustix::io::write(group, b"0");
        }
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        if let Ok(score) = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty()) {
            let _raised = rustix::io::write(score, self.oom_score.as_bytes());
        }
        for fd in &self.inherited {
            rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
        }
        Ok(())
    }
}

/// Says what to do about a start that failed.
fn classify_spawn_error(
    source: io::Error,
    launch: &LaunchSpec,
    place: &SpawnContext<'_>,
) -> AgentSpawnError {
    let program = launch.program.clone();
    // The child enters its folder before it becomes the program: the same errors mean either.
    if let Err(source) = std::fs::metadata(place.cwd.join(".")) {
        return AgentSpawnError::Folder { program, path: place.cwd.to_owned(), source };
    }
    let there = program.as_str().contains('/') && place.cwd.join(&program).exists();
    match source.kind() {
        io::ErrorKind::NotFound if there => AgentSpawnError::NoInterpreter { program },
        io::ErrorKind::NotFound => AgentSpawnError::NotFound { program },
        io::ErrorKind::PermissionDenied => AgentSpawnError::NotExecutable { program, source },
        io::ErrorKind::ArgumentListTooLong => AgentSpawnError::TooLarge { program },
        _ => AgentSpawnError::Failed { attempt: "start", program, source },
    }
}

#[cfg(test)]
mod tests;
