//! The end of a run: its cost, and the decision whether its job ends or waits for another run.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::change::{FleetChange, FleetStep};
use super::event::{RunEndFacts, RunEndSource};
use super::queue::{JobStage, UnfinishedJob};
use super::records::ParkedCredentialRecord;
use super::settlement::BudgetSettlement;
use super::state::{FleetState, later};
use super::workflow_runs::PartJobEnd;
use crate::rerun::{
    RerunDecision, RerunKind, decide_given_up, decide_rerun, is_disk_full, limit_used_up_until,
};
use crate::run::{RunEnd, RunResult};
use crate::session_choice::SessionChoice;
use crate::{JobId, JobRequest, JobStatus, iso_millis};

/// Prompt for an agent that was interrupted.
const INTERRUPTED_PROMPT: &str = "You were interrupted: the process that ran you ended before you had \
    finished. Look at what is done already, then go on with your task.";

/// Prompt for an agent that was stopped by a usage limit.
const LIMIT_RESET_PROMPT: &str = "You were stopped by a usage limit, which is reset now. Look at what is \
    done already, then go on with your task.";

/// Reason of a parked credential after a run that did not fail.
const USED_UP_REASON: &str = "the usage limit is used up";

/// Period after a limit's reset over which parked jobs start. A job that waited less starts within
/// that shorter time.
const AFTER_RESET_SPREAD: Duration = Duration::from_secs(120);

impl FleetState {
    pub(super) fn end_run(&mut self, facts: RunEndFacts<'_>, now: Timestamp, step: &mut FleetStep) {
        let live = self.remove_run(facts.run);
        let reservation = live.as_ref().and_then(|live| live.reservation);
        let settlement = BudgetSettlement::of_result(facts.result, reservation, &self.rules.zone);
        // The cost replaces the reservation; both at once would count the money twice.
        if let Some(released) = settlement.released {
            self.ledger.release(facts.agent, released);
        }
        self.ledger.spend(facts.agent, settlement.day, settlement.spent);
        let decision = match facts.is_cancelled {
            // A person does not expect a cancelled job to return.
            true => RerunDecision::Finish,
            false => {
                let policy =
                    self.rules.rerun_policy(facts.agent, facts.schedule, facts.is_workflow_part);
                match facts.source {
                    RunEndSource::Result => decide_rerun(facts.result, facts.history, &policy, now),
                    RunEndSource::HostSilence => decide_given_up(facts.history, &policy, now),
                }
            }
        };
        let spent = settlement.spent;
        // The end of the run is stored before its consequences, which refer to it.
        step.changes.push(FleetChange::EndRun { run: facts.run, decision, settlement });
        let waits_for_reset =
            matches!(decision, RerunDecision::Rerun { kind: RerunKind::ResumeAfterReset, .. });
        // The next run of any agent with this credential would fail, also after a success.
        if let Some(until) = limit_used_up_until(facts.result, now).filter(|_| !waits_for_reset) {
            self.park_credential(&facts, until, now, step);
        }
        match decision {
            RerunDecision::Finish => {
                self.jobs.remove(facts.job);
                step.changes.push(FleetChange::RemoveQueueEntry(facts.job.clone()));
                self.finish_part(&facts, spent, step);
            }
            RerunDecision::Rerun { at, kind } => {
                // The figures go to the part, because any later event may end its job.
                self.note_part_run(&facts, spent);
                self.queue_rerun(&facts, at, kind, now, step);
            }
        }
    }

    /// Continues the workflow run of a job that has ended.
    fn finish_part(&mut self, facts: &RunEndFacts<'_>, spent: i64, step: &mut FleetStep) {
        if !facts.is_workflow_part {
            return;
        }
        let (result, status) = (facts.result, facts.result.job_status());
        if self.open_part_mut(facts.job).is_none() {
            if status == JobStatus::Completed {
                // The workflow run has ended, so nobody judges this output; the journal says so.
                step.changes.push(FleetChange::RecordUnjudgedPart { job: facts.job.clone() });
            }
            return;
        }
        let end = PartJobEnd {
            status,
            reason: result.exit_reason,
            is_interrupted: result.is_job_interrupted(),
            output: result.output.clone(),
            error: result.error.as_ref().map(|error| error.message.clone()),
            class: result.error.as_ref().map(|error| error.class),
            spent,
        };
        self.end_part(facts.job, end, step);
    }

