//! Starts the runners of recorded runs, and watches them. Start at
//! [`ExecutorContext::launch_recorded_run`].

use std::sync::Arc;

use heeler_model::error_chain;
use heeler_model::run::{ErrorClass, QuestionPolicy, RunnerInput};

use super::lead_wait::await_lead;
use super::{ExecutorContext, FailedLaunch, SETTLE_RETRY_DELAY, collect_run_exit};
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};
use crate::resolved_request::ResolvedJobRequest;
use crate::run_start::{self, LaunchedRunner, StartedRun};

impl ExecutorContext {
    /// Starts the runner of a run that this daemon recorded, if it still leads.
    pub(super) fn launch_recorded_run(
        self: &Arc<Self>,
        begun: StartedRun,
        request: &ResolvedJobRequest,
    ) {
        let run = begun.run;
        fault::reach(FaultPoint::BeforeLaunch);
        // Another host may lead by now. This one reports then that the run was not started.
        if !await_lead(&self.fleet.lead) {
            tracing::warn!(%run, "a runner was not started: this host may have lost the lead");
            let retry_after = SETTLE_RETRY_DELAY;
            return self.send_input(DispatchInput::RunUnsettled { run, why: None, retry_after });
        }
        self.launch_claimed_run(begun, request);
    }

    /// Starts the runner of a run that is this host's, and watches it.
    pub(super) fn launch_claimed_run(
        self: &Arc<Self>,
        begun: StartedRun,
        request: &ResolvedJobRequest,
    ) {
        let run = begun.run;
        let is_attended = request.attendance != QuestionPolicy::Nobody;
        let session = begun.spec.session.start.id();
        self.take_over_job_files(&begun);
        if begun.spec.limits.lease_ms.is_some() {
            // The runner reads it before it starts the agent.
            self.fleet.host_lease.require(&self.fleet.dir);
        }
        let hand_over = |input: &RunnerInput| {
            let Some(first) = self.watcher().first_run_of_kept(session) else { return false };
            self.fleet.hook_grants.record_hand_over(run, first);
            self.watcher().hand_over(run, session, input)
        };
        match run_start::launch_run(&self.fleet, request, &begun, hand_over) {
            Ok(launched) => {
                fault::reach(FaultPoint::RunnerStarted);
                let watched = match launched {
                    LaunchedRunner::New(child, link) => {
                        self.watcher().add(run, child, link.map(|link| (session.clone(), link)))
                    }
                    LaunchedRunner::Kept => Ok(()),
                };
                if let Err(error) = watched {
                    tracing::error!(%run, %error, "cannot watch a runner");
                    // Collecting finds the live runner and tries to watch it again later.
                    collect_run_exit(self, run);
                }
                if is_attended {
                    self.watch_questions(run);
                }
            }
            Err(error) => {
                tracing::warn!(%run, reason = error_chain(&error), "a runner was not started");
                let class = match error.is_disk_full() {
                    true => ErrorClass::Disk,
                    false => ErrorClass::NotStarted,
                };
                let failed = FailedLaunch { why: error_chain(&error), class };
                // The runner may have started and ended, so its folder is still looked at.
                self.report_run_exit(run, Some(&failed));
            }
        }
    }
}
