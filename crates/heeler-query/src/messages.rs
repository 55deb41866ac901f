//! Messages of a session by number, with possible fork points.

use std::collections::HashSet;

use camino::Utf8Path;
use heeler_config::RuntimeType;
use heeler_model::job_row::envelope_content;
use heeler_model::recorder::EXTERNAL_KEY;
use heeler_model::{Session, SessionStatus, iso_millis};
use heeler_store::history::{
    ForkSafety, HistoryMessage, HistoryPage, HistoryRole, ToolCall, TranscriptSnapshot,
    is_conversation_log, load_conversation_history, load_history,
};
use heeler_store::native::{DisplayRedactor, read_external_messages};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{FleetReader, QueryError, sessions};

/// Mark of a row that no job has imported yet.
// Different from `true`, which marks an external message that a job has imported.
const NOT_IMPORTED: &str = "not taken in";

/// Page of a message list.
#[derive(Debug, Clone, Copy, Default)]
pub struct MessageListQuery {
    /// Only messages before this number.
    pub before: Option<u64>,
    /// Maximum number of messages; the last ones are returned.
    pub limit: usize,
}

/// Messages of a session, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessagePage {
    /// Session ID.
    pub session: String,
    /// Messages.
    pub messages: Vec<MessageDetails>,
    /// Number of messages in the session.
    pub total: u64,
    /// Value of `before` for the previous page; absent at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageDetails {
    /// Number of the message, counted from one; absent if it is an external message that no job has
    /// imported yet.
    pub number: Option<u64>,
    /// Speaker: `user` or `assistant`.
    #[schema(value_type = String)]
    pub role: HistoryRole,
    /// ID of the entry.
    pub uuid: Option<String>,
    /// Time of the message.
    #[schema(format = DateTime)]
    pub timestamp: Option<String>,
    /// Content, as blocks of the Messages API.
    pub content: Vec<Value>,
    /// Tool calls with their results.
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<ToolCall>,
    /// Failures that were reported after the message.
    pub errors: Vec<String>,
    /// True if a fork can start after this message.
    pub safe_cut: bool,
    /// Reason why a fork cannot start after this message.
    pub why_unsafe: Option<String>,
    /// True if the message is in the agent's context.
    pub in_context: bool,
    /// True if the message was written with the agent's own program, outside Heeler.
    pub from_outside: bool,
    /// True if the message is part of the session's transcript.
    pub taken_in: bool,
    /// Snapshot of the files at this message, if one was taken.
    #[schema(value_type = Option<Object>)]
    pub snapshot: Option<TranscriptSnapshot>,
    /// Number of rows of the message that are omitted here.
    pub rows_left_out: u64,
}

impl MessageDetails {
    pub fn is_from_agent(&self) -> bool {
        self.role == HistoryRole::Assistant
    }

    /// Creates the details of a message.
    pub fn of(message: &HistoryMessage) -> MessageDetails {
        let content = message.rows.iter().flat_map(|row| match envelope_content(row) {
            // A message of the API has either text or blocks. Callers get blocks in both cases.
            Value::Array(blocks) => blocks.clone(),
            text => vec![json!({ "type": "text", "text": text })],
        });
        let why = match message.fork_safety {
            ForkSafety::Safe => None,
            ForkSafety::Unsafe(why) => Some(why),
        };
        let is_pending = is_pending(message);
        MessageDetails {
            // The number is the position in Heeler's transcript, where this message is not yet.
            number: (!is_pending).then_some(message.number),
            role: message.role,
            uuid: message.uuid.map(|uuid| uuid.to_string()),
            timestamp: message.at.map(iso_millis),
            content: content.collect(),
            tools: message.tools.clone(),
            errors: message.errors.clone(),
            safe_cut: why.is_none(),
            why_unsafe: why.map(str::to_owned),
            in_context: message.in_context,
            from_outside: is_external(message) || is_pending,
            taken_in: !is_pending,
            snapshot: message.snapshot.clone(),
            rows_left_out: message.left_out,
        }
    }
}

/// Returns true for a message that the native session received outside Heeler.
pub fn is_external(message: &HistoryMessage) -> bool {
    message.rows.first().is_some_and(|row| row[EXTERNAL_KEY] == Value::Bool(true))
}

/// Returns true for an external message that is only in the native session file.
pub fn is_pending(message: &HistoryMessage) -> bool {
    message.rows.first().is_some_and(|row| row[EXTERNAL_KEY] == NOT_IMPORTED)
}

