//! Tests of live streams with real files.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use heeler_query::job_feed::RowPosition;
use tokio::sync::watch;

use super::event::{HEARTBEAT, RETRY_DIRECTIVE, RowFormat, StreamRow, encode_event};
use super::hub::{BUFFER_BYTES_MAX, BUFFER_ROWS_MAX, RowSource, StreamHub, TextDelta};
use super::hub_feeder::{EVENTS_PER_READ, HubSource};
use super::stream_count::StreamCountGuard;
use super::subscriber::{HEARTBEAT_EVERY, StreamSubscriber};

/// Transcript and its follower.
struct StreamFixture {
    _temp: tempfile::TempDir,
    path: Utf8PathBuf,
    hub: Arc<StreamHub>,
    source: HubSource,
    ending: watch::Sender<bool>,
    clients: Arc<AtomicUsize>,
}

impl StreamFixture {
    /// Follows a file with this initial content.
    fn new(text: &str) -> StreamFixture {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("job.jsonl");
        std::fs::write(&path, text).unwrap();
        let hub = Arc::new(StreamHub::new(RowSource::File(OnceLock::new())));
        let mut source = HubSource::default();
        source.open_file(&hub, Some(&path));
        let (ending, clients) = (watch::Sender::new(false), Arc::default());
        StreamFixture { _temp: temp, path, hub, source, ending, clients }
    }

