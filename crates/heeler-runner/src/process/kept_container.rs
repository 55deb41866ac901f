//! The container that a session keeps between its runs (`docker.ephemeral: false`).
//!
//! Only its file system is kept: it does not run between two runs, and the next run of the session
//! starts it again. Settings of a container cannot be changed. If they differ, an image of its files
//! is made, and a container of that image takes its place. Each step can be repeated after a crash:
//! the newest container of a session always has all of its files. Start at [`KeptContainerPlan`].

use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_container::{
    AGENT_LABEL, ContainerEngine, EngineError, IMAGE_LABEL, ListedContainer, SESSION_LABEL,
    SETTINGS_LABEL, STATE_LABEL,
};
use heeler_model::{AgentSessionId, error_chain};
use heeler_transcript::{LockError, LockFile, LockHolder};
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::container_body::ContainerOwner;

/// Time to wait for the container of a session: a run that removes idle containers may be looking
/// at it.
const LOCK_TIME_MAX: Duration = Duration::from_secs(60);

/// Pause between two attempts to lock a container.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Row about a container that was replaced.
const IMAGE_CHANGED: &str = "the image has changed, so the session has a new container; files in the \
                             old one, outside of mounted directories, were removed with it";

/// The container that a run keeps.
#[derive(Debug, Clone)]
pub(crate) struct KeptContainerPlan {
    pub(crate) session: AgentSessionId,
    /// Most containers of the agent that are kept.
    pub(crate) kept_max: u32,
    /// Directory of locks.
    pub(crate) locks: Utf8PathBuf,
    /// This process.
    pub(crate) holder: LockHolder,
}

/// Container of a session that is ready to be started.
pub(super) struct ProvidedContainer {
    pub(super) id: String,
    /// Row about it.
    pub(super) note: Option<&'static str>,
}

impl KeptContainerPlan {
    /// Locks the container of the session.
    pub(super) async fn lock(&self) -> Result<LockFile, LockError> {
        let deadline = Instant::now() + LOCK_TIME_MAX;
        loop {
            match self.try_lock(&self.session) {
                Err(LockError::Held { .. }) if Instant::now() < deadline => {
                    tokio::time::sleep(LOCK_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    fn try_lock(&self, session: &AgentSessionId) -> Result<LockFile, LockError> {
        let path = self.locks.join(format!("{session}.container"));
        LockFile::acquire(&path, &self.holder, Duration::ZERO)
    }

    /// Returns the container of the session, with the settings in `body`. The caller holds its lock.
    pub(super) async fn provide(
        &self,
        engine: &ContainerEngine,
        owner: &ContainerOwner,
        body: &Json,
    ) -> Result<ProvidedContainer, EngineError> {
        let mut found = engine.list(&self.labels(owner)).await?;
        // Engines list the newest first; of those of one second the order stays.
        found.sort_by_key(|container| std::cmp::Reverse(container.created));
        let mut found = found.into_iter();
        let Some(newest) = found.next() else {
            return Ok(ProvidedContainer { id: self.create(engine, body).await?, note: None });
        };
        // An earlier run was killed after it had created the newest one.
        for older in found {
            engine.remove(&older.id).await?;
        }
        // Its runner is dead, and so is its agent, which holds the session's lock; the engine may
        // not have noticed.
        if newest.is_running {
            engine.kill(&newest.id).await?;
        }
        self.adapt(engine, owner, body, newest).await
    }

    /// Returns a container with the files of an earlier one, and the settings in `body`.
    async fn adapt(
        &self,
        engine: &ContainerEngine,
        owner: &ContainerOwner,
        body: &Json,
        earlier: ListedContainer,
    ) -> Result<ProvidedContainer, EngineError> {
        let is_same = |label: &str| {
            let value = earlier.labels.get(label);
            value.is_some_and(|value| body["Labels"][label] == json!(value))
        };
        if !is_same(IMAGE_LABEL) {
            let id = self.create(engine, body).await?;
            engine.remove_with_image(&earlier.id, SESSION_LABEL).await?;
            return Ok(ProvidedContainer { id, note: Some(IMAGE_CHANGED) });
        }
        if is_same(SETTINGS_LABEL) {
            return Ok(ProvidedContainer { id: earlier.id, note: None });
        }
        let labels = json!({
            STATE_LABEL: owner.state_dir.as_str(),
            SESSION_LABEL: self.session.as_str(),
        });
        let mut body = body.clone();
        body["Image"] = json!(engine.commit(&earlier.id, &labels).await?);
        let id = self.create(engine, &body).await?;
        // The new image needs the layers of the old one.
        engine.remove(&earlier.id).await?;
        Ok(ProvidedContainer { id, note: None })
    }

    async fn create(&self, engine: &ContainerEngine, body: &Json) -> Result<String, EngineError> {
        engine.create(&format!("heeler-kept-{:016x}", fastrand::u64(..)), body).await
    }

    fn labels(&self, owner: &ContainerOwner) -> [String; 2] {
        [format!("{STATE_LABEL}={}", owner.state_dir), format!("{SESSION_LABEL}={}", self.session)]
    }

    /// Removes containers of the agent's other sessions, the one that is idle for the longest time
    /// first, until no more than the configured number is left. One that is used is never removed.
    pub(super) async fn remove_surplus(&self, engine: &ContainerEngine, owner: &ContainerOwner) {
        if let Err(error) = self.try_remove_surplus(engine, owner).await {
            tracing::warn!(error = error_chain(&error), "idle containers are left");
        }
    }

    async fn try_remove_surplus(
        &self,
        engine: &ContainerEngine,
        owner: &ContainerOwner,
    ) -> Result<(), EngineError> {
        let ContainerOwner { state_dir, agent, .. } = owner;
        let labels = [
            format!("{STATE_LABEL}={state_dir}"),
            format!("{AGENT_LABEL}={agent}"),
            SESSION_LABEL.to_owned(),
        ];
        let found = engine.list(&labels).await?;
        let mut surplus = found.len().saturating_sub(self.kept_max as usize);
        let mut idle = Vec::new();
        for container in found.into_iter().filter(|it| surplus > 0 && !it.is_running) {
            // It may have been removed meanwhile.
            if let Some(state) = engine.state(&container.id).await? {
                let times = [&state.created_at, &state.finished_at];
                let last = times.into_iter().filter_map(|it| it.parse::<Timestamp>().ok()).max();
                idle.push((last, container));
            }
        }
        idle.sort_by_key(|(last, _)| *last);
        for (_, container) in idle {
            if surplus == 0 {
                break;
            }
            surplus -= usize::from(self.remove_idle(engine, &container).await?);
        }
        Ok(())
    }

    /// Removes a container that no run uses. Returns false if one does.
    async fn remove_idle(
        &self,
        engine: &ContainerEngine,
        container: &ListedContainer,
    ) -> Result<bool, EngineError> {
        let session = container.labels.get(SESSION_LABEL);
        let Some(session) = session.and_then(|it| it.parse::<AgentSessionId>().ok()) else {
            return Ok(false);
        };
        // A run that is about to use it holds the lock of its session, and then this one.
        let is_used = !matches!(LockFile::probe(&self.locks.join(session.as_str())), Ok(None));
        if session == self.session || is_used {
            return Ok(false);
        }
        let Ok(_lock) = self.try_lock(&session) else { return Ok(false) };
        // It may have been started between the list and the lock.
        if engine.state(&container.id).await?.is_none_or(|state| state.is_running) {
            return Ok(false);
        }
        engine.remove_with_image(&container.id, SESSION_LABEL).await?;
        Ok(true)
    }
}
