//! `heeler search`: text in all transcripts, those of jobs first, newest files first.
//!
//! What a job did is in its own transcript and in its session's, and in those of its forks; it is
//! shown once.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_model::record::nth_uuid;
use heeler_store::native::{self, Cleaner};
use heeler_store::{Reader, is_sent_file};
use heeler_transcript::{Case, Finder, Hit, Pattern, Query, search};
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use uuid::Uuid;

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
    let reader = place.reader()?;
    let natives = args.native.then(|| Natives::of(&place)).transpose()?;
    let paths = match &natives {
        Some(natives) => {
            let paths = native::paths(&natives.projects);
            paths.map_err(|error| Failure::new(Code::Failed, error))?
        }
        None => transcripts(&place, reader.as_ref(), args.agent.as_deref())?,
    };
    let query = Query {
        pattern: pattern(args),
        case: if args.ignore_case { Case::Insensitive } else { Case::Smart },
        // What was shown already does not count.
        hits_max: usize::MAX,
    };
    let finder = Finder::of(&query).map_err(|error| Failure::new(Code::Usage, error))?;
    let mut printer = Printer {
        args,
        reader: reader.as_ref(),
        cleaner: natives.as_ref().map(|natives| (&natives.cleaner, finder)),
        zone: TimeZone::system(),
        seen: HashSet::new(),
        said: None,
        shown: 0,
    };
    let mut failed = None;
    let found = search(&query, &paths, &mut |hit| match printer.take(&hit) {
        Ok(next) => next,
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    });
    let found = found.map_err(|error| Failure::new(Code::Usage, error))?;
    if let Some(error) = failed {
        return Err(error);
    }
    for error in &found.unreadable {
        output::complain(format!("{error}: {}", error.source))?;
    }
    if found.ended_early {
        output::note(&format!(
            "stopped after {}; --limit shows more",
            output::counted(printer.shown as u64, "hit")
        ))?;
    }
    match printer.shown {
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

/// Prints hits, each message once.
struct Printer<'p> {
    args: &'p SearchArgs,
    reader: Option<&'p Reader>,
    /// Takes secrets out of what was never redacted.
    cleaner: Option<(&'p Cleaner, Finder)>,
    zone: TimeZone,
    /// The rows that were found.
    seen: HashSet<Uuid>,
    /// What the agent said last, of what was found.
    said: Option<String>,
    shown: usize,
}

impl Printer<'_> {
    fn take(&mut self, hit: &Hit<'_>) -> Outcome<ControlFlow<()>> {
        // A row nested too deep to be parsed is given as text.
        let mut row = serde_json::from_str::<Value>(&hit.record.text)
            .unwrap_or_else(|_| Value::from(&*hit.record.text));
        if let Some((cleaner, finder)) = &self.cleaner {
            let before = row.clone();
            cleaner.json(&mut row);
            // Whoever guesses at a secret is not told that it was right.
            if row != before && !finder.is_in(&row.to_string()) {
                return Ok(ControlFlow::Continue(()));
            }
        }
        // Both are kept up to date, whatever the other says.
        let (is_new, is_echo) = (self.is_new(&row), self.is_echo(&row));
        if !is_new || is_echo {
            return Ok(ControlFlow::Continue(()));
        }
        // Told apart from a search that found just as many as it may show.
        if self.shown == self.args.limit {
            return Ok(ControlFlow::Break(()));
        }
        self.shown += 1;
        self.print(hit, &row)?;
        Ok(ControlFlow::Continue(()))
    }

    /// Says whether a row was not found before: under its own id, or as rows of a job that came of
    /// it.
    fn is_new(&mut self, row: &Value) -> bool {
        let uuid = row["uuid"].as_str().and_then(|text| Uuid::try_parse(text).ok());
        let Some(uuid) = uuid else { return true };
        let parts = row["message"]["content"].as_array().map_or(0, Vec::len);
        let is_known = (0..=parts).any(|part| self.seen.contains(&nth_uuid(uuid, part)));
        self.seen.insert(uuid);
        !is_known
    }

    /// Says whether a row is the result of a turn that repeats what was said in it.
    fn is_echo(&mut self, row: &Value) -> bool {
        match row["type"].as_str() {
            Some("assistant") => {
                self.said = row["content"].as_str().map(str::to_owned);
                false
            }
            Some("tool_result") if row["tool_use_id"].is_null() => {
                row["result"].is_string() && row["result"].as_str() == self.said.as_deref()
            }
            _ => false,
        }
    }

    fn print(&self, hit: &Hit<'_>, row: &Value) -> Outcome {
        let name = self.name_of(hit.path)?;
        if self.args.json {
            let line = json!({ "id": name, "file": hit.path, "line": hit.line + 1, "row": row });
            return Ok(output::json_line(&line.to_string())?);
        }
        let row = match &self.cleaner {
            Some(_) => Row::read(row.to_string().as_bytes()),
            None => Row::read(hit.record.text.as_bytes()),
        };
        let text = around(&row.text.plain(), &self.args.text).into();
        let shown = Row { text, ..row }.show(&self.zone);
        let dim = anstyle::Style::new().dimmed();
        let place = format!("{}:{}", output::one_line(&name), hit.line + 1);
        Ok(output::line(Text::styled(dim, &place).then(" ").then(shown))?)
    }

    /// Returns what people know a transcript by: its job's id, or our id of its session.
    fn name_of(&self, path: &Utf8Path) -> Outcome<String> {
        let name = path.file_stem().unwrap_or_default();
        let session = match (self.reader, name.parse()) {
            (Some(reader), Ok(id)) => reader.session_by_agent_id(&id)?,
            _ => None,
        };
        Ok(session.map_or(name.to_owned(), |session| session.id.to_string()))
    }
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
fn transcripts(
    place: &Place,
    reader: Option<&Reader>,
    agent: Option<&str>,
) -> Outcome<Vec<Utf8PathBuf>> {
    let mut found: Vec<Vec<(SystemTime, Utf8PathBuf)>> = vec![Vec::new(), Vec::new()];
    match (agent, reader) {
        (Some(agent), Some(reader)) => {
            let agent = place.known_agent(reader, agent)?;
            for path in place.logs_of_agent(reader, &agent)? {
                found[0].extend(modified(&path).map(|at| (at, path)));
            }
        }
        (Some(_), None) => {}
        (None, _) => {
            collect(&place.state_dir.join("jobs"), &mut found[0]);
            collect(&place.state_dir.join("agent-sessions"), &mut found[1]);
            if let Some(sessions) = place.interactive_sessions() {
                collect(&sessions, &mut found[1]);
            }
        }
    }
    found.iter_mut().for_each(|files| files.sort_by(|a, b| b.cmp(a)));
    Ok(found.into_iter().flatten().map(|(_, path)| path).collect())
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
