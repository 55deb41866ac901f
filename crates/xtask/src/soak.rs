//! `cargo xtask soak`: hours of rising and falling load on one daemon, with samples of its resources.
//!
//! Prints a table for docs/PROMISES.md. Fails if a job failed or a process is left at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value as Json;

use crate::shell::{run, workspace_root};

/// Time from one peak of the load to the next.
const PERIOD: Duration = Duration::from_secs(20 * 60);
/// Jobs started each second at the peak, and between two peaks.
const RATE_MAX: f64 = 4.0;
const RATE_MIN: f64 = 0.1;
/// Number of lines of the table.
const SAMPLES: u32 = 18;
/// Time that the last jobs have to end.
const DRAIN_WAIT: Duration = Duration::from_secs(300);

const FLEET: &str = "\
version: 1
queue: {max: 100000}
defaults: {sandbox: off}
agents:
  - {name: short, runtime: command, command: echo done}
  - {name: long, runtime: command, instances: {max_concurrent: 20}, command: sleep 5}
  - {name: loud, runtime: command, command: seq 20000}
  - {name: timed, runtime: command, command: echo due, schedules: {often: {interval: 10s}}}
";

/// A workflow that waits for an answer.
const WORKFLOW: &str = "\
name: gated
agent: short
phases:
  - {name: work, type: bash, command: 'true', approval_gate: {name: ship, message: 'Ship?'}}
";

/// The load takes turns with these.
const WORK: [SoakWork; 5] = [
    SoakWork::Job("short"),
    SoakWork::Job("short"),
    SoakWork::Job("long"),
    SoakWork::Job("loud"),
    SoakWork::GatedWorkflow,
];

/// One piece of the load.
#[derive(Clone, Copy)]
enum SoakWork {
    /// A job of this agent.
    Job(&'static str),
    /// A run of the workflow, whose question is answered.
    GatedWorkflow,
}

/// A daemon under load.
struct SoakDaemon {
    program: PathBuf,
    folder: tempfile::TempDir,
    process: Child,
}

/// Resources of the daemon at one moment.
struct ResourceSample {
    minute: u64,
    jobs: u64,
    memory_kb: u64,
    descriptors: usize,
    threads: usize,
    database_kb: u64,
    log_kb: u64,
}

/// Runs the load for so many minutes with the release build, or with another program.
pub(crate) fn soak(minutes: u64, program: Option<PathBuf>) -> Result<()> {
    let program = match program {
        Some(program) => program,
        None => {
            run(&["cargo", "build", "--release", "--package", "heeler"], &[])?;
            workspace_root()?.join("target/release/heeler")
        }
    };
    let mut daemon = SoakDaemon::start(program)?;
    println!("| minute | jobs | RssAnon | descriptors | threads | database | WAL |");
    println!("|---|---|---|---|---|---|---|");
    let (begun, total) = (Instant::now(), Duration::from_secs(minutes * 60));
    let (mut jobs, mut samples) = (0, 0);
    while begun.elapsed() < total {
        if begun.elapsed() >= total / SAMPLES * samples {
            daemon.sample(begun.elapsed(), jobs)?.print();
            samples += 1;
        }
        daemon.put_on(WORK[usize::try_from(jobs)? % WORK.len()])?;
        jobs += 1;
        std::thread::sleep(pause_at(begun.elapsed()));
    }
    daemon.drain()?;
    daemon.sample(begun.elapsed(), jobs)?.print();
    daemon.check_and_stop()
}

/// Returns the pause between two jobs, so that the load rises and falls evenly.
fn pause_at(time: Duration) -> Duration {
    let turns = time.as_secs_f64() / PERIOD.as_secs_f64();
    let height = (1.0 - (turns * std::f64::consts::TAU).cos()) / 2.0;
    Duration::from_secs_f64(1.0 / (RATE_MIN + height * (RATE_MAX - RATE_MIN)))
}

impl SoakDaemon {
    fn start(program: PathBuf) -> Result<SoakDaemon> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("heeler.yaml"), FLEET)?;
        fs::create_dir(folder.path().join("workflows"))?;
        fs::write(folder.path().join("workflows/gated.yaml"), WORKFLOW)?;
        let mut command = heeler(&program, folder.path());
        let log = folder.path().join("daemon.log");
        command.arg("start").stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        let process = command.spawn()?;
        let mut daemon = SoakDaemon { program, folder, process };
        let deadline = Instant::now() + DRAIN_WAIT;
        while !daemon.folder.path().join(".heeler/daemon.json").exists() {
            let has_ended = daemon.process.try_wait()?.is_some();
            ensure!(!has_ended && Instant::now() < deadline, "{}", fs::read_to_string(&log)?);
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(daemon)
    }

