//! Rows of a run without gap or duplicate, together with the events between them.
//!
//! The control socket sends numbered rows, deltas and questions in order. Rows from before the
//! connection, and rows that a slow listener missed, are read from the job's transcript; without a
//! socket, all rows are. Start at [`start`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::{ControlClient, ControlError};
use heeler_model::job_row::{JobRow, JobRowKind};
use heeler_model::run::{ControlEvent, ControlOperation, ControlReplyBody, file};
use heeler_store::is_run_alive;
use heeler_transcript::{TranscriptEntry, TranscriptScanner};

use super::JobWatchEvent;

/// Interval at which a starting run, or a transcript without a socket, is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which the run's state report is requested.
const STATE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Handle that controls a feed.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunFeedHandle {
    stopped: Arc<AtomicBool>,
    is_unattended: Arc<AtomicBool>,
}

impl RunFeedHandle {
    /// Stops the feed because another run is followed.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Records that the daemon is gone: a run that has not started by now never will.
    pub(crate) fn set_unattended(&self) {
        self.is_unattended.store(true, Ordering::Relaxed);
    }
}

/// Follows a run in a thread of its own; the first `shown` rows of the transcript are known
/// already.
pub(crate) fn start(
    folder: Utf8PathBuf,
    log: Utf8PathBuf,
    shown: u64,
    tell: SyncSender<JobWatchEvent>,
) -> RunFeedHandle {
    let handle = RunFeedHandle::default();
    let mut feed = RunFeed {
        folder,
        log,
        offset: 0,
        rows_read: 0,
        rows_sent: shown,
        delta_bytes_sent: 0,
        events: tell,
        handle: handle.clone(),
    };
    std::thread::spawn(move || {
        // An error means that the receiver is gone, so there is nothing to report.
        let _gone = feed.run();
    });
    handle
}

/// Requests the run's state report periodically, until the run is gone or its feed is stopped. The
/// report also covers questions that were asked before the feed connected, or that it missed.
pub(crate) fn poll_run_state(
    folder: Utf8PathBuf,
    tell: SyncSender<JobWatchEvent>,
    feed: RunFeedHandle,
) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(STATE_POLL_INTERVAL);
            if feed.is_stopped() {
                return;
            }
            match ControlClient::connect_to_run(&folder)
                .and_then(|mut control| control.request(ControlOperation::Status))
            {
                Ok(ControlReplyBody::Status(state)) => {
                    if tell.send(JobWatchEvent::RunState(Box::new(state))).is_err() {
                        return;
                    }
                }
                Ok(_) | Err(ControlError::Gone { .. }) => return,
                // The run is starting, or slow to reply.
                Err(_) if !has_result(&folder) => {}
                Err(_) => return,
            }
        }
    });
}

struct RunFeed {
    folder: Utf8PathBuf,
    log: Utf8PathBuf,
    /// Offset of the next line in the transcript; `rows_read` is its number.
    offset: u64,
    rows_read: u64,
    rows_sent: u64,
    /// Bytes of the current message that were sent as deltas.
    delta_bytes_sent: u64,
    events: SyncSender<JobWatchEvent>,
    handle: RunFeedHandle,
}

/// Error: the receiver is gone or the feed was stopped.
#[derive(Debug)]
struct WatcherClosed;

impl RunFeed {
    fn send(&self, event: JobWatchEvent) -> Result<(), WatcherClosed> {
        self.check_listener()?;
        self.events.send(event).map_err(|_| WatcherClosed)
    }

    fn check_listener(&self) -> Result<(), WatcherClosed> {
        if self.handle.is_stopped() { Err(WatcherClosed) } else { Ok(()) }
    }

