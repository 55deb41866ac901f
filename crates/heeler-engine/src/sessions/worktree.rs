//! Worktrees of forks: created from a snapshot, and recorded in a snapshot before removal.
//!
//! Start at [`create_worktree`].

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{Session, SessionId, error_chain};
use heeler_store::bundle::SessionBundle;
use heeler_store::history::{
    ResolvedForkPoint, TranscriptSnapshot, TranscriptSnapshotEntry, snapshots,
};
use heeler_store::{DatabaseError, DeletedSession, StateDir, StoreReader};
use heeler_transcript::{OsDisk, create_folder, resolve_inside};
use heeler_workspace::{
    CommitId, SnapshotError, SnapshotName, SnapshotStore, UnrecordedPolicy, WorkTree,
};
use jiff::{SignedDuration, Timestamp};

use super::errors::internal_error;
use crate::command::{DaemonCommandError, DaemonCommandErrorKind};
use crate::fleet::EngineContext;
use crate::session_operation::NATIVE_ORIGIN;

/// Name of the snapshot that holds the last content of a removed worktree.
const REMOVED_SNAPSHOT: &str = "removed";

/// Minimum age of a worktree without a session before it is removed: its fork may still be in
/// progress.
const ORPHAN_AGE: SignedDuration = SignedDuration::from_hours(1);

/// A worktree that was created.
pub(super) struct ForkWorktree {
    /// Top directory.
    pub(super) top: Utf8PathBuf,
    /// Working directory of the agent in it.
    pub(super) directory: Utf8PathBuf,
}

/// Returns true if a session uses its own directory, regardless of its agent's working directory.
pub(crate) fn has_own_directory(session: &Session) -> bool {
    session.workspace.is_some() || session.origin.as_deref() == Some(NATIVE_ORIGIN)
}

/// Creates a worktree with the files as they were at a fork point.
pub(super) fn create_worktree(
    dir: &StateDir,
    id: &SessionId,
    source: &Session,
    cut: &ResolvedForkPoint,
) -> Result<ForkWorktree, DaemonCommandError> {
    let Some(note) = &cut.snapshot else {
        let message = format!("no snapshot of the files was taken at message {}", cut.number);
        let refused = DaemonCommandError::new(
            DaemonCommandErrorKind::NotAllowed,
            format!("{message} of {}", source.id),
        );
        let id = &source.id;
        return Err(refused.with_hint(format!(
            "heeler session show {id} --history marks messages with snapshots by *+; they need a \
             working directory in a git repository, and `session.snapshots`"
        )));
    };
    let commit = CommitId::parse(&note.commit).ok_or_else(|| {
        DaemonCommandError::new(
            DaemonCommandErrorKind::Trouble,
            "the log names no commit for the snapshot",
        )
    })?;
    let snapshots = SnapshotStore::open_key(&dir.workspaces(), &note.repository);
    let snapshots = snapshots.map_err(|error| internal_error(&error))?;
    create_folder(&OsDisk, &dir.worktrees()).map_err(|error| internal_error(&error))?;
    // The path contains the id, so a leftover of an interrupted fork is recognized later.
    let tree = snapshots.add_worktree(&commit, &dir.worktrees().join(id.as_str()));
    let top = tree.map_err(|error| internal_error(&error))?.top;
    let directory = working_directory_in(&top, note)?;
    Ok(ForkWorktree { top, directory })
}

/// Returns true if a session has a worktree that does not exist.
pub(crate) fn is_worktree_missing(session: &Session) -> bool {
    session.workspace.as_ref().is_some_and(|top| {
        // Another error, such as missing permission, does not mean that it is gone.
        top.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    })
}

