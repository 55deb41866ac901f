//! A hook that is a command: a run of its own, by the same program that runs agents.
//!
//! It has a state directory to itself, `hooks/<event id>/`, so that no job, session or lock of the
//! fleet is touched: run folder, logs and locks are in there. The folder stays until the effect is
//! on record as finished. Who finds it before takes its word: a run that goes on is waited for, one
//! that has ended is not repeated, and only one that was cut off is, after nothing of it is left.

use std::io;
use std::process::Child;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::config::{Period, RuntimeType};
use heeler_model::hook::HookContext;
use heeler_model::run::{
    Attendance, Brief, End, Limits, PROTOCOL, RunResult, RunSpec, SessionPlan, SessionStart, Work,
    file,
};
use heeler_model::{ExitReason, RunId, TriggerType, chain};
use heeler_transcript::{LockFile, OsDisk, checked_id, create_folder, plain, replace_file};

use super::{HookAround, HookError};
use crate::cancel::kill_runner;
use crate::fleet::Fleet;
use crate::prepare::{environment, millis, real_folder};
use crate::{file as run_file, launch};

/// How long a command that is out of time has after each signal: it is interrupted, then asked to
/// end, then killed with all that it started.
const GRACE: Duration = Duration::from_secs(1);

/// How much longer than its limit and its graces a runner may take that another daemon started;
/// after that it is killed.
const OVERDUE: Duration = Duration::from_secs(30);

/// Names the user's folder to processes of ours.
const HOME: &str = "HEELER_HOME";

/// How often a run is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How much of its last complaint a failed command's error tells.
const SAID_CHARS_MAX: usize = 300;

/// The most of `stderr.log` that is read; the runner keeps less.
const STDERR_BYTES_MAX: u64 = 1 << 20;

/// Runs the command, unless it was run for this event before.
pub(super) fn run(
    command: &str,
    timeout: Period,
    context: &HookContext,
    around: &HookAround<'_>,
) -> Result<(), HookError> {
    let event = checked_id(&context.event_id)
        .map_err(|error| HookError::Lasting(format!("its event has no usable id: {error}")))?;
    let place = around.fleet.dir.hook(event);
    let fleet = at_home(around.fleet, &place);
    let shell = Shell { fleet: &fleet, place: &place, timeout, around };
    if let Some((folder, result)) = shell.earlier()? {
        return verdict(&folder, &result, timeout);
    }
    clear(&place)?;
    let brief = shell.brief(command, context)?;
    let folder = shell.prepare(context)?;
    let child = launch::start_runner(&fleet, &folder, &brief).map_err(passing)?;
    shell.wait(child)?;
    match shell.result(&folder)? {
        Some(result) => verdict(&folder, &result, timeout),
        None => Err(cut_off()),
    }
}

/// Takes away what is left of an event that is done. A run of it that still goes on keeps its folder.
pub(super) fn remove(fleet: &Fleet, place: &Utf8Path) -> Result<(), HookError> {
    let fleet = at_home(fleet, place);
    for folder in runs(place) {
        if is_held(&folder) {
            return Ok(());
        }
        if !folder.join(file::RESULT).exists() {
            settle(&fleet, &folder)?;
        }
    }
    clear(place)
}

/// Makes the event's folder the user's own to all that is started for it: session locks are there,
/// and a settling is told so by this variable.
fn at_home(fleet: &Fleet, place: &Utf8Path) -> Fleet {
    let mut fleet = fleet.clone();
    fleet.env.retain(|(name, _)| name != HOME);
    fleet.env.push((HOME.to_owned(), place.to_string()));
    fleet
}

struct Shell<'s> {
    /// With the event's own folder as the user's.
    fleet: &'s Fleet,
    place: &'s Utf8Path,
    timeout: Period,
    around: &'s HookAround<'s>,
}

