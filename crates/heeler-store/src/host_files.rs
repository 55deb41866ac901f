//! Files of runs on other hosts: each host ships what its runners write, and every host keeps a copy.
//!
//! A part is a range of bytes of one file; of a transcript, whole lines. Parts are numbered in the order of
//! their commits, so a host reads each one once. A run is on the list of its host from its first commit
//! until its files are shipped to their end. Start at [`HostLink::send_part`].

use camino::Utf8PathBuf;
use heeler_model::{JobId, RunId};
use heeler_transcript::resolve_inside;

use crate::db::DatabaseError;
use crate::db::database_error::failed;
use crate::db::postgres::{PostgresConnection, quote};
use crate::file_archive_table::HAS_ARCHIVE;
use crate::hex::hex;
use crate::host_link::HostLink;
use crate::host_row::{flag, number, text};
use crate::layout::StateDir;
use crate::sent_files::is_sent_name;

/// Channel of the server on which hosts learn of new parts.
pub(crate) const PART_CHANNEL: &str = "heeler_parts";

/// Days after which parts are removed even if a host has not read them.
const PART_AGE_MAX_DAYS: u32 = 30;

/// The same for parts that are to be archived and are not.
const UNARCHIVED_PART_AGE_MAX_DAYS: u32 = 365;

/// Tables of this module. The counter's row is locked until the commit, so numbers and commits have the
/// same order.
pub(crate) const CREATE_FILES: &str = "CREATE TABLE IF NOT EXISTS shared_files (\
    path TEXT NOT NULL PRIMARY KEY, host TEXT NOT NULL, length BIGINT NOT NULL); \
    CREATE TABLE IF NOT EXISTS file_counter (one BIGINT NOT NULL PRIMARY KEY, last BIGINT NOT NULL); \
    INSERT INTO file_counter (one, last) VALUES (1, 0) ON CONFLICT (one) DO NOTHING; \
    CREATE TABLE IF NOT EXISTS file_parts (\
    number BIGINT NOT NULL PRIMARY KEY, run TEXT NOT NULL, term BIGINT NOT NULL, host TEXT NOT NULL, \
    path TEXT NOT NULL, start BIGINT NOT NULL, bytes BYTEA NOT NULL, \
    created_at TIMESTAMPTZ NOT NULL, UNIQUE (path, start)); \
    ALTER TABLE file_parts ADD COLUMN IF NOT EXISTS is_last BOOLEAN NOT NULL DEFAULT false; \
    ALTER TABLE shared_files ADD COLUMN IF NOT EXISTS taken_at BIGINT; \
    ALTER TABLE file_parts ADD COLUMN IF NOT EXISTS takes_over BOOLEAN NOT NULL DEFAULT false; \
    CREATE TABLE IF NOT EXISTS unshipped_runs (run TEXT NOT NULL PRIMARY KEY, host TEXT NOT NULL); \
    CREATE INDEX IF NOT EXISTS idx_unshipped_runs ON unshipped_runs (host, run); \
    INSERT INTO unshipped_runs (run, host) \
    SELECT DISTINCT to_jsonb(shared_files) ->> 'run', host FROM shared_files \
    WHERE to_jsonb(shared_files) ->> 'run' IS NOT NULL ON CONFLICT (run) DO NOTHING";

/// Adds the runs that an earlier release began, if there are records.
pub(crate) const ADD_OPEN_RUNS: &str = "INSERT INTO unshipped_runs (run, host) \
    SELECT id, host FROM runs WHERE committed = 0 ON CONFLICT (run) DO NOTHING";

/// Form of a shared file. It decides how a part continues a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedFileForm {
    /// Lines of JSON, written by one writer at a time.
    Transcript,
    /// Text that grows.
    Text,
    /// A file that has its name when it is complete.
    Whole,
}

/// A run of this host with files that may not be shipped to their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnshippedRun {
    pub run: RunId,
    /// True if its result is on record: its files do not grow any more.
    pub is_ended: bool,
}

/// Part of a file, to be shipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedPart<'p> {
    pub run: RunId,
    /// Term of the run under which the host works on it.
    pub term: i64,
    /// Path of the file in the state directory.
    pub path: &'p str,
    /// Offset of the first byte.
    pub start: u64,
    /// Of a transcript, whole lines.
    pub bytes: &'p [u8],
    /// True if a file that was written as a whole ends here.
    pub is_last: bool,
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

