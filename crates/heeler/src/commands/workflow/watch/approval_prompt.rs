//! What people are asked while they watch: told with how to answer it, and answered here where this
//! is a terminal.

use std::io::IsTerminal as _;
use std::sync::mpsc::SyncSender;

use anstyle::{AnsiColor, Style};
use heeler_engine::DaemonCommand;
use heeler_model::{Approval, ApprovalAnswer, ApprovalId, ApprovalKind};

use super::WorkflowWatchOptions;
use crate::commands::approvals::question_excerpt;
use crate::job_watch::{JobWatchEvent, KeyboardInput, KeyboardReader};
use crate::output::{SafeText, one_line};

/// How much of a question is shown; `heeler approvals show` has it whole.
const QUESTION_LINES_MAX: usize = 20;

/// Returns what is shown of a question.
pub(super) fn question_lines(approval: &Approval, here: bool) -> Vec<SafeText> {
    let sign = SafeText::styled(AnsiColor::Magenta.on_default(), "◆");
    let asks = match approval.kind {
        ApprovalKind::Approve => "asks for consent",
        ApprovalKind::Reply | ApprovalKind::Question => "asks",
        ApprovalKind::Permission => "asks to use a tool",
    };
    let by = approval.requested_by.as_deref().unwrap_or(&approval.gate);
    let head = format!(" {} {asks} ({}, {})", one_line(by), one_line(&approval.gate), approval.id);
    let mut lines = vec![sign.append(head)];
    let said = question_excerpt(approval);
    let said: Vec<&str> = said.trim().lines().collect();
    let shown = said.iter().take(QUESTION_LINES_MAX);
    lines.extend(shown.map(|line| SafeText::from(format!("  {line}"))));
    if said.len() > QUESTION_LINES_MAX {
        lines.push(dimmed(&format!("  … whole: heeler approvals show {}", approval.id)));
    }
    if !here {
        lines.push(dimmed(&format!("  answer it: {}", answer_commands(approval))));
    }
    lines
}

/// Returns the commands that answer.
pub(in super::super) fn answer_commands(approval: &Approval) -> String {
    let id = &approval.id;
    match approval.kind.expects_text() {
        true => format!("heeler approvals reply {id} '…'"),
        false => format!("heeler approvals approve {id}, or reject {id} --reason 'why not'"),
    }
}

fn dimmed(text: &str) -> SafeText {
    SafeText::styled(Style::new().dimmed(), text)
}

/// What became of a line that was typed.
pub(super) enum TypedLineOutcome {
    /// It means nothing.
    Nothing,
    /// The question is put again.
    AskAgain(String),
    /// It is an answer.
    Answer(DaemonCommand),
}

/// Where a person answers.
pub(super) struct ApprovalPrompt {
    keys: Option<KeyboardReader>,
    answered_by: String,
    /// The question that is put, and the number that its answer carries.
    asked: Option<(ApprovalId, ApprovalKind, u64)>,
    /// The question that was answered last, which may not be on record yet.
    answered: Option<ApprovalId>,
}

impl ApprovalPrompt {
    /// Takes the keyboard, where a person sits.
    pub(super) fn new(
        view: &WorkflowWatchOptions<'_>,
        tell: &SyncSender<JobWatchEvent>,
    ) -> ApprovalPrompt {
        let is_here = std::io::stderr().is_terminal() && std::io::stdin().is_terminal();
        let is_wanted = !view.is_quiet && !view.how.until_asked;
        let keyboard = (is_here && is_wanted).then(KeyboardInput::from_stdin);
        let keyboard = keyboard.and_then(|keyboard| {
            keyboard.inspect_err(|error| tracing::debug!(%error, "nobody can be asked here")).ok()
        });
        let keys = keyboard.map(|keyboard| KeyboardReader::start(keyboard, tell.clone()));
        ApprovalPrompt { keys, answered_by: view.place.caller_name(), asked: None, answered: None }
    }

    /// Says whether questions are answered here.
    pub(super) fn is_interactive(&self) -> bool {
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
    pub(super) fn answer_failed(&mut self) {
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
        self.asked = Some((next.id.clone(), next.kind, keys.discard_typed()));
        true
    }

    /// Takes a line that was typed.
    pub(super) fn handle_line(&mut self, question: u64, line: Option<String>) -> TypedLineOutcome {
        let Some((id, kind, number)) = self.asked.clone() else { return TypedLineOutcome::Nothing };
        if number != question {
            return TypedLineOutcome::Nothing;
        }
        let Some(line) = line else {
            // Nobody types any more.
            self.stop();
            return TypedLineOutcome::Nothing;
        };
        let Some(answer) = parse_answer(kind, line.trim()) else {
            return TypedLineOutcome::AskAgain(prompt(kind));
        };
        self.asked = None;
        self.answered = Some(id.clone());
        TypedLineOutcome::Answer(DaemonCommand::Approval {
            approval: id,
            answer,
            by: self.answered_by.clone(),
        })
    }
}

fn prompt(kind: ApprovalKind) -> String {
    match kind.expects_text() {
        true => "  your answer: ".to_owned(),
        false => "  go on? [y/n, and why] ".to_owned(),
    }
}

/// Reads an answer; `None` if it is none.
fn parse_answer(kind: ApprovalKind, line: &str) -> Option<ApprovalAnswer> {
    if line.is_empty() {
        return None;
    }
    let text = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    if kind.expects_text() {
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
