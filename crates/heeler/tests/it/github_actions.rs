//! Work on GitHub: crons that search it, messages that are posted, and the check of the access.

use heeler_engine::{
    CommandReply, DaemonCommand, ScheduleChange, WorkflowOperation, WorkflowRunRequest,
};
use heeler_server::DaemonClient;
use heeler_store::{WorkflowRunFilter, WorkflowRunHead};
use heeler_testkit::{FakeGithub, GithubFailure};
use serde_json::{Value, json};

use crate::daemon_kills::Herd;
use crate::trigger::wait_for;

const TOKEN: &str = "github_pat_of_the_fleet";

fn herd(github: &FakeGithub) -> Herd {
    let mut herd = Herd::of(&format!(
        "github: {{bot: heeler-user, token_env: FLEET_TOKEN, api_url: '{}', repos: [acme/app, acme/web]}}
agents:
  - {{name: coder, runtime: scripted, script: [{{say: hi}}]}}
",
        github.url()
    ));
    herd.env.push(("FLEET_TOKEN", TOKEN.into()));
    let command = "echo {{ owner }}/{{ repo }} {{ prNumber }} {{ branch }} >> ran";
    herd.fleet.write(
        "workflows/merge.yaml",
        &format!("name: merge\nphases:\n  - {{name: note, type: bash, command: '{command}'}}\n"),
    );
    herd.fleet.write(
        "workflows/cron-merge.yaml",
        "kind: cron\nname: merge-green\nschedule: '0 3 * * *'\nworkflow: merge\n\
         context: {discover: green-dependency-prs}\n",
    );
    herd
}

fn add_green(github: &FakeGithub, repo: &str, number: u64, commit: &str) {
    let head = json!({"ref": format!("bump-{number}"), "sha": commit});
    let user = json!({"login": "dependabot[bot]", "type": "Bot"});
    github.add_pull_request(repo, number, json!({"user": user, "head": head}));
    let check = json!({"status": "completed", "conclusion": "success"});
    github.set_checks(repo, commit, &[check]);
}

fn trigger(schedule: &str) -> DaemonCommand {
    let (agent, schedule) = ("coder".to_owned(), schedule.to_owned());
    DaemonCommand::Schedule { agent, schedule, change: ScheduleChange::Trigger, by: "ada".into() }
}

/// Requests a search, and waits until its result is on record.
fn search(herd: &Herd, client: &mut DaemonClient) {
    let reply = client.send_command(&trigger("merge-green"), None).unwrap();
    assert!(matches!(reply, CommandReply::Done { .. }), "{reply:?}");
    wait_for_tasks(herd);
}

/// Waits until every task on GitHub that is on record has its result.
fn wait_for_tasks(herd: &Herd) {
    wait_for("the results of all tasks", || {
        let pending = herd.reader().pending_effects(99).unwrap();
        (!pending.iter().any(|it| it.kind.starts_with("github_"))).then_some(())
    });
}

fn runs(herd: &Herd) -> Vec<WorkflowRunHead> {
    herd.reader().workflow_runs(&WorkflowRunFilter::default(), None, 100).unwrap()
}

fn triggers(herd: &Herd) -> Vec<String> {
    let mut found: Vec<String> = runs(herd).into_iter().map(|run| run.trigger_id).collect();
    found.sort();
    found
}

fn wait_for_ends(herd: &Herd) {
    wait_for("the ends of all runs", || {
        runs(herd).iter().all(|run| run.status.is_final()).then_some(())
    });
}

#[test]
fn a_search_starts_one_run_for_each_new_commit() {
    let github = FakeGithub::start(TOKEN);
    add_green(&github, "acme/app", 1, "a1");
    add_green(&github, "acme/web", 2, "w1");
    github.add_pull_request("acme/app", 3, json!({"title": "A feature"}));
    let herd = herd(&github);
    let (_life, mut client) = herd.begin(&[]);
    search(&herd, &mut client);
    assert_eq!(triggers(&herd), ["acme/app#1", "acme/web#2"]);
    wait_for_ends(&herd);
    let ran = std::fs::read_to_string(herd.fleet.file("ran")).unwrap();
    let mut ran: Vec<&str> = ran.lines().collect();
    ran.sort_unstable();
    assert_eq!(ran, ["acme/app 1 bump-1", "acme/web 2 bump-2"]);
    let run = &runs(&herd)[0];
    assert_eq!(run.trigger_type.as_deref(), Some("cron"));
    assert!(run.issue_number.is_some() && run.repo.is_some());

    // The same commits are not assessed again; a new one is.
    search(&herd, &mut client);
    assert_eq!(runs(&herd).len(), 2);
    let skips = herd.reader().skips("coder", "merge-green", None, 9).unwrap();
    assert_eq!(skips[0].skip.reason.as_str(), "nothing_found");
    add_green(&github, "acme/app", 1, "a2");
    // A repository that cannot be read does not keep the others from being searched.
    github.fail_next(GithubFailure {
        call: "GET /repos/acme/web/pulls",
        status: 404,
        headers: Vec::new(),
        body: json!({"message": "Not Found"}),
        is_executed: false,
    });
    search(&herd, &mut client);
    assert_eq!(triggers(&herd), ["acme/app#1", "acme/app#1", "acme/web#2"]);
    wait_for_ends(&herd);
    search(&herd, &mut client);
    assert_eq!(runs(&herd).len(), 3, "what was seen before the failure is still known");
}

