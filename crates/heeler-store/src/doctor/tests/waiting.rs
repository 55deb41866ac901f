//! Tests of stale queue entries and reservations, and of the losses that a rebuild reports for
//! them.

use super::*;
use crate::db::{DatabaseError, migrate};
use heeler_model::fleet::{QueuedJobRecord, ReservationRecord};

fn queued(id: &str) -> QueuedJobRecord {
    QueuedJobRecord {
        job: id.parse().unwrap(),
        priority: 0,
        requested_at: now(),
        not_before: None,
        expires_at: None,
        request_json: "{}".to_owned(),
        reason: "full".to_owned(),
    }
}

#[test]
fn a_job_that_is_in_the_queue_and_waits_no_longer_is_taken_out() {
    let fleet = DoctorTestFleet::new();
    let store = fleet.store();
    store
        .write::<(), DatabaseError, _>(|tx| {
            tx.insert_job(&job("job-2026-11-15-bbbbbb", JobStatus::Pending))?;
            tx.enqueue(&queued("job-2026-11-15-bbbbbb"))?;
            tx.enqueue(&queued("job-2026-11-15-aaaaaa"))
        })
        .unwrap();
    store.publish_views(now()).unwrap();
    drop(store);
    let finding = fleet.finds(FindingArea::Database, FindingSeverity::Warning, "no longer waiting");
    assert_eq!(finding.subject, "job-2026-11-15-aaaaaa");
    assert_eq!(fleet.fixes(), ["removed 1 job from the queue"]);
    let waiting = StoreReader::open(&fleet.dir).unwrap().queue().unwrap();
    assert_eq!(waiting, [queued("job-2026-11-15-bbbbbb")]);
}

#[test]
fn a_job_that_is_pending_and_not_in_the_queue_is_told() {
    let fleet = DoctorTestFleet::new();
    let id = RunId::mint(now(), [1; 10]);
    let run = run_of("job-2026-11-15-bbbbbb", id);
    let store = fleet.store();
    let created = run.clone();
    store
        .write(move |tx| {
            tx.insert_job(&job("job-2026-11-15-bbbbbb", JobStatus::Pending))?;
            tx.insert_run(&created)
        })
        .unwrap();
    store.publish_views(now()).unwrap();
    drop(store);
    fleet.write(&format!("runs/{id}/spec.json"), "{}");
    assert_eq!(fleet.examine(), [], "it is being started");
    let ended = RunRecord { committed: true, ..run };
    fleet.store().write(move |tx| tx.update_run(&ended)).unwrap();
    let finding = fleet.finds(FindingArea::Database, FindingSeverity::Warning, "nothing starts it");
    assert_eq!((finding.subject.as_str(), finding.repair), ("job-2026-11-15-bbbbbb", None));
}

#[test]
fn money_of_runs_that_ended_or_are_gone_is_freed() {
    let fleet = DoctorTestFleet::new();
    let (id, gone) = (RunId::mint(now(), [1; 10]), RunId::mint(now(), [9; 10]));
    let ended = RunRecord { committed: true, ..run_of("job-2026-11-15-aaaaaa", id) };
    let reservation = |run| ReservationRecord {
        run,
        agent: "coder".to_owned(),
        day: "2026-11-15".parse().unwrap(),
        micros: 1,
    };
    let reserved = [reservation(ended.id), reservation(gone)];
    fleet
        .store()
        .write::<(), DatabaseError, _>(move |tx| {
            tx.insert_run(&ended)?;
            reserved.iter().try_for_each(|reservation| tx.reserve(reservation))
        })
        .unwrap();
    fleet.finds(FindingArea::Database, FindingSeverity::Warning, "still has a budget reservation");
    assert_eq!(fleet.fixes(), ["released the reservations of 2 runs"]);
}

#[test]
fn a_rebuild_tells_what_only_the_database_knew_of_the_daemons_work() {
    let fleet = DoctorTestFleet::new();
    fleet.sql(
        "INSERT INTO occurrences VALUES ('coder', 'nightly', '2026-11-15T00:00:00.000Z', 'x');
         INSERT INTO skips VALUES ('coder', 'nightly', 'x', 'x', 1, 'missed', 'x');
         INSERT INTO queue VALUES ('job-2026-11-15-aaaaaa', 0, 'x', NULL, NULL, '', '{}');
         INSERT INTO reservations VALUES ('x', 'coder', '2026-11-15', 1);
         INSERT INTO spending VALUES ('2026-11-15', 'coder', 'm', 1);
         INSERT INTO parked VALUES ('work', 'x', 'x', 'x', '');
         INSERT INTO cron_overrides (name, updated_at) VALUES ('coder/nightly', 'x');
         UPDATE schedules SET anchor = 'x', through = 'x', rule = 'x';
         UPDATE agents SET enabled = 0;",
    );
    let rebuilt = rebuild(fleet.dir.root(), now());
    let lost: Vec<_> =
        rebuilt.losses.iter().map(|lost| lost.split(" since ").next().unwrap()).collect();
    let expected = [
        "1 settings of schedules",
        "1 disabled agents",
        "1 records of schedule progress",
        "1 records of due times that were run",
        "1 records of due times that were skipped",
        "1 places in the queue",
        "1 reservations of money",
        "1 days of spending",
        "1 parked credentials",
    ];
    assert_eq!(lost, expected);
}

#[test]
fn a_rebuild_of_an_old_schema_misses_nothing_that_it_never_had() {
    let fleet = DoctorTestFleet::new();
    fs::remove_file(fleet.dir.database()).unwrap();
    let old = StateDatabase::open_read_write(&fleet.dir.database()).unwrap();
    for version in 0..2 {
        migrate::apply_next(&old.conn, migrate::MIGRATIONS, version, now()).unwrap();
    }
    drop(old);
    let rebuilt = rebuild(fleet.dir.root(), now());
    assert_eq!(rebuilt.losses, Vec::<String>::new());
}
