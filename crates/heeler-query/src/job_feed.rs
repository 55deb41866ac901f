//! Follows a job as it runs: its rows, text as it is written, questions, and its end.
//!
//! [`JobFeed`] is for one follower of one job: the command line and conversations. It outlives runs
//! and daemons. [`TranscriptFeed`] is the part of it that knows files and sockets only; the server
//! uses it directly, because its streams start at the end of a file, serve sessions too, and learn
//! of recorded changes from the daemon itself. [`MultiJobFeed`] follows only the files, of any number
//! of jobs, and needs neither run nor daemon.

mod multi_job_feed;
mod open_questions;
mod recorded_state;
mod row_position;
mod run_listener;
mod transcript_feed;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_model::job_row::{JobRow, JobRowKind};
use heeler_model::run::{AgentQuestion, RunState};
use heeler_model::{JobId, RunId};
use heeler_store::StateDir;
use heeler_transcript::LockFile;
use jiff::Timestamp;

use crate::unpublished_views::UnpublishedViews;

pub use self::multi_job_feed::{MultiJobFeed, MultiJobFeedEvent};
use self::open_questions::OpenQuestions;
use self::recorded_state::{RecordedJobState, read_job_state};
pub use self::row_position::{RowPosition, RowPositionParseError};
pub use self::run_listener::StateReports;
pub use self::transcript_feed::{FeedStart, TranscriptFeed, TranscriptFeedEvent};

/// Interval at which the recorded state is read if no commit was announced.
const STATE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a feed whose end is known checks if all rows were returned.
const END_INTERVAL: Duration = Duration::from_millis(20);
/// Time without any writer of the state after which an active job counts as unattended. A daemon
/// that is being replaced is absent for a moment.
const UNATTENDED_AFTER: Duration = Duration::from_secs(2);
/// Longest wait for the views of an ended job. One that cannot be written must not hold a follower.
const VIEWS_WAIT: Duration = Duration::from_secs(5);
/// Silence of a run, after its job's result is recorded, that counts as its end.
const LAST_ROWS_WAIT: Duration = Duration::from_secs(2);

/// Event of a followed job.
#[derive(Debug)]
pub enum JobFeedEvent {
    /// A row of the job's transcript with its number. Each row comes once, in order.
    Row(u64, JobRow),
    /// The deltas since the last row belong to this row, which came before.
    RepeatedRow(u64, JobRow),
    /// Part of an unfinished message; its row follows. Parts come from the beginning of a message
    /// and without gap, or not at all.
    Delta(String),
    /// Deltas were lost; the next rows hold the text so far.
    Lagged,
    /// A question, once.
    QuestionAsked(AgentQuestion),
    /// A question was answered or withdrawn, or its run has ended: its ID.
    QuestionSettled(String),
    /// The disk rejects writes (with the reason), or accepts them again (`None`).
    DiskStatus(Option<String>),
    /// Cost of the run up to now, in US dollars.
    Cost(f64),
    /// The run in this folder executes the job.
    RunStarted(Utf8PathBuf),
    /// The last run has written its last row.
    RunEnded,
    /// The job has run, and is queued to continue later.
    Delayed {
        reason: String,
        /// Earliest time.
        at: Timestamp,
    },
    /// The job has not ended, and no daemon runs.
    Unattended,
    /// The last event: the result is recorded or no daemon has the job, and all rows came before.
    Ended(FeedEnd),
}

/// Reason for the end of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedEnd {
    /// The result of the job is recorded, or its record no longer exists.
    Recorded,
    /// No daemon has the job ([`JobFeedHandle::abandon`]).
    Abandoned,
}

/// Controls a [`JobFeed`] from another thread.
#[derive(Debug, Clone, Default)]
pub struct JobFeedHandle {
    is_abandoned: Arc<AtomicBool>,
}

impl JobFeedHandle {
    /// Makes the feed end with the current run, because no daemon will start another one.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }
}

/// Follower of one job.
#[derive(Debug)]
pub struct JobFeed {
    dir: StateDir,
    job: JobId,
    transcript: TranscriptFeed,
    pending: VecDeque<JobFeedEvent>,
    /// Number of the next row in the file.
    next_row: u64,
    /// Number of rows that the follower has.
    rows_known: u64,
    /// Line of the next row.
    next_line: u64,
    /// Bytes of the current message that were returned as deltas.
    delta_bytes: u64,
    questions: OpenQuestions,
    cost: Option<f64>,
    recorded: RecordedStateTracker,
    run_status: FollowedRunStatus,
    end: Option<FeedEnd>,
    /// Time of the last row, or of the recorded end if it was later.
    row_at: Instant,
    handle: JobFeedHandle,
    is_over: bool,
}

/// Status of the newest run.
#[derive(Debug, PartialEq, Eq)]
enum FollowedRunStatus {
    None,
    Followed,
    Ended,
}

