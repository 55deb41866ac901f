//! What the session's log tells of a run whose runner died.
//!
//! Rows that the job's log lacks are found by their ids, so that completing it twice adds nothing.
//! If the agent's last word was its result, or the runner's was how the run failed or why it was being
//! ended, that is how the run ended; otherwise it was interrupted. Start at [`SettledRunReport::read`].

use std::collections::HashSet;

use camino::Utf8Path;
use heeler_model::config::RuntimeType;
use heeler_model::message::{AgentMessage, MessageBody, parse_line, parse_row};
use heeler_model::outcome::{AgentProcessExit, RunOutcome, RunOutcomeBuilder};
use heeler_model::recorder::{
    CARRIED_OVER_KEY, EXIT_REASON_KEY, EXTERNAL_KEY, FAILURE_KEY, INTERRUPTION_KEY, SPENT_KEY,
    TranscriptRecorder,
};
use heeler_model::run::{
    ErrorClass, RunCost, RunEnd, RunError, RunSpec, RunStartRecord, SessionStart,
};
use heeler_model::{ExitReason, RunId, parse_iso};
use heeler_transcript::{DiskError, PageBoundary, TranscriptEntry, TranscriptScanner, read_range};
use jiff::Timestamp;
use serde_json::Value as Json;
use uuid::Uuid;

use super::RunSettleError;
use crate::claude::ClaudeBackgroundTasks;
use crate::session::{self, RunSessionHistory};
use crate::transcript_writer::RUN_KEY;

/// What is known of a run from its logs.
#[derive(Debug)]
pub(super) struct SettledRunReport {
    pub(super) end: RunEnd,
    pub(super) conclusion: RunOutcome,
    /// When the run's last row was written.
    pub(super) last_at: Option<Timestamp>,
    /// The last entry of the session that the run knows of.
    pub(super) last: Option<Uuid>,
    /// User and assistant messages in the session.
    pub(super) messages: u64,
    pub(super) tokens: u64,
    /// Whether the agent knows the session: it has been in it before, or has said something in it.
    pub(super) resumable: bool,
    /// How many rows the job's log lacked.
    pub(super) completed: u64,
}

impl SettledRunReport {
    /// Reads both logs, and hands each row that the job's log lacks to `append`, in order.
    pub(super) fn read(
        spec: &RunSpec,
        started: &RunStartRecord,
        append: &mut dyn FnMut(&Json) -> Result<(), RunSettleError>,
    ) -> Result<SettledRunReport, RunSettleError> {
        let mut known = job_row_ids(&spec.job_log, started.job_rows_before)?;
        let (log, session) = (&started.session_log, &started.session);
        let mut story = RunReplayState::new(spec.runtime);
        let mut completed = 0;
        if !log.is_file() {
            let cwd = spec.working_directory.clone();
            let recorder = TranscriptRecorder::new(session.clone(), cwd);
            return Ok(story.conclude(spec, started, &recorder, 0));
        }
        let begin = line_start(log, started.session_rows_before)?;
        let RunSessionHistory { mut recorder, last_result } =
            session::load_history_until(spec, log, session, begin)?;
        if let Some(result) = last_result {
            story.tally = story.tally.with_previous_result(&result);
        }
        for entry in TranscriptScanner::open_at(log, begin)? {
            let TranscriptEntry::Record(record) = entry? else { continue };
            let Some(row) = parse_row(&record.text) else { continue };
            let rows = recorder.replay_row(&row);
            if !belongs_to_run(&row, spec.run) {
                continue;
            }
            story.apply_row(&row, parse_line(record.text.as_bytes()));
            for row in rows {
                if row_uuid(&row).is_some_and(|uuid| known.insert(uuid)) {
                    append(&row)?;
                    completed += 1;
                }
            }
        }
        Ok(story.conclude(spec, started, &recorder, completed))
    }
}

