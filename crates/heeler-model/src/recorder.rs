//! Conversion of messages to transcript rows.
//!
//! [`TranscriptRecorder`] turns each message into at most one row of the session transcript (in
//! Claude's envelope) and derives the rows of the job transcript from that row alone. After a
//! crash, [`TranscriptRecorder::replay_row`] can therefore complete a job transcript from the
//! session transcript. The first job row of a session row has its UUID; the others have UUIDs
//! computed from it and their position. Partial text and transient states produce no row. Nothing
//! here writes files or reads a clock.

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

/// Most tool calls, and most sub-agents, that are remembered. Beyond it, the result of the oldest
/// call is recorded without name and duration, and the chain of the oldest sub-agent restarts.
pub const OPEN_CALLS_MAX: usize = 1024;

/// Key of the counts of all earlier rows, in a session row.
pub const PRIOR_COUNTS_KEY: &str = "countedBefore";

/// Key of the run's failure. [`EXIT_REASON_KEY`] accompanies it.
pub const FAILURE_KEY: &str = "failure";

/// Key of the exit reason of a job with a failed run.
pub const EXIT_REASON_KEY: &str = "exitReason";

/// Key of the reason why Heeler was ending the run when the agent sent the row's message.
pub const INTERRUPTION_KEY: &str = "interruption";

/// Key of a row that was imported from external messages.
pub const EXTERNAL_KEY: &str = "outside";

/// Key of a row that was copied from the session that this one continues.
pub const CARRIED_OVER_KEY: &str = "carriedOver";

/// Key of the cost of the summary in a row.
pub const SPENT_KEY: &str = "spent";

/// Key of the working directory's snapshot in a row.
pub const SNAPSHOT_KEY: &str = "snapshot";
/// Key that marks a snapshot of the files before the first turn.
pub const BEGINNING_KEY: &str = "beginning";

/// Keys that only Heeler may write to a row.
const HEELER_KEYS: [&str; 7] = [
    PRIOR_COUNTS_KEY,
    FAILURE_KEY,
    INTERRUPTION_KEY,
    EXTERNAL_KEY,
    CARRIED_OVER_KEY,
    SPENT_KEY,
    SNAPSHOT_KEY,
];

/// Removes the keys that only Heeler may write from a row of another program.
pub fn remove_heeler_keys(row: &mut Json) {
    if let Json::Object(fields) = row {
        // `shift_remove` keeps the order of the other fields.
        HEELER_KEYS.iter().for_each(|key| drop(fields.shift_remove(*key)));
    }
}

type RowFields = Map<String, Json>;

/// Rows produced by one event, in the order in which they must be written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordedRows {
    /// Rows of the session transcript; written first.
    pub session: Vec<Json>,
    /// Rows of the job transcript.
    pub job: Vec<Json>,
    /// Text fragments for live subscribers only.
    pub deltas: Vec<String>,
}

/// Converts the messages of one session to rows. Input must already be redacted: texts are
/// truncated here, and half a secret would not be recognized.
#[derive(Debug, Clone)]
pub struct TranscriptRecorder {
    session: AgentSessionId,
    cwd: Utf8PathBuf,
    version: Option<String>,
    /// Last user or assistant row, which is the parent of the next one.
    last: Option<Uuid>,
    /// Last row of each sub-agent, by the tool call that it works for.
    last_of_sub_agent: IndexMap<String, Uuid>,
    /// Prompts that are recorded and that the agent has not repeated yet.
    sent_prompts: HashSet<Uuid>,
    open_calls: IndexMap<String, OpenToolCall>,
    message_counter: MessageCounter,
    /// Last message with its usage in a job row. Further rows of it omit the usage.
    usage_reported_for: Option<String>,
    /// Last error that the agent reported, unless the agent continued after it.
    reported_error: Option<String>,
    tokens: u64,
    minted_count: u64,
    /// Reason why Heeler is ending the run.
    interruption: Option<RunError>,
}

/// Tool call without a result.
#[derive(Debug, Clone)]
struct OpenToolCall {
    tool: String,
    at: Timestamp,
    /// Time in which it waited for the answer of a person.
    waited_ms: i64,
}

impl TranscriptRecorder {
    /// Creates a recorder for an empty session. Existing rows must be replayed.
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

