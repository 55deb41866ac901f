//! Session lineage: the jobs of a session and of the sessions that it continues.
//!
//! A session with a full context continues in another, and a person may rewind to an earlier
//! message. The new session still controls the workers that the old one started. Start at
//! [`lineage_jobs`].

use heeler_model::{AgentSessionId, Job, JobId, TriggerType};

use crate::db::{DatabaseError, StateDatabase};

/// Maximum number of sessions in a lineage.
const SESSIONS_MAX: usize = 64;

/// Maximum number of ancestors that are followed.
pub const ANCESTORS_MAX: usize = 64;

/// Lists the jobs of a job's session lineage: newest session first, oldest job first in each
/// session.
pub fn lineage_jobs(db: &StateDatabase, job: &JobId) -> Result<Vec<JobId>, DatabaseError> {
    let sessions = lineage_sessions(db, job)?;
    // A job without a session has only itself.
    if sessions.is_empty() {
        return Ok(vec![job.clone()]);
    }
    let mut jobs = Vec::new();
    for session in &sessions {
        jobs.extend(db.job_ids_of_session(session)?);
    }
    Ok(jobs)
}

/// Returns true if a job was started, directly or indirectly, in the session lineage of another.
pub fn is_descendant_job(
    db: &StateDatabase,
    job: &JobId,
    of: &JobId,
) -> Result<bool, DatabaseError> {
    let sessions = lineage_sessions(db, of)?;
    let mut next = db.job(job)?.as_ref().and_then(parent_of);
    // The chain is limited, because an imported record may refer to itself.
    for _ in 0..ANCESTORS_MAX {
        let Some(parent) = next else { break };
        let above = db.job(&parent)?;
        // The parent may have been deleted since; its id still counts.
        let session = above.as_ref().and_then(|above| above.head.session_id.as_ref());
        if parent == *of || session.is_some_and(|session| sessions.contains(session)) {
            return Ok(true);
        }
        next = above.as_ref().and_then(parent_of);
    }
    Ok(false)
}

/// Returns true if an agent may continue a session: it is the session of its job, or its first job
/// was started in the lineage of that job, directly or indirectly.
///
/// A session that the job's own one was forked from, or continues, is not the agent's: a person may
/// go on there.
pub fn lineage_has_session(
    db: &StateDatabase,
    session: &AgentSessionId,
    of: &JobId,
) -> Result<bool, DatabaseError> {
    if db.job(of)?.is_some_and(|job| job.head.session_id.as_ref() == Some(session)) {
        return Ok(true);
    }
    // A later job may have been started in a session that people began.
    let first = db.job_ids_of_session(session)?.into_iter().next();
    let mut parents = lineage_jobs(db, of)?;
    while let Some(parent) = parents.pop() {
        for id in db.jobs_spawned_by(&parent)? {
            if first.as_ref() == Some(&id) {
                return Ok(true);
            }
            parents.push(id);
        }
    }
    Ok(false)
}

/// Returns the job that started a job.
pub fn parent_of(job: &Job) -> Option<JobId> {
    let is_spawned = job.head.trigger_type == TriggerType::Spawned;
    is_spawned.then(|| job.trigger_id.parse().ok()).flatten()
}

/// Lists the session of a job and those that it continues or was forked from, newest first.
pub fn lineage_sessions(
    db: &StateDatabase,
    job: &JobId,
) -> Result<Vec<AgentSessionId>, DatabaseError> {
    let mut found = Vec::new();
    let mut next = db.job(job)?.and_then(|job| job.head.session_id);
    while let Some(id) = next {
        // Imported records may form a circle.
        if found.len() == SESSIONS_MAX || found.contains(&id) {
            break;
        }
        // A continuation and a fork both inherit the workers of the earlier session.
        let before = db.session_by_agent_id(&id)?.and_then(|it| it.continues.or(it.parent));
        let before = before.map(|before| db.session(&before)).transpose()?.flatten();
        next = before.and_then(|before| before.agent_session_id);
        found.push(id);
    }
    Ok(found)
}