/// What happened, as far as it decides how the run ended.
struct RunReplayState {
    tally: RunOutcomeBuilder,
    last_at: Option<Timestamp>,
    has_spoken: bool,
    /// The agent's last word was its result.
    is_done: bool,
    /// The runner's last word was how the run failed.
    failure: Option<(ExitReason, RunError)>,
    /// The run was being ended, for this reason: it counts, whatever the agent said then.
    interruption: Option<RunError>,
    background: ClaudeBackgroundTasks,
    /// What was spent beside the conversation.
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

    /// Takes a row of the run.
    fn apply_row(&mut self, row: &Json, message: AgentMessage) {
        self.last_at = row["timestamp"].as_str().and_then(parse_iso).or(self.last_at);
        if let Some(error) = row_error(row, FAILURE_KEY) {
            let reason = serde_json::from_value(row[EXIT_REASON_KEY].clone());
            self.failure = Some((reason.unwrap_or(error.class.exit_reason()), error));
            return;
        }
        if let Ok(spent) = serde_json::from_value::<RunCost>(row[SPENT_KEY].clone()) {
            self.side_cost = Some(spent);
        }
        self.interruption = self.interruption.take().or_else(|| row_error(row, INTERRUPTION_KEY));
        self.has_spoken |= is_agent_message(row);
        match &message.body {
            MessageBody::Result(result) => {
                self.is_done = result.queued_turns == 0 && self.background.is_empty();
            }
            MessageBody::Assistant(_) | MessageBody::User(_) => {
                (self.is_done, self.failure) = (false, None)
            }
            MessageBody::Task(task) => {
                self.background.update(task);
            }
            _ => {}
        }
        // Our own words are not the agent's.
        let is_own = row["type"] == "user" && row["message"]["content"].is_string();
        if !is_own && !matches!(message.body, MessageBody::System { .. }) {
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
        if let Some(aside) = &self.side_cost {
            conclusion.cost = aside.clone().plus(&conclusion.cost);
        }
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
        }
    }

    fn determine_end(&self) -> (RunEnd, RunOutcome) {
        let is_ours = self.failure.is_some() || self.interruption.is_some();
        if self.is_done && !is_ours {
            let exited =
                AgentProcessExit::Exited { code: None, signal: None, stderr: String::new() };
            return (RunEnd::Finished, self.tally.conclude(&exited));
        }
        let message = "the process that ran the agent died";
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
        conclusion.cost.usd = None;
        let error = RunError::new(ErrorClass::Interrupted, message);
        conclusion.error = Some(RunError { messages_received: received, ..error });
        (RunEnd::Interrupted, conclusion)
    }
}

/// Returns the error that the runner says of a row.
fn row_error(row: &Json, key: &str) -> Option<RunError> {
    serde_json::from_value(row[key].clone()).ok()
}

/// Says whether a row is the agent's word: a conversation with one can be resumed.
fn is_agent_message(row: &Json) -> bool {
    row["type"] == "assistant" && row["isApiErrorMessage"] != true
}

/// Rows from before rows named their run are of the run after whose start they stand. What a session
/// has from elsewhere is of no run.
fn belongs_to_run(row: &Json, run: RunId) -> bool {
    let is_foreign = row[EXTERNAL_KEY] == true || row[CARRIED_OVER_KEY] == true;
    !is_foreign && row[RUN_KEY].as_str().is_none_or(|of| of == run.to_string())
}

fn row_uuid(row: &Json) -> Option<Uuid> {
    Uuid::try_parse(row["uuid"].as_str()?).ok()
}

/// Returns the ids of the rows that the run has in the job's log.
fn job_row_ids(log: &Utf8Path, before: u64) -> Result<HashSet<Uuid>, DiskError> {
    let mut ids = HashSet::new();
    for entry in TranscriptScanner::open_at(log, line_start(log, before)?)? {
        let TranscriptEntry::Record(record) = entry? else { continue };
        let row = parse_row(&record.text).unwrap_or_default();
        ids.extend(row_uuid(&row));
    }
    Ok(ids)
}

/// Returns where the line with this number starts.
fn line_start(log: &Utf8Path, number: u64) -> Result<u64, DiskError> {
    Ok(read_range(log, PageBoundary::Line(number), 0)?.end)
}
