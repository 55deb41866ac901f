//! kill -9 of the writer, at any instant.

use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::ControlFlow;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use heeler_model::fleet::QueuedJobRecord;
use heeler_model::timetable::DueTimeCursor;
use heeler_model::{AgentStatus, JobHead};
use heeler_testkit::ProofSettings;

use super::*;
use crate::{JobFilter, PublishedView, ScheduleProgressRecord, ViewPublisher, render_view};
use heeler_transcript::LockFile;

const WRITER: &str = "tests::crash::proof_kill_9_of_the_writer_loses_no_acknowledged_change";
const RESTORER: &str = "tests::crash::proof_kill_9_of_a_restore_leaves_the_old_state_or_the_new";
/// The schedule of each agent.
const SCHEDULE: &str = "s";
const CHILD_DIR: &str = "HEELER_TEST_STORE_DIR";
const CHILD_SEED: &str = "HEELER_TEST_STORE_SEED";

#[test]
fn proof_kill_9_of_the_writer_loses_no_acknowledged_change() {
    if let ControlFlow::Break(()) = be_the_child() {
        return;
    }
    let proof = ProofSettings::new(30);
    let mut place = place();
    let mut known: Vec<String> = Vec::new();
    for round in 0..proof.rounds {
        if round % 50 == 0 {
            place = super::place();
            known.clear();
        }
        let mut random = proof.random(round);
        known.extend(run_and_kill(&place, &mut random));
        check(&place, &known, &format!("round {round}, HEELER_PROOF_SEED={}", proof.seed));
    }
}

