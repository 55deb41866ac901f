//! Follows one job for a conversation: its rows without gap or duplicate from a given one on, text
//! deltas between them, open questions, and the job's state. Start at [`start`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_chat::{ChatFleetEvent, ChatJobInfo, ChatJobState};
use heeler_model::run::{AgentQuestion, RunState};
use heeler_model::{JobId, RunId};
use heeler_store::{StateDir, StoreReader};

use super::daemon_fleet::{ReviveJobFn, is_ended, load_job_facts};
use crate::job_watch::job_state::{self, WatchedJobState};
use crate::job_watch::{JobWatchEvent, QUEUED_EVENTS_MAX, run_feed};

/// Interval at which a follower checks that it is still wanted and that the last rows are not late.
const TICK: Duration = Duration::from_millis(100);

/// Silence of a run, after its job's result is recorded, that counts as its end.
const LAST_ROWS_WAIT: Duration = Duration::from_secs(10);

/// Interval between attempts to start a daemon for a job without one.
const REVIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Handle of a followed job.
pub(super) struct JobFollowHandle {
    stopped: Arc<AtomicBool>,
    finished: Arc<AtomicBool>,
}

impl JobFollowHandle {
    /// Stops sending events of the job.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Returns true once the last event was sent.
    pub(super) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Relaxed)
    }
}

