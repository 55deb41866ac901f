//! A person's conversation with a fleet: session files, turns, workers, loops, tasks and the exit.
//!
//! This crate knows no terminal, starts no process and opens no database: a [`ChatFleetClient`]
//! executes its commands, and the user interface receives [`ChatOutput`] values in order.
//! Everything shown is on disk first. Start at [`Conversation`].

mod background;
mod command;
mod conversation;
mod conversation_state;
mod entry;
mod fleet_client;
mod row;
mod session_directory;
mod session_file;
mod session_metadata;
mod tasks;
mod ui_messages;

pub use command::{COMMANDS, LOOP_INTERVAL_MAX, LOOP_INTERVAL_MIN, help};
pub use conversation::{
    AgentSlashCommand, Conversation, ConversationOptions, EXIT_WAIT, INSIGHTS_TIMEOUT,
    PAGE_ENTRIES, TURN_LOOKUP_WINDOW, WorkerExitPolicy,
};
pub use conversation_state::{ConversationState, ConversationTurn, RosterWorker};
pub use entry::{ConversationEntry, EntryRole, EntrySource};
pub use fleet_client::{
    ChatAgentInfo, ChatFleetClient, ChatFleetEvent, ChatJobInfo, ChatJobState, ChatWorkerInfo,
    MessageDeliveryError, ShellCommandOutput, TurnRequest, TurnSessionChoice,
};
pub use session_directory::{
    SessionDirectory, SessionDirectoryError, SessionFileEntry, SessionFileRef, SessionFileSummary,
};
pub use session_file::{
    EntryCursor, EntryPage, OldFormatPolicy, OpenedSessionFile, SessionFile, SessionFileError,
};
pub use tasks::{ConversationLoop, ConversationTask};
pub use ui_messages::{
    CLIPBOARD_BYTES_MAX, ChatOutput, ChatQuestion, ChatSpeaker, ChatTheme, ChatWorkerStatus,
    ConversationStatus, UserAction,
};
