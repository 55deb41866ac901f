//! A container engine of the test's own: a real dockerd with its own data and socket, which ends with
//! the test.
//!
//! Debian's package `docker.io` has it (`cargo xtask setup`). Where it cannot run, the test fails with
//! the reason.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::{Pid, Signal};

use crate::WAIT_MAX;

/// Name of the image that has nothing but the system of this machine, as a volume.
pub const TEST_IMAGE: &str = "localhost/heeler-test:bare";

/// Volume with the programs of [`TEST_IMAGE`].
pub const TEST_VOLUME: &str = "/usr:/usr:ro";

/// Pause between two looks for the engine's socket.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Time that the engine has for a reply to the question whether it is ready.
const REPLY_TIME: Duration = Duration::from_secs(10);

/// A running engine.
pub struct TestEngine {
    folder: tempfile::TempDir,
    engine: Child,
    /// Program that runs the containers; it outlives a killed engine, as on most machines.
    containerd: Child,
    restart: EngineRestart,
}

/// Fate of the containers when the engine is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineRestart {
    /// The engine ends the containers of its predecessor.
    EndsContainers,
    /// They go on (`live-restore`).
    KeepsContainers,
}

impl TestEngine {
    /// Starts an engine that has [`TEST_IMAGE`].
    pub fn start() -> TestEngine {
        TestEngine::start_with(EngineRestart::EndsContainers)
    }

    /// Starts an engine that has [`TEST_IMAGE`] and treats its containers so.
    pub fn start_with(restart: EngineRestart) -> TestEngine {
        assert!(
            rustix::process::geteuid().is_root(),
            "a container engine of its own needs root: run this test as root"
        );
        let folder = tempfile::Builder::new().prefix("hd").tempdir().unwrap();
        let (containerd, engine) = (start_containerd(&folder), start_engine(&folder, restart));
        let mut engine = TestEngine { folder, engine, containerd, restart };
        engine.wait_until_ready();
        engine.import_image();
        engine
    }

    pub fn socket(&self) -> Utf8PathBuf {
        Utf8PathBuf::from_path_buf(self.folder.path().join("s")).unwrap()
    }

    /// Directory of the engine's files.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Line of a fleet's `.env` that names the engine.
    pub fn dotenv(&self) -> String {
        format!("DOCKER_HOST=unix://{}\n", self.socket())
    }

