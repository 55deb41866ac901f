//! Phases of the turn: idle, a message that waits for the disk, a running turn, a copy of the
//! session, files that are being restored.
//!
//! Pure: [`TurnPhase::step`] takes the old phase and an event, and returns the new phase with the
//! effects to execute. At most one turn exists, and everything that belongs to it, such as its open
//! questions, ends with it. A copy is a phase of its own because no turn may run meanwhile.

use heeler_model::JobId;
use heeler_model::job_row::{JobRow, JobRowKind};
use uuid::Uuid;

use super::fork_copy::ConversationFork;
use super::turn_to_undo::TurnToUndo;
use crate::{ChatJobInfo, ChatJobState, ChatQuestion};

/// Initiator of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TurnInitiator {
    User,
    Loop {
        /// Index of the loop.
        index: usize,
        /// Task that the loop requested.
        task: Option<String>,
    },
}

impl TurnInitiator {
    pub(super) fn loop_index(&self) -> Option<usize> {
        match self {
            TurnInitiator::User => None,
            TurnInitiator::Loop { index, .. } => Some(*index),
        }
    }

    /// Updates the index after the loop with a number (from 1), or all loops, were removed. The turn
    /// of a removed loop belongs to the person.
    fn renumber(&mut self, removed: Option<usize>) {
        if let TurnInitiator::Loop { index, .. } = self {
            match removed {
                Some(number) if *index + 1 > number => *index -= 1,
                Some(number) if *index + 1 < number => {}
                _ => *self = TurnInitiator::User,
            }
        }
    }
}

/// Message that is submitted once its entry is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingTurn {
    /// [`crate::TurnRequest::id`].
    pub(super) id: Uuid,
    pub(super) text: String,
    pub(super) initiator: TurnInitiator,
}

/// Progress of a running turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnProgress {
    /// The job has not started.
    Waiting,
    /// The agent works and accepts messages.
    Working,
    /// The job was cancelled and has not ended yet.
    Cancelled,
}

/// Turn in progress.
pub(super) struct RunningTurn {
    pub(super) job: JobId,
    pub(super) initiator: TurnInitiator,
    progress: TurnProgress,
    activity: String,
    /// Last text of the agent.
    pub(super) last_reply: String,
    /// The transcript already ends with the turn's failure notice.
    pub(super) is_end_recorded: bool,
    /// Prompts of this turn that the transcript has.
    pub(super) recorded_prompts: Vec<String>,
    /// The agent may have received prompts that the transcript lacks.
    pub(super) may_have_unrecorded_prompts: bool,
    /// Open questions of the agent.
    pub(super) questions: Vec<ChatQuestion>,
}

impl RunningTurn {
    pub(super) fn new(job: JobId, initiator: TurnInitiator) -> RunningTurn {
        RunningTurn {
            job,
            initiator,
            progress: TurnProgress::Waiting,
            activity: "starting".to_owned(),
            last_reply: String::new(),
            is_end_recorded: false,
            recorded_prompts: Vec::new(),
            may_have_unrecorded_prompts: false,
            questions: Vec::new(),
        }
    }

    /// Returns true if a row has a prompt of the person that the transcript lacks: the process
    /// ended before it was written, or the delivery was not confirmed.
    pub(super) fn is_unrecorded_prompt(&self, row: &JobRow) -> bool {
        // The first line identifies a prompt; insights may have been added below it.
        let first = |text: &str| text.trim().lines().next().unwrap_or_default().to_owned();
        let is_prompt = matches!(row.kind(), JobRowKind::System { subtype: "user_input" });
        let is_prompt = is_prompt && !row.is_synthetic();
        let received = first(row.text("content").unwrap_or_default());
        self.may_have_unrecorded_prompts
            && is_prompt
            && !self.recorded_prompts.iter().any(|known| first(known) == received)
    }

    /// Returns true if the person interrupted the turn or left.
    pub(super) fn is_cancelled(&self) -> bool {
        self.progress == TurnProgress::Cancelled
    }

    pub(super) fn set_activity(&mut self, activity: &str) {
        activity.clone_into(&mut self.activity);
    }

    fn describe(&self) -> &str {
        match self.questions.is_empty() {
            true => &self.activity,
            false => "waiting for an answer",
        }
    }

