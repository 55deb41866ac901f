//! What people and agents ask: who may ask what, and what of it needs no transaction.

use std::sync::Arc;

use heeler_model::calendar::ScheduleKey;
use heeler_model::config::Schedule;
use heeler_model::session_choice::Wish;
use heeler_model::{AgentSessionId, ChannelKey, JobId, TriggerType, Wanted, chain};
use heeler_store::Reader;

use super::due::of_schedule;
use super::{Dispatcher, Task, orders};
use crate::command::{
    Answer, Command, Owed, Refused, RefusedKind, ScheduleChange, Stopped, Stopping,
};
use crate::conversation;
use crate::origin::Origin;
use crate::setup::Setup;
use crate::workflows::{WorkflowOrder, WorkflowWanted};

impl Dispatcher {
    /// Returns a command as whoever asks may mean it. A process of a run starts jobs as that run's
    /// job; it ends and talks to none but those that were started in its conversation, and goes on in
    /// no other session than its own and theirs.
    pub(super) fn permitted(&self, command: Command, by: Origin) -> Result<Command, Refused> {
        let not_allowed = |message: String| {
            let refused = Refused::new(RefusedKind::NotAllowed, message);
            refused
                .hint("an agent may start jobs, talk to those and cancel them; people do the rest")
        };
        let parent = match by {
            Origin::Person => return Ok(command),
            Origin::Run(run) => self.board().live.get(&run).map(|live| live.job.clone()),
            Origin::Unknown => None,
        };
        let Some(parent) = parent else {
            return match command {
                Command::Status => Ok(command),
                _ => Err(not_allowed("whoever asks is no person, and no run of this fleet".into())),
            };
        };
        match command {
            Command::Status => Ok(command),
            Command::Trigger(mut wanted) => {
                if let Wish::Given { id } | Wish::Fork { source: id, .. } = &wanted.session
                    && !self.is_known_session(id, &parent)
                {
                    return Err(others_session(id, &parent));
                }
                wanted.trigger = TriggerType::Spawned;
                wanted.parent = Some(parent);
                wanted.attended = false;
                Ok(Command::Trigger(wanted))
            }
            Command::Cancel { ref job, .. } | Command::Say { ref job, .. }
                if self.is_spawned(job, &parent) =>
            {
                Ok(command)
            }
            _ => Err(not_allowed(format!("this is a process of the run itself ({parent})"))),
        }
    }

    fn is_spawned(&self, job: &JobId, parent: &JobId) -> bool {
        let reader = Reader::open(&self.fleet.dir);
        reader.is_ok_and(|reader| conversation::is_below(&reader, job, parent).unwrap_or(false))
    }

    fn is_known_session(&self, id: &AgentSessionId, parent: &JobId) -> bool {
        let reader = Reader::open(&self.fleet.dir);
        reader.is_ok_and(|reader| conversation::has_session(&reader, id, parent).unwrap_or(false))
    }

    pub(super) fn sort_command(
        &mut self,
        command: Command,
        owed: Owed,
    ) -> Option<(Task, Option<Owed>)> {
        if let Some(refused) = makes_no_sense(&command) {
            owed.tell(Err(refused));
            return None;
        }
        match command {
            Command::Status => owed.tell(Ok(Answer::Status(Box::new(self.status())))),
            Command::Trigger(wanted) => self.trigger(*wanted, owed),
            Command::Webhook(_)
            | Command::Workflow {
                order: WorkflowOrder::Run(_) | WorkflowOrder::Retry { .. },
                ..
            } => match self.refuses_new() {
                Some(refused) => owed.tell(Err(refused)),
                None => return Some((Task::Order(command), Some(owed))),
            },
            Command::Schedule { agent, schedule, change: ScheduleChange::Trigger, by } => {
                let setup = Arc::clone(&self.board().setup);
                match orders::find_schedule(&setup, &agent, &schedule) {
                    Ok((agent, Schedule { name, workflow: Some(start), .. })) => {
                        let (agent, schedule) = (agent.name.to_string(), name.clone());
                        let wanted = of_schedule(&ScheduleKey { agent, schedule }, start);
                        let wanted = WorkflowWanted { trigger: TriggerType::Manual, ..wanted };
                        let command = Command::Workflow { order: WorkflowOrder::Run(wanted), by };
                        return self.sort_command(command, owed);
                    }
                    Ok((agent, schedule)) => {
                        let schedule = Some(schedule.name.clone());
                        let wanted = Wanted { schedule, ..Wanted::of(agent.name.clone()) };
                        self.trigger(wanted, owed);
                    }
                    Err(refused) => owed.tell(Err(refused)),
                }
            }
            Command::Retry { job, by } => match self.once_more(&job) {
                Ok(wanted) => {
                    tracing::info!(%job, by, "asked for again");
                    self.trigger(wanted, owed);
                }
                Err(refused) => owed.tell(Err(refused)),
            },
            Command::Cancel { ref job, .. } => {
                let run = self.board().run_of(job);
                // Whoever wants a job to end now does not wait for the next attempt to settle it.
                if let Some(run) = run
                    && self.pending.faults.remove(&run).is_some()
                {
                    self.pending.unsettled.retain(|(_, unsettled)| *unsettled != run);
                    self.hands.take_over(run);
                }
                return Some((Task::Order(command), Some(owed)));
            }
            Command::Say { job, text, by } => match self.board().run_of(&job) {
                Some(run) => self.hands.say(run, job, text, by, owed.reply),
                None => owed.tell(Err(not_at_work(&job))),
            },
            Command::Approval { ref approval, ref answer, .. } => {
                let (hands, id) = (&self.hands, approval.clone());
                let owed = owed.through(|reply| hands.delivering(id, answer, reply));
                return Some((Task::Order(command), Some(owed)));
            }
            Command::Session { order, by } => self.hands.order(order, by, owed),
            Command::Reload => return self.reload(owed),
            Command::Stop(how) => self.begin_stop(how, owed.reply),
            other => return Some((Task::Order(other), Some(owed))),
        }
        None
    }

