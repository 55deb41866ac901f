//! The archive of shared files, and the parts that it lets hosts remove.

use std::time::Duration;

use heeler_config::FileArchivePlace;
use heeler_model::{JobStatus, RunId};

use super::postgres::{ServerPlace, host_place, run_of_host, server_place};
use super::{TempStateDir, insert_jobs, job, job_id, now};
use crate::{
    ArchivedFile, DatabaseError, FileArchivePolicy, FileUnpacker, HostFacts, HostLink, HostState,
    PackedFile, PartReceipt, RunRecord, SharedPart, Store, StoreWriteError, UnarchivedFile,
    pack_file,
};

/// The transcript of the job.
fn path() -> String {
    format!("jobs/{}.jsonl", job_id(1))
}

const POLICY: FileArchivePolicy =
    FileArchivePolicy { place: FileArchivePlace::Database, after: Duration::from_secs(1) };

/// Two hosts, of which the second has shipped two parts of a file of an ended job.
struct ArchivePlace {
    store: Store,
    run: RunId,
    first: TempStateDir,
    second: TempStateDir,
    server: ServerPlace,
}

fn link(host: &TempStateDir) -> HostLink {
    let link = HostLink::connect(&host.dir).unwrap();
    let facts = HostFacts { version: "1".to_owned(), pid: 1, ..HostFacts::default() };
    link.register(&facts, HostState::Standby).unwrap();
    link
}

fn place() -> ArchivePlace {
    let server = server_place();
    let (first, second) = (host_place(&server, "alpha"), host_place(&server, "beta"));
    let store = first.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Completed)]);
    let run = RunId::mint(now(), [1; 10]);
    let record = RunRecord { committed: true, ..run_of_host(run, "completed") };
    let written: Result<_, StoreWriteError<DatabaseError>> =
        store.write(move |tx| tx.insert_run(&record));
    written.unwrap();
    let place = ArchivePlace { server, first, second, store, run };
    let beta = link(&place.second);
    place.ship(&beta, 0, b"{}\n");
    place.ship(&beta, 3, b"{\"a\":1}\n");
    beta.finish_files(run).unwrap();
    place
}

impl ArchivePlace {
    fn ship(&self, link: &HostLink, start: u64, bytes: &[u8]) {
        let path = path();
        let part = SharedPart { run: self.run, term: 0, path: &path, start, bytes, is_last: false };
        assert_eq!(link.send_part(&part).unwrap(), PartReceipt::Stored);
    }

    fn count(&self, table: &str) -> usize {
        let sql = format!("SELECT COUNT(*) FROM {table}");
        self.server.cluster.query("fleet", &sql).trim().parse().unwrap()
    }

    /// Lets the file be without a change for an hour.
    fn age(&self) {
        let sql = "UPDATE shared_files SET changed_at = now() - interval '1 hour'";
        self.server.cluster.query("fleet", sql);
    }
}

fn due(link: &HostLink) -> Vec<UnarchivedFile> {
    link.unarchived_files(POLICY.after, None).unwrap()
}

#[track_caller]
fn store_chunks(link: &HostLink, file: &UnarchivedFile, content: &[u8]) -> PackedFile {
    pack_file(content, file.length, |number, chunk| link.put_archive_chunk(file, number, chunk))
        .unwrap()
}

#[track_caller]
fn content(link: &HostLink, file: &ArchivedFile) -> Vec<u8> {
    let mut unpacker = FileUnpacker::new(Vec::new(), file.length);
    for number in 0..file.chunks {
        unpacker.add(&link.archive_chunk(file, number).unwrap().unwrap()).unwrap();
    }
    unpacker.finish(&file.sha256).unwrap()
}

