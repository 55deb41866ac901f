//! The files of one run, on their way to the other hosts.
//!
//! A file is shipped from the length that is on record. A database that has lost parts gets them again.
//! Start at [`ShippedRun::begin_round`].

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{JobId, RunId, error_chain};
use heeler_store::{
    DatabaseError, PartReceipt, SharedFileForm, StateDir, StoreReader, stderr_copy_relative,
};
use heeler_transcript::{LINE_BYTES_MAX, untrusted_file};

use super::part_batch::ReadPart;
use crate::fault::{self, FaultPoint};

/// Bytes of a part, unless one line is longer.
const PART_BYTES: usize = 256 << 10;

/// Most bytes of the files that the agents of a job send, of which other hosts get copies. Further files
/// stay on this host.
const SENT_BYTES_MAX: u64 = 256 << 20;

/// Most bytes of a text file of which other hosts get a copy. The rest stays on this host.
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// Interval at which files that other hosts ship are looked at: a run of this host takes them over when it starts.
const FOREIGN_INTERVAL: Duration = Duration::from_secs(2);

/// Delay after which a file that could not be read is read again.
const REREAD_DELAY: Duration = Duration::from_secs(1);

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
    /// `is_ended`, and whether there was an `exit`, when the files were looked for.
    loaded_at: (bool, bool),
    round: ShipRound,
}

/// One look at the files of a run.
#[derive(Debug, Default)]
struct ShipRound {
    /// The run's files did not grow any more when it began.
    is_final: bool,
    /// A part was sent.
    has_sent: bool,
    /// There may be more of a file at once.
    has_more: bool,
    /// A file could not be read.
    has_fault: bool,
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
    /// Time at which it could not be shipped.
    failed_at: Option<Instant>,
}

/// Progress of a run's files in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ShipProgress {
    /// Nothing was sent.
    UpToDate,
    /// All that a live run had was sent.
    Sent,
    /// There is more to ship, or to find out.
    Behind,
    /// All files of a run that has ended are shipped.
    AtEnd,
}

/// Files that are shipped in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileTurn {
    /// They come first: a large file does not delay the rows of other runs.
    Transcripts,
    Others,
}

impl ShippedRun {
    /// True if its files do not grow any more.
    fn is_final(&self) -> bool {
        self.is_ended || self.exit.is_some()
    }

    /// Forgets what is on record, because the database may have lost some of it. It is found out when the
    /// files are shipped: the first part of each is sent again, and the answer has its length.
    pub(super) fn forget_progress(&mut self) {
        self.job = None;
        self.files.clear();
        self.is_fenced = false;
    }

    /// Begins a look at the run's files. `reader` is opened if it is needed.
    pub(super) fn begin_round(
        &mut self,
        dir: &StateDir,
        run: RunId,
        reader: &mut Option<StoreReader>,
    ) -> Result<(), ShipError> {
        self.round = ShipRound { is_final: self.is_final(), ..ShipRound::default() };
        if self.job.is_none() {
            fault::reach(FaultPoint::BeforeShipping);
        }
        let state = (self.is_ended, self.exit.is_some());
        // The session may be known only at the end.
        if self.job.is_none() || self.is_final() && self.loaded_at != state {
            self.loaded_at = state;
            self.foreign_seen_at = None;
            let reader = match reader {
                Some(reader) => reader,
                None => reader.insert(StoreReader::open(dir).map_err(|error| server(&error))?),
            };
            self.load(dir, run, reader)?;
        }
        self.add_sent_files(dir);
        let is_due = |at: Instant| at.elapsed() >= FOREIGN_INTERVAL;
        if self.foreign_seen_at.is_none_or(is_due) {
            self.foreign_seen_at = Some(Instant::now());
            self.files.iter_mut().for_each(|file| file.is_foreign = false);
        }
        Ok(())
    }

