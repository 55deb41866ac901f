//! Prepares runs of jobs and session operations. Both may have to create a clone or a worktree, and runs
//! may have to fetch files.

use std::collections::HashSet;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use camino::Utf8PathBuf;
use heeler_config::workflow::{SkillFile, load_frozen_workflow};
use heeler_config::{AgentConfig, HostChoice};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{JobId, JobRequest, PhaseJobKind, Session, SessionId, error_chain};
use heeler_store::ReaderPool;

use super::changed_settings::refuse_changed_settings;
use super::limits::limit_error;
use super::run_lease::set_run_lease;
use super::{EffectExecutor, ExecutorContext};
use crate::chat::receive_files;
use crate::checkout::{ensure_checkout, needs_clone};
use crate::command::{DaemonCommandError, DaemonCommandErrorKind, PendingReply, ReplyCallback};
use crate::dispatch_input::{DispatchInput, PreparedJob};
use crate::fault::{self, FaultPoint};
use crate::fleet::EngineContext;
use crate::prepare::PrepareError;
use crate::resolved_request::ResolvedJobRequest;
use crate::run_clone::{ensure_run_clone, needs_run_clone};
use crate::session_operation::SessionOperation;
use crate::sessions;
use crate::setup::DaemonSetup;
use crate::work_limits::SlotClaim;

/// Delay before checking again whether the files of a session are still being moved.
const MOVE_RECHECK_DELAY: Duration = Duration::from_millis(20);

/// A job to prepare.
struct JobPreparation {
    job: Option<JobId>,
    wanted: JobRequest,
    owed: Option<PendingReply>,
    /// Given back before the outcome is reported, so that the dispatcher finds a free slot.
    claim: SlotClaim,
}

impl EffectExecutor {
    /// Returns the number of jobs whose preparation may begin now.
    pub(crate) fn free_preparations(&self) -> usize {
        self.shared.limits.preparations.free()
    }

    /// Resolves everything that a run of the job needs, and reports it as
    /// [`DispatchInput::JobPrepared`].
    ///
    /// A caller's request beyond the limit is refused. For a queued job the dispatcher checks
    /// [`Self::free_preparations`] first; only the dispatcher calls this, so the slot stays free.
    pub(crate) fn prepare_job(
        &self,
        job: Option<JobId>,
        wanted: JobRequest,
        owed: Option<PendingReply>,
    ) {
        let shared = Arc::clone(&self.shared);
        let Some(claim) = shared.limits.preparations.claim() else {
            let limit = shared.limits.preparations.limit();
            let refused = limit_error("other jobs are being prepared to start", limit);
            return match owed {
                Some(owed) => owed.send(Err(refused)),
                // The dispatcher has checked for a free slot, so this does not happen.
                None => tracing::error!(?job, "a queued job was prepared without a free slot"),
            };
        };
        let preparation = JobPreparation { job, wanted, owed, claim };
        self.starters.submit(move || shared.prepare_or_clone(preparation));
    }

    /// Prepares the files for a session operation, on another thread because creating a worktree
    /// may take long. An operation beyond the limit is refused.
    pub(crate) fn prepare_session_change(
        &self,
        order: SessionOperation,
        by: String,
        owed: PendingReply,
    ) {
        let shared = Arc::clone(&self.shared);
        let Some(claim) = shared.limits.session_changes.claim() else {
            let limit = shared.limits.session_changes.limit();
            return owed.send(Err(limit_error("other sessions are being changed", limit)));
        };
        self.session_preparers.submit(move || {
            let _claim = claim;
            // The files stay locked until the reply, so the mover does not trash them before the
            // commit.
            let owed = match &order {
                SessionOperation::Restore { session } => {
                    owed.map_callback(|reply| shared.lock_session_files(session, reply))
                }
                _ => owed,
            };
            match sessions::prepare_change(&shared.fleet, &shared.setup(), order) {
                Ok(change) => shared.send_input(DispatchInput::SessionChange {
                    change: Box::new(change),
                    by,
                    pending: owed,
                }),
                Err(refused) => owed.send(Err(refused)),
            }
        });
    }
}

impl ExecutorContext {
    /// Prepares a job now, or on a thread of its own kind if that needs a clone, a worktree or files of
    /// a chat message, because other starts must not wait for it.
    fn prepare_or_clone(self: &Arc<Self>, preparation: JobPreparation) {
        let wanted = &preparation.wanted;
        let needs_worktree = || {
            let session = session_with_own_directory(&self.readers, wanted);
            session
                // A read error is reported by the preparation itself.
                .is_ok_and(|session| session.is_some_and(|it| sessions::is_worktree_missing(&it)))
        };
        let needs_clone = |agent: &AgentConfig| match &wanted.phase {
            Some(phase) if phase.run_clone.is_some() => {
                needs_run_clone(&self.fleet.dir, agent, phase)
            }
            _ => needs_clone(agent),
        };
        let setup = self.setup();
        let agent = setup.find_agent(wanted.agent.as_str()).ok();
        // The host of an assigned run makes them for itself.
        let is_here = agent.is_none_or(|agent| assigning_choice(&self.fleet, agent).is_none());
        let has_files = wanted.files.is_some();
        let is_missing =
            is_here && (has_files || agent.is_some_and(needs_clone) || needs_worktree());
        if !is_missing {
            return self.prepare(preparation);
        }
        let claim = self.limits.clones.claim();
        // A queued job has no caller to refuse, so it waits without a claim.
        if claim.is_none()
            && let Some(owed) = preparation.owed
        {
            let limit = self.limits.clones.limit();
            return owed.send(Err(limit_error("other jobs wait for a clone or worktree", limit)));
        }
        let shared = Arc::clone(self);
        self.cloners.submit(move || {
            let _claim = claim;
            shared.prepare(preparation);
        });
    }

