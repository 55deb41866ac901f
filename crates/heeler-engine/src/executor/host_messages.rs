//! Messages to running agents of other hosts. The leader records a message and waits for the answer of the
//! host, which delivers it like a message of a chat: once, by its ID. Start at
//! [`ExecutorContext::pass_message_on`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use heeler_model::redact::SecretRedactor;
use heeler_model::{RunId, error_chain};
use heeler_store::{HostLink, RunMessage, RunMessageState};
use uuid::Uuid;

use super::ExecutorContext;
use super::messages::{OutgoingMessage, message_sent};
use crate::command::{DaemonCommandError, DaemonCommandErrorKind, job_not_running};

/// Longest wait for the answer of the host.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Interval at which the answer is looked for.
const ANSWER_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A message that waits for its host.
struct HostBoundMessage {
    id: Uuid,
    message: OutgoingMessage,
    deadline: Instant,
}

impl ExecutorContext {
    /// Passes a message on to the host of its run.
    pub(super) fn pass_message_on(
        self: &Arc<Self>,
        run: RunId,
        text: &str,
        message: OutgoingMessage,
    ) {
        let id = message.id.unwrap_or_else(Uuid::new_v4);
        // As in prompts, secrets do not pass through the database.
        let text = SecretRedactor::new(&self.setup().secrets()).redact_text(text).into_owned();
        let row = RunMessage { id, run, job: message.job.clone(), text };
        let sent = HostLink::connect(&self.fleet.dir).map_err(|error| error_chain(&error));
        let sent =
            sent.and_then(|link| link.send_run_message(&row).map_err(|error| error_chain(&error)));
        match sent {
            Ok(()) => {
                let deadline = Instant::now() + ANSWER_WAIT;
                self.look_for_answer(HostBoundMessage { id, message, deadline });
            }
            Err(why) => {
                message.answer(Err(DaemonCommandError::new(DaemonCommandErrorKind::Trouble, why)));
            }
        }
    }

    fn look_for_answer(self: &Arc<Self>, passed: HostBoundMessage) {
        let state = self.readers.reader().map_err(|error| error_chain(&error));
        let state = state
            .and_then(|it| it.run_message_state(passed.id).map_err(|error| error_chain(&error)));
        match state {
            // The server may be back soon.
            Ok(RunMessageState::Open) | Err(_) if Instant::now() < passed.deadline => {
                let shared = Arc::clone(self);
                self.control
                    .submit_after(ANSWER_POLL_INTERVAL, move || shared.look_for_answer(passed));
            }
            _ => self.conclude_passed_message(passed),
        }
    }

    fn conclude_passed_message(&self, passed: HostBoundMessage) {
        let HostBoundMessage { id, message, .. } = passed;
        let state = HostLink::connect(&self.fleet.dir).map_err(|error| error_chain(&error));
        let state =
            state.and_then(|link| link.forget_run_message(id).map_err(|error| error_chain(&error)));
        let job = message.job.clone();
        let refuse = |kind, text: String| Err(DaemonCommandError::new(kind, text));
        message.answer(match state {
            Ok(RunMessageState::Taken) => Ok(message_sent(&job)),
            Ok(RunMessageState::Refused) => {
                let text =
                    format!("{job} did not take the message: it has ended, or takes none now");
                refuse(DaemonCommandErrorKind::Busy, text)
            }
            Ok(RunMessageState::Missing) => Err(job_not_running(&job)),
            Ok(RunMessageState::Open) => {
                let text = format!(
                    "the host of {job} did not answer; it is not known if the message was delivered"
                );
                refuse(DaemonCommandErrorKind::Trouble, text)
                    .map_err(|refused| refused.with_hint("heeler host list"))
            }
            Err(why) => refuse(DaemonCommandErrorKind::Trouble, why),
        });
    }
}
