//! What the dispatcher knows by heart: all that it decides by, as it is in the database.
//!
//! It is changed only inside a transaction, together with the rows. If the two may differ, because a
//! commit failed, it is read anew. Start at [`Board::load`] and [`Board::hindrance`].

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use heeler_model::calendar::{Calendar, ScheduleKey};
use heeler_model::config::{Agent, Runtime, Schedule};
use heeler_model::ledger::{Ledger, Limits, Quote, is_within};
use heeler_model::redact::Redactor;
use heeler_model::timetable::Verdict;
use heeler_model::{
    JobId, JobStatus, RunId, SessionMode, TriggerType, Wanted, WorkflowRunId, iso_millis,
};
use heeler_store::{Db, DbError, Override, Parked, Queued};
use jiff::Timestamp;
use jiff::civil::Date;

use super::due::trigger_id;
use crate::setup::{Setup, cron_override};
use crate::workflows::Running;

/// How many schedules are decided about in one transaction; the others follow in the next.
const DUE_PER_TURN: usize = 256;

/// What the dispatcher knows by heart.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) setup: Arc<Setup>,
    /// The schedules that time starts, while they may.
    pub(crate) calendar: Calendar,
    pub(crate) ledger: Ledger,
    /// Jobs that have not ended, as they were asked for.
    pub(crate) asked: HashMap<JobId, Asked>,
    /// Those of them that wait, the next one first.
    waiting: BTreeSet<Rank>,
    /// Runs that have not ended.
    pub(crate) live: HashMap<RunId, Live>,
    /// How many runs of each agent there are or are about to be.
    occupied: HashMap<String, u32>,
    /// Credentials that may not be used for now.
    pub(crate) parked: HashMap<String, Parked>,
    /// Agents that are switched off.
    pub(crate) disabled: HashSet<String>,
    /// What people changed about schedules.
    pub(crate) overrides: HashMap<ScheduleKey, Override>,
    /// The credential of each agent that has one.
    credentials: HashMap<String, String>,
    /// Runs of workflows that have not ended.
    pub(crate) courses: HashMap<WorkflowRunId, Running>,
    /// When the next gate expires that nobody has answered.
    pub(crate) gate_expires_at: Option<Timestamp>,
    /// Jobs that wait until the fleet is started.
    pub(crate) held: HashSet<JobId>,
    /// Whether the fleet was stopped, and this daemon is only for what a person wants now.
    pub(crate) is_held: bool,
    /// Removes what no record may have, whoever was given it.
    pub(crate) redactor: Arc<Redactor>,
    /// Whether it may differ from the record.
    pub(crate) is_stale: bool,
}

/// A job that has not ended, as it was asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) row: Queued,
    pub(crate) wanted: Wanted,
    pub(crate) stage: Stage,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for its turn.
    Waiting,
    /// Its run is being prepared.
    Preparing,
    /// It runs.
    Running,
}

/// A run that has not ended.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) job: JobId,
    pub(crate) agent: String,
    /// Whose limit of jobs at once it counts for.
    pub(crate) seat: String,
    pub(crate) schedule: Option<String>,
    /// Whether it is at the agent's kept session.
    pub(crate) is_at_kept_session: bool,
    /// The most that it spends, in millionths of a dollar, where it has a limit.
    pub(crate) may_spend: Option<i64>,
    pub(crate) since: Timestamp,
}

/// A job's place in the queue.
type Rank = (Reverse<i64>, Timestamp, JobId);

