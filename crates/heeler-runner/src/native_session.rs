//! The agent program's own record of a session (the native session). It is the model's memory,
//! while Heeler's transcript records the observed events.
//!
//! It is read from its end and never written. Its entries form chains by `parentUuid`; the
//! conversation is the chain of the newest entry. External messages, or branches made by two
//! writers, are found by comparing it with the position at which the last run left it. Only a
//! native session that Heeler created and that was never used is removed. Start at
//! [`changes_since`].

mod rewritten;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::native_chain::{
    NativeChainEntry, NativeSessionChanges, branch_entries, compare_with_position,
};
use heeler_model::run::RunSpec;
use heeler_model::{AgentSessionId, NativeSessionLocation, NativeSessionPosition, project_slug};
use heeler_transcript::{
    DiskError, ReverseRecordReader, TranscriptEntry as Line, TranscriptScanner,
};
use indexmap::IndexMap;
use memchr::memmem;
use serde_json::Value as Json;
use uuid::Uuid;

pub(crate) use rewritten::find_rewrite;
use rewritten::prefix_hash;

/// Returns the directory of the agent's native sessions, if it is known.
pub(crate) fn sessions_folder(
    spec: &RunSpec,
    env: &IndexMap<String, String>,
) -> Option<Utf8PathBuf> {
    match NativeSessionLocation::for_agent(spec.runtime, env, &spec.home, &spec.working_directory) {
        NativeSessionLocation::Directory(folder) => Some(folder),
        // Without a known directory the session is used, but not checked for external messages.
        NativeSessionLocation::None | NativeSessionLocation::Unknown => None,
    }
}

/// Returns the path of a native session that begins in this working directory.
pub(crate) fn session_path(folder: &Utf8Path, cwd: &Utf8Path, id: &AgentSessionId) -> Utf8PathBuf {
    folder.join(project_slug(cwd)).join(format!("{id}.jsonl"))
}

/// Finds a session: in its own project's directory, otherwise in any, because a session does not
/// move. A link is no session: an isolated agent could make one that leads to a file which it does not
/// see, and have it copied into the session that follows.
pub(crate) fn find_session(
    folder: &Utf8Path,
    cwd: &Utf8Path,
    id: &AgentSessionId,
) -> Option<Utf8PathBuf> {
    // The usual place is tried first, because the list of projects may be long.
    let here = session_path(folder, cwd, id);
    let is_file = |path: &Utf8PathBuf| path.symlink_metadata().is_ok_and(|found| found.is_file());
    if is_file(&here) {
        return Some(here);
    }
    let projects = folder.read_dir_utf8().ok()?.filter_map(Result::ok);
    projects.map(|project| project.path().join(format!("{id}.jsonl"))).find(is_file)
}

/// Returns the end position of the native session; `None` if it holds no conversation.
pub(crate) fn read_mark(path: &Utf8Path) -> Result<Option<NativeSessionPosition>, DiskError> {
    let bytes = file_length(path)?;
    let mut records = ReverseRecordReader::open(path);
    while let Some(entry) = next_entry(&mut records)? {
        // Other entries, such as summaries, may be written at any time without a change of the
        // conversation.
        if entry.is_message() {
            let hash = prefix_hash(path, bytes)?;
            return Ok(Some(NativeSessionPosition { bytes, last: entry.uuid, hash }));
        }
    }
    Ok(None)
}

/// Returns the position at which a run leaves a session; `ours` is the last entry known to the run.
/// A read error does not prevent a run from ending: the next run then has no recorded position.
pub(crate) fn mark_at_run_end(
    folder: Option<&Utf8Path>,
    cwd: &Utf8Path,
    id: &AgentSessionId,
    ours: Option<Uuid>,
) -> Option<NativeSessionPosition> {
    let path = find_session(folder?, cwd, id)?;
    mark_after_run(&path, ours).unwrap_or_else(|error| {
        tracing::warn!(%error, "the agent's own record of the session cannot be read");
        None
    })
}

/// Returns the position at which a run leaves a session: its end. If another writer added messages
/// during the run and the conversation continues from those, the position stays at the run's own
/// last entry, so that the next run reports the external messages.
fn mark_after_run(
    path: &Utf8Path,
    ours: Option<Uuid>,
) -> Result<Option<NativeSessionPosition>, DiskError> {
    if let Some(last) = ours {
        // A length of zero makes the comparison consider the whole file.
        let position = NativeSessionPosition { bytes: 0, last, hash: None };
        if changes_since(path, &position)?.dropped > 0 {
            return Ok(Some(position));
        }
    }
    read_mark(path)
}

/// Removes a native session in which every message has a known ID.
pub(crate) fn discard_if_known(path: &Utf8Path, known: &HashSet<String>) -> Result<(), DiskError> {
    // A run that was cut off early may not have written it.
    if !path.is_file() {
        return Ok(());
    }
    for line in TranscriptScanner::open(path)? {
        if let Line::Record(record) = line?
            && let Some(entry) =
                NativeChainEntry::parse(&record.text).filter(NativeChainEntry::is_message)
            // An unknown message is external, so the file is not Heeler's to remove.
            && !known.contains(&entry.uuid.to_string())
        {
            return Ok(());
        }
    }
    let failed = |source| DiskError { action: "remove", path: path.to_owned(), source };
    std::fs::remove_file(path).map_err(failed)
}

