//! Runs that have ended: what they did becomes the record, and their job is over or goes on.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use heeler_model::calendar::ScheduleKey;
use heeler_model::config::{Agent, Runtime};
use heeler_model::fate::{self, Again, Fate, Policy};
use heeler_model::run::{End, ErrorClass, RunResult};
use heeler_model::session_choice::Wish;
use heeler_model::{Job, JobId, JobStatus, iso_millis};
use heeler_store::{DbError, Parked};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;

use super::Deed;
use super::board::Stage;
use super::turn::{Turn, later};
use crate::approvals;
use crate::command::Gone;
use crate::commit::{self, Concluded, Ended};
use crate::hooks::{self, JobEnd};
use crate::logs;

/// What an agent is told that was cut off.
const INTERRUPTED: &str = "You were interrupted: the process that ran you ended before you had \
    finished. Look at what is done already, then go on with your task.";

/// What an agent is told that ran into a usage limit.
const LIMIT_RESET: &str = "You were stopped by a usage limit, which is reset now. Look at what is \
    done already, then go on with your task.";

/// Over how long the work that waited for a reset starts, unless it waited for less than that.
const AFTER_RESET_SPREAD: Duration = Duration::from_secs(120);

impl Turn<'_, '_> {
    /// Records what a run did.
    pub(super) fn ended(&mut self, gone: Gone) -> Result<(), DbError> {
        let Gone { result, metadata, closed } = gone;
        let (run, now) = (result.run, self.now);
        let root = self.dir.root().to_owned();
        let board = &*self.board;
        let concluded = self.tx.attempt(|tx| {
            commit::conclude(tx, &root, &board.setup.zone, result, |job, result, history| {
                let policy = policy(board.setup.agent(&job.head.agent), job);
                fate::decide(result, history, &policy, now)
            })
        })?;
        let live = self.board.remove_live(run);
        let Concluded::Now(ended) = concluded else { return Ok(()) };
        let Ended { job, result, fate, money } = &*ended;
        approvals::all_ended(self.tx, job, run, &closed, now)?;
        if let Some(released) = &money.released {
            self.board.ledger.release(&released.agent, released.micros);
        }
        self.board.ledger.spend(&job.head.agent, money.day, money.spent);
        match fate {
            Fate::Over => {
                self.tx.dequeue(&job.head.id)?;
                self.over(job, metadata, result.error.as_ref().map(|error| error.class))?;
                self.board.forget(&job.head.id);
            }
            Fate::Again { at, how } => self.again(job, result, *at, *how)?,
        }
        let schedule = live.and_then(|live| live.schedule).or_else(|| job.head.schedule.clone());
        match schedule {
            Some(schedule) => {
                self.show_schedule(&ScheduleKey { agent: job.head.agent.clone(), schedule })
            }
            None => Ok(()),
        }
    }

    /// A job is over: its schedule's record, hooks, the workflow run that it is a part of, and
    /// whoever waits.
    pub(super) fn over(
        &mut self,
        job: &Job,
        metadata: Option<Json>,
        class: Option<ErrorClass>,
    ) -> Result<(), DbError> {
        let head = &job.head;
        tracing::info!(
            job = %head.id, agent = head.agent, status = %head.status, cost_usd = head.cost_usd,
            error = job.error, "ended"
        );
        let text = logs::ended(head, job.error.as_deref());
        self.deeds.push(Deed::Log { agent: head.agent.clone(), text });
        if let Some(name) = &head.schedule
            && let Some(mut state) = self.tx.schedule(&head.agent, name)?
        {
            state.last_run_at = head.finished_at;
            state.last_error = job.error.clone().filter(|_| head.status == JobStatus::Failed);
            self.tx.put_schedule(&head.agent, name, &state)?;
        }
        let setup = Arc::clone(&self.board.setup);
        if let Some(agent) = setup.agent(&head.agent) {
            let end = JobEnd { output: None, metadata };
            for effect in hooks::effects_of(agent, job, &end, self.now) {
                self.tx.add_effect(&effect)?;
                self.deeds.push(Deed::WakeHooks);
            }
        }
        self.part_over(job, class)
    }

