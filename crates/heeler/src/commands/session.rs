//! `heeler session`: the list, one session, and what is done with them.

pub(crate) mod adopt;
pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod fork;
mod history;
pub(crate) mod list;
pub(crate) mod native;
pub(crate) mod removal;
pub(crate) mod resume;
pub(crate) mod show;

use clap::Subcommand;
use heeler_model::Session;
use heeler_query::sessions;

use crate::cli::GlobalArgs;
use crate::context::CommandContext;
use crate::failure::CommandResult;

#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions, last used first
    #[command(after_help = list::ABOUT)]
    List(list::SessionListArgs),
    /// Show one session: whose it is, where it came from, its jobs; what was said in it
    #[command(after_help = show::ABOUT)]
    Show(show::SessionShowArgs),
    /// Make a new session with the history of one, up to a message
    #[command(after_help = fork::ABOUT)]
    Fork(fork::SessionForkArgs),
    /// Show what changed in the files since a message
    #[command(after_help = diff::ABOUT)]
    Diff(diff::SessionDiffArgs),
    /// Go on in a session, and watch
    #[command(after_help = resume::ABOUT)]
    Resume(resume::SessionResumeArgs),
    /// Write a session to one file, for another machine or to keep
    #[command(after_help = export::ABOUT)]
    Export(export::SessionExportArgs),
    /// Take over a session that was made with claude in a terminal
    #[command(after_help = adopt::ADOPT)]
    Adopt(adopt::SessionAdoptArgs),
    /// Take over a session that was exported
    #[command(after_help = adopt::IMPORT)]
    Import(adopt::SessionImportArgs),
    /// Put a session into the trash
    #[command(after_help = removal::DELETE)]
    Delete(removal::SessionDeleteArgs),
    /// Bring a deleted session back
    #[command(after_help = removal::RESTORE)]
    Restore(removal::SessionRestoreArgs),
    /// Delete sessions that have expired or are completed
    #[command(after_help = removal::CLEANUP)]
    Cleanup(removal::SessionCleanupArgs),
}

impl SessionCommand {
    /// Says whether stdout is promised to be JSON.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            SessionCommand::List(args) => args.page.json,
            SessionCommand::Show(args) => args.json,
            SessionCommand::Fork(args) => args.how.json,
            SessionCommand::Diff(args) => args.json,
            SessionCommand::Resume(args) => args.how.json,
            SessionCommand::Export(_) => false,
            SessionCommand::Adopt(args) => args.json,
            SessionCommand::Import(args) => args.json,
            SessionCommand::Delete(args) => args.json,
            SessionCommand::Restore(args) => args.json,
            SessionCommand::Cleanup(args) => args.json,
        }
    }
}

/// Finds a session that a command names; of one that was deleted it says how it comes back.
pub(crate) fn find(place: &CommandContext, text: &str) -> CommandResult<Session> {
    Ok(sessions::find_session(&place.reader_for("session", text)?, text)?)
}

/// Runs `session` and its verbs.
pub(crate) fn run(global: &GlobalArgs, command: &SessionCommand) -> CommandResult {
    match command {
        SessionCommand::List(args) => list::run(global, args),
        SessionCommand::Show(args) => show::run(global, args),
        SessionCommand::Fork(args) => fork::run(global, args),
        SessionCommand::Diff(args) => diff::run(global, args),
        SessionCommand::Resume(args) => resume::run(global, args),
        SessionCommand::Export(args) => export::run(global, args),
        SessionCommand::Adopt(args) => adopt::adopt(global, args),
        SessionCommand::Import(args) => adopt::import(global, args),
        SessionCommand::Delete(args) => removal::delete(global, args),
        SessionCommand::Restore(args) => removal::restore(global, args),
        SessionCommand::Cleanup(args) => removal::cleanup(global, args),
    }
}