/// Creates a page of messages.
pub fn message_page(session: &str, history: &HistoryPage) -> MessagePage {
    let messages: Vec<MessageDetails> = history.messages.iter().map(MessageDetails::of).collect();
    // Messages that are not imported have no number and do not count as a beginning.
    let first = messages.iter().find_map(|message| message.number);
    let next = first.filter(|first| *first > 1);
    MessagePage { session: session.to_owned(), messages, total: history.total, next }
}

impl FleetReader {
    /// Reads messages of a session.
    pub fn messages(&self, id: &str, wanted: MessageListQuery) -> Result<MessagePage, QueryError> {
        let (session, history) = self.history(id, wanted)?;
        Ok(message_page(session.id.as_str(), &history))
    }

    /// Reads messages of a session, with their rows.
    pub fn history(
        &self,
        id: &str,
        wanted: MessageListQuery,
    ) -> Result<(Session, HistoryPage), QueryError> {
        let known = self.context();
        // The reader goes back to the pool before the files are read.
        let session = sessions::find_session(&*self.reader()?, id)?;
        let log =
            self.session_transcript_path(&known, &session).ok_or_else(|| QueryError::NotFound {
                message: format!("session {} has no transcript: it has no messages", session.id),
                hint: None,
            })?;
        // A conversation of another program has no native session.
        if is_conversation_log(&log) {
            let history = load_conversation_history(&log, wanted.before, wanted.limit)?;
            return Ok((session, history));
        }
        // A fork that has not started has no native session yet: it will copy that of its source.
        let source = session.fork.as_ref().map(|fork| &fork.source);
        let native_id = source.or(session.agent_session_id.as_ref());
        let environment = known.read_context();
        let native_file =
            native_id.and_then(|id| environment.as_ref()?.native_session_file(&session, id));
        let mut history = load_history(&log, native_file.as_deref(), wanted.before, wanted.limit)?;
        append_external_messages(
            &session,
            native_file.as_deref(),
            wanted,
            &known.secrets(),
            &mut history,
        )?;
        // A command keeps no context, so no message of it can be continued.
        let refusal = match session.runtime.parse() {
            Ok(RuntimeType::Command) => Some("a command has no sessions"),
            _ => None,
        };
        if let Some(refusal) = refusal {
            let remembers_nothing = ForkSafety::Unsafe(refusal);
            history.messages.iter_mut().for_each(|message| message.fork_safety = remembers_nothing);
        }
        Ok((session, history))
    }
}

/// Appends external messages to the last page of a session: those in the native session file after
/// the recorded position, with secrets removed. While a run is active, new entries are its own and
/// are not added.
fn append_external_messages(
    session: &Session,
    native_file: Option<&Utf8Path>,
    wanted: MessageListQuery,
    secrets: &[String],
    history: &mut HistoryPage,
) -> Result<(), QueryError> {
    let (Some(left), Some(native_file)) =
        (&session.own, native_file.filter(|native_file| native_file.is_file()))
    else {
        // Without a recorded position it is unknown which messages are Heeler's.
        return Ok(());
    };
    // Only the last page shows them, because they follow all others.
    if wanted.before.is_some() || session.status == SessionStatus::Active {
        return Ok(());
    }
    let added = read_external_messages(native_file, left)?;
    // A job may have imported some of them since the position was recorded.
    let known: HashSet<&str> = history.messages.iter().flat_map(uuids).collect();
    let added: HashSet<&str> = added.iter().filter_map(uuid).collect();
    let added: HashSet<&str> = added.difference(&known).copied().collect();
    if added.is_empty() {
        return Ok(());
    }
    // Read as a history of its own, so that rows are grouped into messages in the same way.
    let mut all = load_history(native_file, Some(native_file), None, wanted.limit)?;
    all.messages.retain(|message| uuids(message).any(|uuid| added.contains(uuid)));
    // The native session was written without redaction.
    DisplayRedactor::new(secrets).history(&mut all);
    for message in &mut all.messages {
        message.fork_safety = ForkSafety::Unsafe("it is not imported yet");
        message.rows.iter_mut().for_each(|row| row[EXTERNAL_KEY] = NOT_IMPORTED.into());
    }
    // They follow everything that Heeler has recorded.
    history.messages.append(&mut all.messages);
    Ok(())
}

fn uuid(row: &Value) -> Option<&str> {
    row["uuid"].as_str()
}

fn uuids(message: &HistoryMessage) -> impl Iterator<Item = &str> {
    message.rows.iter().filter_map(uuid)
}
