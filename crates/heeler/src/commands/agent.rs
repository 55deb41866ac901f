//! `heeler agent`: lists, shows, adds, removes, enables and disables agents, and compares runtimes.
//!
//! Lists are read from the config and the database; changes are requests to the daemon.

mod agent_package;
mod capabilities;
mod install;

use clap::{Args, Subcommand};
use heeler_config::AgentLookupError;
use heeler_engine::{AgentChange, DaemonCommand};
use heeler_model::{AgentStatus, format_usd};
use heeler_query::agents::AgentSummary;
use jiff::Timestamp;
use serde_json::json;

use crate::commands::session::resume;
use crate::commands::status::StateWriterInfo;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable, SafeText};
use crate::process_env;
use crate::shared_args;

/// Help footer of `agent enable` and `disable`.
const CHANGE: &str = "Examples:
  heeler agent disable coder
  heeler agent enable coder

The change lasts until you change it again. Starts a temporary daemon if none runs.
Exit codes: 0 changed, 4 not found.";

#[derive(Subcommand)]
pub(crate) enum AgentCommand {
    /// List agents with their status, next job and spending today
    #[command(after_help = "Exit codes: 0 listed, 2 invalid config.")]
    List(AgentListArgs),
    /// Show one agent's status, settings and spending
    #[command(
        after_help = "Example:\n  heeler agent show coder\n\nExit codes: 0 shown, 4 not found."
    )]
    #[command(alias = "info")]
    Show(AgentTargetArgs),
    /// List what each runtime offers, and the known agent programs
    #[command(
        after_help = "Example:\n  heeler agent capabilities\n\nThe same tables are in docs/agents.md.\nExit codes: 0 listed."
    )]
    Capabilities(AgentListArgs),
    /// Install an agent from a folder or a git repository
    #[command(after_help = install::ADD)]
    Add(install::AgentAddArgs),
    /// Remove an agent that `agent add` installed
    #[command(after_help = install::REMOVE)]
    Remove(install::AgentRemoveArgs),
    /// Allow an agent's jobs to start again
    #[command(after_help = CHANGE)]
    Enable(AgentTargetArgs),
    /// Keep an agent's jobs from starting; running jobs continue
    #[command(after_help = CHANGE)]
    Disable(AgentTargetArgs),
    /// Clear an agent's error status after a failed job
    #[command(
        after_help = "Example:\n  heeler agent reset coder\n\nStarts a temporary daemon if none runs.\nExit codes: 0 changed, 4 not found."
    )]
    Reset(AgentTargetArgs),
    /// Remove the hosts that people allowed an agent to reach in later runs
    #[command(
        after_help = "Example:\n  heeler agent forget-hosts coder\n\n`heeler agent show` lists them. Hosts of the config stay allowed.\nStarts a temporary daemon if none runs.\nExit codes: 0 changed, 4 not found."
    )]
    ForgetHosts(AgentTargetArgs),
    /// Remove the permissions that people gave an agent for all later runs
    #[command(
        after_help = "Example:\n  heeler agent forget-permissions coder\n\n`heeler agent show` lists them. Tools of the config stay allowed. An agent\nthat runs keeps them until it ends.\nStarts a temporary daemon if none runs.\nExit codes: 0 changed, 4 not found."
    )]
    ForgetPermissions(AgentTargetArgs),
    /// Continue the agent's last session with a new job, and watch the job
    #[command(after_help = resume::OF_AGENT)]
    Resume(resume::AgentResumeArgs),
}

/// Arguments of `agent list`.
#[derive(Args)]
pub(crate) struct AgentListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `agent show`, `enable`, `disable` and `reset`.
#[derive(Args)]
pub(crate) struct AgentTargetArgs {
    /// Agent name
    #[arg(add = shared_args::agents())]
    agent: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `agent` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, command: &AgentCommand) -> CommandResult {
    match command {
        AgentCommand::List(args) => list(global, args),
        AgentCommand::Show(args) => show(global, args),
        AgentCommand::Capabilities(args) => capabilities::print(args.json),
        AgentCommand::Add(args) => install::add(global, args),
        AgentCommand::Remove(args) => install::remove(global, args),
        AgentCommand::Enable(args) => change(global, args, AgentChange::Enable),
        AgentCommand::Disable(args) => change(global, args, AgentChange::Disable),
        AgentCommand::Reset(args) => change(global, args, AgentChange::Reset),
        AgentCommand::ForgetHosts(args) => change(global, args, AgentChange::ForgetHosts),
        AgentCommand::ForgetPermissions(args) => {
            change(global, args, AgentChange::ForgetPermissions)
        }
        AgentCommand::Resume(args) => resume::resume_agent(global, args),
    }
}

fn change(global: &GlobalArgs, args: &AgentTargetArgs, change: AgentChange) -> CommandResult {
    let context = CommandContext::find(global)?;
    let command =
        DaemonCommand::Agent { agent: args.agent.clone(), change, by: context.caller_name() };
    daemon::print_answer(&daemon::request(&context, &command)?, args.json)
}

