//! Starts an agent in a sandbox of bubblewrap.
//!
//! The sandbox has its own user, PID, network, IPC and host name namespaces, no capabilities, and the
//! file system of [`sandbox_mounts`](super::sandbox_mounts). Its first process is the program of
//! `heeler-inside`, which receives the agent's pipes, arguments and environment through a socket: no secret is in an
//! argument or in the environment of bubblewrap. Everything else is as for an agent outside: the
//! cgroup, the mark of agents, the marker, the session's lock and the agent's pipes. Start at
//! [`AgentSandbox`].

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::RuntimeType;
use heeler_inside::{
    InsideArgument, InsideReport, InsideRequest, LoopbackForward, read_frame, send_request,
};
use heeler_model::error_chain;
use heeler_model::run::SandboxSpec;
use rustix::pipe::{PipeFlags, pipe_with};

use super::agent_process::AgentPipes;
use super::claude_folder::{hide_login, mount_claude_folder};
use super::first_process_path::{SandboxFirstProcess, static_program};
use super::kept_container::KeptContainerPlan;
use super::sandbox_cure::sandbox_cure;
use super::sandbox_mounts::{SandboxMount, SandboxMounts};
use super::{
    AgentProcess, AgentSpawnError, LaunchArg, LaunchSpec, MARKER, ProcessTree, SpawnContext,
    build_memory_files, classify_spawn_error, memory_file, oom_score,
};
use crate::egress::ContainerPid;

/// Places of bubblewrap. `PATH` is not searched: an agent may be able to write a directory of it.
const BUBBLEWRAP_PATHS: [&str; 4] =
    ["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap", "/run/current-system/sw/bin/bwrap"];

/// Options that every sandbox has.
pub(super) const BASE_OPTIONS: [&str; 26] = [
    "--unshare-user",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--die-with-parent",
    "--new-session",
    "--as-pid-1",
    "--cap-drop",
    "ALL",
    "--ro-bind",
    "/",
    "/",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
    // Root may write these files even without capabilities, and they concern the whole machine.
    "--ro-bind",
    "/proc/sys",
    "/proc/sys",
    "--ro-bind-try",
    "/proc/sysrq-trigger",
    "/proc/sysrq-trigger",
    "--chdir",
    "/",
];

/// Time that a sandbox has to start its agent. It takes some milliseconds on a machine that is not
/// overloaded.
const START_WAIT_MAX: Duration = Duration::from_secs(60);

/// Length of bubblewrap's messages to keep.
const MESSAGE_BYTES_MAX: u64 = 4 << 10;

/// Directory of the run's sockets in the sandbox.
const SOCKETS_INSIDE: &str = "/run/heeler";

/// Variables that name sockets outside of the sandbox, or directories that it does not have.
const REMOVED_VARIABLES: [&str; 5] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "GPG_AGENT_INFO",
    "SSH_AGENT_PID",
    "SSH_AUTH_SOCK",
    "XDG_RUNTIME_DIR",
];

/// Variable by which Claude recognizes a sandbox.
const CLAUDE_SANDBOX_VARIABLE: &str = "IS_SANDBOX";

/// Variable by which commands of Heeler and scripts recognize a sandbox.
const SANDBOX_VARIABLE: &str = "HEELER_SANDBOX";

