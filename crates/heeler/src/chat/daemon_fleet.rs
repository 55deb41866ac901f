//! A conversation's fleet: requests go to the daemon, messages and answers go directly to the runs.
//!
//! Events arrive through one bounded channel. A slow reader of that channel delays the threads that
//! follow runs, but never a run: a follower reads the rows it missed from the job's transcript.
//! Start at [`DaemonFleet`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use camino::Utf8PathBuf;
use heeler_chat::{
    ChatAgentInfo, ChatFleetClient, ChatFleetEvent, ChatJobInfo, MessageDeliveryError,
    TURN_LOOKUP_WINDOW, TurnRequest, TurnSessionChoice,
};
use heeler_config::{AgentConfig, LoadedConfig};
use heeler_engine::{CommandReply as Told, ControlClient, DaemonCommand, REQUEST_RETENTION};
use heeler_model::run::{ControlOperation, ControlReplyBody, QuestionAnswer};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{AgentSessionId, JobId, JobRequest, error_chain};
use heeler_query::rewind::RewindTarget;
use heeler_store::{StateDir, StoreReader};
use heeler_workspace::RestoredFileAction;
use uuid::Uuid;

use super::job_facts::{is_ended, load_job_facts};
use super::job_follower::{self, JobFollowHandle, ReviveJobFn};
use super::permission_rules::rules;
use super::shell_command::ShellCommandRunner;
use super::worker_watcher::WorkerWatcher;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult};
use crate::fleet_config;
use crate::job_watch::QUEUED_EVENTS_MAX;
use crate::process_env;
use crate::rewind;

// A turn is found by its idempotency key, so the daemon must keep keys at least that long.
const _: () = assert!(TURN_LOOKUP_WINDOW.as_secs() <= REQUEST_RETENTION.as_secs());

/// Client of the fleet of one [`CommandContext`].
pub(crate) struct DaemonFleet {
    context: CommandContext,
    dir: StateDir,
    loaded: LoadedConfig,
    events: SyncSender<ChatFleetEvent>,
    revive: ReviveJobFn,
    reader: Option<StoreReader>,
    followers: HashMap<JobId, JobFollowHandle>,
    worker_watcher: WorkerWatcher,
    /// Commands of the person; `None` without a screen.
    shell: Option<ShellCommandRunner>,
}

impl DaemonFleet {
    /// Lets the person run commands in a directory.
    pub(crate) fn with_shell(mut self, folder: Utf8PathBuf) -> DaemonFleet {
        self.shell = Some(ShellCommandRunner::new(folder, self.events.clone()));
        self
    }

    /// Opens the fleet, and returns the receiver of its events.
    pub(crate) fn open(
        context: &CommandContext,
    ) -> CommandResult<(DaemonFleet, Receiver<ChatFleetEvent>)> {
        let fleet_context = context.clone();
        let revive: ReviveJobFn = Arc::new(move |job| {
            daemon::revive_job(&fleet_context, job).map_err(|failure| failure_text(&failure))
        });
        DaemonFleet::open_with(context, revive)
    }

    /// Opens the fleet with a custom way to revive jobs.
    pub(crate) fn open_with(
        context: &CommandContext,
        revive: ReviveJobFn,
    ) -> CommandResult<(DaemonFleet, Receiver<ChatFleetEvent>)> {
        let loaded = fleet_config::load_without_workflows(context)?;
        // A reader cannot open an older database, and this command writes anyway.
        context.migrate_database()?;
        // Do not create a directory that was named by mistake. The daemon creates a missing one.
        let reader = context.open_reader()?;
        let dir = match context.state_dir.exists() {
            true => context.dir()?,
            false => StateDir::absent(&context.state_dir),
        };
        let (sender, events) = sync_channel(QUEUED_EVENTS_MAX);
        let watched = WorkerWatcher::new(dir.clone(), sender.clone());
        let (context, followed) = (context.clone(), HashMap::new());
        Ok((
            DaemonFleet {
                context,
                dir,
                loaded,
                events: sender,
                revive,
                reader,
                followers: followed,
                worker_watcher: watched,
                shell: None,
            },
            events,
        ))
    }

    /// Returns the database reader. It stays open, because a resumed session looks up every earlier
    /// turn.
    fn reader(&mut self) -> Result<&StoreReader, String> {
        // Another file may have replaced the database: a daemon wrote it back, or it was rebuilt.
        let reader = match self.reader.take().filter(StoreReader::is_current) {
            Some(reader) => reader,
            None => StoreReader::open(&self.dir).map_err(|error| error_chain(&error))?,
        };
        Ok(self.reader.insert(reader))
    }

