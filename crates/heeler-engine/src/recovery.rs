//! Every run without a committed result gets one.
//!
//! Done under the writer's lock, before anything new starts: a run that is being started by another
//! process is then never seen half-way. A living run is left alone; whoever conducts it, or the
//! next recovery, commits what it did.

mod adopt;

use std::collections::HashMap;

use camino::Utf8Path;
use heeler_model::redact::SecretRedactor;
use heeler_model::run::{ErrorClass, RunCost, RunEnd, RunError, RunResult, RunSpec, file};
use heeler_model::{JobId, RunId, error_chain};
use heeler_store::{
    DatabaseError, RunRecord, Store, StoreReader, StoreWriteError, doctor, is_run_alive,
};
use jiff::Timestamp;
use thiserror::Error;

use crate::commit::{self, CommitError, CommittedRun};
use crate::fault::{self, FaultPoint};
use crate::fleet::EngineContext;
use crate::launch::{self, LaunchError};
use crate::run_file::RunFileReadError;

/// Why recovery could not go on.
#[derive(Debug, Error)]
pub enum RecoveryError {
    /// The state cannot be read.
    #[error("cannot read which runs are not settled")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A change could not be saved: nothing new may start.
    #[error("cannot settle the runs of earlier jobs")]
    Write(#[source] StoreWriteError<DatabaseError>),
    /// A result could not be saved: nothing new may start.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

impl RecoveryError {
    /// Says whether the database refuses this one change; others may succeed.
    fn is_refusal(&self) -> bool {
        match self {
            RecoveryError::Read(_) => false,
            RecoveryError::Write(error) => commit::is_refusal(error),
            RecoveryError::Commit(error) => commit::is_refusal(&error.source),
        }
    }
}

/// What recovery did.
#[derive(Debug, Default)]
pub struct RecoveryReport {
    /// Runs whose results were committed.
    pub committed: Vec<CommittedRun>,
    /// Jobs of runs that go on.
    pub alive: Vec<JobId>,
    /// Runs that were known to their folders only.
    pub adopted: Vec<RunId>,
    /// What could not be settled yet, and why; it is tried again next time.
    pub unsettled: Vec<(RunId, String)>,
}

/// When the folders of runs are compared with the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunFolderCheck {
    /// Once after the database was made, restored or rebuilt: only then can it lack one.
    WhenDue,
    /// Now.
    Always,
}

/// Gives every run a result that has none and that nobody works on.
pub fn recover_runs(
    fleet: &EngineContext,
    store: &Store,
    compare: RunFolderCheck,
) -> Result<RecoveryReport, RecoveryError> {
    let mut recovered = RecoveryReport::default();
    adopt::adopt_runs(fleet, store, compare, &mut recovered)?;
    for run in sort_by_attempt(read(fleet, |reader| reader.uncommitted_runs())?) {
        settle_and_commit(fleet, store, &run, &mut recovered)?;
    }
    interrupt_jobs_without_run(fleet, store, &mut recovered)?;
    Ok(recovered)
}

/// Makes the record whole before a daemon looks at it: every run folder has its row, and no job runs
/// without a run. What became of the runs themselves is found out later, side by side.
pub(crate) fn complete_records(
    fleet: &EngineContext,
    store: &Store,
    compare: RunFolderCheck,
) -> Result<(), RecoveryError> {
    let mut recovered = RecoveryReport::default();
    adopt::adopt_runs(fleet, store, compare, &mut recovered)?;
    fault::reach(FaultPoint::Adopted);
    interrupt_jobs_without_run(fleet, store, &mut recovered)?;
    fault::reach(FaultPoint::RecordWhole);
    Ok(())
}

fn interrupt_jobs_without_run(
    fleet: &EngineContext,
    store: &Store,
    recovered: &mut RecoveryReport,
) -> Result<(), RecoveryError> {
    for job in read(fleet, |reader| reader.running_jobs())? {
        let runs = read(fleet, |reader| reader.runs_of_job(&job.id))?;
        if runs.iter().all(|run| run.committed) {
            let (id, now) = (job.id.clone(), (fleet.now)());
            let done = store.write(move |tx| doctor::interrupt(tx, &id, now)).map(|_| ());
            let run = runs.last().map(|run| run.id);
            skip_refused_change(done.map_err(RecoveryError::Write), run, recovered)?;
        }
    }
    Ok(())
}

/// Sorts runs so that those of one job come by attempt, whatever the clock did meanwhile.
fn sort_by_attempt(mut runs: Vec<RunRecord>) -> Vec<RunRecord> {
    let mut first: HashMap<JobId, RunId> = HashMap::new();
    for run in &runs {
        let id = first.entry(run.job_id.clone()).or_insert(run.id);
        *id = run.id.min(*id);
    }
    runs.sort_by_key(|run| (first.get(&run.job_id).copied(), run.attempt));
    runs
}

fn read<T>(
    fleet: &EngineContext,
    question: impl FnOnce(&StoreReader) -> Result<T, DatabaseError>,
) -> Result<T, RecoveryError> {
    let reader =
        StoreReader::open(&fleet.dir).map_err(|error| RecoveryError::Read(Box::new(error)))?;
    question(&reader).map_err(|error| RecoveryError::Read(Box::new(error)))
}

/// Lets one job that the database refuses not stand in the way of all others.
fn skip_refused_change(
    done: Result<(), RecoveryError>,
    run: Option<RunId>,
    recovered: &mut RecoveryReport,
) -> Result<(), RecoveryError> {
    match done {
        Err(error) if error.is_refusal() => {
            let reason = error_chain(&error);
            tracing::warn!(?run, %reason, "the record of a run is refused");
            recovered.unsettled.extend(run.map(|run| (run, reason)));
            Ok(())
        }
        done => done,
    }
}

fn settle_and_commit(
    fleet: &EngineContext,
    store: &Store,
    run: &RunRecord,
    recovered: &mut RecoveryReport,
) -> Result<(), RecoveryError> {
    let nothing = SecretRedactor::new(&[]);
    match load_run_outcome(fleet, run) {
        // Its runner has redacted what it wrote; the secrets are gone with its conductor.
        Ok(Some(result)) => {
            let done =
                commit::commit(store, result, &nothing).map(|it| recovered.committed.push(it));
            skip_refused_change(done.map_err(RecoveryError::Commit), Some(run.id), recovered)?;
        }
        Ok(None) => recovered.alive.push(run.job_id.clone()),
        Err(error) => {
            let reason = error_chain(&error);
            tracing::warn!(run = %run.id, %reason, "a run cannot be settled yet");
            recovered.unsettled.push((run.id, reason));
        }
    }
    Ok(())
}

/// Why a run has no outcome yet.
#[derive(Debug, Error)]
pub(crate) enum RunOutcomeError {
    /// A file of its folder.
    #[error(transparent)]
    File(#[from] RunFileReadError),
    /// Settling failed.
    #[error(transparent)]
    Settle(#[from] LaunchError),
    /// Settling said that it succeeded, and left no result.
    #[error("settling left no result in {0}")]
    NoResult(camino::Utf8PathBuf),
}

impl RunOutcomeError {
    /// Says whether the next attempt would fail for the same reason.
    fn is_permanent(&self) -> bool {
        match self {
            RunOutcomeError::File(error) => error.is_permanent(),
            RunOutcomeError::Settle(error) => error.is_permanent(),
            RunOutcomeError::NoResult(_) => false,
        }
    }
}

/// Finds out how a run ended; `None` while it goes on.
pub(crate) fn load_run_outcome(
    fleet: &EngineContext,
    run: &RunRecord,
) -> Result<Option<RunResult>, RunOutcomeError> {
    // Whatever its host was called: network file systems are refused, so it was this machine.
    let folder = fleet.dir.run(run.id);
    match inspect_run(fleet, run, &folder) {
        // It must not keep its agent from working for ever.
        Err(error) if error.is_permanent() && !is_run_alive(&folder) => {
            // Its result will not say so, but what it started ends with it.
            if let Err(error) = launch::end_leftover_processes(fleet, &folder) {
                tracing::warn!(run = %run.id, reason = error_chain(&error), "what a run left may run on");
            }
            let reason = format!("it was cut off, and cannot be settled: {}", error_chain(&error));
            Ok(Some(lost_result(run, (fleet.now)(), &reason)))
        }
        found => found,
    }
}

fn inspect_run(
    fleet: &EngineContext,
    run: &RunRecord,
    folder: &Utf8Path,
) -> Result<Option<RunResult>, RunOutcomeError> {
    if let Some(result) = read_result(folder, run)? {
        return Ok(Some(result));
    }
    // The folder and the spec are put in place before a runner is started.
    let Some(spec) = crate::run_file::read::<RunSpec>(&folder.join(file::SPEC))? else {
        return Ok(Some(unstarted_result(
            run,
            (fleet.now)(),
            "it was cut off before it was started",
        )));
    };
    if is_run_alive(folder) {
        return Ok(None);
    }
    if spec.run != run.id || spec.job != run.job_id {
        return Err(RunFileReadError::OtherRun { path: folder.join(file::SPEC) }.into());
    }
    match launch::settle_run(fleet, folder) {
        Err(LaunchError::Busy { .. }) => return Ok(None),
        done => done?,
    }
    match read_result(folder, run)? {
        Some(result) => Ok(Some(result)),
        None => Err(RunOutcomeError::NoResult(folder.to_owned())),
    }
}

fn read_result(folder: &Utf8Path, run: &RunRecord) -> Result<Option<RunResult>, RunFileReadError> {
    let path = folder.join(file::RESULT);
    match crate::run_file::read::<RunResult>(&path)? {
        Some(result) if result.run != run.id => Err(RunFileReadError::OtherRun { path }),
        found => Ok(found),
    }
}

/// Makes the result of a dead run of which nobody can find out how far it came, or what it cost.
fn lost_result(run: &RunRecord, now: Timestamp, reason: &str) -> RunResult {
    let error = RunError {
        cure: "its transcript has what it did; trigger it again".to_owned(),
        ..RunError::new(ErrorClass::Interrupted, reason)
    };
    RunResult {
        end: RunEnd::Interrupted,
        error: Some(error),
        cost: RunCost::default(),
        ..unstarted_result(run, now, reason)
    }
}

/// Makes the result of a run that never came to its runner.
pub(crate) fn unstarted_result(run: &RunRecord, now: Timestamp, why: &str) -> RunResult {
    let started_at = run.created_at;
    RunResult { started_at, ..RunResult::never_started(run.id, run.job_id.clone(), why, now) }
}
