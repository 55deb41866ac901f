//! Outcomes and costs of runs.

use heeler_config::RuntimeType;

use super::*;
use crate::message::parse_line;
use serde_json::json;

fn tally(lines: &[Json]) -> RunOutcomeBuilder {
    told(RunOutcomeBuilder::new(), lines)
}

fn told(mut tally: RunOutcomeBuilder, lines: &[Json]) -> RunOutcomeBuilder {
    lines.iter().for_each(|line| tally.add_message(&parse_line(line.to_string().as_bytes())));
    tally
}

fn exited(code: i32) -> AgentProcessExit {
    AgentProcessExit::Exited { code: Some(code), signal: None, stderr: String::new() }
}

fn exited_with(code: i32, stderr: &str) -> AgentProcessExit {
    AgentProcessExit::Exited { code: Some(code), signal: None, stderr: stderr.to_owned() }
}

fn said(text: &str) -> Json {
    json!({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}})
}

/// Result of a turn with an API failure: a text and optionally a status.
fn failed(text: &str, status: Option<u64>) -> Json {
    json!({"type": "result", "subtype": "success", "is_error": true, "result": text,
           "terminal_reason": "api_error", "api_error_status": status})
}

fn done(text: &str) -> Json {
    json!({"type": "result", "subtype": "success", "is_error": false, "result": text})
}

#[track_caller]
fn check_class(lines: &[Json], class: ErrorClass) -> RunError {
    let error = tally(lines).conclude(&exited(1)).error.unwrap();
    assert_eq!(error.class, class, "{}", error.message);
    error
}

#[test]
fn every_way_in_which_the_api_fails_has_its_class() {
    let cases = [
        ("API Error: 400 {\"type\":\"error\"}", Some(400), ErrorClass::InvalidRequest),
        ("Invalid API key · Fix external API key", Some(401), ErrorClass::Authentication),
        ("Invalid API key · Fix external API key", None, ErrorClass::Authentication),
        ("Not logged in · Please run /login", None, ErrorClass::Authentication),
        ("Failed to authenticate. API Error: 403 no", None, ErrorClass::Authentication),
        ("There's an issue with the selected model (x).", Some(404), ErrorClass::ModelNotFound),
        ("There's an issue with the selected model (x).", None, ErrorClass::ModelNotFound),
        ("Request too large (max 32MB).", Some(413), ErrorClass::InvalidRequest),
        ("Prompt is too long", None, ErrorClass::InvalidRequest),
        ("API Error: Request rejected (429) · slow down", None, ErrorClass::RateLimited),
        ("API Error: 500 Internal. This is a server-side issue", None, ErrorClass::ServerError),
        ("API Error: 503 no upstream", None, ErrorClass::ServerError),
        ("API Error: Repeated 529 Overloaded errors.", Some(529), ErrorClass::Overloaded),
        ("API Error: Repeated 529 Overloaded errors.", None, ErrorClass::Overloaded),
        ("API Error: Connection refused — (ECONNREFUSED)", None, ErrorClass::Network),
        ("API Error: Connection to the API was lost (ECONNRESET)", None, ErrorClass::Network),
        ("getaddrinfo ENOTFOUND api.anthropic.com", None, ErrorClass::Network),
        ("The socket connection was closed unexpectedly.", None, ErrorClass::Network),
        ("Internal error: Connection reset by server", None, ErrorClass::Network),
        ("All connection attempts failed", None, ErrorClass::Network),
        ("peer closed connection without sending complete message body", None, ErrorClass::Network),
        ("Transport error: error decoding response body", None, ErrorClass::Network),
        (
            "API Error: 401 OAuth token has expired. · Please run /login",
            Some(401),
            ErrorClass::TokenExpired,
        ),
        ("Credit balance is too low", Some(400), ErrorClass::Budget),
        (
            "Authentication error: 403 Forbidden: heeler: the run has spent its budget",
            Some(403),
            ErrorClass::Budget,
        ),
        ("Claude AI usage limit reached|1794703704", None, ErrorClass::RateLimited),
        ("something odd", None, ErrorClass::AgentFailed),
    ];
    for (text, status, class) in cases {
        let error = check_class(&[failed(text, status)], class);
        assert_eq!(error.message, text);
        assert_eq!(error.recoverable, class.is_recoverable());
    }
}

