//! `heeler search`: text in all transcripts, those of jobs first, newest files first.
//!
//! What a job did is in its own transcript and in its session's, and in those of its forks; it is
//! shown once.

use clap::Args;
use heeler_query::search::{HitItem, SearchWanted};
use jiff::tz::TimeZone;

use crate::cli::{self, Global};
use crate::commands::session::native::Natives;
use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Text};
use crate::place::Place;
use crate::rows::Row;

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
pub(crate) fn run(global: &Global, args: &SearchArgs) -> Outcome {
    if args.text.is_empty() {
        return Err(Failure::message(Code::Usage, "there is nothing to search for"));
    }
    let place = Place::find(global)?;
    let native = args.native.then(|| Natives::of(&place)).transpose()?;
    let wanted = SearchWanted {
        text: args.text.clone(),
        regex: args.regex,
        ignore_case: args.ignore_case,
        agent: args.agent.clone(),
        native: native.map(|natives| natives.projects),
        limit: args.limit,
    };
    let (zone, mut shown) = (TimeZone::system(), 0);
    let found = place.records()?.search_each::<Failure>(&wanted, &mut |hit| {
        shown += 1;
        print(args, &hit, &zone)
    })?;
    for error in &found.unreadable {
        output::complain(format!("{error}: {}", error.source))?;
    }
    if found.more {
        output::note(&format!(
            "stopped after {}; --limit shows more",
            output::counted(shown, "hit")
        ))?;
    }
    match shown {
        0 => Err(Failure::message(
            Code::Failed,
            format!(
                "`{}` is in none of {} transcripts",
                args.text,
                output::grouped(found.transcripts as u64)
            ),
        )),
        _ => Ok(()),
    }
}

fn print(args: &SearchArgs, hit: &HitItem, zone: &TimeZone) -> Outcome {
    if args.json {
        return Ok(output::json_line(&serde_json::to_string(hit).map_err(anyhow::Error::from)?)?);
    }
    let row = Row::read(hit.text.as_bytes());
    let text = around(&row.text.plain(), &args.text).into();
    let shown = Row { text, ..row }.show(zone);
    let dim = anstyle::Style::new().dimmed();
    let place = format!("{}:{}", output::one_line(&hit.id), hit.line);
    Ok(output::line(Text::styled(dim, &place).then(" ").then(shown))?)
}

/// Returns the part of the text that shows the match, on one line.
fn around(text: &str, wanted: &str) -> String {
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
