//! Moves of sessions between the hosts of a fleet.
//!
//! The leader begins and ends a move by its row ([`begin_move`], [`settle_moves`]). The source packs the
//! session as an export does ([`pack_session`]), and the target places it as an import does
//! ([`place_session`]), under the same ID. Until the leader has recorded the end, the session is on the
//! source, of which no file is changed.

use std::error::Error;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{HostChoice, RuntimeType};
use heeler_model::redact::SecretRedactor;
use heeler_model::session_move::{
    MoveRefusalKind, MoveSettlement, OpenMoveFacts, SessionMoveDecision, SessionMoveFacts,
    SessionMoveObstacle, SessionMoveRefusal, check_move, settle_move,
};
use heeler_model::{AgentSessionId, Session, SessionId, error_chain};
use heeler_store::bundle::{
    self, BundleContents, BundleExportError, NativeSessionFile, SessionBundle,
};
use heeler_store::native::{self, NativeProgram, PortableNativeSession};
use heeler_store::{
    DatabaseError, NewSessionMove, SESSION_MOVE_SECONDS_MAX, SessionMoveReport, SessionMoveRow,
    StoreReader, StoreTransaction,
};
use uuid::Uuid;

use super::adoption::NativePlaces;
use super::errors::{internal_error, session_not_found};
use super::worktree::has_own_directory;
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::dispatch_failure::DispatchFailure;
use crate::fleet::EngineContext;
use crate::run_assignment::host_candidate;
use crate::setup::DaemonSetup;

/// A request to move a session, with what the config says of its agent.
#[derive(Debug)]
pub(crate) struct SessionMoveOrder {
    session: SessionId,
    to: String,
    choice: Option<HostChoice>,
    /// The host that leads.
    own: Option<String>,
}

/// Reads what the decision about a move needs of the config.
pub(super) fn prepare_move(
    fleet: &EngineContext,
    setup: &DaemonSetup,
    reader: &StoreReader,
    session: &SessionId,
    to: String,
) -> Result<SessionMoveOrder, DaemonCommandError> {
    let found = reader.session(session).map_err(|error| internal_error(&error))?;
    let found = found.ok_or_else(|| session_not_found(session))?;
    let choice = setup.find_agent(&found.agent)?.host.clone();
    let own = fleet.dir.host().map(|host| host.name.to_string());
    Ok(SessionMoveOrder { session: session.clone(), to, choice, own })
}

/// Decides about a move and records its begin.
pub(super) fn begin_move(
    tx: &mut StoreTransaction<'_>,
    order: &SessionMoveOrder,
    by: &str,
) -> Result<CommandReply, DispatchFailure> {
    let session = tx.session(&order.session)?.ok_or_else(|| session_not_found(&order.session))?;
    let hosts = tx.hosts()?;
    if hosts.is_empty() || order.own.is_none() {
        let message = "this fleet has one machine only";
        let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
        return Err(refused.with_hint("heeler session export").into());
    }
    let hosts: Vec<_> =
        hosts.iter().map(|host| host_candidate(host, order.own.as_deref())).collect();
    let native = session.agent_session_id.as_ref();
    let source = native.map(|native| tx.session_host(native)).transpose()?.flatten();
    let last_run = native.map(|native| tx.last_session_run(native)).transpose()?.flatten();
    let obstacle = find_obstacle(tx, &session)?;
    let open = tx.session_move(&session.id)?.filter(|moved| moved.state.is_open());
    let decision = check_move(&SessionMoveFacts {
        session: session.id.as_str(),
        agent: &session.agent,
        choice: order.choice.as_ref(),
        source: source.as_deref(),
        target: &order.to,
        obstacle: obstacle.as_ref(),
        open_target: open.as_ref().map(|moved| moved.target.as_str()),
        hosts: &hosts,
    });
    let decision = decision.map_err(refusal)?;
    let (id, to) = (&session.id, &order.to);
    if let (SessionMoveDecision::Begin, Some(native), Some(source), Some(run)) =
        (decision, native, &source, last_run)
    {
        tx.begin_session_move(&NewSessionMove {
            session: id,
            id: Uuid::new_v4(),
            native,
            source,
            target: to,
            after_run: run.id,
            by,
        })?;
        tracing::info!(session = %id, from = source, to, by, "a session moves to another host");
    }
    let message = format!("session {id} is being moved to host `{to}`");
    Ok(CommandReply::Done { message })
}

