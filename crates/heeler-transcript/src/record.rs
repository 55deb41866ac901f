//! Defines records: the one decision that every reader and the writer share.
//!
//! A line ends in a newline. It is a record if it is one JSON object (surrounding blank space is
//! dropped). Any other line is a [`TranscriptFault`], except that blank lines are neither. Two
//! kinds of damage are repaired because the outcome is certain, see [`split_line`]. Start at
//! [`TranscriptEntry`].

use memchr::memchr;
use serde::de::IgnoredAny;

/// Length limit of a line, without its newline.
///
/// The writer refuses a longer one, and readers report it as [`TranscriptFaultKind::TooLong`].
pub const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One whole JSON object of a transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranscriptRecord {
    /// Byte offset of the object in the file.
    pub offset: u64,
    /// Byte offset of the line after this record's line: the position to copy up to or continue
    /// from.
    pub next: u64,
    /// JSON text of the object.
    pub text: String,
}

/// Bytes of a transcript that are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TranscriptFault {
    /// Byte offset of the first bad byte.
    pub offset: u64,
    /// Number of bad bytes.
    pub len: u64,
    pub kind: TranscriptFaultKind,
}

/// Kind of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TranscriptFaultKind {
    /// The file's last line has no newline: it is being written, or its writer died.
    TornTail,
    /// A run of NUL bytes, as left by a power loss.
    Nul,
    NotUtf8,
    /// Text, but not whole JSON objects.
    NotAnObject,
    /// A line longer than [`LINE_BYTES_MAX`].
    TooLong,
}

/// Item found by a reader: a record, or a fault that it skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TranscriptEntry {
    Record(TranscriptRecord),
    Fault(TranscriptFault),
}

/// Returns true if `line` is exactly one JSON object.
pub(crate) fn is_record(line: &[u8]) -> bool {
    as_object(line).is_some()
}

/// Passes every record and fault of one line, given without its newline, to `found`, in order.
///
/// Glued records (a lost newline): the whole objects at the start of a line are records, because no
/// proper prefix of a record is itself a whole object; the rest is a fault. NUL runs are reported
/// and split the line. A part after a NUL run may begin inside a record, so it counts only if all
/// of it is whole objects: no proper suffix of a record is.
pub(crate) fn split_line(offset: u64, line: &[u8], found: &mut dyn FnMut(TranscriptEntry)) {
    let next = offset + line.len() as u64 + 1;
    let record = |at: usize, text: &str| {
        TranscriptEntry::Record(TranscriptRecord {
            offset: offset + at as u64,
            next,
            text: text.to_owned(),
        })
    };
    // Almost every line is one object, so this case comes before the search for damage.
    if let Some((at, text)) = as_object(line) {
        found(record(at, text));
        return;
    }
    let fault = |at: usize, len: usize, kind| {
        TranscriptEntry::Fault(TranscriptFault {
            offset: offset + at as u64,
            len: len as u64,
            kind,
        })
    };
    let mut at = 0;
    while at < line.len() {
        let nuls = line[at..].iter().take_while(|&&byte| byte == 0).count();
        if nuls > 0 {
            found(fault(at, nuls, TranscriptFaultKind::Nul));
            at += nuls;
            continue;
        }
        let part_end = memchr(0, &line[at..]).map_or(line.len(), |len| at + len);
        let (start, part) = trim(&line[at..part_end]);
        let start = at + start;
        match std::str::from_utf8(part) {
            Err(_) => found(fault(start, part.len(), TranscriptFaultKind::NotUtf8)),
            Ok(text) => {
                // The first part starts where the line starts, so its leading objects are certain.
                let objects = leading_objects(text);
                let whole = objects.last().map_or(0, |&(_, end)| end);
                // A later part may start inside a record. It counts only if it consists of whole
                // objects.
                let certain = if at == 0 || whole == text.len() { whole } else { 0 };
                for (from, to) in objects.into_iter().filter(|&(_, to)| to <= certain) {
                    found(record(start + from, &text[from..to]));
                }
                let (rest, bad) = trim(&part[certain..]);
                if !bad.is_empty() {
                    found(fault(
                        start + certain + rest,
                        bad.len(),
                        TranscriptFaultKind::NotAnObject,
                    ));
                }
            }
        }
        at = part_end;
    }
}

