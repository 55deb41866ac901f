//! The event loop of a run: every event passes through here while an agent runs.
//!
//! It waits for the first of many sources (an output line, a request, a deadline, the agent's exit)
//! and handles it. Agent output is recorded before the next line is read, so a disk that accepts no
//! rows stops the agent, not the loop. It makes no decision about sessions and results. Start at
//! [`RunEventLoop::run`].

mod agent_connection;
mod agent_output;
mod client_calls;
mod companion_wait;
mod effects;
mod lease_check;
mod open_calls;
mod requests;
mod running_host_servers;
mod side_reply;
mod snapshot;
mod streamed_message;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_model::AgentSessionId;
use heeler_model::outcome::{AgentProcessExit, RunOutcomeBuilder};
use heeler_model::recorder::TranscriptRecorder;
use heeler_model::redact::SecretRedactor;
use heeler_model::run::{QuestionAnswer, RunSpec, SessionStart};
use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::{Value as Json, json};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use uuid::Uuid;

use crate::client_tools::{ClientTerminals, TerminalContext};
use crate::control::{PendingControlRequest, RunControlServer};
use crate::deadlines::{RunDeadlineAction, RunDeadlines};
use crate::host_contact::LeaseWatch;
use crate::input_writer::AgentInputWriter;
use crate::line_reader::AgentLineReader;
use crate::mcp::{InjectedMcpServers, McpBridgeEndpoint, ToolNote, ToolQuestion};
use crate::process::{AgentProcess, ProcessTree, TerminationReport};
use crate::questions::RunQuestions;
use crate::runtime::{AgentRuntime, RuntimeEffect};
use crate::session;
use crate::signals::RunnerSignals;
use crate::stderr_log::AgentStderrLog;
use crate::transcript_writer::RunTranscriptWriter;

pub(crate) use agent_connection::{AgentConnection, AgentExit};
use agent_output::{
    buffered_bytes, fill_lines, fill_stderr, line_effects, spill_malformed_line, wait_until,
};
pub(crate) use companion_wait::COMPANION_WAIT_MAX;
use companion_wait::CompanionWait;
use open_calls::{FinishedCall, OpenCalls};
pub(crate) use running_host_servers::RunningHostServers;
pub(crate) use side_reply::SideReply;
use snapshot::SnapshotProcess;
pub(crate) use snapshot::{SNAPSHOT_TIME_MAX, SnapshotProcessOptions};
use streamed_message::StreamedMessage;

/// Time slice for processing lines before other event sources are checked.
const READ_TIME_MAX: Duration = Duration::from_millis(10);

/// State that lives as long as the run, across restarts of its agent.
pub(crate) struct ActiveRun {
    pub(crate) spec: RunSpec,
    /// Session that rows are written to.
    pub(crate) session: AgentSessionId,
    pub(crate) now: fn() -> Timestamp,
    pub(crate) started_at: Timestamp,
    pub(crate) runtime: Box<dyn AgentRuntime>,
    pub(crate) redactor: SecretRedactor,
    pub(crate) journal: RunTranscriptWriter,
    pub(crate) recorder: TranscriptRecorder,
    pub(crate) tally: RunOutcomeBuilder,
    pub(crate) control: RunControlServer,
    pub(crate) questions: RunQuestions,
    pub(crate) deadlines: RunDeadlines,
    /// Lease of the run, if it ends without contact of its host with the database.
    pub(crate) lease: Option<LeaseWatch>,
    pub(crate) lines: AgentLineReader,
    pub(crate) signals: RunnerSignals,
    pub(crate) injected: InjectedMcpServers,
    /// MCP servers that run outside of the agent's sandbox.
    pub(crate) host_servers: RunningHostServers,
    pub(crate) note_sender: mpsc::Sender<ToolNote>,
    /// HTTP endpoint of the injected servers.
    pub(crate) endpoint: Option<McpBridgeEndpoint>,
    /// Address of the agent's API, if the proxy of the run adds the credentials.
    pub(crate) api_base: Option<&'static str>,
    pub(crate) notes: mpsc::Receiver<ToolNote>,
    pub(crate) tool_questions: mpsc::Receiver<ToolQuestion>,
    /// Waiting senders of injected tools' questions, by question ID.
    pub(crate) question_replies: HashMap<String, oneshot::Sender<QuestionAnswer>>,
    /// Questions about the network, by their ID: host and port.
    pub(crate) network_questions: HashMap<String, String>,
    /// Reason that the run is being ended; `None` while it may continue.
    pub(crate) ending: Option<AgentProcessExit>,
    pub(crate) last_line_at: Option<Timestamp>,
    /// The agent had the session before this run.
    pub(crate) session_is_known: bool,
    /// The agent has produced output in its session.
    pub(crate) has_spoken: bool,
    pub(crate) disk_failure: Option<effects::DiskFailure>,
    /// Collected output while the agent is asked something outside the conversation; otherwise
    /// `None`.
    pub(crate) side_reply: Option<SideReply>,
    pub(crate) snapshot_options: SnapshotProcessOptions,
    pub(crate) terminal_context: TerminalContext,
    /// True if the agent's process may stay after its turn.
    pub(crate) may_keep_agent: bool,
    /// Longest time for which the end of a turn waits for other processes of an agent that may stay.
    pub(crate) companion_wait_max: Duration,
    /// The agent's process, if it has ended its turn and stays.
    pub(crate) kept_agent: Option<AgentConnection>,
    /// Requests that arrived before the agent was started.
    pub(crate) early_requests: Vec<PendingControlRequest>,
    /// Replies to the messages with IDs: `Err` with the reason of a refusal.
    pub(crate) message_outcomes: HashMap<Uuid, Result<(), String>>,
}

