//! The messages of a page: read whole, with their tools, and compared with what the agent remembers.

use std::collections::{HashMap, HashSet};

use camino::Utf8Path;
use heeler_model::from_iso;
use heeler_model::message::read_row;
use heeler_transcript::{DiskError, Entry, Record, Scan};
use serde_json::Value as Json;
use uuid::Uuid;

use super::chain::{Chain, uuid};
use super::marks::{self, Mark, PartOf};
use super::{Cut, FORGOTTEN, GONE, HistoryMessage, Role, ToolCall, ToolResult};

/// Reads messages that follow each other, of each no more than `bytes_max`.
pub(super) fn read(
    log: &Utf8Path,
    marks: &[Mark],
    bytes_max: usize,
) -> Result<Vec<HistoryMessage>, DiskError> {
    let mut messages: Vec<Draft> = Vec::with_capacity(marks.len());
    let Some(first) = marks.first() else { return Ok(Vec::new()) };
    let mut ahead = marks.iter().peekable();
    for entry in Scan::open_at(log, first.start)? {
        let Entry::Record(record) = entry? else { continue };
        if let Some(mark) = ahead.next_if(|mark| mark.start <= record.offset) {
            messages.push(Draft::of(mark, bytes_max));
        }
        let Some(draft) = messages.last_mut() else { continue };
        if record.offset < draft.mark.until {
            draft.take(&record);
        } else if ahead.peek().is_none() {
            break;
        }
    }
    Ok(messages.into_iter().map(Draft::finish).collect())
}

/// A message that is being read.
struct Draft<'m> {
    mark: &'m Mark,
    message: HistoryMessage,
    results: HashMap<String, ToolResult>,
    bytes_left: usize,
}

impl<'m> Draft<'m> {
    fn of(mark: &'m Mark, bytes_left: usize) -> Draft<'m> {
        let message = HistoryMessage {
            number: mark.number,
            role: mark.role,
            uuid: mark.uuid,
            at: None,
            rows: Vec::new(),
            tools: Vec::new(),
            left_out: 0,
            cut: mark.cut(),
            in_context: true,
            snapshot: mark.snapshot.clone(),
        };
        Draft { mark, message, results: HashMap::new(), bytes_left }
    }

    fn take(&mut self, record: &Record) {
        let is_first = record.offset == self.mark.start;
        let part = if is_first { PartOf::Message } else { marks::part_of(&record.text) };
        if !matches!(part, PartOf::Message | PartOf::Tools) {
            return;
        }
        let has_room = is_first || record.text.len() <= self.bytes_left;
        self.bytes_left = self.bytes_left.saturating_sub(record.text.len());
        match read_row(&record.text).filter(|_| has_room) {
            None => self.message.left_out += 1,
            Some(row) if matches!(part, PartOf::Tools) => self.tools(&row),
            Some(row) => self.own(row),
        }
    }

    /// Takes a row of the message itself.
    fn own(&mut self, row: Json) {
        let at = row["timestamp"].as_str().and_then(from_iso);
        self.message.at = self.message.at.or(at);
        for block in blocks(&row).iter().filter(|block| block["type"] == "tool_use") {
            self.message.tools.push(ToolCall {
                id: block["id"].as_str().map(str::to_owned),
                name: block["name"].as_str().unwrap_or_default().to_owned(),
                input: block["input"].clone(),
                result: None,
            });
        }
        self.message.rows.push(row);
    }

    /// Takes what tools gave.
    fn tools(&mut self, row: &Json) {
        for block in blocks(row) {
            let Some(call) = block["tool_use_id"].as_str() else { continue };
            let is_error = block["is_error"] == Json::Bool(true);
            let result = ToolResult { content: block["content"].clone(), is_error };
            self.results.insert(call.to_owned(), result);
        }
    }

    fn finish(mut self) -> HistoryMessage {
        for call in &mut self.message.tools {
            call.result = call.id.as_ref().and_then(|id| self.results.remove(id));
        }
        self.message
    }
}

fn blocks(row: &Json) -> &[Json] {
    row["message"]["content"].as_array().map_or(&[], Vec::as_slice)
}

/// What is known of the messages around a page.
pub(super) struct Around<'m> {
    /// Those before it that were found on the way, oldest first.
    pub(super) older: &'m [Mark],
    /// The one behind it.
    pub(super) behind: Option<&'m Mark>,
}

/// Says of each message whether the agent remembers it.
pub(super) fn compare(
    own: &Utf8Path,
    messages: &mut [HistoryMessage],
    around: &Around<'_>,
) -> Result<(), DiskError> {
    let Some(chain) = Chain::open(own)? else {
        for message in messages {
            message.in_context = false;
            message.cut = worse(message.cut, GONE);
        }
        return Ok(());
    };
    let met = meet(chain, messages, around)?;
    let mut answered = around.behind.is_some_and(|mark| {
        mark.role == Role::Assistant && mark.first.is_some_and(|uuid| met.contains(&uuid))
    });
    for message in messages.iter_mut().rev() {
        let is_met = ids(message).any(|uuid| met.contains(&uuid));
        // Not every agent keeps a prompt under the id that we gave it.
        message.in_context = is_met || message.role == Role::User && answered;
        if !message.uuid.is_some_and(|uuid| met.contains(&uuid)) {
            message.cut = worse(message.cut, FORGOTTEN);
        }
        answered = message.role == Role::Assistant && is_met;
    }
    Ok(())
}

/// Walks the chain until it is known which of the messages are part of it.
fn meet(
    mut chain: Chain,
    messages: &[HistoryMessage],
    around: &Around<'_>,
) -> Result<HashSet<Uuid>, DiskError> {
    let wanted: HashSet<Uuid> =
        messages.iter().flat_map(ids).chain(around.behind.and_then(|mark| mark.first)).collect();
    // The order of messages is the same in both files: once one of these is met, all is known.
    let mut last: HashSet<Uuid> = around.older.iter().filter_map(|mark| mark.first).collect();
    if let [first, rest @ ..] = messages {
        let answer = rest.first().filter(|_| first.role == Role::User);
        let answer = answer.filter(|answer| answer.role == Role::Assistant);
        last.extend(answer.into_iter().flat_map(ids).chain(ids(first)));
    }
    let mut met = HashSet::new();
    while let Some(entry) = chain.next()? {
        if wanted.contains(&entry) {
            met.insert(entry);
        }
        if last.contains(&entry) {
            break;
        }
    }
    Ok(met)
}

fn ids(message: &HistoryMessage) -> impl Iterator<Item = Uuid> + '_ {
    message.rows.iter().filter_map(|row| uuid(&row["uuid"])).chain(message.uuid)
}

fn worse(cut: Cut, other: Cut) -> Cut {
    if cut == Cut::Safe { other } else { cut }
}
