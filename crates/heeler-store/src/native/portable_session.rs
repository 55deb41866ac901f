//! Native sessions that a session bundle can carry: those with their messages in one file.
//!
//! The path of the file is found by the ID of the session, as for an adoption, and no link is followed.
//! Start at [`find_portable`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::AgentSessionId;
use heeler_transcript::DiskError;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use thiserror::Error;

use super::program::{NativeFolder, NativeProgram};
use super::rollout_history::history_parts;
use super::session_folders::{read_description, refuse_links};
use super::{chat_files, codex_rollout, files, session_folders};

/// A native session that can be exported.
#[derive(Debug, Clone, PartialEq)]
pub struct PortableNativeSession {
    /// File with the messages.
    pub path: Utf8PathBuf,
    pub header: NativeSessionHeader,
}

/// What a bundle says of a native session besides its messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NativeSessionHeader {
    pub program: NativeProgram,
    /// Program's ID of the session.
    pub id: AgentSessionId,
    /// Name of the file with the messages.
    pub name: String,
    /// Working directory in which the session was made.
    pub directory: Utf8PathBuf,
    /// Content of the program's file that describes the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<Json>,
}

/// Reason that a bundle cannot carry a native session.
#[derive(Debug, Error)]
pub enum NativeExportError {
    #[error("{program} no longer has its session {id}")]
    Missing { program: NativeProgram, id: AgentSessionId },
    /// Codex reverted turns of the thread, or made it as a fork.
    #[error("{program} keeps its session {id} in several files")]
    SeveralFiles { program: NativeProgram, id: AgentSessionId },
    /// The transcript names a session of another directory, which an agent may have chosen.
    #[error("the session {id} of {program} was not made in the directory of this one")]
    OtherDirectory { program: NativeProgram, id: AgentSessionId },
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Finds a native session that a bundle can carry. It must have been made in one of these directories:
/// the agent reported its ID, and could name a session of a person.
pub fn find_portable(
    folder: &NativeFolder,
    id: &AgentSessionId,
    directories: &[&Utf8Path],
) -> Result<PortableNativeSession, NativeExportError> {
    let program = folder.program;
    let missing = || NativeExportError::Missing { program, id: id.clone() };
    let found = files(folder, None)?.into_iter().filter(|file| file.id == *id);
    let file = found.max_by_key(|file| file.modified_at).ok_or_else(missing)?;
    let directory = match program {
        // Claude's own file is another part of a bundle.
        NativeProgram::Claude => return Err(missing()),
        NativeProgram::Codex => {
            if history_parts(&file.path)?.len() > 1 {
                return Err(NativeExportError::SeveralFiles { program, id: id.clone() });
            }
            codex_rollout::read_cwd(&file.path)?
        }
        NativeProgram::Qwen | NativeProgram::Gemini => chat_files::read_cwd(program, &file.path),
        NativeProgram::Copilot | NativeProgram::Kimi | NativeProgram::Grok => {
            refuse_links(program, &file.path).map_err(|source| DiskError {
                action: "read",
                path: file.path.clone(),
                source,
            })?;
            session_folders::read_cwd(&file)?
        }
    };
    let real = |path: &Utf8Path| path.canonicalize_utf8().unwrap_or_else(|_| path.to_owned());
    let is_ours = |made_in: &Utf8PathBuf| {
        let made_in = real(made_in);
        directories.iter().any(|directory| real(directory) == made_in)
    };
    let directory = directory
        .filter(is_ours)
        .ok_or_else(|| NativeExportError::OtherDirectory { program, id: id.clone() })?;
    let name = file.path.file_name().ok_or_else(missing)?.to_owned();
    let description = Some(read_description(program, &file.path)).filter(Json::is_object);
    let header = NativeSessionHeader { program, id: id.clone(), name, directory, description };
    Ok(PortableNativeSession { path: file.path, header })
}
