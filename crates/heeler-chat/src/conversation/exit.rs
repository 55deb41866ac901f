//! The one way out: workers are stopped or left to the daemon, what was learned is written down, the
//! session is saved. A second wish to leave ends it at once; nothing is lost by that.

use heeler_model::JobId;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::workers::ConversationWorker;
use super::{Conversation, WorkerExitPolicy};
use crate::{ChatJobInfo, ChatJobState, ChatOutput, TurnRequest, TurnSessionChoice};

/// How long the agent may take to say what it has learned.
pub const INSIGHTS_TIMEOUT: SignedDuration = SignedDuration::from_secs(20);
/// How long everything else may take.
pub const EXIT_WAIT: SignedDuration = SignedDuration::from_secs(5);

const INSIGHTS_PROMPT: &str = "The session ends. What did the person teach you in it that a later session \
    should know from the start: corrections, preferences, decisions, facts about this project? Answer with \
    a list, one short line each, beginning with `- `; with nothing else, and with `none` if there is nothing.";

/// Where the way out has led so far.
pub(super) struct ConversationExit {
    step: ConversationExitStep,
    until: Timestamp,
}

enum ConversationExitStep {
    /// The person is asked what becomes of the workers.
    AskingAboutWorkers,
    /// The turn is waited for, and the workers unless the daemon goes on with them.
    WaitingForJobs { stops_workers: bool },
    /// The agent says what it has learned.
    CollectingInsights(JobId),
}

impl Conversation {
    /// Begins to leave, or leaves at once if that has begun.
    pub(super) fn begin_exit(&mut self) {
        if let Some(leaving) = &self.exit {
            if let ConversationExitStep::CollectingInsights(job) = &leaving.step {
                // Nobody reads any more what it says.
                let job = job.clone();
                drop(self.fleet.cancel_job(&job, true));
            }
            return self.finish_exit();
        }
        let at_work = self.workers.iter().filter(|worker| worker.has_live_jobs()).count();
        match self.options.worker_exit_policy {
            // On a disk that takes nothing no answer is heard.
            WorkerExitPolicy::Ask
                if at_work > 0 && self.options.attended && !self.has_unwritten_entries() =>
            {
                self.exit = Some(ConversationExit {
                    step: ConversationExitStep::AskingAboutWorkers,
                    until: Timestamp::MAX,
                });
                let workers = if at_work == 1 {
                    "1 worker is".to_owned()
                } else {
                    format!("{at_work} workers are")
                };
                self.show_notice(format!(
                    "{workers} at work. stop: end them; leave: the daemon goes on with them; stay: do not leave."
                ));
            }
            WorkerExitPolicy::Stop => self.end_running_jobs(true),
            WorkerExitPolicy::Ask | WorkerExitPolicy::KeepRunning => self.end_running_jobs(false),
        }
    }

    /// Leaves without a question. Who leaves already goes on with that, unless it waits for an answer.
    pub(super) fn exit_unattended(&mut self) {
        let step = self.exit.as_ref().map(|leaving| &leaving.step);
        if matches!(step, None | Some(ConversationExitStep::AskingAboutWorkers)) {
            self.end_running_jobs(self.options.worker_exit_policy == WorkerExitPolicy::Stop);
        }
    }

    /// Takes what the person says to the question about workers.
    pub(super) fn handle_exit_answer(&mut self, line: &str) {
        if !matches!(
            self.exit,
            Some(ConversationExit { step: ConversationExitStep::AskingAboutWorkers, .. })
        ) {
            return self.show_error("the session ends; Ctrl+C ends it at once");
        }
        match line.trim().to_lowercase().as_str() {
            "stop" | "s" => self.end_running_jobs(true),
            "leave" | "l" => self.end_running_jobs(false),
            "stay" => {
                self.exit = None;
                self.show_notice("going on");
            }
            "/exit" | "/quit" | "/q" => self.finish_exit(),
            _ => self.show_notice("stop, leave or stay?"),
        }
    }

    fn end_running_jobs(&mut self, stops_workers: bool) {
        self.report_workers(stops_workers);
        let step = ConversationExitStep::WaitingForJobs { stops_workers };
        self.exit = Some(ConversationExit { step, until: self.deadline_after(EXIT_WAIT) });
        // Who leaves interrupts.
        self.turn.iter_mut().for_each(|turn| turn.interrupts += 1);
        if let Some(job) = self.turn.as_ref().map(|turn| turn.job.clone())
            && let Err(why) = self.fleet.cancel_job(&job, false)
        {
            self.show_error(why);
        }
        if stops_workers {
            self.stop_workers();
        }
        self.advance_exit();
    }

    /// Says what becomes of those who are at work.
    fn report_workers(&mut self, are_stopped: bool) {
        let at_work = self.workers.iter().filter(|worker| worker.has_live_jobs());
        let names: Vec<&str> = at_work.map(ConversationWorker::name).collect();
        if !names.is_empty() {
            let what = if are_stopped { "Stopping workers" } else { "Workers that go on" };
            self.show_exit_message(format!("{what}: {}", names.join(", ")));
        }
    }

