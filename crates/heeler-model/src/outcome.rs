//! Outcome of a run, as a pure function of the agent's messages and its process exit.
//!
//! The `is_error` flag of a result decides about success, never its subtype. Without a result the
//! process died, whichever exit code it had. A request to end the run (a cancel, a limit) overrides
//! the agent's own report. Nothing here acts. Start at [`RunOutcomeBuilder`], which sees every
//! message.

mod command_output;
mod cure;
mod failure_report;
mod run_spending;

use heeler_config::RuntimeType;
use jiff::Timestamp;
use serde_json::Value as Json;

use crate::denied_tools::{DeniedCalls, DeniedTools};
use crate::message::{
    AgentMessage, ApiError, AssistantMessage, INTERRUPTED_TEXT, MessageBody, RateLimit, TurnResult,
    content_text,
};
use crate::run::{ErrorClass, RunCost, RunError, UsageLimitState};
use crate::workflow::truncate_output;
use crate::{ExitReason, SUMMARY_BYTES_MAX};
use command_output::CommandOutput;
use failure_report::FailureReport;
use run_spending::RunSpending;

/// Longest part of standard error that is quoted in an error message, in characters.
const STDERR_CHARS_MAX: usize = 500;

/// Advice for a command that failed and wrote to standard error.
const COMMAND_CURE: &str =
    "read stderr.log in the run's folder, and the job's log: `heeler jobs logs`";

/// End of an agent's process.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentProcessExit {
    /// It exited, or a signal that Heeler did not send ended it.
    Exited {
        code: Option<i32>,
        /// Signal that ended the process.
        signal: Option<i32>,
        /// Last part of its standard error.
        stderr: String,
    },
    /// Ended by Heeler because the run took too long.
    TimedOut {
        /// Time limit.
        after_ms: u64,
    },
    /// Ended by Heeler because the agent was silent for too long.
    Stalled {
        /// Time limit.
        after_ms: u64,
    },
    /// Ended by Heeler because the agent did not open its session in time.
    NotOpened {
        /// Time limit.
        after_ms: u64,
    },
    Cancelled {
        /// Caller that cancelled the run.
        by: String,
    },
    /// Ended by Heeler because the host lost contact with the fleet's database.
    LostContact {
        /// Time since the last contact.
        after_ms: u64,
    },
    /// The process could not be started.
    NotStarted { reason: String },
    /// The agent's container ended, or killed the agent, for a reason outside of the agent.
    ContainerEnded { reason: String },
    /// The rows could not be written.
    Disk { reason: String },
    /// Bug in Heeler.
    Internal { reason: String },
}

impl AgentProcessExit {
    /// Returns the reason why something other than the agent ended the run, if so.
    pub fn cause(&self) -> Option<(ErrorClass, String)> {
        let seconds = |ms: &u64| *ms as f64 / 1000.0;
        Some(match self {
            // Only the agent's own exit leaves the judgement to its messages.
            AgentProcessExit::Exited { .. } => return None,
            AgentProcessExit::TimedOut { after_ms } => {
                (ErrorClass::Timeout, format!("not done after {} s", seconds(after_ms)))
            }
            AgentProcessExit::Stalled { after_ms } => {
                (ErrorClass::Stalled, format!("the agent said nothing for {} s", seconds(after_ms)))
            }
            AgentProcessExit::NotOpened { after_ms } => (
                ErrorClass::Stalled,
                format!("the agent opened no session within {} s", seconds(after_ms)),
            ),
            AgentProcessExit::Cancelled { by } => {
                (ErrorClass::Cancelled, format!("cancelled by {by}"))
            }
            AgentProcessExit::LostContact { after_ms } => (
                ErrorClass::Interrupted,
                format!(
                    "its host had no contact with the database for {} s (`on_partition: stop`)",
                    seconds(after_ms)
                ),
            ),
            AgentProcessExit::NotStarted { reason } => (ErrorClass::NotStarted, reason.clone()),
            AgentProcessExit::ContainerEnded { reason } => (ErrorClass::AgentDied, reason.clone()),
            AgentProcessExit::Disk { reason } => (ErrorClass::Disk, reason.clone()),
            AgentProcessExit::Internal { reason } => (ErrorClass::Internal, reason.clone()),
        })
    }
}