/// Returns the object that the whole line consists of, and its start.
fn as_object(line: &[u8]) -> Option<(usize, &str)> {
    let (start, bytes) = trim(line);
    // Arrays, numbers and strings are JSON too, but no record: rows are objects.
    if bytes.first() != Some(&b'{') {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok()?;
    // `IgnoredAny` checks the syntax without building values.
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    Some((start, text))
}

/// Returns the start and end of each whole object at the beginning of `text`.
fn leading_objects(text: &str) -> Vec<(usize, usize)> {
    let mut objects = Vec::new();
    let mut at = 0;
    loop {
        at += trim(&text.as_bytes()[at..]).0;
        // A text such as `{"a":1}2` is a record followed by a fault, so other values end the
        // search.
        if text.as_bytes().get(at) != Some(&b'{') {
            return objects;
        }
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<IgnoredAny>();
        let Some(Ok(_)) = values.next() else { return objects };
        let end = at + values.byte_offset();
        objects.push((at, end));
        at = end;
    }
}

/// Drops surrounding blank space; returns the start of the rest, and the rest.
fn trim(bytes: &[u8]) -> (usize, &[u8]) {
    let start = bytes.trim_ascii_start();
    (bytes.len() - start.len(), start.trim_ascii_end())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(line: &[u8], expect: Expect) {
        let mut shown = String::new();
        split_line(100, line, &mut |entry| match entry {
            TranscriptEntry::Record(TranscriptRecord { offset, text, .. }) => {
                shown += &format!("{offset} {text}\n");
            }
            TranscriptEntry::Fault(TranscriptFault { offset, len, kind }) => {
                shown += &format!("{offset} {kind:?} {len}\n");
            }
        });
        expect.assert_eq(&shown);
    }

    #[test]
    fn one_object_is_a_record_and_blank_space_around_it_is_dropped() {
        check(
            br#" {"a":1}  "#,
            expect![[r#"
            101 {"a":1}
        "#]],
        );
        check(
            b"{}\r",
            expect![[r#"
            100 {}
        "#]],
        );
    }

    #[test]
    fn blank_lines_are_neither_record_nor_fault() {
        check(b"", expect![""]);
        check(b" \t\r", expect![""]);
    }

    #[test]
    fn other_json_values_are_faults() {
        check(
            b"[{}]",
            expect![[r#"
            100 NotAnObject 4
        "#]],
        );
        check(
            b"12",
            expect![[r#"
            100 NotAnObject 2
        "#]],
        );
    }

    #[test]
    fn glued_records_are_recovered() {
        check(
            br#"{"a":1}{"b":2} {}"#,
            expect![[r#"
            100 {"a":1}
            107 {"b":2}
            115 {}
        "#]],
        );
    }

    #[test]
    fn a_whole_record_before_a_torn_one_is_recovered() {
        check(
            br#"{"a":1} {"b":"#,
            expect![[r#"
            100 {"a":1}
            108 NotAnObject 5
        "#]],
        );
    }

    #[test]
    fn a_record_after_a_torn_one_is_reported_since_it_could_be_a_part_of_it() {
        check(
            br#"{"a":{"b":1}"#,
            expect![[r#"
            100 NotAnObject 12
        "#]],
        );
        check(
            br#"{"text":"hal{"b":1}"#,
            expect![[r#"
            100 NotAnObject 19
        "#]],
        );
    }

    #[test]
    fn nul_runs_are_reported_and_the_record_behind_them_is_found() {
        check(
            b"\0\0\0{\"a\":1}\0",
            expect![[r#"
            100 Nul 3
            103 {"a":1}
            110 Nul 1
        "#]],
        );
    }

    #[test]
    fn the_end_of_a_record_behind_nuls_is_not_taken_for_a_record() {
        check(
            b"\0{\"b\":1}}",
            expect![[r#"
            100 Nul 1
            101 NotAnObject 8
        "#]],
        );
    }

    #[test]
    fn invalid_utf8_is_a_fault_even_inside_a_string() {
        check(
            b"{\"a\":\"\xff\"}",
            expect![[r#"
            100 NotUtf8 9
        "#]],
        );
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
        assert!(is_record(deep.as_bytes()));
        assert!(!is_record(&deep.as_bytes()[..deep.len() - 1]));
    }
}
