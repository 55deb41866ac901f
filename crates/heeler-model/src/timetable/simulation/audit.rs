//! Comparison of a schedule's records with its expected due times.

use jiff::Timestamp;

use super::{DueTimeSkip, SimulatedGrid, SimulatedSchedule};

/// Checks that every due time is recorded as often as it was decided about, and that no other
/// records exist. Returns the number of due times.
pub(super) fn audit_schedule(schedule: &SimulatedSchedule) -> u64 {
    let on_grid = schedule.grids.iter().enumerate();
    let counts = on_grid.map(|(at, grid)| audit_grid(schedule, at, grid));
    counts.sum()
}

fn audit_grid(schedule: &SimulatedSchedule, at: usize, grid: &SimulatedGrid) -> u64 {
    let table = &grid.table;
    let mut unseen = schedule.started.values().filter(|&&it| it == at).count();
    let mut skips: Vec<(DueTimeSkip, u64)> = grid.skips.iter().map(|skip| (*skip, 0)).collect();
    skips.sort_by_key(|(skip, _)| skip.first);
    let (mut dues, mut open, mut next) = (0, Vec::new(), 0);
    for (after, through) in merge_spans(&grid.active_spans) {
        let mut last = after;
        let dues_of = std::iter::from_fn(|| {
            last = table.rule.next_after(grid.anchor, last)?;
            (last <= through).then_some(last)
        });
        for due in dues_of {
            while next < skips.len() && skips[next].0.first <= due {
                open.push(next);
                next += 1;
            }
            open.retain(|&skip: &usize| skips[skip].0.last >= due);
            open.iter().for_each(|&skip| skips[skip].1 += 1);
            let start = schedule.started.get(&due);
            unseen -= usize::from(start == Some(&at));
            let decided =
                grid.active_spans.iter().filter(|life| life.0 < due && due <= life.1).count();
            let decided = decided + usize::from(start.is_some_and(|it| *it != at));
            let records = open.len() + usize::from(start.is_some());
            assert!(records > 0, "{due} is not accounted for: {table:?}");
            assert!(records <= decided, "{due} is {records} times on record: {table:?}");
            dues += 1;
        }
    }
    assert!(unseen == 0, "{unseen} started that were never due: {table:?}");
    for (skip, seen) in &skips {
        assert!(skip.count == *seen, "{skip:?} spans {seen} due times: {table:?}");
    }
    dues
}

/// Merges overlapping spans.
fn merge_spans(lives: &[(Timestamp, Timestamp)]) -> Vec<(Timestamp, Timestamp)> {
    let mut sorted = lives.to_vec();
    sorted.sort();
    let mut joined: Vec<(Timestamp, Timestamp)> = Vec::new();
    for (after, through) in sorted {
        match joined.last_mut() {
            Some(last) if after <= last.1 => last.1 = last.1.max(through),
            _ => joined.push((after, through)),
        }
    }
    joined
}
