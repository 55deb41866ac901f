//! Decisions about due times: timely, late, too many, overlapping, and under erratic clocks.

use expect_test::{Expect, expect};
use heeler_config::{ConfigDuration, CronExpr};
use jiff::ToSpan as _;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

pub(crate) fn every(period: &str) -> ScheduleTimetable {
    let period: ConfigDuration = period.parse().unwrap();
    table(DueTimeRule::Every(period.get().as_millis() as i64))
}

pub(crate) fn cron(expr: &str, zone_name: &str) -> ScheduleTimetable {
    table(DueTimeRule::Cron { expr: expr.parse::<CronExpr>().unwrap(), zone: zone(zone_name) })
}

fn table(rule: DueTimeRule) -> ScheduleTimetable {
    let (missed, overlap) = (MissedRunPolicy::RunOnce, OverlapPolicy::Skip);
    ScheduleTimetable { rule, jitter: Duration::ZERO, seed: 1, missed, overlap }
}

fn told(verdict: &DueTimeDecision) -> String {
    let mut lines = Vec::new();
    for start in &verdict.starts {
        lines.push(format!("start {}{}", start.due, if start.must_wait { " waits" } else { "" }));
    }
    for skip in &verdict.skips {
        lines.push(format!("{} {} .. {} ({})", skip.reason, skip.first, skip.last, skip.count));
    }
    if let Some(from) = verdict.clock_set_back_from {
        lines.push(format!("set back from {from}"));
    }
    lines.push(format!("through {}", verdict.cursor.through));
    lines.join("\n")
}

#[track_caller]
fn check(table: &ScheduleTimetable, mark: DueTimeCursor, now: &str, busy: bool, expect: Expect) {
    expect.assert_eq(&told(&table.decide_due(mark, at(now), busy)));
}