impl Board {
    /// Reads everything.
    pub(crate) fn load(db: &Db, setup: Arc<Setup>, now: Timestamp) -> Result<Board, DbError> {
        let day = day_of(&setup, now);
        let mut board = Board {
            calendar: Calendar::default(),
            ledger: Ledger::new(day, Limits::default()),
            asked: HashMap::new(),
            waiting: BTreeSet::new(),
            live: HashMap::new(),
            occupied: HashMap::new(),
            parked: db.parked()?.into_iter().map(|row| (row.credential.clone(), row)).collect(),
            disabled: db.disabled_agents()?.into_iter().collect(),
            overrides: HashMap::new(),
            credentials: HashMap::new(),
            courses: HashMap::new(),
            gate_expires_at: db.next_gate_expiry()?,
            held: HashSet::new(),
            is_held: false,
            redactor: Arc::new(Redactor::new(&[])),
            is_stale: false,
            setup,
        };
        for row in db.overrides()? {
            let key = ScheduleKey { agent: row.agent.clone(), schedule: row.schedule.clone() };
            board.overrides.insert(key, row);
        }
        for row in db.cron_overrides()? {
            board.overrides.extend(cron_override(&board.setup.loaded, row));
        }
        board.take_setup(Arc::clone(&board.setup));
        board.load_money(db, day)?;
        board.load_queue(db)?;
        board.load_runs(db)?;
        board.load_workflows(db)?;
        Ok(board)
    }

    fn load_workflows(&mut self, db: &Db) -> Result<(), DbError> {
        for row in db.active_workflow_runs()? {
            let id = row.head.id.clone();
            match self.setup.definition_of(db, &row)? {
                Ok(workflow) => {
                    let running = Running::restore(db, row, workflow)?;
                    self.courses.insert(id, running);
                }
                Err(refused) => {
                    tracing::error!(run = %id, why = refused.message, "a workflow cannot go on");
                }
            }
        }
        Ok(())
    }

    fn load_money(&mut self, db: &Db, day: Date) -> Result<(), DbError> {
        let today: HashMap<String, i64> = db.spent_by_agent(day)?.into_iter().collect();
        for (agent, in_all) in db.spent_in_all()? {
            let today = today.get(&agent).copied().unwrap_or(0);
            self.ledger.spend(&agent, day, today);
            // Of any other day.
            self.ledger.spend(&agent, Date::MIN, in_all - today);
        }
        for reservation in db.reservations()? {
            self.ledger.reserve(&reservation.agent, reservation.micros);
        }
        Ok(())
    }

    fn load_runs(&mut self, db: &Db) -> Result<(), DbError> {
        let reserved = db.reservations()?.into_iter().map(|row| (row.run, row.micros));
        let reserved: HashMap<RunId, i64> = reserved.collect();
        for run in db.uncommitted_runs()? {
            let Some(job) = db.job(&run.job_id)? else { continue };
            let session = match &job.head.session_id {
                Some(id) => db.session_by_agent_id(id)?,
                None => None,
            };
            let asked = self.asked.get(&run.job_id).map(|asked| seat(&asked.wanted));
            let live = Live {
                seat: asked.unwrap_or_else(|| job.head.agent.clone()),
                may_spend: reserved.get(&run.id).copied(),
                job: run.job_id,
                agent: job.head.agent,
                schedule: job.head.schedule,
                is_at_kept_session: session.is_some_and(|it| it.mode == SessionMode::Persistent),
                since: run.created_at,
            };
            self.add_live(run.id, live);
        }
        Ok(())
    }

    fn load_queue(&mut self, db: &Db) -> Result<(), DbError> {
        for row in db.queue()? {
            let Some(job) = db.job(&row.job)? else { continue };
            let wanted = match serde_json::from_str(&row.wanted) {
                Ok(wanted) => wanted,
                Err(error) => {
                    tracing::error!(job = %row.job, %error, "a waiting job cannot be understood");
                    continue;
                }
            };
            let stage = match job.head.status {
                JobStatus::Pending => Stage::Waiting,
                JobStatus::Running => Stage::Running,
                _ => continue,
            };
            self.ask(Asked { row, wanted, stage });
        }
        Ok(())
    }

