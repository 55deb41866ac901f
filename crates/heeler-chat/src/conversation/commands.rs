//! Implementation of the chat commands.

use super::Conversation;
use super::display::truncate_line;
use super::phase::ConversationPhaseEvent;
use crate::command::{COMMAND_COLUMNS, ChatCommand, TaskListChange, help};
use crate::{ChatJobState, ChatOutput, ChatSpeaker, ConversationLoop};

/// Most sessions that `/sessions` lists.
const SESSIONS_MAX: usize = 20;

impl Conversation {
    pub(super) fn run_command(&mut self, command: ChatCommand) {
        match command {
            ChatCommand::Help => self.show_help(),
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
            ChatCommand::Rewind => self.rewind(),
            ChatCommand::Diff => self.request_diff(),
            ChatCommand::Copy(block) => self.copy_answer(block),
            ChatCommand::Cost => self.show_cost(),
            ChatCommand::Search(text) => self.start_search(text),
            ChatCommand::Export(file) => self.start_export(file),
            ChatCommand::Sessions => self.list_sessions(),
            ChatCommand::Status => self.show_status(),
            ChatCommand::Theme(theme) => self.display.push(ChatOutput::ThemeChanged(theme)),
            ChatCommand::Background => {
                self.apply_phase_event(ConversationPhaseEvent::BackgroundRequested);
            }
            ChatCommand::Exit => self.apply_phase_event(ConversationPhaseEvent::ExitRequested),
        }
    }

    fn show_help(&mut self) {
        let mut text = help(self.options.keys);
        let width = COMMAND_COLUMNS;
        for command in &self.options.agent_commands {
            let head = format!("/{}", command.name);
            text.push_str(&format!(
                "\n{head:<width$}  {} (of the agent)",
                truncate_line(&command.about)
            ));
        }
        self.display.show_notice(text);
    }

    fn list_agents(&mut self) {
        let agents = self.fleet.agents();
        let width = agents.iter().map(|agent| agent.name.chars().count()).max().unwrap_or_default();
        let lines = agents.into_iter().map(|agent| {
            let model = agent.model.map(|model| format!(", {model}")).unwrap_or_default();
            let description =
                agent.description.map(|description| format!("  {description}")).unwrap_or_default();
            format!("{:<width$}  ({}{model}){description}", agent.name, agent.runtime)
        });
        let lines: Vec<String> = lines.collect();
        self.display.show_notice(lines.join("\n"));
    }

    fn list_workers(&mut self) {
        let width = self.workers.iter().map(|worker| worker.name().chars().count()).max();
        let width = width.unwrap_or_default();
        let lines: Vec<String> =
            self.workers.iter().map(|worker| worker.summary_line(width)).collect();
        self.display.show_notice(if lines.is_empty() {
            "no workers yet: the agent starts them".to_owned()
        } else {
            lines.join("\n")
        });
    }

    fn view_by_name(&mut self, name: Option<String>) {
        match name.as_deref() {
            None if self.workers.len() == 0 => {
                self.display.show_notice("no workers yet: there is only this conversation");
            }
            None => self.cycle_view(false),
            Some("main" | "coordinator") => self.switch_view(ChatSpeaker::Coordinator),
            Some(name) => self.switch_view(ChatSpeaker::Worker(name.to_owned())),
        }
    }

    fn show_or_set_model(&mut self, name: Option<String>) {
        match name {
            None => {
                let model = self
                    .display
                    .status
                    .model
                    .clone()
                    .unwrap_or_else(|| "the agent's default".to_owned());
                self.display.show_notice(format!(
                    "model: {model}; /model NAME changes it, /model default resets it"
                ));
            }
            Some(name) => {
                let model = (name != "default").then_some(name);
                // The model that answers next is not known yet.
                self.display.status.model = None;
                let name = model.clone().unwrap_or_else(|| "the agent's default model".to_owned());
                self.save_state(|state| state.model = model);
                self.display.show_notice(format!("{name} is used from the next turn on"));
            }
        }
    }

