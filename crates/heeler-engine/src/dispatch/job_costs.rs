//! Costs that a person knows: they replace the reservation of a run whose agent reported none.
//!
//! Start at [`DispatchTransaction::set_job_cost`].

use heeler_model::fleet::{FleetEvent, micros};
use heeler_model::{JobId, JobStatus, format_micros};

use super::commands::job_not_found;
use super::transaction::DispatchTransaction;
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::commit::MODEL_UNKNOWN;
use crate::dispatch_failure::DispatchFailure;

impl DispatchTransaction<'_, '_> {
    /// Sets the cost of a job whose last run counts with its reservation. It may be set again.
    pub(super) fn set_job_cost(
        &mut self,
        id: &JobId,
        cost: i64,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let Some(mut job) = self.tx.job(id)? else { return Err(job_not_found(id).into()) };
        let refuse = |kind: DaemonCommandErrorKind, text: String| {
            Err(DispatchFailure::from(DaemonCommandError::new(kind, text)))
        };
        if !job.head.status.is_final() {
            let text = format!("job {id} has not ended: {}", job.head.status);
            return refuse(DaemonCommandErrorKind::Busy, text);
        }
        let last = self.tx.runs_of_job(id)?.pop();
        let last = last.filter(|run| run.committed && job.head.status != JobStatus::Pending);
        let Some(run) = last else {
            return refuse(DaemonCommandErrorKind::NotAllowed, format!("job {id} has no run"));
        };
        let (Some(result), Some(counted)) =
            (self.tx.run_result(run.id)?, self.tx.run_spend(run.id)?)
        else {
            let text = format!("nothing counts for job {id}: no run of it began");
            return refuse(DaemonCommandErrorKind::NotAllowed, text);
        };
        if result.settled.is_none() && result.cost.usd.is_some() {
            let text = format!("the agent of job {id} reported its cost, which counts");
            return refuse(DaemonCommandErrorKind::NotAllowed, text);
        }
        let before = self.tx.spent_by_job(id)?;
        let earlier = before.saturating_sub(counted.micros);
        // The agent reported this much before its run was cut off.
        let least = earlier.saturating_add(result.cost.usd.map_or(0, micros));
        if cost < least {
            let text = format!(
                "the agents of job {id} reported {} already, so it cannot cost {}",
                format_micros(least),
                format_micros(cost)
            );
            return refuse(DaemonCommandErrorKind::NotAllowed, text);
        }
        let (agent, day, change) = (&counted.agent, counted.day, cost - before);
        self.tx.spend(day, agent, MODEL_UNKNOWN, change)?;
        self.tx.set_run_spent(run.id, cost - earlier, agent, day)?;
        job.head.cost_usd = Some(cost as f64 / 1e6);
        self.tx.update_job(&job)?;
        self.step(FleetEvent::CostCorrected { agent, day, micros: change })?;
        let message = format!(
            "job {id} counts with {}; before, {}",
            format_micros(cost),
            format_micros(before)
        );
        tracing::info!(job = %id, by, message, "a person set a cost");
        Ok(Some(CommandReply::Done { message }))
    }
}
