//! Replies in the form of the real API: complete, as a stream of events, or as an error.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadBuf};
use tokio_util::io::ReaderStream;
use uuid::Uuid;

use super::script::{ModelScriptStep, history};

/// Default number of characters in a piece of a stream.
const PIECE: usize = 64;

/// Returns the real API's name of an error.
fn error_kind(status: u16) -> &'static str {
    match status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    }
}

/// Returns an error reply.
pub(super) fn error(status: u16, kind: &str, message: &str, number: usize) -> Response {
    let body = json!({
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id(number),
    });
    let status = StatusCode::from_u16(status).unwrap();
    (status, [("request-id", request_id(number))], axum::Json(body)).into_response()
}

/// Returns the reply to a request for a message.
pub(super) async fn reply(step: ModelScriptStep, body: &Json, number: usize) -> Response {
    if let Some(ms) = step.hang_ms {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    if let Some(status) = step.status {
        let kind = error_kind(status);
        let message = step.message.clone().unwrap_or_else(|| format!("mock {kind}"));
        let mut response = error(status, kind, &message, number);
        if let Some(seconds) = step.retry_after {
            response.headers_mut().insert("retry-after", seconds.into());
        }
        return response;
    }
    let answer = ModelReply::new(step, body);
    if body["stream"] != true {
        return ([("request-id", request_id(number))], axum::Json(answer.whole())).into_response();
    }
    let (writer, reader) = tokio::io::duplex(64 * 1024);
    let dropped = answer.step.drop_after.is_some();
    tokio::spawn(answer.stream(writer));
    let body = match dropped {
        true => {
            Body::from_stream(ReaderStream::new(reader.chain(CutConnection { error_sent: false })))
        }
        false => Body::from_stream(ReaderStream::new(reader)),
    };
    let headers =
        [("content-type", "text/event-stream".to_owned()), ("request-id", request_id(number))];
    (headers, body).into_response()
}

fn request_id(number: usize) -> String {
    format!("req_mock{number}")
}

/// The end of a connection that is cut.
pub(super) struct CutConnection {
    pub(super) error_sent: bool,
}

impl AsyncRead for CutConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Pending once, so that the server sends its buffered data before it cuts the connection.
        if !std::mem::replace(&mut self.error_sent, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }
}

/// A reply of the model.
struct ModelReply {
    step: ModelScriptStep,
    message: Json,
    blocks: Vec<Json>,
    stop_reason: String,
    usage: Json,
}

impl ModelReply {
    fn new(mut step: ModelScriptStep, body: &Json) -> Self {
        if step.echo {
            step.text = Some(history(body).join("\n"));
        }
        if step.is_cut() && step.text.is_none() {
            (step.text, step.piece) = (Some("partial ".repeat(40)), Some(8));
        }
        let mut blocks = Vec::new();
        if let Some(thinking) = &step.thinking {
            blocks.push(json!({"type": "thinking", "thinking": thinking, "signature": "c2ln"}));
        }
        if let Some(text) = &step.text {
            blocks.push(json!({"type": "text", "text": text}));
        }
        for tool in &step.tools {
            let id = format!("toolu_{}", &Uuid::new_v4().simple().to_string()[..20]);
            let (name, input) = match tool.name.as_str() {
                "sh" => ("Bash", tool.input.clone()),
                "write" => {
                    let (path, content) = (&tool.input["path"], &tool.input["content"]);
                    ("Write", json!({"file_path": path, "content": content}))
                }
                name => (name, tool.input.clone()),
            };
            blocks.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
        }
        let usual = if step.tools.is_empty() { "end_turn" } else { "tool_use" };
        let stop_reason = step.stop_reason.clone().unwrap_or_else(|| usual.to_owned());
        let mut usage = json!({
            "input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": 5, "service_tier": "standard",
        });
        if let (Some(usage), Some(Json::Object(own))) = (usage.as_object_mut(), step.usage.clone())
        {
            usage.extend(own);
        }
        let id = format!("msg_{}", &Uuid::new_v4().simple().to_string()[..20]);
        let message = json!({
            "id": id, "type": "message", "role": "assistant", "model": body["model"], "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage,
        });
        Self { step, message, blocks, stop_reason, usage }
    }

