//! What commands do.

use std::collections::HashSet;

use heeler_model::AgentSessionId;
use serde_json::Value as Json;
use uuid::Uuid;

use super::Talk;
use crate::command::{Command, TaskChange, help};
use crate::{Entry, JobState, Loop, Role, Shown, Speaker};

/// How many sessions `/sessions` lists.
const SESSIONS_MAX: usize = 20;
/// How many characters of a line are shown in a list.
const GIST_CHARS: usize = 80;
/// Marks the entry that tells of an undo.
const UNDO: &str = "undo";
/// How many entries are read at a time where all are gone through.
const STRIDE: usize = 500;

impl Talk {
    pub(super) fn command(&mut self, command: Command) {
        match command {
            Command::Help => self.told(help(self.manner.keys)),
            Command::Agents => self.agents(),
            Command::Workers => self.list_workers(),
            Command::View(name) => self.view_named(name),
            Command::Model(name) => self.model(name),
            Command::Permissions => self.permissions(),
            Command::Tasks(change) => self.tasks(change),
            Command::Loop { goal, every } => self.add_loop(Loop::new(goal, every, self.now)),
            Command::Loops => self.list_loops(),
            Command::Stop(which) => self.stop_loops(which),
            Command::Restart(which) => self.restart(which),
            Command::Fork(at) => self.fork(at),
            Command::Undo => self.undo(),
            Command::Cost => self.cost(),
            Command::Search(text) => self.search(text),
            Command::Export(file) => self.export(file),
            Command::Sessions => self.sessions(),
            Command::Status => self.tell_status(),
            Command::Exit => self.leave(),
        }
    }

    fn agents(&mut self) {
        let agents = self.fleet.agents();
        let width = agents.iter().map(|agent| agent.name.chars().count()).max().unwrap_or_default();
        let lines = agents.into_iter().map(|agent| {
            let model = agent.model.map(|model| format!(", {model}")).unwrap_or_default();
            let what = agent.description.map(|what| format!("  {what}")).unwrap_or_default();
            format!("{:<width$}  ({}{model}){what}", agent.name, agent.runtime)
        });
        let lines: Vec<String> = lines.collect();
        self.told(lines.join("\n"));
    }

    fn list_workers(&mut self) {
        let width = self.workers.iter().map(|worker| worker.name().chars().count()).max();
        let width = width.unwrap_or_default();
        let lines: Vec<String> = self.workers.iter().map(|worker| worker.line(width)).collect();
        self.told(if lines.is_empty() {
            "no worker yet: the agent sets them to work".to_owned()
        } else {
            lines.join("\n")
        });
    }

    fn view_named(&mut self, name: Option<String>) {
        match name.as_deref() {
            None if self.workers.is_empty() => {
                self.told("no worker yet: there is only this conversation");
            }
            None => self.look_further(false),
            Some("main" | "coordinator") => self.look_at(Speaker::Coordinator),
            Some(name) => self.look_at(Speaker::Worker(name.to_owned())),
        }
    }

    fn model(&mut self, name: Option<String>) {
        match name {
            None => {
                let model =
                    self.status.model.clone().unwrap_or_else(|| "the agent's own".to_owned());
                self.told(format!(
                    "{model} answers; /model NAME takes another, /model default the agent's own"
                ));
            }
            Some(name) => {
                let model = (name != "default").then_some(name);
                self.status.model = None;
                let told = model.clone().unwrap_or_else(|| "the agent's own model".to_owned());
                self.save(|about| about.model = model);
                self.told(format!("{told} answers from the next turn on"));
            }
        }
    }

    fn permissions(&mut self) {
        let agent = self.book.about().agent().to_owned();
        let mut lines = self.fleet.rules(&agent, self.manner.attended);
        lines.push(match self.asks.len() {
            0 => "waiting  nothing waits for your answer".to_owned(),
            1 => "waiting  one request waits for your answer".to_owned(),
            count => format!("waiting  {count} requests wait for your answer"),
        });
        self.told(lines.join("\n"));
        for question in self.asks.clone() {
            self.out.push(Shown::Asked(question));
        }
    }

    fn tasks(&mut self, change: TaskChange) {
        let count = self.book.about().tasks.len();
        match change {
            TaskChange::List => {}
            TaskChange::Add(text) => self.add_tasks(vec![text], None),
            TaskChange::Done(number) | TaskChange::Drop(number) if number > count => {
                return self.failed(format!("there is no task {number}; /tasks lists them"));
            }
            TaskChange::Done(number) => self.save(|about| about.tasks[number - 1].done = true),
            TaskChange::Drop(number) => self.save(|about| drop(about.tasks.remove(number - 1))),
        }
        let lines = self.book.about().tasks.iter().enumerate().map(|(at, task)| {
            format!("{:>3} [{}] {}", at + 1, if task.done { 'x' } else { ' ' }, task.text)
        });
        let lines: Vec<String> = lines.collect();
        self.told(match lines.is_empty() {
            true => "no task; /tasks add TEXT adds one".to_owned(),
            false => lines.join("\n"),
        });
    }

