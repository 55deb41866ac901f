//! Going on with a session: what was under way when it was left, however that was.

use jiff::SignedDuration;
use uuid::Uuid;

use super::commands::is_undo;
use super::turns::By;
use super::{PAGE_ENTRIES, Talk};
use crate::{Asked, BookError, Entry, Role, Shown, Speaker, row};

/// How long a fleet knows for certain which turns it was asked.
pub const TURNS_KNOWN: SignedDuration = SignedDuration::from_hours(24);

/// Words that are in the transcript and were not answered for when the session was resumed. The fleet may
/// still be at them: what it was asked it says when it has made a job of it.
pub(super) struct Unsent {
    pub(super) turn: Uuid,
    pub(super) text: String,
}

impl Talk {
    /// Shows the tail of what is there, and follows what was under way when it was left.
    pub(super) fn resume(&mut self) -> Result<(), BookError> {
        let page = self.book.older(&Speaker::Coordinator, None, PAGE_ENTRIES)?;
        self.marks.insert(Speaker::Coordinator, page.mark);
        let (entries, has_more) = (page.entries, page.has_more);
        let older = entries.clone();
        self.out.push(Shown::Older { of: Speaker::Coordinator, entries: older, has_more });
        // Words that are in the transcript, and of whose job nothing is on record here.
        let unsure = entries.iter().rev().find(|entry| entry.turn.is_some());
        if let Some(entry) = unsure.filter(|entry| entry.role == Role::User) {
            self.find_turn(entry);
        }
        // The last turn begins there. What was not sent is none.
        let turns = &self.book.about().turns;
        let is_turn = |entry: &Entry| turns.iter().any(|asked| entry.turn == Some(asked.turn));
        let begin = entries.iter().rposition(is_turn);
        let tail = &entries[begin.unwrap_or_default()..];
        let is_undone = tail.iter().any(is_undo);
        let jobs = self.book.about().jobs();
        let mut is_on_record = true;
        for job in &jobs {
            self.speakers.insert(job.clone(), Speaker::Coordinator);
            let facts = self.fleet.facts(job);
            is_on_record = !matches!(facts, Ok(None));
            if let Ok(Some(facts)) = facts {
                self.costs.extend(facts.cost_usd.map(|cost| (job.clone(), cost)));
            }
        }
        // Only the last turn can have been cut off here: each begins when the one before is kept whole.
        // One that was taken back was whole too, and nothing goes on from its session.
        if let Some(job) = jobs.last().filter(|_| !is_on_record) {
            // Another state directory, or an older one: nothing more will be heard of it.
            self.told(format!(
                "{job}, the last turn, is no longer on record: what is here is all of it."
            ));
        } else if let Some(job) = jobs.last().filter(|_| !is_undone) {
            let is_its = |asked: &&Asked| asked.job.as_ref() == Some(job);
            let asked = self.book.about().turns.iter().rfind(is_its);
            let by_loop = asked.and_then(|asked| asked.by_loop);
            self.asked_task = asked.and_then(|asked| asked.task.clone());
            self.follow(job.clone(), by_loop.map_or(By::Person, By::Loop))?;
            let is_its = |entry: &Entry| entry.source.as_ref().is_some_and(|it| it.job == *job);
            let said = tail.iter().filter(|entry| is_its(entry));
            // What it said before the session was cut off may be that it is done.
            let last_words = said.clone().rfind(|entry| entry.role == Role::Assistant);
            self.last_words = last_words.map(Entry::text).unwrap_or_default();
            let told = tail.iter().filter(|entry| entry.role == Role::User).map(Entry::text);
            if let Some(turn) = &mut self.turn {
                // What is in the transcript is not told again.
                turn.tells_end = said.clone().next_back().is_some_and(row::tells_end);
                turn.known.extend(told.clone());
                turn.is_unsure = begin.is_some();
            }
        }
        if !jobs.is_empty() {
            self.fleet.watch_workers(&jobs);
        }
        self.resume_loops();
        Ok(())
    }

    /// Looks what became of words that may not have been sent.
    fn find_turn(&mut self, entry: &Entry) {
        let Some(turn) = entry.turn else { return };
        if self.book.about().turns.iter().any(|asked| asked.turn == turn) {
            return;
        }
        let age = entry.at.map(|at| self.now.duration_since(at));
        match self.fleet.asked(turn) {
            Ok(Some(job)) => {
                let asked = Asked { turn, job: Some(job), by_loop: None, task: None };
                self.save(|about| about.turns.push(asked));
            }
            Ok(None) if age.is_some_and(|age| age > TURNS_KNOWN) => {
                self.told("whether your last words were sent is not known any more; `heeler jobs` lists what was done.");
            }
            Ok(None) => {
                self.told("your last words were not sent: the program ended before. Enter sends them now.");
                let text = entry.text();
                self.unsent = Some(Unsent { turn, text: text.trim().to_owned() });
                self.out.push(Shown::Suggested(text));
            }
            Err(why) => {
                self.failed(format!("whether your last words were sent is not known: {why}"));
            }
        }
    }
}
