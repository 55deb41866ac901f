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
    match known.map_err(|error| StartError::Read(Box::new(error)))? {
        Some(session) if session.agent != request.agent.as_str() => {
            Err(StartError::OthersSession { session: session.id, agent: session.agent })
        }
        Some(session) => Ok(Some(session)),
        None => match own_sessions(request) {
            Sessions::Unknown => Ok(None),
            Sessions::In(projects) if has(&projects, id) => Ok(None),
            Sessions::In(projects) => {
                let place = format!(" and not in {projects}");
                Err(StartError::NoSession { session: id.clone(), place })
            }
            Sessions::None => {
                Err(StartError::NoSession { session: id.clone(), place: String::new() })
            }
        },
    }
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