/// Sandbox of the agents of one run.
#[derive(Debug, Clone)]
pub(crate) struct AgentSandbox {
    pub(crate) spec: SandboxSpec,
    /// Canonical path.
    pub(crate) working_directory: Utf8PathBuf,
    pub(crate) runtime: RuntimeType,
    /// Directory of the agent's native sessions.
    pub(crate) sessions: Option<Utf8PathBuf>,
    /// Name of the working directory's subdirectory in `sessions`.
    pub(crate) project: String,
    /// Path of this program. The first process of the sandbox is beside it, or is this program.
    pub(crate) program: Utf8PathBuf,
    /// Directory of sockets that the agent reaches by loopback ports: port and name of the socket.
    pub(crate) sockets: Option<Utf8PathBuf>,
    pub(crate) forwards: Vec<(u16, &'static str)>,
    /// Variables that replace those of the agent's environment.
    pub(crate) variables: Vec<(String, String)>,
    /// True if the agent must not have Claude's login.
    pub(crate) hides_login: bool,
    /// Tells the sockets of the run the first process of a container.
    pub(crate) container_pid: ContainerPid,
    /// Name of the socket on which the runner waits for the first process of a container.
    pub(crate) control_socket: &'static str,
    /// Name of an empty file in the directory of sockets.
    pub(crate) empty_file: &'static str,
    /// Directory of the run.
    pub(crate) run_dir: Utf8PathBuf,
    pub(crate) agent: String,
    /// Set if the container is kept between the runs of the session.
    pub(crate) kept: Option<KeptContainerPlan>,
}

impl AgentSandbox {
    /// Returns the mounts for an agent with this program.
    fn mounts(
        &self,
        first: &SandboxFirstProcess,
        launch: &LaunchSpec,
        context: &SpawnContext<'_>,
    ) -> io::Result<SandboxMounts> {
        let mut mounts = self.base_mounts(context)?;
        // Commands of Heeler are there to say why they do not work.
        for program in [&first.program, &self.program, &launch.program] {
            // A name without a slash is found in PATH, in the directories of the system.
            if let Ok(real) = program.canonicalize_utf8() {
                mounts.show(&real);
            }
        }
        Ok(mounts)
    }

    /// Returns the mounts for any program.
    pub(super) fn base_mounts(&self, context: &SpawnContext<'_>) -> io::Result<SandboxMounts> {
        let mut writable = Vec::new();
        if let Some(sessions) = &self.sessions {
            let project = sessions.join(&self.project);
            // The agent would make it, but only an existing directory can be mounted. Sessions are
            // for nobody else.
            std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&project)?;
            writable.push(project.canonicalize_utf8()?);
        }
        let mut spec = self.spec.clone();
        // They run outside of the sandbox, too.
        spec.protected.push(self.program.clone());
        spec.protected.push(static_program(&self.program));
        let mut mounts = SandboxMounts::build(&spec, &self.working_directory, &writable)
            .map_err(|error| io::Error::other(error_chain(&error)))?;
        let is_claude = matches!(self.runtime, RuntimeType::Sdk | RuntimeType::Cli);
        if let Some(sessions) = self.sessions.as_ref().filter(|_| is_claude) {
            mount_claude_folder(&mut mounts, sessions, &self.working_directory, context.env)?;
            if self.hides_login
                && let Some(config) = sessions.parent().and_then(|it| it.canonicalize_utf8().ok())
            {
                hide_login(&mut mounts, &config);
            }
        }
        Ok(mounts)
    }

    /// Returns the environment of the agent.
    fn environment(
        &self,
        launch: &LaunchSpec,
        context: &SpawnContext<'_>,
    ) -> Vec<(String, String)> {
        let mut env = context.env.clone();
        env.extend(launch.env.iter().cloned());
        for name in REMOVED_VARIABLES {
            env.shift_remove(name);
        }
        env.insert("TMPDIR".to_owned(), "/tmp".to_owned());
        env.insert(SANDBOX_VARIABLE.to_owned(), "1".to_owned());
        if matches!(self.runtime, RuntimeType::Sdk | RuntimeType::Cli) {
            env.insert(CLAUDE_SANDBOX_VARIABLE.to_owned(), "1".to_owned());
            // Without it, Claude writes a file in the home directory, which is read-only.
            if let Some(config) = self.sessions.as_ref().and_then(|sessions| sessions.parent()) {
                env.insert("CLAUDE_CONFIG_DIR".to_owned(), config.to_string());
            }
        }
        // The agent's own values are those of the credentials and of a proxy outside.
        env.extend(self.variables.iter().cloned());
        env.into_iter().collect()
    }

