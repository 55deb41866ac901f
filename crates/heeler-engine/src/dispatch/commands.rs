//! Commands that change existing jobs, schedules and agents: cancel, resume, retry, enable,
//! disable, reset.
//!
//! Start at [`DispatchTransaction::apply_command`].

use std::sync::Arc;

use heeler_config::{
    AgentConfig, ConfigDuration, INTERVAL_MIN, RuntimeConfig, ScheduleConfig, ScheduleTrigger,
};
use heeler_model::calendar::ScheduleKey;
use heeler_model::fleet::{CancelRequest, FleetEvent};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{AgentStatus, Job, JobId, JobRequest, JobStatus, JobTransition};
use heeler_store::{CronOverride, DatabaseError, ScheduleOverrideRecord};

use super::schedules::mark_from_now;
use super::transaction::DispatchTransaction;
use crate::cancel;
use crate::command::{
    AgentChange, CommandReply, DaemonCommand, DaemonCommandError, DaemonCommandErrorKind,
    ScheduleChange,
};
use crate::dispatch_failure::DispatchFailure;
use crate::setup::DaemonSetup;
use heeler_model::schedule_rule::parse_rule;
use heeler_store::cron_name;

/// Default prompt of a job that a person resumes.
pub const RESUME_PROMPT: &str = "You were stopped before you had finished. Look at what is done already, then \
    go on with your task.";

impl DispatchTransaction<'_, '_> {
    pub(super) fn apply_command(
        &mut self,
        command: DaemonCommand,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        match command {
            DaemonCommand::Cancel { job, now, by } => self.cancel_job(&job, now, &by),
            DaemonCommand::Resume { job, prompt, by } => self.resume_job(&job, prompt, &by),
            DaemonCommand::Schedule { agent, schedule, change, by } => {
                self.change_schedule(&agent, &schedule, &change, &by)
            }
            DaemonCommand::Webhook(call) => self.handle_webhook(&call),
            DaemonCommand::Agent { agent, change, by } => self.change_agent(&agent, change, &by),
            DaemonCommand::Workflow { order, by } => self.apply_workflow_operation(order, &by),
            DaemonCommand::Approval { approval, answer, by } => {
                self.answer_question(&approval, &answer, &by)
            }
            DaemonCommand::Access { order, by } => self.apply_access_operation(order, &by),
            DaemonCommand::Browser { order, by } => self.apply_browser_operation(order, &by),
            DaemonCommand::DrainHost { host, change, by } => self.drain_host(&host, change, &by),
            DaemonCommand::GiveUpHost { host, by } => self.give_up_host(&host, &by),
            DaemonCommand::SetJobCost { job, micros, by } => self.set_job_cost(&job, micros, &by),
            DaemonCommand::Rename { item, title, by } => self.rename(&item, &title, &by),
            // The dispatcher handles these without a transaction.
            DaemonCommand::Trigger(_)
            | DaemonCommand::Retry { .. }
            | DaemonCommand::Session { .. }
            | DaemonCommand::Reload
            | DaemonCommand::AcceptConfig { .. }
            | DaemonCommand::Stop(_)
            | DaemonCommand::Say { .. }
            | DaemonCommand::Status => Ok(None),
        }
    }

