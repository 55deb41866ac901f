//! Live streams over HTTP: rows of real jobs, to clients that come and go, by daemons that die.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use camino::Utf8PathBuf;
use heeler_engine::{CommandReply, DaemonCommand, StopMode};
use heeler_model::{JobId, JobRequest};
use heeler_server::DaemonClient;
use heeler_store::DaemonFile;
use heeler_testkit::ProofSettings;
use heeler_testkit::WAIT_MAX;
use serde_json::Value as Json;

use crate::daemon_kills::Herd;

/// How many rows pass for each time that a client connects again.
const ROWS_PER_ROUND: u64 = 500;

/// How often a client connects again where nobody says otherwise.
const ROUNDS_IN_CI: u64 = 24;

/// A round takes a while: more of them would take hours.
const ROUNDS_MAX: u64 = 1_000;

/// An event of a stream.
#[derive(Debug, Default, PartialEq)]
struct Event {
    id: Option<String>,
    name: String,
    data: String,
}

/// One connection to a stream.
struct Stream(BufReader<UnixStream>);

impl Stream {
    /// Connects, as a browser does that saw an event last.
    fn open(socket: &Utf8PathBuf, path: &str, last: Option<&str>) -> Stream {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let last = last.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
        // What answers HTTP/1.0 sends no chunks.
        write!(stream, "GET {path} HTTP/1.0\r\nhost: x\r\n{last}\r\n").unwrap();
        let mut stream = BufReader::new(stream);
        let head = std::iter::from_fn(|| {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            (!line.trim().is_empty()).then_some(line)
        });
        let head: String = head.collect();
        assert!(head.starts_with("HTTP/1.0 200"), "{head}");
        assert!(head.contains("text/event-stream"), "{head}");
        Stream(stream)
    }

    /// Returns the next event that is whole; none where the stream ends.
    fn next(&mut self) -> Option<Event> {
        let mut event = Event::default();
        loop {
            let mut line = String::new();
            match self.0.read_line(&mut line) {
                Ok(0) => return None,
                Ok(_) if !line.ends_with('\n') => return None,
                Ok(_) => {}
                // A daemon that is killed resets its connections.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing comes: {error}"),
            }
            let line = line.trim_end_matches('\n');
            match line.split_once(": ") {
                _ if line.is_empty() && !event.name.is_empty() => return Some(event),
                Some(("id", id)) => event.id = Some(id.to_owned()),
                Some(("event", name)) => event.name = name.to_owned(),
                Some(("data", data)) => event.data.push_str(data),
                _ => {}
            }
        }
    }
}

/// What a client has seen of a job.
#[derive(Default)]
struct Seen {
    rows: Vec<String>,
    statuses: Vec<String>,
    deltas: usize,
    is_over: bool,
}

impl Seen {
    /// Reads on until so many rows were seen, or the stream ends.
    #[track_caller]
    fn read(&mut self, stream: &mut Stream, rows: usize) {
        while self.rows.len() < rows && !self.is_over {
            let Some(event) = stream.next() else { return };
            match event.name.as_str() {
                "row" => {
                    let expected = self.rows.len().to_string();
                    assert_eq!(event.id.as_deref(), Some(expected.as_str()), "the next row");
                    self.rows.push(event.data);
                }
                "status" => {
                    let status: Json = serde_json::from_str(&event.data).unwrap();
                    self.statuses.push(status["status"].as_str().unwrap().to_owned());
                }
                "delta" | "lagged" => self.deltas += 1,
                "end" => self.is_over = true,
                other => panic!("an event {other}"),
            }
        }
    }

    fn last(&self) -> Option<String> {
        self.rows.len().checked_sub(1).map(|last| last.to_string())
    }
}

pub(crate) fn socket(herd: &Herd) -> Utf8PathBuf {
    DaemonFile::read(&herd.dir()).unwrap().unwrap().socket
}

pub(crate) fn trigger(client: &mut DaemonClient, agent: &str) -> JobId {
    let wanted = JobRequest::new(agent.parse().unwrap());
    match client.send_command(&DaemonCommand::Trigger(Box::new(wanted)), None).unwrap() {
        CommandReply::Job { job, .. } => job,
        other => panic!("{other:?}"),
    }
}

fn path(job: &JobId) -> String {
    format!("/api/v1/jobs/{job}/stream")
}

