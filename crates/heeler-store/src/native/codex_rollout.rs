//! Codex's session files (rollouts): found, summarized, and read as rows of a transcript.
//!
//! Codex keeps a file per thread in `sessions/<year>/<month>/<day>`. A line is an item of the
//! conversation, or a record of Codex itself. Start at [`list_rollouts`] and [`conversation_rows`].

use camino::{Utf8DirEntry, Utf8Path, Utf8PathBuf};
use heeler_model::parse_iso;
use heeler_model::recorder::MessageCounter;
use heeler_transcript::{DiskError, ReverseTranscriptReader, TranscriptEntry, TranscriptScanner};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::parser::{HEAD_BYTES_MAX, TAIL_BYTES_MAX, one_line_title};
use super::{NATIVE_FILES_MAX, NativeProgram, NativeSession, NativeSessionCandidate};

/// Levels of directories between the session folder and its files: year, month, day.
const FOLDER_LEVELS: usize = 3;

/// Program that Codex records as the client of threads that Heeler began.
const OWN_CLIENT: &str = "heeler";

/// Lists the files below Codex's session folder. A missing directory means that Codex was never
/// used.
pub(super) fn list_rollouts(folder: &Utf8Path) -> Vec<NativeSessionCandidate> {
    let mut folders = vec![folder.to_owned()];
    for _ in 0..FOLDER_LEVELS {
        let below = folders.iter().flat_map(|folder| entries(folder));
        // The type of an entry is not that of a link's target, so no link is followed.
        let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders = below.map(|entry| entry.path().to_owned()).take(NATIVE_FILES_MAX).collect();
    }
    folders
        .iter()
        .flat_map(|folder| entries(folder))
        .take(NATIVE_FILES_MAX)
        .filter_map(rollout)
        .collect()
}

fn entries(folder: &Utf8Path) -> impl Iterator<Item = Utf8DirEntry> + use<> {
    folder.read_dir_utf8().into_iter().flatten().filter_map(Result::ok)
}

/// Returns the candidate for `rollout-<time>-<thread>.jsonl`.
fn rollout(entry: Utf8DirEntry) -> Option<NativeSessionCandidate> {
    let path = entry.path();
    let name = path.file_stem().filter(|_| path.extension() == Some("jsonl"))?;
    let rest = name.strip_prefix("rollout-")?;
    let id = rest.get(rest.len().checked_sub(UUID_CHARS)?..)?;
    Uuid::try_parse(id).ok()?;
    let file = path.symlink_metadata().ok().filter(|file| file.is_file())?;
    Some(NativeSessionCandidate {
        program: NativeProgram::Codex,
        modified_at: file.modified().ok()?,
        path: path.to_owned(),
        id: id.parse().ok()?,
    })
}

/// Characters of a UUID.
const UUID_CHARS: usize = 36;

/// Returns the directory in which a thread began.
pub(super) fn read_cwd(path: &Utf8Path) -> Result<Option<Utf8PathBuf>, DiskError> {
    for entry in TranscriptScanner::open(path)? {
        let TranscriptEntry::Record(record) = entry? else { continue };
        let line: Json = serde_json::from_str(&record.text).unwrap_or_default();
        return Ok(header_cwd(&line));
    }
    Ok(None)
}

fn header_cwd(line: &Json) -> Option<Utf8PathBuf> {
    let cwd = Utf8Path::new(line["payload"]["cwd"].as_str()?);
    // A relative path would depend on the reader's working directory.
    (line["type"] == "session_meta" && cwd.is_absolute()).then(|| cwd.to_owned())
}

/// Reads the whole file.
pub(super) fn read_full(file: &NativeSessionCandidate) -> Result<NativeSession, DiskError> {
    let mut parser = RolloutParser::of(file)?;
    parser.read_from_start(u64::MAX)?;
    Ok(parser.session)
}

/// Reads the beginning and the end of a file.
pub(super) fn read_summary(file: &NativeSessionCandidate) -> Result<NativeSession, DiskError> {
    let mut parser = RolloutParser::of(file)?;
    let read = parser.read_from_start(HEAD_BYTES_MAX)?;
    let all = parser.session.bytes;
    if read < all {
        parser.read_tokens_from_end(all.saturating_sub(TAIL_BYTES_MAX).max(read))?;
        let messages = u128::from(parser.count.messages()) * u128::from(all) / u128::from(read);
        parser.session.messages = u64::try_from(messages).unwrap_or(u64::MAX);
        parser.session.is_estimate = true;
    }
    Ok(parser.session)
}

struct RolloutParser {
    session: NativeSession,
    count: MessageCounter,
    has_header: bool,
}

impl RolloutParser {
    fn of(file: &NativeSessionCandidate) -> Result<RolloutParser, DiskError> {
        let session = NativeSession::unread(file)?;
        Ok(RolloutParser { session, count: MessageCounter::default(), has_header: false })
    }

    /// Reads complete lines up to about `most` bytes; returns the number of bytes read.
    fn read_from_start(&mut self, most: u64) -> Result<u64, DiskError> {
        let path = self.session.path.clone();
        let mut end = 0;
        for entry in TranscriptScanner::open(&path)? {
            // Damaged lines of another program's file are skipped.
            let TranscriptEntry::Record(record) = entry? else { continue };
            self.line(&record.text);
            end = record.next;
            if end >= most {
                return Ok(end);
            }
        }
        self.session.messages = self.count.messages();
        Ok(self.session.bytes.max(end))
    }

