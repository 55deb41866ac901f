//! Starts this program's own processes: runners, settling processes and daemons.
//!
//! Secrets are passed through standard input, never through an argument or a file. Start at
//! [`start_runner`] and [`launch_daemon`].

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::run::{RunnerInput, SETTLE_EXIT_BUSY, SETTLE_EXIT_UNUSABLE, SettleInput};
use heeler_model::{RunId, error_chain};
use heeler_transcript::untrusted_file;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use thiserror::Error;

use crate::fault::{self, FaultPoint};
use crate::fleet::EngineContext;

/// Time limit for settling: it ends processes, waits for locks and reads a log.
const SETTLE_WAIT: Duration = Duration::from_secs(60);

/// Poll interval while waiting for a child to exit.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Maximum length of a starting daemon's ready line.
const TOLD_BYTES_MAX: u64 = 64 << 10;

/// Failure of a process that this program started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// The process could not be started.
    #[error("cannot start `{program} {command}`")]
    Start {
        /// Path of this program.
        program: Utf8PathBuf,
        command: String,
        #[source]
        source: io::Error,
    },
    /// The input could not be written to the process.
    #[error("`heeler {command}` ended before it received its input")]
    Tell {
        command: String,
        #[source]
        source: io::Error,
    },
    /// Its log cannot be opened.
    #[error("cannot write {path}")]
    Log {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another process holds the run that should be settled.
    #[error("another process works on {folder}")]
    Busy {
        /// The run directory.
        folder: Utf8PathBuf,
    },
    /// Settling failed or exceeded its time limit.
    #[error("`heeler runner {what} {folder}` {outcome}; {log} says why")]
    Settle {
        /// The attempted action.
        what: &'static str,
        /// The run directory.
        folder: Utf8PathBuf,
        /// Exit status or timeout, as text.
        outcome: String,
        /// True if a retry would fail the same way.
        lasting: bool,
        /// Log with the output of the process.
        log: Utf8PathBuf,
    },
}

impl LaunchError {
    /// Returns true if a retry would fail the same way.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self, LaunchError::Settle { lasting: true, .. })
    }
}

/// Starts the runner of a run directory that holds a spec, and passes it its input. Returns the
/// connection to it, too, if its agent may stay for further runs.
pub(crate) fn start_runner(
    fleet: &EngineContext,
    folder: &Utf8Path,
    input: &RunnerInput,
) -> Result<(Child, Option<UnixStream>), LaunchError> {
    let log = open_log(&folder.join("runner.log"))?;
    let (mut child, input_end) =
        spawn_program(fleet, &["runner", folder.as_str()], Stdio::null(), log)?;
    fault::reach(FaultPoint::RunnerUntold);
    fault::run_before_fault(FaultPoint::RunnerLate, || {
        // The tests need a runner that has its brief but has done nothing.
        let _sent = kill_process(Pid::from_child(&child), Signal::STOP);
    });
    let keeps_agent = input.spec.as_ref().is_some_and(|spec| spec.keep_agent.is_some());
    match write_input(&input_end, "runner", input) {
        Ok(()) => {
            fault::reach(FaultPoint::RunnerLate);
            Ok((child, keeps_agent.then_some(input_end)))
        }
        Err(error) => {
            // Without its brief the runner ends on its own; recovery treats the run like any other
            // dead run.
            drop(input_end);
            let _status = child.wait();
            Err(error)
        }
    }
}

/// Settles a dead run: a separate process writes its result, and signs it if there is an input.
pub(crate) fn settle_run(
    fleet: &EngineContext,
    folder: &Utf8Path,
    input: Option<&SettleInput>,
) -> Result<(), LaunchError> {
    run_settle_command(fleet, folder, "--settle", input)
}

