use tokio::io::{DuplexStream, duplex};

use super::*;

/// The server's end of a connection.
struct ServerEnd {
    input: BufReader<DuplexStream>,
    output: DuplexStream,
    errors: DuplexStream,
    notes: mpsc::Receiver<ToolNote>,
}

impl ServerEnd {
    async fn read(&mut self) -> Json {
        read_message(&mut self.input).await.unwrap().expect("the runner sends a message")
    }

    async fn write(&mut self, message: &Json) {
        self.output.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    /// Answers the opening of the protocol.
    async fn open(&mut self) {
        let asked = self.read().await;
        assert_eq!(asked["method"], "initialize");
        assert_eq!(asked["params"]["capabilities"], json!({}), "the server can ask for nothing");
        let result = json!({ "protocolVersion": PROTOCOL_VERSION, "capabilities": {"tools": {}} });
        self.write(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result })).await;
        assert_eq!(self.read().await["method"], "notifications/initialized");
    }
}

fn connected(filter: Arc<HostRequestFilter>) -> (HostMcpServer, ServerEnd) {
    let server = HostMcpServer::new("shop", filter);
    let ((input, read), (output, write), (errors, complain)) =
        (duplex(1 << 16), duplex(1 << 16), duplex(1 << 16));
    let (notes, from_server) = mpsc::channel(16);
    let streams = HostServerStreams { input, output, errors };
    server.connect(streams, notes);
    let input = BufReader::new(read);
    (server, ServerEnd { input, output: write, errors: complain, notes: from_server })
}

fn without_filter() -> (HostMcpServer, ServerEnd) {
    connected(Arc::new(|_: &str, _: &str, _: &Json| None))
}

fn request(id: &str, method: &str) -> Json {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": {"name": "buy"} })
}

#[tokio::test]
async fn the_protocol_is_opened_once_and_every_client_gets_its_reply() {
    let (server, mut end) = without_filter();
    let opening = [request("a", "initialize"), request("b", "initialize")];
    let (first, second, ()) =
        tokio::join!(server.handle(&opening[0]), server.handle(&opening[1]), end.open());
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!((&first["id"], &second["id"]), (&json!("a"), &json!("b")));
    assert_eq!(first["result"], second["result"]);
    assert_eq!(first["result"]["protocolVersion"], PROTOCOL_VERSION);
}

#[tokio::test]
async fn replies_find_their_requests_in_any_order_also_with_the_same_id() {
    let (server, mut end) = without_filter();
    let (one, other) = (request("same", "tools/call"), request("same", "tools/list"));
    let serve = async {
        end.open().await;
        let asked = [end.read().await, end.read().await];
        assert_ne!(asked[0]["id"], asked[1]["id"]);
        for asked in asked.iter().rev() {
            let reply = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": asked["method"] });
            end.write(&reply).await;
        }
    };
    let (one, other, ()) = tokio::join!(server.handle(&one), server.handle(&other), serve);
    let expected = |method| json!({ "jsonrpc": "2.0", "id": "same", "result": method });
    assert_eq!((one, other), (Some(expected("tools/call")), Some(expected("tools/list"))));
}

#[tokio::test]
async fn only_known_requests_reach_the_server() {
    let filter = |server: &str, method: &str, params: &Json| {
        (method == "tools/call" && params["name"] == "buy").then(|| format!("no {server}"))
    };
    let (server, mut end) = connected(Arc::new(filter));
    end.open().await;
    for method in ["shutdown", "resources/subscribe", "sampling/createMessage", "", "x\ny"] {
        let refused = server.handle(&request("1", method)).await.unwrap();
        assert_eq!(refused["error"]["code"], -32601, "{refused}");
    }
    let refused = server.handle(&request("1", "tools/call")).await.unwrap();
    assert_eq!(refused["error"]["message"], "no shop");
    // Notifications and replies of the agent.
    assert_eq!(server.handle(&json!({ "method": "notifications/initialized" })).await, None);
    assert_eq!(server.handle(&json!({ "id": 0, "result": {} })).await, None);
    // This one is the first that the server sees.
    let asked = request("2", "tools/list");
    let (reply, ()) = tokio::join!(server.handle(&asked), async {
        let asked = end.read().await;
        assert_eq!(asked["method"], "tools/list");
        end.write(&json!({ "id": asked["id"], "result": {"tools": []} })).await;
    });
    assert_eq!(reply.unwrap()["result"], json!({"tools": []}));
}

#[tokio::test]
async fn a_server_asks_the_agent_nothing() {
    let (_server, mut end) = without_filter();
    end.open().await;
    end.output.write_all(b"hello\n\n[]\n").await.unwrap();
    end.write(&json!({ "id": "s1", "method": "sampling/createMessage" })).await;
    assert_eq!(end.read().await["error"]["code"], -32601);
    end.write(&json!({ "id": "s2", "method": "ping" })).await;
    assert_eq!(end.read().await, json!({ "jsonrpc": "2.0", "id": "s2", "result": {} }));
}

