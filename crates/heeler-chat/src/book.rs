//! One session, opened for writing: its transcripts and its JSON file, with its lock held.
//!
//! An entry is in its file when [`Book::append`] returns. The JSON file follows with [`Book::save`];
//! whatever it lacks after a crash can be told from the transcripts. A session of an older form, or
//! another program's, is only read until something is written: then it is made ours first. Start at
//! [`Book`].

mod page;
mod settle;
#[cfg(test)]
pub(crate) mod tests;
mod whole;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::JobId;
use heeler_transcript::{
    AppendError, Disk, DiskError, Durability, LockFile, Log, LogOptions, NameError, OpenError,
    Repair, Scan, SyncError, checked_id, create_folder, plain, replace_file, resolve_inside, tail,
};
use thiserror::Error;

pub use self::page::{EntryPage, Mark};
pub(crate) use self::page::{read_entry, unended};
pub(crate) use self::settle::seam;
pub(crate) use self::whole::Whole;
use crate::about::{About, Counted, NDJSON, Seam, Worker};
use crate::beside::Beside;
use crate::sheet::{Inline, Sheet};
use crate::shelf::{Older, Opened};
use crate::{Entry, Speaker};

/// How many transcripts of workers are kept open; then all are closed, to be opened again when needed.
const WORKER_LOGS_MAX: usize = 64;
/// The longest inline transcript that is written for older programs. A longer one stays as it is; the
/// entries are in the transcript's own file in any case.
const INLINE_BYTES_MAX: u64 = plain::RECORD_BYTES_MAX / 2;
/// How much of a transcript is counted while somebody waits. What is longer is counted beside, and the
/// JSON file keeps the count that it has until that is done.
pub(crate) const COUNT_BYTES_MAX: u64 = 8 << 20;

/// Why a session's files were not read or written.
#[derive(Debug, Error)]
pub enum BookError {
    /// A name that may be no file's, or a link in its place.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A transcript could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An entry was not written.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// What was written may not survive a power loss.
    #[error(transparent)]
    Sync(#[from] SyncError),
}

/// Where a session is.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) id: String,
    /// The folder of ours.
    pub(crate) own: Utf8PathBuf,
    /// The folder that has it, until it is ours.
    pub(crate) foreign: Option<Utf8PathBuf>,
}

impl Place {
    /// Returns the folder that has the session.
    fn folder(&self) -> &Utf8Path {
        self.foreign.as_deref().unwrap_or(&self.own)
    }

    /// Returns the name of a worker's transcript in the folder.
    fn worker(&self, file: &str) -> String {
        format!("{}/{file}", self.workers())
    }

    fn workers(&self) -> String {
        format!("{}.workers", self.id)
    }
}

/// One session, opened for writing. Dropping it keeps all entries; [`Book::close`] also tells whether the
/// JSON file is up to date.
#[derive(Debug)]
pub struct Book {
    place: Place,
    sheet: Sheet,
    disk: Arc<dyn Disk>,
    /// Older programs are to go on with it: its form stays, and entries are inline too.
    is_mirrored: bool,
    /// The session can be written: it is ours, and its own file has every entry.
    is_settled: bool,
    /// Where the entries that only the inline transcript has belong.
    pending: Option<Seam>,
    /// Where the entries are now that were only inline, and where they end.
    adopted: Vec<u64>,
    log: Option<Log>,
    workers: BTreeMap<String, Log>,
    /// A line that may be there although it was not acknowledged.
    unsure: Option<(Speaker, String)>,
    /// The last row of each job that was appended by us.
    last_rows: HashMap<(Speaker, JobId), u64>,
    /// Something was appended or changed that the JSON file does not tell of.
    is_changed: bool,
    /// Another program's transcripts were copied beside.
    is_brought: bool,
    /// The copy, and how many bytes it has.
    bringing: Option<(Beside<Result<(), DiskError>>, u64)>,
    /// A count of a long transcript that is under way.
    counting: Option<JoinHandle<Option<Counted>>>,
    /// Freed last.
    _lock: LockFile,
}

