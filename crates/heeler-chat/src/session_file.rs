//! Session opened for writing: its transcripts and its JSON file, with its lock held.
//!
//! An entry is in its file when [`SessionFile::append`] returns. The JSON file follows with
//! [`SessionFile::save`]; data it lacks after a crash can be recovered from the transcripts. A
//! session in an older format, or of another program, is only read until the first write, which
//! migrates or copies it. Start at [`SessionFile`].

mod contents;
mod inline_boundary;
mod migrate;
mod page;
mod records;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::JoinHandle;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::JobId;
use heeler_transcript::{
    AppendError, DiskBackend, DiskError, LockFile, NameError, SyncError, TailRepair,
    TranscriptDurability, TranscriptOpenError, TranscriptWriter, TranscriptWriterOptions,
    create_folder, read_tail, replace_file, resolve_inside, untrusted_file, validate_id,
};
use thiserror::Error;

pub(crate) use self::contents::TranscriptContents;
pub(crate) use self::inline_boundary::find_inline_boundary;
pub use self::page::{EntryCursor, EntryPage};
pub(crate) use self::page::{parse_entry, unterminated_record};
pub(crate) use self::records::count_entries_from;
use self::records::{is_missing, read_records};
use crate::background::StoppableThread;
use crate::conversation_state::{
    ConversationState, EntryCount, InlineBoundary, NDJSON_SUFFIX, RosterWorker,
};
use crate::session_metadata::{InlineTranscriptUpdate, SessionMetadata};
use crate::{ChatSpeaker, ConversationEntry};

/// Most open worker transcripts; one more closes all, to be reopened when needed.
const WORKER_LOGS_MAX: usize = 64;
/// Largest inline transcript that is written for older programs. A longer one stays unchanged; the
/// transcript file has the entries in any case.
const INLINE_BYTES_MAX: u64 = untrusted_file::RECORD_BYTES_MAX / 2;
/// Bytes of a transcript that are counted while the person waits. A longer one is counted in the
/// background, and the JSON file keeps the old count until then.
pub(crate) const COUNT_BYTES_MAX: u64 = 8 << 20;

/// Failure to read or write a session's files.
#[derive(Debug, Error)]
pub enum SessionFileError {
    /// A name is not allowed for a file, or is a link.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A transcript could not be opened.
    #[error(transparent)]
    Open(#[from] TranscriptOpenError),
    /// An entry was not written.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// Written data may not survive a power loss.
    #[error(transparent)]
    Sync(#[from] SyncError),
}

/// Treatment of a session in an older format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldFormatPolicy {
    /// Migrate it to the newest format on the first write.
    Migrate,
    /// Keep the format, for older programs that will continue the session
    /// (`AGENTS_FLEET_NO_MIGRATE=1`).
    Keep,
}

/// Opened session.
#[derive(Debug)]
pub struct OpenedSessionFile {
    pub session_file: SessionFile,
    /// Problems that were skipped or repaired.
    pub warnings: Vec<String>,
}

/// Location of a session.
#[derive(Debug)]
pub(crate) struct SessionFileLocation {
    pub(crate) id: String,
    /// Heeler's directory.
    pub(crate) heeler_folder: Utf8PathBuf,
    /// Directory of another program that contains the session, until it is copied.
    pub(crate) foreign: Option<Utf8PathBuf>,
}

impl SessionFileLocation {
    /// Returns the directory that contains the session.
    fn folder(&self) -> &Utf8Path {
        self.foreign.as_deref().unwrap_or(&self.heeler_folder)
    }

    /// Returns the path of a worker's transcript, relative to the directory.
    fn worker_file_path(&self, file: &str) -> String {
        format!("{}/{file}", self.workers_folder())
    }