#[test]
fn parts_are_removed_when_every_host_and_the_archive_have_them() {
    let place = place();
    let (alpha, beta) = (link(&place.first), link(&place.second));
    let instance = place.store.writer_instance().unwrap().to_owned();
    alpha.set_file_archive_policy(&instance, &POLICY).unwrap();
    assert_eq!(beta.file_archive_policy().unwrap(), POLICY);
    alpha.note_parts_read(2).unwrap();
    alpha.remove_read_parts().unwrap();
    assert_eq!(place.count("file_parts"), 2, "beta has not noted its progress");
    beta.note_parts_read(2).unwrap();
    alpha.remove_read_parts().unwrap();
    assert_eq!(place.count("file_parts"), 2, "the archive lacks them");
    // The age alone removes nothing that the archive is to have.
    let aged = "UPDATE file_parts SET created_at = now() - interval '40 days'";
    place.server.cluster.query("fleet", aged);
    alpha.remove_read_parts().unwrap();
    assert_eq!(place.count("file_parts"), 2);

    place.age();
    let file = due(&beta).pop().unwrap();
    let packed = store_chunks(&beta, &file, b"{}\n{\"a\":1}\n");
    alpha.remove_read_parts().unwrap();
    assert_eq!((place.count("file_parts"), place.count("archived_files")), (2, 0));
    assert!(beta.record_archived(&file, &packed, None).unwrap());
    // A later part is not in the archive.
    place.ship(&beta, 11, b"{\"b\":2}\n");
    for host in [&alpha, &beta] {
        host.note_parts_read(1 << 40).unwrap();
    }
    alpha.remove_read_parts().unwrap();
    assert_eq!(place.count("file_parts"), 1);
    let found = alpha.archived_file(&path()).unwrap().unwrap();
    assert_eq!(content(&alpha, &found), b"{}\n{\"a\":1}\n");

    // Without an archive, the rule is the one of before.
    let off = FileArchivePolicy { place: FileArchivePlace::Off, ..POLICY };
    alpha.set_file_archive_policy(&instance, &off).unwrap();
    alpha.remove_read_parts().unwrap();
    assert_eq!(place.count("file_parts"), 0);
}

#[test]
fn a_file_that_grows_is_archived_again_and_repeated_steps_change_nothing() {
    let place = place();
    let (alpha, beta) = (link(&place.first), link(&place.second));
    place.age();
    let file = due(&beta).pop().unwrap();
    assert_eq!((file.host.as_str(), file.length, file.is_open), ("beta", 11, false));
    // An attempt of the leader that ended between its chunks and its record.
    store_chunks(&alpha, &file, b"{}\n{\"a\":1}\n");
    let packed = store_chunks(&beta, &file, b"{}\n{\"a\":1}\n");
    assert_eq!(store_chunks(&beta, &file, b"{}\n{\"a\":1}\n"), packed);
    assert!(beta.record_archived(&file, &packed, None).unwrap());
    assert!(!beta.record_archived(&file, &packed, None).unwrap());
    assert!(!alpha.record_archived(&file, &packed, None).unwrap(), "the archive has it");
    assert_eq!(place.count("archive_chunks"), 1, "those of the leader are removed");
    assert_eq!(due(&beta), []);
    let first = alpha.archived_after(0).unwrap().pop().unwrap();
    assert_eq!(content(&alpha, &first), b"{}\n{\"a\":1}\n");
    alpha.note_archives_read(first.number).unwrap();
    assert_eq!(alpha.archives_read().unwrap(), first.number);
    assert_eq!(alpha.archived_after(first.number).unwrap(), []);

    place.ship(&beta, 11, b"{\"b\":2}\n");
    place.age();
    let grown = due(&beta).pop().unwrap();
    assert_eq!(grown.length, 19);
    let packed = store_chunks(&beta, &grown, b"{}\n{\"a\":1}\n{\"b\":2}\n");
    assert_eq!(content(&alpha, &first), b"{}\n{\"a\":1}\n", "until the new one is on record");
    assert!(beta.record_archived(&grown, &packed, None).unwrap());
    let second = alpha.archived_after(first.number).unwrap().pop().unwrap();
    assert_eq!(content(&alpha, &second), b"{}\n{\"a\":1}\n{\"b\":2}\n");
    assert_eq!(alpha.archive_chunk(&first, 0).unwrap(), None);
    assert_eq!((place.count("archive_chunks"), place.count("archived_files")), (1, 1));
    // A database that lost parts has less than was stored.
    let longer = UnarchivedFile { length: 30, ..grown };
    assert!(!beta.record_archived(&longer, &packed, None).unwrap());
}

