//! `heeler session delete`, `restore` and `cleanup`: [`delete`], [`restore`] and [`cleanup`].

use std::io::IsTerminal as _;

use clap::Args;
use heeler_engine::{
    CLEANUP_MAX, CleanupPlan, CommandReply, DaemonCommand, RetainedSession, SessionOperation,
    plan_cleanup,
};
use heeler_model::{Session, SessionId};
use heeler_store::{DeletedSession, IdLookupError, StoreReader};
use jiff::Timestamp;
use serde_json::json;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config::OptionalFleetConfig;
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable};
use crate::process_env;
use crate::shared_args;
use crate::time_argument;

/// Help footer of `session delete`.
pub(crate) const DELETE: &str = "Examples:
  heeler session delete sess-1a2b
  heeler session restore sess-1a2b
  heeler session delete sess-1a2b --purge

The transcript moves to trash/sessions/ in the state directory, and the record is marked as deleted;
`restore` brings both back. The session's worktree is kept until the session is purged. The native
session (for claude: in ~/.claude/projects) and the transcripts of its jobs are always kept.
--purge removes transcript, snapshots and worktree permanently, after confirmation.
Exit codes: 0 deleted, 4 not found, 5 refused: in use, or not confirmed.";

/// Help footer of `session restore`.
pub(crate) const RESTORE: &str = "Examples:
  heeler session restore               # list the trash
  heeler session restore sess-1a2b

Exit codes: 0 restored or listed, 4 not found, or purged.";

/// Data of a session that a purge keeps.
const KEPT_AFTER_PURGE: &str = "the transcripts of its jobs and its native session";

/// Help footer of `session cleanup`.
pub(crate) const CLEANUP: &str = "Examples:
  heeler session cleanup --dry-run
  heeler session cleanup --older-than 30d

Deletes expired and completed sessions that were not used for the given time. They move to the trash;
`heeler session restore ID` restores one. A session that is in use, or that a fork still needs to
start from, is kept and named. --dry-run prints the same and changes nothing.
Exit codes: 0 done.";

