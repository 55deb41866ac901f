//! Changes of who may do what.

use heeler_model::{AccessName, AccessToken, BrowserLogin, TokenId, UserAccount};
use jiff::Timestamp;

use super::StoreTransaction;
use crate::db::{DatabaseError, access};

impl StoreTransaction<'_> {
    /// Inserts a token by the hash of its secret; a name that counts already is an error.
    pub fn insert_token(&mut self, token: &AccessToken, hash: &str) -> Result<(), DatabaseError> {
        access::insert_token(&self.conn, token, hash)
    }

    /// Revokes a token; returns whether it was not revoked yet.
    pub fn revoke_token(&mut self, id: &TokenId, now: Timestamp) -> Result<bool, DatabaseError> {
        access::revoke_token(&self.conn, id, now)
    }

    /// Notes when a token was last used.
    pub fn set_token_used(&mut self, id: &TokenId, now: Timestamp) -> Result<(), DatabaseError> {
        access::set_token_used(&self.conn, id, now)
    }

    /// Gives a person a password by its hash, and ends their logins.
    pub fn put_user(&mut self, person: &UserAccount, hash: &str) -> Result<(), DatabaseError> {
        access::remove_logins_of(&self.conn, &person.name)?;
        access::put_user(&self.conn, person, hash)
    }

    /// Removes a person and ends their logins; returns whether they were there.
    pub fn remove_user(&mut self, name: &AccessName) -> Result<bool, DatabaseError> {
        access::remove_logins_of(&self.conn, name)?;
        access::remove_user(&self.conn, name)
    }

    /// Records a login by the hash of its cookie; those that have expired are forgotten.
    pub fn insert_login(&mut self, login: &BrowserLogin, hash: &str) -> Result<(), DatabaseError> {
        access::remove_expired_logins(&self.conn, login.created_at)?;
        access::insert_login(&self.conn, login, hash)
    }

    /// Ends a login; returns whether it was there.
    pub fn remove_login(&mut self, hash: &str) -> Result<bool, DatabaseError> {
        access::remove_login(&self.conn, hash)
    }

    /// Ends all logins; returns how many there were.
    pub fn remove_logins(&mut self) -> Result<usize, DatabaseError> {
        access::remove_logins(&self.conn)
    }
}
