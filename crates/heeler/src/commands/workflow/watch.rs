//! A run as it happens: a line for each phase, drawn in place on a terminal, told line by line
//! elsewhere.
//!
//! Everything is read from the record and the transcripts, whoever writes them; the run does not
//! depend on this. Start at [`watch`].

mod agents;
mod asking;
mod block;
mod frame;

use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use heeler_engine::{Command, WorkflowOrder};
use heeler_model::workflow::graph::Mark;
use heeler_model::workflow::{CourseStatus, Workflow};
use heeler_model::{Approval, ApprovalId, WorkflowRunId};
use heeler_store::{Reader, STOPPED_AT};
use heeler_transcript::LockFile;

use self::agents::Agents;
use self::asking::Asking;
pub(super) use self::asking::commands;
use self::block::Block;
pub(super) use self::frame::sign;
use super::Watching;
use super::run::Begun;
use super::stand::{Journal, Stand, is_of_agent};
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
use crate::live::{Event, Listener};
use crate::output::{self, Text};
use crate::place::{self, Place};

/// How often the record is looked at, and the phases are drawn.
const TICK: Duration = Duration::from_millis(80);
/// How long nobody may write the state before a run that goes on counts as left alone. A daemon that
/// makes way for another is gone for a moment.
const ALONE_AFTER: Duration = Duration::from_secs(2);
/// How many events are read at once.
const EVENTS_MAX: usize = 1000;

/// What is watched, and how.
pub(super) struct View<'v> {
    pub(super) place: &'v Place,
    pub(super) run: &'v WorkflowRunId,
    pub(super) workflow: Option<Workflow>,
    pub(super) begun: Begun,
    pub(super) how: &'v Watching,
    /// Only what came of it is told, by somebody else.
    pub(super) is_quiet: bool,
}

/// What was seen of a run.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// How often Ctrl-C was pressed.
    pub(super) interrupts: u32,
    /// Whether nobody cares for it.
    pub(super) is_left_alone: bool,
    /// What the workflow said last.
    pub(super) last_message: Option<String>,
}

/// Shows a run until it and its jobs have ended, or there is nothing to wait for.
pub(super) fn watch(view: &View<'_>, listener: Listener) -> Outcome<Seen> {
    let (tell, events, interrupted) = listener.into_parts();
    let reader = Reader::open(&view.place.dir()?)?;
    let term = view.place.env.get("TERM").map(String::as_str);
    let moves = term.is_some_and(|term| term != "dumb") && std::io::stderr().is_terminal();
    let mut live = Live {
        view,
        block: Block::new(moves && !view.is_quiet),
        agents: Agents::new(view.place.dir()?, view.how.follow && !view.is_quiet),
        asking: Asking::new(view, &tell),
        workflow: view.workflow.clone().map(Arc::new),
        tell,
        journal: Journal::default(),
        stand: None,
        marks: HashMap::new(),
        told: Vec::new(),
        event: last_event(&reader, view)?,
        seen: Seen::default(),
        written: Instant::now(),
        is_reviving: Arc::default(),
        turn: 0,
        reader,
    };
    if interrupted {
        live.interrupt()?;
    }
    let done = live.go(&events);
    live.block.leave();
    done?;
    Ok(live.seen)
}

/// Returns the event after which what is said is news.
fn last_event(reader: &Reader, view: &View<'_>) -> Outcome<i64> {
    if view.begun == Begun::New {
        return Ok(0);
    }
    let events = reader.workflow_events(view.run, 0, usize::MAX)?;
    let is_news = |kind: &str| view.begun == Begun::Joined || kind == "retried";
    Ok(events.iter().rfind(|event| is_news(&event.kind)).map_or(0, |event| event.number))
}

struct Live<'v> {
    view: &'v View<'v>,
    reader: Reader,
    tell: SyncSender<Event>,
    block: Block,
    agents: Agents,
    asking: Asking,
    workflow: Option<Arc<Workflow>>,
    journal: Journal,
    stand: Option<Stand>,
    /// What was told of each phase.
    marks: HashMap<String, Mark>,
    /// The questions that were told.
    told: Vec<ApprovalId>,
    /// The last event that was told.
    event: i64,
    seen: Seen,
    /// When somebody was last seen to write the state.
    written: Instant,
    /// Whether somebody is being found who cares for it.
    is_reviving: Arc<AtomicBool>,
    turn: usize,
}

