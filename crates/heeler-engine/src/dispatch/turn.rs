//! One turn of the dispatcher inside its transaction: what came in becomes rows, and what is to be
//! done because of them is noted for after the commit.
//!
//! Whatever can fail halfway is attempted under a savepoint. Start at [`Turn::take`].

use std::time::Duration;

use heeler_model::config::Agent;
use heeler_model::ledger::{Quote, RESERVATION_MIN};
use heeler_model::redact::Redactor;
use heeler_model::{
    ExitReason, Job, JobId, JobStatus, RunId, SessionMode, TriggerType, Wanted, chain,
};
use heeler_store::{DbError, Queued, Reservation, StateDir, Tx};
use jiff::Timestamp;

use super::board::{Asked, Board, Live, Stage, day_of, seat, spent_text};
use super::{Deed, Prepared, Task};
use crate::command::{Answer, Refused, RefusedKind, Stopped};
use crate::commit::{self, micros};
use crate::logs;
use crate::request::JobRequest;
use crate::sessions::{self, Change};
use crate::setup::redact;
use crate::start::{self, Begun, StartError};
use heeler_model::fate::SESSION_WAIT;

/// One turn, inside its transaction.
pub(crate) struct Turn<'t, 'c> {
    pub(crate) tx: &'t mut Tx<'c>,
    pub(crate) board: &'t mut Board,
    pub(crate) dir: &'t StateDir,
    pub(crate) now: Timestamp,
    /// Whether schedules start by themselves.
    pub(crate) keeps_schedules: bool,
    /// Whether nothing new starts.
    pub(crate) is_stopping: bool,
    /// What is to be done after the commit.
    pub(crate) deeds: Vec<Deed>,
}

/// What a task is answered.
pub(crate) type Outcome = Result<Option<Answer>, Refused>;

impl Turn<'_, '_> {
    /// Does one task. An error of the database undoes what it did.
    pub(crate) fn take(&mut self, task: Task) -> Result<Outcome, DbError> {
        match task {
            Task::Order(command) => self.order(command),
            Task::Prepared(prepared) => self.prepared(*prepared),
            Task::Ended(gone) => self.ended(*gone).map(|()| Ok(None)),
            Task::Hook(outcome) => outcome.record(self.tx, self.now).map(|()| Ok(None)),
            Task::Fired { wanted, changed } => self.fired(&wanted, &changed).map(|()| Ok(None)),
            Task::Questions { run, asks, delivered } => {
                self.questions(run, &asks)?;
                if let Some(id) = delivered {
                    self.tx.set_approval_delivered(&id, self.now)?;
                }
                Ok(Ok(None))
            }
            Task::Setup { setup, changes } => {
                self.take_setup(setup)?;
                Ok(Ok(changes.map(|changes| Answer::Reloaded { changes })))
            }
            Task::Session { change, by } => self.change_sessions(&change, &by),
            Task::Expire => self.expire_sessions().map(|()| Ok(None)),
        }
    }

    fn change_sessions(&mut self, change: &Change, by: &str) -> Result<Outcome, DbError> {
        let home = self.board.setup.home.clone();
        let done = sessions::commit(self.tx, &home, change, by, self.now)?;
        if done.is_ok() {
            self.deeds.push(Deed::MoveSessions);
        }
        Ok(done.map(Some))
    }

    fn expire_sessions(&mut self) -> Result<(), DbError> {
        let setup = std::sync::Arc::clone(&self.board.setup);
        let expired = sessions::expire(self.tx, &setup.loaded, self.now)?;
        if expired > 0 {
            tracing::info!(expired, "sessions were not used for too long");
        }
        Ok(())
    }

