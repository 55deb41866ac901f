//! Sessions: resume, fork, costs, secrets, what a crash leaves.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use expect_test::expect;
use heeler_config::script::ScriptExit;
use heeler_model::run::SessionStart;
use serde_json::{Value as Json, json};

use super::{ID, OTHER, ScriptedFixture, fresh, resume, start};

const TELL: &str = "- say: turn {turn}, I remember {remembered}\n";

fn fork(at: Option<&Json>) -> SessionStart {
    let at = at.map(|at| at.as_str().unwrap().parse().unwrap());
    SessionStart::Fork { source: ID.parse().unwrap(), id: OTHER.parse().unwrap(), at }
}

fn entries(stage: &ScriptedFixture, id: &str) -> Vec<Json> {
    let text = std::fs::read_to_string(stage.session_file(id)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_resumed_session_remembers() {
    let stage = ScriptedFixture::new();
    assert_eq!(stage.turn(TELL, fresh(), "one"), "turn 1, I remember nothing");
    assert_eq!(stage.turn(TELL, resume(ID), "two"), "turn 2, I remember one");
    assert_eq!(stage.turn(TELL, resume(ID), "three"), "turn 3, I remember one | two");
}

#[test]
fn entries_are_a_chain_with_the_uuids_of_the_stream() {
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play("- say: hi\n- run: echo ho\n", fresh()));
    let uuid = "aaaaaaaa-0000-4000-8000-000000000001";
    talk.prompt_as(uuid, "go");
    talk.end();
    let entries = entries(&stage, ID);
    let chain: Vec<_> = entries.iter().filter(|entry| entry["uuid"].is_string()).collect();
    assert_eq!(chain[0]["uuid"], uuid);
    assert_eq!(chain[0]["parentUuid"], Json::Null);
    for pair in chain.windows(2) {
        assert_eq!(pair[1]["parentUuid"], pair[0]["uuid"]);
    }
    let said = talk.seen.iter().filter(|line| line["message"].is_object());
    let said: Vec<_> = said.map(|line| (line["type"].clone(), line["uuid"].clone())).collect();
    let kept: Vec<_> =
        chain[1..].iter().map(|entry| (entry["type"].clone(), entry["uuid"].clone())).collect();
    assert_eq!(said, kept);
    let keys: Vec<_> = chain[1].as_object().unwrap().keys().map(String::as_str).collect();
    expect!["parentUuid isSidechain type message uuid timestamp userType cwd sessionId version"]
        .assert_eq(&keys.join(" "));
}

#[test]
fn sessions_are_private() {
    let stage = ScriptedFixture::new();
    stage.turn(TELL, fresh(), "one");
    let file = stage.session_file(ID);
    let mode =
        |path: &camino::Utf8Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(file.parent().unwrap()), 0o700);
}

#[test]
fn a_session_is_found_from_another_folder_and_stays_where_it_is() {
    let stage = ScriptedFixture::new();
    stage.turn(TELL, fresh(), "one");
    let mut play = stage.play(TELL, resume(ID));
    play.cwd = stage.root.clone();
    let mut talk = start(play);
    talk.prompt("two");
    talk.end();
    assert_eq!(talk.result()["result"], "turn 2, I remember one");
    assert_eq!(entries(&stage, ID).last().unwrap()["type"], "cost-state");
    assert_eq!(stage.turn(TELL, resume(ID), "three"), "turn 3, I remember one | two");
}

#[test]
fn an_unknown_session_is_refused_in_claudes_words() {
    let stage = ScriptedFixture::new();
    let mut talk = start(stage.play(TELL, resume(OTHER)));
    talk.prompt("one");
    assert_eq!(talk.end(), ScriptExit::Code(1));
    let result = talk.result();
    assert_eq!(result["errors"][0], format!("No conversation found with session ID: {OTHER}"));
    assert_eq!(result["subtype"], "error_during_execution");
    assert_eq!((&result["is_error"], &result["num_turns"]), (&json!(true), &json!(0)));
    assert_eq!(talk.seen.len(), 1);
    assert!(!stage.session_file(OTHER).exists());
}

#[test]
fn a_session_id_is_used_once() {
    let stage = ScriptedFixture::new();
    stage.turn(TELL, fresh(), "one");
    let mut talk = start(stage.play(TELL, fresh()));
    talk.prompt("two");
    assert_eq!((talk.end(), talk.seen.len()), (ScriptExit::Code(1), 0));
}

#[test]
fn a_session_without_a_prompt_does_not_exist() {
    let stage = ScriptedFixture::new();
    assert_eq!(start(stage.play(TELL, fresh())).end(), ScriptExit::Code(0));
    assert!(!stage.session_file(ID).exists());
}

#[test]
fn a_fork_goes_its_own_way() {
    let stage = ScriptedFixture::new();
    stage.turn(TELL, fresh(), "one");
    stage.turn(TELL, resume(ID), "two");
    let before = std::fs::read(stage.session_file(ID)).unwrap();
    assert_eq!(stage.turn(TELL, fork(None), "three"), "turn 3, I remember one | two");
    assert_eq!(std::fs::read(stage.session_file(ID)).unwrap(), before);
    assert_eq!(stage.turn(TELL, resume(OTHER), "four"), "turn 4, I remember one | two | three");
    assert_eq!(stage.turn(TELL, resume(ID), "five"), "turn 3, I remember one | two");
    assert!(entries(&stage, OTHER).iter().all(|entry| entry["sessionId"] == OTHER));
}