    /// Returns the number of files that the run has now.
    pub(super) fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Reads the next part of a file if it is the turn of that file. The returned file is to be synced before the
    /// part leaves.
    pub(super) fn read_part(
        &mut self,
        run: RunId,
        at: usize,
        turn: FileTurn,
    ) -> Option<(ReadPart, File)> {
        let file = &mut self.files[at];
        let is_turn = (file.form == SharedFileForm::Transcript) == (turn == FileTurn::Transcripts);
        if !is_turn || file.is_done || file.is_foreign || self.is_fenced {
            return None;
        }
        if file.failed_at.is_some_and(|at| at.elapsed() < REREAD_DELAY) {
            self.round.has_fault = true;
            return None;
        }
        file.failed_at = None;
        match file.read_part() {
            Ok(None) => None,
            Ok(Some(read)) => {
                self.round.has_more |= read.is_more;
                let part = ReadPart {
                    run,
                    term: self.term,
                    at,
                    path: file.relative.clone(),
                    start: file.length,
                    bytes: read.bytes,
                    is_last: read.is_last,
                };
                Some((part, read.file))
            }
            Err(error) => {
                self.note_fault(at, &error);
                None
            }
        }
    }

    /// Notes that a file cannot be shipped now. It does not hold up the others.
    pub(super) fn note_fault(&mut self, at: usize, error: &io::Error) {
        self.round.has_fault = true;
        let file = &mut self.files[at];
        file.failed_at = Some(Instant::now());
        tracing::warn!(path = %file.path, %error, "a file is shipped later");
    }

    /// Notes the receipt of a part.
    pub(super) fn note_receipt(&mut self, part: &ReadPart, receipt: PartReceipt) {
        self.round.has_sent = true;
        self.is_fenced |= receipt == PartReceipt::Fenced;
        let noted =
            self.files[part.at].note_receipt(receipt, part.bytes.len() as u64, part.is_last);
        if let Err(error) = noted {
            self.note_fault(part.at, &error);
        }
    }

    /// Returns the outcome of the round.
    pub(super) fn end_round(&self) -> ShipProgress {
        let round = &self.round;
        match (round.has_sent, round.is_final) {
            // Nothing of a run that was given up is left to ship.
            (true, is_final) if (is_final || round.has_more) && !self.is_fenced => {
                ShipProgress::Behind
            }
            (true, _) => ShipProgress::Sent,
            (false, true) if !round.has_fault => ShipProgress::AtEnd,
            (false, _) => ShipProgress::UpToDate,
        }
    }

    /// Finds the files of the run.
    fn load(&mut self, dir: &StateDir, run: RunId, reader: &StoreReader) -> Result<(), ShipError> {
        let failed = |error: DatabaseError| server(&error);
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
            let is_done = total > SENT_BYTES_MAX;
            let file = ShippedFile::new(relative, sent.path, SharedFileForm::Whole);
            self.files.push(ShippedFile { is_done, ..file });
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
        self.files.push(ShippedFile::new(relative, path, form));
    }
}

/// Bytes of a file, and the file they are from.
#[derive(Debug)]
struct ReadBytes {
    bytes: Vec<u8>,
    file: File,
    /// True if a file that was written as a whole ends with them.
    is_last: bool,
    /// True if the file has enough for another part.
    is_more: bool,
}

impl ShippedFile {
    fn new(relative: String, path: Utf8PathBuf, form: SharedFileForm) -> ShippedFile {
        ShippedFile {
            relative,
            path,
            form,
            length: 0,
            is_done: false,
            is_foreign: false,
            failed_at: None,
        }
    }

