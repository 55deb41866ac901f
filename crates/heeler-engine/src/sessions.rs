//! Operations on sessions: fork, delete, restore, adopt, import, clean up.
//!
//! Files are read and written first, outside the dispatcher. This may be interrupted anywhere,
//! because nothing refers to the new files yet. One transaction then commits the change. Files are
//! moved after that, which the next daemon can repeat. Start at [`prepare_change`].

mod adoption;
mod errors;
mod expiry;
mod fork;
mod forked_job;
mod moving;
mod removal;
mod worktree;

use camino::Utf8Path;
use heeler_model::SessionId;
use heeler_store::{StoreReader, StoreTransaction};
use jiff::Timestamp;

use crate::command::{CommandReply, DaemonCommandError};
use crate::dispatch_failure::DispatchFailure;
use crate::fleet::EngineContext;
use crate::session_operation::SessionOperation;
use crate::setup::DaemonSetup;
use errors::internal_error;

pub(crate) use expiry::{EXPIRED_MAX, expire_sessions};
pub(crate) use forked_job::{find_forked_job, has_row};
pub(crate) use moving::{SessionPackError, pack_session, place_session, settle_moves};
pub use removal::{CLEANUP_MAX, CleanupPlan, plan_cleanup};
pub(crate) use removal::{SessionMoveLocks, sync_session_files};
pub(crate) use worktree::{has_own_directory, is_worktree_missing, recreate_worktree};

/// A prepared session operation, ready to be committed.
#[derive(Debug)]
pub(crate) enum SessionChange {
    Fork(Box<fork::PreparedFork>),
    Delete { session: SessionId, purge: bool },
    Cleanup(Vec<SessionId>),
    Restore(SessionId),
    Adopt(Box<adoption::SessionAdoption>),
    Move(Box<moving::SessionMoveOrder>),
    CancelMove(SessionId),
}

/// Checks an operation and creates its files, to which nothing refers yet.
pub(crate) fn prepare_change(
    fleet: &EngineContext,
    setup: &DaemonSetup,
    order: SessionOperation,
) -> Result<SessionChange, DaemonCommandError> {
    let reader = StoreReader::open(&fleet.dir).map_err(|error| internal_error(&error))?;
    match order {
        SessionOperation::Fork { session, at_message, agent, workspace } => {
            let wish = fork::ForkOptions { at_message, agent, workspace };
            fork::prepare_fork(fleet, setup, &reader, &session, &wish)
                .map(|fork| SessionChange::Fork(Box::new(fork)))
        }
        // There is nothing to prepare: the files are moved after the commit.
        SessionOperation::Delete { session, purge } => Ok(SessionChange::Delete { session, purge }),
        SessionOperation::Restore { session } => {
            // The files return before the record, so a recorded session always has its transcript.
            removal::prepare_restore(&fleet.dir, &setup.home, &reader, &session)?;
            Ok(SessionChange::Restore(session))
        }
        SessionOperation::Adopt { id, agent, directory } => {
            let source = adoption::NativeSessionChoice {
                id: &id,
                agent: &agent,
                agreed_directory: directory.as_deref(),
            };
            let taken = adoption::adopt_native_session(fleet, setup, &reader, &source)?;
            Ok(SessionChange::Adopt(Box::new(taken)))
        }
        SessionOperation::Import { file, agent } => {
            let taken = adoption::import_bundle(fleet, setup, &reader, &file, agent.as_deref())?;
            Ok(SessionChange::Adopt(Box::new(taken)))
        }
        SessionOperation::Move { session, to } => {
            let order = moving::prepare_move(fleet, setup, &reader, &session, to)?;
            Ok(SessionChange::Move(Box::new(order)))
        }
        SessionOperation::CancelMove { session } => Ok(SessionChange::CancelMove(session)),
        SessionOperation::Cleanup { before } => {
            let now = (fleet.now)();
            // Whether each one may be deleted is checked in the transaction.
            let old = removal::removable_sessions(&reader, Some(&setup.loaded), before, now);
            let old = old.map_err(|error| internal_error(&error))?;
            Ok(SessionChange::Cleanup(old.into_iter().map(|session| session.id).collect()))
        }
    }
}

/// Commits a prepared operation. [`sync_session_files`] then moves the files.
pub(crate) fn commit_change(
    tx: &mut StoreTransaction<'_>,
    home: &Utf8Path,
    change: &SessionChange,
    by: &str,
    now: Timestamp,
) -> Result<CommandReply, DispatchFailure> {
    match change {
        SessionChange::Fork(fork) => fork::commit_fork(tx, fork, now),
        SessionChange::Delete { session, purge } => {
            removal::delete_session(tx, home, session, *purge, by, now)
        }
        SessionChange::Cleanup(sessions) => removal::clean_up(tx, home, sessions, by, now),
        SessionChange::Restore(session) => removal::restore_session(tx, session),
        SessionChange::Adopt(taken) => adoption::commit_adoption(tx, taken, by),
        SessionChange::Move(order) => moving::begin_move(tx, order, by),
        SessionChange::CancelMove(session) => moving::cancel_move(tx, session, by),
    }
}

#[cfg(test)]
mod tests;
