//! Opens the state directory of a command for writing. Start at [`CommandContext::store`].

use std::time::{Duration, Instant};

use heeler_engine::DaemonMode;
use heeler_store::{
    DaemonFile, DatabaseOpenError, OpenedStore, StateDir, Store, StoreOpenError, StoreReader,
};
use heeler_transcript::{LockError, LockFile};
use jiff::Timestamp;

use crate::context::CommandContext;
use crate::failure::CommandResult;
use crate::output;
use crate::process_env::now;

/// Time to wait for a temporary daemon that has nothing left to do.
const IDLE_DAEMON_WAIT: Duration = Duration::from_secs(2);

/// Time to wait for another process that creates or upgrades the database.
const UPGRADE_WAIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

impl CommandContext {
    /// Returns the paths of the state directory, which must exist.
    pub(crate) fn dir(&self) -> CommandResult<StateDir> {
        Ok(StateDir::open(&self.state_dir)?)
    }

    /// Becomes the writer of the state directory, and reports manual edits of its files.
    pub(crate) fn store(&self, command: &str, now: Timestamp) -> CommandResult<Store> {
        let dir = StateDir::create(&self.state_dir)?;
        let opened = self.open_store(&dir, command, now)?;
        if self.quiet {
            return Ok(opened.store);
        }
        // The edits were applied; a person who made one by mistake must learn of it.
        for edit in &opened.hand_edits.statuses {
            let schedule =
                edit.schedule.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
            let (agent, was, is) = (&edit.agent, &edit.old_status, &edit.new_status);
            output::print_note(&format!(
                "state.yaml was edited: {agent}{schedule} is now {is}, it was {was}"
            ))?;
        }
        for agent in &opened.hand_edits.detached {
            output::print_note(&format!(
                "sessions/{agent}.json was deleted: {agent} starts a new session"
            ))?;
        }
        for path in &opened.hand_edits.moved_aside {
            output::print_note(&format!("an unreadable file was moved to {path}"))?;
        }
        Ok(opened.store)
    }

    /// Becomes the writer. Waits for a temporary daemon that has nothing left to do.
    fn open_store(
        &self,
        dir: &StateDir,
        command: &str,
        now: Timestamp,
    ) -> CommandResult<OpenedStore> {
        let deadline = Instant::now() + IDLE_DAEMON_WAIT;
        loop {
            let error = match Store::open(dir, command, now) {
                Ok(opened) => return Ok(opened),
                Err(error) => error,
            };
            // A permanent daemon does not end by itself, so waiting for it would be useless.
            let is_passing = || {
                let file = DaemonFile::read(dir).ok().flatten();
                file.is_some_and(|file| file.mode == DaemonMode::UntilIdle)
            };
            let is_held =
                matches!(&error, StoreOpenError::Lock { source: LockError::Held { .. }, .. });
            // No sleep is needed between the attempts: opening waits for the lock by itself.
            if !is_held || Instant::now() >= deadline || !is_passing() {
                return Err(error.into());
            }
        }
    }

    /// Upgrades a database of an older Heeler, for commands that write anyway.
    pub(crate) fn migrate_database(&self) -> CommandResult {
        if !self.state_dir.is_dir() {
            return Ok(());
        }
        let (dir, deadline) = (self.dir()?, Instant::now() + UPGRADE_WAIT);
        let is_locked = || LockFile::probe(&dir.lock()).is_ok_and(|held| held.is_some());
        // Readers never migrate: a command that only reads must not change anything.
        while matches!(StoreReader::open(&dir), Err(DatabaseOpenError::Older { .. })) {
            // A daemon that has just started creates or upgrades the database itself.
            match is_locked() && Instant::now() < deadline {
                true => std::thread::sleep(POLL_INTERVAL),
                false => drop(self.store("upgrade", now())?),
            }
        }
        Ok(())
    }
}
