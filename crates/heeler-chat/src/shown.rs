//! What passes between a conversation and whoever shows it.

use heeler_model::JobId;
use heeler_model::run::{Answer, Ask};

use crate::command::{self, Command};
use crate::{Entry, JobState};

/// Whose words they are: a transcript each.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Speaker {
    /// The agent that the person talks to.
    Coordinator,
    /// A worker of its, by name.
    Worker(String),
}

/// Something to show. Entries are on disk by then.
#[derive(Debug, Clone, PartialEq)]
pub enum Shown {
    /// The transcript has one more entry.
    Entry {
        /// Whose transcript.
        of: Speaker,
        /// The entry.
        entry: Entry,
    },
    /// Somebody is saying something; the entry with all of it follows.
    Delta {
        /// Who.
        of: Speaker,
        /// The next piece.
        text: String,
    },
    /// What was being said is not said to its end.
    DeltaEnded {
        /// Who.
        of: Speaker,
    },
    /// Older entries of a transcript, oldest first, that were asked for.
    Older {
        /// Whose.
        of: Speaker,
        /// The entries.
        entries: Vec<Entry>,
        /// Whether there are still older ones.
        has_more: bool,
    },
    /// The transcript is shown from its tail again: the session is another one now.
    Restarted,
    /// A person is asked.
    Asked(Question),
    /// What was asked is settled.
    Settled {
        /// [`Ask::id`].
        ask: String,
    },
    /// Says something that is no part of the conversation: the answer to a command, a warning.
    Told(String),
    /// Something could not be done, and why.
    Failed(String),
    /// What the status line says.
    Status(Box<Status>),
    /// Which transcript is looked at.
    View(Speaker),
    /// The input line is given this text, to be sent or changed.
    Suggested(String),
    /// The conversation ends with these words; nothing comes after the last of them.
    Leaving(String),
    /// It has ended.
    Left,
}

/// What an agent asks a person.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Who asks.
    pub of: Speaker,
    /// The job.
    pub job: JobId,
    /// What.
    pub ask: Ask,
}

/// What the status line says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
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
    pub workers: Vec<WorkerChip>,
    /// How many loops run.
    pub loops: usize,
    /// How many tasks are open.
    pub tasks: usize,
    /// Why the fleet cannot be reached.
    pub trouble: Option<String>,
}

/// A worker on the status line.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerChip {
    /// Its name.
    pub name: String,
    /// Where its job is.
    pub state: JobState,
    /// How many entries came since it was looked at.
    pub unseen: usize,
}

/// What a person does.
#[derive(Debug, Clone, PartialEq)]
pub enum Wish {
    /// Says a line, which may be a command, to whoever is looked at.
    Say(String),
    /// Interrupts the turn (Esc).
    Interrupt,
    /// Answers what an agent asks.
    Answer {
        /// The job.
        job: JobId,
        /// [`Ask::id`].
        ask: String,
        /// The answer.
        answer: Answer,
    },
    /// Looks at another transcript.
    View(Speaker),
    /// Looks at the next one, or the one before.
    ViewNext {
        /// Backwards.
        back: bool,
    },
    /// The oldest of the shown entries are let go: what is older begins after them again.
    LetGo {
        /// Whose.
        of: Speaker,
        /// How many.
        entries: usize,
    },
    /// Wants older entries than those that were shown.
    Older {
        /// Whose.
        of: Speaker,
    },
    /// Leaves (Ctrl+C, Ctrl+D, a signal); the second time at once.
    Leave,
    /// Leaves, as nobody is there any more who could answer something (a closed terminal). However
    /// often it is told, it counts once.
    HangUp,
}

impl Wish {
    /// Says whether it is a wish to leave, in whatever way: it is taken even where nothing else can be.
    pub fn is_to_leave(&self) -> bool {
        match self {
            Wish::Leave | Wish::HangUp => true,
            Wish::Say(line) => matches!(command::read(line), Some(Ok(Command::Exit))),
            _ => false,
        }
    }
}
