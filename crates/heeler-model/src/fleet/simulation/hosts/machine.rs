//! A machine with its clocks, its files and the runners on it. They outlive its daemon.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::daemon::HostDaemon;
use super::server::SharedRun;
use crate::RunId;
use crate::run::{HostContact, RunLease, RunLeaseState, RunResult};

/// Clocks of a machine. They differ from those of the others in offset and speed.
#[derive(Debug, Clone)]
pub(super) struct MachineClock {
    /// Start of the machine.
    pub(super) booted_at: Duration,
    pub(super) boot: String,
    /// Millionths by which the clock is fast.
    drift: i64,
    wall_offset: SignedDuration,
}

impl MachineClock {
    pub(super) fn new(random: &mut fastrand::Rng, now: Duration) -> MachineClock {
        let booted_at = now.saturating_sub(Duration::from_secs(random.u64(0..100_000)));
        let wall_offset = SignedDuration::from_millis(random.i64(-5_000..5_000));
        MachineClock { booted_at, boot: "0".to_owned(), drift: random.i64(-400..400), wall_offset }
    }

    /// Returns the time since the start of the machine, as it measures it.
    pub(super) fn since_boot(&self, now: Duration) -> Duration {
        let micros = now.saturating_sub(self.booted_at).as_micros() as i64;
        Duration::from_micros((micros + micros / 1_000_000 * self.drift).unsigned_abs())
    }

    pub(super) fn wall(&self, now: Duration) -> Timestamp {
        let start: Timestamp = Timestamp::from_second(1_774_735_200).unwrap();
        start + SignedDuration::try_from(now).unwrap() + self.wall_offset
    }

    pub(super) fn shift_wall(&mut self, by: SignedDuration) {
        self.wall_offset += by;
    }

    pub(super) fn reboot(&mut self, at: Duration) {
        self.booted_at = at;
        self.boot.push('+');
    }
}

#[derive(Debug, Clone)]
pub(super) enum LocalRunState {
    /// The runner and its agent work.
    Alive,
    /// The runner has written the result.
    Exited(Box<RunResult>),
    /// The runner was killed.
    Dead,
}

/// Folder of a run whose runner was started on this machine.
#[derive(Debug, Clone)]
pub(super) struct LocalRun {
    pub(super) row: SharedRun,
    pub(super) state: LocalRunState,
    pub(super) lease: Option<RunLease>,
    /// Rows in the transcript, and those that a power loss leaves.
    pub(super) rows: u64,
    pub(super) synced: u64,
    /// Rows that the database has, as the present daemon knows.
    pub(super) shipped: u64,
    pub(super) is_cancelled: bool,
}

impl LocalRun {
    pub(super) fn is_alive(&self) -> bool {
        matches!(self.state, LocalRunState::Alive)
    }

    /// Returns true if no agent works on it any more, or none would go on when it is woken: a machine that was
    /// paused may write the file before its runner looks.
    pub(super) fn is_over(&self, boot: &str, now: Duration) -> bool {
        let Some(lease) = self.lease.as_ref().filter(|_| self.is_alive()) else {
            return !self.is_alive();
        };
        let contact = HostContact::new(boot, now);
        matches!(lease.clone().update(Some(&contact), now), RunLeaseState::Over { .. })
    }
}

#[derive(Debug)]
pub(super) struct HostMachine {
    pub(super) clock: MachineClock,
    /// Nothing on the machine works until then.
    pub(super) paused_until: Duration,
    /// No message reaches it, or leaves it, until then.
    pub(super) cut_until: Duration,
    /// Content of `host-lease.json`.
    pub(super) contact_file: Option<HostContact>,
    pub(super) runs: BTreeMap<RunId, LocalRun>,
    /// Rows of runs of other hosts that it has.
    pub(super) copies: BTreeMap<RunId, u64>,
    pub(super) daemon: Option<HostDaemon>,
}

impl HostMachine {
    pub(super) fn new(random: &mut fastrand::Rng, now: Duration) -> HostMachine {
        HostMachine {
            clock: MachineClock::new(random, now),
            paused_until: now,
            cut_until: now,
            contact_file: None,
            runs: BTreeMap::new(),
            copies: BTreeMap::new(),
            daemon: None,
        }
    }

    /// The machine loses its power. What was not synced is lost.
    pub(super) fn lose_power(&mut self, until: Duration) {
        self.daemon = None;
        self.paused_until = until;
        self.clock.reboot(until);
        for run in self.runs.values_mut() {
            run.rows = run.synced;
            if run.is_alive() {
                run.state = LocalRunState::Dead;
            }
        }
    }
}
