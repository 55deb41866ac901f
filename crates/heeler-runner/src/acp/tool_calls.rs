//! Tool calls of an ACP agent: from updates that each tell a part, to one row for the call and one
//! for its result.
//!
//! Agents announce a call before its input is known, only with a question about it, or never. The
//! row of a call waits until its input is complete, and each row of a call gets a result. Start at
//! [`AcpToolCalls`].

use indexmap::{IndexMap, IndexSet};
use serde_json::{Map, Value as Json};

use heeler_model::message::ID_BYTES_MAX;

use crate::program_policy::ProgramAction;
use crate::program_rows as rows;
use crate::runtime::RuntimeEffect;

/// Limit on open calls. Beyond it the oldest one is closed without a result.
const OPEN_CALLS_MAX: usize = 4096;

/// Limit on remembered calls that have a result. An update about a forgotten one is a new call.
const FINISHED_CALLS_MAX: usize = 1024;

/// Limit on the output that is collected for one call; the rest is left out, and the row says so.
const CALL_OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Limit on paths of one call that are compared with protected files. A question about a call with
/// more is denied.
pub(super) const CALL_PATHS_MAX: usize = 1024;

/// Limit on remembered outputs of the client's terminals. Without its output, the row of a call has none.
const TERMINAL_OUTPUTS_MAX: usize = 16;

/// Member in which one agent names the tool.
const TOOL_NAME_META: &str = "tool_name";

/// Open tool calls, by the agent's ID.
#[derive(Debug, Default)]
pub(super) struct AcpToolCalls {
    open: IndexMap<String, AcpToolCall>,
    /// Calls of this turn that have a result. Agents may repeat themselves about them.
    finished: IndexSet<String>,
    /// The agent sends inputs as the text of the content first.
    streams_input: bool,
    /// Outputs of the client's terminals, by their IDs.
    terminals: IndexMap<String, String>,
}

#[derive(Debug, Default)]
struct AcpToolCall {
    name: Option<String>,
    kind: Option<String>,
    title: Option<String>,
    input: Json,
    paths: Vec<String>,
    is_announced: bool,
    is_running: bool,
    /// Output of a terminal that the agent runs itself.
    terminal: String,
    content: Json,
    raw_output: Json,
    denial: Option<String>,
}

/// Call as a person is asked about it.
#[derive(Debug)]
pub(super) struct DescribedCall {
    pub(super) name: String,
    pub(super) input: Json,
    pub(super) action: ProgramAction,
    pub(super) paths: Vec<String>,
}

impl AcpToolCalls {
    pub(super) fn new(streams_input: bool) -> AcpToolCalls {
        AcpToolCalls { streams_input, ..AcpToolCalls::default() }
    }

    /// Takes over an update about a call.
    pub(super) fn update(&mut self, update: &Json) -> Vec<RuntimeEffect> {
        let id = update["toolCallId"].as_str().unwrap_or_default();
        if id.is_empty() || id.len() > ID_BYTES_MAX {
            return vec![rows::unknown_message("a tool call without a usable ID", update)];
        }
        if self.is_finished(update) {
            return Vec::new();
        }
        let mut effects = Vec::new();
        if !self.open.contains_key(id) {
            if self.open.len() >= OPEN_CALLS_MAX
                && let Some((oldest, call)) = self.open.shift_remove_index(0)
            {
                effects.extend(call.close(&oldest, "too many calls are open"));
            }
            self.open.insert(id.to_owned(), AcpToolCall::default());
        }
        let Some(call) = self.open.get_mut(id) else { return effects };
        call.merge(update);
        match update["status"].as_str() {
            Some("in_progress") => {
                call.is_running = true;
                // The input may be incomplete until it is reported as such, or asked about.
                if !self.streams_input || call.has_input() {
                    effects.extend(call.announce(id));
                }
            }
            Some(status @ ("completed" | "failed")) => {
                effects.extend(call.announce(id));
                if let Some(call) = self.open.shift_remove(id) {
                    effects.push(call.result(id, &self.terminals, status == "failed"));
                    self.remember_finished(id.to_owned());
                }
            }
            _ => {}
        }
        effects
    }

    /// Takes over the call that a question is about; returns its row, unless it exists. The content
    /// of a question describes the action and is not its output.
    pub(super) fn update_asked(&mut self, asked: &Json) -> Vec<RuntimeEffect> {
        let mut asked = asked.clone();
        let content = match &mut asked {
            Json::Object(fields) => {
                fields.shift_remove("status");
                fields.shift_remove("rawOutput");
                fields.shift_remove("content")
            }
            _ => None,
        };
        let mut effects = self.update(&asked);
        let id = asked["toolCallId"].as_str().unwrap_or_default();
        if let Some(call) = self.open.get_mut(id).filter(|_| self.streams_input) {
            call.read_streamed_input();
        }
        if let (Some(call), Some(content)) = (self.open.get_mut(id), content) {
            call.add_paths(&Json::Object(Map::from_iter([("content".to_owned(), content)])));
        }
        effects.extend(self.announce(id));
        effects
    }

