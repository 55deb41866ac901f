//! What the dispatcher does after a commit, off its own thread: preparing and starting runners,
//! finding out what became of runs, asking them to end.
//!
//! Everything here may be cut off anywhere and done again by the next daemon. What came of it returns
//! to the dispatcher as an [`Input`]. Start at [`Hands`].

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::redact::Redactor;
use heeler_model::run::{
    Answer as RunAnswer, Attendance, End, Op, ReplyBody, RunResult, RunSpec, file,
};
use heeler_model::session_choice::Wish;
use heeler_model::{
    AgentName, Approval, ApprovalAnswer, ApprovalId, JobId, RunId, Session, SessionId, Wanted,
    chain,
};
use heeler_store::{Reader, Run, is_run_alive};

use crate::asks::{self, Delivery, RunAsks};
use crate::cancel::{self, KillError};
use crate::checkout::{is_to_be_cloned, make_ready};
use crate::command::{Answer, Gone, Handle, Input, Owed, Refused, RefusedKind, Reply};
use crate::control::{Control, ControlError};
use crate::crew::Crew;
use crate::dispatch::{Prepared, not_at_work};
use crate::fault::{self, FaultPoint};
use crate::fleet::Fleet;
use crate::hooks;
use crate::launch;
use crate::logs::AgentLogs;
use crate::prepare::{PrepareError, environment};
use crate::recover;
use crate::request::JobRequest;
use crate::retention;
use crate::sessions::{self, Moving, SessionOrder};
use crate::setup::Setup;
use crate::start::{self, Begun};
use crate::watcher::Watcher;

/// How many runners are prepared and started at once.
const STARTERS: usize = 4;

/// How many dead runs are settled by one process.
const SETTLED_TOGETHER: usize = 64;

/// How many ended runs are looked at, and dead ones settled, at once.
const COLLECTORS: usize = 4;

/// How long until a run is looked at again that cannot be watched and yet is alive: its runner is
/// just taking its lock, or another process is settling it.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// How long until a run is tried to be settled again that could not be.
const SETTLE_AGAIN: Duration = Duration::from_secs(5);

/// How often a run is tried to be reached that is to end, at first.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The longest time between two attempts to reach a run that is to end.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(2);

/// How long a runner may take to answer that is to end at once; after that it is killed.
const NOW_WAIT: Duration = Duration::from_secs(5);

/// The threads that act for the dispatcher.
#[derive(Debug)]
pub(crate) struct Hands {
    shared: Arc<Shared>,
    starters: Crew,
    logger: Crew,
    mover: Crew,
}

#[derive(Debug)]
struct Shared {
    fleet: Fleet,
    inbox: Handle,
    collectors: Crew,
    /// The config that counts now.
    setup: Mutex<Arc<Setup>>,
    watcher: OnceLock<Watcher>,
    /// Sessions whose files are on their way to the trash, or back.
    moving: Moving,
}

impl Hands {
    /// Starts the threads.
    pub(crate) fn new(fleet: Fleet, inbox: Handle, setup: Arc<Setup>) -> io::Result<Hands> {
        let starters = Crew::new("heeler-start", STARTERS)?;
        // One, so that lines keep their order and nobody sets a log aside under another.
        let logger = Crew::new("heeler-log", 1)?;
        // One, so that files are moved in the order of what was asked.
        let mover = Crew::new("heeler-move", 1)?;
        let collectors = Crew::new("heeler-collect", COLLECTORS)?;
        let setup = Mutex::new(setup);
        let watcher = OnceLock::new();
        let shared = Arc::new(Shared {
            fleet,
            inbox,
            collectors,
            setup,
            watcher,
            moving: Moving::default(),
        });
        let weak = Arc::downgrade(&shared);
        let asking = Weak::clone(&weak);
        let ended = move |run| {
            if let Some(shared) = weak.upgrade() {
                collect(&shared, run);
            }
        };
        let asked = move |run| {
            if let Some(shared) = asking.upgrade() {
                shared.read_questions(run);
            }
        };
        let watcher = Watcher::start(ended, asked)?;
        shared.watcher.get_or_init(|| watcher);
        Ok(Hands { shared, starters, logger, mover })
    }

