//! Rows of transcripts: the one place that knows the keys of a row.
//!
//! A [`JobRow`] is one line of a job's transcript, or of a session's transcript in Claude's
//! envelope. It is read loosely: unknown kinds and fields survive, and a field of an unexpected
//! type counts as missing. All of it is untrusted. Start at [`JobRow::kind`].

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use uuid::Uuid;

use crate::time::parse_iso;

/// Fields of a tool's input that describe the call best, in the order of preference.
const MAIN_INPUT_FIELDS: [&str; 9] = [
    "command",
    "file_path",
    "notebook_path",
    "path",
    "pattern",
    "query",
    "url",
    "description",
    "prompt",
];

/// One row. Serializes as the JSON value it was read from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobRow(Json);

/// The kind of a row, with the fields that belong to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum JobRowKind<'r> {
    /// Text of the agent; content blocks in a session's transcript.
    Assistant,
    /// A user message of a session's transcript.
    User,
    /// The agent uses a tool.
    ToolCall { tool: &'r str, input: &'r Json },
    /// A tool has returned.
    ToolResult(ToolResultRow<'r>),
    /// The end of a turn. Its text repeats the last row of the agent; its error does not.
    TurnResult(TurnResultRow<'r>),
    /// A failure that the agent or its runner reports.
    Error { message: &'r str, code: Option<&'r str>, cure: Option<&'r str> },
    /// A prompt, a notice or an event, by its subtype.
    System { subtype: &'r str },
    /// A kind that this version does not know.
    Other(&'r str),
}

/// The speaker of a row. Every surface shows the same word for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowSpeaker<'r> {
    User,
    Agent,
    Tool,
    /// A shell command that Heeler runs.
    Command,
    /// The standard error of the agent's process.
    Stderr,
    System,
    Error,
    TurnEnd,
    /// A row of an unknown kind, by its kind.
    Other(&'r str),
}

/// One block of a message's content.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ContentBlock<'r> {
    Text(&'r str),
    Thinking(&'r str),
    ToolCall {
        id: Option<&'r str>,
        tool: &'r str,
        input: &'r Json,
    },
    ToolResult {
        call: Option<&'r str>,
        failed: bool,
        content: &'r Json,
    },
    /// A block of an unknown type, by its type.
    Other(&'r str),
    /// A value that is no block.
    Plain(&'r Json),
}

/// The fields of a tool result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ToolResultRow<'r> {
    /// Missing in rows of other programs.
    pub tool: Option<&'r str>,
    pub failed: bool,
    pub duration_ms: Option<i64>,
    error: &'r Json,
    result: &'r Json,
}

/// The fields of a turn's end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TurnResultRow<'r> {
    pub subtype: &'r str,
    /// Never empty.
    pub error: Option<&'r str>,
    pub result: Option<&'r str>,
    pub turns: Option<i64>,
    pub duration_ms: Option<i64>,
    pub cost_usd: Option<f64>,
}

impl JobRow {
    pub fn new(row: Json) -> JobRow {
        JobRow(row)
    }

    /// Parses one line of a transcript.
    pub fn parse(line: &[u8]) -> Result<JobRow, serde_json::Error> {
        serde_json::from_slice(line).map(JobRow)
    }

    /// Returns the row as JSON, for replies that pass it on unchanged.
    pub fn as_json(&self) -> &Json {
        &self.0
    }

    pub fn into_json(self) -> Json {
        self.0
    }

    pub fn kind(&self) -> JobRowKind<'_> {
        // A session file of agents-fleet has a role where others have a type.
        let kind = self.text("type").or_else(|| self.text("role")).unwrap_or("row");
        match kind {
            // Last Light writes a fatal error as a message without content.
            "assistant" if self.is_bare_error() => JobRowKind::Error {
                message: self.text("error").or(self.0["error"]["message"].as_str()).unwrap_or(""),
                code: self.0["error"]["code"].as_str(),
                cure: None,
            },
            "assistant" => JobRowKind::Assistant,
            "user" => JobRowKind::User,
            "tool_use" => JobRowKind::ToolCall {
                tool: self.text("tool_name").unwrap_or_default(),
                input: &self.0["input"],
            },
            // A tool's result names the call that it answers; the end of a turn answers none.
            "tool_result" if self.call_id().is_none() && self.text("subtype").is_some() => {
                JobRowKind::TurnResult(self.turn_result())
            }
            "tool_result" => JobRowKind::ToolResult(self.tool_result()),
            "result" => JobRowKind::TurnResult(self.turn_result()),
            "error" => JobRowKind::Error {
                message: self.text("message").unwrap_or_default(),
                code: self.text("code"),
                cure: self.text("cure"),
            },
            "system" => JobRowKind::System { subtype: self.text("subtype").unwrap_or_default() },
            other => JobRowKind::Other(other),
        }
    }

    /// Says whether the row is an error of the model's service that has no content.
    fn is_bare_error(&self) -> bool {
        self.0["isApiErrorMessage"] == Json::Bool(true)
            && self
                .content()
                .is_none_or(|content| *content == "" || *content == Json::Array(vec![]))
            && !self.0["error"].is_null()
    }

    pub fn speaker(&self) -> RowSpeaker<'_> {
        match self.kind() {
            JobRowKind::ToolCall { .. } | JobRowKind::ToolResult(_) => RowSpeaker::Tool,
            // Claude stores tool results as messages of the user.
            JobRowKind::User if self.has_tool_results() => RowSpeaker::Tool,
            JobRowKind::User => RowSpeaker::User,
            // Prompts are system rows in a job transcript.
            JobRowKind::System { .. } if self.is_prompt() => RowSpeaker::User,
            JobRowKind::System { subtype: "command" } => RowSpeaker::Command,
            JobRowKind::System { subtype: "stderr" } => RowSpeaker::Stderr,
            JobRowKind::System { .. } => RowSpeaker::System,
            JobRowKind::Assistant => RowSpeaker::Agent,
            JobRowKind::Error { .. } => RowSpeaker::Error,
            JobRowKind::TurnResult(_) => RowSpeaker::TurnEnd,
            JobRowKind::Other(kind) => RowSpeaker::Other(kind),
        }
    }

    /// Says whether a user message of a session returns the results of tools.
    fn has_tool_results(&self) -> bool {
        let blocks = self.content().and_then(Json::as_array);
        blocks.is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "tool_result"))
    }

    fn tool_result(&self) -> ToolResultRow<'_> {
        ToolResultRow {
            tool: self.text("tool_name"),
            // Imported rows may lack the field, and most tools succeed.
            failed: self.0["success"] == Json::Bool(false),
            duration_ms: self.0["duration_ms"].as_i64(),
            error: &self.0["error"],
            result: &self.0["result"],
        }
    }

    fn turn_result(&self) -> TurnResultRow<'_> {
        TurnResultRow {
            subtype: self.text("subtype").unwrap_or_default(),
            error: self.text("error").filter(|error| !error.is_empty()),
            result: self.text("result"),
            turns: self.0["num_turns"].as_i64(),
            duration_ms: self.0["duration_ms"].as_i64(),
            cost_usd: self.0["total_cost_usd"].as_f64(),
        }
    }

    pub fn uuid(&self) -> Option<Uuid> {
        Uuid::try_parse(self.text("uuid")?).ok()
    }

    pub fn written_at(&self) -> Option<Timestamp> {
        self.text("timestamp").and_then(parse_iso)
    }

    /// Says whether a prompt was written by Heeler, not by a person.
    pub fn is_synthetic(&self) -> bool {
        self.0["synthetic"] == Json::Bool(true)
    }

    /// Returns the ID of the tool call that the row is, answers or reports on.
    pub fn call_id(&self) -> Option<&str> {
        self.text("tool_use_id")
    }

    /// Returns the call whose sub-agent wrote the row; none for the main agent.
    pub fn sub_agent_call(&self) -> Option<&str> {
        self.text("parent_tool_use_id")
    }

    /// Says whether the row is apart from the main conversation: of a sub-agent, or an error of the
    /// model's service in the form of a message.
    pub fn is_aside(&self) -> bool {
        let is_true = |key: &str| self.0[key] == Json::Bool(true);
        is_true("isSidechain") || is_true("isApiErrorMessage") || self.sub_agent_call().is_some()
    }

    /// Says whether the row is a failure that the agent's program reports in the name of the main agent.
    pub fn is_reported_error(&self) -> bool {
        let is_true = |key: &str| self.0[key] == Json::Bool(true);
        is_true("isApiErrorMessage") && !is_true("isSidechain") && self.sub_agent_call().is_none()
    }

    /// Says whether the row is a message in Claude's envelope.
    pub fn has_envelope(&self) -> bool {
        self.0["message"].is_object()
    }

    /// Says whether the row is a prompt of the main agent: the words of a person or of a job.
    pub fn is_prompt(&self) -> bool {
        matches!(self.kind(), JobRowKind::System { subtype: "user_input" })
            && self.sub_agent_call().is_none()
    }

    /// Returns the text or content blocks of a message. Formats differ in the place of them.
    pub fn content(&self) -> Option<&Json> {
        // Claude nests the content, job rows have it at the top, and errors are the message itself.
        [&self.0["message"]["content"], &self.0["content"], &self.0["message"]]
            .into_iter()
            .find(|content| content.is_string() || content.is_array())
    }

    /// Returns the text of a notice without the ID of its question, which only programs need.
    pub fn notice_text(&self) -> String {
        let text = self.content().map(block_text);
        let mut text = text.unwrap_or_else(|| self.text("subtype").unwrap_or_default().to_owned());
        // The ID of the question is for programs; people see the question itself.
        if let Some("asked" | "answered" | "denied" | "withdrawn") = self.text("subtype")
            && let Some(end) = text.rfind(" (question ")
        {
            text.truncate(end);
        }
        text
    }

    /// Returns a field of the row as text. Only for fields that no other method knows.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0[key].as_str()
    }

    /// Returns a field of the row as a number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.0[key].as_u64()
    }

    /// Returns the texts in a list, such as the names of failed MCP servers.
    pub fn texts(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0[key].as_array().into_iter().flatten().filter_map(Json::as_str)
    }
}

