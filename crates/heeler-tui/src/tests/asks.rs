//! Tests of permission requests and questions.

use super::*;

fn allow(id: &str) -> UserAction {
    answer(id, QuestionAnswer::Allow { input: None })
}

fn deny(id: &str, message: &str, interrupt: bool) -> UserAction {
    answer(id, QuestionAnswer::Deny { message: message.to_owned(), interrupt })
}

fn answer(id: &str, answer: QuestionAnswer) -> UserAction {
    let job = "job-2026-11-16-abc123".parse().unwrap();
    UserAction::Answer { job, ask: id.to_owned(), answer }
}

fn edit() -> Json {
    json!({"file_path": "src/a.rs", "old_string": "let a = 1;\nlet b = 2;", "new_string": "let a = 1;\nlet b = 3;"})
}

#[test]
fn a_permission_for_the_conversation_is_named_in_full() {
    let mut rig = ScreenFixture::new(60, 18);
    let input = json!({"command": "npm test"});
    let rule = format!("npm test {}:*", "x".repeat(40));
    let grant = json!({"allow": [{"tool": "Bash", "content": rule}]});
    let ask = json!({"protocol": 1, "id": "1", "at": now(), "kind": "permission", "tool": "Bash",
        "input": input, "grant": grant});
    let ask = serde_json::from_value(ask).unwrap();
    let job = "job-2026-11-16-abc123".parse().unwrap();
    let of = ChatSpeaker::Coordinator;
    rig.screen.handle_output(ChatOutput::QuestionAsked(ChatQuestion { of, job, ask }));
    rig.check(expect![[r#"





        ? the agent wants to use Bash
        │ npm test
        │ choices 2 and 3 allow, without asking: Bash(npm test xxxxx
        │ xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx:*)
        ▸ 1. allow it once
          2. allow for this conversation: Bash(npm test xxxxxxxxxxx…
          3. allow always: Bash(npm test xxxxxxxxxxxxxxxxxxxxxxxxxx…
          4. deny it
          5. deny it and say why
        a number or Enter · Esc: deny and end the turn · Tab: type
        ────────────────────────────────────────────────────────────
        ›
    "#]]);
    assert_eq!(rig.keys("3"), [answer("1", QuestionAnswer::AllowAlways)]);
}

#[test]
fn a_request_shows_what_is_wanted_and_takes_one_answer() {
    let mut rig = ScreenFixture::new(60, 18);
    rig.say(EntryRole::User, "go");
    rig.ask("1", ChatSpeaker::Coordinator, "permission", "Edit", edit());
    rig.ask(
        "2",
        ChatSpeaker::Worker("coder-1".to_owned()),
        "permission",
        "Bash",
        json!({"command": "ls"}),
    );
    rig.ask("1", ChatSpeaker::Coordinator, "permission", "Edit", edit());
    rig.check(expect![[r#"





        › go
        ? the agent wants to use Edit (1 of 2)
        │ file_path: src/a.rs
        │   let a = 1;
        │ - let b = 2;
        │ + let b = 3;
        ▸ 1. allow it once
          2. deny it
          3. deny it and say why
        a number or Enter · Esc: deny and end the turn · Tab: type
        ────────────────────────────────────────────────────────────
        ›
    "#]]);
    assert_eq!(rig.keys("1"), [allow("1")]);
    rig.check(expect![[r#"








        › go
        ? coder-1 wants to use Bash
        │ ls
        ▸ 1. allow it once
          2. deny it
          3. deny it and say why
        a number or Enter · Esc: deny and end the turn · Tab: type
        ────────────────────────────────────────────────────────────
        ›
    "#]]);
    assert_eq!(rig.keys("<Down><Enter>"), [deny("2", "the person does not want this", false)]);
    assert_eq!(
        rig.keys("1<Enter>"),
        [UserAction::SendLine("1".to_owned())],
        "nothing is asked any more"
    );
}

#[test]
fn a_key_is_no_answer_to_what_was_not_seen_when_it_was_pressed() {
    let mut rig = ScreenFixture::new(60, 18);
    rig.draw();
    rig.ask("1", ChatSpeaker::Coordinator, "permission", "Bash", json!({"command": "rm -rf /"}));
    assert_eq!(rig.screen.handle_event(&events("1")[0]), []);
    rig.draw();
    assert_eq!(rig.screen.handle_event(&events("1")[0]), [], "what is typed goes on");
    rig.check(expect![[r#"









        ? the agent wants to use Bash
        │ rm -rf /
        ▸ 1. allow it once
          2. deny it
          3. deny it and say why
        Tab: answer this
        ────────────────────────────────────────────────────────────
        › 11
    "#]]);
    assert_eq!(rig.keys("<Tab>1"), [allow("1")]);
    rig.ask("2", ChatSpeaker::Coordinator, "permission", "Bash", json!({"command": "x"}));
    rig.ask("3", ChatSpeaker::Coordinator, "permission", "Bash", json!({"command": "y"}));
    rig.keys("<C-c>");
    rig.draw();
    let one = &events("1")[0];
    assert_eq!(
        (rig.screen.handle_event(one), rig.screen.handle_event(one)),
        (vec![allow("2")], vec![])
    );
}

#[test]
fn a_denial_can_have_a_reason_and_esc_ends_the_turn() {
    let mut rig = ScreenFixture::new(60, 14);
    for id in ["1", "2"] {
        rig.ask(id, ChatSpeaker::Coordinator, "permission", "Bash", json!({"command": "make"}));
    }
    rig.keys("3use ninja");
    rig.check(expect![[r#"







        ? the agent wants to use Bash (1 of 2)
        │ make
        » use ninja
        Enter: deny, with this reason · Esc: back
        ────────────────────────────────────────────────────────────
        ›
    "#]]);
    assert_eq!(rig.keys("<Esc>3no 1<Enter>"), [deny("1", "no 1", false)]);
    assert_eq!(rig.keys("<Esc>"), [deny("2", "the person does not want this", true)]);
}

#[test]
fn what_is_settled_elsewhere_vanishes() {
    let mut rig = ScreenFixture::new(60, 12);
    for id in ["1", "2", "3"] {
        rig.ask(
            id,
            ChatSpeaker::Coordinator,
            "permission",
            "Bash",
            json!({"command": format!("run {id}")}),
        );
    }
    rig.keys("3half a rea");
    for id in ["2", "1", "nobody knows"] {
        rig.screen.handle_output(ChatOutput::QuestionClosed { ask: id.to_owned() });
    }
    rig.check(expect![[r#"



        ? the agent wants to use Bash
        │ run 3
        ▸ 1. allow it once
          2. deny it
          3. deny it and say why
        a number or Enter · Esc: deny and end the turn · Tab: type
        ────────────────────────────────────────────────────────────
        ›
        the question was closed"#]]);
    assert_eq!(rig.keys("1"), [allow("3")]);
}

#[test]
fn keys_that_were_meant_for_what_is_settled_answer_nothing_else() {
    let mut rig = ScreenFixture::new(60, 12);
    rig.keys("draft");
    for id in ["1", "2"] {
        rig.ask(id, ChatSpeaker::Coordinator, "permission", "Bash", json!({"command": "x"}));
    }
    rig.keys("<Tab>");
    rig.screen.handle_output(ChatOutput::QuestionClosed { ask: "1".to_owned() });
    assert_eq!(rig.keys("1<Enter>"), [UserAction::SendLine("draft1".to_owned())]);
    assert_eq!(rig.keys("1"), [allow("2")]);
}

#[test]
fn a_long_request_is_cut_to_the_room_and_can_be_read_whole() {
    let mut rig = ScreenFixture::new(40, 16);
    let script: Vec<String> = (1..=40).map(|number| format!("step {number}")).collect();
    rig.ask(
        "1",
        ChatSpeaker::Coordinator,
        "permission",
        "Bash",
        json!({"command": script.join("\n")}),
    );
    rig.check(expect![[r#"



        ? the agent wants to use Bash
        │ step 1
        │ step 2
        │ step 3
        │ step 4
        … 1-4 of 40 lines: PgUp PgDn Ctrl+E
        ▸ 1. allow it once
          2. deny it
          3. deny it and say why
        a number or Enter · Esc: deny and end t…
        ────────────────────────────────────────
        ›
    "#]]);
    rig.keys("<PgDn><PgDn>");
    rig.check(expect![[r#"



        ? the agent wants to use Bash
        │ step 9
        │ step 10
        │ step 11
        │ step 12
        … 9-12 of 40 lines: PgUp PgDn Ctrl+E
        ▸ 1. allow it once
          2. deny it
          3. deny it and say why
        a number or Enter · Esc: deny and end t…
        ────────────────────────────────────────
        ›
    "#]]);
    rig.keys("<C-e><PgDn><PgDn><PgDn><PgDn><PgDn><PgDn>");
    rig.check(expect![[r#"
        ? the agent wants to use Bash
        │ step 34
        │ step 35
        │ step 36
        │ step 37
        │ step 38
        │ step 39
        │ step 40
        … 34-40 of 40 lines: PgUp PgDn Ctrl+E
        ▸ 1. allow it once
          2. deny it
          3. deny it and say why
        a number or Enter · Esc: deny and end t…
        ────────────────────────────────────────
        ›
    "#]]);
    assert_eq!(rig.keys("2"), [deny("1", "the person does not want this", false)]);
}

#[test]
fn questions_are_answered_by_number_by_ticks_and_in_words() {
    let mut rig = ScreenFixture::new(60, 16);
    let input = json!({"questions": [
        {"question": "Which colour?", "options": [{"label": "red", "description": "warm"}, {"label": "blue"}]},
        {"question": "Which sizes?", "multiSelect": true, "options": [{"label": "s"}, {"label": "m"}, {"label": "l"}]},
        {"question": "Why?"},
    ]});
    rig.ask("1", ChatSpeaker::Coordinator, "question", "AskUserQuestion", input.clone());
    rig.check(expect![[r#"







        ? the agent asks, question 1 of 3
        │ Which colour?
        ▸ 1. red: warm
          2. blue
          3. another answer, in your own words
        a number or Enter · Esc: no answer, end the turn · Tab: type
        ────────────────────────────────────────────────────────────
        ›
    "#]]);
    rig.keys("2");
    rig.keys("1<Down><Down> ");
    rig.check(expect![[r#"






        ? the agent asks, question 2 of 3
        │ Which sizes?
          1. [x] s
          2. [ ] m
        ▸ 3. [x] l
          4. another answer, in your own words
        numbers or Space: tick · Enter: answer · Esc: no answer, en…
        ────────────────────────────────────────────────────────────
        ›
    "#]]);
    rig.keys("<Enter>");
    rig.keys("because");
    rig.check(expect![[r#"









        ? the agent asks, question 3 of 3
        │ Why?
        » because
        Enter: answer · Esc: back
        ────────────────────────────────────────────────────────────
        ›
    "#]]);
    let mut answered = input;
    answered["answers"] =
        json!({"Which colour?": "blue", "Which sizes?": "s, l", "Why?": "because"});
    assert_eq!(rig.keys("<Enter>"), [answer("1", QuestionAnswer::Allow { input: Some(answered) })]);
}

#[test]
fn an_own_answer_and_a_step_back_are_possible() {
    let mut rig = ScreenFixture::new(60, 16);
    let options = json!([{"label": "a"}, {"label": "b"}]);
    let input = json!({"questions": [
        {"question": "One?", "options": options}, {"question": "Two?", "options": options},
    ]});
    rig.ask("1", ChatSpeaker::Coordinator, "question", "AskUserQuestion", input.clone());
    let actions = rig.keys("1<Left>3my own<Enter>2");
    let mut answered = input;
    answered["answers"] = json!({"One?": "my own", "Two?": "b"});
    assert_eq!(actions, [answer("1", QuestionAnswer::Allow { input: Some(answered) })]);
}

#[test]
fn what_there_is_no_room_to_show_cannot_be_answered() {
    let mut rig = ScreenFixture::new(20, 2);
    rig.ask("1", ChatSpeaker::Coordinator, "permission", "Bash", json!({"command": "x"}));
    assert_eq!(rig.keys("1"), []);
    rig.terminal.backend_mut().resize(20, 4);
    rig.check(expect![[r#"
        ? the agent wants t…
        │ x
        › 1
        ? a question is ope…"#]]);
    rig.terminal.backend_mut().resize(20, 6);
    rig.keys("<C-c>");
    rig.check(expect![[r#"

        ? the agent wants t…
        │ x
        ▸ 1. allow it once
        ›
    "#]]);
    assert_eq!(rig.keys("1"), [allow("1")]);
}
