//! `heeler search`: text in all transcripts, newest files first.

use std::ops::ControlFlow;
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_store::is_sent_file;
use heeler_transcript::{Case, Hit, Pattern, Query, search};
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::cli::{self, Global};
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
    let paths = transcripts(&place, args.agent.as_deref())?;
    let query = Query {
        pattern: pattern(args),
        case: if args.ignore_case { Case::Insensitive } else { Case::Smart },
        hits_max: args.limit,
    };
    let zone = TimeZone::system();
    let mut failed = None;
    let found = search(&query, &paths, &mut |hit| match print(args, &zone, &hit) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    });
    let found = found.map_err(|error| Failure::new(Code::Usage, error))?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    for error in &found.unreadable {
        output::note(&format!("{error}: {}", error.source))?;
    }
    if found.ended_early && found.hits == args.limit {
        output::note(&format!(
            "stopped after {}; --limit shows more",
            output::counted(found.hits as u64, "hit")
        ))?;
    }
    match found.hits {
        0 => Err(Failure::message(
            Code::Failed,
            format!(
                "`{}` is in none of {} transcripts",
                args.text,
                output::grouped(paths.len() as u64)
            ),
        )),
        _ => Ok(()),
    }
}

/// Text stands in transcripts as JSON spells it, so a quote or a newline is looked for escaped.
fn pattern(args: &SearchArgs) -> Pattern {
    if args.regex {
        return Pattern::Regex(args.text.clone());
    }
    let quoted = Value::from(args.text.as_str()).to_string();
    Pattern::Literal(quoted[1..quoted.len() - 1].to_owned())
}

fn print(args: &SearchArgs, zone: &TimeZone, hit: &Hit<'_>) -> std::io::Result<()> {
    let name = hit.path.file_stem().unwrap_or_default();
    if args.json {
        // A row nested too deep to be parsed is given as text.
        let row = serde_json::from_str::<Value>(&hit.record.text)
            .unwrap_or_else(|_| Value::from(&*hit.record.text));
        return output::json_line(
            &json!({ "id": name, "file": hit.path, "line": hit.line + 1, "row": row }).to_string(),
        );
    }
    let row = Row::read(hit.record.text.as_bytes());
    let shown = Row { text: around(&row.text, &args.text), ..row }.show(zone);
    let dim = anstyle::Style::new().dimmed();
    let place = format!("{}:{}", output::one_line(name), hit.line + 1);
    output::line(Text::styled(dim, &place).then(" ").then(shown))
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

/// Lists the transcripts: of an agent's jobs, or every one there is.
fn transcripts(place: &Place, agent: Option<&str>) -> Outcome<Vec<Utf8PathBuf>> {
    let reader = place.reader()?;
    let mut found: Vec<(SystemTime, Utf8PathBuf)> = Vec::new();
    match (agent, &reader) {
        (Some(agent), Some(reader)) => {
            let agent = place.known_agent(reader, agent)?;
            for path in place.logs_of_agent(reader, &agent)? {
                found.extend(modified(&path).map(|at| (at, path)));
            }
        }
        (Some(_), None) => {}
        (None, _) => {
            collect(&place.state_dir.join("jobs"), &mut found);
            collect(&place.state_dir.join("agent-sessions"), &mut found);
            if let Some(sessions) = place.interactive_sessions() {
                collect(&sessions, &mut found);
            }
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn modified(path: &Utf8Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|file| file.modified()).ok()
}

/// Collects transcript files below a folder; links are not followed.
fn collect(folder: &Utf8Path, found: &mut Vec<(SystemTime, Utf8PathBuf)>) {
    let Ok(entries) = folder.read_dir_utf8() else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let path = entry.path();
        if kind.is_dir() {
            collect(path, found);
        } else if kind.is_file()
            && matches!(path.extension(), Some("jsonl" | "ndjson"))
            && !is_sent_file(path)
        {
            found.extend(modified(path).map(|at| (at, path.to_owned())));
        }
    }
}
