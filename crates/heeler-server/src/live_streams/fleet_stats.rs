//! Stream of the fleet's activity counts. One thread reads them for all clients.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Bytes;
use heeler_model::error_chain;
use heeler_query::FleetReader;
use heeler_query::live_updates::FleetActivityUpdate;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::event::{HEARTBEAT, RETRY_DIRECTIVE, encode_event};
use super::stream_count::StreamCountGuard;
use super::subscriber::HEARTBEAT_EVERY;

/// Shortest time between two updates.
pub(crate) const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);

/// Polls after which the counts are read even without a commit, because the 24-hour window moves.
const IDLE_POLLS_MAX: u32 = 240;

/// Publisher of the counts. Its thread lives while there are subscribers.
#[derive(Debug)]
pub(super) struct FleetStatsPublisher(watch::Sender<Option<FleetActivityUpdate>>);

/// Starts the thread that reads the counts while there are subscribers.
pub(super) fn start_publisher(
    records: FleetReader,
    commits: Arc<AtomicU64>,
    now: fn() -> Timestamp,
) -> io::Result<Arc<FleetStatsPublisher>> {
    let publisher = Arc::new(FleetStatsPublisher(watch::Sender::new(None)));
    // The thread must not keep its own publisher alive.
    let weak = Arc::downgrade(&publisher);
    std::thread::Builder::new().name("live-fleet".to_owned()).spawn(move || {
        publish_changes(&weak, &records, &commits, now);
    })?;
    Ok(publisher)
}

fn publish_changes(
    publisher: &Weak<FleetStatsPublisher>,
    records: &FleetReader,
    commits: &AtomicU64,
    now: fn() -> Timestamp,
) {
    let (mut seen, mut idle) = (None, 0);
    while let Some(publisher) = publisher.upgrade() {
        // Loaded before the read: a commit in between causes one more read, never a missed one.
        let commit = commits.load(Ordering::SeqCst);
        idle += 1;
        if seen != Some(commit) || idle > IDLE_POLLS_MAX {
            match records
                .activity(now())
                .map(|activity| FleetActivityUpdate { commit, pulse: activity })
            {
                Ok(update) => {
                    (seen, idle) = (Some(commit), 0);
                    publisher.0.send_if_modified(|known| known.replace(update) != Some(update));
                }
                Err(error) => {
                    // `seen` stays as it is, so that the next pass tries again.
                    tracing::warn!(
                        reason = error_chain(&error),
                        "cannot read the fleet's activity"
                    );
                }
            }
        }
        // Not held while sleeping, so that the thread ends with the last client.
        drop(publisher);
        std::thread::sleep(PUBLISH_INTERVAL);
    }
}

/// Client of the fleet stream.
pub(super) struct FleetStatsSubscriber {
    /// Keeps the thread alive.
    _publisher: Arc<FleetStatsPublisher>,
    updates: watch::Receiver<Option<FleetActivityUpdate>>,
    ending: watch::Receiver<bool>,
    _counted: StreamCountGuard,
    is_opened: bool,
}

impl FleetStatsSubscriber {
    pub(super) fn new(
        publisher: Arc<FleetStatsPublisher>,
        ending: watch::Receiver<bool>,
        counted: StreamCountGuard,
    ) -> FleetStatsSubscriber {
        let mut updates = publisher.0.subscribe();
        // A new client gets the current counts at once, not only the next change.
        updates.mark_changed();
        FleetStatsSubscriber {
            _publisher: publisher,
            updates,
            ending,
            _counted: counted,
            is_opened: false,
        }
    }

    /// Returns the next bytes to send; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.is_opened, true) {
            return Some(RETRY_DIRECTIVE);
        }
        let silent_until = Instant::now() + HEARTBEAT_EVERY;
        loop {
            tokio::select! {
                biased;
                _ = self.ending.wait_for(|ending| *ending) => return None,
                changed = self.updates.changed() => changed.ok()?,
                () = sleep_until(silent_until) => return Some(HEARTBEAT),
            }
            if let Some(update) = *self.updates.borrow_and_update() {
                let data = serde_json::to_string(&update).expect("figures are JSON");
                return Some(encode_event(None, "fleet", &data));
            }
        }
    }
}