/// Recreates the worktree of a session from its newest snapshot; returns a note for people. The
/// worktree appears complete and no record changes, so an interrupted operation can be repeated.
pub(crate) fn recreate_worktree(
    fleet: &EngineContext,
    home: &Utf8Path,
    session: &Session,
) -> Result<String, DaemonCommandError> {
    let (dir, id) = (&fleet.dir, &session.id);
    let Some(top) = &session.workspace else { return Ok(String::new()) };
    create_folder(&OsDisk, &dir.worktrees()).map_err(|error| internal_error(&error))?;
    let is_here = top.parent().and_then(|folder| folder.canonicalize_utf8().ok());
    // A record from elsewhere must not make Heeler create folders outside its own.
    if is_here.is_none_or(|folder| !is_in_worktree_folder(dir, &folder.join(id.as_str()))) {
        let message = format!("the worktree of session {id} was in {top}, which is not here");
        let hint =
            format!("heeler session fork {id} --workspace makes another, if there is a snapshot");
        return Err(
            DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message).with_hint(hint)
        );
    }
    let log = dir.session_log_path(Some(home), session).filter(|log| log.is_file());
    let noted =
        log.map(|log| snapshots(&log)).transpose().map_err(|error| internal_error(&error))?;
    let found = noted.and_then(|noted| newest_snapshot(dir, top, &noted));
    let Some((snapshots, commit)) = found else {
        let message = format!(
            "the worktree of session {id} ({top}) and the snapshots to recreate it from no longer exist"
        );
        let hint =
            "restore it from a backup, or create the directory to continue without its files";
        return Err(
            DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message).with_hint(hint)
        );
    };
    match snapshots.add_worktree(&commit, top) {
        // Another thread has created it in the meantime.
        Err(SnapshotError::Taken { .. }) => {}
        made => drop(made.map_err(|error| internal_error(&error))?),
    }
    if let Some(directory) = &session.working_directory {
        // Git does not track empty folders, so the working directory may be missing.
        std::fs::create_dir_all(directory).map_err(|error| internal_error(&error))?;
    }
    tracing::warn!(session = %id, %top, "its worktree was missing and was recreated");
    Ok(format!(
        "its worktree was missing and was recreated from its newest snapshot, {:.12}; files that no snapshot \
         holds, such as ignored files, are not in it",
        commit.as_str()
    ))
}

/// Returns the newest snapshot of a worktree that still exists.
fn newest_snapshot(
    dir: &StateDir,
    top: &Utf8Path,
    noted: &[TranscriptSnapshotEntry],
) -> Option<(SnapshotStore, CommitId)> {
    // The newest come last, and older ones are used if a newer one was pruned.
    noted.iter().rev().find_map(|TranscriptSnapshotEntry { snapshot: note, .. }| {
        let snapshots = SnapshotStore::open_key(&dir.workspaces(), &note.repository).ok()?;
        // A newer snapshot may exist, taken after the last turn.
        if let Ok(Some(last)) = snapshots.last_commit(top) {
            return Some((snapshots, last));
        }
        let commit = CommitId::parse(&note.commit)?;
        snapshots.snapshot(&commit).is_ok().then_some((snapshots, commit))
    })
}

/// Returns the agent's working directory in a worktree, and creates it because git does not track
/// empty directories.
fn working_directory_in(
    top: &Utf8Path,
    note: &TranscriptSnapshot,
) -> Result<Utf8PathBuf, DaemonCommandError> {
    if note.cwd.as_str().is_empty() || note.cwd == "." {
        return Ok(top.to_owned());
    }
    let directory =
        resolve_inside(top, note.cwd.as_str()).map_err(|error| internal_error(&error))?;
    create_folder(&OsDisk, &directory).map_err(|error| internal_error(&error))?;
    Ok(directory)
}

/// Imports the snapshots of a session bundle; returns their number. Their names start with the
/// session's ID, which is unused here, so no existing name is changed.
pub(super) fn import_snapshots(
    dir: &StateDir,
    bundle: &SessionBundle,
) -> Result<u64, DaemonCommandError> {
    let Some(id) = &bundle.session.agent_session_id else { return Ok(0) };
    let prefix = SnapshotName::parse(id.as_str()).map_err(|error| internal_error(&error))?;
    let mut count = 0;
    let taken = bundle.repositories(|key, bytes| {
        let imported = SnapshotStore::import(&dir.workspaces(), key, &prefix, bytes);
        count += imported.map_err(io::Error::other)?.1.len() as u64;
        Ok(())
    });
    taken.map(|()| count).map_err(|error| internal_error(&error))
}

/// Removes the worktree of a purged session, including unrecorded changes: a person asked for it.
pub(super) fn remove_worktree(dir: &StateDir, session: &Session, now: Timestamp) {
    let Some((top, snapshots)) = find_worktree(dir, session) else { return };
    let Some(name) = removed_snapshot_name(session) else { return };
    match snapshots.remove_worktree(&top, &name, UnrecordedPolicy::Discard, now) {
        Ok(_) => tracing::info!(session = %session.id, %top, "its worktree is removed"),
        Err(error) => {
            tracing::warn!(session = %session.id, reason = error_chain(&error), "its worktree stays");
        }
    }
}

