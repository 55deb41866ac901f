//! A thread of a link: passes events to the dispatcher, keeps the state of the link, and pauses.
//!
//! Start at [`LinkWorker`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heeler_connect::{ChatApiError, ChatEvent};
use heeler_model::daemon_status::{ChatLinkState, ChatLinkStatus};
use heeler_store::StateDir;
use jiff::Timestamp;

use super::gap_change::ChatGapChange;
use super::rate_limits::note_rate_limit;
use crate::command::{
    CommandReply, DaemonCommandError, DispatcherStoppedError, PendingReply, ReplyCallback,
};
use crate::daemon_handle::DaemonHandle;
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};
use crate::fleet::EngineContext;
use crate::setup::DaemonSetup;

/// Pause after the first failed attempt. Each further pause is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(500);

/// Longest pause. A link that works again is used again within this time.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Most small tasks of a link that wait, such as answers to clicks. Further ones are dropped.
const TASKS_MAX: usize = 16;

/// Interval at which a pausing link looks whether it must end.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The current config, as links see it.
pub(super) type SharedSetup = Arc<Mutex<Arc<DaemonSetup>>>;

/// A thread of a link.
#[derive(Clone)]
pub(super) struct LinkWorker {
    dispatcher: DaemonHandle,
    clock: fn() -> Timestamp,
    dir: StateDir,
    setup: SharedSetup,
    signals: Arc<LinkSignals>,
    status: Arc<Mutex<ChatLinkStatus>>,
    pause: Duration,
}

/// Signals to the thread of a link.
#[derive(Debug, Default)]
pub(super) struct LinkSignals {
    stop: AtomicBool,
    wake: AtomicBool,
}

impl LinkSignals {
    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Ends the present or next pause of a link that looks at intervals.
    pub(super) fn wake(&self) {
        self.wake.store(true, Ordering::Relaxed);
    }
}

/// Small tasks of a link that wait for the platform, on a thread of their own. The thread ends with
/// the link.
#[derive(Clone)]
pub(super) struct LinkTasks(SyncSender<LinkTask>);

type LinkTask = Box<dyn FnOnce() + Send>;

impl LinkTasks {
    pub(super) fn new() -> std::io::Result<LinkTasks> {
        let (sender, tasks) = sync_channel::<LinkTask>(TASKS_MAX);
        let thread = std::thread::Builder::new().name("heeler-clicks".to_owned());
        thread.spawn(move || tasks.into_iter().for_each(|task| task()))?;
        Ok(LinkTasks(sender))
    }

    /// Starts a task, unless too many wait.
    pub(super) fn start(&self, task: impl FnOnce() + Send + 'static) {
        if self.0.try_send(Box::new(task)).is_err() {
            tracing::debug!("a task of a link is dropped: {TASKS_MAX} others wait");
        }
    }
}

/// The dispatcher's answer to an event, which arrives after the commit.
pub(super) type EventReply = Receiver<Result<CommandReply, DaemonCommandError>>;

/// Waits until an event is recorded; returns the short text for the person who clicked.
pub(super) fn wait_for_record(reply: &EventReply) -> Result<String, DaemonCommandError> {
    // A dispatcher that ends drops its reply; the next daemon receives the event again.
    let answer = reply.recv().unwrap_or_else(|_| Err(DispatcherStoppedError.into()));
    answer.map(done_message)
}

/// Returns the text of a reply.
pub(super) fn done_message(reply: CommandReply) -> String {
    match reply {
        CommandReply::Done { message } => message,
        _ => String::new(),
    }
}

impl LinkWorker {
    pub(super) fn new(
        dispatcher: DaemonHandle,
        fleet: &EngineContext,
        setup: SharedSetup,
        signals: Arc<LinkSignals>,
        status: Arc<Mutex<ChatLinkStatus>>,
    ) -> LinkWorker {
        let (clock, dir) = (fleet.now, fleet.dir.clone());
        LinkWorker { dispatcher, clock, dir, setup, signals, status, pause: PAUSE_FIRST }
    }

    /// Passes an event to the dispatcher.
    pub(super) fn pass_event(&self, event: ChatEvent) -> EventReply {
        let (sender, receiver) = sync_channel(1);
        self.pass_event_to(event, Box::new(move |answer| drop(sender.send(answer))));
        receiver
    }

