//! Native sessions: sessions that people started with an agent program in a terminal.
//!
//! They are found, listed and read in the program's own directory, and never changed. Their text
//! was never redacted, so it must pass through a [`DisplayRedactor`] before it is shown. Start at
//! [`list()`] and [`find()`].

mod chat_files;
mod chat_history;
mod chat_rows;
mod codex_rollout;
mod external_messages;
mod folder_history;
mod known_sessions;
mod native_placement;
mod native_rows;
mod native_session;
mod parser;
mod portable_session;
mod program;
mod redactor;
mod rollout_files;
mod rollout_history;
mod rollout_rows;
mod session_folders;

use std::io;
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{AgentSessionId, project_slug};
use heeler_transcript::DiskError;
use jiff::Timestamp;
use thiserror::Error;
use uuid::Uuid;

pub use external_messages::read_external_messages;
pub use known_sessions::{is_opened_by_run, last_opened};
pub use native_placement::NativePlacementError;
pub(crate) use native_placement::{DirectoryMove, NativePlacement, is_description_small};
pub use native_rows::NativeRows;
pub use native_session::NativeSession;
pub use portable_session::{
    NativeExportError, NativeSessionHeader, PortableNativeSession, find_portable,
};
pub use program::{NATIVE_FILES_MAX, NativeFolder, NativeProgram, native_folders};
pub use redactor::DisplayRedactor;

use native_session::NativeSessionCandidate;

/// Most candidates that an ambiguous id lists.
const CANDIDATES_MAX: usize = 10;

#[derive(Debug, Clone, Default)]
pub struct NativeSessionFilter {
    /// Only sessions started in this directory, a real path.
    pub cwd: Option<Utf8PathBuf>,
    /// Only sessions used at or after this time.
    pub since: Option<Timestamp>,
    /// Only sessions that follow the one with this id in the list.
    pub before: Option<AgentSessionId>,
}

#[derive(Debug, Default)]
pub struct NativeSessionPage {
    /// Most recently used first.
    pub sessions: Vec<NativeSession>,
    /// Number of sessions that match the filter.
    pub total: usize,
    /// Files that could not be read.
    pub unreadable: Vec<DiskError>,
}

