//! Listens to a run's control socket in threads of its own. Start at [`RunListener`].
//!
//! A silent run must not delay rows, and a slow consumer must not delay a run. The threads end soon
//! after the listener is dropped.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_control::{ControlClient, ControlError, EventStreamCloser};
use heeler_model::run::{ControlEvent, ControlOperation, ControlReplyBody, RunState, file};
use heeler_store::is_run_alive;
use heeler_transcript::FollowWaker;

/// Interval at which a run that does not listen is tried again.
const CONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which the run's state report is requested.
const STATE_INTERVAL: Duration = Duration::from_secs(1);
/// Events that may wait for the consumer. Beyond this, the listener waits. The run never waits: it
/// omits rows, which are then read from its transcript.
const EVENTS_WAITING_MAX: usize = 1024;

/// Says whether a listener requests the run's state report every second. The report covers
/// questions that were asked before the listener connected, or that it missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateReports {
    Requested,
    NotRequested,
}

/// Event of a run.
#[derive(Debug)]
pub(super) enum RunListenerEvent {
    Control(Box<ControlEvent>),
    State(Box<RunState>),
    /// The run has ended or its runner is gone. All its rows are written.
    Ended,
}

/// Listener to one run.
#[derive(Debug)]
pub(super) struct RunListener {
    folder: Utf8PathBuf,
    events: Receiver<RunListenerEvent>,
    connection: Arc<Mutex<RunConnection>>,
}

/// Connection to the control socket.
#[derive(Debug, Default)]
struct RunConnection {
    is_closed: bool,
    /// True if no daemon is left that could start the run.
    is_unattended: bool,
    closer: Option<EventStreamCloser>,
}

impl RunListener {
    /// Starts to listen to the run in this folder, which need not have started. The waker is called
    /// after each event.
    pub(super) fn start(
        folder: &Utf8Path,
        waker: &FollowWaker,
        reports: StateReports,
    ) -> io::Result<RunListener> {
        let (sender, events) = sync_channel(EVENTS_WAITING_MAX);
        let connection = Arc::default();
        let thread = RunListenerThread {
            folder: folder.to_owned(),
            sender,
            waker: waker.clone(),
            connection: Arc::clone(&connection),
        };
        let listener = RunListener { folder: folder.to_owned(), events, connection };
        if reports == StateReports::Requested {
            let reporter = thread.clone();
            spawn(move || reporter.forward_states())?;
        }
        spawn(move || thread.forward_events())?;
        Ok(listener)
    }

    pub(super) fn folder(&self) -> &Utf8Path {
        &self.folder
    }

    /// Returns the next event, if there is one.
    pub(super) fn try_next(&self) -> Option<RunListenerEvent> {
        self.events.try_recv().ok()
    }

    /// Records that the daemon is gone: a run that has not started by now never will.
    pub(super) fn set_unattended(&self) {
        lock(&self.connection).is_unattended = true;
    }
}

impl Drop for RunListener {
    fn drop(&mut self) {
        let mut connection = lock(&self.connection);
        connection.is_closed = true;
        if let Some(closer) = connection.closer.take() {
            closer.close();
        }
    }
}

/// Text of the current message, as far as it was received.
#[derive(Default)]
struct ReceivedText(String);

impl ReceivedText {
    /// Returns what is new in an event. The first event of a subscription tells the current message
    /// from its beginning, which an earlier subscription may have told already.
    fn new_part(&mut self, event: ControlEvent, is_first: bool) -> Option<ControlEvent> {
        let ControlEvent::Delta { text, from } = event else { return Some(event) };
        if from != Some(0) {
            self.0.push_str(&text);
            return Some(ControlEvent::Delta { text, from });
        }
        let known = if is_first && text.starts_with(&self.0) { self.0.len() } else { 0 };
        let rest = text[known..].to_owned();
        self.0 = text;
        (!rest.is_empty()).then_some(ControlEvent::Delta { text: rest, from: Some(known as u64) })
    }
}

fn lock(connection: &Mutex<RunConnection>) -> MutexGuard<'_, RunConnection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn(work: impl FnOnce() -> Option<()> + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("run-events".to_owned());
    let handle = thread.spawn(move || {
        // `None` means that the listener is gone, so there is nothing to report.
        let _gone = work();
    });
    handle.map(drop)
}

/// State of the listening threads. Their functions return `None` once the listener is dropped.
#[derive(Clone)]
struct RunListenerThread {
    folder: Utf8PathBuf,
    sender: SyncSender<RunListenerEvent>,
    waker: FollowWaker,
    connection: Arc<Mutex<RunConnection>>,
}

impl RunListenerThread {
    fn send(&self, event: RunListenerEvent) -> Option<()> {
        self.sender.send(event).ok()?;
        self.waker.wake();
        Some(())
    }

