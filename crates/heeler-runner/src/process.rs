//! The agent as a process, and all its descendants.
//!
//! A [`ProcessTree`] starts the agent and ends its descendants, found by three means at once: a
//! cgroup where one may be created, descent (this process adopts orphans), and the marker
//! `HEELER_RUN=<run>` in the environment. A live runner finds every descendant of the agent.
//! Settling a dead run misses a process that cleared its environment and is not in the run's
//! cgroup: because there is none, or because it left it, which root and the owner of the cgroup
//! tree can do. The mechanism ends forgotten or stubborn processes; it is not a sandbox. Processes
//! that an agent starts end with it, other runs of Heeler included: a run that must outlive it is
//! started by the daemon.
//!
//! The process that claims a tree starts no other children: all of its children are the agent's.
//! Start at [`ProcessTree`].

mod agent_process;
mod cgroup;
#[cfg(target_os = "linux")]
mod claude_folder;
#[cfg(target_os = "linux")]
mod confinement;
#[cfg(target_os = "linux")]
mod container;
#[cfg(target_os = "linux")]
mod container_body;
#[cfg(target_os = "linux")]
mod container_settle;
#[cfg(target_os = "linux")]
mod file_limits;
#[cfg(target_os = "linux")]
mod first_process_path;
#[cfg(target_os = "linux")]
mod git_folder;
#[cfg(target_os = "linux")]
mod kept_container;
#[cfg(target_os = "linux")]
mod linux;
mod marker;
#[cfg(not(target_os = "linux"))]
mod non_linux;
mod process_end;
#[cfg(target_os = "linux")]
mod running_container;
#[cfg(target_os = "linux")]
mod sandbox;
#[cfg(target_os = "linux")]
mod sandbox_control;
#[cfg(target_os = "linux")]
mod sandbox_cure;
#[cfg(target_os = "linux")]
mod sandbox_mounts;
#[cfg(target_os = "linux")]
mod sandbox_probe;
mod scanner;
mod terminal;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
#[cfg(target_os = "linux")]
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::sync::{Mutex, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::RunId;
#[cfg(target_os = "linux")]
use heeler_model::error_chain;
use heeler_model::redact::SecretRedactor;
use indexmap::IndexMap;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use thiserror::Error;

#[cfg(target_os = "linux")]
use linux as os;
#[cfg(not(target_os = "linux"))]
use non_linux as os;

#[cfg(target_os = "linux")]
use confinement::AgentConfinement;
#[cfg(target_os = "linux")]
use landlock::RulesetCreated as FileRules;
#[cfg(not(target_os = "linux"))]
use non_linux::AgentConfinement;
#[cfg(not(target_os = "linux"))]
use non_linux::FileRules;
#[cfg(target_os = "linux")]
use running_container::RunningContainer;

pub(crate) use agent_process::AgentProcess;
use agent_process::{ChildExitRegistry, KilledAtStart};
use cgroup::CgroupEntry;
pub(crate) use cgroup::RunCgroup;
pub use cgroup::control_group_unavailable_reason;
#[cfg(target_os = "linux")]
pub(crate) use container_settle::settle_containers;
#[cfg(target_os = "linux")]
pub(crate) use file_limits::AgentFileLimits;
#[cfg(target_os = "linux")]
pub use file_limits::landlock_unavailable_reason;
#[cfg(target_os = "linux")]
pub use first_process_path::find_first_process;
#[cfg(target_os = "linux")]
pub(crate) use kept_container::KeptContainerPlan;
use marker::MARKER;
pub use marker::{restart_process, restart_without_marker};
pub(crate) use os::{PreparedContainer, memory_file};
pub(crate) use process_end::ProcessEnd;
#[cfg(target_os = "linux")]
pub(crate) use sandbox::AgentSandbox;
#[cfg(target_os = "linux")]
pub use sandbox_probe::probe_sandbox;
pub(crate) use scanner::{LiveRunSet, RunProcessScanner, TerminationReport, is_runner_alive};

/// Increase of the OOM score of the agent and its children, so that they are killed before the
/// runner.
const OOM_SCORE_INCREASE: i32 = 500;
/// Highest OOM score of the kernel.
const OOM_SCORE_MAX: i32 = 1000;

/// Program to start.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LaunchSpec {
    pub program: Utf8PathBuf,
    pub args: Vec<LaunchArg>,
    /// Variables added to those of the brief; these take precedence.
    pub env: Vec<(String, String)>,
}