    pub(super) fn cancel_job(
        &mut self,
        id: &JobId,
        now: bool,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let Some(job) = self.tx.job(id)? else { return Err(job_not_found(id).into()) };
        // A second cancel of a cancelled job succeeds, so that a client may repeat it.
        if job.head.status.is_final() && job.head.status != JobStatus::Cancelled {
            let message = format!("job {id} has ended already: {}", job.head.status);
            return Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, message).into());
        }
        let request = CancelRequest { now, by: by.to_owned() };
        // Only the last run of a job can be alive.
        let last = self.tx.runs_of_job(id)?.pop().filter(|_| job.head.status == JobStatus::Running);
        if let Some(run) = last {
            // The state machine may not know the run.
            cancel::record_request(self.tx, run.id, &request, self.now)?;
        }
        let is_pending = job.head.status == JobStatus::Pending;
        self.step(FleetEvent::CancelRequested { job: id, is_pending, request })?;
        // The step may have ended the job, so its status is read again.
        let status = self.tx.job(id)?.map_or(job.head.status, |job| job.head.status);
        Ok(Some(CommandReply::Job { job: id.clone(), status, waits: None }))
    }

    fn resume_job(
        &mut self,
        id: &JobId,
        prompt: Option<String>,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let Some(mut job) = self.tx.job(id)? else { return Err(job_not_found(id).into()) };
        if !job.head.status.is_final() {
            let message = format!("job {id} has not ended: {}", job.head.status);
            return Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, message).into());
        }
        if let Some(run) = job.workflow_run_id.as_ref().filter(|_| job.seq.is_some()) {
            let message = format!("job {id} is a part of {run}, and only that run can continue it");
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
            return Err(refused.with_hint(format!("heeler workflow retry {run}")).into());
        }
        let setup = Arc::clone(&self.state.setup);
        let agent = setup.find_agent(&job.head.agent)?;
        let again = format!("heeler jobs retry {id}");
        if job.head.status == JobStatus::Completed {
            let message = format!("job {id} has completed: there is nothing to resume");
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::Busy, message);
            let session = job.head.session_id.as_ref().map(|session| {
                format!(", or heeler trigger {} --session {session} -p '…'", agent.name)
            });
            return Err(refused
                .with_hint(format!("{again}{}", session.unwrap_or_default()))
                .into());
        }
        if matches!(agent.runtime, RuntimeConfig::Command(_)) {
            let message = format!("{} is a command, which has no session to resume", agent.name);
            return Err(DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message)
                .with_hint(again)
                .into());
        }
        let session = match &job.head.session_id {
            Some(session) => session.clone(),
            None => {
                let message = format!("job {id} has no session to resume: it never started");
                let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
                return Err(refused.with_hint(again).into());
            }
        };
        // Checked before the record changes: the job could not be prepared and would fail.
        if let Some(schedule) = &job.head.schedule
            && let Err(refused) = find_schedule(&setup, agent.name.as_str(), schedule)
        {
            let hint = format!("heeler trigger {} --session {session} -p '…'", agent.name);
            return Err(refused.with_hint(hint).into());
        }
        let wanted = JobRequest {
            prompt: Some(prompt.unwrap_or_else(|| RESUME_PROMPT.to_owned())),
            schedule: job.head.schedule.clone(),
            session: SessionChoice::Given { id: session },
            trigger: job.head.trigger_type.clone(),
            ..JobRequest::new(agent.name.clone())
        };
        tracing::info!(job = %id, by, "resumed");
        // The row becomes pending before the job is queued, because only pending jobs start.
        job.apply(JobTransition::Resume);
        self.tx.update_job(&job)?;
        let redacted = setup.redact_for_agent(agent, &wanted);
        self.submit_job(id, wanted.clone(), &redacted, None)?;
        let waits = self.state.fleet.blocking_reason(&wanted, self.now);
        let waits = waits.map(|reason| reason.to_string());
        Ok(Some(CommandReply::Job { job: id.clone(), status: JobStatus::Pending, waits }))
    }

    fn change_schedule(
        &mut self,
        agent: &str,
        schedule: &str,
        change: &ScheduleChange,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let setup = Arc::clone(&self.state.setup);
        let (agent, schedule) = find_schedule(&setup, agent, schedule)?;
        let key = ScheduleKey { agent: agent.name.to_string(), schedule: schedule.name.clone() };
        let known = self.state.overrides.get(&key);
        let text = known.and_then(|row| row.text.clone());
        // This is read before the change, to tell whether due times were missed while it was
        // disabled.
        let was_enabled = self.state.fleet.is_schedule_enabled(&key);
        let by_hand = known.map_or(schedule.enabled, |row| row.enabled);
        let (message, enabled, text) = match change {
            ScheduleChange::Enable => (format!("{key} is enabled"), true, text),
            ScheduleChange::Disable => (format!("{key} is disabled"), false, text),
            ScheduleChange::Set { text } => match check_rule(text, schedule) {
                Ok(text) => (format!("{key} now uses `{text}`"), by_hand, Some(text)),
                Err(refused) => return Err(refused.into()),
            },
            // Only a cron with several runs, or a work source, gets here: the dispatcher turns other
            // triggers into jobs.
            ScheduleChange::Trigger => {
                match schedule.work_source {
                    Some(_) => self.start_work_search(&key, self.now)?,
                    None => self.start_fan_out(&key, self.now)?,
                }
                tracing::info!(schedule = %key, by, "triggered");
                let message = format!("{key} is started; heeler schedule show lists its results");
                return Ok(Some(CommandReply::Done { message }));
            }
            ScheduleChange::Reset => {
                match schedule.is_cron_file() {
                    true => self.tx.remove_cron_override(cron_name(schedule))?,
                    false => self.tx.remove_schedule_override(&key.agent, &key.schedule)?,
                };
                self.state.overrides.remove(&key);
                self.step(FleetEvent::ScheduleSwitched { key: &key, is_enabled: None })?;
                // Only now does `is_schedule_enabled` reflect the change.
                self.replan_schedule(&key, schedule, was_enabled)?;
                let message = format!("{key} follows the config again");
                tracing::info!(schedule = %key, by, message, "changed");
                return Ok(Some(CommandReply::Done { message }));
            }
        };
        let row = ScheduleOverrideRecord {
            agent: key.agent.clone(),
            schedule: key.schedule.clone(),
            enabled,
            text,
            at: self.now,
            by: by.to_owned(),
        };
        match schedule.is_cron_file() {
            // Stored under the name that Last Light uses.
            true => self.tx.put_cron_override(&CronOverride {
                name: cron_name(schedule).to_owned(),
                enabled: row.enabled,
                schedule: row.text.clone(),
                at: row.at,
                by: row.by.clone(),
            })?,
            false => self.tx.put_schedule_override(&row)?,
        }
        self.state.overrides.insert(key.clone(), row);
        self.step(FleetEvent::ScheduleSwitched { key: &key, is_enabled: Some(enabled) })?;
        self.replan_schedule(&key, schedule, was_enabled)?;
        tracing::info!(schedule = %key, by, message, "changed");
        Ok(Some(CommandReply::Done { message }))
    }

    /// Puts a schedule into the calendar again after a person changed it.
    fn replan_schedule(
        &mut self,
        key: &ScheduleKey,
        schedule: &ScheduleConfig,
        was_enabled: bool,
    ) -> Result<(), DatabaseError> {
        // The stored progress is used, because a disabled schedule is not in the calendar.
        let marks = self.tx.schedule_progress()?;
        let mark = marks.iter().find(|row| row.agent == key.agent && row.schedule == key.schedule);
        // Due times during which the schedule was disabled are not caught up.
        let mark = mark.map(|mark| match was_enabled {
            true => mark.clone(),
            false => mark_from_now(mark, self.now),
        });
        self.plan_schedule(key, schedule, mark.as_ref())?;
        self.write_schedule_state(key)
    }

    fn change_agent(
        &mut self,
        name: &str,
        change: AgentChange,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let setup = Arc::clone(&self.state.setup);
        let agent = setup.find_agent(name)?;
        let name = agent.name.as_str();
        let message = match change {
            AgentChange::Enable | AgentChange::Disable => {
                let enabled = change == AgentChange::Enable;
                // All schedules of a disabled agent were disabled with it.
                let was_disabled = self.state.fleet.is_agent_disabled(name);
                self.tx.set_agent_enabled(name, enabled)?;
                self.step(FleetEvent::AgentSwitched { agent: name, is_enabled: enabled })?;
                for schedule in &agent.schedules {
                    let key =
                        ScheduleKey { agent: name.to_owned(), schedule: schedule.name.clone() };
                    self.replan_schedule(&key, schedule, !was_disabled)?;
                }
                let how = if enabled { "enabled" } else { "disabled; its running jobs continue" };
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
                format!("{name} has no recorded error")
            }
            AgentChange::ForgetHosts => match self.tx.remove_network_grants(name)? {
                0 => format!("{name} has no hosts that people allowed"),
                1 => format!("1 host that a person allowed {name} is forgotten"),
                count => format!("{count} hosts that people allowed {name} are forgotten"),
            },
            AgentChange::ForgetPermissions => match self.tx.remove_permission_rules(name)? {
                0 => format!("{name} has no permissions that people gave"),
                1 => format!("1 permission that a person gave {name} is forgotten"),
                count => format!("{count} permissions that people gave {name} are forgotten"),
            },
        };
        tracing::info!(agent = name, by, message, "changed");
        Ok(Some(CommandReply::Done { message }))
    }
}

