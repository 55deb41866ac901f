//! Rows of a job's transcript by line number.

use camino::Utf8Path;
use heeler_transcript::{PageBoundary, ReverseTranscriptReader, count_lines, read_range};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError};

/// Maximum number of bytes of text on a page; a page ends early when it is reached.
// A page is held in memory and sent as one reply.
pub const ROWS_BYTES_MAX: usize = 4 << 20;

/// Page of a row list.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowListQuery {
    /// Only rows of lines before this number.
    pub before: Option<u64>,
    /// Only rows of lines after this number; returns the first of them instead of the last.
    pub after: Option<u64>,
    /// Maximum number of lines.
    pub limit: u64,
}

/// Rows of a transcript, oldest first.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RowPage {
    /// Job ID.
    pub job: String,
    /// Rows. A damaged or empty line has a number, but no row.
    pub rows: Vec<NumberedRow>,
    /// Number of lines in the transcript.
    pub lines: u64,
    /// Value of `before` for the previous page; absent at the beginning.
    pub previous: Option<u64>,
    /// Value of `after` for the next page; absent at the end, where more rows may follow later.
    pub next: Option<u64>,
}

/// A row with its line number.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NumberedRow {
    /// Line number, counted from 0.
    pub line: u64,
    /// The row as written.
    #[schema(value_type = Object)]
    pub row: Box<RawValue>,
}

/// Lines of a page: `from` inclusive, `to` exclusive.
struct RowPageRange {
    from: u64,
    to: u64,
}

impl RowListQuery {
    fn line_range(&self, lines: u64) -> RowPageRange {
        // A client may ask for lines beyond the end.
        let most = self.before.unwrap_or(lines).min(lines);
        match self.after {
            Some(after) => {
                let from = after.saturating_add(1).min(most);
                RowPageRange { from, to: from.saturating_add(self.limit).min(most) }
            }
            None => RowPageRange { from: most.saturating_sub(self.limit), to: most },
        }
    }
}

/// Reads a page of rows.
pub(crate) fn read_rows(
    log: &Utf8Path,
    job: &str,
    wanted: RowListQuery,
) -> Result<RowPage, QueryError> {
    // A queued job has no transcript yet, which is an empty page and no error.
    let lines = if log.is_file() { count_lines(log)? } else { 0 };
    let mut span = wanted.line_range(lines);
    let mut rows = Vec::new();
    if span.from < span.to {
        // Read backwards, so that a page ends with the newest row that fits the byte limit.
        let first = read_backwards(log, &mut rows, &span)?;
        if first > span.from && wanted.after.is_some() {
            // A forward page must start with the first row, but the backward read reached the byte
            // limit before it. Shorter pages are tried until the first row is included.
            while halve_and_read(log, &mut rows, &mut span)? {}
        } else {
            span.from = first;
        }
    }
    rows.reverse();
    let job = job.to_owned();
    let previous = Some(span.from).filter(|from| *from > 0);
    // `after` is exclusive, so an empty page at line 0 has no valid `after`.
    let next = span.to.checked_sub(1).filter(|_| span.to < lines);
    Ok(RowPage { job, rows, lines, previous, next })
}

/// Halves a page that is too long and reads it. Returns true if it is still too long.
fn halve_and_read(
    log: &Utf8Path,
    rows: &mut Vec<NumberedRow>,
    span: &mut RowPageRange,
) -> Result<bool, QueryError> {
    span.to = span.from + (span.to - span.from).div_ceil(2);
    rows.clear();
    Ok(read_backwards(log, rows, span)? > span.from)
}

/// Reads the rows of a range from the end backwards, up to the byte limit. Returns the first line
/// that was read. The last line is read regardless of its length.
fn read_backwards(
    log: &Utf8Path,
    rows: &mut Vec<NumberedRow>,
    span: &RowPageRange,
) -> Result<u64, QueryError> {
    let end = read_range(log, PageBoundary::Line(span.to), 0)?.end;
    let mut back = ReverseTranscriptReader::open_before(log, end)?;
    let (mut line, mut bytes) = (span.to, 0);
    while line > span.from
        && let Some(raw) = back.next_line()?
    {
        bytes += raw.bytes.len();
        if bytes > ROWS_BYTES_MAX && line < span.to {
            break;
        }
        line -= 1;
        // Glued records of one line keep their order when the page is reversed.
        for record in raw.records().into_iter().rev() {
            // Kept as text, so that unknown fields reach the client unchanged.
            let row = RawValue::from_string(record.text).ok();
            rows.extend(row.map(|row| NumberedRow { line, row }));
        }
    }
    Ok(line)
}

