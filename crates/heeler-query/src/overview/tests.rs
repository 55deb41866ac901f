//! Overview, activity and calendar of a fleet, from real state directories.

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::fleet::QueuedJobRecord;
use heeler_model::timetable::{DueTimeCursor, DueTimeSkip, SkipReason};
use heeler_model::{ApprovalKind, Job, JobId, JobStatus, ScheduleState, TriggerType};
use heeler_store::{DatabaseError, ScheduleProgressRecord, StateDir, Store, StoreTransaction};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::calendar::{DUE_MAX, TimelineOutcome};
use crate::charts::{CHART_DAYS, CHART_DURATIONS_MAX, CHART_HOURS};
use crate::{FleetReader, QueryContext};

const CONFIG: &str = "
agents:
  - name: coder
    runtime: scripted
    script: [{say: Done.}]
    schedules:
      hourly: {type: interval, interval: 1h, prompt: Go.}
      often: {type: interval, interval: 10s, prompt: Go.}
      never: {type: cron, cron: '0 3 * * *', enabled: false, prompt: Go.}
";

/// A fleet in a folder of its own, in which a test writes.
struct OverviewFixture {
    folder: tempfile::TempDir,
    store: Store,
}

impl OverviewFixture {
    fn new() -> OverviewFixture {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap().join(".heeler");
        let dir = StateDir::create(&root).unwrap();
        let store = Store::open(&dir, "test", now()).unwrap().store;
        OverviewFixture { folder, store }
    }

    fn root(&self) -> Utf8PathBuf {
        Utf8Path::from_path(self.folder.path()).unwrap().to_owned()
    }

