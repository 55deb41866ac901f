//! State of the commands that the person runs on this machine. Start at [`ShellCommands`].

/// Most bytes of output that wait for the next message.
pub(super) const ATTACHED_BYTES_MAX: usize = 256 << 10;

/// Use of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShellOutputUse {
    /// The next message to the agent contains it.
    Attach,
    /// It is only shown.
    Show,
}

/// Command in progress, and output that waits for the next message.
#[derive(Default)]
pub(super) struct ShellCommands {
    pub(super) running: Option<ShellOutputUse>,
    pub(super) attached: Vec<String>,
}

impl ShellCommands {
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(super) fn attached(&self) -> usize {
        self.attached.len()
    }

    pub(super) fn attached_bytes(&self) -> usize {
        self.attached.iter().map(String::len).sum()
    }
}

/// Parses a line that begins with `!`; `None` if it is no command.
pub(super) fn parse_shell_line(line: &str) -> Option<(ShellOutputUse, &str)> {
    let rest = line.trim_start().strip_prefix('!')?;
    let (output_use, command) = match rest.strip_prefix('!') {
        Some(command) => (ShellOutputUse::Show, command),
        None => (ShellOutputUse::Attach, rest),
    };
    let command = command.trim();
    (!command.is_empty()).then_some((output_use, command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mark_attaches_and_two_only_show() {
        assert_eq!(parse_shell_line("!ls -l"), Some((ShellOutputUse::Attach, "ls -l")));
        assert_eq!(parse_shell_line("  !! ls "), Some((ShellOutputUse::Show, "ls")));
        for line in ["!", "!!", "! ", "a !b", ""] {
            assert_eq!(parse_shell_line(line), None, "{line}");
        }
    }
}
