//! Tests of the daemon's records: due times, the queue, money, people's settings, and parts of a
//! change that fail on their own.

use std::cell::RefCell;

use heeler_model::fleet::{ParkedCredentialRecord, QueuedJobRecord, ReservationRecord};
use heeler_model::timetable::{DueTimeCursor, DueTimeSkip, SkipReason};
use heeler_model::{AgentState, RunId, ScheduleState, iso_millis};
use jiff::civil::{Date, date};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::db::{StateDatabase, migrate};
use crate::{
    EffectRecord, JobFilter, LastLightTable, PublishedView, ScheduleOverrideRecord,
    ScheduleProgressRecord, ScheduledWorkId, SkipRecord, StoreWriteError,
};

fn mark(schedule: &str, through: i64) -> ScheduleProgressRecord {
    ScheduleProgressRecord {
        agent: "coder".to_owned(),
        schedule: schedule.to_owned(),
        progress: DueTimeCursor { anchor: now(), through: later(through) },
        trigger_text: "every 1h".to_owned(),
    }
}

fn skip(first: i64, last: i64, count: u64, reason: SkipReason) -> DueTimeSkip {
    DueTimeSkip { first: later(first), last: later(last), count, reason }
}

fn skips_of(db: &StateDatabase, schedule: &str) -> Vec<DueTimeSkip> {
    let rows = db.skips("coder", schedule, None, usize::MAX).unwrap();
    rows.into_iter().map(|row| row.skip).collect()
}

#[test]
fn a_mark_outlives_its_agents_state_and_is_forgotten_with_its_schedule() {
    let place = place();
    let store = place.store();
    let marks = || place.reader().schedule_progress().unwrap();
    commit(&store, |tx| tx.set_schedule_progress(&mark("nightly", 1)));
    assert_eq!(marks(), [mark("nightly", 1)]);
    store.publish_views(now()).unwrap();
    assert!(place.read("state.yaml").contains("nightly"), "the schedule came into being");

    let mut agent = place.reader().agent("coder").unwrap().unwrap();
    agent.schedules.insert("hourly".to_owned(), ScheduleState::default());
    commit(&store, move |tx| {
        tx.put_agent("coder", &agent)?;
        tx.set_schedule_progress(&mark("hourly", 3))?;
        tx.put_schedule("coder", "nightly", &ScheduleState::default())
    });
    assert_eq!(marks(), [mark("hourly", 3), mark("nightly", 1)]);

    commit(&store, |tx| tx.remove_schedule("coder", "nightly"));
    commit(&store, |tx| tx.put_schedule("coder", "nightly", &ScheduleState::default()));
    assert_eq!(marks(), [mark("hourly", 3)], "what comes back is new");
    commit(&store, |tx| tx.remove_agent("coder"));
    assert_eq!(marks(), []);
}

#[test]
fn a_mark_that_moves_publishes_nothing_and_one_that_brings_a_schedule_back_does() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        tx.set_schedule_progress(&mark("nightly", 1))?;
        assert!(tx.has_marked());
        Ok(())
    });
    commit(&store, |tx| {
        tx.set_schedule_progress(&mark("nightly", 2))?;
        assert!(!tx.has_marked());
        Ok(())
    });
    commit(&store, |tx| tx.put_agent("coder", &AgentState::default()));
    assert!(!place.reader().agents().unwrap()["coder"].schedules.contains_key("nightly"));
    assert_eq!(place.reader().schedule_progress().unwrap(), [mark("nightly", 2)]);
    commit(&store, |tx| {
        tx.set_schedule_progress(&mark("nightly", 3))?;
        assert!(tx.has_marked());
        Ok(())
    });
    assert!(place.reader().agents().unwrap()["coder"].schedules.contains_key("nightly"));
}

