//! Tasks on GitHub: recorded with the decision that needs them, and their results.
//!
//! Start at [`DispatchTransaction::add_github_task`].

use heeler_connect::{ChatContent, ChatEvent, ChatPlatform, ChatPolicy};
use heeler_model::WorkflowRunId;
use heeler_model::calendar::ScheduleKey;
use heeler_store::DatabaseError;

use super::event::DispatchEffect;
use super::transaction::DispatchTransaction;
use crate::chat::issue_of_place;
use crate::github::{GithubLane, GithubTask, GithubTaskOutcome, GithubTaskResult, IssueAddress};

/// Most posts that wait. Messages beyond that are not posted.
const POSTS_MAX: usize = 1_000;

/// Kind of workflow event that tells about posts.
const POST_EVENT: &str = "github";

impl DispatchTransaction<'_, '_> {
    /// Records a task, to be executed after the commit. The ID must be new.
    pub(super) fn add_github_task(
        &mut self,
        id: String,
        task: &GithubTask,
    ) -> Result<(), DatabaseError> {
        self.tx.add_effect(&task.to_effect(id, self.now))?;
        self.effects.push(DispatchEffect::RunGithubTasks);
        Ok(())
    }

    /// Records the result of a task, with everything that follows from it.
    pub(super) fn apply_github_result(
        &mut self,
        result: GithubTaskResult,
    ) -> Result<(), DatabaseError> {
        let GithubTaskResult { effect, task, outcome } = result;
        let error = match &outcome {
            GithubTaskOutcome::Postponed { error, until } => {
                tracing::warn!(task = effect, error, "a task on GitHub is tried again");
                let error = self.redact_text(error);
                return self.tx.postpone_effect(&effect, &error, *until);
            }
            GithubTaskOutcome::Failed(error) => Some(self.redact_text(error)),
            GithubTaskOutcome::Posted
            | GithubTaskOutcome::Searched(_)
            | GithubTaskOutcome::WorkFound(_) => None,
        };
        let is_first = match &error {
            None => self.tx.finish_effect(&effect, self.now)?,
            Some(error) => self.tx.give_up_effect(&effect, error, self.now)?,
        };
        // An earlier daemon may have recorded the result of the same task.
        if !is_first {
            return Ok(());
        }
        if let Some(error) = &error {
            tracing::warn!(task = effect, error, "a task on GitHub failed");
        }
        match (task, outcome) {
            (GithubTask::Search { agent, schedule, due }, GithubTaskOutcome::Searched(found)) => {
                self.start_discovered_runs(&agent, &schedule, due, &found)
            }
            (GithubTask::FindWork { agent, schedule, due }, outcome) => {
                let key = ScheduleKey { agent, schedule };
                let found = match outcome {
                    GithubTaskOutcome::WorkFound(found) => found,
                    _ => Err(error.unwrap_or_default()),
                };
                self.claim_found_work(&key, due, found)
            }
            (GithubTask::ClaimWork(claim), _) => self.start_claimed_work(&claim, error),
            (GithubTask::Review(review), _) => self.end_review_part(&review, error),
            (
                GithubTask::Comment { run, issue, .. } | GithubTask::Checklist { run, issue, .. },
                GithubTaskOutcome::Failed(_),
            ) => {
                let why = error.unwrap_or_default();
                self.tell_unposted(&run, &format!("a message was not posted to {issue}: {why}"))
            }
            _ => Ok(()),
        }
    }

    fn tell_unposted(&mut self, run: &WorkflowRunId, text: &str) -> Result<(), DatabaseError> {
        // The run may have been removed since.
        match self.tx.workflow_run(run)? {
            Some(_) => self.tx.add_workflow_event(run, POST_EVENT, None, text, self.now),
            None => Ok(()),
        }
    }

    /// Posts a message of a workflow run on its issue or pull request, if the config allows it.
    pub(super) fn post_workflow_message(
        &mut self,
        run: &WorkflowRunId,
        text: &str,
    ) -> Result<(), DatabaseError> {
        // Such a message is a line of the comment that is edited at the end of the step.
        if self.has_checklist(run) {
            return Ok(());
        }
        let Some(issue) = self.issue_of_run(run) else { return Ok(()) };
        let kind = GithubLane::Post.effect_kind();
        if self.tx.count_pending_effects(kind, POSTS_MAX)? >= POSTS_MAX {
            let text = format!("a message was not posted to {issue}: {POSTS_MAX} others wait");
            return self.tell_unposted(run, &text);
        }
        let id = format!("{kind} {}", uuid::Uuid::new_v4());
        let task = GithubTask::Comment { run: run.clone(), issue, text: text.to_owned() };
        self.add_github_task(id, &task)
    }

    /// Returns the issue or pull request of a run to which messages are posted.
    pub(super) fn issue_of_run(&self, run: &WorkflowRunId) -> Option<IssueAddress> {
        let github = self.state.setup.root()?.github.as_ref()?;
        let stored = self.state.workflow_records.get(run)?;
        // A dry run or replay has no effects outside.
        (github.comments && stored.is_real()).then(|| self.writable_issue(run))?
    }

    /// Returns the issue or pull request of a run, if the fleet may write to it.
    pub(super) fn writable_issue(&self, run: &WorkflowRunId) -> Option<IssueAddress> {
        let github = self.state.setup.root()?.github.as_ref()?;
        github.access.as_ref()?;
        let stored = self.state.workflow_records.get(run)?;
        let head = &stored.row.head;
        let (owner, repo) = (head.owner.clone()?, head.repo.clone()?);
        let number = u64::try_from(head.issue_number?).ok()?;
        github.owns_repo(&owner, &repo).then_some(IssueAddress { owner, repo, number })
    }

    /// Reacts to a comment that is work for an agent, if its config says so.
    pub(super) fn acknowledge_on_github(
        &mut self,
        event: &ChatEvent,
        policy: &ChatPolicy<'_>,
    ) -> Result<(), DatabaseError> {
        let ChatContent::Message { id, .. } = &event.content else { return Ok(()) };
        // Descriptions and comments on lines have IDs with a letter.
        let comment = (event.platform == ChatPlatform::Github).then(|| id.parse::<u64>().ok());
        let issue = issue_of_place(&event.place);
        let (Some(Some(comment)), Some(issue), Some(_)) = (comment, issue, policy.live.acknowledge)
        else {
            return Ok(());
        };
        let id = format!("{} {}", GithubLane::Post.effect_kind(), uuid::Uuid::new_v4());
        self.add_github_task(id, &GithubTask::React { issue, comment })
    }

    /// Reacts to the comment that started a run, so that its author knows that it was read.
    pub(super) fn acknowledge_comment(
        &mut self,
        run: &WorkflowRunId,
        comment: u64,
    ) -> Result<(), DatabaseError> {
        let Some(issue) = self.issue_of_run(run) else { return Ok(()) };
        let id = format!("{} {}", GithubLane::Post.effect_kind(), uuid::Uuid::new_v4());
        self.add_github_task(id, &GithubTask::React { issue, comment })
    }
}
