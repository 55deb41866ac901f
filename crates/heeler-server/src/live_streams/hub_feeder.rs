//! Threads that feed hubs. Each ends soon after the last client of its hub is gone. Start at
//! [`start_hub`].

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use camino::Utf8Path;
use heeler_model::{JobId, SessionId, error_chain};
use heeler_query::job_feed::{
    FeedStart, RowPosition, StateReports, TranscriptFeed, TranscriptFeedEvent,
};
use heeler_query::{FleetReader, QueryError};
use serde_json::json;

use super::event::{StreamRow, encode_event};
use super::hub::{RowSource, StreamHub, TextDelta, row_from_event};

/// Interval of checks for state changes and for remaining clients.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Events read at once, before the state is checked again.
pub(super) const EVENTS_PER_READ: usize = 256;

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
        FollowTarget::Run(run) => RowSource::Run(Box::new(records.clone()), run.clone()),
        FollowTarget::Job(_) | FollowTarget::Session(_) => RowSource::File(OnceLock::new()),
    };
    let hub = Arc::new(StreamHub::new(source));
    // The thread must not keep its own hub alive.
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
        let (mut source, mut seen) = (HubSource::default(), None);
        while let Some(hub) = self.hub.upgrade() {
            if let Some(change) = self.changed_commit(seen) {
                match self.records.job_progress(job) {
                    Ok(run_state) => {
                        seen = Some(change);
                        let status = to_json(&run_state.item);
                        source.open_file(&hub, run_state.log.as_deref());
                        if run_state.item.status.is_final() {
                            // The status was read before the file: an ended job has written all
                            // rows.
                            if source.read_to_end(&hub).is_ok() {
                                hub.finish(&status);
                            }
                            return;
                        }
                        hub.set_status(&status);
                        if let Some(run) = &run_state.run {
                            source.feed.follow_run(run);
                        }
                    }
                    // The job was deleted. The end of this thread breaks the hub, so clients
                    // reconnect and learn it.
                    Err(QueryError::NotFound { .. }) => return,
                    Err(error) => {
                        // `seen` stays as it is, so that the next pass tries again.
                        tracing::warn!(reason = error_chain(&error), "cannot read a job");
                    }
                }
            }
            // Not held while waiting, so that the hub ends with its last client.
            drop(hub);
            if source.forward_next(&self.hub).is_err() {
                return;
            }
        }
    }

    fn follow_session(&self, session: &SessionId) {
        let (mut source, mut seen) = (HubSource::default(), None);
        while let Some(hub) = self.hub.upgrade() {
            // A session keeps its transcript, so commits matter only until the file is found.
            if !source.feed.is_open()
                && let Some(change) = self.changed_commit(seen)
            {
                match self.records.session_transcript(session) {
                    Ok(log) => {
                        seen = Some(change);
                        source.open_file(&hub, log.as_deref());
                    }
                    Err(error) => {
                        tracing::warn!(reason = error_chain(&error), "cannot read a session");
                    }
                }
            }
            // Not held while waiting, so that the hub ends with its last client.
            drop(hub);
            if source.forward_next(&self.hub).is_err() {
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
            // Not held while waiting, so that the hub ends with its last client.
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
        // Read before the events: a run that is over by then has written all of them.
        let now = self.records.workflow_run_update(run)?;
        // Unlike a transcript, events are read from the first one, so the buffer begins with the
        // run.
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

/// Source of a hub: a transcript, and the run that writes it.
pub(super) struct HubSource {
    feed: TranscriptFeed,
}

/// The file was replaced, so line numbers are no longer valid.
#[derive(Debug)]
pub(super) struct FileReplacedError;

impl Default for HubSource {
    fn default() -> HubSource {
        // Clients read the existing rows themselves.
        HubSource { feed: TranscriptFeed::new(FeedStart::End, StateReports::NotRequested) }
    }
}

impl HubSource {
    /// Starts to follow a file at its end.
    pub(super) fn open_file(&mut self, hub: &StreamHub, path: Option<&Utf8Path>) {
        let (Some(path), RowSource::File(known)) = (path, &hub.source) else { return };
        if self.feed.is_open() {
            return;
        }
        let first = self.feed.open_file(path);
        // The path comes first, because clients may read the file as soon as the start is known.
        drop(known.set(path.to_owned()));
        hub.begin_at(first);
    }

    /// Adds all rows that are in the file now.
    pub(super) fn read_to_end(&mut self, hub: &StreamHub) -> Result<(), FileReplacedError> {
        // The end of the job may be known before the follower has noticed the last rows.
        self.feed.check_file();
        while let Some(event) = self.feed.next(Duration::ZERO) {
            forward_event(hub, event)?;
        }
        Ok(())
    }

    /// Waits briefly for the next event, and passes it on with some that follow it at once.
    pub(super) fn forward_next(&mut self, hub: &Weak<StreamHub>) -> Result<(), FileReplacedError> {
        let mut wait = POLL_INTERVAL;
        for _ in 0..EVENTS_PER_READ {
            // An event that was taken from the feed is lost unless the hub gets it.
            let Some(event) = self.feed.next(wait) else { break };
            let Some(hub) = hub.upgrade() else { break };
            forward_event(&hub, event)?;
            // Only the first event is worth a wait; those behind it are passed on as one batch.
            wait = Duration::ZERO;
        }
        Ok(())
    }
}

fn forward_event(hub: &StreamHub, event: TranscriptFeedEvent) -> Result<(), FileReplacedError> {
    match event {
        TranscriptFeedEvent::Row { position, text } => hub.add(StreamRow::new(position, &text)),
        TranscriptFeedEvent::Restarted => return Err(FileReplacedError),
        TranscriptFeedEvent::Delta { text, line, .. } => {
            let data = json!({ "text": text }).to_string();
            hub.send_delta(TextDelta { row: line, event: encode_event(None, "delta", &data) });
        }
        TranscriptFeedEvent::Lagged => {
            hub.send_delta(TextDelta { row: None, event: encode_event(None, "lagged", "{}") });
        }
        // Clients of the API request these.
        TranscriptFeedEvent::RowAnnounced { .. }
        | TranscriptFeedEvent::QuestionAsked(_)
        | TranscriptFeedEvent::QuestionSettled(_)
        | TranscriptFeedEvent::DiskStatus(_)
        | TranscriptFeedEvent::RunState(_)
        | TranscriptFeedEvent::RunEnded => {}
    }
    Ok(())
}