#[test]
fn a_due_time_gets_one_job() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        assert!(tx.add_occurrence("coder", "nightly", later(1), &job_id(1))?);
        assert!(!tx.add_occurrence("coder", "nightly", later(1), &job_id(2))?, "on record");
        assert!(tx.add_occurrence("coder", "hourly", later(1), &job_id(3))?);
        assert!(tx.add_occurrence("writer", "nightly", later(1), &job_id(4))?);
        for due in 2..=5 {
            assert!(tx.add_occurrence("coder", "nightly", later(due), &job_id(10))?);
        }
        Ok(())
    });
    let reader = place.reader();
    let page = |before, limit| -> Vec<_> {
        let page = reader.occurrences("coder", "nightly", before, limit).unwrap();
        page.into_iter().map(|occurrence| occurrence.due).collect()
    };
    assert_eq!(page(None, 2), [later(5), later(4)]);
    assert_eq!(page(Some(later(4)), 9), [later(3), later(2), later(1)]);
    let first = reader.occurrence_of_job(&job_id(1)).unwrap().unwrap();
    let work = ScheduledWorkId::Job(job_id(1));
    assert_eq!((first.schedule.as_str(), first.due, first.work), ("nightly", later(1), work));
    for text in ["job-2026-11-15-aaaaaa", "wf-2026-11-15-aaaaaa"] {
        let work: ScheduledWorkId = text.parse().unwrap();
        assert_eq!(work.as_str(), text);
        assert_eq!(matches!(work, ScheduledWorkId::WorkflowRun(_)), text.starts_with("wf-"));
    }
    assert_eq!(reader.occurrence_of_job(&job_id(2)).unwrap(), None);
}

#[test]
fn a_schedule_that_is_skipped_for_a_week_is_one_row() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        for hour in 0..7 * 24 {
            let due = hour * 3600;
            let skip = skip(due, due, 1, SkipReason::Missed);
            let begins = tx.add_skip("coder", "hourly", &skip, later(due + 1))?;
            assert_eq!(begins, hour == 0, "only the first of them is told");
        }
        Ok(())
    });
    let last = (7 * 24 - 1) * 3600;
    let expected = SkipRecord {
        agent: "coder".to_owned(),
        schedule: "hourly".to_owned(),
        skip: skip(0, last, 7 * 24, SkipReason::Missed),
        recorded_at: later(last + 1),
    };
    assert_eq!(place.reader().skips("coder", "hourly", None, 9).unwrap(), [expected]);
}

#[test]
fn skips_stay_apart_where_something_lies_between_them() {
    use SkipReason::{Missed, Overlap};
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        let mut add = |skip: DueTimeSkip| tx.add_skip("coder", "s", &skip, now());
        add(skip(1, 2, 2, Missed))?;
        add(skip(3, 3, 1, Overlap))?;
        add(skip(4, 4, 1, Missed))?;
        tx.add_occurrence("coder", "s", later(5), &job_id(1))?;
        // Neither another schedule's rows nor another agent's are between.
        tx.add_occurrence("coder", "t", later(7), &job_id(1))?;
        tx.add_skip("writer", "s", &skip(7, 7, 1, Overlap), now())?;
        tx.add_skip("coder", "s", &skip(6, 6, 1, Missed), now())?;
        tx.add_skip("coder", "s", &skip(8, 9, 2, Missed), now())
    });
    let expected = [
        skip(6, 9, 3, Missed),
        skip(4, 4, 1, Missed),
        skip(3, 3, 1, Overlap),
        skip(1, 2, 2, Missed),
    ];
    assert_eq!(skips_of(&place.reader(), "s"), expected);
    let page = place.reader().skips("coder", "s", Some(later(6)), 2).unwrap();
    assert_eq!(page.into_iter().map(|row| row.skip).collect::<Vec<_>>(), expected[1..3]);
}

/// One result of due times: a skip from `first` on, or a job for it.
#[derive(Debug, Clone, Copy)]
enum RandomDueTime {
    Skipped { first: i64, len: i64, count: u64, reason: SkipReason },
    Ran { due: i64 },
}