    /// Sends an operation to the newest run of a job.
    fn send_control(
        &mut self,
        job: &JobId,
        op: ControlOperation,
    ) -> Result<(), MessageDeliveryError> {
        // Nothing was sent if the connection fails, so the message is certainly not delivered.
        let mut control = self.connect_run(job).map_err(MessageDeliveryError::Refused)?;
        match control.request(op) {
            Ok(ControlReplyBody::Refused { reason }) => Err(MessageDeliveryError::Refused(reason)),
            Ok(_) => Ok(()),
            // The run received the request, and may only be slow to reply.
            Err(error) => Err(MessageDeliveryError::Unconfirmed(error_chain(&error))),
        }
    }

    fn connect_run(&mut self, job: &JobId) -> Result<ControlClient, String> {
        let runs = self.reader()?.runs_of_job(job).map_err(|error| error_chain(&error))?;
        // Only the newest run of a job can be alive.
        let run = runs.last().ok_or_else(|| format!("{job} has not started yet"))?;
        ControlClient::connect_to_run(&self.dir.run(run.id)).map_err(|error| error_chain(&error))
    }
}

impl ChatFleetClient for DaemonFleet {
    fn agents(&self) -> Vec<ChatAgentInfo> {
        let card = |agent: &AgentConfig| ChatAgentInfo {
            name: agent.name.to_string(),
            description: agent.description.clone(),
            runtime: agent.runtime.kind().as_str().to_owned(),
            model: agent.model.clone(),
        };
        self.loaded.agents.iter().map(card).collect()
    }

    fn describe_permissions(&self, agent: &str, attended: bool) -> Vec<String> {
        let known = self.loaded.agents.iter().find(|known| known.name.as_str() == agent);
        known.map(|known| rules(known, attended)).unwrap_or_default()
    }

    fn start_turn(&mut self, turn: &TurnRequest) -> Result<JobId, String> {
        // The turn's ID is the idempotency key: a turn that is sent twice starts one job.
        let agent = turn.agent.parse().map_err(|error| format!("{error}"))?;
        let wanted = JobRequest {
            prompt: Some(turn.prompt.clone()),
            session: to_engine_session(&turn.session),
            model: turn.model.clone(),
            attended: turn.attended,
            permissions: turn.permissions.clone(),
            conversation_pid: turn.attended.then(std::process::id),
            ..JobRequest::new(agent)
        };
        let command = DaemonCommand::Trigger(Box::new(wanted));
        match daemon::request_idempotent(&self.context, &command, &turn.id.to_string()) {
            Ok(answer) => {
                job_id_of(&answer).ok_or_else(|| failure_text(&daemon::unexpected(&answer)))
            }
            // Another terminal may have sent this turn already, with another prompt or option.
            Err(failure) => {
                let known = self.find_turn_job(turn.id).ok().flatten();
                known.ok_or_else(|| failure_text(&failure))
            }
        }
    }

    fn find_turn_job(&mut self, turn: Uuid) -> Result<Option<JobId>, String> {
        // The daemon records keys under the login name of the socket's peer, not under `USER`.
        let asker = heeler_process::login_name(rustix::process::geteuid().as_raw());
        let known = self.reader()?.answered_request(&asker, &turn.to_string());
        let known = known.map_err(|error| error_chain(&error))?;
        // A reply of another release may be unreadable; the turn then counts as not found.
        let answer = known.and_then(|known| serde_json::from_str::<Told>(&known.answer).ok());
        Ok(answer.as_ref().and_then(job_id_of))
    }

    fn send_message(&mut self, job: &JobId, text: &str) -> Result<(), MessageDeliveryError> {
        self.send_control(job, ControlOperation::message(text.to_owned()))
    }

    fn answer_question(
        &mut self,
        job: &JobId,
        ask: &str,
        answer: &QuestionAnswer,
        shown: Option<String>,
    ) -> Result<(), String> {
        // The run itself takes the answer, so this works without a daemon.
        let by = self.context.caller_name();
        let sent = self.send_control(
            job,
            ControlOperation::Answer { ask: ask.to_owned(), answer: answer.clone(), by, shown },
        );
        sent.map_err(
            |(MessageDeliveryError::Refused(why) | MessageDeliveryError::Unconfirmed(why))| why,
        )
    }

    fn cancel_job(&mut self, job: &JobId, now: bool) -> Result<(), String> {
        let command =
            DaemonCommand::Cancel { job: job.clone(), now, by: self.context.caller_name() };
        match daemon::request(&self.context, &command) {
            Ok(_) => Ok(()),
            Err(failure) => match self.job_info(job)? {
                // The job ended before the cancel request arrived.
                Some(facts) if is_ended(facts.state) => Ok(()),
                _ => Err(failure_text(&failure)),
            },
        }
    }