    fn write(
        &self,
        change: impl FnOnce(&mut StoreTransaction<'_>) -> Result<(), DatabaseError> + Send + 'static,
    ) {
        self.store.write(change).unwrap();
    }

    fn records(&self) -> FleetReader {
        let dir = StateDir::open(&self.root().join(".heeler")).unwrap();
        let read = |_: &Utf8Path| Ok(CONFIG.to_owned());
        let loaded = heeler_config::load(&self.root().join("heeler.yaml"), &read, &BTreeMap::new());
        let loaded = Arc::new(loaded.unwrap());
        FleetReader::new(dir, move || QueryContext {
            config: None,
            loaded: Some(Arc::clone(&loaded)),
            env: BTreeMap::new(),
            home: None,
            zone: TimeZone::UTC,
        })
    }
}

/// Half an hour after a full one.
fn now() -> Timestamp {
    "2026-11-15T12:30:00Z".parse().unwrap()
}

fn before(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

fn job(number: u64, status: JobStatus, at: Timestamp) -> Job {
    let mut job = Job::new_pending(JobId::mint(at, number), "coder", TriggerType::Manual, at);
    job.head.status = status;
    if status.is_final() {
        job.head.finished_at = Some(at);
        job.head.duration_ms = Some(i64::try_from(number).unwrap() * 1_000);
    }
    job
}

fn insert(place: &OverviewFixture, jobs: Vec<Job>) {
    place.write(move |tx| jobs.iter().try_for_each(|job| tx.insert_job(job)));
}

#[test]
fn an_empty_fleet_does_nothing() {
    let place = OverviewFixture::new();
    let found = place.records().overview(now(), &TimeZone::UTC).unwrap();
    assert_eq!(found.activity, FleetActivity::default());
    assert_eq!((found.agents, found.jobs, found.cost_today_usd), (1, 0, 0.0));
    assert!(found.running.is_empty() && found.next.is_empty() && found.recent.is_empty());
}

#[test]
fn a_job_that_waits_for_an_answer_is_a_question_and_not_at_work() {
    let place = OverviewFixture::new();
    let (asking, working) =
        (job(1, JobStatus::Running, before(10)), job(2, JobStatus::Running, before(5)));
    let question = |id: &str, job: &Job| {
        let id = id.parse().unwrap();
        let kind = ApprovalKind::Permission;
        let mut question = Approval::new_pending(id, job.head.id.as_str(), "Bash", kind, before(1));
        question.job_id = Some(job.head.id.clone());
        question
    };
    // Two questions of one job, and the gate of a workflow.
    let mut questions = vec![question("ask-00000001", &asking), question("ask-00000002", &asking)];
    let gate = "ask-00000003".parse().unwrap();
    questions.push(Approval::new_pending(gate, "run", "gate", ApprovalKind::Approve, now()));
    insert(&place, vec![asking, working]);
    place.write(move |tx| {
        questions.iter().try_for_each(|question| tx.insert_approval(question).map(drop))
    });
    let found = place.records().activity(now()).unwrap();
    assert_eq!((found.running, found.approvals), (1, 3));
}

#[test]
fn what_runs_waits_and_failed_is_told_and_what_is_old_is_not() {
    let place = OverviewFixture::new();
    let (running, waiting) =
        (job(1, JobStatus::Running, before(10)), job(2, JobStatus::Pending, before(5)));
    let (failed, old) =
        (job(3, JobStatus::Failed, before(60)), job(4, JobStatus::Failed, before(90_000)));
    let log =
        StateDir::open(&place.root().join(".heeler")).unwrap().job_transcript(&running.head.id);
    std::fs::write(log, "{\"type\":\"assistant\",\"content\":\"hello\"}\n").unwrap();
    let queued = QueuedJobRecord {
        job: waiting.head.id.clone(),
        priority: 0,
        requested_at: before(5),
        not_before: None,
        expires_at: None,
        request_json: "{}".to_owned(),
        reason: "coder is busy".to_owned(),
    };
    insert(&place, vec![running, waiting, failed, old]);
    place.write(move |tx| tx.enqueue(&queued));
    let found = place.records().overview(now(), &TimeZone::UTC).unwrap();
    assert_eq!(
        found.activity,
        FleetActivity { running: 1, waiting: 1, failed24h: 1, approvals: 0 }
    );
    assert_eq!(found.running[0].last_rows, [r#"{"type":"assistant","content":"hello"}"#]);
    assert!(found.running[0].job.dead, "no process runs it");
    assert_eq!(found.waiting[0].reason, "coder is busy");
    assert_eq!((found.failed.len(), found.recent.len(), found.jobs), (1, 4, 4));
}

#[test]
fn no_part_of_an_overview_grows_without_end() {
    let place = OverviewFixture::new();
    let jobs = (0..100).map(|number| {
        job(number, JobStatus::ALL[number as usize % 5], before(100 - number as i64))
    });
    insert(&place, jobs.collect());
    let found = place.records().overview(now(), &TimeZone::UTC).unwrap();
    assert_eq!(
        (found.running.len(), found.waiting.len()),
        (SECTION_ENTRIES_MAX, SECTION_ENTRIES_MAX)
    );
    assert_eq!(
        (found.failed.len(), found.recent.len()),
        (SECTION_ENTRIES_MAX, SECTION_ENTRIES_MAX)
    );
    assert_eq!(found.activity.running, 20);
}

#[test]
fn what_is_next_comes_soonest_first_and_not_if_it_is_switched_off() {
    let place = OverviewFixture::new();
    place.write(|tx| {
        for (name, seconds) in [("b", 20), ("a", 10), ("off", 5)] {
            let next_run_at = Some(now() + SignedDuration::from_secs(seconds));
            let status =
                if name == "off" { ScheduleStatus::Disabled } else { ScheduleStatus::Idle };
            let state = ScheduleState { next_run_at, status, ..ScheduleState::default() };
            tx.put_schedule("coder", name, &state)?;
        }
        Ok(())
    });
    let names = |place: &OverviewFixture| {
        let found = place.records().overview(now(), &TimeZone::UTC).unwrap();
        found.next.into_iter().map(|due| due.schedule).collect::<Vec<_>>()
    };
    assert_eq!(names(&place), ["a", "b"]);
    place.write(|tx| tx.set_agent_enabled("coder", false));
    assert!(names(&place).is_empty());
}

#[test]
fn jobs_are_counted_in_the_hour_in_which_they_were_asked_for() {
    let place = OverviewFixture::new();
    let at = |text: &str| text.parse().unwrap();
    insert(
        &place,
        vec![
            job(1, JobStatus::Completed, at("2026-11-15T11:59:59.999Z")),
            job(2, JobStatus::Failed, at("2026-11-15T12:00:00Z")),
            job(3, JobStatus::Running, now()),
            job(4, JobStatus::Completed, at("2026-11-14T12:59:59Z")),
        ],
    );
    let hours = place.records().charts(now(), &TimeZone::UTC).unwrap().hours;
    assert_eq!(hours.len(), CHART_HOURS);
    let [.., eleven, twelve] = &hours[..] else { panic!("{hours:?}") };
    assert_eq!((eleven.completed, eleven.failed, eleven.others), (1, 0, 0));
    assert_eq!((twelve.completed, twelve.failed, twelve.others), (0, 1, 1));
    assert_eq!(
        hours.iter().map(crate::charts::HourlyJobCounts::total).sum::<i64>(),
        3,
        "one is older"
    );
}

#[test]
fn an_hour_is_counted_again_while_some_of_its_jobs_are_not_over() {
    let place = OverviewFixture::new();
    let records = place.records();
    let hour =
        |at: Timestamp| records.charts(at, &TimeZone::UTC).unwrap().hours[CHART_HOURS - 2].total();
    let (last, kept) = (before(3_600), crate::charts::CHARTS_CACHE_TTL);
    insert(&place, vec![job(1, JobStatus::Running, last)]);
    assert_eq!(hour(now()), 1);
    insert(&place, vec![job(2, JobStatus::Completed, last)]);
    assert_eq!(hour(now() + kept), 2);
}

#[test]
fn an_hour_whose_jobs_are_over_is_counted_again_now_and_then() {
    let place = OverviewFixture::new();
    let records = place.records();
    let total =
        |at: Timestamp| records.charts(at, &TimeZone::UTC).unwrap().hours[CHART_HOURS - 2].total();
    insert(&place, vec![job(1, JobStatus::Completed, before(3_600))]);
    assert_eq!(total(now()), 1);
    insert(&place, vec![job(2, JobStatus::Completed, before(3_600))]);
    assert_eq!(total(now() + crate::charts::CHARTS_CACHE_TTL), 1);
    assert_eq!(total(now() + crate::charts::HOUR_CACHE_TTL), 2);
}

#[test]
fn figures_are_counted_anew_when_they_have_grown_old() {
    let place = OverviewFixture::new();
    let records = place.records();
    let total = |at: Timestamp| {
        let hours = records.charts(at, &TimeZone::UTC).unwrap().hours;
        hours.iter().map(crate::charts::HourlyJobCounts::total).sum::<i64>()
    };
    assert_eq!(total(now()), 0);
    insert(&place, vec![job(1, JobStatus::Completed, before(10))]);
    assert_eq!(total(now() + crate::charts::CHARTS_CACHE_TTL - SignedDuration::from_millis(1)), 0);
    assert_eq!(total(now() + crate::charts::CHARTS_CACHE_TTL), 1);
    insert(&place, vec![job(2, JobStatus::Completed, before(10))]);
    assert_eq!(total(now()), 2, "a clock that was set back does not keep them");
}

#[test]
fn days_without_money_are_told_too_and_days_are_those_of_the_zone() {
    let place = OverviewFixture::new();
    place.write(|tx| {
        tx.spend("2026-11-15".parse().unwrap(), "coder", "m", 1_500_000)?;
        tx.spend("2026-11-14".parse().unwrap(), "other", "m", 250_000)
    });
    let records = place.records();
    let days = records.charts(now(), &TimeZone::UTC).unwrap().days;
    assert_eq!(days.len(), CHART_DAYS);
    assert_eq!(
        [days[CHART_DAYS - 1].cost_usd, days[CHART_DAYS - 2].cost_usd, days[0].cost_usd],
        [1.5, 0.25, 0.0]
    );
    let own = records.daily_costs("coder", now(), &TimeZone::UTC).unwrap();
    assert_eq!([own[CHART_DAYS - 1].cost_usd, own[CHART_DAYS - 2].cost_usd], [1.5, 0.0]);
    let ahead = TimeZone::fixed(jiff::tz::offset(14));
    let tomorrow = records.charts(now(), &ahead).unwrap().days;
    assert_eq!(tomorrow[CHART_DAYS - 1].day.to_string(), "2026-11-16");
    assert_eq!(records.overview(now(), &ahead).unwrap().cost_today_usd, 0.0);
}

#[test]
fn the_last_jobs_are_told_oldest_first_and_not_more_than_so_many() {
    let place = OverviewFixture::new();
    let most = CHART_DURATIONS_MAX as u64 + 10;
    let status = |number: u64| {
        if number.is_multiple_of(2) { JobStatus::Completed } else { JobStatus::Failed }
    };
    let jobs = (1..=most).map(|number| job(number, status(number), before(1_000 - number as i64)));
    insert(&place, jobs.collect());
    let found = place.records().charts(now(), &TimeZone::UTC).unwrap().durations;
    let seconds: Vec<f64> = found.iter().map(|took| took.seconds).collect();
    assert_eq!(seconds, (11..=most).map(|number| number as f64).collect::<Vec<_>>());
}

#[test]
fn the_calendar_tells_what_ran_what_was_skipped_and_what_is_due() {
    let place = OverviewFixture::new();
    let done = job(1, JobStatus::Failed, before(3_600));
    let id = done.head.id.clone();
    insert(&place, vec![done]);
    place.write(move |tx| {
        tx.add_occurrence("coder", "hourly", before(3_600), &id)?;
        let skip = DueTimeSkip {
            first: before(7_200),
            last: before(7_200),
            count: 1,
            reason: SkipReason::Overlap,
        };
        tx.add_skip("coder", "hourly", &skip, before(7_200))?;
        tx.set_schedule_progress(&ScheduleProgressRecord {
            agent: "coder".to_owned(),
            schedule: "hourly".to_owned(),
            progress: DueTimeCursor { anchor: before(7_200), through: before(3_600) },
            trigger_text: "every 1h".to_owned(),
        })
    });
    let calendar = place.records().calendar(now(), &TimeZone::UTC).unwrap();
    let [hourly, often, never] = &calendar.lanes[..] else { panic!("{calendar:?}") };
    let [skipped, ran, due @ ..] = &hourly.marks[..] else { panic!("{hourly:?}") };
    assert!(
        matches!(&skipped.what, TimelineOutcome::Skipped { count: 1, reason, .. } if reason == "overlap")
    );
    assert!(matches!(ran.what, TimelineOutcome::Ran { status: Some(JobStatus::Failed), .. }));
    assert!(due.iter().all(|mark| mark.what == TimelineOutcome::Due && mark.at > now()));
    assert_eq!((due.len(), due[0].at), (24, now() + SignedDuration::from_hours(1)));
    assert!(!hourly.more_due && often.more_due, "there are 8640 of them");
    assert_eq!(often.marks.len(), DUE_MAX);
    assert!(!never.enabled && never.marks.is_empty());
}

#[test]
fn a_schedule_that_was_set_to_other_times_is_due_by_those() {
    let place = OverviewFixture::new();
    place.write(|tx| {
        tx.put_schedule_override(&heeler_store::ScheduleOverrideRecord {
            agent: "coder".to_owned(),
            schedule: "hourly".to_owned(),
            enabled: true,
            text: Some("0 6 * * *".to_owned()),
            at: now(),
            by: "ann".to_owned(),
        })
    });
    let calendar = place.records().calendar(now(), &TimeZone::UTC).unwrap();
    let times: Vec<String> =
        calendar.lanes[0].marks.iter().map(|mark| mark.at.to_string()).collect();
    assert_eq!(
        (calendar.lanes[0].when.as_str(), times),
        ("0 6 * * *", vec!["2026-11-16T06:00:00Z".to_owned()])
    );
}
