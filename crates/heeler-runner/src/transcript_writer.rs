//! The rows of a run: the one place of this process that writes them, redacted.
//!
//! Rows are written in the order in which they came, one `write` each, the session's before the
//! job's. One that the disk does not take waits, and everything after it: nothing is skipped.
//! Start at [`RunTranscriptWriter`].

use std::collections::VecDeque;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::recorder::RecordedRows;
use heeler_model::redact::SecretRedactor;
use heeler_model::{RunId, error_chain};
use heeler_transcript::{
    AppendError, DiskError, TranscriptOpenError, TranscriptWriter, TranscriptWriterOptions,
    count_lines, create_folder,
};
use serde_json::Value as Json;

use crate::fault::{self, RunnerFaultPoint};
use crate::output_log::JobOutputLog;

/// Names the run in each row of a session's log: another run may have gone on with the session.
pub(crate) const RUN_KEY: &str = "runId";

/// The logs of a run.
#[derive(Debug)]
pub(crate) struct RunTranscriptWriter {
    session: TranscriptSink,
    job: TranscriptSink,
    redactor: SecretRedactor,
    /// Named in every row of the session's log: who settles the run must know its rows from those of
    /// a run that went on with the session.
    run: RunId,
    output: Option<JobOutputLog>,
    pending: VecDeque<PendingTranscriptRow>,
    /// The number that the next row of the job log gets.
    job_rows: u64,
    /// Why rows were left out that no log can hold.
    skipped_reason: Option<String>,
}

#[derive(Debug)]
struct PendingTranscriptRow {
    log: RunTranscriptKind,
    line: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunTranscriptKind {
    Session,
    Job,
}

impl RunTranscriptWriter {
    /// Opens both logs, whose folders are made where they are missing.
    pub(crate) fn open(
        session_log: &Utf8Path,
        job_log: &Utf8Path,
        options: &TranscriptWriterOptions,
        redactor: &SecretRedactor,
        run: RunId,
    ) -> Result<RunTranscriptWriter, TranscriptOpenError> {
        let session = TranscriptSink::open(session_log, options)?;
        let job = TranscriptSink::open(job_log, options)?;
        Ok(RunTranscriptWriter {
            job_rows: job.count_rows()?,
            session,
            job,
            redactor: redactor.clone(),
            run,
            output: None,
            pending: VecDeque::new(),
            skipped_reason: None,
        })
    }

    /// Has the job's rows written as readable text too.
    pub(crate) fn set_output(&mut self, output: JobOutputLog) {
        self.output = Some(output);
    }

    /// Opens the log of another session, for [`RunTranscriptWriter::change_session`].
    pub(crate) fn open_session(
        &self,
        session_log: &Utf8Path,
    ) -> Result<TranscriptSink, TranscriptOpenError> {
        TranscriptSink::open(session_log, &self.session.options)
    }

    /// Goes on with the log of another session. Everything is written to the old one.
    pub(crate) fn change_session(&mut self, session: TranscriptSink) {
        debug_assert!(self.is_flushed(), "rows of the old session wait");
        self.session = session;
    }

    /// Returns how many lines the job's log has.
    pub(crate) fn job_rows(&self) -> u64 {
        self.job_rows
    }

    /// Returns how many lines the session's log has.
    pub(crate) fn count_session_rows(&self) -> Result<u64, DiskError> {
        self.session.count_rows()
    }

    /// Takes rows; [`RunTranscriptWriter::flush`] writes them.
    pub(crate) fn push(&mut self, rows: RecordedRows) {
        let session = rows.session.into_iter().map(|row| (RunTranscriptKind::Session, row));
        for (log, row) in
            session.chain(rows.job.into_iter().map(|row| (RunTranscriptKind::Job, row)))
        {
            self.push_row(log, row);
        }
    }

    fn push_row(&mut self, log: RunTranscriptKind, mut row: Json) {
        // The last guard: texts that were redacted one by one may be a secret when they are joined.
        self.redactor.redact_json(&mut row);
        if let (RunTranscriptKind::Session, Json::Object(row)) = (log, &mut row) {
            row.insert(RUN_KEY.to_owned(), self.run.to_string().into());
        }
        match serde_json::to_vec(&row) {
            Ok(line) => self.pending.push_back(PendingTranscriptRow { log, line }),
            Err(error) => self.record_skipped_row(&error.to_string()),
        }
    }

    fn record_skipped_row(&mut self, reason: &str) {
        self.skipped_reason = Some(format!("a row was left out that no log can hold: {reason}"));
    }

    /// Returns why rows were left out since it was last asked.
    pub(crate) fn take_skipped_reason(&mut self) -> Option<String> {
        self.skipped_reason.take()
    }

