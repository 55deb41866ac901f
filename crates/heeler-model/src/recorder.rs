//! Messages into rows: what the session log and the job log get.
//!
//! [`TranscriptRecorder`] makes of each message at most one row of the session log (Claude's envelope), and
//! derives the rows of the job log from that row alone, so that [`TranscriptRecorder::replay_row`] can complete a
//! job log from the session log after a crash. Of the job rows that come of one session row, the
//! first has its uuid; the others have uuids that follow from it and their place. Partial text and
//! passing states make no row at all. Nothing here writes or reads a clock.

mod envelope;
mod job_rows;
mod message_counter;
mod truncation;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use camino::Utf8PathBuf;
use indexmap::IndexMap;
use jiff::Timestamp;
use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use crate::message::{AgentMessage, AssistantMessage, ID_BYTES_MAX, MessageBody, UserMessage};
use crate::run::{ErrorClass, RunError, SessionStart};
use crate::{AgentSessionId, ExitReason, parse_iso};

pub use job_rows::{full_text, nth_uuid};
pub use message_counter::MessageCounter;
pub use truncation::{JOB_SHORT_BYTES_MAX, JOB_TEXT_BYTES_MAX, MALFORMED_CHARS_MAX};

/// How many tool calls, and how many sub-agents, are remembered; beyond it the oldest call's result
/// is recorded without name and duration, and the oldest sub-agent's chain begins anew.
pub const OPEN_CALLS_MAX: usize = 1024;

/// What a session row says of the rows before it.
pub const PRIOR_COUNTS_KEY: &str = "countedBefore";

/// How the run failed; [`EXIT_REASON_KEY`] is beside it.
pub const FAILURE_KEY: &str = "failure";

/// Why the job of a run that failed ended.
pub const EXIT_REASON_KEY: &str = "exitReason";

/// Why the run was being ended, by us, when the agent said what the row has.
pub const INTERRUPTION_KEY: &str = "interruption";

/// A row that was said outside of our runs and taken in.
pub const EXTERNAL_KEY: &str = "outside";

/// A row that a session has from the one that it goes on from.
pub const CARRIED_OVER_KEY: &str = "carriedOver";

/// What was spent for the summary that a row has.
pub const SPENT_KEY: &str = "spent";

/// The snapshot of the work tree that a row tells of.
pub const SNAPSHOT_KEY: &str = "snapshot";
/// The key of a snapshot that says that it is of the files before the first turn.
pub const BEGINNING_KEY: &str = "beginning";

/// What only we say of a row.
const HEELER_KEYS: [&str; 7] = [
    PRIOR_COUNTS_KEY,
    FAILURE_KEY,
    INTERRUPTION_KEY,
    EXTERNAL_KEY,
    CARRIED_OVER_KEY,
    SPENT_KEY,
    SNAPSHOT_KEY,
];

/// Takes out of a row that somebody else wrote what only we say of rows.
pub fn remove_heeler_keys(row: &mut Json) {
    if let Json::Object(fields) = row {
        HEELER_KEYS.iter().for_each(|key| drop(fields.shift_remove(*key)));
    }
}

type RowFields = Map<String, Json>;

/// What one event adds to the logs, in the order in which it is to be written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordedRows {
    /// For the session log; written first.
    pub session: Vec<Json>,
    /// For the job log.
    pub job: Vec<Json>,
    /// For live subscribers only.
    pub deltas: Vec<String>,
}

/// Turns what happens in one session into rows. Texts are cut here, so what comes in is redacted:
/// half a secret would not be known for one.
#[derive(Debug, Clone)]
pub struct TranscriptRecorder {
    session: AgentSessionId,
    cwd: Utf8PathBuf,
    version: Option<String>,
    /// The last user or assistant row, which the next one continues.
    last: Option<Uuid>,
    /// The same for each sub-agent, by the tool call that it works for.
    last_of_sub_agent: IndexMap<String, Uuid>,
    /// Prompts that were recorded before the agent repeats them.
    sent_prompts: HashSet<Uuid>,
    open_calls: IndexMap<String, OpenToolCall>,
    message_counter: MessageCounter,
    /// The last message whose usage is in a job row; its further rows do not repeat it.
    usage_reported_for: Option<String>,
    /// The error that the agent told last, unless it has gone on since.
    reported_error: Option<String>,
    tokens: u64,
    minted_count: u64,
    /// Why the run is being ended, by us.
    interruption: Option<RunError>,
}

/// A tool call whose result has not come.
#[derive(Debug, Clone)]
struct OpenToolCall {
    tool: String,
    at: Timestamp,
}

