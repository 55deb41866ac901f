//! Exit sequence: stops workers or leaves them to the daemon, collects insights, saves the session.
//! A second request to leave ends it at once; nothing is lost.

use heeler_model::JobId;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::workers::ConversationWorker;
use super::{Conversation, WorkerExitPolicy};
use crate::{ChatJobInfo, ChatJobState, ChatOutput, TurnRequest, TurnSessionChoice};

/// Time limit for the agent's insights.
pub const INSIGHTS_TIMEOUT: SignedDuration = SignedDuration::from_secs(20);
/// Time limit for the other steps.
pub const EXIT_WAIT: SignedDuration = SignedDuration::from_secs(5);

const INSIGHTS_PROMPT: &str = "The session ends. What did the person teach you in it that a later session \
    should know from the start: corrections, preferences, decisions, facts about this project? Answer with \
    a list, one short line each, beginning with `- `; with nothing else, and with `none` if there is nothing.";

/// Progress of the exit.
pub(super) struct ConversationExit {
    step: ConversationExitStep,
    until: Timestamp,
}

enum ConversationExitStep {
    /// The person is asked about running workers.
    AskingAboutWorkers,
    /// Waits for the turn, and for the workers if they are being stopped.
    WaitingForJobs { stops_workers: bool },
    /// Waits for the agent's insights.
    CollectingInsights(JobId),
}

impl Conversation {
    /// Begins to leave, or leaves at once if the exit has begun.
    pub(super) fn begin_exit(&mut self) {
        if let Some(leaving) = &self.exit {
            if let ConversationExitStep::CollectingInsights(job) = &leaving.step {
                // Its answer will not be read.
                let job = job.clone();
                drop(self.fleet.cancel_job(&job, true));
            }
            return self.finish_exit();
        }
        let at_work = self.workers.iter().filter(|worker| worker.has_live_jobs()).count();
        match self.options.worker_exit_policy {
            // While the disk fails, an answer could not be handled.
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
                    "{workers} running. stop: stop them; leave: keep them running; stay: do not leave."
                ));
            }
            WorkerExitPolicy::Stop => self.end_running_jobs(true),
            WorkerExitPolicy::Ask | WorkerExitPolicy::KeepRunning => self.end_running_jobs(false),
        }
    }

    /// Leaves without a question. An exit in progress continues, unless it waits for an answer.
    pub(super) fn exit_unattended(&mut self) {
        let step = self.exit.as_ref().map(|leaving| &leaving.step);
        if matches!(step, None | Some(ConversationExitStep::AskingAboutWorkers)) {
            self.end_running_jobs(self.options.worker_exit_policy == WorkerExitPolicy::Stop);
        }
    }

    /// Handles the answer to the question about workers.
    pub(super) fn handle_exit_answer(&mut self, line: &str) {
        if !matches!(
            self.exit,
            Some(ConversationExit { step: ConversationExitStep::AskingAboutWorkers, .. })
        ) {
            return self.show_error("the session is ending; Ctrl+C ends it at once");
        }
        match line.trim().to_lowercase().as_str() {
            "stop" | "s" => self.end_running_jobs(true),
            "leave" | "l" => self.end_running_jobs(false),
            "stay" => {
                self.exit = None;
                self.show_notice("continuing");
            }
            "/exit" | "/quit" | "/q" => self.finish_exit(),
            _ => self.show_notice("stop, leave or stay?"),
        }
    }

    fn end_running_jobs(&mut self, stops_workers: bool) {
        self.report_workers(stops_workers);
        let step = ConversationExitStep::WaitingForJobs { stops_workers };
        self.exit = Some(ConversationExit { step, until: self.deadline_after(EXIT_WAIT) });
        // The turn then ends as interrupted, not as failed.
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

    /// Shows the workers that are stopped or keep running.
    fn report_workers(&mut self, are_stopped: bool) {
        let at_work = self.workers.iter().filter(|worker| worker.has_live_jobs());
        let names: Vec<&str> = at_work.map(ConversationWorker::name).collect();
        if !names.is_empty() {
            let what = if are_stopped { "Stopping workers" } else { "Workers that keep running" };
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

    /// Advances the exit as far as possible.
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

    /// Asks the agent for insights, in a fork of its session.
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

    /// Handles a state change of the insights job.
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

    /// Ends the conversation after everything is saved.
    fn finish_exit(&mut self) {
        self.cancel_fork();
        for text in self.take_unsent() {
            self.show_exit_message(format!("not sent: {text}"));
        }
        if self.has_unwritten_entries() {
            self.show_exit_message(
                "The last entries could not be written. A resumed session recovers them from the agent's job.",
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
                    if self.has_unwritten_entries() { "" } else { "the transcript is complete, " };
                self.show_exit_message(format!("{error}; {whole}heeler --resume {id}"));
            }
        }
        self.outputs.push(ChatOutput::Exited);
        self.is_over = true;
    }
}