impl ActiveRun {
    /// Records a note of the runner. It may quote agent output, so it is redacted.
    pub(crate) fn add_note(&mut self, subtype: &str, content: &str) {
        let rows =
            self.recorder.record_note(subtype, &self.redactor.redact_text(content), (self.now)());
        self.journal.push(rows);
    }

    /// Records the note of an injected tool.
    fn record_note(&mut self, note: &ToolNote) {
        let content = note.content();
        let content = self.redactor.redact_text(&content);
        let mut fields = note.fields();
        self.redactor.redact_json(&mut fields);
        let Json::Object(fields) = fields else { return };
        let rows =
            self.recorder.record_note_with_fields(note.subtype(), &content, fields, (self.now)());
        self.journal.push(rows);
    }

    /// Records the conversation's identity and the reason it was started or continued.
    pub(crate) fn record_session_start(&mut self, start: &SessionStart, reason: &str) {
        let mut rows = self.recorder.record_session_start(
            start,
            &self.redactor.redact_text(reason),
            (self.now)(),
        );
        if let SessionStart::Continue { source, .. } = start {
            let messages = session::count_messages(&self.spec, source);
            let from = json!({"sessionId": source, "messages": messages});
            rows.session.iter_mut().for_each(|row| row["continuedFrom"] = from.clone());
        }
        self.journal.push(rows);
    }

    pub(crate) fn record_prompt(&mut self, uuid: Uuid, text: &str) {
        let rows =
            self.recorder.record_prompt(uuid, &self.redactor.redact_text(text), (self.now)());
        self.journal.push(rows);
    }
}

/// One start of an agent.
pub(crate) struct RunEventLoop<'r> {
    run: &'r mut ActiveRun,
    tree: &'r ProcessTree,
    agent: AgentProcess,
    /// Program of the agent.
    program: Utf8PathBuf,
    input: AgentInputWriter<ChildStdin>,
    /// `None` once it is closed.
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    stderr_log: AgentStderrLog,
    /// Effects that the runtime requested, in order.
    pending_effects: VecDeque<RuntimeEffect>,
    /// Message that the agent is producing.
    deltas: Option<StreamedMessage>,
    calls: OpenCalls,
    /// Commands that the runner executes for the agent.
    terminals: ClientTerminals,
    exit: Option<ExitStatus>,
    /// The agent has nothing left to do.
    done: bool,
    /// The agent is done, and its process is to stay.
    stays: bool,
    /// Wait for the processes that an agent at rest still has.
    companion_wait: CompanionWait,
    /// Buffered lines wait to be processed.
    has_unread_lines: bool,
    /// The process tree must be killed now.
    must_kill: bool,
    /// Snapshot in progress; the end of the turn waits for it.
    snapshot: Option<SnapshotProcess>,
    /// The snapshot for the end of the current turn has been taken.
    snapshot_taken: bool,
    /// The process tree is being ended: all its remaining output is in the pipes.
    tree_ended: bool,
}

