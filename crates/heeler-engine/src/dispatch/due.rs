//! Schedules: which there are, and what becomes of those that are due.
//!
//! Every due time becomes an occurrence with its job, or part of a skip with its reason, in the same
//! transaction as the schedule's mark (promise P3). Start at [`Turn::fire`].

use std::collections::HashMap;
use std::sync::Arc;

use camino::Utf8PathBuf;
use heeler_model::calendar::{Calendar, ScheduleKey};
use heeler_model::config::{Agent, CronExpr, Period, Schedule, Trigger, WorkflowStart};
use heeler_model::ledger::Quote;
use heeler_model::timetable::{Mark, Skip, SkipReason, Start, Timetable, Verdict};
use heeler_model::{
    AgentState, JobId, ScheduleState, ScheduleStatus, TriggerType, Wanted, iso_millis,
};
use heeler_store::{DbError, ScheduleMark};
use jiff::Timestamp;

use super::Deed;
use super::board::{Asked, Stage};
use super::turn::{Turn, insert_job};
use crate::setup::Setup;
use crate::workflows::{WorkflowMode, WorkflowWanted};

impl Turn<'_, '_> {
    /// Does what was decided about a schedule that is due.
    pub(super) fn fire(&mut self, key: &ScheduleKey, verdict: &Verdict) -> Result<(), DbError> {
        let setup = Arc::clone(&self.board.setup);
        let found =
            setup.agent(&key.agent).and_then(|agent| Some((agent, schedule_of(agent, key)?)));
        let Some((agent, schedule)) = found else {
            self.board.calendar.remove(key);
            return Ok(());
        };
        if let Some(mark) = verdict.set_back_from {
            tracing::warn!(schedule = %key, mark = iso_millis(mark), "the clock was set back");
        }
        // Skips look for what started between them, so they come last.
        for start in &verdict.starts {
            self.start_due(key, agent, schedule, *start)?;
        }
        for skip in &verdict.skips {
            self.skip(key, skip)?;
        }
        let by_hand = self.overridden(key, schedule);
        let rule = rule_text(by_hand.as_ref().unwrap_or(&schedule.trigger));
        self.set_mark(key, verdict.mark, &rule)?;
        self.board.calendar.accept(key, verdict.mark, self.now);
        self.show_schedule(key)
    }

    pub(super) fn skip(&mut self, key: &ScheduleKey, skip: &Skip) -> Result<(), DbError> {
        // Told once for all that follow each other: there may be one each second.
        match self.tx.add_skip(&key.agent, &key.schedule, skip, self.now)? {
            true => {
                tracing::info!(schedule = %key, reason = %skip.reason, count = skip.count, "skipped");
            }
            false => tracing::debug!(schedule = %key, reason = %skip.reason, "skipped too"),
        }
        Ok(())
    }

    fn start_due(
        &mut self,
        key: &ScheduleKey,
        agent: &Agent,
        schedule: &Schedule,
        start: Start,
    ) -> Result<(), DbError> {
        if let Some(workflow) = &schedule.workflow {
            return self.start_due_workflow(key, workflow, start);
        }
        let refused = match self.board.quote(agent) {
            Quote::SpentToday { .. } | Quote::SpentInAll { .. } => Some(SkipReason::Budget),
            _ if self.board.queue_len() >= self.queue_max() => Some(SkipReason::QueueFull),
            _ => None,
        };
        if let Some(reason) = refused {
            let skip = Skip { first: start.due, last: start.due, count: 1, reason };
            return self.skip(key, &skip);
        }
        let wanted = Wanted {
            schedule: Some(schedule.name.clone()),
            trigger: TriggerType::Schedule,
            ..Wanted::of(agent.name.clone())
        };
        let job = self.tx.new_job_id(self.now)?;
        // A clock that was set back brings due times again that are on record.
        if !self.tx.add_occurrence(&key.agent, &key.schedule, start.due, &job)? {
            return Ok(());
        }
        self.queue_up(&job, agent, &wanted)?;
        tracing::info!(schedule = %key, due = iso_millis(start.due), %job, "due");
        Ok(())
    }

    /// Starts the workflow of a schedule that is due.
    fn start_due_workflow(
        &mut self,
        key: &ScheduleKey,
        start: &WorkflowStart,
        due: Start,
    ) -> Result<(), DbError> {
        // A clock that was set back brings due times again that are on record.
        if self.tx.has_occurrence(&key.agent, &key.schedule, due.due)? {
            return Ok(());
        }
        let begun = self.begin_workflow(of_schedule(key, start), "its schedule")?;
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
        self.skip(key, &Skip { first: due.due, last: due.due, count: 1, reason })
    }

    /// Puts a job of a trigger that nobody waits for into the queue.
    pub(super) fn queue_up(
        &mut self,
        job: &JobId,
        agent: &Agent,
        wanted: &Wanted,
    ) -> Result<(), DbError> {
        let redacted = self.board.setup.redacted(agent, wanted);
        insert_job(self.tx, job, wanted, &redacted, self.now)?;
        let row = self.row(job, agent, wanted, &redacted, "", None);
        self.tx.enqueue(&row)?;
        self.board.ask(Asked { row, wanted: wanted.clone(), stage: Stage::Waiting });
        Ok(())
    }

