//! `heeler status`: the fleet at a glance.
//!
//! It is read from the state directory, with or without a daemon; only what the daemon cannot do at
//! present is asked of it.

mod keeper;
mod page;
mod watch;

use std::time::Duration;

use clap::Args;
use heeler_engine::{Answer, BudgetStatus, Command};
use heeler_model::workflow::{CourseStatus, FaultyFile};
use heeler_model::{AgentState, ApprovalStatus, JobHead, JobStatus};
use heeler_store::{
    ApprovalFilter, JobFilter, Parked, Queued, Reader, WorkflowRunFilter, WorkflowRunHead,
};
use indexmap::IndexMap;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::cli::{self, Global};
use crate::commands::jobs::Shown;
use crate::commands::workflow::{faulty_json, head_json};
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::output;
use crate::place::{self, Place};

pub(crate) use self::keeper::Keeper;
use self::page::{Page, page};

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler status
  heeler status coder
  heeler status --watch
  heeler status --json | jq '.waiting[] | {id, waits}'

It is read from the state directory, with or without a daemon, and changes nothing.
Exit codes: 0 shown, also where something failed, 4 no such agent, 130 --watch was interrupted.";

/// How far back failures are shown.
const FAILURES_SINCE: SignedDuration = SignedDuration::from_hours(24);
/// How many failures are listed, and of how many agents.
const FAILURES_MAX: usize = 5;
/// How many failures are looked at, to tell whose they are.
const FAILURES_READ_MAX: usize = 1_000;
/// How many runs of workflows in each state are shown.
const WORKFLOWS_MAX: usize = 100;
/// How many questions are looked at for the runs that they belong to.
const ASKED_MAX: usize = 1_000;
/// How long the daemon may take to say what is wrong with it.
const FAULTS_WAIT: Duration = Duration::from_secs(2);

/// Arguments of `status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Only this agent
    #[arg(add = cli::agents())]
    agent: Option<String>,
    /// Show it anew each second, until `q` or Ctrl-C
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
    /// How much waits for an answer of a person.
    asked: i64,
    /// Files of the workflow folder that have faults.
    faulty: Vec<FaultyFile>,
    /// Runs of workflows that have not ended, and whether each waits for a person.
    workflows: Vec<(WorkflowRunHead, bool)>,
    running: Vec<Shown>,
    /// The newest that failed.
    failed: Vec<Shown>,
    /// The newest that failed of each agent, and how many of its jobs did.
    failing: Vec<(Shown, usize)>,
    failed_total: i64,
    waiting: Vec<Waiting>,
    parked: Vec<Parked>,
    keeper: Keeper,
    /// What the daemon cannot do at present.
    faults: Vec<String>,
    budgets: Vec<BudgetStatus>,
    /// Whether the daemon only waits for the jobs that run.
    stopping: bool,
    started_at: Option<String>,
}

/// A job that waits.
struct Waiting {
    shown: Shown,
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

impl Snapshot {
    fn take(place: &Place, args: &StatusArgs) -> Outcome<Snapshot> {
        let mut snapshot = Snapshot::default();
        add_daemon(place, &mut snapshot)?;
        let reader = place.reader()?;
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
        if let Some(reader) = reader.as_ref().filter(|_| args.agent.is_none()) {
            add_workflows(reader, &mut snapshot)?;
        }
        if let Some(reader) = &reader {
            add_jobs(place, reader, args, place::now(), &mut snapshot)?;
        }
        snapshot.forget_what_nobody_starts();
        Ok(snapshot)
    }