    /// Returns the way to the dispatcher.
    pub(crate) fn inbox(&self) -> &Handle {
        &self.shared.inbox
    }

    /// Takes over another config.
    pub(crate) fn take_setup(&self, setup: Arc<Setup>) {
        *self.shared.setup.lock().unwrap_or_else(PoisonError::into_inner) = setup;
    }

    /// Finds out what a run needs.
    pub(crate) fn prepare(&self, job: Option<JobId>, wanted: Wanted, owed: Option<Owed>) {
        let shared = Arc::clone(&self.shared);
        self.starters.hand(move || {
            let setup = shared.setup();
            let missing = setup.find_agent(wanted.agent.as_str()).is_ok_and(is_to_be_cloned)
                || own_session(&shared.fleet, &wanted)
                    .is_ok_and(|session| session.is_some_and(|it| sessions::lacks_worktree(&it)));
            let prepare = move || {
                let request = request(&shared.fleet, &setup, &wanted);
                let prepared = Box::new(Prepared { job, wanted, request });
                shared.tell(Input::Prepared { prepared, owed });
            };
            if !missing {
                return prepare();
            }
            // A clone or a worktree may take minutes. Other starts do not wait for it, nor does the daemon's end.
            let thread = std::thread::Builder::new().name("heeler-clone".to_owned());
            if let Err(error) = thread.spawn(prepare) {
                tracing::error!(%error, "cannot start a clone");
            }
        });
    }

    /// Starts the runner of a run that is on record.
    pub(crate) fn launch(&self, begun: Begun, request: Box<JobRequest>) {
        let shared = Arc::clone(&self.shared);
        self.starters.hand(move || {
            let run = begun.run;
            let is_attended = request.attendance != Attendance::Nobody;
            fault::reach(FaultPoint::BeforeLaunch);
            match start::launch(&shared.fleet, &request, &begun) {
                Ok(child) => {
                    fault::reach(FaultPoint::RunnerStarted);
                    if let Err(error) = shared.watcher().add(run, child) {
                        tracing::error!(%run, %error, "cannot watch a runner");
                        collect(&shared, run);
                    }
                    if is_attended {
                        shared.listen(run);
                    }
                }
                Err(error) => {
                    tracing::warn!(%run, reason = chain(&error), "a runner was not started");
                    let why = chain(&error);
                    shared.find_out(run, Some(&why));
                }
            }
        });
    }

    /// Watches a run that an earlier daemon left, or finds out what became of it.
    pub(crate) fn take_over(&self, run: RunId) {
        let shared = Arc::clone(&self.shared);
        self.shared.collectors.hand(move || {
            let is_watched = shared.is_watched(run);
            fault::reach(FaultPoint::TakenOver);
            if is_watched {
                tracing::info!(%run, "taken over");
            } else {
                shared.find_out(run, None);
            }
        });
    }

    /// Takes over all runs that an earlier daemon left. Those that are dead are settled together.
    pub(crate) fn take_over_all(&self, mut runs: Vec<RunId>) {
        runs.sort_unstable();
        for some in runs.chunks(SETTLED_TOGETHER) {
            let (shared, some) = (Arc::clone(&self.shared), some.to_vec());
            self.shared.collectors.hand(move || shared.take_over_some(some));
        }
    }

    /// Writes a line to an agent's log.
    pub(crate) fn log(&self, agent: String, text: String) {
        let shared = Arc::clone(&self.shared);
        self.logger.hand(move || {
            let Ok(agent) = agent.parse::<AgentName>() else { return };
            if let Some(fleet) = shared.setup().root() {
                AgentLogs::new(&shared.fleet.dir.logs(), fleet.logs).line(
                    &agent,
                    (shared.fleet.now)(),
                    &text,
                );
            }
        });
    }

