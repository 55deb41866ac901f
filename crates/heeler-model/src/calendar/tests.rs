//! Order of due schedules, and absence of useless wake-ups.

use jiff::{SignedDuration, ToSpan as _};

use super::*;
use crate::timetable::tests::{cron, every};

fn at(text: &str) -> Timestamp {
    format!("2026-01-01T{text}Z").parse().unwrap()
}

fn key(name: &str) -> ScheduleKey {
    ScheduleKey { agent: "fleet.a".to_owned(), schedule: name.to_owned() }
}

fn calendar(schedules: &[(&str, &str)], now: Timestamp) -> ScheduleCalendar {
    let mut calendar = ScheduleCalendar::default();
    for (name, period) in schedules {
        let table = every(period);
        let mark = table.initial_cursor(now);
        calendar.insert(key(name), table, mark, now);
    }
    calendar
}

/// Decides, commits and accepts. Returns the schedules that were decided.
fn turn(calendar: &mut ScheduleCalendar, now: Timestamp, limit: usize) -> Vec<String> {
    let due = calendar.decide_due(now, limit, |_| false);
    due.iter().for_each(|(key, verdict)| calendar.commit_cursor(key, verdict.cursor, now));
    due.into_iter().map(|(key, _)| key.schedule).collect()
}

#[test]
fn schedules_that_are_due_at_the_same_moment_are_all_acted_on_a_few_at_a_time() {
    let mut calendar = calendar(&[("c", "1h"), ("a", "1h"), ("b", "1h")], at("00:00:00"));
    assert_eq!(turn(&mut calendar, at("00:00:00"), 2), ["a", "b"]);
    assert!(calendar.is_due(at("00:00:00")));
    assert_eq!(turn(&mut calendar, at("00:00:00"), 2), ["c"]);
    assert!(!calendar.is_due(at("00:59:59")));
    assert_eq!(calendar.wake_at(), Some(at("01:00:00")));
    assert_eq!(calendar.next_due(&key("c")), Some((at("01:00:00"), at("01:00:00"))));
}

#[test]
fn one_that_is_due_often_does_not_keep_the_others_waiting() {
    let mut calendar = calendar(&[("often", "1s"), ("seldom", "1h")], at("00:00:00"));
    assert_eq!(turn(&mut calendar, at("00:00:00"), 9), ["often", "seldom"]);
    // Each turn takes longer than the short interval, and decides about one schedule.
    let mut now = at("01:00:00");
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.extend(turn(&mut calendar, now, 1));
        now += 2.seconds();
    }
    assert_eq!(seen, ["often", "seldom", "often"]);
}

#[test]
fn what_was_decided_but_not_accepted_is_due_again() {
    let mut calendar = calendar(&[("a", "1h")], at("00:00:00"));
    let first = calendar.decide_due(at("00:00:01"), 9, |_| false);
    assert_eq!(calendar.decide_due(at("00:00:01"), 9, |_| false), first);
    assert_eq!(first[0].1.starts.len(), 1);
}

#[test]
fn each_schedule_is_asked_for_by_itself_whether_it_is_busy() {
    let mut calendar = calendar(&[("a", "1h"), ("b", "1h")], at("00:00:00"));
    let due = calendar.decide_due(at("00:00:00"), 9, |key| key.schedule == "a");
    let starts: Vec<usize> = due.iter().map(|(_, verdict)| verdict.starts.len()).collect();
    assert_eq!(starts, [0, 1]);
}

#[test]
fn a_schedule_that_is_taken_away_or_never_due_again_wakes_nobody() {
    let mut calendar = calendar(&[("a", "1h")], at("00:00:00"));
    calendar.remove(&key("a"));
    assert_eq!((calendar.wake_at(), calendar.next_due(&key("a"))), (None, None));
    let never = every("1h");
    let mark = DueTimeCursor { anchor: Timestamp::MAX, through: Timestamp::MAX };
    calendar.insert(key("never"), never, mark, Timestamp::MAX);
    assert_eq!((calendar.wake_at(), calendar.next_due(&key("never"))), (None, None));
    assert!(!calendar.is_due(Timestamp::MAX));
    // A schedule that was decided about after its removal stays removed.
    calendar.commit_cursor(&key("a"), mark, at("00:00:00"));
    assert_eq!(calendar.next_due(&key("a")), None);
}

#[test]
fn a_clock_that_is_set_back_is_noticed_though_nothing_is_due() {
    let mut calendar = calendar(&[("a", "1h"), ("b", "2h")], at("12:00:00"));
    turn(&mut calendar, at("12:00:00"), 9);
    assert!(!calendar.is_due(at("11:59:30")), "half a minute is waited for");
    let now = at("03:30:00");
    assert!(calendar.is_due(now));
    // A few at a time, while the clock advances.
    let [(first, verdict)] = &calendar.decide_due(now, 1, |_| false)[..] else { panic!() };
    assert_eq!(verdict.clock_set_back_from, Some(at("12:00:00")));
    calendar.commit_cursor(first, verdict.cursor, now);
    let earlier = now - SignedDuration::from_secs(50);
    assert!(calendar.is_due(earlier));
    assert_eq!(turn(&mut calendar, earlier, 9).len(), 1);
    assert!(!calendar.is_due(earlier));
    // Both intervals go on from the time at which the step back was noticed.
    let dues = ["a", "b"].map(|name| calendar.next_due(&key(name)).unwrap().0);
    assert_eq!(dues, [at("04:30:00"), at("05:29:10")]);
    assert_eq!(calendar.wake_at(), Some(at("04:30:00")));
}

#[test]
fn a_clock_behind_the_mark_of_a_schedule_that_is_gone_is_noticed_once() {
    let mut calendar = calendar(&[("a", "1h")], at("12:00:00"));
    turn(&mut calendar, at("12:00:00"), 9);
    calendar.remove(&key("a"));
    assert!(calendar.is_due(at("03:00:00")));
    assert!(turn(&mut calendar, at("03:00:00"), 9).is_empty());
    assert!(!calendar.is_due(at("03:00:00")));
}

#[test]
fn many_small_steps_back_are_noticed_too() {
    let mut calendar = calendar(&[("a", "1h")], at("12:00:00"));
    turn(&mut calendar, at("12:00:00"), 9);
    let back = |seconds: i64| at("12:00:00") - SignedDuration::from_secs(seconds);
    assert!(![20, 40, 60].into_iter().any(|seconds| calendar.is_due(back(seconds))));
    assert!(calendar.is_due(back(61)));
}

#[test]
fn a_mark_of_a_daemon_whose_clock_was_ahead_is_looked_at_at_once() {
    let mut calendar = ScheduleCalendar::default();
    let table = cron("0 * * * *", "UTC");
    let mark = DueTimeCursor { anchor: at("00:00:00"), through: at("20:00:00") };
    calendar.insert(key("a"), table, mark, at("12:30:00"));
    // This holds even if the clock is set back further before that.
    assert!(calendar.is_due(at("12:30:00")) && calendar.is_due(at("11:00:00")));
    turn(&mut calendar, at("12:30:00"), 9);
    assert_eq!(calendar.next_due(&key("a")), Some((at("13:00:00"), at("13:00:00"))));
}

#[test]
fn ten_thousand_schedules_fit_in_a_few_megabytes() {
    // In addition there are the names, twice, and one parsed expression for each of the last texts.
    let each = size_of::<(ScheduleKey, CalendarEntry)>() + size_of::<(Timestamp, ScheduleKey)>();
    assert!(each <= 320, "{each}");
}
