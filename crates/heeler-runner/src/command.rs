//! A shell command as an agent (`runtime: command`).
//!
//! The command is handed to the shell as a file in memory, since it may hold what nobody may see in
//! a process list; what the agent is asked is its standard input. Each line that it prints is a
//! message, and its exit code is its result. Start at [`CommandRuntime`].

#[cfg(test)]
mod tests;

use heeler_model::message::{Body, Message, TurnResult};
use heeler_model::run::SessionStart;
use rustix::process::Signal;
use uuid::Uuid;

use crate::process::{Arg, Launch};
use crate::runtime::{Runtime, Step};

/// A shell command as an agent.
pub(crate) struct CommandRuntime {
    prompt: String,
    command: String,
    /// The last line that says something.
    last: Option<String>,
}

impl CommandRuntime {
    /// Makes the runtime.
    pub(crate) fn new(prompt: String, command: String) -> CommandRuntime {
        CommandRuntime { prompt, command, last: None }
    }
}

impl Runtime for CommandRuntime {
    fn launch(&self, _session: &SessionStart) -> Launch {
        let script = Arg::File(self.command.clone().into_bytes());
        Launch { program: "/bin/sh".into(), args: vec![script], env: Vec::new() }
    }

    fn begin(&mut self, _uuid: Uuid) -> Vec<Step> {
        self.last = None;
        vec![Step::Write(self.prompt.clone().into_bytes()), Step::CloseInput]
    }

    fn line(&mut self, line: &[u8]) -> Vec<Step> {
        let text = String::from_utf8_lossy(line);
        if !text.trim().is_empty() {
            self.last = Some(text.to_string());
        }
        vec![Step::Message(Message::text(&text))]
    }

    fn interrupt(&mut self) -> Vec<Step> {
        vec![Step::Signal(Signal::INT)]
    }

    /// Makes a result of the exit code. A command that a signal ended has none, as any agent.
    fn exited(&mut self, code: Option<i32>) -> Vec<Step> {
        let Some(code) = code else { return Vec::new() };
        let result = TurnResult {
            subtype: if code == 0 { "success" } else { "error_during_execution" }.to_owned(),
            is_error: code != 0,
            text: self.last.take(),
            errors: if code == 0 {
                Vec::new()
            } else {
                vec![format!("the command exited with code {code}")]
            },
            ..TurnResult::default()
        };
        vec![Step::Message(Message::of(Body::Result(Box::new(result)))), Step::Done]
    }
}
