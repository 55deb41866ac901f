//! Changes of access rights: tokens, users and logins.

use heeler_model::{AccessName, AccessToken, BrowserLogin, TokenId, UserAccount};
use jiff::Timestamp;

use super::StoreTransaction;
use crate::db::{DatabaseError, access, push_browsers};

impl StoreTransaction<'_> {
    /// Inserts a token by the hash of its secret; the name of an active token is an error.
    pub fn insert_token(&mut self, token: &AccessToken, hash: &str) -> Result<(), DatabaseError> {
        access::insert_token(&self.conn, token, hash)
    }

    /// Revokes a token; returns true if it was not revoked yet.
    pub fn revoke_token(&mut self, id: &TokenId, now: Timestamp) -> Result<bool, DatabaseError> {
        access::revoke_token(&self.conn, id, now)
    }

    /// Records the last use of a token.
    pub fn set_token_used(&mut self, id: &TokenId, now: Timestamp) -> Result<(), DatabaseError> {
        access::set_token_used(&self.conn, id, now)
    }

    /// Sets the password hash of a user, and removes the user's logins and browsers.
    pub fn put_user(&mut self, person: &UserAccount, hash: &str) -> Result<(), DatabaseError> {
        // A stolen login, and a browser that was added with it, must not survive a change of the
        // password.
        access::remove_logins_of(&self.conn, &person.name)?;
        push_browsers::remove_of_owner(&self.conn, person.name.as_str())?;
        access::put_user(&self.conn, person, hash)
    }

    /// Removes a user and removes the user's logins and browsers; returns true if the user existed.
    pub fn remove_user(&mut self, name: &AccessName) -> Result<bool, DatabaseError> {
        access::remove_logins_of(&self.conn, name)?;
        push_browsers::remove_of_owner(&self.conn, name.as_str())?;
        access::remove_user(&self.conn, name)
    }

    /// Records a login by the hash of its cookie, and removes expired logins.
    pub fn insert_login(&mut self, login: &BrowserLogin, hash: &str) -> Result<(), DatabaseError> {
        // Here and not by a timer: the table grows only with logins.
        access::remove_expired_logins(&self.conn, login.created_at)?;
        access::insert_login(&self.conn, login, hash)
    }

    /// Ends a login; returns true if it existed.
    pub fn remove_login(&mut self, hash: &str) -> Result<bool, DatabaseError> {
        access::remove_login(&self.conn, hash)
    }

    /// Removes all logins and browsers; returns the number of logins.
    pub fn remove_logins(&mut self) -> Result<usize, DatabaseError> {
        push_browsers::remove_all(&self.conn)?;
        access::remove_logins(&self.conn)
    }
}
