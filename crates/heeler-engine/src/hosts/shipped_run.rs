//! The files of one run, on their way to the other hosts.
//!
//! A file is shipped from the length that is on record. Bytes are durable here before they leave: a power
//! loss never takes back what another host has. A database that has lost parts gets them again. Start at
//! [`ShippedRun::ship`].

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{JobId, RunId, error_chain};
use heeler_store::{
    DatabaseError, HostLink, PartReceipt, SharedFileForm, SharedPart, StateDir, StoreReader,
    stderr_copy_relative,
};
use heeler_transcript::{LINE_BYTES_MAX, untrusted_file};

use crate::fault::{self, FaultPoint};

/// Bytes of a part, unless one line is longer.
const PART_BYTES: usize = 256 << 10;

/// Most parts of a run's other files that are shipped before the transcripts of all runs are looked at
/// again.
const OTHER_PARTS_AT_ONCE: usize = 16;

/// Most bytes of the files that the agents of a job send, of which other hosts get copies. Further files
/// stay on this host.
const SENT_BYTES_MAX: u64 = 256 << 20;

/// Most bytes of a text file of which other hosts get a copy. The rest stays on this host.
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// Interval at which files that other hosts ship are looked at: a run of this host takes them over when it starts.
const FOREIGN_INTERVAL: Duration = Duration::from_secs(2);

/// Standard error of the agent, in the folder of its run.
const STDERR_FILE: &str = "stderr.log";

/// A run with files to ship.
#[derive(Debug, Default)]
pub(super) struct ShippedRun {
    pub(super) term: i64,
    /// `None` until it is known.
    job: Option<JobId>,
    files: Vec<ShippedFile>,
    /// Time at which files of other hosts were looked at.
    foreign_seen_at: Option<Instant>,
    /// Report of its result, which follows its files.
    pub(super) exit: Option<String>,
    /// The run has a result on record.
    pub(super) is_ended: bool,
    /// The fleet has given the run up.
    pub(super) is_fenced: bool,
}

#[derive(Debug)]
struct ShippedFile {
    /// Path under which it is shared, in the state directory.
    relative: String,
    /// Its place on this host.
    path: Utf8PathBuf,
    form: SharedFileForm,
    /// Bytes that are on record.
    length: u64,
    /// True if nothing more of it is shipped.
    is_done: bool,
    /// True if another host ships it. A later run of this host may take it over.
    is_foreign: bool,
}

/// Progress of a run's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShipProgress {
    /// All that the files have now is on record.
    UpToDate,
    /// There is more to ship.
    Behind,
}

impl ShippedRun {
    /// True if its files do not grow any more.
    pub(super) fn is_final(&self) -> bool {
        self.is_ended || self.exit.is_some()
    }

    /// Forgets what is on record, because the database may have lost some of it. It is found out when the
    /// files are shipped: the first part of each is sent again, and the answer has its length.
    pub(super) fn forget_progress(&mut self) {
        self.job = None;
        self.files.clear();
        self.is_fenced = false;
    }

    /// Ships what the run's files have now.
    pub(super) fn ship(
        &mut self,
        link: &HostLink,
        dir: &StateDir,
        run: RunId,
    ) -> Result<ShipProgress, ShipError> {
        if self.job.is_none() {
            fault::reach(FaultPoint::BeforeShipping);
        }
        // The session may be known only at the end.
        if self.job.is_none() || self.is_final() {
            self.load(dir, run)?;
        }
        self.add_sent_files(dir);
        let is_due = |at: Instant| at.elapsed() >= FOREIGN_INTERVAL;
        if self.is_final() || self.foreign_seen_at.is_none_or(is_due) {
            self.foreign_seen_at = Some(Instant::now());
            self.files.iter_mut().for_each(|file| file.is_foreign = false);
        }
        let mut others_left = OTHER_PARTS_AT_ONCE;
        for file in &mut self.files {
            while !file.is_done && !file.is_foreign && !self.is_fenced {
                let is_transcript = file.form == SharedFileForm::Transcript;
                if !is_transcript && others_left == 0 {
                    return Ok(ShipProgress::Behind);
                }
                let Some((bytes, is_last)) = file.read_part()? else { break };
                let (path, start) = (file.relative.as_str(), file.length);
                let part = SharedPart { run, term: self.term, path, start, bytes: &bytes, is_last };
                let receipt = link.send_part(&part)?;
                fault::reach(FaultPoint::PartShipped);
                if receipt == PartReceipt::Fenced {
                    self.is_fenced = true;
                }
                file.note_receipt(receipt, bytes.len() as u64, is_last)?;
                others_left -= usize::from(!is_transcript);
            }
        }
        Ok(ShipProgress::UpToDate)
    }