#[test]
fn the_codes_of_an_error_message_decide_where_its_words_do_not() {
    let message = |error: &str, kind: &str| {
        json!({"type": "assistant", "error": error, "api_error_type": kind,
               "is_api_error_message": true, "message": {"content": "it failed"}})
    };
    check_class(&[message("rate_limit", "")], ErrorClass::RateLimited);
    check_class(&[message("server_error", "overloaded_error")], ErrorClass::Overloaded);
    check_class(&[message("authentication_failed", "")], ErrorClass::Authentication);
    check_class(&[message("server_error", "")], ErrorClass::ServerError);
    check_class(
        &[message("model_not_found", ""), failed("it failed", None)],
        ErrorClass::ModelNotFound,
    );
    check_class(&[message("unknown", "")], ErrorClass::AgentFailed);
}

#[test]
fn success_is_what_the_flag_says_whatever_the_exit_code() {
    let conclusion = tally(&[said("ok"), done("ok")]).conclude(&exited(1));
    assert_eq!((conclusion.exit_reason, conclusion.error), (ExitReason::Success, None));
    let conclusion = tally(&[failed("no", None)]).conclude(&exited(0));
    assert_eq!(conclusion.exit_reason, ExitReason::Error);
}

#[test]
fn the_last_result_counts() {
    let conclusion = tally(&[failed("no", Some(500)), done("ok")]).conclude(&exited(0));
    assert_eq!((conclusion.exit_reason, conclusion.error), (ExitReason::Success, None));
    let conclusion = tally(&[done("ok"), failed("no", Some(500))]).conclude(&exited(1));
    assert_eq!(conclusion.error.unwrap().class, ErrorClass::ServerError);
}

#[test]
fn an_exit_without_a_result_is_a_death_even_with_code_zero() {
    let died = |end: &AgentProcessExit| {
        let error = tally(&[said("half")]).conclude(end).error.unwrap();
        assert_eq!(error.class, ErrorClass::AgentDied);
        error.message
    };
    assert_eq!(died(&exited(0)), "the agent exited with code 0 without a result");
    assert_eq!(died(&exited(143)), "the agent was ended by SIGTERM without a result");
    assert_eq!(
        died(&AgentProcessExit::Exited { code: None, signal: Some(9), stderr: "oom\n".to_owned() }),
        "the agent was ended by SIGKILL without a result: oom"
    );
    assert_eq!(
        died(&AgentProcessExit::Exited { code: None, signal: Some(40), stderr: String::new() }),
        "the agent was ended by signal 40 without a result"
    );
}

#[test]
fn a_turn_that_began_after_the_last_result_must_have_its_own() {
    let begun = json!({"type": "system", "subtype": "init"});
    for more in [said("and"), begun] {
        let conclusion = tally(&[said("ok"), done("ok"), more]).conclude(&exited(0));
        assert_eq!(conclusion.error.unwrap().class, ErrorClass::AgentDied);
    }
    let sub_agent = json!({"type": "assistant", "parent_tool_use_id": "t", "content": "late"});
    let conclusion = tally(&[said("ok"), done("ok"), sub_agent]).conclude(&exited(0));
    assert_eq!(conclusion.exit_reason, ExitReason::Success);
}

#[test]
fn what_was_said_before_a_death_is_the_summary() {
    let conclusion = tally(&[said("half of it")]).conclude(&exited(137));
    assert_eq!(conclusion.summary.as_deref(), Some("half of it"));
    assert_eq!(conclusion.cost.usd, None, "nobody knows what it cost");
}

