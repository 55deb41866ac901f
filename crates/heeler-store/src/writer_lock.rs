//! Locks that make a process the writer of a state directory.
//!
//! The writer decides who is a person and what the records say. An agent that becomes the writer
//! would decide about itself: its daemon carries the mark of agents, so the mark would tell that
//! daemon nothing. So a process of an agent or hook gets these locks only for a state directory that
//! was made after the agent began. Start at [`acquire_writer_lock`].

use std::time::{Duration, SystemTime};

use camino::Utf8Path;
use heeler_process::AgentDescent;
use heeler_transcript::{LockError, LockFile, LockHolder};

use crate::layout::StateDir;

/// Takes a lock of the state directory, unless this process belongs to an agent or hook that may not
/// write there.
pub fn acquire_writer_lock(
    dir: &StateDir,
    lock: &Utf8Path,
    holder: &LockHolder,
    wait: Duration,
) -> Result<LockFile, LockError> {
    if let Some(descent) = AgentDescent::of_own_process() {
        refuse_agent(dir.root(), &descent, holder.since.into()).map_err(|reason| {
            LockError::Forbidden { path: lock.to_owned(), reason: reason.to_owned() }
        })?;
    }
    LockFile::acquire(lock, holder, wait)
}

/// Fails unless the state directory was made after the agent began. An agent that tests Heeler itself
/// makes such directories.
fn refuse_agent(
    root: &Utf8Path,
    descent: &AgentDescent,
    now: SystemTime,
) -> Result<(), &'static str> {
    let own = root.canonicalize_utf8().map_err(|_| "its path cannot be resolved")?;
    // The run directory is `STATE/runs/RUN`.
    let is_own_fleet = |run_dir: &Utf8Path| {
        let state = run_dir.parent().and_then(Utf8Path::parent);
        // A state directory that was moved away may be the one at hand.
        state.is_none_or(|state| state.canonicalize_utf8().map_or(true, |state| state == own))
    };
    if descent.run_dirs.iter().any(|run_dir| is_own_fleet(run_dir)) {
        return Err("a process of a run cannot become the daemon of its own fleet or change its \
                    records; a person starts the daemon: `heeler start`");
    }
    // The time of creation cannot be set by programs.
    let created = std::fs::metadata(root).and_then(|metadata| metadata.created());
    let began = descent.age.and_then(|age| now.checked_sub(age));
    match (created, began) {
        (Ok(created), Some(began)) if created >= began => Ok(()),
        _ => Err("this process can gain no privileges (no_new_privs), like every process of an \
                  agent, so it may not write a state directory that is older than itself; start \
                  Heeler from an ordinary terminal, or from a service without NoNewPrivileges"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_writes_only_state_directories_that_are_newer_than_itself() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap();
        let state = root.join("state");
        std::fs::create_dir(&state).unwrap();
        let made = std::fs::metadata(&state).unwrap().created().unwrap();
        let second = Duration::from_secs(1);
        let of = |age, run_dirs: &[&Utf8Path]| {
            let run_dirs = run_dirs.iter().map(|dir| (*dir).to_owned()).collect();
            refuse_agent(&state, &AgentDescent { age, run_dirs }, made + 5 * second)
        };
        assert_eq!(of(Some(6 * second), &[]), Ok(()));
        assert!(of(Some(4 * second), &[]).is_err());
        assert!(of(None, &[]).is_err());
        // The directory of its own fleet is refused in any case, also under another name.
        let other = root.join("other/runs/1");
        std::fs::create_dir_all(&other).unwrap();
        assert_eq!(of(Some(6 * second), &[&other]), Ok(()));
        let link = root.join("link");
        std::os::unix::fs::symlink(&state, &link).unwrap();
        for own in [state.join("runs/1"), link.join("runs/1"), root.join("moved-away/runs/1")] {
            assert!(of(Some(6 * second), &[&other, &own]).is_err(), "{own}");
        }
    }
}
