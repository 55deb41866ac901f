//! Authorization of commands, and execution of those that need no transaction.
//!
//! Start at [`Dispatcher::authorize_command`].

use std::sync::Arc;

use heeler_config::{AgentConfig, ScheduleConfig};
use heeler_model::calendar::ScheduleKey;
use heeler_model::session_choice::SessionChoice;
use heeler_model::{
    AgentSessionId, ChannelKey, JobId, JobRequest, PromptAuthor, TriggerType, error_chain,
};
use heeler_store::StoreReader;

use super::commands;
use super::dispatcher::Dispatcher;
use super::event::DispatchEvent;
use super::schedules::workflow_request_of_schedule;
use crate::caller::Caller;
use crate::command::{
    CommandReply, DaemonCommand, DaemonCommandError, DaemonCommandErrorKind,
    DispatcherStoppedError, PendingReply, ScheduleChange, StopMode, job_not_running,
};
use crate::executor::SaidText;
use crate::prepare::reads_marks;
use crate::setup::DaemonSetup;
use crate::workflows::{WorkflowOperation, WorkflowRunRequest};
use heeler_store::session_lineage;

impl Dispatcher {
    /// Checks a command against its caller's permissions and returns the command to execute. A
    /// process of a run creates jobs as children of that run's job. It may cancel and message only
    /// jobs that were started in its own conversation, and may continue only its own session and
    /// theirs.
    fn authorize_command(
        &self,
        mut command: DaemonCommand,
        by: Caller,
    ) -> Result<DaemonCommand, DaemonCommandError> {
        let not_allowed = |message: String| {
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
            refused.with_hint("an agent may only start jobs, message them and cancel them")
        };
        let author = match by {
            Caller::Person => return Ok(command),
            // The run may have ended while its processes still live. They then have no rights.
            Caller::Run(run) => {
                let board = self.state();
                let live = board.fleet.runs().get(&run);
                // The record names the run itself, whatever it claims.
                live.map(|live| {
                    command.set_requester(&format!("{} ({})", live.agent, live.job));
                    PromptAuthor { agent: live.agent.clone(), job: live.job.clone() }
                })
            }
            Caller::Hook(run) => return self.authorize_hook(command, run),
            Caller::Unknown => None,
        };
        let Some(author) = author else {
            return match command {
                DaemonCommand::Status => Ok(command),
                _ => {
                    let message = "the caller is neither a person nor a run of this fleet";
                    let refused =
                        DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
                    Err(refused.with_hint(
                        "people use heeler outside of agents, and programs send a token: heeler \
                         token create",
                    ))
                }
            };
        };
        let parent = author.job.clone();
        match command {
            DaemonCommand::Status => Ok(command),
            DaemonCommand::Trigger(mut wanted) => {
                self.limit_session(&mut wanted, &parent)?;
                self.limit_choices(&mut wanted, &author)?;
                // An agent must not choose its trigger or parent, on which limits and rights
                // depend.
                wanted.trigger = TriggerType::Spawned;
                wanted.parent = Some(parent);
                // A prompt that is not given comes from the config.
                wanted.prompt_by = wanted.prompt.is_some().then_some(author);
                // The caller is an agent, so no person waits for the job.
                wanted.attended = false;
                Ok(DaemonCommand::Trigger(wanted))
            }
            DaemonCommand::Cancel { ref job, .. } if self.is_spawned(job, &parent) => Ok(command),
            DaemonCommand::Say { job, text, by } if self.is_spawned(&job, &parent) => {
                let text = self.mark_message(&job, &author, text);
                Ok(DaemonCommand::Say { job, text, by })
            }
            _ => Err(not_allowed(format!("this is a process of the run itself ({parent})"))),
        }
    }

