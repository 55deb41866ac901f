//! Tests of the writer: batches, rollbacks and the results that callers get.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use super::*;
use crate::db::StateDatabase;
use crate::{EffectRecord, JobFilter, RunRecord, StoreOpenError, StoreWriteError};

fn count(place: &TempStateDir) -> i64 {
    place.reader().count_jobs(&JobFilter::default()).unwrap()
}

#[test]
fn a_second_writer_is_refused_and_told_who_is_there() {
    let place = place();
    let _store = Store::open(&place.dir, "start --port 80", now()).unwrap();
    let error = Store::open(&place.dir, "test", now()).unwrap_err();
    let StoreOpenError::Lock { source, .. } = error else { panic!("{error}") };
    let expected = format!("`heeler start --port 80`, process {}", std::process::id());
    assert!(source.to_string().contains(&expected), "{source}");
}

#[test]
fn a_refused_command_undoes_itself_and_nothing_else() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    let refused = store.write(|tx| {
        tx.insert_job(&job(2, "coder", JobStatus::Pending))?;
        tx.insert_job(&job(1, "coder", JobStatus::Pending))
    });
    assert!(
        matches!(refused, Err(StoreWriteError::Refused(DatabaseError::Exists { .. }))),
        "{refused:?}"
    );
    insert_jobs(&store, vec![job(3, "coder", JobStatus::Pending)]);
    assert_eq!(count(&place), 2);
    assert!(place.reader().job(&job_id(2)).unwrap().is_none());
}

#[test]
fn a_panicking_command_is_undone_and_the_writer_lives_on() {
    let place = place();
    let store = place.store();
    let panicked = store.write::<(), DatabaseError, _>(|tx| {
        tx.insert_job(&job(1, "coder", JobStatus::Pending))?;
        panic!("a bug");
    });
    assert!(
        matches!(&panicked, Err(StoreWriteError::Panicked(text)) if text == "a bug"),
        "{panicked:?}"
    );
    insert_jobs(&store, vec![job(2, "coder", JobStatus::Pending)]);
    assert_eq!(count(&place), 1);
}

#[test]
fn commands_that_wait_share_a_transaction_and_each_is_answered() {
    let place = place();
    let store = Arc::new(place.store());
    let (entered, has_entered) = sync_channel(0);
    let (release, released) = sync_channel::<()>(0);
    let blocker = {
        let store = Arc::clone(&store);
        std::thread::spawn(move || {
            commit(&store, move |_| {
                entered.send(()).unwrap();
                released.recv().unwrap();
                Ok(())
            });
        })
    };
    has_entered.recv().unwrap();
    let waiting: Vec<_> = (0..20)
        .map(|number| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                insert_jobs(&store, vec![job(number, "a", JobStatus::Pending)]);
            })
        })
        .collect();
    assert_eq!(count(&place), 0);
    release.send(()).unwrap();
    blocker.join().unwrap();
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(count(&place), 20);
}

#[test]
fn a_stale_version_is_told_apart_and_counters_follow_the_status() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    let mut running = job(1, "coder", JobStatus::Running);
    let version = {
        let running = running.clone();
        commit(&store, move |tx| tx.update_job(&running))
    };
    assert_eq!(version, 2);
    let stale = running.clone();
    let error = store.write(move |tx| tx.update_job(&stale));
    assert!(
        matches!(error, Err(StoreWriteError::Refused(DatabaseError::Stale { version: 1, .. }))),
        "{error:?}"
    );
    running.version = version;
    running.head.status = JobStatus::Failed;
    commit(&store, move |tx| tx.update_job(&running));
    let reader = place.reader();
    let total = |status| {
        reader.count_jobs(&JobFilter { status: Some(status), ..JobFilter::default() }).unwrap()
    };
    let totals: Vec<_> = JobStatus::ALL.iter().map(|status| total(*status)).collect();
    assert_eq!(totals, [0, 0, 0, 1, 0]);
    assert!(!commit(&store, |tx| tx.recount()), "the counters were right");
    let missing = store.write(|tx| tx.update_job(&job(9, "coder", JobStatus::Failed)));
    assert!(matches!(missing, Err(StoreWriteError::Refused(DatabaseError::Missing { .. }))));
}

#[test]
fn wrong_counters_are_found_and_put_right() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    let db = StateDatabase::writer_of(&place.dir).unwrap();
    db.conn.execute("UPDATE counters SET total = 7", [], "test").unwrap();
    drop(db);
    assert!(commit(&store, |tx| tx.recount()));
    assert_eq!(count(&place), 1);
}

