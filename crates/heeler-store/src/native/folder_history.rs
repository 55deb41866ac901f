//! Messages of GitHub Copilot CLI, Kimi Code and Grok Build, as they are now.
//!
//! The files have records of other kinds between the messages, and parts of one message in several
//! lines. A line may take earlier ones back. Start at [`folder_messages`].

use std::collections::{HashMap, HashSet};

use heeler_model::iso_millis;
use serde_json::{Value as Json, json};

use super::NativeProgram;
use super::session_folders::from_millis;

/// Marks with which Grok Build encloses a prompt.
const GROK_PROMPT: (&str, &str) = ("<user_query>\n", "\n</user_query>");

/// Origin that Kimi Code and Copilot record for a prompt of a person.
const PERSON: &str = "user";

/// Returns the messages of a session, oldest first. Each has the keys `role` and `content` of a
/// transcript's message, `timestamp`, and `tokens` if it says the size of the context.
pub(super) fn folder_messages(program: NativeProgram, lines: Vec<Json>) -> Vec<Json> {
    match program {
        NativeProgram::Copilot => copilot_messages(lines),
        NativeProgram::Kimi => kimi_messages(&lines),
        _ => grok_messages(&lines),
    }
}

fn message(role: &str, content: Json, timestamp: &Json) -> Json {
    json!({ "role": role, "content": content, "timestamp": timestamp })
}

fn size_of_context(tokens: u64, timestamp: &Json) -> Json {
    json!({ "tokens": { "total": tokens }, "timestamp": timestamp })
}

fn text_block(kind: &str, text: Option<&str>) -> Option<Json> {
    let text = text.filter(|text| !text.is_empty())?;
    Some(match kind {
        "thinking" => json!({ "type": "thinking", "thinking": text }),
        _ => json!({ "type": "text", "text": text }),
    })
}

fn call_block(id: &Json, name: &Json, input: &Json) -> Option<Json> {
    id.as_str()?;
    Some(json!({ "type": "tool_use", "id": id, "name": name, "input": input }))
}

fn result_content(id: &Json, content: &str, is_error: bool) -> Option<Json> {
    id.as_str()?;
    Some(json!([{
        "type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error,
    }]))
}

fn list(value: &Json) -> &[Json] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn texts(value: &Json) -> String {
    let parts = list(value).iter().filter_map(|part| part["text"].as_str());
    value.as_str().map_or_else(|| parts.collect::<Vec<_>>().join("\n"), str::to_owned)
}

/// Applies the events of Copilot's file.
fn copilot_messages(lines: Vec<Json>) -> Vec<Json> {
    let mut kept: Vec<Json> = Vec::new();
    let mut positions: HashMap<String, usize> = HashMap::new();
    let mut removed: HashSet<String> = HashSet::new();
    for line in lines {
        if line["type"] == "session.snapshot_rewind" {
            let data = &line["data"];
            if let Json::Array(ids) = &data["eventIds"] {
                removed.extend(ids.iter().filter_map(Json::as_str).map(str::to_owned));
            } else if let Some(first) = data["upToEventId"].as_str() {
                let at = positions.get(first).copied();
                // An event that was taken back before has no position any more.
                let at = at.filter(|at| kept.get(*at).is_some_and(|line| line["id"] == first));
                kept.truncate(at.unwrap_or(kept.len()));
            }
            continue;
        }
        if let Some(id) = line["id"].as_str() {
            positions.insert(id.to_owned(), kept.len());
        }
        kept.push(line);
    }
    let is_removed = |line: &Json| line["id"].as_str().is_some_and(|id| removed.contains(id));
    // Events of sub-agents name them.
    let is_of_sub_agent = |line: &Json| line["agentId"].is_string();
    let lines = kept.iter().filter(|line| !is_removed(line) && !is_of_sub_agent(line));
    lines.filter_map(copilot_message).collect()
}

fn copilot_message(line: &Json) -> Option<Json> {
    let (data, at) = (&line["data"], &line["timestamp"]);
    match line["type"].as_str()? {
        // Skills and other agents insert prompts too.
        "user.message" if data["source"].as_str().is_none_or(|it| it == PERSON) => {
            let text = data["content"].as_str().filter(|text| !text.is_empty())?;
            (data["isAutopilotContinuation"] != true).then(|| message("user", text.into(), at))
        }
        "assistant.message" => {
            let said = [
                text_block("thinking", data["reasoningText"].as_str()),
                text_block("text", data["content"].as_str()),
            ];
            let calls = list(&data["toolRequests"]).iter();
            let calls =
                calls.map(|it| call_block(&it["toolCallId"], &it["name"], &it["arguments"]));
            let blocks: Vec<Json> = said.into_iter().chain(calls).flatten().collect();
            (!blocks.is_empty()).then(|| message("assistant", blocks.into(), at))
        }
        // A tool that the person called has no call of the model.
        "tool.execution_complete" if data["isUserRequested"] != true => {
            let texts = [&data["result"]["content"], &data["error"]["message"]];
            let text = texts.into_iter().find_map(Json::as_str).unwrap_or_default();
            let is_error = data["success"] != true;
            let content = result_content(&data["toolCallId"], text, is_error)?;
            Some(message("user", content, at))
        }
        "session.usage_record" => {
            let count = |key: &str| data["usage"][key].as_u64();
            let (input, output) = (count("inputTokens")?, count("outputTokens").unwrap_or(0));
            Some(size_of_context(input.saturating_add(output), at))
        }
        _ => None,
    }
}