fn list(global: &GlobalArgs, args: &AgentListArgs) -> CommandResult {
    let now = process_env::now();
    let context = CommandContext::find(global)?;
    // The "next" column would promise starts that do not happen without a daemon.
    let writer = StateWriterInfo::find(&context)?;
    let page = context.open_records_with(Some(fleet_config::load(&context)?))?.agents(now)?;
    if args.json {
        return Ok(output::print_json(&page)?);
    }
    let shown = &page.agents;
    if shown.is_empty() {
        return Ok(output::print_line("no agents yet; add one with: heeler init agent NAME")?);
    }
    if let Some(warning) = writer.warning() {
        output::print_line(warning)?;
    }
    let mut lines = OutputTable::new(
        &["AGENT", "STATUS", "RUNTIME", "JOB", "NEXT", "TODAY", "DESCRIPTION"],
        &["DESCRIPTION"],
    );
    for it in shown {
        // An idle agent shows its last job, which `heeler jobs show` explains.
        let job = it.current_job.as_ref().or(it.last_job.as_ref());
        lines.push(vec![
            it.name.as_str().into(),
            status(it),
            it.runtime.as_str().into(),
            job.map_or("", String::as_str).into(),
            it.next_trigger_at.map(|at| output::due_text(at, now)).unwrap_or_default().into(),
            format_usd(it.spent_today_usd).into(),
            output::one_line(it.description.as_deref().unwrap_or_default()).into(),
        ]);
    }
    Ok(lines.print()?)
}

fn show(global: &GlobalArgs, args: &AgentTargetArgs) -> CommandResult {
    let now = process_env::now();
    let context = CommandContext::find(global)?;
    let loaded = fleet_config::load(&context)?;
    // Resolve the name here, because only this lookup suggests a similar one.
    let name = loaded.find_agent(&args.agent).map_err(unknown)?.name.to_string();
    let one = context.open_records_with(Some(loaded))?.agent(&name, now)?;
    match args.json {
        true => Ok(output::print_json(&json!({ "agent": one }))?),
        false => print(&one, now),
    }
}

fn unknown(error: AgentLookupError) -> CommandFailure {
    match &error {
        AgentLookupError::Unknown { nearest, .. } => {
            let hint = match nearest {
                Some(near) => format!("heeler agent show {near}"),
                None => "heeler agent list".to_owned(),
            };
            CommandFailure::new(FailureCode::NotFound, error).hint(hint)
        }
        AgentLookupError::Ambiguous { .. } => CommandFailure::new(FailureCode::Usage, error),
    }
}

fn status(agent: &AgentSummary) -> SafeText {
    let status = match (agent.enabled, agent.status) {
        // A disabled agent finishes its running jobs.
        (false, AgentStatus::Running) => "running, disabled".to_owned(),
        (false, _) => "disabled".to_owned(),
        (true, status) => status.to_string(),
    };
    match agent.status {
        AgentStatus::Error => {
            SafeText::styled(output::status_style(heeler_model::JobStatus::Failed), &status)
        }
        _ => status.into(),
    }
}

fn print(agent: &AgentSummary, now: Timestamp) -> CommandResult {
    let spent_of = |spent: f64, limit: Option<f64>| match limit {
        Some(limit) => format!("{} of {}", format_usd(spent), format_usd(limit)),
        None => format_usd(spent),
    };
    let text = |text: &Option<String>| text.as_deref().map(SafeText::from);
    let next = agent.next_trigger_at.map(|at| {
        let schedule = agent.next_schedule.as_deref().unwrap_or_default();
        format!("{} {schedule}", output::due_text(at, now))
    });
    let schedules = (!agent.schedules.is_empty()).then(|| agent.schedules.join(", ").into());
    let hosts = (!agent.allowed_hosts.is_empty()).then(|| agent.allowed_hosts.join(", ").into());
    let permissions =
        (!agent.kept_permissions.is_empty()).then(|| agent.kept_permissions.join(", ").into());
    let fields: [(&str, Option<SafeText>); 17] = [
        ("agent", Some(agent.name.as_str().into())),
        ("about", text(&agent.description)),
        ("status", Some(status(agent))),
        ("error", text(&agent.error_message)),
        ("running", text(&agent.current_job)),
        ("last job", text(&agent.last_job)),
        ("next", next.map(SafeText::from)),
        ("runtime", Some(agent.runtime.as_str().into())),
        ("model", text(&agent.model)),
        ("directory", Some(agent.working_directory.as_str().into())),
        ("concurrency", Some(agent.max_concurrent.to_string().into())),
        ("schedules", schedules),
        ("allowed hosts", hosts),
        ("allowed always", permissions),
        ("today", Some(spent_of(agent.spent_today_usd, agent.budget.day_usd).into())),
        ("total", Some(spent_of(agent.spent_usd, agent.budget.total_usd).into())),
        ("defined in", Some(agent.file.as_str().into())),
    ];
    for (name, value) in fields {
        output::print_field(name, value)?;
    }
    if agent.status == AgentStatus::Error {
        output::print_note(&format!(
            "the next successful job clears the error; to clear it now: heeler agent reset {}",
            agent.name
        ))?;
    }
    Ok(())
}