/// Returns true if the native session holds an entry with this ID.
pub(crate) fn contains_entry(path: &Utf8Path, uuid: Uuid) -> Result<bool, DiskError> {
    // Claude writes its entries without blanks.
    let needle = format!("\"uuid\":\"{uuid}\"");
    let finder = memmem::Finder::new(&needle);
    let failed = |source| DiskError { action: "read", path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut block = vec![0; BLOCK_BYTES];
    // An ID may begin at the end of a block, so that part is searched again with the next block.
    let mut overlap = 0;
    loop {
        let read = match file.read(&mut block[overlap..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(failed)?,
        };
        let end = overlap + read;
        if finder.find(&block[..end]).is_some() {
            return Ok(true);
        }
        if read == 0 {
            return Ok(false);
        }
        let from = end.saturating_sub(needle.len() - 1);
        block.copy_within(from..end, 0);
        overlap = end - from;
    }
}

/// Number of bytes searched at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Compares a native session with the position at which the last run left it.
pub(crate) fn changes_since(
    path: &Utf8Path,
    position: &NativeSessionPosition,
) -> Result<NativeSessionChanges, DiskError> {
    let mut records = ReverseRecordReader::open(path);
    let lines_after = |offset| {
        let newer = TranscriptScanner::open_at(path, offset)?.records();
        Ok(newer.map(|record| Ok(record?.text)))
    };
    compare_with_position(position, file_length(path)?, lines_after, || next_entry(&mut records))
}

/// Returns the next older entry.
fn next_entry(
    records: &mut ReverseRecordReader<'_>,
) -> Result<Option<NativeChainEntry>, DiskError> {
    while let Some(record) = records.next_record()? {
        if let Some(entry) = NativeChainEntry::parse(&record.text) {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Last messages of a native session.
#[derive(Debug, PartialEq)]
pub(crate) struct NativeRecentMessages {
    /// Rows of the messages, oldest first: beginning with a prompt, the parts of one reply
    /// together.
    pub(crate) rows: Vec<Json>,
    /// Last entry of the conversation.
    pub(crate) last: Uuid,
}

/// Returns the last `keep` messages with all tool calls and results between them, beginning with a
/// prompt. It returns fewer in order to begin with a prompt, or more if the last prompt alone led
/// to more. `None` if there is no conversation.
pub(crate) fn last_messages(
    path: &Utf8Path,
    keep: u32,
) -> Result<Option<NativeRecentMessages>, DiskError> {
    let mut tail = NativeTailReader::default();
    let mut records = ReverseRecordReader::open(path);
    while let Some(entry) = next_entry(&mut records)? {
        // The file is read from its end, so a long session costs no more than its last messages.
        if tail.visit(entry, keep as usize) {
            break;
        }
    }
    Ok(tail.finish())
}

/// Reader of the end of a conversation, starting at its newest entry.
#[derive(Default)]
struct NativeTailReader {
    last: Option<Uuid>,
    /// Next entry of the chain to find.
    next: Option<Uuid>,
    chain: HashSet<Uuid>,
    /// Newest first.
    seen: Vec<NativeChainEntry>,
    replies: HashSet<String>,
    prompts: usize,
    /// Tool results that were read before their calls.
    open: HashSet<String>,
    /// Number of entries of `seen` that are kept.
    kept: Option<usize>,
}

impl NativeTailReader {
    /// Visits the next older entry; returns true once no more is needed.
    fn visit(&mut self, entry: NativeChainEntry, keep: usize) -> bool {
        // Entries after the last message, such as summaries, belong to no chain.
        if self.last.is_none() && entry.is_message() {
            (self.last, self.next) = (Some(entry.uuid), Some(entry.uuid));
        }
        if self.last.is_none() {
            return false;
        }
        // Entries of other branches lie between those of the chain.
        let is_on = self.next == Some(entry.uuid);
        if is_on {
            self.chain.insert(entry.uuid);
            self.next = entry.parent;
            // From the end, a result comes before its call: a cut between the two would confuse the
            // model.
            self.open.extend(entry.ids("tool_result", "tool_use_id").map(str::to_owned));
            entry.ids("tool_use", "id").for_each(|id| {
                self.open.remove(id);
            });
            // Each block of a reply is an entry of its own, with the same message ID.
            self.replies.extend(entry.message_id().map(str::to_owned));
        }
        let is_prompt = is_on && entry.is_prompt();
        self.prompts += usize::from(is_prompt);
        if entry.is_message() {
            self.seen.push(entry);
        }
        // A conversation must begin with a prompt, and no call may lose its result.
        if is_prompt && self.open.is_empty() {
            let is_within_limit = self.prompts + self.replies.len() <= keep;
            if !is_within_limit && self.kept.is_some() {
                return true;
            }
            self.kept = Some(self.seen.len());
            return !is_within_limit;
        }
        is_on && self.next.is_none()
    }

    fn finish(mut self) -> Option<NativeRecentMessages> {
        let last = self.last?;
        // Without a suitable prompt the conversation is carried over as a whole.
        self.seen.truncate(self.kept.unwrap_or(self.seen.len()));
        self.seen.reverse();
        let known = branch_entries(&self.seen, &self.chain);
        let mut kept: Vec<NativeChainEntry> = Vec::new();
        let is_kept = |entry: &NativeChainEntry| {
            // An error of the API was shown to people; the model never said it.
            known.contains(&entry.uuid) && entry.row["isApiErrorMessage"] != true
        };
        for entry in self.seen.into_iter().filter(is_kept) {
            // Results of tools that ran in parallel may appear between the calls.
            let id = entry.message_id();
            let same = kept.iter().rposition(|other| id.is_some() && other.message_id() == id);
            kept.insert(same.map_or(kept.len(), |at| at + 1), entry);
        }
        Some(NativeRecentMessages { rows: kept.into_iter().map(|entry| entry.row).collect(), last })
    }
}

fn file_length(path: &Utf8Path) -> Result<u64, DiskError> {
    let failed = |source| DiskError { action: "look at", path: path.to_owned(), source };
    Ok(path.metadata().map_err(failed)?.len())
}

#[cfg(test)]
mod tests;
