//! Restores the files of a session, for the command and the chat. Start at [`restore`].

use std::time::Duration;

use heeler_model::error_chain;
use heeler_query::rewind::RewindPlan;
use heeler_transcript::{LockFile, LockHolder};
use heeler_workspace::{FileRestoration, RestoreMode, RestoredFileAction};

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output;
use crate::process_env;

/// Time to wait for a session's lock that another process may only be probing.
const LOCK_WAIT: Duration = Duration::from_millis(300);

/// Restores the files of a plan, with the session locked.
pub(crate) fn restore(plan: &RewindPlan) -> CommandResult<FileRestoration> {
    let now = process_env::now();
    // Without the directory of locks, no agent has ever run here.
    let lock = plan.lock.as_ref().filter(|lock| lock.parent().is_some_and(|it| it.is_dir()));
    let holder = LockHolder::this_process("session rewind", now);
    let _lock = match lock.map(|lock| LockFile::acquire(lock, &holder, LOCK_WAIT)).transpose() {
        Ok(lock) => lock,
        Err(error) => {
            let message = format!("session {} is in use: {}", plan.session.id, error_chain(&error));
            return Err(CommandFailure::message(FailureCode::Refused, message));
        }
    };
    let mode = RestoreMode::Restore(&plan.undo);
    let restored = plan.snapshots.restore(&plan.tree, &plan.commit, mode, now);
    restored.map_err(|error| heeler_query::QueryError::from(error).into())
}

/// Describes a restoration on one line: `2 files restored, 1 removed, 1 kept`.
pub(crate) fn describe(restored: &FileRestoration) -> String {
    let count = |is: fn(&RestoredFileAction) -> bool| {
        restored.files.iter().filter(|file| is(&file.action)).count() as u64
    };
    let written =
        count(|it| matches!(it, RestoredFileAction::Created | RestoredFileAction::Replaced));
    let removed = count(|it| matches!(it, RestoredFileAction::Removed));
    let kept = count(|it| matches!(it, RestoredFileAction::Kept(_)));
    let mut parts = vec![format!("{} restored", output::pluralize(written, "file"))];
    if removed > 0 {
        parts.push(format!("{removed} removed"));
    }
    if kept > 0 {
        parts.push(format!("{kept} kept"));
    }
    parts.join(", ")
}