    /// Puts files of old jobs into the trash, where the config says so.
    pub(crate) fn put_away(&self) {
        let shared = Arc::clone(&self.shared);
        self.shared.collectors.hand(move || {
            let setup = shared.setup();
            let Some(retention) = setup.root().and_then(|fleet| fleet.retention.as_ref()) else {
                return;
            };
            let (dir, now) = (&shared.fleet.dir, (shared.fleet.now)());
            let mut more = true;
            while more {
                let done = Reader::open(dir).map_err(|error| chain(&error)).and_then(|reader| {
                    retention::put_away(dir, &reader, retention, now).map_err(|error| chain(&error))
                });
                more = done.as_ref().is_ok_and(|done| done.more);
                match done {
                    Ok(done) if done.jobs.is_empty() => {}
                    Ok(done) => {
                        tracing::info!(jobs = done.jobs.len(), "put files of old jobs away");
                    }
                    Err(reason) => tracing::warn!(reason, "cannot put files of old jobs away"),
                }
            }
        });
    }

    /// Makes what an order about sessions needs. A worktree may take long: nobody else waits for it.
    pub(crate) fn order(&self, order: SessionOrder, by: String, owed: Owed) {
        let shared = Arc::clone(&self.shared);
        let work = move || {
            let owed = match &order {
                SessionOrder::Restore { session } => {
                    owed.through(|reply| shared.while_it_moves(session, reply))
                }
                _ => owed,
            };
            match sessions::prepare(&shared.fleet, &shared.setup(), order) {
                Ok(change) => shared.tell(Input::Session { change: Box::new(change), by, owed }),
                Err(refused) => owed.tell(Err(refused)),
            }
        };
        if let Err(error) =
            std::thread::Builder::new().name("heeler-session".to_owned()).spawn(work)
        {
            // The reply went with the work, and says that it was not done.
            tracing::error!(%error, "cannot start a thread");
        }
    }

    /// Has an answer brought to its run once it is on record, and only then says so.
    pub(crate) fn delivering(
        &self,
        approval: ApprovalId,
        spoken: &ApprovalAnswer,
        reply: Reply,
    ) -> Reply {
        let (shared, spoken) = (Arc::clone(&self.shared), spoken.clone());
        Box::new(move |outcome| match outcome {
            Ok(answer) => shared.deliver(approval, Some(spoken), Some((reply, answer))),
            Err(refused) => reply(Err(refused)),
        })
    }

    /// Brings the files of sessions to where the record says.
    pub(crate) fn move_sessions(&self) {
        let shared = Arc::clone(&self.shared);
        self.mover.hand(move || {
            let (dir, home) = (&shared.fleet.dir, shared.setup().home.clone());
            let reader = Reader::open(dir).map_err(|error| chain(&error));
            let now = (shared.fleet.now)();
            let done = reader
                .and_then(|reader| sessions::complete(dir, &home, &reader, &shared.moving, now));
            if let Err(reason) = done {
                tracing::warn!(reason, "files of deleted sessions are not where they belong yet");
            }
        });
    }

    /// Asks a run to end, until it has heard it or has ended.
    pub(crate) fn cancel(&self, run: RunId, now: bool, by: String) {
        let shared = Arc::clone(&self.shared);
        let work = move || ask_to_end(&shared.fleet, run, now, &by);
        if let Err(error) = std::thread::Builder::new().name("heeler-cancel".to_owned()).spawn(work)
        {
            tracing::error!(%run, %error, "cannot ask a run to end");
        }
    }

    /// Says something to the agent of a run. Its runner may be slow: nobody else waits for it.
    pub(crate) fn say(&self, run: RunId, job: JobId, text: String, by: String, reply: Reply) {
        let shared = Arc::clone(&self.shared);
        let work = move || {
            let folder = shared.fleet.dir.run(run);
            let said =
                Control::of_run(&folder).and_then(|mut control| control.ask(Op::Message { text }));
            reply(match said {
                Ok(ReplyBody::Refused { reason }) => {
                    Err(Refused::new(RefusedKind::Busy, format!("{job}: {reason}")))
                }
                Ok(_) => {
                    tracing::info!(%job, by, "told something more");
                    Ok(Answer::Done { message: format!("{job} was told") })
                }
                Err(ControlError::NotStarted { .. } | ControlError::Gone { .. }) => {
                    Err(not_at_work(&job))
                }
                Err(error) => Err(Refused::new(RefusedKind::Trouble, chain(&error))),
            });
        };
        if let Err(error) = std::thread::Builder::new().name("heeler-say".to_owned()).spawn(work) {
            // The reply went with the work, and says that it was not done.
            tracing::error!(%run, %error, "cannot tell a run anything");
        }
    }
}