    /// Records a prompt. When the agent repeats it later, no further row is produced.
    pub fn record_prompt(&mut self, uuid: Uuid, text: &str, now: Timestamp) -> RecordedRows {
        // Claude repeats each prompt in its stream, with the same ID.
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

    pub fn record_message(&mut self, message: AgentMessage, now: Timestamp) -> RecordedRows {
        match message {
            AgentMessage { body: MessageBody::Delta { text }, parent_tool_use_id, .. } => {
                // A sub-agent's text would interrupt the main agent's text, which people follow.
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
                    // The session row has Heeler's reason, so a later replay can show it in the job
                    // row.
                    row.insert(INTERRUPTION_KEY.to_owned(), json!(why));
                }
                self.finish_row(row, now)
            }
        }
    }

    /// Sets the reason why Heeler ends the run from here on.
    ///
    /// Claude then reports that the user interrupted it. The session transcript keeps that text;
    /// job rows show this reason instead. Every row carries it, because each may be the last one.
    pub fn set_interruption(&mut self, class: ErrorClass, why: &str) {
        self.interruption = Some(RunError::new(class, why));
    }

    /// Excludes the time in which a tool waited for the answer of a person from the duration of its
    /// call.
    pub fn exclude_wait(&mut self, tool: &str, asked_at: Timestamp, answered_at: Timestamp) {
        let waited = answered_at.as_millisecond().saturating_sub(asked_at.as_millisecond());
        // The question names an injected tool without its server.
        let is_meant = |call: &OpenToolCall| {
            let name = call.tool.strip_suffix(tool);
            name.is_some_and(|before| before.is_empty() || before.ends_with("__"))
        };
        let calls = self.open_calls.values_mut().filter(|call| is_meant(call));
        // Of parallel calls, each has a question of its own.
        if let Some(call) = calls.min_by_key(|call| call.waited_ms) {
            call.waited_ms = call.waited_ms.saturating_add(waited.max(0));
        }
    }

    /// Records a note of Heeler itself: a decision, a warning, a question or an answer.
    pub fn record_note(&mut self, subtype: &str, content: &str, now: Timestamp) -> RecordedRows {
        self.record_note_with_fields(subtype, content, Map::new(), now)
    }

