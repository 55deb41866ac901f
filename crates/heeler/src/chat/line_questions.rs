//! Questions of a conversation on plain lines, for people who use a screen reader. Start at
//! [`LineQuestions`].

use std::collections::VecDeque;

use heeler_chat::{ChatQuestion, UserAction};
use serde_json::{Map, Value as Json};

use crate::job_watch::question_text::{
    PermissionText, choice_lines, how_to_answer, open_question, parse_choice, parse_permission,
};
use crate::output::SafeText;

/// Meaning of a typed line.
#[derive(Debug, PartialEq)]
pub(super) enum TypedLine {
    /// A message to the agent.
    Message,
    /// The answer to a question.
    Answer(Box<UserAction>),
    /// No answer yet: the question is shown again, after this remark.
    Again(Option<String>),
}

/// Open questions, of which the first is asked.
#[derive(Default)]
pub(super) struct LineQuestions {
    waiting: VecDeque<ChatQuestion>,
    /// Answers so far to the parts of the first question.
    answers: Map<String, Json>,
    /// True if the first question is shown in full, however long it is.
    is_whole: bool,
    /// Number of the question asked last: a line with another number was typed before it.
    number: u64,
}

impl LineQuestions {
    /// Adds a question; returns true if it must be shown now.
    pub(super) fn add(&mut self, question: ChatQuestion) -> bool {
        self.waiting.push_back(question);
        self.waiting.len() == 1
    }

    /// Removes a closed question; returns true if another one must be shown now.
    pub(super) fn remove(&mut self, id: &str) -> bool {
        let Some(position) = self.waiting.iter().position(|question| question.ask.id == id) else {
            return false;
        };
        self.waiting.remove(position);
        if position > 0 {
            return false;
        }
        self.answers.clear();
        self.is_whole = false;
        !self.waiting.is_empty()
    }

    /// Returns the lines of the first question, and the request for an answer. Lines that were typed
    /// with another number than this one do not answer it.
    pub(super) fn show(&mut self, number: u64) -> Option<(Vec<SafeText>, String)> {
        self.number = number;
        let question = self.waiting.front()?;
        if let Some(open) = open_question(&question.ask, &self.answers) {
            return Some((choice_lines(open), how_to_answer(open).to_owned()));
        }
        let shown = PermissionText::new(&question.ask, self.is_whole);
        let prompt = shown.prompt();
        Some((shown.into_lines(), prompt))
    }

    /// Handles a line that was typed while the question with this number was the last one shown.
    pub(super) fn handle_line(&mut self, number: u64, line: &str) -> TypedLine {
        let Some(question) = self.waiting.front().filter(|_| number == self.number) else {
            return TypedLine::Message;
        };
        let (line, ask) = (line.trim(), &question.ask);
        let answer = match open_question(ask, &self.answers) {
            Some(_) => match parse_choice(ask, line, &mut self.answers) {
                Ok(answer) => answer,
                Err(wrong) => return TypedLine::Again(Some(wrong)),
            },
            None => {
                // Judge the line by what was shown when it was typed.
                let is_cut = PermissionText::new(ask, self.is_whole).is_cut();
                self.is_whole |= line == "all";
                parse_permission(line, is_cut)
            }
        };
        let Some(answer) = answer else { return TypedLine::Again(None) };
        let (job, ask) = (question.job.clone(), ask.id.clone());
        TypedLine::Answer(Box::new(UserAction::Answer { job, ask, answer }))
    }
}

#[cfg(test)]
mod tests {
    use heeler_chat::ChatSpeaker;
    use heeler_model::run::{AgentQuestion, QuestionAnswer};
    use serde_json::json;

    use super::*;

    fn question(id: &str, kind: &str, input: Json) -> ChatQuestion {
        let ask = AgentQuestion {
            protocol: 1,
            id: id.to_owned(),
            at: jiff::Timestamp::UNIX_EPOCH,
            kind: kind.to_owned(),
            tool: "Bash".to_owned(),
            input,
            until: None,
            network_host: None,
            grant: None,
        };
        let job = "job-2026-01-02-aaaa01".parse().unwrap();
        ChatQuestion { of: ChatSpeaker::Coordinator, job, ask }
    }

    fn answer(line: &TypedLine) -> &QuestionAnswer {
        let TypedLine::Answer(action) = line else { panic!("{line:?}") };
        let UserAction::Answer { answer, .. } = &**action else { panic!("{action:?}") };
        answer
    }

    #[test]
    fn a_line_answers_the_question_that_was_shown_before_it() {
        let mut questions = LineQuestions::default();
        assert_eq!(questions.handle_line(0, "hello"), TypedLine::Message);
        assert!(questions.add(question("a", "permission", json!({"command": "ls\n? Bash"}))));
        assert!(!questions.add(question("b", "permission", json!({"command": "rm"}))));
        let (lines, prompt) = questions.show(7).unwrap();
        let lines: Vec<String> = lines.iter().map(SafeText::plain).collect();
        assert_eq!(lines, ["? Bash ls", "  │ ? Bash"], "no line of the agent poses as ours");
        assert!(prompt.contains("allow it?"));
        assert_eq!(questions.handle_line(6, "y"), TypedLine::Message, "typed before the question");
        assert_eq!(questions.handle_line(7, "sure"), TypedLine::Again(None));
        assert_eq!(answer(&questions.handle_line(7, "y")), &QuestionAnswer::Allow { input: None });
        assert!(questions.remove("a"), "the next one is shown");
        questions.show(8).unwrap();
        let denied = questions.handle_line(8, "use trash instead");
        assert!(
            matches!(answer(&denied), QuestionAnswer::Deny { message, .. } if message == "use trash instead")
        );
        assert!(!questions.remove("b") && !questions.remove("b"));
        assert!(questions.show(9).is_none());
    }

    #[test]
    fn choices_are_answered_by_number() {
        let mut questions = LineQuestions::default();
        let input = json!({"questions": [{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}]});
        questions.add(question("a", "question", input));
        let (lines, _) = questions.show(1).unwrap();
        assert!(lines.iter().any(|line| line.plain().trim() == "2. B"));
        assert!(matches!(questions.handle_line(1, "3"), TypedLine::Again(Some(_))));
        let chosen = questions.handle_line(1, "2");
        let QuestionAnswer::Allow { input: Some(input) } = answer(&chosen) else { panic!() };
        assert_eq!(input["answers"]["Which?"], "B");
    }
}
