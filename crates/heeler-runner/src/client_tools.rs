//! Services of an ACP client for its agent: text files and terminals.
//!
//! An agent without a sandbox may leave its commands and files to the client. The runner then runs the
//! commands as processes of the run, and checks each file by where its path really leads. An agent in a
//! sandbox is offered none of it: the runner is outside of that sandbox. What the agent asks for is
//! decided before, by the runtime. Start at [`ClientToolRequest`].

mod files;
mod terminals;

use camino::Utf8PathBuf;
use serde_json::Value as Json;

use crate::program_policy::{ProgramAction, ProgramPolicy};

pub(crate) use files::perform_file_request;
#[cfg(test)]
pub(crate) use terminals::OPEN_TERMINALS_MAX;
pub(crate) use terminals::{ClientTerminals, TERMINAL_OUTPUT_BYTES_MAX, TerminalContext};

/// Service that the runtime has allowed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ClientToolRequest {
    File(ClientFileRequest),
    Terminal {
        /// ID of the terminal.
        terminal: String,
        operation: TerminalOperation,
    },
}

/// Access to a text file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClientFileRequest {
    /// Absolute path, as far as its text tells.
    pub(crate) path: Utf8PathBuf,
    pub(crate) operation: FileOperation,
    /// True if this path was allowed, and not only what the mode allows.
    pub(crate) was_asked: bool,
    pub(crate) policy: ProgramPolicy,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FileOperation {
    Read {
        /// Number of lines to leave out at the beginning.
        skipped: usize,
        /// Number of lines to read; `None` reads all.
        lines: Option<usize>,
    },
    Write {
        content: String,
    },
}

impl FileOperation {
    pub(crate) fn action(&self) -> ProgramAction {
        match self {
            FileOperation::Read { .. } => ProgramAction::Read,
            FileOperation::Write { .. } => ProgramAction::Edit,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TerminalOperation {
    Create(TerminalCommand),
    ReadOutput,
    WaitForExit,
    Kill,
    Release,
}

/// Command of a terminal.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TerminalCommand {
    /// Program, or a line for the shell if there are no arguments.
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) directory: Utf8PathBuf,
    /// Number of bytes to keep, from the end of the output.
    pub(crate) output_bytes_max: usize,
}

/// Result of a service.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClientToolReply {
    /// Terminal that the request was about.
    pub(crate) terminal: Option<String>,
    /// Output of the terminal so far, if it was read.
    pub(crate) output: Option<String>,
    /// Result for the agent, or the reason that there is none.
    pub(crate) result: Result<Json, String>,
}
