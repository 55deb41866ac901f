//! Messages between a conversation and its user interface.

use heeler_model::JobId;
use heeler_model::run::{AgentQuestion, QuestionAnswer};

use crate::command::{self, ChatCommand};
use crate::{ChatJobState, ConversationEntry};

/// Most bytes for the clipboard: terminals drop longer sequences.
pub const CLIPBOARD_BYTES_MAX: usize = 74_000;

/// Owner of a transcript.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChatSpeaker {
    /// Agent that the person talks to.
    Coordinator,
    /// Worker, by name.
    Worker(String),
}

/// Colours of a screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatTheme {
    /// For a dark background.
    Dark,
    /// For a light background.
    Light,
    /// No colours.
    None,
}

impl ChatTheme {
    /// Parses the name that a person types.
    pub fn parse(name: &str) -> Option<ChatTheme> {
        Some(match name {
            "dark" => ChatTheme::Dark,
            "light" => ChatTheme::Light,
            "none" => ChatTheme::None,
            _ => return None,
        })
    }
}

/// Output to show. Entries are already on disk.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatOutput {
    /// The transcript has one more entry.
    Entry { of: ChatSpeaker, entry: ConversationEntry },
    /// Part of an unfinished message; the complete entry follows.
    Delta {
        of: ChatSpeaker,
        /// Next part of the text.
        text: String,
    },
    /// The unfinished message will not be completed.
    DeltaEnded { of: ChatSpeaker },
    /// Requested older entries of a transcript, oldest first.
    OlderEntries {
        of: ChatSpeaker,
        entries: Vec<ConversationEntry>,
        /// There are still older ones.
        has_more: bool,
    },
    /// The session was replaced by a fork; its transcript is shown from the end.
    SessionReplaced,
    /// The agent asks a question.
    QuestionAsked(ChatQuestion),
    /// A question was answered or withdrawn.
    QuestionClosed {
        /// [`AgentQuestion::id`].
        ask: String,
    },
    /// Text outside of the conversation: the result of a command, a warning.
    Notice(String),
    /// Changes to files, as a unified diff.
    Diff(String),
    /// Text that the person wants in the clipboard.
    Clipboard(String),
    /// Failure and its reason.
    Error(String),
    /// Colours that the person chose.
    ThemeChanged(ChatTheme),
    /// Content of the status line.
    Status(Box<ConversationStatus>),
    /// Transcript in view.
    ViewChanged(ChatSpeaker),
    /// Text for the input line, to be sent or edited.
    SuggestedInput(String),
    /// Message during the exit.
    ExitMessage(String),
    /// The conversation has ended.
    Exited,
}

/// Question of an agent to a person.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatQuestion {
    /// Agent or worker that asks.
    pub of: ChatSpeaker,
    pub job: JobId,
    pub ask: AgentQuestion,
}

/// Content of the status line.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConversationStatus {
    /// Session ID.
    pub id: String,
    pub agent: String,
    /// Model that answers, if known.
    pub model: Option<String>,
    /// Permission mode of the next turn, if the agent's runtime has modes.
    pub mode: Option<String>,
    /// Working directory of the agent.
    pub folder: Option<String>,
    /// Git branch of that directory.
    pub branch: Option<String>,
    /// Tokens of the context in use.
    pub context_tokens: Option<u64>,
    /// Tokens that the model's context can hold, if known.
    pub context_window: Option<u64>,
    /// Cost of the session, including workers.
    pub cost_usd: f64,
    /// Activity of the agent; `None` if it is idle.
    pub busy: Option<String>,
    /// Messages that wait to be sent.
    pub queued: usize,
    /// First lines of these messages, oldest first.
    pub queued_texts: Vec<String>,
    /// Outputs of commands that go with the next message.
    pub attached: usize,
    pub workers: Vec<ChatWorkerStatus>,
    /// Active loops.
    pub loops: usize,
    /// Open tasks.
    pub tasks: usize,
    /// Reason for which the fleet is unreachable.
    pub trouble: Option<String>,
}

/// Worker on the status line.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatWorkerStatus {
    pub name: String,
    /// State of its job.
    pub state: ChatJobState,
    /// Entries since the person last viewed it.
    pub unseen: usize,
}

/// Action of the person.
#[derive(Debug, Clone, PartialEq)]
pub enum UserAction {
    /// Send a line, which may be a command, to the agent or worker in view.
    SendLine(String),
    /// Interrupt the turn (Esc).
    Interrupt,
    /// Answer a question.
    Answer {
        job: JobId,
        /// [`AgentQuestion::id`].
        ask: String,
        answer: QuestionAnswer,
    },
    /// View another transcript.
    View(ChatSpeaker),
    /// Choose the next permission mode (Shift+Tab).
    CycleMode,
    /// Return the newest queued message to the input.
    EditQueued,
    /// View the next or previous transcript.
    ViewNext { back: bool },
    /// The user interface dropped its oldest entries; older ones are loaded from there again.
    DropEntries {
        of: ChatSpeaker,
        /// Number of dropped entries.
        entries: usize,
    },
    /// Load entries older than those shown.
    LoadOlder { of: ChatSpeaker },
    /// Leave (Ctrl+C, Ctrl+D, a signal); the second time at once.
    Exit,
    /// Leave because the terminal was closed and no person can answer. Repetitions have no effect.
    HangUp,
}

impl UserAction {
    /// Returns true if the action leaves the conversation; such actions are handled even if nothing
    /// else can be.
    pub fn is_exit(&self) -> bool {
        match self {
            UserAction::Exit | UserAction::HangUp => true,
            UserAction::SendLine(line) => {
                matches!(command::parse_command(line), Some(Ok(ChatCommand::Exit)))
            }
            _ => false,
        }
    }
}
