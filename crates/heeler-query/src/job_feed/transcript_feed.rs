//! Rows of a transcript as it grows, and the live events of the run that writes it.
//!
//! Rows come from the file only: each once, in order, none lost, whatever happens to the run, its
//! daemon or the socket. The socket adds what the file lacks. Start at [`TranscriptFeed`].

use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_model::error_chain;
use heeler_model::job_row::JobRow;
use heeler_model::run::{AgentQuestion, ControlEvent, RunState};
use heeler_transcript::{FollowStart, FollowUpdate, NumberedLineReader, TranscriptFollower};

use super::row_position::RowPosition;
use super::run_listener::{RunListener, RunListenerEvent, StateReports};

/// First row of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedStart {
    Beginning,
    /// The first row after those that the file has when it is opened.
    End,
}

/// Event of a followed transcript.
#[derive(Debug)]
pub enum TranscriptFeedEvent {
    Row {
        position: RowPosition,
        text: String,
    },
    /// The file was replaced; it is read from its beginning again.
    Restarted,
    /// Part of an unfinished message; its row follows.
    Delta {
        text: String,
        /// Number of bytes of the message before this part, if known.
        from: Option<u64>,
        /// Line of the next row that the run will announce, if known.
        line: Option<u64>,
    },
    /// The run announces a row, which may have been read from the file before.
    RowAnnounced {
        line: u64,
        row: JobRow,
    },
    /// Deltas were lost.
    Lagged,
    QuestionAsked(AgentQuestion),
    /// A question was answered or withdrawn: its ID.
    QuestionSettled(String),
    /// The disk rejects writes (with the reason), or accepts them again (`None`).
    DiskStatus(Option<String>),
    RunState(Box<RunState>),
    /// The run has ended or its runner is gone, and all its rows were read.
    RunEnded,
}

/// Follows a transcript, and one run at a time.
#[derive(Debug)]
pub struct TranscriptFeed {
    follower: TranscriptFollower,
    start: FeedStart,
    is_open: bool,
    /// Number of the line at which the follower started.
    first_line: u64,
    last_row: Option<RowPosition>,
    listener: Option<RunListener>,
    reports: StateReports,
    /// Line of the next row that the run will announce.
    announced: Option<u64>,
    /// Event that must wait until the rows before it were returned.
    held: Option<TranscriptFeedEvent>,
}

impl TranscriptFeed {
    /// Creates a feed without a file and without a run.
    pub fn new(start: FeedStart, reports: StateReports) -> TranscriptFeed {
        TranscriptFeed {
            follower: TranscriptFollower::new(),
            start,
            is_open: false,
            first_line: 0,
            last_row: None,
            listener: None,
            reports,
            announced: None,
            held: None,
        }
    }

    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Starts to follow a file, which need not exist yet. Returns the position of the first row.
    pub fn open_file(&mut self, path: &Utf8Path) -> RowPosition {
        debug_assert!(!self.is_open, "a feed follows one file");
        // If the file cannot be read, the follower reports the reason.
        let end = match self.start {
            FeedStart::Beginning => None,
            FeedStart::End => NumberedLineReader::open(path, u64::MAX).ok(),
        };
        let (first, offset) = end.map_or((0, 0), |end| (end.number(), end.offset()));
        self.follower.add(path, FollowStart::Offset(offset));
        (self.first_line, self.is_open) = (first, true);
        RowPosition::line_start(first)
    }

    /// Ends the wait of [`TranscriptFeed::next`] with each change of this file, which is no
    /// transcript.
    pub(super) fn watch_file(&mut self, path: &Utf8Path) {
        self.follower.watch_file(path);
    }

    /// Returns true if the watched file may have changed since the last call.
    pub(super) fn take_watched_change(&mut self) -> bool {
        self.follower.take_watched_change()
    }

    /// Listens to the run in this folder from now on, instead of the previous one.
    pub fn follow_run(&mut self, folder: &Utf8Path) {
        if self.listener.as_ref().is_some_and(|listener| listener.folder() == folder) {
            return;
        }
        (self.listener, self.announced, self.held) = (None, None, None);
        match RunListener::start(folder, &self.follower.waker(), self.reports) {
            Ok(listener) => self.listener = Some(listener),
            Err(error) => tracing::warn!(%error, "cannot listen to a run"),
        }
    }

