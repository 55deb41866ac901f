//! Asks the user the agent's questions, one at a time. Start at [`QuestionPrompter`].

use std::collections::{HashSet, VecDeque};
use std::sync::mpsc::SyncSender;

use anstyle::AnsiColor;
use camino::Utf8Path;
use heeler_engine::ControlClient;
use heeler_model::error_chain;
use heeler_model::job_row::summarize_tool_input;
use heeler_model::run::{AgentQuestion, ControlOperation, ControlReplyBody, QuestionAnswer};
use serde_json::{Map, Value as Json};

use super::keyboard::{KeyboardInput, KeyboardReader};
use super::question_text::{
    PermissionText, choice_lines, deny, how_to_answer, open_question, parse_choice,
    parse_permission,
};
use super::screen::WatchScreen;
use super::watch_event::JobWatchEvent;
use crate::failure::CommandResult;
use crate::output::{SafeText, one_line};

/// Reason given to the agent after the end of input.
const NO_ANSWER_MESSAGE: &str = "there is no one left to answer";

/// A question as it was shown to the person who answers it.
struct ShownQuestion {
    id: String,
    hash: String,
}

/// Queue of the agent's open questions.
pub(crate) struct QuestionPrompter {
    /// Terminal for answers; `None` if no one is asked.
    keyboard: Option<KeyboardInput>,
    /// Name of the person who answers, for the record.
    answered_by: String,
    events: SyncSender<JobWatchEvent>,
    waiting: VecDeque<AgentQuestion>,
    known_ids: HashSet<String>,
    /// Answers so far to the parts of the first question.
    answers: Map<String, Json>,
    /// True if the first question is shown in full, however long it is.
    show_in_full: bool,
    keys: Option<KeyboardReader>,
    /// Number of the question asked last: lines typed before it do not answer it.
    question: u64,
    /// True after the end of input: no one answers any more.
    input_ended: bool,
}

impl QuestionPrompter {
    pub(crate) fn new(
        keyboard: Option<KeyboardInput>,
        who: String,
        sender: SyncSender<JobWatchEvent>,
    ) -> QuestionPrompter {
        QuestionPrompter {
            keyboard,
            answered_by: who,
            events: sender,
            waiting: VecDeque::new(),
            known_ids: HashSet::new(),
            answers: Map::new(),
            show_in_full: false,
            keys: None,
            question: 0,
            input_ended: false,
        }
    }