    fn workers_folder(&self) -> String {
        format!("{}.workers", self.id)
    }
}

/// Session opened for writing. Dropping it keeps all entries; [`SessionFile::close`] also saves the
/// JSON file and reports failures.
#[derive(Debug)]
pub struct SessionFile {
    location: SessionFileLocation,
    metadata: SessionMetadata,
    disk: Arc<dyn DiskBackend>,
    /// Keep the old format for older programs: entries are also written inline.
    is_mirrored: bool,
    /// The session can be written: it is in Heeler's directory, and its transcript file has every
    /// entry.
    is_writable: bool,
    /// Boundary of the entries that only the inline transcript has.
    inline_boundary: Option<InlineBoundary>,
    /// Offsets in the transcript file of entries that were inline, and their end.
    adopted_offsets: Vec<u64>,
    log: Option<TranscriptWriter>,
    workers: BTreeMap<String, TranscriptWriter>,
    /// Line that may be in the file although its write was not acknowledged.
    unacknowledged: Option<(ChatSpeaker, String)>,
    /// Last row of each job that this process appended.
    last_rows: HashMap<(ChatSpeaker, JobId), u64>,
    /// The JSON file lacks entries or changes.
    has_unsaved_changes: bool,
    /// The transcripts of another program were copied in the background.
    is_copied: bool,
    /// Copy in progress, and its size in bytes.
    copying: Option<(StoppableThread<Result<(), DiskError>>, u64)>,
    /// Count of a long transcript in progress.
    counting: Option<JoinHandle<Option<EntryCount>>>,
    /// Released last.
    _lock: LockFile,
}

impl SessionFile {
    pub(crate) fn open(
        location: SessionFileLocation,
        metadata: SessionMetadata,
        lock: LockFile,
        disk: Arc<dyn DiskBackend>,
        older: OldFormatPolicy,
    ) -> Result<OpenedSessionFile, SessionFileError> {
        let mut session_file = SessionFile {
            location,
            metadata,
            disk,
            is_mirrored: false,
            is_writable: false,
            inline_boundary: None,
            adopted_offsets: Vec::new(),
            log: None,
            workers: BTreeMap::new(),
            unacknowledged: None,
            last_rows: HashMap::new(),
            has_unsaved_changes: false,
            is_copied: false,
            copying: None,
            counting: None,
            _lock: lock,
        };
        let mut warnings = std::mem::take(&mut session_file.metadata.warnings);
        session_file.check_workers(&mut warnings)?;
        let transcript = session_file.transcript_path()?;
        let is_empty = transcript.metadata().map_or(true, |found| found.len() == 0);
        // Opening repairs a torn tail. Another program's file is never modified, and an empty one
        // stays unopened.
        if session_file.location.foreign.is_none() && !is_empty {
            warnings.extend(session_file.open_log()?);
        }
        // A session whose entries are only in the file has the new format already.
        session_file.is_mirrored = older == OldFormatPolicy::Keep
            && (is_empty || !session_file.metadata.inline.is_empty());
        // Compared after the repair, which may have added a newline or removed a torn entry.
        session_file.inline_boundary = find_inline_boundary(&transcript, &session_file.metadata)?;
        session_file.is_writable =
            session_file.location.foreign.is_none() && session_file.inline_boundary.is_none();
        Ok(OpenedSessionFile { session_file, warnings })
    }

    pub fn id(&self) -> &str {
        &self.location.id
    }

    /// Returns true if the session is in Heeler's directory. A session of another program is copied
    /// there with the first write.
    pub(crate) fn is_stored(&self) -> bool {
        self.location.foreign.is_none()
    }

    /// Returns the state of the conversation.
    pub fn state(&self) -> &ConversationState {
        &self.metadata.state
    }

    /// Appends an entry to a transcript. When it returns, the entry is in the file and survives a
    /// crash of the process; within a second it also survives a power loss.
    ///
    /// A failed append can be repeated: the entry is then written once, even if the failure came
    /// after the write.
    pub fn append(
        &mut self,
        of: &ChatSpeaker,
        entry: &ConversationEntry,
    ) -> Result<(), SessionFileError> {
        self.make_writable()?;
        let line = serde_json::to_string(entry).expect("an entry has only JSON in it");
        let unsure = self.unacknowledged.take();
        // Only a line whose write ended unclearly is looked for: equal entries may follow each
        // other.
        if unsure.is_none_or(|(speaker, it)| speaker != *of || it != line)
            || !self.ends_with_line(of, &line)?
        {
            self.append_line(of, line)?;
        }
        // Noted after the write, because a row that was not written must be followed again.
        if let Some(source) = &entry.source {
            self.last_rows.insert((of.clone(), source.job.clone()), source.row);
        }
        self.has_unsaved_changes = true;
        Ok(())
    }

