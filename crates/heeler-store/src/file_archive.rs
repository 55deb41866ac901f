//! The archive of shared files: compressed copies in the database, for hosts that lack the parts.
//!
//! A file is archived up to the length that is on record; all hosts agree on these bytes. Its chunks are
//! stored first, then its record in one statement. Parts are removed only after that. A file that grows is
//! archived again with its new length. Start at [`HostLink::unarchived_files`] and
//! [`HostLink::archived_after`].

use std::time::Duration;

use heeler_config::{FileArchiveConfig, FileArchivePlace};

use crate::db::database_error::failed;
use crate::db::postgres::quote;
use crate::db::{DatabaseError, StateDatabase};
use crate::hex::{from_hex, hex};
use crate::host_files::PART_CHANNEL;
use crate::host_link::HostLink;
use crate::host_row::{flag, number, text};
use crate::packed_file::PackedFile;

/// Most bytes of a file that is archived. Longer ones are only on the hosts that have them.
pub const ARCHIVED_BYTES_MAX: u64 = 1 << 30;

/// Most files that are listed at once.
const FILES_AT_ONCE: usize = 16;

/// Time for which only the host of a file archives it. After that the leader does it too, from its copy.
const OWNER_TIME: Duration = Duration::from_secs(24 * 3600);

/// Most faults of a host that are listed.
const FAULTS_MAX: usize = 20;

/// Most bytes of a fault's reason.
const REASON_BYTES_MAX: usize = 500;

/// Where and when files are archived, as the leader has recorded it for all hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileArchivePolicy {
    pub place: FileArchivePlace,
    /// Time since the last change of a file.
    pub after: Duration,
}

/// A file that the archive lacks, or of which it has only the beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnarchivedFile {
    pub path: String,
    /// The host that ships it.
    pub host: String,
    /// Bytes on record.
    pub length: u64,
    /// Time of its last change, as text.
    pub changed_at: String,
    /// Time since then, by the clock of the database.
    pub idle: Duration,
    /// True if its job has not ended, or has a run that is not shipped to its end.
    pub is_open: bool,
}

/// Outcome of [`FileArchivePolicy::decide`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveDecision {
    /// This host archives it now.
    Archive,
    /// It may change soon.
    Wait,
    /// Its own host archives it.
    LeaveToHost,
    /// It is too long for the archive.
    LeaveOut,
}

/// A file in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedFile {
    /// Grows with each file that is archived, in the order of the commits.
    pub number: i64,
    pub path: String,
    pub length: u64,
    /// SHA-256 of the content, in hexadecimal.
    pub sha256: String,
    /// The host that archived it.
    pub host: String,
    /// Chunks in the database.
    pub chunks: u64,
    /// Address of the object, if it is in an object store.
    pub object: Option<String>,
}

/// A file that a host could not archive, or not take from the archive.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveFault {
    pub host: String,
    pub path: String,
    pub reason: String,
}

impl FileArchivePolicy {
    pub fn of_config(config: &FileArchiveConfig) -> FileArchivePolicy {
        // The record has whole seconds.
        let after = Duration::from_secs(config.after.get().as_secs().max(1));
        FileArchivePolicy { place: config.to.clone(), after }
    }

    /// Decides what a host does with a file.
    pub fn decide(
        &self,
        file: &UnarchivedFile,
        own_name: &str,
        is_leader: bool,
    ) -> ArchiveDecision {
        if self.place == FileArchivePlace::Off || file.is_open || file.idle < self.after {
            return ArchiveDecision::Wait;
        }
        // Its host may be away, or may have lost it.
        let is_helper = is_leader && file.idle >= self.after.saturating_add(OWNER_TIME);
        if file.host != own_name && !is_helper {
            return ArchiveDecision::LeaveToHost;
        }
        match file.length > ARCHIVED_BYTES_MAX {
            true => ArchiveDecision::LeaveOut,
            false => ArchiveDecision::Archive,
        }
    }
}

impl HostLink {
    /// Returns the policy that the leader has recorded.
    pub fn file_archive_policy(&self) -> Result<FileArchivePolicy, DatabaseError> {
        let rows = self.query(
            "read the archive's policy",
            "SELECT place, after_seconds FROM archive_policy WHERE one = 1",
        )?;
        let row = rows.first().map(Vec::as_slice).unwrap_or_default();
        // A place of a later release is none of this one's.
        let place = text(row, 0).and_then(|place| place.parse().ok());
        Ok(FileArchivePolicy {
            place: place.unwrap_or(FileArchivePlace::Off),
            after: Duration::from_secs(number(row, 1).unsigned_abs()),
        })
    }