    /// Returns the row of a call, unless it exists.
    fn announce(&mut self, id: &str) -> Option<RuntimeEffect> {
        self.open.get_mut(id)?.announce(id)
    }

    pub(super) fn record_denial(&mut self, id: &str, reason: &str) {
        if let Some(call) = self.open.get_mut(id) {
            call.denial = Some(reason.to_owned());
        }
    }

    /// Describes a call for a question. The question itself may be all that is known about it.
    pub(super) fn describe(&self, id: &str, asked: &Json) -> DescribedCall {
        let unknown = AcpToolCall::default();
        let call = self.open.get(id).unwrap_or(&unknown);
        let mut input = call.shown_input();
        if let Json::Object(fields) = &mut input
            && let Some(title) = asked["title"].as_str().or(call.title.as_deref())
            && !fields.contains_key("title")
        {
            fields.insert("title".to_owned(), title.into());
        }
        DescribedCall {
            name: call.shown_name().to_owned(),
            input,
            action: call.action(),
            paths: call.paths.clone(),
        }
    }

    /// Closes every call, so that none stays open for ever.
    pub(super) fn close_all(&mut self, reason: &str) -> Vec<RuntimeEffect> {
        let open = std::mem::take(&mut self.open);
        let mut effects = Vec::new();
        for (id, call) in open {
            effects.extend(call.close(&id, reason));
            self.remember_finished(id);
        }
        effects
    }

    /// Returns true if an update is about a call that has a result.
    pub(super) fn is_finished(&self, update: &Json) -> bool {
        update["toolCallId"].as_str().is_some_and(|id| self.finished.contains(id))
    }

    /// Forgets the calls of the turns before, because an agent may use their IDs again.
    pub(super) fn forget_finished(&mut self) {
        self.finished.clear();
    }

    /// Remembers what a terminal of the client has printed.
    pub(super) fn set_terminal_output(&mut self, terminal: String, output: String) {
        if !self.terminals.contains_key(&terminal) && self.terminals.len() >= TERMINAL_OUTPUTS_MAX {
            self.terminals.shift_remove_index(0);
        }
        self.terminals.insert(terminal, output);
    }

    fn remember_finished(&mut self, id: String) {
        if self.finished.len() >= FINISHED_CALLS_MAX {
            self.finished.shift_remove_index(0);
        }
        self.finished.insert(id);
    }

    pub(super) fn has_running(&self) -> bool {
        self.open.values().any(|call| call.is_running)
    }
}

impl AcpToolCall {
    fn merge(&mut self, update: &Json) {
        let meta = &update["_meta"];
        let names = [
            &update["name"],
            &meta["claudeCode"]["toolName"],
            &meta["goose"]["toolCall"]["toolName"],
            meta.get(TOOL_NAME_META).unwrap_or(&Json::Null),
        ];
        set_text(&mut self.name, names.iter().find_map(|name| name.as_str()));
        set_text(&mut self.kind, update["kind"].as_str());
        set_text(&mut self.title, update["title"].as_str());
        // Some agents begin with an empty input and fill it in later.
        if let Json::Object(input) = &update["rawInput"]
            && !input.is_empty()
        {
            self.input = update["rawInput"].clone();
        }
        if update["content"].as_array().is_some_and(|content| !content.is_empty()) {
            self.content = update["content"].clone();
        }
        if !update["rawOutput"].is_null() {
            self.raw_output = update["rawOutput"].clone();
        }
        if let Some(output) = meta["terminal_output_delta"]["data"].as_str() {
            let room = CALL_OUTPUT_BYTES_MAX.saturating_sub(self.terminal.len());
            self.terminal.push_str(&output[..output.floor_char_boundary(room)]);
        }
        self.add_paths(update);
    }

    fn has_input(&self) -> bool {
        self.input.as_object().is_some_and(|input| !input.is_empty())
    }

    /// Takes the input from the text of the content, unless the agent has reported it.
    fn read_streamed_input(&mut self) {
        let text = self.content[0]["content"]["text"].as_str().unwrap_or_default();
        let input: Json = serde_json::from_str(text).unwrap_or_default();
        if !self.has_input() && input.is_object() {
            self.add_paths(&Json::Object(Map::from_iter([("rawInput".to_owned(), input.clone())])));
            self.input = input;
            // It is not the output.
            self.content = Json::Null;
        }
    }

