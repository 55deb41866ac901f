//! Phases of a conversation: open, the steps of the exit, ended.
//!
//! Pure: [`ConversationPhase::step`] takes the old phase and an event, and returns the new phase with
//! the effects to execute. It is the only place that decides which events a phase accepts. The phase
//! does not say if a turn runs (see [`super::turn_phase`]): a turn goes on while the person is asked
//! about workers, and may outlast every time limit of the exit.

use heeler_model::JobId;
use jiff::{SignedDuration, Timestamp};

use super::options::WorkerExitPolicy;

/// Time limit for the agent's insights.
pub const INSIGHTS_TIMEOUT: SignedDuration = SignedDuration::from_secs(20);
/// Time limit for the other steps.
pub const EXIT_WAIT: SignedDuration = SignedDuration::from_secs(5);

/// Phase of a conversation.
#[derive(Debug, Default, PartialEq)]
pub(super) enum ConversationPhase {
    /// Lines of the person are handled.
    #[default]
    Open,
    /// The person wants to leave and is asked about running workers.
    AskingAboutWorkers,
    /// Waits for the turn, and for the workers if they are being stopped.
    EndingJobs { workers: WorkerExitChoice, until: Timestamp },
    /// Waits for the agent's insights.
    CollectingInsights { job: JobId, reply: String, until: Timestamp },
    /// Everything is saved, or could not be.
    Ended,
}

/// Treatment of running workers that was chosen for an exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerExitChoice {
    Stop,
    KeepRunning,
}

/// Event that may change the phase.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ConversationPhaseEvent {
    /// The person entered a line.
    LineEntered(String),
    /// The person wants to leave.
    ExitRequested,
    /// The person wants to leave and to let the turn and the workers go on.
    BackgroundRequested,
    /// The terminal was closed.
    TerminalClosed,
    /// Time has passed, or a job has ended.
    ProgressMade,
    /// The agent was asked for insights.
    InsightsRequested(JobId),
    /// There will be no insights; the reason if the agent should have been asked.
    InsightsSkipped(Option<String>),
    /// The insights job has this text so far.
    InsightsReply(String),
    /// The insights job has ended, with the reason if it failed.
    InsightsEnded(Result<(), String>),
}

/// Facts of the conversation on which a transition depends.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConversationPhaseFacts {
    pub(super) now: Timestamp,
    pub(super) policy: WorkerExitPolicy,
    /// A person is present and an answer could be handled.
    pub(super) can_ask: bool,
    pub(super) is_turn_running: bool,
    /// Number of workers with a job that has not ended.
    pub(super) live_workers: usize,
}