#[tokio::test]
async fn a_dropped_request_is_cancelled() {
    let (server, mut end) = without_filter();
    end.open().await;
    let asked = request("1", "tools/call");
    let mut call = Box::pin(server.handle(&asked));
    let seen = tokio::select! {
        _ = &mut call => panic!("the server has not answered"),
        seen = end.read() => seen,
    };
    drop(call);
    let cancelled = end.read().await;
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], seen["id"]);
    // The late reply is for nobody.
    end.write(&json!({ "id": seen["id"], "result": {} })).await;
    end.write(&json!({ "id": "s", "method": "ping" })).await;
    assert_eq!(end.read().await["id"], "s");
}

#[tokio::test]
async fn the_end_of_a_server_fails_its_requests_and_is_told() {
    let (server, mut end) = without_filter();
    end.open().await;
    let asked = request("1", "tools/call");
    let die = async {
        end.read().await;
        end.errors.write_all(b"out of paper\n").await.unwrap();
        let ServerEnd { output, errors, notes, .. } = end;
        drop(errors);
        drop(output);
        notes
    };
    let (reply, mut notes) = tokio::join!(server.handle(&asked), die);
    assert_eq!(reply.unwrap()["error"]["message"], "the server has ended");
    let told = notes.recv().await.unwrap().content();
    assert_eq!(told, "the MCP server shop has ended: it closed its output: out of paper");
    let later = server.handle(&asked).await.unwrap();
    assert_eq!(later["error"]["message"], "the server has ended");
}

#[tokio::test]
async fn a_server_that_was_not_started_says_why_and_a_closed_one_gets_no_request() {
    let server = HostMcpServer::new("shop", Arc::new(|_: &str, _: &str, _: &Json| None));
    let asked = request("1", "initialize");
    let reply = server.handle(&asked).await.unwrap();
    assert_eq!(reply["error"]["message"], "the server is not running");
    server.fail("no such program".to_owned());
    let reply = server.handle(&asked).await.unwrap();
    assert_eq!(reply["error"]["message"], "no such program");

    let (server, mut end) = without_filter();
    end.open().await;
    let asked = request("2", "tools/call");
    let (reply, ()) = tokio::join!(server.handle(&asked), async {
        end.read().await;
        server.close();
    });
    assert_eq!(reply.unwrap()["error"]["message"], "the server has ended");
    // Its input is closed, after the cancelled request.
    while read_message(&mut end.input).await.unwrap().is_some() {}
}

#[tokio::test]
async fn a_message_that_is_too_long_ends_the_connection() {
    let (server, mut end) = without_filter();
    end.open().await;
    let asked = request("1", "tools/call");
    let flood = async {
        let part = vec![b' '; 1 << 16];
        while end.output.write_all(&part).await.is_ok() {}
        end.notes
    };
    let (reply, mut notes) = tokio::join!(server.handle(&asked), flood);
    assert_eq!(reply.unwrap()["error"]["message"], "the server has ended");
    let told = notes.recv().await.unwrap().content();
    assert!(told.ends_with("it sent a message of more than 32 MiB"), "{told}");
}

#[tokio::test]
async fn a_server_that_reads_nothing_fails_further_requests() {
    let (server, mut end) = without_filter();
    end.open().await;
    let mut waiting = tokio::task::JoinSet::new();
    let long = json!({ "id": 1, "method": "tools/call", "params": {"text": "x".repeat(1 << 16)} });
    let refused = loop {
        let (server, long) = (server.clone(), long.clone());
        waiting.spawn(async move { server.handle(&long).await });
        tokio::task::yield_now().await;
        if let Some(reply) = waiting.try_join_next() {
            break reply.unwrap().unwrap();
        }
        assert!(waiting.len() < 4 * UNREAD_REQUESTS_MAX, "there is a limit");
    };
    assert_eq!(refused["error"]["message"], "the server does not read its input");
}

#[tokio::test]
async fn no_part_of_a_cut_line_of_the_errors_is_kept() {
    let line = format!("secret{}\n", "x".repeat(1000));
    let long = format!("secret{}", "x".repeat(100_000));
    for (errors, expected) in [
        ("short\nend".to_owned(), "short\nend".to_owned()),
        (line.repeat(3), line.repeat(2)),
        (format!("{line}{line}end"), format!("{line}{line}end")),
        (format!("{line}{line}{line}end"), format!("{line}{line}end")),
        // The cut is between two lines.
        (
            format!("{line}{}\n", "y".repeat(ERRORS_BYTES_MAX - 1)),
            "y".repeat(ERRORS_BYTES_MAX - 1) + "\n",
        ),
        (long.clone(), "[a long line is left out]\n".to_owned()),
        (format!("{long}\nend"), "[a long line is left out]\nend".to_owned()),
    ] {
        for step in [1, 700, 1 << 20] {
            let (mut input, output) = tokio::io::duplex(1 << 20);
            let end = Arc::<Mutex<Vec<u8>>>::default();
            let (open, _closed) = oneshot::channel();
            let write = async {
                for part in errors.as_bytes().chunks(step) {
                    input.write_all(part).await.unwrap();
                    tokio::task::yield_now().await;
                }
                drop(input);
            };
            tokio::join!(keep_end(output, Arc::clone(&end), open), write);
            let kept = String::from_utf8(end.lock().unwrap().clone()).unwrap();
            assert_eq!(kept, expected, "{step}");
        }
    }
}