/// Removes the snapshots of a purged session; returns true if none are left. Snapshots that a fork
/// still needs are kept as long as the fork.
pub(super) fn prune_snapshots(
    dir: &StateDir,
    reader: &StoreReader,
    session: &Session,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    if is_needed_by_fork(reader, &reader.deleted_sessions()?, &session.id)? {
        return Ok(false);
    }
    let Some(name) = session.agent_session_id.as_ref() else { return Ok(true) };
    // A name that is no snapshot name never had snapshots.
    let Ok(prefix) = SnapshotName::parse(name.as_str()) else { return Ok(true) };
    let forgotten = || -> Result<(), SnapshotError> {
        for key in SnapshotStore::keys(&dir.workspaces())? {
            let snapshots = SnapshotStore::open_key(&dir.workspaces(), &key)?;
            let names = snapshots.list(Some(&prefix))?;
            if !names.is_empty() {
                let names: Vec<SnapshotName> = names.into_iter().map(|(name, _)| name).collect();
                snapshots.forget(&names)?;
                snapshots.prune(now)?;
            }
        }
        Ok(())
    };
    match forgotten() {
        Ok(()) => Ok(true),
        Err(error) => {
            let reason = error_chain(&error);
            tracing::warn!(session = %session.id, reason, "its snapshots are not removed yet");
            Ok(false)
        }
    }
}

/// Returns true if a fork of a session, or a fork of such a fork, may still need its snapshots.
fn is_needed_by_fork(
    reader: &StoreReader,
    deleted: &[DeletedSession],
    id: &SessionId,
) -> Result<bool, DatabaseError> {
    if !reader.forks_of(id)?.is_empty() {
        return Ok(true);
    }
    for fork in deleted.iter().filter(|it| it.session.parent.as_ref() == Some(id)) {
        if fork.purged_at.is_none() || is_needed_by_fork(reader, deleted, &fork.session.id)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes worktrees that belong to no session because their fork was interrupted.
pub(super) fn remove_orphan_worktrees(dir: &StateDir, reader: &StoreReader, now: Timestamp) {
    for entry in dir.worktrees().read_dir_utf8().into_iter().flatten().flatten() {
        let Ok(id) = entry.file_name().parse::<SessionId>() else { continue };
        let is_known = |reader: &StoreReader| -> Result<bool, DatabaseError> {
            Ok(reader.session(&id)?.is_some() || reader.deleted_session(&id)?.is_some())
        };
        // If the database cannot be read, nothing counts as an orphan.
        if is_known(reader).unwrap_or(true) || !is_old(entry.path(), now) {
            continue;
        }
        let orphan =
            Session { workspace: Some(entry.path().to_owned()), ..Session::new(id, "", now) };
        let name = SnapshotName::parse(&format!("orphans/{}", orphan.id));
        if let (Some((top, snapshots)), Ok(name)) = (find_worktree(dir, &orphan), name)
            // Unrecorded changes are kept in a snapshot: nobody asked to remove this worktree.
            && let Err(error) = snapshots.remove_worktree(&top, &name, UnrecordedPolicy::Keep, now)
        {
            tracing::warn!(%top, reason = error_chain(&error), "cannot remove a worktree without a session");
        }
    }
}

/// Returns true if a directory is older than any fork takes to create.
fn is_old(path: &Utf8Path, now: Timestamp) -> bool {
    let made = path.symlink_metadata().and_then(|found| found.modified()).ok();
    let made = made.and_then(|made| Timestamp::try_from(made).ok());
    made.is_some_and(|made| now.duration_since(made) > ORPHAN_AGE)
}

/// Returns the existing worktree of a session, and its snapshot repository.
fn find_worktree(dir: &StateDir, session: &Session) -> Option<(Utf8PathBuf, SnapshotStore)> {
    let top = session.workspace.as_ref().filter(|top| top.exists())?;
    // Links are resolved, because a removal must not follow one out of the folder.
    let top = top.canonicalize_utf8().ok().filter(|top| is_in_worktree_folder(dir, top))?;
    let tree = WorkTree::find(&top).ok()??;
    let snapshots = SnapshotStore::open(&dir.workspaces(), &tree).ok()?;
    Some((top, snapshots))
}

/// Returns true if a worktree is in this fleet's worktree directory: a record may have come from
/// elsewhere.
fn is_in_worktree_folder(dir: &StateDir, top: &Utf8Path) -> bool {
    let folder = dir.worktrees().canonicalize_utf8();
    folder.is_ok_and(|folder| top.parent() == Some(&folder))
}

fn removed_snapshot_name(session: &Session) -> Option<SnapshotName> {
    let id = session.agent_session_id.as_ref()?;
    SnapshotName::parse(&format!("{id}/{REMOVED_SNAPSHOT}")).ok()
}
