//! The sessions that a person has: a folder of ours, and folders of other programs that are only read.
//!
//! A session is `<id>.json` with its transcripts beside it. One terminal has it open at a time: it holds
//! `<id>.lock` in our folder, also for a session of another program, which becomes ours with the first
//! thing that is written. Start at [`Shelf`].

mod glance;
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
    Disk, DiskError, Holder, LockError, LockFile, OsDisk, checked_id, create_folder, place_file,
    resolve_inside,
};
use jiff::Timestamp;
use thiserror::Error;
use uuid::Uuid;

use crate::about::About;
use crate::book::{Book, BookError, Place};
use crate::sheet::{Inline, Sheet};

/// How long a lock is waited for: whoever lists sessions holds each for an instant.
const LOCK_WAIT: Duration = Duration::from_millis(200);
/// How many sessions are named where a beginning fits several.
const NAMED_MAX: usize = 5;
/// In how many sessions, those that were written last, the one of a job is looked for.
const OF_JOB_MAX: usize = 100;
/// How many ids are tried for a new session.
const IDS_MAX: usize = 100;

/// How many threads look at sessions at most.
const THREADS_MAX: usize = 8;
/// The most that is told of what an earlier session has taught.
const LEARNED_BYTES_MAX: u64 = 16 * 1024;
/// In how many earlier sessions it is looked for.
const LEARNED_FROM_MAX: usize = 200;

const JSON: &str = ".json";
const TRANSCRIPT: &str = ".transcript.ndjson";
/// What the file ends in that has what a session has taught.
pub(crate) const INSIGHTS: &str = ".insights.md";

/// Why a session was not found, made or opened.
#[derive(Debug, Error)]
pub enum ShelfError {
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
    Book(#[from] BookError),
}

/// The sessions that a person has.
#[derive(Debug, Clone)]
pub struct Shelf {
    /// Ours.
    own: Utf8PathBuf,
    /// Those of other programs.
    foreign: Vec<Utf8PathBuf>,
    disk: Arc<dyn Disk>,
}

/// A session in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
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
    pub first: Option<String>,
    /// What was said last.
    pub last: Option<String>,
    /// It is another program's, so far.
    pub is_foreign: bool,
    /// Who has it open.
    pub is_open_by: Option<String>,
    /// Why it cannot be opened.
    pub fault: Option<String>,
}

impl Listed {
    /// Says how many entries it has.
    pub fn counted(&self) -> String {
        match self.messages {
            None => "… entries".to_owned(),
            Some(1) => "1 entry".to_owned(),
            Some(count) => format!("{count} entries"),
        }
    }
}

/// Where a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its whole id.
    pub id: String,
    /// It is another program's, so far.
    pub is_foreign: bool,
    /// The folder that has it.
    pub(crate) folder: Utf8PathBuf,
}

/// A session that nobody has looked into yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Where it is.
    pub found: Found,
    /// When its files were last written.
    pub updated: Timestamp,
}

/// What to do with a session of an older form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Older {
    /// It is raised to the newest form when it is written.
    Migrate,
    /// It keeps its form, for older programs that are to go on with it (`AGENTS_FLEET_NO_MIGRATE=1`).
    Keep,
}

/// A session that was opened.
#[derive(Debug)]
pub struct Opened {
    /// The session.
    pub book: Book,
    /// What had to be skipped or repaired.
    pub warnings: Vec<String>,
}

impl Shelf {
    /// Makes a shelf of our folder, which need not be there yet, and folders that are only read.
    pub fn new(own: Utf8PathBuf, foreign: Vec<Utf8PathBuf>) -> Shelf {
        Shelf { own, foreign, disk: Arc::new(OsDisk) }
    }

    /// Writes to another disk.
    #[cfg(test)]
    pub(crate) fn on(self, disk: Arc<dyn Disk>) -> Shelf {
        Shelf { disk, ..self }
    }

