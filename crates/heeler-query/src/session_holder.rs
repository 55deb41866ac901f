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
        let Some(own) = session.agent_session_id else { return Ok(None) };
        let at_work = known.home.and_then(|home| heeler_store::session_holder(&home, &own));
        let mut recorded = reader.running_jobs()?.into_iter();
        let recorded = recorded.rfind(|head| head.session_id.as_ref() == Some(&own));
        let named = at_work.as_ref().and_then(|it| it.job.as_ref());
        let named = named.map(|job| reader.job(job)).transpose()?.flatten();
        let Some(head) = named.map(|job| job.head).or(recorded) else {
            let process = at_work.map(|it| it.holder);
            return Ok(process.map(|it| SessionHolderDetails {
                process: Some(it),
                job: None,
                lines: 0,
            }));
        };
        let log = self.job_transcript_path(&reader, &head)?.filter(|log| log.is_file());
        let lines = log.map(|log| count_lines(&log)).transpose()?.unwrap_or(0);
        let process = at_work.map(|it| it.holder);
        Ok(Some(SessionHolderDetails { process, job: Some(head.id.to_string()), lines }))
    }
}
