//! Chooses the host of a run, from the hosts on record in the same transaction.
//!
//! Start at [`DispatchTransaction::place_request`].

use heeler_config::HostChoice;
use heeler_model::placement::{HostCandidate, RunPlacement, SessionPlace, place_run};
use heeler_model::session_choice::{SessionChoice, expiry_rule};
use heeler_model::{AgentSessionId, SessionMode};
use heeler_store::DatabaseError;

use super::transaction::DispatchTransaction;
use crate::resolved_request::ResolvedJobRequest;
use crate::run_assignment::host_candidate;
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
        let hosts: Vec<HostCandidate> =
            hosts.iter().map(|host| host_candidate(host, own)).collect();
        // A person may have removed this host from the list while it was paused.
        if request.host_choice.is_none() && !hosts.iter().any(|host| host.is_leader) {
            return Ok(None);
        }
        if let Some((host, why)) = self.moving_session(request)? {
            // The session is planned for the host that has it.
            request.host = Some(RunPlacement { host, reason: why.clone() });
            return Ok(Some(why));
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
        let Some((id, is_required)) = self.used_session(request)? else { return Ok(None) };
        let host = self.tx.session_host(&id)?;
        // A run from before the fleet had several hosts has the name of its machine.
        let host = host.filter(|host| hosts.iter().any(|known| known.name == *host));
        Ok(host.map(|host| SessionPlace { host, is_required }))
    }

    /// Returns the session that the run would continue, and true if its caller named it.
    fn used_session(
        &self,
        request: &ResolvedJobRequest,
    ) -> Result<Option<(AgentSessionId, bool)>, DatabaseError> {
        match &request.session {
            SessionChoice::Fresh => Ok(None),
            SessionChoice::Given { id } | SessionChoice::Fork { source: id, .. } => {
                Ok(Some((id.clone(), true)))
            }
            SessionChoice::Usual if request.rules.mode == SessionMode::FreshPerJob => Ok(None),
            SessionChoice::Usual => {
                let known = run_start::default_session(self.tx, request)?;
                let is_used = |session: &heeler_model::Session| {
                    expiry_rule(session, &request.rules, self.now).is_none()
                };
                let id = known.filter(is_used).and_then(|session| session.agent_session_id);
                Ok(id.map(|id| (id, false)))
            }
        }
    }

    /// Returns the host of the session that the run would continue, and the reason to wait, if it is being
    /// moved to another host.
    fn moving_session(
        &self,
        request: &ResolvedJobRequest,
    ) -> Result<Option<(String, String)>, DatabaseError> {
        let Some((id, _)) = self.used_session(request)? else { return Ok(None) };
        let moved = self.tx.native_session_move(&id)?.filter(|moved| moved.state.is_open());
        Ok(moved.map(|moved| {
            let why = format!(
                "its session {} is being moved from host `{}` to `{}`",
                moved.session, moved.source, moved.target
            );
            (moved.source, why)
        }))
    }
}