impl Book {
    pub(crate) fn open(
        place: Place,
        sheet: Sheet,
        lock: LockFile,
        disk: Arc<dyn Disk>,
        older: Older,
    ) -> Result<Opened, BookError> {
        let mut book = Book {
            place,
            sheet,
            disk,
            is_mirrored: false,
            is_settled: false,
            pending: None,
            adopted: Vec::new(),
            log: None,
            workers: BTreeMap::new(),
            unsure: None,
            last_rows: HashMap::new(),
            is_changed: false,
            is_brought: false,
            bringing: None,
            counting: None,
            _lock: lock,
        };
        let mut warnings = std::mem::take(&mut book.sheet.warnings);
        book.check_workers(&mut warnings)?;
        let transcript = book.transcript()?;
        let is_empty = transcript.metadata().map_or(true, |found| found.len() == 0);
        if book.place.foreign.is_none() && !is_empty {
            warnings.extend(book.open_log()?);
        }
        book.is_mirrored = older == Older::Keep && (is_empty || !book.sheet.inline.is_empty());
        book.pending = seam(&transcript, &book.sheet)?;
        book.is_settled = book.place.foreign.is_none() && book.pending.is_none();
        Ok(Opened { book, warnings })
    }

    /// Returns the session's id.
    pub fn id(&self) -> &str {
        &self.place.id
    }

    /// Returns what is known of the session.
    pub fn about(&self) -> &About {
        &self.sheet.about
    }

    /// Appends an entry to a transcript. When it returns, the entry is in the file and survives a crash
    /// of ours; within a second it survives a power loss too.
    ///
    /// What failed can be appended again: it is there once then, also if the failure came after the write.
    pub fn append(&mut self, of: &Speaker, entry: &Entry) -> Result<(), BookError> {
        self.settle()?;
        let line = serde_json::to_string(entry).expect("an entry has only JSON in it");
        let unsure = self.unsure.take();
        if unsure.is_none_or(|(whose, it)| whose != *of || it != line)
            || !self.ends_in(of, &line)?
        {
            self.append_line(of, line)?;
        }
        if let Some(source) = &entry.source {
            self.last_rows.insert((of.clone(), source.job.clone()), source.row);
        }
        self.is_changed = true;
        Ok(())
    }

    fn append_line(&mut self, of: &Speaker, line: String) -> Result<(), BookError> {
        let appended = self.with_log(of, |log| {
            let before = log.end();
            log.append(line.as_bytes())?;
            Ok((before, log.end()))
        });
        if let Err(BookError::Append(AppendError::HalfLine { .. } | AppendError::Sync(_))) =
            appended
        {
            self.unsure = Some((of.clone(), line));
        }
        let (before, after) = appended?;
        let counted = self.sheet.about.counted.unwrap_or_default();
        if *of == Speaker::Coordinator && counted.bytes == before {
            let entries = counted.entries + 1;
            self.sheet.about.counted = Some(Counted { bytes: after, entries });
        }
        Ok(())
    }

    /// Says whether a line is the last of a transcript, once that is repaired.
    fn ends_in(&mut self, of: &Speaker, line: &str) -> Result<bool, BookError> {
        let path = self.with_log(of, |log| Ok(log.path().to_owned()))?;
        let last = tail(&path, 1)?.records.pop();
        Ok(last.is_some_and(|last| last.text == line))
    }

    /// Changes what is known of the session and writes the JSON file.
    ///
    /// A failure leaves the file as it was; the change stays known, and the next save writes it.
    pub fn save(&mut self, change: impl FnOnce(&mut About)) -> Result<(), BookError> {
        change(&mut self.sheet.about);
        self.is_changed = true;
        self.settle()?;
        self.write_as_decided()
    }

    /// Changes what is known of the session; one of another program is written when something is said.
    pub fn take_over(&mut self, change: impl FnOnce(&mut About)) -> Result<(), BookError> {
        if self.place.foreign.is_none() {
            return self.save(change);
        }
        change(&mut self.sheet.about);
        Ok(())
    }

    /// Says whether the JSON file tells all that is known.
    pub(crate) fn is_saved(&self) -> bool {
        !self.is_changed
    }

    /// Writes the JSON file if something came since it was; a session that was only looked at is left
    /// as it is.
    pub fn save_changes(&mut self) -> Result<(), BookError> {
        if self.is_changed { self.save(|_| ()) } else { Ok(()) }
    }

    /// Removes a draft: of a session that was never saved nothing stays.
    pub fn discard(mut self) -> Result<(), BookError> {
        drop(self.log.take());
        let path = self.transcript()?;
        let failed = |source| DiskError { action: "remove", path: path.clone(), source };
        match self.disk.remove(&path) {
            Err(error) if !is_missing(&error) => Err(failed(error).into()),
            _ => Ok(()),
        }
    }

    /// Closes the session.
    pub fn close(mut self) -> Result<(), BookError> {
        self.save_changes()
    }

