//! Hosts of a fleet with several machines, as people see them. Start at [`FleetReader::hosts`].

use heeler_config::HostLabel;
use heeler_store::{HostRecord, HostState};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError};

/// Difference of clocks that is worth a word. Within it, the time of the message counts too.
const CLOCK_DIFFERENCE_MIN_MS: u64 = 1_000;

/// The hosts of a fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostList {
    /// Hosts by name. A fleet with one machine has none.
    pub hosts: Vec<HostSummary>,
}

/// A host of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostSummary {
    /// Name.
    pub name: String,
    /// Role: `leader`, `standby`, `away` or `stopped`, with `, drained` if it gets no new runs.
    pub role: String,
    /// True if it gave a sign of life lately.
    pub is_alive: bool,
    /// True if it decides for the fleet.
    pub is_leader: bool,
    /// Seconds since its last sign of life.
    pub seen_seconds_ago: i64,
    /// Runs without a recorded result.
    pub runs: i64,
    /// Most runs at once.
    pub max_concurrent: Option<u32>,
    /// Labels.
    pub labels: Vec<String>,
    /// Person who drained it.
    pub drained_by: Option<String>,
    /// Milliseconds by which its clock is ahead of that of the database.
    pub clock_ahead_ms: Option<i64>,
    /// Milliseconds until its lead ends unless it is renewed; absent for a host that does not lead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_left_ms: Option<i64>,
    /// The difference of the clocks in words.
    #[serde(skip)]
    pub clock: String,
    /// Name of the machine.
    pub machine: String,
    /// Version of its daemon.
    pub version: String,
    /// Start of its daemon.
    pub started_at: String,
    /// Address of its dashboard.
    pub url: Option<String>,
}

impl From<HostRecord> for HostSummary {
    fn from(host: HostRecord) -> HostSummary {
        HostSummary {
            role: host_role(&host).to_owned(),
            clock: clock_text(&host),
            labels: host.labels.iter().map(ToString::to_string).collect(),
            max_concurrent: host.max_concurrent.map(|limit| limit.get()),
            name: host.name,
            is_alive: host.is_alive,
            is_leader: host.is_leader,
            seen_seconds_ago: host.seen_seconds_ago,
            runs: host.runs,
            drained_by: host.drained_by,
            clock_ahead_ms: host.clock_ahead_ms,
            lease_left_ms: host.lease_left_ms,
            machine: host.machine,
            version: host.version,
            started_at: host.started_at,
            url: host.url,
        }
    }
}

impl FleetReader {
    /// Lists the hosts of the fleet by name.
    pub fn hosts(&self) -> Result<HostList, QueryError> {
        let hosts = self.reader()?.hosts()?;
        Ok(HostList { hosts: hosts.into_iter().map(HostSummary::from).collect() })
    }
}

/// Returns the role of a host.
pub fn host_role(host: &HostRecord) -> &'static str {
    match (host.state, host.is_alive, host.drained_by.is_some()) {
        (HostState::Stopped, ..) => "stopped",
        (_, false, _) => "away",
        (HostState::Leader, true, false) => "leader",
        (HostState::Leader, true, true) => "leader, drained",
        (HostState::Standby, true, false) => "standby",
        (HostState::Standby, true, true) => "standby, drained",
    }
}

/// Returns the number of runs of a host, and its limit.
pub fn load_text(host: &HostRecord) -> String {
    match host.max_concurrent {
        Some(limit) => format!("{} of {limit}", host.runs),
        None => host.runs.to_string(),
    }
}

/// Returns the labels of a host.
pub fn label_text(host: &HostRecord) -> String {
    let labels: Vec<&str> = host.labels.iter().map(HostLabel::as_str).collect();
    match labels.is_empty() {
        true => "-".to_owned(),
        false => labels.join(", "),
    }
}

/// Returns the difference of a host's clock from that of the database.
pub fn clock_text(host: &HostRecord) -> String {
    let Some(ahead) = host.clock_ahead_ms else { return "not known yet".to_owned() };
    let seconds = ahead.unsigned_abs() as f64 / 1_000.0;
    match (ahead.unsigned_abs() < CLOCK_DIFFERENCE_MIN_MS, ahead > 0) {
        (true, _) => "as the database".to_owned(),
        (false, true) => format!("{seconds:.1} s ahead of the database"),
        (false, false) => format!("{seconds:.1} s behind the database"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostRecord {
        HostRecord {
            name: "alpha".to_owned(),
            state: HostState::Standby,
            is_alive: true,
            is_leader: false,
            seen_seconds_ago: 0,
            machine: "build-1".to_owned(),
            version: "1".to_owned(),
            pid: 1,
            url: None,
            started_at: String::new(),
            runs: 2,
            labels: Vec::new(),
            max_concurrent: None,
            drained_by: None,
            clock_ahead_ms: None,
            lease_left_ms: None,
        }
    }

    #[test]
    fn a_host_is_described_in_words() {
        let plain = host();
        assert_eq!((host_role(&plain), load_text(&plain).as_str()), ("standby", "2"));
        assert_eq!(
            (label_text(&plain).as_str(), clock_text(&plain).as_str()),
            ("-", "not known yet")
        );
        let full = HostRecord {
            state: HostState::Leader,
            labels: vec!["gpu".parse().unwrap(), "os=linux".parse().unwrap()],
            max_concurrent: std::num::NonZeroU32::new(4),
            drained_by: Some("me".to_owned()),
            ..host()
        };
        assert_eq!((host_role(&full), load_text(&full).as_str()), ("leader, drained", "2 of 4"));
        assert_eq!(label_text(&full), "gpu, os=linux");
        assert_eq!(host_role(&HostRecord { is_alive: false, ..full }), "away");
        let clock = |ms| clock_text(&HostRecord { clock_ahead_ms: Some(ms), ..host() });
        assert_eq!(clock(-999), "as the database");
        assert_eq!(clock(1_500), "1.5 s ahead of the database");
        assert_eq!(clock(-61_000), "61.0 s behind the database");
    }
}