/// Failure to read native sessions.
#[derive(Debug, Error)]
pub enum NativeSessionError {
    #[error("{program} has no session `{id}` in {folder}")]
    Unknown { program: NativeProgram, id: String, folder: Utf8PathBuf },
    /// The list has no session to continue from.
    #[error("there is no native session `{id}` to continue the list from")]
    UnknownPosition { id: AgentSessionId },
    /// Several sessions start with this id.
    #[error("`{id}` may be any of: {}", candidates.join(", "))]
    Ambiguous {
        id: String,
        /// Some of the matches.
        candidates: Vec<String>,
    },
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Lists the sessions of all these folders, most recently used first. Only the beginning and end
/// of each file are read.
pub fn list(
    folders: &[NativeFolder],
    filter: &NativeSessionFilter,
    limit: usize,
) -> Result<NativeSessionPage, NativeSessionError> {
    let mut found = Vec::new();
    for folder in folders {
        found.extend(files(folder, filter.cwd.as_deref())?);
    }
    sort_by_use(&mut found);
    let since = filter.since.map(SystemTime::from);
    found.retain(|file| since.is_none_or(|since| file.modified_at >= since));
    let total = found.len();
    if let Some(before) = &filter.before {
        // The id is a position in this order, so a vanished session ends the paging with an error.
        let at = found.iter().position(|file| file.id == *before);
        let at = at.ok_or_else(|| NativeSessionError::UnknownPosition { id: before.clone() })?;
        found.drain(..=at);
    }
    let mut page = NativeSessionPage { total, ..NativeSessionPage::default() };
    for file in found {
        if page.sessions.len() == limit {
            break;
        }
        let summary = match file.program {
            NativeProgram::Claude => parser::read_summary(&file),
            NativeProgram::Codex => codex_rollout::read_summary(&file),
            _ => chat_history::read_summary(&file),
        };
        // One unreadable file must not hide the others.
        match summary {
            Ok(session) => page.sessions.push(session),
            Err(error) => page.unreadable.push(error),
        }
    }
    Ok(page)
}

/// Finds a session by its id or a unique prefix, and reads the whole file.
pub fn find(folder: &NativeFolder, id: &str) -> Result<NativeSession, NativeSessionError> {
    let mut found = files(folder, None)?;
    sort_by_use(&mut found);
    let read = |file: &NativeSessionCandidate| match file.program {
        NativeProgram::Claude => parser::read_full(file),
        NativeProgram::Codex => codex_rollout::read_full(file),
        _ => chat_history::read_full(file),
    };
    if let Some(at) = found.iter().position(|file| file.id.as_str() == id) {
        return Ok(read(&found[at])?);
    }
    found.retain(|file| !id.is_empty() && file.id.as_str().starts_with(id));
    // A session that was continued from another directory has a file in each.
    found.dedup_by(|a, b| a.id == b.id);
    match found.as_slice() {
        [] => Err(NativeSessionError::Unknown {
            program: folder.program,
            id: id.to_owned(),
            folder: folder.path.clone(),
        }),
        [one] => Ok(read(one)?),
        several => {
            let candidates = several.iter().take(CANDIDATES_MAX).map(|file| file.id.to_string());
            Err(NativeSessionError::Ambiguous {
                id: id.to_owned(),
                candidates: candidates.collect(),
            })
        }
    }
}

/// Lists the files of Claude's sessions, most recently used first; used for a search.
pub fn paths(projects: &Utf8Path) -> Result<Vec<Utf8PathBuf>, NativeSessionError> {
    let mut found = claude_files(projects, None)?;
    sort_by_use(&mut found);
    Ok(found.into_iter().map(|file| file.path).collect())
}

/// Sorts files, most recently used first.
fn sort_by_use(found: &mut [NativeSessionCandidate]) {
    // The path breaks ties, so that pages do not overlap.
    found.sort_by(|a, b| (b.modified_at, &b.path).cmp(&(a.modified_at, &a.path)));
}

fn files(
    folder: &NativeFolder,
    cwd: Option<&Utf8Path>,
) -> Result<Vec<NativeSessionCandidate>, DiskError> {
    match folder.program {
        NativeProgram::Claude => claude_files(&folder.path, cwd),
        NativeProgram::Codex => {
            let mut found = codex_rollout::list_rollouts(&folder.path);
            // The directory is in the file only. A file that cannot be read is not of this one.
            found.retain(|file| {
                cwd.is_none_or(|cwd| {
                    codex_rollout::read_cwd(&file.path).is_ok_and(|it| it.as_deref() == Some(cwd))
                })
            });
            Ok(found)
        }
        program @ (NativeProgram::Qwen | NativeProgram::Gemini) => {
            let mut found = chat_files::chat_files(program, &folder.path);
            found.retain(|file| {
                cwd.is_none_or(|cwd| {
                    chat_files::read_cwd(program, &file.path).as_deref() == Some(cwd)
                })
            });
            Ok(found)
        }
        program @ (NativeProgram::Copilot | NativeProgram::Kimi | NativeProgram::Grok) => {
            let mut found = session_folders::session_folders(program, &folder.path);
            found.retain(|file| {
                let is_here = cwd.is_none_or(|cwd| {
                    session_folders::read_cwd(file).is_ok_and(|it| it.as_deref() == Some(cwd))
                });
                is_here && !session_folders::is_of_sub_agent(file)
            });
            Ok(found)
        }
    }
}

/// Lists Claude's files. A missing directory means that Claude was never used.
fn claude_files(
    projects: &Utf8Path,
    cwd: Option<&Utf8Path>,
) -> Result<Vec<NativeSessionCandidate>, DiskError> {
    let failed = |path: &Utf8Path, source| DiskError { action: "list", path: path.into(), source };
    let folders = match projects.read_dir_utf8() {
        Ok(folders) => folders,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(projects, error)),
    };
    let wanted = cwd.map(project_slug);
    let mut found = Vec::new();
    for folder in folders.take(NATIVE_FILES_MAX).filter_map(Result::ok) {
        // Claude names the directory after the working directory, with replaced characters.
        if wanted.as_deref().is_some_and(|wanted| wanted != folder.file_name()) {
            continue;
        }
        // An unreadable directory belongs to another user.
        let Ok(entries) = folder.path().read_dir_utf8() else { continue };
        found.extend(entries.take(NATIVE_FILES_MAX).filter_map(Result::ok).filter_map(session));
    }
    Ok(found)
}

fn session(entry: camino::Utf8DirEntry) -> Option<NativeSessionCandidate> {
    let path = entry.path();
    let name = path.file_stem().filter(|_| path.extension() == Some("jsonl"))?;
    // Files of sub-agents are in the same directory, and their names are not UUIDs.
    Uuid::try_parse(name).ok()?;
    // A link could lead to a file of another kind.
    let file = path.symlink_metadata().ok().filter(|file| file.is_file())?;
    Some(NativeSessionCandidate {
        program: NativeProgram::Claude,
        modified_at: file.modified().ok()?,
        path: path.to_owned(),
        id: name.parse().ok()?,
    })
}

#[cfg(test)]
mod tests;
