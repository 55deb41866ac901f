//! Classifies the end of a run and builds its result.
//!
//! Start at [`RunAttemptOutcomes`].

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use heeler_config::RuntimeType;
use heeler_egress::UsageLedger;
use heeler_model::outcome::{AgentProcessExit, RunOutcome, RunOutcomeBuilder};
use heeler_model::run::{
    ErrorClass, PROTOCOL, RunCost, RunEnd, RunError, RunResult, RuntimeLaunchSpec, SessionEnd,
};
use heeler_model::{NativeSessionPosition, error_chain};
use heeler_transcript::LockError;

use super::executor::RunExecutor;
use crate::egress::raise_cost;
use crate::event_loop::ActiveRun;
use crate::native_session;
use crate::session::{self, SessionLockError};

/// Outcomes of a run's attempts until now.
#[derive(Debug, Default)]
pub(super) struct RunAttemptOutcomes {
    last: Option<RunOutcome>,
    exit_code: Option<i32>,
    /// Cost of the attempts before the last one.
    earlier_cost: Option<RunCost>,
    /// Use of the API that the egress proxy has counted, in all attempts.
    counted_usage: Option<UsageLedger>,
}

impl RunAttemptOutcomes {
    /// Classifies one more attempt. The run's totals continue from the session's reported values.
    pub(super) fn record_attempt(&mut self, run: &mut ActiveRun, ending: AgentProcessExit) {
        // Each attempt reports its own cost, and the run pays for all of them.
        if let Some(last) = self.last.take() {
            self.earlier_cost = Some(add_costs(self.earlier_cost.take(), last.cost));
        }
        self.exit_code = match &ending {
            AgentProcessExit::Exited { code, .. } => *code,
            _ => None,
        };
        self.last = Some(run.tally.conclude(&ending));
        run.tally = run.tally.next_attempt();
    }

    /// Records that the purpose of the last attempt failed, although the agent does not report it.
    pub(super) fn record_failure(&mut self, class: ErrorClass, message: &str) {
        let reason = message.to_owned();
        let failed = RunOutcomeBuilder::new().conclude(&AgentProcessExit::NotStarted { reason });
        let error = Some(RunError::new(class, message));
        // The attempt was paid for, although it did not serve its purpose.
        let cost = self.last.take().map_or(failed.cost.clone(), |last| last.cost);
        self.last = Some(RunOutcome { error, cost, ..failed });
    }

    /// Returns the cost of all attempts until now.
    pub(super) fn cost(&self) -> Option<&RunCost> {
        self.last.as_ref().map(|last| &last.cost)
    }

    /// Sets the use of the API that was counted. The cost of the run is at least that.
    pub(super) fn set_counted_usage(&mut self, ledger: UsageLedger) {
        self.counted_usage = Some(ledger);
    }

    /// Returns the error class of the last attempt.
    pub(super) fn error_class(&self) -> Option<ErrorClass> {
        Some(self.last.as_ref()?.error.as_ref()?.class)
    }
}

/// Returns the exit of a process that the runner did not end.
pub(super) fn exit_ending(exit: Option<ExitStatus>, stderr: String) -> AgentProcessExit {
    AgentProcessExit::Exited {
        code: exit.and_then(|status| status.code()),
        signal: exit.and_then(|status| status.signal()),
        stderr,
    }
}

