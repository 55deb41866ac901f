//! Changes of the records of chat platforms.

use heeler_model::ApprovalId;
use jiff::Timestamp;

use super::StoreTransaction;
use crate::db::chat::{ChatMessageRecord, ChatQuestionRecord, ConversationPlace, InboxRecord};
use crate::db::chat_gaps::{ChatGapKey, ChatGapMark};
use crate::db::{DatabaseError, chat, chat_gaps};

impl StoreTransaction<'_> {
    /// Records an event; one that is recorded already is an error.
    pub fn add_inbox_event(&mut self, event: &InboxRecord) -> Result<(), DatabaseError> {
        chat::add_event(&self.conn, event)
    }

    /// Replaces the outcome, job and reason of a recorded event.
    pub fn set_inbox_outcome(&mut self, event: &InboxRecord) -> Result<(), DatabaseError> {
        chat::set_event_outcome(&self.conn, event)
    }

    /// Removes events that were received before a time.
    pub fn prune_inbox(&mut self, before: Timestamp) -> Result<(), DatabaseError> {
        chat::prune_events(&self.conn, before)
    }

    /// Begins a conversation. An active one at the same place is an error.
    pub fn begin_conversation(
        &mut self,
        id: &str,
        place: ConversationPlace<'_>,
        now: Timestamp,
    ) -> Result<(), DatabaseError> {
        chat::add_conversation(&self.conn, id, place, now)
    }

    /// Ends a conversation: the next message begins another one.
    pub fn end_conversation(&mut self, id: &str, now: Timestamp) -> Result<(), DatabaseError> {
        chat::end_conversation(&self.conn, id, now)
    }

    /// Adds a message to a conversation. `session` is the native session of the agent, if it is
    /// known.
    pub fn add_chat_message(
        &mut self,
        conversation: &str,
        message: &ChatMessageRecord,
        platform_id: Option<&str>,
        session: Option<&str>,
    ) -> Result<(), DatabaseError> {
        chat::add_message(&self.conn, conversation, message, platform_id, session)
    }

    /// Records a gap. It replaces the earlier ones of the account, of which it has all marks.
    pub fn begin_chat_gap(
        &mut self,
        key: &ChatGapKey,
        marks: &[ChatGapMark],
    ) -> Result<(), DatabaseError> {
        chat_gaps::begin_gap(&self.conn, key, marks)
    }

    /// Ends a gap, except for the channels of which messages may still be missing.
    pub fn end_chat_gap(
        &mut self,
        key: &ChatGapKey,
        kept: &[ChatGapMark],
    ) -> Result<(), DatabaseError> {
        chat_gaps::end_gap(&self.conn, key, kept)
    }

    /// Records a question that is posted to a chat; returns true if it was not posted there yet.
    pub fn add_chat_question(
        &mut self,
        question: &ChatQuestionRecord,
    ) -> Result<bool, DatabaseError> {
        chat::add_question(&self.conn, question)
    }

    /// Records the message with which a question was posted.
    pub fn set_chat_question_message(
        &mut self,
        approval: &ApprovalId,
        channel: &str,
        message: &str,
    ) -> Result<(), DatabaseError> {
        chat::set_question_message(&self.conn, approval, channel, message)
    }

    /// Closes a posted question; returns true if it was open.
    pub fn close_chat_question(
        &mut self,
        approval: &ApprovalId,
        channel: &str,
        now: Timestamp,
    ) -> Result<bool, DatabaseError> {
        chat::close_question(&self.conn, approval, channel, now)
    }
}