    fn check_open(&self) -> Option<()> {
        (!lock(&self.connection).is_closed).then_some(())
    }

    fn forward_events(&self) -> Option<()> {
        let mut message = ReceivedText::default();
        loop {
            match ControlClient::connect_to_run(&self.folder).and_then(ControlClient::subscribe) {
                Ok(events) => {
                    lock(&self.connection).closer = events.closer().ok();
                    // Checked after the closer is known: it is closed with the listener.
                    self.check_open()?;
                    for (number, event) in events.map_while(Result::ok).enumerate() {
                        if let Some(event) = message.new_part(event, number == 0) {
                            self.send(RunListenerEvent::Control(Box::new(event)))?;
                        }
                    }
                }
                // The run is starting.
                Err(ControlError::NotStarted { .. }) => {}
                Err(error) => tracing::debug!(%error, "cannot listen to the run"),
            }
            if self.is_over() {
                return self.send(RunListenerEvent::Ended);
            }
            self.check_open()?;
            std::thread::sleep(CONNECT_INTERVAL);
        }
    }

    fn forward_states(&self) -> Option<()> {
        loop {
            std::thread::sleep(STATE_INTERVAL);
            self.check_open()?;
            match ControlClient::connect_to_run(&self.folder)
                .and_then(|mut control| control.request(ControlOperation::Status))
            {
                Ok(ControlReplyBody::Status(state)) => {
                    self.send(RunListenerEvent::State(Box::new(state)))?;
                }
                Ok(_) | Err(ControlError::Gone { .. }) => return None,
                // The run is starting, or slow to reply.
                Err(_) if !has_result(&self.folder) => {}
                Err(_) => return None,
            }
        }
    }

    /// Returns true if the run has ended or its runner is gone. A run that has not started holds no
    /// lock either, so it is over only if it had started or no daemon is left to start it.
    fn is_over(&self) -> bool {
        has_result(&self.folder)
            || (lock(&self.connection).is_unattended || self.folder.join(file::STARTED).exists())
                && !is_run_alive(&self.folder)
    }
}

fn has_result(folder: &Utf8Path) -> bool {
    folder.join(file::RESULT).exists()
}

#[cfg(test)]
mod tests {
    use heeler_transcript::{LockFile, LockHolder, TranscriptFollower};

    use super::*;

    fn thread() -> (tempfile::TempDir, RunListenerThread, Receiver<RunListenerEvent>) {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap().to_owned();
        let (sender, events) = sync_channel(EVENTS_WAITING_MAX);
        let waker = TranscriptFollower::new().waker();
        (temp, RunListenerThread { folder, sender, waker, connection: Arc::default() }, events)
    }

    #[test]
    fn a_message_that_is_told_again_continues_where_it_was() {
        let delta =
            |text: &str, from| ControlEvent::Delta { text: text.to_owned(), from: Some(from) };
        let mut message = ReceivedText::default();
        assert_eq!(message.new_part(delta("ab", 0), true), Some(delta("ab", 0)));
        assert_eq!(message.new_part(delta("c", 2), false), Some(delta("c", 2)));
        // The same message after another subscription: nothing new, then two letters more.
        assert_eq!(message.new_part(delta("abc", 0), true), None);
        assert_eq!(message.new_part(delta("abcde", 0), true), Some(delta("de", 3)));
        // The next message, which began while there was no connection.
        assert_eq!(message.new_part(delta("xy", 0), true), Some(delta("xy", 0)));
        assert_eq!(message.new_part(delta("x", 0), false), Some(delta("x", 0)));
    }

    #[test]
    fn a_run_that_nobody_is_left_to_start_is_over() {
        let (_temp, thread, events) = thread();
        assert!(!thread.is_over(), "its daemon is about to start it");
        lock(&thread.connection).is_unattended = true;
        thread.forward_events().unwrap();
        assert!(matches!(events.try_recv(), Ok(RunListenerEvent::Ended)));
    }

    #[test]
    fn an_orphan_that_holds_its_lock_is_not_over() {
        let (_temp, thread, _events) = thread();
        lock(&thread.connection).is_unattended = true;
        let holder = LockHolder::this_process("runner", jiff::Timestamp::UNIX_EPOCH);
        let held = LockFile::acquire(&thread.folder.join("lock"), &holder, Duration::ZERO).unwrap();
        assert!(!thread.is_over());
        drop(held);
        assert!(thread.is_over());
    }

    #[test]
    fn a_listener_that_is_dropped_ends_its_threads() {
        let (_temp, thread, events) = thread();
        let connection = Arc::clone(&thread.connection);
        drop(RunListener { folder: thread.folder.clone(), events, connection });
        assert_eq!(thread.forward_events(), None);
        assert_eq!(thread.forward_states(), None);
    }
}
