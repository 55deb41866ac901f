//! `heeler session delete`, `restore` and `cleanup`: sessions that go, and come back.

use std::io::IsTerminal as _;

use clap::Args;
use heeler_engine::{
    Answer, CLEANUP_MAX, Cleanup, Command, KeptSession, SessionOrder, plan_cleanup,
};
use heeler_model::{Session, SessionId};
use heeler_store::{DeletedSession, LookupError, Reader};
use jiff::Timestamp;
use serde_json::json;

use crate::cli::{self, Global};
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
use crate::fleet::Fleets;
use crate::output::{self, Lines};
use crate::place::{self, Place};
use crate::since;

/// What the help of `session delete` shows at its end.
pub(crate) const DELETE: &str = "Examples:
  heeler session delete sess-1a2b
  heeler session restore sess-1a2b
  heeler session delete sess-1a2b --purge

Its log goes to trash/sessions/ in the state directory, its record becomes a tombstone; `restore`
brings both back. A worktree of its own stays until it is purged. What the agent's own program
remembers (for claude: ~/.claude/projects) and the logs of its jobs stay in any case.
--purge removes log, snapshots and worktree for good, and asks before it does.
Exit codes: 0 deleted, 4 not found, 5 refused: it is in use, or nobody said yes.";

/// What the help of `session restore` shows at its end.
pub(crate) const RESTORE: &str = "Examples:
  heeler session restore               # what is in the trash
  heeler session restore sess-1a2b

Exit codes: 0 restored or listed, 4 not found, or it was purged.";

/// What of a session stays when it is purged.
const STAYS: &str = "the logs of its jobs and what the agent's own program remembers";

/// What the help of `session cleanup` shows at its end.
pub(crate) const CLEANUP: &str = "Examples:
  heeler session cleanup --dry-run
  heeler session cleanup --older-than 30d

Deletes sessions that have expired or are completed and were not used for so long. They go to the
trash: `heeler session restore ID` brings one back. What is in use, or what a fork has still to begin
from, is kept and named. --dry-run prints the same and changes nothing.
Exit codes: 0 done.";

