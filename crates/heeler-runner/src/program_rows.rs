//! Messages of an agent program that is not Claude, in the form that all runtimes share.
//!
//! The builders give messages in Claude's form, so rows, summaries and search work alike for every
//! agent. [`CollectedText`] collects the parts of a text into one row. Start there.

use heeler_config::PermissionMode;
use heeler_model::message::{AgentMessage, MessageBody, message_from_fields};
use heeler_model::native_session_row;
use serde_json::{Map, Value as Json, json};

use crate::runtime::RuntimeEffect;

/// Size in bytes at which a collected text becomes a row although more of it may follow.
pub(crate) const COLLECTED_TEXT_BYTES_MAX: usize = 1 << 20;

/// Kind of streamed text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamedKind {
    /// Said to people.
    Text,
    /// Thoughts of the model.
    Thinking,
}

/// Text that an agent sends in parts.
#[derive(Debug, Default)]
pub(crate) struct CollectedText {
    part: Option<StreamedPart>,
    /// Last complete text of the turn.
    last: String,
    /// Last part of a text for people.
    last_piece: String,
}

#[derive(Debug)]
struct StreamedPart {
    kind: StreamedKind,
    /// ID of the agent for the whole text.
    id: Option<String>,
    text: String,
}

impl CollectedText {
    /// Adds a part. A part of another text makes the earlier one a row.
    pub(crate) fn push(
        &mut self,
        kind: StreamedKind,
        id: Option<&str>,
        text: &str,
    ) -> Vec<RuntimeEffect> {
        let mut effects = Vec::new();
        let continues =
            self.part.as_ref().is_some_and(|it| it.kind == kind && it.id.as_deref() == id);
        if !continues {
            effects.extend(self.flush());
        }
        let id = || id.map(str::to_owned);
        let part =
            self.part.get_or_insert_with(|| StreamedPart { kind, id: id(), text: String::new() });
        part.text.push_str(text);
        if kind == StreamedKind::Text && !text.is_empty() {
            text.clone_into(&mut self.last_piece);
            let delta = MessageBody::Delta { text: text.to_owned() };
            effects.push(RuntimeEffect::Message(AgentMessage::from_body(delta)));
        }
        if part.text.len() >= COLLECTED_TEXT_BYTES_MAX {
            effects.extend(self.flush());
        }
        effects
    }

    /// Returns the collected text as a row.
    pub(crate) fn flush(&mut self) -> Option<RuntimeEffect> {
        let StreamedPart { kind, text, .. } = self.part.take()?;
        if text.trim().is_empty() {
            return None;
        }
        Some(match kind {
            StreamedKind::Text => {
                self.last.clone_from(&text);
                assistant(json!({ "type": "text", "text": text }))
            }
            StreamedKind::Thinking => assistant(json!({ "type": "thinking", "thinking": text })),
        })
    }

    /// Returns the collected text without this end as a row.
    pub(crate) fn flush_before(&mut self, end: &str) -> Option<RuntimeEffect> {
        if let Some(part) = &mut self.part
            && let Some(rest) = part.text.strip_suffix(end)
        {
            part.text.truncate(rest.len());
        }
        self.flush()
    }

    /// Takes a text that the agent repeats as a whole at its end; the collected parts are dropped.
    pub(crate) fn complete(&mut self, text: &str) -> Vec<RuntimeEffect> {
        self.part = None;
        if text.trim().is_empty() {
            return Vec::new();
        }
        text.clone_into(&mut self.last);
        vec![assistant(json!({ "type": "text", "text": text }))]
    }

    /// Returns the last complete text.
    pub(crate) fn last(&self) -> &str {
        &self.last
    }

    /// Returns the last part of a text, as the agent sent it.
    pub(crate) fn last_piece(&self) -> &str {
        &self.last_piece
    }

    pub(crate) fn set_last(&mut self, text: &str) {
        text.clone_into(&mut self.last);
    }
}

fn build(fields: Json) -> RuntimeEffect {
    let Json::Object(fields) = fields else { unreachable!("an object literal is an object") };
    RuntimeEffect::Message(message_from_fields(fields))
}

