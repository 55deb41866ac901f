//! Queue of all input of a conversation: the user's requests, signals and events of the fleet. Start
//! at [`ChatInputQueue`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use heeler_chat::{ChatFleetEvent, UserAction};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::CommandResult;

/// Fleet events that may wait to be handled. Beyond this, the threads that follow runs wait; input
/// from the user never waits.
const QUEUED_EVENTS_MAX: usize = 1024;
/// Requests of the user that may wait to be handled. Further ones are dropped: the conversation has
/// not looked at its input for that many requests. The sender must not wait, because the
/// conversation may wait for the screen.
const QUEUED_REQUESTS_MAX: usize = 256;
/// Requests to leave that may wait in addition, so that they are never dropped for others.
const QUEUED_EXITS_MAX: usize = 16;
/// Delay before a full queue is checked again.
const QUEUE_FULL_WAIT: Duration = Duration::from_millis(2);

/// Input of a conversation.
pub(super) enum ChatLoopInput {
    UserRequest(UserAction),
    FleetEvent(ChatFleetEvent),
}

/// Queue that joins all input of a conversation: user actions, signals and fleet events.
pub(crate) struct ChatInputQueue {
    sender: SyncSender<ChatLoopInput>,
    receiver: Receiver<ChatLoopInput>,
    /// Input that arrived while only exit requests were handled.
    deferred: VecDeque<ChatLoopInput>,
    /// Fleet events that are not handled.
    waiting: Arc<AtomicUsize>,
    /// Requests of the user that are not handled.
    waiting_requests: Arc<AtomicUsize>,
}

/// Sends requests of the user to a conversation. Never waits.
#[derive(Clone)]
pub(super) struct UserRequestSender {
    sender: SyncSender<ChatLoopInput>,
    waiting: Arc<AtomicUsize>,
}

/// The conversation has ended.
pub(super) struct ConversationEnded;

impl UserRequestSender {
    /// Sends a request, or drops it if too many wait.
    pub(super) fn send(&self, action: UserAction) -> Result<(), ConversationEnded> {
        let exits = if action.is_exit() { QUEUED_EXITS_MAX } else { 0 };
        // `Relaxed` is enough: the counter only limits, and the channel orders the requests.
        let one_more = |count| (count < QUEUED_REQUESTS_MAX + exits).then_some(count + 1);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Ok(());
        }
        // The queue has room for everything that is counted.
        self.sender.try_send(ChatLoopInput::UserRequest(action)).map_err(|_| ConversationEnded)
    }
}

impl ChatInputQueue {
    /// Creates the queue. Every signal that ends a process becomes an exit request.
    pub(crate) fn new() -> CommandResult<ChatInputQueue> {
        // Each kind is counted against its own limit, so no kind can take the room of another.
        let capacity = QUEUED_EVENTS_MAX + QUEUED_REQUESTS_MAX + QUEUED_EXITS_MAX;
        let (sender, inputs) = sync_channel(capacity);
        let inputs = ChatInputQueue {
            sender,
            receiver: inputs,
            deferred: VecDeque::new(),
            waiting: Arc::default(),
            waiting_requests: Arc::default(),
        };
        handle_signals(inputs.request_sender())?;
        Ok(inputs)
    }

    pub(super) fn request_sender(&self) -> UserRequestSender {
        let (sender, waiting) = (self.sender.clone(), Arc::clone(&self.waiting_requests));
        UserRequestSender { sender, waiting }
    }

