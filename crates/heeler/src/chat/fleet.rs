//! A conversation's fleet: the daemon does what it asks, the runs themselves are told and listened to.
//!
//! What happens comes through one bounded channel. Whoever does not read it keeps those waiting who
//! listen to runs, and never a run: what a listener misses it reads from the job's log. Start at
//! [`DaemonFleet`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use heeler_chat::{
    AgentCard, Fleet, Happened, JobFacts, JobState, SessionChoice, TURNS_KNOWN, Turn, Unheard,
};
use heeler_engine::{Answer as Told, Command, Control, REQUESTS_KEPT};
use heeler_model::config::{Agent, Loaded};
use heeler_model::run::{Answer, Op, ReplyBody};
use heeler_model::session_choice::Wish;
use heeler_model::{Job, JobId, JobStatus, Wanted, chain};
use heeler_store::{Reader, StateDir};
use uuid::Uuid;

use super::follow::{self, Followed};
use super::rules::rules;
use super::workers::Watched;
use crate::commands::trigger::waits_for_start;
use crate::daemon;
use crate::failure::{Failure, Outcome};
use crate::fleet;
use crate::live::EVENTS_MAX;
use crate::place::Place;

const _: () = assert!(TURNS_KNOWN.as_secs() <= REQUESTS_KEPT.as_secs());

/// Has a job cared for again whose daemon is gone.
pub(crate) type Revive = Arc<dyn Fn(&JobId) -> Result<(), String> + Send + Sync>;

/// The fleet of a place.
pub(crate) struct DaemonFleet {
    place: Place,
    dir: StateDir,
    loaded: Loaded,
    tell: SyncSender<Happened>,
    revive: Revive,
    reader: Option<Reader>,
    followed: HashMap<JobId, Followed>,
    watched: Watched,
}

impl DaemonFleet {
    /// Opens the fleet of a place; what happens in it comes out at the other end.
    pub(crate) fn open(place: &Place) -> Outcome<(DaemonFleet, Receiver<Happened>)> {
        let own = place.clone();
        let revive: Revive = Arc::new(move |job| {
            if waits_for_start(&own, job).map_err(|failure| told(&failure))? {
                return Err("the fleet was stopped: the job waits until `heeler start`".to_owned());
            }
            daemon::connect_or_start(&own).map(drop).map_err(|failure| told(&failure))
        });
        DaemonFleet::open_with(place, revive)
    }

    /// The same, with another way to have a job cared for.
    pub(crate) fn open_with(
        place: &Place,
        revive: Revive,
    ) -> Outcome<(DaemonFleet, Receiver<Happened>)> {
        let loaded = fleet::load_alone(place)?;
        place.bring_up_to_date()?;
        // A directory that was named by mistake is not made; one that is to be there the daemon makes.
        let reader = place.reader()?;
        let dir = match place.state_dir.exists() {
            true => place.dir()?,
            false => StateDir::absent(&place.state_dir),
        };
        let (tell, happened) = sync_channel(EVENTS_MAX);
        let watched = Watched::new(dir.clone(), tell.clone());
        let (place, followed) = (place.clone(), HashMap::new());
        Ok((DaemonFleet { place, dir, loaded, tell, revive, reader, followed, watched }, happened))
    }

    /// Returns the record. It stays open: a session that goes on asks for every turn of before.
    fn reader(&mut self) -> Result<&Reader, String> {
        match &mut self.reader {
            Some(reader) => Ok(reader),
            none => Ok(none.insert(Reader::open(&self.dir).map_err(|error| chain(&error))?)),
        }
    }

    /// Talks to the run that is at a job.
    fn control(&mut self, job: &JobId, op: Op) -> Result<(), Unheard> {
        let mut control = self.run_of(job).map_err(Unheard::Refused)?;
        match control.ask(op) {
            Ok(ReplyBody::Refused { reason }) => Err(Unheard::Refused(reason)),
            Ok(_) => Ok(()),
            // It was asked, and may only be slow to reply.
            Err(error) => Err(Unheard::Unsure(chain(&error))),
        }
    }

    fn run_of(&mut self, job: &JobId) -> Result<Control, String> {
        let runs = self.reader()?.runs_of_job(job).map_err(|error| chain(&error))?;
        let run = runs.last().ok_or_else(|| format!("{job} has not started yet"))?;
        Control::of_run(&self.dir.run(run.id)).map_err(|error| chain(&error))
    }
}

impl Fleet for DaemonFleet {
    fn agents(&self) -> Vec<AgentCard> {
        let card = |agent: &Agent| AgentCard {
            name: agent.name.to_string(),
            description: agent.description.clone(),
            runtime: heeler_query::agents::runtime(&agent.runtime).to_owned(),
            model: agent.model.clone(),
        };
        self.loaded.agents.iter().map(card).collect()
    }

    fn rules(&self, agent: &str, attended: bool) -> Vec<String> {
        let known = self.loaded.agents.iter().find(|known| known.name.as_str() == agent);
        known.map(|known| rules(known, attended)).unwrap_or_default()
    }

