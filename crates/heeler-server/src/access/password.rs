//! Passwords: Argon2id with the parameters that its makers and OWASP name.

use std::sync::LazyLock;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use thiserror::Error;

/// The shortest password, in characters.
pub const PASSWORD_CHARS_MIN: usize = 10;

/// The longest password.
pub const PASSWORD_BYTES_MAX: usize = 1024;

/// Why something is no password.
#[derive(Debug, Error, PartialEq)]
pub enum PasswordError {
    /// It is easy to guess.
    #[error("a password has at least {PASSWORD_CHARS_MIN} characters")]
    Short,
    /// Nobody would type it.
    #[error("a password has at most {PASSWORD_BYTES_MAX} bytes")]
    Long,
    /// It cannot be hashed.
    #[error("the password cannot be hashed: {0}")]
    Hash(String),
}

/// Returns what is on record of a password.
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

/// Says whether a password is the one that a hash is of. Where there is none it takes as long and
/// says no.
pub(super) fn verify_password_hash(password: &str, known: Option<&str>) -> bool {
    static NOBODYS: LazyLock<String> =
        LazyLock::new(|| hash("nobody has this password").unwrap_or_default());
    // Made by whoever comes first, whether or not they need it.
    let nobodys = NOBODYS.as_str();
    // What is longer was never set, and may not keep us busy.
    let password = if password.len() > PASSWORD_BYTES_MAX { "" } else { password };
    let fits = |hash: &str| {
        let hash = PasswordHash::new(hash);
        hash.is_ok_and(|it| Argon2::default().verify_password(password.as_bytes(), &it).is_ok())
    };
    match known {
        Some(hash) => fits(hash),
        None => {
            let _not = fits(nobodys);
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
