//! `heeler session list`.

use clap::{Args, Subcommand};
use heeler_model::{Session, SessionStatus};
use heeler_store::{Reader, SessionCursor, SessionFilter};
use serde_json::{Value, json};

use crate::cli::{self, Global, Page};
use crate::failure::Outcome;
use crate::output::{self, Lines};
use crate::place::{self, Place};
use crate::since;

#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions, last used first
    List(ListArgs),
}

/// Arguments of `session list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Only those in this state
    #[arg(short = 'S', long, value_name = "STATUS", value_parser = cli::session_status())]
    status: Option<SessionStatus>,
    #[command(flatten)]
    pub(crate) page: Page,
}

/// Runs `session` and its verbs.
pub(crate) fn run(global: &Global, command: &SessionCommand) -> Outcome {
    match command {
        SessionCommand::List(args) => list(global, args),
    }
}

/// Lists sessions.
pub(crate) fn list(global: &Global, args: &ListArgs) -> Outcome {
    let place = Place::find(global)?;
    let since =
        args.page.since.as_deref().map(|text| since::moment(text, place::now())).transpose()?;
    let limit = args.page.limit.get() as usize;
    let Some(reader) = place.reader()? else { return print(&place, &[], &[], 0, args) };
    let agent =
        args.page.agent.as_deref().map(|name| place.known_agent(&reader, name)).transpose()?;
    let filter = SessionFilter { agent, status: args.status, since };
    let before = match &args.page.before {
        None => None,
        Some(id) => Some(SessionCursor::after(&reader.find_session(id)?)),
    };
    let sessions = reader.sessions(&filter, before.as_ref(), limit)?;
    let total = reader.count_sessions(&filter)?;
    let rows = match args.page.json {
        true => sessions.iter().map(|session| to_json(&reader, session)).collect::<Outcome<_>>()?,
        false => Vec::new(),
    };
    drop(reader);
    print(&place, &sessions, &rows, total, args)
}

fn print(
    place: &Place,
    sessions: &[Session],
    json: &[Value],
    total: i64,
    args: &ListArgs,
) -> Outcome {
    if args.page.json {
        let limit = args.page.limit;
        return Ok(output::json(&json!({ "sessions": json, "total": total, "limit": limit }))?);
    }
    let status = args.status.map(SessionStatus::as_str);
    let Some(last) = sessions.last() else {
        return Ok(output::line(args.page.nothing("sessions", status, place))?);
    };
    let now = place::now();
    let mut lines = Lines::new(
        &["ID", "AGENT", "STATUS", "MODE", "LAST USED", "MESSAGES", "JOBS", "OWN ID"],
        &["AGENT", "MODE", "OWN ID"],
    );
    for session in sessions {
        lines.push(vec![
            session.id.as_str().into(),
            output::one_line(&session.agent).into(),
            session.status.as_str().into(),
            session.mode.as_str().into(),
            output::relative(session.last_active_at, now).into(),
            session.message_count.to_string().into(),
            session.job_count.to_string().into(),
            session.agent_session_id.as_ref().map_or("", |id| id.as_str()).into(),
        ]);
    }
    lines.print()?;
    if total > sessions.len() as i64 {
        let (shown, total) = (sessions.len(), output::grouped(total.unsigned_abs()));
        let next = args.page.next("session list", status, last.id.as_str());
        let older = format!("showing {shown} of {total}; older: {next}");
        output::note(&older)?;
    }
    Ok(())
}

fn to_json(reader: &Reader, session: &Session) -> Outcome<Value> {
    let jobs = match &session.agent_session_id {
        Some(id) => reader.job_ids_of_session(id)?,
        None => Vec::new(),
    };
    Ok(json!({
        "id": session.id,
        "agentSessionId": session.agent_session_id,
        "agentId": session.agent,
        "mode": session.mode,
        "approvals": session.approvals,
        "status": session.status,
        "channelId": session.channel_id,
        "createdAt": session.created_at,
        "lastActiveAt": session.last_active_at,
        "messageCount": session.message_count,
        "tokenEstimate": session.token_estimate,
        "jobCount": session.job_count,
        "jobs": jobs,
        "workingDirectory": session.working_directory,
        "runtime": session.runtime,
        "parent": session.parent,
        "forkedAtMessage": session.forked_at_message,
        "origin": session.origin,
    }))
}
