//! How a run ended, as a pure judgement over what the agent said and how its process ended.
//!
//! Success is what a result says by `is_error`, never by its subtype; without a result the process
//! died, whatever its exit code. What was asked of the run (a cancel, a limit) wins over what the
//! agent says about it. Nothing here acts. Start at [`RunOutcomeBuilder`], which sees every message.

mod command_output;
mod cure;
mod failure_report;
mod run_spending;

use serde_json::Value as Json;

use crate::config::RuntimeType;
use crate::message::{
    AgentMessage, ApiError, AssistantMessage, INTERRUPTED_TEXT, MessageBody, RateLimit, TurnResult,
    content_text,
};
use crate::run::{ErrorClass, RunCost, RunError};
use crate::workflow::truncate_output;
use crate::{ExitReason, SUMMARY_BYTES_MAX};
use command_output::CommandOutput;
use failure_report::FailureReport;
use run_spending::RunSpending;

/// How much of what an agent wrote to standard error is told.
const STDERR_CHARS_MAX: usize = 500;

/// What to do about a command that failed and wrote to standard error.
const COMMAND_CURE: &str =
    "read stderr.log in the run's folder, and the job's log: `heeler jobs logs`";

/// How an agent's process ended.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentProcessExit {
    /// By itself, or because of a signal that nobody here sent.
    Exited {
        /// Its exit code.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// It was ended because it took too long.
    TimedOut {
        /// The limit.
        after_ms: u64,
    },
    /// It was ended because it said nothing for too long.
    Stalled {
        /// The limit.
        after_ms: u64,
    },
    /// A person ended it.
    Cancelled {
        /// Who.
        by: String,
    },
    /// It could not be started.
    NotStarted {
        /// Why.
        reason: String,
    },
    /// Its rows could not be written.
    Disk {
        /// Why.
        reason: String,
    },
    /// A fault of ours.
    Internal {
        /// What.
        reason: String,
    },
}

impl AgentProcessExit {
    /// Returns why a run was ended by us or by somebody else than its agent; none if it was not.
    pub fn cause(&self) -> Option<(ErrorClass, String)> {
        let seconds = |ms: &u64| *ms as f64 / 1000.0;
        Some(match self {
            AgentProcessExit::Exited { .. } => return None,
            AgentProcessExit::TimedOut { after_ms } => {
                (ErrorClass::Timeout, format!("not done after {} s", seconds(after_ms)))
            }
            AgentProcessExit::Stalled { after_ms } => {
                (ErrorClass::Stalled, format!("the agent said nothing for {} s", seconds(after_ms)))
            }
            AgentProcessExit::Cancelled { by } => {
                (ErrorClass::Cancelled, format!("cancelled by {by}"))
            }
            AgentProcessExit::NotStarted { reason } => (ErrorClass::NotStarted, reason.clone()),
            AgentProcessExit::Disk { reason } => (ErrorClass::Disk, reason.clone()),
            AgentProcessExit::Internal { reason } => (ErrorClass::Internal, reason.clone()),
        })
    }
}

/// The judgement.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOutcome {
    /// Why it ended.
    pub exit_reason: ExitReason,
    /// The model's own reason.
    pub stop_reason: Option<String>,
    /// A short account.
    pub summary: Option<String>,
    /// What went wrong.
    pub error: Option<RunError>,
    /// What was spent.
    pub cost: RunCost,
    /// What the agent said at last, or all that a command printed, cut to a bound.
    pub output: Option<String>,
}

/// What is remembered of a run's messages until it is judged.
#[derive(Debug, Clone, Default)]
pub struct RunOutcomeBuilder {
    by_exit_code: bool,
    received: u64,
    malformed_lines: u64,
    last_text: Option<String>,
    /// The last text, not as short.
    last_output: Option<String>,
    /// What a command printed.
    command_output: CommandOutput,
    result: Option<TurnResult>,
    /// A turn began after the last result, so that one is not how the run ended.
    is_turn_open: bool,
    /// Something was said since the last result, so its figures are not the whole story.
    has_unbilled_output: bool,
    reported_end: bool,
    error: Option<AgentError>,
    rate_limit: Option<RateLimit>,
    spending: RunSpending,
}

