//! Records of agents as they are, and as others leave them.

use serde_json::json;

use super::*;

/// A record that is written line by line.
struct NativeSessionFixture {
    _folder: tempfile::TempDir,
    path: Utf8PathBuf,
}

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn parent(n: u128) -> Json {
    if n == 0 { Json::Null } else { json!(id(n)) }
}

fn user(n: u128, after: u128) -> Json {
    json!({"type": "user", "uuid": id(n), "parentUuid": parent(after), "isSidechain": false,
        "timestamp": format!("2026-11-15T10:00:{n:02}Z"),
        "message": {"role": "user", "content": format!("prompt {n}")}})
}

fn assistant(n: u128, after: u128) -> Json {
    json!({"type": "assistant", "uuid": id(n), "parentUuid": parent(after), "isSidechain": false,
        "timestamp": format!("2026-11-15T10:00:{n:02}Z"),
        "message": {"role": "assistant", "id": format!("m{n}"), "usage": {"input_tokens": 9},
        "content": [{"type": "text", "text": format!("reply {n}")}]}})
}

fn calls(n: u128, after: u128, message: &str) -> Json {
    let mut row = assistant(n, after);
    row["message"]["id"] = json!(message);
    row["message"]["content"] =
        json!([{"type": "tool_use", "id": format!("t{n}"), "name": "Bash", "input": {}}]);
    row
}

fn answers(n: u128, call: u128) -> Json {
    let mut row = user(n, call);
    row["message"]["content"] =
        json!([{"type": "tool_result", "tool_use_id": format!("t{call}"), "content": "ok"}]);
    row
}

fn aside(kind: &str) -> Json {
    json!({"type": kind, "sessionId": "s"})
}

impl NativeSessionFixture {
    fn new(rows: &[Json]) -> NativeSessionFixture {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap().join("s.jsonl");
        std::fs::write(&path, "").unwrap();
        let written = NativeSessionFixture { _folder: folder, path };
        written.add(rows);
        written
    }

    fn add(&self, rows: &[Json]) {
        let mut text = std::fs::read_to_string(&self.path).unwrap();
        rows.iter().for_each(|row| text += &format!("{row}\n"));
        std::fs::write(&self.path, text).unwrap();
    }

    #[track_caller]
    fn mark(&self) -> NativeSessionPosition {
        read_mark(&self.path).unwrap().unwrap()
    }

    fn since(&self, left: &NativeSessionPosition) -> (Vec<Uuid>, u64, bool) {
        let NativeSessionChanges { added, dropped, is_replaced: is_other } =
            changes_since(&self.path, left).unwrap();
        let ids = added.iter().map(|row| row["uuid"].as_str().unwrap().parse().unwrap());
        (ids.collect(), dropped, is_other)
    }
}

#[test]
fn a_mark_is_the_last_entry_of_the_conversation() {
    let mut sub = assistant(9, 2);
    sub["isSidechain"] = json!(true);
    let snapshot = json!({"type": "attachment", "uuid": id(8), "parentUuid": id(2)});
    let rows = [user(1, 0), assistant(2, 1), sub, snapshot, aside("cost-state")];
    let own = NativeSessionFixture::new(&rows);
    assert_eq!(own.mark().last, id(2));
    assert_eq!(own.mark().bytes, own.path.metadata().unwrap().len());
    assert_eq!(read_mark(&NativeSessionFixture::new(&[aside("mode")]).path).unwrap(), None);
    assert_eq!(read_mark(&NativeSessionFixture::new(&[]).path).unwrap(), None);
}

#[test]
fn what_is_far_from_the_end_is_found() {
    let mut rows = vec![user(1, 0)];
    rows.extend((0..500).map(|_| aside("mode")));
    assert_eq!(NativeSessionFixture::new(&rows).mark().last, id(1));
}

#[test]
fn an_entry_is_found_wherever_a_block_ends() {
    let own = NativeSessionFixture::new(&[user(1, 0), assistant(2, 1)]);
    assert!(contains_entry(&own.path, id(2)).unwrap());
    // It is only named as a parent.
    assert!(!contains_entry(&NativeSessionFixture::new(&[user(2, 1)]).path, id(1)).unwrap());
    let row = format!("{}\n", user(7, 0));
    for shift in 0..row.len() {
        let text = format!("{}\n{row}", "x".repeat(BLOCK_BYTES - shift));
        std::fs::write(&own.path, text).unwrap();
        assert!(contains_entry(&own.path, id(7)).unwrap(), "{shift}");
    }
}

