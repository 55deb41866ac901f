//! Simulation of years of schedules in one calendar, with an erratic clock and a daemon that is
//! killed: every due time is accounted for, none starts twice, and none waits longer than
//! necessary.

mod audit;

use std::collections::BTreeMap;
use std::panic::catch_unwind;

use heeler_config::CronExpr;
use heeler_testkit::ProofSettings;
use jiff::SignedDuration;

use super::*;
use crate::calendar::{ScheduleCalendar, ScheduleKey};
use audit::audit_schedule;

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
const EXPRESSIONS: [&str; 10] = [
    "*/30 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "30 1 * * *",
    "59 23 * * *",
    "0 0 * * *",
    "15 3 * * mon-fri",
    "0 9 1 * *",
    "*/7 1-4 * * sun",
    "0 0 29 2 *",
];
/// Number of schedules in a calendar, and their lifetime: one schedule-year together.
const SCHEDULES: usize = 6;
const SPAN: SignedDuration = SignedDuration::from_hours(24 * 365 / SCHEDULES as i64);
/// Most schedules that are decided in one turn.
const LIMIT: usize = 2;
/// Longest sleep of the daemon, in milliseconds.
const SLEEP_MAX: i64 = 30_000;
/// One in this many sleeps is disturbed, and one in this many turns is cut off.
const CALM: u32 = 60;

/// Database content of one schedule, and the facts that the proof needs.
struct SimulatedSchedule {
    key: ScheduleKey,
    table: ScheduleTimetable,
    mark: DueTimeCursor,
    is_in_config: bool,
    is_enabled: bool,
    /// Due times with a job, unique, with the grid of each.
    started: BTreeMap<Timestamp, usize>,
    /// One entry for each time it was added to the config, and for each new grid of an interval.
    grids: Vec<SimulatedGrid>,
    /// Time until which its last job runs, by a monotonic clock.
    busy_until: SignedDuration,
}

/// Records of one grid.
struct SimulatedGrid {
    table: ScheduleTimetable,
    anchor: Timestamp,
    /// Spans (after, through) in which it was enabled: each due time is recorded.
    active_spans: Vec<(Timestamp, Timestamp)>,
    skips: Vec<DueTimeSkip>,
}

/// Fleet with its daemon and clocks.
struct TimetableSimulation {
    random: fastrand::Rng,
    schedules: Vec<SimulatedSchedule>,
    calendar: ScheduleCalendar,
    now: Timestamp,
    /// Monotonic clock.
    uptime: SignedDuration,
    /// Time of the last complete decision, and of the daemon's wake-up since then, if undisturbed.
    settled_at: Option<Timestamp>,
    woke_at: Option<Timestamp>,
}

fn timetable(random: &mut fastrand::Rng) -> ScheduleTimetable {
    let rule = if random.bool() {
        // Short and long intervals are equally likely: 30 minutes to 2 days.
        DueTimeRule::Every((1_800_000.0 * 96_f64.powf(random.f64())) as i64)
    } else {
        let expr: CronExpr = random.choice(EXPRESSIONS).unwrap().parse().unwrap();
        DueTimeRule::Cron { expr, zone: TimeZone::get(random.choice(ZONES).unwrap()).unwrap() }
    };
    let jitter = Duration::from_secs(if random.bool() { 0 } else { random.u64(1..4_000) });
    ScheduleTimetable {
        rule,
        jitter,
        seed: random.u64(..),
        missed: *random.choice(MissedRunPolicy::ALL).unwrap(),
        overlap: *random.choice(OverlapPolicy::ALL).unwrap(),
    }
}

impl SimulatedSchedule {
    fn new(name: usize, table: ScheduleTimetable, now: Timestamp) -> SimulatedSchedule {
        let mut schedule = SimulatedSchedule {
            key: ScheduleKey { agent: "a".to_owned(), schedule: name.to_string() },
            mark: table.initial_cursor(now),
            table,
            is_in_config: false,
            is_enabled: true,
            started: BTreeMap::new(),
            grids: Vec::new(),
            busy_until: SignedDuration::ZERO,
        };
        schedule.add_to_config(now);
        schedule
    }

    /// Adds the schedule to the config; it starts over.
    fn add_to_config(&mut self, now: Timestamp) {
        self.mark = self.table.initial_cursor(now);
        (self.is_in_config, self.is_enabled) = (true, true);
        self.begin_grid(self.mark);
    }

    /// Begins another grid at a cursor.
    fn begin_grid(&mut self, mark: DueTimeCursor) {
        let DueTimeCursor { anchor, through } = mark;
        self.grids.push(SimulatedGrid {
            table: self.table.clone(),
            anchor,
            active_spans: vec![(through, through)],
            skips: Vec::new(),
        });
    }

    fn grid(&mut self) -> &mut SimulatedGrid {
        self.grids.last_mut().unwrap()
    }

