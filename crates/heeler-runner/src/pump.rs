//! The one loop of a run: everything that happens while an agent runs passes through here.
//!
//! It waits for the first of many things (a line, a request, a deadline, the agent's end), then
//! does what follows from it. What an agent says is recorded before the next line is read, so a disk
//! that takes no rows stops the agent, not the loop. It decides nothing about sessions and results.
//! Start at [`Pump::run`].

mod people;
mod snapshot;
mod steps;

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use heeler_model::AgentSessionId;
use heeler_model::message::{Body, Message, text_of};
use heeler_model::outcome::{Ending, Tally};
use heeler_model::record::Recorder;
use heeler_model::redact::{Redactor, Stream};
use heeler_model::run::{Answer, RunSpec, SessionStart};
use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::{Value as Json, json};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep_until;
use uuid::Uuid;

use crate::asks::Asks;
use crate::complaints::Complaints;
use crate::control::{Asked, Control};
use crate::journal::Journal;
use crate::limits::{Due, Watch};
use crate::lines::{KEPT_LINE_BYTES_MIN, Line, Lines};
use crate::mcp::{Endpoint, Injected, Inquiry, Note};
use crate::process::{Agent, Ended, Tree};
use crate::runtime::{Runtime, Step};
use crate::session;
use crate::signals::Signals;
use crate::writer::Writer;

use snapshot::Snapping;
pub(crate) use snapshot::{Camera, SNAPSHOT_TIME_MAX};

/// How long lines are looked at before it is looked what else has happened.
const DIGEST_TIME_MAX: Duration = Duration::from_millis(10);

/// What lives as long as the run, however often its agent is started.
pub(crate) struct Run {
    pub(crate) spec: RunSpec,
    /// The session that is written to.
    pub(crate) session: AgentSessionId,
    pub(crate) now: fn() -> Timestamp,
    pub(crate) started_at: Timestamp,
    pub(crate) runtime: Box<dyn Runtime>,
    pub(crate) redactor: Redactor,
    pub(crate) journal: Journal,
    pub(crate) recorder: Recorder,
    pub(crate) tally: Tally,
    pub(crate) control: Control,
    pub(crate) asks: Asks,
    pub(crate) watch: Watch,
    pub(crate) lines: Lines,
    pub(crate) signals: Signals,
    pub(crate) injected: Injected,
    /// Where they can be reached over HTTP.
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) notes: mpsc::Receiver<Note>,
    pub(crate) inquiries: mpsc::Receiver<Inquiry>,
    /// Who waits for the answer to what a tool of ours asked, by the question's name.
    pub(crate) inquiring: HashMap<String, oneshot::Sender<Answer>>,
    /// Why the run is being ended; none while it may go on.
    pub(crate) ending: Option<Ending>,
    pub(crate) last_line_at: Option<Timestamp>,
    /// Whether the agent had the session before this run.
    pub(crate) is_known: bool,
    /// Whether the agent has said anything in its session.
    pub(crate) spoke: bool,
    pub(crate) disk: Option<steps::DiskTrouble>,
    /// What the agent says when it is asked beside the conversation; none while it is part of it.
    pub(crate) aside: Option<Aside>,
    pub(crate) camera: Camera,
    /// What was asked before there was an agent.
    pub(crate) early: Vec<Asked>,
}

/// What an agent said beside the conversation.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    /// The last text.
    pub(crate) said: String,
}

impl Aside {
    fn take(&mut self, message: &Message) {
        let text = match &message.body {
            Body::Assistant(said) if said.api_error.is_none() => {
                said.message.get("content").map(text_of).unwrap_or_default()
            }
            Body::Result(result) if !result.is_error => result.text.clone().unwrap_or_default(),
            _ => return,
        };
        if message.parent_tool_use_id.is_none() && !text.trim().is_empty() {
            self.said = text;
        }
    }
}

impl Run {
    /// Records something of our own. It may repeat what an agent says.
    pub(crate) fn note(&mut self, subtype: &str, content: &str) {
        let rows = self.recorder.note(subtype, &self.redactor.text(content), (self.now)());
        self.journal.push(rows);
    }