    /// Takes the last turn back: the next one goes on from before it. The transcript keeps it, marked.
    fn undo(&mut self) {
        if self.turn.is_some() {
            return self.failed("a turn is under way; Esc interrupts it");
        }
        if self.book.about().session.is_none() {
            return self.failed("there is nothing to take back");
        }
        // What was never sent is no turn. Turns that were taken back before are passed over.
        let turns: HashSet<Uuid> = self.book.about().turns.iter().map(|asked| asked.turn).collect();
        let is_turn = |entry: &Entry| entry.turn.is_some_and(|turn| turns.contains(&turn));
        let (mut passed, mut taken_back) = (0_usize, None);
        let found = self.look_back(|entry| {
            if is_undo(entry) {
                passed += 1;
            } else if entry.role == Role::User && is_turn(entry) {
                if passed == 0 && taken_back.is_none() {
                    taken_back = Some(gist(entry.text().lines().next().unwrap_or_default()));
                }
                passed = passed.saturating_sub(1);
            } else if taken_back.is_some() && passed == 0 && entry.role == Role::Assistant {
                return uuid_of(entry).map(|cut| (entry.clone(), cut));
            }
            None
        });
        let Some(words) = taken_back else {
            return self.failed("there is nothing to take back");
        };
        let from = found.map(|(entry, cut)| (self.session_of(&entry), cut));
        self.save(|about| match from {
            Some((session, cut)) => {
                about.session = session.or(about.session.take());
                about.cut = Some(cut);
            }
            // Before the first turn there is nothing to go on from.
            None => (about.session, about.cut) = (None, None),
        });
        let text = format!(
            "The turn `{words}` is taken back: the next one goes on from before it. Files stay as they are."
        );
        let mut entry = Entry::new(Role::System, text, self.now);
        entry.other.insert(UNDO.to_owned(), Json::Bool(true));
        self.keep(Speaker::Coordinator, entry);
    }

    /// Returns the agent's own session that an entry was said in, if that is known: after an undo or a fork
    /// it is not the one that is gone on with.
    pub(super) fn session_of(&mut self, entry: &Entry) -> Option<AgentSessionId> {
        let job = &entry.source.as_ref()?.job;
        self.fleet.facts(job).ok().flatten()?.session
    }

    /// Goes through the transcript from its end until something is found.
    fn look_back<T>(&mut self, mut look: impl FnMut(&Entry) -> Option<T>) -> Option<T> {
        let mut mark = None;
        loop {
            let page = match self.book.older(&Speaker::Coordinator, mark, STRIDE) {
                Ok(page) => page,
                Err(error) => {
                    self.failed(format!("{error}"));
                    return None;
                }
            };
            if let Some(found) = page.entries.iter().rev().find_map(&mut look) {
                return Some(found);
            }
            if !page.has_more {
                return None;
            }
            mark = Some(page.mark);
        }
    }

    fn cost(&mut self) {
        if self.costs.is_empty() {
            return self.told("nothing so far: no turn has told its cost");
        }
        let all: f64 = self.costs.values().sum();
        let own = self.costs_of(&Speaker::Coordinator);
        self.told(match own < all {
            true => format!(
                "${all:.4}: ${own:.4} for this conversation, ${:.4} for its workers",
                all - own
            ),
            false => format!("${all:.4}"),
        });
    }

    fn costs_of(&self, of: &Speaker) -> f64 {
        let is_its = |job: &_| self.speakers.get(job) == Some(of);
        self.costs.iter().filter(|(job, _)| is_its(job)).map(|(_, cost)| cost).sum()
    }

    fn sessions(&mut self) {
        match self.shelf.names() {
            Ok(named) => {
                let mut lines: Vec<String> = Vec::new();
                for one in named.iter().take(SESSIONS_MAX).map(|one| self.shelf.glance(one)) {
                    let here = if one.id == self.book.id() { " (this one)" } else { "" };
                    let last = one.fault.as_deref().or(one.last.as_deref()).unwrap_or_default();
                    let count = one.counted();
                    lines.push(format!("{:<14}  {count:>12}  {}{here}", one.id, gist(last)));
                }
                if named.len() > SESSIONS_MAX {
                    lines.push(format!("and {} older ones", named.len() - SESSIONS_MAX));
                }
                lines.push("heeler --resume ID goes on with one".to_owned());
                self.told(lines.join("\n"));
            }
            Err(error) => self.failed(format!("{error}")),
        }
    }

    fn tell_status(&mut self) {
        let (about, status) = (self.book.about(), &self.status);
        let session = about.session.as_ref().map_or("none yet".to_owned(), ToString::to_string);
        let busy = status.busy.clone().unwrap_or_else(|| "idle".to_owned());
        let at_work =
            self.workers.iter().filter(|worker| worker.state() == JobState::Running).count();
        let context =
            status.context_tokens.map_or("unknown".to_owned(), |it| format!("{it} tokens"));
        let model = status.model.as_deref().unwrap_or("the agent's own");
        let text = format!(
            "session  {}\nagent    {} ({busy}), its own session: {session}\nmodel    {model}\ncontext  {context}\n\
             workers  {} ({at_work} at work)\nloops    {} at work, {} at rest\ntasks    {} open\ncost     ${:.4}",
            status.id,
            about.agent(),
            self.workers.len(),
            status.loops,
            about.loops.len() - status.loops,
            status.tasks,
            status.cost_usd,
        );
        self.told(text);
    }
}

/// Says whether an entry tells that the turn before it was taken back.
pub(super) fn is_undo(entry: &Entry) -> bool {
    entry.role == Role::System && entry.other.get(UNDO) == Some(&Json::Bool(true))
}

/// Returns the entry's place in the agent's own log, which is where it can be forked.
pub(super) fn uuid_of(entry: &Entry) -> Option<Uuid> {
    entry.other.get("uuid").and_then(Json::as_str).and_then(|text| text.parse().ok())
}

pub(super) fn gist(line: &str) -> String {
    let line = line.trim();
    match line.char_indices().nth(GIST_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
