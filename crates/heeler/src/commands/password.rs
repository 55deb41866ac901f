//! `heeler password`: passwords of people, for the dashboard.
//!
//! A password is hashed here; the daemon hears its hash alone.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};

use clap::{Args, Subcommand};
use heeler_engine::{AccessOperation, DaemonCommand};
use heeler_model::{AccessName, AccessScope};
use heeler_query::access::{UserList, UserSummary};
use heeler_server::{PASSWORD_BYTES_MAX, hash_password};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::cli::{self, GlobalArgs};
use crate::context::{self, CommandContext};
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output::{self, OutputTable};

/// What the help of `password set` shows at its end.
const SET: &str = "Examples:
  heeler password set
  heeler password set ann --scope read
  pass show heeler | heeler password set ann

It is asked for twice and not shown; from a pipe one line is read. It has at least 10 characters, and
only its Argon2 hash is on record. Whoever had an older one is logged out everywhere.
Exit codes: 0 set, 2 it is too short or was not typed twice alike, 5 refused, 130 interrupted.";

#[derive(Subcommand)]
pub(crate) enum PasswordCommand {
    /// Give a person a password, or another one
    #[command(after_help = SET)]
    Set(PasswordSetArgs),
    /// Take a person's password away, and log them out everywhere
    #[command(after_help = "Exit codes: 0 removed, 4 they have none.")]
    Remove(PasswordRemoveArgs),
    /// List the people who have a password
    #[command(after_help = "Exit codes: 0 listed.")]
    List(PasswordListArgs),
}

impl PasswordCommand {
    /// Says whether stdout is promised to be JSON.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            PasswordCommand::Set(args) => args.json,
            PasswordCommand::Remove(args) => args.json,
            PasswordCommand::List(args) => args.json,
        }
    }
}

