//! The cost of isolation: a sandboxed agent beside one without a sandbox, an agent in a container
//! beside `docker run`, and the egress proxy beside a direct connection to the same server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use heeler_config::EgressRules;
use heeler_egress::{EgressLimits, EgressOptions, EgressProxy, SystemNetwork};
use heeler_testkit::{MessagesApi, claude};
use jiff::Timestamp;
use serde_json::json;

use crate::scene::{Daemon, Scene, Side, agent_name};
use crate::{Amount, Bench, Figure, Goal, runs};

const BULK_BYTES: u64 = 1 << 30;
const BUFFER_BYTES: usize = 256 << 10;
const STARTS: usize = 40;
const CLAUDE_STARTS: usize = 9;
/// Time in which a turn of claude ends.
const CLAUDE_REST: Duration = Duration::from_secs(3);
/// Transfers of each side.
const ROUNDS: usize = 11;
const ROUND_TRIPS: usize = 5_000;

/// First byte of a client: the server sends bulk data, or returns each byte.
const BULK: u8 = b'b';
const ECHO: u8 = b'e';

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let mut figures = Vec::from(start_figures(bench));
    figures.extend(claude_figures(bench));
    figures.extend(runs::sandbox_figures(bench));
    figures.extend(runs::container_figures(bench));
    figures.extend(proxy_figures());
    figures
}

/// Two fleets with the same config, one of which has sandboxes.
fn fleets<'a>(
    bench: &'a Bench,
    name: &str,
    config: impl Fn(&Scene<'_>, &str) -> String,
) -> [Scene<'a>; 2] {
    ["off", "true"].map(|sandbox| {
        let scene = Scene::new(bench, &format!("{name}-{sandbox}"), STARTS, |_| String::new());
        let config = config(&scene, sandbox);
        std::fs::write(scene.root.join("heeler.yaml"), config).expect("disk has space");
        scene
    })
}

