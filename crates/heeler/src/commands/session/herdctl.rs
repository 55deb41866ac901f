//! `heeler sessions`, as herdctl spells it: the list, and `sessions resume`, which opens Claude in the
//! terminal. Start at [`run`].

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use clap::{Args, Subcommand};
use heeler_model::{Session, SessionStatus};
use heeler_store::SessionFilter;

use super::list::{self, SessionListArgs};
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output;
use crate::process_env;
use crate::shared_args;

/// Arguments of `sessions`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct SessionsArgs {
    #[command(subcommand)]
    command: Option<SessionsCommand>,
    #[command(flatten)]
    pub(crate) list: SessionListArgs,
}

#[derive(Subcommand)]
enum SessionsCommand {
    /// Open a session in the terminal with `claude --resume`
    Resume(SessionsResumeArgs),
}

/// Arguments of `sessions resume`.
#[derive(Args)]
struct SessionsResumeArgs {
    /// Session ID or unique prefix, or an agent [default: the session that was used last]
    #[arg(add = shared_args::sessions())]
    id: Option<String>,
}

/// Runs `sessions` and `sessions resume`.
pub(crate) fn run(global: &GlobalArgs, args: &SessionsArgs) -> CommandResult {
    match &args.command {
        Some(SessionsCommand::Resume(args)) => resume(global, args.id.as_deref()),
        None => {
            list::run(global, &args.list)?;
            // herdctl's `-v` adds the commands that continue the sessions.
            match global.verbose > 0 && !args.list.page.json {
                true => print_resume_commands(global, args),
                false => Ok(()),
            }
        }
    }
}

fn print_resume_commands(global: &GlobalArgs, args: &SessionsArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let records = context.open_records()?;
    let wanted = args.list.query(process_env::now())?;
    for session in records.sessions(&wanted, process_env::now())?.sessions {
        let details = records.session(&session.id, process_env::now())?;
        output::print_command(&session.id, details.resume_command.as_deref())?;
    }
    Ok(())
}

/// Replaces this process with Claude, in the session's directory.
fn resume(global: &GlobalArgs, wanted: Option<&str>) -> CommandResult {
    let context = CommandContext::find(global)?;
    context.migrate_database()?;
    let session = find_session(&context, wanted)?;
    let id = &session.id;
    // Two writers of one native session would lose messages.
    if session.status == SessionStatus::Active {
        let message = format!("session {id} is in use by a job of {}", session.agent);
        return Err(CommandFailure::message(FailureCode::Refused, message)
            .hint(format!("heeler session resume {id} -p '…' (the job waits for its turn)")));
    }
    let command = context.open_records()?.session(id.as_str(), process_env::now())?.resume_command;
    let command = command.ok_or_else(|| {
        let message = format!("session {id} has no native Claude session that could be opened");
        CommandFailure::message(FailureCode::Refused, message)
            .hint(format!("heeler session resume {id} -p '…'"))
    })?;
    output::print_note(&format!("{command}\nyour messages are imported by the next job"))?;
    Err(exec(&command))
}

/// Returns only if the shell cannot be started.
#[expect(clippy::disallowed_methods, reason = "the user's own Claude, in the user's terminal")]
fn exec(command: &str) -> CommandFailure {
    let error = Command::new("sh").args(["-c", command]).exec();
    CommandFailure::new(FailureCode::Failed, anyhow::Error::new(error).context("cannot start sh"))
}

/// Finds a session by ID, by agent, or the one that was used last.
fn find_session(context: &CommandContext, wanted: Option<&str>) -> CommandResult<Session> {
    let none = || {
        CommandFailure::message(FailureCode::NotFound, "there is no session yet")
            .hint("heeler trigger AGENT -p '…'")
    };
    let Some(reader) = context.open_reader()? else { return Err(none()) };
    let agent = match wanted {
        Some(text) => match context.find_agent(&reader, text) {
            Ok(agent) => Some(agent),
            Err(_) => return context.find_session(text),
        },
        None => None,
    };
    let filter = SessionFilter { agent, ..SessionFilter::default() };
    // The list has the most recently used session first.
    reader.sessions(&filter, None, 1)?.pop().ok_or_else(none)
}
