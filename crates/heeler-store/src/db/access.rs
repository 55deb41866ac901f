//! Access rights: the tables `access_tokens`, `access_people` and `access_logins`.

use heeler_model::{AccessName, AccessToken, BrowserLogin, TokenId, UserAccount, iso_millis};
use jiff::Timestamp;
use rusqlite::params;

use super::connection::{DatabaseConnection, SqlRow};
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

sql! {
    TOKENS = "SELECT id, name, scope, created_at, created_by, expires_at, used_at, revoked_at \
        FROM access_tokens ORDER BY created_at DESC, id DESC";
    TOKEN_OF_HASH = "SELECT id, name, scope, created_at, created_by, expires_at, used_at, \
        revoked_at FROM access_tokens WHERE hash = ?1";
    // Names of revoked tokens may be used again, so only the valid one is found by name.
    TOKEN_OF_NAME = "SELECT id, name, scope, created_at, created_by, expires_at, used_at, \
        revoked_at FROM access_tokens WHERE name = ?1 AND revoked_at IS NULL";
    TOKEN = "SELECT id, name, scope, created_at, created_by, expires_at, used_at, revoked_at \
        FROM access_tokens WHERE id = ?1";
    COUNT_TOKENS = "SELECT COUNT(*) FROM access_tokens WHERE revoked_at IS NULL";
    INSERT_TOKEN = "INSERT INTO access_tokens (id, name, scope, created_at, created_by, \
        expires_at, hash) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    // The first revocation counts, so its time does not change.
    REVOKE_TOKEN = "UPDATE access_tokens SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL";
    TOKEN_USED = "UPDATE access_tokens SET used_at = ?2 WHERE id = ?1";
    PEOPLE = "SELECT name, scope, created_at, changed_at FROM access_people ORDER BY name";
    PERSON = "SELECT name, scope, created_at, changed_at, hash FROM access_people WHERE name = ?1";
    // The hash changes with the password, but the time of creation stays.
    PUT_PERSON = "INSERT INTO access_people (name, scope, created_at, changed_at, hash) \
        VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT(name) DO UPDATE SET scope = excluded.scope, \
        changed_at = excluded.changed_at, hash = excluded.hash";
    REMOVE_PERSON = "DELETE FROM access_people WHERE name = ?1";
    LOGIN = "SELECT who, scope, person, created_at, expires_at FROM access_logins WHERE hash = ?1";
    COUNT_LOGINS = "SELECT COUNT(*) FROM access_logins";
    INSERT_LOGIN = "INSERT INTO access_logins (hash, who, scope, person, created_at, expires_at) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    REMOVE_LOGIN = "DELETE FROM access_logins WHERE hash = ?1";
    REMOVE_LOGINS = "DELETE FROM access_logins";
    REMOVE_LOGINS_OF = "DELETE FROM access_logins WHERE person = ?1";
    REMOVE_EXPIRED = "DELETE FROM access_logins WHERE expires_at <= ?1";
}

impl StateDatabase {
    /// Lists all tokens, newest first, including expired and revoked ones.
    pub fn tokens(&self) -> Result<Vec<AccessToken>, DatabaseError> {
        query_all(&self.conn, TOKENS, [], "list tokens", read_token)
    }

    /// Returns the token with this hash, including an expired or revoked one.
    pub fn token_of_hash(&self, hash: &str) -> Result<Option<AccessToken>, DatabaseError> {
        query_first(&self.conn, TOKEN_OF_HASH, [hash], "look a token up", read_token)
    }

    /// Returns the token with this id, or the token with this name that is not revoked.
    pub fn token(&self, name_or_id: &str) -> Result<Option<AccessToken>, DatabaseError> {
        let named =
            query_first(&self.conn, TOKEN_OF_NAME, [name_or_id], "find a token", read_token)?;
        match named {
            Some(token) => Ok(Some(token)),
            None => query_first(&self.conn, TOKEN, [name_or_id], "find a token", read_token),
        }
    }

    /// Counts the tokens that are not revoked.
    pub fn count_tokens(&self) -> Result<u64, DatabaseError> {
        count(&self.conn, COUNT_TOKENS, "access_tokens")
    }

    /// Lists the users by name.
    pub fn users(&self) -> Result<Vec<UserAccount>, DatabaseError> {
        query_all(&self.conn, PEOPLE, [], "list people", |row| {
            read_user(&mut ColumnReader::new("access_people", row))
        })
    }

    /// Returns a user with the hash of the password.
    pub fn user(&self, name: &AccessName) -> Result<Option<(UserAccount, String)>, DatabaseError> {
        query_first(&self.conn, PERSON, [name.as_str()], "read a person", |row| {
            let mut columns = ColumnReader::new("access_people", row);
            Ok((read_user(&mut columns)?, columns.get()?))
        })
    }

