//! Transcripts of runs on other hosts: each host ships what its runners append, and every host keeps a
//! copy.
//!
//! A part is a range of whole lines of one file. Parts are numbered in the order of their commits, so a
//! host reads each one once. Start at [`HostLink::send_part`] and [`HostLink::parts_after`].

use heeler_model::RunId;
use jiff::Timestamp;

use crate::db::DatabaseError;
use crate::db::postgres::quote;
use crate::host_link::HostLink;
use crate::host_row::{number, text};
use crate::views::hex;

/// Channel of the server on which hosts learn of new parts.
const PART_CHANNEL: &str = "heeler_parts";

/// Most parts that a host reads at once.
const PARTS_AT_ONCE: usize = 4;

/// Days after which parts are removed even if a host has not read them.
const PART_AGE_MAX_DAYS: u32 = 30;

/// Tables of this module. The counter's row is locked until the commit, so numbers and commits have the
/// same order.
pub(crate) const CREATE_FILES: &str = "CREATE TABLE IF NOT EXISTS shared_files (\
    path TEXT NOT NULL PRIMARY KEY, host TEXT NOT NULL, length BIGINT NOT NULL, run TEXT); \
    CREATE INDEX IF NOT EXISTS idx_shared_files_run ON shared_files (host, run) \
    WHERE run IS NOT NULL; \
    CREATE TABLE IF NOT EXISTS file_counter (one BIGINT NOT NULL PRIMARY KEY, last BIGINT NOT NULL); \
    INSERT INTO file_counter (one, last) VALUES (1, 0) ON CONFLICT (one) DO NOTHING; \
    CREATE TABLE IF NOT EXISTS file_parts (\
    number BIGINT NOT NULL PRIMARY KEY, run TEXT NOT NULL, term BIGINT NOT NULL, host TEXT NOT NULL, \
    path TEXT NOT NULL, start BIGINT NOT NULL, bytes BYTEA NOT NULL, \
    created_at TIMESTAMPTZ NOT NULL, UNIQUE (path, start))";

/// Part of a transcript, to be shipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedPart<'p> {
    pub run: RunId,
    /// Term of the run under which the host works on it.
    pub term: i64,
    /// Path of the file in the state directory.
    pub path: &'p str,
    /// Offset of the first byte.
    pub start: u64,
    /// Whole lines.
    pub bytes: &'p [u8],
}

/// Outcome of shipping a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartReceipt {
    Stored,
    /// The fleet has given the run up, or another host has it.
    Fenced,
    /// The file on record has another length.
    OtherLength(u64),
    /// Another host ships the file.
    OtherHost(String),
}

/// A part that another host shipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedPart {
    pub number: i64,
    pub host: String,
    pub path: String,
    pub start: u64,
    pub bytes: Vec<u8>,
}

impl HostLink {
    /// Ships a part, if it continues the file on record and the run is this host's. A repeated part has no
    /// effect.
    pub fn send_part(&self, part: &SharedPart<'_>) -> Result<PartReceipt, DatabaseError> {
        let end = part.start + part.bytes.len() as u64;
        let (run, term, start) = (quote(&part.run.to_string()), part.term, part.start);
        let (path, host) = (quote(part.path), quote(self.host_name()));
        // The lock on the run's row orders this with a commit that gives the run up.
        let sql = format!(
            "WITH allowed AS (SELECT 1 FROM runs WHERE id = {run} AND host = {host} \
             AND term = {term} FOR SHARE), \
             file AS (INSERT INTO shared_files AS known (path, host, length, run) \
             SELECT {path}, {host}, {end}, {run} FROM allowed \
             WHERE {start} = 0 OR EXISTS (SELECT 1 FROM shared_files WHERE path = {path}) \
             ON CONFLICT (path) DO UPDATE SET length = excluded.length, run = excluded.run \
             WHERE known.host = excluded.host AND known.length = {start} RETURNING 1), \
             counted AS (UPDATE file_counter SET last = last + 1 \
             WHERE one = 1 AND EXISTS (SELECT 1 FROM file) RETURNING last) \
             INSERT INTO file_parts (number, run, term, host, path, start, bytes, created_at) \
             SELECT last, {run}, {term}, {host}, {path}, {start}, decode('{}', 'hex'), \
             clock_timestamp() FROM counted RETURNING number; NOTIFY {PART_CHANNEL}",
            hex(part.bytes)
        );
        if !self.query("ship a transcript", &sql)?.is_empty() {
            return Ok(PartReceipt::Stored);
        }
        let sql = format!(
            "SELECT (SELECT 1 FROM runs WHERE id = {run} AND host = {host} AND term = {term}), \
             (SELECT host FROM shared_files WHERE path = {path}), \
             (SELECT length FROM shared_files WHERE path = {path})"
        );
        let rows = self.query("ship a transcript", &sql)?;
        let row = rows.first().map(Vec::as_slice).unwrap_or_default();
        if text(row, 0).is_none() {
            return Ok(PartReceipt::Fenced);
        }
        Ok(match text(row, 1) {
            Some(other) if other != self.host_name() => PartReceipt::OtherHost(other),
            _ => PartReceipt::OtherLength(number(row, 2).unsigned_abs()),
        })
    }

