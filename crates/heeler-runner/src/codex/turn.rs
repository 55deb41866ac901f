//! Notifications of Codex: the course of a turn, its usage, its errors and the limits of the API.

use serde_json::{Map, Value as Json, json};

use super::CodexRuntime;
use super::notifications::needs_no_row;
use crate::program_rows::{self as rows, StreamedKind, TurnEnd, TurnUsage, find_http_status};
use crate::runtime::RuntimeEffect;

/// Used share of a limit, in percent, from which people are warned.
const LIMIT_WARNING_PERCENT: f64 = 90.0;

/// Limits of the API, as last reported.
#[derive(Debug, Default)]
pub(super) struct CodexLimits {
    /// Time at which the fullest window resets, in seconds since 1970.
    resets_at: Option<i64>,
    details: Json,
    /// Status of the last row.
    recorded: Option<&'static str>,
}

/// Failure of a turn, in Heeler's terms.
struct CodexFailure {
    status: Option<u64>,
    code: Option<&'static str>,
}

impl CodexRuntime {
    pub(super) fn handle_notification(
        &mut self,
        method: &str,
        params: &Json,
    ) -> Vec<RuntimeEffect> {
        match method {
            "account/rateLimits/updated" => return self.handle_limits(&params["rateLimits"]),
            "warning" | "configWarning" | "deprecationNotice" | "guardianWarning" => {
                let fields = Map::from_iter([
                    ("content".to_owned(), describe_warning(params).into()),
                    ("details".to_owned(), params.clone()),
                ]);
                return vec![rows::system_event("agent_notice", fields)];
            }
            _ if is_about_turns(method) => {}
            _ => return record_unknown(method, params),
        }
        if !self.is_our_thread(params) {
            // Sub-agents have threads of their own, and their results come with the main one.
            return match self.state.thread {
                Some(_) => vec![rows::unknown_message("an event of another thread", params)],
                None => Vec::new(),
            };
        }
        // A row of the model after the last turn would begin another one, which has no end.
        if self.state.is_done && method.starts_with("item/") {
            return match method {
                "item/completed" => {
                    vec![rows::unknown_message("an item after the last turn", &params["item"])]
                }
                "item/started" | "item/agentMessage/delta" => Vec::new(),
                _ => record_unknown(method, params),
            };
        }
        self.handle_turn_event(method, params)
    }

    fn handle_turn_event(&mut self, method: &str, params: &Json) -> Vec<RuntimeEffect> {
        match method {
            "turn/started" => self.set_turn(params["turn"]["id"].as_str().unwrap_or_default()),
            "item/started" => {
                let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
                effects.extend(self.state.items.start(&params["item"]));
                effects
            }
            "item/completed" => self.state.items.complete(&params["item"], &mut self.state.text),
            "item/agentMessage/delta" => {
                let delta = params["delta"].as_str().unwrap_or_default();
                self.state.text.push(StreamedKind::Text, params["itemId"].as_str(), delta)
            }
            "thread/tokenUsage/updated" => {
                self.add_usage(&params["tokenUsage"]);
                self.check_budget()
            }
            "turn/plan/updated" => vec![rows::plan(params)],
            "serverRequest/resolved" => self.handle_resolved(params),
            "error" if params["willRetry"] == true => vec![retry_event(&params["error"])],
            // The end of the turn repeats the error.
            "error" => Vec::new(),
            "turn/completed" => self.handle_turn_completed(&params["turn"]),
            _ => record_unknown(method, params),
        }
    }

    /// Adds the counts of one request.
    fn add_usage(&mut self, usage: &Json) {
        // Codex repeats a report if nothing was added since.
        if usage["total"] == self.state.usage_total {
            return;
        }
        self.state.usage_total = usage["total"].clone();
        let last = &usage["last"];
        let count = |key: &str| last[key].as_u64().unwrap_or(0);
        let sum = self.state.usage.get_or_insert_default();
        let cached = count("cachedInputTokens");
        *sum = TurnUsage {
            // Codex counts cached tokens as input.
            input: sum.input.saturating_add(count("inputTokens").saturating_sub(cached)),
            cache_read: sum.cache_read.saturating_add(cached),
            cache_write: sum.cache_write.saturating_add(count("cacheWriteInputTokens")),
            output: sum.output.saturating_add(count("outputTokens")),
        };
    }

    /// Interrupts the turn if its requests have used the budget.
    fn check_budget(&mut self) -> Vec<RuntimeEffect> {
        if self.state.exhaustion.is_some() || !self.state.has_turn || self.state.is_ending {
            return Vec::new();
        }
        self.state.exhaustion = self.options.budget.exhaustion(self.state.usage.as_ref());
        if self.state.exhaustion.is_none() {
            return Vec::new();
        }
        self.state.queued.clear();
        let mut effects = self.state.questions.withdraw_all();
        effects.extend(self.interrupt_turn());
        effects
    }

