//! Tests of feeds with real files and sockets.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};

use camino::Utf8Path;
use heeler_model::run::{PROTOCOL, file};
use heeler_transcript::LockHolder;
use serde_json::json;

use super::*;

/// Limit of every wait.
const WAIT_MAX: Duration = Duration::from_secs(60);

struct FeedFixture {
    temp: tempfile::TempDir,
    feed: JobFeed,
}

impl FeedFixture {
    fn new(from: u64) -> FeedFixture {
        let temp = tempfile::tempdir().unwrap();
        let dir = StateDir::create(Utf8Path::from_path(temp.path()).unwrap()).unwrap();
        std::fs::create_dir_all(dir.root().join("jobs")).unwrap();
        let job = JobId::mint(Timestamp::UNIX_EPOCH, 0);
        FeedFixture { temp, feed: JobFeed::new(dir, job, from) }
    }

    fn append(&self, rows: std::ops::Range<u64>) {
        let mut options = std::fs::OpenOptions::new();
        let path = self.feed.dir.job_transcript(&self.feed.job);
        let mut log = options.create(true).append(true).open(path).unwrap();
        rows.for_each(|row| writeln!(log, "{}", numbered_row(row).as_json()).unwrap());
    }

    /// Reads the file, as the transcript's follower does when it is woken.
    fn read(&mut self) {
        self.feed.transcript.check_file();
        while let Some(event) = self.feed.transcript.next(Duration::ZERO) {
            self.feed.handle_transcript_event(event);
        }
    }

    fn announce(&mut self, line: u64, row: JobRow) {
        self.read();
        self.feed.handle_transcript_event(TranscriptFeedEvent::RowAnnounced { line, row });
    }

    fn say(&mut self, from: u64, line: Option<u64>, text: &str) {
        let text = text.to_owned();
        self.feed.handle_delta(text, Some(from), line);
    }

    #[track_caller]
    fn check(&mut self, expected: &str) {
        let shown: Vec<String> = self.feed.pending.drain(..).map(|event| shown(&event)).collect();
        assert_eq!(shown.join(" "), expected);
    }
}

fn numbered_row(number: u64) -> JobRow {
    JobRow::new(json!({ "n": number }))
}

fn said() -> JobRow {
    JobRow::new(json!({"type": "assistant"}))
}

