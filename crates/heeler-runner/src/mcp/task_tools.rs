//! Tools for the task list of a conversation.
//!
//! The conversation owns the list and has it open, so nothing is written here: an added or finished
//! task is a row of this run, which the conversation applies exactly once, now or later. The tools
//! wait a moment for it to be applied. Start at [`TaskTools`].

#[cfg(test)]
mod tests;

use std::time::Duration;

use heeler_model::recorder::JOB_SHORT_BYTES_MAX;
use rmcp::model::{JsonObject, Tool};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::fleet_client::{AsyncFleetClient, TaskSnapshot};
use super::tool_definition::{ToolCallOutcome, define_tool, mark_read_only, parse_input};
use super::tool_note::{ToolNote, send_note};

pub(super) const ADD_TASKS: &str = "add_tasks";
pub(super) const LIST_TASKS: &str = "list_tasks";
pub(super) const FINISH_TASK: &str = "finish_task";

/// Limit on tasks added by one call, and on the length of each; a row of the job holds as much.
const ADDED_MAX: usize = 100;
const TASK_BYTES_MAX: usize = JOB_SHORT_BYTES_MAX;
/// Length of the task text recorded to identify a task; a row keeps it whole.
const TASK_PREFIX_BYTES_MAX: usize = 256;
/// Time that a conversation has to apply an update.
const UPDATE_WAIT: Duration = Duration::from_secs(5);
/// Interval of checks for the update.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AddTasksInput {
    /// Texts of the tasks, in the order in which to do them
    tasks: Vec<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListTasksInput {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FinishTaskInput {
    /// Number of the task on the list, from 1
    number: usize,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        mark_read_only(define_tool::<AddTasksInput>(
            ADD_TASKS,
            "Add tasks to the list of this conversation, which the person sees and can have worked \
             through.",
        )),
        mark_read_only(define_tool::<ListTasksInput>(
            LIST_TASKS,
            "List the tasks of this conversation by their numbers.",
        )),
        mark_read_only(define_tool::<FinishTaskInput>(
            FINISH_TASK,
            "Mark a task of this conversation as done.",
        )),
    ]
}

#[derive(Debug, Clone)]
pub(super) struct TaskTools {
    client: AsyncFleetClient,
    notes: mpsc::Sender<ToolNote>,
    /// [`UPDATE_WAIT`], except in tests.
    update_wait: Duration,
}

impl TaskTools {
    pub(super) fn new(client: AsyncFleetClient, notes: mpsc::Sender<ToolNote>) -> TaskTools {
        TaskTools { client, notes, update_wait: UPDATE_WAIT }
    }

    pub(super) async fn call(&self, tool: &str, arguments: JsonObject) -> ToolCallOutcome {
        match tool {
            ADD_TASKS => self.add(parse_input(arguments)?).await,
            FINISH_TASK => self.finish(parse_input(arguments)?).await,
            _ => {
                let ListTasksInput {} = parse_input(arguments)?;
                let list = format_numbered(&self.list().await?, 0);
                Ok(if list.is_empty() { "there are no tasks".to_owned() } else { list })
            }
        }
    }

    async fn list(&self) -> Result<Vec<TaskSnapshot>, String> {
        let tasks = self.client.call(|client| client.list_tasks()).await?;
        tasks.ok_or_else(|| {
            "this job is not a turn of a conversation, so it has no task list".to_owned()
        })
    }

    async fn add(&self, AddTasksInput { tasks }: AddTasksInput) -> ToolCallOutcome {
        let count = tasks.len();
        if count == 0 || count > ADDED_MAX {
            return Err(format!("{count} tasks were given; one call adds 1 to {ADDED_MAX}"));
        }
        if tasks.iter().any(|task| task.trim().is_empty()) {
            return Err("a task is empty; describe the work".to_owned());
        }
        if let Some(long) = tasks.iter().find(|task| task.len() > TASK_BYTES_MAX) {
            let bytes = long.len();
            return Err(format!("a task has {bytes} bytes; at most {TASK_BYTES_MAX}: shorten it"));
        }
        // A job without a list is refused before anything is recorded.
        let before = self.list().await?.len();
        send_note(&self.notes, ToolNote::TasksAdded { tasks }).await?;
        // A person may add tasks meanwhile, so the list may grow by more.
        let has_them = move |list: &[TaskSnapshot]| list.len() >= before + count;
        Ok(match self.wait_until(has_them).await? {
            Some(list) => format!("added:\n{}", format_numbered(&list, before)),
            None => "recorded; the conversation has not added all of them yet".to_owned(),
        })
    }

    async fn finish(&self, FinishTaskInput { number }: FinishTaskInput) -> ToolCallOutcome {
        let list = self.list().await?;
        let index = number.checked_sub(1).filter(|index| *index < list.len());
        let Some(index) = index else {
            return Err(format!("there is no task {number}; the list has {}", list.len()));
        };
        if list[index].done {
            return Ok(format!("task {number} was done already"));
        }
        let full_text = list[index].text.clone();
        // The text is recorded because the numbers change when a person edits the list.
        let text = full_text[..full_text.floor_char_boundary(TASK_PREFIX_BYTES_MAX)].to_owned();
        send_note(&self.notes, ToolNote::TaskFinished { number, text }).await?;
        let is_done = move |list: &[TaskSnapshot]| {
            // The number may have changed meanwhile, so the task is recognized by its text.
            list.iter().any(|task| task.done && task.text == full_text)
        };
        Ok(match self.wait_until(is_done).await? {
            Some(_) => format!("task {number} is done"),
            None => "recorded; the conversation has not updated its list yet".to_owned(),
        })
    }

    /// Returns the list once it satisfies the condition; `None` on timeout.
    async fn wait_until(
        &self,
        is_so: impl Fn(&[TaskSnapshot]) -> bool,
    ) -> Result<Option<Vec<TaskSnapshot>>, String> {
        let until = Instant::now() + self.update_wait;
        loop {
            let list = self.list().await?;
            if is_so(&list) {
                return Ok(Some(list));
            }
            if Instant::now() >= until {
                // The row is written, so the conversation applies it later.
                return Ok(None);
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Formats tasks with their numbers, beginning at `from`.
fn format_numbered(list: &[TaskSnapshot], from: usize) -> String {
    let line = |(index, task): (usize, &TaskSnapshot)| {
        let done = if task.done { " (done)" } else { "" };
        format!("{}. {}{done}", index + 1, task.text)
    };
    list.iter().enumerate().skip(from).map(line).collect::<Vec<_>>().join("\n")
}