#[test]
fn proof_a_reader_that_reconnects_sees_every_row_once() {
    let proof = ProofSettings::new(ROUNDS_IN_CI);
    let rounds = proof.rounds.min(ROUNDS_MAX);
    let mut herd = Herd::of(&format!(
        "agents:\n  - name: worker\n    runtime: scripted\n    script:\n      - repeat: {rounds}\n        \
         do: [{{run: 'read line < gate'}}, {{flood: {ROWS_PER_ROUND}, size: 60}}]\n      - say: Done.\n"
    ));
    let (mut life, mut client) = herd.begin(&[]);
    let job = trigger(&mut client, "worker");
    drop(client);
    let (mut seen, mut kills) = (Seen::default(), 0);
    for round in 0..rounds {
        let mut random = proof.random(round);
        herd.let_through(1);
        let mut stream = Stream::open(&socket(&herd), &path(&job), seen.last().as_deref());
        // So many come for sure.
        let there = usize::try_from((round + 1) * ROWS_PER_ROUND).unwrap();
        let wanted =
            seen.rows.len() + random.usize(0..2 * there / (usize::try_from(round).unwrap() + 1));
        seen.read(&mut stream, wanted.min(there));
        if random.u8(0..8) == 0 || round == 1 {
            kills += 1;
            life.kill();
            // What was on its way is in order too.
            seen.read(&mut stream, usize::MAX);
            (life, client) = herd.begin(&[]);
            drop(client);
        }
    }
    herd.open_gate();
    let mut stream = Stream::open(&socket(&herd), &path(&job), seen.last().as_deref());
    seen.read(&mut stream, usize::MAX);
    let context = format!("seed {}, {rounds} times, {kills} daemons killed", proof.seed);
    assert!(seen.is_over, "{context}");
    assert_eq!(seen.statuses.last().map(String::as_str), Some("completed"), "{context}");
    let log = std::fs::read_to_string(herd.dir().job_transcript(&job)).unwrap();
    let written: Vec<&str> = log.lines().collect();
    assert!(written.len() as u64 >= rounds * ROWS_PER_ROUND, "{} rows, {context}", written.len());
    assert!(seen.rows == written, "what was seen is not what was written, {context}");
    let mut client = DaemonClient::connect(&socket(&herd), herd.dir().root()).unwrap();
    client.send_command(&DaemonCommand::Stop(StopMode::KeepJobs), None).unwrap();
    life.ended();
}

#[test]
fn a_job_is_followed_from_before_its_start_to_its_end_with_what_is_being_said() {
    // Between two chunks there is time to send the first one: a delta whose row is known is not sent.
    let mut herd = Herd::of(
        "agents:\n  - name: worker\n    runtime: scripted\n    instances: {max_concurrent: 1}\n    script:\n      \
         - repeat: 12\n        do: [{run: 'read line < gate'}, {say: one two three, chunks: 3, delay: 200ms}]\n",
    );
    let (mut life, mut client) = herd.begin(&[]);
    let (first, second) = (trigger(&mut client, "worker"), trigger(&mut client, "worker"));
    let socket = socket(&herd);
    let mut streams = [&first, &second].map(|job| Stream::open(&socket, &path(job), None));
    let mut seen = [Seen::default(), Seen::default()];
    // The second waits while the first stands at the gate. Somebody listens to that soon.
    while seen[0].deltas == 0 {
        herd.let_through(1);
        let next = seen[0].rows.len() + 3;
        seen[0].read(&mut streams[0], next);
        assert!(!seen[0].is_over, "no text came before its row");
    }
    herd.let_through(1000);
    for (seen, stream) in seen.iter_mut().zip(&mut streams) {
        seen.read(stream, usize::MAX);
        assert!(seen.is_over);
        assert_eq!(seen.statuses.last().map(String::as_str), Some("completed"));
    }
    assert_eq!(seen[1].statuses.first().map(String::as_str), Some("pending"));
    let html = format!("{}?as=html&from=0", path(&first));
    let mut stream = Stream::open(&socket, &html, None);
    let row = std::iter::from_fn(|| stream.next()).find(|event| event.name == "row").unwrap();
    assert!(row.data.starts_with('<'), "{row:?}");
    client.send_command(&DaemonCommand::Stop(StopMode::KeepJobs), None).unwrap();
    life.ended();
}

#[test]
fn streams_of_the_fleet_of_sessions_and_of_the_log_tell_and_end_with_the_daemon() {
    let mut herd = Herd::of(
        "agents:\n  - name: worker\n    runtime: scripted\n    script: [{run: 'read line < gate'}, {say: hi}]\n",
    );
    let (mut life, mut client) = herd.begin(&[]);
    let job = trigger(&mut client, "worker");
    let socket = socket(&herd);
    let mut fleet = Stream::open(&socket, "/api/v1/fleet/stream", None);
    let running = std::iter::from_fn(|| fleet.next()).find(|event| {
        let pulse: Json = serde_json::from_str(&event.data).unwrap();
        pulse["running"] == 1
    });
    assert!(running.is_some());
    herd.let_through(1);
    let mut ended = Stream::open(&socket, &path(&job), None);
    Seen::default().read(&mut ended, usize::MAX);
    let session = herd.reader().job(&job).unwrap().unwrap().head.session_id.unwrap();
    let mut rows = Stream::open(&socket, &format!("/api/v1/sessions/{session}/stream"), None);
    let row = rows.next().unwrap();
    assert_eq!((row.id.as_deref(), row.name.as_str()), (Some("0"), "row"));
    let mut log = Stream::open(&socket, "/api/v1/daemon/log/stream?lines=1000", None);
    let first = log.next().unwrap();
    let second = log.next().unwrap();
    assert_eq!(first.name, "line");
    let mut again = Stream::open(&socket, "/api/v1/daemon/log/stream", first.id.as_deref());
    assert_eq!(again.next(), Some(second));
    client.send_command(&DaemonCommand::Stop(StopMode::KeepJobs), None).unwrap();
    for stream in [&mut fleet, &mut rows, &mut log, &mut again] {
        while stream.next().is_some() {}
    }
    assert!(!life.ended(), "it ended by itself");
}
