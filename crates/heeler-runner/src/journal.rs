//! The rows of a run: the one place of this process that writes them, redacted.
//!
//! Rows are written in the order in which they came, one `write` each, the session's before the
//! job's. One that the disk does not take waits, and everything after it: nothing is skipped.
//! Start at [`Journal`].

use std::collections::VecDeque;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::record::Rows;
use heeler_model::redact::Redactor;
use heeler_model::{RunId, chain};
use heeler_transcript::{AppendError, DiskError, Log, LogOptions, OpenError, count, create_folder};
use serde_json::Value as Json;

use crate::fault::{self, Point};
use crate::output::Output;

/// Names the run in each row of a session's log: another run may have gone on with the session.
pub(crate) const RUN_KEY: &str = "runId";

/// The logs of a run.
#[derive(Debug)]
pub(crate) struct Journal {
    session: Sink,
    job: Sink,
    redactor: Redactor,
    /// Named in every row of the session's log: who settles the run must know its rows from those of
    /// a run that went on with the session.
    run: RunId,
    output: Option<Output>,
    waiting: VecDeque<Row>,
    /// The number that the next row of the job log gets.
    job_rows: u64,
    /// Why rows were left out that no log can hold.
    left_out: Option<String>,
}

#[derive(Debug)]
struct Row {
    log: Which,
    line: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Session,
    Job,
}

impl Journal {
    /// Opens both logs, whose folders are made where they are missing.
    pub(crate) fn open(
        session_log: &Utf8Path,
        job_log: &Utf8Path,
        options: &LogOptions,
        redactor: &Redactor,
        run: RunId,
    ) -> Result<Journal, OpenError> {
        let session = Sink::open(session_log, options)?;
        let job = Sink::open(job_log, options)?;
        Ok(Journal {
            job_rows: job.rows()?,
            session,
            job,
            redactor: redactor.clone(),
            run,
            output: None,
            waiting: VecDeque::new(),
            left_out: None,
        })
    }

    /// Has the job's rows written as readable text too.
    pub(crate) fn set_output(&mut self, output: Output) {
        self.output = Some(output);
    }

    /// Opens the log of another session, for [`Journal::change_session`].
    pub(crate) fn open_session(&self, session_log: &Utf8Path) -> Result<Sink, OpenError> {
        Sink::open(session_log, &self.session.options)
    }

    /// Goes on with the log of another session. Everything is written to the old one.
    pub(crate) fn change_session(&mut self, session: Sink) {
        debug_assert!(self.is_clear(), "rows of the old session wait");
        self.session = session;
    }

    /// Returns how many lines the job's log has.
    pub(crate) fn job_rows(&self) -> u64 {
        self.job_rows
    }

    /// Returns how many lines the session's log has.
    pub(crate) fn count_session_rows(&self) -> Result<u64, DiskError> {
        self.session.rows()
    }

    /// Takes rows; [`Journal::flush`] writes them.
    pub(crate) fn push(&mut self, rows: Rows) {
        let session = rows.session.into_iter().map(|row| (Which::Session, row));
        for (log, row) in session.chain(rows.job.into_iter().map(|row| (Which::Job, row))) {
            self.push_row(log, row);
        }
    }

    fn push_row(&mut self, log: Which, mut row: Json) {
        // The last guard: texts that were redacted one by one may be a secret when they are joined.
        self.redactor.json(&mut row);
        if let (Which::Session, Json::Object(row)) = (log, &mut row) {
            row.insert(RUN_KEY.to_owned(), self.run.to_string().into());
        }
        match serde_json::to_vec(&row) {
            Ok(line) => self.waiting.push_back(Row { log, line }),
            Err(error) => self.leave_out(&error.to_string()),
        }
    }

    fn leave_out(&mut self, reason: &str) {
        self.left_out = Some(format!("a row was left out that no log can hold: {reason}"));
    }

    /// Returns why rows were left out since it was last asked.
    pub(crate) fn take_left_out(&mut self) -> Option<String> {
        self.left_out.take()
    }