    /// A run can be started, or its job waits.
    fn prepared(&mut self, prepared: Prepared) -> Result<Outcome, DbError> {
        let Prepared { job, mut wanted, request } = prepared;
        // Cancelled meanwhile.
        let is_gone = |job: &JobId| {
            self.board.asked.get(job).is_none_or(|asked| asked.stage != Stage::Preparing)
        };
        if job.as_ref().is_some_and(is_gone) {
            return Ok(Ok(None));
        }
        if let Some(job) = &job {
            self.board.set_stage(job, Stage::Waiting);
        }
        if self.is_stopping {
            // The next daemon does it.
            return Ok(if job.is_some() { Ok(None) } else { Err(Stopped.into()) });
        }
        let request = match (request, &job) {
            (Ok(request), _) => request,
            (Err(refused), None) => return Ok(Err(refused)),
            (Err(refused), Some(job)) => {
                return self.give_up(job, &refused.message).map(|()| Ok(None));
            }
        };
        let setup = std::sync::Arc::clone(&self.board.setup);
        let Ok(agent) = setup.agent_for(&wanted) else {
            let message = format!("there is no agent {} any more", wanted.agent);
            return match &job {
                None => Ok(Err(Refused::new(RefusedKind::NotFound, message))),
                Some(job) => self.give_up(job, &message).map(|()| Ok(None)),
            };
        };
        let agent = &*agent;
        let mut request = *request;
        if job.is_none()
            && let Err(refused) = self.admissible(agent)
        {
            return Ok(Err(refused));
        }
        if let Some(parent) = &wanted.parent {
            match (self.may_spawn(parent, agent, job.as_ref())?, &job) {
                (Ok(left), _) => {
                    request.limits.budget_usd = smaller(request.limits.budget_usd, left);
                }
                (Err(refused), None) => return Ok(Err(refused)),
                (Err(refused), Some(job)) => {
                    return self.give_up(job, &refused.message).map(|()| Ok(None));
                }
            }
        }
        if let (None, Some(parent)) = (&job, &wanted.parent) {
            match self.worker_name(parent, &wanted)? {
                Ok(name) => wanted.worker = Some(name),
                Err(refused) => return Ok(Err(refused)),
            }
        }
        self.start_or_wait(job, &wanted, agent, request)
    }

    /// Refuses what would not even be let into the queue.
    pub(super) fn admissible(&self, agent: &Agent) -> Result<(), Refused> {
        let name = agent.name.as_str();
        if self.board.disabled.contains(name) {
            let refused = Refused::new(RefusedKind::NotAllowed, format!("{name} is disabled"));
            return Err(refused.hint(format!("heeler agent enable {name}")));
        }
        let quote = self.board.quote(agent);
        if matches!(quote, Quote::SpentToday { .. } | Quote::SpentInAll { .. }) {
            let refused = Refused::new(RefusedKind::NotAllowed, spent_text(name, quote));
            return Err(
                refused.hint("heeler costs shows on what; `budget` in the config raises it")
            );
        }
        Ok(())
    }

    /// Refuses what cannot start now and would not wait well.
    fn may_wait(&self, wanted: &Wanted, agent: &Agent, reason: &str) -> Result<(), Refused> {
        // What is left is held by those who wait for it to end.
        if let Some(parent) = &wanted.parent
            && self.board.quote(agent) == Quote::Held
        {
            let message = format!(
                "{reason}, and {parent}, which asks for this job, may be one of them: it cannot wait"
            );
            let asker = self.board.live.values().find(|live| live.job == *parent);
            let asker = asker.map_or("the agent that asks", |live| &live.agent);
            let hint = format!(
                "set `budget.job` of {asker} to less than the fleet's or its own `day` and `total`, \
                 so that a run of it leaves something for the jobs that it starts"
            );
            return Err(Refused::new(RefusedKind::NotAllowed, message).hint(hint));
        }
        let most = self.queue_max();
        if self.board.queue_len() < most {
            return Ok(());
        }
        let message = match most {
            0 => format!("it would have to wait, and nothing may (`queue.max`): {reason}"),
            _ => format!("{reason}, and {most} jobs wait already, the most (`queue.max`)"),
        };
        Err(Refused::new(RefusedKind::Busy, message).hint("heeler jobs --status pending"))
    }