impl Shared {
    fn setup(&self) -> Arc<Setup> {
        Arc::clone(&self.setup.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until nobody moves the files of a session, and keeps everybody else from it until the
    /// order about it is answered.
    fn while_it_moves(self: &Arc<Self>, session: &SessionId, reply: Reply) -> Reply {
        let (shared, session) = (Arc::clone(self), session.clone());
        while !shared.moving().insert(session.clone()) {
            std::thread::sleep(LOOK_EVERY);
        }
        Box::new(move |answer| {
            shared.moving().remove(&session);
            reply(answer);
        })
    }

    fn moving(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the dispatcher. If it has ended, the next one finds out by itself.
    fn tell(&self, input: Input) {
        let _stopped = self.inbox.input(input);
    }

    fn watcher(&self) -> &Watcher {
        self.watcher.get().expect("it is set before anything is handed over")
    }

    /// Watches a run that lives; says whether it does.
    fn is_watched(self: &Arc<Self>, run: RunId) -> bool {
        let folder = self.fleet.dir.run(run);
        let is_watched = self.watcher().attach(run, &folder).unwrap_or_else(|error| {
            tracing::error!(%run, %error, "cannot watch a runner");
            false
        });
        if is_watched && is_attended(&folder) {
            self.listen(run);
            self.deliver_again(run);
        }
        is_watched
    }

    /// Hears what a run asks from now on, and what it asks already.
    fn listen(self: &Arc<Self>, run: RunId) {
        if let Err(error) = self.watcher().listen(run, &self.fleet.dir.run(run)) {
            tracing::error!(%run, %error, "cannot hear what the agent of a run asks");
        }
        self.read_questions(run);
    }

    /// Tells the dispatcher what a run asks.
    fn read_questions(self: &Arc<Self>, run: RunId) {
        let shared = Arc::clone(self);
        self.collectors.hand(move || {
            let asks = Box::new(RunAsks::read(&shared.fleet.dir.run(run)));
            if !asks.is_empty() {
                shared.tell(Input::Questions { run, asks, delivered: None });
            }
        });
    }

    /// Brings answers to a run that an earlier daemon left, and which may not have got them.
    fn deliver_again(self: &Arc<Self>, run: RunId) {
        let left = Reader::open(&self.fleet.dir).map_err(|error| chain(&error));
        let left = left
            .and_then(|reader| reader.undelivered_approvals(run).map_err(|error| chain(&error)));
        match left {
            Ok(left) => {
                for approval in left.into_iter().filter(|it| it.status.is_answer()) {
                    self.deliver(approval.id, None, None);
                }
            }
            Err(why) => tracing::error!(%run, why, "cannot read what a run is to be told"),
        }
    }

    /// Brings an answer that is on record to its run, until that has it or has ended. `spoken` is the
    /// answer as it was given, and `reply` hears what came of it first.
    fn deliver(
        self: &Arc<Self>,
        id: ApprovalId,
        spoken: Option<ApprovalAnswer>,
        reply: Option<(Reply, Answer)>,
    ) {
        let shared = Arc::clone(self);
        let work = move || {
            let approval = Reader::open(&shared.fleet.dir)
                .map_err(|error| chain(&error))
                .and_then(|reader| reader.approval(&id).map_err(|error| chain(&error)));
            let approval = match approval {
                Ok(Some(approval)) => approval,
                Ok(None) => return,
                Err(why) => {
                    tracing::error!(approval = %id, why, "an answer is not brought to its run yet");
                    return;
                }
            };
            shared.bring(approval, spoken, reply);
        };
        let thread = std::thread::Builder::new().name("heeler-answer".to_owned());
        if let Err(error) = thread.spawn(work) {
            tracing::error!(%error, "cannot start a thread");
        }
    }

    fn bring(
        &self,
        mut approval: Approval,
        spoken: Option<ApprovalAnswer>,
        reply: Option<(Reply, Answer)>,
    ) {
        let (Some(run), Some(ask)) = (approval.run_id, approval.ask_id.clone()) else {
            if let Some((reply, answer)) = reply {
                reply(Ok(answer));
            }
            return;
        };
        let by = approval.responded_by.clone().unwrap_or_default();
        if let Some(spoken) = spoken {
            // What is on record lacks secrets that may be part of it.
            approval.response = spoken.text;
            if let Some(input) = spoken.updated_input {
                approval.detail.get_or_insert_default()["updatedInput"] = input;
            }
        }
        let answer = asks::told(&approval).unwrap_or_else(|why| {
            tracing::error!(approval = %approval.id, why, "an answer cannot be used");
            RunAnswer::Deny { message: why, interrupt: false }
        });
        let folder = self.fleet.dir.run(run);
        let came = asks::deliver(&folder, &ask, &answer, &by, |came| {
            let Some((reply, answer)) = reply else { return };
            reply(match came {
                Delivery::TooLate(reason) => {
                    Err(Refused::new(RefusedKind::NotAllowed, format!("{}: {reason}", approval.id)))
                }
                Delivery::Done | Delivery::NotNow => Ok(answer),
            });
        });
        if came != Delivery::NotNow {
            let asks = Box::new(RunAsks::read(&folder));
            self.tell(Input::Questions { run, asks, delivered: Some(approval.id) });
        }
    }

    fn take_over_some(self: &Arc<Self>, mut runs: Vec<RunId>) {
        runs.retain(|&run| {
            let is_watched = self.is_watched(run);
            fault::reach(FaultPoint::TakenOver);
            if is_watched {
                tracing::info!(%run, "taken over");
            }
            !is_watched
        });
        let is_to_be_settled = |folder: &Utf8PathBuf| {
            folder.join(file::SPEC).exists()
                && !folder.join(file::RESULT).exists()
                && !is_run_alive(folder)
        };
        let folders = runs.iter().map(|&run| self.fleet.dir.run(run));
        let folders: Vec<Utf8PathBuf> = folders.filter(is_to_be_settled).collect();
        if folders.len() > 1 {
            launch::settle_together(&self.fleet, &folders);
        }
        runs.into_iter().for_each(|run| self.find_out(run, None));
    }

    /// Finds out how a run ended and tells the dispatcher. `not_started` says why it was not even
    /// started, as far as we know.
    fn find_out(self: &Arc<Self>, run: RunId, not_started: Option<&str>) {
        let outcome = self.outcome(run, not_started);
        fault::reach(FaultPoint::RunEnded);
        match outcome {
            Ok(Some(gone)) => self.tell(Input::Ended(Box::new(gone))),
            // It lives after all. Nothing here waits for that: it may live for hours.
            Ok(None) if self.is_watched(run) => {}
            Ok(None) => self.tell(Input::Unsettled { run, why: None, again: LOOK_AGAIN }),
            Err(why) => self.tell(Input::Unsettled { run, why: Some(why), again: SETTLE_AGAIN }),
        }
    }

    fn outcome(&self, id: RunId, not_started: Option<&str>) -> Result<Option<Gone>, String> {
        let reader = Reader::open(&self.fleet.dir).map_err(|error| chain(&error))?;
        let run = reader.run(id).map_err(|error| chain(&error))?;
        let run: Run = run.ok_or("its record is gone")?;
        let agent = reader.job(&run.job_id).map_err(|error| chain(&error))?;
        drop(reader);
        let mut result = match not_started {
            Some(why) => self.not_started(&run, why),
            None => match recover::outcome_of(&self.fleet, &run).map_err(|error| chain(&error))? {
                Some(result) => result,
                None => return Ok(None),
            },
        };
        let setup = self.setup();
        let agent = agent.and_then(|job| setup.agent(&job.head.agent));
        if let Some(given) = agent.and_then(|agent| environment::give(agent, &setup.env).ok()) {
            result.redact(&Redactor::new(&given.secrets));
        }
        let metadata =
            agent.and_then(|agent| hooks::metadata(agent, &setup.env, result.started_at));
        let closed = RunAsks::read(&self.fleet.dir.run(id)).closed;
        Ok(Some(Gone { result, metadata, closed }))
    }

    /// Returns how a run ended whose runner could not be started, or told what to do. It may have
    /// come far enough to leave a result of its own.
    fn not_started(&self, run: &Run, why: &str) -> RunResult {
        match recover::outcome_of(&self.fleet, run) {
            Ok(Some(result)) if result.end != End::NeverStarted => result,
            _ => recover::never_started(run, (self.fleet.now)(), why),
        }
    }
}

/// Says whether somebody can answer what the agent of a run asks.
fn is_attended(folder: &Utf8Path) -> bool {
    let spec = crate::file::read::<RunSpec>(&folder.join(file::SPEC)).ok().flatten();
    spec.is_some_and(|spec| spec.attendance != Attendance::Nobody)
}

fn collect(shared: &Arc<Shared>, run: RunId) {
    let own = Arc::clone(shared);
    shared.collectors.hand(move || own.find_out(run, None));
}

fn request(fleet: &Fleet, setup: &Setup, wanted: &Wanted) -> Result<Box<JobRequest>, Refused> {
    let agent = &*setup.agent_for(wanted)?;
    make_ready(agent, &setup.env, (fleet.now)())
        .map_err(|error| Refused::new(RefusedKind::Trouble, chain(&error)))?;
    let session = own_session(fleet, wanted)?;
    let note = match session.as_ref().filter(|session| sessions::lacks_worktree(session)) {
        Some(session) => Some(sessions::make_worktree_again(fleet, &setup.home, session)?),
        None => None,
    };
    let directory = session.and_then(|session| session.working_directory);
    let mut request = setup.prepare(agent, wanted, directory.as_deref()).map_err(|error| {
        let kind = match &error {
            PrepareError::Schedule { .. } => RefusedKind::NotFound,
            PrepareError::Isolation { .. } => RefusedKind::NotAllowed,
            _ => RefusedKind::Usage,
        };
        Refused::new(kind, chain(&error))
    })?;
    request.note = note;
    Ok(Box::new(request))
}

/// Returns the session that is asked for if it has its own place: a worktree, or wherever somebody
/// worked in it before we knew it.
fn own_session(fleet: &Fleet, wanted: &Wanted) -> Result<Option<Session>, Refused> {
    let (Wish::Given { id } | Wish::Fork { source: id, .. }) = &wanted.session else {
        return Ok(None);
    };
    let trouble = |error: &dyn std::error::Error| Refused::new(RefusedKind::Trouble, chain(error));
    let reader = Reader::open(&fleet.dir).map_err(|error| trouble(&error))?;
    let session = reader.session_by_agent_id(id).map_err(|error| trouble(&error))?;
    Ok(session.filter(sessions::has_own_place))
}

fn ask_to_end(fleet: &Fleet, run: RunId, now: bool, by: &str) {
    let folder = fleet.dir.run(run);
    let mut wait = LOOK_EVERY;
    while !folder.join(file::RESULT).exists() {
        let asked = Control::of_run(&folder).and_then(|mut control| {
            if now {
                control.reply_within(NOW_WAIT)?;
            }
            control.ask(Op::Cancel { now, by: by.to_owned() })
        });
        match asked {
            Ok(ReplyBody::Refused { reason }) => {
                tracing::warn!(%run, reason, "a run does not want to end");
                return;
            }
            Ok(_) => return,
            // It is starting, or ends by itself.
            Err(ControlError::NotStarted { .. } | ControlError::Gone { .. }) => {}
            Err(error) if now => {
                tracing::warn!(%run, reason = chain(&error), "a runner is mute and is killed");
                match cancel::kill_runner(&folder) {
                    Ok(_) | Err(KillError::Gone(_)) => return,
                    Err(error) => tracing::warn!(%run, reason = chain(&error), "cannot kill it"),
                }
            }
            Err(error) => tracing::debug!(%run, reason = chain(&error), "a runner is mute"),
        }
        if !is_run_alive(&folder) && folder.join(file::STARTED).exists() {
            return;
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(ASK_AGAIN_MAX);
    }
}