/// Last recorded state that was reported.
#[derive(Debug)]
struct RecordedStateTracker {
    read_at: Option<Instant>,
    run: Option<RunId>,
    delayed: Option<(String, Timestamp)>,
    /// Time at which a writer of the state was last seen.
    written_at: Instant,
    is_unattended: bool,
    /// Views of the ended job that are not published yet, and the time at which its end was seen.
    unpublished: Option<(UnpublishedViews, Instant)>,
}

impl JobFeed {
    /// Follows a job. The first `from` rows are known to the follower.
    pub fn new(dir: StateDir, job: JobId, from: u64) -> JobFeed {
        let mut transcript = TranscriptFeed::new(FeedStart::Beginning, StateReports::Requested);
        transcript.open_file(&dir.job_transcript(&job));
        // The writer of the state announces each commit by this file.
        transcript.watch_file(&dir.lock());
        let now = Instant::now();
        JobFeed {
            dir,
            job,
            transcript,
            pending: VecDeque::new(),
            next_row: 0,
            rows_known: from,
            next_line: 0,
            delta_bytes: 0,
            questions: OpenQuestions::default(),
            cost: None,
            recorded: RecordedStateTracker {
                read_at: None,
                run: None,
                delayed: None,
                written_at: now,
                is_unattended: false,
                unpublished: None,
            },
            run_status: FollowedRunStatus::None,
            end: None,
            row_at: now,
            handle: JobFeedHandle::default(),
            is_over: false,
        }
    }

    pub fn handle(&self) -> JobFeedHandle {
        self.handle.clone()
    }

    /// Returns true once the last event was returned.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the next event; `None` if there is none within this time, or after the last one.
    pub fn next(&mut self, wait: Duration) -> Option<JobFeedEvent> {
        let deadline = Instant::now() + wait;
        while !self.is_over {
            if let Some(event) = self.pending.pop_front() {
                self.is_over = matches!(event, JobFeedEvent::Ended(_));
                return Some(event);
            }
            self.check_recorded_state();
            let left = deadline.saturating_duration_since(Instant::now());
            let interval = if self.end.is_some() { END_INTERVAL } else { STATE_INTERVAL };
            match self.transcript.next(left.min(interval)) {
                Some(event) => self.handle_transcript_event(event),
                None => self.check_end(),
            }
            if self.pending.is_empty() && deadline <= Instant::now() {
                return None;
            }
        }
        None
    }

    /// Passes all events to a function, until the last one or until the function returns false.
    pub fn forward(mut self, mut send: impl FnMut(JobFeedEvent) -> bool) {
        while !self.is_over {
            if let Some(event) = self.next(UNATTENDED_AFTER)
                && !send(event)
            {
                return;
            }
        }
    }

    fn push(&mut self, event: JobFeedEvent) {
        self.pending.push_back(event);
    }

    fn handle_transcript_event(&mut self, event: TranscriptFeedEvent) {
        match event {
            TranscriptFeedEvent::Row { position, text } => self.handle_row(position, &text),
            TranscriptFeedEvent::Restarted => (self.next_row, self.next_line) = (0, 0),
            TranscriptFeedEvent::Delta { text, from, line } => self.handle_delta(text, from, line),
            TranscriptFeedEvent::RowAnnounced { line, row } => self.handle_announced(line, row),
            TranscriptFeedEvent::Lagged => self.push(JobFeedEvent::Lagged),
            TranscriptFeedEvent::QuestionAsked(question) => self.handle_question(question),
            TranscriptFeedEvent::QuestionSettled(id) => {
                if self.questions.close(&id) {
                    self.push(JobFeedEvent::QuestionSettled(id));
                }
            }
            TranscriptFeedEvent::DiskStatus(reason) => self.push(JobFeedEvent::DiskStatus(reason)),
            TranscriptFeedEvent::RunState(state) => self.handle_run_state(*state),
            TranscriptFeedEvent::RunEnded => {
                self.run_status = FollowedRunStatus::Ended;
                self.settle_all();
                self.push(JobFeedEvent::RunEnded);
            }
        }
    }

    fn handle_row(&mut self, position: RowPosition, text: &str) {
        let number = self.next_row;
        (self.next_row, self.next_line) = (number + 1, position.line + 1);
        if number < self.rows_known {
            return;
        }
        (self.rows_known, self.row_at) = (number + 1, Instant::now());
        if let Ok(row) = JobRow::parse(text.as_bytes()) {
            if row.kind() == JobRowKind::Assistant {
                self.delta_bytes = 0;
            }
            self.push(JobFeedEvent::Row(number, row));
        }
    }

    /// Handles a row that the run announces. If it was read from the file before its deltas came,
    /// they end with it.
    fn handle_announced(&mut self, line: u64, row: JobRow) {
        if line < self.next_line && row.kind() == JobRowKind::Assistant && self.delta_bytes > 0 {
            self.delta_bytes = 0;
            self.push(JobFeedEvent::RepeatedRow(self.next_row.saturating_sub(1), row));
        }
    }

