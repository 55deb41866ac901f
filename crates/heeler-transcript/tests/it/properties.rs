//! What holds for readers whatever bytes a file has. Property tests and the fuzzer check the same.

use camino::Utf8Path;
use heeler_transcript::{
    PageBoundary, TailRepair, TranscriptEntry, TranscriptFault, TranscriptFaultKind,
    TranscriptPage, TranscriptRecord, TranscriptScanner, TranscriptWriter, TranscriptWriterOptions,
    count_lines, read_range, read_tail,
};

/// Writes the bytes to a file in the folder and checks every reader, and the repair, on it.
pub(crate) fn check_readers(folder: &Utf8Path, bytes: &[u8]) {
    let path = folder.join("soup.jsonl");
    std::fs::write(&path, bytes).unwrap();
    let entries: Vec<TranscriptEntry> =
        TranscriptScanner::open(&path).unwrap().map(Result::unwrap).collect();
    check_coverage(bytes, &entries);
    check_good_lines_are_found(bytes, &entries);
    let (records, faults) = split(&entries);
    let line_starts: Vec<u64> = line_starts(bytes);
    assert_eq!(count_lines(&path).unwrap(), line_starts.len() as u64 - 1);
    for n in [0, 1, 2, records.len(), usize::MAX] {
        check_page(&read_tail(&path, n).unwrap(), &records, &faults, n, u64::MAX);
    }
    let middle = line_starts.len() / 2;
    for number in [0, 1, middle, line_starts.len() - 1, line_starts.len() + 7] {
        let end = line_starts.get(number).or(line_starts.last()).copied().unwrap();
        let page = read_range(&path, PageBoundary::Line(number as u64), 2).unwrap();
        assert_eq!(page.end, end);
        check_page(&page, &records, &faults, 2, end);
        assert_eq!(read_range(&path, PageBoundary::Offset(end), 2).unwrap(), page);
    }
    check_paging(&path, &records, &faults);
    check_repair(&path, bytes, &records, &faults);
}

/// Every byte that is not blank is in exactly one record or fault, and records are what they say.
fn check_coverage(bytes: &[u8], entries: &[TranscriptEntry]) {
    let mut at = 0;
    for entry in entries {
        let (offset, len) = match entry {
            TranscriptEntry::Record(record) => (record.offset, record.text.len() as u64),
            TranscriptEntry::Fault(fault) => (fault.offset, fault.len),
        };
        let (start, end) =
            (usize::try_from(offset).unwrap(), usize::try_from(offset + len).unwrap());
        assert!(at <= start && len > 0, "entries overlap or are empty");
        assert!(bytes[at..start].iter().all(u8::is_ascii_whitespace), "bytes are passed over");
        if let TranscriptEntry::Record(record) = entry {
            assert_eq!(&bytes[start..end], record.text.as_bytes());
            assert!(record.text.starts_with('{'), "a record is not an object");
            serde_json::from_str::<&serde_json::value::RawValue>(&record.text).unwrap();
            assert_eq!(bytes[usize::try_from(record.next).unwrap() - 1], b'\n');
            assert!(!record.text.contains('\n'), "a record is not in one line");
        }
        at = end;
    }
    assert!(bytes[at..].iter().all(u8::is_ascii_whitespace), "bytes are passed over at the end");
}

/// A line that another parser takes for an object is found, whatever is around it.
fn check_good_lines_are_found(bytes: &[u8], entries: &[TranscriptEntry]) {
    let mut offset = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        if line.ends_with(b"\n")
            && let Ok(serde_json::Value::Object(_)) = serde_json::from_slice(line)
        {
            let text = line.trim_ascii();
            let is_it = |entry: &TranscriptEntry| {
                matches!(entry, TranscriptEntry::Record(TranscriptRecord { text: found, next, .. })
                if found.as_bytes() == text && *next == (offset + line.len()) as u64)
            };
            assert!(entries.iter().any(is_it), "a good line is not found");
        }
        offset += line.len();
    }
}