    fn call(&self, args: &[&str]) -> Result<Output> {
        let mut command = heeler(&self.program, self.folder.path());
        Ok(command.args(args).stdin(Stdio::null()).output()?)
    }

    /// Calls the program, and fails if it fails.
    fn call_well(&self, args: &[&str]) -> Result<Output> {
        let output = self.call(args)?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(output)
    }

    fn put_on(&self, work: SoakWork) -> Result<()> {
        match work {
            SoakWork::Job(agent) => {
                self.call_well(&["trigger", agent, "--detach", "--quiet"])?;
            }
            SoakWork::GatedWorkflow => {
                self.call_well(&["workflow", "run", "gated", "--until-asked", "--quiet"])?;
                let asked = self.call_well(&["approvals", "list", "--json"])?;
                let asked: Json = serde_json::from_slice(&asked.stdout)?;
                let question = asked["approvals"][0]["id"].as_str().context("a run asks")?;
                self.call_well(&["approvals", "approve", question])?;
            }
        }
        Ok(())
    }

    fn sample(&mut self, time: Duration, jobs: u64) -> Result<ResourceSample> {
        ensure!(self.process.try_wait()?.is_none(), "the daemon has ended");
        let proc_folder = Path::new("/proc").join(self.process.id().to_string());
        let status = fs::read_to_string(proc_folder.join("status"))?;
        let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let memory = memory.and_then(|text| text.split_whitespace().next()?.parse().ok());
        let state = self.folder.path().join(".heeler");
        let kilobytes = |name: &str| fs::metadata(state.join(name)).map_or(0, |it| it.len() / 1024);
        Ok(ResourceSample {
            minute: time.as_secs() / 60,
            jobs,
            memory_kb: memory.context("the kernel tells RssAnon")?,
            descriptors: fs::read_dir(proc_folder.join("fd"))?.count(),
            threads: fs::read_dir(proc_folder.join("task"))?.count(),
            database_kb: kilobytes("heeler.db"),
            log_kb: kilobytes("heeler.db-wal"),
        })
    }

    /// Waits until no job runs or waits.
    fn drain(&self) -> Result<()> {
        let deadline = Instant::now() + DRAIN_WAIT;
        self.call(&["schedule", "disable", "timed", "often"])?;
        while self.count("running")? + self.count("pending")? > 0 {
            ensure!(Instant::now() < deadline, "jobs do not end");
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    }

    /// Counts the jobs with a status.
    fn count(&self, status: &str) -> Result<u64> {
        let output = self.call(&["jobs", "--status", status, "--json"])?;
        let page: Json = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        page["total"].as_u64().context("the list has a total")
    }

    fn check_and_stop(mut self) -> Result<()> {
        let (completed, failed) = (self.count("completed")?, self.count("failed")?);
        println!("\ncompleted: {completed}, failed: {failed}");
        self.call(&["stop"])?;
        self.process.wait()?;
        let doctor = self.call(&["doctor"])?;
        println!("{}", String::from_utf8_lossy(&doctor.stdout));
        ensure!(failed == 0, "{failed} jobs failed");
        Ok(())
    }
}

impl Drop for SoakDaemon {
    fn drop(&mut self) {
        // A daemon that was stopped has ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl ResourceSample {
    fn print(&self) {
        println!(
            "| {} | {} | {:.1} MB | {} | {} | {:.1} MB | {:.1} MB |",
            self.minute,
            self.jobs,
            self.memory_kb as f64 / 1024.0,
            self.descriptors,
            self.threads,
            self.database_kb as f64 / 1024.0,
            self.log_kb as f64 / 1024.0,
        );
    }
}

/// Returns the program in a fleet of its own.
fn heeler(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env("HEELER_HOME", folder.join("home"));
    command.env("HEELER_TRUST", "all").env("HEELER_NO_WEB", "1").env("TMPDIR", folder);
    command.env("XDG_RUNTIME_DIR", folder);
    command
}
