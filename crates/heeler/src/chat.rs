//! `heeler chat`: connects a [`Conversation`] with the fleet and with a screen or plain lines.
//! Start at [`ChatInputQueue`].

pub(crate) mod daemon_fleet;
mod job_follower;
mod permission_rules;
mod plain_printer;
mod session_previews;
mod worker_watcher;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use heeler_chat::{
    COMMANDS, ChatFleetEvent, ChatOutput, ChatSpeaker, Conversation, EntryRole, SessionFile,
    UserAction,
};
use heeler_tui::{ChatScreen, CompletionSources, TerminalHandle, TerminalTheme};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use self::daemon_fleet::DaemonFleet;
use self::plain_printer::PlainChatPrinter;
pub(crate) use self::session_previews::{SessionPreviewLoader, placeholder_card};
use crate::context;
use crate::failure::CommandResult;
use crate::output;

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
/// Outputs that may wait to be drawn.
const DISPLAY_QUEUE_MAX: usize = 1024;
/// Files of a folder that are examined for completion.
const FILES_MAX: usize = 10_000;
/// Earlier prompts that the user can recall.
const HISTORY_MAX: usize = 200;
/// Interval at which a conversation handles the passing of time.
const TICK: Duration = Duration::from_millis(500);
/// Interval between attempts to write entries that the disk rejected.
const DISK_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Input of a conversation.
enum ChatLoopInput {
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
struct UserRequestSender {
    sender: SyncSender<ChatLoopInput>,
    waiting: Arc<AtomicUsize>,
}

/// The conversation has ended.
struct ConversationEnded;

impl UserRequestSender {
    /// Sends a request, or drops it if too many wait.
    fn send(&self, wish: UserAction) -> Result<(), ConversationEnded> {
        let exits = if wish.is_exit() { QUEUED_EXITS_MAX } else { 0 };
        let one_more = |count| (count < QUEUED_REQUESTS_MAX + exits).then_some(count + 1);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Ok(());
        }
        // The queue has room for everything that is counted.
        self.sender.try_send(ChatLoopInput::UserRequest(wish)).map_err(|_| ConversationEnded)
    }
}

impl ChatInputQueue {
    /// Creates the queue. Every signal that ends a process becomes an exit request.
    pub(crate) fn new() -> CommandResult<ChatInputQueue> {
        let capacity = QUEUED_EVENTS_MAX + QUEUED_REQUESTS_MAX + QUEUED_EXITS_MAX;
        let (tell, inputs) = sync_channel(capacity);
        let inputs = ChatInputQueue {
            sender: tell,
            receiver: inputs,
            deferred: VecDeque::new(),
            waiting: Arc::default(),
            waiting_requests: Arc::default(),
        };
        handle_signals(inputs.request_sender())?;
        Ok(inputs)
    }

    fn request_sender(&self) -> UserRequestSender {
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
    pub(crate) fn forward_events(&self, happened: Receiver<ChatFleetEvent>) {
        let (teller, count) = (self.sender.clone(), Arc::clone(&self.waiting));
        std::thread::spawn(move || {
            for happened in happened {
                while count.load(Ordering::Relaxed) >= QUEUED_EVENTS_MAX {
                    std::thread::sleep(QUEUE_FULL_WAIT);
                }
                count.fetch_add(1, Ordering::Relaxed);
                if teller.send(ChatLoopInput::FleetEvent(happened)).is_err() {
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
    fn next(&mut self, wait: Duration) -> Option<ChatLoopInput> {
        let input = self.deferred.pop_front().or_else(|| self.receiver.recv_timeout(wait).ok())?;
        self.release(&input);
        Some(input)
    }

    /// Returns the next exit request, waiting for up to `wait`. All other input is kept for later.
    fn next_exit_request(&mut self, wait: Duration) -> Option<ChatLoopInput> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let input = self.receiver.recv_timeout(left).ok()?;
            match &input {
                ChatLoopInput::UserRequest(wish) if wish.is_exit() => {
                    self.release(&input);
                    return Some(input);
                }
                _ => self.deferred.push_back(input),
            }
        }
    }
}

fn handle_signals(tell: UserRequestSender) -> std::io::Result<()> {
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
                let wish = tokio::select! {
                    _ = interrupt.recv() => UserAction::Exit,
                    _ = terminate.recv() => {
                        terminates += 1;
                        if terminates == 1 { UserAction::HangUp } else { UserAction::Exit }
                    }
                    // A closing terminal sends several signals. They must not count as a second,
                    // urgent request.
                    _ = hangup.recv() => UserAction::HangUp,
                };
                if tell.send(wish).is_err() {
                    return;
                }
            }
        });
    });
    Ok(())
}

/// Runs a conversation on plain lines until it ends.
pub(crate) fn run_plain(mut talk: Conversation, mut inputs: ChatInputQueue) -> CommandResult {
    let mut face = PlainChatPrinter::new(inputs.request_sender());
    run(&mut talk, &mut inputs, &mut |talk, is_line| {
        if is_line {
            face.on_line_read();
        }
        for shown in talk.take_output() {
            // The reader of stdout is gone: end the conversation in an orderly way.
            if face.show(&shown).is_err() && !talk.has_ended() {
                talk.handle_action(UserAction::HangUp, context::now());
            }
        }
        face.request_line();
    });
    Ok(())
}