    /// Reads the newest size of the context.
    fn read_tokens_from_end(&mut self, start: u64) -> Result<(), DiskError> {
        let mut lines = ReverseTranscriptReader::open(&self.session.path)?;
        while let Some(line) = lines.next_line()?.filter(|line| line.offset >= start) {
            let line: Json = serde_json::from_slice(line.bytes).unwrap_or_default();
            if let Some(tokens) = context_tokens(&line) {
                self.session.tokens = tokens;
                break;
            }
        }
        Ok(())
    }

    fn line(&mut self, text: &str) {
        let Ok(line) = serde_json::from_str::<Json>(text) else { return };
        let session = &mut self.session;
        if let Some(at) = line["timestamp"].as_str().and_then(parse_iso) {
            session.first_at = session.first_at.or(Some(at));
            session.last_at = Some(at);
        }
        session.tokens = context_tokens(&line).unwrap_or(session.tokens);
        // A fork repeats the header of its source after its own.
        if line["type"] == "session_meta" && !std::mem::replace(&mut self.has_header, true) {
            let header = &line["payload"];
            let text = |value: &Json| value.as_str().filter(|it| !it.is_empty()).map(str::to_owned);
            session.cwd = header_cwd(&line);
            session.version = text(&header["cli_version"]);
            session.git_branch = text(&header["git"]["branch"]);
            session.is_heelers = header["originator"] == OWN_CLIENT;
        }
        for row in conversation_rows(&line) {
            let begins = self.count.count_row(&row);
            if begins && session.title.is_none() && row["type"] == "user" {
                session.title = one_line_title(&row);
            }
        }
    }
}

fn context_tokens(line: &Json) -> Option<u64> {
    let is_count = line["type"] == "event_msg" && line["payload"]["type"] == "token_count";
    let last = &line["payload"]["info"]["last_token_usage"];
    last["total_tokens"].as_u64().filter(|tokens| is_count && *tokens > 0)
}

/// Returns the rows for a line of a rollout, in the form that Heeler's transcripts have: prompts,
/// replies, calls of tools and their results. Other lines are Codex's own records.
pub(super) fn conversation_rows(line: &Json) -> Vec<Json> {
    let item = &line["payload"];
    if line["type"] != "response_item" {
        return Vec::new();
    }
    let said = |block: Json| ("assistant", json!([block]));
    let content = match item["type"].as_str().unwrap_or_default() {
        "message" => match (item["role"].as_str(), message_text(item)) {
            (Some("assistant"), Some(text)) => Some(said(json!({ "type": "text", "text": text }))),
            (Some("user"), Some(text)) if is_prompt(item, &text) => Some(("user", text.into())),
            _ => None,
        },
        "reasoning" => {
            let summary = texts(&item["summary"]).join("\n\n");
            let thought = json!({ "type": "thinking", "thinking": summary });
            (!summary.is_empty()).then(|| said(thought))
        }
        "function_call" | "custom_tool_call" => {
            let given = [&item["arguments"], &item["input"]].into_iter().find_map(Json::as_str);
            let given = given.unwrap_or_default();
            // Arguments of a function are JSON, the input of another tool is any text.
            let input = serde_json::from_str(given).ok().filter(Json::is_object);
            let input = input.unwrap_or_else(|| json!({ "input": given }));
            let id = item["call_id"].as_str();
            id.map(|id| {
                said(json!({ "type": "tool_use", "id": id, "name": item["name"], "input": input }))
            })
        }
        "function_call_output" | "custom_tool_call_output" => {
            let output = match &item["output"] {
                Json::String(text) => text.clone(),
                other => texts(other).join("\n"),
            };
            item["call_id"].as_str().map(|id| {
                let result = json!({ "type": "tool_result", "tool_use_id": id, "content": output });
                ("user", json!([result]))
            })
        }
        _ => None,
    };
    let row = content.map(|(role, content)| {
        json!({
            "type": role, "uuid": Uuid::new_v4(), "timestamp": line["timestamp"],
            "message": { "role": role, "content": content },
        })
    });
    row.into_iter().collect()
}

/// Returns the texts of content blocks.
fn texts(blocks: &Json) -> Vec<&str> {
    let blocks = blocks.as_array().map_or(&[][..], Vec::as_slice);
    blocks.iter().filter_map(|block| block["text"].as_str()).collect()
}

fn message_text(item: &Json) -> Option<String> {
    let text = texts(&item["content"]).join("\n");
    (!text.is_empty()).then_some(text)
}

/// Returns true if a person wrote the message. Codex sends the model its own notes as messages of
/// the user; newer versions mark them, and all of them are in tags.
fn is_prompt(item: &Json, text: &str) -> bool {
    let kinds = &item["internal_chat_message_metadata_passthrough"]["content_item_kinds"];
    match kinds.as_array() {
        Some(kinds) => kinds.iter().filter_map(Json::as_str).any(|kind| kind.starts_with("user.")),
        None => !text.starts_with('<') && !text.starts_with("# AGENTS.md instructions"),
    }
}
