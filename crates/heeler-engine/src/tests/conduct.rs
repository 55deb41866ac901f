//! One job from its request to its record without a daemon: the same steps, one after the other.

use std::time::Duration;

use heeler_model::redact::Redactor;
use heeler_model::run::End;
use heeler_model::{Job, JobId, JobStatus, RunId};
use heeler_store::{Reader, Store, WriteError};

use crate::commit::{self, Committed};
use crate::fleet::Fleet;
use crate::recover::{self, Compare};
use crate::request::JobRequest;
use crate::start::{self, Begun, StartError};

/// How often that is looked at which another process settles.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How often a run is started that never came to its start.
const STARTS_MAX: u32 = 2;

/// What happened to a job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Notice {
    /// It is on record, and its run is being started.
    Started { job: JobId, run: RunId },
    /// What came of it is on record.
    Ended { end: End },
}

/// Decides on a run and commits it.
pub(crate) fn begin(
    fleet: &Fleet,
    store: &Store,
    request: &JobRequest,
    again: Option<&JobId>,
) -> Result<Begun, StartError> {
    let (now, dir) = ((fleet.now)(), fleet.dir.clone());
    let (asked, again) = (request.clone(), again.cloned());
    let begun = store.write(move |tx| {
        let job = match again {
            Some(job) => job,
            None => {
                let id = tx.new_job_id(now)?;
                let (agent, trigger) = (asked.agent.as_str(), asked.trigger.clone());
                tx.insert_job(&Job::asked(id.clone(), agent, trigger, now))?;
                id
            }
        };
        start::begin_in(tx, &dir, &asked, &job, now)
    });
    begun.map_err(|error| match error {
        WriteError::Refused(refusal) => refusal,
        other => panic!("{other}"),
    })
}

/// Starts a job, waits for its run, and commits what came of it.
pub(crate) fn conduct(
    fleet: &Fleet,
    request: &JobRequest,
    tell: &mut dyn FnMut(&Notice),
) -> Result<Committed, StartError> {
    let open = || fleet.writer("conduct", Duration::from_secs(30)).unwrap();
    let mut store = open();
    recover::recover(fleet, &store, Compare::WhenDue).unwrap();
    let redactor = Redactor::new(&request.brief.secrets);
    let (mut job, mut starts) = (None, 0);
    loop {
        starts += 1;
        let begun = begin(fleet, &store, request, job.as_ref())?;
        tell(&Notice::Started { job: begun.job.clone(), run: begun.run });
        let run = Reader::open(&fleet.dir).unwrap().run(begun.run).unwrap().unwrap();
        let failed = match start::launch(fleet, request, &begun) {
            Ok(mut child) => {
                drop(store);
                child.wait().unwrap();
                store = open();
                None
            }
            Err(error) => Some(heeler_model::chain(&error)),
        };
        let result = loop {
            if let Some(why) = &failed {
                break recover::never_started(&run, (fleet.now)(), why);
            }
            match recover::outcome_of(fleet, &run).unwrap() {
                Some(result) => break result,
                None => std::thread::sleep(LOOK_EVERY),
            }
        };
        let committed = commit::commit(&store, result, &redactor).unwrap();
        store.publish_views((fleet.now)()).unwrap();
        let is_over =
            committed.end != End::NeverStarted || committed.status == JobStatus::Cancelled;
        if is_over || starts >= STARTS_MAX {
            tell(&Notice::Ended { end: committed.end });
            return Ok(committed);
        }
        job = Some(committed.job);
    }
}