    /// Limits the session of a job that an agent requests to those of its own conversation. A
    /// caller in another session could read it, and reach the jobs that were started there.
    fn limit_session(
        &self,
        wanted: &mut JobRequest,
        parent: &JobId,
    ) -> Result<(), DaemonCommandError> {
        if let Some(channel) = &wanted.channel {
            let message = format!("the session of channel {channel} belongs to people");
            return Err(DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message)
                .with_hint("an agent may not use a channel; leave it out to start a new session"));
        }
        match &wanted.session {
            SessionChoice::Given { id } | SessionChoice::Fork { source: id, .. }
                if !self.is_lineage_session(id, parent) =>
            {
                Err(foreign_session_error(id, parent))
            }
            // The usual session may be one that the agent keeps for people.
            SessionChoice::Usual => {
                wanted.session = SessionChoice::Fresh;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Limits what an agent chooses for a job that it requests to what the agent has itself.
    pub(super) fn limit_choices(
        &self,
        wanted: &mut JobRequest,
        author: &PromptAuthor,
    ) -> Result<(), DaemonCommandError> {
        let refuse = |message: String, hint: &str| {
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
            Err(refused.with_hint(hint))
        };
        if let Some(schedule) = &wanted.schedule {
            let message = format!("an agent may not use a schedule of another job ({schedule})");
            return refuse(message, "give a prompt instead of the schedule");
        }
        let setup = Arc::clone(&self.state().setup);
        let model_of = |agent: Option<&AgentConfig>| agent.and_then(|agent| agent.model.clone());
        let known = [
            model_of(setup.agent(&author.agent)),
            model_of(setup.find_agent(wanted.agent.as_str()).ok()),
        ];
        if wanted.model.is_some() && !known.contains(&wanted.model) {
            let model = wanted.model.as_deref().unwrap_or_default();
            let message = format!(
                "{} may not choose the model {model}: neither its config nor that of {} names it",
                author.agent, wanted.agent
            );
            return refuse(message, "leave the model out, or set `model` in the config");
        }
        if !wanted.permissions.is_empty() {
            let message = format!("{} may not give permissions to a job", author.agent);
            return refuse(message, "leave the permissions out, or set them in the config");
        }
        // Messages from outside are a person's, who decides if they become a part of the session.
        wanted.take_in = false;
        let most = self.requested_priority(&author.job);
        if wanted.priority > most {
            tracing::info!(job = %author.job, wanted.priority, most, "the priority was lowered");
            wanted.priority = most;
        }
        Ok(())
    }

    /// Returns the priority with which a running job was requested; zero if it is unknown.
    fn requested_priority(&self, job: &JobId) -> i64 {
        let queued = StoreReader::open(&self.fleet.dir).ok().and_then(|reader| {
            // A failed read grants nothing.
            reader.queued_job(job).ok().flatten()
        });
        let request: Option<JobRequest> =
            queued.and_then(|queued| serde_json::from_str(&queued.request_json).ok());
        request.map_or(0, |request| request.priority)
    }

    /// Marks a message of an agent as such, if its receiver can understand that.
    pub(super) fn mark_message(&self, job: &JobId, author: &PromptAuthor, text: String) -> String {
        // An empty message is refused as such.
        if text.trim().is_empty() {
            return text;
        }
        let state = self.state();
        let live = state.fleet.run_of_job(job).and_then(|run| state.fleet.runs().get(&run));
        let agent = live.and_then(|live| state.setup.agent(&live.agent));
        match agent.is_none_or(reads_marks) {
            true => author.mark(&text),
            false => text,
        }
    }

    fn is_spawned(&self, job: &JobId, parent: &JobId) -> bool {
        let reader = StoreReader::open(&self.fleet.dir);
        reader.is_ok_and(|reader| {
            // A failed read grants nothing.
            session_lineage::is_descendant_job(&reader, job, parent).unwrap_or(false)
        })
    }

    fn is_lineage_session(&self, id: &AgentSessionId, parent: &JobId) -> bool {
        let reader = StoreReader::open(&self.fleet.dir);
        reader.is_ok_and(|reader| {
            session_lineage::lineage_has_session(&reader, id, parent).unwrap_or(false)
        })
    }

    /// Settles an unsettled run of a job now instead of at the scheduled retry.
    fn settle_early(&mut self, job: &JobId) {
        let run = self.state().fleet.run_of_job(job);
        if let Some(run) = run
            && self.deferred.faults.remove(&run).is_some()
        {
            // The scheduled retry would otherwise settle the run a second time.
            self.deferred.unsettled.retain(|(_, unsettled)| *unsettled != run);
            self.executor.adopt_run(run);
        }
    }

    /// Handles a command, or refuses it if its caller has no right to it.
    pub(super) fn route_authorized_command(
        &mut self,
        command: DaemonCommand,
        caller: Caller,
        pending: PendingReply,
    ) -> Option<(DispatchEvent, Option<PendingReply>)> {
        match self.authorize_command(command, caller) {
            Ok(command) => self.route_command(command, pending),
            Err(refused) => {
                pending.send(Err(refused));
                None
            }
        }
    }

    fn route_command(
        &mut self,
        command: DaemonCommand,
        owed: PendingReply,
    ) -> Option<(DispatchEvent, Option<PendingReply>)> {
        if let Some(refused) = invalid_command_error(&command) {
            owed.send(Err(refused));
            return None;
        }
        match command {
            DaemonCommand::Status => owed.send(Ok(CommandReply::Status(Box::new(self.status())))),
            DaemonCommand::Trigger(wanted) => self.trigger_job(*wanted, owed),
            DaemonCommand::Webhook(_)
            | DaemonCommand::Workflow {
                order: WorkflowOperation::Run(_) | WorkflowOperation::Retry { .. },
                ..
            // These create jobs without a preparation, so the stop is checked here.
            } => match self.stopping_error() {
                Some(refused) => owed.send(Err(refused)),
                None => return Some((DispatchEvent::Command(command), Some(owed))),
            },
            DaemonCommand::Schedule { agent, schedule, change: ScheduleChange::Trigger, by } => {
                return self.trigger_schedule(agent, schedule, by, owed);
            }
            DaemonCommand::Retry { job, by } => match self.load_retry_request(&job) {
                Ok(wanted) => {
                    tracing::info!(%job, by, "retried");
                    self.trigger_job(wanted, owed);
                }
                Err(refused) => owed.send(Err(refused)),
            },
            DaemonCommand::Cancel { ref job, .. } => {
                // A dead run cannot receive the request. Settling it applies the request.
                self.settle_early(job);
                return Some((DispatchEvent::Command(command), Some(owed)));
            }
            DaemonCommand::Say { job, text, by } => match self.state().fleet.run_of_job(&job) {
                Some(run) => self.executor.send_message(run, SaidText { job, text, by }, owed),
                None => owed.send(Err(job_not_running(&job))),
            },
            DaemonCommand::Approval { ref approval, ref answer, .. } => {
                let (hands, id) = (&self.executor, approval.clone());
                // The answer is delivered after its commit, and only then is the caller told.
                let owed = owed.map_callback(|reply| hands.reply_after_delivery(id, answer, reply));
                return Some((DispatchEvent::Command(command), Some(owed)));
            }
            DaemonCommand::Session { order, by } => {
                self.executor.prepare_session_change(order, by, owed);
            }
            DaemonCommand::Reload => return self.reload_config(None, owed),
            DaemonCommand::AcceptConfig { fingerprint, load: true, .. } => {
                return self.reload_config(Some(&fingerprint), owed);
            }
            DaemonCommand::AcceptConfig { fingerprint, .. } => {
                return self.confirm_config(&fingerprint, owed);
            }
            DaemonCommand::Stop(how) => self.begin_stop(how, owed.reply),
            other => return Some((DispatchEvent::Command(other), Some(owed))),
        }
        None
    }

    /// Refuses new jobs while the daemon is stopping.
    fn stopping_error(&self) -> Option<DaemonCommandError> {
        match self.deferred.stop.as_ref()?.mode {
            // The next daemon, which is about to start, can execute it.
            StopMode::KeepJobs => Some(DispatcherStoppedError.into()),
            StopMode::Wait { .. } | StopMode::Force => {
                let refused =
                    DaemonCommandError::new(DaemonCommandErrorKind::Busy, "the daemon is stopping");
                Some(refused.with_hint("repeat the command when it has stopped"))
            }
        }
    }

    /// Starts the work of a schedule now, because a person asked for it.
    fn trigger_schedule(
        &mut self,
        agent: String,
        schedule: String,
        by: String,
        owed: PendingReply,
    ) -> Option<(DispatchEvent, Option<PendingReply>)> {
        let setup = Arc::clone(&self.state().setup);
        match commands::find_schedule(&setup, &agent, &schedule) {
            Ok((_, found)) if found.work_source.is_some() || found.has_fan_out() => {
                if let Some(refused) = self.stopping_error() {
                    owed.send(Err(refused));
                    return None;
                }
                // The runs, or the search for them, are recorded in a transaction.
                let change = ScheduleChange::Trigger;
                let command = DaemonCommand::Schedule { agent, schedule, change, by };
                return Some((DispatchEvent::Command(command), Some(owed)));
            }
            Ok((agent, ScheduleConfig { name, workflow: Some(start), .. })) => {
                let (agent, schedule) = (agent.name.to_string(), name.clone());
                let wanted = workflow_request_of_schedule(&ScheduleKey { agent, schedule }, start);
                // A person asked for it now, so it is not a run of the schedule's times.
                let wanted = WorkflowRunRequest { trigger: TriggerType::Manual, ..wanted };
                let command = DaemonCommand::Workflow { order: WorkflowOperation::Run(wanted), by };
                return self.route_command(command, owed);
            }
            Ok((agent, schedule)) => {
                let schedule = Some(schedule.name.clone());
                let wanted = JobRequest { schedule, ..JobRequest::new(agent.name.clone()) };
                self.trigger_job(wanted, owed);
            }
            Err(refused) => owed.send(Err(refused)),
        }
        None
    }

    fn trigger_job(&mut self, mut wanted: JobRequest, owed: PendingReply) {
        // Only the workflow definition may define a part.
        if wanted.phase.is_some() {
            let message = "only a workflow run can start its parts";
            return owed
                .send(Err(DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message)));
        }
        // The bot fetches them with its token.
        if wanted.files.is_some() {
            let message = "only a chat message has files";
            return owed
                .send(Err(DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message)));
        }
        if let Some(refused) = self.stopping_error() {
            return owed.send(Err(refused));
        }
        let setup = Arc::clone(&self.state().setup);
        match setup.find_agent(wanted.agent.as_str()) {
            Ok(agent) => {
                wanted.agent = agent.name.clone();
                self.executor.prepare_job(None, wanted, Some(owed));
            }
            Err(refused) => owed.send(Err(refused)),
        }
    }

