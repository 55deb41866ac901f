//! Opens the state of a command for reading, and finds agents, sessions and runs in it. Start at
//! [`CommandContext::open_reader`].

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::LoadedConfig;
use heeler_model::{Job, JobHead, JobId, Session};
use heeler_query::{FleetReader, UnpublishedViews, sessions};
use heeler_store::{DatabaseOpenError, StateDir, StoreReader, WorkflowRunRow};
use heeler_transcript::LockFile;

use crate::adopt;
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::process_env::now;
use crate::text_file::read_text;

/// Time to wait for a database that another process upgrades.
const UPGRADE_WAIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

impl CommandContext {
    /// Opens the state for reading; returns `None` if there is none yet. Adopts a herdctl
    /// directory.
    pub(crate) fn open_reader(&self) -> CommandResult<Option<StoreReader>> {
        // A missing directory is no error unless the user named it: then it is likely misspelled.
        match std::fs::metadata(&self.state_dir) {
            Ok(found) if found.is_dir() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.is_state_dir_named => {
                return Ok(None);
            }
            Ok(_) => return Err(self.unusable("it is not a folder".to_owned())),
            Err(error) => return Err(self.unusable(error.to_string())),
        }
        // Only after the checks above, so that nothing is written to a path that is no state.
        adopt::adopt_if_foreign(self)?;
        let dir = self.dir()?;
        let deadline = Instant::now() + UPGRADE_WAIT;
        loop {
            match StoreReader::open(&dir) {
                Ok(reader) => return Ok(Some(reader)),
                Err(DatabaseOpenError::Missing { .. }) => {
                    return self.refuse_lost_database(&dir).map(|()| None);
                }
                // A daemon that has just started may be upgrading the database.
                Err(DatabaseOpenError::Older { .. })
                    if is_state_locked(&dir) && Instant::now() < deadline =>
                {
                    std::thread::sleep(POLL_INTERVAL);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn unusable(&self, reason: String) -> CommandFailure {
        let message = format!("cannot use the state directory {}: {reason}", self.state_dir);
        CommandFailure::message(FailureCode::Refused, message)
    }

    /// Refuses a directory that lost its database: one with jobs or backups. A new one needs none.
    fn refuse_lost_database(&self, dir: &StateDir) -> CommandResult {
        let entries = |folder: Utf8PathBuf| folder.read_dir_utf8().map(Iterator::count);
        // Without permission nothing can be told about the database, least of all that it is lost.
        let jobs = entries(dir.jobs());
        if let Err(error) = &jobs
            && error.kind() == io::ErrorKind::PermissionDenied
        {
            return Err(self.unusable(error.to_string()));
        }
        if jobs.unwrap_or(0) + entries(dir.backups()).unwrap_or(0) > 0 {
            let message = format!("{} has lost its database", self.state_dir);
            return Err(CommandFailure::message(FailureCode::Failed, message)
                .hint("heeler doctor --rebuild"));
        }
        // `heeler init` has written the schemas, so such a directory is new and not a mistake.
        match self.is_state_dir_named && !dir.has_database() && !dir.root().join("schema").exists()
        {
            true => Err(self.unusable("it holds no Heeler state".to_owned())),
            false => Ok(()),
        }
    }

    /// Opens the state to look up one item; fails if there is no state.
    pub(crate) fn reader_for(&self, what: &str, id: &str) -> CommandResult<StoreReader> {
        self.open_reader()?.ok_or_else(|| {
            let message = format!("there is no {what} `{id}`: {} is empty", self.state_dir);
            CommandFailure::message(FailureCode::NotFound, message)
        })
    }

    /// Returns a reader of the fleet. Without state, the reader is empty.
    pub(crate) fn open_records(&self) -> CommandResult<FleetReader> {
        self.open_records_with(None)
    }

    /// Returns a reader of the fleet that uses a config that is already loaded.
    pub(crate) fn open_records_with(
        &self,
        loaded: Option<LoadedConfig>,
    ) -> CommandResult<FleetReader> {
        let (reader, dir) = match self.open_reader()? {
            Some(reader) => (reader, self.dir()?),
            None => (StoreReader::empty(now())?, StateDir::absent(&self.state_dir)),
        };
        // Most queries need no config, so it is loaded at the first use, and once.
        let (context, loaded, known) = (self.clone(), loaded.map(Arc::new), OnceLock::new());
        let source = move || {
            known.get_or_init(|| fleet_config::query_context(&context, loaded.clone())).clone()
        };
        Ok(FleetReader::new(dir, source).with_reader(reader))
    }

    /// Finds an agent by its qualified name, or by its own name if that is unique.
    pub(crate) fn find_agent(&self, reader: &StoreReader, name: &str) -> CommandResult<String> {
        let mut names = reader.agent_names()?;
        // An agent without any job yet is known only from the config.
        if let Some(file) = &self.config
            && let Ok(loaded) = fleet_config::try_load(self, file, &read_text)?
        {
            names.extend(loaded.agents.iter().map(|agent| agent.name.to_string()));
        }
        // A full match wins over the short names of agents in subfleets.
        if names.iter().any(|known| known == name) {
            return Ok(name.to_owned());
        }
        // A qualified name is `subfleet.agent`.
        names.retain(|known| known.rsplit('.').next() == Some(name));
        names.sort();
        names.dedup();
        match names.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(CommandFailure::message(
                FailureCode::NotFound,
                format!("there is no agent `{name}`"),
            )
            .hint("heeler status lists all agents")),
            several => {
                let message = format!("`{name}` is ambiguous: {}", several.join(", "));
                Err(CommandFailure::message(FailureCode::Usage, message))
            }
        }
    }

    /// Finds a session by ID or unique prefix. For a deleted one, the error tells how to restore it.
    pub(crate) fn find_session(&self, text: &str) -> CommandResult<Session> {
        Ok(sessions::find_session(&self.reader_for("session", text)?, text)?)
    }

    /// Returns the record of a job that existed before.
    pub(crate) fn recorded_job(&self, id: &JobId) -> CommandResult<Job> {
        let job = StoreReader::open(&self.dir()?)?.job(id)?;
        job.ok_or_else(|| record_gone(&format!("job {id}")))
    }

    /// Waits until the files that show a job are published: scripts read them when the command ends.
    pub(crate) fn wait_for_views(&self, job: &Job) -> CommandResult {
        let dir = self.dir()?;
        UnpublishedViews::of_job(&StoreReader::open(&dir)?, job)?.wait(&dir);
        Ok(())
    }

    /// Finds a workflow run by ID or unique prefix.
    pub(crate) fn find_workflow_run(
        &self,
        text: &str,
    ) -> CommandResult<(StoreReader, WorkflowRunRow)> {
        let reader = self.reader_for("workflow run", text)?;
        let row = reader.find_workflow_run(text)?;
        Ok((reader, row))
    }

    /// Returns a job's transcript; for an imported Last Light job, its session's.
    pub(crate) fn log_path(
        &self,
        reader: &StoreReader,
        head: &JobHead,
    ) -> CommandResult<Option<Utf8PathBuf>> {
        let dir = self.dir()?;
        let transcript = dir.job_transcript(&head.id);
        // Jobs of Heeler and herdctl have a transcript of their own.
        if is_file(&transcript) {
            return Ok(Some(transcript));
        }
        let session = match &head.session_id {
            Some(id) => reader.session_by_agent_id(id)?,
            None => None,
        };
        let log = session.and_then(|session| dir.session_log_path(self.home.as_deref(), &session));
        Ok(log
            .filter(|log| is_file(log))
            // A job that has not ended may still write its transcript, which a follower waits for.
            .or_else(|| (!head.status.is_final()).then_some(transcript)))
    }
}

/// Returns the failure for a record that existed before.
pub(crate) fn record_gone(what: &str) -> CommandFailure {
    let message = format!("the record of {what} no longer exists");
    CommandFailure::message(FailureCode::Failed, message)
}

/// Returns true if a process writes the state.
fn is_state_locked(dir: &StateDir) -> bool {
    LockFile::probe(&dir.lock()).is_ok_and(|held| held.is_some())
}

/// Returns true if a path is a regular file and no link: a planted link may lead anywhere.
fn is_file(path: &Utf8Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file())
}
