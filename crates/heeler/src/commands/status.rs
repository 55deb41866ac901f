//! `heeler status`: the fleet at a glance.
//!
//! It is read from the state directory, with or without a daemon; only what the daemon cannot do at
//! present is asked of it.

mod watch;

use std::time::Duration;

use anstyle::Style;
use clap::Args;
use heeler_engine::{Answer, Command, DaemonFile, DaemonMode};
use heeler_model::{AgentState, JobHead, JobStatus};
use heeler_store::{JobFilter, Parked, Queued, Reader};
use indexmap::IndexMap;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::cli::{self, Global};
use crate::commands::jobs::{Shown, head_json, status_text};
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};

/// How far back failures are shown.
const FAILURES_SINCE: SignedDuration = SignedDuration::from_hours(24);
/// How many failures are shown.
const FAILURES_MAX: usize = 5;
/// How many jobs that wait are shown.
const WAITING_MAX: usize = 10;
/// How many schedules that come next are shown.
const NEXT_MAX: usize = 5;
/// How long the daemon may take to say what is wrong with it.
const FAULTS_WAIT: Duration = Duration::from_secs(2);

/// Arguments of `status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Only this agent
    #[arg(add = cli::agents())]
    agent: Option<String>,
    /// Show it anew each second, until Ctrl-C
    #[arg(short, long, conflicts_with = "json")]
    watch: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is known of the fleet at one moment.
#[derive(Default)]
struct Snapshot {
    name: Option<String>,
    /// What is wrong with the config, in short.
    config_faults: Option<String>,
    agents: IndexMap<String, AgentState>,
    disabled: Vec<String>,
    jobs_total: i64,
    running: Vec<Shown>,
    failed: Vec<Shown>,
    failed_total: i64,
    waiting: Vec<Waiting>,
    parked: Vec<Parked>,
    writer: Option<String>,
    daemon: Option<DaemonFile>,
    /// What the daemon cannot do at present.
    faults: Vec<String>,
    started_at: Option<String>,
}

/// A job that waits.
struct Waiting {
    head: JobHead,
    row: Queued,
}

/// Shows the fleet.
pub(crate) fn run(global: &Global, args: &StatusArgs) -> Outcome {
    let place = Place::find(global)?;
    if args.watch {
        return watch::run(|| Ok(page(&Snapshot::take(&place, args)?, &place, place::now()).all()));
    }
    let snapshot = Snapshot::take(&place, args)?;
    if args.json {
        return Ok(output::json(&to_json(&place, &snapshot))?);
    }
    let Page { lines, notes } = page(&snapshot, &place, place::now());
    for line in lines {
        output::line(line)?;
    }
    notes.iter().try_for_each(|note| Ok(output::note(note)?))
}

/// What is shown: the lines, and remarks that are no result.
#[derive(Default)]
struct Page {
    lines: Vec<Text>,
    notes: Vec<String>,
}

impl Page {
    fn line(&mut self, text: impl Into<Text>) {
        self.lines.push(text.into());
    }

    /// Begins a part with its title.
    fn title(&mut self, text: &str) {
        self.line("");
        self.line(text);
    }

    /// Returns everything as lines.
    fn all(self) -> Vec<Text> {
        let mut lines = self.lines;
        let dimmed = |note: &String| Text::styled(Style::new().dimmed(), note);
        lines.extend(self.notes.iter().map(dimmed));
        lines
    }
}

impl Snapshot {
    fn take(place: &Place, args: &StatusArgs) -> Outcome<Snapshot> {
        let reader = place.reader()?;
        let mut snapshot = Snapshot::default();
        add_configured(place, &mut snapshot)?;
        if let Some(reader) = &reader {
            add_state(reader, &mut snapshot)?;
        }
        if let Some(name) = &args.agent {
            let is_it = |known: &str| known == name || known.rsplit('.').next() == Some(name);
            snapshot.agents.retain(|known, _| is_it(known));
            if snapshot.agents.is_empty() {
                let message = format!("there is no agent `{name}`");
                let failure = Failure::message(Code::NotFound, message);
                return Err(failure.hint("heeler status lists them"));
            }
        }
        if let Some(reader) = &reader {
            add_jobs(place, reader, args, place::now(), &mut snapshot)?;
        }
        drop(reader);
        add_daemon(place, &mut snapshot)?;
        Ok(snapshot)
    }
}

