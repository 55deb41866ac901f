//! Session rows: Claude's envelope around a message.
//!
//! Start at [`TranscriptRecorder::envelope`].

use jiff::Timestamp;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::truncation::truncate_malformed;
use super::{HEELER_KEYS, RowFields, TranscriptRecorder};
use crate::iso_millis;
use crate::message::{AgentMessage, ApiRetry, MessageBody, SubagentTask, TurnResult};

/// Keys that are spelled differently in Claude's stream and in its session file.
const KEY_RENAMES: [(&str, &str); 3] = [
    ("is_api_error_message", "isApiErrorMessage"),
    ("request_id", "requestId"),
    ("tool_use_result", "toolUseResult"),
];

/// Typical number of fields in a row; avoids growing the map.
const ROW_FIELDS: usize = 16;

impl TranscriptRecorder {
    /// Builds the session row of a message.
    pub(super) fn envelope(&mut self, message: AgentMessage, now: Timestamp) -> RowFields {
        let AgentMessage { uuid, parent_tool_use_id: sub_agent, body, mut fields, .. } = message;
        let uuid = match uuid {
            // A row that is its own parent would send readers of the chain into an endless loop.
            Some(uuid) if Some(uuid) != self.last => uuid,
            _ => self.mint_row_id(now),
        };
        if let MessageBody::Init(init) = &body {
            // Claude reports its version only here, but each row of its own files has it.
            self.version.clone_from(&init.version);
        }
        match body {
            MessageBody::Assistant(said) => {
                let mut row = self.chained_row("assistant", sub_agent, uuid, now);
                row.insert("message".to_owned(), said.message.into());
                if said.api_error.is_some() {
                    row.insert("isApiErrorMessage".to_owned(), true.into());
                }
                let mut row = with_extra_fields(row, fields);
                if let Some(code) = said.api_error.and_then(|error| error.code) {
                    // A field of the line has precedence, since it is what Claude wrote.
                    row.entry("error").or_insert(code.into());
                }
                row
            }
            MessageBody::User(told) => {
                let mut row = self.chained_row("user", sub_agent, uuid, now);
                row.insert("message".to_owned(), told.message.into());
                with_extra_fields(row, fields)
            }
            // Claude writes API errors as assistant messages, and readers of its files expect that.
            MessageBody::Error { message, code } => {
                let mut row = self.chained_row("assistant", sub_agent, uuid, now);
                let content = json!([{"type": "text", "text": message}]);
                let message =
                    json!({"role": "assistant", "model": "<synthetic>", "content": content});
                row.insert("message".to_owned(), message);
                row.insert("isApiErrorMessage".to_owned(), true.into());
                if let Some(code) = code {
                    row.insert("error".to_owned(), code.into());
                }
                with_extra_fields(row, fields)
            }
            MessageBody::Result(result) => {
                let mut row = self.unchained_row("result", &result.subtype, sub_agent, uuid, now);
                row.insert("is_error".to_owned(), result.is_error.into());
                total_tokens(&mut row, &fields);
                with_result(with_extra_fields(row, fields), *result)
            }
            body => {
                let (subtype, content) = describe_event(&body, &fields);
                let mut row = self.unchained_row("system", &subtype, sub_agent, uuid, now);
                if let Some(content) = content {
                    row.insert("content".to_owned(), content.into());
                }
                // Their text is in the content already, cut and free of control characters.
                if matches!(body, MessageBody::Unknown { .. } | MessageBody::Malformed { .. }) {
                    fields.clear();
                }
                with_extra_fields(row, fields)
            }
        }
    }

    /// Begins a row that belongs to the message chain.
    fn chained_row(
        &mut self,
        kind: &str,
        sub_agent: Option<String>,
        uuid: Uuid,
        now: Timestamp,
    ) -> RowFields {
        let parent = self.link_row(sub_agent.as_deref(), uuid);
        let mut row = RowFields::with_capacity(ROW_FIELDS);
        row.insert("type".to_owned(), kind.into());
        row.insert("uuid".to_owned(), uuid.to_string().into());
        row.insert("parentUuid".to_owned(), parent.map(|parent| parent.to_string()).into());
        // Claude marks the rows of sub-agents in this way.
        row.insert("isSidechain".to_owned(), sub_agent.is_some().into());
        self.add_common_fields(row, sub_agent, now)
    }

