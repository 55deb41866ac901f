//! Words that are commands to the fleet and not messages for the agent.
//!
//! Start at [`ChatCommand::parse`].

/// A command in a chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatCommand {
    /// List the commands.
    Help,
    /// Report what the agent does.
    Status,
    /// Cancel the jobs of the conversation.
    Stop,
    /// Start a new session.
    New,
}

impl ChatCommand {
    /// Returns the command that a message is. A command is the whole message: `/stop`, `!stop`,
    /// `/stop@bot` or the word alone. Other texts with a slash are for the agent.
    pub fn parse(text: &str) -> Option<ChatCommand> {
        let text = text.trim();
        let (is_marked, word) = match text.strip_prefix(['/', '!']) {
            Some(word) => (true, word.split('@').next().unwrap_or_default()),
            None => (false, text),
        };
        match (word.to_ascii_lowercase().as_str(), is_marked) {
            ("help", _) | ("start", true) => Some(ChatCommand::Help),
            ("status", _) => Some(ChatCommand::Status),
            ("stop", _) | ("cancel", true) => Some(ChatCommand::Stop),
            ("new" | "reset", true) => Some(ChatCommand::New),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_a_whole_message() {
        for (text, command) in [
            ("/help", Some(ChatCommand::Help)),
            ("/start", Some(ChatCommand::Help)),
            (" STATUS ", Some(ChatCommand::Status)),
            ("!stop", Some(ChatCommand::Stop)),
            ("stop", Some(ChatCommand::Stop)),
            ("/stop@heeler_bot", Some(ChatCommand::Stop)),
            ("/reset", Some(ChatCommand::New)),
            ("/new", Some(ChatCommand::New)),
            ("new", None),
            ("stop the server", None),
            ("/review src", None),
            ("", None),
        ] {
            assert_eq!(ChatCommand::parse(text), command, "{text}");
        }
    }
}
