//! A person's sessions: Heeler's directory, and read-only directories of other programs.
//!
//! A session is `<id>.json` with its transcripts next to it. Only one terminal can have it open: it
//! holds `<id>.lock` in Heeler's directory, even for a session of another program, which is copied
//! there before the first write. Start at [`SessionDirectory`].

mod session_file_entry;
mod summary;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fs::DirEntry;
use std::io::Read as _;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{JobId, did_you_mean};
use heeler_transcript::{
    DiskBackend, DiskError, LockError, LockFile, LockHolder, OsDisk, create_folder, resolve_inside,
    validate_id, write_new_file,
};
use jiff::Timestamp;
use thiserror::Error;
use uuid::Uuid;

use self::session_file_entry::{JSON, lock_name, read_metadata};
pub use self::session_file_entry::{SessionFileEntry, SessionFileRef, SessionFileSummary};
use crate::conversation_state::ConversationState;
use crate::session_file::{
    OldFormatPolicy, OpenedSessionFile, SessionFile, SessionFileError, SessionFileLocation,
};
use crate::session_metadata::{InlineTranscriptUpdate, SessionMetadata};

/// Longest wait for a lock: listing sessions holds each lock for a moment.
const LOCK_WAIT: Duration = Duration::from_millis(200);
/// Most sessions named in an error about an ambiguous prefix.
const NAMED_MAX: usize = 5;
/// Most recently written sessions that are searched for a job.
const JOB_LOOKUP_SESSIONS_MAX: usize = 100;
/// Most attempts to find a free session ID.
const IDS_MAX: usize = 100;

/// Most threads that read sessions.
const THREADS_MAX: usize = 8;
/// Size limit of the insights from an earlier session.
const INSIGHTS_BYTES_MAX: u64 = 16 * 1024;
/// Most earlier sessions that are searched for insights.
const INSIGHTS_SESSIONS_MAX: usize = 200;

const TRANSCRIPT: &str = ".transcript.ndjson";
/// Suffix of insights files.
pub(crate) const INSIGHTS_SUFFIX: &str = ".insights.md";

/// Failure to find, create or open a session.
#[derive(Debug, Error)]
pub enum SessionDirectoryError {
    /// No session has this ID or prefix.
    #[error("there is no session `{id}`{}", near.as_ref().map_or(String::new(), |near| format!("; did you mean `{near}`?")))]
    Unknown {
        id: String,
        /// Most similar ID.
        near: Option<String>,
    },
    /// Several sessions have this prefix.
    #[error("several sessions begin with `{id}`: {some}; give more of the id")]
    Ambiguous {
        id: String,
        /// Some of their IDs.
        some: String,
    },
    /// The session is open in another process.
    #[error("session `{id}` is open in {holder}; leave it there first")]
    Busy {
        id: String,
        /// Process that has it open.
        holder: String,
    },
    /// The lock file could not be used.
    #[error(transparent)]
    Lock(LockError),
    /// The session file cannot be used.
    #[error("cannot use session file {path}: {reason}")]
    Faulty { path: Utf8PathBuf, reason: String },
    /// The session's files could not be read or written.
    #[error(transparent)]
    SessionFile(#[from] SessionFileError),
}

/// A person's sessions.
#[derive(Debug, Clone)]
pub struct SessionDirectory {
    /// Heeler's directory.
    heeler_folder: Utf8PathBuf,
    /// Directories of other programs.
    foreign: Vec<Utf8PathBuf>,
    disk: Arc<dyn DiskBackend>,
}

impl SessionDirectory {
    /// Creates a view of Heeler's directory, which need not exist yet, and of read-only
    /// directories.
    pub fn new(heeler_folder: Utf8PathBuf, foreign: Vec<Utf8PathBuf>) -> SessionDirectory {
        SessionDirectory { heeler_folder, foreign, disk: Arc::new(OsDisk) }
    }

    /// Uses another disk, for tests.
    #[cfg(test)]
    pub(crate) fn with_disk(self, disk: Arc<dyn DiskBackend>) -> SessionDirectory {
        SessionDirectory { disk, ..self }
    }

    /// Lists all sessions, most recently written first. One that cannot be opened has a `fault`.
    pub fn list(&self) -> Result<Vec<SessionFileSummary>, SessionDirectoryError> {
        let named = self.entries()?;
        let mut listed = map_in_parallel(&named, |named| self.summarize(named));
        // Sorted again, because the reading of a transcript may have found a later time.
        listed.sort_by(|a, b| (b.updated, &b.id).cmp(&(a.updated, &a.id)));
        Ok(listed)
    }