    fn start_or_wait(
        &mut self,
        job: Option<JobId>,
        wanted: &Wanted,
        agent: &Agent,
        mut request: JobRequest,
    ) -> Result<Outcome, DbError> {
        let redactor = Redactor::new(&request.brief.secrets);
        if let (Some(id), Some(limit)) = (&job, request.limits.budget_usd) {
            // What its earlier runs spent is spent.
            let left = micros(limit) - self.tx.spent_by_job(id)?;
            if left < RESERVATION_MIN.min(micros(limit)) {
                let why = format!("its runs have spent its budget of ${limit:.2}");
                return self.give_up(id, &why).map(|()| Ok(None));
            }
            request.limits.budget_usd = Some(left as f64 / 1e6);
        }
        let waits = match self.board.hindrance(agent, self.now) {
            Some(reason) => Some((reason, None)),
            None => match self.begin(job.as_ref(), wanted, agent, &mut request)? {
                Ok(begun) => {
                    let id = begun.job.clone();
                    let text = logs::started(
                        &begun.job,
                        request.schedule.as_deref(),
                        request.trigger.as_str(),
                    );
                    self.deeds.push(Deed::Log { agent: request.agent.to_string(), text });
                    self.deeds
                        .push(Deed::Launch { begun: Box::new(begun), request: Box::new(request) });
                    return Ok(Ok(Some(Answer::Job {
                        job: id,
                        status: JobStatus::Running,
                        waits: None,
                    })));
                }
                Err(error @ StartError::SessionBusy { .. }) => {
                    Some((chain(&error), Some(later(self.now, SESSION_WAIT))))
                }
                Err(error) => {
                    return match &job {
                        None => Ok(Err(refusal(&error))),
                        Some(job) => self.give_up(job, &chain(&error)).map(|()| Ok(None)),
                    };
                }
            },
        };
        let (reason, not_before) = waits.expect("what starts has returned");
        if job.is_none()
            && let Err(refused) = self.may_wait(wanted, agent, &reason)
        {
            return Ok(Err(refused));
        }
        let job = match job {
            Some(job) => {
                self.wait_again(&job, &reason, not_before)?;
                job
            }
            None => {
                let redacted = redact(wanted, &redactor);
                let job = self.tx.new_job_id(self.now)?;
                insert_job(self.tx, &job, wanted, &redacted, self.now)?;
                let row = self.row(&job, agent, wanted, &redacted, &reason, not_before);
                self.tx.enqueue(&row)?;
                self.board.ask(Asked { row, wanted: wanted.clone(), stage: Stage::Waiting });
                job
            }
        };
        Ok(Ok(Some(Answer::Job { job, status: JobStatus::Pending, waits: Some(reason) })))
    }

    /// Records the start of a run, with the money it may spend.
    fn begin(
        &mut self,
        job: Option<&JobId>,
        wanted: &Wanted,
        agent: &Agent,
        request: &mut JobRequest,
    ) -> Result<Result<Begun, StartError>, DbError> {
        let own = request.limits.budget_usd.map(micros);
        let quote = match self.board.quote(agent) {
            Quote::Free => Quote::Free,
            _ => self.board.ledger.quote(agent.name.as_str(), own),
        };
        let reserved = match quote {
            Quote::Reserve(micros) => Some(micros),
            _ => None,
        };
        request.limits.budget_usd = smaller(request.limits.budget_usd, reserved);
        let (dir, now, asked) = (self.dir, self.now, &*request);
        let begun = self.tx.attempt(|tx| {
            let job = match job {
                Some(job) => job.clone(),
                None => {
                    let id = tx.new_job_id(now)?;
                    let redacted = redact(wanted, &Redactor::new(&asked.brief.secrets));
                    insert_job(tx, &id, wanted, &redacted, now)?;
                    id
                }
            };
            start::begin_in(tx, dir, asked, &job, now)
        });
        let begun = match begun {
            Ok(begun) => begun,
            Err(StartError::Db(error)) => return Err(error),
            Err(refused) => return Ok(Err(refused)),
        };
        let name = agent.name.to_string();
        if let Some(micros) = reserved {
            let day = day_of(&self.board.setup, now);
            self.tx.reserve(&Reservation { run: begun.run, agent: name.clone(), day, micros })?;
            self.board.ledger.reserve(&name, micros);
        }
        self.note_asked(&begun.job, wanted, agent, request)?;
        let live = Live {
            job: begun.job.clone(),
            agent: name,
            seat: seat(wanted),
            schedule: wanted.schedule.clone(),
            is_at_kept_session: request.rules.mode == SessionMode::Persistent
                && request.channel.is_none(),
            may_spend: request.limits.budget_usd.map(micros),
            since: now,
        };
        tracing::info!(
            job = %begun.job, agent = agent.name.as_str(), trigger = wanted.trigger.as_str(),
            "started"
        );
        self.board.add_live(begun.run, live);
        self.show_schedule_of(&begun.job)?;
        Ok(Ok(begun))
    }

