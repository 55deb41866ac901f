//! Hosts on record: their state, labels and limits. Start at [`StateDatabase::hosts`].

use std::num::NonZeroU32;
use std::time::Duration;

use heeler_config::HostLabel;
use serde::{Deserialize, Serialize};

use crate::db::database_error::failed;
use crate::db::postgres::quote;
use crate::db::{DatabaseError, StateDatabase};
use crate::host_row::{flag, number, text};

/// Time without a sign of life after which a host counts as away.
pub(crate) const HOST_SILENCE_MAX: Duration = Duration::from_secs(10);

/// Most labels of a host.
pub const HOST_LABELS_MAX: usize = 32;

/// State of a host, as it reports it itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// Decides for the fleet.
    Leader,
    /// Takes over if the leader dies.
    Standby,
    /// Was stopped.
    Stopped,
}

impl HostState {
    pub fn as_str(self) -> &'static str {
        match self {
            HostState::Leader => "leader",
            HostState::Standby => "standby",
            HostState::Stopped => "stopped",
        }
    }

    pub(crate) fn from_text(text: &str) -> HostState {
        match text {
            "leader" => HostState::Leader,
            "standby" => HostState::Standby,
            _ => HostState::Stopped,
        }
    }
}

/// Facts of a host's daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostFacts {
    pub version: String,
    pub pid: u32,
    /// Address of its dashboard.
    pub url: Option<String>,
    /// Its labels; `None` keeps those on record.
    pub labels: Option<Vec<HostLabel>>,
    /// Most runs at once, 0 for no limit; `None` keeps the one on record.
    pub max_concurrent: Option<u32>,
}

/// A host on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostRecord {
    pub name: String,
    pub state: HostState,
    /// True if it gave a sign of life lately, by the clock of the database.
    pub is_alive: bool,
    /// True if it has the lead.
    pub is_leader: bool,
    /// Seconds since its last sign of life, by the clock of the database.
    pub seen_seconds_ago: i64,
    pub machine: String,
    pub version: String,
    pub pid: i64,
    pub url: Option<String>,
    /// Start of its daemon, as text.
    pub started_at: String,
    /// Runs without a recorded result.
    pub runs: i64,
    pub labels: Vec<HostLabel>,
    /// Most runs at once.
    pub max_concurrent: Option<NonZeroU32>,
    /// The person who drained it: it gets no new runs.
    pub drained_by: Option<String>,
    /// Milliseconds by which its clock is ahead of the database's, at its last sign of life.
    pub clock_ahead_ms: Option<i64>,
    /// Milliseconds until its lead ends unless it is renewed; `None` for a host that does not lead.
    pub lease_left_ms: Option<i64>,
}

/// Returns labels as the database has them. No label contains a comma.
pub(crate) fn write_labels(labels: &[HostLabel]) -> String {
    let labels: Vec<&str> = labels.iter().map(HostLabel::as_str).collect();
    labels.join(",")
}

fn read_labels(text: &str) -> Vec<HostLabel> {
    text.split(',').filter_map(|label| label.parse().ok()).collect()
}

impl HostRecord {
    fn of_row(row: &[Option<String>]) -> HostRecord {
        let limit = number(row, 12);
        HostRecord {
            name: text(row, 0).unwrap_or_default(),
            state: HostState::from_text(&text(row, 1).unwrap_or_default()),
            is_alive: flag(row, 2),
            is_leader: flag(row, 3),
            seen_seconds_ago: number(row, 4),
            machine: text(row, 5).unwrap_or_default(),
            version: text(row, 6).unwrap_or_default(),
            pid: number(row, 7),
            url: text(row, 8),
            started_at: text(row, 9).unwrap_or_default(),
            runs: number(row, 10),
            labels: read_labels(&text(row, 11).unwrap_or_default()),
            max_concurrent: u32::try_from(limit).ok().and_then(NonZeroU32::new),
            drained_by: text(row, 13),
            clock_ahead_ms: text(row, 14).and_then(|text| text.parse().ok()),
            lease_left_ms: text(row, 15).and_then(|text| text.parse().ok()),
        }
    }
}

impl StateDatabase {
    /// Lists the hosts of the fleet by name; none for a fleet with one machine.
    pub fn hosts(&self) -> Result<Vec<HostRecord>, DatabaseError> {
        let Some(conn) = self.conn.as_postgres() else { return Ok(Vec::new()) };
        let query =
            |sql: &str| conn.simple_query(sql).map_err(|source| failed("list the hosts", source));
        let is_there = query("SELECT to_regclass('hosts') IS NOT NULL")?;
        if !is_there.first().is_some_and(|row| flag(row, 0)) {
            return Ok(Vec::new());
        }
        let alive = HOST_SILENCE_MAX.as_secs();
        // A table of an earlier release lacks columns until the first host of this one starts.
        let rows = query(&format!(
            "SELECT name, state, \
             state <> 'stopped' AND seen_at > clock_timestamp() - interval '{alive} seconds', \
             COALESCE((SELECT lease_until > clock_timestamp() AND instance IS NOT NULL \
             FROM store_writer WHERE store_writer.holder = hosts.holder), false), \
             GREATEST(CAST(EXTRACT(EPOCH FROM clock_timestamp() - seen_at) AS BIGINT), 0), \
             machine, version, pid, url, \
             to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), \
             (SELECT COUNT(*) FROM runs WHERE runs.host = hosts.name AND committed = 0), \
             to_jsonb(hosts) ->> 'labels', to_jsonb(hosts) ->> 'max_concurrent', \
             to_jsonb(hosts) ->> 'drained_by', to_jsonb(hosts) ->> 'clock_ahead_ms', \
             (SELECT CAST(EXTRACT(EPOCH FROM lease_until - clock_timestamp()) * 1000 AS BIGINT) \
             FROM store_writer WHERE store_writer.holder = hosts.holder AND instance IS NOT NULL \
             AND lease_until > clock_timestamp()) \
             FROM hosts ORDER BY name"
        ))?;
        Ok(rows.iter().map(|row| HostRecord::of_row(row)).collect())
    }

    /// Records that a host gets no new runs, or, without a person, that it gets them again. Returns
    /// false if there is no such host. Part of the writer's transaction.
    pub(crate) fn set_host_drained(
        &self,
        host: &str,
        by: Option<&str>,
    ) -> Result<bool, DatabaseError> {
        let Some(conn) = self.conn.as_postgres() else { return Ok(false) };
        let by = by.map_or_else(|| "NULL".to_owned(), quote);
        let host = quote(host);
        let sql = format!("UPDATE hosts SET drained_by = {by} WHERE name = {host} RETURNING 1");
        let rows = conn.simple_query(&sql).map_err(|source| failed("drain a host", source))?;
        Ok(!rows.is_empty())
    }
}
