//! Gaps of chat platforms: since when messages may be missing.

use rusqlite::params;

use super::connection::DatabaseConnection;
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, sql};

sql! {
    MARKS = "SELECT chat, thread, since_ms, is_unlisted FROM chat_gaps \
        WHERE platform = ?1 AND account = ?2 ORDER BY chat, thread";
    CLEAR = "DELETE FROM chat_gaps WHERE platform = ?1 AND account = ?2";
    CLEAR_GAP = "DELETE FROM chat_gaps WHERE platform = ?1 AND account = ?2 AND gap = ?3";
    ADD_MARK = "INSERT INTO chat_gaps (platform, account, chat, thread, gap, since_ms, is_unlisted) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
}

/// A time without a connection of a bot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatGapKey {
    pub platform: String,
    /// Account of the bot.
    pub account: String,
    /// Identifies the gap among those of the account.
    pub gap: String,
}

/// A channel or thread of which messages may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatGapMark {
    /// Empty in the mark of all channels without one of their own.
    pub chat: String,
    pub thread: Option<String>,
    /// Time since which messages may be missing, in milliseconds since 1970.
    pub since_ms: i64,
    /// True if the channel is read although the config does not list it.
    pub is_unlisted: bool,
}

impl StateDatabase {
    /// Lists the channels and threads of which messages may be missing.
    pub fn chat_gap_marks(
        &self,
        platform: &str,
        account: &str,
    ) -> Result<Vec<ChatGapMark>, DatabaseError> {
        query_all(&self.conn, MARKS, params![platform, account], "read a gap of a chat", |row| {
            let mut columns = ColumnReader::new("chat_gaps", row);
            let chat = columns.get()?;
            let thread: String = columns.get()?;
            Ok(ChatGapMark {
                chat,
                thread: (!thread.is_empty()).then_some(thread),
                since_ms: columns.get()?,
                is_unlisted: columns.flag()?,
            })
        })
    }
}

/// Replaces all marks of an account.
pub(crate) fn begin_gap(
    conn: &DatabaseConnection,
    key: &ChatGapKey,
    marks: &[ChatGapMark],
) -> Result<(), DatabaseError> {
    execute(conn, CLEAR, params![key.platform, key.account], "record a gap of a chat")?;
    add_marks(conn, key, marks)
}

/// Replaces the marks of a gap, unless a later one has replaced them.
pub(crate) fn end_gap(
    conn: &DatabaseConnection,
    key: &ChatGapKey,
    kept: &[ChatGapMark],
) -> Result<(), DatabaseError> {
    let params = params![key.platform, key.account, key.gap];
    match execute(conn, CLEAR_GAP, params, "end a gap of a chat")? {
        0 => Ok(()),
        _ => add_marks(conn, key, kept),
    }
}

fn add_marks(
    conn: &DatabaseConnection,
    key: &ChatGapKey,
    marks: &[ChatGapMark],
) -> Result<(), DatabaseError> {
    for mark in marks {
        let params = params![
            key.platform,
            key.account,
            mark.chat,
            mark.thread.as_deref().unwrap_or_default(),
            key.gap,
            mark.since_ms,
            i64::from(mark.is_unlisted)
        ];
        execute(conn, ADD_MARK, params, "record a gap of a chat")?;
    }
    Ok(())
}
