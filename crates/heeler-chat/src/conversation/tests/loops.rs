//! Tests of loops and tasks.

use super::*;

#[test]
fn a_loop_comes_back_until_the_goal_is_reached() {
    let mut rig = ConversationFixture::new();
    rig.say("/loop \"make it green\" 1m");
    rig.said(1, 1, "Red.");
    rig.is(1, ChatJobState::Done);
    rig.pass(59);
    assert_eq!(rig.stage.with(|played| played.turns.len()), 1);
    rig.pass(1);
    assert_eq!(rig.stage.with(|played| played.turns.len()), 2);
    rig.said(2, 1, "Green.\nGOAL REACHED");
    rig.is(2, ChatJobState::Done);
    rig.pass(600);
    assert_eq!(rig.stage.with(|played| played.turns.len()), 2);
    assert!(rig.shown().contains(&"System The goal is reached: the loop has ended.".to_owned()));
}

#[test]
fn loops_are_kept_and_rest_until_the_person_restarts_them() {
    let mut rig = ConversationFixture::new();
    rig.say("/loop \"stay green\" 1m");
    rig.is(1, ChatJobState::Done);
    rig.crash();
    rig.is(1, ChatJobState::Done);
    rig.pass(3600);
    assert_eq!(rig.stage.with(|played| played.turns.len()), 1);
    assert!(rig.shown().iter().any(|line| line.contains("A loop was active here")));
    rig.say("/restart");
    assert_eq!(rig.stage.with(|played| played.turns.len()), 2);
}

#[test]
fn a_loops_turn_that_a_crash_cut_off_counts_once() {
    let mut rig = ConversationFixture::new();
    for task in ["a", "b", "c"] {
        rig.say(&format!("/tasks add {task}"));
    }
    rig.say("/start");
    // Everything but the end was reported before the crash.
    rig.said(1, 1, "TASK DONE");
    for _ in 0..2 {
        rig.crash();
        rig.is(1, ChatJobState::Done);
        let done = rig
            .conversation()
            .record
            .session_file
            .state()
            .tasks
            .iter()
            .filter(|task| task.done)
            .count();
        assert_eq!(done, 1);
    }
    rig.pass(600);
    assert_eq!(rig.stage.with(|played| played.turns.len()), 1, "it rests");
    rig.say("/restart");
    assert_eq!(rig.stage.calls().last().unwrap(), &format!("follow {} 0", job(2)));
    rig.crash();
    rig.said(2, 1, "TASK DONE");
    rig.is(2, ChatJobState::Done);
    rig.shown();
    rig.say("/tasks");
    assert_eq!(rig.shown(), ["  1 [x] a\n  2 [x] b\n  3 [ ] c"]);
}

#[test]
fn tasks_that_the_agent_adds_count_once_and_are_worked_through() {
    let mut rig = ConversationFixture::new();
    rig.say("plan");
    let asked = json!({"type": "tool_use", "tool_name": "mcp__jira__add_tasks", "tool_use_id": "t",
        "input": {"tasks": ["of somebody else's list"]}});
    rig.row(1, 1, asked);
    let add = json!({"type": "system", "subtype": "tasks_added", "content": "added to the tasks: a; b; c",
        "tasks": ["a", "b", "c"]});
    rig.row(1, 2, add);
    rig.row(
        1,
        3,
        json!({"type": "system", "subtype": "task_finished", "number": 1, "content": "done"}),
    );
    rig.is(1, ChatJobState::Done);
    rig.shown();
    rig.say("/start");
    rig.said(2, 1, "TASK DONE");
    rig.is(2, ChatJobState::Done);
    rig.pass(30);
    rig.said(3, 1, "TASK DONE");
    rig.is(3, ChatJobState::Done);
    assert!(rig.shown().contains(&"System All tasks are done: the loop has ended.".to_owned()));
    rig.pass(30);
    assert_eq!(rig.stage.with(|played| played.turns.len()), 3);
}

#[test]
fn an_agent_that_marks_its_task_and_says_so_too_has_done_one() {
    let mut rig = ConversationFixture::new();
    rig.say("/tasks add a");
    rig.say("/tasks add b");
    rig.say("/start");
    let done =
        json!({"type": "system", "subtype": "task_finished", "number": 1, "content": "done"});
    rig.row(1, 1, done);
    rig.said(1, 2, "TASK DONE");
    rig.is(1, ChatJobState::Done);
    rig.shown();
    rig.say("/tasks");
    assert_eq!(rig.shown(), ["  1 [x] a\n  2 [ ] b"]);
}
