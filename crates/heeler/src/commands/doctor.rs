//! `heeler doctor`: what is wrong with the state directory, and the cure; what of ours there is at all.

mod footprint;

use std::io::IsTerminal as _;
use std::time::Duration;

use anstyle::AnsiColor;
use clap::Args;
use heeler_engine::{Committed, Compare, recover};
use heeler_query::health::FindingItem;
use heeler_store::doctor::{self, Finding, Fixed, RebuildError, Rebuilt, Severity};
use serde_json::{Value, json};

use crate::cli::Global;
use crate::commands::import;
use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Progress, Text};
use crate::place::{self, Place};

/// How long repairs wait for another writer.
const SETTLE_WAIT: Duration = Duration::from_secs(5);

/// What it means that runs have no control group.
const UNGROUPED: &str = "no control group: if a runner is killed, what its agent started with an \
                         empty environment may run on";

/// Arguments of `doctor`.
#[derive(Args)]
#[command(after_help = "Ends with 1 when something is wrong that was not fixed.")]
pub(crate) struct DoctorArgs {
    /// Do the repairs that lose nothing
    #[arg(long)]
    fix: bool,
    /// Make the database anew, from the newest backup and what views and transcripts know
    #[arg(long, conflicts_with = "fix")]
    rebuild: bool,
    /// List everything of Heeler's on this machine: state, home folder, repositories, worktrees,
    /// unit, sockets
    #[arg(long, conflicts_with_all = ["fix", "rebuild"])]
    footprint: bool,
    /// Remove all of that, after asking
    #[arg(long, requires = "footprint")]
    remove: bool,
    /// Do not ask before a rebuild or a removal
    #[arg(short, long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Examines, and repairs when asked.
pub(crate) fn run(global: &Global, args: &DoctorArgs) -> Outcome {
    let place = Place::find(global)?;
    if args.rebuild {
        return rebuild(&place, args);
    }
    if args.footprint {
        return footprint::run(&place, args.remove, args.yes, args.json);
    }
    if !place.state_dir.exists() && !args.json {
        return Ok(output::line(format!(
            "{} does not exist yet: nothing to examine",
            place.state_dir
        ))?);
    }
    // Adoption comes first; where it is refused, the rest can be examined all the same.
    if let Err(failure) = crate::adopt::if_foreign(&place) {
        output::complain(failure.text())?;
    }
    let progress = Progress::spinner("examining", place.quiet || args.json);
    let settled = if args.fix { settle(&place)? } else { Vec::new() };
    let mut findings = doctor::examine(&place.state_dir, place.home.as_deref(), place::now());
    let fixed = match args.fix {
        true => doctor::fix(&place.state_dir, &findings, place::now()),
        false => Vec::new(),
    };
    if args.fix {
        findings = doctor::examine(&place.state_dir, place.home.as_deref(), place::now());
    }
    progress.end();
    let ungrouped = heeler_runner::why_no_control_group();
    match args.json {
        true => {
            let mut told = to_json(&findings, &fixed, &settled);
            told["noControlGroup"] = ungrouped.into();
            output::json(&told)?;
        }
        false => {
            for run in &settled {
                let line = format!("settled  {}: {} ({})", run.job, run.status, run.end);
                output::line(line)?;
            }
            print(&place, &findings, &fixed)?;
            if let Some(why) = ungrouped {
                output::line(format!("{UNGROUPED} ({why})"))?;
            }
        }
    }
    match findings.iter().any(|finding| finding.severity > Severity::Note) {
        true => Err(Failure::silent(Code::Failed)),
        false => Ok(()),
    }
}

/// Gives every run its result whose processes are gone; what stands in the way is told.
fn settle(place: &Place) -> Outcome<Vec<Committed>> {
    if !place.state_dir.join("heeler.db").exists() {
        return Ok(Vec::new());
    }
    let engine = place::engine(&place.state_dir, &place.env)?;
    let settled = engine
        .writer("doctor --fix", SETTLE_WAIT)
        .map_err(anyhow::Error::from)
        .and_then(|store| Ok(recover(&engine, &store, Compare::Now)?));
    match settled {
        Ok(recovered) => Ok(recovered.committed),
        Err(error) => {
            output::complain(Failure::new(Code::Failed, error).text())?;
            Ok(Vec::new())
        }
    }
}

fn print(place: &Place, findings: &[Finding], fixed: &[Fixed]) -> Outcome {
    let green = AnsiColor::Green.on_default();
    for Fixed { finding, outcome } in fixed {
        let subject = output::one_line(&finding.subject);
        output::line(match outcome {
            Ok(done) => Text::styled(green, "fixed").then(format!("    {subject}: {done}")),
            Err(why) => format!("not fixed {subject}: {why}").into(),
        })?;
    }
    for finding in findings {
        let (word, style) = match finding.severity {
            Severity::Note => ("note", AnsiColor::Blue.on_default()),
            Severity::Warning => ("warning", AnsiColor::Yellow.on_default()),
            Severity::Error => ("error", AnsiColor::Red.on_default()),
        };
        let (subject, problem) =
            (output::one_line(&finding.subject), output::one_line(&finding.problem));
        let word = Text::styled(style, &format!("{word:<8}"));
        output::line(word.then(format!(" {subject}: {problem}")))?;
        if !finding.cure.is_empty() {
            output::line(format!("         cure: {}", finding.cure))?;
        }
    }
    if findings.iter().all(|finding| finding.severity == Severity::Note) {
        output::line(Text::styled(green, &format!("{} is sound", place.state_dir)))?;
    }
    Ok(())
}

fn to_json(findings: &[Finding], fixed: &[Fixed], settled: &[Committed]) -> Value {
    let findings: Vec<FindingItem> = findings.iter().map(FindingItem::from).collect();
    let fixed: Vec<Value> = fixed
        .iter()
        .map(|Fixed { finding, outcome }| {
            json!({
                "finding": FindingItem::from(finding), "done": outcome.as_ref().ok(),
                "error": outcome.as_ref().err(),
            })
        })
        .collect();
    let settled: Vec<Value> = settled
        .iter()
        .map(|run| json!({ "job": run.job, "status": run.status, "end": run.end }))
        .collect();
    json!({ "findings": findings, "fixed": fixed, "settled": settled })
}

fn rebuild(place: &Place, args: &DoctorArgs) -> Outcome {
    if !args.yes {
        if !std::io::stdin().is_terminal() {
            let message = "a rebuild replaces the database";
            return Err(Failure::message(Code::Refused, message)
                .hint("--yes does it; the old one goes to trash/"));
        }
        let question =
            format!("Rebuild the database of {}? The old one goes to trash/.", place.state_dir);
        if !output::ask(&question, false)? {
            return Err(Failure::message(Code::Refused, "nothing was changed"));
        }
    }
    let progress = Progress::spinner("rebuilding", place.quiet || args.json);
    let rebuilt = doctor::rebuild(&place.state_dir, place::now());
    if rebuilt.is_ok() {
        crate::adopt::publish(place, "doctor");
    }
    progress.end();
    let rebuilt = rebuilt.map_err(|error| match error {
        RebuildError::Locked(_) => Failure::new(Code::Refused, error),
        other => Failure::new(Code::Failed, other),
    })?;
    match args.json {
        true => Ok(output::json(&json!({
            "base": rebuilt.base, "trash": rebuilt.trash, "lost": rebuilt.lost,
            "added": import::to_json(&rebuilt.report),
        }))?),
        false => print_rebuilt(&rebuilt),
    }
}

fn print_rebuilt(rebuilt: &Rebuilt) -> Outcome {
    let base = match &rebuilt.base {
        Some(backup) => format!("the backup {backup}"),
        None => "views and transcripts alone: there was no good backup".to_owned(),
    };
    output::line(format!("rebuilt the database from {base}"))?;
    for (kind, tally) in &rebuilt.report.by_kind {
        if tally.imported > 0 {
            output::line(format!("found {} {} beside it", tally.imported, kind.plural()))?;
        }
    }
    for refusal in &rebuilt.report.refused {
        output::line(format!("unreadable: {}: {}", refusal.what, refusal.reason))?;
    }
    for lost in &rebuilt.lost {
        output::line(format!("lost: {lost}"))?;
    }
    Ok(output::line(format!("the old database is in {}", rebuilt.trash))?)
}