enum RunLoopEvent {
    Stdout(io::Result<usize>),
    Stderr(io::Result<usize>),
    InputWritten,
    Exited(ExitStatus),
    RequestReceived(PendingControlRequest),
    Signalled(&'static str),
    CallFinished(FinishedCall),
    NoteReceived(ToolNote),
    QuestionReceived(ToolQuestion),
    SnapshotOutput(io::Result<usize>),
    TimerFired,
}

impl<'r> RunEventLoop<'r> {
    pub(crate) fn new(
        run: &'r mut ActiveRun,
        tree: &'r ProcessTree,
        connection: AgentConnection,
        complaints: AgentStderrLog,
    ) -> RunEventLoop<'r> {
        let AgentConnection { agent, program, input, stdout, stderr } = connection;
        RunEventLoop {
            run,
            tree,
            agent,
            program,
            input,
            stdout,
            stderr,
            stderr_log: complaints,
            pending_effects: VecDeque::new(),
            deltas: None,
            calls: OpenCalls::default(),
            terminals: ClientTerminals::default(),
            exit: None,
            done: false,
            stays: false,
            companion_wait: CompanionWait::default(),
            has_unread_lines: false,
            must_kill: false,
            snapshot: None,
            snapshot_taken: false,
            tree_ended: false,
        }
    }

    /// Runs the agent to its end and terminates every process it leaves behind.
    pub(crate) async fn run(mut self, begin: Vec<RuntimeEffect>) -> AgentExit {
        self.pending_effects.extend(begin);
        self.process_lines();
        // These waited while the snapshot before the first turn was taken.
        for request in std::mem::take(&mut self.run.early_requests) {
            self.handle_request(&request);
        }
        // The result of a turn is recorded after its snapshot, so an exit alone does not end the
        // loop.
        loop {
            while (self.exit.is_none() || self.snapshot.is_some())
                && !self.must_kill
                && !self.is_at_rest()
            {
                self.run_iteration().await;
            }
            if !self.is_at_rest() {
                break;
            }
            self.run.host_servers.end(&self.run.injected).await;
            // A process that the turn left behind would act between the turns.
            if self.tree.is_agent_alone(self.agent.pid, &self.program) {
                return self.into_kept();
            }
            match self.companion_wait.next_check(Instant::now(), self.run.companion_wait_max) {
                true => self.run_iteration().await,
                false => self.close_input_when_done(),
            }
        }
        let exit = self.exit.filter(|_| !self.must_kill);
        self.tree_ended = true;
        // Every process ends before the rest is read, so that nothing is added to the pipes
        // meanwhile.
        let ended = self.end_tree().await;
        self.calls.finish_files().await;
        if !ended.survivors.is_empty() {
            tracing::warn!(left = ?ended.survivors, "processes of the run could not be ended");
        }
        crate::fault::point(crate::fault::RunnerFaultPoint::TreeEnded);
        self.input.close();
        self.drain_output().await;
        // No more output is awaited: an unfinished last line counts as a line.
        (self.stdout, self.stderr) = (None, None);
        let stderr = self.stderr_log.finish().to_owned();
        self.record_stderr();
        self.process_lines();
        // The runtime may rely on having seen the whole output by now.
        let code = exit.and_then(|status| status.code());
        self.pending_effects.extend(self.run.runtime.handle_exit(code));
        self.record_notes();
        self.close_all_questions();
        // The rows of these last effects are not written yet.
        self.drain_output().await;
        AgentExit { exit, stderr, kept: None }
    }

    /// Returns true if the agent's process is to stay and nothing of its turn is left to do.
    fn is_at_rest(&self) -> bool {
        self.stays
            && self.exit.is_none()
            && !self.must_kill
            && self.run.ending.is_none()
            && self.snapshot.is_none()
            && self.pending_effects.is_empty()
            && !self.has_unread_lines
            && self.run.lines.is_empty()
            && !self.is_blocked()
            && !self.input.is_waiting()
            && self.stdout.is_some()
    }

    /// Ends the turn without an end of the agent's process.
    fn into_kept(mut self) -> AgentExit {
        let stderr = self.stderr_log.finish().to_owned();
        self.record_stderr();
        self.record_notes();
        let RunEventLoop { agent, program, input, stdout, stderr: pipe, .. } = self;
        let kept = Some(AgentConnection { agent, program, input, stdout, stderr: pipe });
        AgentExit { exit: None, stderr, kept }
    }

    /// Lets an agent that is done exit.
    fn close_input_when_done(&mut self) {
        self.stays = false;
        // An agent that speaks the protocol exits when its input ends.
        self.input.close();
        self.run.deadlines.record_done(Instant::now());
    }

