//! A YAML or JSON mapping that people or another system wrote, read leniently.
//!
//! A field of an unexpected type counts as absent: the rest of the record is still useful, and
//! the source file is kept. Start at [`LenientRecord`].

use heeler_model::parse_iso;
use jiff::Timestamp;
use serde_json::{Map, Value};

/// Longest duration that is accepted, a thousand years, so that sums do not overflow.
pub const DURATION_MS_MAX: i64 = 1000 * 366 * 86_400_000;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct LenientRecord(Map<String, Value>);

impl LenientRecord {
    /// Parses YAML; the error is the reason for a refusal.
    pub fn yaml(text: &str) -> Result<LenientRecord, String> {
        // An empty text is valid YAML (null), but a file that a crash left empty is no record.
        if text.trim().is_empty() {
            return Err("it is empty".to_owned());
        }
        if text.contains('\0') {
            return Err("it contains NUL bytes: it was torn by a crash".to_owned());
        }
        // `yes`, `no` and `on` are strings (YAML 1.2), as in the systems that wrote them.
        let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
        let value: Value = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| format!("not YAML: {}", brief(&error)))?;
        LenientRecord::from_value(value)
    }

    /// Parses JSON; the error is the reason for a refusal.
    pub fn json(text: &str) -> Result<LenientRecord, String> {
        if text.trim().is_empty() {
            return Err("it is empty".to_owned());
        }
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("not JSON: {}", brief(&error)))?;
        LenientRecord::from_value(value)
    }

    fn from_value(value: Value) -> Result<LenientRecord, String> {
        match value {
            Value::Object(map) => Ok(LenientRecord(map)),
            _ => Err("it is not a mapping of keys to values".to_owned()),
        }
    }

    /// Returns a scalar as text; numbers and booleans as they are spelled.
    pub fn text(&self, key: &str) -> Option<String> {
        match self.0.get(key)? {
            Value::String(text) => Some(text.clone()),
            // YAML reads an unquoted name such as `123` as a number.
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            _ => None,
        }
    }

    /// Returns a scalar as non-empty text.
    pub fn filled(&self, key: &str) -> Option<String> {
        // Other programs write empty texts where they mean no value.
        self.text(key).filter(|text| !text.trim().is_empty())
    }

    pub fn time(&self, key: &str) -> Option<Timestamp> {
        parse_iso(self.0.get(key)?.as_str()?)
    }

    pub fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key)?.as_f64()
    }

    /// Returns an integer; a fraction is truncated.
    pub fn integer(&self, key: &str) -> Option<i64> {
        let value = self.0.get(key)?;
        // JavaScript has no integers, so a count may be written as `3.0`.
        value.as_i64().or_else(|| value.as_f64().map(|number| number as i64))
    }

    pub fn flag(&self, key: &str) -> Option<bool> {
        self.0.get(key)?.as_bool()
    }

    /// Returns a nested mapping.
    pub fn record(&self, key: &str) -> Option<LenientRecord> {
        Some(LenientRecord(self.0.get(key)?.as_object()?.clone()))
    }

    /// Returns the nested mappings by key; other values are skipped.
    pub fn records(&self) -> impl Iterator<Item = (&str, LenientRecord)> {
        self.0.iter().filter_map(|(key, value)| {
            Some((key.as_str(), LenientRecord(value.as_object()?.clone())))
        })
    }

    pub fn map(&self) -> &Map<String, Value> {
        &self.0
    }

    pub fn map_mut(&mut self) -> &mut Map<String, Value> {
        &mut self.0
    }
}

/// Returns the first line of an error: YAML errors have an excerpt of the source below it.
fn brief(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unquoted_times_and_words_of_yaml_1_1_stay_text() {
        let record = LenientRecord::yaml(
            "at: 2026-11-15T00:48:57.120Z\nprompt: yes\nsession_id: 1234\nshort: 12:30\n",
        )
        .unwrap();
        assert_eq!(record.time("at"), parse_iso("2026-11-15T00:48:57.120Z"));
        assert_eq!(record.text("prompt").as_deref(), Some("yes"));
        assert_eq!(record.text("session_id").as_deref(), Some("1234"));
        assert_eq!(record.text("short").as_deref(), Some("12:30"));
    }

    #[test]
    fn a_file_that_is_no_record_says_why() {
        assert_eq!(LenientRecord::yaml(" \n").unwrap_err(), "it is empty");
        assert_eq!(
            LenientRecord::yaml("- a\n").unwrap_err(),
            "it is not a mapping of keys to values"
        );
        assert!(LenientRecord::yaml("a: [1,\nb: }").unwrap_err().starts_with("not YAML: "));
        assert!(LenientRecord::yaml("a: 1\0\0").unwrap_err().contains("NUL"));
        assert!(LenientRecord::json("{\"a\":").unwrap_err().starts_with("not JSON: "));
    }
}
