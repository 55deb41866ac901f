//! JSON-RPC, one message per line: reading what an agent wrote, and building what is written to it.
//!
//! Reading is total: any bytes give an [`RpcMessage`] or a message to record. IDs of the agent are
//! kept as they are and never interpreted. Start at [`parse_rpc_line`].

use heeler_model::message::{AgentMessage, ID_BYTES_MAX, MessageBody, parse_object};
use serde_json::{Map, Value as Json, json};

use crate::runtime::RuntimeEffect;

/// Error code for a method that is not offered.
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;

/// Error code for a request that makes no sense.
pub(crate) const INVALID_REQUEST: i64 = -32600;

/// Error code for parameters that a method does not take.
pub(crate) const INVALID_PARAMS: i64 = -32602;

/// Error code of an action that failed or was denied.
pub(crate) const DENIED: i64 = -32000;

/// Error of a run whose agent sent a damaged line, or a reply to another request, while it was to open
/// a session.
pub(crate) const LOST_OPENING: &str = "the agent was to open a session, and its reply was damaged or \
                                       had a wrong ID: see the row before";

/// Returns true for a line that may be a part of a message. Words that an agent prints before it speaks
/// the protocol are not.
pub(crate) fn is_damaged_message(line: &[u8]) -> bool {
    let text = line.trim_ascii();
    text.first() == Some(&b'{') || text.last() == Some(&b'}')
}

/// Message of an agent that speaks JSON-RPC.
#[derive(Debug, PartialEq)]
pub(crate) enum RpcMessage {
    Request {
        id: RpcId,
        method: String,
        params: Json,
    },
    Notification {
        method: String,
        params: Json,
    },
    Reply {
        /// ID of a request of the runner. `None` if it is not one that the runner can have sent.
        id: Option<u64>,
        result: Result<Json, RpcError>,
    },
}

/// ID that an agent chose for its request: a number or a short text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RpcId(String);

impl RpcId {
    /// Returns the ID for a JSON value; `None` if it is no ID, or too long for one.
    fn new(id: &Json) -> Option<RpcId> {
        let is_id = id.is_number() || id.is_string();
        Some(id.to_string()).filter(|text| is_id && text.len() <= ID_BYTES_MAX).map(RpcId)
    }

    /// Returns the ID as JSON text, by which it is known in the runner.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    fn to_json(&self) -> Json {
        serde_json::from_str(&self.0).unwrap_or(Json::Null)
    }
}

/// Error reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    pub(crate) message: String,
    pub(crate) data: Json,
}

/// Parses a line. The error is the message to record instead.
pub(crate) fn parse_rpc_line(line: &[u8]) -> Result<RpcMessage, Box<AgentMessage>> {
    let mut fields = parse_object(line)?;
    let method = match fields.shift_remove("method") {
        Some(Json::String(method)) => Some(method),
        _ => None,
    };
    let id = fields.shift_remove("id").filter(|id| !id.is_null());
    match (method, id) {
        (Some(method), Some(id)) => {
            let Some(id) = RpcId::new(&id) else {
                return Err(unknown(line, "a request with an ID that is no ID"));
            };
            Ok(RpcMessage::Request { id, method, params: take_params(&mut fields) })
        }
        (Some(method), None) => {
            Ok(RpcMessage::Notification { method, params: take_params(&mut fields) })
        }
        (None, id) => {
            let result = match (fields.shift_remove("error"), fields.shift_remove("result")) {
                (Some(error), _) if !error.is_null() => Err(read_error(&error)),
                (_, Some(result)) => Ok(result),
                _ => return Err(unknown(line, "neither a request nor a reply")),
            };
            Ok(RpcMessage::Reply { id: id.as_ref().and_then(Json::as_u64), result })
        }
    }
}

fn take_params(fields: &mut Map<String, Json>) -> Json {
    fields.shift_remove("params").unwrap_or(Json::Null)
}

fn read_error(error: &Json) -> RpcError {
    RpcError {
        code: error["code"].as_i64().unwrap_or(0),
        message: error["message"].as_str().unwrap_or_default().to_owned(),
        data: error.get("data").cloned().unwrap_or(Json::Null),
    }
}

fn unknown(line: &[u8], kind: &str) -> Box<AgentMessage> {
    let text = String::from_utf8_lossy(line).trim().to_owned();
    Box::new(AgentMessage::from_body(MessageBody::Unknown { kind: kind.to_owned(), text }))
}

/// Dialect of JSON-RPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RpcDialect {
    /// Messages name the version.
    Standard,
    /// Messages have no `jsonrpc` member, as Codex writes them.
    Unversioned,
}

impl RpcDialect {
    pub(crate) fn request(self, id: u64, method: &str, params: Json) -> RuntimeEffect {
        self.line(json!({ "id": id, "method": method, "params": params }))
    }

    pub(crate) fn notification(self, method: &str, params: Json) -> RuntimeEffect {
        self.line(match params {
            Json::Null => json!({ "method": method }),
            params => json!({ "method": method, "params": params }),
        })
    }

    pub(crate) fn reply(self, id: &RpcId, result: Json) -> RuntimeEffect {
        self.line(json!({ "id": id.to_json(), "result": result }))
    }

    pub(crate) fn error_reply(self, id: &RpcId, code: i64, message: &str) -> RuntimeEffect {
        let error = json!({ "code": code, "message": message });
        self.line(json!({ "id": id.to_json(), "error": error }))
    }

    fn line(self, mut message: Json) -> RuntimeEffect {
        if self == RpcDialect::Standard {
            message["jsonrpc"] = "2.0".into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(b'\n');
        RuntimeEffect::Write(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn parse(line: &str) -> RpcMessage {
        parse_rpc_line(line.as_bytes()).unwrap()
    }

    #[test]
    fn requests_notifications_and_replies_are_told_apart() {
        let request = parse(r#"{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1}}"#);
        let RpcMessage::Request { id, method, params } = request else { panic!("{request:?}") };
        assert_eq!((id.as_str(), method.as_str(), &params["x"]), ("\"a\"", "m", &json!(1)));
        assert_eq!(
            parse(r#"{"method":"m"}"#),
            RpcMessage::Notification { method: "m".to_owned(), params: Json::Null }
        );
        assert_eq!(
            parse(r#"{"result":null,"id":7}"#),
            RpcMessage::Reply { id: Some(7), result: Ok(Json::Null) }
        );
        let failed = parse(r#"{"id":7,"error":{"code":-32000,"message":"no","data":{"k":1}}}"#);
        let RpcMessage::Reply { result: Err(error), .. } = failed else { panic!("{failed:?}") };
        assert_eq!((error.code, error.message.as_str()), (-32000, "no"));
    }

    #[test]
    fn other_lines_are_recorded() {
        let long = format!(r#"{{"id":"{}","method":"m"}}"#, "x".repeat(ID_BYTES_MAX));
        for line in [r#"{"id":1}"#, r#"{"id":[1],"method":"m"}"#, "banner", "[]", &long] {
            let recorded = parse_rpc_line(line.as_bytes()).unwrap_err();
            assert!(
                matches!(
                    recorded.body,
                    MessageBody::Unknown { .. } | MessageBody::Malformed { .. }
                ),
                "{line}"
            );
        }
        // A reply to nothing that the runner can have asked.
        let reply = parse(r#"{"id":"x","result":{}}"#);
        assert_eq!(reply, RpcMessage::Reply { id: None, result: Ok(json!({})) });
    }
}
