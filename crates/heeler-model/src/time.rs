//! Spelling of timestamps in files and in the database.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Smallest number of digits in a millisecond count, so that a year is not one: 1973 and later.
const MILLIS_DIGITS_MIN: usize = 12;

/// Formats a timestamp as `2026-11-15T00:48:57.120Z`: UTC with milliseconds, so that text order is
/// time order.
pub fn iso_millis(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// Parses an ISO 8601 timestamp of any imported system (`Z` or an offset).
pub fn parse_iso(text: &str) -> Option<Timestamp> {
    text.trim().parse().ok()
}

/// Parses a timestamp of another system's database: also without a zone, as SQLite writes UTC, and
/// as a millisecond count, as JavaScript does.
pub fn parse_foreign_time(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let in_utc = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    let millis = || {
        let is_count = text.len() >= MILLIS_DIGITS_MIN && text.bytes().all(|c| c.is_ascii_digit());
        Timestamp::from_millisecond(text.parse().ok().filter(|_| is_count)?).ok()
    };
    parse_iso(text).or_else(millis).or_else(|| Some(in_utc()?.timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_spelled_with_milliseconds_and_read_in_every_foreign_form() {
        for text in [
            "2024-01-19T09:00:00Z",
            "2024-01-19T09:00:00.000Z",
            "2024-01-19T10:00:00+01:00",
            "2024-01-19T09:00:00.000123Z",
        ] {
            assert_eq!(iso_millis(parse_iso(text).unwrap()), "2024-01-19T09:00:00.000Z");
        }
        assert_eq!(parse_iso("yesterday"), None);
    }

    #[test]
    fn a_moment_of_a_foreign_database_may_have_no_zone_or_be_a_count() {
        for text in ["2024-01-19 09:00:00", "2024-01-19T09:00:00.000", "1705654800000"] {
            assert_eq!(parse_iso(text), None, "{text}");
            assert_eq!(iso_millis(parse_foreign_time(text).unwrap()), "2024-01-19T09:00:00.000Z");
        }
        assert_eq!(
            parse_foreign_time("2024-01-19T10:00:00+01:00"),
            parse_iso("2024-01-19T09:00:00Z")
        );
        for text in ["yesterday", "", "2024", "99999999999999999999"] {
            assert_eq!(parse_foreign_time(text), None, "{text:?}");
        }
    }
}