    /// Takes away when schedules are next due where nobody starts them then.
    fn forget_what_nobody_starts(&mut self) {
        let is_kept = self.keeper.is_permanent() && !self.stopping;
        for (name, agent) in &mut self.agents {
            if !is_kept || self.disabled.contains(name) {
                (agent.next_trigger_at, agent.next_schedule) = (None, None);
                agent.schedules.values_mut().for_each(|it| it.next_run_at = None);
            }
        }
    }
}

/// Adds who writes the state, and what only the daemon knows.
fn add_daemon(place: &Place, snapshot: &mut Snapshot) -> Outcome {
    let (keeper, client) = Keeper::connect(place)?;
    snapshot.keeper = keeper;
    let Some(mut client) = client else { return Ok(()) };
    match client.ask(&Command::Status, Some(FAULTS_WAIT)) {
        Ok(Answer::Status(status)) => {
            snapshot.faults = status.faults;
            snapshot.budgets = status.budgets;
            snapshot.stopping = status.stopping;
        }
        Ok(_) => {}
        Err(error) => snapshot.faults = vec![format!("the daemon does not answer: {error}")],
    }
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
    let status = Some(ApprovalStatus::Pending);
    snapshot.asked = reader.count_approvals(&ApprovalFilter { status, run: None })?;
    snapshot.started_at = reader.meta(heeler_store::STARTED_AT)?;
    snapshot.disabled = reader.disabled_agents()?;
    snapshot.parked = reader.parked()?;
    Ok(())
}

/// Adds the runs of workflows that go on or wait, the oldest of what waits for people first.
fn add_workflows(reader: &Reader, snapshot: &mut Snapshot) -> Outcome {
    let pending = ApprovalFilter { run: None, status: Some(ApprovalStatus::Pending) };
    let pending = reader.approvals(&pending, None, ASKED_MAX)?;
    for status in [CourseStatus::Paused, CourseStatus::Running, CourseStatus::Queued] {
        let filter = WorkflowRunFilter { status: Some(status), ..WorkflowRunFilter::default() };
        let mut heads = reader.workflow_runs(&filter, None, WORKFLOWS_MAX)?;
        heads.retain(|head| head.origin.is_none());
        heads.reverse();
        snapshot.workflows.extend(heads.into_iter().map(|head| {
            let asks = pending.iter().any(|it| it.workflow_run_id == head.id.as_str());
            (head, asks)
        }));
    }
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
    let mut failed = Vec::new();
    for agent in agents {
        let filter = JobFilter {
            agent,
            status: Some(JobStatus::Failed),
            since: now.checked_sub(FAILURES_SINCE).ok(),
        };
        failed.extend(reader.jobs(&filter, None, FAILURES_READ_MAX)?);
        snapshot.failed_total += reader.count_jobs(&filter)?;
    }
    for row in reader.queue()? {
        let Some(job) = reader.job(&row.job)? else { continue };
        if job.head.status == JobStatus::Pending && shown(&job.head) {
            waiting.push(Waiting { shown: Shown::of(job.head, reader, place)?, row });
        }
    }
    snapshot.running = running;
    snapshot.waiting = waiting;
    add_failed(place, reader, failed, snapshot)
}

/// Adds the newest that failed, and whose they are.
fn add_failed(
    place: &Place,
    reader: &Reader,
    failed: Vec<JobHead>,
    snapshot: &mut Snapshot,
) -> Outcome {
    let mut counts: IndexMap<String, usize> = IndexMap::new();
    let mut newest = Vec::new();
    for (number, head) in failed.into_iter().enumerate() {
        let count = counts.entry(head.agent.clone()).or_default();
        *count += 1;
        if *count == 1 {
            newest.push(head.clone());
        }
        if number < FAILURES_MAX {
            snapshot.failed.push(Shown::of(head, reader, place)?);
        }
    }
    for head in newest.into_iter().take(FAILURES_MAX) {
        let count = counts[&head.agent];
        snapshot.failing.push((Shown::of(head, reader, place)?, count));
    }
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
            snapshot.faulty = loaded.faulty;
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
    let running: Vec<Value> = snapshot.running.iter().map(Shown::to_json).collect();
    let failed: Vec<Value> = snapshot.failed.iter().map(Shown::to_json).collect();
    let budgets: Vec<Value> = snapshot.budgets.iter().map(budget_json).collect();
    let waiting: Vec<Value> = snapshot.waiting.iter().map(waiting_json).collect();
    let workflows: Vec<Value> = snapshot.workflows.iter().map(workflow_json).collect();
    let faulty: Vec<Value> = snapshot.faulty.iter().map(faulty_json).collect();
    let parked: Vec<Value> = snapshot
        .parked
        .iter()
        .map(|it| json!({ "until": it.until, "since": it.since, "reason": it.reason, "job": it.job }))
        .collect();
    json!({
        "fleet": {
            "name": snapshot.name, "configPath": place.config, "stateDir": place.state_dir,
            "startedAt": snapshot.started_at, "writer": snapshot.keeper.writer,
        },
        "jobsTotal": snapshot.jobs_total, "approvalsWaiting": snapshot.asked, "daemon": snapshot.keeper.daemon.as_ref().map(|it| json!({
            "pid": it.pid, "since": heeler_model::iso_millis(it.since), "version": it.version, "mode": it.mode, "url": it.url,
            "stopping": snapshot.stopping, "faults": snapshot.faults,
        })),
        "agents": agents, "running": running, "waiting": waiting, "parked": parked,
        "failed": failed, "budgets": budgets, "workflowRuns": workflows, "faultyWorkflows": faulty,
    })
}

fn workflow_json((head, asks): &(WorkflowRunHead, bool)) -> Value {
    let mut value = head_json(head);
    value["asks"] = json!(asks);
    value
}

fn waiting_json(Waiting { shown, row }: &Waiting) -> Value {
    let mut value = shown.to_json();
    value["priority"] = json!(row.priority);
    value["notBefore"] = json!(row.not_before);
    value["expiresAt"] = json!(row.expires_at);
    value["waits"] = json!(row.reason);
    value
}

fn budget_json(budget: &BudgetStatus) -> Value {
    let usd = |micros: i64| micros as f64 / 1e6;
    json!({
        "whose": budget.whose,
        "dayLimitUsd": budget.day_limit.map(usd), "daySpentUsd": usd(budget.day_spent),
        "totalLimitUsd": budget.total_limit.map(usd), "totalSpentUsd": usd(budget.total_spent),
        "reservedUsd": usd(budget.reserved),
    })
}