    /// Begins a row outside the message chain.
    fn unchained_row(
        &self,
        kind: &str,
        subtype: &str,
        sub_agent: Option<String>,
        uuid: Uuid,
        now: Timestamp,
    ) -> RowFields {
        let mut row = RowFields::with_capacity(ROW_FIELDS);
        row.insert("type".to_owned(), kind.into());
        row.insert("subtype".to_owned(), subtype.into());
        row.insert("uuid".to_owned(), uuid.to_string().into());
        self.add_common_fields(row, sub_agent, now)
    }

    fn add_common_fields(
        &self,
        mut row: RowFields,
        sub_agent: Option<String>,
        now: Timestamp,
    ) -> RowFields {
        row.insert("timestamp".to_owned(), iso_millis(now).into());
        row.insert("sessionId".to_owned(), self.session.as_str().into());
        row.insert("cwd".to_owned(), self.cwd.as_str().into());
        if let Some(version) = &self.version {
            row.insert("version".to_owned(), version.as_str().into());
        }
        if let Some(call) = sub_agent {
            row.insert("parent_tool_use_id".to_owned(), call.into());
        }
        row
    }
}

/// Adds the remaining fields of the line. They cannot override Heeler's own fields.
fn with_extra_fields(mut row: RowFields, rest: RowFields) -> RowFields {
    for (key, value) in rest {
        let renamed = KEY_RENAMES.iter().find(|(stream, _)| *stream == key);
        let key = renamed.map_or(key, |(_, file)| (*file).to_owned());
        // Fields of the envelope were inserted first and win over those of the agent.
        row.entry(key).or_insert(value);
    }
    // An agent that writes these keys could forge counts, failures or snapshots.
    for ours in HEELER_KEYS {
        row.shift_remove(ours);
    }
    row
}

/// Adds the fields of a result that did not come from a line: a runtime may construct one.
fn with_result(mut row: RowFields, result: TurnResult) -> RowFields {
    let errors = (!result.errors.is_empty()).then(|| result.errors.into());
    for (key, value) in [
        ("result", result.text.map(Json::from)),
        ("errors", errors),
        ("stop_reason", result.stop_reason.map(Json::from)),
        ("terminal_reason", result.terminal_reason.map(Json::from)),
        ("num_turns", result.num_turns.map(Json::from)),
    ] {
        if let Some(value) = value {
            row.entry(key).or_insert(value);
        }
    }
    row
}

fn total_tokens(row: &mut RowFields, fields: &RowFields) {
    let Some(usage) = fields.get("usage") else { return };
    for (key, total) in
        [("input_tokens", "total_input_tokens"), ("output_tokens", "total_output_tokens")]
    {
        if let Some(tokens) = usage[key].as_u64() {
            row.insert(total.to_owned(), tokens.into());
        }
    }
}

/// Returns the subtype of a system row, and a description for events that have no text.
fn describe_event(body: &MessageBody, fields: &RowFields) -> (String, Option<String>) {
    let text = |key: &str| fields.get(key).and_then(Json::as_str);
    match body {
        MessageBody::Init(_) => ("init".to_owned(), Some(describe_init(fields))),
        MessageBody::Retry(retry) => ("api_retry".to_owned(), Some(describe_retry(retry))),
        MessageBody::Task(task) => (task.subtype.clone(), Some(describe_task(task, fields))),
        MessageBody::RateLimit(limit) => {
            let status = limit.status.as_deref().unwrap_or("unknown");
            let until = limit.resets_at.and_then(|at| Timestamp::from_second(at).ok());
            let until = until.map(|at| format!(", resets at {}", iso_millis(at)));
            let content = format!("rate limit: {status}{}", until.unwrap_or_default());
            ("rate_limit".to_owned(), Some(content))
        }
        MessageBody::System { subtype } => {
            let content = match subtype.as_str() {
                "permission_denied" => Some(format!(
                    "{} was not allowed: {}",
                    text("tool_name").unwrap_or("a tool"),
                    text("message").unwrap_or("no reason given"),
                )),
                "tool_progress" => Some(format!(
                    "{} has been running for {:.0} s",
                    text("tool_name").unwrap_or("a tool"),
                    fields.get("elapsed_time_seconds").and_then(Json::as_f64).unwrap_or(0.0),
                )),
                "auth_status" => Some(describe_auth(fields)),
                _ => None,
            };
            (subtype.clone(), content)
        }
        MessageBody::Unknown { kind, text } => {
            let text = truncate_malformed(text);
            ("warning".to_owned(), Some(format!("unknown message of type `{kind}`: {text}")))
        }
        MessageBody::Malformed { reason, text } => {
            let text = truncate_malformed(text);
            ("warning".to_owned(), Some(format!("unreadable line, {reason}: {text}")))
        }
        MessageBody::Assistant(_)
        | MessageBody::User(_)
        | MessageBody::Error { .. }
        | MessageBody::Result(_)
        | MessageBody::Delta { .. }
        | MessageBody::Ignored { .. }
        | MessageBody::CommandLifecycle { .. }
        | MessageBody::BackgroundTasks { .. } => ("event".to_owned(), None),
    }
}

