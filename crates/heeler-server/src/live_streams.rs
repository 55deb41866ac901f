//! Live streams: server-sent events of the fleet, jobs, sessions, workflow runs and the daemon's
//! log.
//!
//! Event IDs are row numbers of the file. A client that reconnects with `Last-Event-ID` therefore
//! continues at the exact position, even with another daemon. Each followed job, session or run has
//! one thread, regardless of the number of clients. Start at [`LiveStreams`].

mod event;
mod fleet_stats;
mod hub;
mod hub_feeder;
mod log_stream;
mod stream_count;
mod stream_routes;
mod subscriber;
mod write_timeout;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::http::StatusCode;
use heeler_engine::FleetMonitor;
use heeler_query::FleetReader;
use jiff::Timestamp;
use tokio::sync::watch;

use self::fleet_stats::FleetStatsPublisher;
use self::hub::StreamHub;
use self::hub_feeder::FollowTarget;
use self::stream_count::StreamCountGuard;
pub(crate) use self::stream_routes::routes;
pub(crate) use self::write_timeout::WriteTimeoutStream;
use crate::problem::ProblemDetails;

/// Most followed jobs, sessions and runs; each has one or two threads.
pub(crate) const HUBS_MAX: usize = 256;

/// Most readers of the daemon's log; each polls the file separately.
pub(crate) const LOG_READERS_MAX: usize = 32;

/// Open streams, and the hubs that feed them.
pub struct LiveStreams {
    /// Counts commits of the state.
    commits: Arc<AtomicU64>,
    hubs: Mutex<HashMap<String, Weak<StreamHub>>>,
    fleet_stats: Mutex<Weak<FleetStatsPublisher>>,
    clients: Arc<AtomicUsize>,
    log_readers: Arc<AtomicUsize>,
    ending: watch::Sender<bool>,
}

impl fmt::Debug for LiveStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveStreams").field("clients", &self.clients).finish_non_exhaustive()
    }
}

impl LiveStreams {
    /// Starts to count the commits of a daemon's state.
    pub fn new(monitor: &FleetMonitor) -> Arc<LiveStreams> {
        let commits = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&commits);
        monitor.on_commit(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        Arc::new(LiveStreams {
            commits,
            hubs: Mutex::default(),
            fleet_stats: Mutex::default(),
            clients: Arc::default(),
            log_readers: Arc::default(),
            ending: watch::Sender::new(false),
        })
    }

    /// Ends all streams, so that browsers reconnect to the next daemon.
    pub(crate) fn end_all(&self) {
        // Without receivers `send` would fail and keep the old value.
        self.ending.send_replace(true);
    }

    /// Returns the number of open streams.
    pub(crate) fn client_count(&self) -> usize {
        self.clients.load(Ordering::SeqCst)
    }

    /// Returns the hub for a key; starts one if there is none.
    fn hub_for(
        &self,
        records: &FleetReader,
        key: String,
        target: FollowTarget,
    ) -> Result<Arc<StreamHub>, ProblemDetails> {
        // Held until the hub is in the map, so that two clients do not start two threads for one
        // key.
        let mut hubs = self.hubs.lock().unwrap_or_else(PoisonError::into_inner);
        // A broken hub stays in the map while old clients hold it; new clients need another.
        if let Some(hub) = hubs.get(&key).and_then(Weak::upgrade).filter(|hub| !hub.is_broken()) {
            return Ok(hub);
        }
        // Hubs without clients must not count towards the limit.
        hubs.retain(|_, hub| hub.strong_count() > 0);
        if hubs.len() >= HUBS_MAX {
            return Err(too_many(&format!(
                "{HUBS_MAX} jobs, sessions and runs are followed, which is the limit"
            )));
        }
        let hub = hub_feeder::start_hub(target, records.clone(), Arc::clone(&self.commits));
        let hub = hub.map_err(no_thread)?;
        // Only clients hold a hub, so that its thread ends with the last of them.
        hubs.insert(key, Arc::downgrade(&hub));
        Ok(hub)
    }

    fn fleet_stats_publisher(
        &self,
        records: &FleetReader,
        clock: fn() -> Timestamp,
    ) -> Result<Arc<FleetStatsPublisher>, ProblemDetails> {
        let mut current = self.fleet_stats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(publisher) = current.upgrade() {
            return Ok(publisher);
        }
        let publisher =
            fleet_stats::start_publisher(records.clone(), Arc::clone(&self.commits), clock);
        let publisher = publisher.map_err(no_thread)?;
        *current = Arc::downgrade(&publisher);
        Ok(publisher)
    }

    fn count_client(&self) -> StreamCountGuard {
        StreamCountGuard::new(&self.clients)
    }
}

fn too_many(detail: &str) -> ProblemDetails {
    ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", detail)
        .with_hint("close some streams and try again")
}

fn no_thread(error: io::Error) -> ProblemDetails {
    ProblemDetails::internal_error(format!("cannot start a thread: {error}"))
}
