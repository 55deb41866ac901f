//! `heeler agent`: who is in the fleet, what each does and spends, and who is switched off.
//!
//! Lists are read from the config and the database; changes are asked of the daemon.

use clap::{Args, Subcommand};
use heeler_engine::{AgentChange, Command};
use heeler_model::config::{self, AgentLookup, Loaded, Runtime, Usd};
use heeler_model::{AgentState, AgentStatus};
use heeler_store::Reader;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

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

/// An agent, as the config has it and as it stands.
struct Shown {
    agent: config::Agent,
    state: AgentState,
    disabled: bool,
    /// What it spent today and in all, in millionths of a dollar.
    spent: (i64, i64),
}

fn all(
    loaded: Loaded,
    reader: Option<&Reader>,
    keeper: &Keeper,
    now: Timestamp,
) -> Outcome<Vec<Shown>> {
    let today = now.to_zoned(TimeZone::system()).date();
    let (states, disabled, day, total) = match reader {
        Some(reader) => (
            reader.agents()?,
            reader.disabled_agents()?,
            reader.spent_by_agent(today)?,
            reader.spent_in_all()?,
        ),
        None => Default::default(),
    };
    let sum = |sums: &[(String, i64)], name: &str| {
        sums.iter().find(|(known, _)| known == name).map_or(0, |(_, micros)| *micros)
    };
    let shown = loaded.agents.into_iter().map(|agent| {
        let name = agent.name.as_str();
        let disabled = disabled.iter().any(|known| known == name);
        let mut state = states.get(name).cloned().unwrap_or_default();
        if disabled || !keeper.is_permanent() {
            (state.next_trigger_at, state.next_schedule) = (None, None);
        }
        Shown { state, disabled, spent: (sum(&day, name), sum(&total, name)), agent }
    });
    Ok(shown.collect())
}

fn list(global: &Global, args: &ListArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    let reader = place.reader()?;
    let keeper = Keeper::find(&place)?;
    let shown = all(fleet::load(&place)?, reader.as_ref(), &keeper, now)?;
    drop(reader);
    if args.json {
        let agents: Vec<Value> = shown.iter().map(Shown::to_json).collect();
        return Ok(output::json(&json!({ "agents": agents, "total": shown.len() }))?);
    }
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
    for it in &shown {
        let job = it.state.current_job.as_ref().or(it.state.last_job.as_ref());
        lines.push(vec![
            it.agent.name.as_str().into(),
            it.status(),
            runtime(&it.agent.runtime).into(),
            job.map_or("", |id| id.as_str()).into(),
            it.state.next_trigger_at.map(|at| output::upcoming(at, now)).unwrap_or_default().into(),
            dollars(it.spent.0).into(),
            output::one_line(it.agent.description.as_deref().unwrap_or_default()).into(),
        ]);
    }
    Ok(lines.print()?)
}

fn runtime(runtime: &Runtime) -> &'static str {
    match runtime {
        Runtime::Sdk => "sdk",
        Runtime::Cli => "cli",
        Runtime::Scripted(_) => "scripted",
        Runtime::Command(_) => "command",
    }
}

fn show(global: &Global, args: &OneArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    let reader = place.reader()?;
    let loaded = fleet::load(&place)?;
    let name = loaded.find_agent(&args.agent).map_err(unknown)?.name.clone();
    let shown = all(loaded, reader.as_ref(), &Keeper::find(&place)?, now)?;
    drop(reader);
    let one = shown.iter().find(|it| it.agent.name == name).expect("it was found above");
    match args.json {
        true => Ok(output::json(&json!({ "agent": one.to_json() }))?),
        false => one.print(now),
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

impl Shown {
    fn status(&self) -> Text {
        let status = match (self.disabled, self.state.status) {
            (true, AgentStatus::Running) => "running, disabled".to_owned(),
            (true, _) => "disabled".to_owned(),
            (false, status) => status.to_string(),
        };
        match self.state.status {
            AgentStatus::Error => {
                Text::styled(output::status_style(heeler_model::JobStatus::Failed), &status)
            }
            _ => status.into(),
        }
    }

    fn to_json(&self) -> Value {
        let Shown { agent, state, disabled, spent } = self;
        let usd = |micros: i64| micros as f64 / 1e6;
        let limit = |of: fn(&config::Budget) -> Option<Usd>| {
            let limit = agent.budget.as_ref().and_then(of);
            limit.map(|limit| limit.micros() as f64 / 1e6)
        };
        json!({
            "name": agent.name,
            "description": agent.description,
            "status": state.status,
            "enabled": !disabled,
            "errorMessage": state.error_message,
            "currentJob": state.current_job,
            "lastJob": state.last_job,
            "nextSchedule": state.next_schedule,
            "nextTriggerAt": state.next_trigger_at,
            "runtime": runtime(&agent.runtime),
            "model": agent.model,
            "workingDirectory": agent.working_directory,
            "maxConcurrent": agent.max_concurrent,
            "schedules": agent.schedules.iter().map(|it| &it.name).collect::<Vec<_>>(),
            "budget": {
                "jobUsd": limit(|budget| budget.job),
                "dayUsd": limit(|budget| budget.day),
                "totalUsd": limit(|budget| budget.total),
            },
            "spentTodayUsd": usd(spent.0),
            "spentUsd": usd(spent.1),
        })
    }

    fn print(&self, now: Timestamp) -> Outcome {
        let Shown { agent, state, spent, .. } = self;
        let spent_of = |micros: i64, limit: Option<Usd>| match limit {
            Some(limit) => format!("{} of ${limit}", dollars(micros)),
            None => dollars(micros),
        };
        let budget = agent.budget.as_ref();
        let schedules: Vec<&str> = agent.schedules.iter().map(|it| it.name.as_str()).collect();
        let next = state.next_trigger_at.map(|at| {
            let schedule = state.next_schedule.as_deref().unwrap_or_default();
            format!("{} {schedule}", output::upcoming(at, now))
        });
        let fields: [(&str, Option<Text>); 15] = [
            ("agent", Some(agent.name.as_str().into())),
            ("about", agent.description.as_deref().map(Text::from)),
            ("status", Some(self.status())),
            ("error", state.error_message.as_deref().map(Text::from)),
            ("running", state.current_job.as_ref().map(|id| id.as_str().into())),
            ("last job", state.last_job.as_ref().map(|id| id.as_str().into())),
            ("next", next.map(Text::from)),
            ("runtime", Some(runtime(&agent.runtime).into())),
            ("model", agent.model.as_deref().map(Text::from)),
            ("works in", Some(agent.working_directory.as_str().into())),
            ("at once", Some(agent.max_concurrent.to_string().into())),
            ("schedules", (!schedules.is_empty()).then(|| schedules.join(", ").into())),
            ("today", Some(spent_of(spent.0, budget.and_then(|it| it.day)).into())),
            ("in all", Some(spent_of(spent.1, budget.and_then(|it| it.total)).into())),
            ("defined in", Some(agent.file.as_str().into())),
        ];
        for (name, value) in fields {
            output::field(name, value)?;
        }
        if state.status == AgentStatus::Error {
            output::note(&format!(
                "its next success clears the error, or: heeler agent reset {}",
                agent.name
            ))?;
        }
        Ok(())
    }
}