    /// Records what a tool of ours has to record.
    fn noted(&mut self, note: &Note) {
        let content = note.content();
        let content = self.redactor.text(&content);
        let mut fields = note.fields();
        self.redactor.json(&mut fields);
        let Json::Object(fields) = fields else { return };
        let rows = self.recorder.note_with(note.subtype(), &content, fields, (self.now)());
        self.journal.push(rows);
    }

    /// Records which conversation it is, and why.
    pub(crate) fn begin_in(&mut self, start: &SessionStart, reason: &str) {
        let mut rows = self.recorder.session(start, &self.redactor.text(reason), (self.now)());
        if let SessionStart::Continue { source, .. } = start {
            let messages = session::messages(&self.spec, source);
            let from = json!({"sessionId": source, "messages": messages});
            rows.session.iter_mut().for_each(|row| row["continuedFrom"] = from.clone());
        }
        self.journal.push(rows);
    }

    /// Records what the agent is asked.
    pub(crate) fn prompt(&mut self, uuid: Uuid, text: &str) {
        let rows = self.recorder.prompt(uuid, &self.redactor.text(text), (self.now)());
        self.journal.push(rows);
    }
}

/// How an agent's process ended.
#[derive(Debug)]
pub(crate) struct AgentEnd {
    /// None when it had to be ended.
    pub(crate) exit: Option<ExitStatus>,
    /// The end of what it wrote to standard error.
    pub(crate) stderr: String,
}

/// One start of an agent.
pub(crate) struct Pump<'r> {
    run: &'r mut Run,
    tree: &'r Tree,
    agent: Agent,
    input: Writer<ChildStdin>,
    /// None once it is closed.
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    complaints: Complaints,
    /// What the runtime wants done, in order.
    todo: VecDeque<Step>,
    /// Text that is still being said, and how many bytes of it were told.
    deltas: Option<(Stream, u64)>,
    calls: JoinSet<(String, Json)>,
    exit: Option<ExitStatus>,
    /// The agent has nothing more to do.
    done: bool,
    /// Lines that were read wait to be looked at.
    behind: bool,
    /// The tree is to be ended now.
    kill: bool,
    /// The work tree is being recorded: the end of the turn waits for that.
    snapping: Option<Snapping>,
    /// It was recorded, for the end of a turn that comes now.
    snapped: bool,
    /// The tree is being ended: all that it will have said is in the pipes.
    ended: bool,
}

/// What happened.
enum Event {
    Output(io::Result<usize>),
    Complaint(io::Result<usize>),
    InputTaken,
    Exited(ExitStatus),
    Asked(Asked),
    Signalled(&'static str),
    Replied { call: String, reply: Json },
    Noted(Note),
    Inquired(Inquiry),
    Snapped(io::Result<usize>),
    Time,
}

impl<'r> Pump<'r> {
    /// Takes a started agent over.
    pub(crate) fn new(
        run: &'r mut Run,
        tree: &'r Tree,
        mut agent: Agent,
        complaints: Complaints,
    ) -> Pump<'r> {
        let input = Writer::new(agent.stdin.take());
        let (stdout, stderr) = (agent.stdout.take(), agent.stderr.take());
        Pump {
            run,
            tree,
            agent,
            input,
            stdout,
            stderr,
            complaints,
            todo: VecDeque::new(),
            deltas: None,
            calls: JoinSet::new(),
            exit: None,
            done: false,
            behind: false,
            kill: false,
            snapping: None,
            snapped: false,
            ended: false,
        }
    }

    /// Runs the agent to its end, whatever that takes, and ends what it leaves behind.
    pub(crate) async fn run(mut self, begin: Vec<Step>) -> AgentEnd {
        self.todo.extend(begin);
        self.digest();
        for asked in std::mem::take(&mut self.run.early) {
            self.asked(&asked);
        }
        while (self.exit.is_none() || self.snapping.is_some()) && !self.kill {
            self.turn().await;
        }
        let exit = self.exit.filter(|_| !self.kill);
        self.ended = true;
        let ended = self.end_tree().await;
        if !ended.left.is_empty() {
            tracing::warn!(left = ?ended.left, "processes of the run could not be ended");
        }
        crate::fault::point(crate::fault::Point::TreeEnded);
        self.input.close();
        self.drain().await;
        // Nobody is waited for any more: what was begun and not ended is a line all the same.
        (self.stdout, self.stderr) = (None, None);
        let stderr = self.complaints.finish().to_owned();
        self.tell_complaints();
        self.digest();
        if let Some(status) = exit {
            self.todo.extend(self.run.runtime.exited(status.code()));
        }
        self.take_notes();
        self.close_asks();
        self.drain().await;
        AgentEnd { exit, stderr }
    }

