//! Chooses the host of a run, from the hosts on record in the same transaction.
//!
//! Start at [`DispatchTransaction::place_request`].

use heeler_config::HostChoice;
use heeler_model::SessionMode;
use heeler_model::placement::{HostCandidate, RunPlacement, SessionPlace, place_run};
use heeler_model::session_choice::{SessionChoice, expiry_rule};
use heeler_store::{DatabaseError, HostRecord};

use super::transaction::DispatchTransaction;
use crate::resolved_request::ResolvedJobRequest;
use crate::run_start;

impl DispatchTransaction<'_, '_> {
    /// Places a run, and notes the host in an assigned request. Returns the reason if it waits.
    pub(super) fn place_request(
        &self,
        request: &mut ResolvedJobRequest,
    ) -> Result<Option<String>, DatabaseError> {
        let own = self.dir.host().map(|host| host.name.as_str());
        // A fleet with one machine has nothing to choose.
        if own.is_none() && request.host_choice.is_none() {
            return Ok(None);
        }
        let hosts = self.tx.hosts()?;
        let hosts: Vec<HostCandidate> = hosts.iter().map(|host| candidate(host, own)).collect();
        // A person may have removed this host from the list while it was paused.
        if request.host_choice.is_none() && !hosts.iter().any(|host| host.is_leader) {
            return Ok(None);
        }
        let session = self.session_place(request, &hosts)?;
        let choice = request.host_choice.as_ref();
        let placed = place_run(request.agent.as_str(), choice, session.as_ref(), &hosts);
        let (planned, absence) = match placed {
            Ok(placed) => (Some(placed), None),
            Err(why) => {
                // The session is planned for the host that the job waits for.
                let host = match choice {
                    Some(HostChoice::Named(host)) => Some(host.to_string()),
                    _ => session.map(|session| session.host),
                };
                (host.map(|host| RunPlacement { host, reason: why.clone() }), Some(why))
            }
        };
        request.host = planned.filter(|_| request.is_assigned);
        Ok(absence)
    }

    /// Returns the host that has the files of the session that the run would continue.
    fn session_place(
        &self,
        request: &ResolvedJobRequest,
        hosts: &[HostCandidate],
    ) -> Result<Option<SessionPlace>, DatabaseError> {
        if !request.is_assigned {
            return Ok(None);
        }
        let (id, is_required) = match &request.session {
            SessionChoice::Fresh => return Ok(None),
            SessionChoice::Given { id } | SessionChoice::Fork { source: id, .. } => {
                (Some(id.clone()), true)
            }
            SessionChoice::Usual if request.rules.mode == SessionMode::FreshPerJob => {
                return Ok(None);
            }
            SessionChoice::Usual => {
                let known = run_start::default_session(self.tx, request)?;
                let is_used = |session: &heeler_model::Session| {
                    expiry_rule(session, &request.rules, self.now).is_none()
                };
                (known.filter(is_used).and_then(|session| session.agent_session_id), false)
            }
        };
        let host = id.map(|id| self.tx.session_host(&id)).transpose()?.flatten();
        // A run from before the fleet had several hosts has the name of its machine.
        let host = host.filter(|host| hosts.iter().any(|known| known.name == *host));
        Ok(host.map(|host| SessionPlace { host, is_required }))
    }
}

fn candidate(host: &HostRecord, own: Option<&str>) -> HostCandidate {
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
