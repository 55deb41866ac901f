//! One job from request to committed result without a daemon: the same steps in sequence.

use std::time::Duration;

use heeler_model::redact::SecretRedactor;
use heeler_model::run::RunEnd;
use heeler_model::{Job, JobId, JobStatus, RunId};
use heeler_store::{Store, StoreReader, StoreWriteError};

use crate::commit::{self, CommittedRun};
use crate::fleet::EngineContext;
use crate::recovery::{self, RunFolderCheck};
use crate::resolved_request::ResolvedJobRequest;
use crate::run_start::{self, RunStartError, StartedRun};

/// Poll interval while another process settles the run.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Maximum number of attempts to start a run.
const STARTS_MAX: u32 = 2;

/// Progress of a job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum JobNotice {
    /// The job is recorded, and its run is being started.
    Started { job: JobId, run: RunId },
    /// Its result is committed.
    Ended { end: RunEnd },
}

/// Decides on a run and commits it.
pub(crate) fn begin(
    fleet: &EngineContext,
    store: &Store,
    request: &ResolvedJobRequest,
    again: Option<&JobId>,
) -> Result<StartedRun, RunStartError> {
    let (now, dir) = ((fleet.now)(), fleet.dir.clone());
    let (asked, again) = (request.clone(), again.cloned());
    let begun = store.write(move |tx| {
        let job = match again {
            Some(job) => job,
            None => {
                let id = tx.new_job_id(now)?;
                let (agent, trigger) = (asked.agent.as_str(), asked.trigger.clone());
                tx.insert_job(&Job::new_pending(id.clone(), agent, trigger, now))?;
                id
            }
        };
        let plan = run_start::plan_run_start(tx, &dir, &asked, now)?;
        let run = run_start::new_run_id(now);
        Ok(run_start::record_run_start(tx, &dir, &asked, (&job, run), plan, now)?)
    });
    begun.map_err(|error| match error {
        StoreWriteError::Refused(refusal) => refusal,
        other => panic!("{other}"),
    })
}

/// Starts a job, waits for its run, and commits the result.
pub(crate) fn conduct(
    fleet: &EngineContext,
    request: &ResolvedJobRequest,
    tell: &mut dyn FnMut(&JobNotice),
) -> Result<CommittedRun, RunStartError> {
    let open = || fleet.open_writer("conduct", Duration::from_secs(30)).unwrap();
    let mut store = open();
    recovery::recover_runs(fleet, &store, RunFolderCheck::WhenDue).unwrap();
    let redactor = SecretRedactor::new(&request.brief.secrets);
    let (mut job, mut starts) = (None, 0);
    loop {
        starts += 1;
        let begun = begin(fleet, &store, request, job.as_ref())?;
        tell(&JobNotice::Started { job: begun.job.clone(), run: begun.run });
        let run = StoreReader::open(&fleet.dir).unwrap().run(begun.run).unwrap().unwrap();
        let failed = match run_start::launch_run(fleet, request, &begun, |_| false) {
            Ok(mut child) => {
                drop(store);
                child.wait().unwrap();
                store = open();
                None
            }
            Err(error) => Some(heeler_model::error_chain(&error)),
        };
        let result = loop {
            if let Some(why) = &failed {
                break recovery::unstarted_result(&run, (fleet.now)(), why);
            }
            match recovery::load_run_outcome(fleet, &run, None).unwrap() {
                Some(result) => break result,
                None => std::thread::sleep(LOOK_EVERY),
            }
        };
        let committed = commit::commit(&store, result, &redactor).unwrap();
        store.publish_views((fleet.now)()).unwrap();
        let is_over =
            committed.end != RunEnd::NeverStarted || committed.status == JobStatus::Cancelled;
        if is_over || starts >= STARTS_MAX {
            tell(&JobNotice::Ended { end: committed.end });
            return Ok(committed);
        }
        job = Some(committed.job);
    }
}
