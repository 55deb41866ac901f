//! Runs that another host executes: the leader records them, and the host claims and starts them.
//!
//! No secret is in the record. The host resolves the request from its own config and environment, and
//! makes the keys of the run. Start at [`assign_run`] and [`AssignedRun::read`].

use heeler_model::placement::{HostCandidate, RunPlacement};
use heeler_model::run::{ResultPublicKey, RunLimits, SessionPlan};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{AgentSessionId, JobRequest, RunId, Session};
use heeler_store::{
    ASSIGNED_RUN, DatabaseError, HostRecord, RunRecord, StateDatabase, StateDir, StoreTransaction,
};
use serde::{Deserialize, Serialize};

use crate::access::AccessSecret;
use crate::resolved_request::ResolvedJobRequest;
use crate::run_start::{self, RunStartError, StartedRun};

/// The session and the limits that the leader chose for a run of another host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RunAssignment {
    session: SessionPlan,
    /// Limits of the run, with the budget that is reserved for it.
    limits: RunLimits,
    /// Reason for the choice of the host, for a run that was assigned to one. `heeler jobs why` shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    placement: Option<String>,
}

/// Records a run for its host. Until the host claims it, no signature fits its key.
pub(crate) fn assign_run(
    tx: &mut StoreTransaction<'_>,
    placed: &RunPlacement,
    row: RunRecord,
    (session, limits): (&SessionPlan, &RunLimits),
) -> Result<(), DatabaseError> {
    let assignment = RunAssignment {
        session: session.clone(),
        limits: limits.clone(),
        placement: Some(placed.reason.clone()),
    };
    let body = serde_json::to_string(&assignment).expect("an assignment is JSON");
    let run = row.id;
    tx.insert_run(&RunRecord {
        host: placed.host.clone(),
        status: ASSIGNED_RUN.to_owned(),
        result_key: Some(unfit_key()),
        ..row
    })?;
    tx.set_run_assignment(run, &body)
}

/// Records the lease of a run of this host: another leader gives it up by that.
pub(crate) fn record_lease(
    tx: &mut StoreTransaction<'_>,
    run: RunId,
    (session, limits): (&SessionPlan, &RunLimits),
) -> Result<(), DatabaseError> {
    let assignment =
        RunAssignment { session: session.clone(), limits: limits.clone(), placement: None };
    let body = serde_json::to_string(&assignment).expect("an assignment is JSON");
    tx.set_run_assignment(run, &body)
}

/// Returns a key that fits no signature.
fn unfit_key() -> ResultPublicKey {
    run_start::random_result_key().public_key().without_spec()
}

/// A run that the leader gave to this host.
pub(crate) struct AssignedRun {
    pub(crate) record: RunRecord,
    pub(crate) term: i64,
    /// The request, as it is on record.
    pub(crate) wanted: JobRequest,
    assignment: RunAssignment,
}

impl AssignedRun {
    /// Reads a run that waits for its host. Returns `None` if it does not.
    pub(crate) fn read(
        db: &StateDatabase,
        record: RunRecord,
    ) -> Result<Option<Result<AssignedRun, String>>, DatabaseError> {
        if record.status != ASSIGNED_RUN || record.committed {
            return Ok(None);
        }
        let Some((term, body)) = db.run_assignment(record.id)? else { return Ok(None) };
        let Some(queued) = db.queued_job(&record.job_id)? else {
            return Ok(Some(Err("the request of its job is not on record".to_owned())));
        };
        let read = || -> serde_json::Result<AssignedRun> {
            let assignment = serde_json::from_str(&body)?;
            let wanted = serde_json::from_str(&queued.request_json)?;
            Ok(AssignedRun { record, term, wanted, assignment })
        };
        Ok(Some(read().map_err(|error| format!("its assignment cannot be read: {error}"))))
    }

    /// Returns the start of the run on this host, with new keys.
    pub(crate) fn start(
        &self,
        db: &StateDatabase,
        dir: &StateDir,
        request: &ResolvedJobRequest,
    ) -> Result<StartedRun, RunStartError> {
        let mut session = self.assignment.session.clone();
        // Each host has the transcript in its own state directory.
        session.log = run_start::session_log(db, dir, request, session.start.id())?;
        let granted_hosts = run_start::granted_hosts(db, request, &session.start)?;
        let (job, run) = (&self.record.job_id, self.record.id);
        let attempt = self.record.attempt;
        let mut spec = run_start::build_run_spec(dir, request, job, run, attempt, session);
        spec.limits = self.assignment.limits.clone();
        spec.keep_agent = None;
        Ok(StartedRun {
            job: job.clone(),
            run,
            spec,
            result_key: run_start::new_result_key(),
            secret: AccessSecret::new()?,
            granted_hosts,
            kept_rules: run_start::kept_rules(db, request)?,
        })
    }
}

/// Returns a host on record as the placement sees it. `own` is the host that leads.
pub(crate) fn host_candidate(host: &HostRecord, own: Option<&str>) -> HostCandidate {
    HostCandidate {
        name: host.name.clone(),
        is_alive: host.is_alive,
        is_drained: host.drained_by.is_some(),
        // Only the leader decides.
        is_leader: own == Some(host.name.as_str()),
        labels: host.labels.clone(),
        runs: u32::try_from(host.runs).unwrap_or(u32::MAX),
        max_concurrent: host.max_concurrent,
    }
}

/// Returns the name of the host on which a request will be executed, in a fleet with several hosts.
fn place(dir: &StateDir, request: &ResolvedJobRequest) -> Option<String> {
    let own = dir.host().map(|host| host.name.to_string());
    request.host.as_ref().map(|placed| placed.host.clone()).or(own)
}

/// Returns the host of a session, if it is not the one on which the request will be executed.
fn other_host_of(
    db: &StateDatabase,
    dir: &StateDir,
    request: &ResolvedJobRequest,
    session: &AgentSessionId,
) -> Result<Option<(String, String)>, DatabaseError> {
    let Some(place) = place(dir, request) else { return Ok(None) };
    let hosts = db.session_host(session)?.map(|host| (host, place));
    // A run from before the fleet had several hosts has the name of its machine.
    let names = db.hosts()?;
    Ok(hosts.filter(|(host, place)| host != place && names.iter().any(|it| it.name == *host)))
}

/// Returns the session that the agent's rules would continue, if its files are on the right host.
pub(crate) fn usable_session(
    db: &StateDatabase,
    dir: &StateDir,
    request: &ResolvedJobRequest,
) -> Result<Option<Session>, DatabaseError> {
    let known = run_start::default_session(db, request)?;
    let Some(id) = known.as_ref().and_then(|session| session.agent_session_id.as_ref()) else {
        return Ok(known);
    };
    let is_elsewhere = other_host_of(db, dir, request, id)?.is_some();
    Ok(known.filter(|_| !is_elsewhere))
}

/// Refuses a session that the caller named, if its files are on another host than the agent works on.
pub(crate) fn check_session_host(
    db: &StateDatabase,
    dir: &StateDir,
    request: &ResolvedJobRequest,
) -> Result<(), RunStartError> {
    let (SessionChoice::Given { id } | SessionChoice::Fork { source: id, .. }) = &request.session
    else {
        return Ok(());
    };
    match other_host_of(db, dir, request, id)? {
        None => Ok(()),
        Some((host, place)) => {
            let (session, agent) = (id.clone(), request.agent.to_string());
            Err(RunStartError::SessionElsewhere { session, host, agent, place })
        }
    }
}
