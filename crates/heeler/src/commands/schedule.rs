//! `heeler schedule`: when agents start by themselves, and what people changed about it.
//!
//! Lists are read from the config and the database; changes are asked of the daemon.

use std::fs::File;
use std::io::Read as _;

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, Subcommand};
use heeler_engine::{Call, Command, ScheduleChange, WEBHOOK_BYTES_MAX};
use heeler_model::config::{self, AgentLookup, Loaded, Period, Trigger};
use heeler_model::timetable::SkipReason;
use heeler_model::{ScheduleState, ScheduleStatus};
use heeler_store::{Occurrence, Override, Reader, SkipRow};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{self, Global};
use crate::commands::status::Keeper;
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};

/// How many starts and skips of a schedule are shown.
const SHOWN: usize = 10;

/// What the help of `schedule list` shows at its end.
const LIST: &str = "Examples:
  heeler schedule list
  heeler schedule list coder --json

Exit codes: 0 listed, 4 no such agent.";

/// What the help of what changes a schedule shows at its end.
const CHANGE: &str = "Examples:
  heeler schedule disable coder nightly
  heeler schedule reset coder nightly

It is kept, with who did it and when, until `heeler schedule reset`. Starts a daemon if none runs,
which ends when it is idle.
Exit codes: 0 changed, 4 not found.";

#[derive(Subcommand)]
pub(crate) enum ScheduleCommand {
    /// List schedules: when they run, when next, what people changed
    #[command(after_help = LIST)]
    List(ListArgs),
    /// Show one schedule, with its last starts and what was skipped and why
    #[command(
        after_help = "Example:\n  heeler schedule show coder nightly\n\nExit codes: 0 shown, 4 not found."
    )]
    Show(OneArgs),
    /// Let a schedule run, whatever the config says
    #[command(after_help = CHANGE)]
    Enable(OneArgs),
    /// Keep a schedule from running, whatever the config says
    #[command(after_help = CHANGE)]
    Disable(OneArgs),
    /// Run a schedule now
    #[command(
        after_help = "Examples:\n  heeler schedule trigger coder nightly\n  heeler schedule trigger coder push --payload event.json\n\nIt runs in the background: starts a daemon if none runs. Its times stay as they are.\n--payload is for schedules of type `webhook`: their rules (switched off, overlap) hold then.\nExit codes: 0 it runs or waits, 2 the payload cannot be sent, 4 not found, 5 refused."
    )]
    Trigger(TriggerArgs),
    /// Let a schedule run at other times than the config says
    #[command(
        after_help = "Examples:\n  heeler schedule set coder nightly '0 3 * * *'\n  heeler schedule set coder nightly 30m\n\n`heeler schedule reset` undoes it. Starts a daemon if none runs, which ends when it is idle.\nExit codes: 0 set, 2 no such time, 4 not found, 5 files start it."
    )]
    Set(SetArgs),
    /// Let the config decide about a schedule again
    #[command(after_help = CHANGE)]
    Reset(OneArgs),
}

impl ScheduleCommand {
    /// Says whether stdout is promised to be JSON.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            ScheduleCommand::List(args) => args.json,
            ScheduleCommand::Show(args) => args.json,
            ScheduleCommand::Set(args) => args.json,
            ScheduleCommand::Trigger(args) => args.one.json,
            ScheduleCommand::Enable(args)
            | ScheduleCommand::Disable(args)
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

/// Arguments of `schedule trigger`.
#[derive(Args)]
pub(crate) struct TriggerArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Call it as a webhook, with what this file holds; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    payload: Option<Utf8PathBuf>,
    /// Name the delivery: the same again starts nothing
    #[arg(long, value_name = "NAME", requires = "payload")]
    delivery: Option<String>,
}

/// Arguments of `schedule show`, `enable`, `disable` and `reset`.
#[derive(Args)]
pub(crate) struct OneArgs {
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
        ScheduleCommand::Trigger(args) => match &args.payload {
            Some(file) => call(global, args, file),
            None => change(global, &args.one, ScheduleChange::Trigger),
        },
        ScheduleCommand::Reset(args) => change(global, args, ScheduleChange::Reset),
        ScheduleCommand::Set(SetArgs { agent, schedule, text, json }) => {
            let args = OneArgs { agent: agent.clone(), schedule: schedule.clone(), json: *json };
            refuse_watch(&Place::find(global)?, &args)?;
            change(global, &args, ScheduleChange::Set { text: text.clone() })
        }
    }
}

