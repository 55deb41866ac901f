//! `heeler session`: the list, one session, and what is done with them.

pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod fork;
pub(crate) mod list;
pub(crate) mod native;
mod past;
pub(crate) mod removal;
pub(crate) mod resume;
pub(crate) mod show;
pub(crate) mod taking;

use clap::Subcommand;
use heeler_model::Session;
use heeler_query::sessions;

use crate::cli::Global;
use crate::failure::Outcome;
use crate::place::Place;

#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions, last used first
    #[command(after_help = list::ABOUT)]
    List(list::ListArgs),
    /// Show one session: whose it is, where it came from, its jobs; what was said in it
    #[command(after_help = show::ABOUT)]
    Show(show::ShowArgs),
    /// Make a new session with the history of one, up to a message
    #[command(after_help = fork::ABOUT)]
    Fork(fork::ForkArgs),
    /// Show what changed in the files since a message
    #[command(after_help = diff::ABOUT)]
    Diff(diff::DiffArgs),
    /// Go on in a session, and watch
    #[command(after_help = resume::ABOUT)]
    Resume(resume::ResumeArgs),
    /// Write a session to one file, for another machine or to keep
    #[command(after_help = export::ABOUT)]
    Export(export::ExportArgs),
    /// Take over a session that was made with claude in a terminal
    #[command(after_help = taking::ADOPT)]
    Adopt(taking::AdoptArgs),
    /// Take over a session that was exported
    #[command(after_help = taking::IMPORT)]
    Import(taking::ImportArgs),
    /// Put a session into the trash
    #[command(after_help = removal::DELETE)]
    Delete(removal::DeleteArgs),
    /// Bring a deleted session back
    #[command(after_help = removal::RESTORE)]
    Restore(removal::RestoreArgs),
    /// Delete sessions that have expired or are completed
    #[command(after_help = removal::CLEANUP)]
    Cleanup(removal::CleanupArgs),
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
pub(crate) fn find(place: &Place, text: &str) -> Outcome<Session> {
    Ok(sessions::find(&place.reader_for("session", text)?, text)?)
}

/// Runs `session` and its verbs.
pub(crate) fn run(global: &Global, command: &SessionCommand) -> Outcome {
    match command {
        SessionCommand::List(args) => list::run(global, args),
        SessionCommand::Show(args) => show::run(global, args),
        SessionCommand::Fork(args) => fork::run(global, args),
        SessionCommand::Diff(args) => diff::run(global, args),
        SessionCommand::Resume(args) => resume::run(global, args),
        SessionCommand::Export(args) => export::run(global, args),
        SessionCommand::Adopt(args) => taking::adopt(global, args),
        SessionCommand::Import(args) => taking::import(global, args),
        SessionCommand::Delete(args) => removal::delete(global, args),
        SessionCommand::Restore(args) => removal::restore(global, args),
        SessionCommand::Cleanup(args) => removal::cleanup(global, args),
    }
}