fn shown(event: &JobFeedEvent) -> String {
    match event {
        JobFeedEvent::Row(at, row) if row.number("n") == Some(*at) => at.to_string(),
        JobFeedEvent::RepeatedRow(..) => "repeated".to_owned(),
        JobFeedEvent::Delta(text) => text.clone(),
        JobFeedEvent::Lagged => "lagged".to_owned(),
        JobFeedEvent::RunEnded => "end".to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn rows_from_before_are_read_and_those_that_are_announced_are_not_repeated() {
    let mut rig = FeedFixture::new(0);
    rig.append(0..4);
    for line in [1, 2, 3] {
        rig.announce(line, numbered_row(line));
    }
    rig.say(0, Some(4), "piece");
    rig.check("0 1 2 3 piece");
}

#[test]
fn rows_that_the_follower_knows_are_not_shown_again() {
    let mut rig = FeedFixture::new(2);
    rig.append(0..4);
    rig.read();
    rig.check("2 3");
}

#[test]
fn words_are_told_from_their_beginning_or_not_at_all() {
    let mut rig = FeedFixture::new(0);
    // The follower has come in the middle of a text.
    rig.say(4, None, "middle");
    rig.say(10, None, "end");
    rig.say(0, None, "one");
    rig.say(3, None, "two");
    // Something was left out.
    rig.say(9, None, "lost");
    rig.check("one two");
}

#[test]
fn words_of_a_row_that_is_shown_are_not_told_or_end_with_it() {
    let mut rig = FeedFixture::new(0);
    rig.append(0..2);
    rig.read();
    rig.say(0, Some(1), "late");
    // Before the first announced row, nobody knows to which row the words belong.
    rig.say(0, None, "unknown");
    rig.announce(1, said());
    rig.announce(1, said());
    rig.say(0, Some(2), "next");
    rig.check("0 1 unknown repeated next");
}

#[test]
fn a_replaced_file_repeats_no_row() {
    let mut rig = FeedFixture::new(0);
    rig.append(0..2);
    rig.read();
    let path = rig.feed.dir.job_transcript(&rig.feed.job);
    let copy = path.with_extension("new");
    std::fs::copy(&path, &copy).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    rig.append(2..3);
    rig.read();
    rig.check("0 1 2");
}

#[test]
fn an_abandoned_job_without_a_run_ends_after_its_rows() {
    let mut rig = FeedFixture::new(0);
    rig.append(0..2);
    rig.feed.handle().abandon();
    let mut told = Vec::new();
    while !rig.feed.is_over() {
        told.extend(rig.feed.next(WAIT_MAX).map(|event| shown(&event)));
    }
    assert_eq!(told, ["0", "1", "Ended(Abandoned)"]);
    assert!(rig.feed.next(WAIT_MAX).is_none());
}

#[test]
fn a_run_without_a_socket_is_followed_by_its_file_to_the_end() {
    let mut rig = FeedFixture::new(0);
    rig.append(0..2);
    let folder = Utf8Path::from_path(rig.temp.path()).unwrap().join("run");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join(file::RESULT), "{}").unwrap();
    rig.feed.transcript.follow_run(&folder);
    let mut told = Vec::new();
    while told.last().is_none_or(|last| last != "end") {
        told.extend(rig.feed.next(WAIT_MAX).map(|event| shown(&event)));
    }
    assert_eq!(told, ["0", "1", "end"]);
}

/// A runner that is alive and accepts one subscriber.
fn start_runner(folder: &Utf8Path) -> (LockFile, UnixListener) {
    std::fs::create_dir(folder).unwrap();
    let holder = LockHolder::this_process("runner", Timestamp::UNIX_EPOCH);
    let lock = LockFile::acquire(&folder.join(file::LOCK), &holder, Duration::ZERO).unwrap();
    let socket = folder.join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let started = json!({"protocol": PROTOCOL, "run": uuid::Uuid::nil(), "pid": 1,
        "at": "2026-01-01T00:00:00Z", "session": uuid::Uuid::nil(), "session_log": "x",
        "socket": socket, "cgroup": null, "job_rows_before": 0, "session_rows_before": 0});
    std::fs::write(folder.join(file::STARTED), started.to_string()).unwrap();
    (lock, listener)
}

fn accept(listener: &UnixListener) -> UnixStream {
    let mut subscriber = BufReader::new(listener.accept().unwrap().0);
    subscriber.read_line(&mut String::new()).unwrap();
    let reply = json!({"protocol": PROTOCOL, "id": 1, "reply": "done"});
    let mut subscriber = subscriber.into_inner();
    writeln!(subscriber, "{reply}").unwrap();
    subscriber
}

#[test]
fn a_lost_connection_loses_no_row() {
    let mut rig = FeedFixture::new(0);
    let folder = Utf8Path::from_path(rig.temp.path()).unwrap().join("run");
    let (lock, listener) = start_runner(&folder);
    rig.feed.transcript = TranscriptFeed::new(FeedStart::Beginning, StateReports::NotRequested);
    rig.feed.transcript.open_file(&rig.feed.dir.job_transcript(&rig.feed.job));
    rig.feed.transcript.follow_run(&folder);
    let mut told = Vec::new();
    let mut read_until = |rig: &mut FeedFixture, end: &str| {
        while told.last().is_none_or(|last: &String| last != end) {
            told.extend(rig.feed.next(WAIT_MAX).map(|event| shown(&event)));
        }
    };
    let mut first = accept(&listener);
    writeln!(first, "{}", json!({"event": "delta", "text": "a", "from": 0})).unwrap();
    read_until(&mut rig, "a");
    rig.append(0..2);
    read_until(&mut rig, "1");
    drop(first);
    rig.append(2..4);
    read_until(&mut rig, "3");
    let mut second = accept(&listener);
    rig.append(4..6);
    writeln!(second, "{}", json!({"event": "lagged"})).unwrap();
    writeln!(second, "{}", json!({"event": "row", "at": 5, "row": {"n": 5}})).unwrap();
    read_until(&mut rig, "5");
    rig.append(6..7);
    drop((second, listener, lock));
    read_until(&mut rig, "end");
    // The fixture has no daemon.
    told.retain(|event| !["lagged", "Unattended"].contains(&event.as_str()));
    assert_eq!(told, ["a", "0", "1", "2", "3", "4", "5", "6", "end"]);
}
