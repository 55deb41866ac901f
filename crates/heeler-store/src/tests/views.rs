//! Tests of views: their shape, hand edits, and preserved keys.

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expect_test::{Expect, expect};
use heeler_model::{AgentState, AgentStatus, ExitReason, ScheduleState, ScheduleStatus};

use super::*;
use crate::{HandEdits, OpenedStore, PublishReport, PublishedView, STARTED_AT, ViewPublisher};

#[track_caller]
fn publish(store: &Store) -> PublishReport {
    let report = store.publish_views(later(1)).unwrap();
    assert!(report.failed.is_empty(), "{report:?}");
    report
}

fn reopen(place: &TempStateDir) -> OpenedStore {
    Store::open(&place.dir, "test", later(60)).unwrap()
}

#[track_caller]
fn check(place: &TempStateDir, path: &str, expect: &Expect) {
    expect.assert_eq(&place.read(path));
}

#[test]
fn a_fresh_directory_gets_no_view_before_its_first_change() {
    let place = place();
    let store = place.store();
    assert_eq!(publish(&store), PublishReport::default());
    assert!(!place.has("state.yaml"));
}

fn finish(job: &mut Job) {
    job.head.status = JobStatus::Completed;
    job.head.exit_reason = Some(ExitReason::Success);
    job.head.finished_at = Some(later(324));
    job.head.duration_ms = Some(322_500);
    job.head.cost_usd = Some(0.25);
    job.head.session_id = Some("claude-session-xyz789".parse().unwrap());
    job.head.summary = Some("Traffic up 12% from yesterday.".to_owned());
    job.stop_reason = Some("end_turn".to_owned());
    job.usage.num_turns = Some(7);
    job.usage.per_model.insert("m-1".to_owned(), serde_json::json!({"input_tokens": 5}));
}

