//! The process that holds the lock of a native session.

use camino::Utf8Path;
use heeler_model::{AgentSessionId, JobId};
use heeler_transcript::LockFile;

/// Process that uses a session.
#[derive(Debug)]
pub struct SessionHolder {
    /// Description of the process.
    pub holder: String,
    /// Its job, if the process is a runner.
    pub job: Option<JobId>,
}

/// Returns the holder of a session's lock, also if it belongs to another fleet. A lock that cannot
/// be probed counts as free; the runner checks it again.
pub fn session_holder(home: &Utf8Path, id: &AgentSessionId) -> Option<SessionHolder> {
    // Locks of sessions are outside the state directory, because a session may belong to any fleet.
    let holder = LockFile::probe(&home.join("locks").join(id.as_str())).ok()??.holder;
    // A runner's lock names its job.
    let command = holder.as_ref().map(|it| it.command.as_str()).unwrap_or_default();
    let job = command.strip_prefix("runner ").and_then(|job| job.parse().ok());
    let holder = holder.map_or("another process".to_owned(), |it| it.to_string());
    Some(SessionHolder { holder, job })
}
