//! The agent program's own record of a session (the native session). It is the model's memory,
//! while Heeler's transcript records the observed events.
//!
//! It is read from its end and never written. Its entries form chains by `parentUuid`; the
//! conversation is the chain of the newest entry. External messages, or branches made by two
//! writers, are found by comparing it with the position at which the last run left it. Only a
//! native session that Heeler created and that was never used is removed. Start at
//! [`changes_since`].

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::message::parse_row;
use heeler_model::recorder::MessageCounter;
use heeler_model::run::RunSpec;
use heeler_model::{AgentSessionId, NativeSessionLocation, NativeSessionPosition, project_slug};
use heeler_transcript::{
    DiskError, PageBoundary, TranscriptEntry as Line, TranscriptScanner, read_range,
};
use indexmap::IndexMap;
use memchr::memmem;
use serde_json::Value as Json;
use uuid::Uuid;

/// Number of lines read per page, from the end.
const PAGE_LINES: usize = 64;

/// Returns the directory of the agent's native sessions, if it is known.
pub(crate) fn sessions_folder(
    spec: &RunSpec,
    env: &IndexMap<String, String>,
) -> Option<Utf8PathBuf> {
    match NativeSessionLocation::for_agent(spec.runtime, env, &spec.home, &spec.working_directory) {
        NativeSessionLocation::Directory(folder) => Some(folder),
        NativeSessionLocation::None | NativeSessionLocation::Unknown => None,
    }
}

/// Returns the path of a native session that begins in this working directory.
pub(crate) fn session_path(folder: &Utf8Path, cwd: &Utf8Path, id: &AgentSessionId) -> Utf8PathBuf {
    folder.join(project_slug(cwd)).join(format!("{id}.jsonl"))
}

/// Finds a session: in its own project's directory, otherwise in any, because a session does not
/// move.
pub(crate) fn find_session(
    folder: &Utf8Path,
    cwd: &Utf8Path,
    id: &AgentSessionId,
) -> Option<Utf8PathBuf> {
    let here = session_path(folder, cwd, id);
    if here.is_file() {
        return Some(here);
    }
    let projects = folder.read_dir_utf8().ok()?.filter_map(Result::ok);
    projects.map(|project| project.path().join(format!("{id}.jsonl"))).find(|path| path.is_file())
}

