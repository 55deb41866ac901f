//! Secrets of a whole fleet. Any agent may print them, because it can read the files that hold
//! them, so the output of every agent is redacted by all of them. Start at [`FleetSecrets`].

use std::fmt;
use std::sync::Arc;

/// Longest part of an ordinary value that is a word.
const WORD_LEN_MAX: usize = 20;

/// Longest part of an ordinary value that is a number: a date such as `20250929`.
const NUMBER_LEN_MAX: usize = 8;

/// Longest part of an ordinary value with letters and digits: `v2`, `x86`.
const MIXED_LEN_MAX: usize = 3;

/// Longest part of a path or an address without credentials.
const PATH_PART_LEN_MAX: usize = 15;

/// Values that must not be written or shown for any agent of a fleet. Cheap to clone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FleetSecrets(Arc<[String]>);

impl fmt::Debug for FleetSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetSecrets(…)")
    }
}

impl FleetSecrets {
    pub fn values(&self) -> &[String] {
        &self.0
    }

    /// Returns these secrets and those values of a `.env` file that are not ordinary text, or whose
    /// name says that they are secret.
    pub(crate) fn with_dotenv(&self, pairs: &[(String, String)]) -> FleetSecrets {
        let is_secret = |name: &str, value: &str| is_secret_name(name) || !is_ordinary_value(value);
        let secrets = pairs.iter().filter(|(name, value)| is_secret(name, value));
        let more = secrets.map(|(_, value)| value.clone());
        FleetSecrets::new(self.0.iter().cloned().chain(more).collect())
    }

    pub(crate) fn new(mut values: Vec<String>) -> FleetSecrets {
        // Sorted, so that equal configs are equal.
        values.sort();
        values.dedup();
        FleetSecrets(values.into())
    }
}

/// Returns true if a variable of this name holds a secret by convention.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let words = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL"];
    words.iter().any(|word| name.contains(word)) || name.ends_with("_PASS")
}

/// Returns true if a value cannot be told from ordinary text: words, short numbers and version
/// numbers (`production`, `us-east-1`, `localhost:3000`), and paths and addresses of such parts.
///
/// A `.env` file holds secrets and plain settings alike. If a plain setting were redacted, the word
/// would be missing from every transcript, and from the prompts that are stored.
fn is_ordinary_value(value: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric();
    // Other characters are rare in settings and common in passwords.
    if !value.chars().all(|c| is_part(c) || "-_./: ,".contains(c)) {
        return false;
    }
    let is_path =
        ["/", "./", "../"].iter().any(|start| value.starts_with(start)) || value.contains("://");
    let mut parts = value.split(|c: char| !is_part(c)).filter(|part| !part.is_empty());
    parts.all(|part| is_ordinary_part(part) || (is_path && part.len() <= PATH_PART_LEN_MAX))
}

fn is_ordinary_part(part: &str) -> bool {
    let is = |kind: fn(&char) -> bool, text: &str| text.chars().all(|c| kind(&c));
    let rest = part.get(1..).unwrap_or_default();
    if is(char::is_ascii_digit, part) {
        return part.len() <= NUMBER_LEN_MAX;
    }
    // `word`, `WORD` or `Word`; letters in mixed case are typical of random text.
    let is_word = is(char::is_ascii_alphabetic, part)
        && (is(char::is_ascii_lowercase, rest) || is(char::is_ascii_uppercase, part));
    is_word && part.len() <= WORD_LEN_MAX || part.len() <= MIXED_LEN_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_makes_an_ordinary_word_a_secret() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let pairs = [pair("ADMIN_PASSWORD", "sunshine"), pair("STAGE", "production")];
        let secrets = FleetSecrets::default().with_dotenv(&pairs);
        assert_eq!(secrets.values(), ["sunshine"]);
    }

    #[test]
    fn plain_settings_are_ordinary_and_everything_else_may_be_a_secret() {
        for plain in [
            "1",
            "true",
            "dev",
            "production",
            "us-east-1",
            "gpt-4o-mini",
            "localhost:3000",
            "claude-sonnet-4-5-20250929",
            "/srv/app-v2024/data",
            "https://api.example.com/v1",
            "info,heeler=debug".replace('=', ":").as_str(),
            "Europe/Berlin",
            "",
        ] {
            assert!(is_ordinary_value(plain), "{plain}");
        }
        for secret in [
            "hunter2hunter2",
            "s3cr3t-value",
            "550e8400-e29b-41d4-a716-446655440000",
            "correct horse!",
            "aBcDeFgHiJkL",
            "postgres://u:pass@db/x",
            "123456789012",
            "https://hooks.slack.com/services/T01/B02/abcdefghijklmnopqrstuvwx",
            "größerals8",
            "abcdefghijklmnopqrstuvwxyz",
        ] {
            assert!(!is_ordinary_value(secret), "{secret}");
        }
    }
}