    fn load_retry_request(&self, id: &JobId) -> Result<JobRequest, DaemonCommandError> {
        let trouble = |error: &dyn std::error::Error| {
            DaemonCommandError::new(DaemonCommandErrorKind::Trouble, error_chain(error))
        };
        let reader = StoreReader::open(&self.fleet.dir).map_err(|error| trouble(&error))?;
        let job = reader.job(id).map_err(|error| trouble(&error))?;
        let job = job.ok_or_else(|| commands::job_not_found(id))?;
        let mut wanted = commands::retry_request(&job)?;
        // The new job is a person's, but its prompt is still the agent's.
        if let (Some(parent), Some(prompt)) = (session_lineage::parent_of(&job), &wanted.prompt) {
            let author = reader.job(&parent).map_err(|error| trouble(&error))?;
            let agent = author.map_or_else(|| "unknown".to_owned(), |job| job.head.agent);
            wanted.prompt = Some(PromptAuthor { agent, job: parent }.mark(prompt));
        }
        Ok(wanted)
    }

    /// Reloads the config. On an error the old config stays in use. A workflow with faults is
    /// reported and not used. A change that is held is loaded only if `confirmed` is its fingerprint.
    pub(super) fn reload_config(
        &mut self,
        confirmed: Option<&str>,
        owed: PendingReply,
    ) -> Option<(DispatchEvent, Option<PendingReply>)> {
        let new = match (self.load)() {
            Ok(new) => Arc::new(new),
            Err(why) => {
                tracing::warn!(why, "the config has faults: the old one stays in use");
                let message =
                    format!("the old config stays in use, because the new one has faults:\n{why}");
                owed.send(Err(DaemonCommandError::new(DaemonCommandErrorKind::Usage, message)
                    .with_hint("heeler config validate")));
                return None;
            }
        };
        if let Err(refused) = self.check_held_change(&new, confirmed) {
            tracing::warn!("{}", refused.message);
            owed.send(Err(refused));
            return None;
        }
        let old = Arc::clone(&self.state().setup);
        let changes = heeler_config::diff_configs(&old.loaded, &new.loaded);
        let mut changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
        let web = |setup: &DaemonSetup| setup.loaded.fleets.first().map(|fleet| fleet.web.clone());
        if web(&old) != web(&new) {
            // The web server is started once and keeps its settings.
            changes.push("`web` takes effect at the next start: heeler restart".to_owned());
        }
        changes.iter().for_each(|change| tracing::info!(change, "config"));
        changes.extend(new.loaded.faulty_files.iter().map(|it| it.describe(new.config_folder())));
        let (changes, is_confirmed) = (Some(changes), confirmed.is_some());
        Some((DispatchEvent::SetupReloaded { setup: new, changes, is_confirmed }, Some(owed)))
    }
}

