//! Watches a workflow run: one line per phase, redrawn in place on a terminal, printed line by line
//! elsewhere.
//!
//! Everything is read from the database and the transcripts; the run does not depend on this
//! process. Start at [`watch`].

mod agent_activity;
mod approval_prompt;
mod frame;
mod redrawn_block;

use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use clap::Args;
use heeler_config::workflow::Workflow;
use heeler_config::workflow::graph::PhaseDisplayStatus;
use heeler_engine::{DaemonCommand, WorkflowOperation};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{Approval, ApprovalId, WorkflowRunId};
use heeler_query::progress::{WorkflowRunJournal, WorkflowRunProgress, is_agent_question};
use heeler_store::{STOPPED_AT, StoreReader};
use heeler_transcript::LockFile;

use self::agent_activity::AgentActivityReader;
use self::approval_prompt::ApprovalPrompt;
pub(super) use self::approval_prompt::answer_commands;
pub(super) use self::frame::phase_symbol;
use self::redrawn_block::RedrawnBlock;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;
use crate::job_watch::{JobEventListener, JobWatchEvent, KeyboardInput};
use crate::output::{self, SafeText};
use crate::process_env;
use crate::state_reader::record_gone;
use crate::terminal_markdown::TerminalMarkdown;

/// Interval at which the database is read and the phases are drawn.
const TICK: Duration = Duration::from_millis(80);
/// Time without any writer of the state after which an active run counts as unattended. A daemon
/// that is being replaced is absent for a moment.
const UNATTENDED_AFTER: Duration = Duration::from_secs(2);
/// Events that are read at once.
const EVENTS_MAX: usize = 1000;

/// Options for watching a run.
#[derive(Args, Clone)]
pub(crate) struct RunWatchArgs {
    /// Print the run's ID and return at once; the run continues
    #[arg(long, conflicts_with_all = ["follow", "until_asked"])]
    pub(crate) detach: bool,
    /// Also show the agents' messages and actions, each line with its phase
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Return as soon as the run waits for an answer; answering continues it
    #[arg(long)]
    pub(crate) until_asked: bool,
    /// Print one JSON document when the run has ended
    #[arg(long)]
    pub(crate) json: bool,
}

/// Origin of a watched run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchedRunOrigin {
    /// Newly requested.
    New,
    /// Continued by `workflow retry`.
    Retried,
    /// Already active.
    Joined,
}

/// Run to watch, and options for its display.
pub(super) struct WorkflowWatchOptions<'v> {
    pub(super) context: &'v CommandContext,
    pub(super) run: &'v WorkflowRunId,
    pub(super) workflow: Option<Workflow>,
    pub(super) origin: WatchedRunOrigin,
    pub(super) how: &'v RunWatchArgs,
    /// True if only the outcome is printed, by the caller.
    pub(super) is_quiet: bool,
}

/// Result of watching a run.
#[derive(Debug, Default)]
pub(super) struct WorkflowWatchOutcome {
    /// Number of Ctrl-C presses.
    pub(super) interrupts: u32,
    /// True if no daemon has the run.
    pub(super) is_unattended: bool,
    /// Last message of the workflow.
    pub(super) last_message: Option<String>,
}

/// Watches a run until it and its jobs have ended, or there is nothing to wait for.
pub(super) fn watch(
    view: &WorkflowWatchOptions<'_>,
    listener: JobEventListener,
) -> CommandResult<WorkflowWatchOutcome> {
    let (sender, events, interrupted) = listener.into_parts();
    let reader = StoreReader::open(&view.context.dir()?)?;
    let term = view.context.env.get("TERM").map(String::as_str);
    // A terminal without escape sequences gets plain lines only.
    let moves = term.is_some_and(|term| term != "dumb") && std::io::stderr().is_terminal();
    let mut live = WorkflowWatcher {
        view,
        block: RedrawnBlock::new(moves && !view.is_quiet),
        agents: AgentActivityReader::new(view.context.dir()?, view.how.follow && !view.is_quiet),
        prompt: ApprovalPrompt::new(
            // With `--until-asked` the command returns at a question, so nothing is asked here.
            KeyboardInput::find(false).filter(|_| !view.is_quiet && !view.how.until_asked),
            view.context.caller_name(),
            &sender,
        ),
        workflow: view.workflow.clone().map(Arc::new),
        events: sender,
        journal: WorkflowRunJournal::default(),
        run_state: None,
        phase_statuses: HashMap::new(),
        questions_shown: Vec::new(),
        event: last_event(&reader, view)?,
        outcome: WorkflowWatchOutcome::default(),
        last_write_seen: Instant::now(),
        is_reviving: Arc::default(),
        spinner_frame: 0,
        reader,
    };
    // Ctrl-C came after the daemon had received the request: the run exists and must be cancelled.
    if interrupted {
        live.handle_interrupt()?;
    }
    let done = live.run(&events);
    // Also after a failure: the cursor must be below the lines.
    live.block.keep_lines();
    done?;
    Ok(live.outcome)
}

