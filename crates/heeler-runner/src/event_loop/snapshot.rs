//! Snapshots of the working directory: at the end of each turn, before the turn's result is
//! recorded, and before the first turn of a session, before its agent starts.
//!
//! A separate process (`heeler snapshot`) takes them: it runs git, and the exit status of git must
//! not be reaped by the runner; it can also be killed when it takes too long. Meanwhile no agent
//! output is processed. A failure is recorded in a row and does not fail the run. Start at
//! [`RunEventLoop::begin_snapshot`].

use std::future::pending;
use std::io;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::RuntimeType;
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

/// Time limit of a snapshot, after which the run continues without it.
pub(crate) const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(30);

/// Limit on the bytes read of the process's reply.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Variable by which git is found.
const PATH: &str = "PATH";

/// Options for taking snapshots.
#[derive(Debug)]
pub(crate) struct SnapshotProcessOptions {
    /// Path of the Heeler binary.
    pub(crate) program: Utf8PathBuf,
    /// Directory of the run; its siblings are those of other runs.
    pub(crate) run_dir: Utf8PathBuf,
    /// Value of `PATH` for the agent.
    pub(crate) path: Option<String>,
    pub(crate) time_max: Duration,
}

/// Snapshot being taken.
#[derive(Debug)]
pub(super) struct SnapshotProcess {
    agent: AgentProcess,
    stdout: Option<ChildStdout>,
    output: Vec<u8>,
    deadline: Instant,
    /// Last entry of the turn; `None` before the first turn.
    last_message: Option<Uuid>,
}

impl SnapshotProcess {
    /// Waits for more of the process's reply. Cancel-safe.
    pub(super) async fn read_more(&mut self) -> io::Result<usize> {
        let Some(answers) = &mut self.stdout else { return pending().await };
        let read = answers.read_buf(&mut self.output);
        match timeout_at(self.deadline.into(), read).await {
            Ok(read) => read,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Returns true if more output is expected after this read.
    fn expects_more(&self, read: &io::Result<usize>) -> bool {
        matches!(read, Ok(1..)) && self.output.len() <= ANSWER_BYTES_MAX
    }
}

/// Waits for the snapshot being taken; never completes if there is none.
pub(super) async fn read_if_running(snapping: &mut Option<SnapshotProcess>) -> io::Result<usize> {
    match snapping {
        Some(snapping) => snapping.read_more().await,
        None => pending().await,
    }
}

impl RunEventLoop<'_> {
    /// Returns true if a message ends a turn and a snapshot is due before it.
    pub(super) fn needs_snapshot_before(&self, message: &AgentMessage) -> bool {
        let ActiveRun { spec, side_reply: aside, ending, .. } = &*self.run;
        // A sub-agent's result ends no turn, and a run that is being ended does not wait for git.
        matches!(message.body, MessageBody::Result(_))
            && message.parent_tool_use_id.is_none()
            && spec.workspaces.is_some()
            && spec.runtime != RuntimeType::Command
            && aside.is_none()
            && ending.is_none()
            && !self.snapshot_taken
    }

    /// Starts a snapshot; returns true if it is in progress.
    pub(super) fn begin_snapshot(&mut self) -> bool {
        // Without an entry there is no turn that the snapshot could belong to.
        let Some(message) = self.run.recorder.last() else { return false };
        self.snapshot = self.run.start_snapshot(self.tree, Some(message));
        self.snapshot.is_some()
    }

    /// Handles output of the snapshot process; the run continues once it is complete.
    pub(super) fn handle_snapshot_output(&mut self, read: io::Result<usize>) {
        if self.snapshot.as_ref().is_some_and(|snapping| snapping.expects_more(&read)) {
            return;
        }
        let Some(snapping) = self.snapshot.take() else { return };
        // This also holds after a failure: the result must not wait for a second attempt.
        self.snapshot_taken = true;
        self.run.finish_snapshot(snapping, &read);
    }
}

impl ActiveRun {
    /// Takes a snapshot before the first turn of a session. The agent starts afterwards, so that
    /// the run itself changes nothing meanwhile.
    ///
    /// A request to end the run does not wait for this; other requests do.
    pub(crate) async fn snapshot_initial_state(&mut self, tree: &ProcessTree) {
        if self.spec.workspaces.is_none() || self.spec.runtime == RuntimeType::Command {
            return;
        }
        let Some(mut snapping) = self.start_snapshot(tree, None) else { return };
        loop {
            tokio::select! {
                read = snapping.read_more() => {
                    if snapping.expects_more(&read) {
                        continue;
                    }
                    return self.finish_snapshot(snapping, &read);
                }
                by = self.wait_for_cancel() => {
                    // The snapshot is useless now, and nothing may delay the end of the run.
                    snapping.agent.signal(Signal::KILL);
                    self.ending = Some(AgentProcessExit::Cancelled { by });
                    return;
                }
            }
        }
    }

