//! A conversation with a fleet: what holds its parts together. Start at [`ChatInputQueue`].

pub(crate) mod daemon_fleet;
mod job_follower;
mod permission_rules;
mod plain_printer;
mod session_previews;
mod worker_watcher;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
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

/// How many happenings wait to be taken; what follows runs has to wait then, never a person.
const QUEUED_EVENTS_MAX: usize = 1024;
/// How long it waits before it looks again.
const QUEUE_FULL_WAIT: Duration = Duration::from_millis(2);
/// How many things wait to be drawn.
const DISPLAY_QUEUE_MAX: usize = 1024;
/// How many files of a folder are looked at for completion.
const FILES_MAX: usize = 10_000;
/// How many of the person's lines can be called back.
const HISTORY_MAX: usize = 200;
/// How often time passes for a conversation.
const TICK: Duration = Duration::from_millis(500);
/// How often it is tried again to write what a disk did not take.
const DISK_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// What a conversation takes.
enum ChatLoopInput {
    /// Of a person.
    UserRequest(UserAction),
    /// Of the fleet.
    FleetEvent(ChatFleetEvent),
}

/// Where everything comes together that a conversation takes.
pub(crate) struct ChatInputQueue {
    sender: Sender<ChatLoopInput>,
    receiver: Receiver<ChatLoopInput>,
    /// What came while nothing could be taken.
    deferred: VecDeque<ChatLoopInput>,
    waiting: Arc<AtomicUsize>,
}

impl ChatInputQueue {
    /// Makes every signal that ends a process a wish to leave.
    pub(crate) fn new() -> CommandResult<ChatInputQueue> {
        let (tell, inputs) = channel();
        handle_signals(tell.clone())?;
        let (late, waiting) = (VecDeque::new(), Arc::new(AtomicUsize::new(0)));
        Ok(ChatInputQueue { sender: tell, receiver: inputs, deferred: late, waiting })
    }

    /// Takes what happens in a fleet too.
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

    /// Says whether somebody wants to leave before there is a conversation.
    pub(crate) fn is_exit_requested(&mut self) -> bool {
        self.next_exit_request(Duration::ZERO).is_some()
    }

    /// Returns what came first, if something comes in time.
    fn next(&mut self, wait: Duration) -> Option<ChatLoopInput> {
        self.deferred.pop_front().or_else(|| self.receiver.recv_timeout(wait).ok())
    }

    /// Returns the next wish to leave, if one comes in time. All else stays for later.
    fn next_exit_request(&mut self, wait: Duration) -> Option<ChatLoopInput> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.receiver.recv_timeout(left).ok()? {
                ChatLoopInput::UserRequest(wish) if wish.is_exit() => {
                    return Some(ChatLoopInput::UserRequest(wish));
                }
                other => self.deferred.push_back(other),
            }
        }
    }
}

fn handle_signals(tell: Sender<ChatLoopInput>) -> std::io::Result<()> {
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
                    // A terminal that is closed tells it in several ways: none of them hurries.
                    _ = hangup.recv() => UserAction::HangUp,
                };
                if tell.send(ChatLoopInput::UserRequest(wish)).is_err() {
                    return;
                }
            }
        });
    });
    Ok(())
}

/// Holds a conversation in lines until it ends.
pub(crate) fn run_plain(mut talk: Conversation, mut inputs: ChatInputQueue) -> CommandResult {
    let mut face = PlainChatPrinter::new(inputs.sender.clone());
    run(&mut talk, &mut inputs, &mut |talk, is_line| {
        if is_line {
            face.on_line_read();
        }
        for shown in talk.take_output() {
            // Whoever read has gone: the conversation ends as it should.
            if face.show(&shown).is_err() && !talk.has_ended() {
                talk.handle_action(UserAction::HangUp, context::now());
            }
        }
        face.request_line();
    });
    Ok(())
}

/// Holds a conversation on a screen until it ends.
pub(crate) fn run_on_screen(
    mut talk: Conversation,
    mut inputs: ChatInputQueue,
    mut terminal: TerminalHandle,
    history: Vec<String>,
    env: &BTreeMap<String, String>,
) -> CommandResult {
    let (show, shown) = sync_channel(DISPLAY_QUEUE_MAX);
    let tell = inputs.sender.clone();
    let talking = std::thread::spawn(move || {
        let mut last_words = Vec::new();
        run(&mut talk, &mut inputs, &mut |talk, _| {
            for shown in talk.take_output() {
                if let ChatOutput::ExitMessage(text) = &shown {
                    last_words.push(text.clone());
                }
                // A closed terminal: the conversation ends as it should.
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
        // It has ended already.
        drop(tell.send(ChatLoopInput::UserRequest(wish)));
    });
    let last_words = talking.join();
    drop(terminal);
    let broken = |_| anyhow::anyhow!("the conversation broke off; everything shown is on disk");
    // They went with the screen. All is saved, so a terminal that is gone is no failure.
    let told = last_words.map_err(broken)?.into_iter().try_for_each(output::print_line);
    drop(told);
    Ok(())
}

/// Chooses the colours.
pub(crate) fn theme(env: &BTreeMap<String, String>) -> TerminalTheme {
    let is_set = |name: &str| env.get(name).is_some_and(|value| !value.is_empty());
    let background = env.get("COLORFGBG").and_then(|it| it.rsplit(';').next()?.parse::<u8>().ok());
    match background {
        _ if is_set("NO_COLOR") => TerminalTheme::plain(),
        Some(7 | 9..=15) => TerminalTheme::light(),
        _ => TerminalTheme::dark(),
    }
}

/// Returns what the person said before, oldest first.
pub(crate) fn prompt_history(book: &SessionFile) -> Vec<String> {
    let page = book.entries_before(&ChatSpeaker::Coordinator, None, HISTORY_MAX);
    let entries = page.map(|page| page.entries).unwrap_or_default();
    entries
        .iter()
        .filter(|entry| entry.role == EntryRole::User)
        .map(heeler_chat::ConversationEntry::text)
        .collect()
}

/// Names the files of a folder that begin so.
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

/// Hands in what comes, and time, until the conversation is over.
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
                inputs.waiting.fetch_sub(1, Ordering::Relaxed);
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
            inputs.sender.send(ChatLoopInput::UserRequest(wish)).unwrap();
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
}