/// Builds a message of the model with one content block.
pub(crate) fn assistant(block: Json) -> RuntimeEffect {
    build(json!({ "type": "assistant", "message": { "role": "assistant", "content": [block] } }))
}

/// Builds a message with the text of an API error.
pub(crate) fn api_error(text: &str, status: Option<u64>, code: Option<&str>) -> RuntimeEffect {
    build(json!({
        "type": "assistant",
        "message": { "role": "assistant", "content": [{ "type": "text", "text": text }] },
        "is_api_error_message": true,
        "error": code,
        "api_error_status": status,
    }))
}

pub(crate) fn tool_use(id: &str, name: &str, input: Json) -> RuntimeEffect {
    assistant(json!({ "type": "tool_use", "id": id, "name": name, "input": input }))
}

pub(crate) fn tool_result(id: &str, content: &str, is_error: bool) -> RuntimeEffect {
    let block = json!({
        "type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error,
    });
    build(json!({ "type": "user", "message": { "role": "user", "content": [block] } }))
}

/// Builds the start of a turn.
pub(crate) fn turn_init(
    agent: &str,
    version: Option<&str>,
    model: Option<&str>,
    mode: PermissionMode,
) -> RuntimeEffect {
    let agent = agent.rsplit('/').next().unwrap_or(agent);
    build(json!({
        "type": "system", "subtype": "init", "agent": agent, "agent_version": version,
        "model": model, "permissionMode": mode,
    }))
}

/// Builds the row from which a later run learns the agent's own ID of the session.
pub(crate) fn native_session(agent: &str, id: &str) -> RuntimeEffect {
    build(native_session_row(agent, id))
}

/// Builds any other event. `fields` come from the agent, `subtype` never does.
pub(crate) fn system_event(subtype: &'static str, mut fields: Map<String, Json>) -> RuntimeEffect {
    fields.insert("type".to_owned(), "system".into());
    fields.insert("subtype".to_owned(), subtype.into());
    build(Json::Object(fields))
}

/// Builds the agent's plan of its work. Agents send the whole plan each time.
pub(crate) fn plan(update: &Json) -> RuntimeEffect {
    let entries = [&update["entries"], &update["plan"]].into_iter().find_map(Json::as_array);
    let line = |entry: &Json| {
        let text = entry["content"].as_str().or_else(|| entry["step"].as_str())?;
        let mark = match entry["status"].as_str() {
            Some("completed") => "x",
            Some("in_progress" | "inProgress") => "~",
            _ => " ",
        };
        Some(format!("[{mark}] {text}"))
    };
    let lines: Vec<String> = entries.into_iter().flatten().filter_map(line).collect();
    let fields =
        [("content".to_owned(), lines.join("\n").into()), ("update".to_owned(), update.clone())];
    system_event("plan", Map::from_iter(fields))
}

/// Builds a message for people about the agent program.
pub(crate) fn notice(subtype: &'static str, content: &str) -> RuntimeEffect {
    system_event(subtype, Map::from_iter([("content".to_owned(), content.into())]))
}

/// Builds the agent's report that it gave up.
pub(crate) fn fatal_error(message: &str, code: Option<&str>) -> RuntimeEffect {
    build(json!({ "type": "error", "message": message, "code": code }))
}

/// Builds a report about limits of the API.
pub(crate) fn rate_limit(status: &str, resets_at: Option<i64>, details: &Json) -> RuntimeEffect {
    build(json!({
        "type": "rate_limit_event",
        "rate_limit_info": { "status": status, "resetsAt": resets_at, "details": details },
    }))
}

/// Builds a message that is not recorded.
pub(crate) fn nothing() -> RuntimeEffect {
    let kind = "nothing".to_owned();
    RuntimeEffect::Message(AgentMessage::from_body(MessageBody::Ignored { kind }))
}

/// Builds a line that no runtime understands.
pub(crate) fn unknown_message(kind: &str, message: &Json) -> RuntimeEffect {
    let (kind, text) = (kind.to_owned(), message.to_string());
    RuntimeEffect::Message(AgentMessage::from_body(MessageBody::Unknown { kind, text }))
}

