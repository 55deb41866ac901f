//! Assistant messages of the scripted agent: one line per block, with partial pieces on request.

use heeler_config::script::{GarbageKind, ScriptApiError, StreamedText};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::agent::ScriptedAgent;
use super::event::{ScriptedStopReason, ScriptedWaitOutcome};
use super::output::{
    MODEL, ScriptedAssistantMessage, ScriptedTokenUsage, ScriptedUserMessage, merge_objects,
};
use super::turn_state::ScriptedPartialMessage;

impl ScriptedAgent {
    /// Writes a text, in the pieces that the step demands.
    pub(super) fn write_text(&mut self, speech: &StreamedText) -> Result<(), ScriptedStopReason> {
        // A second text becomes a message of its own.
        if self.message.as_ref().is_some_and(|message| message.has_text) {
            self.end_message("end_turn");
        }
        let text = self.variables.expand(&speech.text);
        let empty = json!({"type": "text", "text": ""});
        self.stream_pieces(
            &text,
            speech,
            &empty,
            |piece| json!({"type": "text_delta", "text": piece}),
        )?;
        self.write_block(json!({"type": "text", "text": text}))?;
        if let Some(message) = &mut self.message {
            message.has_text = true;
        }
        self.turn.text = text;
        Ok(())
    }

    /// Writes a thinking block.
    pub(super) fn write_thinking(
        &mut self,
        speech: &StreamedText,
    ) -> Result<(), ScriptedStopReason> {
        if self.message.as_ref().is_some_and(|message| message.has_text) {
            self.end_message("end_turn");
        }
        let text = self.variables.expand(&speech.text);
        let empty = json!({"type": "thinking", "thinking": "", "signature": ""});
        let delta = |piece: &str| json!({"type": "thinking_delta", "thinking": piece});
        self.stream_pieces(&text, speech, &empty, delta)?;
        self.write_block(json!({"type": "thinking", "thinking": text, "signature": ""}))
    }

    /// Streams the pieces of a block, with the delay between them.
    fn stream_pieces(
        &mut self,
        text: &str,
        speech: &StreamedText,
        empty: &Json,
        delta: impl Fn(&str) -> Json,
    ) -> Result<(), ScriptedStopReason> {
        let index = self.begin_block(empty);
        let mut written_bytes = 0;
        for piece in split_pieces(text, speech.chunks as usize) {
            let waited = match speech.delay.is_zero() || written_bytes == 0 {
                true => ScriptedWaitOutcome::TimedOut,
                false => self.wait(Some(speech.delay), |_| false)?,
            };
            if waited == ScriptedWaitOutcome::Interrupted {
                // Of an interrupted reply the text is kept, but not the thinking.
                let is_text = empty["type"] == "text" && written_bytes > 0;
                let block =
                    is_text.then(|| json!({"type": "text", "text": &text[..written_bytes]}));
                return Err(ScriptedStopReason::Interrupted { partial: block, in_tool: false });
            }
            self.stream_event(
                || json!({"type": "content_block_delta", "index": index, "delta": delta(piece)}),
            );
            written_bytes += piece.len();
        }
        Ok(())
    }

    /// Opens a block in the stream, and its message if necessary.
    pub(super) fn begin_block(&mut self, empty: &Json) -> u64 {
        if self.message.is_none() {
            let id = format!("msg_{}", Uuid::new_v4().simple());
            self.message =
                Some(ScriptedPartialMessage { id: id.clone(), blocks: 0, has_text: false });
            self.stream_event(
                || json!({"type": "message_start", "message": ScriptedAssistantMessage::new(&id, MODEL, &[])}),
            );
        }
        let index = self.message.as_ref().map_or(0, |message| message.blocks);
        self.stream_event(
            || json!({"type": "content_block_start", "index": index, "content_block": empty}),
        );
        index
    }

    /// Writes a complete block; [`ScriptedAgent::begin_block`] was called before.
    pub(super) fn write_block(&mut self, block: Json) -> Result<(), ScriptedStopReason> {
        self.write_whole_block(block, &Json::Null)?;
        let index = self.message.as_ref().map_or(0, |message| message.blocks);
        self.stream_event(|| json!({"type": "content_block_stop", "index": index}));
        if let Some(message) = &mut self.message {
            message.blocks += 1;
        }
        Ok(())
    }

