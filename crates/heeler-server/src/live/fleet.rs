//! The fleet in a few figures, as they change: one thread looks for all who want to know.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Bytes;
use heeler_model::chain;
use heeler_query::Records;
use heeler_query::live::FleetPulse;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Counted;
use super::client::HEARTBEAT_EVERY;
use super::event::{HEARTBEAT, OPENING, event};

/// How often the figures are told at most.
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(250);

/// How many looks pass before the figures are read although nothing has changed: yesterday moves on.
const LOOKS_IDLE: u32 = 240;

/// The figures, for whoever holds them.
#[derive(Debug)]
pub(super) struct Pulses(watch::Sender<Option<FleetPulse>>);

/// Starts a thread that reads the figures while somebody wants them.
pub(super) fn start(
    records: Records,
    commits: Arc<AtomicU64>,
    now: fn() -> Timestamp,
) -> io::Result<Arc<Pulses>> {
    let pulses = Arc::new(Pulses(watch::Sender::new(None)));
    let weak = Arc::downgrade(&pulses);
    std::thread::Builder::new().name("live-fleet".to_owned()).spawn(move || {
        look(&weak, &records, &commits, now);
    })?;
    Ok(pulses)
}

fn look(pulses: &Weak<Pulses>, records: &Records, commits: &AtomicU64, now: fn() -> Timestamp) {
    let (mut seen, mut idle) = (None, 0);
    while let Some(pulses) = pulses.upgrade() {
        let commit = commits.load(Ordering::SeqCst);
        idle += 1;
        if seen != Some(commit) || idle > LOOKS_IDLE {
            match records.pulse(now()).map(|pulse| FleetPulse { commit, pulse }) {
                Ok(pulse) => {
                    (seen, idle) = (Some(commit), 0);
                    pulses.0.send_if_modified(|known| known.replace(pulse) != Some(pulse));
                }
                Err(error) => tracing::warn!(reason = chain(&error), "cannot look at the fleet"),
            }
        }
        drop(pulses);
        std::thread::sleep(TELL_EVERY);
    }
}

/// Somebody who is sent the figures.
pub(super) struct Watcher {
    /// Keeps the thread alive.
    _pulses: Arc<Pulses>,
    news: watch::Receiver<Option<FleetPulse>>,
    ending: watch::Receiver<bool>,
    _counted: Counted,
    is_opened: bool,
}

impl Watcher {
    pub(super) fn new(
        pulses: Arc<Pulses>,
        ending: watch::Receiver<bool>,
        counted: Counted,
    ) -> Watcher {
        let mut news = pulses.0.subscribe();
        news.mark_changed();
        Watcher { _pulses: pulses, news, ending, _counted: counted, is_opened: false }
    }

    /// Returns what to send next; none at the end.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.is_opened, true) {
            return Some(OPENING);
        }
        let silent_until = Instant::now() + HEARTBEAT_EVERY;
        loop {
            tokio::select! {
                biased;
                _ = self.ending.wait_for(|ending| *ending) => return None,
                changed = self.news.changed() => changed.ok()?,
                () = sleep_until(silent_until) => return Some(HEARTBEAT),
            }
            if let Some(pulse) = *self.news.borrow_and_update() {
                let data = serde_json::to_string(&pulse).expect("figures are JSON");
                return Some(event(None, "fleet", &data));
            }
        }
    }
}