    /// Lists all sessions, most recently written first, without reading them.
    /// [`SessionDirectory::summarize`] reads one.
    pub fn entries(&self) -> Result<Vec<SessionFileEntry>, SessionDirectoryError> {
        let mut times: BTreeMap<String, SessionFileEntry> = BTreeMap::new();
        for (folder, is_foreign) in self.folders() {
            let seen = or_empty_if_foreign(is_foreign, modified_times(folder))?;
            // Later directories replace earlier ones, so that Heeler's copy hides the original.
            times.extend(seen.into_iter().map(|(id, updated)| {
                let found = SessionFileRef { id: id.clone(), is_foreign, folder: folder.clone() };
                (id, SessionFileEntry { file: found, updated })
            }));
        }
        let mut named: Vec<SessionFileEntry> = times.into_values().collect();
        named.sort_by(|a, b| (b.updated, &b.file.id).cmp(&(a.updated, &a.file.id)));
        Ok(named)
    }

    /// Summarizes a session from the beginning and end of its files.
    pub fn summarize(&self, named: &SessionFileEntry) -> SessionFileSummary {
        summary::summarize(&self.heeler_folder, named)
    }

    /// Returns the insights of the last session with an agent in a directory.
    pub fn latest_insights(
        &self,
        agent: Option<&str>,
        folder: Option<&Utf8Path>,
    ) -> Option<String> {
        let mut files: Vec<(Timestamp, String)> = Vec::new();
        let each = &mut |name: &str, entry: &DirEntry| {
            let id = name.strip_suffix(INSIGHTS_SUFFIX).map(str::to_owned);
            files.extend(id.map(|id| (modified_at(entry), id)));
        };
        // Insights are only an aid, so their absence must not prevent a session.
        for_each_file(&self.heeler_folder, each).ok()?;
        files.sort_unstable_by(|a, b| b.cmp(a));
        let is_alike = |id: &str| {
            let (id, folder_of) = (id.to_owned(), self.heeler_folder.clone());
            let found = SessionFileRef { id, is_foreign: false, folder: folder_of };
            let metadata = read_metadata(&found).1.ok();
            metadata.is_some_and(|metadata| {
                let about = &metadata.state;
                about.agent.as_deref() == agent && about.folder.as_deref() == folder
            })
        };
        let alike = files.iter().take(INSIGHTS_SESSIONS_MAX).filter(|(_, id)| is_alike(id));
        let read = |id: &str| {
            let mut text = Vec::new();
            // A link could lead out of the directory, so it is not followed.
            let path =
                resolve_inside(&self.heeler_folder, &format!("{id}{INSIGHTS_SUFFIX}")).ok()?;
            let file = heeler_transcript::untrusted_file::open(&path).ok()?;
            file.take(INSIGHTS_BYTES_MAX).read_to_end(&mut text).ok()?;
            let text = String::from_utf8_lossy(&text).into_owned();
            (!text.trim().is_empty()).then_some(text)
        };
        alike.map(|(_, id)| id).find_map(|id| read(id))
    }

    /// Finds a session by its ID or a unique prefix.
    pub fn find(&self, id: &str) -> Result<SessionFileRef, SessionDirectoryError> {
        validate_id(id).map_err(SessionFileError::Name)?;
        // A complete ID counts even if longer IDs begin with it.
        if let Some(found) = self.find_exact(id) {
            return Ok(found);
        }
        let all = self.all_sessions()?;
        let matching: Vec<&SessionFileRef> =
            all.values().filter(|it| it.id.starts_with(id)).collect();
        match matching[..] {
            [found] => Ok(found.clone()),
            [] => {
                let near = did_you_mean(id, all.keys().map(String::as_str)).map(str::to_owned);
                Err(SessionDirectoryError::Unknown { id: id.to_owned(), near })
            }
            _ => {
                let some: Vec<&str> =
                    matching.iter().take(NAMED_MAX).map(|it| it.id.as_str()).collect();
                let more = if matching.len() > NAMED_MAX { ", …" } else { "" };
                let some = format!("{}{more}", some.join(", "));
                Err(SessionDirectoryError::Ambiguous { id: id.to_owned(), some })
            }
        }
    }

    /// Finds a session by its complete ID. Heeler's copy hides the original.
    fn find_exact(&self, id: &str) -> Option<SessionFileRef> {
        let foreign = self.foreign.iter().map(|folder| (folder, true));
        let mut folders = std::iter::once((&self.heeler_folder, false)).chain(foreign);
        // A link counts too: reading it reports the fault instead of passing over the session.
        let is_there =
            |folder: &Utf8Path| folder.join(format!("{id}{JSON}")).symlink_metadata().is_ok();
        let (folder, is_foreign) = folders.find(|(folder, _)| is_there(folder))?;
        Some(SessionFileRef { id: id.to_owned(), is_foreign, folder: folder.clone() })
    }

