//! Sessions of the programs besides Claude Code and Codex: their messages as they are now, and their
//! summaries.
//!
//! A line of Gemini CLI's file adds a message, replaces one, or takes messages back. Qwen Code's lines
//! name the line before them, so that a session that was rewound has branches. Therefore a file is
//! read as a whole, up to a limit. Start at [`read_full`].

use std::collections::{HashMap, HashSet};
use std::io::{self, Read as _};

use camino::Utf8Path;
use heeler_model::parse_iso;
use heeler_model::recorder::MessageCounter;
use heeler_transcript::{DiskError, untrusted_file};
use indexmap::IndexMap;
use serde_json::Value as Json;

use super::chat_files::read_cwd;
use super::chat_rows::{context_tokens, message_rows};
use super::folder_history::folder_messages;
use super::parser::{HEAD_BYTES_MAX, one_line_title};
use super::session_folders::{describe, refuse_links};
use super::{NativeProgram, NativeSession, NativeSessionCandidate};

/// Largest file of which the messages are read. A larger one is listed and not adopted.
pub(super) const CHAT_BYTES_MAX: u64 = 64 << 20;

/// Most JSON values in a file of which the messages are read, by the signs that separate them.
const CHAT_VALUES_MAX: usize = 2_000_000;

/// Returns the messages of a session, oldest first.
pub(super) fn read_messages(
    program: NativeProgram,
    path: &Utf8Path,
    bytes_max: u64,
) -> Result<Vec<Json>, DiskError> {
    Ok(current_messages(program, read_lines(program, path, bytes_max)?))
}

fn current_messages(program: NativeProgram, lines: Vec<Json>) -> Vec<Json> {
    match program {
        NativeProgram::Gemini => gemini_messages(lines),
        NativeProgram::Copilot | NativeProgram::Kimi | NativeProgram::Grok => {
            folder_messages(program, lines)
        }
        NativeProgram::Claude | NativeProgram::Codex | NativeProgram::Qwen => qwen_messages(lines),
    }
}

/// Reads the whole session; fails if it is too large.
pub(super) fn read_full(file: &NativeSessionCandidate) -> Result<NativeSession, DiskError> {
    let session = NativeSession::unread(file)?;
    check_size(&session)?;
    summarize(session, CHAT_BYTES_MAX)
}

/// Reads the beginning of a session, or all of a short one.
pub(super) fn read_summary(file: &NativeSessionCandidate) -> Result<NativeSession, DiskError> {
    summarize(NativeSession::unread(file)?, HEAD_BYTES_MAX)
}

/// Refuses a session that is too large to be read as a whole.
pub(super) fn check_size(session: &NativeSession) -> Result<(), DiskError> {
    if session.bytes <= CHAT_BYTES_MAX {
        return Ok(());
    }
    let reason = format!(
        "it is larger than {} MiB, the limit for sessions of {}",
        CHAT_BYTES_MAX >> 20,
        session.program
    );
    let source = io::Error::new(io::ErrorKind::FileTooLarge, reason);
    Err(DiskError { action: "read", path: session.path.clone(), source })
}

fn summarize(mut session: NativeSession, bytes_max: u64) -> Result<NativeSession, DiskError> {
    let lines = read_lines(session.program, &session.path, bytes_max)?;
    match session.program {
        NativeProgram::Copilot | NativeProgram::Kimi | NativeProgram::Grok => {
            describe(&mut session, lines.first());
        }
        program => session.cwd = read_cwd(program, &session.path),
    }
    let changed_at = session.last_at;
    let mut count = MessageCounter::default();
    for message in current_messages(session.program, lines) {
        if let Some(at) = message["timestamp"].as_str().and_then(parse_iso) {
            session.first_at = session.first_at.or(Some(at));
            session.last_at = Some(at);
        }
        let text = |key: &str| message[key].as_str().map(str::to_owned);
        session.version = text("version").or(session.version);
        session.git_branch = text("gitBranch").or(session.git_branch);
        session.tokens = context_tokens(&message).unwrap_or(session.tokens);
        for row in message_rows(session.program, &message) {
            let begins = count.count_row(&row);
            if begins && session.title.is_none() && row["type"] == "user" {
                session.title = one_line_title(&row);
            }
        }
    }
    session.messages = count.messages();
    if session.bytes > bytes_max {
        let messages = u128::from(session.messages) * u128::from(session.bytes);
        session.messages = u64::try_from(messages / u128::from(bytes_max)).unwrap_or(u64::MAX);
        session.is_estimate = true;
        // The times of the beginning are not those of the last use.
        session.last_at = changed_at;
    }
    Ok(session)
}

