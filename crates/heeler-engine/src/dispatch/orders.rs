//! What people ask of the fleet beside new jobs: to end one, to let one go on, to change schedules
//! and agents.

use std::sync::Arc;

use heeler_model::calendar::ScheduleKey;
use heeler_model::config::{Agent, INTERVAL_MIN, Period, Runtime, Schedule, Trigger};
use heeler_model::session_choice::Wish;
use heeler_model::{AgentStatus, Job, JobId, JobStatus, Wanted};
use heeler_store::{CronOverride, DbError, Override};

use super::Deed;
use super::board::{Asked, Stage};
use super::due::{from_now, read_rule};
use super::turn::{Outcome, Turn};
use crate::cancel::{self, Wish as CancelWish};
use crate::command::{AgentChange, Answer, Command, Refused, RefusedKind, ScheduleChange};
use crate::setup::{Setup, cron_name};

/// What an agent is told that a person lets go on.
pub const GO_ON: &str = "You were stopped before you had finished. Look at what is done already, then \
    go on with your task.";

impl Turn<'_, '_> {
    pub(super) fn order(&mut self, command: Command) -> Result<Outcome, DbError> {
        match command {
            Command::Cancel { job, now, by } => self.cancel(&job, now, &by),
            Command::Resume { job, prompt, by } => self.resume(&job, prompt, &by),
            Command::Schedule { agent, schedule, change, by } => {
                self.change_schedule(&agent, &schedule, &change, &by)
            }
            Command::Webhook(call) => self.webhook(&call),
            Command::Agent { agent, change, by } => self.change_agent(&agent, change, &by),
            Command::Workflow { order, by } => self.workflow_order(order, &by),
            Command::Approval { approval, answer, by } => self.answer(&approval, &answer, &by),
            Command::Access { order, by } => self.access(order, &by),
            // The dispatcher deals with these itself.
            Command::Trigger(_)
            | Command::Retry { .. }
            | Command::Session { .. }
            | Command::Reload
            | Command::Stop(_)
            | Command::Say { .. }
            | Command::Status => Ok(Ok(None)),
        }
    }

    pub(super) fn cancel(&mut self, id: &JobId, now: bool, by: &str) -> Result<Outcome, DbError> {
        let Some(job) = self.tx.job(id)? else { return Ok(Err(no_job(id))) };
        if job.head.status.is_final() && job.head.status != JobStatus::Cancelled {
            let message = format!("job {id} has ended already: {}", job.head.status);
            return Ok(Err(Refused::new(RefusedKind::Busy, message)));
        }
        let was_over = job.head.status.is_final();
        let at = self.now;
        let wish = CancelWish { now, by: by.to_owned() };
        let job = cancel::wish_in(self.tx, id, &wish, at)?;
        if job.head.status == JobStatus::Cancelled {
            if !was_over {
                self.board.forget(id);
                self.tx.dequeue(id)?;
                self.over(&job, None, None)?;
            }
        } else if let Some(run) = self.run_of(id) {
            self.deeds.push(Deed::Cancel { run, now, by: by.to_owned() });
        }
        Ok(Ok(Some(Answer::Job { job: id.clone(), status: job.head.status, waits: None })))
    }