    /// Ends what the agent leaves behind. That may take a while: whoever asks is answered meanwhile.
    async fn end_tree(&mut self) -> Ended {
        let mut ending = std::pin::pin!(self.tree.end());
        loop {
            tokio::select! {
                ended = &mut ending => return ended,
                asked = self.run.control.next() => self.asked(&asked),
            }
        }
    }

    /// Records what the agent left to say. Whoever still holds a pipe open is not waited for, and the
    /// disk only as long as nobody ends the run.
    async fn drain(&mut self) {
        self.read_stderr();
        let mut left = self.stdout.as_ref().map_or(0, held);
        loop {
            left = self.read_stdout(left, DIGEST_TIME_MAX);
            let waits_for_disk = self.is_blocked() && self.run.ending.is_none();
            if !self.behind && !waits_for_disk && self.snapping.is_none() {
                return;
            }
            self.turn().await;
        }
    }

    /// Takes what the agent has said and done by now, without waiting for more.
    fn catch_up(&mut self) {
        let left = self.stdout.as_ref().map_or(0, held);
        self.read_stdout(left, Duration::MAX);
        self.read_stderr();
        if self.exit.is_none() {
            self.exit = self.agent.exit();
        }
    }

    /// Reads so many bytes that are in the pipe, as far as time and disk allow; returns what is left.
    fn read_stdout(&mut self, mut left: usize, time: Duration) -> usize {
        self.digest_for(time);
        while left > 0
            && !self.behind
            && !self.is_blocked()
            && self.snapping.is_none()
            && let Some(stdout) = &self.stdout
        {
            let read = self.run.lines.fill_now(stdout);
            left = left.saturating_sub(*read.as_ref().unwrap_or(&left));
            self.take(Event::Output(read));
            self.digest_for(time);
        }
        left
    }

    fn read_stderr(&mut self) {
        let mut left = self.stderr.as_ref().map_or(0, held);
        while left > 0
            && let Some(stderr) = &self.stderr
        {
            let read = self.complaints.fill_now(stderr);
            left = left.saturating_sub(*read.as_ref().unwrap_or(&left));
            self.take(Event::Complaint(read));
        }
    }

    async fn turn(&mut self) {
        let begin = Instant::now();
        let wake = self.wake_at();
        let event = self.next(wake).await;
        let woken = Instant::now();
        if let Some(wake) = wake {
            self.run.watch.away(wake.max(begin), woken);
        }
        self.take(event);
        self.digest_for(DIGEST_TIME_MAX);
        self.run.watch.away(woken, Instant::now());
        self.on_time();
        self.digest_for(DIGEST_TIME_MAX);
    }

    /// Waits for whatever happens first. Every arm may be given up without loss.
    async fn next(&mut self, wake: Option<Instant>) -> Event {
        let blocked = self.is_blocked();
        let behind = self.behind;
        let held = blocked || self.snapping.is_some();
        let Pump { run, agent, input, stdout, stderr, complaints, calls, exit, snapping, .. } =
            self;
        tokio::select! {
            read = fill(&mut run.lines, stdout), if !held && !behind => Event::Output(read),
            () = yield_now(), if behind => Event::Time,
            read = complain(complaints, stderr) => Event::Complaint(read),
            () = input.write_some(), if input.is_waiting() => Event::InputTaken,
            status = agent.wait(), if exit.is_none() => Event::Exited(status),
            asked = run.control.next() => Event::Asked(asked),
            signal = run.signals.next() => Event::Signalled(signal),
            Some(Ok((call, reply))) = calls.join_next() => Event::Replied { call, reply },
            Some(note) = run.notes.recv(), if !blocked => Event::Noted(note),
            Some(inquiry) = run.inquiries.recv(), if !blocked => Event::Inquired(inquiry),
            read = snapshot::answered(snapping) => Event::Snapped(read),
            () = wait_until(wake) => Event::Time,
        }
    }