    fn write_whole_block(&mut self, block: Json, more: &Json) -> Result<(), ScriptedStopReason> {
        let id = self.message.as_ref().map_or(String::new(), |message| message.id.clone());
        self.write_message("assistant", &ScriptedAssistantMessage::new(&id, MODEL, &[block]), more)
    }

    /// Ends the open message, if any.
    pub(super) fn end_message(&mut self, stop_reason: &str) {
        if self.message.is_none() {
            return;
        }
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": null});
        self.stream_event(
            || json!({"type": "message_delta", "delta": delta, "usage": ScriptedTokenUsage::default()}),
        );
        self.stream_event(|| json!({"type": "message_stop"}));
        self.message = None;
    }

    /// Writes the remains of an interrupted turn: the text until then, and the note that the user
    /// interrupted.
    pub(super) fn write_interruption(
        &mut self,
        partial: Option<Json>,
        in_tool: bool,
    ) -> Result<(), ScriptedStopReason> {
        if let Some(block) = partial {
            self.write_whole_block(block, &json!({"aborted": true}))?;
        }
        let text = match in_tool {
            true => "[Request interrupted by user for tool use]",
            false => "[Request interrupted by user]",
        };
        let content = json!([{"type": "text", "text": text}]);
        self.write_message("user", &ScriptedUserMessage::new(content), &Json::Null)?;
        // A reader of the stream expects each block and message to be closed.
        if let Some(message) = &self.message {
            let index = message.blocks;
            self.stream_event(|| json!({"type": "content_block_stop", "index": index}));
            self.end_message("end_turn");
        }
        Ok(())
    }

    fn stream_event(&mut self, event: impl FnOnce() -> Json) {
        // The event is built only if it is sent.
        if !self.settings.partial {
            return;
        }
        let event = event();
        let id = self.message.as_ref().map(|message| &message.id);
        let line = json!({
            "type": "stream_event", "event": event, "session_id": self.session.id,
            "parent_tool_use_id": self.parent, "uuid": Uuid::new_v4(), "api_message_id": id,
        });
        self.output.write_line(&line);
    }

    /// Writes many messages as fast as they are read, each complete, without pieces.
    pub(super) fn write_flood(
        &mut self,
        messages: u64,
        size_bytes: usize,
    ) -> Result<(), ScriptedStopReason> {
        self.end_message("end_turn");
        for number in 1..=messages {
            // An interrupt must be noticed during the flood, too.
            self.stop_if_interrupted()?;
            let mut text = format!("message {number} ");
            if text.len() < size_bytes {
                text.extend(std::iter::repeat_n('.', size_bytes - text.len()));
            }
            let id = format!("msg_{}", Uuid::new_v4().simple());
            let content = [json!({"type": "text", "text": text})];
            self.write_message(
                "assistant",
                &ScriptedAssistantMessage::new(&id, MODEL, &content),
                &Json::Null,
            )?;
            self.turn.text = text;
        }
        Ok(())
    }

    /// Writes an API failure and stops the turn.
    pub(super) fn write_api_failure(
        &mut self,
        failure: ScriptApiError,
        message: Option<&str>,
    ) -> Result<(), ScriptedStopReason> {
        self.end_message("end_turn");
        let text =
            message.map_or_else(|| failure_text(failure), |text| self.variables.expand(text));
        let (error, kind) = failure_names(failure);
        let id = Uuid::new_v4().to_string();
        let content = [json!({"type": "text", "text": text})];
        // Claude uses this model name for messages that no model wrote.
        let mut failure_message = ScriptedAssistantMessage::new(&id, "<synthetic>", &content);
        failure_message.stop_reason = Some("stop_sequence");
        let mut more = json!({"error": error, "is_api_error_message": true});
        if let Some(status) = failure.status() {
            merge_objects(&mut more, json!({"api_error_status": status, "api_error_type": kind}));
        }
        self.write_message("assistant", &failure_message, &more)?;
        Err(ScriptedStopReason::Failed { message: text, status: failure.status(), kind })
    }

