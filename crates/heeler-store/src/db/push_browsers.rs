//! Browsers that receive notices by Web Push: the table `push_browsers`.

use std::fmt;

use heeler_model::{iso_millis, secret_hash};
use jiff::Timestamp;
use rusqlite::params;

use super::connection::{DatabaseConnection, SqlRow};
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

sql! {
    LIST = "SELECT id, channel, owner, label, added_at, endpoint, public_key, auth_secret \
        FROM push_browsers ORDER BY added_at, id";
    OF_CHANNEL = "SELECT id, channel, owner, label, added_at, endpoint, public_key, auth_secret \
        FROM push_browsers WHERE channel = ?1 ORDER BY added_at, id";
    ONE = "SELECT id, channel, owner, label, added_at, endpoint, public_key, auth_secret \
        FROM push_browsers WHERE id = ?1";
    PUT = "INSERT INTO push_browsers (id, channel, owner, label, added_at, endpoint, public_key, \
        auth_secret) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT(id) DO UPDATE SET \
        channel = excluded.channel, owner = excluded.owner, label = excluded.label, \
        public_key = excluded.public_key, auth_secret = excluded.auth_secret";
    REMOVE = "DELETE FROM push_browsers WHERE id = ?1";
    REMOVE_OF_OWNER = "DELETE FROM push_browsers WHERE owner = ?1";
    REMOVE_ALL = "DELETE FROM push_browsers";
}

/// Key pair by which push services recognize the fleet, in the form of PKCS #8 as base64.
pub const WEB_PUSH_KEY: &str = "web_push_key";

/// Public part of [`WEB_PUSH_KEY`], as browsers take it.
pub const WEB_PUSH_PUBLIC_KEY: &str = "web_push_public_key";

/// Number of hash digits in the ID of a browser.
const ID_DIGITS: usize = 12;

/// A browser that receives notices.
#[derive(Clone, PartialEq, Eq)]
pub struct PushBrowser {
    /// Follows from the endpoint; see [`PushBrowser::id_of`].
    pub id: String,
    /// Name of the channel in the config.
    pub channel: String,
    /// Person who added it.
    pub owner: String,
    /// Description for people.
    pub label: String,
    pub added_at: Timestamp,
    /// Address at the push service. Secret: with it, others can disturb the browser.
    pub endpoint: String,
    /// Public key of the browser, as base64.
    pub public_key: String,
    /// Secret that is shared with the browser, as base64.
    pub auth_secret: String,
}

impl PushBrowser {
    /// Returns the ID of the browser with an endpoint.
    pub fn id_of(endpoint: &str) -> String {
        format!("browser-{}", &secret_hash(endpoint)[..ID_DIGITS])
    }

    /// Returns the name under which its notices are queued: each browser has its own order and its own
    /// failures.
    pub fn notice_channel(&self) -> String {
        format!("{}/{}", self.channel, self.id)
    }
}

/// Omits the address and the keys.
impl fmt::Debug for PushBrowser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PushBrowser({} of {} in {})", self.id, self.owner, self.channel)
    }
}

impl StateDatabase {
    /// Lists the browsers that receive notices, oldest first.
    pub fn push_browsers(&self) -> Result<Vec<PushBrowser>, DatabaseError> {
        query_all(&self.conn, LIST, [], "list browsers", read)
    }

    /// Lists the browsers of a channel, oldest first.
    pub fn push_browsers_of(&self, channel: &str) -> Result<Vec<PushBrowser>, DatabaseError> {
        query_all(&self.conn, OF_CHANNEL, [channel], "list browsers", read)
    }

    pub fn push_browser(&self, id: &str) -> Result<Option<PushBrowser>, DatabaseError> {
        query_first(&self.conn, ONE, [id], "find a browser", read)
    }
}

/// Adds a browser, or replaces what is on record of it.
pub(crate) fn put(conn: &DatabaseConnection, browser: &PushBrowser) -> Result<(), DatabaseError> {
    let params = params![
        browser.id,
        browser.channel,
        browser.owner,
        browser.label,
        iso_millis(browser.added_at),
        browser.endpoint,
        browser.public_key,
        browser.auth_secret,
    ];
    execute(conn, PUT, params, "add a browser").map(|_| ())
}

/// Returns true if the browser existed.
pub(crate) fn remove(conn: &DatabaseConnection, id: &str) -> Result<bool, DatabaseError> {
    Ok(execute(conn, REMOVE, [id], "remove a browser")? == 1)
}

/// Removes the browsers of a person, and returns their number.
pub(crate) fn remove_of_owner(
    conn: &DatabaseConnection,
    owner: &str,
) -> Result<usize, DatabaseError> {
    execute(conn, REMOVE_OF_OWNER, [owner], "remove a person's browsers")
}

pub(crate) fn remove_all(conn: &DatabaseConnection) -> Result<usize, DatabaseError> {
    execute(conn, REMOVE_ALL, [], "remove all browsers")
}

fn read(row: &SqlRow<'_>) -> Result<PushBrowser, DatabaseError> {
    let mut columns = ColumnReader::new("push_browsers", row);
    Ok(PushBrowser {
        id: columns.get()?,
        channel: columns.get()?,
        owner: columns.get()?,
        label: columns.get()?,
        added_at: columns.time()?,
        endpoint: columns.get()?,
        public_key: columns.get()?,
        auth_secret: columns.get()?,
    })
}
