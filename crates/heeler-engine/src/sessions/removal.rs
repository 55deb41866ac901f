//! Removal of sessions: delete (move to the trash), purge and restore.
//!
//! Files are moved to the trash after the record is changed, and back before it, so that every
//! recorded session has its transcript in place. [`sync_session_files`] completes moves that a
//! crash interrupted: a deleted session has its transcript in the trash, and a purged one has none.

use std::collections::HashSet;
use std::io;
use std::sync::{Mutex, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::LoadedConfig;
use heeler_model::session_choice::SessionChoice;
use heeler_model::{JobRequest, Session, SessionId, SessionStatus, error_chain};
use heeler_store::{
    DatabaseError, DeletedSession, StateDatabase, StateDir, StoreReader, StoreTransaction,
};
use heeler_transcript::{
    DiskError, NameError, OsDisk, create_folder, replace_file, resolve_inside,
};
use jiff::Timestamp;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde_json::json;

use super::errors::{internal_error, session_not_found};
use super::worktree;
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::dispatch_failure::DispatchFailure;
use crate::run_clone;
use crate::session_operation::RetainedSession;
use heeler_store::{SessionHolder, expired_sessions, session_holder};

const TOMBSTONE: &str = "tombstone.json";

const TOMBSTONE_VERSION: u32 = 1;

/// Maximum number of sessions per status that one clean-up removes.
pub const CLEANUP_MAX: usize = 1000;

/// Effect of a clean-up.
#[derive(Debug, Default)]
pub struct CleanupPlan {
    /// Sessions to remove.
    pub removed: Vec<Session>,
    /// Old sessions that are kept, with the reason.
    pub retained: Vec<RetainedSession>,
}

/// Returns the effect of a clean-up without changing anything.
pub fn plan_cleanup(
    db: &StateDatabase,
    loaded: Option<&LoadedConfig>,
    home: &Utf8Path,
    before: Timestamp,
    now: Timestamp,
) -> Result<CleanupPlan, DatabaseError> {
    let mut plan = CleanupPlan::default();
    for session in removable_sessions(db, loaded, before, now)? {
        // The plan uses the same check as the deletion, so both agree.
        match check_deletable(db, home, &session) {
            Ok(()) => plan.removed.push(session),
            Err(DispatchFailure::Database(error)) => return Err(error),
            Err(DispatchFailure::Refused(refused)) => {
                plan.retained.push(retained_session(&session.id, refused));
            }
        }
    }
    Ok(plan)
}

/// Lists sessions that have expired or ended and were last used before a time: at most
/// [`CLEANUP_MAX`] per status, least recently used first.
pub(super) fn removable_sessions(
    db: &StateDatabase,
    loaded: Option<&LoadedConfig>,
    before: Timestamp,
    now: Timestamp,
) -> Result<Vec<Session>, DatabaseError> {
    let mut old = Vec::new();
    for status in [SessionStatus::Expired, SessionStatus::Completed] {
        old.extend(db.unused_sessions(status, before, CLEANUP_MAX)?);
    }
    // Sessions that have expired but are not marked yet.
    let expired =
        loaded.map(|loaded| expired_sessions(db, loaded, now, CLEANUP_MAX)).transpose()?;
    let is_old = |session: &Session| session.last_active_at < before;
    old.extend(expired.into_iter().flatten().filter(is_old));
    Ok(old)
}

fn retained_session(id: &SessionId, refused: DaemonCommandError) -> RetainedSession {
    RetainedSession { id: id.clone(), reason: refused.message }
}

pub(super) fn delete_session(
    tx: &mut StoreTransaction<'_>,
    home: &Utf8Path,
    id: &SessionId,
    purge: bool,
    by: &str,
    now: Timestamp,
) -> Result<CommandReply, DispatchFailure> {
    delete_one(tx, home, id, purge, by, now)?;
    Ok(CommandReply::Sessions { sessions: vec![id.clone()], kept: Vec::new() })
}

/// Deletes sessions; those that cannot be deleted are kept.
pub(super) fn clean_up(
    tx: &mut StoreTransaction<'_>,
    home: &Utf8Path,
    sessions: &[SessionId],
    by: &str,
    now: Timestamp,
) -> Result<CommandReply, DispatchFailure> {
    let (mut gone, mut stayed) = (Vec::new(), Vec::new());
    for id in sessions {
        // A clean-up never purges: a person can still restore what it removed.
        match delete_one(tx, home, id, false, by, now) {
            Ok(()) => gone.push(id.clone()),
            Err(DispatchFailure::Refused(refused)) => stayed.push(retained_session(id, refused)),
            Err(failure @ DispatchFailure::Database(_)) => return Err(failure),
        }
    }
    Ok(CommandReply::Sessions { sessions: gone, kept: stayed })
}

fn delete_one(
    tx: &mut StoreTransaction<'_>,
    home: &Utf8Path,
    id: &SessionId,
    purge: bool,
    by: &str,
    now: Timestamp,
) -> Result<(), DispatchFailure> {
    if let Some(session) = tx.session(id)? {
        check_deletable(tx, home, &session)?;
        tx.delete_session(&session, by, now)?;
        tracing::info!(session = %id, by, "deleted");
    } else if tx.deleted_session(id)?.is_none() {
        return Err(session_not_found(id).into());
    } else if !purge {
        let refused = DaemonCommandError::new(
            DaemonCommandErrorKind::Busy,
            format!("session {id} is deleted already"),
        );
        let hint = format!("heeler session restore {id}, or heeler session delete {id} --purge");
        return Err(refused.with_hint(hint).into());
    }
    if purge {
        tx.purge_session(id, now)?;
        tracing::info!(session = %id, by, "purged");
    }
    Ok(())
}

fn check_deletable(
    db: &StateDatabase,
    home: &Utf8Path,
    session: &Session,
) -> Result<(), DispatchFailure> {
    let id = &session.id;
    let busy = |why: String| {
        DaemonCommandError::new(
            DaemonCommandErrorKind::Busy,
            format!("session {id} is in use: {why}"),
        )
    };
    if session.status == SessionStatus::Active {
        return Err(busy("a job runs in it".to_owned()).with_hint("heeler status").into());
    }
    let Some(own) = &session.agent_session_id else { return Ok(()) };
    // A run of another fleet may hold the native session.
    if let Some(SessionHolder { holder, .. }) = session_holder(home, own) {
        return Err(busy(holder).into());
    }
    // A queued job names its session, and would fail if it was gone.
    for queued in db.queue()? {
        let wanted: Option<JobRequest> = serde_json::from_str(&queued.request_json).ok();
        let named = wanted.and_then(|wanted| match wanted.session {
            SessionChoice::Given { id } | SessionChoice::Fork { source: id, .. } => Some(id),
            SessionChoice::Usual | SessionChoice::Fresh => None,
        });
        if named.as_ref() == Some(own) {
            let refused = busy(format!("job {} waits for it", queued.job));
            return Err(refused.with_hint(format!("heeler jobs cancel {}", queued.job)).into());
        }
    }
    // The agent's program knows an unstarted fork only by its source.
    let forks = db.unstarted_forks_of(own)?;
    if !forks.is_empty() {
        let names: Vec<&str> = forks.iter().map(SessionId::as_str).collect();
        let refused = busy(format!("it has forks that have not started ({})", names.join(", ")));
        return Err(refused.with_hint("run or delete them first").into());
    }
    Ok(())
}

/// Sessions with files that are being moved. Only one thread moves the files of a session.
pub(crate) type SessionMoveLocks = Mutex<HashSet<SessionId>>;

/// Moves the files of a deleted session back. The caller must hold the session in
/// [`SessionMoveLocks`] until its record is restored or the restore is refused.
pub(super) fn prepare_restore(
    dir: &StateDir,
    home: &Utf8Path,
    reader: &StoreReader,
    id: &SessionId,
) -> Result<(), DaemonCommandError> {
    let deleted = reader.deleted_session(id).map_err(|error| internal_error(&error))?;
    let Some(deleted) = deleted.filter(|deleted| deleted.purged_at.is_none()) else {
        // The transaction reports the reason.
        return Ok(());
    };
    let trash = session_trash_folder(dir, id).map_err(|error| internal_error(&error))?;
    restore_session_files(dir, home, &deleted.session, &trash)
        .map_err(|error| internal_error(&error))
}

/// Restores the record of a deleted session.
pub(super) fn restore_session(
    tx: &mut StoreTransaction<'_>,
    id: &SessionId,
) -> Result<CommandReply, DispatchFailure> {
    if tx.session(id)?.is_some() {
        let message = format!("session {id} is not deleted");
        return Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, message).into());
    }
    let Some(deleted) = tx.deleted_session(id)? else { return Err(session_not_found(id).into()) };
    if deleted.purged_at.is_some() {
        let message = format!("session {id} was purged: its files are gone");
        return Err(DaemonCommandError::new(DaemonCommandErrorKind::NotFound, message).into());
    }
    tx.restore_session(id)?;
    Ok(CommandReply::Sessions { sessions: vec![id.clone()], kept: Vec::new() })
}

