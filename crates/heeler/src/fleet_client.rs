//! A run's client of its fleet: the agent's tools send commands to the daemon, and read workers,
//! tasks and messages from the state directory.
//!
//! It starts no daemon. It waits for one that is restarting; without one, the agent receives an
//! error and can continue. Start at [`open_for_run`].

mod last_message;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_chat::{ConversationTask, SessionDirectory};
use heeler_engine::{CommandReply, DaemonCommand, DaemonCommandError, DaemonCommandErrorKind};
use heeler_model::run::RunSpec;
use heeler_model::{Job, JobId, JobRequest, JobStatus, TriggerType, error_chain};
use heeler_query::workers::{WorkerDetails, list_workers};
use heeler_runner::{
    FleetClient, StartedJob, TaskSnapshot, WorkerMessageDelivery, WorkerSnapshot, WorkerState,
};
use heeler_server::{DaemonClient, DaemonClientError};
use heeler_store::session_lineage::lineage_jobs;
use heeler_store::{StateDir, StoreReader};

use crate::daemon_address::connect_to_daemon;

/// Time to wait for a daemon that does not answer: it may be restarting.
const DAEMON_WAIT: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time for a daemon to answer a command that needs no work. Starting a job may need a git clone.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// Time for a conversation to record its turn, because the job may start before that.
const TURN_WAIT: Duration = Duration::from_secs(2);

/// Advice to an agent that cannot reach its fleet.
const UNREACHABLE_ADVICE: &str =
    "continue without it if you can, and mention unfinished work in your answer";

/// Returns the client for a run; the run's folder lies in the fleet's state directory.
pub(crate) fn open_for_run(
    folder: &Utf8Path,
    spec: &RunSpec,
    capability: Option<String>,
) -> Option<Arc<dyn FleetClient>> {
    Some(Arc::new(open(folder, spec, capability, DAEMON_WAIT)?))
}

fn open(
    folder: &Utf8Path,
    spec: &RunSpec,
    capability: Option<String>,
    daemon_wait: Duration,
) -> Option<DaemonFleetClient> {
    // The folder is `STATE/runs/RUN`.
    let state_dir = folder.parent()?.parent()?.to_owned();
    Some(DaemonFleetClient {
        state_dir,
        spec: spec.clone(),
        capability,
        daemon_wait,
        is_not_conversation_turn: AtomicBool::new(false),
    })
}

struct DaemonFleetClient {
    state_dir: Utf8PathBuf,
    spec: RunSpec,
    /// Capability of the run.
    capability: Option<String>,
    /// [`DAEMON_WAIT`], except in tests.
    daemon_wait: Duration,
    /// Set once the job was found not to be a conversation's turn, which never changes.
    is_not_conversation_turn: AtomicBool,
}

impl std::fmt::Debug for DaemonFleetClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The capability is a secret.
        f.debug_struct("DaemonFleetClient").field("job", &self.spec.job).finish_non_exhaustive()
    }
}

/// Outcome of a request to the daemon.
enum DaemonRequestOutcome {
    Done(CommandReply),
    Refused(DaemonCommandError),
}

impl DaemonFleetClient {
    fn dir(&self) -> Result<StateDir, String> {
        StateDir::open(&self.state_dir).map_err(|error| error_chain(&error))
    }

    fn reader(&self) -> Result<StoreReader, String> {
        StoreReader::open(&self.dir()?).map_err(|error| error_chain(&error))
    }

    /// Returns the caller's name, for the record.
    fn caller_name(&self) -> String {
        format!("{} ({})", self.spec.agent, self.spec.job)
    }

