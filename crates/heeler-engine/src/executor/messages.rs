//! Sends messages of callers to the agents of runs. Each is tried once, and the caller gets the
//! outcome. One to a run of another host becomes a row of the database, which that host delivers. Start at
//! [`EffectExecutor::send_message`].

use std::sync::Arc;

use heeler_model::run::{ControlOperation, ControlReplyBody};
use heeler_model::{JobId, RunId, error_chain};

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::control_loop::{ControlExchange, ControlLane};
use super::limits::{limit_error, message_limit_error};
use super::{EffectExecutor, ExecutorContext};
use crate::command::{
    CommandReply, DaemonCommandError, DaemonCommandErrorKind, IdempotencyKey, PendingReply,
    ReplyCallback, job_not_running,
};
use crate::work_limits::{KeyClaim, SlotClaim};
use heeler_control::{ControlError, REPLY_WAIT, read_started_file};

/// A message with the caller that waits for its outcome.
pub(super) struct OutgoingMessage {
    pub(super) job: JobId,
    /// Identifies the message. A repeated command has the same ID, so its message is delivered once.
    pub(super) id: Option<Uuid>,
    by: String,
    reply: ReplyCallback,
    _claims: (SlotClaim, KeyClaim<RunId>),
}

impl EffectExecutor {
    /// Sends a message to the agent of a run. A message beyond a limit is refused.
    pub(crate) fn send_message(&self, run: RunId, said: SaidText, pending: PendingReply) {
        let SaidText { job, text, by } = said;
        let id = pending.key.as_ref().map(|key| message_id(key, &job));
        let reply = pending.reply;
        let (shared, limits) = (Arc::clone(&self.shared), &self.shared.limits);
        let Some(of_run) = limits.messages_of_run.claim(run) else {
            return reply(Err(message_limit_error(&job)));
        };
        let Some(slot) = limits.messages.claim() else {
            let limit = limits.messages.limit();
            return reply(Err(limit_error("other messages are still being sent", limit)));
        };
        let message = OutgoingMessage { job, id, by, reply, _claims: (slot, of_run) };
        self.shared.deliverers.submit(move || shared.send_to_run(run, text, message));
    }
}

/// Text that a person says to a job.
#[derive(Debug, Clone)]
pub(crate) struct SaidText {
    pub(crate) job: JobId,
    pub(crate) text: String,
    pub(crate) by: String,
}

pub(super) fn message_sent(job: &JobId) -> CommandReply {
    CommandReply::Done { message: format!("the message was sent to {job}") }
}

/// Returns the ID of the message of a command. A command that another leader repeats has the same key.
fn message_id(key: &IdempotencyKey, job: &JobId) -> Uuid {
    let text = format!("{}\0{}\0{}\0{job}", key.caller, key.key, key.fingerprint);
    let hash = Sha256::digest(text);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

impl ExecutorContext {
    fn send_to_run(self: &Arc<Self>, run: RunId, text: String, message: OutgoingMessage) {
        if self.is_elsewhere(run) {
            return self.pass_message_on(run, &text, message);
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
            op: ControlOperation::Message { text, message_id: message.id },
            timeout: REPLY_WAIT,
            done: Box::new(move |outcome| message.conclude(outcome)),
        });
    }
}

impl OutgoingMessage {
    /// Answers the caller.
    pub(super) fn answer(self, outcome: Result<CommandReply, DaemonCommandError>) {
        let OutgoingMessage { job, by, reply, _claims: claims, .. } = self;
        // The caller may send its next message as soon as it has the reply.
        drop(claims);
        if outcome.is_ok() {
            tracing::info!(%job, by, "message sent");
        }
        reply(outcome);
    }

    fn conclude(self, outcome: Result<ControlReplyBody, ControlError>) {
        let job = self.job.clone();
        self.answer(match outcome {
            Ok(ControlReplyBody::Refused { reason }) => Err(DaemonCommandError::new(
                DaemonCommandErrorKind::Busy,
                format!("{job}: {reason}"),
            )),
            Ok(_) => Ok(message_sent(&job)),
            Err(ControlError::NotStarted { .. } | ControlError::Gone { .. }) => {
                Err(job_not_running(&job))
            }
            Err(error) => {
                Err(DaemonCommandError::new(DaemonCommandErrorKind::Trouble, error_chain(&error)))
            }
        });
    }
}
