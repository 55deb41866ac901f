//! What somebody else did with the session since we left it.
//!
//! The agent has no lock of its own: whoever resumes a session in a terminal adds to its record. Before
//! a run goes on with a session, that record is compared with the place where we left it. Nothing is
//! written to it here. Start at [`RunExecutor::check_external_messages`].

use camino::Utf8Path;
use heeler_model::outcome::{AgentProcessExit, RunOutcome, RunOutcomeBuilder};
use heeler_model::recorder::{EXTERNAL_KEY, RecordedRows};
use heeler_model::run::{ErrorClass, RunEnd, RunError, RunResult, SessionStart};
use heeler_model::{AgentSessionId, error_chain};
use serde_json::Value as Json;

use super::RunExecutor;
use super::prepare::RunPrepareError;
use crate::fault::{self, RunnerFaultPoint};
use crate::native_session::{self, NativeSessionChanges};
use crate::session;
use crate::transcript_writer::RunTranscriptWriter;

/// What others said, and what the job's log says of it.
#[derive(Debug, Default)]
pub(super) struct RunExternalMessages {
    rows: Vec<Json>,
    /// None where nobody went on.
    pub(super) note: Option<String>,
}

impl RunExecutor<'_> {
    /// Looks whether somebody else went on with the session; without leave to take that in, the run
    /// has ended with this result. Called under the session's lock.
    pub(super) fn check_external_messages(&self) -> Result<RunExternalMessages, Box<RunResult>> {
        let plan = &self.spec.session;
        let (SessionStart::Resume { id } | SessionStart::Continue { source: id, .. }) = &plan.start
        else {
            return Ok(RunExternalMessages::default());
        };
        let found =
            self.native_sessions_folder().and_then(|folder| self.find_native_session(&folder, id));
        let (Some(left), Some(own)) = (&plan.own, found) else {
            return Ok(RunExternalMessages::default());
        };
        let since = match native_session::changes_since(&own, left) {
            Ok(since) => since,
            Err(error) => return Err(Box::new(self.not_started_result(error_chain(&error)))),
        };
        if !since.has_changed() {
            return Ok(RunExternalMessages::default());
        }
        let told = describe_changes(&since, &own);
        if !plan.take_in {
            return Err(Box::new(self.moved_on_result(&told)));
        }
        // Of a session that another goes on from, nothing is written: the new one has the rest.
        let goes_on = matches!(plan.start, SessionStart::Resume { .. });
        let rows = if goes_on { since.added } else { Vec::new() };
        Ok(RunExternalMessages { rows, note: Some(format!("{told}; it is taken in, as asked")) })
    }

    /// Finds the agent's own record of a session.
    pub(super) fn find_native_session(
        &self,
        folder: &Utf8Path,
        id: &AgentSessionId,
    ) -> Option<camino::Utf8PathBuf> {
        native_session::find_session(folder, &self.spec.working_directory, id)
    }

    fn moved_on_result(&self, message: &str) -> RunResult {
        let error = Some(RunError::new(ErrorClass::SessionMovedOn, message));
        let reason = message.to_owned();
        let conclusion =
            RunOutcomeBuilder::new().conclude(&AgentProcessExit::NotStarted { reason });
        let mut result = self.base_result(RunEnd::Finished, RunOutcome { error, ..conclusion });
        result.redact(self.host.redactor());
        result
    }

    /// Adds what others said to the session's log, as far as it is not there: a run before may have
    /// been cut off in this.
    pub(super) fn add_external_messages(
        &self,
        outside: &mut RunExternalMessages,
        journal: &mut RunTranscriptWriter,
    ) -> Result<(), RunPrepareError> {
        if outside.rows.is_empty() {
            return Ok(());
        }
        let known = session::row_ids(&session::log_path(self.spec, self.spec.session.start.id()))?;
        let mut rows = std::mem::take(&mut outside.rows);
        rows.retain(|row| row["uuid"].as_str().is_none_or(|uuid| !known.contains(uuid)));
        rows.iter_mut().for_each(|row| row[EXTERNAL_KEY] = true.into());
        journal.push(RecordedRows { session: rows, ..RecordedRows::default() });
        journal.flush(&mut |_, _| {}).map_err(RunPrepareError::Refused)?;
        fault::point(RunnerFaultPoint::ExternalMessagesAdded);
        Ok(())
    }
}

/// Says what happened, for people.
fn describe_changes(since: &NativeSessionChanges, own: &Utf8Path) -> String {
    let count = since.message_count();
    let added = match count {
        1 => "1 message was added".to_owned(),
        count => format!("{count} messages were added"),
    };
    let last = since.added.last().and_then(|row| row["timestamp"].as_str());
    let last = last.map(|at| format!(", the last at {at}")).unwrap_or_default();
    if since.is_replaced {
        return format!(
            "the agent's own record of the session ({own}) is another one than we left: what was \
             said last is not in it any more, and {added} to it{last}"
        );
    }
    match since.dropped {
        0 => format!(
            "somebody else went on with the session: {added} to the agent's own record ({own}){last}"
        ),
        dropped => format!(
            "somebody else wrote to the session at the same time: {added} to the agent's own record \
             ({own}){last}, and it goes on from those, so that the agent does not remember the last \
             {dropped} of this session"
        ),
    }
}
