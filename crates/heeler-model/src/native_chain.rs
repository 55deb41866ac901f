//! Chains of entries in a native session, the agent program's own record of a session; pure.
//!
//! Entries form chains by `parentUuid`; the conversation is the chain of the newest entry. Callers
//! read the lines; this module compares them with the position at which the last run left the
//! session. Start at [`compare_with_position`].

use std::collections::HashSet;

use serde_json::Value as Json;
use uuid::Uuid;

use crate::NativeSessionPosition;
use crate::message::parse_row;
use crate::recorder::MessageCounter;

/// Changes of a native session since the last run left it.
#[derive(Debug, Default, PartialEq)]
pub struct NativeSessionChanges {
    /// Conversation entries added by others, oldest first.
    pub added: Vec<Json>,
    /// Number of Heeler's messages that the agent no longer remembers: another writer was active at
    /// the same time, and the conversation continues from that writer's messages.
    pub dropped: u64,
    /// Heeler's last entry no longer exists.
    pub is_replaced: bool,
}

impl NativeSessionChanges {
    /// Returns true if the conversation differs from the recorded one.
    pub fn has_changed(&self) -> bool {
        !self.added.is_empty() || self.dropped > 0 || self.is_replaced
    }

    /// Returns the number of messages added by others.
    pub fn message_count(&self) -> u64 {
        count_messages(self.added.iter())
    }
}

/// Compares a native session of `file_bytes` bytes with the position at which the last run left it.
/// Growth by entries that are not part of the conversation does not count as a change.
///
/// `lines_after` returns the lines behind an offset, and `next_older` the entries from the newest
/// to the oldest. Neither is called if it is not needed.
pub fn compare_with_position<E, L: Iterator<Item = Result<String, E>>>(
    left: &NativeSessionPosition,
    file_bytes: u64,
    lines_after: impl FnOnce(u64) -> Result<L, E>,
    mut next_older: impl FnMut() -> Result<Option<NativeChainEntry>, E>,
) -> Result<NativeSessionChanges, E> {
    let has_grown = file_bytes > left.bytes;
    // A file of the same length is unchanged: native sessions are only appended to.
    if file_bytes == left.bytes || (has_grown && !has_messages(lines_after(left.bytes)?)?) {
        return Ok(NativeSessionChanges::default());
    }
    let mut walk = NativeChainComparison::new(left.last);
    while let Some(entry) = next_older()? {
        if walk.visit(entry) {
            return Ok(walk.finish(false));
        }
    }
    // The whole file was read without the entry of the last run, so somebody replaced it.
    let is_other = !walk.found_ours;
    Ok(walk.finish(is_other))
}

fn has_messages<E>(lines: impl Iterator<Item = Result<String, E>>) -> Result<bool, E> {
    for line in lines {
        if NativeChainEntry::parse(&line?).is_some_and(|entry| entry.is_message()) {
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
        // Claude continues from the newest message, whichever chain it is on.
        if self.newest.is_none() && entry.is_message() {
            self.newest = Some(Some(entry.uuid));
        }
        // Nothing was added to the conversation since.
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
        // Other entries connect a chain but are not part of the conversation.
        if entry.is_message() {
            self.seen.push(entry);
        }
        self.newest == Some(self.ours)
    }

    fn finish(mut self, is_other: bool) -> NativeSessionChanges {
        // The walk goes backwards, but messages are counted and shown in order.
        self.seen.reverse();
        let known = branch_entries(&self.seen, &self.newest_chain);
        let is_ours = |entry: &&NativeChainEntry| self.own_chain.contains(&entry.uuid);
        let dropped = self.seen.iter().filter(is_ours);
        // Another writer's chain leaves out our messages, so the agent does not remember them.
        let dropped =
            count_messages(dropped.filter(|it| !known.contains(&it.uuid)).map(|it| &it.row));
        let is_new = |entry: &NativeChainEntry| known.contains(&entry.uuid) && !is_ours(&entry);
        let added = self.seen.into_iter().filter(is_new).map(|entry| entry.row).collect();
        NativeSessionChanges { added, dropped, is_replaced: is_other }
    }
}

/// Returns the entries that belong to a chain: its own and, where tools were called in parallel,
/// the other parts of those messages and their results, which are siblings of the chain.
pub fn branch_entries(entries: &[NativeChainEntry], chain: &HashSet<Uuid>) -> HashSet<Uuid> {
    let is_on = |entry: &&NativeChainEntry| chain.contains(&entry.uuid);
    // Claude writes one entry per block; with parallel calls they have different parents.
    let spoken: HashSet<&str> =
        entries.iter().filter(is_on).filter_map(NativeChainEntry::message_id).collect();
    let is_part = |entry: &&NativeChainEntry| {
        is_on(entry) || entry.message_id().is_some_and(|id| spoken.contains(id))
    };
    let parts: Vec<&NativeChainEntry> = entries.iter().filter(is_part).collect();
    let calls: HashSet<&str> = parts.iter().flat_map(|entry| entry.ids("tool_use", "id")).collect();
    let results = entries.iter().filter(|entry| {
        let mut ids = entry.ids("tool_result", "tool_use_id").peekable();
        // A result counts only if all of its calls are on the branch.
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

/// An entry of a chain.
#[derive(Debug)]
pub struct NativeChainEntry {
    pub uuid: Uuid,
    pub parent: Option<Uuid>,
    pub row: Json,
}

impl NativeChainEntry {
    /// Parses a line; `None` if it belongs to no chain, or to a sub-agent's.
    pub fn parse(text: &str) -> Option<NativeChainEntry> {
        let row = parse_row(text)?;
        let id = |key: &str| Uuid::try_parse(row[key].as_str()?).ok();
        // Sub-agents have chains of their own, which are not part of the conversation.
        if row["isSidechain"] == true {
            return None;
        }
        // A compacted entry names its logical parent.
        let parent = id("parentUuid").or_else(|| id("logicalParentUuid"));
        Some(NativeChainEntry { uuid: id("uuid")?, parent, row })
    }

    /// Returns true for a message of the user or the agent.
    pub fn is_message(&self) -> bool {
        matches!(self.row["type"].as_str(), Some("user" | "assistant"))
            && self.row["message"].is_object()
    }

    /// Returns true for a prompt of the user, which begins a turn.
    pub fn is_prompt(&self) -> bool {
        let begins = MessageCounter::default().count_row(&self.row);
        // Claude inserts messages of its own that look like prompts.
        begins && self.row["type"] == "user" && self.row["isMeta"] != true
    }

    pub fn message_id(&self) -> Option<&str> {
        (self.row["type"] == "assistant").then(|| self.row["message"]["id"].as_str())?
    }

    /// Returns the IDs in blocks of this kind.
    pub fn ids(&self, kind: &str, key: &str) -> impl Iterator<Item = &str> {
        let blocks = self.row["message"]["content"].as_array().into_iter().flatten();
        blocks
            .filter(move |block| block["type"] == kind)
            .filter_map(move |block| block[key].as_str())
    }
}