    fn run(&mut self) -> Result<(), WatcherClosed> {
        loop {
            match ControlClient::connect_to_run(&self.folder).and_then(ControlClient::subscribe) {
                Ok(happenings) => {
                    self.catch_up()?;
                    for happening in happenings {
                        let Ok(happening) = happening else { break };
                        self.handle_event(happening)?;
                    }
                }
                // The run is starting.
                Err(ControlError::NotStarted { .. }) => {}
                Err(error) => tracing::debug!(%error, "cannot listen to the run"),
            }
            let is_over = self.is_over();
            // Checked before the transcript is read: that of an ended run is then complete.
            self.catch_up()?;
            if is_over {
                return self.send(JobWatchEvent::RunEnded(self.folder.clone()));
            }
            self.check_listener()?;
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn handle_event(&mut self, happening: ControlEvent) -> Result<(), WatcherClosed> {
        match happening {
            // The row was already read from the transcript. Send it again: it completes the deltas
            // received since.
            ControlEvent::Row { at, row }
                if at < self.rows_sent && row.kind() == JobRowKind::Assistant =>
            {
                self.delta_bytes_sent = 0;
                self.send(JobWatchEvent::Row(at, row))
            }
            ControlEvent::Row { at, .. } if at < self.rows_sent => Ok(()),
            ControlEvent::Row { at, row } if at == self.rows_sent => {
                self.rows_sent += 1;
                if row.kind() == JobRowKind::Assistant {
                    self.delta_bytes_sent = 0;
                }
                self.send(JobWatchEvent::Row(at, row))
            }
            ControlEvent::Row { .. } => self.catch_up(),
            ControlEvent::Lagged => {
                self.send(JobWatchEvent::Lagged)?;
                self.catch_up()
            }
            ControlEvent::Delta { text, from } => self.send_delta(text, from),
            ControlEvent::Asked { ask } => self.send(JobWatchEvent::Question(ask)),
            ControlEvent::Settled { ask } => self.send(JobWatchEvent::QuestionSettled(ask)),
            ControlEvent::Disk { trouble } => self.send(JobWatchEvent::DiskStatus(trouble)),
            // The connection ends with the run; the transcript is then read to its end.
            ControlEvent::Ended { .. } => Ok(()),
        }
    }

    /// Sends a delta. If the beginning of its message was missed, only the row is sent later.
    fn send_delta(&mut self, text: String, from: Option<u64>) -> Result<(), WatcherClosed> {
        if let Some(from) = from {
            if from != 0 && from != self.delta_bytes_sent {
                return Ok(());
            }
            self.delta_bytes_sent = from + text.len() as u64;
        }
        self.send(JobWatchEvent::Delta(text))
    }

    /// Sends the rows of the transcript that were not sent yet.
    fn catch_up(&mut self) -> Result<(), WatcherClosed> {
        let Ok(lines) = TranscriptScanner::open_at(&self.log, self.offset) else { return Ok(()) };
        for entry in lines {
            let Ok(TranscriptEntry::Record(record)) = entry else { continue };
            let number = self.rows_read;
            self.offset = record.next;
            self.rows_read += 1;
            if number < self.rows_sent {
                continue;
            }
            (self.rows_sent, self.delta_bytes_sent) = (number + 1, 0);
            if let Ok(row) = JobRow::parse(record.text.as_bytes()) {
                self.send(JobWatchEvent::Row(number, row))?;
            }
        }
        Ok(())
    }

    /// Returns true if the run has ended or its runner is gone. A run that has not started holds no
    /// lock either, so it is over only if it had started or no daemon is left to start it.
    fn is_over(&self) -> bool {
        let is_dead = || !is_run_alive(&self.folder);
        let is_unconducted = self.handle.is_unattended.load(Ordering::Relaxed);
        has_result(&self.folder)
            || (is_unconducted || self.folder.join(file::STARTED).exists()) && is_dead()
    }
}

fn has_result(folder: &Utf8Path) -> bool {
    folder.join(file::RESULT).exists()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::mpsc::{Receiver, sync_channel};

    use heeler_transcript::LockFile;
    use serde_json::json;

    use super::*;

    struct FeedTestRig {
        _temp: tempfile::TempDir,
        feed: RunFeed,
        events: Receiver<JobWatchEvent>,
    }

    fn rig(shown: u64) -> FeedTestRig {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap();
        let log = folder.join("job.jsonl");
        let (tell, events) = sync_channel(super::super::QUEUED_EVENTS_MAX);
        let handle = RunFeedHandle::default();
        let feed = RunFeed {
            folder,
            log,
            offset: 0,
            rows_read: 0,
            rows_sent: shown,
            delta_bytes_sent: 0,
            events: tell,
            handle,
        };
        FeedTestRig { _temp: temp, feed, events }
    }

    impl FeedTestRig {
        fn log(&self, rows: std::ops::Range<u64>) {
            let mut options = std::fs::OpenOptions::new();
            let mut log = options.create(true).append(true).open(&self.feed.log).unwrap();
            rows.for_each(|row| writeln!(log, "{}", row_of(row).as_json()).unwrap());
        }

        fn told(&self, row: u64) -> ControlEvent {
            ControlEvent::Row { at: row, row: row_of(row) }
        }

        #[track_caller]
        fn check(&self, expected: &str) {
            let shown = self.events.try_iter().map(|event| match event {
                JobWatchEvent::Row(at, row) if row.number("n") == Some(at) => at.to_string(),
                JobWatchEvent::Delta(text) => text,
                JobWatchEvent::Lagged => "lagged".to_owned(),
                JobWatchEvent::RunEnded(_) => "end".to_owned(),
                _ => "?".to_owned(),
            });
            assert_eq!(shown.collect::<Vec<_>>().join(" "), expected);
        }
    }

    fn row_of(number: u64) -> JobRow {
        JobRow::new(json!({ "n": number }))
    }

    #[test]
    fn rows_from_before_are_read_and_those_that_are_told_again_are_not_repeated() {
        let mut rig = rig(0);
        rig.log(0..3);
        rig.feed.catch_up().unwrap();
        for row in [1, 2, 3] {
            rig.feed.handle_event(rig.told(row)).unwrap();
        }
        rig.feed
            .handle_event(ControlEvent::Delta { text: "piece".to_owned(), from: None })
            .unwrap();
        rig.check("0 1 2 3 piece");
    }

    #[test]
    fn words_are_told_from_their_beginning_or_not_at_all() {
        let mut rig = rig(0);
        let mut say = |from: u64, text: &str| {
            let happening = ControlEvent::Delta { text: text.to_owned(), from: Some(from) };
            rig.feed.handle_event(happening).unwrap();
        };
        // Somebody has come in the middle of a text.
        say(4, "middle");
        say(10, "end");
        say(0, "one");
        say(3, "two");
        // Something was left out.
        say(9, "lost");
        let row = JobRow::new(json!({"type": "assistant"}));
        rig.feed.handle_event(ControlEvent::Row { at: 0, row }).unwrap();
        let mut say = |from: u64, text: &str| {
            let happening = ControlEvent::Delta { text: text.to_owned(), from: Some(from) };
            rig.feed.handle_event(happening).unwrap();
        };
        say(6, "lost");
        say(0, "three");
        // It comes with the row that ends it, though that was read from the log.
        let row = JobRow::new(json!({"type": "assistant"}));
        rig.feed.handle_event(ControlEvent::Row { at: 0, row }).unwrap();
        rig.check("one two ? three ?");
    }

    #[test]
    fn rows_that_were_left_out_come_from_the_log() {
        let mut rig = rig(0);
        rig.log(0..2);
        rig.feed.handle_event(rig.told(0)).unwrap();
        rig.log(2..6);
        rig.feed.handle_event(ControlEvent::Lagged).unwrap();
        rig.feed.handle_event(rig.told(5)).unwrap();
        rig.log(6..9);
        rig.feed.handle_event(rig.told(8)).unwrap();
        rig.check("0 lagged 1 2 3 4 5 6 7 8");
    }

    #[test]
    fn rows_of_an_earlier_run_are_not_shown_again() {
        let mut rig = rig(2);
        rig.log(0..4);
        rig.feed.catch_up().unwrap();
        rig.check("2 3");
    }

    #[test]
    fn a_run_without_a_socket_is_followed_by_its_log_to_the_end() {
        let mut rig = rig(0);
        rig.log(0..2);
        std::fs::write(rig.feed.folder.join("result.json"), "{}").unwrap();
        rig.feed.run().unwrap();
        rig.check("0 1 end");
    }

    #[test]
    fn a_run_that_nobody_is_left_to_start_is_over() {
        let mut rig = rig(0);
        assert!(!rig.feed.is_over(), "its conductor is about to start it");
        rig.feed.handle.set_unattended();
        rig.feed.run().unwrap();
        rig.check("end");
    }

    #[test]
    fn an_orphan_that_holds_its_lock_is_not_over() {
        let rig = rig(0);
        rig.feed.handle.set_unattended();
        let holder = heeler_transcript::LockHolder::this_process("runner", crate::context::now());
        let lock = rig.feed.folder.join("lock");
        let held = LockFile::acquire(&lock, &holder, Duration::ZERO).unwrap();
        assert!(!rig.feed.is_over());
        drop(held);
        assert!(rig.feed.is_over());
    }

    #[test]
    fn a_feed_that_was_stopped_tells_nothing_more_and_ends() {
        let mut rig = rig(0);
        rig.log(0..2);
        rig.feed.handle.stop();
        rig.feed.run().unwrap_err();
        rig.check("");
    }
}
