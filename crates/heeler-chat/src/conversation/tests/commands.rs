//! Tests of command output.

use super::leaving::worker;
use super::*;

#[test]
fn help_tells_the_commands_and_the_keys_that_there_are() {
    let mut rig = ConversationFixture::new();
    rig.say("/help");
    let text = rig.shown().pop().unwrap();
    assert!(text.contains("\n/undo                            take the last turn back"), "{text}");
    assert!(text.contains("\nCtrl+X                           does nothing\n"), "{text}");
    let own = "\n/compact                         shorten the context (of the agent)";
    assert!(text.ends_with(own), "{text}");
}

#[test]
fn commands_of_the_agent_are_sent_to_it_and_unknown_ones_are_not() {
    let mut rig = ConversationFixture::new();
    rig.say("/compact keep the names");
    assert_eq!(rig.stage.calls()[0], "ask /compact keep the names");
    rig.is(1, ChatJobState::Done);
    rig.shown();
    rig.say("/compat");
    assert!(rig.shown()[0].starts_with("unknown command /compat"));
    rig.say("//compat");
    assert_eq!(rig.shown(), ["User /compat"]);
}

fn ended(command: &str, output: &str) -> ChatFleetEvent {
    ChatFleetEvent::ShellEnded(crate::ShellCommandOutput {
        command: command.to_owned(),
        output: output.to_owned(),
        outcome: "exit status 0".to_owned(),
    })
}

#[test]
fn output_of_a_command_goes_with_the_next_message_and_with_no_other() {
    let mut rig = ConversationFixture::new();
    let now = rig.now;
    rig.say("!ls src");
    assert_eq!(rig.stage.calls(), ["run ls src"], "no agent is asked");
    assert_eq!(rig.conversation().display.status.busy.as_deref(), Some("running your command"));
    rig.say("!!date");
    assert_eq!(rig.shown(), ["suggested: !!date", "another command is running; Esc stops it"]);
    rig.conversation().handle_action(UserAction::Interrupt, now);
    assert_eq!(rig.stage.calls(), ["stop"]);
    rig.conversation().handle_fleet_event(ended("ls src", "main.rs\n"), now);
    assert_eq!(rig.shown(), ["$ ls src\nmain.rs\n(goes with your next message)"]);
    assert_eq!(rig.conversation().display.status.attached, 1);
    rig.say("!!date");
    rig.conversation().handle_fleet_event(ended("date", "Monday"), now);
    assert_eq!(rig.shown(), ["$ date\nMonday"]);
    let message = "what is this?\n\nI ran `ls src` (exit status 0):\n```\nmain.rs\n```";
    rig.say("what is this?");
    assert_eq!(rig.shown(), [format!("User {message}")], "the transcript has what was sent");
    assert_eq!(rig.stage.with(|played| played.prompts.clone()), [message]);
    rig.is(1, ChatJobState::Done);
    rig.say("and now?");
    assert_eq!(rig.stage.with(|played| played.prompts.last().cloned()).unwrap(), "and now?");
}

#[test]
fn only_a_person_on_a_screen_runs_commands() {
    let mut rig = ConversationFixture::new();
    let session_file = rig.conversation.take().unwrap().record.session_file;
    rig.begin(session_file, |options| options.attended = false);
    rig.say("!rm -rf /");
    assert_eq!(rig.stage.calls()[0], "ask !rm -rf /", "a line of a script is a message");
    let mut rig = ConversationFixture::new();
    rig.say("/loop \"!ls\" 5m");
    rig.pass(1);
    assert!(rig.stage.calls().iter().all(|call| !call.starts_with("run ")));
    rig.conversation().handle_fleet_event(ended("ls", "not asked for"), Timestamp::UNIX_EPOCH);
    assert_eq!(rig.conversation().display.status.attached, 0);
}

#[test]
fn output_beyond_the_limit_is_only_shown() {
    let mut rig = ConversationFixture::new();
    let now = rig.now;
    rig.say("!cat big");
    let big = "x".repeat(super::shell_commands::ATTACHED_BYTES_MAX);
    rig.conversation().handle_fleet_event(ended("cat big", &big), now);
    assert!(
        rig.shown()[0]
            .ends_with("(not kept for your next message: more than 256 KiB wait already)")
    );
    assert_eq!(rig.conversation().display.status.attached, 0);
}