fn refusal(refused: SessionMoveRefusal) -> DaemonCommandError {
    let kind = match refused.kind {
        MoveRefusalKind::UnknownHost => DaemonCommandErrorKind::NotFound,
        MoveRefusalKind::Busy => DaemonCommandErrorKind::Busy,
        MoveRefusalKind::NotAllowed => DaemonCommandErrorKind::NotAllowed,
    };
    DaemonCommandError::new(kind, refused.reason).with_hint(refused.cure)
}

fn find_obstacle(
    tx: &StoreTransaction<'_>,
    session: &Session,
) -> Result<Option<SessionMoveObstacle>, DatabaseError> {
    if session.fork.is_some() {
        return Ok(Some(SessionMoveObstacle::UnstartedFork));
    }
    if session.log_path.as_ref().is_some_and(|log| log.is_absolute()) {
        return Ok(Some(SessionMoveObstacle::Conversation));
    }
    if has_own_directory(session) {
        return Ok(Some(SessionMoveObstacle::OwnDirectory));
    }
    let Some(native) = &session.agent_session_id else { return Ok(None) };
    let uses = |id: &Option<AgentSessionId>| id.as_ref() == Some(native);
    let running = tx.running_jobs()?.into_iter().find(|job| uses(&job.session_id));
    let unended = tx.last_session_run(native)?.filter(|run| !run.committed);
    let job = running.map(|job| job.id).or(unended.map(|run| run.job_id));
    Ok(job.map(|job| SessionMoveObstacle::AtWork { job: job.to_string() }))
}

/// Gives up the move of a session.
pub(super) fn cancel_move(
    tx: &mut StoreTransaction<'_>,
    session: &SessionId,
    by: &str,
) -> Result<CommandReply, DispatchFailure> {
    let Some(moved) = tx.session_move(session)?.filter(|moved| moved.state.is_open()) else {
        let message = format!("session {session} is not being moved");
        return Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, message).into());
    };
    tx.end_session_move(moved.id, &format!("cancelled by {by}"))?;
    tracing::info!(%session, by, "the move of a session was cancelled");
    Ok(CommandReply::Done {
        message: format!("session {session} stays on host `{}`", moved.source),
    })
}

/// Records the ends of moves that the hosts have done, or for which there was no time left.
pub(crate) fn settle_moves(tx: &mut StoreTransaction<'_>) -> Result<(), DatabaseError> {
    for moved in tx.due_moves()? {
        let session = tx.session(&moved.session)?;
        let last_run = tx.last_session_run(&moved.native)?.map(|run| run.id.to_string());
        let outcome = settle_move(&OpenMoveFacts {
            state: moved.state,
            source: &moved.source,
            target: &moved.target,
            is_overdue: moved.is_overdue,
            after_run: &moved.after_run,
            last_run: session.as_ref().map(|_| last_run.as_deref().unwrap_or_default()),
        });
        let id = &moved.session;
        match (outcome, session) {
            (MoveSettlement::Done, Some(session)) => {
                let log = session.log_path.clone().unwrap_or_default();
                if !tx.finish_session_move(&moved, log.as_str())? {
                    continue;
                }
                let position = moved.report.as_ref().and_then(|report| report.position);
                if position.is_some() {
                    tx.put_session(&Session { own: position, ..session })?;
                }
                tracing::info!(session = %id, host = moved.target, "a session has moved");
            }
            (MoveSettlement::Ended(reason), _) => {
                let limit = SESSION_MOVE_SECONDS_MAX;
                tracing::warn!(session = %id, reason, limit, "the move of a session was given up");
                tx.end_session_move(moved.id, &reason)?;
            }
            (MoveSettlement::Waits | MoveSettlement::Done, _) => {}
        }
    }
    Ok(())
}

/// Failure to pack or place a session.
#[derive(Debug)]
pub(crate) enum SessionPackError {
    /// Another attempt would fail too.
    Refused(String),
    /// It may succeed later.
    Later(String),
}

fn refused(error: &dyn Error) -> SessionPackError {
    SessionPackError::Refused(error_chain(error))
}

fn later(error: &dyn Error) -> SessionPackError {
    SessionPackError::Later(error_chain(error))
}

/// Finds the working directory and the native sessions of a session's agent on this host.
fn find_places(
    setup: &DaemonSetup,
    session: &Session,
) -> Result<(NativePlaces, RuntimeType), SessionPackError> {
    let agent = setup.find_agent(&session.agent);
    let agent = agent.map_err(|error| SessionPackError::Refused(error.message))?;
    let places = NativePlaces::of(setup, agent);
    let places = places.map_err(|error| SessionPackError::Refused(error.message))?;
    Ok((places, agent.runtime.kind()))
}