    fn append(&self, text: &str) {
        let mut file = OpenOptions::new().append(true).open(&self.path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn follow(&mut self) {
        self.source.read_to_end(&self.hub).unwrap();
    }

    fn client(&self, from: RowPosition) -> TestSubscriber {
        let counted = StreamCountGuard::new(&self.clients);
        let hub = Arc::clone(&self.hub);
        TestSubscriber(StreamSubscriber::new(
            hub,
            RowFormat::Json,
            from,
            self.ending.subscribe(),
            counted,
        ))
    }

    fn after(&self, id: &str) -> TestSubscriber {
        self.client(id.parse::<RowPosition>().unwrap().after())
    }
}

struct TestSubscriber(StreamSubscriber);

impl TestSubscriber {
    /// Returns all events until there are no new ones, as `event id:data`.
    async fn read(&mut self) -> Vec<String> {
        let mut text = Vec::new();
        while let Some(bytes) = self.0.next().await {
            if bytes == HEARTBEAT {
                break;
            }
            if bytes != RETRY_DIRECTIVE {
                text.push(bytes);
            }
        }
        shown(&text)
    }
}

fn shown(sent: &[Bytes]) -> Vec<String> {
    let text = String::from_utf8(sent.concat()).unwrap();
    let field = |event: &str, name: &str| {
        let found = event.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
        found.unwrap_or_default()
    };
    let events = text.split_terminator("\n\n");
    events
        .map(|event| match field(event, "event: ").as_str() {
            "row" => format!("{} {}", field(event, "id: "), field(event, "data: ")),
            name => format!("{name} {}", field(event, "data: ")),
        })
        .collect()
}

fn rows(numbers: std::ops::Range<usize>) -> String {
    numbers.map(|number| format!("{{\"n\":{number}}}\n")).collect()
}

fn told(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("{number} {{\"n\":{number}}}")).collect()
}

#[tokio::test(start_paused = true)]
async fn rows_from_before_and_from_now_on_come_once_and_in_order() {
    let mut rig = StreamFixture::new(&rows(0..3));
    let (mut first, mut late) =
        (rig.client(RowPosition::default()), rig.client(RowPosition::line_start(2)));
    assert_eq!(first.read().await, told(0..3));
    rig.append(&rows(3..5));
    rig.follow();
    assert_eq!(first.read().await, told(3..5));
    assert_eq!(late.read().await, told(2..5));
    let mut future = rig.client(RowPosition::line_start(6));
    rig.append(&rows(5..8));
    rig.follow();
    assert_eq!(future.read().await, told(6..8));
    assert_eq!(first.read().await, told(5..8));
}

#[tokio::test(start_paused = true)]
async fn whoever_connects_again_after_any_row_goes_on_with_the_next() {
    let mut rig = StreamFixture::new("{\"n\":0}\n\nnot json\n{\"n\":1}{\"n\":2}{\"n\":3}\n");
    rig.append("{\"n\":4}\n\n{\"n\":5}{\"n\":6}\n\0\0\n{\"n\":7}\n{\"torn");
    rig.follow();
    let all = rig.client(RowPosition::default()).read().await;
    let ids: Vec<&str> = all.iter().map(|row| row.split_once(' ').unwrap().0).collect();
    assert_eq!(ids, ["0", "3", "3.1", "3.2", "4", "6", "6.1", "8"]);
    for (at, id) in ids.iter().enumerate() {
        assert_eq!(rig.after(id).read().await, all[at + 1..], "after {id}");
    }
    // A new daemon that reads the file assigns the same IDs.
    let mut next = StreamFixture::new(&std::fs::read_to_string(&rig.path).unwrap());
    next.follow();
    for (at, id) in ids.iter().enumerate() {
        assert_eq!(next.after(id).read().await, all[at + 1..], "after {id}, by the next daemon");
    }
}

#[tokio::test(start_paused = true)]
async fn rows_that_a_follower_tells_and_rows_that_are_read_are_told_once() {
    let mut rig = StreamFixture::new(&rows(0..1));
    let mut client = rig.client(RowPosition::line_start(1));
    rig.append("{\"n\":1}{\"n\":2}\n");
    rig.append(&rows(2..9));
    let hub = Arc::downgrade(&rig.hub);
    let mut read = Vec::new();
    while read.len() < 3 {
        rig.source.forward_next(&hub).unwrap();
        read.extend(client.read().await);
    }
    rig.follow();
    read.extend(client.read().await);
    let ids: Vec<&str> = read.iter().map(|row| row.split_once(' ').unwrap().0).collect();
    assert_eq!(ids, ["1", "1.1", "2", "3", "4", "5", "6", "7", "8"]);
}

#[tokio::test(start_paused = true)]
async fn rows_beyond_those_that_are_read_at_once_are_not_lost() {
    let mut rig = StreamFixture::new("");
    let mut client = rig.client(RowPosition::default());
    let count = 3 * EVENTS_PER_READ + 1;
    rig.append(&rows(0..count));
    let hub = Arc::downgrade(&rig.hub);
    let mut read = Vec::new();
    while read.last() != told(0..count).last() {
        rig.source.forward_next(&hub).unwrap();
        read.extend(client.read().await);
    }
    assert_eq!(read, told(0..count));
}

#[tokio::test(start_paused = true)]
async fn a_torn_tail_that_is_cut_off_meanwhile_changes_no_number() {
    let mut rig = StreamFixture::new(&(rows(0..2) + "{\"n\":\"half"));
    let mut client = rig.client(RowPosition::default());
    assert_eq!(client.read().await, told(0..2));
    let whole = rows(0..2).len() as u64;
    File::options().write(true).open(&rig.path).unwrap().set_len(whole).unwrap();
    rig.append(&rows(2..4));
    rig.follow();
    assert_eq!(client.read().await, told(2..4));
    assert_eq!(rig.after("1").read().await, told(2..4));
}

#[tokio::test(start_paused = true)]
async fn whoever_is_further_behind_than_the_hub_remembers_reads_the_file() {
    let mut rig = StreamFixture::new("");
    let mut client = rig.client(RowPosition::default());
    let count = BUFFER_ROWS_MAX * 3;
    rig.append(&rows(0..count));
    rig.follow();
    assert_eq!(client.read().await, told(0..count));
    let long = format!("{{\"a\":\"{}\"}}\n", "x".repeat(BUFFER_BYTES_MAX / 2));
    rig.append(&long.repeat(6));
    rig.follow();
    let read = client.read().await;
    assert_eq!(read.len(), 6);
    assert!(read[5].starts_with(&format!("{} ", count + 5)), "{}", &read[5][..20]);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_replaced_ends_the_streams() {
    let mut rig = StreamFixture::new(&rows(0..3));
    let mut client = rig.client(RowPosition::default());
    assert_eq!(client.read().await, told(0..3));
    let other = rig.path.with_extension("new");
    std::fs::write(&other, rows(5..6)).unwrap();
    std::fs::rename(&other, &rig.path).unwrap();
    while rig.source.forward_next(&Arc::downgrade(&rig.hub)).is_ok() {}
    rig.hub.mark_broken();
    assert_eq!(client.0.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn text_that_is_being_said_comes_before_its_row_and_never_after_it() {
    let mut rig = StreamFixture::new(&rows(0..1));
    let mut client = rig.client(RowPosition::default());
    assert_eq!(client.read().await, told(0..1));
    let say = |row, text: &str| {
        rig.hub.send_delta(TextDelta { row, event: encode_event(None, "delta", text) });
    };
    say(Some(1), "a");
    say(None, "b");
    assert_eq!(client.read().await, ["delta a", "delta b"]);
    say(Some(1), "late");
    rig.append(&rows(1..2));
    rig.follow();
    assert_eq!(client.read().await, told(1..2));
    (0..1000).for_each(|number| {
        rig.hub.send_delta(TextDelta {
            row: Some(2),
            event: encode_event(None, "delta", &number.to_string()),
        });
    });
    let read = client.read().await;
    assert_eq!(read[0], "lagged {}");
    assert_eq!(read.last().unwrap(), "delta 999");
}

#[tokio::test(start_paused = true)]
async fn where_a_job_is_comes_first_and_how_it_ended_last() {
    let mut rig = StreamFixture::new(&rows(0..1));
    rig.hub.set_status("{\"status\":\"running\"}");
    let mut client = rig.client(RowPosition::default());
    assert_eq!(client.read().await, ["status {\"status\":\"running\"}", "0 {\"n\":0}"]);
    rig.hub.set_status("{\"status\":\"running\"}");
    assert!(client.read().await.is_empty(), "it is no news");
    rig.append(&rows(1..2));
    rig.follow();
    rig.hub.finish("{\"status\":\"completed\"}");
    let last = ["1 {\"n\":1}", "status {\"status\":\"completed\"}", "end {}"];
    assert_eq!(client.read().await, last);
    assert_eq!(client.0.next().await, None);
    assert_eq!(rig.after("0").read().await, last);
}

#[tokio::test(start_paused = true)]
async fn streams_end_with_the_server_and_a_client_that_goes_is_no_longer_counted() {
    let rig = StreamFixture::new(&rows(0..1));
    let mut client = rig.client(RowPosition::default());
    assert_eq!(client.read().await, told(0..1));
    assert_eq!(rig.clients.load(std::sync::atomic::Ordering::SeqCst), 1);
    let silent = tokio::time::Instant::now();
    assert_eq!(client.0.next().await, Some(HEARTBEAT));
    assert_eq!(silent.elapsed(), HEARTBEAT_EVERY);
    rig.ending.send_replace(true);
    assert_eq!(client.0.next().await, None);
    drop(client);
    assert_eq!(rig.clients.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[test]
fn a_hub_keeps_no_more_than_it_may() {
    let hub = StreamHub::new(RowSource::File(OnceLock::new()));
    hub.begin_at(RowPosition::default());
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(BUFFER_BYTES_MAX / 4));
    (0..100).for_each(|line| hub.add(StreamRow::new(RowPosition::line_start(line), &long)));
    assert!(matches!(
        hub.next_update(RowPosition::line_start(96), 0),
        super::hub::HubUpdate::Evicted
    ));
    assert!(
        matches!(hub.next_update(RowPosition::line_start(97), 0), super::hub::HubUpdate::Rows(rows) if rows.len() == 3)
    );
}