#[test]
fn a_record_that_only_grew_beside_the_conversation_has_not_moved_on() {
    let own = NativeSessionFixture::new(&[user(1, 0), assistant(2, 1)]);
    let left = own.mark();
    assert!(!changes_since(&own.path, &left).unwrap().has_changed());
    let mut sub = assistant(3, 2);
    sub["isSidechain"] = json!(true);
    own.add(&[aside("cost-state"), sub, aside("last-prompt")]);
    assert!(!changes_since(&own.path, &left).unwrap().has_changed());
}

#[test]
fn what_others_said_is_told_in_order() {
    let own = NativeSessionFixture::new(&[user(1, 0), assistant(2, 1)]);
    let left = own.mark();
    let attached = json!({"type": "attachment", "uuid": id(4), "parentUuid": id(3)});
    own.add(&[user(3, 2), attached, assistant(5, 4), aside("cost-state")]);
    assert_eq!(own.since(&left), (vec![id(3), id(5)], 0, false));
    assert_eq!(changes_since(&own.path, &left).unwrap().message_count(), 2);
    assert!(!changes_since(&own.path, &own.mark()).unwrap().has_changed());
}

#[test]
fn tools_side_by_side_hang_beside_the_chain_and_belong_to_it() {
    let own = NativeSessionFixture::new(&[user(1, 0), assistant(2, 1)]);
    let left = own.mark();
    // As the real claude writes it: the second call and its result are on no chain.
    let rows = [
        user(3, 2),
        calls(4, 3, "m"),
        calls(5, 4, "m"),
        answers(6, 5),
        answers(7, 4),
        assistant(8, 7),
    ];
    own.add(&rows);
    assert_eq!(own.since(&left), ((3..=8).map(id).collect(), 0, false));
    assert_eq!(changes_since(&own.path, &left).unwrap().message_count(), 3);
}

#[test]
fn two_writers_make_branches_and_the_newer_one_drops_the_other() {
    let own =
        NativeSessionFixture::new(&[user(1, 0), assistant(2, 1), user(3, 2), assistant(4, 3)]);
    let left = own.mark();
    own.add(&[user(5, 2), assistant(6, 5)]);
    assert_eq!(own.since(&left), (vec![id(5), id(6)], 2, false));
}

#[test]
fn a_record_without_our_last_entry_is_another_one() {
    let own =
        NativeSessionFixture::new(&[user(1, 0), assistant(2, 1), user(3, 2), assistant(4, 3)]);
    let left = own.mark();
    let other = NativeSessionFixture::new(&[user(1, 0), assistant(2, 1)]);
    assert_eq!(other.since(&left), (vec![id(1), id(2)], 0, true));
    // One that is shorter by what is no part of the conversation is the same.
    let longer = NativeSessionPosition { bytes: left.bytes + 100, ..left };
    assert!(!changes_since(&own.path, &longer).unwrap().has_changed());
}

#[test]
fn what_was_made_shorter_still_follows_what_it_stands_for() {
    let own = NativeSessionFixture::new(&[user(1, 0), assistant(2, 1)]);
    let left = own.mark();
    let boundary = json!({"type": "system", "subtype": "compact_boundary", "uuid": id(3),
        "parentUuid": null, "logicalParentUuid": id(2)});
    own.add(&[boundary, user(4, 3), assistant(5, 4)]);
    assert_eq!(own.since(&left), (vec![id(4), id(5)], 0, false));
}

#[test]
fn strange_lines_harm_nobody() {
    let own = NativeSessionFixture::new(&[user(1, 0)]);
    let left = own.mark();
    let loop_to_itself = user(3, 3);
    let rows = [json!({"uuid": 7}), json!({"type": "user", "uuid": id(2)}), loop_to_itself];
    own.add(&rows);
    std::fs::write(&own.path, std::fs::read_to_string(&own.path).unwrap() + "half a l").unwrap();
    assert_eq!(own.since(&left).0, [id(3)]);
}

/// The ids of what is kept of these rows, in the order in which they are kept.
#[track_caller]
fn kept(rows: &[Json], keep: u32) -> Vec<u128> {
    let NativeRecentMessages { rows, .. } =
        last_messages(&NativeSessionFixture::new(rows).path, keep).unwrap().unwrap();
    let ids = rows.iter().map(|row| row["uuid"].as_str().unwrap().parse::<Uuid>().unwrap());
    ids.map(|id| id.as_u128()).collect()
}