    /// Does what follows from an event. What it makes the runtime want is done by `digest`.
    fn take(&mut self, event: Event) {
        match event {
            Event::Output(Ok(1..)) => {
                // A tool notes what it did before the agent hears of it and can tell of it.
                self.take_notes();
                self.run.watch.heard(Instant::now());
            }
            // A pipe that fails is one that says nothing more.
            Event::Output(_) => self.stdout = None,
            Event::Complaint(read) => {
                self.complaints.keep();
                self.tell_complaints();
                if !matches!(read, Ok(1..)) {
                    self.stderr = None;
                }
            }
            Event::InputTaken => {}
            Event::Exited(status) => self.exit = Some(status),
            Event::Asked(asked) => self.asked(&asked),
            Event::Signalled(signal) => self.signalled(signal),
            Event::Replied { call, reply } => {
                let steps = self.run.runtime.mcp_reply(&call, reply);
                self.todo.extend(steps);
            }
            Event::Noted(note) => self.run.noted(&note),
            Event::Inquired(inquiry) => self.inquire(inquiry),
            Event::Snapped(read) => self.snapped(read),
            Event::Time => {}
        }
    }

    /// Records what the agent wrote to standard error, where that is worth a row.
    fn tell_complaints(&mut self) {
        if let Some(text) = self.complaints.take_told()
            && self.run.runtime.records_complaints()
        {
            self.run.note("stderr", &text);
        }
    }

    fn take_notes(&mut self) {
        while let Ok(note) = self.run.notes.try_recv() {
            self.run.noted(&note);
        }
    }

    fn signalled(&mut self, signal: &str) {
        let again = self.run.ending.is_some();
        self.cancel(signal.to_owned(), again);
    }

    /// Does what has become due.
    fn on_time(&mut self) {
        let now = Instant::now();
        if !self.ended && self.run.watch.due(now).is_some() {
            // What it did in time counts, also when nobody looked in time.
            self.catch_up();
            if self.exit.is_none()
                && let Some(due) = self.run.watch.due(now)
            {
                self.due(due, now);
            }
        }
        // Nothing but the disk can keep a run up whose agent is gone.
        let late = self.run.watch.timeout_at().is_some_and(|at| at <= now);
        if self.ended && late && self.is_blocked() {
            self.end(self.timeout());
        }
        if !self.is_blocked() {
            while let Some(ask) = self.run.asks.overdue(now) {
                self.expire_ask(&ask);
            }
        }
    }

    fn due(&mut self, due: Due, now: Instant) {
        match due {
            Due::Timeout => {
                let ending = self.timeout();
                self.end(ending);
                self.interrupt(now);
            }
            Due::Stall => {
                let after_ms = self.run.spec.limits.stall_timeout_ms.unwrap_or(0);
                self.end(Ending::Stalled { after_ms });
                self.interrupt(now);
            }
            Due::Terminate => {
                self.agent.signal(Signal::TERM);
                self.run.watch.terminated(now);
            }
            Due::Kill => self.kill = true,
        }
    }

    fn timeout(&self) -> Ending {
        match &self.run.disk {
            Some(trouble) => Ending::Disk { reason: trouble.reason.clone() },
            None => Ending::TimedOut { after_ms: self.run.spec.limits.timeout_ms.unwrap_or(0) },
        }
    }

    /// Remembers why the run ends; the first reason counts.
    fn end(&mut self, ending: Ending) {
        if self.run.ending.is_some() {
            return;
        }
        if let Some((class, why)) = ending.cause() {
            self.run.recorder.interrupted(class, &self.run.redactor.text(&why));
        }
        self.run.ending = Some(ending);
    }

    /// Ends the run because a person wants it, gently unless `now`.
    fn cancel(&mut self, by: String, now: bool) {
        // A run that has its result is no longer cancelled; what keeps it up is ended all the same.
        let first = self.run.ending.is_none() && !self.done;
        if first && !self.ended {
            self.end(Ending::Cancelled { by });
            self.interrupt(Instant::now());
        }
        if self.ended && self.is_blocked() {
            let reason = self.run.disk.as_ref().map(|disk| disk.reason.clone());
            self.end(Ending::Disk { reason: reason.unwrap_or_default() });
        }
        self.kill |= now || self.done;
    }

