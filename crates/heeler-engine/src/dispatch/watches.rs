//! Schedules that files start: which are watched, and which are not while their own job runs.

use std::collections::HashSet;

use heeler_model::calendar::ScheduleKey;
use heeler_model::config::Agent;
use heeler_model::{TriggerType, Wanted};

use super::{Board, Dispatcher};
use crate::command::{Handle, Input};
use crate::watching::{WatchSpec, Watched, Watching};

/// What is watched. The thread is there only where something is.
#[derive(Default)]
pub(crate) struct Watches {
    watching: Option<Watching>,
    specs: Vec<WatchSpec>,
    paused: HashSet<ScheduleKey>,
}

impl Dispatcher {
    /// Watches what is to be watched by now.
    pub(super) fn watch_files(&mut self) {
        let mut specs = Vec::new();
        let mut busy = HashSet::new();
        if self.keeps_schedules() {
            let board = self.board();
            for agent in &board.setup.loaded.agents {
                collect(&board, agent, &mut specs, &mut busy);
            }
        }
        if specs.is_empty() && self.watches.watching.is_none() {
            return;
        }
        let inbox = self.inbox.clone();
        let watches = &mut self.watches;
        let watching = watches.watching.get_or_insert_with(|| {
            Watching::start(self.fleet.dir.root(), Box::new(move |watched| tell(&inbox, watched)))
        });
        if specs != watches.specs {
            watching.set(&specs);
        }
        for spec in &specs {
            let (agent, schedule) = (spec.agent.to_string(), spec.schedule.clone());
            let key = ScheduleKey { agent, schedule };
            match (busy.contains(&key), watches.paused.contains(&key)) {
                (true, false) => watching.pause(&spec.agent, &spec.schedule),
                (false, true) => watching.resume(&spec.agent, &spec.schedule),
                _ => {}
            }
        }
        (watches.specs, watches.paused) = (specs, busy);
    }
}

fn collect(
    board: &Board,
    agent: &Agent,
    specs: &mut Vec<WatchSpec>,
    busy: &mut HashSet<ScheduleKey>,
) {
    for schedule in &agent.schedules {
        let Some(spec) = WatchSpec::of(agent, schedule) else { continue };
        let key = ScheduleKey { agent: agent.name.to_string(), schedule: schedule.name.clone() };
        if !board.is_enabled(&key, schedule) {
            continue;
        }
        if board.is_busy(&key) {
            busy.insert(key);
        }
        specs.push(spec);
    }
}

fn tell(inbox: &Handle, watched: Watched) {
    match watched {
        Watched::Changed { agent, schedule, changed } => {
            let wanted = Wanted {
                schedule: Some(schedule),
                trigger: TriggerType::Schedule,
                ..Wanted::of(agent)
            };
            // Nobody hears it any more if the daemon ends.
            let _stopped = inbox.input(Input::Fired { wanted: Box::new(wanted), changed });
        }
        Watched::Trouble { agent, schedule, message } => {
            tracing::warn!(%agent, schedule, message, "files cannot be watched");
        }
    }
}