/// Returns the request of a job, to create another job from it.
pub(super) fn retry_request(job: &Job) -> Result<JobRequest, DaemonCommandError> {
    if let Some(run) = job.workflow_run_id.as_ref().filter(|_| job.seq.is_some()) {
        let message =
            format!("job {} is a part of {run}, and only that run can retry it", job.head.id);
        let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
        return Err(refused.with_hint(format!("heeler workflow retry {run}")));
    }
    let agent = job.head.agent.parse();
    let agent = agent.map_err(|_| {
        let message = format!("`{}` is not an agent of this fleet", job.head.agent);
        DaemonCommandError::new(DaemonCommandErrorKind::NotFound, message)
    })?;
    // The session is not copied: a retry is a new job with the agent's usual session.
    Ok(JobRequest {
        prompt: job.prompt.clone(),
        schedule: job.head.schedule.clone(),
        ..JobRequest::new(agent)
    })
}

pub(super) fn job_not_found(id: &JobId) -> DaemonCommandError {
    DaemonCommandError::new(DaemonCommandErrorKind::NotFound, format!("there is no job {id}"))
        .with_hint("heeler jobs")
}

pub(super) fn find_schedule<'s>(
    setup: &'s DaemonSetup,
    agent: &str,
    schedule: &str,
) -> Result<(&'s AgentConfig, &'s ScheduleConfig), DaemonCommandError> {
    let agent = setup.find_agent(agent)?;
    let found = agent.schedules.iter().find(|it| it.name == schedule);
    found.map(|schedule| (agent, schedule)).ok_or_else(|| {
        let names: Vec<&str> = agent.schedules.iter().map(|it| it.name.as_str()).collect();
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let message = format!("{} has no schedule `{schedule}`; it has {known}", agent.name);
        DaemonCommandError::new(DaemonCommandErrorKind::NotFound, message)
    })
}

/// Parses the new rule of a schedule.
fn check_rule(text: &str, schedule: &ScheduleConfig) -> Result<String, DaemonCommandError> {
    let text = text.trim();
    let usage = |message: String| {
        DaemonCommandError::new(DaemonCommandErrorKind::Usage, message)
            .with_hint("an interval such as `30m`, or a cron expression such as `0 9 * * mon-fri`")
    };
    if !matches!(schedule.trigger, ScheduleTrigger::Interval(_) | ScheduleTrigger::Cron { .. }) {
        return Err(usage(format!("`{}` does not start by time", schedule.name)));
    }
    match parse_rule(text, &schedule.trigger) {
        Some(ScheduleTrigger::Interval(period)) if is_too_short(period) => {
            Err(usage(format!("`{text}` is too short; the shortest interval is 1s")))
        }
        Some(_) => Ok(text.to_owned()),
        None => Err(usage(format!("`{text}` is neither an interval nor a cron expression"))),
    }
}

fn is_too_short(period: ConfigDuration) -> bool {
    period.get() < INTERVAL_MIN
}
