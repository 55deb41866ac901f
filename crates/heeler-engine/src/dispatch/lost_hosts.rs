//! Hosts that get no runs any more: drained ones, and those that do not return.
//!
//! Start at [`DispatchTransaction::drain_host`], [`DispatchTransaction::give_up_host`] and
//! [`DispatchTransaction::give_up_runs`].

use heeler_model::RunId;
use heeler_model::fleet::RunEndSource;
use heeler_model::run::RunError;
use heeler_store::{DatabaseError, HostRecord, RunRecord};

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
            self.give_up_run(run, &reason, RunEndSource::Result)?;
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

    /// Gives up runs whose hosts were silent for longer than the lease of the run: their runners have ended the
    /// agents. A run that has ended since is left alone.
    pub(super) fn give_up_runs(&mut self, runs: &[RunId]) -> Result<(), DatabaseError> {
        for id in runs {
            let Some(run) = self.tx.run(*id)?.filter(|run| !run.committed) else { continue };
            let host = run.host.as_str();
            let reason = format!(
                "its host `{host}` gave no sign of life for longer than its lease (`on_partition: stop`)"
            );
            self.give_up_run(&run, &reason, RunEndSource::HostSilence)?;
            tracing::warn!(run = %id, job = %run.job_id, host, "a run of a silent host was given up");
        }
        Ok(())
    }

    fn give_up_run(
        &mut self,
        run: &RunRecord,
        reason: &str,
        source: RunEndSource,
    ) -> Result<(), DatabaseError> {
        let mut result = recovery::lost_result(run, self.now, reason);
        let cure = format!("trigger it again; its transcript is on `{}`", run.host);
        result.error = result.error.map(|error| RunError { cure, ..error });
        let exit = RunExit { result, metadata: None, closed_questions: Vec::new() };
        self.record_run_end(exit, source)?;
        // In the same commit: what the host still sends about it is refused.
        self.tx.raise_run_term(run.id)
    }
}