/// Refuses to continue another job's session: a caller in a session can reach the jobs that were
/// started there, so an agent may not enter it.
fn foreign_session_error(id: &AgentSessionId, parent: &JobId) -> DaemonCommandError {
    let message =
        format!("session {id} belongs to no job that was started in the conversation of {parent}");
    DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message)
        .with_hint("an agent may continue only its own session and those of jobs that it started")
}

/// Refuses invalid arguments: an empty prompt or an invalid channel.
fn invalid_command_error(command: &DaemonCommand) -> Option<DaemonCommandError> {
    let usage =
        |message: String| Some(DaemonCommandError::new(DaemonCommandErrorKind::Usage, message));
    let (prompt, channel) = match command {
        DaemonCommand::Trigger(wanted) => (wanted.prompt.as_deref(), wanted.channel.as_deref()),
        DaemonCommand::Resume { prompt, .. } => (prompt.as_deref(), None),
        DaemonCommand::Say { text, .. } => (Some(text.as_str()), None),
        _ => return None,
    };
    if prompt.is_some_and(|prompt| prompt.trim().is_empty()) {
        return usage("the prompt is empty".to_owned());
    }
    let channel = channel.map(str::parse::<ChannelKey>)?;
    channel.err().and_then(|error| usage(format!("the channel is invalid: {error}")))
}
