//! The API's list of jobs, uncached, beside a Node.js server of the same list, both under wrk; and the
//! first page of the dashboard.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::JobStatus;
use heeler_query::charts::CHARTS_CACHE_TTL;
use heeler_store::DaemonFile;
use heeler_store::{DatabaseError, StateDir, Store};
use jiff::{SignedDuration, Timestamp};

use crate::scene::until;
use crate::{Amount, Bench, Figure, Goal, jobs};

const JOBS: u64 = 100_000;

/// How many different pages are asked for in turn, where they are.
const PAGES: u64 = 1_000;

/// How many connections ask at once: about as many as in fastify's own figures, and a few.
const CONNECTIONS: [u64; 2] = [64, 16];

/// How long each side is asked in a round.
const LASTS: &str = "-d3s";

/// How often both sides are asked in turn: a machine is not as fast in one minute as in the next.
const ROUNDS: usize = 5;

/// How often the first page is asked for.
const VISITS: usize = 5;

/// A server that ends with the figure.
struct Server {
    process: Child,
    url: String,
    /// What lets us in.
    header: Option<String>,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let mut figures = lists(bench);
    let (time, bytes) = overview(bench);
    figures.push(Figure {
        what: "overview, 100k jobs in a day".to_owned(),
        ours: time.into(),
        goal: Goal::AtMost(Duration::from_millis(15).into()),
        alternative: None,
    });
    figures.push(Figure {
        what: "overview and all that it loads".to_owned(),
        ours: Amount::Bytes(bytes),
        goal: Goal::AtMost(Amount::Bytes(100_000)),
        alternative: None,
    });
    figures
}

/// Returns how fast pages of jobs are told: the newest to all who ask for it, and others.
fn lists(bench: &Bench) -> Vec<Figure> {
    let sides = [ours(bench), theirs(bench)];
    let scripts = [0, 1].map(|side| pages(bench, &sides[side], side));
    let figure = |what: &str, connections: u64, is_newest: bool, goal: Goal| {
        let mut rates = [Vec::new(), Vec::new()];
        for (_, side) in (0..ROUNDS).flat_map(|round| [(round, 0), (round, 1)]) {
            let script = scripts[side].as_str();
            let more: &[&str] = if is_newest { &[] } else { &["-s", script] };
            rates[side].push(asked(&sides[side], connections, more));
        }
        let [ours, theirs] = rates.map(|mut rates| {
            rates.sort_unstable_by(f64::total_cmp);
            Amount::PerSecond(rates[ROUNDS / 2])
        });
        Figure {
            what: format!("API: {what} of 100k jobs, {connections} ask at once"),
            ours,
            goal,
            alternative: Some(("fastify + better-sqlite3".to_owned(), theirs)),
        }
    };
    let [many, few] = CONNECTIONS;
    vec![
        figure("newest 20", many, true, Goal::TimesFaster(3.0)),
        figure("newest 20", few, true, Goal::None),
        figure("another 20 each time", many, false, Goal::None),
    ]
}

/// Writes what wrk asks for in turn: the pages that follow jobs all over the list.
fn pages(bench: &Bench, server: &Server, side: usize) -> Utf8PathBuf {
    let step = JOBS / PAGES;
    let before = |number: u64| {
        let head = jobs::job(number).head;
        match server.header {
            Some(_) => head.id.to_string(),
            None => head.started_at.strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string(),
        }
    };
    let path = server.url.splitn(4, '/').nth(3).unwrap_or_default();
    let paths = (1..=PAGES).map(|page| format!("\"/{path}?before={}\"", before(page * step - 1)));
    let script = format!(
        "local paths, at = {{{}}}, 0\nrequest = function()\n  at = at % #paths + 1\n  \
         return wrk.format('GET', paths[at])\nend\n",
        paths.collect::<Vec<_>>().join(",")
    );
    let file = bench.folder.join(format!("pages-{side}.lua"));
    std::fs::write(&file, script).expect("disk has space");
    file
}

/// Starts a daemon in a folder, after its state was made.
fn daemon(folder: &Utf8Path, make: impl FnOnce(&StateDir)) -> Server {
    std::fs::create_dir_all(folder).expect("disk has space");
    std::fs::write(folder.join("heeler.yaml"), "web: {port: auto, token_file: true}\nagents: []\n")
        .expect("disk has space");
    let dir = StateDir::create(&folder.join(".heeler")).expect("disk has space");
    make(&dir);
    let process = Command::new(env!("CARGO_BIN_EXE_heeler"))
        .arg("start")
        .env("HEELER_TRUST", "all")
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let process = process.expect("it is built");
    let url = until(Duration::from_millis(20), || {
        let file = DaemonFile::read(&dir).ok()??;
        (file.pid == process.id()).then_some(file.url?)
    });
    let token = std::fs::read_to_string(dir.root().join("api-token")).expect("it makes a token");
    let header = Some(format!("authorization: Bearer {}", token.trim()));
    Server { process, url: url.expect("it listens").trim_end_matches('/').to_owned(), header }
}

