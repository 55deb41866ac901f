//! Implementation of the chat commands.

use std::collections::HashSet;

use heeler_model::AgentSessionId;
use serde_json::Value as Json;
use uuid::Uuid;

use super::Conversation;
use crate::command::{ChatCommand, TaskListChange, help};
use crate::{
    ChatJobState, ChatOutput, ChatSpeaker, ConversationEntry, ConversationLoop, EntryRole,
};

/// Most sessions that `/sessions` lists.
const SESSIONS_MAX: usize = 20;
/// Characters of a line in a list.
const LINE_CHARS_MAX: usize = 80;
/// Key that marks the entry of an undo.
const UNDO: &str = "undo";
/// Entries per read when the whole transcript is searched.
const ENTRIES_PER_READ: usize = 500;

impl Conversation {
    pub(super) fn run_command(&mut self, command: ChatCommand) {
        match command {
            ChatCommand::Help => self.show_notice(help(self.options.keys)),
            ChatCommand::Agents => self.list_agents(),
            ChatCommand::Workers => self.list_workers(),
            ChatCommand::View(name) => self.view_by_name(name),
            ChatCommand::Model(name) => self.show_or_set_model(name),
            ChatCommand::Permissions => self.show_permissions(),
            ChatCommand::Tasks(change) => self.update_tasks(change),
            ChatCommand::Loop { goal, every } => {
                self.add_loop(ConversationLoop::new(goal, every, self.now));
            }
            ChatCommand::Loops => self.list_loops(),
            ChatCommand::Stop(which) => self.stop_loops(which),
            ChatCommand::Restart(which) => self.restart_loops(which),
            ChatCommand::Fork(at) => self.fork(at),
            ChatCommand::Undo => self.undo(),
            ChatCommand::Cost => self.show_cost(),
            ChatCommand::Search(text) => self.start_search(text),
            ChatCommand::Export(file) => self.start_export(file),
            ChatCommand::Sessions => self.list_sessions(),
            ChatCommand::Status => self.show_status(),
            ChatCommand::Exit => self.begin_exit(),
        }
    }

    fn list_agents(&mut self) {
        let agents = self.fleet.agents();
        let width = agents.iter().map(|agent| agent.name.chars().count()).max().unwrap_or_default();
        let lines = agents.into_iter().map(|agent| {
            let model = agent.model.map(|model| format!(", {model}")).unwrap_or_default();
            let what = agent.description.map(|what| format!("  {what}")).unwrap_or_default();
            format!("{:<width$}  ({}{model}){what}", agent.name, agent.runtime)
        });
        let lines: Vec<String> = lines.collect();
        self.show_notice(lines.join("\n"));
    }

    fn list_workers(&mut self) {
        let width = self.workers.iter().map(|worker| worker.name().chars().count()).max();
        let width = width.unwrap_or_default();
        let lines: Vec<String> =
            self.workers.iter().map(|worker| worker.summary_line(width)).collect();
        self.show_notice(if lines.is_empty() {
            "no workers yet: the agent starts them".to_owned()
        } else {
            lines.join("\n")
        });
    }

    fn view_by_name(&mut self, name: Option<String>) {
        match name.as_deref() {
            None if self.workers.is_empty() => {
                self.show_notice("no workers yet: there is only this conversation");
            }
            None => self.cycle_view(false),
            Some("main" | "coordinator") => self.switch_view(ChatSpeaker::Coordinator),
            Some(name) => self.switch_view(ChatSpeaker::Worker(name.to_owned())),
        }
    }

    fn show_or_set_model(&mut self, name: Option<String>) {
        match name {
            None => {
                let model =
                    self.status.model.clone().unwrap_or_else(|| "the agent's default".to_owned());
                self.show_notice(format!(
                    "model: {model}; /model NAME changes it, /model default resets it"
                ));
            }
            Some(name) => {
                let model = (name != "default").then_some(name);
                self.status.model = None;
                let told = model.clone().unwrap_or_else(|| "the agent's default model".to_owned());
                self.save_state(|about| about.model = model);
                self.show_notice(format!("{told} is used from the next turn on"));
            }
        }
    }

