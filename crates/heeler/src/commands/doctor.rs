//! `heeler doctor`: reports and repairs problems of the state directory; lists and removes
//! everything that Heeler stores on this machine. Start at [`run`].

mod agents;
mod chat;
mod docker;
mod file_archive;
mod footprint;
mod github;
mod notify;
mod sandbox;

pub(crate) use self::docker::engine_environment;
pub(crate) use self::sandbox::probe as probe_sandbox;

use std::io::IsTerminal as _;
use std::time::Duration;

use anstyle::AnsiColor;
use clap::Args;
use heeler_engine::{
    CommittedRun, ContainerSurvey, GithubAccessReport, RunFolderCheck, recover_runs,
};
use heeler_import::{RebuildError, RebuildReport};
use heeler_query::health::FindingSummary;
use heeler_store::doctor::{self, Finding, FindingArea, FindingSeverity, RepairOutcome};
use serde_json::{Value, json};

use crate::commands::import;
use crate::config_changes;
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::installed_agents::VersionedAgent;
use crate::output::{self, ProgressIndicator, SafeText};
use crate::process_env;
use crate::trust::visible;

/// Time that repairs wait for another writer.
const SETTLE_WAIT: Duration = Duration::from_secs(5);

/// Consequence of runs without a control group.
const UNGROUPED: &str = "no control group: if a runner is killed, processes that its agent started with an \
                   empty environment may keep running";

/// Consequence of a container without new privileges.
const UNMARKED: &str = "no mark of agents: this process can gain no privileges (no_new_privs), and neither can a \
                   daemon that is started here; an agent that outlives its runner can pass for a person";

