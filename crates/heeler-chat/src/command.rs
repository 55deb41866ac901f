//! Chat commands: `/name` and arguments.

use std::time::Duration;

use thiserror::Error;

use crate::ChatTheme;

/// Shortest interval between two turns of a loop.
pub const LOOP_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Longest interval between two turns of a loop.
pub const LOOP_INTERVAL_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Commands: name, arguments, description. Completion and `/help` show them.
pub const COMMANDS: &[(&str, &str, &str)] = &[
    ("help", "", "show commands and keys"),
    ("agents", "", "list the agents of the fleet"),
    ("workers", "", "list the workers of this session, with state and cost"),
    ("view", "[WORKER|main]", "view a worker's transcript, or return to the main one"),
    ("model", "[NAME|default]", "show or set the model for the next turns"),
    ("permissions", "", "show the agent's permissions and open questions"),
    ("tasks", "[add TEXT|done N|drop N]", "show or change the task list"),
    ("loop", "\"GOAL\" INTERVAL", "repeat turns toward a goal"),
    ("loop-target", "INTERVAL [\"GOAL\"]", "the same; without a goal, work through the tasks"),
    ("start", "[INTERVAL]", "work through the tasks until all are done"),
    ("loops", "", "list the loops, including paused ones"),
    ("stop", "[N|all]", "stop loops"),
    ("restart", "[N|all]", "restart paused loops"),
    ("fork", "[N]", "continue in a copy of this session, up to message N of /search"),
    ("undo", "", "take the last turn back: continue from before it"),
    ("rewind", "", "the same, and restore the files as they were before that turn"),
    ("diff", "", "show the changes to files since the start of this session"),
    ("copy", "[N]", "copy the last answer, or its code block N, to the clipboard"),
    ("cost", "", "show the cost of this session"),
    ("search", "TEXT", "search this session"),
    ("export", "[FILE]", "write this session as Markdown"),
    ("sessions", "", "list the sessions that can be resumed"),
    ("status", "", "show the state of this session"),
    ("theme", "dark|light|none", "set the colours of the screen, until you leave"),
    ("background", "", "leave, and let the agent finish its turn; also /bg"),
    ("exit", "", "leave; also /quit, /q, Ctrl+D, Ctrl+C twice"),
];

/// Width of the first column of `/help`.
pub(crate) const COMMAND_COLUMNS: usize = 31;

/// Returns the text of `/help`: the commands, then the given keys with their descriptions.
pub fn help(keys: &[(&str, &str)]) -> String {
    let commands = COMMANDS.iter().map(|(name, args, what)| {
        let head = format!("/{name} {args}");
        format!("{:<COMMAND_COLUMNS$}  {what}", head.trim_end())
    });
    let said =
        "Any other text is sent to the agent, and so are its own commands, such as /compact; \
                //NAME sends /NAME."
            .to_owned();
    let keys = keys.iter().map(|(key, what)| format!("{key:<COMMAND_COLUMNS$}  {what}"));
    commands.chain([said]).chain(keys).collect::<Vec<String>>().join("\n")
}

/// Parsed command.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ChatCommand {
    Help,
    Agents,
    Workers,
    View(Option<String>),
    Model(Option<String>),
    Permissions,
    Tasks(TaskListChange),
    Loop { goal: Option<String>, every: Duration },
    Loops,
    Stop(Option<usize>),
    Restart(Option<usize>),
    Fork(Option<u64>),
    Undo,
    Rewind,
    Diff,
    Copy(Option<usize>),
    Cost,
    Search(String),
    Export(Option<String>),
    Sessions,
    Status,
    Theme(ChatTheme),
    Background,
    Exit,
}

impl ChatCommand {
    /// Returns true if the command writes to the session.
    pub(crate) fn writes(&self) -> bool {
        match self {
            ChatCommand::Model(name) => name.is_some(),
            ChatCommand::Tasks(change) => *change != TaskListChange::List,
            ChatCommand::Loop { .. }
            | ChatCommand::Stop(_)
            | ChatCommand::Restart(_)
            | ChatCommand::Undo
            | ChatCommand::Rewind => true,
            // A fork and an export write files of their own, not the session.
            _ => false,
        }
    }
}

/// Change to the task list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TaskListChange {
    List,
    Add(String),
    Done(usize),
    Drop(usize),
}

/// Interval of `/start` by default.
const START_INTERVAL_DEFAULT: Duration = Duration::from_secs(30);

/// Error in a command, as shown to the person.
#[derive(Debug, Error, PartialEq)]
#[error("{0}")]
pub(crate) struct ChatCommandError(String);

fn command_error(text: impl Into<String>) -> ChatCommandError {
    ChatCommandError(text.into())
}

