//! `heeler chat`: connects a [`Conversation`] with the fleet and with a screen or plain lines.
//! Start at [`run_plain`] and [`run_on_screen`].

pub(crate) mod agent_commands;
pub(crate) mod daemon_fleet;
mod file_index;
mod input_queue;
mod job_facts;
mod job_follower;
mod line_questions;
mod permission_rules;
mod plain_printer;
mod session_previews;
mod shell_command;
mod worker_watcher;

use std::collections::BTreeMap;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_chat::{
    AgentSlashCommand, COMMANDS, ChatOutput, ChatSpeaker, Conversation, EntryRole, SessionFile,
    UserAction,
};
use heeler_tui::{ChatScreen, CommandCompletion, CompletionSources, TerminalHandle, TerminalTheme};

pub(crate) use self::daemon_fleet::DaemonFleet;
use self::file_index::FileIndex;
pub(crate) use self::input_queue::ChatInputQueue;
use self::input_queue::ChatLoopInput;
use self::plain_printer::PlainChatPrinter;
pub(crate) use self::session_previews::{SessionPreviewLoader, placeholder_card};
use crate::failure::CommandResult;
use crate::job_watch::KeyboardInput;
use crate::output;
use crate::process_env;

/// Outputs that may wait to be drawn.
const DISPLAY_QUEUE_MAX: usize = 1024;
/// Earlier prompts that the user can recall.
const HISTORY_MAX: usize = 200;
/// Interval at which a conversation handles the passing of time.
const TICK: Duration = Duration::from_millis(500);
/// Interval between attempts to write entries that the disk rejected.
const DISK_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Runs a conversation on plain lines until it ends. With a keyboard, its person answers questions.
pub(crate) fn run_plain(
    mut conversation: Conversation,
    mut inputs: ChatInputQueue,
    keyboard: Option<KeyboardInput>,
) -> CommandResult {
    let mut printer = PlainChatPrinter::new(inputs.request_sender(), keyboard);
    run(&mut conversation, &mut inputs, &mut |conversation, is_line| {
        if is_line {
            printer.on_line_read();
        }
        // Output is taken only after it was saved, so everything printed here survives a kill.
        for shown in conversation.take_output() {
            // The reader of stdout is gone: end the conversation in an orderly way.
            if printer.show(&shown).is_err() && !conversation.has_ended() {
                conversation.handle_action(UserAction::HangUp, process_env::now());
            }
        }
        printer.request_line();
    });
    Ok(())
}

/// Facts that the screen of a conversation needs.
pub(crate) struct ChatScreenOptions {
    pub(crate) theme: TerminalTheme,
    /// Earlier prompts, oldest first.
    pub(crate) history: Vec<String>,
    /// Commands of the agent, for the menu.
    pub(crate) agent_commands: Vec<AgentSlashCommand>,
    /// Directory of the agent, for completion of files.
    pub(crate) folder: Utf8PathBuf,
}

/// Returns the commands for the menu: ours, then the agent's.
fn complete_commands(own: Vec<AgentSlashCommand>) -> Vec<CommandCompletion> {
    let ours = COMMANDS.iter().map(|(name, args, about)| CommandCompletion {
        name: (*name).to_owned(),
        args: (*args).to_owned(),
        about: (*about).to_owned(),
    });
    let own = own.into_iter().map(|command| CommandCompletion {
        name: command.name,
        // A command of the agent may take arguments; only the agent knows.
        args: "…".to_owned(),
        about: format!("{} (of the agent)", command.about),
    });
    ours.chain(own).collect()
}

