//! Sessions that people made with `claude` in a terminal: found, listed and read where claude keeps
//! them. They are only ever read here.
//!
//! What people say to claude was never redacted, so all text goes through a [`DisplayRedactor`] before it is
//! shown. Start at [`list_backups`] and [`find`].

mod parser;
mod redactor;

use std::io;
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{AgentSessionId, project_slug};
use heeler_transcript::DiskError;
use jiff::Timestamp;
use thiserror::Error;
use uuid::Uuid;

pub use redactor::DisplayRedactor;

/// How many project folders, and how many files in each, are looked at.
pub const NATIVE_FILES_MAX: usize = 100_000;

/// How many candidates an ambiguous id names.
const CANDIDATES_MAX: usize = 10;

/// A session that somebody made with claude.
#[derive(Debug, Clone, PartialEq)]
pub struct NativeSession {
    /// Claude's id of it.
    pub id: AgentSessionId,
    /// Its file.
    pub path: Utf8PathBuf,
    /// Where it was made; claude resumes it from there.
    pub cwd: Option<Utf8PathBuf>,
    /// What was asked first, on one line.
    pub title: Option<String>,
    /// When it began.
    pub first_at: Option<Timestamp>,
    /// When it was last used.
    pub last_at: Option<Timestamp>,
    /// User and assistant messages.
    pub messages: u64,
    /// Whether that is a guess, from the beginning of a large file.
    pub is_estimate: bool,
    /// A rough size of its context: the last reply's input and output.
    pub tokens: u64,
    /// The size of its file.
    pub bytes: u64,
    /// The branch that was checked out.
    pub git_branch: Option<String>,
    /// The version of claude.
    pub version: Option<String>,
    /// The last entry of its conversation.
    pub last_entry: Option<Uuid>,
}

/// Which native sessions a list shows.
#[derive(Debug, Clone, Default)]
pub struct NativeSessionFilter {
    /// Only those made in this directory, a real path.
    pub cwd: Option<Utf8PathBuf>,
    /// Only those used at or after this moment.
    pub since: Option<Timestamp>,
    /// Only what comes after the one with this id in the list.
    pub before: Option<AgentSessionId>,
}

/// A page of native sessions.
#[derive(Debug, Default)]
pub struct NativeSessionPage {
    /// Last used first.
    pub sessions: Vec<NativeSession>,
    /// How many the filter shows.
    pub total: usize,
    /// The files that could not be read.
    pub unreadable: Vec<DiskError>,
}

/// Why native sessions cannot be read.
#[derive(Debug, Error)]
pub enum NativeSessionError {
    /// There is no such session.
    #[error("claude has no session `{id}` in {projects}")]
    Unknown {
        /// What was asked for.
        id: String,
        /// Where it was looked for.
        projects: Utf8PathBuf,
    },
    /// Several begin so.
    #[error("`{id}` may be any of: {}", candidates.join(", "))]
    Ambiguous {
        /// What was asked for.
        id: String,
        /// Some of them.
        candidates: Vec<String>,
    },
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A file that may be a session.
#[derive(Debug, Clone)]
struct NativeSessionCandidate {
    modified_at: SystemTime,
    path: Utf8PathBuf,
    id: AgentSessionId,
}

/// Lists the sessions in the folders of `projects`, last used first, from their beginnings and ends.
pub fn list(
    projects: &Utf8Path,
    filter: &NativeSessionFilter,
    limit: usize,
) -> Result<NativeSessionPage, NativeSessionError> {
    let mut found = files(projects, filter.cwd.as_deref())?;
    let since = filter.since.map(SystemTime::from);
    found.retain(|file| since.is_none_or(|since| file.modified_at >= since));
    let total = found.len();
    if let Some(before) = &filter.before {
        let at = found.iter().position(|file| file.id == *before);
        let at = at.ok_or_else(|| unknown(projects, before.as_str()))?;
        found.drain(..=at);
    }
    let mut page = NativeSessionPage { total, ..NativeSessionPage::default() };
    for file in found {
        if page.sessions.len() == limit {
            break;
        }
        match parser::read_summary(&file) {
            Ok(session) => page.sessions.push(session),
            Err(error) => page.unreadable.push(error),
        }
    }
    Ok(page)
}

/// Finds a session by its id, or by a beginning that only one has, and reads all of it.
pub fn find(projects: &Utf8Path, id: &str) -> Result<NativeSession, NativeSessionError> {
    let mut found = files(projects, None)?;
    if let Some(at) = found.iter().position(|file| file.id.as_str() == id) {
        return Ok(parser::read_full(&found[at])?);
    }
    found.retain(|file| !id.is_empty() && file.id.as_str().starts_with(id));
    // A session that was continued from another folder has a file in each.
    found.dedup_by(|a, b| a.id == b.id);
    match found.as_slice() {
        [] => Err(unknown(projects, id)),
        [one] => Ok(parser::read_full(one)?),
        several => {
            let candidates = several.iter().take(CANDIDATES_MAX).map(|file| file.id.to_string());
            Err(NativeSessionError::Ambiguous {
                id: id.to_owned(),
                candidates: candidates.collect(),
            })
        }
    }
}

/// Lists the files of sessions, last used first; for a search.
pub fn paths(projects: &Utf8Path) -> Result<Vec<Utf8PathBuf>, NativeSessionError> {
    Ok(files(projects, None)?.into_iter().map(|file| file.path).collect())
}

fn unknown(projects: &Utf8Path, id: &str) -> NativeSessionError {
    NativeSessionError::Unknown { id: id.to_owned(), projects: projects.to_owned() }
}

/// Lists files, last used first. Where there is no such folder, nobody has used claude.
fn files(
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
        if wanted.as_deref().is_some_and(|wanted| wanted != folder.file_name()) {
            continue;
        }
        // What cannot be read is somebody else's.
        let Ok(entries) = folder.path().read_dir_utf8() else { continue };
        found.extend(entries.take(NATIVE_FILES_MAX).filter_map(Result::ok).filter_map(session));
    }
    found.sort_by(|a, b| (b.modified_at, &b.path).cmp(&(a.modified_at, &a.path)));
    Ok(found)
}

fn session(entry: camino::Utf8DirEntry) -> Option<NativeSessionCandidate> {
    let path = entry.path();
    let name = path.file_stem().filter(|_| path.extension() == Some("jsonl"))?;
    // Those of sub-agents stand beside them under other names.
    Uuid::try_parse(name).ok()?;
    let file = path.symlink_metadata().ok().filter(|file| file.is_file())?;
    Some(NativeSessionCandidate {
        modified_at: file.modified().ok()?,
        path: path.to_owned(),
        id: name.parse().ok()?,
    })
}

#[cfg(test)]
mod tests;
