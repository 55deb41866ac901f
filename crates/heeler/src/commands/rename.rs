//! `heeler jobs rename` and `heeler session rename`: titles that people give. Start at [`job`].

use clap::Args;
use heeler_engine::{DaemonCommand, RenamedItem};

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::shared_args;

/// Help footer of `jobs rename`.
pub(crate) const OF_JOB: &str = "Example:
  heeler jobs rename k3v9q1 'Cart: total of an empty cart'

The title is one line of at most 120 characters. Without one, a job has the first line of its prompt.
Exit codes: 0 renamed, 2 the title has no text, 4 not found.";

/// Help footer of `session rename`.
pub(crate) const OF_SESSION: &str = "Example:
  heeler session rename 1a2b3c4d 'Cart: total of an empty cart'

A session has the title of its first job, which is renamed too. One without a job is refused.
Exit codes: 0 renamed, 2 the title has no text, 4 not found, 5 no job yet.";

/// Arguments of `jobs rename`.
#[derive(Args)]
pub(crate) struct JobRenameArgs {
    /// Job ID or unique prefix
    #[arg(add = shared_args::jobs())]
    id: String,
    /// New title
    title: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `session rename`.
#[derive(Args)]
pub(crate) struct SessionRenameArgs {
    /// Session ID or unique prefix
    #[arg(add = shared_args::sessions())]
    id: String,
    /// New title
    title: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `jobs rename`.
pub(crate) fn job(global: &GlobalArgs, args: &JobRenameArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let job = context.reader_for("job", &args.id)?.find_job(&args.id)?.head.id;
    rename(&context, RenamedItem::Job(job), &args.title, args.json)
}

/// Runs `session rename`.
pub(crate) fn session(global: &GlobalArgs, args: &SessionRenameArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let session = context.reader_for("session", &args.id)?.find_session(&args.id)?.id;
    rename(&context, RenamedItem::Session(session), &args.title, args.json)
}

fn rename(context: &CommandContext, item: RenamedItem, title: &str, json: bool) -> CommandResult {
    context.migrate_database()?;
    let command =
        DaemonCommand::Rename { item, title: title.to_owned(), by: context.caller_name() };
    daemon::print_answer(&daemon::request(context, &command)?, json)
}
