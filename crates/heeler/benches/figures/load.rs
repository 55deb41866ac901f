//! Many schedules that are due: how late their jobs are on record, and how fast their runs start.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use heeler_model::timetable::DueTimeCursor;
use heeler_model::{AgentState, JobId, ScheduleState};
use heeler_store::{
    DatabaseError, JobCursor, JobFilter, ScheduleProgressRecord, Store, StoreReader,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value as Json, json};

use crate::scene::{Scene, Side, agent_name, until};
use crate::{Amount, Bench, Figure, Goal};

const SCHEDULES: usize = 1_000;
const PERIOD: SignedDuration = SignedDuration::from_mins(10);
const SPREAD: SignedDuration = SignedDuration::from_mins(1);

/// When the first of them is due: the daemon has started by then.
const AHEAD: SignedDuration = SignedDuration::from_secs(5);

/// How often the database is looked at; its reader finds a commit so much later at the most.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How many of the newest jobs are read at a time.
const PAGE: usize = 16;

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let mut figures = spread(bench);
    figures.extend(at_once(bench));
    figures
}

/// A fleet whose schedules have run before, so that the next due time of each is known.
struct Load<'a> {
    scene: Scene<'a>,
    dues: HashMap<String, Timestamp>,
}

impl<'a> Load<'a> {
    /// `due` says how long after the first each is due.
    fn new(bench: &'a Bench, name: &str, due: impl Fn(usize) -> SignedDuration) -> Load<'a> {
        let scene = Scene::new(bench, name, SCHEDULES, |_| "s: {interval: 10m}".to_owned());
        let first = Timestamp::now() + AHEAD;
        let first = Timestamp::from_millisecond(first.as_millisecond()).expect("it is near");
        let dues = (0..SCHEDULES).map(|number| (agent_name(number), first + due(number)));
        Load { scene, dues: dues.collect() }
    }

    /// Writes down that each schedule ran one period before its due time.
    fn record(&self, side: Side) {
        if side == Side::Node {
            let last = |due: &Timestamp| json!({ "last_run_at": (*due - PERIOD).as_millisecond() });
            let state = self.dues.iter().map(|(agent, due)| (format!("{agent}/s"), last(due)));
            let state: Map<String, Json> = state.collect();
            let file = self.scene.root.join("node/state.json");
            return std::fs::write(file, Json::Object(state).to_string()).expect("disk has space");
        }
        let marks = self.dues.iter().map(|(agent, due)| ScheduleProgressRecord {
            agent: agent.clone(),
            schedule: "s".to_owned(),
            progress: DueTimeCursor { anchor: *due - PERIOD, through: *due - PERIOD },
            trigger_text: "every 10m".to_owned(),
        });
        let marks: Vec<ScheduleProgressRecord> = marks.collect();
        let store = Store::open(&self.scene.dir(), "bench", Timestamp::now());
        let written = store.expect("the store opens").store.write(move |tx| {
            for mark in &marks {
                tx.put_agent(&mark.agent, &AgentState::default())?;
                tx.put_schedule(&mark.agent, &mark.schedule, &ScheduleState::default())?;
                tx.set_schedule_progress(mark)?;
            }
            Ok::<_, DatabaseError>(())
        });
        written.expect("marks are written");
    }

    /// Follows our database; returns how long after its due time each job was seen in it, in order.
    fn seen(&self) -> Vec<Duration> {
        let reader = StoreReader::open(&self.scene.dir()).expect("the database opens");
        let mut seen: HashSet<JobId> = HashSet::new();
        let mut delays = Vec::new();
        until(LOOK_EVERY, || {
            let mut cursor = None;
            loop {
                let page = reader.jobs(&JobFilter::default(), cursor.as_ref(), PAGE);
                let page = page.expect("the list is read");
                let now = Timestamp::now();
                let (heads, is_last) = (&page[..], page.len() < PAGE);
                let mut has_new = false;
                for head in heads {
                    if seen.insert(head.id.clone()) {
                        has_new = true;
                        let late = now.duration_since(self.dues[&head.agent]);
                        // A job before its due time would make a delay of nothing.
                        let delay = Duration::try_from(late);
                        delays.push(delay.unwrap_or_else(|_| panic!("{head:?} came {late:#}")));
                    }
                }
                cursor = heads.last().map(JobCursor::after);
                if is_last || !has_new {
                    break;
                }
            }
            (delays.len() >= SCHEDULES).then_some(())
        });
        delays.sort_unstable();
        delays
    }
}

/// A minute of schedules, one after the other.
fn spread(bench: &Bench) -> Vec<Figure> {
    let between = SPREAD / SCHEDULES as i32;
    let load = Load::new(bench, "spread", |number| between * number as i32);
    load.record(Side::Ours);
    let daemon = load.scene.start(Side::Ours);
    let ours = load.seen();
    load.scene.await_starts(SCHEDULES);
    daemon.stop();
    let load = Load::new(bench, "spread", |number| between * number as i32);
    load.record(Side::Node);
    let daemon = load.scene.start(Side::Node);
    load.scene.await_starts(SCHEDULES);
    daemon.stop();
    let text = std::fs::read_to_string(load.scene.root.join("node/delays.json"));
    let mut theirs: Vec<u64> =
        serde_json::from_str(&text.expect("it was written")).expect("numbers");
    theirs.sort_unstable();
    let at = |percent: usize, count: usize| (count * percent / 100).min(count - 1);
    [(50, Goal::None), (99, Goal::AtMost(Duration::from_millis(20).into()))]
        .map(|(percent, goal)| {
            let theirs = Duration::from_millis(theirs[at(percent, theirs.len())]);
            Figure {
                what: format!("1,000 schedules over a minute: due to committed, p{percent}"),
                ours: ours[at(percent, ours.len())].into(),
                goal,
                alternative: Some(("node polling".to_owned(), theirs.into())),
            }
        })
        .into()
}

/// All of them within one second.
fn at_once(bench: &Bench) -> Vec<Figure> {
    let measure = |side| {
        let load = Load::new(bench, "at-once", |number| SignedDuration::from_millis(number as i64));
        load.record(side);
        let first = load.dues[&agent_name(0)];
        let daemon = load.scene.start(side);
        let starts = load.scene.await_starts(SCHEDULES);
        daemon.stop();
        let agents: HashSet<&String> = starts.iter().map(|(agent, _)| agent).collect();
        let last = starts.last().map_or(first, |(_, at)| *at);
        let rate = starts.len() as f64 / last.duration_since(first).as_secs_f64();
        (Amount::PerSecond(rate), Amount::Count((SCHEDULES - agents.len()) as u64))
    };
    let (ours, theirs) = (measure(Side::Ours), measure(Side::Node));
    vec![
        Figure {
            what: "1,000 due in one second: agents started".to_owned(),
            ours: ours.0,
            goal: Goal::AtLeast(Amount::PerSecond(100.0)),
            alternative: Some(("node polling".to_owned(), theirs.0)),
        },
        Figure {
            what: "the same: lost".to_owned(),
            ours: ours.1,
            goal: Goal::AtMost(Amount::Count(0)),
            alternative: Some(("node polling".to_owned(), theirs.1)),
        },
    ]
}
