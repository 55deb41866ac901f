//! How many messages a session's log holds, as `--at-message` counts them.

use std::io::{self, BufRead};

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: Option<String>,
    message: Option<Message>,
}

#[derive(Deserialize)]
struct Message {
    id: Option<String>,
    content: Option<Value>,
}

/// Counts the user and assistant messages of a log in the Claude envelope.
///
/// The lines of one assistant message (they share its id) count as one; tool results and lines that
/// cannot be read count as none.
pub(crate) fn count(mut log: impl BufRead) -> io::Result<i64> {
    let mut messages = 0;
    let mut last_id = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        if log.read_until(b'\n', &mut line)? == 0 {
            return Ok(messages);
        }
        let Ok(Line { kind: Some(kind), message: Some(message) }) = serde_json::from_slice(&line)
        else {
            continue;
        };
        let counts = match kind.as_str() {
            "user" => !only_tool_results(message.content.as_ref()),
            "assistant" => message.id.is_none() || message.id != last_id,
            _ => false,
        };
        if counts {
            messages += 1;
            last_id = message.id;
        }
    }
}

fn only_tool_results(content: Option<&Value>) -> bool {
    let Some(Value::Array(blocks)) = content else { return content.is_none() };
    blocks.iter().all(|block| block["type"] == "tool_result")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_one_message_count_once_and_tool_results_do_not() {
        let log = concat!(
            r#"{"type":"user","message":{"role":"user","content":"hello"}}"#,
            "\n",
            r#"{"type":"assistant","message":{"id":"m1","content":[{"type":"text"}]}}"#,
            "\n",
            r#"{"type":"assistant","message":{"id":"m1","content":[{"type":"tool_use"}]}}"#,
            "\n",
            r#"{"type":"user","message":{"content":[{"type":"tool_result"}]}}"#,
            "\n",
            "garbage\n",
            r#"{"type":"assistant","message":{"content":[{"type":"text"}]}}"#,
            "\n",
            r#"{"type":"result","subtype":"success"}"#,
            "\n",
            r#"{"type":"user","message":{"content":"torn"#,
        );
        assert_eq!(count(log.as_bytes()).unwrap(), 3);
    }
}