/// Effect of a transition.
#[derive(Debug, PartialEq)]
pub(super) enum ConversationPhaseEffect {
    /// Handle a line as a command or message.
    HandleLine(String),
    /// Ask the person about this number of running workers.
    AskAboutWorkers(usize),
    ShowNotice(&'static str),
    ShowError(&'static str),
    ShowExitMessage(String),
    /// Start the messages that were held back while the person was asked.
    StartWaitingTurn,
    ReportWorkers(WorkerExitChoice),
    /// Tell the person how to follow the turn that goes on.
    ReportBackground,
    /// Cancel the running turn.
    CancelTurn,
    StopWorkers,
    /// Send [`ConversationPhaseEvent::ProgressMade`]: the effects before this one may have changed the facts.
    CheckProgress,
    /// Ask the agent for insights, then send [`ConversationPhaseEvent::InsightsRequested`] or
    /// [`ConversationPhaseEvent::InsightsSkipped`].
    RequestInsights,
    /// Cancel the insights job, whose answer will not be read.
    CancelInsights(JobId),
    SaveInsights(String),
    /// Save the session and tell the person how to resume it.
    SaveSession,
}

/// New phase and the effects to execute in it, in order.
type ConversationPhaseTransition = (ConversationPhase, Vec<ConversationPhaseEffect>);

impl ConversationPhase {
    pub(super) fn is_open(&self) -> bool {
        *self == ConversationPhase::Open
    }

    pub(super) fn has_ended(&self) -> bool {
        *self == ConversationPhase::Ended
    }

    /// Returns true if workers are being stopped, including those that start later.
    pub(super) fn stops_workers(&self) -> bool {
        matches!(self, ConversationPhase::EndingJobs { workers: WorkerExitChoice::Stop, .. })
    }

    pub(super) fn is_insights_job(&self, wanted: &JobId) -> bool {
        matches!(self, ConversationPhase::CollectingInsights { job, .. } if job == wanted)
    }

    /// Returns the phase after an event, and the effects to execute.
    pub(super) fn step(
        self,
        event: ConversationPhaseEvent,
        facts: &ConversationPhaseFacts,
    ) -> ConversationPhaseTransition {
        match self {
            ConversationPhase::Open => step_open(event, facts),
            ConversationPhase::AskingAboutWorkers => step_asking(event, facts),
            ConversationPhase::EndingJobs { workers, until } => {
                step_ending(workers, until, event, facts)
            }
            ConversationPhase::CollectingInsights { job, reply, until } => {
                step_collecting(job, reply, until, event, facts)
            }
            ConversationPhase::Ended => (ConversationPhase::Ended, Vec::new()),
        }
    }
}

fn step_open(
    event: ConversationPhaseEvent,
    facts: &ConversationPhaseFacts,
) -> ConversationPhaseTransition {
    match event {
        ConversationPhaseEvent::LineEntered(line) => {
            (ConversationPhase::Open, vec![ConversationPhaseEffect::HandleLine(line)])
        }
        ConversationPhaseEvent::ExitRequested
            if facts.policy == WorkerExitPolicy::Ask && facts.can_ask && facts.live_workers > 0 =>
        {
            let ask = ConversationPhaseEffect::AskAboutWorkers(facts.live_workers);
            (ConversationPhase::AskingAboutWorkers, vec![ask])
        }
        ConversationPhaseEvent::ExitRequested | ConversationPhaseEvent::TerminalClosed => {
            end_jobs(unasked(facts), facts)
        }
        ConversationPhaseEvent::BackgroundRequested if facts.is_turn_running => end(vec![
            ConversationPhaseEffect::ReportWorkers(WorkerExitChoice::KeepRunning),
            ConversationPhaseEffect::ReportBackground,
        ]),
        ConversationPhaseEvent::BackgroundRequested => {
            let refuse = ConversationPhaseEffect::ShowError(
                "the agent does not work on a message, so nothing can go on; /exit leaves",
            );
            (ConversationPhase::Open, vec![refuse])
        }
        // An insights job exists only in the phase that waits for it.
        ConversationPhaseEvent::ProgressMade
        | ConversationPhaseEvent::InsightsRequested(_)
        | ConversationPhaseEvent::InsightsSkipped(_)
        | ConversationPhaseEvent::InsightsReply(_)
        | ConversationPhaseEvent::InsightsEnded(_) => (ConversationPhase::Open, Vec::new()),
    }
}

fn step_asking(
    event: ConversationPhaseEvent,
    facts: &ConversationPhaseFacts,
) -> ConversationPhaseTransition {
    let asking = |effect| (ConversationPhase::AskingAboutWorkers, vec![effect]);
    match event {
        ConversationPhaseEvent::LineEntered(line) => match line.trim().to_lowercase().as_str() {
            "stop" | "s" => end_jobs(WorkerExitChoice::Stop, facts),
            "leave" | "l" => end_jobs(WorkerExitChoice::KeepRunning, facts),
            "stay" => {
                let effects = vec![
                    ConversationPhaseEffect::ShowNotice("continuing"),
                    ConversationPhaseEffect::StartWaitingTurn,
                ];
                (ConversationPhase::Open, effects)
            }
            // A second request to leave ends the session at once, as everywhere.
            "/exit" | "/quit" | "/q" => end(Vec::new()),
            _ => asking(ConversationPhaseEffect::ShowNotice("stop, leave or stay?")),
        },
        ConversationPhaseEvent::ExitRequested => end(Vec::new()),
        // Nobody can answer the question any more.
        ConversationPhaseEvent::TerminalClosed => end_jobs(unasked(facts), facts),
        // It is a command, and lines are answers here.
        ConversationPhaseEvent::BackgroundRequested
        | ConversationPhaseEvent::ProgressMade
        | ConversationPhaseEvent::InsightsRequested(_)
        | ConversationPhaseEvent::InsightsSkipped(_)
        | ConversationPhaseEvent::InsightsReply(_)
        | ConversationPhaseEvent::InsightsEnded(_) => {
            (ConversationPhase::AskingAboutWorkers, Vec::new())
        }
    }
}

fn step_ending(
    workers: WorkerExitChoice,
    until: Timestamp,
    event: ConversationPhaseEvent,
    facts: &ConversationPhaseFacts,
) -> ConversationPhaseTransition {
    let ending = |effects| (ConversationPhase::EndingJobs { workers, until }, effects);
    match event {
        ConversationPhaseEvent::LineEntered(_) => ending(vec![refuse_line()]),
        ConversationPhaseEvent::ExitRequested => end(Vec::new()),
        ConversationPhaseEvent::ProgressMade => {
            let waits_for_workers = workers == WorkerExitChoice::Stop && facts.live_workers > 0;
            let waits = facts.is_turn_running || waits_for_workers;
            // After the time limit the exit continues; the daemon keeps the jobs that are left.
            match waits && facts.now < until {
                true => ending(Vec::new()),
                // The phase changes only when the effect reports if the agent was asked.
                false => ending(vec![ConversationPhaseEffect::RequestInsights]),
            }
        }
        ConversationPhaseEvent::InsightsRequested(job) => {
            let until = deadline_after(facts.now, INSIGHTS_TIMEOUT);
            let reply = String::new();
            (ConversationPhase::CollectingInsights { job, reply, until }, Vec::new())
        }
        ConversationPhaseEvent::InsightsSkipped(None) => end(Vec::new()),
        ConversationPhaseEvent::InsightsSkipped(Some(why)) => end(vec![insights_failed(&why)]),
        // A closed terminal hurries nothing.
        ConversationPhaseEvent::TerminalClosed
        | ConversationPhaseEvent::BackgroundRequested
        | ConversationPhaseEvent::InsightsReply(_)
        | ConversationPhaseEvent::InsightsEnded(_) => ending(Vec::new()),
    }
}

fn step_collecting(
    job: JobId,
    reply: String,
    until: Timestamp,
    event: ConversationPhaseEvent,
    facts: &ConversationPhaseFacts,
) -> ConversationPhaseTransition {
    let collecting = |job, reply, effects| {
        (ConversationPhase::CollectingInsights { job, reply, until }, effects)
    };
    match event {
        ConversationPhaseEvent::LineEntered(_) => collecting(job, reply, vec![refuse_line()]),
        ConversationPhaseEvent::ExitRequested => {
            end(vec![ConversationPhaseEffect::CancelInsights(job)])
        }
        ConversationPhaseEvent::ProgressMade if facts.now >= until => {
            let late = insights_failed("the agent took too long");
            end(vec![ConversationPhaseEffect::CancelInsights(job), late])
        }
        // Only the agent's last text is its answer.
        ConversationPhaseEvent::InsightsReply(reply) => collecting(job, reply, Vec::new()),
        ConversationPhaseEvent::InsightsEnded(Ok(())) => {
            end(vec![ConversationPhaseEffect::SaveInsights(reply)])
        }
        ConversationPhaseEvent::InsightsEnded(Err(why)) => end(vec![insights_failed(&why)]),
        ConversationPhaseEvent::TerminalClosed
        | ConversationPhaseEvent::BackgroundRequested
        | ConversationPhaseEvent::ProgressMade
        | ConversationPhaseEvent::InsightsRequested(_)
        | ConversationPhaseEvent::InsightsSkipped(_) => collecting(job, reply, Vec::new()),
    }
}

/// Returns the treatment of workers if no person chooses one.
fn unasked(facts: &ConversationPhaseFacts) -> WorkerExitChoice {
    match facts.policy {
        WorkerExitPolicy::Stop => WorkerExitChoice::Stop,
        // Workers that keep running can still be stopped later, but a stop cannot be taken back.
        WorkerExitPolicy::Ask | WorkerExitPolicy::KeepRunning => WorkerExitChoice::KeepRunning,
    }
}

fn end_jobs(
    workers: WorkerExitChoice,
    facts: &ConversationPhaseFacts,
) -> ConversationPhaseTransition {
    let until = deadline_after(facts.now, EXIT_WAIT);
    // Reported first, while the workers are still alive.
    let mut effects =
        vec![ConversationPhaseEffect::ReportWorkers(workers), ConversationPhaseEffect::CancelTurn];
    if workers == WorkerExitChoice::Stop {
        effects.push(ConversationPhaseEffect::StopWorkers);
    }
    effects.push(ConversationPhaseEffect::CheckProgress);
    (ConversationPhase::EndingJobs { workers, until }, effects)
}

fn end(mut effects: Vec<ConversationPhaseEffect>) -> ConversationPhaseTransition {
    effects.push(ConversationPhaseEffect::SaveSession);
    (ConversationPhase::Ended, effects)
}

fn refuse_line() -> ConversationPhaseEffect {
    ConversationPhaseEffect::ShowError("the session is ending; Ctrl+C ends it at once")
}

fn insights_failed(why: &str) -> ConversationPhaseEffect {
    ConversationPhaseEffect::ShowExitMessage(format!("Insights: not written, {why}"))
}

fn deadline_after(now: Timestamp, wait: SignedDuration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}
