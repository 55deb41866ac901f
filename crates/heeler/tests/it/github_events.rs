//! Events of GitHub that start workflows.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use heeler_engine::{DaemonCommand, ScheduleChange, StopMode};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_store::{WorkflowRunFilter, WorkflowRunHead};
use serde_json::{Value, json};

use crate::daemon_kills::Herd;
use crate::live::socket;
use crate::trigger::wait_for;

const CONFIG: &str = "github: {bot: heeler-bot}
agents:
  - name: coder
    runtime: scripted
    script: [{say: hi}]
    schedules:
      triage: {type: webhook, events: [issues.opened, issue_comment.created], workflow: triage}
      asked: {type: webhook, events: [issue_comment], mention: heeler-bot, workflow: gated}
      deploy: {type: webhook, workflow: triage, fields: {issueTitle: service}}
";

fn herd() -> Herd {
    let herd = Herd::of(CONFIG);
    let note = "printf '%s\\n' {{ issueTitle }} >> ran";
    herd.fleet.write(
        "workflows/triage.yaml",
        &format!("name: triage\nphases:\n  - {{name: note, type: bash, command: \"{note}\"}}\n"),
    );
    herd.fleet.write(
        "workflows/gated.yaml",
        "name: gated\ninputs: {sender: {}, issueNumber: {type: number}}\nphases:\n  \
         - {name: ask, type: context, approval_gate: go}\n",
    );
    herd
}

