//! Parts of workflow runs that post a review. Their journal entry is in progress until the task on
//! GitHub has ended.
//!
//! Start at [`DispatchTransaction::begin_review_part`].

use heeler_config::workflow::Workflow;
use heeler_model::WorkflowRunId;
use heeler_model::fleet::WorkflowEvent;
use heeler_model::workflow::{EndedPart, JournalEntry, PartOutcome, PhasePart, ReviewFindings};
use heeler_store::{DatabaseError, InstantPart, StepEnd};

use super::transaction::DispatchTransaction;
use crate::github::{GithubLane, GithubTask, ReviewTask};

/// Returns the ID of the effect that posts a review.
fn review_effect_id(run: &WorkflowRunId, seq: u64) -> String {
    format!("{} review {run} {seq}", GithubLane::Post.effect_kind())
}

impl DispatchTransaction<'_, '_> {
    /// Records a part that posts a review, and the task.
    pub(super) fn begin_review_part(
        &mut self,
        id: &WorkflowRunId,
        workflow: &Workflow,
        entry: &JournalEntry,
        findings: ReviewFindings,
    ) -> Result<(), DatabaseError> {
        let Some(stored) = self.state.workflow_records.get(id) else { return Ok(()) };
        let (is_real, context) = (stored.is_real(), &stored.row.context);
        let commit = context["headSha"].as_str().filter(|text| is_commit(text)).map(str::to_owned);
        let trigger_type = stored.row.head.trigger_type.clone();
        let phase = &workflow.phases[entry.phase].name;
        let step = InstantPart {
            run: id,
            skill: format!("{}:{}", workflow.name, entry.part.label(phase)),
            trigger_type: trigger_type.as_deref().unwrap_or("manual"),
            phase: phase.as_str(),
            part: entry.part,
            seq: entry.seq,
            outcome: PartOutcome::Succeeded,
            decision: None,
            output: None,
            error: None,
        };
        self.tx.insert_open_step(&step, self.now)?;
        let phase = phase.to_string();
        let review = match self.writable_issue(id) {
            Some(issue) => {
                ReviewTask { run: id.clone(), phase, seq: entry.seq, issue, commit, findings }
            }
            None => {
                let why = "the run is about no pull request of a repository in `github.repos`";
                return self.close_review_part(id, entry, Some(why.to_owned()));
            }
        };
        // A replay has no effects outside.
        if !is_real {
            return self.close_review_part(id, entry, None);
        }
        let mut task = GithubTask::Review(Box::new(review));
        if let GithubTask::Review(review) = &mut task {
            self.redact_review(&mut review.findings);
        }
        self.add_github_task(review_effect_id(id, entry.seq), &task)
    }

    fn redact_review(&self, findings: &mut ReviewFindings) {
        findings.summary = self.redact_text(&findings.summary);
        for finding in &mut findings.findings {
            finding.title = self.redact_text(&finding.title);
            finding.body = self.redact_text(&finding.body);
            finding.suggestion = finding.suggestion.as_deref().map(|text| self.redact_text(text));
        }
    }

    /// Ends a part at once. The current step is not complete, so its run continues after it.
    fn close_review_part(
        &mut self,
        id: &WorkflowRunId,
        entry: &JournalEntry,
        error: Option<String>,
    ) -> Result<(), DatabaseError> {
        let ended = ended_part(entry.phase, entry.seq, error);
        self.record_review_end(id, &ended)?;
        self.pending_events.push((id.clone(), WorkflowEvent::JoblessPartEnded(ended)));
        Ok(())
    }

    /// Ends the part of a review whose task has ended, and continues its run.
    pub(super) fn end_review_part(
        &mut self,
        review: &ReviewTask,
        error: Option<String>,
    ) -> Result<(), DatabaseError> {
        let active = self.state.fleet.workflow_run(&review.run);
        let place = active.and_then(|it| it.state.workflow.phase_index(&review.phase));
        let ended = ended_part(place.unwrap_or(0), review.seq, error);
        // The run may have been cancelled meanwhile.
        let was_open = self.record_review_end(&review.run, &ended)?;
        if place.is_none() || !was_open {
            return Ok(());
        }
        self.step_workflow(&review.run, WorkflowEvent::JoblessPartEnded(ended)).map(drop)
    }

    fn record_review_end(
        &mut self,
        run: &WorkflowRunId,
        ended: &EndedPart,
    ) -> Result<bool, DatabaseError> {
        let (output, error) = (ended.output.as_deref(), ended.error.as_deref());
        let end = StepEnd { outcome: ended.outcome, output, error };
        self.tx.end_step(run, ended.seq, &end, self.now)
    }

    /// Ends the open parts of a run that is over, and withdraws their tasks.
    pub(super) fn withdraw_reviews(&mut self, run: &WorkflowRunId) -> Result<(), DatabaseError> {
        for seq in self.tx.open_steps(run)? {
            let why = "the run has ended";
            let end = StepEnd { outcome: PartOutcome::Cancelled, output: None, error: Some(why) };
            self.tx.end_step(run, seq, &end, self.now)?;
            self.tx.give_up_effect(&review_effect_id(run, seq), why, self.now)?;
        }
        Ok(())
    }
}

fn ended_part(phase: usize, seq: u64, error: Option<String>) -> EndedPart {
    EndedPart {
        phase,
        part: PhasePart::Post,
        seq,
        // No job exists, but the field is not optional.
        job: "none".parse().expect("it is a plain word"),
        outcome: if error.is_none() { PartOutcome::Succeeded } else { PartOutcome::Failed },
        output: None,
        error,
        micros: 0,
        is_stopped: false,
    }
}

/// Returns true if a text can be the ID of a commit.
fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
