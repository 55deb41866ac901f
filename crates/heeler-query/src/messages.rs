//! What was said in a session: messages by their numbers, with where it can be cut.

use std::collections::HashSet;

use camino::Utf8Path;
use heeler_model::config::RuntimeType;
use heeler_model::recorder::EXTERNAL_KEY;
use heeler_model::{Session, SessionStatus, iso_millis};
use heeler_store::history::{
    ForkSafety, HistoryMessage, HistoryPage, HistoryRole, ToolCall, TranscriptSnapshot,
    load_history,
};
use heeler_store::native::DisplayRedactor;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{FleetReader, QueryError, sessions};

/// What a row says of itself that no job has taken in yet.
const NOT_IMPORTED: &str = "not taken in";

/// Which messages of a session to read.
#[derive(Debug, Clone, Copy, Default)]
pub struct MessageListQuery {
    /// Those before this one.
    pub before: Option<u64>,
    /// How many, of the last ones.
    pub limit: usize,
}

/// Messages of a session, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessagePage {
    /// Our id of the session.
    pub session: String,
    /// The messages.
    pub messages: Vec<MessageDetails>,
    /// How many the session has.
    pub total: u64,
    /// What `before` is for the messages before these; none at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageDetails {
    /// Its number, from one; none if it was said outside and no job has taken it in yet.
    pub number: Option<u64>,
    /// Who said it: `user` or `assistant`.
    #[schema(value_type = String)]
    pub role: HistoryRole,
    /// The id of its entry.
    pub uuid: Option<String>,
    /// When it was said.
    #[schema(format = DateTime)]
    pub timestamp: Option<String>,
    /// What was said, as blocks of the Messages API.
    pub content: Vec<Value>,
    /// The tools that were called, with what they gave.
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<ToolCall>,
    /// Whether a fork can be cut behind it.
    pub safe_cut: bool,
    /// Why not, if not.
    pub why_unsafe: Option<String>,
    /// Whether the agent remembers it.
    pub in_context: bool,
    /// Whether it was said with the agent's own program, not through us.
    pub from_outside: bool,
    /// Whether it is part of our log.
    pub taken_in: bool,
    /// The files as they were then, where they were kept.
    #[schema(value_type = Option<Object>)]
    pub snapshot: Option<TranscriptSnapshot>,
    /// How many rows of it are left out here.
    pub rows_left_out: u64,
}

impl MessageDetails {
    /// Says whether the agent said it.
    pub fn is_from_agent(&self) -> bool {
        self.role == HistoryRole::Assistant
    }

    /// Returns what is told of a message.
    pub fn of(message: &HistoryMessage) -> MessageDetails {
        let content = message.rows.iter().flat_map(|row| match &row["message"]["content"] {
            Value::Array(blocks) => blocks.clone(),
            text => vec![json!({ "type": "text", "text": text })],
        });
        let why = match message.fork_safety {
            ForkSafety::Safe => None,
            ForkSafety::Unsafe(why) => Some(why),
        };
        let is_pending = is_pending(message);
        MessageDetails {
            number: (!is_pending).then_some(message.number),
            role: message.role,
            uuid: message.uuid.map(|uuid| uuid.to_string()),
            timestamp: message.at.map(iso_millis),
            content: content.collect(),
            tools: message.tools.clone(),
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

/// Says whether somebody said it who went on with the session by themselves.
pub fn is_external(message: &HistoryMessage) -> bool {
    message.rows.first().is_some_and(|row| row[EXTERNAL_KEY] == Value::Bool(true))
}

/// Says whether it was said outside and is in the agent's own file only.
pub fn is_pending(message: &HistoryMessage) -> bool {
    message.rows.first().is_some_and(|row| row[EXTERNAL_KEY] == NOT_IMPORTED)
}

/// Returns a page of what was said.
pub fn message_page(session: &str, past: &HistoryPage) -> MessagePage {
    let messages: Vec<MessageDetails> = past.messages.iter().map(MessageDetails::of).collect();
    let first = messages.iter().find_map(|message| message.number);
    let next = first.filter(|first| *first > 1);
    MessagePage { session: session.to_owned(), messages, total: past.total, next }
}

impl FleetReader {
    /// Reads messages of a session of ours.
    pub fn messages(&self, id: &str, wanted: MessageListQuery) -> Result<MessagePage, QueryError> {
        let (session, past) = self.history(id, wanted)?;
        Ok(message_page(session.id.as_str(), &past))
    }

    /// Reads messages of a session of ours, with their rows.
    pub fn history(
        &self,
        id: &str,
        wanted: MessageListQuery,
    ) -> Result<(Session, HistoryPage), QueryError> {
        let known = self.context();
        let session = sessions::find_session(&*self.reader()?, id)?;
        let log =
            self.session_transcript_path(&known, &session).ok_or_else(|| QueryError::NotFound {
                message: format!("session {} has no log: nothing was said in it", session.id),
                hint: None,
            })?;
        // A fork that has not begun will remember what its source does.
        let source = session.fork.as_ref().map(|fork| &fork.source);
        let own_id = source.or(session.agent_session_id.as_ref());
        let around = known.read_context();
        let own = own_id.and_then(|id| around.as_ref()?.native_session_file(&session, id));
        let mut past = load_history(&log, own.as_deref(), wanted.before, wanted.limit)?;
        append_external_messages(&session, own.as_deref(), wanted, &known.secrets(), &mut past)?;
        if session.runtime == RuntimeType::Command.as_str() {
            let remembers_nothing = ForkSafety::Unsafe("a command has no sessions");
            past.messages.iter_mut().for_each(|message| message.fork_safety = remembers_nothing);
        }
        Ok((session, past))
    }
}

/// Adds to the last page of a session what is in the agent's own file behind the place where we left
/// it, without secrets. While a run is at work, what is there is its own.
fn append_external_messages(
    session: &Session,
    own: Option<&Utf8Path>,
    wanted: MessageListQuery,
    secrets: &[String],
    past: &mut HistoryPage,
) -> Result<(), QueryError> {
    let (Some(left), Some(own)) = (&session.own, own.filter(|own| own.is_file())) else {
        return Ok(());
    };
    if wanted.before.is_some() || session.status == SessionStatus::Active {
        return Ok(());
    }
    let added = heeler_runner::read_external_messages(own, left)?;
    let known: HashSet<&str> = past.messages.iter().flat_map(uuids).collect();
    let added: HashSet<&str> = added.iter().filter_map(uuid).collect();
    let added: HashSet<&str> = added.difference(&known).copied().collect();
    if added.is_empty() {
        return Ok(());
    }
    let mut all = load_history(own, Some(own), None, wanted.limit)?;
    all.messages.retain(|message| uuids(message).any(|uuid| added.contains(uuid)));
    DisplayRedactor::new(secrets).history(&mut all);
    for message in &mut all.messages {
        message.fork_safety = ForkSafety::Unsafe("it is not taken in yet");
        message.rows.iter_mut().for_each(|row| row[EXTERNAL_KEY] = NOT_IMPORTED.into());
    }
    past.messages.append(&mut all.messages);
    Ok(())
}

fn uuid(row: &Value) -> Option<&str> {
    row["uuid"].as_str()
}

fn uuids(message: &HistoryMessage) -> impl Iterator<Item = &str> {
    message.rows.iter().filter_map(uuid)
}
