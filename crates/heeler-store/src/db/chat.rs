//! Chat platforms: received events, conversations with their messages, and posted questions.

use heeler_model::{ApprovalId, JobId, iso_millis};
use jiff::Timestamp;
use rusqlite::params;

use super::connection::{DatabaseConnection, SqlRow};
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

sql! {
    EVENT = "SELECT platform, account, event_id, received_at, channel, is_direct, message_id, \
        sender, outcome, job_id, reason FROM inbox \
        WHERE platform = ?1 AND account = ?2 AND event_id = ?3";
    OF_JOB = "SELECT platform, account, event_id, received_at, channel, is_direct, message_id, \
        sender, outcome, job_id, reason FROM inbox WHERE job_id = ?1 ORDER BY received_at LIMIT 1";
    RECENT = "SELECT platform, account, event_id, received_at, channel, is_direct, message_id, \
        sender, outcome, job_id, reason FROM inbox WHERE platform = ?1 AND account = ?2 \
        ORDER BY received_at DESC LIMIT ?3";
    COUNT_OF_SENDER = "SELECT COUNT(*) FROM (SELECT 1 FROM inbox WHERE received_at > ?4 \
        AND platform = ?1 AND account = ?2 AND sender = ?3 AND outcome IN ('job', 'said') \
        LIMIT ?5) AS taken";
    // A second row under the same key is an error: the event was applied twice.
    ADD_EVENT = "INSERT INTO inbox (platform, account, event_id, received_at, channel, is_direct, \
        message_id, sender, outcome, job_id, reason) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
    SET_EVENT_JOB = "UPDATE inbox SET outcome = ?4, job_id = ?5, reason = ?6 \
        WHERE platform = ?1 AND account = ?2 AND event_id = ?3";
    PRUNE_EVENTS = "DELETE FROM inbox WHERE received_at < ?1";
    CONVERSATION = "SELECT id, active, last_activity_at FROM messaging_sessions \
        WHERE agent = ?1 AND platform = ?2 AND channel_id = ?3 AND COALESCE(thread_id, '') = ?4 \
        ORDER BY created_at DESC LIMIT 1";
    ADD_CONVERSATION = "INSERT INTO messaging_sessions (id, platform, channel_id, thread_id, \
        user_id, created_at, last_activity_at, message_count, active, agent) \
        VALUES (?1, ?2, ?3, ?4, '', ?5, ?5, 0, 1, ?6)";
    END_CONVERSATION = "UPDATE messaging_sessions SET active = 0, last_activity_at = ?2 \
        WHERE id = ?1";
    TOUCH_CONVERSATION = "UPDATE messaging_sessions SET last_activity_at = ?2, \
        message_count = COALESCE(message_count, 0) + 1, \
        agent_session_id = COALESCE(?3, agent_session_id) WHERE id = ?1";
    ADD_MESSAGE = "INSERT INTO messaging_messages (session_id, role, content, timestamp, \
        platform_message_id) VALUES (?1, ?2, ?3, ?4, ?5)";
    CONVERSATIONS = "SELECT id, platform, channel_id, thread_id, agent, agent_session_id, \
        last_activity_at, message_count, active FROM messaging_sessions WHERE platform = ?1 \
        ORDER BY platform, channel_id, thread_id, user_id LIMIT ?2";
    MESSAGES = "SELECT id, role, content, timestamp FROM messaging_messages \
        WHERE session_id = ?1 AND id < ?2 ORDER BY timestamp DESC, id DESC LIMIT ?3";
    LAST_ANSWER = "SELECT role, content, timestamp FROM messaging_messages WHERE session_id = ?1 \
        AND role = 'assistant' ORDER BY timestamp DESC, id DESC LIMIT 1";
    QUESTION = "SELECT approval_id, channel, platform, account, is_direct, asked_at, message_id, \
        closed_at FROM chat_questions WHERE approval_id = ?1 AND channel = ?2";
    OPEN_QUESTIONS = "SELECT approval_id, channel, platform, account, is_direct, asked_at, \
        message_id, closed_at FROM chat_questions WHERE closed_at IS NULL \
        ORDER BY asked_at, approval_id LIMIT ?1";
    OPEN_OF_CHANNEL = "SELECT approval_id, channel, platform, account, is_direct, asked_at, \
        message_id, closed_at FROM chat_questions WHERE channel = ?1 AND closed_at IS NULL \
        ORDER BY asked_at DESC LIMIT ?2";
    ADD_QUESTION = "INSERT INTO chat_questions (approval_id, channel, platform, account, \
        is_direct, asked_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
        ON CONFLICT(approval_id, channel) DO NOTHING";
    SET_QUESTION_MESSAGE = "UPDATE chat_questions SET message_id = ?3 \
        WHERE approval_id = ?1 AND channel = ?2";
    CLOSE_QUESTION = "UPDATE chat_questions SET closed_at = ?3 \
        WHERE approval_id = ?1 AND channel = ?2 AND closed_at IS NULL";
}