/// Runs a conversation on a full screen until it ends.
pub(crate) fn run_on_screen(
    mut conversation: Conversation,
    mut inputs: ChatInputQueue,
    mut terminal: TerminalHandle,
    screen: ChatScreenOptions,
) -> CommandResult {
    let (show, shown) = sync_channel(DISPLAY_QUEUE_MAX);
    let sender = inputs.request_sender();
    // The screen needs this thread for the terminal, so the conversation gets its own.
    let talking = std::thread::spawn(move || {
        let mut last_words = Vec::new();
        run(&mut conversation, &mut inputs, &mut |conversation, _| {
            for shown in conversation.take_output() {
                // The screen shows them too, but they vanish when the terminal is restored.
                if let ChatOutput::ExitMessage(text) = &shown {
                    last_words.push(text.clone());
                }
                // The terminal is closed: end the conversation in an orderly way.
                if show.send(shown).is_err() && !conversation.has_ended() {
                    conversation.handle_action(UserAction::HangUp, process_env::now());
                }
            }
        });
        last_words
    });
    let files = FileIndex::start(screen.folder);
    let completion = CompletionSources {
        commands: complete_commands(screen.agent_commands),
        files: Box::new(move |typed| files.complete(typed)),
    };
    let mut screen = ChatScreen::new(screen.theme, completion, screen.history);
    heeler_tui::run_screen(&mut terminal, &mut screen, shown, process_env::now, move |action| {
        // Fails only if the conversation has ended already.
        drop(sender.send(action));
    });
    // The conversation may still save entries or stop workers after the screen has closed.
    let last_words = talking.join();
    // Restore the terminal before anything is printed to it.
    drop(terminal);
    let broken = |_| {
        anyhow::anyhow!("the conversation ended unexpectedly; everything shown is saved on disk")
    };
    // The exit messages vanished with the screen. All is saved, so a closed terminal is no failure.
    let printed = last_words.map_err(broken)?.into_iter().try_for_each(output::print_line);
    drop(printed);
    Ok(())
}

/// Chooses the colours by `NO_COLOR` and `COLORFGBG`.
pub(crate) fn theme(env: &BTreeMap<String, String>) -> TerminalTheme {
    // An empty NO_COLOR counts as not set, as no-color.org says.
    let is_set = |name: &str| env.get(name).is_some_and(|value| !value.is_empty());
    // The value is `foreground;background` or `foreground;default;background`.
    let background = env.get("COLORFGBG").and_then(|it| it.rsplit(';').next()?.parse::<u8>().ok());
    match background {
        _ if is_set("NO_COLOR") => TerminalTheme::plain(),
        // Of the 16 ANSI colours, 8 is dark grey; all others from 7 on are light.
        Some(7 | 9..=15) => TerminalTheme::light(),
        _ => TerminalTheme::dark(),
    }
}

/// Returns the user's earlier prompts, oldest first.
pub(crate) fn prompt_history(session_file: &SessionFile) -> Vec<String> {
    let page = session_file.entries_before(&ChatSpeaker::Coordinator, None, HISTORY_MAX);
    // Without its history the conversation still works.
    let entries = page.map(|page| page.entries).unwrap_or_default();
    entries
        .iter()
        .filter(|entry| entry.role == EntryRole::User)
        .map(heeler_chat::ConversationEntry::text)
        .collect()
}

/// Feeds input and clock ticks to the conversation until it ends.
fn run(
    conversation: &mut Conversation,
    inputs: &mut ChatInputQueue,
    shows: &mut dyn FnMut(&mut Conversation, bool),
) {
    let mut next_tick = Instant::now() + TICK;
    // A resumed conversation has output before its first input.
    shows(conversation, false);
    while !conversation.has_ended() {
        // Entries are shown only once written; while the disk rejects them, nothing may follow.
        let input = match conversation.has_unwritten_entries() {
            true => inputs.next_exit_request(DISK_RETRY_INTERVAL),
            false => inputs.next(next_tick.saturating_duration_since(Instant::now())),
        };
        let is_line_read = match input {
            Some(ChatLoopInput::UserRequest(action)) => {
                let is_line = matches!(action, UserAction::SendLine(_));
                conversation.handle_action(action, process_env::now());
                is_line
            }
            Some(ChatLoopInput::FleetEvent(event)) => {
                conversation.handle_fleet_event(event, process_env::now());
                false
            }
            None => {
                conversation.tick(process_env::now());
                next_tick = Instant::now() + TICK;
                false
            }
        };
        shows(conversation, is_line_read);
    }
}
