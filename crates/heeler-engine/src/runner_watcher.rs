//! Waits for live runners, by their process descriptors, and for new questions, by the directories
//! that hold them, in one thread.
//!
//! It treats children of this process and runners of an earlier daemon alike. It only reports that
//! a runner has ended or has asked; the content is in the run directory. Start at
//! [`RunnerWatcher`].

use std::collections::{HashMap, HashSet};
use std::fs::DirBuilder;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camino::Utf8Path;
use heeler_model::run::{AGENT_KEPT_REPLY, RUN_TAKEN_REPLY, RunnerInput, file};
use heeler_model::{AgentSessionId, RunId};
use heeler_transcript::LockFile;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::fault::{self, FaultPoint};
use crate::launch;
use crate::run_questions;

/// Event key of the question watches. Keys of runners start at 1.
const QUESTIONS: u64 = 0;

/// Bit of an event key that means the connection to a runner instead of its process.
const LINK: u64 = 1 << 63;

/// Limit on runners that wait with their agent for the next run; beyond it, the one that waits for
/// the longest time is ended.
pub(crate) const KEPT_RUNNERS_MAX: usize = 8;

/// Time for a kept runner to confirm a run. It has nothing else to do.
const CONFIRM_WAIT: Duration = Duration::from_secs(10);

/// Maximum number of events taken at a time.
const ENDS_MAX: usize = 64;

/// Reports when runners end or ask questions.
#[derive(Debug, Clone)]
pub(crate) struct RunnerWatcher {
    shared: Arc<RunnerWatcherState>,
}

struct RunnerWatcherState {
    epoll: OwnedFd,
    /// Reports new files in question directories.
    inotify: OwnedFd,
    registry: Mutex<RunnerRegistry>,
    /// Called with each run that has ended.
    ended: Box<dyn Fn(RunId) + Send + Sync>,
}

#[derive(Debug, Default)]
struct RunnerRegistry {
    last_id: u64,
    runners: HashMap<u64, WatchedRunner>,
    /// Runs with watched questions, by inotify watch number.
    question_watches: HashMap<i32, RunId>,
}

#[derive(Debug)]
struct WatchedRunner {
    run: RunId,
    /// Run for which it was started. Processes of its agent may have the mark of that run.
    first_run: RunId,
    /// Closing it ends the watch.
    process: OwnedFd,
    /// Child process to reap, if the runner is one.
    child: Option<Child>,
    state: WatchedRunnerState,
    /// Connection to a runner whose agent may stay for further runs of a session.
    link: Option<(AgentSessionId, UnixStream)>,
}