/// Writes the bundle of a session of this host. Returns the length of Claude's native file, if it is one
/// of Claude.
pub(crate) fn pack_session(
    fleet: &EngineContext,
    setup: &DaemonSetup,
    session: &Session,
    out: &mut dyn io::Write,
) -> Result<Option<u64>, SessionPackError> {
    let (places, _) = find_places(setup, session)?;
    // The record names the directory on the host that led when the session began.
    let here = Session { working_directory: Some(places.cwd.clone()), ..session.clone() };
    let log = fleet.dir.session_log_path(None, session).filter(|log| log.is_file());
    let native = session.agent_session_id.as_ref();
    let own_file = native.and_then(|id| setup.fleet_environment().native_session_file(&here, id));
    let own_file = own_file.filter(|file| file.is_file());
    let other = match (&own_file, &log) {
        (None, Some(log)) => find_other_session(setup, session, &here, log)?,
        _ => None,
    };
    if own_file.is_none() && other.is_none() {
        let reason = "its native session does not exist here, or its runtime keeps none";
        return Err(SessionPackError::Refused(reason.to_owned()));
    }
    let native_bytes = own_file.as_ref().map(|path| path.metadata().map(|found| found.len()));
    let native_bytes = native_bytes.transpose().map_err(|error| later(&error))?;
    let contents = BundleContents {
        session: &here,
        // They are on record for all hosts.
        jobs: &[],
        log: log.as_deref(),
        native_file: own_file.as_deref().map(|path| NativeSessionFile { path, fork: None }),
        native_session: other.as_ref(),
        workspace: Vec::new(),
        redactor: &SecretRedactor::new(&setup.secrets()),
    };
    match bundle::write(contents, out) {
        Ok(_) => Ok(native_bytes),
        Err(error @ BundleExportError::TooLong { .. }) => Err(refused(&error)),
        Err(error) => Err(later(&error)),
    }
}

/// Finds the native session of a program besides Claude Code.
fn find_other_session(
    setup: &DaemonSetup,
    session: &Session,
    here: &Session,
    log: &Utf8Path,
) -> Result<Option<PortableNativeSession>, SessionPackError> {
    let opened = native::last_opened(log).map_err(|error| later(&error))?;
    let Some((agent, id)) = opened else { return Ok(None) };
    let program = NativeProgram::ALL.into_iter().find(|program| program.as_str() == agent);
    let program = program.ok_or_else(|| {
        SessionPackError::Refused(format!("native sessions of {agent} cannot be moved"))
    })?;
    let folder = setup.fleet_environment().native_folder(here, program);
    let folder = folder.ok_or_else(|| {
        SessionPackError::Refused(format!("the folder of {program}'s sessions is unknown"))
    })?;
    let directories = [&here.working_directory, &session.working_directory];
    let directories: Vec<&Utf8Path> = directories.into_iter().flatten().map(|it| &**it).collect();
    native::find_portable(&folder, &id, &directories).map(Some).map_err(|error| refused(&error))
}

/// Places the native session of a session that moves to this host. Returns the bundle, of which the
/// transcript is left to place, and the report.
pub(crate) fn place_session(
    setup: &DaemonSetup,
    session: &Session,
    moved: &SessionMoveRow,
    file: &Utf8Path,
) -> Result<(SessionBundle, SessionMoveReport), SessionPackError> {
    let bundle = bundle::open(file).map_err(|error| refused(&error))?;
    // The bundle is of another machine, the record is the fleet's.
    let is_same = bundle.session.id == moved.session
        && bundle.session.agent_session_id.as_ref() == Some(&moved.native)
        && session.agent_session_id.as_ref() == Some(&moved.native);
    if !is_same {
        return Err(SessionPackError::Refused("the bundle is of another session".to_owned()));
    }
    let (places, runtime) = find_places(setup, session)?;
    let placed = bundle::place_native_session(&bundle, &places.destination());
    let placed = placed.map_err(|error| refused(&error))?;
    let Some(placed) = placed else {
        let message = format!(
            "{} has runtime {runtime} here, which cannot continue the session",
            session.agent
        );
        return Err(SessionPackError::Refused(message));
    };
    let path: &Utf8PathBuf = &placed.path;
    tracing::info!(session = %session.id, %path, "the native session is placed");
    // A file of the same length is that of the source, so its position on record stays right. Otherwise
    // a secret was removed.
    let is_unchanged = |bytes: u64| moved.native_bytes == Some(bytes);
    let position = placed.position.filter(|position| !is_unchanged(position.bytes));
    Ok((bundle, SessionMoveReport { position }))
}