    /// Returns the state of the session in Heeler's directory that has a job as a turn; `None` if
    /// it is not among the most recently written ones. Another process may be writing it.
    pub fn state_for_job(
        &self,
        job: &JobId,
    ) -> Result<Option<ConversationState>, SessionDirectoryError> {
        let sessions = self.all_sessions()?.into_values().filter(|found| !found.is_foreign);
        let written = |found: &SessionFileRef| {
            let path = found.folder.join(format!("{}{JSON}", found.id));
            path.symlink_metadata().and_then(|meta| meta.modified()).ok()
        };
        let mut sessions: Vec<_> = sessions.map(|found| (written(&found), found)).collect();
        sessions.sort_by(|(one, _), (other, _)| other.cmp(one));
        let newest = sessions.iter().take(JOB_LOOKUP_SESSIONS_MAX);
        // Read one by one, because the job is usually in one of the newest sessions.
        let mut states = newest.filter_map(|(_, found)| Some(read_metadata(found).1.ok()?.state));
        Ok(states.find(|state| state.turns.iter().any(|turn| turn.job.as_ref() == Some(job))))
    }

    pub fn create(
        &self,
        new: ConversationState,
        now: Timestamp,
    ) -> Result<SessionFile, SessionDirectoryError> {
        let (location, mut metadata, lock) = self.reserve_session(new, now)?;
        let bytes = metadata.write(Some(0), InlineTranscriptUpdate::Clear);
        // Without this file a transcript would belong to no session after a crash.
        let path = self.heeler_folder.join(format!("{}{JSON}", location.id));
        write_new_file(self.disk.as_ref(), &path, &mut &bytes[..], u64::MAX)
            .map_err(SessionFileError::Disk)?;
        self.open_reserved(location, metadata, lock)
    }

    /// Creates a draft: it becomes a session when it is saved, so that content written before is
    /// complete by then.
    pub fn create_draft(
        &self,
        new: ConversationState,
        now: Timestamp,
    ) -> Result<SessionFile, SessionDirectoryError> {
        let (location, metadata, lock) = self.reserve_session(new, now)?;
        self.open_reserved(location, metadata, lock)
    }

    fn open_reserved(
        &self,
        location: SessionFileLocation,
        metadata: SessionMetadata,
        lock: LockFile,
    ) -> Result<SessionFile, SessionDirectoryError> {
        let disk = Arc::clone(&self.disk);
        // A new session has no older format that could be kept.
        let opened = SessionFile::open(location, metadata, lock, disk, OldFormatPolicy::Migrate)?;
        Ok(opened.session_file)
    }

    fn reserve_session(
        &self,
        new: ConversationState,
        now: Timestamp,
    ) -> Result<(SessionFileLocation, SessionMetadata, LockFile), SessionDirectoryError> {
        create_folder(self.disk.as_ref(), &self.heeler_folder).map_err(SessionFileError::Disk)?;
        let about = ConversationState { created_at: new.created_at.or(Some(now)), ..new };
        for _ in 0..IDS_MAX {
            let (random, ..) = Uuid::new_v4().as_fields();
            let id = format!("chat-{random:08x}");
            // Transcripts without a JSON file may still be valuable, so their IDs are not reused.
            if self.is_id_taken(&id) {
                continue;
            }
            let lock = self.lock(&id, now)?;
            let metadata = SessionMetadata::new(&id, about);
            return Ok((
                SessionFileLocation {
                    id,
                    heeler_folder: self.heeler_folder.clone(),
                    foreign: None,
                },
                metadata,
                lock,
            ));
        }
        let source = std::io::Error::other("no id is free");
        Err(SessionFileError::Disk(DiskError {
            action: "add to",
            path: self.heeler_folder.clone(),
            source,
        })
        .into())
    }

    /// Opens a session for reading and writing, by its ID or a unique prefix.
    pub fn open(
        &self,
        id: &str,
        now: Timestamp,
        older: OldFormatPolicy,
    ) -> Result<OpenedSessionFile, SessionDirectoryError> {
        // The name of the lock needs the complete ID.
        let id = self.find(id)?.id;
        create_folder(self.disk.as_ref(), &self.heeler_folder).map_err(SessionFileError::Disk)?;
        let lock = self.lock(&id, now)?;
        // The previous holder of the lock may have copied the session to Heeler's directory.
        let found = self.find(&id)?;
        let (path, read) = read_metadata(&found);
        let metadata = read.map_err(|reason| SessionDirectoryError::Faulty { path, reason })?;
        let foreign = found.is_foreign.then_some(found.folder);
        let location =
            SessionFileLocation { id, heeler_folder: self.heeler_folder.clone(), foreign };
        Ok(SessionFile::open(location, metadata, lock, Arc::clone(&self.disk), older)?)
    }