#[derive(Clone, PartialEq)]
pub(crate) enum LaunchArg {
    /// Literal text. Every user of the machine can read it.
    Text(String),
    /// Literal text from this key of the agent's config.
    ConfigText(&'static str, String),
    /// Bytes passed as an in-memory file; the argument is its path (`/dev/fd/N`).
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

/// Environment of a new agent process.
pub(crate) struct SpawnContext<'p> {
    pub cwd: &'p Utf8Path,
    /// The whole environment, except the marker and the variables of the launch spec.
    pub env: &'p IndexMap<String, String>,
    /// File descriptors inherited under the same numbers: the session's lock.
    pub inherit: &'p [BorrowedFd<'p>],
    /// Secrets that must not appear in arguments.
    pub secrets: &'p SecretRedactor,
}

/// Reason that an agent was not started.
#[derive(Debug, Error)]
pub(crate) enum AgentSpawnError {
    /// The working directory cannot be entered.
    #[error(
        "cannot start {program}: its working directory {path} cannot be entered; create it, or set `working_directory`"
    )]
    Folder {
        program: Utf8PathBuf,
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// The program does not exist.
    #[error("cannot start {program}: there is no such program; install it, or set its path")]
    NotFound { program: Utf8PathBuf },
    /// The program exists, but its interpreter does not.
    #[error(
        "cannot start {program}: the interpreter that its first line names is missing; install it"
    )]
    NoInterpreter { program: Utf8PathBuf },
    /// The file is not executable, or not a program.
    #[error(
        "cannot start {program}: it is not an executable program; check its mode and where its path leads"
    )]
    NotExecutable {
        program: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// Arguments and environment exceed the limit of the system.
    #[error("cannot start {program}: its arguments and environment are too large; shorten them")]
    TooLarge { program: Utf8PathBuf },
    /// The agent runs in a sandbox only, and this machine or the config does not allow one.
    #[error(
        "cannot start {program} in its sandbox: {reason}; the agent never runs without the sandbox \
         unless the config says `sandbox: off`"
    )]
    Sandbox {
        program: Utf8PathBuf,
        /// The reason, with its cure.
        reason: String,
    },
    /// The agent runs in a container only, and the engine or the config does not allow it.
    #[error(
        "cannot start {program} in its container: {reason}; the agent never runs without the \
         container unless the config says `docker: {{enabled: false}}`"
    )]
    Container {
        program: Utf8PathBuf,
        /// The reason, with its cure.
        reason: String,
    },
    /// An argument would hold a secret.
    #[error(
        "cannot start {program}: the secret in {place} would be visible to every user of this machine; remove it"
    )]
    Secret {
        program: Utf8PathBuf,
        /// Position of the argument, or the config key it comes from.
        place: String,
    },
    /// A signal from outside ended the process before it executed the program.
    #[error("{program} was killed while it was being started")]
    Killed { program: Utf8PathBuf },
    #[error("cannot {attempt} {program}")]
    Failed {
        /// Operation that failed.
        attempt: &'static str,
        program: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Processes of one run: the agent and its descendants.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    run: RunId,
    /// `None` if no cgroup may be created.
    cgroup: Option<RunCgroup>,
    children: Arc<ChildExitRegistry>,
    /// True if orphans of the agent become children of this process.
    adopts_orphans: bool,
    /// True if the agent may gain privileges and is therefore not marked.
    allows_new_privileges: bool,
    /// Sandbox of the agent; `None` if it runs as any other process of its user.
    #[cfg(target_os = "linux")]
    sandbox: Option<AgentSandbox>,
    /// Files that the agent may use, if Landlock limits them.
    #[cfg(target_os = "linux")]
    file_limits: Option<AgentFileLimits>,
    /// Container of the agent that runs now.
    #[cfg(target_os = "linux")]
    running_container: Mutex<Option<RunningContainer>>,
    /// Content of rows about the container.
    #[cfg(target_os = "linux")]
    container_notes: Mutex<Vec<&'static str>>,
}

