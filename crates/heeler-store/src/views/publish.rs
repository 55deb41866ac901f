//! Writes due views after the commit and off the writer's thread, so that a crash anywhere is
//! harmless.
//!
//! Order of steps: read the due views; commit the hashes of their new content; replace the
//! files; wait for the disk; commit that they are published. A crash leaves the view due, and its
//! file recognized as published by Heeler. If a caller waits for a file, the last two steps are left
//! to a later round, which syncs many files at once.
//!
//! The commits do not wait for the disk. After a loss of power a file may be newer than the commit
//! of its hash. It then shows the records as they are, because every change of them is durable
//! before it is shown: it holds no edit. A file that holds only records has its name before its bytes
//! are durable, and may be empty then, so an empty file is never taken for a person's. Start at
//! [`publish`].

use std::io;
use std::sync::{Mutex, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{
    DiskError, OsDisk, PlacedFiles, create_folder, place_files, sync_files, temp_name,
};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::PublishedView;
use super::render::{RenderedView, render};
use super::view_node::ViewFormat;
use crate::db::views::{self as rows, ViewRow};
use crate::db::{DatabaseError, DatabaseOpenError, StateDatabase, agents};
use crate::hex::hex;
use crate::layout::StateDir;
use crate::store_writer::{StoreWriteError, StoreWriter};
use heeler_transcript::untrusted_file;

/// Views that share the two commits of a round.
// A round costs two commits whatever its size. The limit bounds the contents held in memory.
const ROUND_MAX: usize = 256;

/// Failure to publish any view.
#[derive(Debug, Error)]
pub enum PublishError {
    #[error(transparent)]
    Open(#[from] DatabaseOpenError),
    #[error(transparent)]
    Db(#[from] DatabaseError),
    /// The publication could not be recorded.
    #[error(transparent)]
    Write(#[from] StoreWriteError<DatabaseError>),
}

/// A view that was not written; it stays due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewFailure {
    /// Path relative to the state directory.
    pub path: String,
    pub reason: String,
}

/// Result of a publication.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct PublishReport {
    /// Number of written files.
    pub written: usize,
    /// Number of files that were already up to date.
    pub unchanged: usize,
    /// Number of files removed because their subject no longer exists.
    pub removed: usize,
    /// Unreadable files, renamed to these paths.
    pub moved_aside: Vec<Utf8PathBuf>,
    /// Agents that were detached from their session because a person deleted its file.
    pub detached: Vec<String>,
    pub failed: Vec<ViewFailure>,
    /// Views whose files are in place, and that a later round makes durable.
    pub(crate) placed: Vec<ViewRow>,
}

impl PublishReport {
    fn count(&mut self, done: &PublishAction) {
        match done {
            PublishAction::Write { .. } => self.written += 1,
            PublishAction::Keep { .. } => self.unchanged += 1,
            PublishAction::Remove => self.removed += 1,
            PublishAction::Detach { agent } => self.detached.push(agent.clone()),
        }
    }
}

/// Action for one file.
enum PublishAction {
    Write { bytes: Vec<u8>, context: Option<Utf8PathBuf> },
    Keep { context: Option<Utf8PathBuf> },
    Remove,
    Detach { agent: String },
}

/// Hash of the last `state.yaml` that has no foreign keys. While the file has that hash, there is
/// nothing to merge, so it is not parsed: with 1,000 agents that would take most of the time of a
/// round.
#[derive(Debug, Default)]
pub(crate) struct PlainStateHash(Mutex<Option<String>>);

impl PlainStateHash {
    fn is(&self, sha256: Option<&String>) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sha256.is_some() && known.as_ref() == sha256
    }

    fn set(&self, sha256: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sha256;
    }
}

/// Last step of a round, after its files are in place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RoundEnd {
    /// It makes them durable and records them as published.
    Published,
    /// It leaves them due, so the next round does that.
    StillDue,
}

struct PublishPlan {
    row: ViewRow,
    action: PublishAction,
    /// Hash of the file on which the plan is based.
    found: Option<String>,
    sha256: Option<String>,
    subject: Option<String>,
    /// The content has keys that the records do not have.
    has_foreign_keys: bool,
}