    /// Lists all sessions, the last written first. One that cannot be opened is listed with its fault.
    pub fn list(&self) -> Result<Vec<Listed>, ShelfError> {
        let named = self.names()?;
        let mut listed = at_once(&named, |named| self.glance(named));
        listed.sort_by(|a, b| (b.updated, &b.id).cmp(&(a.updated, &a.id)));
        Ok(listed)
    }

    /// Names all sessions, the last written first, without looking into any: [`Shelf::glance`] does.
    pub fn names(&self) -> Result<Vec<Named>, ShelfError> {
        let mut times: BTreeMap<String, Named> = BTreeMap::new();
        for (folder, is_foreign) in self.folders() {
            let seen = or_none(is_foreign, times_in(folder))?;
            times.extend(seen.into_iter().map(|(id, updated)| {
                let found = Found { id: id.clone(), is_foreign, folder: folder.clone() };
                (id, Named { found, updated })
            }));
        }
        let mut named: Vec<Named> = times.into_values().collect();
        named.sort_by(|a, b| (b.updated, &b.found.id).cmp(&(a.updated, &a.found.id)));
        Ok(named)
    }

    /// Looks at a session: at the ends of its files, and at little more.
    pub fn glance(&self, named: &Named) -> Listed {
        glance::glance(&self.own, named)
    }

    /// Returns what the last session with an agent in a folder has taught.
    pub fn learned(&self, agent: Option<&str>, folder: Option<&Utf8Path>) -> Option<String> {
        let mut files: Vec<(Timestamp, String)> = Vec::new();
        let each = &mut |name: &str, entry: &DirEntry| {
            let id = name.strip_suffix(INSIGHTS).map(str::to_owned);
            files.extend(id.map(|id| (written(entry), id)));
        };
        each_name(&self.own, each).ok()?;
        files.sort_unstable_by(|a, b| b.cmp(a));
        let is_alike = |id: &str| {
            let (id, folder_of) = (id.to_owned(), self.own.clone());
            let found = Found { id, is_foreign: false, folder: folder_of };
            let sheet = read_sheet(&found).1.ok();
            sheet.is_some_and(|sheet| {
                let about = &sheet.about;
                about.agent.as_deref() == agent && about.folder.as_deref() == folder
            })
        };
        let alike = files.iter().take(LEARNED_FROM_MAX).filter(|(_, id)| is_alike(id));
        let read = |id: &str| {
            let mut text = Vec::new();
            let path = resolve_inside(&self.own, &format!("{id}{INSIGHTS}")).ok()?;
            let file = heeler_transcript::plain::open(&path).ok()?;
            file.take(LEARNED_BYTES_MAX).read_to_end(&mut text).ok()?;
            let text = String::from_utf8_lossy(&text).into_owned();
            (!text.trim().is_empty()).then_some(text)
        };
        alike.map(|(_, id)| id).find_map(|id| read(id))
    }

    /// Finds a session by its id or the beginning of it, if that is no other's.
    pub fn find(&self, id: &str) -> Result<Found, ShelfError> {
        checked_id(id).map_err(BookError::Name)?;
        if let Some(found) = self.exactly(id) {
            return Ok(found);
        }
        let all = self.all()?;
        let fitting: Vec<&Found> = all.values().filter(|it| it.id.starts_with(id)).collect();
        match fitting[..] {
            [found] => Ok(found.clone()),
            [] => {
                let near = did_you_mean(id, all.keys().map(String::as_str)).map(str::to_owned);
                Err(ShelfError::Unknown { id: id.to_owned(), near })
            }
            _ => {
                let some: Vec<&str> =
                    fitting.iter().take(NAMED_MAX).map(|it| it.id.as_str()).collect();
                let more = if fitting.len() > NAMED_MAX { ", …" } else { "" };
                let some = format!("{}{more}", some.join(", "));
                Err(ShelfError::Ambiguous { id: id.to_owned(), some })
            }
        }
    }

