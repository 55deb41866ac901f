//! Writes the rows of a run, redacted. It is the only writer of rows in this process.
//!
//! Rows are written in order of arrival, one `write` each, the session's before the job's. A row
//! that the disk does not accept waits, and so do all rows after it: nothing is skipped. Start at
//! [`RunTranscriptWriter`].

use std::collections::VecDeque;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::recorder::RecordedRows;
use heeler_model::redact::SecretRedactor;
use heeler_model::run::TranscriptHashRecord;
use heeler_model::{RunId, error_chain};
use heeler_transcript::{
    AppendError, DiskError, TranscriptOpenError, TranscriptWriter, TranscriptWriterOptions,
    count_lines, create_folder,
};
use serde_json::Value as Json;

use crate::fault::{self, RunnerFaultPoint};
use crate::output_log::JobOutputLog;
use crate::transcript_segment::TranscriptHasher;

/// Key of the run ID in each row of a session transcript: another run may have continued the
/// session.
pub(crate) const RUN_KEY: &str = "runId";

/// Transcripts of a run.
#[derive(Debug)]
pub(crate) struct RunTranscriptWriter {
    session: TranscriptSink,
    job: TranscriptSink,
    redactor: SecretRedactor,
    /// Recorded in every row of the session transcript: settling must distinguish the run's rows
    /// from those of a run that continued the session.
    run: RunId,
    output: Option<JobOutputLog>,
    pending: VecDeque<PendingTranscriptRow>,
    /// Number of the next row in the job transcript.
    job_rows: u64,
    /// Rows that this run wrote to the job transcript.
    job_hasher: TranscriptHasher,
    /// Rows that this run wrote to the transcript of its present session.
    session_hasher: TranscriptHasher,
    /// Reason that rows were skipped because no transcript can hold them.
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
    /// Opens both transcripts and creates their directories where missing.
    pub(crate) fn open(
        session_log: &Utf8Path,
        job_log: &Utf8Path,
        options: &TranscriptWriterOptions,
        redactor: &SecretRedactor,
        run: RunId,
    ) -> Result<RunTranscriptWriter, TranscriptOpenError> {
        let session = TranscriptSink::create(session_log, options)?;
        // The folder of job logs is durable since the state directory was opened.
        let has_folder = job_log.parent().is_none_or(Utf8Path::is_dir);
        let job = match has_folder {
            true => TranscriptSink::open(job_log, options)?,
            false => TranscriptSink::create(job_log, options)?,
        };
        Ok(RunTranscriptWriter {
            job_rows: job.count_rows()?,
            job_hasher: TranscriptHasher::new(job.end()),
            session_hasher: TranscriptHasher::new(session.end()),
            session,
            job,
            redactor: redactor.clone(),
            run,
            output: None,
            pending: VecDeque::new(),
            skipped_reason: None,
        })
    }

    /// Also writes the job's rows as readable text.
    pub(crate) fn set_output(&mut self, output: JobOutputLog) {
        self.output = Some(output);
    }

    /// Opens the transcript of another session, for [`RunTranscriptWriter::change_session`].
    pub(crate) fn open_session(
        &self,
        session_log: &Utf8Path,
    ) -> Result<TranscriptSink, TranscriptOpenError> {
        TranscriptSink::create(session_log, &self.session.options)
    }

    /// Continues with the transcript of another session. All pending rows have been written to the
    /// old one.
    pub(crate) fn change_session(&mut self, session: TranscriptSink) {
        debug_assert!(self.is_flushed(), "rows of the old session wait");
        self.session_hasher = TranscriptHasher::new(session.end());
        self.session = session;
    }

    /// Returns the number of rows in the job transcript.
    pub(crate) fn job_rows(&self) -> u64 {
        self.job_rows
    }

    /// Returns the part of the job transcript that this run wrote.
    pub(crate) fn job_segment(&self) -> TranscriptHashRecord {
        self.job_hasher.segment()
    }

    /// Returns the part of the session transcript that this run wrote.
    pub(crate) fn session_segment(&self) -> TranscriptHashRecord {
        self.session_hasher.segment()
    }

    /// Returns the number of rows in the session transcript.
    pub(crate) fn count_session_rows(&self) -> Result<u64, DiskError> {
        self.session.count_rows()
    }

    /// Queues rows; [`RunTranscriptWriter::flush`] writes them.
    pub(crate) fn push(&mut self, rows: RecordedRows) {
        // The session's rows come first, because settling derives missing rows of the job from
        // them.
        let session = rows.session.into_iter().map(|row| (RunTranscriptKind::Session, row));
        for (log, row) in
            session.chain(rows.job.into_iter().map(|row| (RunTranscriptKind::Job, row)))
        {
            self.push_row(log, row);
        }
    }

    fn push_row(&mut self, log: RunTranscriptKind, mut row: Json) {
        // Last line of defence: texts that were redacted separately may form a secret when joined.
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
        self.skipped_reason =
            Some(format!("a row was skipped because no transcript can hold it: {reason}"));
    }

    /// Returns the reason that rows were skipped since the last call.
    pub(crate) fn take_skipped_reason(&mut self) -> Option<String> {
        self.skipped_reason.take()
    }