/// Outcome of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOutcome {
    pub exit_reason: ExitReason,
    /// Model's own reason for stopping.
    pub stop_reason: Option<String>,
    /// Short summary of the result.
    pub summary: Option<String>,
    pub error: Option<RunError>,
    pub cost: RunCost,
    /// Final text of the agent, or everything a command printed; truncated.
    pub output: Option<String>,
    /// Tools that the agent was denied.
    pub denied: DeniedTools,
    /// Usage limit of the API, if the agent reported one.
    pub usage_limit: Option<UsageLimitState>,
}

/// Accumulates a run's messages until its outcome is determined.
#[derive(Debug, Clone, Default)]
pub struct RunOutcomeBuilder {
    by_exit_code: bool,
    received: u64,
    malformed_lines: u64,
    last_text: Option<String>,
    /// Last text, with a larger limit than `last_text`.
    last_output: Option<String>,
    /// Output of a command.
    command_output: CommandOutput,
    result: Option<TurnResult>,
    /// True if a turn began after the last result, so that result is not the end of the run.
    is_turn_open: bool,
    /// True if there was output after the last result, so the cost is incomplete.
    has_unbilled_output: bool,
    reported_end: bool,
    error: Option<AgentError>,
    /// The agent reported that it gave up.
    gave_up: bool,
    rate_limit: Option<RateLimit>,
    /// True if the API has answered since the last report of a limit, so that is not used up.
    has_answered_since_limit: bool,
    spending: RunSpending,
    denied: DeniedCalls,
}

/// Returns true if a system message with this subtype is an agent's report of its end.
pub fn is_end_report(subtype: &str) -> bool {
    matches!(subtype, "end" | "complete" | "session_end")
}

/// Error that the agent reported outside of a result.
#[derive(Debug, Clone, Default)]
struct AgentError {
    text: String,
    api: ApiError,
}

impl RunOutcomeBuilder {
    /// Creates a builder for a run that is judged by the result its agent reports.
    pub fn new() -> RunOutcomeBuilder {
        RunOutcomeBuilder::default()
    }

    /// Creates a builder for a runtime. A command reports no result and is judged by its exit code.
    pub fn for_runtime(runtime: RuntimeType) -> RunOutcomeBuilder {
        RunOutcomeBuilder {
            by_exit_code: runtime == RuntimeType::Command,
            ..RunOutcomeBuilder::default()
        }
    }

    /// Sets the session's cost before this run: the last `result` row of its transcript.
    ///
    /// Agents report totals of the whole session. Newer ones also report the increase. For older
    /// ones, and for the API time, the previous totals are subtracted.
    #[must_use]
    pub fn with_previous_result(mut self, last_result: &Json) -> RunOutcomeBuilder {
        self.spending = RunSpending::after_result(last_result);
        self
    }

    /// Creates a builder for the next attempt of the same run in the same session. Totals that this
    /// attempt reported are subtracted.
    #[must_use]
    pub fn next_attempt(&self) -> RunOutcomeBuilder {
        let spent = self.spending.next_attempt();
        RunOutcomeBuilder {
            by_exit_code: self.by_exit_code,
            spending: spent,
            // The job shows the denials of all its attempts.
            denied: self.denied.clone(),
            rate_limit: self.rate_limit.clone(),
            has_answered_since_limit: self.has_answered_since_limit,
            ..RunOutcomeBuilder::default()
        }
    }