    /// Finds a session by its whole id. Ours hides the one that it was copied from.
    fn exactly(&self, id: &str) -> Option<Found> {
        let foreign = self.foreign.iter().map(|folder| (folder, true));
        let mut folders = std::iter::once((&self.own, false)).chain(foreign);
        let is_there =
            |folder: &Utf8Path| folder.join(format!("{id}{JSON}")).symlink_metadata().is_ok();
        let (folder, is_foreign) = folders.find(|(folder, _)| is_there(folder))?;
        Some(Found { id: id.to_owned(), is_foreign, folder: folder.clone() })
    }

    /// Returns what is known of the session of ours of which a job is a turn; none if there is none
    /// among those that were written last. Whoever has it open may be writing it.
    pub fn of_job(&self, job: &JobId) -> Result<Option<About>, ShelfError> {
        let own = self.all()?.into_values().filter(|found| !found.is_foreign);
        let written = |found: &Found| {
            let path = found.folder.join(format!("{}{JSON}", found.id));
            path.symlink_metadata().and_then(|meta| meta.modified()).ok()
        };
        let mut own: Vec<_> = own.map(|found| (written(&found), found)).collect();
        own.sort_by(|(one, _), (other, _)| other.cmp(one));
        let newest = own.iter().take(OF_JOB_MAX);
        let mut abouts = newest.filter_map(|(_, found)| Some(read_sheet(found).1.ok()?.about));
        Ok(abouts.find(|about| about.turns.iter().any(|turn| turn.job.as_ref() == Some(job))))
    }

    /// Begins a session.
    pub fn create(&self, new: About, now: Timestamp) -> Result<Book, ShelfError> {
        let (place, mut sheet, lock) = self.begin(new, now)?;
        let bytes = sheet.write(Some(0), Inline::Moved);
        let path = self.own.join(format!("{}{JSON}", place.id));
        place_file(self.disk.as_ref(), &path, &mut &bytes[..], u64::MAX)
            .map_err(BookError::Disk)?;
        Ok(Book::open(place, sheet, lock, Arc::clone(&self.disk), Older::Migrate)?.book)
    }

    /// Begins a session that is none before it is saved: what is put into it first is whole by then.
    pub fn draft(&self, new: About, now: Timestamp) -> Result<Book, ShelfError> {
        let (place, sheet, lock) = self.begin(new, now)?;
        Ok(Book::open(place, sheet, lock, Arc::clone(&self.disk), Older::Migrate)?.book)
    }

    fn begin(&self, new: About, now: Timestamp) -> Result<(Place, Sheet, LockFile), ShelfError> {
        create_folder(self.disk.as_ref(), &self.own).map_err(BookError::Disk)?;
        let about = About { created_at: new.created_at.or(Some(now)), ..new };
        for _ in 0..IDS_MAX {
            let (random, ..) = Uuid::new_v4().as_fields();
            let id = format!("chat-{random:08x}");
            // Files of a session whose JSON is gone are somebody's words too.
            if self.is_taken(&id) {
                continue;
            }
            let lock = self.lock(&id, now)?;
            let sheet = Sheet::new(&id, about);
            return Ok((Place { id, own: self.own.clone(), foreign: None }, sheet, lock));
        }
        let source = std::io::Error::other("no id is free");
        Err(BookError::Disk(DiskError { action: "add to", path: self.own.clone(), source }).into())
    }

    /// Opens a session for reading and writing; a beginning of its id will do.
    pub fn open(&self, id: &str, now: Timestamp, older: Older) -> Result<Opened, ShelfError> {
        let id = self.find(id)?.id;
        create_folder(self.disk.as_ref(), &self.own).map_err(BookError::Disk)?;
        let lock = self.lock(&id, now)?;
        // Whoever had it open before us may have made it ours.
        let found = self.find(&id)?;
        let (path, read) = read_sheet(&found);
        let sheet = read.map_err(|reason| ShelfError::Faulty { path, reason })?;
        let foreign = found.is_foreign.then_some(found.folder);
        let place = Place { id, own: self.own.clone(), foreign };
        Ok(Book::open(place, sheet, lock, Arc::clone(&self.disk), older)?)
    }

