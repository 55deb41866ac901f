//! The sessions that a person has: a folder of ours, and folders of other programs that are only read.
//!
//! A session is `<id>.json` with its transcripts beside it. One terminal has it open at a time: it holds
//! `<id>.lock` in our folder, also for a session of another program, which becomes ours with the first
//! thing that is written. Start at [`SessionDirectory`].

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
use heeler_model::JobId;
use heeler_model::config::did_you_mean;
use heeler_transcript::{
    DiskBackend, DiskError, LockError, LockFile, LockHolder, OsDisk, create_folder, resolve_inside,
    validate_id, write_new_file,
};
use jiff::Timestamp;
use thiserror::Error;
use uuid::Uuid;

use crate::conversation_state::ConversationState;
use crate::session_file::{SessionFile, SessionFileError, SessionFileLocation};
use crate::session_metadata::{InlineTranscriptUpdate, SessionMetadata};

/// How long a lock is waited for: whoever lists sessions holds each for an instant.
const LOCK_WAIT: Duration = Duration::from_millis(200);
/// How many sessions are named where a beginning fits several.
const NAMED_MAX: usize = 5;
/// In how many sessions, those that were written last, the one of a job is looked for.
const JOB_LOOKUP_SESSIONS_MAX: usize = 100;
/// How many ids are tried for a new session.
const IDS_MAX: usize = 100;

/// How many threads look at sessions at most.
const THREADS_MAX: usize = 8;
/// The most that is told of what an earlier session has taught.
const INSIGHTS_BYTES_MAX: u64 = 16 * 1024;
/// In how many earlier sessions it is looked for.
const INSIGHTS_SESSIONS_MAX: usize = 200;

const JSON: &str = ".json";
const TRANSCRIPT: &str = ".transcript.ndjson";
/// What the file ends in that has what a session has taught.
pub(crate) const INSIGHTS_SUFFIX: &str = ".insights.md";

/// Why a session was not found, made or opened.
#[derive(Debug, Error)]
pub enum SessionDirectoryError {
    /// No session has this id, nor begins with it.
    #[error("there is no session `{id}`{}", near.as_ref().map_or(String::new(), |near| format!("; did you mean `{near}`?")))]
    Unknown {
        /// What was asked for.
        id: String,
        /// The nearest that there is.
        near: Option<String>,
    },
    /// Several sessions begin so.
    #[error("several sessions begin with `{id}`: {some}; give more of the id")]
    Ambiguous {
        /// What was asked for.
        id: String,
        /// Some of them.
        some: String,
    },
    /// It is open elsewhere.
    #[error("session `{id}` is open in {holder}; leave it there first")]
    Busy {
        /// The session.
        id: String,
        /// Who has it open.
        holder: String,
    },
    /// The lock could not be used.
    #[error(transparent)]
    Lock(LockError),
    /// The session's file cannot be used as it is.
    #[error("cannot use session file {path}: {reason}")]
    Faulty {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        reason: String,
    },
    /// Its files could not be read or written.
    #[error(transparent)]
    SessionFile(#[from] SessionFileError),
}

/// The sessions that a person has.
#[derive(Debug, Clone)]
pub struct SessionDirectory {
    /// Ours.
    own: Utf8PathBuf,
    /// Those of other programs.
    foreign: Vec<Utf8PathBuf>,
    disk: Arc<dyn DiskBackend>,
}

/// A session in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionFileSummary {
    /// Its id.
    pub id: String,
    /// Whom the person talked to.
    pub agent: Option<String>,
    /// Where the person was.
    pub folder: Option<Utf8PathBuf>,
    /// When it began, if its file says so.
    pub created: Option<Timestamp>,
    /// When its files were last written.
    pub updated: Timestamp,
    /// How many entries its transcript has; none if it would take long to count them.
    pub messages: Option<u64>,
    /// What the person said first.
    pub first_message: Option<String>,
    /// What was said last.
    pub last_message: Option<String>,
    /// It is another program's, so far.
    pub is_foreign: bool,
    /// Who has it open.
    pub opened_by: Option<String>,
    /// Why it cannot be opened.
    pub fault: Option<String>,
}

impl SessionFileSummary {
    /// Says how many entries it has.
    pub fn entry_count_label(&self) -> String {
        match self.messages {
            None => "… entries".to_owned(),
            Some(1) => "1 entry".to_owned(),
            Some(count) => format!("{count} entries"),
        }
    }
}