    /// Records a note with additional fields for programs.
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
        // Inserted last: a field must not replace the content.
        message.fields.insert("content".to_owned(), content.into());
        let row = self.envelope(message, now);
        self.finish_row(row, now)
    }

    /// Records the chosen session and the reason for it; for a fork also the source session and the
    /// fork point. The row holds all counts until now, so that resuming a long session does not
    /// require reading all of it.
    pub fn record_session_start(
        &mut self,
        start: &SessionStart,
        reason: &str,
        now: Timestamp,
    ) -> RecordedRows {
        let mut message =
            AgentMessage::from_body(MessageBody::System { subtype: "session".to_owned() });
        message.fields.insert("content".to_owned(), reason.into());
        // Taken before this row is recorded, since it counts only the earlier ones.
        let (messages, tokens) = (self.messages(), self.tokens);
        let before = json!({"messages": messages, "tokens": tokens, "last": self.last});
        if let SessionStart::Fork { source, at, .. } = start {
            // Without a point the fork copies everything, so its last row is the fork point.
            let last = at.or(self.last);
            let from = json!({"sessionId": source, "messageUuid": last});
            message.fields.insert("forkedFrom".to_owned(), from);
        }
        let mut row = self.envelope(message, now);
        // Inserted after the envelope, which drops keys that only Heeler may write.
        row.insert(PRIOR_COUNTS_KEY.to_owned(), before);
        self.finish_row(row, now)
    }

    /// Records the failure of a run.
    ///
    /// The row belongs to the session transcript but not to the message chain. If the agent's last
    /// message already has the same text, the job row shows the error class and advice instead.
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
        // Claude does not know this row, so the next message must not have it as its parent.
        let last = self.last;
        let mut row = self.envelope(AgentMessage::from_body(body), now);
        self.last = last;
        row.insert(FAILURE_KEY.to_owned(), json!(error));
        row.insert(EXIT_REASON_KEY.to_owned(), json!(reason));
        self.finish_row(row, now)
    }

    /// Restores the counts from a row of [`TranscriptRecorder::record_session_start`]. Returns
    /// false for any other row. Earlier rows need not be replayed.
    pub fn resume_from_row(&mut self, row: &Json) -> bool {
        let Some(before) = parse_prior_counts(row) else { return false };
        self.message_counter = MessageCounter::starting_at(before.messages);
        self.tokens = before.tokens;
        self.last = before.last;
        true
    }

    /// Processes a row of the session transcript as if it were just recorded. Returns its job rows.
    pub fn replay_row(&mut self, row: &Json) -> Vec<Json> {
        // A damaged row without a time is still shown; its durations are meaningless anyway.
        let at = row["timestamp"].as_str().and_then(parse_iso).unwrap_or_default();
        if let Some(uuid) = row["uuid"].as_str().and_then(|text| Uuid::try_parse(text).ok())
            && matches!(row["type"].as_str(), Some("user" | "assistant"))
            // A failure is not part of the chain, as when it was recorded.
            && row[FAILURE_KEY].is_null()
        {
            self.link_row(row["parent_tool_use_id"].as_str(), uuid);
        }
        self.job_rows(row, at)
    }

    /// Returns the number of user and agent messages recorded or replayed.
    pub fn messages(&self) -> u64 {
        self.message_counter.messages()
    }

    /// Returns the last row of the message chain.
    pub fn last(&self) -> Option<Uuid> {
        self.last
    }

    /// Returns an estimate of the context size in tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    fn finish_row(&mut self, row: RowFields, now: Timestamp) -> RecordedRows {
        let row = Json::Object(row);
        // Derived from the row as it is written, so that a replay gives the same job rows.
        let job = self.job_rows(&row, now);
        RecordedRows { session: vec![row], job, deltas: Vec::new() }
    }

    /// Returns true if a message produces no row: a transient state, or the repetition of a prompt
    /// that is already recorded.
    fn is_transient(&mut self, message: &AgentMessage) -> bool {
        match &message.body {
            MessageBody::Ignored { .. }
            | MessageBody::CommandLifecycle { .. }
            | MessageBody::BackgroundTasks { .. } => true,
            // A limit that is not reached says nothing about the run.
            MessageBody::RateLimit(limit) => limit.status.as_deref() == Some("allowed"),
            MessageBody::User(user) if user.replay => {
                // Removed, so that a second message with the same ID is recorded.
                message.uuid.is_some_and(|uuid| self.sent_prompts.remove(&uuid))
            }
            _ => false,
        }
    }

    /// Appends a row to its chain and returns the previous one.
    fn link_row(&mut self, sub_agent: Option<&str>, uuid: Uuid) -> Option<Uuid> {
        match sub_agent {
            None => self.last.replace(uuid),
            Some(call) => insert_bounded(&mut self.last_of_sub_agent, call, uuid),
        }
    }

    /// Mints an ID for the row of a message without an ID. Time and position make it unique.
    fn mint_row_id(&mut self, now: Timestamp) -> Uuid {
        self.minted_count += 1;
        // No random source here: a recorder that is replayed must behave the same.
        let hash = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, &self.session, self.last, self.minted_count).hash(&mut hasher);
            hasher.finish().to_le_bytes()
        };
        let mut random = [0; 10];
        random[..8].copy_from_slice(&hash(0));
        random[8..].copy_from_slice(&hash(1)[..2]);
        // A clock before 1970 must not stop the recording.
        let millis = u64::try_from(now.as_millisecond()).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
    }
}

/// Counts of all rows before a given row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorCounts {
    pub messages: u64,
    /// Estimate of the context size.
    pub tokens: u64,
    /// Last row of the message chain.
    pub last: Option<Uuid>,
}

/// Returns the counts in a row of [`TranscriptRecorder::record_session_start`], or `None` for any
/// other row.
pub fn parse_prior_counts(row: &Json) -> Option<PriorCounts> {
    let before = &row[PRIOR_COUNTS_KEY];
    // A count beyond `i64` cannot have been written by Heeler and does not fit the database.
    let number = |key: &str| before[key].as_u64().filter(|&count| i64::try_from(count).is_ok());
    let (messages, tokens) = (number("messages")?, number("tokens")?);
    // The key alone is not enough: a row from elsewhere may contain it.
    if row["type"] != "system" || row["subtype"] != "session" {
        return None;
    }
    let last = before["last"].as_str().and_then(|last| Uuid::try_parse(last).ok());
    Some(PriorCounts { messages, tokens, last })
}

fn insert_bounded<T>(map: &mut IndexMap<String, T>, key: &str, value: T) -> Option<T> {
    // Messages with such IDs are rejected, but a transcript from elsewhere may contain them.
    if key.len() > ID_BYTES_MAX {
        return None;
    }
    if map.len() >= OPEN_CALLS_MAX && !map.contains_key(key) {
        // The oldest call is the least likely one to get a result.
        map.shift_remove_index(0);
    }
    map.insert(key.to_owned(), value)
}

#[cfg(test)]
mod tests;
