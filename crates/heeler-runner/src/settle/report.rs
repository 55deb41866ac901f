//! Reconstructs the outcome of a run with a dead runner from the session transcript.
//!
//! Rows that the job transcript lacks are found by their IDs, so that completing it twice adds
//! nothing. If the runner's last row was the failure or the reason for ending the run, that is the
//! outcome; otherwise the run was interrupted. Success is never concluded, nor a lower cost: an agent
//! can write rows and kill its runner. Start at [`SettledRunReport::read`].

use std::collections::HashSet;

use camino::Utf8Path;
use heeler_config::RuntimeType;
use heeler_model::job_row::{JobRow, JobRowKind, envelope_content};
use heeler_model::message::{AgentMessage, MessageBody, parse_line, parse_row};
use heeler_model::outcome::{AgentProcessExit, RunOutcome, RunOutcomeBuilder};
use heeler_model::recorder::{
    CARRIED_OVER_KEY, EXIT_REASON_KEY, EXTERNAL_KEY, FAILURE_KEY, INTERRUPTION_KEY, SPENT_KEY,
    TranscriptRecorder,
};
use heeler_model::run::{
    ErrorClass, RunCost, RunEnd, RunError, RunSpec, RunStartRecord, SessionStart,
};
use heeler_model::{ExitReason, RunId, iso_millis};
use heeler_transcript::{DiskError, PageBoundary, TranscriptEntry, TranscriptScanner, read_range};
use jiff::Timestamp;
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::RunSettleError;
use crate::claude::ClaudeBackgroundTasks;
use crate::session::{self, RunSessionHistory};
use crate::transcript_writer::RUN_KEY;

/// Facts about a run derived from its transcripts.
#[derive(Debug)]
pub(super) struct SettledRunReport {
    pub(super) end: RunEnd,
    pub(super) conclusion: RunOutcome,
    /// Time of the run's last row.
    pub(super) last_at: Option<Timestamp>,
    /// Last entry of the session known to the run.
    pub(super) last: Option<Uuid>,
    /// Number of user and agent messages in the session.
    pub(super) messages: u64,
    pub(super) tokens: u64,
    /// The agent knows the session: it existed before, or the agent has produced output in it.
    pub(super) resumable: bool,
    /// Number of rows that the job transcript lacked.
    pub(super) completed: u64,
    /// Cost that the rows report.
    pub(super) spent_usd_min: Option<f64>,
}

impl SettledRunReport {
    /// Reads both transcripts and passes each row that the job transcript lacks to `append`, in
    /// order.
    pub(super) fn read(
        spec: &RunSpec,
        started: &RunStartRecord,
        append: &mut dyn FnMut(&Json) -> Result<(), RunSettleError>,
    ) -> Result<SettledRunReport, RunSettleError> {
        let mut known = job_row_ids(&spec.job_log, started.job_rows_before)?;
        let (log, session) = (&started.session_log, &started.session);
        let mut state = RunReplayState::new(spec.runtime);
        let mut completed = 0;
        // Each row is written to the session first, so without that transcript the job has none
        // either.
        if !log.is_file() {
            let cwd = spec.working_directory.clone();
            let recorder = TranscriptRecorder::new(session.clone(), cwd);
            let mut report = state.conclude(spec, started, &recorder, 0);
            report.close_job_log(spec.run, started.at, &mut known, append)?;
            return Ok(report);
        }
        let begin = line_start(log, started.session_rows_before)?;
        let RunSessionHistory { mut recorder, last_result } =
            session::load_history_until(spec, log, session, begin)?;
        // The agent reports totals of the session, of which earlier runs caused a part.
        if let Some(result) = last_result {
            state.tally = state.tally.with_previous_result(&result);
        }
        for entry in TranscriptScanner::open_at(log, begin)? {
            let TranscriptEntry::Record(record) = entry? else { continue };
            // A damaged line must not keep the run from ending.
            let Some(row) = parse_row(&record.text).map(JobRow::new) else { continue };
            // Rows of other runs are replayed too, because the counts are those of the whole
            // session.
            let rows = recorder.replay_row(row.as_json());
            if !belongs_to_run(row.as_json(), spec.run) {
                continue;
            }
            state.apply_row(&row, parse_line(record.text.as_bytes()));
            for row in rows {
                // Completing may have been cut off before, so rows that are there already are
                // skipped.
                if row_uuid(&row).is_some_and(|uuid| known.insert(uuid)) {
                    append(&row)?;
                    completed += 1;
                }
            }
        }
        let mut report = state.conclude(spec, started, &recorder, completed);
        report.close_job_log(spec.run, started.at, &mut known, append)?;
        Ok(report)
    }