    fn ask(&mut self, turn: &Turn) -> Result<JobId, String> {
        let agent = turn.agent.parse().map_err(|error| format!("{error}"))?;
        let wanted = Wanted {
            prompt: Some(turn.prompt.clone()),
            session: wish(&turn.session),
            model: turn.model.clone(),
            attended: turn.attended,
            ..Wanted::of(agent)
        };
        let command = Command::Trigger(Box::new(wanted));
        match daemon::ask_once(&self.place, &command, &turn.id.to_string()) {
            Ok(answer) => job_of(&answer).ok_or_else(|| told(&daemon::unexpected(&answer))),
            // It may have been asked in other words, by a terminal with another keyboard.
            Err(failure) => {
                let known = self.asked(turn.id).ok().flatten();
                known.ok_or_else(|| told(&failure))
            }
        }
    }

    fn asked(&mut self, turn: Uuid) -> Result<Option<JobId>, String> {
        let asker = heeler_server::login_name(rustix::process::geteuid().as_raw());
        let known = self.reader()?.answered_request(&asker, &turn.to_string());
        let known = known.map_err(|error| chain(&error))?;
        let answer = known.and_then(|known| serde_json::from_str::<Told>(&known.answer).ok());
        Ok(answer.as_ref().and_then(job_of))
    }

    fn say(&mut self, job: &JobId, text: &str) -> Result<(), Unheard> {
        self.control(job, Op::Message { text: text.to_owned() })
    }

    fn answer(&mut self, job: &JobId, ask: &str, answer: &Answer) -> Result<(), String> {
        let by = self.place.who();
        let told =
            self.control(job, Op::Answer { ask: ask.to_owned(), answer: answer.clone(), by });
        told.map_err(|(Unheard::Refused(why) | Unheard::Unsure(why))| why)
    }

    fn cancel(&mut self, job: &JobId, now: bool) -> Result<(), String> {
        let command = Command::Cancel { job: job.clone(), now, by: self.place.who() };
        match daemon::ask(&self.place, &command) {
            Ok(_) => Ok(()),
            Err(failure) => match self.facts(job)? {
                // It ended by itself meanwhile.
                Some(facts) if is_over(facts.state) => Ok(()),
                _ => Err(told(&failure)),
            },
        }
    }

    fn follow(&mut self, job: &JobId, from: u64) {
        self.followed.retain(|_, followed| !followed.is_over());
        let followed =
            follow::start(&self.dir, job, from, self.tell.clone(), Arc::clone(&self.revive));
        // Whoever follows again wants to hear it from there, once.
        if let Some(before) = self.followed.insert(job.clone(), followed) {
            before.stop();
        }
    }

    fn watch_workers(&mut self, jobs: &[JobId]) {
        self.watched.set(jobs);
    }

    fn facts(&mut self, job: &JobId) -> Result<Option<JobFacts>, String> {
        let reader = self.reader()?;
        match reader.job(job).map_err(|error| chain(&error))? {
            Some(job) => Ok(Some(facts(reader, &job))),
            None => Ok(None),
        }
    }
}

impl Drop for DaemonFleet {
    fn drop(&mut self) {
        self.followed.values().for_each(Followed::stop);
    }
}

/// Says in one line why something failed, and what to do.
fn told(failure: &Failure) -> String {
    match &failure.hint {
        Some(hint) => format!("{:#} ({hint})", failure.error),
        None => format!("{:#}", failure.error),
    }
}

fn wish(session: &SessionChoice) -> Wish {
    match session.clone() {
        SessionChoice::New => Wish::Fresh,
        SessionChoice::Given(id) => Wish::Given { id },
        SessionChoice::ForkOf(source, at) => Wish::Fork { source, at },
    }
}

fn job_of(answer: &Told) -> Option<JobId> {
    match answer {
        Told::Job { job, .. } | Told::Known { job, .. } => Some(job.clone()),
        _ => None,
    }
}

pub(super) fn is_over(state: JobState) -> bool {
    matches!(state, JobState::Done | JobState::Failed)
}

/// Returns what is known of a job. What cannot be read beside it is left out.
pub(super) fn facts(reader: &Reader, job: &Job) -> JobFacts {
    let head = &job.head;
    let (state, reason) = match head.status {
        JobStatus::Pending => {
            let queued = reader.queued(&head.id).ok().flatten();
            (JobState::Waiting, queued.map(|row| row.reason).filter(|reason| !reason.is_empty()))
        }
        JobStatus::Running => (JobState::Running, None),
        JobStatus::Completed => (JobState::Done, None),
        JobStatus::Failed | JobStatus::Cancelled => {
            (JobState::Failed, job.error.clone().or_else(|| Some(head.status.to_string())))
        }
    };
    let session = head.session_id.as_ref();
    let session = session.and_then(|id| reader.session_by_agent_id(id).ok().flatten());
    let tokens = session.as_ref().and_then(|it| u64::try_from(it.token_estimate).ok());
    JobFacts {
        job: head.id.clone(),
        agent: head.agent.clone(),
        state,
        reason,
        session: head.session_id.clone(),
        cost_usd: head.cost_usd,
        context_tokens: tokens.filter(|tokens| *tokens > 0),
        model: job.usage.per_model.keys().last().cloned(),
    }
}
