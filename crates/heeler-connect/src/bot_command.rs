//! Words that are commands to the fleet and not messages for the agent.
//!
//! Start at [`BotCommand::parse`].

/// A command in a chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BotCommand {
    /// List the commands.
    Help,
    /// Report what the agent does.
    Status,
    /// Cancel the jobs of the conversation.
    Stop,
    /// Start a new session.
    New,
}

impl BotCommand {
    /// Returns the command that a message is. A command is the whole message: `/stop`, `!stop`,
    /// `/stop@bot` or the word alone. Other texts with a slash are for the agent.
    pub fn parse(text: &str) -> Option<BotCommand> {
        let text = text.trim();
        let (is_marked, word) = match text.strip_prefix(['/', '!']) {
            Some(word) => (true, word.split('@').next().unwrap_or_default()),
            None => (false, text),
        };
        match (word.to_ascii_lowercase().as_str(), is_marked) {
            ("help", _) | ("start", true) => Some(BotCommand::Help),
            ("status", _) => Some(BotCommand::Status),
            ("stop", _) | ("cancel", true) => Some(BotCommand::Stop),
            ("new" | "reset", true) => Some(BotCommand::New),
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
            ("/help", Some(BotCommand::Help)),
            ("/start", Some(BotCommand::Help)),
            (" STATUS ", Some(BotCommand::Status)),
            ("!stop", Some(BotCommand::Stop)),
            ("stop", Some(BotCommand::Stop)),
            ("/stop@heeler_bot", Some(BotCommand::Stop)),
            ("/reset", Some(BotCommand::New)),
            ("/new", Some(BotCommand::New)),
            ("new", None),
            ("stop the server", None),
            ("/review src", None),
            ("", None),
        ] {
            assert_eq!(BotCommand::parse(text), command, "{text}");
        }
    }
}