fn fates() -> impl Strategy<Value = Vec<RandomDueTime>> {
    let reason = proptest::sample::select(SkipReason::ALL);
    let skipped =
        (0..60_i64, 0..12_i64, 1..9_u64, reason).prop_map(|(first, len, count, reason)| {
            RandomDueTime::Skipped { first, len, count, reason }
        });
    let fate =
        prop_oneof![4 => skipped, 1 => (0..60_i64).prop_map(|due| RandomDueTime::Ran { due })];
    proptest::collection::vec(fate, 0..25)
}

/// Puts each fate after the one before it, as time does while no clock is set back.
fn in_order(fates: &[RandomDueTime]) -> Vec<RandomDueTime> {
    let mut at = 0;
    let mut place = |gap: i64, len: i64| {
        let first = at + 1 + gap % 3;
        at = first + len;
        first
    };
    let moved = fates.iter().map(|&fate| match fate {
        RandomDueTime::Skipped { first, len, count, reason } => {
            RandomDueTime::Skipped { first: place(first, len), len, count, reason }
        }
        RandomDueTime::Ran { due } => RandomDueTime::Ran { due: place(due, 0) },
    });
    moved.collect()
}

/// Records fates under a schedule of their own, and returns its rows.
fn recorded(tx: &RefCell<&mut StoreTransaction<'_>>, fates: &[RandomDueTime]) -> Vec<DueTimeSkip> {
    let mut tx = tx.borrow_mut();
    let name = format!("s{}", fastrand::u64(..));
    for &fate in fates {
        match fate {
            RandomDueTime::Skipped { first, len, count, reason } => {
                tx.add_skip("coder", &name, &skip(first, first + len, count, reason), now())
                    .map(drop)
                    .unwrap();
            }
            RandomDueTime::Ran { due } => {
                tx.add_occurrence("coder", &name, later(due), &job_id(1)).unwrap();
            }
        }
    }
    let mut rows = skips_of(&tx, &name);
    rows.reverse();
    rows
}

fn sum(skips: impl Iterator<Item = (u64, SkipReason)>, reason: SkipReason) -> u64 {
    skips.filter(|(_, of)| *of == reason).map(|(count, _)| count).sum()
}

/// Runs a property on the writer's thread: opening a store for each case would take minutes.
fn check_fates(check: impl Fn(&[RandomDueTime], &[DueTimeSkip]) + Send + 'static, ordered: bool) {
    let place = place();
    commit(&place.store(), move |tx| {
        let tx = RefCell::new(tx);
        let mut runner = TestRunner::default();
        let case = |fates: Vec<RandomDueTime>| {
            let fates = if ordered { in_order(&fates) } else { fates };
            check(&fates, &recorded(&tx, &fates));
            Ok(())
        };
        runner.run(&fates(), case).unwrap();
        Ok(())
    });
}

#[test]
fn any_sequence_of_skips_keeps_their_number_and_those_of_a_reason_never_overlap() {
    let check = |fates: &[RandomDueTime], rows: &[DueTimeSkip]| {
        for &reason in SkipReason::ALL {
            let added = fates.iter().filter_map(|fate| match fate {
                RandomDueTime::Skipped { count, reason, .. } => Some((*count, *reason)),
                RandomDueTime::Ran { .. } => None,
            });
            assert_eq!(
                sum(rows.iter().map(|row| (row.count, row.reason)), reason),
                sum(added, reason)
            );
            let own: Vec<_> = rows.iter().filter(|row| row.reason == reason).collect();
            assert!(own.is_sorted_by(|a, b| a.last < b.first), "{own:?}");
        }
        for fate in fates {
            let RandomDueTime::Skipped { first, len, reason, .. } = *fate else { continue };
            let has =
                |row: &DueTimeSkip| row.first <= later(first) && later(first + len) <= row.last;
            assert!(rows.iter().any(|row| row.reason == reason && has(row)), "{fate:?}");
        }
    };
    check_fates(check, false);
}

