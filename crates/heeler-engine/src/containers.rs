//! Containers that no run needs any more: of runs that have ended, of sessions that were removed, and
//! of state directories that do not exist. Start at [`survey_containers`].
//!
//! Only labels decide. A daemon removes those of its own state directory; others are listed.

use std::collections::BTreeMap;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_container::{
    AGENT_LABEL, ContainerEngine, EngineError, EngineFacts, ListedContainer, RUN_LABEL,
    SESSION_LABEL, STATE_LABEL, find_engine_socket, with_engine,
};
use heeler_model::{AgentSessionId, error_chain};
use heeler_store::{StateDir, StoreReader};
use heeler_transcript::{LockFile, LockHolder};
use jiff::Timestamp;

use crate::fleet::EngineContext;
use crate::setup::DaemonSetup;

/// Time that the engine has for all replies.
const ENGINE_TIME_MAX: Duration = Duration::from_secs(20);

/// Time that the engine has to remove containers, which may be large.
const REMOVE_TIME_MAX: Duration = Duration::from_secs(300);

/// Age from which on a container of an unknown session is an orphan. A new session is recorded when
/// its first run has been settled.
const UNKNOWN_SESSION_AGE: Duration = Duration::from_secs(3600);

/// Suffix of the lock of a session's container.
const LOCK_SUFFIX: &str = ".container";

/// Reason that no run needs a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanReason {
    /// The state directory does not exist any more.
    NoStateDirectory,
    RunEnded,
    /// The session for which it was kept does not exist any more.
    NoSession,
}

impl OrphanReason {
    pub fn as_str(self) -> &'static str {
        match self {
            OrphanReason::NoStateDirectory => "its state directory does not exist any more",
            OrphanReason::RunEnded => "its run has ended",
            OrphanReason::NoSession => "its session does not exist any more",
        }
    }
}

/// Container of Heeler that no run needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanContainer {
    pub id: String,
    pub name: String,
    pub agent: String,
    pub state_dir: String,
    pub reason: OrphanReason,
    /// Session for which it was kept.
    session: Option<AgentSessionId>,
}

/// Container that is kept for a session of this state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionContainer {
    pub name: String,
    pub agent: String,
    pub session: String,
    pub is_running: bool,
}

/// Containers of Heeler, as far as they concern a state directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerSurvey {
    pub orphans: Vec<OrphanContainer>,
    pub kept: Vec<SessionContainer>,
}

/// The engine, and the containers of Heeler in it.
#[derive(Debug, Clone)]
pub struct EngineSurvey {
    pub socket: Utf8PathBuf,
    pub facts: EngineFacts,
    pub containers: ContainerSurvey,
}

/// Asks the engine that the environment names. `own` is the state directory of the caller.
pub fn survey_containers(
    env: &BTreeMap<String, String>,
    own: Option<&Utf8Path>,
    now: Timestamp,
) -> Result<EngineSurvey, String> {
    let socket = engine_socket(env)?;
    let asked = with_engine(&socket, ENGINE_TIME_MAX, async |engine: ContainerEngine| {
        Ok((engine.facts().await?, engine.list(&[STATE_LABEL.to_owned()]).await?))
    });
    let (facts, listed) = asked.map_err(|error| error_chain(&error))?;
    let containers = SurveyContext::of(own).judge(listed, now);
    Ok(EngineSurvey { socket, facts, containers })
}

fn engine_socket(env: &BTreeMap<String, String>) -> Result<Utf8PathBuf, String> {
    let variable = |name: &str| env.get(name).map(String::as_str);
    let exists = |path: &Utf8Path| path.exists();
    find_engine_socket(variable("DOCKER_HOST"), variable("XDG_RUNTIME_DIR"), exists)
        .map_err(|error| error.to_string())
}

/// Facts by which containers are judged.
struct SurveyContext<'s> {
    own: Option<Utf8PathBuf>,
    exists: Box<dyn Fn(&Utf8Path) -> bool + 's>,
    /// Returns true if a runner works on the run in this directory, or may.
    is_run_alive: Box<dyn Fn(&Utf8Path) -> bool + 's>,
    is_session_known: Box<dyn Fn(&AgentSessionId) -> bool + 's>,
}

