//! Migration of a session: files of another program are copied, an inline transcript is moved to a
//! file.
//!
//! The JSON file is written last. A crash therefore leaves the session unchanged, and a repeated
//! migration duplicates nothing. Originals of other programs are only read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{
    DiskBackend, DiskError, create_folder, replace_file, resolve_inside, untrusted_file,
    write_new_file,
};

use super::inline_boundary::{find_inline_boundary, is_same_entry};
use super::records::{is_missing, read_records};
use super::{SessionFile, SessionFileError, worker_files};
use crate::ChatSpeaker;
use crate::background::{StoppableReader, StoppableThread, WAIT_BYTES_MAX};
use crate::conversation_state::InlineBoundary;
use crate::session_metadata::InlineTranscriptUpdate;

/// Bytes of an inline transcript that are appended before a sync: a power loss then leaves a
/// prefix.
const MIGRATE_BATCH_BYTES: usize = 1024 * 1024;

impl SessionFile {
    /// Makes the session writable.
    pub(super) fn make_writable(&mut self) -> Result<(), SessionFileError> {
        if self.is_writable {
            return Ok(());
        }
        if let Some(foreign) = self.location.foreign.clone() {
            // An earlier attempt that failed later has copied the files already.
            if self.log.is_none() {
                if !self.is_copied {
                    copy_files(
                        self.disk.as_ref(),
                        &self.files_to_copy(&foreign)?,
                        &AtomicBool::new(false),
                    )?;
                }
                self.open_log()?;
            }
            // Opening the copy may have repaired it, which moves the boundary.
            let path = resolve_inside(&self.location.heeler_folder, &self.metadata.transcript)?;
            self.inline_boundary = find_inline_boundary(&path, &self.metadata)?;
        }
        if let Some(boundary) = self.inline_boundary {
            self.migrate_inline_entries(boundary)?;
        }
        // Until this file exists the original counts; a crash before leaves nothing but leftovers.
        self.write_metadata()?;
        self.location.foreign = None;
        self.is_writable = true;
        Ok(())
    }

    /// Prepares for a write that does not take long: a large session of another program is copied
    /// in the background. Returns the size of the copy in progress; `None` once the session can be
    /// written.
    pub fn prepare_writing(&mut self) -> Result<Option<u64>, SessionFileError> {
        let Some(foreign) = self.location.foreign.clone().filter(|_| !self.is_copied) else {
            return Ok(None);
        };
        if let Some((done, _)) = self.copying.take_if(|(it, _)| it.is_done()) {
            // After a failure no copy is in progress, so the next call starts another.
            done.join()?;
            self.is_copied = true;
            return Ok(None);
        }
        if self.copying.is_none() && self.log.is_none() {
            let files = self.files_to_copy(&foreign)?;
            let len = |(from, _): &(Utf8PathBuf, _)| from.metadata().map_or(0, |found| found.len());
            let bytes = files.iter().map(len).sum();
            if bytes > WAIT_BYTES_MAX {
                let disk = Arc::clone(&self.disk);
                // Leaving during the copy stops it, and no partial copy remains.
                let copy = StoppableThread::start(move |is_stopped| {
                    copy_files(disk.as_ref(), &files, is_stopped)
                });
                self.copying = Some((copy, bytes));
            }
        }
        Ok(self.copying.as_ref().map(|(_, bytes)| *bytes))
    }

    /// Returns the transcripts of another program's session, with their targets.
    fn files_to_copy(
        &self,
        foreign: &Utf8Path,
    ) -> Result<Vec<(Utf8PathBuf, Utf8PathBuf)>, SessionFileError> {
        let heeler_folder = &self.location.heeler_folder;
        let workers = worker_files(&self.location, foreign)?;
        if !workers.is_empty() {
            create_folder(self.disk.as_ref(), &heeler_folder.join(self.location.workers_folder()))?;
        }
        let names = workers.iter().map(|file| self.location.worker_file_path(file));
        let names = std::iter::once(self.metadata.transcript.clone()).chain(names);
        let both = |name: String| -> Result<_, SessionFileError> {
            Ok((resolve_inside(foreign, &name)?, resolve_inside(heeler_folder, &name)?))
        };
        names.map(both).collect()
    }

