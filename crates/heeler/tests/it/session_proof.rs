//! Random lives of sessions, beside a model that only knows what was asked in each.
//!
//! Jobs run, sessions fork (with and without their files), runners and daemons die, sessions are
//! deleted and come back. After each step every session's log has exactly what the model says, the
//! agent remembers exactly that, and no file of a session changed that nobody went on with.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use heeler_engine::{CommandReply, DaemonCommand, SessionOperation};
use heeler_model::run::RunStartRecord;
use heeler_model::session_choice::SessionChoice;
use heeler_model::{Job, JobId, JobRequest, JobStatus, Session, SessionId};
use heeler_server::DaemonClient;
use heeler_store::StoreReader;
use heeler_store::history::{HistoryRole, load_history};
use heeler_testkit::ProofSettings;
use rustix::process::{Pid, Signal};

use crate::daemon_kills::{Herd, Life};
use crate::processes::signal_if;
use crate::trigger::wait_for;

/// How many things happen in a round.
const STEPS: usize = 8;

/// How many rounds one fleet lives.
const ROUNDS_PER_FLEET: u64 = 10;

/// Two fleets, with 160 steps: of the twelve kinds of steps the rarest is missed once in a million runs.
const ROUNDS_IN_CI: u64 = 2 * ROUNDS_PER_FLEET;

/// A turn of a session.
#[derive(Debug, Clone, PartialEq)]
struct Turn {
    prompt: String,
    /// Whether it came to its end. One that was cut off may be remembered or not.
    whole: bool,
    /// What the agent's file held when the turn had ended.
    notes: String,
}

/// What a session is to be.
#[derive(Debug, Clone)]
struct Known {
    turns: Vec<Turn>,
    /// Its own worktree.
    workspace: Option<PathBuf>,
}

/// A fleet, and what it is to be.
struct World {
    herd: Herd,
    life: Option<Life>,
    client: Option<DaemonClient>,
    known: BTreeMap<SessionId, Known>,
    prompts: u64,
}

/// Every byte of a session.
type Bytes = Vec<(PathBuf, Vec<u8>)>;

