//! The work tree as it is when a turn ends, recorded before the turn's result is; and as it is before
//! the first turn of a session, recorded before its agent starts.
//!
//! A process of its own does it (`heeler snapshot`): it runs git, whose exit nobody here may take away
//! from it, and it can be ended when it takes too long. Meanwhile nothing more of what the agent says
//! is looked at. That it fails is a row, and no failure of the run. Start at
//! [`RunEventLoop::begin_snapshot`].

use std::future::pending;
use std::io;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::config::RuntimeType;
use heeler_model::message::{AgentMessage, MessageBody};
use heeler_model::outcome::AgentProcessExit;
use heeler_model::recorder::{BEGINNING_KEY, SNAPSHOT_KEY};
use heeler_model::run::{ControlOperation, ControlReplyBody};
use heeler_model::{JobId, error_chain};
use rustix::process::Signal;
use serde_json::{Map, Value as Json};
use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStdout;
use tokio::time::timeout_at;
use uuid::Uuid;

use super::{ActiveRun, RunEventLoop};
use crate::claude::text_args;
use crate::files;
use crate::process::{AgentProcess, LaunchSpec, ProcessTree, SpawnContext};

/// How long a snapshot may take before the run goes on without it.
pub(crate) const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(30);

/// The most that is read of what the process answers.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The variable by which git is found.
const PATH: &str = "PATH";

/// What snapshots are taken with.
#[derive(Debug)]
pub(crate) struct SnapshotProcessOptions {
    /// Our own program.
    pub(crate) program: Utf8PathBuf,
    /// The run's folder, beside which those of other runs are.
    pub(crate) run_dir: Utf8PathBuf,
    /// Where the agent finds its programs.
    pub(crate) path: Option<String>,
    /// How long it may take.
    pub(crate) time_max: Duration,
}

/// A snapshot that is being taken.
#[derive(Debug)]
pub(super) struct SnapshotProcess {
    agent: AgentProcess,
    stdout: Option<ChildStdout>,
    output: Vec<u8>,
    deadline: Instant,
    /// The last entry of the turn; none before the first turn.
    last_message: Option<Uuid>,
}

impl SnapshotProcess {
    /// Waits until the process has answered all or part. Loses nothing when it is given up.
    pub(super) async fn read_more(&mut self) -> io::Result<usize> {
        let Some(answers) = &mut self.stdout else { return pending().await };
        let read = answers.read_buf(&mut self.output);
        match timeout_at(self.deadline.into(), read).await {
            Ok(read) => read,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Says whether more is to come after what was read.
    fn expects_more(&self, read: &io::Result<usize>) -> bool {
        matches!(read, Ok(1..)) && self.output.len() <= ANSWER_BYTES_MAX
    }
}

/// Waits for the snapshot that is being taken, if there is one.
pub(super) async fn read_if_running(snapping: &mut Option<SnapshotProcess>) -> io::Result<usize> {
    match snapping {
        Some(snapping) => snapping.read_more().await,
        None => pending().await,
    }
}

impl RunEventLoop<'_> {
    /// Says whether a message is the end of a turn before which a snapshot is due.
    pub(super) fn needs_snapshot_before(&self, message: &AgentMessage) -> bool {
        let ActiveRun { spec, side_reply: aside, ending, .. } = &*self.run;
        matches!(message.body, MessageBody::Result(_))
            && message.parent_tool_use_id.is_none()
            && spec.workspaces.is_some()
            && spec.runtime != RuntimeType::Command
            && aside.is_none()
            && ending.is_none()
            && !self.snapshot_taken
    }

    /// Starts to take one; says whether it is being taken.
    pub(super) fn begin_snapshot(&mut self) -> bool {
        let Some(message) = self.run.recorder.last() else { return false };
        self.snapshot = self.run.start_snapshot(self.tree, Some(message));
        self.snapshot.is_some()
    }

    /// Takes what the process answered; goes on once that is all.
    pub(super) fn handle_snapshot_output(&mut self, read: io::Result<usize>) {
        if self.snapshot.as_ref().is_some_and(|snapping| snapping.expects_more(&read)) {
            return;
        }
        let Some(snapping) = self.snapshot.take() else { return };
        self.snapshot_taken = true;
        self.run.finish_snapshot(snapping, &read);
    }
}

impl ActiveRun {
    /// Records the work tree before the first turn of a session. Nobody works in it yet for this run,
    /// so the agent waits.
    ///
    /// Whoever ends the run does not wait for this; whoever asks something else does.
    pub(crate) async fn snapshot_initial_state(&mut self, tree: &ProcessTree) {
        if self.spec.workspaces.is_none() || self.spec.runtime == RuntimeType::Command {
            return;
        }
        let Some(mut snapping) = self.start_snapshot(tree, None) else { return };
        loop {
            let ActiveRun { control, signals, .. } = self;
            let by = tokio::select! {
                read = snapping.read_more() => {
                    if snapping.expects_more(&read) {
                        continue;
                    }
                    return self.finish_snapshot(snapping, &read);
                }
                signal = signals.next_signal() => signal.to_owned(),
                asked = control.next_request() => match &asked.op {
                    ControlOperation::Cancel { by, .. } => {
                        asked.reply(ControlReplyBody::Done);
                        by.clone()
                    }
                    _ => {
                        self.early_requests.push(asked);
                        continue;
                    }
                },
            };
            snapping.agent.signal(Signal::KILL);
            self.ending = Some(AgentProcessExit::Cancelled { by });
            return;
        }
    }