    fn forwards(&self) -> Vec<LoopbackForward> {
        let forward = |(port, name): &(u16, &str)| LoopbackForward {
            port: *port,
            socket: format!("{SOCKETS_INSIDE}/{name}"),
        };
        self.forwards.iter().map(forward).collect()
    }
}

/// Returns bubblewrap's path, or how to install it.
pub(super) fn find_bubblewrap() -> Result<&'static Utf8Path, String> {
    let mut paths = BUBBLEWRAP_PATHS.map(Utf8Path::new).into_iter();
    paths.find(|path| path.is_file()).ok_or_else(|| {
        "bubblewrap is not installed: install the package `bubblewrap` of your distribution \
         (`apt install bubblewrap`, `dnf install bubblewrap`)"
            .to_owned()
    })
}

/// Arguments of bubblewrap, and the files that it copies.
fn bubblewrap_arguments(
    mounts: &SandboxMounts,
    sockets: Option<&Utf8Path>,
) -> io::Result<(Vec<String>, Vec<OwnedFd>)> {
    let mut args: Vec<String> = BASE_OPTIONS.map(str::to_owned).into();
    let mut files = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(|&word| word.to_owned()));
    for (path, mount) in mounts.rules() {
        let path = path.as_str();
        match mount {
            SandboxMount::EmptyFolder => add(&["--tmpfs", path]),
            // A device cannot be opened through such a mount. Programs take an empty file for no
            // file, but fail if they cannot open it.
            SandboxMount::ClosedFile => add(&["--ro-bind", "/dev/null", path]),
            SandboxMount::EmptyFile => {
                let file = memory_file(b"")?;
                add(&["--ro-bind-data", &file.as_raw_fd().to_string(), path]);
                files.push(file);
            }
            SandboxMount::ReadOnly => add(&["--ro-bind", path, path]),
            SandboxMount::Writable => add(&["--bind", path, path]),
            SandboxMount::PrivateCopy(bytes) => {
                let file = memory_file(bytes)?;
                rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
                add(&["--perms", "0600", "--file", &file.as_raw_fd().to_string(), path]);
                files.push(file);
            }
        }
    }
    if let Some(sockets) = sockets {
        add(&["--ro-bind", sockets.as_str(), SOCKETS_INSIDE]);
    }
    Ok((args, files))
}

/// Pipes of an agent: the runner's ends and the agent's ends.
pub(super) fn agent_pipes() -> io::Result<(AgentPipes, [OwnedFd; 3])> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC);
    let ((stdin, to_agent), (from_agent, stdout), (errors, stderr)) = (pipe()?, pipe()?, pipe()?);
    let pipes =
        AgentPipes { stdin: to_agent.into(), stdout: from_agent.into(), stderr: errors.into() };
    Ok((pipes, [stdin, stdout, stderr]))
}

