//! What the session's log tells of a run whose runner died.
//!
//! Rows that the job's log lacks are found by their ids, so that completing it twice adds nothing.
//! If the agent's last word was its result, or the runner's was how the run failed or why it was being
//! ended, that is how the run ended; otherwise it was interrupted. Start at [`Account::read`].

use std::collections::HashSet;

use camino::Utf8Path;
use heeler_model::config::RuntimeType;
use heeler_model::message::{Body, Message, read_line, read_row};
use heeler_model::outcome::{Conclusion, Ending, Tally};
use heeler_model::record::{
    CARRIED_KEY, EXIT_REASON_KEY, FAILURE_KEY, INTERRUPTION_KEY, OUTSIDE_KEY, Recorder, SPENT_KEY,
};
use heeler_model::run::{Cost, End, ErrorClass, RunError, RunSpec, SessionStart, Started};
use heeler_model::{ExitReason, RunId, from_iso};
use heeler_transcript::{Before, DiskError, Entry, Scan, range};
use jiff::Timestamp;
use serde_json::Value as Json;
use uuid::Uuid;

use super::SettleError;
use crate::claude::Background;
use crate::journal::RUN_KEY;
use crate::session::{self, History};

/// What is known of a run from its logs.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) end: End,
    pub(super) conclusion: Conclusion,
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

impl Account {
    /// Reads both logs, and hands each row that the job's log lacks to `append`, in order.
    pub(super) fn read(
        spec: &RunSpec,
        started: &Started,
        append: &mut dyn FnMut(&Json) -> Result<(), SettleError>,
    ) -> Result<Account, SettleError> {
        let mut known = job_rows(&spec.job_log, started.job_rows_before)?;
        let (log, session) = (&started.session_log, &started.session);
        let mut story = Story::new(spec.runtime);
        let mut completed = 0;
        if !log.is_file() {
            let cwd = spec.working_directory.clone();
            let recorder = Recorder::new(session.clone(), cwd);
            return Ok(story.conclude(spec, started, &recorder, 0));
        }
        let begin = line_start(log, started.session_rows_before)?;
        let History { mut recorder, last_result } =
            session::history_until(spec, log, session, begin)?;
        if let Some(result) = last_result {
            story.tally = story.tally.after(&result);
        }
        for entry in Scan::open_at(log, begin)? {
            let Entry::Record(record) = entry? else { continue };
            let Some(row) = read_row(&record.text) else { continue };
            let rows = recorder.replay(&row);
            if !is_of(&row, spec.run) {
                continue;
            }
            story.row(&row, read_line(record.text.as_bytes()));
            for row in rows {
                if uuid(&row).is_some_and(|uuid| known.insert(uuid)) {
                    append(&row)?;
                    completed += 1;
                }
            }
        }
        Ok(story.conclude(spec, started, &recorder, completed))
    }
}

/// What happened, as far as it decides how the run ended.
struct Story {
    tally: Tally,
    last_at: Option<Timestamp>,
    has_spoken: bool,
    /// The agent's last word was its result.
    is_done: bool,
    /// The runner's last word was how the run failed.
    failure: Option<(ExitReason, RunError)>,
    /// The run was being ended, for this reason: it counts, whatever the agent said then.
    interruption: Option<RunError>,
    background: Background,
    /// What was spent beside the conversation.
    aside: Option<Cost>,
}

impl Story {
    fn new(runtime: RuntimeType) -> Story {
        Story {
            tally: Tally::of(runtime),
            last_at: None,
            has_spoken: false,
            is_done: false,
            failure: None,
            interruption: None,
            background: Background::default(),
            aside: None,
        }
    }

