//! Runs that the leader gives to another host. The host claims a run by one conditional change of its
//! row, so it is started once at most. Start at [`HostLink::claim_run`].

use heeler_model::RunId;
use heeler_model::run::ResultPublicKey;

use crate::db::postgres::quote;
use crate::db::{DatabaseError, StateDatabase};
use crate::host_link::HostLink;
use crate::host_row::{flag, text};

/// Status of a run that its host has not claimed.
pub const ASSIGNED_RUN: &str = "assigned";

/// Most refused results that are listed.
const REFUSALS_MAX: usize = 20;

/// A result that was refused, because the fleet had given its run up.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedResult {
    pub run: String,
    pub host: String,
    /// Time of the refusal, as text.
    pub refused_at: String,
    pub reason: String,
}

pub(crate) const CREATE_REFUSALS: &str = "CREATE TABLE IF NOT EXISTS refused_results (\
    run TEXT NOT NULL PRIMARY KEY, host TEXT NOT NULL, reason TEXT NOT NULL, \
    refused_at TIMESTAMPTZ NOT NULL)";

impl HostLink {
    /// Claims a run for this host, with the public key of its runner and the hash of its capability.
    /// Without a key, no signature fits the run.
    /// Returns false if the run was claimed before, has ended, or was given up.
    pub fn claim_run(
        &self,
        run: RunId,
        term: i64,
        key: Option<&ResultPublicKey>,
        capability: &str,
    ) -> Result<bool, DatabaseError> {
        let key = key.map_or_else(|| "NULL".to_owned(), |key| quote(&key.to_string()));
        let sql = format!(
            "UPDATE runs SET status = 'created', version = version + 1, \
             result_key = COALESCE({key}, result_key), capability = {} WHERE id = {} AND host = {} AND status = '{ASSIGNED_RUN}' \
             AND committed = 0 AND term = {term} RETURNING 1",
            quote(capability),
            quote(&run.to_string()),
            quote(self.host_name()),
        );
        Ok(!self.query("claim a run", &sql)?.is_empty())
    }

    /// Records that a result of this host is refused. A repeated refusal has no effect.
    pub fn record_refusal(&self, run: RunId, reason: &str) -> Result<(), DatabaseError> {
        let sql = format!(
            "INSERT INTO refused_results (run, host, reason, refused_at) \
             VALUES ({}, {}, {}, clock_timestamp()) ON CONFLICT (run) DO NOTHING",
            quote(&run.to_string()),
            quote(self.host_name()),
            quote(reason)
        );
        self.query("record a refused result", &sql).map(drop)
    }
}

impl StateDatabase {
    /// Lists the newest results of a host that were refused.
    pub fn refused_results(&self, host: &str) -> Result<Vec<RefusedResult>, DatabaseError> {
        let Some(conn) = self.conn.as_postgres() else { return Ok(Vec::new()) };
        let query = |sql: &str| {
            let failed = |source| crate::db::database_error::failed("list refused results", source);
            conn.simple_query(sql).map_err(failed)
        };
        let is_there = query("SELECT to_regclass('refused_results') IS NOT NULL")?;
        if !is_there.first().is_some_and(|row| flag(row, 0)) {
            return Ok(Vec::new());
        }
        let rows = query(&format!(
            "SELECT run, host, \
             to_char(refused_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), reason \
             FROM refused_results WHERE host = {} ORDER BY refused_results.refused_at DESC, run \
             LIMIT {REFUSALS_MAX}",
            quote(host)
        ))?;
        let one = |row: &Vec<Option<String>>| {
            Some(RefusedResult {
                run: text(row, 0)?,
                host: text(row, 1)?,
                refused_at: text(row, 2)?,
                reason: text(row, 3)?,
            })
        };
        Ok(rows.iter().filter_map(one).collect())
    }
}