    fn update(&mut self, info: &ChatJobInfo) {
        if info.state == ChatJobState::Waiting {
            self.set_activity(info.reason.as_deref().unwrap_or("waiting"));
        }
        self.progress = match (self.progress, info.state) {
            // The job of a cancelled turn may still report that it runs.
            (TurnProgress::Cancelled, _) => TurnProgress::Cancelled,
            (_, ChatJobState::Running) => TurnProgress::Working,
            _ => TurnProgress::Waiting,
        };
    }

    fn cancel(&mut self) {
        self.progress = TurnProgress::Cancelled;
    }
}

/// Phase of the turn.
#[derive(Default)]
pub(super) enum TurnPhase {
    #[default]
    Idle,
    /// The entry of the message may not be on disk yet, so the agent does not have it.
    Submitting(PendingTurn),
    /// The agent has the message.
    Running(Box<RunningTurn>),
    /// The session is being copied, and the conversation will continue in the copy.
    Copying(Box<ConversationFork>),
    /// The files are being restored. The last turn is taken back when they are.
    Restoring(Box<TurnToUndo>),
}

/// Event that may change the phase of the turn.
pub(super) enum TurnEvent {
    /// The entry of a message was passed to the transcript.
    Begin(PendingTurn),
    /// The fleet has created a job for the pending turn.
    Accepted(JobId),
    /// The fleet has refused the pending turn.
    Refused(String),
    /// The pending turn has a job, but its rows cannot be followed.
    NotFollowed,
    /// A turn of the resumed session may not be completely recorded.
    Resumed(Box<RunningTurn>),
    /// The state of a job changed.
    JobChanged(ChatJobInfo),
    /// The person interrupts the turn.
    Interrupted,
    /// The turn is cancelled because the person leaves.
    ExitBegan,
    CopyStarted(Box<ConversationFork>),
    /// The copy may be complete.
    CopyPolled,
    CopyCancelled,
    /// The files of before a turn are being restored.
    RestoreStarted(Box<TurnToUndo>),
    /// The files were restored, or could not be.
    FilesRestored(Result<String, String>),
    /// The conversation has ended.
    ConversationEnded,
}

/// Effect of a transition.
pub(super) enum TurnEffect {
    /// Submit the pending turn if its entry is written.
    SubmitIfWritten,
    /// Show that a message was refused, and return it. Queued messages of the person return with it:
    /// they would be refused for the same reason.
    ReportRefusal(PendingTurn, String),
    /// Return a message to the input, unsent.
    ReturnMessage(PendingTurn),
    /// Show that a message was not sent before the conversation ended.
    ReportUnsent(PendingTurn),
    /// Return the queued messages to the input.
    ReturnQueue,
    /// Start the turn of the next queued message.
    StartWaitingTurn,
    CancelJob {
        job: JobId,
        /// Do not wait for the agent to stop.
        now: bool,
    },
    /// Record the end of a turn.
    RecordEnd(Box<RunningTurn>, ChatJobInfo),
    FinishCopy(Box<ConversationFork>),
    DiscardCopy(Box<ConversationFork>),
    /// Take a turn back of which the files were restored, with a description of that.
    UndoTurn(Box<TurnToUndo>, String),
    ShowError(String),
}

/// Way of a message to the agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MessageRoute {
    /// Start a turn.
    Start,
    /// Send it to the running agent.
    Deliver(JobId),
    /// Wait for the end of the turn.
    Queue,
}

/// New phase and the effects to execute in it, in order.
type TurnTransition = (TurnPhase, Vec<TurnEffect>);

impl TurnPhase {
    pub(super) fn is_idle(&self) -> bool {
        matches!(self, TurnPhase::Idle)
    }

    /// Returns true if lines that write to the session have to wait.
    pub(super) fn holds_lines(&self) -> bool {
        matches!(self, TurnPhase::Copying(_) | TurnPhase::Restoring(_))
    }

    /// Returns true if leaving has to wait: for the end of the turn, or for files that are half restored.
    pub(super) fn delays_exit(&self) -> bool {
        matches!(self, TurnPhase::Running(_) | TurnPhase::Restoring(_))
    }