#[test]
fn standard_error_is_understood_when_there_is_nothing_else() {
    let class = |stderr: &str| tally(&[]).conclude(&exited_with(1, stderr)).error.unwrap().class;
    assert_eq!(class("No conversation found with session ID: x"), ErrorClass::SessionExpired);
    for words in [
        "Session expired",
        "the session has expired",
        "stale session",
        "Session not found: x",
        "session does not exist",
        "Session ID x was not found",
        "Invalid session",
        "conversation not found",
        "Conversation does not exist",
        "Invalid conversation",
        "Resume failed",
        "Cannot resume x",
        "Unable to resume",
        "Failed to resume session x",
        "Could not resume",
    ] {
        assert_eq!(class(words), ErrorClass::SessionExpired, "{words}");
    }
    assert_eq!(class("OAuth session expired, please login"), ErrorClass::TokenExpired);
    assert_eq!(class("Error: Session ID x is already in use."), ErrorClass::SessionBusy);
    assert_eq!(class("Segmentation fault"), ErrorClass::AgentDied);
    let long = format!("{}the end", "é".repeat(5000));
    let error = tally(&[]).conclude(&exited_with(1, &long)).error.unwrap();
    assert!(error.message.ends_with("éthe end") && error.message.chars().count() < 600);
}

#[test]
fn nothing_but_garbage_is_malformed() {
    let mut tally = RunOutcomeBuilder::new();
    tally.add_message(&parse_line(b"usage: foo [options]"));
    let error = tally.conclude(&exited(2)).error.unwrap();
    assert_eq!((error.class, error.messages_received), (ErrorClass::Malformed, 0));
    tally.add_message(&parse_line(said("hi").to_string().as_bytes()));
    assert_eq!(tally.conclude(&exited(2)).error.unwrap().class, ErrorClass::AgentDied);
}

#[test]
fn what_was_asked_of_the_run_wins_over_what_the_agent_says() {
    let lines = [said("half"), failed("API Error: 500 x", Some(500))];
    let cases = [
        (
            AgentProcessExit::Cancelled { by: "ada".to_owned() },
            ExitReason::Cancelled,
            ErrorClass::Cancelled,
        ),
        (AgentProcessExit::TimedOut { after_ms: 1500 }, ExitReason::Timeout, ErrorClass::Timeout),
        (AgentProcessExit::Stalled { after_ms: 60_000 }, ExitReason::Timeout, ErrorClass::Stalled),
        (AgentProcessExit::Disk { reason: "full".to_owned() }, ExitReason::Error, ErrorClass::Disk),
        (
            AgentProcessExit::Internal { reason: "bug".to_owned() },
            ExitReason::Error,
            ErrorClass::Internal,
        ),
    ];
    for (end, reason, class) in cases {
        let conclusion = tally(&lines).conclude(&end);
        assert_eq!(conclusion.exit_reason, reason);
        let error = conclusion.error.unwrap();
        assert_eq!((error.class, error.messages_received), (class, 2));
        assert_eq!(conclusion.summary.as_deref(), Some("half"));
    }
    let timed_out = tally(&lines).conclude(&AgentProcessExit::TimedOut { after_ms: 1500 });
    assert_eq!(timed_out.error.unwrap().message, "not done after 1.5 s");
}

#[test]
fn an_agent_that_was_not_started_cost_nothing() {
    let end = AgentProcessExit::NotStarted { reason: "no such program: claude".to_owned() };
    let conclusion = RunOutcomeBuilder::new().conclude(&end);
    assert_eq!(conclusion.cost.usd, Some(0.0));
    assert_eq!(conclusion.error.unwrap().class, ErrorClass::NotStarted);
}

#[test]
fn a_command_is_judged_by_its_exit_code() {
    let conclude = |end: &AgentProcessExit| {
        told(RunOutcomeBuilder::for_runtime(RuntimeType::Command), &[said("line")]).conclude(end)
    };
    let conclusion = conclude(&exited(0));
    assert_eq!((conclusion.exit_reason, conclusion.error), (ExitReason::Success, None));
    assert_eq!(conclusion.summary.as_deref(), Some("line"));
    let error = conclude(&exited_with(3, "rate limit of my own script")).error.unwrap();
    assert_eq!(error.class, ErrorClass::AgentFailed);
    assert_eq!(error.message, "the command exited with code 3: rate limit of my own script");
    let error = conclude(&exited(137)).error.unwrap();
    assert_eq!(
        (error.class, error.message.as_str()),
        (ErrorClass::AgentDied, "the command was ended by SIGKILL")
    );
}

