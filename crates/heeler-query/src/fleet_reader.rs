//! Readers of the state, and what is known around it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::{
    CommandReply, DaemonFile, DaemonMode, DaemonSetup, FleetEnvironment, IdempotencyKey,
};
use heeler_model::JobHead;
use heeler_model::config::{AgentLookupError, LoadedConfig};
use heeler_store::{StateDir, StoreReader};
use heeler_transcript::LockFile;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::charts::CachedCharts;
use crate::error::QueryError;

/// How many readers are kept open; more are opened when they are needed and closed after that.
pub(crate) const IDLE_READERS_MAX: usize = 8;

/// What is known of a fleet beside its state.
#[derive(Debug, Clone)]
pub struct QueryContext {
    /// The config file.
    pub config: Option<Utf8PathBuf>,
    /// What it says; `None` where there is none, or a faulty one.
    pub loaded: Option<Arc<LoadedConfig>>,
    /// The environment, with what `.env` adds.
    pub env: BTreeMap<String, String>,
    /// The user's own folder.
    pub home: Option<Utf8PathBuf>,
    /// The fleet's time zone: its days are those that are counted.
    pub zone: TimeZone,
}

impl QueryContext {
    /// Returns what a daemon knows.
    pub fn from_setup(setup: &DaemonSetup) -> QueryContext {
        QueryContext {
            config: Some(setup.config.clone()),
            loaded: Some(Arc::clone(&setup.loaded)),
            env: setup.env.clone(),
            home: Some(setup.home.clone()),
            zone: setup.zone.clone(),
        }
    }

    /// Returns what those who only read need of it.
    pub fn read_context(&self) -> Option<FleetEnvironment<'_>> {
        let home = self.home.as_deref()?;
        Some(FleetEnvironment { loaded: self.loaded.as_deref(), env: &self.env, home })
    }

    /// Lists what nobody may be shown; also where the user's folder is not known.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let home = Utf8Path::new("");
        FleetEnvironment { loaded: self.loaded.as_deref(), env: &self.env, home }.secrets()
    }

    /// Returns the fleet's day.
    pub fn today(&self, now: Timestamp) -> Date {
        now.to_zoned(self.zone.clone()).date()
    }

    /// Returns the config.
    pub(crate) fn config(&self) -> Result<Arc<LoadedConfig>, QueryError> {
        self.loaded.clone().ok_or_else(|| QueryError::Refused {
            message: "there is no config, or it has faults".to_owned(),
            hint: Some("heeler config validate".to_owned()),
        })
    }
}

/// Who writes a fleet's state.
#[derive(Debug, Clone, Default)]
pub struct StateLockOwner {
    /// Who, in words.
    pub writer: Option<String>,
    /// The daemon, if it is one.
    pub daemon: Option<DaemonFile>,
}

impl StateLockOwner {
    /// Says whether schedules start by themselves.
    pub fn has_permanent_daemon(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.mode == DaemonMode::Permanent)
    }
}

/// Says what is known now; it may change between two calls.
type QueryContextSource = Arc<dyn Fn() -> QueryContext + Send + Sync>;

/// Everything that can be read of a fleet. Cheap to clone.
#[derive(Clone)]
pub struct FleetReader {
    dir: StateDir,
    source: QueryContextSource,
    idle_readers: Arc<Mutex<Vec<StoreReader>>>,
    /// What charts showed last.
    pub(crate) charts: Arc<Mutex<Option<CachedCharts>>>,
}

impl FleetReader {
    /// Reads a state directory; `source` says what is known beside it.
    pub fn new(
        dir: StateDir,
        source: impl Fn() -> QueryContext + Send + Sync + 'static,
    ) -> FleetReader {
        FleetReader {
            dir,
            source: Arc::new(source),
            idle_readers: Arc::default(),
            charts: Arc::default(),
        }
    }

    /// Returns the state directory.
    pub fn dir(&self) -> &StateDir {
        &self.dir
    }

    /// Returns what is known beside the state.
    pub fn context(&self) -> QueryContext {
        (self.source)()
    }

    /// Returns a reader of the database, for one question.
    pub fn reader(&self) -> Result<PooledReader<'_>, QueryError> {
        let kept = self.idle_readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let reader = match kept {
            Some(reader) => reader,
            None => StoreReader::open(&self.dir)?,
        };
        Ok(PooledReader { reader: Some(reader), idle: &self.idle_readers })
    }

    /// Returns what was answered to a request, if it was made before; an error if its name is that of
    /// another request.
    pub fn previous_answer(
        &self,
        key: &IdempotencyKey,
    ) -> Result<Option<CommandReply>, QueryError> {
        let reader = self.reader()?;
        let known = heeler_engine::recorded_reply(&reader, key)?;
        known.transpose().map_err(QueryError::from)
    }

    /// Takes a reader that somebody has opened.
    pub fn with_reader(self, reader: StoreReader) -> FleetReader {
        self.idle_readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
        self
    }

    /// Says who writes the state, if anybody does.
    pub fn lock_owner(&self) -> Result<StateLockOwner, QueryError> {
        let Some(held) = LockFile::probe(&self.dir.lock())? else {
            return Ok(StateLockOwner::default());
        };
        let pid = held.holder.as_ref().map(|holder| holder.pid);
        let writer = held.holder.map_or("another process".to_owned(), |it| it.to_string());
        // A file of a daemon that has died says nothing.
        let file = DaemonFile::read(&self.dir).ok().flatten();
        Ok(StateLockOwner {
            writer: Some(writer),
            daemon: file.filter(|file| Some(file.pid) == pid),
        })
    }

    /// Finds an agent of the config or of the record, by its last name too while that is unique.
    pub(crate) fn resolve_agent_name(
        &self,
        reader: &StoreReader,
        name: &str,
    ) -> Result<String, QueryError> {
        let mut names = reader.agent_names()?;
        let loaded = self.context().loaded;
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
    pub fn job_transcript_path(
        &self,
        reader: &StoreReader,
        head: &JobHead,
    ) -> Result<Option<Utf8PathBuf>, QueryError> {
        let own = self.dir.job_transcript(&head.id);
        if is_file(&own) {
            return Ok(Some(own));
        }
        let session = match &head.session_id {
            Some(id) => reader.session_by_agent_id(id)?,
            None => None,
        };
        let home = self.context().home;
        let log = session.and_then(|it| self.dir.session_log_path(home.as_deref(), &it));
        Ok(log.filter(|log| is_file(log)).or_else(|| (!head.status.is_final()).then_some(own)))
    }
}

/// Says that an agent of the config is not known.
pub(crate) fn unknown_agent(error: &AgentLookupError) -> QueryError {
    match error {
        AgentLookupError::Unknown { .. } => {
            QueryError::not_found(error.to_string(), "heeler agent list")
        }
        AgentLookupError::Ambiguous { .. } => QueryError::usage(error.to_string()),
    }
}

fn is_file(path: &Utf8Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file())
}

impl fmt::Debug for FleetReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// A reader that goes back when it is dropped.
#[derive(Debug)]
pub struct PooledReader<'r> {
    reader: Option<StoreReader>,
    idle: &'r Mutex<Vec<StoreReader>>,
}

impl Deref for PooledReader<'_> {
    type Target = StoreReader;

    fn deref(&self) -> &StoreReader {
        self.reader.as_ref().expect("it is only taken when dropped")
    }
}

impl Drop for PooledReader<'_> {
    fn drop(&mut self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_READERS_MAX {
            idle.extend(self.reader.take());
        }
    }
}
