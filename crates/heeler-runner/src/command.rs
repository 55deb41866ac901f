//! A shell command as an agent (`runtime: command`).
//!
//! The command is handed to the shell as a file in memory, since it may hold what nobody may see in
//! a process list; what the agent is asked is its standard input. Each line that it prints is a
//! message, of a flood those that are there at once; its exit code is its result. Start at
//! [`CommandRuntime`].

#[cfg(test)]
mod tests;

use heeler_model::message::{Body, Message, TurnResult};
use heeler_model::run::SessionStart;
use rustix::process::Signal;
use uuid::Uuid;

use crate::process::{Arg, Launch};
use crate::runtime::{Runtime, Step};

/// How many lines are a message each; of a command that prints more, lines that are there at once
/// are one: a row costs many times what a line does.
pub(crate) const LINES_ALONE_MAX: usize = 1000;

/// How long a message of several lines is at most, in bytes, beside its last line: well below what a
/// row of a job's log has room for.
pub(crate) const LINES_TOGETHER_BYTES_MAX: usize = 16 << 10;

/// A shell command as an agent.
pub(crate) struct CommandRuntime {
    prompt: String,
    command: String,
    /// Whether the transcript says what is run.
    is_told: bool,
    /// The last line that says something.
    last: Option<String>,
    /// How many lines there were.
    lines: usize,
    /// Lines of a flood that are not a message yet.
    held: Option<String>,
}

impl CommandRuntime {
    /// Makes the runtime.
    pub(crate) fn new(prompt: String, command: String) -> CommandRuntime {
        CommandRuntime { prompt, command, is_told: false, last: None, lines: 0, held: None }
    }

    /// Has the command recorded too.
    pub(crate) fn told(self) -> CommandRuntime {
        CommandRuntime { is_told: true, ..self }
    }
}

impl Runtime for CommandRuntime {
    fn launch(&self, _session: &SessionStart) -> Launch {
        let script = Arg::File(self.command.clone().into_bytes());
        Launch { program: "/bin/sh".into(), args: vec![script], env: Vec::new() }
    }

    fn begin(&mut self, _uuid: Uuid) -> Vec<Step> {
        (self.last, self.lines, self.held) = (None, 0, None);
        let mut told = Message::of(Body::System { subtype: "command".to_owned() });
        told.fields.insert("content".to_owned(), self.command.trim_end().into());
        let told = self.is_told.then_some(Step::Message(told));
        let input = [Step::Write(self.prompt.clone().into_bytes()), Step::CloseInput];
        told.into_iter().chain(input).collect()
    }

    fn line(&mut self, line: &[u8]) -> Vec<Step> {
        let text = String::from_utf8_lossy(line);
        if !text.trim().is_empty() {
            self.last = Some(text.to_string());
        }
        self.lines = self.lines.saturating_add(1);
        if self.lines <= LINES_ALONE_MAX {
            return vec![Step::Message(Message::text(&text))];
        }
        let held = match &mut self.held {
            None => self.held.insert(text.into_owned()),
            Some(held) => {
                held.push('\n');
                held.push_str(&text);
                held
            }
        };
        match held.len() < LINES_TOGETHER_BYTES_MAX {
            true => Vec::new(),
            false => self.no_line(),
        }
    }

    fn no_line(&mut self) -> Vec<Step> {
        self.held.take().map(|held| Step::Message(Message::text(&held))).into_iter().collect()
    }

    fn records_complaints(&self) -> bool {
        true
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