/// Records of the database about the run and the file of a part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PartState {
    /// The run is this host's, under the term of the part.
    is_allowed: bool,
    /// The host that ships the file; `None` if nothing of it is on record.
    host: Option<String>,
    length: u64,
}

impl PartState {
    /// Returns true if nothing but a lock or a repetition keeps the part of this host from being stored.
    pub(crate) fn may_take(&self, part: &SharedPart<'_>, own: &str) -> bool {
        let is_own = self.host.as_deref().is_none_or(|host| host == own);
        self.is_allowed && is_own && self.length == part.start
    }

    /// Returns the receipt of a part of this host that was not stored.
    pub(crate) fn receipt(self, own: &str) -> PartReceipt {
        match self.host {
            _ if !self.is_allowed => PartReceipt::Fenced,
            Some(other) if other != own => PartReceipt::OtherHost(other),
            _ => PartReceipt::OtherLength(self.length),
        }
    }
}

/// A part that another host shipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedPart {
    pub number: i64,
    pub host: String,
    pub path: String,
    pub start: u64,
    pub bytes: Vec<u8>,
    /// True if a file that was written as a whole ends here.
    pub is_last: bool,
    /// True if another host has shipped the file up to here. What that host has beyond is of a run that was given up.
    pub takes_over: bool,
}

/// Host that ships a file, and the bytes that are on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedFileOwner {
    pub host: String,
    pub length: u64,
}

impl StateDir {
    /// Returns the path of a file that hosts share, and its form; `None` if it is none of them.
    pub fn shared_file(&self, relative: &str) -> Option<(SharedFileForm, Utf8PathBuf)> {
        let form = form_of(relative)?;
        resolve_inside(self.root(), relative).ok().map(|path| (form, path))
    }

    /// Returns the path of a shared file as this host has it, and its form. Standard error of its own runs
    /// is in their folders.
    pub fn shipped_file(&self, relative: &str) -> Option<(SharedFileForm, Utf8PathBuf)> {
        let (form, path) = self.shared_file(relative)?;
        let run =
            stderr_run(relative.rsplit('/').next()?).map(|run| format!("runs/{run}/stderr.log"));
        let own = run.and_then(|own| resolve_inside(self.root(), &own).ok());
        Some((form, own.filter(|own| own.symlink_metadata().is_ok()).unwrap_or(path)))
    }

    /// Returns the path of this host's copy of the standard error of a run on another host.
    pub fn stderr_copy(&self, job: &JobId, run: RunId) -> Utf8PathBuf {
        self.root().join(stderr_copy_relative(job, run))
    }
}

/// Returns the path under which the standard error of a run is shared, in the state directory.
pub fn stderr_copy_relative(job: &JobId, run: RunId) -> String {
    format!("jobs/{job}/stderr-{run}.log")
}

fn form_of(relative: &str) -> Option<SharedFileForm> {
    if relative.starts_with("agent-sessions/projects/") && relative.ends_with(".jsonl") {
        return Some(SharedFileForm::Transcript);
    }
    let (job, file) = match relative.strip_prefix("jobs/")?.split_once('/') {
        None => (relative.strip_prefix("jobs/")?.strip_suffix(".jsonl")?, None),
        Some((job, file)) => (job, Some(file)),
    };
    job.parse::<JobId>().ok()?;
    let Some(file) = file else { return Some(SharedFileForm::Transcript) };
    if let Some(name) = file.strip_prefix("files/") {
        return (is_sent_name(name) && !name.contains('/')).then_some(SharedFileForm::Whole);
    }
    (file == "output.log" || stderr_run(file).is_some()).then_some(SharedFileForm::Text)
}

/// Returns the run of which a file is the standard error.
fn stderr_run(name: &str) -> Option<RunId> {
    name.strip_prefix("stderr-")?.strip_suffix(".log")?.parse().ok()
}

