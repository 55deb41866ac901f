//! The fleet in a few figures, as they change: one thread looks for all who want to know.

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

use super::StreamCountGuard;
use super::event::{HEARTBEAT, RETRY_DIRECTIVE, encode_event};
use super::subscriber::HEARTBEAT_EVERY;

/// How often the figures are told at most.
pub(crate) const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);

/// How many looks pass before the figures are read although nothing has changed: yesterday moves on.
const IDLE_POLLS_MAX: u32 = 240;

/// The figures, for whoever holds them.
#[derive(Debug)]
pub(super) struct FleetStatsPublisher(watch::Sender<Option<FleetActivityUpdate>>);

/// Starts a thread that reads the figures while somebody wants them.
pub(super) fn start_publisher(
    records: FleetReader,
    commits: Arc<AtomicU64>,
    now: fn() -> Timestamp,
) -> io::Result<Arc<FleetStatsPublisher>> {
    let pulses = Arc::new(FleetStatsPublisher(watch::Sender::new(None)));
    let weak = Arc::downgrade(&pulses);
    std::thread::Builder::new().name("live-fleet".to_owned()).spawn(move || {
        publish_changes(&weak, &records, &commits, now);
    })?;
    Ok(pulses)
}

fn publish_changes(
    pulses: &Weak<FleetStatsPublisher>,
    records: &FleetReader,
    commits: &AtomicU64,
    now: fn() -> Timestamp,
) {
    let (mut seen, mut idle) = (None, 0);
    while let Some(pulses) = pulses.upgrade() {
        let commit = commits.load(Ordering::SeqCst);
        idle += 1;
        if seen != Some(commit) || idle > IDLE_POLLS_MAX {
            match records.activity(now()).map(|pulse| FleetActivityUpdate { commit, pulse }) {
                Ok(pulse) => {
                    (seen, idle) = (Some(commit), 0);
                    pulses.0.send_if_modified(|known| known.replace(pulse) != Some(pulse));
                }
                Err(error) => {
                    tracing::warn!(reason = error_chain(&error), "cannot look at the fleet")
                }
            }
        }
        drop(pulses);
        std::thread::sleep(PUBLISH_INTERVAL);
    }
}

/// Somebody who is sent the figures.
pub(super) struct FleetStatsSubscriber {
    /// Keeps the thread alive.
    _pulses: Arc<FleetStatsPublisher>,
    updates: watch::Receiver<Option<FleetActivityUpdate>>,
    ending: watch::Receiver<bool>,
    _counted: StreamCountGuard,
    is_opened: bool,
}

impl FleetStatsSubscriber {
    pub(super) fn new(
        pulses: Arc<FleetStatsPublisher>,
        ending: watch::Receiver<bool>,
        counted: StreamCountGuard,
    ) -> FleetStatsSubscriber {
        let mut news = pulses.0.subscribe();
        news.mark_changed();
        FleetStatsSubscriber {
            _pulses: pulses,
            updates: news,
            ending,
            _counted: counted,
            is_opened: false,
        }
    }

    /// Returns what to send next; none at the end.
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
            if let Some(pulse) = *self.updates.borrow_and_update() {
                let data = serde_json::to_string(&pulse).expect("figures are JSON");
                return Some(encode_event(None, "fleet", &data));
            }
        }
    }
}
