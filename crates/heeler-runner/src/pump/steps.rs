//! What a runtime wants done, one step after the other.
//!
//! A step is done when every row before it is on disk. Start at [`Pump::work`].

use std::time::{Duration, Instant};

use heeler_model::message::{Body, Message};
use heeler_model::outcome::Ending;
use heeler_model::run::Happening;
use serde_json::{Value as Json, json};

use super::{Pump, Run};
use crate::runtime::Step;
use crate::writer::INPUT_BYTES_MAX;

/// The first pause after the disk took no row; it doubles each time.
const DISK_PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause.
const DISK_PAUSE_MAX: Duration = Duration::from_secs(5);

/// How many calls of injected tools may be under way; one more is refused.
pub(crate) const MCP_CALLS_MAX: usize = 64;

/// A disk that takes no rows.
#[derive(Debug)]
pub(crate) struct DiskTrouble {
    pub(crate) reason: String,
    pub(super) retry_at: Instant,
    pause: Duration,
}

/// The disk does not take what has to be there before the run goes on.
#[derive(Debug)]
pub(super) struct DiskFull(pub(super) String);

impl Pump<'_> {
    /// Does what is to be done; says whether nothing is left, so that more may be read.
    pub(super) fn work(&mut self) -> bool {
        let now = Instant::now();
        if self.run.disk.as_ref().is_some_and(|trouble| now < trouble.retry_at) {
            return false;
        }
        match self.try_work() {
            Ok(()) => {
                let may_go_on = self.snapping.is_none();
                if self.run.disk.take().is_some() {
                    self.run.control.tell(&Happening::Disk { trouble: None });
                }
                may_go_on
            }
            Err(DiskFull(reason)) => {
                self.disk_fails(reason, now);
                false
            }
        }
    }

    fn try_work(&mut self) -> Result<(), DiskFull> {
        loop {
            self.flush()?;
            if let Some(reason) = self.run.journal.take_left_out() {
                self.run.note("warning", &reason);
                continue;
            }
            if self.snapping.is_some() {
                return Ok(());
            }
            let Some(step) = self.todo.pop_front() else { return Ok(()) };
            self.step(step)?;
        }
    }

    /// Writes the rows that wait, and tells them.
    pub(super) fn flush(&mut self) -> Result<(), DiskFull> {
        let Run { journal, control, .. } = &mut *self.run;
        journal.flush(&mut |at, row| control.tell_row(at, row)).map_err(DiskFull)
    }

    fn disk_fails(&mut self, reason: String, now: Instant) {
        let pause = match &self.run.disk {
            Some(trouble) => (trouble.pause * 2).min(DISK_PAUSE_MAX),
            None => {
                let trouble = Some(reason.clone());
                self.run.control.tell(&Happening::Disk { trouble });
                DISK_PAUSE_MIN
            }
        };
        self.run.disk = Some(DiskTrouble { reason, retry_at: now + pause, pause });
    }

    fn step(&mut self, step: Step) -> Result<(), DiskFull> {
        match step {
            Step::Write(_) | Step::CloseInput | Step::Signal(_) => self.do_now(step),
            Step::Message(message) => {
                if self.is_due_before(&message) && self.begin_snapshot() {
                    self.todo.push_front(Step::Message(message));
                    return Ok(());
                }
                self.snapped = false;
                self.record(message);
            }
            Step::Ask { id, kind, tool, input } => return self.ask(id, kind, tool, input),
            Step::Withdraw { ask } => self.withdraw(&ask),
            Step::Mcp { call, server, message } => self.call(call, server, message),
            Step::Done => {
                self.done = true;
                self.input.close();
                self.run.watch.done(Instant::now());
            }
        }
        Ok(())
    }

    /// Does a step that needs no disk.
    pub(super) fn do_now(&mut self, step: Step) {
        match step {
            Step::Write(line) => {
                if self.input.push(line).is_err() {
                    let reason = format!(
                        "the agent does not read: more than {INPUT_BYTES_MAX} bytes wait for it"
                    );
                    self.end(Ending::Internal { reason });
                    self.kill = true;
                }
            }
            Step::CloseInput => self.input.close(),
            Step::Signal(signal) => self.agent.signal(signal),
            step => debug_assert!(false, "{step:?} needs the disk"),
        }
    }

    fn record(&mut self, mut message: Message) {
        // Before anything of it is cut: half a secret would not be known for one.
        message.redact(&self.run.redactor);
        self.run.tally.message(&message);
        if let Some(aside) = &mut self.run.aside {
            aside.take(&message);
            return;
        }
        let is_assistant = matches!(message.body, Body::Assistant(_));
        self.run.spoke |= is_assistant;
        // The row has the whole text. What is held back may be half of a secret, so it is dropped;
        // any other row comes in between and ends no text.
        if is_assistant && message.parent_tool_use_id.is_none() {
            self.deltas = None;
        }
        let rows = self.run.recorder.message(message, (self.run.now)());
        for delta in &rows.deltas {
            let started = || (self.run.redactor.stream(), 0);
            let (stream, told) = self.deltas.get_or_insert_with(started);
            let text = stream.push(delta);
            if !text.is_empty() {
                let from = Some(*told);
                *told += text.len() as u64;
                self.run.control.tell(&Happening::Delta { text, from });
            }
        }
        self.run.journal.push(rows);
    }

    fn call(&mut self, call: String, server: String, message: Json) {
        if self.calls.len() >= MCP_CALLS_MAX {
            let text = format!("{MCP_CALLS_MAX} calls are under way; wait for one to end");
            let error = json!({"code": -32000, "message": text});
            let reply = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
            self.todo.extend(self.run.runtime.mcp_reply(&call, reply));
            return;
        }
        let injected = self.run.injected.clone();
        self.calls.spawn(async move {
            let reply = injected.handle(&server, message).await;
            (call, reply)
        });
    }
}
