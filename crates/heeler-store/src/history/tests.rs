//! Histories and cuts, and both against a simple reader of random logs.

mod naive;
mod random;

use camino::Utf8PathBuf;
use expect_test::{Expect, expect};
use heeler_model::recorder::PRIOR_COUNTS_KEY;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::*;

struct HistoryTestFiles {
    _temp: tempfile::TempDir,
    log: Utf8PathBuf,
    own: Utf8PathBuf,
}

impl HistoryTestFiles {
    fn new() -> HistoryTestFiles {
        let temp = tempfile::tempdir().unwrap();
        let path = |name| Utf8PathBuf::from_path_buf(temp.path().join(name)).unwrap();
        HistoryTestFiles { log: path("log.jsonl"), own: path("own.jsonl"), _temp: temp }
    }

    fn with(log: &[Json], own: &[Json]) -> HistoryTestFiles {
        let folder = HistoryTestFiles::new();
        std::fs::write(&folder.log, lines(log)).unwrap();
        std::fs::write(&folder.own, lines(own)).unwrap();
        folder
    }

    /// Returns one line per message: its number, its fork safety, and other known facts.
    #[track_caller]
    fn check(&self, before: Option<u64>, count: usize, expected: Expect) {
        let HistoryPage { messages, total } =
            load_history(&self.log, Some(&self.own), before, count).unwrap();
        let mut shown = format!("of {total}\n");
        for message in messages {
            let cut = match message.fork_safety {
                ForkSafety::Safe => "safe",
                ForkSafety::Unsafe(why) => why,
            };
            let forgotten = if message.in_context { "" } else { ", not in context" };
            let snapshot = message.snapshot.map(|note| format!(", files {}", &note.commit[..4]));
            let snapshot = snapshot.unwrap_or_default();
            shown += &format!("{} {cut}{forgotten}{snapshot}", message.number);
            for tool in message.tools {
                let result = tool.result.map(|result| result.content.to_string());
                shown += &format!(", {} → {}", tool.name, result.unwrap_or_default());
            }
            shown.push('\n');
        }
        expected.assert_eq(&shown);
    }

    fn cut(&self, at: Option<u64>) -> Result<ResolvedForkPoint, ForkPointError> {
        find_fork_point(&self.log, Some(&self.own), at)
    }
}

fn lines(rows: &[Json]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(0xabc0_0000_0000 + number)
}

fn run(before: u64) -> Json {
    json!({"type": "system", "subtype": "session",
        PRIOR_COUNTS_KEY: {"messages": before, "tokens": 0, "last": null}})
}

fn said(kind: &str, uuid: u128, after: u128, content: Json) -> Json {
    let parent = (after > 0).then(|| id(after));
    json!({"type": kind, "uuid": id(uuid), "parentUuid": parent, "isSidechain": false,
        "timestamp": "2026-11-15T10:00:00Z",
        "message": {"role": kind, "id": format!("m{uuid}"), "content": content}})
}

fn user(uuid: u128, after: u128) -> Json {
    said("user", uuid, after, json!("Go."))
}

fn agent(uuid: u128, after: u128) -> Json {
    said("assistant", uuid, after, json!([{"type": "text", "text": "Done."}]))
}

fn result() -> Json {
    json!({"type": "result", "subtype": "success"})
}

fn snapshot(of: u128) -> Json {
    json!({"type": "system", "subtype": "snapshot", "messageUuid": id(of), "snapshot": {
        "commit": format!("{of:040x}"), "repository": "r", "top": "/w"}})
}

