//! `heeler session`: the list, one session, and what is done with them.

pub(crate) mod fork;
pub(crate) mod removal;
pub(crate) mod resume;

use camino::Utf8Path;
use clap::{Args, Subcommand};
use heeler_model::{JobId, Session, SessionStatus};
use heeler_store::{Reader, SessionCursor, SessionFilter};
use serde_json::{Value, json};

use crate::cli::{self, Global, Page};
use crate::failure::Outcome;
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};
use crate::since;

/// How many of a session's jobs are shown.
const JOBS_SHOWN_MAX: usize = 10;

#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions, last used first
    List(ListArgs),
    /// Show one session: whose it is, where it came from, its jobs
    Show(ShowArgs),
    /// Make a new session with the history of one, up to a message
    #[command(after_help = fork::ABOUT)]
    Fork(fork::ForkArgs),
    /// Go on in a session, and watch
    #[command(after_help = resume::ABOUT)]
    Resume(resume::ResumeArgs),
    /// Put a session into the trash
    #[command(after_help = removal::DELETE)]
    Delete(removal::DeleteArgs),
    /// Bring a deleted session back
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
            SessionCommand::Resume(args) => args.how.json,
            SessionCommand::Delete(args) => args.json,
            SessionCommand::Restore(args) => args.json,
            SessionCommand::Cleanup(args) => args.json,
        }
    }
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

/// Arguments of `session show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The session's id or the agent's own id of it; a beginning will do while it is unique
    #[arg(add = cli::sessions())]
    id: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `session` and its verbs.
pub(crate) fn run(global: &Global, command: &SessionCommand) -> Outcome {
    match command {
        SessionCommand::List(args) => list(global, args),
        SessionCommand::Show(args) => show(global, args),
        SessionCommand::Fork(args) => fork::run(global, args),
        SessionCommand::Resume(args) => resume::run(global, args),
        SessionCommand::Delete(args) => removal::delete(global, args),
        SessionCommand::Restore(args) => removal::restore(global, args),
        SessionCommand::Cleanup(args) => removal::cleanup(global, args),
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
        &["ID", "AGENT", "STATUS", "MODE", "LAST USED", "MESSAGES", "JOBS", "FORKED FROM"],
        &["AGENT", "MODE", "FORKED FROM"],
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
            session.parent.as_ref().map_or("", |id| id.as_str()).into(),
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

fn show(global: &Global, args: &ShowArgs) -> Outcome {
    let place = Place::find(global)?;
    let reader = place.reader_for("session", &args.id)?;
    let session = reader.find_session(&args.id)?;
    let log = place.dir()?.session_log_path(place.home.as_deref(), &session);
    let log = log.filter(|log| log.is_file());
    if args.json {
        let mut value = to_json(&reader, &session)?;
        value["log"] = json!(log);
        return Ok(output::json(&json!({ "session": value }))?);
    }
    let jobs = jobs_of(&reader, &session)?;
    drop(reader);
    print_one(&session, &jobs, log.as_deref())
}

fn print_one(session: &Session, jobs: &[JobId], log: Option<&Utf8Path>) -> Outcome {
    let now = place::now();
    let when = |at| format!("{} ({})", heeler_model::iso_millis(at), output::relative(at, now));
    let from = session.parent.as_ref().map(|parent| match session.forked_at_message {
        Some(at) => format!("{parent}, at message {at}"),
        None => parent.to_string(),
    });
    let fields: [(&str, Option<Text>); 15] = [
        ("session", Some(session.id.as_str().into())),
        ("own id", session.agent_session_id.as_ref().map(|id| id.as_str().into())),
        ("agent", Some(session.agent.as_str().into())),
        ("status", Some(session.status.as_str().into())),
        ("forked from", from.map(Text::from)),
        ("mode", Some(session.mode.as_str().into())),
        ("channel", session.channel_id.as_deref().map(Text::from)),
        ("created", Some(when(session.created_at).into())),
        ("last used", Some(when(session.last_active_at).into())),
        ("messages", Some(session.message_count.to_string().into())),
        ("directory", session.working_directory.as_ref().map(|path| path.as_str().into())),
        ("runtime", Some(session.runtime.as_str().into()).filter(|_| !session.runtime.is_empty())),
        ("origin", session.origin.as_deref().map(Text::from)),
        ("log", log.map(|path| path.as_str().into())),
        ("jobs", (!jobs.is_empty()).then(|| newest(jobs).into())),
    ];
    for (name, value) in fields {
        output::field(name, value)?;
    }
    Ok(())
}

/// Returns the newest jobs, one a line, and how many are older.
fn newest(jobs: &[JobId]) -> String {
    let mut lines: Vec<String> =
        jobs.iter().rev().take(JOBS_SHOWN_MAX).map(ToString::to_string).collect();
    if jobs.len() > JOBS_SHOWN_MAX {
        lines.push(format!("and {} older", jobs.len() - JOBS_SHOWN_MAX));
    }
    lines.join("\n")
}

fn jobs_of(reader: &Reader, session: &Session) -> Outcome<Vec<JobId>> {
    match &session.agent_session_id {
        Some(id) => Ok(reader.job_ids_of_session(id)?),
        None => Ok(Vec::new()),
    }
}

fn to_json(reader: &Reader, session: &Session) -> Outcome<Value> {
    let jobs = jobs_of(reader, session)?;
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