/// Arguments of `session delete`.
#[derive(Args)]
pub(crate) struct SessionDeleteArgs {
    /// Session ID or unique prefix
    #[arg(add = shared_args::sessions())]
    id: String,
    /// Remove its files permanently
    #[arg(long)]
    purge: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `session restore`.
#[derive(Args)]
pub(crate) struct SessionRestoreArgs {
    /// ID of the deleted session; without one, the trash is listed
    id: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `session cleanup`.
#[derive(Args)]
pub(crate) struct SessionCleanupArgs {
    /// Delete only sessions that were not used for this long
    #[arg(long, value_name = "TIME", default_value = "7d")]
    older_than: String,
    /// Print what would be deleted, and change nothing
    #[arg(long)]
    dry_run: bool,
    // In other commands this is a number, so nobody can tell what it means here.
    #[arg(short = 'n', hide = true)]
    n: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `session delete`.
pub(crate) fn delete(global: &GlobalArgs, args: &SessionDeleteArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    context.migrate_database()?;
    let reader = context.reader_for("session", &args.id)?;
    let session = match reader.find_session(&args.id) {
        Ok(session) => session,
        // A session in the trash can still be purged.
        Err(IdLookupError::Unknown { .. }) => find_deleted(&reader, &args.id)?,
        Err(error) => return Err(error.into()),
    };
    drop(reader);
    // A plain deletion can be undone, so it needs no question.
    if args.purge && !args.yes {
        confirm(&session)?;
    }
    let order = SessionOperation::Delete { session: session.id.clone(), purge: args.purge };
    let answer =
        daemon::request(&context, &DaemonCommand::Session { order, by: context.caller_name() })?;
    if args.json || global.quiet {
        return daemon::print_answer(&answer, args.json);
    }
    let id = &session.id;
    match args.purge {
        true => {
            output::print_line(format!("{id} was purged"))?;
            Ok(output::print_note(&format!("kept: {KEPT_AFTER_PURGE}"))?)
        }
        false => Ok(output::print_line(format!(
            "{id} was deleted; to restore it: heeler session restore {id}"
        ))?),
    }
}

/// Finds a deleted session by ID or prefix.
pub(super) fn find_deleted(reader: &StoreReader, text: &str) -> CommandResult<Session> {
    let mut found = heeler_query::sessions::find_deleted_sessions(reader, text)?;
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => {
            let message = format!("no session `{text}` is in the trash");
            Err(CommandFailure::message(FailureCode::NotFound, message)
                .hint("heeler session restore lists the trash"))
        }
        _ => Err(CommandFailure::message(
            FailureCode::Usage,
            format!("several deleted sessions begin with `{text}`"),
        )),
    }
}

fn confirm(session: &Session) -> CommandResult {
    let messages = output::pluralize(session.message_count.unsigned_abs(), "message");
    if !std::io::stdin().is_terminal() {
        let message = format!("purging {} cannot be undone", session.id);
        return Err(CommandFailure::message(FailureCode::Refused, message).hint("--yes purges it"));
    }
    output::print_error(format!(
        "This removes its transcript, snapshots and worktree. Kept: {KEPT_AFTER_PURGE}; see heeler session show {}",
        session.id
    ))?;
    let question = format!("Remove {} of {} ({messages}) permanently?", session.id, session.agent);
    match output::confirm(&question, false)? {
        true => Ok(()),
        false => Err(CommandFailure::message(FailureCode::Refused, "nothing was changed")),
    }
}

/// Runs `session restore`.
pub(crate) fn restore(global: &GlobalArgs, args: &SessionRestoreArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    context.migrate_database()?;
    let Some(id) = &args.id else { return list_trash(&context, args.json) };
    let reader = context.reader_for("session", id)?;
    let session = find_deleted(&reader, id)?.id;
    drop(reader);
    let order = SessionOperation::Restore { session: session.clone() };
    let answer =
        daemon::request(&context, &DaemonCommand::Session { order, by: context.caller_name() })?;
    if args.json || global.quiet {
        return daemon::print_answer(&answer, args.json);
    }
    Ok(output::print_line(format!("{session} was restored"))?)
}

fn list_trash(context: &CommandContext, is_json: bool) -> CommandResult {
    let all = match context.open_reader()? {
        Some(reader) => reader.deleted_sessions()?,
        None => Vec::new(),
    };
    // Of a purged session only the record is left, and nothing can be restored.
    let all: Vec<_> = all.into_iter().filter(|deleted| deleted.purged_at.is_none()).collect();
    if is_json {
        let rows = all.iter().map(|it| {
            json!({
                "id": it.session.id, "agentId": it.session.agent, "deletedAt": it.deleted_at,
                "deletedBy": it.deleted_by, "messageCount": it.session.message_count,
            })
        });
        let rows: Vec<_> = rows.collect();
        return Ok(output::print_json(&json!({ "sessions": rows, "total": rows.len() }))?);
    }
    if all.is_empty() {
        return Ok(output::print_line("no session is in the trash")?);
    }
    let now = process_env::now();
    let mut lines =
        OutputTable::new(&["ID", "AGENT", "DELETED", "BY", "MESSAGES"], &["AGENT", "BY"]);
    for DeletedSession { session, deleted_at: at, deleted_by: by, .. } in &all {
        lines.push(vec![
            session.id.as_str().into(),
            output::one_line(&session.agent).into(),
            output::relative_time(*at, now).into(),
            output::one_line(by).into(),
            session.message_count.to_string().into(),
        ]);
    }
    Ok(lines.print()?)
}

/// Runs `session cleanup`.
pub(crate) fn cleanup(global: &GlobalArgs, args: &SessionCleanupArgs) -> CommandResult {
    if args.n {
        return Err(CommandFailure::message(
            FailureCode::Usage,
            "`-n` is not an option of `session cleanup`, because it is a number in other commands: \
             --dry-run prints what would be deleted",
        ));
    }
    let context = CommandContext::find(global)?;
    context.migrate_database()?;
    let before = time_argument::parse_moment(&args.older_than, process_env::now())?;
    // Planned before the request: afterwards the deleted sessions can no longer be described.
    let recent = plan_recent(&context, before)?;
    let plan = plan(&context, before)?;
    if args.dry_run {
        let CleanupPlan { removed: going, retained } = plan;
        return print_cleanup(global, args, &going, &retained, recent);
    }
    let order = SessionOperation::Cleanup { before };
    let answer =
        daemon::request(&context, &DaemonCommand::Session { order, by: context.caller_name() })?;
    let CommandReply::Sessions { sessions, kept: retained } = answer else {
        return Err(daemon::unexpected(&answer));
    };
    // The deleted sessions are described by the plan made before.
    let was = |id: &SessionId| plan.removed.iter().find(|session| session.id == *id).cloned();
    // A session may have expired between the plan and the request.
    let unknown = |id: &SessionId| Session::new(id.clone(), "", process_env::now());
    let gone: Vec<Session> =
        sessions.iter().map(|id| was(id).unwrap_or_else(|| unknown(id))).collect();
    print_cleanup(global, args, &gone, &retained, recent)
}

/// Counts the ended sessions that are kept only because they were used recently.
fn plan_recent(context: &CommandContext, before: Timestamp) -> CommandResult<u64> {
    let ended = plan(context, process_env::now())?.removed;
    Ok(ended.iter().filter(|session| session.last_active_at >= before).count() as u64)
}

/// Plans a clean-up without changing anything.
fn plan(context: &CommandContext, before: Timestamp) -> CommandResult<CleanupPlan> {
    let Some(reader) = context.open_reader()? else { return Ok(CleanupPlan::default()) };
    let home = context.home.clone().ok_or_else(process_env::no_home)?;
    let loaded = OptionalFleetConfig::load(context)?.into_loaded();
    Ok(plan_cleanup(&reader, loaded.as_ref(), &home, before, process_env::now())?)
}

/// Prints the sessions that are deleted, or would be, and those that are kept.
fn print_cleanup(
    global: &GlobalArgs,
    args: &SessionCleanupArgs,
    gone: &[Session],
    retained: &[RetainedSession],
    recent: u64,
) -> CommandResult {
    if args.json {
        let ids: Vec<_> = gone.iter().map(|session| &session.id).collect();
        let document = json!({
            "sessions": ids, "total": ids.len(), "kept": retained, "recentlyUsed": recent,
            "dryRun": args.dry_run,
        });
        return Ok(output::print_json(&document)?);
    }
    if global.quiet {
        return gone.iter().try_for_each(|session| Ok(output::print_line(session.id.as_str())?));
    }
    if !gone.is_empty() {
        print_deleted(gone)?;
    }
    for RetainedSession { reason, .. } in retained {
        output::print_note(&format!("kept: {reason}"))?;
    }
    if recent > 0 {
        let recent = output::pluralize(recent, "session");
        let (age, all) = (&args.older_than, "--older-than 1s deletes them too");
        output::print_note(&format!("kept: {recent} used within {age}; {all}"))?;
    }
    let count = output::pluralize(gone.len() as u64, "session");
    output::print_note(&match args.dry_run {
        true => format!("{count} would be deleted"),
        false if gone.is_empty() => format!("{count} deleted"),
        false => format!("{count} deleted; `heeler session restore ID` restores one"),
    })?;
    // The daemon removes a limited number per request.
    if gone.len() + retained.len() >= CLEANUP_MAX {
        output::print_note("there may be more; run the command again")?;
    }
    Ok(())
}

fn print_deleted(gone: &[Session]) -> CommandResult {
    let now = process_env::now();
    let mut lines = OutputTable::new(&["ID", "AGENT", "LAST USED", "MESSAGES"], &["AGENT"]);
    for session in gone {
        lines.push(vec![
            session.id.as_str().into(),
            output::one_line(&session.agent).into(),
            output::relative_time(session.last_active_at, now).into(),
            session.message_count.to_string().into(),
        ]);
    }
    Ok(lines.print()?)
}
