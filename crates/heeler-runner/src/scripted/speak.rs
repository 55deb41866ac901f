//! What the player says: assistant messages, one line for each block, with pieces while they are
//! said when those were asked for.

use heeler_model::script::{Failure, Garbage, Speech};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::player::{MODEL, Player, Stop, Waited, merge};
use super::wire::{Assistant, Tokens, User};

/// An assistant message that may get further blocks.
pub(super) struct Message {
    id: String,
    blocks: u64,
    has_text: bool,
}

impl Player {
    /// Says a text, in pieces as the step wants.
    pub(super) fn say(&mut self, speech: &Speech) -> Result<(), Stop> {
        // A second text is a message of its own.
        if self.message.as_ref().is_some_and(|message| message.has_text) {
            self.end_message("end_turn");
        }
        let text = self.words.fill(&speech.text);
        let empty = json!({"type": "text", "text": ""});
        self.in_pieces(
            &text,
            speech,
            &empty,
            |piece| json!({"type": "text_delta", "text": piece}),
        )?;
        self.block(json!({"type": "text", "text": text}))?;
        if let Some(message) = &mut self.message {
            message.has_text = true;
        }
        self.turn.text = text;
        Ok(())
    }

    /// Thinks a text.
    pub(super) fn think(&mut self, speech: &Speech) -> Result<(), Stop> {
        if self.message.as_ref().is_some_and(|message| message.has_text) {
            self.end_message("end_turn");
        }
        let text = self.words.fill(&speech.text);
        let empty = json!({"type": "thinking", "thinking": "", "signature": ""});
        let delta = |piece: &str| json!({"type": "thinking_delta", "thinking": piece});
        self.in_pieces(&text, speech, &empty, delta)?;
        self.block(json!({"type": "thinking", "thinking": text, "signature": ""}))
    }

    /// Tells the pieces of a block that comes, with the delay between two.
    fn in_pieces(
        &mut self,
        text: &str,
        speech: &Speech,
        empty: &Json,
        delta: impl Fn(&str) -> Json,
    ) -> Result<(), Stop> {
        let index = self.begin_block(empty);
        let mut said = 0;
        for piece in pieces(text, speech.chunks as usize) {
            let waited = match speech.delay.is_zero() || said == 0 {
                true => Waited::TimedOut,
                false => self.wait(Some(speech.delay), |_| false)?,
            };
            if waited == Waited::Interrupted {
                let is_text = empty["type"] == "text" && said > 0;
                let block = is_text.then(|| json!({"type": "text", "text": &text[..said]}));
                return Err(Stop::Interrupted { said: block, in_tool: false });
            }
            self.stream_event(
                || json!({"type": "content_block_delta", "index": index, "delta": delta(piece)}),
            );
            said += piece.len();
        }
        Ok(())
    }

    /// Opens a block in the stream, and the message that it is in.
    pub(super) fn begin_block(&mut self, empty: &Json) -> u64 {
        if self.message.is_none() {
            let id = format!("msg_{}", Uuid::new_v4().simple());
            self.message = Some(Message { id: id.clone(), blocks: 0, has_text: false });
            self.stream_event(
                || json!({"type": "message_start", "message": Assistant::new(&id, MODEL, &[])}),
            );
        }
        let index = self.message.as_ref().map_or(0, |message| message.blocks);
        self.stream_event(
            || json!({"type": "content_block_start", "index": index, "content_block": empty}),
        );
        index
    }

    /// Says a whole block; [`Player::begin_block`] came before.
    pub(super) fn block(&mut self, block: Json) -> Result<(), Stop> {
        self.whole_block(block, &Json::Null)?;
        let index = self.message.as_ref().map_or(0, |message| message.blocks);
        self.stream_event(|| json!({"type": "content_block_stop", "index": index}));
        if let Some(message) = &mut self.message {
            message.blocks += 1;
        }
        Ok(())
    }

    fn whole_block(&mut self, block: Json, more: &Json) -> Result<(), Stop> {
        let id = self.message.as_ref().map_or(String::new(), |message| message.id.clone());
        self.converse("assistant", &Assistant::new(&id, MODEL, &[block]), more)
    }

    /// Ends the message that is being said, if one is.
    pub(super) fn end_message(&mut self, stop_reason: &str) {
        if self.message.is_none() {
            return;
        }
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": null});
        self.stream_event(
            || json!({"type": "message_delta", "delta": delta, "usage": Tokens::default()}),
        );
        self.stream_event(|| json!({"type": "message_stop"}));
        self.message = None;
    }

    /// Tells what an interrupt left: what was said so far, and that it was the user.
    pub(super) fn abort(&mut self, said: Option<Json>, in_tool: bool) -> Result<(), Stop> {
        if let Some(block) = said {
            self.whole_block(block, &json!({"aborted": true}))?;
        }
        let text = match in_tool {
            true => "[Request interrupted by user for tool use]",
            false => "[Request interrupted by user]",
        };
        let content = json!([{"type": "text", "text": text}]);
        self.converse("user", &User::new(content), &Json::Null)?;
        if let Some(message) = &self.message {
            let index = message.blocks;
            self.stream_event(|| json!({"type": "content_block_stop", "index": index}));
            self.end_message("end_turn");
        }
        Ok(())
    }

    fn stream_event(&mut self, event: impl FnOnce() -> Json) {
        if !self.setting.partial {
            return;
        }
        let event = event();
        let id = self.message.as_ref().map(|message| &message.id);
        let line = json!({
            "type": "stream_event", "event": event, "session_id": self.memory.id,
            "parent_tool_use_id": self.parent, "uuid": Uuid::new_v4(), "api_message_id": id,
        });
        self.wire.line(&line);
    }