    /// Records that no daemon is left that could start the run.
    pub fn set_unattended(&self) {
        if let Some(listener) = &self.listener {
            listener.set_unattended();
        }
    }

    /// Makes the next calls of `next` return all rows that are in the file now, before they return
    /// `None`.
    pub fn check_file(&self) {
        self.follower.check_files();
    }

    /// Returns the next event; `None` if there is none within this time.
    pub fn next(&mut self, wait: Duration) -> Option<TranscriptFeedEvent> {
        let deadline = Instant::now() + wait;
        loop {
            if self.held.is_none() {
                match self.next_live_event() {
                    Some(event) if is_after_rows(&event) => self.held = Some(event),
                    Some(event) => return Some(event),
                    None => {}
                }
            }
            if let Some(event) = self.held.take_if(|held| is_reached(held, self.last_row)) {
                return Some(event);
            }
            let wait = match &self.held {
                Some(_) => Duration::ZERO,
                None => deadline.saturating_duration_since(Instant::now()),
            };
            if let Some(event) = self.next_row(wait) {
                return Some(event);
            }
            if let Some(event) = self.held.take() {
                return Some(event);
            }
            // A change of the watched file may have ended the wait; the caller has to look at it.
            if self.follower.has_watched_change() || deadline <= Instant::now() {
                return None;
            }
        }
    }

    fn next_row(&mut self, wait: Duration) -> Option<TranscriptFeedEvent> {
        loop {
            match self.follower.next(wait) {
                Ok(Some(FollowUpdate::Record { line, record, .. })) => {
                    let line = self.first_line + line;
                    let joined = self.last_row.filter(|last| last.line == line);
                    let position = joined.map_or(RowPosition::line_start(line), RowPosition::after);
                    self.last_row = Some(position);
                    return Some(TranscriptFeedEvent::Row { position, text: record.text });
                }
                Ok(Some(FollowUpdate::Fault { .. })) => {}
                Ok(Some(FollowUpdate::Restarted { .. })) => {
                    (self.first_line, self.last_row) = (0, None);
                    return Some(TranscriptFeedEvent::Restarted);
                }
                Ok(None) => return None,
                Err(error) => {
                    tracing::warn!(reason = error_chain(&error), "cannot follow a transcript");
                    return None;
                }
            }
        }
    }

    fn next_live_event(&mut self) -> Option<TranscriptFeedEvent> {
        let event = match self.listener.as_ref()?.try_next()? {
            RunListenerEvent::Control(event) => *event,
            RunListenerEvent::State(state) => return Some(TranscriptFeedEvent::RunState(state)),
            RunListenerEvent::Ended => {
                self.check_file();
                return Some(TranscriptFeedEvent::RunEnded);
            }
        };
        Some(match event {
            ControlEvent::Row { at, row } => {
                self.announced = Some(at + 1);
                // The file may be on a system that does not report changes.
                if self.last_row.is_none_or(|last| last.line < at) {
                    self.check_file();
                }
                TranscriptFeedEvent::RowAnnounced { line: at, row }
            }
            ControlEvent::Delta { text, from } => {
                TranscriptFeedEvent::Delta { text, from, line: self.announced }
            }
            ControlEvent::Lagged => {
                self.check_file();
                TranscriptFeedEvent::Lagged
            }
            ControlEvent::Asked { ask } => TranscriptFeedEvent::QuestionAsked(ask),
            ControlEvent::Settled { ask } => TranscriptFeedEvent::QuestionSettled(ask),
            ControlEvent::Disk { trouble } => TranscriptFeedEvent::DiskStatus(trouble),
            // The connection ends with the run, and then the listener reports the end.
            ControlEvent::Ended { .. } => return self.next_live_event(),
        })
    }
}

/// Returns true if the row that the event announces was returned. Later rows belong after the event,
/// because deltas of theirs may follow it.
fn is_reached(event: &TranscriptFeedEvent, last_row: Option<RowPosition>) -> bool {
    match event {
        TranscriptFeedEvent::RowAnnounced { line, .. } => {
            last_row.is_some_and(|last| last.line >= *line)
        }
        _ => false,
    }
}

/// Returns true if the rows that are in the file already belong before the event.
fn is_after_rows(event: &TranscriptFeedEvent) -> bool {
    matches!(event, TranscriptFeedEvent::RowAnnounced { .. } | TranscriptFeedEvent::RunEnded)
}