#[test]
fn the_words_of_a_command_are_not_taken_for_the_apis() {
    let result = json!({"type": "result", "is_error": true, "result": "429 rate limit tests failed",
                        "errors": ["the command exited with code 3"]});
    let told = told(RunOutcomeBuilder::for_runtime(RuntimeType::Command), &[result]);
    let error = told.conclude(&exited(3)).error.unwrap();
    assert_eq!(error.class, ErrorClass::AgentFailed);
    assert_eq!(error.message, "the command exited with code 3");
    let error = told.conclude(&exited_with(3, "make: no rule\n")).error.unwrap();
    assert_eq!(error.class, ErrorClass::AgentFailed);
    assert_eq!(error.message, "the command exited with code 3: make: no rule");
    assert!(error.cure.contains("stderr.log"), "{}", error.cure);
}

#[test]
fn an_agent_that_says_it_ends_has_ended_well() {
    for subtype in ["end", "complete", "session_end"] {
        let end = json!({"type": "system", "subtype": subtype});
        let conclusion = tally(&[said("bye"), end]).conclude(&exited(0));
        assert_eq!((conclusion.exit_reason, conclusion.error), (ExitReason::Success, None));
    }
    for other in [
        json!({"type": "system", "subtype": "compact_boundary"}),
        said("the end"),
        json!({"type": "end"}),
    ] {
        let error = tally(&[said("bye"), other]).conclude(&exited(0)).error.unwrap();
        assert_eq!(error.class, ErrorClass::AgentDied);
    }
}

#[test]
fn an_error_message_ends_the_run_badly() {
    let error = json!({"type": "error", "message": "connect ECONNREFUSED", "code": "ECONNREFUSED"});
    check_class(&[done("earlier"), error.clone()], ErrorClass::Network);
    check_class(&[error.clone(), done("later")], ErrorClass::Network);
    check_class(&[error, said("as if nothing was"), done("later")], ErrorClass::Network);
    let timed_out = json!({"type": "error", "message": "connect ETIMEDOUT 10.0.0.1:443"});
    let conclusion = tally(&[timed_out]).conclude(&exited(1));
    assert_eq!(conclusion.exit_reason, ExitReason::Timeout);
    assert_eq!(conclusion.error.unwrap().class, ErrorClass::Network);
}

#[test]
fn the_models_reason_to_stop_is_not_made_up_when_the_api_failed() {
    let mut result = failed("API Error: 529 overloaded", Some(529));
    result["stop_reason"] = "stop_sequence".into();
    assert_eq!(tally(&[result.clone()]).conclude(&exited(1)).stop_reason, None);
    result["stop_reason"] = "max_tokens".into();
    let stopped = tally(&[result]).conclude(&exited(1)).stop_reason;
    assert_eq!(stopped.as_deref(), Some("max_tokens"));
    let mut result = done("ok");
    result["stop_reason"] = "stop_sequence".into();
    let stopped = tally(&[result]).conclude(&exited(0)).stop_reason;
    assert_eq!(stopped.as_deref(), Some("stop_sequence"));
}

#[test]
fn a_wait_is_told_where_the_api_told_it() {
    let retry = |ms: u64, status: Option<u64>| json!({"type": "system", "subtype": "api_retry", "retry_delay_ms": ms, "error_status": status});
    let limited = failed("API Error: Request rejected (429)", Some(429));
    let wait = |lines: &[Json]| tally(lines).conclude(&exited(1)).error.unwrap().retry_after_ms;
    assert_eq!(wait(&[retry(9000, Some(429)), limited]), None, "the agent's own guess");
    for (words, ms) in [
        ("retry-after: 30", 30_000),
        ("Please try again in 5 minutes.", 300_000),
        ("please retry after 1.5s", 1500),
        ("wait 2 hours", 7_200_000),
    ] {
        assert_eq!(wait(&[failed(words, Some(429))]), Some(ms), "{words}");
    }
    assert_eq!(wait(&[failed("Try again in a moment.", Some(529))]), None);
}

