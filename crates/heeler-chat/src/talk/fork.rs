//! Going on in a copy of the session. A long one is copied beside, and what is said meanwhile is held.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Talk;
use super::commands::{gist, uuid_of};
use crate::beside::{Beside, WAIT_BYTES_MAX};
use crate::book::Whole;
use crate::{About, Asked, Book, Entry, Role, Shown, Speaker};

/// How many messages are named where one cannot be forked from.
const NAMED_MAX: usize = 5;

/// A copy that is being made.
pub(super) struct Forking {
    /// No session before it is saved.
    copy: Book,
    /// Returns the message that it goes on from, if that is not the last.
    work: Beside<Result<Option<Entry>, String>>,
}

impl Talk {
    /// Goes on in a copy of the session, up to a message if one is named.
    pub(super) fn fork(&mut self, at: Option<u64>) {
        if self.forking.is_some() {
            return self.failed("a copy is being made; Esc gives it up");
        }
        if self.turn.is_some() || self.asking.is_some() {
            return self.failed("a turn is under way; Esc interrupts it");
        }
        match self.begin_fork(at) {
            Ok((forking, bytes)) if bytes <= WAIT_BYTES_MAX => self.end_fork(forking),
            Ok((forking, bytes)) => {
                let size = bytes as f64 / 1e6;
                self.told(format!(
                    "this session's {size:.0} MB are copied, then it goes on in the copy; Esc gives it up"
                ));
                self.forking = Some(forking);
            }
            Err(why) => self.failed(why),
        }
    }

    /// Begins to copy. Also returns how many bytes there are.
    fn begin_fork(&mut self, at: Option<u64>) -> Result<(Forking, u64), String> {
        let whole = self.book.whole(&Speaker::Coordinator).map_err(|error| error.to_string())?;
        let about = self.book.about();
        // Its turns are known, and their jobs are the other's.
        let turns = about.turns.iter().map(|asked| Asked {
            turn: asked.turn,
            job: None,
            by_loop: None,
            task: None,
        });
        let new = About {
            is_fork: true,
            created_at: None,
            turns: turns.collect(),
            loops: Vec::new(),
            workers: Vec::new(),
            insights: None,
            ..about.clone()
        };
        let copy = self.shelf.draft(new, self.now).map_err(|error| error.to_string())?;
        let (to, disk) = copy.target().map_err(|error| error.to_string())?;
        let bytes = whole.len();
        let work = Beside::start(move |is_stopped| {
            let (message, len) = match at {
                None => (None, u64::MAX),
                Some(number) => {
                    message(&whole, number, is_stopped).map(|(entry, end)| (Some(entry), end))?
                }
            };
            let copied = whole.copy(disk.as_ref(), &to, len, is_stopped);
            copied.map_err(|error| error.to_string()).map(|()| message)
        });
        Ok((Forking { copy, work }, bytes))
    }

    /// Goes on in a copy that was made beside.
    pub(super) fn fork_on(&mut self) {
        if let Some(forking) = self.forking.take_if(|forking| forking.work.is_done()) {
            self.end_fork(forking);
        }
    }

    /// Stops a copy that is being made; nothing stays of it.
    pub(super) fn give_up_fork(&mut self) {
        let Some(Forking { copy, work }) = self.forking.take() else { return };
        drop(work);
        match copy.discard() {
            Ok(()) => self.told("the copy was given up"),
            Err(error) => self.failed(format!("the copy was given up; {error}")),
        }
    }

    fn end_fork(&mut self, Forking { mut copy, work }: Forking) {
        let made = work.end().and_then(|message| {
            let from = message.map(|entry| (self.session_of(&entry), uuid_of(&entry)));
            // Saved last: a copy that is cut off before is no session.
            let saved = copy.save(|about| {
                if let Some((session, cut)) = from {
                    about.session = session.or(about.session.take());
                    about.cut = cut;
                }
            });
            saved.map_err(|error| error.to_string())
        });
        if let Err(why) = made {
            let left = copy.discard().err().map(|error| format!("; {error}")).unwrap_or_default();
            self.failed(format!("{why}{left}"));
            return self.give_back_held();
        }
        let from = self.book.id().to_owned();
        std::mem::swap(&mut self.book, &mut copy);
        if let Err(error) = copy.close() {
            self.failed(format!("{error}"));
        }
        let workers = match self.workers.iter().any(super::Worker::is_at_work) {
            true => " Its workers go on with it.",
            false => "",
        };
        self.leave_jobs_behind();
        self.marks.clear();
        self.view = Speaker::Coordinator;
        self.out.push(Shown::Restarted);
        self.show_older(&Speaker::Coordinator);
        self.note(format!("Forked from {from}, which stays as it is.{workers}"));
    }

    /// What the jobs of the session before do, ask and cost is none of this one's.
    fn leave_jobs_behind(&mut self) {
        self.left_behind.extend(self.speakers.drain().map(|(job, _)| job));
        self.next_rows.clear();
        self.costs.clear();
        self.asks.clear();
        self.workers.clear();
        self.messages = 0;
        self.fleet.watch_workers(&[]);
    }
}

/// Returns the message of a number, from 1 on, and where it ends. One that cannot be forked from is an
/// error that names some which can.
pub(super) fn message(
    whole: &Whole,
    number: u64,
    is_stopped: &AtomicBool,
) -> Result<(Entry, u64), String> {
    let mut count = 0;
    // The last few that can be forked from: number, entry, and where it ends.
    let mut usable: VecDeque<(u64, Entry, u64)> = VecDeque::new();
    let each = whole.each(|entry, end| {
        count += u64::from(entry.is_message());
        if entry.role == Role::Assistant && uuid_of(&entry).is_some() {
            usable.push_back((count, entry, end));
            if usable.len() > NAMED_MAX {
                usable.pop_front();
            }
        }
        let is_behind = usable.back().is_none_or(|(found, ..)| *found < number);
        is_behind && !is_stopped.load(Ordering::Relaxed)
    });
    each.map_err(|error| error.to_string())?;
    if let Some((_, entry, end)) = usable.pop_back_if(|(found, ..)| *found == number) {
        return Ok((entry, end));
    }
    let line = |(number, entry, _): &(u64, Entry, u64)| {
        format!("\n{number:>4}  {}", gist(entry.text().lines().next().unwrap_or_default()))
    };
    let lines: String = usable.iter().map(line).collect();
    Err(match lines.is_empty() {
        true => "the agent has said nothing that can be forked from".to_owned(),
        false => {
            format!("message {number} cannot be forked from; these of the agent's can:{lines}")
        }
    })
}