/// Adds who writes the state, and what is wrong with it.
fn add_daemon(place: &Place, snapshot: &mut Snapshot) -> Outcome {
    snapshot.writer = daemon::writer(place)?;
    if snapshot.writer.is_none() {
        return Ok(());
    }
    let Some(file) = daemon::file(place)? else { return Ok(()) };
    let Some(mut client) = daemon::connect(place)? else { return Ok(()) };
    if client.hello().pid != file.pid {
        return Ok(());
    }
    snapshot.faults = match client.ask(&Command::Status, Some(FAULTS_WAIT)) {
        Ok(Answer::Status(status)) => status.faults,
        Ok(_) => Vec::new(),
        Err(error) => vec![format!("the daemon does not answer: {error}")],
    };
    snapshot.daemon = Some(file);
    Ok(())
}

/// Adds what the state knows of the agents; schedules that only the config knows stay.
fn add_state(reader: &Reader, snapshot: &mut Snapshot) -> Outcome {
    for (name, mut state) in reader.agents()? {
        if let Some(configured) = snapshot.agents.get(&name) {
            for (schedule, idle) in &configured.schedules {
                state.schedules.entry(schedule.clone()).or_insert_with(|| idle.clone());
            }
        }
        snapshot.agents.insert(name, state);
    }
    for (name, agent) in &mut snapshot.agents {
        // herdctl never recorded it.
        if agent.last_job.is_none() {
            let newest = reader.newest_job(name)?.filter(|head| head.status.is_final());
            agent.last_job = newest.map(|head| head.id);
        }
    }
    snapshot.jobs_total = reader.count_jobs(&JobFilter::default())?;
    snapshot.started_at = reader.meta(heeler_store::STARTED_AT)?;
    snapshot.disabled = reader.disabled_agents()?;
    snapshot.parked = reader.parked()?;
    Ok(())
}

/// Adds the jobs that run and the newest that failed, of the agents that are shown.
fn add_jobs(
    place: &Place,
    reader: &Reader,
    args: &StatusArgs,
    now: Timestamp,
    snapshot: &mut Snapshot,
) -> Outcome {
    let shown = |head: &JobHead| args.agent.is_none() || snapshot.agents.contains_key(&head.agent);
    let (mut running, mut waiting) = (Vec::new(), Vec::new());
    for head in reader.running_jobs()?.into_iter().filter(shown) {
        running.push(Shown::of(head, reader, place)?);
    }
    let agents: Vec<Option<String>> = match args.agent {
        None => vec![None],
        Some(_) => snapshot.agents.keys().cloned().map(Some).collect(),
    };
    for agent in agents {
        let filter = JobFilter {
            agent,
            status: Some(JobStatus::Failed),
            since: now.checked_sub(FAILURES_SINCE).ok(),
        };
        for head in reader.jobs(&filter, None, FAILURES_MAX)? {
            snapshot.failed.push(Shown::of(head, reader, place)?);
        }
        snapshot.failed_total += reader.count_jobs(&filter)?;
    }
    for row in reader.queue()? {
        let Some(job) = reader.job(&row.job)? else { continue };
        if job.head.status == JobStatus::Pending && shown(&job.head) {
            waiting.push(Waiting { head: job.head, row });
        }
    }
    snapshot.running = running;
    snapshot.waiting = waiting;
    Ok(())
}

/// Adds the agents of the config; faults there do not hide the state.
fn add_configured(place: &Place, snapshot: &mut Snapshot) -> Outcome {
    let Some(file) = &place.config else { return Ok(()) };
    match fleet::try_load(place, file, &fleet::read_text)? {
        Ok(loaded) => {
            snapshot.name = loaded
                .fleets
                .first()
                .and_then(|fleet| fleet.name.as_ref())
                .map(ToString::to_string);
            for agent in &loaded.agents {
                let state = configured_state(agent);
                snapshot.agents.insert(agent.name.to_string(), state);
            }
        }
        Err(faults) => {
            snapshot.config_faults = Some(faults.summary());
        }
    }
    Ok(())
}

/// What an agent is before anything ran: idle, with the schedules that its config names.
fn configured_state(agent: &heeler_model::config::Agent) -> AgentState {
    let schedules = agent.schedules.iter();
    let named = schedules
        .map(|schedule| (schedule.name.to_string(), heeler_model::ScheduleState::default()));
    AgentState { schedules: named.collect(), ..AgentState::default() }
}