/// Three turns: of two messages, of three with tools, of two.
fn three_turns() -> Vec<Json> {
    vec![
        user(1, 0),
        assistant(2, 1),
        user(3, 2),
        calls(4, 3, "m"),
        answers(5, 4),
        assistant(6, 5),
        user(7, 6),
        assistant(8, 7),
        aside("cost-state"),
    ]
}

#[test]
fn the_last_messages_begin_with_a_prompt() {
    let rows = three_turns();
    // Fewer than asked for, where they would begin with a reply or between a call and its result.
    for (keep, first) in [(100, 1), (7, 1), (6, 3), (5, 3), (4, 7), (3, 7), (2, 7)] {
        assert_eq!(kept(&rows, keep), (first..=8).collect::<Vec<_>>(), "{keep}");
    }
    assert_eq!(
        last_messages(&NativeSessionFixture::new(&rows).path, 2).unwrap().unwrap().last,
        id(8)
    );
    assert_eq!(last_messages(&NativeSessionFixture::new(&[aside("mode")]).path, 2).unwrap(), None);
}

#[test]
fn a_turn_that_is_longer_than_what_is_kept_is_kept_whole() {
    let rows = three_turns();
    assert_eq!(kept(&rows, 1), [7, 8]);
    assert_eq!(kept(&rows[..6], 1), [3, 4, 5, 6]);
    // Nobody prompted: all there is.
    assert_eq!(kept(&[assistant(1, 0), assistant(2, 1)], 1), [1, 2]);
}

#[test]
fn calls_side_by_side_are_kept_together_with_their_results_behind_them() {
    let rows = [
        user(1, 0),
        calls(2, 1, "m"),
        answers(3, 2),
        calls(4, 2, "m"),
        answers(5, 4),
        assistant(6, 5),
    ];
    assert_eq!(kept(&rows, 9), [1, 2, 4, 3, 5, 6]);
}

#[test]
fn what_is_on_another_branch_or_no_word_of_anybody_is_not_kept() {
    let mut failed = assistant(4, 3);
    failed["isApiErrorMessage"] = json!(true);
    let mut meta = user(3, 2);
    meta["isMeta"] = json!(true);
    let rows =
        [user(1, 0), assistant(2, 1), user(9, 1), assistant(10, 9), meta, failed, user(5, 4)];
    assert_eq!(kept(&rows, 9), [1, 2, 3, 5]);
}

#[test]
fn a_record_that_another_wrote_to_meanwhile_is_left_at_our_own_last_entry() {
    // We say 3 and 4, somebody else 5 and 6 from the same place; theirs is the newest.
    let written = NativeSessionFixture::new(&[user(1, 0), assistant(2, 1), user(3, 2), user(5, 2)]);
    written.add(&[assistant(4, 3), assistant(6, 5)]);
    let left = mark_after_run(&written.path, Some(id(4))).unwrap().unwrap();
    assert_eq!(left.last, id(4));
    assert_eq!(written.since(&left), (vec![id(5), id(6)], 2, false));

    // Ours is the newest: the conversation goes on from it.
    let written = NativeSessionFixture::new(&[user(1, 0), assistant(2, 1), user(5, 2), user(3, 2)]);
    written.add(&[assistant(6, 5), assistant(4, 3)]);
    assert_eq!(mark_after_run(&written.path, Some(id(4))).unwrap(), Some(written.mark()));

    // What follows ours, or that ours is not there, is no sign of another.
    let written = NativeSessionFixture::new(&[user(1, 0), assistant(2, 1), user(3, 2)]);
    for ours in [Some(id(2)), Some(id(3)), Some(id(9)), None] {
        assert_eq!(mark_after_run(&written.path, ours).unwrap(), Some(written.mark()), "{ours:?}");
    }
}

#[test]
fn a_link_is_no_session() {
    let temp = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(temp.path()).unwrap();
    let (cwd, session) = (Utf8Path::new("/work"), "a-session".parse().unwrap());
    let path = session_path(folder, cwd, &session);
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(folder.join("hidden"), user(1, 0).to_string()).unwrap();
    std::os::unix::fs::symlink(folder.join("hidden"), &path).unwrap();
    assert_eq!(find_session(folder, cwd, &session), None);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    assert_eq!(find_session(folder, cwd, &session), Some(path));
}
