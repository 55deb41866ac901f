//! The way of a run to its fleet: the daemon does what the agent's tools ask, and what they want to know
//! is read from the record.
//!
//! It starts no daemon: one that is just restarting is waited for, and without one the agent is told so
//! that it can go on. Start at [`of_run`].

mod words;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_chat::{Shelf, Task};
use heeler_engine::{Answer, Command, DaemonFile, Refused, RefusedKind, conversation};
use heeler_model::run::{RunSpec, file};
use heeler_model::{Job, JobId, JobStatus, TriggerType, Wanted, chain};
use heeler_query::workers::{Worker, workers};
use heeler_runner::{FleetDoor, Heard, StartedJob, TaskNow, WorkerNow, WorkerState};
use heeler_server::{Client, ClientError};
use heeler_store::{Reader, StateDir};
use heeler_transcript::plain;

/// How long a daemon is waited for that does not answer: it may be restarting.
const DAEMON_WAIT: Duration = Duration::from_secs(30);

/// How often it is tried.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long a daemon may take for what it can do at once. To start a job may take a clone.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// How long a conversation may take to put its turn on record: the job may have started before.
const TURN_WAIT: Duration = Duration::from_secs(2);

/// What an agent does that cannot reach its fleet.
const WITHOUT: &str = "go on without it if you can, and say in your answer what is left open";

/// Returns the way of a run to the fleet in whose state directory its folder is.
pub(crate) fn of_run(folder: &Utf8Path) -> Option<Arc<dyn FleetDoor>> {
    Some(Arc::new(open(folder, DAEMON_WAIT)?))
}

fn open(folder: &Utf8Path, daemon_wait: Duration) -> Option<Door> {
    let spec = plain::read(&folder.join(file::SPEC), file::BYTES_MAX).ok()?;
    let spec: RunSpec = serde_json::from_slice(&spec).ok()?;
    let state_dir = folder.parent()?.parent()?.to_owned();
    Some(Door { state_dir, spec, daemon_wait, is_no_turn: AtomicBool::new(false) })
}

#[derive(Debug)]
struct Door {
    state_dir: Utf8PathBuf,
    spec: RunSpec,
    /// [`DAEMON_WAIT`], but for tests.
    daemon_wait: Duration,
    /// Its job was found to be no turn of a conversation, and does not become one.
    is_no_turn: AtomicBool,
}

/// What came of asking the daemon.
enum Asked {
    Done(Answer),
    Refused(Refused),
}

impl Door {
    fn dir(&self) -> Result<StateDir, String> {
        StateDir::open(&self.state_dir).map_err(|error| chain(&error))
    }

    fn reader(&self) -> Result<Reader, String> {
        Reader::open(&self.dir()?).map_err(|error| chain(&error))
    }

    /// Who asks, for the record.
    fn who(&self) -> String {
        format!("{} ({})", self.spec.agent, self.spec.job)
    }

