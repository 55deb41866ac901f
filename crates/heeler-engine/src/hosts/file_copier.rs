//! Keeps copies of the files of other hosts' runs, so that every host shows the rows and files of every
//! job.
//!
//! A copy is synced before the database records that this host has it. A part that was copied in part, or
//! twice, is recognized by the length of the copy. Start at [`FileCopier::start`].

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::error_chain;
use heeler_store::{ArchivedFile, HostLink, ReceivedPart, SharedFileForm, StateDir};
use heeler_transcript::{
    AppendError, OsDisk, TranscriptOpenError, TranscriptWriter, TranscriptWriterOptions,
    create_folder, untrusted_file,
};

use super::archive_copy::{ArchiveCopy, copy_archived};
use super::file_archiver::RecordedPolicy;
use super::object_archive::ObjectArchive;
use super::unshared_tail::set_tail_aside;
use crate::fault::{self, FaultPoint};

/// Interval at which new parts are looked for without a hint of the server. Hints come at once; one is
/// lost only with the connection.
const COPY_INTERVAL: Duration = Duration::from_secs(10);

/// Delay after an error.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Interval at which files that could not be taken from the archive are tried again.
const FAULT_INTERVAL: Duration = Duration::from_secs(3600);

/// Shortest and longest pause after a failure of the object store.
const STORE_PAUSE: Duration = Duration::from_secs(10);
const STORE_PAUSE_MAX: Duration = Duration::from_secs(300);

/// Interval at which parts that all hosts have are removed from the database.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(60);

/// Reason of [`CopyFault::NoBeginning`].
const NO_BEGINNING: &str = "its beginning is not here";

/// Event for the thread.
enum CopierEvent {
    /// A host may have shipped a part.
    Hint,
    Stop,
}

/// Handle to the thread.
#[derive(Debug)]
pub(super) struct FileCopier {
    objects: ObjectArchive,
    events: SyncSender<CopierEvent>,
    thread: Option<JoinHandle<()>>,
}

