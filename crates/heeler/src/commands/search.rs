//! `heeler search`: finds text in all transcripts, those of jobs first, newest files first.
//!
//! A row may be in the transcripts of a job, its session and its forks; it is printed once. Start
//! at [`run`].

use clap::Args;
use heeler_query::search::{FleetSearchQuery, SearchHitSummary};
use jiff::tz::TimeZone;

use crate::commands::session::native::NativeSessionReader;
use crate::context::CommandContext;
use crate::display_rows::DisplayRow;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, SafeText};
use crate::shared_args;

/// Characters of a found row that are shown around the match.
const SHOWN_CHARS_MAX: usize = 200;

/// Arguments of `search`.
#[derive(Args)]
pub(crate) struct SearchArgs {
    /// Text to find
    text: String,
    /// Treat the text as a regular expression
    #[arg(short = 'e', long)]
    regex: bool,
    /// Ignore case [default: only if the text has no upper case]
    #[arg(short, long)]
    ignore_case: bool,
    /// Search only this agent's jobs
    #[arg(short, long, value_name = "NAME", add = shared_args::agents())]
    agent: Option<String>,
    /// Search native Claude sessions made in a terminal, instead of Heeler's
    #[arg(long, conflicts_with = "agent")]
    native: bool,
    /// Stop after this number of hits
    #[arg(
        short = 'n',
        short_alias = 'l',
        long = "number",
        alias = "limit",
        value_name = "N",
        default_value = "50"
    )]
    limit: usize,
    /// Print one JSON document per hit
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `search`.
pub(crate) fn run(global: &GlobalArgs, args: &SearchArgs) -> CommandResult {
    if args.text.is_empty() {
        return Err(CommandFailure::message(FailureCode::Usage, "the search text is empty"));
    }
    let context = CommandContext::find(global)?;
    // Opening loads the fleet's secrets, so it is done only if native sessions are searched.
    let native = args.native.then(|| NativeSessionReader::open(&context)).transpose()?;
    let wanted = FleetSearchQuery {
        text: args.text.clone(),
        regex: args.regex,
        ignore_case: args.ignore_case,
        agent: args.agent.clone(),
        native: native.map(|natives| natives.projects),
        limit: args.limit,
    };
    let (zone, mut shown) = (TimeZone::system(), 0);
    let found = context.open_records()?.search_with::<CommandFailure>(&wanted, &mut |hit| {
        // Hits are printed as they are found: a search of all transcripts may take long.
        shown += 1;
        print(args, &hit, &zone)
    })?;
    // One unreadable transcript must not hide the hits in the others.
    for error in &found.unreadable {
        output::print_error(format!("{error}: {}", error.source))?;
    }
    if found.more {
        output::print_note(&format!(
            "stopped after {}; --number shows more",
            output::pluralize(shown, "hit")
        ))?;
    }
    match shown {
        // As grep does: a script can tell by the exit code whether there is a hit.
        0 => Err(CommandFailure::message(
            FailureCode::Failed,
            format!(
                "`{}` was not found in {} transcripts",
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
    let position = format!("{}:{}", output::one_line(&hit.id), hit.line);
    Ok(output::print_line(SafeText::styled(dim, &position).append(" ").append(shown))?)
}

/// Returns the part of the text around the match, on one line.
fn match_excerpt(text: &str, wanted: &str) -> String {
    let text = output::one_line(text);
    if text.chars().count() <= SHOWN_CHARS_MAX {
        return text;
    }
    // A regular expression is not found here; the beginning is shown then.
    let at = text.to_lowercase().find(&wanted.to_lowercase()).unwrap_or(0);
    let skip = text.char_indices().take_while(|(index, _)| *index < at).count();
    let from = skip.saturating_sub(SHOWN_CHARS_MAX / 4);
    let part: String = text.chars().skip(from).take(SHOWN_CHARS_MAX).collect();
    let (before, after) = (if from > 0 { "…" } else { "" }, "…");
    format!("{before}{part}{after}")
}