    /// Reads the next part.
    fn read_part(&mut self) -> io::Result<Option<ReadBytes>> {
        if self.form == SharedFileForm::Text && self.length >= TEXT_BYTES_MAX {
            tracing::warn!(path = %self.path, "more than {TEXT_BYTES_MAX} bytes are not shipped");
            self.is_done = true;
            return Ok(None);
        }
        let read = match self.form {
            SharedFileForm::Transcript => read_lines(&self.path, self.length),
            form => read_bytes(&self.path, self.length, form == SharedFileForm::Whole),
        };
        match read {
            // A link or a pipe, which no runner made: it must not hold up the result.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                tracing::warn!(path = %self.path, %error, "a file is not shipped");
                self.is_done = true;
                Ok(None)
            }
            read => read,
        }
    }

    fn note_receipt(&mut self, receipt: PartReceipt, bytes: u64, is_last: bool) -> io::Result<()> {
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
                return Err(io::Error::other(why));
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

/// Failure to ship the files of runs. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShipError {
    /// The server cannot be reached, or refuses.
    #[error("{0}")]
    Server(String),
    /// Bytes cannot be made durable, so they do not leave.
    #[error("cannot sync files of runs")]
    Sync(#[source] io::Error),
}

impl From<DatabaseError> for ShipError {
    fn from(error: DatabaseError) -> ShipError {
        server(&error)
    }
}

fn server(error: &(dyn std::error::Error + 'static)) -> ShipError {
    ShipError::Server(error_chain(error))
}

/// Opens a file at an offset and returns it with its length if it is longer.
fn open_longer(path: &Utf8Path, start: u64) -> io::Result<Option<(File, u64)>> {
    // Most files have nothing new, which is seen without opening them.
    let is_short = |found: std::fs::Metadata| found.is_file() && found.len() <= start;
    if path.symlink_metadata().is_ok_and(is_short) {
        return Ok(None);
    }
    let mut file = match untrusted_file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let length = file.metadata()?.len();
    if length <= start {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(start))?;
    Ok(Some((file, length)))
}

/// Returns whole lines from an offset on; `None` if there are none.
fn read_lines(path: &Utf8Path, start: u64) -> io::Result<Option<ReadBytes>> {
    let Some((mut file, length)) = open_longer(path, start)? else { return Ok(None) };
    let mut bytes = Vec::new();
    loop {
        let read = file.by_ref().take(PART_BYTES as u64).read_to_end(&mut bytes)?;
        let is_more = length > start + bytes.len() as u64;
        if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
            bytes.truncate(end + 1);
            return Ok(Some(ReadBytes { bytes, file, is_last: false, is_more }));
        }
        // The rest of a line is still being written.
        if read == 0 || bytes.len() > LINE_BYTES_MAX {
            return Ok(None);
        }
    }
}

/// Returns bytes from an offset on; `None` if there are none. An empty whole file has one part without
/// bytes.
fn read_bytes(path: &Utf8Path, start: u64, is_whole: bool) -> io::Result<Option<ReadBytes>> {
    let Some((file, length)) = open_longer(path, start)? else {
        if !is_whole || start > 0 {
            return Ok(None);
        }
        let empty = untrusted_file::open(path).ok();
        let read = |file| ReadBytes { bytes: Vec::new(), file, is_last: true, is_more: false };
        return Ok(empty.map(read));
    };
    let mut bytes = Vec::new();
    (&file).take(PART_BYTES as u64).read_to_end(&mut bytes)?;
    let is_more = length > start + bytes.len() as u64;
    Ok(Some(ReadBytes { bytes, file, is_last: is_whole && !is_more, is_more }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: &str = "jobs/job-2024-01-19-abc123/output.log";

    #[test]
    fn only_whole_lines_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("log.jsonl")).unwrap();
        let lines =
            |start| read_lines(&path, start).unwrap().map(|read| (read.bytes, read.is_more));
        assert_eq!(lines(0), None);
        let long = format!("{{\"x\":\"{}\"}}\n", "y".repeat(PART_BYTES * 2));
        std::fs::write(&path, format!("{{}}\n{long}{{\"half")).unwrap();
        assert_eq!(lines(0), Some((b"{}\n".to_vec(), true)));
        assert_eq!(lines(3), Some((long.clone().into_bytes(), false)));
        assert_eq!(lines(3 + long.len() as u64), None);
        assert_eq!(lines(1 << 30), None);
    }

    #[test]
    fn other_files_are_read_in_parts_and_whole_ones_have_a_last_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("file")).unwrap();
        let read_bytes = |path: &Utf8Path, start, is_whole| {
            super::read_bytes(path, start, is_whole)
                .map(|read| read.map(|read| (read.bytes, read.is_last)))
        };
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
        let mut file = ShippedFile::new(SHARED.to_owned(), path, SharedFileForm::Text);
        assert!(file.read_part().unwrap().is_none() && file.is_done);
    }

    #[test]
    fn a_file_of_which_the_database_lost_parts_is_shipped_again_from_there() {
        let forms = [SharedFileForm::Transcript, SharedFileForm::Text, SharedFileForm::Whole];
        for form in forms {
            let mut file = ShippedFile::new(SHARED.to_owned(), "output.log".into(), form);
            file.length = 100;
            for length in [300, 40, 0] {
                file.note_receipt(PartReceipt::OtherLength(length), 10, false).unwrap();
                assert_eq!((file.length, file.is_done), (length, false), "{form:?}");
            }
            file.note_receipt(PartReceipt::OtherLength(40), 10, true).unwrap();
            assert_eq!((file.length, file.is_done), (40, false), "{form:?}");
            // The same part again would have the same answer.
            let stuck = file.note_receipt(PartReceipt::OtherLength(40), 10, false).unwrap_err();
            assert!(stuck.to_string().contains("does not take") && !file.is_done, "{stuck}");
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
        let mut file = ShippedFile::new(SHARED.to_owned(), path, SharedFileForm::Text);
        file.length = TEXT_BYTES_MAX - PART_BYTES as u64;
        assert_eq!(file.read_part().unwrap().unwrap().bytes.len(), PART_BYTES);
        file.length = TEXT_BYTES_MAX;
        assert!(file.read_part().unwrap().is_none() && file.is_done);
    }

    #[test]
    fn a_round_has_one_part_of_each_file_and_a_file_that_cannot_be_read_delays_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        let line = format!("{{\"x\":\"{}\"}}\n", "y".repeat(PART_BYTES * 2 / 3));
        std::fs::write(root.join("log.jsonl"), line.repeat(2)).unwrap();
        std::fs::write(root.join("output.log"), "text").unwrap();
        let file = |name: &str, form| ShippedFile::new(name.to_owned(), root.join(name), form);
        let mut shipped = ShippedRun {
            is_ended: true,
            files: vec![
                file("output.log/x", SharedFileForm::Transcript),
                file("log.jsonl", SharedFileForm::Transcript),
                file("output.log", SharedFileForm::Text),
            ],
            ..ShippedRun::default()
        };
        let run = RunId::mint(jiff::Timestamp::UNIX_EPOCH, [1; 10]);
        let mut round = || {
            shipped.round = ShipRound { is_final: true, ..ShipRound::default() };
            let mut sent = Vec::new();
            for turn in [FileTurn::Transcripts, FileTurn::Others] {
                for at in 0..shipped.file_count() {
                    if let Some((part, _)) = shipped.read_part(run, at, turn) {
                        shipped.note_receipt(&part, PartReceipt::Stored);
                        sent.push((part.at, part.start));
                    }
                }
            }
            (sent, shipped.end_round())
        };
        let half = line.len() as u64;
        assert_eq!(round(), (vec![(1, 0), (2, 0)], ShipProgress::Behind));
        assert_eq!(round(), (vec![(1, half)], ShipProgress::Behind));
        assert_eq!(round(), (vec![], ShipProgress::UpToDate), "one file is read again later");
        shipped.is_fenced = true;
        shipped.round = ShipRound { is_final: true, ..ShipRound::default() };
        assert!(shipped.read_part(run, 0, FileTurn::Transcripts).is_none());
        assert_eq!(shipped.end_round(), ShipProgress::AtEnd, "nothing of it is shipped any more");
    }
}