/// Returns the number of the last event that is not news to the user.
fn last_event(reader: &StoreReader, view: &WorkflowWatchOptions<'_>) -> CommandResult<i64> {
    if view.origin == WatchedRunOrigin::New {
        return Ok(0);
    }
    let events = reader.workflow_events(view.run, 0, usize::MAX)?;
    // A joined run is shown from now on; a retried one from its latest retry on.
    let is_news = |kind: &str| view.origin == WatchedRunOrigin::Joined || kind == "retried";
    Ok(events.iter().rfind(|event| is_news(&event.kind)).map_or(0, |event| event.number))
}

struct WorkflowWatcher<'v> {
    view: &'v WorkflowWatchOptions<'v>,
    reader: StoreReader,
    events: SyncSender<JobWatchEvent>,
    block: RedrawnBlock,
    agents: AgentActivityReader,
    prompt: ApprovalPrompt,
    workflow: Option<Arc<Workflow>>,
    journal: WorkflowRunJournal,
    run_state: Option<WorkflowRunProgress>,
    /// Last printed status of each phase.
    phase_statuses: HashMap<String, PhaseDisplayStatus>,
    /// Questions that were printed.
    questions_shown: Vec<ApprovalId>,
    /// Number of the last printed event.
    event: i64,
    outcome: WorkflowWatchOutcome,
    /// Time at which a writer of the state was last seen.
    last_write_seen: Instant,
    /// True while a thread starts a daemon for the run.
    is_reviving: Arc<AtomicBool>,
    spinner_frame: usize,
}

