//! Doctor: finds faults of a state directory and repairs them.
//!
//! [`examine`] only reads, and works on a broken, read-only or busy directory. [`fix`] performs
//! the repairs that lose nothing. [`DatabaseRebuild`] makes a new database from the newest sound
//! backup and from records that the caller adds; the old one is moved to `trash/`, and nothing is
//! deleted. Start at [`examine`].

mod backups;
mod database;
mod files;
mod finding;
mod hosts;
mod locks;
mod queue_check;
mod rebuild;
mod record_check;
mod records;
mod repairs;
mod runs;
#[cfg(test)]
mod tests;
mod transcript_hashes;
mod transcripts;
mod views;

use camino::Utf8Path;
use jiff::Timestamp;

pub use self::files::restrict_all_permissions;
pub use self::finding::{Finding, FindingArea, FindingSeverity, RepairAction};
pub use self::rebuild::{DatabaseRebuild, RebuildBeginError, RebuiltDatabase};
pub use self::repairs::{RepairOutcome, fix, interrupt};
use crate::layout::{StateDir, StateDirError};

/// Runs all checks and changes nothing. `home` is the user's Heeler directory for locks and
/// interactive sessions.
pub fn examine(root: &Utf8Path, home: Option<&Utf8Path>, now: Timestamp) -> Vec<Finding> {
    let dir = match StateDir::open(root) {
        Ok(dir) => dir,
        Err(error) => return vec![unusable(root, &error)],
    };
    let found = files::walk_state(&dir);
    let mut findings = Vec::new();
    findings.extend(files::disk(dir.root()));
    // An empty list means that the directory has no sign of Heeler.
    if !found.is_empty() {
        findings.extend(files::permissions(dir.root(), &found));
    }
    findings.extend(home.and_then(|home| files::permissions(home, &files::walk(home, |_| true))));
    if !locks::has_writer(&dir) {
        // A long import or rebuild works in temp files; its process holds the lock.
        findings.extend(files::temp_files(&found, now));
    }
    findings.extend(locks::examine(&dir, home));
    let db = database::examine(&dir, &mut findings);
    let logs = records::logs(&found);
    findings.extend(logs.iter().flat_map(|log| transcripts::check_contents(log)));
    if let Some(db) = db {
        // Without a sound database there is nothing to compare the files with.
        records::examine(&dir, &db, &logs, &mut findings);
        views::examine(&dir, &db, &mut findings);
        runs::examine(&dir, &db, &mut findings);
        hosts::examine(&db, &mut findings);
    }
    findings.extend(backups::examine(&dir, now));
    findings
}

fn unusable(root: &Utf8Path, error: &StateDirError) -> Finding {
    let remedy = match error {
        StateDirError::Missing { .. } => {
            "run `heeler init`, or name the directory with --state-dir"
        }
        StateDirError::Network { .. } => "move it to a local disk",
        StateDirError::Link { .. } => "remove the link, or replace it with its target",
        StateDirError::Store { .. } => "put the file back from a backup of the state directory",
        StateDirError::Io { .. } => "check its permissions and the disk",
    };
    Finding::new(FindingSeverity::Error, FindingArea::Disk, root.as_str(), error.to_string())
        .with_remedy(remedy)
}