    /// Returns true if a question waits for its answer here.
    pub(crate) fn is_asking(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds a question; one that is known already changes nothing.
    pub(crate) fn add(
        &mut self,
        ask: AgentQuestion,
        folder: &Utf8Path,
        screen: &mut WatchScreen,
    ) -> CommandResult {
        if !self.known_ids.insert(ask.id.clone()) {
            return Ok(());
        }
        // The question can still be answered with `heeler approvals` or on the dashboard.
        if self.keyboard.is_none() {
            let wants = format!("{} {}", ask.tool, summarize_tool_input(&ask.input));
            return screen.remark(&format!("waiting for an answer: {}", one_line(&wants)));
        }
        self.waiting.push_back(ask);
        // Without this, the agent would wait for its time limit.
        if self.input_ended {
            return self.deny_all(folder, screen);
        }
        match self.waiting.len() {
            1 => self.show_question(screen),
            _ => Ok(()),
        }
    }

    /// Removes a question that was answered elsewhere, timed out or was withdrawn.
    pub(crate) fn withdraw(&mut self, id: &str, screen: &mut WatchScreen) -> CommandResult {
        let Some(position) = self.waiting.iter().position(|ask| ask.id == id) else {
            return Ok(());
        };
        self.waiting.remove(position);
        // It was not on the screen yet.
        if position > 0 {
            return Ok(());
        }
        self.next();
        // The cursor is behind the prompt of the withdrawn question.
        screen.line("".into())?;
        screen.remark("the question was answered or withdrawn elsewhere")?;
        self.show_question(screen)
    }

    /// Handles a typed line as the answer to the question asked last.
    pub(crate) fn handle_line(
        &mut self,
        question: u64,
        line: Option<String>,
        folder: &Utf8Path,
        screen: &mut WatchScreen,
    ) -> CommandResult {
        // The line was typed for an earlier question. The end of input counts for every question.
        if line.is_some() && question != self.question {
            return Ok(());
        }
        let Some(line) = line else {
            self.input_ended = true;
            return self.deny_all(folder, screen);
        };
        let Some(ask) = self.waiting.front() else { return Ok(()) };
        let answer = match ask.kind.as_str() {
            "question" if open_question(ask, &self.answers).is_some() => {
                match parse_choice(ask, line.trim(), &mut self.answers) {
                    Ok(answer) => answer,
                    Err(wrong) => return self.show_again(&wrong, screen),
                }
            }
            _ => {
                // Judge the line by what was on the screen when it was typed.
                let is_cut = PermissionText::new(ask, self.show_in_full).is_cut();
                self.show_in_full |= line.trim() == "all";
                parse_permission(line.trim(), is_cut)
            }
        };
        let Some(answer) = answer else { return self.show_question(screen) };
        let shown = ShownQuestion { id: ask.id.clone(), hash: ask.shown_hash() };
        // Removed before it is sent: a run that does not answer must not be asked about twice.
        self.waiting.pop_front();
        self.next();
        self.send(folder, shown, answer, screen)?;
        self.show_question(screen)
    }

    /// Sends the answer to the run itself. This works without a daemon, and the run records the
    /// outcome.
    fn send(
        &self,
        folder: &Utf8Path,
        question: ShownQuestion,
        answer: QuestionAnswer,
        screen: &mut WatchScreen,
    ) -> CommandResult {
        let by = self.answered_by.clone();
        let ShownQuestion { id: ask, hash } = question;
        let op = ControlOperation::Answer { ask, answer, by, shown: Some(hash) };
        let sent =
            ControlClient::connect_to_run(folder).and_then(|mut control| control.request(op));
        match sent {
            Ok(ControlReplyBody::Refused { reason }) => {
                screen.remark(&format!("answer refused: {reason}"))
            }
            Ok(_) => Ok(()),
            // The agent then waits for its time limit; the watch of its rows goes on.
            Err(error) => screen.remark(&format!("answer not delivered: {}", error_chain(&error))),
        }
    }

    fn next(&mut self) {
        self.answers.clear();
        self.show_in_full = false;
    }

    /// Denies all open questions: there is no one left to ask.
    fn deny_all(&mut self, folder: &Utf8Path, screen: &mut WatchScreen) -> CommandResult {
        self.answers.clear();
        while let Some(ask) = self.waiting.pop_front() {
            screen.line("".into())?;
            screen
                .remark(&format!("denied, because {NO_ANSWER_MESSAGE}: {}", one_line(&ask.tool)))?;
            let shown = ShownQuestion { hash: ask.shown_hash(), id: ask.id };
            self.send(folder, shown, deny(NO_ANSWER_MESSAGE), screen)?;
        }
        Ok(())
    }

    /// Shows the first open question.
    fn show_question(&mut self, screen: &mut WatchScreen) -> CommandResult {
        let (Some(ask), Some(keyboard)) = (self.waiting.front(), &self.keyboard) else {
            return Ok(());
        };
        // The keyboard is read only from the first question on: earlier input belongs to the shell.
        let keys = self
            .keys
            .get_or_insert_with(|| KeyboardReader::start(keyboard.clone(), self.events.clone()));
        // A key that was pressed before the question appeared must not answer it.
        self.question = keys.discard_typed();
        match open_question(ask, &self.answers) {
            Some(question) => show_choices(question, screen),
            None => show_permission(&PermissionText::new(ask, self.show_in_full), screen),
        }
    }

    /// Shows the problem with an answer, and asks again below the question.
    fn show_again(&mut self, wrong: &str, screen: &mut WatchScreen) -> CommandResult {
        screen.line(SafeText::styled(AnsiColor::Red.on_default(), &format!("  {wrong}")))?;
        let Some(ask) = self.waiting.front() else { return Ok(()) };
        let Some(question) = open_question(ask, &self.answers) else { return Ok(()) };
        let how = how_to_answer(question);
        self.question = self.keys.as_ref().map_or(self.question, KeyboardReader::discard_typed);
        screen.prompt(how)
    }
}

fn show_permission(shown: &PermissionText, screen: &mut WatchScreen) -> CommandResult {
    for line in shown.lines() {
        screen.line(line.clone())?;
    }
    screen.prompt(&shown.prompt())
}

fn show_choices(question: &Json, screen: &mut WatchScreen) -> CommandResult {
    for line in choice_lines(question) {
        screen.line(line)?;
    }
    screen.prompt(how_to_answer(question))
}