/// Applies the records of Kimi Code's file.
fn kimi_messages(lines: &[Json]) -> Vec<Json> {
    let mut history = KimiHistory::default();
    lines.iter().for_each(|line| history.apply(line));
    history.end_reply();
    history.messages
}

/// Messages of Kimi Code up to a record.
#[derive(Default)]
struct KimiHistory {
    messages: Vec<Json>,
    /// Positions of the prompts, by which turns are taken back.
    prompts: Vec<usize>,
    /// Blocks of the reply that is being read, and the time of the first one.
    reply: Vec<Json>,
    replied_at: Json,
}

impl KimiHistory {
    fn apply(&mut self, line: &Json) {
        let at = from_millis(&line["time"]).map_or(Json::Null, |at| iso_millis(at).into());
        match line["type"].as_str() {
            Some("context.append_message") => self.prompt(&line["message"], &at),
            Some("context.append_loop_event") => self.event(&line["event"], &at),
            Some("context.undo") => self.undo(line["count"].as_u64().unwrap_or(0)),
            Some("context.clear") => *self = KimiHistory::default(),
            Some("token_counting.measured") => {
                let tokens = line["tokens"].as_u64();
                self.messages.extend(tokens.map(|tokens| size_of_context(tokens, &at)));
            }
            _ => {}
        }
    }

    /// Adds a prompt. Other messages of this role are the program's reminders to the model.
    fn prompt(&mut self, prompt: &Json, at: &Json) {
        self.end_reply();
        let text = texts(&prompt["content"]);
        if prompt["origin"]["kind"] == PERSON && prompt["role"] == "user" && !text.is_empty() {
            self.prompts.push(self.messages.len());
            self.messages.push(message("user", text.into(), at));
        }
    }

    fn event(&mut self, event: &Json, at: &Json) {
        let part = &event["part"];
        let block = match event["type"].as_str() {
            Some("content.part") => match part["type"].as_str() {
                Some("think") => text_block("thinking", part["think"].as_str()),
                _ => text_block("text", part["text"].as_str()),
            },
            Some("tool.call") => call_block(&event["toolCallId"], &event["name"], &event["args"]),
            Some("tool.result") => {
                self.end_reply();
                let result = &event["result"];
                let text = texts(&result["output"]);
                let content =
                    result_content(&event["toolCallId"], &text, result["isError"] == true);
                self.messages.extend(content.map(|content| message("user", content, at)));
                None
            }
            Some("step.begin" | "step.end") => {
                self.end_reply();
                None
            }
            _ => None,
        };
        if let Some(block) = block {
            if self.reply.is_empty() {
                self.replied_at = at.clone();
            }
            self.reply.push(block);
        }
    }

    fn end_reply(&mut self) {
        let blocks = std::mem::take(&mut self.reply);
        if !blocks.is_empty() {
            self.messages.push(message("assistant", blocks.into(), &self.replied_at));
        }
    }

    /// Takes the last turns back.
    fn undo(&mut self, turns: u64) {
        self.end_reply();
        for _ in 0..turns {
            let Some(prompt) = self.prompts.pop() else { break };
            self.messages.truncate(prompt);
        }
    }
}

/// Returns the messages of Grok Build's file, which has those that the model sees now.
fn grok_messages(lines: &[Json]) -> Vec<Json> {
    let mut messages = Vec::new();
    let mut thoughts: Vec<Json> = Vec::new();
    for line in lines {
        // The file has no times.
        let at = &Json::Null;
        match line["type"].as_str() {
            Some("reasoning") => {
                thoughts.extend(text_block("thinking", Some(&texts(&line["summary"]))));
            }
            Some("assistant") => {
                let said = text_block("text", Some(&texts(&line["content"])));
                let calls = list(&line["tool_calls"]).iter().filter_map(grok_call);
                let mut blocks = std::mem::take(&mut thoughts);
                blocks.extend(said.into_iter().chain(calls));
                if !blocks.is_empty() {
                    messages.push(message("assistant", blocks.into(), at));
                }
            }
            Some("tool_result") => {
                let text = texts(&line["content"]);
                let content = result_content(&line["tool_call_id"], &text, false);
                messages.extend(content.map(|content| message("user", content, at)));
            }
            Some("user") => {
                thoughts.clear();
                messages.extend(grok_prompt(line).map(|text| message("user", text.into(), at)));
            }
            _ => {}
        }
    }
    messages
}

/// Returns the text of a prompt. Other messages of this role have no number, and are the program's.
fn grok_prompt(line: &Json) -> Option<String> {
    line["prompt_index"].as_u64()?;
    let text = texts(&line["content"]);
    let (start, end) = GROK_PROMPT;
    let prompt = text.strip_prefix(start).and_then(|text| text.strip_suffix(end));
    let prompt = prompt.map_or(text.as_str(), |prompt| prompt);
    (!prompt.is_empty()).then(|| prompt.to_owned())
}

fn grok_call(call: &Json) -> Option<Json> {
    let text = call["arguments"].as_str();
    // Arguments that are no JSON are shown as the model wrote them.
    let input = text.map(|text| serde_json::from_str(text).unwrap_or_else(|_| text.into()));
    call_block(&call["id"], &call["name"], &input.unwrap_or(Json::Null))
}