impl Live<'_> {
    fn go(&mut self, events: &Receiver<Event>) -> Outcome {
        if !self.view.is_quiet {
            self.remark(&format!("{}: {}", self.title()?, self.view.run))?;
        }
        loop {
            self.look()?;
            self.draw();
            if self.is_done() {
                return Ok(());
            }
            match events.recv_timeout(TICK) {
                Ok(Event::Interrupt) => self.interrupt()?,
                Ok(Event::CancelFailed(why)) => self.remark(&format!("not cancelled: {why}"))?,
                Ok(Event::LeftAlone(why)) => {
                    self.remark(&why)?;
                    self.seen.is_left_alone = true;
                }
                Ok(Event::Answered(Err(failure))) => {
                    self.remark(&format!("{:#}", failure.error))?;
                    self.asking.failed();
                }
                Ok(Event::Typed(question, line)) => self.typed(question, line),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    fn title(&self) -> Outcome<String> {
        let row = self.reader.workflow_run(self.view.run)?;
        Ok(output::one_line(&row.map(|row| row.head.workflow).unwrap_or_default()))
    }

    /// Says whether there is nothing more to wait for.
    fn is_done(&self) -> bool {
        let Some(stand) = &self.stand else { return false };
        let parts = stand.phases.iter().flat_map(|phase| &phase.parts);
        let open = parts.filter(|part| part.how.is_none()).count();
        let is_over = stand.row.head.status.is_final() && open == 0;
        let joined = self.view.begun == Begun::Joined && self.seen.interrupts > 0;
        let asks =
            stand.row.head.status == CourseStatus::Paused || stand.pending().any(is_of_agent);
        let asked = self.view.how.until_asked && asks;
        is_over || joined || asked || self.seen.interrupts > 2 || self.seen.is_left_alone
    }

    /// Reads the record, and tells what is new.
    fn look(&mut self) -> Outcome {
        let gone =
            || Failure::message(Code::Failed, format!("the record of {} is gone", self.view.run));
        let row = self.reader.workflow_run(self.view.run)?.ok_or_else(gone)?;
        self.journal.update(&self.reader, self.view.run)?;
        let stand = Stand::of(&self.reader, row, self.workflow.as_ref(), &self.journal)?;
        let lines = self.agents.look(&stand);
        for line in lines {
            self.line(line)?;
        }
        self.tell_phases(&stand)?;
        self.tell_events()?;
        self.tell_questions(&stand)?;
        self.care(&stand)?;
        self.stand = Some(stand);
        Ok(())
    }

    /// Tells each phase that began or ended, where they are not drawn.
    fn tell_phases(&mut self, stand: &Stand) -> Outcome {
        let now = place::now();
        let is_first = self.marks.is_empty();
        for phase in &stand.phases {
            let before = self.marks.insert(phase.name.clone(), phase.mark);
            let is_old = is_first && self.view.begun != Begun::New;
            if before == Some(phase.mark) || phase.mark == Mark::Waiting || is_old {
                continue;
            }
            if self.block.is_drawn() || self.view.is_quiet {
                continue;
            }
            // What is quick began and ended between two looks.
            let was_waiting = matches!(before, None | Some(Mark::Waiting));
            let has_jobs = phase.parts.iter().any(|part| part.job.is_some());
            if was_waiting && has_jobs && phase.mark != Mark::Running {
                self.line(frame::begins(phase))?;
            }
            self.line(frame::told(phase, now))?;
        }
        Ok(())
    }

    /// Tells what the workflow says, and what people did.
    fn tell_events(&mut self) -> Outcome {
        for event in self.reader.workflow_events(self.view.run, self.event, EVENTS_MAX)? {
            self.event = event.number;
            match event.kind.as_str() {
                "message" => {
                    self.seen.last_message = Some(event.text.clone());
                    self.say(&event.text)?;
                }
                "started" | "asked" | "ended" | "retried" => {}
                _ if self.view.is_quiet => {}
                _ => self.remark(&output::one_line(&event.text))?,
            }
        }
        Ok(())
    }

    /// Tells who is asked what, once, and asks whoever sits here.
    fn tell_questions(&mut self, stand: &Stand) -> Outcome {
        let pending: Vec<Approval> = stand.pending().cloned().collect();
        for approval in &pending {
            if self.view.is_quiet || self.told.contains(&approval.id) {
                continue;
            }
            self.told.push(approval.id.clone());
            // A list has a short account only.
            let whole = self.reader.approval(&approval.id)?;
            let here = self.asking.is_here();
            for line in asking::question(whole.as_ref().unwrap_or(approval), here) {
                self.line(line)?;
            }
        }
        let is_new = self.asking.next(&pending);
        // Lines that came meanwhile stand below a question that was put before them.
        if let Some(prompt) = self.asking.current().filter(|_| is_new || !self.block.is_asking()) {
            self.block.prompt(&prompt);
        }
        Ok(())
    }

    fn typed(&mut self, question: u64, line: Option<String>) {
        match self.asking.typed(question, line) {
            asking::Typed::Nothing => {}
            asking::Typed::Again(prompt) => {
                self.block.answered();
                self.block.prompt(&prompt);
            }
            asking::Typed::Answer(command) => {
                self.block.answered();
                let (place, tell) = (self.view.place.clone(), self.tell.clone());
                std::thread::spawn(move || {
                    // Where nobody listens any more there is nobody to tell.
                    drop(tell.send(Event::Answered(daemon::ask(&place, &command))));
                });
            }
        }
    }

    /// Has a run cared for again whose daemon is gone. One that only waits for people needs none.
    fn care(&mut self, stand: &Stand) -> Outcome {
        let lock = self.view.place.dir()?.lock();
        if !matches!(LockFile::probe(&lock), Ok(None)) {
            self.written = Instant::now();
        }
        let now = place::now();
        let expired = |it: &Approval| it.expires_at.is_some_and(|at| at <= now);
        let parts = stand.phases.iter().flat_map(|phase| &phase.parts);
        let is_at_work = parts.into_iter().any(|part| part.how.is_none());
        let needs_care = match stand.row.head.status {
            CourseStatus::Running | CourseStatus::Queued => true,
            CourseStatus::Paused => stand.pending().any(expired),
            _ => is_at_work,
        };
        let is_reviving = self.is_reviving.load(Ordering::Relaxed);
        if !needs_care || is_reviving || self.written.elapsed() < ALONE_AFTER {
            return Ok(());
        }
        self.is_reviving.store(true, Ordering::Relaxed);
        let (place, tell) = (self.view.place.clone(), self.tell.clone());
        let done = Arc::clone(&self.is_reviving);
        let is_stopped = self.reader.meta(STOPPED_AT)?.is_some_and(|at| !at.is_empty());
        std::thread::spawn(move || {
            let why = match is_stopped {
                true => "the fleet was stopped: the run goes on with `heeler start`".to_owned(),
                false => match daemon::connect_or_start(&place) {
                    Ok(_) => return done.store(false, Ordering::Relaxed),
                    Err(failure) => format!("{:#}", failure.error),
                },
            };
            // Where nobody listens any more there is nobody to tell.
            drop(tell.send(Event::LeftAlone(why)));
        });
        Ok(())
    }

    fn interrupt(&mut self) -> Outcome {
        self.seen.interrupts += 1;
        self.asking.stop();
        if self.view.begun == Begun::Joined {
            return self.remark("the run goes on");
        }
        let (now, said) = match self.seen.interrupts {
            1 => (false, "cancelling, as you asked; Ctrl-C again ends it at once"),
            2 => (true, "ending it at once"),
            _ => return Ok(()),
        };
        self.remark(said)?;
        let (place, tell) = (self.view.place.clone(), self.tell.clone());
        let order = WorkflowOrder::Cancel { run: self.view.run.clone(), now };
        std::thread::spawn(move || {
            let command = Command::Workflow { order, by: "Ctrl-C".to_owned() };
            match daemon::ask(&place, &command) {
                // It ended by itself meanwhile.
                Err(failure) if failure.code == Code::Refused => {}
                Err(failure) => {
                    drop(tell.send(Event::CancelFailed(format!("{:#}", failure.error))));
                }
                Ok(_) => {}
            }
        });
        Ok(())
    }

    fn draw(&mut self) {
        let Some(stand) = &self.stand else { return };
        if self.asking.is_asking() || !self.block.is_drawn() {
            return;
        }
        self.turn += 1;
        let doing = |phase: &super::stand::PhaseStand| self.agents.doing(&self.reader, phase);
        let size = (output::width(), block::rows());
        self.block.draw(&frame::frame(stand, &doing, self.turn, size, place::now()));
    }

    /// Shows what the workflow says, on stdout.
    fn say(&mut self, text: &str) -> Outcome {
        if self.view.is_quiet {
            return Ok(());
        }
        self.block.erase();
        // A reader that went away, as `head` does, does not end the run, nor our waiting for it.
        let mut out = std::io::stdout().lock();
        drop(writeln!(out, "{}", output::harmless(text.trim_end())).and_then(|()| out.flush()));
        Ok(())
    }

    fn remark(&mut self, text: &str) -> Outcome {
        self.line(Text::styled(anstyle::Style::new().dimmed(), text))
    }

    /// Shows a line that stays.
    fn line(&mut self, text: Text) -> Outcome {
        self.block.erase();
        // Where this cannot be written nobody looks; the run goes on.
        drop(writeln!(anstream::stderr().lock(), "{text}"));
        Ok(())
    }
}
