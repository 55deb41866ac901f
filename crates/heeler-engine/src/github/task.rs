//! Tasks on GitHub, as they are recorded, and their execution.
//!
//! Start at [`execute_task`].

use std::fmt;

use heeler_github::{GithubRepo, ReactionKind};
use heeler_model::WorkflowRunId;
use heeler_model::calendar::ScheduleKey;
use heeler_model::workflow::ReviewFindings;
use heeler_store::EffectRecord;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::connection::GithubConnection;
use super::search::{GithubSearchResult, search_repos};
use super::{review_post, thread_post};
use crate::setup::DaemonSetup;

/// Age at which a task that GitHub does not accept is given up.
const TASK_AGE_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Delay after the first failed attempt. Each further delay is twice as long.
const RETRY_FIRST: SignedDuration = SignedDuration::from_secs(1);

/// Longest delay.
const RETRY_MAX: SignedDuration = SignedDuration::from_mins(30);

/// Task on GitHub.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub(crate) enum GithubTask {
    /// Searches all repositories for a cron.
    Search { agent: String, schedule: String, due: Timestamp },
    /// Posts a message of a workflow run.
    Comment { run: WorkflowRunId, issue: IssueAddress, text: String },
    /// Posts the review of a workflow run.
    Review(Box<ReviewTask>),
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

/// Issue or pull request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IssueAddress {
    pub(crate) owner: String,
    pub(crate) repo: String,
    pub(crate) number: u64,
}

impl IssueAddress {
    pub(super) fn github_repo(&self) -> Result<GithubRepo, String> {
        let name = format!("{}/{}", self.owner, self.repo);
        name.parse().map_err(|error| format!("{name}: {error}"))
    }
}

impl fmt::Display for IssueAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}#{}", self.owner, self.repo, self.number)
    }
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
            GithubTask::Search { .. } => GithubLane::Search,
            GithubTask::Comment { .. } | GithubTask::Review(_) | GithubTask::React { .. } => {
                GithubLane::Post
            }
        }
    }

    /// Returns the object of the task. Tasks of one object are executed in order.
    fn object(&self) -> String {
        match self {
            GithubTask::Search { agent, schedule, .. } => {
                let (agent, schedule) = (agent.clone(), schedule.clone());
                ScheduleKey { agent, schedule }.to_string()
            }
            GithubTask::Comment { issue, .. } | GithubTask::React { issue, .. } => {
                issue.to_string()
            }
            GithubTask::Review(review) => review.issue.to_string(),
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
    Posted,
    /// It failed finally.
    Failed(String),
    /// It is tried again.
    Postponed {
        error: String,
        until: Timestamp,
    },
}

/// Failure of an attempt.
#[derive(Debug)]
pub(super) struct TaskFailure {
    pub(super) message: String,
    /// True if a later attempt may succeed.
    pub(super) is_transient: bool,
}

impl From<heeler_github::GithubError> for TaskFailure {
    fn from(error: heeler_github::GithubError) -> TaskFailure {
        TaskFailure { is_transient: error.is_transient(), message: error.to_string() }
    }
}

impl From<String> for TaskFailure {
    fn from(message: String) -> TaskFailure {
        TaskFailure { message, is_transient: false }
    }
}

/// Executes a task once. It may wait for GitHub for minutes.
pub(crate) fn execute_task(
    setup: &DaemonSetup,
    connection: Result<&GithubConnection, &str>,
    effect: &EffectRecord,
    task: &GithubTask,
    now: Timestamp,
) -> GithubTaskOutcome {
    let attempt = || -> Result<GithubTaskOutcome, TaskFailure> {
        match task {
            GithubTask::Search { agent, schedule, .. } => {
                let key = ScheduleKey { agent: agent.clone(), schedule: schedule.clone() };
                Ok(GithubTaskOutcome::Searched(search_repos(setup, connection, &key)))
            }
            GithubTask::Comment { issue, text, .. } => {
                let connection = connection.map_err(str::to_owned)?;
                setup.check_own_repo(issue)?;
                thread_post::post_comment(connection, effect, issue, text)?;
                Ok(GithubTaskOutcome::Posted)
            }
            GithubTask::Review(review) => {
                let connection = connection.map_err(str::to_owned)?;
                setup.check_own_repo(&review.issue)?;
                let ReviewTask { issue, commit, findings, .. } = &**review;
                review_post::post_review(connection, effect, issue, commit.as_deref(), findings)?;
                Ok(GithubTaskOutcome::Posted)
            }
            GithubTask::React { issue, comment } => {
                let connection = connection.map_err(str::to_owned)?;
                setup.check_own_repo(issue)?;
                let repo = issue.github_repo()?;
                connection.client.react_to_comment(&repo, *comment, ReactionKind::Eyes)?;
                Ok(GithubTaskOutcome::Posted)
            }
        }
    };
    let TaskFailure { message, is_transient } = match attempt() {
        Ok(outcome) => return outcome,
        Err(failure) => failure,
    };
    let is_old = now.duration_since(effect.created_at) > TASK_AGE_MAX;
    if !is_transient || is_old {
        return GithubTaskOutcome::Failed(message);
    }
    let factor = 1_i32 << effect.attempts.clamp(0, 20);
    let delay = RETRY_FIRST.checked_mul(factor).map_or(RETRY_MAX, |delay| delay.min(RETRY_MAX));
    let until = now.checked_add(delay).unwrap_or(Timestamp::MAX);
    GithubTaskOutcome::Postponed { error: message, until }
}

impl DaemonSetup {
    /// Refuses a repository that the config does not name, also if it named it when the task was
    /// recorded.
    fn check_own_repo(&self, issue: &IssueAddress) -> Result<(), String> {
        let github = self.root().and_then(|root| root.github.as_ref());
        match github.is_some_and(|it| it.owns_repo(&issue.owner, &issue.repo)) {
            true => Ok(()),
            false => Err(format!(
                "{}/{} is not in `github.repos`; add it there to let the fleet write to it",
                issue.owner, issue.repo
            )),
        }
    }
}