impl World {
    fn new() -> World {
        let script = "[{run: 'echo $HEELER_RUN >> notes'}, {when: {prompt: slow}, \
            do: [{say: Begun.}, {run: 'read line < $HOME/gate'}]}, {say: 'Before: {remembered}.'}]";
        let config = format!(
            "agents:\n  - {{name: coder, runtime: scripted, working_directory: work, script: {script}, \
             instances: {{max_concurrent: 4}}}}\n"
        );
        let herd = Herd::of(&config);
        let work = herd.fleet.file("work");
        fs::create_dir(&work).unwrap();
        fs::write(work.join("kept"), "kept\n").unwrap();
        // Where it is there for all worktrees.
        let home = herd.fleet.file("home");
        fs::create_dir_all(&home).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            home.join("gate"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let git = |args: &[&str]| {
            let mut git = std::process::Command::new("git");
            git.args(["-c", "user.name=t", "-c", "user.email=t@t"]).args(args).current_dir(&work);
            assert!(git.output().unwrap().status.success());
        };
        git(&["init", "-q"]);
        git(&["add", "kept"]);
        git(&["commit", "-q", "-m", "first"]);
        let mut world =
            World { herd, life: None, client: None, known: BTreeMap::new(), prompts: 0 };
        world.start();
        world
    }

    fn start(&mut self) {
        let (life, client) = self.herd.begin(&[]);
        (self.life, self.client) = (Some(life), Some(client));
    }

    fn ask(&mut self, command: &DaemonCommand) -> CommandReply {
        self.client.as_mut().unwrap().send_command(command, None).unwrap()
    }

    fn prompt(&mut self, kind: &str) -> String {
        self.prompts += 1;
        format!("{kind}{}", self.prompts)
    }

    fn session(&self, id: &SessionId) -> Session {
        session(&self.herd.reader(), id)
    }

    fn trigger(&mut self, session: Option<&SessionId>, prompt: &str) -> JobId {
        let session = session.map(|id| self.session(id).agent_session_id.unwrap());
        let session = session.map_or(SessionChoice::Fresh, |id| SessionChoice::Given { id });
        let prompt = Some(prompt.to_owned());
        let wanted = JobRequest { prompt, session, ..JobRequest::new("coder".parse().unwrap()) };
        match self.ask(&DaemonCommand::Trigger(Box::new(wanted))) {
            CommandReply::Job { job, .. } => job,
            other => panic!("{other:?}"),
        }
    }

    fn end_of(&self, job: &JobId) -> Job {
        let reader = self.herd.reader();
        wait_for("the end of a job", || {
            reader.job(job).unwrap().filter(|it| it.head.status.is_final())
        })
    }

    fn session_of(&self, job: &Job) -> SessionId {
        let own = job.head.session_id.clone().unwrap();
        self.herd.reader().session_by_agent_id(&own).unwrap().unwrap().id
    }

    fn pick(&self, random: &mut fastrand::Rng) -> Option<SessionId> {
        let ids: Vec<&SessionId> = self.known.keys().collect();
        (!ids.is_empty()).then(|| ids[random.usize(..ids.len())].clone())
    }

    /// Has a job done; checks what its agent remembers.
    fn run(&mut self, session: Option<&SessionId>) {
        let prompt = self.prompt("p");
        let job = self.trigger(session, &prompt);
        let job = self.end_of(&job);
        assert_eq!(job.head.status, JobStatus::Completed, "{job:#?}");
        let id = self.session_of(&job);
        assert!(session.is_none_or(|session| *session == id));
        let known = self.known.entry(id);
        let known = known.or_insert(Known { turns: Vec::new(), workspace: None });
        let said = job.head.summary.unwrap();
        let said = said.strip_prefix("Before: ").unwrap().strip_suffix('.').unwrap();
        let remembered: Vec<&str> = said.split(" | ").filter(|it| *it != "nothing").collect();
        check_turns(&mut known.turns, &remembered);
        let folder = known.workspace.clone().unwrap_or_else(|| self.herd.fleet.file("work"));
        let notes = fs::read_to_string(folder.join("notes")).unwrap();
        let run = self.herd.reader().runs_of_job(&job.head.id).unwrap().pop().unwrap().id;
        assert_eq!(notes.lines().last(), Some(run.to_string().as_str()), "it worked elsewhere");
        known.turns.push(Turn { prompt, whole: true, notes });
    }

    /// Cuts a job off by killing its runner, or the daemon first.
    fn cut_off(&mut self, session: Option<&SessionId>, random: &mut fastrand::Rng) {
        let prompt = self.prompt("slow");
        let id = self.trigger(session, &prompt);
        let log = self.herd.dir().job_transcript(&id);
        wait_for("the turn to begin", || {
            fs::read_to_string(&log).ok().filter(|rows| rows.contains("Begun."))
        });
        let run = self.herd.reader().runs_of_job(&id).unwrap().pop().unwrap().id;
        let started = fs::read(self.herd.dir().run(run).join("started.json")).unwrap();
        let started: RunStartRecord = serde_json::from_slice(&started).unwrap();
        let daemon_too = random.bool();
        if daemon_too {
            self.life.take().unwrap().kill();
        }
        let pid = Pid::from_raw(i32::try_from(started.pid).unwrap()).unwrap();
        assert!(signal_if(pid, Signal::KILL, || true));
        if daemon_too {
            self.start();
        }
        let job = self.end_of(&id);
        assert!(job.interrupted, "{job:#?}");
        let id = self.session_of(&job);
        let known = self.known.entry(id);
        let known = known.or_insert(Known { turns: Vec::new(), workspace: None });
        known.turns.push(Turn { prompt, whole: false, notes: String::new() });
    }

    fn fork(&mut self, source: &SessionId, random: &mut fastrand::Rng) {
        let known = self.known[source].clone();
        let numbers = self.whole_turns(source);
        if numbers.is_empty() {
            return;
        }
        let (number, turn) = numbers[random.usize(..numbers.len())];
        let at_message = (number, turn) != numbers[numbers.len() - 1];
        let at_message = (at_message || random.bool()).then_some(number);
        let workspace = known.workspace.is_some() || random.bool();
        let order =
            SessionOperation::Fork { session: source.clone(), at_message, agent: None, workspace };
        let made = match self.ask(&DaemonCommand::Session { order, by: "the test".to_owned() }) {
            CommandReply::Session(made) => made,
            other => panic!("{other:?}"),
        };
        assert_eq!((made.at_message, made.asked_for), (number, None));
        let place = made.workspace.map(PathBuf::from);
        if let Some(place) = &place {
            let there = fs::read_to_string(place.join("notes")).unwrap();
            assert_eq!(there, known.turns[turn].notes, "the files of that turn");
            assert_eq!(fs::read_to_string(place.join("kept")).unwrap(), "kept\n");
        }
        let turns = known.turns[..=turn].to_vec();
        self.known.insert(made.id, Known { turns, workspace: place });
    }

    /// Returns the message numbers of whole turns' answers, with the turns.
    fn whole_turns(&self, session: &SessionId) -> Vec<(u64, usize)> {
        let shown = self.shown(&self.herd.reader(), session);
        let known = &self.known[session];
        let mut found = Vec::new();
        for (turn, it) in known.turns.iter().enumerate().filter(|(_, it)| it.whole) {
            let prompt = shown
                .iter()
                .position(|(_, role, text)| *role == HistoryRole::User && *text == it.prompt);
            let prompt = prompt.unwrap_or_else(|| panic!("{} is not in {shown:?}", it.prompt));
            let next =
                shown[prompt + 1..].iter().position(|(_, role, _)| *role == HistoryRole::User);
            let last = next.map_or(shown.len(), |next| prompt + 1 + next) - 1;
            found.push((shown[last].0, turn));
        }
        found
    }

    /// Returns number, role and text of a session's messages, as its log has them.
    fn shown(&self, reader: &StoreReader, id: &SessionId) -> Vec<(u64, HistoryRole, String)> {
        let session = session(reader, id);
        let home =
            camino::Utf8PathBuf::from_path_buf(self.herd.fleet.file("home/.heeler")).unwrap();
        let log = self.herd.dir().session_log_path(Some(&home), &session).unwrap();
        let history = load_history(&log, None, None, usize::MAX).unwrap();
        let text = |row: &serde_json::Value| match &row["message"]["content"] {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let messages = history.messages.iter();
        messages.map(|it| (it.number, it.role, text(&it.rows[0]))).collect()
    }

    fn delete_and_restore(&mut self, id: &SessionId, random: &mut fastrand::Rng) {
        let own = self.session(id).agent_session_id.unwrap();
        if !self.herd.reader().unstarted_forks_of(&own).unwrap().is_empty() {
            return;
        }
        let by = || "the test".to_owned();
        let before = self.bytes(&self.herd.reader(), id);
        let known = self.known[id].clone();
        let notes = known.workspace.as_ref().map(|it| fs::read(it.join("notes")).unwrap());
        let order = SessionOperation::Delete { session: id.clone(), purge: false };
        self.ask(&DaemonCommand::Session { order, by: by() });
        if random.bool() {
            self.life.take().unwrap().kill();
            self.start();
        }
        if random.u8(0..4) == 0 {
            let order = SessionOperation::Delete { session: id.clone(), purge: true };
            self.ask(&DaemonCommand::Session { order, by: by() });
            self.known.remove(id);
            return;
        }
        let order = SessionOperation::Restore { session: id.clone() };
        self.ask(&DaemonCommand::Session { order, by: by() });
        let reader = self.herd.reader();
        let are_back = || self.bytes(&reader, id) == before;
        wait_for("the session's files to be back", || are_back().then_some(()));
        if let (Some(place), Some(notes)) = (&known.workspace, notes) {
            wait_for("its worktree to be back", || {
                fs::read(place.join("notes")).ok().filter(|there| *there == notes)
            });
        }
    }

    /// Returns every byte of a session: our log, and what its agent remembers.
    fn bytes(&self, reader: &StoreReader, id: &SessionId) -> Bytes {
        let own = session(reader, id).agent_session_id.unwrap();
        let name = format!("{own}.jsonl");
        let mut files = Vec::new();
        for folder in [".heeler/agent-sessions/projects", "home/.heeler/scripted/projects"] {
            let projects = fs::read_dir(self.herd.fleet.file(folder)).into_iter().flatten();
            for project in projects.flatten() {
                let file = project.path().join(&name);
                files.extend(fs::read(&file).ok().map(|bytes| (file, bytes)));
            }
        }
        files
    }

    fn all_bytes(&self) -> BTreeMap<SessionId, Bytes> {
        let reader = self.herd.reader();
        self.known.keys().map(|id| (id.clone(), self.bytes(&reader, id))).collect()
    }

    /// Does something at random; returns the session that may have changed.
    fn step(&mut self, random: &mut fastrand::Rng) -> Option<SessionId> {
        let session = self.pick(random);
        match (random.u8(0..12), session) {
            (0..4, Some(id)) => {
                self.run(Some(&id));
                Some(id)
            }
            (4..7, Some(id)) => {
                self.fork(&id, random);
                None
            }
            (7, Some(id)) => {
                self.cut_off(Some(&id), random);
                Some(id)
            }
            (8, Some(id)) => {
                self.delete_and_restore(&id, random);
                None
            }
            (9, _) => {
                self.life.take().unwrap().kill();
                self.start();
                None
            }
            _ => {
                self.run(None);
                None
            }
        }
    }

    /// Checks that every session has what the model says, and nothing else.
    fn check(&mut self) {
        // Opening the database takes longer than all that is read here.
        let reader = self.herd.reader();
        for (id, known) in &self.known {
            let shown = self.shown(&reader, id);
            let mut prompts = shown.iter().filter(|(_, role, _)| *role == HistoryRole::User);
            for turn in &known.turns {
                let prompt = prompts.next().map(|(_, _, text)| text.as_str());
                assert_eq!(prompt, Some(turn.prompt.as_str()), "{id}: {shown:?}");
            }
            assert_eq!(prompts.next(), None, "{id}: {shown:?}");
        }
        let total = reader.count_sessions(&Default::default()).unwrap();
        assert_eq!(total, i64::try_from(self.known.len()).unwrap());
    }
}

/// Checks what an agent remembers, and forgets turns that were cut off before it knew them.
fn check_turns(turns: &mut [Turn], remembered: &[&str]) {
    let mut left = remembered.iter();
    let mut next = left.next();
    for turn in turns.iter() {
        if next.is_some_and(|it| *it == turn.prompt) {
            next = left.next();
        } else {
            assert!(!turn.whole, "{} is forgotten: {remembered:?}", turn.prompt);
        }
    }
    assert_eq!(next, None, "{remembered:?} is not {turns:?}");
}

fn session(reader: &StoreReader, id: &SessionId) -> Session {
    reader.session(id).unwrap().unwrap_or_else(|| panic!("{id} is gone"))
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[test]
fn proof_random_lives_of_sessions_end_as_a_simple_model_says() {
    let proof = ProofSettings::new(ROUNDS_IN_CI);
    let mut world = World::new();
    for round in 0..proof.rounds {
        if round % ROUNDS_PER_FLEET == 0 {
            world = World::new();
        }
        println!("round {round}, HEELER_PROOF_SEED={}", proof.seed);
        let random = &mut proof.random(round);
        for _ in 0..STEPS {
            let before = world.all_bytes();
            let changed = world.step(random);
            world.check();
            let after = world.all_bytes();
            for (id, bytes) in before {
                if Some(&id) != changed.as_ref() && world.known.contains_key(&id) {
                    assert!(after[&id] == bytes, "{id} was written to");
                }
            }
        }
        let places = world.known.values().filter_map(|known| known.workspace.as_deref());
        assert!(places.into_iter().all(is_there), "a worktree is gone");
    }
}
