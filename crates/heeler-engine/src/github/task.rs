//! Tasks on GitHub, as they are recorded.
//!
//! Start at [`GithubTask`].

use heeler_model::WorkflowRunId;
use heeler_model::calendar::ScheduleKey;
use heeler_model::workflow::ReviewFindings;
use heeler_store::EffectRecord;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::issue_address::IssueAddress;
use super::search::GithubSearchResult;
use super::work::{FoundWork, WorkClaim, WorkReport};

/// Task on GitHub.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub(crate) enum GithubTask {
    /// Searches all repositories for a cron.
    Search { agent: String, schedule: String, due: Timestamp },
    /// Posts a message of a workflow run.
    Comment { run: WorkflowRunId, issue: IssueAddress, text: String },
    /// Posts or edits the comment with the state of a workflow run.
    Checklist { run: WorkflowRunId, issue: IssueAddress, started_at: Timestamp, text: String },
    /// Posts the review of a workflow run.
    Review(Box<ReviewTask>),
    /// Searches for an issue that is work of a schedule.
    FindWork { agent: String, schedule: String, due: Timestamp },
    /// Claims an issue.
    ClaimWork(Box<WorkClaim>),
    /// Reports the result of work on an issue.
    ReportWork(Box<WorkReport>),
    /// Reacts to the comment that started a workflow run.
    React { issue: IssueAddress, comment: u64 },
}

/// Review to be posted for a phase of a workflow run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReviewTask {
    pub(crate) run: WorkflowRunId,
    /// Name of the phase.
    pub(crate) phase: String,
    /// Number of the journal entry.
    pub(crate) seq: u64,
    pub(crate) issue: IssueAddress,
    /// Commit that was reviewed, if it is known.
    pub(crate) commit: Option<String>,
    pub(crate) findings: ReviewFindings,
}

/// Thread that executes a task. A search may take minutes, and posts do not wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GithubLane {
    Search,
    Post,
}

impl GithubLane {
    /// Returns the kind of the effects that are its tasks.
    pub(crate) fn effect_kind(self) -> &'static str {
        match self {
            GithubLane::Search => "github_search",
            GithubLane::Post => "github_post",
        }
    }
}

impl GithubTask {
    pub(crate) fn lane(&self) -> GithubLane {
        match self {
            GithubTask::Search { .. } | GithubTask::FindWork { .. } => GithubLane::Search,
            _ => GithubLane::Post,
        }
    }

    /// Returns the object of the task. Tasks of one object are executed in order.
    fn object(&self) -> String {
        match self {
            GithubTask::Search { agent, schedule, .. }
            | GithubTask::FindWork { agent, schedule, .. } => {
                let (agent, schedule) = (agent.clone(), schedule.clone());
                ScheduleKey { agent, schedule }.to_string()
            }
            GithubTask::Comment { issue, .. }
            | GithubTask::Checklist { issue, .. }
            | GithubTask::React { issue, .. } => issue.to_string(),
            GithubTask::Review(review) => review.issue.to_string(),
            // By its schedule, which has one claim at a time.
            GithubTask::ClaimWork(claim) => {
                let (agent, schedule) = (claim.agent.clone(), claim.schedule.clone());
                ScheduleKey { agent, schedule }.to_string()
            }
            GithubTask::ReportWork(report) => report.issue.to_string(),
        }
    }

    /// Returns the effect that records the task.
    pub(crate) fn to_effect(&self, id: String, now: Timestamp) -> EffectRecord {
        EffectRecord {
            id,
            kind: self.lane().effect_kind().to_owned(),
            key: self.object(),
            payload: serde_json::to_string(self).expect("a task is JSON"),
            created_at: now,
            attempts: 0,
            last_error: None,
        }
    }
}

/// Result of an attempt at a task.
#[derive(Debug, Clone)]
pub(crate) struct GithubTaskResult {
    /// ID of the effect.
    pub(crate) effect: String,
    pub(crate) task: GithubTask,
    pub(crate) outcome: GithubTaskOutcome,
}

#[derive(Debug, Clone)]
pub(crate) enum GithubTaskOutcome {
    Searched(GithubSearchResult),
    /// Issues that are work, or the reason why they could not be searched.
    WorkFound(Result<FoundWork, String>),
    Posted,
    /// It failed finally.
    Failed(String),
    /// It is tried again.
    Postponed {
        error: String,
        until: Timestamp,
    },
}