    /// Takes over another config. Schedules are the caller's to bring up to date.
    pub(crate) fn take_setup(&mut self, setup: Arc<Setup>) {
        let limits = |agent: &Agent| (agent.name.to_string(), Limits::of(agent.budget.as_ref()));
        let fleet = setup.root().and_then(|fleet| fleet.budget.as_ref());
        self.ledger.set_limits(Limits::of(fleet), setup.loaded.agents.iter().map(limits));
        let inner = setup.loaded.fleets.iter().skip(1);
        let inner = inner.map(|fleet| (fleet.path.clone(), Limits::of(fleet.budget.as_ref())));
        self.ledger.set_inner_limits(inner);
        let credential = |agent: &Agent| Some((agent.name.to_string(), setup.credential(agent)?));
        self.credentials = setup.loaded.agents.iter().filter_map(credential).collect();
        self.redactor = Arc::new(Redactor::new(&setup.secrets()));
        self.setup = setup;
    }

    /// Lets what waits now wait until the fleet is started.
    pub(crate) fn hold_queue(&mut self) {
        self.held = self.queue().map(|asked| asked.row.job.clone()).collect();
        self.is_held = true;
    }

    /// Takes over what was typed from what was known before: the record has it without secrets.
    pub(crate) fn remember(&mut self, before: &Board) {
        self.held.clone_from(&before.held);
        self.is_held = before.is_held;
        for (id, running) in &mut self.courses {
            if let Some(known) = before.courses.get(id) {
                running.course.context.clone_from(&known.course.context);
            }
        }
        for (job, asked) in &mut self.asked {
            let same = |known: &&Asked| known.row.wanted == asked.row.wanted;
            if let Some(known) = before.asked.get(job).filter(same) {
                asked.wanted = known.wanted.clone();
            }
        }
    }

    /// Returns the credential of an agent.
    pub(crate) fn credential(&self, agent: &str) -> Option<&str> {
        self.credentials.get(agent).map(String::as_str)
    }

    /// Returns the agents that share a credential.
    pub(crate) fn agents_on(&self, credential: &str) -> impl Iterator<Item = &Agent> {
        let own = move |agent: &&Agent| self.credential(agent.name.as_str()) == Some(credential);
        self.setup.loaded.agents.iter().filter(own)
    }

    /// Notes a job that has not ended.
    pub(crate) fn ask(&mut self, asked: Asked) {
        self.forget(&asked.row.job.clone());
        match asked.stage {
            Stage::Waiting => drop(self.waiting.insert(rank(&asked.row))),
            Stage::Preparing => self.occupy(&seat(&asked.wanted)),
            Stage::Running => {}
        }
        self.asked.insert(asked.row.job.clone(), asked);
    }

    /// Moves a job to another stage.
    pub(crate) fn set_stage(&mut self, job: &JobId, stage: Stage) {
        if let Some(mut asked) = self.forget(job) {
            asked.stage = stage;
            self.ask(asked);
        }
    }

    /// Forgets a job that has ended.
    pub(crate) fn forget(&mut self, job: &JobId) -> Option<Asked> {
        let asked = self.asked.remove(job)?;
        match asked.stage {
            Stage::Waiting => drop(self.waiting.remove(&rank(&asked.row))),
            Stage::Preparing => self.vacate(&seat(&asked.wanted)),
            Stage::Running => {}
        }
        Some(asked)
    }

    /// Lists the jobs that wait, the next one first.
    pub(crate) fn queue(&self) -> impl Iterator<Item = &Asked> {
        self.waiting.iter().filter_map(|(_, _, job)| self.asked.get(job))
    }

    /// Returns how many jobs wait.
    pub(crate) fn queue_len(&self) -> usize {
        self.waiting.len()
    }

    /// Notes a run that is on record.
    pub(crate) fn add_live(&mut self, run: RunId, live: Live) {
        self.occupy(&live.seat);
        self.live.insert(run, live);
    }

    /// Forgets a run whose result is on record.
    pub(crate) fn remove_live(&mut self, run: RunId) -> Option<Live> {
        let live = self.live.remove(&run)?;
        self.vacate(&live.seat);
        Some(live)
    }