#[test]
fn skips_in_the_order_of_time_overlap_nothing_and_are_as_few_as_can_be() {
    let check = |fates: &[RandomDueTime], rows: &[DueTimeSkip]| {
        assert!(rows.is_sorted_by(|a, b| a.last < b.first), "{rows:?}");
        let ran: Vec<_> = fates
            .iter()
            .filter_map(|fate| match fate {
                RandomDueTime::Ran { due } => Some(later(*due)),
                RandomDueTime::Skipped { .. } => None,
            })
            .collect();
        assert!(
            ran.iter().all(|due| !rows.iter().any(|row| (row.first..=row.last).contains(due))),
            "{ran:?} {rows:?}"
        );
        for pair in rows.windows(2) {
            let is_parted = ran.iter().any(|due| (pair[0].last..pair[1].first).contains(due));
            assert!(is_parted || pair[0].reason != pair[1].reason, "{pair:?}");
        }
    };
    check_fates(check, true);
}

fn queued(number: u64, priority: i64, asked: i64) -> QueuedJobRecord {
    QueuedJobRecord {
        job: job_id(number),
        priority,
        requested_at: later(asked),
        not_before: None,
        expires_at: None,
        request_json: "{}".to_owned(),
        reason: "the fleet is full".to_owned(),
    }
}

#[test]
fn the_queue_goes_by_priority_then_age_then_id_and_survives_the_writer() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, (1..=5).map(|number| job(number, "coder", JobStatus::Pending)).collect());
    commit(&store, |tx| {
        for (number, priority, asked) in [(1, 0, 5), (3, 0, 2), (2, 0, 2), (4, -1, 0), (5, 9, 9)] {
            tx.enqueue(&queued(number, priority, asked))?;
        }
        Ok(())
    });
    drop(store);
    let store = place.store();
    let order = || -> Vec<_> {
        place.reader().queue().unwrap().into_iter().map(|queued| queued.job).collect()
    };
    let same_moment = {
        let mut ids = [job_id(2), job_id(3)];
        ids.sort();
        ids
    };
    let [a, b] = same_moment;
    assert_eq!(order(), [job_id(5), a.clone(), b.clone(), job_id(1), job_id(4)]);

    let changed = QueuedJobRecord {
        not_before: Some(later(60)),
        expires_at: Some(later(90)),
        reason: "its quota is used up".to_owned(),
        ..queued(4, 10, 0)
    };
    let again = changed.clone();
    commit(&store, move |tx| {
        tx.enqueue(&again)?;
        assert!(tx.dequeue(&job_id(5))?);
        assert!(!tx.dequeue(&job_id(5))?, "it is out");
        Ok(())
    });
    assert_eq!(order(), [job_id(4), a, b, job_id(1)]);
    assert_eq!(place.reader().queued_job(&job_id(4)).unwrap(), Some(changed));
    assert_eq!(place.reader().queued_job(&job_id(5)).unwrap(), None);
    let refused = store.write(|tx| tx.enqueue(&queued(99, 0, 0)));
    let refused = refused.unwrap_err().to_string();
    assert!(
        is_refused_by(&refused, "FOREIGN KEY", "foreign key"),
        "there is no such job: {refused}"
    );
}

fn reservation(number: u8, micros: i64) -> ReservationRecord {
    ReservationRecord {
        run: RunId::mint(now(), [number; 10]),
        agent: "coder".to_owned(),
        day: date(2026, 11, 15),
        micros,
    }
}

#[test]
fn money_is_set_aside_once_and_freed_once() {
    let place = place();
    let store = place.store();
    let (first, second) = (reservation(1, 500_000), reservation(2, 7));
    let raised = ReservationRecord { micros: 600_000, ..first.clone() };
    let (put, run) = ([first, second.clone(), raised.clone()], raised.run);
    commit(&store, move |tx| put.iter().try_for_each(|reservation| tx.reserve(reservation)));
    assert_eq!(place.reader().reservations().unwrap(), [raised.clone(), second.clone()]);
    assert_eq!(commit(&store, move |tx| tx.release(run)), Some(raised));
    assert_eq!(commit(&store, move |tx| tx.release(run)), None);
    assert_eq!(place.reader().reservations().unwrap(), [second]);
}

