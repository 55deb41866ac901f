//! The threads that feed hubs. Each ends soon after nobody holds its hub any more.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::{Control, ControlError, HangUp, Happenings};
use heeler_model::run::Happening;
use heeler_model::{JobId, SessionId, chain};
use heeler_query::{QueryError, Records};
use heeler_transcript::{Follower, Numbered, Start, Update};
use serde_json::json;

use super::event::{Place, Row, event};
use super::hub::{Delta, Hub, Source, row_of_event};

/// How often it is looked whether the state has changed, and whether anybody still listens.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How many events of a run are read at once.
const EVENTS_AT_ONCE: usize = 256;

/// What is followed.
pub(super) enum Followed {
    /// A job.
    Job(JobId),
    /// A session.
    Session(SessionId),
    /// A run of a workflow.
    Run(String),
}

/// Makes a hub with a thread that feeds it; `commits` counts the changes of the state.
pub(super) fn start(
    followed: Followed,
    records: Records,
    commits: Arc<AtomicU64>,
) -> io::Result<Arc<Hub>> {
    let source = match &followed {
        Followed::Run(run) => Source::Run(records.clone(), run.clone()),
        Followed::Job(_) | Followed::Session(_) => Source::File(OnceLock::new()),
    };
    let hub = Arc::new(Hub::new(source));
    let feeder = Feeder { hub: Arc::downgrade(&hub), records, commits };
    std::thread::Builder::new().name("live".to_owned()).spawn(move || {
        let weak = feeder.hub.clone();
        match followed {
            Followed::Job(job) => feeder.follow_job(&job),
            Followed::Session(session) => feeder.follow_session(&session),
            Followed::Run(run) => feeder.follow_run(&run),
        }
        // However it came to its end, nobody waits for more.
        if let Some(hub) = weak.upgrade()
            && !hub.is_ended()
        {
            hub.give_up();
        }
    })?;
    Ok(hub)
}

struct Feeder {
    hub: Weak<Hub>,
    records: Records,
    commits: Arc<AtomicU64>,
}

impl Feeder {
    /// Returns how often the state has changed if that is news.
    fn change(&self, seen: Option<u64>) -> Option<u64> {
        let now = self.commits.load(Ordering::SeqCst);
        (seen != Some(now)).then_some(now)
    }

    fn follow_job(&self, job: &JobId) {
        let (mut rows, mut seen, mut words) = (Rows::default(), None, Words::default());
        while let Some(hub) = self.hub.upgrade() {
            let mut last_words = None;
            if let Some(change) = self.change(seen) {
                match self.records.job_course(job) {
                    Ok(course) => {
                        seen = Some(change);
                        let status = json_of(&course.item);
                        rows.find(&hub, course.log.as_deref());
                        match course.item.status.is_final() {
                            true => last_words = Some(status),
                            false => {
                                hub.set_status(&status);
                                words.listen(&self.hub, course.run.as_deref());
                            }
                        }
                    }
                    Err(QueryError::NotFound { .. }) => return,
                    Err(error) => tracing::warn!(reason = chain(&error), "cannot look at a job"),
                }
            }
            if rows.drain(&hub).is_err() {
                return;
            }
            if let Some(status) = last_words {
                // Looked at before the file is read: what an ended job wrote is then all there, though
                // nobody may have been woken for it yet.
                rows.catch_up(&hub);
                return hub.finish(&status);
            }
            drop(hub);
            if !rows.wait(&self.hub) {
                return;
            }
        }
    }

    fn follow_session(&self, session: &SessionId) {
        let (mut rows, mut seen) = (Rows::default(), None);
        while let Some(hub) = self.hub.upgrade() {
            if rows.is_unknown()
                && let Some(change) = self.change(seen)
            {
                match self.records.session_log(session) {
                    Ok(log) => {
                        seen = Some(change);
                        rows.find(&hub, log.as_deref());
                    }
                    Err(error) => {
                        tracing::warn!(reason = chain(&error), "cannot look at a session");
                    }
                }
            }
            if rows.drain(&hub).is_err() {
                return;
            }
            drop(hub);
            if !rows.wait(&self.hub) {
                return;
            }
        }
    }