#[test]
fn a_reset_is_told_where_the_api_told_it() {
    let at = |lines: &[Json]| {
        let error = tally(lines).conclude(&exited(1)).error.unwrap();
        error.resets_at.map(|at| at.as_second())
    };
    let event = |status: &str| {
        json!({"type": "rate_limit_event",
               "rate_limit_info": {"status": status, "resetsAt": 1_794_703_704}})
    };
    let limited = failed("You've hit your limit · resets 3pm", None);
    assert_eq!(at(&[event("rejected"), limited.clone()]), Some(1_794_703_704));
    assert_eq!(at(&[event("allowed"), limited]), None);
    assert_eq!(
        at(&[failed("Claude AI usage limit reached|1794703704", None)]),
        Some(1_794_703_704)
    );
    assert_eq!(
        at(&[failed("rate limit: resets at 2026-11-15T00:48:24Z", Some(429))]),
        Some(1_794_703_704)
    );
    assert_eq!(at(&[event("rejected"), failed("overloaded", Some(529))]), None);
}

#[test]
fn summaries_are_cut_at_a_character() {
    let text = "é".repeat(SUMMARY_BYTES_MAX);
    let summary = tally(&[done(&text)]).conclude(&exited(0)).summary.unwrap();
    assert!(summary.len() <= SUMMARY_BYTES_MAX && summary.ends_with("é…"), "{}", summary.len());
    let exact = "x".repeat(SUMMARY_BYTES_MAX);
    assert_eq!(tally(&[done(&exact)]).conclude(&exited(0)).summary, Some(exact));
}

#[test]
fn the_summary_is_the_final_text_and_else_what_the_agent_itself_said_last() {
    let summary = |lines: &[Json]| tally(lines).conclude(&exited(0)).summary;
    assert_eq!(summary(&[said("a"), done("final")]).as_deref(), Some("final"));
    assert_eq!(summary(&[said("a"), done("")]).as_deref(), Some("a"));
    assert_eq!(summary(&[said("a"), failed("API Error: 500", None)]).as_deref(), Some("a"));
    let sub = json!({"type": "assistant", "parent_tool_use_id": "t", "content": "sub"});
    assert_eq!(summary(&[said("a"), sub]).as_deref(), Some("a"));
    let delta =
        json!({"type": "stream_event", "event": {"delta": {"type": "text_delta", "text": "part"}}});
    assert_eq!(summary(&[delta]), None);
}

#[test]
fn every_class_has_a_cure() {
    for class in ErrorClass::ALL {
        let cure = class.cure();
        assert!(!cure.is_empty() && !cure.ends_with('.'), "{class}: {cure}");
        assert!(!cure.contains("  "), "{class}: {cure}");
    }
}