/// A page holds the last `n` records before `end`, and the faults between.
fn check_page(
    page: &TranscriptPage,
    records: &[TranscriptRecord],
    faults: &[TranscriptFault],
    n: usize,
    end: u64,
) {
    let before: Vec<&TranscriptRecord> =
        records.iter().filter(|record| record.offset < end).collect();
    let mut first = before.len().saturating_sub(n);
    // A line is not split between pages.
    while n > 0 && first > 0 && before[first - 1].next == before[first].next {
        first -= 1;
    }
    let expected = &before[first..];
    assert!(page.records.iter().eq(expected.iter().copied()));
    let in_page = |fault: &&TranscriptFault| match fault.kind {
        TranscriptFaultKind::TornTail => page.end == fault.offset,
        _ => fault.offset >= page.start && fault.offset < page.end,
    };
    assert!(page.faults.iter().eq(faults.iter().filter(in_page)));
}

/// Going back page by page shows everything once.
fn check_paging(path: &Utf8Path, records: &[TranscriptRecord], faults: &[TranscriptFault]) {
    let (mut shown, mut skipped) = (Vec::new(), Vec::new());
    let mut before = PageBoundary::End;
    loop {
        let mut page = read_range(path, before, 3).unwrap();
        page.records.reverse();
        page.faults.reverse();
        shown.append(&mut page.records);
        skipped.append(&mut page.faults);
        if page.start == 0 {
            break;
        }
        assert!(page.start < page.end, "paging does not get on");
        before = PageBoundary::Offset(page.start);
    }
    assert!(shown.iter().rev().eq(records));
    assert!(skipped.iter().rev().eq(faults));
}

/// After a repair everything that was readable still is, and the next append is clean.
fn check_repair(
    path: &Utf8Path,
    bytes: &[u8],
    records: &[TranscriptRecord],
    faults: &[TranscriptFault],
) {
    let opened = TranscriptWriter::open(path, TranscriptWriterOptions::default()).unwrap();
    let torn = faults.last().filter(|fault| fault.kind == TranscriptFaultKind::TornTail);
    let whole = torn.map_or(bytes.len(), |fault| usize::try_from(fault.offset).unwrap());
    let mut log = opened.writer;
    let completed = match &opened.repair {
        None => {
            assert_eq!(torn, None);
            0
        }
        Some(TailRepair::NewlineAdded { offset }) => {
            assert_eq!(*offset, whole as u64);
            1
        }
        Some(TailRepair::TornTailMoved { offset, saved_to: kept, .. }) => {
            assert_eq!(*offset, whole as u64);
            assert_eq!(std::fs::read(kept).unwrap(), &bytes[whole..]);
            std::fs::remove_file(kept).unwrap();
            0
        }
    };
    log.append(br#"{"appended":true}"#).unwrap();
    let written = std::fs::read(path).unwrap();
    assert_eq!(&written[..whole], &bytes[..whole]);
    let entries: Vec<TranscriptEntry> =
        TranscriptScanner::open(path).unwrap().map(Result::unwrap).collect();
    let (after, faults_after) = split(&entries);
    assert_eq!(after.len(), records.len() + completed + 1);
    assert_eq!(&after[..records.len()], records);
    assert_eq!(after.last().unwrap().text, r#"{"appended":true}"#);
    assert_eq!(faults_after.len(), faults.len() - usize::from(torn.is_some()));
}

fn split(entries: &[TranscriptEntry]) -> (Vec<TranscriptRecord>, Vec<TranscriptFault>) {
    let (mut records, mut faults) = (Vec::new(), Vec::new());
    for entry in entries {
        match entry {
            TranscriptEntry::Record(record) => records.push(record.clone()),
            TranscriptEntry::Fault(fault) => faults.push(*fault),
        }
    }
    (records, faults)
}

/// Where each line starts, and where the next one would.
fn line_starts(bytes: &[u8]) -> Vec<u64> {
    let newlines = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    std::iter::once(0).chain(newlines.map(|(at, _)| at as u64 + 1)).collect()
}
