//! Starts runs that the leader gave to this host.
//!
//! The host prepares the run with its own config and environment, claims it by one conditional change of
//! its row, and starts the ordinary runner. If it dies before the claim, the next daemon begins again; if
//! it dies after it, the run has no spec and ends as not started. If the database loses the claim in a
//! fail-over, the run is ended and not started again. Start at [`ExecutorContext::start_if_assigned`].

use std::sync::Arc;

use heeler_model::run::{ErrorClass, ResultSigningKey, file};
use heeler_model::{RunId, error_chain};
use heeler_store::{HostLink, RunRecord, StoreReader, is_run_alive};

use super::preparation::resolve_request;
use super::{ExecutorContext, FailedLaunch, SETTLE_RETRY_DELAY};
use crate::cancel;
use crate::capability;
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};
use crate::resolved_request::ResolvedJobRequest;
use crate::run_assignment::AssignedRun;
use crate::run_start::StartedRun;

/// Reason for which a run is not started that this host has started before.
const CLAIM_LOST: &str = "its host had started it, and the database has lost that";

/// Requester of the cancellation of such a run.
const CLAIM_LOST_BY: &str = "the host, because the database has lost that it started the run";

impl ExecutorContext {
    /// Begins to start a run, if it waits for this host to do so.
    pub(super) fn start_if_assigned(self: &Arc<Self>, run: RunId) -> bool {
        if self.fleet.dir.host().is_none() {
            return false;
        }
        // Before its record is read: a run that is being started is claimed already, and has no spec yet.
        let Some(claim) = self.limits.assigned_runs.claim(run) else { return true };
        let found = self.read_assigned_run(run);
        let assigned = match found {
            Ok(None) => return false,
            Ok(Some(assigned)) => assigned,
            Err(why) => {
                self.retry_assigned_run(run, why);
                return true;
            }
        };
        let shared = Arc::clone(self);
        // A clone may be missing, which takes long.
        self.cloners.submit(move || {
            let _claim = claim;
            if let Err(why) = shared.start_assigned_run(run, assigned) {
                shared.retry_assigned_run(run, why);
            }
        });
        true
    }

    fn retry_assigned_run(&self, run: RunId, why: String) {
        let (why, retry_after) = (Some(why), SETTLE_RETRY_DELAY);
        self.send_input(DispatchInput::RunUnsettled { run, why, retry_after });
    }

    fn read_assigned_run(&self, run: RunId) -> Result<Option<Result<AssignedRun, String>>, String> {
        let reader = self.readers.reader().map_err(|error| error_chain(&error))?;
        let record = reader.run(run).map_err(|error| error_chain(&error))?;
        let Some(record) = record else { return Ok(None) };
        AssignedRun::read(&reader, record).map_err(|error| error_chain(&error))
    }

    /// Prepares, claims and starts a run. An error means that it was not claimed.
    fn start_assigned_run(
        self: &Arc<Self>,
        run: RunId,
        assigned: Result<AssignedRun, String>,
    ) -> Result<(), String> {
        let reader = StoreReader::open(&self.fleet.dir).map_err(|error| error_chain(&error))?;
        let requests = cancel::pending_requests(&reader).map_err(|error| error_chain(&error))?;
        let is_cancelled = requests.iter().any(|(cancelled, _)| *cancelled == run);
        let was_started = self.end_started_run(run)?;
        let prepared = match (assigned, is_cancelled) {
            (Err(why), _) => (0, Err(why)),
            (Ok(assigned), _) if was_started => (assigned.term, Err(CLAIM_LOST.to_owned())),
            (Ok(assigned), true) => {
                (assigned.term, Err("it was cancelled before its host started it".to_owned()))
            }
            (Ok(assigned), false) => (assigned.term, self.prepare_assigned_run(&reader, &assigned)),
        };
        drop(reader);
        fault::reach(FaultPoint::BeforeClaim);
        let (term, prepared) = prepared;
        let keys = prepared.as_ref().ok().map(|(begun, _)| begun);
        if !self.claim_run(run, term, keys)? {
            return self.check_refused_claim(run);
        }
        fault::reach(FaultPoint::RunClaimed);
        match prepared {
            Ok((begun, request)) => {
                tracing::info!(%run, job = %begun.job, "starts a run for the leader");
                self.launch_claimed_run(begun, &request);
            }
            Err(why) => {
                tracing::warn!(%run, why, "a run of the leader was not started");
                let failed = FailedLaunch { why, class: ErrorClass::NotStarted };
                self.report_run_exit(run, Some(&failed));
            }
        }
        Ok(())
    }

    /// Returns true if this host has started the run, although it is not on record as claimed. An error
    /// means that it still runs: it is being ended.
    fn end_started_run(self: &Arc<Self>, run: RunId) -> Result<bool, String> {
        let folder = self.fleet.dir.run(run);
        if is_run_alive(&folder) {
            self.cancel_run(run, true, CLAIM_LOST_BY.to_owned());
            return Err(CLAIM_LOST.to_owned());
        }
        // The spec follows the claim.
        Ok(folder.join(file::SPEC).exists())
    }

    fn prepare_assigned_run(
        &self,
        reader: &StoreReader,
        assigned: &AssignedRun,
    ) -> Result<(StartedRun, Box<ResolvedJobRequest>), String> {
        let setup = self.setup();
        let mut request = resolve_request(&self.fleet, &self.readers, &setup, &assigned.wanted)
            .map_err(|refused| refused.message)?;
        // Before the claim: until then the leader may give the run up.
        request.brief.authority.lease = self.fleet.host_lease.source(&self.fleet.dir);
        if !request.github_token.is_empty() {
            let what = "a token for GitHub is only created on the host that leads";
            return Err(format!("{what}; remove `host` of {}", request.agent));
        }
        let begun = assigned.start(reader, &self.fleet.dir, &request);
        Ok((begun.map_err(|error| error_chain(&error))?, request))
    }

    /// Handles the refusal of a claim. An error means that the run is still this host's: the server may have executed
    /// an earlier claim after the end of its connection. Then the run has no runner, and ends as not started.
    fn check_refused_claim(&self, run: RunId) -> Result<(), String> {
        let reader = self.readers.reader().map_err(|error| error_chain(&error))?;
        let record = reader.run(run).map_err(|error| error_chain(&error))?;
        let is_own =
            |record: &RunRecord| !record.committed && !record.is_elsewhere(&self.fleet.dir);
        if record.as_ref().is_some_and(is_own) {
            return Err("an earlier claim of it was executed late".to_owned());
        }
        tracing::warn!(%run, "a run was taken from this host before it was started");
        Ok(())
    }

    /// Claims a run on record. Returns false if it does not wait for this host any more.
    fn claim_run(&self, run: RunId, term: i64, begun: Option<&StartedRun>) -> Result<bool, String> {
        let link = HostLink::connect(&self.fleet.dir).map_err(|error| error_chain(&error))?;
        let key = begun.and_then(|begun| begun.result_key.as_ref());
        let key = key.map(ResultSigningKey::public_key);
        let hash =
            begun.map_or_else(String::new, |begun| capability::capability_hash(run, &begun.secret));
        link.claim_run(run, term, key.as_ref(), &hash).map_err(|error| error_chain(&error))
    }
}
