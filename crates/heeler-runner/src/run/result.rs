//! What comes of a run: its judgement and its result.
//!
//! Start at [`Judged`].

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use heeler_model::config::RuntimeType;
use heeler_model::outcome::{Conclusion, Ending, Tally};
use heeler_model::run::{Cost, End, ErrorClass, PROTOCOL, RunError, RunResult, SessionEnd};
use heeler_model::{OwnMark, chain};
use heeler_transcript::LockError;

use super::Order;
use crate::own;
use crate::pump::Run;
use crate::session::{self, SessionLockError};

/// How the attempts of a run ended, so far.
#[derive(Debug, Default)]
pub(super) struct Judged {
    last: Option<Conclusion>,
    exit_code: Option<i32>,
    /// What the attempts before the last one cost.
    before: Option<Cost>,
}

impl Judged {
    /// Judges one more attempt. The run's tally goes on with what the session has told.
    pub(super) fn add(&mut self, run: &mut Run, ending: Ending) {
        if let Some(last) = self.last.take() {
            self.before = Some(sum(self.before.take(), last.cost));
        }
        self.exit_code = match &ending {
            Ending::Exited { code, .. } => *code,
            _ => None,
        };
        self.last = Some(run.tally.conclude(&ending));
        run.tally = run.tally.again();
    }

    /// Says that what the last attempt was for has failed, although the agent does not say so.
    pub(super) fn fail(&mut self, class: ErrorClass, message: &str) {
        let reason = message.to_owned();
        let failed = Tally::new().conclude(&Ending::NotStarted { reason });
        let error = Some(RunError::of(class, message));
        let cost = self.last.take().map_or(failed.cost.clone(), |last| last.cost);
        self.last = Some(Conclusion { error, cost, ..failed });
    }

    /// Returns what the attempts have cost so far.
    pub(super) fn cost(&self) -> Option<&Cost> {
        self.last.as_ref().map(|last| &last.cost)
    }

    /// Returns what went wrong in the last attempt.
    pub(super) fn class(&self) -> Option<ErrorClass> {
        Some(self.last.as_ref()?.error.as_ref()?.class)
    }
}

/// Returns how a process ended that nobody here ended.
pub(super) fn exited(exit: Option<ExitStatus>, stderr: String) -> Ending {
    Ending::Exited {
        code: exit.and_then(|status| status.code()),
        signal: exit.and_then(|status| status.signal()),
        stderr,
    }
}

impl Order<'_> {
    /// Writes the last row, syncs the logs and returns the result.
    pub(super) fn finish(&self, run: &mut Run, judged: Judged) -> RunResult {
        let Judged { last, exit_code, before } = judged;
        let ended = Ending::Internal { reason: "the agent was never started".to_owned() };
        let mut conclusion = last.unwrap_or_else(|| Tally::new().conclude(&ended));
        conclusion.cost = sum(before, conclusion.cost);
        if let Some(error) = &conclusion.error {
            let rows = run.recorder.failure(error, conclusion.exit_reason, (run.now)());
            run.journal.push(rows);
        }
        let Run { journal, control, .. } = run;
        if let Err(reason) = journal.flush(&mut |at, row| control.tell_row(at, row)) {
            tracing::warn!(reason, "the last rows of the run could not be written");
            journal.give_up();
        }
        if let Err(reason) = journal.sync() {
            tracing::warn!(reason, "the logs of the run could not be synced");
        }
        self.result(run, conclusion, exit_code)
    }

    fn result(&self, run: &Run, conclusion: Conclusion, exit_code: Option<i32>) -> RunResult {
        let mut result = self.bare(End::Finished, conclusion);
        result.redact(&run.redactor);
        result.session = Some(SessionEnd {
            id: run.session.clone(),
            log: session::log_path(self.spec, &run.session),
            messages: run.recorder.messages(),
            tokens: run.recorder.tokens(),
            resumable: self.is_resumable(run, &result),
            own: self.own_mark(run),
        });
        result.exit_code = exit_code;
        result
    }

    /// Says whether the agent knows the session.
    fn is_resumable(&self, run: &Run, result: &RunResult) -> bool {
        let class = result.error.as_ref().map(|error| error.class);
        let known = run.is_known && class != Some(ErrorClass::SessionExpired);
        (known || run.spoke) && self.spec.runtime != RuntimeType::Command
    }

    fn own_mark(&self, run: &Run) -> Option<OwnMark> {
        let cwd = &self.spec.working_directory;
        own::mark_of(self.own_sessions().as_deref(), cwd, &run.session, run.recorder.last())
    }

    pub(super) fn bare(&self, end: End, conclusion: Conclusion) -> RunResult {
        let Conclusion { exit_reason, stop_reason, summary, error, cost, output } = conclusion;
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
            finished_at: (self.host.now)(),
            exit_code: None,
            settled: None,
            output: output.filter(|_| self.spec.keep_output),
        }
    }

    /// Returns the result of a run whose agent cannot be started.
    pub(super) fn not_started(&self, reason: String) -> RunResult {
        let mut result =
            self.bare(End::Finished, Tally::new().conclude(&Ending::NotStarted { reason }));
        result.redact(self.host.redactor());
        result
    }

    /// Returns the result of a run whose session is not to be had.
    pub(super) fn not_locked(&self, error: &SessionLockError) -> RunResult {
        match error {
            SessionLockError::Lock(LockError::Held { holder, .. }) => {
                let holder =
                    holder.as_ref().map_or("another process".to_owned(), ToString::to_string);
                let message = format!("the session is held by {holder}");
                self.bare(End::SessionBusy, busy(message))
            }
            error => self.not_started(chain(error)),
        }
    }
}

fn busy(message: String) -> Conclusion {
    let error = Some(RunError::of(ErrorClass::SessionBusy, &message));
    Conclusion { error, ..Tally::new().conclude(&Ending::NotStarted { reason: message }) }
}

fn sum(before: Option<Cost>, last: Cost) -> Cost {
    match before {
        Some(before) => before.plus(&last),
        None => last,
    }
}
