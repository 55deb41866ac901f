//! Who may do what: tokens, people with passwords, and who a secret belongs to.

use heeler_model::{AccessName, Login, Person, Scope, Token};
use heeler_store::Reader;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{QueryError, Records};

/// All tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct TokenList {
    /// Newest first, also those that no longer count.
    pub tokens: Vec<TokenItem>,
}

/// A token in a list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenItem {
    /// Its id.
    pub id: String,
    /// What it is called.
    pub name: String,
    /// What its bearer may.
    #[schema(value_type = String)]
    pub scope: Scope,
    /// Whether it counts.
    pub status: TokenStatus,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// When it ends to count by itself.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// About when it was last used.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub used_at: Option<Timestamp>,
    /// When somebody revoked it.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Timestamp>,
}

/// Whether a token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum TokenStatus {
    /// It counts.
    Active,
    /// Its time is over.
    Expired,
    /// Somebody revoked it.
    Revoked,
}

impl TokenStatus {
    /// Returns it as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            TokenStatus::Active => "active",
            TokenStatus::Expired => "expired",
            TokenStatus::Revoked => "revoked",
        }
    }
}

impl TokenItem {
    fn of(token: Token, now: Timestamp) -> TokenItem {
        let status = match token.revoked_at {
            Some(_) => TokenStatus::Revoked,
            None if token.counts(now) => TokenStatus::Active,
            None => TokenStatus::Expired,
        };
        TokenItem {
            id: token.id.to_string(),
            name: token.name.to_string(),
            scope: token.scope,
            status,
            created_at: token.created_at,
            created_by: token.created_by,
            expires_at: token.expires_at,
            used_at: token.used_at,
            revoked_at: token.revoked_at,
        }
    }
}

/// The people who have a password.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct PeopleList {
    /// By name.
    pub people: Vec<PersonItem>,
}

/// A person with a password.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersonItem {
    /// What they log in by.
    pub name: String,
    /// What they may.
    #[schema(value_type = String)]
    pub scope: Scope,
    /// When they got their first password.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When they got the one that they have.
    #[schema(value_type = String, format = DateTime)]
    pub changed_at: Timestamp,
}

impl TokenList {
    /// Lists all tokens, newest first.
    pub fn read(reader: &Reader, now: Timestamp) -> Result<TokenList, QueryError> {
        let tokens = reader.tokens()?.into_iter().map(|token| TokenItem::of(token, now));
        Ok(TokenList { tokens: tokens.collect() })
    }
}

impl PeopleList {
    /// Lists the people who have a password.
    pub fn read(reader: &Reader) -> Result<PeopleList, QueryError> {
        let item = |Person { name, scope, created_at, changed_at }| {
            let name = AccessName::to_string(&name);
            PersonItem { name, scope, created_at, changed_at }
        };
        Ok(PeopleList { people: reader.people()?.into_iter().map(item).collect() })
    }
}

impl Records {
    /// Lists all tokens, newest first.
    pub fn tokens(&self, now: Timestamp) -> Result<TokenList, QueryError> {
        TokenList::read(&*self.reader()?, now)
    }

    /// Lists the people who have a password.
    pub fn people(&self) -> Result<PeopleList, QueryError> {
        PeopleList::read(&*self.reader()?)
    }

    /// Returns the token whose secret has a hash, whether or not it still counts.
    pub fn token_of_hash(&self, hash: &str) -> Result<Option<Token>, QueryError> {
        Ok(self.reader()?.token_of_hash(hash)?)
    }

    /// Returns the login whose cookie has a hash, whether or not it has expired.
    pub fn login_of_hash(&self, hash: &str) -> Result<Option<Login>, QueryError> {
        Ok(self.reader()?.login(hash)?)
    }

    /// Returns the hash of a person's password.
    pub fn password_of(&self, name: &AccessName) -> Result<Option<String>, QueryError> {
        Ok(self.reader()?.person(name)?.map(|(_, hash)| hash))
    }
}
