//! Layout of herdctl's state directory, which may become Heeler's.

use camino::Utf8Path;

use crate::store_location::STORE_FILE;

/// Entries of herdctl's state directory.
pub const HERDCTL_ENTRIES: [&str; 11] = [
    "state.yaml",
    "herdctl.pid",
    "jobs",
    "sessions",
    "logs",
    "docker-sessions",
    "discord-sessions",
    "slack-sessions",
    "web-sessions",
    "session-metadata",
    "adopted-sessions",
];

/// Returns true if a directory holds state of herdctl and no database of Heeler.
///
/// A directory with `backups/` belonged to Heeler and lost its database: rebuild that, which
/// recovers more.
pub fn is_adoptable(root: &Utf8Path) -> bool {
    let has = |name: &str| root.join(name).exists();
    // Early or damaged directories may have jobs and nothing else.
    let has_jobs = || {
        let mut entries = root.join("jobs").read_dir_utf8().into_iter().flatten().flatten();
        entries.any(|entry| entry.file_name().ends_with(".yaml"))
    };
    !has("heeler.db") && !has(STORE_FILE) && (has("state.yaml") || has("herdctl.pid") || has_jobs())
}