    pub fn add_message(&mut self, message: &AgentMessage) {
        match &message.body {
            // They say nothing about the work, so they do not count as received.
            MessageBody::Ignored { .. }
            | MessageBody::Delta { .. }
            | MessageBody::BackgroundTasks { .. } => return,
            MessageBody::Malformed { .. } => {
                // Counted apart: an agent that prints only such lines is probably another program.
                self.malformed_lines += 1;
                return;
            }
            MessageBody::Assistant(said) => {
                self.add_assistant(said, message.parent_tool_use_id.is_none());
            }
            // Claude begins every turn with an init message, also a turn after a background task.
            MessageBody::Init(_) => self.is_turn_open = true,
            MessageBody::Result(result) => {
                self.spending.add_result(&message.fields);
                self.denied.add(&result.denied_calls);
                self.is_turn_open = false;
                self.has_unbilled_output = false;
                // The agent's last word was an error, and what follows does not undo it.
                if !self.gave_up {
                    // A result without an error means that the agent recovered from what it
                    // reported before.
                    self.error = self.error.take().filter(|_| result.is_error);
                    self.result = Some(TurnResult::clone(result));
                }
            }
            MessageBody::Error { message, code } => {
                let api = ApiError { code: code.clone(), ..ApiError::default() };
                // The first error is the cause of the others.
                if !self.gave_up {
                    self.error = Some(AgentError { text: message.clone(), api });
                }
                self.gave_up = true;
                // An error after a result means that the result was not the last word.
                self.result = None;
            }
            MessageBody::RateLimit(limit) => {
                self.rate_limit = Some(limit.clone());
                self.has_answered_since_limit = false;
            }
            MessageBody::System { subtype } => {
                // An agent that reports no result may report its end in one of these ways.
                self.reported_end |= is_end_report(subtype);
            }
            MessageBody::User(_)
            | MessageBody::Retry(_)
            | MessageBody::Task(_)
            | MessageBody::CommandLifecycle { .. }
            | MessageBody::Unknown { .. } => {}
        }
        self.received += 1;
    }

    fn add_assistant(&mut self, said: &AssistantMessage, is_main: bool) {
        // A sub-agent's message does not open a turn of the main agent.
        self.is_turn_open |= is_main;
        // Any output costs money that no result has counted yet.
        self.has_unbilled_output = true;
        let text = said.message.get("content").map(content_text).unwrap_or_default();
        if self.by_exit_code {
            self.command_output.push_line(&text);
        }
        self.has_answered_since_limit |= said.api_error.is_none();
        match &said.api_error {
            // An API error arrives as a message of the agent, and is not something that it said.
            Some(api) if !self.gave_up => {
                self.error = Some(AgentError { text, api: api.clone() });
            }
            Some(_) => {}
            None => {
                // The agent went on, so the earlier error was not its end.
                self.error = self.error.take().filter(|_| self.gave_up);
                // Only the main agent's words are the result; a sub-agent's are part of the work.
                if is_main && !text.trim().is_empty() {
                    self.last_text = Some(truncate_summary(&text));
                    // A command's output is everything it printed, which is kept elsewhere.
                    self.last_output = (!self.by_exit_code).then(|| truncate_output(&text));
                }
            }
        }
    }

    /// Returns the cost of this run until now, if the agent reported one.
    pub fn cost_usd(&self) -> Option<f64> {
        self.spending.usd()
    }

    /// Determines the outcome.
    pub fn conclude(&self, end: &AgentProcessExit) -> RunOutcome {
        let (exit_reason, error) = match self.judge(end) {
            Ok(()) => (ExitReason::Success, None),
            Err((reason, error)) => (reason, Some(error)),
        };
        let result = self.result.as_ref();
        // The text of a failed result is the error, not an output.
        let final_text = result.filter(|result| !result.is_error);
        let final_text = final_text.and_then(|result| result.text.as_deref());
        let final_text = final_text.filter(|text| !text.trim().is_empty());
        let output = match self.by_exit_code {
            true => (!self.command_output.is_empty()).then(|| self.command_output.text()),
            false => final_text.map(truncate_output).or_else(|| self.last_output.clone()),
        };
        let final_text = final_text.map(truncate_summary);
        let mut cost = self.spending.cost();
        // A cost that omits the last output would be too low; an unknown one uses the reservation.
        if self.has_unbilled_output {
            cost.usd = None;
        }
        // Nothing ran, so the cost is known: the reservation must not count.
        if matches!(end, AgentProcessExit::NotStarted { .. }) {
            cost.usd = Some(0.0);
        }
        RunOutcome {
            exit_reason,
            stop_reason: result.and_then(model_stop_reason),
            summary: final_text.or_else(|| self.last_text.clone()),
            error,
            cost,
            output,
            denied: self.denied.by_tool(),
            usage_limit: self.usage_limit(),
        }
    }

