//! Pages: tail, range and count agree with a full read.

use camino::Utf8Path;
use heeler_transcript::{PageBoundary, TranscriptFaultKind, count_lines, read_range, read_tail};

use crate::{folder, texts};

fn write_lines(path: &Utf8Path, lines: u64) {
    let text: String = (0..lines).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    std::fs::write(path, text).unwrap();
}

#[test]
fn the_tail_is_the_last_records_and_a_torn_line_is_reported() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    std::fs::write(&path, "{\"n\":1}\ngarbage\n\n{\"n\":2}\n{\"n\":3}\n{\"n\"").unwrap();
    let page = read_tail(&path, 2).unwrap();
    assert_eq!(texts(&page.records), [r#"{"n":2}"#, r#"{"n":3}"#]);
    assert_eq!((page.start, page.end), (17, 33));
    assert_eq!(page.faults.len(), 1);
    assert_eq!((page.faults[0].offset, page.faults[0].kind), (33, TranscriptFaultKind::TornTail));
    let page = read_range(&path, PageBoundary::Offset(page.start), 5).unwrap();
    assert_eq!(texts(&page.records), [r#"{"n":1}"#]);
    assert_eq!((page.faults[0].offset, page.faults[0].len), (8, 7));
    assert_eq!((page.start, page.end), (0, 17));
}

#[test]
fn lines_are_numbered_from_zero() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    write_lines(&path, 5000);
    assert_eq!(count_lines(&path).unwrap(), 5000);
    let page = read_range(&path, PageBoundary::Line(3000), 2).unwrap();
    assert_eq!(texts(&page.records), [r#"{"n":2998}"#, r#"{"n":2999}"#]);
    assert_eq!(read_range(&path, PageBoundary::Line(0), 2).unwrap().records, []);
    assert_eq!(
        read_range(&path, PageBoundary::Line(9999), 2).unwrap(),
        read_tail(&path, 2).unwrap()
    );
}

#[test]
fn an_empty_file_has_an_empty_page_and_a_missing_one_is_an_error() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    let error = read_tail(&path, 1).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot open {path}"));
    std::fs::write(&path, "").unwrap();
    let page = read_tail(&path, 1).unwrap();
    assert_eq!((page.records.len(), page.faults.len(), page.start, page.end), (0, 0, 0, 0));
    assert_eq!(count_lines(&path).unwrap(), 0);
}