/// Two turns, the second with a tool.
fn two_turns() -> (Vec<Json>, Vec<Json>) {
    let call = json!([{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}]);
    let gave = json!([{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]);
    let own = vec![
        user(1, 0),
        agent(2, 1),
        user(3, 2),
        said("assistant", 4, 3, call),
        said("user", 5, 4, gave),
        agent(6, 5),
    ];
    let mut log = own.clone();
    log.push(snapshot(6));
    log.push(result());
    log.splice(2..2, [result(), run(2)]);
    log.insert(0, run(0));
    (log, own)
}

#[test]
fn messages_have_their_numbers_tools_cuts_and_files() {
    let (log, own) = two_turns();
    let folder = HistoryTestFiles::with(&log, &own);
    folder.check(
        None,
        10,
        expect![[r#"
        of 5
        1 it is a prompt without its answer
        2 safe
        3 it is a prompt without its answer
        4 it calls a tool, Bash → "ok"
        5 safe, files 0000
    "#]],
    );
    folder.check(
        Some(4),
        2,
        expect![[r#"
        of 5
        2 safe
        3 it is a prompt without its answer
    "#]],
    );
    folder.check(Some(1), 9, expect!["of 5\n"]);
}

#[test]
fn a_cut_moves_to_the_nearest_safe_one_before_it() {
    let (log, own) = two_turns();
    let folder = HistoryTestFiles::with(&log, &own);
    let end = std::fs::read(&folder.log).unwrap().len() as u64;
    let last = folder.cut(None).unwrap();
    assert_eq!((last.number, last.uuid, last.end), (5, id(6), end));
    assert_eq!(last.snapshot.unwrap().commit, format!("{:040x}", 6));
    let moved = folder.cut(Some(4)).unwrap();
    assert_eq!((moved.requested, moved.number, moved.uuid), (Some(4), 2, id(2)));
    // Behind the result of its turn, so that a copy up to there knows that it ended.
    assert_eq!(moved.end, lines(&log[..4]).len() as u64);
    let error = folder.cut(Some(1)).unwrap_err().to_string();
    assert_eq!(
        error,
        "the session up to message 1 cannot be forked: it is a prompt without its answer; \
         `session show --history` marks the possible fork points"
    );
    for asked in [0, 6, u64::MAX] {
        let error = folder.cut(Some(asked)).unwrap_err();
        assert!(matches!(error, ForkPointError::NoMessage { total: 5, .. }), "{error}");
    }
}

#[test]
fn what_the_agents_own_file_has_not_or_left_behind_is_not_in_context() {
    let (mut log, mut own) = two_turns();
    // Killed before the agent stored anything, then continued from the second message.
    log.extend([run(5), user(7, 6), agent(8, 7), run(7), user(9, 2), agent(10, 9), result()]);
    own.extend([user(9, 2), agent(10, 9)]);
    let folder = HistoryTestFiles::with(&log, &own);
    folder.check(
        None,
        10,
        expect![[r#"
            of 9
            1 it is a prompt without its answer
            2 safe
            3 it is a prompt without its answer, not in context
            4 it calls a tool, not in context, Bash → "ok"
            5 it is not in the agent's context, not in context, files 0000
            6 it is a prompt without its answer, not in context
            7 it does not end a turn, not in context
            8 it is a prompt without its answer
            9 safe
        "#]],
    );
    assert_eq!(folder.cut(Some(8)).unwrap().number, 2);
}

#[test]
fn a_prompt_that_the_agent_keeps_under_another_id_is_remembered_with_its_answer() {
    let log = [run(0), user(1, 0), agent(2, 1), result(), run(2), user(3, 2)];
    let own = [user(100, 0), agent(2, 100)];
    HistoryTestFiles::with(&log, &own).check(
        None,
        10,
        expect![[r#"
            of 3
            1 it is a prompt without its answer
            2 safe
            3 it is a prompt without its answer, not in context
        "#]],
    );
}

#[test]
fn without_the_agents_own_file_nothing_is_remembered_and_nothing_can_be_cut() {
    let (log, own) = two_turns();
    let folder = HistoryTestFiles::with(&log, &own);
    std::fs::remove_file(&folder.own).unwrap();
    folder.check(
        Some(3),
        1,
        expect![[r#"
        of 5
        2 the native session file is missing, not in context
    "#]],
    );
    let error = folder.cut(None).unwrap_err();
    assert!(matches!(error, ForkPointError::NoSafePoint { .. }), "{error}");
    // Where an agent keeps it is not known: then it is for the agent to say.
    assert_eq!(find_fork_point(&folder.log, None, None).unwrap().number, 5);
}

#[test]
fn a_fork_can_be_forked_where_it_was_cut_itself() {
    let (log, own) = two_turns();
    let mut forked = run(2);
    forked["forkedFrom"] = json!({"sessionId": "x", "messageUuid": id(2)});
    let rows = [&log[..3], &[forked, user(20, 2)]].concat();
    HistoryTestFiles::with(&rows, &own[..2]).check(
        None,
        10,
        expect![[r#"
            of 3
            1 it is a prompt without its answer
            2 safe
            3 it is a prompt without its answer, not in context
        "#]],
    );
}

#[test]
fn of_a_file_that_is_not_ours_the_next_prompt_ends_a_turn() {
    let (_, own) = two_turns();
    let folder = HistoryTestFiles::with(&own, &own);
    let found: Vec<u64> =
        (1..=5).filter(|&at| folder.cut(Some(at)).is_ok_and(|cut| cut.number == at)).collect();
    assert_eq!(found, [2, 5]);
}

#[test]
fn a_prompt_that_was_sent_meanwhile_does_not_take_the_files_of_the_turn_before() {
    let log =
        [run(0), user(1, 0), agent(2, 1), user(3, 2), result(), snapshot(2), agent(4, 3), result()];
    let own = [user(1, 0), agent(2, 1), user(3, 2), agent(4, 3)];
    HistoryTestFiles::with(&log, &own).check(
        None,
        10,
        expect![[r#"
            of 4
            1 it is a prompt without its answer
            2 it does not end a turn, files 0000
            3 it is a prompt without its answer
            4 safe
        "#]],
    );
}

#[test]
fn of_a_long_log_only_the_newest_runs_are_parsed() {
    let mut log: Vec<Json> = (0..100).map(|number| user(number + 1, number)).collect();
    // If the rows before it were read, they would count as well.
    log.extend([run(1_000_000), user(200, 100), agent(201, 200), result()]);
    let folder = HistoryTestFiles::with(&log, &log);
    let found = load_history(&folder.log, None, None, 2).unwrap();
    assert_eq!(found.total, 1_000_002);
    let numbers: Vec<u64> = found.messages.iter().map(|message| message.number).collect();
    assert_eq!(numbers, [1_000_001, 1_000_002]);
}

#[test]
fn what_the_files_were_before_the_first_turn_is_behind_no_message() {
    let begin = |session: &str| {
        let mut row = snapshot(9);
        row.as_object_mut().unwrap().remove("messageUuid");
        row["sessionId"] = session.into();
        row["snapshot"]["beginning"] = true.into();
        row
    };
    let fork = json!({"type": "system", "subtype": "session", PRIOR_COUNTS_KEY: {"messages": 2,
        "tokens": 0, "last": null}, "forkedFrom": {"messageUuid": id(2)}});
    let log = [
        run(0),
        begin("source"),
        user(1, 0),
        agent(2, 1),
        snapshot(2),
        result(),
        fork,
        begin("fork"),
        user(3, 2),
        agent(4, 3),
        result(),
    ];
    let folder = HistoryTestFiles::with(&log, &[user(1, 0), agent(2, 1), user(3, 2), agent(4, 3)]);
    let commit = |number: u64| folder.cut(Some(number)).unwrap().snapshot.map(|it| it.commit);
    assert_eq!((commit(2), commit(4)), (Some(format!("{:040x}", 2)), None));
    let noted = snapshots(&folder.log).unwrap();
    let begins = noted.iter().map(|it| it.initial_session.as_ref().map(|id| id.as_str()));
    assert_eq!(begins.collect::<Vec<_>>(), [Some("source"), None, Some("fork")]);
}

#[test]
fn a_snapshot_that_names_no_commit_or_leads_out_of_its_folder_is_none() {
    for (key, value) in [("commit", "HEAD"), ("repository", "../x"), ("repository", ".git")] {
        let mut row = snapshot(2);
        row["snapshot"][key] = value.into();
        let log = [run(0), user(1, 0), agent(2, 1), row, result()];
        let folder = HistoryTestFiles::with(&log, &log[1..3]);
        assert_eq!(folder.cut(None).unwrap().snapshot, None, "{value}");
    }
}

#[test]
fn a_page_ends_before_it_holds_too_much_and_a_message_that_is_too_large_is_cut() {
    let room = HistoryPageLimits { messages: 10, bytes: 3000 };
    let read = |log: &[Json]| {
        load_history_page(&HistoryTestFiles::with(log, &[]).log, None, None, room).unwrap()
    };
    let long = "x".repeat(800);
    let big = |uuid| said("assistant", uuid, uuid - 1, json!([{"type": "text", "text": long}]));
    let mut log = vec![run(0), user(1, 0)];
    log.extend((2..7).map(big));
    let page = read(&log);
    assert_eq!((page.messages.len(), page.total), (2, 6));
    let one = |uuid| {
        let mut row = big(uuid);
        row["message"]["id"] = "one".into();
        row
    };
    let page = read(&(2..7).map(one).collect::<Vec<_>>());
    assert_eq!((page.messages[0].rows.len(), page.messages[0].left_out), (2, 3));
}

#[test]
fn a_log_that_is_not_there_is_an_error_and_an_empty_one_has_no_messages() {
    let folder = HistoryTestFiles::new();
    assert!(load_history(&folder.log, None, None, 5).is_err());
    std::fs::write(&folder.log, "").unwrap();
    assert_eq!(
        load_history(&folder.log, None, None, 5).unwrap(),
        HistoryPage { messages: vec![], total: 0 }
    );
    let error = find_fork_point(&folder.log, None, None).unwrap_err();
    assert!(matches!(error, ForkPointError::NoSafePoint { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn any_page_and_any_cut_of_a_random_log_are_those_of_a_simple_reader(seed: u64) {
        let mut scene = random::RandomSessionFiles::play(seed);
        let folder = HistoryTestFiles::new();
        std::fs::write(&folder.log, &scene.log).unwrap();
        std::fs::write(&folder.own, &scene.own).unwrap();
        let expected = naive::read(&scene.log, &scene.own);
        let total = expected.last().map_or(0, |message| message.number);
        for _ in 0..4 {
            let (before, count) = scene.page(total);
            let found = load_history(&folder.log, Some(&folder.own), before, count).unwrap();
            prop_assert_eq!(found.total, total);
            let found: Vec<_> = found.messages.iter().map(naive::NaiveMessage::of).collect();
            let end = before.map_or(total, |before| before.saturating_sub(1).min(total)) as usize;
            let page = &expected[end.saturating_sub(count)..end];
            let page: Vec<_> =
                page.iter().map(|message| naive::NaiveMessage { end: 0, ..message.clone() }).collect();
            prop_assert_eq!(found, page, "before {:?}, {} messages", before, count);
        }
        for at in (1..=total).step_by(total as usize / 6 + 1) {
            let safe = expected[..at as usize].iter().rev().find(|message| message.is_safe);
            let found = folder.cut(Some(at));
            match safe {
                None => {
                    let is_refused = matches!(found, Err(ForkPointError::NoSafePoint { .. }));
                    prop_assert!(is_refused);
                }
                Some(safe) => {
                    let found = found.unwrap();
                    prop_assert_eq!(
                        (found.number, Some(found.uuid), found.end),
                        (safe.number, safe.uuid, safe.end)
                    );
                }
            }
        }
    }

    #[test]
    fn no_bytes_make_a_reader_fail(log in any::<Vec<u8>>(), own in any::<Vec<u8>>()) {
        let folder = HistoryTestFiles::new();
        std::fs::write(&folder.log, &log).unwrap();
        std::fs::write(&folder.own, &own).unwrap();
        load_history(&folder.log, Some(&folder.own), None, 10).unwrap();
        prop_assert!(folder.cut(None).is_err());
    }
}