    /// Adds a run to the figures of a part that runs again.
    fn note_part_run(&mut self, facts: &RunEndFacts<'_>, spent: i64) {
        let Some(part) = self.open_part_mut(facts.job) else { return };
        part.spent = part.spent.saturating_add(spent);
        // A run without output must not hide what an earlier run reported.
        if let Some(output) = &facts.result.output {
            part.output = Some(output.clone());
        }
        part.error = facts.result.error.as_ref().map(|error| error.message.clone());
    }

    /// Returns a job to the queue for another run.
    fn queue_rerun(
        &mut self,
        facts: &RunEndFacts<'_>,
        at: Timestamp,
        kind: RerunKind,
        now: Timestamp,
        step: &mut FleetStep,
    ) {
        // A request that cannot be read is not loaded, but its run is, and ends here.
        let Some(mut job) = self.jobs.remove(facts.job) else {
            let why = "it cannot continue: its request is not stored".to_owned();
            self.fail_job(facts.job, why, step);
            return;
        };
        // Only a session that can be resumed justifies a prompt that refers to earlier work.
        let session = facts.result.session.as_ref().filter(|session| session.resumable);
        let prompt = match kind {
            RerunKind::StartAgain | RerunKind::StartElsewhere | RerunKind::Retry { .. } => None,
            RerunKind::Resume => Some(INTERRUPTED_PROMPT),
            RerunKind::ResumeAfterReset => Some(LIMIT_RESET_PROMPT),
        };
        if let (Some(prompt), Some(session)) = (prompt, session) {
            job.request.prompt = Some(prompt.to_owned());
            job.request.session = SessionChoice::Given { id: session.id.clone() };
            // The original prompt may hold secrets; these fixed prompts do not.
            job.entry.request_json = serde_json::to_string(&job.request).expect("it is JSON");
        }
        if kind == RerunKind::StartElsewhere {
            leave_session(&mut job);
        }
        // The usage limit of many jobs resets at the same moment; they must not all start then.
        let mut not_before = at;
        if kind == RerunKind::ResumeAfterReset {
            not_before = later(at, reset_jitter(facts.job, at.duration_since(now)));
            // The whole credential is parked, as the limit is the account's and not the agent's.
            self.park_credential(facts, at, now, step);
        }
        job.stage = JobStage::Waiting;
        job.entry.reason = rerun_reason(facts.result, at, kind);
        job.entry.not_before = Some(not_before);
        // The time for which the job is put off does not count as waiting.
        job.entry.expires_at = Some(later(not_before, self.rules.queue_wait_max));
        step.changes.push(FleetChange::PutQueueEntry(job.entry.clone()));
        self.jobs.insert(job);
    }

    /// Parks the credential of an agent until its usage limit resets.
    fn park_credential(
        &mut self,
        facts: &RunEndFacts<'_>,
        until: Timestamp,
        now: Timestamp,
        step: &mut FleetStep,
    ) {
        let agent = self.rules.agents.get(facts.agent);
        let Some(credential) = agent.and_then(|agent| agent.credential.clone()) else { return };
        let error = facts.result.error.as_ref();
        let known = self.parked.get(&credential);
        let record = ParkedCredentialRecord {
            // A second message may name an earlier time; the later one is the safe one.
            until: known.map_or(until, |known| known.until.max(until)),
            // An expired record is about an earlier limit, so its beginning does not count.
            since: known.filter(|known| known.until > now).map_or(now, |known| known.since),
            credential: credential.clone(),
            reason: error.map_or(USED_UP_REASON, |error| error.message.as_str()).to_owned(),
            job: facts.job.clone(),
        };
        self.parked.insert(credential, record.clone());
        step.changes.push(FleetChange::ParkCredential(record));
    }
}