#[test]
fn a_queued_message_is_visible_and_returns_to_the_input() {
    let mut rig = ConversationFixture::new();
    rig.say("first");
    rig.say("second\nline");
    rig.say("third");
    let now = rig.now;
    let texts = rig.conversation().display.status.queued_texts.clone();
    assert_eq!(texts, ["second", "third"]);
    rig.shown();
    rig.conversation().handle_action(UserAction::EditQueued, now);
    assert_eq!(rig.shown(), ["suggested: third"]);
    assert_eq!(rig.conversation().display.status.queued, 1);
    rig.conversation().handle_action(UserAction::EditQueued, now);
    rig.conversation().handle_action(UserAction::EditQueued, now);
    assert_eq!(rig.shown(), ["suggested: second\nline"], "there are no more");
}

#[test]
fn a_diff_is_of_the_session_and_its_failure_is_told() {
    let mut rig = ConversationFixture::new();
    rig.say("/diff");
    assert_eq!(rig.shown(), ["no changes yet: no turn has run"]);
    rig.say("go");
    rig.is(1, ChatJobState::Done);
    rig.stage.calls();
    rig.shown();
    rig.say("/diff");
    assert_eq!(rig.stage.calls(), [format!("diff {}", rig.stage.session(1))]);
    let now = rig.now;
    for (diff, expected) in [
        (Ok("+a".to_owned()), "Diff(\"+a\")"),
        (Ok("\n".to_owned()), "no files were changed in this session"),
        (Err("no snapshot".to_owned()), "no snapshot"),
    ] {
        rig.conversation().handle_fleet_event(ChatFleetEvent::DiffLoaded(diff), now);
        assert_eq!(rig.shown(), [expected]);
    }
}

#[test]
fn the_last_answer_or_its_code_is_copied() {
    let mut rig = ConversationFixture::new();
    rig.say("/copy");
    assert_eq!(rig.shown(), ["there is no answer to copy yet"]);
    rig.say("go");
    rig.said(1, 0, "See:\n```\nmake\n```");
    rig.shown();
    rig.say("/copy");
    assert_eq!(rig.shown(), ["Clipboard(\"See:\\n```\\nmake\\n```\")"]);
    rig.say("/copy 1");
    assert_eq!(rig.shown(), ["Clipboard(\"make\")"]);
    rig.say("/copy 2");
    assert_eq!(rig.shown(), ["the last answer has 1 code blocks"]);
    rig.said(1, 1, &"x".repeat(crate::CLIPBOARD_BYTES_MAX + 1));
    rig.shown();
    rig.say("/copy");
    assert!(rig.shown()[0].starts_with("74001 bytes are too many"));
}

#[test]
fn permissions_tell_the_rules_and_what_waits_for_an_answer() {
    let mut rig = ConversationFixture::new();
    rig.say("/permissions");
    let nothing = "waiting  no open questions";
    assert_eq!(rig.shown(), [format!("boss may do anything, attended: true\n{nothing}")]);
    let session_file = rig.conversation.take().unwrap().record.session_file;
    rig.begin(session_file, |options| options.attended = false);
    rig.say("/permissions");
    assert_eq!(rig.shown(), [format!("boss may do anything, attended: false\n{nothing}")]);
}

#[test]
fn an_agent_that_asks_is_said_to_wait_until_it_is_answered() {
    let mut rig = ConversationFixture::new();
    rig.say("go");
    rig.row(1, 0, json!({"type": "assistant", "content": "May I?"}));
    assert_eq!(rig.conversation().display.status.busy.as_deref(), Some("thinking"));
    let ask = json!({"protocol": 1, "id": "a1", "at": rig.now, "kind": "permission", "tool": "Bash",
        "input": {"command": "make"}});
    let (ask, now) = (serde_json::from_value(ask).unwrap(), rig.now);
    rig.conversation().handle_fleet_event(ChatFleetEvent::QuestionAsked { job: job(1), ask }, now);
    assert_eq!(rig.conversation().display.status.busy.as_deref(), Some("waiting for an answer"));
    rig.conversation().handle_fleet_event(
        ChatFleetEvent::QuestionClosed { job: job(1), ask: "a1".to_owned() },
        now,
    );
    assert_eq!(rig.conversation().display.status.busy.as_deref(), Some("thinking"));
}

