//! Workers of a fleet that is played.

use serde_json::{Value as Json, json};

use super::super::fleet_client::fake::{FakeFleetClient, FakeFleetState, worker};
use super::*;

fn workers(scene: FakeFleetState) -> (FakeFleetClient, WorkerTools) {
    let (played, way) = FakeFleetClient::new(scene);
    (played, WorkerTools { client: way, message_retry_time: Duration::ZERO })
}

async fn call(workers: &WorkerTools, tool: &str, input: Json) -> ToolCallOutcome {
    let Json::Object(input) = input else { panic!("{input}") };
    workers.call(tool, "key-1".to_owned(), input).await
}

#[tokio::test]
async fn a_worker_is_started_in_a_session_of_its_own_under_the_name_of_the_call() {
    let (played, workers) = workers(FakeFleetState::default());
    let spawn = json!({"agent": "coder", "task": "write it"});
    let said = call(&workers, SPAWN_WORKER, spawn).await.unwrap();
    assert_eq!(said, "worker coder-1 is working (job-2026-01-02-abc123)");
    let named = json!({"agent": "coder", "task": "go", "name": "ada", "model": "opus"});
    let said = call(&workers, SPAWN_WORKER, named).await.unwrap();
    assert_eq!(said, "worker ada is working (job-2026-01-02-abc123)");
    let start = json!({"agent": "coder", "prompt": "as always"});
    let said = call(&workers, START_JOB, start).await.unwrap();
    assert_eq!(said, "job-2026-01-02-abc123 has started, as worker coder-1");
    let asked = [
        r#"start key-1 coder None None {"kind":"fresh"}: write it"#,
        r#"start key-1 coder Some("ada") Some("opus") {"kind":"fresh"}: go"#,
        r#"start key-1 coder None None {"kind":"usual"}: as always"#,
    ];
    assert_eq!(played.state().calls, asked);
}

#[tokio::test]
async fn what_the_fleet_refuses_is_told_with_its_reason() {
    let refusal = Some("job-1 has started 2 jobs, which is the most (`spawn` of lead)".to_owned());
    let (_, workers) =
        workers(FakeFleetState { refusal: refusal.clone(), ..FakeFleetState::default() });
    let spawn = json!({"agent": "coder", "task": "write it"});
    assert_eq!(call(&workers, SPAWN_WORKER, spawn).await.err(), refusal);
    let strange = json!({"agent": "no such/name", "task": "write it"});
    let said = call(&workers, SPAWN_WORKER, strange).await.unwrap_err();
    assert!(said.starts_with("`no such/name` is not a valid agent name: "), "{said}");
    let alone = WorkerTools::new(AsyncFleetClient::new(None));
    let said = call(&alone, LIST_WORKERS, json!({})).await.unwrap_err();
    assert_eq!(said, "this run was not started by a fleet, so fleet tools are unavailable");
}