    /// Ends the processes that the agent left behind. This may take a while; control requests are
    /// answered meanwhile.
    async fn end_tree(&mut self) -> TerminationReport {
        let tree = self.tree;
        let mut servers = std::mem::take(&mut self.run.host_servers);
        let injected = (!self.must_kill).then(|| self.run.injected.clone());
        let mut ending = std::pin::pin!(async {
            if let Some(injected) = injected {
                servers.end(&injected).await;
            }
            tree.terminate().await
        });
        loop {
            tokio::select! {
                ended = &mut ending => return ended,
                request = self.run.control.next_request() => self.handle_request(&request),
            }
        }
    }

    /// Records the agent's remaining output. It does not wait for processes that still hold a pipe
    /// open, and waits for the disk only until the run is ended.
    async fn drain_output(&mut self) {
        self.read_stderr();
        // Only what the pipe holds now is read: a process that survived could write forever.
        let mut remaining = self.stdout.as_ref().map_or(0, buffered_bytes);
        loop {
            remaining = self.read_stdout(remaining, READ_TIME_MAX);
            let waits_for_disk = self.is_blocked() && self.run.ending.is_none();
            if !self.has_unread_lines && !waits_for_disk && self.snapshot.is_none() {
                return;
            }
            self.run_iteration().await;
        }
    }

    /// Handles the output and events available now, without waiting.
    fn read_available(&mut self) {
        let remaining = self.stdout.as_ref().map_or(0, buffered_bytes);
        self.read_stdout(remaining, Duration::MAX);
        self.read_stderr();
        if self.exit.is_none() {
            self.exit = self.agent.exit_status();
        }
    }

    /// Reads up to `remaining` bytes that are in the pipe, as time and disk allow; returns the
    /// remainder.
    fn read_stdout(&mut self, mut remaining: usize, time: Duration) -> usize {
        self.process_lines_for(time);
        while remaining > 0
            && !self.has_unread_lines
            && !self.is_blocked()
            && self.snapshot.is_none()
            && let Some(stdout) = &self.stdout
        {
            let read = self.run.lines.fill_now(stdout);
            // After an error nothing more can be read, so nothing remains.
            remaining = remaining.saturating_sub(*read.as_ref().unwrap_or(&remaining));
            self.handle_event(RunLoopEvent::Stdout(read));
            self.process_lines_for(time);
        }
        remaining
    }

    fn read_stderr(&mut self) {
        let mut remaining = self.stderr.as_ref().map_or(0, buffered_bytes);
        while remaining > 0
            && let Some(stderr) = &self.stderr
        {
            let read = self.stderr_log.fill_now(stderr);
            remaining = remaining.saturating_sub(*read.as_ref().unwrap_or(&remaining));
            self.handle_event(RunLoopEvent::Stderr(read));
        }
    }

    async fn run_iteration(&mut self) {
        let begin = Instant::now();
        let wake = self.wake_at();
        let event = self.next_event(wake).await;
        self.companion_wait.record_wake();
        // A machine that was suspended wakes the loop late. The agent was stopped too, so this is
        // no stall.
        let woken = Instant::now();
        if let Some(wake) = wake {
            self.run.deadlines.record_pause(wake.max(begin), woken);
        }
        self.handle_event(event);
        self.process_lines_for(READ_TIME_MAX);
        self.run.deadlines.record_pause(woken, Instant::now());
        self.handle_due();
        self.process_lines_for(READ_TIME_MAX);
    }

    /// Waits for the next event. Every arm is cancel-safe.
    async fn next_event(&mut self, wake: Option<Instant>) -> RunLoopEvent {
        let blocked = self.is_blocked();
        let has_backlog = self.has_unread_lines;
        // Output that is not read fills the pipe, which stops the agent until its rows can be
        // written.
        let held = blocked || self.snapshot.is_some();
        let RunEventLoop {
            run,
            agent,
            input,
            stdout,
            stderr,
            stderr_log: complaints,
            calls,
            exit,
            snapshot: snapping,
            ..
        } = self;
        // The backlog is one source among others, so a flood of output does not delay a request.
        tokio::select! {
            read = fill_lines(&mut run.lines, stdout), if !held && !has_backlog => RunLoopEvent::Stdout(read),
            () = yield_now(), if has_backlog => RunLoopEvent::TimerFired,
            read = fill_stderr(complaints, stderr) => RunLoopEvent::Stderr(read),
            () = input.write_some(), if input.is_waiting() => RunLoopEvent::InputWritten,
            status = agent.wait(), if exit.is_none() => RunLoopEvent::Exited(status),
            request = run.control.next_request() => RunLoopEvent::RequestReceived(request),
            signal = run.signals.next_signal() => RunLoopEvent::Signalled(signal),
            Some(call) = calls.next() => RunLoopEvent::CallFinished(call),
            Some(note) = run.notes.recv(), if !blocked => RunLoopEvent::NoteReceived(note),
            Some(inquiry) = run.tool_questions.recv(), if !blocked => RunLoopEvent::QuestionReceived(inquiry),
            read = snapshot::read_if_running(snapping) => RunLoopEvent::SnapshotOutput(read),
            () = wait_until(wake) => RunLoopEvent::TimerFired,
        }
    }

