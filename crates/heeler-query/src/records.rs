//! Readers of the state, and what is known around it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::{Answer, Around, DaemonFile, DaemonMode, RequestKey, Setup};
use heeler_model::JobHead;
use heeler_model::config::{AgentLookup, Loaded};
use heeler_store::{Reader, StateDir};
use heeler_transcript::LockFile;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::charts::Kept;
use crate::error::QueryError;

/// How many readers are kept open; more are opened when they are needed and closed after that.
pub(crate) const READERS_KEPT: usize = 8;

/// What is known of a fleet beside its state.
#[derive(Debug, Clone)]
pub struct Known {
    /// The config file.
    pub config: Option<Utf8PathBuf>,
    /// What it says; `None` where there is none, or a faulty one.
    pub loaded: Option<Arc<Loaded>>,
    /// The environment, with what `.env` adds.
    pub env: BTreeMap<String, String>,
    /// The user's own folder.
    pub home: Option<Utf8PathBuf>,
    /// The fleet's time zone: its days are those that are counted.
    pub zone: TimeZone,
}

impl Known {
    /// Returns what a daemon knows.
    pub fn of_setup(setup: &Setup) -> Known {
        Known {
            config: Some(setup.config.clone()),
            loaded: Some(Arc::clone(&setup.loaded)),
            env: setup.env.clone(),
            home: Some(setup.home.clone()),
            zone: setup.zone.clone(),
        }
    }

    /// Returns what those who only read need of it.
    pub fn around(&self) -> Option<Around<'_>> {
        let home = self.home.as_deref()?;
        Some(Around { loaded: self.loaded.as_deref(), env: &self.env, home })
    }

    /// Lists what nobody may be shown; also where the user's folder is not known.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let home = Utf8Path::new("");
        Around { loaded: self.loaded.as_deref(), env: &self.env, home }.secrets()
    }

    /// Returns the fleet's day.
    pub fn today(&self, now: Timestamp) -> Date {
        now.to_zoned(self.zone.clone()).date()
    }

    /// Returns the config.
    pub(crate) fn config(&self) -> Result<Arc<Loaded>, QueryError> {
        self.loaded.clone().ok_or_else(|| QueryError::Refused {
            message: "there is no config, or it has faults".to_owned(),
            hint: Some("heeler config validate".to_owned()),
        })
    }
}

/// Who writes a fleet's state.
#[derive(Debug, Clone, Default)]
pub struct Keeper {
    /// Who, in words.
    pub writer: Option<String>,
    /// The daemon, if it is one.
    pub daemon: Option<DaemonFile>,
}

impl Keeper {
    /// Says whether schedules start by themselves.
    pub fn is_permanent(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.mode == DaemonMode::Permanent)
    }
}

/// Says what is known now; it may change between two calls.
type Source = Arc<dyn Fn() -> Known + Send + Sync>;

/// Everything that can be read of a fleet. Cheap to clone.
#[derive(Clone)]
pub struct Records {
    dir: StateDir,
    source: Source,
    idle: Arc<Mutex<Vec<Reader>>>,
    /// What charts showed last.
    pub(crate) charts: Arc<Mutex<Option<Kept>>>,
}

impl Records {
    /// Reads a state directory; `source` says what is known beside it.
    pub fn new(dir: StateDir, source: impl Fn() -> Known + Send + Sync + 'static) -> Records {
        Records { dir, source: Arc::new(source), idle: Arc::default(), charts: Arc::default() }
    }

    /// Returns the state directory.
    pub fn dir(&self) -> &StateDir {
        &self.dir
    }

    /// Returns what is known beside the state.
    pub fn known(&self) -> Known {
        (self.source)()
    }

    /// Returns a reader of the database, for one question.
    pub fn reader(&self) -> Result<Borrowed<'_>, QueryError> {
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let reader = match kept {
            Some(reader) => reader,
            None => Reader::open(&self.dir)?,
        };
        Ok(Borrowed { reader: Some(reader), idle: &self.idle })
    }

    /// Returns what was answered to a request, if it was made before; an error if its name is that of
    /// another request.
    pub fn answered(&self, key: &RequestKey) -> Result<Option<Answer>, QueryError> {
        let reader = self.reader()?;
        let known = heeler_engine::answered(&reader, key)?;
        known.transpose().map_err(QueryError::from)
    }

    /// Takes a reader that somebody has opened.
    pub fn with_reader(self, reader: Reader) -> Records {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
        self
    }

    /// Says who writes the state, if anybody does.
    pub fn keeper(&self) -> Result<Keeper, QueryError> {
        let Some(held) = LockFile::probe(&self.dir.lock())? else { return Ok(Keeper::default()) };
        let pid = held.holder.as_ref().map(|holder| holder.pid);
        let writer = held.holder.map_or("another process".to_owned(), |it| it.to_string());
        // A file of a daemon that has died says nothing.
        let file = DaemonFile::read(&self.dir).ok().flatten();
        Ok(Keeper { writer: Some(writer), daemon: file.filter(|file| Some(file.pid) == pid) })
    }

    /// Finds an agent of the config or of the record, by its last name too while that is unique.
    pub(crate) fn known_agent(&self, reader: &Reader, name: &str) -> Result<String, QueryError> {
        let mut names = reader.agent_names()?;
        let loaded = self.known().loaded;
        names.extend(loaded.iter().flat_map(|it| &it.agents).map(|agent| agent.name.to_string()));
        if names.iter().any(|known| known == name) {
            return Ok(name.to_owned());
        }
        names.retain(|known| known.rsplit('.').next() == Some(name));
        names.sort();
        names.dedup();
        match names.as_slice() {
            [one] => Ok(one.clone()),
            [] => {
                let message = format!("there is no agent `{name}`");
                Err(QueryError::not_found(message, "heeler status lists them"))
            }
            several => {
                Err(QueryError::usage(format!("`{name}` may be any of: {}", several.join(", "))))
            }
        }
    }

    /// Returns where a job's rows are: in its own transcript, else in its session's.
    pub fn log_of(
        &self,
        reader: &Reader,
        head: &JobHead,
    ) -> Result<Option<Utf8PathBuf>, QueryError> {
        let own = self.dir.log_of(&head.id);
        if is_file(&own) {
            return Ok(Some(own));
        }
        let session = match &head.session_id {
            Some(id) => reader.session_by_agent_id(id)?,
            None => None,
        };
        let home = self.known().home;
        let log = session.and_then(|it| self.dir.session_log_path(home.as_deref(), &it));
        Ok(log.filter(|log| is_file(log)).or_else(|| (!head.status.is_final()).then_some(own)))
    }
}

/// Says that an agent of the config is not known.
pub(crate) fn unknown_agent(error: &AgentLookup) -> QueryError {
    match error {
        AgentLookup::Unknown { .. } => {
            QueryError::not_found(error.to_string(), "heeler agent list")
        }
        AgentLookup::Ambiguous { .. } => QueryError::usage(error.to_string()),
    }
}

fn is_file(path: &Utf8Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file())
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// A reader that goes back when it is dropped.
#[derive(Debug)]
pub struct Borrowed<'r> {
    reader: Option<Reader>,
    idle: &'r Mutex<Vec<Reader>>,
}

impl Deref for Borrowed<'_> {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        self.reader.as_ref().expect("it is only taken when dropped")
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < READERS_KEPT {
            idle.extend(self.reader.take());
        }
    }
}
