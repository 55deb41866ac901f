//! Years of schedules against a clock that misbehaves: every due time is accounted for, and none
//! starts twice.

use std::collections::BTreeSet;

use heeler_testkit::Proof;
use jiff::SignedDuration;

use super::*;
use crate::config::CronExpr;

const ZONES: [&str; 8] = [
    "UTC",
    "America/New_York",
    "Europe/Vienna",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Sao_Paulo",
    "Pacific/Apia",
    "Africa/Casablanca",
];
const EXPRESSIONS: [&str; 9] = [
    "*/15 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "30 1 * * *",
    "59 23 * * *",
    "0 0 * * *",
    "15 3 * * mon-fri",
    "0 9 1 * *",
    "*/7 1-4 * * sun",
];
/// How long one schedule is simulated.
const SPAN: SignedDuration = SignedDuration::from_hours(24 * 365);
/// The longest strides of the clock, in seconds, each for the lots below a number of 1,000.
const STRIDES: [(u32, i64); 5] =
    [(900, 1_800), (960, 4 * 3_600), (990, 86_400), (998, 30 * 86_400), (1_000, -3 * 86_400)];

/// What a fleet's database would hold of one schedule.
#[derive(Default)]
struct Records {
    started: BTreeSet<Timestamp>,
    skips: Vec<Skip>,
    set_back: bool,
}

fn schedule(random: &mut fastrand::Rng) -> Timetable {
    let rule = if random.bool() {
        Rule::Every(random.i64(60_000..200_000_000))
    } else {
        let expr: CronExpr = random.choice(EXPRESSIONS).unwrap().parse().unwrap();
        Rule::Cron { expr, zone: TimeZone::get(random.choice(ZONES).unwrap()).unwrap() }
    };
    let jitter = Duration::from_secs(if random.bool() { 0 } else { random.u64(1..4_000) });
    Timetable {
        rule,
        jitter,
        seed: random.u64(..),
        missed: *random.choice(Missed::ALL).unwrap(),
        overlap: *random.choice(Overlap::ALL).unwrap(),
    }
}

/// Returns how far the clock goes until the next look; seldom backwards.
fn stride(random: &mut fastrand::Rng) -> SignedDuration {
    let lot = random.u32(..1_000);
    let (_, most) = STRIDES.into_iter().find(|(below, _)| lot < *below).unwrap();
    SignedDuration::from_secs(random.i64(1..=most.abs()) * most.signum())
}

/// Returns the earliest mark and the last, and what is on record.
fn live(table: &Timetable, random: &mut fastrand::Rng) -> (Mark, Mark, Records) {
    let begin: Timestamp = "2025-01-01T00:00:00Z".parse().unwrap();
    let mut now = begin + SignedDuration::from_secs(random.i64(0..86_400 * 365));
    let end = now + SPAN;
    let mut first = table.begin(now);
    let (mut mark, mut records) = (first, Records::default());
    while now < end {
        let verdict = table.step(mark, now, random.u8(..4) == 0);
        // A crash before the commit: the next look begins where this one began.
        if random.u8(..20) > 0 {
            for start in &verdict.starts {
                let anew = records.started.insert(start.due);
                assert!(anew || records.set_back, "{} started twice: {table:?}", start.due);
            }
            records.skips.extend(&verdict.skips);
            if verdict.set_back_from.is_some() {
                records.set_back = true;
                // What is due before the schedule first began is due after all.
                first.through = first.through.min(now);
            }
            mark = verdict.mark;
        }
        now += stride(random);
    }
    (first, mark, records)
}

/// Every due time is on record, and no record is of anything else.
fn account(table: &Timetable, first: Mark, last: Mark, records: &Records) -> u64 {
    let (mut at, mut count) = (first.through, 0);
    let through = records.skips.iter().map(|skip| skip.last).chain(records.started.last().copied());
    let through = through.max().unwrap_or(at).max(last.through);
    let mut skips = records.skips.clone();
    skips.sort_by_key(|skip| skip.first);
    let mut unseen = records.started.clone();
    while let Some(due) = table.rule.next_after(first.anchor, at).filter(|&due| due <= through) {
        let skipped = skips.iter().any(|skip| skip.first <= due && due <= skip.last);
        let started = unseen.remove(&due);
        assert!(skipped || started, "{due} is not accounted for: {table:?}");
        assert!(!(skipped && started) || records.set_back, "{due} is on record twice: {table:?}");
        (at, count) = (due, count + 1);
    }
    assert!(unseen.is_empty(), "started but never due: {unseen:?} {table:?}");
    let skipped: u64 = records.skips.iter().map(|skip| skip.count).sum();
    let total = records.started.len() as u64 + skipped;
    assert!(total == count || records.set_back && total >= count, "{total} {count} {table:?}");
    count
}

#[test]
fn proof_every_due_time_is_on_record_and_none_starts_twice() {
    let proof = Proof::new(20);
    let mut dues = 0;
    for round in 0..proof.rounds {
        let mut random = proof.random(round);
        let table = schedule(&mut random);
        let (first, last, records) = live(&table, &mut random);
        dues += account(&table, first, last, &records);
    }
    assert!(dues > proof.rounds * 10, "seed {}: {dues} due times", proof.seed);
}