    /// Writes output that no client expects. None of it is saved.
    pub(super) fn write_garbage(&mut self, kind: GarbageKind, size_bytes: usize) {
        let line: &[u8] = match kind {
            GarbageKind::Nul => &[b"\0".repeat(16), b"\n".to_vec()].concat(),
            GarbageKind::InvalidUtf8 => b"{\"type\":\"system\",\"subtype\":\"\xff\xfe\xc3\"}\n",
            GarbageKind::NotJson => b"panic: this is not JSON\n",
            GarbageKind::HalfJson => b"{\"type\":\"assistant\",\"message\":{\"content\":[{\"ty\n",
            GarbageKind::NotAnObject => b"[1, \"two\", null]\n",
            GarbageKind::UnknownType => {
                b"{\"type\":\"from_the_future\",\"subtype\":\"news\",\"n\":1}\n"
            }
            GarbageKind::WrongShape => {
                b"{\"type\":\"assistant\",\"message\":7,\"uuid\":[],\"session_id\":{}}\n"
            }
            GarbageKind::BlankLine => b"\n",
            GarbageKind::NoNewline => b"this line has no end",
            GarbageKind::HugeLine => return self.write_huge_line(size_bytes),
        };
        self.output.write_bytes(line);
    }

    fn write_huge_line(&mut self, size_bytes: usize) {
        let text = [json!({"type": "text", "text": "x".repeat(size_bytes)})];
        let id = format!("msg_{}", Uuid::new_v4().simple());
        self.output.write_line(&json!({
            "type": "assistant", "message": ScriptedAssistantMessage::new(&id, MODEL, &text),
            "parent_tool_use_id": null, "session_id": self.session.id, "uuid": Uuid::new_v4(),
            "timestamp": self.timestamp(),
        }));
    }
}

/// Returns Claude's and the API's names for a failure.
pub(super) fn failure_names(failure: ScriptApiError) -> (&'static str, &'static str) {
    match failure {
        ScriptApiError::Authentication | ScriptApiError::TokenExpired => {
            ("authentication_failed", "authentication_error")
        }
        ScriptApiError::RateLimit => ("rate_limit", "rate_limit_error"),
        ScriptApiError::Overloaded => ("server_error", "overloaded_error"),
        ScriptApiError::ServerError => ("server_error", "api_error"),
        ScriptApiError::InvalidRequest => ("invalid_request", "invalid_request_error"),
        ScriptApiError::ModelNotFound => ("model_not_found", "not_found_error"),
        ScriptApiError::Network => ("unknown", "connection_error"),
    }
}

fn failure_text(failure: ScriptApiError) -> String {
    let text = match failure {
        ScriptApiError::Authentication => "Invalid API key · Fix external API key",
        ScriptApiError::TokenExpired => {
            "Failed to authenticate. API Error: 401 OAuth token has expired · Please run /login"
        }
        ScriptApiError::RateLimit => "API Error: Request rejected (429) · as the script says",
        ScriptApiError::Overloaded => {
            "API Error: Repeated 529 Overloaded errors, as the script says"
        }
        ScriptApiError::ServerError => "API Error: 500 Internal server error, as the script says",
        ScriptApiError::InvalidRequest => "API Error: 400 Invalid request, as the script says",
        ScriptApiError::ModelNotFound => {
            "There's an issue with the selected model, as the script says"
        }
        ScriptApiError::Network => {
            "API Error: Connection refused (ECONNREFUSED), as the script says"
        }
    };
    text.to_owned()
}

/// Splits a text into about equal pieces at character boundaries. An empty text is one piece.
fn split_pieces(text: &str, count: usize) -> Vec<&str> {
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
    use super::split_pieces;

    #[test]
    fn a_text_is_cut_into_pieces_at_characters() {
        assert_eq!(split_pieces("abcdef", 3), ["ab", "cd", "ef"]);
        assert_eq!(split_pieces("abcdefg", 3), ["abc", "def", "g"]);
        assert_eq!(split_pieces("ééé", 3), ["é", "é", "é"]);
        assert_eq!(split_pieces("é", 9), ["é"]);
        assert_eq!(split_pieces("", 3), [""]);
        assert_eq!(split_pieces("abc", 1), ["abc"]);
    }
}