impl TranscriptRecorder {
    /// Starts at the start of a session's log; what is in it already is to be replayed.
    pub fn new(session: AgentSessionId, cwd: Utf8PathBuf) -> TranscriptRecorder {
        TranscriptRecorder {
            session,
            cwd,
            version: None,
            last: None,
            last_of_sub_agent: IndexMap::new(),
            sent_prompts: HashSet::new(),
            open_calls: IndexMap::new(),
            message_counter: MessageCounter::default(),
            usage_reported_for: None,
            reported_error: None,
            tokens: 0,
            minted_count: 0,
            interruption: None,
        }
    }

    /// Records what the agent is asked. That the agent repeats it later adds nothing.
    pub fn record_prompt(&mut self, uuid: Uuid, text: &str, now: Timestamp) -> RecordedRows {
        self.sent_prompts.insert(uuid);
        let message = RowFields::from_iter([
            ("role".to_owned(), "user".into()),
            ("content".to_owned(), text.into()),
        ]);
        let body = MessageBody::User(UserMessage { message, ..UserMessage::default() });
        let row =
            self.envelope(AgentMessage { uuid: Some(uuid), ..AgentMessage::from_body(body) }, now);
        self.finish_row(row, now)
    }

    /// Records what the agent said.
    pub fn record_message(&mut self, message: AgentMessage, now: Timestamp) -> RecordedRows {
        match message {
            AgentMessage { body: MessageBody::Delta { text }, parent_tool_use_id, .. } => {
                // A sub-agent's text would break into the sentence of the one that people follow.
                let shown = parent_tool_use_id.is_none() && !text.is_empty();
                RecordedRows {
                    deltas: shown.then_some(text).into_iter().collect(),
                    ..RecordedRows::default()
                }
            }
            message if self.is_transient(&message) => RecordedRows::default(),
            message => {
                let mut row = self.envelope(message, now);
                if let Some(why) = &self.interruption {
                    row.insert(INTERRUPTION_KEY.to_owned(), json!(why));
                }
                self.finish_row(row, now)
            }
        }
    }

    /// Tells why the run is ended from here on. Claude says then that the user did it; the session's
    /// log keeps those words, the job's rows say this. Each row has it, since it may be the last one.
    pub fn set_interruption(&mut self, class: ErrorClass, why: &str) {
        self.interruption = Some(RunError::new(class, why));
    }

    /// Records something of our own: a decision, a warning, that a person was asked or answered.
    pub fn record_note(&mut self, subtype: &str, content: &str, now: Timestamp) -> RecordedRows {
        self.record_note_with_fields(subtype, content, Map::new(), now)
    }

    /// The same, with fields beside the text for those who do not read it.
    pub fn record_note_with_fields(
        &mut self,
        subtype: &str,
        content: &str,
        fields: Map<String, Json>,
        now: Timestamp,
    ) -> RecordedRows {
        let mut message =
            AgentMessage::from_body(MessageBody::System { subtype: subtype.to_owned() });
        message.fields = fields;
        message.fields.insert("content".to_owned(), content.into());
        let row = self.envelope(message, now);
        self.finish_row(row, now)
    }

    /// Records which conversation it is and why; of a fork also which one it has its history from,
    /// and up to which message. What was counted so far is in the row too, so that whoever goes on
    /// with a long session need not read all of it.
    pub fn record_session_start(
        &mut self,
        start: &SessionStart,
        reason: &str,
        now: Timestamp,
    ) -> RecordedRows {
        let mut message =
            AgentMessage::from_body(MessageBody::System { subtype: "session".to_owned() });
        message.fields.insert("content".to_owned(), reason.into());
        let (messages, tokens) = (self.messages(), self.tokens);
        let before = json!({"messages": messages, "tokens": tokens, "last": self.last});
        if let SessionStart::Fork { source, at, .. } = start {
            let last = at.or(self.last);
            let from = json!({"sessionId": source, "messageUuid": last});
            message.fields.insert("forkedFrom".to_owned(), from);
        }
        let mut row = self.envelope(message, now);
        row.insert(PRIOR_COUNTS_KEY.to_owned(), before);
        self.finish_row(row, now)
    }

    /// Records how the run failed. The row is part of the session's log, not of the conversation. What
    /// the agent's own last words say is not said again in the job's log: the row then tells what
    /// kind of failure that is, and its cure.
    pub fn record_failure(
        &mut self,
        error: &RunError,
        reason: ExitReason,
        now: Timestamp,
    ) -> RecordedRows {
        let text = json!([{"type": "text", "text": error.message}]);
        let message = RowFields::from_iter([
            ("role".to_owned(), "assistant".into()),
            ("model".to_owned(), "<synthetic>".into()),
            ("content".to_owned(), text),
        ]);
        let body = MessageBody::Assistant(AssistantMessage {
            message,
            api_error: Some(Default::default()),
        });
        let last = self.last;
        let mut row = self.envelope(AgentMessage::from_body(body), now);
        self.last = last;
        row.insert(FAILURE_KEY.to_owned(), json!(error));
        row.insert(EXIT_REASON_KEY.to_owned(), json!(reason));
        self.finish_row(row, now)
    }