    fn show_permissions(&mut self) {
        let agent = self.session_file.state().agent().to_owned();
        let mut lines = self.fleet.describe_permissions(&agent, self.options.attended);
        lines.push(match self.questions.len() {
            0 => "waiting  no open questions".to_owned(),
            1 => "waiting  1 open question".to_owned(),
            count => format!("waiting  {count} open questions"),
        });
        self.show_notice(lines.join("\n"));
        for question in self.questions.clone() {
            self.outputs.push(ChatOutput::QuestionAsked(question));
        }
    }

    fn update_tasks(&mut self, change: TaskListChange) {
        let count = self.session_file.state().tasks.len();
        match change {
            TaskListChange::List => {}
            TaskListChange::Add(text) => self.add_tasks(vec![text], None),
            TaskListChange::Done(number) | TaskListChange::Drop(number) if number > count => {
                return self.show_error(format!("there is no task {number}; /tasks lists them"));
            }
            TaskListChange::Done(number) => {
                self.save_state(|about| about.tasks[number - 1].done = true);
            }
            TaskListChange::Drop(number) => {
                self.save_state(|about| drop(about.tasks.remove(number - 1)));
            }
        }
        let lines = self.session_file.state().tasks.iter().enumerate().map(|(at, task)| {
            format!("{:>3} [{}] {}", at + 1, if task.done { 'x' } else { ' ' }, task.text)
        });
        let lines: Vec<String> = lines.collect();
        self.show_notice(match lines.is_empty() {
            true => "no tasks; /tasks add TEXT adds one".to_owned(),
            false => lines.join("\n"),
        });
    }

    /// Takes the last turn back: the next turn continues from before it. The transcript keeps the
    /// turn, marked.
    fn undo(&mut self) {
        if self.turn.is_some() {
            return self.show_error("a turn is in progress; Esc interrupts it");
        }
        if self.session_file.state().session.is_none() {
            return self.show_error("there is nothing to take back");
        }
        // Unsent messages are not turns. Turns that were already taken back are skipped.
        let turns: HashSet<Uuid> =
            self.session_file.state().turns.iter().map(|asked| asked.turn).collect();
        let is_turn =
            |entry: &ConversationEntry| entry.turn.is_some_and(|turn| turns.contains(&turn));
        let (mut passed, mut taken_back) = (0_usize, None);
        let found = self.search_backwards(|entry| {
            if is_undo(entry) {
                passed += 1;
            } else if entry.role == EntryRole::User && is_turn(entry) {
                if passed == 0 && taken_back.is_none() {
                    taken_back =
                        Some(truncate_line(entry.text().lines().next().unwrap_or_default()));
                }
                passed = passed.saturating_sub(1);
            } else if taken_back.is_some() && passed == 0 && entry.role == EntryRole::Assistant {
                return entry_uuid(entry).map(|cut| (entry.clone(), cut));
            }
            None
        });
        let Some(words) = taken_back else {
            return self.show_error("there is nothing to take back");
        };
        let from = found.map(|(entry, cut)| (self.session_of_entry(&entry), cut));
        self.save_state(|about| match from {
            Some((session, cut)) => {
                about.session = session.or(about.session.take());
                about.cut = Some(cut);
            }
            // Before the first turn there is no session to continue.
            None => (about.session, about.cut) = (None, None),
        });
        let text = format!(
            "The turn `{words}` was taken back: the next one continues from before it. Files are unchanged."
        );
        let mut entry = ConversationEntry::new(EntryRole::System, text, self.now);
        entry.other.insert(UNDO.to_owned(), Json::Bool(true));
        self.append_entry(ChatSpeaker::Coordinator, entry);
    }

    /// Returns the native session of an entry, if known. After an undo or a fork it differs from
    /// the current one.
    pub(super) fn session_of_entry(&mut self, entry: &ConversationEntry) -> Option<AgentSessionId> {
        let job = &entry.source.as_ref()?.job;
        self.fleet.job_info(job).ok().flatten()?.session
    }

