//! How far Claude has come: whether a turn is over and nothing more will follow by itself.
//!
//! One result is not one message: a message may be steered into the running turn, and the end of a
//! background task begins a turn of its own. So every message that was sent is followed by its id,
//! and background tasks by theirs. Where Claude tells its own state (`session_state_changed`) that is
//! waited for; older versions do not tell, and then results are counted. Start at [`ClaudeTurnProgress`].

use std::collections::HashSet;

use heeler_model::message::{AgentMessage, MessageBody, SubagentTask};
use serde_json::{Map, Value as Json};
use uuid::Uuid;

/// How many background tasks are waited for; a run does not wait for what is started beyond them.
const TASKS_MAX: usize = 1024;

/// The background tasks that run.
#[derive(Debug, Default)]
pub(crate) struct ClaudeBackgroundTasks(HashSet<String>);

impl ClaudeBackgroundTasks {
    /// Takes what is said of a task; returns whether one that was waited for has ended.
    pub(crate) fn update(&mut self, task: &SubagentTask) -> bool {
        if task.is_finished() {
            return self.0.remove(&task.id);
        }
        if task.background && self.0.len() < TASKS_MAX {
            self.0.insert(task.id.clone());
        }
        false
    }

    /// Takes which ones run now; returns whether one that was waited for has ended.
    fn replace(&mut self, running: &[String]) -> bool {
        let running: HashSet<String> = running.iter().take(TASKS_MAX).cloned().collect();
        let ended = !self.0.is_subset(&running);
        self.0 = running;
        ended
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// How many tool calls are known to be under way; one that began beyond them is not waited for.
const CALLS_MAX: usize = 1024;

/// How far Claude has come.
#[derive(Debug, Default)]
pub(super) struct ClaudeTurnProgress {
    /// Messages whose turn has not come, oldest first.
    queued_messages: Vec<Uuid>,
    background: ClaudeBackgroundTasks,
    /// Tool calls without a result.
    calls: HashSet<String>,
    /// A result came, and no turn has begun since.
    turn_over: bool,
    /// Whether it is idle, as it tells itself; none if it never told.
    idle: Option<bool>,
    /// Whether it tells what becomes of a message.
    reports_lifecycle: bool,
    /// It was asked to end: nothing is waited for but the running turn.
    ending: bool,
    /// That it is done was said already.
    done_reported: bool,
}

impl ClaudeTurnProgress {
    /// Notes that a message was sent.
    pub(super) fn record_sent(&mut self, uuid: Uuid) {
        self.queued_messages.push(uuid);
        self.done_reported = false;
    }

    /// Notes that it was asked to end. Returns the messages whose turn has not come.
    pub(super) fn request_end(&mut self) -> Vec<Uuid> {
        self.ending = true;
        self.queued_messages.clone()
    }

    /// Takes a message of Claude's.
    pub(super) fn handle_message(&mut self, message: &AgentMessage) {
        match &message.body {
            MessageBody::Init(_) => self.turn_over = false,
            MessageBody::Assistant(said) => self.track_tool_calls(&said.message),
            MessageBody::User(told) => self.track_tool_calls(&told.message),
            MessageBody::Result(result) => {
                self.calls.clear();
                // What is queued is not always a message of ours.
                self.turn_over = result.queued_turns == 0;
                if !self.reports_lifecycle && !self.queued_messages.is_empty() {
                    self.queued_messages.remove(0);
                }
            }
            MessageBody::CommandLifecycle { command, state } => {
                self.reports_lifecycle = true;
                // Steered into the running turn or the first of its own: a result follows.
                self.turn_over &= state != "started";
                if matches!(state.as_str(), "started" | "completed" | "cancelled") {
                    self.queued_messages.retain(|uuid| uuid.to_string() != *command);
                }
            }
            MessageBody::BackgroundTasks { running } if self.background.replace(running) => {
                self.task_ended()
            }
            MessageBody::Task(task) if self.background.update(task) => self.task_ended(),
            MessageBody::Ignored { kind } if kind == "session_state_changed" => {
                self.idle = Some(message.fields.get("state").is_some_and(|state| state == "idle"));
            }
            _ => {}
        }
    }

    /// Notes which tool calls a message begins and ends.
    fn track_tool_calls(&mut self, message: &Map<String, Json>) {
        let blocks = message.get("content").and_then(Json::as_array);
        for block in blocks.into_iter().flatten() {
            let id = |key: &str| block[key].as_str().unwrap_or_default();
            match block["type"].as_str() {
                Some("tool_use") if self.calls.len() < CALLS_MAX => {
                    self.calls.insert(id("id").to_owned());
                }
                Some("tool_result") => drop(self.calls.remove(id("tool_use_id"))),
                _ => {}
            }
        }
    }

    /// Says whether it waits for what a tool or a background task does, so that its silence means
    /// nothing.
    pub(super) fn waits_for_tool(&self) -> bool {
        !self.calls.is_empty() || (self.turn_over && !self.background.is_empty())
    }

    /// Notes that a background task ended, from which a turn may follow. Claude says whether one
    /// does; where it does not, one always did.
    fn task_ended(&mut self) {
        match &mut self.idle {
            Some(idle) => *idle = false,
            None => self.turn_over = false,
        }
    }

    /// Says, once each time it becomes true, that the run may end.
    pub(super) fn take_done(&mut self) -> bool {
        let quiet = self.queued_messages.is_empty()
            && self.background.is_empty()
            && self.idle != Some(false);
        let done = self.turn_over && (quiet || self.ending);
        let newly = done && !self.done_reported;
        self.done_reported |= done;
        newly
    }
}

#[cfg(test)]
mod tests {
    use heeler_model::message::parse_line;

    use super::*;

    #[test]
    fn a_tool_is_waited_for_until_its_result_or_the_end_of_the_turn() {
        let mut progress = ClaudeTurnProgress::default();
        let mut take = |line: &str| {
            progress.handle_message(&parse_line(line.as_bytes()));
            progress.waits_for_tool()
        };
        let call = |id: &str| {
            format!(
                r#"{{"type":"assistant","message":{{"content":[{{"type":"tool_use","id":"{id}","name":"Bash","input":{{}}}}]}}}}"#
            )
        };
        let result = |id: &str| {
            format!(
                r#"{{"type":"user","message":{{"content":[{{"type":"tool_result","tool_use_id":"{id}"}}]}}}}"#
            )
        };
        let end = r#"{"type":"result","subtype":"success","is_error":false}"#;
        let running = |tasks: &str| {
            format!(r#"{{"type":"system","subtype":"background_tasks_changed","tasks":[{tasks}]}}"#)
        };
        assert!(take(&call("1")));
        assert!(take(&call("2")));
        assert!(take(&result("1")));
        assert!(!take(&result("2")));
        // Speaking, with something in the background, it can stall.
        assert!(!take(&running(r#"{"task_id":"t"}"#)));
        assert!(take(&call("never answered")));
        assert!(take(end));
        assert!(!take(&running("")));
    }

    #[test]
    fn the_calls_that_are_waited_for_are_bounded() {
        let mut progress = ClaudeTurnProgress::default();
        for id in 0..2 * CALLS_MAX {
            let line = format!(
                r#"{{"type":"assistant","message":{{"content":[{{"type":"tool_use","id":"{id}"}}]}}}}"#
            );
            progress.handle_message(&parse_line(line.as_bytes()));
        }
        assert_eq!(progress.calls.len(), CALLS_MAX);
    }

    #[test]
    fn the_tasks_that_are_waited_for_are_bounded() {
        let mut progress = ClaudeTurnProgress::default();
        let tasks: Vec<String> =
            (0..2 * TASKS_MAX).map(|id| format!(r#"{{"task_id":"{id}"}}"#)).collect();
        for id in 0..2 * TASKS_MAX {
            let line = format!(
                r#"{{"type":"system","subtype":"task_started","is_backgrounded":true,"task_id":"{id}"}}"#
            );
            progress.handle_message(&parse_line(line.as_bytes()));
        }
        assert_eq!(progress.background.0.len(), TASKS_MAX);
        let all = format!(
            r#"{{"type":"system","subtype":"background_tasks_changed","tasks":[{}]}}"#,
            tasks.join(",")
        );
        progress.handle_message(&parse_line(all.as_bytes()));
        assert_eq!(progress.background.0.len(), TASKS_MAX);
    }
}
