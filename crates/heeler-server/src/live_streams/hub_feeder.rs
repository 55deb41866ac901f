//! Threads that feed hubs. Each ends soon after the last client of its hub is gone. Start at
//! [`start_hub`].

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::{ControlClient, ControlError, EventStreamCloser, RunEventStream};
use heeler_model::run::ControlEvent;
use heeler_model::{JobId, SessionId, error_chain};
use heeler_query::{FleetReader, QueryError};
use heeler_transcript::{FollowStart, FollowUpdate, NumberedLineReader, TranscriptFollower};
use serde_json::json;

use super::event::{RowPosition, StreamRow, encode_event};
use super::hub::{RowSource, StreamHub, TextDelta, row_from_event};

/// Interval of checks for state changes and for remaining clients.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Events of a workflow run read at once.
const EVENTS_PER_READ: usize = 256;

/// Subject of a hub.
pub(super) enum FollowTarget {
    Job(JobId),
    Session(SessionId),
    Run(String),
}

/// Creates a hub and the thread that feeds it; `commits` counts commits of the state.
pub(super) fn start_hub(
    followed: FollowTarget,
    records: FleetReader,
    commits: Arc<AtomicU64>,
) -> io::Result<Arc<StreamHub>> {
    let source = match &followed {
        FollowTarget::Run(run) => RowSource::Run(records.clone(), run.clone()),
        FollowTarget::Job(_) | FollowTarget::Session(_) => RowSource::File(OnceLock::new()),
    };
    let hub = Arc::new(StreamHub::new(source));
    let feeder = HubFeeder { hub: Arc::downgrade(&hub), records, commits };
    std::thread::Builder::new().name("live".to_owned()).spawn(move || {
        let weak = feeder.hub.clone();
        match followed {
            FollowTarget::Job(job) => feeder.follow_job(&job),
            FollowTarget::Session(session) => feeder.follow_session(&session),
            FollowTarget::Run(run) => feeder.follow_run(&run),
        }
        // However the thread ended, clients must not wait for more rows.
        if let Some(hub) = weak.upgrade()
            && !hub.is_ended()
        {
            hub.mark_broken();
        }
    })?;
    Ok(hub)
}

struct HubFeeder {
    hub: Weak<StreamHub>,
    records: FleetReader,
    commits: Arc<AtomicU64>,
}

impl HubFeeder {
    /// Returns the number of commits if it differs from `seen`.
    fn changed_commit(&self, seen: Option<u64>) -> Option<u64> {
        let now = self.commits.load(Ordering::SeqCst);
        (seen != Some(now)).then_some(now)
    }

    fn follow_job(&self, job: &JobId) {
        let (mut rows, mut seen, mut words) =
            (RowFollower::default(), None, DeltaListener::default());
        while let Some(hub) = self.hub.upgrade() {
            let mut last_words = None;
            if let Some(change) = self.changed_commit(seen) {
                match self.records.job_progress(job) {
                    Ok(course) => {
                        seen = Some(change);
                        let status = to_json(&course.item);
                        rows.open_file(&hub, course.log.as_deref());
                        match course.item.status.is_final() {
                            true => last_words = Some(status),
                            false => {
                                hub.set_status(&status);
                                words.listen_to_run(&self.hub, course.run.as_deref());
                            }
                        }
                    }
                    Err(QueryError::NotFound { .. }) => return,
                    Err(error) => {
                        tracing::warn!(reason = error_chain(&error), "cannot read a job");
                    }
                }
            }
            if rows.add_pending(&hub).is_err() {
                return;
            }
            if let Some(status) = last_words {
                // The status was read before the file: an ended job has written all rows, but the
                // follower may not have reported them yet.
                rows.read_to_end(&hub);
                return hub.finish(&status);
            }
            drop(hub);
            if !rows.wait_for_row(&self.hub) {
                return;
            }
        }
    }

    fn follow_session(&self, session: &SessionId) {
        let (mut rows, mut seen) = (RowFollower::default(), None);
        while let Some(hub) = self.hub.upgrade() {
            if rows.has_no_file()
                && let Some(change) = self.changed_commit(seen)
            {
                match self.records.session_transcript(session) {
                    Ok(log) => {
                        seen = Some(change);
                        rows.open_file(&hub, log.as_deref());
                    }
                    Err(error) => {
                        tracing::warn!(reason = error_chain(&error), "cannot read a session");
                    }
                }
            }
            if rows.add_pending(&hub).is_err() {
                return;
            }
            drop(hub);
            if !rows.wait_for_row(&self.hub) {
                return;
            }
        }
    }