#[test]
fn an_interval_starts_at_once_and_then_on_its_grid() {
    let table = every("10m");
    let mark = table.initial_cursor(at("2026-01-01T00:03:00.5Z"));
    check(
        &table,
        mark,
        "2026-01-01T00:03:00.5Z",
        false,
        expect![[r#"
        start 2026-01-01T00:03:00.5Z
        through 2026-01-01T00:03:00.5Z"#]],
    );
    let mark = table.decide_due(mark, at("2026-01-01T00:03:01Z"), false).cursor;
    // A late start does not move later due times.
    assert_eq!(table.next_due(mark).unwrap().0, at("2026-01-01T00:13:00.5Z"));
    check(&table, mark, "2026-01-01T00:13:00.4Z", false, expect!["through 2026-01-01T00:03:00.5Z"]);
}

#[test]
fn a_cron_expression_waits_for_its_next_time() {
    let table = cron("0 9 * * *", "Europe/Vienna");
    let mark = table.initial_cursor(at("2026-01-01T08:00:00Z"));
    assert_eq!(table.next_due(mark).unwrap().0, at("2026-01-02T08:00:00Z"));
    check(
        &table,
        mark,
        "2026-01-02T08:00:01Z",
        false,
        expect![[r#"
        start 2026-01-02T08:00:00Z
        through 2026-01-02T08:00:00Z"#]],
    );
}

#[test]
fn what_was_missed_is_made_up_for_as_the_schedule_says() {
    let mut table = cron("0 * * * *", "UTC");
    let mark =
        DueTimeCursor { anchor: at("2026-01-01T00:00:00Z"), through: at("2026-01-01T00:00:00Z") };
    let now = "2026-01-01T05:30:00Z";
    check(
        &table,
        mark,
        now,
        false,
        expect![[r#"
        start 2026-01-01T05:00:00Z
        made_up 2026-01-01T01:00:00Z .. 2026-01-01T04:00:00Z (4)
        through 2026-01-01T05:00:00Z"#]],
    );
    table.missed = MissedRunPolicy::Skip;
    check(
        &table,
        mark,
        now,
        false,
        expect![[r#"
        missed 2026-01-01T01:00:00Z .. 2026-01-01T05:00:00Z (5)
        through 2026-01-01T05:00:00Z"#]],
    );
    table.missed = MissedRunPolicy::RunAll;
    check(
        &table,
        mark,
        now,
        true,
        expect![[r#"
        start 2026-01-01T01:00:00Z waits
        start 2026-01-01T02:00:00Z waits
        start 2026-01-01T03:00:00Z waits
        start 2026-01-01T04:00:00Z waits
        start 2026-01-01T05:00:00Z waits
        through 2026-01-01T05:00:00Z"#]],
    );
}

#[test]
fn one_that_is_timely_makes_up_for_the_missed_ones() {
    let table = cron("0 * * * *", "UTC");
    let mark =
        DueTimeCursor { anchor: at("2026-01-01T00:00:00Z"), through: at("2026-01-01T00:00:00Z") };
    check(
        &table,
        mark,
        "2026-01-01T03:00:30Z",
        false,
        expect![[r#"
        start 2026-01-01T03:00:00Z
        made_up 2026-01-01T01:00:00Z .. 2026-01-01T02:00:00Z (2)
        through 2026-01-01T03:00:00Z"#]],
    );
}

#[test]
fn more_than_a_hundred_missed_ones_are_not_made_up_for() {
    for mut table in [every("1m"), cron("* * * * *", "UTC")] {
        table.missed = MissedRunPolicy::RunAll;
        let mark = DueTimeCursor {
            anchor: at("2026-01-01T00:00:00Z"),
            through: at("2026-01-01T00:00:00Z"),
        };
        let verdict = table.decide_due(mark, at("2026-01-02T00:00:30Z"), false);
        assert_eq!(verdict.starts.len(), 100);
        let [old, timely] = verdict.skips[..] else { panic!("{verdict:?}") };
        assert_eq!((old.count, old.reason), (1440 - 101, SkipReason::TooMany));
        assert_eq!(old.last + 1.minutes(), verdict.starts[0].due);
        assert_eq!((timely.count, timely.reason), (1, SkipReason::Overlap));
    }
}

#[test]
fn one_that_is_due_while_the_last_one_runs_gives_way_or_waits() {
    let mut table = every("1s");
    let mark =
        DueTimeCursor { anchor: at("2026-01-01T00:00:00Z"), through: at("2026-01-01T00:00:00Z") };
    check(
        &table,
        mark,
        "2026-01-01T00:00:03.1Z",
        true,
        expect![[r#"
        overlap 2026-01-01T00:00:01Z .. 2026-01-01T00:00:03Z (3)
        through 2026-01-01T00:00:03Z"#]],
    );
    check(
        &table,
        mark,
        "2026-01-01T00:00:03.1Z",
        false,
        expect![[r#"
        start 2026-01-01T00:00:01Z
        overlap 2026-01-01T00:00:02Z .. 2026-01-01T00:00:03Z (2)
        through 2026-01-01T00:00:03Z"#]],
    );
    table.overlap = OverlapPolicy::Queue;
    check(
        &table,
        mark,
        "2026-01-01T00:00:02.1Z",
        true,
        expect![[r#"
        start 2026-01-01T00:00:01Z waits
        start 2026-01-01T00:00:02Z waits
        through 2026-01-01T00:00:02Z"#]],
    );
}

#[test]
fn a_clock_that_was_set_back_is_told_and_waited_for_no_longer() {
    let table = every("1h");
    let mark =
        DueTimeCursor { anchor: at("2026-01-01T00:00:00Z"), through: at("2031-01-01T00:00:00Z") };
    check(
        &table,
        mark,
        "2026-06-01T00:30:00Z",
        false,
        expect![[r#"
        set back from 2031-01-01T00:00:00Z
        through 2026-06-01T00:30:00Z"#]],
    );
    // A second or two are tolerated: nothing is due twice because of them.
    check(&table, mark, "2030-12-31T23:59:58Z", false, expect!["through 2031-01-01T00:00:00Z"]);
}

/// The daemon was stopped, the machine was suspended, or commits failed: a minute or less at a time.
#[test]
fn due_times_that_a_later_one_has_followed_are_missed() {
    let mut table = every("10s");
    table.overlap = OverlapPolicy::Queue;
    let mark =
        DueTimeCursor { anchor: at("2026-01-01T00:00:00Z"), through: at("2026-01-01T00:00:00Z") };
    let now = "2026-01-01T00:00:31Z";
    check(
        &table,
        mark,
        now,
        false,
        expect![[r#"
        start 2026-01-01T00:00:30Z waits
        made_up 2026-01-01T00:00:10Z .. 2026-01-01T00:00:20Z (2)
        through 2026-01-01T00:00:30Z"#]],
    );
    table.missed = MissedRunPolicy::Skip;
    check(
        &table,
        mark,
        now,
        false,
        expect![[r#"
        start 2026-01-01T00:00:30Z waits
        missed 2026-01-01T00:00:10Z .. 2026-01-01T00:00:20Z (2)
        through 2026-01-01T00:00:30Z"#]],
    );
    table.missed = MissedRunPolicy::RunAll;
    check(
        &table,
        mark,
        now,
        false,
        expect![[r#"
        start 2026-01-01T00:00:10Z waits
        start 2026-01-01T00:00:20Z waits
        start 2026-01-01T00:00:30Z waits
        through 2026-01-01T00:00:30Z"#]],
    );
    // A daemon that is busy for a moment misses nothing.
    let mut often = every("1s");
    (often.overlap, often.missed) = (OverlapPolicy::Queue, MissedRunPolicy::Skip);
    check(
        &often,
        mark,
        "2026-01-01T00:00:03Z",
        false,
        expect![[r#"
        start 2026-01-01T00:00:01Z waits
        start 2026-01-01T00:00:02Z waits
        start 2026-01-01T00:00:03Z waits
        through 2026-01-01T00:00:03Z"#]],
    );
}

#[test]
fn after_a_clock_was_set_back_an_interval_goes_on_and_a_cron_expression_repeats_its_times() {
    let back = "2026-01-01T11:50:00.5Z";
    let table = every("10s");
    // The grid begins after the new time, so it would be silent for ten minutes.
    let mark =
        DueTimeCursor { anchor: at("2026-01-01T12:00:00Z"), through: at("2026-01-01T12:00:20Z") };
    let verdict = table.decide_due(mark, at(back), false);
    assert_eq!(verdict.clock_set_back_from, Some(at("2026-01-01T12:00:20Z")));
    assert!(verdict.starts.is_empty() && verdict.skips.is_empty(), "{verdict:?}");
    let due = at("2026-01-01T11:50:10.5Z");
    assert_eq!(table.next_due(verdict.cursor), Some((due, due)));

    // These due times have jobs, so the interval gets others.
    let mark = DueTimeCursor { anchor: at("2026-01-01T11:00:00.5Z"), ..mark };
    let verdict = table.decide_due(mark, at(back), false);
    let (due, _) = table.next_due(verdict.cursor).unwrap();
    let old = table.rule.next_after(mark.anchor, at(back)).unwrap();
    assert!(due != old && due <= at("2026-01-01T11:50:11Z"), "{due} {old}");

    // The times of a cron expression are the same ones again; the caller knows which have a job.
    let table = cron("* * * * *", "UTC");
    let verdict = table.decide_due(mark, at(back), false);
    let due = at("2026-01-01T11:51:00Z");
    assert_eq!(table.next_due(verdict.cursor), Some((due, due)));
}

#[test]
fn delays_by_chance_are_the_same_each_time_and_keep_the_order() {
    let mut table = cron("* * * * *", "UTC");
    table.jitter = Duration::from_secs(600);
    let mark = table.initial_cursor(at("2026-01-01T00:00:00Z"));
    let (due, acted_on) = table.next_due(mark).unwrap();
    assert_eq!(table.next_due(mark).unwrap(), (due, acted_on));
    assert!(due <= acted_on && acted_on <= due + 10.minutes(), "{due} {acted_on}");
    let other = ScheduleTimetable { seed: 2, ..table.clone() };
    assert_ne!(other.next_due(mark).unwrap().1, acted_on);
    // However long each is delayed, none is overtaken by a later one.
    let (mut mark, mut now, mut seen) = (mark, at("2026-01-01T00:00:00Z"), Vec::new());
    while now < at("2026-01-01T03:00:00Z") {
        let verdict = table.decide_due(mark, now, false);
        seen.extend(verdict.starts.iter().map(|start| (start.due, start.due)));
        seen.extend(verdict.skips.iter().map(|skip| (skip.first, skip.last)));
        (mark, now) = (verdict.cursor, now + 1.second());
    }
    seen.sort();
    assert!(seen.len() > 20, "{}", seen.len());
    assert!(seen.windows(2).all(|pair| pair[0].1 + 1.minute() == pair[1].0), "{seen:?}");
}

#[test]
fn one_that_waits_for_the_delay_of_another_is_not_missed() {
    let mut table = cron("* * * * *", "UTC");
    (table.jitter, table.missed) = (Duration::from_secs(600), MissedRunPolicy::Skip);
    let (mut mark, mut starts) = (table.initial_cursor(at("2026-01-01T00:00:00Z")), 0);
    // A daemon is always running to act on each.
    while let Some((_, now)) =
        table.next_due(mark).filter(|(due, _)| *due < at("2026-01-01T03:00:00Z"))
    {
        let verdict = table.decide_due(mark, now, false);
        starts += verdict.starts.len();
        let is_missed = |skip: &DueTimeSkip| skip.reason != SkipReason::Overlap;
        assert!(!verdict.skips.iter().any(is_missed), "{verdict:?}");
        mark = verdict.cursor;
    }
    assert!(starts > 5, "{starts}");
}

#[test]
fn what_was_due_when_a_schedule_is_switched_off_is_told() {
    let mut table = cron("0 * * * *", "UTC");
    table.jitter = Duration::from_secs(3600);
    let mark =
        DueTimeCursor { anchor: at("2026-01-01T00:00:00Z"), through: at("2026-01-01T00:00:00Z") };
    let (first, last) = (at("2026-01-01T01:00:00Z"), at("2026-01-01T02:00:00Z"));
    let skip = DueTimeSkip { first, last, count: 2, reason: SkipReason::Disabled };
    assert_eq!(table.skip_disabled(mark, last), Some(skip));
    assert_eq!(table.skip_disabled(mark, at("2026-01-01T00:59:59Z")), None);
    assert_eq!(table.skip_disabled(mark, at("2025-01-01T00:00:00Z")), None);
}

#[test]
fn daylight_saving_loses_no_due_time_and_repeats_none() {
    let daily = cron("30 2 * * *", "America/New_York");
    let mark =
        DueTimeCursor { anchor: at("2026-03-07T00:00:00Z"), through: at("2026-03-07T08:00:00Z") };
    let dues = daily.rule.latest(mark.anchor, mark.through, at("2026-03-10T00:00:00Z"), 10);
    assert_eq!(dues, [at("2026-03-08T07:00:00Z"), at("2026-03-09T06:30:00Z")]);
    let daily = cron("30 1 * * *", "America/New_York");
    let mark =
        DueTimeCursor { anchor: at("2026-10-31T12:00:00Z"), through: at("2026-10-31T12:00:00Z") };
    let dues = daily.rule.latest(mark.anchor, mark.through, at("2026-11-02T12:00:00Z"), 10);
    assert_eq!(dues, [at("2026-11-01T05:30:00Z"), at("2026-11-02T06:30:00Z")]);
}

#[test]
fn a_span_that_is_too_long_to_count_is_still_told() {
    let mut table = cron("* * * * *", "UTC");
    table.missed = MissedRunPolicy::Skip;
    let mark =
        DueTimeCursor { anchor: at("2020-01-01T00:00:00Z"), through: at("2020-01-01T00:00:00Z") };
    check(
        &table,
        mark,
        "2021-01-01T00:00:30Z",
        false,
        expect![[r#"
        start 2021-01-01T00:00:00Z
        missed 2020-01-01T00:01:00Z .. 2020-12-31T23:59:00Z (100000)
        through 2021-01-01T00:00:00Z"#]],
    );
}
