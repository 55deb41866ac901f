//! Parses times as people type them: `2h`, `7d`, `2026-11-01`, `2026-11-01T09:00Z`. Start at
//! [`parse_moment`].

use heeler_config::ConfigDuration;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::failure::{CommandFailure, CommandResult, FailureCode};

/// Parses a time: an age before now, a date or a timestamp. A bare date or time is in the local
/// zone.
pub(crate) fn parse_moment(text: &str, now: Timestamp) -> CommandResult<Timestamp> {
    let zone = TimeZone::system();
    let ago = |length: SignedDuration| now.checked_sub(length).ok();
    let found = parse_length(text)
        .and_then(ago)
        .or_else(|| text.parse::<Timestamp>().ok())
        // A date without a time is its midnight. `Date` would accept a time too, and drop it.
        .or_else(|| text.parse::<DateTime>().ok()?.to_zoned(zone).ok().map(|at| at.timestamp()));
    found.ok_or_else(|| {
        CommandFailure::message(
            FailureCode::Usage,
            format!("`{text}` is neither an age nor a date"),
        )
        .hint("2h, 7d, 2026-11-01 or 2026-11-01T09:00:00Z")
    })
}

fn parse_length(text: &str) -> Option<SignedDuration> {
    SignedDuration::try_from(text.parse::<ConfigDuration>().ok()?.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_dates_are_understood() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let at = |text: &str| parse_moment(text, now).unwrap().to_string();
        assert_eq!(at("2h"), "2026-11-15T10:00:00Z");
        assert_eq!(at("1h30m"), "2026-11-15T10:30:00Z");
        assert_eq!(at("1w"), "2026-11-08T12:00:00Z");
        assert_eq!(at("2026-11-01T09:00:00+01:00"), "2026-11-01T08:00:00Z");
        let local = |at: DateTime| at.to_zoned(TimeZone::system()).unwrap().timestamp().to_string();
        assert_eq!(at("2026-11-01"), local(jiff::civil::datetime(2026, 11, 1, 0, 0, 0, 0)));
        assert_eq!(at("2026-11-01T09:30"), local(jiff::civil::datetime(2026, 11, 1, 9, 30, 0, 0)));
        for text in
            ["", "h", "-2h", "2y", "yesterday", "é", "9999999999999999999h", "99999999999999w"]
        {
            assert!(parse_moment(text, now).is_err(), "{text}");
        }
    }
}
