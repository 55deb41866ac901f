//! Questions during `workflow watch`: printed with the commands that answer them, or answered at
//! the terminal. Start at [`ApprovalPrompt`].

use std::collections::HashMap;
use std::sync::mpsc::SyncSender;

use anstyle::{AnsiColor, Style};
use heeler_engine::DaemonCommand;
use heeler_model::{Approval, ApprovalAnswer, ApprovalId, ApprovalKind};

use crate::commands::approvals::question_excerpt;
use crate::job_watch::{JobWatchEvent, KeyboardInput, KeyboardReader};
use crate::output::{SafeText, one_line};

/// Lines of a question that are shown; `heeler approvals show` prints all.
const QUESTION_LINES_MAX: usize = 20;

/// Returns the lines that present a question.
pub(super) fn question_lines(approval: &Approval, here: bool) -> Vec<SafeText> {
    let sign = SafeText::styled(AnsiColor::Magenta.on_default(), "◆");
    let asks = match approval.kind {
        ApprovalKind::Approve => "asks for approval",
        ApprovalKind::Reply | ApprovalKind::Question => "asks a question",
        ApprovalKind::Permission => "asks to use a tool",
    };
    let by = approval.requested_by.as_deref().unwrap_or(&approval.gate);
    let head = format!(" {} {asks} ({}, {})", one_line(by), one_line(&approval.gate), approval.id);
    let mut lines = vec![sign.append(head)];
    let question = question_excerpt(approval);
    let question: Vec<&str> = question.trim().lines().collect();
    // A longer question would push the phases off the screen.
    let shown = question.iter().take(QUESTION_LINES_MAX);
    lines.extend(shown.map(|line| SafeText::from(format!("  {line}"))));
    if question.len() > QUESTION_LINES_MAX {
        lines.push(dimmed(&format!("  … in full: heeler approvals show {}", approval.id)));
    }
    if !here {
        lines.push(dimmed(&format!("  answer: {}", answer_commands(approval))));
    }
    lines
}

/// Returns the commands that answer an approval.
pub(in super::super) fn answer_commands(approval: &Approval) -> String {
    let id = &approval.id;
    match approval.kind.expects_text() {
        true => format!("heeler approvals reply {id} '…'"),
        false => format!("heeler approvals approve {id}, or reject {id} --reason 'why'"),
    }
}

fn dimmed(text: &str) -> SafeText {
    SafeText::styled(Style::new().dimmed(), text)
}

/// Effect of a typed line.
pub(super) enum TypedLineOutcome {
    /// The line is ignored.
    Nothing,
    /// The question is asked again, with this prompt.
    AskAgain(String),
    Answer(DaemonCommand),
}

/// Prompt for answers at the terminal.
pub(super) struct ApprovalPrompt {
    keys: Option<KeyboardReader>,
    answered_by: String,
    /// The current question, and the number that its answer must carry.
    open_question: Option<(ApprovalId, ApprovalKind, u64)>,
    /// Hashes of the questions that were shown.
    shown_hashes: HashMap<ApprovalId, Option<String>>,
    /// The question answered last; its answer may not be recorded yet.
    answered: Option<ApprovalId>,
}

impl ApprovalPrompt {
    /// Asks on the keyboard, if there is one.
    pub(super) fn new(
        keyboard: Option<KeyboardInput>,
        answered_by: String,
        events: &SyncSender<JobWatchEvent>,
    ) -> ApprovalPrompt {
        let keys = keyboard.map(|keyboard| KeyboardReader::start(keyboard, events.clone()));
        let shown_hashes = HashMap::new();
        ApprovalPrompt { keys, answered_by, open_question: None, shown_hashes, answered: None }
    }

    /// Returns true if questions are answered at this terminal.
    pub(super) fn is_interactive(&self) -> bool {
        self.keys.is_some()
    }

    /// Returns true if a question waits for its answer at this terminal.
    pub(super) fn is_asking(&self) -> bool {
        self.open_question.is_some()
    }

    pub(super) fn stop(&mut self) {
        // The reader's thread stays, but its lines no longer match a question.
        self.keys = None;
        self.open_question = None;
    }

    /// Records that the last answer was not accepted.
    pub(super) fn answer_failed(&mut self) {
        self.answered = None;
    }

    /// Returns the prompt of the current question.
    pub(super) fn current(&self) -> Option<String> {
        self.open_question.as_ref().map(|(_, kind, _)| prompt(*kind))
    }

    /// Records a question as it was shown, in full: its answer counts only for this content.
    pub(super) fn record_shown(&mut self, approval: &Approval) {
        self.shown_hashes.insert(approval.id.clone(), approval.shown_hash());
    }

    /// Moves to the next question; returns true if there is a new one to show.
    pub(super) fn next(&mut self, pending: &[Approval]) -> bool {
        if let Some((id, ..)) = &self.open_question {
            if pending.iter().any(|it| it.id == *id) {
                return false;
            }
            // It was answered elsewhere.
            self.open_question = None;
        }
        // The answer may not be committed yet, and the same question must not be asked twice.
        let next = pending.iter().find(|it| Some(&it.id) != self.answered.as_ref());
        let (Some(keys), Some(next)) = (&self.keys, next) else { return false };
        self.open_question = Some((next.id.clone(), next.kind, keys.discard_typed()));
        true
    }

    /// Handles a typed line.
    pub(super) fn handle_line(&mut self, question: u64, line: Option<String>) -> TypedLineOutcome {
        let Some((id, kind, number)) = self.open_question.clone() else {
            return TypedLineOutcome::Nothing;
        };
        // The line was typed before this question appeared.
        if number != question {
            return TypedLineOutcome::Nothing;
        }
        let Some(line) = line else {
            // Standard input is closed.
            self.stop();
            return TypedLineOutcome::Nothing;
        };
        let Some(answer) = parse_answer(kind, line.trim()) else {
            return TypedLineOutcome::AskAgain(prompt(kind));
        };
        self.open_question = None;
        // Set before the request is sent, which happens in another thread.
        self.answered = Some(id.clone());
        let input_hash = self.shown_hashes.get(&id).cloned().flatten();
        TypedLineOutcome::Answer(DaemonCommand::Approval {
            approval: id,
            answer: ApprovalAnswer { input_hash, ..answer },
            by: self.answered_by.clone(),
        })
    }
}

fn prompt(kind: ApprovalKind) -> String {
    match kind.expects_text() {
        true => "  your answer: ".to_owned(),
        false => "  approve? [y/n, optional reason] ".to_owned(),
    }
}

/// Parses an answer; returns `None` if it is not valid.
fn parse_answer(kind: ApprovalKind, line: &str) -> Option<ApprovalAnswer> {
    if line.is_empty() {
        return None;
    }
    let text = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    if kind.expects_text() {
        return Some(ApprovalAnswer {
            approve: true,
            text: text(line),
            ..ApprovalAnswer::default()
        });
    }
    // "yes, but only the tests" is a yes with a reason.
    let (word, rest) = line.split_once([' ', ',']).unwrap_or((line, ""));
    let approve = match word.to_lowercase().as_str() {
        "y" | "yes" => true,
        "n" | "no" => false,
        _ => return None,
    };
    Some(ApprovalAnswer { approve, text: text(rest), ..ApprovalAnswer::default() })
}