impl PublishPlan {
    fn without_content(
        row: ViewRow,
        action: PublishAction,
        subject: Option<String>,
    ) -> PublishPlan {
        PublishPlan { row, action, found: None, sha256: None, subject, has_foreign_keys: false }
    }

    /// Returns true if the file may be recorded as published later than it is in place.
    fn may_stay_due(&self) -> bool {
        let view = PublishedView::from_path(&self.row.path);
        // Only the deletion of a recorded session file ends the session.
        let has_time = !matches!(view, Some(PublishedView::AgentSession(_)));
        has_time && (self.keeps_file() || matches!(self.action, PublishAction::Write { .. }))
    }

    /// Returns true if the file already has the content of the plan. An earlier round may have left
    /// it unsynced.
    fn keeps_file(&self) -> bool {
        matches!(self.action, PublishAction::Keep { .. }) && self.sha256.is_some()
    }
}

/// Writes every due view, in rounds.
pub(crate) fn publish(store: &StoreWriter, now: Timestamp) -> Result<PublishReport, PublishError> {
    // A reader of its own, so that publishing does not block the writer's thread.
    let db = store.reader()?;
    let mut report = PublishReport::default();
    // Rounds continue after the last path: a view that fails stays due and would repeat forever.
    let mut after = String::new();
    loop {
        let due = db.due_views(&after, ROUND_MAX)?;
        let Some(last) = due.last() else { return Ok(report) };
        after.clone_from(&last.path);
        let round = plan_round(store, &db, due, now, &mut report);
        publish_round(store, round, RoundEnd::Published, now, &mut report)?;
    }
}

/// Writes the files of those views that are due. Most of them stay due until [`publish`] makes them
/// durable and records them.
pub(crate) fn publish_some(
    store: &StoreWriter,
    paths: &[String],
    now: Timestamp,
) -> Result<PublishReport, PublishError> {
    let db = store.reader()?;
    let mut report = PublishReport::default();
    for paths in paths.chunks(ROUND_MAX) {
        let due: Result<Vec<Option<ViewRow>>, DatabaseError> =
            paths.iter().map(|path| db.due_view(path)).collect();
        let due = due?.into_iter().flatten().collect();
        let round = plan_round(store, &db, due, now, &mut report);
        let (later, at_once) = round.into_iter().partition(PublishPlan::may_stay_due);
        publish_round(store, later, RoundEnd::StillDue, now, &mut report)?;
        publish_round(store, at_once, RoundEnd::Published, now, &mut report)?;
    }
    Ok(report)
}

fn plan_round(
    store: &StoreWriter,
    db: &StateDatabase,
    due: Vec<ViewRow>,
    now: Timestamp,
    report: &mut PublishReport,
) -> Vec<PublishPlan> {
    let mut round = Vec::new();
    for row in due {
        let path = row.path.clone();
        match plan(store, db, row, now, report) {
            Ok(Some(planned)) => round.push(planned),
            Ok(None) => {}
            Err(reason) => report.failed.push(ViewFailure { path, reason }),
        }
    }
    round
}

