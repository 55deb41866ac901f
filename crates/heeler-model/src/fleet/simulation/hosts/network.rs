//! The network between the hosts and the database: it loses, delays and reorders requests and replies.

use std::collections::BTreeMap;
use std::time::Duration;

use super::commit::CommitRequest;
use crate::RunId;
use crate::run::RunResult;

/// Shortest way of a message.
const WAY_MIN: Duration = Duration::from_millis(2);

/// Message of a host to the database.
#[derive(Debug)]
pub(super) enum HostRequest {
    /// A sign of life, which renews the lead of a host that leads.
    Beat {
        leads: bool,
    },
    TakeLead,
    /// A new connection of the writer: it raises the term, and learns how many commits there are.
    Reconnect {
        known_commits: i64,
    },
    Commit(Box<CommitRequest>),
    Claim {
        run: RunId,
        term: i64,
    },
    /// Rows of a run. `is_end` is true if the run has ended and has no more of them.
    Ship {
        run: RunId,
        term: i64,
        start: u64,
        end: u64,
        is_end: bool,
    },
    Report {
        run: RunId,
        term: i64,
        result: Box<RunResult>,
    },
}

/// Answer of the database.
#[derive(Debug, Clone, Copy)]
pub(super) enum HostReply {
    Pulse {
        is_own: bool,
        is_free: bool,
        commits: i64,
    },
    /// Term and number of commits of a writer; `None` if the lead is another host's, or commits are lost.
    Writer(Option<(i64, i64)>),
    Committed,
    Fenced,
    Claimed(bool),
    /// Rows that the database has of the run; `None` if it was given up.
    Shipped(Option<u64>),
    Reported,
}

#[derive(Debug)]
pub(super) enum WireMessage {
    Request(HostRequest),
    Reply(HostReply),
}

/// A message on its way.
#[derive(Debug)]
pub(super) struct HostMessage {
    /// Number of the request, which its reply has too.
    pub(super) id: u64,
    pub(super) host: usize,
    /// Process that sent the request.
    pub(super) instance: u64,
    /// Server to which the process is connected.
    pub(super) server: u32,
    pub(super) body: WireMessage,
}

/// Messages on their way, by time of arrival.
#[derive(Debug, Default)]
pub(super) struct HostNetwork {
    /// Messages of a thousand that are lost, and as many that come late.
    loss: u32,
    on_their_way: BTreeMap<(Duration, u64), HostMessage>,
    sent: u64,
}

impl HostNetwork {
    pub(super) fn new(loss: u32) -> HostNetwork {
        HostNetwork { loss, ..HostNetwork::default() }
    }

    /// Sends a message, which a wild network may lose.
    pub(super) fn send(
        &mut self,
        random: &mut fastrand::Rng,
        is_wild: bool,
        now: Duration,
        message: HostMessage,
    ) {
        let way = match random.u32(0..1_000) {
            luck if is_wild && luck < self.loss => return,
            luck if is_wild && luck < 2 * self.loss => {
                Duration::from_millis(random.u64(100..25_000))
            }
            _ => Duration::from_millis(random.u64(0..30)),
        };
        self.sent += 1;
        self.on_their_way.insert((now + WAY_MIN + way, self.sent), message);
    }

    /// Keeps a message for a machine that is paused.
    pub(super) fn hold(&mut self, message: HostMessage, until: Duration) {
        self.sent += 1;
        self.on_their_way.insert((until, self.sent), message);
    }

    /// Returns the next message that has arrived.
    pub(super) fn arrived(&mut self, now: Duration) -> Option<HostMessage> {
        let first = self.on_their_way.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
