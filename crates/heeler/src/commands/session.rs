//! `heeler session` and its subcommands, one module each. Start at [`run`].

pub(crate) mod adopt;
pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod fork;
pub(crate) mod herdctl;
mod history;
pub(crate) mod list;
pub(crate) mod moving;
pub(crate) mod native;
pub(crate) mod removal;
pub(crate) mod resume;
pub(crate) mod rewind;
pub(crate) mod show;

use clap::Subcommand;

use crate::commands::rename;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;

#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions, most recently used first
    #[command(after_help = list::ABOUT)]
    List(list::SessionListArgs),
    /// Show one session: agent, origin, jobs and messages
    #[command(after_help = show::ABOUT)]
    Show(show::SessionShowArgs),
    /// Fork a session: copy it, up to a given message, to a new session
    #[command(after_help = fork::ABOUT)]
    Fork(fork::SessionForkArgs),
    /// Give a session a title
    #[command(after_help = rename::OF_SESSION)]
    Rename(rename::SessionRenameArgs),
    /// Show file changes since a message
    #[command(after_help = diff::ABOUT)]
    Diff(diff::SessionDiffArgs),
    /// Restore the files of a session to a former state
    #[command(after_help = rewind::ABOUT)]
    Rewind(rewind::SessionRewindArgs),
    /// Continue a session with a new job, and watch the job
    #[command(after_help = resume::ABOUT)]
    Resume(resume::SessionResumeArgs),
    /// Write a session to one file, for another machine or to keep
    #[command(after_help = export::ABOUT)]
    Export(export::SessionExportArgs),
    /// Take over a native session that was made with an agent program
    #[command(after_help = adopt::ADOPT)]
    Adopt(adopt::SessionAdoptArgs),
    /// Import a session file written by `session export`
    #[command(after_help = adopt::IMPORT)]
    Import(adopt::SessionImportArgs),
    /// Move the files of a session to another host
    #[command(after_help = moving::ABOUT)]
    Move(moving::SessionMoveArgs),
    /// Move a session to the trash
    #[command(after_help = removal::DELETE)]
    Delete(removal::SessionDeleteArgs),
    /// Restore a deleted session
    #[command(after_help = removal::RESTORE)]
    Restore(removal::SessionRestoreArgs),
    /// Delete expired and completed sessions
    #[command(after_help = removal::CLEANUP)]
    Cleanup(removal::SessionCleanupArgs),
}

/// Runs `session` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, command: &SessionCommand) -> CommandResult {
    match command {
        SessionCommand::List(args) => list::run(global, args),
        SessionCommand::Show(args) => show::run(global, args),
        SessionCommand::Fork(args) => fork::run(global, args),
        SessionCommand::Rename(args) => rename::session(global, args),
        SessionCommand::Diff(args) => diff::run(global, args),
        SessionCommand::Rewind(args) => rewind::run(global, args),
        SessionCommand::Resume(args) => resume::run(global, args),
        SessionCommand::Export(args) => export::run(global, args),
        SessionCommand::Adopt(args) => adopt::adopt(global, args),
        SessionCommand::Import(args) => adopt::import(global, args),
        SessionCommand::Move(args) => moving::run(global, args),
        SessionCommand::Delete(args) => removal::delete(global, args),
        SessionCommand::Restore(args) => removal::restore(global, args),
        SessionCommand::Cleanup(args) => removal::cleanup(global, args),
    }
}
