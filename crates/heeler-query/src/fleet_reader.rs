//! Read access to the state of a fleet, together with its config and environment. Start at
//! [`FleetReader`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{AgentLookupError, LoadedConfig};
use heeler_model::JobHead;
use heeler_model::daemon_status::DaemonMode;
use heeler_store::{DaemonFile, FleetEnvironment, PooledReader, ReaderPool, StateDir, StoreReader};
use heeler_transcript::LockFile;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::charts::CachedCharts;
use crate::error::QueryError;

/// Maximum number of idle readers kept open; additional ones are opened on demand and closed after
/// use.
pub(crate) const IDLE_READERS_MAX: usize = 8;

/// Facts about a fleet that are not in its state directory.
#[derive(Debug, Clone)]
pub struct QueryContext {
    /// Path of the config file.
    pub config: Option<Utf8PathBuf>,
    /// Loaded config; `None` if it does not exist or has errors.
    pub loaded: Option<Arc<LoadedConfig>>,
    /// Environment variables, including those of `.env`.
    pub env: BTreeMap<String, String>,
    /// The user's home directory.
    pub home: Option<Utf8PathBuf>,
    /// Time zone of the fleet, which defines its days.
    pub zone: TimeZone,
}

impl QueryContext {
    /// Returns the part of the context that reads of native sessions need.
    pub fn read_context(&self) -> Option<FleetEnvironment<'_>> {
        let home = self.home.as_deref()?;
        Some(FleetEnvironment { loaded: self.loaded.as_deref(), env: &self.env, home })
    }

    /// Returns the secrets that must not be shown, even if the home directory is unknown.
    pub(crate) fn secrets(&self) -> Vec<String> {
        // Secrets do not depend on the home directory, which only locates native sessions.
        let home = Utf8Path::new("");
        FleetEnvironment { loaded: self.loaded.as_deref(), env: &self.env, home }.secrets()
    }

    /// Returns the current day in the fleet's time zone.
    pub fn today(&self, now: Timestamp) -> Date {
        now.to_zoned(self.zone.clone()).date()
    }

    /// Returns the config, or an error if it is not loaded.
    pub(crate) fn config(&self) -> Result<Arc<LoadedConfig>, QueryError> {
        self.loaded.clone().ok_or_else(|| QueryError::Refused {
            message: "there is no config, or it has faults".to_owned(),
            hint: Some("heeler config validate".to_owned()),
        })
    }
}

/// Process that holds the state lock.
#[derive(Debug, Clone, Default)]
pub struct StateLockOwner {
    /// Description of the process.
    pub writer: Option<String>,
    /// The daemon, if the process is one.
    pub daemon: Option<DaemonFile>,
}

impl StateLockOwner {
    /// Returns true if a daemon starts the schedules.
    pub fn has_permanent_daemon(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.mode == DaemonMode::Permanent)
    }
}

/// Function that returns the current context, which may change between calls.
type QueryContextSource = Arc<dyn Fn() -> QueryContext + Send + Sync>;

/// Read access to a fleet. Cheap to clone.
#[derive(Clone)]
pub struct FleetReader {
    dir: StateDir,
    source: QueryContextSource,
    readers: Arc<ReaderPool>,
    /// Most recently computed charts.
    pub(crate) charts: Arc<Mutex<Option<CachedCharts>>>,
}

impl FleetReader {
    /// Creates a reader of a state directory; `source` returns the context.
    pub fn new(
        dir: StateDir,
        source: impl Fn() -> QueryContext + Send + Sync + 'static,
    ) -> FleetReader {
        FleetReader {
            readers: Arc::new(ReaderPool::new(dir.clone(), IDLE_READERS_MAX)),
            dir,
            source: Arc::new(source),
            charts: Arc::default(),
        }
    }

    pub fn dir(&self) -> &StateDir {
        &self.dir
    }

    pub fn context(&self) -> QueryContext {
        (self.source)()
    }

    /// Returns a database reader for one query.
    pub fn reader(&self) -> Result<PooledReader<'_>, QueryError> {
        Ok(self.readers.reader()?)
    }

    /// Adds a reader that is already open to the pool.
    pub fn with_reader(self, reader: StoreReader) -> FleetReader {
        self.readers.add(reader);
        self
    }

    /// Returns the process that holds the state lock, if any.
    pub fn lock_owner(&self) -> Result<StateLockOwner, QueryError> {
        let Some(held) = LockFile::probe(&self.dir.lock())? else {
            return Ok(StateLockOwner::default());
        };
        let pid = held.holder.as_ref().map(|holder| holder.pid);
        let writer = held.holder.map_or("another process".to_owned(), |it| it.to_string());
        // The file of a dead daemon is ignored.
        let file = DaemonFile::read(&self.dir).ok().flatten();
        Ok(StateLockOwner {
            writer: Some(writer),
            // Another process may hold the lock: an import, for example.
            daemon: file.filter(|file| Some(file.pid) == pid),
        })
    }

    /// Resolves the name of a configured or recorded agent: its qualified name, or its own name if
    /// that is unique.
    pub(crate) fn resolve_agent_name(
        &self,
        reader: &StoreReader,
        name: &str,
    ) -> Result<String, QueryError> {
        let mut names = reader.agent_names()?;
        let loaded = self.context().loaded;
        names.extend(loaded.iter().flat_map(|it| &it.agents).map(|agent| agent.name.to_string()));
        // A complete name wins over the last part of another one.
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

    /// Returns the path of the transcript that holds a job's rows: its own, else its session's.
    pub fn job_transcript_path(
        &self,
        reader: &StoreReader,
        head: &JobHead,
    ) -> Result<Option<Utf8PathBuf>, QueryError> {
        let path = self.dir.job_transcript(&head.id);
        if is_file(&path) {
            return Ok(Some(path));
        }
        let session = match &head.session_id {
            Some(id) => reader.session_by_agent_id(id)?,
            None => None,
        };
        let home = self.context().home;
        let log = session.and_then(|it| self.dir.session_log_path(home.as_deref(), &it));
        // A job that has not ended may still create its transcript, so its path is valid.
        Ok(log.filter(|log| is_file(log)).or_else(|| (!head.status.is_final()).then_some(path)))
    }
}

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
        f.debug_struct("FleetReader").field("dir", &self.dir).finish_non_exhaustive()
    }
}