#[test]
fn an_answer_names_the_request_that_was_shown() {
    let mut rig = ConversationFixture::new();
    rig.say("go");
    let ask = json!({"protocol": 1, "id": "a1", "at": rig.now, "kind": "permission", "tool": "Bash",
        "input": {"command": "make"}});
    let ask: AgentQuestion = serde_json::from_value(ask).unwrap();
    let (shown, now) = (ask.shown_hash(), rig.now);
    rig.conversation().handle_fleet_event(ChatFleetEvent::QuestionAsked { job: job(1), ask }, now);
    rig.stage.calls();
    let answer = QuestionAnswer::Allow { input: None };
    let action = UserAction::Answer { job: job(1), ask: "a1".to_owned(), answer };
    rig.conversation().handle_action(action, now);
    let expected = format!("answer job-2026-01-02-aaaa01 a1 {:?}", Some(shown));
    assert_eq!(rig.stage.calls(), [expected]);
}

#[test]
fn a_permission_for_the_conversation_goes_with_later_turns_only() {
    let mut rig = ConversationFixture::new();
    rig.say("go");
    let grant = json!({"allow": [{"tool": "Bash", "content": "make:*"}]});
    let ask = json!({"protocol": 1, "id": "a1", "at": rig.now, "kind": "permission", "tool": "Bash",
        "input": {"command": "make"}, "grant": grant});
    let ask: AgentQuestion = serde_json::from_value(ask).unwrap();
    let now = rig.now;
    rig.conversation().handle_fleet_event(ChatFleetEvent::QuestionAsked { job: job(1), ask }, now);
    let answer = QuestionAnswer::AllowSession;
    let action = UserAction::Answer { job: job(1), ask: "a1".to_owned(), answer };
    rig.conversation().handle_action(action, now);
    let given = rig.conversation().describe_grants().unwrap();
    assert!(given.contains("Bash(make:*)"), "{given}");
    let request = rig.conversation().turn_request(Uuid::nil(), "next");
    assert_eq!(request.permissions.describe(), "Bash(make:*)");
    assert!(rig.stage.with(|played| played.permissions[0].is_empty()));
}

#[test]
fn shift_tab_goes_through_the_modes_and_back() {
    let mut rig = ConversationFixture::new();
    let now = rig.now;
    let mut modes = Vec::new();
    for _ in 0..4 {
        rig.conversation().handle_action(UserAction::CycleMode, now);
        modes.push(rig.conversation().display.status.mode.clone().unwrap());
    }
    assert_eq!(modes, ["acceptEdits", "plan", "default", "acceptEdits"]);
    let request = rig.conversation().turn_request(Uuid::nil(), "next");
    assert_eq!(request.permissions.mode.as_deref(), Some("acceptEdits"));
}

#[test]
fn workers_are_listed_in_columns_with_what_they_cost() {
    let mut rig = ConversationFixture::new();
    rig.say("go");
    let now = rig.now;
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    rig.shown();
    rig.say("/workers");
    assert_eq!(rig.shown(), ["coder-1  running  $0.00  Fix it."]);
}

