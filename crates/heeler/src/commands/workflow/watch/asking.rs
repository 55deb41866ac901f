//! What people are asked while they watch: told with how to answer it, and answered here where this
//! is a terminal.

use std::io::IsTerminal as _;
use std::sync::mpsc::SyncSender;

use anstyle::{AnsiColor, Style};
use heeler_engine::Command;
use heeler_model::{Approval, ApprovalAnswer, ApprovalId, ApprovalKind};

use super::View;
use crate::commands::approvals::asked;
use crate::live::{Event, Keyboard, Keys};
use crate::output::{Text, one_line};

/// How much of a question is shown; `heeler approvals show` has it whole.
const QUESTION_LINES_MAX: usize = 20;

/// Returns what is shown of a question.
pub(super) fn question(approval: &Approval, here: bool) -> Vec<Text> {
    let sign = Text::styled(AnsiColor::Magenta.on_default(), "◆");
    let asks = match approval.kind {
        ApprovalKind::Approve => "asks for consent",
        ApprovalKind::Reply | ApprovalKind::Question => "asks",
        ApprovalKind::Permission => "asks to use a tool",
    };
    let by = approval.requested_by.as_deref().unwrap_or(&approval.gate);
    let head = format!(" {} {asks} ({}, {})", one_line(by), one_line(&approval.gate), approval.id);
    let mut lines = vec![sign.then(head)];
    let said = asked(approval);
    let said: Vec<&str> = said.trim().lines().collect();
    let shown = said.iter().take(QUESTION_LINES_MAX);
    lines.extend(shown.map(|line| Text::from(format!("  {line}"))));
    if said.len() > QUESTION_LINES_MAX {
        lines.push(dimmed(&format!("  … whole: heeler approvals show {}", approval.id)));
    }
    if !here {
        lines.push(dimmed(&format!("  answer it: {}", commands(approval))));
    }
    lines
}

/// Returns the commands that answer.
pub(in super::super) fn commands(approval: &Approval) -> String {
    let id = &approval.id;
    match approval.kind.wants_words() {
        true => format!("heeler approvals reply {id} '…'"),
        false => format!("heeler approvals approve {id}, or reject {id} --reason 'why not'"),
    }
}

fn dimmed(text: &str) -> Text {
    Text::styled(Style::new().dimmed(), text)
}

/// What became of a line that was typed.
pub(super) enum Typed {
    /// It means nothing.
    Nothing,
    /// The question is put again.
    Again(String),
    /// It is an answer.
    Answer(Command),
}

/// Where a person answers.
pub(super) struct Asking {
    keys: Option<Keys>,
    by: String,
    /// The question that is put, and the number that its answer carries.
    asked: Option<(ApprovalId, ApprovalKind, u64)>,
    /// The question that was answered last, which may not be on record yet.
    answered: Option<ApprovalId>,
}

impl Asking {
    /// Takes the keyboard, where a person sits.
    pub(super) fn new(view: &View<'_>, tell: &SyncSender<Event>) -> Asking {
        let is_here = std::io::stderr().is_terminal() && std::io::stdin().is_terminal();
        let is_wanted = !view.is_quiet && !view.how.until_asked;
        let keyboard = (is_here && is_wanted).then(Keyboard::of_stdin);
        let keyboard = keyboard.and_then(|keyboard| {
            keyboard.inspect_err(|error| tracing::debug!(%error, "nobody can be asked here")).ok()
        });
        let keys = keyboard.map(|keyboard| Keys::read(keyboard, tell.clone()));
        Asking { keys, by: view.place.who(), asked: None, answered: None }
    }

    /// Says whether questions are answered here.
    pub(super) fn is_here(&self) -> bool {
        self.keys.is_some()
    }

    /// Says whether a question waits for its answer here.
    pub(super) fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// Asks nothing any more.
    pub(super) fn stop(&mut self) {
        self.keys = None;
        self.asked = None;
    }

    /// The last answer did not get through.
    pub(super) fn failed(&mut self) {
        self.answered = None;
    }

    /// Returns the prompt of the question that stands there.
    pub(super) fn current(&self) -> Option<String> {
        self.asked.as_ref().map(|(_, kind, _)| prompt(*kind))
    }

    /// Puts the next question, and says whether there is one to be put now.
    pub(super) fn next(&mut self, pending: &[Approval]) -> bool {
        if let Some((id, ..)) = &self.asked {
            if pending.iter().any(|it| it.id == *id) {
                return false;
            }
            // Somebody else answered it.
            self.asked = None;
        }
        let next = pending.iter().find(|it| Some(&it.id) != self.answered.as_ref());
        let (Some(keys), Some(next)) = (&self.keys, next) else { return false };
        self.asked = Some((next.id.clone(), next.kind, keys.forget()));
        true
    }

    /// Takes a line that was typed.
    pub(super) fn typed(&mut self, question: u64, line: Option<String>) -> Typed {
        let Some((id, kind, number)) = self.asked.clone() else { return Typed::Nothing };
        if number != question {
            return Typed::Nothing;
        }
        let Some(line) = line else {
            // Nobody types any more.
            self.stop();
            return Typed::Nothing;
        };
        let Some(answer) = answer(kind, line.trim()) else {
            return Typed::Again(prompt(kind));
        };
        self.asked = None;
        self.answered = Some(id.clone());
        Typed::Answer(Command::Approval { approval: id, answer, by: self.by.clone() })
    }
}

fn prompt(kind: ApprovalKind) -> String {
    match kind.wants_words() {
        true => "  your answer: ".to_owned(),
        false => "  go on? [y/n, and why] ".to_owned(),
    }
}

/// Reads an answer; `None` if it is none.
fn answer(kind: ApprovalKind, line: &str) -> Option<ApprovalAnswer> {
    if line.is_empty() {
        return None;
    }
    let text = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    if kind.wants_words() {
        return Some(ApprovalAnswer { approve: true, text: text(line), updated_input: None });
    }
    let (word, rest) = line.split_once([' ', ',']).unwrap_or((line, ""));
    let approve = match word.to_lowercase().as_str() {
        "y" | "yes" => true,
        "n" | "no" => false,
        _ => return None,
    };
    Some(ApprovalAnswer { approve, text: text(rest), updated_input: None })
}
