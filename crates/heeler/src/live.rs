//! A run as it happens, for whoever started it: words as they are said, tool calls as one line
//! each, questions, Ctrl-C.
//!
//! What is shown is what the job log has, in its order; partial text comes before its row and is
//! not shown twice. The run does not depend on this: whatever happens here, it goes on. Start at
//! [`watch`].

mod asks;
pub(crate) mod course;
pub(crate) mod feed;
mod keys;
mod screen;
mod tools;
mod whole;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::{Answer, Command, Fleet};
use heeler_model::run::{Ask, RunState};
use heeler_model::{JobId, RunId};
use serde_json::Value as Json;

use self::asks::Asks;
pub(crate) use self::asks::gist;
use self::course::Course;
pub(crate) use self::keys::{Keyboard, Keys, on_interrupt};
use self::screen::Screen;
pub(crate) use self::screen::Show;
pub(crate) use self::tools::Tools;
use self::whole::Wholes;
use crate::daemon;
use crate::failure::Outcome;
use crate::output::{self, one_line};
use crate::place::{self, Place};

/// How many things that happened wait to be shown. Whoever has more to tell waits; the run does not,
/// it leaves rows out and they are read from its log.
pub(crate) const EVENTS_MAX: usize = 1024;
/// How far what is done stands from what is said.
const TOOLS_MARGIN: usize = 2;
/// How often the line with the elapsed time is drawn.
const TICK: Duration = Duration::from_millis(100);
/// After a job's result is on record, how long its last rows are waited for.
const LAST_ROWS: Duration = Duration::from_secs(2);

/// What happens, from every side.
pub(crate) enum Event {
    /// A row of the job log with its number, in order.
    Row(u64, Json),
    /// A piece of text whose row follows.
    Delta(String),
    /// Pieces were lost: what was said so far is in the next rows.
    Lagged,
    /// The agent asks.
    Asked(Ask),
    /// A question is settled.
    Settled(String),
    /// The disk is full, or takes rows again.
    Disk(Option<String>),
    /// What the run says of itself.
    State(Box<RunState>),
    /// The run of this folder has written its last row.
    RunEnded(Utf8PathBuf),
    /// What the daemon answered.
    Answered(Outcome<Answer>),
    /// Nobody cares for the job, and that stays so.
    LeftAlone(String),
    /// What becomes of the job.
    Course(Course),
    /// Ctrl-C.
    Interrupt,
    /// A cancel did not get through.
    CancelFailed(String),
    /// A person typed a line, or none at the end of input, after the question of this number.
    Typed(u64, Option<String>),
}

/// Has a job cared for again whose daemon is gone.
pub(crate) type Revive = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Cancels a job: at once if told so, else gracefully.
pub(crate) type Cancel = Arc<dyn Fn(bool) -> Result<(), String> + Send + Sync>;

/// What is watched, and how.
pub(crate) struct Watch<'w> {
    pub(crate) fleet: &'w Fleet,
    pub(crate) agent: &'w str,
    pub(crate) job: JobId,
    /// Why it waits, if it does.
    pub(crate) waits: Option<String>,
    /// Cancels it: at once if told so, else gracefully.
    pub(crate) cancel: Cancel,
    /// Starts a daemon if the job's is gone.
    pub(crate) revive: Revive,
    /// Where questions are answered, if they are asked here.
    pub(crate) keyboard: Option<Keyboard>,
    /// Who answers here, for the record.
    pub(crate) who: String,
    pub(crate) show: Show,
    /// It is a command: all that it says is its answer.
    pub(crate) is_command: bool,
    /// What kind of terminal it is.
    pub(crate) term: Option<&'w str>,
}

/// What was seen of a run.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// How often Ctrl-C was pressed.
    pub(crate) interrupts: u32,
    /// Whether what came of the job is on record.
    pub(crate) recorded: bool,
    /// The last error that was shown.
    pub(crate) error: Option<String>,
    /// What the agent said last, whole; all that a command said.
    pub(crate) answer: Option<String>,
    /// How many requests of the agent were denied because nobody could be asked.
    pub(crate) unasked: u64,
}