fn page(snapshot: &Snapshot, place: &Place, now: Timestamp) -> Page {
    let mut page = Page::default();
    let name = snapshot.name.as_deref().unwrap_or("fleet");
    let jobs = output::counted(snapshot.jobs_total.unsigned_abs(), "job");
    let daemon = daemon_text(snapshot, now);
    page.line(format!("{name} in {}: {daemon}, {jobs}", place.state_dir));
    if let Some(faults) = &snapshot.config_faults {
        page.notes.push(format!("{faults}; see: heeler config validate"));
    }
    for fault in &snapshot.faults {
        let red = output::status_style(JobStatus::Failed);
        page.line(Text::styled(red, "fault").then(format!(" {fault}")));
    }
    if snapshot.agents.is_empty() && snapshot.config_faults.is_none() {
        page.line("no agents yet; add one with: heeler init agent NAME");
    } else if !snapshot.agents.is_empty() {
        page.line("");
        page.lines.extend(agents(snapshot, now));
    }
    add_work(&mut page, snapshot, now);
    add_next(&mut page, snapshot, now);
    add_parked(&mut page, snapshot, now);
    add_failed(&mut page, snapshot, now);
    page
}

fn daemon_text(snapshot: &Snapshot, now: Timestamp) -> String {
    let Some(daemon) = &snapshot.daemon else {
        return match &snapshot.writer {
            Some(holder) => format!("written to by {holder}"),
            None => "no daemon".to_owned(),
        };
    };
    let mode = match daemon.mode {
        DaemonMode::Permanent => "daemon",
        DaemonMode::UntilIdle => "daemon until idle",
    };
    let up = output::brief(now.duration_since(daemon.since).abs());
    let other = match daemon.version == env!("CARGO_PKG_VERSION") {
        true => String::new(),
        false => format!(" (version {}: heeler restart)", daemon.version),
    };
    format!("{mode} {} up {up}{other}", daemon.pid)
}

/// Adds what runs and what waits.
fn add_work(page: &mut Page, snapshot: &Snapshot, now: Timestamp) {
    if !snapshot.running.is_empty() {
        page.title("Running");
    }
    page.lines.extend(snapshot.running.iter().map(|job| job_line(job, now)));
    if !snapshot.waiting.is_empty() {
        page.title("Waiting");
    }
    for Waiting { head, row } in snapshot.waiting.iter().take(WAITING_MAX) {
        let (id, agent) = (&head.id, output::one_line(&head.agent));
        let since = output::relative(row.asked_at, now);
        let not_before = row.not_before.filter(|at| *at > now);
        let not_before = not_before.map(|at| format!(", {}", output::upcoming(at, now)));
        let why = output::one_line(&row.reason);
        page.line(format!("  {id}  {agent}  {since}  {why}{}", not_before.unwrap_or_default()));
    }
    let more = snapshot.waiting.len().saturating_sub(WAITING_MAX);
    if more > 0 {
        page.notes.push(format!("and {more} more wait: heeler jobs --status pending"));
    }
}

/// Adds the schedules that come next.
fn add_next(page: &mut Page, snapshot: &Snapshot, now: Timestamp) {
    // Nothing comes next where nobody starts it.
    if snapshot.daemon.as_ref().is_none_or(|daemon| daemon.mode != DaemonMode::Permanent) {
        return;
    }
    let mut next: Vec<(Timestamp, &str, &str)> = Vec::new();
    for (agent, state) in &snapshot.agents {
        if snapshot.disabled.contains(agent) {
            continue;
        }
        let due = state.schedules.iter().filter_map(|(name, it)| Some((it.next_run_at?, name)));
        next.extend(due.map(|(at, name)| (at, agent.as_str(), name.as_str())));
    }
    next.sort();
    if !next.is_empty() {
        page.title("Next");
    }
    for (at, agent, schedule) in next.into_iter().take(NEXT_MAX) {
        let (agent, schedule) = (output::one_line(agent), output::one_line(schedule));
        page.line(format!("  {}  {agent} {schedule}", output::upcoming(at, now)));
    }
}

/// Adds the credentials that ran into a limit.
fn add_parked(page: &mut Page, snapshot: &Snapshot, now: Timestamp) {
    let mut parked = snapshot.parked.iter().filter(|parked| parked.until > now).peekable();
    if parked.peek().is_some() {
        page.title("Put off by a usage limit");
    }
    for parked in parked {
        let (until, since) =
            (output::upcoming(parked.until, now), output::relative(parked.since, now));
        let reason = output::one_line(&parked.reason);
        page.line(format!("  goes on {until}  {reason} (since {since}, {})", parked.job));
    }
}

