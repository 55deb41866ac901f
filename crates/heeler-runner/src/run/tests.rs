//! Whole runs with real processes. The agents are shell scripts: some only print, some speak
//! Claude's stream.

mod agents;
#[cfg(target_os = "linux")]
mod client_tools;
#[cfg(target_os = "linux")]
mod containers;
mod crashes;
mod disk;
mod external_messages;
mod hand_over;
#[cfg(target_os = "linux")]
mod kept;
mod limits;
mod opening;
mod requests;
mod retries;
mod signatures;
mod snapshots;

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_config::RuntimeType;
use heeler_model::RunId;
use heeler_model::run::{
    AgentLaunchSpec, ControlOperation, ControlReplyBody, ControlRequest, QuestionPolicy,
    RunAuthority, RunSpec, RuntimeLaunchSpec, SessionPlan,
};
use heeler_testkit::{HookedDisk, WAIT_MAX};
use heeler_transcript::{DiskBackend, OsDisk};
use indexmap::IndexMap;
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::*;
use crate::claude::SdkRuntime;
use crate::files::tests::RunFolderFixture;
use crate::native_session;
use crate::process::{LaunchArg, LaunchSpec};
use crate::runtime::AgentRuntime;
use crate::runtime_context::RuntimeContext;

/// A limit that is over by the time that a runner looks which is started late.
const LIMIT: Duration = Duration::from_millis(200);
const LIMIT_MS: u64 = LIMIT.as_millis() as u64;

/// A run that can be changed before it is started.
struct RunFixture {
    folder: RunFolderFixture,
    spec: RunSpec,
    brief: AgentLaunchSpec,
    means: RunnerDependencies,
}

fn now() -> Timestamp {
    "2026-11-15T00:48:57.120Z".parse().unwrap()
}

/// A run of a shell command, whose lines are its messages.
fn command_fixture(script: &str) -> RunFixture {
    let folder = RunFolderFixture::new();
    let mut spec = folder.spec.clone();
    spec.runtime = RuntimeType::Command;
    spec.limits.grace_ms = Some(200);
    std::fs::create_dir(folder.state.join("work")).unwrap();
    spec.working_directory = folder.state.join("work");
    let brief = AgentLaunchSpec {
        protocol: PROTOCOL,
        prompt: "do it".to_owned(),
        env: IndexMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        secrets: Vec::new(),
        shared_secrets: Vec::new(),
        work: RuntimeLaunchSpec::Command { command: script.to_owned() },
        send_files_to: None,
        authority: RunAuthority::default(),
        may_start_jobs: false,
        sandbox: None,
    };
    RunFixture { folder, spec, brief, means: RunnerDependencies::default() }
}

/// A run of a shell script that speaks Claude's stream.
fn stream_fixture(script: &str) -> RunFixture {
    let mut trial = command_fixture(&format!("{STREAM}{script}"));
    trial.spec.runtime = RuntimeType::Scripted;
    trial.means.runtime = stream_of_script;
    trial
}

