//! Places of an exported native session on this machine, and its paths there.
//!
//! A program looks for a session below a folder that it names after the working directory, and some of
//! its records contain that directory. Everything in a bundle is text of another machine: a path is made
//! of checked names only, and a description keeps no path but those that are known. Start at
//! [`NativePlacement::of`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{DiskError, NameError, resolve_inside, untrusted_file};
use memchr::memmem;
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::chat_files::{PROJECT_ROOT_FILE, folders, read_project_root};
use super::files;
use super::portable_session::NativeSessionHeader;
use super::program::{NativeFolder, NativeProgram};
use super::rollout_files::first_file_path;
use super::session_folders::{DESCRIPTION_BYTES_MAX, session_files};

/// Longest name that Kimi Code takes from a working directory.
const KIMI_NAME_CHARS_MAX: usize = 40;

/// Digits of the hash with which Kimi Code names a folder.
const KIMI_HASH_DIGITS: usize = 12;

/// Largest file in which Gemini CLI lists its projects.
const PROJECTS_FILE_BYTES_MAX: u64 = 4 << 20;

/// Most projects of Gemini CLI with the same name.
const SAME_NAMES_MAX: usize = 1_000;

/// Failure to find a place for an exported native session.
#[derive(Debug, Error)]
pub enum NativePlacementError {
    /// The bundle was made by hand, or damaged before its checksums were made.
    #[error("the name {name:?} in the bundle is not that of a session of {program}")]
    UnexpectedName { program: NativeProgram, name: String },
    #[error("{folder} has too many projects named {name}")]
    TooManyProjects { folder: Utf8PathBuf, name: String },
    /// The program finds a session by its ID alone.
    #[error("{path} is a file of the same session; move it away")]
    SameSession { path: Utf8PathBuf },
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Files that make a native session on this machine.
#[derive(Debug)]
pub(crate) struct NativePlacement {
    /// Small files that must exist before the messages, so that a session is never half.
    pub(crate) first: Vec<(Utf8PathBuf, Vec<u8>)>,
    /// File of the messages.
    pub(crate) messages: Utf8PathBuf,
}

impl NativePlacement {
    /// Returns the files of a session that continues in `cwd`, a real path.
    pub(crate) fn of(
        folder: &NativeFolder,
        header: &NativeSessionHeader,
        cwd: &Utf8Path,
    ) -> Result<NativePlacement, NativePlacementError> {
        let placed = NativePlacement::unchecked(folder, header, cwd)?;
        refuse_second_file(folder, header, &placed.messages)?;
        Ok(placed)
    }