    fn resume(&mut self, id: &JobId, prompt: Option<String>, by: &str) -> Result<Outcome, DbError> {
        let Some(mut job) = self.tx.job(id)? else { return Ok(Err(no_job(id))) };
        if !job.head.status.is_final() {
            let message = format!("job {id} has not ended: {}", job.head.status);
            return Ok(Err(Refused::new(RefusedKind::Busy, message)));
        }
        if let Some(run) = job.workflow_run_id.as_ref().filter(|_| job.seq.is_some()) {
            let message = format!("job {id} is a part of {run}, which decides what becomes of it");
            let refused = Refused::new(RefusedKind::NotAllowed, message);
            return Ok(Err(refused.hint(format!("heeler workflow retry {run}"))));
        }
        let setup = Arc::clone(&self.board.setup);
        let agent = match setup.find_agent(&job.head.agent) {
            Ok(agent) => agent,
            Err(refused) => return Ok(Err(refused)),
        };
        let again = format!("heeler jobs retry {id}");
        if job.head.status == JobStatus::Completed {
            let message = format!("job {id} has completed: there is nothing to go on with");
            let refused = Refused::new(RefusedKind::Busy, message);
            let session = job.head.session_id.as_ref().map(|session| {
                format!(", or heeler trigger {} --session {session} -p '…'", agent.name)
            });
            return Ok(Err(refused.hint(format!("{again}{}", session.unwrap_or_default()))));
        }
        if matches!(agent.runtime, Runtime::Command(_)) {
            let message = format!("{} is a command, which has no session to go on in", agent.name);
            return Ok(Err(Refused::new(RefusedKind::NotAllowed, message).hint(again)));
        }
        let session = match &job.head.session_id {
            Some(session) => session.clone(),
            None => {
                let message = format!("job {id} has no session to go on in: it never began");
                let refused = Refused::new(RefusedKind::NotAllowed, message);
                return Ok(Err(refused.hint(again)));
            }
        };
        let wanted = Wanted {
            prompt: Some(prompt.unwrap_or_else(|| GO_ON.to_owned())),
            schedule: job.head.schedule.clone(),
            session: Wish::Given { id: session },
            trigger: job.head.trigger_type.clone(),
            ..Wanted::of(agent.name.clone())
        };
        tracing::info!(job = %id, by, "resumed");
        job.head.status = JobStatus::Pending;
        job.head.exit_reason = None;
        job.head.finished_at = None;
        job.interrupted = false;
        job.error = None;
        self.tx.update_job(&job)?;
        let redacted = setup.redacted(agent, &wanted);
        let row = self.row(id, agent, &wanted, &redacted, "", None);
        self.tx.enqueue(&row)?;
        self.board.ask(Asked { row, wanted, stage: Stage::Waiting });
        let waits = self.board.hindrance(agent, self.now);
        Ok(Ok(Some(Answer::Job { job: id.clone(), status: JobStatus::Pending, waits })))
    }

    fn change_schedule(
        &mut self,
        agent: &str,
        schedule: &str,
        change: &ScheduleChange,
        by: &str,
    ) -> Result<Outcome, DbError> {
        let setup = Arc::clone(&self.board.setup);
        let (agent, schedule) = match find_schedule(&setup, agent, schedule) {
            Ok(found) => found,
            Err(refused) => return Ok(Err(refused)),
        };
        let key = ScheduleKey { agent: agent.name.to_string(), schedule: schedule.name.clone() };
        let known = self.board.overrides.get(&key);
        let text = known.and_then(|row| row.text.clone());
        let was_enabled = self.board.is_enabled(&key, schedule);
        let by_hand = known.map_or(schedule.enabled, |row| row.enabled);
        let (message, enabled, text) = match change {
            ScheduleChange::Enable => (format!("{key} starts by itself"), true, text),
            ScheduleChange::Disable => (format!("{key} does not start by itself"), false, text),
            ScheduleChange::Set { text } => match check_rule(text, schedule) {
                Ok(text) => (format!("{key} starts by `{text}`"), by_hand, Some(text)),
                Err(refused) => return Ok(Err(refused)),
            },
            ScheduleChange::Reset | ScheduleChange::Trigger => {
                match &schedule.workflow {
                    Some(_) => self.tx.remove_cron_override(cron_name(schedule))?,
                    None => self.tx.remove_override(&key.agent, &key.schedule)?,
                };
                self.board.overrides.remove(&key);
                self.replan(&key, schedule, was_enabled)?;
                let message = format!("{key} starts as the config says");
                tracing::info!(schedule = %key, by, message, "changed");
                return Ok(Ok(Some(Answer::Done { message })));
            }
        };
        let row = Override {
            agent: key.agent.clone(),
            schedule: key.schedule.clone(),
            enabled,
            text,
            at: self.now,
            by: by.to_owned(),
        };
        match &schedule.workflow {
            // Under the name that Last Light has it by.
            Some(_) => self.tx.put_cron_override(&CronOverride {
                name: cron_name(schedule).to_owned(),
                enabled: row.enabled,
                schedule: row.text.clone(),
                at: row.at,
                by: row.by.clone(),
            })?,
            None => self.tx.put_override(&row)?,
        }
        self.board.overrides.insert(key.clone(), row);
        self.replan(&key, schedule, was_enabled)?;
        tracing::info!(schedule = %key, by, message, "changed");
        Ok(Ok(Some(Answer::Done { message })))
    }

    /// Puts a schedule into the calendar anew after it was changed by hand.
    fn replan(
        &mut self,
        key: &ScheduleKey,
        schedule: &Schedule,
        was_enabled: bool,
    ) -> Result<(), DbError> {
        let marks = self.tx.schedule_marks()?;
        let mark = marks.iter().find(|row| row.agent == key.agent && row.schedule == key.schedule);
        // What was due while it was switched off is not made up for.
        let mark = mark.map(|mark| match was_enabled {
            true => mark.clone(),
            false => from_now(mark, self.now),
        });
        self.plan(key, schedule, mark.as_ref())?;
        self.show_schedule(key)
    }

