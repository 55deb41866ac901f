//! `heeler session show`: one session, and with `--history` what was said in it.

use std::num::NonZeroUsize;

use clap::Args;
use heeler_model::iso_millis;
use heeler_query::messages::{self, MessagesWanted};
use heeler_query::sessions::SessionDetails;
use heeler_store::history::History;
use serde_json::json;

use super::find;
use super::native::{self, Natives};
use super::past::{self, Extent};
use crate::cli::{self, Global};
use crate::failure::{Code, Outcome};
use crate::output::{self, Text};
use crate::place::{self, Place};

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
pub(crate) struct ShowArgs {
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
pub(super) struct Page {
    pub(super) before: Option<u64>,
    pub(super) count: usize,
}

impl ShowArgs {
    /// Returns which messages are asked for, if any are.
    pub(super) fn page(&self) -> Option<Page> {
        let page = Page { before: self.before, count: self.number.get() };
        self.history.then_some(page)
    }

    /// Prints messages of a session.
    pub(super) fn print_page(&self, session: &str, past: &History) -> Outcome {
        if self.json {
            return Ok(output::json(&messages::page(session, past))?);
        }
        past::print(session, past, if self.full { Extent::Full } else { Extent::Brief })
    }
}

/// Shows a session.
pub(crate) fn run(global: &Global, args: &ShowArgs) -> Outcome {
    let place = Place::find(global)?;
    if let Err(unknown) = find(&place, &args.id) {
        let natives = Natives::of(&place).ok().filter(|_| unknown.code == Code::NotFound);
        let Some(natives) = natives else { return Err(unknown) };
        let found = natives.find(&args.id)?.ok_or(unknown)?;
        return native::show(&place, &natives, &found, args);
    }
    let records = place.records()?;
    if let Some(page) = args.page() {
        let wanted = MessagesWanted { before: page.before, limit: page.count };
        let (session, past) = records.history(&args.id, wanted)?;
        return args.print_page(session.id.as_str(), &past);
    }
    let session = records.session(&args.id, place::now())?;
    match args.json {
        true => Ok(output::json(&json!({ "session": session }))?),
        false => print(&session),
    }
}

fn print(details: &SessionDetails) -> Outcome {
    let now = place::now();
    let session = &details.item;
    let when = |at| format!("{} ({})", iso_millis(at), output::relative(at, now));
    let from = session.parent.as_ref().map(|parent| match session.forked_at_message {
        Some(at) => format!("{parent}, at message {at}"),
        None => parent.clone(),
    });
    let unbegun = details.is_unbegun.then_some("it takes its history over when it begins");
    let text = |text: &Option<String>| text.as_deref().map(Text::from);
    let fields: [(&str, Option<Text>); 21] = [
        ("session", Some(session.id.as_str().into())),
        ("own id", text(&session.agent_session_id)),
        ("agent", Some(session.agent_id.as_str().into())),
        ("status", Some(session.status.as_str().into())),
        ("forked from", from.map(Text::from)),
        ("not begun", unbegun.map(Text::from)),
        ("continues", text(&session.continues)),
        ("continued by", newest(&details.continued_by).map(Text::from)),
        ("forks", newest(&details.forks).map(Text::from)),
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
        ("jobs", newest(&session.jobs).map(Text::from)),
    ];
    for (name, value) in fields {
        output::field(name, value)?;
    }
    output::command("by hand", details.resume_command.as_deref())?;
    if details.log.is_some() {
        output::note(&format!("what was said: heeler session show {} --history", session.id))?;
    }
    Ok(())
}

/// Returns how large the context is, if that is known.
pub(super) fn tokens(estimate: i64) -> Option<Text> {
    let estimate = u64::try_from(estimate).ok().filter(|tokens| *tokens > 0)?;
    Some(format!("about {}", output::grouped(estimate)).into())
}

/// Returns the newest, one a line, and how many are older.
fn newest(ids: &[String]) -> Option<String> {
    let mut lines: Vec<String> = ids.iter().rev().take(SHOWN_MAX).cloned().collect();
    if ids.len() > SHOWN_MAX {
        lines.push(format!("and {} older", ids.len() - SHOWN_MAX));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}