    fn unchecked(
        folder: &NativeFolder,
        header: &NativeSessionHeader,
        cwd: &Utf8Path,
    ) -> Result<NativePlacement, NativePlacementError> {
        let (program, id) = (folder.program, header.id.as_str());
        let unexpected = || NativePlacementError::UnexpectedName {
            program,
            name: format!("{} of {id}", header.name),
        };
        // An agent that may write the program's directory could have made the folder a link.
        let home = folder.path.parent().unwrap_or(&folder.path);
        let below = folder.path.strip_prefix(home).unwrap_or(&folder.path);
        let inside = |relative: &str| resolve_inside(home, below.join(relative).as_str());
        let place = |relative: &str| -> Result<NativePlacement, NativePlacementError> {
            Ok(NativePlacement { first: Vec::new(), messages: inside(relative)? })
        };
        match program {
            // Claude's own file is another part of a bundle.
            NativeProgram::Claude => Err(unexpected()),
            NativeProgram::Codex => {
                place(&first_file_path(&header.name, id).ok_or_else(unexpected)?)
            }
            NativeProgram::Qwen => place(&format!("{}/chats/{id}.jsonl", qwen_project(cwd))),
            NativeProgram::Gemini => {
                if !is_gemini_name(&header.name) {
                    return Err(unexpected());
                }
                let project = gemini_project(folder, cwd)?;
                let root = inside(&format!("{project}/{PROJECT_ROOT_FILE}"))?;
                let mut placed = place(&format!("{project}/chats/{}", header.name))?;
                // The program writes it without a newline, a person may have added one.
                if read_project_root(&folder.path.join(&project)).is_none() {
                    placed.first.push((root, cwd.as_str().into()));
                }
                Ok(placed)
            }
            NativeProgram::Copilot | NativeProgram::Kimi | NativeProgram::Grok => {
                let session = match program {
                    NativeProgram::Kimi => format!("{}/{id}", kimi_project(cwd)),
                    NativeProgram::Grok => format!("{}/{id}", percent_encode(cwd.as_str())),
                    _ => id.to_owned(),
                };
                let files = session_files(program, Utf8Path::new(&session));
                let files = files.ok_or_else(unexpected)?;
                let mut placed = place(files.messages.as_str())?;
                if let Some((path, described)) = files.description.zip(header.description.as_ref())
                {
                    let session = inside(&session)?;
                    let described = move_description(described.clone(), header, cwd, &session);
                    placed.first.push((inside(path.as_str())?, described.to_string().into_bytes()));
                }
                Ok(placed)
            }
        }
    }
}

/// Refuses a second file of a session, for a program that finds sessions by their ID alone.
fn refuse_second_file(
    folder: &NativeFolder,
    header: &NativeSessionHeader,
    messages: &Utf8Path,
) -> Result<(), NativePlacementError> {
    if !matches!(folder.program, NativeProgram::Codex | NativeProgram::Kimi | NativeProgram::Grok) {
        return Ok(());
    }
    let others = files(folder, None)?.into_iter().filter(|file| file.id == header.id);
    match others.map(|file| file.path).find(|path| path != messages) {
        Some(path) => Err(NativePlacementError::SameSession { path }),
        None => Ok(()),
    }
}

/// Returns true if the description in a header is small enough.
pub(crate) fn is_description_small(header: &NativeSessionHeader) -> bool {
    let bytes = header.description.as_ref().map_or(0, |described| described.to_string().len());
    bytes as u64 <= DESCRIPTION_BYTES_MAX
}

/// Returns the name that Qwen Code gives the folder of a project.
fn qwen_project(cwd: &Utf8Path) -> String {
    let plain = |unit: u16| match u8::try_from(unit) {
        Ok(byte) if byte.is_ascii_alphanumeric() => char::from(byte),
        _ => '-',
    };
    // JavaScript counts UTF-16 units.
    cwd.as_str().encode_utf16().map(plain).collect()
}

/// Returns the name that Kimi Code gives the folder of a project.
fn kimi_project(cwd: &Utf8Path) -> String {
    let lower = cwd.file_name().unwrap_or_default().to_lowercase();
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    let mut name = replace_runs(&lower, is_plain);
    name.truncate(KIMI_NAME_CHARS_MAX);
    let name = match name.trim_matches('-') {
        "" | "." | ".." => "workspace",
        name => name,
    };
    let hash: String =
        Sha256::digest(cwd.as_str()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("wd_{name}_{}", &hash[..KIMI_HASH_DIGITS])
}

/// Replaces each run of other characters by one dash, and removes dashes at both ends.
fn replace_runs(text: &str, is_plain: impl Fn(char) -> bool) -> String {
    let mut replaced = String::new();
    let mut is_in_run = false;
    for c in text.chars() {
        let is_plain = is_plain(c);
        if is_plain {
            replaced.push(c);
        } else if !is_in_run {
            replaced.push('-');
        }
        is_in_run = !is_plain;
    }
    replaced.trim_matches('-').to_owned()
}

/// Encodes a text as JavaScript's `encodeURIComponent`, with which Grok Build names the folder of a
/// project.
fn percent_encode(text: &str) -> String {
    let encode = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() || b"-_.!~*'()".contains(&byte) => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

fn is_gemini_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.starts_with("session-") && name.ends_with(".jsonl") && name.bytes().all(is_plain)
}

/// Returns the name of the folder in which Gemini CLI looks for the sessions of a directory: the one of
/// its list, else the one that names the directory, else a new one.
fn gemini_project(folder: &NativeFolder, cwd: &Utf8Path) -> Result<String, NativePlacementError> {
    let home = folder.path.parent().unwrap_or(&folder.path);
    let list = untrusted_file::read(&home.join("projects.json"), PROJECTS_FILE_BYTES_MAX);
    let list: Json =
        list.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let root = |name: &str| read_project_root(&folder.path.join(name));
    let is_ours = |name: &str| root(name).is_none_or(|root| root == cwd.as_str());
    let is_slug =
        |name: &str| !name.is_empty() && name.chars().all(|c| is_gemini_char(c) || c == '-');
    let listed = list["projects"][cwd.as_str()].as_str();
    if let Some(name) = listed.filter(|name| is_slug(name) && is_ours(name)) {
        return Ok(name.to_owned());
    }
    let mut known = folders(&folder.path).filter_map(|path| path.file_name().map(str::to_owned));
    if let Some(name) = known.find(|name| root(name).is_some_and(|root| root == cwd.as_str())) {
        return Ok(name);
    }
    let base = cwd.file_name().unwrap_or_default().to_lowercase();
    let base = match replace_runs(&base, is_gemini_char) {
        base if base.is_empty() => "project".to_owned(),
        base => base,
    };
    let is_listed = |name: &str| {
        let all = list["projects"].as_object();
        all.is_some_and(|all| all.values().any(|listed| listed == name))
    };
    let exists = |path: Utf8PathBuf| path.symlink_metadata().is_ok();
    // It keeps files of the same project in two folders, by the same name.
    let is_taken = |name: &str| {
        is_listed(name) || exists(folder.path.join(name)) || exists(home.join("history").join(name))
    };
    let mut names = (0..SAME_NAMES_MAX).map(|number| match number {
        0 => base.clone(),
        number => format!("{base}-{number}"),
    });
    names.find(|name| !is_taken(name)).ok_or_else(|| NativePlacementError::TooManyProjects {
        folder: folder.path.clone(),
        name: base.clone(),
    })
}

fn is_gemini_char(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// Returns a description with the paths of this machine. A program could follow any other path in it, so
/// texts that look like one are removed.
fn move_description(
    described: Json,
    header: &NativeSessionHeader,
    cwd: &Utf8Path,
    session: &Utf8Path,
) -> Json {
    let mut described = move_value(described, header, cwd).unwrap_or_default();
    if header.program == NativeProgram::Kimi && described["agents"].is_object() {
        // The other agents are sub-agents, of which nothing was exported.
        let mut main = described["agents"]["main"].take();
        if main.is_object() {
            main["homedir"] = session.join("agents/main").as_str().into();
        }
        described["agents"] = serde_json::json!({ "main": main });
    }
    described
}

fn move_value(value: Json, header: &NativeSessionHeader, cwd: &Utf8Path) -> Option<Json> {
    Some(match value {
        Json::String(text) if text == header.directory.as_str() => cwd.as_str().into(),
        Json::String(text) if looks_like_path(&text) => return None,
        Json::Array(items) => {
            items.into_iter().filter_map(|item| move_value(item, header, cwd)).collect()
        }
        Json::Object(fields) => fields
            .into_iter()
            .filter_map(|(key, value)| Some((key, move_value(value, header, cwd)?)))
            .collect(),
        other => other,
    })
}

fn looks_like_path(text: &str) -> bool {
    text.starts_with(['/', '~', '\\']) || text.split('/').any(|part| part == "..")
}

/// Places in a line at which a program records the working directory.
fn directory_pointers(program: NativeProgram) -> &'static [&'static str] {
    match program {
        NativeProgram::Codex => &["/payload/cwd"],
        NativeProgram::Qwen | NativeProgram::Kimi => &["/cwd"],
        NativeProgram::Copilot => &["/data/context/cwd", "/data/context/gitRoot"],
        // They record it in another file.
        NativeProgram::Claude | NativeProgram::Gemini | NativeProgram::Grok => &[],
    }
}

/// Replacement of the working directory in the lines of an exported session.
#[derive(Debug)]
pub(crate) struct DirectoryMove {
    program: NativeProgram,
    from: String,
    to: String,
    /// Finds `from` as JSON.
    finder: memmem::Finder<'static>,
}

impl DirectoryMove {
    pub(crate) fn new(header: &NativeSessionHeader, cwd: &Utf8Path) -> DirectoryMove {
        let from = Json::from(header.directory.as_str()).to_string();
        DirectoryMove {
            program: header.program,
            from: header.directory.to_string(),
            to: cwd.to_string(),
            finder: memmem::Finder::new(&from).into_owned(),
        }
    }

    /// Returns the bytes by which a line may become longer.
    pub(crate) fn growth_max(&self) -> u64 {
        // Each character of a path may need an escape of six.
        (directory_pointers(self.program).len() * (6 * self.to.len() + 2)) as u64
    }

    /// Replaces the directory in a line, which ends with a newline.
    pub(crate) fn apply(&self, line: &mut Vec<u8>) {
        let pointers = directory_pointers(self.program);
        // Only lines with another directory are parsed; all others stay byte for byte.
        if self.from == self.to || pointers.is_empty() || self.finder.find(line).is_none() {
            return;
        }
        let Ok(mut row) = serde_json::from_slice::<Json>(line) else { return };
        let mut is_moved = false;
        for pointer in pointers {
            if let Some(value) = row.pointer_mut(pointer).filter(|value| **value == self.from) {
                *value = self.to.as_str().into();
                is_moved = true;
            }
        }
        if is_moved {
            *line = row.to_string().into_bytes();
            line.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests;