    fn append_line(&mut self, of: &ChatSpeaker, line: String) -> Result<(), SessionFileError> {
        let appended = self.with_log(of, |log| {
            let before = log.end();
            log.append(line.as_bytes())?;
            Ok((before, log.end()))
        });
        // After these errors the line may or may not be in the file.
        if let Err(SessionFileError::Append(AppendError::HalfLine { .. } | AppendError::Sync(_))) =
            appended
        {
            self.unacknowledged = Some((of.clone(), line));
        }
        let (before, after) = appended?;
        let counted = self.metadata.state.counted.unwrap_or_default();
        // Otherwise the count is behind, and the next save catches up.
        if *of == ChatSpeaker::Coordinator && counted.bytes == before {
            let entries = counted.entries + 1;
            self.metadata.state.counted = Some(EntryCount { bytes: after, entries });
        }
        Ok(())
    }

    /// Returns true if a line is the last of a transcript, after repair.
    fn ends_with_line(&mut self, of: &ChatSpeaker, line: &str) -> Result<bool, SessionFileError> {
        // A log that was closed is opened again, which repairs a half line first.
        let path = self.with_log(of, |log| Ok(log.path().to_owned()))?;
        let last = read_tail(&path, 1)?.records.pop();
        Ok(last.is_some_and(|last| last.text == line))
    }

    /// Changes the state and writes the JSON file.
    ///
    /// A failure leaves the file unchanged; the change is kept, and the next save writes it.
    pub fn save(
        &mut self,
        change: impl FnOnce(&mut ConversationState),
    ) -> Result<(), SessionFileError> {
        change(&mut self.metadata.state);
        self.has_unsaved_changes = true;
        self.make_writable()?;
        self.write_metadata()
    }

    /// Changes the state. For a session of another program, the write is deferred until the first
    /// message.
    pub fn save_or_defer(
        &mut self,
        change: impl FnOnce(&mut ConversationState),
    ) -> Result<(), SessionFileError> {
        if self.location.foreign.is_none() {
            return self.save(change);
        }
        // Not marked as unsaved: a session that is only viewed must not be copied when it is
        // closed.
        change(&mut self.metadata.state);
        Ok(())
    }

    /// Returns true if the JSON file is up to date.
    pub(crate) fn is_saved(&self) -> bool {
        !self.has_unsaved_changes
    }

    /// Writes the JSON file if there are changes; a session that was only read stays unchanged.
    pub fn save_changes(&mut self) -> Result<(), SessionFileError> {
        if self.has_unsaved_changes { self.save(|_| ()) } else { Ok(()) }
    }

    /// Removes a draft; no file of it remains.
    pub fn discard(mut self) -> Result<(), SessionFileError> {
        drop(self.log.take());
        let path = self.transcript_path()?;
        let failed = |source| DiskError { action: "remove", path: path.clone(), source };
        match self.disk.remove(&path) {
            // A draft whose copy never began has no file.
            Err(error) if !is_missing(&error) => Err(failed(error).into()),
            _ => Ok(()),
        }
    }

    /// Saves and closes the session.
    pub fn close(mut self) -> Result<(), SessionFileError> {
        self.save_changes()
    }

    /// Returns the path of a draft's transcript, and the disk to write it with.
    pub(crate) fn draft_target(
        &self,
    ) -> Result<(Utf8PathBuf, Arc<dyn DiskBackend>), SessionFileError> {
        Ok((self.transcript_path()?, Arc::clone(&self.disk)))
    }

    pub(crate) fn transcript_path(&self) -> Result<Utf8PathBuf, SessionFileError> {
        Ok(resolve_inside(self.location.folder(), &self.metadata.transcript)?)
    }