    fn follow_job(&mut self, job: &JobId, from: u64) {
        // Handles of ended jobs would accumulate over a long conversation.
        self.followers.retain(|_, followed| !followed.is_finished());
        let followed = job_follower::start(
            &self.dir,
            job,
            from,
            self.events.clone(),
            Arc::clone(&self.revive),
        );
        // Following again restarts at `from`; two followers would send each row twice.
        if let Some(before) = self.followers.insert(job.clone(), followed) {
            before.stop();
        }
    }

    fn watch_workers(&mut self, jobs: &[JobId]) {
        self.worker_watcher.watch_jobs(jobs);
    }

    fn run_shell(&mut self, command: &str) -> Result<(), String> {
        match &self.shell {
            Some(shell) => shell.start(command),
            None => Err("there is no terminal".to_owned()),
        }
    }

    fn stop_shell(&mut self) {
        if let Some(shell) = &self.shell {
            shell.stop();
        }
    }

    fn load_diff(&mut self, session: &AgentSessionId) {
        let (context, session) = (self.context.clone(), session.to_string());
        let events = self.events.clone();
        // It compares files, which may take a while in a large repository.
        std::thread::spawn(move || {
            let diff = load_session_diff(&context, &session);
            // The conversation has ended if this fails.
            drop(events.send(ChatFleetEvent::DiffLoaded(diff)));
        });
    }

    fn restore_files(&mut self, session: &AgentSessionId, after: Option<Uuid>) {
        let (context, session) = (self.context.clone(), session.to_string());
        let target = after.map_or(RewindTarget::Start, RewindTarget::Entry);
        let events = self.events.clone();
        std::thread::spawn(move || {
            let restored = restore_session_files(&context, &session, &target);
            // The conversation has ended if this fails.
            drop(events.send(ChatFleetEvent::FilesRestored(restored)));
        });
    }

    fn job_info(&mut self, job: &JobId) -> Result<Option<ChatJobInfo>, String> {
        let reader = self.reader()?;
        match reader.job(job).map_err(|error| error_chain(&error))? {
            Some(job) => Ok(Some(load_job_facts(reader, &job))),
            None => Ok(None),
        }
    }
}

impl Drop for DaemonFleet {
    fn drop(&mut self) {
        // Not joined: each thread notices the flag at its next tick, or ends with the process.
        self.followers.values().for_each(JobFollowHandle::stop);
    }
}

/// Returns the changes to the files of a session since its start.
fn load_session_diff(context: &CommandContext, session: &str) -> Result<String, String> {
    let records = context.open_records().map_err(|failure| failure_text(&failure))?;
    let diff = records.diff(session, None, process_env::now());
    let diff = diff.map_err(|error| failure_text(&error.into()))?;
    let mut text = String::from_utf8_lossy(&diff.bytes).into_owned();
    if diff.cut {
        text.push_str("\n(shortened; `heeler session diff` shows all)");
    }
    Ok(text)
}

/// Restores the files of a session, and describes what was done.
fn restore_session_files(
    context: &CommandContext,
    session: &str,
    target: &RewindTarget,
) -> Result<String, String> {
    let records = context.open_records().map_err(|failure| failure_text(&failure))?;
    let plan = records.plan_rewind(session, target, process_env::now());
    let plan = plan.map_err(|error| failure_text(&error.into()))?;
    let restored = rewind::restore(&plan).map_err(|failure| failure_text(&failure))?;
    let mut text = match &plan.note {
        Some(note) => format!("{}: {note}.", rewind::describe(&restored)),
        None => format!("{}.", rewind::describe(&restored)),
    };
    for file in &restored.files {
        if let RestoredFileAction::Kept(why) = &file.action {
            text.push_str(&format!("\nKept: {}: {why}", file.path));
        }
    }
    let (id, state) = (&plan.session.id, plan.undo_state());
    text.push_str(&format!("\nThe files before: heeler session rewind {id} --to {state}"));
    Ok(text)
}

/// Formats a failure and its hint on one line.
fn failure_text(failure: &CommandFailure) -> String {
    match &failure.hint {
        Some(hint) => format!("{:#} ({hint})", failure.error),
        None => format!("{:#}", failure.error),
    }
}

fn to_engine_session(session: &TurnSessionChoice) -> SessionChoice {
    match session.clone() {
        TurnSessionChoice::New => SessionChoice::Fresh,
        TurnSessionChoice::Existing(id) => SessionChoice::Given { id },
        TurnSessionChoice::Fork(source, at) => SessionChoice::Fork { source, at },
    }
}

fn job_id_of(answer: &Told) -> Option<JobId> {
    match answer {
        Told::Job { job, .. } | Told::Known { job, .. } => Some(job.clone()),
        _ => None,
    }
}