    /// Handles an event. Effects that the runtime requests are performed later, by `apply_effects`.
    fn handle_event(&mut self, event: RunLoopEvent) {
        match event {
            RunLoopEvent::Stdout(Ok(1..)) => {
                // A tool's note must be recorded before the agent receives the result and can
                // mention it.
                self.record_notes();
                self.run.deadlines.record_output(Instant::now());
            }
            // A failing pipe delivers no more output.
            RunLoopEvent::Stdout(_) => self.stdout = None,
            RunLoopEvent::Stderr(read) => {
                self.stderr_log.flush_buffer();
                self.record_stderr();
                if !matches!(read, Ok(1..)) {
                    self.stderr = None;
                }
            }
            RunLoopEvent::InputWritten => {}
            RunLoopEvent::Exited(status) => self.exit = Some(status),
            RunLoopEvent::RequestReceived(request) => self.handle_request(&request),
            RunLoopEvent::Signalled(signal) => self.handle_signal(signal),
            RunLoopEvent::CallFinished(call) => self.handle_finished_call(call),
            RunLoopEvent::NoteReceived(note) => self.run.record_note(&note),
            RunLoopEvent::QuestionReceived(inquiry) => self.ask_for_tool(inquiry),
            RunLoopEvent::SnapshotOutput(read) => self.handle_snapshot_output(read),
            RunLoopEvent::TimerFired => {}
        }
    }

    /// Records the agent's standard error if the runtime wants it recorded.
    fn record_stderr(&mut self) {
        if let Some(text) = self.stderr_log.take_unrecorded_lines()
            && self.run.runtime.records_stderr()
        {
            self.run.add_note("stderr", &text);
        }
    }

    fn record_notes(&mut self) {
        while let Ok(note) = self.run.notes.try_recv() {
            self.run.record_note(&note);
        }
    }

    fn handle_signal(&mut self, signal: &str) {
        // A second signal means that the gentle end takes too long for the sender.
        let again = self.run.ending.is_some();
        self.cancel(signal.to_owned(), again);
    }

    /// Handles deadlines that have passed.
    fn handle_due(&mut self) {
        let now = Instant::now();
        self.check_lease(now);
        if !self.tree_ended && self.run.deadlines.due_action(now).is_some() {
            // Output produced before the deadline counts, even if it was not read in time.
            self.read_available();
            if self.exit.is_none()
                && let Some(due) = self.run.deadlines.due_action(now)
            {
                self.handle_deadline(due, now);
            }
        }
        // After the agent is gone, only the disk can delay the run.
        let late = self.run.deadlines.timeout_at().is_some_and(|at| at <= now);
        if self.tree_ended && late && self.is_blocked() {
            self.set_ending(self.timeout_ending());
        }
        // An expired question produces a row, which a failing disk does not accept.
        if !self.is_blocked() {
            while let Some(ask) = self.run.questions.find_expired(now) {
                self.expire_question(&ask);
            }
        }
    }

    fn handle_deadline(&mut self, due: RunDeadlineAction, now: Instant) {
        match due {
            RunDeadlineAction::Timeout => {
                let ending = self.timeout_ending();
                self.set_ending(ending);
                self.interrupt(now);
            }
            RunDeadlineAction::Stall => {
                let after_ms = self.run.spec.limits.stall_timeout_ms.unwrap_or(0);
                self.set_ending(AgentProcessExit::Stalled { after_ms });
                self.interrupt(now);
            }
            RunDeadlineAction::Opening => {
                let after_ms = self.run.deadlines.opening_time_max().as_millis();
                let after_ms = u64::try_from(after_ms).unwrap_or(u64::MAX);
                self.set_ending(AgentProcessExit::NotOpened { after_ms });
                self.interrupt(now);
            }
            RunDeadlineAction::Terminate => {
                self.agent.signal(Signal::TERM);
                self.run.deadlines.record_terminate(now);
            }
            RunDeadlineAction::Kill => self.must_kill = true,
        }
    }

