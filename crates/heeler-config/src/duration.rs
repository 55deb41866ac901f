//! Durations in config values: `30s`, `1h30m`, `1.5h`, `2w`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest accepted duration; a longer one is assumed to be a typing error.
pub const CONFIG_DURATION_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

const UNITS: [(&str, u64); 6] = [
    ("w", 7 * 24 * 60 * 60 * 1000),
    ("d", 24 * 60 * 60 * 1000),
    ("h", 60 * 60 * 1000),
    ("m", 60 * 1000),
    ("s", 1000),
    ("ms", 1),
];

/// Duration, greater than zero and at most [`CONFIG_DURATION_MAX`], in whole milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigDuration(Duration);

impl ConfigDuration {
    pub fn get(self) -> Duration {
        self.0
    }

    /// Returns the duration if it is within the limits.
    pub fn from_millis(millis: u64) -> Result<ConfigDuration, &'static str> {
        let length = Duration::from_millis(millis);
        match () {
            () if length.is_zero() => Err("it must be longer than zero"),
            () if length > CONFIG_DURATION_MAX => Err("it is longer than ten years"),
            () => Ok(ConfigDuration(length)),
        }
    }
}

impl FromStr for ConfigDuration {
    type Err = &'static str;

    /// Parses numbers with units, largest unit first, each unit once. Spaces and case are ignored,
    /// and numbers may have decimals: both of herdctl's grammars are accepted.
    fn from_str(text: &str) -> Result<ConfigDuration, &'static str> {
        let text = text.trim().to_ascii_lowercase();
        if text.is_empty() {
            return Err("it is empty");
        }
        // Before parsing: a sign would be reported as a missing number.
        if text.starts_with('-') {
            return Err("it must be longer than zero");
        }
        let mut rest = text.as_str();
        let mut unit_after = 0;
        let mut millis: u64 = 0;
        while !rest.is_empty() {
            let (number, tail) = split_number(rest)?;
            let word_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
            let unit = find_unit(&tail[..word_end])?;
            // `30m 1h` is probably a mistake, and `1h 1h` certainly.
            if unit < unit_after {
                return Err("units go from large to small, each once");
            }
            unit_after = unit + 1;
            let part = scale(number, UNITS[unit].1)?;
            millis = millis.checked_add(part).ok_or("it is longer than ten years")?;
            rest = tail[word_end..].trim_start();
        }
        ConfigDuration::from_millis(millis)
    }
}

fn split_number(text: &str) -> Result<(&str, &str), &'static str> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    match end {
        0 => Err("a number comes before each unit"),
        _ => Ok((&text[..end], text[end..].trim_start())),
    }
}

fn find_unit(word: &str) -> Result<usize, &'static str> {
    match UNITS.iter().position(|(unit, _)| *unit == word) {
        Some(unit) => Ok(unit),
        None if word.is_empty() => Err("the unit is missing: s, m, h, d or w"),
        None => Err("the unit must be ms, s, m, h, d or w"),
    }
}

/// Multiplies a decimal number by an integer, exactly. A fraction of a millisecond is rejected.
fn scale(number: &str, by: u64) -> Result<u64, &'static str> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // Exact arithmetic: a rounded period would not be shown as it was written.
    let too_fine = "it is finer than a millisecond";
    let digits = fraction.trim_end_matches('0');
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err("the number is malformed");
    }
    // More digits overflow the multiplication below.
    if digits.len() > 9 {
        return Err(too_fine);
    }
    let too_long = "it is longer than ten years";
    let whole: u64 = whole.parse().map_err(|_| too_long)?;
    let base = 10_u64.pow(u32::try_from(digits.len()).map_err(|_| too_fine)?);
    let part: u64 = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| too_fine)? };
    let scaled = part.checked_mul(by).ok_or(too_fine)?;
    if scaled % base != 0 {
        return Err(too_fine);
    }
    whole.checked_mul(by).and_then(|whole| whole.checked_add(scaled / base)).ok_or(too_long)
}

impl fmt::Display for ConfigDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The longest duration is far below the limit of the type.
        let mut left = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let mut text = String::new();
        for (unit, millis) in UNITS {
            if left >= millis {
                text.push_str(&format!("{}{unit}", left / millis));
                left %= millis;
            }
        }
        f.pad(&text)
    }
}

impl fmt::Debug for ConfigDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Period({self})")
    }
}

impl Serialize for ConfigDuration {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ConfigDuration {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ConfigDuration, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let got = match text.parse::<ConfigDuration>() {
            Ok(period) => period.to_string(),
            Err(reason) => reason.to_owned(),
        };
        assert_eq!(got, expect, "{text:?}");
    }

    #[test]
    fn both_grammars_of_herdctl_and_compounds_are_read() {
        check("30s", "30s");
        check("5 m", "5m");
        check(" 5M ", "5m");
        check("1h30m", "1h30m");
        check("1h 30m", "1h30m");
        check("1.5h", "1h30m");
        check("0.25d", "6h");
        check("2w", "2w");
        check("90m", "1h30m");
        check("250ms", "250ms");
        check("1.001s", "1s1ms");
    }

    #[test]
    fn what_is_no_period_is_refused_with_the_reason() {
        check("", "it is empty");
        check("0s", "it must be longer than zero");
        check("-5m", "it must be longer than zero");
        check("5", "the unit is missing: s, m, h, d or w");
        check("5x", "the unit must be ms, s, m, h, d or w");
        check("m", "a number comes before each unit");
        check("30m1h", "units go from large to small, each once");
        check("1h1h", "units go from large to small, each once");
        check("1.2.3h", "the number is malformed");
        check(".5h", "the number is malformed");
        check("0.0001s", "it is finer than a millisecond");
        check("600w", "it is longer than ten years");
        check("99999999999999999999s", "it is longer than ten years");
        check("18446744073709551615w", "it is longer than ten years");
    }

    proptest! {
        #[test]
        fn every_period_round_trips(millis in 1..=u64::try_from(CONFIG_DURATION_MAX.as_millis()).unwrap()) {
            let period = ConfigDuration::from_millis(millis).unwrap();
            prop_assert_eq!(period.to_string().parse::<ConfigDuration>().unwrap(), period);
            let json = serde_json::to_string(&period).unwrap();
            prop_assert_eq!(serde_json::from_str::<ConfigDuration>(&json).unwrap(), period);
        }

        #[test]
        fn no_text_panics(text in "[0-9.smhdw -]{0,24}|\\PC{0,24}") {
            let _outcome = text.parse::<ConfigDuration>();
        }
    }
}