fn publish_round(
    store: &StoreWriter,
    round: Vec<PublishPlan>,
    end: RoundEnd,
    now: Timestamp,
    report: &mut PublishReport,
) -> Result<(), PublishError> {
    // Committed before the files change. A crash after a rename must not make Heeler's own file
    // look like a hand edit.
    let announced: Vec<_> = round
        .iter()
        .filter(|planned| matches!(planned.action, PublishAction::Write { .. }))
        .map(|planned| {
            let present =
                // A hand edit on disk is not announced as published, so it is still recognized as
                // an edit.
                planned.found.clone().filter(|found| planned.row.is_published_hash(found));
            (planned.row.path.clone(), planned.sha256.clone(), present)
        })
        .collect();
    if !announced.is_empty() {
        store.write_unsynced(move |tx| {
            announced.iter().try_for_each(|(path, sha256, present)| {
                rows::record_pending(&tx.conn, path, sha256.as_deref(), present.as_deref())
            })
        })?;
    }
    let (mut writes, others): (Vec<PublishPlan>, Vec<PublishPlan>) = round
        .into_iter()
        .partition(|planned| matches!(planned.action, PublishAction::Write { .. }));
    let files = take_files(store.dir(), &mut writes);
    let placed = place_views(&files, &writes);
    let finish = |planned: &PublishPlan| finish_action(store.dir(), planned);
    let linked: Vec<Result<(), DiskError>> = writes
        .iter()
        .enumerate()
        // The error of a file without its name comes with the others below.
        .map(|(number, planned)| if placed.is_placed(number) { finish(planned) } else { Ok(()) })
        .collect();
    let mut finished: Vec<Result<(), DiskError>> = others.iter().map(finish).collect();
    let placed = match end {
        RoundEnd::Published => {
            sync_kept(store.dir(), &others, &mut finished);
            placed.sync()
        }
        RoundEnd::StillDue => placed.leave_unsynced(),
    };
    let written = placed.into_iter().zip(linked).map(|(placed, linked)| placed.and(linked));
    let mut done = Vec::new();
    for (planned, result) in writes.into_iter().zip(written).chain(others.into_iter().zip(finished))
    {
        match result {
            Ok(()) => {
                report.count(&planned.action);
                done.push(planned);
            }
            Err(error) => {
                let reason = full_message(&error);
                report.failed.push(ViewFailure { path: planned.row.path, reason });
            }
        }
    }
    if end == RoundEnd::StillDue {
        report.placed.extend(done.into_iter().map(|planned| planned.row));
        return Ok(());
    }
    if done.is_empty() {
        return Ok(());
    }
    // A view that changed meanwhile has another generation and stays due.
    store.write_unsynced(move |tx| done.iter().try_for_each(|planned| record(tx, planned, now)))?;
    Ok(())
}

/// Records which views [`publish_some`] has put in place, for processes that wait for them.
pub(crate) fn record_placed(store: &StoreWriter, placed: Vec<ViewRow>) -> Result<(), PublishError> {
    if !placed.is_empty() {
        store.write_unsynced(move |tx| {
            placed.iter().try_for_each(|row| rows::record_placed(&tx.conn, row))
        })?;
    }
    Ok(())
}

fn record(
    tx: &crate::StoreTransaction<'_>,
    planned: &PublishPlan,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    if let PublishAction::Detach { agent } = &planned.action {
        let present = tx.agent_session(agent)?.map(|session| session.id.to_string());
        if present != planned.subject {
            // Another session was set meanwhile, and its file must still be written.
            return Ok(());
        }
        agents::set_session(&tx.conn, agent, None)?;
        return rows::record_published(&tx.conn, &planned.row, None, None, now);
    }
    let (sha256, subject) = (planned.sha256.as_deref(), planned.subject.as_deref());
    rows::record_published(&tx.conn, &planned.row, sha256, subject, now)
}

/// Decides on the action for a file; `None` if the due view is of another version of Heeler.
fn plan(
    store: &StoreWriter,
    db: &StateDatabase,
    row: ViewRow,
    now: Timestamp,
    report: &mut PublishReport,
) -> Result<Option<PublishPlan>, String> {
    let Some(view) = PublishedView::from_path(&row.path) else { return Ok(None) };
    let dir = store.dir();
    let file = dir.root().join(&row.path);
    // Read before rendering, so the plan notices an edit that is made during the rendering.
    let found = read_if_there(&file).map_err(|error| full_message(&error))?;
    let rendered = render(db, &view).map_err(|error| error.to_string())?;
    let Some(rendered) = rendered else { return Ok(Some(plan_nothing(row, found.is_some()))) };
    if let PublishedView::AgentSession(agent) = &view
        // A person deletes this file to end the session, as herdctl documents.
        && found.is_none()
        // With several hosts it may be on another one.
        && dir.host().is_none()
        && was_deleted_by_hand(&row, rendered.subject.as_deref())
    {
        let action = PublishAction::Detach { agent: agent.to_string() };
        return Ok(Some(PublishPlan::without_content(row, action, rendered.subject)));
    }
    let format = ViewFormat::from_path(&row.path);
    let found_hash = found.as_deref().map(sha256_hex);
    let is_state = view == PublishedView::State;
    let has_nothing_to_merge = is_state && store.plain_state().is(found_hash.as_ref());
    let bytes_to_merge = found.as_deref().filter(|_| !has_nothing_to_merge);
    let (found, base) = match bytes_to_merge.map(|bytes| format.parse(bytes)) {
        // A file written by Heeler is always valid. If it exceeds a limit of the parser, or lost its
        // bytes with the power, it is written again.
        Some(Err(_)) if found.as_deref().is_some_and(|found| is_own(&row, found)) => (found, None),
        Some(Err(_)) => {
            // An unreadable file may hold a person's work, so it is moved and not overwritten.
            report.moved_aside.push(move_aside(&file, now).map_err(|error| full_message(&error))?);
            (None, None)
        }
        parsed => {
            let base = parsed.and_then(Result::ok);
            (found, base)
        }
    };
    let planned = plan_write(row, rendered, found, base, format)?;
    if is_state {
        store.plain_state().set(planned.sha256.clone().filter(|_| !planned.has_foreign_keys));
    }
    Ok(Some(planned))
}