/// Moves session files to the places that the database specifies. It can be repeated, also by
/// another daemon. A failure does not stop the others; the first one is returned.
pub(crate) fn sync_session_files(
    dir: &StateDir,
    home: &Utf8Path,
    reader: &StoreReader,
    moving: &SessionMoveLocks,
    now: Timestamp,
) -> Result<(), String> {
    let deleted = reader.deleted_sessions().map_err(|error| error_chain(&error))?;
    let mut failed = None;
    for one in &deleted {
        let id = &one.session.id;
        let moving = || moving.lock().unwrap_or_else(PoisonError::into_inner);
        // A restore moves these files right now, so its outcome decides.
        if !moving().insert(id.clone()) {
            continue;
        }
        failed = failed.or(trash_or_purge(dir, home, reader, one, now).err());
        moving().remove(id);
    }
    worktree::remove_orphan_worktrees(dir, reader, now);
    run_clone::remove_old_clones(dir, reader, now);
    let back = restore_files(dir, home, reader, moving);
    failed.map_or(back, Err)
}

/// Moves or removes the files of one deleted session.
fn trash_or_purge(
    dir: &StateDir,
    home: &Utf8Path,
    reader: &StoreReader,
    deleted: &DeletedSession,
    now: Timestamp,
) -> Result<(), String> {
    let session = &deleted.session;
    // The session may have been restored, or adopted again under another ID: then the files belong
    // to that session.
    let is_back = reader.session(&session.id).map_err(|error| error_chain(&error))?.is_some();
    let own = session.agent_session_id.as_ref();
    let other = own.map(|own| reader.session_by_agent_id(own)).transpose();
    if is_back || other.map_err(|error| error_chain(&error))?.flatten().is_some() {
        return Ok(());
    }
    let trash = session_trash_folder(dir, &session.id).map_err(|error| error_chain(&error))?;
    // It was purged and nothing is left.
    let is_purged = deleted.purged_at.is_some();
    if is_purged && !trash.exists() && session_files(dir, home, session).is_empty() {
        return Ok(());
    }
    move_to_trash(dir, home, deleted, &trash).map_err(|error| error_chain(&error))?;
    if is_purged {
        worktree::remove_worktree(dir, session, now);
        let is_all = worktree::prune_snapshots(dir, reader, session, now)
            .map_err(|error| error_chain(&error))?;
        // Snapshots that a fork needs stay, and the tombstone stays to find them later.
        purge_trash(&trash, is_all).map_err(|error| error_chain(&error))?;
    }
    Ok(())
}

