//! Continuing in a copy of the session. A long session is copied in the background; lines entered
//! meanwhile are held.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Conversation;
use super::commands::{entry_uuid, truncate_line};
use crate::background::{StoppableThread, WAIT_BYTES_MAX};
use crate::session_file::TranscriptContents;
use crate::{
    ChatOutput, ChatSpeaker, ConversationEntry, ConversationState, ConversationTurn, EntryRole,
    SessionFile,
};

/// Most messages that an error suggests as fork points.
const NAMED_MAX: usize = 5;

/// Copy in progress.
pub(super) struct ConversationFork {
    /// Draft; it becomes a session when it is saved.
    copy: SessionFile,
    /// Returns the message at which the copy ends, if it is not the last.
    work: StoppableThread<Result<Option<ConversationEntry>, String>>,
}

impl Conversation {
    /// Continues in a copy of the session, up to a message if one is given.
    pub(super) fn fork(&mut self, at: Option<u64>) {
        if self.pending_fork.is_some() {
            return self.show_error("the session is being copied; Esc cancels it");
        }
        if self.turn.is_some() || self.pending_turn.is_some() {
            return self.show_error("a turn is in progress; Esc interrupts it");
        }
        match self.start_fork(at) {
            Ok((forking, bytes)) if bytes <= WAIT_BYTES_MAX => self.finish_fork(forking),
            Ok((forking, bytes)) => {
                let size = bytes as f64 / 1e6;
                self.show_notice(format!(
                    "copying {size:.0} MB, then continuing in the copy; Esc cancels it"
                ));
                self.pending_fork = Some(forking);
            }
            Err(why) => self.show_error(why),
        }
    }

    /// Starts to copy. Also returns the number of bytes.
    fn start_fork(&mut self, at: Option<u64>) -> Result<(ConversationFork, u64), String> {
        let whole = self
            .session_file
            .contents(&ChatSpeaker::Coordinator)
            .map_err(|error| error.to_string())?;
        let about = self.session_file.state();
        // The copy knows the turns, but their jobs belong to the original.
        let turns = about.turns.iter().map(|asked| ConversationTurn {
            turn: asked.turn,
            job: None,
            by_loop: None,
            task: None,
        });
        let new = ConversationState {
            is_fork: true,
            created_at: None,
            turns: turns.collect(),
            loops: Vec::new(),
            workers: Vec::new(),
            insights: None,
            ..about.clone()
        };
        let copy = self.directory.create_draft(new, self.now).map_err(|error| error.to_string())?;
        let (to, disk) = copy.draft_target().map_err(|error| error.to_string())?;
        let bytes = whole.len();
        let work = StoppableThread::start(move |is_stopped| {
            let (message, len) = match at {
                None => (None, u64::MAX),
                Some(number) => find_fork_message(&whole, number, is_stopped)
                    .map(|(entry, end)| (Some(entry), end))?,
            };
            let copied = whole.copy_prefix(disk.as_ref(), &to, len, is_stopped);
            copied.map_err(|error| error.to_string()).map(|()| message)
        });
        Ok((ConversationFork { copy, work }, bytes))
    }

    /// Continues in a copy that was finished in the background.
    pub(super) fn poll_fork(&mut self) {
        if let Some(forking) = self.pending_fork.take_if(|forking| forking.work.is_done()) {
            self.finish_fork(forking);
        }
    }

    /// Stops a copy in progress and removes it.
    pub(super) fn cancel_fork(&mut self) {
        let Some(ConversationFork { copy, work }) = self.pending_fork.take() else { return };
        drop(work);
        match copy.discard() {
            Ok(()) => self.show_notice("the copy was cancelled"),
            Err(error) => self.show_error(format!("the copy was cancelled; {error}")),
        }
    }

    fn finish_fork(&mut self, ConversationFork { mut copy, work }: ConversationFork) {
        let made = work.join().and_then(|message| {
            let from = message.map(|entry| (self.session_of_entry(&entry), entry_uuid(&entry)));
            // Saved last: an interrupted copy is not a session.
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
            self.show_error(format!("{why}{left}"));
            return self.return_held_lines();
        }
        let from = self.session_file.id().to_owned();
        std::mem::swap(&mut self.session_file, &mut copy);
        if let Err(error) = copy.close() {
            self.show_error(format!("{error}"));
        }
        let workers = match self.workers.iter().any(super::ConversationWorker::has_live_jobs) {
            true => " Its workers keep running.",
            false => "",
        };
        self.detach_jobs();
        self.cursors.clear();
        self.view = ChatSpeaker::Coordinator;
        self.outputs.push(ChatOutput::SessionReplaced);
        self.show_older(&ChatSpeaker::Coordinator);
        self.append_notice(format!("Forked from {from}, which is unchanged.{workers}"));
    }

    /// Ignores rows, questions and costs of the previous session's jobs from now on.
    fn detach_jobs(&mut self) {
        self.detached_jobs.extend(self.speakers.drain().map(|(job, _)| job));
        self.next_rows.clear();
        self.costs.clear();
        self.questions.clear();
        self.workers.clear();
        self.messages = 0;
        self.fleet.watch_workers(&[]);
    }
}

/// Returns the message with a number (from 1) and its end. If it is not a possible fork point, the
/// error lists some that are.
pub(super) fn find_fork_message(
    whole: &TranscriptContents,
    number: u64,
    is_stopped: &AtomicBool,
) -> Result<(ConversationEntry, u64), String> {
    let mut count = 0;
    // The last few possible fork points: number, entry, and its end.
    let mut usable: VecDeque<(u64, ConversationEntry, u64)> = VecDeque::new();
    let each = whole.for_each_entry(|entry, end| {
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
