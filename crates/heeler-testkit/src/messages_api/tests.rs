//! The server as a plain HTTP client sees it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::*;

/// The response: status line and headers, and the body as far as it was received.
struct ReceivedReply {
    head: String,
    body: String,
    /// Whether the body ended as HTTP says.
    ended: bool,
}

fn send(api: &MessagesApi, head: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(api.url().trim_start_matches("http://")).unwrap();
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: mock\r\nx-api-key: test\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn got(mut stream: TcpStream) -> ReceivedReply {
    let mut raw = Vec::new();
    // A cut connection may appear as an error; the data before it count.
    drop(stream.read_to_end(&mut raw));
    let raw = String::from_utf8(raw).unwrap();
    let (head, rest) = raw.split_once("\r\n\r\n").unwrap();
    if !head.contains("chunked") {
        return ReceivedReply { head: head.to_owned(), body: rest.to_owned(), ended: true };
    }
    let (mut body, mut rest, mut ended) = (String::new(), rest, false);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        ended = size == 0;
        if ended || after.len() < size {
            break;
        }
        body.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
    }
    ReceivedReply { head: head.to_owned(), body, ended }
}

fn ask(api: &MessagesApi, messages: Json, stream: bool) -> ReceivedReply {
    let body = json!({"model": "m", "stream": stream, "messages": messages}).to_string();
    got(send(api, "POST /v1/messages?beta=true", &body))
}

fn prompt(script: &ModelScript) -> Json {
    json!([{"role": "user", "content": format!("please {script} now")}])
}

/// The events of a stream, without ids.
fn events(got: &ReceivedReply) -> Vec<Json> {
    let data = got.body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn kinds(got: &ReceivedReply) -> Vec<String> {
    events(got).iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
}

/// The pieces of all blocks, put together.
fn content(got: &ReceivedReply) -> String {
    let deltas = events(got).into_iter().map(|event| event["delta"].clone());
    let piece = |delta: Json| {
        ["text", "thinking", "partial_json"]
            .iter()
            .find_map(|key| Some(delta[*key].as_str()?.to_owned()))
    };
    deltas.filter_map(piece).collect()
}

#[test]
fn a_text_is_streamed_as_the_real_api_does() {
    let api = MessagesApi::start();
    let script = ModelScript::new()
        .step(ModelScriptStep { piece: Some(3), ..ModelScriptStep::text("hallo wörld") });
    let got = ask(&api, prompt(&script), true);
    assert!(got.head.starts_with("HTTP/1.1 200"), "{}", got.head);
    assert!(got.head.contains("content-type: text/event-stream"), "{}", got.head);
    assert!(got.head.contains("request-id: req_mock1"), "{}", got.head);
    assert!(got.ended);
    let delta = "content_block_delta";
    let expected = ["message_start", "content_block_start", "ping", delta, delta, delta, delta];
    assert_eq!(kinds(&got)[..7], expected);
    assert_eq!(kinds(&got)[7..], ["content_block_stop", "message_delta", "message_stop"]);
    assert_eq!(content(&got), "hallo wörld");
    let events = events(&got);
    assert_eq!(events[0]["message"]["usage"]["output_tokens"], 1);
    assert_eq!(events[8]["delta"]["stop_reason"], "end_turn");
    assert_eq!(events[8]["usage"]["output_tokens"], 5);
}

#[test]
fn thinking_and_parallel_tools_come_as_blocks_whole_or_streamed() {
    let api = MessagesApi::start();
    let tools = ModelScriptStep::tools([
        ("Read", json!({"file": "a"})),
        ("Bash", json!({"command": "ls"})),
    ]);
    let step = ModelScriptStep {
        thinking: Some("hm".into()),
        usage: Some(json!({"input_tokens": 7})),
        ..tools
    };
    let script = ModelScript::new().step(step);
    let got = ask(&api, prompt(&script), false);
    let whole: Json = serde_json::from_str(&got.body).unwrap();
    assert_eq!(whole["stop_reason"], "tool_use");
    assert_eq!(whole["usage"]["input_tokens"], 7);
    let names: Vec<_> = whole["content"].as_array().unwrap().iter().map(|b| &b["type"]).collect();
    assert_eq!(names, ["thinking", "tool_use", "tool_use"]);
    assert_ne!(whole["content"][1]["id"], whole["content"][2]["id"]);
    let got = ask(&api, prompt(&script), true);
    assert_eq!(content(&got), r#"hm{"file":"a"}{"command":"ls"}"#);
}

#[test]
fn the_step_is_the_number_of_answers_after_the_newest_directive() {
    let api = MessagesApi::start();
    let script = ModelScript::new().tool("Bash", json!({})).text("second").text("third");
    let user = json!({"role": "user", "content": [{"type": "text", "text": script.to_string()}]});
    let said = json!({"role": "assistant", "content": "x"});
    let result = json!({"role": "user", "content": [{"type": "tool_result", "content": "r"}]});
    let system = json!({"role": "system", "content": "steering"});
    let turn = |messages: Vec<&Json>| {
        let whole: Json = serde_json::from_str(&ask(&api, json!(messages), false).body).unwrap();
        whole["content"][0].clone()
    };
    assert_eq!(turn(vec![&user])["name"], "Bash");
    assert_eq!(turn(vec![&user, &said, &result, &system])["text"], "second");
    assert_eq!(turn(vec![&user, &said, &result, &said, &result])["text"], "third");
    assert_eq!(turn(vec![&user, &said, &user, &said, &user])["name"], "Bash");
    let all = [&user, &said, &said, &said];
    assert_eq!(turn(all.to_vec())["text"], "end of script");
    let plain = json!({"role": "user", "content": "hello"});
    assert_eq!(turn(vec![&plain])["text"], "mock reply #1: user: hello");
    let bad = json!({"role": "user", "content": "MOCK[{\"no\":1}]"});
    assert!(turn(vec![&bad])["text"].as_str().unwrap().starts_with("bad script"), "it is told");
}

#[test]
fn an_echo_tells_the_conversation() {
    let api = MessagesApi::start();
    let script = ModelScript::new().echo();
    let messages = json!([
        {"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>no</system-reminder>"},
            {"type": "text", "text": "one"},
        ]},
        {"role": "assistant", "content": [{"type": "tool_use", "name": "Bash", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "content": "no", "is_error": true}]},
        {"role": "user", "content": script.to_string()},
    ]);
    let got = ask(&api, messages, false);
    let whole: Json = serde_json::from_str(&got.body).unwrap();
    let expected = format!(
        "user: one\nassistant: \"Bash\" {{\"a\":1}}\nuser: failed result \"no\"\nuser: {script}"
    );
    assert_eq!(whole["content"][0]["text"], expected);
    assert_eq!(api.messages()[0].history().join("\n"), expected);
}

