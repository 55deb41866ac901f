//! A naive reference reader of histories, which parses everything.

use std::collections::{HashMap, HashSet};

use heeler_model::recorder::PRIOR_COUNTS_KEY;
use serde_json::Value as Json;
use uuid::Uuid;

use crate::history::{ForkSafety, HistoryMessage, HistoryRole};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct NaiveMessage {
    pub(super) number: u64,
    pub(super) is_user: bool,
    pub(super) uuid: Option<Uuid>,
    pub(super) rows: usize,
    /// Ids of tool calls, and their results.
    pub(super) tools: Vec<(String, Option<Json>)>,
    pub(super) is_safe: bool,
    pub(super) in_context: bool,
    pub(super) commit: Option<String>,
    pub(super) end: u64,
}

impl NaiveMessage {
    pub(super) fn of(message: &HistoryMessage) -> NaiveMessage {
        let tools = message.tools.iter().map(|tool| {
            let result = tool.result.as_ref().map(|result| result.content.clone());
            (tool.id.clone().unwrap_or_default(), result)
        });
        NaiveMessage {
            number: message.number,
            is_user: message.role == HistoryRole::User,
            uuid: message.uuid,
            rows: message.rows.len(),
            tools: tools.collect(),
            is_safe: message.fork_safety == ForkSafety::Safe,
            in_context: message.in_context,
            commit: message.snapshot.as_ref().map(|note| note.commit.clone()),
            end: 0,
        }
    }
}

/// A message, and the facts that decide its fork safety.
struct NaiveMessageDraft {
    message: NaiveMessage,
    ids: Vec<Uuid>,
    last_id: Option<String>,
    is_finished: bool,
    run: usize,
}

fn objects(bytes: &[u8]) -> Vec<(u64, Json)> {
    let mut found = Vec::new();
    let mut end = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        end += line.len() as u64;
        let row = serde_json::from_slice::<Json>(line).unwrap_or_default();
        if line.ends_with(b"\n") && row.is_object() {
            found.push((end, row));
        }
    }
    found
}

fn uuid(value: &Json) -> Option<Uuid> {
    value.as_str().and_then(|text| Uuid::try_parse(text).ok())
}

/// Returns the ids that the agent remembers.
fn chain(own: &[u8]) -> HashSet<Uuid> {
    let mut parents = HashMap::new();
    let mut newest = None;
    for (_, row) in objects(own) {
        let is_entry = matches!(row["type"].as_str(), Some("user" | "assistant" | "attachment"));
        let Some(id) = uuid(&row["uuid"]).filter(|_| is_entry) else { continue };
        if row["isSidechain"] == true {
            continue;
        }
        parents.insert(id, uuid(&row["parentUuid"]));
        newest = Some(id);
    }
    let mut met = HashSet::new();
    while let Some(id) = newest.filter(|id| parents.contains_key(id)) {
        met.insert(id);
        newest = parents[&id];
    }
    met
}

pub(super) fn read(log: &[u8], own: &[u8]) -> Vec<NaiveMessage> {
    let mut reader = NaiveReader::default();
    for (end, row) in objects(log) {
        reader.row(end, &row);
    }
    judge(reader.drafts, &chain(own))
}

#[derive(Default)]
struct NaiveReader {
    drafts: Vec<NaiveMessageDraft>,
    run: usize,
    number: u64,
}

