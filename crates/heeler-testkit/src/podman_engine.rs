//! Podman as a container engine of the test's own, with its own data and socket, which ends with the
//! test.
//!
//! Debian's package `podman` has it (`cargo xtask setup`). Where it cannot run, the test fails with the
//! reason.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::test_engine::{image_tar, program};
use crate::{TEST_IMAGE, WAIT_MAX};

/// Pause between two looks for the engine's socket.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// A running service of Podman.
#[derive(Debug)]
pub struct PodmanEngine {
    folder: tempfile::TempDir,
    service: Child,
}

impl PodmanEngine {
    /// Starts a service that has [`TEST_IMAGE`].
    pub fn start() -> PodmanEngine {
        assert!(
            rustix::process::geteuid().is_root(),
            "a container engine of its own needs root: run this test as root"
        );
        let folder = tempfile::Builder::new().prefix("hp").tempdir().unwrap();
        // The limits of Podman's own config may be above those of this machine. Locks and temporary
        // files would otherwise be shared by all engines of the machine.
        let config = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
             [engine]\nlock_type = \"file\"\nevents_logger = \"file\"\ntmp_dir = \"{}\"\n",
            folder.path().join("tmp").display()
        );
        std::fs::write(folder.path().join("containers.conf"), config).unwrap();
        let mut import = podman(&folder, &["import", "-", TEST_IMAGE]);
        let mut tar = image_tar(folder.path());
        let output = import.stdin(tar.stdout.take().unwrap()).output().unwrap_or_else(|error| {
            panic!("podman cannot be started, run `cargo xtask setup`: {error}")
        });
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(tar.wait().unwrap().success());
        let service = start_service(&folder);
        let engine = PodmanEngine { folder, service };
        engine.wait_until_ready();
        engine
    }

    fn wait_until_ready(&self) {
        let deadline = Instant::now() + WAIT_MAX;
        while UnixStream::connect(self.folder.path().join("s")).is_err() {
            assert!(Instant::now() < deadline, "waited in vain for Podman");
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// Directory of the engine's files.
    pub fn data(&self) -> &Path {
        self.folder.path()
    }

    /// Kills the service as `kill -9` does. Its containers go on.
    pub fn kill(&mut self) {
        self.service.kill().unwrap();
        self.service.wait().unwrap();
    }

    /// Starts the service again.
    pub fn restart(&mut self) {
        drop(std::fs::remove_file(self.folder.path().join("s")));
        self.service = start_service(&self.folder);
        self.wait_until_ready();
    }

    /// Runs a command of Podman.
    pub fn podman(&self, args: &[&str]) -> String {
        let output = podman(&self.folder, args).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "podman {args:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Line of a fleet's `.env` that names the engine.
    pub fn dotenv(&self) -> String {
        format!("DOCKER_HOST=unix://{}\n", self.folder.path().join("s").display())
    }

    /// All containers, also stopped ones.
    pub fn containers(&self) -> Vec<String> {
        let listed = self.podman(&["ps", "--all", "--format", "{{.Names}}"]);
        listed.lines().map(str::to_owned).collect()
    }
}

impl Drop for PodmanEngine {
    fn drop(&mut self) {
        drop(self.service.kill());
        drop(self.service.wait());
        // What a failed test left.
        drop(podman(&self.folder, &["rm", "--all", "--force", "--time", "0"]).output());
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            eprintln!("log of podman:\n{log}");
        }
    }
}

fn start_service(folder: &tempfile::TempDir) -> Child {
    let log = File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
    let address = format!("unix://{}", folder.path().join("s").display());
    let mut service = podman(folder, &["system", "service", "--time", "0", &address]);
    service.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

/// Returns a command of Podman with the data of the test. It uses the runtime that Docker installs,
/// because Podman's own one does not support every arrangement of control groups.
fn podman(folder: &tempfile::TempDir, args: &[&str]) -> Command {
    let path = |name: &str| folder.path().join(name);
    let mut command = program("setpriv");
    command.args(["--pdeathsig", "KILL", "podman", "--storage-driver", "vfs"]);
    command.args(["--cgroup-manager", "cgroupfs", "--runtime", "runc"]);
    command.arg("--root").arg(path("root")).arg("--runroot").arg(path("run")).args(args);
    command.env("CONTAINERS_CONF", path("containers.conf"));
    command
}