    /// Removes workers whose files are links, and adds those whose files a crash left unlisted.
    fn check_workers(&mut self, warnings: &mut Vec<String>) -> Result<(), SessionFileError> {
        let (location, metadata) = (&self.location, &mut self.metadata);
        // Backwards, because skipping removes an element.
        for at in (0..metadata.state.workers.len()).rev() {
            let worker = &metadata.state.workers[at];
            match resolve_inside(location.folder(), &location.worker_file_path(&worker.file)) {
                Err(error) => {
                    warnings.push(format!("worker `{}`: {error}", worker.name));
                    metadata.skip_worker(at);
                }
                // Heeler's own workers are listed before their first message.
                Ok(path) if worker.jobs.is_empty() && !path.exists() => {
                    warnings.push(format!("worker `{}`: {path} is missing", worker.name));
                }
                Ok(_) => {}
            }
        }
        // A crash may come between a worker's first entry and the JSON file that lists the worker.
        for file in worker_files(location, location.folder())? {
            let name = file.strip_suffix(NDJSON_SUFFIX).unwrap_or(&file);
            let workers = &mut metadata.state.workers;
            if !workers.iter().any(|it| it.file == file || it.name == name) {
                workers.push(RosterWorker::new(name));
            }
        }
        Ok(())
    }

    /// Opens the coordinator's transcript in Heeler's directory; returns a warning if it was
    /// repaired.
    fn open_log(&mut self) -> Result<Option<String>, SessionFileError> {
        let (log, warning) =
            open_log(&self.disk, &self.location.heeler_folder, &self.metadata.transcript)?;
        self.log = Some(log);
        Ok(warning)
    }

    /// Calls `act` with the writer of a transcript. A writer that accepts no more lines is closed,
    /// to be reopened.
    fn with_log<T>(
        &mut self,
        of: &ChatSpeaker,
        act: impl FnOnce(&mut TranscriptWriter) -> Result<T, AppendError>,
    ) -> Result<T, SessionFileError> {
        let log = match of {
            ChatSpeaker::Coordinator => {
                if self.log.is_none() {
                    self.open_log()?;
                }
                self.log.as_mut()
            }
            ChatSpeaker::Worker(name) => Some(self.worker_log(name)?),
        };
        let done = act(log.expect("it was opened above"));
        if let Err(AppendError::HalfLine { .. } | AppendError::Sync(_)) = done {
            match of {
                ChatSpeaker::Coordinator => self.log = None,
                ChatSpeaker::Worker(name) => drop(self.workers.remove(name)),
            }
        }
        Ok(done?)
    }

    fn worker_log(&mut self, name: &str) -> Result<&mut TranscriptWriter, SessionFileError> {
        validate_id(name)?;
        if !self.workers.contains_key(name) {
            if self.workers.len() >= WORKER_LOGS_MAX {
                for log in std::mem::take(&mut self.workers).into_values() {
                    log.close()?;
                }
            }
            create_folder(
                self.disk.as_ref(),
                &self.location.heeler_folder.join(self.location.workers_folder()),
            )?;
            let file = self.location.worker_file_path(&self.worker_file(name));
            let (log, _) = open_log(&self.disk, &self.location.heeler_folder, &file)?;
            if !self.metadata.state.workers.iter().any(|it| it.name == name) {
                self.metadata.state.workers.push(RosterWorker::new(name));
            }
            self.workers.insert(name.to_owned(), log);
        }
        Ok(self.workers.get_mut(name).expect("it was opened above"))
    }

    fn worker_file(&self, name: &str) -> String {
        let known = self.metadata.state.workers.iter().find(|it| it.name == name);
        known.map_or_else(|| format!("{name}{NDJSON_SUFFIX}"), |it| it.file.clone())
    }

    /// Writes the JSON file in the session's current format.
    fn write_metadata(&mut self) -> Result<(), SessionFileError> {
        let inline = if self.is_mirrored {
            self.inline_lines(INLINE_BYTES_MAX)?
        } else {
            InlineTranscriptUpdate::Clear
        };
        self.write_metadata_with(inline)?;
        self.has_unsaved_changes = false;
        Ok(())
    }

    fn write_metadata_with(
        &mut self,
        inline: InlineTranscriptUpdate,
    ) -> Result<(), SessionFileError> {
        // Data that the JSON file refers to must be on disk before it.
        self.sync()?;
        let messages = self.count_entries()?;
        let bytes = self.metadata.write(messages, inline);
        let path =
            resolve_inside(&self.location.heeler_folder, &format!("{}.json", self.location.id))?;
        Ok(replace_file(self.disk.as_ref(), &path, &bytes)?)
    }