    /// Keeps what was asked for as long as the job lives: it may run again.
    fn note_asked(
        &mut self,
        job: &JobId,
        wanted: &Wanted,
        agent: &Agent,
        request: &JobRequest,
    ) -> Result<(), DbError> {
        if self.board.asked.contains_key(job) {
            self.board.set_stage(job, Stage::Running);
            return Ok(());
        }
        let redacted = redact(wanted, &Redactor::new(&request.brief.secrets));
        let row = self.row(job, agent, wanted, &redacted, "", None);
        self.tx.enqueue(&row)?;
        self.board.ask(Asked { row, wanted: wanted.clone(), stage: Stage::Running });
        Ok(())
    }

    pub(super) fn row(
        &self,
        job: &JobId,
        agent: &Agent,
        wanted: &Wanted,
        redacted: &Wanted,
        reason: &str,
        not_before: Option<Timestamp>,
    ) -> Queued {
        let schedule = wanted.schedule.as_deref();
        let schedule = agent.schedules.iter().find(|it| Some(it.name.as_str()) == schedule);
        let own = schedule.map_or(agent.priority, |schedule| schedule.priority);
        Queued {
            job: job.clone(),
            priority: wanted.priority.saturating_add(i64::from(own)),
            asked_at: self.now,
            not_before,
            expires_at: Some(later(not_before.unwrap_or(self.now), self.queue_wait_max())),
            wanted: serde_json::to_string(redacted).expect("what is wanted is JSON"),
            reason: reason.to_owned(),
        }
    }

    /// Lets a job wait that could not start.
    pub(super) fn wait_again(
        &mut self,
        job: &JobId,
        reason: &str,
        not_before: Option<Timestamp>,
    ) -> Result<(), DbError> {
        let Some(mut asked) = self.board.forget(job) else { return Ok(()) };
        asked.stage = Stage::Waiting;
        if asked.row.reason != reason || asked.row.not_before != not_before {
            asked.row.reason = reason.to_owned();
            asked.row.not_before = not_before;
            self.tx.enqueue(&asked.row)?;
        }
        self.board.ask(asked);
        Ok(())
    }

    /// Ends a job that cannot run.
    pub(super) fn give_up(&mut self, id: &JobId, why: &str) -> Result<(), DbError> {
        self.board.forget(id);
        self.tx.dequeue(id)?;
        let Some(mut job) = self.tx.job(id)? else { return Ok(()) };
        job.head.status = JobStatus::Failed;
        job.head.exit_reason = Some(ExitReason::Error);
        job.head.finished_at = Some(self.now);
        job.error = Some(why.to_owned());
        job.version = self.tx.update_job(&job)?;
        commit::release_agent(self.tx, &job)?;
        tracing::warn!(job = %id, agent = job.head.agent, why, "a job cannot be started");
        self.over(&job, None, None)
    }