    /// Extends the current span to a time.
    fn extend_active_span(&mut self, through: Timestamp) {
        let life = self.grid().active_spans.last_mut().unwrap();
        life.1 = life.1.max(through);
    }

    /// Commits a decision. The queue or the budget may refuse any start.
    fn commit(
        &mut self,
        verdict: &DueTimeDecision,
        uptime: SignedDuration,
        random: &mut fastrand::Rng,
    ) {
        if verdict.clock_set_back_from.is_some() {
            let DueTimeCursor { anchor, through: from } = verdict.cursor;
            assert!(verdict.starts.is_empty() && verdict.skips.is_empty(), "{verdict:?}");
            match self.grid().anchor == anchor {
                true => self.grid().active_spans.push((from, from)),
                // An interval goes on with another grid.
                false => self.begin_grid(verdict.cursor),
            }
        }
        for start in &verdict.starts {
            if random.u8(..50) == 0 {
                let (first, last, reason) = (start.due, start.due, SkipReason::Budget);
                self.grid().skips.push(DueTimeSkip { first, last, count: 1, reason });
                continue;
            }
            let grid = self.grids.len() - 1;
            if self.started.contains_key(&start.due) {
                let past = self.grids.iter().flat_map(|grid| &grid.active_spans);
                let covers = past.filter(|life| life.0 < start.due && start.due <= life.1).count();
                assert!(covers > 0, "{} started twice: {:?}", start.due, self.table);
                continue;
            }
            self.started.insert(start.due, grid);
            let work = SignedDuration::from_secs(random.i64(1..7_200));
            self.busy_until = self.busy_until.max(uptime) + work;
        }
        self.grid().skips.extend(&verdict.skips);
        self.mark = verdict.cursor;
        self.extend_active_span(verdict.cursor.through);
    }
}

impl TimetableSimulation {
    fn new(mut random: fastrand::Rng) -> TimetableSimulation {
        let begin: Timestamp = "2025-01-01T00:00:00Z".parse().unwrap();
        let now = begin + SignedDuration::from_millis(random.i64(0..86_400_000 * 730));
        let schedules = (0..SCHEDULES)
            .map(|name| SimulatedSchedule::new(name, timetable(&mut random), now))
            .collect();
        let (calendar, uptime) = (ScheduleCalendar::default(), SignedDuration::ZERO);
        let mut world = TimetableSimulation {
            random,
            schedules,
            calendar,
            now,
            uptime,
            settled_at: None,
            woke_at: None,
        };
        world.start_daemon();
        world
    }

    /// Restores a daemon from the database.
    fn start_daemon(&mut self) {
        self.calendar = ScheduleCalendar::default();
        (self.settled_at, self.woke_at) = (None, None);
        for schedule in self.schedules.iter().filter(|it| it.is_in_config && it.is_enabled) {
            let (key, table) = (schedule.key.clone(), schedule.table.clone());
            self.calendar.insert(key, table, schedule.mark, self.now);
        }
    }

    fn pass(&mut self, time: SignedDuration) {
        self.now += time;
        self.uptime += time;
    }

    /// Returns a duration from milliseconds to days, with short and long ones equally likely.
    fn a_while(&mut self) -> SignedDuration {
        SignedDuration::from_millis((3.0 * 86_400_000_f64).powf(self.random.f64()) as i64)
    }

    /// Decides about all due schedules, a few per turn.
    fn settle(&mut self) {
        while self.calendar.is_due(self.now) {
            let (schedules, uptime) = (&self.schedules, self.uptime);
            let busy = |key: &ScheduleKey| schedules[index(key)].busy_until > uptime;
            let due = self.calendar.decide_due(self.now, LIMIT, busy);
            assert!(due.len() <= LIMIT, "{due:?}");
            // The clock may be behind the cursor of a removed schedule: that is noticed once.
            assert!(!due.is_empty() || !self.calendar.is_due(self.now), "nothing is decided");
            for (key, verdict) in &due {
                self.check(&self.schedules[index(key)], verdict);
            }
            if !self.turn(&due) {
                let down = self.a_while();
                self.pass(down);
                self.start_daemon();
            }
            let work = SignedDuration::from_millis(self.random.i64(0..50));
            self.pass(work);
        }
        self.settled_at = Some(self.now);
        let on = self.schedules.iter().filter(|it| it.is_in_config && it.is_enabled);
        let latest = on.map(|schedule| schedule.mark.through).max();
        let most = saturating_add(self.now, CLOCK_SET_BACK_MIN);
        assert!(latest.is_none_or(|latest| latest <= most), "a clock that was set back was missed");
    }

    /// Commits and accepts a decision. May be cut off before either.
    fn turn(&mut self, due: &[(ScheduleKey, DueTimeDecision)]) -> bool {
        let cut = self.random.u32(..CALM);
        if cut == 0 {
            return false;
        }
        for (key, verdict) in due {
            self.schedules[index(key)].commit(verdict, self.uptime, &mut self.random);
        }
        if cut == 1 {
            return false;
        }
        for (key, verdict) in due {
            self.calendar.commit_cursor(key, verdict.cursor, self.now);
        }
        true
    }