impl Shell<'_> {
    /// Returns what an earlier run for this event came to, if it came to its end.
    fn earlier(&self) -> Result<Option<(Utf8PathBuf, RunResult)>, HookError> {
        for folder in runs(self.place) {
            self.wait_for_other(&folder)?;
            if let Some(result) = self.result(&folder)?
                && result.end == End::Finished
            {
                return Ok(Some((folder, result)));
            }
        }
        Ok(None)
    }

    /// Waits for a run that another daemon started and that goes on.
    fn wait_for_other(&self, folder: &Utf8Path) -> Result<(), HookError> {
        let patience = Duration::from_millis(millis(self.timeout)) + GRACE * 3 + OVERDUE;
        let deadline = Instant::now() + patience;
        while is_held(folder) {
            self.rest()?;
            if Instant::now() >= deadline {
                // It may have ended just now.
                if let Err(error) = kill_runner(folder) {
                    tracing::warn!(%folder, "a hook that is overdue: {}", chain(&error));
                    return Err(HookError::passing("an earlier run of it does not end"));
                }
            }
        }
        Ok(())
    }

    fn brief(&self, command: &str, context: &HookContext) -> Result<Brief, HookError> {
        let given = environment::give(self.around.agent, &self.around.config.env);
        let mut given = given.map_err(|error| HookError::Lasting(chain(&error)))?;
        given.env.insert("HEELER_EVENT".to_owned(), context.event_id.clone());
        Ok(Brief {
            protocol: PROTOCOL,
            prompt: serde_json::to_string(context).expect("a context has only text keys"),
            env: given.env,
            secrets: given.secrets,
            work: Work::Command { command: command.to_owned() },
            send_files_to: None,
        })
    }

    /// Puts the run's folder in place, with its spec.
    fn prepare(&self, context: &HookContext) -> Result<Utf8PathBuf, HookError> {
        let run = RunId::mint((self.fleet.now)(), std::array::from_fn(|_| fastrand::u8(..)));
        let folder = self.place.join("runs").join(run.to_string());
        let spec = self.spec(run, context)?;
        let spec = serde_json::to_vec_pretty(&spec).expect("a spec is JSON");
        for needed in [self.place.join("jobs"), self.projects(), folder.clone()] {
            create_folder(&OsDisk, &needed).map_err(passing)?;
        }
        replace_file(&OsDisk, &folder.join(file::SPEC), &spec).map_err(passing)?;
        Ok(folder)
    }

    fn spec(&self, run: RunId, context: &HookContext) -> Result<RunSpec, HookError> {
        let agent = self.around.agent;
        let directory = &agent.working_directory;
        let working_directory = real_folder(directory)
            .map_err(|error| HookError::Lasting(format!("cannot work in {directory}: {error}")))?;
        let session = uuid::Builder::from_random_bytes(std::array::from_fn(|_| fastrand::u8(..)));
        let id = session.into_uuid().to_string().parse().expect("a UUID is a session id");
        let reason = "a hook has no history".to_owned();
        Ok(RunSpec {
            protocol: PROTOCOL,
            run,
            job: context.job.id.clone(),
            attempt: 1,
            agent: agent.name.clone(),
            trigger: TriggerType::from_word("hook"),
            runtime: RuntimeType::Command,
            working_directory,
            job_log: self.place.join(format!("jobs/{}.jsonl", context.job.id)),
            projects: self.projects(),
            output_file: None,
            home: self.place.to_owned(),
            sockets: self.around.config.sockets.clone(),
            session: SessionPlan::new(SessionStart::Fresh { id }, reason),
            limits: Limits {
                timeout_ms: Some(millis(self.timeout)),
                grace_ms: Some(u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX)),
                ..Limits::default()
            },
            attendance: Attendance::Nobody,
            sync_each_row: false,
            workspaces: None,
            keep_output: false,
        })
    }

    fn projects(&self) -> Utf8PathBuf {
        self.place.join("agent-sessions/projects")
    }

    /// Waits for the runner, which ends by itself: its run has a limit.
    fn wait(&self, mut child: Child) -> Result<(), HookError> {
        while let Ok(None) = child.try_wait() {
            self.rest()?;
        }
        Ok(())
    }

    fn rest(&self) -> Result<(), HookError> {
        if self.around.stop.load(Ordering::Relaxed) {
            return Err(HookError::Stopped);
        }
        std::thread::sleep(LOOK_EVERY);
        Ok(())
    }

    /// Returns the result of a run that nobody works on; one that was cut off is given its end. None
    /// if its folder cannot be used: nothing of it runs any more, and that is all that is known.
    fn result(&self, folder: &Utf8Path) -> Result<Option<RunResult>, HookError> {
        if let Some(result) = read_result(folder)? {
            return Ok(Some(result));
        }
        settle(self.fleet, folder)?;
        read_result(folder)
    }
}

fn passing(error: impl std::error::Error) -> HookError {
    HookError::passing(chain(&error))
}

/// Lists the folders of runs for an event.
fn runs(place: &Utf8Path) -> Vec<Utf8PathBuf> {
    let Ok(entries) = place.join("runs").read_dir_utf8() else { return Vec::new() };
    let mut found: Vec<_> = entries.flatten().map(|entry| entry.into_path()).collect();
    found.sort();
    found
}

fn is_held(folder: &Utf8Path) -> bool {
    matches!(LockFile::probe(&folder.join(file::LOCK)), Ok(Some(_)))
}

fn read_result(folder: &Utf8Path) -> Result<Option<RunResult>, HookError> {
    run_file::read(&folder.join(file::RESULT)).map_err(passing)
}

/// Ends what a dead run has left and gives it its result, where its folder can be used.
fn settle(fleet: &Fleet, folder: &Utf8Path) -> Result<(), HookError> {
    // A daemon died before it had written what the run was to do: nothing was started.
    if !folder.join(file::SPEC).exists() {
        return Ok(());
    }
    match launch::settle(fleet, folder) {
        Err(error) if error.is_lasting() => launch::end_left(fleet, folder).map_err(passing),
        done => done.map_err(passing),
    }
}

fn clear(place: &Utf8Path) -> Result<(), HookError> {
    match std::fs::remove_dir_all(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(HookError::passing(format!("cannot remove {place}: {error}")))
        }
        _ => Ok(()),
    }
}

fn verdict(folder: &Utf8Path, result: &RunResult, timeout: Period) -> Result<(), HookError> {
    match (result.end, result.exit_reason) {
        (End::Finished, ExitReason::Success) => Ok(()),
        (End::Finished, ExitReason::Timeout) => Err(HookError::Lasting(format!(
            "the command was ended after {timeout}; `timeout` sets how long it may take"
        ))),
        (End::Finished, _) => {
            let why = result.error.as_ref().map_or("the command failed", |it| it.message.as_str());
            let said = last_complaint(folder).map(|said| format!(": {said}")).unwrap_or_default();
            Err(HookError::Lasting(format!("{why}{said}")))
        }
        // It may have done all, some or nothing of its work: at least once.
        (End::NeverStarted | End::Interrupted | End::SessionBusy, _) => Err(cut_off()),
    }
}

fn cut_off() -> HookError {
    HookError::passing("the command was cut off")
}

/// Returns the last line that the command wrote to standard error; its runner has redacted it.
fn last_complaint(folder: &Utf8Path) -> Option<String> {
    let bytes = plain::read(&folder.join("stderr.log"), STDERR_BYTES_MAX).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(SAID_CHARS_MAX).collect())
}