/// Settles several dead runs with one process, which is much faster than one by one. Runs that this
/// leaves unsettled are settled individually later and then report their errors.
pub(crate) fn settle_runs(fleet: &EngineContext, folders: &[Utf8PathBuf], input: &SettleInput) {
    let args: Vec<&str> =
        ["runner", "--settle"].into_iter().chain(folders.iter().map(|it| it.as_str())).collect();
    let Ok((mut child, input_end)) = spawn_program(fleet, &args, Stdio::null(), Stdio::null())
    else {
        return;
    };
    // A process that ended already is noticed below.
    let _told = write_input(&input_end, "runner --settle", input);
    drop(input_end);
    let deadline = Instant::now() + SETTLE_WAIT;
    while let Ok(None) = child.try_wait() {
        if Instant::now() >= deadline {
            // A child that is not reaped would stay as a zombie.
            let _killed = child.kill().and_then(|()| child.wait());
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Ends the processes that a dead run left running, in a separate process.
pub(crate) fn end_leftover_processes(
    fleet: &EngineContext,
    folder: &Utf8Path,
) -> Result<(), LaunchError> {
    run_settle_command(fleet, folder, "--end", None)
}

fn run_settle_command(
    fleet: &EngineContext,
    folder: &Utf8Path,
    what: &'static str,
    input: Option<&SettleInput>,
) -> Result<(), LaunchError> {
    let path = folder.join("runner.log");
    let log = open_log(&path)?;
    let args = ["runner", what, folder.as_str()];
    let (mut child, input_end) = spawn_program(fleet, &args, Stdio::null(), log)?;
    // A settling process gets no brief: it knows only its key and what is on disk.
    if let Some(input) = input {
        // A process that ended already is noticed below.
        drop(write_input(&input_end, "runner", input));
    }
    // The end of the input.
    drop(input_end);
    let failed = |outcome: String, lasting: bool| LaunchError::Settle {
        what,
        folder: folder.to_owned(),
        outcome,
        lasting,
        log: path,
    };
    let deadline = Instant::now() + SETTLE_WAIT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let is = |code: u8| status.code() == Some(code.into());
                // The exit codes tell a busy run and an unusable folder from a failure that may
                // pass.
                return Err(match is(SETTLE_EXIT_BUSY) {
                    true => LaunchError::Busy { folder: folder.to_owned() },
                    false => failed(format!("ended with {status}"), is(SETTLE_EXIT_UNUSABLE)),
                });
            }
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            Ok(None) => {
                // A killed settling process does no harm: settling can be repeated.
                let _killed = child.kill().and_then(|()| child.wait());
                return Err(failed(format!("did not end in {} s", SETTLE_WAIT.as_secs()), false));
            }
            Err(error) => return Err(failed(format!("was lost: {error}"), false)),
        }
    }
}

/// Starts a daemon that outlives the caller, with the caller's environment. Its errors go to the
/// fleet's log.
pub fn launch_daemon(
    fleet: &EngineContext,
    args: &[&str],
    env: &[(String, String)],
) -> Result<StartingDaemon, LaunchError> {
    let log = open_log(&fleet.dir.logs().join("heeler.log"))?;
    let fleet = EngineContext { env: env.to_vec(), ..fleet.clone() };
    let (mut child, _) = spawn_program(&fleet, args, Stdio::piped(), log)?;
    let told = child.stdout.take().map(BufReader::new).expect("its output is a pipe");
    Ok(StartingDaemon { stdout: told, child })
}

/// A daemon that is starting. Dropping this does not end it.
#[derive(Debug)]
pub struct StartingDaemon {
    stdout: BufReader<ChildStdout>,
    child: Child,
}

impl StartingDaemon {
    /// Waits for the line that the daemon prints when it is ready or has failed. Returns `None` if
    /// it ended without one.
    pub fn read_ready_line(&mut self) -> Option<String> {
        let mut line = String::new();
        // The limit guards against a program that prints without end.
        let read = (&mut self.stdout).take(TOLD_BYTES_MAX).read_line(&mut line);
        read.is_ok().then_some(line).filter(|line| line.ends_with('\n'))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Passes a document, which is one line, to a process.
pub(crate) fn write_input(
    mut input_end: &UnixStream,
    command: &str,
    what: &impl Serialize,
) -> Result<(), LaunchError> {
    let mut document = serde_json::to_vec(what).expect("the input is JSON");
    document.push(b'\n');
    input_end
        .write_all(&document)
        .map_err(|source| LaunchError::Tell { command: command.to_owned(), source })
}

/// Starts this program with its own environment, and returns the other end of its standard input.
/// Every process of this module is started here.
#[expect(clippy::disallowed_methods, reason = "the engine's one function that starts a process")]
fn spawn_program(
    fleet: &EngineContext,
    args: &[&str],
    out: Stdio,
    log: impl Into<Stdio>,
) -> Result<(Child, UnixStream), LaunchError> {
    let failed = |source| LaunchError::Start {
        program: fleet.program.clone(),
        command: args[0].to_owned(),
        source,
    };
    // A socket and not a pipe: other processes of the same user can open the pipe of a process that
    // has not hidden itself yet, and read its secrets.
    let (input_end, stdin) = UnixStream::pair().map_err(failed)?;
    // The environment is cleared, which also drops the marker of a run that this process may belong
    // to: processes started for another run must not end with that run.
    let child = Command::new(&fleet.program)
        .args(args)
        .env_clear()
        .envs(fleet.env.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .stdin(OwnedFd::from(stdin))
        .stdout(out)
        .stderr(log)
        .spawn();
    Ok((child.map_err(failed)?, input_end))
}

fn open_log(path: &Utf8Path) -> Result<File, LaunchError> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    // The folder of a run may come from a clone, in which the log could be a link.
    untrusted_file::open_with(&mut options, path)
        .map_err(|source| LaunchError::Log { path: path.to_owned(), source })
}

/// Ends what is left of a kept agent whose runner has ended.
pub(crate) fn end_abandoned_agent(fleet: &EngineContext, run: RunId) {
    if let Err(error) = end_leftover_processes(fleet, &fleet.dir.run(run)) {
        let reason = error_chain(&error);
        tracing::warn!(%run, reason, "processes of a kept agent may still be running");
    }
}