fn ours(bench: &Bench) -> Server {
    let mut server = daemon(&bench.folder.join("api"), |dir| jobs::make(dir, JOBS));
    server.url += "/api/v1/jobs";
    server
}

fn theirs(bench: &Bench) -> Server {
    let file = bench.folder.join("seed-100k.db");
    // It makes the table.
    bench.node("sqlite-jobs.mjs", &[file.as_str(), &JOBS.to_string(), "10"]);
    let child = Command::new("node")
        .arg(bench.node.join("api-jobs.mjs"))
        .arg(&file)
        .stdout(Stdio::piped())
        .spawn();
    let mut process = child.expect("node is installed");
    let mut port = String::new();
    let out = process.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut port).expect("it says its port");
    Server { process, url: format!("http://127.0.0.1:{}/jobs", port.trim()), header: None }
}

/// Returns how long the first page takes of a fleet that had all its jobs within a day, and how many
/// bytes a browser loads for it.
fn overview(bench: &Bench) -> (Duration, u64) {
    let folder = bench.folder.join("overview");
    drop(std::fs::remove_dir_all(&folder));
    let server = daemon(&folder, |dir| busy_day(dir, Timestamp::now()));
    let mut times = Vec::new();
    for _ in 0..VISITS {
        let began = Instant::now();
        assert!(get(&server, "/").contains("</html>"), "it is a page");
        times.push(began.elapsed());
        // Until figures are not told again.
        std::thread::sleep(CHARTS_CACHE_TTL.unsigned_abs());
    }
    times.sort_unstable();
    let page = get(&server, "/");
    let mut bytes = page.len();
    let mut files: BTreeSet<String> = BTreeSet::new();
    let mut found = names(&page);
    while let Some(path) = found.pop() {
        if files.insert(path.clone()) {
            let file = get(&server, &path);
            bytes += file.len();
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let imports = file.lines().filter(|line| line.starts_with("import "));
            let imported =
                imports.flat_map(|line| line.split('\'')).filter_map(|it| it.strip_prefix("./"));
            found.extend(
                imported.filter(|it| it.ends_with(".js")).map(|it| format!("{folder}/{it}")),
            );
        }
    }
    (times[VISITS / 2], bytes as u64)
}

/// Returns the files that a page names.
fn names(page: &str) -> Vec<String> {
    page.split('"').filter(|it| it.starts_with("/assets/")).map(str::to_owned).collect()
}

/// Puts all jobs on record as those of the last day.
fn busy_day(dir: &StateDir, now: Timestamp) {
    let store = Store::open(dir, "bench", now).expect("the store opens").store;
    let apart = SignedDuration::from_hours(24) / i32::try_from(JOBS).expect("it is small");
    for first in (0..JOBS).step_by(20_000) {
        let written = store.write(move |tx| -> Result<(), DatabaseError> {
            for number in first..JOBS.min(first + 20_000) {
                let mut job = jobs::job(number);
                let back = i32::try_from(JOBS - number).expect("it is small");
                job.head.started_at = now - apart * back;
                job.error = (job.head.status == JobStatus::Failed).then(|| "It failed.".to_owned());
                tx.insert_job(&job)?;
            }
            Ok(())
        });
        written.expect("jobs are inserted");
    }
}

/// Asks a server for something, whole.
fn get(server: &Server, path: &str) -> String {
    let address = server.url.trim_start_matches("http://");
    let header = server.header.as_deref().unwrap_or_default();
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request =
        format!("GET {path} HTTP/1.0\r\nhost: {address}\r\naccept: text/html\r\n{header}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("it answers");
    let reply = String::from_utf8_lossy(&reply).into_owned();
    assert!(reply.split(' ').nth(1) == Some("200"), "{path}: {reply}");
    reply.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned())
}

/// Asks as fast as it is answered; returns how many answers a second came.
fn asked(server: &Server, connections: u64, more: &[&str]) -> f64 {
    let connections = connections.to_string();
    let mut wrk = Command::new("wrk");
    wrk.args(["-t", "1", "-c", &connections, LASTS]).args(more);
    wrk.args(server.header.iter().flat_map(|header| ["-H", header]));
    let ran = wrk.arg(&server.url).output().expect("wrk is installed: run `cargo xtask bench`");
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(!told.contains("Non-2xx"), "{told}");
    let rate = told.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    rate.and_then(|rate| rate.trim().parse().ok()).expect("wrk tells its rate")
}