#[test]
fn a_search_that_a_daemon_did_not_finish_is_repeated_by_the_next() {
    let github = FakeGithub::start(TOKEN);
    add_green(&github, "acme/app", 1, "a1");
    let herd = herd(&github);
    // The result has arrived, but nothing of it is on record.
    let (mut life, mut client) = herd.begin(&["--fault", "github-acted:1"]);
    // The daemon may be dead before it replies.
    drop(client.send_command(&trigger("merge-green"), None));
    assert!(life.ended(), "it is killed at the fault point");
    assert_eq!(runs(&herd).len(), 0);
    let (mut life, _client) = herd.begin(&[]);
    wait_for_tasks(&herd);
    assert_eq!(triggers(&herd), ["acme/app#1"]);
    wait_for_ends(&herd);
    life.kill();
    // The result is on record, so a third daemon does not search on its own.
    let calls = github.calls().len();
    let (_life, _client) = herd.begin(&[]);
    wait_for_tasks(&herd);
    assert_eq!((triggers(&herd), github.calls().len()), (vec!["acme/app#1".to_owned()], calls));
}

#[test]
fn a_cron_starts_one_run_for_each_repository() {
    let github = FakeGithub::start(TOKEN);
    let herd = herd(&github);
    herd.fleet.write(
        "workflows/cron-health.yaml",
        "kind: cron\nname: health\nschedule: '0 9 * * 1'\nworkflow: merge\n",
    );
    let (_life, mut client) = herd.begin(&[]);
    client.send_command(&trigger("health"), None).unwrap();
    assert_eq!(triggers(&herd), ["acme/app::merge", "acme/web::merge"]);
    wait_for_ends(&herd);
    let ran = std::fs::read_to_string(herd.fleet.file("ran")).unwrap();
    let mut ran: Vec<&str> = ran.lines().map(str::trim).collect();
    ran.sort_unstable();
    assert_eq!(ran, ["acme/app", "acme/web"]);
    assert_eq!(github.calls().len(), 0, "no search is needed");
}

#[test]
fn a_search_without_access_to_github_is_refused_with_the_reason() {
    let github = FakeGithub::start(TOKEN);
    let herd = herd(&github);
    herd.fleet.write(
        "heeler.yaml",
        "agents:\n  - {name: coder, runtime: scripted, script: [{say: hi}]}\n",
    );
    let output = herd.command("config").arg("validate").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("`discover: green-dependency-prs` needs access to GitHub"), "{said}");
    assert!(said.contains("set `github` in the fleet file"), "{said}");
}

fn add_talking_workflow(herd: &Herd) {
    herd.fleet.write(
        "workflows/talk.yaml",
        "name: talk\nphases:\n  - name: note\n    type: bash\n    command: echo fine\n    messages: \
         {on_start: 'Looking at it.', on_success: 'Done: {{ note }} <!-- heeler:00 -->'}\n",
    );
}

fn talk(client: &mut DaemonClient, number: u64) {
    start(client, "talk", json!({"repo": "acme/app", "issueNumber": number}));
}

/// Starts a workflow. The daemon may be dead before it replies.
fn start(client: &mut DaemonClient, workflow: &str, inputs: Value) {
    let Value::Object(inputs) = inputs else { unreachable!("it is a map") };
    let request = WorkflowRunRequest { inputs, ..WorkflowRunRequest::manual_run(workflow) };
    let order = WorkflowOperation::Run(request);
    drop(client.send_command(&DaemonCommand::Workflow { order, by: "ada".to_owned() }, None));
}

