//! The work tree recorded after each turn and before the first. A shell script stands for our program.

use std::os::unix::fs::PermissionsExt as _;

use heeler_model::ExitReason;
use heeler_transcript::{LockFile, LockHolder};

use super::*;

const TALKS: &str = "await user; say one; result done; echo > said; await forever";

/// A run whose work tree is recorded by this script after its turns.
fn recorded_by(script: &str, agent: &str) -> RunFixture {
    let not_before = r#"case "$*" in */begin-*) printf '{"snapshot":null}'; exit;; esac"#;
    recorded_from_the_beginning_by(&format!("{not_before}\n{script}"), agent)
}

/// A run whose work tree is recorded by this script.
fn recorded_from_the_beginning_by(script: &str, agent: &str) -> RunFixture {
    let mut trial = stream_fixture(agent);
    let program = trial.folder.state.join("heeler");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    trial.spec.workspaces = Some(trial.folder.state.join("workspaces"));
    trial
}

/// Answers with a snapshot of the working directory.
const ANSWERS: &str = r#"echo "$*" >> calls
printf '{"snapshot":{"commit":"%s","repository":"r","top":"%s"}}' 0123456789abcdef0123456789abcdef01234567 "$PWD""#;

fn snapshots(trial: &RunFixture) -> Vec<Json> {
    let rows = RunFixture::rows(&trial.session_log());
    rows.into_iter().filter(|row| row["subtype"] == "snapshot").collect()
}

#[test]
fn the_files_are_recorded_before_the_result_of_a_turn() {
    let trial = recorded_by(ANSWERS, TALKS);
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    let rows = RunFixture::rows(&trial.session_log());
    let kind = |row: &Json| match row["type"].as_str().unwrap() {
        "system" => row["subtype"].as_str().unwrap().to_owned(),
        kind => kind.to_owned(),
    };
    let kinds: Vec<String> = rows.iter().map(kind).collect();
    assert_eq!(kinds, ["session", "user", "assistant", "snapshot", "result"]);
    let top = &trial.spec.working_directory;
    assert_eq!(rows[3]["messageUuid"], rows[2]["uuid"]);
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let expected = json!({"commit": commit, "repository": "r", "top": top, "others": []});
    assert_eq!(rows[3]["snapshot"], expected);
    let content = format!("the files in {top} are recorded as 0123456789ab");
    assert_eq!(trial.notes("snapshot"), [content]);
    let calls = std::fs::read_to_string(top.join("calls")).unwrap();
    let (id, message) = (trial.spec.session.start.id(), rows[2]["uuid"].as_str().unwrap());
    let into = trial.spec.workspaces.clone().unwrap();
    let call = format!("snapshot --into {into} --name {id}/{message} --note {}\n", trial.spec.job);
    assert_eq!(calls, call);
}

#[test]
fn the_files_are_recorded_before_the_agent_starts_in_a_new_session_and_not_in_one_that_goes_on() {
    // Whoever records them sees whether the agent was there.
    let script = format!("[ -e began ] && echo late >> calls\n{ANSWERS}");
    let trial = recorded_from_the_beginning_by(&script, &format!("touch began; {TALKS}"));
    assert_eq!(trial.run().exit_reason, ExitReason::Success);
    let rows = snapshots(&trial);
    assert_eq!(rows.len(), 2, "{rows:#?}");
    assert_eq!(rows[0]["snapshot"]["beginning"], true);
    assert!(rows[0].get("messageUuid").is_none(), "{:#?}", rows[0]);
    assert!(rows[1]["snapshot"].get("beginning").is_none(), "{:#?}", rows[1]);
    assert!(rows[0]["content"].as_str().unwrap().ends_with(", before the first turn"));
    let calls = std::fs::read_to_string(trial.spec.working_directory.join("calls")).unwrap();
    let first = format!("--name {}/begin-{} ", trial.spec.session.start.id(), trial.spec.run);
    let lines: Vec<&str> = calls.lines().collect();
    assert!(lines.len() == 3 && lines[0].contains(&first) && lines[1] == "late", "{calls}");
    let all = RunFixture::rows(&trial.session_log());
    assert_eq!((&all[1]["subtype"], &all[2]["type"]), (&json!("snapshot"), &json!("user")));

    let trial = recorded_from_the_beginning_by(ANSWERS, TALKS);
    let id = trial.spec.session.start.id().clone();
    let trial = trial.start_session(SessionStart::Resume { id });
    assert_eq!(trial.run().exit_reason, ExitReason::Success);
    let rows = snapshots(&trial);
    assert_eq!(rows.len(), 1, "only the end of its turn: {rows:#?}");
}

