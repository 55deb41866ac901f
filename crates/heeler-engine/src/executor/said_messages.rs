//! Sends recorded messages of chats to running jobs, each exactly once.
//!
//! The runner recognizes the ID of a message that an earlier daemon sent. If the run has ended, the
//! job's transcript shows whether it took the message: the row has the same ID. An attempt without a
//! clear outcome is repeated. Start at [`EffectExecutor::send_said_message`].

use std::sync::Arc;
use std::time::Duration;

use heeler_control::{ControlError, REPLY_WAIT, read_started_file};
use heeler_model::run::{ControlOperation, ControlReplyBody};
use heeler_model::{JobId, RunId, error_chain};
use uuid::Uuid;

use super::control_loop::{ControlExchange, ControlLane};
use super::{EffectExecutor, ExecutorContext};
use crate::chat::SaidMessageResult;
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};
use crate::sessions::has_row;

/// Delay after an attempt without a clear outcome.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// A message on its way to a run.
#[derive(Debug, Clone)]
pub(crate) struct SaidMessageDelivery {
    /// ID of the effect.
    pub(crate) effect: String,
    pub(crate) job: JobId,
    /// Current run of the job; `None` if it has none.
    pub(crate) run: Option<RunId>,
    /// ID of the message, and of its row. Records of earlier releases have none.
    pub(crate) message_id: Option<Uuid>,
    pub(crate) text: String,
}

impl EffectExecutor {
    /// Sends a message. The dispatcher receives the outcome.
    pub(crate) fn send_said_message(&self, delivery: SaidMessageDelivery) {
        let shared = Arc::clone(&self.shared);
        self.shared.deliverers.submit(move || shared.attempt_said_message(delivery));
    }
}

impl ExecutorContext {
    fn attempt_said_message(self: &Arc<Self>, delivery: SaidMessageDelivery) {
        // An earlier run of the job may have taken it too.
        if self.has_taken(&delivery) {
            return self.conclude_said_message(delivery, true);
        }
        let run = delivery.run.filter(|run| !self.is_elsewhere(*run));
        let Some(run) = run else { return self.conclude_said_message(delivery, false) };
        let folder = self.fleet.dir.run(run);
        let started = match read_started_file(&folder) {
            Ok(started) => started,
            Err(error) => return self.handle_said_outcome(delivery, Err(error)),
        };
        let (text, message_id) = (delivery.text.clone(), delivery.message_id);
        let shared = Arc::clone(self);
        self.control.send(ControlExchange {
            lane: ControlLane::Message,
            socket: started.socket,
            folder,
            protocol: started.protocol,
            op: ControlOperation::Message { text, message_id },
            timeout: REPLY_WAIT,
            done: Box::new(move |outcome| shared.handle_said_outcome(delivery, outcome)),
        });
    }

    fn handle_said_outcome(
        self: &Arc<Self>,
        delivery: SaidMessageDelivery,
        outcome: Result<ControlReplyBody, ControlError>,
    ) {
        match outcome {
            Ok(ControlReplyBody::Refused { reason }) => {
                tracing::debug!(job = %delivery.job, reason, "a message is not taken");
                self.conclude_said_message(delivery, false);
            }
            Ok(_) => {
                fault::reach(FaultPoint::MessageSaid);
                self.conclude_said_message(delivery, true);
            }
            // The runner may have taken the message, but its reply was lost.
            Err(error @ ControlError::Io { .. }) => {
                let reason = error_chain(&error);
                tracing::warn!(job = %delivery.job, reason, "a message to a job is sent again");
                let shared = Arc::clone(self);
                self.control
                    .submit_after(RETRY_DELAY, move || shared.attempt_said_message(delivery));
            }
            // No runner serves the run any more, so the transcript is complete.
            Err(_) => {
                let is_taken = self.has_taken(&delivery);
                self.conclude_said_message(delivery, is_taken);
            }
        }
    }

    /// Returns true if the job's transcript has the message.
    fn has_taken(&self, delivery: &SaidMessageDelivery) -> bool {
        let transcript = self.fleet.dir.job_transcript(&delivery.job);
        delivery.message_id.is_some_and(|id| has_row(&transcript, id))
    }

    fn conclude_said_message(&self, delivery: SaidMessageDelivery, is_taken: bool) {
        let result = SaidMessageResult { effect: delivery.effect, is_taken };
        // A dispatcher that has ended leaves it to the next one.
        self.send_input(DispatchInput::SaidMessageAttempted(result));
    }
}
