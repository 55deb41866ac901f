//! Who is at work in a session.

use heeler_transcript::count_lines;

use crate::{FleetReader, QueryError, sessions};

/// Who is at work in a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionHolderDetails {
    /// The process, in words; none where only the record says that a job runs.
    pub process: Option<String>,
    /// The job that it works for, if that is one of this fleet.
    pub job: Option<String>,
    /// How many rows that job's transcript has.
    pub lines: u64,
}

impl FleetReader {
    /// Says who is at work in a session, whichever fleet it is of; nobody may be.
    pub fn session_holder(
        &self,
        session: &str,
    ) -> Result<Option<SessionHolderDetails>, QueryError> {
        let (known, reader) = (self.context(), self.reader()?);
        let session = sessions::find_session(&reader, session)?;
        let Some(own) = session.agent_session_id else { return Ok(None) };
        let at_work = known.home.and_then(|home| heeler_engine::session_holder(&home, &own));
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