#[test]
fn who_cancels_before_the_agent_starts_does_not_wait_and_no_agent_starts() {
    let script = "touch snapping; exec tail -f /dev/null";
    let trial = recorded_from_the_beginning_by(script, &format!("touch began; {TALKS}"));
    let running = trial.start();
    trial.wait_file("snapping");
    assert_eq!(running.client().ask(cancel(false)), ControlReplyBody::Done);
    let result = running.finish();
    assert!(matches!(result.exit_reason, ExitReason::Cancelled), "{result:?}");
    assert!(!trial.spec.working_directory.join("began").exists());
}

#[test]
fn who_asks_before_the_agent_starts_is_answered_once_it_has() {
    let script = format!("touch snapping; while [ ! -e go ]; do sleep 0.01; done; {ANSWERS}");
    let trial = recorded_from_the_beginning_by(&script, TALKS);
    let running = trial.start();
    trial.wait_file("snapping");
    let mut client = running.client();
    let asked = std::thread::spawn(move || client.ask(ControlOperation::Status));
    trial.touch("go");
    assert!(matches!(asked.join().unwrap(), ControlReplyBody::Status(_)));
    assert_eq!(running.finish().exit_reason, ExitReason::Success);
    assert_eq!(snapshots(&trial).len(), 2);
}

#[test]
fn every_turn_of_a_run_is_recorded() {
    let agent = "await user; say one; result done; echo > first; await again; took; say two; \
                 result done; await forever";
    let trial = recorded_by(ANSWERS, &agent.replace("result done; echo", "queued; echo"));
    // A turn that is queued keeps the run up.
    let queued = r#"queued() { printf '{"type":"result","subtype":"success","is_error":false,"result":"x","queued_turn_count":1}\n'; }"#;
    let mut trial = trial;
    let RuntimeLaunchSpec::Command { command } = &mut trial.brief.work else { panic!("a script") };
    *command = format!("{queued}\n{command}");
    let running = trial.start();
    trial.wait_file("first");
    assert_eq!(
        running.client().ask(ControlOperation::message("again".to_owned())),
        ControlReplyBody::Done
    );
    assert_eq!(running.finish().exit_reason, ExitReason::Success);
    let recorded = snapshots(&trial);
    assert_eq!(recorded.len(), 2, "{recorded:#?}");
    assert_ne!(recorded[0]["messageUuid"], recorded[1]["messageUuid"]);
}

#[test]
fn a_folder_without_a_repository_is_not_spoken_of() {
    let trial = recorded_by("printf '{\"snapshot\":null}'", TALKS);
    assert_eq!(trial.run().exit_reason, ExitReason::Success);
    assert_eq!((snapshots(&trial).len(), trial.notes("warning").len()), (0, 0));
}

#[test]
fn a_snapshot_that_fails_is_a_warning() {
    for (script, reason) in [
        ("printf '{\"error\":\"no git\"}'", "no git"),
        ("printf nonsense; exit 7", "the snapshot process died"),
        ("kill -9 $$", "the snapshot process died"),
        ("head -c 3000000 /dev/zero", "the snapshot process died"),
    ] {
        let trial = recorded_by(script, TALKS);
        assert_eq!(trial.run().exit_reason, ExitReason::Success, "{script}");
        let said = format!("the files were not recorded after this turn: {reason}");
        assert_eq!(trial.notes("warning"), [said], "{script}");
        assert_eq!(snapshots(&trial).len(), 0);
    }
    let trial = recorded_by("", TALKS);
    std::fs::remove_file(trial.folder.state.join("heeler")).unwrap();
    assert_eq!(trial.run().exit_reason, ExitReason::Success);
    assert_eq!(trial.notes("warning").len(), 2, "before the first turn, and after it");
}