impl RunExecutor<'_> {
    /// Writes the last row, syncs the transcripts and returns the result.
    pub(super) fn finish(&self, run: &mut ActiveRun, outcomes: RunAttemptOutcomes) -> RunResult {
        let RunAttemptOutcomes { last, exit_code, earlier_cost: before, counted_usage } = outcomes;
        let ended = AgentProcessExit::Internal { reason: "the agent was never started".to_owned() };
        let mut conclusion = last.unwrap_or_else(|| RunOutcomeBuilder::new().conclude(&ended));
        conclusion.cost = add_costs(before, conclusion.cost);
        if let Some(ledger) = counted_usage {
            raise_cost(&mut conclusion.cost, &ledger.by_model());
        }
        if let Some(error) = &mut conclusion.error {
            if let Some(message) = self.spec.limits.explain_budget_report(&error.message) {
                error.message = message;
            }
            error.fit_cure(self.spec.runtime, self.agent_program());
        }
        if let Some(error) = &conclusion.error {
            let rows = run.recorder.record_failure(error, conclusion.exit_reason, (run.now)());
            run.journal.push(rows);
        }
        let ActiveRun { journal, control, .. } = run;
        // A full disk does not keep the run from ending, because the result has its space reserved.
        if let Err(reason) = journal.flush(&mut |at, row| control.publish_row(at, row)) {
            tracing::warn!(reason, "the last rows of the run could not be written");
            journal.discard_pending();
        }
        if let Err(reason) = journal.sync() {
            tracing::warn!(reason, "the transcripts of the run could not be synced");
        }
        self.result(run, conclusion, exit_code)
    }

    /// Returns the name that the run records for the agent's program.
    pub(super) fn agent_program(&self) -> &str {
        match &self.host.brief.work {
            RuntimeLaunchSpec::Acp(program)
            | RuntimeLaunchSpec::Codex(program)
            | RuntimeLaunchSpec::Qwen(program) => &program.agent,
            RuntimeLaunchSpec::Claude(_)
            | RuntimeLaunchSpec::Script { .. }
            | RuntimeLaunchSpec::Command { .. } => "",
        }
    }

    fn result(&self, run: &ActiveRun, conclusion: RunOutcome, exit_code: Option<i32>) -> RunResult {
        // An agent that was ended for want of contact is continued by the rules for interruptions.
        let end = match conclusion.error.as_ref().map(|error| error.class) {
            Some(ErrorClass::Interrupted) => RunEnd::Interrupted,
            _ => RunEnd::Finished,
        };
        let mut result = self.base_result(end, conclusion);
        result.redact(&run.redactor);
        result.exit_code = exit_code;
        result.transcript = Some(run.journal.job_segment());
        if self.spec.session.is_unrecorded {
            return result;
        }
        result.session = Some(SessionEnd {
            id: run.session.clone(),
            log: session::log_path(self.spec, &run.session),
            messages: run.recorder.messages(),
            tokens: run.recorder.tokens(),
            resumable: self.is_resumable(run, &result),
            own: self.native_mark(run),
        });
        result.session_transcript = Some(run.journal.session_segment());
        result
    }

    /// Returns true if the agent knows the session.
    fn is_resumable(&self, run: &ActiveRun, result: &RunResult) -> bool {
        let class = result.error.as_ref().map(|error| error.class);
        // The agent has just reported that it no longer has the session.
        let known = run.session_is_known && class != Some(ErrorClass::SessionExpired);
        // A command keeps no session.
        (known || run.has_spoken) && self.spec.runtime != RuntimeType::Command
    }

    fn native_mark(&self, run: &ActiveRun) -> Option<NativeSessionPosition> {
        let cwd = &self.spec.working_directory;
        native_session::mark_at_run_end(
            self.native_sessions_folder().as_deref(),
            cwd,
            &run.session,
            run.recorder.last(),
        )
    }

    pub(super) fn base_result(&self, end: RunEnd, conclusion: RunOutcome) -> RunResult {
        let RunOutcome {
            exit_reason,
            stop_reason,
            summary,
            error,
            cost,
            output,
            denied,
            usage_limit,
        } = conclusion;
        RunResult {
            protocol: PROTOCOL,
            run: self.spec.run,
            job: self.spec.job.clone(),
            end,
            exit_reason,
            stop_reason,
            summary,
            error,
            cost,
            session: None,
            started_at: self.started_at,
            // The clock may have been set back meanwhile.
            finished_at: (self.host.now)().max(self.started_at),
            exit_code: None,
            settled: None,
            output: output.filter(|_| self.spec.keep_output),
            transcript: None,
            session_transcript: None,
            denied,
            usage_limit,
        }
    }

    /// Returns the result of a run with an agent that cannot be started.
    pub(super) fn not_started_result(&self, reason: String) -> RunResult {
        let mut result = self.base_result(
            RunEnd::Finished,
            RunOutcomeBuilder::new().conclude(&AgentProcessExit::NotStarted { reason }),
        );
        result.redact(self.host.redactor());
        result
    }

    /// Returns the result of a run that could not lock its session.
    pub(super) fn not_locked_result(&self, error: &SessionLockError) -> RunResult {
        match error {
            SessionLockError::Lock(LockError::Held { holder, .. }) => {
                let holder =
                    holder.as_ref().map_or("another process".to_owned(), ToString::to_string);
                let message = format!("the session is held by {holder}");
                self.base_result(RunEnd::SessionBusy, session_busy_conclusion(message))
            }
            error => self.not_started_result(error_chain(error)),
        }
    }
}

fn session_busy_conclusion(message: String) -> RunOutcome {
    let error = Some(RunError::new(ErrorClass::SessionBusy, &message));
    RunOutcome {
        error,
        ..RunOutcomeBuilder::new().conclude(&AgentProcessExit::NotStarted { reason: message })
    }
}

fn add_costs(before: Option<RunCost>, last: RunCost) -> RunCost {
    match before {
        Some(before) => before.plus(&last),
        None => last,
    }
}