    fn show_permissions(&mut self) {
        let agent = self.state().agent().to_owned();
        let mut lines = self.fleet.describe_permissions(&agent, self.options.attended);
        lines.extend(self.describe_grants());
        let questions = self.open_questions();
        lines.push(match questions.len() {
            0 => "waiting  no open questions".to_owned(),
            1 => "waiting  1 open question".to_owned(),
            count => format!("waiting  {count} open questions"),
        });
        self.display.show_notice(lines.join("\n"));
        for question in questions {
            self.display.push(ChatOutput::QuestionAsked(question));
        }
    }

    fn update_tasks(&mut self, change: TaskListChange) {
        let count = self.state().tasks.len();
        match change {
            TaskListChange::List => {}
            TaskListChange::Add(text) => self.add_tasks(vec![text], None),
            TaskListChange::Done(number) | TaskListChange::Drop(number) if number > count => {
                return self
                    .display
                    .show_error(format!("there is no task {number}; /tasks lists them"));
            }
            TaskListChange::Done(number) => {
                self.save_state(|state| state.tasks[number - 1].done = true);
            }
            TaskListChange::Drop(number) => {
                self.save_state(|state| drop(state.tasks.remove(number - 1)));
            }
        }
        let lines = self.state().tasks.iter().enumerate().map(|(at, task)| {
            format!("{:>3} [{}] {}", at + 1, if task.done { 'x' } else { ' ' }, task.text)
        });
        let lines: Vec<String> = lines.collect();
        self.display.show_notice(match lines.is_empty() {
            true => "no tasks; /tasks add TEXT adds one".to_owned(),
            false => lines.join("\n"),
        });
    }

    fn request_diff(&mut self) {
        match self.state().session.clone() {
            Some(session) => self.fleet.load_diff(&session),
            None => self.display.show_notice("no changes yet: no turn has run"),
        }
    }

    pub(super) fn show_diff(&mut self, diff: Result<String, String>) {
        match diff {
            Ok(patch) if patch.trim().is_empty() => {
                self.display.show_notice("no files were changed in this session");
            }
            Ok(patch) => self.display.push(ChatOutput::Diff(patch)),
            Err(why) => self.display.show_error(why),
        }
    }

    fn show_cost(&mut self) {
        if !self.jobs.has_costs() {
            return self.display.show_notice("no cost yet: no turn has reported its cost");
        }
        let all = self.jobs.total_cost();
        let coordinator = self.jobs.cost_of(&ChatSpeaker::Coordinator);
        self.display.show_notice(match coordinator < all {
            true => format!(
                "{}: {} for this conversation, {} for its workers",
                heeler_model::format_usd(all),
                heeler_model::format_usd(coordinator),
                heeler_model::format_usd(all - coordinator)
            ),
            false => heeler_model::format_usd(all),
        });
    }

    fn list_sessions(&mut self) {
        match self.directory.entries() {
            Ok(named) => {
                let mut lines: Vec<String> = Vec::new();
                // Only the sessions that are listed are read.
                for one in named.iter().take(SESSIONS_MAX).map(|one| self.directory.summarize(one))
                {
                    let here =
                        if one.id == self.record.session_file.id() { " (this one)" } else { "" };
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
                self.display.show_notice(lines.join("\n"));
            }
            Err(error) => self.display.show_error(format!("{error}")),
        }
    }

    fn show_status(&mut self) {
        let (state, status) = (self.record.state(), &self.display.status);
        let session = state.session.as_ref().map_or("none yet".to_owned(), ToString::to_string);
        let busy = status.busy.clone().unwrap_or_else(|| "idle".to_owned());
        let at_work =
            self.workers.iter().filter(|worker| worker.state() == ChatJobState::Running).count();
        let context =
            status.context_tokens.map_or("unknown".to_owned(), |it| format!("{it} tokens"));
        let model = status.model.as_deref().unwrap_or("the agent's default");
        let text = format!(
            "session  {}\nagent    {} ({busy}), native session: {session}\nmodel    {model}\ncontext  {context}\n\
             workers  {} ({at_work} running)\nloops    {} active, {} paused\ntasks    {} open\ncost     {}",
            status.id,
            state.agent(),
            self.workers.len(),
            status.loops,
            state.loops.len() - status.loops,
            status.tasks,
            heeler_model::format_usd(status.cost_usd),
        );
        self.display.show_notice(text);
    }
}