/// Lets a job begin a new session, if the caller named none: it would wait for the host of the session before.
fn leave_session(job: &mut UnfinishedJob) {
    if job.request.session != SessionChoice::Usual {
        return;
    }
    // The request on record has no secrets, so only its session is changed. One that cannot be read keeps waiting.
    let recorded = serde_json::from_str::<JobRequest>(&job.entry.request_json);
    let Ok(mut recorded) = recorded else { return };
    recorded.session = SessionChoice::Fresh;
    job.request.session = SessionChoice::Fresh;
    job.entry.request_json = serde_json::to_string(&recorded).expect("it is JSON");
}

fn rerun_reason(result: &RunResult, at: Timestamp, kind: RerunKind) -> String {
    match (kind, result.end) {
        (RerunKind::StartAgain, RunEnd::SessionBusy) => "another run uses its session".to_owned(),
        (RerunKind::StartAgain, _) if is_disk_full(result) => {
            "there is no space for its files; it starts when there is".to_owned()
        }
        (RerunKind::StartAgain, _) => "its run did not start; it will be retried".to_owned(),
        (RerunKind::StartElsewhere, _) => {
            "its host is away for longer than its lease; it starts again on another".to_owned()
        }
        (RerunKind::Resume, _) => "it was interrupted and will be resumed".to_owned(),
        (RerunKind::ResumeAfterReset, _) => format!("a usage limit, until {}", iso_millis(at)),
        (RerunKind::Retry { attempt, max_attempts }, _) => {
            let error = result.error.as_ref().map_or("", |error| error.message.as_str());
            format!("failed: {error}; will be retried ({attempt} of {max_attempts})")
        }
    }
}

/// Returns the delay of a job after a limit's reset. It differs between jobs and is at most the
/// time that the job waits for the reset.
fn reset_jitter(job: &JobId, wait: SignedDuration) -> Duration {
    // A hash instead of a random number: the step must be repeatable.
    let mut hasher = DefaultHasher::new();
    job.as_str().hash(&mut hasher);
    // The wait may be negative if the reset has passed; it is then no wait.
    let most = Duration::try_from(wait).unwrap_or_default().min(AFTER_RESET_SPREAD);
    let most = most.as_millis() as u64;
    Duration::from_millis(hasher.finish() % (most + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::QueuedJobRecord;

    fn job(session: SessionChoice) -> UnfinishedJob {
        let mut request = JobRequest::new("coder".parse().unwrap());
        request.session = session;
        // On record secrets are replaced.
        request.prompt = Some("use [secret]".to_owned());
        let entry = QueuedJobRecord {
            job: "job-2026-11-18-zzzzzz".parse().unwrap(),
            priority: 0,
            requested_at: Timestamp::UNIX_EPOCH,
            not_before: None,
            expires_at: None,
            request_json: serde_json::to_string(&request).unwrap(),
            reason: String::new(),
        };
        request.prompt = Some("use hunter2".to_owned());
        UnfinishedJob { entry, request, stage: JobStage::Waiting }
    }

    #[test]
    fn a_job_that_starts_elsewhere_leaves_the_session_that_nobody_named() {
        let mut usual = job(SessionChoice::Usual);
        leave_session(&mut usual);
        let recorded: JobRequest = serde_json::from_str(&usual.entry.request_json).unwrap();
        assert_eq!(usual.request.session, SessionChoice::Fresh);
        assert_eq!(recorded.session, SessionChoice::Fresh);
        assert_eq!(recorded.prompt.as_deref(), Some("use [secret]"), "no secret gets on record");
        assert_eq!(usual.request.prompt.as_deref(), Some("use hunter2"));
        let given = SessionChoice::Given { id: "3f".parse().unwrap() };
        let mut named = job(given.clone());
        leave_session(&mut named);
        assert_eq!(named.request.session, given, "it waits for the host of its session");
    }
}
