//! The fake model's script, as a directive in the prompt: `MOCK[{"text":"hi"}]`.
//!
//! The newest user message with a directive applies; the number of assistant messages after it
//! selects the next step. After the last step the script is over. Start at [`ModelScript`].

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

const DIRECTIVE: &str = "MOCK[";

/// The model's replies to a prompt, turn by turn. `to_string` returns the directive.
#[derive(Debug, Clone, Default)]
pub struct ModelScript(Vec<ModelScriptStep>);

impl ModelScript {
    /// Creates an empty script.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a text reply.
    pub fn text(self, text: &str) -> Self {
        self.step(ModelScriptStep::text(text))
    }

    /// Adds a tool call.
    pub fn tool(self, name: &str, input: Json) -> Self {
        self.step(ModelScriptStep::tools([(name, input)]))
    }

    /// Adds a reply with the received conversation, one block per line.
    pub fn echo(self) -> Self {
        self.step(ModelScriptStep { echo: true, ..ModelScriptStep::default() })
    }

    /// Adds a step.
    pub fn step(mut self, step: ModelScriptStep) -> Self {
        self.0.push(step);
        self
    }
}

impl std::fmt::Display for ModelScript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let steps = serde_json::to_string(&self.0).map_err(|_| std::fmt::Error)?;
        write!(f, "{}{}", DIRECTIVE.trim_end_matches('['), steps)
    }
}

/// One reply of the model, or one way to fail.
///
/// `drop_after`, `error_after` and `stall_after` cut a streamed reply after that many pieces; a
/// reply that is not streamed is complete. Without a text of their own they repeat `partial `.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelScriptStep {
    /// Thinking text before the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Text of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Parallel tool calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ModelToolCall>,
    /// Replies with the received conversation instead of a text.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub echo: bool,
    /// Overrides the stop reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Overrides figures of the usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Json>,
    /// Delay before the reply begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hang_ms: Option<u64>,
    /// Delay after each piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Characters in a piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub piece: Option<usize>,
    /// Replies with this HTTP status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Message of an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Type of an error, if it is not the usual one of the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// Time at which a limit resets, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<u64>,
    /// Further headers of the reply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// `retry-after` header of an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// Number of failures, after which the next step is the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// Closes the connection after this many pieces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_after: Option<usize>,
    /// Sends an error event after this many pieces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_after: Option<usize>,
    /// Sends nothing more after this many pieces and keeps the connection open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_after: Option<usize>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelToolCall {
    pub name: String,
    pub input: Json,
}

impl ModelScriptStep {
    /// Creates a text reply.
    pub fn text(text: &str) -> Self {
        Self { text: Some(text.to_owned()), ..Self::default() }
    }

    /// Creates parallel tool calls.
    pub fn tools<'t>(tools: impl IntoIterator<Item = (&'t str, Json)>) -> Self {
        let tool = |(name, input): (&str, Json)| ModelToolCall { name: name.to_owned(), input };
        Self { tools: tools.into_iter().map(tool).collect(), ..Self::default() }
    }

    /// Creates a reply with an HTTP error, every time.
    pub fn error(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    /// Creates a reply that closes the connection after this many pieces.
    pub fn dropped(pieces: usize) -> Self {
        Self { drop_after: Some(pieces), ..Self::default() }
    }

    /// Creates a reply that sends an error event after this many pieces.
    pub fn broken(pieces: usize) -> Self {
        Self { error_after: Some(pieces), ..Self::default() }
    }

    /// Creates a reply that stops after this many pieces.
    pub fn stalled(pieces: usize) -> Self {
        Self { stall_after: Some(pieces), ..Self::default() }
    }

    /// Limits a failure to this many times; then the next step is the reply.
    pub fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }
}

impl ModelScriptStep {
    /// Returns true if the reply is cut.
    pub(super) fn is_cut(&self) -> bool {
        self.drop_after.or(self.error_after).or(self.stall_after).is_some()
    }
}

/// Returns the step with which to answer a request. `fails_again` counts the failures of a
/// step.
pub(super) fn pick_step(body: &Json, fails_again: impl Fn(&str, u32) -> bool) -> ModelScriptStep {
    let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let found = messages.iter().enumerate().rev().find_map(|(at, message)| {
        if message["role"] != "user" {
            return None;
        }
        let text = texts(message).into_iter().rev().find(|text| text.contains(DIRECTIVE))?;
        Some((at, text))
    });
    let Some((at, text)) = found else {
        let said = history(body).pop().unwrap_or_default();
        return ModelScriptStep::text(&format!("mock reply #{}: {said}", messages.len()));
    };
    let steps = match parse(text) {
        Ok(steps) => steps,
        Err(error) => return ModelScriptStep::text(&format!("bad script: {error}")),
    };
    let said = messages[at..].iter().filter(|message| message["role"] == "assistant").count();
    // Keyed by script and step, not by position: a conversation that continues after a failure is
    // longer, and Claude merges prompts that got no answer.
    let script = serde_json::to_string(&steps).unwrap_or_default();
    // A step with a limited number of failures belongs to the reply after it.
    let mut answers = 0;
    for (number, step) in steps.into_iter().enumerate() {
        let Some(times) = step.times else {
            if answers == said {
                return step;
            }
            answers += 1;
            continue;
        };
        let key = format!("{number} of {at} in {script}");
        if answers == said && fails_again(&key, times) {
            return step;
        }
    }
    ModelScriptStep::text("end of script")
}

/// Parses the first directive in a text.
fn parse(text: &str) -> Result<Vec<ModelScriptStep>, serde_json::Error> {
    let at = text.find(DIRECTIVE).expect("the text was chosen for it") + DIRECTIVE.len() - 1;
    let mut steps =
        serde_json::Deserializer::from_str(&text[at..]).into_iter::<Vec<ModelScriptStep>>();
    steps.next().unwrap_or_else(|| Ok(Vec::new()))
}

fn texts(message: &Json) -> Vec<&str> {
    match &message["content"] {
        Json::String(text) => vec![text],
        Json::Array(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect(),
        _ => Vec::new(),
    }
}

/// Returns the conversation as short lines, without Claude Code's additions.
pub(super) fn history(body: &Json) -> Vec<String> {
    let mut lines = Vec::new();
    for message in body["messages"].as_array().into_iter().flatten() {
        let role = message["role"].as_str().unwrap_or("?");
        let text = json!([{"type": "text", "text": message["content"]}]);
        let blocks = if message["content"].is_string() { &text } else { &message["content"] };
        for block in blocks.as_array().into_iter().flatten() {
            lines.extend(block_text(block).map(|block| format!("{role}: {block}")));
        }
    }
    lines.retain(|line| !line.starts_with("system:"));
    lines
}

fn block_text(block: &Json) -> Option<String> {
    match block["type"].as_str() {
        Some("text") => {
            let text = block["text"].as_str().unwrap_or_default();
            (!text.trim_start().starts_with("<system-reminder>")).then(|| text.to_owned())
        }
        Some("tool_use") => Some(format!("{} {}", block["name"], block["input"])),
        Some("tool_result") => {
            let failed = if block["is_error"] == true { "failed " } else { "" };
            Some(format!("{failed}result {}", block["content"]))
        }
        Some(other) => Some(format!("({other})")),
        None => None,
    }
}
