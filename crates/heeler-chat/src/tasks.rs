//! What is to be done beyond the next turn: tasks, and loops that come back to the agent by themselves.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::EntrySource;

/// The most tasks that are kept; an agent that adds more is told so.
pub(crate) const TASKS_MAX: usize = 1_000;
/// The most loops at once.
pub(crate) const LOOPS_MAX: usize = 16;

/// Something to be done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversationTask {
    /// What.
    pub text: String,
    /// Whether it is done.
    #[serde(default)]
    pub done: bool,
    /// The row by which an agent added it: the same row again adds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_by: Option<EntrySource>,
}

/// Something that an agent is asked again and again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversationLoop {
    /// Toward what; without it the tasks are worked through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<String>,
    /// How long it rests between two turns, in seconds.
    pub interval_seconds: u64,
    /// How many turns it has had.
    #[serde(default)]
    pub turns: u64,
    /// When the next one is due, while it runs; none if a person must restart it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
}

/// What an agent says on a line of its own when a loop has nothing more to do.
pub(crate) const GOAL_REACHED: &str = "GOAL REACHED";
/// What it says when the task that it was given is done.
pub(crate) const TASK_DONE: &str = "TASK DONE";

impl ConversationLoop {
    pub(crate) fn new(goal: Option<String>, every: Duration, now: Timestamp) -> ConversationLoop {
        ConversationLoop { goal, interval_seconds: every.as_secs(), turns: 0, next_at: Some(now) }
    }

    /// Returns when it is due again after a turn.
    pub(crate) fn next_due_at(&self, now: Timestamp) -> Timestamp {
        let rest = Duration::from_secs(self.interval_seconds);
        now.checked_add(rest).unwrap_or(Timestamp::MAX)
    }

    /// Says what it is, for a list.
    pub(crate) fn describe(&self) -> String {
        let what = match &self.goal {
            Some(goal) => format!("\"{goal}\""),
            None => "the tasks".to_owned(),
        };
        let every = format_interval(self.interval_seconds);
        let turns =
            if self.turns == 1 { "1 turn".to_owned() } else { format!("{} turns", self.turns) };
        format!("{what} every {every}, {turns}")
    }

    /// Returns what the agent is asked; none if there is nothing to ask.
    pub(crate) fn prompt(&self, tasks: &[ConversationTask]) -> Option<String> {
        if let Some(goal) = &self.goal {
            let turn = self.turns + 1;
            return Some(format!(
                "{goal}\n\n(This is turn {turn} of a loop toward this goal. Go on from where it stands. \
                 When it is reached, say {GOAL_REACHED} on a line of its own.)"
            ));
        }
        let (number, task) = tasks.iter().enumerate().find(|(_, task)| !task.done)?;
        Some(format!(
            "{}\n\n(This is task {} of the session's list. When it is done, say {TASK_DONE} on a line \
             of its own.)",
            task.text,
            number + 1
        ))
    }
}

/// Says whether an agent said a word on a line of its own.
pub(crate) fn has_marker_line(text: &str, word: &str) -> bool {
    let bare = |line: &str| line.trim_matches(|it: char| !it.is_alphanumeric()).to_owned();
    text.lines().any(|line| bare(line) == word)
}

fn format_interval(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let fitting = units.iter().find(|(size, _)| seconds.is_multiple_of(*size) && seconds > 0);
    fitting.map_or(format!("{seconds}s"), |(size, unit)| format!("{}{unit}", seconds / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_counts_on_a_line_of_its_own() {
        for text in ["GOAL REACHED", "all green\n**GOAL REACHED**\n", "  GOAL REACHED.  "] {
            assert!(has_marker_line(text, GOAL_REACHED), "{text}");
        }
        for text in ["", "not GOAL REACHED yet", "I will say \"GOAL REACHED\" later"] {
            assert!(!has_marker_line(text, GOAL_REACHED), "{text}");
        }
    }

    #[test]
    fn a_loop_over_tasks_takes_the_first_that_is_open_and_ends_without_one() {
        let task =
            |text: &str, done| ConversationTask { text: text.to_owned(), done, added_by: None };
        let tasks = [task("a", true), task("b", false), task("c", false)];
        let it = ConversationLoop::new(None, Duration::from_secs(90), Timestamp::UNIX_EPOCH);
        assert!(it.prompt(&tasks).unwrap().starts_with("b\n\n(This is task 2 "));
        assert_eq!(it.prompt(&tasks[..1]), None);
        assert_eq!(it.describe(), "the tasks every 90s, 0 turns");
        assert_eq!(it.next_due_at(Timestamp::UNIX_EPOCH).as_second(), 90);
    }
}