impl FleetReader {
    /// Reads rows of a job by a unique ID prefix.
    pub fn rows(&self, job: &str, wanted: RowListQuery) -> Result<RowPage, QueryError> {
        let reader = self.reader()?;
        let job = reader.find_job(job)?;
        let log = self.job_transcript_path(&reader, &job.head)?;
        // The reader goes back to the pool before the file is read.
        drop(reader);
        let id = job.head.id.as_str();
        match log {
            Some(log) => read_rows(&log, id, wanted),
            None => read_rows(Utf8Path::new(""), id, wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, wanted: RowListQuery) -> (Vec<u64>, Option<u64>, Option<u64>) {
        let temp = tempfile::tempdir().unwrap();
        let log = Utf8Path::from_path(temp.path()).unwrap().join("a.jsonl");
        std::fs::write(&log, text).unwrap();
        let page = read_rows(&log, "job", wanted).unwrap();
        (page.rows.iter().map(|row| row.line).collect(), page.previous, page.next)
    }

    fn wanted(before: Option<u64>, after: Option<u64>, limit: u64) -> RowListQuery {
        RowListQuery { before, after, limit }
    }

    const TEN: &str = "{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n";

    #[test]
    fn the_last_rows_come_first_and_then_those_before_them() {
        assert_eq!(check(TEN, wanted(None, None, 3)), (vec![7, 8, 9], Some(7), None));
        assert_eq!(check(TEN, wanted(Some(7), None, 3)), (vec![4, 5, 6], Some(4), Some(6)));
        assert_eq!(check(TEN, wanted(Some(2), None, 3)), (vec![0, 1], None, Some(1)));
        assert_eq!(check(TEN, wanted(Some(99), None, 1)), (vec![9], Some(9), None));
        assert_eq!(check(TEN, wanted(Some(0), None, 1)), (vec![], None, None));
    }

    #[test]
    fn rows_behind_one_are_read_from_the_first_of_them() {
        assert_eq!(check(TEN, wanted(None, Some(3), 2)), (vec![4, 5], Some(4), Some(5)));
        assert_eq!(check(TEN, wanted(None, Some(9), 2)), (vec![], Some(10), None));
        assert_eq!(check(TEN, wanted(Some(6), Some(3), 9)), (vec![4, 5], Some(4), Some(5)));
        assert_eq!(check(TEN, wanted(None, Some(u64::MAX), 2)), (vec![], Some(10), None));
    }

    #[test]
    fn damaged_and_empty_lines_have_numbers_and_no_rows() {
        let text = "{}\n\nnot json\n{\"a\":1}{\"b\":2}\n{}\n{\"torn";
        assert_eq!(check(text, wanted(None, None, 9)), (vec![0, 3, 3, 4], None, None));
        assert_eq!(check(text, wanted(None, Some(0), 2)), (vec![], Some(1), Some(2)));
    }

    #[test]
    fn a_page_of_long_rows_ends_early_and_nothing_is_passed_over() {
        let row = format!("{{\"a\":\"{}\"}}\n", "x".repeat(ROWS_BYTES_MAX / 3));
        let text = row.repeat(10);
        let (lines, previous, next) = check(&text, wanted(None, None, 10));
        assert_eq!((lines, previous, next), (vec![8, 9], Some(8), None));
        let mut seen = vec![0];
        let mut after = Some(0);
        while let Some(line) = after {
            let (lines, _, next) = check(&text, wanted(None, Some(line), 10));
            seen.extend(lines);
            after = next;
        }
        assert_eq!(seen, (0..10).collect::<Vec<u64>>());
        let huge = format!("{{\"a\":\"{}\"}}\n", "x".repeat(ROWS_BYTES_MAX + 1));
        assert_eq!(check(&huge, wanted(None, None, 5)).0, [0], "one row is always read");
    }
}
