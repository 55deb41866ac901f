//! Appending, tails and ranges.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write as _};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{
    PageBoundary, TranscriptRecord, TranscriptWriter, TranscriptWriterOptions, read_range,
    read_tail,
};
use serde::Deserialize;

use crate::{Bench, Figure, Goal, median};

const APPENDS: u32 = 300_000;
const NODE_APPENDS: u32 = 20_000;
const EVENT_BYTES: usize = 256;
const BIG_LINES: u64 = 10_000_000;
const BIG_LINE_BYTES: usize = 214;

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let small = lines(bench, "24mb.jsonl", 100_000, 251);
    let big = lines(bench, "2gb.jsonl", BIG_LINES, BIG_LINE_BYTES);
    vec![
        append(bench),
        tail_of(bench, &small, "24 MB", 5),
        tail_of(bench, &big, "2 GB", 1),
        ranges(bench, &big),
    ]
}

/// A file of assistant rows of a given length.
fn lines(bench: &Bench, name: &str, count: u64, bytes: usize) -> Utf8PathBuf {
    let path = bench.folder.join(name);
    let wanted = count * (bytes as u64 + 1);
    if std::fs::metadata(&path).is_ok_and(|file| file.len() == wanted) {
        return path;
    }
    let mut out = BufWriter::with_capacity(1 << 20, File::create(&path).expect("disk has space"));
    for number in 0..count {
        writeln!(out, "{}", event(number, bytes)).expect("disk has space");
    }
    out.flush().expect("disk has space");
    path
}

fn event(number: u64, bytes: usize) -> String {
    let head = format!(
        r#"{{"type":"assistant","timestamp":"2026-11-15T00:00:00.000Z","n":{number},"content":""#
    );
    format!(r#"{head}{:x<width$}"}}"#, "", width = bytes - head.len() - 2)
}

fn append(bench: &Bench) -> Figure {
    let path = bench.folder.join("append.jsonl");
    let fresh = |path: &Utf8Path| drop(std::fs::remove_file(path));
    let line = event(0, EVENT_BYTES - 1);
    fresh(&path);
    let mut log = TranscriptWriter::open(&path, TranscriptWriterOptions::default())
        .expect("log opens")
        .writer;
    let start = Instant::now();
    for _ in 0..APPENDS {
        log.append(line.as_bytes()).expect("disk has space");
    }
    log.sync().expect("disk syncs");
    let ours = start.elapsed() / APPENDS;
    fresh(&path);
    let theirs = bench.node("append.mjs", &[path.as_str(), &NODE_APPENDS.to_string(), &line]);
    fresh(&path);
    Figure {
        what: format!("append a {EVENT_BYTES}-byte event, sustained"),
        ours: ours.into(),
        goal: Goal::TimesFaster(20.0),
        alternative: Some(("node appendFile".to_owned(), theirs.into())),
    }
}

fn tail_of(bench: &Bench, path: &Utf8Path, size: &str, node_rounds: u32) -> Figure {
    let ours = median(1_000, || {
        let page = read_tail(path, 50).expect("file is there");
        assert_eq!(page.records.len(), 50);
        decode(&page.records);
    });
    let theirs = bench.node("tail.mjs", &[path.as_str(), "50", &node_rounds.to_string()]);
    Figure {
        what: format!("last 50 lines of {size}, decoded"),
        ours: ours.into(),
        goal: Goal::AtMost(Duration::from_micros(50).into()),
        alternative: Some(("node reads and parses".to_owned(), theirs.into())),
    }
}

fn ranges(bench: &Bench, path: &Utf8Path) -> Figure {
    let ours = median(2_000, || {
        let before = fastrand::u64(50..=BIG_LINES);
        let page = read_range(path, PageBoundary::Line(before), 50).expect("file is there");
        assert_eq!(page.records.len(), 50);
        decode(&page.records);
    });
    let middle = (BIG_LINES / 2).to_string();
    let theirs = bench.node("range.mjs", &[path.as_str(), &middle, "50", "1"]);
    Figure {
        what: "50 lines anywhere in 10M, decoded".to_owned(),
        ours: ours.into(),
        goal: Goal::AtMost(Duration::from_micros(100).into()),
        alternative: Some(("node reads to the middle".to_owned(), theirs.into())),
    }
}

/// A row with all its fields, as a program would hold it.
#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    timestamp: String,
    n: u64,
    content: String,
}

fn decode(records: &[TranscriptRecord]) {
    for record in records {
        let event: Event = serde_json::from_str(&record.text).expect("a record is an event");
        black_box((event.kind, event.timestamp, event.n, event.content));
    }
}