impl ContentBlock<'_> {
    pub fn parse(block: &Json) -> ContentBlock<'_> {
        let text = |key: &str| block[key].as_str().unwrap_or_default();
        match block["type"].as_str() {
            Some("text") => ContentBlock::Text(text("text")),
            Some("thinking") => ContentBlock::Thinking(text("thinking")),
            Some("tool_use") => ContentBlock::ToolCall {
                id: block["id"].as_str(),
                tool: text("name"),
                input: &block["input"],
            },
            Some("tool_result") => ContentBlock::ToolResult {
                call: block["tool_use_id"].as_str(),
                failed: block["is_error"] == Json::Bool(true),
                content: &block["content"],
            },
            Some(other) => ContentBlock::Other(other),
            None => block.as_str().map_or(ContentBlock::Plain(block), ContentBlock::Text),
        }
    }
}

impl RowSpeaker<'_> {
    pub fn label(&self) -> &str {
        match self {
            RowSpeaker::User => "you",
            RowSpeaker::Agent => "agent",
            RowSpeaker::Tool => "tool",
            RowSpeaker::Command => "$",
            RowSpeaker::Stderr => "stderr",
            RowSpeaker::System => "system",
            RowSpeaker::Error => "error",
            RowSpeaker::TurnEnd => "end of turn",
            RowSpeaker::Other(kind) => kind,
        }
    }
}

