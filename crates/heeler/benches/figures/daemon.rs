//! Daemons: what they cost when nothing is due, how soon they start what is, how they recover.
//!
//! The alternative is a Node.js scheduler that polls, over the same config with the same agents.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heeler_engine::{CommandReply, DaemonCommand as Order};
use heeler_model::{AgentState, JobRequest};
use heeler_store::{DatabaseError, Store, ViewPublisher};
use jiff::{Timestamp, Zoned};

use crate::agent::moment;
use crate::scene::{Daemon, Scene, Side, agent_name, until};
use crate::{Amount, Bench, Figure, Goal, jobs, median};

const AGENTS: usize = 1_000;
const SCHEDULES_EACH: usize = 10;
const IDLE_WATCHED: Duration = Duration::from_secs(20);
const TRIGGERS: usize = 60;
const STARTS: usize = 20;
const VIEWED_JOBS: usize = 500;

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let mut figures = idle(bench);
    figures.extend(trigger(bench));
    figures.push(views(bench, 0));
    figures.push(views(bench, AGENTS));
    figures.push(start(bench));
    figures
}

/// Nothing is due for months.
fn idle(bench: &Bench) -> Vec<Figure> {
    let month = (Zoned::now().month() + 5) % 12 + 1;
    let scene = Scene::new(bench, "idle", AGENTS, |agent| {
        let cron = |own| {
            let number = agent * SCHEDULES_EACH + own;
            let (minute, hour, day) = (number % 60, number / 60 % 24, number % 28 + 1);
            format!("s{own}: {{cron: '{minute} {hour} {day} {month} *'}}")
        };
        (0..SCHEDULES_EACH).map(cron).collect::<Vec<_>>().join(", ")
    });
    let watch = |side| {
        let daemon = scene.start(side);
        settle(&daemon);
        let before = daemon.cpu();
        std::thread::sleep(IDLE_WATCHED);
        let (cpu, memory) = (daemon.cpu() - before, daemon.memory());
        daemon.stop();
        // What is less than a tick of the kernel's clock cannot be told from nothing.
        let tick = Duration::from_millis(10);
        (Amount::Share(cpu.max(tick).div_duration_f64(IDLE_WATCHED)), Amount::Bytes(memory))
    };
    let (ours, theirs) = (watch(Side::Ours), watch(Side::Node));
    let of = "idle, 1,000 agents and 10,000 schedules";
    vec![
        Figure {
            what: format!("{of}: RssAnon"),
            ours: ours.1,
            goal: Goal::AtMost(Amount::Bytes(30_000_000)),
            alternative: Some(("node polling".to_owned(), theirs.1)),
        },
        Figure {
            what: format!("{of}: core"),
            ours: ours.0,
            goal: Goal::AtMost(Amount::Share(0.002)),
            alternative: Some(("node polling".to_owned(), theirs.0)),
        },
    ]
}

/// Waits until a daemon has done what it does after it has started.
fn settle(daemon: &Daemon) {
    // What it did before the first look counts, so that there is a second one.
    let mut before = Duration::ZERO;
    let calm = until(Duration::from_secs(2), || {
        let now = daemon.cpu();
        let worked = now - std::mem::replace(&mut before, now);
        (worked < Duration::from_millis(50)).then_some(())
    });
    assert!(calm.is_some(), "it does not come to rest");
}

/// From a request on the socket to its reply, and to the start of the agent.
fn trigger(bench: &Bench) -> [Figure; 2] {
    let scene = Scene::new(bench, "trigger", TRIGGERS, |_| String::new());
    let times = |side| {
        let daemon = scene.start(side);
        let (mut replies, mut starts): (Vec<Duration>, Vec<Duration>) = (0..TRIGGERS)
            .map(|number| {
                let (before, began) = (Timestamp::now(), Instant::now());
                ask_for(&daemon, side, &agent_name(number));
                let reply = began.elapsed();
                let (_, started) = scene.await_starts(number + 1).pop().expect("it started");
                let start = started.duration_since(before);
                (reply, Duration::try_from(start).unwrap_or_default())
            })
            .unzip();
        daemon.stop();
        replies.sort_unstable();
        starts.sort_unstable();
        [replies[TRIGGERS / 2], starts[TRIGGERS / 2]]
    };
    let (ours, theirs) = (times(Side::Ours), times(Side::Node));
    let figure = |what: &str, place: usize, goal| Figure {
        what: format!("trigger on the socket to {what}, p50"),
        ours: ours[place].into(),
        goal,
        alternative: Some(("node scheduler".to_owned(), theirs[place].into())),
    };
    [
        figure("reply", 0, Goal::None),
        figure("agent start", 1, Goal::AtMost(Duration::from_millis(30).into())),
    ]
}