/// Parses a line; `None` if it is a message and not a command. `//` escapes a message that begins
/// with `/`.
pub(crate) fn parse_command(line: &str) -> Option<Result<ChatCommand, ChatCommandError>> {
    let rest = line.trim().strip_prefix('/')?;
    if rest.starts_with('/') || rest.is_empty() {
        return None;
    }
    let (name, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    // A path is not a command.
    if name.contains('/') {
        return None;
    }
    Some(parse_command_name(name, rest.trim()))
}

fn parse_command_name(name: &str, rest: &str) -> Result<ChatCommand, ChatCommandError> {
    let some = (!rest.is_empty()).then(|| rest.to_owned());
    let plain = |command: ChatCommand| match rest.is_empty() {
        true => Ok(command),
        false => Err(command_error(format!("/{name} takes no arguments"))),
    };
    match name {
        "help" | "?" => plain(ChatCommand::Help),
        "agents" => plain(ChatCommand::Agents),
        "workers" => plain(ChatCommand::Workers),
        "view" => Ok(ChatCommand::View(some)),
        "model" => Ok(ChatCommand::Model(some)),
        "permissions" => plain(ChatCommand::Permissions),
        "tasks" => parse_tasks(rest),
        "loop" => parse_loop(rest),
        "loop-target" => parse_loop_target(rest),
        "start" => match some {
            None => Ok(ChatCommand::Loop { goal: None, every: START_INTERVAL_DEFAULT }),
            Some(every) => Ok(ChatCommand::Loop { goal: None, every: parse_interval(&every)? }),
        },
        "loops" => plain(ChatCommand::Loops),
        "stop" => Ok(ChatCommand::Stop(parse_selection(name, rest)?)),
        "restart" => Ok(ChatCommand::Restart(parse_selection(name, rest)?)),
        "fork" => Ok(ChatCommand::Fork(
            some.map(|it| parse_number(name, &it)).transpose()?.map(|it| it as u64),
        )),
        "undo" => plain(ChatCommand::Undo),
        "rewind" => plain(ChatCommand::Rewind),
        "diff" => plain(ChatCommand::Diff),
        "copy" => Ok(ChatCommand::Copy(some.map(|it| parse_number(name, &it)).transpose()?)),
        "cost" => plain(ChatCommand::Cost),
        "search" => some
            .map(ChatCommand::Search)
            .ok_or_else(|| command_error("/search TEXT: the text is missing")),
        "export" => Ok(ChatCommand::Export(some)),
        "sessions" => plain(ChatCommand::Sessions),
        "status" => plain(ChatCommand::Status),
        "theme" => ChatTheme::parse(rest)
            .map(ChatCommand::Theme)
            .ok_or_else(|| command_error("/theme knows dark, light and none")),
        "background" | "bg" => plain(ChatCommand::Background),
        "exit" | "quit" | "q" => plain(ChatCommand::Exit),
        other => Err(unknown_command(other)),
    }
}

/// Returns the name of the command that a line begins with, if any.
pub(crate) fn command_name(line: &str) -> Option<&str> {
    let rest = line.trim().strip_prefix('/')?;
    rest.split(char::is_whitespace).next().filter(|name| !name.is_empty())
}

fn unknown_command(name: &str) -> ChatCommandError {
    let distance = |known: &&str| strsim::damerau_levenshtein(known, name);
    let near = COMMANDS.iter().map(|(known, ..)| *known).min_by_key(distance);
    let near = near.filter(|near| distance(near) <= 2);
    match near {
        Some(near) => command_error(format!(
            "unknown command /{name}; did you mean /{near}? //{name} sends it as text"
        )),
        None => command_error(format!(
            "unknown command /{name}; /help lists all commands; //{name} sends it as text"
        )),
    }
}

fn parse_selection(name: &str, rest: &str) -> Result<Option<usize>, ChatCommandError> {
    match rest {
        "" | "all" => Ok(None),
        text => parse_number(name, text).map(Some),
    }
}

fn parse_number(name: &str, text: &str) -> Result<usize, ChatCommandError> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| command_error(format!("/{name}: `{text}` is not a number from 1")))
}

fn parse_tasks(rest: &str) -> Result<ChatCommand, ChatCommandError> {
    let (verb, what) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let what = what.trim();
    Ok(ChatCommand::Tasks(match verb {
        "" => TaskListChange::List,
        "add" if what.is_empty() => {
            return Err(command_error("/tasks add TEXT: the text is missing"));
        }
        "add" => TaskListChange::Add(what.to_owned()),
        "done" => TaskListChange::Done(parse_number("tasks done", what)?),
        "drop" => TaskListChange::Drop(parse_number("tasks drop", what)?),
        other => {
            return Err(command_error(format!("/tasks knows add, done and drop, not `{other}`")));
        }
    }))
}