    /// Adds the reason of the interruption as the last row of an interrupted run. The session has no
    /// such row: the next run may continue it as if nothing had happened.
    fn close_job_log(
        &mut self,
        run: RunId,
        started_at: Timestamp,
        known: &mut HashSet<Uuid>,
        append: &mut dyn FnMut(&Json) -> Result<(), RunSettleError>,
    ) -> Result<(), RunSettleError> {
        let Some(error) =
            self.conclusion.error.as_ref().filter(|_| self.end == RunEnd::Interrupted)
        else {
            return Ok(());
        };
        // Computed, so that settling again finds the row.
        let uuid = closing_row_id(run);
        if !known.insert(uuid) {
            return Ok(());
        }
        let at = self.last_at.unwrap_or(started_at).max(started_at);
        append(&json!({
            "type": "error",
            "message": error.message,
            "code": error.class,
            "recoverable": error.recoverable,
            "messages_received": error.messages_received,
            "cure": error.cure,
            "uuid": uuid,
            "timestamp": iso_millis(at),
        }))
    }
}

/// Returns the ID of the last row of an interrupted run.
pub(super) fn closing_row_id(run: RunId) -> Uuid {
    let digest = Sha256::digest(format!("{run} was interrupted").as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// Facts that decide the outcome of the run.
struct RunReplayState {
    tally: RunOutcomeBuilder,
    last_at: Option<Timestamp>,
    has_spoken: bool,
    /// The agent's last row was its result.
    is_done: bool,
    /// The runner's last row was the failure of the run.
    failure: Option<(ExitReason, RunError)>,
    /// Reason that the run was being ended; it counts regardless of later agent output.
    interruption: Option<RunError>,
    background: ClaudeBackgroundTasks,
    /// Cost outside the conversation.
    side_cost: Option<RunCost>,
}

impl RunReplayState {
    fn new(runtime: RuntimeType) -> RunReplayState {
        RunReplayState {
            tally: RunOutcomeBuilder::for_runtime(runtime),
            last_at: None,
            has_spoken: false,
            is_done: false,
            failure: None,
            interruption: None,
            background: ClaudeBackgroundTasks::default(),
            side_cost: None,
        }
    }

    /// Applies a row of the run.
    fn apply_row(&mut self, row: &JobRow, message: AgentMessage) {
        self.last_at = row.written_at().or(self.last_at);
        let fields = row.as_json();
        if let Some(error) = row_error(fields, FAILURE_KEY) {
            // A row without a readable reason still names the class, which implies one.
            let reason = serde_json::from_value(fields[EXIT_REASON_KEY].clone()).ok();
            // No runner records a failure with success; an agent may.
            let reason = reason.filter(|reason| *reason != ExitReason::Success);
            self.failure = Some((reason.unwrap_or(error.class.exit_reason()), error));
            return;
        }
        if let Ok(spent) = serde_json::from_value::<RunCost>(fields[SPENT_KEY].clone()) {
            self.side_cost = Some(spent);
        }
        // The first reason is the one for which the runner ended the run.
        self.interruption =
            self.interruption.take().or_else(|| row_error(fields, INTERRUPTION_KEY));
        self.has_spoken |= is_agent_message(row);
        match &message.body {
            MessageBody::Result(result) => {
                // A queued message or a background task begins another turn, which was then cut
                // off.
                self.is_done = result.queued_turns == 0 && self.background.is_empty();
            }
            MessageBody::Assistant(_) | MessageBody::User(_) => {
                // A failure or a result that is followed by more messages was not the end.
                (self.is_done, self.failure) = (false, None);
            }
            MessageBody::Task(task) => {
                self.background.update(task);
            }
            _ => {}
        }
        // A prompt recorded by the runner is not a message of the agent.
        let is_prompt = row.kind() == JobRowKind::User && envelope_content(fields).is_string();
        if !is_prompt && !matches!(message.body, MessageBody::System { .. }) {
            self.tally.add_message(&message);
        }
    }

    fn conclude(
        self,
        spec: &RunSpec,
        started: &RunStartRecord,
        recorder: &TranscriptRecorder,
        completed: u64,
    ) -> SettledRunReport {
        let (end, mut conclusion) = self.determine_end();
        let side_usd = self.side_cost.as_ref().and_then(|cost| cost.usd);
        let spent_usd_min = [self.tally.cost_usd(), side_usd].into_iter().flatten();
        let spent_usd_min = spent_usd_min.filter(|usd| *usd > 0.0).reduce(|sum, usd| sum + usd);
        if let Some(side_cost) = &self.side_cost {
            conclusion.cost = side_cost.clone().plus(&conclusion.cost);
        }
        // Rows that an agent changed may add up to any amount.
        conclusion.cost.usd = conclusion.cost.usd.filter(|usd| *usd >= 0.0);
        // The agent has the session if it was there before the run, or if the agent has replied.
        let resumed =
            matches!(&spec.session.start, SessionStart::Resume { id } if *id == started.session);
        SettledRunReport {
            end,
            conclusion,
            last_at: self.last_at,
            last: recorder.last(),
            messages: recorder.messages(),
            tokens: recorder.tokens(),
            resumable: (resumed || self.has_spoken) && spec.runtime != RuntimeType::Command,
            completed,
            spent_usd_min,
        }
    }

    fn determine_end(&self) -> (RunEnd, RunOutcome) {
        let message = match self.is_done {
            // The row is no proof that the agent had finished: the agent may have written it.
            true => "the process that ran the agent died after the agent had reported a result",
            false => "the process that ran the agent died",
        };
        let mut conclusion =
            self.tally.conclude(&AgentProcessExit::Internal { reason: message.to_owned() });
        let received = conclusion.error.map_or(0, |error| error.messages_received);
        let interruption = self.interruption.clone().map(|error| {
            let reason = error.class.exit_reason();
            (reason, RunError { messages_received: received, ..error })
        });
        if let Some((reason, error)) = self.failure.clone().or(interruption) {
            conclusion.exit_reason = reason;
            conclusion.error = Some(error);
            return (RunEnd::Finished, conclusion);
        }
        conclusion.exit_reason = ExitReason::Error;
        // The agent was cut off before it reported the cost of its last turn.
        conclusion.cost.usd = None;
        let error = RunError::new(ErrorClass::Interrupted, message);
        conclusion.error = Some(RunError { messages_received: received, ..error });
        (RunEnd::Interrupted, conclusion)
    }
}

/// Returns the error that the runner recorded in a row.
fn row_error(row: &Json, key: &str) -> Option<RunError> {
    serde_json::from_value(row[key].clone()).ok()
}

/// Returns true for a row of the agent: a conversation with one can be resumed.
fn is_agent_message(row: &JobRow) -> bool {
    row.kind() == JobRowKind::Assistant && row.as_json()["isApiErrorMessage"] != true
}

/// Returns true if a row belongs to the run. Rows from versions that recorded no run ID count as
/// the run's own, because only rows after its start are read. Imported and carried-over rows belong
/// to no run.
fn belongs_to_run(row: &Json, run: RunId) -> bool {
    let is_foreign = row[EXTERNAL_KEY] == true || row[CARRIED_OVER_KEY] == true;
    !is_foreign && row[RUN_KEY].as_str().is_none_or(|of| of == run.to_string())
}

fn row_uuid(row: &Json) -> Option<Uuid> {
    Uuid::try_parse(row["uuid"].as_str()?).ok()
}

/// Returns the IDs of the run's rows in the job transcript.
fn job_row_ids(log: &Utf8Path, before: u64) -> Result<HashSet<Uuid>, DiskError> {
    let mut ids = HashSet::new();
    for entry in TranscriptScanner::open_at(log, line_start(log, before)?)? {
        let TranscriptEntry::Record(record) = entry? else { continue };
        let row = parse_row(&record.text).unwrap_or_default();
        ids.extend(row_uuid(&row));
    }
    Ok(ids)
}

/// Returns the offset of the line with this number.
fn line_start(log: &Utf8Path, number: u64) -> Result<u64, DiskError> {
    Ok(read_range(log, PageBoundary::Line(number), 0)?.end)
}
