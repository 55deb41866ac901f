//! The start of a run: choosing its session, recording it, and launching its runner.
//!
//! A crash may interrupt it anywhere, so the order matters: database row, directory, spec, runner.
//! Start at [`plan_run_start`], [`record_run_start`] and [`launch_run`].

use std::io;
use std::os::unix::net::UnixStream;
use std::process::Child;

use camino::Utf8PathBuf;
use heeler_config::{EgressConfig, HostPattern};
use heeler_model::redact::SecretRedactor;
use heeler_model::run::{
    AgentLaunchSpec, PROTOCOL, ResultSigningKey, RunSpec, RunnerInput, RuntimeLaunchSpec,
    SessionPlan, SessionStart, file,
};
use heeler_model::session_choice::{
    SessionChoice, SessionChoiceContext, choose_session, expiry_rule,
};
use heeler_model::{
    AgentSessionId, AgentStatus, JobId, JobTransition, RunId, Session, SessionEvent, SessionId,
    SessionMode, SessionStatus, TriggerType,
};
use heeler_store::{DatabaseError, RunRecord, StateDatabase, StateDir, StoreTransaction};
use heeler_store::{SessionHolder, session_holder};
use heeler_transcript::{DiskError, OsDisk, create_subfolder, replace_file};
use jiff::Timestamp;
use thiserror::Error;

use crate::access::{AccessSecret, SecretGenerationError};
use crate::capability;
use crate::fault::{self, FaultPoint};
use crate::fleet::EngineContext;
use crate::launch::{self, LaunchError};
use crate::named_session;
use crate::resolved_request::ResolvedJobRequest;
use crate::run_assignment;
use crate::skill_folder::place_skills;

/// Origin of a session that a caller named and that Heeler did not create.
const FOREIGN_ORIGIN: &str = "elsewhere";

/// Reason for the session of a command of a workflow.
const NO_SESSION_REASON: &str = "no session: this is a command of a workflow";