    /// Finds the files of the run.
    fn load(&mut self, dir: &StateDir, run: RunId) -> Result<(), ShipError> {
        let failed = |error: DatabaseError| ShipError::Server(error_chain(&error));
        let reader =
            StoreReader::open(dir).map_err(|error| ShipError::Server(error_chain(&error)))?;
        let Some(record) = reader.run(run).map_err(failed)? else {
            // It was restored away.
            self.is_ended = true;
            return Ok(());
        };
        self.is_ended |= record.committed;
        self.term = reader.run_term(run).map_err(failed)?;
        // A term is raised only when a run is given up.
        self.is_fenced = self.is_ended && self.term > 0;
        let job = record.job_id;
        let session = reader.job(&job).map_err(failed)?.and_then(|job| job.head.session_id);
        let session = session.map(|id| reader.session_by_agent_id(&id)).transpose();
        let log = session.map_err(failed)?.flatten().and_then(|session| session.log_path);
        self.add(dir, format!("jobs/{job}.jsonl"), None);
        // Those of conversations are not in the state directory.
        if let Some(log) = log.filter(|log| log.is_relative()) {
            self.add(dir, log.to_string(), None);
        }
        self.add(dir, format!("jobs/{job}/output.log"), None);
        let stderr = dir.run(run).join(STDERR_FILE);
        self.add(dir, stderr_copy_relative(&job, run), Some(stderr));
        self.job = Some(job);
        Ok(())
    }

    fn add_sent_files(&mut self, dir: &StateDir) {
        let Some(job) = &self.job else { return };
        let mut total = 0;
        for sent in dir.sent_files(job) {
            total += sent.bytes;
            let Some(name) = sent.path.file_name() else { continue };
            let relative = format!("jobs/{job}/files/{name}");
            if self.files.iter().any(|file| file.relative == relative) {
                continue;
            }
            self.files.push(ShippedFile {
                relative,
                form: SharedFileForm::Whole,
                length: 0,
                is_done: total > SENT_BYTES_MAX,
                is_foreign: false,
                path: sent.path,
            });
            if total > SENT_BYTES_MAX {
                tracing::warn!(
                    %job,
                    file = sent.name,
                    "the agents of a job sent more than {SENT_BYTES_MAX} bytes; a file stays on this \
                     host"
                );
            }
        }
    }

    /// Adds a file, unless it is there. `path` is its place if it is not that of the copies.
    fn add(&mut self, dir: &StateDir, relative: String, path: Option<Utf8PathBuf>) {
        if self.files.iter().any(|file| file.relative == relative) {
            return;
        }
        let Some((form, shared)) = dir.shared_file(&relative) else { return };
        let path = path.unwrap_or(shared);
        self.files.push(ShippedFile {
            relative,
            path,
            form,
            length: 0,
            is_done: false,
            is_foreign: false,
        });
    }
}