    /// Asks the agent to end. What the runtime wants for that does not wait for the disk.
    fn interrupt(&mut self, now: Instant) {
        let steps = self.run.runtime.interrupt();
        if steps.is_empty() {
            self.agent.signal(Signal::TERM);
            self.run.watch.terminated(now);
            return;
        }
        self.run.watch.interrupted(now);
        for step in steps {
            match step {
                Step::Write(_) | Step::CloseInput | Step::Signal(_) => self.do_now(step),
                step => self.todo.push_back(step),
            }
        }
    }

    /// Reads lines and does what they lead to, until there are none or the disk takes no rows.
    fn digest(&mut self) {
        self.digest_for(Duration::MAX);
    }

    /// The same for a limited time, so that a flood, or a disk that syncs each row, keeps nobody
    /// waiting who wants to end the run.
    fn digest_for(&mut self, time: Duration) {
        self.behind = self.read_lines(time);
        let waits = !self.run.asks.is_empty()
            || !self.calls.is_empty()
            || self.is_blocked()
            || self.snapping.is_some()
            || self.run.runtime.waits_for_tool();
        self.run.watch.hold(waits, Instant::now());
    }

    /// Says whether lines were left for lack of time.
    fn read_lines(&mut self, time: Duration) -> bool {
        let begin = Instant::now();
        while self.work() {
            if begin.elapsed() > time {
                return true;
            }
            let Run { lines, runtime, .. } = &mut *self.run;
            let line = match self.stdout {
                Some(_) => lines.next(),
                None => lines.next_or_last(),
            };
            let Some(line) = line else {
                self.todo.extend(runtime.no_line());
                match self.todo.is_empty() {
                    true => return false,
                    false => continue,
                }
            };
            let steps = line_steps(line, runtime.as_mut());
            self.todo.extend(steps.into_iter().map(|step| with_line_kept(step, lines)));
            self.run.last_line_at = Some((self.run.now)());
        }
        false
    }

    /// Says whether what the agent says next would have to wait for the disk.
    fn is_blocked(&self) -> bool {
        self.run.disk.is_some()
    }

    /// Returns when something becomes due.
    fn wake_at(&self) -> Option<Instant> {
        let run = &self.run;
        let disk = run.disk.as_ref().map(|trouble| trouble.retry_at);
        let watch = match self.ended {
            false => run.watch.next().map(|(_, at)| at),
            true => run.watch.timeout_at().filter(|_| disk.is_some() && run.ending.is_none()),
        };
        let ask = run.asks.next().filter(|_| disk.is_none());
        [watch, disk, ask].into_iter().flatten().min()
    }
}

async fn fill(lines: &mut Lines, stdout: &mut Option<ChildStdout>) -> io::Result<usize> {
    match stdout {
        Some(stdout) => lines.fill(stdout).await,
        None => pending().await,
    }
}

async fn complain(
    complaints: &mut Complaints,
    stderr: &mut Option<ChildStderr>,
) -> io::Result<usize> {
    match stderr {
        Some(stderr) => complaints.fill(stderr).await,
        None => pending().await,
    }
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => pending().await,
    }
}

/// Returns how many bytes a pipe holds.
fn held(pipe: &impl AsFd) -> usize {
    // A pipe always tells; what does not is at its end.
    rustix::io::ioctl_fionread(pipe).map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Returns what a line leads to.
fn line_steps(line: Line<'_>, runtime: &mut dyn Runtime) -> Vec<Step> {
    match line {
        Line::Whole(line) => runtime.line(line),
        Line::Spilled(spilled) => {
            let body = Body::Malformed { reason: spilled.to_string(), text: String::new() };
            vec![Step::Message(Message::of(body))]
        }
    }
}

/// Puts a line that nobody understands into a file where little of it can be recorded.
fn with_line_kept(mut step: Step, lines: &mut Lines) -> Step {
    if let Step::Message(Message { body: Body::Malformed { reason, text }, .. }) = &mut step
        && text.len() >= KEPT_LINE_BYTES_MIN
    {
        let kept = lines.keep(text.as_bytes());
        *reason = format!("{reason}; {}", kept.place());
    }
    step
}
