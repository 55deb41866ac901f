//! The first process of a sandbox, started as an ordinary process.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that fails panics")]
#![expect(clippy::disallowed_methods, reason = "the tests play the runner")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use heeler_inside::{
    InsideArgument, InsideCommand, InsideReport, InsideRequest, LoopbackForward, MountCheck,
    read_frame, send_request, write_frame,
};
use rustix::pipe::{PipeFlags, pipe_with};

/// Longest time that a test waits for a message.
const WAIT_MAX: Duration = Duration::from_secs(120);

fn shell(script: &str) -> InsideRequest {
    InsideRequest {
        program: "/bin/sh".to_owned(),
        args: ["-c", script].map(|word| InsideArgument::Text(word.to_owned())).into(),
        cwd: "/".to_owned(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        kept: 0,
        forwards: Vec::new(),
        checks: Vec::new(),
        oom_score: None,
        allows_unix_sockets: true,
        copies: Vec::new(),
        has_own_cgroup: false,
    }
}

/// A started first process, with the runner's ends of everything.
struct Inside {
    process: Child,
    runner: UnixStream,
    stdin: Option<File>,
    stdout: File,
}

impl Inside {
    fn start(request: &InsideRequest, files: &[BorrowedFd<'_>]) -> Inside {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((stdin, to_agent), (from_agent, stdout)) = (pipe(), pipe());
        let (runner, first_process) = UnixStream::pair().unwrap();
        runner.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_heeler-inside"))
            .stdin(OwnedFd::from(first_process))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut descriptors = vec![stdin.as_fd(), stdout.as_fd(), stdout.as_fd()];
        descriptors.extend(files);
        send_request(&runner, request, &descriptors).unwrap();
        Inside { process, runner, stdin: Some(to_agent.into()), stdout: from_agent.into() }
    }

    #[track_caller]
    fn report(&self) -> InsideReport {
        read_frame(&self.runner).unwrap().expect("the first process reports")
    }

    #[track_caller]
    fn ended(&self) -> ExitStatus {
        match self.report() {
            InsideReport::Ended { status, .. } => ExitStatus::from_raw(status),
            other => panic!("{other:?}"),
        }
    }

    fn output(&mut self) -> String {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        text
    }
}

#[track_caller]
fn run(request: &InsideRequest) -> (String, ExitStatus) {
    let mut inside = Inside::start(request, &[]);
    assert_eq!(inside.report(), InsideReport::Started);
    let status = inside.ended();
    inside.process.wait().unwrap();
    (inside.output(), status)
}

#[test]
fn the_agent_has_the_pipes_environment_and_directory_of_the_request() {
    let mut request = shell("pwd; echo $SECRET; cat; exit 7");
    request.cwd = "/usr".to_owned();
    request.env.push(("SECRET".to_owned(), "value".to_owned()));
    let mut inside = Inside::start(&request, &[]);
    assert_eq!(inside.report(), InsideReport::Started);
    inside.stdin.take().unwrap().write_all(b"from the runner").unwrap();
    assert_eq!(inside.ended().code(), Some(7));
    inside.process.wait().unwrap();
    assert_eq!(inside.output(), "/usr\nvalue\nfrom the runner");
}

#[test]
fn files_reach_the_agent_and_kept_descriptors_do_not() {
    let mut script = tempfile::tempfile().unwrap();
    script.write_all(b"echo from a file; ls /proc/self/fd | tr '\\n' ' '").unwrap();
    let kept = tempfile::tempfile().unwrap();
    // A descriptor that everything inherits, as from a shell that started the daemon.
    let root = File::open("/").unwrap();
    let _inherited = rustix::io::dup(&root).unwrap();
    let mut request = shell("");
    request.args = vec![InsideArgument::File(0)];
    request.kept = 1;
    let mut inside = Inside::start(&request, &[kept.as_fd(), script.as_fd()]);
    assert_eq!(inside.report(), InsideReport::Started);
    assert!(inside.ended().success());
    inside.process.wait().unwrap();
    let output = inside.output();
    assert!(output.starts_with("from a file\n0 1 2 "), "{output}");
    // `ls` has its three standard descriptors, the script and the directory that it lists.
    assert_eq!(output.lines().last().unwrap().split_whitespace().count(), 5, "{output}");
}

#[test]
fn a_request_of_another_version_is_refused() {
    let (runner, first_process) = UnixStream::pair().unwrap();
    runner.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_heeler-inside"))
        .stdin(OwnedFd::from(first_process))
        .spawn()
        .unwrap();
    let mut request = serde_json::to_value(shell("exit 4")).unwrap();
    // A restriction that this version does not know.
    request["read_only_root"] = true.into();
    write_frame(&runner, &request).unwrap();
    let report: InsideReport = read_frame(&runner).unwrap().expect("the first process reports");
    let InsideReport::Refused { reason } = report else { panic!("{report:?}") };
    assert!(reason.contains("different versions (unknown field `read_only_root`"), "{reason}");
    assert!(process.wait().unwrap().success());
}

#[test]
fn the_first_process_of_a_container_connects_to_a_path() {
    let temp = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(temp.path().join("run.sock")).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_heeler-inside"))
        .arg(temp.path().join("run.sock"))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let (runner, _) = listener.accept().unwrap();
    runner.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    send_request(&runner, &shell("exit 4"), &[null.as_fd(), null.as_fd(), null.as_fd()]).unwrap();
    assert_eq!(read_frame(&runner).unwrap(), Some(InsideReport::Started));
    let ended: Option<InsideReport> = read_frame(&runner).unwrap();
    assert_eq!(ended, Some(InsideReport::Ended { status: 4 << 8, out_of_memory: false }));
    process.wait().unwrap();
}

#[test]
fn a_signal_reaches_the_agent_and_its_status_the_runner() {
    let inside = Inside::start(&shell("exec sleep 600"), &[]);
    assert_eq!(inside.report(), InsideReport::Started);
    write_frame(&inside.runner, &InsideCommand::Signal { number: libc::SIGINT }).unwrap();
    assert_eq!(inside.ended().signal(), Some(libc::SIGINT));
    let mut process = inside.process;
    process.wait().unwrap();
}

#[test]
fn the_first_process_ends_when_the_runner_is_gone() {
    let mut inside = Inside::start(&shell("exec sleep 600"), &[]);
    assert_eq!(inside.report(), InsideReport::Started);
    drop(inside.runner);
    // Waits without a limit: without an end, the test does not end either.
    inside.process.wait().unwrap();
}

#[test]
fn a_program_that_cannot_be_executed_is_reported_with_its_reason() {
    let mut request = shell("");
    request.program = "/nowhere/agent".to_owned();
    let mut inside = Inside::start(&request, &[]);
    assert_eq!(inside.report(), InsideReport::NotStarted { errno: libc::ENOENT });
    inside.process.wait().unwrap();
}

#[test]
fn a_path_that_was_replaced_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("hooks");
    std::fs::create_dir(&path).unwrap();
    let found = path.symlink_metadata().unwrap();
    let (device, inode) = (found.dev(), found.ino());
    let mut request = shell("echo started");
    request.checks = vec![MountCheck { path: path.to_str().unwrap().to_owned(), device, inode }];
    assert_eq!(run(&request).0, "started\n");
    std::fs::rename(&path, temp.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(temp.path().join("moved"), &path).unwrap();
    let mut inside = Inside::start(&request, &[]);
    assert!(matches!(inside.report(), InsideReport::Refused { .. }));
    inside.process.wait().unwrap();
    assert_eq!(inside.output(), "");
}

#[test]
fn a_loopback_port_leads_to_the_socket_of_the_runner() {
    let temp = tempfile::tempdir().unwrap();
    let socket = temp.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    // The port is free now, and nothing else asks for it.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut request = shell(&format!(
        "exec python3 -c \"import socket; s=socket.create_connection(('127.0.0.1',{port})); \
         s.sendall(b'ping'); s.shutdown(1); print(s.recv(9).decode())\""
    ));
    request.forwards = vec![LoopbackForward { port, socket: socket.to_str().unwrap().to_owned() }];
    let mut inside = Inside::start(&request, &[]);
    assert_eq!(inside.report(), InsideReport::Started);
    let (mut stream, _) = listener.accept().unwrap();
    let mut received = String::new();
    stream.read_to_string(&mut received).unwrap();
    assert_eq!(received, "ping");
    stream.write_all(b"pong").unwrap();
    drop(stream);
    assert!(inside.ended().success());
    inside.process.wait().unwrap();
    assert_eq!(inside.output(), "pong\n");
}

