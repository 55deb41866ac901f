//! What a user of herdctl relies on: sessions, lineage, prompts, refusals with a reason.

use serde_json::{Value as Json, json};

use crate::fleet::Fleet;
use crate::trigger::{fleet, scripted};

const NIGHTLY: &str = "schedules: {nightly: {cron: '0 3 1 1 *', prompt: Look.}}";

/// A job that is run to its end, with these options.
#[track_caller]
fn run_job(fleet: &Fleet, options: &[&str]) -> Json {
    fleet.json(&[&["trigger", "coder", "-p", "Go.", "--json"], options].concat())["job"].clone()
}

fn id(job: &Json) -> &str {
    job["id"].as_str().unwrap()
}

#[test]
fn a_person_continues_the_session_of_a_herdctl_agent_and_a_schedule_does_not() {
    let agent = format!("name: coder\n{}\n{NIGHTLY}", scripted("{say: Done.}"));
    let fleet = Fleet::empty();
    fleet.write("herdctl.yaml", "agents: [{path: coder.yaml}]");
    fleet.write("coder.yaml", &agent);
    let first = run_job(&fleet, &[]);
    let scheduled = run_job(&fleet, &["-S", "nightly"]);
    let second = run_job(&fleet, &[]);
    assert_eq!(first["sessionId"], second["sessionId"]);
    assert_ne!(first["sessionId"], scheduled["sessionId"]);

    // Heeler's own config says so itself.
    let fleet = fleet.another();
    fleet.write("heeler.yaml", "agents: [{path: coder.yaml}]");
    fleet.write("coder.yaml", &agent);
    assert_ne!(run_job(&fleet, &[])["sessionId"], run_job(&fleet, &[])["sessionId"]);
}

#[test]
fn an_adopted_session_is_the_one_that_the_next_trigger_continues() {
    let fleet = Fleet::empty();
    fleet.write("herdctl.yaml", "agents: [{path: coder.yaml}]");
    fleet.write("coder.yaml", &format!("name: coder\n{}", scripted("{say: Done.}")));
    let now = jiff::Timestamp::now().to_string();
    let session = json!({
        "agent_name": "coder", "session_id": "0f0e0d0c-0000-4000-8000-000000000001",
        "created_at": now, "last_used_at": now, "job_count": 3, "mode": "autonomous",
        "runtime_type": "scripted", "docker_enabled": false,
    });
    fleet.write(".herdctl/state.yaml", "fleet: {}\nagents: {}\n");
    fleet.write(".herdctl/sessions/coder.json", &session.to_string());
    fleet.write(
        ".herdctl/discord-sessions/coder.yaml",
        &format!(
            "version: 3\nagentName: coder\nchannels:\n  '123456789':\n    sessionId: s-1\n    \
             lastMessageAt: '{now}'\n"
        ),
    );
    let adopted = fleet.json(&["session", "list", "--json"])["sessions"].clone();
    let own = adopted.as_array().unwrap().iter().find(|it| it["channelId"].is_null()).unwrap();
    let job = run_job(&fleet, &[]);
    let rows = fleet.read(&format!(".herdctl/jobs/{}.jsonl", id(&job)));
    let resumed = format!("{} is resumed", own["id"].as_str().unwrap());
    assert!(rows.contains(&resumed), "{rows}");

    // The channel is reached by the key that a job names.
    let channel = ["session", "list", "--channel", "discord/123456789", "--json"];
    assert_eq!(fleet.json(&channel)["sessions"][0]["channelId"], "discord/123456789");
}

#[test]
fn the_lineage_of_a_fork_names_the_job_at_which_it_was_cut() {
    let keys = format!("{}\nsession: {{mode: persistent}}", scripted("{say: Done.}"));
    let fleet = fleet(&[("coder", &keys)]);
    let first = run_job(&fleet, &[]);
    let second = run_job(&fleet, &[]);
    assert_eq!(first["sessionId"], second["sessionId"]);
    for cut in [&first, &second] {
        let forked = fleet.json(&["jobs", "fork", id(cut), "--run", "-p", "Again.", "--json"]);
        let job = &forked["job"];
        assert_eq!((&job["forkedFrom"], &job["triggerType"]), (&cut["id"], &json!("fork")));
        let view = fleet.read(&format!(".heeler/jobs/{}.yaml", id(job)));
        assert!(view.contains(&format!("forked_from: {}", id(cut))), "{view}");
        assert!(view.contains("trigger_type: fork"), "{view}");
    }
}