    /// Passes an event to the dispatcher, which calls back after the commit.
    pub(super) fn pass_event_to(&self, event: ChatEvent, then: ReplyCallback) {
        lock(&self.status).last_event_at = Some((self.clock)());
        fault::reach(FaultPoint::ChatReceived);
        let (status, passed_at) = (Arc::clone(&self.status), Instant::now());
        let reply: ReplyCallback = Box::new(move |answer| {
            if answer.is_ok() {
                let record_ms = u64::try_from(passed_at.elapsed().as_millis()).ok();
                lock(&status).record_ms = record_ms;
            }
            then(answer);
        });
        let pending = PendingReply::after_commit(reply);
        let input = DispatchInput::ChatEvent { event: Box::new(event), pending };
        // Without a dispatcher the callback is dropped.
        let _stopped = self.dispatcher.send_input(input);
    }

    /// Passes a change of a gap to the dispatcher.
    pub(super) fn pass_gap(&self, change: ChatGapChange) -> EventReply {
        let (sender, receiver) = sync_channel(1);
        let reply: ReplyCallback = Box::new(move |answer| drop(sender.send(answer)));
        let pending = PendingReply::after_commit(reply);
        let input = DispatchInput::ChatGap { change: Box::new(change), pending };
        // Without a dispatcher the receiver reports it.
        let _stopped = self.dispatcher.send_input(input);
        receiver
    }

    /// Returns the current config.
    pub(super) fn setup(&self) -> Arc<DaemonSetup> {
        Arc::clone(&lock(&self.setup))
    }

    pub(super) fn dir(&self) -> &StateDir {
        &self.dir
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub(super) fn clock(&self) -> fn() -> Timestamp {
        self.clock
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.signals.stop.load(Ordering::Relaxed)
    }

    pub(super) fn note_contact(&mut self) {
        self.pause = PAUSE_FIRST;
        self.set_state(ChatLinkState::Connected, None);
    }

    pub(super) fn note_problem(&self, problem: String) {
        self.warn_once(&problem);
        self.set_state(ChatLinkState::Failed, Some(problem));
    }

    /// Reports a problem of a link that receives messages.
    pub(super) fn note_limitation(&self, problem: String) {
        self.warn_once(&problem);
        lock(&self.status).problem = Some(problem);
    }

    fn warn_once(&self, problem: &String) {
        if lock(&self.status).problem.as_ref() != Some(problem) {
            tracing::warn!(problem, "a problem with a chat platform");
        }
    }

    fn set_state(&self, state: ChatLinkState, problem: Option<String>) {
        let mut status = lock(&self.status);
        if status.state != state {
            status.since = (self.clock)();
        }
        (status.state, status.problem) = (state, problem);
    }

    pub(super) fn pause_after(&mut self, error: &ChatApiError) {
        if self.is_stopped() {
            return;
        }
        self.note_problem(error.to_string());
        let pause = self.next_pause(error);
        self.rest_for(pause);
    }

    /// Returns the pause after a failed call. Each is longer than the one before.
    pub(super) fn next_pause(&mut self, error: &ChatApiError) -> Duration {
        if matches!(error, ChatApiError::RateLimited { .. }) {
            let status = lock(&self.status);
            note_rate_limit(&status.platform, &status.account);
        }
        // A refused token may be accepted later, for example after a failure of the platform.
        if !error.is_transient() {
            self.pause = PAUSE_MAX;
        }
        let pause = self.pause.max(error.retry_after().unwrap_or_default());
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        pause
    }

    /// Pauses, for longer each time.
    pub(super) fn rest(&mut self) {
        let pause = self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.rest_for(pause);
    }

    /// Pauses until the link is woken.
    pub(super) fn rest_until_woken(&self, pause: Duration) {
        self.rest_while(pause, || !self.signals.wake.swap(false, Ordering::Relaxed));
    }

    pub(super) fn rest_for(&self, pause: Duration) {
        self.rest_while(pause, || true);
    }

    fn rest_while(&self, pause: Duration, holds: impl Fn() -> bool) {
        let until = Instant::now() + pause;
        while !self.is_stopped() && Instant::now() < until && holds() {
            let left = until.saturating_duration_since(Instant::now());
            std::thread::park_timeout(left.min(STOP_CHECK_INTERVAL));
        }
    }
}

pub(super) fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