    /// Returns where a draft's transcript is to be, for whoever fills it.
    pub(crate) fn target(&self) -> Result<(Utf8PathBuf, Arc<dyn Disk>), BookError> {
        Ok((self.transcript()?, Arc::clone(&self.disk)))
    }

    fn transcript(&self) -> Result<Utf8PathBuf, BookError> {
        Ok(resolve_inside(self.place.folder(), &self.sheet.transcript)?)
    }

    /// Drops workers whose files are links, and adds those whose files a crash has left unlisted.
    fn check_workers(&mut self, warnings: &mut Vec<String>) -> Result<(), BookError> {
        let (place, sheet) = (&self.place, &mut self.sheet);
        for at in (0..sheet.about.workers.len()).rev() {
            let worker = &sheet.about.workers[at];
            match resolve_inside(place.folder(), &place.worker(&worker.file)) {
                Err(error) => {
                    warnings.push(format!("worker `{}`: {error}", worker.name));
                    sheet.skip(at);
                }
                // One of ours is listed before it says something.
                Ok(path) if worker.jobs.is_empty() && !path.exists() => {
                    warnings.push(format!("worker `{}`: {path} is missing", worker.name));
                }
                Ok(_) => {}
            }
        }
        for file in worker_files(place, place.folder())? {
            let name = file.strip_suffix(NDJSON).unwrap_or(&file);
            let workers = &mut sheet.about.workers;
            if !workers.iter().any(|it| it.file == file || it.name == name) {
                workers.push(Worker::new(name));
            }
        }
        Ok(())
    }

    /// Opens the coordinator's log, in our folder; returns what had to be repaired.
    fn open_log(&mut self) -> Result<Option<String>, BookError> {
        let (log, warning) = open_log(&self.disk, &self.place.own, &self.sheet.transcript)?;
        self.log = Some(log);
        Ok(warning)
    }

    /// Uses the log of a transcript. One that takes no more lines is closed, to be opened again.
    fn with_log<T>(
        &mut self,
        of: &Speaker,
        act: impl FnOnce(&mut Log) -> Result<T, AppendError>,
    ) -> Result<T, BookError> {
        let log = match of {
            Speaker::Coordinator => {
                if self.log.is_none() {
                    self.open_log()?;
                }
                self.log.as_mut()
            }
            Speaker::Worker(name) => Some(self.worker_log(name)?),
        };
        let done = act(log.expect("it was opened above"));
        if let Err(AppendError::HalfLine { .. } | AppendError::Sync(_)) = done {
            match of {
                Speaker::Coordinator => self.log = None,
                Speaker::Worker(name) => drop(self.workers.remove(name)),
            }
        }
        Ok(done?)
    }

    fn worker_log(&mut self, name: &str) -> Result<&mut Log, BookError> {
        checked_id(name)?;
        if !self.workers.contains_key(name) {
            if self.workers.len() >= WORKER_LOGS_MAX {
                for log in std::mem::take(&mut self.workers).into_values() {
                    log.close()?;
                }
            }
            create_folder(self.disk.as_ref(), &self.place.own.join(self.place.workers()))?;
            let file = self.place.worker(&self.worker_file(name));
            let (log, _) = open_log(&self.disk, &self.place.own, &file)?;
            if !self.sheet.about.workers.iter().any(|it| it.name == name) {
                self.sheet.about.workers.push(Worker::new(name));
            }
            self.workers.insert(name.to_owned(), log);
        }
        Ok(self.workers.get_mut(name).expect("it was opened above"))
    }

    fn worker_file(&self, name: &str) -> String {
        let known = self.sheet.about.workers.iter().find(|it| it.name == name);
        known.map_or_else(|| format!("{name}{NDJSON}"), |it| it.file.clone())
    }

    /// Writes the JSON file in the form that the session has from now on.
    fn write_as_decided(&mut self) -> Result<(), BookError> {
        let inline =
            if self.is_mirrored { self.all_lines(INLINE_BYTES_MAX)? } else { Inline::Moved };
        self.write(inline)?;
        self.is_changed = false;
        Ok(())
    }

    fn write(&mut self, inline: Inline) -> Result<(), BookError> {
        // What the file tells of is on disk before it.
        self.sync()?;
        let messages = self.count()?;
        let bytes = self.sheet.write(messages, inline);
        let path = resolve_inside(&self.place.own, &format!("{}.json", self.place.id))?;
        Ok(replace_file(self.disk.as_ref(), &path, &bytes)?)
    }