fn bodies(github: &FakeGithub, number: u64) -> Vec<String> {
    let comments = github.comments("acme/app", number);
    comments.iter().map(|it| it["body"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn messages_are_posted_once_even_if_the_response_or_the_daemon_is_lost() {
    let github = FakeGithub::start(TOKEN);
    for number in [7, 8] {
        github.add_issue("acme/app", number, json!({}));
    }
    let herd = herd(&github);
    add_talking_workflow(&herd);
    // The first post is executed, then the daemon dies before that is on record.
    let (mut life, mut client) = herd.begin(&["--fault", "github-acted:1"]);
    talk(&mut client, 7);
    assert!(life.ended(), "it is killed at the fault point");
    assert_eq!(bodies(&github, 7).len(), 1);
    let (_life, mut client) = herd.begin(&[]);
    wait_for("two comments", || (bodies(&github, 7).len() >= 2).then_some(()));
    wait_for_ends(&herd);
    wait_for_tasks(&herd);
    let posted = bodies(&github, 7);
    assert_eq!(posted.len(), 2, "{posted:?}");
    assert!(posted[0].starts_with("Looking at it."), "{posted:?}");
    assert!(posted[1].starts_with("Done: fine"), "{posted:?}");
    assert_eq!(posted[1].matches("<!-- heeler:").count(), 1, "an output contains no mark");

    // GitHub executes a call, but its response is lost.
    github.fail_next(GithubFailure {
        call: "POST /repos/acme/app/issues/8/comments",
        status: 502,
        headers: Vec::new(),
        body: json!({"message": "Bad Gateway"}),
        is_executed: true,
    });
    talk(&mut client, 8);
    wait_for("two comments", || (bodies(&github, 8).len() >= 2).then_some(()));
    wait_for_ends(&herd);
    wait_for_tasks(&herd);
    let posted = bodies(&github, 8);
    assert_eq!(posted.len(), 2, "{posted:?}");
    assert!(posted[0].starts_with("Looking at it."), "they are in order: {posted:?}");
}

#[test]
fn a_checklist_is_one_comment_that_is_edited_even_if_the_daemon_is_lost() {
    let github = FakeGithub::start(TOKEN);
    github.add_issue("acme/app", 7, json!({}));
    let herd = herd(&github);
    herd.fleet.write(
        "workflows/list.yaml",
        "name: list\nstatus_checklist: true\nfinal_message: All done.\nphases:\n  \
         - {name: start, type: context}\n  \
         - {name: look, type: bash, command: echo fine, label: Look at it,\n     messages: \
         {on_start: Looking., on_success: 'Saw {{ look }} <!-- heeler:00 -->'}}\n  \
         - {name: later, type: bash, command: echo no, skip_if: \"1 == 1\"}\n  \
         - {name: last, type: bash, command: echo yes, trigger_rule: all_done}\n",
    );
    // The comment is made, then the daemon dies before that is on record.
    let (mut life, mut client) = herd.begin(&["--fault", "github-acted:1"]);
    start(&mut client, "list", json!({"repo": "acme/app", "issueNumber": 7}));
    assert!(life.ended(), "it is killed at the fault point");
    assert_eq!(bodies(&github, 7).len(), 1);
    let (_life, _client) = herd.begin(&[]);
    wait_for_ends(&herd);
    wait_for_tasks(&herd);
    let posted = bodies(&github, 7);
    let [body] = &posted[..] else { panic!("{posted:?}") };
    for line in [
        "**list**: succeeded",
        "- [x] **Look at it**: Saw fine <!-- heeler :00 -->",
        "- [x] **later** (skipped)",
        "- [x] **last**\n",
        "All done.",
    ] {
        assert!(body.contains(line), "{line}: {body}");
    }
    assert!(!body.contains("**start**"), "{body}");
    assert_eq!(body.matches("<!-- heeler:").count(), 1, "{body}");
}

/// Starts a workflow for a pull request. Returns the run, and whether it is new.
fn start_for(client: &mut DaemonClient, workflow: &str, number: u64) -> (String, bool) {
    let inputs = json!({"repo": "acme/app", "prNumber": number});
    let Value::Object(inputs) = inputs else { unreachable!("it is a map") };
    let request = WorkflowRunRequest { inputs, ..WorkflowRunRequest::manual_run(workflow) };
    let order = WorkflowOperation::Run(request);
    match client.send_command(&DaemonCommand::Workflow { order, by: "ada".to_owned() }, None) {
        Ok(CommandReply::WorkflowRun { run, is_new, .. }) => (run.to_string(), is_new),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_run_of_all_workflows_about_a_branch_is_active_for_a_pull_request() {
    let github = FakeGithub::start(TOKEN);
    let herd = herd(&github);
    let wait = "until [ -e go ]; do sleep 0.1; done";
    for (name, keys) in [
        ("fix", "pr_scoped: true\npr_fix_shaped: true\n"),
        ("check", "pr_scoped: true\n"),
        ("talk", ""),
    ] {
        let text = format!(
            "name: {name}\n{keys}phases:\n  - {{name: a, type: bash, command: '{wait}'}}\n"
        );
        herd.fleet.write(&format!("workflows/{name}.yaml"), &text);
    }
    let (_life, mut client) = herd.begin(&[]);
    let (fix, is_new) = start_for(&mut client, "fix", 7);
    assert!(is_new);
    assert_eq!(start_for(&mut client, "check", 7), (fix, false), "both change the branch");
    assert!(start_for(&mut client, "talk", 7).1, "it has no `pr_scoped`");
    assert!(start_for(&mut client, "check", 8).1, "it is another pull request");
    herd.fleet.write("go", "");
    wait_for_ends(&herd);
    assert!(start_for(&mut client, "check", 7).1, "the fix has ended");
    wait_for_ends(&herd);
}

#[test]
fn nothing_is_posted_to_a_repository_that_the_config_does_not_name() {
    let github = FakeGithub::start(TOKEN);
    github.add_issue("acme/other", 7, json!({}));
    github.add_issue("acme/app", 7, json!({}));
    let herd = herd(&github);
    add_talking_workflow(&herd);
    let (_life, _client) = herd.begin(&[]);
    for (repo, mode) in [("repo=acme/other", None), ("repo=acme/app", Some("--dry-run"))] {
        let mut command = herd.command("workflow");
        command.args(["run", "talk", "--input", repo, "--input", "issueNumber=7"]).args(mode);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    wait_for_tasks(&herd);
    assert_eq!(github.calls(), Vec::<String>::new());
}

#[test]
fn the_access_is_checked_without_showing_the_token() {
    let github = FakeGithub::start(TOKEN);
    let mut herd = herd(&github);
    let doctor = |herd: &Herd| {
        let output = herd.command("doctor").arg("github").output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    let (is_fine, said) = doctor(&herd);
    assert!(is_fine, "{said}");
    assert!(said.contains("acts as heeler-user, 4990 of 5000 calls left"), "{said}");
    let config = std::fs::read_to_string(herd.fleet.file("heeler.yaml")).unwrap();
    herd.fleet.write("heeler.yaml", &config.replace("bot: heeler-user", "bot: somebody"));
    let (is_fine, said) = doctor(&herd);
    assert!(!is_fine && said.contains("set `bot: heeler-user`"), "{said}");
    herd.env.push(("FLEET_TOKEN", "wrong-secret-token".into()));
    let (is_fine, said) = doctor(&herd);
    assert!(!is_fine && said.contains("does not accept the credentials"), "{said}");
    assert!(!said.contains("wrong-secret-token") && !said.contains(TOKEN), "{said}");
}

/// A review that an agent writes, with one remark on a changed line and one elsewhere.
const FINDINGS: &str = r#"{"summary": "One crash.", "event": "REQUEST_CHANGES", "findings": [
 {"path": "src/a.rs", "line": 11, "severity": "Critical", "title": "Null", "body": "It breaks.",
  "suggestion": "let x = 1;"},
 {"path": "src/b.rs", "line": 5, "severity": "Important", "title": "Old", "body": "See there."}]}"#;

fn review_herd(github: &FakeGithub) -> Herd {
    let pull = json!({"head": {"ref": "work", "sha": "a".repeat(40)}});
    github.add_pull_request("acme/app", 9, pull);
    let patch = "@@ -10,2 +10,3 @@\n a\n+b\n c";
    github.set_files("acme/app", 9, &[json!({"filename": "src/a.rs", "patch": patch})]);
    let herd = herd(github);
    herd.fleet.write("findings.json", FINDINGS);
    herd.fleet.write(
        "workflows/review.yaml",
        "name: review\nphases:\n  - {name: look, type: bash, command: 'mkdir -p .lastlight/pr-review; \
         mv findings.json .lastlight/pr-review/ || true'}\n  \
         - {name: post, type: post-review}\n  - {name: after, type: bash, command: 'echo x >> ran'}\n",
    );
    herd
}

fn start_review(client: &mut DaemonClient) {
    let inputs = json!({"repo": "acme/app", "prNumber": 9, "headSha": "a".repeat(40)});
    start(client, "review", inputs);
}

fn wait_for_review_end(herd: &Herd) -> WorkflowRunHead {
    wait_for("the end of the run", || {
        let run = runs(herd).into_iter().next()?;
        run.status.is_final().then_some(run)
    })
}

#[test]
fn a_review_is_posted_once_with_comments_on_the_lines_of_the_diff() {
    let github = FakeGithub::start(TOKEN);
    let herd = review_herd(&github);
    // The review is posted, then the daemon dies before that is on record.
    let (mut life, mut client) = herd.begin(&["--fault", "github-acted:1"]);
    start_review(&mut client);
    assert!(life.ended(), "it is killed at the fault point");
    assert_eq!(github.reviews("acme/app", 9).len(), 1);
    let (_life, mut client) = herd.begin(&[]);
    let run = wait_for_review_end(&herd);
    assert_eq!(run.status.as_str(), "succeeded", "{:?}", run.error);
    let posted = github.reviews("acme/app", 9);
    assert_eq!(posted.len(), 1, "{posted:?}");
    let review = &posted[0];
    assert_eq!(review["state"], "CHANGES_REQUESTED");
    assert_eq!(review["commit_id"], "a".repeat(40));
    let comments = review["comments"].as_array().unwrap();
    assert_eq!(comments.len(), 1, "{comments:?}");
    assert_eq!((&comments[0]["path"], &comments[0]["line"]), (&json!("src/a.rs"), &json!(11)));
    assert!(comments[0]["body"].as_str().unwrap().contains("suggestion\nlet x = 1;"));
    let body = review["body"].as_str().unwrap();
    assert!(body.starts_with("One crash.") && body.contains("`src/b.rs:5`"), "{body}");

    // Without a new review of the agent, the old one is not posted again.
    start_review(&mut client);
    wait_for("two runs", || (runs(&herd).len() == 2).then_some(()));
    wait_for_ends(&herd);
    let failed: Vec<_> = runs(&herd).into_iter().filter_map(|run| run.error).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(github.reviews("acme/app", 9).len(), 1);
}

#[test]
fn a_review_that_github_refuses_fails_its_phase_with_the_reason() {
    let github = FakeGithub::start(TOKEN);
    let herd = review_herd(&github);
    for _ in 0..2 {
        github.fail_next(GithubFailure {
            call: "POST /repos/acme/app/pulls/9/reviews",
            status: 422,
            headers: Vec::new(),
            body: json!({"message": "Can not request changes on your own pull request"}),
            is_executed: false,
        });
    }
    let (_life, mut client) = herd.begin(&[]);
    start_review(&mut client);
    let run = wait_for_review_end(&herd);
    assert_eq!(run.status.as_str(), "failed");
    let error = run.error.unwrap();
    assert!(error.contains("Can not request changes on your own pull request"), "{error}");
    assert!(!herd.fleet.file("ran").exists(), "later phases do not run");
    let calls = github.calls();
    let posts = calls.iter().filter(|call| call.starts_with("POST")).count();
    assert_eq!(posts, 2, "the second attempt has no comments on lines");
}

#[test]
fn a_run_that_is_cancelled_while_its_review_waits_can_be_retried() {
    let github = FakeGithub::start(TOKEN);
    let herd = review_herd(&github);
    // GitHub is out of order for longer than this test.
    for _ in 0..99 {
        github.fail_next(GithubFailure {
            call: "GET /repos/acme/app/pulls/9/reviews",
            status: 503,
            headers: Vec::new(),
            body: json!({"message": "Unavailable"}),
            is_executed: false,
        });
    }
    let (_life, mut client) = herd.begin(&[]);
    start_review(&mut client);
    github.wait_for_calls("the search for the review", |calls| {
        calls.iter().any(|it| it.path.contains("/pulls/9/reviews"))
    });
    let run = runs(&herd).remove(0).id;
    let order = WorkflowOperation::Cancel { run: run.clone(), now: true };
    client.send_command(&DaemonCommand::Workflow { order, by: "ada".to_owned() }, None).unwrap();
    wait_for_tasks(&herd);
    assert_eq!(runs(&herd)[0].status.as_str(), "cancelled");
    let order = WorkflowOperation::Retry { run, from: None };
    client.send_command(&DaemonCommand::Workflow { order, by: "ada".to_owned() }, None).unwrap();
}
