//! Figures of one reply, as each protocol of a model API tells them.
//!
//! The protocols tell a reply's use in its last events. What an agent reads before it hangs up is
//! estimated, because the API charges for it too. Start at [`ReplyFigures`].

use heeler_config::ModelApiProtocol;
use serde_json::Value as Json;

use crate::reply_usage::ReplyUsage;

/// Bytes of an event of Claude's API around the text that it carries.
const DELTA_FRAME_BYTES: usize = 90;

/// Fewest bytes of text in one token, for figures that the reply does not tell.
const TOKEN_BYTES_MIN: u64 = 3;

/// Most input tokens that are estimated for a request. Requests with images have more bytes than tokens.
const INPUT_ESTIMATE_MAX: u64 = 300_000;

/// Largest count that is taken over from a reply. Sums of such counts do not overflow.
const COUNT_MAX: u64 = 1 << 40;

/// Figures of one reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplyFigures {
    protocol: ModelApiProtocol,
    /// Name of the model, or empty.
    pub(crate) model: String,
    pub(crate) usage: ReplyUsage,
    /// The model has begun to reply.
    pub(crate) is_begun: bool,
    /// The final figures have arrived. Some APIs tell totals until then in each event.
    pub(crate) is_final: bool,
    /// The API works on without telling its use.
    pub(crate) is_detached: bool,
    text_bytes: usize,
}

impl ReplyFigures {
    pub(crate) fn new(protocol: ModelApiProtocol) -> ReplyFigures {
        ReplyFigures {
            protocol,
            model: String::new(),
            usage: ReplyUsage::default(),
            is_begun: false,
            is_final: false,
            is_detached: false,
            text_bytes: 0,
        }
    }

    /// Reads one event of a stream, which had this many bytes.
    pub(crate) fn read_event(&mut self, event: &Json, bytes: usize) {
        match self.protocol {
            ModelApiProtocol::Anthropic => self.read_anthropic(event, bytes),
            ModelApiProtocol::Openai => self.read_openai(event),
            ModelApiProtocol::Gemini => self.read_gemini(event),
        }
    }

    /// Reads a reply in one piece.
    pub(crate) fn read_whole(&mut self, reply: &Json) {
        self.is_begun = true;
        match self.protocol {
            ModelApiProtocol::Anthropic => {
                self.merge(&reply["usage"]);
                self.set_model(&reply["model"]);
                self.is_final = true;
            }
            ModelApiProtocol::Openai => self.read_openai(reply),
            // Without `alt=sse`, a stream is one array.
            ModelApiProtocol::Gemini => match reply.as_array() {
                Some(parts) => parts.iter().for_each(|part| self.read_gemini(part)),
                None => self.read_gemini(reply),
            },
        }
    }

    /// Estimates what the reply did not tell. An agent that stops reading before the end must not get
    /// its output for free.
    pub(crate) fn estimate_rest(&mut self, request_bytes: u64) {
        if self.is_final {
            return;
        }
        let text_bytes = u64::try_from(self.text_bytes).unwrap_or(u64::MAX);
        let usage = &mut self.usage;
        usage.output_tokens = usage.output_tokens.max(text_bytes / TOKEN_BYTES_MIN);
        // Claude's API tells the input at the beginning.
        if self.protocol != ModelApiProtocol::Anthropic
            && usage.input_tokens == 0
            && usage.cache_read_tokens == 0
        {
            usage.input_tokens = (request_bytes / TOKEN_BYTES_MIN).min(INPUT_ESTIMATE_MAX);
        }
    }

    fn read_anthropic(&mut self, event: &Json, bytes: usize) {
        match event["type"].as_str() {
            Some("message_start") => {
                self.is_begun = true;
                self.set_model(&event["message"]["model"]);
                self.merge(&event["message"]["usage"]);
            }
            Some("content_block_delta") => {
                self.text_bytes += bytes.saturating_sub(DELTA_FRAME_BYTES);
            }
            Some("message_delta") => {
                self.is_final = true;
                self.merge(&event["usage"]);
            }
            _ => {}
        }
    }

