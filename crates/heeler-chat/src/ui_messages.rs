//! What passes between a conversation and whoever shows it.

use heeler_model::JobId;
use heeler_model::run::{AgentQuestion, QuestionAnswer};

use crate::command::{self, ChatCommand};
use crate::{ChatJobState, ConversationEntry};

/// Whose words they are: a transcript each.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChatSpeaker {
    /// The agent that the person talks to.
    Coordinator,
    /// A worker of its, by name.
    Worker(String),
}

/// Something to show. Entries are on disk by then.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatOutput {
    /// The transcript has one more entry.
    Entry {
        /// Whose transcript.
        of: ChatSpeaker,
        /// The entry.
        entry: ConversationEntry,
    },
    /// Somebody is saying something; the entry with all of it follows.
    Delta {
        /// Who.
        of: ChatSpeaker,
        /// The next piece.
        text: String,
    },
    /// What was being said is not said to its end.
    DeltaEnded {
        /// Who.
        of: ChatSpeaker,
    },
    /// Older entries of a transcript, oldest first, that were asked for.
    OlderEntries {
        /// Whose.
        of: ChatSpeaker,
        /// The entries.
        entries: Vec<ConversationEntry>,
        /// Whether there are still older ones.
        has_more: bool,
    },
    /// The transcript is shown from its tail again: the session is another one now.
    SessionReplaced,
    /// A person is asked.
    QuestionAsked(ChatQuestion),
    /// What was asked is settled.
    QuestionClosed {
        /// [`Ask::id`].
        ask: String,
    },
    /// Says something that is no part of the conversation: the answer to a command, a warning.
    Notice(String),
    /// Something could not be done, and why.
    Error(String),
    /// What the status line says.
    Status(Box<ConversationStatus>),
    /// Which transcript is looked at.
    ViewChanged(ChatSpeaker),
    /// The input line is given this text, to be sent or changed.
    SuggestedInput(String),
    /// The conversation ends with these words; nothing comes after the last of them.
    ExitMessage(String),
    /// It has ended.
    Exited,
}

/// What an agent asks a person.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatQuestion {
    /// Who asks.
    pub of: ChatSpeaker,
    /// The job.
    pub job: JobId,
    /// What.
    pub ask: AgentQuestion,
}

/// What the status line says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConversationStatus {
    /// The session's id.
    pub id: String,
    /// The agent.
    pub agent: String,
    /// The model that answers, when it is known.
    pub model: Option<String>,
    /// How much of the context is in use, in tokens.
    pub context_tokens: Option<u64>,
    /// What the session has cost, with its workers.
    pub cost_usd: f64,
    /// The agent is at work; in words what at, if that is known.
    pub busy: Option<String>,
    /// How many messages wait to be sent.
    pub queued: usize,
    /// The workers.
    pub workers: Vec<ChatWorkerStatus>,
    /// How many loops run.
    pub loops: usize,
    /// How many tasks are open.
    pub tasks: usize,
    /// Why the fleet cannot be reached.
    pub trouble: Option<String>,
}

/// A worker on the status line.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatWorkerStatus {
    /// Its name.
    pub name: String,
    /// Where its job is.
    pub state: ChatJobState,
    /// How many entries came since it was looked at.
    pub unseen: usize,
}

/// What a person does.
#[derive(Debug, Clone, PartialEq)]
pub enum UserAction {
    /// Says a line, which may be a command, to whoever is looked at.
    SendLine(String),
    /// Interrupts the turn (Esc).
    Interrupt,
    /// Answers what an agent asks.
    Answer {
        /// The job.
        job: JobId,
        /// [`Ask::id`].
        ask: String,
        /// The answer.
        answer: QuestionAnswer,
    },
    /// Looks at another transcript.
    View(ChatSpeaker),
    /// Looks at the next one, or the one before.
    ViewNext {
        /// Backwards.
        back: bool,
    },
    /// The oldest of the shown entries are let go: what is older begins after them again.
    DropEntries {
        /// Whose.
        of: ChatSpeaker,
        /// How many.
        entries: usize,
    },
    /// Wants older entries than those that were shown.
    LoadOlder {
        /// Whose.
        of: ChatSpeaker,
    },
    /// Leaves (Ctrl+C, Ctrl+D, a signal); the second time at once.
    Exit,
    /// Leaves, as nobody is there any more who could answer something (a closed terminal). However
    /// often it is told, it counts once.
    HangUp,
}

impl UserAction {
    /// Says whether it is a wish to leave, in whatever way: it is taken even where nothing else can be.
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