#[test]
fn a_cure_fits_the_agent() {
    use heeler_config::{KNOWN_AGENTS, RuntimeType};
    for (runtime, agent, class, part) in [
        (RuntimeType::Codex, "codex", ErrorClass::Authentication, "`codex login`"),
        (RuntimeType::Codex, "codex", ErrorClass::Network, "OPENAI_BASE_URL"),
        (RuntimeType::Acp, "gemini", ErrorClass::TokenExpired, "GEMINI_API_KEY"),
        (RuntimeType::Acp, "goose", ErrorClass::Malformed, "`program` names goose"),
        (RuntimeType::Acp, "/opt/own", ErrorClass::Authentication, "`secrets`"),
        (RuntimeType::Sdk, "", ErrorClass::Authentication, "ANTHROPIC_API_KEY"),
    ] {
        let mut error = RunError::new(class, "no");
        error.fit_cure(runtime, agent);
        assert!(error.cure.contains(part), "{agent} {class}: {}", error.cure);
    }
    // Advice about another agent would mislead.
    let others = KNOWN_AGENTS.iter().filter(|agent| agent.name != "claude-acp");
    let others = others.map(|agent| (RuntimeType::Acp, agent.name));
    let others = others.chain([(RuntimeType::Codex, "codex"), (RuntimeType::Acp, "/opt/own")]);
    for (runtime, agent) in others {
        for class in ErrorClass::ALL {
            let cure = class.cure_for(runtime, agent);
            for word in ["claude", "Claude", "anthropic", "ANTHROPIC_API", "ANTHROPIC_BASE"] {
                assert!(!cure.contains(word), "{agent} {class}: {cure}");
            }
            assert!(!cure.is_empty() && !cure.ends_with('.') && !cure.contains("  "), "{cure}");
        }
    }
    let mut own = RunError { cure: "do this".to_owned(), ..RunError::new(ErrorClass::Network, "") };
    own.fit_cure(RuntimeType::Codex, "codex");
    assert_eq!(own.cure, "do this");
}

/// Result with totals of the session and optionally the increase.
fn spent(total: f64, tokens: i64, api_ms: i64, new: Option<(f64, i64)>) -> Json {
    let usage = |usd: f64, tokens: i64| json!({"m": {"inputTokens": tokens, "outputTokens": 1, "costUSD": usd, "contextWindow": 1000}});
    let mut line = json!({"type": "result", "is_error": false, "num_turns": 1,
        "total_cost_usd": total, "duration_api_ms": api_ms, "modelUsage": usage(total, tokens),
        "usage": {"input_tokens": tokens}});
    if let Some((usd, tokens)) = new {
        line["model_usage_since_last_result"] = usage(usd, tokens);
    }
    line
}

#[track_caller]
fn check_cost(tally: &RunOutcomeBuilder, usd: f64, input_tokens: i64, api_ms: Option<i64>) {
    let cost = tally.conclude(&exited(0)).cost;
    let difference = (cost.usd.unwrap() - usd).abs();
    assert!(difference < 1e-9, "{:?} is not {usd}", cost.usd);
    assert_eq!(tally.cost_usd(), cost.usd);
    assert_eq!(cost.usage.input_tokens, Some(input_tokens));
    assert_eq!(cost.usage.per_model["m"]["inputTokens"], input_tokens);
    assert_eq!(cost.usage.per_model["m"]["contextWindow"], 1000, "a limit is not a count");
    assert_eq!(cost.usage.api_duration_ms, api_ms);
}

#[test]
fn a_fresh_run_is_charged_for_all_its_turns() {
    let lines = [spent(0.5, 100, 10, Some((0.5, 100))), spent(0.8, 150, 15, Some((0.3, 50)))];
    check_cost(&tally(&lines), 0.8, 150, Some(15));
    assert_eq!(tally(&lines).conclude(&exited(0)).cost.usage.num_turns, Some(2));
    let old = [spent(0.5, 100, 10, None), spent(0.8, 150, 15, None)];
    check_cost(&tally(&old), 0.8, 150, Some(15));
}

#[test]
fn a_resumed_run_is_not_charged_for_the_ones_before() {
    let lines = [spent(5.2, 1050, 900, Some((0.2, 50))), spent(5.3, 1060, 950, Some((0.1, 10)))];
    // The earlier API time is unknown: only the second turn's time is certain.
    check_cost(&tally(&lines), 0.3, 60, Some(50));
    let before = spent(5.0, 1000, 800, None);
    check_cost(
        &told(RunOutcomeBuilder::new().with_previous_result(&before), &lines),
        0.3,
        60,
        Some(150),
    );
}

#[test]
fn an_old_agent_is_charged_by_differences() {
    let before = spent(5.0, 1000, 800, None);
    let lines = [spent(5.2, 1050, 900, None), spent(5.3, 1060, 950, None)];
    check_cost(
        &told(RunOutcomeBuilder::new().with_previous_result(&before), &lines),
        0.3,
        60,
        Some(150),
    );
}

