//! Position of a row in a transcript. Start at [`RowPosition`].

use std::fmt;
use std::str::FromStr;

/// Position of a row: its line, and its index in the line, in case a lost newline has joined
/// several records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct RowPosition {
    pub line: u64,
    /// Index of the record in the line.
    pub record: u32,
}

impl RowPosition {
    pub fn line_start(line: u64) -> RowPosition {
        RowPosition { line, record: 0 }
    }

    /// Returns the next possible position. Positions are only compared; there need not be a row at
    /// this one.
    pub fn after(self) -> RowPosition {
        RowPosition { line: self.line, record: self.record.saturating_add(1) }
    }
}

impl fmt::Display for RowPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.record {
            0 => write!(f, "{}", self.line),
            part => write!(f, "{}.{part}", self.line),
        }
    }
}

/// Text is not the position of a row.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text is not the position of a row")]
pub struct RowPositionParseError;

impl FromStr for RowPosition {
    type Err = RowPositionParseError;

    fn from_str(text: &str) -> Result<RowPosition, RowPositionParseError> {
        let (line, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(line) || !is_number(part) {
            return Err(RowPositionParseError);
        }
        let (line, part) = (line.parse(), part.parse());
        Ok(RowPosition {
            line: line.map_err(|_| RowPositionParseError)?,
            record: part.map_err(|_| RowPositionParseError)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_and_read_and_stand_in_order() {
        for (text, place) in [("0", (0, 0)), ("12", (12, 0)), ("12.3", (12, 3))] {
            let place = RowPosition { line: place.0, record: place.1 };
            assert_eq!(text.parse(), Ok(place));
            assert_eq!(place.to_string(), text);
        }
        for text in ["", "-1", "1.", ".1", "1.x", "+1", "99999999999999999999", "1.2.3"] {
            assert_eq!(text.parse::<RowPosition>(), Err(RowPositionParseError), "{text}");
        }
        let places = ["3", "3.1", "4"].map(|text| text.parse::<RowPosition>().unwrap());
        assert!(places.is_sorted());
        assert!(places[0].after() <= places[1] && places[1].after() <= places[2]);
    }
}
