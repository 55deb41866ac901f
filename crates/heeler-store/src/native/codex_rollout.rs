//! Codex's session files (rollouts): found and summarized.
//!
//! Codex keeps the files of a thread in `sessions/<year>/<month>/<day>`: one, and a further one each
//! time that turns are reverted. A line is an item of the conversation, or a record of Codex itself.
//! Start at [`list_rollouts`].

use std::collections::HashMap;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::parse_iso;
use heeler_model::recorder::MessageCounter;
use heeler_transcript::{DiskError, ReverseTranscriptReader, TranscriptEntry, TranscriptScanner};
use serde_json::Value as Json;
use uuid::Uuid;

use super::parser::{HEAD_BYTES_MAX, TAIL_BYTES_MAX, one_line_title};
use super::rollout_files::{RolloutFile, rollout_files};
use super::rollout_history::{RolloutHistory, RolloutPart, history_parts, read_header};
use super::rollout_rows::conversation_rows;
use super::{NativeProgram, NativeSession, NativeSessionCandidate};

/// Program that Codex records as the client of threads that Heeler began.
const OWN_CLIENT: &str = "heeler";

/// Lists the newest file of each thread below Codex's session folder. A missing directory means that
/// Codex was never used.
pub(super) fn list_rollouts(folder: &Utf8Path) -> Vec<NativeSessionCandidate> {
    let mut newest: HashMap<Uuid, RolloutFile> = HashMap::new();
    for found in rollout_files(folder) {
        // IDs of files sort by their time, and the first file of a thread has the ID of the thread.
        if newest.get(&found.thread).is_none_or(|known| known.id < found.id) {
            newest.insert(found.thread, found);
        }
    }
    newest.into_values().filter_map(candidate).collect()
}

fn candidate(file: RolloutFile) -> Option<NativeSessionCandidate> {
    Some(NativeSessionCandidate {
        program: NativeProgram::Codex,
        modified_at: file.modified_at,
        path: file.path,
        id: file.thread.to_string().parse().ok()?,
    })
}

/// Returns the directory in which a thread began.
pub(super) fn read_cwd(path: &Utf8Path) -> Result<Option<Utf8PathBuf>, DiskError> {
    Ok(header_cwd(&read_header(path)?))
}

fn header_cwd(line: &Json) -> Option<Utf8PathBuf> {
    let cwd = Utf8Path::new(line["payload"]["cwd"].as_str()?);
    // A relative path would depend on the reader's working directory.
    (line["type"] == "session_meta" && cwd.is_absolute()).then(|| cwd.to_owned())
}

/// Reads the whole history.
pub(super) fn read_full(file: &NativeSessionCandidate) -> Result<NativeSession, DiskError> {
    let mut parser = RolloutParser::of(file)?;
    for line in RolloutHistory::open(&file.path)? {
        parser.line(&line?);
    }
    parser.session.messages = parser.count.messages();
    Ok(parser.session)
}

/// Reads the beginning and the end of a history, or all of a short one.
pub(super) fn read_summary(file: &NativeSessionCandidate) -> Result<NativeSession, DiskError> {
    let mut parser = RolloutParser::of(file)?;
    let all = parser.session.bytes;
    let Some(first) = parser.parts.first().cloned().filter(|_| all > HEAD_BYTES_MAX) else {
        return read_full(file);
    };
    let read = parser.read_start(&first)?;
    parser.read_tokens_from_end()?;
    let messages = u128::from(parser.count.messages()) * u128::from(all) / u128::from(read.max(1));
    parser.session.messages = u64::try_from(messages).unwrap_or(u64::MAX);
    parser.session.is_estimate = true;
    Ok(parser.session)
}

struct RolloutParser {
    session: NativeSession,
    /// Files of the history.
    parts: Vec<RolloutPart>,
    count: MessageCounter,
}

impl RolloutParser {
    fn of(file: &NativeSessionCandidate) -> Result<RolloutParser, DiskError> {
        let mut session = NativeSession::unread(file)?;
        let parts = history_parts(&file.path)?;
        session.bytes = parts.iter().fold(0, |bytes, part| part.end.saturating_add(bytes));
        // The header of the newest file describes the thread; a fork has that of its source too.
        let line = read_header(&file.path)?;
        if line["type"] == "session_meta" {
            let header = &line["payload"];
            let text = |value: &Json| value.as_str().filter(|it| !it.is_empty()).map(str::to_owned);
            session.cwd = header_cwd(&line);
            session.version = text(&header["cli_version"]);
            session.git_branch = text(&header["git"]["branch"]);
            session.is_heelers = header["originator"] == OWN_CLIENT;
        }
        Ok(RolloutParser { session, parts, count: MessageCounter::default() })
    }

    /// Reads the beginning of a part; returns the number of bytes read.
    fn read_start(&mut self, part: &RolloutPart) -> Result<u64, DiskError> {
        let most = part.end.min(HEAD_BYTES_MAX);
        let mut end = 0;
        for entry in TranscriptScanner::open(&part.path)? {
            // Damaged lines of another program's file are skipped.
            let TranscriptEntry::Record(record) = entry? else { continue };
            if let Ok(line) = serde_json::from_str(&record.text) {
                self.line(&line);
            }
            end = record.next;
            if end >= most {
                break;
            }
        }
        Ok(end)
    }

    /// Reads the newest size of the context.
    fn read_tokens_from_end(&mut self) -> Result<(), DiskError> {
        let start = self.parts.last().map_or(0, |part| part.end.saturating_sub(TAIL_BYTES_MAX));
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

    fn line(&mut self, line: &Json) {
        let session = &mut self.session;
        if let Some(at) = line["timestamp"].as_str().and_then(parse_iso) {
            session.first_at = session.first_at.or(Some(at));
            session.last_at = Some(at);
        }
        session.tokens = context_tokens(line).unwrap_or(session.tokens);
        for row in conversation_rows(line) {
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
