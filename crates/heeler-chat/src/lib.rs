//! A person's conversation with a fleet: what is kept of it in files, its turns, workers, loops and
//! tasks, and how it ends. It knows no terminal, starts no process and opens no database: a
//! [`Fleet`] does what it asks, and whoever shows it gets [`Shown`] things in order.
//!
//! Everything that is shown is on disk first. Start at [`Talk`].

mod about;
mod beside;
mod book;
mod command;
mod entry;
mod plan;
mod port;
mod row;
mod sheet;
mod shelf;
mod shown;
mod talk;

pub use about::{About, Asked, Worker};
pub use book::{Book, BookError, EntryPage, Mark};
pub use command::{COMMANDS, LOOP_INTERVAL_MAX, LOOP_INTERVAL_MIN, help};
pub use entry::{Entry, Role, Source};
pub use plan::{Loop, Task};
pub use port::{
    AgentCard, Fleet, Happened, JobFacts, JobState, SessionChoice, Turn, Unheard, WorkerFacts,
};
pub use shelf::{Found, Listed, Named, Older, Opened, Shelf, ShelfError};
pub use shown::{Question, Shown, Speaker, Status, Wish, WorkerChip};
pub use talk::{AtExit, INSIGHTS_WAIT, LEAVE_WAIT, Manner, PAGE_ENTRIES, TURNS_KNOWN, Talk};
