//! Conversations with the injected servers, as claude has them.

use camino::{Utf8Path, Utf8PathBuf};
use expect_test::{Expect, expect};
use heeler_model::redact::SecretRedactor;
use heeler_model::run::QuestionAnswer;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;

use super::{FleetToolAccess, InjectedMcpServers, ToolChannels, ToolNote, ToolQuestion};

/// What no file may hold.
pub(super) const SECRET: &str = "correct horse battery";

/// A working directory and a folder for files, which live as long as this.
pub(super) struct McpFixture {
    temp: tempfile::TempDir,
}

impl McpFixture {
    pub(super) fn new() -> McpFixture {
        let place = McpFixture { temp: tempfile::tempdir().unwrap() };
        std::fs::create_dir(place.work()).unwrap();
        place
    }

    pub(super) fn root(&self) -> Utf8PathBuf {
        Utf8Path::from_path(self.temp.path()).unwrap().canonicalize_utf8().unwrap()
    }

    pub(super) fn work(&self) -> Utf8PathBuf {
        self.root().join("work")
    }

    pub(super) fn sent(&self) -> Utf8PathBuf {
        self.root().join("state/sent")
    }

    pub(super) fn injected(&self) -> (InjectedMcpServers, mpsc::Receiver<ToolNote>) {
        let (injected, from_tools) = self.injected_with_all();
        (injected, from_tools.notes)
    }

    fn injected_with_all(&self) -> (InjectedMcpServers, ToolChannels) {
        let secrets = SecretRedactor::new(&[SECRET.to_owned()]);
        let access = FleetToolAccess { client: None, may_start_jobs: true };
        InjectedMcpServers::new(&self.work(), Some(&self.sent()), &secrets, access)
    }
}

/// The first message of `samples/45_control_sdk_mcp`.
pub(super) fn initialize() -> Json {
    json!({
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {
                "name": "claude-code",
                "title": "Claude Code",
                "description": "Anthropic's agentic coding tool",
                "websiteUrl": "https://claude.com/claude-code",
                "version": "2.1.325",
            },
        },
        "jsonrpc": "2.0",
        "id": 0,
    })
}

/// The probe for the protocol without sessions.
pub(super) fn discover() -> Json {
    json!({
        "jsonrpc": "2.0",
        "id": "probe",
        "method": "server/discover",
        "params": { "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "claude-code", "version": "2.1.325" },
            "io.modelcontextprotocol/clientCapabilities": {},
        } },
    })
}

pub(super) fn call(id: u64, tool: &str, arguments: Json) -> Json {
    let meta = json!({ "claudecode/toolUseId": "toolu_1", "progressToken": id });
    let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
    json!({ "method": "tools/call", "params": params, "jsonrpc": "2.0", "id": id })
}

/// Returns what a tool said, and whether it failed.
pub(super) fn said(reply: &Json) -> (String, bool) {
    let result = &reply["result"];
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{reply}"));
    (text.to_owned(), result["isError"].as_bool().unwrap())
}

async fn check(message: Json, expected: Expect) {
    let place = McpFixture::new();
    let (injected, _notes) = place.injected();
    let reply = injected.handle("heeler", message).await;
    expected.assert_eq(&format!("{reply:#}"));
}