/// Returns true if a file holds nothing that a person wrote.
pub(super) fn is_own(row: &ViewRow, found: &[u8]) -> bool {
    found.is_empty() || row.is_published_hash(&sha256_hex(found))
}

fn plan_nothing(row: ViewRow, is_there: bool) -> PublishPlan {
    let action =
        if is_there { PublishAction::Remove } else { PublishAction::Keep { context: None } };
    PublishPlan::without_content(row, action, None)
}

fn plan_write(
    row: ViewRow,
    rendered: RenderedView,
    found: Option<Vec<u8>>,
    base: Option<serde_json::Value>,
    format: ViewFormat,
) -> Result<PublishPlan, String> {
    let RenderedView { node, subject, context } = rendered;
    let own = base.is_some().then(|| node.clone().merge_over(None)).flatten();
    let value = node.merge_over(base).ok_or("a view is a map")?;
    // Only the file has them, so a loss of power must not cost them.
    let has_foreign_keys = own.is_some_and(|own| own != value);
    let bytes = format.write(&value)?.into_bytes();
    let sha256 = Some(sha256_hex(&bytes));
    // An unchanged file is not written again, which keeps its time.
    let is_there = found.as_ref().is_some_and(|found| *found == bytes);
    let found = found.map(|found| sha256_hex(&found));
    let action = if is_there {
        PublishAction::Keep { context }
    } else {
        PublishAction::Write { bytes, context }
    };
    Ok(PublishPlan { row, action, found, sha256, subject, has_foreign_keys })
}

/// Returns true if a missing file was published, and for this very session. Only then does it
/// count as deleted.
pub(super) fn was_deleted_by_hand(row: &ViewRow, subject: Option<&str>) -> bool {
    // A file that was never published is not deleted, only missing.
    row.sha256.is_some() && row.subject.is_some() && row.subject.as_deref() == subject
}

/// Takes the contents out of the plans.
fn take_files(dir: &StateDir, writes: &mut [PublishPlan]) -> Vec<(Utf8PathBuf, Vec<u8>)> {
    let files = writes.iter_mut().filter_map(|planned| match &mut planned.action {
        PublishAction::Write { bytes, .. } => {
            Some((dir.root().join(&planned.row.path), std::mem::take(bytes)))
        }
        _ => None,
    });
    files.collect()
}

/// Replaces the files of a round, in order.
fn place_views<'a>(files: &'a [(Utf8PathBuf, Vec<u8>)], writes: &[PublishPlan]) -> PlacedFiles<'a> {
    let mut folders: Vec<&Utf8Path> = files.iter().filter_map(|(path, _)| path.parent()).collect();
    // Files arrive sorted by path, so equal folders are neighbours.
    folders.dedup();
    // A folder that exists is durable since the state directory was opened.
    for folder in folders.into_iter().filter(|folder| !folder.is_dir()) {
        // If this fails, every file in the directory fails and reports its own error.
        drop(create_folder(&OsDisk, folder));
    }
    let syncs_first = |number: usize| writes[number].has_foreign_keys;
    let may_replace = |number: usize| {
        // A file edited since the plan was made is not overwritten: the next round reads it.
        let present = read_if_there(&files[number].0).map_err(|error| error.source)?;
        match present.map(|bytes| sha256_hex(&bytes)) == writes[number].found {
            true => Ok(()),
            false => Err(io::Error::other("it was edited meanwhile and is read again")),
        }
    };
    place_files(&OsDisk, files, &syncs_first, &may_replace)
}

