//! Fleets on PostgreSQL: lists of jobs, the assignment of runs to hosts, and an idle host.
//!
//! The alternatives are a Node.js client with the same rows, and graphile-worker, on the same server. That
//! server does not sync, so the figures are those of the programs and not of a disk.

use std::time::{Duration, Instant};

use heeler_engine::DaemonCommand;
use heeler_model::JobRequest;
use heeler_store::{JobFilter, StateDir, StoreReader};
use heeler_testkit::PostgresCluster;
use rustix::process::Signal;

use crate::scene::{Daemon, Scene, agent_name, until};
use crate::{Amount, Bench, Figure, Goal, jobs, median};

const JOBS: u64 = 1_000_000;
const RUNS: usize = 1_000;
const LISTS: usize = 1_000;
const IDLE_WATCHED: Duration = Duration::from_secs(30);

/// Host that leads, and host that gets the runs.
const LEADER: &str = "alpha";
const WORKER: &str = "beta";

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let mut figures = vec![list(bench)];
    figures.extend(assignment(bench));
    figures
}

/// A fleet of so many agents on the server, whose runs are placed on one host.
pub(crate) fn scene<'a>(
    bench: &'a Bench,
    cluster: &PostgresCluster,
    name: &str,
    agents: usize,
) -> Scene<'a> {
    let scene = Scene::new(bench, name, agents, |_| String::new());
    let path = scene.root.join("heeler.yaml");
    let config = std::fs::read_to_string(&path).expect("the scene has a config");
    let placed = "    working_directory: work\n";
    let config = config.replace(placed, &format!("{placed}    host: {WORKER}\n"));
    let config = format!("store: {}\n{config}", cluster.url("fleet"));
    std::fs::write(&path, config).expect("disk has space");
    scene
}

pub(crate) fn start(scene: &Scene<'_>, host: &str) -> Daemon {
    let mut heeler = scene.heeler();
    heeler.args(["start", "--in-background", "--host", host]);
    scene.start_heeler(heeler)
}

pub(crate) fn cluster() -> PostgresCluster {
    let cluster = PostgresCluster::start();
    cluster.create_database("fleet");
    cluster
}

/// The newest 20 of a million jobs.
fn list(bench: &Bench) -> Figure {
    let cluster = cluster();
    let scene = scene(bench, &cluster, "hosts-list", 1);
    // The first start connects the state directory with the server.
    start(&scene, LEADER).stop();
    let dir = StateDir::open(&scene.state).expect("the daemon made it");
    jobs::make(&dir, JOBS);
    cluster.query("fleet", "VACUUM ANALYZE");
    let reader = StoreReader::open(&dir).expect("the database opens");
    let ours = median(LISTS, || {
        let heads = reader.jobs(&JobFilter::default(), None, 20).expect("the list is read");
        assert_eq!(heads.len(), 20);
    });
    let folder = cluster.socket_folder().as_str();
    let theirs = bench.node("postgres-jobs.mjs", &[folder, &LISTS.to_string()]);
    Figure {
        what: "PostgreSQL: newest 20 of 1M jobs".to_owned(),
        ours: ours.into(),
        goal: Goal::AtMost(Duration::from_millis(1).into()),
        alternative: Some(("node-postgres, the same rows".to_owned(), theirs.into())),
    }
}

/// Runs that wait for their host, and are assigned when it comes; then the same host at rest.
fn assignment(bench: &Bench) -> Vec<Figure> {
    let cluster = cluster();
    let scenes =
        [LEADER, WORKER].map(|host| scene(bench, &cluster, &format!("hosts-{host}"), RUNS));
    let leader = start(&scenes[0], LEADER);
    let mut client = leader.client();
    for number in 0..RUNS {
        let request = JobRequest::new(agent_name(number).parse().expect("a name"));
        let command = DaemonCommand::Trigger(Box::new(request));
        client.send_command(&command, None).expect("the daemon answers");
    }
    let worker = start(&scenes[1], WORKER);
    let rate = assigned_per_second(&cluster, &worker);
    scenes[1].await_starts(RUNS);
    let is_over = "SELECT COUNT(*) FROM executions WHERE status NOT IN ('completed', 'failed')";
    until(Duration::from_secs(1), || (cluster.query("fleet", is_over).trim() == "0").then_some(()));
    let before = worker.cpu();
    std::thread::sleep(IDLE_WATCHED);
    let share = (worker.cpu() - before).div_duration_f64(IDLE_WATCHED);
    let memory = worker.memory();
    worker.stop();
    leader.stop();
    cluster.create_database("jobs");
    let folder = cluster.socket_folder().as_str();
    let theirs = bench.node_number("graphile-worker.mjs", &[folder, &RUNS.to_string()]);
    vec![
        Figure {
            what: "runs assigned to a host".to_owned(),
            ours: Amount::PerSecond(rate),
            goal: Goal::AtLeast(Amount::PerSecond(500.0)),
            alternative: Some(("graphile-worker, jobs".to_owned(), Amount::PerSecond(theirs))),
        },
        Figure {
            what: "idle host after 1,000 runs: RssAnon".to_owned(),
            ours: Amount::Bytes(memory),
            goal: Goal::AtMost(Amount::Bytes(30_000_000)),
            alternative: None,
        },
        Figure {
            what: "idle host: core".to_owned(),
            ours: Amount::Share(share),
            goal: Goal::None,
            alternative: None,
        },
    ]
}

/// Pauses the host as soon as it has a run, so that starts of agents do not take the processors of the
/// leader, and returns how fast the others are assigned.
fn assigned_per_second(cluster: &PostgresCluster, worker: &Daemon) -> f64 {
    let sql = format!("SELECT COUNT(*) FROM runs WHERE host = '{WORKER}'");
    let count = || cluster.query("fleet", &sql).trim().parse::<usize>().expect("a number");
    let look = Duration::from_millis(5);
    let first = until(look, || Some(count()).filter(|count| *count > 0)).expect("it gets runs");
    let begun = Instant::now();
    worker.signal(Signal::STOP);
    let all = until(look, || Some(count()).filter(|count| *count >= RUNS));
    let took = begun.elapsed();
    worker.signal(Signal::CONT);
    (all.expect("it gets all runs") - first) as f64 / took.as_secs_f64()
}