    fn sync(&mut self) -> Result<(), BookError> {
        if let Some(log) = &mut self.log
            && let Err(error) = log.sync()
        {
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

    /// Returns how many entries the coordinator's transcript has; only what came since is looked at, and
    /// nobody waits for much of that.
    fn count(&mut self) -> Result<Option<u64>, BookError> {
        let path = resolve_inside(&self.place.own, &self.sheet.transcript)?;
        if let Some(done) = self.counting.take_if(|counting| counting.is_finished()) {
            // One that failed tells nothing, and is tried again.
            self.sheet.about.counted = done.join().ok().flatten().or(self.sheet.about.counted);
        }
        let before = self.sheet.about.counted.unwrap_or_default();
        let counted = count_on(&path, before, u64::MAX, COUNT_BYTES_MAX)?;
        if let Some(counted) = counted {
            self.sheet.about.counted = Some(counted);
        } else if self.counting.is_none() {
            let count = move || count_on(&path, before, u64::MAX, u64::MAX).ok().flatten();
            self.counting = Some(std::thread::spawn(count));
        }
        Ok(counted.map(|counted| counted.entries))
    }

    /// Returns all entries for the inline transcript, unless it would be too long.
    fn all_lines(&self, bytes_max: u64) -> Result<Inline, BookError> {
        let path = resolve_inside(&self.place.own, &self.sheet.transcript)?;
        if path.metadata().map_or(0, |found| found.len()) > bytes_max {
            return Ok(Inline::Kept);
        }
        let lines = records(&path, 0)?.map(|record| Ok(record?.text));
        Ok(Inline::Replaced(lines.collect::<Result<_, DiskError>>()?))
    }
}

fn open_log(
    disk: &Arc<dyn Disk>,
    folder: &Utf8Path,
    name: &str,
) -> Result<(Log, Option<String>), BookError> {
    let path = resolve_inside(folder, name)?;
    let options = LogOptions { durability: Durability::Interval, disk: Arc::clone(disk) };
    let opened = Log::open(&path, options)?;
    let warning = opened.repair.and_then(|repair| match repair {
        Repair::Completed { .. } => None,
        Repair::Cut { len, kept, .. } => {
            Some(format!("{name} ended in {len} bytes of a half entry; they are in {kept} now"))
        }
    });
    Ok((opened.log, warning))
}

/// Returns the names of the workers' transcripts in a folder of sessions. Links are none.
fn worker_files(place: &Place, folder: &Utf8Path) -> Result<Vec<String>, BookError> {
    let Ok(path) = resolve_inside(folder, &place.workers()) else { return Ok(Vec::new()) };
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
        let is_one = name.strip_suffix(NDJSON).is_some_and(|name| checked_id(name).is_ok());
        if is_one && entry.file_type().is_ok_and(|found| found.is_file()) {
            files.push(name);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Iterates over the records of a transcript from a place on; a file that is not there has none.
fn records(
    path: &Utf8Path,
    from: u64,
) -> Result<impl Iterator<Item = Result<heeler_transcript::Record, DiskError>>, DiskError> {
    let scan = match Scan::open_at(path, from) {
        Ok(scan) => Some(scan),
        Err(error) if is_missing(&error.source) => None,
        Err(error) => return Err(error),
    };
    Ok(scan.into_iter().flatten().filter_map(|entry| match entry {
        Ok(heeler_transcript::Entry::Record(record)) => Some(Ok(record)),
        Ok(heeler_transcript::Entry::Fault(_)) => None,
        Err(error) => Some(Err(error)),
    }))
}

/// Counts the entries of a transcript up to a place, from where it was counted before, if that is still a
/// place in it. None if more than `bytes_max` would have to be looked at.
pub(crate) fn count_on(
    path: &Utf8Path,
    before: Counted,
    until: u64,
    bytes_max: u64,
) -> Result<Option<Counted>, DiskError> {
    let end = match tail(path, 0) {
        Ok(page) => page.end.min(until),
        Err(error) if is_missing(&error.source) => 0,
        Err(error) => return Err(error),
    };
    let is_place = before.bytes <= end && settle::is_line_start(path, before.bytes)?;
    let mut counted = if is_place { before } else { Counted::default() };
    if end - counted.bytes > bytes_max {
        return Ok(None);
    }
    if counted.bytes < end {
        for record in records(path, counted.bytes)? {
            // Lines may come while we count.
            if record?.offset >= end {
                break;
            }
            counted.entries += 1;
        }
        counted.bytes = end;
    }
    Ok(Some(counted))
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
