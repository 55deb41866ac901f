//! The decision about a prepared run: start it, let its job wait, or refuse it.

use jiff::Timestamp;

use super::change::{FleetChange, FleetEffect, FleetStep, JobDecision};
use super::event::{JobStart, SessionReadiness};
use super::queue::{JobStage, UnfinishedJob, concurrency_key};
use super::records::{QueuedJobRecord, ReservationRecord};
use super::state::{FleetState, UnfinishedRun, later};
use super::wait_reason::{FleetRefusal, WaitReason};
use crate::budget_ledger::{BudgetDecision, RESERVATION_MIN};
use crate::rerun::{HOST_WAIT, SESSION_WAIT};
use crate::{JobId, JobRequest};

impl FleetState {
    pub(super) fn start_or_queue(
        &mut self,
        start: JobStart,
        now: Timestamp,
        step: &mut FleetStep,
    ) -> JobDecision {
        let is_new = start.new.is_some();
        let known = self.jobs.get(&start.job);
        if !is_new && known.is_none_or(|job| job.stage != JobStage::Preparing) {
            // The job was cancelled in the meantime.
            return JobDecision::Ignored;
        }
        // From here on it waits again, whichever way the decision goes, until a run is recorded.
        self.jobs.set_stage(&start.job, JobStage::Waiting);
        let known = self.jobs.get(&start.job).map(|job| &job.request);
        let Some(request) = start.new.as_ref().map(|new| &new.request).or(known).cloned() else {
            return JobDecision::Ignored;
        };
        let refused = match self.rules.job_limits(&request) {
            // The config may have been reloaded while the run was prepared.
            None => Some(FleetRefusal::AgentGone(request.agent.to_string())),
            Some(_) if is_new => self.admission_refusal(&request),
            // A queued job was admitted before; a budget that is spent since then only lets it
            // wait.
            Some(_) => None,
        };
        if let Some(refused) = refused {
            return self.refuse_or_fail(&start, refused, step);
        }
        let budget = start.budget.map(|budget| (budget, budget - start.spent));
        // A rest below the smallest reservation cannot pay for a reply; a smaller budget is a
        // choice.
        if let Some((budget, left)) = budget
            && left < RESERVATION_MIN.min(budget)
        {
            let why = format!("its runs have spent its budget of {}", crate::format_micros(budget));
            self.fail_job(&start.job, why, step);
            return JobDecision::Ended;
        }
        let left = budget.map(|(_, left)| left);
        let blocked = self.blocking_reason(&request, now);
        let (reason, not_before) = match (blocked, &start.session) {
            (Some(reason), _) => (reason, None),
            (None, SessionReadiness::Busy(holder)) => {
                (WaitReason::SessionBusy(holder.clone()), Some(later(now, SESSION_WAIT)))
            }
            (None, SessionReadiness::HostAway(why)) => {
                (WaitReason::HostAway(why.clone()), Some(later(now, HOST_WAIT)))
            }
            (None, SessionReadiness::Unusable(why)) => {
                let refused = FleetRefusal::SessionUnusable(why.clone());
                return self.refuse_or_fail(&start, refused, step);
            }
            (None, SessionReadiness::Free) => match self.reserve(&start, &request, left, now) {
                Ok(reservation) => {
                    return self.start_run(start, request, left, reservation, now, step);
                }
                Err(reason) => (reason, None),
            },
        };
        match self.wait(start, request, reason.clone(), not_before, now, step) {
            Some(refused) => JobDecision::Refused(refused),
            None => JobDecision::Waiting(reason),
        }
    }

    /// Ends a queued job that cannot run; a new job is only refused.
    fn refuse_or_fail(
        &mut self,
        start: &JobStart,
        refused: FleetRefusal,
        step: &mut FleetStep,
    ) -> JobDecision {
        if start.new.is_some() {
            // The caller gets the refusal as its reply, so no record of the job is needed.
            return JobDecision::Refused(refused);
        }
        self.fail_job(&start.job, refused.to_string(), step);
        JobDecision::Ended
    }

    /// Returns the reservation that the run needs, if any.
    fn reserve(
        &self,
        start: &JobStart,
        request: &JobRequest,
        left: Option<i64>,
        now: Timestamp,
    ) -> Result<Option<ReservationRecord>, WaitReason> {
        let agent = request.agent.to_string();
        let uses_model = self.rules.job_limits(request).is_some_and(|limits| limits.uses_model);
        // A command has no cost that could replace a reservation.
        if !uses_model {
            return Ok(None);
        }
        match self.ledger.check_budget(&agent, left) {
            BudgetDecision::Unlimited => Ok(None),
            // The day is fixed here, so that a run across midnight is paid by the day that granted
            // it.
            BudgetDecision::Reserve(micros) => {
                let day = self.rules.day_of(now);
                Ok(Some(ReservationRecord { run: start.run, agent, day, micros }))
            }
            decision => Err(WaitReason::Budget { agent, decision }),
        }
    }