    /// Writes down why jobs wait, where that is another reason than before.
    pub(crate) fn explain(&mut self) -> Result<(), DbError> {
        let mut changed = Vec::new();
        for asked in self.board.queue() {
            let agent = self.board.setup.agent_for(&asked.wanted).ok();
            let is_put_off = asked.row.not_before.is_some_and(|at| at > self.now);
            let reason = match self.board.held.contains(&asked.row.job) {
                true => Some("the fleet was stopped; `heeler start` goes on".to_owned()),
                false => agent.and_then(|agent| self.board.hindrance(&agent, self.now)),
            };
            if let Some(reason) = reason.filter(|it| !is_put_off && *it != asked.row.reason) {
                changed.push(Queued { reason, ..asked.row.clone() });
            }
        }
        for row in changed {
            self.tx.enqueue(&row)?;
            if let Some(asked) = self.board.asked.get_mut(&row.job) {
                asked.row = row;
            }
        }
        Ok(())
    }

    /// Gives up on jobs that have waited too long.
    pub(crate) fn expire(&mut self) -> Result<(), DbError> {
        let is_due = |asked: &&Asked| asked.row.expires_at.is_some_and(|at| at <= self.now);
        let expired: Vec<(JobId, String)> = self
            .board
            .queue()
            .filter(is_due)
            .map(|asked| (asked.row.job.clone(), asked.row.reason.clone()))
            .collect();
        for (job, reason) in expired {
            let why = format!("it waited longer than `queue.max_wait` allows: {reason}");
            self.give_up(&job, &why)?;
        }
        Ok(())
    }

    pub(super) fn queue_max(&self) -> usize {
        self.board.setup.root().map_or(0, |fleet| fleet.queue.max as usize)
    }

    pub(super) fn queue_wait_max(&self) -> Duration {
        let day = Duration::from_secs(24 * 3600);
        self.board.setup.root().map_or(day, |fleet| fleet.queue.max_wait.get())
    }

    /// Returns the run that a job is at.
    pub(super) fn run_of(&self, job: &JobId) -> Option<RunId> {
        self.board.run_of(job)
    }
}

/// Puts a job on record that waits.
pub(super) fn insert_job(
    tx: &mut Tx<'_>,
    id: &JobId,
    wanted: &Wanted,
    redacted: &Wanted,
    now: Timestamp,
) -> Result<(), DbError> {
    let mut job = Job::asked(id.clone(), wanted.agent.as_str(), wanted.trigger.clone(), now);
    job.head.schedule = wanted.schedule.clone();
    job.prompt = redacted.prompt.clone();
    let parent = wanted.parent.as_ref().filter(|_| wanted.trigger == TriggerType::Spawned);
    let concerns = parent.map(JobId::to_string).or_else(|| wanted.schedule.clone());
    job.trigger_id = concerns.or_else(|| wanted.channel.clone()).unwrap_or_default();
    if let Some(worker) = wanted.worker.as_ref().filter(|_| parent.is_some()) {
        job.set_worker(worker);
    }
    tx.insert_job(&job)
}

/// Returns the smaller of a limit in dollars and one in millionths of one.
fn smaller(usd: Option<f64>, micros: Option<i64>) -> Option<f64> {
    let other = micros.map(|micros| micros as f64 / 1e6);
    match (usd, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

pub(super) fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Says what can be done about a start that is refused.
fn refusal(error: &StartError) -> Refused {
    let kind = match error {
        StartError::NoSession { .. } => RefusedKind::NotFound,
        StartError::SessionBusy { .. } => RefusedKind::Busy,
        StartError::OthersSession { .. } | StartError::Deleted { .. } => RefusedKind::NotAllowed,
        _ => RefusedKind::Trouble,
    };
    let refused = Refused::new(kind, chain(error));
    match error {
        StartError::NoSession { .. } | StartError::OthersSession { .. } => {
            refused.hint("heeler session list")
        }
        _ => refused,
    }
}