impl WorkflowWatcher<'_> {
    fn run(&mut self, events: &Receiver<JobWatchEvent>) -> CommandResult {
        if !self.view.is_quiet {
            self.print_remark(&format!("{}: {}", self.title()?, self.view.run))?;
        }
        loop {
            // Before the check below, so that the last messages are printed before the watch ends.
            self.refresh()?;
            self.draw();
            if self.is_done() {
                return Ok(());
            }
            match events.recv_timeout(TICK) {
                Ok(JobWatchEvent::Interrupt) => self.handle_interrupt()?,
                Ok(JobWatchEvent::CancelFailed(why)) => {
                    self.print_remark(&format!("not cancelled: {why}"))?;
                }
                Ok(JobWatchEvent::Unattended(why)) => {
                    self.print_remark(&why)?;
                    // The run continues later, so waiting here would be endless.
                    self.outcome.is_unattended = true;
                }
                Ok(JobWatchEvent::DaemonAnswer(Err(failure))) => {
                    self.print_remark(&format!("{:#}", failure.error))?;
                    // The question may still be open, and is then asked again.
                    self.prompt.answer_failed();
                }
                Ok(JobWatchEvent::LineTyped(question, line)) => self.handle_line(question, line),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    fn title(&self) -> CommandResult<String> {
        let row = self.reader.workflow_run(self.view.run)?;
        Ok(output::one_line(&row.map(|row| row.head.workflow).unwrap_or_default()))
    }

    /// Returns true if there is nothing more to wait for.
    fn is_done(&self) -> bool {
        let Some(progress) = &self.run_state else { return false };
        let parts = progress.phases.iter().flat_map(|phase| &phase.parts);
        let open = parts.filter(|part| part.outcome.is_none()).count();
        // The jobs of a cancelled run may take a while to end.
        let is_over = progress.row.head.status.is_final() && open == 0;
        let joined = self.view.origin == WatchedRunOrigin::Joined && self.outcome.interrupts > 0;
        let asks = progress.row.head.status == WorkflowRunStatus::Paused
            || progress.pending().any(is_agent_question);
        let asked = self.view.how.until_asked && asks;
        is_over || joined || asked || self.outcome.interrupts > 2 || self.outcome.is_unattended
    }

    /// Reads the run's state, and prints all news.
    fn refresh(&mut self) -> CommandResult {
        let run = self.view.run;
        let row = self.reader.workflow_run(run)?.ok_or_else(|| record_gone(run.as_str()))?;
        // Only new entries are read: a long run would otherwise be read twelve times a second.
        self.journal.update(&self.reader, run)?;
        let progress =
            WorkflowRunProgress::of(&self.reader, row, self.workflow.as_ref(), &self.journal)?;
        // Before the phases, so that an agent's last rows come before the end of its phase.
        let lines = self.agents.new_lines(&progress);
        for line in lines {
            self.line(line)?;
        }
        self.print_phases(&progress)?;
        self.print_events()?;
        self.print_questions(&progress)?;
        self.revive_if_unattended(&progress)?;
        self.run_state = Some(progress);
        Ok(())
    }

    /// Prints each phase that started or ended, if the phases are not drawn.
    fn print_phases(&mut self, progress: &WorkflowRunProgress) -> CommandResult {
        let now = process_env::now();
        let is_first = self.phase_statuses.is_empty();
        for phase in &progress.phases {
            // Recorded even if nothing is printed, so that each change is printed at most once.
            let before = self.phase_statuses.insert(phase.name.clone(), phase.status);
            let is_old = is_first && self.view.origin != WatchedRunOrigin::New;
            if before == Some(phase.status) || phase.status == PhaseDisplayStatus::Waiting || is_old
            {
                continue;
            }
            if self.block.is_drawn() || self.view.is_quiet {
                continue;
            }
            // A quick phase started and ended between two reads.
            let was_waiting = matches!(before, None | Some(PhaseDisplayStatus::Waiting));
            let has_jobs = phase.parts.iter().any(|part| part.job.is_some());
            if was_waiting && has_jobs && phase.status != PhaseDisplayStatus::Running {
                self.line(frame::phase_start_line(phase))?;
            }
            self.line(frame::phase_change_line(phase, now))?;
        }
        Ok(())
    }

    /// Prints the workflow's messages and people's actions.
    fn print_events(&mut self) -> CommandResult {
        for event in self.reader.workflow_events(self.view.run, self.event, EVENTS_MAX)? {
            self.event = event.number;
            match event.kind.as_str() {
                "message" => {
                    self.outcome.last_message = Some(event.text.clone());
                    self.print_message(&event.text)?;
                }
                // The display itself shows these.
                "started" | "asked" | "ended" | "retried" => {}
                _ if self.view.is_quiet => {}
                _ => self.print_remark(&output::one_line(&event.text))?,
            }
        }
        Ok(())
    }

    /// Prints each new question once, and asks it at this terminal.
    fn print_questions(&mut self, progress: &WorkflowRunProgress) -> CommandResult {
        let pending: Vec<Approval> = progress.pending().cloned().collect();
        for approval in &pending {
            if self.view.is_quiet || self.questions_shown.contains(&approval.id) {
                continue;
            }
            self.questions_shown.push(approval.id.clone());
            // The list holds shortened questions only.
            let whole = self.reader.approval(&approval.id)?;
            let here = self.prompt.is_interactive();
            if let Some(whole) = &whole {
                self.prompt.record_shown(whole);
            }
            for line in approval_prompt::question_lines(whole.as_ref().unwrap_or(approval), here) {
                self.line(line)?;
            }
        }
        // Also without a new question: the current one may have been answered elsewhere.
        let is_new = self.prompt.next(&pending);
        // If lines were printed below the prompt meanwhile, print the prompt again.
        if let Some(prompt) = self.prompt.current().filter(|_| is_new || !self.block.is_asking()) {
            self.block.prompt(&prompt);
        }
        Ok(())
    }

    fn handle_line(&mut self, question: u64, line: Option<String>) {
        match self.prompt.handle_line(question, line) {
            approval_prompt::TypedLineOutcome::Nothing => {}
            approval_prompt::TypedLineOutcome::AskAgain(prompt) => {
                self.block.answered();
                self.block.prompt(&prompt);
            }
            approval_prompt::TypedLineOutcome::Answer(command) => {
                self.block.answered();
                let (context, sender) = (self.view.context.clone(), self.events.clone());
                std::thread::spawn(move || {
                    // Fails only if the watch has ended.
                    drop(
                        sender
                            .send(JobWatchEvent::DaemonAnswer(daemon::request(&context, &command))),
                    );
                });
            }
        }
    }

    /// Starts a daemon for a run that has lost its own. A run that only waits for an answer needs
    /// none.
    fn revive_if_unattended(&mut self, progress: &WorkflowRunProgress) -> CommandResult {
        let lock = self.view.context.dir()?.lock();
        // A lock that cannot be examined counts as held: no second daemon is started on a guess.
        if !matches!(LockFile::probe(&lock), Ok(None)) {
            self.last_write_seen = Instant::now();
        }
        let now = process_env::now();
        let expired = |it: &Approval| it.expires_at.is_some_and(|at| at <= now);
        let parts = progress.phases.iter().flat_map(|phase| &phase.parts);
        let is_at_work = parts.into_iter().any(|part| part.outcome.is_none());
        let needs_care = match progress.row.head.status {
            WorkflowRunStatus::Running | WorkflowRunStatus::Queued => true,
            // A daemon has to record that the time for the answer is over.
            WorkflowRunStatus::Paused => progress.pending().any(expired),
            // The jobs of a cancelled run must still be settled.
            _ => is_at_work,
        };
        let is_reviving = self.is_reviving.load(Ordering::Relaxed);
        if !needs_care || is_reviving || self.last_write_seen.elapsed() < UNATTENDED_AFTER {
            return Ok(());
        }
        // Set before the thread starts, because this function is called again at the next tick.
        self.is_reviving.store(true, Ordering::Relaxed);
        let (context, sender) = (self.view.context.clone(), self.events.clone());
        let done = Arc::clone(&self.is_reviving);
        // A fleet that a person stopped stays stopped.
        let is_stopped = self.reader.meta(STOPPED_AT)?.is_some_and(|at| !at.is_empty());
        std::thread::spawn(move || {
            let why = match is_stopped {
                true => "the fleet was stopped: the run continues with `heeler start`".to_owned(),
                false => match daemon::connect_or_start(&context) {
                    // After a failure the flag stays set: the watch ends without a second attempt.
                    Ok(_) => return done.store(false, Ordering::Relaxed),
                    Err(failure) => format!("{:#}", failure.error),
                },
            };
            // Fails only if the watch has ended.
            drop(sender.send(JobWatchEvent::Unattended(why)));
        });
        Ok(())
    }

    fn handle_interrupt(&mut self) -> CommandResult {
        self.outcome.interrupts += 1;
        // A line that is typed while the run is cancelled must not answer a question.
        self.prompt.stop();
        if self.view.origin == WatchedRunOrigin::Joined {
            return self.print_remark("the run continues");
        }
        let (now, remark) = match self.outcome.interrupts {
            1 => (false, "cancelling; Ctrl-C again kills it at once"),
            2 => (true, "killing it"),
            _ => return Ok(()),
        };
        self.print_remark(remark)?;
        let (context, sender) = (self.view.context.clone(), self.events.clone());
        let order = WorkflowOperation::Cancel { run: self.view.run.clone(), now };
        std::thread::spawn(move || {
            let command = DaemonCommand::Workflow { order, by: "Ctrl-C".to_owned() };
            if let Err(why) = daemon::request_cancel(&context, &command) {
                drop(sender.send(JobWatchEvent::CancelFailed(why)));
            }
        });
        Ok(())
    }

    fn draw(&mut self) {
        let Some(progress) = &self.run_state else { return };
        // Redrawing would overwrite what a person is typing.
        if self.prompt.is_asking() || !self.block.is_drawn() {
            return;
        }
        self.spinner_frame += 1;
        let doing = |phase: &heeler_query::progress::WorkflowPhaseProgress| {
            self.agents.current_activity(&self.reader, phase)
        };
        let size = (output::width(), redrawn_block::rows());
        self.block.draw(&frame::frame(
            progress,
            &doing,
            self.spinner_frame,
            size,
            process_env::now(),
        ));
    }

    /// Prints a message of the workflow to stdout.
    fn print_message(&mut self, text: &str) -> CommandResult {
        if self.view.is_quiet {
            return Ok(());
        }
        self.block.erase();
        let lines = match TerminalMarkdown::find(&self.view.context.env) {
            Some(markdown) => markdown.lines(text, 0),
            None => vec![SafeText::from(text.trim_end())],
        };
        // A reader that closes the pipe, as `head` does, must not end the run or this command.
        let mut out = anstream::stdout().lock();
        let written = lines.iter().try_for_each(|line| writeln!(out, "{line}"));
        drop(written.and_then(|()| out.flush()));
        Ok(())
    }

    fn print_remark(&mut self, text: &str) -> CommandResult {
        self.line(SafeText::styled(anstyle::Style::new().dimmed(), text))
    }

    /// Prints a line above the redrawn block.
    fn line(&mut self, text: SafeText) -> CommandResult {
        self.block.erase();
        // Ignore write errors: the terminal is gone, and the run continues.
        drop(writeln!(anstream::stderr().lock(), "{text}"));
        Ok(())
    }
}
