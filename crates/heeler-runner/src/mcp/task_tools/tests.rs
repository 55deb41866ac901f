//! Tasks of a conversation that is played.

use serde_json::{Value as Json, json};

use super::super::fleet_client::fake::{FakeFleetClient, FakeFleetState};
use super::*;

fn task(text: &str, done: bool) -> TaskSnapshot {
    TaskSnapshot { text: text.to_owned(), done }
}

fn tasks(
    list: Option<Vec<TaskSnapshot>>,
) -> (FakeFleetClient, TaskTools, mpsc::Receiver<ToolNote>) {
    let (played, way) =
        FakeFleetClient::new(FakeFleetState { tasks: list, ..FakeFleetState::default() });
    let (notes, noted) = mpsc::channel(4);
    (played, TaskTools::new(way, notes), noted)
}

async fn call(tasks: &TaskTools, tool: &str, input: Json) -> ToolCallOutcome {
    let Json::Object(input) = input else { panic!("{input}") };
    tasks.call(tool, input).await
}

#[tokio::test]
async fn what_is_added_and_done_is_recorded_and_seen_on_the_list() {
    let (played, tasks, mut noted) = tasks(Some(vec![task("plan", true)]));
    let conversation = async {
        let added = noted.recv().await.unwrap();
        assert_eq!(
            (added.subtype(), added.fields()),
            ("tasks_added", json!({"tasks": ["a", "b"]}))
        );
        played.state().tasks.as_mut().unwrap().extend([task("a", false), task("b", false)]);
        let finished = noted.recv().await.unwrap();
        assert_eq!(
            (finished.subtype(), finished.fields()),
            ("task_finished", json!({"number": 2, "description": "a"}))
        );
        played.state().tasks.as_mut().unwrap()[1].done = true;
    };
    let agent = async {
        let said = call(&tasks, ADD_TASKS, json!({"tasks": ["a", "b"]})).await.unwrap();
        assert_eq!(said, "added:\n2. a\n3. b");
        let said = call(&tasks, FINISH_TASK, json!({"number": 2})).await.unwrap();
        assert_eq!(said, "task 2 is done");
    };
    tokio::join!(conversation, agent);
    let said = call(&tasks, LIST_TASKS, json!({})).await.unwrap();
    assert_eq!(said, "1. plan (done)\n2. a (done)\n3. b");
    let said = call(&tasks, FINISH_TASK, json!({"number": 2})).await.unwrap();
    assert_eq!(said, "task 2 was done already");
}

#[tokio::test]
async fn what_cannot_be_on_the_list_is_refused_and_not_recorded() {
    let (_, tasks, mut noted) = tasks(Some(vec![]));
    let (many, long) = (vec!["x"; ADDED_MAX + 1], "x".repeat(TASK_BYTES_MAX + 1));
    for (tool, input, expected) in [
        (ADD_TASKS, json!({"tasks": []}), "0 tasks were given; one call adds 1 to 100"),
        (ADD_TASKS, json!({"tasks": many}), "101 tasks were given; one call adds 1 to 100"),
        (ADD_TASKS, json!({"tasks": ["a", " "]}), "a task is empty; describe the work"),
        (ADD_TASKS, json!({"tasks": [long]}), "a task has 1025 bytes; at most 1024: shorten it"),
        (FINISH_TASK, json!({"number": 0}), "there is no task 0; the list has 0"),
        (FINISH_TASK, json!({"number": 1}), "there is no task 1; the list has 0"),
    ] {
        assert_eq!(call(&tasks, tool, input).await, Err(expected.to_owned()));
    }
    assert_eq!(call(&tasks, LIST_TASKS, json!({})).await, Ok("there are no tasks".to_owned()));
    assert!(noted.try_recv().is_err());
}

#[tokio::test]
async fn of_a_long_task_the_beginning_is_recorded() {
    let long = format!("{}é", "x".repeat(TASK_PREFIX_BYTES_MAX - 1));
    let (_, tasks, mut noted) = tasks(Some(vec![task(&long, false)]));
    let tasks = TaskTools { update_wait: Duration::ZERO, ..tasks };
    let said = call(&tasks, FINISH_TASK, json!({"number": 1})).await.unwrap();
    assert_eq!(said, "recorded; the conversation has not updated its list yet");
    let text = "x".repeat(TASK_PREFIX_BYTES_MAX - 1);
    assert_eq!(noted.recv().await, Some(ToolNote::TaskFinished { number: 1, text }));
}

#[tokio::test]
async fn outside_of_a_conversation_there_is_no_list() {
    let (_, tasks, mut noted) = tasks(None);
    let said = call(&tasks, ADD_TASKS, json!({"tasks": ["a"]})).await.unwrap_err();
    assert_eq!(said, "this job is not a turn of a conversation, so it has no task list");
    assert!(noted.try_recv().is_err());
}

#[tokio::test]
async fn a_conversation_that_nobody_has_open_takes_it_up_later() {
    let (_, tasks, mut noted) = tasks(Some(vec![]));
    let tasks = TaskTools { update_wait: Duration::ZERO, ..tasks };
    let said = call(&tasks, ADD_TASKS, json!({"tasks": ["a"]})).await.unwrap();
    assert_eq!(said, "recorded; the conversation has not added all of them yet");
    assert_eq!(noted.recv().await, Some(ToolNote::TasksAdded { tasks: vec!["a".to_owned()] }));
}