    /// Records the policy, if the writer with this instance leads.
    pub fn set_file_archive_policy(
        &self,
        instance: &str,
        policy: &FileArchivePolicy,
    ) -> Result<(), DatabaseError> {
        let sql = format!(
            "WITH lead AS (SELECT 1 FROM store_writer WHERE instance = {} FOR SHARE) \
             INSERT INTO archive_policy (one, place, after_seconds) SELECT 1, {}, {} FROM lead \
             ON CONFLICT (one) DO UPDATE \
             SET place = excluded.place, after_seconds = excluded.after_seconds; \
             NOTIFY {PART_CHANNEL}",
            quote(instance),
            quote(&policy.place.to_string()),
            policy.after.as_secs()
        );
        self.query("record the archive's policy", &sql).map(drop)
    }

    /// Lists files without a change for at least that time that the archive lacks: those with the oldest
    /// changes, or the ones after another file.
    pub fn unarchived_files(
        &self,
        idle: Duration,
        after: Option<&UnarchivedFile>,
    ) -> Result<Vec<UnarchivedFile>, DatabaseError> {
        let after = after.map_or_else(String::new, |file| {
            let (at, path) = (quote(&file.changed_at), quote(&file.path));
            format!("AND (changed_at, path) > (CAST({at} AS TIMESTAMPTZ), {path}) ")
        });
        let sql = format!(
            "WITH idle AS (SELECT path, host, length, changed_at, \
             CASE WHEN path LIKE 'jobs/%' THEN split_part(split_part(path, '/', 2), '.', 1) END AS job \
             FROM shared_files WHERE (archived IS NULL OR archived < length) \
             AND changed_at <= now() - interval '{} seconds' {after}\
             ORDER BY changed_at, path LIMIT {FILES_AT_ONCE}) \
             SELECT path, host, length, CAST(changed_at AS TEXT), GREATEST(CAST(FLOOR(EXTRACT(EPOCH \
             FROM clock_timestamp() - changed_at)) AS BIGINT), 0), EXISTS (SELECT 1 FROM executions \
             WHERE id = job AND status NOT IN ('completed', 'failed', 'cancelled')) \
             OR EXISTS (SELECT 1 FROM runs JOIN unshipped_runs ON unshipped_runs.run = runs.id \
             WHERE runs.job_id = job) FROM idle ORDER BY idle.changed_at, path",
            idle.as_secs(),
        );
        let one = |row: &Vec<Option<String>>| {
            Some(UnarchivedFile {
                path: text(row, 0)?,
                host: text(row, 1)?,
                length: number(row, 2).unsigned_abs(),
                changed_at: text(row, 3)?,
                idle: Duration::from_secs(number(row, 4).unsigned_abs()),
                is_open: flag(row, 5),
            })
        };
        Ok(self.query("list files to archive", &sql)?.iter().filter_map(one).collect())
    }

    /// Stores a chunk of a file that is not on record yet. A repeated chunk replaces the one before.
    pub fn put_archive_chunk(
        &self,
        file: &UnarchivedFile,
        chunk: u64,
        bytes: &[u8],
    ) -> Result<(), DatabaseError> {
        let sql = format!(
            "INSERT INTO archive_chunks (path, length, host, number, bytes) \
             VALUES ({}, {}, {}, {chunk}, decode('{}', 'hex')) \
             ON CONFLICT (path, length, host, number) DO UPDATE SET bytes = excluded.bytes",
            quote(&file.path),
            file.length,
            quote(self.host_name()),
            hex(bytes)
        );
        self.query("store a file in the archive", &sql).map(drop)
    }

