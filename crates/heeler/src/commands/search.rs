//! `heeler search`: text in all transcripts, those of jobs first, newest files first.
//!
//! What a job did is in its own transcript and in its session's, and in those of its forks; it is
//! shown once.

use clap::Args;
use heeler_query::search::{FleetSearchQuery, SearchHitSummary};
use jiff::tz::TimeZone;

use crate::cli::{self, GlobalArgs};
use crate::commands::session::native::NativeSessionReader;
use crate::context::CommandContext;
use crate::display_rows::DisplayRow;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output::{self, SafeText};

/// How much of a found row is shown around the match.
const SHOWN_CHARS_MAX: usize = 200;

/// Arguments of `search`.
#[derive(Args)]
pub(crate) struct SearchArgs {
    /// The text to find
    text: String,
    /// The text is a regular expression
    #[arg(short = 'e', long)]
    regex: bool,
    /// Upper and lower case are the same [default: unless the text has upper case]
    #[arg(short, long)]
    ignore_case: bool,
    /// Only this agent's jobs
    #[arg(short, long, value_name = "NAME", add = cli::agents())]
    agent: Option<String>,
    /// The sessions that people made with claude in a terminal, instead of ours
    #[arg(long, conflicts_with = "agent")]
    native: bool,
    /// Stop after so many
    #[arg(short = 'l', long, value_name = "N", default_value = "50")]
    limit: usize,
    /// Print one JSON document a hit
    #[arg(long)]
    pub(crate) json: bool,
}

/// Searches.
pub(crate) fn run(global: &GlobalArgs, args: &SearchArgs) -> CommandResult {
    if args.text.is_empty() {
        return Err(CommandFailure::message(FailureCode::Usage, "there is nothing to search for"));
    }
    let place = CommandContext::find(global)?;
    let native = args.native.then(|| NativeSessionReader::open(&place)).transpose()?;
    let wanted = FleetSearchQuery {
        text: args.text.clone(),
        regex: args.regex,
        ignore_case: args.ignore_case,
        agent: args.agent.clone(),
        native: native.map(|natives| natives.projects),
        limit: args.limit,
    };
    let (zone, mut shown) = (TimeZone::system(), 0);
    let found = place.open_records()?.search_with::<CommandFailure>(&wanted, &mut |hit| {
        shown += 1;
        print(args, &hit, &zone)
    })?;
    for error in &found.unreadable {
        output::print_error(format!("{error}: {}", error.source))?;
    }
    if found.more {
        output::print_note(&format!(
            "stopped after {}; --limit shows more",
            output::pluralize(shown, "hit")
        ))?;
    }
    match shown {
        0 => Err(CommandFailure::message(
            FailureCode::Failed,
            format!(
                "`{}` is in none of {} transcripts",
                args.text,
                output::group_thousands(found.transcripts as u64)
            ),
        )),
        _ => Ok(()),
    }
}

fn print(args: &SearchArgs, hit: &SearchHitSummary, zone: &TimeZone) -> CommandResult {
    if args.json {
        return Ok(output::print_json_line(
            &serde_json::to_string(hit).map_err(anyhow::Error::from)?,
        )?);
    }
    let row = DisplayRow::read(hit.text.as_bytes());
    let text = match_excerpt(&row.text.plain(), &args.text).into();
    let shown = DisplayRow { text, ..row }.show(zone);
    let dim = anstyle::Style::new().dimmed();
    let place = format!("{}:{}", output::one_line(&hit.id), hit.line);
    Ok(output::print_line(SafeText::styled(dim, &place).append(" ").append(shown))?)
}

/// Returns the part of the text that shows the match, on one line.
fn match_excerpt(text: &str, wanted: &str) -> String {
    let text = output::one_line(text);
    if text.chars().count() <= SHOWN_CHARS_MAX {
        return text;
    }
    let at = text.to_lowercase().find(&wanted.to_lowercase()).unwrap_or(0);
    let skip = text.char_indices().take_while(|(index, _)| *index < at).count();
    let from = skip.saturating_sub(SHOWN_CHARS_MAX / 4);
    let part: String = text.chars().skip(from).take(SHOWN_CHARS_MAX).collect();
    let (before, after) = (if from > 0 { "…" } else { "" }, "…");
    format!("{before}{part}{after}")
}
