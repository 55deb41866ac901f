//! External messages: additions to a session since Heeler's last run.
//!
//! Agents have no lock of their own: resuming a session in a terminal adds to its native session.
//! Before a run continues a session, the native session is compared with its recorded position.
//! Nothing is written to it here. Start at [`RunExecutor::check_external_messages`].

use camino::Utf8Path;
use heeler_model::outcome::{AgentProcessExit, RunOutcome, RunOutcomeBuilder};
use heeler_model::recorder::{EXTERNAL_KEY, RecordedRows};
use heeler_model::run::{ErrorClass, RunEnd, RunError, RunResult, SessionStart};
use heeler_model::{AgentSessionId, NativeSessionPosition, error_chain};
use heeler_transcript::DiskError;
use serde_json::Value as Json;

use super::executor::RunExecutor;
use super::runner_error::RunPrepareError;
use crate::fault::{self, RunnerFaultPoint};
use crate::native_session;
use crate::session;
use crate::transcript_writer::RunTranscriptWriter;
use heeler_model::native_chain::NativeSessionChanges;

/// External messages, and their description for the job transcript.
#[derive(Debug, Default)]
pub(super) struct RunExternalMessages {
    rows: Vec<Json>,
    /// `None` if there are none.
    pub(super) note: Option<String>,
}

impl RunExecutor<'_> {
    /// Checks for external messages. Without permission to import them, the run ends with the
    /// returned result. Called under the session's lock.
    pub(super) fn check_external_messages(&self) -> Result<RunExternalMessages, Box<RunResult>> {
        let plan = &self.spec.session;
        // A new session has no past, and a fork does not write to its source.
        let (SessionStart::Resume { id } | SessionStart::Continue { source: id, .. }) = &plan.start
        else {
            return Ok(RunExternalMessages::default());
        };
        let found =
            self.native_sessions_folder().and_then(|folder| self.find_native_session(&folder, id));
        // A session that no run of Heeler has left behind has no position to compare with.
        let (Some(position), Some(native_file)) = (&plan.own, found) else {
            return Ok(RunExternalMessages::default());
        };
        let changes = match native_session::changes_since(&native_file, position) {
            Ok(changes) => changes,
            // A file that cannot be read may hold external messages.
            Err(error) => return Err(Box::new(self.not_started_result(error_chain(&error)))),
        };
        let description = match changes.has_changed() {
            true => describe_changes(&changes, &native_file),
            false => match self.find_rewrite(&native_file, position, id) {
                Ok(None) => return Ok(RunExternalMessages::default()),
                Ok(Some(what)) => format!(
                    "the native session ({native_file}) was changed outside Heeler since the last \
                     run: {what}"
                ),
                Err(error) => return Err(Box::new(self.not_started_result(error_chain(&error)))),
            },
        };
        if !plan.take_in {
            return Err(Box::new(self.moved_on_result(&description)));
        }
        // The source of a hand-over is not written to: the new session holds the rest.
        let goes_on = matches!(plan.start, SessionStart::Resume { .. });
        let rows = if goes_on { changes.added } else { Vec::new() };
        Ok(RunExternalMessages {
            rows,
            note: Some(format!("{description}; the messages are imported, as requested")),
        })
    }

    fn find_rewrite(
        &self,
        native_file: &Utf8Path,
        position: &NativeSessionPosition,
        id: &AgentSessionId,
    ) -> Result<Option<String>, DiskError> {
        let log = session::log_path(self.spec, id);
        native_session::find_rewrite(native_file, position, &log, self.host.redactor())
    }

    /// Finds the native session of a session.
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

    /// Appends external messages to the session transcript, except those already there: an earlier
    /// run may have been interrupted while doing so.
    pub(super) fn add_external_messages(
        &self,
        external_messages: &mut RunExternalMessages,
        journal: &mut RunTranscriptWriter,
    ) -> Result<(), RunPrepareError> {
        if external_messages.rows.is_empty() {
            return Ok(());
        }
        let known = session::row_ids(&session::log_path(self.spec, self.spec.session.start.id()))?;
        let mut rows = std::mem::take(&mut external_messages.rows);
        rows.retain(|row| row["uuid"].as_str().is_none_or(|uuid| !known.contains(uuid)));
        // The mark tells settling that these rows are no work of this run.
        rows.iter_mut().for_each(|row| row[EXTERNAL_KEY] = true.into());
        // They are no part of the job, so only the session gets them.
        journal.push(RecordedRows { session: rows, ..RecordedRows::default() });
        journal.flush(&mut |_, _| {}).map_err(RunPrepareError::Refused)?;
        fault::point(RunnerFaultPoint::ExternalMessagesAdded);
        Ok(())
    }
}

/// Describes the changes for people.
fn describe_changes(changes: &NativeSessionChanges, native_file: &Utf8Path) -> String {
    let count = changes.message_count();
    let added = match count {
        1 => "1 message was added".to_owned(),
        count => format!("{count} messages were added"),
    };
    let last = changes.added.last().and_then(|row| row["timestamp"].as_str());
    let last = last.map(|at| format!(", the last at {at}")).unwrap_or_default();
    if changes.is_replaced {
        return format!(
            "the native session ({native_file}) was replaced: the last messages of this session are no \
             longer in it, and {added} to it{last}"
        );
    }
    match changes.dropped {
        0 => format!(
            "the session was continued outside Heeler: {added} to the native session ({native_file}){last}"
        ),
        dropped => format!(
            "the session was written outside Heeler during a run: {added} to the native session \
             ({native_file}){last}, and the conversation continues from those, so the agent does not \
             remember the last {dropped} of this session"
        ),
    }
}