    pub(super) fn running(&self) -> Option<&RunningTurn> {
        match self {
            TurnPhase::Running(turn) => Some(turn),
            _ => None,
        }
    }

    /// Returns the running turn if a job is its job.
    pub(super) fn running_job(&mut self, job: &JobId) -> Option<&mut RunningTurn> {
        match self {
            TurnPhase::Running(turn) if turn.job == *job => Some(turn),
            _ => None,
        }
    }

    /// Returns the reason for which the session can be neither copied nor changed, if any.
    pub(super) fn conflict(&self) -> Option<&'static str> {
        match self {
            TurnPhase::Idle => None,
            TurnPhase::Copying(_) => Some("the session is being copied; Esc cancels it"),
            TurnPhase::Restoring(_) => Some("the files are being restored"),
            TurnPhase::Submitting(_) | TurnPhase::Running(_) => {
                Some("a turn is in progress; Esc interrupts it")
            }
        }
    }

    /// Returns the activity for the status line; `None` if idle.
    pub(super) fn activity(&self) -> Option<&str> {
        match self {
            TurnPhase::Idle => None,
            TurnPhase::Submitting(_) => Some("waiting for the disk"),
            TurnPhase::Running(turn) => Some(turn.describe()),
            TurnPhase::Copying(_) => Some("copying the session"),
            TurnPhase::Restoring(_) => Some("restoring the files"),
        }
    }

    /// Returns the way of a message of the person.
    pub(super) fn message_route(&self) -> MessageRoute {
        match self {
            TurnPhase::Idle => MessageRoute::Start,
            TurnPhase::Running(turn) if turn.progress == TurnProgress::Working => {
                MessageRoute::Deliver(turn.job.clone())
            }
            _ => MessageRoute::Queue,
        }
    }

    /// Updates the loop of the turn after loops were removed; returns the initiator of a running
    /// turn of a loop, to be saved.
    pub(super) fn renumber_loop(&mut self, removed: Option<usize>) -> Option<TurnInitiator> {
        let initiator = match self {
            TurnPhase::Submitting(pending) => &mut pending.initiator,
            TurnPhase::Running(turn) => &mut turn.initiator,
            _ => return None,
        };
        initiator.loop_index()?;
        initiator.renumber(removed);
        let initiator = initiator.clone();
        self.running().map(|_| initiator)
    }

    /// Returns the phase after an event, and the effects to execute.
    pub(super) fn step(self, event: TurnEvent) -> TurnTransition {
        match (self, event) {
            (TurnPhase::Idle, TurnEvent::Begin(pending)) => {
                (TurnPhase::Submitting(pending), vec![TurnEffect::SubmitIfWritten])
            }
            (TurnPhase::Idle, TurnEvent::Resumed(turn)) => (TurnPhase::Running(turn), Vec::new()),
            (TurnPhase::Idle, TurnEvent::CopyStarted(copy)) => {
                (TurnPhase::Copying(copy), Vec::new())
            }
            (TurnPhase::Idle, TurnEvent::RestoreStarted(undo)) => {
                (TurnPhase::Restoring(undo), Vec::new())
            }
            (TurnPhase::Submitting(pending), event) => step_submitting(pending, event),
            (TurnPhase::Running(turn), event) => step_running(turn, event),
            (TurnPhase::Copying(copy), event) => step_copying(copy, event),
            (TurnPhase::Restoring(undo), event) => step_restoring(undo, event),
            (TurnPhase::Idle, event) => (TurnPhase::Idle, refuse(event)),
        }
    }
}

fn step_submitting(pending: PendingTurn, event: TurnEvent) -> TurnTransition {
    match event {
        TurnEvent::Accepted(job) => {
            let mut turn = RunningTurn::new(job, pending.initiator);
            // Its entry is on disk, so the row of the prompt must not become a second one.
            turn.recorded_prompts.push(pending.text);
            (TurnPhase::Running(Box::new(turn)), Vec::new())
        }
        TurnEvent::Refused(why) => {
            let report = TurnEffect::ReportRefusal(pending, why);
            (TurnPhase::Idle, vec![report, TurnEffect::StartWaitingTurn])
        }
        TurnEvent::NotFollowed => (TurnPhase::Idle, vec![TurnEffect::StartWaitingTurn]),
        TurnEvent::ConversationEnded => (TurnPhase::Idle, vec![TurnEffect::ReportUnsent(pending)]),
        other => (TurnPhase::Submitting(pending), refuse(other)),
    }
}