#[test]
fn files_of_open_jobs_and_fresh_ones_are_not_due_and_long_ones_are_left_out() {
    let place = place();
    let beta = link(&place.second);
    assert_eq!(beta.unarchived_files(Duration::from_secs(60), None).unwrap(), []);
    place.age();
    let query = |sql: &str| place.server.cluster.query("fleet", sql);
    query("UPDATE executions SET status = 'running'");
    assert!(due(&beta)[0].is_open);
    query("UPDATE executions SET status = 'failed'");
    let file = due(&beta).pop().unwrap();
    assert!(!file.is_open && file.idle >= Duration::from_secs(3600));
    query(&format!("INSERT INTO unshipped_runs (run, host) VALUES ('{}', 'beta')", place.run));
    assert!(due(&beta)[0].is_open);
    beta.finish_files(place.run).unwrap();
    // Pages follow each other without a gap.
    query(
        "INSERT INTO shared_files (path, host, length, changed_at) \
         SELECT 'agent-sessions/projects/-w/' || n || '.jsonl', 'beta', 3, now() - interval '2 hours' \
         FROM generate_series(1, 40) AS n",
    );
    let (mut paths, mut last) = (Vec::new(), None);
    loop {
        let page = beta.unarchived_files(POLICY.after, last.as_ref()).unwrap();
        paths.extend(page.iter().map(|file| file.path.clone()));
        match page.last() {
            Some(end) => last = Some(end.clone()),
            None => break,
        }
    }
    assert_eq!((paths.len(), paths.last()), (41, Some(&path())));
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), 41);

    beta.leave_out_of_archive(&file).unwrap();
    assert!(due(&beta).iter().all(|other| other.path != path()));
    assert_eq!(beta.archived_file(&path()).unwrap(), None);
}

#[test]
fn only_the_leader_records_the_policy_and_a_fault_is_news_once() {
    let place = place();
    let (alpha, beta) = (link(&place.first), link(&place.second));
    beta.set_file_archive_policy("another instance", &POLICY).unwrap();
    assert_eq!(beta.file_archive_policy().unwrap().place, FileArchivePlace::Off);
    assert!(beta.note_archive_fault(&path(), "another hash").unwrap());
    assert!(!beta.note_archive_fault(&path(), "another hash").unwrap());
    let long = "ä".repeat(1000);
    assert!(beta.note_archive_fault(&path(), &long).unwrap());
    let cut = "SELECT COUNT(*) FROM archive_faults WHERE octet_length(reason) BETWEEN 400 AND 500";
    assert_eq!(place.server.cluster.query("fleet", cut).trim(), "1");
    assert_eq!(beta.own_archive_faults("").unwrap(), [path()]);
    assert!(alpha.own_archive_faults("").unwrap().is_empty());
    beta.forget_archive_fault(&path()).unwrap();
    assert!(beta.own_archive_faults("").unwrap().is_empty());
    // All of them are found, however many.
    for number in 0..40 {
        beta.note_archive_fault(&format!("jobs/{number:02}"), "damaged").unwrap();
    }
    let (mut found, mut after) = (0, String::new());
    while let Some(last) = beta.own_archive_faults(&after).unwrap().pop() {
        found += beta.own_archive_faults(&after).unwrap().len();
        after = last;
    }
    assert_eq!((found, after.as_str()), (40, "jobs/39"));
    // Of a place of a later release, nothing is known.
    let later = "INSERT INTO archive_policy VALUES (1, 'tape', 5)";
    place.server.cluster.query("fleet", later);
    assert_eq!(beta.file_archive_policy().unwrap().place, FileArchivePlace::Off);
}