    fn prepare(&self, preparation: JobPreparation) {
        let JobPreparation { job, wanted, owed, claim } = preparation;
        let setup = self.setup();
        let agent = setup.agent_for(&wanted);
        let request = agent.and_then(|agent| {
            let mut request = match assigning_choice(&self.fleet, &agent) {
                Some(choice) => resolve_for_host(&self.readers, &setup, (&agent, choice), &wanted)?,
                None => resolve_request(&self.fleet, &self.readers, &setup, &wanted)?,
            };
            set_run_lease(&self.fleet, &agent, &mut request);
            Ok(request)
        });
        let prepared = Box::new(PreparedJob { job, job_request: wanted, resolved: request });
        drop(claim);
        self.send_input(DispatchInput::JobPrepared { prepared, pending: owed });
    }

    /// Waits until no other thread moves the session's files, and locks them until the operation's
    /// reply is sent.
    fn lock_session_files(
        self: &Arc<Self>,
        session: &SessionId,
        reply: ReplyCallback,
    ) -> ReplyCallback {
        let lock = SessionFilesLock::acquire(self, session);
        // The lock ends with the reply, also if the reply is a refusal.
        Box::new(move |answer| {
            drop(lock);
            reply(answer);
        })
    }

    fn lock_moving_sessions(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.move_locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lock of a session's files against moves, until it is dropped. A reply that is never sent, because
/// the dispatcher has ended, releases it too.
struct SessionFilesLock {
    shared: Arc<ExecutorContext>,
    session: SessionId,
}

impl SessionFilesLock {
    /// Waits until no other thread moves the files.
    fn acquire(shared: &Arc<ExecutorContext>, session: &SessionId) -> SessionFilesLock {
        while !shared.lock_moving_sessions().insert(session.clone()) {
            std::thread::sleep(MOVE_RECHECK_DELAY);
        }
        SessionFilesLock { shared: Arc::clone(shared), session: session.clone() }
    }
}

impl Drop for SessionFilesLock {
    fn drop(&mut self) {
        self.shared.lock_moving_sessions().remove(&self.session);
    }
}

/// Returns the agent's choice of a host, unless it names this one: its jobs are assigned to a host, which
/// may be this one too.
fn assigning_choice<'a>(fleet: &EngineContext, agent: &'a AgentConfig) -> Option<&'a HostChoice> {
    let own = fleet.dir.host().map(|host| &host.name);
    agent.host.as_ref().filter(|choice| match choice {
        HostChoice::Named(host) => Some(host) != own,
        HostChoice::Labels { .. } => true,
    })
}

/// Resolves a request as far as the record of its start needs it. The host does the rest.
fn resolve_for_host(
    readers: &ReaderPool,
    setup: &DaemonSetup,
    (agent, choice): (&AgentConfig, &HostChoice),
    wanted: &JobRequest,
) -> Result<Box<ResolvedJobRequest>, DaemonCommandError> {
    let refuse = |what: &str, hint: &str| {
        let text = format!("{} works on {choice}, {what}", agent.name);
        Err(DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, text).with_hint(hint))
    };
    if wanted.conversation_pid.is_some() {
        return refuse("and conversations are only possible without `host`", "heeler trigger");
    }
    if wanted.phase.as_ref().is_some_and(|phase| phase.run_clone.is_some()) {
        let what = "but the clone of its workflow run is on the host that leads";
        return refuse(what, "use an agent without `host` for this phase");
    }
    let session = session_with_own_directory(readers, wanted)?;
    let directory = session.and_then(|session| session.working_directory);
    setup
        .prepare_assigned_request(agent, wanted, directory.as_deref())
        .map(Box::new)
        .map_err(|error| prepare_refusal(&error))
}

fn prepare_refusal(error: &PrepareError) -> DaemonCommandError {
    let kind = match error {
        PrepareError::Schedule { .. } => DaemonCommandErrorKind::NotFound,
        PrepareError::Container { .. } | PrepareError::PermissionMode { .. } => {
            DaemonCommandErrorKind::NotAllowed
        }
        _ => DaemonCommandErrorKind::Usage,
    };
    DaemonCommandError::new(kind, error_chain(error))
}

