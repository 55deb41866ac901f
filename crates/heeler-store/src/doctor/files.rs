//! Doctor checks of permissions, temp files and disk space, independent of the files' meaning.

use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt as _;
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::is_temp;
use jiff::{SignedDuration, Timestamp};

use super::finding::{Finding, FindingArea, FindingSeverity, RepairAction, describe_first};
use crate::backup;
use crate::herdctl_layout::HERDCTL_ENTRIES;
use crate::layout::{self, StateDir, free_bytes};

/// Free space below which writes soon fail.
const DISK_FREE_ERROR: u64 = 32 << 20;

/// Free space that a day of busy agents may exceed.
const DISK_FREE_WARNING: u64 = 512 << 20;

/// Age below which a temp file may belong to a process that is writing it.
const TEMP_AGE_MIN: SignedDuration = SignedDuration::from_hours(1);

/// Permission bits of group and others.
// Transcripts contain secrets of people, so only the owner may read them.
const OTHERS_MODE_BITS: u32 = 0o077;

/// Directories that are not checked: original copies, and deleted data.
// Snapshot repositories may contain links of the user, and worktrees belong to agents.
const NOT_EXAMINED: [&str; 4] = [".before-heeler", "trash", "workspaces", "worktrees"];

/// Lists the entries of a state directory that belong to Heeler or herdctl; symbolic links are
/// skipped.
///
/// A directory without a sign of Heeler is not traversed: it may be a link to a user's whole
/// home directory.
pub(crate) fn walk_state(dir: &StateDir) -> Vec<(Utf8PathBuf, Metadata)> {
    let is_ours =
        dir.has_database() || backup::list_backups(dir).is_ok_and(|list| !list.is_empty());
    let is_known = |name: &str| {
        layout::is_state_entry(name) || HERDCTL_ENTRIES.contains(&name) || is_temp(name)
    };
    if is_ours { walk(dir.root(), is_known) } else { Vec::new() }
}

/// Lists everything below those entries of a directory that are `wanted`.
pub(crate) fn walk(root: &Utf8Path, wanted: impl Fn(&str) -> bool) -> Vec<(Utf8PathBuf, Metadata)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = folder.read_dir_utf8() else { continue };
        for entry in entries.flatten() {
            if folder == root && !wanted(entry.file_name()) {
                continue;
            }
            let path = entry.path().to_owned();
            let Ok(meta) = path.symlink_metadata() else { continue };
            if meta.is_dir() && !NOT_EXAMINED.contains(&entry.file_name()) {
                folders.push(path.clone());
            }
            if !meta.is_symlink() {
                found.push((path, meta));
            }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Reports files that users other than the owner can read or write.
pub(crate) fn permissions(root: &Utf8Path, files: &[(Utf8PathBuf, Metadata)]) -> Option<Finding> {
    let mut open = Vec::new();
    if root.metadata().is_ok_and(|meta| is_open(&meta)) {
        open.push(root.to_owned());
    }
    open.extend(files.iter().filter(|(_, meta)| is_open(meta)).map(|(path, _)| path.clone()));
    if open.is_empty() {
        return None;
    }
    let problem = "can be read or written by other users of this machine";
    let finding = Finding::new(
        FindingSeverity::Warning,
        FindingArea::Permissions,
        describe_first(&open),
        problem,
    );
    Some(finding.with_repair(RepairAction::RestrictPermissions(open)))
}

fn is_open(meta: &Metadata) -> bool {
    meta.permissions().mode() & OTHERS_MODE_BITS != 0
}

/// Removes the permissions of group and others.
pub(crate) fn restrict_permissions(path: &Utf8Path) -> std::io::Result<()> {
    // Changed by path, not through a handle: closing a handle of the database would drop SQLite's
    // locks in this process.
    let found = path.symlink_metadata()?;
    if found.is_symlink() {
        return Ok(());
    }
    let mut permissions = found.permissions();
    // The bits of the file's type are not part of a mode.
    permissions.set_mode(permissions.mode() & 0o7777 & !OTHERS_MODE_BITS);
    std::fs::set_permissions(path, permissions)
}

/// Removes the permissions of group and others from everything in a directory, as far as
/// possible.
pub fn restrict_all_permissions(dir: &StateDir) {
    let finding = permissions(dir.root(), &walk_state(dir));
    if let Some(Finding { repair: Some(RepairAction::RestrictPermissions(paths)), .. }) = finding {
        for path in paths {
            // As far as possible: a file of another user must not stop the others.
            if let Err(error) = restrict_permissions(&path) {
                tracing::warn!(%path, %error, "cannot remove the permissions of other users");
            }
        }
    }
}

/// Reports temp files that a crash left.
pub(crate) fn temp_files(files: &[(Utf8PathBuf, Metadata)], now: Timestamp) -> Option<Finding> {
    let left = files
        .iter()
        // A name alone is not enough, because a live process may be writing the file.
        .filter(|(path, meta)| path.file_name().is_some_and(is_temp) && is_old(meta, now))
        .map(|(path, _)| path.clone())
        .collect::<Vec<_>>();
    if left.is_empty() {
        return None;
    }
    let problem = "was left half-written by a crash";
    let finding =
        Finding::new(FindingSeverity::Note, FindingArea::TempFiles, describe_first(&left), problem);
    Some(finding.with_repair(RepairAction::RemoveTempFiles(left)))
}

fn is_old(meta: &Metadata, now: Timestamp) -> bool {
    let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    Timestamp::try_from(modified).is_ok_and(|at| now.duration_since(at) >= TEMP_AGE_MIN)
}

/// Removes a temp file or directory that a crash left.
pub(crate) fn remove_temp_file(path: &Utf8Path) -> std::io::Result<()> {
    // An interrupted import of Last Light leaves a folder under a temporary name.
    if path.symlink_metadata()?.is_dir() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    }
}

/// Reports a nearly full disk.
pub(crate) fn disk(root: &Utf8Path) -> Option<Finding> {
    match free_bytes(root) {
        Ok(free) => low_space(root, free),
        Err(error) => Some(
            Finding::new(
                FindingSeverity::Warning,
                FindingArea::Disk,
                root.as_str(),
                format!("its free space is not known: {error}"),
            )
            .with_remedy("check the disk"),
        ),
    }
}

fn low_space(root: &Utf8Path, free: u64) -> Option<Finding> {
    let severity = match free {
        ..DISK_FREE_ERROR => FindingSeverity::Error,
        DISK_FREE_ERROR..DISK_FREE_WARNING => FindingSeverity::Warning,
        _ => return None,
    };
    let problem = format!("only {} MiB are free on its disk", free >> 20);
    let finding = Finding::new(severity, FindingArea::Disk, root.as_str(), problem);
    Some(finding.with_remedy(
        "free some space; logs and `trash/` are the largest parts of most state directories",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_nearly_full_is_found_at_both_limits() {
        let at = |free| low_space(Utf8Path::new("/s"), free).map(|finding| finding.severity);
        assert_eq!(at(DISK_FREE_ERROR - 1), Some(FindingSeverity::Error));
        assert_eq!(at(DISK_FREE_ERROR), Some(FindingSeverity::Warning));
        assert_eq!(at(DISK_FREE_WARNING - 1), Some(FindingSeverity::Warning));
        assert_eq!(at(DISK_FREE_WARNING), None);
    }
}