    /// Returns a delta, unless its row or the beginning of its message is missing here.
    fn handle_delta(&mut self, text: String, from: Option<u64>, line: Option<u64>) {
        if line.is_some_and(|line| line < self.next_line) {
            return;
        }
        if let Some(from) = from {
            if from != 0 && from != self.delta_bytes {
                return;
            }
            self.delta_bytes = from;
        }
        self.delta_bytes += text.len() as u64;
        self.push(JobFeedEvent::Delta(text));
    }

    fn handle_question(&mut self, question: AgentQuestion) {
        if self.questions.add(&question) {
            self.push(JobFeedEvent::QuestionAsked(question));
        }
    }

    fn handle_run_state(&mut self, state: RunState) {
        let gone = self.questions.close_unlisted(&state.asks);
        self.pending.extend(gone.into_iter().map(JobFeedEvent::QuestionSettled));
        for question in state.asks {
            self.handle_question(question);
        }
        if let Some(cost) = state.cost_usd.filter(|_| state.cost_usd != self.cost) {
            self.cost = state.cost_usd;
            self.push(JobFeedEvent::Cost(cost));
        }
    }

    fn settle_all(&mut self) {
        let open = self.questions.close_all();
        self.pending.extend(open.into_iter().map(JobFeedEvent::QuestionSettled));
    }

    fn check_recorded_state(&mut self) {
        let is_due = |at: Instant| at.elapsed() >= STATE_INTERVAL;
        // Taken before the read, so that a commit during the read causes another read.
        let is_changed = self.transcript.take_watched_change();
        let is_abandoned = self.handle.is_abandoned.load(Ordering::Relaxed) && self.end.is_none();
        let is_due = is_changed || is_abandoned || self.recorded.read_at.is_none_or(is_due);
        if self.end == Some(FeedEnd::Recorded) || !is_due {
            return;
        }
        self.recorded.read_at = Some(Instant::now());
        if self.recorded.unpublished.is_some() {
            return self.check_views();
        }
        let RecordedJobState { is_ended, unpublished, run, delayed } =
            read_job_state(&self.dir, &self.job);
        if let Some((reason, at)) = delayed.clone().filter(|_| delayed != self.recorded.delayed) {
            self.recorded.delayed = delayed;
            self.push(JobFeedEvent::Delayed { reason, at });
        }
        if let Some(run) = run.filter(|run| self.recorded.run != Some(*run)) {
            self.recorded.run = Some(run);
            self.follow_run(run);
        }
        match is_ended {
            true => {
                self.recorded.unpublished = Some((unpublished, Instant::now()));
                self.check_views();
            }
            false => self.check_attended(),
        }
    }

    /// Takes the end of the job for recorded once its views are published. Followers return then, and
    /// scripts read the files next.
    fn check_views(&mut self) {
        let Some((views, since)) = &mut self.recorded.unpublished else { return };
        if views.are_settled(&self.dir) || since.elapsed() > VIEWS_WAIT {
            (self.end, self.row_at) = (Some(FeedEnd::Recorded), Instant::now());
            self.transcript.set_unattended();
        }
    }

    fn follow_run(&mut self, run: RunId) {
        let folder = self.dir.run(run);
        self.settle_all();
        self.delta_bytes = 0;
        self.transcript.follow_run(&folder);
        self.run_status = FollowedRunStatus::Followed;
        self.push(JobFeedEvent::RunStarted(folder));
    }

    fn check_attended(&mut self) {
        if self.handle.is_abandoned.load(Ordering::Relaxed) && self.end.is_none() {
            self.end = Some(FeedEnd::Abandoned);
            self.transcript.set_unattended();
        }
        if !matches!(LockFile::probe(&self.dir.lock()), Ok(None)) {
            (self.recorded.written_at, self.recorded.is_unattended) = (Instant::now(), false);
        }
        if !self.recorded.is_unattended && self.recorded.written_at.elapsed() > UNATTENDED_AFTER {
            self.recorded.is_unattended = true;
            self.push(JobFeedEvent::Unattended);
        }
    }

    /// Ends the feed if the job has ended and its run has written its last row.
    fn check_end(&mut self) {
        let Some(end) = self.end else { return };
        let is_late = end == FeedEnd::Recorded && self.row_at.elapsed() > LAST_ROWS_WAIT;
        if self.run_status == FollowedRunStatus::Followed && !is_late {
            return;
        }
        // The end was read before the file, so the file is complete.
        self.transcript.check_file();
        while let Some(event) = self.transcript.next(Duration::ZERO) {
            self.handle_transcript_event(event);
        }
        self.settle_all();
        self.push(JobFeedEvent::Ended(end));
    }
}
