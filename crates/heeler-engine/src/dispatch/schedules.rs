//! Schedules: synchronization with the config, and handling of due times.
//!
//! Every due time becomes an occurrence with its job, or part of a skip with its reason, in the
//! same transaction that advances the schedule's cursor (promise P3). Start at
//! [`DispatchTransaction::fire_due_schedule`].

use std::collections::HashMap;
use std::sync::Arc;

use camino::Utf8PathBuf;
use heeler_config::{AgentConfig, ScheduleConfig, ScheduleTrigger, ScheduledWorkflow};
use heeler_model::calendar::{ScheduleCalendar, ScheduleKey};
use heeler_model::fleet::{FleetEvent, NewJob};
use heeler_model::schedule_rule::{parse_rule, rule_text};
use heeler_model::timetable::{
    DueTimeCursor, DueTimeDecision, DueTimeSkip, ScheduleTimetable, SkipReason,
};
use heeler_model::{
    AgentState, JobId, JobRequest, ScheduleState, ScheduleStatus, TriggerType, iso_millis,
};
use heeler_store::{DatabaseError, ScheduleProgressRecord};
use jiff::Timestamp;

use super::dispatcher_state::fleet_rules;
use super::event::DispatchEffect;
use super::transaction::{DispatchTransaction, insert_job};
use crate::dispatch_failure::DispatchFailure;
use crate::setup::DaemonSetup;
use crate::workflows::{WorkflowMode, WorkflowRunRequest};

