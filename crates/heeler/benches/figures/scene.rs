//! A fleet for measuring daemons: its config, its folders, and a daemon or its alternative at work.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::{DaemonCommand as Order, StopMode};
use heeler_server::DaemonClient;
use heeler_store::DaemonFile;
use heeler_store::StateDir;
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};

use crate::agent;
use crate::{Bench, memory};

/// How long anything is awaited; then the measurement is void.
const PATIENCE: Duration = Duration::from_secs(180);

/// Folders of a fleet, made anew.
pub(crate) struct Scene<'a> {
    bench: &'a Bench,
    pub(crate) root: Utf8PathBuf,
    /// The state directory.
    pub(crate) state: Utf8PathBuf,
    /// Short enough for sockets, and nobody else's.
    sockets: tempfile::TempDir,
}

/// A daemon, or the alternative.
pub(crate) struct Daemon {
    process: Child,
    /// Where it listens.
    pub(crate) socket: Utf8PathBuf,
    state_dir: Utf8PathBuf,
}

/// Which of the two.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Side {
    Ours,
    /// The same, with its API and dashboard on TCP.
    OursOnTheWeb,
    Node,
}

impl<'a> Scene<'a> {
    /// Makes a fleet of `agents` agents, each of which notes its start; `schedules` writes those of
    /// one, as YAML.
    pub(crate) fn new(
        bench: &'a Bench,
        name: &str,
        agents: usize,
        schedules: impl Fn(usize) -> String,
    ) -> Scene<'a> {
        let root = bench.folder.join(name);
        drop(std::fs::remove_dir_all(&root));
        for folder in ["home", "node", "work"] {
            std::fs::create_dir_all(root.join(folder)).expect("disk has space");
        }
        // Otherwise each run would record the repository around this folder.
        let made = Command::new("git").args(["init", "-q"]).current_dir(root.join("work")).status();
        assert!(made.expect("git is installed").success(), "git cannot make a repository");
        let program = std::env::current_exe().expect("this program has a path");
        let note = format!("{}='note {root}/work/starts", agent::VARIABLE);
        let mut text = String::from("version: 1\nqueue: {max: 100000}\nagents:\n");
        for number in 0..agents {
            let (name, schedules) = (agent_name(number), schedules(number));
            let command = format!("{note} {name}' exec '{}'", program.display());
            writeln!(
                text,
                "  - name: {name}\n    runtime: command\n    working_directory: work\n    \
                 command: \"{command}\"\n    schedules: {{{schedules}}}"
            )
            .expect("a string takes all");
        }
        std::fs::write(root.join("heeler.yaml"), text).expect("disk has space");
        let (state, sockets) = (root.join(".heeler"), tempfile::tempdir());
        Scene { bench, root, state, sockets: sockets.expect("disk has space") }
    }

    /// Returns the state directory, made if need be.
    pub(crate) fn dir(&self) -> StateDir {
        StateDir::create(&self.state).expect("disk has space")
    }

    /// Returns the folder of sockets.
    pub(crate) fn sockets(&self) -> &Utf8Path {
        Utf8Path::from_path(self.sockets.path()).expect("the folder is UTF-8")
    }

    /// Returns our program in this scene.
    pub(crate) fn heeler(&self) -> Command {
        let mut heeler = Command::new(env!("CARGO_BIN_EXE_heeler"));
        heeler.current_dir(&self.root).env("HEELER_HOME", self.root.join("home"));
        heeler.env("HEELER_STATE_DIR", &self.state).env("TMPDIR", self.sockets());
        heeler.env("XDG_RUNTIME_DIR", self.sockets()).env("HEELER_NO_WEB", "1");
        heeler.env("HEELER_TRUST", "all");
        heeler
    }

    /// Starts one of the two, and waits until it is ready.
    pub(crate) fn start(&self, side: Side) -> Daemon {
        drop(std::fs::remove_file(self.root.join("work/starts")));
        let node_socket = self.sockets().join("node.sock");
        let command = match side {
            Side::Ours | Side::OursOnTheWeb => {
                let mut heeler = self.heeler();
                heeler.args(["start", "--in-background"]);
                if matches!(side, Side::OursOnTheWeb) {
                    heeler.env_remove("HEELER_NO_WEB");
                }
                heeler
            }
            Side::Node => {
                let mut node = Command::new("node");
                node.arg(self.bench.node.join("scheduler.mjs")).arg(self.root.join("heeler.yaml"));
                node.arg(self.root.join("node")).arg(&node_socket).current_dir(&self.root);
                node
            }
        };
        match side {
            Side::Node => self.start_program(command, node_socket),
            Side::Ours | Side::OursOnTheWeb => self.start_heeler(command),
        }
    }

    /// Starts our program as a daemon.
    pub(crate) fn start_heeler(&self, command: Command) -> Daemon {
        let mut daemon = self.start_program(command, Utf8PathBuf::new());
        let file = DaemonFile::read(&self.dir()).expect("it can be read");
        daemon.socket = file.expect("it is there when the daemon is ready").socket;
        daemon
    }

    /// Starts a program that prints a line with `ready` when it is.
    pub(crate) fn start_program(&self, mut command: Command, socket: Utf8PathBuf) -> Daemon {
        let log = std::fs::File::create(self.root.join("daemon.log")).expect("disk has space");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut process = command.spawn().expect("the program is there");
        let mut line = String::new();
        let out = process.stdout.take().expect("it was asked for");
        BufReader::new(out).read_line(&mut line).expect("it is text");
        assert!(line.contains("ready"), "it did not start ({line}): see {}/daemon.log", self.root);
        Daemon { process, socket, state_dir: self.dir().root().to_owned() }
    }

    /// Returns when each agent started that did, in order.
    pub(crate) fn starts(&self) -> Vec<(String, Timestamp)> {
        let text = std::fs::read_to_string(self.root.join("work/starts")).unwrap_or_default();
        let read = |line: &str| {
            let (nanos, agent) = line.split_once(' ')?;
            Some((agent.to_owned(), Timestamp::from_nanosecond(nanos.parse().ok()?).ok()?))
        };
        let mut starts: Vec<(String, Timestamp)> = text.lines().filter_map(read).collect();
        starts.sort_by_key(|(_, at)| *at);
        starts
    }

    /// Waits until so many agents have started.
    pub(crate) fn await_starts(&self, count: usize) -> Vec<(String, Timestamp)> {
        until(Duration::from_millis(20), || Some(self.starts()).filter(|it| it.len() >= count))
            .unwrap_or_else(|| self.starts())
    }
}