fn add_failed(page: &mut Page, snapshot: &Snapshot, now: Timestamp) {
    if !snapshot.failed.is_empty() {
        page.title("Failed in the last 24 hours");
    }
    page.lines.extend(snapshot.failed.iter().map(|job| job_line(job, now)));
    let more = snapshot.failed_total - snapshot.failed.len() as i64;
    if more > 0 {
        page.notes.push(format!("and {more} more: heeler jobs --status failed --since 24h"));
    }
}

fn agents(snapshot: &Snapshot, now: Timestamp) -> Vec<Text> {
    let mut lines =
        Lines::new(&["AGENT", "STATUS", "LAST JOB", "SCHEDULES", "NEXT"], &["SCHEDULES"]);
    for (name, agent) in &snapshot.agents {
        let schedules: Vec<String> = agent
            .schedules
            .iter()
            .map(|(name, state)| match state.status {
                heeler_model::ScheduleStatus::Idle => name.clone(),
                status => format!("{name} ({status})"),
            })
            .collect();
        let next = agent
            .next_trigger_at
            .or_else(|| agent.schedules.values().filter_map(|state| state.next_run_at).min());
        let current = agent.current_job.as_ref();
        let is_current = |job: &&Shown| Some(&job.head.id) == current;
        let dead = snapshot.running.iter().find(is_current).is_some_and(|job| job.dead);
        let status = match dead {
            true => status_text(JobStatus::Running, dead),
            false if snapshot.disabled.contains(name) => "disabled".into(),
            false => agent.status.as_str().into(),
        };
        lines.push(vec![
            output::one_line(name).into(),
            status,
            current.or(agent.last_job.as_ref()).map_or("", |id| id.as_str()).into(),
            output::one_line(&schedules.join(", ")).into(),
            next.map(|at| output::upcoming(at, now)).unwrap_or_default().into(),
        ]);
    }
    lines.lines()
}

fn job_line(Shown { head, dead, account }: &Shown, now: Timestamp) -> Text {
    let (id, agent) = (head.id.as_str(), output::one_line(&head.agent));
    let since = output::relative(head.started_at, now);
    let start = Text::from(format!("  {id}  {agent}  ")).then(status_text(head.status, *dead));
    start.then(format!("  {since}  {}", output::shortened(account, 60)))
}

fn to_json(place: &Place, snapshot: &Snapshot) -> Value {
    let agents: Vec<Value> = snapshot
        .agents
        .iter()
        .map(|(name, agent)| {
            let schedules: Vec<Value> = agent
                .schedules
                .iter()
                .map(|(name, state)| {
                    json!({
                        "name": name, "status": state.status, "lastRunAt": state.last_run_at,
                        "nextRunAt": state.next_run_at, "lastError": state.last_error,
                    })
                })
                .collect();
            json!({
                "name": name, "status": agent.status, "enabled": !snapshot.disabled.contains(name),
                "currentJob": agent.current_job,
                "lastJob": agent.last_job, "nextSchedule": agent.next_schedule,
                "nextTriggerAt": agent.next_trigger_at, "containerId": agent.container_id,
                "errorMessage": agent.error_message, "schedules": schedules,
            })
        })
        .collect();
    let running: Vec<Value> =
        snapshot.running.iter().map(|job| head_json(&job.head, job.dead)).collect();
    let failed: Vec<Value> =
        snapshot.failed.iter().map(|job| head_json(&job.head, job.dead)).collect();
    let waiting: Vec<Value> = snapshot.waiting.iter().map(waiting_json).collect();
    let parked: Vec<Value> = snapshot
        .parked
        .iter()
        .map(|it| json!({ "until": it.until, "since": it.since, "reason": it.reason, "job": it.job }))
        .collect();
    json!({
        "fleet": {
            "name": snapshot.name, "configPath": place.config, "stateDir": place.state_dir,
            "startedAt": snapshot.started_at, "writer": snapshot.writer,
        },
        "jobsTotal": snapshot.jobs_total, "daemon": snapshot.daemon.as_ref().map(|it| json!({
            "pid": it.pid, "since": it.since, "version": it.version, "mode": it.mode,
            "faults": snapshot.faults,
        })),
        "agents": agents, "running": running, "waiting": waiting, "parked": parked,
        "failed": failed,
    })
}

fn waiting_json(Waiting { head, row }: &Waiting) -> Value {
    let mut value = head_json(head, false);
    value["priority"] = json!(row.priority);
    value["notBefore"] = json!(row.not_before);
    value["expiresAt"] = json!(row.expires_at);
    value["waitsFor"] = json!(row.reason);
    value
}