    fn follow_run(&self, run: &str) {
        let (mut last, mut seen) = (0, None);
        while let Some(hub) = self.hub.upgrade() {
            if let Some(change) = self.changed_commit(seen) {
                match self.publish_run_changes(&hub, run, &mut last) {
                    Ok(true) => return,
                    Ok(false) => seen = Some(change),
                    Err(QueryError::NotFound { .. }) => return,
                    Err(error) => {
                        tracing::warn!(reason = error_chain(&error), "cannot read a workflow run");
                    }
                }
            }
            drop(hub);
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Publishes new events and the status of a workflow run; returns true if the run has ended.
    fn publish_run_changes(
        &self,
        hub: &StreamHub,
        run: &str,
        last: &mut u64,
    ) -> Result<bool, QueryError> {
        let now = self.records.workflow_run_update(run)?;
        if *last == 0 {
            hub.begin_at(RowPosition::default());
        }
        loop {
            let events = self.records.workflow_run_events(run, *last, EVENTS_PER_READ)?;
            for event in &events {
                *last = event.number;
                hub.add(row_from_event(event));
            }
            if events.len() < EVENTS_PER_READ {
                break;
            }
        }
        match now.is_over {
            true => hub.finish(&to_json(&now)),
            false => hub.set_status(&to_json(&now)),
        }
        Ok(now.is_over)
    }
}

fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain data can be written as JSON")
}

/// Follows the rows of a transcript.
#[derive(Default)]
pub(super) struct RowFollower {
    follower: Option<TranscriptFollower>,
    /// Number of the line at which the follower started.
    first_line: u64,
    /// Position of the last row from the follower.
    last_followed: Option<RowPosition>,
    /// Position of the last row added to the hub.
    last_added: Option<RowPosition>,
    /// Number and byte offset of the first line that was not added completely.
    next_unread: (u64, u64),
}

/// The file was replaced, so line numbers are no longer valid.
pub(super) struct FileReplacedError;

impl RowFollower {
    fn has_no_file(&self) -> bool {
        self.follower.is_none()
    }

    /// Starts to follow a file at its end; clients read the existing rows themselves.
    pub(super) fn open_file(&mut self, hub: &StreamHub, path: Option<&Utf8Path>) {
        let (Some(path), RowSource::File(known)) = (path, &hub.source) else { return };
        if self.follower.is_some() {
            return;
        }
        // The file may appear later. If it cannot be read, the follower reports the reason.
        let end = NumberedLineReader::open(path, u64::MAX);
        let (first, offset) = end.map_or((0, 0), |end| (end.number(), end.offset()));
        let mut follower = TranscriptFollower::new();
        follower.add(path, FollowStart::Offset(offset));
        (self.follower, self.first_line, self.next_unread) =
            (Some(follower), first, (first, offset));
        drop(known.set(path.to_owned()));
        hub.begin_at(RowPosition::line_start(first));
    }

    /// Adds all rows that the follower has ready.
    pub(super) fn add_pending(&mut self, hub: &StreamHub) -> Result<(), FileReplacedError> {
        while let Some(update) = self.next_update(Duration::ZERO) {
            self.apply_update(hub, update)?;
        }
        Ok(())
    }

    /// Adds all remaining rows of the file, including those the follower has not reported yet.
    pub(super) fn read_to_end(&mut self, hub: &StreamHub) {
        let RowSource::File(path) = &hub.source else { return };
        let Some(path) = path.get().filter(|path| path.exists()) else { return };
        let read = NumberedLineReader::open_at(path, self.next_unread.0, self.next_unread.1)
            .and_then(|mut lines| {
                while let Some(line) = lines.next_line()? {
                    for (part, record) in (0..).zip(&line.records) {
                        self.add_row(
                            hub,
                            RowPosition { line: line.number, record: part },
                            &record.text,
                        );
                    }
                    self.next_unread = (lines.number(), lines.offset());
                }
                Ok(())
            });
        if let Err(error) = read {
            tracing::warn!(reason = error_chain(&error), "cannot read the end of a transcript");
        }
    }

    fn add_row(&mut self, hub: &StreamHub, at: RowPosition, text: &str) {
        if self.last_added.is_none_or(|added| added < at) {
            self.last_added = Some(at);
            hub.add(StreamRow::new(at, text));
        }
    }

