//! A shell command as an agent (`runtime: command`).
//!
//! The command is passed to the shell as an in-memory file, because it may hold secrets that must
//! not appear in a process list; the prompt is its standard input. Each printed line is one
//! message; of a flood, lines that arrive together form one message. The exit code is the result.
//! Start at [`CommandRuntime`].

#[cfg(test)]
mod tests;

use heeler_model::message::{AgentMessage, MessageBody, TurnResult};
use heeler_model::run::SessionStart;
use rustix::process::Signal;
use uuid::Uuid;

use crate::process::{LaunchArg, LaunchSpec};
use crate::runtime::{AgentRuntime, RuntimeEffect};

/// Number of lines that become one message each. Beyond it, lines that arrive together form one
/// message, because a row costs many times as much as a line.
pub(crate) const SINGLE_LINE_MESSAGES_MAX: usize = 1000;

/// Size in bytes at which a message of several lines is complete; its last line may exceed it. Well
/// below the size limit of a job transcript row.
pub(crate) const BATCHED_LINES_BYTES_MAX: usize = 16 << 10;

/// Runtime that executes a shell command.
pub(crate) struct CommandRuntime {
    prompt: String,
    command: String,
    /// Record the command itself in the transcript.
    records_command: bool,
    /// Last line that is not blank.
    last: Option<String>,
    /// Number of lines read.
    lines: usize,
    /// Lines of a flood that are not yet part of a message.
    batched_lines: Option<String>,
}

impl CommandRuntime {
    pub(crate) fn new(prompt: String, command: String) -> CommandRuntime {
        CommandRuntime {
            prompt,
            command,
            records_command: false,
            last: None,
            lines: 0,
            batched_lines: None,
        }
    }

    /// Enables recording of the command itself.
    pub(crate) fn with_command_recorded(self) -> CommandRuntime {
        CommandRuntime { records_command: true, ..self }
    }
}

impl AgentRuntime for CommandRuntime {
    fn launch_spec(&mut self, _session: &SessionStart) -> LaunchSpec {
        let script = LaunchArg::File(self.command.clone().into_bytes());
        LaunchSpec { program: "/bin/sh".into(), args: vec![script], env: Vec::new() }
    }

    fn begin(&mut self, _uuid: Uuid) -> Vec<RuntimeEffect> {
        (self.last, self.lines, self.batched_lines) = (None, 0, None);
        let mut notice =
            AgentMessage::from_body(MessageBody::System { subtype: "command".to_owned() });
        notice.fields.insert("content".to_owned(), self.command.trim_end().into());
        let notice = self.records_command.then_some(RuntimeEffect::Message(notice));
        let input =
            [RuntimeEffect::Write(self.prompt.clone().into_bytes()), RuntimeEffect::CloseInput];
        notice.into_iter().chain(input).collect()
    }

    fn handle_line(&mut self, line: &[u8]) -> Vec<RuntimeEffect> {
        let text = String::from_utf8_lossy(line);
        // The last line that is not blank becomes the text of the result.
        if !text.trim().is_empty() {
            self.last = Some(text.to_string());
        }
        self.lines = self.lines.saturating_add(1);
        if self.lines <= SINGLE_LINE_MESSAGES_MAX {
            return vec![RuntimeEffect::Message(AgentMessage::from_text(&text))];
        }
        let held = match &mut self.batched_lines {
            None => self.batched_lines.insert(text.into_owned()),
            Some(held) => {
                held.push('\n');
                held.push_str(&text);
                held
            }
        };
        match held.len() < BATCHED_LINES_BYTES_MAX {
            true => Vec::new(),
            false => self.flush_lines(),
        }
    }

    fn flush_lines(&mut self) -> Vec<RuntimeEffect> {
        self.batched_lines
            .take()
            .map(|held| RuntimeEffect::Message(AgentMessage::from_text(&held)))
            .into_iter()
            .collect()
    }

    fn records_stderr(&self) -> bool {
        true
    }

    fn interrupt(&mut self) -> Vec<RuntimeEffect> {
        vec![RuntimeEffect::Signal(Signal::INT)]
    }

    /// Turns the exit code into a result. As with any agent, a command that was killed by a signal
    /// has no result.
    fn handle_exit(&mut self, code: Option<i32>) -> Vec<RuntimeEffect> {
        // The runner records the signal itself.
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
        vec![
            RuntimeEffect::Message(AgentMessage::from_body(MessageBody::Result(Box::new(result)))),
            RuntimeEffect::Done,
        ]
    }
}