    fn usage_limit(&self) -> Option<UsageLimitState> {
        let limit = self.rate_limit.as_ref()?;
        Some(UsageLimitState {
            is_used_up: limit.is_used_up() && !self.has_answered_since_limit,
            resets_at: limit.resets_at.and_then(|second| Timestamp::from_second(second).ok()),
        })
    }

    fn judge(&self, end: &AgentProcessExit) -> Result<(), (ExitReason, RunError)> {
        // Only an exit is judged by messages. A cancel or a limit overrides what the agent
        // reported.
        if let AgentProcessExit::Exited { code, signal, stderr } = end {
            return self.judge_exit(*code, *signal, stderr);
        }
        let (class, reason) = end.cause().expect("only an exit has none");
        Err(self.failure(class, &reason))
    }

    fn judge_exit(
        &self,
        code: Option<i32>,
        signal: Option<i32>,
        stderr: &str,
    ) -> Result<(), (ExitReason, RunError)> {
        // A result before an open turn is about an earlier turn.
        match self.result.as_ref().filter(|_| !self.is_turn_open) {
            Some(result) if !result.is_error => return Ok(()),
            Some(result) if self.by_exit_code => return Err(self.judge_command(result, stderr)),
            Some(result) => return Err(self.judge_result(result)),
            None => {}
        }
        if let Some(error) = &self.error {
            return Err(self.judge_report(&FailureReport::from_error(&error.text, &error.api)));
        }
        // A command has no other sign of success, and other agents must have reported their end.
        if code == Some(0) && (self.by_exit_code || self.reported_end) {
            return Ok(());
        }
        // Only before any message: later the same text may come from a tool.
        if !self.by_exit_code && self.received == 0 && refuses_options(stderr) {
            return Err(self.failure(ErrorClass::NotStarted, stderr_tail(stderr)));
        }
        let told = FailureReport::from_text(stderr);
        // A command may print anything, so its words are not taken for an error of the API.
        if !self.by_exit_code && told.class() != ErrorClass::AgentFailed {
            return Err(self.judge_report(&told));
        }
        let (class, message) = self.describe_exit(code, signal);
        Err(self.failure(class, &with_stderr_tail(message, stderr)))
    }

    /// Judges a failed command. Its output is not parsed as an agent's failure report.
    fn judge_command(&self, result: &TurnResult, stderr: &str) -> (ExitReason, RunError) {
        let said = match result.errors.is_empty() {
            true => result.text.clone().unwrap_or_default(),
            false => result.errors.join("\n"),
        };
        let (reason, mut error) =
            self.failure(ErrorClass::AgentFailed, &with_stderr_tail(said, stderr));
        if !stderr.trim().is_empty() {
            error.cure = COMMAND_CURE.to_owned();
        }
        (reason, error)
    }

    fn judge_result(&self, result: &TurnResult) -> (ExitReason, RunError) {
        let said = match &result.text {
            // An empty text is no explanation; the list of errors may have one.
            Some(text) if !text.is_empty() => text.clone(),
            _ => result.errors.join("\n"),
        };
        match (result.subtype.as_str(), result.terminal_reason.as_deref()) {
            ("error_max_turns", _) | (_, Some("max_turns")) => {
                self.failure(ErrorClass::MaxTurns, &said)
            }
            ("error_max_budget_usd", _) | (_, Some("budget_exhausted")) => {
                self.failure(ErrorClass::Budget, &said)
            }
            (_, Some("aborted_streaming" | "aborted_tools")) => {
                // Claude says that the user interrupted it, although it was Heeler.
                self.failure(ErrorClass::Cancelled, INTERRUPTED_TEXT)
            }
            _ => {
                let mut symptoms = FailureReport::from_result(result, &said);
                if let Some(error) = &self.error {
                    // Error messages before the result often name the cause that the result omits.
                    symptoms.add(&error.text, &error.api);
                }
                self.judge_report(&symptoms)
            }
        }
    }