/// Parses `"<goal>" <interval>`.
fn parse_loop(rest: &str) -> Result<ChatCommand, ChatCommandError> {
    let usage = || command_error("/loop \"GOAL\" INTERVAL, as in /loop \"make the tests pass\" 5m");
    let (goal, every) = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').ok_or_else(usage)?,
        // Without quotes the last word is the interval.
        None => rest.rsplit_once(char::is_whitespace).ok_or_else(usage)?,
    };
    let goal = goal.trim();
    if goal.is_empty() || every.trim().is_empty() {
        return Err(usage());
    }
    Ok(ChatCommand::Loop { goal: Some(goal.to_owned()), every: parse_interval(every.trim())? })
}

/// Parses `<interval> ["<goal>"]`.
fn parse_loop_target(rest: &str) -> Result<ChatCommand, ChatCommandError> {
    if rest.is_empty() {
        return Err(command_error(
            "/loop-target INTERVAL [\"GOAL\"], as in /loop-target 5m \"stay green\"",
        ));
    }
    let (every, goal) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let goal = goal.trim();
    let goal = goal.strip_prefix('"').and_then(|it| it.strip_suffix('"')).unwrap_or(goal).trim();
    let goal = (!goal.is_empty()).then(|| goal.to_owned());
    Ok(ChatCommand::Loop { goal, every: parse_interval(every)? })
}

/// Parses `30s`, `5m`, `2h`, `1d`; a bare number is minutes.
fn parse_interval(text: &str) -> Result<Duration, ChatCommandError> {
    let usage = || command_error(format!("`{text}` is not an interval such as 30s, 5m, 2h or 1d"));
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let count: u64 = digits.parse().map_err(|_| usage())?;
    let unit = match &text[digits.len()..] {
        "s" => 1,
        "" | "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err(usage()),
    };
    // A huge number must be refused as too long and not wrap around.
    let every = Duration::from_secs(count.saturating_mul(unit));
    if every < LOOP_INTERVAL_MIN || every > LOOP_INTERVAL_MAX {
        return Err(command_error(format!("`{text}`: a loop's interval must be from 1s to 7d")));
    }
    Ok(every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: ChatCommand) {
        assert_eq!(parse_command(line), Some(Ok(expected)), "{line}");
    }

    #[track_caller]
    fn fails(line: &str, expected: &str) {
        let error = parse_command(line).unwrap().unwrap_err().to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }

    fn goal(text: &str, seconds: u64) -> ChatCommand {
        let goal = (!text.is_empty()).then(|| text.to_owned());
        ChatCommand::Loop { goal, every: Duration::from_secs(seconds) }
    }

    #[test]
    fn a_theme_has_a_name() {
        check("/theme light", ChatCommand::Theme(ChatTheme::Light));
        check("/theme none", ChatCommand::Theme(ChatTheme::None));
        fails("/theme", "dark, light and none");
        fails("/theme pink", "dark, light and none");
    }

    #[test]
    fn loops_are_written_as_agents_fleet_documents_them() {
        check("/loop \"fix it all\" 5m", goal("fix it all", 300));
        check("/loop fix it all 30s", goal("fix it all", 30));
        check("/loop-target 2h \"stay green\"", goal("stay green", 7200));
        check("/loop-target 2", goal("", 120));
        check("/start", goal("", 30));
        check("/start 1d", goal("", 86_400));
        fails("/loop", "/loop \"GOAL\" INTERVAL");
        fails("/loop \"never closed 5m", "/loop \"GOAL\" INTERVAL");
        fails("/loop \"x\" soon", "not an interval");
        fails("/loop x 0s", "from 1s to 7d");
        fails("/loop x 8d", "from 1s to 7d");
        fails("/loop x 99999999999999999999s", "not an interval");
    }

    #[test]
    fn every_command_that_is_listed_is_known_and_no_other() {
        for (name, ..) in COMMANDS {
            let known = parse_command(&format!("/{name}")).unwrap();
            let is_known = known.as_ref().err().is_none_or(|e| !e.0.starts_with("unknown command"));
            assert!(is_known, "/{name}");
        }
        fails("/exti", "did you mean /exit");
        fails("/zzz", "/help lists");
        fails("/undo 3", "takes no arguments");
        fails("/fork x", "not a number");
        fails("/tasks add", "the text is missing");
    }

    #[test]
    fn what_is_no_command_is_said() {
        for line in ["hello", "//help", "/", "/etc/passwd is odd", "  ", "a /help"] {
            assert_eq!(parse_command(line), None, "{line}");
        }
        check("  /Q ".to_lowercase().as_str(), ChatCommand::Exit);
        check("/quit", ChatCommand::Exit);
        check("/bg", ChatCommand::Background);
        check("/tasks done 2", ChatCommand::Tasks(TaskListChange::Done(2)));
        check("/stop all", ChatCommand::Stop(None));
        check("/fork 3", ChatCommand::Fork(Some(3)));
    }
}