#[test]
fn spending_adds_up_by_day_agent_and_model() {
    let place = place();
    let store = place.store();
    let (monday, tuesday) = (date(2026, 11, 16), date(2026, 11, 17));
    commit(&store, move |tx| {
        for (day, agent, model, micros) in [
            (tuesday, "coder", "opus", 5),
            (monday, "coder", "opus", 100),
            (monday, "coder", "opus", 20),
            (monday, "coder", "haiku", 3),
            (monday, "writer", "opus", 1_000_000_000_000),
        ] {
            tx.spend(day, agent, model, micros)?;
        }
        Ok(())
    });
    let reader = place.reader();
    let sums = |sums: Vec<(String, i64)>| format!("{sums:?}");
    let of = |day| sums(reader.daily_spend_by_agent(day).unwrap());
    assert_eq!(of(monday), r#"[("coder", 123), ("writer", 1000000000000)]"#);
    assert_eq!(of(tuesday), r#"[("coder", 5)]"#);
    assert_eq!(of(date(2026, 11, 18)), "[]");
    let all = sums(reader.total_spend_by_agent().unwrap());
    assert_eq!(all, r#"[("coder", 128), ("writer", 1000000000000)]"#);
    let listed = |since: Option<Date>| -> Vec<_> {
        let rows = reader.daily_spend_since(since).unwrap();
        rows.into_iter().map(|row| (row.day, row.agent, row.model, row.micros)).collect()
    };
    assert_eq!(listed(Some(tuesday)), [(tuesday, "coder".into(), "opus".into(), 5)]);
    assert_eq!(listed(None).len(), 4);
    assert_eq!(listed(None)[0], (monday, "coder".into(), "haiku".into(), 3));
}

#[test]
fn a_credential_is_parked_until_it_is_freed() {
    let place = place();
    let store = place.store();
    let parked = |until| ParkedCredentialRecord {
        credential: "work".to_owned(),
        until: later(until),
        since: now(),
        reason: "usage limit".to_owned(),
        job: job_id(1),
    };
    commit(&store, move |tx| {
        tx.park(&parked(60))?;
        tx.park(&parked(90))
    });
    assert_eq!(place.reader().parked_credentials().unwrap(), [parked(90)]);
    commit(&store, |tx| {
        tx.unpark("work")?;
        tx.unpark("work")
    });
    assert_eq!(place.reader().parked_credentials().unwrap(), []);
}

fn set_to(agent: &str, schedule: &str, text: Option<&str>) -> ScheduleOverrideRecord {
    ScheduleOverrideRecord {
        agent: agent.to_owned(),
        schedule: schedule.to_owned(),
        enabled: text.is_some(),
        text: text.map(str::to_owned),
        at: now(),
        by: "ada".to_owned(),
    }
}

#[test]
fn overrides_are_beside_last_lights_and_leave_those_alone() {
    use rusqlite::types::Value;
    let place = place();
    let store = place.store();
    let text = |text: &str| Value::Text(text.to_owned());
    let foreign = move |name: &str| {
        vec![text(name), Value::Integer(0), text("0 3 * * *"), text(""), Value::Null]
    };
    commit(&store, move |tx| {
        assert!(tx.import_row(LastLightTable::CronOverrides, &foreign("triage"))?);
        assert!(tx.import_row(LastLightTable::CronOverrides, &foreign("coder/imported"))?);
        tx.put_schedule_override(&set_to("site.coder", "docs/weekly", Some("every 2h")))?;
        tx.put_schedule_override(&set_to("coder", "nightly", Some("every 2h")))?;
        tx.put_schedule_override(&set_to("coder", "nightly", None))?;
        assert!(!tx.remove_schedule_override("coder", "triage")?);
        Ok(())
    });
    let imported = ScheduleOverrideRecord {
        enabled: false,
        at: Timestamp::UNIX_EPOCH,
        by: String::new(),
        ..set_to("coder", "imported", Some("0 3 * * *"))
    };
    let expected = [
        imported,
        set_to("coder", "nightly", None),
        set_to("site.coder", "docs/weekly", Some("every 2h")),
    ];
    assert_eq!(place.reader().schedule_overrides().unwrap(), expected);
    commit(&store, |tx| {
        assert!(tx.remove_schedule_override("site.coder", "docs/weekly")?);
        Ok(())
    });
    assert_eq!(place.reader().schedule_overrides().unwrap(), expected[..2]);
    let names = "SELECT COUNT(*) FROM cron_overrides WHERE name = 'triage' AND enabled = 0";
    assert_eq!(count_rows(&place.reader(), names), 1);
}

#[test]
fn an_agent_stays_switched_off_whatever_its_state_says() {
    let place = place();
    let store = place.store();
    let disabled = || place.reader().disabled_agents().unwrap();
    commit(&store, |tx| {
        tx.set_agent_enabled("coder", false)?;
        tx.put_agent("writer", &AgentState::default())?;
        tx.put_agent("coder", &AgentState::default())
    });
    assert_eq!(disabled(), ["coder"]);
    commit(&store, |tx| tx.remove_agent("coder"));
    assert_eq!(disabled(), ["coder"], "it is off when it comes back");
    commit(&store, |tx| tx.set_agent_enabled("coder", true));
    assert!(disabled().is_empty());
}

fn effect(id: &str, created: i64) -> EffectRecord {
    EffectRecord {
        id: id.to_owned(),
        kind: "hook".to_owned(),
        key: "job".to_owned(),
        payload: "{}".to_owned(),
        created_at: later(created),
        attempts: 0,
        last_error: None,
    }
}

#[test]
fn an_effect_that_failed_is_due_again_when_it_was_put_off_to() {
    let place = place();
    let store = place.store();
    assert_eq!(place.reader().next_effect_at().unwrap(), None);
    commit(&store, |tx| {
        for (id, created) in [("b", 2), ("a", 2), ("c", 1), ("d", 0)] {
            tx.add_effect(&effect(id, created))?;
        }
        tx.postpone_effect("c", "no network", later(60))?;
        tx.postpone_effect("d", "no network", later(30))
    });
    let due = |at: i64, limit| -> Vec<String> {
        let due = place.reader().due_effects(later(at), limit).unwrap();
        due.into_iter().map(|effect| effect.id).collect()
    };
    let next = || place.reader().next_effect_at().unwrap();
    // A clock that was set back delays nothing that is due at once.
    assert_eq!(due(-9999, 9), ["a", "b"]);
    assert_eq!(next(), Some(Timestamp::UNIX_EPOCH));
    assert_eq!(due(29, 9), ["a", "b"]);
    assert_eq!(due(30, 9), ["a", "b", "d"]);
    assert_eq!(due(60, 3), ["a", "b", "d"]);
    commit(&store, |tx| {
        tx.finish_effect("a", later(3))?;
        tx.finish_effect("b", later(3))
    });
    assert_eq!(next(), Some(later(30)));
    let [d, c] = &place.reader().due_effects(later(60), 9).unwrap()[..] else { panic!("two") };
    assert_eq!((d.id.as_str(), d.attempts, d.last_error.as_deref()), ("d", 1, Some("no network")));
    assert_eq!(c.id, "c");
    commit(&store, |tx| {
        tx.finish_effect("d", later(61))?;
        tx.finish_effect("c", later(61))?;
        tx.postpone_effect("c", "late", later(99))
    });
    assert_eq!((next(), due(9999, 9)), (None, Vec::new()), "what is done stays done");
}

fn count(db: &StateDatabase) -> i64 {
    db.count_jobs(&JobFilter::default()).unwrap()
}

fn refuse(tx: &mut StoreTransaction<'_>, number: u64) -> Result<(), DatabaseError> {
    tx.insert_job(&job(number, "coder", JobStatus::Pending))?;
    tx.set_agent_enabled("ghost", false)?;
    assert_eq!(count(tx), i64::try_from(number).unwrap(), "it sees what it did");
    Err(DatabaseError::Missing { what: "job", id: "x".to_owned() })
}

#[test]
fn an_attempt_that_fails_leaves_nothing_and_the_change_goes_on() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        tx.with_savepoint(|tx| refuse(tx, 1)).unwrap_err();
        assert_eq!(count(tx), 0, "counters too");
        assert!(!tx.has_marked(), "no view is due");
        tx.insert_job(&job(1, "coder", JobStatus::Pending))?;
        tx.with_savepoint(|tx| refuse(tx, 2)).unwrap_err();
        assert!(tx.has_marked(), "what was before stays");
        tx.with_savepoint(|tx| tx.set_meta("kept", "yes"))
    });
    let reader = place.reader();
    assert_eq!(count(&reader), 1);
    assert!(reader.disabled_agents().unwrap().is_empty());
    assert!(reader.view(&PublishedView::Job(job_id(2)).path()).unwrap().is_none());
    assert_eq!(reader.meta("kept").unwrap().as_deref(), Some("yes"));
    assert!(!commit(&store, |tx| tx.recount()));
}

