//! A server that lacks the last commits, as after a fail-over to a replica without them.

use std::time::Instant;

use heeler_model::JobStatus;
use heeler_testkit::WAIT_MAX;

use super::postgres::{EXPIRE, ServerPlace, host_place, server_place};
use super::{insert_jobs, job, now};
use crate::{LeadLease, Store};

/// Lets the server lack commits, and ends the connections of the writer.
fn lose_commits(server: &ServerPlace, count: u32) {
    let lose = format!(
        "UPDATE store_writer SET commits = commits - {count}; \
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = 'fleet' AND pid <> pg_backend_pid()"
    );
    server.cluster.query("fleet", &lose);
}

/// Inserts a job until the outcome has this text: the writer may not have noticed yet that its connection
/// has ended.
#[track_caller]
fn insert_until(store: &Store, number: u64, expected: &str) {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let done = store.write(move |tx| tx.insert_job(&job(number, "coder", JobStatus::Pending)));
        let outcome = match &done {
            Ok(()) => "saved".to_owned(),
            Err(error) => heeler_model::error_chain(error),
        };
        if outcome.contains(expected) {
            return;
        }
        assert!(outcome != "saved" && Instant::now() < deadline, "{outcome}, not {expected}");
    }
}

#[test]
fn a_writer_whose_server_lacks_its_commits_saves_nothing_and_loses_its_lead() {
    for is_host in [false, true] {
        let server = server_place();
        let host = is_host.then(|| host_place(&server, "alpha"));
        let place = host.as_ref().unwrap_or(&server.place);
        let store = place.store();
        let lead = LeadLease::default();
        store.leave_renewal_to(lead.clone());
        insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
        lose_commits(&server, 1);
        for _ in 0..2 {
            insert_until(&store, 2, "lacks the last changes");
        }
        assert!(lead.is_lost() && store.database_fault().is_some());
        // The next life of the same process continues with what the server has.
        drop(store);
        insert_jobs(&place.store(), vec![job(3, "coder", JobStatus::Pending)]);
    }
}

#[test]
fn a_writer_continues_on_a_server_that_has_all_its_commits() {
    let server = server_place();
    let store = server.place.store();
    let lead = LeadLease::default();
    store.leave_renewal_to(lead.clone());
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    for number in 2..5 {
        lose_commits(&server, 0);
        insert_until(&store, number, "saved");
    }
    assert!(!lead.is_lost());
}

#[test]
fn a_writer_that_was_replaced_on_a_server_without_its_commits_is_fenced() {
    let server = server_place();
    let (first, second) = (host_place(&server, "alpha"), host_place(&server, "beta"));
    let store = first.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    lose_commits(&server, 1);
    server.cluster.query("fleet", EXPIRE);
    let next = Store::open(&second.dir, "test", now()).unwrap().store;
    let others = [2, 3].map(|number| job(number, "coder", JobStatus::Pending));
    insert_jobs(&next, others.into());
    insert_until(&store, 4, "another process has become the writer");
}
