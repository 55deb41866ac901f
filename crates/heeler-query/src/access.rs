//! Who may do what: tokens, people with passwords, and who a secret belongs to.

use heeler_model::{AccessName, AccessScope, AccessToken, BrowserLogin, UserAccount};
use heeler_store::StoreReader;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError};

/// All tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct TokenList {
    /// Newest first, also those that no longer count.
    pub tokens: Vec<TokenSummary>,
}

/// A token in a list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenSummary {
    /// Its id.
    pub id: String,
    /// What it is called.
    pub name: String,
    /// What its bearer may.
    #[schema(value_type = String)]
    pub scope: AccessScope,
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

impl TokenSummary {
    fn of(token: AccessToken, now: Timestamp) -> TokenSummary {
        let status = match token.revoked_at {
            Some(_) => TokenStatus::Revoked,
            None if token.is_valid(now) => TokenStatus::Active,
            None => TokenStatus::Expired,
        };
        TokenSummary {
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
pub struct UserList {
    /// By name.
    pub people: Vec<UserSummary>,
}

/// A person with a password.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserSummary {
    /// What they log in by.
    pub name: String,
    /// What they may.
    #[schema(value_type = String)]
    pub scope: AccessScope,
    /// When they got their first password.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When they got the one that they have.
    #[schema(value_type = String, format = DateTime)]
    pub changed_at: Timestamp,
}

impl TokenList {
    /// Lists all tokens, newest first.
    pub fn read(reader: &StoreReader, now: Timestamp) -> Result<TokenList, QueryError> {
        let tokens = reader.tokens()?.into_iter().map(|token| TokenSummary::of(token, now));
        Ok(TokenList { tokens: tokens.collect() })
    }
}

impl UserList {
    /// Lists the people who have a password.
    pub fn read(reader: &StoreReader) -> Result<UserList, QueryError> {
        let item = |UserAccount { name, scope, created_at, changed_at }| {
            let name = AccessName::to_string(&name);
            UserSummary { name, scope, created_at, changed_at }
        };
        Ok(UserList { people: reader.users()?.into_iter().map(item).collect() })
    }
}

impl FleetReader {
    /// Lists all tokens, newest first.
    pub fn tokens(&self, now: Timestamp) -> Result<TokenList, QueryError> {
        TokenList::read(&*self.reader()?, now)
    }

    /// Lists the people who have a password.
    pub fn users(&self) -> Result<UserList, QueryError> {
        UserList::read(&*self.reader()?)
    }

    /// Returns the token whose secret has a hash, whether or not it still counts.
    pub fn token_by_hash(&self, hash: &str) -> Result<Option<AccessToken>, QueryError> {
        Ok(self.reader()?.token_of_hash(hash)?)
    }

    /// Returns the login whose cookie has a hash, whether or not it has expired.
    pub fn login_by_hash(&self, hash: &str) -> Result<Option<BrowserLogin>, QueryError> {
        Ok(self.reader()?.login(hash)?)
    }

    /// Returns the hash of a person's password.
    pub fn password_hash(&self, name: &AccessName) -> Result<Option<String>, QueryError> {
        Ok(self.reader()?.user(name)?.map(|(_, hash)| hash))
    }
}