#[test]
fn a_job_whose_schedule_is_gone_is_not_resumed_and_keeps_its_record() {
    let failing = scripted("{say: Trying.}, {error: overloaded}");
    let fleet = fleet(&[("coder", &format!("{failing}\n{NIGHTLY}"))]);
    let told = fleet.run(&["trigger", "coder", "-S", "nightly", "--json"]);
    assert_eq!(told.code, Some(1));
    let job: Json = serde_json::from_str(&told.stdout).unwrap();
    let before = fleet.read(&format!(".heeler/jobs/{}.yaml", id(&job["job"])));
    assert!(before.contains("status: failed"), "{before}");
    fleet.configure(&[("coder", &failing)]);
    let refused = fleet.run(&["jobs", "resume", id(&job["job"])]).fails(4);
    assert!(refused.contains("has no schedule `nightly`"), "{refused}");
    assert!(refused.contains("heeler trigger coder --session"), "{refused}");
    assert_eq!(fleet.read(&format!(".heeler/jobs/{}.yaml", id(&job["job"]))), before);
}

#[test]
fn a_session_that_another_replaced_is_completed() {
    let keys = format!("{}\nsession: {{mode: persistent}}", scripted("{say: Done.}"));
    let fleet = fleet(&[("coder", &keys)]);
    run_job(&fleet, &[]);
    run_job(&fleet, &["--fresh"]);
    let listed = fleet.json(&["session", "list", "--json"])["sessions"].clone();
    let statuses: Vec<&str> =
        listed.as_array().unwrap().iter().map(|it| it["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["paused", "completed"]);

    // It is too young to be deleted, and that is said.
    let told = fleet.run(&["session", "cleanup"]);
    assert!(told.stderr.contains("kept: 1 session used within 7d"), "{}", told.stderr);
    assert_eq!(fleet.json(&["session", "cleanup", "--json"])["recentlyUsed"], 1);
}

#[test]
fn a_config_of_herdctl_works_or_says_why_not() {
    let fleet = Fleet::empty();
    fleet.write("herdctl.yaml", "agents: [{path: coder.yaml}, {path: other.yaml}]");
    fleet.write("coder.yaml", "name: coder\nschedules: {often: {type: interval, interval: 5m}}");
    fleet.write("other.yaml", "name: other\npermission_mode: delegate");
    // The fallback of herdctl is its prompt.
    let shown = fleet.json(&["config", "show", "--json"]);
    let text = shown["agents"].to_string();
    assert!(text.contains("Execute your configured task"), "{text}");
    // The mode that Claude no longer has refuses its agent, not the fleet.
    let told = fleet.run(&["config", "validate"]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert!(told.stderr.contains("never runs in another mode"), "{}", told.stderr);
    let refused = fleet.run(&["trigger", "other", "-p", "Go."]).fails(5);
    assert!(refused.contains("permission_mode: delegate"), "{refused}");
    // A list of tools that the runtime cannot hold is an error before the first run.
    fleet.write("other.yaml", "name: other\nruntime: cli\nallowed_tools: ['Bash(git *)']");
    let refused = fleet.run(&["config", "validate"]).fails(2);
    assert!(refused.contains("cannot be enforced by runtime cli"), "{refused}");
    let refused = fleet.run(&["config", "validate", "--json"]);
    assert_eq!(refused.code, Some(2));
    let refused: Json = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!(refused["valid"], false);
    fleet.write("other.yaml", "name: other\nallowed_tools: ['Read(./src/**)']");
    fleet.run(&["config", "validate"]).fails(2);

    // In Heeler's own config, a schedule without a prompt is told.
    let fleet = fleet.another();
    fleet.write("heeler.yaml", "agents: [{name: a, schedules: {often: {interval: 5m}}}]");
    let told = fleet.run(&["config", "validate"]);
    assert!(told.stderr.contains("`often` has no prompt"), "{}", told.stderr);
}

#[test]
fn times_of_json_have_one_width_and_usage_errors_are_json() {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    for _ in 0..3 {
        run_job(&fleet, &[]);
    }
    let listed = fleet.run(&["jobs", "--json"]).ok();
    let times: Vec<&str> =
        listed.split('"').filter(|text| text.starts_with("20") && text.ends_with('Z')).collect();
    assert!(times.len() >= 6 && times.iter().all(|time| time.len() == 24), "{times:?}");
    let refused = fleet.run(&["jobs", "--json", "--no-such-flag"]);
    assert_eq!((refused.code, refused.stderr.as_str()), (Some(2), ""));
    let refused: Json = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!(refused["error"]["code"], "usage");
    assert!(refused["error"]["message"].as_str().unwrap().contains("--no-such-flag"));
}

#[test]
fn a_lost_database_is_rebuilt_without_a_question() {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    let job = run_job(&fleet, &[]);
    fleet.run(&["start", "-d"]).ok();
    fleet.run(&["stop", "--force"]).ok();
    for name in ["heeler.db", "heeler.db-wal", "heeler.db-shm"] {
        drop(std::fs::remove_file(fleet.file(&format!(".heeler/{name}"))));
    }
    fleet.run(&["doctor", "--rebuild"]).ok();
    assert!(fleet.run(&["jobs"]).ok().contains(id(&job)));
    // With a database there is something to replace.
    fleet.run(&["doctor", "--rebuild"]).fails(5);
}
