//! `heeler schedule`: when agents start by themselves, and what people changed about it.
//!
//! Lists are read from the config and the database; changes are asked of the daemon.

use clap::{Args, Subcommand};
use heeler_engine::{Command, ScheduleChange};
use heeler_model::config::{self, Trigger};
use heeler_model::timetable::SkipReason;
use heeler_model::{ScheduleState, ScheduleStatus};
use heeler_store::{Occurrence, Override, Reader, SkipRow};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{self, Global};
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};

/// How many starts and skips of a schedule are shown.
const SHOWN: usize = 10;

#[derive(Subcommand)]
pub(crate) enum ScheduleCommand {
    /// List schedules: when they run, when next, what people changed
    List(ListArgs),
    /// Show one schedule, with its last starts and what was skipped and why
    Show(ShowArgs),
    /// Let a schedule run, whatever the config says
    Enable(ChangeArgs),
    /// Keep a schedule from running, whatever the config says
    Disable(ChangeArgs),
    /// Run a schedule now
    Trigger(ChangeArgs),
    /// Let a schedule run at other times than the config says
    #[command(
        after_help = "Examples:\n  heeler schedule set coder nightly '0 3 * * *'\n  heeler schedule set coder nightly 30m\n\n`heeler schedule reset` undoes it."
    )]
    Set(SetArgs),
    /// Let the config decide about a schedule again
    Reset(ChangeArgs),
}

impl ScheduleCommand {
    /// Says whether stdout is promised to be JSON.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            ScheduleCommand::List(args) => args.json,
            ScheduleCommand::Show(args) => args.json,
            ScheduleCommand::Set(args) => args.json,
            ScheduleCommand::Enable(args)
            | ScheduleCommand::Disable(args)
            | ScheduleCommand::Trigger(args)
            | ScheduleCommand::Reset(args) => args.json,
        }
    }
}