    /// Records that this host has stored the chunks of a file, or its object, and removes those chunks that
    /// are not needed any more. Returns false if the archive has the file by now, or the database has lost some of it.
    pub fn record_archived(
        &self,
        file: &UnarchivedFile,
        packed: &PackedFile,
        object: Option<&str>,
    ) -> Result<bool, DatabaseError> {
        let (path, host) = (quote(&file.path), quote(self.host_name()));
        let (length, chunks) = (file.length, if object.is_none() { packed.chunks } else { 0 });
        let object = object.map_or_else(|| "NULL".to_owned(), quote);
        let sql = format!(
            "WITH known AS (UPDATE shared_files SET archived = {length} WHERE path = {path} \
             AND length >= {length} AND (archived IS NULL OR archived < {length}) RETURNING 1), \
             counted AS (UPDATE file_counter SET last = last + 1 \
             WHERE one = 1 AND EXISTS (SELECT 1 FROM known) RETURNING last) \
             INSERT INTO archived_files \
             (path, number, length, sha256, host, chunks, archived_at, object) \
             SELECT {path}, last, {length}, {}, {host}, {chunks}, clock_timestamp(), {object} \
             FROM counted \
             ON CONFLICT (path) DO UPDATE SET number = excluded.number, length = excluded.length, \
             sha256 = excluded.sha256, host = excluded.host, chunks = excluded.chunks, \
             archived_at = excluded.archived_at, object = excluded.object RETURNING 1; \
             DELETE FROM archive_chunks WHERE path = {path} AND length <= {length} \
             AND NOT EXISTS (SELECT 1 FROM archived_files AS known WHERE known.path = {path} \
             AND known.length = archive_chunks.length AND known.host = archive_chunks.host \
             AND archive_chunks.number < known.chunks); NOTIFY {PART_CHANNEL}",
            quote(&packed.sha256)
        );
        Ok(!self.query("record an archived file", &sql)?.is_empty())
    }

    /// Records that the archive does without a file of this length. Its parts are removed as without an
    /// archive.
    pub fn leave_out_of_archive(&self, file: &UnarchivedFile) -> Result<(), DatabaseError> {
        let sql = format!(
            "UPDATE shared_files SET archived = {length} WHERE path = {} AND length >= {length} \
             AND (archived IS NULL OR archived < {length})",
            quote(&file.path),
            length = file.length
        );
        self.query("leave a file out of the archive", &sql).map(drop)
    }

    /// Lists archived files after a number, in the order of their commits.
    pub fn archived_after(&self, last: i64) -> Result<Vec<ArchivedFile>, DatabaseError> {
        self.archived(&format!("number > {last} ORDER BY number LIMIT {FILES_AT_ONCE}"))
    }

    /// Returns a file of the archive.
    pub fn archived_file(&self, path: &str) -> Result<Option<ArchivedFile>, DatabaseError> {
        Ok(self.archived(&format!("path = {}", quote(path)))?.pop())
    }

    fn archived(&self, filter: &str) -> Result<Vec<ArchivedFile>, DatabaseError> {
        let sql = format!(
            "SELECT number, path, length, sha256, host, chunks, object FROM archived_files \
             WHERE {filter}"
        );
        let one = |row: &Vec<Option<String>>| {
            Some(ArchivedFile {
                number: number(row, 0),
                path: text(row, 1)?,
                // A length below zero fits no content.
                length: u64::try_from(number(row, 2)).unwrap_or(u64::MAX),
                sha256: text(row, 3)?,
                host: text(row, 4)?,
                chunks: number(row, 5).unsigned_abs(),
                object: text(row, 6),
            })
        };
        Ok(self.query("list archived files", &sql)?.iter().filter_map(one).collect())
    }

    /// Reads a chunk of an archived file; `None` if the file was archived anew meanwhile.
    pub fn archive_chunk(
        &self,
        file: &ArchivedFile,
        chunk: u64,
    ) -> Result<Option<Vec<u8>>, DatabaseError> {
        let sql = format!(
            "SELECT encode(bytes, 'hex') FROM archive_chunks \
             WHERE path = {} AND length = {} AND host = {} AND number = {chunk}",
            quote(&file.path),
            file.length,
            quote(&file.host)
        );
        let rows = self.query("read a file of the archive", &sql)?;
        Ok(rows.first().and_then(|row| text(row, 0)).map(|bytes| from_hex(&bytes)))
    }

    /// Returns the number of the last archived file that this host has looked at.
    pub fn archives_read(&self) -> Result<i64, DatabaseError> {
        let sql = format!(
            "SELECT archives_read FROM hosts WHERE name = {} AND id = {}",
            quote(self.host_name()),
            quote(self.host_id())
        );
        let rows = self.query("read the progress of this host", &sql)?;
        Ok(rows.first().map_or(0, |row| number(row, 0)))
    }

    /// Records that this host has all archived files up to a number, or a fault for them.
    pub fn note_archives_read(&self, last: i64) -> Result<(), DatabaseError> {
        let sql = format!(
            "UPDATE hosts SET archives_read = GREATEST(archives_read, {last}) \
             WHERE name = {} AND id = {}",
            quote(self.host_name()),
            quote(self.host_id())
        );
        self.query("record the progress of this host", &sql).map(drop)
    }