    fn lock(&self, id: &str, now: Timestamp) -> Result<LockFile, SessionDirectoryError> {
        let path = self.heeler_folder.join(lock_name(id));
        let acquired = LockFile::acquire(&path, &LockHolder::this_process("chat", now), LOCK_WAIT);
        acquired.map_err(|error| match error {
            LockError::Held { holder, .. } => {
                let holder = holder.map_or("another process".to_owned(), |it| it.to_string());
                SessionDirectoryError::Busy { id: id.to_owned(), holder }
            }
            other => SessionDirectoryError::Lock(other),
        })
    }

    fn is_id_taken(&self, id: &str) -> bool {
        let names = [JSON, TRANSCRIPT, ".workers"];
        let folders = self.foreign.iter().chain([&self.heeler_folder]);
        folders.into_iter().any(|folder| {
            names.iter().any(|name| folder.join(format!("{id}{name}")).symlink_metadata().is_ok())
        })
    }

    /// Returns all sessions by ID. Heeler's copy hides the original.
    fn all_sessions(&self) -> Result<BTreeMap<String, SessionFileRef>, SessionDirectoryError> {
        let mut all = BTreeMap::new();
        for (folder, is_foreign) in self.folders() {
            for id in or_empty_if_foreign(is_foreign, session_ids(folder))? {
                let found = SessionFileRef { id: id.clone(), is_foreign, folder: folder.clone() };
                all.insert(id, found);
            }
        }
        Ok(all)
    }

    /// Returns the directories; the flag marks those of other programs. Later ones hide earlier
    /// ones.
    fn folders(&self) -> impl Iterator<Item = (&Utf8PathBuf, bool)> {
        // Of other programs' directories the first one wins, as in `find_exact`.
        self.foreign.iter().rev().map(|it| (it, true)).chain([(&self.heeler_folder, false)])
    }
}

/// Treats an unreadable directory of another program as empty, so that the person's own sessions
/// stay usable.
fn or_empty_if_foreign<T: Default>(
    is_foreign: bool,
    read: Result<T, DiskError>,
) -> Result<T, SessionDirectoryError> {
    match read {
        Err(error) if is_foreign => {
            tracing::warn!("{}", heeler_model::error_chain(&error));
            Ok(T::default())
        }
        result => Ok(result.map_err(SessionFileError::Disk)?),
    }
}

/// Calls `each` for every file in a directory, which need not exist. Temporary and hidden files,
/// which begin with a dot, are skipped.
fn for_each_file(
    folder: &Utf8Path,
    each: &mut dyn FnMut(&str, &DirEntry),
) -> Result<(), DiskError> {
    let failed = |source| DiskError { action: "list", path: folder.to_owned(), source };
    let names = match std::fs::read_dir(folder) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for entry in names {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with('.') {
            each(&name, &entry);
        }
    }
    Ok(())
}

/// Returns the IDs of the sessions in a directory.
fn session_ids(folder: &Utf8Path) -> Result<Vec<String>, DiskError> {
    let mut ids = Vec::new();
    for_each_file(folder, &mut |name, _| ids.extend(name.strip_suffix(JSON).map(str::to_owned)))?;
    Ok(ids)
}

/// Returns the time of the last write to each session of a directory: the later one of session file
/// and transcript.
fn modified_times(folder: &Utf8Path) -> Result<HashMap<String, Timestamp>, DiskError> {
    let (mut sessions, mut transcripts) = (HashMap::new(), HashMap::new());
    for_each_file(folder, &mut |name, entry| {
        if let Some(id) = name.strip_suffix(JSON) {
            sessions.insert(id.to_owned(), modified_at(entry));
        } else if let Some(id) = name.strip_suffix(TRANSCRIPT) {
            transcripts.insert(id.to_owned(), modified_at(entry));
        }
    })?;
    // A transcript without a JSON file is no session.
    for (id, at) in &mut sessions {
        *at = transcripts.get(id).map_or(*at, |transcript| *transcript.max(at));
    }
    Ok(sessions)
}

fn modified_at(entry: &DirEntry) -> Timestamp {
    // A file that has just disappeared is sorted last and does not fail the list.
    entry.metadata().map_or(Timestamp::UNIX_EPOCH, |meta| summary::modified_at(&meta))
}

/// Applies a function to all items, in up to [`THREADS_MAX`] threads.
fn map_in_parallel<T: Sync, R: Send>(things: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = things.len().div_ceil(threads.min(THREADS_MAX)).max(1);
    std::thread::scope(|scope| {
        let act = &act;
        let shares = things
            .chunks(share)
            .map(|some| scope.spawn(move || some.iter().map(act).collect::<Vec<R>>()));
        // Collected first, because a lazy iterator would join each thread before it starts the
        // next.
        let shares: Vec<_> = shares.collect();
        let done = shares
            .into_iter()
            .map(|share| share.join().unwrap_or_else(|panic| resume_unwind(panic)));
        done.flatten().collect()
    })
}
