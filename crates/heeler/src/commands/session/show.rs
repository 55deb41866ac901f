//! `heeler session show`: prints one session or, with `--history`, its messages. Start at [`run`].

use std::num::NonZeroUsize;

use clap::Args;
use heeler_config::RuntimeType;
use heeler_model::iso_millis;
use heeler_query::messages::{self, MessageListQuery};
use heeler_query::sessions::SessionDetails;
use heeler_store::history::HistoryPage;
use serde_json::json;

use super::history::{self, HistoryLayout, MessageExtent};
use super::native::{self, NativeSessionReader};
use crate::context::CommandContext;
use crate::failure::{CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, SafeText};
use crate::process_env;
use crate::shared_args;
use crate::terminal_markdown::TerminalMarkdown;

/// Help footer of `session show`.
pub(crate) const ABOUT: &str = "Examples:
  heeler session show sess-1a2b
  heeler session show sess-1a2b --history
  heeler session show sess-1a2b --history -n 100 --before 41
  heeler session show sess-1a2b --history -n 1 --full      # all of the last message

Message numbers are those of `session fork --at-message`. A `*` marks a possible fork point after a
message, `*+` one with a snapshot of the files (`fork --workspace`). Messages that the agent does not
remember are marked: it was killed before it saved them, or continued from another point.";

/// Jobs, forks and successors of a session that are shown.
const SHOWN_MAX: usize = 10;

/// Arguments of `session show`.
#[derive(Args)]
pub(crate) struct SessionShowArgs {
    /// Session ID, native session ID, or unique prefix of one
    ///
    /// A native session that was not adopted is found by Claude's ID, or by `codex:ID`, `copilot:ID`
    /// and so on.
    #[arg(add = shared_args::sessions())]
    id: String,
    /// Show its messages, with their numbers
    #[arg(short = 'H', long)]
    history: bool,
    /// Number of messages to show, counted from the last
    #[arg(
        short = 'n',
        short_alias = 'l',
        long,
        alias = "limit",
        value_name = "N",
        default_value = "20",
        requires = "history"
    )]
    number: NonZeroUsize,
    /// Show only messages before this one (for the previous page)
    #[arg(long, value_name = "M", requires = "history")]
    before: Option<u64>,
    /// Show each message in full
    #[arg(long, requires = "history")]
    full: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl SessionShowArgs {
    /// Returns the requested messages if `--history` was given.
    fn page(&self) -> Option<MessageListQuery> {
        let page = MessageListQuery { before: self.before, limit: self.number.get() };
        self.history.then_some(page)
    }

    /// Prints messages of a session.
    fn print_page(
        &self,
        session: &str,
        past: &HistoryPage,
        markdown: Option<TerminalMarkdown>,
    ) -> CommandResult {
        if self.json {
            return Ok(output::print_json(&messages::message_page(session, past))?);
        }
        let extent = if self.full { MessageExtent::Full } else { MessageExtent::Brief };
        history::print(session, past, &HistoryLayout::new(extent, markdown))
    }
}

/// Runs `session show`.
pub(crate) fn run(global: &GlobalArgs, args: &SessionShowArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    // Heeler's own sessions come first: an adopted one is found by Claude's ID too.
    if let Err(unknown) = context.find_session(&args.id) {
        // An ambiguous prefix is not looked up elsewhere; its error lists the matches.
        let natives = NativeSessionReader::open(&context)
            .ok()
            .filter(|_| unknown.code == FailureCode::NotFound);
        let Some(natives) = natives else { return Err(unknown) };
        let found = natives.find(&args.id)?.ok_or(unknown)?;
        return match args.page() {
            Some(page) => {
                let past = natives.read(&found, &page)?;
                args.print_page(&found.qualified_id(), &past, TerminalMarkdown::find(&context.env))
            }
            None => native::print(&context, &found, args.json),
        };
    }
    let records = context.open_records()?;
    if let Some(page) = args.page() {
        let (session, past) = records.history(&args.id, page)?;
        // The output of a command is no markdown.
        let is_of_agent = session.runtime != RuntimeType::Command.to_string();
        let markdown = TerminalMarkdown::find(&context.env).filter(|_| is_of_agent);
        return args.print_page(session.id.as_str(), &past, markdown);
    }
    let session = records.session(&args.id, process_env::now())?;
    match args.json {
        true => Ok(output::print_json(&json!({ "session": session }))?),
        false => print(&session),
    }
}

fn print(details: &SessionDetails) -> CommandResult {
    let now = process_env::now();
    let session = &details.item;
    let when = |at| format!("{} ({})", iso_millis(at), output::relative_time(at, now));
    let from = session.parent.as_ref().map(|parent| match session.forked_at_message {
        Some(at) => format!("{parent}, at message {at}"),
        None => parent.clone(),
    });
    let unbegun = details.is_unbegun.then_some("its history is copied when its first job starts");
    let text = |text: &Option<String>| text.as_deref().map(SafeText::from);
    let moved = details.last_move.as_ref().filter(|moved| moved.seconds_left.is_some());
    let moved = moved.map(|it| format!("to host {} ({})", it.target, it.state));
    let fields: [(&str, Option<SafeText>); 23] = [
        ("session", Some(session.id.as_str().into())),
        ("native id", text(&session.agent_session_id)),
        ("agent", Some(session.agent_id.as_str().into())),
        ("status", Some(session.status.as_str().into())),
        ("forked from", from.map(SafeText::from)),
        ("not started", unbegun.map(SafeText::from)),
        ("continues", text(&session.continues)),
        ("continued by", newest(&details.continued_by).map(SafeText::from)),
        ("forks", newest(&details.forks).map(SafeText::from)),
        ("mode", Some(session.mode.as_str().into())),
        ("channel", text(&session.channel_id)),
        ("created", Some(when(session.created_at).into())),
        ("last used", Some(when(session.last_active_at).into())),
        ("messages", Some(session.message_count.to_string().into())),
        ("tokens", output::format_token_estimate(session.token_estimate)),
        ("directory", text(&session.working_directory)),
        ("workspace", text(&session.workspace)),
        ("host", text(&details.host)),
        ("moves", moved.map(SafeText::from)),
        ("runtime", Some(session.runtime.as_str().into()).filter(|_| !session.runtime.is_empty())),
        ("origin", text(&session.origin)),
        ("log", text(&details.log)),
        ("jobs", newest(&session.jobs).map(SafeText::from)),
    ];
    for (name, value) in fields {
        output::print_field(name, value)?;
    }
    output::print_command("resume with", details.resume_command.as_deref())?;
    if details.log.is_some() {
        output::print_note(&format!("messages: heeler session show {} --history", session.id))?;
    }
    Ok(())
}

/// Returns the newest IDs, one per line, and the number of older ones.
fn newest(ids: &[String]) -> Option<String> {
    // IDs are recorded in order, so the newest are at the end.
    let mut lines: Vec<String> = ids.iter().rev().take(SHOWN_MAX).cloned().collect();
    if ids.len() > SHOWN_MAX {
        lines.push(format!("and {} older", ids.len() - SHOWN_MAX));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}
