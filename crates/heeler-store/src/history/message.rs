//! A message of a session, with its tool calls and the check of its fork point.

use camino::Utf8PathBuf;
use heeler_transcript::DiskError;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value as Json;
use thiserror::Error;
use uuid::Uuid;

pub(super) const NATIVE_FILE_MISSING: ForkSafety =
    ForkSafety::Unsafe("the native session file is missing");

pub(super) const NOT_IN_CONTEXT: ForkSafety =
    ForkSafety::Unsafe("it is not in the agent's context");

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HistoryRole {
    /// The user or another source of prompts.
    User,
    Assistant,
}

/// Result of the check that a session can be forked after a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkSafety {
    Safe,
    /// Forking is not possible, for this reason.
    Unsafe(&'static str),
}

/// A tool call in a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolCall {
    pub id: Option<String>,
    pub name: String,
    pub input: Json,
    /// The tool's result, if it is recorded.
    pub result: Option<ToolResult>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolResult {
    /// A string or blocks, as the agent received it.
    pub content: Json,
    #[serde(rename = "isError")]
    pub is_error: bool,
}

/// Snapshot of the files at the end of a turn, as recorded in a transcript row.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TranscriptSnapshot {
    /// Commit id in hexadecimal.
    pub commit: String,
    /// The user's commit on which the snapshot is based.
    pub base: Option<String>,
    /// The branch that was checked out.
    pub branch: Option<String>,
    /// Name of the repository's directory in `workspaces`.
    pub repository: String,
    /// Root of the working tree.
    pub top: Utf8PathBuf,
    /// Working directory of the agent, relative to `top`.
    pub cwd: Utf8PathBuf,
    /// Files that the snapshot does not contain.
    pub left_out: Vec<Json>,
    /// Other jobs that were running in the same directory.
    pub others: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct HistoryMessage {
    /// Number of the message, from 1.
    pub number: u64,
    pub role: HistoryRole,
    /// Id of the last row: the fork point.
    pub uuid: Option<Uuid>,
    /// Time of the first row.
    pub at: Option<Timestamp>,
    /// The rows as they are stored, without tool results.
    pub rows: Vec<Json>,
    pub tools: Vec<ToolCall>,
    /// Failures that were reported after the message.
    pub errors: Vec<String>,
    /// Number of rows omitted because the page is limited to [`HISTORY_BYTES_MAX`](super::HISTORY_BYTES_MAX).
    pub left_out: u64,
    /// Result of the check that the session can be forked after this message.
    pub fork_safety: ForkSafety,
    /// True if the message is in the agent's context, or if that is unknown.
    pub in_context: bool,
    /// Snapshot of the files after the message.
    pub snapshot: Option<TranscriptSnapshot>,
}

/// Failure to read messages.
#[derive(Debug, Error)]
pub enum HistoryError {
    #[error(transparent)]
    Disk(#[from] DiskError),
}
