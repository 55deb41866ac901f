//! Hosts that do not return: ends their runs, so that the fleet continues without them.
//!
//! Start at [`DispatchTransaction::give_up_host`].

use heeler_model::run::RunError;
use heeler_store::DatabaseError;

use super::transaction::DispatchTransaction;
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::dispatch_failure::DispatchFailure;
use crate::dispatch_input::RunExit;
use crate::recovery;
use crate::resolved_request::ResolvedJobRequest;

impl DispatchTransaction<'_, '_> {
    /// Returns the reason for which a job's host cannot start it now.
    pub(super) fn host_absence(
        &self,
        request: &ResolvedJobRequest,
    ) -> Result<Option<String>, DatabaseError> {
        let Some(host) = &request.host else { return Ok(None) };
        let (agent, found) = (&request.agent, self.tx.hosts()?);
        let found = found.into_iter().find(|known| known.name == host.as_str());
        Ok(match found {
            None => Some(format!(
                "{agent} works on host `{host}`, which is not on record: heeler start --host {host}"
            )),
            Some(host) if !host.is_alive => {
                Some(format!("{agent} works on host `{}`, which is away", host.name))
            }
            Some(_) => None,
        })
    }

    /// Ends all runs of a host that gives no sign of life. If the host returns, it ends what is left of
    /// them, and their results are not recorded.
    pub(super) fn give_up_host(
        &mut self,
        name: &str,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let host = self.tx.hosts()?.into_iter().find(|host| host.name == name);
        let Some(host) = host else {
            let text = format!("there is no host `{name}`");
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotFound, text);
            return Err(refused.with_hint("heeler host list").into());
        };
        if host.is_alive {
            let text = format!("host `{name}` is alive, and its runs continue");
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, text);
            return Err(refused.with_hint("cancel its jobs, or stop its daemon first").into());
        }
        let open = self.tx.uncommitted_runs()?;
        let mut ended = 0;
        for run in open.iter().filter(|run| run.host == name) {
            let reason = format!("its host `{name}` was given up by {by}");
            let mut result = recovery::lost_result(run, self.now, &reason);
            let cure = format!("trigger it again; its transcript is on `{name}`");
            result.error = result.error.map(|error| RunError { cure, ..error });
            let exit = RunExit { result, metadata: None, closed_questions: Vec::new() };
            self.record_run_exit(exit)?;
            // In the same commit: what the host still sends about it is refused.
            self.tx.raise_run_term(run.id)?;
            ended += 1;
        }
        let message = match ended {
            0 => format!("host `{name}` had no runs"),
            1 => format!("1 run of host `{name}` was ended"),
            count => format!("{count} runs of host `{name}` were ended"),
        };
        tracing::warn!(host = name, by, message, "a host was given up");
        Ok(Some(CommandReply::Done { message }))
    }
}
