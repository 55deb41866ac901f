//! One spelling of a moment in files and in the database.

use jiff::Timestamp;

/// Returns `2026-11-15T00:48:57.120Z`: UTC, always milliseconds, so that text order is time order.
pub fn iso_millis(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// Reads an ISO 8601 moment as any of the systems we import writes it (`Z` or an offset).
pub fn from_iso(text: &str) -> Option<Timestamp> {
    text.trim().parse().ok()
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
            assert_eq!(iso_millis(from_iso(text).unwrap()), "2024-01-19T09:00:00.000Z");
        }
        assert_eq!(from_iso("yesterday"), None);
    }
}
