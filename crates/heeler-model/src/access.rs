//! Who may do what: tokens of programs, passwords of people, logins of browsers.
//!
//! Of a secret only its hash is ever on record. Start at [`AccessScope`].

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::words::words;
use crate::{AccessName, TokenId};

words! {
    /// What somebody may do; each includes what comes before it.
    pub enum AccessScope ("scope") {
        /// Look at everything but secrets.
        Read = "read",
        /// Also start, steer and answer.
        Operate = "operate",
        /// Also change who may do what, and end the daemon.
        Admin = "admin",
    }
}

/// The name of the token that a daemon makes by itself, and of the file that holds it.
pub const API_TOKEN: &str = "api-token";

/// A token, by which a program says who it is.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessToken {
    /// Its id.
    pub id: TokenId,
    /// What it is called; no two that count have the same name.
    pub name: AccessName,
    /// What its bearer may.
    pub scope: AccessScope,
    /// When it was made.
    pub created_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// When it ends to count by itself.
    pub expires_at: Option<Timestamp>,
    /// About when it was last used.
    pub used_at: Option<Timestamp>,
    /// When somebody revoked it.
    pub revoked_at: Option<Timestamp>,
}

impl AccessToken {
    /// Says whether it still counts.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| at > now)
    }
}

/// A person with a password.
#[derive(Debug, Clone, PartialEq)]
pub struct UserAccount {
    /// What they log in by.
    pub name: AccessName,
    /// What they may.
    pub scope: AccessScope,
    /// When they got their first password.
    pub created_at: Timestamp,
    /// When they got the one that they have.
    pub changed_at: Timestamp,
}

/// A browser that somebody logged in with.
#[derive(Debug, Clone, PartialEq)]
pub struct BrowserLogin {
    /// Who logged in.
    pub caller: String,
    /// What they may.
    pub scope: AccessScope,
    /// Whose password it was; `None` by a one-time link.
    pub user: Option<AccessName>,
    /// Since when.
    pub created_at: Timestamp,
    /// Until when.
    pub expires_at: Timestamp,
}

/// Returns what is on record of a secret that nobody could guess.
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
