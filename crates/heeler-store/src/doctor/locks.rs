//! Doctor check of locks and their holders.

use camino::{Utf8Path, Utf8PathBuf};

use super::finding::{Finding, FindingArea, FindingSeverity};
use crate::layout::StateDir;
use heeler_transcript::LockFile;

/// Returns true if a process is, or may be, the writer of the directory.
pub(crate) fn has_writer(dir: &StateDir) -> bool {
    // A lock that cannot be checked counts as held.
    !matches!(LockFile::probe(&dir.lock()), Ok(None))
}

/// Reports locks that are held.
pub(crate) fn examine(dir: &StateDir, home: Option<&Utf8Path>) -> Vec<Finding> {
    let mut locks = vec![dir.lock(), dir.restore_lock()];
    locks.extend(home.into_iter().flat_map(session_locks));
    locks.iter().filter_map(|lock| lock_finding(lock)).collect()
}

fn session_locks(home: &Utf8Path) -> Vec<Utf8PathBuf> {
    let entries = home.join("locks").read_dir_utf8().into_iter().flatten().flatten();
    let mut locks = entries.map(|entry| entry.path().to_owned()).collect::<Vec<_>>();
    locks.sort();
    locks
}

fn lock_finding(lock: &Utf8Path) -> Option<Finding> {
    let state = match LockFile::probe(lock) {
        Ok(state) => state?,
        Err(error) => {
            let problem = format!("cannot be checked: {error}");
            let finding =
                Finding::new(FindingSeverity::Warning, FindingArea::Locks, lock.as_str(), problem);
            return Some(finding.with_remedy("check its permissions"));
        }
    };
    let Some(holder) = state.holder else {
        let finding = Finding::new(
            FindingSeverity::Warning,
            FindingArea::Locks,
            lock.as_str(),
            "is held by an unknown process",
        );
        return Some(finding.with_remedy(format!("find the process with `fuser {lock}`")));
    };
    // The kernel frees a lock only when the last process closes it, so a child may still hold it.
    if Utf8Path::new(&format!("/proc/{}", holder.pid)).exists() {
        let problem = format!("is held by {holder}");
        let finding =
            Finding::new(FindingSeverity::Note, FindingArea::Locks, lock.as_str(), problem);
        return Some(finding.with_remedy("nothing to do while that process works"));
    }
    let problem =
        format!("was taken by {holder}, which has exited; a child process still holds it");
    let finding =
        Finding::new(FindingSeverity::Warning, FindingArea::Locks, lock.as_str(), problem);
    Some(finding.with_remedy(format!("find the process with `fuser {lock}` and end it")))
}