pub(super) fn resolve_request(
    fleet: &EngineContext,
    readers: &ReaderPool,
    setup: &DaemonSetup,
    wanted: &JobRequest,
) -> Result<Box<ResolvedJobRequest>, DaemonCommandError> {
    let agent = &*setup.agent_for(wanted)?;
    let own_clone = clone_for(fleet, readers, setup, (agent, wanted))?;
    refuse_changed_settings(agent, fleet)?;
    let session = session_with_own_directory(readers, wanted)?;
    // A person may have removed the worktree. A job would otherwise fail in a missing folder.
    let note = match session.as_ref().filter(|session| sessions::is_worktree_missing(session)) {
        Some(session) => Some(sessions::recreate_worktree(fleet, &setup.home, session)?),
        None => None,
    };
    let directory = own_clone.or_else(|| session.and_then(|session| session.working_directory));
    let mut request = setup
        .prepare_request(agent, wanted, directory.as_deref())
        .map_err(|error| prepare_refusal(&error))?;
    request.note = note;
    request.forked_from = sessions::find_forked_job(&fleet.dir, readers, wanted);
    request.skill_files = skill_files(readers, setup, wanted)?;
    if let Some(files) = &wanted.files {
        let received = receive_files(setup, (agent, files), &request.working_directory);
        // Without its transcript, a spoken message has no content.
        let added = received.map_err(|reason| {
            let text = format!("the voice message could not be transcribed: {reason}");
            DaemonCommandError::new(DaemonCommandErrorKind::Trouble, text)
        })?;
        request.has_transcript = files.files.iter().any(|file| file.is_voice);
        for text in added {
            request.brief.prompt.push('\n');
            request.brief.prompt.push_str(&text);
        }
        fault::reach(FaultPoint::FilesReceived);
    }
    Ok(Box::new(request))
}

/// Makes the clone that a job works in, if it is missing. Returns the one that belongs to the job's
/// workflow run.
fn clone_for(
    fleet: &EngineContext,
    readers: &ReaderPool,
    setup: &DaemonSetup,
    (agent, wanted): (&AgentConfig, &JobRequest),
) -> Result<Option<Utf8PathBuf>, DaemonCommandError> {
    let trouble = |why: String| DaemonCommandError::new(DaemonCommandErrorKind::Trouble, why);
    let now = (fleet.now)();
    match wanted.phase.as_ref().filter(|phase| phase.run_clone.is_some()) {
        Some(phase) => {
            let reader = readers.reader().map_err(|error| trouble(error_chain(&error)))?;
            ensure_run_clone(&fleet.dir, &reader, (agent, phase), &setup.env, now).map_err(trouble)
        }
        None => ensure_checkout(agent, &setup.env, now)
            .map(|()| None)
            .map_err(|error| trouble(error_chain(&error))),
    }
}

/// Returns the files of the skills of a workflow job, from the definition of its run.
fn skill_files(
    readers: &ReaderPool,
    setup: &DaemonSetup,
    wanted: &JobRequest,
) -> Result<Vec<SkillFile>, DaemonCommandError> {
    let phase =
        wanted.phase.as_ref().filter(|phase| matches!(phase.work, PhaseJobKind::Ask { .. }));
    let Some(skills) = phase.and_then(|phase| phase.skills.as_ref()) else { return Ok(Vec::new()) };
    let trouble = |why: String| {
        let why = format!("cannot read the skills of phase {}: {why}", skills.phase);
        DaemonCommandError::new(DaemonCommandErrorKind::Trouble, why)
    };
    let reader = readers.reader().map_err(|error| trouble(error_chain(&error)))?;
    let definition = reader.definition(&skills.definition);
    let definition = definition.map_err(|error| trouble(error_chain(&error)))?;
    let definition =
        definition.ok_or_else(|| trouble("the workflow definition is not stored".to_owned()))?;
    let workflow = load_frozen_workflow(&definition, &setup.loaded.agents)
        .map_err(|faults| trouble(faults.summary()))?;
    let place = workflow.phase_index(&skills.phase);
    let phase = place.and_then(|place| workflow.phases.into_iter().nth(place));
    phase
        .map(|phase| phase.skills.files)
        .ok_or_else(|| trouble("there is no such phase".to_owned()))
}

/// Returns the requested session if it has its own working directory: a worktree, or the directory
/// in which it was used before Heeler adopted it.
fn session_with_own_directory(
    readers: &ReaderPool,
    wanted: &JobRequest,
) -> Result<Option<Session>, DaemonCommandError> {
    let (SessionChoice::Given { id } | SessionChoice::Fork { source: id, .. }) = &wanted.session
    else {
        return Ok(None);
    };
    let trouble = |error: &dyn std::error::Error| {
        DaemonCommandError::new(DaemonCommandErrorKind::Trouble, error_chain(error))
    };
    let reader = readers.reader().map_err(|error| trouble(&error))?;
    let session = reader.session_by_agent_id(id).map_err(|error| trouble(&error))?;
    Ok(session.filter(sessions::has_own_directory))
}
