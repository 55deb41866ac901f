//! Selection of due hooks from the recorded effects.

use super::*;

fn effect(id: &str, key: &str) -> EffectRecord {
    EffectRecord {
        id: id.to_owned(),
        kind: HOOK_EFFECT_KIND.to_owned(),
        key: key.to_owned(),
        payload: "{}".to_owned(),
        created_at: Timestamp::UNIX_EPOCH,
        attempts: 0,
        last_error: None,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[track_caller]
fn check(busy: &[&str], tried: &[(&str, Option<i64>)], ready: &[&[&str]], next: Option<i64>) {
    let undone =
        [("a.0", "a"), ("b.0", "b"), ("a.1", "a"), ("b.1", "b")].map(|(id, job)| effect(id, job));
    let busy = busy.iter().map(|job| (*job).to_owned()).collect();
    let known = |until: &Option<i64>| UnrecordedAttempt { attempts: 1, until: until.map(at) };
    let tried = tried.iter().map(|(id, until)| ((*id).to_owned(), known(until))).collect();
    let plan = plan_hooks(undone.to_vec(), &busy, &tried, at(100));
    let ids = |effects: &[EffectRecord]| effects.iter().map(|it| it.id.clone()).collect::<Vec<_>>();
    let found: Vec<_> = plan.ready.iter().map(|(_, effects)| ids(effects)).collect();
    assert_eq!(found, ready);
    assert_eq!(plan.next, next.map(at));
}

#[test]
fn hooks_of_a_job_are_done_in_their_order() {
    check(&[], &[], &[&["a.0", "a.1"], &["b.0", "b.1"]], None);
    check(&["a"], &[], &[&["b.0", "b.1"]], None);
}

#[test]
fn only_so_many_jobs_have_their_hooks_done_at_once() {
    check(&["w", "x", "y"], &[], &[&["a.0", "a.1"]], None);
    check(&["w", "x", "y", "z"], &[], &[], None);
}

#[test]
fn what_was_told_and_is_not_on_record_yet_is_not_done_again() {
    check(&[], &[("a.0", None)], &[&["b.0", "b.1"], &["a.1"]], None);
    check(&[], &[("a.0", None), ("a.1", None)], &[&["b.0", "b.1"]], None);
}

#[test]
fn hooks_after_one_that_waits_wait_too() {
    check(&[], &[("a.0", Some(107))], &[&["b.0", "b.1"]], Some(107));
    check(&[], &[("a.0", Some(107)), ("b.0", Some(103))], &[], Some(103));
    check(&[], &[("a.0", Some(100))], &[&["a.0", "a.1"], &["b.0", "b.1"]], None);
}

#[test]
fn waits_double_up_to_a_limit_and_heed_what_a_server_asks_for() {
    let seconds =
        |before, asked: Option<u64>| backoff(before, asked.map(Duration::from_secs)).as_secs();
    assert_eq!([0, 1, 2, 3].map(|before| seconds(before, None)), [1, 2, 4, 8]);
    assert_eq!(seconds(99, None), BACKOFF_MAX.as_secs());
    assert_eq!(seconds(0, Some(7)), 7);
    assert_eq!(seconds(3, Some(7)), 8);
    assert_eq!(seconds(0, Some(9999)), BACKOFF_MAX.as_secs());
}