/// Arguments of `schedule list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Only this agent's
    #[arg(add = cli::agents())]
    agent: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `schedule show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The agent
    #[arg(add = cli::agents())]
    agent: String,
    /// The schedule
    schedule: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `schedule enable`, `disable`, `trigger` and `reset`.
#[derive(Args)]
pub(crate) struct ChangeArgs {
    /// The agent
    #[arg(add = cli::agents())]
    agent: String,
    /// The schedule
    schedule: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `schedule set`.
#[derive(Args)]
pub(crate) struct SetArgs {
    /// The agent
    #[arg(add = cli::agents())]
    agent: String,
    /// The schedule
    schedule: String,
    /// When: a length such as `30m`, or a cron expression
    #[arg(value_name = "WHEN")]
    text: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `schedule` and its verbs.
pub(crate) fn run(global: &Global, command: &ScheduleCommand) -> Outcome {
    match command {
        ScheduleCommand::List(args) => list(global, args),
        ScheduleCommand::Show(args) => show(global, args),
        ScheduleCommand::Enable(args) => change(global, args, ScheduleChange::Enable),
        ScheduleCommand::Disable(args) => change(global, args, ScheduleChange::Disable),
        ScheduleCommand::Trigger(args) => change(global, args, ScheduleChange::Trigger),
        ScheduleCommand::Reset(args) => change(global, args, ScheduleChange::Reset),
        ScheduleCommand::Set(SetArgs { agent, schedule, text, json }) => {
            let args = ChangeArgs { agent: agent.clone(), schedule: schedule.clone(), json: *json };
            change(global, &args, ScheduleChange::Set { text: text.clone() })
        }
    }
}

fn change(global: &Global, args: &ChangeArgs, change: ScheduleChange) -> Outcome {
    let place = Place::find(global)?;
    let command = Command::Schedule {
        agent: args.agent.clone(),
        schedule: args.schedule.clone(),
        change,
        by: place.who(),
    };
    daemon::tell(&daemon::ask(&place, &command)?, args.json)
}

/// A schedule, as the config has it and as it stands.
pub(crate) struct Shown {
    pub(crate) agent: String,
    pub(crate) schedule: config::Schedule,
    pub(crate) state: ScheduleState,
    pub(crate) changed: Option<Override>,
    agent_disabled: bool,
}

impl Shown {
    /// Says whether it starts by itself.
    pub(crate) fn is_enabled(&self) -> bool {
        let own = self.changed.as_ref().map_or(self.schedule.enabled, |changed| changed.enabled);
        own && !self.agent_disabled && self.state.status != ScheduleStatus::Disabled
    }

    fn when(&self) -> String {
        match self.changed.as_ref().and_then(|changed| changed.text.as_deref()) {
            Some(text) => output::one_line(text),
            None => when(&self.schedule.trigger),
        }
    }

    fn status(&self) -> &'static str {
        match self.state.status {
            ScheduleStatus::Running => "running",
            _ if self.agent_disabled => "agent disabled",
            _ if !self.is_enabled() => "disabled",
            _ => "enabled",
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "agent": self.agent,
            "name": self.schedule.name,
            "when": self.when(),
            "configured": when(&self.schedule.trigger),
            "enabled": self.is_enabled(),
            "status": self.state.status,
            "lastRunAt": self.state.last_run_at,
            "nextRunAt": self.state.next_run_at.filter(|_| self.is_enabled()),
            "lastError": self.state.last_error,
            "override": self.changed.as_ref().map(|changed| json!({
                "enabled": changed.enabled, "when": changed.text, "by": changed.by, "at": changed.at,
            })),
        })
    }
}

/// Returns when a schedule runs, in words.
fn when(trigger: &Trigger) -> String {
    match trigger {
        Trigger::Every(period) => format!("every {period}"),
        Trigger::Cron { expr, zone: Some(zone) } => format!("{} {}", expr.as_str(), zone.name()),
        Trigger::Cron { expr, zone: None } => expr.as_str().to_owned(),
        Trigger::Watch { paths, .. } => format!("when {} change", paths.patterns().join(", ")),
        Trigger::Webhook => "webhook".to_owned(),
        Trigger::Chat => "chat".to_owned(),
    }
}

/// Reads every schedule of the config, with what the state knows of it.
pub(crate) fn all(place: &Place, reader: Option<&Reader>) -> Outcome<Vec<Shown>> {
    let loaded = fleet::load(place)?;
    let (states, overrides, disabled) = match reader {
        Some(reader) => (reader.agents()?, reader.overrides()?, reader.disabled_agents()?),
        None => Default::default(),
    };
    let mut shown = Vec::new();
    for agent in &loaded.agents {
        let name = agent.name.to_string();
        for schedule in &agent.schedules {
            let is_own =
                |changed: &&Override| changed.agent == name && changed.schedule == schedule.name;
            let state = states.get(&name).and_then(|state| state.schedules.get(&schedule.name));
            shown.push(Shown {
                agent: name.clone(),
                schedule: schedule.clone(),
                state: state.cloned().unwrap_or_default(),
                changed: overrides.iter().find(is_own).cloned(),
                agent_disabled: disabled.contains(&name),
            });
        }
    }
    Ok(shown)
}

fn list(global: &Global, args: &ListArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    let reader = place.reader()?;
    let mut shown = all(&place, reader.as_ref())?;
    drop(reader);
    if let Some(name) = &args.agent {
        shown.retain(|it| is_named(&it.agent, name));
        if shown.is_empty() {
            let message = format!("there is no agent `{name}` with schedules");
            return Err(Failure::message(Code::NotFound, message).hint("heeler schedule list"));
        }
    }
    if args.json {
        let schedules: Vec<Value> = shown.iter().map(Shown::to_json).collect();
        return Ok(output::json(&json!({ "schedules": schedules, "total": shown.len() }))?);
    }
    if shown.is_empty() {
        return Ok(output::line("no agent has a schedule")?);
    }
    let mut lines = Lines::new(
        &["AGENT", "SCHEDULE", "WHEN", "STATUS", "NEXT", "LAST RUN", "CHANGED"],
        &["WHEN", "CHANGED"],
    );
    for it in &shown {
        let next = it.state.next_run_at.filter(|_| it.is_enabled());
        lines.push(vec![
            output::one_line(&it.agent).into(),
            output::one_line(&it.schedule.name).into(),
            it.when().into(),
            it.status().into(),
            next.map(|at| output::upcoming(at, now)).unwrap_or_default().into(),
            it.state.last_run_at.map(|at| output::relative(at, now)).unwrap_or_default().into(),
            it.changed.as_ref().map(|changed| by(changed, now)).unwrap_or_default().into(),
        ]);
    }
    lines.print()?;
    if !global.quiet && daemon::connect(&place)?.is_none() {
        output::note("no daemon runs, so nothing starts by itself: heeler start -d")?;
    }
    Ok(())
}

fn is_named(agent: &str, name: &str) -> bool {
    agent == name || agent.rsplit('.').next() == Some(name)
}

/// Says who changed a schedule, and when.
fn by(changed: &Override, now: Timestamp) -> String {
    let what = match (changed.enabled, &changed.text) {
        (false, _) => "disabled",
        (true, Some(_)) => "set",
        (true, None) => "enabled",
    };
    let by = output::one_line(&changed.by);
    format!("{what} by {by} {}", output::relative(changed.at, now))
}

fn show(global: &Global, args: &ShowArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    let reader = place.reader()?;
    let shown = all(&place, reader.as_ref())?;
    let is_it = |it: &&Shown| is_named(&it.agent, &args.agent) && it.schedule.name == args.schedule;
    let found: Vec<&Shown> = shown.iter().filter(is_it).collect();
    let it = match found[..] {
        [one] => one,
        [] => {
            let message = format!("there is no schedule `{}` of `{}`", args.schedule, args.agent);
            return Err(Failure::message(Code::NotFound, message).hint("heeler schedule list"));
        }
        _ => {
            let names: Vec<&str> = found.iter().map(|it| it.agent.as_str()).collect();
            let message = format!("`{}` may be any of: {}", args.agent, names.join(", "));
            return Err(Failure::message(Code::Usage, message));
        }
    };
    let (starts, skips) = match &reader {
        Some(reader) => (
            reader.occurrences(&it.agent, &it.schedule.name, None, SHOWN)?,
            reader.skips(&it.agent, &it.schedule.name, None, SHOWN)?,
        ),
        None => Default::default(),
    };
    drop(reader);
    match args.json {
        true => Ok(output::json(&json!({ "schedule": full_json(it, &starts, &skips) }))?),
        false => print(it, &starts, &skips, now),
    }
}

fn full_json(it: &Shown, starts: &[Occurrence], skips: &[SkipRow]) -> Value {
    let mut value = it.to_json();
    value["prompt"] = json!(it.schedule.prompt);
    value["missed"] = json!(it.schedule.missed);
    value["overlap"] = json!(it.schedule.overlap);
    let start = |start: &Occurrence| json!({ "dueAt": start.due, "job": start.job });
    value["starts"] = starts.iter().map(start).collect();
    let skip = |row: &SkipRow| {
        json!({
            "firstDueAt": row.skip.first, "lastDueAt": row.skip.last, "count": row.skip.count,
            "reason": row.skip.reason,
        })
    };
    value["skips"] = skips.iter().map(skip).collect();
    value
}

fn print(it: &Shown, starts: &[Occurrence], skips: &[SkipRow], now: Timestamp) -> Outcome {
    let moment =
        |at: Timestamp| format!("{} ({})", heeler_model::iso_millis(at), output::relative(at, now));
    let configured = when(&it.schedule.trigger);
    let fields: [(&str, Option<Text>); 10] = [
        ("agent", Some(it.agent.as_str().into())),
        ("schedule", Some(it.schedule.name.as_str().into())),
        ("when", Some(it.when().into())),
        ("in config", Some(configured).filter(|text| *text != it.when()).map(Text::from)),
        ("status", Some(it.status().into())),
        ("changed", it.changed.as_ref().map(|changed| by(changed, now).into())),
        ("next", it.state.next_run_at.filter(|_| it.is_enabled()).map(|at| moment(at).into())),
        ("last run", it.state.last_run_at.map(|at| moment(at).into())),
        ("last error", it.state.last_error.as_deref().map(Text::from)),
        ("prompt", it.schedule.prompt.as_deref().map(|it| output::shortened(it, 200).into())),
    ];
    for (name, value) in fields {
        output::field(name, value)?;
    }
    if !starts.is_empty() {
        output::line("\nStarted")?;
    }
    for start in starts {
        output::line(format!("  {}  {}", moment(start.due), start.job))?;
    }
    if !skips.is_empty() {
        output::line("\nSkipped")?;
    }
    for SkipRow { skip, .. } in skips {
        let times = match skip.count {
            1 => moment(skip.first),
            count => format!("{count} times from {} to {}", moment(skip.first), moment(skip.last)),
        };
        output::line(format!("  {times}: {}", why(skip.reason)))?;
    }
    Ok(())
}

/// Says why due times got no run.
fn why(reason: SkipReason) -> &'static str {
    match reason.as_str() {
        "missed" => "no daemon was there, and `missed: skip` does not make up for it",
        "made_up" => "no daemon was there; a later run made up for it",
        "too_many" => "no daemon was there, and too many were missed",
        "overlap" => "the run before it had not ended",
        "budget" => "there was no money left",
        "queue_full" => "as many jobs waited as may",
        other => other,
    }
}