impl ShippedFile {
    /// Reads the next part; true if it is the last one of a whole file.
    fn read_part(&mut self) -> Result<Option<(Vec<u8>, bool)>, ShipError> {
        if self.form == SharedFileForm::Text && self.length >= TEXT_BYTES_MAX {
            tracing::warn!(path = %self.path, "more than {TEXT_BYTES_MAX} bytes are not shipped");
            self.is_done = true;
            return Ok(None);
        }
        let read = match self.form {
            SharedFileForm::Transcript => {
                read_lines(&self.path, self.length).map(|lines| lines.map(|lines| (lines, false)))
            }
            form => read_bytes(&self.path, self.length, form == SharedFileForm::Whole),
        };
        match read {
            // A link or a pipe, which no runner made: it must not hold up the result.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                tracing::warn!(path = %self.path, %error, "a file is not shipped");
                self.is_done = true;
                Ok(None)
            }
            read => read.map_err(|source| ShipError::File { path: self.path.clone(), source }),
        }
    }

    fn note_receipt(
        &mut self,
        receipt: PartReceipt,
        bytes: u64,
        is_last: bool,
    ) -> Result<(), ShipError> {
        let path = self.relative.as_str();
        match receipt {
            PartReceipt::Stored => {
                self.length += bytes;
                self.is_done = is_last;
            }
            PartReceipt::Fenced => {}
            // The rest is on record: an earlier daemon shipped it.
            PartReceipt::OtherLength(length) if is_last && bytes == 0 && length == self.length => {
                self.is_done = true;
            }
            // It would be sent again without end.
            PartReceipt::OtherLength(length) if length == self.length => {
                let why =
                    format!("the database has {length} bytes and does not take the next ones");
                let source = io::Error::other(why);
                return Err(ShipError::File { path: self.path.clone(), source });
            }
            PartReceipt::OtherLength(length) => {
                if length < self.length {
                    tracing::warn!(path, length, "the database has lost a part of a file");
                }
                self.length = length;
            }
            PartReceipt::OtherHost(host) => {
                tracing::debug!(path, host, "another host ships this file");
                self.is_foreign = true;
            }
        }
        Ok(())
    }
}

/// Failure to ship the files of a run. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShipError {
    /// The server cannot be reached, or refuses.
    #[error("{0}")]
    Server(String),
    #[error("cannot read {path}")]
    File {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
}

impl From<DatabaseError> for ShipError {
    fn from(error: DatabaseError) -> ShipError {
        ShipError::Server(error_chain(&error))
    }
}

/// Opens a file and returns it if it is longer than an offset, after its bytes are durable.
fn open_longer(path: &Utf8Path, start: u64) -> io::Result<Option<(std::fs::File, u64)>> {
    let mut file = match untrusted_file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let length = file.metadata()?.len();
    if length <= start {
        return Ok(None);
    }
    file.sync_data()?;
    file.seek(SeekFrom::Start(start))?;
    Ok(Some((file, length)))
}

/// Returns whole lines from an offset on, after they are durable. Returns `None` if there are none.
fn read_lines(path: &Utf8Path, start: u64) -> io::Result<Option<Vec<u8>>> {
    let Some((mut file, _)) = open_longer(path, start)? else { return Ok(None) };
    let mut bytes = Vec::new();
    loop {
        let read = file.by_ref().take(PART_BYTES as u64).read_to_end(&mut bytes)?;
        if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
            bytes.truncate(end + 1);
            return Ok(Some(bytes));
        }
        // The rest of a line is still being written.
        if read == 0 || bytes.len() > LINE_BYTES_MAX {
            return Ok(None);
        }
    }
}

