//! Tests of a database whose files are deleted or replaced while it is open.

use super::*;
use crate::database_files::{DatabaseFiles, write_back};
use crate::db::StateDatabase;
use crate::{JobFilter, StoreWriteError};
use heeler_transcript::fault;

/// More writes than a write-back makes.
const WRITES_MAX: u64 = 100;

/// Ways to lose the files of an open database.
const LOSSES: [&[&str]; 4] = [
    &["heeler.db"],
    &["heeler.db-wal"],
    &["heeler.db-shm"],
    &["heeler.db", "heeler.db-wal", "heeler.db-shm"],
];

impl TempStateDir {
    fn remove(&self, names: &[&str]) {
        names.iter().for_each(|name| std::fs::remove_file(self.root.join(name)).unwrap());
    }

    /// Counts the jobs in the file that has the name.
    fn count(&self) -> i64 {
        self.reader().count_jobs(&JobFilter::default()).unwrap()
    }
}

fn pending(number: u64) -> Job {
    job(number, "coder", JobStatus::Pending)
}

#[test]
fn an_acknowledged_change_is_in_the_file_that_has_the_name() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![pending(0)]);
    for (number, loss) in (1..).zip(LOSSES) {
        let reader = place.reader();
        place.remove(loss);
        insert_jobs(&store, vec![pending(number)]);
        assert_eq!(place.count(), i64::try_from(number).unwrap() + 1, "{loss:?}");
        assert!(!reader.is_current(), "an open reader learns that its file was replaced");
    }
    // Also without a change.
    place.remove(&["heeler.db"]);
    store.check_database().unwrap();
    assert_eq!(place.count(), 5);
    // And at the latest at the end.
    place.remove(&["heeler.db", "heeler.db-wal"]);
    drop(store);
    assert_eq!(place.count(), 5);
    assert_eq!(place.reader().integrity_faults().unwrap(), [""; 0]);
}

#[test]
fn a_log_that_a_reader_created_is_not_that_of_the_writer() {
    let place = place();
    drop(place.store());
    let mut files = DatabaseFiles::of_database(&place.dir.database());
    let open = StateDatabase::open_existing(&place.dir.database()).unwrap();
    assert_eq!(open.epoch().unwrap(), 1);
    place.remove(&["heeler.db-wal"]);
    place.write("heeler.db-wal", "");
    assert!(!files.identify_side_files(&open).unwrap(), "its entry is in the deleted log");
    drop(open);
    for number in 0..2 {
        let store = place.store();
        place.remove(&["heeler.db-wal"]);
        place.write("heeler.db-wal", "");
        insert_jobs(&store, vec![pending(number)]);
        assert_eq!(place.count(), i64::try_from(number).unwrap() + 1);
    }
}

#[test]
fn a_database_that_cannot_be_written_back_is_told_and_tried_again() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![pending(0)]);
    std::fs::remove_dir_all(place.root.join("trash")).unwrap();
    // What is in the place of the database cannot be moved to the trash.
    place.write("trash", "");
    place.write("other", "foreign");
    std::fs::rename(place.root.join("other"), place.dir.database()).unwrap();
    for _ in 0..2 {
        let error = store.write(|tx| tx.insert_job(&pending(1))).unwrap_err();
        let StoreWriteError::NotSaved(error) = error else { panic!("{error}") };
        assert!(error.is_storage_failure());
        assert!(error.to_string().contains("leave the process running"), "{error}");
        assert_eq!(store.database_fault(), Some(error.to_string()));
        assert_eq!(place.read("heeler.db"), "foreign", "it is not touched");
    }
    place.remove(&["trash"]);
    insert_jobs(&store, vec![pending(2)]);
    assert_eq!((place.count(), store.database_fault()), (2, None));
}

#[test]
fn a_write_back_that_is_cut_off_is_repeated_or_completed_by_the_next_process() {
    let mut completed = 0;
    for writes in 0..WRITES_MAX {
        let place = place();
        let store = place.store();
        insert_jobs(&store, vec![pending(0)]);
        drop(store);
        let open = StateDatabase::open_existing(&place.dir.database()).unwrap();
        assert_eq!(open.epoch().unwrap(), 1);
        place.remove(&["heeler.db"]);
        fault::fail_after(writes);
        let first = write_back(&place.dir, &open).map(drop);
        fault::never_fail();
        let is_promised = place.has("rebuild.json");
        match (&first, is_promised) {
            // As if the process had been killed.
            (Err(_), true) => completed += 1,
            // Before that, only the process has the content, and it tries again.
            (Err(_), false) => drop(write_back(&place.dir, &open).unwrap()),
            (Ok(()), _) => {}
        }
        open.abandon_files().unwrap();
        drop(open);
        drop(place.store());
        assert_eq!(place.count(), 1, "after {writes} writes");
        if first.is_ok() {
            assert!(completed > 2, "the faults were met");
            return;
        }
    }
    panic!("the write-back never came to its end");
}

#[test]
fn the_memory_for_pages_of_every_connection_is_limited() {
    let place = place();
    let cache = |db: &StateDatabase| {
        db.conn.sqlite().query_row("PRAGMA cache_size", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let writer = commit(&place.store(), move |tx| Ok(cache(tx)));
    // The pages of all jobs fit into neither.
    assert_eq!((writer, cache(&place.reader())), (-2048, -1024));
}