#[test]
fn attempts_in_one_session_are_each_charged_for_what_is_new_and_add_up() {
    let first = tally(&[spent(0.5, 100, 10, None)]);
    let second = told(first.next_attempt(), &[spent(0.8, 150, 15, None)]);
    check_cost(&second, 0.3, 50, Some(5));
    let [first, second] = [first, second].map(|tally| tally.conclude(&exited(0)).cost);
    let unknown = RunCost { usd: None, ..second.clone() };
    assert_eq!(first.clone().plus(&unknown).usd, None);
    let both = first.plus(&second);
    assert!((both.usd.unwrap() - 0.8).abs() < 1e-9, "{:?}", both.usd);
    let usage = &both.usage;
    assert_eq!((usage.num_turns, usage.api_duration_ms), (Some(2), Some(15)));
    assert_eq!(usage.input_tokens, Some(150));
    assert_eq!(usage.per_model["m"]["inputTokens"], 150);
    assert_eq!(both.clone().plus(&RunCost::default()).usage, both.usage, "it told nothing more");
}

#[test]
fn figures_that_fell_began_anew_because_the_process_was_killed() {
    let before = spent(0.42, 1000, 800, None);
    check_cost(
        &told(RunOutcomeBuilder::new().with_previous_result(&before), &[spent(0.1, 50, 20, None)]),
        0.1,
        50,
        Some(20),
    );
    let new = [spent(0.1, 50, 20, Some((0.1, 50)))];
    check_cost(
        &told(RunOutcomeBuilder::new().with_previous_result(&before), &new),
        0.1,
        50,
        Some(20),
    );
}

#[test]
fn a_model_that_this_run_did_not_use_is_not_listed() {
    let mut before = spent(5.0, 1000, 800, None);
    before["modelUsage"]["other"] = json!({"inputTokens": 7, "costUSD": 1.0});
    let mut now = spent(5.2, 1050, 900, None);
    now["modelUsage"]["other"] = json!({"inputTokens": 7, "costUSD": 1.0});
    let tally = told(RunOutcomeBuilder::new().with_previous_result(&before), &[now]);
    let models: Vec<_> = tally.conclude(&exited(0)).cost.usage.per_model.into_keys().collect();
    assert_eq!(models, ["m"]);
}

#[test]
fn what_a_run_cost_is_unknown_once_it_was_killed_in_a_later_turn() {
    let lines = [spent(0.5, 100, 10, Some((0.5, 100))), said("and now")];
    let tally = tally(&lines);
    assert_eq!(tally.cost_usd(), Some(0.5), "what is known so far");
    assert_eq!(tally.conclude(&exited(137)).cost.usd, None);
}

#[test]
fn a_result_without_figures_leaves_the_cost_unknown() {
    let cost = tally(&[said("x"), done("x")]).conclude(&exited(0)).cost;
    assert_eq!(cost, RunCost::default());
}

#[test]
fn a_run_is_accounted_by_a_bounded_number_of_models() {
    let result = |number: usize| {
        json!({"type": "result", "is_error": false, "total_cost_usd": 1,
        "model_usage_since_last_result": {format!("model-{number}"): {"costUSD": 1.0}}})
    };
    let results: Vec<Json> = (0..300).map(result).collect();
    let cost = tally(&results).conclude(&exited(0)).cost;
    assert_eq!((cost.usd, cost.usage.per_model.len()), (Some(300.0), 256));
}

