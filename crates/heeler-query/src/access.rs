//! Tokens, users and browser logins, and lookup of the owner of a secret.

use heeler_model::{AccessName, AccessScope, AccessToken, BrowserLogin, UserAccount};
use heeler_store::StoreReader;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError};

/// All tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct TokenList {
    /// Tokens, newest first, including expired and revoked ones.
    pub tokens: Vec<TokenSummary>,
}

/// A token in a list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenSummary {
    /// Token ID.
    pub id: String,
    /// Name of the token.
    pub name: String,
    /// Actions that the token allows.
    #[schema(value_type = String)]
    pub scope: AccessScope,
    /// Validity of the token.
    pub status: TokenStatus,
    /// Creation time.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Creator of the token.
    pub created_by: String,
    /// Expiry time.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Approximate time of last use.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub used_at: Option<Timestamp>,
    /// Revocation time.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Timestamp>,
}

/// Validity of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum TokenStatus {
    /// Valid.
    Active,
    /// Past its expiry time.
    Expired,
    /// Revoked by a user.
    Revoked,
}

impl TokenStatus {
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
        // Revoked is shown even after the expiry, because a person did it on purpose.
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

/// Users with a password.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct UserList {
    /// Users, sorted by name.
    pub people: Vec<UserSummary>,
}

/// A user with a password.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserSummary {
    /// Login name.
    pub name: String,
    /// Actions allowed to the user.
    #[schema(value_type = String)]
    pub scope: AccessScope,
    /// Time at which the first password was set.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time at which the current password was set.
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
    /// Lists the users with a password.
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

    /// Lists the users with a password.
    pub fn users(&self) -> Result<UserList, QueryError> {
        UserList::read(&*self.reader()?)
    }

    /// Returns the token with this secret hash, even if it is no longer valid.
    pub fn token_by_hash(&self, hash: &str) -> Result<Option<AccessToken>, QueryError> {
        Ok(self.reader()?.token_of_hash(hash)?)
    }

    /// Returns the browser login with this cookie hash, even if it has expired.
    pub fn login_by_hash(&self, hash: &str) -> Result<Option<BrowserLogin>, QueryError> {
        Ok(self.reader()?.login(hash)?)
    }

    /// Returns the hash of a user's password.
    pub fn password_hash(&self, name: &AccessName) -> Result<Option<String>, QueryError> {
        Ok(self.reader()?.user(name)?.map(|(_, hash)| hash))
    }
}