#[test]
fn how_a_run_ended_is_kept_whole() {
    use heeler_model::run::{RunCost, RunEnd, RunResult};
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Running)]);
    let id = heeler_model::RunId::mint(now(), [1; 10]);
    let run = RunRecord {
        id,
        job_id: job_id(1),
        attempt: 1,
        host: "here".to_owned(),
        epoch: 1,
        status: "created".to_owned(),
        created_at: now(),
        started_at: None,
        finished_at: None,
        committed: false,
        version: 1,
        result_key: None,
    };
    commit(&store, move |tx| tx.insert_run(&run));
    assert_eq!(place.reader().run_result(id).unwrap(), None);
    let result = RunResult {
        protocol: 1,
        run: id,
        job: job_id(1),
        end: RunEnd::Finished,
        exit_reason: heeler_model::ExitReason::Success,
        stop_reason: None,
        summary: Some("done".to_owned()),
        error: None,
        cost: RunCost::default(),
        session: None,
        started_at: now(),
        finished_at: now(),
        exit_code: Some(0),
        settled: None,
        output: None,
        transcript: None,
        session_transcript: None,
        denied: heeler_model::DeniedTools::default(),
        usage_limit: None,
    };
    let written = result.clone();
    commit(&store, move |tx| tx.set_run_result(id, &written));
    assert_eq!(place.reader().run_result(id).unwrap(), Some(result));
    assert_eq!(place.reader().run_ids().unwrap(), [id]);
}

#[test]
fn runs_and_effects_keep_their_versions_and_their_order() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    let run = RunRecord {
        id: heeler_model::RunId::mint(now(), [1; 10]),
        job_id: job_id(1),
        attempt: 1,
        host: "here".to_owned(),
        epoch: 1,
        status: "created".to_owned(),
        created_at: now(),
        started_at: None,
        finished_at: None,
        committed: false,
        version: 1,
        result_key: None,
    };
    let effect = |id: &str| EffectRecord {
        id: id.to_owned(),
        kind: "hook".to_owned(),
        key: "job".to_owned(),
        payload: "{}".to_owned(),
        created_at: now(),
        attempts: 0,
        last_error: None,
    };
    let (first, second) = (effect("e1"), effect("e2"));
    let inserted = run.clone();
    commit(&store, move |tx| {
        tx.insert_run(&inserted)?;
        assert!(tx.add_effect(&second)? && tx.add_effect(&first)?);
        assert!(!tx.add_effect(&first)?, "an event is recorded once");
        tx.fail_effect("e1", "no network")
    });
    let reader = place.reader();
    assert_eq!(reader.uncommitted_runs().unwrap(), std::slice::from_ref(&run));
    let undone = reader.pending_effects(10).unwrap();
    let undone: Vec<_> =
        undone.iter().map(|e| (e.id.as_str(), e.attempts, e.last_error.as_deref())).collect();
    assert_eq!(undone, [("e1", 1, Some("no network")), ("e2", 0, None)]);
    let mut finished = run.clone();
    finished.committed = true;
    commit(&store, move |tx| {
        assert_eq!(tx.update_run(&finished)?, 2);
        assert!(matches!(tx.update_run(&finished), Err(DatabaseError::Stale { .. })));
        assert!(tx.finish_effect("e1", later(1))?);
        assert!(!tx.finish_effect("e1", later(1))?, "done once");
        Ok(())
    });
    assert!(place.reader().uncommitted_runs().unwrap().is_empty());
    assert_eq!(place.reader().pending_effects(10).unwrap().len(), 1);
    commit(&store, |tx| {
        assert!(!tx.give_up_effect("e1", "too late", later(2))?, "it is done");
        assert!(tx.give_up_effect("e2", "no such channel", later(2))?);
        assert!(!tx.give_up_effect("e2", "again", later(2))?, "given up once");
        Ok(())
    });
    assert!(place.reader().pending_effects(10).unwrap().is_empty());
    let reader = place.reader();
    let why = |id: &str| {
        let sql = "SELECT last_error FROM effects WHERE id = ?1";
        let read = |row: &SqlRow<'_>| ColumnReader::new("effects", row).get::<Option<String>>();
        query_first(&reader.conn, sql, [id], "test", read).unwrap().unwrap()
    };
    assert_eq!((why("e1"), why("e2").as_deref()), (None, Some("no such channel")));
}

