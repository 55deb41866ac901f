//! Finds the job to which the fork point of a session belongs. Start at [`find_forked_job`].

use std::io::{BufRead as _, BufReader, Read as _};

use camino::Utf8Path;
use heeler_model::job_row::JobRow;
use heeler_model::session_choice::SessionChoice;
use heeler_model::{AgentSessionId, JobId, JobRequest, PendingFork, Session};
use heeler_store::{DatabaseError, ReaderPool, StateDir, StoreReader};
use heeler_transcript::untrusted_file;
use uuid::Uuid;

/// Longest chain of forks that is followed to the job of a message.
const ANCESTORS_MAX: usize = 32;

/// Longest part of a row that is read at once. The ID of a longer row is not found.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Returns the job whose message is the fork point, if the request starts a fork. The lineage is a
/// convenience: what cannot be read is left out.
pub(crate) fn find_forked_job(
    dir: &StateDir,
    readers: &ReaderPool,
    wanted: &JobRequest,
) -> Option<JobId> {
    if wanted.session == SessionChoice::Fresh {
        return None;
    }
    let reader = readers.reader().ok()?;
    let PendingFork { source, at } = pending_fork(&reader, wanted).ok()??;
    find_job_of_message(dir, &reader, &source, at).ok()?
}

fn pending_fork(
    reader: &StoreReader,
    wanted: &JobRequest,
) -> Result<Option<PendingFork>, DatabaseError> {
    let agent = wanted.agent.as_str();
    let session = match (&wanted.session, &wanted.channel) {
        (SessionChoice::Fork { source, at }, _) => {
            return Ok(Some(PendingFork { source: source.clone(), at: *at }));
        }
        (SessionChoice::Given { id }, _) => reader.session_by_agent_id(id)?,
        (SessionChoice::Usual, Some(channel)) => reader.session_of_channel(agent, channel)?,
        (SessionChoice::Usual, None) => reader.agent_session(agent)?,
        (SessionChoice::Fresh, _) => None,
    };
    Ok(session.and_then(|session| session.fork))
}

/// Searches the jobs of the source, then those of the session from which it was forked itself.
fn find_job_of_message(
    dir: &StateDir,
    reader: &StoreReader,
    source: &AgentSessionId,
    at: Option<Uuid>,
) -> Result<Option<JobId>, DatabaseError> {
    let mut native = Some(source.clone());
    for _ in 0..ANCESTORS_MAX {
        let Some(id) = native.take() else { return Ok(None) };
        let jobs = reader.job_ids_of_session(&id)?;
        let Some(at) = at else { return Ok(jobs.into_iter().last()) };
        // Most forks start near the end.
        let found = jobs.into_iter().rev().find(|job| has_row(&dir.job_transcript(job), at));
        if found.is_some() {
            return Ok(found);
        }
        let parent = reader.session_by_agent_id(&id)?.and_then(|session: Session| session.parent);
        native = match parent {
            Some(parent) => reader.session(&parent)?.and_then(|parent| parent.agent_session_id),
            None => None,
        };
    }
    Ok(None)
}

/// Returns true if a transcript has a row with this ID.
pub(crate) fn has_row(transcript: &Utf8Path, at: Uuid) -> bool {
    let text = at.to_string();
    let Ok(file) = untrusted_file::open(transcript) else { return false };
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
        // Only rows that contain the ID somewhere are parsed.
        let has_text = line.windows(text.len()).any(|part| part == text.as_bytes());
        if has_text && JobRow::parse(&line).is_ok_and(|row| row.uuid() == Some(at)) {
            return true;
        }
    }
}