impl NaiveReader {
    fn row(&mut self, end: u64, row: &Json) {
        if let Some(before) = row[PRIOR_COUNTS_KEY]["messages"].as_u64() {
            self.begin(before, uuid(&row["forkedFrom"]["messageUuid"]));
            return;
        }
        let is_apart = row["isSidechain"] == true || row["isApiErrorMessage"] == true;
        if is_apart || !row["parent_tool_use_id"].is_null() {
            return;
        }
        let last = self.drafts.iter().rposition(|draft| draft.run == self.run);
        let content = &row["message"]["content"];
        match (row["type"].as_str(), last) {
            (Some("user"), last) if content[0]["type"] == "tool_result" => {
                let last = last.map(|last| &mut self.drafts[last].message);
                last.into_iter().for_each(|last| gave(last, content));
            }
            (Some(kind @ ("user" | "assistant")), last) => self.said(kind, last, end, row),
            (Some("result"), Some(last)) => {
                let last = &mut self.drafts[last];
                (last.is_finished, last.message.end) = (true, end);
            }
            (Some("system"), _) if row["subtype"] == "snapshot" => self.snapshot(end, row),
            _ => {}
        }
    }

    fn begin(&mut self, before: u64, forked: Option<Uuid>) {
        (self.run, self.number) = (self.run + 1, before);
        if let Some(last) = self.drafts.last_mut()
            && last.run + 1 == self.run
            && forked.is_some()
        {
            last.is_finished |= last.message.uuid == forked;
        }
    }

    fn said(&mut self, kind: &str, last: Option<usize>, end: u64, row: &Json) {
        let id = row["message"]["id"].as_str().map(str::to_owned);
        let goes_on = kind == "assistant"
            && id.is_some()
            && last.is_some_and(|last| self.drafts[last].last_id == id);
        if !goes_on {
            self.number += 1;
            let message = NaiveMessage {
                number: self.number,
                is_user: kind == "user",
                uuid: None,
                rows: 0,
                tools: Vec::new(),
                is_safe: false,
                in_context: false,
                commit: None,
                end: 0,
            };
            let (ids, run) = (Vec::new(), self.run);
            self.drafts.push(NaiveMessageDraft {
                message,
                ids,
                last_id: id,
                is_finished: false,
                run,
            });
        }
        let draft = self.drafts.last_mut().unwrap();
        draft.is_finished = false;
        draft.message.rows += 1;
        draft.message.end = end;
        draft.message.uuid = uuid(&row["uuid"]);
        draft.ids.extend(draft.message.uuid);
        for block in row["message"]["content"].as_array().into_iter().flatten() {
            if block["type"] == "tool_use" {
                let id = block["id"].as_str().unwrap().to_owned();
                draft.message.tools.push((id, None));
            }
        }
    }

    fn snapshot(&mut self, end: u64, row: &Json) {
        let of = uuid(&row["messageUuid"]);
        let all = self.drafts.len();
        for (at, draft) in self.drafts.iter_mut().enumerate() {
            if draft.run == self.run && draft.message.uuid == of {
                draft.message.commit = row["snapshot"]["commit"].as_str().map(str::to_owned);
                if at + 1 == all {
                    draft.message.end = end;
                }
            }
        }
    }
}

fn gave(message: &mut NaiveMessage, content: &Json) {
    for block in content.as_array().unwrap() {
        for (call, result) in &mut message.tools {
            if block["tool_use_id"] == call.as_str() {
                *result = Some(block["content"].clone());
            }
        }
    }
}

fn judge(drafts: Vec<NaiveMessageDraft>, met: &HashSet<Uuid>) -> Vec<NaiveMessage> {
    let is_met = |draft: &NaiveMessageDraft| draft.ids.iter().any(|id| met.contains(id));
    let mut messages = Vec::new();
    for (at, draft) in drafts.iter().enumerate() {
        let next = drafts.get(at + 1);
        let is_answered = next.is_some_and(|next| !next.message.is_user && is_met(next));
        let is_foreign = draft.run == 0;
        let next_is_prompt = next.is_none_or(|next| next.message.is_user || next.run != 0);
        let is_finished = draft.is_finished || is_foreign && next_is_prompt;
        let mut message = draft.message.clone();
        message.in_context = is_met(draft) || message.is_user && is_answered;
        message.is_safe = !message.is_user
            && is_finished
            && message.tools.is_empty()
            && message.uuid.is_some_and(|id| met.contains(&id));
        messages.push(message);
    }
    messages
}
