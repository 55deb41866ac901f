//! Crons that start several runs: one for each repository, or for each match of a search.
//!
//! A search is a recorded task. Its result and the runs that it starts are one commit. Start at
//! [`DispatchTransaction::start_fan_out`].

use std::collections::BTreeMap;
use std::sync::Arc;

use heeler_config::{CronFanOut, EventSubject, ScheduledWorkflow};
use heeler_github::{DiscoveredItem, GithubRepo};
use heeler_model::calendar::ScheduleKey;
use heeler_model::timetable::{DueTimeSkip, SkipReason};
use heeler_model::{TriggerType, WorkflowRunId, iso_millis};
use heeler_store::DatabaseError;
use jiff::Timestamp;
use serde_json::{Map, Value as Json, json};

use super::transaction::DispatchTransaction;
use crate::dispatch_failure::DispatchFailure;
use crate::github::{GithubLane, GithubSearchResult, GithubTask};
use crate::setup::DaemonSetup;
use crate::workflows::{WorkflowMode, WorkflowRunRequest, WorkflowSubject};

/// Most searches that wait.
const SEARCHES_MAX: usize = 1_000;

/// Returns the metadata key under which the items of a schedule's last search are recorded.
fn discovery_key(key: &ScheduleKey) -> String {
    format!("discovery {key}")
}

impl DaemonSetup {
    /// Returns the workflow that a schedule starts.
    pub(crate) fn scheduled_workflow(&self, key: &ScheduleKey) -> Option<&ScheduledWorkflow> {
        let agent = self.agent(&key.agent)?;
        let schedule = agent.schedules.iter().find(|it| it.name == key.schedule)?;
        schedule.workflow.as_ref()
    }
}

/// Runs that were started at one due time.
struct FanOutProgress {
    first: Option<WorkflowRunId>,
    /// Reason to record if no run was started.
    skip: SkipReason,
}

impl DispatchTransaction<'_, '_> {
    /// Starts the runs of a cron, or the search for them.
    pub(super) fn start_fan_out(
        &mut self,
        key: &ScheduleKey,
        due: Timestamp,
    ) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        let Some(start) = setup.scheduled_workflow(key) else { return Ok(()) };
        match &start.fan_out {
            Some(CronFanOut::EachMatch(_)) => self.request_search(key, due),
            Some(CronFanOut::EachRepo) => self.start_run_of_each_repo(key, start, due),
            None => Ok(()),
        }
    }

    /// Records a search, unless the last one of the schedule has not ended.
    fn request_search(&mut self, key: &ScheduleKey, due: Timestamp) -> Result<(), DatabaseError> {
        let kind = GithubLane::Search.effect_kind();
        let pending = self.tx.pending_effects_of_kind(kind, SEARCHES_MAX)?;
        let is_searching = pending.iter().any(|it| it.key == key.to_string());
        if is_searching || pending.len() >= SEARCHES_MAX {
            return self.record_fan_out_skip(key, due, SkipReason::Overlap);
        }
        tracing::info!(schedule = %key, due = iso_millis(due), "a search on GitHub begins");
        let (agent, schedule) = (key.agent.clone(), key.schedule.clone());
        let id = format!("{kind} {}", uuid::Uuid::new_v4());
        self.add_github_task(id, &GithubTask::Search { agent, schedule, due })
    }

    fn start_run_of_each_repo(
        &mut self,
        key: &ScheduleKey,
        start: &ScheduledWorkflow,
        due: Timestamp,
    ) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        let github = setup.root().and_then(|root| root.github.as_ref());
        let mut progress = FanOutProgress { first: None, skip: SkipReason::NothingFound };
        for repo in github.into_iter().flat_map(|github| &github.repos) {
            let Ok(repo) = repo.as_str().parse::<GithubRepo>() else { continue };
            let request = fan_out_request(start, &setup, &repo, None);
            self.start_fan_out_run(key, request, &mut progress)?;
        }
        self.record_fan_out(key, due, progress)
    }

    /// Starts a run for each item that a search found and that has changed since its last run.
    pub(super) fn start_discovered_runs(
        &mut self,
        agent: &str,
        schedule: &str,
        due: Timestamp,
        result: &GithubSearchResult,
    ) -> Result<(), DatabaseError> {
        let key = ScheduleKey { agent: agent.to_owned(), schedule: schedule.to_owned() };
        let setup = Arc::clone(&self.state.setup);
        let Some(start) = setup.scheduled_workflow(&key) else { return Ok(()) };
        for failure in &result.failures {
            tracing::warn!(schedule = %key, failure, "a search on GitHub failed");
        }
        let before = self.seen_revisions(&key)?;
        // The items of a repository that could not be read are kept. Otherwise only those of this
        // search are, so that their number is limited.
        let mut seen = match result.failures.is_empty() {
            true => BTreeMap::new(),
            false => before.clone(),
        };
        let skip = match result.failures.is_empty() {
            true => SkipReason::NothingFound,
            false => SkipReason::Unreachable,
        };
        let mut progress = FanOutProgress { first: None, skip };
        for (repo, item) in &result.found {
            let trigger = format!("{repo}#{}", item.number);
            // A commit or a state of an issue gets one run.
            if before.get(&trigger) == Some(&item.revision) {
                seen.insert(trigger, item.revision.clone());
                continue;
            }
            let request = fan_out_request(start, &setup, repo, Some(item));
            // An item without a run is found again at the next due time.
            if self.start_fan_out_run(&key, request, &mut progress)? {
                seen.insert(trigger, item.revision.clone());
            }
        }
        let text = serde_json::to_string(&seen).expect("texts are JSON");
        self.tx.set_meta(&discovery_key(&key), &text)?;
        self.record_fan_out(&key, due, progress)
    }

    /// Starts a run, if there is capacity. Returns true if it was started.
    fn start_fan_out_run(
        &mut self,
        key: &ScheduleKey,
        request: WorkflowRunRequest,
        progress: &mut FanOutProgress,
    ) -> Result<bool, DatabaseError> {
        if let Err((refused, reason)) = self.check_workflow_capacity() {
            tracing::warn!(schedule = %key, why = refused.message, "a workflow did not start");
            progress.skip = reason.unwrap_or(progress.skip);
            return Ok(false);
        }
        match self.start_workflow_run(request, "its schedule") {
            Ok(begun) if begun.is_new => {
                progress.first.get_or_insert(begun.run);
                Ok(true)
            }
            // A run about the same subject is active.
            Ok(_) => {
                progress.skip = SkipReason::Overlap;
                Ok(false)
            }
            Err(DispatchFailure::Database(error)) => Err(error),
            Err(DispatchFailure::Refused(refused)) => {
                tracing::warn!(schedule = %key, why = refused.message, "a workflow did not start");
                progress.skip = SkipReason::Disabled;
                Ok(false)
            }
        }
    }

    /// Records the first run of a due time, or the reason why there is none.
    fn record_fan_out(
        &mut self,
        key: &ScheduleKey,
        due: Timestamp,
        progress: FanOutProgress,
    ) -> Result<(), DatabaseError> {
        match progress.first {
            Some(run) => {
                tracing::info!(schedule = %key, due = iso_millis(due), %run, "due");
                self.tx.add_occurrence(&key.agent, &key.schedule, due, &run).map(|_| ())
            }
            None => self.record_fan_out_skip(key, due, progress.skip),
        }
    }

    fn record_fan_out_skip(
        &mut self,
        key: &ScheduleKey,
        due: Timestamp,
        reason: SkipReason,
    ) -> Result<(), DatabaseError> {
        self.record_skip(key, &DueTimeSkip { first: due, last: due, count: 1, reason })
    }

    /// Returns the last revision for which a run was started, by trigger ID.
    fn seen_revisions(&self, key: &ScheduleKey) -> Result<BTreeMap<String, String>, DatabaseError> {
        let text = self.tx.meta(&discovery_key(key))?.unwrap_or_default();
        // An unreadable record counts as empty.
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }
}