    /// Returns the run that a job is at.
    pub(crate) fn run_of(&self, job: &JobId) -> Option<RunId> {
        self.live.iter().find(|(_, live)| live.job == *job).map(|(run, _)| *run)
    }

    fn occupy(&mut self, agent: &str) {
        *self.occupied.entry(agent.to_owned()).or_default() += 1;
    }

    fn vacate(&mut self, agent: &str) {
        if let Some(count) = self.occupied.get_mut(agent) {
            *count = count.saturating_sub(1);
        }
    }

    /// Says why a job of an agent cannot start now; `None` if it can. `own` is what a run of it may
    /// spend by its own limit.
    pub(crate) fn hindrance(&self, agent: &Agent, now: Timestamp) -> Option<String> {
        let name = agent.name.as_str();
        if self.disabled.contains(name) {
            return Some(format!("{name} is disabled"));
        }
        let own = self.occupied.get(name).copied().unwrap_or(0);
        if own >= agent.max_concurrent.get() {
            return Some(format!("{name} is at its limit of {} at once", agent.max_concurrent));
        }
        for fleet in self.setup.fleets_of(name) {
            let in_fleet = |agent: &str| is_within(agent, &fleet.path);
            let own = self.occupied.iter().filter(|(agent, _)| in_fleet(agent));
            let own: u32 = own.map(|(_, count)| count).sum();
            if let Some(limit) = fleet.max_concurrent.filter(|limit| own >= limit.get()) {
                let whose = if fleet.path.is_empty() { "the fleet" } else { &fleet.path };
                return Some(format!("{whose} is at its limit of {limit} at once"));
            }
        }
        let parked = self.credential(name).and_then(|credential| self.parked.get(credential));
        if let Some(parked) = parked.filter(|parked| parked.until > now) {
            return Some(format!("{} (until {})", parked.reason, iso_millis(parked.until)));
        }
        match self.quote(agent) {
            Quote::Free | Quote::Reserve(_) => None,
            Quote::Held => Some("what is left of its budget is reserved by other runs".to_owned()),
            spent => Some(spent_text(name, spent)),
        }
    }

    /// Says what a run of an agent may spend.
    pub(crate) fn quote(&self, agent: &Agent) -> Quote {
        // No model is asked, so nothing is spent.
        if matches!(agent.runtime, Runtime::Command(_)) {
            return Quote::Free;
        }
        let own = agent.budget.as_ref().and_then(|budget| budget.job);
        let own = own.map(|usd| i64::try_from(usd.micros()).unwrap_or(i64::MAX));
        self.ledger.quote(agent.name.as_str(), own)
    }

    /// Says whether the last start of a schedule is still at work: it waits or runs, or another job
    /// is at the conversation that it would continue.
    pub(crate) fn is_busy(&self, key: &ScheduleKey) -> bool {
        let is_own = |asked: &Asked| {
            asked.wanted.agent.as_str() == key.agent
                && asked.wanted.schedule.as_deref() == Some(&key.schedule)
        };
        if self.schedule(key).is_some_and(|(_, schedule)| schedule.workflow.is_some()) {
            let about = trigger_id(key);
            return self.courses.values().any(|it| it.row.head.trigger_id == about);
        }
        let keeps = self
            .schedule(key)
            .is_some_and(|(_, schedule)| schedule.session.mode == SessionMode::Persistent);
        let is_at = |live: &Live| {
            live.agent == key.agent
                && (live.schedule.as_deref() == Some(&key.schedule)
                    || keeps && live.is_at_kept_session)
        };
        self.asked.values().any(is_own) || self.live.values().any(is_at)
    }

    /// Says whether a schedule starts by itself.
    pub(crate) fn is_enabled(&self, key: &ScheduleKey, schedule: &Schedule) -> bool {
        let by_hand = self.overrides.get(key).map(|row| row.enabled);
        by_hand.unwrap_or(schedule.enabled) && !self.disabled.contains(&key.agent)
    }