/// Key of the tokens of the session in the result of a turn.
const SESSION_USAGE_KEY: &str = "session_usage";

/// Key of the agent's own ID of a turn in its result.
pub(crate) const NATIVE_TURN_KEY: &str = "native_turn";

/// End of a turn.
#[derive(Debug, Default)]
pub(crate) struct TurnEnd<'t> {
    pub(crate) is_error: bool,
    pub(crate) text: &'t str,
    pub(crate) stop_reason: Option<&'t str>,
    pub(crate) terminal_reason: Option<&'t str>,
    pub(crate) status: Option<u64>,
    pub(crate) code: Option<&'t str>,
    pub(crate) usage: Option<TurnUsage>,
    /// Requests that the usage does not cover, for people who read the row.
    pub(crate) usage_note: Option<&'static str>,
    /// Tokens of the session until now, for the next run that continues it.
    pub(crate) session_usage: Option<TurnUsage>,
    /// Cost of the session until now, as the agent reports it.
    pub(crate) session_cost_usd: Option<f64>,
    /// Cost of the turn by its tokens. It counts only if the agent reports no cost.
    pub(crate) estimated_usd: Option<f64>,
    pub(crate) model: Option<&'t str>,
    /// Agent's own ID of the turn, at which a later run can fork the session.
    pub(crate) native_turn: Option<&'t str>,
}

/// Token counts in Claude's meaning: `input` does not include cached tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TurnUsage {
    pub(crate) input: u64,
    pub(crate) cache_read: u64,
    pub(crate) cache_write: u64,
    pub(crate) output: u64,
}

impl TurnUsage {
    /// Returns the increase since an earlier total.
    pub(crate) fn since(self, earlier: TurnUsage) -> TurnUsage {
        TurnUsage {
            input: self.input.saturating_sub(earlier.input),
            cache_read: self.cache_read.saturating_sub(earlier.cache_read),
            cache_write: self.cache_write.saturating_sub(earlier.cache_write),
            output: self.output.saturating_sub(earlier.output),
        }
    }

    pub(crate) fn plus(self, other: TurnUsage) -> TurnUsage {
        TurnUsage {
            input: self.input.saturating_add(other.input),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            output: self.output.saturating_add(other.output),
        }
    }

    /// Returns the larger count of each kind.
    pub(crate) fn at_least(self, other: TurnUsage) -> TurnUsage {
        TurnUsage {
            input: self.input.max(other.input),
            cache_read: self.cache_read.max(other.cache_read),
            cache_write: self.cache_write.max(other.cache_write),
            output: self.output.max(other.output),
        }
    }

    /// Reads the tokens of the session from the last result of its transcript.
    pub(crate) fn of_session(last_result: &Json) -> Option<TurnUsage> {
        let count = |key: &str| last_result[SESSION_USAGE_KEY][key].as_u64();
        Some(TurnUsage {
            input: count("input_tokens")?,
            cache_read: count("cache_read_input_tokens")?,
            cache_write: count("cache_creation_input_tokens")?,
            output: count("output_tokens")?,
        })
    }

    fn to_json(self) -> Json {
        json!({
            "input_tokens": self.input,
            "cache_creation_input_tokens": self.cache_write,
            "cache_read_input_tokens": self.cache_read,
            "output_tokens": self.output,
        })
    }
}