/// Failure to start a run.
#[derive(Debug, Error)]
pub enum RunStartError {
    /// Another run uses the session.
    #[error("session {session} is busy: {holder}")]
    SessionBusy {
        /// Name of the session for people.
        session: String,
        /// Description of the holder.
        holder: String,
        /// The holder's job, if the lock names it.
        job: Option<JobId>,
    },
    /// The session that the caller named does not exist.
    #[error("there is no session {session} to resume: {why}")]
    NoSession {
        session: AgentSessionId,
        /// Places that were searched.
        why: String,
    },
    /// The files of the session are on another host.
    #[error("session {session} is on host `{host}`, and {agent} works on `{place}`")]
    SessionElsewhere { session: AgentSessionId, host: String, agent: String, place: String },
    /// The session that the caller named was deleted.
    #[error("session {session} is deleted: heeler session restore {session} brings it back")]
    Deleted { session: SessionId },
    /// The session that the caller named belongs to another agent.
    #[error("session {session} belongs to agent {agent}: trigger that agent to continue it")]
    OthersSession {
        session: SessionId,
        /// Owner of the session.
        agent: String,
    },
    /// The state cannot be read or changed.
    #[error(transparent)]
    Db(#[from] DatabaseError),
    /// The run directory cannot be written.
    #[error("cannot prepare the run's folder")]
    Disk(#[source] DiskError),
    /// No secret can be generated.
    #[error(transparent)]
    Secret(#[from] SecretGenerationError),
    /// The runner cannot be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl RunStartError {
    /// Returns true if there is no space for the files of the run.
    pub(crate) fn is_disk_full(&self) -> bool {
        let source = match self {
            RunStartError::Disk(error) => &error.source,
            RunStartError::Launch(LaunchError::Log { source, .. }) => source,
            _ => return false,
        };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

/// A run that is recorded.
#[derive(Debug, Clone)]
pub(crate) struct StartedRun {
    pub(crate) job: JobId,
    pub(crate) run: RunId,
    pub(crate) spec: RunSpec,
    /// Signs the result. It exists only here and in the runner.
    pub(crate) result_key: Option<ResultSigningKey>,
    /// Secret of its capability.
    pub(crate) secret: AccessSecret,
    /// Hosts that people allowed.
    pub(crate) granted_hosts: Vec<HostPattern>,
    /// Rules that people gave the agent for all its runs.
    pub(crate) kept_rules: Vec<String>,
}

/// Session in which a run will start.
#[derive(Debug)]
pub(crate) struct RunStartPlan {
    session: SessionPlan,
    /// The session that the request names or that its agent would continue.
    known: Option<Session>,
    /// Secret of the run's capability.
    secret: AccessSecret,
    /// Hosts that people allowed.
    granted_hosts: Vec<HostPattern>,
    /// Rules that people gave the agent for all its runs.
    kept_rules: Vec<String>,
}

/// Chooses the session of a run. Changes nothing.
pub(crate) fn plan_run_start(
    db: &StateDatabase,
    dir: &StateDir,
    request: &ResolvedJobRequest,
    now: Timestamp,
) -> Result<RunStartPlan, RunStartError> {
    let known = match &request.session {
        SessionChoice::Fresh => None,
        SessionChoice::Usual => run_assignment::usable_session(db, dir, request)?,
        SessionChoice::Given { id } | SessionChoice::Fork { source: id, .. } => {
            named_session::find_named_session(db, request, id)?
        }
    };
    run_assignment::check_session_host(db, dir, request)?;
    let mut session = plan_session(request, known.as_ref(), now);
    session.take_in = request.take_in;
    session.is_unrecorded = request.is_phase_command;
    session.log = session_log(db, dir, request, session.start.id())?;
    check_session_free(request, &session.start, known.as_ref())?;
    check_last_run_committed(db, &session.start)?;
    check_first_job(db, request, &session.start)?;
    let granted_hosts = granted_hosts(db, request, &session.start)?;
    let kept_rules = kept_rules(db, request)?;
    Ok(RunStartPlan { session, known, secret: AccessSecret::new()?, granted_hosts, kept_rules })
}

/// Returns the hosts that people allowed for the agent, or for the session. A job that another agent
/// started has none of them: delegation does not raise rights.
pub(crate) fn granted_hosts(
    db: &StateDatabase,
    request: &ResolvedJobRequest,
    start: &SessionStart,
) -> Result<Vec<HostPattern>, DatabaseError> {
    let has_list = request
        .brief
        .sandbox
        .as_ref()
        .is_some_and(|sandbox| matches!(sandbox.network, EgressConfig::Allow(_)));
    if !has_list || request.trigger == TriggerType::Spawned {
        return Ok(Vec::new());
    }
    let continued = match start {
        SessionStart::Resume { id } | SessionStart::Continue { source: id, .. } => Some(id),
        SessionStart::Fresh { .. } | SessionStart::Fork { .. } => None,
    };
    let grants = db.network_grants(request.agent.as_str())?.into_iter();
    let grants =
        grants.filter(|grant| grant.session.is_none() || grant.session.as_ref() == continued);
    Ok(grants.filter_map(|grant| grant.host.parse().ok()).collect())
}

/// Returns the rules that people gave the agent for all its runs. A review asks about every call. A
/// job that another agent started has none of them: delegation does not raise rights.
pub(crate) fn kept_rules(
    db: &StateDatabase,
    request: &ResolvedJobRequest,
) -> Result<Vec<String>, DatabaseError> {
    let is_asked =
        matches!(&request.brief.work, RuntimeLaunchSpec::Claude(claude) if !claude.review);
    if !is_asked || request.trigger == TriggerType::Spawned {
        return Ok(Vec::new());
    }
    let rules = db.permission_rules(request.agent.as_str())?;
    Ok(rules.into_iter().map(|kept| kept.rule).collect())
}

/// Records a planned run of a job.
pub(crate) fn record_run_start(
    tx: &mut StoreTransaction<'_>,
    dir: &StateDir,
    request: &ResolvedJobRequest,
    (job, run): (&JobId, RunId),
    plan: RunStartPlan,
    now: Timestamp,
) -> Result<StartedRun, DatabaseError> {
    let RunStartPlan { session: plan, known, secret, granted_hosts, kept_rules } = plan;
    // All rows are in one transaction, so a crash leaves the whole start or nothing of it.
    mark_job_running(tx, job, request, &plan, now)?;
    // Attempts are numbered by record, not by time, which a clock change would disturb.
    let attempt = tx.runs_of_job(job)?.last().map_or(1, |last| last.attempt + 1);
    let result_key = new_result_key();
    let row = new_run(run, job, attempt, tx.epoch()?, now);
    match &request.host {
        Some(placed) => run_assignment::assign_run(tx, placed, row, (&plan, &request.limits))?,
        None => {
            // The key is on record before the runner exists, so the next daemon can check its
            // result.
            let public_key = result_key.as_ref().map(ResultSigningKey::public_key);
            tx.insert_run(&RunRecord { result_key: public_key, host: host_name(dir), ..row })?;
            tx.set_run_capability(run, &capability::capability_hash(run, &secret))?;
            if request.limits.lease_ms.is_some() {
                run_assignment::record_lease(tx, run, (&plan, &request.limits))?;
            }
        }
    }
    if let Some(known) = known {
        expire_session(tx, known, request, &plan.start, now)?;
    }
    if !plan.is_unrecorded {
        mark_session_used(tx, request, &plan.start, now)?;
    }
    mark_agent_running(tx, request, job)?;
    let spec = build_run_spec(dir, request, job, run, attempt, plan);
    Ok(StartedRun { job: job.clone(), run, spec, result_key, secret, granted_hosts, kept_rules })
}

/// Returns the ID of a new run.
pub(crate) fn new_run_id(now: Timestamp) -> RunId {
    RunId::mint(now, std::array::from_fn(|_| fastrand::u8(..)))
}

#[cfg(not(test))]
pub(crate) fn new_result_key() -> Option<ResultSigningKey> {
    Some(random_result_key())
}

/// The runner of this crate's tests is a shell script, which cannot sign.
#[cfg(test)]
pub(crate) fn new_result_key() -> Option<ResultSigningKey> {
    None
}

/// Returns a new key for results.
pub(crate) fn random_result_key() -> ResultSigningKey {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).expect("the kernel has random numbers since Linux 3.17");
    ResultSigningKey::from_seed(seed)
}

/// A runner that executes a run.
pub(crate) enum LaunchedRunner {
    /// A new process, and the connection to it if its agent may stay for further runs.
    New(Child, Option<UnixStream>),
    /// The process of the conversation's last run.
    Kept,
}

#[cfg(test)]
impl LaunchedRunner {
    /// Waits until the process has ended.
    pub(crate) fn wait(&mut self) -> io::Result<std::process::ExitStatus> {
        match self {
            LaunchedRunner::New(child, _) => child.wait(),
            LaunchedRunner::Kept => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Creates the run directory and starts the runner. `hand_over` passes the run to the runner of the
/// conversation's last run and returns true, if there is one.
pub(crate) fn launch_run(
    fleet: &EngineContext,
    request: &ResolvedJobRequest,
    begun: &StartedRun,
    hand_over: impl FnOnce(&RunnerInput) -> bool,
) -> Result<LaunchedRunner, RunStartError> {
    let folder = fleet.dir.run(begun.run);
    // The folder follows the commit: without a row no daemon would look at it.
    create_subfolder(&OsDisk, &folder).map_err(RunStartError::Disk)?;
    fault::reach(FaultPoint::FolderMade);
    let skills = place_skills(&folder, &request.skill_files).map_err(RunStartError::Disk)?;
    let spec = encode_spec(&begun.spec, begun.result_key.as_ref());
    // A runner is started only with a durable spec, so no spec proves that no runner was started.
    replace_file(&OsDisk, &folder.join(file::SPEC), &spec).map_err(RunStartError::Disk)?;
    fault::reach(FaultPoint::SpecWritten);
    let send_files_to = Some(fleet.dir.sent_files_folder(&begun.job));
    let mut brief = AgentLaunchSpec { send_files_to, ..request.brief.clone() };
    if let Some(skills) = skills {
        skills.add_to(&mut brief);
    }
    if let Some(EgressConfig::Allow(rules)) = brief.sandbox.as_mut().map(|it| &mut it.network) {
        rules.allow.extend(begun.granted_hosts.iter().cloned());
    }
    if let RuntimeLaunchSpec::Claude(claude) = &mut brief.work {
        for rule in &begun.kept_rules {
            if !claude.granted.contains(rule) {
                claude.granted.push(rule.clone());
            }
        }
    }
    capability::add_capability(&mut brief, begun.run, &begun.secret);
    brief.authority.daemon_lock = Some(fleet.dir.lock());
    let (spec, result_key) = (Some(begun.spec.clone()), begun.result_key.clone());
    let input = RunnerInput { brief, spec, result_key };
    if begun.spec.keep_agent.is_some() && hand_over(&input) {
        return Ok(LaunchedRunner::Kept);
    }
    let (child, link) = launch::start_runner(fleet, &folder, &input)?;
    Ok(LaunchedRunner::New(child, link))
}

/// Returns the content of `spec.json`. The key of the run signs it: agents can write the file, and
/// the next daemon relies on it.
fn encode_spec(spec: &RunSpec, key: Option<&ResultSigningKey>) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(spec).expect("a spec is JSON");
    bytes.push(b'\n');
    key.map_or_else(|| bytes.clone(), |key| key.sign_spec(&bytes))
}

/// Refuses a session that another run uses. The runner takes the lock itself; this check only
/// avoids a job that could not start.
fn check_session_free(
    request: &ResolvedJobRequest,
    start: &SessionStart,
    known: Option<&Session>,
) -> Result<(), RunStartError> {
    // A new session cannot be locked.
    let (SessionStart::Resume { id } | SessionStart::Continue { source: id, .. }) = start else {
        return Ok(());
    };
    match session_holder(&request.home, id) {
        Some(SessionHolder { holder, job }) => {
            let session = known.map_or(id.to_string(), |session| session.id.to_string());
            Err(RunStartError::SessionBusy { session, holder, job })
        }
        None => Ok(()),
    }
}

/// Refuses a session with a run that has no committed result. Its lock is free as soon as the run's
/// processes are dead, but only the result says how far the native session goes: the messages of
/// that run would look like external messages.
fn check_last_run_committed(db: &StateDatabase, start: &SessionStart) -> Result<(), RunStartError> {
    let (SessionStart::Resume { id } | SessionStart::Continue { source: id, .. }) = start else {
        return Ok(());
    };
    // A run marks its session as active in the commit that starts it, so most starts read one row.
    let active = |session: &Session| session.status == SessionStatus::Active;
    let Some(session) = db.session_by_agent_id(id)?.filter(active) else { return Ok(()) };
    // An imported session may be active without a run.
    let user = db.running_jobs()?.into_iter().find(|head| head.session_id.as_ref() == Some(id));
    match user {
        Some(head) => Err(RunStartError::SessionBusy {
            session: session.id.to_string(),
            holder: format!("the result of job {} is not recorded yet", head.id),
            job: Some(head.id),
        }),
        None => Ok(()),
    }
}

/// Refuses to start the agent's own session, or its channel's, while another job is starting it:
/// both jobs belong to one session, which is recorded as such only when the other job has ended.
fn check_first_job(
    db: &StateDatabase,
    request: &ResolvedJobRequest,
    start: &SessionStart,
) -> Result<(), RunStartError> {
    let is_kept = request.rules.mode != SessionMode::FreshPerJob;
    let is_asked_for = request.session == SessionChoice::Usual;
    let is_new = matches!(start, SessionStart::Fresh { .. } | SessionStart::Continue { .. });
    if !(is_kept && is_asked_for && is_new) {
        return Ok(());
    }
    for head in db.running_jobs()? {
        let Some(id) = head.session_id.filter(|_| head.agent == request.agent.as_str()) else {
            continue;
        };
        let session = db.session_by_agent_id(&id)?;
        let is_the_same = |session: &Session| {
            session.mode != SessionMode::FreshPerJob
                && session.channel_id == request.channel
                && is_unnamed_first_use(session)
        };
        if let Some(session) = session.filter(is_the_same) {
            return Err(RunStartError::SessionBusy {
                session: session.id.to_string(),
                holder: format!("job {} is starting it", head.id),
                job: Some(head.id),
            });
        }
    }
    Ok(())
}

/// Returns true if the first job of a session makes it the agent's own. Sessions of channels,
/// forks, and sessions that Heeler did not create do not become the agent's own.
pub(crate) fn becomes_agent_session(session: &Session) -> bool {
    is_unnamed_first_use(session) && session.channel_id.is_none()
}

/// Returns true if a session has had no job and is neither a fork nor from outside.
fn is_unnamed_first_use(session: &Session) -> bool {
    session.job_count == 0 && session.origin.is_none() && session.parent.is_none()
}

/// Returns the path of a known session's transcript.
pub(crate) fn session_log(
    db: &StateDatabase,
    dir: &StateDir,
    request: &ResolvedJobRequest,
    id: &AgentSessionId,
) -> Result<Option<Utf8PathBuf>, DatabaseError> {
    let session = db.session_by_agent_id(id)?;
    Ok(session.and_then(|session| dir.session_log_path(Some(&request.home), &session)))
}

/// Marks a session as expired that the rules no longer choose because it was unused for too long.
fn expire_session(
    tx: &mut StoreTransaction<'_>,
    mut known: Session,
    request: &ResolvedJobRequest,
    start: &SessionStart,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    let is_left = known.agent_session_id.as_ref() != Some(start.id());
    let is_chosen_by_rule = request.session == SessionChoice::Usual;
    // A session that a person named is used regardless of its age.
    if is_left && is_chosen_by_rule && expiry_rule(&known, &request.rules, now).is_some() {
        known.apply_event(SessionEvent::Expire);
        tx.put_session(&known)?;
    }
    Ok(())
}

/// Returns the session that the agent's rules would continue.
pub(crate) fn default_session(
    db: &StateDatabase,
    request: &ResolvedJobRequest,
) -> Result<Option<Session>, DatabaseError> {
    let agent = request.agent.as_str();
    match &request.channel {
        Some(channel) => db.session_of_channel(agent, channel),
        None => db.agent_session(agent),
    }
}

fn plan_session(
    request: &ResolvedJobRequest,
    known: Option<&Session>,
    now: Timestamp,
) -> SessionPlan {
    let context = SessionChoiceContext {
        working_directory: &request.working_directory,
        runtime: request.runtime,
        docker: false,
        rules: &request.rules,
        now,
    };
    let new_id = uuid::Builder::from_random_bytes(std::array::from_fn(|_| fastrand::u8(..)));
    let new_id = new_id.into_uuid().to_string().parse().expect("a UUID is a session id");
    let mut plan = choose_session(&request.session, known, &context, new_id);
    if request.is_phase_command {
        NO_SESSION_REASON.clone_into(&mut plan.reason);
    }
    if let Some(note) = &request.note {
        plan.reason = format!("{}; {note}", plan.reason);
    }
    plan
}

/// Returns the session that a job names while it runs, if it has one.
pub(crate) fn recorded_session(plan: &SessionPlan) -> Option<AgentSessionId> {
    (!plan.is_unrecorded).then(|| plan.start.id().clone())
}

/// Marks a job as running that was queued, or had a run that did not succeed.
fn mark_job_running(
    tx: &mut StoreTransaction<'_>,
    id: &JobId,
    request: &ResolvedJobRequest,
    plan: &SessionPlan,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    let missing = || DatabaseError::Missing { what: "job", id: id.to_string() };
    let mut job = tx.job(id)?.ok_or_else(missing)?;
    job.apply(JobTransition::Start { session: recorded_session(plan), at: now });
    job.working_directory = Some(request.working_directory.clone());
    // A resumed job keeps the prompt with which it was created.
    if job.prompt.is_none() || request.has_transcript {
        let prompt = SecretRedactor::new(&request.brief.secrets)
            .redact_text(&request.brief.prompt)
            .into_owned();
        job.prompt = Some(prompt).filter(|prompt| !prompt.is_empty());
    }
    if let SessionStart::Fork { .. } = &plan.start {
        job.forked_from = request.forked_from.clone();
        // Other causes, such as a schedule, say more.
        if job.head.trigger_type == TriggerType::Manual {
            job.head.trigger_type = TriggerType::Fork;
        }
    }
    tx.update_job(&job).map(|_| ())
}

fn new_run(id: RunId, job: &JobId, attempt: i64, epoch: i64, now: Timestamp) -> RunRecord {
    RunRecord {
        id,
        job_id: job.clone(),
        attempt,
        host: String::new(),
        epoch,
        status: "created".to_owned(),
        created_at: now,
        started_at: None,
        finished_at: None,
        committed: false,
        version: 1,
        result_key: None,
    }
}

/// Returns the name of this host: the one that a person gave it, or that of the machine.
pub(crate) fn host_name(dir: &StateDir) -> String {
    let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    dir.host().map_or_else(machine, |host| host.name.to_string())
}

/// Marks the run's session as in use; creates it if it is unknown.
fn mark_session_used(
    tx: &mut StoreTransaction<'_>,
    request: &ResolvedJobRequest,
    start: &SessionStart,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    if let Some(mut session) = tx.session_by_agent_id(start.id())? {
        // A session without an owner in the config belongs to this agent from now on.
        session.agent = request.agent.to_string();
        session.apply_event(SessionEvent::Begin);
        session.last_active_at = now;
        return tx.put_session(&session).map(|_| ());
    }
    let source = fork_source(tx, start)?;
    let continues = match start {
        SessionStart::Continue { source, .. } => tx.session_by_agent_id(source)?,
        _ => None,
    };
    // An unknown session was named by the caller, so it was created outside Heeler.
    let is_foreign = matches!(start, SessionStart::Resume { .. });
    let log = StateDir::session_log_relative(&request.working_directory, start.id());
    let session = Session {
        agent_session_id: Some(start.id().clone()),
        mode: request.rules.mode,
        approvals: request.approvals,
        status: SessionStatus::Active,
        channel_id: request.channel.clone(),
        working_directory: Some(request.working_directory.clone()),
        runtime: request.runtime.to_string(),
        forked_at_message: source.as_ref().map(|source| source.message_count),
        parent: source.map(|source| source.id),
        continues: continues.map(|source| source.id),
        log_path: Some(log),
        origin: is_foreign.then(|| FOREIGN_ORIGIN.to_owned()),
        ..Session::new(tx.new_session_id()?, request.agent.as_str(), now)
    };
    tx.put_session(&session).map(|_| ())
}

/// Returns the source session of a fork, if it is known.
pub(crate) fn fork_source(
    tx: &StoreTransaction<'_>,
    start: &SessionStart,
) -> Result<Option<Session>, DatabaseError> {
    match start {
        SessionStart::Fork { source, .. } => tx.session_by_agent_id(source),
        SessionStart::Fresh { .. }
        | SessionStart::Resume { .. }
        | SessionStart::Continue { .. } => Ok(None),
    }
}

fn mark_agent_running(
    tx: &mut StoreTransaction<'_>,
    request: &ResolvedJobRequest,
    job: &JobId,
) -> Result<(), DatabaseError> {
    let name = request.agent.as_str();
    let mut agent = tx.agent(name)?.unwrap_or_default();
    agent.status = AgentStatus::Running;
    agent.current_job = Some(job.clone());
    agent.error_message = None;
    tx.put_agent(name, &agent)
}

pub(crate) fn build_run_spec(
    dir: &StateDir,
    request: &ResolvedJobRequest,
    job: &JobId,
    run: RunId,
    attempt: i64,
    mut session: SessionPlan,
) -> RunSpec {
    if session.is_unrecorded {
        session.log = Some(dir.run(run).join(file::SESSION_LOG));
    }
    RunSpec {
        protocol: PROTOCOL,
        run,
        job: job.clone(),
        attempt: u32::try_from(attempt).unwrap_or(u32::MAX),
        agent: request.agent.clone(),
        trigger: request.trigger.clone(),
        runtime: request.runtime,
        working_directory: request.working_directory.clone(),
        job_log: dir.job_transcript(job),
        projects: dir.projects(),
        output_file: request.output_file.then(|| dir.job_output(job)),
        home: request.home.clone(),
        sockets: request.sockets.clone(),
        session,
        limits: request.limits.clone(),
        attendance: request.attendance,
        sync_each_row: request.sync_each_row,
        workspaces: request.rules.snapshots.then(|| dir.workspaces()),
        keep_output: request.keep_output,
        keep_agent: request.keep_agent.clone(),
    }
}