impl DispatchTransaction<'_, '_> {
    /// Executes the decision about a schedule that is due.
    pub(super) fn fire_due_schedule(
        &mut self,
        key: &ScheduleKey,
        verdict: &DueTimeDecision,
    ) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        let agent = setup.agent(&key.agent);
        if agent.and_then(|agent| find_agent_schedule(agent, key)).is_none() {
            self.state.fleet.calendar_mut().remove(key);
            return Ok(());
        }
        if let Some(mark) = verdict.clock_set_back_from {
            tracing::warn!(schedule = %key, mark = iso_millis(mark), "the clock was set back");
        }
        // After the clock was set back, due times occur again that are already recorded.
        let mut decision = verdict.clone();
        let mut new_jobs = Vec::new();
        decision.starts.clear();
        for start in &verdict.starts {
            if !self.tx.has_occurrence(&key.agent, &key.schedule, start.due)? {
                decision.starts.push(*start);
                new_jobs.push(self.tx.new_job_id(self.now)?);
            }
        }
        self.step(FleetEvent::ScheduleDue { key, decision: &decision, new_jobs })?;
        self.write_schedule_state(key)
    }

    /// Records the progress of a schedule.
    pub(super) fn record_cursor(
        &mut self,
        key: &ScheduleKey,
        cursor: DueTimeCursor,
    ) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        let agent = setup.agent(&key.agent);
        let Some(schedule) = agent.and_then(|agent| find_agent_schedule(agent, key)) else {
            return Ok(());
        };
        // The cursor is stored with the rule that is in force, because another rule makes it
        // invalid.
        let by_hand = self.overridden_trigger(key, schedule);
        let rule = rule_text(by_hand.as_ref().unwrap_or(&schedule.trigger));
        self.set_mark(key, cursor, &rule)
    }

    pub(super) fn record_skip(
        &mut self,
        key: &ScheduleKey,
        skip: &DueTimeSkip,
    ) -> Result<(), DatabaseError> {
        // Log only the first of consecutive skips: there may be one each second.
        match self.tx.add_skip(&key.agent, &key.schedule, skip, self.now)? {
            true => {
                tracing::info!(schedule = %key, reason = %skip.reason, count = skip.count, "skipped");
            }
            false => tracing::debug!(schedule = %key, reason = %skip.reason, "skipped too"),
        }
        Ok(())
    }

    /// Starts the workflow of a schedule that is due.
    pub(super) fn start_due_workflow(
        &mut self,
        key: &ScheduleKey,
        due: Timestamp,
    ) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        let agent = setup.agent(&key.agent);
        let schedule = agent.and_then(|agent| find_agent_schedule(agent, key));
        if schedule.is_some_and(|schedule| schedule.work_source.is_some()) {
            return self.start_work_search(key, due);
        }
        let Some(workflow) = schedule.and_then(|schedule| schedule.workflow.as_ref()) else {
            return Ok(());
        };
        if workflow.fan_out.is_some() {
            return self.start_fan_out(key, due);
        }
        let request = workflow_request_of_schedule(key, workflow);
        let reason = match self.start_workflow_run(request, "its schedule") {
            Ok(begun) if begun.is_new => {
                tracing::info!(schedule = %key, due = iso_millis(due), run = %begun.run, "due");
                return self
                    .tx
                    .add_occurrence(&key.agent, &key.schedule, due, &begun.run)
                    .map(|_| ());
            }
            // A run for the same trigger is active, which counts as an overlap.
            Ok(_) => SkipReason::Overlap,
            Err(DispatchFailure::Database(error)) => return Err(error),
            Err(DispatchFailure::Refused(refused)) => {
                tracing::warn!(schedule = %key, why = refused.message, "a workflow did not start");
                SkipReason::Disabled
            }
        };
        self.record_skip(key, &DueTimeSkip { first: due, last: due, count: 1, reason })
    }

    /// Queues a job with a trigger that expects no reply.
    pub(super) fn enqueue_job(
        &mut self,
        job: &JobId,
        agent: &AgentConfig,
        wanted: &JobRequest,
    ) -> Result<(), DatabaseError> {
        // The row and the queue entry get the redacted request; memory keeps the original.
        let redacted = self.state.setup.redact_for_agent(agent, wanted);
        insert_job(self.tx, job, wanted, &redacted, self.now)?;
        self.submit_job(job, wanted.clone(), &redacted, None)
    }

    /// Queues a job that has a row.
    pub(super) fn submit_job(
        &mut self,
        job: &JobId,
        request: JobRequest,
        redacted: &JobRequest,
        not_before: Option<Timestamp>,
    ) -> Result<(), DatabaseError> {
        let request_json = serde_json::to_string(redacted).expect("a request is JSON");
        let new = Box::new(NewJob { request, request_json });
        self.step(FleetEvent::JobSubmitted { job: job.clone(), new, not_before }).map(drop)
    }

    /// Fires a `watch` schedule after files changed.
    pub(super) fn fire_watch_schedule(
        &mut self,
        wanted: &JobRequest,
        changed: &[Utf8PathBuf],
    ) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        let Some(agent) = setup.agent(wanted.agent.as_str()) else { return Ok(()) };
        let Some(name) = &wanted.schedule else { return Ok(()) };
        let key = ScheduleKey { agent: agent.name.to_string(), schedule: name.clone() };
        let Some(schedule) = find_agent_schedule(agent, &key) else { return Ok(()) };
        if !self.state.fleet.is_schedule_enabled(&key) {
            return Ok(());
        }
        // The queued job will see this change too.
        let overlap = || self.state.fleet.is_schedule_busy(&key).then_some(SkipReason::Overlap);
        let reason = self.state.fleet.due_skip_reason(&key.agent).or_else(overlap);
        match reason {
            Some(reason) => self.record_skip(
                &key,
                &DueTimeSkip { first: self.now, last: self.now, count: 1, reason },
            ),
            None => {
                let asked = schedule.prompt.as_deref().or(agent.default_prompt.as_deref());
                let wanted =
                    JobRequest { prompt: prompt_with_changes(asked, changed), ..wanted.clone() };
                let job = self.tx.new_job_id(self.now)?;
                self.enqueue_job(&job, agent, &wanted)?;
                tracing::info!(schedule = %key, %job, "fired");
                self.write_schedule_state(&key)
            }
        }
    }

    /// Applies a new config: running jobs stay untouched, schedules are updated.
    pub(super) fn apply_setup(&mut self, setup: Arc<DaemonSetup>) -> Result<(), DatabaseError> {
        self.effects.push(DispatchEffect::ReplaceSetup(Arc::clone(&setup)));
        let rules = Arc::new(fleet_rules(&setup));
        self.state.replace_setup(setup);
        self.step(FleetEvent::RulesReplaced(rules))?;
        self.sync_schedules()?;
        self.finish_recorded_ends()?;
        self.fail_broken_workflow_runs()
    }

    /// Updates agents, schedules and the calendar to match the config.
    pub(super) fn sync_schedules(&mut self) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        // The calendar is rebuilt from the recorded progress, so a reload loses no due time.
        *self.state.fleet.calendar_mut() = ScheduleCalendar::default();
        let marks = self.tx.schedule_progress()?.into_iter();
        let mut marks: HashMap<(String, String), ScheduleProgressRecord> =
            marks.map(|mark| ((mark.agent.clone(), mark.schedule.clone()), mark)).collect();
        let known = self.tx.agents()?;
        for agent in &setup.loaded.agents {
            let name = agent.name.as_str();
            let state = known.get(name);
            if state.is_none() {
                self.tx.put_agent(name, &AgentState::default())?;
            }
            let had = state.iter().flat_map(|state| state.schedules.keys());
            for gone in had.filter(|had| !agent.schedules.iter().any(|it| it.name == **had)) {
                self.tx.remove_schedule(name, gone)?;
            }
            for schedule in &agent.schedules {
                let key = ScheduleKey { agent: name.to_owned(), schedule: schedule.name.clone() };
                let before = state.and_then(|state| state.schedules.get(&schedule.name));
                let mark = marks.remove(&(name.to_owned(), schedule.name.clone()));
                // A schedule that was removed from the config and added again starts fresh.
                self.plan_schedule(&key, schedule, mark.filter(|_| before.is_some()).as_ref())?;
                self.write_changed_schedule_state(&key, before)?;
            }
            self.write_next_start(name)?;
        }
        // Removed agents keep a marked row; otherwise their key in `state.yaml` would look foreign.
        for gone in known.keys().filter(|name| setup.agent(name).is_none()) {
            self.tx.remove_agent(gone)?;
        }
        Ok(())
    }

    /// Puts a schedule into the calendar if it is enabled and fires by time.
    pub(super) fn plan_schedule(
        &mut self,
        key: &ScheduleKey,
        schedule: &ScheduleConfig,
        known: Option<&ScheduleProgressRecord>,
    ) -> Result<(), DatabaseError> {
        self.state.fleet.calendar_mut().remove(key);
        // A daemon without schedules must not advance their progress.
        if !self.runs_schedules {
            return Ok(());
        }
        let mut schedule = schedule.clone();
        if let Some(trigger) = self.overridden_trigger(key, &schedule) {
            schedule.trigger = trigger;
        }
        let table =
            ScheduleTimetable::for_schedule(&schedule, &key.to_string(), &self.state.setup.zone);
        let Some(table) = table else { return Ok(()) };
        let rule = rule_text(&schedule.trigger);
        let is_enabled = self.state.fleet.is_schedule_enabled(key);
        // Progress of another rule says nothing about this rule's due times.
        let same = known.filter(|known| known.trigger_text == rule).map(|known| known.progress);
        if let Some(mark) = same.filter(|_| !is_enabled)
            && let Some(skip) = table.skip_disabled(mark, self.now)
        {
            self.record_skip(key, &skip)?;
        }
        let mark = match (same, known, is_enabled) {
            (Some(mark), _, true) => mark,
            // A disabled schedule has no due times.
            (Some(mark), _, false) => DueTimeCursor { through: self.now.max(mark.through), ..mark },
            (None, None, true) => table.initial_cursor(self.now),
            // The rule has changed: due times count from now.
            (None, _, _) => DueTimeCursor { anchor: self.now, through: self.now },
        };
        // Unchanged progress is not written: a start with thousands of schedules would be slow.
        if known.is_none_or(|known| known.progress != mark || known.trigger_text != rule) {
            self.set_mark(key, mark, &rule)?;
        }
        if is_enabled {
            self.state.fleet.calendar_mut().insert(key.clone(), table, mark, self.now);
        }
        Ok(())
    }

    fn set_mark(
        &mut self,
        key: &ScheduleKey,
        mark: DueTimeCursor,
        rule: &str,
    ) -> Result<(), DatabaseError> {
        let (agent, schedule, rule) = (key.agent.clone(), key.schedule.clone(), rule.to_owned());
        self.tx.set_schedule_progress(&ScheduleProgressRecord {
            agent,
            schedule,
            progress: mark,
            trigger_text: rule,
        })
    }

    fn overridden_trigger(
        &self,
        key: &ScheduleKey,
        schedule: &ScheduleConfig,
    ) -> Option<ScheduleTrigger> {
        let text = self.state.overrides.get(key)?.text.as_deref()?;
        parse_rule(text, &schedule.trigger)
    }

    /// Writes the displayed state of a schedule, and its agent's next start.
    pub(super) fn write_schedule_state(&mut self, key: &ScheduleKey) -> Result<(), DatabaseError> {
        self.write_schedule_state_only(key)?;
        self.write_next_start(&key.agent)
    }

    fn write_schedule_state_only(&mut self, key: &ScheduleKey) -> Result<(), DatabaseError> {
        let before = self.tx.schedule(&key.agent, &key.schedule)?;
        self.write_changed_schedule_state(key, before.as_ref())
    }

    fn write_changed_schedule_state(
        &mut self,
        key: &ScheduleKey,
        before: Option<&ScheduleState>,
    ) -> Result<(), DatabaseError> {
        // A schedule that was just removed must not get a row again.
        if self.state.schedule(key).is_none() {
            return Ok(());
        }
        let is_enabled = self.state.fleet.is_schedule_enabled(key);
        let is_running =
            self.state.fleet.runs().values().any(|live| {
                live.agent == key.agent && live.schedule.as_deref() == Some(&key.schedule)
            });
        let next = self.state.fleet.calendar().next_due(key).map(|(due, _)| due);
        let state = ScheduleState {
            status: match (is_running, is_enabled) {
                (true, _) => ScheduleStatus::Running,
                (false, true) => ScheduleStatus::Idle,
                (false, false) => ScheduleStatus::Disabled,
            },
            next_run_at: next.filter(|_| !is_running),
            ..before.cloned().unwrap_or_default()
        };
        // A write would mark the view as changed and publish it again.
        match before == Some(&state) {
            true => Ok(()),
            false => self.tx.put_schedule(&key.agent, &key.schedule, &state),
        }
    }

    fn write_next_start(&mut self, name: &str) -> Result<(), DatabaseError> {
        let Some(agent) = self.state.setup.agent(name) else { return Ok(()) };
        let next = agent.schedules.iter().filter_map(|schedule| {
            let key = ScheduleKey { agent: name.to_owned(), schedule: schedule.name.clone() };
            self.state.fleet.calendar().next_due(&key).map(|(due, _)| (due, key.schedule))
        });
        let (at, schedule) = next.min().map_or((None, None), |(at, name)| (Some(at), Some(name)));
        self.tx.set_agent_next_schedule(name, schedule.as_deref(), at)
    }

    /// Writes the displayed state of a job's schedule.
    pub(super) fn write_schedule_state_of_job(&mut self, job: &JobId) -> Result<(), DatabaseError> {
        let Some(asked) = self.state.fleet.job(job) else { return Ok(()) };
        let Some(schedule) = asked.request.schedule.clone() else { return Ok(()) };
        let agent = asked.request.agent.to_string();
        self.write_schedule_state(&ScheduleKey { agent, schedule })
    }
}

