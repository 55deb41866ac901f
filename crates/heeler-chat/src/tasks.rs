//! Tasks, and loops that repeat a prompt.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::EntrySource;

/// Most tasks; an agent that adds more gets an error.
pub(crate) const TASKS_MAX: usize = 1_000;
pub(crate) const LOOPS_MAX: usize = 16;

/// Item of the task list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversationTask {
    pub text: String,
    #[serde(default)]
    pub done: bool,
    /// Row in which an agent added it, so that it is added once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_by: Option<EntrySource>,
}

/// Prompt that is repeated on a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversationLoop {
    /// Goal; without one, the loop works through the tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<String>,
    /// Pause between two turns, in seconds.
    pub interval_seconds: u64,
    /// Number of turns so far.
    #[serde(default)]
    pub turns: u64,
    /// Due time of the next turn; `None` if a person must restart the loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
}

/// Line with which an agent reports that the goal of a loop is reached.
pub(crate) const GOAL_REACHED: &str = "GOAL REACHED";
/// Line with which an agent reports that its task is done.
pub(crate) const TASK_DONE: &str = "TASK DONE";

impl ConversationLoop {
    pub(crate) fn new(goal: Option<String>, every: Duration, now: Timestamp) -> ConversationLoop {
        ConversationLoop { goal, interval_seconds: every.as_secs(), turns: 0, next_at: Some(now) }
    }

    /// Returns the due time after a turn.
    pub(crate) fn next_due_at(&self, now: Timestamp) -> Timestamp {
        let rest = Duration::from_secs(self.interval_seconds);
        now.checked_add(rest).unwrap_or(Timestamp::MAX)
    }

    /// Returns a description for a list.
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

    /// Returns the prompt of the next turn; `None` if all tasks are done.
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

/// Returns true if a text has a marker on a separate line.
pub(crate) fn has_marker_line(text: &str, word: &str) -> bool {
    // The agent may emphasize the marker or end it with a full stop.
    let bare = |line: &str| line.trim_matches(|it: char| !it.is_alphanumeric()).to_owned();
    text.lines().any(|line| bare(line) == word)
}

fn format_interval(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    // Zero is a multiple of every unit.
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