/// Arguments of `session delete`.
#[derive(Args)]
pub(crate) struct DeleteArgs {
    /// The session; a beginning of its id will do while only one begins so
    #[arg(add = cli::sessions())]
    id: String,
    /// Remove its files for good
    #[arg(long)]
    purge: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `session restore`.
#[derive(Args)]
pub(crate) struct RestoreArgs {
    /// The session that was deleted; without one, those that are in the trash are listed
    id: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `session cleanup`.
#[derive(Args)]
pub(crate) struct CleanupArgs {
    /// Only those that were not used for so long
    #[arg(long, value_name = "TIME", default_value = "7d")]
    older_than: String,
    /// Say what would go, and leave it
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Deletes a session.
pub(crate) fn delete(global: &Global, args: &DeleteArgs) -> Outcome {
    let place = Place::find(global)?;
    place.bring_up_to_date()?;
    let reader = place.reader_for("session", &args.id)?;
    let session = match reader.find_session(&args.id) {
        Ok(session) => session,
        Err(LookupError::Unknown { .. }) => deleted(&reader, &args.id)?,
        Err(error) => return Err(error.into()),
    };
    drop(reader);
    if args.purge && !args.yes {
        confirm(&session)?;
    }
    let order = SessionOrder::Delete { session: session.id.clone(), purge: args.purge };
    let answer = daemon::ask(&place, &Command::Session { order, by: place.who() })?;
    if args.json || global.quiet {
        return daemon::tell(&answer, args.json);
    }
    let id = &session.id;
    match args.purge {
        true => {
            output::line(format!("{id} is gone for good"))?;
            Ok(output::note(&format!("{STAYS} are left"))?)
        }
        false => Ok(output::line(format!(
            "{id} is deleted; heeler session restore {id} brings it back"
        ))?),
    }
}

/// Finds a session that was deleted.
pub(super) fn deleted(reader: &Reader, text: &str) -> Outcome<Session> {
    let mut found = heeler_query::sessions::deleted(reader, text)?;
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => {
            let message = format!("no session `{text}` is in the trash");
            Err(Failure::message(Code::NotFound, message).hint("heeler session restore lists them"))
        }
        _ => Err(Failure::message(
            Code::Usage,
            format!("several deleted sessions begin with `{text}`"),
        )),
    }
}

fn confirm(session: &Session) -> Outcome {
    let messages = output::counted(session.message_count.unsigned_abs(), "message");
    if !std::io::stdin().is_terminal() {
        let message = format!("purging {} cannot be undone", session.id);
        return Err(Failure::message(Code::Refused, message).hint("--yes does it"));
    }
    output::complain(format!(
        "Its log, snapshots and worktree go. {STAYS} stay; see heeler session show {}",
        session.id
    ))?;
    let question = format!("Remove {} of {} ({messages}) for good?", session.id, session.agent);
    match output::ask(&question, false)? {
        true => Ok(()),
        false => Err(Failure::message(Code::Refused, "nothing was changed")),
    }
}

/// Brings a session back.
pub(crate) fn restore(global: &Global, args: &RestoreArgs) -> Outcome {
    let place = Place::find(global)?;
    place.bring_up_to_date()?;
    let Some(id) = &args.id else { return trash(&place, args.json) };
    let reader = place.reader_for("session", id)?;
    let session = deleted(&reader, id)?.id;
    drop(reader);
    let order = SessionOrder::Restore { session: session.clone() };
    let answer = daemon::ask(&place, &Command::Session { order, by: place.who() })?;
    if args.json || global.quiet {
        return daemon::tell(&answer, args.json);
    }
    Ok(output::line(format!("{session} is back"))?)
}

/// Lists what is in the trash.
fn trash(place: &Place, is_json: bool) -> Outcome {
    let all = match place.reader()? {
        Some(reader) => reader.deleted_sessions()?,
        None => Vec::new(),
    };
    let all: Vec<_> = all.into_iter().filter(|deleted| deleted.purged_at.is_none()).collect();
    if is_json {
        let rows = all.iter().map(|it| {
            json!({
                "id": it.session.id, "agentId": it.session.agent, "deletedAt": it.at,
                "deletedBy": it.by, "messageCount": it.session.message_count,
            })
        });
        let rows: Vec<_> = rows.collect();
        return Ok(output::json(&json!({ "sessions": rows, "total": rows.len() }))?);
    }
    if all.is_empty() {
        return Ok(output::line("no session is in the trash")?);
    }
    let now = place::now();
    let mut lines = Lines::new(&["ID", "AGENT", "DELETED", "BY", "MESSAGES"], &["AGENT", "BY"]);
    for DeletedSession { session, at, by, .. } in &all {
        lines.push(vec![
            session.id.as_str().into(),
            output::one_line(&session.agent).into(),
            output::relative(*at, now).into(),
            output::one_line(by).into(),
            session.message_count.to_string().into(),
        ]);
    }
    Ok(lines.print()?)
}

/// Deletes sessions that nobody is expected to use any more.
pub(crate) fn cleanup(global: &Global, args: &CleanupArgs) -> Outcome {
    let place = Place::find(global)?;
    place.bring_up_to_date()?;
    let before = since::moment(&args.older_than, place::now())?;
    let plan = plan(&place, before)?;
    if args.dry_run {
        let Cleanup { going, kept } = plan;
        return tell_cleanup(global, args, &going, &kept);
    }
    let order = SessionOrder::Cleanup { before };
    let answer = daemon::ask(&place, &Command::Session { order, by: place.who() })?;
    let Answer::Sessions { sessions, kept } = answer else {
        return Err(daemon::unexpected(&answer));
    };
    // What it was is known from before it went.
    let was = |id: &SessionId| plan.going.iter().find(|session| session.id == *id).cloned();
    let unknown = |id: &SessionId| Session::new(id.clone(), "", place::now());
    let gone: Vec<Session> =
        sessions.iter().map(|id| was(id).unwrap_or_else(|| unknown(id))).collect();
    tell_cleanup(global, args, &gone, &kept)
}

/// Finds out what a clean-up would do.
fn plan(place: &Place, before: Timestamp) -> Outcome<Cleanup> {
    let Some(reader) = place.reader()? else { return Ok(Cleanup::default()) };
    let home = place.home.clone().ok_or_else(place::no_home)?;
    let loaded = Fleets::of(place)?.into_loaded();
    Ok(plan_cleanup(&reader, loaded.as_ref(), &home, before, place::now())?)
}

/// Says what is deleted, or would be, and what is not.
fn tell_cleanup(
    global: &Global,
    args: &CleanupArgs,
    gone: &[Session],
    kept: &[KeptSession],
) -> Outcome {
    if args.json {
        let ids: Vec<_> = gone.iter().map(|session| &session.id).collect();
        let told = json!({
            "sessions": ids, "total": ids.len(), "kept": kept, "dryRun": args.dry_run,
        });
        return Ok(output::json(&told)?);
    }
    if global.quiet {
        return gone.iter().try_for_each(|session| Ok(output::line(session.id.as_str())?));
    }
    if !gone.is_empty() {
        print_gone(gone)?;
    }
    for KeptSession { reason, .. } in kept {
        output::note(&format!("kept: {reason}"))?;
    }
    let count = output::counted(gone.len() as u64, "session");
    output::note(&match args.dry_run {
        true => format!("{count} would be deleted"),
        false if gone.is_empty() => format!("{count} deleted"),
        false => format!("{count} deleted; `heeler session restore ID` brings one back"),
    })?;
    if gone.len() + kept.len() >= CLEANUP_MAX {
        output::note("there may be more: the same again")?;
    }
    Ok(())
}

fn print_gone(gone: &[Session]) -> Outcome {
    let now = place::now();
    let mut lines = Lines::new(&["ID", "AGENT", "LAST USED", "MESSAGES"], &["AGENT"]);
    for session in gone {
        lines.push(vec![
            session.id.as_str().into(),
            output::one_line(&session.agent).into(),
            output::relative(session.last_active_at, now).into(),
            session.message_count.to_string().into(),
        ]);
    }
    Ok(lines.print()?)
}