    /// Says whether everything is written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.pending.is_empty()
    }

    /// Writes what waits. `told` gets each row of the job's log once it is there, with its number.
    ///
    /// On an error the first row that waits is not written, and nothing after it: try again later.
    pub(crate) fn flush(&mut self, told: &mut dyn FnMut(u64, &[u8])) -> Result<(), String> {
        while let Some(row) = self.pending.front() {
            let sink = match row.log {
                RunTranscriptKind::Session => &mut self.session,
                RunTranscriptKind::Job => &mut self.job,
            };
            match sink.append(&row.line) {
                Ok(()) => {}
                Err(RowWriteError::Disk(reason)) => return Err(reason),
                Err(RowWriteError::Row(reason)) => {
                    self.pending.pop_front();
                    self.record_skipped_row(&reason);
                    continue;
                }
            }
            self.finish_row(told);
        }
        Ok(())
    }

    fn finish_row(&mut self, told: &mut dyn FnMut(u64, &[u8])) {
        let Some(PendingTranscriptRow { log, line }) = self.pending.pop_front() else { return };
        if log == RunTranscriptKind::Session {
            fault::point(RunnerFaultPoint::SessionRow);
            return;
        }
        fault::point(RunnerFaultPoint::JobRow);
        told(self.job_rows, &line);
        self.job_rows += 1;
        if let Some(output) = &mut self.output {
            output.append_row(&line);
        }
    }

    /// Gives up what waits: the run ends although the disk takes no more.
    pub(crate) fn discard_pending(&mut self) {
        self.pending.clear();
    }

    /// Returns when both logs survive a power loss.
    pub(crate) fn sync(&mut self) -> Result<(), String> {
        let session = self.session.sync();
        session.and(self.job.sync())
    }
}

/// Why a row was not written.
#[derive(Debug)]
enum RowWriteError {
    /// The disk does not take it now.
    Disk(String),
    /// No log can hold it.
    Row(String),
}

/// One log, which is opened again after a failure that calls for it.
#[derive(Debug)]
pub(crate) struct TranscriptSink {
    path: Utf8PathBuf,
    options: TranscriptWriterOptions,
    log: Option<TranscriptWriter>,
    /// Where the log ended when its last line was begun, if it is not known whether it is there.
    uncertain_end: Option<u64>,
}

impl TranscriptSink {
    fn open(
        path: &Utf8Path,
        options: &TranscriptWriterOptions,
    ) -> Result<TranscriptSink, TranscriptOpenError> {
        if let Some(folder) = path.parent() {
            create_folder(options.disk.as_ref(), folder)?;
        }
        let log = TranscriptWriter::open(path, options.clone())?.writer;
        Ok(TranscriptSink {
            path: path.to_owned(),
            options: options.clone(),
            log: Some(log),
            uncertain_end: None,
        })
    }

    fn count_rows(&self) -> Result<u64, DiskError> {
        count_lines(&self.path)
    }

    fn append(&mut self, line: &[u8]) -> Result<(), RowWriteError> {
        let begin = self.open_log()?.end();
        // The line was cut off when the log was repaired, or completed: its end tells which.
        if self.uncertain_end.take().is_some_and(|before| begin > before) {
            return Ok(());
        }
        let log = self.open_log()?;
        match log.append(line) {
            Ok(()) => Ok(()),
            Err(error @ AppendError::Write { .. }) => Err(RowWriteError::Disk(error_chain(&error))),
            Err(error @ (AppendError::NotARecord { .. } | AppendError::TooLong { .. })) => {
                Err(RowWriteError::Row(error.to_string()))
            }
            Err(error @ (AppendError::HalfLine { .. } | AppendError::Sync(_))) => {
                self.log = None;
                self.uncertain_end = Some(begin);
                Err(RowWriteError::Disk(error_chain(&error)))
            }
        }
    }

    /// Returns the log, opened again if need be.
    fn open_log(&mut self) -> Result<&mut TranscriptWriter, RowWriteError> {
        if self.log.is_none() {
            let opened = TranscriptWriter::open(&self.path, self.options.clone());
            self.log =
                Some(opened.map_err(|error| RowWriteError::Disk(error_chain(&error)))?.writer);
        }
        Ok(self.log.as_mut().expect("opened above"))
    }

    fn sync(&mut self) -> Result<(), String> {
        if let Some(log) = &mut self.log
            && log.sync().is_ok()
        {
            return Ok(());
        }
        // To open a log is to sync it.
        self.log = None;
        match self.open_log() {
            Ok(_) => Ok(()),
            Err(RowWriteError::Disk(reason) | RowWriteError::Row(reason)) => Err(reason),
        }
    }
}

#[cfg(test)]
mod tests;