/// Arguments of `doctor`.
#[derive(Args)]
#[command(after_help = "Exits with 1 if a problem remains.")]
pub(crate) struct DoctorArgs {
    /// Check one part only: the agent programs of this machine, whether agents can run in a sandbox or in
    /// containers, or the access to GitHub, to chat platforms or to channels of `notify` that the config names
    part: Option<DoctorPart>,
    /// Make all repairs that lose nothing
    #[arg(long)]
    fix: bool,
    /// Rebuild the database from the newest backup, views and transcripts
    #[arg(long, conflicts_with = "fix")]
    rebuild: bool,
    /// List everything that Heeler stores on this machine
    ///
    /// That is: state, home folder, repositories, worktrees, systemd unit and sockets.
    #[arg(long, conflicts_with_all = ["fix", "rebuild"])]
    footprint: bool,
    /// Remove everything listed by --footprint, after confirmation
    #[arg(long, requires = "footprint")]
    remove: bool,
    /// Do not ask for confirmation before a rebuild or removal
    #[arg(short, long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Part of the machine that `doctor` checks alone.
#[derive(Clone, Copy, clap::ValueEnum)]
enum DoctorPart {
    /// Lists the installed agent programs with their versions and logins
    Agents,
    /// Starts a sandbox and attacks it from inside
    Sandbox,
    /// Asks the container engine, and lists containers that are left
    Docker,
    /// Asks GitHub for the account and its limits
    Github,
    /// Asks the chat platforms for the bots, and checks the rules of their agents
    Chat,
    /// Checks whether the channels of `notify` can be used; sends nothing
    Notify,
}

/// Runs `doctor`.
pub(crate) fn run(global: &GlobalArgs, args: &DoctorArgs) -> CommandResult {
    if let Some(part) = args.part {
        return run_part(global, part, args.json);
    }
    let context = CommandContext::find(global)?;
    if args.rebuild {
        return rebuild(&context, args);
    }
    if args.footprint {
        return footprint::run(&context, args.remove, args.yes, args.json);
    }
    // With `--json` an empty report is printed, so that programs need no special case.
    if !context.state_dir.exists() && !args.json {
        return Ok(output::print_line(format!(
            "{} does not exist yet: nothing to check",
            context.state_dir
        ))?);
    }
    // Adopt first. If that is refused, the checks below still work.
    if let Err(failure) = crate::adopt::adopt_if_foreign(&context) {
        output::print_error(failure.text())?;
    }
    let progress = ProgressIndicator::spinner("checking", context.quiet || args.json);
    // Settle before examining: dead runs would otherwise be reported although they are repaired.
    let settled = if args.fix { settle_runs(&context)? } else { Vec::new() };
    let mut findings =
        doctor::examine(&context.state_dir, context.home.as_deref(), process_env::now());
    let fixed = match args.fix {
        true => doctor::fix(&context.state_dir, &findings, process_env::now()),
        false => Vec::new(),
    };
    // Examine again, so that the exit code tells what remains.
    if args.fix {
        findings = doctor::examine(&context.state_dir, context.home.as_deref(), process_env::now());
    }
    findings.extend(held_change_finding(&context));
    findings.extend(file_archive::check(&context));
    let github = github::check(&context);
    progress.end();
    let examined = MachineReport {
        ungrouped: heeler_runner::control_group_unavailable_reason(),
        is_unmarked: heeler_process::is_own_process_marked(),
        unconfined: sandbox::unconfined_agents(&context),
        containers: docker::containers(&context),
        untested: agents::untested_agents(&context),
        github,
    };
    match args.json {
        true => {
            let mut document = to_json(&findings, &fixed, &settled);
            examined.add_to(&mut document);
            output::print_json(&document)?;
        }
        false => {
            for run in &settled {
                let line = format!("settled  {}: {} ({})", run.job, run.status, run.end);
                output::print_line(line)?;
            }
            print(&context, &findings, &fixed)?;
            examined.print(&context)?;
        }
    }
    let has_github_problem = examined.github.is_some_and(|report| !report.problems.is_empty());
    // Notes need no action, so a check in a script must not fail for them.
    let is_serious = |finding: &Finding| finding.severity > FindingSeverity::Note;
    match has_github_problem || findings.iter().any(is_serious) {
        true => Err(CommandFailure::silent(FailureCode::Failed)),
        false => Ok(()),
    }
}

/// Checks one part.
fn run_part(global: &GlobalArgs, part: DoctorPart, is_json: bool) -> CommandResult {
    match part {
        DoctorPart::Agents => agents::run(is_json),
        DoctorPart::Sandbox => sandbox::run(is_json),
        DoctorPart::Docker => docker::run(global, is_json),
        DoctorPart::Github => github::run(&CommandContext::find(global)?, is_json),
        DoctorPart::Chat => chat::run(&CommandContext::find(global)?, is_json),
        DoctorPart::Notify => notify::run(&CommandContext::find(global)?, is_json),
    }
}

/// Properties of the machine and the config, which no repair of the state can change.
struct MachineReport {
    /// Reason that there are no control groups.
    ungrouped: Option<String>,
    is_unmarked: bool,
    /// Agents without a sandbox.
    unconfined: Vec<String>,
    containers: ContainerSurvey,
    /// Programs of agents with a version outside the tested range.
    untested: Vec<VersionedAgent>,
    github: Option<GithubAccessReport>,
}

impl MachineReport {
    fn add_to(&self, document: &mut Value) {
        document["noControlGroup"] = self.ungrouped.clone().into();
        document["noAgentMark"] = self.is_unmarked.into();
        document["noSandbox"] = self.unconfined.clone().into();
        document["orphanContainers"] = docker::orphans_json(&self.containers);
        let untested = self.untested.iter().map(agents::to_json);
        document["untestedAgents"] = untested.collect::<Vec<Value>>().into();
        document["github"] = self.github.as_ref().map_or(Value::Null, github::to_json);
    }