/// An error that the agent reported outside of a result.
#[derive(Debug, Clone, Default)]
struct AgentError {
    text: String,
    api: ApiError,
}

impl RunOutcomeBuilder {
    /// Starts a run that is judged by the result that its agent reports.
    pub fn new() -> RunOutcomeBuilder {
        RunOutcomeBuilder::default()
    }

    /// Starts a run of this runtime. A command is judged by its exit code: it reports no result.
    pub fn for_runtime(runtime: RuntimeType) -> RunOutcomeBuilder {
        RunOutcomeBuilder {
            by_exit_code: runtime == RuntimeType::Command,
            ..RunOutcomeBuilder::default()
        }
    }

    /// Tells what the session had cost before this run: the last `result` row of its log.
    ///
    /// Agents count on where the last run of a session stopped. New ones also say what is new; for
    /// old ones, and for the time that the API took, this is what is taken off.
    #[must_use]
    pub fn with_previous_result(mut self, last_result: &Json) -> RunOutcomeBuilder {
        self.spending = RunSpending::after_result(last_result);
        self
    }

    /// Starts the next attempt of the same run, in the same session: what that one has told so far is
    /// taken off.
    #[must_use]
    pub fn next_attempt(&self) -> RunOutcomeBuilder {
        let spent = self.spending.next_attempt();
        RunOutcomeBuilder {
            by_exit_code: self.by_exit_code,
            spending: spent,
            ..RunOutcomeBuilder::default()
        }
    }