    fn judge_report(&self, symptoms: &FailureReport<'_>) -> (ExitReason, RunError) {
        let class = symptoms.class();
        let (mut reason, mut error) = self.failure(class, symptoms.message());
        // A delay is of no use if nothing is retried.
        if error.recoverable {
            error.retry_after_ms = symptoms.retry_after_ms();
        }
        if class == ErrorClass::RateLimited {
            error.resets_at = symptoms.resets_at(self.rate_limit.as_ref());
        }
        // The class stays a network error, but the job ended for lack of time.
        if symptoms.is_timeout() {
            reason = ExitReason::Timeout;
        }
        (reason, error)
    }

    /// Describes the exit of a process that left no result.
    fn describe_exit(&self, code: Option<i32>, signal: Option<i32>) -> (ErrorClass, String) {
        // A shell and most runtimes report a signal as an exit code above 128.
        let signal = signal.or(code.filter(|code| *code > 128).map(|code| code - 128));
        let how = match (code, signal.map(|number| (number, signal_name(number)))) {
            (_, Some((_, Some(name)))) => format!("was ended by {name}"),
            (None, Some((number, None))) => format!("was ended by signal {number}"),
            (Some(code), _) => format!("exited with code {code}"),
            // The process was ended in a way that the system does not report.
            (None, None) => "ended".to_owned(),
        };
        if self.by_exit_code {
            // A signal came from outside; an exit code is the command's own verdict.
            let class = match signal {
                Some(_) => ErrorClass::AgentDied,
                None => ErrorClass::AgentFailed,
            };
            return (class, format!("the command {how}"));
        }
        if self.received == 0 && self.malformed_lines > 0 {
            let message = format!("the agent {how}, and nothing that it printed was a message");
            return (ErrorClass::Malformed, message);
        }
        (ErrorClass::AgentDied, format!("the agent {how} without a result"))
    }

    fn failure(&self, class: ErrorClass, message: &str) -> (ExitReason, RunError) {
        let message = match message.trim() {
            "" => "the agent reported a failure without saying which",
            message => message,
        };
        let error = RunError { messages_received: self.received, ..RunError::new(class, message) };
        (class.exit_reason(), error)
    }
}

/// Returns true if the agent rejected its command-line options: an option is unknown, or a value is
/// invalid. A retry would fail the same way.
fn refuses_options(stderr: &str) -> bool {
    stderr.lines().any(|line| {
        // Claude's option parser writes these lines.
        line.starts_with("error: unknown option ")
            || (line.starts_with("error: option ") && line.contains(" is invalid"))
    })
}

/// Returns the model's reason for stopping. Claude invents one if the API failed; that is dropped.
fn model_stop_reason(result: &TurnResult) -> Option<String> {
    let failed =
        result.api_error_status.is_some() || result.terminal_reason.as_deref() == Some("api_error");
    result.stop_reason.clone().filter(|reason| !(failed && reason == "stop_sequence"))
}

fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return None,
    })
}

/// Truncates a text to a summary of at most [`SUMMARY_BYTES_MAX`] bytes, at a character boundary.
fn truncate_summary(text: &str) -> String {
    let text = text.trim();
    if text.len() <= SUMMARY_BYTES_MAX {
        return text.to_owned();
    }
    // Room for the ellipsis, so the limit holds for the whole summary.
    let end = text.floor_char_boundary(SUMMARY_BYTES_MAX - '…'.len_utf8());
    format!("{}…", &text[..end])
}

/// Appends the last part of standard error, if there is any.
fn with_stderr_tail(message: String, stderr: &str) -> String {
    match stderr_tail(stderr) {
        "" => message,
        stderr => format!("{message}: {stderr}"),
    }
}

/// Returns the last part of standard error.
fn stderr_tail(stderr: &str) -> &str {
    let stderr = stderr.trim();
    // The end of standard error names the cause; the beginning is often noise.
    let start = stderr.char_indices().rev().nth(STDERR_CHARS_MAX - 1).map_or(0, |(at, _)| at);
    &stderr[start..]
}

#[cfg(test)]
mod tests;
