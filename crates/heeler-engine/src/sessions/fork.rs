//! Forks: a new session with another's history up to a message.
//!
//! The fork point is a row of the source, determined now: later changes of the source do not affect
//! it. The fork's transcript contains the source's rows up to that point from the start; the agent
//! program creates its native session when the fork first runs. The source is only read. Start at
//! [`prepare_fork`].

use camino::Utf8Path;
use heeler_config::{AgentConfig, RuntimeType};
use heeler_model::{AgentSessionId, PendingFork, Session, SessionId};
use heeler_store::history::{ResolvedForkPoint, find_fork_point};
use heeler_store::{StateDir, StoreReader, StoreTransaction};
use heeler_transcript::{CopyLimit, OsDisk, copy_prefix, create_folder, resolve_inside};
use jiff::Timestamp;

use super::errors::{internal_error, session_not_found};
use super::worktree;
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::dispatch_failure::DispatchFailure;
use crate::fleet::EngineContext;
use crate::session_operation::ForkedSession;
use crate::setup::DaemonSetup;

/// Options of a fork.
pub(super) struct ForkOptions {
    pub(super) at_message: Option<u64>,
    pub(super) agent: Option<String>,
    pub(super) workspace: bool,
}

/// A fork that is ready to be committed.
#[derive(Debug)]
pub(crate) struct PreparedFork {
    session: Session,
    forked: ForkedSession,
}

/// Determines the fork point and creates the fork's files.
pub(super) fn prepare_fork(
    fleet: &EngineContext,
    setup: &DaemonSetup,
    reader: &StoreReader,
    id: &SessionId,
    wish: &ForkOptions,
) -> Result<PreparedFork, DaemonCommandError> {
    let source = reader.session(id).map_err(|error| internal_error(&error))?;
    let source = source.ok_or_else(|| session_not_found(id))?;
    let agent = setup.find_agent(wish.agent.as_deref().unwrap_or(&source.agent))?;
    let transfer = find_transfer(&source, agent)?;
    // Two sessions in one worktree would change each other's files.
    if source.workspace.is_some() && !wish.workspace {
        let message = format!("session {id} has its own worktree, and the fork would have none");
        let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
        return Err(refused.with_hint("--workspace gives it one too"));
    }
    let own_id = source.agent_session_id.clone().ok_or_else(|| {
        let message = format!("session {} has not started: there is nothing to fork", source.id);
        DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message)
    })?;
    // The agent program knows a fork that has not started only by its source.
    let remembered = source.fork.as_ref().map_or(&own_id, |fork| &fork.source);
    // The fork's history is copied from Heeler's transcript, so it must exist.
    let log = fleet.dir.session_log_path(Some(&setup.home), &source);
    let log = log.filter(|log| log.is_file()).ok_or_else(|| {
        let message = format!("the transcript of session {} does not exist", source.id);
        DaemonCommandError::new(DaemonCommandErrorKind::Trouble, message).with_hint("heeler doctor")
    })?;
    let own = match transfer {
        ForkTransfer::Native => setup.fleet_environment().native_session_file(&source, remembered),
        // The native session stays where it is, so its content does not matter.
        ForkTransfer::Text => None,
    };
    let cut = find_fork_point(&log, own.as_deref(), wish.at_message).map_err(|error| {
        DaemonCommandError::new(
            DaemonCommandErrorKind::NotAllowed,
            format!("cannot fork {}: {error}", source.id),
        )
        .with_hint(format!(
            "heeler session show {} --history marks where it can be forked",
            source.id
        ))
    })?;
    let mut fork = create_fork(fleet, agent, &source, &log, remembered, &cut, wish)?;
    fork.forked.as_text = transfer == ForkTransfer::Text;
    Ok(fork)
}