/// Kills the child after a random number of acknowledgments, and returns them.
fn run_and_kill(place: &TempStateDir, random: &mut fastrand::Rng) -> Vec<String> {
    let mut child = start_child(place, WRITER, random.u64(..));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let wanted = random.usize(0..25);
    let mut acknowledged: Vec<String> = Vec::new();
    while acknowledged.len() < wanted {
        let line = lines.next().expect("the child does not end by itself");
        acknowledged.extend(line.strip_prefix("ack ").map(str::to_owned));
    }
    if wanted > 0 {
        let lock = LockFile::probe(&place.dir.lock()).unwrap().expect("the child holds the lock");
        assert_eq!(lock.holder.unwrap().pid, child.id());
    }
    // Without this the kill would always come right after an acknowledgment.
    let moment = Duration::from_micros(random.u64(0..if wanted == 0 { 30_000 } else { 4000 }));
    let waited = Instant::now();
    while waited.elapsed() < moment {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    acknowledged.extend(lines.filter_map(|line| line.strip_prefix("ack ").map(str::to_owned)));
    child.wait().unwrap();
    acknowledged
}

fn check(place: &TempStateDir, known: &[String], context: &str) {
    let opened = Store::open(&place.dir, "check", now()).expect("the lock died with its holder");
    assert_eq!(opened.hand_edits, crate::HandEdits::default(), "{context}");
    let reader = place.reader();
    assert!(reader.integrity_faults().unwrap().is_empty(), "{context}");
    assert!(!commit(&opened.store, |tx| tx.recount()), "{context}: a counter is wrong");
    for ack in known {
        let (id, version) = ack.split_once(' ').unwrap();
        let job = reader.job(&id.parse().unwrap()).unwrap();
        let job = job.unwrap_or_else(|| panic!("{context}: {id} is lost"));
        assert!(job.version >= version.parse().unwrap(), "{context}: {id} lost a change");
    }
    let mut views = vec![PublishedView::State];
    let jobs = reader.jobs(&JobFilter::default(), None, usize::MAX).unwrap();
    check_due_times(&reader, &jobs, context);
    views.extend(jobs.into_iter().map(|job| PublishedView::Job(job.id)));
    for view in views {
        let expected = render_view(&reader, &view).unwrap().unwrap();
        if let PublishedView::State = view
            && !place.has("state.yaml")
        {
            assert!(known.is_empty(), "{context}");
            continue;
        }
        assert_eq!(place.read(&view.path()), expected, "{context}: {view}");
    }
    for folder in ["", "jobs", "sessions", "backups"] {
        for entry in place.root.join(folder).read_dir_utf8().unwrap() {
            let name = entry.unwrap().file_name().to_owned();
            assert!(!name.contains(".tmp."), "{context}: {name} is left");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process to be killed")]
fn start_child(place: &TempStateDir, test: &str, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .args(["--nocapture", "--test-threads=1"])
        .env(CHILD_DIR, &place.root)
        .env(CHILD_SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// In the child: commits jobs and publishes views until it is killed.
#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process to be killed")]
fn be_the_child() -> ControlFlow<()> {
    let Ok(root) = std::env::var(CHILD_DIR) else { return ControlFlow::Continue(()) };
    let seed: u64 = std::env::var(CHILD_SEED).unwrap().parse().unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = StateDir::open(Utf8PathBuf::from(root).as_path()).unwrap();
    let store = Arc::new(Store::open(&dir, "child", now()).unwrap().store);
    let _publisher = publish_meanwhile(&store, random.bool());
    let mut out = std::io::stdout().lock();
    // Ends the line that the test harness has begun.
    writeln!(out).unwrap();
    loop {
        let agent = format!("agent-{}", random.u8(0..4));
        let mut job = commit(&store, move |tx| {
            let mut job = job(0, &agent, JobStatus::Running);
            job.head.id = tx.new_job_id(now())?;
            tx.insert_job(&job)?;
            start_as_due(tx, &job)?;
            let mut state = state(AgentStatus::Running, &job.head.id);
            state.schedules = tx.agent(&agent)?.expect("its schedule has a mark").schedules;
            tx.put_agent(&agent, &state)?;
            Ok(job)
        });
        writeln!(out, "ack {} {}", job.head.id, job.version).unwrap();
        job.head.status = if random.bool() { JobStatus::Completed } else { JobStatus::Failed };
        let id = job.head.id.clone();
        let version = commit(&store, move |tx| {
            tx.put_agent(&job.head.agent, &state(AgentStatus::Idle, &job.head.id))?;
            tx.dequeue(&job.head.id)?;
            tx.update_job(&job)
        });
        if writeln!(out, "ack {id} {version}").and_then(|()| out.flush()).is_err() {
            return ControlFlow::Break(());
        }
    }
}

/// Records the changes that the daemon makes in one transaction: the due time, the schedule's
/// progress, the queue entry.
fn start_as_due(tx: &mut StoreTransaction<'_>, job: &Job) -> Result<(), DatabaseError> {
    let agent = job.head.agent.clone();
    let due = tx
        .occurrences(&agent, SCHEDULE, None, 1)?
        .first()
        .map_or(now(), |last| last.due + jiff::SignedDuration::from_secs(1));
    assert!(tx.add_occurrence(&agent, SCHEDULE, due, &job.head.id)?);
    let mark = DueTimeCursor { anchor: now(), through: due };
    let (schedule, rule) = (SCHEDULE.to_owned(), String::new());
    tx.set_schedule_progress(&ScheduleProgressRecord {
        agent,
        schedule,
        progress: mark,
        trigger_text: rule,
    })?;
    tx.enqueue(&QueuedJobRecord {
        job: job.head.id.clone(),
        priority: 0,
        requested_at: now(),
        not_before: None,
        expires_at: None,
        request_json: String::new(),
        reason: String::new(),
    })
}

/// Every job has its due time, no due time lies behind its mark, and none is missing between.
fn check_due_times(reader: &StoreReader, jobs: &[JobHead], context: &str) {
    let mut count = 0;
    for mark in reader.schedule_progress().unwrap() {
        let found = reader.occurrences(&mark.agent, SCHEDULE, None, usize::MAX).unwrap();
        assert_eq!(found[0].due, mark.progress.through, "{context}");
        let span = mark.progress.through.duration_since(now()).as_secs();
        assert_eq!(found.len(), usize::try_from(span).unwrap() + 1, "{context}");
        count += found.len();
    }
    assert_eq!(count, jobs.len(), "{context}");
    let waiting: Vec<_> = reader.queue().unwrap().into_iter().map(|queued| queued.job).collect();
    for job in jobs {
        let is_waiting = waiting.contains(&job.id);
        assert_eq!(is_waiting, job.status == JobStatus::Running, "{context}: {}", job.id);
        assert!(reader.occurrence_of_job(&job.id).unwrap().is_some(), "{context}: {}", job.id);
    }
}

#[test]
fn proof_kill_9_of_a_restore_leaves_the_old_state_or_the_new() {
    if let ControlFlow::Break(()) = be_the_restorer() {
        return;
    }
    let proof = ProofSettings::new(20);
    let place = place();
    let store = place.store();
    insert_jobs(&store, (0..400).map(|number| job(number, "old", JobStatus::Completed)).collect());
    std::fs::write(place.dir.job_transcript(&job_id(1)), "{\"archived\":1}\n").unwrap();
    crate::backup_to_file(&place.dir, &archive(&place), now(), &mut |_, _| {}).unwrap();
    drop(store);
    let whole = {
        let began = Instant::now();
        crate::restore_from_file(&place.dir, &archive(&place), now(), &mut |_, _| {}).unwrap();
        u64::try_from(began.elapsed().as_micros()).unwrap()
    };
    let mut restored = 0;
    let grown = "{\"archived\":1}\n{\"later\":2}\n";
    for round in 0..proof.rounds {
        let context = format!("round {round}, HEELER_PROOF_SEED={}", proof.seed);
        let mut random = proof.random(round);
        std::fs::write(place.dir.job_transcript(&job_id(1)), grown).unwrap();
        let number = 1000 + round;
        insert_jobs(&place.store(), vec![job(number, "new", JobStatus::Running)]);
        let mut child = start_child(&place, RESTORER, 0);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        lines.find(|line| line == "restoring").expect("the child tells when it begins");
        let (moment, waited) =
            (Duration::from_micros(random.u64(0..whole * 3 / 2)), Instant::now());
        while waited.elapsed() < moment {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        let is_done = lines.any(|line| line == "restored");
        child.wait().unwrap();
        if let Some((server, name)) = &place.database {
            // A server completes a commit that was sent just before the kill.
            heeler_testkit::wait_for_transactions(server, name);
        }
        let opened = Store::open(&place.dir, "check", now()).unwrap();
        assert_eq!(opened.hand_edits, crate::HandEdits::default(), "{context}");
        let reader = place.reader();
        assert!(reader.integrity_faults().unwrap().is_empty(), "{context}");
        assert!(!commit(&opened.store, |tx| tx.recount()), "{context}: a counter is wrong");
        let old = JobFilter { agent: Some("old".to_owned()), ..JobFilter::default() };
        assert_eq!(reader.count_jobs(&old).unwrap(), 400, "{context}");
        let is_new = reader.job(&job_id(number)).unwrap().is_none();
        assert!(is_new || !is_done, "{context}: a finished restore is undone");
        restored += u64::from(is_new);
        assert_eq!(place.read(&format!("jobs/{}.jsonl", job_id(1))), grown, "{context}");
    }
    println!("{} kills, {restored} of them after the restore", proof.rounds);
}

/// Publishes as the daemon does, or without a pause, so that a kill often comes in the middle.
fn publish_meanwhile(store: &Arc<Store>, without_pause: bool) -> Option<ViewPublisher> {
    let store = Arc::clone(store);
    if !without_pause {
        return Some(ViewPublisher::start(store, now).unwrap());
    }
    std::thread::spawn(move || {
        loop {
            store.publish_views(now()).unwrap();
        }
    });
    None
}

fn archive(place: &TempStateDir) -> Utf8PathBuf {
    place.root.parent().unwrap().join("fleet.tar")
}

/// In the child: restores once, and says when.
#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process to be killed")]
fn be_the_restorer() -> ControlFlow<()> {
    let Ok(root) = std::env::var(CHILD_DIR) else { return ControlFlow::Continue(()) };
    let root = Utf8PathBuf::from(root);
    let dir = StateDir::open(&root).unwrap();
    let file = root.parent().unwrap().join("fleet.tar");
    println!("\nrestoring");
    crate::restore_from_file(&dir, &file, now(), &mut |_, _| {}).unwrap();
    println!("restored");
    ControlFlow::Break(())
}

fn state(status: AgentStatus, job: &JobId) -> heeler_model::AgentState {
    heeler_model::AgentState { status, last_job: Some(job.clone()), ..Default::default() }
}