    /// Says whether everything is written.
    pub(crate) fn is_clear(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Writes what waits. `told` gets each row of the job's log once it is there, with its number.
    ///
    /// On an error the first row that waits is not written, and nothing after it: try again later.
    pub(crate) fn flush(&mut self, told: &mut dyn FnMut(u64, &[u8])) -> Result<(), String> {
        while let Some(row) = self.waiting.front() {
            let sink = match row.log {
                Which::Session => &mut self.session,
                Which::Job => &mut self.job,
            };
            match sink.append(&row.line) {
                Ok(()) => {}
                Err(Trouble::Disk(reason)) => return Err(reason),
                Err(Trouble::Row(reason)) => {
                    self.waiting.pop_front();
                    self.leave_out(&reason);
                    continue;
                }
            }
            self.written(told);
        }
        Ok(())
    }

    fn written(&mut self, told: &mut dyn FnMut(u64, &[u8])) {
        let Some(Row { log, line }) = self.waiting.pop_front() else { return };
        if log == Which::Session {
            fault::point(Point::SessionRow);
            return;
        }
        fault::point(Point::JobRow);
        told(self.job_rows, &line);
        self.job_rows += 1;
        if let Some(output) = &mut self.output {
            output.row(&line);
        }
    }

    /// Gives up what waits: the run ends although the disk takes no more.
    pub(crate) fn give_up(&mut self) {
        self.waiting.clear();
    }

    /// Returns when both logs survive a power loss.
    pub(crate) fn sync(&mut self) -> Result<(), String> {
        let session = self.session.sync();
        session.and(self.job.sync())
    }
}

/// Why a row was not written.
#[derive(Debug)]
enum Trouble {
    /// The disk does not take it now.
    Disk(String),
    /// No log can hold it.
    Row(String),
}

/// One log, which is opened again after a failure that calls for it.
#[derive(Debug)]
pub(crate) struct Sink {
    path: Utf8PathBuf,
    options: LogOptions,
    log: Option<Log>,
    /// Where the log ended when its last line was begun, if it is not known whether it is there.
    doubt: Option<u64>,
}

impl Sink {
    fn open(path: &Utf8Path, options: &LogOptions) -> Result<Sink, OpenError> {
        if let Some(folder) = path.parent() {
            create_folder(options.disk.as_ref(), folder)?;
        }
        let log = Log::open(path, options.clone())?.log;
        Ok(Sink { path: path.to_owned(), options: options.clone(), log: Some(log), doubt: None })
    }

    fn rows(&self) -> Result<u64, DiskError> {
        count(&self.path)
    }

    fn append(&mut self, line: &[u8]) -> Result<(), Trouble> {
        let begin = self.ready()?.end();
        // The line was cut off when the log was repaired, or completed: its end tells which.
        if self.doubt.take().is_some_and(|before| begin > before) {
            return Ok(());
        }
        let log = self.ready()?;
        match log.append(line) {
            Ok(()) => Ok(()),
            Err(error @ AppendError::Write { .. }) => Err(Trouble::Disk(chain(&error))),
            Err(error @ (AppendError::NotARecord { .. } | AppendError::TooLong { .. })) => {
                Err(Trouble::Row(error.to_string()))
            }
            Err(error @ (AppendError::HalfLine { .. } | AppendError::Sync(_))) => {
                self.log = None;
                self.doubt = Some(begin);
                Err(Trouble::Disk(chain(&error)))
            }
        }
    }

    /// Returns the log, opened again if need be.
    fn ready(&mut self) -> Result<&mut Log, Trouble> {
        if self.log.is_none() {
            let opened = Log::open(&self.path, self.options.clone());
            self.log = Some(opened.map_err(|error| Trouble::Disk(chain(&error)))?.log);
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
        match self.ready() {
            Ok(_) => Ok(()),
            Err(Trouble::Disk(reason) | Trouble::Row(reason)) => Err(reason),
        }
    }
}

#[cfg(test)]
mod tests;
