//! `heeler password`: sets, removes and lists users' passwords for the dashboard.
//!
//! Passwords are hashed here; the daemon receives only the hash. Start at [`run`].

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};

use clap::{Args, Subcommand};
use heeler_engine::{AccessOperation, DaemonCommand};
use heeler_model::{AccessName, AccessScope};
use heeler_query::access::{UserList, UserSummary};
use heeler_server::{PASSWORD_BYTES_MAX, hash_password};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable};
use crate::process_env;
use crate::shared_args;

/// Help footer of `password set`.
const SET: &str = "Examples:
  heeler password set
  heeler password set ann --scope read
  pass show heeler | heeler password set ann

At a terminal, the password is asked twice and not shown; from a pipe, one line is read. It needs at
least 10 characters. Only its Argon2 hash is stored. Browsers logged in with the old password are logged out.
Exit codes: 0 set, 2 too short or not repeated correctly, 5 refused, 130 interrupted.";

#[derive(Subcommand)]
pub(crate) enum PasswordCommand {
    /// Set a user's password
    #[command(after_help = SET)]
    Set(PasswordSetArgs),
    /// Remove a user's password, and log the user out everywhere
    #[command(after_help = "Exit codes: 0 removed, 4 no such user.")]
    Remove(PasswordRemoveArgs),
    /// List users with a password
    #[command(after_help = "Exit codes: 0 listed.")]
    List(PasswordListArgs),
}

/// Arguments of `password set`.
#[derive(Args)]
pub(crate) struct PasswordSetArgs {
    /// User name [default: yours]
    name: Option<String>,
    /// Actions the user is allowed [default: unchanged, or admin for a new user]
    #[arg(long, value_parser = shared_args::scope())]
    scope: Option<AccessScope>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `password remove`.
#[derive(Args)]
pub(crate) struct PasswordRemoveArgs {
    /// User name [default: yours]
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

/// Runs `password` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, command: &PasswordCommand) -> CommandResult {
    let context = CommandContext::find(global)?;
    match command {
        PasswordCommand::Set(args) => {
            let name = name(&context, args.name.as_deref())?;
            let usage = |error| CommandFailure::new(FailureCode::Usage, error);
            // Hashed in this process: the daemon and its log never see the password.
            let hash = hash_password(&check_text(read_password(&name)?)?).map_err(usage)?;
            let order = AccessOperation::SetPassword { name, scope: args.scope, hash };
            let answer = daemon::request(
                &context,
                &DaemonCommand::Access { order, by: context.caller_name() },
            )?;
            daemon::print_answer(&answer, args.json)
        }
        PasswordCommand::Remove(args) => {
            let name = name(&context, args.name.as_deref())?;
            let order = AccessOperation::RemovePassword { name };
            let answer = daemon::request(
                &context,
                &DaemonCommand::Access { order, by: context.caller_name() },
            )?;
            daemon::print_answer(&answer, args.json)
        }
        PasswordCommand::List(args) => list(&context, args),
    }
}

fn name(context: &CommandContext, given: Option<&str>) -> CommandResult<AccessName> {
    let name = given.map_or_else(|| context.caller_name(), str::to_owned);
    name.parse().map_err(|error| {
        CommandFailure::new(FailureCode::Usage, error).hint("heeler password set NAME")
    })
}

fn list(context: &CommandContext, args: &PasswordListArgs) -> CommandResult {
    let found = match context.open_reader()? {
        Some(reader) => UserList::read(&reader).map_err(anyhow::Error::from)?,
        None => UserList::default(),
    };
    if args.json {
        return Ok(output::print_json(&found)?);
    }
    if found.people.is_empty() {
        return Ok(output::print_line(
            "no user has a password; set one with: heeler password set",
        )?);
    }
    let now = process_env::now();
    let mut lines = OutputTable::new(&["NAME", "SCOPE", "CHANGED"], &[]);
    for UserSummary { name, scope, changed_at, .. } in found.people {
        let changed = output::relative_time(changed_at, now);
        lines.push(vec![name.into(), scope.as_str().into(), changed.into()]);
    }
    Ok(lines.print()?)
}

/// Asks for a password, twice at a terminal.
fn read_password(name: &AccessName) -> CommandResult<String> {
    if !io::stdin().is_terminal() {
        let mut line = String::new();
        // One byte for the newline, and one to detect a password that is too long.
        let most = PASSWORD_BYTES_MAX as u64 + 2;
        io::BufReader::new(io::stdin().take(most)).read_line(&mut line)?;
        // Other trailing blanks are kept, because they may be part of the password.
        return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    let first = ask_hidden(&format!("password of {name}: "))?;
    // Typed blindly, a wrong key would lock the user out.
    match ask_hidden("repeat password: ")? == first {
        true => Ok(first),
        false => Err(CommandFailure::message(FailureCode::Usage, "the passwords do not match")),
    }
}

/// Refuses control characters: an arrow key types some, and they are invisible in a password.
fn check_text(password: String) -> CommandResult<String> {
    match password.chars().any(char::is_control) {
        true => Err(CommandFailure::message(
            FailureCode::Usage,
            "the password has control characters, such as those of an arrow key; nothing was changed",
        )),
        false => Ok(password),
    }
}

/// Terminal mode that hides typed text; restored on drop.
struct HiddenInputGuard(Termios);

impl HiddenInputGuard {
    fn new() -> io::Result<HiddenInputGuard> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        // Read Ctrl-C as a byte: a signal would end the process and leave the terminal without
        // echo.
        hidden.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        // Flush: what was typed before the question was echoed, and is not part of the password.
        tcsetattr(io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(HiddenInputGuard(before))
    }
}

impl Drop for HiddenInputGuard {
    fn drop(&mut self) {
        // On failure there is nothing left to try.
        let _restored = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

/// Asks for a line without echo.
fn ask_hidden(question: &str) -> CommandResult<String> {
    let mut err = io::stderr();
    err.write_all(question.as_bytes())?;
    err.flush()?;
    let hidden = HiddenInputGuard::new()?;
    // Bytes, because the terminal no longer collects lines or handles Backspace.
    let typed = read_typed_line(io::stdin().lock().bytes());
    // Before the newline and any error are printed.
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

/// Reads a typed line; returns `None` if it was interrupted.
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
            // Ctrl-D ends the input only on an empty line, as in a shell.
            END if line.is_empty() => return Ok(None),
            BACKSPACE | DELETE => {
                // A character may have several bytes.
                while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            ERASE_LINE => line.clear(),
            byte => line.push(byte),
        }
        // One byte too many is kept, so that the check of the length refuses it.
        if line.len() > PASSWORD_BYTES_MAX {
            break;
        }
    }
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "the password is not UTF-8 text");
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