    /// Sends a command to the daemon, retrying for a while if none answers. If the outcome is
    /// unknown, a command with an idempotency key, or one without effect the second time, is sent
    /// again.
    fn request(
        &self,
        command: &DaemonCommand,
        name: Option<&str>,
    ) -> Result<DaemonRequestOutcome, String> {
        let starts_job = matches!(command, DaemonCommand::Trigger(_));
        // A job may need a git clone before the daemon can answer.
        let patience = (!starts_job).then_some(ANSWER_WAIT);
        // A message would reach the agent twice, so it is never repeated.
        let may_ask_again = name.is_some() || matches!(command, DaemonCommand::Cancel { .. });
        let until = Instant::now() + self.daemon_wait;
        loop {
            // Connect for each attempt: a new daemon may have another socket.
            if let Some(mut client) = self.connect()? {
                match client.send_command_once(command, name, patience) {
                    Ok(answer) => return Ok(DaemonRequestOutcome::Done(answer)),
                    Err(DaemonClientError::Refused(refused)) => {
                        return Ok(DaemonRequestOutcome::Refused(refused));
                    }
                    // The daemon did nothing; the next one will.
                    Err(DaemonClientError::Ending) => {}
                    // If the command was done, the next daemon returns its answer.
                    Err(DaemonClientError::Io { .. }) if may_ask_again => {}
                    Err(error) => {
                        return Err(format!(
                            "the outcome of the request is unknown: {}",
                            error_chain(&error)
                        ));
                    }
                }
            }
            if Instant::now() >= until {
                return Err(format!("the heeler daemon does not answer; {UNREACHABLE_ADVICE}"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Connects to the daemon; returns `None` if none answers.
    fn connect(&self) -> Result<Option<DaemonClient>, String> {
        // A runner has hardly any environment; the daemon's folder of sockets is found without it.
        match connect_to_daemon(&self.dir()?, &BTreeMap::new(), self.capability.as_deref()) {
            Ok(client) => Ok(client),
            // Waiting would not help: this daemon speaks another version.
            Err(
                error @ (DaemonClientError::Protocol { .. }
                | DaemonClientError::Unproven { .. }
                | DaemonClientError::Outdated { .. }),
            ) => Err(error_chain(&error)),
            Err(_) => Ok(None),
        }
    }
}

impl FleetClient for DaemonFleetClient {
    fn start_job(&self, key: &str, wanted: &JobRequest) -> Result<StartedJob, String> {
        // The run's ID keeps the keys of different runs apart.
        let name = format!("{}.{key}", self.spec.run);
        let command = DaemonCommand::Trigger(Box::new(wanted.clone()));
        let (job, waits) = match self.request(&command, Some(&name))? {
            DaemonRequestOutcome::Done(CommandReply::Job { job, waits, .. }) => (job, waits),
            DaemonRequestOutcome::Done(CommandReply::Known { job, .. }) => (job, None),
            DaemonRequestOutcome::Done(other) => {
                return Err(format!("unexpected answer from the daemon: {other:?}"));
            }
            DaemonRequestOutcome::Refused(refused) => return Err(refusal_text(&refused)),
        };
        // The daemon chooses the worker's name, and the reply does not hold it.
        let known = self.reader()?.job(&job).map_err(|error| error_chain(&error))?;
        let worker = known.as_ref().and_then(Job::worker).unwrap_or_default().to_owned();
        Ok(StartedJob { job, worker, queue_reason: waits })
    }

    fn list_workers(&self) -> Result<Vec<WorkerSnapshot>, String> {
        let reader = self.reader()?;
        // Workers that were started by earlier turns of the session still belong to it.
        let jobs = lineage_jobs(&reader, &self.spec.job).map_err(|error| error_chain(&error))?;
        let listed = list_workers(&reader, &jobs).map_err(|error| error_chain(&error))?;
        Ok(listed.iter().map(|worker| worker_status(&reader, worker)).collect())
    }

    fn last_message(&self, job: &JobId) -> Result<Option<String>, String> {
        let said = last_message::last_message(&self.dir()?.job_transcript(job))?;
        // The record has only a shortened summary, so the transcript is preferred.
        if said.is_some() {
            return Ok(said);
        }
        let job = self.reader()?.job(job).map_err(|error| error_chain(&error))?;
        Ok(job.and_then(|job| job.head.summary))
    }

    fn send_message(&self, job: &JobId, text: &str) -> Result<WorkerMessageDelivery, String> {
        let command =
            DaemonCommand::Say { job: job.clone(), text: text.to_owned(), by: self.caller_name() };
        match self.request(&command, None)? {
            DaemonRequestOutcome::Done(_) => Ok(WorkerMessageDelivery::Delivered),
            DaemonRequestOutcome::Refused(refused)
                // The worker does not run at present; the caller may give it another job instead.
                if refused.kind == DaemonCommandErrorKind::Busy =>
            {
                Ok(WorkerMessageDelivery::Unavailable(refused.message))
            }
            DaemonRequestOutcome::Refused(refused) => Err(refusal_text(&refused)),
        }
    }

    fn stop_job(&self, job: &JobId) -> Result<(), String> {
        let command =
            // Gracefully: the worker may finish its current step, as with `heeler jobs cancel`.
            DaemonCommand::Cancel { job: job.clone(), now: false, by: self.caller_name() };
        match self.request(&command, None)? {
            DaemonRequestOutcome::Done(_) => Ok(()),
            DaemonRequestOutcome::Refused(refused) => {
                let known = self.reader()?.job(job).map_err(|error| error_chain(&error))?;
                // The job ended before the request arrived.
                match known.is_some_and(|job| job.head.status.is_final()) {
                    true => Ok(()),
                    false => Err(refusal_text(&refused)),
                }
            }
        }
    }

    fn list_tasks(&self) -> Result<Option<Vec<TaskSnapshot>>, String> {
        // Only jobs triggered by a person can be turns of a conversation.
        if self.spec.trigger != TriggerType::Manual
            || self.is_not_conversation_turn.load(Ordering::Relaxed)
        {
            return Ok(None);
        }
        // Foreign folders are left out: a turn of Heeler is never recorded in them.
        let sessions = SessionDirectory::new(self.spec.home.join("sessions"), Vec::new());
        let until = Instant::now() + TURN_WAIT;
        loop {
            let about =
                sessions.state_for_job(&self.spec.job).map_err(|error| error_chain(&error))?;
            let task = |task: ConversationTask| TaskSnapshot { text: task.text, done: task.done };
            match about {
                Some(about) => return Ok(Some(about.tasks.into_iter().map(task).collect())),
                None if Instant::now() >= until => {
                    self.is_not_conversation_turn.store(true, Ordering::Relaxed);
                    return Ok(None);
                }
                None => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }
}

fn refusal_text(refused: &DaemonCommandError) -> String {
    match &refused.hint {
        Some(hint) => format!("{} ({hint})", refused.message),
        None => refused.message.clone(),
    }
}

/// Returns a worker's state from the database. Details that cannot be read are left out.
fn worker_status(reader: &StoreReader, worker: &WorkerDetails) -> WorkerSnapshot {
    // A worker that is idle is described by its last job.
    let job = worker.current_job().unwrap_or_else(|| worker.last_job());
    let head = &job.head;
    let state = match head.status {
        JobStatus::Pending => {
            let queued = reader.queued_job(&head.id).ok().flatten();
            WorkerState::Waiting(queued.map(|row| row.reason).unwrap_or_default())
        }
        JobStatus::Running => WorkerState::Working,
        JobStatus::Completed => WorkerState::Done,
        JobStatus::Failed | JobStatus::Cancelled => {
            WorkerState::Failed(job.error.clone().unwrap_or_else(|| head.status.to_string()))
        }
    };
    let is_open = |job: &&Job| !job.head.status.is_final() && job.worker().is_some();
    let open = worker.jobs.iter().filter(is_open);
    WorkerSnapshot {
        name: worker.name.clone(),
        agent: head.agent.clone(),
        task: worker.first_prompt().to_owned(),
        job: head.id.clone(),
        state,
        open_jobs: open.map(|job| job.head.id.clone()).collect(),
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
        let job = "job-2026-01-02-abc123";
        let spec = json!({
            "protocol": heeler_model::run::PROTOCOL, "run": run, "job": job, "attempt": 1,
            "agent": "lead", "trigger": "manual", "runtime": "scripted",
            "working_directory": root, "job_log": root.join("log"), "projects": root.join("projects"),
            "home": root.join("home"), "sockets": root.join("sockets"),
            "session": {"start": {"kind": "fresh", "id": "s1"}, "reason": "a test"},
            "limits": {}, "attendance": {"kind": "nobody"}, "sync_each_row": false,
        });
        let spec: RunSpec = serde_json::from_value(spec).unwrap();
        let client = open(&folder, &spec, None, Duration::ZERO).unwrap();
        let expected = "the heeler daemon does not answer; continue without it if you can, and mention \
                        unfinished work in your answer";
        let wanted = JobRequest::new("coder".parse().unwrap());
        assert_eq!(client.start_job("key", &wanted), Err(expected.to_owned()));
        let job: JobId = job.parse().unwrap();
        assert_eq!(client.send_message(&job, "more"), Err(expected.to_owned()));
        assert_eq!(client.stop_job(&job), Err(expected.to_owned()));
    }
}