fn create_fork(
    fleet: &EngineContext,
    agent: &AgentConfig,
    source: &Session,
    log: &Utf8Path,
    remembered: &AgentSessionId,
    cut: &ResolvedForkPoint,
    wish: &ForkOptions,
) -> Result<PreparedFork, DaemonCommandError> {
    // The record is inserted later, so the id is checked again in the transaction.
    let id = SessionId::mint(fastrand::u32(..));
    let own = uuid::Builder::from_random_bytes(std::array::from_fn(|_| fastrand::u8(..)));
    let own: AgentSessionId = own.into_uuid().to_string().parse().expect("a UUID is a session id");
    let place = match wish.workspace {
        true => Some(worktree::create_worktree(&fleet.dir, &id, source, cut)?),
        false => None,
    };
    let directory = place.as_ref().map(|place| place.directory.clone());
    let sources = source.working_directory.clone().filter(|_| source.agent == agent.name.as_str());
    let directory = directory.or(sources).unwrap_or_else(|| agent.working_directory.clone());
    let log_path = StateDir::session_log_relative(&directory, &own);
    copy_log(&fleet.dir, log, &log_path, cut.end)?;
    let is_whole = cut.number == source.message_count.unsigned_abs();
    let noted = cut.snapshot.as_ref().filter(|_| wish.workspace);
    let made = ForkedSession {
        id: id.clone(),
        agent_session_id: own.clone(),
        agent: agent.name.to_string(),
        parent: source.id.clone(),
        at_message: cut.number,
        asked_for: wish.at_message.filter(|asked| *asked != cut.number),
        workspace: place.as_ref().map(|place| place.top.clone()),
        left_out: noted.map(|note| note.left_out.clone()).unwrap_or_default(),
        others: noted.map(|note| note.others.clone()).unwrap_or_default(),
        left_behind: match wish.at_message {
            Some(_) => 0,
            None => source.message_count.unsigned_abs().saturating_sub(cut.number),
        },
        as_text: false,
    };
    let number = i64::try_from(cut.number).unwrap_or(i64::MAX);
    let session = Session {
        agent_session_id: Some(own),
        mode: source.mode,
        approvals: agent.approvals,
        message_count: number,
        // The tokens of a part of a session are unknown.
        token_estimate: if is_whole { source.token_estimate } else { 0 },
        working_directory: Some(directory),
        runtime: agent.runtime.kind().to_string(),
        parent: Some(source.id.clone()),
        forked_at_message: Some(number),
        fork: Some(PendingFork { source: remembered.clone(), at: Some(cut.uuid) }),
        workspace: made.workspace.clone(),
        log_path: Some(log_path),
        ..Session::new(id, agent.name.as_str(), (fleet.now)())
    };
    Ok(PreparedFork { session, forked: made })
}

fn copy_log(
    dir: &StateDir,
    source: &Utf8Path,
    relative: &Utf8Path,
    end: u64,
) -> Result<(), DaemonCommandError> {
    let copy =
        resolve_inside(dir.root(), relative.as_str()).map_err(|error| internal_error(&error))?;
    let folder = copy.parent().expect("a log is in its project's folder");
    create_folder(&OsDisk, folder).map_err(|error| internal_error(&error))?;
    copy_prefix(&OsDisk, source, &copy, CopyLimit::Offset(end))
        .map_err(|error| internal_error(&error))?;
    Ok(())
}

/// How the agent of a fork learns the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ForkTransfer {
    /// The agent program forks its own session.
    Native,
    /// The first prompt contains the conversation as text.
    Text,
}

/// Returns how an agent gets the history of a session. Only Claude and scripted agents fork their own
/// sessions.
fn find_transfer(
    source: &Session,
    agent: &AgentConfig,
) -> Result<ForkTransfer, DaemonCommandError> {
    let family = |runtime: RuntimeType| match runtime {
        RuntimeType::Sdk | RuntimeType::Cli => Some("claude"),
        RuntimeType::Scripted => Some("a script"),
        RuntimeType::Command | RuntimeType::Acp | RuntimeType::Codex | RuntimeType::Qwen => None,
    };
    let own = agent.runtime.kind();
    // If an import did not record the runtime, the agent program decides.
    let made_by: Option<RuntimeType> = source.runtime.parse().ok();
    if own == RuntimeType::Command || made_by == Some(RuntimeType::Command) {
        let message = match own {
            RuntimeType::Command => format!("{} is a command, which has no sessions", agent.name),
            _ => format!("session {} is that of a command, which has no conversation", source.id),
        };
        return Err(DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message));
    }
    match family(own) {
        None => Ok(ForkTransfer::Text),
        Some(own) if made_by.is_none_or(|made_by| family(made_by) == Some(own)) => {
            Ok(ForkTransfer::Native)
        }
        Some("claude") if made_by.is_some_and(RuntimeType::has_program) => Ok(ForkTransfer::Text),
        Some(own) => {
            let message = format!(
                "session {} was made by runtime {}, {} has {own}",
                source.id, source.runtime, agent.name
            );
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
            Err(refused.with_hint("--as names an agent with the same runtime"))
        }
    }
}

pub(super) fn commit_fork(
    tx: &mut StoreTransaction<'_>,
    fork: &PreparedFork,
    now: Timestamp,
) -> Result<CommandReply, DispatchFailure> {
    // The source may have been deleted while the files were copied.
    if tx.session(&fork.forked.parent)?.is_none() {
        return Err(session_not_found(&fork.forked.parent).into());
    }
    // The id is part of the worktree's path, so it cannot be replaced now.
    if tx.session(&fork.session.id)?.is_some() || tx.deleted_session(&fork.session.id)?.is_some() {
        let message = "another session got the same id by chance";
        return Err(DaemonCommandError::new(DaemonCommandErrorKind::Trouble, message)
            .with_hint("repeat the command")
            .into());
    }
    // The times are those of the commit, because preparing a worktree may take minutes.
    let session = Session { created_at: now, last_active_at: now, ..fork.session.clone() };
    tx.put_session(&session)?;
    tracing::info!(session = %session.id, parent = %fork.forked.parent, at = fork.forked.at_message, "forked");
    Ok(CommandReply::Session(Box::new(fork.forked.clone())))
}