/// Returns the request of a run about a repository, or about an issue or pull request of it. The
/// inputs have the names that Last Light uses.
fn fan_out_request(
    start: &ScheduledWorkflow,
    setup: &DaemonSetup,
    repo: &GithubRepo,
    item: Option<&DiscoveredItem>,
) -> WorkflowRunRequest {
    let mut inputs: Map<String, Json> = start.inputs.clone();
    let mut add = |name: &str, value: Json| {
        if !value.is_null() {
            inputs.insert(name.to_owned(), value);
        }
    };
    add("owner", json!(repo.owner()));
    add("repo", json!(repo.name()));
    if let Some(item) = item {
        add("issueNumber", json!(item.number));
        add("prNumber", json!(item.is_pull_request.then_some(item.number)));
        add("issueTitle", json!(item.title));
        add("title", json!(item.title));
        add("branch", json!(item.branch));
        add("headSha", json!(item.head_sha));
        add("reason", json!(item.reason));
    }
    let workflow = start.workflow.as_str();
    // Of these values, a workflow gets those that it declares.
    if let Ok(loaded) = setup.workflow(workflow) {
        let declared = &loaded.workflow.inputs;
        inputs.retain(|name, _| declared.is_empty() || declared.contains_key(name));
    }
    let subject = WorkflowSubject {
        owner: Some(repo.owner().to_owned()),
        repo: Some(repo.name().to_owned()),
        issue_number: item.map(|item| item.number),
        sender: None,
    };
    let event = EventSubject {
        owner: subject.owner.clone(),
        repo: subject.repo.clone(),
        number: subject.issue_number,
        sender: None,
    };
    WorkflowRunRequest {
        workflow: workflow.to_owned(),
        inputs,
        trigger_id: event.trigger_id(workflow),
        trigger: TriggerType::Cron,
        mode: WorkflowMode::Real,
        subject: Some(Box::new(subject)),
    }
}
