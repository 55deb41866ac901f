//! Execution of tasks on GitHub.
//!
//! Start at [`execute_task`].

use heeler_github::ReactionKind;
use heeler_model::calendar::ScheduleKey;
use heeler_store::EffectRecord;
use jiff::{SignedDuration, Timestamp};

use super::connection::GithubConnection;
use super::issue_address::{IssueAddress, TaskFailure};
use super::search::search_repos;
use super::task::{GithubTask, GithubTaskOutcome, ReviewTask};
use super::{review_post, thread_post, work};
use crate::setup::DaemonSetup;

/// Age at which a task that GitHub does not accept is given up.
const TASK_AGE_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Delay after the first failed attempt. Each further delay is twice as long.
const RETRY_FIRST: SignedDuration = SignedDuration::from_secs(1);

/// Longest delay.
const RETRY_MAX: SignedDuration = SignedDuration::from_mins(30);

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
            GithubTask::Checklist { run, issue, started_at, text } => {
                let connection = connection.map_err(str::to_owned)?;
                setup.check_own_repo(issue)?;
                thread_post::edit_checklist(connection, (run.as_str(), *started_at), issue, text)?;
                Ok(GithubTaskOutcome::Posted)
            }
            GithubTask::Review(review) => {
                let connection = connection.map_err(str::to_owned)?;
                setup.check_own_repo(&review.issue)?;
                let ReviewTask { issue, commit, findings, .. } = &**review;
                review_post::post_review(connection, effect, issue, commit.as_deref(), findings)?;
                Ok(GithubTaskOutcome::Posted)
            }
            GithubTask::FindWork { agent, schedule, .. } => {
                let key = ScheduleKey { agent: agent.clone(), schedule: schedule.clone() };
                let source = setup.work_schedule(&key).map(|it| it.1);
                let source =
                    source.ok_or_else(|| "the config names no work source any more".to_owned())?;
                let found = connection.map_err(|reason| TaskFailure::from(reason.to_owned()));
                let found = found.and_then(|connection| work::find_work(connection, source));
                Ok(GithubTaskOutcome::WorkFound(found.map_err(|failure| failure.message)))
            }
            GithubTask::ClaimWork(claim) => {
                let connection = connection.map_err(str::to_owned)?;
                setup.check_own_repo(&claim.issue.address)?;
                work::claim_work(connection, effect, claim)?;
                Ok(GithubTaskOutcome::Posted)
            }
            GithubTask::ReportWork(report) => {
                let connection = connection.map_err(str::to_owned)?;
                setup.check_own_repo(&report.issue)?;
                work::report_work(connection, effect, report)?;
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
    pub(crate) fn check_own_repo(&self, issue: &IssueAddress) -> Result<(), String> {
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