    /// Searches the transcript from its end until `look` returns a result.
    fn search_backwards<T>(
        &mut self,
        mut look: impl FnMut(&ConversationEntry) -> Option<T>,
    ) -> Option<T> {
        let mut mark = None;
        loop {
            let page = match self.session_file.entries_before(
                &ChatSpeaker::Coordinator,
                mark,
                ENTRIES_PER_READ,
            ) {
                Ok(page) => page,
                Err(error) => {
                    self.show_error(format!("{error}"));
                    return None;
                }
            };
            if let Some(found) = page.entries.iter().rev().find_map(&mut look) {
                return Some(found);
            }
            if !page.has_more {
                return None;
            }
            mark = Some(page.cursor);
        }
    }

    fn show_cost(&mut self) {
        if self.costs.is_empty() {
            return self.show_notice("no cost yet: no turn has reported its cost");
        }
        let all: f64 = self.costs.values().sum();
        let own = self.cost_of_speaker(&ChatSpeaker::Coordinator);
        self.show_notice(match own < all {
            true => format!(
                "${all:.4}: ${own:.4} for this conversation, ${:.4} for its workers",
                all - own
            ),
            false => format!("${all:.4}"),
        });
    }

    fn cost_of_speaker(&self, of: &ChatSpeaker) -> f64 {
        let is_its = |job: &_| self.speakers.get(job) == Some(of);
        self.costs.iter().filter(|(job, _)| is_its(job)).map(|(_, cost)| cost).sum()
    }

    fn list_sessions(&mut self) {
        match self.directory.entries() {
            Ok(named) => {
                let mut lines: Vec<String> = Vec::new();
                for one in named.iter().take(SESSIONS_MAX).map(|one| self.directory.summarize(one))
                {
                    let here = if one.id == self.session_file.id() { " (this one)" } else { "" };
                    let last =
                        one.fault.as_deref().or(one.last_message.as_deref()).unwrap_or_default();
                    let count = one.entry_count_label();
                    lines.push(format!(
                        "{:<14}  {count:>12}  {}{here}",
                        one.id,
                        truncate_line(last)
                    ));
                }
                if named.len() > SESSIONS_MAX {
                    lines.push(format!("and {} older ones", named.len() - SESSIONS_MAX));
                }
                lines.push("heeler --resume ID resumes one".to_owned());
                self.show_notice(lines.join("\n"));
            }
            Err(error) => self.show_error(format!("{error}")),
        }
    }

    fn show_status(&mut self) {
        let (about, status) = (self.session_file.state(), &self.status);
        let session = about.session.as_ref().map_or("none yet".to_owned(), ToString::to_string);
        let busy = status.busy.clone().unwrap_or_else(|| "idle".to_owned());
        let at_work =
            self.workers.iter().filter(|worker| worker.state() == ChatJobState::Running).count();
        let context =
            status.context_tokens.map_or("unknown".to_owned(), |it| format!("{it} tokens"));
        let model = status.model.as_deref().unwrap_or("the agent's default");
        let text = format!(
            "session  {}\nagent    {} ({busy}), native session: {session}\nmodel    {model}\ncontext  {context}\n\
             workers  {} ({at_work} running)\nloops    {} active, {} paused\ntasks    {} open\ncost     ${:.4}",
            status.id,
            about.agent(),
            self.workers.len(),
            status.loops,
            about.loops.len() - status.loops,
            status.tasks,
            status.cost_usd,
        );
        self.show_notice(text);
    }
}

/// Returns true if an entry marks the previous turn as taken back.
pub(super) fn is_undo(entry: &ConversationEntry) -> bool {
    entry.role == EntryRole::System && entry.other.get(UNDO) == Some(&Json::Bool(true))
}

/// Returns the entry's UUID in the native session, which is a possible fork point.
pub(super) fn entry_uuid(entry: &ConversationEntry) -> Option<Uuid> {
    entry.other.get("uuid").and_then(Json::as_str).and_then(|text| text.parse().ok())
}

pub(super) fn truncate_line(line: &str) -> String {
    let line = line.trim();
    match line.char_indices().nth(LINE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