    /// Returns true if no row is pending.
    pub(crate) fn is_flushed(&self) -> bool {
        self.pending.is_empty()
    }

    /// Writes the pending rows. `on_row` receives each row of the job transcript once it is written,
    /// with its number.
    ///
    /// On an error the first pending row and all rows after it remain unwritten: try again later.
    pub(crate) fn flush(&mut self, on_row: &mut dyn FnMut(u64, &[u8])) -> Result<(), String> {
        while let Some(row) = self.pending.front() {
            let sink = match row.log {
                RunTranscriptKind::Session => &mut self.session,
                RunTranscriptKind::Job => &mut self.job,
            };
            match sink.append(&row.line) {
                Ok(()) => {}
                Err(RowWriteError::Disk(reason)) => return Err(reason),
                // A retry would fail again, and the rows behind it must not wait forever.
                Err(RowWriteError::Row(reason)) => {
                    self.pending.pop_front();
                    self.record_skipped_row(&reason);
                    continue;
                }
            }
            self.finish_row(on_row);
        }
        Ok(())
    }

    fn finish_row(&mut self, on_row: &mut dyn FnMut(u64, &[u8])) {
        let Some(PendingTranscriptRow { log, line }) = self.pending.pop_front() else { return };
        if log == RunTranscriptKind::Session {
            fault::point(RunnerFaultPoint::SessionRow);
            self.session_hasher.add_line(&line);
            return;
        }
        // A row is published only when it is written, so that no displayed row can be lost.
        fault::point(RunnerFaultPoint::JobRow);
        on_row(self.job_rows, &line);
        self.job_rows += 1;
        self.job_hasher.add_line(&line);
        if let Some(output) = &mut self.output {
            output.append_row(&line);
        }
    }

    /// Discards pending rows: the run ends although the disk accepts no more.
    pub(crate) fn discard_pending(&mut self) {
        self.pending.clear();
    }

    /// Makes both transcripts durable.
    pub(crate) fn sync(&mut self) -> Result<(), String> {
        // Both are synced, even if the first one fails.
        let session = self.session.sync();
        session.and(self.job.sync())
    }
}

/// Reason that a row was not written.
#[derive(Debug)]
enum RowWriteError {
    /// The disk does not accept it now.
    Disk(String),
    /// No transcript can hold it.
    Row(String),
}

/// One transcript, reopened after failures that require it.
#[derive(Debug)]
pub(crate) struct TranscriptSink {
    path: Utf8PathBuf,
    options: TranscriptWriterOptions,
    log: Option<TranscriptWriter>,
    /// End of the transcript before its last write, if the outcome of that write is unknown.
    uncertain_end: Option<u64>,
}

impl TranscriptSink {
    /// Opens a transcript, and makes its folder durable first.
    fn create(
        path: &Utf8Path,
        options: &TranscriptWriterOptions,
    ) -> Result<TranscriptSink, TranscriptOpenError> {
        if let Some(folder) = path.parent() {
            create_folder(options.disk.as_ref(), folder)?;
        }
        TranscriptSink::open(path, options)
    }

    fn open(
        path: &Utf8Path,
        options: &TranscriptWriterOptions,
    ) -> Result<TranscriptSink, TranscriptOpenError> {
        let log = TranscriptWriter::open(path, options.clone())?.writer;
        Ok(TranscriptSink {
            path: path.to_owned(),
            options: options.clone(),
            log: Some(log),
            uncertain_end: None,
        })
    }

    fn end(&self) -> u64 {
        self.log.as_ref().map_or(0, TranscriptWriter::end)
    }

    fn count_rows(&self) -> Result<u64, DiskError> {
        count_lines(&self.path)
    }

    fn append(&mut self, line: &[u8]) -> Result<(), RowWriteError> {
        let begin = self.open_log()?.end();
        // Repairing the transcript either cut the line off or completed it: its end shows which.
        if self.uncertain_end.take().is_some_and(|before| begin > before) {
            return Ok(());
        }
        let log = self.open_log()?;
        match log.append(line) {
            Ok(()) => Ok(()),
            // No part of the line remains, so the transcript can be used as it is.
            Err(error @ AppendError::Write { .. }) => Err(RowWriteError::Disk(error_chain(&error))),
            Err(error @ (AppendError::NotARecord { .. } | AppendError::TooLong { .. })) => {
                Err(RowWriteError::Row(error.to_string()))
            }
            Err(error @ (AppendError::HalfLine { .. } | AppendError::Sync(_))) => {
                // The line may be there in part or as a whole, which only repairing the transcript
                // decides.
                self.log = None;
                self.uncertain_end = Some(begin);
                Err(RowWriteError::Disk(error_chain(&error)))
            }
        }
    }

    /// Returns the transcript, reopened if necessary.
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
        // Opening a transcript syncs it.
        self.log = None;
        match self.open_log() {
            Ok(_) => Ok(()),
            Err(RowWriteError::Disk(reason) | RowWriteError::Row(reason)) => Err(reason),
        }
    }
}

#[cfg(test)]
mod tests;