    fn sync(&mut self) -> Result<(), SessionFileError> {
        if let Some(log) = &mut self.log
            && let Err(error) = log.sync()
        {
            // A writer whose sync failed accepts no more lines, so the next append opens another.
            self.log = None;
            return Err(error.into());
        }
        let failed = self.workers.iter_mut().find_map(|(name, log)| {
            let error = log.sync().err()?;
            Some((name.clone(), error))
        });
        match failed {
            None => Ok(()),
            Some((name, error)) => {
                self.workers.remove(&name);
                Err(error.into())
            }
        }
    }

    /// Returns the number of entries in the coordinator's transcript. Only new bytes are counted,
    /// and long counts run in the background; `None` until they end.
    fn count_entries(&mut self) -> Result<Option<u64>, SessionFileError> {
        let path = resolve_inside(&self.location.heeler_folder, &self.metadata.transcript)?;
        if let Some(done) = self.counting.take_if(|counting| counting.is_finished()) {
            // A failed count is tried again.
            self.metadata.state.counted =
                done.join().ok().flatten().or(self.metadata.state.counted);
        }
        let before = self.metadata.state.counted.unwrap_or_default();
        let counted = count_entries_from(&path, before, u64::MAX, COUNT_BYTES_MAX)?;
        if let Some(counted) = counted {
            self.metadata.state.counted = Some(counted);
        } else if self.counting.is_none() {
            let count =
                move || count_entries_from(&path, before, u64::MAX, u64::MAX).ok().flatten();
            // The thread only reads, so nothing has to wait for it at the end.
            self.counting = Some(std::thread::spawn(count));
        }
        Ok(counted.map(|counted| counted.entries))
    }

    /// Returns all entries for the inline transcript, unless it would be too long.
    fn inline_lines(&self, bytes_max: u64) -> Result<InlineTranscriptUpdate, SessionFileError> {
        let path = resolve_inside(&self.location.heeler_folder, &self.metadata.transcript)?;
        if path.metadata().map_or(0, |found| found.len()) > bytes_max {
            return Ok(InlineTranscriptUpdate::Keep);
        }
        let lines = read_records(&path, 0)?.map(|record| Ok(record?.text));
        Ok(InlineTranscriptUpdate::Replace(lines.collect::<Result<_, DiskError>>()?))
    }
}

fn open_log(
    disk: &Arc<dyn DiskBackend>,
    folder: &Utf8Path,
    name: &str,
) -> Result<(TranscriptWriter, Option<String>), SessionFileError> {
    let path = resolve_inside(folder, name)?;
    let options = TranscriptWriterOptions {
        // No entry waits for the disk; a power loss may cost those of the last second.
        durability: TranscriptDurability::Interval,
        disk: Arc::clone(disk),
    };
    let opened = TranscriptWriter::open(&path, options)?;
    let warning = opened.repair.and_then(|repair| match repair {
        // Nothing was lost, so there is nothing to report.
        TailRepair::NewlineAdded { .. } => None,
        TailRepair::TornTailMoved { len, saved_to: kept, .. } => Some(format!(
            "{name} ended in {len} bytes of an incomplete entry; they are in {kept} now"
        )),
    });
    Ok((opened.writer, warning))
}

/// Returns the names of the workers' transcripts in a session directory, without links.
fn worker_files(
    location: &SessionFileLocation,
    folder: &Utf8Path,
) -> Result<Vec<String>, SessionFileError> {
    let Ok(path) = resolve_inside(folder, &location.workers_folder()) else {
        // The directory is a link, so none of its files is used.
        return Ok(Vec::new());
    };
    let failed = |source| DiskError { action: "list", path: path.clone(), source };
    let names = match std::fs::read_dir(&path) {
        Ok(names) => names,
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error).into()),
    };
    let mut files = Vec::new();
    for entry in names {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_one = name.strip_suffix(NDJSON_SUFFIX).is_some_and(|name| validate_id(name).is_ok());
        if is_one && entry.file_type().is_ok_and(|found| found.is_file()) {
            files.push(name);
        }
    }
    // The order of a directory is arbitrary, that of the roster should not be.
    files.sort_unstable();
    Ok(files)
}