impl ProcessTree {
    /// Makes this process adopt orphans, and creates a cgroup where permitted.
    pub(crate) fn claim(run: RunId) -> ProcessTree {
        let cgroup = RunCgroup::create(run)
            .inspect_err(|reason| tracing::debug!(%reason, "the agent has no control group"));
        ProcessTree::claim_with(run, cgroup.ok())
    }

    fn claim_with(run: RunId, cgroup: Option<RunCgroup>) -> ProcessTree {
        let adopts_orphans = os::adopt_orphans().unwrap_or_else(|error| {
            // Every kernel since 3.4 supports this; the marker and the cgroup remain.
            tracing::warn!(%error, "orphans of the agent cannot be adopted");
            false
        });
        ProcessTree {
            run,
            cgroup,
            children: Arc::default(),
            adopts_orphans,
            allows_new_privileges: false,
            #[cfg(target_os = "linux")]
            sandbox: None,
            #[cfg(target_os = "linux")]
            file_limits: None,
            #[cfg(target_os = "linux")]
            running_container: Mutex::new(None),
            #[cfg(target_os = "linux")]
            container_notes: Mutex::default(),
        }
    }

    /// Sets the sandbox of the agents that are started from now on.
    #[cfg(target_os = "linux")]
    pub(crate) fn set_sandbox(&mut self, sandbox: Option<AgentSandbox>) {
        self.sandbox = sandbox;
    }

    /// Limits the files of the agents that are started from now on.
    #[cfg(target_os = "linux")]
    pub(crate) fn set_file_limits(&mut self, limits: Option<AgentFileLimits>) {
        self.file_limits = limits;
    }

    /// Sets whether the agent may execute programs that gain privileges, such as `sudo`.
    pub(crate) fn set_new_privileges(&mut self, are_allowed: bool) {
        self.allows_new_privileges = are_allowed;
    }

    pub(crate) fn cgroup(&self) -> Option<&Utf8Path> {
        self.cgroup.as_ref().map(RunCgroup::path)
    }

    #[cfg(target_os = "linux")]
    fn set_running_container(&self, running: RunningContainer) {
        *self.running_container.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
    }

    #[cfg(target_os = "linux")]
    fn add_container_note(&self, note: &'static str) {
        self.container_notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
    }