/// Arguments of `password set`.
#[derive(Args)]
pub(crate) struct PasswordSetArgs {
    /// Who [default: you]
    name: Option<String>,
    /// What they may [default: as before, else admin]
    #[arg(long, value_parser = cli::scope())]
    scope: Option<AccessScope>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `password remove`.
#[derive(Args)]
pub(crate) struct PasswordRemoveArgs {
    /// Who [default: you]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `password list`.
#[derive(Args)]
pub(crate) struct PasswordListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `password` and its verbs.
pub(crate) fn run(global: &GlobalArgs, command: &PasswordCommand) -> CommandResult {
    let place = CommandContext::find(global)?;
    match command {
        PasswordCommand::Set(args) => {
            let name = name(&place, args.name.as_deref())?;
            let usage = |error| CommandFailure::new(FailureCode::Usage, error);
            let hash = hash_password(&read_password(&name)?).map_err(usage)?;
            let order = AccessOperation::SetPassword { name, scope: args.scope, hash };
            let answer =
                daemon::request(&place, &DaemonCommand::Access { order, by: place.caller_name() })?;
            daemon::print_answer(&answer, args.json)
        }
        PasswordCommand::Remove(args) => {
            let name = name(&place, args.name.as_deref())?;
            let order = AccessOperation::RemovePassword { name };
            let answer =
                daemon::request(&place, &DaemonCommand::Access { order, by: place.caller_name() })?;
            daemon::print_answer(&answer, args.json)
        }
        PasswordCommand::List(args) => list(&place, args),
    }
}

fn name(place: &CommandContext, given: Option<&str>) -> CommandResult<AccessName> {
    let name = given.map_or_else(|| place.caller_name(), str::to_owned);
    name.parse().map_err(|error| {
        CommandFailure::new(FailureCode::Usage, error).hint("heeler password set NAME")
    })
}

fn list(place: &CommandContext, args: &PasswordListArgs) -> CommandResult {
    let found = match place.open_reader()? {
        Some(reader) => UserList::read(&reader).map_err(anyhow::Error::from)?,
        None => UserList::default(),
    };
    if args.json {
        return Ok(output::print_json(&found)?);
    }
    if found.people.is_empty() {
        return Ok(output::print_line("nobody has a password: heeler password set")?);
    }
    let now = context::now();
    let mut lines = OutputTable::new(&["NAME", "SCOPE", "CHANGED"], &[]);
    for UserSummary { name, scope, changed_at, .. } in found.people {
        let changed = output::relative_time(changed_at, now);
        lines.push(vec![name.into(), scope.as_str().into(), changed.into()]);
    }
    Ok(lines.print()?)
}

/// Asks for a password, twice where somebody types it.
fn read_password(name: &AccessName) -> CommandResult<String> {
    if !io::stdin().is_terminal() {
        let mut line = String::new();
        // One byte for the line's end, and one to know that there is too much.
        let most = PASSWORD_BYTES_MAX as u64 + 2;
        io::BufReader::new(io::stdin().take(most)).read_line(&mut line)?;
        return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    let first = ask_hidden(&format!("password of {name}: "))?;
    match ask_hidden("the same again: ")? == first {
        true => Ok(first),
        false => Err(CommandFailure::message(FailureCode::Usage, "the two are not the same")),
    }
}

/// A terminal that shows nothing of what is typed, until this is dropped.
struct HiddenInputGuard(Termios);

impl HiddenInputGuard {
    fn new() -> io::Result<HiddenInputGuard> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        // Ctrl-C is read as well: ended by it, we would leave a terminal that shows nothing.
        hidden.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        tcsetattr(io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(HiddenInputGuard(before))
    }
}

impl Drop for HiddenInputGuard {
    fn drop(&mut self) {
        // There is nothing more to try.
        let _restored = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

/// Asks for something that is not shown.
fn ask_hidden(question: &str) -> CommandResult<String> {
    let mut err = io::stderr();
    err.write_all(question.as_bytes())?;
    err.flush()?;
    let hidden = HiddenInputGuard::new()?;
    let typed = read_typed_line(io::stdin().lock().bytes());
    drop(hidden);
    err.write_all(b"\n")?;
    match typed? {
        Some(typed) => Ok(typed),
        None => Err(CommandFailure::message(
            FailureCode::Interrupted,
            "interrupted: nothing was changed",
        )),
    }
}

/// Reads a line as it is typed; `None` if it was interrupted.
fn read_typed_line(bytes: impl Iterator<Item = io::Result<u8>>) -> io::Result<Option<String>> {
    const INTERRUPT: u8 = 3;
    const END: u8 = 4;
    const BACKSPACE: u8 = 8;
    const ERASE_LINE: u8 = 21;
    const DELETE: u8 = 127;
    let mut line: Vec<u8> = Vec::new();
    for byte in bytes {
        match byte? {
            b'\r' | b'\n' => break,
            INTERRUPT => return Ok(None),
            END if line.is_empty() => return Ok(None),
            BACKSPACE | DELETE => {
                // A character may have several bytes.
                while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            ERASE_LINE => line.clear(),
            byte => line.push(byte),
        }
        if line.len() > PASSWORD_BYTES_MAX {
            break;
        }
    }
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text");
    String::from_utf8(line).map(Some).map_err(not_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_can_be_mended_and_interrupted() {
        let typed = |text: &str| read_typed_line(text.bytes().map(Ok)).unwrap();
        assert_eq!(typed("secret\rrest").as_deref(), Some("secret"));
        assert_eq!(typed("säx\u{7f}\u{7f}\u{8}soll\n").as_deref(), Some("soll"));
        assert_eq!(typed("wrong\u{15}right\n").as_deref(), Some("right"));
        assert_eq!(typed("secret\u{3}\n"), None);
        assert_eq!(typed("\u{4}"), None);
        assert_eq!(typed("").as_deref(), Some(""));
        let long = "x".repeat(2 * PASSWORD_BYTES_MAX);
        assert_eq!(typed(&long).unwrap().len(), PASSWORD_BYTES_MAX + 1);
    }
}
