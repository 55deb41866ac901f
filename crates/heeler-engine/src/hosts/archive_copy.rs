//! Takes a file from the archive: one that this host lacks, or of which it has only the beginning.
//!
//! The content is decompressed into a draft without a name, and checked for length and hash before this
//! host's copy changes. Then it is appended like shipped parts. Start at [`copy_archived`].

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

use camino::Utf8Path;
use heeler_model::error_chain;
use heeler_store::{
    ARCHIVED_BYTES_MAX, ArchivedFile, FileUnpacker, HostLink, ReceivedPart, SharedFileForm,
    StateDir,
};
use heeler_transcript::{LINE_BYTES_MAX, OsDisk, create_folder, untrusted_file};

use super::object_archive::{ObjectArchive, ObjectError};
use super::part_copy::{CopyFault, add_part, disk, draft_path, open_fault, os_disk};
use crate::fault::{self, FaultPoint};

/// Bytes that are appended at once, unless one line is longer.
const PIECE_BYTES: usize = 256 << 10;

/// Bytes that are compared at once.
const COMPARED_BYTES: usize = 64 << 10;

/// Outcome of [`copy_archived`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ArchiveCopy {
    /// This host had it.
    Present,
    Copied,
    /// The archive or this host has another file, so nothing was changed.
    Refused(String),
    /// The object store cannot be used.
    Unreachable(String),
}

/// Takes a file from the archive if this host lacks some of it. May be interrupted and repeated.
pub(super) fn copy_archived(
    (link, objects): (&HostLink, &ObjectArchive),
    dir: &StateDir,
    file: &ArchivedFile,
) -> Result<ArchiveCopy, String> {
    let unreachable = RefCell::new(None);
    let note = |error: ObjectError| match error {
        ObjectError::File(why) => CopyFault::Other(why),
        ObjectError::Store(why) => {
            *unreachable.borrow_mut() = Some(why.clone());
            CopyFault::Disk(why)
        }
        ObjectError::Stopped => CopyFault::Disk("the daemon ends".to_owned()),
    };
    let note = &note;
    let copied = match &file.object {
        None => {
            let read = move |number| {
                objects.check_stop().map_err(note)?;
                chunk(link, file, number)
            };
            copy_file(dir, file, || Ok((0..file.chunks).map(read)))
        }
        Some(object) => copy_file(dir, file, || match objects.chunks(object) {
            Ok(chunks) => {
                Ok(chunks.map(move |chunk| objects.check_stop().and(chunk).map_err(note)))
            }
            Err(error) => Err(note(error)),
        }),
    };
    match copied {
        Ok(copy) => Ok(copy),
        Err(CopyFault::Disk(why)) => match unreachable.into_inner() {
            Some(why) => Ok(ArchiveCopy::Unreachable(why)),
            None => Err(why),
        },
        Err(CopyFault::Other(why)) => Ok(ArchiveCopy::Refused(why)),
        Err(CopyFault::NoBeginning) => {
            Ok(ArchiveCopy::Refused("this host's copy changed meanwhile".to_owned()))
        }
    }
}