    /// Says many messages as fast as they are taken; they come whole, without pieces.
    pub(super) fn flood(&mut self, messages: u64, size_bytes: usize) -> Result<(), Stop> {
        self.end_message("end_turn");
        for number in 1..=messages {
            self.stop_if_interrupted()?;
            let mut text = format!("message {number} ");
            if text.len() < size_bytes {
                text.extend(std::iter::repeat_n('.', size_bytes - text.len()));
            }
            let id = format!("msg_{}", Uuid::new_v4().simple());
            let content = [json!({"type": "text", "text": text})];
            self.converse("assistant", &Assistant::new(&id, MODEL, &content), &Json::Null)?;
            self.turn.text = text;
        }
        Ok(())
    }

    /// Says that the API failed, and stops the turn.
    pub(super) fn fail(&mut self, failure: Failure, message: Option<&str>) -> Result<(), Stop> {
        self.end_message("end_turn");
        let text = message.map_or_else(|| of_failure(failure), |text| self.words.fill(text));
        let (error, kind) = words_of(failure);
        let id = Uuid::new_v4().to_string();
        let content = [json!({"type": "text", "text": text})];
        let mut said = Assistant::new(&id, "<synthetic>", &content);
        said.stop_reason = Some("stop_sequence");
        let mut more = json!({"error": error, "is_api_error_message": true});
        if let Some(status) = failure.status() {
            merge(&mut more, json!({"api_error_status": status, "api_error_type": kind}));
        }
        self.converse("assistant", &said, &more)?;
        Err(Stop::Failed { message: text, status: failure.status(), kind })
    }

    /// Writes what no client expects. None of it is remembered.
    pub(super) fn garbage(&mut self, kind: Garbage, size_bytes: usize) {
        let line: &[u8] = match kind {
            Garbage::Nul => &[b"\0".repeat(16), b"\n".to_vec()].concat(),
            Garbage::InvalidUtf8 => b"{\"type\":\"system\",\"subtype\":\"\xff\xfe\xc3\"}\n",
            Garbage::NotJson => b"panic: this is not JSON\n",
            Garbage::HalfJson => b"{\"type\":\"assistant\",\"message\":{\"content\":[{\"ty\n",
            Garbage::NotAnObject => b"[1, \"two\", null]\n",
            Garbage::UnknownType => {
                b"{\"type\":\"from_the_future\",\"subtype\":\"news\",\"n\":1}\n"
            }
            Garbage::WrongShape => {
                b"{\"type\":\"assistant\",\"message\":7,\"uuid\":[],\"session_id\":{}}\n"
            }
            Garbage::BlankLine => b"\n",
            Garbage::NoNewline => b"this line has no end",
            Garbage::HugeLine => return self.huge_line(size_bytes),
        };
        self.wire.bytes(line);
    }

    fn huge_line(&mut self, size_bytes: usize) {
        let text = [json!({"type": "text", "text": "x".repeat(size_bytes)})];
        let id = format!("msg_{}", Uuid::new_v4().simple());
        self.wire.line(&json!({
            "type": "assistant", "message": Assistant::new(&id, MODEL, &text),
            "parent_tool_use_id": null, "session_id": self.memory.id, "uuid": Uuid::new_v4(),
            "timestamp": self.timestamp(),
        }));
    }
}

/// Returns how Claude names a failure: its own word, and the API's.
pub(super) fn words_of(failure: Failure) -> (&'static str, &'static str) {
    match failure {
        Failure::Authentication | Failure::TokenExpired => {
            ("authentication_failed", "authentication_error")
        }
        Failure::RateLimit => ("rate_limit", "rate_limit_error"),
        Failure::Overloaded => ("server_error", "overloaded_error"),
        Failure::ServerError => ("server_error", "api_error"),
        Failure::InvalidRequest => ("invalid_request", "invalid_request_error"),
        Failure::ModelNotFound => ("model_not_found", "not_found_error"),
        Failure::Network => ("unknown", "connection_error"),
    }
}

fn of_failure(failure: Failure) -> String {
    let text = match failure {
        Failure::Authentication => "Invalid API key · Fix external API key",
        Failure::TokenExpired => {
            "Failed to authenticate. API Error: 401 OAuth token has expired · Please run /login"
        }
        Failure::RateLimit => "API Error: Request rejected (429) · as the script says",
        Failure::Overloaded => "API Error: Repeated 529 Overloaded errors, as the script says",
        Failure::ServerError => "API Error: 500 Internal server error, as the script says",
        Failure::InvalidRequest => "API Error: 400 Invalid request, as the script says",
        Failure::ModelNotFound => "There's an issue with the selected model, as the script says",
        Failure::Network => "API Error: Connection refused (ECONNREFUSED), as the script says",
    };
    text.to_owned()
}

/// Cuts a text into about equal pieces, at characters. An empty text is one piece.
fn pieces(text: &str, count: usize) -> Vec<&str> {
    let length = text.len().div_ceil(count.max(1)).max(1);
    let mut pieces = Vec::new();
    let mut rest = text;
    while rest.len() > length {
        let mut end = length;
        while !rest.is_char_boundary(end) {
            end += 1;
        }
        let (piece, more) = rest.split_at(end);
        pieces.push(piece);
        rest = more;
    }
    if !rest.is_empty() || pieces.is_empty() {
        pieces.push(rest);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn a_text_is_cut_into_pieces_at_characters() {
        assert_eq!(pieces("abcdef", 3), ["ab", "cd", "ef"]);
        assert_eq!(pieces("abcdefg", 3), ["abc", "def", "g"]);
        assert_eq!(pieces("ééé", 3), ["é", "é", "é"]);
        assert_eq!(pieces("é", 9), ["é"]);
        assert_eq!(pieces("", 3), [""]);
        assert_eq!(pieces("abc", 1), ["abc"]);
    }
}
