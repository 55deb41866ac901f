//! Follows one job for a conversation: its rows without gap or duplicate from a given one on, text
//! deltas between them, open questions, and the job's state. Start at [`start`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use heeler_chat::{ChatFleetEvent, ChatJobInfo, ChatJobState};
use heeler_model::JobId;
use heeler_query::job_feed::{JobFeed, JobFeedEvent};
use heeler_store::{StateDir, StoreReader};

use super::job_facts::{is_ended, load_job_facts};

/// Interval at which a follower checks that it is still wanted.
const TICK: Duration = Duration::from_millis(100);

/// Interval between attempts to start a daemon for a job without one.
const REVIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Starts a daemon again for a job that has lost its daemon.
pub(crate) type ReviveJobFn = Arc<dyn Fn(&JobId) -> Result<(), String> + Send + Sync>;

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
    sender: SyncSender<ChatFleetEvent>,
    revive: ReviveJobFn,
) -> JobFollowHandle {
    let (stopped, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut feed = JobFeed::new(dir.clone(), job.clone(), from);
    let mut follower = JobFollower {
        dir: dir.clone(),
        job: job.clone(),
        events: sender,
        revive,
        stopped: Arc::clone(&stopped),
        last: None,
        cost: None,
    };
    let is_over = Arc::clone(&over);
    std::thread::spawn(move || {
        // An error means that the conversation is closed, so there is no one to report to.
        let _gone = follower.run(&mut feed);
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
        context_window: None,
        model: None,
    }
}

struct JobFollower {
    dir: StateDir,
    job: JobId,
    events: SyncSender<ChatFleetEvent>,
    revive: ReviveJobFn,
    stopped: Arc<AtomicBool>,
    last: Option<ChatJobInfo>,
    /// Cost as reported by the run.
    cost: Option<f64>,
}

/// Says whether the end of a job may be reported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FeedProgress {
    RowsFollow,
    Complete,
}

impl JobFollower {
    fn send(&self, event: ChatFleetEvent) -> Result<(), ConversationClosed> {
        // A stopped follower must send nothing: its successor sends the same rows again.
        match self.stopped.load(Ordering::Relaxed) {
            true => Err(ConversationClosed),
            false => self.events.send(event).map_err(|_| ConversationClosed),
        }
    }

    fn run(&mut self, feed: &mut JobFeed) -> Result<(), ConversationClosed> {
        // The conversation shows a queued job at once, before any row arrives.
        self.send_facts(FeedProgress::RowsFollow)?;
        while !feed.is_over() {
            match feed.next(TICK) {
                Some(event) => self.handle_event(event)?,
                None if self.stopped.load(Ordering::Relaxed) => return Err(ConversationClosed),
                None => {}
            }
        }
        Ok(())
    }

    fn handle_event(&mut self, event: JobFeedEvent) -> Result<(), ConversationClosed> {
        let job = self.job.clone();
        match event {
            // A repeated row completes text deltas that came after it.
            JobFeedEvent::Row(at, row) | JobFeedEvent::RepeatedRow(at, row) => {
                self.send(ChatFleetEvent::Row { job, at, row })
            }
            JobFeedEvent::Delta(text) => self.send(ChatFleetEvent::Delta { job, text }),
            JobFeedEvent::QuestionAsked(ask) => {
                self.send(ChatFleetEvent::QuestionAsked { job, ask })
            }
            JobFeedEvent::QuestionSettled(ask) => {
                self.send(ChatFleetEvent::QuestionClosed { job, ask })
            }
            JobFeedEvent::Cost(cost) => {
                // The record has a cost only after the run; until then this one is shown.
                self.cost = Some(cost);
                self.send_facts(FeedProgress::RowsFollow)
            }
            JobFeedEvent::DiskStatus(trouble) => {
                let to_text =
                    |why| format!("the run is paused because the disk rejects writes: {why}");
                self.send(ChatFleetEvent::ConnectionChanged(trouble.map(to_text)))
            }
            JobFeedEvent::RunStarted(_) | JobFeedEvent::Delayed { .. } => {
                self.send_facts(FeedProgress::RowsFollow)
            }
            JobFeedEvent::Unattended => {
                self.revive();
                Ok(())
            }
            JobFeedEvent::Ended(_) => self.send_facts(FeedProgress::Complete),
            // The lost text comes with its row.
            JobFeedEvent::Lagged | JobFeedEvent::RunEnded => Ok(()),
        }
    }

    /// Sends the job's state, unless it equals the last one sent.
    fn send_facts(&mut self, progress: FeedProgress) -> Result<(), ConversationClosed> {
        // An unreadable state is skipped: the next event reads it again, and the end always does.
        let Ok(reader) = StoreReader::open(&self.dir) else { return Ok(()) };
        let Ok(found) = reader.job(&self.job) else { return Ok(()) };
        let mut known =
            found.map_or_else(|| unknown_job_facts(&self.job), |job| load_job_facts(&reader, &job));
        // The end is sent only after the last row.
        if is_ended(known.state) && progress == FeedProgress::RowsFollow {
            return Ok(());
        }
        // The recorded cost of an ended job is final.
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
        let (dir, job, sender) = (self.dir.clone(), self.job.clone(), self.events.clone());
        let (revive, stopped) = (Arc::clone(&self.revive), Arc::clone(&self.stopped));
        std::thread::spawn(move || {
            // A daemon can be missing for a long time; one notice about it is enough.
            let mut is_reported = false;
            let is_over = || {
                let job =
                    StoreReader::open(&dir).ok().and_then(|reader| reader.job(&job).ok().flatten());
                job.is_some_and(|job| job.head.status.is_final())
            };
            // Starting a daemon can take a minute, and rows must be followed meanwhile.
            while !stopped.load(Ordering::Relaxed) && !is_over() {
                match revive(&job) {
                    Ok(()) => break,
                    Err(why) => {
                        if !is_reported
                            && sender.send(ChatFleetEvent::ConnectionChanged(Some(why))).is_err()
                        {
                            return;
                        }
                        is_reported = true;
                        std::thread::sleep(REVIVE_INTERVAL);
                    }
                }
            }
            // The screen shows the notice until it is withdrawn.
            if is_reported {
                // Fails only if the conversation is closed.
                drop(sender.send(ChatFleetEvent::ConnectionChanged(None)));
            }
        });
    }
}