    pub(super) fn stops_workers(&self) -> bool {
        let step = self.exit.as_ref().map(|leaving| &leaving.step);
        matches!(step, Some(ConversationExitStep::WaitingForJobs { stops_workers: true }))
    }

    fn deadline_after(&self, wait: SignedDuration) -> Timestamp {
        self.now.checked_add(wait).unwrap_or(Timestamp::MAX)
    }

    /// Goes on leaving as far as it can.
    pub(super) fn advance_exit(&mut self) {
        let Some(leaving) = &self.exit else { return };
        let is_late = self.now >= leaving.until;
        match &leaving.step {
            ConversationExitStep::AskingAboutWorkers => {}
            ConversationExitStep::WaitingForJobs { stops_workers } => {
                let ends = |worker: &ConversationWorker| *stops_workers && worker.has_live_jobs();
                let waits = self.turn.is_some() || self.workers.iter().any(ends);
                if !waits || is_late {
                    self.request_insights();
                }
            }
            ConversationExitStep::CollectingInsights(job) => {
                if is_late {
                    let job = job.clone();
                    drop(self.fleet.cancel_job(&job, true));
                    self.show_exit_message(
                        "Insights: not written, the agent took too long".to_owned(),
                    );
                    self.finish_exit();
                }
            }
        }
    }

    /// Asks the agent what it has learned, in a copy of its conversation.
    fn request_insights(&mut self) {
        let (about, messages) = (self.session_file.state(), self.messages);
        let is_asked = self.options.insights && messages > 0 && !self.has_unwritten_entries();
        let session = about.session.clone().filter(|_| is_asked);
        let Some(session) = session else { return self.finish_exit() };
        let turn = TurnRequest {
            id: Uuid::new_v4(),
            agent: about.agent().to_owned(),
            prompt: INSIGHTS_PROMPT.to_owned(),
            session: TurnSessionChoice::Fork(session, about.cut),
            model: about.model.clone(),
            attended: false,
        };
        self.show_exit_message(format!("Extracting learnings from {messages} message(s)…"));
        self.last_reply.clear();
        match self.fleet.start_turn(&turn) {
            Ok(job) => {
                self.fleet.follow_job(&job, 0);
                let until = self.deadline_after(INSIGHTS_TIMEOUT);
                self.exit = Some(ConversationExit {
                    step: ConversationExitStep::CollectingInsights(job),
                    until,
                });
            }
            Err(why) => {
                self.show_exit_message(format!("Insights: not written, {why}"));
                self.finish_exit();
            }
        }
    }

    pub(super) fn is_insights_job(&self, job: &JobId) -> bool {
        matches!(&self.exit, Some(ConversationExit { step: ConversationExitStep::CollectingInsights(known), .. }) if known == job)
    }

    /// Takes where the agent's last word is.
    pub(super) fn handle_insights_job(&mut self, facts: &ChatJobInfo) {
        match facts.state {
            ChatJobState::Waiting | ChatJobState::Running => {}
            ChatJobState::Failed => {
                let why = facts.reason.as_deref().unwrap_or("the agent failed");
                self.show_exit_message(format!("Insights: not written, {why}"));
                self.finish_exit();
            }
            ChatJobState::Done => {
                let insights: Vec<&str> = self
                    .last_reply
                    .lines()
                    .filter_map(|line| line.trim().strip_prefix("- "))
                    .collect();
                let (count, text) = (insights.len(), insights.join("\n- "));
                self.show_exit_message(format!("Found {count} steering insight(s)"));
                let learned = if count > 0 {
                    self.session_file.save_insights(&format!("- {text}\n"))
                } else {
                    Ok(())
                };
                match learned {
                    Ok(()) => {
                        self.show_exit_message("Insight synthesis complete".to_owned());
                    }
                    Err(error) => {
                        self.show_exit_message(format!("Insights: not written, {error}"));
                    }
                }
                self.finish_exit();
            }
        }
    }

    fn show_exit_message(&mut self, text: impl Into<String>) {
        self.outputs.push(ChatOutput::ExitMessage(text.into()));
    }

    /// Ends: everything is saved.
    fn finish_exit(&mut self) {
        self.cancel_fork();
        for text in self.take_unsent() {
            self.show_exit_message(format!("not sent: {text}"));
        }
        if self.has_unwritten_entries() {
            self.show_exit_message(
                "The disk did not take the last of it. A resumed session asks the agent's job.",
            );
        }
        let id = self.session_file.id().to_owned();
        match self.session_file.save_changes() {
            Ok(()) => {
                self.show_exit_message(format!("Session saved: {id}"));
                self.show_exit_message(format!("Resume: heeler --resume {id}"));
            }
            Err(error) => {
                let whole =
                    if self.has_unwritten_entries() { "" } else { "the transcript is whole, " };
                self.show_exit_message(format!("{error}; {whole}heeler --resume {id}"));
            }
        }
        self.outputs.push(ChatOutput::Exited);
        self.is_over = true;
    }
}
