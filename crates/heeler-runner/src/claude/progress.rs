//! Tracks Claude's progress: the turn is over and no further turn will follow on its own.
//!
//! One result does not match one message: a message may be steered into the running turn, and the
//! end of a background task begins a turn of its own. Therefore every sent message and every
//! background task is tracked by its ID. If Claude reports its own state (`session_state_changed`),
//! that is decisive; older versions do not, and then results are counted. Start at
//! [`ClaudeTurnProgress`].

use std::collections::HashSet;

use heeler_model::message::{AgentMessage, MessageBody, SubagentTask};
use heeler_model::outcome::is_end_report;
use serde_json::{Map, Value as Json};
use uuid::Uuid;

/// Limit on tracked background tasks; a run does not wait for tasks beyond it.
const TASKS_MAX: usize = 1024;

/// Running background tasks.
#[derive(Debug, Default)]
pub(crate) struct ClaudeBackgroundTasks(HashSet<String>);

impl ClaudeBackgroundTasks {
    /// Applies a task update; returns true if a tracked task has ended.
    pub(crate) fn update(&mut self, task: &SubagentTask) -> bool {
        // A task that ended twice, or was never tracked, has no effect on the turn.
        if task.is_finished() {
            return self.0.remove(&task.id);
        }
        if task.background && self.0.len() < TASKS_MAX {
            self.0.insert(task.id.clone());
        }
        false
    }

    /// Replaces the set of running tasks; returns true if a tracked task has ended.
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

/// Limit on tracked tool calls; calls beyond it are not waited for.
const CALLS_MAX: usize = 1024;

/// Progress of the conversation with Claude.
#[derive(Debug, Default)]
pub(super) struct ClaudeTurnProgress {
    /// Messages that no turn has taken up yet, oldest first.
    queued_messages: Vec<Uuid>,
    background: ClaudeBackgroundTasks,
    /// Tool calls without a result.
    calls: HashSet<String>,
    /// A result arrived, and no turn has begun since.
    turn_over: bool,
    /// Idle state as reported by Claude; `None` if it never reported one.
    idle: Option<bool>,
    /// Claude reports the lifecycle of messages.
    reports_lifecycle: bool,
    /// Claude was asked to end: only the running turn is waited for.
    ending: bool,
    /// Claude gave up or reported its end: no result follows.
    ended: bool,
    /// `take_done` has returned true for the current idle period.
    done_reported: bool,
}

impl ClaudeTurnProgress {
    /// Records that a message was sent.
    pub(super) fn record_sent(&mut self, uuid: Uuid) {
        self.queued_messages.push(uuid);
        self.done_reported = false;
    }

    /// Records that Claude was asked to end. Returns the messages that no turn has taken up.
    pub(super) fn request_end(&mut self) -> Vec<Uuid> {
        self.ending = true;
        self.queued_messages.clone()
    }

    /// Updates the progress from a message of Claude.
    pub(super) fn handle_message(&mut self, message: &AgentMessage) {
        match &message.body {
            // Each turn begins with this message, also one that follows a background task.
            MessageBody::Init(_) => self.turn_over = false,
            MessageBody::Assistant(reply) => self.track_tool_calls(&reply.message),
            MessageBody::User(message) => self.track_tool_calls(&message.message),
            MessageBody::Result(result) => {
                // A call that has no result by now will never get one.
                self.calls.clear();
                // A queued turn need not stem from a message of the runner.
                self.turn_over = result.queued_turns == 0;
                // Versions without the lifecycle do not name the message, so each result stands for
                // the oldest.
                if !self.reports_lifecycle && !self.queued_messages.is_empty() {
                    self.queued_messages.remove(0);
                }
            }
            MessageBody::Error { .. } => self.ended = true,
            MessageBody::System { subtype } if is_end_report(subtype) => self.ended = true,
            MessageBody::CommandLifecycle { command, state } => {
                self.reports_lifecycle = true;
                // The message was steered into the running turn or begins its own: a result
                // follows.
                self.turn_over &= state != "started";
                if matches!(state.as_str(), "started" | "completed" | "cancelled") {
                    self.queued_messages.retain(|uuid| uuid.to_string() != *command);
                }
            }
            MessageBody::BackgroundTasks { running } if self.background.replace(running) => {
                self.task_ended();
            }
            MessageBody::Task(task) if self.background.update(task) => self.task_ended(),
            // The state has no row of its own, but it decides when the run is done.
            MessageBody::Ignored { kind } if kind == "session_state_changed" => {
                self.idle = Some(message.fields.get("state").is_some_and(|state| state == "idle"));
            }
            _ => {}
        }
    }

    /// Records the tool calls that a message begins and ends.
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

    /// Returns true while Claude waits for a tool or a background task, so that its silence is not
    /// a stall.
    pub(super) fn waits_for_tool(&self) -> bool {
        // During a turn a background task does not excuse silence, because the model should
        // respond.
        !self.calls.is_empty() || (self.turn_over && !self.background.is_empty())
    }

    /// Records the end of a background task, after which a turn may follow. Claude reports that
    /// turn; in versions that do not, a turn always follows.
    fn task_ended(&mut self) {
        match &mut self.idle {
            Some(idle) => *idle = false,
            None => self.turn_over = false,
        }
    }

    /// Returns true if Claude has reported that it is idle, and nothing of an earlier turn is left.
    pub(super) fn is_idle(&self) -> bool {
        self.turn_over
            && self.idle == Some(true)
            && self.queued_messages.is_empty()
            && self.background.is_empty()
            && self.calls.is_empty()
            && !self.ending
            && !self.ended
    }

    /// Returns true, once each time the condition becomes true, if the run may end.
    pub(super) fn take_done(&mut self) -> bool {
        let quiet = self.queued_messages.is_empty()
            && self.background.is_empty()
            && self.idle != Some(false);
        // After an interrupt queued messages are withdrawn and tasks die with the agent.
        let done = self.ended || (self.turn_over && (quiet || self.ending));
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
    fn an_agent_that_gives_up_or_reports_its_end_is_done() {
        for end in [
            r#"{"type":"error","message":"no"}"#,
            r#"{"type":"system","subtype":"end"}"#,
            r#"{"type":"system","subtype":"session_end"}"#,
        ] {
            let mut progress = ClaudeTurnProgress::default();
            progress.record_sent(Uuid::nil());
            progress.handle_message(&parse_line(br#"{"type":"system","subtype":"init"}"#));
            assert!(!progress.take_done());
            progress.handle_message(&parse_line(end.as_bytes()));
            assert!(progress.take_done(), "{end}");
            assert!(!progress.take_done(), "once");
        }
    }

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
        // While it produces output, with a task in the background, it can stall.
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
