//! The session files of Qwen Code and Gemini CLI, by their names and headers.
//!
//! Both keep a file per session in `<project>/chats`. Qwen Code names it after the session, Gemini
//! CLI after the time, and its first line has the ID. Start at [`chat_files`].

use std::io::{BufRead as _, BufReader, Read as _};

use camino::{Utf8DirEntry, Utf8Path, Utf8PathBuf};
use heeler_transcript::untrusted_file;
use serde_json::Value as Json;
use uuid::Uuid;

use super::program::NATIVE_FILES_MAX;
use super::{NativeProgram, NativeSessionCandidate};

/// Longest first line that is read as the header of a file.
const HEADER_BYTES_MAX: u64 = 64 << 10;

/// Longest path in a file that names the directory of a project.
const PROJECT_ROOT_BYTES_MAX: u64 = 16 << 10;

/// File in which Gemini CLI names the directory of a project.
pub(super) const PROJECT_ROOT_FILE: &str = ".project_root";

/// Lists the session files below a program's folder. A missing folder means that the program was
/// never used.
pub(super) fn chat_files(program: NativeProgram, folder: &Utf8Path) -> Vec<NativeSessionCandidate> {
    let projects = folders(folder).map(|project| project.join("chats"));
    // A link could lead to a folder of another kind.
    let is_folder = |path: &Utf8PathBuf| path.symlink_metadata().is_ok_and(|it| it.is_dir());
    let chats = projects.filter(is_folder);
    let files = chats.flat_map(|chats| entries(&chats).take(NATIVE_FILES_MAX));
    files.filter_map(|entry| candidate(program, &entry)).collect()
}

fn entries(folder: &Utf8Path) -> impl Iterator<Item = Utf8DirEntry> + use<> {
    folder.read_dir_utf8().into_iter().flatten().filter_map(Result::ok)
}

pub(super) fn folders(folder: &Utf8Path) -> impl Iterator<Item = Utf8PathBuf> + use<> {
    // The type of an entry is not that of a link's target, so no link is followed.
    let folders = entries(folder).filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir()));
    folders.map(|entry| entry.path().to_owned()).take(NATIVE_FILES_MAX)
}

fn candidate(program: NativeProgram, entry: &Utf8DirEntry) -> Option<NativeSessionCandidate> {
    let path = entry.path();
    let name = path.file_stem().filter(|_| path.extension() == Some("jsonl"))?;
    let file = path.symlink_metadata().ok().filter(|file| file.is_file())?;
    let id = match program {
        NativeProgram::Gemini => {
            name.strip_prefix("session-")?;
            let header = read_header(path)?;
            // Files of sub-agents have another kind.
            let is_main = header["kind"].as_str().is_none_or(|kind| kind == "main");
            header["sessionId"].as_str().filter(|_| is_main)?.to_owned()
        }
        _ => name.to_owned(),
    };
    Uuid::try_parse(&id).ok()?;
    Some(NativeSessionCandidate {
        program,
        modified_at: file.modified().ok()?,
        path: path.to_owned(),
        id: id.parse().ok()?,
    })
}

/// Returns the directory in which a session began. Qwen Code names it in each line, Gemini CLI in a
/// file of the project.
pub(super) fn read_cwd(program: NativeProgram, path: &Utf8Path) -> Option<Utf8PathBuf> {
    let text = match program {
        NativeProgram::Gemini => read_project_root(path.parent()?.parent()?)?,
        _ => read_header(path)?["cwd"].as_str()?.to_owned(),
    };
    let cwd = Utf8PathBuf::from(text);
    // A relative path would depend on the reader's working directory.
    cwd.is_absolute().then_some(cwd)
}

/// Returns the directory of a project of Gemini CLI.
pub(super) fn read_project_root(project: &Utf8Path) -> Option<String> {
    let bytes = untrusted_file::read(&project.join(PROJECT_ROOT_FILE), PROJECT_ROOT_BYTES_MAX);
    Some(String::from_utf8(bytes.ok()?).ok()?.trim_end().to_owned())
}

pub(super) fn read_header(path: &Utf8Path) -> Option<Json> {
    let file = untrusted_file::open(path).ok()?;
    let mut line = Vec::new();
    BufReader::new(file.take(HEADER_BYTES_MAX)).read_until(b'\n', &mut line).ok()?;
    serde_json::from_slice(&line).ok()
}
