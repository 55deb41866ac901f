//! Waiting for the output of an agent, and the effects of its lines. Start at [`fill_lines`].

use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use heeler_model::message::{AgentMessage, MessageBody};
use tokio::process::{ChildStderr, ChildStdout};
use tokio::time::sleep_until;

use crate::line_reader::{AgentLineReader, AgentOutputLine, KEPT_LINE_BYTES_MIN};
use crate::runtime::{AgentRuntime, RuntimeEffect};
use crate::stderr_log::AgentStderrLog;

pub(super) async fn fill_lines(
    lines: &mut AgentLineReader,
    stdout: &mut Option<ChildStdout>,
) -> io::Result<usize> {
    match stdout {
        Some(stdout) => lines.fill(stdout).await,
        // A stream that has ended must not win the selection again and again.
        None => pending().await,
    }
}

pub(super) async fn fill_stderr(
    complaints: &mut AgentStderrLog,
    stderr: &mut Option<ChildStderr>,
) -> io::Result<usize> {
    match stderr {
        Some(stderr) => complaints.fill(stderr).await,
        None => pending().await,
    }
}

pub(super) async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => pending().await,
    }
}

/// Returns the number of bytes a pipe holds.
pub(super) fn buffered_bytes(pipe: &impl AsFd) -> usize {
    // A pipe always supports this ioctl; an error means that it is at its end.
    rustix::io::ioctl_fionread(pipe).map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Returns the effects of a line.
pub(super) fn line_effects(
    line: AgentOutputLine<'_>,
    runtime: &mut dyn AgentRuntime,
) -> Vec<RuntimeEffect> {
    match line {
        AgentOutputLine::Whole(line) => runtime.handle_line(line),
        AgentOutputLine::Spilled(spilled) => {
            let body = MessageBody::Malformed { reason: spilled.to_string(), text: String::new() };
            let mut effects = vec![RuntimeEffect::Message(AgentMessage::from_body(body))];
            effects.extend(runtime.handle_oversized_line());
            effects
        }
    }
}

/// Moves a malformed line to a file if only a small part of it can be recorded.
pub(super) fn spill_malformed_line(
    mut step: RuntimeEffect,
    lines: &mut AgentLineReader,
) -> RuntimeEffect {
    if let RuntimeEffect::Message(AgentMessage {
        body: MessageBody::Malformed { reason, text },
        ..
    }) = &mut step
        && text.len() >= KEPT_LINE_BYTES_MIN
    {
        let kept = lines.spill_line(text.as_bytes());
        *reason = format!("{reason}; {}", kept.location_text());
    }
    step
}
