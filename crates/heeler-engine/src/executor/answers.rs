//! Questions of runs and their answers: reads the questions, delivers the answers.
//!
//! An answer is stored before it is delivered, so a delivery can be repeated after a crash.

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use heeler_model::run::{ControlOperation, ControlReplyBody, QuestionAnswer};
use heeler_model::{Approval, ApprovalAnswer, ApprovalId, RunId, error_chain};
use heeler_store::StoreReader;

use super::ExecutorContext;
use super::control_loop::{ControlExchange, ControlLane};
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind, ReplyCallback};
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};
use crate::run_questions::{self, DeliveryOutcome, RunQuestionFiles};
use crate::work_limits::KeyClaim;
use heeler_control::{ControlError, REPLY_WAIT, read_started_file};

/// First delay before an answer is delivered again.
const ANSWER_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Longest delay between two attempts.
const ANSWER_RETRY_DELAY_MAX: Duration = Duration::from_secs(2);

impl ExecutorContext {
    /// Starts to watch a run's questions, and reads those that are already open.
    pub(super) fn watch_questions(self: &Arc<Self>, run: RunId) {
        // The watch comes first, so that a question between the two steps is not missed.
        if let Err(error) = self.watcher().watch_questions(run, &self.fleet.dir.run(run)) {
            tracing::error!(%run, %error, "cannot watch the questions of a run");
        }
        self.read_questions(run);
    }

    /// Sends a run's questions to the dispatcher. One queued request for each run is enough, because
    /// it reads the files when it starts.
    pub(super) fn read_questions(self: &Arc<Self>, run: RunId) {
        let Some(claim) = self.limits.question_reads.claim(run) else { return };
        let shared = Arc::clone(self);
        self.collectors.submit(move || {
            // A question that is asked from here on needs a request of its own.
            drop(claim);
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
                // Questions without an answer stay open; only answers are delivered again.
                for approval in left.into_iter().filter(|it| it.status.is_answered()) {
                    self.deliver_answer(approval.id, None, None);
                }
            }
            Err(why) => tracing::error!(%run, why, "cannot read the answers for a run"),
        }
    }

    /// Delivers a stored answer to its run until the run has received it or has ended. `spoken` is
    /// the unredacted answer; `reply` receives the outcome of the first attempt.
    ///
    /// There is one delivery for each answered question, and a run has a limited number of those.
    pub(super) fn deliver_answer(
        self: &Arc<Self>,
        id: ApprovalId,
        spoken: Option<ApprovalAnswer>,
        reply: Option<(ReplyCallback, CommandReply)>,
    ) {
        // A question is answered once, so only a repeated delivery finds another one, and that has
        // no caller.
        let Some(claim) = self.limits.answers.claim(id.clone()) else { return };
        self.read_and_deliver(StoredAnswer { id, spoken, reply, wait: ANSWER_RETRY_DELAY, claim });
    }

    /// Reads a stored answer and delivers it. If it cannot be read, it is read again later.
    fn read_and_deliver(self: &Arc<Self>, mut stored: StoredAnswer) {
        let shared = Arc::clone(self);
        self.deliverers.submit(move || {
            let approval =
                StoreReader::open(&shared.fleet.dir).map_err(|error| error_chain(&error)).and_then(
                    |reader| reader.approval(&stored.id).map_err(|error| error_chain(&error)),
                );
            match approval {
                Ok(Some(approval)) => {
                    let StoredAnswer { spoken, reply, claim, .. } = stored;
                    shared.deliver_to_run(approval, spoken, reply, claim);
                }
                // A restore has removed the question, and its run with it.
                Ok(None) => stored.answer_caller(),
                Err(why) => {
                    let approval = &stored.id;
                    tracing::error!(%approval, why, "an answer is not delivered to its run yet");
                    // The caller does not wait for retries: the answer is recorded.
                    stored.answer_caller();
                    let wait = stored.wait;
                    stored.wait = (wait * 2).min(ANSWER_RETRY_DELAY_MAX);
                    let again = Arc::clone(&shared);
                    shared.control.submit_after(wait, move || again.read_and_deliver(stored));
                }
            }
        });
    }