    /// Takes a message into account.
    pub fn add_message(&mut self, message: &AgentMessage) {
        match &message.body {
            MessageBody::Ignored { .. }
            | MessageBody::Delta { .. }
            | MessageBody::BackgroundTasks { .. } => return,
            MessageBody::Malformed { .. } => {
                self.malformed_lines += 1;
                return;
            }
            MessageBody::Assistant(said) => {
                self.add_assistant(said, message.parent_tool_use_id.is_none())
            }
            MessageBody::Init(_) => self.is_turn_open = true,
            MessageBody::Result(result) => {
                self.spending.add_result(&message.fields);
                self.is_turn_open = false;
                self.has_unbilled_output = false;
                self.error = self.error.take().filter(|_| result.is_error);
                self.result = Some(TurnResult::clone(result));
            }
            MessageBody::Error { message, code } => {
                let api = ApiError { code: code.clone(), ..ApiError::default() };
                self.error = Some(AgentError { text: message.clone(), api });
                self.result = None;
            }
            MessageBody::RateLimit(limit) => self.rate_limit = Some(limit.clone()),
            MessageBody::System { subtype } => {
                self.reported_end |= matches!(subtype.as_str(), "end" | "complete" | "session_end");
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
        self.is_turn_open |= is_main;
        self.has_unbilled_output = true;
        let text = said.message.get("content").map(content_text).unwrap_or_default();
        if self.by_exit_code {
            self.command_output.push_line(&text);
        }
        match &said.api_error {
            Some(api) => self.error = Some(AgentError { text, api: api.clone() }),
            None => {
                self.error = None;
                if is_main && !text.trim().is_empty() {
                    self.last_text = Some(truncate_summary(&text));
                    self.last_output = (!self.by_exit_code).then(|| truncate_output(&text));
                }
            }
        }
    }

    /// Returns what this run has cost so far, if the agent has said.
    pub fn cost_usd(&self) -> Option<f64> {
        self.spending.usd()
    }

    /// Judges.
    pub fn conclude(&self, end: &AgentProcessExit) -> RunOutcome {
        let (exit_reason, error) = match self.judge(end) {
            Ok(()) => (ExitReason::Success, None),
            Err((reason, error)) => (reason, Some(error)),
        };
        let result = self.result.as_ref();
        let final_text = result.filter(|result| !result.is_error);
        let final_text = final_text.and_then(|result| result.text.as_deref());
        let final_text = final_text.filter(|text| !text.trim().is_empty());
        let output = match self.by_exit_code {
            true => (!self.command_output.is_empty()).then(|| self.command_output.text()),
            false => final_text.map(truncate_output).or_else(|| self.last_output.clone()),
        };
        let final_text = final_text.map(truncate_summary);
        let mut cost = self.spending.cost();
        if self.has_unbilled_output {
            cost.usd = None;
        }
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
        }
    }

    fn judge(&self, end: &AgentProcessExit) -> Result<(), (ExitReason, RunError)> {
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
        match self.result.as_ref().filter(|_| !self.is_turn_open) {
            Some(result) if !result.is_error => return Ok(()),
            Some(result) if self.by_exit_code => return Err(self.judge_command(result, stderr)),
            Some(result) => return Err(self.judge_result(result)),
            None => {}
        }
        if let Some(error) = &self.error {
            return Err(self.judge_report(&FailureReport::from_error(&error.text, &error.api)));
        }
        if code == Some(0) && (self.by_exit_code || self.reported_end) {
            return Ok(());
        }
        if !self.by_exit_code && self.received == 0 && refuses_options(stderr) {
            return Err(self.failure(ErrorClass::NotStarted, stderr_tail(stderr)));
        }
        let told = FailureReport::from_text(stderr);
        if !self.by_exit_code && told.class() != ErrorClass::AgentFailed {
            return Err(self.judge_report(&told));
        }
        let (class, message) = self.describe_exit(code, signal);
        Err(self.failure(class, &with_stderr_tail(message, stderr)))
    }

    /// What a command prints are its own words, not an agent's report of what failed.
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
                self.failure(ErrorClass::Cancelled, INTERRUPTED_TEXT)
            }
            _ => {
                let mut symptoms = FailureReport::from_result(result, &said);
                if let Some(error) = &self.error {
                    symptoms.add(&error.text, &error.api);
                }
                self.judge_report(&symptoms)
            }
        }
    }

    fn judge_report(&self, symptoms: &FailureReport<'_>) -> (ExitReason, RunError) {
        let class = symptoms.class();
        let (mut reason, mut error) = self.failure(class, symptoms.message());
        if error.recoverable {
            error.retry_after_ms = symptoms.retry_after_ms();
        }
        if class == ErrorClass::RateLimited {
            error.resets_at = symptoms.resets_at(self.rate_limit.as_ref());
        }
        if symptoms.is_timeout() {
            reason = ExitReason::Timeout;
        }
        (reason, error)
    }

    /// Says how a process ended that left no result.
    fn describe_exit(&self, code: Option<i32>, signal: Option<i32>) -> (ErrorClass, String) {
        // A shell and most runtimes report a signal as an exit code above 128.
        let signal = signal.or(code.filter(|code| *code > 128).map(|code| code - 128));
        let how = match (code, signal.map(|number| (number, signal_name(number)))) {
            (_, Some((_, Some(name)))) => format!("was ended by {name}"),
            (None, Some((number, None))) => format!("was ended by signal {number}"),
            (Some(code), _) => format!("exited with code {code}"),
            (None, None) => "ended".to_owned(),
        };
        if self.by_exit_code {
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

/// Says whether an agent did not understand how it was started: it lacks an option, or knows other
/// values for it. The same again would fail.
fn refuses_options(stderr: &str) -> bool {
    stderr.lines().any(|line| {
        line.starts_with("error: unknown option ")
            || (line.starts_with("error: option ") && line.contains(" is invalid"))
    })
}

/// Returns why the model stopped. Where the API failed no model did, and Claude makes one up.
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

/// Returns the text as a summary: at most [`SUMMARY_BYTES_MAX`] bytes, cut at a character.
fn truncate_summary(text: &str) -> String {
    let text = text.trim();
    if text.len() <= SUMMARY_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(SUMMARY_BYTES_MAX - '…'.len_utf8());
    format!("{}…", &text[..end])
}

/// Adds the end of what was written to standard error, where there is any.
fn with_stderr_tail(message: String, stderr: &str) -> String {
    match stderr_tail(stderr) {
        "" => message,
        stderr => format!("{message}: {stderr}"),
    }
}

/// Returns the end of what was written to standard error.
fn stderr_tail(stderr: &str) -> &str {
    let stderr = stderr.trim();
    let start = stderr.char_indices().rev().nth(STDERR_CHARS_MAX - 1).map_or(0, |(at, _)| at);
    &stderr[start..]
}

#[cfg(test)]
mod tests;