impl ToolResultRow<'_> {
    /// Returns the error if there is one, else the result, as text.
    pub fn output(&self) -> String {
        match self.error {
            Json::Null => block_text(self.result),
            error => value_text(error),
        }
    }
}

/// Returns a value as people read it: a text without quotes, anything else as JSON.
pub fn value_text(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Null => String::new(),
        other => other.to_string(),
    }
}

/// Returns the content of a message in Claude's envelope.
pub fn envelope_content(row: &Json) -> &Json {
    &row["message"]["content"]
}

/// Returns the results of tools in a message's content, with the IDs of their calls. Tools of the
/// model's service have blocks of their own types.
pub fn tool_results(content: &Json) -> impl Iterator<Item = (&str, &Json, bool)> {
    content.as_array().into_iter().flatten().filter_map(|block| {
        let failed = block["is_error"] == Json::Bool(true);
        Some((block["tool_use_id"].as_str()?, &block["content"], failed))
    })
}

/// Returns the blocks of a message's content; a text is one block.
pub fn content_blocks(content: &Json) -> Vec<ContentBlock<'_>> {
    match content {
        Json::Array(blocks) => blocks.iter().map(ContentBlock::parse).collect(),
        Json::String(text) => vec![ContentBlock::Text(text)],
        other => vec![ContentBlock::Plain(other)],
    }
}