impl SurveyContext<'_> {
    fn of(own: Option<&Utf8Path>) -> SurveyContext<'static> {
        let reader = own.and_then(|own| StoreReader::open(&StateDir::open(own).ok()?).ok());
        SurveyContext {
            own: own.map(|it| it.canonicalize_utf8().unwrap_or_else(|_| it.to_owned())),
            exists: Box::new(|path| path.is_dir()),
            is_run_alive: Box::new(|run| !matches!(LockFile::probe(&run.join("lock")), Ok(None))),
            // A database that cannot be read says nothing about its sessions.
            is_session_known: Box::new(move |session| {
                let found = reader.as_ref().map(|reader| reader.session_by_agent_id(session));
                !matches!(found, Some(Ok(None)))
            }),
        }
    }

    /// Sorts the containers of this state directory, and finds those of state directories that do
    /// not exist any more. Containers of others are not Heeler's to judge.
    fn judge(&self, listed: Vec<ListedContainer>, now: Timestamp) -> ContainerSurvey {
        let mut survey = ContainerSurvey::default();
        for container in listed {
            let label = |name: &str| container.labels.get(name).map(String::as_str);
            let Some(state_dir) = label(STATE_LABEL) else { continue };
            let session = label(SESSION_LABEL).and_then(|it| it.parse::<AgentSessionId>().ok());
            let agent = label(AGENT_LABEL).unwrap_or_default().to_owned();
            match self.find_reason(&container, Utf8Path::new(state_dir), session.as_ref(), now) {
                Some(reason) => survey.orphans.push(OrphanContainer {
                    id: container.id.clone(),
                    name: container.name.clone(),
                    agent,
                    state_dir: state_dir.to_owned(),
                    reason,
                    session,
                }),
                None => {
                    let is_own = self.own.as_deref() == Some(Utf8Path::new(state_dir));
                    survey.kept.extend(session.filter(|_| is_own).map(|session| {
                        SessionContainer {
                            name: container.name.clone(),
                            agent,
                            session: session.to_string(),
                            is_running: container.is_running,
                        }
                    }));
                }
            }
        }
        survey
    }

    fn find_reason(
        &self,
        container: &ListedContainer,
        state_dir: &Utf8Path,
        session: Option<&AgentSessionId>,
        now: Timestamp,
    ) -> Option<OrphanReason> {
        if state_dir.is_absolute() && !(self.exists)(state_dir) {
            return Some(OrphanReason::NoStateDirectory);
        }
        if self.own.as_deref() != Some(state_dir) {
            return None;
        }
        if let Some(session) = session {
            let age = now.as_second().saturating_sub(container.created);
            let is_old = age >= UNKNOWN_SESSION_AGE.as_secs().cast_signed();
            let is_orphan = is_old && !container.is_running && !(self.is_session_known)(session);
            return is_orphan.then_some(OrphanReason::NoSession);
        }
        let run = container.labels.get(RUN_LABEL)?;
        let is_alive = (self.is_run_alive)(&state_dir.join("runs").join(run));
        (!is_alive).then_some(OrphanReason::RunEnded)
    }
}

/// Removes containers of this state directory that no run needs, on a thread of its own: an engine
/// may be slow, or not run at all.
pub(crate) fn start_container_sweep(
    fleet: &EngineContext,
    setup: &DaemonSetup,
) -> std::io::Result<()> {
    if !may_have_containers(setup) {
        return Ok(());
    }
    let (fleet, env, locks) = (fleet.clone(), setup.env.clone(), setup.home.join("locks"));
    let sweep = move || {
        if let Err(reason) = sweep_containers(&fleet, &env, &locks) {
            tracing::warn!(reason, "containers that no run needs may be left");
        }
    };
    std::thread::Builder::new().name("container-sweep".to_owned()).spawn(sweep).map(drop)
}