    /// Asks the daemon, for a while if none answers. What has a name, and what does no more the second
    /// time, is asked again when it is not known whether it was done.
    fn ask(&self, command: &Command, name: Option<&str>) -> Result<Asked, String> {
        let starts_job = matches!(command, Command::Trigger(_));
        let patience = (!starts_job).then_some(ANSWER_WAIT);
        let may_ask_again = name.is_some() || matches!(command, Command::Cancel { .. });
        let until = Instant::now() + self.daemon_wait;
        loop {
            if let Some(mut client) = self.connect()? {
                match client.ask_once(command, name, patience) {
                    Ok(answer) => return Ok(Asked::Done(answer)),
                    Err(ClientError::Refused(refused)) => return Ok(Asked::Refused(refused)),
                    // It has done nothing; the next one will.
                    Err(ClientError::Ending) => {}
                    // If it was done, the next one says so.
                    Err(ClientError::Io { .. }) if may_ask_again => {}
                    Err(error) => {
                        return Err(format!("whether it was done is not known: {}", chain(&error)));
                    }
                }
            }
            if Instant::now() >= until {
                return Err(format!("the heeler daemon does not answer; {WITHOUT}"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Connects to the daemon; none if none answers.
    fn connect(&self) -> Result<Option<Client>, String> {
        let file = DaemonFile::read(&self.dir()?).map_err(|error| chain(&error))?;
        let Some(file) = file else { return Ok(None) };
        match Client::connect(&file.socket) {
            Ok(client) => Ok(Some(client)),
            Err(error @ ClientError::Protocol { .. }) => Err(chain(&error)),
            Err(_) => Ok(None),
        }
    }
}

impl FleetDoor for Door {
    fn start(&self, key: &str, wanted: &Wanted) -> Result<StartedJob, String> {
        let name = format!("{}.{key}", self.spec.run);
        let command = Command::Trigger(Box::new(wanted.clone()));
        let (job, waits) = match self.ask(&command, Some(&name))? {
            Asked::Done(Answer::Job { job, waits, .. }) => (job, waits),
            Asked::Done(Answer::Known { job, .. }) => (job, None),
            Asked::Done(other) => return Err(format!("the daemon answered otherwise: {other:?}")),
            Asked::Refused(refused) => return Err(told(&refused)),
        };
        let known = self.reader()?.job(&job).map_err(|error| chain(&error))?;
        let worker = known.as_ref().and_then(Job::worker).unwrap_or_default().to_owned();
        Ok(StartedJob { job, worker, waits })
    }

    fn workers(&self) -> Result<Vec<WorkerNow>, String> {
        let reader = self.reader()?;
        let jobs = conversation(&reader, &self.spec.job).map_err(|error| chain(&error))?;
        let listed = workers(&reader, &jobs).map_err(|error| chain(&error))?;
        Ok(listed.iter().map(|worker| now(&reader, worker)).collect())
    }

    fn last_words(&self, job: &JobId) -> Result<Option<String>, String> {
        let said = words::last(&self.dir()?.log_of(job))?;
        if said.is_some() {
            return Ok(said);
        }
        let job = self.reader()?.job(job).map_err(|error| chain(&error))?;
        Ok(job.and_then(|job| job.head.summary))
    }

    fn say(&self, job: &JobId, text: &str) -> Result<Heard, String> {
        let command = Command::Say { job: job.clone(), text: text.to_owned(), by: self.who() };
        match self.ask(&command, None)? {
            Asked::Done(_) => Ok(Heard::Yes),
            Asked::Refused(refused) if refused.kind == RefusedKind::Busy => {
                Ok(Heard::NotNow(refused.message))
            }
            Asked::Refused(refused) => Err(told(&refused)),
        }
    }

    fn stop(&self, job: &JobId) -> Result<(), String> {
        let command = Command::Cancel { job: job.clone(), now: false, by: self.who() };
        match self.ask(&command, None)? {
            Asked::Done(_) => Ok(()),
            Asked::Refused(refused) => {
                let known = self.reader()?.job(job).map_err(|error| chain(&error))?;
                // It ended by itself meanwhile.
                match known.is_some_and(|job| job.head.status.is_final()) {
                    true => Ok(()),
                    false => Err(told(&refused)),
                }
            }
        }
    }

    fn tasks(&self) -> Result<Option<Vec<TaskNow>>, String> {
        // Only what a person asks is a turn of a conversation.
        if self.spec.trigger != TriggerType::Manual || self.is_no_turn.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let shelf = Shelf::new(self.spec.home.join("sessions"), Vec::new());
        let until = Instant::now() + TURN_WAIT;
        loop {
            let about = shelf.of_job(&self.spec.job).map_err(|error| chain(&error))?;
            let task = |task: Task| TaskNow { text: task.text, done: task.done };
            match about {
                Some(about) => return Ok(Some(about.tasks.into_iter().map(task).collect())),
                None if Instant::now() >= until => {
                    self.is_no_turn.store(true, Ordering::Relaxed);
                    return Ok(None);
                }
                None => std::thread::sleep(LOOK_EVERY),
            }
        }
    }
}

fn told(refused: &Refused) -> String {
    match &refused.hint {
        Some(hint) => format!("{} ({hint})", refused.message),
        None => refused.message.clone(),
    }
}

/// Returns a worker as it is by the record. What cannot be read beside it is left out.
fn now(reader: &Reader, worker: &Worker) -> WorkerNow {
    let job = worker.current().unwrap_or_else(|| worker.last());
    let head = &job.head;
    let state = match head.status {
        JobStatus::Pending => {
            let queued = reader.queued(&head.id).ok().flatten();
            WorkerState::Waits(queued.map(|row| row.reason).unwrap_or_default())
        }
        JobStatus::Running => WorkerState::Works,
        JobStatus::Completed => WorkerState::Done,
        JobStatus::Failed | JobStatus::Cancelled => {
            WorkerState::Failed(job.error.clone().unwrap_or_else(|| head.status.to_string()))
        }
    };
    let is_open = |job: &&Job| !job.head.status.is_final() && job.worker().is_some();
    let open = worker.jobs.iter().filter(is_open);
    WorkerNow {
        name: worker.name.clone(),
        agent: head.agent.clone(),
        task: worker.task().to_owned(),
        job: head.id.clone(),
        state,
        open: open.map(|job| job.head.id.clone()).collect(),
        session: worker.jobs.iter().rev().find_map(|job| job.head.session_id.clone()),
        cost_usd: worker.cost_usd(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn without_a_daemon_an_agent_is_told_so_and_goes_on() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap().canonicalize_utf8().unwrap();
        let run = "01a1df40-eac7-7752-b8ef-f2ffea31e74a";
        let folder = StateDir::create(&root.join("state")).unwrap().run(run.parse().unwrap());
        std::fs::create_dir_all(&folder).unwrap();
        assert!(of_run(&folder).is_none(), "a folder without a spec is no run's");
        let job = "job-2026-01-02-abc123";
        let spec = json!({
            "protocol": heeler_model::run::PROTOCOL, "run": run, "job": job, "attempt": 1,
            "agent": "lead", "trigger": "manual", "runtime": "scripted",
            "working_directory": root, "job_log": root.join("log"), "projects": root.join("projects"),
            "home": root.join("home"), "sockets": root.join("sockets"),
            "session": {"start": {"kind": "fresh", "id": "s1"}, "reason": "a test"},
            "limits": {}, "attendance": {"kind": "nobody"}, "sync_each_row": false,
        });
        std::fs::write(folder.join(file::SPEC), spec.to_string()).unwrap();
        let door = open(&folder, Duration::ZERO).unwrap();
        let expected = "the heeler daemon does not answer; go on without it if you can, and say in \
                        your answer what is left open";
        let wanted = Wanted::of("coder".parse().unwrap());
        assert_eq!(door.start("key", &wanted), Err(expected.to_owned()));
        let job: JobId = job.parse().unwrap();
        assert_eq!(door.say(&job, "more"), Err(expected.to_owned()));
        assert_eq!(door.stop(&job), Err(expected.to_owned()));
    }
}