    fn handle_turn_completed(&mut self, turn: &Json) -> Vec<RuntimeEffect> {
        if !self.state.has_turn {
            return vec![rows::unknown_message("the end of a turn that was not running", turn)];
        }
        self.state.has_turn = false;
        let turn_id = self.state.turn.take();
        let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
        let reason = if self.state.is_ending { "interrupted" } else { "no result was reported" };
        effects.extend(self.state.items.close_all(reason));
        effects.extend(self.state.questions.withdraw_all());
        let usage = self.state.usage.take();
        let model = self.state.model.clone();
        let text = self.state.text.last().to_owned();
        let estimated_usd = self.options.budget.add_turn(usage.as_ref());
        let end = TurnEnd {
            usage,
            estimated_usd,
            model: model.as_deref(),
            native_turn: turn_id.as_deref(),
            ..TurnEnd::default()
        };
        match turn["status"].as_str().unwrap_or_default() {
            _ if self.state.is_ending => effects.push(interrupted(end)),
            _ if self.state.exhaustion.is_some() => {
                let text = self.state.exhaustion.clone().unwrap_or_default();
                effects.push(rows::budget_end(&text, end));
            }
            "interrupted" => effects.push(interrupted(end)),
            "completed" => effects.push(rows::turn_result(&TurnEnd {
                text: &text,
                stop_reason: Some("end_turn"),
                ..end
            })),
            _ => effects.extend(self.failed(&turn["error"], end)),
        }
        self.state.text.set_last("");
        effects.extend(self.next_turn());
        effects
    }

    fn failed(&mut self, error: &Json, end: TurnEnd<'_>) -> Vec<RuntimeEffect> {
        let message = match error["message"].as_str() {
            Some(message) if !message.is_empty() => message,
            _ => "the turn failed, and Codex did not say why",
        };
        let CodexFailure { status, code } = classify(&error["codexErrorInfo"], message);
        let mut effects = Vec::new();
        if status == Some(429) {
            let limits = &self.state.limits;
            effects.push(rows::rate_limit("rejected", limits.resets_at, &limits.details));
        }
        effects.push(rows::api_error(message, status, code));
        effects.push(rows::turn_result(&TurnEnd {
            is_error: true,
            text: message,
            terminal_reason: Some("api_error"),
            status,
            code,
            ..end
        }));
        effects
    }

    fn handle_limits(&mut self, limits: &Json) -> Vec<RuntimeEffect> {
        let windows = [&limits["primary"], &limits["secondary"]];
        let fullest = windows
            .into_iter()
            .filter_map(|window| Some((window["usedPercent"].as_f64()?, window)))
            .max_by(|(a, _), (b, _)| a.total_cmp(b));
        let Some((percent, window)) = fullest else { return Vec::new() };
        let state = &mut self.state.limits;
        state.resets_at = window["resetsAt"].as_i64();
        state.details = json!({ "primary": limits["primary"], "secondary": limits["secondary"] });
        // An account with credits goes on beyond its limits.
        let credits = &limits["credits"];
        let has_credits = credits["hasCredits"] == true || credits["unlimited"] == true;
        let status = match percent {
            _ if percent >= 100.0 && !has_credits => "rejected",
            _ if percent >= LIMIT_WARNING_PERCENT => "allowed_warning",
            _ => "allowed",
        };
        // Codex reports limits with each request; only a change is news. After a limit is used up, each
        // report counts, because a reply meanwhile would mean that it is not.
        if state.recorded == Some(status) && status != "rejected" {
            return Vec::new();
        }
        state.recorded = Some(status);
        vec![rows::rate_limit(status, state.resets_at, &state.details)]
    }
}

/// Returns a row for a notification that is not among those of the tested version.
fn record_unknown(method: &str, params: &Json) -> Vec<RuntimeEffect> {
    match needs_no_row(method) {
        true => Vec::new(),
        false => vec![rows::unknown_message(method, params)],
    }
}

/// Returns true for a notification about the course of turns.
fn is_about_turns(method: &str) -> bool {
    method.starts_with("item/")
        || method.starts_with("turn/")
        || matches!(method, "error" | "serverRequest/resolved" | "thread/tokenUsage/updated")
}

fn describe_warning(params: &Json) -> String {
    let text = ["message", "summary"].iter().find_map(|key| params[*key].as_str());
    text.map_or_else(|| params.to_string(), str::to_owned)
}

fn interrupted(end: TurnEnd<'_>) -> RuntimeEffect {
    rows::turn_result(&TurnEnd {
        is_error: true,
        text: "the turn was interrupted",
        terminal_reason: Some("aborted_tools"),
        ..end
    })
}

fn retry_event(error: &Json) -> RuntimeEffect {
    let info = &error["codexErrorInfo"];
    let fields = json!({
        "error_status": http_status(info),
        "error": error["message"],
        "details": error["additionalDetails"],
    });
    let Json::Object(fields) = fields else { unreachable!("an object literal is an object") };
    rows::system_event("api_retry", fields)
}

/// Returns the HTTP status in Codex's error information, which nests it in the kind of error.
fn http_status(info: &Json) -> Option<u64> {
    let kinds = info.as_object()?;
    kinds.values().find_map(|details| details["httpStatusCode"].as_u64())
}

fn classify(info: &Json, message: &str) -> CodexFailure {
    let kind = info.as_str().unwrap_or_default();
    let (status, code) = match kind {
        "usageLimitExceeded" => (Some(429), Some("rate_limit")),
        "contextWindowExceeded" | "badRequest" => (Some(400), Some("invalid_request")),
        "internalServerError" => (Some(500), Some("server_error")),
        "serverOverloaded" => (Some(529), Some("overloaded")),
        "unauthorized" => (Some(401), Some("authentication_failed")),
        _ => (http_status(info).or_else(|| find_http_status(message)), None),
    };
    let code = code.or(match status {
        Some(401 | 403) => Some("authentication_failed"),
        Some(429) => Some("rate_limit"),
        Some(500..=599) => Some("server_error"),
        Some(_) => Some("invalid_request"),
        None => None,
    });
    CodexFailure { status, code }
}