#[tokio::test]
async fn claude_is_welcomed_with_its_own_version() {
    check(
        initialize(),
        expect![[r#"
        {
          "jsonrpc": "2.0",
          "id": 0,
          "result": {
            "protocolVersion": "2025-11-25",
            "capabilities": {
              "tools": {}
            },
            "serverInfo": {
              "name": "heeler",
              "version": "0.1.0"
            }
          }
        }"#]],
    )
    .await;
}

#[tokio::test]
async fn the_probe_for_the_protocol_without_sessions_is_answered() {
    check(
        discover(),
        expect![[r#"
        {
          "jsonrpc": "2.0",
          "id": "probe",
          "result": {
            "resultType": "complete",
            "supportedVersions": [
              "2024-11-05",
              "2025-03-26",
              "2025-06-18",
              "2025-11-25",
              "2026-07-28"
            ],
            "capabilities": {
              "tools": {}
            },
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {
              "io.modelcontextprotocol/serverInfo": {
                "name": "heeler",
                "version": "0.1.0"
              }
            }
          }
        }"#]],
    )
    .await;
}

#[tokio::test]
async fn a_ping_is_answered_and_a_notification_acknowledged() {
    check(
        json!({ "jsonrpc": "2.0", "id": 7, "method": "ping" }),
        expect![[r#"
        {
          "jsonrpc": "2.0",
          "id": 7,
          "result": {}
        }"#]],
    )
    .await;
    check(
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        expect![[r#"
        {
          "jsonrpc": "2.0",
          "result": {}
        }"#]],
    )
    .await;
}

#[tokio::test]
async fn an_unknown_method_an_unknown_tool_and_nonsense_are_refused() {
    check(
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/steal" }),
        expect![[r#"
        {
          "jsonrpc": "2.0",
          "id": 1,
          "error": {
            "code": -32601,
            "message": "tools/steal"
          }
        }"#]],
    )
    .await;
    check(
        call(2, "add", json!({})),
        expect![[r#"
        {
          "jsonrpc": "2.0",
          "id": 2,
          "error": {
            "code": -32602,
            "message": "the server `heeler` has no tool `add`"
          }
        }"#]],
    )
    .await;
    check(
        json!({ "jsonrpc": "1.0", "id": 3, "method": "ping" }),
        expect![[r#"
        {
          "jsonrpc": "2.0",
          "id": 3,
          "error": {
            "code": -32600,
            "message": "unrecognized JSON-RPC message"
          }
        }"#]],
    )
    .await;
    check(
        json!(["not", "a", "message"]),
        expect![[r#"
        {
          "jsonrpc": "2.0",
          "id": null,
          "error": {
            "code": -32600,
            "message": "unrecognized JSON-RPC message"
          }
        }"#]],
    )
    .await;
    check(
        json!({ "jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": { "name": 5 } }),
        expect![[r#"
        {
          "jsonrpc": "2.0",
          "id": 4,
          "error": {
            "code": -32601,
            "message": "tools/call"
          }
        }"#]],
    )
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let place = McpFixture::new();
    let (injected, _notes) = InjectedMcpServers::new(
        &place.work(),
        None,
        &SecretRedactor::new(&[]),
        FleetToolAccess::default(),
    );
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let reply = injected.handle("heeler-files", message).await;
    expect![[r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"there is no server `heeler-files` in this run"}}"#]].assert_eq(&reply.to_string());
}

#[tokio::test]
async fn the_tools_are_listed_with_their_inputs() {
    let place = McpFixture::new();
    let (injected, _notes) = place.injected();
    let mut text = String::new();
    for server in injected.names() {
        let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
        let reply = injected.handle(server, list).await;
        for tool in reply["result"]["tools"].as_array().unwrap() {
            let (name, about) = (tool["name"].as_str().unwrap(), &tool["description"]);
            text += &format!("{server} {name} {about}\n{}\n", tool["inputSchema"]);
        }
    }
    expect![[r#"
        heeler-files send_file "Send a file of the working directory to the people who follow this job: a report, an image, an archive. They get a copy of its current content."
        {"$schema":"https://json-schema.org/draft/2020-12/schema","required":["file_path"],"type":"object","properties":{"file_path":{"description":"Path of the file, inside the working directory","type":"string"},"message":{"description":"Message to send with the file","type":["string","null"]},"filename":{"description":"Name to give the file; default: its own name","type":["string","null"]}},"additionalProperties":false}
        heeler report_progress "Report your progress to the people who follow this job. Returns at once."
        {"$schema":"https://json-schema.org/draft/2020-12/schema","required":["message"],"type":"object","properties":{"message":{"description":"Work done and next step, in one sentence","type":"string"},"percent":{"description":"Percentage of the work that is done, from 0 to 100","type":["number","null"],"format":"double","minimum":0,"maximum":100}},"additionalProperties":false}
        heeler ask_human "Ask a person and wait for the answer. Use it only when you cannot continue without it."
        {"$schema":"https://json-schema.org/draft/2020-12/schema","required":["question"],"type":"object","properties":{"question":{"description":"The question, with all the context a person needs to answer it","type":"string"},"options":{"description":"Answers to choose from, if there are only a few","type":"array","items":{"type":"string"},"default":[]}},"additionalProperties":false}
        heeler spawn_worker "Start another agent of this fleet on a task, in a session of its own. Returns the worker's name and its job at once, without waiting for the result."
        {"$schema":"https://json-schema.org/draft/2020-12/schema","required":["agent","task"],"type":"object","properties":{"agent":{"description":"Agent of this fleet that does the task","type":"string"},"task":{"description":"The task, with everything the worker needs to know: it does not see this conversation","type":"string"},"name":{"description":"Name for the worker; default: the agent's name with a number","type":["string","null"]},"model":{"description":"Model to use instead of the agent's own","type":["string","null"]}},"additionalProperties":false}
        heeler list_workers "List the workers of this conversation, with the task, state and cost of each."
        {"$schema":"https://json-schema.org/draft/2020-12/schema","additionalProperties":false,"type":"object"}
        heeler message_worker "Send a message to a worker. A working one gets it at once; an idle one continues in its session."
        {"$schema":"https://json-schema.org/draft/2020-12/schema","required":["name","message"],"type":"object","properties":{"name":{"description":"Name of the worker","type":"string"},"message":{"description":"Message for the worker","type":"string"}},"additionalProperties":false}
        heeler wait_for_worker "Wait until workers are done, and return the last message of each. After the timeout it lists those still working; wait again, or continue."
        {"$schema":"https://json-schema.org/draft/2020-12/schema","additionalProperties":false,"type":"object","properties":{"names":{"description":"Names of the workers to wait for; default: all","type":"array","items":{"type":"string"},"default":[]},"timeout_seconds":{"description":"Maximum wait in seconds; default 600, at most 3600","type":["integer","null"],"format":"uint64","minimum":0}}}
        heeler stop_worker "Stop a worker's current job. It can be messaged again later."
        {"$schema":"https://json-schema.org/draft/2020-12/schema","required":["name"],"type":"object","properties":{"name":{"description":"Name of the worker","type":"string"}},"additionalProperties":false}
        heeler start_job "Start a job of another agent of this fleet, in that agent's usual session. Returns its id."
        {"$schema":"https://json-schema.org/draft/2020-12/schema","required":["agent","prompt"],"type":"object","properties":{"agent":{"description":"Agent of this fleet that does the job","type":"string"},"prompt":{"description":"Prompt of the job","type":"string"}},"additionalProperties":false}
        heeler add_tasks "Add tasks to the list of this conversation, which the person sees and can have worked through."
        {"$schema":"https://json-schema.org/draft/2020-12/schema","required":["tasks"],"type":"object","properties":{"tasks":{"description":"Texts of the tasks, in the order in which to do them","type":"array","items":{"type":"string"}}},"additionalProperties":false}
        heeler list_tasks "List the tasks of this conversation by their numbers."
        {"$schema":"https://json-schema.org/draft/2020-12/schema","additionalProperties":false,"type":"object"}
        heeler finish_task "Mark a task of this conversation as done."
        {"$schema":"https://json-schema.org/draft/2020-12/schema","required":["number"],"type":"object","properties":{"number":{"description":"Number of the task on the list, from 1","type":"integer","format":"uint","minimum":0}},"additionalProperties":false}
    "#]].assert_eq(&text);
}

#[tokio::test]
async fn progress_becomes_a_note() {
    let place = McpFixture::new();
    let (injected, mut notes) = place.injected();
    let message = call(1, "report_progress", json!({ "message": "half way", "percent": 49.6 }));
    assert_eq!(said(&injected.handle("heeler", message).await), ("recorded".to_owned(), false));
    let note = notes.try_recv().unwrap();
    assert_eq!(note, ToolNote::Progress { message: "half way".to_owned(), percent: Some(50) });
    assert_eq!((note.subtype(), note.content()), ("progress", "50 %: half way".to_owned()));
}

#[tokio::test]
async fn a_tool_says_what_is_wrong_with_its_input() {
    let place = McpFixture::new();
    let (injected, mut notes) = place.injected();
    let long = "x".repeat(4 * 1024 + 1);
    for (tool, input, reason) in [
        ("report_progress", json!({}), "invalid input for this tool: missing field `message`"),
        (
            "report_progress",
            json!({ "message": "m", "percent": 101 }),
            "`percent` is 101; it must be from 0 to 100",
        ),
        (
            "report_progress",
            json!({ "message": long }),
            "the message has 4097 bytes; at most 4096 are taken: shorten it",
        ),
        ("ask_human", json!({ "q": 1 }), "unknown field `q`"),
        ("start_job", json!({ "agent": "a" }), "missing field `prompt`"),
    ] {
        let (text, failed) = said(&injected.handle("heeler", call(1, tool, input)).await);
        assert!(failed && text.contains(reason), "{text}");
    }
    assert!(notes.try_recv().is_err());
}

/// Asks a person who answers so; nothing comes where the question is dropped.
async fn ask(answer: Option<QuestionAnswer>) -> (String, bool) {
    let place = McpFixture::new();
    let (injected, mut from_tools) = place.injected_with_all();
    let ask = call(1, "ask_human", json!({ "question": "Which?", "options": ["A", "B"] }));
    let person = async {
        let ToolQuestion { input, reply, .. } = from_tools.questions.recv().await.unwrap();
        let option = |label: &str| json!({"label": label, "description": ""});
        let asked = &input["questions"][0];
        assert_eq!((&asked["question"], &asked["multiSelect"]), (&json!("Which?"), &json!(false)));
        assert_eq!(asked["options"], json!([option("A"), option("B")]));
        if let Some(answer) = answer {
            reply.send(answer).unwrap();
        }
    };
    let (reply, ()) = tokio::join!(injected.handle("heeler", ask), person);
    said(&reply)
}

#[tokio::test]
async fn a_person_is_asked_and_the_answer_is_told() {
    let input = json!({"answers": {"Which?": "B, but later"}});
    let answered = ask(Some(QuestionAnswer::Allow { input: Some(input) })).await;
    assert_eq!(answered, ("B, but later".to_owned(), false));
    let left = ask(Some(QuestionAnswer::Allow { input: None })).await;
    assert_eq!(left, ("the person left it to you".to_owned(), false));
    let message = "nobody answered in time".to_owned();
    let (text, failed) = ask(Some(QuestionAnswer::Deny { message, interrupt: false })).await;
    assert!(failed);
    expect!["there is no answer: nobody answered in time; go on without it if you can, and say in your answer what is left open"].assert_eq(&text);
    let (text, failed) = ask(None).await;
    assert!(
        failed && text.starts_with("the run is ending, so the question is not asked"),
        "{text}"
    );
}

#[tokio::test]
async fn a_tool_of_an_ended_run_fails() {
    let place = McpFixture::new();
    let (injected, notes) = place.injected();
    drop(notes);
    let message = call(1, "report_progress", json!({ "message": "done" }));
    let ending = ("the run is ending and records nothing more".to_owned(), true);
    assert_eq!(said(&injected.handle("heeler", message).await), ending);
}

#[tokio::test]
async fn calls_overlap_and_wait_for_a_slow_loop() {
    let place = McpFixture::new();
    let (injected, mut notes) = place.injected();
    let mut calls = tokio::task::JoinSet::new();
    for id in 0..100 {
        let injected = injected.clone();
        let message = call(id, "report_progress", json!({ "message": id.to_string() }));
        calls.spawn(async move { (id, injected.handle("heeler", message).await) });
    }
    let mut seen = Vec::new();
    for _ in 0..100 {
        let ToolNote::Progress { message, .. } = notes.recv().await.unwrap() else { panic!() };
        seen.push(message.parse::<u64>().unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    while let Some(answered) = calls.join_next().await {
        let (id, reply) = answered.unwrap();
        assert_eq!((reply["id"].as_u64(), said(&reply).1), (Some(id), false));
    }
}

#[test]
fn only_the_file_sender_may_take_long() {
    let place = McpFixture::new();
    let both = place.injected().0;
    assert_eq!(both.names().collect::<Vec<_>>(), ["heeler-files", "heeler"]);
    assert!(super::has_long_running(&both));
    let fleet = InjectedMcpServers::new(
        &place.work(),
        None,
        &SecretRedactor::new(&[]),
        FleetToolAccess::default(),
    )
    .0;
    assert_eq!(fleet.names().collect::<Vec<_>>(), ["heeler"]);
    assert!(!super::has_long_running(&fleet));
}

#[tokio::test]
async fn an_agent_that_may_start_no_jobs_has_no_tools_for_it() {
    let place = McpFixture::new();
    let (nothing, access) = (SecretRedactor::new(&[]), FleetToolAccess::default());
    let (fleet, _channels) = InjectedMcpServers::new(&place.work(), None, &nothing, access);
    let list = json!({ "method": "tools/list", "jsonrpc": "2.0", "id": 1 });
    let listed = fleet.handle("heeler", list).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["report_progress", "ask_human", "add_tasks", "list_tasks", "finish_task"]);
    let (said, failed) = said(
        &fleet
            .handle("heeler", call(2, "spawn_worker", json!({ "agent": "a", "task": "t" })))
            .await,
    );
    assert!(failed && said.contains("`spawn.agents`"), "{said}");
}
