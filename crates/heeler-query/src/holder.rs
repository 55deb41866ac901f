//! Who is at work in a session.

use heeler_transcript::count;

use crate::{QueryError, Records, sessions};

/// Who is at work in a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// The process, in words; none where only the record says that a job runs.
    pub process: Option<String>,
    /// The job that it works for, if that is one of this fleet.
    pub job: Option<String>,
    /// How many rows that job's transcript has.
    pub lines: u64,
}

impl Records {
    /// Says who is at work in a session, whichever fleet it is of; nobody may be.
    pub fn holder(&self, session: &str) -> Result<Option<Holder>, QueryError> {
        let (known, reader) = (self.known(), self.reader()?);
        let session = sessions::find(&reader, session)?;
        let Some(own) = session.agent_session_id else { return Ok(None) };
        let at_work = known.home.and_then(|home| heeler_engine::at_work(&home, &own));
        let mut recorded = reader.running_jobs()?.into_iter();
        let recorded = recorded.rfind(|head| head.session_id.as_ref() == Some(&own));
        let named = at_work.as_ref().and_then(|it| it.job.as_ref());
        let named = named.map(|job| reader.job(job)).transpose()?.flatten();
        let Some(head) = named.map(|job| job.head).or(recorded) else {
            let process = at_work.map(|it| it.holder);
            return Ok(process.map(|it| Holder { process: Some(it), job: None, lines: 0 }));
        };
        let log = self.log_of(&reader, &head)?.filter(|log| log.is_file());
        let lines = log.map(|log| count(&log)).transpose()?.unwrap_or(0);
        let process = at_work.map(|it| it.holder);
        Ok(Some(Holder { process, job: Some(head.id.to_string()), lines }))
    }
}