    /// A job goes on with another run.
    fn again(
        &mut self,
        job: &Job,
        result: &RunResult,
        at: Timestamp,
        how: Again,
    ) -> Result<(), DbError> {
        let id = &job.head.id;
        let Some(mut asked) = self.board.forget(id) else {
            return self.give_up(id, "it cannot go on: what was asked for is not on record");
        };
        let session = result.session.as_ref().filter(|session| session.resumable);
        let text = match how {
            Again::Anew | Again::Retried { .. } => None,
            Again::Resumed => Some(INTERRUPTED),
            Again::AfterReset => Some(LIMIT_RESET),
        };
        if let (Some(text), Some(session)) = (text, session) {
            asked.wanted.prompt = Some(text.to_owned());
            asked.wanted.session = Wish::Given { id: session.id.clone() };
            // What was typed may hold secrets; what we say does not.
            asked.row.wanted = serde_json::to_string(&asked.wanted).expect("it is JSON");
        }
        let mut not_before = at;
        if how == Again::AfterReset {
            not_before = later(at, spread(id, at.duration_since(self.now)));
            self.park(&job.head.agent, id, result, at)?;
        }
        let reason = match (how, result.end) {
            (Again::Anew, End::SessionBusy) => "another run is at its session".to_owned(),
            (Again::Anew, _) => "its run did not start; it is tried again".to_owned(),
            (Again::Resumed, _) => "it was interrupted and is resumed".to_owned(),
            (Again::AfterReset, _) => format!("a usage limit, until {}", iso_millis(at)),
            (Again::Retried { number, most }, _) => {
                let error = result.error.as_ref().map_or("", |error| error.message.as_str());
                format!("failed: {error}; tries again ({number} of {most})")
            }
        };
        tracing::info!(job = %id, agent = job.head.agent, reason, "goes on later");
        asked.stage = Stage::Waiting;
        asked.row.reason = reason;
        asked.row.not_before = Some(not_before);
        asked.row.expires_at = Some(later(not_before, self.queue_wait_max()));
        self.tx.enqueue(&asked.row)?;
        self.board.ask(asked);
        Ok(())
    }

    /// Lets nobody use a credential until its limit is reset.
    fn park(
        &mut self,
        agent: &str,
        job: &JobId,
        result: &RunResult,
        until: Timestamp,
    ) -> Result<(), DbError> {
        let Some(credential) = self.board.credential(agent).map(str::to_owned) else {
            return Ok(());
        };
        let reason = result.error.as_ref().map_or("a usage limit", |error| error.message.as_str());
        let known = self.board.parked.get(&credential);
        let row = Parked {
            until: known.map_or(until, |known| known.until.max(until)),
            since: known.filter(|known| known.until > self.now).map_or(self.now, |it| it.since),
            credential: credential.clone(),
            reason: reason.to_owned(),
            job: job.clone(),
        };
        tracing::warn!(agent, until = iso_millis(row.until), "a usage limit: work is put off");
        self.tx.park(&row)?;
        self.board.parked.insert(credential, row);
        Ok(())
    }

    /// Lets credentials be used again whose limit is reset.
    pub(crate) fn unpark(&mut self) -> Result<(), DbError> {
        let over = self.board.parked.values().filter(|parked| parked.until <= self.now);
        let over: Vec<String> = over.map(|parked| parked.credential.clone()).collect();
        for credential in over {
            self.tx.unpark(&credential)?;
            self.board.parked.remove(&credential);
        }
        Ok(())
    }
}

/// What an agent's rules say about going on. Of one that the config has no more, nothing does.
fn policy(agent: Option<&Agent>, job: &Job) -> Policy {
    let Some(agent) = agent else {
        let none = Duration::ZERO;
        return Policy { retries_max: 0, backoff: none, backoff_max: none, resume_within: None };
    };
    let schedule = job.head.schedule.as_deref();
    let schedule = agent.schedules.iter().find(|it| Some(it.name.as_str()) == schedule);
    let session = schedule.map_or(&agent.session, |schedule| &schedule.session);
    // A workflow tries its parts again by its own rules.
    let retries_max = if job.seq.is_some() { 0 } else { agent.retry.max };
    Policy {
        retries_max,
        backoff: agent.retry.backoff.get(),
        backoff_max: agent.retry.max_backoff.get(),
        // A command has no session to go on in.
        resume_within: session
            .auto_resume_within
            .filter(|_| !matches!(agent.runtime, Runtime::Command(_)))
            .map(|period| period.get()),
    }
}

/// Returns how long after a reset a job goes on: each at its own time, and within as long again as
/// it waits.
fn spread(job: &JobId, wait: SignedDuration) -> Duration {
    let mut hasher = DefaultHasher::new();
    job.as_str().hash(&mut hasher);
    let most = Duration::try_from(wait).unwrap_or_default().min(AFTER_RESET_SPREAD);
    let most = most.as_millis() as u64;
    Duration::from_millis(hasher.finish() % (most + 1))
}