impl WatchedRunner {
    /// Returns true if it waits with the agent of a session for the next run.
    fn keeps(&self, session: &AgentSessionId) -> bool {
        self.state == WatchedRunnerState::Kept
            && self.link.as_ref().is_some_and(|(kept, _)| kept == session)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchedRunnerState {
    /// It executes its run.
    Running,
    /// Its run has a result, and its agent waits for the next run of the session.
    Kept,
    /// The next run is being passed to it.
    Receiving,
}

impl RunnerWatcher {
    /// Starts the thread. `ended` is called once for each runner that has ended; `asked` is called
    /// for each run that may have asked a question or received an answer; `abandoned` is called with
    /// the first run of a runner that has ended between two runs.
    pub(crate) fn start(
        ended: impl Fn(RunId) + Send + Sync + 'static,
        asked: impl Fn(RunId) + Send + 'static,
        abandoned: impl Fn(RunId) + Send + 'static,
    ) -> io::Result<RunnerWatcher> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let inotify = inotify::init(flags)?;
        epoll::add(&epoll, &inotify, EventData::new_u64(QUESTIONS), EventFlags::IN)?;
        let (registry, ended) = (Mutex::default(), Box::new(ended));
        let shared = Arc::new(RunnerWatcherState { epoll, inotify, registry, ended });
        let watcher = RunnerWatcher { shared: Arc::clone(&shared) };
        std::thread::Builder::new()
            .name("heeler-watch".to_owned())
            .spawn(move || run_loop(&shared, asked, abandoned))?;
        Ok(watcher)
    }

    /// Watches a runner that was just started. With a connection, its agent may stay for further runs
    /// of a session.
    pub(crate) fn add(
        &self,
        run: RunId,
        child: Child,
        link: Option<(AgentSessionId, UnixStream)>,
    ) -> io::Result<()> {
        let pid = Pid::from_raw(child.id().cast_signed());
        let pid = pid.ok_or_else(|| io::Error::other("a child has a process number"))?;
        // A child that is not reaped keeps its id, so this is the right process.
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let state = WatchedRunnerState::Running;
        let (first_run, child) = (run, Some(child));
        self.insert(WatchedRunner { run, first_run, process, child, state, link })
    }

    /// Returns true if a runner waits with its agent for the next run.
    pub(crate) fn has_kept(&self) -> bool {
        let watched = self.shared.lock();
        watched.runners.values().any(|runner| runner.state != WatchedRunnerState::Running)
    }

    /// Returns the run for which the runner was started that keeps the agent of a session.
    pub(crate) fn first_run_of_kept(&self, session: &AgentSessionId) -> Option<RunId> {
        let watched = self.shared.lock();
        let kept = watched.runners.values().find(|runner| runner.keeps(session));
        kept.map(|runner| runner.first_run)
    }

    /// Passes a run to the runner that keeps the agent of its session. Returns false if no runner
    /// has confirmed that it executes the run.
    pub(crate) fn hand_over(
        &self,
        run: RunId,
        session: &AgentSessionId,
        input: &RunnerInput,
    ) -> bool {
        let taken = self.shared.lock().take_kept(session);
        let Some((token, link)) = taken else { return false };
        // It cannot be watched for replies while one is awaited here.
        let _unwatched = epoll::delete(&self.shared.epoll, &link);
        let is_confirmed = request_next_run(&link, input);
        fault::reach(FaultPoint::RunHandedOver);
        let mut watched = self.shared.lock();
        if !is_confirmed {
            // It is ending. A runner that hangs must not execute the run later, beside another one.
            if let Some(runner) = watched.runners.get(&token) {
                let _ended = pidfd_send_signal(&runner.process, Signal::KILL);
            }
            return false;
        }
        let Some(runner) = watched.runners.get_mut(&token) else {
            // It has ended since, and the thread has not reported that, because it was no run then.
            drop(watched);
            (self.shared.ended)(run);
            return true;
        };
        (runner.run, runner.state) = (run, WatchedRunnerState::Running);
        let data = EventData::new_u64(token | LINK);
        if link.set_nonblocking(true).is_ok()
            && epoll::add(&self.shared.epoll, &link, data, EventFlags::IN).is_ok()
        {
            runner.link = Some((session.clone(), link));
        }
        true
    }

    /// Watches the runner that another daemon started for a run directory; returns false if there
    /// is none.
    pub(crate) fn attach(&self, run: RunId, folder: &Utf8Path) -> io::Result<bool> {
        let lock = folder.join(file::LOCK);
        let holder = || LockFile::probe(&lock).ok().flatten().and_then(|held| held.holder);
        let Some(pid) = holder().and_then(|it| Pid::from_raw(it.pid.cast_signed())) else {
            return Ok(false);
        };
        // The runner has ended meanwhile, so there is nothing to watch.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(false) };
        // Check again after opening: the process ID could have been reused in between.
        if holder().is_none_or(|it| it.pid.cast_signed() != pid.as_raw_nonzero().get()) {
            return Ok(false);
        }
        let state = WatchedRunnerState::Running;
        let (first_run, child, link) = (run, None, None);
        let runner = WatchedRunner { run, first_run, process, child, state, link };
        self.insert(runner).map(|()| true)
    }

    /// Watches the questions of a run while its runner is watched.
    pub(crate) fn watch_questions(&self, run: RunId, folder: &Utf8Path) -> io::Result<()> {
        let asks = folder.join(run_questions::QUESTIONS_FOLDER);
        match DirBuilder::new().mode(0o700).create(&asks) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // The lock is held until the watch is registered, so no event finds an unknown number.
        let mut watched = self.shared.lock();
        // Questions appear by rename, so a file is complete when it is reported.
        let flags = inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::ONLYDIR;
        let number = inotify::add_watch(&self.shared.inotify, asks.as_std_path(), flags)?;
        watched.question_watches.insert(number, run);
        // If the runner has ended in the meantime, nothing else would remove the watch.
        if !watched.runners.values().any(|runner| runner.run == run) {
            self.shared.unwatch_questions(&mut watched, run);
        }
        Ok(())
    }

    fn insert(&self, runner: WatchedRunner) -> io::Result<()> {
        let mut watched = self.shared.lock();
        // Ids are not reused, so a late event cannot concern another runner.
        watched.last_id += 1;
        let token = watched.last_id;
        let data = EventData::new_u64(token);
        // A process descriptor is readable once the process has ended, even if that was before.
        epoll::add(&self.shared.epoll, &runner.process, data, EventFlags::IN)?;
        if let Some((_, link)) = &runner.link {
            link.set_nonblocking(true)?;
            let data = EventData::new_u64(token | LINK);
            epoll::add(&self.shared.epoll, link, data, EventFlags::IN)?;
        }
        watched.runners.insert(token, runner);
        Ok(())
    }
}

impl std::fmt::Debug for RunnerWatcherState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunnerWatcherState").finish_non_exhaustive()
    }
}