    fn print(&self, context: &CommandContext) -> CommandResult {
        if let Some(why) = &self.ungrouped {
            output::print_line(format!("{UNGROUPED} ({why})"))?;
        }
        if self.is_unmarked {
            output::print_line(UNMARKED)?;
        }
        if let Some(text) = sandbox::recommendation(context, &self.unconfined) {
            output::print_line(text)?;
        }
        agents::print_warnings(&self.untested)?;
        docker::print_orphans(&self.containers)?;
        self.github.as_ref().map_or(Ok(()), github::print_report)
    }
}

/// Reports a change of the config that keeps a daemon from loading it, or from starting.
fn held_change_finding(context: &CommandContext) -> Option<Finding> {
    // An unreadable config is not a problem of the state.
    let held = config_changes::find(context).ok().flatten();
    held.map(|held| Finding {
        severity: FindingSeverity::Warning,
        area: FindingArea::Runs,
        subject: "config".to_owned(),
        problem: visible(&held.change.summary()),
        remedy: "run `heeler reload --accept`, or undo the change".to_owned(),
        repair: None,
    })
}

/// Commits the result of every run that has no processes left; an error is printed, not returned.
fn settle_runs(context: &CommandContext) -> CommandResult<Vec<CommittedRun>> {
    // Opening a writer would create a database, which must be left to adoption or a rebuild.
    if !context.state_dir.join("heeler.db").exists() {
        return Ok(Vec::new());
    }
    let engine = process_env::engine_fleet(&context.state_dir, &context.env)?;
    let settled = engine
        .open_writer("doctor --fix", SETTLE_WAIT)
        .map_err(anyhow::Error::from)
        // A user who calls `doctor` suspects damage, so run folders without a row are searched too.
        .and_then(|store| Ok(recover_runs(&engine, &store, RunFolderCheck::Always)?));
    match settled {
        Ok(recovered) => Ok(recovered.committed),
        // A running daemon holds the lock and settles runs itself; the other checks still help.
        Err(error) => {
            output::print_error(CommandFailure::new(FailureCode::Failed, error).text())?;
            Ok(Vec::new())
        }
    }
}

fn print(context: &CommandContext, findings: &[Finding], fixed: &[RepairOutcome]) -> CommandResult {
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
            output::print_line(format!("         fix: {}", finding.remedy))?;
        }
    }
    if findings.iter().all(|finding| finding.severity == FindingSeverity::Note) {
        output::print_line(SafeText::styled(
            green,
            &format!("{}: no problems found", context.state_dir),
        ))?;
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

fn rebuild(context: &CommandContext, args: &DoctorArgs) -> CommandResult {
    // Without a database there is nothing to replace.
    if !args.yes && context.state_dir.join("heeler.db").exists() {
        if !std::io::stdin().is_terminal() {
            let message = "a rebuild replaces the database";
            return Err(CommandFailure::message(FailureCode::Refused, message)
                .hint("--yes rebuilds it; the old database moves to trash/"));
        }
        let question =
            format!("Rebuild the database of {}? The old one moves to trash/.", context.state_dir);
        if !output::confirm(&question, false)? {
            return Err(CommandFailure::message(FailureCode::Refused, "nothing was changed"));
        }
    }
    let progress = ProgressIndicator::spinner("rebuilding", context.quiet || args.json);
    let rebuilt = heeler_import::rebuild(&context.state_dir, process_env::now());
    if rebuilt.is_ok() {
        // The views on disk still describe the lost database.
        crate::adopt::publish_views(context, "doctor");
        // The directories of runs hold results that no view has.
        settle_runs(context)?;
        let found =
            doctor::examine(&context.state_dir, context.home.as_deref(), process_env::now());
        for RepairOutcome { finding, outcome } in
            doctor::fix(&context.state_dir, &found, process_env::now())
        {
            if let Err(why) = outcome {
                output::print_error(format!("not fixed: {}: {why}", finding.subject))?;
            }
        }
    }
    progress.end();
    let rebuilt = rebuilt.map_err(|error| match error {
        RebuildError::Locked(_) | RebuildError::Newer(_) | RebuildError::OnServer(_) => {
            CommandFailure::new(FailureCode::Refused, error)
        }
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
            output::print_line(format!(
                "added {} {} from views and transcripts",
                tally.imported,
                kind.plural()
            ))?;
        }
    }
    for refusal in &rebuilt.report.refused {
        output::print_line(format!("unreadable: {}: {}", refusal.what, refusal.reason))?;
    }
    // A rebuild may be incomplete, and the user must know what is missing.
    for lost in &rebuilt.losses {
        output::print_line(format!("lost: {lost}"))?;
    }
    Ok(output::print_line(format!("the old database is in {}", rebuilt.trash))?)
}