/// Makes those files durable that an earlier round left as they should be.
fn sync_kept(dir: &StateDir, kept: &[PublishPlan], finished: &mut [Result<(), DiskError>]) {
    let (mut files, mut results) = (Vec::new(), Vec::new());
    for (planned, result) in kept.iter().zip(finished) {
        if planned.keeps_file() && result.is_ok() {
            files.push(dir.root().join(&planned.row.path));
            results.push(result);
        }
    }
    for (result, synced) in results.into_iter().zip(sync_files(&OsDisk, &files)) {
        *result = synced;
    }
}

/// Performs the remaining part of an action, after the files of the round have their names.
fn finish_action(dir: &StateDir, planned: &PublishPlan) -> Result<(), DiskError> {
    let file = dir.root().join(&planned.row.path);
    match &planned.action {
        PublishAction::Write { context, .. } | PublishAction::Keep { context } => {
            link_context(&file, context.as_deref())
        }
        PublishAction::Remove => {
            unlink_context(&file)?;
            // A view without a subject is removed only now that the deletion is committed.
            std::fs::remove_file(&file).map_err(failed("remove", &file))
        }
        PublishAction::Detach { .. } => Ok(()),
    }
}

/// Makes a session's `.context` a link to its transcript. A real file with that name is not
/// changed.
fn link_context(session_json: &Utf8Path, log: Option<&Utf8Path>) -> Result<(), DiskError> {
    let Some(log) = log else { return Ok(()) };
    let link = session_json.with_extension("context");
    // Relative to the view, so that the link survives a move of the state directory.
    let target = if log.is_absolute() { log.to_owned() } else { Utf8Path::new("..").join(log) };
    match link.read_link_utf8() {
        Ok(found) if found == target => return Ok(()),
        // `InvalidInput` means that a real file has the name.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(()),
        _ => {}
    }
    let temp = temp_name(&link);
    std::os::unix::fs::symlink(&target, &temp).map_err(failed("make the link", &temp))?;
    // By rename, so that readers always find one link or the other.
    std::fs::rename(&temp, &link).map_err(failed("put in place", &link))
}

/// Removes the link next to a view. A real file with that name is not changed.
fn unlink_context(view: &Utf8Path) -> Result<(), DiskError> {
    let link = view.with_extension("context");
    match link.read_link_utf8() {
        Ok(_) => std::fs::remove_file(&link).map_err(failed("remove", &link)),
        Err(_) => Ok(()),
    }
}

/// Renames an unreadable file so that it is kept.
pub(super) fn move_aside(file: &Utf8Path, now: Timestamp) -> Result<Utf8PathBuf, DiskError> {
    let stamp = now.strftime("%Y-%m-%dT%H-%M-%SZ");
    let mut aside = Utf8PathBuf::from(format!("{file}.unreadable-{stamp}"));
    let mut count = 1;
    // An older copy is never overwritten.
    while aside.symlink_metadata().is_ok() {
        count += 1;
        aside = Utf8PathBuf::from(format!("{file}.unreadable-{stamp}-{count}"));
    }
    std::fs::rename(file, &aside).map_err(failed("move aside", file))?;
    Ok(aside)
}

pub(super) fn read_if_there(file: &Utf8Path) -> Result<Option<Vec<u8>>, DiskError> {
    // A view may have been replaced by a link, so it is read like a foreign file.
    match untrusted_file::read(file, untrusted_file::RECORD_BYTES_MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed("read", file)(source)),
    }
}

fn failed(action: &'static str, path: &Utf8Path) -> impl FnOnce(io::Error) -> DiskError {
    move |source| DiskError { action, path: path.to_owned(), source }
}

/// Returns the hash of a view's bytes, as the database records it.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn full_message(error: &DiskError) -> String {
    format!("{error}: {}", error.source)
}
