//! Puts files into the state directory so that a crash leaves the old file or the whole new one.
//!
//! A placed file is durable only after [`sync`]: an import places many, syncs once, and then commits
//! the rows that name them. A file that no row names is a leftover, and is placed again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest as _, Sha256};

use super::ImportError;
use crate::plain;

/// Copies a file to `target`, byte for byte.
pub(crate) fn copy(from: &mut File, target: &Utf8Path) -> Result<(), ImportError> {
    replace(target, |to| io::copy(from, to).map(drop))
}

/// Writes a file at `target`.
pub(crate) fn write(bytes: &[u8], target: &Utf8Path) -> Result<(), ImportError> {
    replace(target, |to| to.write_all(bytes))
}

/// Makes a folder and those above it, for the owner only.
pub(crate) fn folder(path: &Utf8Path) -> Result<(), ImportError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| ImportError::Write { path: path.to_owned(), source })
}

/// Makes everything placed under a folder durable.
pub(crate) fn sync(folder: &Utf8Path) -> Result<(), ImportError> {
    fault_point()?;
    let failed = |source| ImportError::Write { path: folder.to_owned(), source };
    let handle = File::open(folder).map_err(failed)?;
    // One call for the whole file system: thousands of small files would need as many waits.
    #[cfg(target_os = "linux")]
    rustix::fs::syncfs(&handle).map_err(|error| failed(error.into()))?;
    #[cfg(not(target_os = "linux"))]
    {
        drop(handle);
        rustix::fs::sync();
    }
    Ok(())
}

/// Says whether a file can be read and holds the same as `other`.
pub(crate) fn same_content(file: &mut Result<File, String>, other: &Utf8Path) -> bool {
    let Ok(file) = file else { return false };
    let hash = |file: &mut File| -> io::Result<Vec<u8>> {
        let mut hash = HashWriter(Sha256::new());
        io::copy(file, &mut hash)?;
        Ok(hash.0.finalize().to_vec())
    };
    let same = hash(file).and_then(|one| Ok(one == hash(&mut plain::open(other)?)?));
    same.unwrap_or(false)
}

struct HashWriter(Sha256);

impl io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn replace(
    target: &Utf8Path,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), ImportError> {
    fault_point()?;
    let temp = temp_name(target);
    let done = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temp)
        .and_then(|mut file| fill(&mut file))
        .and_then(|()| fs::rename(&temp, target));
    done.map_err(|source| {
        // The error that matters is the first; a temp file left behind is swept by `doctor`.
        let _swept = fs::remove_file(&temp);
        ImportError::Write { path: target.to_owned(), source }
    })
}

/// Returns a name beside `target` that readers of the folder know to skip.
pub(crate) fn temp_name(target: &Utf8Path) -> Utf8PathBuf {
    let name = target.file_name().unwrap_or("file");
    target.with_file_name(format!(".{name}.tmp.{:016x}", fastrand::u64(..)))
}

#[cfg(not(test))]
pub(crate) fn fault_point() -> Result<(), ImportError> {
    Ok(())
}

/// Stops a test's import at the chosen write, as a kill would.
#[cfg(test)]
pub(crate) fn fault_point() -> Result<(), ImportError> {
    fault::pass()
}

#[cfg(test)]
pub(crate) mod fault {
    use std::cell::Cell;

    use super::{ImportError, io};

    thread_local! {
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Lets `writes` writes pass and stops at the next.
    pub(crate) fn after(writes: u64) {
        LEFT.set(Some(writes));
    }

    /// Lets all writes pass again.
    pub(crate) fn clear() {
        LEFT.set(None);
    }

    pub(crate) fn pass() -> Result<(), ImportError> {
        match LEFT.get() {
            None => Ok(()),
            Some(0) => Err(ImportError::Write {
                path: "(fault)".into(),
                source: io::Error::other("stopped here by the test"),
            }),
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }
}
