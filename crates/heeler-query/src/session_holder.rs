//! Process and job that are using a session.

use heeler_transcript::count_lines;

use crate::{FleetReader, QueryError, sessions};

/// Process and job that are using a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionHolderDetails {
    /// Description of the process; `None` if only the record of a running job exists.
    pub process: Option<String>,
    /// ID of the job, if it belongs to this fleet.
    pub job: Option<String>,
    /// Number of rows in the job's transcript.
    pub lines: u64,
}

impl FleetReader {
    /// Returns the process or job that is using a session, in any fleet; `None` if the session is
    /// not in use.
    pub fn session_holder(
        &self,
        session: &str,
    ) -> Result<Option<SessionHolderDetails>, QueryError> {
        let (known, reader) = (self.context(), self.reader()?);
        let session = sessions::find_session(&reader, session)?;
        let Some(native_id) = session.agent_session_id else { return Ok(None) };
        // The lock is the proof. The record may be older, or another fleet may use the session.
        let holder = known.home.and_then(|home| heeler_store::session_holder(&home, &native_id));
        let mut recorded = reader.running_jobs()?.into_iter();
        // The last one, because a session has at most one live job.
        let recorded = recorded.rfind(|head| head.session_id.as_ref() == Some(&native_id));
        let named = holder.as_ref().and_then(|it| it.job.as_ref());
        let named = named.map(|job| reader.job(job)).transpose()?.flatten();
        // The job that the lock names is certain; a record alone may be of a dead run.
        let Some(head) = named.map(|job| job.head).or(recorded) else {
            let process = holder.map(|it| it.holder);
            return Ok(process.map(|it| SessionHolderDetails {
                process: Some(it),
                job: None,
                lines: 0,
            }));
        };
        let log = self.job_transcript_path(&reader, &head)?.filter(|log| log.is_file());
        let lines = log.map(|log| count_lines(&log)).transpose()?.unwrap_or(0);
        let process = holder.map(|it| it.holder);
        Ok(Some(SessionHolderDetails { process, job: Some(head.id.to_string()), lines }))
    }
}
