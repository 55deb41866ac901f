//! Events of a scripted agent, and the reasons for which it stops.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::mpsc::SyncSender;

use heeler_config::script::ScriptExit;
use serde_json::Value as Json;

use super::session::ScriptedSessionError;

/// Event from outside the agent thread.
pub(super) enum ScriptedEvent {
    /// Line of the standard input.
    Line(Vec<u8>),
    /// End of the standard input.
    Eof,
    Ended {
        number: u32,
        code: i32,
    },
}

/// Reason that an agent stops in the middle of a turn.
#[derive(Debug)]
pub(super) enum ScriptedStopReason {
    /// Interrupted; part of a text may have been written, or a tool was running.
    Interrupted { partial: Option<Json>, in_tool: bool },
    /// The API failed, as scripted.
    Failed { message: String, status: Option<u16>, kind: &'static str },
    /// The turn limit was reached.
    MaxTurns,
    /// The budget was spent.
    Budget,
    /// The process must end without a result.
    Exit(ScriptExit),
    /// The session cannot be saved.
    Session(ScriptedSessionError),
    /// The reader of the output is gone.
    Closed,
    /// The input violates the protocol; the message goes to the standard error.
    Protocol(String),
}

impl From<ScriptedSessionError> for ScriptedStopReason {
    fn from(error: ScriptedSessionError) -> ScriptedStopReason {
        ScriptedStopReason::Session(error)
    }
}

/// Event that ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScriptedWaitOutcome {
    Ready,
    TimedOut,
    Interrupted,
}

/// Forwards lines until the input ends.
pub(super) fn forward_lines(input: Box<dyn Read + Send>, events: &SyncSender<ScriptedEvent>) {
    let mut input = BufReader::new(input);
    loop {
        let mut line = Vec::new();
        let event = match input.read_until(b'\n', &mut line) {
            // For the agent, an input that cannot be read has ended.
            Ok(0) | Err(_) => ScriptedEvent::Eof,
            Ok(_) => ScriptedEvent::Line(line),
        };
        let last = matches!(event, ScriptedEvent::Eof);
        // The agent may have ended meanwhile.
        if events.send(event).is_err() || last {
            return;
        }
    }
}