/// Returns the trash directory of a deleted session; refuses a symbolic link.
fn session_trash_folder(dir: &StateDir, id: &SessionId) -> Result<Utf8PathBuf, NameError> {
    let trash = dir.trashed_session(id);
    let relative = trash.strip_prefix(dir.root()).expect("the trash is in the state directory");
    resolve_inside(dir.root(), relative.as_str())
}

/// Moves the files of a session to the trash, with a tombstone that describes the session.
fn move_to_trash(
    dir: &StateDir,
    home: &Utf8Path,
    deleted: &DeletedSession,
    trash: &Utf8Path,
) -> Result<(), DiskError> {
    let session = &deleted.session;
    let tombstone = trash.join(TOMBSTONE);
    if !tombstone.exists() {
        create_folder(&OsDisk, trash)?;
        let text = json!({
            "version": TOMBSTONE_VERSION, "session": session, "deletedAt": deleted.deleted_at,
            "deletedBy": deleted.deleted_by,
        });
        // The tombstone comes before the files, so the trash never holds files of unknown origin.
        replace_file(&OsDisk, &tombstone, format!("{text:#}\n").as_bytes())?;
    }
    let mut files = session_files(dir, home, session);
    // Move the transcript last: the other files are found through it.
    files.sort_by_key(|file| file.extension() == Some("jsonl"));
    for file in files {
        let name = file.file_name().expect("it was listed by its name");
        rename(&file, &trash.join(name))?;
    }
    Ok(())
}

