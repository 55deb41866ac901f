//! `heeler password`: passwords of people, for the dashboard.
//!
//! A password is hashed here; the daemon hears its hash alone.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};

use clap::{Args, Subcommand};
use heeler_engine::{AccessOrder, Command};
use heeler_model::{AccessName, Scope};
use heeler_query::access::{PeopleList, PersonItem};
use heeler_server::{PASSWORD_BYTES_MAX, hash_password};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::cli::{self, Global};
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Lines};
use crate::place::{self, Place};

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
    Set(SetArgs),
    /// Take a person's password away, and log them out everywhere
    #[command(after_help = "Exit codes: 0 removed, 4 they have none.")]
    Remove(RemoveArgs),
    /// List the people who have a password
    #[command(after_help = "Exit codes: 0 listed.")]
    List(ListArgs),
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
pub(crate) struct SetArgs {
    /// Who [default: you]
    name: Option<String>,
    /// What they may [default: as before, else admin]
    #[arg(long, value_parser = cli::scope())]
    scope: Option<Scope>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `password remove`.
#[derive(Args)]
pub(crate) struct RemoveArgs {
    /// Who [default: you]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `password list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `password` and its verbs.
pub(crate) fn run(global: &Global, command: &PasswordCommand) -> Outcome {
    let place = Place::find(global)?;
    match command {
        PasswordCommand::Set(args) => {
            let name = name(&place, args.name.as_deref())?;
            let usage = |error| Failure::new(Code::Usage, error);
            let hash = hash_password(&read(&name)?).map_err(usage)?;
            let order = AccessOrder::SetPassword { name, scope: args.scope, hash };
            let answer = daemon::ask(&place, &Command::Access { order, by: place.who() })?;
            daemon::tell(&answer, args.json)
        }
        PasswordCommand::Remove(args) => {
            let name = name(&place, args.name.as_deref())?;
            let order = AccessOrder::RemovePassword { name };
            let answer = daemon::ask(&place, &Command::Access { order, by: place.who() })?;
            daemon::tell(&answer, args.json)
        }
        PasswordCommand::List(args) => list(&place, args),
    }
}

fn name(place: &Place, given: Option<&str>) -> Outcome<AccessName> {
    let name = given.map_or_else(|| place.who(), str::to_owned);
    name.parse().map_err(|error| Failure::new(Code::Usage, error).hint("heeler password set NAME"))
}

fn list(place: &Place, args: &ListArgs) -> Outcome {
    let found = match place.reader()? {
        Some(reader) => PeopleList::read(&reader).map_err(anyhow::Error::from)?,
        None => PeopleList::default(),
    };
    if args.json {
        return Ok(output::json(&found)?);
    }
    if found.people.is_empty() {
        return Ok(output::line("nobody has a password: heeler password set")?);
    }
    let now = place::now();
    let mut lines = Lines::new(&["NAME", "SCOPE", "CHANGED"], &[]);
    for PersonItem { name, scope, changed_at, .. } in found.people {
        let changed = output::relative(changed_at, now);
        lines.push(vec![name.into(), scope.as_str().into(), changed.into()]);
    }
    Ok(lines.print()?)
}

/// Asks for a password, twice where somebody types it.
fn read(name: &AccessName) -> Outcome<String> {
    if !io::stdin().is_terminal() {
        let mut line = String::new();
        // One byte for the line's end, and one to know that there is too much.
        let most = PASSWORD_BYTES_MAX as u64 + 2;
        io::BufReader::new(io::stdin().take(most)).read_line(&mut line)?;
        return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    let first = ask(&format!("password of {name}: "))?;
    match ask("the same again: ")? == first {
        true => Ok(first),
        false => Err(Failure::message(Code::Usage, "the two are not the same")),
    }
}

/// A terminal that shows nothing of what is typed, until this is dropped.
struct Hidden(Termios);

impl Hidden {
    fn new() -> io::Result<Hidden> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        // Ctrl-C is read as well: ended by it, we would leave a terminal that shows nothing.
        hidden.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        tcsetattr(io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Hidden(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // There is nothing more to try.
        let _restored = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

/// Asks for something that is not shown.
fn ask(question: &str) -> Outcome<String> {
    let mut err = io::stderr();
    err.write_all(question.as_bytes())?;
    err.flush()?;
    let hidden = Hidden::new()?;
    let typed = typed(io::stdin().lock().bytes());
    drop(hidden);
    err.write_all(b"\n")?;
    match typed? {
        Some(typed) => Ok(typed),
        None => Err(Failure::message(Code::Interrupted, "interrupted: nothing was changed")),
    }
}

/// Reads a line as it is typed; `None` if it was interrupted.
fn typed(bytes: impl Iterator<Item = io::Result<u8>>) -> io::Result<Option<String>> {
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
        let typed = |text: &str| typed(text.bytes().map(Ok)).unwrap();
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
