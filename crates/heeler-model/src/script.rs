//! What a scripted agent does: a list of steps, from the loose form of a YAML list to checked
//! types that the player can only play.
//!
//! Every fault names its step by number and the word that was probably meant. Nothing is played
//! here; how a step sounds on the wire is the runner's. The format is documented in
//! `docs/scripted.md`. Start at [`AgentScript::resolve_inputs`].

mod check;
mod fault;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde_json::Value as Json;

use crate::words::words;

pub use check::{FLOOD_BYTES_MAX, FLOOD_MAX, GARBAGE_BYTES_MAX, REPEAT_MAX, STEPS_MAX};
pub use fault::{ScriptFault, ScriptPathSegment};

/// What a scripted agent does on each prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentScript {
    /// The steps, played from the first to the last.
    pub steps: Vec<ScriptStep>,
}

impl AgentScript {
    /// Checks steps as the config has them; on failure every fault is returned.
    pub fn check(steps: &[Json]) -> Result<AgentScript, Vec<ScriptFault>> {
        check::check(steps)
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub enum ScriptStep {
    /// Says a text.
    Say(StreamedText),
    /// Thinks a text.
    Think(StreamedText),
    /// Uses a tool.
    Tool(ScriptToolCall),
    /// Asks a person.
    Question(ScriptQuestion),
    /// Has a sub-agent do something.
    SubAgent {
        /// What for.
        description: String,
        /// What it is asked.
        prompt: String,
        /// What it does.
        steps: Vec<ScriptStep>,
    },
    /// Starts a command that may outlast the turn.
    Background {
        /// The command.
        command: String,
        /// What is done when it has ended, as a turn of its own.
        then: Vec<ScriptStep>,
    },
    /// Tells that the API was asked again.
    Retry {
        /// How often.
        times: u32,
        /// Why.
        failure: ScriptApiError,
        /// How long each wait is.
        delay: Duration,
    },
    /// Ends the turn with an API error.
    Error {
        /// Which.
        failure: ScriptApiError,
        /// What is said of it.
        message: Option<String>,
    },
    /// Waits for ever.
    Hang {
        /// Not even an interrupt is answered.
        ignore_interrupt: bool,
        /// SIGTERM, SIGINT and SIGHUP do nothing.
        ignore_term: bool,
    },
    /// Waits.
    Sleep(Duration),
    /// Says many messages as fast as they are taken.
    Flood {
        /// How many.
        messages: u64,
        /// The length of each text.
        size_bytes: usize,
    },
    /// Writes what no client expects.
    Garbage {
        /// What.
        kind: GarbageKind,
        /// Its length, where the kind has one.
        size_bytes: usize,
    },
    /// Writes a line as it is.
    Raw(String),
    /// Writes a line to the standard error.
    Stderr(String),
    /// Ends the process without a result.
    Exit(ScriptExit),
    /// Leaves a process behind.
    Spawn(OrphanProcess),
    /// Costs this many US dollars more.
    Cost(f64),
    /// Uses this many tokens more.
    Usage {
        /// Tokens read.
        input: u64,
        /// Tokens written.
        output: u64,
    },
    /// Does one thing or another.
    When {
        /// If all of this holds.
        condition: ScriptCondition,
        /// What is done then.
        steps: Vec<ScriptStep>,
        /// What is done otherwise.
        otherwise: Vec<ScriptStep>,
    },
    /// Does something again and again.
    Repeat {
        /// How often.
        times: u64,
        /// What.
        steps: Vec<ScriptStep>,
    },
}

/// A text, perhaps in pieces.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamedText {
    /// The text, a template.
    pub text: String,
    /// In how many pieces it is streamed.
    pub chunks: u32,
    /// How long it waits between two pieces.
    pub delay: Duration,
}

/// The use of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptToolCall {
    /// The tool.
    pub name: String,
    /// What it is given; texts in it are templates, unless it is a command.
    pub input: Json,
    /// A person is asked first.
    pub ask_permission: bool,
    /// Where the result comes from.
    pub result_source: ToolResultSource,
}

