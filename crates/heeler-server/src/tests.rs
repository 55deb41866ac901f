//! The server and the client with each other, in front of a scripted dispatcher.

mod access;
mod job_lists;
mod pages;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::hooks::ChatServiceUrls;
use heeler_engine::{
    AgentChange, BrowserOperation, CommandReply, DaemonCommand, DaemonCommandError,
    DaemonCommandErrorKind, DaemonHandle, DaemonMode, DaemonSetup, DaemonStatus,
    DispatcherStoppedError, FleetMonitor, HostDrain, RenamedItem, ReplyCallback, RunningJob,
    ScheduleChange, StopMode, WaitingJob, WebhookCall,
};
use heeler_model::{JobRequest, JobStatus, PROMPT_BYTES_MAX, RunId};
use heeler_query::FleetReader;
use heeler_store::StateDir;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::sync::oneshot;

use crate::extractors::{BODY_BYTES_MAX, read_bytes};
use crate::internal::{COMMAND_PATH, HELLO_PATH};
use crate::query_context;
use crate::serve::CONNECTIONS_MAX;
use crate::{
    AccessControl, ConnectionCounter, DaemonClient, DaemonClientError, DaemonInfo, DaemonListeners,
    LiveStreams, PROTOCOL, ServerState, SharedServerState, StateIdentity, WebEndpoint, bind, serve,
};

/// Daemon with an empty store.
pub(crate) fn app(
    folder: &Utf8Path,
    handle: DaemonHandle,
    config: &str,
    env: BTreeMap<String, String>,
) -> SharedServerState {
    let read = |_: &Utf8Path| Ok(config.to_owned());
    let loaded = heeler_config::load(&folder.join("heeler.yaml"), &read, &BTreeMap::new());
    let setup = DaemonSetup {
        config: folder.join("heeler.yaml"),
        content: Default::default(),
        loaded: Arc::new(loaded.unwrap()),
        env,
        home: folder.join("home"),
        sockets: folder.to_owned(),
        protected: Default::default(),
        zone: TimeZone::UTC,
        services: ChatServiceUrls::default(),
    };
    let outlook = FleetMonitor::new(Arc::new(setup));
    let known = outlook.clone();
    let dir = StateDir::create(&folder.join(".heeler")).unwrap();
    let records = FleetReader::new(dir, move || query_context(&known.setup()));
    let (access, live) =
        (Arc::new(AccessControl::new(&WebEndpoint::default())), LiveStreams::new(&outlook));
    let version = "1.2.3".to_owned();
    let now = || Timestamp::UNIX_EPOCH;
    Arc::new(ServerState {
        dispatcher: handle,
        records,
        fleet_monitor: outlook,
        live_streams: live,
        access,
        metrics: Arc::default(),
        expensive_reads: Arc::default(),
        job_lists: Arc::default(),
        reply_redactor: Arc::default(),
        config_editor: None,
        daemon_info: DaemonInfo {
            pid: std::process::id(),
            version: version.clone(),
            state: StateIdentity::of(folder).ok(),
            mode: None,
            surroundings: None,
            url: None,
        },
        version,
        clock: now,
    })
}

