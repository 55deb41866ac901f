//! A fork: a new session that knows another's history up to a message.
//!
//! The cut is an entry of the source, found now: whatever the source does later, the fork begins
//! there. Its log has the source's rows up to the cut from the start; what its agent remembers is
//! made by the agent itself when the fork first runs. The source is only read.

use camino::Utf8Path;
use heeler_model::config::{Agent, RuntimeType};
use heeler_model::{AgentSessionId, ForkCut, Session, SessionId};
use heeler_store::history::{FoundCut, find_cut};
use heeler_store::{DbError, Reader, StateDir, Tx};
use heeler_transcript::{OsDisk, UpTo, copy_prefix, create_folder, resolve_inside};
use jiff::Timestamp;

use super::{MadeSession, place, trouble, unknown};
use crate::command::{Answer, Refused, RefusedKind};
use crate::fleet::Fleet;
use crate::prepare::runtime_type;
use crate::setup::Setup;

/// How a fork is wanted.
pub(super) struct Wish {
    pub(super) at_message: Option<u64>,
    pub(super) agent: Option<String>,
    pub(super) workspace: bool,
}

/// A fork that is ready to count.
#[derive(Debug)]
pub(crate) struct Fork {
    session: Session,
    made: MadeSession,
}

/// Finds the cut and makes the files of the fork.
pub(super) fn prepare(
    fleet: &Fleet,
    setup: &Setup,
    reader: &Reader,
    id: &SessionId,
    wish: &Wish,
) -> Result<Fork, Refused> {
    let source = reader.session(id).map_err(|error| trouble(&error))?;
    let source = source.ok_or_else(|| unknown(id))?;
    let agent = setup.find_agent(wish.agent.as_deref().unwrap_or(&source.agent))?;
    check_runtime(&source, agent)?;
    if source.workspace.is_some() && !wish.workspace {
        let message = format!("session {id} has its own worktree, and the fork would be without");
        let refused = Refused::new(RefusedKind::NotAllowed, message);
        return Err(refused.hint("--workspace gives it one too"));
    }
    let own_id = source.agent_session_id.clone().ok_or_else(|| {
        let message = format!("session {} has not begun: there is nothing to fork", source.id);
        Refused::new(RefusedKind::NotAllowed, message)
    })?;
    // A fork that has not begun is known to the agent only as its source.
    let remembered = source.fork.as_ref().map_or(&own_id, |fork| &fork.source);
    let log = fleet.dir.session_log_path(Some(&setup.home), &source);
    let log = log.filter(|log| log.is_file()).ok_or_else(|| {
        let message = format!("the log of session {} is not there", source.id);
        Refused::new(RefusedKind::Trouble, message).hint("heeler doctor")
    })?;
    let own = setup.around().own_file(&source, remembered);
    let cut = find_cut(&log, own.as_deref(), wish.at_message).map_err(|error| {
        Refused::new(RefusedKind::NotAllowed, format!("cannot fork {}: {error}", source.id))
            .hint(format!("heeler session show {} --history marks where it can be cut", source.id))
    })?;
    make(fleet, agent, &source, &log, remembered, &cut, wish)
}

fn make(
    fleet: &Fleet,
    agent: &Agent,
    source: &Session,
    log: &Utf8Path,
    remembered: &AgentSessionId,
    cut: &FoundCut,
    wish: &Wish,
) -> Result<Fork, Refused> {
    let id = SessionId::mint(fastrand::u32(..));
    let own = uuid::Builder::from_random_bytes(std::array::from_fn(|_| fastrand::u8(..)));
    let own: AgentSessionId = own.into_uuid().to_string().parse().expect("a UUID is a session id");
    let place = match wish.workspace {
        true => Some(place::worktree(&fleet.dir, &id, source, cut)?),
        false => None,
    };
    let directory = place.as_ref().map(|place| place.directory.clone());
    let sources = source.working_directory.clone().filter(|_| source.agent == agent.name.as_str());
    let directory = directory.or(sources).unwrap_or_else(|| agent.working_directory.clone());
    let log_path = StateDir::session_log_relative(&directory, &own);
    copy_log(&fleet.dir, log, &log_path, cut.end)?;
    let is_whole = cut.number == source.message_count.unsigned_abs();
    let noted = cut.snapshot.as_ref().filter(|_| wish.workspace);
    let made = MadeSession {
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
    };
    let number = i64::try_from(cut.number).unwrap_or(i64::MAX);
    let session = Session {
        agent_session_id: Some(own),
        mode: source.mode,
        approvals: agent.approvals,
        message_count: number,
        token_estimate: if is_whole { source.token_estimate } else { 0 },
        working_directory: Some(directory),
        runtime: runtime_type(&agent.runtime).to_string(),
        parent: Some(source.id.clone()),
        forked_at_message: Some(number),
        fork: Some(ForkCut { source: remembered.clone(), at: Some(cut.uuid) }),
        workspace: made.workspace.clone(),
        log_path: Some(log_path),
        ..Session::new(id, agent.name.as_str(), (fleet.now)())
    };
    Ok(Fork { session, made })
}

fn copy_log(
    dir: &StateDir,
    source: &Utf8Path,
    relative: &Utf8Path,
    end: u64,
) -> Result<(), Refused> {
    let copy = resolve_inside(dir.root(), relative.as_str()).map_err(|error| trouble(&error))?;
    let folder = copy.parent().expect("a log is in its project's folder");
    create_folder(&OsDisk, folder).map_err(|error| trouble(&error))?;
    copy_prefix(&OsDisk, source, &copy, UpTo::Offset(end)).map_err(|error| trouble(&error))?;
    Ok(())
}

/// Refuses an agent that cannot know the history: what an agent remembers is in its program's words.
fn check_runtime(source: &Session, agent: &Agent) -> Result<(), Refused> {
    let family = |runtime: RuntimeType| match runtime {
        RuntimeType::Sdk | RuntimeType::Cli => Some("claude"),
        RuntimeType::Scripted => Some("a script"),
        RuntimeType::Command => None,
    };
    let name = &agent.name;
    let Some(own) = family(runtime_type(&agent.runtime)) else {
        let message = format!("{name} is a command, which has no sessions");
        return Err(Refused::new(RefusedKind::NotAllowed, message));
    };
    // What an import does not say is the agent's to judge.
    let made_by = source.runtime.parse().ok().and_then(family);
    if made_by.is_some_and(|made_by| made_by != own) {
        let message = format!(
            "session {} was made by runtime {}, {name} has {own}",
            source.id, source.runtime
        );
        let refused = Refused::new(RefusedKind::NotAllowed, message);
        return Err(refused.hint("--as names an agent with the same runtime"));
    }
    Ok(())
}

/// Makes a fork count.
pub(super) fn commit(
    tx: &mut Tx<'_>,
    fork: &Fork,
    now: Timestamp,
) -> Result<Result<Answer, Refused>, DbError> {
    if tx.session(&fork.made.parent)?.is_none() {
        return Ok(Err(unknown(&fork.made.parent)));
    }
    if tx.session(&fork.session.id)?.is_some() || tx.deleted_session(&fork.session.id)?.is_some() {
        let message = "another session got the same id by chance";
        return Ok(Err(Refused::new(RefusedKind::Trouble, message).hint("the same again")));
    }
    let session = Session { created_at: now, last_active_at: now, ..fork.session.clone() };
    tx.put_session(&session)?;
    tracing::info!(session = %session.id, parent = %fork.made.parent, at = fork.made.at_message, "forked");
    Ok(Ok(Answer::Session(Box::new(fork.made.clone()))))
}
