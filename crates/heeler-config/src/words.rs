//! Closed sets of words that appear in files, in the database and on the command line.
//!
//! [`words!`] declares an enum together with its only spelling; no other code spells these words.

use thiserror::Error;

/// Error for a word that does not belong to a closed set.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown {what} `{word}`, expected one of: {expected}")]
pub struct UnknownWordError {
    /// Name of the set, such as `job status`.
    pub what: &'static str,
    /// Word as given.
    pub word: String,
    /// Legal words, comma-separated.
    pub expected: String,
}

/// Declares an enum of words with `as_str`, `ALL`, `FromStr`, `Display` and serde implementations.
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident ($what:literal) { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vmeta])* $variant,)+ }

        impl $name {
            /// All values, in declaration order.
            pub const ALL: &[$name] = &[$($name::$variant,)+];

            /// Returns the word as files, the database and the command line spell it.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::UnknownWordError;
            fn from_str(word: &str) -> Result<$name, $crate::UnknownWordError> {
                match word {
                    $($text => Ok($name::$variant),)+
                    _ => Err($crate::UnknownWordError {
                        what: $what,
                        word: word.to_owned(),
                        expected: [$($text,)+].join(", "),
                    }),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
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

pub(crate) use words;
