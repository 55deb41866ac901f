//! The API's list of jobs, uncached, beside a Node.js server of the same list, both under wrk.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use heeler_engine::DaemonFile;
use heeler_store::StateDir;

use crate::scene::until;
use crate::{Amount, Bench, Figure, Goal, jobs};

const JOBS: u64 = 100_000;

/// How many connections ask at once, by how many threads of wrk's.
const CONNECTIONS: [&str; 4] = ["-c", "16", "-t", "1"];

/// How long each side is asked.
const LASTS: &str = "-d10s";

/// A server that ends with the figure.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let (ours, theirs) = (ours(bench), theirs(bench));
    vec![Figure {
        what: "API: newest 20 of 100k jobs, uncached".to_owned(),
        ours,
        goal: Goal::TimesFaster(3.0),
        alternative: Some(("fastify + better-sqlite3".to_owned(), theirs)),
    }]
}

fn ours(bench: &Bench) -> Amount {
    let folder = bench.folder.join("api");
    std::fs::create_dir_all(&folder).expect("disk has space");
    std::fs::write(folder.join("heeler.yaml"), "web: {port: auto}\nagents: []\n")
        .expect("disk has space");
    let dir = StateDir::create(&folder.join(".heeler")).expect("disk has space");
    jobs::make(&dir, JOBS);
    let child = Command::new(env!("CARGO_BIN_EXE_heeler"))
        .arg("start")
        .current_dir(&folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let server = Server(child.expect("it is built"));
    let url = until(Duration::from_millis(20), || {
        let file = DaemonFile::read(&dir).ok()??;
        (file.pid == server.0.id()).then_some(file.url?)
    });
    let url = url.expect("it listens");
    let token = std::fs::read_to_string(dir.root().join("api-token")).expect("it makes a token");
    let header = format!("authorization: Bearer {}", token.trim());
    let address = format!("{}/api/v1/jobs", url.trim_end_matches('/'));
    let rate = asked(&["-H", &header, &address]);
    drop(server);
    rate
}

fn theirs(bench: &Bench) -> Amount {
    let file = bench.folder.join("seed-100k.db");
    // It makes the table.
    bench.node("sqlite-jobs.mjs", &[file.as_str(), &JOBS.to_string(), "10"]);
    let child = Command::new("node")
        .arg(bench.node.join("api-jobs.mjs"))
        .arg(&file)
        .stdout(Stdio::piped())
        .spawn();
    let mut server = Server(child.expect("node is installed"));
    let mut port = String::new();
    let out = server.0.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut port).expect("it says its port");
    let rate = asked(&[&format!("http://127.0.0.1:{}/jobs", port.trim())]);
    drop(server);
    rate
}

/// Asks as fast as it is answered; returns how many answers a second came.
fn asked(args: &[&str]) -> Amount {
    let ran = Command::new("wrk").args(CONNECTIONS).arg(LASTS).args(args).output();
    let ran = ran.expect("wrk is installed: run `cargo xtask bench`");
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(!told.contains("Non-2xx"), "{told}");
    let rate = told.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    Amount::PerSecond(rate.and_then(|rate| rate.trim().parse().ok()).expect("wrk tells its rate"))
}
