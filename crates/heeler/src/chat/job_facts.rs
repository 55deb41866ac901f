//! State of a job, as a conversation shows it. Start at [`load_job_facts`].

use heeler_chat::{ChatJobInfo, ChatJobState};
use heeler_model::{Job, JobStatus};
use heeler_store::StoreReader;

/// Returns true if the job has ended.
pub(super) fn is_ended(state: ChatJobState) -> bool {
    matches!(state, ChatJobState::Done | ChatJobState::Failed)
}

/// Returns the state of a job. Details that cannot be read are left out.
pub(super) fn load_job_facts(reader: &StoreReader, job: &Job) -> ChatJobInfo {
    let head = &job.head;
    let (state, reason) = match head.status {
        JobStatus::Pending => {
            // The job may have left the queue since its status was read.
            let queued = reader.queued_job(&head.id).ok().flatten();
            (
                ChatJobState::Waiting,
                queued.map(|row| row.reason).filter(|reason| !reason.is_empty()),
            )
        }
        JobStatus::Running => (ChatJobState::Running, None),
        JobStatus::Completed => (ChatJobState::Done, None),
        JobStatus::Failed | JobStatus::Cancelled => {
            (ChatJobState::Failed, job.error.clone().or_else(|| Some(head.status.to_string())))
        }
    };
    let session = head.session_id.as_ref();
    let session = session.and_then(|id| reader.session_by_agent_id(id).ok().flatten());
    // Zero means that no run has reported a number yet.
    let tokens = session.as_ref().and_then(|it| u64::try_from(it.token_estimate).ok());
    let last_model = job.usage.per_model.last();
    ChatJobInfo {
        job: head.id.clone(),
        agent: head.agent.clone(),
        state,
        reason,
        session: head.session_id.clone(),
        cost_usd: head.cost_usd,
        context_tokens: tokens.filter(|tokens| *tokens > 0),
        context_window: last_model.and_then(|(_, usage)| usage["contextWindow"].as_u64()),
        model: last_model.map(|(model, _)| model.clone()),
    }
}