/// Where a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFileRef {
    /// Its whole id.
    pub id: String,
    /// It is another program's, so far.
    pub is_foreign: bool,
    /// The folder that has it.
    pub(crate) folder: Utf8PathBuf,
}

/// A session that nobody has looked into yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFileEntry {
    /// Where it is.
    pub file: SessionFileRef,
    /// When its files were last written.
    pub updated: Timestamp,
}

/// What to do with a session of an older form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldFormatPolicy {
    /// It is raised to the newest form when it is written.
    Migrate,
    /// It keeps its form, for older programs that are to go on with it (`AGENTS_FLEET_NO_MIGRATE=1`).
    Keep,
}

/// A session that was opened.
#[derive(Debug)]
pub struct OpenedSessionFile {
    /// The session.
    pub session_file: SessionFile,
    /// What had to be skipped or repaired.
    pub warnings: Vec<String>,
}

impl SessionDirectory {
    /// Makes a shelf of our folder, which need not be there yet, and folders that are only read.
    pub fn new(own: Utf8PathBuf, foreign: Vec<Utf8PathBuf>) -> SessionDirectory {
        SessionDirectory { own, foreign, disk: Arc::new(OsDisk) }
    }

    /// Writes to another disk.
    #[cfg(test)]
    pub(crate) fn with_disk(self, disk: Arc<dyn DiskBackend>) -> SessionDirectory {
        SessionDirectory { disk, ..self }
    }

    /// Lists all sessions, the last written first. One that cannot be opened is listed with its fault.
    pub fn list(&self) -> Result<Vec<SessionFileSummary>, SessionDirectoryError> {
        let named = self.entries()?;
        let mut listed = map_in_parallel(&named, |named| self.summarize(named));
        listed.sort_by(|a, b| (b.updated, &b.id).cmp(&(a.updated, &a.id)));
        Ok(listed)
    }

    /// Names all sessions, the last written first, without looking into any: [`SessionDirectory::glance`] does.
    pub fn entries(&self) -> Result<Vec<SessionFileEntry>, SessionDirectoryError> {
        let mut times: BTreeMap<String, SessionFileEntry> = BTreeMap::new();
        for (folder, is_foreign) in self.folders() {
            let seen = or_empty_if_foreign(is_foreign, modified_times(folder))?;
            times.extend(seen.into_iter().map(|(id, updated)| {
                let found = SessionFileRef { id: id.clone(), is_foreign, folder: folder.clone() };
                (id, SessionFileEntry { file: found, updated })
            }));
        }
        let mut named: Vec<SessionFileEntry> = times.into_values().collect();
        named.sort_by(|a, b| (b.updated, &b.file.id).cmp(&(a.updated, &a.file.id)));
        Ok(named)
    }

    /// Looks at a session: at the ends of its files, and at little more.
    pub fn summarize(&self, named: &SessionFileEntry) -> SessionFileSummary {
        summary::summarize(&self.own, named)
    }