/// Returns bytes from an offset on, after they are durable, and true if a whole file ends with them.
/// Returns `None` if there are none. An empty whole file has one part without bytes.
fn read_bytes(path: &Utf8Path, start: u64, is_whole: bool) -> io::Result<Option<(Vec<u8>, bool)>> {
    let Some((file, length)) = open_longer(path, start)? else {
        let is_there = is_whole && start == 0 && untrusted_file::open(path).is_ok();
        return Ok(is_there.then(|| (Vec::new(), true)));
    };
    let mut bytes = Vec::new();
    file.take(PART_BYTES as u64).read_to_end(&mut bytes)?;
    let is_last = is_whole && start + bytes.len() as u64 >= length;
    Ok(Some((bytes, is_last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("log.jsonl")).unwrap();
        assert_eq!(read_lines(&path, 0).unwrap(), None);
        let long = format!("{{\"x\":\"{}\"}}\n", "y".repeat(PART_BYTES * 2));
        std::fs::write(&path, format!("{{}}\n{long}{{\"half")).unwrap();
        assert_eq!(read_lines(&path, 0).unwrap().unwrap(), b"{}\n");
        assert_eq!(read_lines(&path, 3).unwrap().unwrap(), long.as_bytes());
        assert_eq!(read_lines(&path, 3 + long.len() as u64).unwrap(), None);
        assert_eq!(read_lines(&path, 1 << 30).unwrap(), None);
    }

    #[test]
    fn other_files_are_read_in_parts_and_whole_ones_have_a_last_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("file")).unwrap();
        assert_eq!(read_bytes(&path, 0, true).unwrap(), None);
        std::fs::write(&path, "").unwrap();
        assert_eq!(read_bytes(&path, 0, true).unwrap(), Some((Vec::new(), true)));
        assert_eq!(read_bytes(&path, 0, false).unwrap(), None);
        let text = "z".repeat(PART_BYTES + 5);
        std::fs::write(&path, &text).unwrap();
        let (first, is_last) = read_bytes(&path, 0, true).unwrap().unwrap();
        assert_eq!((first.len(), is_last), (PART_BYTES, false));
        let part = read_bytes(&path, PART_BYTES as u64, true).unwrap();
        assert_eq!(part, Some((b"zzzzz".to_vec(), true)));
        let part = read_bytes(&path, PART_BYTES as u64, false).unwrap();
        assert_eq!(part, Some((b"zzzzz".to_vec(), false)));
        assert_eq!(read_bytes(&path, text.len() as u64, true).unwrap(), None, "all is on record");
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_not_read_and_does_not_hold_up_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("output.log")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        let mut file = ShippedFile {
            relative: "jobs/job-2024-01-19-abc123/output.log".to_owned(),
            path,
            form: SharedFileForm::Text,
            length: 0,
            is_done: false,
            is_foreign: false,
        };
        assert!(file.read_part().unwrap().is_none() && file.is_done);
    }

    #[test]
    fn a_file_of_which_the_database_lost_parts_is_shipped_again_from_there() {
        let forms = [SharedFileForm::Transcript, SharedFileForm::Text, SharedFileForm::Whole];
        for form in forms {
            let mut file = ShippedFile {
                relative: "jobs/job-2024-01-19-abc123/output.log".to_owned(),
                path: "output.log".into(),
                form,
                length: 100,
                is_done: false,
                is_foreign: false,
            };
            for length in [300, 40, 0] {
                file.note_receipt(PartReceipt::OtherLength(length), 10, false).unwrap();
                assert_eq!((file.length, file.is_done), (length, false), "{form:?}");
            }
            file.note_receipt(PartReceipt::OtherLength(40), 10, true).unwrap();
            assert_eq!((file.length, file.is_done), (40, false), "{form:?}");
            // The same part again would have the same answer.
            let stuck = file.note_receipt(PartReceipt::OtherLength(40), 10, false).unwrap_err();
            assert!(matches!(stuck, ShipError::File { .. }) && !file.is_done, "{stuck}");
            file.note_receipt(PartReceipt::Stored, 10, true).unwrap();
            assert_eq!((file.length, file.is_done), (50, true), "{form:?}");
        }
    }

    #[test]
    fn text_is_shipped_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("output.log")).unwrap();
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(TEXT_BYTES_MAX + 1).unwrap();
        let mut file = ShippedFile {
            relative: "jobs/job-2024-01-19-abc123/output.log".to_owned(),
            path,
            form: SharedFileForm::Text,
            length: TEXT_BYTES_MAX - PART_BYTES as u64,
            is_done: false,
            is_foreign: false,
        };
        assert_eq!(file.read_part().unwrap().unwrap().0.len(), PART_BYTES);
        file.length = TEXT_BYTES_MAX;
        assert!(file.read_part().unwrap().is_none() && file.is_done);
    }
}