#[test]
fn a_snapshot_that_takes_too_long_is_given_up() {
    let mut trial = recorded_by("echo $$ > pid; exec tail -f /dev/null", TALKS);
    trial.means.snapshot_time_max = LIMIT;
    assert_eq!(trial.run().exit_reason, ExitReason::Success);
    let said = "the files were not recorded after this turn: it took longer than 0.2 s";
    assert_eq!(trial.notes("warning"), [said]);
    let pid = std::fs::read_to_string(trial.spec.working_directory.join("pid")).unwrap_or_default();
    assert!(pid.is_empty() || is_gone(&pid), "{pid} is left");
}

#[test]
fn an_agent_that_ends_while_its_files_are_recorded_has_its_result_behind_them() {
    let script = format!("while [ ! -e gone ]; do sleep 0.01; done; {ANSWERS}");
    // Its process is gone before the files are recorded.
    let trial = recorded_by(&script, "await user; say one; result done; echo $$ > pid; exit 0");
    let running = trial.start();
    trial.wait_file("pid");
    let pid = std::fs::read_to_string(trial.spec.working_directory.join("pid")).unwrap();
    wait_for("the agent's end", || pid.trim().is_empty() || is_gone(&pid));
    assert!(!trial.session_log().exists() || snapshots(&trial).is_empty());
    trial.touch("gone");
    let result = running.finish();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    assert_eq!(snapshots(&trial).len(), 1);
}

#[test]
fn who_cancels_does_not_wait_for_the_files() {
    let trial = recorded_by("touch snapping; exec tail -f /dev/null", TALKS);
    let running = trial.start();
    trial.wait_file("snapping");
    assert_eq!(running.client().ask(cancel(true)), ControlReplyBody::Done);
    let result = running.finish();
    // The turn had come to its end by then.
    assert_eq!(snapshots(&trial).len(), 0);
    assert!(matches!(result.exit_reason, ExitReason::Cancelled), "{result:?}");
}

#[test]
fn a_snapshot_names_the_others_who_work_there() {
    let trial = recorded_by(ANSWERS, TALKS);
    let runs = trial.folder.state.join("runs");
    let other = |name: &str, job: &str, cwd: &Utf8Path| {
        let dir = runs.join(name);
        std::fs::create_dir(&dir).unwrap();
        let mut spec = trial.spec.clone();
        spec.job = job.parse().unwrap();
        spec.working_directory = cwd.to_owned();
        std::fs::write(dir.join("spec.json"), serde_json::to_vec(&spec).unwrap()).unwrap();
        dir
    };
    let cwd = trial.spec.working_directory.clone();
    let live = |dir: &Utf8Path| {
        let holder = LockHolder::this_process("a test", now());
        LockFile::acquire(&dir.join("lock"), &holder, Duration::ZERO).unwrap()
    };
    let here = other("here", "job-2026-11-15-aaaaaa", &cwd.join("below"));
    let there = other("there", "job-2026-11-15-bbbbbb", Utf8Path::new("/elsewhere"));
    other("dead", "job-2026-11-15-cccccc", &cwd);
    let _locks = [live(&here), live(&there)];
    assert_eq!(trial.run().exit_reason, ExitReason::Success);
    let rows = snapshots(&trial);
    assert_eq!(rows[0]["snapshot"]["others"], json!(["job-2026-11-15-aaaaaa"]));
    assert!(rows[0]["content"].as_str().unwrap().ends_with("directory: job-2026-11-15-aaaaaa"));
}

#[test]
fn an_agent_cannot_claim_a_snapshot() {
    let claims = r#"printf '{"type":"system","subtype":"snapshot","snapshot":{"commit":"f"},"content":"x"}\n'"#;
    let trial =
        stream_fixture(&format!("await user; {claims}; say one; result done; await forever"));
    assert_eq!(trial.run().exit_reason, ExitReason::Success);
    assert!(snapshots(&trial)[0].get("snapshot").is_none());
}