/// Returns the JSON lines at the beginning of a file. An agent may have written it.
fn read_lines(
    program: NativeProgram,
    path: &Utf8Path,
    bytes_max: u64,
) -> Result<Vec<Json>, DiskError> {
    let failed = |source| DiskError { action: "read", path: path.to_owned(), source };
    refuse_links(program, path).map_err(failed)?;
    let mut bytes = Vec::new();
    let file = untrusted_file::open(path).map_err(failed)?;
    file.take(bytes_max).read_to_end(&mut bytes).map_err(failed)?;
    // Each value in memory needs much more than the bytes of a short one in the file.
    if memchr::memchr3_iter(b',', b'[', b'{', &bytes).count() > CHAT_VALUES_MAX {
        let reason = format!("it has more than {CHAT_VALUES_MAX} values");
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, reason)));
    }
    // Damaged lines of another program's file are skipped, and so is one that the limit cuts.
    let lines = bytes.split(|byte| *byte == b'\n');
    let lines = lines.filter_map(|line| serde_json::from_slice::<Json>(line).ok());
    let lines: Vec<Json> = lines.filter(Json::is_object).collect();
    // A file that says nothing at all is damaged, unless only its beginning was read.
    if lines.is_empty() && !bytes.is_empty() && (bytes.len() as u64) < bytes_max {
        let reason = "no line of it is a record";
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, reason)));
    }
    Ok(lines)
}

/// Applies the records of Gemini CLI's file, as the program itself does.
fn gemini_messages(lines: Vec<Json>) -> Vec<Json> {
    let mut messages: IndexMap<String, Json> = IndexMap::new();
    let id_of = |message: &Json| message["id"].as_str().map(str::to_owned);
    for mut line in lines {
        if let Some(rewound) = line["$rewindTo"].as_str() {
            // The message itself is taken back too, and an unknown one takes back everything.
            messages.truncate(messages.get_index_of(rewound).unwrap_or(0));
        } else if let Some(id) = id_of(&line) {
            messages.insert(id, line);
        } else if let Some(Json::Array(all)) = line.pointer_mut("/$set/messages") {
            let all = std::mem::take(all);
            messages.clear();
            messages.extend(all.into_iter().filter_map(|it| Some((id_of(&it)?, it))));
        }
    }
    messages.into_values().collect()
}

/// Returns the branch of Qwen Code's file that ends with its last line.
fn qwen_messages(lines: Vec<Json>) -> Vec<Json> {
    let text = |line: &Json, key: &str| line[key].as_str().map(str::to_owned);
    let mut known = HashMap::new();
    for (number, line) in lines.iter().enumerate() {
        if let Some(id) = text(line, "uuid") {
            known.insert(id, number);
        }
    }
    let mut branch = HashSet::new();
    let mut next = lines.iter().rev().find_map(|line| text(line, "uuid"));
    while let Some(number) = next.and_then(|id| known.get(&id).copied()) {
        // A line that names a later one would make a circle.
        if !branch.insert(number) {
            break;
        }
        next = text(&lines[number], "parentUuid");
    }
    let lines = lines.into_iter().enumerate().filter(|(number, _)| branch.contains(number));
    lines.map(|(_, line)| line).collect()
}