#[test]
fn a_job_looks_as_the_documents_show_it() {
    let place = place();
    let store = place.store();
    let mut job = job(1, "bragdoc-marketer", JobStatus::Pending);
    job.head.trigger_type = TriggerType::Schedule;
    job.head.schedule = Some("daily-analytics".to_owned());
    let text = "Analyze site traffic for the past 24 hours.\nCreate a brief report.\n";
    job.prompt = Some(text.to_owned());
    insert_jobs(&store, vec![job.clone()]);
    publish(&store);
    let path = format!("jobs/{}.yaml", job.head.id);
    check(
        &place,
        &path,
        &expect![[r#"
            id: job-2026-11-15-000001
            agent: bragdoc-marketer
            schedule: daily-analytics
            trigger_type: schedule
            status: pending
            exit_reason: null
            session_id: null
            forked_from: null
            started_at: "2026-11-15T00:48:58.120Z"
            finished_at: null
            duration_seconds: null
            prompt: |
              Analyze site traffic for the past 24 hours.
              Create a brief report.
            summary: null
            output_file: job-2026-11-15-000001.jsonl
        "#]],
    );
    finish(&mut job);
    commit(&store, move |tx| tx.update_job(&job));
    publish(&store);
    check(
        &place,
        &path,
        &expect![[r#"
            id: job-2026-11-15-000001
            agent: bragdoc-marketer
            schedule: daily-analytics
            trigger_type: schedule
            status: completed
            exit_reason: success
            stop_reason: end_turn
            session_id: claude-session-xyz789
            forked_from: null
            started_at: "2026-11-15T00:48:58.120Z"
            finished_at: "2026-11-15T00:54:21.120Z"
            duration_seconds: 323
            prompt: |
              Analyze site traffic for the past 24 hours.
              Create a brief report.
            summary: Traffic up 12% from yesterday.
            output_file: job-2026-11-15-000001.jsonl
            usage:
              per_model:
                m-1:
                  input_tokens: 5
              num_turns: 7
              total_cost_usd: 0.25
        "#]],
    );
}

#[test]
fn sessions_look_as_the_documents_show_them() {
    let place = place();
    let store = place.store();
    let mut session = session(0xa1b2, "bragdoc-coder");
    session.log_path = Some("agent-sessions/projects/-p/agent-session-41394.jsonl".into());
    let mut in_session = job(1, "bragdoc-coder", JobStatus::Running);
    in_session.head.session_id.clone_from(&session.agent_session_id);
    let own = session.clone();
    commit(&store, move |tx| {
        tx.put_session(&own)?;
        tx.set_agent_session("bragdoc-coder", Some(&own.id))?;
        tx.insert_job(&in_session)
    });
    publish(&store);
    check(
        &place,
        "sessions/bragdoc-coder.json",
        &expect![[r#"
            {
              "agent_name": "bragdoc-coder",
              "session_id": "agent-session-41394",
              "created_at": "2026-11-15T00:48:57.120Z",
              "last_used_at": "2026-11-15T12:18:51.120Z",
              "job_count": 3,
              "mode": "autonomous",
              "working_directory": "/home/me/project",
              "runtime_type": "sdk",
              "docker_enabled": false
            }
        "#]],
    );
    check(
        &place,
        "sessions/sess-0000a1b2.json",
        &expect![[r#"
            {
              "id": "sess-0000a1b2",
              "agentId": "bragdoc-coder",
              "mode": "persistent",
              "status": "paused",
              "createdAt": "2026-11-15T00:48:57.120Z",
              "lastActiveAt": "2026-11-15T12:18:51.120Z",
              "messageCount": 47,
              "tokenEstimate": 32000,
              "jobs": [
                "job-2026-11-15-000001"
              ],
              "agentSessionId": "agent-session-41394"
            }
        "#]],
    );
    let link = std::fs::read_link(place.root.join("sessions/sess-0000a1b2.context")).unwrap();
    assert_eq!(link.to_str().unwrap(), "../agent-sessions/projects/-p/agent-session-41394.jsonl");
    commit(&store, |tx| tx.set_agent_session("bragdoc-coder", None));
    publish(&store);
    assert!(!place.has("sessions/bragdoc-coder.json"));
    assert!(place.has("sessions/sess-0000a1b2.json"));
}

#[test]
fn a_session_that_is_taken_away_is_no_agents_any_more() {
    let place = place();
    let store = place.store();
    let own = session(1, "coder");
    let id = own.id.clone();
    commit(&store, move |tx| {
        tx.put_session(&own)?;
        tx.set_agent_session("coder", Some(&own.id))
    });
    publish(&store);
    assert!(place.has("sessions/coder.json"));
    commit(&store, move |tx| {
        let own = tx.session(&id)?.unwrap();
        tx.discard_unused_session(&own)?;
        // Another session may come to have its id.
        tx.put_session(&own).map(|_| ())
    });
    assert_eq!(place.reader().agent_session("coder").unwrap(), None);
    publish(&store);
    assert!(!place.has("sessions/coder.json"));
}

fn put(store: &Store, agent: AgentState) {
    commit(store, move |tx| tx.put_agent("coder", &agent));
    publish(store);
}

fn schedule(status: ScheduleStatus, last: Option<i64>, next: Option<i64>) -> ScheduleState {
    let (last_run_at, next_run_at) = (last.map(later), next.map(later));
    ScheduleState { status, last_run_at, next_run_at, last_error: None }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one life, told in order, the file shown at each step")]
fn every_field_of_state_yaml_goes_through_one_life() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| tx.set_meta(STARTED_AT, &heeler_model::iso_millis(now())));
    let mut agent = AgentState {
        next_schedule: Some("check".to_owned()),
        next_trigger_at: Some(later(300)),
        ..AgentState::default()
    };
    agent.schedules.insert("check".to_owned(), schedule(ScheduleStatus::Idle, None, Some(300)));
    agent.schedules.insert("daily".to_owned(), schedule(ScheduleStatus::Disabled, None, None));
    put(&store, agent.clone());
    check(
        &place,
        "state.yaml",
        &expect![[r#"
            fleet:
              started_at: "2026-11-15T00:48:57.120Z"
            agents:
              coder:
                status: idle
                current_job: null
                last_job: null
                next_schedule: check
                next_trigger_at: "2026-11-15T00:53:57.120Z"
                container_id: null
                error_message: null
                schedules:
                  check:
                    status: idle
                    last_run_at: null
                    next_run_at: "2026-11-15T00:53:57.120Z"
                    last_error: null
                  daily:
                    status: disabled
                    last_run_at: null
                    next_run_at: null
                    last_error: null
        "#]],
    );
    agent.status = AgentStatus::Running;
    agent.current_job = Some(job_id(1));
    agent.next_schedule = None;
    agent.next_trigger_at = None;
    agent.container_id = Some("0123e4".to_owned());
    agent.schedules.insert("check".to_owned(), schedule(ScheduleStatus::Running, None, None));
    agent.schedules.shift_remove("daily");
    put(&store, agent.clone());
    check(
        &place,
        "state.yaml",
        &expect![[r#"
            fleet:
              started_at: "2026-11-15T00:48:57.120Z"
            agents:
              coder:
                status: running
                current_job: job-2026-11-15-000001
                last_job: null
                next_schedule: null
                next_trigger_at: null
                container_id: "0123e4"
                error_message: null
                schedules:
                  check:
                    status: running
                    last_run_at: null
                    next_run_at: null
                    last_error: null
        "#]],
    );
    agent.status = AgentStatus::Error;
    agent.current_job = None;
    agent.last_job = Some(job_id(1));
    agent.container_id = None;
    agent.error_message = Some("it failed: see the log".to_owned());
    let mut failed = schedule(ScheduleStatus::Idle, Some(320), Some(600));
    failed.last_error = Some("exit 1".to_owned());
    agent.schedules.insert("check".to_owned(), failed);
    put(&store, agent.clone());
    check(
        &place,
        "state.yaml",
        &expect![[r#"
            fleet:
              started_at: "2026-11-15T00:48:57.120Z"
            agents:
              coder:
                status: error
                current_job: null
                last_job: job-2026-11-15-000001
                next_schedule: null
                next_trigger_at: null
                container_id: null
                error_message: "it failed: see the log"
                schedules:
                  check:
                    status: idle
                    last_run_at: "2026-11-15T00:54:17.120Z"
                    next_run_at: "2026-11-15T00:58:57.120Z"
                    last_error: exit 1
        "#]],
    );
    put(&store, AgentState { last_job: Some(job_id(1)), ..AgentState::default() });
    check(
        &place,
        "state.yaml",
        &expect![[r#"
            fleet:
              started_at: "2026-11-15T00:48:57.120Z"
            agents:
              coder:
                status: idle
                current_job: null
                last_job: job-2026-11-15-000001
                next_schedule: null
                next_trigger_at: null
                container_id: null
                error_message: null
        "#]],
    );
    commit(&store, |tx| tx.remove_agent("coder"));
    publish(&store);
    check(
        &place,
        "state.yaml",
        &expect![[r#"
            fleet:
              started_at: "2026-11-15T00:48:57.120Z"
            agents: {}
        "#]],
    );
}

fn publish_all_and_add_foreign_keys(place: &TempStateDir, store: &Store, job_path: &str) {
    let own = session(1, "coder");
    let mut agent = AgentState::default();
    agent.schedules.insert("check".to_owned(), ScheduleState::default());
    commit(store, move |tx| {
        tx.put_agent("coder", &agent)?;
        tx.insert_job(&job(1, "coder", JobStatus::Pending))?;
        tx.put_session(&own)?;
        tx.set_agent_session("coder", Some(&own.id))
    });
    publish(store);
    let state = place
        .read("state.yaml")
        .replace(
            "status: idle\n        last_run",
            "x_nested: 1\n        status: idle\n        last_run",
        )
        .replace("fleet: {}", "fleet:\n  x_fleet: [1, two]")
        .replace("    current_job", "    x_agent: {deep: yes please}\n    current_job");
    let state =
        format!("{state}session_wakes:\n  w1:\n    id: w1\n    recurring: true\nzz: last\n");
    place.write("state.yaml", &state);
    place.write(job_path, &format!("x_job: true\n{}", place.read(job_path)));
    for path in ["sessions/coder.json", "sessions/sess-00000001.json"] {
        place.write(path, &place.read(path).replacen('{', "{\n  \"x_session\": 5,", 1));
    }
}

#[test]
fn keys_of_others_survive_in_every_view() {
    let place = place();
    let store = place.store();
    let job_path = format!("jobs/{}.yaml", job_id(1));
    publish_all_and_add_foreign_keys(&place, &store, &job_path);
    commit(&store, |tx| {
        tx.put_schedule("coder", "check", &schedule(ScheduleStatus::Running, None, None))?;
        let mut running = job(1, "coder", JobStatus::Running);
        running.version = 1;
        tx.update_job(&running)?;
        tx.put_session(&session(1, "coder"))
    });
    assert_eq!(publish(&store).written, 4);
    check(
        &place,
        "state.yaml",
        &expect![[r#"
            fleet:
              x_fleet:
              - 1
              - two
            agents:
              coder:
                status: idle
                current_job: null
                last_job: null
                next_schedule: null
                next_trigger_at: null
                container_id: null
                error_message: null
                schedules:
                  check:
                    status: running
                    last_run_at: null
                    next_run_at: null
                    last_error: null
                    x_nested: 1
                x_agent:
                  deep: yes please
            session_wakes:
              w1:
                id: w1
                recurring: true
            zz: last
        "#]],
    );
    assert!(
        place.read(&job_path).contains("status: running")
            && place.read(&job_path).contains("x_job: true")
    );
    for path in ["sessions/coder.json", "sessions/sess-00000001.json"] {
        assert!(place.read(path).contains("\"x_session\": 5"), "{path}");
    }
}

#[test]
fn a_key_of_others_survives_however_often_state_yaml_changes_before_and_after() {
    let place = place();
    let store = place.store();
    let change = |agent: &'static str| {
        commit(&store, move |tx| tx.put_agent(agent, &AgentState::default()));
        assert_eq!(publish(&store).written, 1);
    };
    ["one", "two", "three"].into_iter().for_each(change);
    place.write("state.yaml", &format!("{}x_theirs: 1\n", place.read("state.yaml")));
    ["four", "five", "six"].into_iter().for_each(change);
    let state = place.read("state.yaml");
    assert!(state.contains("x_theirs: 1") && state.contains("six:"), "{state}");
    // A person has removed it again.
    place.write("state.yaml", &state.replace("x_theirs: 1\n", ""));
    ["seven", "eight"].into_iter().for_each(change);
    let state = place.read("state.yaml");
    assert!(!state.contains("x_theirs") && state.contains("eight:"), "{state}");
}

#[test]
fn a_status_reset_by_hand_is_taken_over_at_the_next_start() {
    let place = place();
    let store = place.store();
    let mut agent = AgentState { status: AgentStatus::Running, ..AgentState::default() };
    agent.current_job = Some(job_id(1));
    agent.schedules.insert("check".to_owned(), schedule(ScheduleStatus::Running, None, None));
    agent.schedules.insert("daily".to_owned(), schedule(ScheduleStatus::Idle, None, None));
    put(&store, agent.clone());
    drop(store);
    let edited = place.read("state.yaml").replace("running", "idle").replacen(
        "daily:\n        status: idle",
        "daily:\n        status: disabled",
        1,
    );
    place.write("state.yaml", &edited);
    let opened = reopen(&place);
    let edits: Vec<_> = opened
        .hand_edits
        .statuses
        .iter()
        .map(|edit| {
            format!("{}/{:?}: {} → {}", edit.agent, edit.schedule, edit.old_status, edit.new_status)
        })
        .collect();
    assert_eq!(
        edits,
        [
            "coder/None: running → idle",
            "coder/Some(\"check\"): running → idle",
            "coder/Some(\"daily\"): idle → disabled"
        ]
    );
    assert_eq!(opened.hand_edits.agents_before, [("coder".to_owned(), agent.clone())]);
    let found = place.reader().agent("coder").unwrap().unwrap();
    assert_eq!((found.status, found.current_job), (AgentStatus::Idle, None));
    assert_eq!(found.schedules["daily"].status, ScheduleStatus::Disabled);
    // The engine finds that the run lives, and undoes it.
    put(&opened.store, agent);
    assert!(place.read("state.yaml").contains("status: running\n    current_job: job-"));
    drop(opened);
    assert_eq!(reopen(&place).hand_edits, HandEdits::default());
}

#[test]
fn nothing_becomes_running_by_hand() {
    let place = place();
    let store = place.store();
    put(&store, AgentState::default());
    drop(store);
    place.write("state.yaml", &place.read("state.yaml").replace("status: idle", "status: running"));
    let opened = reopen(&place);
    assert_eq!(opened.hand_edits, HandEdits::default());
    assert!(place.read("state.yaml").contains("status: idle"));
}

#[test]
fn an_unreadable_state_yaml_is_kept_beside_and_written_anew() {
    let place = place();
    let store = place.store();
    put(&store, AgentState::default());
    drop(store);
    place.write("state.yaml", "agents: [unclosed\n  status: : idle");
    let opened = reopen(&place);
    let [aside] = opened.hand_edits.moved_aside.as_slice() else { panic!("{opened:?}") };
    assert_eq!(std::fs::read_to_string(aside).unwrap(), "agents: [unclosed\n  status: : idle");
    assert!(place.read("state.yaml").contains("status: idle"));
}

fn with_agent_session(place: &TempStateDir) -> Store {
    let store = place.store();
    commit(&store, |tx| {
        let session = session(1, "coder");
        tx.put_session(&session)?;
        tx.set_agent_session("coder", Some(&session.id))
    });
    store
}

#[test]
fn deleting_an_agents_session_file_lets_its_next_job_start_afresh() {
    let place = place();
    let store = with_agent_session(&place);
    publish(&store);
    drop(store);
    std::fs::remove_file(place.root.join("sessions/coder.json")).unwrap();
    let opened = reopen(&place);
    assert_eq!(opened.hand_edits.detached, ["coder"]);
    let reader = place.reader();
    assert_eq!(reader.agent_session("coder").unwrap(), None);
    assert!(reader.session(&SessionId::mint(1)).unwrap().is_some(), "it stays listed");
    assert!(!place.has("sessions/coder.json"));
    // A new session gets its file, although one of that name was deleted.
    commit(&opened.store, |tx| {
        let session = session(2, "coder");
        tx.put_session(&session)?;
        tx.set_agent_session("coder", Some(&session.id))
    });
    publish(&opened.store);
    assert!(place.read("sessions/coder.json").contains("agent-session-2"));
}

#[test]
fn an_agents_session_file_deleted_while_the_daemon_lives_does_not_come_back() {
    let place = place();
    let store = with_agent_session(&place);
    publish(&store);
    std::fs::remove_file(place.root.join("sessions/coder.json")).unwrap();
    commit(&store, |tx| tx.put_session(&session(1, "coder")));
    assert_eq!(publish(&store).detached, ["coder"]);
    assert!(!place.has("sessions/coder.json"));
    assert_eq!(place.reader().agent_session("coder").unwrap(), None);
}

#[test]
fn a_session_file_that_was_never_published_is_not_taken_for_deleted() {
    let place = place();
    drop(with_agent_session(&place));
    assert_eq!(reopen(&place).hand_edits, HandEdits::default());
    assert!(place.has("sessions/coder.json"), "what was due is published at the next start");
}

#[test]
fn any_other_missing_view_comes_back_at_its_next_change() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    put(&store, AgentState::default());
    let job_path = format!("jobs/{}.yaml", job_id(1));
    for path in [job_path.as_str(), "state.yaml"] {
        std::fs::remove_file(place.root.join(path)).unwrap();
    }
    assert_eq!(publish(&store).written, 0);
    commit(&store, |tx| tx.update_job(&job(1, "coder", JobStatus::Running)));
    put(&store, AgentState::default());
    assert!(place.read(&job_path).contains("status: running") && place.has("state.yaml"));
}

#[test]
fn a_crash_between_the_file_and_its_record_is_not_taken_for_a_hand_edit() {
    let place = place();
    let store = place.store();
    put(&store, AgentState::default());
    // As if the process had died after the rename: the hash was announced, not confirmed; and the
    // database moved on.
    let running = AgentState { status: AgentStatus::Running, ..AgentState::default() };
    commit(&store, |tx| {
        let older = "UPDATE views SET pending_sha256 = sha256, sha256 = 'older'";
        tx.conn.run_batch(older, "test")
    });
    commit(&store, move |tx| tx.put_agent("coder", &running));
    drop(store);
    let opened = reopen(&place);
    assert_eq!(opened.hand_edits, HandEdits::default());
    assert!(place.read("state.yaml").contains("status: running"));
}

#[test]
fn an_adopted_view_is_not_written_again() {
    let place = place();
    let store = place.store();
    let path = format!("jobs/{}.yaml", job_id(1));
    place.write(&path, "id: as it was\n");
    let sha = crate::views::sha256_hex(b"id: as it was\n");
    commit(&store, move |tx| {
        tx.insert_job(&job(1, "coder", JobStatus::Pending))?;
        tx.adopt_view(&PublishedView::Job(job_id(1)), &sha, now())
    });
    assert_eq!(publish(&store), PublishReport::default());
    assert_eq!(place.read(&path), "id: as it was\n");
}

#[test]
fn a_view_that_cannot_be_written_stays_due_and_stops_no_other() {
    let place = place();
    let store = place.store();
    std::fs::create_dir(place.root.join(format!("jobs/{}.yaml", job_id(1)))).unwrap();
    insert_jobs(&store, vec![job(1, "a", JobStatus::Pending), job(2, "a", JobStatus::Pending)]);
    let report = store.publish_views(now()).unwrap();
    assert_eq!((report.written, report.failed.len()), (1, 1), "{report:?}");
    std::fs::remove_dir(place.root.join(format!("jobs/{}.yaml", job_id(1)))).unwrap();
    assert_eq!(publish(&store).written, 1);
}

#[test]
fn leftover_temp_files_are_swept_and_others_are_not() {
    let place = place();
    drop(place.store());
    let ours = [
        ".state.yaml.tmp.0123456789abcdef",
        "jobs/.job-1.yaml.tmp.0123456789abcdef",
        "sessions/.coder.json.tmp.0123456789abcdef",
    ];
    // A runner's or a reader's, perhaps alive.
    let foreign = ["jobs/..job-1.jsonl.idx.tmp.0123456789abcdef", "jobs/.editor.swp"];
    ours.iter().chain(&foreign).for_each(|path| place.write(path, "half"));
    let made = std::fs::metadata(place.root.join(foreign[0])).unwrap().modified().unwrap();
    let made = Timestamp::try_from(made).unwrap();
    let opened = Store::open(&place.dir, "test", made).unwrap();
    assert_eq!(opened.temp_files_removed, 3);
    assert!(ours.iter().all(|path| !place.has(path)));
    assert!(foreign.iter().all(|path| place.has(path)));
    drop(opened);
    let two_hours = SignedDuration::from_hours(2);
    assert_eq!(Store::open(&place.dir, "test", made + two_hours).unwrap().temp_files_removed, 1);
    assert!(place.has("jobs/.editor.swp"));
}

#[test]
fn the_publisher_writes_by_itself_and_ends_with_everything_written() {
    let place = place();
    let store = Arc::new(place.store());
    let publisher = ViewPublisher::start(Arc::clone(&store), now).unwrap();
    for number in 0..20 {
        insert_jobs(&store, vec![job(number, "coder", JobStatus::Pending)]);
    }
    drop(publisher);
    for number in 0..20 {
        assert!(place.has(&format!("jobs/{}.yaml", job_id(number))), "{number}");
    }
    assert!(place.reader().due_views("", 10).unwrap().is_empty());
}

#[test]
fn state_yaml_is_written_at_most_twice_a_second_however_often_it_changes() {
    let place = place();
    let store = Arc::new(place.store());
    let _publisher = ViewPublisher::start(Arc::clone(&store), now).unwrap();
    let began = Instant::now();
    let (mut commits, mut last, mut writes) = (0, None, 0);
    while began.elapsed() < Duration::from_millis(1200) {
        let error_message = Some(commits.to_string());
        let agent = AgentState { error_message, ..AgentState::default() };
        commit(&store, move |tx| tx.put_agent("coder", &agent));
        commits += 1;
        let found = std::fs::metadata(place.root.join("state.yaml")).ok().map(|found| found.ino());
        writes += u128::from(found != last);
        last = found;
    }
    let most = began.elapsed().as_millis() / 500 + 2;
    assert!((1..=most).contains(&writes), "{writes} writes of {commits} commits");
}

#[test]
fn a_view_knows_its_path_and_back() {
    for view in [
        PublishedView::State,
        PublishedView::Job(job_id(1)),
        PublishedView::AgentSession("web.coder".parse().unwrap()),
        PublishedView::Session(SessionId::mint(1)),
    ] {
        assert_eq!(PublishedView::from_path(&view.path()), Some(view));
    }
    for path in ["other.yaml", "jobs/../x.yaml", "sessions/a/b.json", "jobs/x.jsonl"] {
        assert_eq!(PublishedView::from_path(path), None, "{path}");
    }
}

#[test]
fn a_job_of_endless_duration_is_shown() {
    let place = place();
    let store = place.store();
    let mut endless = job(1, "coder", JobStatus::Completed);
    endless.head.duration_ms = Some(i64::MAX);
    insert_jobs(&store, vec![endless]);
    assert_eq!(store.publish_views(now()).unwrap().failed, []);
}

#[test]
fn a_file_that_a_loss_of_power_emptied_is_written_again() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    let state = AgentState { status: AgentStatus::Running, ..AgentState::default() };
    store.write(move |tx| tx.put_agent("coder", &state)).unwrap();
    publish(&store);
    let job_path = PublishedView::Job(job(1, "coder", JobStatus::Pending).head.id).path();
    let before = ["state.yaml", &job_path].map(|path| place.read(path));
    drop(store);
    for path in ["state.yaml", &job_path] {
        std::fs::write(place.dir.root().join(path), "").unwrap();
    }
    let OpenedStore { store, hand_edits, .. } = reopen(&place);
    assert_eq!((hand_edits.statuses, hand_edits.moved_aside), (Vec::new(), Vec::new()));
    // As it is after a loss of power: its publication was not recorded.
    let job = PublishedView::from_path(&job_path).unwrap();
    store.write(move |tx| tx.mark_view_due(&job)).unwrap();
    let report = publish(&store);
    assert!(report.moved_aside.is_empty(), "{report:?}");
    assert_eq!(["state.yaml", &job_path].map(|path| place.read(path)), before);
}