/// An event of a chat platform, with what followed from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxRecord {
    pub platform: String,
    /// Account of the bot.
    pub account: String,
    /// Identifies the event among those of the account.
    pub event_id: String,
    pub received_at: Timestamp,
    /// Conversation: `platform/chat[/thread]`.
    pub channel: String,
    pub is_direct: bool,
    /// The message in its chat.
    pub message_id: Option<String>,
    /// ID of the sender.
    pub sender: String,
    /// Outcome: `job`, `said`, `command`, `answer`, `refused` or `ignored`.
    pub outcome: String,
    /// Job that the event created or spoke to.
    pub job: Option<JobId>,
    /// Reason of a refusal.
    pub reason: Option<String>,
}

/// Place of a conversation, with the agent that takes part.
#[derive(Debug, Clone, Copy)]
pub struct ConversationPlace<'a> {
    pub agent: &'a str,
    pub platform: &'a str,
    pub chat: &'a str,
    pub thread: Option<&'a str>,
}

/// A conversation of an agent with people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagingSessionRecord {
    pub id: String,
    /// False if a person has ended it.
    pub is_active: bool,
    pub last_activity_at: Timestamp,
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessageRecord {
    /// `user` or `assistant`.
    pub role: String,
    pub content: String,
    pub at: Timestamp,
}

/// A conversation of an agent with people, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedConversation {
    pub id: String,
    /// Place: `platform/chat[/thread]`.
    pub channel: String,
    /// Agent; `None` for conversations of Last Light.
    pub agent: Option<String>,
    /// ID of the agent's session.
    pub session: Option<String>,
    pub last_activity_at: Timestamp,
    pub message_count: i64,
    /// False if a person has ended it.
    pub is_active: bool,
}

/// A question that was posted to a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatQuestionRecord {
    pub approval: ApprovalId,
    pub channel: String,
    pub platform: String,
    pub account: String,
    pub is_direct: bool,
    pub asked_at: Timestamp,
    /// The post; `None` until it was made.
    pub message_id: Option<String>,
    pub closed_at: Option<Timestamp>,
}

impl StateDatabase {
    /// Returns the record of an event.
    pub fn inbox_event(
        &self,
        platform: &str,
        account: &str,
        event_id: &str,
    ) -> Result<Option<InboxRecord>, DatabaseError> {
        let params = params![platform, account, event_id];
        query_first(&self.conn, EVENT, params, "read a received event", read_event)
    }

    /// Returns the first event that belongs to a job.
    pub fn inbox_event_of_job(&self, job: &JobId) -> Result<Option<InboxRecord>, DatabaseError> {
        query_first(&self.conn, OF_JOB, [job.as_str()], "read a received event", read_event)
    }