#[test]
fn what_is_said_while_another_programs_session_is_copied_is_sent_when_it_is_ours() {
    let mut rig = ConversationFixture::new();
    let theirs = rig.folder().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::write(theirs.join("old.json"), r#"{"schemaVersion":3}"#).unwrap();
    let line = format!("{{\"role\":\"user\",\"content\":\"{}\"}}\n", "x".repeat(10_000));
    std::fs::write(theirs.join("old.transcript.ndjson"), line.repeat(2000)).unwrap();
    let directory = SessionDirectory::new(rig.folder().join("sessions"), vec![theirs]);
    let mut session_file =
        directory.open("old", rig.now, crate::OldFormatPolicy::Migrate).unwrap().session_file;
    session_file.save_or_defer(|about| about.agent = Some("boss".to_owned())).unwrap();
    rig.begin(session_file, |_| {});
    rig.shown();
    rig.say("/cost");
    assert_eq!(rig.shown(), ["no cost yet: no turn has reported its cost"]);
    rig.say("hello");
    assert_eq!(
        rig.shown(),
        [
            "this session belongs to another program: its 20 MB are copied, then your message is sent"
        ]
    );
    assert_eq!(rig.conversation().display.status.busy.as_deref(), Some("copying the session"));
    rig.say("/tasks add more");
    while rig.conversation().display.status.busy.as_deref() == Some("copying the session") {
        rig.pass(1);
    }
    assert_eq!(rig.stage.calls()[..1], ["ask hello"]);
    assert_eq!(rig.shown(), ["User hello", "  1 [ ] more"]);
}

/// Opens a session of another program, with a worker.
fn open_foreign(rig: &mut ConversationFixture) {
    let theirs = rig.folder().join("theirs");
    std::fs::create_dir_all(theirs.join("old.workers")).unwrap();
    let roster = r#"[{"agentId":"scout","transcriptPath":"scout.ndjson"}]"#;
    let json = format!(r#"{{"schemaVersion":3,"workers":{roster}}}"#);
    std::fs::write(theirs.join("old.json"), json).unwrap();
    let lines = "{\"role\":\"user\",\"content\":\"Paint it blue.\"}\n\
        {\"role\":\"tool\",\"name\":\"view\",\"args\":{}}\n\
        {\"role\":\"assistant\",\"content\":\"It is blue.\"}\n";
    std::fs::write(theirs.join("old.transcript.ndjson"), lines).unwrap();
    let lines = "{\"role\":\"system\",\"content\":\"Worker spawned\"}\n\
        {\"role\":\"assistant\",\"content\":\"I found paint.\"}\n";
    std::fs::write(theirs.join("old.workers/scout.ndjson"), lines).unwrap();
    let directory = SessionDirectory::new(rig.folder().join("sessions"), vec![theirs]);
    let mut session_file =
        directory.open("old", rig.now, crate::OldFormatPolicy::Migrate).unwrap().session_file;
    session_file.save_or_defer(|about| about.agent = Some("boss".to_owned())).unwrap();
    rig.begin(session_file, |_| {});
    rig.shown();
}

#[test]
fn workers_of_another_program_are_listed_viewed_and_searched() {
    let mut rig = ConversationFixture::new();
    open_foreign(&mut rig);
    rig.say("/workers");
    assert_eq!(rig.shown(), ["scout  done     $0.00"]);
    rig.say("/view scout");
    assert_eq!(rig.shown()[1..], ["System Worker spawned | Assistant I found paint."]);
    rig.say("/search paint");
    let shown = rig.shown();
    assert!(shown.iter().any(|line| line.contains("I found paint.")), "{shown:?}");
    rig.say("go on");
    let shown = rig.shown();
    assert!(shown.iter().any(|line| line.contains("another program ran it")), "{shown:?}");
    // A fleet that tells of its own workers keeps this one.
    rig.say("/view main");
    let now = rig.now;
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    rig.shown();
    rig.say("/workers");
    assert!(rig.shown()[0].starts_with("scout  "), "it stays");
}

#[test]
fn the_first_turn_in_a_session_of_another_program_tells_the_agent_its_history() {
    let mut rig = ConversationFixture::new();
    open_foreign(&mut rig);
    rig.say("Now green.");
    let prompts = rig.stage.with(|played| played.prompts.clone());
    assert_eq!(
        prompts,
        [
            "Now green.\n\n(Earlier in this conversation:\nuser: Paint it blue.\nassistant: It is blue.)"
        ]
    );
    rig.said(1, 0, "It is green.");
    rig.is(1, ChatJobState::Done);
    rig.say("Thanks.");
    let prompts = rig.stage.with(|played| played.prompts.clone());
    assert_eq!(prompts[1..], ["Thanks."], "later turns continue the native session");
}

#[test]
fn a_new_session_has_no_history_to_tell() {
    let mut rig = ConversationFixture::new();
    rig.say("go");
    assert_eq!(rig.stage.with(|played| played.prompts.clone()), ["go"]);
}

#[test]
fn a_session_of_another_program_that_was_only_read_is_not_said_to_be_saved() {
    let mut rig = ConversationFixture::new();
    open_foreign(&mut rig);
    rig.say("/exit");
    rig.pass(1);
    let shown = rig.shown();
    assert!(shown.contains(&"Nothing was changed in session old".to_owned()), "{shown:?}");
    assert!(shown.contains(&"Resume: heeler --resume old".to_owned()), "{shown:?}");
    assert!(!rig.folder().join("sessions/old.json").exists());
}
