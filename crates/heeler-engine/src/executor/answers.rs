//! Questions of runs and their answers: reads the questions, delivers the answers.
//!
//! An answer is stored before it is delivered, so a delivery can be repeated after a crash.

use std::sync::Arc;

use heeler_model::run::QuestionAnswer;
use heeler_model::{Approval, ApprovalAnswer, ApprovalId, RunId, error_chain};
use heeler_store::StoreReader;

use super::ExecutorContext;
use crate::command::{
    CommandReply, DaemonCommandError, DaemonCommandErrorKind, DispatchInput, ReplyCallback,
};
use crate::run_questions::{self, DeliveryOutcome, RunQuestionFiles};

impl ExecutorContext {
    /// Starts to watch a run's questions, and reads those that are already open.
    pub(super) fn watch_questions(self: &Arc<Self>, run: RunId) {
        if let Err(error) = self.watcher().watch_questions(run, &self.fleet.dir.run(run)) {
            tracing::error!(%run, %error, "cannot watch the questions of a run");
        }
        self.read_questions(run);
    }

    /// Sends a run's questions to the dispatcher.
    pub(super) fn read_questions(self: &Arc<Self>, run: RunId) {
        let shared = Arc::clone(self);
        self.collectors.submit(move || {
            let asks = Box::new(RunQuestionFiles::read(&shared.fleet.dir.run(run)));
            if !asks.is_empty() {
                shared.send_input(DispatchInput::QuestionsChanged {
                    run,
                    questions: asks,
                    delivered: None,
                });
            }
        });
    }

    /// Delivers stored answers again to a run of an earlier daemon, which may not have received
    /// them.
    pub(super) fn redeliver_answers(self: &Arc<Self>, run: RunId) {
        let left = StoreReader::open(&self.fleet.dir).map_err(|error| error_chain(&error));
        let left = left.and_then(|reader| {
            reader.undelivered_approvals(run).map_err(|error| error_chain(&error))
        });
        match left {
            Ok(left) => {
                for approval in left.into_iter().filter(|it| it.status.is_answered()) {
                    self.deliver_answer(approval.id, None, None);
                }
            }
            Err(why) => tracing::error!(%run, why, "cannot read the answers for a run"),
        }
    }

    /// Delivers a stored answer to its run until the run has received it or has ended. `spoken` is
    /// the unredacted answer; `reply` receives the outcome of the first attempt.
    pub(super) fn deliver_answer(
        self: &Arc<Self>,
        id: ApprovalId,
        spoken: Option<ApprovalAnswer>,
        reply: Option<(ReplyCallback, CommandReply)>,
    ) {
        let shared = Arc::clone(self);
        let work = move || {
            let approval = StoreReader::open(&shared.fleet.dir)
                .map_err(|error| error_chain(&error))
                .and_then(|reader| reader.approval(&id).map_err(|error| error_chain(&error)));
            let approval = match approval {
                Ok(Some(approval)) => approval,
                Ok(None) => return,
                Err(why) => {
                    tracing::error!(approval = %id, why, "an answer is not delivered to its run yet");
                    return;
                }
            };
            shared.deliver_to_run(approval, spoken, reply);
        };
        let thread = std::thread::Builder::new().name("heeler-answer".to_owned());
        if let Err(error) = thread.spawn(work) {
            tracing::error!(%error, "cannot start a thread");
        }
    }

    fn deliver_to_run(
        &self,
        mut approval: Approval,
        spoken: Option<ApprovalAnswer>,
        reply: Option<(ReplyCallback, CommandReply)>,
    ) {
        let (Some(run), Some(ask)) = (approval.run_id, approval.ask_id.clone()) else {
            if let Some((reply, answer)) = reply {
                reply(Ok(answer));
            }
            return;
        };
        let by = approval.responded_by.clone().unwrap_or_default();
        if let Some(spoken) = spoken {
            // The stored answer is redacted; the agent needs the original.
            approval.response = spoken.text;
            if let Some(input) = spoken.updated_input {
                approval.detail.get_or_insert_default()["updatedInput"] = input;
            }
        }
        let answer = run_questions::answer_from_approval(&approval).unwrap_or_else(|why| {
            tracing::error!(approval = %approval.id, why, "an answer cannot be used");
            QuestionAnswer::Deny { message: why, interrupt: false }
        });
        let folder = self.fleet.dir.run(run);
        let came = run_questions::deliver_until_taken(&folder, &ask, &answer, &by, |came| {
            let Some((reply, answer)) = reply else { return };
            reply(match came {
                DeliveryOutcome::TooLate(reason) => Err(DaemonCommandError::new(
                    DaemonCommandErrorKind::NotAllowed,
                    format!("{}: {reason}", approval.id),
                )),
                DeliveryOutcome::Done | DeliveryOutcome::Unavailable => Ok(answer),
            });
        });
        if came != DeliveryOutcome::Unavailable {
            let asks = Box::new(RunQuestionFiles::read(&folder));
            self.send_input(DispatchInput::QuestionsChanged {
                run,
                questions: asks,
                delivered: Some(approval.id),
            });
        }
    }
}