#[test]
fn errors_have_the_status_the_kind_and_the_headers() {
    let api = MessagesApi::start();
    for (status, kind) in [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (529, "overloaded_error"),
    ] {
        let step = ModelScriptStep { retry_after: Some(3), ..ModelScriptStep::error(status) };
        let got = ask(&api, prompt(&ModelScript::new().step(step)), true);
        assert!(got.head.starts_with(&format!("HTTP/1.1 {status}")), "{}", got.head);
        assert!(got.head.contains("retry-after: 3"), "{}", got.head);
        assert_eq!(serde_json::from_str::<Json>(&got.body).unwrap()["error"]["type"], kind);
    }
}

#[test]
fn failures_that_end_do_not_count_as_answers() {
    let api = MessagesApi::start();
    let script = ModelScript::new()
        .step(ModelScriptStep::error(529).times(2))
        .step(ModelScriptStep::error(500).times(1))
        .text("first")
        .step(ModelScriptStep::error(429).times(1))
        .text("second");
    let status = |messages: &Json| {
        let got = ask(&api, messages.clone(), false);
        got.head.split(' ').nth(1).unwrap().to_owned()
            + if got.body.contains("first") { " first" } else { "" }
    };
    let first = prompt(&script);
    let seen: Vec<String> = (0..4).map(|_| status(&first)).collect();
    assert_eq!(seen, ["529", "529", "500", "200 first"]);
    let mut second = first;
    second.as_array_mut().unwrap().push(json!({"role": "assistant", "content": "first"}));
    assert_eq!([status(&second), status(&second)], ["429", "200"]);
}

#[test]
fn a_dropped_stream_sends_its_pieces_and_then_cuts_the_connection() {
    let api = MessagesApi::start();
    let script = ModelScript::new().step(ModelScriptStep::dropped(3));
    let got = ask(&api, prompt(&script), true);
    assert!(!got.ended, "{}", got.body);
    assert_eq!(content(&got), "partial partial partial ");
    let whole: Json = serde_json::from_str(&ask(&api, prompt(&script), false).body).unwrap();
    assert_eq!(whole["stop_reason"], "end_turn");
}

#[test]
fn an_error_event_ends_a_stream_that_began_well() {
    let api = MessagesApi::start();
    let got = ask(&api, prompt(&ModelScript::new().step(ModelScriptStep::broken(2))), true);
    assert!(got.ended);
    assert_eq!(content(&got), "partial partial ");
    assert_eq!(events(&got).last().unwrap()["error"]["type"], "overloaded_error");
}

#[test]
fn a_stalled_stream_stays_open_until_the_server_stops() {
    let api = MessagesApi::start();
    let body = json!({"stream": true, "messages": prompt(&ModelScript::new().step(ModelScriptStep::stalled(1)))});
    let mut stream = send(&api, "POST /v1/messages", &body.to_string());
    let mut raw = String::new();
    let mut piece = [0; 4096];
    while !raw.contains("partial") {
        let count = stream.read(&mut piece).unwrap();
        raw.push_str(std::str::from_utf8(&piece[..count]).unwrap());
    }
    drop(api);
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        raw.push_str(std::str::from_utf8(&piece[..count]).unwrap());
    }
    assert!(!raw.contains("content_block_stop"), "{raw}");
}

#[test]
fn other_addresses_are_served_and_everything_is_on_record() {
    let api = MessagesApi::start();
    assert!(got(send(&api, "HEAD /", "")).head.starts_with("HTTP/1.1 200"));
    let count = got(send(&api, "POST /v1/messages/count_tokens?beta=true", "{\"a\":1}")).body;
    assert_eq!(count, "{\"input_tokens\":2}");
    assert!(got(send(&api, "GET /nothing", "")).head.starts_with("HTTP/1.1 404"));
    ask(&api, json!([]), false);
    api.wait_for_messages(1);
    let requests = api.requests();
    let paths: Vec<_> = requests.iter().map(|r| format!("{} {}", r.method, r.path)).collect();
    let expected = [
        "HEAD /",
        "POST /v1/messages/count_tokens?beta=true",
        "GET /nothing",
        "POST /v1/messages?beta=true",
    ];
    assert_eq!(paths, expected);
    assert_eq!(requests[0].header("x-api-key"), Some("test"));
    assert_eq!(api.messages()[0].body["model"], "m");
}