impl FileCopier {
    /// Starts the thread. It also reads the policy of the archive.
    pub(super) fn start(
        dir: StateDir,
        objects: ObjectArchive,
        policy: RecordedPolicy,
    ) -> io::Result<FileCopier> {
        // A hint that finds no room is not needed: another one waits.
        let (events, received) = sync_channel(1);
        let mut copier = CopierThread {
            dir,
            link: None,
            objects: objects.clone(),
            policy,
            store_fault: None,
            last: 0,
            last_archived: 0,
            faults_seen_at: None,
            faults_after: None,
            removed_at: Instant::now(),
            events: events.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("heeler-copy".to_owned())
            .spawn(move || copier.run(&received))?;
        Ok(FileCopier { objects, events, thread: Some(thread) })
    }
}

impl Drop for FileCopier {
    fn drop(&mut self) {
        self.objects.stop();
        // The thread takes what is in the channel before, or has ended.
        let _ended = self.events.send(CopierEvent::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the copier's thread had panicked");
        }
    }
}

/// A pause after a failure of the object store.
struct StoreFault {
    until: Instant,
    pause: Duration,
}

struct CopierThread {
    dir: StateDir,
    link: Option<HostLink>,
    objects: ObjectArchive,
    policy: RecordedPolicy,
    /// The object store could not be used.
    store_fault: Option<StoreFault>,
    /// Number of the last part that is copied.
    last: i64,
    /// Number of the last file of the archive that was looked at.
    last_archived: i64,
    /// Time at which files that could not be taken from the archive were tried again.
    faults_seen_at: Option<Instant>,
    /// Path after which the next of them are tried again.
    faults_after: Option<String>,
    removed_at: Instant,
    /// For hints of the server.
    events: SyncSender<CopierEvent>,
}

impl CopierThread {
    fn run(&mut self, events: &Receiver<CopierEvent>) {
        let mut wait = Duration::ZERO;
        loop {
            match events.recv_timeout(wait) {
                Ok(CopierEvent::Hint) | Err(RecvTimeoutError::Timeout) => {}
                Ok(CopierEvent::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
            wait = match self.copy_new() {
                Ok(true) => Duration::ZERO,
                Ok(false) => COPY_INTERVAL,
                Err(why) => {
                    tracing::warn!(why, "files of other hosts are copied later");
                    self.link = None;
                    // The end of a connection is a hint too, and must not end the delay.
                    if !rest(events, RETRY_DELAY) {
                        return;
                    }
                    Duration::ZERO
                }
            };
        }
    }

    /// Copies the next parts. Returns true if there may be more.
    fn copy_new(&mut self) -> Result<bool, String> {
        let failed = |error: heeler_store::DatabaseError| error_chain(&error);
        let link = match self.link.take().filter(|link| !link.is_closed()) {
            Some(link) => link,
            None => {
                let link = HostLink::connect(&self.dir).map_err(|error| error_chain(&error))?;
                // Before the first read: a part in between is in the answer.
                let events = self.events.clone();
                link.listen_for_parts(move || drop(events.try_send(CopierEvent::Hint)))
                    .map_err(failed)?;
                self.last = link.parts_read().map_err(failed)?;
                self.last_archived = link.archives_read().map_err(failed)?;
                link
            }
        };
        let link = self.link.insert(link);
        let parts = link.parts_after(self.last).map_err(failed)?;
        let Some(last) = parts.last().map(|part| part.number) else {
            if self.take_archived()? {
                return Ok(true);
            }
            let link = self.link.as_ref().expect("it was inserted above");
            if self.removed_at.elapsed() >= REMOVAL_INTERVAL {
                self.removed_at = Instant::now();
                link.remove_read_parts().map_err(failed)?;
            }
            return Ok(false);
        };
        let own = self.dir.host().map(|host| host.name.to_string());
        for part in parts.iter().filter(|part| Some(&part.host) != own.as_ref()) {
            copy_part((link, &self.objects), &self.dir, part)?;
            fault::reach(FaultPoint::PartCopied);
        }
        link.note_parts_read(last).map_err(failed)?;
        self.last = last;
        Ok(true)
    }

    /// Takes the next files of the archive that this host lacks. Returns true if there may be more.
    fn take_archived(&mut self) -> Result<bool, String> {
        let failed = |error: heeler_store::DatabaseError| error_chain(&error);
        let Some(link) = &self.link else { return Ok(false) };
        self.policy.set(link.file_archive_policy().map_err(failed)?);
        if self.store_fault.as_ref().is_some_and(|fault| Instant::now() < fault.until) {
            return Ok(false);
        }
        let archive = (link, &self.objects);
        let mut taken = TakenFile::Here;
        if self.faults_seen_at.is_none_or(|at| at.elapsed() >= FAULT_INTERVAL) {
            (self.faults_seen_at, self.faults_after) = (Some(Instant::now()), Some(String::new()));
        }
        if let Some(after) = &self.faults_after {
            let paths = link.own_archive_faults(after).map_err(failed)?;
            for path in &paths {
                if taken != TakenFile::Unreachable
                    && let Some(file) = link.archived_file(path).map_err(failed)?
                {
                    taken = take_file(archive, &self.dir, &file)?;
                }
            }
            if taken != TakenFile::Unreachable {
                self.faults_after = paths.into_iter().next_back();
                // Parts come first.
                if self.faults_after.is_some() {
                    return Ok(true);
                }
            }
        }
        let files = link.archived_after(self.last_archived).map_err(failed)?;
        let mut last = None;
        for file in &files {
            if taken != TakenFile::Unreachable {
                taken = take_file(archive, &self.dir, file)?;
            }
            if taken == TakenFile::Unreachable {
                break;
            }
            last = Some(file.number);
        }
        if let Some(last) = last {
            link.note_archives_read(last).map_err(failed)?;
            self.last_archived = last;
        }
        if taken == TakenFile::Unreachable {
            let pause = self.store_fault.as_ref().map_or(STORE_PAUSE, |fault| fault.pause * 2);
            let pause = pause.min(STORE_PAUSE_MAX);
            self.store_fault = Some(StoreFault { until: Instant::now() + pause, pause });
            return Ok(false);
        }
        self.store_fault = None;
        Ok(last.is_some())
    }
}

/// Waits, and ignores hints. Returns false if the thread is to stop.
fn rest(events: &Receiver<CopierEvent>, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        match events.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(CopierEvent::Hint) => {}
            Err(RecvTimeoutError::Timeout) => return true,
            Ok(CopierEvent::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

/// Outcome of [`take_file`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TakenFile {
    /// This host has it.
    Here,
    Refused,
    /// The object store cannot be used.
    Unreachable,
}

/// Takes a file from the archive if this host lacks some of it. A file that is refused is on record, and does
/// not hold up the others.
fn take_file(
    (link, objects): (&HostLink, &ObjectArchive),
    dir: &StateDir,
    file: &ArchivedFile,
) -> Result<TakenFile, String> {
    let failed = |error: heeler_store::DatabaseError| error_chain(&error);
    let path = &file.path;
    let store = file.object.as_deref().map(|object| object.split('/').take(3).collect::<Vec<_>>());
    let store = store.map(|parts| parts.join("/"));
    match copy_archived((link, objects), dir, file)? {
        ArchiveCopy::Present => return Ok(TakenFile::Here),
        ArchiveCopy::Refused(why) => {
            if link.note_archive_fault(path, &why).map_err(failed)? {
                tracing::error!(path, host = file.host, why, "a file of the archive is refused");
            }
            return Ok(TakenFile::Refused);
        }
        ArchiveCopy::Unreachable(why) => {
            let store = store.unwrap_or_default();
            if link.note_archive_fault(&store, &why).map_err(failed)? {
                tracing::warn!(store, why, "files are taken from the archive later");
            }
            return Ok(TakenFile::Unreachable);
        }
        ArchiveCopy::Copied => {}
    }
    fault::reach(FaultPoint::ArchiveCopied);
    tracing::info!(path, length = file.length, "took a file from the archive");
    link.forget_archive_fault(path).map_err(failed)?;
    if let Some(store) = store {
        link.forget_archive_fault(&store).map_err(failed)?;
    }
    Ok(TakenFile::Here)
}

/// Appends a part to this host's copy, unless the copy is another file by now. If its beginning is not
/// here, it may be in the archive.
fn copy_part(
    archive: (&HostLink, &ObjectArchive),
    dir: &StateDir,
    part: &ReceivedPart,
) -> Result<(), String> {
    let Some((form, path)) = dir.shared_file(&part.path) else {
        tracing::error!(path = part.path, host = part.host, "hosts share no file at this path");
        return Ok(());
    };
    if part.takes_over {
        match set_tail_aside(dir, &path, part) {
            Ok(None) => {}
            Ok(Some(aside)) => {
                tracing::warn!(%path, %aside, "a run that was given up had rows that no other host has");
            }
            // A link or a pipe, which the copy below refuses too.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let mut copied = add_part(form, &path, part);
    if matches!(copied, Err(CopyFault::NoBeginning)) {
        let archived = archive.0.archived_file(&part.path).map_err(|error| error_chain(&error))?;
        if let Some(file) = archived.filter(|file| file.length >= part.start)
            && take_file(archive, dir, &file)? == TakenFile::Here
        {
            copied = add_part(form, &path, part);
        }
    }
    let why = match copied {
        Ok(()) => return Ok(()),
        Err(CopyFault::Disk(why)) => return Err(why),
        Err(CopyFault::Other(why)) => why,
        Err(CopyFault::NoBeginning) => NO_BEGINNING.to_owned(),
    };
    tracing::warn!(%path, host = part.host, why, "a file is not copied");
    Ok(())
}

/// Appends a part to a copy of its form.
pub(super) fn add_part(
    form: SharedFileForm,
    path: &Utf8Path,
    part: &ReceivedPart,
) -> Result<(), CopyFault> {
    match form {
        SharedFileForm::Transcript => append_part(path, part),
        SharedFileForm::Text => append_bytes(path, part),
        SharedFileForm::Whole => add_to_draft(path, part),
    }
}

/// Returns the draft of a file that gets its name when it is complete.
pub(super) fn draft_path(path: &Utf8Path) -> Option<Utf8PathBuf> {
    let (folder, name) = path.parent().zip(path.file_name())?;
    Some(folder.join(format!(".{name}.copy")))
}

/// Failure to copy a part.
#[derive(Debug)]
pub(super) enum CopyFault {
    /// It may succeed later.
    Disk(String),
    /// The copy is another file, so it is left alone.
    Other(String),
    /// This host lacks the bytes before the part.
    NoBeginning,
}

pub(super) fn disk(error: &(dyn std::error::Error + 'static)) -> CopyFault {
    CopyFault::Disk(error_chain(error))
}

fn other(why: &str) -> Result<(), CopyFault> {
    Err(CopyFault::Other(why.to_owned()))
}

pub(super) fn open_fault(error: io::Error) -> CopyFault {
    match error.kind() {
        // A link or a pipe.
        io::ErrorKind::InvalidInput => CopyFault::Other(error.to_string()),
        _ => disk(&error),
    }
}

/// Returns the bytes of a part that a copy lacks; none if it has them all.
fn missing_bytes<'p>(path: &Utf8Path, part: &'p ReceivedPart) -> Result<&'p [u8], CopyFault> {
    if let Some(folder) = path.parent() {
        create_folder(&OsDisk, folder).map_err(|error| disk(&error))?;
    }
    // A file of the wrong length is not opened, because that may repair it.
    let length = match path.symlink_metadata() {
        Ok(found) => found.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(disk(&error)),
    };
    if length < part.start {
        return Err(CopyFault::NoBeginning);
    }
    let end = part.start + part.bytes.len() as u64;
    if length >= end {
        return Ok(&[]);
    }
    // A copy that ends within the part was interrupted, if it has the same bytes.
    let (there, missing) = part.bytes.split_at((length - part.start) as usize);
    let mut found = vec![0; there.len()];
    if !there.is_empty() {
        let file = untrusted_file::open(path).map_err(open_fault)?;
        file.read_exact_at(&mut found, part.start).map_err(|error| disk(&error))?;
    }
    match found == there {
        true => Ok(missing),
        false => Err(CopyFault::Other("this host has another file of that name".to_owned())),
    }
}

/// Appends a part to a copy that is no transcript, and syncs it.
fn append_bytes(path: &Utf8Path, part: &ReceivedPart) -> Result<(), CopyFault> {
    let missing = missing_bytes(path, part)?;
    let mut options = File::options();
    options.append(true).create(true).mode(0o600);
    let mut file = untrusted_file::open_with(&mut options, path).map_err(open_fault)?;
    file.write_all(missing).and_then(|()| file.sync_all()).map_err(|error| disk(&error))
}

/// Adds a part to the draft of a file that gets its name when it is complete.
fn add_to_draft(path: &Utf8Path, part: &ReceivedPart) -> Result<(), CopyFault> {
    // Such a file never changes: it is complete, or this host sent it.
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let Some((folder, draft)) = path.parent().zip(draft_path(path)) else {
        return other("it has no folder");
    };
    append_bytes(&draft, part)?;
    if !part.is_last {
        return Ok(());
    }
    std::fs::rename(&draft, path).map_err(|error| disk(&error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| disk(&error))
}

/// Appends to the copy of a transcript what it lacks of whole lines that begin at an offset.
pub(super) fn append_missing_lines(
    path: &Utf8Path,
    start: u64,
    bytes: Vec<u8>,
) -> Result<(), String> {
    let part = ReceivedPart {
        number: 0,
        host: String::new(),
        path: String::new(),
        start,
        bytes,
        is_last: false,
        takes_over: false,
    };
    append_part(path, &part).map_err(|fault| match fault {
        CopyFault::Disk(why) | CopyFault::Other(why) => why,
        CopyFault::NoBeginning => NO_BEGINNING.to_owned(),
    })
}

fn append_part(path: &Utf8Path, part: &ReceivedPart) -> Result<(), CopyFault> {
    if missing_bytes(path, part)?.is_empty() {
        return Ok(());
    }
    let opened = TranscriptWriter::open(path, TranscriptWriterOptions::default());
    let mut writer = match opened {
        Ok(opened) => opened.writer,
        Err(TranscriptOpenError::Busy { .. }) => return other("a run of this host writes it"),
        Err(error) => return Err(disk(&error)),
    };
    // The repair may have cut a half line.
    let rest = match writer.end().checked_sub(part.start) {
        Some(there) if there as usize <= part.bytes.len() => &part.bytes[there as usize..],
        _ => return Err(CopyFault::Disk(format!("{path} changed meanwhile"))),
    };
    let lines = rest.split_inclusive(|byte| *byte == b'\n');
    let lines: Vec<&[u8]> = lines.map(|line| line.strip_suffix(b"\n").unwrap_or(line)).collect();
    match writer.append_all(&lines) {
        Ok(()) => writer.close().map_err(|error| disk(&error)),
        Err(AppendError::NotARecord { .. }) => other("a line is no record"),
        Err(error) => Err(disk(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: u64, text: &str) -> ReceivedPart {
        let bytes = text.as_bytes().to_vec();
        ReceivedPart {
            number: 1,
            host: "beta".to_owned(),
            path: String::new(),
            start,
            bytes,
            is_last: false,
            takes_over: false,
        }
    }

    #[test]
    fn a_copy_of_text_grows_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("jobs/output.log")).unwrap();
        append_bytes(&path, &part(0, "one\ntw")).unwrap();
        append_bytes(&path, &part(0, "one\ntw")).unwrap();
        append_bytes(&path, &part(6, "o\n")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        let gap = append_bytes(&path, &part(50, "x")).unwrap_err();
        assert!(matches!(gap, CopyFault::NoBeginning), "{gap:?}");
        std::fs::remove_file(&path).unwrap();
        let target = folder.path().join("target");
        std::fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let link = append_bytes(&path, &part(0, "a part that is longer than the link"));
        assert!(matches!(link.unwrap_err(), CopyFault::Other(_)));
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "");
    }

    #[test]
    fn a_whole_file_has_its_name_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("files/0-a.md")).unwrap();
        add_to_draft(&path, &part(0, "one ")).unwrap();
        assert!(!path.exists());
        let last = ReceivedPart { is_last: true, ..part(4, "two") };
        for _ in 0..2 {
            add_to_draft(&path, &last).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "one two");
        }
        // A part that was copied, of which that is not on record, has no effect.
        add_to_draft(&path, &part(0, "one ")).unwrap();
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let empty = Utf8PathBuf::from_path_buf(folder.path().join("files/0-b.md")).unwrap();
        add_to_draft(&empty, &ReceivedPart { is_last: true, ..part(0, "") }).unwrap();
        assert_eq!(std::fs::read(&empty).unwrap(), b"");
    }

    #[test]
    fn a_copy_grows_by_each_part_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("jobs/log.jsonl")).unwrap();
        let content = || std::fs::read_to_string(&path).unwrap();
        append_part(&path, &part(0, "{\"a\":1}\n{\"b\": 2}  \n")).unwrap();
        append_part(&path, &part(0, "{\"a\":1}\n{\"b\": 2}  \n")).unwrap();
        append_part(&path, &part(19, "{\"c\":3}\n")).unwrap();
        assert_eq!(content(), "{\"a\":1}\n{\"b\": 2}  \n{\"c\":3}\n");
        // It was interrupted within a line.
        std::fs::write(&path, "{\"a\":1}\n{\"b").unwrap();
        append_part(&path, &part(0, "{\"a\":1}\n{\"b\": 2}  \n")).unwrap();
        assert_eq!(content(), "{\"a\":1}\n{\"b\": 2}  \n");
        // A gap, and another file, are left alone.
        let gap = append_part(&path, &part(500, "{}\n")).unwrap_err();
        assert!(matches!(gap, CopyFault::NoBeginning), "{gap:?}");
        std::fs::write(&path, "{\"x\":9}\n").unwrap();
        let foreign = append_part(&path, &part(0, "{\"a\":1}\n{\"b\": 2}  \n")).unwrap_err();
        assert!(matches!(foreign, CopyFault::Other(_)), "{foreign:?}");
        assert_eq!(content(), "{\"x\":9}\n");
    }
}