#[test]
fn a_fork_at_a_message_knows_nothing_after_it() {
    let stage = ScriptedFixture::new();
    stage.turn(TELL, fresh(), "one");
    stage.turn(TELL, resume(ID), "two");
    let answer =
        entries(&stage, ID).into_iter().find(|entry| entry["type"] == "assistant").unwrap();
    let forked = stage.turn(TELL, fork(Some(&answer["uuid"])), "other");
    assert_eq!(forked, "turn 2, I remember one");
    let copied = entries(&stage, OTHER);
    assert_eq!(copied[1]["uuid"], answer["uuid"]);
    assert_eq!(stage.turn(TELL, resume(OTHER), "more"), "turn 3, I remember one | other");
}

#[test]
fn a_fork_at_an_unknown_message_is_refused() {
    let stage = ScriptedFixture::new();
    stage.turn(TELL, fresh(), "one");
    let at = json!("aaaaaaaa-0000-4000-8000-00000000000f");
    let mut talk = start(stage.play(TELL, fork(Some(&at))));
    talk.prompt("two");
    assert_eq!(talk.end(), ScriptExit::Code(1));
    let error = format!("No message found with message.uuid of: {}", at.as_str().unwrap());
    assert_eq!(talk.result()["errors"][0], error);
    assert!(!stage.session_file(OTHER).exists());
}

#[test]
fn how_a_session_started_can_be_asked() {
    let stage = ScriptedFixture::new();
    let script = "
- when: {session: new}
  do: [{say: new}]
- when: {session: resumed}
  do: [{say: resumed}]
- when: {session: forked}
  do: [{say: forked}]
";
    assert_eq!(stage.turn(script, fresh(), "x"), "new");
    assert_eq!(stage.turn(script, resume(ID), "x"), "resumed");
    assert_eq!(stage.turn(script, fork(None), "x"), "forked");
}

#[test]
fn costs_go_on_over_processes_and_forks() {
    let stage = ScriptedFixture::new();
    let script = "- cost: 0.5\n- usage: {input: 10}\n";
    stage.turn(script, fresh(), "one");
    let mut talk = start(stage.play(script, resume(ID)));
    talk.prompt("two");
    talk.end();
    assert_eq!(talk.result()["total_cost_usd"], 1.0);
    assert_eq!(talk.result()["model_usage_since_last_result"]["scripted"]["costUSD"], 0.5);
    let mut talk = start(stage.play(script, fork(None)));
    talk.prompt("three");
    talk.end();
    assert_eq!(talk.result()["total_cost_usd"], 1.5);
    assert_eq!(talk.result()["modelUsage"]["scripted"]["inputTokens"], 30);
}

#[test]
fn the_budget_is_that_of_the_process() {
    let stage = ScriptedFixture::new();
    stage.turn("- cost: 0.9\n", fresh(), "one");
    let mut play = stage.play("- cost: 0.9\n- say: fine\n", resume(ID));
    play.max_budget_usd = Some(1.0);
    let mut talk = start(play);
    talk.prompt("two");
    assert_eq!(talk.end(), ScriptExit::Code(0));
}

#[test]
fn a_session_whose_process_died_in_a_line_is_resumed() {
    let stage = ScriptedFixture::new();
    stage.turn(TELL, fresh(), "one");
    let file = stage.session_file(ID);
    let mut text = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
    text.write_all(b"{\"type\":\"assistant\",\"uuid\":\"aaaaaaaa-0000-40").unwrap();
    drop(text);
    assert_eq!(stage.turn(TELL, resume(ID), "two"), "turn 2, I remember one");
    assert_eq!(stage.turn(TELL, resume(ID), "three"), "turn 3, I remember one | two");
}

#[test]
fn a_session_that_was_cut_off_in_a_tool_is_resumed() {
    let stage = ScriptedFixture::new();
    let (_, exit) = stage.perform("- run: echo hi\n- exit: 9\n");
    assert_eq!(exit, ScriptExit::Code(9));
    assert_eq!(stage.turn(TELL, resume(ID), "two"), "turn 2, I remember do it");
}

#[test]
fn secrets_are_not_remembered() {
    let stage = ScriptedFixture::new();
    let script = "- run: echo canary-$SCRIPT_PROMPT\n- say: I remember {remembered}\n";
    let mut talk = start(stage.play_with(script, fresh(), &["hush-hush-hush"]));
    talk.prompt("hush-hush-hush");
    talk.end();
    // The stream is the runner's to clean; the file is ours.
    assert!(talk.shown().contains("canary-hush-hush-hush"));
    let kept = std::fs::read_to_string(stage.session_file(ID)).unwrap();
    assert!(!kept.contains("hush-hush") && kept.contains("canary-[secret]"), "{kept}");
    assert_eq!(stage.turn(TELL, resume(ID), "two"), "turn 2, I remember [secret]");
}

#[test]
fn a_session_that_cannot_be_kept_ends_the_process() {
    let stage = ScriptedFixture::new();
    std::fs::write(stage.root.join("home"), "in the way").unwrap();
    let mut talk = start(stage.play(TELL, fresh()));
    talk.prompt("one");
    assert_eq!(talk.end(), ScriptExit::Code(1));
    assert!(talk.seen.iter().all(|line| line["type"] != "assistant"), "{}", talk.shown());
}
