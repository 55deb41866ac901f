//! Life of the first process of a sandbox. Start at [`run_first_process`].

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions};

use crate::memory_events::count_memory_kills;
use crate::port_forwarder::PortForwarder;
use crate::protocol::{
    InsideArgument, InsideCommand, InsideFile, InsideReport, InsideRequest, MountCheck, read_frame,
    receive_request, write_frame,
};
use crate::syscall_filter::SyscallFilter;

/// Runs the first process of a sandbox. Its runner listens on `socket`, or is connected to standard
/// input. Returns when the runner is gone or the agent was not started.
pub fn run_first_process(socket: Option<&Path>) -> io::Result<()> {
    // Processes of the agent run as the same user. They must not read this one's memory, which held
    // the request, or its descriptors.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let runner = match socket {
        Some(socket) => UnixStream::connect(socket)?,
        None => UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?),
    };
    let (request, descriptors) = match receive_request(&runner) {
        Ok(Some(received)) => received,
        Ok(None) => return Ok(()),
        // A static program may be older or newer than its runner. An unknown key may be a
        // restriction, so it is not ignored.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            let reason = format!(
                "heeler and its first process have different versions ({error}); install both \
                 from the same release"
            );
            return write_frame(&runner, &InsideReport::Refused { reason });
        }
        Err(error) => return Err(error),
    };
    let has_own_cgroup = request.has_own_cgroup;
    let (agent, _kept) = match start_agent(request, descriptors) {
        Ok(started) => started,
        Err(report) => return write_frame(&runner, &report),
    };
    write_frame(&runner, &InsideReport::Started)?;
    let reporter = runner.try_clone()?;
    thread::Builder::new().spawn(move || reap_until_end(agent, &reporter, has_own_cgroup))?;
    while let Some(InsideCommand::Signal { number }) = read_frame(&runner)? {
        if let Some(signal) = Signal::from_named_raw(number) {
            // The agent may have ended, which the other thread reports.
            let _sent = rustix::process::kill_process(agent, signal);
        }
    }
    Ok(())
}

/// Starts the agent; returns its PID and the descriptors to keep open.
fn start_agent(
    request: InsideRequest,
    descriptors: Vec<OwnedFd>,
) -> Result<(Pid, Vec<OwnedFd>), InsideReport> {
    let refused = |what: &str, error: io::Error| InsideReport::Refused {
        reason: format!("cannot {what}: {error}"),
    };
    check_mounts(&request.checks)?;
    for file in &request.copies {
        create_file(file).map_err(|error| refused(&format!("create {}", file.path), error))?;
    }
    let filter = SyscallFilter::build(request.allows_unix_sockets)
        .map_err(|error| refused("build the filter of system calls", error))?;
    // Before the agent starts, so that it finds the ports.
    let forwarder = PortForwarder::bind(&request.forwards)
        .map_err(|error| refused("listen on a forwarded port", error))?;
    let mut descriptors = descriptors.into_iter();
    let mut next = || {
        let missing = || InsideReport::Refused { reason: "a descriptor is missing".to_owned() };
        descriptors.next().ok_or_else(missing)
    };
    let (stdin, stdout, stderr) = (next()?, next()?, next()?);
    let kept = (0..request.kept).map(|_| next()).collect::<Result<Vec<_>, _>>()?;
    let files: Vec<OwnedFd> = descriptors.collect();
    let mut args = Vec::new();
    for arg in &request.args {
        args.push(match arg {
            InsideArgument::Text(text) => text.clone(),
            InsideArgument::File(index) => {
                let missing = || InsideReport::Refused { reason: "a file is missing".to_owned() };
                format!("/dev/fd/{}", files.get(*index).ok_or_else(missing)?.as_raw_fd())
            }
        });
    }
    #[expect(clippy::disallowed_methods, reason = "this is where the sandbox starts the agent")]
    let mut command = Command::new(&request.program);
    command.args(args).current_dir(&request.cwd).env_clear().envs(request.env);
    command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
    AgentRestrictions { filter, files, oom_score: request.oom_score }.attach(&mut command);
    let child = command
        .spawn()
        .map_err(|error| InsideReport::NotStarted { errno: error.raw_os_error().unwrap_or(0) })?;
    // Threads exist only from here on: a copy of a process with threads could hang.
    forwarder.serve().map_err(|error| refused("forward a port", error))?;
    Ok((Pid::from_child(&child), kept))
}

/// Verifies that every mount shows the file that the runner saw.
fn check_mounts(checks: &[MountCheck]) -> Result<(), InsideReport> {
    for check in checks {
        let found = rustix::fs::lstat(check.path.as_str());
        let is_same = found
            .as_ref()
            .is_ok_and(|found| (found.st_dev, found.st_ino) == (check.device, check.inode));
        if !is_same {
            let reason = format!("{} was replaced while the sandbox was set up", check.path);
            return Err(InsideReport::Refused { reason });
        }
    }
    Ok(())
}

/// Creates a file that only its user may read.
fn create_file(file: &InsideFile) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut created = options.write(true).create_new(true).mode(0o600).open(&file.path)?;
    created.write_all(file.text.as_bytes())
}

/// Restrictions that the agent's process sets for itself before it executes its program. They are
/// built before the fork, because nothing may be allocated after it.
struct AgentRestrictions {
    filter: SyscallFilter,
    files: Vec<OwnedFd>,
    oom_score: Option<String>,
}

impl AgentRestrictions {
    #[expect(unsafe_code, reason = "only the agent's process can restrict itself before exec")]
    fn attach(self, command: &mut Command) {
        // SAFETY: the closure makes system calls on data prepared before the fork. It takes no lock,
        // allocates nothing and frees nothing. This process has one thread.
        unsafe { command.pre_exec(move || self.apply()) };
    }

    /// Runs in the child, between fork and exec.
    fn apply(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        // A core file may be written by a helper outside of the sandbox. Only a limit of one byte
        // prevents that, too.
        let none = Rlimit { current: Some(1), maximum: Some(1) };
        rustix::process::setrlimit(Resource::Core, none)?;
        if let Some(oom_score) = &self.oom_score {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            // A failure costs only the order in which the kernel kills when memory runs out.
            if let Ok(file) = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty()) {
                let _raised = rustix::io::write(file, oom_score.as_bytes());
            }
        }
        close_descriptors_on_exec()?;
        for file in &self.files {
            rustix::io::fcntl_setfd(file, FdFlags::empty())?;
        }
        self.filter.apply()
    }
}

/// Makes the kernel close every descriptor at exec, except the standard ones. Whoever started the
/// daemon may have passed some on, and a directory outside of the sandbox would be a way out. Fails
/// on kernels before 5.11.
#[expect(unsafe_code, reason = "no library in use offers this system call")]
fn close_descriptors_on_exec() -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: the call only sets a flag of descriptors. None of them is used after exec.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reaps every process that ends, until the agent itself does; then ends the sandbox.
fn reap_until_end(agent: Pid, runner: &UnixStream, has_own_cgroup: bool) {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == agent => {
                let out_of_memory = has_own_cgroup && count_memory_kills() > 0;
                let report = InsideReport::Ended { status: status.as_raw(), out_of_memory };
                // A runner that is gone needs no report.
                let _told = write_frame(runner, &report);
                std::process::exit(0);
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Without children there is no agent, which cannot happen before it is reaped.
            Err(_) => std::process::exit(1),
        }
    }
}