/// Where a tool's result comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolResultSource {
    /// It is really done: a command is run, a file read, written or changed.
    Execution,
    /// It is given.
    Canned {
        /// The result, a template.
        result: String,
        /// It is a failure.
        fails: bool,
    },
    /// A tool of an MCP server that the runner offers.
    Mcp {
        /// The server.
        server: String,
        /// The tool, by the server's name of it.
        tool: String,
    },
}

/// A question to a person.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptQuestion {
    /// The question, a template.
    pub text: String,
    /// A word or two that stand for it.
    pub header: String,
    /// What can be answered.
    pub options: Vec<String>,
    /// More than one may be chosen.
    pub multi: bool,
}

words! {
    /// An API error.
    pub enum ScriptApiError ("API error") {
        /// A wrong key.
        Authentication = "authentication",
        /// A login that has expired.
        TokenExpired = "token_expired",
        /// Too many requests.
        RateLimit = "rate_limit",
        /// The API has too much to do.
        Overloaded = "overloaded",
        /// The API failed.
        ServerError = "server_error",
        /// The request was refused.
        InvalidRequest = "invalid_request",
        /// No such model.
        ModelNotFound = "model_not_found",
        /// The API cannot be reached.
        Network = "network",
    }
}

impl ScriptApiError {
    /// Returns the HTTP status; none when there was no answer.
    pub fn status(self) -> Option<u16> {
        match self {
            ScriptApiError::Authentication | ScriptApiError::TokenExpired => Some(401),
            ScriptApiError::RateLimit => Some(429),
            ScriptApiError::Overloaded => Some(529),
            ScriptApiError::ServerError => Some(500),
            ScriptApiError::InvalidRequest => Some(400),
            ScriptApiError::ModelNotFound => Some(404),
            ScriptApiError::Network => None,
        }
    }
}

words! {
    /// What no client expects.
    pub enum GarbageKind ("kind of garbage") {
        /// A line of NULs.
        Nul = "nul",
        /// A line that is not UTF-8.
        InvalidUtf8 = "invalid_utf8",
        /// A line of text.
        NotJson = "not_json",
        /// A JSON object that is cut off in the middle, with its newline.
        HalfJson = "half_json",
        /// JSON that is no object.
        NotAnObject = "not_an_object",
        /// A message of an unknown type.
        UnknownType = "unknown_type",
        /// A known type with the wrong things in it.
        WrongShape = "wrong_shape",
        /// An empty line.
        BlankLine = "blank_line",
        /// Text without a newline behind it.
        NoNewline = "no_newline",
        /// A valid message on a very long line.
        HugeLine = "huge_line",
    }
}

/// How a process ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptExit {
    /// With a code.
    Code(u8),
    /// By a signal to itself.
    Signal(i32),
}

/// A process that is left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanProcess {
    /// The command.
    pub command: String,
    /// It leaves the session and the process group.
    pub setsid: bool,
    /// SIGTERM, SIGINT and SIGHUP do nothing to it.
    pub ignore_term: bool,
    /// It has an empty environment.
    pub clear_env: bool,
    /// It keeps the agent's standard output and error open.
    pub hold_output: bool,
}

/// What must hold, all of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScriptCondition {
    /// The prompt contains this; case does not matter.
    pub prompt: Option<String>,
    /// The last answer contains this; case does not matter.
    pub answer: Option<String>,
    /// The turn's number in the session, from one.
    pub turn: Option<u64>,
    /// How the session started.
    pub session: Option<ScriptSessionKind>,
}

words! {
    /// How a session started, as a script can ask.
    pub enum ScriptSessionKind ("kind of session") {
        /// Without history.
        New = "new",
        /// With its own history.
        Resumed = "resumed",
        /// With the history of another.
        Forked = "forked",
    }
}