    /// Waits briefly for the next row; returns false if following must end.
    pub(super) fn wait_for_row(&mut self, hub: &Weak<StreamHub>) -> bool {
        if self.follower.is_none() {
            std::thread::sleep(POLL_INTERVAL);
            return true;
        }
        match (self.next_update(POLL_INTERVAL), hub.upgrade()) {
            (_, None) => false,
            (None, _) => true,
            (Some(update), Some(hub)) => self.apply_update(&hub, update).is_ok(),
        }
    }

    fn next_update(&mut self, wait: Duration) -> Option<FollowUpdate> {
        let follower = self.follower.as_mut()?;
        match follower.next(wait) {
            Ok(update) => update,
            Err(error) => {
                tracing::warn!(reason = error_chain(&error), "cannot follow a transcript");
                None
            }
        }
    }

    fn apply_update(
        &mut self,
        hub: &StreamHub,
        update: FollowUpdate,
    ) -> Result<(), FileReplacedError> {
        match update {
            FollowUpdate::Record { line, record, .. } => {
                let line = self.first_line + line;
                let glued = self.last_followed.filter(|last| last.line == line);
                let at = glued.map_or(RowPosition::line_start(line), RowPosition::after);
                self.last_followed = Some(at);
                self.add_row(hub, at, &record.text);
                self.next_unread = self.next_unread.max((line + 1, record.next));
                Ok(())
            }
            FollowUpdate::Fault { .. } => Ok(()),
            FollowUpdate::Restarted { .. } => Err(FileReplacedError),
        }
    }
}

/// Listener for text deltas of a run, which are not in the transcript. Each run has a listening
/// thread, because a silent run must not delay rows.
#[derive(Default)]
struct DeltaListener {
    run_dir: Option<Utf8PathBuf>,
    connection: Arc<Mutex<DeltaConnection>>,
}

/// Connection to a run's control socket.
#[derive(Default)]
struct DeltaConnection {
    is_closed: bool,
    disconnect: Option<EventStreamCloser>,
}

impl DeltaListener {
    /// Listens to this run from now on, instead of the previous one.
    fn listen_to_run(&mut self, hub: &Weak<StreamHub>, folder: Option<&Utf8Path>) {
        let Some(folder) = folder.filter(|folder| self.run_dir.as_deref() != Some(*folder)) else {
            return;
        };
        self.close();
        (self.run_dir, self.connection) = (Some(folder.to_owned()), Arc::default());
        let (hub, folder, line) = (hub.clone(), folder.to_owned(), Arc::clone(&self.connection));
        let thread = std::thread::Builder::new().name("live-words".to_owned());
        if let Err(error) = thread.spawn(move || forward_run(&hub, &folder, &line)) {
            tracing::warn!(%error, "cannot listen to a run");
        }
    }

    fn close(&self) {
        let mut line = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        line.is_closed = true;
        if let Some(hang_up) = line.disconnect.take() {
            hang_up.close();
        }
    }
}

impl Drop for DeltaListener {
    fn drop(&mut self) {
        self.close();
    }
}

/// Waits for a run to start and forwards its deltas, until it ends or the connection is closed.
fn forward_run(hub: &Weak<StreamHub>, folder: &Utf8Path, line: &Mutex<DeltaConnection>) {
    let happenings = loop {
        match ControlClient::connect_to_run(folder).and_then(ControlClient::subscribe) {
            Ok(happenings) => break happenings,
            Err(ControlError::NotStarted { .. }) => {}
            Err(_) => return,
        }
        std::thread::sleep(POLL_INTERVAL);
        if line.lock().unwrap_or_else(PoisonError::into_inner).is_closed {
            return;
        }
    };
    {
        let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.is_closed {
            return;
        }
        line.disconnect = happenings.closer().ok();
    }
    forward_deltas(happenings, hub);
}

fn forward_deltas(happenings: RunEventStream, hub: &Weak<StreamHub>) {
    let mut row = None;
    for happening in happenings.map_while(Result::ok) {
        let Some(hub) = hub.upgrade() else { return };
        match happening {
            ControlEvent::Row { at, .. } => row = Some(at + 1),
            ControlEvent::Delta { text, .. } => {
                let data = json!({ "text": text }).to_string();
                hub.send_delta(TextDelta { row, event: encode_event(None, "delta", &data) });
            }
            ControlEvent::Lagged => {
                hub.send_delta(TextDelta { row: None, event: encode_event(None, "lagged", "{}") });
            }
            _ => {}
        }
    }
}
