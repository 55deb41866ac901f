//! Webhook deliveries of GitHub that no daemon received.

use heeler_engine::{DaemonCommand, StopMode};
use heeler_server::DaemonClient;
use heeler_store::{WorkflowRunFilter, WorkflowRunHead};
use heeler_testkit::FakeGithub;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::daemon_kills::{Herd, Life};
use crate::trigger::wait_for;

const TOKEN: &str = "github_pat_of_the_fleet";
const HOOK: &str = "https://heeler.example.com/hooks/github";

/// A fleet with a workflow that GitHub's events start.
fn herd(github: &FakeGithub, access: &str) -> Herd {
    let mut herd = Herd::of(&format!(
        "github: {{bot: heeler-user, {access}, api_url: '{}', repos: [acme/app]}}
web: {{origins: ['https://heeler.example.com']}}
webhooks: {{secret_env: HOOK_SECRET}}
agents:
  - name: coder
    runtime: scripted
    script: [{{say: hi}}]
    schedules:
      triage: {{type: webhook, events: [issues.opened, issue_comment.created], workflow: triage}}
",
        github.url()
    ));
    herd.env.push(("FLEET_TOKEN", TOKEN.into()));
    herd.env.push(("HOOK_SECRET", "a-secret-of-the-webhook".into()));
    herd.fleet.write(
        "workflows/triage.yaml",
        "name: triage\nphases:\n  - {name: note, type: bash, command: 'echo {{ issueTitle }} >> ran'}\n",
    );
    herd
}

fn issue(number: u64, association: &str) -> Value {
    json!({
        "action": "opened",
        "repository": {"full_name": "acme/app"},
        "issue": {
            "number": number, "title": format!("Title {number}"), "body": "", "labels": [],
            "user": {"login": "ann"}, "author_association": association,
        },
        "sender": {"login": "ann", "type": "User"},
    })
}

fn now() -> String {
    Timestamp::now().to_string()
}

fn stop(mut client: DaemonClient, mut life: Life) {
    client.send_command(&DaemonCommand::Stop(StopMode::Wait { timeout: None }), None).unwrap();
    assert!(!life.ended(), "it ended by itself");
}

fn runs(herd: &Herd) -> Vec<WorkflowRunHead> {
    herd.reader().workflow_runs(&WorkflowRunFilter::default(), None, 100).unwrap()
}

fn triggers(herd: &Herd) -> Vec<String> {
    let mut found: Vec<String> = runs(herd).into_iter().map(|run| run.trigger_id).collect();
    found.sort();
    found
}

/// Waits until a fetch that began after `earlier` is on record, and returns its mark.
fn wait_for_fetch(herd: &Herd, earlier: Option<&str>) -> String {
    wait_for("a recorded fetch", || {
        let until = herd.reader().meta("github deliveries until").unwrap()?;
        (Some(until.as_str()) != earlier).then_some(until)
    })
}

#[test]
fn events_that_no_daemon_received_are_fetched_at_the_next_start_and_handled_once() {
    let github = FakeGithub::start(TOKEN);
    github.set_hook("acme/app", HOOK);
    let herd = herd(&github, "token_env: FLEET_TOKEN");
    // A fleet that never listened has missed nothing.
    github.add_delivery("acme/app", "issues", &issue(1, "MEMBER"), &json!({"delivered_at": now()}));
    let (life, client) = herd.begin(&[]);
    let first = wait_for_fetch(&herd, None);
    stop(client, life);
    assert_eq!(triggers(&herd), [""; 0]);
    assert!(!github.calls().iter().any(|call| call.contains("/hooks")), "{:?}", github.calls());

    // The mark has a margin, within which the first delivery would count as missed too.
    github.set_hook("acme/app", HOOK);
    for (number, association, status) in
        [(2, "MEMBER", 502), (3, "NONE", 502), (4, "MEMBER", 202), (5, "MEMBER", 401)]
    {
        let fields = json!({"delivered_at": now(), "status_code": status});
        github.add_delivery("acme/app", "issues", &issue(number, association), &fields);
    }
    let old = json!({"delivered_at": "2026-01-01T00:00:00Z"});
    github.add_delivery("acme/app", "issues", &issue(6, "MEMBER"), &old);
    // A daemon that dies before the fetch is on record is followed by one that repeats it.
    let mut life = herd.start(&["--fault", "deliveries-handled:1"]);
    assert!(life.ended(), "it dies at the point");
    let (life, client) = herd.begin(&[]);
    let second = wait_for_fetch(&herd, Some(&first));
    stop(client, life);
    assert_eq!(triggers(&herd), ["acme/app#2"], "the rules hold for fetched events too");

    // The same event is delivered again, and missed again.
    let (life, client) = herd.begin(&[]);
    wait_for_fetch(&herd, Some(&second));
    stop(client, life);
    assert_eq!(triggers(&herd), ["acme/app#2"]);
}

#[test]
fn an_app_reads_the_deliveries_of_its_own_webhook_only() {
    let github = FakeGithub::start(TOKEN);
    github.set_hook("app", "https://other.example.com/hooks/github");
    let herd = herd(&github, "app: {id: 1, installation: 2, private_key_file: app.pem}");
    let key = include_str!("../../../heeler-github/tests/fixtures/test-app-pkcs1.pem");
    herd.fleet.write("app.pem", key);
    let (life, client) = herd.begin(&[]);
    let first = wait_for_fetch(&herd, None);
    stop(client, life);

    // The webhook delivers to another fleet.
    github.add_delivery("app", "issues", &issue(1, "OWNER"), &json!({"delivered_at": now()}));
    let (life, client) = herd.begin(&[]);
    let second = wait_for_fetch(&herd, Some(&first));
    stop(client, life);
    assert_eq!(triggers(&herd), [""; 0]);

    github.set_hook("app", HOOK);
    github.add_delivery("app", "issues", &issue(2, "OWNER"), &json!({"delivered_at": now()}));
    let foreign = json!({"delivered_at": now(), "installation_id": 3});
    github.add_delivery("app", "issues", &issue(3, "OWNER"), &foreign);
    let (life, client) = herd.begin(&[]);
    wait_for_fetch(&herd, Some(&second));
    stop(client, life);
    assert_eq!(triggers(&herd), ["acme/app#2"]);
}

#[test]
fn a_comment_that_starts_a_workflow_gets_a_reaction() {
    let github = FakeGithub::start(TOKEN);
    github.set_hook("acme/app", HOOK);
    let herd = herd(&github, "token_env: FLEET_TOKEN");
    let (life, client) = herd.begin(&[]);
    wait_for_fetch(&herd, None);
    stop(client, life);
    let comment = |id: u64, repo: &str| {
        let mut body = issue(id, "OWNER");
        body["action"] = json!("created");
        body["repository"]["full_name"] = json!(repo);
        let (user, association) = (json!({"login": "ann"}), "OWNER");
        body["comment"] =
            json!({"id": id, "body": "Go.", "user": user, "author_association": association});
        body
    };
    let fields = json!({"delivered_at": now()});
    github.add_delivery("acme/app", "issue_comment", &comment(41, "acme/app"), &fields);
    // Nothing is written to a repository that is not listed.
    github.add_delivery("acme/app", "issue_comment", &comment(42, "eve/app"), &fields);
    let (life, client) = herd.begin(&[]);
    wait_for("the reaction", || (!github.reactions().is_empty()).then_some(()));
    wait_for("the second run", || (runs(&herd).len() == 2).then_some(()));
    stop(client, life);
    assert_eq!(github.reactions(), [(41, "eyes".to_owned())]);
}