/// Reads a chunk of the database.
fn chunk(link: &HostLink, file: &ArchivedFile, number: u64) -> Result<Vec<u8>, CopyFault> {
    if let Some(bytes) = link.archive_chunk(file, number).map_err(|error| disk(&error))? {
        return Ok(bytes);
    }
    match link.archived_file(&file.path).map_err(|error| disk(&error))? {
        Some(now) if now.number == file.number => {
            refuse(format!("chunk {number} of the archive is missing"))
        }
        // Another read finds its new record.
        _ => Err(CopyFault::Disk(format!("{} was archived meanwhile", file.path))),
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T, CopyFault> {
    Err(CopyFault::Other(why.into()))
}

/// Takes a file by its chunks, which are read only if they are needed.
fn copy_file<C: Iterator<Item = Result<Vec<u8>, CopyFault>>>(
    dir: &StateDir,
    file: &ArchivedFile,
    chunks: impl FnOnce() -> Result<C, CopyFault>,
) -> Result<ArchiveCopy, CopyFault> {
    let Some((form, path)) = dir.shared_file(&file.path) else {
        return refuse("hosts share no file at this path");
    };
    if file.length > ARCHIVED_BYTES_MAX {
        return refuse(format!("it has more than {ARCHIVED_BYTES_MAX} bytes by its record"));
    }
    // Standard error of a run of this host has another place.
    let own = dir.shipped_file(&file.path).map_or_else(|| path.clone(), |(_, own)| own);
    match own.symlink_metadata() {
        Ok(found) if !found.is_file() => return refuse("this host has no file in its place"),
        Ok(found) if form == SharedFileForm::Whole || found.len() >= file.length => {
            return Ok(ArchiveCopy::Present);
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(disk(&error)),
    }
    let mut content = unpack(&path, file, chunks()?)?;
    if form == SharedFileForm::Transcript {
        check_last_line(&mut content, file.length)?;
    }
    compare_beginning(&path, &mut content)?;
    fault::reach(FaultPoint::ArchiveFetched);
    if form == SharedFileForm::Whole
        && let Some(draft) = draft_path(&path)
        && let Err(error) = std::fs::remove_file(&draft)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(disk(&error));
    }
    append_content(form, &path, &mut content, file)?;
    Ok(ArchiveCopy::Copied)
}

/// Decompresses a file beside its place. The draft has no name, so a kill leaves nothing.
fn unpack(
    path: &Utf8Path,
    file: &ArchivedFile,
    chunks: impl Iterator<Item = Result<Vec<u8>, CopyFault>>,
) -> Result<File, CopyFault> {
    let Some((folder, name)) = path.parent().zip(path.file_name()) else {
        return refuse("it has no folder");
    };
    create_folder(&OsDisk, folder).map_err(|error| disk(&error))?;
    let draft = folder.join(format!(".{name}.archived"));
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(disk(&error)),
        _ => {}
    }
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    let content = untrusted_file::open_with(&mut options, &draft).map_err(open_fault)?;
    std::fs::remove_file(&draft).map_err(|error| disk(&error))?;
    let mut unpacker = FileUnpacker::new(content, file.length);
    for bytes in chunks {
        unpacker.add(&bytes?).map_err(|error| CopyFault::Other(error_chain(&error)))?;
    }
    unpacker.finish(&file.sha256).map_err(|error| CopyFault::Other(error_chain(&error)))
}

/// Refuses a transcript that ends within a line: no host ships that.
fn check_last_line(content: &mut File, length: u64) -> Result<(), CopyFault> {
    let Some(last) = length.checked_sub(1) else { return Ok(()) };
    let mut byte = [0];
    content
        .seek(SeekFrom::Start(last))
        .and_then(|_| content.read_exact(&mut byte))
        .map_err(|error| disk(&error))?;
    match byte == *b"\n" {
        true => Ok(()),
        false => refuse("its last line is not whole"),
    }
}

/// Refuses content with another beginning than this host's copy.
fn compare_beginning(path: &Utf8Path, content: &mut File) -> Result<(), CopyFault> {
    let mut own = match untrusted_file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        own => own.map_err(open_fault)?,
    };
    content.seek(SeekFrom::Start(0)).map_err(|error| disk(&error))?;
    let mut buffers = [vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]];
    loop {
        let [there, archived] = &mut buffers;
        let count = own.read(there).map_err(|error| disk(&error))?;
        if count == 0 {
            return Ok(());
        }
        content.read_exact(&mut archived[..count]).map_err(|error| disk(&error))?;
        if there[..count] != archived[..count] {
            return refuse("this host has another file of that name");
        }
    }
}

/// Appends checked content piece by piece, as if a host had shipped it.
fn append_content(
    form: SharedFileForm,
    path: &Utf8Path,
    content: &mut File,
    file: &ArchivedFile,
) -> Result<(), CopyFault> {
    let mut start = 0;
    loop {
        let bytes = read_piece(content, form, start).map_err(|error| disk(&error))?;
        let end = start + bytes.len() as u64;
        if bytes.is_empty() && end < file.length {
            return refuse("it has a line that is too long");
        }
        let part = ReceivedPart {
            number: file.number,
            host: file.host.clone(),
            path: file.path.clone(),
            start,
            bytes,
            is_last: form == SharedFileForm::Whole && end >= file.length,
            takes_over: false,
        };
        add_part(&os_disk(), form, path, &part)?;
        if end >= file.length {
            return Ok(());
        }
        start = end;
    }
}