/// Refuses times for a schedule that files start; everything else is for the daemon to judge.
fn refuse_watch(place: &Place, args: &OneArgs) -> Outcome {
    let Ok(loaded) = fleet::load(place) else { return Ok(()) };
    let Ok(agent) = loaded.find_agent(&args.agent) else { return Ok(()) };
    let found = agent.schedules.iter().find(|it| it.name == args.schedule);
    let Some(Trigger::Watch { .. }) = found.map(|it| &it.trigger) else { return Ok(()) };
    let message = format!(
        "`{}` of `{}` is started by files that change, not by time",
        args.schedule, agent.name
    );
    Err(Failure::message(Code::Refused, message)
        .hint("heeler config edit, to change which files: its `paths`"))
}

fn unknown_agent(error: AgentLookup) -> Failure {
    let code = match &error {
        AgentLookup::Unknown { .. } => Code::NotFound,
        AgentLookup::Ambiguous { .. } => Code::Usage,
    };
    Failure::new(code, error).hint("heeler agent list")
}

/// Says that an agent has no such schedule, and which it has.
fn unknown_schedule(agent: &config::Agent, name: &str) -> Failure {
    let names: Vec<&str> = agent.schedules.iter().map(|it| it.name.as_str()).collect();
    let has = match names[..] {
        [] => "it has none".to_owned(),
        _ => format!("it has: {}", names.join(", ")),
    };
    let message = format!("`{}` has no schedule `{name}`; {has}", agent.name);
    Failure::message(Code::NotFound, message).hint("heeler schedule list")
}

fn change(global: &Global, args: &OneArgs, change: ScheduleChange) -> Outcome {
    let place = Place::find(global)?;
    let command = Command::Schedule {
        agent: args.agent.clone(),
        schedule: args.schedule.clone(),
        change,
        by: place.who(),
    };
    daemon::tell(&daemon::ask(&place, &command)?, args.json)
}

fn call(global: &Global, args: &TriggerArgs, file: &Utf8Path) -> Outcome {
    let payload = read_payload(file)?;
    let OneArgs { agent, schedule, json } = &args.one;
    let (agent, schedule, delivery) = (agent.clone(), schedule.clone(), args.delivery.clone());
    let command = Command::Webhook(Box::new(Call { agent, schedule, payload, delivery }));
    daemon::tell(&daemon::ask(&Place::find(global)?, &command)?, *json)
}

