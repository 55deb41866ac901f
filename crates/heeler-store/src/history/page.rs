//! Reads the messages of a page in full with their tool calls, and compares them with the
//! agent's context.
//!
//! Start at [`read`] and [`mark_context`].

use std::collections::{HashMap, HashSet};

use camino::Utf8Path;
use heeler_model::job_row::{ContentBlock, content_blocks, envelope_content, tool_results};
use heeler_model::message::{content_text, parse_row};
use heeler_model::parse_iso;
use heeler_transcript::{DiskError, TranscriptEntry, TranscriptRecord, TranscriptScanner};
use serde_json::Value as Json;
use uuid::Uuid;

use super::message::{
    ForkSafety, HistoryMessage, HistoryRole, NATIVE_FILE_MISSING, NOT_IN_CONTEXT, ToolCall,
    ToolResult,
};
use super::native_chain::{NativeEntryChain, uuid};
use super::segments::{self, MessagePosition, RowRelation};

/// Longest text of a failure, in bytes.
const ERROR_BYTES_MAX: usize = 4096;

/// Reads consecutive messages, at most `bytes_max` of each.
pub(super) fn read(
    log: &Utf8Path,
    marks: &[MessagePosition],
    bytes_max: usize,
) -> Result<Vec<HistoryMessage>, DiskError> {
    let mut messages: Vec<HistoryMessageBuilder> = Vec::with_capacity(marks.len());
    let Some(first) = marks.first() else { return Ok(Vec::new()) };
    let mut ahead = marks.iter().peekable();
    for entry in TranscriptScanner::open_at(log, first.start)? {
        let TranscriptEntry::Record(record) = entry? else { continue };
        if let Some(mark) = ahead.next_if(|mark| mark.start <= record.offset) {
            messages.push(HistoryMessageBuilder::of(mark, bytes_max));
        }
        let Some(draft) = messages.last_mut() else { continue };
        if record.offset < draft.mark.rows_end {
            draft.take(&record);
        } else if ahead.peek().is_none() {
            break;
        }
    }
    Ok(messages.into_iter().map(HistoryMessageBuilder::finish).collect())
}

/// A message that is being read.
struct HistoryMessageBuilder<'m> {
    mark: &'m MessagePosition,
    message: HistoryMessage,
    results: HashMap<String, ToolResult>,
    bytes_left: usize,
}

impl<'m> HistoryMessageBuilder<'m> {
    fn of(mark: &'m MessagePosition, bytes_left: usize) -> HistoryMessageBuilder<'m> {
        let message = HistoryMessage {
            number: mark.number,
            role: mark.role,
            uuid: mark.uuid,
            at: None,
            rows: Vec::new(),
            tools: Vec::new(),
            errors: Vec::new(),
            left_out: 0,
            fork_safety: mark.fork_safety(),
            in_context: true,
            snapshot: mark.snapshot.clone(),
        };
        HistoryMessageBuilder { mark, message, results: HashMap::new(), bytes_left }
    }

    fn take(&mut self, record: &TranscriptRecord) {
        let is_first = record.offset == self.mark.start;
        let part =
            if is_first { RowRelation::Message } else { segments::row_relation(&record.text) };
        if let (RowRelation::Error, Some(row)) = (&part, parse_row(&record.text)) {
            return self.message.errors.extend(reported_error(&row));
        }
        if !matches!(part, RowRelation::Message | RowRelation::ToolResults) {
            return;
        }
        let has_room = is_first || record.text.len() <= self.bytes_left;
        self.bytes_left = self.bytes_left.saturating_sub(record.text.len());
        match parse_row(&record.text).filter(|_| has_room) {
            None => self.message.left_out += 1,
            Some(row) if matches!(part, RowRelation::ToolResults) => self.tools(&row),
            Some(row) => self.add_message_row(row),
        }
    }

    /// Adds a row of the message itself.
    fn add_message_row(&mut self, row: Json) {
        let at = row["timestamp"].as_str().and_then(parse_iso);
        self.message.at = self.message.at.or(at);
        for block in content_blocks(envelope_content(&row)) {
            let ContentBlock::ToolCall { id, tool, input } = block else { continue };
            self.message.tools.push(ToolCall {
                id: id.map(str::to_owned),
                name: tool.to_owned(),
                input: input.clone(),
                result: None,
            });
        }
        self.message.rows.push(row);
    }

    /// Adds the tool results of a row.
    fn tools(&mut self, row: &Json) {
        for (call, content, is_error) in tool_results(envelope_content(row)) {
            self.results.insert(call.to_owned(), ToolResult { content: content.clone(), is_error });
        }
    }

    fn finish(mut self) -> HistoryMessage {
        for call in &mut self.message.tools {
            call.result = call.id.as_ref().and_then(|id| self.results.remove(id));
        }
        self.message
    }
}

/// Returns the beginning of a failure's text. Last Light writes the text in place of a code.
fn reported_error(row: &Json) -> Option<String> {
    let text = content_text(envelope_content(row));
    let text = if text.trim().is_empty() { row["error"].as_str()?.to_owned() } else { text };
    let end = text.floor_char_boundary(ERROR_BYTES_MAX);
    Some(text[..end].to_owned())
}

/// Known messages around a page.
pub(super) struct AdjacentMessages<'m> {
    /// Earlier messages that were found while searching, oldest first.
    pub(super) older: &'m [MessagePosition],
    /// The message after the page.
    pub(super) next: Option<&'m MessagePosition>,
}

/// Sets the `in_context` flag and fork safety of each message.
pub(super) fn mark_context(
    own: &Utf8Path,
    messages: &mut [HistoryMessage],
    around: &AdjacentMessages<'_>,
) -> Result<(), DiskError> {
    let Some(chain) = NativeEntryChain::open(own)? else {
        for message in messages {
            message.in_context = false;
            message.fork_safety = least_safe(message.fork_safety, NATIVE_FILE_MISSING);
        }
        return Ok(());
    };
    let met = collect_remembered_ids(chain, messages, around)?;
    let mut answered = around.next.is_some_and(|mark| {
        mark.role == HistoryRole::Assistant && mark.first.is_some_and(|uuid| met.contains(&uuid))
    });
    for message in messages.iter_mut().rev() {
        let is_met = ids(message).any(|uuid| met.contains(&uuid));
        // Not every agent stores a prompt under the id that Heeler gave it.
        message.in_context = is_met || message.role == HistoryRole::User && answered;
        if !message.uuid.is_some_and(|uuid| met.contains(&uuid)) {
            message.fork_safety = least_safe(message.fork_safety, NOT_IN_CONTEXT);
        }
        answered = message.role == HistoryRole::Assistant && is_met;
    }
    Ok(())
}

/// Follows the chain until it is known which of the messages are part of it.
fn collect_remembered_ids(
    mut chain: NativeEntryChain,
    messages: &[HistoryMessage],
    around: &AdjacentMessages<'_>,
) -> Result<HashSet<Uuid>, DiskError> {
    let wanted: HashSet<Uuid> =
        messages.iter().flat_map(ids).chain(around.next.and_then(|mark| mark.first)).collect();
    // Both files have the same order of messages, so nothing earlier matters once one of these is
    // found.
    let mut last: HashSet<Uuid> = around.older.iter().filter_map(|mark| mark.first).collect();
    if let [first, rest @ ..] = messages {
        let answer = rest.first().filter(|_| first.role == HistoryRole::User);
        let answer = answer.filter(|answer| answer.role == HistoryRole::Assistant);
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

fn least_safe(cut: ForkSafety, other: ForkSafety) -> ForkSafety {
    if cut == ForkSafety::Safe { other } else { cut }
}
