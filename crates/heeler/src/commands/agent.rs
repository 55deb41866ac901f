//! `heeler agent`: who is in the fleet, what each does and spends, and who is switched off.
//!
//! Lists are read from the config and the database; changes are asked of the daemon.

use clap::{Args, Subcommand};
use heeler_engine::{AgentChange, Command};
use heeler_model::AgentStatus;
use heeler_model::config::AgentLookup;
use heeler_query::agents::AgentItem;
use jiff::Timestamp;
use serde_json::json;

use crate::cli::{self, Global};
use crate::commands::costs::dollars;
use crate::commands::session::resume;
use crate::commands::status::Keeper;
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};

/// What the help of what changes an agent shows at its end.
const CHANGE: &str = "Examples:
  heeler agent disable coder
  heeler agent enable coder

It is kept until it is changed again. Starts a daemon if none runs, which ends when it is idle.
Exit codes: 0 changed, 4 not found.";

#[derive(Subcommand)]
pub(crate) enum AgentCommand {
    /// List agents: what each does, and who is switched off
    #[command(after_help = "Exit codes: 0 listed, 2 a fault in the config.")]
    List(ListArgs),
    /// Show one agent: its state, settings and spending
    #[command(
        after_help = "Example:\n  heeler agent show coder\n\nExit codes: 0 shown, 4 not found."
    )]
    Show(OneArgs),
    /// Let an agent's jobs start again
    #[command(after_help = CHANGE)]
    Enable(OneArgs),
    /// Keep an agent's jobs from starting; those that run go on
    #[command(after_help = CHANGE)]
    Disable(OneArgs),
    /// Forget that an agent's last job failed
    #[command(after_help = CHANGE)]
    Reset(OneArgs),
    /// Go on in the agent's last session, and watch
    #[command(after_help = resume::OF_AGENT)]
    Resume(resume::AgentResumeArgs),
}

impl AgentCommand {
    /// Says whether stdout is promised to be JSON.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            AgentCommand::List(args) => args.json,
            AgentCommand::Show(args) => args.json,
            AgentCommand::Enable(args)
            | AgentCommand::Disable(args)
            | AgentCommand::Reset(args) => args.json,
            AgentCommand::Resume(args) => args.how.json,
        }
    }
}

/// Arguments of `agent list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `agent show`, `enable`, `disable` and `reset`.
#[derive(Args)]
pub(crate) struct OneArgs {
    /// The agent
    #[arg(add = cli::agents())]
    agent: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `agent` and its verbs.
pub(crate) fn run(global: &Global, command: &AgentCommand) -> Outcome {
    match command {
        AgentCommand::List(args) => list(global, args),
        AgentCommand::Show(args) => show(global, args),
        AgentCommand::Enable(args) => change(global, args, AgentChange::Enable),
        AgentCommand::Disable(args) => change(global, args, AgentChange::Disable),
        AgentCommand::Reset(args) => change(global, args, AgentChange::Reset),
        AgentCommand::Resume(args) => resume::of_agent(global, args),
    }
}

fn change(global: &Global, args: &OneArgs, change: AgentChange) -> Outcome {
    let place = Place::find(global)?;
    let command = Command::Agent { agent: args.agent.clone(), change, by: place.who() };
    daemon::tell(&daemon::ask(&place, &command)?, args.json)
}

fn list(global: &Global, args: &ListArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    let keeper = Keeper::find(&place)?;
    let page = place.records_by(Some(fleet::load(&place)?))?.agents(now)?;
    if args.json {
        return Ok(output::json(&page)?);
    }
    let shown = &page.agents;
    if shown.is_empty() {
        return Ok(output::line("no agents yet; add one with: heeler init agent NAME")?);
    }
    if let Some(warning) = keeper.warning() {
        output::line(warning)?;
    }
    let mut lines = Lines::new(
        &["AGENT", "STATUS", "RUNTIME", "JOB", "NEXT", "TODAY", "DESCRIPTION"],
        &["DESCRIPTION"],
    );
    for it in shown {
        let job = it.current_job.as_ref().or(it.last_job.as_ref());
        lines.push(vec![
            it.name.as_str().into(),
            status(it),
            it.runtime.as_str().into(),
            job.map_or("", String::as_str).into(),
            it.next_trigger_at.map(|at| output::upcoming(at, now)).unwrap_or_default().into(),
            dollars(it.spent_today_usd).into(),
            output::one_line(it.description.as_deref().unwrap_or_default()).into(),
        ]);
    }
    Ok(lines.print()?)
}

fn show(global: &Global, args: &OneArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    let loaded = fleet::load(&place)?;
    let name = loaded.find_agent(&args.agent).map_err(unknown)?.name.to_string();
    let one = place.records_by(Some(loaded))?.agent(&name, now)?;
    match args.json {
        true => Ok(output::json(&json!({ "agent": one }))?),
        false => print(&one, now),
    }
}

fn unknown(error: AgentLookup) -> Failure {
    match &error {
        AgentLookup::Unknown { nearest, .. } => {
            let hint = match nearest {
                Some(near) => format!("heeler agent show {near}"),
                None => "heeler agent list".to_owned(),
            };
            Failure::new(Code::NotFound, error).hint(hint)
        }
        AgentLookup::Ambiguous { .. } => Failure::new(Code::Usage, error),
    }
}

fn status(agent: &AgentItem) -> Text {
    let status = match (agent.enabled, agent.status) {
        (false, AgentStatus::Running) => "running, disabled".to_owned(),
        (false, _) => "disabled".to_owned(),
        (true, status) => status.to_string(),
    };
    match agent.status {
        AgentStatus::Error => {
            Text::styled(output::status_style(heeler_model::JobStatus::Failed), &status)
        }
        _ => status.into(),
    }
}

fn print(agent: &AgentItem, now: Timestamp) -> Outcome {
    let spent_of = |spent: f64, limit: Option<f64>| match limit {
        Some(limit) => format!("{} of ${limit}", dollars(spent)),
        None => dollars(spent),
    };
    let text = |text: &Option<String>| text.as_deref().map(Text::from);
    let next = agent.next_trigger_at.map(|at| {
        let schedule = agent.next_schedule.as_deref().unwrap_or_default();
        format!("{} {schedule}", output::upcoming(at, now))
    });
    let schedules = (!agent.schedules.is_empty()).then(|| agent.schedules.join(", ").into());
    let fields: [(&str, Option<Text>); 15] = [
        ("agent", Some(agent.name.as_str().into())),
        ("about", text(&agent.description)),
        ("status", Some(status(agent))),
        ("error", text(&agent.error_message)),
        ("running", text(&agent.current_job)),
        ("last job", text(&agent.last_job)),
        ("next", next.map(Text::from)),
        ("runtime", Some(agent.runtime.as_str().into())),
        ("model", text(&agent.model)),
        ("works in", Some(agent.working_directory.as_str().into())),
        ("at once", Some(agent.max_concurrent.to_string().into())),
        ("schedules", schedules),
        ("today", Some(spent_of(agent.spent_today_usd, agent.budget.day_usd).into())),
        ("in all", Some(spent_of(agent.spent_usd, agent.budget.total_usd).into())),
        ("defined in", Some(agent.file.as_str().into())),
    ];
    for (name, value) in fields {
        output::field(name, value)?;
    }
    if agent.status == AgentStatus::Error {
        output::note(&format!(
            "its next success clears the error, or: heeler agent reset {}",
            agent.name
        ))?;
    }
    Ok(())
}
