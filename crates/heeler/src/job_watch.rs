//! Watches a job for the user who started it: the agent's messages as they are written, tool calls
//! as one line each, questions, Ctrl-C.
//!
//! The output is the job's transcript, in order; partial text is printed before its row and never
//! twice. The run does not depend on this process, and continues if it dies. Start at [`watch`].

mod event_listener;
mod full_text;
mod keyboard;
mod question_prompter;
pub(crate) mod question_text;
mod screen;
mod tool_calls;
mod watch_event;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::EngineContext;
use heeler_model::job_row::{JobRow, JobRowKind, TurnResultRow};
use heeler_model::{JobId, job_row};
use heeler_query::job_feed::{FeedEnd, JobFeed, JobFeedEvent, JobFeedHandle};

pub(crate) use self::event_listener::{JobEventListener, QUEUED_EVENTS_MAX};
use self::full_text::FullTextReader;
pub(crate) use self::keyboard::{KeyboardInput, KeyboardReader, on_end_request, on_interrupt};
use self::question_prompter::QuestionPrompter;
pub(crate) use self::screen::OutputMode;
use self::screen::WatchScreen;
pub(crate) use self::tool_calls::ToolCallTracker;
pub(crate) use self::watch_event::JobWatchEvent;
use crate::failure::CommandResult;
use crate::output::{self, one_line};
use crate::process_env;
use crate::terminal_markdown::TerminalMarkdown;

/// Indentation of tool calls below messages.
const TOOLS_MARGIN: usize = 2;
/// Interval at which the status line is redrawn.
const TICK: Duration = Duration::from_millis(100);

/// Starts a daemon again for a job that has lost its daemon.
pub(crate) type ReviveFn = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Cancels a job: at once if the argument is true, else gracefully.
pub(crate) type CancelFn = Arc<dyn Fn(bool) -> Result<(), String> + Send + Sync>;

/// Job to watch, and options for its display.
pub(crate) struct JobWatchOptions<'w> {
    pub(crate) fleet: &'w EngineContext,
    pub(crate) agent: &'w str,
    pub(crate) job: JobId,
    /// Reason why the job is queued, if it is.
    pub(crate) wait_reason: Option<String>,
    /// Cancels the job: at once if the argument is true, else gracefully.
    pub(crate) cancel: CancelFn,
    /// Starts a daemon if the job's daemon is gone.
    pub(crate) revive: ReviveFn,
    /// Keyboard for answers, if questions are asked here.
    pub(crate) keyboard: Option<KeyboardInput>,
    /// Name of the person who answers, for the record.
    pub(crate) answered_by: String,
    pub(crate) output_mode: OutputMode,
    /// True for the runtime `command`: its whole output is the answer.
    pub(crate) is_command: bool,
    /// Value of `TERM`.
    pub(crate) term: Option<&'w str>,
    /// Layout of the agent's messages; `None` prints them as they are.
    pub(crate) markdown: Option<TerminalMarkdown>,
}

/// Result of watching a job.
#[derive(Debug, Default)]
pub(crate) struct JobWatchOutcome {
    /// Number of Ctrl-C presses.
    pub(crate) interrupts: u32,
    /// True if the job's result is recorded.
    pub(crate) recorded: bool,
    /// The last error that was shown.
    pub(crate) error: Option<String>,
    /// The agent's last message in full; the whole output of a command.
    pub(crate) answer: Option<String>,
    /// Number of the agent's requests that were denied because there was no one to ask.
    pub(crate) denied_unasked: u64,
}

/// Watches a job until its end is recorded or no daemon can be started for it.
pub(crate) fn watch(
    watch: &JobWatchOptions<'_>,
    listener: JobEventListener,
) -> CommandResult<JobWatchOutcome> {
    // The listener exists since before the request, so no Ctrl-C was missed.
    let (sender, events, interrupted) = listener.into_parts();
    let feed = JobFeed::new(watch.fleet.dir.clone(), watch.job.clone(), 0);
    let mut live = JobWatcher::new(watch, sender.clone(), feed.handle());
    // The watch ends before its receiver is dropped.
    std::thread::spawn(move || {
        feed.forward(|event| sender.send(JobWatchEvent::Feed(event)).is_ok());
    });
    live.screen.remark(&format!("{}: {}", watch.agent, watch.job))?;
    if let Some(reason) = &watch.wait_reason {
        live.screen.remark(&format!("queued: {}", one_line(reason)))?;
    }
    // Ctrl-C came after the daemon had received the request: the job exists and must be cancelled.
    if interrupted {
        live.handle_interrupt()?;
    }
    // Clear the status line even if the watch failed.
    let seen = live.run(&events);
    live.screen.clear();
    seen
}

/// Display state of one watched job.
struct JobWatcher<'w> {
    watch: &'w JobWatchOptions<'w>,
    events: SyncSender<JobWatchEvent>,
    screen: WatchScreen,
    tools: ToolCallTracker,
    questions: QuestionPrompter,
    outcome: JobWatchOutcome,
    /// Folder of the followed run; before the first run, a folder that does not exist.
    folder: Utf8PathBuf,
    feed: JobFeedHandle,
    full_text: FullTextReader,
    /// Row with the agent's last message, and the key of its text.
    answer: Option<(JobRow, &'static str)>,
    cost: Option<f64>,
    clock: RunClock,
    is_done: bool,
}