#[test]
fn attempts_nest_and_each_undoes_its_own_part() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        tx.with_savepoint(|tx| {
            tx.insert_job(&job(1, "coder", JobStatus::Pending))?;
            tx.with_savepoint(|tx| refuse(tx, 2)).unwrap_err();
            tx.with_savepoint(|tx| tx.insert_job(&job(3, "coder", JobStatus::Pending)))
        })?;
        let undone = tx.with_savepoint(|tx| {
            tx.with_savepoint(|tx| tx.insert_job(&job(4, "coder", JobStatus::Pending)))?;
            Err::<(), _>(DatabaseError::Missing { what: "job", id: "x".to_owned() })
        });
        undone.unwrap_err();
        Ok(())
    });
    let ids = place.reader().jobs(&JobFilter::default(), None, 9).unwrap();
    let ids: Vec<_> = ids.into_iter().map(|head| head.id).collect();
    assert_eq!(ids, [job_id(3), job_id(1)]);
}

#[test]
fn a_panic_in_an_attempt_undoes_the_whole_change_and_the_writer_lives_on() {
    let place = place();
    let store = place.store();
    let panicked = store.write::<(), DatabaseError, _>(|tx| {
        tx.insert_job(&job(1, "coder", JobStatus::Pending))?;
        tx.with_savepoint(|tx| {
            tx.insert_job(&job(2, "coder", JobStatus::Pending))?;
            panic!("a bug")
        })
    });
    assert!(matches!(panicked, Err(StoreWriteError::Panicked(_))), "{panicked:?}");
    insert_jobs(&store, vec![job(3, "coder", JobStatus::Pending)]);
    assert_eq!(count(&place.reader()), 1);
}