/// Returns the end position of the native session; `None` if it holds no conversation.
pub(crate) fn read_mark(path: &Utf8Path) -> Result<Option<NativeSessionPosition>, DiskError> {
    let bytes = file_length(path)?;
    let mut entries = NativeReverseReader::open(path);
    while let Some(entry) = entries.next()? {
        if entry.is_message() {
            return Ok(Some(NativeSessionPosition { bytes, last: entry.uuid }));
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
        let left = NativeSessionPosition { bytes: 0, last };
        if changes_since(path, &left)?.dropped > 0 {
            return Ok(Some(left));
        }
    }
    read_mark(path)
}

/// Removes a native session in which every message has a known ID.
pub(crate) fn discard_if_known(path: &Utf8Path, known: &HashSet<String>) -> Result<(), DiskError> {
    if !path.is_file() {
        return Ok(());
    }
    for line in TranscriptScanner::open(path)? {
        if let Line::Record(record) = line?
            && let Some(entry) =
                NativeChainEntry::parse(&record.text).filter(NativeChainEntry::is_message)
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
    let needle = format!("\"uuid\":\"{uuid}\"");
    let finder = memmem::Finder::new(&needle);
    let failed = |source| DiskError { action: "read", path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut block = vec![0; BLOCK_BYTES];
    // An ID may begin at the end of a block, so that part is searched again with the next block.
    let mut kept = 0;
    loop {
        let read = match file.read(&mut block[kept..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(failed)?,
        };
        let end = kept + read;
        if finder.find(&block[..end]).is_some() {
            return Ok(true);
        }
        if read == 0 {
            return Ok(false);
        }
        let from = end.saturating_sub(needle.len() - 1);
        block.copy_within(from..end, 0);
        kept = end - from;
    }
}

/// Number of bytes searched at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Changes of a native session since the last run left it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct NativeSessionChanges {
    /// Conversation entries added by others, oldest first.
    pub(crate) added: Vec<Json>,
    /// Number of Heeler's messages that the agent no longer remembers: another writer was active at
    /// the same time, and the conversation continues from that writer's messages.
    pub(crate) dropped: u64,
    /// Heeler's last entry no longer exists.
    pub(crate) is_replaced: bool,
}

impl NativeSessionChanges {
    /// Returns true if the conversation differs from the recorded one.
    pub(crate) fn has_changed(&self) -> bool {
        !self.added.is_empty() || self.dropped > 0 || self.is_replaced
    }

    /// Returns the number of messages added by others.
    pub(crate) fn message_count(&self) -> u64 {
        count_messages(self.added.iter())
    }
}

/// Returns the messages that a native session received outside Heeler since the last run, oldest
/// first.
pub fn read_external_messages(
    path: &Utf8Path,
    left: &NativeSessionPosition,
) -> Result<Vec<Json>, DiskError> {
    Ok(changes_since(path, left)?.added)
}

/// Compares a native session with the position at which the last run left it. Growth by entries
/// that are not part of the conversation does not count as a change.
pub(crate) fn changes_since(
    path: &Utf8Path,
    left: &NativeSessionPosition,
) -> Result<NativeSessionChanges, DiskError> {
    let bytes = file_length(path)?;
    if bytes == left.bytes || (bytes > left.bytes && !has_messages_after(path, left.bytes)?) {
        return Ok(NativeSessionChanges::default());
    }
    let mut walk = NativeChainComparison::new(left.last);
    let mut entries = NativeReverseReader::open(path);
    while let Some(entry) = entries.next()? {
        if walk.visit(entry) {
            return Ok(walk.finish(false));
        }
    }
    let is_other = !walk.found_ours;
    Ok(walk.finish(is_other))
}

fn has_messages_after(path: &Utf8Path, offset: u64) -> Result<bool, DiskError> {
    for line in TranscriptScanner::open_at(path, offset)? {
        if let Line::Record(record) = line?
            && NativeChainEntry::parse(&record.text).is_some_and(|entry| entry.is_message())
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Simultaneous walk back from the newest entry and from Heeler's last one until both chains meet.
/// An entry comes after its parent, so one pass from the end meets both chains in order.
struct NativeChainComparison {
    /// Next entry to find on the newest chain; the outer `None` means that the newest entry has not
    /// been read yet.
    newest: Option<Option<Uuid>>,
    ours: Option<Uuid>,
    found_ours: bool,
    newest_chain: HashSet<Uuid>,
    own_chain: HashSet<Uuid>,
    /// Newest first.
    seen: Vec<NativeChainEntry>,
}

impl NativeChainComparison {
    fn new(ours: Uuid) -> NativeChainComparison {
        NativeChainComparison {
            newest: None,
            ours: Some(ours),
            found_ours: false,
            newest_chain: HashSet::new(),
            own_chain: HashSet::new(),
            seen: Vec::new(),
        }
    }

    /// Visits the next older entry; returns true once both chains have met.
    fn visit(&mut self, entry: NativeChainEntry) -> bool {
        if self.newest.is_none() && entry.is_message() {
            self.newest = Some(Some(entry.uuid));
        }
        if self.newest == Some(self.ours) {
            return true;
        }
        if self.newest == Some(Some(entry.uuid)) {
            self.newest_chain.insert(entry.uuid);
            self.newest = Some(entry.parent);
        }
        if self.ours == Some(entry.uuid) {
            self.found_ours = true;
            self.own_chain.insert(entry.uuid);
            self.ours = entry.parent;
        }
        if entry.is_message() {
            self.seen.push(entry);
        }
        self.newest == Some(self.ours)
    }

    fn finish(mut self, is_other: bool) -> NativeSessionChanges {
        self.seen.reverse();
        let known = branch_entries(&self.seen, &self.newest_chain);
        let is_ours = |entry: &&NativeChainEntry| self.own_chain.contains(&entry.uuid);
        let dropped = self.seen.iter().filter(is_ours);
        let dropped =
            count_messages(dropped.filter(|it| !known.contains(&it.uuid)).map(|it| &it.row));
        let is_new = |entry: &NativeChainEntry| known.contains(&entry.uuid) && !is_ours(&entry);
        let added = self.seen.into_iter().filter(is_new).map(|entry| entry.row).collect();
        NativeSessionChanges { added, dropped, is_replaced: is_other }
    }
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
    let mut entries = NativeReverseReader::open(path);
    while let Some(entry) = entries.next()? {
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
        if self.last.is_none() && entry.is_message() {
            (self.last, self.next) = (Some(entry.uuid), Some(entry.uuid));
        }
        if self.last.is_none() {
            return false;
        }
        let is_on = self.next == Some(entry.uuid);
        if is_on {
            self.chain.insert(entry.uuid);
            self.next = entry.parent;
            self.open.extend(entry.ids("tool_result", "tool_use_id").map(str::to_owned));
            entry.ids("tool_use", "id").for_each(|id| {
                self.open.remove(id);
            });
            self.replies.extend(entry.message_id().map(str::to_owned));
        }
        let is_prompt = is_on && entry.is_prompt();
        self.prompts += usize::from(is_prompt);
        if entry.is_message() {
            self.seen.push(entry);
        }
        if is_prompt && self.open.is_empty() {
            let fits = self.prompts + self.replies.len() <= keep;
            if !fits && self.kept.is_some() {
                return true;
            }
            self.kept = Some(self.seen.len());
            return !fits;
        }
        is_on && self.next.is_none()
    }

    fn finish(mut self) -> Option<NativeRecentMessages> {
        let last = self.last?;
        self.seen.truncate(self.kept.unwrap_or(self.seen.len()));
        self.seen.reverse();
        let known = branch_entries(&self.seen, &self.chain);
        let mut kept: Vec<NativeChainEntry> = Vec::new();
        let is_kept = |entry: &NativeChainEntry| {
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

/// Returns the entries that belong to a chain: its own and, where tools were called in parallel,
/// the other parts of those messages and their results, which are siblings of the chain.
fn branch_entries(entries: &[NativeChainEntry], chain: &HashSet<Uuid>) -> HashSet<Uuid> {
    let is_on = |entry: &&NativeChainEntry| chain.contains(&entry.uuid);
    let spoken: HashSet<&str> =
        entries.iter().filter(is_on).filter_map(NativeChainEntry::message_id).collect();
    let is_part = |entry: &&NativeChainEntry| {
        is_on(entry) || entry.message_id().is_some_and(|id| spoken.contains(id))
    };
    let parts: Vec<&NativeChainEntry> = entries.iter().filter(is_part).collect();
    let calls: HashSet<&str> = parts.iter().flat_map(|entry| entry.ids("tool_use", "id")).collect();
    let results = entries.iter().filter(|entry| {
        let mut ids = entry.ids("tool_result", "tool_use_id").peekable();
        ids.peek().is_some() && ids.all(|id| calls.contains(id))
    });
    parts.into_iter().chain(results).map(|entry| entry.uuid).collect()
}

fn count_messages<'r>(rows: impl Iterator<Item = &'r Json>) -> u64 {
    let mut count = MessageCounter::default();
    rows.for_each(|row| {
        count.count_row(row);
    });
    count.messages()
}

#[derive(Debug)]
struct NativeChainEntry {
    uuid: Uuid,
    parent: Option<Uuid>,
    row: Json,
}

impl NativeChainEntry {
    /// Parses a line; `None` if it belongs to no chain, or to a sub-agent's.
    fn parse(text: &str) -> Option<NativeChainEntry> {
        let row = parse_row(text)?;
        let id = |key: &str| Uuid::try_parse(row[key].as_str()?).ok();
        if row["isSidechain"] == true {
            return None;
        }
        // A compacted entry names its logical parent.
        let parent = id("parentUuid").or_else(|| id("logicalParentUuid"));
        Some(NativeChainEntry { uuid: id("uuid")?, parent, row })
    }

    /// Returns true for a message of the user or the agent.
    fn is_message(&self) -> bool {
        matches!(self.row["type"].as_str(), Some("user" | "assistant"))
            && self.row["message"].is_object()
    }

    /// Returns true for a prompt of the user, which begins a turn.
    fn is_prompt(&self) -> bool {
        let begins = MessageCounter::default().count_row(&self.row);
        begins && self.row["type"] == "user" && self.row["isMeta"] != true
    }

    fn message_id(&self) -> Option<&str> {
        (self.row["type"] == "assistant").then(|| self.row["message"]["id"].as_str())?
    }

    /// Returns the IDs in blocks of this kind.
    fn ids(&self, kind: &str, key: &str) -> impl Iterator<Item = &str> {
        let blocks = self.row["message"]["content"].as_array().into_iter().flatten();
        blocks
            .filter(move |block| block["type"] == kind)
            .filter_map(move |block| block[key].as_str())
    }
}

/// Reader of native session entries, newest first.
struct NativeReverseReader<'p> {
    path: &'p Utf8Path,
    before: PageBoundary,
    page: Vec<heeler_transcript::TranscriptRecord>,
}

impl<'p> NativeReverseReader<'p> {
    fn open(path: &'p Utf8Path) -> NativeReverseReader<'p> {
        NativeReverseReader { path, before: PageBoundary::End, page: Vec::new() }
    }

    fn next(&mut self) -> Result<Option<NativeChainEntry>, DiskError> {
        loop {
            while let Some(record) = self.page.pop() {
                if let Some(entry) = NativeChainEntry::parse(&record.text) {
                    return Ok(Some(entry));
                }
            }
            if self.before == PageBoundary::Offset(0) {
                return Ok(None);
            }
            let page = read_range(self.path, self.before, PAGE_LINES)?;
            self.before = PageBoundary::Offset(page.start);
            self.page = page.records;
        }
    }
}

fn file_length(path: &Utf8Path) -> Result<u64, DiskError> {
    let failed = |source| DiskError { action: "look at", path: path.to_owned(), source };
    Ok(path.metadata().map_err(failed)?.len())
}

#[cfg(test)]
mod tests;
