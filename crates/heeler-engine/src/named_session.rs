//! Lookup of a session that a caller names by ID.
//!
//! The ID is trusted, because the agent program may have sessions that Heeler does not know. An ID
//! that neither Heeler nor the agent program knows is refused, because it would silently start a
//! new session. Nothing is written here. Start at [`find_named_session`].

use std::fs::DirEntry;
use std::io::{self, ErrorKind};

use camino::Utf8Path;
use heeler_model::{AgentSessionId, NativeSessionLocation, Session};
use heeler_store::StateDatabase;

use crate::resolved_request::ResolvedJobRequest;
use crate::run_start::RunStartError;

/// Returns the stored session that a request names; `None` if only the agent program knows it.
pub(crate) fn find_named_session(
    db: &StateDatabase,
    request: &ResolvedJobRequest,
    id: &AgentSessionId,
) -> Result<Option<Session>, RunStartError> {
    let known = db.session_by_agent_id(id)?;
    // A session may have been deleted and adopted again, and then the new record counts.
    if let Some(deleted) = db.deleted_session_by_agent_id(id)?
        && known.is_none()
        && deleted.purged_at.is_none()
    {
        return Err(RunStartError::Deleted { session: deleted.session.id });
    }
    let record = match &known {
        Some(session) if session.agent == request.agent.as_str() => return Ok(known),
        Some(session) if belongs_to_other_agent(session, request) => {
            let (session, agent) = (session.id.clone(), session.agent.clone());
            return Err(RunStartError::OthersSession { session, agent });
        }
        // An imported session may never have been a native session of this agent's program.
        Some(session) => format!("it is recorded under `{}`", session.agent),
        None => "it is not recorded".to_owned(),
    };
    let env = &request.brief.env;
    let own = NativeSessionLocation::for_agent(
        request.runtime,
        env,
        &request.home,
        &request.working_directory,
    );
    let why = match own {
        // The place of the agent's sessions is unknown, so its program decides.
        NativeSessionLocation::Unknown => return Ok(known),
        NativeSessionLocation::Directory(projects) if may_exist(&projects, id) => return Ok(known),
        NativeSessionLocation::Directory(projects) => format!("{record} and not in {projects}"),
        NativeSessionLocation::None => format!("{record}, and {} keeps no sessions", request.agent),
    };
    Err(RunStartError::NoSession { session: id.clone(), why })
}

/// Returns true if the session belongs to another agent of the config. A session whose owner is
/// unknown after an import, or no longer in the config, may be used by any agent.
fn belongs_to_other_agent(session: &Session, request: &ResolvedJobRequest) -> bool {
    let owner = session.agent.as_str();
    owner != request.agent.as_str() && request.fleet_agents.iter().any(|it| it.as_str() == owner)
}

/// Returns true if the native session exists in any project, or may exist because a directory
/// cannot be read: an agent resumes sessions of other projects too, and decides itself.
fn may_exist(projects: &Utf8Path, id: &AgentSessionId) -> bool {
    let is_there = |found: io::Result<bool>| match found {
        Ok(found) => found,
        Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    };
    let name = format!("{id}.jsonl");
    let is_in = |folder: io::Result<DirEntry>| {
        let log = folder.and_then(|folder| std::fs::metadata(folder.path().join(&name)));
        is_there(log.map(|log| log.is_file()))
    };
    is_there(std::fs::read_dir(projects).map(|mut folders| folders.any(is_in)))
}
