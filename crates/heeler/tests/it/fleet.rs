//! A fleet in a temporary folder, and the real program run in it.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use camino::Utf8PathBuf;
use heeler_model::{ExitReason, Job, JobId, JobStatus, TriggerType};
use heeler_store::{DatabaseError, StateDir, Store};
use jiff::Timestamp;

use crate::processes;

/// User and group of a fleet without privileges: `nobody`.
const UNPRIVILEGED_USER: u32 = 65534;

/// A fleet of its own for each test.
pub(crate) struct Fleet {
    folder: tempfile::TempDir,
    /// User that runs the program and owns the files; `None` is the user of the test.
    user: Option<u32>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        processes::remove_groups(&self.file(".heeler/runs"));
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
            eprintln!("what the test left is in {}", self.path().display());
        }
    }
}

/// What a command did.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Fleet {
    /// An empty folder.
    pub(crate) fn empty() -> Fleet {
        Fleet { folder: tempfile::tempdir().unwrap(), user: None }
    }

    /// A folder in which `heeler init` was run by a user without privileges, for agents without a
    /// sandbox. If the test is not run by root, that is the user of the test.
    pub(crate) fn unprivileged() -> Fleet {
        let mut fleet = Fleet::empty();
        if rustix::process::geteuid().is_root() {
            fleet.user = Some(UNPRIVILEGED_USER);
            fleet.give(fleet.path());
            fleet.copy_program();
        }
        fleet.run(&["init", "--no-sandbox"]).ok();
        fleet
    }

    /// An empty folder of the same user, with the program in `bin`.
    pub(crate) fn another(&self) -> Fleet {
        let fleet = Fleet { folder: tempfile::tempdir().unwrap(), user: self.user };
        fleet.give(fleet.path());
        fleet.copy_program();
        fleet
    }

    /// Makes a command run as the fleet's user.
    pub(crate) fn as_user(&self, mut command: Command) -> Command {
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// Puts the program where a user without privileges can reach it.
    fn copy_program(&self) {
        let (program, copy) = (Path::new(env!("CARGO_BIN_EXE_heeler")), self.file("bin/heeler"));
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        // A second name takes no space; another file system needs a copy.
        if std::fs::hard_link(program, &copy).is_err() {
            std::fs::copy(program, &copy).unwrap();
        }
    }

    /// Path of the program that this fleet's commands and agents run.
    pub(crate) fn program(&self) -> PathBuf {
        match self.user {
            Some(_) => self.file("bin/heeler"),
            None => PathBuf::from(env!("CARGO_BIN_EXE_heeler")),
        }
    }

    /// Name of the first process of sandboxes: the static program where it is beside the program. A
    /// copy of the program has none, and is the first process itself.
    pub(crate) fn first_process(&self) -> &'static str {
        // The kernel keeps 15 characters.
        match self.program().with_file_name("heeler-inside-static").exists() {
            true => "heeler-inside-s",
            false => "heeler",
        }
    }

    /// User that runs the program.
    pub(crate) fn user(&self) -> u32 {
        self.user.unwrap_or_else(|| rustix::process::geteuid().as_raw())
    }

    /// Makes the fleet's user the owner of a file.
    fn give(&self, path: &Path) {
        if self.user.is_some() {
            std::os::unix::fs::chown(path, self.user, self.user).unwrap();
        }
    }

    /// A folder in which `heeler init` was run, for agents without a sandbox.
    pub(crate) fn new() -> Fleet {
        let fleet = Fleet::empty();
        fleet.run(&["init", "--no-sandbox"]).ok();
        fleet
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.file(name);
        let parent = path.parent().unwrap();
        let made = parent.ancestors().take_while(|it| !it.exists()).map(Path::to_owned);
        let made: Vec<PathBuf> = made.collect();
        std::fs::create_dir_all(parent).unwrap();
        std::fs::write(&path, text).unwrap();
        made.iter().chain([&path]).for_each(|it| self.give(it));
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap()
    }

    /// The program, in this folder, with nothing of the user's environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.as_user(Command::new(self.program()));
        command.args(args).current_dir(self.path()).stdin(Stdio::null());
        command.env_clear().env("HOME", self.path().join("home")).env("TZ", "UTC");
        // Kept drafts of edits go with the test.
        command.env("TMPDIR", self.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        // Tests run side by side: those of the dashboard serve it, on a port of their own.
        command.env("HEELER_NO_WEB", "1");
        // The tests of trust remove it.
        command.env("HEELER_TRUST", "all");
        command
    }

    #[track_caller]
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::from(self.command(args).output().unwrap())
    }

    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.run(args).ok()).unwrap()
    }

    /// Puts jobs into the state directory, through the store.
    pub(crate) fn with_jobs(self, jobs: Vec<Job>) -> Fleet {
        let dir = StateDir::create(&self.state_dir()).unwrap();
        let store = Store::open(&dir, "test", at(0)).unwrap().store;
        let insert = store.write(move |tx| -> Result<(), DatabaseError> {
            jobs.iter().try_for_each(|job| tx.insert_job(job))
        });
        insert.unwrap();
        store.publish_views(at(0)).unwrap();
        self
    }

    pub(crate) fn state_dir(&self) -> Utf8PathBuf {
        Utf8PathBuf::from_path_buf(self.file(".heeler")).unwrap()
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// The output of a command that must succeed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stdout
    }

    /// What a command that must fail with this code said of it.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stderr
    }
}

/// A moment, so many minutes after a fixed one.
pub(crate) fn at(minutes: i64) -> Timestamp {
    Timestamp::from_second(1_763_000_000 + minutes * 60).unwrap()
}

/// A finished job, so many minutes after a fixed moment.
pub(crate) fn job(agent: &str, minutes: i64) -> Job {
    let id = JobId::mint(at(minutes), minutes.unsigned_abs());
    let mut job = Job::new_pending(id, agent, TriggerType::Manual, at(minutes));
    job.head.status = JobStatus::Completed;
    job.head.exit_reason = Some(ExitReason::Success);
    job.head.finished_at = Some(at(minutes + 1));
    job.head.duration_ms = Some(60_000);
    job.head.summary = Some(format!("did thing {minutes}"));
    job.prompt = Some("Do the thing.".to_owned());
    job
}