/// Returns true if an agent has a container, or a session once had one.
fn may_have_containers(setup: &DaemonSetup) -> bool {
    let is_configured = || setup.loaded.agents.iter().any(|agent| agent.container().is_some());
    let was_kept = || {
        let locks = setup.home.join("locks").read_dir_utf8().into_iter().flatten().flatten();
        locks.into_iter().any(|lock| lock.file_name().ends_with(LOCK_SUFFIX))
    };
    is_configured() || was_kept()
}

fn sweep_containers(
    fleet: &EngineContext,
    env: &BTreeMap<String, String>,
    locks: &Utf8Path,
) -> Result<(), String> {
    let now = (fleet.now)();
    let own = fleet.dir.root();
    let survey = survey_containers(env, Some(own), now)?;
    let holder = LockHolder::this_process("start", now);
    let swept = with_engine(&survey.socket, REMOVE_TIME_MAX, async |engine: ContainerEngine| {
        let orphans = survey.containers.orphans.iter();
        for orphan in orphans.filter(|it| it.reason != OrphanReason::NoStateDirectory) {
            remove_orphan(&engine, orphan, locks, &holder).await?;
        }
        Ok(())
    });
    swept.map_err(|error| error_chain(&error))
}

async fn remove_orphan(
    engine: &ContainerEngine,
    orphan: &OrphanContainer,
    locks: &Utf8Path,
    holder: &LockHolder,
) -> Result<(), EngineError> {
    // A run may have begun to use it since it was listed.
    let _lock = match &orphan.session {
        None => None,
        Some(session) => {
            let path = locks.join(format!("{session}{LOCK_SUFFIX}"));
            match LockFile::acquire(&path, holder, Duration::ZERO) {
                Ok(lock) => Some(lock),
                Err(_) => return Ok(()),
            }
        }
    };
    tracing::info!(name = orphan.name, reason = orphan.reason.as_str(), "removing a container");
    engine.remove_with_image(&orphan.id, SESSION_LABEL).await
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn container(name: &str, age: i64, labels: &[(&str, &str)]) -> ListedContainer {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        ListedContainer {
            id: name.to_owned(),
            name: name.to_owned(),
            is_running: name.ends_with("running"),
            created: NOW - age,
            labels: labels.collect::<HashMap<_, _>>(),
        }
    }

    #[test]
    fn only_own_and_abandoned_containers_are_orphans() {
        let run = |name, state, run| container(name, 0, &[(STATE_LABEL, state), (RUN_LABEL, run)]);
        let kept = |name, state, session, age| {
            container(name, age, &[(STATE_LABEL, state), (SESSION_LABEL, session)])
        };
        let listed = vec![
            run("alive", "/own", "1"),
            run("ended", "/own", "2"),
            run("other", "/other", "3"),
            run("abandoned", "/gone", "4"),
            run("relative", "gone", "5"),
            container("foreign", 0, &[(RUN_LABEL, "6")]),
            kept("kept", "/own", "known", 90_000),
            kept("new", "/own", "unknown", 60),
            kept("running", "/own", "unknown", 90_000),
            kept("forgotten", "/own", "unknown", 90_000),
            kept("others-session", "/other", "unknown", 90_000),
        ];
        let context = SurveyContext {
            own: Some("/own".into()),
            exists: Box::new(|path| path == "/own" || path == "/other"),
            is_run_alive: Box::new(|run| run == "/own/runs/1"),
            is_session_known: Box::new(|session| session.as_str() == "known"),
        };
        let survey = context.judge(listed, Timestamp::from_second(NOW).unwrap());
        let orphans: Vec<(&str, OrphanReason)> =
            survey.orphans.iter().map(|it| (it.name.as_str(), it.reason)).collect();
        let expected = [
            ("ended", OrphanReason::RunEnded),
            ("abandoned", OrphanReason::NoStateDirectory),
            ("forgotten", OrphanReason::NoSession),
        ];
        assert_eq!(orphans, expected);
        let kept: Vec<&str> = survey.kept.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(kept, ["kept", "new", "running"]);
    }
}