    /// Counts an input as handled.
    fn release(&self, input: &ChatLoopInput) {
        match input {
            ChatLoopInput::UserRequest(_) => self.waiting_requests.fetch_sub(1, Ordering::Relaxed),
            ChatLoopInput::FleetEvent(_) => self.waiting.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Also takes the events of a fleet, from a thread of its own.
    pub(crate) fn forward_events(&self, events: Receiver<ChatFleetEvent>) {
        let (sender, count) = (self.sender.clone(), Arc::clone(&self.waiting));
        std::thread::spawn(move || {
            for event in events {
                // Only this thread adds events, so check and increment need not be atomic.
                while count.load(Ordering::Relaxed) >= QUEUED_EVENTS_MAX {
                    std::thread::sleep(QUEUE_FULL_WAIT);
                }
                count.fetch_add(1, Ordering::Relaxed);
                if sender.send(ChatLoopInput::FleetEvent(event)).is_err() {
                    return;
                }
            }
        });
    }

    /// Returns true if the user wants to leave before there is a conversation.
    pub(crate) fn is_exit_requested(&mut self) -> bool {
        self.next_exit_request(Duration::ZERO).is_some()
    }

    /// Returns the oldest input, waiting for up to `wait`.
    pub(super) fn next(&mut self, wait: Duration) -> Option<ChatLoopInput> {
        // Deferred input is older than everything in the channel.
        let input = self.deferred.pop_front().or_else(|| self.receiver.recv_timeout(wait).ok())?;
        self.release(&input);
        Some(input)
    }

    /// Returns the next exit request, waiting for up to `wait`. All other input is kept for later.
    pub(super) fn next_exit_request(&mut self, wait: Duration) -> Option<ChatLoopInput> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let input = self.receiver.recv_timeout(left).ok()?;
            match &input {
                ChatLoopInput::UserRequest(action) if action.is_exit() => {
                    self.release(&input);
                    return Some(input);
                }
                // It stays counted, so the limits also hold for deferred input.
                _ => self.deferred.push_back(input),
            }
        }
    }
}

fn handle_signals(sender: UserRequestSender) -> std::io::Result<()> {
    // The handlers are installed before this returns; no signal ends the process after that.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(guard);
    std::thread::spawn(move || {
        runtime.block_on(async {
            let mut terminates = 0;
            loop {
                let action = tokio::select! {
                    _ = interrupt.recv() => UserAction::Exit,
                    _ = terminate.recv() => {
                        terminates += 1;
                        // The second SIGTERM is urgent: the first one had no effect.
                        if terminates == 1 { UserAction::HangUp } else { UserAction::Exit }
                    }
                    // A closing terminal sends several signals. They must not count as a second,
                    // urgent request.
                    _ = hangup.recv() => UserAction::HangUp,
                };
                if sender.send(action).is_err() {
                    return;
                }
            }
        });
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(500);

    #[test]
    fn who_wants_to_leave_is_heard_before_all_else_while_a_disk_takes_nothing() {
        let mut inputs = ChatInputQueue::new().unwrap();
        let line = || UserAction::SendLine("hello".to_owned());
        for action in [line(), UserAction::Interrupt, UserAction::Exit] {
            assert!(inputs.request_sender().send(action).is_ok());
        }
        let action = |input| match input {
            Some(ChatLoopInput::UserRequest(action)) => Some(action),
            _ => None,
        };
        assert_eq!(action(inputs.next_exit_request(WAIT)), Some(UserAction::Exit));
        assert_eq!(action(inputs.next_exit_request(Duration::ZERO)), None);
        assert_eq!(action(inputs.next(WAIT)), Some(line()), "the others are not lost");
        assert_eq!(action(inputs.next(WAIT)), Some(UserAction::Interrupt));
    }

    #[test]
    fn requests_beyond_the_limit_are_dropped_but_not_the_wish_to_leave() {
        let mut inputs = ChatInputQueue::new().unwrap();
        let sender = inputs.request_sender();
        for _ in 0..QUEUED_REQUESTS_MAX + 100 {
            assert!(sender.send(UserAction::Interrupt).is_ok());
        }
        assert!(sender.send(UserAction::Exit).is_ok());
        assert!(inputs.is_exit_requested(), "all others are kept for later");
        assert!(sender.send(UserAction::Interrupt).is_ok());
        let mut count = 0;
        while inputs.next(Duration::ZERO).is_some() {
            count += 1;
        }
        assert_eq!(count, QUEUED_REQUESTS_MAX);
        assert_eq!(inputs.waiting_requests.load(Ordering::Relaxed), 0);
    }
}