fn describe_init(fields: &RowFields) -> String {
    let text = |key: &str| fields.get(key).and_then(Json::as_str);
    let mut words = vec!["turn started".to_owned()];
    words.extend(text("model").map(|model| format!("model {model}")));
    words.extend(text("permissionMode").map(|mode| format!("permission mode {mode}")));
    words.extend(text("claude_code_version").map(|version| format!("claude {version}")));
    words.extend(text("agent").map(|agent| match text("agent_version") {
        Some(version) => format!("{agent} {version}"),
        None => agent.to_owned(),
    }));
    if let Some(Json::Array(servers)) = fields.get("mcp_servers") {
        let failed = servers.iter().filter(|server| server["status"] == "failed");
        let names = failed.filter_map(|server| server["name"].as_str());
        words.extend(names.map(|name| format!("MCP server {name} failed")));
    }
    words.join(", ")
}

fn describe_retry(retry: &ApiRetry) -> String {
    let what = match (&retry.error, retry.status) {
        (Some(error), Some(status)) => format!("{status} {error}"),
        (None, Some(status)) => status.to_string(),
        // Claude says `unknown` for a lost connection, which says nothing to people.
        (Some(error), None) if error != "unknown" => error.clone(),
        (_, None) => "connection lost or refused".to_owned(),
    };
    let count = match (retry.attempt, retry.max_retries) {
        (Some(attempt), Some(max)) => format!(", retry {attempt} of {max}"),
        _ => ", retry".to_owned(),
    };
    let delay = retry.delay_ms.map(|ms| format!(" in {:.1} s", ms as f64 / 1000.0));
    format!("the API request failed ({what}){count}{}", delay.unwrap_or_default())
}

fn describe_task(task: &SubagentTask, fields: &RowFields) -> String {
    let text = |key: &str| fields.get(key).and_then(Json::as_str);
    let kind = match task.kind.as_deref() {
        Some("local_bash") => "background command",
        Some("local_agent") => "sub-agent",
        // The kind may be missing; only sub-agents have a type of their own.
        _ if fields.contains_key("subagent_type") => "sub-agent",
        _ => "task",
    };
    let status = task.status.as_deref();
    let (verb, detail) = match task.subtype.as_str() {
        "task_started" => ("started", text("description")),
        "task_progress" => ("at work", text("description")),
        "task_notification" => (status.unwrap_or("ended"), text("summary")),
        _ => (status.unwrap_or("changed"), None),
    };
    let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
    format!("{kind} {verb}{detail}")
}

fn describe_auth(fields: &RowFields) -> String {
    let output = match fields.get("output") {
        Some(Json::Array(lines)) => {
            lines.iter().filter_map(Json::as_str).collect::<Vec<_>>().join("\n")
        }
        Some(Json::String(text)) => text.clone(),
        _ => String::new(),
    };
    let error = fields.get("error").and_then(Json::as_str).map(|error| format!("failed: {error}"));
    let words = [error.unwrap_or_default(), output];
    format!("authentication {}", words.join(" ").trim())
}