/// Appends the list of changed files to the prompt.
fn prompt_with_changes(asked: Option<&str>, changed: &[Utf8PathBuf]) -> Option<String> {
    if changed.is_empty() {
        return asked.map(str::to_owned);
    }
    let files: Vec<String> = changed.iter().map(|path| format!("- {path}")).collect();
    let asked = asked.map(|asked| format!("{asked}\n\n")).unwrap_or_default();
    Some(format!("{asked}These files have changed:\n{}", files.join("\n")))
}

/// Returns the request of a schedule that starts a workflow.
pub(super) fn workflow_request_of_schedule(
    key: &ScheduleKey,
    start: &ScheduledWorkflow,
) -> WorkflowRunRequest {
    WorkflowRunRequest {
        workflow: start.workflow.to_string(),
        inputs: start.inputs.clone(),
        trigger_id: Some(key.workflow_trigger_id()),
        trigger: TriggerType::Cron,
        mode: WorkflowMode::Real,
        subject: None,
    }
}

fn find_agent_schedule<'a>(
    agent: &'a AgentConfig,
    key: &ScheduleKey,
) -> Option<&'a ScheduleConfig> {
    agent.schedules.iter().find(|schedule| schedule.name == key.schedule)
}

/// Returns progress that starts no earlier than now, for a schedule that a person enabled.
pub(super) fn mark_from_now(
    mark: &ScheduleProgressRecord,
    now: Timestamp,
) -> ScheduleProgressRecord {
    let through = mark.progress.through.max(now);
    ScheduleProgressRecord { progress: DueTimeCursor { through, ..mark.progress }, ..mark.clone() }
}
