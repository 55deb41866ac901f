//! The cost of isolation: a sandboxed agent beside one without a sandbox, an agent in a container
//! beside `docker run`, and the egress proxy beside a direct connection to the same server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use heeler_config::EgressRules;
use heeler_egress::{EgressLimits, EgressOptions, EgressProxy, SystemNetwork};

use crate::{Amount, Bench, Figure, Goal, runs};

const BULK_BYTES: u64 = 1 << 30;
const BUFFER_BYTES: usize = 256 << 10;
const ROUNDS: usize = 5;
const ROUND_TRIPS: usize = 5_000;

/// First byte of a client: the server sends bulk data, or returns each byte.
const BULK: u8 = b'b';
const ECHO: u8 = b'e';

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let mut figures = runs::sandbox_figures(bench);
    figures.extend(runs::container_figures(bench));
    figures.extend(proxy_figures());
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