    /// Lists runs of this host with files that may not be shipped to their end.
    pub fn unshipped_runs(&self) -> Result<Vec<RunId>, DatabaseError> {
        let sql = format!(
            "SELECT DISTINCT run FROM shared_files WHERE host = {} AND run IS NOT NULL ORDER BY run",
            quote(self.host_name())
        );
        let rows = self.query("list unshipped transcripts", &sql)?;
        Ok(rows.iter().filter_map(|row| text(row, 0)?.parse().ok()).collect())
    }

    /// Lists the runs of this host that began since a time.
    pub fn runs_since(&self, since: Timestamp) -> Result<Vec<RunId>, DatabaseError> {
        self.own_runs(since, "")
    }

    /// Lists the runs of this host that began since a time, and of which no transcript is on record.
    pub fn unrecorded_runs(&self, since: Timestamp) -> Result<Vec<RunId>, DatabaseError> {
        let is_missing = "AND NOT EXISTS (SELECT 1 FROM shared_files \
                          WHERE path = 'jobs/' || runs.job_id || '.jsonl')";
        self.own_runs(since, is_missing)
    }

    fn own_runs(&self, since: Timestamp, condition: &str) -> Result<Vec<RunId>, DatabaseError> {
        // IDs begin with the time, so the index of the IDs finds them.
        let first = RunId::mint(since, [0; 10]).to_string();
        let sql = format!(
            "SELECT id FROM runs WHERE id >= {} AND host = {} {condition} ORDER BY id",
            quote(&first),
            quote(self.host_name())
        );
        let rows = self.query("list runs of this host", &sql)?;
        Ok(rows.iter().filter_map(|row| text(row, 0)?.parse().ok()).collect())
    }

    /// Records that the files of an ended run are shipped to their end.
    pub fn finish_files(&self, run: RunId) -> Result<(), DatabaseError> {
        let sql = format!(
            "UPDATE shared_files SET run = NULL WHERE host = {} AND run = {}",
            quote(self.host_name()),
            quote(&run.to_string())
        );
        self.query("record a shipped transcript", &sql).map(drop)
    }

    /// Calls a function when a host may have shipped a part, and at the end of the connection. The function
    /// must not wait.
    pub fn listen_for_parts(
        &self,
        hint: impl Fn() + Send + Sync + 'static,
    ) -> Result<(), DatabaseError> {
        self.listen(PART_CHANNEL, Box::new(hint))
    }

    /// Reads the parts of all hosts after a number, in the order of their commits.
    pub fn parts_after(&self, last: i64) -> Result<Vec<ReceivedPart>, DatabaseError> {
        let sql = format!(
            "SELECT number, host, path, start, encode(bytes, 'hex') FROM file_parts \
             WHERE number > {last} ORDER BY number LIMIT {PARTS_AT_ONCE}"
        );
        let one = |row: &Vec<Option<String>>| {
            Some(ReceivedPart {
                number: number(row, 0),
                host: text(row, 1)?,
                path: text(row, 2)?,
                start: number(row, 3).unsigned_abs(),
                bytes: from_hex(&text(row, 4)?),
            })
        };
        Ok(self.query("read transcripts", &sql)?.iter().filter_map(one).collect())
    }

    /// Returns the number of the last part of which this host has a durable copy.
    pub fn parts_read(&self) -> Result<i64, DatabaseError> {
        let sql = format!(
            "SELECT parts_read FROM hosts WHERE name = {} AND id = {}",
            quote(self.host_name()),
            quote(self.host_id())
        );
        let rows = self.query("read the progress of this host", &sql)?;
        Ok(rows.first().map_or(0, |row| number(row, 0)))
    }

    /// Records that this host has durable copies of all parts up to a number.
    pub fn note_parts_read(&self, last: i64) -> Result<(), DatabaseError> {
        let sql = format!(
            "UPDATE hosts SET parts_read = GREATEST(parts_read, {last}) WHERE name = {} AND id = {}",
            quote(self.host_name()),
            quote(self.host_id())
        );
        self.query("record the progress of this host", &sql).map(drop)
    }

    /// Removes parts of ended runs that every host has, or that are too old.
    pub fn remove_read_parts(&self) -> Result<(), DatabaseError> {
        let sql = format!(
            "DELETE FROM file_parts WHERE (number <= (SELECT MIN(parts_read) FROM hosts) OR \
             created_at < clock_timestamp() - interval '{PART_AGE_MAX_DAYS} days') AND \
             NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = file_parts.run AND committed = 0)"
        );
        self.query("remove transcripts that all hosts have", &sql).map(drop)
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map_or(0, |digit| digit as u8);
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_text_form() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&hex(&all)), all);
    }
}
