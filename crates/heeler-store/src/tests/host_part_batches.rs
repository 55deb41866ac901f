//! Parts of many files in one statement.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use heeler_model::{JobStatus, RunId};
use heeler_testkit::WAIT_MAX;

use super::postgres::{ServerPlace, host_place, run_of_host, server_place};
use super::{TempStateDir, insert_jobs, job, now};
use crate::{DatabaseError, HostLink, PartReceipt, RunRecord, SharedPart, StoreWriteError};

fn run_id(host: usize, number: usize) -> RunId {
    RunId::mint(now(), [1, host as u8, number as u8, 0, 0, 0, 0, 0, 0, 0])
}

fn path(host: usize, number: usize) -> String {
    format!("jobs/job-2024-01-19-{host:03}{number:03}.jsonl")
}

const HOSTS: [&str; 2] = ["alpha", "beta"];

/// Two hosts with so many runs each.
fn hosts(server: &ServerPlace, runs: usize) -> [TempStateDir; 2] {
    let places = HOSTS.map(|name| host_place(server, name));
    let store = places[0].store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Running)]);
    let written: Result<_, StoreWriteError<DatabaseError>> = store.write(move |tx| {
        for (at, name) in HOSTS.iter().enumerate() {
            for number in 0..runs {
                let (attempt, host) = ((at * runs + number) as i64 + 1, (*name).to_owned());
                let record = run_of_host(run_id(at, number), "created");
                tx.insert_run(&RunRecord { attempt, host, ..record })?;
            }
        }
        Ok(())
    });
    written.unwrap();
    places
}

fn link(place: &TempStateDir) -> HostLink {
    HostLink::connect(&place.dir).unwrap()
}

fn part<'p>(run: RunId, path: &'p str, start: u64, bytes: &'p [u8]) -> SharedPart<'p> {
    SharedPart { run, term: 0, path, start, bytes, is_last: false }
}

#[test]
fn a_batch_is_stored_once_and_hosts_read_no_bytes_of_their_own() {
    let server = server_place();
    let [first, second] = hosts(&server, 3);
    let (beta, paths) = (link(&second), [0, 1, 2].map(|number| path(1, number)));
    let batch = |start: u64, bytes: &'static [u8]| {
        [0, 1, 2].map(|number| part(run_id(1, number), &paths[number], start, bytes))
    };
    let send = |batch: &[SharedPart<'_>]| beta.send_parts(batch).unwrap();
    let stored = vec![PartReceipt::Stored; 3];
    assert_eq!(send(&batch(0, b"{}\n")), stored);
    assert_eq!(send(&batch(0, b"{}\n")), vec![PartReceipt::OtherLength(3); 3]);
    assert_eq!(send(&batch(3, b"{\"a\":\"\\'\"}\n")), stored);
    assert_eq!(send(&[]), []);
    assert_eq!(send(&batch(14, b"{}\n")[..1]), [PartReceipt::Stored]);
    // An empty file that was written as a whole.
    let name = "jobs/job-2024-01-19-abc123/files/x \\ \"y\", {it's}";
    let empty = SharedPart { is_last: true, ..part(run_id(1, 0), name, 0, b"") };
    let both = [batch(14, b"{}\n")[1], empty];
    assert_eq!(send(&both), [PartReceipt::Stored, PartReceipt::Stored]);
    assert_eq!(send(&both), [PartReceipt::OtherLength(17), PartReceipt::OtherLength(0)]);

    let alpha = link(&first);
    let parts = alpha.parts_after(0).unwrap();
    let numbers: Vec<i64> = parts.iter().map(|part| part.number).collect();
    assert_eq!(numbers, (1..=9).collect::<Vec<i64>>());
    let read: Vec<_> = parts.iter().map(|part| (part.path.as_str(), part.start)).collect();
    assert_eq!(read[..3], [0, 1, 2].map(|number| (paths[number].as_str(), 0)), "in their order");
    assert_eq!(parts[4].bytes, b"{\"a\":\"\\'\"}\n");
    assert!(parts[8].is_last && parts[8].bytes.is_empty() && parts[8].path == name);
    let own = beta.parts_after(0).unwrap();
    assert_eq!(own.len(), 9);
    assert!(own.iter().all(|part| part.bytes.is_empty()));
}

