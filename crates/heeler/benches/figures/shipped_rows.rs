//! Rows of a thousand live runs on three hosts, as the other hosts get them.
//!
//! A thousand agents do not fit on the machine that also has three daemons and the server. So this program
//! is the runners: it appends rows to the transcripts of runs that it has put on record, and holds the
//! locks of their folders, by which a daemon takes them for alive. All the rest is real: each daemon finds
//! the runs on its list, ships their files, and copies those of the others. The server does not sync, as in
//! the other figures of hosts; the daemons do.
//!
//! `HEELER_BENCH_LIVE_RUNS` sets another number of runs.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{JobId, RunId};
use heeler_testkit::PostgresCluster;
use heeler_transcript::{LockFile, LockHolder};
use jiff::Timestamp;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::hosts::{cluster, scene, start};
use crate::scene::{Daemon, Scene, until};
use crate::{Amount, Bench, Figure, Goal};

const HOSTS: [&str; 3] = ["alpha", "beta", "gamma"];
const RUNS: usize = 1_000;
const ROWS_PER_SECOND: usize = 20;
/// The statement is an argument of a program.
const RUNS_PER_STATEMENT: usize = 200;
/// All rows have this length, so the length of a copy is the number of its rows.
const ROW_BYTES: usize = 256;
/// Runs whose copies are looked at, of each host.
const WATCHED: usize = 12;
/// Shorter than what is measured by far.
const LOOK_INTERVAL: Duration = Duration::from_millis(3);
/// Rows are appended in so many steps of a second, to some of the runs each.
const STEPS_PER_SECOND: usize = 200;
/// Rows of this time do not count: the daemons find the runs, and connect.
const WARM_UP: Duration = Duration::from_secs(10);
const MEASURED: Duration = Duration::from_secs(20);

/// A run that this program plays.
struct PlayedRun {
    id: RunId,
    job: JobId,
    /// Position of its host.
    host: usize,
}

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let runs = std::env::var("HEELER_BENCH_LIVE_RUNS").ok();
    let runs = runs.and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    // A lock and a transcript of each run are open.
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("it is allowed");
    let cluster = cluster();
    let scenes = HOSTS.map(|host| scene(bench, &cluster, &format!("rows-{host}"), 1));
    // One after the other: the first one makes the tables, and leads.
    let daemons = [0, 1, 2].map(|at| start(&scenes[at], HOSTS[at]));
    let played = play(runs);
    // Locks first: a daemon that finds a run without a runner reports its end.
    let locks = lock_folders(&scenes, &played);
    record(&cluster, &played);
    let measured = measure(&cluster, &daemons, &scenes, &played);
    for daemon in daemons.into_iter().rev() {
        daemon.stop();
    }
    drop(locks);
    report(runs, measured)
}

struct Measured {
    /// Times from the append of a row to its presence in the copy of another host.
    shown: Vec<Duration>,
    /// Shares of a core.
    server: f64,
    daemons: f64,
}

fn report(runs: usize, measured: Measured) -> Vec<Figure> {
    let of = format!("{runs} live runs on 3 hosts, {ROWS_PER_SECOND} rows/s each");
    let Measured { mut shown, server, daemons } = measured;
    shown.sort_unstable();
    let at =
        |percent: usize| shown.get(shown.len() * percent / 100).copied().unwrap_or(Duration::MAX);
    let figure = |what: &str, ours: Amount, goal: Goal| Figure {
        what: format!("{of}: {what}"),
        ours,
        goal,
        alternative: None,
    };
    vec![
        figure("shown on another host, median", at(50).into(), Goal::None),
        figure(
            "shown on another host, p99",
            at(99).into(),
            Goal::AtMost(Duration::from_millis(200).into()),
        ),
        figure("server: core", Amount::Share(server), Goal::AtMost(Amount::Share(0.4))),
        figure("three daemons: core", Amount::Share(daemons), Goal::None),
    ]
}