    /// Takes over the figures of a `usage` object. Those of a stream are totals that only grow.
    fn merge(&mut self, usage: &Json) {
        let written = count(&usage["cache_creation_input_tokens"]);
        let hour = count(&usage["cache_creation"]["ephemeral_1h_input_tokens"]).min(written);
        let raise = |field: &mut u64, value: u64| *field = (*field).max(value);
        let figures = &mut self.usage;
        raise(&mut figures.input_tokens, count(&usage["input_tokens"]));
        raise(&mut figures.output_tokens, count(&usage["output_tokens"]));
        raise(&mut figures.cache_read_tokens, count(&usage["cache_read_input_tokens"]));
        raise(&mut figures.cache_write_hour_tokens, hour);
        raise(&mut figures.cache_write_short_tokens, written - hour);
        raise(&mut figures.web_searches, count(&usage["server_tool_use"]["web_search_requests"]));
    }

    /// Reads an event or a whole reply of the Responses API or of Chat Completions.
    fn read_openai(&mut self, event: &Json) {
        let reply = if event["response"].is_object() { &event["response"] } else { event };
        let usage = &reply["usage"];
        if reply["object"].is_string() || reply["choices"].is_array() || usage.is_object() {
            self.is_begun = true;
            self.set_model(&reply["model"]);
        }
        // Its use would be told to a later call only, which is not forwarded.
        self.is_detached |= reply["background"] == true;
        self.text_bytes += openai_text_bytes(event);
        if !usage.is_object() {
            return;
        }
        self.is_final = true;
        let first_of = |names: [&str; 2]| {
            let found = names.into_iter().find(|name| !usage[*name].is_null());
            found.map_or(&Json::Null, |name| &usage[name])
        };
        let input = count(first_of(["input_tokens", "prompt_tokens"]));
        let details = first_of(["input_tokens_details", "prompt_tokens_details"]);
        let cached = count(&details["cached_tokens"]).min(input);
        self.take_over(ReplyUsage {
            input_tokens: input - cached,
            output_tokens: count(first_of(["output_tokens", "completion_tokens"])),
            cache_read_tokens: cached,
            ..ReplyUsage::default()
        });
    }

    fn read_gemini(&mut self, reply: &Json) {
        let candidates = reply["candidates"].as_array().map_or(&[][..], Vec::as_slice);
        let usage = &reply["usageMetadata"];
        if !candidates.is_empty() || usage.is_object() {
            self.is_begun = true;
            self.set_model(&reply["modelVersion"]);
        }
        for candidate in candidates {
            let parts = candidate["content"]["parts"].as_array().into_iter().flatten();
            self.text_bytes += parts.map(|part| text_bytes(&part["text"])).sum::<usize>();
            // Each event tells the use until now.
            self.is_final |= candidate["finishReason"].is_string() && usage.is_object();
        }
        let prompt = count(&usage["promptTokenCount"]) + count(&usage["toolUsePromptTokenCount"]);
        let cached = count(&usage["cachedContentTokenCount"]).min(prompt);
        self.take_over(ReplyUsage {
            input_tokens: prompt - cached,
            output_tokens: count(&usage["candidatesTokenCount"])
                + count(&usage["thoughtsTokenCount"]),
            cache_read_tokens: cached,
            ..ReplyUsage::default()
        });
    }

    /// Takes over totals of the reply, which only grow.
    fn take_over(&mut self, usage: ReplyUsage) {
        if usage.tokens() >= self.usage.tokens() {
            self.usage = usage;
        }
    }

    fn set_model(&mut self, name: &Json) {
        if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
            name.clone_into(&mut self.model);
        }
    }
}

fn count(value: &Json) -> u64 {
    value.as_u64().unwrap_or(0).min(COUNT_MAX)
}

fn text_bytes(text: &Json) -> usize {
    text.as_str().map_or(0, str::len)
}

/// Returns the bytes of the model's text in one event.
fn openai_text_bytes(event: &Json) -> usize {
    let choices = event["choices"].as_array().into_iter().flatten();
    let of_choice = |choice: &Json| {
        let delta = &choice["delta"];
        let calls = delta["tool_calls"].as_array().into_iter().flatten();
        let calls: usize = calls.map(|call| text_bytes(&call["function"]["arguments"])).sum();
        calls
            + text_bytes(&delta["content"])
            + text_bytes(&delta["reasoning_content"])
            + text_bytes(&choice["message"]["content"])
    };
    // The delta of an event of the Responses API is a text.
    text_bytes(&event["delta"]) + choices.map(of_choice).sum::<usize>()
}

#[cfg(test)]
mod tests;