    fn lock(&self, id: &str, now: Timestamp) -> Result<LockFile, ShelfError> {
        let path = self.own.join(lock_name(id));
        let acquired = LockFile::acquire(&path, &Holder::this_process("chat", now), LOCK_WAIT);
        acquired.map_err(|error| match error {
            LockError::Held { holder, .. } => {
                let holder = holder.map_or("another process".to_owned(), |it| it.to_string());
                ShelfError::Busy { id: id.to_owned(), holder }
            }
            other => ShelfError::Lock(other),
        })
    }

    fn is_taken(&self, id: &str) -> bool {
        let names = [JSON, TRANSCRIPT, ".workers"];
        let folders = self.foreign.iter().chain([&self.own]);
        folders.into_iter().any(|folder| {
            names.iter().any(|name| folder.join(format!("{id}{name}")).symlink_metadata().is_ok())
        })
    }

    /// Returns every session by its id. Ours hides the one that it was copied from.
    fn all(&self) -> Result<BTreeMap<String, Found>, ShelfError> {
        let mut all = BTreeMap::new();
        for (folder, is_foreign) in self.folders() {
            for id in or_none(is_foreign, ids_in(folder))? {
                let found = Found { id: id.clone(), is_foreign, folder: folder.clone() };
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
fn or_none<T: Default>(is_foreign: bool, read: Result<T, DiskError>) -> Result<T, ShelfError> {
    match read {
        Err(error) if is_foreign => {
            tracing::warn!("{}", heeler_model::chain(&error));
            Ok(T::default())
        }
        result => Ok(result.map_err(BookError::Disk)?),
    }
}

/// Hands over the name of everything in a folder, which need not be there. Temporary and hidden files,
/// which begin with a dot, are left out.
fn each_name(folder: &Utf8Path, each: &mut dyn FnMut(&str, &DirEntry)) -> Result<(), DiskError> {
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
fn ids_in(folder: &Utf8Path) -> Result<Vec<String>, DiskError> {
    let mut ids = Vec::new();
    each_name(folder, &mut |name, _| ids.extend(name.strip_suffix(JSON).map(str::to_owned)))?;
    Ok(ids)
}

/// Returns when each session of a folder was last written, by its own file and its transcript's.
fn times_in(folder: &Utf8Path) -> Result<HashMap<String, Timestamp>, DiskError> {
    let (mut sessions, mut transcripts) = (HashMap::new(), HashMap::new());
    each_name(folder, &mut |name, entry| {
        if let Some(id) = name.strip_suffix(JSON) {
            sessions.insert(id.to_owned(), written(entry));
        } else if let Some(id) = name.strip_suffix(TRANSCRIPT) {
            transcripts.insert(id.to_owned(), written(entry));
        }
    })?;
    for (id, at) in &mut sessions {
        *at = transcripts.get(id).map_or(*at, |transcript| *transcript.max(at));
    }
    Ok(sessions)
}

fn written(entry: &DirEntry) -> Timestamp {
    entry.metadata().map_or(Timestamp::UNIX_EPOCH, |meta| glance::written(&meta))
}

/// Does something to each of many things, by as many threads as the machine has, up to a limit.
fn at_once<T: Sync, R: Send>(things: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
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
pub(crate) fn read_sheet(found: &Found) -> (Utf8PathBuf, Result<Sheet, String>) {
    let name = format!("{}{JSON}", found.id);
    let read = || {
        checked_id(&found.id).map_err(|error| error.to_string())?;
        let path = resolve_inside(&found.folder, &name).map_err(|error| error.to_string())?;
        let text = heeler_transcript::plain::read_text(&path).map_err(|error| error.to_string())?;
        Sheet::read(&found.id, &text)
    };
    (found.folder.join(&name), read())
}

fn lock_name(id: &str) -> String {
    format!("{id}.lock")
}