impl RunnerRegistry {
    /// Takes the connection to the runner that keeps the agent of a session.
    fn take_kept(&mut self, session: &AgentSessionId) -> Option<(u64, UnixStream)> {
        let (token, runner) = self.runners.iter_mut().find(|(_, runner)| runner.keeps(session))?;
        let (_, link) = runner.link.take()?;
        runner.state = WatchedRunnerState::Receiving;
        Some((*token, link))
    }

    /// Closes the connections to kept runners beyond the limit, which ends them.
    fn limit_kept(&mut self) {
        let is_kept = |runner: &WatchedRunner| {
            runner.state == WatchedRunnerState::Kept && runner.link.is_some()
        };
        let kept = self.runners.iter().filter(|(_, runner)| is_kept(runner));
        let mut kept: Vec<(RunId, u64)> = kept.map(|(token, it)| (it.run, *token)).collect();
        // The ID of a run begins with its time.
        kept.sort_unstable();
        let over = kept.len().saturating_sub(KEPT_RUNNERS_MAX);
        for (_, token) in &kept[..over] {
            if let Some(runner) = self.runners.get_mut(token) {
                runner.link = None;
            }
        }
    }
}

/// Passes a run to a kept runner; returns true if it confirms the run.
fn request_next_run(link: &UnixStream, input: &RunnerInput) -> bool {
    let sent = link
        .set_nonblocking(false)
        .and_then(|()| link.set_write_timeout(Some(CONFIRM_WAIT)))
        .and_then(|()| link.set_read_timeout(Some(CONFIRM_WAIT)));
    if sent.is_err() || launch::write_input(link, "runner", input).is_err() {
        return false;
    }
    let mut reply = [0; RUN_TAKEN_REPLY.len()];
    let mut link = link;
    link.read_exact(&mut reply).is_ok() && reply == *RUN_TAKEN_REPLY.as_bytes()
}

impl RunnerWatcherState {
    fn lock(&self) -> MutexGuard<'_, RunnerRegistry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a message of a runner. Returns the run that has ended, if one has.
    fn read_link(&self, token: u64) -> Option<RunId> {
        let mut watched = self.lock();
        let runner = watched.runners.get_mut(&token)?;
        let mut text = [0; AGENT_KEPT_REPLY.len()];
        let (_, link) = runner.link.as_mut()?;
        let is_kept = match link.read(&mut text) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            // It is one small write, so it arrives as a whole.
            read => read.is_ok_and(|length| text[..length] == *AGENT_KEPT_REPLY.as_bytes()),
        };
        if !is_kept || runner.state != WatchedRunnerState::Running {
            // Closing it removes it from the watched descriptors.
            runner.link = None;
            return None;
        }
        runner.state = WatchedRunnerState::Kept;
        let run = runner.run;
        self.unwatch_questions(&mut watched, run);
        watched.limit_kept();
        Some(run)
    }

    fn unwatch_questions(&self, watched: &mut RunnerRegistry, run: RunId) {
        watched.question_watches.retain(|&number, of| {
            if *of == run {
                // The watch no longer exists if its directory was removed.
                let _gone = inotify::remove_watch(&self.inotify, number);
            }
            *of != run
        });
    }

    /// Returns the runs with new files in their question directories.
    fn runs_with_new_questions(&self) -> HashSet<RunId> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut numbers = HashSet::new();
        let mut is_all = false;
        // The reader returns an error when there are no more events.
        while let Ok(event) = events.next() {
            // The kernel lost events, so every run may have asked.
            is_all |= event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW);
            numbers.insert(event.wd());
        }
        let watched = self.lock();
        let asking = watched.question_watches.iter();
        asking
            .filter(|(number, _)| is_all || numbers.contains(number))
            .map(|(_, &run)| run)
            .collect()
    }
}