/// Runs a conversation on a full screen until it ends.
pub(crate) fn run_on_screen(
    mut talk: Conversation,
    mut inputs: ChatInputQueue,
    mut terminal: TerminalHandle,
    history: Vec<String>,
    env: &BTreeMap<String, String>,
) -> CommandResult {
    let (show, shown) = sync_channel(DISPLAY_QUEUE_MAX);
    let tell = inputs.request_sender();
    let talking = std::thread::spawn(move || {
        let mut last_words = Vec::new();
        run(&mut talk, &mut inputs, &mut |talk, _| {
            for shown in talk.take_output() {
                if let ChatOutput::ExitMessage(text) = &shown {
                    last_words.push(text.clone());
                }
                // The terminal is closed: end the conversation in an orderly way.
                if show.send(shown).is_err() && !talk.has_ended() {
                    talk.handle_action(UserAction::HangUp, context::now());
                }
            }
        });
        last_words
    });
    let completion = CompletionSources { commands: COMMANDS, files: Box::new(complete_files) };
    let mut screen = ChatScreen::new(theme(env), completion, history);
    heeler_tui::run_screen(&mut terminal, &mut screen, shown, context::now, move |wish| {
        // Fails only if the conversation has ended already.
        drop(tell.send(wish));
    });
    let last_words = talking.join();
    drop(terminal);
    let broken = |_| {
        anyhow::anyhow!("the conversation ended unexpectedly; everything shown is saved on disk")
    };
    // The exit messages vanished with the screen. All is saved, so a closed terminal is no failure.
    let told = last_words.map_err(broken)?.into_iter().try_for_each(output::print_line);
    drop(told);
    Ok(())
}

/// Chooses the colours by `NO_COLOR` and `COLORFGBG`.
pub(crate) fn theme(env: &BTreeMap<String, String>) -> TerminalTheme {
    let is_set = |name: &str| env.get(name).is_some_and(|value| !value.is_empty());
    let background = env.get("COLORFGBG").and_then(|it| it.rsplit(';').next()?.parse::<u8>().ok());
    match background {
        _ if is_set("NO_COLOR") => TerminalTheme::plain(),
        Some(7 | 9..=15) => TerminalTheme::light(),
        _ => TerminalTheme::dark(),
    }
}

/// Returns the user's earlier prompts, oldest first.
pub(crate) fn prompt_history(book: &SessionFile) -> Vec<String> {
    let page = book.entries_before(&ChatSpeaker::Coordinator, None, HISTORY_MAX);
    let entries = page.map(|page| page.entries).unwrap_or_default();
    entries
        .iter()
        .filter(|entry| entry.role == EntryRole::User)
        .map(heeler_chat::ConversationEntry::text)
        .collect()
}

/// Returns the paths of files that complete `typed`, sorted.
fn complete_files(typed: &str) -> Vec<String> {
    let (folder, start) =
        typed.rsplit_once('/').map_or(("", typed), |(folder, start)| (folder, start));
    let listed = std::fs::read_dir(if folder.is_empty() { "." } else { folder });
    let mut names: Vec<String> = listed
        .into_iter()
        .flatten()
        .take(FILES_MAX)
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let is_hidden = name.starts_with('.') && !start.starts_with('.');
            let slash = if entry.file_type().is_ok_and(|it| it.is_dir()) { "/" } else { "" };
            let before = if folder.is_empty() { String::new() } else { format!("{folder}/") };
            (name.starts_with(start) && !is_hidden).then(|| format!("{before}{name}{slash}"))
        })
        .collect();
    names.sort();
    names
}

/// Feeds input and clock ticks to the conversation until it ends.
fn run(
    talk: &mut Conversation,
    inputs: &mut ChatInputQueue,
    shows: &mut dyn FnMut(&mut Conversation, bool),
) {
    let mut next_tick = Instant::now() + TICK;
    shows(talk, false);
    while !talk.has_ended() {
        let input = match talk.has_unwritten_entries() {
            true => inputs.next_exit_request(DISK_RETRY_INTERVAL),
            false => inputs.next(next_tick.saturating_duration_since(Instant::now())),
        };
        let heard = match input {
            Some(ChatLoopInput::UserRequest(wish)) => {
                let is_line = matches!(wish, UserAction::SendLine(_));
                talk.handle_action(wish, context::now());
                is_line
            }
            Some(ChatLoopInput::FleetEvent(happened)) => {
                talk.handle_fleet_event(happened, context::now());
                false
            }
            None => {
                talk.tick(context::now());
                next_tick = Instant::now() + TICK;
                false
            }
        };
        shows(talk, heard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_to_leave_is_heard_before_all_else_while_a_disk_takes_nothing() {
        let mut inputs = ChatInputQueue::new().unwrap();
        let line = || UserAction::SendLine("hello".to_owned());
        for wish in [line(), UserAction::Interrupt, UserAction::Exit] {
            assert!(inputs.request_sender().send(wish).is_ok());
        }
        let wish = |input| match input {
            Some(ChatLoopInput::UserRequest(wish)) => Some(wish),
            _ => None,
        };
        assert_eq!(wish(inputs.next_exit_request(DISK_RETRY_INTERVAL)), Some(UserAction::Exit));
        assert_eq!(wish(inputs.next_exit_request(Duration::ZERO)), None);
        assert_eq!(wish(inputs.next(TICK)), Some(line()), "the others are not lost");
        assert_eq!(wish(inputs.next(TICK)), Some(UserAction::Interrupt));
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
