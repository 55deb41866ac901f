//! Plain-line mode of a conversation, without a terminal. Reads one line of standard input each
//! time the agent is ready; prints the agent's messages to standard output, everything else to
//! standard error. Start at [`PlainChatPrinter`].

use std::io::BufRead as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use heeler_chat::{ChatOutput, ChatSpeaker, ConversationEntry, EntryRole, UserAction};

use super::input_queue::UserRequestSender;
use crate::failure::CommandResult;
use crate::output;

/// Characters of a tool call's input that are shown.
const ARGS_CHARS: usize = 100;

/// Prints a conversation as plain lines.
pub(crate) struct PlainChatPrinter {
    /// True while the agent works; the next line is read only when it is idle.
    busy: bool,
    ready: SyncSender<()>,
    is_waiting: bool,
}

impl PlainChatPrinter {
    /// Starts the thread that reads standard input.
    pub(crate) fn new(sender: UserRequestSender) -> PlainChatPrinter {
        // One request at a time: a line is read only when its answer can be shown after it.
        let (ready, wanted) = sync_channel(1);
        std::thread::spawn(move || read_lines(&wanted, &sender));
        PlainChatPrinter { busy: false, ready, is_waiting: false }
    }

    /// Requests the next line if the agent is idle.
    pub(crate) fn request_line(&mut self) {
        if !self.busy && !self.is_waiting {
            self.is_waiting = true;
            // Fails only if the reader ended at the end of standard input.
            let _ended = self.ready.try_send(());
        }
    }

    /// Records that the requested line was read.
    pub(crate) fn on_line_read(&mut self) {
        self.is_waiting = false;
    }

    /// Prints one output of the conversation.
    pub(crate) fn show(&mut self, shown: &ChatOutput) -> CommandResult {
        match shown {
            ChatOutput::Entry { of: ChatSpeaker::Coordinator, entry } => self.print_entry(entry)?,
            ChatOutput::Entry { of: ChatSpeaker::Worker(name), entry }
                if entry.role == EntryRole::Assistant =>
            {
                output::print_note(&format!("[{name}] {}", entry.text()))?;
            }
            ChatOutput::OlderEntries { of: ChatSpeaker::Coordinator, entries, .. } => {
                for entry in entries {
                    // New prompts are visible where they were typed; earlier ones must be printed.
                    if entry.role == EntryRole::User {
                        output::print_note(&format!("> {}", entry.text()))?;
                    } else {
                        self.print_entry(entry)?;
                    }
                }
            }
            ChatOutput::QuestionAsked(question) => {
                let tool = &question.ask.tool;
                // Lines on standard input are prompts, so a question cannot be answered with one.
                output::print_note(&format!(
                    "question: {tool} (answer it with `heeler approvals`)"
                ))?;
            }
            ChatOutput::Notice(text) | ChatOutput::Diff(text) => output::print_line(text.as_str())?,
            ChatOutput::Error(text) => output::print_note(text)?,
            // A queued prompt starts the next turn without another line.
            ChatOutput::Status(status) => self.busy = status.busy.is_some() || status.queued > 0,
            ChatOutput::SuggestedInput(text) => output::print_note(&format!("not sent: {text}"))?,
            ChatOutput::ExitMessage(text) => output::print_note(text)?,
            _ => {}
        }
        Ok(())
    }

    fn print_entry(&self, entry: &ConversationEntry) -> CommandResult {
        match (&entry.role, &entry.args) {
            (EntryRole::Assistant, _) => output::print_line(entry.text())?,
            (EntryRole::Tool, Some(args)) => {
                let args: String = args.to_string().chars().take(ARGS_CHARS).collect();
                output::print_note(&format!("{} {args}", entry.name.as_deref().unwrap_or("tool")))?;
            }
            (EntryRole::System, _) => output::print_note(&entry.text())?,
            _ => {}
        }
        Ok(())
    }
}

fn read_lines(wanted: &Receiver<()>, sender: &UserRequestSender) {
    let mut lines = std::io::stdin().lock().lines();
    while wanted.recv().is_ok() {
        let action = match lines.next() {
            Some(Ok(line)) => UserAction::SendLine(line),
            // A line that is not UTF-8 ends the conversation like the end of input.
            Some(Err(_)) | None => UserAction::Exit,
        };
        let is_last = action == UserAction::Exit;
        if sender.send(action).is_err() || is_last {
            return;
        }
    }
}