    /// Refuses jobs while the daemon ends.
    fn refuses_new(&self) -> Option<Refused> {
        match self.pending.stop.as_ref()?.how {
            // The next daemon, which is about to come, does it.
            Stopping::KeepJobs => Some(Stopped.into()),
            Stopping::Wait { .. } | Stopping::Force => {
                let refused = Refused::new(RefusedKind::Busy, "the daemon is stopping");
                Some(refused.hint("the same again when it has ended"))
            }
        }
    }

    fn trigger(&mut self, mut wanted: Wanted, owed: Owed) {
        // What a part of a workflow does, its definition says.
        if wanted.phase.is_some() {
            let message = "only a workflow asks for its parts";
            return owed.tell(Err(Refused::new(RefusedKind::NotAllowed, message)));
        }
        if let Some(refused) = self.refuses_new() {
            return owed.tell(Err(refused));
        }
        let setup = Arc::clone(&self.board().setup);
        match setup.find_agent(wanted.agent.as_str()) {
            Ok(agent) => {
                wanted.agent = agent.name.clone();
                self.hands.prepare(None, wanted, Some(owed));
            }
            Err(refused) => owed.tell(Err(refused)),
        }
    }

    fn once_more(&self, id: &JobId) -> Result<Wanted, Refused> {
        let trouble =
            |error: &dyn std::error::Error| Refused::new(RefusedKind::Trouble, chain(error));
        let reader = Reader::open(&self.fleet.dir).map_err(|error| trouble(&error))?;
        let job = reader.job(id).map_err(|error| trouble(&error))?;
        orders::once_more(&job.ok_or_else(|| orders::no_job(id))?)
    }

    /// Reads the config again: all of it counts, or the old one does. A workflow with faults is told
    /// of and does not count.
    pub(super) fn reload(&mut self, owed: Owed) -> Option<(Task, Option<Owed>)> {
        let new = match (self.load)() {
            Ok(new) => Arc::new(new),
            Err(why) => {
                tracing::warn!(why, "the config has faults: the old one still counts");
                let message =
                    format!("the old config still counts, because the new one has faults:\n{why}");
                owed.tell(Err(
                    Refused::new(RefusedKind::Usage, message).hint("heeler config validate")
                ));
                return None;
            }
        };
        let old = Arc::clone(&self.board().setup);
        let changes = heeler_model::config::changes(&old.loaded, &new.loaded);
        let mut changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
        let web = |setup: &Setup| setup.loaded.fleets.first().map(|fleet| fleet.web.clone());
        if web(&old) != web(&new) {
            changes.push("`web` counts from the next start on: heeler restart".to_owned());
        }
        changes.iter().for_each(|change| tracing::info!(change, "config"));
        changes.extend(new.loaded.faulty.iter().map(|it| it.told(new.folder())));
        Some((Task::Setup { setup: new, changes: Some(changes) }, Some(owed)))
    }
}

/// Says that whoever speaks in a session reaches what was set to work there, so an agent may not.
fn others_session(id: &AgentSessionId, parent: &JobId) -> Refused {
    let message =
        format!("session {id} is of no job that was started in the conversation of {parent}");
    Refused::new(RefusedKind::NotAllowed, message)
        .hint("an agent goes on in its own session and in those of jobs that it started")
}

/// Says that nobody is at a job who could be told something.
pub(crate) fn not_at_work(job: &JobId) -> Refused {
    let refused = Refused::new(RefusedKind::Busy, format!("no agent is at work on {job}"));
    refused.hint("a new job in its session")
}

/// Refuses what nobody means: a prompt that says nothing, a channel that is none.
fn makes_no_sense(command: &Command) -> Option<Refused> {
    let usage = |message: String| Some(Refused::new(RefusedKind::Usage, message));
    let (prompt, channel) = match command {
        Command::Trigger(wanted) => (wanted.prompt.as_deref(), wanted.channel.as_deref()),
        Command::Resume { prompt, .. } => (prompt.as_deref(), None),
        Command::Say { text, .. } => (Some(text.as_str()), None),
        _ => return None,
    };
    if prompt.is_some_and(|prompt| prompt.trim().is_empty()) {
        return usage("the prompt is empty".to_owned());
    }
    let channel = channel.map(str::parse::<ChannelKey>)?;
    channel.err().and_then(|error| usage(format!("the channel is none: {error}")))
}