/// Reads the next piece; of a transcript, whole lines.
fn read_piece(content: &mut File, form: SharedFileForm, start: u64) -> io::Result<Vec<u8>> {
    content.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    loop {
        let read = content.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut bytes)?;
        if form != SharedFileForm::Transcript {
            return Ok(bytes);
        }
        if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
            bytes.truncate(end + 1);
            return Ok(bytes);
        }
        if read == 0 || bytes.len() > LINE_BYTES_MAX {
            return Ok(Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use camino::Utf8PathBuf;
    use heeler_store::pack_file;

    use super::*;

    const JOB: &str = "job-2024-01-19-abc123";

    struct CopyPlace {
        _temp: tempfile::TempDir,
        dir: StateDir,
    }

    fn place() -> CopyPlace {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        let dir = StateDir::create(&root.join("state")).unwrap();
        CopyPlace { _temp: temp, dir }
    }

    fn archived(path: &str, content: &[u8]) -> (ArchivedFile, Vec<Vec<u8>>) {
        let mut chunks = Vec::new();
        let put = |_: u64, chunk: &[u8]| {
            chunks.push(chunk.to_vec());
            Ok::<(), Infallible>(())
        };
        let length = content.len() as u64;
        let packed = pack_file(content, length, put).unwrap();
        let file = ArchivedFile {
            number: 1,
            path: path.to_owned(),
            length,
            sha256: packed.sha256,
            host: "beta".to_owned(),
            chunks: packed.chunks,
            object: None,
        };
        (file, chunks)
    }

    impl CopyPlace {
        fn copy(&self, file: &ArchivedFile, chunks: &[Vec<u8>]) -> Result<ArchiveCopy, CopyFault> {
            copy_file(&self.dir, file, || Ok(chunks.iter().cloned().map(Ok)))
        }

        #[track_caller]
        fn refusal(&self, file: &ArchivedFile, chunks: &[Vec<u8>]) -> String {
            match self.copy(file, chunks) {
                Err(CopyFault::Other(why)) => why,
                other => panic!("{other:?}"),
            }
        }
    }

    fn lines(count: usize) -> Vec<u8> {
        (0..count).flat_map(|line| format!("{{\"line\":{line}}}\n").into_bytes()).collect()
    }

    #[test]
    fn a_host_takes_what_it_lacks_of_each_form_and_no_more() {
        let place = place();
        let sent = format!("jobs/{JOB}/files/{}-report.md", "0123456789abcdef".repeat(2));
        let content = lines(60_000);
        assert!(content.len() > PIECE_BYTES * 2);
        for name in [format!("jobs/{JOB}.jsonl"), format!("jobs/{JOB}/output.log"), sent.clone()] {
            let (file, chunks) = archived(&name, &content);
            let path = place.dir.root().join(&name);
            for there in [0, 5, PIECE_BYTES + 3, content.len()] {
                let is_whole = name == sent;
                if there > 0 && !is_whole {
                    std::fs::write(&path, &content[..there]).unwrap();
                }
                let copy = place.copy(&file, &chunks).unwrap();
                let is_present = there == content.len() || (is_whole && there > 0);
                let expected = if is_present { ArchiveCopy::Present } else { ArchiveCopy::Copied };
                assert_eq!(copy, expected, "{name} {there}");
                assert!(std::fs::read(&path).unwrap() == content, "{name} {there}");
            }
            let folder = path.parent().unwrap().read_dir_utf8().unwrap();
            let names: Vec<String> =
                folder.map(|entry| entry.unwrap().file_name().to_owned()).collect();
            assert!(names.iter().all(|name| !name.starts_with('.')), "{names:?}");
        }
        let (empty, chunks) = archived(&sent.replace("report", "empty"), b"");
        assert_eq!(place.copy(&empty, &chunks).unwrap(), ArchiveCopy::Copied);
        assert_eq!(std::fs::read(place.dir.root().join(&empty.path)).unwrap(), b"");
    }

    #[test]
    fn a_draft_that_another_left_is_no_part_of_a_sent_file() {
        let place = place();
        let name = format!("jobs/{JOB}/files/{}-a.md", "0123456789abcdef".repeat(2));
        let path = place.dir.root().join(&name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(draft_path(&path).unwrap(), "something longer than the file").unwrap();
        let (file, chunks) = archived(&name, b"all is well");
        assert_eq!(place.copy(&file, &chunks).unwrap(), ArchiveCopy::Copied);
        assert_eq!(std::fs::read(&path).unwrap(), b"all is well");
    }

    #[test]
    fn hostile_records_and_damaged_chunks_change_nothing() {
        let place = place();
        let name = format!("jobs/{JOB}.jsonl");
        let path = place.dir.root().join(&name);
        let (file, chunks) = archived(&name, &lines(1000));
        for hostile in
            ["../x.jsonl", "/etc/x.jsonl", "heeler.lock", "jobs/../x.jsonl", "jobs/a b.jsonl"]
        {
            let other = ArchivedFile { path: hostile.to_owned(), ..file.clone() };
            assert_eq!(place.refusal(&other, &chunks), "hosts share no file at this path");
        }
        for length in [ARCHIVED_BYTES_MAX + 1, u64::MAX, file.length - 1, file.length + 1, 0] {
            let other = ArchivedFile { length, ..file.clone() };
            place.refusal(&other, &chunks);
        }
        let other = ArchivedFile { sha256: "0".repeat(64), ..file.clone() };
        assert!(place.refusal(&other, &chunks).contains("another hash"));
        let mut damaged = chunks.clone();
        damaged[0][40] ^= 0xff;
        place.refusal(&file, &damaged);
        let (torn, torn_chunks) = archived(&name, b"{}\n{\"half");
        assert_eq!(place.refusal(&torn, &torn_chunks), "its last line is not whole");
        assert!(!path.exists());
        // Another file, and a link, are left alone.
        std::fs::write(&path, "{\"x\":9}\n").unwrap();
        assert!(place.refusal(&file, &chunks).contains("another file"));
        assert_eq!(std::fs::read(&path).unwrap(), b"{\"x\":9}\n");
        std::fs::remove_file(&path).unwrap();
        let target = place.dir.root().join("target");
        std::fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        place.refusal(&file, &chunks);
        assert_eq!(std::fs::read(&target).unwrap(), b"");
    }
}