    /// Checks that no decision is early, late, or against the overlap policy.
    fn check(&self, schedule: &SimulatedSchedule, verdict: &DueTimeDecision) {
        let SimulatedSchedule { table, mark, .. } = schedule;
        if verdict.clock_set_back_from.is_none() && verdict.cursor != *mark {
            let (due, acted_on) = table.next_due(*mark).unwrap();
            assert!(acted_on <= self.now, "{due} is early: {table:?}");
            let could = self.woke_at.max(self.settled_at);
            assert!(could.is_none_or(|could| could <= acted_on), "{due} is late: {table:?}");
        }
        let gives_way =
            table.overlap == OverlapPolicy::Skip && table.missed != MissedRunPolicy::RunAll;
        let is_busy = schedule.busy_until > self.uptime;
        assert!(!gives_way || verdict.starts.len() <= usize::from(!is_busy), "{verdict:?}");
    }

    /// Sleeps until a due time, or until the daemon notices a clock jump.
    fn sleep(&mut self) {
        let day = SignedDuration::from_hours(24);
        let wake = self.calendar.wake_at().unwrap_or(self.now + day).min(self.now + day);
        let sleep = wake.duration_since(self.now);
        assert!(sleep.is_positive(), "all was decided");
        if self.random.u32(..CALM) > 0 {
            self.pass(sleep);
            self.woke_at = Some(self.now);
            return;
        }
        let part = SignedDuration::from_millis(self.random.i64(0..sleep.as_millis() as i64 + 1));
        self.pass(part);
        let by = self.a_while();
        match self.random.u8(..8) {
            0 => self.now -= by,
            1 | 2 => self.now += by,
            3 => {
                self.pass(by);
                self.start_daemon();
            }
            _ => return self.change_one(),
        }
        (self.settled_at, self.woke_at) = (None, None);
        let noticed = SignedDuration::from_millis(self.random.i64(0..=SLEEP_MAX));
        self.pass(noticed);
    }

    /// Enables or disables a schedule, or removes it from the config or adds it again.
    fn change_one(&mut self) {
        self.woke_at = None;
        let at = self.random.usize(..SCHEDULES);
        let (now, key) = (self.now, self.schedules[at].key.clone());
        let removes = self.random.u8(..4) == 0;
        let other = self.random.bool().then(|| timetable(&mut self.random));
        let schedule = &mut self.schedules[at];
        match (schedule.is_in_config, schedule.is_enabled) {
            (true, _) if removes => schedule.is_in_config = false,
            (true, true) => {
                schedule.is_enabled = false;
                let (table, mark) = (schedule.table.clone(), schedule.mark);
                schedule.grid().skips.extend(table.skip_disabled(mark, now));
                schedule.mark.through = mark.through.max(now);
                schedule.extend_active_span(schedule.mark.through);
            }
            (true, false) => {
                schedule.is_enabled = true;
                let from = schedule.mark.through.max(now);
                schedule.mark.through = from;
                schedule.grid().active_spans.push((from, from));
            }
            (false, _) => {
                schedule.table = other.unwrap_or(schedule.table.clone());
                schedule.add_to_config(now);
            }
        }
        self.calendar.remove(&key);
        if schedule.is_in_config && schedule.is_enabled {
            self.calendar.insert(key, schedule.table.clone(), schedule.mark, now);
        }
    }
}

fn index(key: &ScheduleKey) -> usize {
    key.schedule.parse().unwrap()
}

/// Runs a fleet for a schedule-year. Returns the number of due times.
fn live(random: fastrand::Rng) -> u64 {
    let mut world = TimetableSimulation::new(random);
    let end = world.now + SPAN;
    while world.now < end {
        world.settle();
        world.sleep();
    }
    world.settle();
    for schedule in world.schedules.iter().filter(|it| it.is_in_config && it.is_enabled) {
        let next = schedule.table.next_due(schedule.mark);
        let is_later = next.is_none_or(|(_, acted_on)| acted_on > world.now);
        assert!(is_later, "it was forgotten: {next:?} {:?}", schedule.table);
    }
    world.schedules.iter().map(audit_schedule).sum()
}

#[test]
fn proof_every_due_time_is_on_record_and_none_starts_twice() {
    let proof = ProofSettings::new(20);
    let mut dues = 0;
    for round in 0..proof.rounds {
        let lived = catch_unwind(|| live(proof.random(round)));
        dues += lived.unwrap_or_else(|_| panic!("seed {} round {round}", proof.seed));
    }
    // Ten million in the ten thousand schedule-years of `cargo xtask prove`.
    let least = if proof.rounds < 1_000 { 300 } else { 1_000 };
    assert!(dues >= proof.rounds * least, "seed {}: {dues} due times", proof.seed);
}