/// Builds the result of a turn.
pub(crate) fn turn_result(end: &TurnEnd<'_>) -> RuntimeEffect {
    let subtype = if end.is_error { "error_during_execution" } else { "success" };
    let mut fields = json!({
        "type": "result", "subtype": subtype, "is_error": end.is_error, "result": end.text,
        "stop_reason": end.stop_reason, "terminal_reason": end.terminal_reason,
        "api_error_status": end.status, "api_error_type": end.code,
    });
    if let Some(usage) = end.usage {
        fields["usage"] = usage.to_json();
    }
    if let Some(usage) = end.session_usage {
        fields[SESSION_USAGE_KEY] = usage.to_json();
    }
    if let Some(turn) = end.native_turn {
        fields[NATIVE_TURN_KEY] = turn.into();
    }
    if let Some(note) = end.usage_note {
        fields["usage_note"] = note.into();
    }
    if let Some(cost) = end.session_cost_usd {
        fields["total_cost_usd"] = cost.into();
    } else if let (Some(cost), Some(usage)) = (end.estimated_usd, end.usage) {
        let figures = json!({
            "inputTokens": usage.input, "outputTokens": usage.output,
            "cacheReadInputTokens": usage.cache_read,
            "cacheCreationInputTokens": usage.cache_write, "costUSD": cost,
        });
        let model = end.model.unwrap_or("unknown");
        fields["model_usage_since_last_result"] = json!({ model: figures });
        fields["cost_is_estimate"] = true.into();
    }
    if let Some(model) = end.model {
        fields["model"] = model.into();
    }
    build(fields)
}

/// Builds the result of a turn that used the budget of the run.
pub(crate) fn budget_end(text: &str, end: TurnEnd<'_>) -> RuntimeEffect {
    turn_result(&TurnEnd { is_error: true, text, terminal_reason: Some("budget_exhausted"), ..end })
}

/// Finds the HTTP status in the text of an error: the first number from 400 to 599 that stands
/// alone.
pub(crate) fn find_http_status(text: &str) -> Option<u64> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.len() == 3)
        .find_map(|word| word.parse().ok().filter(|status: &u64| (400..600).contains(status)))
}

/// Returns Heeler's code for the HTTP status of a failure.
pub(crate) fn api_error_code(status: Option<u64>) -> Option<&'static str> {
    Some(match status? {
        401 | 403 => "authentication_failed",
        429 => "rate_limit",
        529 => "overloaded",
        500..=599 => "server_error",
        _ => "invalid_request",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_session_are_read_from_its_last_result() {
        let usage = TurnUsage { input: 5, cache_read: 3, cache_write: 1, output: 7 };
        let end = TurnEnd { session_usage: Some(usage), ..TurnEnd::default() };
        let RuntimeEffect::Message(row) = turn_result(&end) else { panic!("a row is expected") };
        assert_eq!(TurnUsage::of_session(&Json::Object(row.fields)), Some(usage));
        assert_eq!(TurnUsage::of_session(&json!({ "session_usage": { "input_tokens": 1 } })), None);
        assert_eq!(TurnUsage::of_session(&Json::Null), None);
    }

    #[test]
    fn parts_of_one_text_become_one_row() {
        let mut text = CollectedText::default();
        let mut effects = text.push(StreamedKind::Thinking, None, "hm");
        effects.extend(text.push(StreamedKind::Text, None, "hi "));
        effects.extend(text.push(StreamedKind::Text, None, "you"));
        effects.extend(text.push(StreamedKind::Text, Some("b"), "next"));
        effects.extend(text.flush());
        let rows: Vec<String> = effects
            .iter()
            .filter_map(|effect| match effect {
                RuntimeEffect::Message(AgentMessage {
                    body: MessageBody::Assistant(said), ..
                }) => Some(said.message["content"].to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(
            rows,
            [
                r#"[{"type":"thinking","thinking":"hm"}]"#,
                r#"[{"type":"text","text":"hi you"}]"#,
                r#"[{"type":"text","text":"next"}]"#,
            ]
        );
        assert_eq!(text.last(), "next");
    }

    #[test]
    fn a_long_text_becomes_several_rows() {
        let mut text = CollectedText::default();
        let part = "x".repeat(COLLECTED_TEXT_BYTES_MAX);
        assert_eq!(text.push(StreamedKind::Text, None, &part).len(), 2);
        assert_eq!(text.flush(), None);
    }

    #[test]
    fn a_status_is_a_number_that_stands_alone() {
        assert_eq!(find_http_status("Unauthorized (401) from http://127.0.0.1:400/"), Some(401));
        assert_eq!(find_http_status("last status: 429 Too Many Requests"), Some(429));
        assert_eq!(find_http_status("id 40123, took 399 of 600 ms, a401"), None);
    }
}
