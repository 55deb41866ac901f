//! Performs the effects that a runtime requests, in order.
//!
//! An effect is performed once every row before it is on disk. Start at
//! [`RunEventLoop::apply_effects`].

use std::time::{Duration, Instant};

use heeler_model::message::{AgentMessage, MessageBody};
use heeler_model::outcome::AgentProcessExit;
use heeler_model::run::ControlEvent;
use serde_json::{Value as Json, json};

use super::open_calls::{FinishedCall, OPEN_CALLS_MAX};
use super::streamed_message::StreamedMessage;
use super::{ActiveRun, RunEventLoop};
use crate::input_writer::INPUT_BYTES_MAX;
use crate::runtime::RuntimeEffect;

/// First pause after the disk accepted no row; it doubles each time.
const DISK_PAUSE_MIN: Duration = Duration::from_millis(20);
/// Upper bound of the pause.
const DISK_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Disk that accepts no rows.
#[derive(Debug)]
pub(crate) struct DiskFailure {
    pub(crate) reason: String,
    pub(super) retry_at: Instant,
    pause: Duration,
}

/// The disk does not accept data that must be written before the run continues.
#[derive(Debug)]
pub(super) struct DiskFullError(pub(super) String);

impl RunEventLoop<'_> {
    /// Performs pending effects; returns true if none is left, so that more output may be read.
    pub(super) fn apply_effects(&mut self) -> bool {
        let now = Instant::now();
        if self.run.disk_failure.as_ref().is_some_and(|trouble| now < trouble.retry_at) {
            return false;
        }
        match self.try_apply_effects() {
            Ok(()) => {
                // The effects behind a snapshot wait for it, and so does further output.
                let may_go_on = self.snapshot.is_none();
                if self.run.disk_failure.take().is_some() {
                    self.run.control.publish(&ControlEvent::Disk { trouble: None });
                }
                may_go_on
            }
            Err(DiskFullError(reason)) => {
                self.record_disk_failure(reason, now);
                false
            }
        }
    }

    fn try_apply_effects(&mut self) -> Result<(), DiskFullError> {
        loop {
            self.flush()?;
            // The warning is a row itself, so it is written before the next effect.
            if let Some(reason) = self.run.journal.take_skipped_reason() {
                self.run.add_note("warning", &reason);
                continue;
            }
            if self.snapshot.is_some() {
                return Ok(());
            }
            let Some(step) = self.pending_effects.pop_front() else { return Ok(()) };
            self.apply_effect(step)?;
        }
    }

    /// Writes the pending rows and publishes them.
    pub(super) fn flush(&mut self) -> Result<(), DiskFullError> {
        let ActiveRun { journal, control, .. } = &mut *self.run;
        journal.flush(&mut |at, row| control.publish_row(at, row)).map_err(DiskFullError)
    }

    fn record_disk_failure(&mut self, reason: String, now: Instant) {
        let pause = match &self.run.disk_failure {
            Some(trouble) => (trouble.pause * 2).min(DISK_PAUSE_MAX),
            None => {
                // Only the first failure is news; the retries would repeat it.
                let trouble = Some(reason.clone());
                self.run.control.publish(&ControlEvent::Disk { trouble });
                DISK_PAUSE_MIN
            }
        };
        self.run.disk_failure = Some(DiskFailure { reason, retry_at: now + pause, pause });
    }

    fn apply_effect(&mut self, step: RuntimeEffect) -> Result<(), DiskFullError> {
        match step {
            RuntimeEffect::Write(_) | RuntimeEffect::CloseInput | RuntimeEffect::Signal(_) => {
                self.apply_immediate_effect(step);
            }
            RuntimeEffect::Message(message) => {
                if self.needs_snapshot_before(&message) && self.begin_snapshot() {
                    // It comes first again once the snapshot is taken.
                    self.pending_effects.push_front(RuntimeEffect::Message(message));
                    return Ok(());
                }
                // The next turn needs a snapshot of its own.
                self.snapshot_taken = false;
                self.record_message(message);
            }
            RuntimeEffect::Ask { id, kind, tool, input, grant } => {
                return self.ask_person(id, (kind, grant), tool, input);
            }
            RuntimeEffect::Withdraw { ask } => self.withdraw_question(&ask),
            RuntimeEffect::Mcp { call, server, message } => self.call_tool(call, server, message),
            RuntimeEffect::ClientTool { call, request } => self.call_client_tool(call, request),
            RuntimeEffect::Done => {
                self.done = true;
                self.stays = self.run.may_keep_agent
                    && self.run.ending.is_none()
                    && self.run.side_reply.is_none()
                    && self.calls.is_empty()
                    && self.run.questions.is_empty()
                    && self.input.is_open()
                    && self.run.runtime.can_stay();
                if !self.stays {
                    self.close_input_when_done();
                }
            }
        }
        Ok(())
    }

    /// Performs an effect that needs no disk.
    pub(super) fn apply_immediate_effect(&mut self, step: RuntimeEffect) {
        match step {
            RuntimeEffect::Write(line) => {
                // Dropping a line would break the protocol, so an agent that never reads is killed.
                if self.input.push(line).is_err() {
                    let reason = format!(
                        "the agent does not read its input: more than {INPUT_BYTES_MAX} bytes are queued"
                    );
                    self.set_ending(AgentProcessExit::Internal { reason });
                    self.must_kill = true;
                }
            }
            RuntimeEffect::CloseInput => self.input.close(),
            RuntimeEffect::Signal(signal) => self.agent.signal(signal),
            step => debug_assert!(false, "{step:?} needs the disk"),
        }
    }

    fn record_message(&mut self, mut message: AgentMessage) {
        // Redacted before any part is cut: half a secret would not be recognized.
        message.redact(&self.run.redactor);
        // What the agent says outside of the conversation costs money too.
        self.run.tally.add_message(&message);
        if let Some(side_reply) = &mut self.run.side_reply {
            side_reply.record_message(&message);
            return;
        }
        // Any reply counts: from then on the agent has the session and can resume it.
        let is_assistant = matches!(message.body, MessageBody::Assistant(_));
        self.run.has_spoken |= is_assistant;
        // The row has the whole text. The part held back may be half of a secret, so it is dropped;
        // any other row may arrive in between and does not end the text.
        if is_assistant && message.parent_tool_use_id.is_none() {
            self.deltas = None;
        }
        let rows = self.run.recorder.record_message(message, (self.run.now)());
        for delta in &rows.deltas {
            let started = || StreamedMessage::new(self.run.redactor.stream());
            let message = self.deltas.get_or_insert_with(started);
            if !self.run.control.has_subscribers() {
                message.push_unread(delta);
            } else if let Some(event) = message.push(delta) {
                self.run.control.publish(&event);
            }
        }
        self.run.journal.push(rows);
    }

    fn call_tool(&mut self, call: String, server: String, message: Json) {
        if self.calls.len() >= OPEN_CALLS_MAX {
            let text = format!("{OPEN_CALLS_MAX} calls are in progress; wait for one to end");
            // JSON-RPC reserves this code for errors of the server itself.
            let error = json!({"code": -32000, "message": text});
            let reply = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
            self.pending_effects.extend(self.run.runtime.deliver_mcp_reply(&call, reply));
            return;
        }
        // A call may wait for people or workers, so it must not hold up the loop.
        let injected = self.run.injected.clone();
        self.calls.others.spawn(async move {
            let reply = injected.handle(&server, message).await;
            FinishedCall::Server { call, reply }
        });
    }
}