    /// Takes a row of the run.
    fn row(&mut self, row: &Json, message: Message) {
        self.last_at = row["timestamp"].as_str().and_then(from_iso).or(self.last_at);
        if let Some(error) = error_in(row, FAILURE_KEY) {
            let reason = serde_json::from_value(row[EXIT_REASON_KEY].clone());
            self.failure = Some((reason.unwrap_or(error.class.exit_reason()), error));
            return;
        }
        if let Ok(spent) = serde_json::from_value::<Cost>(row[SPENT_KEY].clone()) {
            self.aside = Some(spent);
        }
        self.interruption = self.interruption.take().or_else(|| error_in(row, INTERRUPTION_KEY));
        self.has_spoken |= is_said(row);
        match &message.body {
            Body::Result(result) => {
                self.is_done = result.queued_turns == 0 && self.background.is_empty();
            }
            Body::Assistant(_) | Body::User(_) => (self.is_done, self.failure) = (false, None),
            Body::Task(task) => {
                self.background.take(task);
            }
            _ => {}
        }
        // Our own words are not the agent's.
        let is_own = row["type"] == "user" && row["message"]["content"].is_string();
        if !is_own && !matches!(message.body, Body::System { .. }) {
            self.tally.message(&message);
        }
    }

    fn conclude(
        self,
        spec: &RunSpec,
        started: &Started,
        recorder: &Recorder,
        completed: u64,
    ) -> Account {
        let (end, mut conclusion) = self.judge();
        if let Some(aside) = &self.aside {
            conclusion.cost = aside.clone().plus(&conclusion.cost);
        }
        let resumed =
            matches!(&spec.session.start, SessionStart::Resume { id } if *id == started.session);
        Account {
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

    fn judge(&self) -> (End, Conclusion) {
        let is_ours = self.failure.is_some() || self.interruption.is_some();
        if self.is_done && !is_ours {
            let exited = Ending::Exited { code: None, signal: None, stderr: String::new() };
            return (End::Finished, self.tally.conclude(&exited));
        }
        let message = "the process that ran the agent died";
        let mut conclusion = self.tally.conclude(&Ending::Internal { reason: message.to_owned() });
        let received = conclusion.error.map_or(0, |error| error.messages_received);
        let interruption = self.interruption.clone().map(|error| {
            let reason = error.class.exit_reason();
            (reason, RunError { messages_received: received, ..error })
        });
        if let Some((reason, error)) = self.failure.clone().or(interruption) {
            conclusion.exit_reason = reason;
            conclusion.error = Some(error);
            return (End::Finished, conclusion);
        }
        conclusion.exit_reason = ExitReason::Error;
        conclusion.cost.usd = None;
        let error = RunError::of(ErrorClass::Interrupted, message);
        conclusion.error = Some(RunError { messages_received: received, ..error });
        (End::Interrupted, conclusion)
    }
}

/// Returns the error that the runner says of a row.
fn error_in(row: &Json, key: &str) -> Option<RunError> {
    serde_json::from_value(row[key].clone()).ok()
}

/// Says whether a row is the agent's word: a conversation with one can be resumed.
fn is_said(row: &Json) -> bool {
    row["type"] == "assistant" && row["isApiErrorMessage"] != true
}

/// Rows from before rows named their run are of the run after whose start they stand. What a session
/// has from elsewhere is of no run.
fn is_of(row: &Json, run: RunId) -> bool {
    let is_foreign = row[OUTSIDE_KEY] == true || row[CARRIED_KEY] == true;
    !is_foreign && row[RUN_KEY].as_str().is_none_or(|of| of == run.to_string())
}

fn uuid(row: &Json) -> Option<Uuid> {
    Uuid::try_parse(row["uuid"].as_str()?).ok()
}

/// Returns the ids of the rows that the run has in the job's log.
fn job_rows(log: &Utf8Path, before: u64) -> Result<HashSet<Uuid>, DiskError> {
    let mut ids = HashSet::new();
    for entry in Scan::open_at(log, line_start(log, before)?)? {
        let Entry::Record(record) = entry? else { continue };
        let row = read_row(&record.text).unwrap_or_default();
        ids.extend(uuid(&row));
    }
    Ok(ids)
}

/// Returns where the line with this number starts.
fn line_start(log: &Utf8Path, number: u64) -> Result<u64, DiskError> {
    Ok(range(log, Before::Line(number), 0)?.end)
}