    fn deliver_to_run(
        self: &Arc<Self>,
        mut approval: Approval,
        spoken: Option<ApprovalAnswer>,
        reply: Option<(ReplyCallback, CommandReply)>,
        claim: KeyClaim<ApprovalId>,
    ) {
        // The answer to a gate goes to its workflow run, which the transaction has done.
        let (Some(run), Some(ask)) = (approval.run_id, approval.ask_id.clone()) else {
            if let Some((reply, answer)) = reply {
                reply(Ok(answer));
            }
            return;
        };
        // Its own host finds the answer on record.
        if self.is_elsewhere(run) {
            if let Some((reply, answer)) = reply {
                reply(Ok(answer));
            }
            return;
        }
        let by = approval.responded_by.clone().unwrap_or_default();
        let shown = approval.shown_hash();
        if let Some(spoken) = spoken {
            // The stored answer is redacted; the agent needs the original.
            approval.response = spoken.text;
            if let Some(input) = spoken.updated_input {
                approval.detail.get_or_insert_default()["updatedInput"] = input;
            }
        }
        // The agent waits for an answer, so one that cannot be converted is denied.
        let answer = run_questions::answer_from_approval(&approval).unwrap_or_else(|why| {
            tracing::error!(approval = %approval.id, why, "an answer cannot be used");
            QuestionAnswer::Deny { message: why, interrupt: false }
        });
        let (approval, folder) = (approval.id, self.fleet.dir.run(run));
        let wait = ANSWER_RETRY_DELAY;
        // A kill here leaves a recorded answer, which the next daemon delivers.
        fault::reach(FaultPoint::BeforeDelivery);
        self.attempt_delivery(AnswerDelivery {
            approval,
            run,
            folder,
            ask,
            answer,
            by,
            shown,
            reply,
            wait,
            _claim: claim,
        });
    }

    fn attempt_delivery(self: &Arc<Self>, delivery: AnswerDelivery) {
        let started = match read_started_file(&delivery.folder) {
            Ok(started) => started,
            // A run that is starting has no such file yet, so this is retried like a lost
            // connection.
            Err(error) => return self.conclude_delivery(delivery, Err(error)),
        };
        let (ask, answer) = (delivery.ask.clone(), delivery.answer.clone());
        let (shared, by) = (Arc::clone(self), delivery.by.clone());
        let shown = delivery.shown.clone();
        self.control.send(ControlExchange {
            lane: ControlLane::Answer,
            socket: started.socket,
            folder: delivery.folder.clone(),
            protocol: started.protocol,
            op: ControlOperation::Answer { ask, answer, by, shown },
            timeout: REPLY_WAIT,
            done: Box::new(move |outcome| shared.conclude_delivery(delivery, outcome)),
        });
    }

    fn conclude_delivery(
        self: &Arc<Self>,
        mut delivery: AnswerDelivery,
        outcome: Result<ControlReplyBody, ControlError>,
    ) {
        let folder = &delivery.folder;
        let outcome = run_questions::delivery_outcome(folder, &delivery.ask, outcome);
        // The caller does not wait for retries: the answer is recorded and will be delivered.
        delivery.answer_caller(&outcome);
        if outcome != DeliveryOutcome::Unavailable {
            let (run, approval) = (delivery.run, delivery.approval.clone());
            let asks = Box::new(RunQuestionFiles::read(&delivery.folder));
            drop(delivery);
            return self.send_input(DispatchInput::QuestionsChanged {
                run,
                questions: asks,
                delivered: Some(approval),
            });
        }
        // Without this check the answer to a dead run would be retried forever.
        if run_questions::may_receive_answers(&delivery.folder) {
            let (shared, wait) = (Arc::clone(self), delivery.wait);
            delivery.wait = (wait * 2).min(ANSWER_RETRY_DELAY_MAX);
            self.control.submit_after(wait, move || shared.attempt_delivery(delivery));
        }
    }
}

/// An answer on record, to be read and delivered.
struct StoredAnswer {
    id: ApprovalId,
    /// The unredacted answer.
    spoken: Option<ApprovalAnswer>,
    /// Caller that waits for the outcome of the first attempt, with its reply.
    reply: Option<(ReplyCallback, CommandReply)>,
    /// Delay before the next attempt.
    wait: Duration,
    claim: KeyClaim<ApprovalId>,
}

impl StoredAnswer {
    fn answer_caller(&mut self) {
        if let Some((reply, answer)) = self.reply.take() {
            reply(Ok(answer));
        }
    }
}

/// An answer that the run has not received.
struct AnswerDelivery {
    approval: ApprovalId,
    run: RunId,
    folder: Utf8PathBuf,
    /// ID of the question.
    ask: String,
    answer: QuestionAnswer,
    by: String,
    /// Hash of what is on record as shown.
    shown: Option<String>,
    /// Caller that waits for the outcome of the first attempt, with its reply.
    reply: Option<(ReplyCallback, CommandReply)>,
    /// Delay before the next attempt.
    wait: Duration,
    _claim: KeyClaim<ApprovalId>,
}

impl AnswerDelivery {
    fn answer_caller(&mut self, outcome: &DeliveryOutcome) {
        let Some((reply, answer)) = self.reply.take() else { return };
        reply(match outcome {
            DeliveryOutcome::TooLate(reason) => Err(DaemonCommandError::new(
                DaemonCommandErrorKind::NotAllowed,
                format!("{}: {reason}", self.approval),
            )),
            // An answer that is recorded counts, even if the run cannot receive it yet.
            DeliveryOutcome::Done | DeliveryOutcome::Unavailable => Ok(answer),
        });
    }
}
