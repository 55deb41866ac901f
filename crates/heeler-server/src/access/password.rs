//! Password hashing: Argon2id with the parameters that its authors and OWASP recommend.

use std::sync::LazyLock;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use thiserror::Error;

/// Shortest password, in characters.
pub const PASSWORD_CHARS_MIN: usize = 10;

/// Longest password, in bytes.
pub const PASSWORD_BYTES_MAX: usize = 1024;

/// Reason for which a password is rejected.
#[derive(Debug, Error, PartialEq)]
pub enum PasswordError {
    #[error("a password has at least {PASSWORD_CHARS_MIN} characters")]
    Short,
    #[error("a password has at most {PASSWORD_BYTES_MAX} bytes")]
    Long,
    #[error("the password cannot be hashed: {0}")]
    Hash(String),
}

/// Returns the hash of a new password, for storage.
pub fn hash_password(password: &str) -> Result<String, PasswordError> {
    if password.chars().count() < PASSWORD_CHARS_MIN {
        return Err(PasswordError::Short);
    }
    if password.len() > PASSWORD_BYTES_MAX {
        return Err(PasswordError::Long);
    }
    hash(password)
}

fn hash(password: &str) -> Result<String, PasswordError> {
    let hashed = Argon2::default().hash_password(password.as_bytes());
    hashed.map(|it| it.to_string()).map_err(|error| PasswordError::Hash(error.to_string()))
}

/// Returns true if a password matches a hash. Without a hash it takes the same time and returns
/// false.
pub(super) fn verify_password_hash(password: &str, known: Option<&str>) -> bool {
    static NOBODYS: LazyLock<String> =
        LazyLock::new(|| hash("nobody has this password").unwrap_or_default());
    // Computed on the first call in either case, so that the time does not reveal whether a user
    // exists.
    let nobodys = NOBODYS.as_str();
    // A longer password was never accepted, and must not cost hashing time.
    let password = if password.len() > PASSWORD_BYTES_MAX { "" } else { password };
    let is_match = |hash: &str| {
        let hash = PasswordHash::new(hash);
        hash.is_ok_and(|it| Argon2::default().verify_password(password.as_bytes(), &it).is_ok())
    };
    match known {
        Some(hash) => is_match(hash),
        None => {
            let _not = is_match(nobodys);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_fits_its_own_hash_alone() {
        let (one, two) = (hash_password("correct horse").unwrap(), hash("correct horse").unwrap());
        assert_ne!(one, two, "each has a salt of its own");
        assert!(one.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{one}");
        assert!(
            verify_password_hash("correct horse", Some(&one))
                && verify_password_hash("correct horse", Some(&two))
        );
        assert!(
            !verify_password_hash("correct hors", Some(&one))
                && !verify_password_hash("", Some(&one))
        );
        assert!(!verify_password_hash("nobody has this password", None));
        assert!(
            !verify_password_hash("x", Some(""))
                && !verify_password_hash("x", Some("$argon2id$v=19$"))
        );
    }

    #[test]
    fn what_is_too_short_or_too_long_is_no_password() {
        assert_eq!(hash_password("ninechars"), Err(PasswordError::Short));
        assert!(hash_password("zehnzeiche").is_ok());
        assert_eq!(hash_password(&"x".repeat(PASSWORD_BYTES_MAX + 1)), Err(PasswordError::Long));
        let most = "x".repeat(PASSWORD_BYTES_MAX);
        assert!(verify_password_hash(&most, Some(&hash_password(&most).unwrap())));
    }
}
