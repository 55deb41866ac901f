//! What was said in a session: messages by their numbers, with where it can be cut.

use std::collections::HashSet;

use camino::Utf8Path;
use heeler_model::config::RuntimeType;
use heeler_model::record::OUTSIDE_KEY;
use heeler_model::{Session, SessionStatus, iso_millis};
use heeler_store::history::{Cut, History, HistoryMessage, Role, SnapshotNote, ToolCall, history};
use heeler_store::native::Cleaner;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{QueryError, Records, sessions};

/// What a row says of itself that no job has taken in yet.
const NOT_TAKEN_IN: &str = "not taken in";

/// Which messages of a session to read.
#[derive(Debug, Clone, Copy, Default)]
pub struct MessagesWanted {
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
    pub messages: Vec<MessageItem>,
    /// How many the session has.
    pub total: u64,
    /// What `before` is for the messages before these; none at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageItem {
    /// Its number, from one; none if it was said outside and no job has taken it in yet.
    pub number: Option<u64>,
    /// Who said it: `user` or `assistant`.
    #[schema(value_type = String)]
    pub role: Role,
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
    pub snapshot: Option<SnapshotNote>,
    /// How many rows of it are left out here.
    pub rows_left_out: u64,
}

impl MessageItem {
    /// Says whether the agent said it.
    pub fn is_of_agent(&self) -> bool {
        self.role == Role::Assistant
    }

    /// Returns what is told of a message.
    pub fn of(message: &HistoryMessage) -> MessageItem {
        let content = message.rows.iter().flat_map(|row| match &row["message"]["content"] {
            Value::Array(blocks) => blocks.clone(),
            text => vec![json!({ "type": "text", "text": text })],
        });
        let why = match message.cut {
            Cut::Safe => None,
            Cut::Unsafe(why) => Some(why),
        };
        let is_pending = is_pending(message);
        MessageItem {
            number: (!is_pending).then_some(message.number),
            role: message.role,
            uuid: message.uuid.map(|uuid| uuid.to_string()),
            timestamp: message.at.map(iso_millis),
            content: content.collect(),
            tools: message.tools.clone(),
            safe_cut: why.is_none(),
            why_unsafe: why.map(str::to_owned),
            in_context: message.in_context,
            from_outside: is_from_outside(message) || is_pending,
            taken_in: !is_pending,
            snapshot: message.snapshot.clone(),
            rows_left_out: message.left_out,
        }
    }
}

/// Says whether somebody said it who went on with the session by themselves.
pub fn is_from_outside(message: &HistoryMessage) -> bool {
    message.rows.first().is_some_and(|row| row[OUTSIDE_KEY] == Value::Bool(true))
}

/// Says whether it was said outside and is in the agent's own file only.
pub fn is_pending(message: &HistoryMessage) -> bool {
    message.rows.first().is_some_and(|row| row[OUTSIDE_KEY] == NOT_TAKEN_IN)
}

/// Returns a page of what was said.
pub fn page(session: &str, past: &History) -> MessagePage {
    let messages: Vec<MessageItem> = past.messages.iter().map(MessageItem::of).collect();
    let first = messages.iter().find_map(|message| message.number);
    let next = first.filter(|first| *first > 1);
    MessagePage { session: session.to_owned(), messages, total: past.total, next }
}

impl Records {
    /// Reads messages of a session of ours.
    pub fn messages(&self, id: &str, wanted: MessagesWanted) -> Result<MessagePage, QueryError> {
        let (session, past) = self.history(id, wanted)?;
        Ok(page(session.id.as_str(), &past))
    }

    /// Reads messages of a session of ours, with their rows.
    pub fn history(
        &self,
        id: &str,
        wanted: MessagesWanted,
    ) -> Result<(Session, History), QueryError> {
        let known = self.known();
        let session = sessions::find(&*self.reader()?, id)?;
        let log = self.log_of_session(&known, &session).ok_or_else(|| QueryError::NotFound {
            message: format!("session {} has no log: nothing was said in it", session.id),
            hint: None,
        })?;
        // A fork that has not begun will remember what its source does.
        let source = session.fork.as_ref().map(|fork| &fork.source);
        let own_id = source.or(session.agent_session_id.as_ref());
        let around = known.around();
        let own = own_id.and_then(|id| around.as_ref()?.own_file(&session, id));
        let mut past = history(&log, own.as_deref(), wanted.before, wanted.limit)?;
        add_outside(&session, own.as_deref(), wanted, &known.secrets(), &mut past)?;
        if session.runtime == RuntimeType::Command.as_str() {
            let remembers_nothing = Cut::Unsafe("a command has no sessions");
            past.messages.iter_mut().for_each(|message| message.cut = remembers_nothing);
        }
        Ok((session, past))
    }
}

/// Adds to the last page of a session what is in the agent's own file behind the place where we left
/// it, without secrets. While a run is at work, what is there is its own.
fn add_outside(
    session: &Session,
    own: Option<&Utf8Path>,
    wanted: MessagesWanted,
    secrets: &[String],
    past: &mut History,
) -> Result<(), QueryError> {
    let (Some(left), Some(own)) = (&session.own, own.filter(|own| own.is_file())) else {
        return Ok(());
    };
    if wanted.before.is_some() || session.status == SessionStatus::Active {
        return Ok(());
    }
    let added = heeler_runner::said_outside(own, left)?;
    let known: HashSet<&str> = past.messages.iter().flat_map(uuids).collect();
    let added: HashSet<&str> = added.iter().filter_map(uuid).collect();
    let added: HashSet<&str> = added.difference(&known).copied().collect();
    if added.is_empty() {
        return Ok(());
    }
    let mut all = history(own, Some(own), None, wanted.limit)?;
    all.messages.retain(|message| uuids(message).any(|uuid| added.contains(uuid)));
    Cleaner::new(secrets).history(&mut all);
    for message in &mut all.messages {
        message.cut = Cut::Unsafe("it is not taken in yet");
        message.rows.iter_mut().for_each(|row| row[OUTSIDE_KEY] = NOT_TAKEN_IN.into());
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
