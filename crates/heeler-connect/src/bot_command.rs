//! Words that are commands to the fleet and not messages for the agent.
//!
//! Start at [`BotCommand::parse`].

/// Names of the commands, and their descriptions, in the order of the help text.
pub const BOT_COMMANDS: [(&str, &str); 11] = [
    ("status", "what I am doing in this conversation"),
    ("stop", "cancel it"),
    ("new", "begin a new session, without the earlier messages"),
    ("retry", "do the last message again"),
    ("jobs", "the last jobs of this conversation"),
    ("usage", "their cost"),
    ("session", "the session of this conversation"),
    ("agents", "the agents that answer here"),
    ("approve", "allow a request that was asked here"),
    ("deny", "deny a request that was asked here"),
    ("help", "this list"),
];

/// A command in a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BotCommand {
    /// List the commands.
    Help,
    /// Report what the agent does.
    Status,
    /// Cancel the jobs of the conversation.
    Stop,
    /// Start a new session.
    New,
    /// Do the last message again.
    Retry,
    /// List the jobs of the conversation.
    Jobs,
    /// Report the cost of the conversation.
    Usage,
    /// Report the session of the conversation.
    Session,
    /// List the agents that answer here.
    Agents,
    /// Allow the request with this ID.
    Approve(String),
    /// Deny the request with this ID.
    Deny(String),
}

impl BotCommand {
    /// Returns true if a command of this name needs the ID of a question.
    pub fn takes_id(name: &str) -> bool {
        matches!(name, "approve" | "deny")
    }

    /// Returns the text that lists the commands.
    pub fn help_text() -> String {
        let line = |(name, description): &(&str, &str)| match BotCommand::takes_id(name) {
            true => format!("- `/{name} ID`: {description}"),
            false => format!("- `/{name}`: {description}"),
        };
        let lines: Vec<String> = BOT_COMMANDS.iter().map(line).collect();
        format!(
            "Send a message to give me work. I answer here when it is done.\n\n{}\n\n`!` works like `/`.",
            lines.join("\n")
        )
    }

    /// Returns true if the command changes what the agent does.
    pub fn is_operation(&self) -> bool {
        matches!(self, BotCommand::Stop | BotCommand::New | BotCommand::Retry)
    }

    /// Returns true if a text is a command with its mark: `/stop` or `!stop`.
    pub fn is_marked_command(text: &str) -> bool {
        text.trim_start().starts_with(['/', '!']) && BotCommand::parse(text).is_some()
    }

    /// Returns the command that a message is. A command is the whole message: `/stop`, `!stop`,
    /// `/stop@bot` or, for some, the word alone. Other texts with a slash are for the agent.
    pub fn parse(text: &str) -> Option<BotCommand> {
        let text = text.trim();
        let (is_marked, rest) = match text.strip_prefix(['/', '!']) {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut words = rest.split_whitespace();
        let word = words.next()?.split('@').next().unwrap_or_default().to_ascii_lowercase();
        let (argument, is_whole) = (words.next(), words.next().is_none());
        if !is_whole {
            return None;
        }
        match (word.as_str(), argument, is_marked) {
            ("approve", Some(id), true) => Some(BotCommand::Approve(id.to_owned())),
            ("deny" | "reject", Some(id), true) => Some(BotCommand::Deny(id.to_owned())),
            (_, Some(_), _) => None,
            ("help", None, _) | ("start", None, true) => Some(BotCommand::Help),
            ("status", None, _) => Some(BotCommand::Status),
            ("stop", None, _) | ("cancel", None, true) => Some(BotCommand::Stop),
            ("new" | "reset", None, true) => Some(BotCommand::New),
            ("retry", None, true) => Some(BotCommand::Retry),
            ("jobs", None, true) => Some(BotCommand::Jobs),
            ("usage", None, true) => Some(BotCommand::Usage),
            ("session", None, true) => Some(BotCommand::Session),
            ("agents", None, true) => Some(BotCommand::Agents),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listed_command_exists_and_is_in_the_help_text() {
        let help = BotCommand::help_text();
        for (name, _) in BOT_COMMANDS {
            let id = if BotCommand::takes_id(name) { " ask-1" } else { "" };
            for mark in ["/", "!"] {
                assert!(BotCommand::parse(&format!("{mark}{name}{id}")).is_some(), "{name}");
            }
            assert!(help.contains(&format!("`/{name}")), "{name}");
        }
    }

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
            ("retry", None),
            ("!retry", Some(BotCommand::Retry)),
            ("/jobs", Some(BotCommand::Jobs)),
            ("/agents now", None),
            ("/approve ask-1", Some(BotCommand::Approve("ask-1".into()))),
            ("!deny ask-1", Some(BotCommand::Deny("ask-1".into()))),
            ("approve ask-1", None),
            ("/approve", None),
            ("/approve ask-1 ask-2", None),
            ("stop the server", None),
            ("/review src", None),
            ("", None),
        ] {
            assert_eq!(BotCommand::parse(text), command, "{text}");
        }
    }
}