/// Prints the name of each call that is not refused with the expected error.
const CALLS: &str = r#"
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, number, expected, *args):
    ctypes.set_errno(0)
    if libc.syscall(number, *args) != -1 or ctypes.get_errno() != expected:
        print(name, os.strerror(ctypes.get_errno()))
EPERM, ENOSYS = errno.EPERM, errno.ENOSYS
if os.uname().machine == 'x86_64':
    call('ptrace', 101, EPERM, 0, 0, 0, 0)
    call('process_vm_readv', 310, EPERM, os.getpid(), 0, 0, 0, 0, 0)
    call('io_uring_setup', 425, EPERM, 1, 0)
    call('userfaultfd', 323, EPERM, 1)
    call('keyctl', 250, EPERM, 0, -3, 0)
    call('add_key', 248, EPERM, 0, 0, 0, 0, 0)
    call('mount', 165, EPERM, 0, 0, 0, 0, 0)
    call('unshare', 272, EPERM, 0x10000000)
    call('setns', 308, EPERM, 0, 0)
    call('clone with a user namespace', 56, EPERM, 0x10000000 | 17, 0, 0, 0, 0)
    call('clone3', 435, ENOSYS, 0, 0)
    call('bpf', 321, EPERM, 0, 0, 0)
    call('perf_event_open', 298, EPERM, 0, 0, 0, 0, 0)
    call('ptrace of x32', 0x40000000 | 521, ENOSYS, 0, 0, 0, 0)
for family in (40, 38, 17):
    try:
        socket.socket(family, socket.SOCK_STREAM)
        print('family', family)
    except OSError as error:
        if error.errno != EPERM: print('family', family, error)
if len(sys.argv) > 1:
    try:
        socket.socket(socket.AF_UNIX)
        print('unix')
    except OSError as error:
        if error.errno != EPERM: print('unix', error)
else:
    socket.socket(socket.AF_UNIX)
socket.socketpair()
import resource
print(resource.getrlimit(resource.RLIMIT_CORE)[0])
"#;

#[test]
fn calls_that_leave_a_sandbox_are_refused() {
    for (arguments, allows_unix_sockets) in [(vec![], true), (vec!["denied"], false)] {
        let words = ["-c", CALLS].into_iter().chain(arguments);
        let request = InsideRequest {
            program: "python3".to_owned(),
            args: words.map(|word| InsideArgument::Text(word.to_owned())).collect(),
            allows_unix_sockets,
            ..shell("")
        };
        let (output, status) = run(&request);
        assert_eq!(output, "1\n");
        assert!(status.success(), "threads and processes can still be created: {output}");
    }
}
