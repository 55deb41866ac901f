//! A directory of another system, read with care and never written.
//!
//! Names are checked before they become paths, a symbolic link that leaves the directory is
//! refused, devices and pipes are not opened, and records have a size limit. Start at
//! [`ImportSource`].

use std::fs::File;
use std::io::{self, Read as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::untrusted_file::{self, RECORD_BYTES_MAX};

use crate::import_error::ImportError;
use crate::report::{ImportItemKind, ImportReport};

/// A directory of another system.
pub(crate) struct ImportSource {
    root: Utf8PathBuf,
}

impl ImportSource {
    /// Opens an existing directory.
    pub(crate) fn open(path: &Utf8Path) -> Result<ImportSource, ImportError> {
        // Links are resolved once. Later checks compare real paths with this one.
        let root = path
            .canonicalize_utf8()
            .map_err(|source| ImportError::Open { path: path.to_owned(), source })?;
        if !root.is_dir() {
            return Err(ImportError::NotAFolder { path: path.to_owned() });
        }
        Ok(ImportSource { root })
    }

    /// Returns the directory's real path.
    pub(crate) fn root(&self) -> &Utf8Path {
        &self.root
    }

    /// Lists the names in a subdirectory, sorted; empty if it is missing.
    ///
    /// A name that is not UTF-8 goes into the report, because Heeler cannot store it.
    pub(crate) fn names(
        &self,
        folder: &str,
        kind: ImportItemKind,
        report: &mut ImportReport,
    ) -> Vec<String> {
        let path = self.root.join(folder);
        let entries = match path.read_dir() {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                report.refuse(kind, folder, format!("cannot be listed: {error}"));
                return Vec::new();
            }
        };
        // Checked after the listing succeeded, because a missing folder has no real path.
        if self.inside(&path).is_err() {
            report.refuse(kind, folder, "it is a link that leads out of the folder");
            return Vec::new();
        }
        let mut names = Vec::new();
        for entry in entries {
            match entry.map(|entry| entry.file_name().into_string()) {
                Ok(Ok(name)) => names.push(name),
                Ok(Err(name)) => report.refuse(
                    kind,
                    format!("{folder}/{}", name.to_string_lossy()),
                    "its name is not UTF-8",
                ),
                Err(error) => report.refuse(kind, folder, format!("cannot be listed: {error}")),
            }
        }
        // Sorted, so that reports and ids do not depend on the file system.
        names.sort_unstable();
        names
    }

    /// Returns true if an entry of any type has that name.
    pub(crate) fn has(&self, relative: &str) -> bool {
        self.root.join(relative).symlink_metadata().is_ok()
    }

    /// Opens a file; the error is the reason for a refusal.
    pub(crate) fn file(&self, relative: &str) -> Result<File, String> {
        let path = self.inside(&self.root.join(relative))?;
        // Checked before opening, because opening a pipe would wait for its writer forever.
        let meta = path.metadata().map_err(|error| format!("cannot be read: {error}"))?;
        if !meta.is_file() {
            return Err("it is not a file".to_owned());
        }
        untrusted_file::open(&path).map_err(|error| format!("cannot be read: {error}"))
    }

    /// Reads a whole record; the error is the reason for a refusal.
    pub(crate) fn text(&self, relative: &str) -> Result<String, String> {
        let file = self.file(relative)?;
        let unreadable = |error: io::Error| format!("cannot be read: {error}");
        // Checked before reading, to refuse a large record without holding it.
        if file.metadata().map_err(unreadable)?.len() > RECORD_BYTES_MAX {
            return Err(format!("it is larger than {} MiB", RECORD_BYTES_MAX >> 20));
        }
        let mut bytes = Vec::new();
        // The file may have grown since it was measured.
        file.take(RECORD_BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
        String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())
    }

    fn inside(&self, path: &Utf8Path) -> Result<Utf8PathBuf, String> {
        let real = path.canonicalize().map_err(|error| format!("cannot be read: {error}"))?;
        let real =
            Utf8PathBuf::from_path_buf(real).map_err(|_| "its path is not UTF-8".to_owned())?;
        // Links inside the directory are allowed; only those that leave it are refused.
        if real.starts_with(&self.root) {
            Ok(real)
        } else {
            Err("it is a link that leads out of the folder".to_owned())
        }
    }
}

/// Returns the reason why a foreign name must not become a file name; `None` if it may.
pub(crate) fn unsafe_name(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("it is empty")
    // A drive letter makes a path absolute on other systems.
    } else if name.starts_with('/') || name.as_bytes().get(1) == Some(&b':') {
        Some("it is an absolute path")
    } else if name.split(['/', '\\']).any(|part| part == "..") {
        Some("it contains `..`")
    } else if name.contains(['/', '\\']) {
        Some("it contains a path separator")
    } else if name.starts_with('.') {
        Some("it is a hidden file")
    } else if name.contains(|c: char| c.is_control()) {
        Some("it contains a control character")
    } else if name.len() > 255 {
        Some("it is longer than a file name may be")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn names_that_could_leave_their_folder_are_refused_with_the_reason() {
        for (name, reason) in [
            ("", "it is empty"),
            ("/etc/passwd", "it is an absolute path"),
            ("C:\\x", "it is an absolute path"),
            ("../x", "it contains `..`"),
            ("..", "it contains `..`"),
            ("a/b", "it contains a path separator"),
            ("a\\b", "it contains a path separator"),
            (".x", "it is a hidden file"),
            ("a\nb", "it contains a control character"),
        ] {
            assert_eq!(unsafe_name(name), Some(reason), "{name:?}");
        }
        assert_eq!(unsafe_name("worker-1.ndjson"), None);
    }

    #[test]
    fn links_out_of_the_folder_folders_and_huge_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap().join("state");
        std::fs::create_dir_all(root.join("jobs")).unwrap();
        std::fs::write(dir.path().join("secret"), "x").unwrap();
        std::os::unix::fs::symlink("../../secret", root.join("jobs/out.yaml")).unwrap();
        std::fs::write(root.join("jobs/real.yaml"), "a: 1").unwrap();
        std::os::unix::fs::symlink("real.yaml", root.join("jobs/in.yaml")).unwrap();
        std::os::unix::fs::symlink("/", root.join("sessions")).unwrap();
        let source = ImportSource::open(&root).unwrap();
        let mut report = ImportReport::default();

        assert_eq!(
            source.text("jobs/out.yaml").unwrap_err(),
            "it is a link that leads out of the folder"
        );
        assert_eq!(source.text("jobs/in.yaml").unwrap(), "a: 1");
        assert_eq!(source.text("jobs").unwrap_err(), "it is not a file");
        let large = File::create(root.join("large.yaml")).unwrap();
        large.set_len(RECORD_BYTES_MAX + 1).unwrap();
        assert_eq!(source.text("large.yaml").unwrap_err(), "it is larger than 256 MiB");
        let strange = <OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"a\xff.yaml");
        std::fs::write(root.as_std_path().join("jobs").join(strange), "").unwrap();
        assert_eq!(source.names("jobs", ImportItemKind::Job, &mut report).len(), 3);
        assert_eq!(report.refused.remove(0).reason, "its name is not UTF-8");
        assert!(source.names("sessions", ImportItemKind::Session, &mut report).is_empty());
        assert_eq!(report.refused[0].reason, "it is a link that leads out of the folder");
    }
}
