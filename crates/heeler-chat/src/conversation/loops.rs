//! Tasks, and loops that start turns on a schedule.

use heeler_model::JobId;
use heeler_model::job_row::{JobRow, JobRowKind};

use super::Conversation;
use super::turn_phase::TurnInitiator;
use crate::tasks::{GOAL_REACHED, LOOPS_MAX, TASK_DONE, TASKS_MAX, has_marker_line};
use crate::{ConversationLoop, ConversationState, ConversationTask, EntrySource};

/// Subtypes of the rows in which a run records changes to the task list.
const TASKS_ADDED: &str = "tasks_added";
const TASK_FINISHED: &str = "task_finished";

impl Conversation {
    /// Offers to restart the loops of a resumed session, or restarts them if the options say so.
    pub(super) fn resume_loops(&mut self) {
        if self.state().loops.is_empty() {
            return;
        }
        // Due times of the previous session do not apply.
        self.save_state(|state| state.loops.iter_mut().for_each(|one| one.next_at = None));
        if self.options.restart_loops {
            return self.restart_loops(None);
        }
        let count = self.state().loops.len();
        let loops =
            if count == 1 { "A loop was".to_owned() } else { format!("{count} loops were") };
        self.display.show_notice(format!("{loops} active here: /loops lists, /restart restarts."));
    }

    pub(super) fn add_loop(&mut self, one: ConversationLoop) {
        if self.state().loops.len() >= LOOPS_MAX {
            return self.display.show_error(format!(
                "there are {LOOPS_MAX} loops, which is the limit; /stop ends some"
            ));
        }
        if one.goal.is_none() && !self.state().tasks.iter().any(|task| !task.done) {
            return self.display.show_error("no task is open; /tasks add TEXT adds one");
        }
        let description = one.describe();
        self.save_state(|state| state.loops.push(one));
        self.display.show_notice(format!(
            "loop {}: {description}; /stop ends it",
            self.state().loops.len()
        ));
        // The first turn of a loop is due at once.
        self.start_due_loop();
    }

    pub(super) fn stop_loops(&mut self, which: Option<usize>) {
        let count = self.state().loops.len();
        match which {
            _ if count == 0 => self.display.show_notice("there are no loops"),
            Some(number) if number > count => {
                self.display.show_error(format!("there is no loop {number}; /loops lists them"));
            }
            Some(number) => {
                self.save_state(|state| drop(state.loops.remove(number - 1)));
                self.display.show_notice(format!("loop {number} has ended"));
            }
            None => {
                self.save_state(|state| state.loops.clear());
                self.display.show_notice(if count == 1 {
                    "the loop has ended"
                } else {
                    "all loops have ended"
                });
            }
        }
        // The running turn refers to its loop by index, which may have changed.
        if let Some(initiator) = self.turn.renumber_loop(which) {
            self.save_state(|state| {
                let last = state.turns.last_mut();
                last.into_iter().for_each(|turn| turn.by_loop = initiator.loop_index());
            });
        }
    }

    pub(super) fn restart_loops(&mut self, which: Option<usize>) {
        let (now, count) = (self.now, self.state().loops.len());
        if let Some(number) = which.filter(|number| *number > count) {
            return self
                .display
                .show_error(format!("there is no loop {number}; /loops lists them"));
        }
        self.save_state(|state| {
            let is_meant = |at: usize| which.is_none_or(|number| number == at + 1);
            let resting = state.loops.iter_mut().enumerate();
            for (_, one) in resting.filter(|(at, one)| is_meant(*at) && one.next_at.is_none()) {
                one.next_at = Some(now);
            }
        });
        self.display.show_notice(if count == 0 { "there are no loops" } else { "restarted" });
        self.start_due_loop();
    }

    pub(super) fn list_loops(&mut self) {
        let lines = self.state().loops.iter().enumerate().map(|(at, one)| {
            let state = if one.next_at.is_some() { "" } else { "  (paused: /restart)" };
            format!("{}  {}{state}", at + 1, one.describe())
        });
        let lines: Vec<String> = lines.collect();
        self.display.show_notice(match lines.is_empty() {
            true => "no loops; /loop \"GOAL\" INTERVAL starts one, /start works through the tasks"
                .to_owned(),
            false => lines.join("\n"),
        });
    }

    /// Starts the turn of a due loop, if nothing else is in progress.
    pub(super) fn start_due_loop(&mut self) {
        // A loop never overtakes the person: queued messages are sent first.
        if !self.turn.is_idle()
            || self.outbox.queued() > 0
            || self.has_unwritten_entries()
            || !self.phase.is_open()
        {
            return;
        }
        let state = self.state();
        let is_due = |one: &ConversationLoop| one.next_at.is_some_and(|at| at <= self.now);
        let Some(at) = state.loops.iter().position(is_due) else { return };
        match state.loops[at].prompt(&state.tasks) {
            Some(prompt) => {
                let is_of_tasks = state.loops[at].goal.is_none();
                let open = state.tasks.iter().find(|task| !task.done && is_of_tasks);
                let task = open.map(|task| task.text.clone());
                self.save_state(|state| state.loops[at].turns += 1);
                self.start_turn(&prompt, TurnInitiator::Loop { index: at, task });
            }
            None => self.end_tasks_loop(at),
        }
    }