    fn follow_run(&self, run: &str) {
        let (mut last, mut seen) = (0, None);
        while let Some(hub) = self.hub.upgrade() {
            if let Some(change) = self.change(seen) {
                match self.look_at_run(&hub, run, &mut last) {
                    Ok(true) => return,
                    Ok(false) => seen = Some(change),
                    Err(QueryError::NotFound { .. }) => return,
                    Err(error) => tracing::warn!(reason = chain(&error), "cannot look at a run"),
                }
            }
            drop(hub);
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Tells what is new of a run of a workflow; says whether it is over.
    fn look_at_run(&self, hub: &Hub, run: &str, last: &mut u64) -> Result<bool, QueryError> {
        let now = self.records.run_now(run)?;
        if *last == 0 {
            hub.begin_at(Place::default());
        }
        loop {
            let events = self.records.run_events(run, *last, EVENTS_AT_ONCE)?;
            for event in &events {
                *last = event.number;
                hub.add(row_of_event(event));
            }
            if events.len() < EVENTS_AT_ONCE {
                break;
            }
        }
        match now.is_over {
            true => hub.finish(&json_of(&now)),
            false => hub.set_status(&json_of(&now)),
        }
        Ok(now.is_over)
    }
}

fn json_of(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("what is told is JSON")
}

/// The rows of a file as they come.
#[derive(Default)]
pub(super) struct Rows {
    follower: Option<Follower>,
    /// The number of the line that the follower began with.
    first: u64,
    /// Where the follower's last row stood.
    last: Option<Place>,
    /// Where the last row stood that was added.
    added: Option<Place>,
    /// The number of a line before which all was added, and where it begins.
    next: (u64, u64),
}

/// The file was replaced by another, so its lines have other numbers.
pub(super) struct Replaced;

impl Rows {
    fn is_unknown(&self) -> bool {
        self.follower.is_none()
    }

    /// Begins to follow a file, from its end on: clients read what is there already.
    pub(super) fn find(&mut self, hub: &Hub, path: Option<&Utf8Path>) {
        let (Some(path), Source::File(known)) = (path, &hub.source) else { return };
        if self.follower.is_some() {
            return;
        }
        // It may come later. Where it cannot be read the follower says why.
        let end = Numbered::open(path, u64::MAX);
        let (first, offset) = end.map_or((0, 0), |end| (end.number(), end.offset()));
        let mut follower = Follower::new();
        follower.add(path, Start::Offset(offset));
        (self.follower, self.first, self.next) = (Some(follower), first, (first, offset));
        drop(known.set(path.to_owned()));
        hub.begin_at(Place::of_line(first));
    }

    /// Adds all rows that are there.
    pub(super) fn drain(&mut self, hub: &Hub) -> Result<(), Replaced> {
        while let Some(update) = self.next(Duration::ZERO) {
            self.add(hub, update)?;
        }
        Ok(())
    }

    /// Adds what the file has, whether or not anybody was woken for it.
    pub(super) fn catch_up(&mut self, hub: &Hub) {
        let Source::File(path) = &hub.source else { return };
        let Some(path) = path.get().filter(|path| path.exists()) else { return };
        let read = Numbered::open_at(path, self.next.0, self.next.1).and_then(|mut lines| {
            while let Some(line) = lines.next_line()? {
                for (part, record) in (0..).zip(&line.records) {
                    self.tell(hub, Place { line: line.number, part }, &record.text);
                }
                self.next = (lines.number(), lines.offset());
            }
            Ok(())
        });
        if let Err(error) = read {
            tracing::warn!(reason = chain(&error), "cannot read the end of a transcript");
        }
    }

    fn tell(&mut self, hub: &Hub, at: Place, text: &str) {
        if self.added.is_none_or(|added| added < at) {
            self.added = Some(at);
            hub.add(Row::new(at, text));
        }
    }

    /// Waits a moment for the next row; says whether it is worth going on.
    pub(super) fn wait(&mut self, hub: &Weak<Hub>) -> bool {
        if self.follower.is_none() {
            std::thread::sleep(LOOK_EVERY);
            return true;
        }
        match (self.next(LOOK_EVERY), hub.upgrade()) {
            (_, None) => false,
            (None, _) => true,
            (Some(update), Some(hub)) => self.add(&hub, update).is_ok(),
        }
    }

    fn next(&mut self, wait: Duration) -> Option<Update> {
        let follower = self.follower.as_mut()?;
        match follower.next(wait) {
            Ok(update) => update,
            Err(error) => {
                tracing::warn!(reason = chain(&error), "cannot follow a transcript");
                None
            }
        }
    }

    fn add(&mut self, hub: &Hub, update: Update) -> Result<(), Replaced> {
        match update {
            Update::Record { line, record, .. } => {
                let line = self.first + line;
                let glued = self.last.filter(|last| last.line == line);
                let at = glued.map_or(Place::of_line(line), Place::after);
                self.last = Some(at);
                self.tell(hub, at, &record.text);
                self.next = self.next.max((line + 1, record.next));
                Ok(())
            }
            Update::Fault { .. } => Ok(()),
            Update::Restarted { .. } => Err(Replaced),
        }
    }
}

/// What a run says that is not in its log: text as it is said. A thread listens to each run, since one
/// that is mute must keep no rows waiting.
#[derive(Default)]
struct Words {
    folder: Option<Utf8PathBuf>,
    line: Arc<Mutex<Line>>,
}

/// The connection to a run.
#[derive(Default)]
struct Line {
    is_closed: bool,
    hang_up: Option<HangUp>,
}

impl Words {
    /// Listens to this run, from now on and instead of the one before.
    fn listen(&mut self, hub: &Weak<Hub>, folder: Option<&Utf8Path>) {
        let Some(folder) = folder.filter(|folder| self.folder.as_deref() != Some(*folder)) else {
            return;
        };
        self.hang_up();
        (self.folder, self.line) = (Some(folder.to_owned()), Arc::default());
        let (hub, folder, line) = (hub.clone(), folder.to_owned(), Arc::clone(&self.line));
        let thread = std::thread::Builder::new().name("live-words".to_owned());
        if let Err(error) = thread.spawn(move || listen(&hub, &folder, &line)) {
            tracing::warn!(%error, "cannot listen to a run");
        }
    }

    fn hang_up(&self) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.is_closed = true;
        if let Some(hang_up) = line.hang_up.take() {
            hang_up.now();
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// Waits for a run to start and passes on what it says, until it ends or the line is closed.
fn listen(hub: &Weak<Hub>, folder: &Utf8Path, line: &Mutex<Line>) {
    let happenings = loop {
        match Control::of_run(folder).and_then(Control::subscribe) {
            Ok(happenings) => break happenings,
            Err(ControlError::NotStarted { .. }) => {}
            Err(_) => return,
        }
        std::thread::sleep(LOOK_EVERY);
        if line.lock().unwrap_or_else(PoisonError::into_inner).is_closed {
            return;
        }
    };
    {
        let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.is_closed {
            return;
        }
        line.hang_up = happenings.hang_up().ok();
    }
    pass_on(happenings, hub);
}

fn pass_on(happenings: Happenings, hub: &Weak<Hub>) {
    let mut row = None;
    for happening in happenings.map_while(Result::ok) {
        let Some(hub) = hub.upgrade() else { return };
        match happening {
            Happening::Row { at, .. } => row = Some(at + 1),
            Happening::Delta { text, .. } => {
                let data = json!({ "text": text }).to_string();
                hub.say(Delta { row, event: event(None, "delta", &data) });
            }
            Happening::Lagged => {
                hub.say(Delta { row: None, event: event(None, "lagged", "{}") });
            }
            _ => {}
        }
    }
}