    /// Waits for a request to end the run before its agent starts, and returns its author. Other
    /// requests are kept for later. Cancel-safe.
    pub(crate) async fn wait_for_cancel(&mut self) -> String {
        loop {
            let ActiveRun { control, signals, .. } = self;
            tokio::select! {
                signal = signals.next_signal() => return signal.to_owned(),
                request = control.next_request() => match &request.op {
                    ControlOperation::Cancel { by, .. } => {
                        if let Some(by) = request.authorize(by) {
                            request.reply(ControlReplyBody::Done);
                            return by;
                        }
                    }
                    _ => self.early_requests.push(request),
                },
            }
        }
    }

    /// Writes the rows so far, for people who watch the run while nothing else writes them.
    pub(crate) fn flush_notes(&mut self) {
        let ActiveRun { journal, control, .. } = self;
        // A full disk is handled when the agent writes.
        drop(journal.flush(&mut |at, row| control.publish_row(at, row)));
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
            // A first turn may begin more than once, so the name contains the run.
            None => format!("{session}/begin-{}", spec.run),
        };
        let mut args = text_args(&["snapshot", "--into", folder.as_str(), "--name", &name]);
        args.extend(text_args(&["--note", spec.job.as_str()]));
        let launch = LaunchSpec { program: camera.program.clone(), args, env: Vec::new() };
        let env = camera.path.iter().map(|path| (PATH.to_owned(), path.clone())).collect();
        let (cwd, secrets) = (&spec.working_directory, &self.redactor);
        let spawn_context = SpawnContext { cwd, env: &env, inherit: &[], secrets };
        // The agent's sandbox hides the repository of snapshots.
        match tree.spawn_outside(&launch, &spawn_context) {
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

    /// Handles the complete reply of the process.
    fn finish_snapshot(&mut self, snapping: SnapshotProcess, read: &io::Result<usize>) {
        let SnapshotProcess { agent, output: answer, last_message: message, .. } = snapping;
        // It has replied or is too late; it must not read files while the next turn changes them.
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
        // A reader must know that the changes may stem from another job.
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

/// Parses the reply of `heeler snapshot`: the snapshot, `None` if there is no repository, or the
/// reason for a failure.
fn parse_answer(answer: &[u8]) -> Result<Option<Map<String, Json>>, String> {
    let Ok(mut answer) = serde_json::from_slice::<Json>(answer) else {
        return Err("the snapshot process died".to_owned());
    };
    if let Some(error) = answer["error"].as_str() {
        return Err(error.to_owned());
    }
    match answer[SNAPSHOT_KEY].take() {
        Json::Object(snapshot) => Ok(Some(snapshot)),
        _ => Ok(None),
    }
}

/// Returns the jobs of other live runs that work in this directory or below it.
fn other_live_jobs(run_dir: &Utf8Path, top: &Utf8Path) -> Vec<JobId> {
    // A directory that cannot be listed does not prevent the snapshot: the list only helps people.
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
