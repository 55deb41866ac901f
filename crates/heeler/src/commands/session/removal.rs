//! `heeler session delete`, `restore` and `cleanup`: sessions that go, and come back.

use std::io::IsTerminal as _;

use clap::Args;
use heeler_engine::{Answer, Command, SessionOrder};
use heeler_model::{Session, SessionStatus};
use heeler_store::{DeletedSession, LookupError, Reader};
use jiff::Timestamp;
use serde_json::json;

use crate::cli::{self, Global};
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
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

/// What the help of `session cleanup` shows at its end.
pub(crate) const CLEANUP: &str = "Examples:
  heeler session cleanup --dry-run
  heeler session cleanup --older-than 30d

Deletes sessions that have expired or are completed and were not used for so long. They go to the
trash: `heeler session restore ID` brings one back.
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
    output::line(match args.purge {
        true => format!("{id} is gone for good"),
        false => format!("{id} is deleted; heeler session restore {id} brings it back"),
    })?;
    Ok(())
}

/// Finds a session that was deleted.
pub(super) fn deleted(reader: &Reader, text: &str) -> Outcome<Session> {
    let all = reader.deleted_sessions()?.into_iter().map(|deleted| deleted.session);
    let is_meant = |session: &Session| {
        let own = session.agent_session_id.as_ref().map(|id| id.as_str());
        session.id.as_str().starts_with(text) || own.is_some_and(|own| own.starts_with(text))
    };
    let mut found: Vec<Session> = all.filter(is_meant).collect();
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
    let question = format!("Remove {} of {} ({messages}) for good?", session.id, session.agent);
    if !std::io::stdin().is_terminal() {
        let message = format!("purging {} cannot be undone", session.id);
        return Err(Failure::message(Code::Refused, message).hint("--yes does it"));
    }
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
    if args.dry_run {
        return list(&place, args, before);
    }
    let order = SessionOrder::Cleanup { before };
    let answer = daemon::ask(&place, &Command::Session { order, by: place.who() })?;
    let Answer::Sessions { sessions } = &answer else { return Err(daemon::unexpected(&answer)) };
    if args.json || global.quiet {
        return daemon::tell(&answer, args.json);
    }
    for session in sessions {
        output::line(session.as_str())?;
    }
    let count = output::counted(sessions.len() as u64, "session");
    Ok(output::note(&format!("{count} deleted; `heeler session restore ID` brings one back"))?)
}

/// Says what would be deleted.
fn list(place: &Place, args: &CleanupArgs, before: Timestamp) -> Outcome {
    let mut old: Vec<Session> = Vec::new();
    if let Some(reader) = place.reader()? {
        for status in [SessionStatus::Expired, SessionStatus::Completed] {
            old.extend(reader.unused_sessions(status, before, usize::MAX)?);
        }
    }
    if args.json {
        let ids: Vec<_> = old.iter().map(|session| &session.id).collect();
        return Ok(output::json(&json!({ "sessions": ids, "total": ids.len(), "dryRun": true }))?);
    }
    let now = place::now();
    for session in &old {
        let used = output::relative(session.last_active_at, now);
        let agent = output::one_line(&session.agent);
        output::line(format!("{} {agent} {} {used}", session.id, session.status))?;
    }
    let count = output::counted(old.len() as u64, "session");
    Ok(output::note(&format!("{count} would be deleted"))?)
}
