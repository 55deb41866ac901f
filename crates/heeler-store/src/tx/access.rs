//! Changes of who may do what.

use heeler_model::{AccessName, Login, Person, Token, TokenId};
use jiff::Timestamp;

use super::Tx;
use crate::db::{DbError, access};

impl Tx<'_> {
    /// Inserts a token by the hash of its secret; a name that counts already is an error.
    pub fn insert_token(&mut self, token: &Token, hash: &str) -> Result<(), DbError> {
        access::insert_token(&self.conn, token, hash)
    }

    /// Revokes a token; returns whether it was not revoked yet.
    pub fn revoke_token(&mut self, id: &TokenId, now: Timestamp) -> Result<bool, DbError> {
        access::revoke_token(&self.conn, id, now)
    }

    /// Notes when a token was last used.
    pub fn set_token_used(&mut self, id: &TokenId, now: Timestamp) -> Result<(), DbError> {
        access::set_token_used(&self.conn, id, now)
    }

    /// Gives a person a password by its hash, and ends their logins.
    pub fn put_person(&mut self, person: &Person, hash: &str) -> Result<(), DbError> {
        access::remove_logins_of(&self.conn, &person.name)?;
        access::put_person(&self.conn, person, hash)
    }

    /// Removes a person and ends their logins; returns whether they were there.
    pub fn remove_person(&mut self, name: &AccessName) -> Result<bool, DbError> {
        access::remove_logins_of(&self.conn, name)?;
        access::remove_person(&self.conn, name)
    }

    /// Records a login by the hash of its cookie; those that have expired are forgotten.
    pub fn insert_login(&mut self, login: &Login, hash: &str) -> Result<(), DbError> {
        access::remove_expired_logins(&self.conn, login.created_at)?;
        access::insert_login(&self.conn, login, hash)
    }

    /// Ends a login; returns whether it was there.
    pub fn remove_login(&mut self, hash: &str) -> Result<bool, DbError> {
        access::remove_login(&self.conn, hash)
    }

    /// Ends all logins; returns how many there were.
    pub fn remove_logins(&mut self) -> Result<usize, DbError> {
        access::remove_logins(&self.conn)
    }
}