    /// Returns the login with this cookie hash, including an expired one.
    pub fn login(&self, hash: &str) -> Result<Option<BrowserLogin>, DatabaseError> {
        query_first(&self.conn, LOGIN, [hash], "look a login up", |row| {
            let mut columns = ColumnReader::new("access_logins", row);
            Ok(BrowserLogin {
                caller: columns.get()?,
                scope: columns.parsed()?,
                user: columns.optional_parsed()?,
                created_at: columns.time()?,
                expires_at: columns.time()?,
            })
        })
    }

    pub fn count_logins(&self) -> Result<u64, DatabaseError> {
        count(&self.conn, COUNT_LOGINS, "access_logins")
    }
}

fn count(
    conn: &DatabaseConnection,
    sql: &'static str,
    table: &'static str,
) -> Result<u64, DatabaseError> {
    let counted = query_first(conn, sql, [], "count access records", |row| {
        ColumnReader::new(table, row).count()
    })?;
    Ok(counted.unwrap_or(0))
}

fn read_token(row: &SqlRow<'_>) -> Result<AccessToken, DatabaseError> {
    let mut columns = ColumnReader::new("access_tokens", row);
    Ok(AccessToken {
        id: columns.parsed()?,
        name: columns.parsed()?,
        scope: columns.parsed()?,
        created_at: columns.time()?,
        created_by: columns.get()?,
        expires_at: columns.optional_time()?,
        used_at: columns.optional_time()?,
        revoked_at: columns.optional_time()?,
    })
}

fn read_user(columns: &mut ColumnReader<'_, '_>) -> Result<UserAccount, DatabaseError> {
    Ok(UserAccount {
        name: columns.parsed()?,
        scope: columns.parsed()?,
        created_at: columns.time()?,
        changed_at: columns.time()?,
    })
}

pub(crate) fn insert_token(
    conn: &DatabaseConnection,
    token: &AccessToken,
    hash: &str,
) -> Result<(), DatabaseError> {
    let params = params![
        token.id.as_str(),
        token.name.as_str(),
        token.scope.as_str(),
        iso_millis(token.created_at),
        token.created_by,
        token.expires_at.map(iso_millis),
        hash,
    ];
    execute(conn, INSERT_TOKEN, params, "make a token").map(|_| ())
}

/// Returns true if the token was not revoked yet.
pub(crate) fn revoke_token(
    conn: &DatabaseConnection,
    id: &TokenId,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    let params = params![id.as_str(), iso_millis(now)];
    Ok(execute(conn, REVOKE_TOKEN, params, "revoke a token")? == 1)
}

pub(crate) fn set_token_used(
    conn: &DatabaseConnection,
    id: &TokenId,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    let params = params![id.as_str(), iso_millis(now)];
    execute(conn, TOKEN_USED, params, "note the use of a token").map(|_| ())
}

pub(crate) fn put_user(
    conn: &DatabaseConnection,
    person: &UserAccount,
    hash: &str,
) -> Result<(), DatabaseError> {
    let params = params![
        person.name.as_str(),
        person.scope.as_str(),
        iso_millis(person.created_at),
        iso_millis(person.changed_at),
        hash,
    ];
    execute(conn, PUT_PERSON, params, "set a password").map(|_| ())
}

/// Returns true if the user existed.
pub(crate) fn remove_user(
    conn: &DatabaseConnection,
    name: &AccessName,
) -> Result<bool, DatabaseError> {
    Ok(execute(conn, REMOVE_PERSON, [name.as_str()], "remove a password")? == 1)
}

pub(crate) fn insert_login(
    conn: &DatabaseConnection,
    login: &BrowserLogin,
    hash: &str,
) -> Result<(), DatabaseError> {
    let params = params![
        hash,
        login.caller,
        login.scope.as_str(),
        login.user.as_ref().map(AccessName::as_str),
        iso_millis(login.created_at),
        iso_millis(login.expires_at),
    ];
    execute(conn, INSERT_LOGIN, params, "record a login").map(|_| ())
}

/// Returns true if the login existed.
pub(crate) fn remove_login(conn: &DatabaseConnection, hash: &str) -> Result<bool, DatabaseError> {
    Ok(execute(conn, REMOVE_LOGIN, [hash], "end a login")? == 1)
}

pub(crate) fn remove_logins(conn: &DatabaseConnection) -> Result<usize, DatabaseError> {
    execute(conn, REMOVE_LOGINS, [], "end all logins")
}

pub(crate) fn remove_logins_of(
    conn: &DatabaseConnection,
    name: &AccessName,
) -> Result<usize, DatabaseError> {
    execute(conn, REMOVE_LOGINS_OF, [name.as_str()], "end a person's logins")
}

pub(crate) fn remove_expired_logins(
    conn: &DatabaseConnection,
    now: Timestamp,
) -> Result<usize, DatabaseError> {
    execute(conn, REMOVE_EXPIRED, [iso_millis(now)], "forget old logins")
}