#[test]
fn a_refused_part_does_not_keep_the_others_of_its_batch_from_being_stored() {
    let server = server_place();
    let places = hosts(&server, 6);
    let [alpha, beta] = [0, 1].map(|at| link(&places[at]));
    let paths: Vec<String> = (0..6).map(|number| path(1, number)).collect();
    let sent = |number: usize, start: u64| part(run_id(1, number), &paths[number], start, b"{}\n");
    let foreign = "jobs/job-2024-01-19-f0f0f0.jsonl";
    let begin = part(run_id(0, 0), foreign, 0, b"{}\n");
    assert_eq!(alpha.send_part(&begin).unwrap(), PartReceipt::Stored);
    beta.send_parts(&[sent(4, 0), sent(5, 0)]).unwrap();
    let store = places[0].store();
    let given_up: Result<_, StoreWriteError<DatabaseError>> =
        store.write(|tx| tx.raise_run_term(run_id(1, 1)));
    given_up.unwrap();
    let receipts = beta.send_parts(&[
        sent(0, 0),
        sent(1, 0),
        part(run_id(1, 2), foreign, 3, b"{}\n"),
        part(run_id(0, 1), &path(0, 1), 0, b"{}\n"),
        sent(3, 7),
        sent(4, 0),
        sent(5, 3),
    ]);
    let expected = [
        PartReceipt::Stored,
        PartReceipt::Fenced,
        PartReceipt::OtherHost("alpha".to_owned()),
        PartReceipt::Fenced,
        PartReceipt::OtherLength(0),
        PartReceipt::OtherLength(3),
        PartReceipt::Stored,
    ];
    assert_eq!(receipts.unwrap(), expected);
    assert_eq!(alpha.parts_after(0).unwrap().len(), 5);
    // The file of another host is continued after it was taken over, and marked.
    alpha.finish_files(run_id(0, 0)).unwrap();
    for number in 1..6 {
        alpha.finish_files(run_id(0, number)).unwrap();
    }
    assert!(beta.take_over_file((run_id(1, 2), 0), foreign, 3).unwrap());
    let receipts = beta.send_parts(&[part(run_id(1, 2), foreign, 3, b"{}\n"), sent(0, 3)]);
    assert_eq!(receipts.unwrap(), [PartReceipt::Stored, PartReceipt::Stored]);
    let flags: Vec<bool> =
        alpha.parts_after(5).unwrap().iter().map(|part| part.takes_over).collect();
    assert_eq!(flags, [true, false]);
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A commit that gives runs up changes one row after the other.
#[test]
fn a_batch_waits_for_a_locked_run_alone_and_stores_its_part_afterwards() {
    let server = server_place();
    let [first, second] = hosts(&server, 3);
    let paths: Vec<String> = (0..3).map(|number| path(1, number)).collect();
    let change = |number: usize| {
        format!("UPDATE runs SET version = version + 1 WHERE id = '{}'", run_id(1, number))
    };
    let leader = link(&first);
    for start in [0, 3, 6] {
        leader.query("lock", &format!("BEGIN; {}", change(2))).unwrap();
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let parts =
                    [0, 1, 2].map(|number| part(run_id(1, number), &paths[number], start, b"{}\n"));
                link(&second).send_parts(&parts).unwrap()
            });
            let stored = || leader.parts_after(0).unwrap().len() as u64;
            wait_until("the others are stored", || stored() == start + 2);
            // Nothing that the batch had locked is locked now.
            leader.query("lock", &change(0)).unwrap();
            leader.query("lock", &change(1)).unwrap();
            assert!(!sending.is_finished());
            leader.query("unlock", "COMMIT").unwrap();
            assert_eq!(sending.join().unwrap(), [const { PartReceipt::Stored }; 3]);
            assert_eq!(stored(), start + 3);
        });
    }
}

/// Batches of each host in the test below, and files of each batch.
const BATCHES: usize = 60;
const FILES: usize = 12;

#[test]
fn a_reader_that_continues_after_its_last_number_misses_nothing_while_two_hosts_ship() {
    let server = server_place();
    let places = hosts(&server, FILES);
    let is_done = AtomicBool::new(false);
    let ship = |at: usize| {
        let link = link(&places[at]);
        let paths: Vec<String> = (0..FILES).map(|number| path(at, number)).collect();
        for batch in 0..BATCHES {
            let start = batch as u64 * 3;
            let parts: Vec<SharedPart<'_>> = paths
                .iter()
                .enumerate()
                .map(|(number, path)| part(run_id(at, number), path, start, b"{}\n"))
                .collect();
            assert_eq!(link.send_parts(&parts).unwrap(), vec![PartReceipt::Stored; FILES]);
        }
    };
    let read = || {
        let reader = link(&places[0]);
        let mut numbers: Vec<i64> = Vec::new();
        loop {
            // Looked at first: a last read sees all.
            let was_done = is_done.load(Ordering::SeqCst);
            let parts = reader.parts_after(numbers.last().copied().unwrap_or_default()).unwrap();
            if parts.is_empty() && was_done {
                return numbers;
            }
            numbers.extend(parts.iter().map(|part| part.number));
        }
    };
    let numbers = std::thread::scope(|scope| {
        let reading = scope.spawn(read);
        let shipping = [0, 1].map(|at| scope.spawn(move || ship(at)));
        shipping.into_iter().for_each(|thread| thread.join().unwrap());
        is_done.store(true, Ordering::SeqCst);
        reading.join().unwrap()
    });
    assert!(numbers.is_sorted_by(|one, next| one < next));
    let all: BTreeSet<i64> = (1..=(2 * BATCHES * FILES) as i64).collect();
    assert_eq!(numbers.into_iter().collect::<BTreeSet<_>>(), all);
}