#[test]
fn an_agent_that_refuses_its_options_was_not_started() {
    let choices = "error: option '--permission-mode <mode>' argument 'delegate' is invalid. Allowed \
                   choices are acceptEdits, plan.";
    for stderr in [choices, "error: unknown option '--resume-session-at'\n"] {
        let error = tally(&[]).conclude(&exited_with(1, stderr)).error.unwrap();
        assert_eq!(error.class, ErrorClass::NotStarted);
        assert_eq!((error.message.as_str(), error.recoverable), (stderr.trim(), false));
        // The output of the agent's own tools does not concern its command-line options.
        let error = tally(&[said("hi")]).conclude(&exited_with(1, stderr)).error.unwrap();
        assert_eq!(error.class, ErrorClass::AgentDied);
        let command = RunOutcomeBuilder::for_runtime(RuntimeType::Command)
            .conclude(&exited_with(1, stderr))
            .error
            .unwrap();
        assert_eq!(command.class, ErrorClass::AgentFailed);
    }
}

#[test]
fn an_amount_that_no_agent_can_have_spent_leaves_the_cost_unknown() {
    let told = |results: &[Json]| {
        let mut tally = RunOutcomeBuilder::new();
        for result in results {
            tally.add_message(&parse_line(result.to_string().as_bytes()));
        }
        let exited =
            AgentProcessExit::Exited { code: Some(0), signal: None, stderr: String::new() };
        (tally.cost_usd(), tally.conclude(&exited).cost)
    };
    let result = |fields: Json| {
        let mut row = json!({"type": "result", "subtype": "success", "is_error": false,
            "result": "done", "num_turns": 1});
        row.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        row
    };
    let paid = result(json!({"total_cost_usd": 2.0}));
    assert_eq!(told(std::slice::from_ref(&paid)).1.usd, Some(2.0));
    let new = |usd: f64| json!({"model_usage_since_last_result": {"m": {"costUSD": usd}}});
    for bad in [
        json!({"total_cost_usd": -5.0}),
        json!({"total_cost_usd": "0"}),
        new(-5.0),
        json!({"total_cost_usd": 3.0, "num_turns": -9, "duration_api_ms": -9,
            "usage": {"output_tokens": -9}, "modelUsage": {"m": {"outputTokens": -9}},
            "model_usage_since_last_result": {"m": {"costUSD": -1.0, "outputTokens": -9}}}),
    ] {
        let (until_now, cost) = told(&[paid.clone(), result(bad.clone())]);
        assert_eq!(cost.usd, None, "{bad}");
        // The limit of the run still sees what was reported before.
        assert!(until_now.is_some_and(|usd| usd >= 2.0), "{bad}: {until_now:?}");
        let usage = &cost.usage;
        let counts = [usage.num_turns, usage.api_duration_ms, usage.output_tokens];
        assert!(counts.iter().flatten().all(|&count| count >= 0), "{bad}: {usage:?}");
        assert!(!format!("{:?}", usage.per_model).contains('-'), "{bad}: {usage:?}");
    }
}

fn limit(status: &str, is_overage: bool) -> Json {
    json!({"type": "rate_limit_event", "rate_limit_info": {"status": status,
        "resetsAt": 1_794_703_704, "isUsingOverage": is_overage}})
}

#[test]
fn a_limit_is_used_up_if_the_last_report_says_so_and_nothing_was_answered_since() {
    let resets_at = Timestamp::from_second(1_794_703_704).ok();
    for (lines, is_used_up) in [
        (vec![said("ok"), limit("rejected", false), done("ok")], Some(true)),
        (vec![limit("rejected", false), said("ok"), done("ok")], Some(false)),
        (vec![said("ok"), limit("rejected", true), done("ok")], Some(false)),
        (vec![limit("rejected", false), limit("allowed_warning", false)], Some(false)),
        (vec![said("ok"), done("ok")], None),
    ] {
        let state = tally(&lines).conclude(&exited(0)).usage_limit;
        let expected = is_used_up.map(|is_used_up| UsageLimitState { is_used_up, resets_at });
        assert_eq!(state, expected, "{lines:?}");
    }
    // A failure of the API is no answer.
    let refused = json!({"type": "assistant", "error": "rate_limit", "is_api_error_message": true,
        "message": {"content": "no"}});
    let state = tally(&[limit("rejected", false), refused]).conclude(&exited(1)).usage_limit;
    assert!(state.unwrap().is_used_up);
}