    fn timeout_ending(&self) -> AgentProcessExit {
        // A run that waits for the disk until its time is up ends because of the disk.
        match &self.run.disk_failure {
            Some(trouble) => AgentProcessExit::Disk { reason: trouble.reason.clone() },
            None => AgentProcessExit::TimedOut {
                after_ms: self.run.spec.limits.timeout_ms.unwrap_or(0),
            },
        }
    }

    /// Records the reason that the run ends; the first reason is kept.
    fn set_ending(&mut self, ending: AgentProcessExit) {
        if self.run.ending.is_some() {
            return;
        }
        // Each later row names the reason, so that settling knows it if this process dies.
        if let Some((class, why)) = ending.cause() {
            self.run.recorder.set_interruption(class, &self.run.redactor.redact_text(&why));
        }
        self.run.ending = Some(ending);
    }

    /// Asks the agent to end. The runtime's effects for that do not wait for the disk.
    fn interrupt(&mut self, now: Instant) {
        let steps = self.run.runtime.interrupt();
        // Some agents forget their commands when they are cancelled.
        self.terminals.kill_all();
        if steps.is_empty() {
            self.agent.signal(Signal::TERM);
            self.run.deadlines.record_terminate(now);
            return;
        }
        self.run.deadlines.record_interrupt(now);
        for step in steps {
            match step {
                RuntimeEffect::Write(_) | RuntimeEffect::CloseInput | RuntimeEffect::Signal(_) => {
                    self.apply_immediate_effect(step);
                }
                step => self.pending_effects.push_back(step),
            }
        }
    }

    /// Reads lines and performs their effects until none is left or the disk accepts no rows.
    fn process_lines(&mut self) {
        self.process_lines_for(Duration::MAX);
    }

    /// Like `process_lines`, for a limited time, so that a flood of output or a disk that syncs
    /// every row does not delay a request to end the run.
    fn process_lines_for(&mut self, time: Duration) {
        self.has_unread_lines = self.read_lines(time);
        // An agent that waits for another party is silent, which is no stall.
        let waits = !self.run.questions.is_empty()
            || !self.calls.is_empty()
            || self.is_blocked()
            || self.snapshot.is_some()
            || self.run.runtime.waits_for_tool();
        let now = Instant::now();
        self.run.deadlines.set_opening(self.run.runtime.is_opening(), now);
        self.run.deadlines.set_waiting(waits, now);
    }

    /// Returns true if lines were left because time ran out.
    fn read_lines(&mut self, time: Duration) -> bool {
        let begin = Instant::now();
        while self.apply_effects() {
            if begin.elapsed() > time {
                return true;
            }
            let ActiveRun { lines, runtime, .. } = &mut *self.run;
            let line = match self.stdout {
                Some(_) => lines.next_line(),
                None => lines.next_or_last_line(),
            };
            let Some(line) = line else {
                self.pending_effects.extend(runtime.flush_lines());
                match self.pending_effects.is_empty() {
                    true => return false,
                    false => continue,
                }
            };
            let steps = line_effects(line, runtime.as_mut());
            self.pending_effects
                .extend(steps.into_iter().map(|step| spill_malformed_line(step, lines)));
            self.run.last_line_at = Some((self.run.now)());
        }
        false
    }

    /// Returns true if the next output of the agent would have to wait for the disk.
    fn is_blocked(&self) -> bool {
        self.run.disk_failure.is_some()
    }

    /// Returns the time of the next deadline.
    fn wake_at(&self) -> Option<Instant> {
        let run = &self.run;
        let disk = run.disk_failure.as_ref().map(|trouble| trouble.retry_at);
        // Without an agent, only the disk is waited for, and only until the run's timeout.
        let watch = match self.tree_ended {
            false => run.deadlines.next_action().map(|(_, at)| at),
            true => run.deadlines.timeout_at().filter(|_| disk.is_some() && run.ending.is_none()),
        };
        // Expired questions wait for the disk, so they would wake the loop in vain.
        let ask = run.questions.next_expiry().filter(|_| disk.is_none());
        let lease = run.lease.as_ref().filter(|_| !self.tree_ended).map(LeaseWatch::check_at);
        [watch, disk, ask, lease, self.companion_wait.check_at()].into_iter().flatten().min()
    }
}