#[test]
fn new_ids_are_taken_by_nobody() {
    let place = place();
    let store = place.store();
    let ids = commit(&store, |tx| {
        let mut ids = Vec::new();
        for _ in 0..50 {
            let id = tx.new_job_id(now())?;
            let mut job = job(0, "coder", JobStatus::Pending);
            job.head.id = id.clone();
            tx.insert_job(&job)?;
            ids.push(id);
        }
        Ok(ids)
    });
    assert_eq!(ids.len(), 50);
    assert!(ids.iter().all(JobId::has_minted_form));
}

/// Lets the database grow by a few pages only, as a full disk does.
fn limit_pages(store: &Store, pages: i64) {
    commit(store, move |tx| {
        let now: i64 =
            tx.conn.sqlite().query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        let limit = format!("PRAGMA max_page_count = {}", now + pages);
        tx.conn.sqlite().query_row(&limit, [], |_| Ok(())).unwrap();
        Ok(())
    });
}

#[test]
fn a_full_disk_fails_its_callers_and_shows_nothing_half() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    limit_pages(&store, 8);
    let mut big = job(2, "coder", JobStatus::Pending);
    big.prompt = Some("x".repeat(1 << 20));
    let error = store.write(move |tx| {
        tx.insert_job(&job(3, "coder", JobStatus::Pending))?;
        tx.insert_job(&big)
    });
    let error = error.unwrap_err();
    assert!(matches!(&error, StoreWriteError::Refused(cause) if cause.is_full()), "{error:?}");
    assert_eq!(count(&place), 1);
    assert!(place.reader().integrity_faults().unwrap().is_empty());
    insert_jobs(&store, vec![job(4, "coder", JobStatus::Pending)]);
    assert_eq!(count(&place), 2);
}

#[test]
fn a_command_that_hides_a_full_disk_is_not_told_that_it_was_saved() {
    let place = place();
    let store = place.store();
    let error = store.write::<(), DatabaseError, _>(|tx| {
        tx.insert_job(&job(1, "coder", JobStatus::Pending))?;
        // Simulates the rollback that SQLite performs on some failures.
        tx.conn.sqlite().execute_batch("ROLLBACK").unwrap();
        Ok(())
    });
    assert!(matches!(error, Err(StoreWriteError::NotSaved(_))), "{error:?}");
    assert_eq!(count(&place), 0);
    insert_jobs(&store, vec![job(2, "coder", JobStatus::Pending)]);
    assert_eq!(count(&place), 1);
}

#[test]
fn a_failed_commit_fails_every_caller_of_its_transaction() {
    let place = place();
    let store = place.store();
    let error = store.write::<(), DatabaseError, _>(|tx| {
        // A deferred violation is found by COMMIT only.
        tx.conn.run_batch("PRAGMA defer_foreign_keys = ON", "test").unwrap();
        tx.conn
            .sqlite()
            .execute_batch("INSERT INTO schedules (agent, name) VALUES ('nobody', 's')")
            .unwrap();
        tx.insert_job(&job(1, "coder", JobStatus::Pending))
    });
    assert!(matches!(error, Err(StoreWriteError::NotSaved(_))), "{error:?}");
    assert_eq!(count(&place), 0);
    insert_jobs(&store, vec![job(2, "coder", JobStatus::Pending)]);
    assert_eq!(count(&place), 1);
}

/// Returns the value of SQLite's `synchronous` in the transaction of a change.
fn sync_of_change(tx: &StoreTransaction<'_>) -> i64 {
    tx.conn.sqlite().query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap()
}

#[test]
fn a_durable_change_is_never_part_of_an_unsynced_transaction() {
    const FULL: i64 = 2;
    const NORMAL: i64 = 1;
    let place = place();
    let store = place.store();
    let writer = store.writer();
    let alone = writer.write_unsynced(|tx| Ok::<_, DatabaseError>(sync_of_change(tx)));
    assert_eq!(alone.unwrap(), NORMAL);
    std::thread::scope(|scope| {
        for is_durable in [true, false, true, false, true, false] {
            scope.spawn(move || {
                for _ in 0..100 {
                    let change =
                        |tx: &mut StoreTransaction<'_>| Ok::<_, DatabaseError>(sync_of_change(tx));
                    match is_durable {
                        true => assert_eq!(writer.write(change).unwrap(), FULL),
                        false => drop(writer.write_unsynced(change).unwrap()),
                    }
                }
            });
        }
    });
}
