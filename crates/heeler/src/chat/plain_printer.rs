//! Plain-line mode of a conversation. Prints the agent's messages to standard output, everything else
//! to standard error. Without a person, reads one line of standard input each time the agent is ready.
//! With one, who uses a screen reader, each line is sent when it is typed, and answers the question
//! that was shown before it. Start at [`PlainChatPrinter`].

use std::io::BufRead as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heeler_chat::{ChatOutput, ChatSpeaker, ConversationEntry, EntryRole, UserAction};

use super::input_queue::UserRequestSender;
use super::line_questions::{LineQuestions, TypedLine};
use crate::failure::CommandResult;
use crate::job_watch::{JobWatchEvent, KeyboardInput, KeyboardReader};
use crate::output;

/// Characters of a tool call's input that are shown.
const ARGS_CHARS: usize = 100;
/// Typed lines that may wait to be handled.
const TYPED_LINES_MAX: usize = 16;

/// Prints a conversation as plain lines.
pub(crate) struct PlainChatPrinter {
    /// True while the agent works; the next line is read only when it is idle.
    busy: bool,
    ready: SyncSender<()>,
    is_waiting: bool,
    /// The person at the keyboard, if questions are asked here.
    person: Option<AttendedKeyboard>,
}

/// Keyboard of a person who answers questions by lines.
struct AttendedKeyboard {
    reader: KeyboardReader,
    questions: Arc<Mutex<LineQuestions>>,
}

impl AttendedKeyboard {
    /// Starts to send typed lines.
    fn start(keyboard: KeyboardInput, sender: UserRequestSender) -> AttendedKeyboard {
        let questions: Arc<Mutex<LineQuestions>> = Arc::default();
        let (typed, lines) = sync_channel(TYPED_LINES_MAX);
        let reader = KeyboardReader::start(keyboard, typed);
        let known = Arc::clone(&questions);
        std::thread::spawn(move || send_typed_lines(&lines, &known, &sender));
        AttendedKeyboard { reader, questions }
    }

    fn questions(&self) -> MutexGuard<'_, LineQuestions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the first question. What was typed before does not answer it.
    fn show(&self, questions: &mut LineQuestions) -> CommandResult {
        let number = self.reader.discard_typed();
        print_question(questions, number)
    }
}

fn print_question(questions: &mut LineQuestions, number: u64) -> CommandResult {
    let Some((lines, prompt)) = questions.show(number) else { return Ok(()) };
    for line in lines {
        output::print_error(line)?;
    }
    // A line of its own: a screen reader announces whole lines.
    Ok(output::print_error(prompt)?)
}

/// Sends each typed line as an answer or as a message.
fn send_typed_lines(
    lines: &Receiver<JobWatchEvent>,
    questions: &Mutex<LineQuestions>,
    sender: &UserRequestSender,
) {
    for event in lines {
        let JobWatchEvent::LineTyped(number, line) = event else { continue };
        let Some(line) = line else {
            drop(sender.send(UserAction::Exit));
            return;
        };
        let mut open = questions.lock().unwrap_or_else(PoisonError::into_inner);
        let action = match open.handle_line(number, &line) {
            TypedLine::Message => UserAction::SendLine(line.trim_end().to_owned()),
            TypedLine::Answer(action) => *action,
            TypedLine::Again(remark) => {
                // A terminal that is gone is noticed by the next output of the conversation.
                drop(remark.map(output::print_error));
                drop(print_question(&mut open, number));
                continue;
            }
        };
        drop(open);
        if sender.send(action).is_err() {
            return;
        }
    }
}

impl PlainChatPrinter {
    /// Starts the thread that reads lines: of a keyboard, if a person is there to answer questions, or
    /// else of standard input.
    pub(crate) fn new(
        sender: UserRequestSender,
        keyboard: Option<KeyboardInput>,
    ) -> PlainChatPrinter {
        // One request at a time: a line is read only when its answer can be shown after it.
        let (ready, wanted) = sync_channel(1);
        let person = match keyboard {
            Some(keyboard) => Some(AttendedKeyboard::start(keyboard, sender)),
            None => {
                std::thread::spawn(move || read_lines(&wanted, &sender));
                None
            }
        };
        PlainChatPrinter { busy: false, ready, is_waiting: false, person }
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
            ChatOutput::QuestionAsked(question) if self.person.is_some() => {
                let Some(person) = &self.person else { return Ok(()) };
                let mut questions = person.questions();
                if questions.add(question.clone()) {
                    person.show(&mut questions)?;
                }
            }
            ChatOutput::QuestionClosed { ask } => {
                let Some(person) = &self.person else { return Ok(()) };
                let mut questions = person.questions();
                if questions.remove(ask) {
                    person.show(&mut questions)?;
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
            // Only a screen has access to the clipboard.
            ChatOutput::Clipboard(text) => output::print_line(text.as_str())?,
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