    /// Returns the content of rows about the container that no row has yet.
    #[cfg(target_os = "linux")]
    pub(crate) fn take_container_notes(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.container_notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cfg(target_os = "linux")]
    fn take_running_container(&self) -> Option<RunningContainer> {
        self.running_container.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Starts the agent where its config says: in its container, in its sandbox, or outside. See
    /// [`ProcessTree::spawn`].
    pub(crate) async fn spawn_agent(
        &self,
        launch: &LaunchSpec,
        context: &SpawnContext<'_>,
        container: Option<PreparedContainer>,
    ) -> Result<AgentProcess, AgentSpawnError> {
        #[cfg(target_os = "linux")]
        if let Some(sandbox) = &self.sandbox
            && let Some(spec) = &sandbox.spec.container
            && let Some(container) = container
        {
            refuse_secret_argument(launch, context.secrets)?;
            return self.spawn_in_container(sandbox, spec, container, (launch, context)).await;
        }
        #[cfg(not(target_os = "linux"))]
        let _ = container;
        self.spawn(launch, context)
    }

    /// Starts a program of Heeler itself in the tree, outside of the agent's sandbox.
    pub(crate) fn spawn_outside(
        &self,
        launch: &LaunchSpec,
        context: &SpawnContext<'_>,
    ) -> Result<AgentProcess, AgentSpawnError> {
        refuse_secret_argument(launch, context.secrets)?;
        self.spawn_here(launch, context, None)
    }

    /// Starts an agent. Must be called from a thread that lives as long as the runner: when that
    /// thread ends, the agent receives SIGTERM.
    pub(crate) fn spawn(
        &self,
        launch: &LaunchSpec,
        context: &SpawnContext<'_>,
    ) -> Result<AgentProcess, AgentSpawnError> {
        refuse_secret_argument(launch, context.secrets)?;
        #[cfg(target_os = "linux")]
        if let Some(sandbox) = &self.sandbox {
            // Only `spawn_agent` can start it there, and it never runs with less isolation.
            if sandbox.spec.container.is_some() {
                let reason = "it was not started by way of the engine".to_owned();
                return Err(AgentSpawnError::Container { program: launch.program.clone(), reason });
            }
            return self.spawn_sandboxed(sandbox, launch, context);
        }
        #[cfg(target_os = "linux")]
        if let Some(limits) = &self.file_limits {
            return self.spawn_limited(limits, launch, context);
        }
        self.spawn_here(launch, context, None)
    }

    /// Starts an agent whose files Landlock limits.
    #[cfg(target_os = "linux")]
    fn spawn_limited(
        &self,
        limits: &AgentFileLimits,
        launch: &LaunchSpec,
        context: &SpawnContext<'_>,
    ) -> Result<AgentProcess, AgentSpawnError> {
        let refused =
            |reason: String| AgentSpawnError::Sandbox { program: launch.program.clone(), reason };
        let failed = |error: io::Error| refused(error_chain(&error));
        let mut folder = std::fs::DirBuilder::new();
        folder.mode(0o700).recursive(true);
        for needed in limits.claude_config.iter().chain([&limits.temporary]) {
            folder.create(needed).map_err(failed)?;
        }
        let rules = limits.build().map_err(|error| refused(error_chain(&error)))?;
        let mut launch = launch.clone();
        launch.env.push(("TMPDIR".to_owned(), limits.temporary.to_string()));
        if let Some(config) = &limits.claude_config {
            // Otherwise Claude replaces a file in the home directory, which it may not write.
            launch.env.push(("CLAUDE_CONFIG_DIR".to_owned(), config.to_string()));
        }
        self.spawn_here(&launch, context, Some(rules))
    }

    fn spawn_here(
        &self,
        launch: &LaunchSpec,
        context: &SpawnContext<'_>,
        files: Option<FileRules>,
    ) -> Result<AgentProcess, AgentSpawnError> {
        let failed = |attempt| {
            let program = launch.program.clone();
            move |source| AgentSpawnError::Failed { attempt, program, source }
        };
        let (args, mut inherited) =
            build_arguments(&launch.args).map_err(failed("hand arguments to"))?;
        // The agent keeps the lock open, so its session stays locked if only the runner dies.
        for fd in context.inherit {
            inherited.push(fd.try_clone_to_owned().map_err(failed("hand the lock to"))?);
        }
        let mut command = build_command(launch, context, self.run, args);
        let reported_pid =
            self.prepare_child(&mut command, inherited, files).map_err(failed("prepare"))?;
        let started = AgentProcess::start(&mut command, reported_pid, &self.children);
        if let Ok(agent) = &started {
            // The agent itself cannot do this before exec: the files of `/proc` belong to root for a
            // copy of this process, which is hidden. A failure costs only the order in which the
            // kernel kills processes when memory runs out.
            let _raised = std::fs::write(format!("/proc/{}/oom_score_adj", agent.pid), oom_score());
        }
        started.map_err(|source| classify_spawn_error(source, launch, context))
    }

    /// Makes a command start within the tree, with inherited descriptors. Returns the pipe from which
    /// the PID of its process is read.
    fn prepare_child(
        &self,
        command: &mut Command,
        inherited: Vec<OwnedFd>,
        files: Option<FileRules>,
    ) -> io::Result<OwnedFd> {
        let group = self.cgroup.as_ref().map(RunCgroup::open_entry).transpose()?;
        // It is read after the agent has executed its program or ended, so nothing is waited for.
        let (reported_pid, pid_report) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let prepared = PreExecSetup {
            // It is read before the fork: the child compares it with its parent at that time.
            parent: rustix::process::getpid(),
            group,
            pid_report,
            oom_score: oom_score(),
            inherited,
            // Rules for files need the mark, too: the kernel accepts none without it.
            confinement: (!self.allows_new_privileges || files.is_some())
                .then(|| AgentConfinement::prepare(files)),
        };
        prepared.attach(command);
        Ok(reported_pid)
    }

    /// Returns true if a process belongs, or may belong, to the tree. Returns false on systems
    /// other than Linux, where this cannot be determined.
    pub(crate) fn contains(&self, pid: Pid) -> bool {
        cfg!(target_os = "linux") && self.scanner(false).contains(pid)
    }

    /// Returns the run that claimed the tree. Its processes have the mark of that run.
    pub(crate) fn run(&self) -> RunId {
        self.run
    }

    /// Returns true if the agent is the only process of the tree, besides those that make its
    /// sandbox. Returns false where that cannot be determined.
    pub(crate) fn is_agent_alone(&self, agent: Pid, program: &Utf8Path) -> bool {
        #[cfg(target_os = "linux")]
        {
            let has_container =
                self.sandbox.as_ref().is_some_and(|sandbox| sandbox.spec.container.is_some());
            // In a sandbox, the agent is known by the program that it executes.
            let program = self.sandbox.as_ref().map(|_| program);
            !has_container && self.scanner(false).is_agent_alone(agent, program)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (agent, program);
            false
        }
    }

    /// Ends every process of the tree: returns once two scans in a row find none, or when time is
    /// up.
    pub(crate) async fn terminate(&self) -> TerminationReport {
        let mut has_only_descendants = self.adopts_orphans;
        #[cfg(target_os = "linux")]
        if let Some(running) =
            &*self.running_container.lock().unwrap_or_else(PoisonError::into_inner)
        {
            running.kill();
            has_only_descendants = false;
        }
        let hunt = self.scanner(has_only_descendants);
        // A scan blocks on files and on dying processes, and requests are answered meanwhile.
        let task = tokio::task::spawn_blocking(move || hunt.kill_all());
        task.await.unwrap_or_else(|error| {
            debug_assert!(false, "the hunt panicked: {error}");
            tracing::error!(%error, "the processes of the run could not be ended");
            TerminationReport::default()
        })
    }

    fn scanner(&self, has_only_descendants: bool) -> RunProcessScanner {
        let cgroup = self.cgroup.clone();
        RunProcessScanner::for_own_run(self.run, cgroup, &self.children, has_only_descendants)
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        // Removes the cgroup of an agent that was never started or never terminated; one in use
        // stays.
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
    }
}

/// Refuses a secret in an argument: every user of the machine can read the arguments of a process.
fn refuse_secret_argument(
    launch: &LaunchSpec,
    secrets: &SecretRedactor,
) -> Result<(), AgentSpawnError> {
    match find_secret_argument(launch, secrets) {
        Some(place) => Err(AgentSpawnError::Secret { program: launch.program.clone(), place }),
        None => Ok(()),
    }
}

/// Returns the place of a secret that would become an argument.
fn find_secret_argument(launch: &LaunchSpec, secrets: &SecretRedactor) -> Option<String> {
    if secrets.contains_known_secret(launch.program.as_str()) {
        return Some("its path".to_owned());
    }
    launch.args.iter().find_map(|arg| match arg {
        LaunchArg::Text(text) if secrets.contains_known_secret(text) => {
            Some("one of its arguments".to_owned())
        }
        LaunchArg::ConfigText(key, text) if secrets.contains_known_secret(text) => {
            Some(format!("`{key}`"))
        }
        // The content of a file in memory is not visible in a list of processes.
        LaunchArg::Text(_) | LaunchArg::ConfigText(..) | LaunchArg::File(_) => None,
    })
}

/// Returns the arguments and the in-memory files that some of them refer to.
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

/// Returns the in-memory files of the arguments, in their order.
#[cfg(target_os = "linux")]
fn build_memory_files(args: &[LaunchArg]) -> io::Result<Vec<OwnedFd>> {
    let files = args.iter().filter_map(|arg| match arg {
        LaunchArg::File(bytes) => Some(memory_file(bytes)),
        LaunchArg::Text(_) | LaunchArg::ConfigText(..) => None,
    });
    files.collect()
}

fn oom_score() -> String {
    // Where this file is missing, no score is written either.
    let own_score = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    let own_score: i32 = own_score.trim().parse().unwrap_or(0);
    (own_score + OOM_SCORE_INCREASE).min(OOM_SCORE_MAX).to_string()
}

#[expect(clippy::disallowed_methods, reason = "this is where the runner starts the agent")]
fn build_command(
    launch: &LaunchSpec,
    context: &SpawnContext<'_>,
    run: RunId,
    args: Vec<OsString>,
) -> Command {
    let mut command = Command::new(&launch.program);
    command.args(args).current_dir(context.cwd).env_clear();
    command.envs(context.env.iter()).envs(launch.env.iter().map(|(name, value)| (name, value)));
    // The marker is set last, so that no configured variable replaces it.
    command.env(MARKER, run.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Data that the child needs between fork and exec. It is built before the fork, because nothing
/// may be allocated after it.
struct PreExecSetup {
    parent: Pid,
    group: Option<CgroupEntry>,
    /// Pipe into which the process that becomes the agent writes its PID.
    pid_report: OwnedFd,
    oom_score: String,
    inherited: Vec<OwnedFd>,
    /// `None` if the agent may gain privileges.
    confinement: Option<AgentConfinement>,
}

impl PreExecSetup {
    #[expect(unsafe_code, reason = "only the child itself can do this, between fork and exec")]
    fn attach(mut self, command: &mut Command) {
        // SAFETY: the closure makes system calls on data prepared before the fork. It takes no
        // lock, allocates nothing and frees nothing, as required of a child of a process with
        // threads.
        unsafe { command.pre_exec(move || self.apply()) };
    }

    /// Runs in the child, between fork and exec.
    fn apply(&mut self) -> io::Result<()> {
        if let Some(group) = &self.group {
            // A move into a cgroup waits for all processors, and only one process of the machine can
            // be moved at a time. A process that is created there waits for nothing.
            if os::continue_in_cgroup(&group.folder).is_err() {
                // Without the cgroup the marker and descent remain, so an agent is not refused for
                // that.
                let _joined = rustix::io::write(&group.procs_file, b"0");
            }
        }
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        rustix::io::write(&self.pid_report, &pid.to_ne_bytes())?;
        // The agent leads a process group of its own, which `end_group` relies on.
        rustix::process::setsid()?;
        os::end_with_parent()?;
        // A parent that died before the line above no longer triggers the signal.
        if rustix::process::getppid() != Some(self.parent) {
            return Err(Errno::SRCH.into());
        }
        // A failure costs only the order in which the kernel kills processes when memory runs out.
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        if let Ok(score) = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty()) {
            let _raised = rustix::io::write(score, self.oom_score.as_bytes());
        }
        // Descriptors are closed on exec by default, so that no other child inherits them.
        for fd in &self.inherited {
            rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
        }
        self.confinement.as_mut().map_or(Ok(()), AgentConfinement::apply)
    }
}

/// Turns a failed start into an error that names the remedy.
fn classify_spawn_error(
    source: io::Error,
    launch: &LaunchSpec,
    context: &SpawnContext<'_>,
) -> AgentSpawnError {
    let program = launch.program.clone();
    if source.get_ref().is_some_and(|cause| cause.is::<KilledAtStart>()) {
        return AgentSpawnError::Killed { program };
    }
    // The child enters its working directory before it executes the program, so the same errors can
    // mean either.
    if let Err(source) = std::fs::metadata(context.cwd.join(".")) {
        return AgentSpawnError::Folder { program, path: context.cwd.to_owned(), source };
    }
    // A name without a slash is searched in PATH, so its file is not known here.
    let there = program.as_str().contains('/') && context.cwd.join(&program).exists();
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
