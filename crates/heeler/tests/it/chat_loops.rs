//! Tasks and loops of a conversation, on its screen.

use expect_test::expect;

use crate::chat_lines::session;
use crate::chat_screen::{answered, chat, leave};
use crate::chat_workers::call;
use crate::pty::Pty;

#[test]
fn tasks_that_the_agent_adds_are_worked_through_until_none_is_open() {
    let add = call("add_tasks", "tasks: [sand the door, paint the door]");
    let (fleet, pty) = chat(&format!(
        "{{when: {{prompt: plan}}, do: [{add}, {{say: Planned.}}], else: [{{say: \"Done.\\nTASK DONE\"}}]}}"
    ));
    pty.type_in("plan it\r");
    answered(&pty, "● Planned.");
    pty.type_in("/tasks\r");
    pty.check(&expect![[r#"
        › plan it
          ✓ mcp__heeler__add_tasks ["sand the door","paint the door"]
          added to the tasks: sand the door; paint the door

        ● Planned.

            1 [ ] sand the door
            2 [ ] paint the door
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 87 tokens · 2 tasks"#]]);
    pty.type_in("/start 10s\r");
    pty.shows("· 1 task · 1 loop");
    pty.shows("All tasks are done: the loop has ended.");
    pty.type_in("/tasks\r");
    pty.check(&expect![[r#"
          ✓ mcp__heeler__add_tasks ["sand the door","paint the door"]
          added to the tasks: sand the door; paint the door

        ● Planned.

            1 [ ] sand the door
            2 [ ] paint the door

          loop 1: the tasks every 10s, 0 turns; /stop ends it

        › sand the door

          (This is task 1 of the session's list. When it is done, say TASK DONE on a line of its own.)

        ● Done.
          TASK DONE

        › paint the door

          (This is task 2 of the session's list. When it is done, say TASK DONE on a line of its own.)

        ● Done.
          TASK DONE
          All tasks are done: the loop has ended.

            1 [x] sand the door
            2 [x] paint the door
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 163 tokens"#]]);
    leave(pty);
    let said = session(&fleet).1;
    let asked: Vec<&str> = said.iter().filter_map(|it| it.strip_prefix("user ")).collect();
    let first_lines: Vec<&str> = asked.iter().filter_map(|it| it.lines().next()).collect();
    assert_eq!(first_lines, ["plan it", "sand the door", "paint the door"]);
}

#[test]
fn a_loop_comes_back_until_the_goal_is_reached() {
    let (_fleet, pty) = chat(
        r#"{when: {turn: 1}, do: [{say: Still red.}], else: [{say: "All green.\nGOAL REACHED"}]}"#,
    );
    pty.type_in("/loop \"make it green\" 8d\r");
    pty.shows("`8d`: a loop's interval must be from 1s to 7d");
    pty.type_in("/loop \"make it green\" 1s\r");
    answered(&pty, "● Still red.");
    pty.shows("· 1 loop");
    pty.shows("The goal is reached: the loop has ended.");
    pty.check(&expect![[r#"
        ! `8d`: a loop's interval must be from 1s to 7d

          loop 1: "make it green" every 1s, 0 turns; /stop ends it

        › make it green

          (This is turn 1 of a loop toward this goal. Go on from where it stands. When it is reached, say
          GOAL REACHED on a line of its own.)

        ● Still red.

        › make it green

          (This is turn 2 of a loop toward this goal. Go on from where it stands. When it is reached, say
          GOAL REACHED on a line of its own.)

        ● All green.
          GOAL REACHED
          The goal is reached: the loop has ended.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 96 tokens"#]]);
    leave(pty);
}

#[test]
fn a_loop_rests_in_a_resumed_session_until_it_is_restarted() {
    let (fleet, pty) =
        chat("{when: {turn: 3}, do: [{say: GOAL REACHED}], else: [{say: 'Turn {turn}.'}]}");
    pty.type_in("/loop \"make it green\" 7d\r");
    answered(&pty, "● Turn 1.");
    leave(pty);
    let id = session(&fleet).0;
    let pty = Pty::start(&fleet, &["--resume", &id, "--no-insights"]);
    pty.shows("A loop was active here: /loops lists, /restart restarts.");
    pty.type_in("/loops\r");
    pty.check(&expect![[r#"
        › make it green

          (This is turn 1 of a loop toward this goal. Go on from where it stands. When it is reached, say
          GOAL REACHED on a line of its own.)

        ● Turn 1.

          A loop was active here: /loops lists, /restart restarts.

          1  "make it green" every 7d, 1 turn  (paused: /restart)
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 46 tokens"#]]);
    pty.type_in("/restart\r");
    answered(&pty, "● Turn 2.");
    leave(pty);
    let resumed = ["chat", "--resume", &id, "--restart-loops", "--no-insights"];
    let pty = Pty::start(&fleet, &resumed);
    pty.shows("The goal is reached: the loop has ended.");
    pty.type_in("/loops\r");
    pty.shows("no loops; /loop");
    leave(pty);
}
