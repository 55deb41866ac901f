//! Identifiers. Each is parsed or minted, never assembled elsewhere, and is safe as a file name.
//!
//! Minting takes its randomness as an argument: this crate generates none.

use std::fmt;
use std::str::FromStr;

use heeler_config::id_syntax::{check_plain_id, check_session_id, is_minted_job_id};
use heeler_config::{IdParseError, text_id};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

text_id! {
    /// Job ID: `job-2026-11-15-a1b2c3`, or the ID that another system assigned.
    JobId, "a job id", check_plain_id
}

text_id! {
    /// Heeler's ID of a session: `sess-a1b2c3d4`.
    SessionId, "a session id", check_session_id
}

text_id! {
    /// ID of a native session; for Claude a UUID. It is the file name of the session's transcript.
    AgentSessionId, "an agent session id", check_plain_id
}

text_id! {
    /// Workflow run ID: `wf-2026-11-15-a1b2c3`, or the ID that another system assigned.
    WorkflowRunId, "a workflow run id", check_plain_id
}

text_id! {
    /// Approval ID: `ask-a1b2c3d4` for an agent's question, `ask-2026-11-15-a1b2c3-7` for a gate of
    /// a workflow run, or the ID that another system assigned.
    ApprovalId, "an approval id", check_plain_id
}

text_id! {
    /// API token ID: `tok-a1b2c3d4`.
    TokenId, "a token id", check_plain_id
}

text_id! {
    /// Name of a token or user: `ci`, `ann`, `ann@example.com`.
    AccessName, "a name", check_access_name
}

/// Longest name of a token or user.
const ACCESS_NAME_LEN_MAX: usize = 64;

fn check_access_name(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.len() > ACCESS_NAME_LEN_MAX {
        return Err("it is longer than 64 characters");
    }
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err("it must start with a letter or digit");
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.@+".contains(&b)) {
        return Err("only letters, digits, `-`, `_`, `.`, `@` and `+` are allowed");
    }
    // Names and token IDs are used in the same places, and must not be confused.
    if text.starts_with("tok-") {
        return Err("it looks like a token id");
    }
    Ok(())
}

impl TokenId {
    /// Number of hash digits in an ID.
    const HASH_LEN: usize = 8;

    /// Returns the ID of the token with this secret hash, in hexadecimal.
    pub fn from_hash(hash: &str) -> TokenId {
        // Only digits, because the ID becomes a file name.
        let start: String = hash.chars().filter(char::is_ascii_hexdigit).collect();
        TokenId(format!("tok-{}", &start[..start.len().min(TokenId::HASH_LEN)]))
    }
}

impl JobId {
    /// Mints an id from the UTC date and a random number. The caller checks that it is new.
    pub fn mint(now: Timestamp, random: u64) -> JobId {
        JobId(mint_dated_id("job", now, random))
    }

    /// Returns true if the ID has the form `job-YYYY-MM-DD-xxxxxx`.
    pub fn has_minted_form(&self) -> bool {
        is_minted_job_id(&self.0)
    }
}

impl WorkflowRunId {
    /// Mints an id from the UTC date and a random number. The caller checks that it is new.
    pub fn mint(now: Timestamp, random: u64) -> WorkflowRunId {
        WorkflowRunId(mint_dated_id("wf", now, random))
    }
}

impl ApprovalId {
    /// Mints an id from a random number. The caller checks that it is new.
    pub fn mint(random: u32) -> ApprovalId {
        ApprovalId(format!("ask-{random:08x}"))
    }

    /// Returns the ID of a gate by its journal number. It is known before the question is asked,
    /// and unique.
    pub fn for_gate(run: &str, seq: u64) -> ApprovalId {
        // The run's prefix would make the ID needlessly long for people.
        ApprovalId(format!("ask-{}-{seq}", run.strip_prefix("wf-").unwrap_or(run)))
    }
}