    /// Lists the events that an account received last, newest first.
    pub fn recent_inbox_events(
        &self,
        platform: &str,
        account: &str,
        limit: usize,
    ) -> Result<Vec<InboxRecord>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = params![platform, account, limit];
        query_all(&self.conn, RECENT, params, "list received events", read_event)
    }

    /// Returns the number of messages of a sender that agents took since a time, counted up to a
    /// limit.
    pub fn count_messages_taken(
        &self,
        (platform, account, sender): (&str, &str, &str),
        since: Timestamp,
        limit: usize,
    ) -> Result<usize, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let count = query_first(
            &self.conn,
            COUNT_OF_SENDER,
            params![platform, account, sender, iso_millis(since), limit],
            "count the messages of a sender",
            |row| ColumnReader::new("inbox", row).get::<i64>(),
        )?;
        Ok(usize::try_from(count.unwrap_or(0)).unwrap_or(usize::MAX))
    }

    /// Returns the newest conversation at a place.
    pub fn chat_conversation(
        &self,
        place: ConversationPlace<'_>,
    ) -> Result<Option<MessagingSessionRecord>, DatabaseError> {
        let thread = place.thread.unwrap_or_default();
        let params = params![place.agent, place.platform, place.chat, thread];
        query_first(&self.conn, CONVERSATION, params, "read a conversation", |row| {
            let mut columns = ColumnReader::new("messaging_sessions", row);
            Ok(MessagingSessionRecord {
                id: columns.get()?,
                is_active: columns.flag()?,
                last_activity_at: columns.time()?,
            })
        })
    }

    /// Returns the newest message of the agent in a conversation.
    pub fn last_chat_answer(
        &self,
        conversation: &str,
    ) -> Result<Option<ChatMessageRecord>, DatabaseError> {
        query_first(&self.conn, LAST_ANSWER, [conversation], "read a message", |row| {
            let mut columns = ColumnReader::new("messaging_messages", row);
            Ok(ChatMessageRecord {
                role: columns.get()?,
                content: columns.get()?,
                at: columns.time()?,
            })
        })
    }

    /// Lists the conversations on a platform, in the order of their places.
    pub fn listed_conversations(
        &self,
        platform: &str,
        limit: usize,
    ) -> Result<Vec<ListedConversation>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = params![platform, limit];
        query_all(&self.conn, CONVERSATIONS, params, "list conversations", |row| {
            let mut columns = ColumnReader::new("messaging_sessions", row);
            let id = columns.get()?;
            let place = (columns.get::<String>()?, columns.get::<String>()?);
            let thread = columns.get::<Option<String>>()?.filter(|thread| !thread.is_empty());
            Ok(ListedConversation {
                id,
                channel: match thread {
                    Some(thread) => format!("{}/{}/{thread}", place.0, place.1),
                    None => format!("{}/{}", place.0, place.1),
                },
                agent: columns.get()?,
                session: columns.get()?,
                last_activity_at: columns.time()?,
                message_count: columns.get::<Option<i64>>()?.unwrap_or(0),
                is_active: columns.flag()?,
            })
        })
    }

    /// Lists messages of a conversation with numbers below one, newest first.
    pub fn conversation_messages(
        &self,
        conversation: &str,
        before: i64,
        limit: usize,
    ) -> Result<Vec<(i64, ChatMessageRecord)>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = params![conversation, before, limit];
        query_all(&self.conn, MESSAGES, params, "list messages", |row| {
            let mut columns = ColumnReader::new("messaging_messages", row);
            let number = columns.get()?;
            let (role, content, at) = (columns.get()?, columns.get()?, columns.time()?);
            Ok((number, ChatMessageRecord { role, content, at }))
        })
    }

    /// Returns a question that was posted to a channel.
    pub fn chat_question(
        &self,
        approval: &ApprovalId,
        channel: &str,
    ) -> Result<Option<ChatQuestionRecord>, DatabaseError> {
        let params = params![approval.as_str(), channel];
        query_first(&self.conn, QUESTION, params, "read a posted question", read_question)
    }

    /// Lists the posted questions that are not closed, oldest first.
    pub fn open_chat_questions(
        &self,
        limit: usize,
    ) -> Result<Vec<ChatQuestionRecord>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        query_all(&self.conn, OPEN_QUESTIONS, [limit], "list posted questions", read_question)
    }

    /// Lists the questions of a channel that are not closed, newest first.
    pub fn open_chat_questions_of(
        &self,
        channel: &str,
        limit: usize,
    ) -> Result<Vec<ChatQuestionRecord>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = params![channel, limit];
        query_all(&self.conn, OPEN_OF_CHANNEL, params, "list posted questions", read_question)
    }
}

fn read_event(row: &SqlRow<'_>) -> Result<InboxRecord, DatabaseError> {
    let mut columns = ColumnReader::new("inbox", row);
    Ok(InboxRecord {
        platform: columns.get()?,
        account: columns.get()?,
        event_id: columns.get()?,
        received_at: columns.time()?,
        channel: columns.get()?,
        is_direct: columns.flag()?,
        message_id: columns.get()?,
        sender: columns.get()?,
        outcome: columns.get()?,
        job: columns.optional_parsed()?,
        reason: columns.get()?,
    })
}