fn play(runs: usize) -> Vec<PlayedRun> {
    let begun = Timestamp::from_second(1_700_000_000).expect("a legal time");
    (0..runs)
        .map(|number| {
            let mut random = [0; 10];
            random[..8].copy_from_slice(&(number as u64).to_be_bytes());
            PlayedRun {
                id: RunId::mint(begun, random),
                job: JobId::mint(begun, number as u64),
                host: number % HOSTS.len(),
            }
        })
        .collect()
}

fn lock_folders(scenes: &[Scene<'_>; 3], played: &[PlayedRun]) -> Vec<LockFile> {
    let lock = |run: &PlayedRun| {
        let folder = scenes[run.host].dir().run(run.id);
        std::fs::create_dir_all(&folder).expect("disk has space");
        let holder = LockHolder::this_process("runner", Timestamp::UNIX_EPOCH);
        LockFile::acquire(&folder.join(heeler_model::run::file::LOCK), &holder, Duration::ZERO)
            .expect("no other process knows the folder")
    };
    played.iter().map(lock).collect()
}

/// Puts the runs on record and on the lists of their hosts, as the leader would, and lets the daemons see
/// a commit.
fn record(cluster: &PostgresCluster, played: &[PlayedRun]) {
    let at = "2023-11-14T22:13:20Z";
    for played in played.chunks(RUNS_PER_STATEMENT) {
        let rows = |row: &dyn Fn(&PlayedRun) -> String| {
            played.iter().map(row).collect::<Vec<_>>().join(", ")
        };
        let jobs =
            rows(&|run| format!("('{}', 'agent-0000', 'manual', 'running', '{at}', '')", run.job));
        let runs = rows(&|run| {
            format!("('{}', '{}', 1, '{}', 1, 'running', '{at}')", run.id, run.job, HOSTS[run.host])
        });
        let lists = rows(&|run| format!("('{}', '{}')", run.id, HOSTS[run.host]));
        cluster.query(
            "fleet",
            &format!(
                "INSERT INTO executions (id, agent, trigger_type, status, started_at, skill) \
                 VALUES {jobs}; INSERT INTO runs \
                 (id, job_id, attempt, host, epoch, status, created_at) VALUES {runs}; \
                 INSERT INTO unshipped_runs (run, host) VALUES {lists}"
            ),
        );
    }
    cluster.query("fleet", "UPDATE store_writer SET commits = commits + 1");
}

/// Returns the path of a run's transcript or copy.
fn transcript(scene: &Scene<'_>, run: &PlayedRun) -> Utf8PathBuf {
    scene.state.join(format!("jobs/{}.jsonl", run.job))
}

fn measure(
    cluster: &PostgresCluster,
    daemons: &[Daemon; 3],
    scenes: &[Scene<'_>; 3],
    played: &[PlayedRun],
) -> Measured {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let appending = scope.spawn(|| append_rows(scenes, played, &is_over));
        let all = || {
            let last = played.last().expect("there are runs");
            let copy = transcript(&scenes[(last.host + 1) % HOSTS.len()], last);
            copy.metadata().is_ok_and(|found| found.len() > 0).then_some(())
        };
        until(Duration::from_millis(100), all).expect("the hosts copy files");
        std::thread::sleep(WARM_UP);
        let cpu = || daemons.iter().map(Daemon::cpu).sum::<Duration>();
        let (begun, server, own) = (Instant::now(), server_cpu(cluster), cpu());
        let watching = scope.spawn(|| watch_copies(scenes, played));
        let shown = watching.join().expect("it does not panic");
        let took = begun.elapsed();
        let server = (server_cpu(cluster) - server).div_duration_f64(took);
        let daemons = (cpu() - own).div_duration_f64(took);
        is_over.store(true, Ordering::Relaxed);
        appending.join().expect("it does not panic");
        Measured { shown, server, daemons }
    })
}

