//! Every run without a committed result gets one.
//!
//! Done under the writer's lock, before anything new starts: a run that is being started by another
//! process is then never seen half-way. A living run is left alone; whoever conducts it, or the
//! next recovery, commits what it did.

mod adopt;

use std::collections::HashMap;

use camino::Utf8Path;
use heeler_model::redact::Redactor;
use heeler_model::run::{Cost, End, ErrorClass, RunError, RunResult, RunSpec, file};
use heeler_model::{JobId, RunId, chain};
use heeler_store::{DbError, Reader, Run, Store, WriteError, doctor, is_run_alive};
use jiff::Timestamp;
use thiserror::Error;

use crate::commit::{self, CommitError, Committed};
use crate::fault::{self, FaultPoint};
use crate::file::FileError;
use crate::fleet::Fleet;
use crate::launch::{self, LaunchError};

/// Why recovery could not go on.
#[derive(Debug, Error)]
pub enum RecoverError {
    /// The state cannot be read.
    #[error("cannot read which runs are not settled")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A change could not be saved: nothing new may start.
    #[error("cannot settle the runs of earlier jobs")]
    Write(#[source] WriteError<DbError>),
    /// A result could not be saved: nothing new may start.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

impl RecoverError {
    /// Says whether the database refuses this one change; others may succeed.
    fn is_refusal(&self) -> bool {
        match self {
            RecoverError::Read(_) => false,
            RecoverError::Write(error) => commit::is_refusal(error),
            RecoverError::Commit(error) => commit::is_refusal(&error.source),
        }
    }
}

/// What recovery did.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Runs whose results were committed.
    pub committed: Vec<Committed>,
    /// Jobs of runs that go on.
    pub alive: Vec<JobId>,
    /// Runs that were known to their folders only.
    pub adopted: Vec<RunId>,
    /// What could not be settled yet, and why; it is tried again next time.
    pub unsettled: Vec<(RunId, String)>,
}

/// When the folders of runs are compared with the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// Once after the database was made, restored or rebuilt: only then can it lack one.
    WhenDue,
    /// Now.
    Now,
}

/// Gives every run a result that has none and that nobody works on.
pub fn recover(fleet: &Fleet, store: &Store, compare: Compare) -> Result<Recovered, RecoverError> {
    let mut recovered = Recovered::default();
    adopt::adopt(fleet, store, compare, &mut recovered)?;
    for run in in_order(read(fleet, |reader| reader.uncommitted_runs())?) {
        settle_one(fleet, store, &run, &mut recovered)?;
    }
    interrupt_runless(fleet, store, &mut recovered)?;
    Ok(recovered)
}

/// Makes the record whole before a daemon looks at it: every run folder has its row, and no job runs
/// without a run. What became of the runs themselves is found out later, side by side.
pub(crate) fn prepare(fleet: &Fleet, store: &Store, compare: Compare) -> Result<(), RecoverError> {
    let mut recovered = Recovered::default();
    adopt::adopt(fleet, store, compare, &mut recovered)?;
    fault::reach(FaultPoint::Adopted);
    interrupt_runless(fleet, store, &mut recovered)?;
    fault::reach(FaultPoint::RecordWhole);
    Ok(())
}

fn interrupt_runless(
    fleet: &Fleet,
    store: &Store,
    recovered: &mut Recovered,
) -> Result<(), RecoverError> {
    for job in read(fleet, |reader| reader.running_jobs())? {
        let runs = read(fleet, |reader| reader.runs_of_job(&job.id))?;
        if runs.iter().all(|run| run.committed) {
            let (id, now) = (job.id.clone(), (fleet.now)());
            let done = store.write(move |tx| doctor::interrupt(tx, &id, now)).map(|_| ());
            let run = runs.last().map(|run| run.id);
            tolerate(done.map_err(RecoverError::Write), run, recovered)?;
        }
    }
    Ok(())
}

/// Sorts runs so that those of one job come by attempt, whatever the clock did meanwhile.
fn in_order(mut runs: Vec<Run>) -> Vec<Run> {
    let mut first: HashMap<JobId, RunId> = HashMap::new();
    for run in &runs {
        let id = first.entry(run.job_id.clone()).or_insert(run.id);
        *id = run.id.min(*id);
    }
    runs.sort_by_key(|run| (first.get(&run.job_id).copied(), run.attempt));
    runs
}

fn read<T>(
    fleet: &Fleet,
    question: impl FnOnce(&Reader) -> Result<T, DbError>,
) -> Result<T, RecoverError> {
    let reader = Reader::open(&fleet.dir).map_err(|error| RecoverError::Read(Box::new(error)))?;
    question(&reader).map_err(|error| RecoverError::Read(Box::new(error)))
}

