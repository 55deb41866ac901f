//! Sends messages of callers to the agents of runs. Each is tried once, and the caller gets the
//! outcome. Start at [`EffectExecutor::send_message`].

use std::sync::Arc;

use heeler_model::run::{ControlOperation, ControlReplyBody};
use heeler_model::{JobId, RunId, error_chain};

use super::control_loop::{ControlExchange, ControlLane};
use super::limits::{limit_error, message_limit_error};
use super::{EffectExecutor, ExecutorContext};
use crate::command::{
    CommandReply, DaemonCommandError, DaemonCommandErrorKind, ReplyCallback, job_not_running,
};
use crate::work_limits::{KeyClaim, SlotClaim};
use heeler_control::{ControlError, REPLY_WAIT, read_started_file};

/// A message with the caller that waits for its outcome.
struct OutgoingMessage {
    job: JobId,
    by: String,
    reply: ReplyCallback,
    _claims: (SlotClaim, KeyClaim<RunId>),
}

impl EffectExecutor {
    /// Sends a message to the agent of a run. A message beyond a limit is refused.
    pub(crate) fn send_message(
        &self,
        run: RunId,
        job: JobId,
        text: String,
        by: String,
        reply: ReplyCallback,
    ) {
        let (shared, limits) = (Arc::clone(&self.shared), &self.shared.limits);
        let Some(of_run) = limits.messages_of_run.claim(run) else {
            return reply(Err(message_limit_error(&job)));
        };
        let Some(slot) = limits.messages.claim() else {
            let limit = limits.messages.limit();
            return reply(Err(limit_error("other messages are still being sent", limit)));
        };
        let message = OutgoingMessage { job, by, reply, _claims: (slot, of_run) };
        self.shared.deliverers.submit(move || shared.send_to_run(run, text, message));
    }
}

impl ExecutorContext {
    fn send_to_run(&self, run: RunId, text: String, message: OutgoingMessage) {
        if self.is_elsewhere(run) {
            let text =
                format!("{} runs on another host, which cannot pass messages on", message.job);
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, text);
            return (message.reply)(Err(
                refused.with_hint("heeler jobs cancel, or wait for its end")
            ));
        }
        let folder = self.fleet.dir.run(run);
        let started = match read_started_file(&folder) {
            Ok(started) => started,
            Err(error) => return message.conclude(Err(error)),
        };
        self.control.send(ControlExchange {
            lane: ControlLane::Message,
            socket: started.socket,
            folder,
            protocol: started.protocol,
            op: ControlOperation::message(text),
            timeout: REPLY_WAIT,
            done: Box::new(move |outcome| message.conclude(outcome)),
        });
    }
}

impl OutgoingMessage {
    fn conclude(self, outcome: Result<ControlReplyBody, ControlError>) {
        let OutgoingMessage { job, by, reply, _claims: claims } = self;
        // The caller may send its next message as soon as it has the reply.
        drop(claims);
        reply(match outcome {
            Ok(ControlReplyBody::Refused { reason }) => Err(DaemonCommandError::new(
                DaemonCommandErrorKind::Busy,
                format!("{job}: {reason}"),
            )),
            Ok(_) => {
                tracing::info!(%job, by, "message sent");
                Ok(CommandReply::Done { message: format!("the message was sent to {job}") })
            }
            Err(ControlError::NotStarted { .. } | ControlError::Gone { .. }) => {
                Err(job_not_running(&job))
            }
            Err(error) => {
                Err(DaemonCommandError::new(DaemonCommandErrorKind::Trouble, error_chain(&error)))
            }
        });
    }
}