/// Appends rows to all transcripts, each with the time at which it was appended.
fn append_rows(scenes: &[Scene<'_>; 3], played: &[PlayedRun], is_over: &AtomicBool) {
    let open = |run: &PlayedRun| {
        let path = transcript(&scenes[run.host], run);
        let mut options = File::options();
        options.append(true).create(true).mode(0o600).open(path).expect("disk has space")
    };
    let mut files: Vec<File> = played.iter().map(open).collect();
    let begun = Instant::now();
    for step in 0_usize.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let due = Duration::from_secs(1) * u32::try_from(step).expect("few steps")
            / STEPS_PER_SECOND as u32;
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        let period = STEPS_PER_SECOND / ROWS_PER_SECOND;
        for file in files.iter_mut().skip(step % period).step_by(period) {
            let mut row = format!("{{\"at\":{},\"text\":\"", now_nanos());
            while row.len() < ROW_BYTES - 3 {
                row.push('x');
            }
            row.push_str("\"}\n");
            file.write_all(row.as_bytes()).expect("disk has space");
        }
    }
}

fn now_nanos() -> i128 {
    Timestamp::now().as_nanosecond()
}

/// A copy of another host that is looked at.
struct WatchedCopy {
    path: Utf8PathBuf,
    /// Rows that were there.
    rows: u64,
}

/// Returns how old each new row of some copies is when it is there.
fn watch_copies(scenes: &[Scene<'_>; 3], played: &[PlayedRun]) -> Vec<Duration> {
    let rows = |path: &Utf8Path| path.metadata().map_or(0, |found| found.len() / ROW_BYTES as u64);
    // No multiple of the number of hosts, so the runs are those of all hosts.
    let step = played.len() / (WATCHED * HOSTS.len()) / HOSTS.len() * HOSTS.len() + 1;
    let watched = played.iter().step_by(step).take(WATCHED * HOSTS.len());
    let mut copies: Vec<WatchedCopy> = watched
        .flat_map(|run| {
            [1, 2].map(|next| transcript(&scenes[(run.host + next) % HOSTS.len()], run))
        })
        .map(|path| WatchedCopy { rows: rows(&path), path })
        .collect();
    let begun = Instant::now();
    let mut shown = Vec::new();
    while begun.elapsed() < MEASURED {
        for copy in &mut copies {
            let there = rows(&copy.path);
            if there > copy.rows {
                let now = now_nanos();
                shown.extend(ages(&copy.path, copy.rows..there, now));
                copy.rows = there;
            }
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    shown
}

/// Returns how old rows of a copy are.
fn ages(path: &Utf8Path, rows: std::ops::Range<u64>, now: i128) -> Vec<Duration> {
    let mut bytes = vec![0; (rows.end - rows.start) as usize * ROW_BYTES];
    let file = File::open(path).expect("it was there");
    file.read_exact_at(&mut bytes, rows.start * ROW_BYTES as u64).expect("it does not shrink");
    let age = |row: &[u8]| {
        let text = std::str::from_utf8(row).expect("it was text");
        let at = text.strip_prefix("{\"at\":").and_then(|rest| rest.split(',').next());
        let at: i128 = at.and_then(|at| at.parse().ok()).expect("it was a time");
        Duration::from_nanos(u64::try_from(now - at).unwrap_or_default())
    };
    bytes.chunks_exact(ROW_BYTES).map(age).collect()
}

/// Returns the time that all processes of the server were at work, with those that have ended.
fn server_cpu(cluster: &PostgresCluster) -> Duration {
    let data = cluster.socket_folder().join("data");
    let processes = std::fs::read_dir("/proc").expect("the kernel shows processes").flatten();
    let of_server = processes.filter(|process| {
        std::fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == data.as_std_path())
    });
    let ticks = of_server.map(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
        // Its own time, and that of processes which it started and which have ended.
        fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>()
    });
    Duration::from_millis(ticks.sum::<u64>() * 10)
}