/// Puts a run on the list of its host. Part of the transaction that records the run.
pub(crate) fn add_unshipped_run(
    conn: &PostgresConnection,
    run: RunId,
    host: &str,
) -> Result<(), DatabaseError> {
    let (run, host) = (quote(&run.to_string()), quote(host));
    let sql = format!(
        "INSERT INTO unshipped_runs (run, host) VALUES ({run}, {host}) ON CONFLICT (run) DO NOTHING"
    );
    let added = conn.simple_query(&sql);
    added.map(drop).map_err(|source| failed("list the files of a run", source))
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
             file AS (INSERT INTO shared_files AS known (path, host, length, changed_at) \
             SELECT {path}, {host}, {end}, clock_timestamp() FROM allowed \
             WHERE {start} = 0 OR EXISTS (SELECT 1 FROM shared_files WHERE path = {path}) \
             ON CONFLICT (path) DO UPDATE SET length = excluded.length, \
             changed_at = excluded.changed_at \
             WHERE known.host = excluded.host AND known.length = {start} RETURNING 1), \
             counted AS (UPDATE file_counter SET last = last + 1 \
             WHERE one = 1 AND EXISTS (SELECT 1 FROM file) RETURNING last) \
             INSERT INTO file_parts (number, run, term, host, path, start, bytes, is_last, \
             created_at, takes_over) SELECT last, {run}, {term}, {host}, {path}, {start}, \
             decode('{}', 'hex'), {}, clock_timestamp(), EXISTS (SELECT 1 FROM shared_files \
             WHERE path = {path} AND taken_at = {start}) FROM counted \
             ON CONFLICT (path, start) DO NOTHING RETURNING number; NOTIFY {PART_CHANNEL}",
            hex(part.bytes),
            part.is_last
        );
        if !self.query("ship a file", &sql)?.is_empty() {
            return Ok(PartReceipt::Stored);
        }
        let states = self.part_states(std::slice::from_ref(part))?;
        let state = states.into_iter().next().unwrap_or_default();
        Ok(state.receipt(self.host_name()))
    }

    /// Returns the records about the run and the file of each part.
    pub(crate) fn part_states(
        &self,
        parts: &[SharedPart<'_>],
    ) -> Result<Vec<PartState>, DatabaseError> {
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        let values = parts.iter().enumerate().map(|(at, part)| {
            let (run, path) = (quote(&part.run.to_string()), quote(part.path));
            format!("({at}, {run}, CAST({} AS BIGINT), {path})", part.term)
        });
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM runs WHERE id = parts.run AND host = {} \
             AND term = parts.term), known.host, known.length \
             FROM (VALUES {}) AS parts (at, run, term, path) \
             LEFT JOIN shared_files AS known USING (path) ORDER BY at",
            quote(self.host_name()),
            values.collect::<Vec<_>>().join(", ")
        );
        let one = |row: &Vec<Option<String>>| PartState {
            is_allowed: flag(row, 0),
            host: text(row, 1),
            length: number(row, 2).unsigned_abs(),
        };
        Ok(self.query("ship a file", &sql)?.iter().map(one).collect())
    }

    /// Returns the host that ships a file; `None` for a file of which nothing is on record.
    pub fn file_owner(&self, path: &str) -> Result<Option<SharedFileOwner>, DatabaseError> {
        let sql = format!("SELECT host, length FROM shared_files WHERE path = {}", quote(path));
        let rows = self.query("find the host of a file", &sql)?;
        let one = |row: &Vec<Option<String>>| {
            Some(SharedFileOwner { host: text(row, 0)?, length: number(row, 1).unsigned_abs() })
        };
        Ok(rows.first().and_then(one))
    }

    /// Lets a run of this host continue a file of its job that another host has shipped, from the length on record.
    /// Returns false if it has another length, if an earlier run of the job that was not given up is not shipped to its
    /// end, or if the run is not this host's any more.
    pub fn take_over_file(
        &self,
        (run, term): (RunId, i64),
        path: &str,
        length: u64,
    ) -> Result<bool, DatabaseError> {
        let (path, host) = (quote(path), quote(self.host_name()));
        // The lock on the run's row orders this with a commit that gives the run up.
        let sql = format!(
            "WITH allowed AS (SELECT 1 FROM runs WHERE id = {} AND host = {host} \
             AND term = {term} AND committed = 0 AND NOT EXISTS (SELECT 1 FROM unshipped_runs \
             JOIN runs AS earlier ON earlier.id = unshipped_runs.run \
             WHERE earlier.job_id = runs.job_id AND earlier.host <> runs.host \
             AND earlier.term = 0) FOR SHARE OF runs) \
             INSERT INTO shared_files AS known (path, host, length, taken_at) \
             SELECT {path}, {host}, {length}, {length} FROM allowed ON CONFLICT (path) DO UPDATE \
             SET host = excluded.host, taken_at = excluded.taken_at \
             WHERE known.host <> excluded.host AND known.length = excluded.length RETURNING 1",
            quote(&run.to_string())
        );
        Ok(!self.query("continue a file of another host", &sql)?.is_empty())
    }

    /// Lists runs of this host with files that may not be shipped to their end.
    pub fn unshipped_runs(&self) -> Result<Vec<UnshippedRun>, DatabaseError> {
        // A run that is not on record was restored away.
        let sql = format!(
            "SELECT run, COALESCE((SELECT committed FROM runs WHERE id = run), 1) <> 0 \
             FROM unshipped_runs WHERE host = {} ORDER BY run",
            quote(self.host_name())
        );
        let rows = self.query("list unshipped files", &sql)?;
        let one = |row: &Vec<Option<String>>| {
            Some(UnshippedRun { run: text(row, 0)?.parse().ok()?, is_ended: flag(row, 1) })
        };
        Ok(rows.iter().filter_map(one).collect())
    }

    /// Records that the files of an ended run are shipped to their end.
    pub fn finish_files(&self, run: RunId) -> Result<(), DatabaseError> {
        let sql = format!(
            "DELETE FROM unshipped_runs WHERE host = {} AND run = {}",
            quote(self.host_name()),
            quote(&run.to_string())
        );
        self.query("record shipped files", &sql).map(drop)
    }

    /// Calls a function when a host may have shipped a part, and at the end of the connection. The function
    /// must not wait.
    pub fn listen_for_parts(
        &self,
        hint: impl Fn() + Send + Sync + 'static,
    ) -> Result<(), DatabaseError> {
        self.listen(PART_CHANNEL, Box::new(hint))
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

    /// Removes parts of ended runs that every host has, or that are too old. With an archive, it must have
    /// them too.
    pub fn remove_read_parts(&self) -> Result<(), DatabaseError> {
        let sql = format!(
            "DELETE FROM file_parts WHERE (number <= (SELECT MIN(parts_read) FROM hosts) OR \
             created_at < clock_timestamp() - interval '{PART_AGE_MAX_DAYS} days') AND \
             NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = file_parts.run AND committed = 0) AND \
             (NOT {HAS_ARCHIVE} OR EXISTS (SELECT 1 FROM shared_files \
             WHERE shared_files.path = file_parts.path \
             AND archived >= start + octet_length(bytes)) OR created_at < clock_timestamp() \
             - interval '{UNARCHIVED_PART_AGE_MAX_DAYS} days')"
        );
        self.query("remove files that all hosts have", &sql).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_runs_are_shared() {
        let job = "job-2024-01-19-abc123";
        let run = RunId::mint(jiff::Timestamp::UNIX_EPOCH, [1; 10]);
        let sent = format!("{}-report.md", "0123456789abcdef".repeat(2));
        let transcript = Some(SharedFileForm::Transcript);
        for (path, form) in [
            (format!("jobs/{job}.jsonl"), transcript),
            ("agent-sessions/projects/-w/abc.jsonl".to_owned(), transcript),
            (format!("jobs/{job}/output.log"), Some(SharedFileForm::Text)),
            (format!("jobs/{job}/stderr-{run}.log"), Some(SharedFileForm::Text)),
            (format!("jobs/{job}/files/{sent}"), Some(SharedFileForm::Whole)),
            (format!("jobs/{job}/files/x/{sent}"), None),
            (format!("jobs/{job}/files/{sent}/../../x"), None),
            (format!("jobs/{job}/files/report.md"), None),
            (format!("jobs/{job}/stderr-x.log"), None),
            (format!("jobs/{job}.yaml"), None),
            ("jobs/other/rows.jsonl".to_owned(), None),
            ("heeler.lock".to_owned(), None),
            (format!("runs/{run}/spec.json"), None),
        ] {
            assert_eq!(form_of(&path), form, "{path}");
        }
    }

    #[test]
    fn bytes_survive_the_text_form() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(crate::hex::from_hex(&hex(&all)), all);
    }
}
