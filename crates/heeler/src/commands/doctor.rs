//! `heeler doctor`: what is wrong with the state directory, and the cure; what of ours there is at all.

mod footprint;

use std::io::IsTerminal as _;
use std::time::Duration;

use anstyle::AnsiColor;
use clap::Args;
use heeler_engine::{CommittedRun, RunFolderCheck, recover_runs};
use heeler_query::health::FindingSummary;
use heeler_store::doctor::{
    self, Finding, FindingSeverity, RebuildError, RebuildReport, RepairOutcome,
};
use serde_json::{Value, json};

use crate::cli::GlobalArgs;
use crate::commands::import;
use crate::context::{self, CommandContext};
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output::{self, ProgressIndicator, SafeText};

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
pub(crate) fn run(global: &GlobalArgs, args: &DoctorArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    if args.rebuild {
        return rebuild(&place, args);
    }
    if args.footprint {
        return footprint::run(&place, args.remove, args.yes, args.json);
    }
    if !place.state_dir.exists() && !args.json {
        return Ok(output::print_line(format!(
            "{} does not exist yet: nothing to examine",
            place.state_dir
        ))?);
    }
    // Adoption comes first; where it is refused, the rest can be examined all the same.
    if let Err(failure) = crate::adopt::adopt_if_foreign(&place) {
        output::print_error(failure.text())?;
    }
    let progress = ProgressIndicator::spinner("examining", place.quiet || args.json);
    let settled = if args.fix { settle_runs(&place)? } else { Vec::new() };
    let mut findings = doctor::examine(&place.state_dir, place.home.as_deref(), context::now());
    let fixed = match args.fix {
        true => doctor::fix(&place.state_dir, &findings, context::now()),
        false => Vec::new(),
    };
    if args.fix {
        findings = doctor::examine(&place.state_dir, place.home.as_deref(), context::now());
    }
    progress.end();
    let ungrouped = heeler_runner::control_group_unavailable_reason();
    match args.json {
        true => {
            let mut told = to_json(&findings, &fixed, &settled);
            told["noControlGroup"] = ungrouped.into();
            output::print_json(&told)?;
        }
        false => {
            for run in &settled {
                let line = format!("settled  {}: {} ({})", run.job, run.status, run.end);
                output::print_line(line)?;
            }
            print(&place, &findings, &fixed)?;
            if let Some(why) = ungrouped {
                output::print_line(format!("{UNGROUPED} ({why})"))?;
            }
        }
    }
    match findings.iter().any(|finding| finding.severity > FindingSeverity::Note) {
        true => Err(CommandFailure::silent(FailureCode::Failed)),
        false => Ok(()),
    }
}

/// Gives every run its result whose processes are gone; what stands in the way is told.
fn settle_runs(place: &CommandContext) -> CommandResult<Vec<CommittedRun>> {
    if !place.state_dir.join("heeler.db").exists() {
        return Ok(Vec::new());
    }
    let engine = context::engine_fleet(&place.state_dir, &place.env)?;
    let settled = engine
        .open_writer("doctor --fix", SETTLE_WAIT)
        .map_err(anyhow::Error::from)
        .and_then(|store| Ok(recover_runs(&engine, &store, RunFolderCheck::Always)?));
    match settled {
        Ok(recovered) => Ok(recovered.committed),
        Err(error) => {
            output::print_error(CommandFailure::new(FailureCode::Failed, error).text())?;
            Ok(Vec::new())
        }
    }
}

fn print(place: &CommandContext, findings: &[Finding], fixed: &[RepairOutcome]) -> CommandResult {
    let green = AnsiColor::Green.on_default();
    for RepairOutcome { finding, outcome } in fixed {
        let subject = output::one_line(&finding.subject);
        output::print_line(match outcome {
            Ok(done) => SafeText::styled(green, "fixed").append(format!("    {subject}: {done}")),
            Err(why) => format!("not fixed {subject}: {why}").into(),
        })?;
    }
    for finding in findings {
        let (word, style) = match finding.severity {
            FindingSeverity::Note => ("note", AnsiColor::Blue.on_default()),
            FindingSeverity::Warning => ("warning", AnsiColor::Yellow.on_default()),
            FindingSeverity::Error => ("error", AnsiColor::Red.on_default()),
        };
        let (subject, problem) =
            (output::one_line(&finding.subject), output::one_line(&finding.problem));
        let word = SafeText::styled(style, &format!("{word:<8}"));
        output::print_line(word.append(format!(" {subject}: {problem}")))?;
        if !finding.remedy.is_empty() {
            output::print_line(format!("         cure: {}", finding.remedy))?;
        }
    }
    if findings.iter().all(|finding| finding.severity == FindingSeverity::Note) {
        output::print_line(SafeText::styled(green, &format!("{} is sound", place.state_dir)))?;
    }
    Ok(())
}

fn to_json(findings: &[Finding], fixed: &[RepairOutcome], settled: &[CommittedRun]) -> Value {
    let findings: Vec<FindingSummary> = findings.iter().map(FindingSummary::from).collect();
    let fixed: Vec<Value> = fixed
        .iter()
        .map(|RepairOutcome { finding, outcome }| {
            json!({
                "finding": FindingSummary::from(finding), "done": outcome.as_ref().ok(),
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

fn rebuild(place: &CommandContext, args: &DoctorArgs) -> CommandResult {
    if !args.yes {
        if !std::io::stdin().is_terminal() {
            let message = "a rebuild replaces the database";
            return Err(CommandFailure::message(FailureCode::Refused, message)
                .hint("--yes does it; the old one goes to trash/"));
        }
        let question =
            format!("Rebuild the database of {}? The old one goes to trash/.", place.state_dir);
        if !output::confirm(&question, false)? {
            return Err(CommandFailure::message(FailureCode::Refused, "nothing was changed"));
        }
    }
    let progress = ProgressIndicator::spinner("rebuilding", place.quiet || args.json);
    let rebuilt = doctor::rebuild(&place.state_dir, context::now());
    if rebuilt.is_ok() {
        crate::adopt::publish_views(place, "doctor");
    }
    progress.end();
    let rebuilt = rebuilt.map_err(|error| match error {
        RebuildError::Locked(_) => CommandFailure::new(FailureCode::Refused, error),
        other => CommandFailure::new(FailureCode::Failed, other),
    })?;
    match args.json {
        true => Ok(output::print_json(&json!({
            "base": rebuilt.base, "trash": rebuilt.trash, "lost": rebuilt.losses,
            "added": import::to_json(&rebuilt.report),
        }))?),
        false => print_rebuilt(&rebuilt),
    }
}

fn print_rebuilt(rebuilt: &RebuildReport) -> CommandResult {
    let base = match &rebuilt.base {
        Some(backup) => format!("the backup {backup}"),
        None => "views and transcripts alone: there was no good backup".to_owned(),
    };
    output::print_line(format!("rebuilt the database from {base}"))?;
    for (kind, tally) in &rebuilt.report.by_kind {
        if tally.imported > 0 {
            output::print_line(format!("found {} {} beside it", tally.imported, kind.plural()))?;
        }
    }
    for refusal in &rebuilt.report.refused {
        output::print_line(format!("unreadable: {}: {}", refusal.what, refusal.reason))?;
    }
    for lost in &rebuilt.losses {
        output::print_line(format!("lost: {lost}"))?;
    }
    Ok(output::print_line(format!("the old database is in {}", rebuilt.trash))?)
}
