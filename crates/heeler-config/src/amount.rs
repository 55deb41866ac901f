//! Amounts in config values: byte sizes (`512m`, `2g`) and US dollars (`2.50`).

use std::fmt;
use std::str::FromStr;

/// Largest byte size: 1024 tebibytes.
pub const SIZE_MAX: u64 = 1 << 50;

const SIZE_UNITS: [(char, u64); 4] =
    [('t', 1 << 40), ('g', 1 << 30), ('m', 1 << 20), ('k', 1 << 10)];

/// Number of bytes, greater than zero and at most [`SIZE_MAX`]. Units are powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl ByteSize {
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<ByteSize, &'static str> {
        let text = text.trim().to_ascii_lowercase();
        // Both `2g` and `2gb` are common.
        let text = text.strip_suffix('b').unwrap_or(&text);
        let (number, unit) = match SIZE_UNITS.iter().find(|(unit, _)| text.ends_with(*unit)) {
            Some((unit, bytes)) => (&text[..text.len() - unit.len_utf8()], *bytes),
            None => (text, 1),
        };
        // Thousandths, so that `1.5g` is exact.
        let bytes = parse_fixed_point(number.trim_end(), 3).ok_or("a number and k, m, g or t")?;
        let bytes = bytes.checked_mul(unit).ok_or("it is larger than 1024t")? / 1000;
        match bytes {
            0 => Err("it must be more than zero"),
            // The pattern needs a constant; the condition excludes the limit itself.
            SIZE_MAX.. if bytes > SIZE_MAX => Err("it is larger than 1024t"),
            _ => Ok(ByteSize(bytes)),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The largest unit without a remainder, so that reading it again gives the same size.
        match SIZE_UNITS.iter().find(|(_, bytes)| self.0.is_multiple_of(*bytes)) {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Largest amount in US dollars.
pub const USD_MAX: u64 = 1_000_000;

/// US dollars, greater than zero and at most [`USD_MAX`], stored in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UsdAmount(u64);

impl UsdAmount {
    /// Returns an amount in millionths of a dollar; `None` if it is zero or too large.
    pub(crate) fn from_micros(micros: u64) -> Option<UsdAmount> {
        (micros > 0 && micros <= USD_MAX * 1_000_000).then_some(UsdAmount(micros))
    }

    /// Returns the amount in millionths of a dollar.
    pub fn micros(self) -> u64 {
        self.0
    }
}

impl FromStr for UsdAmount {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<UsdAmount, &'static str> {
        let text = text.trim();
        let number = text.strip_prefix('$').unwrap_or(text);
        let micros = parse_fixed_point(number, 6).ok_or("an amount in US dollars such as 2.50")?;
        match micros {
            0 => Err("it must be more than zero"),
            micros if micros > USD_MAX * 1_000_000 => Err("it is more than a million dollars"),
            micros => Ok(UsdAmount(micros)),
        }
    }
}

impl fmt::Display for UsdAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000);
        // An amount is shown as a person would write it.
        let short = text.trim_end_matches('0').trim_end_matches('.');
        f.pad(short)
    }
}

/// Parses a decimal number as an integer multiple of 10^-`places`. More decimals are rejected; a
/// number too large for the type becomes its largest value.
fn parse_fixed_point(text: &str, places: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > places {
        return None;
    }
    // Only digits are left, so parsing fails only if the number is too large; the caller's limit
    // then rejects it.
    Some(format!("{whole}{fraction:0<places$}").parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check<T: FromStr<Err = &'static str> + fmt::Display>(text: &str, expect: &str) {
        let got = match text.parse::<T>() {
            Ok(value) => value.to_string(),
            Err(reason) => reason.to_owned(),
        };
        assert_eq!(got, expect, "{text:?}");
    }

    #[test]
    fn sizes_are_counted_in_1024s() {
        check::<ByteSize>("512m", "512m");
        check::<ByteSize>("2G", "2g");
        check::<ByteSize>("1024 k", "1m");
        check::<ByteSize>("1.5g", "1536m");
        check::<ByteSize>("4096", "4k");
        check::<ByteSize>("100b", "100");
        check::<ByteSize>("10MB", "10m");
        check::<ByteSize>("10 kb", "10k");
        check::<ByteSize>("10bb", "a number and k, m, g or t");
        check::<ByteSize>("0m", "it must be more than zero");
        check::<ByteSize>("2000t", "it is larger than 1024t");
        check::<ByteSize>("99999999999999999t", "it is larger than 1024t");
        check::<ByteSize>("lots", "a number and k, m, g or t");
        check::<ByteSize>("-1g", "a number and k, m, g or t");
        check::<ByteSize>("1gg", "a number and k, m, g or t");
    }

    #[test]
    fn money_is_exact() {
        check::<UsdAmount>("5", "5");
        check::<UsdAmount>("$2.50", "2.5");
        check::<UsdAmount>("0.000001", "0.000001");
        check::<UsdAmount>("0", "it must be more than zero");
        check::<UsdAmount>("-1", "an amount in US dollars such as 2.50");
        check::<UsdAmount>("1e3", "an amount in US dollars such as 2.50");
        check::<UsdAmount>("2000000", "it is more than a million dollars");
    }

    proptest! {
        #[test]
        fn every_size_and_amount_round_trips(bytes in 1..=SIZE_MAX, micros in 1..=USD_MAX * 1_000_000) {
            prop_assert_eq!(ByteSize(bytes).to_string().parse::<ByteSize>(), Ok(ByteSize(bytes)));
            prop_assert_eq!(UsdAmount(micros).to_string().parse::<UsdAmount>(), Ok(UsdAmount(micros)));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}|[0-9.kmgtb]{0,24}") {
            let _outcomes = (text.parse::<ByteSize>(), text.parse::<UsdAmount>());
        }
    }
}
