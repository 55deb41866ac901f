//! Notes and questions of an injected tool, which the event loop of the run handles.

use camino::Utf8PathBuf;
use heeler_model::run::QuestionAnswer;
use serde_json::{Value as Json, json};
use tokio::sync::{mpsc, oneshot};

/// Length limit of the text in a note.
const MESSAGE_BYTES_MAX: usize = 4 * 1024;

/// Record of a tool, which the event loop writes as a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ToolNote {
    /// The agent reported progress.
    Progress {
        /// Text of the agent.
        message: String,
        /// From 0 to 100, if the agent reported it.
        percent: Option<u8>,
    },
    /// The agent sent a file; the copy is on disk.
    FileSent {
        /// Path of the copy.
        path: Utf8PathBuf,
        /// Name for people.
        name: String,
        bytes: u64,
        message: Option<String>,
    },
    /// The agent added tasks to the conversation's list.
    TasksAdded {
        /// Texts of the tasks.
        tasks: Vec<String>,
    },
    /// The agent marked a task of the conversation as done.
    TaskFinished {
        /// Task number, from 1.
        number: usize,
        /// Beginning of the task's text: the list may have changed when this note is processed.
        text: String,
    },
    /// First decision of its kind of the egress proxy about a host.
    NetworkDecision {
        host: String,
        port: u16,
        /// Reason of a denial, with the cure.
        denial: Option<String>,
    },
    /// The egress proxy decided about more hosts than are recorded.
    NetworkOmitted,
    /// An MCP server outside of the sandbox has ended before the agent.
    HostServerEnded {
        name: String,
        /// How the end was noticed.
        end: String,
        /// End of its standard error.
        errors: String,
    },
}

impl ToolNote {
    /// Returns the subtype of the row.
    pub(crate) fn subtype(&self) -> &'static str {
        match self {
            ToolNote::Progress { .. } => "progress",
            ToolNote::FileSent { .. } => "file_sent",
            ToolNote::TasksAdded { .. } => "tasks_added",
            ToolNote::TaskFinished { .. } => "task_finished",
            ToolNote::NetworkDecision { .. } | ToolNote::NetworkOmitted => "network",
            ToolNote::HostServerEnded { .. } => "warning",
        }
    }

    /// Returns the additional fields of the row.
    pub(crate) fn fields(&self) -> Json {
        match self {
            ToolNote::Progress { .. }
            | ToolNote::NetworkOmitted
            | ToolNote::HostServerEnded { .. } => json!({}),
            ToolNote::NetworkDecision { host, port, denial } => {
                json!({ "host": host, "port": port, "allowed": denial.is_none() })
            }
            ToolNote::FileSent { path, name, bytes, .. } => {
                json!({ "name": name, "bytes": bytes, "path": path })
            }
            ToolNote::TasksAdded { tasks } => json!({ "tasks": tasks }),
            ToolNote::TaskFinished { number, text } => {
                json!({ "number": number, "description": text })
            }
        }
    }

    /// Returns the text of the row.
    pub(crate) fn content(&self) -> String {
        match self {
            ToolNote::Progress { message, percent: None } => message.clone(),
            ToolNote::Progress { message, percent: Some(percent) } => {
                format!("{percent} %: {message}")
            }
            ToolNote::FileSent { path, name, bytes, message } => {
                let message = message.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
                format!("{name} ({bytes} bytes) is in {path}{message}")
            }
            ToolNote::TasksAdded { tasks } => format!("added to the tasks: {}", tasks.join("; ")),
            ToolNote::TaskFinished { number, .. } => format!("task {number} is done"),
            ToolNote::NetworkDecision { host, port, denial: None } => {
                format!("allowed {host}:{port}")
            }
            ToolNote::NetworkDecision { host, port, denial: Some(denial) } => {
                format!("denied {host}:{port}: {denial}")
            }
            ToolNote::NetworkOmitted => {
                "the agent requested many hosts; further decisions are not recorded".to_owned()
            }
            ToolNote::HostServerEnded { name, end, errors } => {
                let errors = if errors.is_empty() { String::new() } else { format!(": {errors}") };
                format!("the MCP server {name} has ended: {end}{errors}")
            }
        }
    }
}

/// Question of a tool to people. The event loop handles it like a question of the agent.
#[derive(Debug)]
pub(crate) struct ToolQuestion {
    /// Name under which people see the question.
    pub(crate) tool: &'static str,
    /// Question in claude's format.
    pub(crate) input: Json,
    /// Host and port that the question is about, if it is about the network.
    pub(crate) network_host: Option<String>,
    /// Receives the answer; dropped if there will be none.
    pub(crate) reply: oneshot::Sender<QuestionAnswer>,
}

/// Refuses a text that is too long for a note.
pub(super) fn check_message(message: &str) -> Result<(), String> {
    let bytes = message.len();
    if bytes <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    Err(format!("the message has {bytes} bytes; at most {MESSAGE_BYTES_MAX} are taken: shorten it"))
}

/// Sends a note to the event loop.
pub(super) async fn send_note(
    notes: &mpsc::Sender<ToolNote>,
    note: ToolNote,
) -> Result<(), String> {
    notes.send(note).await.map_err(|_| "the run is ending and records nothing more".to_owned())
}