/// Words for scripts. `$START` and `$SESSION` say how the session starts.
const STREAM: &str = r#"
say() { printf '{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"%s"}]},"session_id":"%s"}\n' "$1" "$SESSION"; }
delta() { printf '{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}},"session_id":"%s"}\n' "$1" "$SESSION"; }
use() { printf '{"type":"assistant","message":{"role":"assistant","content":[{"type":"tool_use","id":"%s","name":"Bash","input":{}}]},"session_id":"%s"}\n' "$1" "$SESSION"; }
used() { printf '{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"%s","content":"done"}]},"session_id":"%s"}\n' "$1" "$SESSION"; }
result() { printf '{"type":"result","subtype":"success","is_error":false,"result":"%s","num_turns":1,"total_cost_usd":0.5,"session_id":"%s"}\n' "$1" "$SESSION"; }
fail() { printf '{"type":"result","subtype":"error_during_execution","is_error":true,"errors":["%s"],"num_turns":0,"session_id":"%s"}\n' "$1" "$SESSION"; }
may() { printf '{"type":"control_request","request_id":"%s","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"%s"}}}\n' "$1" "$2"; }
cancel() { printf '{"type":"control_cancel_request","request_id":"%s"}\n' "$1"; }
# Says that the message in $line was taken.
took() { id=${line##*'"uuid":"'}; printf '{"type":"command_lifecycle","command_uuid":"%s","state":"completed"}\n' "${id%%'"'*}"; }
# Reads lines until one holds the word, or until there is none.
await() { while read -r line; do case "$line" in *"$1"*) return 0;; esac; done; exit 0; }
"#;

fn stream_of_script(surroundings: &RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String> {
    let RuntimeLaunchSpec::Command { command } = &surroundings.host.brief.work else {
        return Err("no script".to_owned());
    };
    let command = command.clone().into_bytes();
    let launch = move |start: &SessionStart| {
        let kind = match start {
            SessionStart::Fresh { .. } => "fresh",
            SessionStart::Resume { .. } => "resume",
            SessionStart::Continue { .. } => "continue",
            SessionStart::Fork { .. } => "fork",
        };
        LaunchSpec {
            program: "/bin/sh".into(),
            args: vec![LaunchArg::File(command.clone())],
            env: vec![
                ("START".to_owned(), kind.to_owned()),
                ("SESSION".to_owned(), start.id().to_string()),
            ],
        }
    };
    Ok(Box::new(SdkRuntime::new(surroundings.host.brief.prompt.clone(), Box::new(launch))))
}

impl RunFixture {
    fn disk(mut self, disk: Arc<dyn DiskBackend>) -> RunFixture {
        self.means.disk = disk;
        self
    }

    fn attended(mut self, timeout_ms: u64) -> RunFixture {
        self.spec.attendance = QuestionPolicy::Person { timeout_ms };
        self
    }

    /// Has what is said at last kept with the result.
    fn keeping(mut self) -> RunFixture {
        self.spec.keep_output = true;
        self
    }

    fn start_session(mut self, start: SessionStart) -> RunFixture {
        self.spec.session = SessionPlan::new(start, "a test");
        self
    }

    /// Goes on with another run in the same state directory.
    fn next_run(&mut self) {
        self.spec.run = RunId::mint(now(), std::array::from_fn(|_| fastrand::u8(..)));
        self.folder.dir = self.folder.state.join("runs").join(self.spec.run.to_string());
        std::fs::create_dir_all(&self.folder.dir).unwrap();
    }

    fn dir(&self) -> Utf8PathBuf {
        self.folder.dir.clone()
    }

    fn session_log(&self) -> Utf8PathBuf {
        session::log_path(&self.spec, self.spec.session.start.id())
    }

    fn rows(path: &Utf8Path) -> Vec<Json> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn job_rows(&self) -> Vec<Json> {
        RunFixture::rows(&self.spec.job_log)
    }

    /// Returns what assistant rows of the job say.
    fn said(&self) -> Vec<String> {
        let rows = self.job_rows();
        let said = rows.iter().filter(|row| row["type"] == "assistant" && row["failure"].is_null());
        said.map(|row| row["content"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the texts of the job's rows of our own with this subtype.
    fn notes(&self, subtype: &str) -> Vec<String> {
        let rows = self.job_rows();
        let notes = rows.iter().filter(|row| row["type"] == "system" && row["subtype"] == subtype);
        notes.map(|row| row["content"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Waits for a row of the job that holds the word.
    #[track_caller]
    fn wait_row(&self, word: &str) {
        let log = &self.spec.job_log;
        wait_for(word, || std::fs::read_to_string(log).is_ok_and(|text| text.contains(word)));
    }

    /// Makes a file that the agent waits for.
    fn touch(&self, name: &str) {
        std::fs::write(self.spec.working_directory.join(name), "").unwrap();
    }

    /// Waits for a file that the agent makes.
    #[track_caller]
    fn wait_file(&self, name: &str) {
        wait_for(name, || self.spec.working_directory.join(name).exists());
    }

    fn host(&self) -> RunnerHost {
        let program = self.folder.state.join("heeler");
        RunnerHost::new(program, now, self.brief.clone())
    }

    fn run(&self) -> RunResult {
        self.try_run().unwrap()
    }

    fn try_run(&self) -> Result<RunResult, RunnerError> {
        self.folder.write_spec(&self.spec);
        run_with(&self.folder.dir, self.spec.clone(), &self.host(), &self.means)
    }

    /// Starts the run beside the test; returns when it can be talked to.
    fn start(&self) -> LiveRunFixture {
        self.folder.write_spec(&self.spec);
        let (dir, spec, host) = (self.folder.dir.clone(), self.spec.clone(), self.host());
        let RunnerDependencies { disk, lines, snapshot_time_max, runtime, .. } = &self.means;
        let means = RunnerDependencies {
            disk: Arc::clone(disk),
            lines: *lines,
            snapshot_time_max: *snapshot_time_max,
            runtime: *runtime,
            ..RunnerDependencies::default()
        };
        let runner = std::thread::spawn(move || run_with(&dir, spec, &host, &means).unwrap());
        wait_for("started.json", || self.dir().join("started.json").exists());
        LiveRunFixture { runner, started: self.started() }
    }

    /// Returns what the runner said when it started.
    fn started(&self) -> RunStartRecord {
        let bytes = std::fs::read(self.dir().join("started.json")).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Starts the run on its disk, which hangs: its runner looks at nothing until the agent has made
    /// the file and [`LIMIT`] is over.
    fn start_late(&self, disk: &disk::BadDisk, file: &str) -> LiveRunFixture {
        let hung = disk.writes.lock().unwrap();
        let running = self.start();
        let begin = Instant::now();
        self.wait_file(file);
        wait_for("the limit", || begin.elapsed() > LIMIT);
        drop(hung);
        running
    }

    /// The same on a disk that does nothing else, to the run's end.
    fn run_late(mut self, file: &str) -> (RunFixture, RunResult) {
        let disk = Arc::new(HookedDisk::<disk::BadDisk>::default());
        self.means.disk = disk.clone();
        let result = self.start_late(&disk, file).finish();
        (self, result)
    }
}

/// Waits for something that is under way.
#[track_caller]
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < WAIT_MAX, "{what} does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_gone(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    // A process that nobody has waited for yet is dead all the same.
    status.map_or(true, |status| status.contains(") Z "))
}

/// A run that is under way.
struct LiveRunFixture {
    runner: JoinHandle<RunResult>,
    started: RunStartRecord,
}

impl LiveRunFixture {
    fn client(&self) -> RunTestClient {
        let stream = UnixStream::connect(&self.started.socket).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        RunTestClient { stream: BufReader::new(stream), id: 0 }
    }

    /// Returns a client that is told everything from now on.
    fn subscriber(&self) -> RunTestClient {
        let mut client = self.client();
        assert_eq!(client.ask(ControlOperation::Subscribe), ControlReplyBody::Done);
        client
    }

    fn finish(self) -> RunResult {
        self.runner.join().unwrap()
    }
}

struct RunTestClient {
    stream: BufReader<UnixStream>,
    id: u64,
}

impl RunTestClient {
    fn send(&mut self, op: ControlOperation) {
        self.id += 1;
        let request = ControlRequest { protocol: PROTOCOL, id: self.id, op };
        let mut line = serde_json::to_vec(&request).unwrap();
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).unwrap();
    }

    /// Asks and returns the reply; what is told before it is dropped.
    fn ask(&mut self, op: ControlOperation) -> ControlReplyBody {
        self.send(op);
        self.reply()
    }

    fn reply(&mut self) -> ControlReplyBody {
        loop {
            let line = self.next();
            assert_ne!(line, Json::Null, "the run ended without a reply");
            if line["id"] == self.id {
                return serde_json::from_value(line).unwrap();
            }
        }
    }

    fn refused(&mut self, op: ControlOperation) -> String {
        match self.ask(op) {
            ControlReplyBody::Refused { reason } => reason,
            reply => panic!("not refused: {reply:?}"),
        }
    }

    /// Returns the next line, `Null` at the end.
    fn next(&mut self) -> Json {
        let mut line = String::new();
        match self.stream.read_line(&mut line).unwrap() {
            0 => Json::Null,
            _ => serde_json::from_str(&line).unwrap(),
        }
    }

    /// Returns the next event of this kind that holds the word; those before it are dropped.
    #[track_caller]
    fn hear(&mut self, kind: &str, word: &str) -> Json {
        loop {
            let line = self.next();
            assert_ne!(line, Json::Null, "the run ended before {kind} {word}");
            if line["event"] == kind && line.to_string().contains(word) {
                return line;
            }
        }
    }
}

fn status(client: &mut RunTestClient) -> heeler_model::run::RunState {
    match client.ask(ControlOperation::Status) {
        ControlReplyBody::Status(state) => state,
        reply => panic!("no status: {reply:?}"),
    }
}

fn class(result: &RunResult) -> Option<ErrorClass> {
    result.error.as_ref().map(|error| error.class)
}

fn cancel(now: bool) -> ControlOperation {
    ControlOperation::Cancel { now, by: "ann".to_owned() }
}