/// Lets one job that the database refuses not stand in the way of all others.
fn tolerate(
    done: Result<(), RecoverError>,
    run: Option<RunId>,
    recovered: &mut Recovered,
) -> Result<(), RecoverError> {
    match done {
        Err(error) if error.is_refusal() => {
            let reason = chain(&error);
            tracing::warn!(?run, %reason, "the record of a run is refused");
            recovered.unsettled.extend(run.map(|run| (run, reason)));
            Ok(())
        }
        done => done,
    }
}

fn settle_one(
    fleet: &Fleet,
    store: &Store,
    run: &Run,
    recovered: &mut Recovered,
) -> Result<(), RecoverError> {
    let nothing = Redactor::new(&[]);
    match outcome_of(fleet, run) {
        // Its runner has redacted what it wrote; the secrets are gone with its conductor.
        Ok(Some(result)) => {
            let done =
                commit::commit(store, result, &nothing).map(|it| recovered.committed.push(it));
            tolerate(done.map_err(RecoverError::Commit), Some(run.id), recovered)?;
        }
        Ok(None) => recovered.alive.push(run.job_id.clone()),
        Err(error) => {
            let reason = chain(&error);
            tracing::warn!(run = %run.id, %reason, "a run cannot be settled yet");
            recovered.unsettled.push((run.id, reason));
        }
    }
    Ok(())
}

/// Why a run has no outcome yet.
#[derive(Debug, Error)]
pub(crate) enum UnsettledError {
    /// A file of its folder.
    #[error(transparent)]
    File(#[from] FileError),
    /// Settling failed.
    #[error(transparent)]
    Settle(#[from] LaunchError),
    /// Settling said that it succeeded, and left no result.
    #[error("settling left no result in {0}")]
    NoResult(camino::Utf8PathBuf),
}

impl UnsettledError {
    /// Says whether the next attempt would fail for the same reason.
    fn is_lasting(&self) -> bool {
        match self {
            UnsettledError::File(error) => error.is_lasting(),
            UnsettledError::Settle(error) => error.is_lasting(),
            UnsettledError::NoResult(_) => false,
        }
    }
}

/// Finds out how a run ended; `None` while it goes on.
pub(crate) fn outcome_of(fleet: &Fleet, run: &Run) -> Result<Option<RunResult>, UnsettledError> {
    // Whatever its host was called: network file systems are refused, so it was this machine.
    let folder = fleet.dir.run(run.id);
    match look_at(fleet, run, &folder) {
        // It must not keep its agent from working for ever.
        Err(error) if error.is_lasting() && !is_run_alive(&folder) => {
            // Its result will not say so, but what it started ends with it.
            if let Err(error) = launch::end_left(fleet, &folder) {
                tracing::warn!(run = %run.id, reason = chain(&error), "what a run left may run on");
            }
            let reason = format!("it was cut off, and cannot be settled: {}", chain(&error));
            Ok(Some(lost(run, (fleet.now)(), &reason)))
        }
        found => found,
    }
}

fn look_at(
    fleet: &Fleet,
    run: &Run,
    folder: &Utf8Path,
) -> Result<Option<RunResult>, UnsettledError> {
    if let Some(result) = read_result(folder, run)? {
        return Ok(Some(result));
    }
    // The folder and the spec are put in place before a runner is started.
    let Some(spec) = crate::file::read::<RunSpec>(&folder.join(file::SPEC))? else {
        return Ok(Some(never_started(run, (fleet.now)(), "it was cut off before it was started")));
    };
    if is_run_alive(folder) {
        return Ok(None);
    }
    if spec.run != run.id || spec.job != run.job_id {
        return Err(FileError::OtherRun { path: folder.join(file::SPEC) }.into());
    }
    match launch::settle(fleet, folder) {
        Err(LaunchError::Busy { .. }) => return Ok(None),
        done => done?,
    }
    match read_result(folder, run)? {
        Some(result) => Ok(Some(result)),
        None => Err(UnsettledError::NoResult(folder.to_owned())),
    }
}

fn read_result(folder: &Utf8Path, run: &Run) -> Result<Option<RunResult>, FileError> {
    let path = folder.join(file::RESULT);
    match crate::file::read::<RunResult>(&path)? {
        Some(result) if result.run != run.id => Err(FileError::OtherRun { path }),
        found => Ok(found),
    }
}

/// Makes the result of a dead run of which nobody can find out how far it came, or what it cost.
fn lost(run: &Run, now: Timestamp, reason: &str) -> RunResult {
    let error = RunError {
        cure: "its transcript has what it did; trigger it again".to_owned(),
        ..RunError::of(ErrorClass::Interrupted, reason)
    };
    RunResult {
        end: End::Interrupted,
        error: Some(error),
        cost: Cost::default(),
        ..never_started(run, now, reason)
    }
}

/// Makes the result of a run that never came to its runner.
pub(crate) fn never_started(run: &Run, now: Timestamp, why: &str) -> RunResult {
    let started_at = run.created_at;
    RunResult { started_at, ..RunResult::never_started(run.id, run.job_id.clone(), why, now) }
}
