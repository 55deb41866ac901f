//! Syntax of IDs and names. Each is safe as a file name.
//!
//! [`text_id!`](crate::text_id) declares a type with such a syntax. The forms of session and job IDs
//! are here because a name must have neither.

use thiserror::Error;

/// Longest accepted ID or name. File names are limited to 255 bytes, and Heeler adds suffixes.
pub const ID_LEN_MAX: usize = 128;

/// Error for a text that is not a valid ID or name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not {what}: {reason}")]
pub struct IdParseError {
    /// Text as given.
    pub text: String,
    /// Expected kind of ID, with its article.
    pub what: &'static str,
    /// Reason for the rejection.
    pub reason: &'static str,
}

/// Declares a text type that only holds texts which a check accepts.
#[macro_export]
macro_rules! text_id {
    ($(#[$meta:meta])* $name:ident, $what:literal, $check:path) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::IdParseError;
            fn from_str(text: &str) -> Result<$name, $crate::IdParseError> {
                match $check(text) {
                    Ok(()) => Ok($name(text.to_owned())),
                    Err(reason) => Err($crate::IdParseError { text: text.to_owned(), what: $what, reason }),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({:?})", stringify!($name), self.0)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                <String as serde::Deserialize>::deserialize(from)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use text_id;

/// Accepts letters, digits, `-` and `_`.
pub fn check_plain_id(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.len() > ID_LEN_MAX {
        return Err("it is longer than 128 characters");
    }
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err("it must start with a letter or digit");
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
        return Err("only letters, digits, `-` and `_` are allowed");
    }
    Ok(())
}

/// Accepts the form `sess-a1b2c3d4`.
pub fn check_session_id(text: &str) -> Result<(), &'static str> {
    // herdctl's documentation shows `sess-e5f6g7h8`, which is not hexadecimal: accept base 36.
    match text.strip_prefix("sess-") {
        Some(rest) if rest.len() == 8 && rest.bytes().all(is_base36) => Ok(()),
        _ => Err("it must look like sess-a1b2c3d4"),
    }
}

fn is_base36(byte: u8) -> bool {
    byte.is_ascii_digit() || byte.is_ascii_lowercase()
}

/// Returns true for the form `job-YYYY-MM-DD-xxxxxx`.
pub fn is_minted_job_id(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("job-") else { return false };
    let bytes = rest.as_bytes();
    bytes.len() == 17
        && bytes.iter().enumerate().all(|(at, &byte)| match at {
            4 | 7 | 10 => byte == b'-',
            0..10 => byte.is_ascii_digit(),
            _ => is_base36(byte),
        })
}