#[test]
fn after_a_full_disk_in_an_attempt_nothing_more_is_written() {
    let place = place();
    let store = place.store();
    let error = store.write::<(), DatabaseError, _>(|tx| {
        let full = tx.with_savepoint(|tx| {
            // Simulates the rollback that SQLite performs on some failures.
            tx.conn.sqlite().execute_batch("ROLLBACK").unwrap();
            Ok::<(), DatabaseError>(())
        });
        assert!(full.unwrap_err().is_full());
        // Outside a transaction this would be committed at once.
        tx.insert_job(&job(1, "coder", JobStatus::Pending)).unwrap_err();
        tx.with_savepoint(|tx| tx.insert_job(&job(2, "coder", JobStatus::Pending))).unwrap_err();
        Ok(())
    });
    assert!(matches!(error, Err(StoreWriteError::NotSaved(_))), "{error:?}");
    assert_eq!(count(&place.reader()), 0);
    insert_jobs(&store, vec![job(3, "coder", JobStatus::Pending)]);
    assert_eq!(count(&place.reader()), 1, "the connection was opened anew");
}

#[test]
fn a_database_of_the_second_schema_keeps_what_is_in_it_and_starts_afresh_with_the_rest() {
    let place = place();
    let db = StateDatabase::open_read_write(&place.dir.database()).unwrap();
    for version in 0..2 {
        migrate::apply_next(&db.conn, migrate::MIGRATIONS, version, now()).unwrap();
    }
    let at = iso_millis(now());
    db.conn
        .sqlite()
        .execute_batch(&format!(
            "INSERT INTO agents (name, status) VALUES ('coder', 'error');
             INSERT INTO schedules (agent, name, last_run_at) VALUES ('coder', 'nightly', '{at}');
             INSERT INTO effects (id, kind, key, created_at, payload) VALUES ('e', 'hook', 'k', '{at}', '{{}}');
             INSERT INTO cron_overrides (name, schedule, updated_at) VALUES ('triage', '0 3 * * *', '{at}');"
        ))
        .unwrap();
    drop(db);
    let opened = Store::open(&place.dir, "test", now()).unwrap();
    assert_eq!(opened.migrated_from, Some(2));
    let backups = crate::backups(&place.dir).unwrap();
    let is_before = |step: i64| {
        let name = format!("-before-schema-{step}.db");
        backups.iter().any(|backup| backup.as_str().ends_with(&name))
    };
    assert!((3..=crate::SCHEMA_VERSION).all(is_before), "{backups:?}");
    let reader = place.reader();
    let agent = &reader.agents().unwrap()["coder"];
    assert_eq!(agent.schedules["nightly"].last_run_at, Some(now()));
    assert!(reader.disabled_agents().unwrap().is_empty());
    assert_eq!(reader.schedule_progress().unwrap(), [], "it has not been anywhere yet");
    assert_eq!(reader.due_effects(now(), 9).unwrap().len(), 1, "due at once");
    assert_eq!(reader.schedule_overrides().unwrap(), []);
    commit(&opened.store, |tx| tx.set_schedule_progress(&mark("nightly", 1)));
    assert_eq!(place.reader().schedule_progress().unwrap(), [mark("nightly", 1)]);
}