impl Daemon {
    /// Connects to ours.
    pub(crate) fn client(&self) -> DaemonClient {
        DaemonClient::connect(&self.socket, &self.state_dir).expect("the daemon answers")
    }

    /// Returns the time that its threads were at work, which the kernel tells in hundredths of a
    /// second.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()));
        let stat = stat.expect("it runs");
        let (_, fields) = stat.rsplit_once(") ").expect("the kernel wrote it");
        let ticks =
            fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
        Duration::from_millis(ticks.sum::<u64>() * 10)
    }

    /// Returns the memory that only this process has.
    pub(crate) fn memory(&self) -> u64 {
        memory(self.process.id())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
    }

    /// Ends it; its jobs go on.
    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        self.process.wait().expect("it was started");
    }

    /// Ends ours with its jobs.
    pub(crate) fn stop_all(mut self) {
        let stop = Order::Stop(StopMode::Force);
        self.client().send_command(&stop, None).expect("the daemon answers");
        self.process.wait().expect("it was started");
    }
}

/// Names an agent by its number.
pub(crate) fn agent_name(number: usize) -> String {
    format!("agent-{number:04}")
}

/// Looks again and again until there is something; `None` when it takes too long.
pub(crate) fn until<T>(every: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(found) = look() {
            return Some(found);
        }
        std::thread::sleep(every);
    }
    None
}
