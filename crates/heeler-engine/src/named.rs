//! The session that a caller names: whether there is one, and whose it is.
//!
//! A caller's id is trusted: the agent may have sessions that we know nothing of. But one that
//! neither we nor the agent have would silently begin anew. Nothing is written here. Start at
//! [`find`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::config::RuntimeType;
use heeler_model::{AgentSessionId, Session};
use heeler_store::Reader;

use crate::request::JobRequest;
use crate::start::StartError;

/// Returns what is on record of the session that a request names; `None` if only the agent knows it.
pub(crate) fn find(
    reader: &Reader,
    request: &JobRequest,
    id: &AgentSessionId,
) -> Result<Option<Session>, StartError> {
    let known = reader.session_by_agent_id(id);
    let known = known.map_err(|error| StartError::Read(Box::new(error)))?;
    let record = match &known {
        Some(session) if session.agent == request.agent.as_str() => return Ok(known),
        Some(session) if is_others(session, request) => {
            let (session, agent) = (session.id.clone(), session.agent.clone());
            return Err(StartError::OthersSession { session, agent });
        }
        // An import may have brought what was never a conversation of this agent's program.
        Some(session) => format!("it is on record under `{}`", session.agent),
        None => "it is not on record".to_owned(),
    };
    let why = match own_sessions(request) {
        Sessions::Unknown => return Ok(known),
        Sessions::In(projects) if has(&projects, id) => return Ok(known),
        Sessions::In(projects) => format!("{record} and not in {projects}"),
        Sessions::None => format!("{record}, and {} keeps none", request.agent),
    };
    Err(StartError::NoSession { session: id.clone(), why })
}

/// Says whether another agent may want it. What an import brought without its owner, or an agent left
/// that the config has no more, is whose it is used by.
fn is_others(session: &Session, request: &JobRequest) -> bool {
    let owner = session.agent.as_str();
    owner != request.agent.as_str() && request.fleet_agents.iter().any(|it| it.as_str() == owner)
}

/// Where an agent keeps its own sessions.
enum Sessions {
    /// In the folders of this one, one for each project.
    In(Utf8PathBuf),
    /// It keeps none.
    None,
    /// It finds its home itself.
    Unknown,
}

fn own_sessions(request: &JobRequest) -> Sessions {
    let folder = |name: &str| request.brief.env.get(name).filter(|path| !path.is_empty());
    match request.runtime {
        RuntimeType::Scripted => Sessions::In(request.home.join("scripted/projects")),
        RuntimeType::Command => Sessions::None,
        RuntimeType::Sdk | RuntimeType::Cli => {
            match (folder("CLAUDE_CONFIG_DIR"), folder("HOME")) {
                (Some(config), _) => Sessions::In(Utf8Path::new(config).join("projects")),
                (None, Some(home)) => Sessions::In(Utf8Path::new(home).join(".claude/projects")),
                (None, None) => Sessions::Unknown,
            }
        }
    }
}

/// Says whether a session is there. Of any project: an agent resumes a session from elsewhere too.
fn has(projects: &Utf8Path, id: &AgentSessionId) -> bool {
    let name = format!("{id}.jsonl");
    let folders = projects.read_dir_utf8().into_iter().flatten().flatten();
    folders.into_iter().any(|folder| folder.path().join(&name).is_file())
}
