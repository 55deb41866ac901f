//! Continuing in a copy of the session. A long session is copied in the background; lines entered
//! meanwhile are held.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Conversation;
use super::display::truncate_line;
use super::fork_copy::ConversationFork;
use super::turn_phase::TurnEvent;
use super::undo::entry_uuid;
use super::worker_list::WorkerList;
use crate::background::{StoppableThread, WAIT_BYTES_MAX};
use crate::session_file::TranscriptContents;
use crate::{ChatSpeaker, ConversationEntry, ConversationState, ConversationTurn, EntryRole};

/// Most messages that an error suggests as fork points.
const NAMED_MAX: usize = 5;

impl Conversation {
    /// Continues in a copy of the session, up to a message if one is given.
    pub(super) fn fork(&mut self, at: Option<u64>) {
        if let Some(conflict) = self.turn.conflict() {
            return self.display.show_error(conflict);
        }
        match self.start_fork(at) {
            Ok((copy, bytes)) if bytes <= WAIT_BYTES_MAX => self.finish_fork(copy),
            Ok((copy, bytes)) => {
                let size = bytes as f64 / 1e6;
                self.display.show_notice(format!(
                    "copying {size:.0} MB, then continuing in the copy; Esc cancels it"
                ));
                self.apply_turn_event(TurnEvent::CopyStarted(Box::new(copy)));
            }
            Err(why) => self.display.show_error(why),
        }
    }

    /// Starts to copy. Also returns the number of bytes.
    fn start_fork(&mut self, at: Option<u64>) -> Result<(ConversationFork, u64), String> {
        let contents = self
            .record
            .session_file
            .contents(&ChatSpeaker::Coordinator)
            .map_err(|error| error.to_string())?;
        let state = self.state();
        // The copy knows the turns, but their jobs belong to the original.
        let turns = state.turns.iter().map(|turn| ConversationTurn {
            turn: turn.turn,
            job: None,
            by_loop: None,
            task: None,
        });
        let new = ConversationState {
            is_fork: true,
            created_at: None,
            turns: turns.collect(),
            // Loops and workers continue in the original only.
            loops: Vec::new(),
            workers: Vec::new(),
            insights: None,
            ..state.clone()
        };
        let copy = self.directory.create_draft(new, self.now).map_err(|error| error.to_string())?;
        let (to, disk) = copy.draft_target().map_err(|error| error.to_string())?;
        let bytes = contents.len();
        let work = StoppableThread::start(move |is_stopped| {
            // A message is looked for in the thread, because the transcript may be long.
            let (message, len) = match at {
                None => (None, u64::MAX),
                Some(number) => find_fork_message(&contents, number, is_stopped)
                    .map(|(entry, end)| (Some(entry), end))?,
            };
            let copied = contents.copy_prefix(disk.as_ref(), &to, len, is_stopped);
            copied.map_err(|error| error.to_string()).map(|()| message)
        });
        Ok((ConversationFork { copy, work }, bytes))
    }

    /// Stops a copy in progress and removes it.
    pub(super) fn discard_fork(&mut self, ConversationFork { copy, work }: ConversationFork) {
        // Waits for the end of the thread, which could create the file again otherwise.
        drop(work);
        match copy.discard() {
            Ok(()) => self.display.show_notice("the copy was cancelled"),
            Err(error) => self.display.show_error(format!("the copy was cancelled; {error}")),
        }
    }

    /// Waits for the copy, then continues in it.
    pub(super) fn finish_fork(&mut self, ConversationFork { mut copy, work }: ConversationFork) {
        let saved_copy = work.join().and_then(|message| {
            let from = message.map(|entry| (self.session_of_entry(&entry), entry_uuid(&entry)));
            // Saved last: an interrupted copy is not a session.
            let saved = copy.save(|state| {
                if let Some((session, cut)) = from {
                    state.session = session.or(state.session.take());
                    state.cut = cut;
                }
            });
            saved.map_err(|error| error.to_string())
        });
        if let Err(why) = saved_copy {
            let discard_error =
                copy.discard().err().map(|error| format!("; {error}")).unwrap_or_default();
            self.display.show_error(format!("{why}{discard_error}"));
            return self.return_held_lines();
        }
        let from = self.record.session_file.id().to_owned();
        // The entries of the old session are on disk; at most its JSON file is behind.
        if let Err(error) = self.record.replace_session(copy).close() {
            self.display.show_error(format!("{error}"));
        }
        let workers = match self.workers.live_count() {
            0 => "",
            _ => " Its workers keep running.",
        };
        // Rows, questions and costs of the previous session's jobs are ignored from now on.
        self.jobs.detach_all();
        self.workers = WorkerList::default();
        self.fleet.watch_workers(&[]);
        self.display.replace_session(&self.record.session_file);
        self.append_notice(format!("Forked from {from}, which is unchanged.{workers}"));
    }
}

/// Returns the message with a number (from 1) and its end. If it is not a possible fork point, the
/// error lists some that are.
pub(super) fn find_fork_message(
    contents: &TranscriptContents,
    number: u64,
    is_stopped: &AtomicBool,
) -> Result<(ConversationEntry, u64), String> {
    let mut count = 0;
    // The last few possible fork points: number, entry, and its end.
    let mut usable: VecDeque<(u64, ConversationEntry, u64)> = VecDeque::new();
    let each = contents.for_each_entry(|entry, end| {
        count += u64::from(entry.is_message());
        if entry.role == EntryRole::Assistant && entry_uuid(&entry).is_some() {
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
    let line = |(number, entry, _): &(u64, ConversationEntry, u64)| {
        format!("\n{number:>4}  {}", truncate_line(entry.text().lines().next().unwrap_or_default()))
    };
    let lines: String = usable.iter().map(line).collect();
    Err(match lines.is_empty() {
        true => "no message of the agent can be forked from".to_owned(),
        false => {
            format!(
                "message {number} cannot be forked from; these messages of the agent can:{lines}"
            )
        }
    })
}