    /// Schedules the next turn of a loop, or ends the loop if the agent reports that it is done.
    pub(super) fn loop_turn_ended(&mut self, at: usize, task: Option<&str>, reply: &str) {
        // The person may have stopped the loop during its turn.
        let Some(one) = self.state().loops.get(at) else { return };
        let next_at = one.next_due_at(self.now);
        if one.goal.is_some() && has_marker_line(reply, GOAL_REACHED) {
            self.save_state(|state| {
                state.loops.remove(at);
                clear_turn_loop(state);
            });
            return self.append_notice("The goal is reached: the loop has ended.");
        }
        let is_of_tasks = one.goal.is_none();
        // The agent may have marked the task already; then no other one is marked.
        let done = task.filter(|_| has_marker_line(reply, TASK_DONE));
        self.save_state(|state| {
            let is_it =
                |task: &&mut ConversationTask| !task.done && Some(task.text.as_str()) == done;
            state.tasks.iter_mut().find(is_it).into_iter().for_each(|task| task.done = true);
            clear_turn_loop(state);
            // A loop that is paused since the session was resumed stays paused.
            let next = &mut state.loops[at].next_at;
            *next = next.map(|_| next_at);
        });
        if is_of_tasks && self.state().tasks.iter().all(|task| task.done) {
            self.end_tasks_loop(at);
        }
    }

    fn end_tasks_loop(&mut self, at: usize) {
        self.save_state(|state| drop(state.loops.remove(at)));
        self.append_notice("All tasks are done: the loop has ended.");
    }

    /// Pauses a loop after a failed turn until a person restarts it: it would fail again.
    pub(super) fn loop_failed(&mut self, at: usize) {
        if self.state().loops.get(at).is_none() {
            return;
        }
        self.save_state(|state| {
            state.loops[at].next_at = None;
            clear_turn_loop(state);
        });
        self.append_notice(format!(
            "Loop {} is paused, because its turn failed; /restart continues it.",
            at + 1
        ));
    }

    /// Applies a change of the agent to the task list. The row is recorded, so that it counts once.
    pub(super) fn apply_task_row(&mut self, job: &JobId, at: u64, row: &JobRow) {
        let JobRowKind::System { subtype } = row.kind() else { return };
        let source = EntrySource { job: job.clone(), row: at };
        if subtype == TASKS_ADDED {
            // After a crash the row is read again, although its tasks may be saved already.
            let is_known = |task: &ConversationTask| task.added_by.as_ref() == Some(&source);
            if self.state().tasks.iter().any(is_known) {
                return;
            }
            let texts: Vec<String> = row.texts("tasks").map(str::to_owned).collect();
            self.add_tasks(texts, Some(source));
        } else if subtype == TASK_FINISHED {
            let number = row.number("number").and_then(|it| usize::try_from(it).ok());
            let text = row.text("description");
            self.save_state(|state| {
                let index =
                    number.and_then(|number| finished_task_index(&state.tasks, number, text));
                index.into_iter().for_each(|index| state.tasks[index].done = true);
            });
        } else {
            return;
        }
        // The entry marks the row as handled, so it must not be written before the state.
        self.record.save_state_before_entries();
    }

    pub(super) fn add_tasks(&mut self, texts: Vec<String>, added_by: Option<EntrySource>) {
        let free = TASKS_MAX.saturating_sub(self.state().tasks.len());
        if texts.len() > free {
            self.display.show_error(format!(
                "only {free} of {} tasks are kept: {TASKS_MAX} is the limit",
                texts.len()
            ));
        }
        let task = |text| ConversationTask { text, done: false, added_by: added_by.clone() };
        let tasks: Vec<ConversationTask> = texts.into_iter().take(free).map(task).collect();
        self.save_state(|state| state.tasks.extend(tasks));
    }
}

/// Detaches the last turn from its loop, so that its result is not counted again when the session
/// is resumed.
fn clear_turn_loop(state: &mut ConversationState) {
    state.turns.last_mut().into_iter().for_each(|turn| turn.by_loop = None);
}

/// Returns the index of the task that an agent finished: the one with its number, or, if the list
/// has changed since the agent saw it, the open one that begins with its text.
fn finished_task_index(
    tasks: &[ConversationTask],
    number: usize,
    text: Option<&str>,
) -> Option<usize> {
    let index = number.checked_sub(1).filter(|index| *index < tasks.len());
    let Some(text) = text else { return index };
    let is_meant = |task: &ConversationTask| task.text.starts_with(text);
    index
        .filter(|index| is_meant(&tasks[*index]))
        .or_else(|| tasks.iter().position(|task| !task.done && is_meant(task)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_the_agent_has_done_is_the_one_it_saw_also_if_the_list_has_changed() {
        let task =
            |text: &str, done| ConversationTask { text: text.to_owned(), done, added_by: None };
        // The agent saw `a` before them.
        let tasks = [task("b", true), task("b", false), task("c", false)];
        for (number, text, expected) in [
            (3, Some("c"), Some(2)),
            (4, Some("c"), Some(2)),
            (3, Some("b"), Some(1)),
            (1, Some("a"), None),
            (0, Some("a"), None),
            // Rows of older versions have no text.
            (2, None, Some(1)),
            (4, None, None),
        ] {
            assert_eq!(finished_task_index(&tasks, number, text), expected, "{number} {text:?}");
        }
    }
}
