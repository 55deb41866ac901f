//! Scripts of scripted agents: from the untyped YAML list to checked steps.
//!
//! Every fault gives the number of its step and the word that was probably meant. Scripts are not
//! executed here; the runner does that and encodes the output. The format is documented in
//! `docs/scripted.md`. Start at [`AgentScript::check`].

mod check;
mod fault;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde_json::Value as Json;

use crate::words::words;

pub use check::{FLOOD_BYTES_MAX, FLOOD_MAX, GARBAGE_BYTES_MAX, REPEAT_MAX, STEPS_MAX};
pub use fault::{ScriptFault, ScriptPathSegment};

/// Script that a scripted agent executes for each prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentScript {
    /// Steps in order of execution.
    pub steps: Vec<ScriptStep>,
}

impl AgentScript {
    /// Checks the steps of a config, or returns every fault.
    pub fn check(steps: &[Json]) -> Result<AgentScript, Vec<ScriptFault>> {
        check::check(steps)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum ScriptStep {
    /// Outputs a text.
    Say(StreamedText),
    /// Outputs a text as thinking.
    Think(StreamedText),
    /// Calls a tool.
    Tool(ScriptToolCall),
    /// Asks a person a question.
    Question(ScriptQuestion),
    /// Runs steps as a sub-agent.
    SubAgent {
        /// Description of the sub-agent's task.
        description: String,
        /// Prompt of the sub-agent.
        prompt: String,
        /// Steps of the sub-agent.
        steps: Vec<ScriptStep>,
    },
    /// Starts a command that may outlast the turn.
    Background {
        command: String,
        /// Steps executed as a separate turn when the command has ended.
        then: Vec<ScriptStep>,
    },
    /// Reports that API requests were retried.
    Retry {
        /// Number of retries.
        times: u32,
        /// Error that caused the retries.
        failure: ScriptApiError,
        /// Delay before each retry.
        delay: Duration,
    },
    /// Ends the turn with an API error.
    Error {
        failure: ScriptApiError,
        /// Text of the error.
        message: Option<String>,
    },
    /// Waits forever.
    Hang {
        /// Ignore interrupt requests.
        ignore_interrupt: bool,
        /// Ignore SIGTERM, SIGINT and SIGHUP.
        ignore_term: bool,
    },
    Sleep(Duration),
    /// Outputs many messages as fast as they are read.
    Flood {
        /// Number of messages.
        messages: u64,
        /// Length of each text.
        size_bytes: usize,
    },
    /// Writes output that no client expects.
    Garbage {
        kind: GarbageKind,
        /// Length of the output, for kinds that have one.
        size_bytes: usize,
    },
    /// Writes a line unchanged.
    Raw(String),
    /// Writes a line to standard error.
    Stderr(String),
    /// Ends the process without a result.
    Exit(ScriptExit),
    /// Leaves a process behind.
    Spawn(OrphanProcess),
    /// Adds this many US dollars to the cost.
    Cost(f64),
    /// Adds tokens to the usage.
    Usage {
        /// Tokens read.
        input: u64,
        /// Tokens written.
        output: u64,
    },
    /// Chooses between two lists of steps.
    When {
        condition: ScriptCondition,
        /// Steps executed if the condition holds.
        steps: Vec<ScriptStep>,
        /// Steps executed otherwise.
        otherwise: Vec<ScriptStep>,
    },
    /// Repeats steps.
    Repeat {
        /// Number of repetitions.
        times: u64,
        steps: Vec<ScriptStep>,
    },
}

/// Text that may be streamed in chunks.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamedText {
    /// Template of the text.
    pub text: String,
    pub chunks: u32,
    /// Delay between two chunks.
    pub delay: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ScriptToolCall {
    pub name: String,
    /// Input of the tool. Texts in it are templates, unless the tool is a command.
    pub input: Json,
    /// Ask a person for permission first.
    pub ask_permission: bool,
    pub result_source: ToolResultSource,
}

/// Source of a tool's result.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolResultSource {
    /// The tool is really executed: a command is run; a file is read, written or edited.
    Execution,
    /// A result from the script.
    Canned {
        /// Template of the result.
        result: String,
        /// Report the result as an error.
        fails: bool,
    },
    /// Tool of an MCP server that the runner provides.
    Mcp {
        server: String,
        /// Name of the tool on the server.
        tool: String,
    },
}

/// Question to a person.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptQuestion {
    /// Template of the question.
    pub text: String,
    /// Title of one or two words.
    pub header: String,
    /// Possible answers.
    pub options: Vec<String>,
    /// More than one answer may be chosen.
    pub multi: bool,
}

