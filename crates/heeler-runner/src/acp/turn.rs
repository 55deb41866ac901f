//! The end of a turn of an ACP agent: stop reasons and failures.

use heeler_config::UsageScope;
use serde_json::Value as Json;

use super::errors::{AcpFailure, find_silent_failure};
use super::usage::parse_usage;
use super::{AcpRuntime, AcpSessionStart};
use crate::json_rpc::RpcError;
use crate::program_rows::{self as rows, TurnEnd, TurnUsage};
use crate::runtime::RuntimeEffect;

impl AcpRuntime {
    /// Handles the reply to a prompt, which ends the turn.
    pub(super) fn handle_turn_end(&mut self, result: Result<Json, RpcError>) -> Vec<RuntimeEffect> {
        let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
        let reason = if self.state.is_ending { "interrupted" } else { "no result was reported" };
        effects.extend(self.state.calls.close_all(reason));
        effects.extend(self.state.questions.withdraw_all());
        match result {
            Ok(reply) => effects.extend(self.stopped(&reply)),
            // Some agents report the end of a cancelled turn as an error.
            Err(_) if self.state.is_ending => effects.push(interrupted()),
            Err(error) => {
                let failure = self.classify_error(&error);
                effects.push(rows::api_error(&failure.text, failure.status, failure.code));
                effects.push(rows::turn_result(&TurnEnd {
                    is_error: true,
                    text: &failure.text,
                    terminal_reason: Some("api_error"),
                    status: failure.status,
                    code: failure.code,
                    ..TurnEnd::default()
                }));
            }
        }
        self.state.text = rows::CollectedText::default();
        effects.extend(self.next_turn());
        effects
    }

    fn stopped(&mut self, reply: &Json) -> Vec<RuntimeEffect> {
        let stop_reason = reply["stopReason"].as_str().unwrap_or_default().to_owned();
        let reported = self.read_usage(reply);
        let has_usage = reported.is_some();
        let usage = self.turn_usage(reported);
        let estimated_usd = self.options.budget.add_turn(usage.as_ref());
        // An agent may report a normal end although Heeler cancelled the turn.
        let is_cancelled = stop_reason == "cancelled";
        if self.state.is_ending || (is_cancelled && !self.state.has_denied) {
            return vec![interrupted()];
        }
        let text = self.state.text.last().to_owned();
        let failure = match (self.options.known, stop_reason.as_str()) {
            (Some(known), "end_turn") if known.error_without_reply && !self.state.has_replied => {
                Some(AcpFailure::without_reply(known))
            }
            (Some(known), "end_turn") => find_silent_failure(known, &self.state.text, has_usage),
            _ => None,
        };
        let usage_note = match self.options.known.map(|known| known.usage) {
            Some(UsageScope::LastRequest) => Some("the last request only"),
            _ => None,
        };
        let end = TurnEnd {
            text: &text,
            stop_reason: Some(&stop_reason),
            usage,
            usage_note,
            session_cost_usd: self.state.session_cost_usd,
            estimated_usd,
            model: self.state.model.as_deref(),
            ..TurnEnd::default()
        };
        match (&failure, stop_reason.as_str()) {
            (Some(failure), _) => vec![
                rows::api_error(&failure.text, failure.status, failure.code),
                rows::turn_result(&TurnEnd {
                    is_error: true,
                    text: &failure.text,
                    terminal_reason: Some("api_error"),
                    status: failure.status,
                    code: failure.code,
                    ..end
                }),
            ],
            // An agent may end its turn when an action is denied. That is not a failure of the run.
            (None, "end_turn" | "cancelled") => match self.options.budget.exhaustion(None) {
                Some(reason) => {
                    // The protocol reports tokens with the end of a turn, so no further one begins.
                    self.state.queued.clear();
                    vec![rows::budget_end(&reason, end)]
                }
                None => vec![rows::turn_result(&end)],
            },
            (None, other) => {
                let message = describe_stop(other);
                let terminal = match other {
                    "max_turn_requests" => "max_turns",
                    other => other,
                };
                vec![rows::turn_result(&TurnEnd {
                    is_error: true,
                    text: &message,
                    terminal_reason: Some(terminal),
                    ..end
                })]
            }
        }
    }

    /// Returns the counts that the agent reported with the end of the turn.
    fn read_usage(&mut self, reply: &Json) -> Option<TurnUsage> {
        let chunk = self.state.chunk_usage.take();
        let meta = &reply["_meta"];
        [&reply["usage"], &meta["quota"]["token_count"], &meta["usage"]]
            .into_iter()
            .find_map(parse_usage)
            .or(chunk)
    }

    /// Returns the counts of the turn.
    fn turn_usage(&mut self, reported: Option<TurnUsage>) -> Option<TurnUsage> {
        let reported = reported?;
        match self.options.known.map_or(UsageScope::Turn, |known| known.usage) {
            UsageScope::Turn | UsageScope::LastRequest => Some(reported),
            UsageScope::None => None,
            UsageScope::Session => {
                let earlier = self.state.usage_total.replace(reported);
                match (earlier, &self.start) {
                    (Some(earlier), _) => Some(reported.since(earlier)),
                    (None, AcpSessionStart::New) if !self.state.is_forked => Some(reported),
                    // The counts may include turns of earlier runs, which are counted already.
                    (None, _) => None,
                }
            }
        }
    }
}

fn interrupted() -> RuntimeEffect {
    rows::turn_result(&TurnEnd {
        is_error: true,
        text: "the turn was interrupted",
        terminal_reason: Some("aborted_tools"),
        ..TurnEnd::default()
    })
}

fn describe_stop(reason: &str) -> String {
    match reason {
        "max_tokens" => "the model reached its limit of tokens".to_owned(),
        "max_turn_requests" => "the agent reached its limit of requests for one turn".to_owned(),
        "refusal" => "the model refused to continue".to_owned(),
        "" => "the agent ended the turn without a reason".to_owned(),
        reason => format!("the agent ended the turn with the unknown reason `{reason}`"),
    }
}
