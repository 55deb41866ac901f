//! Open questions of a run, from its events and its state reports. Start at [`OpenQuestions`].

use std::collections::HashSet;

use heeler_model::run::AgentQuestion;

/// Questions of the agents of a job, by ID. Each is opened once and closed once.
#[derive(Debug, Default)]
pub(super) struct OpenQuestions {
    open: HashSet<String>,
    closed: HashSet<String>,
    /// Open questions that the latest state report did not list.
    unlisted: HashSet<String>,
}

impl OpenQuestions {
    /// Returns true if the question is news.
    pub(super) fn add(&mut self, question: &AgentQuestion) -> bool {
        self.unlisted.remove(&question.id);
        // A state report may be older than the end of the question.
        !self.closed.contains(&question.id) && self.open.insert(question.id.clone())
    }

    /// Returns true if the question was open.
    pub(super) fn close(&mut self, id: &str) -> bool {
        self.unlisted.remove(id);
        self.closed.insert(id.to_owned());
        self.open.remove(id)
    }

    /// Closes all questions, and returns their IDs.
    pub(super) fn close_all(&mut self) -> Vec<String> {
        let open: Vec<String> = self.open.iter().cloned().collect();
        open.into_iter().filter(|id| self.close(id)).collect()
    }

    /// Closes the questions that a state report lacks, and returns their IDs. A question may be
    /// missing once, if it was asked after the report. Missing twice, it is closed.
    pub(super) fn close_unlisted(&mut self, listed: &[AgentQuestion]) -> Vec<String> {
        let is_listed = |id: &String| listed.iter().any(|question| question.id == *id);
        let unlisted: HashSet<String> =
            self.open.iter().filter(|id| !is_listed(id)).cloned().collect();
        let gone: Vec<String> = unlisted.intersection(&self.unlisted).cloned().collect();
        self.unlisted = unlisted;
        gone.into_iter().filter(|id| self.close(id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(id: &str) -> AgentQuestion {
        serde_json::from_value(serde_json::json!({
            "protocol": 1, "id": id, "kind": "permission", "tool": "Bash", "input": {},
            "at": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    #[test]
    fn a_question_is_opened_once_and_closed_once() {
        let mut questions = OpenQuestions::default();
        assert!(questions.add(&question("1")));
        assert!(!questions.add(&question("1")), "a state report lists it too");
        assert!(questions.close("1"));
        assert!(!questions.close("1"));
        assert!(!questions.add(&question("1")), "a late state report lists it still");
    }

    #[test]
    fn a_question_that_two_reports_lack_is_closed() {
        let mut questions = OpenQuestions::default();
        questions.add(&question("1"));
        questions.add(&question("2"));
        assert!(questions.close_unlisted(&[question("2")]).is_empty(), "it may be newer");
        assert_eq!(questions.close_unlisted(&[question("2")]), ["1"]);
        assert!(questions.close_unlisted(&[]).is_empty());
        assert_eq!(questions.close_all(), ["2"]);
    }
}
