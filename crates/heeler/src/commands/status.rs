//! `heeler status`: the fleet at a glance, from the state directory alone.

use clap::Args;
use heeler_model::{AgentState, JobHead, JobStatus};
use heeler_store::{JobFilter, Reader};
use heeler_transcript::LockFile;
use indexmap::IndexMap;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::cli::{self, Global};
use crate::commands::jobs::{Shown, head_json, status_text};
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};

/// How far back failures are shown.
const FAILURES_SINCE: SignedDuration = SignedDuration::from_hours(24);
/// How many failures are shown.
const FAILURES_MAX: usize = 5;

/// Arguments of `status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Only this agent
    #[arg(add = cli::agents())]
    agent: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is known of the fleet at one moment.
#[derive(Default)]
struct Snapshot {
    name: Option<String>,
    config_is_faulty: bool,
    agents: IndexMap<String, AgentState>,
    jobs_total: i64,
    running: Vec<Shown>,
    failed: Vec<Shown>,
    failed_total: i64,
    writer: Option<String>,
    started_at: Option<String>,
}

/// Shows the fleet.
pub(crate) fn run(global: &Global, args: &StatusArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    let reader = place.reader()?;
    let mut snapshot = Snapshot::default();
    add_configured(&place, &mut snapshot)?;
    if let Some(reader) = &reader {
        add_state(&place, reader, &mut snapshot)?;
    }
    if let Some(name) = &args.agent {
        snapshot.agents.retain(|known, _| known == name || known.rsplit('.').next() == Some(name));
        if snapshot.agents.is_empty() {
            let message = format!("there is no agent `{name}`");
            return Err(Failure::message(Code::NotFound, message).hint("heeler status lists them"));
        }
    }
    if let Some(reader) = &reader {
        add_jobs(&place, reader, args, now, &mut snapshot)?;
    }
    drop(reader);
    match args.json {
        true => Ok(output::json(&to_json(&place, &snapshot))?),
        false => print(&place, &snapshot, now),
    }
}

/// Adds what the state knows of the agents; schedules that only the config knows stay.
fn add_state(place: &Place, reader: &Reader, snapshot: &mut Snapshot) -> Outcome {
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
    let lock = LockFile::probe(&place.dir()?.lock()).map_err(anyhow::Error::from)?;
    snapshot.writer = lock.map(|state| match state.holder {
        Some(holder) => holder.to_string(),
        None => "another process".to_owned(),
    });
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
    let mut running = Vec::new();
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
    snapshot.running = running;
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
            snapshot.config_is_faulty = true;
            output::note(&format!("{}; see: heeler config validate", faults.summary()))?;
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

fn print(place: &Place, snapshot: &Snapshot, now: Timestamp) -> Outcome {
    let name = snapshot.name.as_deref().unwrap_or("fleet");
    let writer = match &snapshot.writer {
        Some(holder) => format!("written to by {holder}"),
        None => "no daemon".to_owned(),
    };
    let jobs = output::counted(snapshot.jobs_total.unsigned_abs(), "job");
    output::line(format!("{name} in {}: {writer}, {jobs}", place.state_dir))?;
    if snapshot.agents.is_empty() && !snapshot.config_is_faulty {
        output::line("no agents yet; add one with: heeler init agent NAME")?;
    } else if !snapshot.agents.is_empty() {
        output::line("")?;
        print_agents(snapshot, now)?;
    }
    if !snapshot.running.is_empty() {
        output::line("\nRunning")?;
    }
    for job in &snapshot.running {
        print_job(job, now)?;
    }
    if !snapshot.failed.is_empty() {
        output::line("\nFailed in the last 24 hours")?;
    }
    for job in &snapshot.failed {
        print_job(job, now)?;
    }
    let more = snapshot.failed_total - snapshot.failed.len() as i64;
    if more > 0 {
        output::note(&format!("and {more} more: heeler jobs --status failed --since 24h"))?;
    }
    Ok(())
}

fn print_agents(snapshot: &Snapshot, now: Timestamp) -> Outcome {
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
        lines.push(vec![
            output::one_line(name).into(),
            if dead { status_text(JobStatus::Running, dead) } else { agent.status.as_str().into() },
            current.or(agent.last_job.as_ref()).map_or("", |id| id.as_str()).into(),
            output::one_line(&schedules.join(", ")).into(),
            next.map(|at| output::upcoming(at, now)).unwrap_or_default().into(),
        ]);
    }
    lines.print()?;
    Ok(())
}

fn print_job(Shown { head, dead, account }: &Shown, now: Timestamp) -> Outcome {
    let (id, agent) = (head.id.as_str(), output::one_line(&head.agent));
    let since = output::relative(head.started_at, now);
    let start = Text::from(format!("  {id}  {agent}  ")).then(status_text(head.status, *dead));
    Ok(output::line(start.then(format!("  {since}  {}", output::shortened(account, 60))))?)
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
                "name": name, "status": agent.status, "currentJob": agent.current_job,
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
    json!({
        "fleet": {
            "name": snapshot.name, "configPath": place.config, "stateDir": place.state_dir,
            "startedAt": snapshot.started_at, "writer": snapshot.writer,
        },
        "jobsTotal": snapshot.jobs_total, "agents": agents, "running": running, "failed": failed,
    })
}