impl ProcessTree {
    /// Starts an agent in a sandbox.
    pub(super) fn spawn_sandboxed(
        &self,
        sandbox: &AgentSandbox,
        launch: &LaunchSpec,
        context: &SpawnContext<'_>,
    ) -> Result<AgentProcess, AgentSpawnError> {
        let refused =
            |reason: String| AgentSpawnError::Sandbox { program: launch.program.clone(), reason };
        let failed = |error: io::Error| refused(error_chain(&error));
        let bubblewrap = find_bubblewrap().map_err(refused)?;
        let first = SandboxFirstProcess::find(&sandbox.program);
        let mounts = sandbox.mounts(&first, launch, context).map_err(failed)?;
        let (args, copied) =
            bubblewrap_arguments(&mounts, sandbox.sockets.as_deref()).map_err(failed)?;
        let (request, files) =
            self.inside_request(sandbox, &mounts, launch, context).map_err(failed)?;
        let (pipes, agent_ends) = agent_pipes().map_err(failed)?;
        let (runner, first_process) = UnixStream::pair().map_err(failed)?;
        #[expect(clippy::disallowed_methods, reason = "this is where the sandbox is started")]
        let mut command = Command::new(bubblewrap);
        command.args(args).arg("--").arg(visible_path(&mounts, &first.program));
        command.args(first.args).current_dir("/");
        command.env_clear().env(MARKER, self.run.to_string());
        command.stdin(OwnedFd::from(first_process)).stdout(Stdio::null()).stderr(Stdio::piped());
        let reported_pid = self.prepare_child(&mut command, copied, None).map_err(failed)?;
        let (mut process, errors) =
            AgentProcess::start_sandbox(&mut command, reported_pid, &self.children, pipes)
                .map_err(failed)?;
        // It has the other end of the socket, which must be open in the sandbox only.
        drop(command);
        let mut descriptors: Vec<BorrowedFd<'_>> =
            agent_ends.iter().map(|end| end.as_fd()).collect();
        descriptors.extend(context.inherit);
        descriptors.extend(files.iter().map(|file| file.as_fd()));
        let report = exchange(&runner, &request, &descriptors);
        match report {
            Ok(Some(InsideReport::Started)) => {
                process.attach_control(runner, None).map_err(failed)?;
                Ok(process)
            }
            Ok(Some(InsideReport::NotStarted { errno })) => {
                process.kill_sandbox();
                let source = io::Error::from_raw_os_error(errno);
                Err(classify_spawn_error(source, launch, context))
            }
            Ok(Some(InsideReport::Refused { reason })) => {
                process.kill_sandbox();
                Err(refused(reason))
            }
            Ok(None | Some(InsideReport::Ended { .. })) | Err(_) => {
                process.kill_sandbox();
                let mut message = String::new();
                if let Some(errors) = errors {
                    // All writers are dead. What cannot be read is not shown.
                    let _read = errors.take(MESSAGE_BYTES_MAX).read_to_string(&mut message);
                }
                Err(refused(sandbox_cure(message.trim())))
            }
        }
    }

    /// Returns the request for the first process, and the in-memory files of its arguments.
    pub(super) fn inside_request(
        &self,
        sandbox: &AgentSandbox,
        mounts: &SandboxMounts,
        launch: &LaunchSpec,
        context: &SpawnContext<'_>,
    ) -> io::Result<(InsideRequest, Vec<OwnedFd>)> {
        let files = build_memory_files(&launch.args)?;
        let mut index = 0..;
        let args = launch.args.iter().map(|arg| match arg {
            LaunchArg::Text(text) | LaunchArg::ConfigText(_, text) => {
                InsideArgument::Text(text.clone())
            }
            LaunchArg::File(_) => InsideArgument::File(index.next().unwrap_or_default()),
        });
        let mut env = sandbox.environment(launch, context);
        // The marker is set last, so that no configured variable replaces it.
        env.retain(|(name, _)| name != MARKER);
        env.push((MARKER.to_owned(), self.run.to_string()));
        let request = InsideRequest {
            program: visible_path(mounts, &launch.program).to_string(),
            args: args.collect(),
            cwd: context.cwd.to_string(),
            env,
            kept: context.inherit.len(),
            forwards: sandbox.forwards(),
            checks: mounts.checks()?,
            oom_score: Some(oom_score()),
            allows_unix_sockets: !sandbox.spec.denies_unix_sockets,
            copies: Vec::new(),
            has_own_cgroup: false,
        };
        Ok((request, files))
    }
}

/// Returns a path of a program that exists in the sandbox.
fn visible_path(mounts: &SandboxMounts, program: &Utf8Path) -> Utf8PathBuf {
    match mounts.is_visible(program) {
        true => program.to_owned(),
        // A link in a hidden directory. What it leads to is shown.
        false => program.canonicalize_utf8().unwrap_or_else(|_| program.to_owned()),
    }
}

/// Sends the request and waits for the reply to it.
pub(super) fn exchange(
    runner: &UnixStream,
    request: &InsideRequest,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<Option<InsideReport>> {
    runner.set_read_timeout(Some(START_WAIT_MAX))?;
    runner.set_write_timeout(Some(START_WAIT_MAX))?;
    send_request(runner, request, descriptors)?;
    read_frame(runner)
}