/// Sends an event to one schedule; what is replied, if the daemon lives that long.
pub(crate) fn send(herd: &Herd, path: &str, headers: &str, body: &Value) -> Option<(u16, Value)> {
    let mut stream = UnixStream::connect(socket(herd)).ok()?;
    let body = body.to_string();
    write!(
        stream,
        "POST {path} HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\n{headers}\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some((code, serde_json::from_str(body).ok()?))
}

fn event(herd: &Herd, schedule: &str, event: &str, body: &Value) -> (u16, Value) {
    let headers = format!("x-github-event: {event}\r\n");
    send(herd, &format!("/hooks/coder/{schedule}"), &headers, body).expect("nothing ends it")
}

fn issue(number: u64, title: &str) -> Value {
    json!({
        "action": "opened",
        "repository": {"full_name": "acme/app"},
        "issue": {
            "number": number, "title": title, "body": "It breaks.", "labels": [{"name": "bug"}],
            "user": {"login": "ann"}, "author_association": "MEMBER",
        },
        "sender": {"login": "ann", "type": "User"},
    })
}

fn comment(number: u64, text: &str) -> Value {
    let mut body = issue(number, "Login");
    body["action"] = json!("created");
    body["comment"] =
        json!({"id": 1, "body": text, "user": {"login": "ann"}, "author_association": "OWNER"});
    body
}

fn runs(herd: &Herd) -> Vec<WorkflowRunHead> {
    herd.reader().workflow_runs(&WorkflowRunFilter::default(), None, 100).unwrap()
}

fn wait_for_end(herd: &Herd, run: &Value) {
    let id = run.as_str().unwrap().parse().unwrap();
    wait_for("the end of the run", || {
        let row = herd.reader().workflow_run(&id).unwrap().unwrap();
        (row.head.status == WorkflowRunStatus::Succeeded).then_some(())
    });
}

fn output(herd: &Herd, args: &[&str]) -> String {
    let output = herd.command("workflow").args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_event_starts_a_workflow_that_is_found_by_its_subject() {
    let herd = herd();
    let (mut life, mut client) = herd.begin(&[]);
    let title = "it's $(touch pwned) {{ sender }}";
    let (code, reply) = event(&herd, "triage", "issues", &issue(7, title));
    assert_eq!(code, 202, "{reply}");
    wait_for_end(&herd, &reply["run"]);
    let ran = std::fs::read_to_string(herd.fleet.file("ran")).unwrap();
    assert_eq!(ran, format!("{title}\n"), "a title is a value, and nothing else");
    assert!(!herd.fleet.file("pwned").exists());

    let id = reply["run"].as_str().unwrap().parse().unwrap();
    let row = herd.reader().workflow_run(&id).unwrap().unwrap();
    assert_eq!(row.head.trigger_id, "acme/app#7");
    assert_eq!(row.head.trigger_type.as_deref(), Some("webhook"));
    assert_eq!((row.head.owner.as_deref(), row.head.repo.as_deref()), (Some("acme"), Some("app")));
    assert_eq!(row.head.issue_number, Some(7));
    assert_eq!(row.triggered_by.as_deref(), Some("ann"));
    assert_eq!(row.trigger_actor_type.as_deref(), Some("github"));
    assert_eq!(row.context["issueLabels"], json!(["bug"]));

    // One without a subject on GitHub, so that the filters have something to leave out.
    let (code, other) = send(&herd, "/hooks/coder/deploy", "", &json!({"service": "api"})).unwrap();
    assert_eq!(code, 202, "{other}");
    wait_for_end(&herd, &other["run"]);
    for filter in [["--repo", "acme/app"], ["--trigger-id", "acme/app#7"]] {
        let found: Value =
            serde_json::from_str(&output(&herd, &["runs", filter[0], filter[1], "--json"]))
                .unwrap();
        assert_eq!(found["total"], 1, "{filter:?}: {found}");
        assert_eq!(found["runs"][0]["id"], reply["run"], "{filter:?}");
        assert_eq!(found["runs"][0]["repo"], "acme/app");
    }
    let none = output(&herd, &["runs", "--repo", "acme/other"]);
    assert_eq!(none.trim(), "no runs match");
    let shown = output(&herd, &["show", reply["run"].as_str().unwrap()]);
    assert!(shown.contains("acme/app#7"), "{shown}");
    assert!(shown.contains("by ann on GitHub"), "{shown}");
    client.send_command(&DaemonCommand::Stop(StopMode::Wait { timeout: None }), None).unwrap();
    life.ended();
}

/// Events of each kind with the trigger ID, branch and pull request that their run shows.
fn events_of_all_kinds() -> Vec<(&'static str, Value, &'static str, Value, Value)> {
    let about = |key: &str, number: u64| {
        let mut body = issue(number, "Login");
        let text = body.as_object_mut().unwrap().remove("issue").unwrap();
        body[key] = text;
        body
    };
    let pull_request = |number: u64| {
        let mut body = about("pull_request", number);
        body["pull_request"]["head"] = json!({"ref": "fix", "sha": "0a1b"});
        body
    };
    let commented = |key: &str, number: u64| {
        let mut body = pull_request(number);
        body[key] = json!({"id": 1, "body": "Why?", "author_association": "OWNER"});
        body
    };
    let checked = |key: &str, number: u64| {
        json!({
            "action": "completed",
            "repository": {"full_name": "acme/app"},
            key: {"head_sha": "0a1b", "head_branch": "fix", "pull_requests": [{"number": number}]},
            "sender": {"login": "ann", "type": "User"},
        })
    };
    let push = json!({
        "ref": "refs/heads/main", "after": "0a1b", "repository": {"full_name": "acme/app"},
        "sender": {"login": "ann"},
    });
    let dispatch = json!({
        "action": "nightly", "branch": "main", "repository": {"full_name": "acme/tools"},
        "sender": {"login": "ann"},
    });
    let none = Value::Null;
    vec![
        ("issues", issue(1, "Login"), "acme/app#1", none.clone(), none.clone()),
        ("issue_comment", comment(2, "Why?"), "acme/app#2", none.clone(), none.clone()),
        ("pull_request", pull_request(3), "acme/app#3", json!("fix"), json!(3)),
        ("pull_request_review", commented("review", 4), "acme/app#4", json!("fix"), json!(4)),
        (
            "pull_request_review_comment",
            commented("comment", 5),
            "acme/app#5",
            json!("fix"),
            json!(5),
        ),
        ("check_suite", checked("check_suite", 6), "acme/app#6", json!("fix"), json!(6)),
        ("check_run", checked("check_run", 7), "acme/app#7", none.clone(), json!(7)),
        ("push", push, "acme/app::note", json!("main"), none.clone()),
        ("repository_dispatch", dispatch, "acme/tools::note", none.clone(), none),
    ]
}

#[test]
fn events_of_all_kinds_start_a_workflow_with_their_subject() {
    let schedule = "every: {type: webhook, associations: [ANY], workflow: note}";
    let herd =
        Herd::of(&CONFIG.replace("schedules:\n", &format!("schedules:\n      {schedule}\n")));
    for name in ["note", "triage", "gated"] {
        herd.fleet.write(
            &format!("workflows/{name}.yaml"),
            &format!("name: {name}\nphases:\n  - {{name: note, type: bash, command: 'true'}}\n"),
        );
    }
    let (_life, _client) = herd.begin(&[]);
    for (name, body, trigger_id, branch, pull_request) in events_of_all_kinds() {
        let (code, reply) = event(&herd, "every", name, &body);
        assert_eq!(code, 202, "{name}: {reply}");
        wait_for_end(&herd, &reply["run"]);
        let id = reply["run"].as_str().unwrap().parse().unwrap();
        let row = herd.reader().workflow_run(&id).unwrap().unwrap();
        assert_eq!(row.head.trigger_id, trigger_id, "{name}");
        assert_eq!(row.triggered_by.as_deref(), Some("ann"), "{name}");
        assert_eq!(row.context["event"], name);
        assert_eq!(row.context["branch"], branch, "{name}: {}", row.context);
        assert_eq!(row.context["prNumber"], pull_request, "{name}: {}", row.context);
    }
}

#[test]
fn one_run_of_a_workflow_is_active_for_an_issue() {
    let herd = herd();
    let (_life, mut client) = herd.begin(&[]);
    let asked = comment(7, "@heeler-bot please");
    let (code, first) = event(&herd, "asked", "issue_comment", &asked);
    assert_eq!(code, 202, "{first}");
    let (code, second) = event(&herd, "asked", "issue_comment", &comment(7, "@heeler-bot now!"));
    assert_eq!((code, &second["run"]), (200, &first["run"]), "{second}");
    assert_eq!(second["duplicate"], true);
    let skips = herd.reader().skips("coder", "asked", None, 9).unwrap();
    assert_eq!(skips[0].skip.reason.as_str(), "overlap", "it is on record");
    // Another issue has a run of its own, and so has another workflow.
    let (code, other) = event(&herd, "asked", "issue_comment", &comment(8, "@heeler-bot please"));
    assert_eq!(code, 202, "{other}");
    assert_ne!(other["run"], first["run"]);
    assert_eq!(event(&herd, "triage", "issue_comment", &asked).0, 202);

    // What is not for the bot starts nothing, nor does the bot itself.
    let (code, reply) = event(&herd, "asked", "issue_comment", &comment(9, "heeler-bot, please"));
    assert_eq!(code, 200);
    assert!(reply["ignored"].as_str().unwrap().contains("@heeler-bot"), "{reply}");
    let mut own = comment(9, "@heeler-bot again");
    own["sender"]["login"] = json!("heeler-bot");
    let (_, reply) = event(&herd, "asked", "issue_comment", &own);
    assert!(reply["ignored"].as_str().unwrap().contains("own account"), "{reply}");
    let mut stranger = comment(9, "@heeler-bot again");
    stranger["comment"]["author_association"] = json!("NONE");
    let (_, reply) = event(&herd, "asked", "issue_comment", &stranger);
    assert!(reply["ignored"].as_str().unwrap().contains("`associations`"), "{reply}");
    assert_eq!(runs(&herd).len(), 3);
    // Of the values of the event, a workflow gets those that it declares.
    let id = first["run"].as_str().unwrap().parse().unwrap();
    let row = herd.reader().workflow_run(&id).unwrap().unwrap();
    assert_eq!(row.context, json!({"sender": "ann", "issueNumber": 7}));

    // It is a schedule of the agent and not a cron file, so it is switched off as such.
    let (agent, schedule) = ("coder".to_owned(), "asked".to_owned());
    let (change, by) = (ScheduleChange::Disable, "ada".to_owned());
    client.send_command(&DaemonCommand::Schedule { agent, schedule, change, by }, None).unwrap();
    assert_eq!(herd.reader().cron_overrides().unwrap(), []);
    let late = comment(10, "@heeler-bot please");
    assert_eq!(event(&herd, "asked", "issue_comment", &late).0, 403);
    assert_eq!(runs(&herd).len(), 3);
}

#[test]
fn a_delivery_that_is_repeated_whenever_the_daemon_dies_starts_one_run() {
    let herd = herd();
    let headers = "x-github-event: issues\r\nx-github-delivery: d-1\r\n";
    let body = issue(7, "once");
    let mut replies = Vec::new();
    for point in ["before-commit", "after-commit"] {
        for nth in 1..=4 {
            let mut life = herd.start(&["--fault", &format!("{point}:{nth}")]);
            if herd.connect(&mut life).is_some() {
                replies.extend(send(&herd, "/hooks/github", headers, &body));
            }
            life.kill();
        }
    }
    let (mut life, mut client) = herd.begin(&[]);
    let (_, last) = send(&herd, "/hooks/github", headers, &body).expect("nothing ends it");
    let run = |reply: &Value| reply["schedules"][0]["run"].clone();
    wait_for_end(&herd, &run(&last));
    // Whoever was answered was answered with the same run.
    assert!(replies.iter().all(|(_, reply)| run(reply) == run(&last)), "{replies:?} and {last}");
    assert_eq!(runs(&herd).len(), 1);
    // The run has ended, so only the delivery tells that this is no new event.
    let (code, again) = send(&herd, "/hooks/github", headers, &body).unwrap();
    assert_eq!((code, run(&again)), (200, run(&last)), "{again}");
    let headers = headers.replace("d-1", "d-2");
    let (code, next) = send(&herd, "/hooks/github", &headers, &body).unwrap();
    assert_eq!(code, 202, "{next}");
    assert_ne!(run(&next), run(&last));
    client.send_command(&DaemonCommand::Stop(StopMode::Wait { timeout: None }), None).unwrap();
    life.ended();
}

#[test]
fn a_schedule_that_names_no_workflow_is_refused_at_its_place() {
    let herd = herd();
    let config = CONFIG.replace("mention: heeler-bot, workflow: gated", "workflow: gatet");
    herd.fleet.write("heeler.yaml", &config);
    let output = herd.command("config").arg("validate").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("there is no workflow `gatet`"), "{said}");
    assert!(said.contains("heeler.yaml:8:"), "{said}");
    assert!(said.contains("did you mean `gated`?"), "{said}");
    let config = CONFIG.replace("mention: heeler-bot", "fields: {colour: issue.title}");
    herd.fleet.write("heeler.yaml", &config);
    let output = herd.command("config").arg("validate").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the workflow `gated` has no input `colour`"), "{said}");
}

#[test]
fn the_word_after_the_mention_chooses_the_workflow() {
    let config = CONFIG.replace("workflow: gated}", "intents: true, workflow: gated}");
    let herd = Herd::of(&config);
    let flow = |name: &str, keys: &str| {
        let text = format!(
            "name: {name}\n{keys}phases:\n  - {{name: note, type: bash, command: 'echo {name} >> ran'}}\n"
        );
        herd.fleet.write(&format!("workflows/{name}.yaml"), &text);
    };
    flow("triage", "");
    flow("gated", "");
    flow(
        "test-it",
        "classification: {intent: qa-test, description: Test it, examples: [test this]}\n",
    );
    let (_life, _client) = herd.begin(&[]);
    let started = |number: u64, text: &str| {
        let (code, reply) = event(&herd, "asked", "issue_comment", &comment(number, text));
        assert_eq!(code, 202, "{reply}");
        wait_for_end(&herd, &reply["run"]);
        let id = reply["run"].as_str().unwrap().parse().unwrap();
        herd.reader().workflow_run(&id).unwrap().unwrap().head.workflow
    };
    assert_eq!(started(1, "@heeler-bot qa-test, please"), "test-it");
    assert_eq!(started(2, "@heeler-bot QAtest"), "test-it");
    assert_eq!(started(3, "@heeler-bot what is this? A qa-test?"), "gated", "another word");
    assert_eq!(started(4, "> @heeler-bot qa-test\n@heeler-bot no"), "gated", "a quoted word");
    // Without `intents`, the word has no effect.
    let (code, reply) = event(&herd, "triage", "issue_comment", &comment(5, "@heeler-bot qa-test"));
    assert_eq!(code, 202, "{reply}");
    wait_for_end(&herd, &reply["run"]);
    let id = reply["run"].as_str().unwrap().parse().unwrap();
    assert_eq!(herd.reader().workflow_run(&id).unwrap().unwrap().head.workflow, "triage");
    // Strangers choose nothing.
    let mut stranger = comment(6, "@heeler-bot qa-test");
    stranger["comment"]["author_association"] = json!("NONE");
    let (code, reply) = event(&herd, "asked", "issue_comment", &stranger);
    assert_eq!(runs(&herd).len(), 5, "{code} {reply}");
}