    /// Files changed: a schedule fires that time does not start.
    pub(super) fn fired(
        &mut self,
        wanted: &Wanted,
        changed: &[Utf8PathBuf],
    ) -> Result<(), DbError> {
        let setup = Arc::clone(&self.board.setup);
        let Some(agent) = setup.agent(wanted.agent.as_str()) else { return Ok(()) };
        let Some(name) = &wanted.schedule else { return Ok(()) };
        let key = ScheduleKey { agent: agent.name.to_string(), schedule: name.clone() };
        let Some(schedule) = schedule_of(agent, &key) else { return Ok(()) };
        if !self.board.is_enabled(&key, schedule) {
            return Ok(());
        }
        let reason = match self.board.quote(agent) {
            Quote::SpentToday { .. } | Quote::SpentInAll { .. } => Some(SkipReason::Budget),
            _ if self.board.queue_len() >= self.queue_max() => Some(SkipReason::QueueFull),
            // What waits already will see this change too.
            _ if self.board.is_busy(&key) => Some(SkipReason::Overlap),
            _ => None,
        };
        match reason {
            Some(reason) => {
                self.skip(&key, &Skip { first: self.now, last: self.now, count: 1, reason })
            }
            None => {
                let asked = schedule.prompt.as_deref().or(agent.default_prompt.as_deref());
                let wanted = Wanted { prompt: with_changes(asked, changed), ..wanted.clone() };
                let job = self.tx.new_job_id(self.now)?;
                self.queue_up(&job, agent, &wanted)?;
                tracing::info!(schedule = %key, %job, "fired");
                self.show_schedule(&key)
            }
        }
    }

    /// Takes over another config: running jobs are untouched, schedules are brought up to date.
    pub(super) fn take_setup(&mut self, setup: Arc<Setup>) -> Result<(), DbError> {
        self.deeds.push(Deed::TakeSetup(Arc::clone(&setup)));
        self.board.take_setup(setup);
        let is_gone =
            |asked: &&Asked| self.board.setup.agent(asked.wanted.agent.as_str()).is_none();
        let gone: Vec<JobId> =
            self.board.queue().filter(is_gone).map(|asked| asked.row.job.clone()).collect();
        for job in gone {
            self.give_up(&job, "its agent is not in the config any more")?;
        }
        self.bring_up_to_date()?;
        self.give_up_workflows()
    }

    /// Makes the record of agents and schedules that of the config, and the calendar with it.
    pub(super) fn bring_up_to_date(&mut self) -> Result<(), DbError> {
        let setup = Arc::clone(&self.board.setup);
        self.board.calendar = Calendar::default();
        let marks = self.tx.schedule_marks()?.into_iter();
        let mut marks: HashMap<(String, String), ScheduleMark> =
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
                // One that was taken out of the config and comes back begins anew.
                self.plan(&key, schedule, mark.filter(|_| before.is_some()).as_ref())?;
                self.show_changed(&key, before)?;
            }
            self.show_next(name)?;
        }
        for gone in known.keys().filter(|name| setup.agent(name).is_none()) {
            self.tx.remove_agent(gone)?;
        }
        Ok(())
    }

    /// Puts one schedule into the calendar, if time starts it and it may.
    pub(super) fn plan(
        &mut self,
        key: &ScheduleKey,
        schedule: &Schedule,
        known: Option<&ScheduleMark>,
    ) -> Result<(), DbError> {
        self.board.calendar.remove(key);
        if !self.keeps_schedules {
            return Ok(());
        }
        let mut schedule = schedule.clone();
        if let Some(trigger) = self.overridden(key, &schedule) {
            schedule.trigger = trigger;
        }
        let table = Timetable::of(&schedule, &key.to_string(), &self.board.setup.zone);
        let Some(table) = table else { return Ok(()) };
        let rule = rule_text(&schedule.trigger);
        let is_enabled = self.board.is_enabled(key, &schedule);
        let same = known.filter(|known| known.rule == rule).map(|known| known.mark);
        if let Some(mark) = same.filter(|_| !is_enabled)
            && let Some(skip) = table.leave(mark, self.now)
        {
            self.skip(key, &skip)?;
        }
        let mark = match (same, known, is_enabled) {
            (Some(mark), _, true) => mark,
            // Nothing is due while it is switched off.
            (Some(mark), _, false) => Mark { through: self.now.max(mark.through), ..mark },
            (None, None, true) => table.begin(self.now),
            // Other times than before: they begin now.
            (None, _, _) => Mark { anchor: self.now, through: self.now },
        };
        if known.is_none_or(|known| known.mark != mark || known.rule != rule) {
            self.set_mark(key, mark, &rule)?;
        }
        if is_enabled {
            self.board.calendar.put(key.clone(), table, mark, self.now);
        }
        Ok(())
    }

    fn set_mark(&mut self, key: &ScheduleKey, mark: Mark, rule: &str) -> Result<(), DbError> {
        let (agent, schedule, rule) = (key.agent.clone(), key.schedule.clone(), rule.to_owned());
        self.tx.set_schedule_mark(&ScheduleMark { agent, schedule, mark, rule })
    }

    fn overridden(&self, key: &ScheduleKey, schedule: &Schedule) -> Option<Trigger> {
        let text = self.board.overrides.get(key)?.text.as_deref()?;
        read_rule(text, &schedule.trigger)
    }

    /// Writes what is to be seen of a schedule and of when its agent starts next.
    pub(super) fn show_schedule(&mut self, key: &ScheduleKey) -> Result<(), DbError> {
        self.show_schedule_only(key)?;
        self.show_next(&key.agent)
    }

    fn show_schedule_only(&mut self, key: &ScheduleKey) -> Result<(), DbError> {
        let before = self.tx.schedule(&key.agent, &key.schedule)?;
        self.show_changed(key, before.as_ref())
    }

    fn show_changed(
        &mut self,
        key: &ScheduleKey,
        before: Option<&ScheduleState>,
    ) -> Result<(), DbError> {
        let Some((_, schedule)) = self.board.schedule(key) else { return Ok(()) };
        let is_enabled = self.board.is_enabled(key, schedule);
        let is_running =
            self.board.live.values().any(|live| {
                live.agent == key.agent && live.schedule.as_deref() == Some(&key.schedule)
            });
        let next = self.board.calendar.next(key).map(|(due, _)| due);
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

    fn show_next(&mut self, name: &str) -> Result<(), DbError> {
        let Some(agent) = self.board.setup.agent(name) else { return Ok(()) };
        let next = agent.schedules.iter().filter_map(|schedule| {
            let key = ScheduleKey { agent: name.to_owned(), schedule: schedule.name.clone() };
            self.board.calendar.next(&key).map(|(due, _)| (due, key.schedule))
        });
        let (at, schedule) = next.min().map_or((None, None), |(at, name)| (Some(at), Some(name)));
        self.tx.set_agent_next(name, schedule.as_deref(), at)
    }

    /// Writes what is to be seen of the schedule that a job is of.
    pub(super) fn show_schedule_of(&mut self, job: &JobId) -> Result<(), DbError> {
        let Some(asked) = self.board.asked.get(job) else { return Ok(()) };
        let Some(schedule) = asked.wanted.schedule.clone() else { return Ok(()) };
        let agent = asked.wanted.agent.to_string();
        self.show_schedule(&ScheduleKey { agent, schedule })
    }
}

