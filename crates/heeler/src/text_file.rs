//! Text files that a person edits: config files and the files they name. Start at [`read_text`].

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt};

use camino::Utf8Path;
use heeler_config::FILE_BYTES_MAX;
use rustix::fs::OFlags;

use crate::failure::{CommandFailure, CommandResult, FailureCode};

/// Reads a file, which another person may have made: a pipe, a device or a very large file
/// is an error, so that reading never blocks.
pub(crate) fn read_text(path: &Utf8Path) -> io::Result<String> {
    // A pipe would block, and a terminal could become the controlling one.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    // Checked on the open file: the path may be replaced between two calls.
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    // One byte more tells a file of exactly this size from a larger one.
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > FILE_BYTES_MAX {
        let message = format!("it is larger than {FILE_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Replaces a file, unless it has changed since `before` was read.
pub(crate) fn replace_text(file: &Utf8Path, before: &str, text: &str) -> CommandResult {
    if read_text(file)? != before {
        let message = format!("{file} was changed meanwhile; not overwritten");
        return Err(CommandFailure::message(FailureCode::Refused, message));
    }
    // The new file must not become readable by others, or lose the rights that a group had.
    let permissions = std::fs::metadata(file)?.permissions();
    // In the same folder, because a rename works only within one file system.
    let mut temp = tempfile::NamedTempFile::new_in(parent_dir(file))?;
    temp.write_all(text.as_bytes())?;
    temp.as_file().set_permissions(permissions)?;
    // The rename must not become durable before the content.
    temp.as_file().sync_all()?;
    temp.persist(file).map_err(|error| error.error)?;
    Ok(())
}

/// Creates a file that must not exist, with all of its content or not at all.
pub(crate) fn create_text(file: &Utf8Path, text: &str) -> io::Result<()> {
    let mut temp = tempfile::NamedTempFile::new_in(parent_dir(file))?;
    temp.write_all(text.as_bytes())?;
    // A config file is readable like other files of its folder.
    temp.as_file().set_permissions(PermissionsExt::from_mode(0o644))?;
    temp.as_file().sync_all()?;
    // Fails if the file exists, without a gap between check and creation.
    temp.persist_noclobber(file).map_err(|error| error.error)?;
    Ok(())
}

/// Returns the folder of a file.
pub(crate) fn parent_dir(file: &Utf8Path) -> &Utf8Path {
    file.parent().unwrap_or(Utf8Path::new(""))
}