    fn start_run(
        &mut self,
        start: JobStart,
        request: JobRequest,
        left: Option<i64>,
        reservation: Option<ReservationRecord>,
        now: Timestamp,
        step: &mut FleetStep,
    ) -> JobDecision {
        let JobStart { job, run, new, uses_persistent_session, .. } = start;
        let reserved = reservation.as_ref().map(|it| it.micros);
        // The run gets the smaller amount, so it exceeds neither its job's budget nor the
        // reservation.
        let budget = match (left, reserved) {
            (Some(left), Some(reserved)) => Some(left.min(reserved)),
            (left, reserved) => left.or(reserved),
        };
        if let Some(new) = new {
            let entry = self.queue_entry(&job, &new, String::new(), None, now);
            let created = Box::new(new.request.clone());
            step.changes.push(FleetChange::CreateJob { job: job.clone(), request: created });
            // The request is stored until the job ends, because the job may run again.
            step.changes.push(FleetChange::PutQueueEntry(entry.clone()));
            let stage = JobStage::Running;
            self.jobs.insert(UnfinishedJob { entry, request: new.request, stage });
        } else {
            self.jobs.set_stage(&job, JobStage::Running);
        }
        // The ledger must count it before the next decision of the same transaction.
        if let Some(reservation) = &reservation {
            self.ledger.reserve(&reservation.agent, reservation.micros);
        }
        let live = UnfinishedRun {
            job: job.clone(),
            agent: request.agent.to_string(),
            concurrency_key: concurrency_key(&request),
            schedule: request.schedule,
            uses_persistent_session,
            budget_micros: budget,
            reservation: reservation.as_ref().map(|it| (it.day, it.micros)),
            since: now,
        };
        self.add_run(run, live);
        // The error of the last run would otherwise be reported as that of this run.
        if let Some(part) = self.open_part_mut(&job) {
            part.error = None;
        }
        // The run is on record before its runner starts, so no crash leaves a runner without a
        // record.
        step.changes.push(FleetChange::StartRun { job, run, reservation });
        step.effects.push(FleetEffect::LaunchRun(run));
        JobDecision::Started { budget }
    }

    /// Queues a job; returns the refusal of a new job that may not wait.
    fn wait(
        &mut self,
        start: JobStart,
        request: JobRequest,
        reason: WaitReason,
        not_before: Option<Timestamp>,
        now: Timestamp,
        step: &mut FleetStep,
    ) -> Option<FleetRefusal> {
        // A queued job keeps its place and its expiry; only the reason and the time may change.
        let Some(new) = start.new else {
            self.requeue(&start.job, &reason, not_before, step);
            return None;
        };
        if let Some(refused) = self.wait_refusal(&request, &reason) {
            return Some(refused);
        }
        let entry = self.queue_entry(&start.job, &new, reason.to_string(), not_before, now);
        let created = Box::new(request.clone());
        step.changes.push(FleetChange::CreateJob { job: start.job, request: created });
        step.changes.push(FleetChange::PutQueueEntry(entry.clone()));
        self.jobs.insert(UnfinishedJob { entry, request, stage: JobStage::Waiting });
        None
    }

    fn requeue(
        &mut self,
        job: &JobId,
        reason: &WaitReason,
        not_before: Option<Timestamp>,
        step: &mut FleetStep,
    ) {
        let Some(job) = self.jobs.get(job) else { return };
        let reason = reason.to_string();
        // An attempt that changes nothing writes nothing: blocked jobs are tried again often.
        if job.entry.reason != reason || job.entry.not_before != not_before {
            let entry = QueuedJobRecord { reason, not_before, ..job.entry.clone() };
            self.jobs.replace_entry(entry.clone());
            step.changes.push(FleetChange::PutQueueEntry(entry));
        }
    }

    /// Refuses a wait that would never end, and a wait in a full queue.
    fn wait_refusal(&self, request: &JobRequest, reason: &WaitReason) -> Option<FleetRefusal> {
        // The parent may hold the reservation and wait for this job: a deadlock.
        if let Some(parent) = &request.parent
            && let Some(limits) = self.rules.job_limits(request)
            && self.check_budget(request.agent.as_str(), limits) == BudgetDecision::AllReserved
        {
            let requester = self.runs.values().find(|live| live.job == *parent);
            return Some(FleetRefusal::WaitsForRequester {
                reason: reason.clone(),
                parent: parent.clone(),
                requester: requester.map(|live| live.agent.clone()),
            });
        }
        // Only new jobs are refused. A queue that shrinks by a reload keeps the jobs that it has.
        let limit = self.rules.queue_max;
        (self.jobs.waiting_len() >= limit)
            .then(|| FleetRefusal::QueueFull { reason: reason.clone(), limit })
    }
}