    /// Decides about the schedules that are due.
    pub(crate) fn due(&mut self, now: Timestamp) -> Vec<(ScheduleKey, Verdict)> {
        let mut calendar = std::mem::take(&mut self.calendar);
        let due = calendar.due(now, DUE_PER_TURN, |key| self.is_busy(key));
        self.calendar = calendar;
        due
    }

    /// Says whether a job waits for an earlier one of its schedule.
    pub(crate) fn is_behind(&self, asked: &Asked) -> bool {
        let is_due = |asked: &Asked| {
            matches!(asked.wanted.trigger, TriggerType::Schedule | TriggerType::Webhook)
        };
        let is_ahead = |other: &Asked| {
            other.stage != Stage::Waiting
                && is_due(other)
                && other.wanted.agent == asked.wanted.agent
                && other.wanted.schedule == asked.wanted.schedule
        };
        is_due(asked) && self.asked.values().any(is_ahead)
    }

    /// Returns a schedule with its agent.
    pub(crate) fn schedule(&self, key: &ScheduleKey) -> Option<(&Agent, &Schedule)> {
        let agent = self.setup.agent(&key.agent)?;
        let schedule = agent.schedules.iter().find(|schedule| schedule.name == key.schedule)?;
        Some((agent, schedule))
    }

    /// Lists the runs of workflows that can go on at once.
    pub(crate) fn workflows_with_more(&self) -> Vec<WorkflowRunId> {
        let more = self.courses.iter().filter(|(_, it)| it.has_more && !self.is_held);
        more.map(|(id, _)| id.clone()).collect()
    }

    /// Says whether runs of workflows can go on at once.
    pub(crate) fn has_more_of_workflows(&self) -> bool {
        !self.is_held && self.courses.values().any(|running| running.has_more)
    }

    /// Returns when something is to be done next that no event tells of.
    pub(crate) fn wake_at(&self, now: Timestamp, keeps_schedules: bool) -> Option<Timestamp> {
        let later = |at: &Timestamp| *at > now;
        let waiting = self.queue().flat_map(|asked| [asked.row.not_before, asked.row.expires_at]);
        let waiting = waiting.flatten().filter(later).min();
        let parked = self.parked.values().map(|parked| parked.until).filter(later).min();
        let schedules = self.calendar.wake_at().filter(|_| keeps_schedules);
        let workflows = self.has_more_of_workflows().then_some(now);
        [schedules, waiting, parked, workflows, self.gate_expires_at].into_iter().flatten().min()
    }
}

/// Says what was spent, in words.
pub(crate) fn spent_text(agent: &str, quote: Quote) -> String {
    let text = |of_fleet: bool, limit: i64, when: &str| {
        let whose = if of_fleet { "the fleet" } else { agent };
        format!("{whose} has spent its budget of ${:.2} {when}", limit as f64 / 1e6)
    };
    match quote {
        Quote::SpentToday { of_fleet, limit } => text(of_fleet, limit, "for today"),
        Quote::SpentInAll { of_fleet, limit } => text(of_fleet, limit, "in all"),
        Quote::Free | Quote::Reserve(_) | Quote::Held => String::new(),
    }
}

/// Returns the day of a moment where the fleet is.
pub(crate) fn day_of(setup: &Setup, now: Timestamp) -> Date {
    now.to_zoned(setup.zone.clone()).date()
}

/// Returns whose limit of jobs at once a job counts for. What is only done in an agent's name keeps
/// nobody from asking the agent; it counts for the fleet.
pub(crate) fn seat(wanted: &Wanted) -> String {
    match wanted.is_in_name_only() {
        true => format!("{} (in its name)", wanted.agent),
        false => wanted.agent.to_string(),
    }
}

fn rank(row: &Queued) -> Rank {
    (Reverse(row.priority), row.asked_at, row.job.clone())
}