    /// Returns what the last session with an agent in a folder has taught.
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
        for_each_file(&self.own, each).ok()?;
        files.sort_unstable_by(|a, b| b.cmp(a));
        let is_alike = |id: &str| {
            let (id, folder_of) = (id.to_owned(), self.own.clone());
            let found = SessionFileRef { id, is_foreign: false, folder: folder_of };
            let sheet = read_metadata(&found).1.ok();
            sheet.is_some_and(|sheet| {
                let about = &sheet.state;
                about.agent.as_deref() == agent && about.folder.as_deref() == folder
            })
        };
        let alike = files.iter().take(INSIGHTS_SESSIONS_MAX).filter(|(_, id)| is_alike(id));
        let read = |id: &str| {
            let mut text = Vec::new();
            let path = resolve_inside(&self.own, &format!("{id}{INSIGHTS_SUFFIX}")).ok()?;
            let file = heeler_transcript::untrusted_file::open(&path).ok()?;
            file.take(INSIGHTS_BYTES_MAX).read_to_end(&mut text).ok()?;
            let text = String::from_utf8_lossy(&text).into_owned();
            (!text.trim().is_empty()).then_some(text)
        };
        alike.map(|(_, id)| id).find_map(|id| read(id))
    }

    /// Finds a session by its id or the beginning of it, if that is no other's.
    pub fn find(&self, id: &str) -> Result<SessionFileRef, SessionDirectoryError> {
        validate_id(id).map_err(SessionFileError::Name)?;
        if let Some(found) = self.find_exact(id) {
            return Ok(found);
        }
        let all = self.all_sessions()?;
        let fitting: Vec<&SessionFileRef> =
            all.values().filter(|it| it.id.starts_with(id)).collect();
        match fitting[..] {
            [found] => Ok(found.clone()),
            [] => {
                let near = did_you_mean(id, all.keys().map(String::as_str)).map(str::to_owned);
                Err(SessionDirectoryError::Unknown { id: id.to_owned(), near })
            }
            _ => {
                let some: Vec<&str> =
                    fitting.iter().take(NAMED_MAX).map(|it| it.id.as_str()).collect();
                let more = if fitting.len() > NAMED_MAX { ", …" } else { "" };
                let some = format!("{}{more}", some.join(", "));
                Err(SessionDirectoryError::Ambiguous { id: id.to_owned(), some })
            }
        }
    }

    /// Finds a session by its whole id. Ours hides the one that it was copied from.
    fn find_exact(&self, id: &str) -> Option<SessionFileRef> {
        let foreign = self.foreign.iter().map(|folder| (folder, true));
        let mut folders = std::iter::once((&self.own, false)).chain(foreign);
        let is_there =
            |folder: &Utf8Path| folder.join(format!("{id}{JSON}")).symlink_metadata().is_ok();
        let (folder, is_foreign) = folders.find(|(folder, _)| is_there(folder))?;
        Some(SessionFileRef { id: id.to_owned(), is_foreign, folder: folder.clone() })
    }

    /// Returns what is known of the session of ours of which a job is a turn; none if there is none
    /// among those that were written last. Whoever has it open may be writing it.
    pub fn state_for_job(
        &self,
        job: &JobId,
    ) -> Result<Option<ConversationState>, SessionDirectoryError> {
        let own = self.all_sessions()?.into_values().filter(|found| !found.is_foreign);
        let written = |found: &SessionFileRef| {
            let path = found.folder.join(format!("{}{JSON}", found.id));
            path.symlink_metadata().and_then(|meta| meta.modified()).ok()
        };
        let mut own: Vec<_> = own.map(|found| (written(&found), found)).collect();
        own.sort_by(|(one, _), (other, _)| other.cmp(one));
        let newest = own.iter().take(JOB_LOOKUP_SESSIONS_MAX);
        let mut abouts = newest.filter_map(|(_, found)| Some(read_metadata(found).1.ok()?.state));
        Ok(abouts.find(|about| about.turns.iter().any(|turn| turn.job.as_ref() == Some(job))))
    }

    /// Begins a session.
    pub fn create(
        &self,
        new: ConversationState,
        now: Timestamp,
    ) -> Result<SessionFile, SessionDirectoryError> {
        let (place, mut sheet, lock) = self.reserve_session(new, now)?;
        let bytes = sheet.write(Some(0), InlineTranscriptUpdate::Clear);
        let path = self.own.join(format!("{}{JSON}", place.id));
        write_new_file(self.disk.as_ref(), &path, &mut &bytes[..], u64::MAX)
            .map_err(SessionFileError::Disk)?;
        Ok(SessionFile::open(place, sheet, lock, Arc::clone(&self.disk), OldFormatPolicy::Migrate)?
            .session_file)
    }

    /// Begins a session that is none before it is saved: what is put into it first is whole by then.
    pub fn create_draft(
        &self,
        new: ConversationState,
        now: Timestamp,
    ) -> Result<SessionFile, SessionDirectoryError> {
        let (place, sheet, lock) = self.reserve_session(new, now)?;
        Ok(SessionFile::open(place, sheet, lock, Arc::clone(&self.disk), OldFormatPolicy::Migrate)?
            .session_file)
    }

    fn reserve_session(
        &self,
        new: ConversationState,
        now: Timestamp,
    ) -> Result<(SessionFileLocation, SessionMetadata, LockFile), SessionDirectoryError> {
        create_folder(self.disk.as_ref(), &self.own).map_err(SessionFileError::Disk)?;
        let about = ConversationState { created_at: new.created_at.or(Some(now)), ..new };
        for _ in 0..IDS_MAX {
            let (random, ..) = Uuid::new_v4().as_fields();
            let id = format!("chat-{random:08x}");
            // Files of a session whose JSON is gone are somebody's words too.
            if self.is_id_taken(&id) {
                continue;
            }
            let lock = self.lock(&id, now)?;
            let sheet = SessionMetadata::new(&id, about);
            return Ok((
                SessionFileLocation { id, own: self.own.clone(), foreign: None },
                sheet,
                lock,
            ));
        }
        let source = std::io::Error::other("no id is free");
        Err(SessionFileError::Disk(DiskError { action: "add to", path: self.own.clone(), source })
            .into())
    }

    /// Opens a session for reading and writing; a beginning of its id will do.
    pub fn open(
        &self,
        id: &str,
        now: Timestamp,
        older: OldFormatPolicy,
    ) -> Result<OpenedSessionFile, SessionDirectoryError> {
        let id = self.find(id)?.id;
        create_folder(self.disk.as_ref(), &self.own).map_err(SessionFileError::Disk)?;
        let lock = self.lock(&id, now)?;
        // Whoever had it open before us may have made it ours.
        let found = self.find(&id)?;
        let (path, read) = read_metadata(&found);
        let sheet = read.map_err(|reason| SessionDirectoryError::Faulty { path, reason })?;
        let foreign = found.is_foreign.then_some(found.folder);
        let place = SessionFileLocation { id, own: self.own.clone(), foreign };
        Ok(SessionFile::open(place, sheet, lock, Arc::clone(&self.disk), older)?)
    }

    fn lock(&self, id: &str, now: Timestamp) -> Result<LockFile, SessionDirectoryError> {
        let path = self.own.join(lock_name(id));
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
        let folders = self.foreign.iter().chain([&self.own]);
        folders.into_iter().any(|folder| {
            names.iter().any(|name| folder.join(format!("{id}{name}")).symlink_metadata().is_ok())
        })
    }

    /// Returns every session by its id. Ours hides the one that it was copied from.
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

    /// Returns the folders, and whether each is another program's; what comes later hides what comes before.
    fn folders(&self) -> impl Iterator<Item = (&Utf8PathBuf, bool)> {
        self.foreign.iter().rev().map(|it| (it, true)).chain([(&self.own, false)])
    }
}