    /// Collects the paths that an update names, which are compared with protected files.
    fn add_paths(&mut self, update: &Json) {
        let list = |value: &Json| value.as_array().cloned().unwrap_or_default();
        let locations = list(&update["locations"]);
        let content = list(&update["content"]);
        let input = &update["rawInput"];
        let named = [&input["file_path"], &input["filePath"], &input["path"], &input["abs_path"]];
        let paths = locations.iter().chain(&content).map(|it| &it["path"]).chain(named);
        for path in paths.filter_map(Json::as_str) {
            if self.paths.len() < CALL_PATHS_MAX && !self.paths.iter().any(|it| it == path) {
                self.paths.push(path.to_owned());
            }
        }
    }

    fn shown_name(&self) -> &str {
        self.name.as_deref().or(self.kind.as_deref()).unwrap_or("tool")
    }

    /// Returns the input, or what is known instead of it.
    fn shown_input(&self) -> Json {
        let mut fields = match &self.input {
            Json::Object(fields) => fields.clone(),
            _ => Map::new(),
        };
        if fields.is_empty() {
            if let Some(title) = &self.title {
                fields.insert("title".to_owned(), title.as_str().into());
            }
            if !self.paths.is_empty() {
                fields.insert("paths".to_owned(), self.paths.clone().into());
            }
        }
        Json::Object(fields)
    }

    fn action(&self) -> ProgramAction {
        match self.kind.as_deref() {
            Some("read" | "search" | "think") => ProgramAction::Read,
            Some("edit") => ProgramAction::Edit,
            _ => ProgramAction::Other,
        }
    }

    fn announce(&mut self, id: &str) -> Option<RuntimeEffect> {
        if std::mem::replace(&mut self.is_announced, true) {
            return None;
        }
        Some(rows::tool_use(id, self.shown_name(), self.shown_input()))
    }

    fn result(
        &self,
        id: &str,
        terminals: &IndexMap<String, String>,
        is_error: bool,
    ) -> RuntimeEffect {
        let output = self.output(terminals);
        let text = match (&self.denial, output.is_empty()) {
            (Some(reason), true) => format!("denied: {reason}"),
            _ => output,
        };
        rows::tool_result(id, &text, is_error)
    }

    fn close(mut self, id: &str, reason: &str) -> Vec<RuntimeEffect> {
        let announced = self.announce(id);
        let text = match &self.denial {
            Some(denial) => format!("denied: {denial}"),
            None => reason.to_owned(),
        };
        announced.into_iter().chain([rows::tool_result(id, &text, true)]).collect()
    }

    /// Returns the output in the best form that the agent gave.
    fn output(&self, terminals: &IndexMap<String, String>) -> String {
        let raw = match &self.raw_output {
            Json::String(text) => Some(text.as_str()),
            Json::Object(fields) => {
                let keys = ["output", "content", "stdout", "error", "message"];
                keys.iter().find_map(|key| fields.get(*key)?.as_str())
            }
            _ => None,
        };
        let content = self.content.as_array().map_or(&[][..], Vec::as_slice);
        let shown: Vec<String> =
            content.iter().filter_map(|block| describe_content(block, terminals)).collect();
        let mut text = match raw.filter(|raw| !raw.is_empty()) {
            Some(raw) => raw.to_owned(),
            None if !shown.is_empty() => shown.join("\n"),
            None if !self.terminal.is_empty() || self.raw_output.is_null() => self.terminal.clone(),
            // The agent's own form, such as a list of bytes, is better than nothing.
            None if raw.is_none() => self.raw_output.to_string(),
            None => String::new(),
        };
        if text.len() > CALL_OUTPUT_BYTES_MAX {
            text.truncate(text.floor_char_boundary(CALL_OUTPUT_BYTES_MAX));
            text.push_str("\n[the rest of the output is left out]");
        }
        text
    }
}

fn set_text(field: &mut Option<String>, value: Option<&str>) {
    // Agents refine a title step by step; the last one counts.
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        *field = Some(value[..value.floor_char_boundary(ID_BYTES_MAX)].to_owned());
    }
}

/// Returns the text of a content block.
fn describe_content(block: &Json, terminals: &IndexMap<String, String>) -> Option<String> {
    match block["type"].as_str()? {
        "content" => block["content"]["text"].as_str().map(str::to_owned),
        "diff" => {
            let path = block["path"].as_str().unwrap_or_default();
            let new = block["newText"].as_str().unwrap_or_default();
            Some(format!("{path}:\n{new}"))
        }
        // A terminal of the agent itself has none.
        "terminal" => terminals.get(block["terminalId"].as_str()?).cloned(),
        _ => None,
    }
}
