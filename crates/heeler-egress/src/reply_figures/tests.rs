//! Tests of the figures of replies.

use serde_json::json;

use super::*;

/// Bytes of the request, for estimates.
const REQUEST_BYTES: u64 = 900;

fn read(protocol: ModelApiProtocol, events: &[Json]) -> ReplyFigures {
    let mut figures = ReplyFigures::new(protocol);
    for event in events {
        figures.read_event(event, event.to_string().len());
    }
    figures.estimate_rest(REQUEST_BYTES);
    figures
}

fn read_whole(protocol: ModelApiProtocol, reply: &Json) -> ReplyFigures {
    let mut figures = ReplyFigures::new(protocol);
    figures.read_whole(reply);
    figures.estimate_rest(REQUEST_BYTES);
    figures
}

#[track_caller]
fn check(figures: &ReplyFigures, model: &str, input: u64, cached: u64, output: u64) {
    let expected = ReplyUsage {
        input_tokens: input,
        cache_read_tokens: cached,
        output_tokens: output,
        ..ReplyUsage::default()
    };
    assert_eq!((figures.model.as_str(), figures.usage), (model, expected));
    assert!(figures.is_begun);
}

/// A stream of the Responses API.
fn responses() -> Vec<Json> {
    let response = |status: &str, usage: Json| {
        json!({
            "id": "resp_1", "object": "response", "model": "gpt-5-2025-08-07",
            "status": status, "background": false, "usage": usage,
        })
    };
    let usage = json!({
        "input_tokens": 100, "input_tokens_details": { "cached_tokens": 40 },
        "output_tokens": 20, "output_tokens_details": { "reasoning_tokens": 5 },
    });
    let mut events = vec![
        json!({ "type": "response.created", "response": response("in_progress", Json::Null) }),
    ];
    events
        .extend((0..3).map(|_| json!({ "type": "response.output_text.delta", "delta": "three " })));
    events.push(json!({
        "type": "response.function_call_arguments.delta", "delta": "{\"usage\": 7000}",
    }));
    events.push(json!({ "type": "response.completed", "response": response("completed", usage) }));
    events
}

/// A stream of Chat Completions.
fn chunks() -> Vec<Json> {
    let chunk = |choices: Json, usage: Json| {
        json!({
            "object": "chat.completion.chunk", "model": "qwen3-coder", "choices": choices, "usage": usage,
        })
    };
    let delta = |delta: Json| chunk(json!([{ "index": 0, "delta": delta }]), Json::Null);
    let call = json!([{ "index": 0, "function": { "arguments": "{\"command\":1}" } }]);
    vec![
        delta(json!({ "role": "assistant", "content": "" })),
        delta(json!({ "reasoning_content": "four" })),
        delta(json!({ "content": "eight by" })),
        delta(json!({ "tool_calls": call })),
        chunk(
            json!([]),
            json!({
                "prompt_tokens": 100, "prompt_tokens_details": { "cached_tokens": 30 },
                "completion_tokens": 20,
            }),
        ),
    ]
}

/// A stream of Gemini's API.
fn contents() -> Vec<Json> {
    let content = |text: &str, output: u64, finish: Json| {
        json!({
            "candidates": [{ "content": { "parts": [{ "text": text }] }, "finishReason": finish }],
            "modelVersion": "gemini-2.5-pro",
            "usageMetadata": {
                "promptTokenCount": 100, "cachedContentTokenCount": 25,
                "candidatesTokenCount": output, "thoughtsTokenCount": 5,
            },
        })
    };
    vec![content("some", 1, Json::Null), content(" text", 10, json!("STOP"))]
}

#[test]
fn the_figures_of_each_protocol_are_read() {
    let openai = ModelApiProtocol::Openai;
    check(&read(openai, &responses()), "gpt-5-2025-08-07", 60, 40, 20);
    check(&read(openai, &chunks()), "qwen3-coder", 70, 30, 20);
    check(&read(ModelApiProtocol::Gemini, &contents()), "gemini-2.5-pro", 75, 25, 15);
}

#[test]
fn a_reply_in_one_piece_has_the_same_figures() {
    let openai = ModelApiProtocol::Openai;
    let response = &responses()[5]["response"];
    check(&read_whole(openai, response), "gpt-5-2025-08-07", 60, 40, 20);
    let chat = json!({
        "object": "chat.completion", "model": "gpt-5",
        "choices": [{ "message": { "content": "Hi." } }],
        "usage": { "prompt_tokens": 3, "completion_tokens": 4 },
    });
    check(&read_whole(openai, &chat), "gpt-5", 3, 0, 4);
    let gemini = ModelApiProtocol::Gemini;
    check(&read_whole(gemini, &contents()[1]), "gemini-2.5-pro", 75, 25, 15);
    check(&read_whole(gemini, &Json::Array(contents())), "gemini-2.5-pro", 75, 25, 15);
}

#[test]
fn what_a_reply_does_not_tell_is_estimated_by_its_bytes() {
    let openai = ModelApiProtocol::Openai;
    let input = REQUEST_BYTES / TOKEN_BYTES_MIN;
    // The agent hangs up before the last event. It was sent 18 bytes of text and 15 of a call.
    check(&read(openai, &responses()[..5]), "gpt-5-2025-08-07", input, 0, 11);
    // It was sent 4, 8 and 13 bytes, and asked for no use.
    check(&read(openai, &chunks()[..4]), "qwen3-coder", input, 0, 8);
    // Each event tells the use until then, which is more than four bytes of text.
    check(&read(ModelApiProtocol::Gemini, &contents()[..1]), "gemini-2.5-pro", 75, 25, 6);
    let mut figures = ReplyFigures::new(openai);
    figures.read_event(&responses()[0], 0);
    figures.estimate_rest(u64::MAX);
    assert_eq!(figures.usage.input_tokens, INPUT_ESTIMATE_MAX);
}

#[test]
fn an_error_is_no_reply() {
    let error = json!({ "error": { "message": "overloaded", "code": 503 } });
    for protocol in [ModelApiProtocol::Openai, ModelApiProtocol::Gemini] {
        assert!(!read(protocol, std::slice::from_ref(&error)).is_begun, "{protocol:?}");
    }
}

#[test]
fn absurd_counts_do_not_overflow() {
    let usage = json!({ "input_tokens": u64::MAX, "output_tokens": u64::MAX });
    let reply = json!({ "object": "response", "model": "m", "usage": usage });
    check(&read_whole(ModelApiProtocol::Openai, &reply), "m", COUNT_MAX, 0, COUNT_MAX);
    let usage = json!({ "promptTokenCount": u64::MAX, "toolUsePromptTokenCount": u64::MAX });
    let reply = json!({ "usageMetadata": usage, "modelVersion": "m" });
    check(&read_whole(ModelApiProtocol::Gemini, &reply), "m", 2 * COUNT_MAX, 0, 0);
}