#[test]
fn old_due_times_are_forgotten_some_at_a_time_and_the_newest_of_each_schedule_stays() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        for due in 0..1_200 {
            tx.add_occurrence("coder", "often", later(due), &job_id(1))?;
        }
        tx.add_occurrence("coder", "once", later(1), &job_id(2))?;
        for due in [1, 3] {
            tx.add_skip("writer", "s", &skip(due, due, 1, SkipReason::Missed), now())?;
            tx.add_skip("writer", "s", &skip(due + 1, due + 1, 1, SkipReason::Overlap), now())?;
        }
        for number in 0..70 {
            tx.add_occurrence("z", &format!("{number:02}"), later(1), &job_id(3))?;
        }
        Ok(())
    });
    let prune =
        |after, before: i64| commit(&store, move |tx| tx.prune_due_times(after, later(before)));
    let dues = |agent: &str, schedule: &str| -> Vec<_> {
        let found = place.reader().occurrences(agent, schedule, None, usize::MAX).unwrap();
        found.into_iter().map(|it| it.due).collect()
    };
    let last = prune(None, 1_000);
    assert_eq!(last, Some(("z".to_owned(), "60".to_owned())));
    assert_eq!(dues("coder", "often").len(), 700, "500 at a time");
    assert_eq!(dues("coder", "once"), [later(1)], "the newest stays");
    assert_eq!(skips_of_agent(&place.reader(), "writer"), [skip(4, 4, 1, SkipReason::Overlap)]);
    assert_eq!(prune(last, 1_000), None);
    assert_eq!(dues("z", "69"), [later(1)]);
    prune(None, 1_000);
    assert_eq!(dues("coder", "often").len(), 200, "what is younger stays");
    prune(None, 10_000);
    assert_eq!(dues("coder", "often"), [later(1_199)]);
}

fn skips_of_agent(reader: &StoreReader, agent: &str) -> Vec<DueTimeSkip> {
    reader.skips(agent, "s", None, 99).unwrap().into_iter().map(|row| row.skip).collect()
}