/// Server in a thread, with its own directory.
pub(crate) struct SocketServerFixture {
    _temp: tempfile::TempDir,
    socket: Utf8PathBuf,
    connections: ConnectionCounter,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl SocketServerFixture {
    fn new(each: impl FnMut(DaemonCommand, ReplyCallback) + Send + 'static) -> SocketServerFixture {
        SocketServerFixture::with("version: 1\nagents: []\n", BTreeMap::new(), each)
    }

    /// Starts a server with a config and an environment.
    pub(crate) fn with(
        config: &str,
        env: BTreeMap<String, String>,
        each: impl FnMut(DaemonCommand, ReplyCallback) + Send + 'static,
    ) -> SocketServerFixture {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let (listener, socket) = bind(folder, folder).unwrap();
        listener.set_nonblocking(true).unwrap();
        let app = app(folder, DaemonHandle::scripted(each), config, env);
        let connections = ConnectionCounter::default();
        let (stop, stopped) = oneshot::channel::<()>();
        let counted = connections.clone();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let socket = tokio::net::UnixListener::from_std(listener).unwrap();
                let stop = async { drop(stopped.await) };
                serve(DaemonListeners { socket, web: None }, app, &counted, stop).await.unwrap();
            });
        });
        SocketServerFixture {
            _temp: temp,
            socket,
            connections,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn answering(answer: Result<CommandReply, DaemonCommandError>) -> SocketServerFixture {
        SocketServerFixture::new(move |_, reply| reply(answer.clone()))
    }

    fn client(&self) -> DaemonClient {
        DaemonClient::connect(&self.socket, self.socket.parent().unwrap()).unwrap()
    }

    /// Sends raw bytes and returns head and body of the reply.
    pub(crate) fn raw(&self, request: &[u8]) -> (String, String) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        // The server may refuse before it has read everything.
        drop(stream.write_all(request));
        let mut reply = Vec::new();
        drop(stream.read_to_end(&mut reply));
        let reply = String::from_utf8(reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn post(&self, path: &str, body: &str) -> (String, String) {
        let length = body.len();
        self.raw(
            format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
                .as_bytes(),
        )
    }
}

impl SocketServerFixture {
    fn open(&self) -> usize {
        self.connections.open().load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl Drop for SocketServerFixture {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

fn done() -> CommandReply {
    CommandReply::Done { message: "done".to_owned() }
}

fn approval(approve: bool) -> DaemonCommand {
    let text = (!approve).then(|| "no\n\"never\"".to_owned());
    let updated_input = approve.then(|| serde_json::json!({"command": "ls"}));
    let answer = heeler_model::ApprovalAnswer {
        approve,
        text,
        updated_input,
        ..heeler_model::ApprovalAnswer::default()
    };
    let (approval, by) = ("ask-1a2b3c4d".parse().unwrap(), "me".to_owned());
    DaemonCommand::Approval { approval, answer, by }
}

fn every_command() -> Vec<DaemonCommand> {
    let job = || "job-2024-01-19-abc123".parse().unwrap();
    let by = || "me".to_owned();
    let schedule = |change| DaemonCommand::Schedule {
        agent: "web.coder".to_owned(),
        schedule: "a/b c%ü".to_owned(),
        change,
        by: "me".to_owned(),
    };
    let webhook = |delivery: Option<&str>| {
        DaemonCommand::Webhook(Box::new(WebhookCall {
            agent: "web.coder".to_owned(),
            schedule: "a/b c%ü".to_owned(),
            payload: "{\"a\": \"ü\"}\n".to_owned(),
            delivery: delivery.map(str::to_owned),
            mac: None,
            workflow: None,
        }))
    };
    let agent =
        |change| DaemonCommand::Agent { agent: "coder".to_owned(), change, by: "me".to_owned() };
    let prompt = Some("Go\non \"now\"".to_owned());
    let wanted = JobRequest { prompt: prompt.clone(), ..JobRequest::new("coder".parse().unwrap()) };
    vec![
        DaemonCommand::Trigger(Box::new(wanted)),
        DaemonCommand::Cancel { job: job(), now: true, by: by() },
        DaemonCommand::Resume { job: job(), prompt, by: by() },
        DaemonCommand::Resume { job: job(), prompt: None, by: by() },
        DaemonCommand::Retry { job: job(), by: by() },
        approval(true),
        approval(false),
        schedule(ScheduleChange::Enable),
        schedule(ScheduleChange::Disable),
        schedule(ScheduleChange::Set { text: "*/5 * * * *".to_owned() }),
        schedule(ScheduleChange::Reset),
        schedule(ScheduleChange::Trigger),
        webhook(Some("d-1")),
        webhook(None),
        agent(AgentChange::Enable),
        agent(AgentChange::Disable),
        agent(AgentChange::Reset),
        agent(AgentChange::ForgetHosts),
        DaemonCommand::DrainHost { host: "alpha".to_owned(), change: HostDrain::Begin, by: by() },
        DaemonCommand::GiveUpHost { host: "alpha".to_owned(), by: "me".to_owned() },
        agent(AgentChange::ForgetPermissions),
        DaemonCommand::Browser { order: BrowserOperation::EnsureKey, by: by() },
        DaemonCommand::Browser {
            order: BrowserOperation::Remove { browser: "browser-1".to_owned(), owner: None },
            by: by(),
        },
        DaemonCommand::SetJobCost { job: job(), micros: 420_000, by: by() },
        DaemonCommand::Rename { item: RenamedItem::Job(job()), title: "Cart".to_owned(), by: by() },
        DaemonCommand::Reload,
        DaemonCommand::AcceptConfig {
            fingerprint: "ab12".to_owned(),
            load: true,
            by: "me".to_owned(),
        },
        DaemonCommand::Stop(StopMode::Wait { timeout: None }),
        DaemonCommand::Stop(StopMode::Wait { timeout: Some(Duration::from_millis(1500)) }),
        DaemonCommand::Stop(StopMode::Force),
        DaemonCommand::Stop(StopMode::KeepJobs),
        DaemonCommand::Status,
    ]
}

fn every_answer() -> Vec<CommandReply> {
    let job = || "job-2024-01-19-abc123".parse().unwrap();
    let at = Timestamp::UNIX_EPOCH;
    let status = DaemonStatus {
        pid: 7,
        version: "1.2.3".to_owned(),
        since: at,
        mode: DaemonMode::UntilIdle,
        stopping: false,
        config: "/a/heeler.yaml".into(),
        schedules: Vec::new(),
        queue: vec![WaitingJob {
            job: job(),
            agent: "coder".to_owned(),
            priority: -1,
            since: at,
            not_before: Some(at),
            reason: "busy".to_owned(),
        }],
        running: vec![RunningJob {
            job: job(),
            run: RunId::mint(at, [1; 10]),
            agent: "coder".to_owned(),
            schedule: None,
            since: at,
        }],
        parked: Vec::new(),
        budgets: Vec::new(),
        faults: vec!["the disk is full".to_owned()],
        held_change: None,
        chats: Vec::new(),
    };
    vec![
        CommandReply::Job {
            job: job(),
            status: JobStatus::Pending,
            waits: Some("busy".to_owned()),
        },
        done(),
        CommandReply::Reloaded { changes: vec!["agent a is new".to_owned()] },
        CommandReply::Status(Box::new(status)),
    ]
}

#[test]
fn every_command_reaches_the_dispatcher_as_it_was_asked() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hearing = Arc::clone(&heard);
    let rig = SocketServerFixture::new(move |command, reply| {
        hearing.lock().unwrap().push(command);
        reply(Ok(done()));
    });
    let mut client = rig.client();
    for command in every_command() {
        assert_eq!(client.send_command(&command, None).unwrap(), done(), "{command:?}");
    }
    // The caller is the user of the process, whatever the request says.
    let user = heeler_process::login_name(rustix::process::geteuid().as_raw());
    let expected = every_command().into_iter().map(|mut command| {
        command.set_requester(&user);
        command
    });
    assert_eq!(*heard.lock().unwrap(), expected.collect::<Vec<_>>());
}

#[test]
fn every_answer_reaches_whoever_asked() {
    for answer in every_answer() {
        let rig = SocketServerFixture::answering(Ok(answer.clone()));
        assert_eq!(rig.client().send_command(&DaemonCommand::Status, None).unwrap(), answer);
    }
}

#[test]
fn refusals_have_codes_of_their_own_and_reach_whoever_asked() {
    for (kind, code) in [
        (DaemonCommandErrorKind::NotFound, "404 Not Found"),
        (DaemonCommandErrorKind::Busy, "409 Conflict"),
        (DaemonCommandErrorKind::NotAllowed, "403 Forbidden"),
        (DaemonCommandErrorKind::Usage, "400 Bad Request"),
        (DaemonCommandErrorKind::Trouble, "500 Internal Server Error"),
    ] {
        let refused = DaemonCommandError::new(kind, "no").with_hint("do this");
        let rig = SocketServerFixture::answering(Err(refused.clone()));
        let (head, body) = rig.post(COMMAND_PATH, r#""reload""#);
        assert!(head.starts_with(&format!("HTTP/1.1 {code}\r\n")), "{head}");
        assert!(head.contains(&format!("\r\nheeler-protocol: {PROTOCOL}\r\n")), "{head}");
        let word = serde_json::to_string(&kind).unwrap();
        let expected = format!(r#"{{"error":{{"kind":{word},"message":"no","hint":"do this"}}}}"#);
        assert_eq!(body, expected);
        match rig.client().send_command(&DaemonCommand::Reload, None) {
            Err(DaemonClientError::Refused(found)) => assert_eq!(found, refused),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_no_route_or_no_request_is_refused_in_json() {
    let rig =
        SocketServerFixture::new(|command, _| panic!("{command:?} must not reach the dispatcher"));
    for (path, body, code, message) in [
        ("/internal/nowhere", "", "404", "there is no such route"),
        ("/internal/hello", "", "405", ""),
        (COMMAND_PATH, "{", "400", "invalid request"),
        (COMMAND_PATH, r#"{"trigger":{"agent":"../x"}}"#, "400", "is not an agent name"),
        (COMMAND_PATH, r#"{"fire":{}}"#, "400", "unknown variant `fire`"),
        ("/api/v1/nowhere", "", "404", "there is no such route"),
        ("/api/v1/openapi.json", "", "405", "does not support this method"),
        ("/api/v1/jobs", r#"{"agent":"../x"}"#, "400", "is not an agent name"),
        ("/api/v1/jobs", r#"{"agent":"a","force":true}"#, "400", "unknown field `force`"),
    ] {
        let (head, found) = rig.post(path, body);
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{path} {body}: {head}");
        assert!(found.contains(message), "{path} {body}: {found}");
    }
}

#[test]
fn the_longest_prompt_is_heard() {
    let rig = SocketServerFixture::answering(Ok(done()));
    let prompt = Some("x".repeat(PROMPT_BYTES_MAX as usize));
    let longest = JobRequest { prompt, ..JobRequest::new("a".parse().unwrap()) };
    assert_eq!(
        rig.client().send_command(&DaemonCommand::Trigger(Box::new(longest)), None).unwrap(),
        done()
    );
}

#[tokio::test]
async fn a_prompt_has_room_however_it_is_written_and_not_more() {
    // Control characters have the longest JSON encoding.
    let written = serde_json::to_vec("\u{1}").unwrap().len() - 2;
    assert!(BODY_BYTES_MAX > PROMPT_BYTES_MAX as usize * written);
    let long = vec![b' '; BODY_BYTES_MAX + 1];
    let refused = read_bytes(long.into(), BODY_BYTES_MAX).await.unwrap_err();
    assert_eq!(refused.status, 413);
}

#[test]
fn one_connection_too_many_waits_until_another_is_closed() {
    let rig = SocketServerFixture::answering(Ok(done()));
    let hello = format!("GET {HELLO_PATH} HTTP/1.1\r\nhost: x\r\n\r\n");
    let greet = || {
        let mut stream = UnixStream::connect(&rig.socket).unwrap();
        stream.write_all(hello.as_bytes()).unwrap();
        stream
    };
    let mut open: Vec<UnixStream> = (0..CONNECTIONS_MAX).map(|_| greet()).collect();
    for stream in &mut open {
        assert!(stream.read(&mut [0; 16]).unwrap() > 0);
    }
    assert_eq!(rig.open(), CONNECTIONS_MAX);
    let mut waiting = greet();
    waiting.set_nonblocking(true).unwrap();
    assert!(waiting.read(&mut [0; 16]).is_err(), "nobody has accepted it");
    waiting.set_nonblocking(false).unwrap();
    drop(open.pop());
    assert!(waiting.read(&mut [0; 16]).unwrap() > 0);
}

#[test]
fn nobody_answers_where_no_daemon_is() {
    let temp = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(temp.path()).unwrap();
    let nowhere = DaemonClient::connect(&folder.join("none.sock"), folder);
    assert!(matches!(nowhere, Err(DaemonClientError::NoDaemon { .. })), "{nowhere:?}");
    let (dead, socket) = bind(folder, folder).unwrap();
    drop(dead);
    let refused = DaemonClient::connect(&socket, folder);
    assert!(matches!(refused, Err(DaemonClientError::NoDaemon { .. })), "{refused:?}");
}

#[test]
fn what_speaks_otherwise_is_no_daemon() {
    for (reply, reason) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "it sends no protocol version"),
        (
            "HTTP/1.1 200 OK\r\nheeler-protocol: 9\r\ncontent-length: 2\r\n\r\n{}",
            "it speaks protocol 9",
        ),
        (
            "HTTP/1.1 200 OK\r\nheeler-protocol: 2\r\ncontent-length: 2\r\n\r\n{}",
            "its reply is invalid",
        ),
        (
            "HTTP/1.1 418 I'm a teapot\r\nheeler-protocol: 2\r\ncontent-length: 0\r\n\r\n",
            "it replied 418",
        ),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let (listener, socket) = bind(folder, folder).unwrap();
        let stranger = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 1024];
            assert!(stream.read(&mut head).unwrap() > 0);
            stream.write_all(reply.as_bytes()).unwrap();
        });
        let error = DaemonClient::connect(&socket, folder).unwrap_err();
        assert!(matches!(error, DaemonClientError::Protocol { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
        stranger.join().unwrap();
    }
}

#[test]
fn a_daemon_that_serves_another_state_directory_is_sent_nothing() {
    let rig = SocketServerFixture::new(|command, _| panic!("it was sent {command:?}"));
    let other = tempfile::tempdir().unwrap();
    let other = Utf8Path::from_path(other.path()).unwrap();
    let error = DaemonClient::connect(&rig.socket, other).unwrap_err();
    assert!(matches!(error, DaemonClientError::Unproven { .. }), "{error:?}");
    assert!(error.to_string().contains("another state directory"), "{error}");
}

#[test]
fn a_daemon_that_proves_nothing_is_sent_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(temp.path()).unwrap();
    let (listener, socket) = bind(folder, folder).unwrap();
    let old = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 1024];
        assert!(stream.read(&mut head).unwrap() > 0);
        let body = r#"{"pid":7,"version":"0.1.0"}"#;
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\nheeler-protocol: 2\r\ncontent-length: {length}");
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        let mut more = Vec::new();
        stream.read_to_end(&mut more).unwrap();
        more
    });
    let error = DaemonClient::connect(&socket, folder).unwrap_err();
    assert!(matches!(error, DaemonClientError::Outdated { pid: 7, .. }), "{error:?}");
    assert!(old.join().unwrap().is_empty());
}

#[test]
fn a_daemon_that_is_ending_says_that_nothing_was_done() {
    let rig = SocketServerFixture::answering(Err(DispatcherStoppedError.into()));
    let ending = rig.client().send_command(&DaemonCommand::Reload, None);
    assert!(matches!(ending, Err(DaemonClientError::Ending)), "{ending:?}");
    let (head, _) = rig.post(COMMAND_PATH, r#""reload""#);
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
}

#[test]
fn what_a_dispatcher_drops_was_not_done() {
    let rig = SocketServerFixture::new(|_, reply| drop(reply));
    let dropped = rig.client().send_command(&DaemonCommand::Reload, None);
    assert!(matches!(dropped, Err(DaemonClientError::Ending)), "{dropped:?}");
}

#[test]
fn whoever_has_no_more_patience_is_told_so() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeping = Arc::clone(&kept);
    let rig = SocketServerFixture::new(move |_, reply| keeping.lock().unwrap().push(reply));
    let late = rig
        .client()
        .send_command(&DaemonCommand::Reload, Some(Duration::from_millis(10)))
        .unwrap_err();
    assert!(
        matches!(&late, DaemonClientError::Io { source, .. } if source.kind() == std::io::ErrorKind::TimedOut),
        "{late:?}"
    );
    kept.lock().unwrap().clear();
}

#[test]
fn a_connection_counts_while_it_is_open() {
    let rig = SocketServerFixture::answering(Ok(done()));
    assert_eq!(rig.open(), 0, "only one that is accepted counts");
    let client = rig.client();
    assert_eq!(rig.open(), 1);
    assert_eq!(client.daemon_info().pid, std::process::id());
    drop(client);
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while rig.open() > 0 {
        assert!(std::time::Instant::now() < deadline, "{}", rig.open());
        std::thread::yield_now();
    }
}

#[test]
fn an_answer_that_comes_while_the_server_ends_is_still_told() {
    let (sender, asked) = mpsc::channel();
    let mut rig = SocketServerFixture::new(move |_, reply| sender.send(reply).unwrap());
    let mut client = rig.client();
    let waiting = std::thread::spawn(move || {
        client.send_command(&DaemonCommand::Stop(StopMode::Force), None).unwrap()
    });
    let reply = asked.recv().unwrap();
    drop(rig.stop.take());
    reply(Ok(done()));
    assert_eq!(waiting.join().unwrap(), done());
}