words! {
    /// API error.
    pub enum ScriptApiError ("API error") {
        /// Wrong API key.
        Authentication = "authentication",
        /// Expired login.
        TokenExpired = "token_expired",
        /// Too many requests.
        RateLimit = "rate_limit",
        /// The API is overloaded.
        Overloaded = "overloaded",
        /// Internal error of the API.
        ServerError = "server_error",
        /// The request was rejected.
        InvalidRequest = "invalid_request",
        /// The model does not exist.
        ModelNotFound = "model_not_found",
        /// The API cannot be reached.
        Network = "network",
    }
}

impl ScriptApiError {
    /// Returns the HTTP status; `None` if no response was received.
    pub fn status(self) -> Option<u16> {
        match self {
            ScriptApiError::Authentication | ScriptApiError::TokenExpired => Some(401),
            ScriptApiError::RateLimit => Some(429),
            ScriptApiError::Overloaded => Some(529),
            ScriptApiError::ServerError => Some(500),
            ScriptApiError::InvalidRequest => Some(400),
            ScriptApiError::ModelNotFound => Some(404),
            // The connection failed before any status.
            ScriptApiError::Network => None,
        }
    }
}

words! {
    /// Output that no client expects.
    pub enum GarbageKind ("kind of garbage") {
        /// Line of NUL bytes.
        Nul = "nul",
        /// Line that is not UTF-8.
        InvalidUtf8 = "invalid_utf8",
        /// Line of plain text.
        NotJson = "not_json",
        /// JSON object that is cut off in the middle, followed by a newline.
        HalfJson = "half_json",
        /// JSON that is not an object.
        NotAnObject = "not_an_object",
        /// Message of an unknown type.
        UnknownType = "unknown_type",
        /// Message of a known type with wrong content.
        WrongShape = "wrong_shape",
        /// Empty line.
        BlankLine = "blank_line",
        /// Text without a newline at the end.
        NoNewline = "no_newline",
        /// Valid message on a very long line.
        HugeLine = "huge_line",
    }
}

/// End of the scripted agent's own process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptExit {
    /// Exits with this code.
    Code(u8),
    /// Sends this signal to itself.
    Signal(i32),
}

/// Process that is left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanProcess {
    pub command: String,
    /// Leave the session and the process group.
    pub setsid: bool,
    /// Ignore SIGTERM, SIGINT and SIGHUP.
    pub ignore_term: bool,
    /// Start with an empty environment.
    pub clear_env: bool,
    /// Keep the agent's standard output and error open.
    pub hold_output: bool,
}

/// Conditions that must all hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScriptCondition {
    /// Text that the prompt must contain; case is ignored.
    pub prompt: Option<String>,
    /// Text that the last answer must contain; case is ignored.
    pub answer: Option<String>,
    /// Number of the turn in the session, counted from one.
    pub turn: Option<u64>,
    /// Start of the session.
    pub session: Option<ScriptSessionKind>,
}

words! {
    /// Start of a session, for conditions.
    pub enum ScriptSessionKind ("kind of session") {
        /// Without history.
        New = "new",
        /// With its own history.
        Resumed = "resumed",
        /// With the history of another session.
        Forked = "forked",
    }
}
