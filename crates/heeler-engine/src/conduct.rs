//! One job from its request to its record, by a process that does nothing else.
//!
//! It outlives whoever asked: closing the terminal or killing the command loses nothing. If it is
//! killed itself, the runner goes on and the next recovery commits what it did.

use std::time::{Duration, Instant};

use heeler_model::redact::Redactor;
use heeler_model::run::{End, RunResult};
use heeler_model::{JobId, JobStatus, RunId};
use heeler_store::{Reader, Run, Store};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::commit::{self, CommitError, Committed};
use crate::fleet::{Fleet, OpenError};
use crate::recover::{self, Compare, RecoverError, UnsettledError};
use crate::request::JobRequest;
use crate::start::{self, Begun, StartError};

/// How long a start waits for other writers.
const START_WAIT: Duration = Duration::from_secs(30);

/// How long a result waits for other writers; after that the next recovery commits it.
const COMMIT_WAIT: Duration = Duration::from_secs(600);

/// How long another process may take to settle a run whose runner is gone.
const OUTCOME_WAIT: Duration = Duration::from_secs(60);

/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How often a run is started that never came to its start.
const STARTS_MAX: u32 = 2;

/// What a conductor tells whoever asked for the job, one line each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "notice")]
pub enum Notice {
    /// The job is on record, and its run is being started.
    Started {
        /// The job.
        job: JobId,
        /// The run.
        run: RunId,
    },
    /// The job was not started.
    Refused {
        /// What kind of refusal it is.
        kind: Refusal,
        /// Why, with causes.
        reason: String,
    },
    /// What came of the job is on record.
    Ended {
        /// The job.
        job: JobId,
        /// How far the run came.
        end: End,
    },
}

/// Why a job was not started, as far as whoever asked can act on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Refusal {
    /// Another process writes the state, for now.
    StateBusy,
    /// As many jobs run as may.
    AtLimit {
        /// Those that run.
        running: Vec<JobId>,
    },
    /// Another run is at the conversation.
    SessionBusy {
        /// Its job, when that is known. It may be one of another fleet.
        job: Option<JobId>,
    },
    /// The session that it names is nowhere.
    NoSession,
    /// The session that it names is another agent's.
    OthersSession,
    /// Something is wrong with the state or the disk.
    Trouble,
}

