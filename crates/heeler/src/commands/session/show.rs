//! `heeler session show`: one session, and with `--history` what was said in it.

use std::num::NonZeroUsize;

use clap::Args;
use heeler_model::iso_millis;
use heeler_query::messages::{self, MessageListQuery};
use heeler_query::sessions::SessionDetails;
use heeler_store::history::HistoryPage;
use serde_json::json;

use super::find;
use super::history::{self, MessageExtent};
use super::native::{self, NativeSessionReader};
use crate::cli::{self, GlobalArgs};
use crate::context::{self, CommandContext};
use crate::failure::{CommandResult, FailureCode};
use crate::output::{self, SafeText};

/// What the help of `session show` shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler session show sess-1a2b
  heeler session show sess-1a2b --history
  heeler session show sess-1a2b --history -n 100 --before 41
  heeler session show sess-1a2b --history -n 1 --full      # all of the last message

Messages are numbered as `session fork --at-message` takes them. A `*` says that a fork can be cut
behind a message, `*+` that the files of that moment were kept as well (`fork --workspace`). What
the agent does not remember is marked: it was killed before it kept it, or went on from elsewhere.";

/// How many of a session's jobs, forks and successors are shown.
const SHOWN_MAX: usize = 10;

/// Arguments of `session show`.
#[derive(Args)]
pub(crate) struct SessionShowArgs {
    /// The session's id or the agent's own id of it; a beginning will do while it is unique. One
    /// that was made with claude in a terminal is found by claude's id
    #[arg(add = cli::sessions())]
    id: String,
    /// Show what was said in it, with the numbers of messages
    #[arg(short = 'H', long)]
    history: bool,
    /// How many messages to show, of the last ones
    #[arg(short = 'n', long, value_name = "N", default_value = "20", requires = "history")]
    number: NonZeroUsize,
    /// Only messages before this one; for the page before
    #[arg(long, value_name = "M", requires = "history")]
    before: Option<u64>,
    /// Show all of each message, however long it is
    #[arg(long, requires = "history")]
    full: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which messages are asked for.
pub(super) struct HistoryRange {
    pub(super) before: Option<u64>,
    pub(super) count: usize,
}

impl SessionShowArgs {
    /// Returns which messages are asked for, if any are.
    pub(super) fn page(&self) -> Option<HistoryRange> {
        let page = HistoryRange { before: self.before, count: self.number.get() };
        self.history.then_some(page)
    }

    /// Prints messages of a session.
    pub(super) fn print_page(&self, session: &str, past: &HistoryPage) -> CommandResult {
        if self.json {
            return Ok(output::print_json(&messages::message_page(session, past))?);
        }
        history::print(
            session,
            past,
            if self.full { MessageExtent::Full } else { MessageExtent::Brief },
        )
    }
}

/// Shows a session.
pub(crate) fn run(global: &GlobalArgs, args: &SessionShowArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    if let Err(unknown) = find(&place, &args.id) {
        let natives = NativeSessionReader::open(&place)
            .ok()
            .filter(|_| unknown.code == FailureCode::NotFound);
        let Some(natives) = natives else { return Err(unknown) };
        let found = natives.find(&args.id)?.ok_or(unknown)?;
        return native::show(&place, &natives, &found, args);
    }
    let records = place.open_records()?;
    if let Some(page) = args.page() {
        let wanted = MessageListQuery { before: page.before, limit: page.count };
        let (session, past) = records.history(&args.id, wanted)?;
        return args.print_page(session.id.as_str(), &past);
    }
    let session = records.session(&args.id, context::now())?;
    match args.json {
        true => Ok(output::print_json(&json!({ "session": session }))?),
        false => print(&session),
    }
}

fn print(details: &SessionDetails) -> CommandResult {
    let now = context::now();
    let session = &details.item;
    let when = |at| format!("{} ({})", iso_millis(at), output::relative_time(at, now));
    let from = session.parent.as_ref().map(|parent| match session.forked_at_message {
        Some(at) => format!("{parent}, at message {at}"),
        None => parent.clone(),
    });
    let unbegun = details.is_unbegun.then_some("it takes its history over when it begins");
    let text = |text: &Option<String>| text.as_deref().map(SafeText::from);
    let fields: [(&str, Option<SafeText>); 21] = [
        ("session", Some(session.id.as_str().into())),
        ("own id", text(&session.agent_session_id)),
        ("agent", Some(session.agent_id.as_str().into())),
        ("status", Some(session.status.as_str().into())),
        ("forked from", from.map(SafeText::from)),
        ("not begun", unbegun.map(SafeText::from)),
        ("continues", text(&session.continues)),
        ("continued by", newest(&details.continued_by).map(SafeText::from)),
        ("forks", newest(&details.forks).map(SafeText::from)),
        ("mode", Some(session.mode.as_str().into())),
        ("channel", text(&session.channel_id)),
        ("created", Some(when(session.created_at).into())),
        ("last used", Some(when(session.last_active_at).into())),
        ("messages", Some(session.message_count.to_string().into())),
        ("tokens", tokens(session.token_estimate)),
        ("directory", text(&session.working_directory)),
        ("workspace", text(&session.workspace)),
        ("runtime", Some(session.runtime.as_str().into()).filter(|_| !session.runtime.is_empty())),
        ("origin", text(&session.origin)),
        ("log", text(&details.log)),
        ("jobs", newest(&session.jobs).map(SafeText::from)),
    ];
    for (name, value) in fields {
        output::print_field(name, value)?;
    }
    output::print_command("by hand", details.resume_command.as_deref())?;
    if details.log.is_some() {
        output::print_note(&format!(
            "what was said: heeler session show {} --history",
            session.id
        ))?;
    }
    Ok(())
}

/// Returns how large the context is, if that is known.
pub(super) fn tokens(estimate: i64) -> Option<SafeText> {
    let estimate = u64::try_from(estimate).ok().filter(|tokens| *tokens > 0)?;
    Some(format!("about {}", output::group_thousands(estimate)).into())
}

/// Returns the newest, one a line, and how many are older.
fn newest(ids: &[String]) -> Option<String> {
    let mut lines: Vec<String> = ids.iter().rev().take(SHOWN_MAX).cloned().collect();
    if ids.len() > SHOWN_MAX {
        lines.push(format!("and {} older", ids.len() - SHOWN_MAX));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}