    /// Goes on from a row that [`TranscriptRecorder::record_session_start`] made; returns whether it is one. The rows before
    /// it need not be replayed.
    pub fn resume_from_row(&mut self, row: &Json) -> bool {
        let Some(before) = parse_prior_counts(row) else { return false };
        self.message_counter = MessageCounter::starting_at(before.messages);
        self.tokens = before.tokens;
        self.last = before.last;
        true
    }

    /// Takes a row of the session log as if it had just been recorded, and returns its job rows.
    pub fn replay_row(&mut self, row: &Json) -> Vec<Json> {
        let at = row["timestamp"].as_str().and_then(parse_iso).unwrap_or_default();
        if let Some(uuid) = row["uuid"].as_str().and_then(|text| Uuid::try_parse(text).ok())
            && matches!(row["type"].as_str(), Some("user" | "assistant"))
            && row[FAILURE_KEY].is_null()
        {
            self.link_row(row["parent_tool_use_id"].as_str(), uuid);
        }
        self.job_rows(row, at)
    }

    /// Returns how many user and assistant messages were recorded or replayed.
    pub fn messages(&self) -> u64 {
        self.message_counter.messages()
    }

    /// Returns the last entry of the conversation.
    pub fn last(&self) -> Option<Uuid> {
        self.last
    }

    /// Returns a rough size of the context in tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    fn finish_row(&mut self, row: RowFields, now: Timestamp) -> RecordedRows {
        let row = Json::Object(row);
        let job = self.job_rows(&row, now);
        RecordedRows { session: vec![row], job, deltas: Vec::new() }
    }

    /// Says whether a message passes without a trace: a state that the next one overtakes, or a
    /// prompt that is recorded already.
    fn is_transient(&mut self, message: &AgentMessage) -> bool {
        match &message.body {
            MessageBody::Ignored { .. }
            | MessageBody::CommandLifecycle { .. }
            | MessageBody::BackgroundTasks { .. } => true,
            MessageBody::RateLimit(limit) => limit.status.as_deref() == Some("allowed"),
            MessageBody::User(user) if user.replay => {
                message.uuid.is_some_and(|uuid| self.sent_prompts.remove(&uuid))
            }
            _ => false,
        }
    }

    /// Puts a row at the end of its chain and returns the one before it.
    fn link_row(&mut self, sub_agent: Option<&str>, uuid: Uuid) -> Option<Uuid> {
        match sub_agent {
            None => self.last.replace(uuid),
            Some(call) => insert_bounded(&mut self.last_of_sub_agent, call, uuid),
        }
    }

    /// Makes an id for a row whose message has none: unique by its time and its place.
    fn mint_row_id(&mut self, now: Timestamp) -> Uuid {
        self.minted_count += 1;
        let hash = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, &self.session, self.last, self.minted_count).hash(&mut hasher);
            hasher.finish().to_le_bytes()
        };
        let mut random = [0; 10];
        random[..8].copy_from_slice(&hash(0));
        random[8..].copy_from_slice(&hash(1)[..2]);
        let millis = u64::try_from(now.as_millisecond()).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
    }
}

/// What a row says of those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorCounts {
    /// How many messages there were.
    pub messages: u64,
    /// A rough size of the context.
    pub tokens: u64,
    /// The last entry of the conversation.
    pub last: Option<Uuid>,
}

/// Returns what a row that [`TranscriptRecorder::record_session_start`] made says of those before it; `None` if it is none.
pub fn parse_prior_counts(row: &Json) -> Option<PriorCounts> {
    let before = &row[PRIOR_COUNTS_KEY];
    let number = |key: &str| before[key].as_u64().filter(|&count| i64::try_from(count).is_ok());
    let (messages, tokens) = (number("messages")?, number("tokens")?);
    if row["type"] != "system" || row["subtype"] != "session" {
        return None;
    }
    let last = before["last"].as_str().and_then(|last| Uuid::try_parse(last).ok());
    Some(PriorCounts { messages, tokens, last })
}

fn insert_bounded<T>(map: &mut IndexMap<String, T>, key: &str, value: T) -> Option<T> {
    // No message has such an id, but a log that came with a clone may.
    if key.len() > ID_BYTES_MAX {
        return None;
    }
    if map.len() >= OPEN_CALLS_MAX && !map.contains_key(key) {
        map.shift_remove_index(0);
    }
    map.insert(key.to_owned(), value)
}

#[cfg(test)]
mod tests;
