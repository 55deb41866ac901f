//! Schedules: synchronization with the config, and handling of due times.
//!
//! Every due time becomes an occurrence with its job, or part of a skip with its reason, in the
//! same transaction that advances the schedule's cursor (promise P3). Start at
//! [`DispatchTransaction::fire_due_schedule`].

use std::collections::HashMap;
use std::sync::Arc;

use camino::Utf8PathBuf;
use heeler_model::budget_ledger::BudgetDecision;
use heeler_model::calendar::{ScheduleCalendar, ScheduleKey};
use heeler_model::config::{AgentConfig, ScheduleConfig, ScheduleTrigger, ScheduledWorkflow};
use heeler_model::schedule_rule::{parse_rule, rule_text};
use heeler_model::timetable::{
    DueTimeCursor, DueTimeDecision, DueTimeSkip, DueTimeStart, ScheduleTimetable, SkipReason,
};
use heeler_model::{
    AgentState, JobId, JobRequest, ScheduleState, ScheduleStatus, TriggerType, iso_millis,
};
use heeler_store::{DatabaseError, ScheduleProgressRecord};
use jiff::Timestamp;

use super::DispatchEffect;
use super::fleet_state::{JobStage, UnfinishedJob};
use super::transaction::{DispatchTransaction, insert_job};
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
        let found = setup
            .agent(&key.agent)
            .and_then(|agent| Some((agent, find_agent_schedule(agent, key)?)));
        let Some((agent, schedule)) = found else {
            self.state.calendar.remove(key);
            return Ok(());
        };
        if let Some(mark) = verdict.clock_set_back_from {
            tracing::warn!(schedule = %key, mark = iso_millis(mark), "the clock was set back");
        }
        // Adjacent skips are merged unless a start is between them, so starts are recorded first.
        for start in &verdict.starts {
            self.start_due_job(key, agent, schedule, *start)?;
        }
        for skip in &verdict.skips {
            self.record_skip(key, skip)?;
        }
        let by_hand = self.overridden_trigger(key, schedule);
        let rule = rule_text(by_hand.as_ref().unwrap_or(&schedule.trigger));
        self.set_mark(key, verdict.cursor, &rule)?;
        self.state.calendar.commit_cursor(key, verdict.cursor, self.now);
        self.write_schedule_state(key)
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

    fn start_due_job(
        &mut self,
        key: &ScheduleKey,
        agent: &AgentConfig,
        schedule: &ScheduleConfig,
        start: DueTimeStart,
    ) -> Result<(), DatabaseError> {
        if let Some(workflow) = &schedule.workflow {
            return self.start_due_workflow(key, workflow, start);
        }
        let refused = match self.state.quote(agent) {
            BudgetDecision::DayLimitReached { .. } | BudgetDecision::TotalLimitReached { .. } => {
                Some(SkipReason::Budget)
            }
            _ if self.state.queue_len() >= self.queue_max() => Some(SkipReason::QueueFull),
            _ => None,
        };
        if let Some(reason) = refused {
            let skip = DueTimeSkip { first: start.due, last: start.due, count: 1, reason };
            return self.record_skip(key, &skip);
        }
        let wanted = JobRequest {
            schedule: Some(schedule.name.clone()),
            trigger: TriggerType::Schedule,
            ..JobRequest::new(agent.name.clone())
        };
        let job = self.tx.new_job_id(self.now)?;
        // After the clock was set back, due times occur again that are already recorded.
        if !self.tx.add_occurrence(&key.agent, &key.schedule, start.due, &job)? {
            return Ok(());
        }
        self.enqueue_job(&job, agent, &wanted)?;
        tracing::info!(schedule = %key, due = iso_millis(start.due), %job, "due");
        Ok(())
    }

    /// Starts the workflow of a schedule that is due.
    fn start_due_workflow(
        &mut self,
        key: &ScheduleKey,
        start: &ScheduledWorkflow,
        due: DueTimeStart,
    ) -> Result<(), DatabaseError> {
        // After the clock was set back, due times occur again that are already recorded.
        if self.tx.has_occurrence(&key.agent, &key.schedule, due.due)? {
            return Ok(());
        }
        let begun =
            self.start_workflow_run(workflow_request_of_schedule(key, start), "its schedule")?;
        let reason = match begun {
            Ok(begun) if begun.is_new => {
                tracing::info!(schedule = %key, due = iso_millis(due.due), run = %begun.run, "due");
                let run = begun.run.as_str();
                let run = run.parse().expect("the id of a run is a plain word, as that of a job");
                return self
                    .tx
                    .add_occurrence(&key.agent, &key.schedule, due.due, &run)
                    .map(|_| ());
            }
            Ok(_) => SkipReason::Overlap,
            Err(refused) => {
                tracing::warn!(schedule = %key, why = refused.message, "a workflow did not start");
                SkipReason::Disabled
            }
        };
        self.record_skip(key, &DueTimeSkip { first: due.due, last: due.due, count: 1, reason })
    }

    /// Queues a job with a trigger that expects no reply.
    pub(super) fn enqueue_job(
        &mut self,
        job: &JobId,
        agent: &AgentConfig,
        wanted: &JobRequest,
    ) -> Result<(), DatabaseError> {
        let redacted = self.state.setup.redact_for_agent(agent, wanted);
        insert_job(self.tx, job, wanted, &redacted, self.now)?;
        let row = self.queue_row(job, agent, wanted, &redacted, "", None);
        self.tx.enqueue(&row)?;
        self.state.insert_job(UnfinishedJob {
            row,
            request: wanted.clone(),
            stage: JobStage::Waiting,
        });
        Ok(())
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
        if !self.state.is_schedule_enabled(&key, schedule) {
            return Ok(());
        }
        let reason = match self.state.quote(agent) {
            BudgetDecision::DayLimitReached { .. } | BudgetDecision::TotalLimitReached { .. } => {
                Some(SkipReason::Budget)
            }
            _ if self.state.queue_len() >= self.queue_max() => Some(SkipReason::QueueFull),
            // The queued job will see this change too.
            _ if self.state.is_schedule_busy(&key) => Some(SkipReason::Overlap),
            _ => None,
        };
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
        self.state.replace_setup(setup);
        let is_gone =
            |asked: &&UnfinishedJob| self.state.setup.agent(asked.request.agent.as_str()).is_none();
        let gone: Vec<JobId> =
            self.state.queue().filter(is_gone).map(|asked| asked.row.job.clone()).collect();
        for job in gone {
            self.fail_job(&job, "its agent is not in the config any more")?;
        }
        self.sync_schedules()?;
        self.fail_broken_workflow_runs()
    }

    /// Updates agents, schedules and the calendar to match the config.
    pub(super) fn sync_schedules(&mut self) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        self.state.calendar = ScheduleCalendar::default();
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
        self.state.calendar.remove(key);
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
        let is_enabled = self.state.is_schedule_enabled(key, &schedule);
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
        if known.is_none_or(|known| known.progress != mark || known.trigger_text != rule) {
            self.set_mark(key, mark, &rule)?;
        }
        if is_enabled {
            self.state.calendar.insert(key.clone(), table, mark, self.now);
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
        let Some((_, schedule)) = self.state.schedule(key) else { return Ok(()) };
        let is_enabled = self.state.is_schedule_enabled(key, schedule);
        let is_running =
            self.state.unfinished_runs.values().any(|live| {
                live.agent == key.agent && live.schedule.as_deref() == Some(&key.schedule)
            });
        let next = self.state.calendar.next_due(key).map(|(due, _)| due);
        let state = ScheduleState {
            status: match (is_running, is_enabled) {
                (true, _) => ScheduleStatus::Running,
                (false, true) => ScheduleStatus::Idle,
                (false, false) => ScheduleStatus::Disabled,
            },
            next_run_at: next.filter(|_| !is_running),
            ..before.cloned().unwrap_or_default()
        };
        match before == Some(&state) {
            true => Ok(()),
            false => self.tx.put_schedule(&key.agent, &key.schedule, &state),
        }
    }

    fn write_next_start(&mut self, name: &str) -> Result<(), DatabaseError> {
        let Some(agent) = self.state.setup.agent(name) else { return Ok(()) };
        let next = agent.schedules.iter().filter_map(|schedule| {
            let key = ScheduleKey { agent: name.to_owned(), schedule: schedule.name.clone() };
            self.state.calendar.next_due(&key).map(|(due, _)| (due, key.schedule))
        });
        let (at, schedule) = next.min().map_or((None, None), |(at, name)| (Some(at), Some(name)));
        self.tx.set_agent_next_schedule(name, schedule.as_deref(), at)
    }

    /// Writes the displayed state of a job's schedule.
    pub(super) fn write_schedule_state_of_job(&mut self, job: &JobId) -> Result<(), DatabaseError> {
        let Some(asked) = self.state.unfinished_jobs.get(job) else { return Ok(()) };
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
        trigger_id: Some(schedule_trigger_id(key)),
        trigger: TriggerType::Cron,
        mode: WorkflowMode::Real,
    }
}

/// Returns the trigger ID of a schedule's workflow runs.
pub(super) fn schedule_trigger_id(key: &ScheduleKey) -> String {
    format!("schedule:{key}")
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
