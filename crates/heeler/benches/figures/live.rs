//! Live streams: a thousand readers of one job.
//!
//! The time is from the moment at which the agent prints a line to the moment at which a reader has the row,
//! so the agent's pipe, the runner and the disk are in it. There is no alternative beside it: what a user
//! would have instead loses rows when it is restarted.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use heeler_engine::{CommandReply, DaemonCommand as Order};
use heeler_model::{API_TOKEN, JobId, JobRequest};
use jiff::Timestamp;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::scene::{Daemon, Scene, Side};
use crate::{Amount, Bench, Figure, Goal};

const READERS: usize = 1_000;
const ROWS: usize = 400;
/// Between two rows: twenty come in a second.
const PAUSE: &str = "0.05";
/// How long the agent waits, so that all readers are there.
const HEAD_START: Duration = Duration::from_secs(10);

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let scene = Scene::new(bench, "live", 1, |_| String::new());
    let port = free_port();
    let lines = format!("for i in $(seq {ROWS}); do date +at=%s%N; sleep {PAUSE}; done");
    let config = format!(
        "version: 1\nweb: {{port: {port}}}\nagents:\n  - name: teller\n    runtime: command\n    \
         working_directory: work\n    command: \"sleep {}; {lines}\"\n",
        HEAD_START.as_secs()
    );
    std::fs::write(scene.root.join("heeler.yaml"), config).expect("disk has space");
    let daemon = scene.start(Side::OursOnTheWeb);
    let wanted = JobRequest::new("teller".parse().expect("a name"));
    let job = match daemon.client().send_command(&Order::Trigger(Box::new(wanted)), None) {
        Ok(CommandReply::Job { job, .. }) => job,
        answer => panic!("{answer:?}"),
    };
    let token = std::fs::read_to_string(scene.state.join(API_TOKEN)).expect("a token is there");
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("the machine has files left");
    let (mut times, memory) = runtime.block_on(read(&daemon, at, token.trim(), &job));
    daemon.stop_all();
    times.sort_unstable();
    assert_eq!(times.len(), READERS * ROWS, "every reader has every row");
    let of = "1,000 readers of one job, 20 rows a second";
    let p99 = times[times.len() * 99 / 100];
    vec![
        Figure {
            what: format!("{of}: agent to reader, p99"),
            ours: p99.into(),
            goal: Goal::AtMost(Duration::from_millis(100).into()),
            alternative: None,
        },
        Figure {
            what: format!("{of}: RssAnon"),
            ours: Amount::Bytes(memory),
            goal: Goal::AtMost(Amount::Bytes(60_000_000)),
            alternative: None,
        },
    ]
}

/// Reads with everybody; returns how old each row was, and what the daemon held at most.
async fn read(daemon: &Daemon, at: SocketAddr, token: &str, job: &JobId) -> (Vec<Duration>, u64) {
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        let stream = TcpStream::connect(at).await.expect("the daemon listens");
        let request = format!(
            "GET /api/v1/jobs/{job}/stream HTTP/1.0\r\nhost: {at}\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        readers.spawn(one(stream, request));
    }
    let (mut times, mut memory) = (Vec::new(), 0);
    let mut look = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            done = readers.join_next() => match done {
                Some(done) => times.extend(done.expect("it read to the end")),
                None => return (times, memory),
            },
            _ = look.tick() => memory = memory.max(daemon.memory()),
        }
    }
}

async fn one(mut stream: TcpStream, request: String) -> Vec<Duration> {
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut lines = BufReader::new(stream).lines();
    let mut times = Vec::with_capacity(ROWS);
    while let Some(line) = lines.next_line().await.expect("it sends") {
        if line == "event: end" {
            break;
        }
        // The last line is also in the job's result and in its summary.
        if !line.contains("\"type\":\"assistant\"") {
            continue;
        }
        let Some((_, rest)) = line.split_once("at=") else { continue };
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let Ok(said) = digits.parse().map(Timestamp::from_nanosecond) else { continue };
        let age = Timestamp::now().duration_since(said.expect("it is a time"));
        times.push(Duration::try_from(age).unwrap_or_default());
    }
    times
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    listener.local_addr().expect("it has one").port()
}