/// Returns the median times of both fleets, and their figures: the ratio, and the difference.
fn compare(
    what: &str,
    rounds: usize,
    fleets: &[Scene<'_>; 2],
    measure: impl Fn(&Scene<'_>, usize) -> Duration,
) -> [Figure; 2] {
    let mut times = [Vec::new(), Vec::new()];
    // In turn, so that a change of the machine's load affects both.
    for number in 0..rounds {
        for (scene, times) in fleets.iter().zip(&mut times) {
            times.push(measure(scene, number));
        }
    }
    let [open, confined] = times.map(median);
    [
        Figure {
            what: format!("`heeler trigger` to {what}, sandboxed"),
            ours: confined.into(),
            goal: Goal::TimesFaster(1.0 / 1.3),
            alternative: Some(("without a sandbox".to_owned(), open.into())),
        },
        Figure {
            what: "the same: added by the sandbox".to_owned(),
            ours: confined.saturating_sub(open).into(),
            goal: Goal::AtMost(Duration::from_millis(30).into()),
            alternative: None,
        },
    ]
}

fn trigger(scene: &Scene<'_>, agent: &str) {
    let output = scene.heeler().args(["trigger", agent, "--detach"]).output();
    let output = output.expect("the program was built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// From `heeler trigger` to the start of an agent that does nothing else.
fn start_figures(bench: &Bench) -> [Figure; 2] {
    let fleets = fleets(bench, "isolation-start", |scene, sandbox| {
        let config = std::fs::read_to_string(scene.root.join("heeler.yaml"));
        let placed = "    working_directory: work\n";
        let sandboxed = format!("{placed}    sandbox: {sandbox}\n");
        config.expect("the scene has a config").replace(placed, &sandboxed)
    });
    let daemons = fleets.each_ref().map(|scene| scene.start(Side::Ours));
    let figures = compare("start of an agent", STARTS, &fleets, |scene, number| {
        let before = Timestamp::now();
        trigger(scene, &agent_name(number));
        let (_, started) = scene.await_starts(number + 1).pop().expect("it started");
        Duration::try_from(started.duration_since(before)).unwrap_or_default()
    });
    daemons.into_iter().for_each(Daemon::stop);
    figures
}

/// From `heeler trigger` to the first request of the real claude to its model.
fn claude_figures(bench: &Bench) -> [Figure; 2] {
    let api = MessagesApi::start();
    let fleets = fleets(bench, "isolation-claude", |_, sandbox| {
        let agent = json!({
            "name": "lead", "runtime": "sdk", "claude_path": claude(), "setting_sources": [],
            "working_directory": "work", "sandbox": sandbox == "true", "default_prompt": "Say hello.",
        });
        json!({ "agents": [agent] }).to_string()
    });
    let daemons = fleets.each_ref().map(|scene| {
        let mut heeler = scene.heeler();
        heeler.args(["start", "--in-background"]).env("ANTHROPIC_BASE_URL", api.url());
        heeler.env("ANTHROPIC_API_KEY", "sk-ant-a-key-of-the-benchmark");
        heeler.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
        scene.start_heeler(heeler)
    });
    let figures = compare("the first request of claude", CLAUDE_STARTS, &fleets, |scene, _| {
        let (seen, before) = (api.messages().len(), Instant::now());
        trigger(scene, "lead");
        api.wait_for_messages(seen + 1);
        let time = before.elapsed();
        std::thread::sleep(CLAUDE_REST);
        time
    });
    daemons.into_iter().for_each(Daemon::stop);
    figures
}

fn proxy_figures() -> Vec<Figure> {
    let server = start_server();
    let folder = tempfile::tempdir().expect("disk has space");
    let socket = folder.path().join("e");
    let _proxy = start_proxy(&socket, server);
    let direct = || {
        let stream = TcpStream::connect(server).expect("the server listens");
        stream.set_nodelay(true).expect("it is a TCP connection");
        stream
    };
    let proxied = || {
        let mut stream = UnixStream::connect(&socket).expect("the proxy listens");
        write!(stream, "CONNECT {server} HTTP/1.1\r\n\r\n").expect("the proxy reads");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("the proxy answers");
            head.extend(byte);
        }
        assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
        stream
    };
    // In turn, so that a change of the machine's load affects both.
    let (mut direct_bulk, mut proxied_bulk) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        direct_bulk.push(transfer(direct()));
        proxied_bulk.push(transfer(proxied()));
    }
    let rate = |times: Vec<Duration>| BULK_BYTES as f64 / 1e6 / median(times).as_secs_f64();
    let (mut direct_trips, mut proxied_trips) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        direct_trips.extend(round_trips(direct()));
        proxied_trips.extend(round_trips(proxied()));
    }
    let (direct_trip, proxied_trip) = (median(direct_trips), median(proxied_trips));
    vec![
        Figure {
            what: "egress proxy: megabytes".to_owned(),
            ours: Amount::PerSecond(rate(proxied_bulk)),
            goal: Goal::TimesFaster(0.8),
            alternative: Some(("direct loopback".to_owned(), Amount::PerSecond(rate(direct_bulk)))),
        },
        Figure {
            what: "egress proxy: added to a round trip, p50".to_owned(),
            ours: Amount::Time(proxied_trip.saturating_sub(direct_trip)),
            goal: Goal::AtMost(Amount::Time(Duration::from_micros(500))),
            alternative: Some(("direct round trip".to_owned(), Amount::Time(direct_trip))),
        },
    ]
}

fn start_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it listens");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

fn serve(mut stream: TcpStream) {
    drop(stream.set_nodelay(true));
    let mut byte = [0];
    if stream.read_exact(&mut byte).is_err() {
        return;
    }
    match byte {
        [BULK] => {
            let buffer = vec![7; BUFFER_BYTES];
            for _ in 0..BULK_BYTES / BUFFER_BYTES as u64 {
                if stream.write_all(&buffer).is_err() {
                    return;
                }
            }
        }
        _ => while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {},
    }
}

fn start_proxy(socket: &std::path::Path, server: SocketAddr) -> EgressProxy {
    let listener = UnixListener::bind(socket).expect("the folder can be written");
    let (events, mut decisions) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || while decisions.blocking_recv().is_some() {});
    let local = server.to_string().parse().expect("it is a local address");
    let options = EgressOptions {
        is_agent: Arc::new(|_| true),
        rules: EgressRules { allow_local: vec![local], ..EgressRules::default() },
        asks: false,
        api: None,
        git: None,
        forwarded: Vec::new(),
        own_port: None,
        limits: EgressLimits::default(),
        network: Arc::new(SystemNetwork),
        events,
    };
    EgressProxy::start(listener, options).expect("a thread can be started")
}

fn transfer(mut stream: impl Read + Write) -> Duration {
    let mut buffer = vec![0; BUFFER_BYTES];
    let start = Instant::now();
    stream.write_all(&[BULK]).expect("the server reads");
    let mut received = 0;
    while received < BULK_BYTES {
        let count = stream.read(&mut buffer).expect("the server sends");
        assert!(count > 0, "the transfer ended early");
        received += count as u64;
    }
    start.elapsed()
}

fn round_trips(mut stream: impl Read + Write) -> Vec<Duration> {
    stream.write_all(&[ECHO]).expect("the server reads");
    let trip = |_| {
        let start = Instant::now();
        stream.write_all(&[1]).expect("the server reads");
        stream.read_exact(&mut [0]).expect("the server answers");
        start.elapsed()
    };
    (0..ROUND_TRIPS).map(trip).collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