    /// Moves the entries that only the inline transcript has to the transcript file.
    fn migrate_inline_entries(&mut self, boundary: InlineBoundary) -> Result<(), SessionFileError> {
        let path = resolve_inside(&self.location.heeler_folder, &self.metadata.transcript)?;
        let lines = self.metadata.inline[boundary.entries..].to_vec();
        if boundary.bytes == 0 {
            // The replacement is atomic, so there is no partial state.
            self.log = None;
            let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
            replace_file(self.disk.as_ref(), &path, text.as_bytes())?;
        } else {
            // Only this marker distinguishes entries from the array from identical ones of the
            // file.
            self.metadata.state.adopting = Some(boundary);
            self.write_metadata_with(InlineTranscriptUpdate::Keep)?;
            // The JSON file exists now, so the copy counts from here on.
            self.location.foreign = None;
            self.append_missing(&path, boundary, &lines)?;
        }
        // The display may still have cursors that count entries of the array.
        self.adopted_offsets = vec![boundary.bytes];
        for record in read_records(&path, boundary.bytes)? {
            self.adopted_offsets.push(record?.next);
        }
        // The caller saves this together with the new array, in one replacement.
        (self.metadata.state.adopting, self.inline_boundary) = (None, None);
        Ok(())
    }

    /// Appends the lines that the file lacks after the boundary.
    fn append_missing(
        &mut self,
        path: &Utf8Path,
        boundary: InlineBoundary,
        lines: &[String],
    ) -> Result<(), SessionFileError> {
        // An interrupted move has already appended some of the lines.
        let mut there = 0;
        for (record, line) in read_records(path, boundary.bytes)?.zip(lines) {
            if !is_same_entry(&record?.text, line) {
                break;
            }
            there += 1;
        }
        let mut rest = &lines[there..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fitting = rest.iter().take_while(|line| {
                bytes += line.len();
                bytes <= MIGRATE_BATCH_BYTES
            });
            // A line that is longer than a batch is a batch of its own.
            let (now, later) = rest.split_at(fitting.count().max(1));
            let now: Vec<&[u8]> = now.iter().map(String::as_bytes).collect();
            self.with_log(&ChatSpeaker::Coordinator, |log| {
                log.append_all(&now)?;
                Ok(log.sync()?)
            })?;
            rest = later;
        }
        Ok(())
    }
}

fn copy_files(
    disk: &dyn DiskBackend,
    files: &[(Utf8PathBuf, Utf8PathBuf)],
    is_stopped: &AtomicBool,
) -> Result<(), DiskError> {
    files.iter().try_for_each(|(from, to)| copy_file(disk, from, to, is_stopped))
}

/// Copies a file, which need not exist. An existing target is left over from an interrupted copy:
/// it is used if it is identical, else renamed.
fn copy_file(
    disk: &dyn DiskBackend,
    from: &Utf8Path,
    to: &Utf8Path,
    is_stopped: &AtomicBool,
) -> Result<(), DiskError> {
    let failed = |source| DiskError { action: "copy", path: from.to_owned(), source };
    let source = match untrusted_file::open(from) {
        Ok(source) => source,
        Err(error) if is_missing(&error) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    match untrusted_file::open(to) {
        Ok(found) if is_same_file(&source, &found).map_err(failed)? => return Ok(()),
        Err(error) if is_missing(&error) => {}
        _ => move_aside(disk, to)?,
    }
    write_new_file(disk, to, &mut StoppableReader(source, is_stopped), u64::MAX).map(drop)
}

fn is_same_file(a: &File, b: &File) -> io::Result<bool> {
    if a.metadata()?.len() != b.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 256 * 1024], vec![0; 256 * 1024]);
    let mut at = 0;
    loop {
        let read = a.read_at(&mut left, at)?;
        if read == 0 {
            return Ok(true);
        }
        match b.read_exact_at(&mut right[..read], at) {
            Ok(()) if left[..read] == right[..read] => at += read as u64,
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

fn move_aside(disk: &dyn DiskBackend, path: &Utf8Path) -> Result<(), DiskError> {
    for number in 1_u64.. {
        let aside = Utf8PathBuf::from(format!("{path}.left.{number}"));
        // Leftovers may have entries that nothing else has, so each keeps a name of its own.
        match disk.rename_new(path, &aside) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => {
                let failed = |source| DiskError { action: "rename", path: path.to_owned(), source };
                return result.map_err(failed);
            }
        }
    }
    unreachable!("there are more names than files")
}
