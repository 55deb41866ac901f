//! Recovery: gives every run without a committed result its result.
//!
//! It runs under the writer's lock, before anything new starts, so that it never sees a run that
//! another process is just starting. A live run is left alone: its owner, or the next recovery,
//! commits its result. Start at [`recover_runs`].

pub(crate) mod adopt;
mod run_results;

use std::collections::HashMap;
use std::slice;

use camino::Utf8Path;
use heeler_model::redact::SecretRedactor;
use heeler_model::run::{
    ErrorClass, PROTOCOL, ResultPublicKey, RunCost, RunEnd, RunError, RunRecovery, RunResult,
    SettleInput, file,
};
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
use crate::run_start;
use heeler_control::RunFileReadError;

/// Failure of recovery.
#[derive(Debug, Error)]
pub enum RecoveryError {
    #[error("cannot read which runs are not settled")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A change could not be saved. Nothing new may start.
    #[error("cannot settle the runs of earlier jobs")]
    Write(#[source] StoreWriteError<DatabaseError>),
    /// A result could not be saved. Nothing new may start.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

impl RecoveryError {
    /// Returns true if the database refused this one change; others may succeed.
    fn is_refusal(&self) -> bool {
        match self {
            RecoveryError::Read(_) => false,
            RecoveryError::Write(error) => commit::is_refusal(error),
            RecoveryError::Commit(error) => commit::is_refusal(&error.source),
        }
    }
}

/// Result of recovery.
#[derive(Debug, Default)]
pub struct RecoveryReport {
    /// Runs with a result that was committed.
    pub committed: Vec<CommittedRun>,
    /// Jobs with a run that is still alive.
    pub alive: Vec<JobId>,
    /// Runs that had a directory but no row.
    pub adopted: Vec<RunId>,
    /// Runs that could not be settled yet, with the cause. The next recovery tries again.
    pub unsettled: Vec<(RunId, String)>,
}

/// Policy for comparing the run directories with the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunFolderCheck {
    /// Once after the database was created, restored or rebuilt: only then can rows be missing.
    WhenDue,
    /// Always.
    Always,
}

/// Gives every dead run without a result its result.
pub fn recover_runs(
    fleet: &EngineContext,
    store: &Store,
    compare: RunFolderCheck,
) -> Result<RecoveryReport, RecoveryError> {
    let mut recovered = RecoveryReport::default();
    // Rows come first, so that runs that have only a folder are settled too.
    adopt::adopt_runs(fleet, store, compare, &mut recovered)?;
    let open = read(fleet, |reader| reader.uncommitted_runs())?.into_iter();
    // Only its own host can see the processes of a run.
    let own = open.filter(|run| !run.is_elsewhere(&fleet.dir)).collect();
    for run in sort_by_attempt(own) {
        settle_and_commit(fleet, store, &run, &mut recovered)?;
    }
    // This is last, because committing a result may end the job.
    interrupt_jobs_without_run(fleet, store, &mut recovered)?;
    Ok(recovered)
}

/// Completes the records before a daemon loads them: every run directory gets its row, and no job
/// is running without a run. The results of the runs are collected later, concurrently.
pub(crate) fn complete_records(
    fleet: &EngineContext,
    store: &Store,
    compare: RunFolderCheck,
) -> Result<(), RecoveryError> {
    let mut recovered = RecoveryReport::default();
    adopt::adopt_runs(fleet, store, compare, &mut recovered)?;
    fault::reach(FaultPoint::Adopted);
    // Runs without a committed result keep their job running until the daemon has settled them.
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

/// Sorts the runs of each job by attempt, independent of clock changes.
fn sort_by_attempt(mut runs: Vec<RunRecord>) -> Vec<RunRecord> {
    let mut first: HashMap<JobId, RunId> = HashMap::new();
    for run in &runs {
        let id = first.entry(run.job_id.clone()).or_insert(run.id);
        *id = run.id.min(*id);
    }
    // Ids contain the time, so within a job only the attempt is reliable.
    runs.sort_by_key(|run| (first.get(&run.job_id).copied(), run.attempt));
    runs
}

fn read<T>(
    fleet: &EngineContext,
    question: impl FnOnce(&StoreReader) -> Result<T, DatabaseError>,
) -> Result<T, RecoveryError> {
    // A new reader sees the commits of the steps before.
    let reader =
        StoreReader::open(&fleet.dir).map_err(|error| RecoveryError::Read(Box::new(error)))?;
    question(&reader).map_err(|error| RecoveryError::Read(Box::new(error)))
}

/// Reports a change that the database refuses as unsettled, so that it does not block the recovery
/// of other jobs.
fn skip_refused_change(
    done: Result<(), RecoveryError>,
    run: Option<RunId>,
    recovered: &mut RecoveryReport,
) -> Result<(), RecoveryError> {
    match done {
        // Only refusals are skipped: if the disk fails, nothing new may start.
        Err(error) if error.is_refusal() => {
            let reason = error_chain(&error);
            tracing::warn!(?run, %reason, "the database refused the record of a run");
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
    match load_run_outcome(fleet, run, None) {
        // The runner has redacted the result; the secrets are not known here.
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

/// Failure to determine the result of a run.
#[derive(Debug, Error)]
pub(crate) enum RunOutcomeError {
    #[error(transparent)]
    File(#[from] RunFileReadError),
    #[error(transparent)]
    Settle(#[from] LaunchError),
    /// Settling succeeded but left no result.
    #[error("settling left no result in {0}")]
    NoResult(camino::Utf8PathBuf),
}

impl RunOutcomeError {
    /// Returns true if a retry would fail the same way.
    fn is_permanent(&self) -> bool {
        match self {
            RunOutcomeError::File(error) => error.is_permanent(),
            RunOutcomeError::Settle(error) => error.is_permanent(),
            RunOutcomeError::NoResult(_) => false,
        }
    }
}

/// Determines the result of a run; `None` while it is alive. `settled_with` is the key of a settling
/// process that this process started before.
pub(crate) fn load_run_outcome(
    fleet: &EngineContext,
    run: &RunRecord,
    settled_with: Option<&ResultPublicKey>,
) -> Result<Option<RunResult>, RunOutcomeError> {
    // The recorded host name does not matter: network file systems are refused, so the run was on
    // this machine.
    let folder = fleet.dir.run(run.id);
    match inspect_run(fleet, run, &folder, settled_with) {
        // A run that can never be settled must not block its agent forever.
        Err(error) if error.is_permanent() && !is_run_alive(&folder) => {
            // End its remaining processes; the result does not mention them.
            if let Err(error) = launch::end_leftover_processes(fleet, &folder) {
                tracing::warn!(run = %run.id, reason = error_chain(&error), "processes of a run may still be running");
            }
            let reason = format!(
                "it was interrupted, and its result cannot be determined: {}",
                error_chain(&error)
            );
            Ok(Some(lost_result(run, (fleet.now)(), &reason)))
        }
        Ok(Some(mut result)) => {
            run_results::mention_refused_result(&folder, &mut result);
            run_results::mention_kill(&folder, &mut result);
            Ok(Some(result))
        }
        found => found,
    }
}

fn inspect_run(
    fleet: &EngineContext,
    run: &RunRecord,
    folder: &Utf8Path,
    settled_with: Option<&ResultPublicKey>,
) -> Result<Option<RunResult>, RunOutcomeError> {
    // The result is read first: its runner may have died after it wrote it.
    if let Some(result) = run_results::read_result(folder, run, settled_with)? {
        return Ok(Some(result));
    }
    // The lock is checked before the files, because a live runner is never disturbed. Its agent may
    // have removed the spec.
    if is_run_alive(folder) {
        return Ok(None);
    }
    // Without a spec no runner was started: directory and spec come first.
    let Some(spec) = heeler_control::read_run_spec(folder, run.result_key.as_ref())? else {
        let why = "it was interrupted before it was started";
        // Its agent may have removed the spec, so the reservation counts like that of a dead run.
        let settled = Some(RunRecovery::default());
        let result = RunResult { settled, ..unstarted_result(run, (fleet.now)(), why) };
        return Ok(Some(result));
    };
    // Settling a foreign spec would end processes and write rows of another run.
    if spec.run != run.id || spec.job != run.job_id {
        return Err(RunFileReadError::OtherRun { path: folder.join(file::SPEC) }.into());
    }
    let input = settle_input(slice::from_ref(run));
    match launch::settle_run(fleet, folder, Some(&input)) {
        // Another process is settling the run, or its runner has just started.
        Err(LaunchError::Busy { .. }) => return Ok(None),
        done => done?,
    }
    fault::reach(FaultPoint::RunSettled);
    match run_results::read_result(folder, run, Some(&input.result_key.public_key()))? {
        Some(result) => Ok(Some(result)),
        None => Err(RunOutcomeError::NoResult(folder.to_owned())),
    }
}

/// Returns the input of a settling process. Its key is not on record: if this process dies before
/// the commit, the next one settles the runs again.
pub(crate) fn settle_input(runs: &[RunRecord]) -> SettleInput {
    let keys = runs.iter().filter_map(|run| Some((run.id, run.result_key.clone()?)));
    SettleInput {
        protocol: PROTOCOL,
        result_key: run_start::random_result_key(),
        runner_keys: keys.collect(),
    }
}

/// Creates the result of a dead run with unknown progress and cost.
pub(crate) fn lost_result(run: &RunRecord, now: Timestamp, reason: &str) -> RunResult {
    let error = RunError {
        cure: "its transcript shows its work; trigger it again".to_owned(),
        ..RunError::new(ErrorClass::Interrupted, reason)
    };
    RunResult {
        end: RunEnd::Interrupted,
        error: Some(error),
        cost: RunCost::default(),
        ..unstarted_result(run, now, reason)
    }
}

/// Creates the result of a run that never got a runner.
pub(crate) fn unstarted_result(run: &RunRecord, now: Timestamp, why: &str) -> RunResult {
    let started_at = run.created_at;
    RunResult { started_at, ..RunResult::never_started(run.id, run.job_id.clone(), why, now) }
}