/// Returns content as text, one block below the other.
pub fn block_text(content: &Json) -> String {
    let text = |block: ContentBlock<'_>| match block {
        ContentBlock::Text(text) => text.to_owned(),
        ContentBlock::Thinking(_) => "[thinking]".to_owned(),
        ContentBlock::ToolCall { tool, input, .. } => {
            format!("{tool} {}", summarize_tool_input(input))
        }
        ContentBlock::ToolResult { content, .. } => block_text(content),
        ContentBlock::Other(kind) => format!("[{kind}]"),
        ContentBlock::Plain(value) => value_text(value),
    };
    content_blocks(content).into_iter().map(text).collect::<Vec<_>>().join("\n")
}

/// Returns the part of a tool's input that describes the call: its main field, its only field, or
/// all of it as JSON.
pub fn summarize_tool_input(input: &Json) -> String {
    let main = main_input_field(input).map(|(_, text)| text);
    // A question to a person has its text deeper inside.
    let main = main.or_else(|| input["questions"][0]["question"].as_str());
    match (main, input) {
        (Some(text), _) => text.to_owned(),
        (None, Json::Object(fields)) if fields.is_empty() => String::new(),
        (None, Json::Object(fields)) if fields.len() == 1 => {
            fields.values().map(value_text).collect()
        }
        (None, other) => value_text(other),
    }
}

/// Returns the name and text of the field that describes a tool's input best.
pub fn main_input_field(input: &Json) -> Option<(&'static str, &str)> {
    let text = |key: &'static str| Some((key, input[key].as_str()?));
    // An empty field says nothing, so the next one is tried.
    MAIN_INPUT_FIELDS.into_iter().filter_map(text).find(|(_, text)| !text.is_empty())
}

