//! Hosts that get no runs any more: drained ones, and those that do not return.
//!
//! Start at [`DispatchTransaction::drain_host`] and [`DispatchTransaction::give_up_host`].

use heeler_model::run::RunError;
use heeler_store::HostRecord;

use super::transaction::DispatchTransaction;
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind, HostDrain};
use crate::dispatch_failure::DispatchFailure;
use crate::dispatch_input::RunExit;
use crate::recovery;

impl DispatchTransaction<'_, '_> {
    fn find_host(&self, name: &str) -> Result<HostRecord, DispatchFailure> {
        let host = self.tx.hosts()?.into_iter().find(|host| host.name == name);
        host.ok_or_else(|| {
            let text = format!("there is no host `{name}`");
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotFound, text);
            refused.with_hint("heeler host list").into()
        })
    }

    /// Lets a host get no new runs, or get them again. Its runs continue.
    pub(super) fn drain_host(
        &mut self,
        name: &str,
        change: HostDrain,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let host = self.find_host(name)?;
        let message = match change {
            HostDrain::Undo => {
                self.tx.set_host_drained(name, None)?;
                format!("host `{name}` gets new runs again")
            }
            HostDrain::Begin => {
                // The first person stays on record.
                self.tx.set_host_drained(name, Some(host.drained_by.as_deref().unwrap_or(by)))?;
                let runs = host.runs;
                match runs {
                    0 => format!("host `{name}` gets no new runs, and has none"),
                    1 => format!("host `{name}` gets no new runs; 1 run continues"),
                    _ => format!("host `{name}` gets no new runs; {runs} runs continue"),
                }
            }
        };
        tracing::info!(host = name, by, message, "a host was drained or released");
        Ok(Some(CommandReply::Done { message }))
    }

    /// Ends all runs of a host that gives no sign of life. If the host returns, it ends what is left of
    /// them, and their results are not recorded.
    pub(super) fn give_up_host(
        &mut self,
        name: &str,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        if self.find_host(name)?.is_alive {
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