/// Why a job could not be brought to its end.
#[derive(Debug, Error)]
pub enum ConductError {
    /// The state is not to be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Earlier runs stand in the way.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// It was not started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It has ended, and how cannot be found out yet.
    #[error("cannot find out how run {run} ended; the next command tries again")]
    Unsettled {
        /// The run.
        run: RunId,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Its result was not recorded.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

impl ConductError {
    /// Says what kind of refusal it is, if the job was not started.
    pub fn refusal(&self) -> Refusal {
        match self {
            ConductError::Open(OpenError::Busy { .. }) => Refusal::StateBusy,
            ConductError::Start(StartError::AtLimit { running, .. }) => {
                Refusal::AtLimit { running: running.clone() }
            }
            ConductError::Start(StartError::SessionBusy { job, .. }) => {
                Refusal::SessionBusy { job: job.clone() }
            }
            ConductError::Start(StartError::NoSession { .. }) => Refusal::NoSession,
            ConductError::Start(StartError::OthersSession { .. }) => Refusal::OthersSession,
            _ => Refusal::Trouble,
        }
    }
}

/// Starts a job, waits for its run, and commits what came of it.
pub fn conduct(
    fleet: &Fleet,
    request: &JobRequest,
    tell: &mut dyn FnMut(&Notice),
) -> Result<Committed, ConductError> {
    let mut store = fleet.writer("conduct", START_WAIT)?;
    recover::recover(fleet, &store, Compare::WhenDue)?;
    let mut job: Option<JobId> = None;
    let mut starts = 0;
    loop {
        starts += 1;
        let (committed, kept) = run_once(fleet, request, store, job.as_ref(), tell)?;
        let is_over =
            committed.end != End::NeverStarted || committed.status == JobStatus::Cancelled;
        if is_over || starts >= STARTS_MAX {
            if let Err(error) = kept.backup_daily((fleet.now)()) {
                tracing::warn!(%error, "today's backup was not taken");
            }
            // Whoever hears it may want to write.
            drop(kept);
            tell(&Notice::Ended { job: committed.job.clone(), end: committed.end });
            return Ok(committed);
        }
        job = Some(committed.job);
        // Kept from one record to the next: whoever cancels sees a job that has ended or one that
        // runs, never one that ended and then runs.
        store = kept;
    }
}

fn run_once(
    fleet: &Fleet,
    request: &JobRequest,
    store: Store,
    again: Option<&JobId>,
    tell: &mut dyn FnMut(&Notice),
) -> Result<(Committed, Store), ConductError> {
    let redactor = Redactor::new(&request.brief.secrets);
    let begun = start::begin(fleet, &store, request, again)?;
    tell(&Notice::Started { job: begun.job.clone(), run: begun.run });
    let mut child = match start::launch(fleet, request, &begun) {
        Ok(child) => child,
        Err(error) => {
            let committed = not_started(fleet, &store, &begun, &error, &redactor)?;
            return Ok((committed, store));
        }
    };
    publish(fleet, &store);
    drop(store);

    // It is our own child; however it ends, its folder says what it did.
    if let Err(error) = child.wait() {
        tracing::warn!(%error, run = %begun.run, "cannot wait for the runner");
    }
    let result = outcome(fleet, &begun)?;
    let store = fleet.writer("conduct", COMMIT_WAIT)?;
    let committed = commit::commit(&store, result, &redactor)?;
    publish(fleet, &store);
    Ok((committed, store))
}

/// Records that a run which is on record could not be started.
fn not_started(
    fleet: &Fleet,
    store: &Store,
    begun: &Begun,
    error: &StartError,
    redactor: &Redactor,
) -> Result<Committed, ConductError> {
    let run = run_row(fleet, begun)?;
    let message = heeler_model::chain(error);
    // A runner may have come far enough to leave a result of its own.
    let result = match outcome(fleet, begun) {
        Ok(result) if result.end != End::NeverStarted => result,
        _ => recover::never_started(&run, (fleet.now)(), &message),
    };
    let committed = commit::commit(store, result, redactor)?;
    publish(fleet, store);
    Ok(committed)
}

fn outcome(fleet: &Fleet, begun: &Begun) -> Result<RunResult, ConductError> {
    let unsettled = |source: Box<dyn std::error::Error + Send + Sync>| ConductError::Unsettled {
        run: begun.run,
        source,
    };
    let run = run_row(fleet, begun)?;
    let deadline = Instant::now() + OUTCOME_WAIT;
    loop {
        match recover::outcome_of(fleet, &run) {
            Ok(Some(result)) => return Ok(result),
            // The child is gone, and yet its lock is held: another process is settling it.
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            Ok(None) => return Err(unsettled("another process is at it".into())),
            Err(error) => return Err(unsettled(Box::<UnsettledError>::new(error))),
        }
    }
}

fn run_row(fleet: &Fleet, begun: &Begun) -> Result<Run, ConductError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| ConductError::Unsettled {
        run: begun.run,
        source,
    };
    let reader = Reader::open(&fleet.dir).map_err(|error| failed(Box::new(error)))?;
    let run = reader.run(begun.run).map_err(|error| failed(Box::new(error)))?;
    run.ok_or_else(|| failed("its record is gone".into()))
}

/// Writes the files that people and scripts read. What cannot be written now is due next time.
pub(crate) fn publish(fleet: &Fleet, store: &Store) {
    if let Err(error) = store.publish_views((fleet.now)()) {
        tracing::warn!(%error, "cannot publish the views that are due");
    }
}