    fn start_snapshot(
        &mut self,
        tree: &ProcessTree,
        message: Option<Uuid>,
    ) -> Option<SnapshotProcess> {
        let ActiveRun { spec, session, snapshot_options: camera, .. } = &*self;
        let folder = spec.workspaces.as_ref()?;
        let name = match message {
            Some(message) => format!("{session}/{message}"),
            // A first turn may begin more than once.
            None => format!("{session}/begin-{}", spec.run),
        };
        let mut args = text_args(&["snapshot", "--into", folder.as_str(), "--name", &name]);
        args.extend(text_args(&["--note", spec.job.as_str()]));
        let launch = LaunchSpec { program: camera.program.clone(), args, env: Vec::new() };
        let env = camera.path.iter().map(|path| (PATH.to_owned(), path.clone())).collect();
        let (cwd, secrets) = (&spec.working_directory, &self.redactor);
        let place = SpawnContext { cwd, env: &env, inherit: &[], secrets };
        match tree.spawn(&launch, &place) {
            Ok(mut agent) => {
                let (answers, until) = (agent.stdout.take(), Instant::now() + camera.time_max);
                agent.stdin = None;
                Some(SnapshotProcess {
                    agent,
                    stdout: answers,
                    output: Vec::new(),
                    deadline: until,
                    last_message: message,
                })
            }
            Err(error) => {
                self.record_snapshot_failure(message, &error_chain(&error));
                None
            }
        }
    }

    /// Takes all that the process answered.
    fn finish_snapshot(&mut self, snapping: SnapshotProcess, read: &io::Result<usize>) {
        let SnapshotProcess { agent, output: answer, last_message: message, .. } = snapping;
        agent.signal(Signal::KILL);
        if matches!(read, Err(error) if error.kind() == io::ErrorKind::TimedOut) {
            let limit = self.snapshot_options.time_max.as_secs_f64();
            return self
                .record_snapshot_failure(message, &format!("it took longer than {limit} s"));
        }
        match parse_answer(&answer) {
            Ok(None) => {}
            Ok(Some(snapshot)) => self.record_snapshot(snapshot, message),
            Err(reason) => self.record_snapshot_failure(message, &reason),
        }
    }

    fn record_snapshot(&mut self, mut snapshot: Map<String, Json>, message: Option<Uuid>) {
        let text = |key: &str| snapshot.get(key).and_then(Json::as_str).unwrap_or_default();
        let (top, commit) = (text("top").to_owned(), text("commit").to_owned());
        let others = other_live_jobs(&self.snapshot_options.run_dir, Utf8Path::new(&top));
        let mut content = format!("the files in {top} are recorded as {commit:.12}");
        if message.is_none() {
            content += ", before the first turn";
        }
        if !others.is_empty() {
            let names: Vec<&str> = others.iter().map(JobId::as_str).collect();
            content += &format!(", while others ran in the same directory: {}", names.join(", "));
        }
        snapshot.insert("others".to_owned(), serde_json::json!(others));
        if message.is_none() {
            snapshot.insert(BEGINNING_KEY.to_owned(), true.into());
        }
        let uuid = message.map(|uuid| ("messageUuid".to_owned(), uuid.to_string().into()));
        let content = self.redactor.redact_text(&content).into_owned();
        let fields = Map::from_iter(uuid);
        let mut rows =
            self.recorder.record_note_with_fields("snapshot", &content, fields, (self.now)());
        for row in &mut rows.session {
            row[SNAPSHOT_KEY] = Json::Object(snapshot.clone());
        }
        self.journal.push(rows);
    }

    fn record_snapshot_failure(&mut self, message: Option<Uuid>, reason: &str) {
        let when = if message.is_some() { "after this turn" } else { "before the first turn" };
        self.add_note("warning", &format!("the files were not recorded {when}: {reason}"));
    }
}

/// Reads what `heeler snapshot` answered: the snapshot, none where there is no repository, or why it
/// failed.
fn parse_answer(answer: &[u8]) -> Result<Option<Map<String, Json>>, String> {
    let Ok(mut answer) = serde_json::from_slice::<Json>(answer) else {
        return Err("the process that records them died".to_owned());
    };
    if let Some(error) = answer["error"].as_str() {
        return Err(error.to_owned());
    }
    match answer[SNAPSHOT_KEY].take() {
        Json::Object(snapshot) => Ok(Some(snapshot)),
        _ => Ok(None),
    }
}

/// Returns the jobs whose runs are live below this folder, this one aside.
fn other_live_jobs(run_dir: &Utf8Path, top: &Utf8Path) -> Vec<JobId> {
    let Some(runs) = run_dir.parent().and_then(|runs| runs.read_dir_utf8().ok()) else {
        return Vec::new();
    };
    let dirs = runs.filter_map(Result::ok).map(camino::Utf8DirEntry::into_path);
    let others = dirs.filter(|dir| dir != run_dir).filter_map(|dir| files::live_job(&dir, top));
    let mut others: Vec<JobId> = others.collect();
    others.sort();
    others.dedup();
    others
}