/// The record of a new job of an agent, with its views in place, beside the record alone: the time for
/// which a command waits. `state.yaml` shows the agents of the jobs, and `other_agents`.
fn views(bench: &Bench, other_agents: usize) -> Figure {
    let scene = Scene::new(bench, &format!("views-{other_agents}"), 0, |_| String::new());
    let opened = Store::open(&scene.dir(), "bench", Timestamp::now()).expect("the store opens");
    let store = Arc::new(opened.store);
    let agents = store.write(move |tx| {
        (0..other_agents)
            .try_for_each(|number| tx.put_agent(&agent_name(number), &AgentState::default()))
    });
    agents.expect("disk has space");
    let publisher = ViewPublisher::start(Arc::clone(&store), Timestamp::now).expect("a thread");
    let mut number = 0;
    let mut record = |with_views: bool| {
        median(VIEWED_JOBS, || {
            number += 1;
            let job = jobs::job(number);
            let state =
                AgentState { current_job: Some(job.head.id.clone()), ..AgentState::default() };
            let written = store.write(move |tx| {
                tx.insert_job(&job)?;
                tx.put_agent(&job.head.agent, &state)?;
                Ok::<_, DatabaseError>(tx.marked_views())
            });
            let views = written.expect("disk has space");
            if with_views {
                let (sender, receiver) = std::sync::mpsc::sync_channel(1);
                let done = move || sender.send(()).expect("the receiver waits");
                store.publish_then(views, Box::new(done));
                receiver.recv().expect("the publisher answers");
            }
        })
    };
    let without = record(false);
    let with = record(true);
    drop(publisher);
    Figure {
        what: match other_agents {
            0 => "a new job on record, with its views".to_owned(),
            others => format!("the same with {others} agents more"),
        },
        ours: with.into(),
        goal: Goal::AtMost(Duration::from_millis(20).into()),
        alternative: Some(("without views".to_owned(), without.into())),
    }
}

/// Asks for a job, as a new client.
fn ask_for(daemon: &Daemon, side: Side, agent: &str) {
    if side == Side::Ours {
        let wanted = JobRequest::new(agent.parse().expect("a name"));
        let answer = daemon.client().send_command(&Order::Trigger(Box::new(wanted)), None);
        assert!(matches!(answer, Ok(CommandReply::Job { .. })), "{answer:?}");
        return;
    }
    let mut stream = UnixStream::connect(&daemon.socket).expect("it listens");
    let request = format!("POST /{agent} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    stream.read_to_end(&mut Vec::new()).expect("it answers");
}

/// From the start of the process to the first answer about the fleet.
fn start(bench: &Bench) -> Figure {
    let mut scene = Scene::new(bench, "start", 0, |_| String::new());
    // Its jobs have their files, which takes a while to write: they are kept for the next time.
    scene.state = bench.folder.join("100k-with-files");
    jobs::make(&scene.dir(), 100_000);
    let store =
        Store::open(&scene.dir(), "bench", Timestamp::now()).expect("the store opens").store;
    store.publish_views(Timestamp::now()).expect("disk has space");
    drop(store);
    let time = |side| {
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..STARTS {
            let before = moment();
            let daemon = scene.start(side);
            if side == Side::Ours {
                daemon.client().send_command(&Order::Status, None).expect("the daemon answers");
            }
            times.push(moment() - before);
            daemon.stop();
        }
        times.sort_unstable();
        times[STARTS / 2]
    };
    Figure {
        what: "start of the daemon with 100k past jobs".to_owned(),
        ours: time(Side::Ours).into(),
        goal: Goal::AtMost(Duration::from_millis(100).into()),
        alternative: Some(("node scheduler, no jobs".to_owned(), time(Side::Node).into())),
    }
}
