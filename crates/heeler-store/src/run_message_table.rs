//! The table of messages to running agents of other hosts. Start at [`CREATE_MESSAGES`].

use crate::db::postgres::quote;

/// Time after which a message is not delivered any more. Its sender has had an answer before.
pub(crate) const MESSAGE_AGE_MAX_SECONDS: u32 = 120;

pub(crate) const CREATE_MESSAGES: &str = "CREATE TABLE IF NOT EXISTS run_messages (\
    id TEXT NOT NULL PRIMARY KEY, run TEXT NOT NULL, job TEXT NOT NULL, host TEXT NOT NULL, \
    body TEXT NOT NULL, created_at TIMESTAMPTZ NOT NULL, is_taken BOOLEAN); \
    CREATE INDEX IF NOT EXISTS idx_run_messages_open ON run_messages (host, created_at) \
    WHERE is_taken IS NULL";

/// Condition of a message that its host is to deliver.
pub(crate) fn open_messages_of(host: &str) -> String {
    format!(
        "host = {} AND is_taken IS NULL AND \
         created_at > clock_timestamp() - interval '{MESSAGE_AGE_MAX_SECONDS} seconds'",
        quote(host)
    )
}
