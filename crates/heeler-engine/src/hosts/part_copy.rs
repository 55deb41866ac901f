//! Appends shipped parts to the copies of this host.
//!
//! A part that was copied in part, or twice, is recognized by the length and the bytes of the copy. Files are made
//! durable through a [`DiskBackend`], which may do so for many of them later. Start at [`add_part`].

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::error_chain;
use heeler_store::{ReceivedPart, SharedFileForm};
use heeler_transcript::{
    AppendError, DiskBackend, OsDisk, TranscriptDurability, TranscriptOpenError, TranscriptWriter,
    TranscriptWriterOptions, create_folder, untrusted_file,
};

/// Reason of [`CopyFault::NoBeginning`].
pub(super) const NO_BEGINNING: &str = "its beginning is not here";

/// Appends a part to a copy of its form.
pub(super) fn add_part(
    disk: &Arc<dyn DiskBackend>,
    form: SharedFileForm,
    path: &Utf8Path,
    part: &ReceivedPart,
) -> Result<(), CopyFault> {
    match form {
        SharedFileForm::Transcript => append_part(disk, path, part),
        SharedFileForm::Text => append_bytes(disk.as_ref(), path, part),
        SharedFileForm::Whole => add_to_draft(disk.as_ref(), path, part),
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
fn missing_bytes<'p>(
    backend: &dyn DiskBackend,
    path: &Utf8Path,
    part: &'p ReceivedPart,
) -> Result<&'p [u8], CopyFault> {
    if let Some(folder) = path.parent() {
        create_folder(backend, folder).map_err(|error| disk(&error))?;
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

/// Makes a file and its name durable.
fn sync_named(backend: &dyn DiskBackend, path: &Utf8Path, file: &File) -> io::Result<()> {
    backend.sync(file)?;
    path.parent().map_or(Ok(()), |folder| backend.sync_folder(folder))
}

/// Appends a part to a copy that is no transcript, and syncs it.
fn append_bytes(
    backend: &dyn DiskBackend,
    path: &Utf8Path,
    part: &ReceivedPart,
) -> Result<(), CopyFault> {
    let missing = missing_bytes(backend, path, part)?;
    let mut options = File::options();
    options.append(true).create(true).mode(0o600);
    let mut file = untrusted_file::open_with(&mut options, path).map_err(open_fault)?;
    let written = file.write_all(missing).and_then(|()| sync_named(backend, path, &file));
    written.map_err(|error| disk(&error))
}

/// Adds a part to the draft of a file that gets its name when it is complete.
fn add_to_draft(
    backend: &dyn DiskBackend,
    path: &Utf8Path,
    part: &ReceivedPart,
) -> Result<(), CopyFault> {
    let Some((folder, draft)) = path.parent().zip(draft_path(path)) else {
        return other("it has no folder");
    };
    // Such a file never changes: it is complete, or this host sent it.
    if path.symlink_metadata().is_ok() {
        // Its name may not be durable yet.
        return backend.sync_folder(folder).map_err(|error| disk(&error));
    }
    append_bytes(backend, &draft, part)?;
    if !part.is_last {
        return Ok(());
    }
    // The backend syncs the bytes before the rename.
    let renamed = backend.rename(&draft, path).and_then(|()| backend.sync_folder(folder));
    renamed.map_err(|error| disk(&error))
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
    append_part(&os_disk(), path, &part).map_err(|fault| match fault {
        CopyFault::Disk(why) | CopyFault::Other(why) => why,
        CopyFault::NoBeginning => NO_BEGINNING.to_owned(),
    })
}

/// Returns the backend that makes each file durable at once.
pub(super) fn os_disk() -> Arc<dyn DiskBackend> {
    Arc::new(OsDisk)
}

fn append_part(
    backend: &Arc<dyn DiskBackend>,
    path: &Utf8Path,
    part: &ReceivedPart,
) -> Result<(), CopyFault> {
    if missing_bytes(backend.as_ref(), path, part)?.is_empty() {
        return sync_present(backend.as_ref(), path).map_err(|error| disk(&error));
    }
    let durability = TranscriptDurability::Event;
    let options = TranscriptWriterOptions { durability, disk: Arc::clone(backend) };
    let opened = TranscriptWriter::open(path, options);
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

/// Makes a copy durable that has all bytes. A daemon that was killed may not have done so.
fn sync_present(backend: &dyn DiskBackend, path: &Utf8Path) -> io::Result<()> {
    match untrusted_file::open(path) {
        Ok(file) => sync_named(backend, path, &file),
        // No bytes and no file, or a link, which has nothing of the part.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) =>
        {
            Ok(())
        }
        Err(error) => Err(error),
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
        append_bytes(&OsDisk, &path, &part(0, "one\ntw")).unwrap();
        append_bytes(&OsDisk, &path, &part(0, "one\ntw")).unwrap();
        append_bytes(&OsDisk, &path, &part(6, "o\n")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        let gap = append_bytes(&OsDisk, &path, &part(50, "x")).unwrap_err();
        assert!(matches!(gap, CopyFault::NoBeginning), "{gap:?}");
        std::fs::remove_file(&path).unwrap();
        let target = folder.path().join("target");
        std::fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let link = append_bytes(&OsDisk, &path, &part(0, "a part that is longer than the link"));
        assert!(matches!(link.unwrap_err(), CopyFault::Other(_)));
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "");
    }

    #[test]
    fn a_whole_file_has_its_name_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("files/0-a.md")).unwrap();
        add_to_draft(&OsDisk, &path, &part(0, "one ")).unwrap();
        assert!(!path.exists());
        let last = ReceivedPart { is_last: true, ..part(4, "two") };
        for _ in 0..2 {
            add_to_draft(&OsDisk, &path, &last).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "one two");
        }
        // A part that was copied, of which that is not on record, has no effect.
        add_to_draft(&OsDisk, &path, &part(0, "one ")).unwrap();
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let empty = Utf8PathBuf::from_path_buf(folder.path().join("files/0-b.md")).unwrap();
        add_to_draft(&OsDisk, &empty, &ReceivedPart { is_last: true, ..part(0, "") }).unwrap();
        assert_eq!(std::fs::read(&empty).unwrap(), b"");
    }

    #[test]
    fn a_copy_grows_by_each_part_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("jobs/log.jsonl")).unwrap();
        let content = || std::fs::read_to_string(&path).unwrap();
        append_part(&os_disk(), &path, &part(0, "{\"a\":1}\n{\"b\": 2}  \n")).unwrap();
        append_part(&os_disk(), &path, &part(0, "{\"a\":1}\n{\"b\": 2}  \n")).unwrap();
        append_part(&os_disk(), &path, &part(19, "{\"c\":3}\n")).unwrap();
        assert_eq!(content(), "{\"a\":1}\n{\"b\": 2}  \n{\"c\":3}\n");
        // It was interrupted within a line.
        std::fs::write(&path, "{\"a\":1}\n{\"b").unwrap();
        append_part(&os_disk(), &path, &part(0, "{\"a\":1}\n{\"b\": 2}  \n")).unwrap();
        assert_eq!(content(), "{\"a\":1}\n{\"b\": 2}  \n");
        // A gap, and another file, are left alone.
        let gap = append_part(&os_disk(), &path, &part(500, "{}\n")).unwrap_err();
        assert!(matches!(gap, CopyFault::NoBeginning), "{gap:?}");
        std::fs::write(&path, "{\"x\":9}\n").unwrap();
        let foreign =
            append_part(&os_disk(), &path, &part(0, "{\"a\":1}\n{\"b\": 2}  \n")).unwrap_err();
        assert!(matches!(foreign, CopyFault::Other(_)), "{foreign:?}");
        assert_eq!(content(), "{\"x\":9}\n");
    }
}
