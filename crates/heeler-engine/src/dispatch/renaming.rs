//! Titles that people give to jobs and sessions.
//!
//! Start at [`DispatchTransaction::rename`].

use heeler_model::{JobId, job_title};

use super::commands::job_not_found;
use super::transaction::DispatchTransaction;
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind, RenamedItem};
use crate::dispatch_failure::DispatchFailure;

impl DispatchTransaction<'_, '_> {
    /// Sets the title of a job, or of a session: that of its first job.
    pub(super) fn rename(
        &mut self,
        item: &RenamedItem,
        title: &str,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        // One line of limited length, like a title that comes from a prompt.
        let Some(title) = job_title(title) else {
            let message = "the title has no text";
            return Err(DaemonCommandError::new(DaemonCommandErrorKind::Usage, message).into());
        };
        let (job, name) = match item {
            RenamedItem::Job(job) => (job.clone(), job.to_string()),
            RenamedItem::Session(session) => {
                (self.first_job_of_session(session)?, session.to_string())
            }
        };
        if self.tx.job(&job)?.is_none() {
            return Err(job_not_found(&job).into());
        }
        self.tx.set_job_title(&job, &title)?;
        tracing::info!(%job, by, title, "a title was set");
        Ok(Some(CommandReply::Done { message: format!("{name}: {title}") }))
    }

    fn first_job_of_session(&self, id: &heeler_model::SessionId) -> Result<JobId, DispatchFailure> {
        let refuse = |kind: DaemonCommandErrorKind, text: String| {
            DispatchFailure::from(DaemonCommandError::new(kind, text))
        };
        let Some(session) = self.tx.session(id)? else {
            return Err(refuse(DaemonCommandErrorKind::NotFound, format!("no session {id}")));
        };
        let jobs = session.agent_session_id.map(|own| self.tx.job_ids_of_session(&own));
        let first = jobs.transpose()?.and_then(|jobs| jobs.into_iter().next());
        first.ok_or_else(|| {
            let text = format!("session {id} has no job yet, and takes the title of its first one");
            refuse(DaemonCommandErrorKind::NotAllowed, text)
        })
    }
}
