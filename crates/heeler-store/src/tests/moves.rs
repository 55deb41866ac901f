//! Moves between a file and a server: kill -9 at any instant, and hosts that know the server already.

use std::io::{BufRead as _, BufReader};
use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use heeler_testkit::{PostgresCluster, ProofSettings};

use super::postgres::file_place;
use super::*;
use crate::{JobFilter, move_to_postgres, move_to_sqlite, server_store};

const MOVER: &str = "tests::moves::proof_kill_9_of_a_move_leaves_one_side_that_counts";
const CHILD_DIR: &str = "HEELER_TEST_STORE_DIR";
const CHILD_URL: &str = "HEELER_TEST_STORE_URL";

/// Jobs that are there before the first move.
const JOBS: u64 = 200;

/// Moves the records to the other side.
fn move_over(root: &Utf8PathBuf, url: &str) {
    let dir = StateDir::open(root).unwrap();
    match dir.postgres() {
        None => move_to_postgres(&dir, &url.parse().unwrap(), now()).unwrap(),
        Some(_) => move_to_sqlite(&dir, now()).unwrap(),
    };
}

/// Returns true if the server has a note that its records are elsewhere.
fn is_marked(cluster: &PostgresCluster) -> bool {
    !cluster.query("fleet", "SELECT moved_to FROM store_writer").is_empty()
}

#[test]
fn proof_kill_9_of_a_move_leaves_one_side_that_counts() {
    if let ControlFlow::Break(()) = be_the_mover() {
        return;
    }
    let proof = ProofSettings::new(16);
    let cluster = PostgresCluster::start();
    cluster.create_database("fleet");
    let url = cluster.url("fleet");
    let mut place = file_place();
    let jobs = (0..JOBS).map(|number| job(number, "old", JobStatus::Completed));
    insert_jobs(&place.store(), jobs.collect());
    let began = Instant::now();
    move_over(&place.root, &url);
    move_over(&place.root, &url);
    let whole = u64::try_from(began.elapsed().as_micros()).unwrap();
    let mut moved = 0;
    for round in 0..proof.rounds {
        let context = format!("round {round}, HEELER_PROOF_SEED={}", proof.seed);
        place.dir = StateDir::open(&place.root).unwrap();
        insert_jobs(&place.store(), vec![job(1000 + round, "new", JobStatus::Running)]);
        let was_on_server = place.dir.postgres().is_some();
        let moment = Duration::from_micros(proof.random(round).u64(0..whole / 2));
        let is_done = move_and_kill(&place, &url, moment);
        heeler_testkit::wait_for_transactions(cluster.socket_folder(), "fleet");
        place.dir = StateDir::open(&place.root).unwrap();
        let is_on_server = place.dir.postgres().is_some();
        assert!(!is_done || was_on_server != is_on_server, "{context}: a finished move is undone");
        assert!(is_on_server || is_marked(&cluster), "{context}: two sides count");
        let opened = Store::open(&place.dir, "check", now()).expect(&context);
        let reader = place.reader();
        assert!(reader.integrity_faults().unwrap().is_empty(), "{context}");
        assert!(!commit(&opened.store, |tx| tx.recount()), "{context}: a counter is wrong");
        let count = reader.count_jobs(&JobFilter::default()).unwrap();
        assert_eq!(count.unsigned_abs(), JOBS + round + 1, "{context}");
        assert!(!is_on_server || !is_marked(&cluster), "{context}: no side counts");
        moved += u64::from(was_on_server != is_on_server);
    }
    println!("{} kills, {moved} of them after the move", proof.rounds);
}

/// Begins a move in another process, kills it, and returns true if it had said that it was done.
#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process to be killed")]
fn move_and_kill(place: &TempStateDir, url: &str, moment: Duration) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", MOVER, "--nocapture", "--test-threads=1"])
        .env(CHILD_DIR, &place.root)
        .env(CHILD_URL, url)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line == "moving").expect("the child tells when it begins");
    std::thread::sleep(moment);
    child.kill().unwrap();
    let is_done = lines.any(|line| line == "moved");
    child.wait().unwrap();
    is_done
}

/// In the child: moves once, and says when.
#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process to be killed")]
fn be_the_mover() -> ControlFlow<()> {
    let Ok(root) = std::env::var(CHILD_DIR) else { return ControlFlow::Continue(()) };
    println!("\nmoving");
    move_over(&Utf8PathBuf::from(root), &std::env::var(CHILD_URL).unwrap());
    println!("moved");
    ControlFlow::Break(())
}

#[test]
fn another_directory_that_knows_the_server_waits_for_the_end_of_a_move() {
    let cluster = PostgresCluster::start();
    cluster.create_database("fleet");
    let url = cluster.url("fleet");
    let mut place = file_place();
    insert_jobs(&place.store(), vec![job(1, "old", JobStatus::Completed)]);
    move_over(&place.root, &url);
    place.dir = StateDir::open(&place.root).unwrap();
    let location = place.dir.postgres().unwrap().clone();
    let other = file_place();
    let other = location.write(&other.dir).unwrap();
    let refusal = || Store::open(&other, "another", now()).unwrap_err().to_string();
    move_over(&place.root, &url);
    // The file counts, and it has a job that the server does not have.
    place.dir = StateDir::open(&place.root).unwrap();
    insert_jobs(&place.store(), vec![job(2, "new", JobStatus::Completed)]);
    assert!(refusal().contains("were moved to"), "{}", refusal());
    let refused = move_to_sqlite(&other, now()).unwrap_err().to_string();
    assert!(refused.contains("were moved to"), "old records must not become a file: {refused}");
    // A move to the server that is given up in the middle.
    let filled = server_store::open_for_move(&place.dir, &location, now()).unwrap();
    drop(filled);
    assert!(refusal().contains("were moved to"), "{}", refusal());
    move_over(&place.root, &url);
    let opened = Store::open(&other, "another", now()).unwrap();
    let reader = StoreReader::open(&other).unwrap();
    assert_eq!(reader.count_jobs(&JobFilter::default()).unwrap(), 2);
    drop(opened);
}
