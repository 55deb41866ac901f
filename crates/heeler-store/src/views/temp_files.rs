//! Removes the temp files that a crash left.
//!
//! Those of views are removed at once: only the holder of the state lock, which is this
//! process, writes views. Others may belong to a running runner, a reader's index or a backup:
//! they are removed by age.

use camino::Utf8Path;
use heeler_transcript::is_temp;
use jiff::{SignedDuration, Timestamp};

use crate::layout::StateDir;

/// Age above which a temp file belongs to no running process.
const AGE_MAX: SignedDuration = SignedDuration::from_hours(1);

/// Removes `.<name>.tmp.<16 hex>` and returns the number of removed files. A file that cannot
/// be removed stays, and is reported.
pub(crate) fn remove_temp_files(dir: &StateDir, now: Timestamp) -> usize {
    let folders = ["jobs", "sessions", "agent-sessions", "logs", "backups"];
    // The top folder may be a link to a user's home, so only its own files are examined.
    let top = sweep_folder(dir.root(), now, SweepDepth::Files);
    let below = folders.map(|folder| sweep_folder(&dir.root().join(folder), now, SweepDepth::All));
    top + below.iter().sum::<usize>()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SweepDepth {
    Files,
    All,
}

fn sweep_folder(folder: &Utf8Path, now: Timestamp, depth: SweepDepth) -> usize {
    // A link to a directory leads to a directory that Heeler does not own.
    if !folder.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return 0;
    }
    let Ok(entries) = folder.read_dir_utf8() else { return 0 };
    let mut removed = 0;
    for entry in entries.filter_map(Result::ok) {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && depth == SweepDepth::All {
            removed += sweep_folder(entry.path(), now, depth);
        } else if is_temp(entry.file_name()) && is_left_over(entry.path(), now) {
            removed += usize::from(remove(entry.path()));
        }
    }
    removed
}

fn is_left_over(path: &Utf8Path, now: Timestamp) -> bool {
    let name = path.file_name().and_then(|name| name.rsplit_once(".tmp.")).unwrap_or_default().0;
    let is_view = [".yaml", ".json", ".context"].iter().any(|end| name.ends_with(end));
    // Others may belong to a live runner or backup, which works for less than that.
    is_view || age(path, now).is_some_and(|age| age > AGE_MAX)
}

fn age(path: &Utf8Path, now: Timestamp) -> Option<SignedDuration> {
    let modified = path.symlink_metadata().ok()?.modified().ok()?;
    Some(now.duration_since(Timestamp::try_from(modified).ok()?))
}

fn remove(path: &Utf8Path) -> bool {
    let removed = std::fs::remove_file(path);
    if let Err(error) = &removed {
        tracing::warn!(%path, %error, "cannot remove a temp file");
    }
    removed.is_ok()
}