    /// Runs a command of Docker's own client.
    pub fn docker(&self, args: &[&str]) -> String {
        let mut command = self.client();
        let output = command.args(args).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "docker {args:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// All containers, also stopped ones.
    pub fn containers(&self) -> Vec<String> {
        let listed = self.docker(&["ps", "--all", "--format", "{{.Names}} {{.State}}"]);
        listed.lines().map(str::to_owned).collect()
    }

    /// Kills the engine as `kill -9` does. Its containers go on.
    pub fn kill(&mut self) {
        self.engine.kill().unwrap();
        self.engine.wait().unwrap();
    }

    /// Starts the engine again.
    pub fn restart(&mut self) {
        // The number in the file may be that of another process by now.
        drop(std::fs::remove_file(self.folder.path().join("pid")));
        self.engine = start_engine(&self.folder, self.restart);
        self.wait_until_ready();
    }

    fn client(&self) -> Command {
        let mut command = program("docker");
        command.env("DOCKER_HOST", format!("unix://{}", self.socket()));
        // Configuration of the user must not matter.
        command.env("DOCKER_CONFIG", self.folder.path());
        command
    }

    fn wait_until_ready(&mut self) {
        let (socket, log) = (self.socket(), self.folder.path().join("log"));
        let engine = &mut self.engine;
        let deadline = Instant::now() + WAIT_MAX;
        while !is_ready(&socket) {
            if let Some(status) = engine.try_wait().unwrap() {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().rev().take(5).collect();
                panic!("dockerd ended ({status}): {}", lines.join("\n"));
            }
            assert!(Instant::now() < deadline, "waited in vain for the container engine");
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    fn import_image(&self) {
        let mut tar = image_tar(self.folder.path());
        let mut import = self.client();
        import.args(["import", "-", TEST_IMAGE]).stdin(tar.stdout.take().unwrap());
        let output = import.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(tar.wait().unwrap().success());
    }
}

impl Drop for TestEngine {
    fn drop(&mut self) {
        // A killed engine has left its containers.
        let shims = processes_with(&self.folder.path().join("c").display().to_string());
        end(&mut self.engine);
        end(&mut self.containerd);
        for pid in shims {
            let _sent = rustix::process::kill_process(pid, Signal::KILL);
        }
        // A killed engine has left the mount of its data, which each sandbox of this machine would copy.
        let mut unmount = program("umount");
        unmount.args(["--lazy", "--quiet"]).arg(self.folder.path().join("data"));
        let _is_mounted = unmount.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().rev().take(20).collect();
            eprintln!("last lines of dockerd, newest first:\n{}", lines.join("\n"));
        }
    }
}

/// Makes an image of a few links, and starts a program that prints its archive. The programs of the
/// image are those of this machine.
pub(crate) fn image_tar(folder: &Path) -> Child {
    let root = folder.join("image");
    for name in ["dev", "etc", "home", "proc", "sys", "tmp", "usr", "var"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    for name in ["bin", "lib", "lib64", "sbin"] {
        std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name)).unwrap();
    }
    let mut tar = program("tar");
    tar.arg("-C").arg(&root).args(["-c", "."]).stdout(Stdio::piped());
    tar.spawn().unwrap()
}

#[expect(clippy::disallowed_methods, reason = "tests start a real engine")]
pub(crate) fn program(name: &str) -> Command {
    Command::new(name)
}

/// Ends a program in order.
fn end(program: &mut Child) {
    if matches!(program.try_wait(), Ok(None)) {
        let _sent = rustix::process::kill_process(Pid::from_child(program), Signal::TERM);
        let _status = program.wait();
    }
}

/// Asks the engine whether it serves its API.
fn is_ready(socket: &Utf8Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    let request = b"GET /_ping HTTP/1.0\r\n\r\n";
    let mut reply = String::new();
    let asked = stream.set_read_timeout(Some(REPLY_TIME)).and_then(|()| stream.write_all(request));
    // An engine that is starting may close the connection.
    let _read = asked.and_then(|()| stream.read_to_string(&mut reply));
    reply.starts_with("HTTP/1.0 200")
}

/// Programs that containerd has started for containers of this engine.
fn processes_with(address: &str) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let shims = entries.filter(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("containerd-shim") && line.split('\0').any(|word| word == address)
    });
    shims.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn start_containerd(folder: &tempfile::TempDir) -> Child {
    let path = |name: &str| folder.path().join(name).display().to_string();
    let config = format!(
        "version = 2\nroot = \"{}\"\nstate = \"{}\"\n\
         disabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n\
         [grpc]\n  address = \"{}\"\n",
        path("croot"),
        path("cstate"),
        path("c"),
    );
    std::fs::write(path("containerd.toml"), config).unwrap();
    let mut command = program("setpriv");
    command.args(["--pdeathsig", "TERM", "containerd", "--config"]).arg(path("containerd.toml"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| {
        panic!("containerd cannot be started, run `cargo xtask setup`: {error}")
    })
}

fn start_engine(folder: &tempfile::TempDir, restart: EngineRestart) -> Child {
    let path = |name: &str| folder.path().join(name);
    let log = File::options().create(true).append(true).open(path("log")).unwrap();
    // It ends with the thread of the test, even if that is killed.
    let mut command = program("setpriv");
    command.args(["--pdeathsig", "TERM", "dockerd", "--iptables=false", "--ip6tables=false"]);
    command.args(["--bridge=none", "--data-root"]).arg(path("data"));
    command.arg("--exec-root").arg(path("exec")).arg("--pidfile").arg(path("pid"));
    command.arg("--containerd").arg(path("c"));
    if restart == EngineRestart::KeepsContainers {
        command.arg("--live-restore");
    }
    command.arg("--host").arg(format!("unix://{}", path("s").display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().unwrap_or_else(|error| {
        panic!("dockerd cannot be started, run `cargo xtask setup`: {error}")
    })
}
