//! Validates names from outside before they become part of a path.
//!
//! Every ID and relative path from a user, an API client or a foreign file is checked here before
//! it is used in a path. Start at [`validate_id`].

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use thiserror::Error;

/// Length limit of an ID: a file name holds 255 bytes, and extensions and temporary names need some
/// of them.
pub const ID_BYTES_MAX: usize = 200;
/// Length limit of a relative path.
pub const PATH_BYTES_MAX: usize = 4096;

/// Reason that a name from outside was refused.
#[derive(Debug, Error)]
pub enum NameError {
    #[error("an empty name is not allowed")]
    Empty,
    /// Longer than [`ID_BYTES_MAX`] or [`PATH_BYTES_MAX`].
    #[error("the name {start:?}… has {len} bytes; at most {max} are allowed")]
    TooLong {
        /// First characters of the name.
        start: String,
        /// Length in bytes.
        len: usize,
        /// Limit in bytes.
        max: usize,
    },
    /// Character that is not allowed in names.
    #[error("the name {name:?} holds {character:?}, which is not allowed")]
    Character {
        name: String,
        /// First character that is not allowed.
        character: char,
    },
    /// ID that starts with a dot: hidden files, temporary files, `.` and `..`.
    #[error("the name {name:?} starts with a dot, which is not allowed")]
    Dot { name: String },
    /// Absolute path, or one with `.` or `..` in it.
    #[error("the path {path:?} must be relative and without `.` or `..`")]
    NotInside { path: Utf8PathBuf },
    /// Symbolic link in the path.
    #[error("{path} is a symbolic link, which is not followed here")]
    Symlink { path: Utf8PathBuf },
    /// The path could not be inspected.
    #[error("cannot inspect {path}")]
    Unreadable {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Returns the ID if it can safely be one component of a path.
pub fn validate_id(id: &str) -> Result<&str, NameError> {
    check_text(id, ID_BYTES_MAX)?;
    // A backslash separates paths on other systems.
    let bad = |c: char| matches!(c, '/' | '\\') || c.is_control();
    if let Some(character) = id.chars().find(|&c| bad(c)) {
        return Err(NameError::Character { name: id.to_owned(), character });
    }
    // This excludes `.` and `..`, and hidden names, which Heeler uses for temporary files.
    if id.starts_with('.') {
        return Err(NameError::Dot { name: id.to_owned() });
    }
    Ok(id)
}

/// Joins a path from outside to `root` if it stays inside.
///
/// No component may be a symbolic link, the last one included; `root` itself may be. Missing
/// components are allowed. A process that can write inside `root` can still put a link there
/// afterwards: this guards against names, not against the owner of the directory.
pub fn resolve_inside(root: &Utf8Path, relative: &str) -> Result<Utf8PathBuf, NameError> {
    check_text(relative, PATH_BYTES_MAX)?;
    if let Some(character) = relative.chars().find(|&c| c == '\\' || c.is_control()) {
        return Err(NameError::Character { name: relative.to_owned(), character });
    }
    if relative.starts_with('/') || relative.split('/').any(|part| matches!(part, "." | "..")) {
        return Err(NameError::NotInside { path: relative.into() });
    }
    let mut path = root.to_owned();
    // Every component is inspected: a link in the middle leads outside as well as one at the end.
    for name in relative.split('/').filter(|part| !part.is_empty()) {
        path.push(name);
        refuse_symlink(&path)?;
    }
    Ok(path)
}

fn refuse_symlink(path: &Utf8Path) -> Result<(), NameError> {
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => Err(NameError::Symlink { path: path.to_owned() }),
        Ok(_) => Ok(()),
        // The caller may be about to create the file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(NameError::Unreadable { path: path.to_owned(), source }),
    }
}

fn check_text(name: &str, max: usize) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > max {
        // The message shows only the beginning, because the name comes from outside and may be
        // large.
        let start = name.chars().take(20).collect();
        return Err(NameError::TooLong { start, len: name.len(), max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(id: &str, reason: &str) {
        assert_eq!(validate_id(id).unwrap_err().to_string(), reason);
    }

    #[test]
    fn ids_of_every_kind_in_use_are_allowed() {
        for id in [
            "job-2024-01-19-abc123",
            "sess-0a1b2c3d",
            "0198c0de-1111-7222-8333-444455556666",
            "fleet.agent_1",
            "C0123:1700000000.123",
            "größe",
            "a..b",
        ] {
            assert_eq!(validate_id(id).unwrap(), id);
        }
        validate_id(&"x".repeat(ID_BYTES_MAX)).unwrap();
    }

    #[test]
    fn ids_that_could_leave_their_folder_are_refused() {
        check_refused("", "an empty name is not allowed");
        check_refused(".", "the name \".\" starts with a dot, which is not allowed");
        check_refused("..", "the name \"..\" starts with a dot, which is not allowed");
        check_refused(".x.idx", "the name \".x.idx\" starts with a dot, which is not allowed");
        check_refused("a/b", "the name \"a/b\" holds '/', which is not allowed");
        check_refused("/etc", "the name \"/etc\" holds '/', which is not allowed");
        check_refused("../x", "the name \"../x\" holds '/', which is not allowed");
        check_refused("a\\b", "the name \"a\\\\b\" holds '\\\\', which is not allowed");
        check_refused("a\0", "the name \"a\\0\" holds '\\0', which is not allowed");
        check_refused("a\n", "the name \"a\\n\" holds '\\n', which is not allowed");
        check_refused(
            &"x".repeat(201),
            "the name \"xxxxxxxxxxxxxxxxxxxx\"… has 201 bytes; at most 200 are allowed",
        );
    }

    fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(temp.path().to_owned()).unwrap();
        (temp, path)
    }

    #[test]
    fn relative_paths_are_resolved_whether_they_exist_or_not() {
        let (_temp, root) = folder();
        std::fs::create_dir(root.join("jobs")).unwrap();
        std::fs::write(root.join("jobs/a.jsonl"), "").unwrap();
        let resolve = |path: &str| resolve_inside(&root, path).unwrap();
        assert_eq!(resolve("jobs/a.jsonl"), root.join("jobs/a.jsonl"));
        assert_eq!(resolve("new/b.jsonl"), root.join("new/b.jsonl"));
        assert_eq!(resolve("jobs//a.jsonl"), root.join("jobs/a.jsonl"));
    }

    #[test]
    fn paths_that_leave_the_root_are_refused() {
        let (_temp, root) = folder();
        for path in ["..", "../x", "a/../../x", "a/../b", "./a", "a/.", "/etc/passwd", "/"] {
            let error = resolve_inside(&root, path).unwrap_err();
            assert!(matches!(error, NameError::NotInside { .. }), "{path}: {error}");
        }
        assert!(matches!(resolve_inside(&root, "").unwrap_err(), NameError::Empty));
        let error = resolve_inside(&root, "a\0b").unwrap_err();
        assert!(matches!(error, NameError::Character { .. }), "{error}");
        let error = resolve_inside(&root, &"a/".repeat(PATH_BYTES_MAX)).unwrap_err();
        assert!(matches!(error, NameError::TooLong { .. }), "{error}");
    }

    #[test]
    fn symbolic_links_are_refused_as_the_last_component_and_on_the_way() {
        let (_temp, root) = folder();
        let (_outside, outside) = folder();
        std::fs::write(outside.join("secret"), "").unwrap();
        std::os::unix::fs::symlink(&outside, root.join("out")).unwrap();
        std::os::unix::fs::symlink(outside.join("secret"), root.join("link")).unwrap();
        std::os::unix::fs::symlink(outside.join("missing"), root.join("dangling")).unwrap();
        for path in ["out/secret", "link", "dangling", "out"] {
            let error = resolve_inside(&root, path).unwrap_err();
            assert!(matches!(error, NameError::Symlink { .. }), "{path}: {error}");
        }
    }

    #[test]
    fn the_root_itself_may_be_a_symbolic_link() {
        let (_temp, root) = folder();
        let (_other, other) = folder();
        std::os::unix::fs::symlink(&root, other.join("state")).unwrap();
        resolve_inside(&other.join("state"), "jobs/a.jsonl").unwrap();
    }
}
