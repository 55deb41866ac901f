//! The sessions that a person has: a folder of ours, and folders of other programs that are only read.
//!
//! A session is `<id>.json` with its transcripts beside it. One terminal has it open at a time: it holds
//! `<id>.lock` in our folder, also for a session of another program, which becomes ours with the first
//! thing that is written. Start at [`Shelf`].

mod glance;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
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

const JSON: &str = ".json";

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
        let mut listed: Vec<Listed> =
            self.all()?.into_values().map(|found| glance::glance(&self.own, &found)).collect();
        listed.sort_by(|a, b| (b.updated, &b.id).cmp(&(a.updated, &a.id)));
        Ok(listed)
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
            let mut sheet = Sheet::new(&id, about.clone());
            let bytes = sheet.write(0, Inline::Moved);
            let path = self.own.join(format!("{id}{JSON}"));
            place_file(self.disk.as_ref(), &path, &mut &bytes[..], u64::MAX)
                .map_err(BookError::Disk)?;
            let place = Place { id, own: self.own.clone(), foreign: None };
            let disk = Arc::clone(&self.disk);
            return Ok(Book::open(place, sheet, lock, disk, Older::Migrate)?.book);
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
        let names = [JSON, ".transcript.ndjson", ".workers"];
        let folders = self.foreign.iter().chain([&self.own]);
        folders.into_iter().any(|folder| {
            names.iter().any(|name| folder.join(format!("{id}{name}")).symlink_metadata().is_ok())
        })
    }

    /// Returns every session by its id. Ours hides the one that it was copied from.
    fn all(&self) -> Result<BTreeMap<String, Found>, ShelfError> {
        let mut all = BTreeMap::new();
        for (folder, is_foreign) in
            self.foreign.iter().rev().map(|it| (it, true)).chain([(&self.own, false)])
        {
            let ids = match ids_in(folder) {
                // Another program's folder that cannot be read keeps nobody from their own.
                Err(error) if is_foreign => {
                    tracing::warn!("{}", heeler_model::chain(&error));
                    continue;
                }
                result => result.map_err(BookError::Disk)?,
            };
            for id in ids {
                let found = Found { id: id.clone(), is_foreign, folder: folder.clone() };
                all.insert(id, found);
            }
        }
        Ok(all)
    }
}

/// Returns the ids of the sessions in a folder, which need not be there.
fn ids_in(folder: &Utf8Path) -> Result<Vec<String>, DiskError> {
    let failed = |source| DiskError { action: "list", path: folder.to_owned(), source };
    let names = match std::fs::read_dir(folder) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut ids = Vec::new();
    for entry in names {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_string_lossy();
        // Temporary and hidden files begin with a dot.
        ids.extend(name.strip_suffix(JSON).filter(|id| !id.starts_with('.')).map(str::to_owned));
    }
    Ok(ids)
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
