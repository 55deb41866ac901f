//! `heeler session rewind`: restores the files of a session to a former state. Start at [`run`].

use clap::{ArgGroup, Args};
use heeler_query::rewind::{RewindPlan, RewindTarget};
use heeler_workspace::{FileRestoration, RestoreMode, RestoredFileAction};
use serde_json::json;

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output;
use crate::process_env;
use crate::rewind;
use crate::shared_args;

/// Help footer of `session rewind`.
pub(crate) const ABOUT: &str = "Examples:
  heeler session rewind sess-1a2b --at-message 6 --dry-run
  heeler session rewind sess-1a2b --at-message 6
  heeler session rewind sess-1a2b --start                  # before the first turn
  heeler session rewind sess-1a2b --list                   # states to return to
  heeler session rewind sess-1a2b --to rewind-20261119T125906-123

Only files that differ are changed. The current state is recorded first, and the command that restores
it is printed. The conversation, the git index, commits and branches are unchanged. A file is kept and
listed if no snapshot holds its content: ignored and very large files, submodules, repositories inside
the work tree. Files are compared in the whole git work tree, so changes by you and other agents since
that state are taken back too: look at --dry-run first. Refused while an agent works there.
`session fork` continues the conversation from a message; `/rewind` in a chat takes back the last turn
with its files.
Exit codes: 0 restored, 4 not found, 5 refused, or some files were kept.";

/// Arguments of `session rewind`.
#[derive(Args)]
#[command(group(
    ArgGroup::new("state").required(true).args(["at_message", "start", "to", "list"])
))]
pub(crate) struct SessionRewindArgs {
    /// Session ID or unique prefix
    #[arg(add = shared_args::sessions())]
    id: String,
    /// Restore the files at this message
    #[arg(short = 'm', long, value_name = "N")]
    at_message: Option<u64>,
    /// Restore the files before the session's first turn
    #[arg(long)]
    start: bool,
    /// Restore a state that an earlier rewind recorded
    #[arg(long, value_name = "STATE")]
    to: Option<String>,
    /// List the states that earlier rewinds recorded
    #[arg(long, conflicts_with = "dry_run")]
    list: bool,
    /// Print what would be changed, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `session rewind`.
pub(crate) fn run(global: &GlobalArgs, args: &SessionRewindArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    // This lookup also knows deleted sessions, and tells how to restore one.
    drop(context.find_session(&args.id)?);
    if args.list {
        return list(&context, args);
    }
    let target = match (args.at_message, &args.to) {
        (Some(number), _) => RewindTarget::Message(number),
        (None, Some(state)) => RewindTarget::State(state.clone()),
        (None, None) => RewindTarget::Start,
    };
    let plan = context.open_records()?.plan_rewind(&args.id, &target, process_env::now())?;
    if !context.quiet && !args.json {
        plan.note.iter().try_for_each(|words| output::print_note(words))?;
    }
    let restored = match args.dry_run {
        true => {
            let (mode, now) = (RestoreMode::DryRun, process_env::now());
            let planned = plan.snapshots.restore(&plan.tree, &plan.commit, mode, now);
            planned.map_err(heeler_query::QueryError::from)?
        }
        false => rewind::restore(&plan)?,
    };
    print(args, &context, &plan, &restored)?;
    let kept =
        restored.files.iter().filter(|file| matches!(file.action, RestoredFileAction::Kept(_)));
    match kept.count() as u64 {
        kept if kept > 0 && !args.dry_run => {
            let message = match kept {
                1 => "a file was kept".to_owned(),
                _ => format!("{} were kept", output::pluralize(kept, "file")),
            };
            Err(CommandFailure::message(FailureCode::Refused, message))
        }
        _ => Ok(()),
    }
}

fn list(context: &CommandContext, args: &SessionRewindArgs) -> CommandResult {
    let states = context.open_records()?.rewind_states(&args.id)?;
    if args.json {
        let states = states.iter().map(|(name, commit)| json!({ "state": name, "commit": commit }));
        return Ok(output::print_json(&json!({ "states": states.collect::<Vec<_>>() }))?);
    }
    if states.is_empty() {
        return Ok(output::print_note("no rewind of this session has recorded a state")?);
    }
    states.iter().try_for_each(|(name, _)| output::print_line(name.as_str()))?;
    Ok(())
}

fn print(
    args: &SessionRewindArgs,
    context: &CommandContext,
    plan: &RewindPlan,
    restored: &FileRestoration,
) -> CommandResult {
    let is_changed =
        restored.files.iter().any(|it| !matches!(it.action, RestoredFileAction::Kept(_)));
    if args.json {
        let files = restored.files.iter().map(|file| {
            let reason = match &file.action {
                RestoredFileAction::Kept(why) => Some(why),
                _ => None,
            };
            json!({ "path": file.path, "action": word(&file.action), "reason": reason })
        });
        return Ok(output::print_json(&json!({
            "session": plan.session.id,
            "commit": plan.commit,
            "note": plan.note,
            "dryRun": args.dry_run,
            "undo": (!args.dry_run).then(|| plan.undo_state()),
            "files": files.collect::<Vec<_>>(),
        }))?);
    }
    for file in &restored.files {
        let path = output::reveal_hidden(&file.path);
        output::print_line(match &file.action {
            RestoredFileAction::Kept(why) => format!("{:<8}  {path}: {why}", word(&file.action)),
            action => format!("{:<8}  {path}", word(action)),
        })?;
    }
    if context.quiet {
        return Ok(());
    }
    match (restored.files.is_empty(), args.dry_run) {
        (true, _) => output::print_note("the files are as they were then; nothing was changed")?,
        (false, true) => output::print_note("nothing was changed; leave out --dry-run to do it")?,
        (false, false) if is_changed => output::print_note(&format!(
            "{}; to take this back: heeler session rewind {} --to {}",
            rewind::describe(restored),
            plan.session.id,
            plan.undo_state()
        ))?,
        (false, false) => {}
    }
    Ok(())
}

fn word(action: &RestoredFileAction) -> &'static str {
    match action {
        RestoredFileAction::Created => "created",
        RestoredFileAction::Replaced => "replaced",
        RestoredFileAction::Removed => "removed",
        RestoredFileAction::Kept(_) => "kept",
    }
}
