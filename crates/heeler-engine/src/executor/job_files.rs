//! Files of a job whose earlier run was on another host: the next run continues them. Start at
//! [`ExecutorContext::take_over_job_files`].

use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_model::error_chain;
use heeler_store::{HostLink, SharedFileOwner, StoreReader};

use super::ExecutorContext;
use crate::run_start::StartedRun;

/// Longest wait for the copies of an earlier run's files. They are on record before the next run starts.
const COPIES_WAIT: Duration = Duration::from_secs(30);

/// Interval at which the copies are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

impl ExecutorContext {
    /// Waits until this host has the files of the job's earlier runs, and continues them from there. Without that, other
    /// hosts do not get what the run adds to them.
    pub(super) fn take_over_job_files(&self, begun: &StartedRun) {
        // Nothing can be there before the first run.
        if self.fleet.dir.host().is_none() || begun.spec.attempt <= 1 {
            return;
        }
        if let Err(why) = self.try_take_over(begun) {
            let (run, job) = (begun.run, &begun.job);
            tracing::warn!(%run, %job, why, "other hosts may not get the rows of a run");
        }
    }

    fn try_take_over(&self, begun: &StartedRun) -> Result<(), String> {
        let (dir, run) = (&self.fleet.dir, begun.run);
        let reader = StoreReader::open(dir).map_err(|error| error_chain(&error))?;
        let runs = reader.runs_of_job(&begun.job).map_err(|error| error_chain(&error))?;
        if !runs.iter().any(|earlier| earlier.is_elsewhere(dir)) {
            return Ok(());
        }
        let term = reader.run_term(run).map_err(|error| error_chain(&error))?;
        let link = HostLink::connect(dir).map_err(|error| error_chain(&error))?;
        let job = &begun.job;
        let deadline = Instant::now() + COPIES_WAIT;
        for relative in [format!("jobs/{job}.jsonl"), format!("jobs/{job}/output.log")] {
            let path = dir.root().join(&relative);
            loop {
                let owner = link.file_owner(&relative).map_err(|error| error_chain(&error))?;
                let is_own = |owner: &SharedFileOwner| {
                    dir.host().is_some_and(|own| own.name.as_str() == owner.host)
                };
                if owner.as_ref().is_some_and(is_own) {
                    break;
                }
                let shared = owner.map_or(0, |owner| owner.length);
                let own = length_of(&path);
                let is_taken = own == shared
                    && link
                        .take_over_file((run, term), &relative, shared)
                        .map_err(|error| error_chain(&error))?;
                if is_taken {
                    break;
                }
                // The host of an earlier run may still ship it.
                if Instant::now() >= deadline {
                    return Err(format!("{relative} has {own} bytes here and {shared} on record"));
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
        Ok(())
    }
}

fn length_of(path: &Utf8Path) -> u64 {
    path.symlink_metadata().map_or(0, |found| found.len())
}