impl<'w> JobWatcher<'w> {
    fn new(
        watch: &'w JobWatchOptions<'w>,
        sender: SyncSender<JobWatchEvent>,
        feed: JobFeedHandle,
    ) -> JobWatcher<'w> {
        JobWatcher {
            watch,
            questions: QuestionPrompter::new(
                watch.keyboard.clone(),
                watch.answered_by.clone(),
                sender.clone(),
            ),
            events: sender,
            screen: WatchScreen::new(watch.output_mode, watch.term, watch.markdown),
            tools: ToolCallTracker::new(TOOLS_MARGIN),
            outcome: JobWatchOutcome::default(),
            // Reading from this folder fails, as for a run without files.
            folder: watch.fleet.dir.root().join("runs/none"),
            feed,
            full_text: FullTextReader::default(),
            answer: None,
            cost: None,
            clock: RunClock::Waiting(Instant::now()),
            is_done: false,
        }
    }

    fn run(&mut self, events: &Receiver<JobWatchEvent>) -> CommandResult<JobWatchOutcome> {
        loop {
            match events.recv_timeout(TICK) {
                Ok(event) => self.handle_event(event)?,
                Err(RecvTimeoutError::Timeout) => self.draw_status(),
                // Never happens while the watcher holds a sender itself.
                Err(RecvTimeoutError::Disconnected) => break,
            }
            // A third Ctrl-C leaves the job alone: its user wants the terminal back.
            if self.is_done || self.outcome.interrupts > 2 {
                break;
            }
        }
        // A call without a line would leave open what the agent did last.
        for line in self.tools.unfinished("no result") {
            self.screen.line(line)?;
        }
        if let Some((row, key)) = self.answer.take() {
            self.outcome.answer = Some(self.full_text.text(&self.folder, &row, key).into_owned());
        }
        Ok(std::mem::take(&mut self.outcome))
    }

    fn handle_event(&mut self, event: JobWatchEvent) -> CommandResult {
        match event {
            JobWatchEvent::Feed(event) => self.handle_feed_event(event)?,
            // The answer to the request was received before the watch began.
            JobWatchEvent::DaemonAnswer(_) => {}
            JobWatchEvent::Unattended(why) => {
                self.screen.remark(&why)?;
                // The run that is alive is still shown to its end.
                self.feed.abandon();
            }
            JobWatchEvent::Interrupt => self.handle_interrupt()?,
            JobWatchEvent::CancelFailed(why) => {
                self.screen.remark(&format!("not cancelled: {why}"))?;
            }
            JobWatchEvent::LineTyped(question, line) => {
                self.questions.handle_line(question, line, &self.folder, &mut self.screen)?;
            }
        }
        self.draw_status();
        Ok(())
    }

    fn handle_feed_event(&mut self, event: JobFeedEvent) -> CommandResult {
        match event {
            JobFeedEvent::Row(_, row) => self.handle_row(&row)?,
            JobFeedEvent::Delta(text) => self.screen.print_piece(&text)?,
            // The next row has the whole text, or it was printed already.
            JobFeedEvent::Lagged | JobFeedEvent::RepeatedRow(..) => self.screen.discard_pieces(),
            JobFeedEvent::QuestionAsked(ask) => {
                self.questions.add(ask, &self.folder, &mut self.screen)?;
            }
            JobFeedEvent::QuestionSettled(id) => self.questions.withdraw(&id, &mut self.screen)?,
            JobFeedEvent::DiskStatus(trouble) => self.handle_disk_status(trouble)?,
            JobFeedEvent::Cost(cost) => self.cost = Some(cost),
            JobFeedEvent::RunStarted(folder) => {
                tracing::info!("the run's folder is {folder}");
                // A retry is a new run with its own folder, socket and duration.
                (self.folder, self.clock) = (folder, RunClock::Waiting(Instant::now()));
            }
            JobFeedEvent::RunEnded => self.clock.stop(),
            JobFeedEvent::Delayed { reason, at } => {
                let now = process_env::now();
                let when = (at > now).then(|| format!(", {}", output::due_text(at, now)));
                let when = when.unwrap_or_default();
                self.screen.remark(&format!("{}{when}", one_line(&reason)))?;
            }
            JobFeedEvent::Unattended => self.revive(),
            JobFeedEvent::Ended(end) => {
                self.outcome.recorded = end == FeedEnd::Recorded;
                self.is_done = true;
            }
        }
        Ok(())
    }

    fn revive(&self) {
        let (revive, sender) = (Arc::clone(&self.watch.revive), self.events.clone());
        // Starting a daemon may take a minute; the rows of a live run must appear meanwhile.
        std::thread::spawn(move || {
            if let Err(why) = revive() {
                // Fails only if the watch has ended.
                let _told = sender.send(JobWatchEvent::Unattended(why));
            }
        });
    }

    fn handle_row(&mut self, row: &JobRow) -> CommandResult {
        if let JobRowKind::TurnResult(TurnResultRow { cost_usd: Some(cost), .. }) = row.kind() {
            self.cost = Some(cost);
        }
        // A person who let a question time out was asked, so that is not reported as unattended.
        let attended = self.watch.keyboard.is_some();
        self.outcome.denied_unasked += u64::from(tool_calls::is_unattended_denial(row, attended));
        self.keep_answer(row);
        match row.kind() {
            // The run's own error is printed at the end, with the remedy.
            JobRowKind::Error { cure: Some(_), .. } => {}
            JobRowKind::Assistant if row.sub_agent_call().is_none() => {
                let text = self.full_text.text(&self.folder, row, "content");
                self.screen.print_text(&text)?;
            }
            kind => {
                if let JobRowKind::Error { message, .. } = kind
                    && self.watch.output_mode == OutputMode::All
                {
                    self.outcome.error = Some(message.to_owned());
                }
                if let Some(line) = self.tools.format_row(row, output::width()) {
                    self.screen.line(line)?;
                }
            }
        }
        Ok(())
    }

    /// Keeps the row if it holds the agent's last message or the result of its turn.
    fn keep_answer(&mut self, row: &JobRow) {
        let key = match row.kind() {
            JobRowKind::Assistant if row.sub_agent_call().is_none() => "content",
            JobRowKind::TurnResult(_) => "result",
            _ => return,
        };
        // Otherwise the answer is on the screen already, and keeping it would only cost memory.
        if self.watch.output_mode != OutputMode::Nothing {
            return;
        }
        if self.watch.is_command {
            if key == "content" {
                let text = self.full_text.text(&self.folder, row, key);
                let answer = self.outcome.answer.get_or_insert_default();
                // Each row of a command is a part of its output, without the newline between them.
                answer.push_str(if answer.is_empty() { "" } else { "\n" });
                answer.push_str(&text);
            }
        // The result of a turn may be empty although a message came before it.
        } else if row.text(key).is_some_and(|text| !text.trim().is_empty()) {
            self.answer = Some((row.clone(), key));
        }
    }

    fn handle_disk_status(&mut self, trouble: Option<String>) -> CommandResult {
        self.screen.remark(&match trouble {
            Some(why) => {
                format!("the run is paused because the disk rejects writes: {}", one_line(&why))
            }
            None => "the disk accepts writes again; the run continues".to_owned(),
        })
    }

    fn handle_interrupt(&mut self) -> CommandResult {
        self.outcome.interrupts += 1;
        let (now, remark) = match self.outcome.interrupts {
            1 => (false, "cancelling; Ctrl-C again kills it at once"),
            2 => (true, "killing it"),
            _ => return Ok(()),
        };
        self.screen.remark(remark)?;
        // The daemon may be slow or missing, and a second Ctrl-C must still be handled.
        let (cancel, sender) = (Arc::clone(&self.watch.cancel), self.events.clone());
        std::thread::spawn(move || {
            if let Err(why) = cancel(now) {
                let _told = sender.send(JobWatchEvent::CancelFailed(why));
            }
        });
        Ok(())
    }

    fn draw_status(&mut self) {
        // The cursor is behind the prompt, where a person may be typing.
        if self.questions.is_asking() {
            return;
        }
        let cancelling = if self.outcome.interrupts > 0 { "cancelling, " } else { "" };
        let doing = self.tools.current_call().unwrap_or_else(|| self.watch.agent.to_owned());
        let elapsed = job_row::format_duration(self.clock.elapsed_ms(&self.folder));
        let cost =
            output::format_price(self.cost).map(|cost| format!("  {cost}")).unwrap_or_default();
        self.screen.status(&format!("{cancelling}{doing}"), &format!("{elapsed}{cost}"));
    }
}

/// Elapsed time of the run, as it will be recorded.
enum RunClock {
    /// The run is not known to have started; waiting since this time.
    Waiting(Instant),
    Running(jiff::Timestamp),
    Stopped(i64),
}

impl RunClock {
    fn elapsed_ms(&mut self, folder: &Utf8Path) -> i64 {
        // The recorded duration begins with the run, not with this command.
        if let RunClock::Waiting(_) = self
            && let Ok(started) = heeler_engine::read_started_file(folder)
        {
            *self = RunClock::Running(started.at);
        }
        self.displayed_ms()
    }

    fn displayed_ms(&self) -> i64 {
        match self {
            RunClock::Waiting(since) => {
                i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX)
            }
            RunClock::Running(at) => {
                let took = process_env::now().duration_since(*at).as_millis();
                // The clock may have been set back since the run started.
                i64::try_from(took).unwrap_or(i64::MAX).max(0)
            }
            RunClock::Stopped(took) => *took,
        }
    }

    fn stop(&mut self) {
        *self = RunClock::Stopped(self.displayed_ms());
    }
}