    /// Records why this host cannot archive a file, or not take it from the archive. Returns false if that
    /// is known.
    pub fn note_archive_fault(&self, path: &str, reason: &str) -> Result<bool, DatabaseError> {
        let end = reason.floor_char_boundary(REASON_BYTES_MAX);
        let sql = format!(
            "INSERT INTO archive_faults AS known (host, path, reason, seen_at) \
             VALUES ({}, {}, {}, clock_timestamp()) ON CONFLICT (host, path) DO UPDATE \
             SET reason = excluded.reason, seen_at = excluded.seen_at \
             WHERE known.reason <> excluded.reason RETURNING 1",
            quote(self.host_name()),
            quote(path),
            quote(&reason[..end])
        );
        Ok(!self.query("record a fault of the archive", &sql)?.is_empty())
    }

    /// Lists paths with a fault of this host, in their order: those after a path.
    pub fn own_archive_faults(&self, after: &str) -> Result<Vec<String>, DatabaseError> {
        let sql = format!(
            "SELECT path FROM archive_faults WHERE host = {} AND path > {} ORDER BY path \
             LIMIT {FILES_AT_ONCE}",
            quote(self.host_name()),
            quote(after)
        );
        let rows = self.query("list faults of the archive", &sql)?;
        Ok(rows.iter().filter_map(|row| text(row, 0)).collect())
    }

    /// Removes the fault of a file.
    pub fn forget_archive_fault(&self, path: &str) -> Result<(), DatabaseError> {
        let sql = format!(
            "DELETE FROM archive_faults WHERE host = {} AND path = {}",
            quote(self.host_name()),
            quote(path)
        );
        self.query("forget a fault of the archive", &sql).map(drop)
    }
}

impl StateDatabase {
    /// Lists faults of the archive: of one host, or of all.
    pub fn archive_faults(&self, host: Option<&str>) -> Result<Vec<ArchiveFault>, DatabaseError> {
        let Some(conn) = self.conn.as_postgres() else { return Ok(Vec::new()) };
        let query = |sql: &str| {
            conn.simple_query(sql).map_err(|source| failed("list faults of the archive", source))
        };
        let is_there = query("SELECT to_regclass('archive_faults') IS NOT NULL")?;
        if !is_there.first().is_some_and(|row| flag(row, 0)) {
            return Ok(Vec::new());
        }
        let filter = host.map_or_else(String::new, |host| format!("WHERE host = {} ", quote(host)));
        let rows = query(&format!(
            "SELECT host, path, reason FROM archive_faults {filter}ORDER BY host, path \
             LIMIT {FAULTS_MAX}"
        ))?;
        let one = |row: &Vec<Option<String>>| {
            Some(ArchiveFault { host: text(row, 0)?, path: text(row, 1)?, reason: text(row, 2)? })
        };
        Ok(rows.iter().filter_map(one).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_archived_by_its_host_after_its_job_and_by_the_leader_a_day_later() {
        use ArchiveDecision::{Archive, LeaveOut, LeaveToHost, Wait};
        let hour = Duration::from_secs(3600);
        let policy = FileArchivePolicy { place: FileArchivePlace::Database, after: hour };
        let file = UnarchivedFile {
            path: "jobs/job-2024-01-19-abc123.jsonl".to_owned(),
            host: "beta".to_owned(),
            length: 10,
            changed_at: String::new(),
            idle: hour,
            is_open: false,
        };
        let decide = |file: &UnarchivedFile| {
            [("beta", false), ("beta", true), ("alpha", false), ("alpha", true)]
                .map(|(own, is_leader)| policy.decide(file, own, is_leader))
        };
        assert_eq!(decide(&file), [Archive, Archive, LeaveToHost, LeaveToHost]);
        let day = UnarchivedFile { idle: hour + OWNER_TIME, ..file.clone() };
        assert_eq!(decide(&day), [Archive, Archive, LeaveToHost, Archive]);
        let open = UnarchivedFile { is_open: true, ..day.clone() };
        assert_eq!(decide(&open), [Wait; 4]);
        let fresh = UnarchivedFile { idle: hour - Duration::from_secs(1), ..file.clone() };
        assert_eq!(decide(&fresh), [Wait; 4]);
        let long = UnarchivedFile { length: ARCHIVED_BYTES_MAX + 1, ..file.clone() };
        assert_eq!(decide(&long), [LeaveOut, LeaveOut, LeaveToHost, LeaveToHost]);
        let longest = UnarchivedFile { length: ARCHIVED_BYTES_MAX, ..file.clone() };
        assert_eq!(decide(&longest)[0], Archive);
        let off = FileArchivePolicy { place: FileArchivePlace::Off, ..policy };
        assert_eq!(off.decide(&day, "beta", true), Wait);
    }
}