fn step_running(mut turn: Box<RunningTurn>, event: TurnEvent) -> TurnTransition {
    match event {
        TurnEvent::JobChanged(info) if info.job == turn.job => match info.state {
            ChatJobState::Waiting | ChatJobState::Running => {
                turn.update(&info);
                (TurnPhase::Running(turn), Vec::new())
            }
            ChatJobState::Done | ChatJobState::Failed => {
                let record = TurnEffect::RecordEnd(turn, info);
                (TurnPhase::Idle, vec![record, TurnEffect::StartWaitingTurn])
            }
        },
        TurnEvent::Interrupted => {
            // The second interrupt does not wait for the agent.
            let (job, now) = (turn.job.clone(), turn.is_cancelled());
            turn.cancel();
            // Queued messages were meant for the interrupted turn: they return to the input for
            // editing.
            let effects = vec![TurnEffect::ReturnQueue, TurnEffect::CancelJob { job, now }];
            (TurnPhase::Running(turn), effects)
        }
        TurnEvent::ExitBegan => {
            let job = turn.job.clone();
            // The turn then ends as interrupted, not as failed.
            turn.cancel();
            (TurnPhase::Running(turn), vec![TurnEffect::CancelJob { job, now: false }])
        }
        // The daemon keeps the job, and a resumed session records the rest of its rows.
        TurnEvent::ConversationEnded => (TurnPhase::Idle, Vec::new()),
        other => (TurnPhase::Running(turn), refuse(other)),
    }
}

fn step_copying(copy: Box<ConversationFork>, event: TurnEvent) -> TurnTransition {
    match event {
        TurnEvent::CopyPolled if copy.is_done() => {
            (TurnPhase::Idle, vec![TurnEffect::FinishCopy(copy), TurnEffect::StartWaitingTurn])
        }
        TurnEvent::CopyCancelled | TurnEvent::ConversationEnded => {
            (TurnPhase::Idle, vec![TurnEffect::DiscardCopy(copy), TurnEffect::StartWaitingTurn])
        }
        other => (TurnPhase::Copying(copy), refuse(other)),
    }
}

fn step_restoring(undo: Box<TurnToUndo>, event: TurnEvent) -> TurnTransition {
    match event {
        TurnEvent::FilesRestored(Ok(done)) => {
            (TurnPhase::Idle, vec![TurnEffect::UndoTurn(undo, done), TurnEffect::StartWaitingTurn])
        }
        TurnEvent::FilesRestored(Err(why)) => {
            (TurnPhase::Idle, vec![TurnEffect::ShowError(why), TurnEffect::StartWaitingTurn])
        }
        // The turn stays in the conversation. Its files are restored, or can be by another `/rewind`.
        TurnEvent::ConversationEnded => (TurnPhase::Idle, Vec::new()),
        other => (TurnPhase::Restoring(undo), refuse(other)),
    }
}

/// Returns the effects of an event that a phase does not accept. A message or a copy is not dropped
/// silently; every other event has no meaning there, such as the state of a job that has ended.
fn refuse(event: TurnEvent) -> Vec<TurnEffect> {
    match event {
        TurnEvent::Begin(pending) => vec![TurnEffect::ReturnMessage(pending)],
        TurnEvent::CopyStarted(copy) => vec![TurnEffect::DiscardCopy(copy)],
        // The result arrived after the conversation has gone on, and the person has to know it.
        TurnEvent::FilesRestored(Err(why)) => vec![TurnEffect::ShowError(why)],
        TurnEvent::FilesRestored(Ok(_)) | TurnEvent::RestoreStarted(_) => Vec::new(),
        TurnEvent::Accepted(_)
        | TurnEvent::Refused(_)
        | TurnEvent::NotFollowed
        | TurnEvent::Resumed(_)
        | TurnEvent::JobChanged(_)
        | TurnEvent::Interrupted
        | TurnEvent::ExitBegan
        | TurnEvent::CopyPolled
        | TurnEvent::CopyCancelled
        | TurnEvent::ConversationEnded => Vec::new(),
    }
}