fn mint_dated_id(prefix: &str, now: Timestamp, random: u64) -> String {
    // UTC, so that the IDs of one fleet sort the same on every machine.
    let date = now.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d").to_string();
    let mut suffix = [b'0'; 6];
    let mut rest = random;
    for byte in suffix.iter_mut().rev() {
        *byte = b"0123456789abcdefghijklmnopqrstuvwxyz"[(rest % 36) as usize];
        rest /= 36;
    }
    let suffix = suffix.map(char::from).iter().collect::<String>();
    format!("{prefix}-{date}-{suffix}")
}

impl SessionId {
    /// Mints an id from a random number. The caller checks that it is new.
    pub fn mint(random: u32) -> SessionId {
        SessionId(format!("sess-{random:08x}"))
    }
}

/// ID of a run. UUIDv7, so IDs sort by creation time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(Uuid);

impl RunId {
    /// Mints an ID from the time and ten random bytes.
    pub fn mint(now: Timestamp, random: [u8; 10]) -> RunId {
        // A clock before 1970 must not prevent a run.
        let millis = u64::try_from(now.as_millisecond()).unwrap_or(0);
        RunId(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }
}

impl FromStr for RunId {
    type Err = IdParseError;
    fn from_str(text: &str) -> Result<RunId, IdParseError> {
        let reason = "it is not a UUID";
        Uuid::try_parse(text).map(RunId).map_err(|_| IdParseError {
            text: text.to_owned(),
            what: "a run id",
            reason,
        })
    }
}

impl Serialize for RunId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RunId, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use heeler_config::AgentName;

    use super::*;

    #[track_caller]
    fn refused<T: FromStr<Err = IdParseError> + fmt::Debug>(text: &str) -> &'static str {
        text.parse::<T>().unwrap_err().reason
    }

    #[test]
    fn ids_from_outside_cannot_leave_their_folder() {
        for text in ["", "..", "a/b", "a\\b", "/etc/passwd", ".hidden", "-rf", "a b", "a\0b", "é"]
        {
            assert!(text.parse::<JobId>().is_err(), "{text:?}");
            assert!(text.parse::<AgentSessionId>().is_err(), "{text:?}");
            assert!(text.parse::<AgentName>().is_err(), "{text:?}");
        }
        assert_eq!(refused::<JobId>(&"x".repeat(129)), "it is longer than 128 characters");
    }

    #[test]
    fn refusals_are_good_english() {
        let said = |error: IdParseError| error.to_string();
        assert_eq!(
            said("".parse::<AgentName>().unwrap_err()),
            "`` is not an agent name: it is empty"
        );
        assert_eq!(said("".parse::<JobId>().unwrap_err()), "`` is not a job id: it is empty");
    }

    #[test]
    fn a_minted_job_id_carries_the_utc_date_and_parses() {
        let now: Timestamp = "2024-01-19T23:30:00-05:00".parse().unwrap();
        assert_eq!(JobId::mint(now, 0).as_str(), "job-2024-01-20-000000");
        let id = JobId::mint(now, u64::MAX);
        assert!(id.has_minted_form(), "{id}");
        assert!(
            !"8f14e45f-ceea-467f-9575-1f0b2c3d4e5f".parse::<JobId>().unwrap().has_minted_form()
        );
    }

    #[test]
    fn session_ids_of_the_documentation_are_read() {
        assert!("sess-e5f6g7h8".parse::<SessionId>().is_ok());
        assert!("sess-E5F6".parse::<SessionId>().is_err());
        assert_eq!(SessionId::mint(0xa1b2).as_str(), "sess-0000a1b2");
    }

    #[test]
    fn run_ids_sort_by_creation() {
        let earlier = RunId::mint("2024-01-19T09:00:00Z".parse().unwrap(), [9; 10]);
        let later = RunId::mint("2024-01-19T09:00:01Z".parse().unwrap(), [0; 10]);
        assert!(earlier < later);
        assert_eq!(later.to_string().parse::<RunId>().unwrap(), later);
    }
}