#[tokio::test]
async fn workers_are_listed_with_what_they_do() {
    let (played, workers) = workers(FakeFleetState::default());
    let none = call(&workers, LIST_WORKERS, json!({})).await.unwrap();
    assert_eq!(none, "there are no workers in this conversation");
    played.state().workers = vec![
        worker("coder-1", WorkerState::Working),
        worker("coder-2", WorkerState::Waiting("coder is at its limit of 1".to_owned())),
        worker("coder-3", WorkerState::Failed("cancelled".to_owned())),
    ];
    let listed = call(&workers, LIST_WORKERS, json!({})).await.unwrap();
    let about = "(agent coder, job-2026-01-02-abc123, $0.25)";
    let expected = format!(
        "coder-1 {about} is still working; task: write it\n\
         coder-2 {about} waits to start: coder is at its limit of 1; task: write it\n\
         coder-3 {about} failed: cancelled; task: write it"
    );
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn a_message_reaches_a_worker_at_work_and_wakes_one_that_is_done() {
    let both = vec![worker("coder-1", WorkerState::Working), worker("coder-2", WorkerState::Done)];
    let (played, workers) = workers(FakeFleetState { workers: both, ..FakeFleetState::default() });
    let say = |name: &str| json!({"name": name, "message": "more"});
    let said = call(&workers, MESSAGE_WORKER, say("coder-1")).await.unwrap();
    assert_eq!(said, "coder-1 is working and received the message");
    let said = call(&workers, MESSAGE_WORKER, say("coder-2")).await.unwrap();
    assert_eq!(said, "coder-2 continues in its session (job-2026-01-02-abc123)");
    let asked = [
        "say job-2026-01-02-abc123: more",
        r#"start key-1 coder Some("coder-2") None {"kind":"given","id":"s1"}: more"#,
    ];
    assert_eq!(played.state().calls, asked);
    let said = call(&workers, MESSAGE_WORKER, say("coder-9")).await.unwrap_err();
    assert_eq!(said, "there is no worker `coder-9`; there are coder-1, coder-2");
}

#[tokio::test]
async fn a_worker_that_takes_nothing_at_present_is_told_so_after_a_while() {
    let waits = vec![worker("coder-1", WorkerState::Waiting("no room".to_owned()))];
    let hears = Some(WorkerMessageDelivery::Unavailable("no agent is at work on it".to_owned()));
    let (_, workers) =
        workers(FakeFleetState { workers: waits, delivery: hears, ..FakeFleetState::default() });
    let say = json!({"name": "coder-1", "message": "more"});
    let said = call(&workers, MESSAGE_WORKER, say).await.unwrap_err();
    assert_eq!(
        said,
        "coder-1 did not get the message: it waits to start: no room, and no agent is at work on it; try again later"
    );
}

#[tokio::test]
async fn a_message_to_a_worker_that_is_at_a_persons_job_is_refused_with_what_to_do() {
    let busy = vec![worker("coder-1", WorkerState::Working)];
    let (played, workers) = workers(FakeFleetState { workers: busy, ..FakeFleetState::default() });
    played.state().workers[0].open_jobs.clear();
    let say = json!({"name": "coder-1", "message": "more"});
    let said = call(&workers, MESSAGE_WORKER, say).await.unwrap_err();
    let why = "it works on a person's request and accepts messages only from people until that is \
               done; call wait_for_worker, then send it again";
    assert_eq!(said, format!("coder-1 did not get the message: {why}"));
    assert_eq!(played.state().calls, [""; 0]);
}

#[tokio::test]
async fn a_wait_ends_with_the_workers_or_in_time() {
    let both =
        || vec![worker("coder-1", WorkerState::Working), worker("coder-2", WorkerState::Done)];
    let (_, patient) =
        workers(FakeFleetState { workers: both(), done_after: 2, ..FakeFleetState::default() });
    let said = call(&patient, WAIT_FOR_WORKER, json!({})).await.unwrap();
    let done =
        |name: &str| format!("{name} is done (job-2026-01-02-abc123), and said:\nIt is written.");
    assert_eq!(said, format!("{}\n{}", done("coder-1"), done("coder-2")));

    let (_, late) = workers(FakeFleetState { workers: both(), ..FakeFleetState::default() });
    let wait = json!({"names": ["coder-1"], "timeout_seconds": 0});
    let said = call(&late, WAIT_FOR_WORKER, wait).await.unwrap();
    assert_eq!(said, "coder-1 is still working after 0 s (job-2026-01-02-abc123)");
    let wait = json!({"timeout_seconds": WAIT_SECONDS_MAX + 1});
    let said = call(&late, WAIT_FOR_WORKER, wait).await.unwrap_err();
    assert_eq!(said, "`timeout_seconds` is 3601; at most 3600, and call it again");
    let said = call(&late, WAIT_FOR_WORKER, json!({"names": ["ada"]})).await.unwrap_err();
    assert_eq!(said, "there is no worker `ada`; there are coder-1, coder-2");
    let (_, alone) = workers(FakeFleetState::default());
    let said = call(&alone, WAIT_FOR_WORKER, json!({})).await.unwrap_err();
    assert_eq!(said, "there are no workers to wait for; spawn_worker starts one");
}

#[tokio::test]
async fn a_worker_is_stopped_if_it_is_at_something() {
    let both = vec![worker("coder-1", WorkerState::Working), worker("coder-2", WorkerState::Done)];
    let (played, workers) = workers(FakeFleetState { workers: both, ..FakeFleetState::default() });
    let said = call(&workers, STOP_WORKER, json!({"name": "coder-1"})).await.unwrap();
    assert_eq!(said, "coder-1 is being stopped; call wait_for_worker to wait for its end");
    let said = call(&workers, STOP_WORKER, json!({"name": "coder-2"})).await.unwrap();
    assert_eq!(said, "coder-2 has no running job: it is done");
    // What it is at is a person's.
    played.state().workers[0].open_jobs.clear();
    let said = call(&workers, STOP_WORKER, json!({"name": "coder-1"})).await.unwrap_err();
    assert_eq!(said, "coder-1 is working on a person's request, which only a person may stop");
    assert_eq!(played.state().calls, ["stop job-2026-01-02-abc123"]);
}

#[test]
fn of_long_words_the_end_is_told() {
    assert_eq!(truncate_start("short"), "short");
    let told = truncate_start(&format!("{}é{}", "x".repeat(9), "y".repeat(REPLY_BYTES_MAX - 1)));
    let expected = "… (11 bytes before this are in its transcript)\nyyy";
    assert!(told.starts_with(expected), "{}", &told[..80]);
    assert_eq!(first_line(&"é".repeat(TASK_CHARS_MAX + 1)).chars().count(), TASK_CHARS_MAX + 1);
}