    fn change_agent(
        &mut self,
        name: &str,
        change: AgentChange,
        by: &str,
    ) -> Result<Outcome, DbError> {
        let setup = Arc::clone(&self.board.setup);
        let agent = match setup.find_agent(name) {
            Ok(agent) => agent,
            Err(refused) => return Ok(Err(refused)),
        };
        let name = agent.name.as_str();
        let message = match change {
            AgentChange::Enable | AgentChange::Disable => {
                let enabled = change == AgentChange::Enable;
                let was_disabled = self.board.disabled.contains(name);
                self.tx.set_agent_enabled(name, enabled)?;
                match enabled {
                    true => self.board.disabled.remove(name),
                    false => self.board.disabled.insert(name.to_owned()),
                };
                for schedule in &agent.schedules {
                    let key =
                        ScheduleKey { agent: name.to_owned(), schedule: schedule.name.clone() };
                    self.replan(&key, schedule, !was_disabled)?;
                }
                let how = if enabled { "enabled" } else { "disabled: its jobs that run go on" };
                format!("{name} is {how}")
            }
            AgentChange::Reset => {
                if let Some(mut state) = self.tx.agent(name)?
                    && state.status == AgentStatus::Error
                {
                    state.status = AgentStatus::Idle;
                    state.error_message = None;
                    self.tx.put_agent(name, &state)?;
                }
                format!("{name} has no error on record")
            }
        };
        tracing::info!(agent = name, by, message, "changed");
        Ok(Ok(Some(Answer::Done { message })))
    }
}

/// Returns what was asked for in a job, to be asked for again.
pub(super) fn once_more(job: &Job) -> Result<Wanted, Refused> {
    if let Some(run) = job.workflow_run_id.as_ref().filter(|_| job.seq.is_some()) {
        let message = format!("job {} is a part of {run}, which tries it again", job.head.id);
        let refused = Refused::new(RefusedKind::NotAllowed, message);
        return Err(refused.hint(format!("heeler workflow retry {run}")));
    }
    let agent = job.head.agent.parse();
    let agent = agent.map_err(|_| {
        let message = format!("`{}` is no agent of this fleet", job.head.agent);
        Refused::new(RefusedKind::NotFound, message)
    })?;
    Ok(Wanted {
        prompt: job.prompt.clone(),
        schedule: job.head.schedule.clone(),
        ..Wanted::of(agent)
    })
}

pub(super) fn no_job(id: &JobId) -> Refused {
    Refused::new(RefusedKind::NotFound, format!("there is no job {id}")).hint("heeler jobs")
}

/// Finds a schedule of an agent.
pub(super) fn find_schedule<'s>(
    setup: &'s Setup,
    agent: &str,
    schedule: &str,
) -> Result<(&'s Agent, &'s Schedule), Refused> {
    let agent = setup.find_agent(agent)?;
    let found = agent.schedules.iter().find(|it| it.name == schedule);
    found.map(|schedule| (agent, schedule)).ok_or_else(|| {
        let names: Vec<&str> = agent.schedules.iter().map(|it| it.name.as_str()).collect();
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let message = format!("{} has no schedule `{schedule}`; it has {known}", agent.name);
        Refused::new(RefusedKind::NotFound, message)
    })
}

/// Reads when a schedule is to start instead.
fn check_rule(text: &str, schedule: &Schedule) -> Result<String, Refused> {
    let text = text.trim();
    let usage = |message: String| {
        Refused::new(RefusedKind::Usage, message)
            .hint("an interval such as `30m`, or a cron expression such as `0 9 * * mon-fri`")
    };
    if !matches!(schedule.trigger, Trigger::Every(_) | Trigger::Cron { .. }) {
        return Err(usage(format!("`{}` is not started by time", schedule.name)));
    }
    match read_rule(text, &schedule.trigger) {
        Some(Trigger::Every(period)) if too_short(period) => {
            Err(usage(format!("`{text}` is too short; the shortest interval is 1s")))
        }
        Some(_) => Ok(text.to_owned()),
        None => Err(usage(format!("`{text}` is neither an interval nor a cron expression"))),
    }
}

fn too_short(period: Period) -> bool {
    period.get() < INTERVAL_MIN
}