/// Another program's folder that cannot be read keeps nobody from their own.
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

/// Hands over the name of everything in a folder, which need not be there. Temporary and hidden files,
/// which begin with a dot, are left out.
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

/// Returns the ids of the sessions in a folder.
fn session_ids(folder: &Utf8Path) -> Result<Vec<String>, DiskError> {
    let mut ids = Vec::new();
    for_each_file(folder, &mut |name, _| ids.extend(name.strip_suffix(JSON).map(str::to_owned)))?;
    Ok(ids)
}

/// Returns when each session of a folder was last written, by its own file and its transcript's.
fn modified_times(folder: &Utf8Path) -> Result<HashMap<String, Timestamp>, DiskError> {
    let (mut sessions, mut transcripts) = (HashMap::new(), HashMap::new());
    for_each_file(folder, &mut |name, entry| {
        if let Some(id) = name.strip_suffix(JSON) {
            sessions.insert(id.to_owned(), modified_at(entry));
        } else if let Some(id) = name.strip_suffix(TRANSCRIPT) {
            transcripts.insert(id.to_owned(), modified_at(entry));
        }
    })?;
    for (id, at) in &mut sessions {
        *at = transcripts.get(id).map_or(*at, |transcript| *transcript.max(at));
    }
    Ok(sessions)
}

fn modified_at(entry: &DirEntry) -> Timestamp {
    entry.metadata().map_or(Timestamp::UNIX_EPOCH, |meta| summary::modified_at(&meta))
}

/// Does something to each of many things, by as many threads as the machine has, up to a limit.
fn map_in_parallel<T: Sync, R: Send>(things: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = things.len().div_ceil(threads.min(THREADS_MAX)).max(1);
    std::thread::scope(|scope| {
        let act = &act;
        let shares = things
            .chunks(share)
            .map(|some| scope.spawn(move || some.iter().map(act).collect::<Vec<R>>()));
        let shares: Vec<_> = shares.collect();
        let done = shares
            .into_iter()
            .map(|share| share.join().unwrap_or_else(|panic| resume_unwind(panic)));
        done.flatten().collect()
    })
}

/// Reads a session's file; an error is the reason in words.
pub(crate) fn read_metadata(
    found: &SessionFileRef,
) -> (Utf8PathBuf, Result<SessionMetadata, String>) {
    let name = format!("{}{JSON}", found.id);
    let read = || {
        validate_id(&found.id).map_err(|error| error.to_string())?;
        let path = resolve_inside(&found.folder, &name).map_err(|error| error.to_string())?;
        let text = heeler_transcript::untrusted_file::read_text(&path)
            .map_err(|error| error.to_string())?;
        SessionMetadata::read(&found.id, &text)
    };
    (found.folder.join(&name), read())
}

fn lock_name(id: &str) -> String {
    format!("{id}.lock")
}
