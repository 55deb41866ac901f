//! One job as it happens, for a conversation: its rows without gap or duplicate from a given one on,
//! what is said between them, what people are asked, where it is.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_chat::{Happened, JobFacts, JobState};
use heeler_model::run::{Ask, RunState};
use heeler_model::{JobId, RunId};
use heeler_store::{Reader, StateDir};

use super::fleet::{Revive, facts, is_over};
use crate::live::course::{self, Course};
use crate::live::{EVENTS_MAX, Event, feed};

/// How often it is looked whether somebody still listens, and whether the last rows are late.
const TICK: Duration = Duration::from_millis(100);

/// After a job's result is on record, how long nothing may be heard of its run before that counts as
/// told to its end.
const LAST_ROWS: Duration = Duration::from_secs(10);

/// How often a daemon is tried to be started for a job that nobody cares for.
const REVIVE_EVERY: Duration = Duration::from_secs(5);

/// A job that is followed.
pub(super) struct Followed {
    stopped: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

impl Followed {
    /// Tells nothing more of it.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Says whether all was told.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Follows a job in threads of its own; `from` rows are known already.
pub(super) fn start(
    dir: &StateDir,
    job: &JobId,
    from: u64,
    tell: SyncSender<Happened>,
    revive: Revive,
) -> Followed {
    let (stopped, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (sender, events) = sync_channel(EVENTS_MAX);
    course::follow(dir.clone(), job.clone(), sender.clone());
    let mut follower = Follower {
        dir: dir.clone(),
        job: job.clone(),
        rows: from,
        tell,
        revive,
        sender,
        stopped: Arc::clone(&stopped),
        folder: dir.root().join("runs/none"),
        feed: feed::Handle::default(),
        open: HashMap::new(),
        missing: HashSet::new(),
        last: None,
        cost: None,
        has_run: false,
        run_ended: false,
        recorded: false,
        heard: Instant::now(),
    };
    let is_over = Arc::clone(&over);
    std::thread::spawn(move || {
        // Whoever listened has gone: so do we.
        let _gone = follower.go(&events);
        follower.feed.stop();
        is_over.store(true, Ordering::Relaxed);
    });
    Followed { stopped, over }
}

/// Nobody listens any more.
struct Gone;

/// What is known of a job of which there is no record.
fn lost(job: &JobId) -> JobFacts {
    JobFacts {
        job: job.clone(),
        agent: String::new(),
        state: JobState::Failed,
        reason: Some("it is no longer on record".to_owned()),
        session: None,
        cost_usd: None,
        context_tokens: None,
        model: None,
    }
}

struct Follower {
    dir: StateDir,
    job: JobId,
    /// How many rows of the job's log were told.
    rows: u64,
    tell: SyncSender<Happened>,
    revive: Revive,
    /// For those who watch parts of it.
    sender: SyncSender<Event>,
    stopped: Arc<AtomicBool>,
    folder: Utf8PathBuf,
    feed: feed::Handle,
    /// What waits for a person.
    open: HashMap<String, Ask>,
    /// Those of them that the run did not name when it was last asked.
    missing: HashSet<String>,
    last: Option<JobFacts>,
    /// What it has cost so far, by the run's own word.
    cost: Option<f64>,
    has_run: bool,
    run_ended: bool,
    /// Whether the job's end is on record.
    recorded: bool,
    /// When something was last heard of it.
    heard: Instant,
}

impl Follower {
    fn tell(&self, happened: Happened) -> Result<(), Gone> {
        match self.stopped.load(Ordering::Relaxed) {
            true => Err(Gone),
            false => self.tell.send(happened).map_err(|_| Gone),
        }
    }

    fn go(&mut self, events: &Receiver<Event>) -> Result<(), Gone> {
        self.tell_facts()?;
        loop {
            match events.recv_timeout(TICK) {
                Ok(event) => {
                    self.take(event)?;
                    self.heard = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) if self.stopped.load(Ordering::Relaxed) => {
                    return Err(Gone);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Gone),
            }
            let is_late = self.heard.elapsed() > LAST_ROWS;
            if self.recorded && (self.run_ended || !self.has_run || is_late) {
                self.settle_all()?;
                return self.tell_facts();
            }
        }
    }

    fn take(&mut self, event: Event) -> Result<(), Gone> {
        match event {
            Event::Row(at, row) => {
                // One that is told again ends what was said again.
                self.rows = self.rows.max(at + 1);
                self.tell(Happened::Row { job: self.job.clone(), at, row })
            }
            Event::Delta(text) => self.tell(Happened::Delta { job: self.job.clone(), text }),
            Event::Asked(ask) => self.asked(ask),
            Event::Settled(id) => self.settled(&id),
            Event::State(state) => self.state(*state),
            Event::RunEnded(folder) => {
                if folder == self.folder {
                    self.run_ended = true;
                    self.settle_all()?;
                }
                Ok(())
            }
            Event::Course(course) => self.course(course),
            Event::Disk(trouble) => {
                let told = |why| format!("the disk takes no rows, so the run waits: {why}");
                self.tell(Happened::Trouble(trouble.map(told)))
            }
            // The rows with what was lost follow; nobody else tells the rest.
            Event::Lagged
            | Event::Answered(_)
            | Event::LeftAlone(_)
            | Event::Interrupt
            | Event::CancelFailed(_)
            | Event::Typed(..) => Ok(()),
        }
    }

    fn asked(&mut self, ask: Ask) -> Result<(), Gone> {
        self.missing.remove(&ask.id);
        if self.open.insert(ask.id.clone(), ask.clone()).is_some() {
            return Ok(());
        }
        self.tell(Happened::Asked { job: self.job.clone(), ask })
    }

    fn settled(&mut self, id: &str) -> Result<(), Gone> {
        self.missing.remove(id);
        match self.open.remove(id) {
            Some(ask) => self.tell(Happened::Settled { job: self.job.clone(), ask: ask.id }),
            None => Ok(()),
        }
    }

    fn settle_all(&mut self) -> Result<(), Gone> {
        let open: Vec<String> = self.open.keys().cloned().collect();
        open.iter().try_for_each(|id| self.settled(id))
    }

    /// Takes in what the run says of itself: questions that were missed, those that were settled
    /// unheard, costs.
    fn state(&mut self, state: RunState) -> Result<(), Gone> {
        let named: HashSet<String> = state.asks.iter().map(|ask| ask.id.clone()).collect();
        for ask in state.asks {
            self.asked(ask)?;
        }
        let unnamed = self.open.keys().filter(|id| !named.contains(*id));
        let unnamed: HashSet<String> = unnamed.cloned().collect();
        // Once may be because it was asked after that; twice is not.
        for id in unnamed.intersection(&self.missing).cloned().collect::<Vec<_>>() {
            self.settled(&id)?;
        }
        self.missing = unnamed.into_iter().filter(|id| self.open.contains_key(id)).collect();
        if state.cost_usd.is_some() && state.cost_usd != self.cost {
            self.cost = state.cost_usd;
            self.tell_facts()?;
        }
        Ok(())
    }

    fn course(&mut self, course: Course) -> Result<(), Gone> {
        match course {
            Course::Runs(run) => {
                self.follow(run);
                self.tell_facts()
            }
            Course::Later { .. } => self.tell_facts(),
            Course::Over => {
                self.feed.nobody_starts_it();
                self.recorded = true;
                Ok(())
            }
            Course::Alone => {
                self.revive();
                Ok(())
            }
        }
    }

    fn follow(&mut self, run: RunId) {
        self.folder = self.dir.run(run);
        (self.run_ended, self.has_run) = (false, true);
        let log = self.dir.log_of(&self.job);
        let feed = feed::start(self.folder.clone(), log, self.rows, self.sender.clone());
        std::mem::replace(&mut self.feed, feed).stop();
        feed::ask_state(self.folder.clone(), self.sender.clone(), self.feed.clone());
    }

    /// Tells where the job is, unless that was the last word already.
    fn tell_facts(&mut self) -> Result<(), Gone> {
        let Ok(reader) = Reader::open(&self.dir) else { return Ok(()) };
        let Ok(found) = reader.job(&self.job) else { return Ok(()) };
        let mut known = found.map_or_else(|| lost(&self.job), |job| facts(&reader, &job));
        // What is over is told when all rows are.
        if is_over(known.state) && !self.recorded {
            return Ok(());
        }
        if !is_over(known.state) {
            known.cost_usd = self.cost.or(known.cost_usd);
        }
        if self.last.as_ref() == Some(&known) {
            return Ok(());
        }
        self.last = Some(known.clone());
        self.tell(Happened::Job(known))
    }

    /// Has the job cared for again, in a thread of its own, until somebody does.
    fn revive(&self) {
        let (dir, job, tell) = (self.dir.clone(), self.job.clone(), self.tell.clone());
        let (revive, stopped) = (Arc::clone(&self.revive), Arc::clone(&self.stopped));
        std::thread::spawn(move || {
            let mut told = false;
            let is_over = || {
                let job =
                    Reader::open(&dir).ok().and_then(|reader| reader.job(&job).ok().flatten());
                job.is_some_and(|job| job.head.status.is_final())
            };
            while !stopped.load(Ordering::Relaxed) && !is_over() {
                match revive(&job) {
                    Ok(()) => break,
                    Err(why) => {
                        if !told && tell.send(Happened::Trouble(Some(why))).is_err() {
                            return;
                        }
                        told = true;
                        std::thread::sleep(REVIVE_EVERY);
                    }
                }
            }
            if told {
                // Where nobody listens any more there is nobody to tell.
                drop(tell.send(Happened::Trouble(None)));
            }
        });
    }
}
