//! Adopts runs that have a directory but no row, as after a restore or a rebuild of the database.
//!
//! Each gets its row, and its job and session if they are missing. The job's record tells whether
//! the run is already counted. After a restore or a rebuild, its result is committed like any other.
//! At other times no row is missing unless somebody removed it or made the directory, so the result
//! does not count. Start at [`adopt_runs`].

use std::collections::HashSet;
use std::fs::DirEntry;
use std::io;

use heeler_model::run::{
    ResultPublicKey, RunResult, RunSpec, RunStartRecord, check_run_result, file,
};
use heeler_model::{Job, JobTransition, RunId, Session, SessionStatus, UsageTotals, error_chain};
use heeler_store::{DatabaseError, RunRecord, StateDir, Store, StoreTransaction, is_run_alive};
use jiff::Timestamp;

use super::{RecoveryError, RecoveryReport, RunFolderCheck, read, skip_refused_change};
use crate::commit;
use crate::fleet::EngineContext;
use crate::run_start;

/// Metadata key of the epoch in which every run directory got its row. Rows are lost only when the
/// database is restored or rebuilt, which starts another epoch.
const COMPARED_EPOCH_KEY: &str = "runs_compared_in_epoch";

/// Origin of a session with a lost record. It does not become its agent's own session, because it
/// may have belonged to a channel.
const ADOPTED_ORIGIN: &str = "adopted";

/// A run without a row.
struct UnrecordedRun {
    spec: RunSpec,
    started_at: Option<Timestamp>,
    now: Timestamp,
    result: Option<RunResult>,
    is_alive: bool,
    cause: MissingRowCause,
}

/// Reason that a run has no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissingRowCause {
    /// The database was restored, rebuilt or created.
    Restored,
    /// Unknown: an agent may have removed the row, or made the directory.
    Unknown,
}

/// Creates rows for runs that have none.
pub(super) fn adopt_runs(
    fleet: &EngineContext,
    store: &Store,
    compare: RunFolderCheck,
    recovered: &mut RecoveryReport,
) -> Result<(), RecoveryError> {
    // The epoch is read before the folders: a restore in between must repeat the comparison.
    let epoch = read(fleet, |reader| reader.epoch())?.to_string();
    let is_compared =
        read(fleet, |reader| reader.meta(COMPARED_EPOCH_KEY))?.as_ref() == Some(&epoch);
    if is_compared && compare == RunFolderCheck::WhenDue {
        return Ok(());
    }
    let cause = if is_compared { MissingRowCause::Unknown } else { MissingRowCause::Restored };
    for found in find_unrecorded_runs(fleet, cause, recovered)? {
        let run = found.spec.run;
        // Each run has its own transaction, so one refused run does not block the others.
        let host = run_start::host_name(&fleet.dir);
        let done =
            store.write(move |tx| record_run(tx, &found, host)).map_err(RecoveryError::Write);
        let done = done.map(|()| recovered.adopted.push(run));
        skip_refused_change(done, Some(run), recovered)?;
    }
    // Runs that could not be read now may be readable at the next start.
    if !recovered.unsettled.is_empty() {
        return Ok(());
    }
    let done =
        store.write::<(), DatabaseError, _>(move |tx| tx.set_meta(COMPARED_EPOCH_KEY, &epoch));
    done.map_err(RecoveryError::Write)
}

/// Lists runs without a row, those of each job by attempt, independent of clock changes.
fn find_unrecorded_runs(
    fleet: &EngineContext,
    cause: MissingRowCause,
    recovered: &mut RecoveryReport,
) -> Result<Vec<UnrecordedRun>, RecoveryError> {
    let known: HashSet<RunId> = read(fleet, |reader| reader.run_ids())?.into_iter().collect();
    let folders =
        list_run_folders(&fleet.dir).map_err(|error| RecoveryError::Read(Box::new(error)))?;
    let mut found = Vec::new();
    for run in folders.into_iter().filter(|run| !known.contains(run)) {
        let folder = fleet.dir.run(run);
        let spec = match heeler_control::read_run_file::<RunSpec>(&folder.join(file::SPEC)) {
            Ok(Some(spec)) if spec.run == run => spec,
            // Without a spec no runner was started, so there is nothing to adopt.
            Ok(_) => continue,
            // Not counted as unsettled: that would repeat the comparison at every start. `heeler
            // doctor` reports it.
            Err(error) if error.is_permanent() => {
                tracing::warn!(%run, reason = error_chain(&error), "a run can never be adopted");
                continue;
            }
            Err(error) => {
                let reason = error_chain(&error);
                tracing::warn!(%run, %reason, "a run cannot be adopted yet");
                recovered.unsettled.push((run, reason));
                continue;
            }
        };
        let started = heeler_control::read_run_file::<RunStartRecord>(&folder.join(file::STARTED))
            .ok()
            .flatten();
        let result =
            // An unreadable result is judged later, when the run is settled.
            heeler_control::read_run_file::<RunResult>(&folder.join(file::RESULT)).ok().flatten();
        found.push(UnrecordedRun {
            started_at: started.map(|started| started.at),
            now: (fleet.now)(),
            result: result.filter(|it| check_run_result(it, run, &spec.job).is_ok()),
            is_alive: is_run_alive(&folder),
            cause,
            spec,
        });
    }
    found.sort_by(|a, b| (&a.spec.job, a.spec.attempt).cmp(&(&b.spec.job, b.spec.attempt)));
    Ok(found)
}

