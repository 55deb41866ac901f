//! Hash of a native session's content, by which a change of it is noticed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// SHA-256 of the first bytes of a native session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativePrefixHash(pub [u8; 32]);

impl fmt::Display for NativePrefixHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for NativePrefixHash {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<NativePrefixHash, &'static str> {
        const REASON: &str = "it is no SHA-256 in hexadecimal digits";
        let mut hash = [0; 32];
        if text.len() != 2 * hash.len() || !text.is_ascii() {
            return Err(REASON);
        }
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| REASON)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| REASON)?;
        }
        Ok(NativePrefixHash(hash))
    }
}

impl Serialize for NativePrefixHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NativePrefixHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NativePrefixHash, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_its_hexadecimal_digits() {
        let hash = NativePrefixHash(std::array::from_fn(|at| at as u8));
        let text = hash.to_string();
        assert!(text.starts_with("000102") && text.ends_with("1f"), "{text}");
        assert_eq!(text.parse(), Ok(hash));
        assert_eq!(serde_json::to_string(&hash).unwrap(), format!("\"{text}\""));
        for wrong in ["", "00", &text[1..], &text.replace('f', "g"), &"é".repeat(32)] {
            assert!(wrong.parse::<NativePrefixHash>().is_err(), "{wrong}");
        }
    }
}