/// Hears what happens to a job, from before it is started.
pub(crate) struct Listener {
    tell: SyncSender<Event>,
    events: Receiver<Event>,
    interrupted: bool,
}

impl Listener {
    /// Starts to hear Ctrl-C, which no longer ends this process.
    pub(crate) fn new() -> Outcome<Listener> {
        let (tell, events) = sync_channel(EVENTS_MAX);
        let told = tell.clone();
        // Where nobody listens any more there is nobody to tell.
        on_interrupt(move || drop(told.send(Event::Interrupt)))?;
        Ok(Listener { tell, events, interrupted: false })
    }

    /// Asks the daemon for a job. Ctrl-C gives that up while nobody has heard it yet.
    pub(crate) fn ask(&mut self, place: &Place, command: Command) -> Outcome<Answer> {
        let is_given_up = Arc::new(AtomicBool::new(false));
        let (place, tell) = (place.clone(), self.tell.clone());
        let given_up = Arc::clone(&is_given_up);
        std::thread::spawn(move || {
            let is_given_up = || given_up.load(Ordering::Relaxed);
            let answer = daemon::ask_unless(&place, &command, &is_given_up);
            // Where nobody listens any more there is nobody to tell.
            drop(tell.send(Event::Answered(answer)));
        });
        loop {
            match self.events.recv().expect("the listener itself can tell") {
                Event::Answered(answer) => return answer,
                Event::Interrupt => {
                    self.interrupted = true;
                    is_given_up.store(true, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }
}

impl Listener {
    /// Returns what is told and by whom, and whether Ctrl-C was pressed already.
    pub(crate) fn into_parts(self) -> (SyncSender<Event>, Receiver<Event>, bool) {
        (self.tell, self.events, self.interrupted)
    }
}

/// Shows a job until it has ended and is on record, or nobody cares for it any more.
pub(crate) fn watch(watch: &Watch<'_>, listener: Listener) -> Outcome<Seen> {
    let Listener { tell, events, interrupted } = listener;
    course::follow(watch.fleet.dir.clone(), watch.job.clone(), tell.clone());
    let mut live = Live::new(watch, tell);
    live.screen.remark(&format!("{}: {}", watch.agent, watch.job))?;
    if let Some(reason) = &watch.waits {
        live.screen.remark(&format!("waits: {}", one_line(reason)))?;
    }
    if interrupted {
        live.interrupt()?;
    }
    let seen = live.go(&events);
    live.screen.clear();
    seen
}

/// The view of one run.
struct Live<'w> {
    watch: &'w Watch<'w>,
    tell: SyncSender<Event>,
    screen: Screen,
    tools: Tools,
    asks: Asks,
    seen: Seen,
    /// The folder of the run that is followed; of none before the first.
    folder: Utf8PathBuf,
    feed: feed::Handle,
    /// How many rows of the job log were shown.
    rows: u64,
    wholes: Wholes,
    /// The row that has what the agent said last, and under which key.
    answer: Option<(Json, &'static str)>,
    cost: Option<f64>,
    clock: Clock,
    run_ended: bool,
    /// Whether the job has had a run.
    has_run: bool,
    /// When the result was on record, or the job was left alone.
    done: Option<Instant>,
}

impl<'w> Live<'w> {
    fn new(watch: &'w Watch<'w>, tell: SyncSender<Event>) -> Live<'w> {
        Live {
            watch,
            asks: Asks::new(watch.keyboard.clone(), watch.who.clone(), tell.clone()),
            tell,
            screen: Screen::new(watch.show, watch.term),
            tools: Tools::new(TOOLS_MARGIN),
            seen: Seen::default(),
            folder: watch.fleet.dir.root().join("runs/none"),
            feed: feed::Handle::default(),
            rows: 0,
            wholes: Wholes::default(),
            answer: None,
            cost: None,
            clock: Clock::Waits(Instant::now()),
            run_ended: false,
            has_run: false,
            done: None,
        }
    }

    fn follow(&mut self, run: RunId) {
        self.folder = self.watch.fleet.dir.run(run);
        tracing::info!("the run's folder is {}", self.folder);
        self.run_ended = false;
        self.has_run = true;
        self.clock = Clock::Waits(Instant::now());
        let log = self.watch.fleet.dir.log_of(&self.watch.job);
        let feed = feed::start(self.folder.clone(), log, self.rows, self.tell.clone());
        std::mem::replace(&mut self.feed, feed).stop();
        feed::ask_state(self.folder.clone(), self.tell.clone(), self.feed.clone());
    }

    fn go(&mut self, events: &Receiver<Event>) -> Outcome<Seen> {
        loop {
            match events.recv_timeout(TICK) {
                Ok(event) => self.take(event)?,
                Err(RecvTimeoutError::Timeout) => self.draw(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let is_late = |at: Instant| self.seen.recorded && at.elapsed() > LAST_ROWS;
            let is_told = self.run_ended || !self.has_run || self.done.is_some_and(is_late);
            if self.done.is_some() && is_told || self.seen.interrupts > 2 {
                break;
            }
        }
        for line in self.tools.unfinished("no result") {
            self.screen.line(line)?;
        }
        if let Some((row, key)) = self.answer.take() {
            self.seen.answer = Some(self.wholes.text(&self.folder, &row, key).into_owned());
        }
        Ok(std::mem::take(&mut self.seen))
    }

    fn take(&mut self, event: Event) -> Outcome {
        match event {
            // An earlier run's feed may have told it already.
            Event::Row(number, _) if number < self.rows => {}
            Event::Row(number, row) => {
                self.rows = number + 1;
                self.row(&row)?;
            }
            Event::Delta(text) => self.screen.say(&text)?,
            Event::Lagged => self.screen.forget_said(),
            Event::Asked(ask) => self.asks.add(ask, &self.folder, &mut self.screen)?,
            Event::Settled(id) => self.asks.settled(&id, &mut self.screen)?,
            Event::Disk(trouble) => self.disk(trouble)?,
            Event::State(state) => self.state(*state)?,
            Event::RunEnded(folder) => {
                self.run_ended |= folder == self.folder;
                self.clock.stop();
            }
            Event::Answered(_) => {}
            Event::LeftAlone(why) => {
                self.screen.remark(&why)?;
                self.feed.nobody_starts_it();
                self.done.get_or_insert_with(Instant::now);
            }
            Event::Course(course) => self.course(course)?,
            Event::Interrupt => self.interrupt()?,
            Event::CancelFailed(why) => self.screen.remark(&format!("not cancelled: {why}"))?,
            Event::Typed(question, line) => {
                self.asks.typed(question, line, &self.folder, &mut self.screen)?;
            }
        }
        self.draw();
        Ok(())
    }

    fn row(&mut self, row: &Json) -> Outcome {
        if let Some(cost) = row["total_cost_usd"].as_f64() {
            self.cost = Some(cost);
        }
        let attended = self.watch.keyboard.is_some();
        self.seen.unasked += u64::from(tools::asked_nobody(row, attended));
        self.keep_answer(row);
        match row["type"].as_str() {
            // The run's own judgement is told at the end, with the cure.
            Some("error") if row["cure"].is_string() => {}
            Some("assistant") if row["parent_tool_use_id"].is_null() => {
                let text = self.wholes.text(&self.folder, row, "content");
                self.screen.said(&text)?;
            }
            _ => {
                if row["type"] == "error" && self.watch.show == Show::All {
                    self.seen.error = row["message"].as_str().map(str::to_owned);
                }
                if let Some(line) = self.tools.row(row, output::width()) {
                    self.screen.line(line)?;
                }
            }
        }
        Ok(())
    }

    /// Remembers the row if it has what the agent said last: its words, or the result of its turn.
    fn keep_answer(&mut self, row: &Json) {
        let is_main = row["parent_tool_use_id"].is_null();
        let key = match row["type"].as_str() {
            Some("assistant") if is_main => "content",
            Some("tool_result") if row["tool_use_id"].is_null() && row["subtype"].is_string() => {
                "result"
            }
            _ => return,
        };
        if self.watch.show != Show::Nothing {
            return;
        }
        if self.watch.is_command {
            if key == "content" {
                let said = self.wholes.text(&self.folder, row, key);
                let answer = self.seen.answer.get_or_insert_default();
                answer.push_str(if answer.is_empty() { "" } else { "\n" });
                answer.push_str(&said);
            }
        } else if row[key].as_str().is_some_and(|text| !text.trim().is_empty()) {
            self.answer = Some((row.clone(), key));
        }
    }

    fn disk(&mut self, trouble: Option<String>) -> Outcome {
        self.screen.remark(&match trouble {
            Some(why) => format!("the disk takes no rows, so the run waits: {}", one_line(&why)),
            None => "the disk takes rows again; the run goes on".to_owned(),
        })
    }

    fn state(&mut self, state: RunState) -> Outcome {
        self.cost = state.cost_usd.or(self.cost);
        for ask in state.asks {
            self.asks.add(ask, &self.folder, &mut self.screen)?;
        }
        Ok(())
    }

    fn course(&mut self, course: Course) -> Outcome {
        match course {
            Course::Runs(run) => self.follow(run),
            Course::Later { reason, at } => {
                let now = place::now();
                let when = (at > now).then(|| format!(", {}", output::upcoming(at, now)));
                let when = when.unwrap_or_default();
                self.screen.remark(&format!("{}{when}", one_line(&reason)))?;
            }
            Course::Over => {
                self.seen.recorded = true;
                self.feed.nobody_starts_it();
                self.done = Some(Instant::now());
            }
            Course::Alone => {
                let (revive, tell) = (Arc::clone(&self.watch.revive), self.tell.clone());
                std::thread::spawn(move || {
                    if let Err(why) = revive() {
                        // Where nobody listens any more there is nobody to tell.
                        let _told = tell.send(Event::LeftAlone(why));
                    }
                });
            }
        }
        Ok(())
    }

    fn interrupt(&mut self) -> Outcome {
        self.seen.interrupts += 1;
        let (now, said) = match self.seen.interrupts {
            1 => (false, "cancelling, as you asked; Ctrl-C again ends it at once"),
            2 => (true, "ending it at once"),
            _ => return Ok(()),
        };
        self.screen.remark(said)?;
        let (cancel, tell) = (Arc::clone(&self.watch.cancel), self.tell.clone());
        std::thread::spawn(move || {
            if let Err(why) = cancel(now) {
                let _told = tell.send(Event::CancelFailed(why));
            }
        });
        Ok(())
    }

    fn draw(&mut self) {
        if self.asks.is_asking() {
            return;
        }
        let cancelling = if self.seen.interrupts > 0 { "cancelling, " } else { "" };
        let doing = self.tools.current().unwrap_or_else(|| self.watch.agent.to_owned());
        let elapsed = output::duration(self.clock.elapsed_ms(&self.folder));
        let cost = output::price(self.cost).map(|cost| format!("  {cost}")).unwrap_or_default();
        self.screen.status(&format!("{cancelling}{doing}"), &format!("{elapsed}{cost}"));
    }
}

/// How long the run has taken, as its record will have it.
enum Clock {
    /// It has not begun, as far as is known; it is waited for since then.
    Waits(Instant),
    Runs(jiff::Timestamp),
    Stopped(i64),
}

impl Clock {
    fn elapsed_ms(&mut self, folder: &Utf8Path) -> i64 {
        if let Clock::Waits(_) = self
            && let Ok(started) = heeler_engine::started(folder)
        {
            *self = Clock::Runs(started.at);
        }
        self.shown_ms()
    }

    fn shown_ms(&self) -> i64 {
        match self {
            Clock::Waits(since) => i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX),
            Clock::Runs(at) => {
                let took = place::now().duration_since(*at).as_millis();
                i64::try_from(took).unwrap_or(i64::MAX).max(0)
            }
            Clock::Stopped(took) => *took,
        }
    }

    fn stop(&mut self) {
        *self = Clock::Stopped(self.shown_ms());
    }
}