/// Removes the content of the trash directory; the tombstone last, and only if nothing else of the
/// session is left.
fn purge_trash(trash: &Utf8Path, is_all: bool) -> Result<(), DiskError> {
    for entry in trash.read_dir_utf8().into_iter().flatten().flatten() {
        if entry.file_name() != TOMBSTONE {
            remove(entry.path())?;
        }
    }
    if !is_all {
        return Ok(());
    }
    match std::fs::remove_dir_all(trash) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(DiskError { action: "remove", path: trash.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Returns the transcript of a session and the files with the same stem.
fn session_files(dir: &StateDir, home: &Utf8Path, session: &Session) -> Vec<Utf8PathBuf> {
    let Some(log) = dir.session_log_path(Some(home), session) else { return Vec::new() };
    // Native sessions outside the state directory must not be moved.
    let Some(folder) = log.parent().filter(|_| log.starts_with(dir.root())) else {
        return Vec::new();
    };
    let Some(name) = log.file_stem().filter(|_| log.exists()) else { return Vec::new() };
    let beside = folder.read_dir_utf8().into_iter().flatten().flatten();
    let is_own =
        |file: &str| file.strip_prefix('.').unwrap_or(file).starts_with(&format!("{name}."));
    beside.filter(|entry| is_own(entry.file_name())).map(|entry| entry.into_path()).collect()
}

/// Moves the files of restored sessions back.
fn restore_files(
    dir: &StateDir,
    home: &Utf8Path,
    reader: &StoreReader,
    moving: &SessionMoveLocks,
) -> Result<(), String> {
    let Ok(entries) = dir.trash().join("sessions").read_dir_utf8() else { return Ok(()) };
    let mut failed = None;
    for entry in entries.flatten() {
        let Ok(id) = entry.file_name().parse::<SessionId>() else { continue };
        // The restore that holds the session moves its files itself.
        if moving.lock().unwrap_or_else(PoisonError::into_inner).contains(&id) {
            continue;
        }
        // One session that cannot be restored must not keep the others in the trash.
        failed = failed.or(restore_one(dir, home, reader, &id).err());
    }
    failed.map_or(Ok(()), Err)
}

/// Moves the files of a session back, unless it is still deleted.
fn restore_one(
    dir: &StateDir,
    home: &Utf8Path,
    reader: &StoreReader,
    id: &SessionId,
) -> Result<(), String> {
    let session = reader.session(id).map_err(|error| error_chain(&error))?;
    let Some(session) = session else { return Ok(()) };
    let trash = session_trash_folder(dir, id).map_err(|error| error_chain(&error))?;
    restore_session_files(dir, home, &session, &trash).map_err(|error| error_chain(&error))?;
    // Files that could not be moved because their place is taken stay in the trash.
    remove(&trash.join(TOMBSTONE)).map_err(|error| error_chain(&error))?;
    drop(std::fs::remove_dir(&trash));
    Ok(())
}

fn restore_session_files(
    dir: &StateDir,
    home: &Utf8Path,
    session: &Session,
    trash: &Utf8Path,
) -> Result<(), DiskError> {
    let Some(log) = dir.session_log_path(Some(home), session) else { return Ok(()) };
    let folder = log.parent().expect("a log is in its project's folder");
    create_folder(&OsDisk, folder)?;
    // Move the transcript last: once it is in place, the session counts as restored.
    let files = trash.read_dir_utf8().into_iter().flatten().flatten();
    let mut files: Vec<Utf8PathBuf> = files.map(|file| file.into_path()).collect();
    files.sort_by_key(|file| file.file_name() == log.file_name());
    for file in files {
        let place = folder.join(file.file_name().expect("it was listed by its name"));
        // An existing file is newer and is kept.
        if file.file_name() != Some(TOMBSTONE) && !place.exists() {
            rename(&file, &place)?;
        }
    }
    Ok(())
}

/// Moves a file. An existing file is never overwritten.
fn rename(from: &Utf8Path, to: &Utf8Path) -> Result<(), DiskError> {
    let failed =
        |source: Errno| DiskError { action: "move", path: from.to_owned(), source: source.into() };
    let mut place = to.to_owned();
    let mut number = 0;
    loop {
        let paths = (from.as_std_path(), place.as_std_path());
        // A check before the rename would leave a moment in which a new file could be overwritten.
        match renameat_with(CWD, paths.0, CWD, paths.1, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => number += 1,
            done => return done.map_err(failed),
        }
        place = Utf8PathBuf::from(format!("{to}.{number}"));
    }
}

fn remove(file: &Utf8Path) -> Result<(), DiskError> {
    match std::fs::remove_file(file) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(DiskError { action: "remove", path: file.to_owned(), source })
        }
        _ => Ok(()),
    }
}
