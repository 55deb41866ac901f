//! `heeler messages`: what people and agents said in chats. Start at [`run`].

use clap::Args;
use heeler_query::chat_messages::{ChatMessageDetails, ChatMessageQuery};
use jiff::tz::TimeZone;

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable, SafeText};

/// Help footer of `messages`.
pub(crate) const ABOUT: &str = "Examples:
  heeler messages
  heeler messages slack/C012DEV
  heeler messages --search 'release notes' -n 20
  heeler messages telegram/42 -n 1000000 --json > conversation.jsonl

Without a place and a text, the conversations in chats are listed. A place is that of a session:
platform/chat[/thread]. A channel includes its threads. Secrets are left out.
Exit codes: 0 printed, 1 nothing found, 2 invalid arguments.";

/// Arguments of `messages`.
#[derive(Args)]
pub(crate) struct MessagesArgs {
    /// Place of a conversation, such as slack/C012DEV
    #[arg(value_name = "CHANNEL")]
    channel: Option<String>,
    /// Show only messages with this text, without regard to case
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Show at most this number of lines, the last ones
    #[arg(
        short = 'n',
        short_alias = 'l',
        long = "number",
        alias = "limit",
        value_name = "N",
        default_value = "50"
    )]
    limit: usize,
    /// Print one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `messages`.
pub(crate) fn run(global: &GlobalArgs, args: &MessagesArgs) -> CommandResult {
    let records = CommandContext::find(global)?.open_records()?;
    if args.channel.is_none() && args.search.is_none() {
        let listed = records.chat_conversations(args.limit)?;
        if listed.conversations.is_empty() {
            return nothing("no conversation in a chat is on record");
        }
        if args.json {
            return listed.conversations.iter().try_for_each(print_document);
        }
        let mut table = OutputTable::new(&["CHANNEL", "AGENT", "MESSAGES", "LAST"], &["CHANNEL"]);
        let zone = TimeZone::system();
        for it in &listed.conversations {
            let last = it.last_activity_at.to_zoned(zone.clone());
            let agent = it.agent.as_deref().unwrap_or("-");
            let cells = [
                it.channel.clone(),
                agent.to_owned(),
                it.messages.to_string(),
                last.strftime("%Y-%m-%d %H:%M").to_string(),
            ];
            table.push(cells.iter().map(|cell| SafeText::from(output::one_line(cell))).collect());
        }
        return Ok(table.print()?);
    }
    let (channel, search) = (args.channel.clone(), args.search.clone());
    let query = ChatMessageQuery { channel, search, before: None, limit: args.limit };
    let page = records.chat_messages(&query)?;
    if page.messages.is_empty() {
        return nothing("no such message is on record");
    }
    if args.json {
        return page.messages.iter().try_for_each(print_document);
    }
    let zone = TimeZone::system();
    page.messages.iter().try_for_each(|message| print(message, &zone))?;
    match page.next {
        Some(_) => Ok(output::print_note("there are more; --number shows more")?),
        None => Ok(()),
    }
}

fn nothing(text: &str) -> CommandResult {
    Err(CommandFailure::message(FailureCode::Failed, text))
}

fn print_document(document: &impl serde::Serialize) -> CommandResult {
    Ok(output::print_json_line(&serde_json::to_string(document).map_err(anyhow::Error::from)?)?)
}

fn print(message: &ChatMessageDetails, zone: &TimeZone) -> CommandResult {
    let at = message.at.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M");
    let speaker = match (message.role.as_str(), &message.agent) {
        ("assistant", Some(agent)) => agent.as_str(),
        (role, _) => role,
    };
    let heading = format!("{at} {} {speaker}:", message.channel);
    let heading = SafeText::styled(anstyle::Style::new().dimmed(), &output::one_line(&heading));
    output::print_line(heading)?;
    Ok(output::print_line(SafeText::from(message.text.clone()).indented(2))?)
}