/// Reads what a webhook is called with.
fn read_payload(file: &Utf8Path) -> Outcome<String> {
    let name = if file == "-" { "standard input" } else { file.as_str() };
    let usage = |why: String| Failure::message(Code::Usage, format!("cannot send {name}: {why}"));
    let mut bytes = Vec::new();
    let most = WEBHOOK_BYTES_MAX as u64 + 1;
    let read = match file.as_str() {
        "-" => std::io::stdin().lock().take(most).read_to_end(&mut bytes),
        _ => File::open(file).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    };
    read.map_err(|error| usage(error.to_string()))?;
    if bytes.len() > WEBHOOK_BYTES_MAX {
        return Err(usage(format!("it is longer than {WEBHOOK_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| usage("it is not UTF-8 text".to_owned()))
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
        let text = self.changed.as_ref().and_then(|changed| changed.text.as_deref());
        let Some(text) = text else { return when(&self.schedule.trigger) };
        match (text.parse::<Period>(), &self.schedule.trigger) {
            (Ok(period), _) => when(&Trigger::Every(period)),
            // The zone stays as it is.
            (Err(_), Trigger::Cron { zone: Some(zone), .. }) => {
                format!("{} {}", output::one_line(text), zone.name())
            }
            (Err(_), _) => output::one_line(text),
        }
    }

    /// Returns the workflow that it starts, if it does.
    fn workflow(&self) -> Option<&str> {
        self.schedule.workflow.as_ref().map(|start| start.workflow.as_str())
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
            "workflow": self.workflow(),
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
        Trigger::Webhook(_) => "webhook".to_owned(),
        Trigger::Chat => "chat".to_owned(),
    }
}

/// Reads every schedule of the config, with what the state knows of it; `is_kept` says whether
/// somebody starts them.
fn all(loaded: &Loaded, reader: Option<&Reader>, is_kept: bool) -> Outcome<Vec<Shown>> {
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
            let mut state = state.cloned().unwrap_or_default();
            state.next_run_at = state.next_run_at.filter(|_| is_kept);
            shown.push(Shown {
                agent: name.clone(),
                schedule: schedule.clone(),
                state,
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
    let keeper = Keeper::find(&place)?;
    let loaded = fleet::load(&place)?;
    let mut shown = all(&loaded, place.reader()?.as_ref(), keeper.is_permanent())?;
    if let Some(name) = &args.agent {
        let agent = loaded.find_agent(name).map_err(unknown_agent)?.name.as_str();
        shown.retain(|it| it.agent == agent);
    }
    if args.json {
        let schedules: Vec<Value> = shown.iter().map(Shown::to_json).collect();
        return Ok(output::json(&json!({ "schedules": schedules, "total": shown.len() }))?);
    }
    match &args.agent {
        Some(agent) if shown.is_empty() => {
            return Ok(output::line(format!("{agent} has no schedule"))?);
        }
        None if shown.is_empty() => return Ok(output::line("no agent has a schedule")?),
        _ => {}
    }
    if let Some(warning) = keeper.warning() {
        output::line(warning)?;
    }
    let headings =
        ["AGENT", "SCHEDULE", "WHEN", "STATUS", "NEXT", "LAST RUN", "CHANGED", "WORKFLOW"];
    // Few fleets have workflows that start by the clock.
    let is_needed = shown.iter().any(|it| it.workflow().is_some());
    let columns = headings.len() - usize::from(!is_needed);
    let mut lines = Lines::new(&headings[..columns], &["WHEN", "CHANGED", "WORKFLOW"]);
    for it in &shown {
        let next = it.state.next_run_at.filter(|_| it.is_enabled());
        let mut cells: Vec<Text> = vec![
            output::one_line(&it.agent).into(),
            output::one_line(&it.schedule.name).into(),
            it.when().into(),
            it.status().into(),
            next.map(|at| output::upcoming(at, now)).unwrap_or_default().into(),
            it.state.last_run_at.map(|at| output::relative(at, now)).unwrap_or_default().into(),
            it.changed.as_ref().map(|changed| by(changed, now)).unwrap_or_default().into(),
            it.workflow().unwrap_or_default().into(),
        ];
        cells.truncate(columns);
        lines.push(cells);
    }
    Ok(lines.print()?)
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

fn show(global: &Global, args: &OneArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    let keeper = Keeper::find(&place)?;
    let reader = place.reader()?;
    let loaded = fleet::load(&place)?;
    let agent = loaded.find_agent(&args.agent).map_err(unknown_agent)?;
    let shown = all(&loaded, reader.as_ref(), keeper.is_permanent())?;
    let is_it = |it: &&Shown| it.agent == agent.name.as_str() && it.schedule.name == args.schedule;
    let it = shown.iter().find(is_it);
    let it = it.ok_or_else(|| unknown_schedule(agent, &args.schedule))?;
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
    let fields: [(&str, Option<Text>); 11] = [
        ("agent", Some(it.agent.as_str().into())),
        ("schedule", Some(it.schedule.name.as_str().into())),
        ("workflow", it.workflow().map(Text::from)),
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
    match reason {
        SkipReason::Missed => "no daemon was there, and `missed: skip` does not make up for it",
        SkipReason::MadeUp => "no daemon was there; a later run made up for it",
        SkipReason::TooMany => "no daemon was there, and too many were missed",
        SkipReason::Overlap => "the run before it had not ended",
        SkipReason::Budget => "there was no money left",
        SkipReason::QueueFull => "as many jobs waited as may",
        SkipReason::Disabled => "its agent was disabled",
    }
}