fn read_question(row: &SqlRow<'_>) -> Result<ChatQuestionRecord, DatabaseError> {
    let mut columns = ColumnReader::new("chat_questions", row);
    Ok(ChatQuestionRecord {
        approval: columns.parsed()?,
        channel: columns.get()?,
        platform: columns.get()?,
        account: columns.get()?,
        is_direct: columns.flag()?,
        asked_at: columns.time()?,
        message_id: columns.get()?,
        closed_at: columns.optional_time()?,
    })
}

pub(crate) fn add_event(
    conn: &DatabaseConnection,
    event: &InboxRecord,
) -> Result<(), DatabaseError> {
    let params = params![
        event.platform,
        event.account,
        event.event_id,
        iso_millis(event.received_at),
        event.channel,
        i64::from(event.is_direct),
        event.message_id,
        event.sender,
        event.outcome,
        event.job.as_ref().map(JobId::as_str),
        event.reason
    ];
    execute(conn, ADD_EVENT, params, "record a received event").map(|_| ())
}

/// Replaces the outcome of a recorded event.
pub(crate) fn set_event_outcome(
    conn: &DatabaseConnection,
    event: &InboxRecord,
) -> Result<(), DatabaseError> {
    let params = params![
        event.platform,
        event.account,
        event.event_id,
        event.outcome,
        event.job.as_ref().map(JobId::as_str),
        event.reason
    ];
    execute(conn, SET_EVENT_JOB, params, "record what followed from an event").map(|_| ())
}

pub(crate) fn prune_events(
    conn: &DatabaseConnection,
    before: Timestamp,
) -> Result<(), DatabaseError> {
    execute(conn, PRUNE_EVENTS, [iso_millis(before)], "forget received events").map(|_| ())
}

pub(crate) fn add_conversation(
    conn: &DatabaseConnection,
    id: &str,
    place: ConversationPlace<'_>,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    let ConversationPlace { agent, platform, chat, thread } = place;
    let params = params![id, platform, chat, thread, iso_millis(now), agent];
    execute(conn, ADD_CONVERSATION, params, "begin a conversation").map(|_| ())
}

pub(crate) fn end_conversation(
    conn: &DatabaseConnection,
    id: &str,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    execute(conn, END_CONVERSATION, params![id, iso_millis(now)], "end a conversation").map(|_| ())
}

pub(crate) fn add_message(
    conn: &DatabaseConnection,
    conversation: &str,
    message: &ChatMessageRecord,
    platform_id: Option<&str>,
    session: Option<&str>,
) -> Result<(), DatabaseError> {
    let at = iso_millis(message.at);
    let params = params![conversation, message.role, message.content, at, platform_id];
    execute(conn, ADD_MESSAGE, params, "record a message")?;
    let params = params![conversation, at, session];
    execute(conn, TOUCH_CONVERSATION, params, "record a message").map(|_| ())
}

/// Inserts; returns true if the question was not posted to the channel yet.
pub(crate) fn add_question(
    conn: &DatabaseConnection,
    question: &ChatQuestionRecord,
) -> Result<bool, DatabaseError> {
    let params = params![
        question.approval.as_str(),
        question.channel,
        question.platform,
        question.account,
        i64::from(question.is_direct),
        iso_millis(question.asked_at)
    ];
    Ok(execute(conn, ADD_QUESTION, params, "record a posted question")? == 1)
}

pub(crate) fn set_question_message(
    conn: &DatabaseConnection,
    approval: &ApprovalId,
    channel: &str,
    message: &str,
) -> Result<(), DatabaseError> {
    let params = params![approval.as_str(), channel, message];
    execute(conn, SET_QUESTION_MESSAGE, params, "record a posted question").map(|_| ())
}

/// Closes a question; returns true if it was open.
pub(crate) fn close_question(
    conn: &DatabaseConnection,
    approval: &ApprovalId,
    channel: &str,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    let params = params![approval.as_str(), channel, iso_millis(now)];
    Ok(execute(conn, CLOSE_QUESTION, params, "close a posted question")? == 1)
}