    fn whole(&self) -> Json {
        let mut message = self.message.clone();
        message["content"] = json!(self.blocks);
        message["stop_reason"] = json!(self.stop_reason);
        message
    }

    /// Writes the reply as events, until its end, the planned fault, or the client's disconnect.
    async fn stream(self, writer: DuplexStream) {
        let mut events = ModelEventWriter { writer, pieces: 0 };
        let mut message = self.message.clone();
        message["usage"]["output_tokens"] = json!(1);
        drop(self.write_events(&mut events, message).await);
    }

    async fn write_events(&self, events: &mut ModelEventWriter, message: Json) -> io::Result<()> {
        events.send("message_start", json!({"message": message})).await?;
        for (index, block) in self.blocks.iter().enumerate() {
            let start = json!({"index": index, "content_block": empty_block(block)});
            events.send("content_block_start", start).await?;
            if index == 0 {
                events.send("ping", json!({})).await?;
            }
            for delta in deltas(block, self.step.piece.unwrap_or(PIECE)) {
                events.send("content_block_delta", json!({"index": index, "delta": delta})).await?;
                events.pieces += 1;
                if self.apply_fault(events).await? {
                    return Ok(());
                }
            }
            events.send("content_block_stop", json!({"index": index})).await?;
        }
        let delta = json!({"stop_reason": self.stop_reason, "stop_sequence": null});
        events.send("message_delta", json!({"delta": delta, "usage": self.usage})).await?;
        events.send("message_stop", json!({})).await
    }

    /// Applies the fault planned after a piece; returns true if the reply ends here.
    async fn apply_fault(&self, events: &mut ModelEventWriter) -> io::Result<bool> {
        if let Some(ms) = self.step.delay_ms {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        let now = Some(events.pieces);
        if self.step.stall_after == now {
            // Sleeps until the server stops.
            std::future::pending::<()>().await;
        }
        if self.step.error_after == now {
            let error = json!({"type": "overloaded_error", "message": "mock overloaded_error"});
            events.send("error", json!({"error": error})).await?;
        }
        Ok(self.step.drop_after == now || self.step.error_after == now)
    }
}

struct ModelEventWriter {
    writer: DuplexStream,
    /// Number of pieces of content sent.
    pieces: usize,
}

impl ModelEventWriter {
    async fn send(&mut self, name: &str, mut event: Json) -> io::Result<()> {
        event["type"] = json!(name);
        let event = format!("event: {name}\ndata: {event}\n\n");
        self.writer.write_all(event.as_bytes()).await
    }
}

/// Returns a block without its content.
fn empty_block(block: &Json) -> Json {
    let mut block = block.clone();
    match block["type"].as_str() {
        Some("text") => block["text"] = json!(""),
        Some("tool_use") => block["input"] = json!({}),
        _ => (block["thinking"], block["signature"]) = (json!(""), json!("")),
    }
    block
}

/// Returns the content of a block in pieces.
fn deltas(block: &Json, piece: usize) -> Vec<Json> {
    let input = block["input"].to_string();
    let (kind, key, content) = match block["type"].as_str() {
        Some("text") => ("text_delta", "text", block["text"].as_str().unwrap_or_default()),
        Some("tool_use") => ("input_json_delta", "partial_json", input.as_str()),
        _ => ("thinking_delta", "thinking", block["thinking"].as_str().unwrap_or_default()),
    };
    let characters: Vec<char> = content.chars().collect();
    let pieces = characters.chunks(piece).map(|piece| piece.iter().collect::<String>());
    let mut deltas: Vec<Json> = pieces.map(|piece| json!({"type": kind, key: piece})).collect();
    if kind == "thinking_delta" {
        deltas.push(json!({"type": "signature_delta", "signature": "c2ln"}));
    }
    deltas
}
