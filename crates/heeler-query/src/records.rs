//! Readers of the state, and what is known around it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use camino::Utf8PathBuf;
use heeler_engine::{Around, Setup};
use heeler_model::config::Loaded;
use heeler_store::{Reader, StateDir};

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
}

impl Known {
    /// Returns what a daemon knows.
    pub fn of_setup(setup: &Setup) -> Known {
        Known {
            config: Some(setup.config.clone()),
            loaded: Some(Arc::clone(&setup.loaded)),
            env: setup.env.clone(),
            home: Some(setup.home.clone()),
        }
    }

    /// Returns what those who only read need of it.
    pub fn around(&self) -> Option<Around<'_>> {
        let home = self.home.as_deref()?;
        Some(Around { loaded: self.loaded.as_deref(), env: &self.env, home })
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
}

impl Records {
    /// Reads a state directory; `source` says what is known beside it.
    pub fn new(dir: StateDir, source: impl Fn() -> Known + Send + Sync + 'static) -> Records {
        Records { dir, source: Arc::new(source), idle: Arc::default() }
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