fn run_loop(shared: &RunnerWatcherState, asked: impl Fn(RunId), abandoned: impl Fn(RunId)) {
    let mut events = Vec::with_capacity(ENDS_MAX);
    loop {
        events.clear();
        match epoll::wait(&shared.epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "cannot wait for runners any more");
                return;
            }
        }
        for event in &events {
            if event.data.u64() == QUESTIONS {
                shared.runs_with_new_questions().into_iter().for_each(&asked);
                continue;
            }
            if event.data.u64() & LINK != 0 {
                if let Some(run) = shared.read_link(event.data.u64() & !LINK) {
                    (shared.ended)(run);
                }
                continue;
            }
            let gone = {
                let mut watched = shared.lock();
                let gone = watched.runners.remove(&event.data.u64());
                if let Some(gone) = &gone {
                    shared.unwatch_questions(&mut watched, gone.run);
                }
                gone
            };
            let Some(mut gone) = gone else { continue };
            // Runners of an earlier daemon are no children, and are reaped by another process.
            if let Some(child) = &mut gone.child {
                // The process has ended, so this does not block.
                let _status = child.wait();
            }
            match gone.state {
                WatchedRunnerState::Running => (shared.ended)(gone.run),
                // The end of its last run was reported, and none has begun since. If the runner was
                // killed, its agent may still be there.
                WatchedRunnerState::Kept | WatchedRunnerState::Receiving => {
                    abandoned(gone.first_run);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    use super::*;

    /// Longest wait for a thread of the watcher.
    const WAIT_MAX: Duration = Duration::from_secs(120);

    /// Starts a process that ends with its input, as a runner does.
    #[expect(clippy::disallowed_methods, reason = "the test needs processes to watch")]
    fn runner(link: UnixStream) -> Child {
        let input = Stdio::from(OwnedFd::from(link));
        Command::new("cat").stdin(input).stdout(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn beyond_the_limit_the_runner_that_waits_longest_is_ended() {
        let (ended_sender, ended) = mpsc::channel();
        let (abandoned_sender, abandoned) = mpsc::channel();
        let watcher = RunnerWatcher::start(
            move |run| ended_sender.send(run).unwrap(),
            |_| {},
            move |run| abandoned_sender.send(run).unwrap(),
        )
        .unwrap();
        let time = |second: i64| jiff::Timestamp::from_second(second).unwrap();
        let kept: Vec<_> = (0..=KEPT_RUNNERS_MAX)
            .map(|number| {
                let run = RunId::mint(time(number.try_into().unwrap()), [0; 10]);
                let session: AgentSessionId = format!("session-{number}").parse().unwrap();
                let (link, theirs) = UnixStream::pair().unwrap();
                let mut says = theirs.try_clone().unwrap();
                watcher.add(run, runner(theirs), Some((session.clone(), link))).unwrap();
                std::io::Write::write_all(&mut says, AGENT_KEPT_REPLY.as_bytes()).unwrap();
                // The run of a runner that keeps its agent has ended.
                assert_eq!(ended.recv_timeout(WAIT_MAX).unwrap(), run);
                (run, session)
            })
            .collect();
        // The one that was kept first ends by itself, because its connection is closed.
        let (first, session) = &kept[0];
        assert_eq!(abandoned.recv_timeout(WAIT_MAX).unwrap(), *first);
        assert_eq!(watcher.first_run_of_kept(session), None);
        for (run, session) in &kept[1..] {
            assert_eq!(watcher.first_run_of_kept(session), Some(*run));
        }
        // The others end with the test, which closes their connections.
        watcher.shared.lock().runners.values_mut().for_each(|runner| runner.link = None);
        for _ in 0..KEPT_RUNNERS_MAX {
            abandoned.recv_timeout(WAIT_MAX).unwrap();
        }
    }
}