/// Returns a duration in its two largest units: `320ms`, `1.8s`, `5m 23s`, `1h 02m`.
pub fn format_duration(milliseconds: i64) -> String {
    let seconds = milliseconds / 1_000;
    match seconds {
        ..1 => format!("{milliseconds}ms"),
        1..60 => format!("{}.{}s", seconds, milliseconds % 1_000 / 100),
        60..3_600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3_600, seconds % 3_600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(row: Json, check: impl Fn(JobRowKind<'_>) -> bool) {
        let row = JobRow::new(row);
        assert!(check(row.kind()), "{row:?} is {:?}", row.kind());
    }

    #[test]
    fn a_result_without_a_call_is_the_end_of_a_turn() {
        kind(
            json!({"type": "tool_result", "subtype": "success", "result": "Hi"}),
            |kind| matches!(kind, JobRowKind::TurnResult(turn) if turn.result == Some("Hi")),
        );
        kind(
            json!({"type": "result", "subtype": "success", "error": ""}),
            |kind| matches!(kind, JobRowKind::TurnResult(turn) if turn.error.is_none()),
        );
        kind(json!({"type": "tool_result", "subtype": "x", "tool_use_id": "1"}), |kind| {
            matches!(kind, JobRowKind::ToolResult(_))
        });
        // herdctl writes results without the ID of their call.
        kind(
            json!({"type": "tool_result", "result": "a.txt", "success": true}),
            |kind| matches!(kind, JobRowKind::ToolResult(result) if !result.failed),
        );
    }

    #[test]
    fn an_error_without_content_is_an_error() {
        let is = |wanted: &'static str| move |kind: JobRowKind<'_>| matches!(kind, JobRowKind::Error { message, .. } if message == wanted);
        let row = |error: Json, content: Json| {
            json!({"type": "assistant", "isApiErrorMessage": true, "error": error,
                "message": {"role": "assistant", "content": content}})
        };
        kind(row(json!("out of memory"), Json::Null), is("out of memory"));
        kind(row(json!({"message": "overloaded"}), json!([])), is("overloaded"));
        kind(row(json!("code"), json!("API Error: 529")), |kind| kind == JobRowKind::Assistant);
    }

    #[test]
    fn unknown_kinds_and_fields_survive() {
        let line = br#"{"type":"brand_new","payload":[1],"uuid":7}"#;
        let row = JobRow::parse(line).unwrap();
        assert_eq!(row.kind(), JobRowKind::Other("brand_new"));
        assert_eq!(row.uuid(), None, "a field of another type counts as missing");
        assert_eq!(serde_json::to_vec(&row).unwrap(), line);
    }

    #[test]
    fn values_that_are_no_objects_are_rows_without_fields() {
        for value in [json!(null), json!(7), json!("text"), json!([1, 2])] {
            assert_eq!(JobRow::new(value).kind(), JobRowKind::Other("row"));
        }
    }

    #[test]
    fn rows_that_return_tool_results_are_the_tools() {
        let label = |row: Json| JobRow::new(row).speaker().label().to_owned();
        assert_eq!(label(json!({"type": "user", "message": {"content": "Go."}})), "you");
        let results = json!({"type": "user", "message": {"content": [{"type": "tool_result"}]}});
        assert_eq!(label(results), "tool");
        assert_eq!(label(json!({"role": "tool", "content": "x"})), "tool");
        assert_eq!(label(json!({"type": "assistant", "content": "x"})), "agent");
        assert_eq!(label(json!({"type": "system", "subtype": "command"})), "$");
    }

    #[test]
    fn only_the_main_agents_input_is_a_prompt() {
        let prompt = json!({"type": "system", "subtype": "user_input", "content": "Go."});
        assert!(JobRow::new(prompt.clone()).is_prompt());
        let mut nested = prompt;
        nested["parent_tool_use_id"] = "1".into();
        assert!(!JobRow::new(nested).is_prompt());
    }

    #[test]
    fn content_is_found_in_every_format() {
        let content = |row: Json| JobRow::new(row).content().cloned();
        assert_eq!(content(json!({"content": "a"})), Some(json!("a")));
        assert_eq!(content(json!({"message": {"content": ["b"]}})), Some(json!(["b"])));
        assert_eq!(content(json!({"message": "c"})), Some(json!("c")));
        assert_eq!(content(json!({"content": 7})), None);
    }

    #[test]
    fn results_are_text_whatever_their_form() {
        let output = |row: Json| match JobRow::new(row).kind() {
            JobRowKind::ToolResult(result) => result.output(),
            other => panic!("{other:?}"),
        };
        assert_eq!(output(json!({"type": "tool_result", "result": "a"})), "a");
        assert_eq!(output(json!({"type": "tool_result", "error": "b", "result": "a"})), "b");
        let blocks = json!([{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]);
        assert_eq!(output(json!({"type": "tool_result", "result": blocks})), "x\ny");
        let image = json!([{"type": "image", "source": {}}]);
        assert_eq!(output(json!({"type": "tool_result", "result": image})), "[image]");
        assert_eq!(output(json!({"type": "tool_result"})), "");
    }

    #[test]
    fn inputs_are_described_by_their_main_field() {
        let summary = |input: Json| summarize_tool_input(&input);
        assert_eq!(summary(json!({"command": "ls", "description": "Looks"})), "ls");
        assert_eq!(summary(json!({"questions": [{"question": "Sure?"}]})), "Sure?");
        assert_eq!(summary(json!({"n": 7})), "7");
        assert_eq!(summary(json!({"a": 1, "b": 2})), r#"{"a":1,"b":2}"#);
        assert_eq!(summary(json!("sleep 9")), "sleep 9");
        assert_eq!(summary(json!({})), "");
        assert_eq!(summary(Json::Null), "");
    }

    #[test]
    fn durations_have_two_units() {
        for (ms, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_800, "1.8s"),
            (323_000, "5m 23s"),
            (3_725_000, "1h 02m"),
        ] {
            assert_eq!(format_duration(ms), text);
        }
    }
}
