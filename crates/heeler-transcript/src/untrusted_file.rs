//! Opens files that others may have put there: a cloned repository, the source of an import.
//!
//! A link is not followed, a pipe is not waited for, and anything but a regular file is refused.
//! Only the last path component is guarded; [`crate::resolve_inside`] and the state directory guard
//! those before it. Start at [`open`].

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;

use camino::Utf8Path;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Size limit of a YAML or JSON record, which is held in memory whole. An inline transcript of a
/// hundred thousand entries takes a tenth of it.
pub const RECORD_BYTES_MAX: u64 = 256 << 20;

pub fn open(path: &Utf8Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path)
}

/// Opens a file with the given options.
pub fn open_with(options: &mut OpenOptions, path: &Utf8Path) -> io::Result<File> {
    // NONBLOCK keeps the open from waiting for the writer of a pipe. It has no effect on files.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(explain_symlink_error)?;
    // Checked on the open file: a check of the path could see another file.
    if file.metadata()?.is_file() { Ok(file) } else { Err(refusal_error("it is not a file")) }
}

/// Reads a whole file; fails if it is longer than `max`.
pub fn read(path: &Utf8Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than allowed shows that the file is too long without reading all of it.
    open(path)?.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(refusal_error(&format!("it is longer than {max} bytes")));
    }
    Ok(bytes)
}

/// Reads a whole record as text.
pub fn read_text(path: &Utf8Path) -> io::Result<String> {
    String::from_utf8(read(path, RECORD_BYTES_MAX)?)
        .map_err(|_| refusal_error("it is not UTF-8 text"))
}

fn explain_symlink_error(error: io::Error) -> io::Error {
    // `open` reports a refused link as a loop, which would confuse the reader of the message.
    if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
        return refusal_error("it is a symbolic link, which is not followed here");
    }
    error
}

fn refusal_error(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn links_pipes_folders_and_files_that_are_too_long_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap();
        std::fs::write(root.join("file"), "12345").unwrap();
        std::os::unix::fs::symlink("file", root.join("link")).unwrap();
        let pipe = root.join("pipe");
        mknodat(CWD, pipe.as_std_path(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let refused = |name: &str, max| read(&root.join(name), max).unwrap_err().to_string();
        assert_eq!(refused("link", 9), "it is a symbolic link, which is not followed here");
        assert_eq!(refused("pipe", 9), "it is not a file");
        assert_eq!(refused(".", 9), "it is not a file");
        assert_eq!(refused("file", 4), "it is longer than 4 bytes");
        assert_eq!(read(&root.join("file"), 5).unwrap(), b"12345");
        assert_eq!(read(&root.join("none"), 5).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