/// Lists the runs that have a directory.
pub(crate) fn list_run_folders(dir: &StateDir) -> io::Result<Vec<RunId>> {
    let entries = match std::fs::read_dir(dir.runs()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let entries = entries.collect::<io::Result<Vec<_>>>()?;
    // Ignore other entries; their names may not even be UTF-8.
    let id = |entry: &DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.iter().filter_map(id).collect())
}

fn record_run(
    tx: &mut StoreTransaction<'_>,
    found: &UnrecordedRun,
    host: String,
) -> Result<(), DatabaseError> {
    let UnrecordedRun { spec, result, .. } = found;
    let mut is_counted = false;
    match tx.job(&spec.job)? {
        None => tx.insert_job(&job_from_spec(found))?,
        Some(job) if found.is_counted_in(&job) => is_counted = true,
        // Nobody can vouch for the run, so it does not change how the job ended.
        Some(job) if job.head.status.is_final() && found.cause == MissingRowCause::Unknown => {
            tracing::warn!(run = %spec.run, job = %spec.job, "a run of unknown origin does not count");
            is_counted = true;
        }
        Some(mut job) => {
            job.apply(JobTransition::Adopt);
            recount_figures(tx, &mut job)?;
            tx.update_job(&job)?;
        }
    }
    let native_id = run_start::recorded_session(&spec.session).filter(|_| !is_counted);
    if let Some(native_id) = native_id
        && tx.session_by_agent_id(&native_id)?.is_none()
    {
        let session = session_from_spec(tx, found)?;
        tx.put_session(&session)?;
    }
    let last = tx.runs_of_job(&spec.job)?.last().map_or(0, |run| run.attempt);
    tx.insert_run(&RunRecord {
        id: spec.run,
        job_id: spec.job.clone(),
        attempt: i64::from(spec.attempt).max(last + 1),
        host,
        epoch: tx.epoch()?,
        status: result.as_ref().map_or("adopted".to_owned(), |result| result.end.to_string()),
        created_at: found.at(),
        started_at: None,
        finished_at: result.as_ref().map(|result| result.finished_at),
        committed: is_counted,
        version: 1,
        result_key: found.result_key(),
    })?;
    match result {
        Some(result) if is_counted && found.cause == MissingRowCause::Restored => {
            tx.set_run_result(spec.run, result)
        }
        _ => Ok(()),
    }
}

impl UnrecordedRun {
    fn at(&self) -> Timestamp {
        self.started_at.unwrap_or(self.now)
    }

    /// Returns the key with which the run's result must be signed. The key of its runner is lost. With
    /// a key that fits no signature, the daemon settles the run without its result.
    fn result_key(&self) -> Option<ResultPublicKey> {
        match self.cause {
            MissingRowCause::Restored => None,
            // The key of the spec is lost too.
            MissingRowCause::Unknown => {
                Some(run_start::random_result_key().public_key().without_spec())
            }
        }
    }

    /// Returns true if the job's record already includes this run: the record came from the job's
    /// view, and the job did not end before this run.
    fn is_counted_in(&self, job: &Job) -> bool {
        let ended = self.result.as_ref().map(|result| result.finished_at).or(self.started_at);
        let is_later = |ended: Timestamp| {
            // Views have times in milliseconds, so a finer comparison would be wrong.
            job.head.finished_at.is_some_and(|at| at.as_millisecond() < ended.as_millisecond())
        };
        job.head.status.is_final() && !self.is_alive && !ended.is_some_and(is_later)
    }
}

/// Sets a job's totals to those of its committed runs: a view may include a run that is still to be
/// committed.
fn recount_figures(tx: &StoreTransaction<'_>, job: &mut Job) -> Result<(), DatabaseError> {
    job.head.cost_usd = None;
    job.head.duration_ms = None;
    job.usage = UsageTotals::default();
    for run in tx.runs_of_job(&job.head.id)?.iter().filter(|run| run.committed) {
        if let Some(result) = tx.run_result(run.id)? {
            commit::add_figures(job, &result);
        }
    }
    Ok(())
}

fn job_from_spec(found: &UnrecordedRun) -> Job {
    let UnrecordedRun { spec, .. } = found;
    let at = found.at();
    let mut job = Job::new_pending(spec.job.clone(), spec.agent.as_str(), spec.trigger.clone(), at);
    job.apply(JobTransition::Start { session: run_start::recorded_session(&spec.session), at });
    job.working_directory = Some(spec.working_directory.clone());
    job
}

fn session_from_spec(
    tx: &mut StoreTransaction<'_>,
    found: &UnrecordedRun,
) -> Result<Session, DatabaseError> {
    let (spec, at) = (&found.spec, found.at());
    let id = spec.session.start.id();
    let source = run_start::fork_source(tx, &spec.session.start)?;
    Ok(Session {
        agent_session_id: Some(id.clone()),
        status: SessionStatus::Active,
        working_directory: Some(spec.working_directory.clone()),
        runtime: spec.runtime.to_string(),
        forked_at_message: source.as_ref().map(|source| source.message_count),
        parent: source.map(|source| source.id),
        log_path: Some(StateDir::session_log_relative(&spec.working_directory, id)),
        origin: Some(ADOPTED_ORIGIN.to_owned()),
        ..Session::new(tx.new_session_id()?, spec.agent.as_str(), at)
    })
}
