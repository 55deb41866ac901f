//! Files of a job whose runs are on several hosts.

use heeler_model::{JobStatus, RunId};

use super::postgres::{host_place, run_of_host, server_place};
use super::{insert_jobs, job, now};
use crate::{
    DatabaseError, HostLink, PartReceipt, RunRecord, SharedFileOwner, SharedPart, StoreWriteError,
};

#[test]
fn a_later_run_on_another_host_continues_the_files_of_its_job() {
    let server = server_place();
    let (first, second) = (host_place(&server, "alpha"), host_place(&server, "beta"));
    let store = first.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Running)]);
    let ids = [RunId::mint(now(), [1; 10]), RunId::mint(now(), [2; 10])];
    let written: Result<_, StoreWriteError<DatabaseError>> = store.write(move |tx| {
        tx.insert_run(&run_of_host(ids[0], "created"))?;
        let host = "alpha".to_owned();
        tx.insert_run(&RunRecord { attempt: 2, host, ..run_of_host(ids[1], "created") })
    });
    written.unwrap();
    let (alpha, beta) =
        (HostLink::connect(&first.dir).unwrap(), HostLink::connect(&second.dir).unwrap());
    let path = "jobs/job-2024-01-19-abc123.jsonl";
    let part = |run: RunId, start: u64| SharedPart {
        run,
        term: 0,
        path,
        start,
        bytes: b"{}\n",
        is_last: false,
    };
    assert_eq!(alpha.file_owner(path).unwrap(), None);
    assert_eq!(beta.send_part(&part(ids[0], 0)).unwrap(), PartReceipt::Stored);
    assert_eq!(
        alpha.send_part(&part(ids[1], 3)).unwrap(),
        PartReceipt::OtherHost("beta".to_owned())
    );
    let take = |run: RunId, length: u64| alpha.take_over_file((run, 0), path, length).unwrap();
    assert!(!take(ids[1], 3), "the earlier run is not shipped to its end");
    beta.finish_files(ids[0]).unwrap();
    assert!(!take(ids[1], 6), "its beginning is not here");
    assert!(!take(ids[0], 3), "that run is another host's");
    assert!(take(ids[1], 3));
    assert_eq!(
        alpha.file_owner(path).unwrap(),
        Some(SharedFileOwner { host: "alpha".to_owned(), length: 3 })
    );
    assert_eq!(
        beta.send_part(&part(ids[0], 3)).unwrap(),
        PartReceipt::OtherHost("alpha".to_owned())
    );
    assert_eq!(alpha.send_part(&part(ids[1], 3)).unwrap(), PartReceipt::Stored);
    assert_eq!(alpha.send_part(&part(ids[1], 6)).unwrap(), PartReceipt::Stored);
    let parts = beta.parts_after(0).unwrap();
    let flags: Vec<bool> = parts.iter().map(|part| part.takes_over).collect();
    assert_eq!(flags, [false, true, false]);
    // The run was given up meanwhile.
    let given_up: Result<_, StoreWriteError<DatabaseError>> =
        store.write(move |tx| tx.raise_run_term(ids[1]));
    given_up.unwrap();
    assert!(!alpha.take_over_file((ids[1], 0), "jobs/job-2024-01-19-abc124.jsonl", 0).unwrap());
    // One that was given up never ships its end, and a file of which nothing is on record begins anew.
    let other = "jobs/job-2024-01-19-abc123/output.log";
    let third = RunId::mint(now(), [3; 10]);
    let written: Result<_, StoreWriteError<DatabaseError>> = store
        .write(move |tx| tx.insert_run(&RunRecord { attempt: 3, ..run_of_host(third, "created") }));
    written.unwrap();
    assert!(beta.take_over_file((third, 0), other, 0).unwrap());
    let begin = SharedPart { run: third, path: other, ..part(third, 0) };
    assert_eq!(beta.send_part(&begin).unwrap(), PartReceipt::Stored);
    assert!(alpha.parts_after(parts[2].number).unwrap()[0].takes_over);
}
