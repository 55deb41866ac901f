//! Access control records: tokens of programs, accounts of users, logins of browsers.
//!
//! Only the hash of a secret is ever stored. Start at [`AccessScope`].

use heeler_config::words;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::{AccessName, TokenId};

words! {
    /// Actions that a user or token is allowed. Each scope includes the scopes before it.
    pub enum AccessScope ("scope") {
        /// View everything except secrets.
        Read = "read",
        /// Also start, control and answer agents.
        Operate = "operate",
        /// Also manage users and tokens, and stop the daemon.
        Admin = "admin",
    }
}

/// Name of the token that a daemon creates for itself, and of the file that holds it.
pub const API_TOKEN: &str = "api-token";

/// Secret that identifies a program to the API. This record does not hold the secret itself.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessToken {
    pub id: TokenId,
    /// Unique among valid tokens.
    pub name: AccessName,
    pub scope: AccessScope,
    pub created_at: Timestamp,
    pub created_by: String,
    /// Expiry time. `None` if the token does not expire.
    pub expires_at: Option<Timestamp>,
    /// Approximate time of last use.
    pub used_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

impl AccessToken {
    /// Returns true if the token is neither revoked nor expired.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        // A token is invalid from the very moment of its expiry.
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| at > now)
    }
}

/// User: a person with a password.
#[derive(Debug, Clone, PartialEq)]
pub struct UserAccount {
    pub name: AccessName,
    pub scope: AccessScope,
    /// Time at which the user's first password was set.
    pub created_at: Timestamp,
    /// Time at which the current password was set.
    pub changed_at: Timestamp,
}

/// Login of a browser.
#[derive(Debug, Clone, PartialEq)]
pub struct BrowserLogin {
    /// Identity recorded for requests of this login.
    pub caller: String,
    pub scope: AccessScope,
    /// User that logged in with a password. `None` for a login by one-time link.
    pub user: Option<AccessName>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

/// Returns the SHA-256 of a secret in lower-case hexadecimal.
///
/// A plain hash is enough because these secrets are random; passwords must not be hashed this way.
pub fn secret_hash(secret: &str) -> String {
    let digits = Sha256::digest(secret).into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])).collect()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_scope_includes_those_before_it() {
        assert!(
            AccessScope::Read < AccessScope::Operate && AccessScope::Operate < AccessScope::Admin
        );
    }

    #[test]
    fn a_token_counts_until_it_is_revoked_or_has_expired() {
        let now = Timestamp::UNIX_EPOCH;
        let token = AccessToken {
            id: TokenId::from_hash(&secret_hash("x")),
            name: "ci".parse().unwrap(),
            scope: AccessScope::Read,
            created_at: now,
            created_by: "me".to_owned(),
            expires_at: None,
            used_at: None,
            revoked_at: None,
        };
        let later = now + SignedDuration::from_secs(1);
        assert!(token.is_valid(later));
        assert!(!AccessToken { revoked_at: Some(now), ..token.clone() }.is_valid(later));
        let expires = AccessToken { expires_at: Some(later), ..token };
        assert_eq!((expires.is_valid(now), expires.is_valid(later)), (true, false));
    }

    #[test]
    fn a_hash_is_that_of_sha256_in_hexadecimal() {
        let hash = secret_hash("abc");
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(TokenId::from_hash(&hash).as_str(), "tok-ba7816bf");
    }
}