/// Tells an agent which files changed, after what it is asked.
fn with_changes(asked: Option<&str>, changed: &[Utf8PathBuf]) -> Option<String> {
    if changed.is_empty() {
        return asked.map(str::to_owned);
    }
    let files: Vec<String> = changed.iter().map(|path| format!("- {path}")).collect();
    let asked = asked.map(|asked| format!("{asked}\n\n")).unwrap_or_default();
    Some(format!("{asked}These files have changed:\n{}", files.join("\n")))
}

/// Returns what a schedule wants that starts a workflow.
pub(super) fn of_schedule(key: &ScheduleKey, start: &WorkflowStart) -> WorkflowWanted {
    WorkflowWanted {
        workflow: start.workflow.to_string(),
        inputs: start.inputs.clone(),
        trigger_id: Some(trigger_id(key)),
        trigger: TriggerType::Cron,
        mode: WorkflowMode::Real,
    }
}

/// Returns what runs of a schedule's workflow are about.
pub(super) fn trigger_id(key: &ScheduleKey) -> String {
    format!("schedule:{key}")
}

fn schedule_of<'a>(agent: &'a Agent, key: &ScheduleKey) -> Option<&'a Schedule> {
    agent.schedules.iter().find(|schedule| schedule.name == key.schedule)
}

/// Writes down what starts a schedule, to notice that it has become something else.
pub fn rule_text(trigger: &Trigger) -> String {
    match trigger {
        Trigger::Every(period) => format!("every {period}"),
        Trigger::Cron { expr, zone: Some(zone) } => {
            format!("cron {} in {}", expr.as_str(), zone.name())
        }
        Trigger::Cron { expr, zone: None } => format!("cron {}", expr.as_str()),
        Trigger::Watch { .. } => "watch".to_owned(),
        Trigger::Webhook(_) => "webhook".to_owned(),
        Trigger::Chat => "chat".to_owned(),
    }
}

/// Reads an interval or a cron expression; the zone stays as it is.
pub fn read_rule(text: &str, now: &Trigger) -> Option<Trigger> {
    if let Ok(period) = text.parse::<Period>() {
        return Some(Trigger::Every(period));
    }
    let zone = match now {
        Trigger::Cron { zone, .. } => zone.clone(),
        _ => None,
    };
    text.parse::<CronExpr>().ok().map(|expr| Trigger::Cron { expr, zone })
}

/// Says when a schedule that is switched on by hand begins.
pub(super) fn from_now(mark: &ScheduleMark, now: Timestamp) -> ScheduleMark {
    let through = mark.mark.through.max(now);
    ScheduleMark { mark: Mark { through, ..mark.mark }, ..mark.clone() }
}
