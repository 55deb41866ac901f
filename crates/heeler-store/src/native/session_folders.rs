//! The sessions of GitHub Copilot CLI, Kimi Code and Grok Build, by their names and descriptions.
//!
//! Each is a folder that is named after the session. One of its files has the messages, another may
//! describe the session. No link is followed below the folder of the program. Start at
//! [`session_folders`].

use std::io;

use camino::{Utf8DirEntry, Utf8Path, Utf8PathBuf};
use heeler_model::parse_iso;
use heeler_transcript::{DiskError, untrusted_file};
use jiff::Timestamp;
use serde_json::Value as Json;

use super::program::NATIVE_FILES_MAX;
use super::{NativeProgram, NativeSession, NativeSessionCandidate};

/// Largest file that describes a session.
pub(super) const DESCRIPTION_BYTES_MAX: u64 = 256 << 10;

/// Kind that Grok Build records for the sessions of sub-agents.
const SUB_AGENT_KIND: &str = "subagent";

/// Places of a program's files.
struct FolderLayout {
    /// True if the sessions are in folders of their working directories.
    has_projects: bool,
    /// Folders in that of the session, the outermost first, that contain the file with the messages.
    between: &'static [&'static str],
    /// File with the messages.
    messages: &'static str,
    /// File beside the messages' folder that describes the session.
    description: Option<&'static str>,
}

fn layout(program: NativeProgram) -> Option<FolderLayout> {
    let layout = |has_projects, between, messages, description| FolderLayout {
        has_projects,
        between,
        messages,
        description,
    };
    match program {
        // The first message of the file describes the session.
        NativeProgram::Copilot => Some(layout(false, &[], "events.jsonl", None)),
        NativeProgram::Kimi => {
            Some(layout(true, &["agents", "main"], "wire.jsonl", Some("state.json")))
        }
        NativeProgram::Grok => Some(layout(true, &[], "chat_history.jsonl", Some("summary.json"))),
        NativeProgram::Claude
        | NativeProgram::Codex
        | NativeProgram::Qwen
        | NativeProgram::Gemini => None,
    }
}

/// Lists the sessions below a program's folder. A missing folder means that the program was never
/// used.
pub(super) fn session_folders(
    program: NativeProgram,
    folder: &Utf8Path,
) -> Vec<NativeSessionCandidate> {
    let Some(layout) = layout(program) else { return Vec::new() };
    let sessions: Vec<Utf8PathBuf> = match layout.has_projects {
        true => {
            let all = folders(folder).flat_map(|project| folders(&project));
            all.take(NATIVE_FILES_MAX).collect()
        }
        false => folders(folder).collect(),
    };
    let candidate = |session: &Utf8PathBuf| candidate(program, session);
    sessions.iter().filter_map(candidate).collect()
}

fn folders(folder: &Utf8Path) -> impl Iterator<Item = Utf8PathBuf> + use<> {
    let entries = folder.read_dir_utf8().into_iter().flatten().filter_map(Result::ok);
    // The type of an entry is not that of a link's target, so no link is followed.
    let is_folder = |entry: &Utf8DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.filter(is_folder).map(|entry| entry.path().to_owned()).take(NATIVE_FILES_MAX)
}

fn candidate(program: NativeProgram, session: &Utf8Path) -> Option<NativeSessionCandidate> {
    let id = session.file_name()?.parse().ok()?;
    let path = session_files(program, session)?.messages;
    // A program may leave a folder without messages. Anything else in their place is listed, and
    // reading it fails with the reason.
    let modified_at = path.symlink_metadata().ok()?.modified().ok()?;
    Some(NativeSessionCandidate { program, modified_at, path, id })
}

/// Files of a session.
pub(super) struct SessionFolderFiles {
    pub(super) messages: Utf8PathBuf,
    pub(super) description: Option<Utf8PathBuf>,
}

/// Returns the paths of the files of a session with this folder. `None` if the program has no folders.
pub(super) fn session_files(
    program: NativeProgram,
    session: &Utf8Path,
) -> Option<SessionFolderFiles> {
    let layout = layout(program)?;
    let between = layout.between.iter().fold(session.to_owned(), |path, name| path.join(name));
    Some(SessionFolderFiles {
        messages: between.join(layout.messages),
        description: layout.description.map(|name| session.join(name)),
    })
}

/// Refuses links among the folders between that of the session and the file with its messages.
pub(super) fn refuse_links(program: NativeProgram, path: &Utf8Path) -> io::Result<()> {
    let between = layout(program).map_or(0, |layout| layout.between.len());
    for folder in path.ancestors().skip(1).take(between) {
        if !folder.symlink_metadata()?.is_dir() {
            let reason = format!("{folder} is not a folder; links are not followed here");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
    }
    Ok(())
}

/// Adds what the program records of the session besides its messages. `first` is the first line of
/// the messages.
pub(super) fn describe(session: &mut NativeSession, first: Option<&Json>) {
    let described = read_description(session.program, &session.path);
    let text = |value: &Json| value.as_str().filter(|it| !it.is_empty()).map(str::to_owned);
    let cwd = match session.program {
        NativeProgram::Copilot => {
            let start = first.filter(|line| line["type"] == "session.start");
            let data = start.map_or(&Json::Null, |line| &line["data"]);
            session.version = text(&data["copilotVersion"]);
            session.git_branch = text(&data["context"]["branch"]);
            text(&data["context"]["cwd"])
        }
        NativeProgram::Kimi => text(&described["cwd"]),
        NativeProgram::Grok => {
            let time = |key: &str| described[key].as_str().and_then(parse_iso);
            session.first_at = time("created_at");
            session.last_at = time("last_active_at").or(session.last_at);
            text(&described["info"]["cwd"])
        }
        _ => None,
    };
    // A relative path would depend on the reader's working directory.
    session.cwd = cwd.map(Utf8PathBuf::from).filter(|cwd| cwd.is_absolute());
}

/// Returns the directory in which a session began.
pub(super) fn read_cwd(file: &NativeSessionCandidate) -> Result<Option<Utf8PathBuf>, DiskError> {
    let mut session = NativeSession::unread(file)?;
    let first = match file.program {
        NativeProgram::Copilot => super::chat_files::read_header(&file.path),
        _ => None,
    };
    describe(&mut session, first.as_ref());
    Ok(session.cwd)
}

/// Returns true for the session of a sub-agent.
pub(super) fn is_of_sub_agent(file: &NativeSessionCandidate) -> bool {
    file.program == NativeProgram::Grok
        && read_description(file.program, &file.path)["session_kind"] == SUB_AGENT_KIND
}

/// Reads the file that describes a session. A damaged one says nothing.
pub(super) fn read_description(program: NativeProgram, path: &Utf8Path) -> Json {
    let read = || {
        let layout = layout(program)?;
        let session = path.ancestors().nth(1 + layout.between.len())?;
        let file = session.join(layout.description?);
        let bytes = untrusted_file::read(&file, DESCRIPTION_BYTES_MAX).ok()?;
        serde_json::from_slice(&bytes).ok()
    };
    read().unwrap_or_default()
}

/// Returns a time that is given in milliseconds.
pub(super) fn from_millis(value: &Json) -> Option<Timestamp> {
    Timestamp::from_millisecond(value.as_i64()?).ok()
}