/// Follows a job in threads of its own. The first `from` rows are known already.
pub(super) fn start(
    dir: &StateDir,
    job: &JobId,
    from: u64,
    tell: SyncSender<ChatFleetEvent>,
    revive: ReviveJobFn,
) -> JobFollowHandle {
    let (stopped, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (sender, events) = sync_channel(QUEUED_EVENTS_MAX);
    job_state::follow_job(dir.clone(), job.clone(), sender.clone());
    let mut follower = JobFollower {
        dir: dir.clone(),
        job: job.clone(),
        rows: from,
        events: tell,
        revive,
        watch_events: sender,
        stopped: Arc::clone(&stopped),
        folder: dir.root().join("runs/none"),
        feed: run_feed::RunFeedHandle::default(),
        open_questions: HashMap::new(),
        unconfirmed_questions: HashSet::new(),
        last: None,
        cost: None,
        has_run: false,
        run_ended: false,
        recorded: false,
        last_heard: Instant::now(),
    };
    let is_over = Arc::clone(&over);
    std::thread::spawn(move || {
        // An error means that the conversation is closed, so there is no one to report to.
        let _gone = follower.run(&events);
        follower.feed.stop();
        is_over.store(true, Ordering::Relaxed);
    });
    JobFollowHandle { stopped, finished: over }
}

/// Error: the conversation no longer listens.
struct ConversationClosed;

/// State of a job that has no record.
fn unknown_job_facts(job: &JobId) -> ChatJobInfo {
    ChatJobInfo {
        job: job.clone(),
        agent: String::new(),
        state: ChatJobState::Failed,
        reason: Some("the job's record no longer exists".to_owned()),
        session: None,
        cost_usd: None,
        context_tokens: None,
        model: None,
    }
}

struct JobFollower {
    dir: StateDir,
    job: JobId,
    /// Number of rows of the job's transcript that were sent.
    rows: u64,
    events: SyncSender<ChatFleetEvent>,
    revive: ReviveJobFn,
    /// Sender for the threads that watch the run and the job's state.
    watch_events: SyncSender<JobWatchEvent>,
    stopped: Arc<AtomicBool>,
    folder: Utf8PathBuf,
    feed: run_feed::RunFeedHandle,
    /// Open questions, by ID.
    open_questions: HashMap<String, AgentQuestion>,
    /// Open questions that the run did not list in its latest state report.
    unconfirmed_questions: HashSet<String>,
    last: Option<ChatJobInfo>,
    /// Cost as reported by the run.
    cost: Option<f64>,
    has_run: bool,
    run_ended: bool,
    /// True once the job's end is recorded.
    recorded: bool,
    last_heard: Instant,
}

impl JobFollower {
    fn send(&self, happened: ChatFleetEvent) -> Result<(), ConversationClosed> {
        match self.stopped.load(Ordering::Relaxed) {
            true => Err(ConversationClosed),
            false => self.events.send(happened).map_err(|_| ConversationClosed),
        }
    }

    fn run(&mut self, events: &Receiver<JobWatchEvent>) -> Result<(), ConversationClosed> {
        self.send_facts()?;
        loop {
            match events.recv_timeout(TICK) {
                Ok(event) => {
                    self.handle_event(event)?;
                    self.last_heard = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) if self.stopped.load(Ordering::Relaxed) => {
                    return Err(ConversationClosed);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(ConversationClosed),
            }
            let is_late = self.last_heard.elapsed() > LAST_ROWS_WAIT;
            if self.recorded && (self.run_ended || !self.has_run || is_late) {
                self.settle_all()?;
                return self.send_facts();
            }
        }
    }

    fn handle_event(&mut self, event: JobWatchEvent) -> Result<(), ConversationClosed> {
        match event {
            JobWatchEvent::Row(at, row) => {
                // A repeated row is sent too: it completes text deltas that were repeated before
                // it.
                self.rows = self.rows.max(at + 1);
                self.send(ChatFleetEvent::Row { job: self.job.clone(), at, row })
            }
            JobWatchEvent::Delta(text) => {
                self.send(ChatFleetEvent::Delta { job: self.job.clone(), text })
            }
            JobWatchEvent::Question(ask) => self.handle_question(ask),
            JobWatchEvent::QuestionSettled(id) => self.handle_settled(&id),
            JobWatchEvent::RunState(state) => self.handle_run_state(*state),
            JobWatchEvent::RunEnded(folder) => {
                if folder == self.folder {
                    self.run_ended = true;
                    self.settle_all()?;
                }
                Ok(())
            }
            JobWatchEvent::JobState(course) => self.handle_job_state(course),
            JobWatchEvent::DiskStatus(trouble) => {
                let told =
                    |why| format!("the run is paused because the disk rejects writes: {why}");
                self.send(ChatFleetEvent::ConnectionChanged(trouble.map(told)))
            }
            // Rows lost by lagging are sent again. The other events never occur for this follower.
            JobWatchEvent::Lagged
            | JobWatchEvent::DaemonAnswer(_)
            | JobWatchEvent::Unattended(_)
            | JobWatchEvent::Interrupt
            | JobWatchEvent::CancelFailed(_)
            | JobWatchEvent::LineTyped(..) => Ok(()),
        }
    }

    fn handle_question(&mut self, ask: AgentQuestion) -> Result<(), ConversationClosed> {
        self.unconfirmed_questions.remove(&ask.id);
        if self.open_questions.insert(ask.id.clone(), ask.clone()).is_some() {
            return Ok(());
        }
        self.send(ChatFleetEvent::QuestionAsked { job: self.job.clone(), ask })
    }

    fn handle_settled(&mut self, id: &str) -> Result<(), ConversationClosed> {
        self.unconfirmed_questions.remove(id);
        match self.open_questions.remove(id) {
            Some(ask) => {
                self.send(ChatFleetEvent::QuestionClosed { job: self.job.clone(), ask: ask.id })
            }
            None => Ok(()),
        }
    }

    fn settle_all(&mut self) -> Result<(), ConversationClosed> {
        let open: Vec<String> = self.open_questions.keys().cloned().collect();
        open.iter().try_for_each(|id| self.handle_settled(id))
    }

    /// Applies the run's state report: questions that were missed, questions that were settled
    /// unnoticed, and costs.
    fn handle_run_state(&mut self, state: RunState) -> Result<(), ConversationClosed> {
        let named: HashSet<String> = state.asks.iter().map(|ask| ask.id.clone()).collect();
        for ask in state.asks {
            self.handle_question(ask)?;
        }
        let unnamed = self.open_questions.keys().filter(|id| !named.contains(*id));
        let unnamed: HashSet<String> = unnamed.cloned().collect();
        // A question may be missing once, if it was asked after the report. Missing twice, it is
        // settled.
        for id in unnamed.intersection(&self.unconfirmed_questions).cloned().collect::<Vec<_>>() {
            self.handle_settled(&id)?;
        }
        self.unconfirmed_questions =
            unnamed.into_iter().filter(|id| self.open_questions.contains_key(id)).collect();
        if state.cost_usd.is_some() && state.cost_usd != self.cost {
            self.cost = state.cost_usd;
            self.send_facts()?;
        }
        Ok(())
    }

    fn handle_job_state(&mut self, course: WatchedJobState) -> Result<(), ConversationClosed> {
        match course {
            WatchedJobState::Running(run) => {
                self.follow(run);
                self.send_facts()
            }
            WatchedJobState::Delayed { .. } => self.send_facts(),
            WatchedJobState::Ended => {
                self.feed.set_unattended();
                self.recorded = true;
                Ok(())
            }
            WatchedJobState::Unattended => {
                self.revive();
                Ok(())
            }
        }
    }

    fn follow(&mut self, run: RunId) {
        self.folder = self.dir.run(run);
        (self.run_ended, self.has_run) = (false, true);
        let log = self.dir.job_transcript(&self.job);
        let feed = run_feed::start(self.folder.clone(), log, self.rows, self.watch_events.clone());
        std::mem::replace(&mut self.feed, feed).stop();
        run_feed::poll_run_state(self.folder.clone(), self.watch_events.clone(), self.feed.clone());
    }

    /// Sends the job's state, unless it equals the last one sent.
    fn send_facts(&mut self) -> Result<(), ConversationClosed> {
        let Ok(reader) = StoreReader::open(&self.dir) else { return Ok(()) };
        let Ok(found) = reader.job(&self.job) else { return Ok(()) };
        let mut known =
            found.map_or_else(|| unknown_job_facts(&self.job), |job| load_job_facts(&reader, &job));
        // The end is sent only after the last row.
        if is_ended(known.state) && !self.recorded {
            return Ok(());
        }
        if !is_ended(known.state) {
            known.cost_usd = self.cost.or(known.cost_usd);
        }
        if self.last.as_ref() == Some(&known) {
            return Ok(());
        }
        self.last = Some(known.clone());
        self.send(ChatFleetEvent::Job(known))
    }

    /// Retries in a thread of its own until a daemon has the job again.
    fn revive(&self) {
        let (dir, job, tell) = (self.dir.clone(), self.job.clone(), self.events.clone());
        let (revive, stopped) = (Arc::clone(&self.revive), Arc::clone(&self.stopped));
        std::thread::spawn(move || {
            let mut told = false;
            let is_over = || {
                let job =
                    StoreReader::open(&dir).ok().and_then(|reader| reader.job(&job).ok().flatten());
                job.is_some_and(|job| job.head.status.is_final())
            };
            while !stopped.load(Ordering::Relaxed) && !is_over() {
                match revive(&job) {
                    Ok(()) => break,
                    Err(why) => {
                        if !told && tell.send(ChatFleetEvent::ConnectionChanged(Some(why))).is_err()
                        {
                            return;
                        }
                        told = true;
                        std::thread::sleep(REVIVE_INTERVAL);
                    }
                }
            }
            if told {
                // Fails only if the conversation is closed.
                drop(tell.send(ChatFleetEvent::ConnectionChanged(None)));
            }
        });
    }
}
